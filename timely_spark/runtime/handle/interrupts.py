"""Waits for a query: an interrupt (Ctrl-C) ends the wait, and leaves the query running."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

from timely_spark.graph import seconds

#: Seconds after which a second interrupt ends a call of the JVM.
HANGS = 1.0

T = TypeVar("T")


def timeout_seconds(timeout: Any) -> float:
    """A timeout, checked; a negative one, such as the rest of a longer wait, is 0."""
    return seconds("timeout", max(timeout, 0) if isinstance(timeout, Real) else timeout)


@contextmanager
def only_the_wait() -> Iterator[Callable[..., None]]:
    """While the body waits for a query, an interrupt (Ctrl-C) ends the wait and leaves the query running.

    Gives the function with which the body calls what an interrupt may end, such as `time.sleep`. Only there,
    or at the end of the body, the main thread gets a `KeyboardInterrupt`. In the middle of a call of the JVM,
    Py4J would close the connections of other threads, too, and that call, the next one or the query would
    fail. If such a call hangs, an interrupt `HANGS` seconds after the first ends it.
    PySpark's own handler of SIGINT first cancels all jobs of the session, which fails every running query.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is None:  # a handler of C's could not be put back
        yield lambda call, *args: call(*args)
        return
    free = False
    noted: list[float] = []

    def interrupt(*_: object) -> None:
        noted.append(time.monotonic())
        if free or noted[-1] - noted[0] > HANGS:
            raise KeyboardInterrupt

    def interruptible(call: Callable[..., object], *args: object) -> None:
        nonlocal free
        free = True
        if noted:
            raise KeyboardInterrupt
        call(*args)
        free = False

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interruptible
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def wait_in_a_thread(blocks: Callable[[], T], timeout: float = math.inf) -> T:
    """Call what blocks for long, in a thread; an interrupt ends the wait, and the call goes on.

    Raises:
        TimeoutError: the call has not ended after the timeout; it goes on.
    """
    done: Future[T] = Future()

    def call() -> None:
        try:
            done.set_result(blocks())
        except BaseException as error:  # noqa: BLE001 - raised below
            done.set_exception(error)

    until = time.monotonic() + timeout
    with only_the_wait() as interruptible:
        threading.Thread(target=call, name="timely-wait", daemon=True).start()
        while not done.done() and (left := until - time.monotonic()) > 0:
            interruptible(wait, [done], min(left, 1.0))  # Windows interrupts no wait, only what comes after
    if not done.done():
        raise TimeoutError
    return done.result()
