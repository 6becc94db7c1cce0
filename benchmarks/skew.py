"""Skew: one hot key, with half of all records, against keys that are all alike. In the simulator, 8 workers.

`ours` is with the hot key and `baseline` without, so a ratio of 0.5x is half the throughput. "load" is one
epoch with all records, by its critical path: the slowest worker of each round, summed up, as on a cluster
with a core per worker (`predicted`). "work" is the time of all workers, as on one core. "changes" is the work
of an epoch of 1,000 more records; half of them have the hot key, with half of the load before them.
The lines "skew=[0]" name the hot key, also in their baseline, which has none. With skew="auto" the run finds
it in an epoch before, of a tenth of the records.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import Report, median
from benchmarks.predicted import Path, simulated

WORKERS = 8
CHANGES = 5
HOT = [0]


def streams(step: Callable[[ts.Stream], ts.Stream]) -> Callable[[], ts.Dataflow]:
    def build() -> ts.Dataflow:
        flow = ts.Dataflow("skew")
        step(flow.input("x", "k long, v long")).capture("out")
        return flow

    return build


def collections(step: Callable[[ts.Collection], ts.Collection]) -> Callable[[], ts.Dataflow]:
    return streams(lambda stream: step(stream.collection()).changes())


CASES: dict[str, Callable[[], ts.Dataflow]] = {
    "count": collections(lambda x: x.count(keys="k")),
    "sum": collections(lambda x: x.sum("v", keys="k")),
    "mean": collections(lambda x: x.mean("v", keys="k")),
    "distinct": collections(lambda x: x.select("k").distinct()),
    "min": collections(lambda x: x.min("v", keys="k")),
    "top_k": collections(lambda x: x.top_k(3, "v", keys="k")),
    "arranged count": collections(lambda x: x.arrange("k").count(keys="k")),
    "stream count": streams(lambda x: x.group_by("k").count()),
    "stream sum and max": streams(lambda x: x.group_by("k").aggregate(sum=("sum", "v"), max=("max", "v"))),
    "stream min": streams(lambda x: x.min("v", keys=["k"])),
    "stream distinct": streams(lambda x: x.select("k").distinct()),
    "stream top_k": streams(lambda x: x.top_k(3, "v", keys="k")),
    "min, skew=[0]": collections(lambda x: x.min("v", keys="k", skew=HOT)),
    "top_k, skew=[0]": collections(lambda x: x.top_k(3, "v", keys="k", skew=HOT)),
    "arranged count, skew=[0]": collections(lambda x: x.arrange("k", skew=HOT).count(keys="k")),
    "join": collections(lambda x: x.join(x.select("k").distinct(), on="k")),
    "join, skew=[0]": collections(lambda x: x.join(x.select("k").distinct(), on="k", skew=HOT)),
    "arranged join": collections(lambda x: x.arrange("k").join(x.select("k").distinct(), on="k")),
    "arranged join, skew=[0]": collections(
        lambda x: x.arrange("k", skew=HOT).join(x.select("k").distinct(), on="k")
    ),
    'join, skew="auto"': collections(lambda x: x.join(x.select("k").distinct(), on="k", skew="auto")),
    'arranged join, skew="auto"': collections(
        lambda x: x.arrange("k", skew="auto").join(x.select("k").distinct(), on="k")
    ),
    'arranged count, skew="auto"': collections(lambda x: x.arrange("k", skew="auto").count(keys="k")),
    'min, skew="auto"': collections(lambda x: x.min("v", keys="k", skew="auto")),
    'top_k, skew="auto"': collections(lambda x: x.top_k(3, "v", keys="k", skew="auto")),
    "broadcast_join": collections(lambda x: x.broadcast_join(x.select("k").distinct(), on="k")),
}


def records(n: int, epoch: int, keys: int, *, hot: bool) -> pa.Table:
    """Random keys; with a hot one, it has half of the records."""
    draw = np.random.default_rng(epoch)
    key = draw.integers(1, keys, n)
    if hot:
        key[draw.random(n) < 0.5] = 0
    return pa.table({"k": key, "v": draw.integers(0, 1 << 30, n)})


def measured(build: Callable[[], ts.Dataflow], n: int, keys: int, *, hot: bool) -> tuple[Path, list[Path]]:
    """The path of the load, and of each epoch of changes."""
    sizes = [n // 10, n, *[1000] * CHANGES]
    load, *changes = simulated(
        build, [records(size, epoch, keys, hot=hot) for epoch, size in enumerate(sizes)], WORKERS
    )
    return load, changes


def run(quick: bool) -> Report:
    """The load and the changes of each case, with and without the hot key."""
    report = Report("skew", "Skew: one hot key with half of all records", quick=quick)
    n = 100_000 if quick else 4_000_000
    for name, build in CASES.items():
        keys = 1000 if "join" in name else n // 2
        (load, changes), (hot, hot_changes) = (measured(build, n, keys, hot=hot) for hot in (False, True))
        for part, ours, baseline in (
            ("load", hot.slowest, load.slowest),
            ("work", hot.work, load.work),
            ("changes", median(c.work for c in hot_changes), median(c.work for c in changes)),
        ):
            report.add(
                f"{name}: {part}",
                ours=1000 * ours,
                baseline=1000 * baseline,
                against="no hot key",
                aim=">=0.5x",
                balance=hot.balance,
            )
    report.write()
    return report
