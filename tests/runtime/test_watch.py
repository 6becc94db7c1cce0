"""Waiting for a query: what ends a wait, and what an interrupt leaves alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.runtime.handle import watch
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.handle.watch import LogView, only_the_wait, wait_in_a_thread


@pytest.fixture
def cancels() -> Iterator[list[int]]:
    """The calls of a handler like PySpark's, which cancels all jobs; it is there again at the end."""
    calls: list[int] = []

    def cancel(*_: object) -> None:
        calls.append(1)

    before = signal.signal(signal.SIGINT, cancel)
    yield calls
    assert signal.signal(signal.SIGINT, before) is cancel


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("met", [False, True])
def test_an_interrupt_lets_calls_of_the_jvm_return(cancels: list[int], *, met: bool) -> None:
    returned: list[str] = []

    def alive() -> bool:
        interrupt()
        returned.append("alive")
        return True

    def reached() -> bool:
        interrupt()
        returned.append("reached")
        return met

    with pytest.raises(KeyboardInterrupt):
        LogView.until(None, reached, alive, None)  # type: ignore[arg-type]
    assert (returned, cancels) == (["alive", "reached"], [])


def test_an_interrupt_ends_a_pause_at_once(cancels: list[int]) -> None:
    timer = threading.Timer(0.05, interrupt)

    def wait() -> None:
        with only_the_wait() as interruptible:
            timer.start()
            interruptible(time.sleep, 200)

    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()
    assert cancels == []


def test_a_second_interrupt_ends_a_call_that_hangs(
    cancels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "HANGS", -1)  # at once, after the first

    def wait() -> None:
        with only_the_wait():
            interrupt()
            pytest.fail("the call goes on")

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert cancels == []


def test_other_threads_wait_without_a_handler(cancels: list[int]) -> None:
    found: list[Any] = []

    def wait() -> None:
        with only_the_wait() as interruptible:
            interruptible(time.sleep, 0)
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [before]


def test_what_blocks_is_called_in_a_thread_and_outlives_an_interrupt(cancels: list[int]) -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> None:
        begun.set()
        assert goes_on.wait(60)
        ended.set()

    timer = threading.Thread(target=lambda: begun.wait(60) and interrupt())
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wait_in_a_thread(blocks)
    timer.join()
    goes_on.set()
    assert ended.wait(60)
    assert cancels == []

    reason = "failed"

    def fails() -> None:
        raise ts.TimelyError(reason)

    with pytest.raises(ts.TimelyError, match="failed"):
        wait_in_a_thread(fails)
    wait_in_a_thread(lambda: None)


def test_what_a_view_tells_stays_when_the_log_goes(begin: Begin) -> None:
    flow = ts.Dataflow("told")
    flow.input("x", "n long").capture("out")
    process = begin(flow)
    for n in range(3):
        process.handles["x"].send([n])
        process.batches()
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
        process.handles["x"].send([n])
        process.batches()
    found = query.epochs()
    first = [next(found) for _ in range(3)]
    assert running.looks == 2, "while the query runs"
    assert [(done.epoch, done.milliseconds) for done in first] == [(0, None), (1, None), (2, 7)]
    assert list(found) == []
