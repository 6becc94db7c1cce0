"""Keyed state and the exchange: running counts, against Spark's own and against a Python function per key.

Each epoch is a set of parquet files, one per core, and one micro-batch for whoever reads them; keys are drawn
evenly. The first epoch holds every key once, so that all state is there before anything is measured. All
sides run in one session with the same confs, read the same files, and take turns, a few epochs each, of which
the first is not counted: it finds a side that has idled. An epoch costs what Spark reports as the whole
trigger, from the listing of files to the commit. What is delivered is checked against numpy.

- ours: `source -> group_by("key").count()`, its changed keys with their new counts given to `subscribe`: an
  Arrow table in the driver's Python process. Spark reads the files, as for the others.
- by columns: the same, from `flow.files`, which reads the files as columns.
- native: `groupBy("key").count()` in update mode, its changed keys written to the noop sink in foreachBatch.
  They leave neither the executors nor the JVM: no other way to take them costs less.
- native to Arrow: the same, but foreachBatch takes them by `toArrow()`, which is where ours delivers them.
- per key: `groupBy("key").applyInPandasWithState(...)`, to the noop sink: how keyed state of one's own is
  written in Python, a function call per key.

More than 1x: ours is faster. Ours has as many workers as there are cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median, quantile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

CORES = 2
#: Epochs in a turn.
TURN = 4
#: Seconds after which a side is given up.
PATIENCE = 600


@dataclass
class Side:
    """One query of the comparison: it reads `folder`, and says what it has delivered."""

    name: str
    folder: Path
    stop: Callable[[], object] = print
    progress: Callable[[], list[Any]] = list
    #: What was delivered last, of the sides that deliver to the driver.
    last: pa.Table | None = None

    def answer(self, turn: int, files: Sequence[Path]) -> list[float]:
        """Make the files of some epochs visible at once, and wait for all answers: milliseconds of each."""
        hidden = self.folder / f"_{turn}"
        hidden.mkdir()
        for file in files:
            os.link(file, hidden / file.name)
        before, due = len(self._durations()), len(files) // CORES
        hidden.rename(self.folder / f"turn-{turn}")
        began = time.monotonic()
        while len(new := self._durations()[before:]) < due:
            if time.monotonic() - began > PATIENCE:
                msg = f"{self.name}: no answer in turn {turn}"
                raise TimeoutError(msg)
            time.sleep(0.1)
        return new

    def _durations(self) -> list[float]:
        return [p.durationMs["triggerExecution"] for p in self.progress() if p.numInputRows > 0]


def ours(spark: SparkSession, side: Side) -> None:
    """The flow."""
    flow = ts.Dataflow("counts")
    _count(spark, side, flow, flow.source("keys", _read(spark, side)))


def by_columns(spark: SparkSession, side: Side) -> None:
    """The flow, whose own source reads the files."""
    flow = ts.Dataflow("counts by columns")
    _count(spark, side, flow, flow.files("keys", side.folder, schema="key long", files_per_epoch=CORES))


def _count(spark: SparkSession, side: Side, flow: ts.Dataflow, keys: ts.Stream) -> None:
    def take(_: int, table: pa.Table) -> None:
        side.last = table

    keys.group_by("key").count().subscribe(take)
    query = flow.start(spark, checkpoint=str(harness.folder()))
    side.stop, side.progress = query.stop, lambda: query._query.recentProgress  # noqa: SLF001


def native(spark: SparkSession, side: Side) -> None:
    """Spark's own aggregation."""
    _start(side, _read(spark, side).groupBy("key").count(), _noop)


def to_arrow(spark: SparkSession, side: Side) -> None:
    """Spark's own aggregation, its rows brought to the driver's Python process."""

    def deliver(frame: DataFrame) -> None:
        side.last = frame.toArrow()

    _start(side, _read(spark, side).groupBy("key").count(), deliver)


def per_key(spark: SparkSession, side: Side) -> None:
    """A Python function per key."""
    grouped = _read(spark, side).groupBy("key")
    ddl = "key long, count long"
    _start(side, grouped.applyInPandasWithState(count, ddl, "n long", "update", "NoTimeout"), _noop)


def count(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """What one writes for applyInPandasWithState."""
    n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((n,))
    yield pd.DataFrame({"key": [key[0]], "count": [n]})


def _read(spark: SparkSession, side: Side) -> DataFrame:
    reader = spark.readStream.schema("key long").option("maxFilesPerTrigger", CORES)
    return reader.parquet(f"{side.folder}/turn-*")


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _start(side: Side, frame: DataFrame, deliver: Callable[[DataFrame], None]) -> None:
    writer = frame.writeStream.outputMode("update").foreachBatch(lambda batch, _: deliver(batch))
    query = writer.option("checkpointLocation", str(harness.folder())).start()
    side.stop, side.progress = query.stop, lambda: query.recentProgress


def measure(
    spark: SparkSession, starts: dict[str, Callable[[SparkSession, Side], None]], epochs: list[pa.Array]
) -> dict[str, list[float]]:
    """Milliseconds per epoch of each side. The first epoch is a turn of its own; the next turn warms."""
    staging = harness.folder()
    files = [_write(staging, number, keys) for number, keys in enumerate(epochs)]
    turns = [files[0], *(list(chain(*files[i : i + TURN])) for i in range(1, len(files), TURN))]
    sides = {name: Side(name, harness.folder()) for name in starts}
    took: dict[str, list[float]] = {name: [] for name in starts}
    try:
        for name, side in sides.items():
            starts[name](spark, side)
        for number, turn in enumerate(turns):
            for name, side in sides.items():
                answers = side.answer(number, turn)
                took[name] += answers[1:] if number > 1 else []
    finally:
        for side in sides.values():
            side.stop()
    for side in sides.values():
        if side.last is not None:
            _check(side, epochs)
    return took


def _write(folder: Path, number: int, keys: pa.Array) -> list[Path]:
    files = [folder / f"{number}-{part}.parquet" for part in range(CORES)]
    size = -(-len(keys) // CORES)
    for part, file in enumerate(files):
        pq.write_table(pa.table({"key": keys.slice(part * size, size)}), file)
        os.utime(file, (number, number))  # read in this order
    return files


def _check(side: Side, epochs: list[pa.Array]) -> None:
    """The last delivery: the keys of the last epoch with their counts over all epochs."""
    total = np.bincount(np.concatenate(epochs))
    changed = np.unique(epochs[-1].to_numpy())
    assert side.last is not None
    got = side.last.sort_by("key")
    if not (
        np.array_equal(got["key"].to_numpy(), changed)
        and np.array_equal(got["count"].to_numpy(), total[changed])
    ):
        msg = f"{side.name}: wrong counts"
        raise AssertionError(msg)


def draw(keys: int, rows: int, epochs: int) -> list[pa.Array]:
    """Every key once, then `rows` keys at random per epoch."""
    random = np.random.default_rng(keys)
    return [pa.array(np.arange(keys)), *(pa.array(random.integers(0, keys, rows)) for _ in range(epochs - 1))]


def run(quick: bool) -> Report:
    """Counts at 10 thousand, 1 million and 10 million keys; quick: less of everything."""
    report = Report("exchange", "Running counts: keyed state and the exchange", quick=quick)
    # an idle query looks for new files rarely, so that it takes nothing from the one whose turn it is
    confs = {"spark.sql.streaming.pollingDelay": "100ms", "spark.driver.memory": "8g"}
    spark = harness.spark("exchange", cores=CORES, confs=confs)
    rows = 200_000 if quick else 1_000_000
    all_sides = {
        "ours": ours, "by columns": by_columns,
        "native": native, "native to Arrow": to_arrow, "per key": per_key,
    }  # fmt: skip
    cases = [
        ("10 thousand keys", 10_000, ["native", "per key"], ">=1x"),
        ("1 million keys", 1_000_000, ["native", "native to Arrow"], ">=4x"),
        ("10 million keys", 10_000_000, ["native"], ">=4x"),
    ]
    if quick:
        cases = [("200 thousand keys", 200_000, ["native"], "")]
    for case, keys, names, aim in cases:
        epochs = 1 + TURN * (2 if quick else 3 if keys > 1_000_000 else 5)
        sides = {name: all_sides[name] for name in ("ours", "by columns", *names)}
        took = measure(spark, sides, draw(keys, rows, epochs))
        for (ours_, how), name in product(((took["ours"], ""), (took["by columns"], ", by columns")), names):
            its = took[name]
            report.add(
                f"{case}, {rows:,} rows an epoch{how}",
                ours=median(ours_),
                baseline=median(its),
                against=name,
                aim=aim if name == "native" else "",
                ours_min=min(ours_),
                baseline_min=min(its),
                ours_p95=quantile(ours_, 0.95),
            )
    report.note("Native's state store is the default one, in the JVM's heap, with a change log per epoch.")
    report.write()
    return report
