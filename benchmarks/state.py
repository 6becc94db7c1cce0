"""State costs what changes: epochs of a thousand changes against a large state and against a small one.

A running count per key, first over every key once, then a thousand keys at random per epoch, sent by a
handle. The baseline is the same flow with 100,000 keys, in the same session; both take turns. "written" is
what an epoch leaves under the checkpoint's `blobs/`, in per cent of the state, over all measured epochs:
geometric merging writes more in some of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median, quantile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL, CHANGES, PART = 100_000, 1_000, 1_000_000


class Counts:
    """A running flow of counts that holds every key."""

    def __init__(self, spark: SparkSession, keys: int) -> None:
        self.keys, self.random = keys, np.random.default_rng(keys)
        flow = ts.Dataflow(f"counts-{keys}")
        self.input = flow.input("keys", "key long")
        self.input.group_by("key").count().probe("seen")
        folder = harness.folder()
        self.blobs = Path(folder) / "timely" / "blobs"
        self.query = flow.start(spark, checkpoint=str(folder), workers=2)
        for start in range(0, keys, PART):
            self._send(np.arange(start, min(start + PART, keys)))
        self.size = sum(self._files().values())

    def epoch(self) -> tuple[float, int]:
        """One epoch of changes: milliseconds, and bytes written."""
        before = self._files()
        began = time.perf_counter()
        self._send(self.random.integers(0, self.keys, CHANGES))
        took = 1000 * (time.perf_counter() - began)
        return took, sum(size for name, size in self._files().items() if name not in before)

    def _send(self, keys: np.ndarray) -> None:
        self.input.send(pa.table({"key": keys}))
        harness.answered(self.query)

    def _files(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in self.blobs.glob("*")}


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("state", "State: a small change of a large state", quick=quick)
    spark = harness.spark("state")
    large, epochs = (1_000_000, 8) if quick else (10_000_000, 100)
    sides = [Counts(spark, keys) for keys in (large, SMALL)]
    for side in sides:
        for _ in range(5):
            side.epoch()
    figures: list[list[tuple[float, int]]] = [[], []]
    for _ in range(epochs):
        for side, measured in zip(sides, figures, strict=True):
            measured.append(side.epoch())
    ours, baseline = ([took for took, _ in measured] for measured in figures)
    state = 24 * large  # key, count and hash of each
    written = sum(size for _, size in figures[0]) / epochs
    report.add(
        f"{CHANGES:,} changes of {large:,} keys",
        ours=median(ours),
        baseline=median(baseline),
        against=f"of {SMALL:,} keys",
        aim=">=0.83x",
        p95=quantile(ours, 0.95),
        baseline_p95=quantile(baseline, 0.95),
    )
    report.add("written per epoch", ours=100 * written / state, unit="% of the state", aim="<=1")
    report.note(f"The state is {state / 1e6:,.0f} MB, {written / 1e6:.2f} MB of it written per epoch.")
    for side in sides:
        side.query.stop()
    report.write()
    return report
