"""What the system's log costs: each flow with `start(log_to=)`, and the same flow without.

Both queries are alive in one session, and epochs alternate, each pair in the other order, so that what drifts
meets both. Milliseconds are from sending an epoch to having its result; processor time is that of the driver,
the JVM and the Python workers together, while the other query is idle.

An epoch varies by more than the log costs; so "writing" is for how long an epoch waits for its log by itself.

Workloads: running counts of many keys, of which a thousand change in an epoch; an asynchronous loop; a loop
with a barrier, whose rounds all run in one micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.durable import CHANGES, DISK, WARM, Side, changes, counts
from benchmarks.harness import Report, median
from benchmarks.loops import barriers, hops, path, vector
from benchmarks.resources import processor
from timely_spark.runtime.sinks.system_log import SystemLog

AIM = ">=0.97x"  # at most 3 % more


def measured(side: Side, table: pa.Table) -> tuple[float, float]:
    """Milliseconds of an epoch, and of processor time until the query is idle again."""
    before = processor()
    took = side.epoch(table)
    time.sleep(0.15)  # what Spark does after the result
    return took, 1000 * (processor() - before)


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("system_log", "The system's log: on against off", quick=quick)
    spark = harness.spark("system-log")
    keys, iterations, length, epochs = (100_000, 10, 8, 4) if quick else (1_000_000, 100, 60, 25)
    cases: list[tuple[str, Callable[[], ts.Dataflow], Callable[[int], pa.Table]]] = [
        (f"{CHANGES:,} changes of {keys:,} counts", counts, partial(changes, keys)),
        (f"{length} hops of an asynchronous loop", hops, partial(path, length)),
        (f"{iterations} iterations with a barrier", partial(barriers, iterations), vector),
    ]
    for case, build, data in cases:
        sides = [Side(spark, build(), DISK), logged(spark, build())]
        pairs: list[tuple[tuple[float, float], ...]] = []
        writes: list[float] = []
        try:
            with mock.patch.object(SystemLog, "write", timed(SystemLog.write, writes)):
                for epoch in range(WARM + epochs):
                    if epoch == WARM:
                        writes.clear()
                    order = ((0, 1), (1, 0))[epoch % 2]
                    took = {which: measured(sides[which], data(epoch)) for which in order}
                    pairs += [(took[0], took[1])] * (epoch >= WARM)
        finally:
            for side in sides:
                side.stop()
        for what, index in (("", 0), (", processor", 1)):
            off, on = ([pair[which][index] for pair in pairs] for which in (0, 1))
            pair, every = median([b / a for a, b in zip(off, on, strict=True)]), sum(on) / sum(off)
            report.add(
                case + what,
                ours=median(on),
                baseline=median(off),
                against="without the log",
                aim=AIM,
                note=f"{pair:.3f} times in the median pair, {every:.3f} in sum",
            )
        without = sum(pair[0][0] for pair in pairs)
        report.add(
            f"{case}, writing",
            ours=sum(writes) / epochs,
            aim=f"<={0.03 * without / epochs:.1f}",
            note=f"{100 * sum(writes) / without:.2f} % of an epoch without the log",
        )
    report.write()
    return report


def timed(write: Callable[..., None], took: list[float]) -> Callable[..., None]:
    """A function that also notes its milliseconds."""

    def noted(*args: Any) -> None:
        began = time.perf_counter()
        write(*args)
        took.append(1000 * (time.perf_counter() - began))

    return noted


def logged(spark: Any, flow: ts.Dataflow) -> Side:
    """A running flow that logs."""
    return Side(spark, flow, DISK, name="logged", log_to=str(Path(harness.folder()) / "log"))
