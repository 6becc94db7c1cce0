"""Ten thousand epochs of one query, and what grows meanwhile: memory, files, disk, processor time, latency.

A sliding window of edges keeps its size: each epoch adds some and withdraws as many of the oldest ones. The
flow keeps the window's connected components and, of a second input, running counts of a fixed number of keys.
What must not grow is looked at every second; slopes are of all epochs after the first 500, in percent of the
level there per 1,000 epochs, so that growth which would matter after a week shows in an hour. What the JVM
holds goes up and down with its collections: the heap in use just after one, every 250 epochs, must be flat.
Interrupted, it reports the epochs there were.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, quantile, slope
from benchmarks.resources import Resources, files, processor, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCHS, WARM, COLLECTED = 10_000, 500, 250
NODES, WINDOW, STEP = 2_000, 4_000, 20
KEYS, CHANGES = 1_000, 50
#: What is kept for a rollback reaches its steady number within this many batches.
MEMORY = ("driver", "JVM", "Python workers")
DISK = ("files", "MB on disk")
SETTINGS = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
}


class Window:
    """The edges of a graph of constant size, by the epoch."""

    def __init__(self, seed: int = 7) -> None:
        self._random = np.random.default_rng(seed)
        self._held: list[tuple[int, int]] = []

    def changes(self) -> pa.Table:
        """The next epoch: `STEP` edges come; the oldest go, once the window is full."""
        come = [tuple(map(int, edge)) for edge in self._random.integers(0, NODES, (STEP, 2))]
        self._held += come
        go, self._held = self._held[:-WINDOW], self._held[-WINDOW:]
        src, dst = zip(*come, *go, strict=True)
        return pa.table({"src": src, "dst": dst, "diff": [1] * len(come) + [-1] * len(go)})

    def words(self) -> pa.Table:
        """Some of a fixed number of keys."""
        return pa.table({"word": self._random.integers(0, KEYS, CHANGES)})


class Run:
    """The query, fed an epoch at a time."""

    def __init__(self, session: SparkSession, checkpoint: Path) -> None:
        flow = ts.Dataflow("endurance")
        self.edges = flow.input("edges", "src long, dst long, diff long")
        self.words = flow.input("words", "word long")
        components = ts.graphs.connected_components(self.edges.collection(diff="diff"))
        #: the nodes that are in some component, kept from the changes
        self.nodes = 0
        self.counted = 0
        components.changes().subscribe(self._components, name="components")
        self.words.group_by("word").aggregate(count="count").subscribe(self._counts, name="counts")
        self.window = Window()
        self.query = flow.start(session, checkpoint=str(checkpoint), workers=2, partitions=2)

    def _components(self, _epoch: int, table: pa.Table) -> None:
        self.nodes += int(np.sum(table.column("diff").to_numpy()))

    def _counts(self, _epoch: int, table: pa.Table) -> None:
        self.counted += table.num_rows

    def epoch(self) -> float:
        """Sends an epoch and waits for its answer; the seconds that took."""
        began = time.perf_counter()
        self.edges.send(self.window.changes())
        self.words.send(self.window.words())
        harness.answered(self.query)
        return time.perf_counter() - began


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    epochs, warm = (60, 20) if quick else (EPOCHS, WARM)
    session = harness.spark("endurance", confs=SETTINGS)
    checkpoint = harness.folder() / "checkpoint"
    running = Run(session, checkpoint)
    seconds: list[float] = []
    heap: list[tuple[float, float]] = []
    processors: list[tuple[float, float]] = []
    counts: dict[str, Callable[[], float]] = {
        "epochs": lambda: len(seconds),
        "files": lambda: files(checkpoint),
        "MB on disk": lambda: size(checkpoint) / 2**20,
    }
    with Resources(counts) as resources, contextlib.suppress(KeyboardInterrupt):
        for number in range(epochs):
            seconds.append(running.epoch())
            if number % (10 if quick else COLLECTED) == 0:
                heap.append((number, _heap(session)))
                processors.append((number, processor()))
            if number % 500 == 499:
                print(f"  {number + 1} epochs", flush=True)
    running.query.stop()
    report = Report("endurance", f"{len(seconds):,} epochs of one query: what grows", quick=quick)
    _report(report, resources, seconds, warm)
    _growth(report, "JVM's heap", [point for point in heap if point[0] >= warm], "MB")
    taken = [
        (later, 1000 * (end - begin) / (later - number))
        for (number, begin), (later, end) in itertools.pairwise(processors)
    ]
    _growth(report, "processor time", [point for point in taken if point[0] >= warm], "ms an epoch")
    report.plot("growth", lambda axes: _draw(axes, resources, seconds), size=(7, 8))
    report.write()
    session.stop()
    return report


def _report(report: Report, resources: Resources, seconds: list[float], warm: int) -> None:
    for name in (*MEMORY, *DISK):
        points = [(one["epochs"], one[name]) for one in resources.samples if one["epochs"] >= warm]
        _growth(report, name, points, "MB" if name != "files" else "files")
    points = [(float(number), 1000 * took) for number, took in enumerate(seconds) if number >= warm]
    _growth(report, "latency", points, "ms")
    early, late = seconds[warm : 2 * warm], seconds[-warm:]
    report.add(
        "latency of the last epochs",
        ours=1000 * quantile(late, 0.5),
        baseline=1000 * quantile(early, 0.5),
        against=f"epochs {warm:,} to {2 * warm:,}",
        note="medians",
    )


def _heap(session: SparkSession) -> float:
    """MB of the JVM's heap in use, just after a collection."""
    java = session._jvm.java.lang  # noqa: SLF001 - a benchmark may look inside
    java.System.gc()
    return java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed() / 2**20


def _growth(report: Report, name: str, points: list[tuple[float, float]], unit: str) -> None:
    level = sum(value for _, value in points) / max(1, len(points))
    growth = 1000 * slope(points)
    report.add(
        f"growth of {name}",
        ours=100 * growth / level if level else 0.0,
        unit="% per 1,000 epochs",
        aim="" if report.quick or name == "JVM" else "<=1",
        note=f"{growth:+.2f} {unit} per 1,000 epochs at {level:,.0f} {unit}",
    )


def _draw(axes: Any, resources: Resources, seconds: list[float]) -> None:
    figure = axes.figure
    figure.clear()
    memory, disk, latency = figure.subplots(3, 1, sharex=True)
    samples = resources.samples[:: max(1, len(resources.samples) // 300)]
    at = [one["epochs"] for one in samples]
    for name in MEMORY:
        memory.plot(at, [one[name] for one in samples], label=name)
    for name in DISK:
        disk.plot(at, [one[name] for one in samples], label=name)
    step = max(1, len(seconds) // 200)
    medians = [1000 * quantile(seconds[i : i + step], 0.5) for i in range(0, len(seconds), step)]
    latency.plot(range(0, len(seconds), step), medians, label="median latency, ms")
    memory.set_ylabel("resident MB")
    latency.set_xlabel("epochs")
    for one in (memory, disk, latency):
        one.set_ylim(bottom=0)
        one.legend(fontsize=8)
