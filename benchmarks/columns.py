"""Files as columns: `flow.files` against Spark's reader and `mapInArrow`, `flow.source(readStream.parquet)`.

Each epoch is a set of parquet files, one per core, and one micro-batch. Both flows run in one session, read
the same files and take turns, a few epochs each. An epoch costs what Spark reports as the whole trigger, from
the listing of files to the commit. What is delivered is checked against numpy.

- counts: 10 thousand keys, counted. Almost all of an epoch is reading and packing.
- a column of five: the same, from files with four more columns that the flow does not need.

More than 1x: `flow.files` is faster.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.exchange import CORES, TURN, Side, draw
from benchmarks.harness import Report, median

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 10_000
WIDE = "key long, a double, b double, c double, d string"


def start(spark: SparkSession, side: Side, *, columns: str) -> None:
    """A running count per key, from files by `side.name`."""

    def take(_: int, table: pa.Table) -> None:
        side.last = table

    flow = ts.Dataflow(f"counts from {side.name}")
    if side.name == "files":
        keys = flow.files("keys", side.folder, schema=columns, files_per_epoch=CORES)
    else:
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", CORES)
        keys = flow.source("keys", reader.parquet(f"{side.folder}/turn-*"))
    keys.select("key").group_by("key").count().subscribe(take)
    query = flow.start(spark, checkpoint=str(harness.folder()))
    side.stop, side.progress = query.stop, lambda: query._query.recentProgress  # noqa: SLF001


def write(folder: Path, number: int, keys: pa.Array, *, wide: bool) -> list[Path]:
    """The files of an epoch, read in the order of their numbers."""
    files = [folder / f"{number}-{part}.parquet" for part in range(CORES)]
    size = -(-len(keys) // CORES)
    for part, file in enumerate(files):
        columns = {"key": keys.slice(part * size, size)}
        if wide:
            random = np.random.default_rng(number).random(len(columns["key"]))
            columns |= {"a": random, "b": random, "c": random, "d": columns["key"].cast(pa.string())}
        pq.write_table(pa.table(columns), file)
        os.utime(file, (number, number))
    return files


def measure(spark: SparkSession, epochs: list[pa.Array], *, wide: bool) -> dict[str, list[float]]:
    """Milliseconds per epoch of each side, without those of the first two turns, which warm."""
    staging = harness.folder()
    files = [write(staging, number, keys, wide=wide) for number, keys in enumerate(epochs)]
    turns = [files[0], *(list(chain(*files[i : i + TURN])) for i in range(1, len(files), TURN))]
    sides = [Side(name, harness.folder()) for name in ("files", "DataFrame")]
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    try:
        for side in sides:
            start(spark, side, columns=WIDE if wide else "key long")
        for number, turn in enumerate(turns):
            for side in sides:
                answers = side.answer(number, turn)
                took[side.name] += answers[1:] if number > 1 else []
    finally:
        for side in sides:
            side.stop()
    total, changed = np.bincount(np.concatenate(epochs)), np.unique(epochs[-1])
    for side in sides:
        assert side.last is not None
        got = side.last.sort_by("key")
        assert np.array_equal(got["key"], changed), side.name
        assert np.array_equal(got["count"], total[changed]), side.name
    return took


def run(quick: bool) -> Report:
    """Epochs of 1 million and 5 million rows; quick: of 200 thousand."""
    report = Report("columns", "Files as columns, against Spark's reader", quick=quick)
    confs = {"spark.sql.streaming.pollingDelay": "100ms", "spark.driver.memory": "8g"}
    spark = harness.spark("columns", cores=CORES, confs=confs)
    cases = [(200_000, False)] if quick else [(1_000_000, False), (5_000_000, False), (1_000_000, True)]
    for rows, wide in cases:
        took = measure(spark, draw(KEYS, rows, 1 + TURN * (2 if quick else 4)), wide=wide)
        ours, its = took["files"], took["DataFrame"]
        report.add(
            f"{rows:,} rows an epoch, {'a column of five' if wide else 'counts'}",
            ours=median(ours),
            baseline=median(its),
            against="flow.source(readStream.parquet)",
            aim=">=2x",
            ours_min=min(ours),
            baseline_min=min(its),
        )
    report.write()
    return report
