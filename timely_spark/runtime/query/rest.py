"""Stopping between two micro-batches: in the middle of one, Spark interrupts tasks, which log errors.

`stop` writes a request file, which ends the rounds of the running micro-batch early (`cut_off`). The flow's
source sees the file at its next poll, which is after that micro-batch, writes an answer file, and delays its
reply to Spark until the query is stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from timely_spark.errors import StorageFailed
from timely_spark.runtime.query.live import running_batch
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.storage.log import stop_file

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds: `stop` waits so long for a micro-batch to end; the source pauses so long at most, and so long
#: after the stop; after so long, `stop` logs what it waits for.
PATIENCE, REST, AFTER, QUIET = 5.0, 30.0, 2.0, 0.5
_BEAT = 0.01
#: what Spark says if a query has not ended after the session's `stopTimeout`
_STOP_TIMEOUT = "failed to stop within"
Until: TypeAlias = Callable[[Callable[[], bool], Callable[[], bool], float], object]
_yielding = threading.Lock()
#: how many bodies of `yielding` run, by run
_bodies: Counter[str] = Counter()


def wait_for_rest(query: StreamingQuery, context: RunContext, until: Until, patience: float) -> None:
    """Wait until no micro-batch runs, for some seconds at most; only where files are local.

    `end_rest` takes the request back. A storage that refuses it, as a full disk does, keeps no query from
    being stopped.

    Args:
        query: the query in Spark.
        context: the run's.
        until: waits for a condition, while another one holds, for so many seconds at most.
        patience: the seconds, if they are less than `PATIENCE`.
    """
    files = context.log.files
    request, answer = _files(context)
    if not files.local or not query.isActive:
        return
    try:
        with suppress(StorageFailed):
            files.write(request, b"")
            until(partial(files.exists, answer), partial(_may_run, query), min(patience, PATIENCE))
    except BaseException:
        end_rest(context)  # the query runs on
        raise


def end(query: StreamingQuery, context: RunContext, *, waits: bool) -> None:
    """Stop the query, and take the request back.

    Args:
        query: the query in Spark.
        context: the run's.
        waits: whether to wait until it has ended, also if the session has a `stopTimeout` for Spark's wait.
    """
    try:
        query.stop()
    except Exception as error:
        if not waits or _STOP_TIMEOUT not in str(error):
            raise
        with suppress(Exception):  # the query's own, which the caller keeps
            query.awaitTermination()
    finally:
        end_rest(context)


def end_rest(context: RunContext) -> None:
    """Take the request back, once the query has been stopped."""
    files = context.log.files
    for name in _files(context) if files.local else ():
        with suppress(StorageFailed):
            files.remove(name)


@contextmanager
def yielding(context: RunContext) -> Iterator[None]:
    """While the body runs, no micro-batch stays resident, so that Spark learns that nothing is left."""
    files, name = context.log.files, _yield_file(context)
    if not context.resident:
        yield
        return
    try:
        with _yielding:
            _bodies[context.run] += 1
            files.write(name, b"")
        yield
    finally:
        with _yielding:
            _bodies[context.run] -= 1
            if not _bodies[context.run]:
                files.remove(name)


def yields(context: RunContext) -> bool:
    """Whether a resident micro-batch must end: a command waits, or somebody waits for Spark."""
    files = context.log.files
    return files.exists(_yield_file(context)) or files.exists(_files(context)[0])


def _yield_file(context: RunContext) -> str:
    return f"terms/yield-{context.term}"


def _may_run(query: StreamingQuery) -> bool:
    return bool(query.isActive and query.status["message"] != "Waiting for next trigger")


@contextmanager
def telling(context: RunContext) -> Iterator[None]:
    """While the body stops the query: if that takes longer than `QUIET`, log what it waits for."""

    def warn() -> None:
        with suppress(Exception):  # the checkpoint was removed
            text = f"stop() waits for a batch to end: {what_runs(context)}"
            context.log_message(logging.WARNING, "%s", text)

    timer = threading.Timer(QUIET, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def what_runs(context: RunContext) -> str:
    """What the running micro-batch does, with the step that works."""
    newest = context.log.newest()
    batch = None if newest is None else running_batch(context.log, newest)
    return str(batch or "no step works, so an output is written, or Spark reads")


def rest(context: RunContext) -> None:
    """The part of the flow's source: answer a request, and pause until the query is stopped."""
    files = context.log.files
    request, answer = _files(context)
    if not files.local or not files.exists(request):
        return
    with suppress(StorageFailed):  # `stop` does not wait for long
        files.write(answer, b"")
    until = time.monotonic() + REST
    while time.monotonic() < until:
        time.sleep(_BEAT)
        if not files.exists(request):  # the query is stopped: Spark ends this process soon
            until = min(until, time.monotonic() + AFTER)


def _files(context: RunContext) -> tuple[str, str]:
    return stop_file(context.term), f"terms/rest-{context.term}"
