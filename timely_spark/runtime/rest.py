"""Stopping between two micro-batches: in the middle of one, Spark interrupts tasks, and they tell so.

`stop` asks the feedback source, by a file, to begin nothing new. At the next poll, so when the micro-batch
that ran has ended, the source says that it rests, and answers when it is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timely_spark.runtime.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds that `stop` waits for the end of a micro-batch; that the source rests at most; and once stopped.
PATIENCE, REST, AFTER = 5.0, 30.0, 2.0
_BEAT = 0.01


@contextmanager
def at_rest(query: StreamingQuery, site: RunContext) -> Iterator[None]:
    """A time when no micro-batch runs, if one comes soon; where files are local, since it is mere manners."""
    files = site.log.files
    asked, given = _files(site)
    if not files.local or not query.isActive:
        yield
        return
    files.write(asked, b"")
    try:
        until = time.monotonic() + PATIENCE
        while not files.exists(given) and _may_run(query) and time.monotonic() < until:
            time.sleep(_BEAT)
        yield
    finally:
        files.remove(asked)
        files.remove(given)


def _may_run(query: StreamingQuery) -> bool:
    return bool(query.isActive and query.status["message"] != "Waiting for next trigger")


def rest(site: RunContext) -> None:
    """The source's part."""
    files = site.log.files
    asked, given = _files(site)
    if not files.local or not files.exists(asked):
        return
    files.write(given, b"")
    until = time.monotonic() + REST
    while time.monotonic() < until:
        time.sleep(_BEAT)
        if not files.exists(asked):  # this process ends any moment, and nobody reads its answer
            until = min(until, time.monotonic() + AFTER)


def _files(site: RunContext) -> tuple[str, str]:
    return f"terms/stop-{site.term}", f"terms/rest-{site.term}"
