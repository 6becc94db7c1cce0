"""Epochs on Spark: what is released of those that pass, and how a source with an epoch column ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import TimelyError
from timely_spark.runtime.errors import EpochClosed
from timely_spark.runtime.storage.log import RoundLog

COLUMNS = "epoch long, n long"


def put(folder: Path, name: str, rows: list[tuple[int, int]]) -> None:
    """A file of a source; those of later names are read later."""
    folder.mkdir(exist_ok=True)
    table = pa.table({"epoch": [at for at, _ in rows], "n": [n for _, n in rows]})
    pq.write_table(table, folder / f"{name}.parquet")
    number = 1 + int(name)
    os.utime(folder / f"{name}.parquet", (number, number))


def flow_of(spark: SparkSession, *folders: Path, **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("ends")
    sources = []
    for folder in folders:
        frame = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))
        sources.append(flow.source(folder.name, frame, epoch="epoch", **options))
    both = sources[0].concat(*sources[1:])
    both.group_by("n").count().capture("out")
    sources[0].late.capture("late")
    return flow


def run(spark: SparkSession, checkpoint: str, *folders: Path, **options: Any) -> Any:
    flow = flow_of(spark, *folders, **options)
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    assert query.await_termination(240)
    assert query.exception() is None
    return query


def test_at_the_end_of_what_is_available_the_last_epoch_is_released_and_a_restart_goes_on(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    events, others = tmp_path / "events", tmp_path / "others"
    put(events, "0", [(1, 1), (2, 1)])
    put(events, "1", [(4, 1)])
    put(others, "0", [(3, 1)])
    query = run(spark, checkpoint, events, others)
    out = {1: [(1, 1)], 2: [(1, 2)], 3: [(1, 3)], 4: [(1, 4)]}
    assert query.captured("out").rows() == out
    batches = query.last_progress.epoch

    assert run(spark, checkpoint, events, others).last_progress.epoch == batches, "all is said: no batch runs"
    put(events, "2", [(4, 7), (5, 1)])  # epoch 4 was over, the source is not
    put(others, "1", [(6, 1)])
    query = run(spark, checkpoint, events, others)
    assert query.captured("out").rows() == {**out, 5: [(1, 5)], 6: [(1, 6)]}
    assert query.last_progress.late == {"events": 1}
    late = query.captured("late").rows()
    assert [row for rows in late.values() for row in rows] == [(4, 7)]


class Stopped(Exception):
    """The driver is gone."""


def test_the_end_is_the_same_when_its_batch_runs_again(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with the question in Spark's offset log and no answer; more has come when it starts again."""
    events = tmp_path / "events"
    put(events, "0", [(1, 1), (2, 1)])
    at_the_end = RoundLog.at_the_end

    def dies(log: RoundLog, batch: int) -> bool:
        if at_the_end(log, batch):
            raise Stopped
        return False

    monkeypatch.setattr(RoundLog, "at_the_end", dies)
    query = flow_of(spark, events).start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    with pytest.raises(TimelyError):
        query.await_termination(240)
    assert query.captured("out").rows() == {1: [(1, 1)]}
    monkeypatch.undo()

    put(events, "1", [(2, 5), (3, 1)])
    query = run(spark, checkpoint, events)
    assert query.captured("out").rows() == {1: [(1, 1)], 2: [(1, 2)], 3: [(1, 3)]}
    assert query.last_progress.late == {"events": 1}, "the batch that asked had come to the end"


def test_a_source_is_closed_from_outside_durably(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    put(events, "0", [(1, 1), (2, 1)])
    with flow_of(spark, events).start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for("out", epoch=1, timeout=240)
        assert not query.wait_for("out", epoch=2, timeout=1), "nobody knows yet that it is over"
        query.close("events")
        query.close("events")
        assert query.wait_for("out", timeout=240, epoch=2)
        assert query.captured("out").rows() == {1: [(1, 1)], 2: [(1, 2)]}
        with pytest.raises(TimelyError, match=r"(?s)event.*Hint"):
            query.close("event")
    put(events, "1", [(3, 1)])
    query = run(spark, checkpoint, events)
    assert query.captured("out").rows() == {1: [(1, 1)], 2: [(1, 2)]}
    assert query.last_progress.late == {"events": 1}
    assert [row for rows in query.captured("late").rows().values() for row in rows] == [(3, 1)]


def test_a_query_closes_its_inputs_with_manual_epochs_and_no_others(spark: SparkSession) -> None:
    flow = ts.Dataflow("manual")
    x = flow.input("x", "n long", epochs="manual")
    done: list[int] = []
    x.subscribe(lambda epoch, table: done.append(epoch))
    with flow.start(spark, workers=2) as query:
        x.send([1])
        x.advance_to(4)
        assert query.wait_for(epoch=2, timeout=240)
        query.close("x")
        assert x.handle.is_closed
        assert query.wait_for(epoch=4, timeout=240)
    assert done == [0, 1, 2, 3, 4]

    flow = ts.Dataflow("clock")
    flow.input("x", "n long").capture("out")
    with flow.start(spark, workers=2) as query, pytest.raises(EpochClosed, match="clock"):
        query.close("x")


def test_one_wrong_epoch_stalls_nothing_and_is_warned_of(
    spark: SparkSession, checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = tmp_path / "events"
    put(events, "0", [(1_000, 1), (2**62 - 1, 2), (-4, 3)])
    put(events, "1", [(1_500, 1)])
    with caplog.at_level(logging.WARNING, logger="timely_spark"):
        query = run(spark, checkpoint, events, max_jump=600)

    released = {at: rows for at, rows in query.captured("out").rows().items() if rows}
    assert released == {1_000: [(1, 1)], 1_500: [(1, 2)]}
    assert query.last_progress.late == {"events": 2}
    (warning,) = [record.getMessage() for record in caplog.records if "max_jump" in record.getMessage()]
    assert f"source 'events' ({__file__}:" in warning
    assert f"from {2**62 - 1} on, which is more than max_jump=600 above 1000" in warning
    assert "1 rows whose epoch is null, negative" in warning


def test_outputs_complete_in_different_rounds_of_one_micro_batch_are_all_delivered(
    spark: SparkSession, checkpoint: str
) -> None:
    flow = ts.Dataflow("rounds")
    x = flow.input("x", "n long")
    x.capture("early")
    down: Callable[[Any], Any] = lambda v: (  # noqa: E731 - a loop's body
        v.where(lambda row: row.n > 0).map(lambda row: row.n - 1, "n long").exchange("n")
    )
    x.loop(down, name="down").capture("late")
    x.send([9])
    query = flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")
    assert query.await_termination(240)

    assert query.captured("early").rows() == {0: [(9,)]}
    assert query.captured("late").rows() == {0: [(n,) for n in range(9)]}
    log = RoundLog(query.checkpoint)
    first = log.read(0)
    assert first is not None
    assert first.rounds > 3, "several rounds of one micro-batch"
    assert first.released == [("early", 0), ("late", 0)]
