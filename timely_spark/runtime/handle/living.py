"""The queries that this process runs: held until they end, and stopped before the process exits."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from timely_spark.runtime.session import has_stopped

if TYPE_CHECKING:
    from timely_spark.methods import Query

#: The package of a session whose queries a server runs.
CONNECT = "pyspark.sql.connect"

#: While the process ends: the milliseconds that Spark waits for a call of a step.
_AT_THE_END = "1000"

#: The queries that this process runs, by the ids of their runs.
_living: dict[str, Query] = {}
#: The queries that this process runs, and ended ones that the program still has.
_queries: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
#: Temporary checkpoints that views of `to_memory` still read.
read_by_views: set[str] = set()
#: Not empty once the process is exiting.
ending: list[bool] = []


def running() -> list[Query]:
    """The queries that this process runs."""
    return list(_living.values())


def stop_left_over() -> None:
    """Stop the queries whose session was stopped before them: they run no batches, and hold their inputs."""
    for query in running():
        if has_stopped(query.session):
            with contextlib.suppress(Exception):  # what stopping lacks is a session
                query.stop()


def query_of(run_id: str) -> Query | None:
    """A query that this process runs or has run; None if the id is of another query, or if nobody has it."""
    return _queries.get(run_id)


def keep_until_it_ends(query: Query, release: Callable[[], object]) -> None:
    """Keep the query and its lock until it ends, and call `release` then; at exit the process stops it."""
    run = query.run_id
    _living[run] = _queries[run] = query
    if query._lock is not None:  # noqa: SLF001 - for this module
        query._lock.release_after(query._query, partial(_ended, query, release))  # noqa: SLF001
    # the first finalizer of a process registers the end of all, which must not be registered after ours
    weakref.finalize(query, bool)
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)  # registered last, so it runs first, before what it needs ends


def let_go(query: Query) -> bool:
    """Forget a query that has ended; returns whether it was among the running ones."""
    return _living.pop(query.run_id, None) is not None


def _ended(query: Query, release: Callable[[], object]) -> None:
    release()
    if let_go(query):
        query._keep_error()  # noqa: SLF001 - for this module


def _stop_all() -> None:
    ending.append(True)
    for query in running():
        if not type(query.session).__module__.startswith(CONNECT):  # a server runs those
            # by default Spark waits for a call of a step, however long it takes
            with contextlib.suppress(Exception):  # the JVM has stopped already
                assert query.session is not None
                query.session.conf.set("spark.sql.streaming.stopTimeout", _AT_THE_END)
            with contextlib.suppress(Exception):
                query.stop()
    for folder in read_by_views:
        shutil.rmtree(folder, ignore_errors=True)


def delete(folder: str, views: bool) -> None:  # noqa: FBT001 - called by `finalize`
    """Delete a temporary checkpoint; files that views read stay until the process ends, like the views."""
    if not views or ending:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for place in (*Path(folder).iterdir(), *Path(folder, "timely").iterdir()):
        if place.name not in {"timely", "captured"}:
            shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
    read_by_views.add(folder)
