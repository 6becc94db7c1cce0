"""A running query is watched, interrupted and looked at; it runs on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.runtime.errors import CheckpointInUse, NameTaken
from timely_spark.runtime.query import live

Flow = Callable[..., ts.Dataflow]


def test_a_query_is_watched_and_an_interrupt_leaves_it_running(
    spark: SparkSession, checkpoint: str, paths: Flow, capsys: Any, monkeypatch: Any
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(live, "EVERY", 0.0)  # in this process, which runs the further rounds
    write = live.Live._write

    def and_look(self: Any, *args: Any) -> None:
        write(self, *args)
        seen.append(query.current_progress)
        if len(seen) == 1:  # in the middle of a micro-batch
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live.Live, "_write", and_look)
    flow = paths()
    query = flow.start(spark, checkpoint=checkpoint, workers=2)
    flow.handle("edges").send([(i, i + 1) for i in range(40)])
    flow.handle("roots").send([0])
    query.watch(every=0.05)
    assert "the query runs on" in capsys.readouterr().err
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        query.await_termination()
    timer.join()
    assert query.wait_for(timeout=60)
    flow.handle("edges").send([(40, 41)])
    assert query.wait_for(timeout=60)

    assert any(progress is not None and progress.loops[0].loop == "hops" for progress in seen)
    assert "running, batch 1" in repr(query)
    ET.fromstring(query._repr_html_())
    first = query.recent_progress[0]
    assert sum(each.records for each in first.iterations) == 41
    frame = query.captured("out").to_spark(spark)
    assert sorted(row.node for row in frame.collect()) == list(range(42))
    query.stop()
    assert "ended, batch 1" in repr(query)
    ET.fromstring(query._repr_html_())


def test_a_notebook_cell_that_runs_twice_is_harmless(spark: SparkSession, checkpoint: str) -> None:
    def cell(*, replace: bool = False, **options: Any) -> tuple[ts.Query, Any]:
        flow = ts.Dataflow("cell")
        numbers = flow.input("numbers", "n long")
        numbers.distinct().capture("seen")
        query = flow.start(spark, checkpoint=checkpoint, workers=1, replace=replace, **options)
        return query, numbers

    query, numbers = cell()
    numbers.send([1])
    with pytest.raises(NameTaken, match=r"(?s)Hint: .*replace=True"):
        cell()
    with pytest.raises(CheckpointInUse):
        cell(name="another")
    numbers.send([2])
    assert query.wait_for(timeout=60)
    again, numbers = cell(replace=True)
    assert (query.is_active, again.is_active) == (False, True)
    numbers.send([2, 3])
    assert again.wait_for(timeout=60)
    assert sorted(again.captured("seen").table()["n"].to_pylist()) == [1, 2, 3]
    again.stop()
