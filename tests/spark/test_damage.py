"""A restart on a damaged checkpoint, on Spark: wherever the damage is met, the query's error is its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.states import StateRefs


def flow() -> ts.Dataflow:
    made = ts.Dataflow("damaged")
    made.input("x", "n long").distinct(name="once").capture("out")
    return made


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_what_tasks_read_is_checked_by_tasks(spark: SparkSession, checkpoint: str) -> None:
    first = flow()
    first.handle("x").send(list(range(40_000)))
    with first.start(spark, checkpoint=checkpoint, workers=1) as query:
        assert query.wait_for(timeout=100)
    log = RoundLog(checkpoint)
    _, rows = log.manifest_and_rows(log.newest())
    (name, *_) = sorted(StateRefs.of(rows).by_worker[0].files)
    flip(Path(log.files.path(name)))

    second = flow()
    second.handle("x").send([1, 2, 3])
    with second.start(spark, checkpoint=checkpoint, workers=1) as query:
        with pytest.raises(LogDamaged, match=rf"(?s){name}.*checksum.*Hint"):
            query.wait_for(timeout=100)
        assert isinstance(query.exception(), LogDamaged)

    flip(Path(log.files.path(name)))  # restored
    with flow().start(spark, checkpoint=checkpoint, workers=1) as query:
        assert query.wait_for(timeout=100)
        assert query.captured("out").table().num_rows == 40_000

    flip(Path(log.files.path(f"rounds/{log.files.numbers('rounds')[-1]}/{log.newest()}.arrow")))
    with pytest.raises(LogDamaged, match=rf"(?s)rounds/.*/{log.newest()}.arrow is damaged.*Hint"):
        flow().start(spark, checkpoint=checkpoint, workers=1)
