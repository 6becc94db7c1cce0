"""`Lock`: at most one running driver per checkpoint; the lock ends with its process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.stores import make_folder

try:
    import fcntl
except ImportError:  # Windows: only terms in the round log separate two drivers
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: Seconds after which the end of a query is awaited again, if the connection has failed.
AGAIN = 1.0
#: The locks of this process, by path.
_held: dict[str, Lock] = {}
_one_at_a_time = threading.RLock()


class Lock:
    """A checkpoint's lock on a local file system; on others `acquire` always succeeds.

    The kernel frees the lock when the process ends, so a dead process never blocks a restart.

    The lock belongs to the open file (flock). A POSIX lock (lockf) would belong to the process, which loses
    the lock when any library opens and closes the file, for example to copy the checkpoint.
    """

    def __init__(self, files: Files) -> None:
        self.path = os.path.realpath(files.path("lock")) if files.local and fcntl is not None else None
        self._file: int | None = None
        self.query: StreamingQuery | None = None

    def acquire(self) -> bool:
        """Take the lock; False if a process, perhaps this one, has the lock for a running query."""
        if self.path is None:
            return True
        with _one_at_a_time:
            return self._acquire(self.path)

    def _acquire(self, path: str) -> bool:
        if (holder := _held.get(path)) is not None:
            if holder.query is None or holder._runs():  # noqa: SLF001 - its own class
                return False
            holder.release()
        make_folder(os.path.dirname(path))
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o660)
        for _ in range(20):  # `is_held` of another process has the lock for a moment
            if (taken := _try(file)) is not False:
                if taken is None:
                    _log.warning("%s: this file system has no locks", path)
                self._file = file
                _held[path] = self
                return True
            time.sleep(0.01)
        os.close(file)
        return False

    def _disown(self) -> None:
        """Close a forked child's copy of the file, which would keep the lock after the parent's end."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_held(self) -> bool | None:
        """Whether a process has the lock; None means unknown, or the file system has no locks."""
        if self.path is None or not os.path.exists(self.path):
            return None if self.path is None else False
        with _one_at_a_time:
            if (holder := _held.get(self.path)) is not None:
                return holder.query is None or holder._runs()  # noqa: SLF001
            try:
                file = os.open(self.path, os.O_RDONLY)
            except OSError:  # another user's file
                return None
            try:
                taken = _try(file, shared=True)
                return None if taken is None else not taken
            finally:
                os.close(file)

    def release(self) -> None:
        """Release the lock; releasing again does nothing."""
        with _one_at_a_time:
            if self._file is not None and self.path is not None:
                _held.pop(self.path, None)
                file, self._file = self._file, None
                os.close(file)

    def release_after(self, query: StreamingQuery, then: Callable[[], object]) -> None:
        """Release the lock when the query ends, and then call `then`."""
        self.query = query
        threading.Thread(target=self._wait, args=(then,), name="timely-lock", daemon=True).start()

    def _wait(self, then: Callable[[], object]) -> None:
        while True:
            # the error is the query's, which `Query.exception` reports, or the connection's
            with contextlib.suppress(Exception):
                assert self.query is not None
                self.query.awaitTermination()
            if not self._runs():
                break
            time.sleep(AGAIN)
        self.release()
        then()

    def _runs(self) -> bool:
        try:
            return self.query is not None and bool(self.query.isActive)
        except Exception:  # noqa: BLE001 - the JVM or the Connect server has stopped, and with it the query
            return False


def _try(file: int, *, shared: bool = False) -> bool | None:
    """Whether the lock could be taken; None means no locks, for example on NFS with `nolock`."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # terms in the round log separate two drivers
        return None
    return True


def _in_child() -> None:
    global _one_at_a_time  # noqa: PLW0603 - another thread of the parent may have held it
    _one_at_a_time = threading.RLock()
    for lock in _held.values():
        lock._disown()  # noqa: SLF001
    _held.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_in_child)
