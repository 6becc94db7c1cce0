"""A loop that never ends, on Spark: it is told of, and ended, while other epochs go on."""

from __future__ import annotations

import logging
import time

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import InvalidTime, LimitReached, VertexError
from timely_spark.runtime.handle.status import Status


def growing(**options: object) -> ts.Dataflow:
    flow = ts.Dataflow("growing")
    x = flow.input("x", "n long")
    up = {"n": pc.add(pc.field("n"), 1)}
    bad = x.where(pc.field("n") >= 0)
    bad.loop(lambda n: n.exchange("n").select(**up), name="up", **options).capture("out")
    x.capture("all")
    return flow


def test_an_endless_loop_is_reported_and_ended(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = growing()
    with (
        caplog.at_level(logging.WARNING, "timely_spark"),
        flow.start(spark, checkpoint=checkpoint, workers=2, warn_after=40) as query,
    ):
        flow.handle("x").send([0])
        while "has reached iteration 40 in epoch 0" not in caplog.text:
            assert query.step(120)
        flow.handle("x").send([-1])
        assert query.step(120)
        assert query.captured("out").rows() == {}
        with pytest.raises(InvalidTime):
            query.cancel(-1)
        query.cancel(0)
        assert query.wait_for(timeout=120)
        progress = query.last_progress
        assert progress is not None
        assert progress.cut_off == {"up": 1}
        length = len(query.captured("out").rows()[0])
        assert query.captured("out").rows()[0] == [(n,) for n in range(1, length + 1)]
    assert "loop 'up' (" in caplog.text
    assert f"ended by cancel after {length} iterations of epoch 0" in caplog.text

    flow = growing()  # the bound stays
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        flow.handle("x").send([1000])
        assert query.wait_for(timeout=120)
        assert [len(rows) for rows in query.captured("out").rows().values() if rows] == [length, length]


def test_a_limit_that_must_not_be_reached_fails_the_query(spark: SparkSession, checkpoint: str) -> None:
    flow = growing(max_iterations=5, on_limit="raise")
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        flow.handle("x").send([0])
        with pytest.raises(LimitReached, match=r"loop 'up' .* after 5 iterations of epoch 0"):
            query.wait_for(timeout=120)


def test_commands_answer_inside_a_round_that_never_ends(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("endless")
    up = {"n": pc.add(pc.field("n"), 1)}
    flow.input("x", "n long").where("n >= 0").loop(lambda n: n.select(**up), name="up").capture("out")
    with flow.start(spark, checkpoint=checkpoint, workers=2, warn_after=None) as query:
        flow.handle("x").send([-1])
        assert query.wait_for(timeout=60)
        flow.handle("x").send([0])  # in the middle of a micro-batch that stays
        while (running := query.current_progress) is None or not running.loops:
            time.sleep(0.05)
        assert "loop 'up' at iteration" in str(query.why())
        assert "now batch 1" in repr(query)
        assert Status.of(checkpoint).state == "running"
        query.cancel(1)
        assert query.wait_for(1, timeout=60)
        assert query.last_progress is not None
        assert query.last_progress.cut_off == {"up": 1}
        assert Status.of(checkpoint).after.manifest.micro_batch == 0

    assert Status.of(checkpoint).state == "stopped"
    assert query.exception() is None


def test_a_stop_inside_a_round_loses_no_work_and_a_failure_is_told(
    spark: SparkSession, checkpoint: str
) -> None:
    def build() -> ts.Dataflow:
        flow = ts.Dataflow("bad")
        up = {"n": pc.add(pc.field("n"), 1)}
        x = flow.input("x", "n long")
        x.map(lambda row: 1 // (row.n + 1), "n long", name="divided").capture("quotients")
        x.where("n >= 0").loop(lambda n: n.select(**up), name="up").capture("out")
        return flow

    flow = build()
    query = flow.start(spark, checkpoint=checkpoint, workers=2, warn_after=None)
    flow.handle("x").send([-2])
    assert query.wait_for(timeout=60)
    flow.handle("x").send([0])  # in the middle of a micro-batch that stays
    while (running := query.current_progress) is None or not running.loops:
        time.sleep(0.05)
    query.stop()
    assert query.exception() is None
    after = Status.of(checkpoint).after.manifest
    assert (after.open_epochs, after.micro_batch) == ([1], 0), "the batch is committed with its work"

    flow = build()
    with flow.start(spark, checkpoint=checkpoint, workers=2, warn_after=None) as query:
        query.cancel(1)
        assert query.wait_for(1, timeout=120)
        flow.handle("x").send([-1])
        with pytest.raises(VertexError, match="divided"):
            query.wait_for(timeout=120)
        query.why()
        query.cancel(2)
    status = Status.of(checkpoint)
    assert status.state == "failed"
    assert "ZeroDivisionError" in str(status)
    assert "test_loops.py" in str(status)
