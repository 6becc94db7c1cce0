"""A running query is watched, interrupted and looked at; it runs on."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import timely_spark as ts
from timely_spark.runtime.errors import CheckpointInUse, NameTaken
from timely_spark.runtime.query import live

Flow = Callable[..., ts.Dataflow]


def test_a_query_is_watched_and_an_interrupt_leaves_it_running(
    spark: SparkSession, checkpoint: str, paths: Flow, capsys: Any, monkeypatch: Any
) -> None:
    seen: list[Any] = []
    sparks = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is sparks:  # until the program waits
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live, "EVERY", 0.0)  # in this process, which runs the further rounds
    write = live.Live._write

    def and_look(self: Any, *args: Any) -> None:
        write(self, *args)
        seen.append(query.current_progress)
        if len(seen) == 1:  # in the middle of a micro-batch
            interrupt()

    monkeypatch.setattr(live.Live, "_write", and_look)

    class Listener(StreamingQueryListener):
        """What a program gets that listens to all queries of a session."""

        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            told.put((event, ts.progress_of(event)))

        def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    told: queue.Queue[Any] = queue.Queue()
    spark.streams.addListener(listener := Listener())
    flow = paths()
    query = flow.start(spark, checkpoint=checkpoint, workers=2, resident=False)
    flow.handle("edges").send([(i, i + 1) for i in range(40)])
    flow.handle("roots").send([0])
    query.watch(every=0.05)
    assert "the query runs on" in capsys.readouterr().err
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        query.await_termination()
    interrupting.join()
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
    # Spark's events first: how long a batch took is known when its event has come
    events = [told.get(timeout=60) for _ in range(2)]
    event, own_of_last = max(events, key=lambda pair: pair[0].progress.batchId)
    own = query.recent_progress
    assert own_of_last == own[-1] == query.last_progress
    assert (own_of_last.epoch, own_of_last.duration_ms) == (1, event.progress.durationMs["triggerExecution"])
    assert sum(own_of_last.state_bytes.values()) > 0
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id)
    store = spark.sparkContext._jsc.sc().statusStore()  # what Spark's pages show
    assert f"paths: batch 1, rounds after the first {first.rounds}" in {
        store.job(job).description().get() for job in jobs
    }
    query.stop()
    spark.streams.removeListener(listener)
    assert "ended, batch 1" in repr(query)
    ET.fromstring(query._repr_html_())
    assert ts.progress_of(event) == own[-1], "the program has the handle"
    other: Any = SimpleNamespace(progress=SimpleNamespace(runId="of another query", batchId=0, durationMs={}))
    assert ts.progress_of(other) is None
    wrong: Any = 3
    with pytest.raises(ts.TimelyError, match=r"event=3.*\nHint: call it in onQueryProgress"):
        ts.progress_of(wrong)


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
