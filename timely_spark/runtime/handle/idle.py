"""`Idle`: whether Spark has looked at all sources since a moment and found nothing new."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds after the last question until Spark is not asked any more.
_FORGOTTEN = 1.0


class Idle:
    """Asks Spark, on one thread for all waits of a query, and only while somebody waits.

    Args:
        query: the query in Spark.
        ends: whether the query ends by itself once it has read everything.
        remote: whether another machine may run the query's driver.
    """

    def __init__(self, query: StreamingQuery, *, ends: bool, remote: bool) -> None:
        self._query, self._ends, self.remote = query, ends, remote
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        #: How often Spark has found nothing new.
        self._idle_looks = 0
        self._asked = 0.0

    def since_now(self) -> Callable[[], bool]:
        """A function that returns whether Spark has found nothing new, in a look that began later."""
        with self._lock:
            # the look that ends a wait may have begun before that wait, and a wait that runs before this call
            needed = self._idle_looks + 2 + (self._thread is not None)

        def idle() -> bool:
            if self._idle_looks >= needed:
                return True
            if not self._query.isActive:
                return self._ends and self._query.exception() is None
            with self._lock:
                self._asked = time.monotonic()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._ask, name="timely-idle", daemon=True)
                    self._thread.start()
            return False

        return idle

    def _ask(self) -> None:
        with suppress(Exception):  # the query has failed, or its session has ended, which ends the wait, too
            while True:
                self._query.processAllAvailable()
                if not self._query.isActive:
                    break  # perhaps it was stopped before it had read everything
                with self._lock:
                    self._idle_looks += 1
                    if time.monotonic() > self._asked + _FORGOTTEN:
                        break
        self._thread = None
