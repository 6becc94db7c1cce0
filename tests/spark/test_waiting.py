"""What Spark's sources have when a program waits is in what it reads then; and times are those of Spark."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import timely_spark as ts
from timely_spark.errors import SchemaError


def arrive(folder: Path, number: int) -> None:
    whole = folder / f".{number}.json"
    whole.write_text(json.dumps({"n": number}) + "\n")
    whole.rename(folder / f"{number}.json")


def test_a_wait_waits_for_the_files_and_dataframes_that_are_there(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("ours", "sparks", "empty")]
    for folder in folders:
        folder.mkdir()
    for number in range(3):
        arrive(folders[0], number)
        arrive(folders[1], number)
    flow = ts.Dataflow("waits")
    reads = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
    two = reads.json(str(folders[1])).union(reads.json(str(folders[2])))  # two sources of one input
    theirs = flow.source("theirs", two)
    ours = flow.files("ours", folders[0], format="json", schema="n long", files_per_epoch=1)
    sent = flow.input("sent", "n long")
    ours.capture("of_ours")
    theirs.capture("of_theirs")
    sent.capture("of_sent")

    def read(output: str) -> list[object]:
        return sorted(query.captured(output).table()["n"].to_pylist())

    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for(timeout=120)
        assert read("of_ours") == [0, 1, 2]
        assert query.wait_for("of_theirs", timeout=120)
        assert 0 in read("of_theirs"), "a batch that began later"
        query.process_all_available()
        assert read("of_theirs") == [0, 1, 2]
        for number in (3, 4):
            arrive(folders[0], number)
            sent.send([number])
            assert query.wait_for(["of_ours", "of_sent"][number % 2], timeout=120)
            assert read(["of_ours", "of_sent"][number % 2])[-1] == number
        arrive(folders[1], 3)
        assert query.wait_for("of_theirs", timeout=120), "Spark finds nothing more"
        assert 3 in read("of_theirs")
        account = query.audit()["ours"]
        assert (account.unit, account.listed, account.entered, account.rows) == ("file", 5, 5, 5)


def test_times_are_the_same_in_spark_whatever_its_zone(spark: SparkSession, checkpoint: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    wall = datetime(2026, 7, 1, 12, 30)  # noqa: DTZ001 - without a zone
    instant = wall.replace(tzinfo=timezone.utc)
    flow = ts.Dataflow("times")
    times = flow.input("sent", "at timestamp, there timestamp_ntz")
    times.to_memory("times")
    for records in (
        [(wall, wall)],
        pd.DataFrame({"at": [wall], "there": [wall]}),
        pa.table({"at": [wall], "there": [wall]}),
    ):
        with pytest.raises(SchemaError, match="no time zone, and a timestamp has one"):
            times.send(records)
    with flow.start(session, checkpoint=checkpoint, workers=2) as query:
        times.send([(instant, wall)])
        times.send(pd.DataFrame({"at": [instant], "there": [wall]}))
        times.send(pa.table({"at": [instant], "there": [wall]}))
        assert query.wait_for(timeout=120)
        for frame in (session.table("times"), query.captured("times").to_spark(session)):
            assert dict(frame.dtypes)["at"] == "timestamp"
            assert dict(frame.dtypes)["there"] == "timestamp_ntz"
            texts = frame.select(F.unix_timestamp("at"), F.col("there").cast("string")).collect()
            assert {tuple(row) for row in texts} == {(int(instant.timestamp()), "2026-07-01 12:30:00")}
