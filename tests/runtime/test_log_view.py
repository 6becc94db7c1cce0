"""What is read from the log for somebody who watches a query."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.runtime.handle import log_view
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.handle.query import Query


def test_what_a_view_tells_stays_when_the_log_goes(begin: Begin) -> None:
    flow = ts.Dataflow("told")
    flow.input("x", "n long").capture("out")
    process = begin(flow)
    for n in range(3):
        process.feed("x", [n])
    view = LogView(process.context)

    def told() -> tuple[object, ...]:
        epochs = [view.completed(batch, {}) for batch in range(3)]
        return view.newest(), epochs, view.history().epochs(), view.accounts(), view.captured("out").rows()

    before = told()
    assert [done.rounds for (done,) in before[1]] == [1, 1, 1]  # type: ignore[attr-defined]
    view.close()
    for name in process.context.log.files.names("rounds/0"):
        process.context.log.files.remove(name)
    assert told() == before


def test_who_waits_in_the_process_that_writes_the_log_is_woken_by_a_manifest(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "BEAT", 20.0)
    flow = ts.Dataflow("told")
    flow.input("x", "n long").capture("out")
    process = begin(flow)
    process.feed("x", [1])
    view, looks = LogView(process.context), list[int]()

    def reached() -> bool:
        looks.append(view.newest().batch)
        if len(looks) == 1:
            process.handles["x"].send([2])
            threading.Timer(0.01, process.batches).start()
        return looks[-1] == 1

    started = time.monotonic()
    assert view.until(reached, lambda: True, None)
    assert looks == [0, 1]
    assert time.monotonic() - started < 10


def test_epochs_go_on_if_spark_has_forgotten_the_durations_of_old_batches(begin: Begin) -> None:
    flow = ts.Dataflow("told")
    x = flow.input("x", "n long")
    x.capture("out")
    process = begin(flow)

    class Running:
        """Two batches ran before the program looked, and Spark has kept the last."""

        looks = 3
        recentProgress = ({"batchId": 2, "durationMs": {"triggerExecution": 7}},)  # noqa: N815

        @property
        def isActive(self) -> bool:  # noqa: N802
            self.looks -= 1
            return self.looks > 0

    query = Query(SimpleNamespace(), process.context)  # type: ignore[arg-type]
    query._query = running = Running()  # type: ignore[assignment]
    for n in range(3):
        process.feed("x", [n])
    found = query.epochs()
    first = [next(found) for _ in range(3)]
    assert running.looks == 2, "while the query runs"
    assert [(done.epoch, done.milliseconds) for done in first] == [(0, None), (1, None), (2, 7)]
    assert list(found) == []
