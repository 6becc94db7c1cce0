"""Waiting for a query: what ends a wait, and what an interrupt leaves alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.runtime.handle import interrupts
from timely_spark.runtime.handle.interrupts import only_the_wait, wait_in_a_thread
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.query.rest import wait_for_rest
from timely_spark.runtime.storage.log import RoundLog


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
def test_an_interrupt_lets_calls_of_the_jvm_return(cancels: list[int], tmp_path: Path, *, met: bool) -> None:
    view = LogView(SimpleNamespace(log=RoundLog(str(tmp_path))))  # type: ignore[arg-type]
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
        view.until(reached, alive, None)
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
    monkeypatch.setattr(interrupts, "HANGS", -1)  # at once, after the first

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


def test_a_handler_that_python_did_not_install_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    with only_the_wait() as interruptible:
        interruptible(handlers.append, "called")
    assert handlers == ["called"]


@pytest.mark.slow
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


def test_an_interrupt_of_stop_cancels_no_jobs_and_takes_the_request_back(
    cancels: list[int], tmp_path: Path
) -> None:
    log, asked = RoundLog(str(tmp_path)), list[str]()

    class Running:
        isActive = True  # noqa: N815 - Spark's name

        @property
        def status(self) -> dict[str, str]:
            asked.extend(log.files.names("terms"))
            interrupt()
            return {"message": "Processing new data"}

    context: Any = SimpleNamespace(log=log, term=3)
    running: Any = Running()
    with pytest.raises(KeyboardInterrupt):
        wait_for_rest(running, context, LogView(context).until, 60)
    assert (len(asked), log.files.names("terms"), cancels) == (1, [], [])
