"""Skew: one hot key, with half of all records, against keys that are all alike. In the simulator, 8 workers.

`ours` is with the hot key and `baseline` without, so a ratio of 0.5x is half the throughput. "load" is one
epoch with all records, by its critical path: the slowest worker of each round, summed up, as on a cluster
with a core per worker (`predicted`). "work" is the time of all workers, as on one core. "changes" is the work
of an epoch of 1,000 more records; half of them have the hot key, with half of the load before them.
The lines "skew=[0]" name the hot key; with skew="auto" the run finds it in an epoch before, of a tenth of the
records. The baseline of both is the step without `skew`, so what a spread step costs more counts as well. A
step that takes `skew` has no aim without it. "no hot key" is skew="auto" where no key is hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import Report, median
from benchmarks.predicted import simulated

WORKERS = 8
CHANGES = 5


def streams(step: Callable[[ts.Stream], ts.Stream]) -> Callable[[], ts.Dataflow]:
    def build() -> ts.Dataflow:
        flow = ts.Dataflow("skew")
        step(flow.input("x", "k long, v long")).capture("out")
        return flow

    return build


def collections(step: Callable[[ts.Collection], ts.Collection]) -> Callable[[], ts.Dataflow]:
    return streams(lambda stream: step(stream.collection()).changes())


#: Steps that combine records before they send them, or send the few ones to all.
COMBINED: dict[str, Callable[[], ts.Dataflow]] = {
    "count": collections(lambda x: x.count(keys="k")),
    "sum": collections(lambda x: x.sum("v", keys="k")),
    "mean": collections(lambda x: x.mean("v", keys="k")),
    "distinct": collections(lambda x: x.select("k").distinct()),
    "broadcast_join": collections(lambda x: x.broadcast_join(x.select("k").distinct(), on="k")),
    "stream count": streams(lambda x: x.group_by("k").count()),
    "stream sum and max": streams(lambda x: x.group_by("k").aggregate(sum=("sum", "v"), max=("max", "v"))),
    "stream min": streams(lambda x: x.min("v", keys=["k"])),
    "stream distinct": streams(lambda x: x.select("k").distinct()),
    "stream top_k": streams(lambda x: x.top_k(3, "v", keys="k")),
}
#: Steps that take `skew`.
SPREAD: dict[str, Callable[[ts.Collection, Any], ts.Collection]] = {
    "min": lambda x, skew: x.min("v", keys="k", skew=skew),
    "top_k": lambda x, skew: x.top_k(3, "v", keys="k", skew=skew),
    "arranged count": lambda x, skew: x.arrange("k", skew=skew).count(keys="k"),
    "join": lambda x, skew: x.join(x.select("k").distinct(), on="k", skew=skew),
    "arranged join": lambda x, skew: x.arrange("k", skew=skew).join(x.select("k").distinct(), on="k"),
}
AIM = ">=0.5x"


def records(n: int, epoch: int, keys: int, *, hot: bool) -> pa.Table:
    """Random keys; with a hot one, it has half of the records."""
    draw = np.random.default_rng(epoch)
    key = draw.integers(1, keys, n)
    if hot:
        key[draw.random(n) < 0.5] = 0
    return pa.table({"k": key, "v": draw.integers(0, 1 << 30, n)})


class Times(NamedTuple):
    """Seconds of the load, of the work of all workers, and of the changes."""

    load: float
    work: float
    changes: float
    balance: float


def measured(build: Callable[[], ts.Dataflow], n: int, keys: int, *, hot: bool) -> Times:
    """The times of a flow."""
    sizes = [n // 10, n, *[1000] * CHANGES]
    load, *changes = simulated(
        build, [records(size, epoch, keys, hot=hot) for epoch, size in enumerate(sizes)], WORKERS
    )
    return Times(load.slowest, load.work, median(each.work for each in changes), load.balance)


def add(report: Report, name: str, ours: Times, baseline: Times, aim: str) -> None:
    """The lines of a case."""
    for part in ("load", "work", "changes"):
        report.add(
            f"{name}: {part}",
            ours=1000 * getattr(ours, part),
            baseline=1000 * getattr(baseline, part),
            against="no hot key",
            aim=aim,
            balance=ours.balance,
        )


def run(quick: bool) -> Report:
    """The load and the changes of each case, with and without the hot key."""
    report = Report("skew", "Skew: one hot key with half of all records", quick=quick)
    n = 100_000 if quick else 2_000_000
    for name, build in COMBINED.items():
        keys = 1000 if "join" in name else n // 2
        even, hot = (measured(build, n, keys, hot=hot) for hot in (False, True))
        add(report, name, hot, even, AIM)
    for name, step in SPREAD.items():
        keys = 1000 if "join" in name else n // 2
        plain, named, auto = (
            collections(lambda x, step=step, skew=skew: step(x, skew)) for skew in (None, [0], "auto")
        )
        even = measured(plain, n, keys, hot=False)
        add(report, name, measured(plain, n, keys, hot=True), even, "")
        add(report, f"{name}, skew=[0]", measured(named, n, keys, hot=True), even, AIM)
        add(report, f'{name}, skew="auto"', measured(auto, n, keys, hot=True), even, AIM)
        add(report, f'{name}, skew="auto", no hot key', measured(auto, n, keys, hot=False), even, "")
    report.write()
    return report
