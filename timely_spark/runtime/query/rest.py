"""Stopping between two micro-batches: in the middle of one, Spark interrupts tasks, which log errors.

`stop` writes a request file. The feedback source sees the file at its next poll, which is after the running
micro-batch, writes an answer file, and delays its reply to Spark until the query is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timely_spark.runtime.query.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds that `stop` waits for a micro-batch to end; that the source pauses at most; and after the stop.
PATIENCE, REST, AFTER = 5.0, 30.0, 2.0
_BEAT = 0.01


@contextmanager
def at_rest(query: StreamingQuery, context: RunContext) -> Iterator[None]:
    """Wait until no micro-batch runs, for `PATIENCE` at most; only where files are local."""
    files = context.log.files
    request, answer = _files(context)
    if not files.local or not query.isActive:
        yield
        return
    files.write(request, b"")
    try:
        until = time.monotonic() + PATIENCE
        while not files.exists(answer) and _may_run(query) and time.monotonic() < until:
            time.sleep(_BEAT)
        yield
    finally:
        files.remove(request)
        files.remove(answer)


def _may_run(query: StreamingQuery) -> bool:
    return bool(query.isActive and query.status["message"] != "Waiting for next trigger")


def rest(context: RunContext) -> None:
    """The feedback source's part: answer a request, and pause until the query is stopped."""
    files = context.log.files
    request, answer = _files(context)
    if not files.local or not files.exists(request):
        return
    files.write(answer, b"")
    until = time.monotonic() + REST
    while time.monotonic() < until:
        time.sleep(_BEAT)
        if not files.exists(request):  # the query is stopped: Spark ends this process soon
            until = min(until, time.monotonic() + AFTER)


def _files(context: RunContext) -> tuple[str, str]:
    return f"terms/stop-{context.term}", f"terms/rest-{context.term}"
