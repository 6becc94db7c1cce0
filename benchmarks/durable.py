"""What it costs to be durable: each flow with its checkpoint on a disk, and with one in memory.

The same flow runs twice in one session, both queries alive: one checkpoint lies under /var/tmp, the other on
a tmpfs (/dev/shm), where Spark's log and state and our round log, inputs, blobs and captured tables are
written in the same way and reach no disk. Epochs alternate, each pair in the other order, so that what drifts
meets both. Times are from sending an epoch to having its result. Of fsync are counted the driver's own calls
for the checkpoint on the disk; those of Python workers are in the time only.

Workloads: running counts of many keys, of which a thousand change in an epoch; an asynchronous loop; a
barrier loop, with many rounds in a micro-batch, and with a micro-batch, and so all its files, for each.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median, quantile
from benchmarks.loops import barriers, hops, path, vector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISK, MEMORY = Path("/var/tmp"), Path("/dev/shm")
CHANGES, WARM = 1_000, 3
AIM = ">=0.91x"  # at most 1.10 times as long


class Side:
    """A running flow whose checkpoint lies somewhere."""

    def __init__(self, spark: SparkSession, flow: ts.Dataflow, place: Path, **start: Any) -> None:
        self.input = flow.handle(next(iter(flow.compile(1).sources)))
        self.folder = Path(tempfile.mkdtemp(prefix="timely-bench-", dir=place))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        checkpoint = str(self.folder / "checkpoint")
        settings = {"name": f"in {place}", "workers": 2} | start
        self.query = flow.start(spark, checkpoint=checkpoint, **settings)

    def epoch(self, table: pa.Table) -> float:
        """Milliseconds of one."""
        began = time.perf_counter()
        self.input.send(table)
        harness.answered(self.query)
        return 1000 * (time.perf_counter() - began)

    def stop(self) -> None:
        self.query.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def counts() -> ts.Dataflow:
    """A running count per key."""
    flow = ts.Dataflow("counts")
    flow.input("keys", "key long").group_by("key").count().probe("seen")
    return flow


def changes(keys: int, epoch: int) -> pa.Table:
    """Every key once, then some at random."""
    random = np.random.default_rng(epoch)
    return pa.table({"key": random.integers(0, keys, CHANGES) if epoch else np.arange(keys)})


def alternate(
    sides: tuple[Side, Side], data: Callable[[int], pa.Table], epochs: int
) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of the measured epochs of each side, and of each fsync of the driver for the first."""
    took: tuple[list[float], list[float], list[float]] = ([], [], [])
    fsync = os.fsync

    def timed(file: int) -> None:
        began = time.perf_counter()
        fsync(file)
        took[2].append(1000 * (time.perf_counter() - began))

    for epoch in range(WARM + epochs):
        if epoch == WARM:
            for each in took:
                each.clear()
        order: Iterable[int] = (0, 1) if epoch % 2 else (1, 0)
        for which in order:
            with mock.patch.object(os, "fsync", fsync if which else timed):
                took[which].append(sides[which].epoch(data(epoch)))
    return took


def kind(place: Path) -> str:
    """The file system that a place lies on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return max((len(point), name) for point, name in mounts if place.is_relative_to(point))[1]


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("durable", "Durability: a checkpoint on a disk against one in memory", quick=quick)
    on = {place: kind(place) for place in (DISK, MEMORY)}
    if on[DISK] == "tmpfs" or on[MEMORY] != "tmpfs":
        msg = f"{DISK} is {on[DISK]} and {MEMORY} is {on[MEMORY]}: there is nothing to compare"
        raise RuntimeError(msg)
    spark = harness.spark("durable")
    keys, iterations, length, epochs = (100_000, 10, 8, 4) if quick else (1_000_000, 100, 60, 40)
    cases: list[tuple[str, Callable[[], ts.Dataflow], Callable[[int], pa.Table], int, dict[str, int]]] = [
        (f"{CHANGES:,} changes of {keys:,} counts", counts, partial(changes, keys), epochs, {}),
        (f"{length} hops of an asynchronous loop", hops, partial(path, length), epochs, {}),
        (f"{iterations} iterations with a barrier", partial(barriers, iterations), vector, epochs, {}),
        (
            "10 iterations with a barrier, a micro-batch each",
            partial(barriers, 10),
            vector,
            max(2, epochs // 4),
            {"rounds_per_batch": 1},
        ),
    ]  # fmt: skip
    for case, build, data, count, start in cases:
        sides = (Side(spark, build(), DISK, **start), Side(spark, build(), MEMORY, **start))
        try:
            disk, memory, synced = alternate(sides, data, count)
        finally:
            for side in sides:
                side.stop()
        report.add(
            case,
            ours=median(disk),
            baseline=median(memory),
            against="in memory",
            aim=AIM,
            note=f"{median(disk) / median(memory):.2f} times as long; "
            f"{len(synced) / count:.1f} fsyncs an epoch, {sum(synced) / count:.1f} ms",
            p95=quantile(disk, 0.95),
            baseline_p95=quantile(memory, 0.95),
        )
    report.note(f"The disk is {on[DISK]}.")
    report.write()
    return report
