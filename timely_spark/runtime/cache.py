"""This machine's copies of remote blobs, which never change: bounded, and shared by all its processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import uuid

import pyarrow as pa

from timely_spark.runtime.errors import BadLocation

#: Where the cache lies (else in the temporary directory), and how many bytes it may have.
PLACE, LIMIT = "TIMELY_SPARK_CACHE", "TIMELY_SPARK_CACHE_BYTES"
_DEFAULT = 1 << 30
_LENGTH = 8


Stamp = tuple[int, ...]
"""Changes when a file does."""


def stamp(path: str) -> Stamp | None:
    """Of a local file, if it is there."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Cache:
    """Copies by key in one folder, the least recently used ones removed.

    After each `put` the folder holds at most `limit` bytes. Any number of processes may use it at once: a
    copy appears whole, one that is mapped stays readable when it is removed, and one that is not as long as
    its last eight bytes say (a machine that stopped) counts as missing.

    >>> import tempfile
    >>> cache = Cache(tempfile.mkdtemp(), limit=100)
    >>> cache.put("s3://bucket/a", pa.py_buffer(b"immutable")).to_pybytes()
    b'immutable'
    >>> cache.get("s3://bucket/a").to_pybytes(), cache.get("s3://bucket/b")
    (b'immutable', None)
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit

    @classmethod
    def of_this_user(cls) -> Cache:
        """The one that the environment describes; its folder is made, and nobody else's.

        Raises:
            BadLocation: others could read or write the folder, or the limit is no number.
        """
        base = os.environ.get(PLACE)
        if base:
            os.makedirs(base, exist_ok=True)
        folder = os.path.join(base or tempfile.gettempdir(), f"timely-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise BadLocation.cache(folder, PLACE)
        limit = os.environ.get(LIMIT) or str(_DEFAULT)
        if not limit.isdecimal():
            raise BadLocation.cache_limit(limit, LIMIT)
        return cls(folder, int(limit))

    def get(self, key: str) -> pa.Buffer | None:
        """The copy, memory-mapped, if there is one."""
        path = self._path(key)
        try:
            whole = pa.memory_map(path).read_buffer()
        except FileNotFoundError:
            return None
        size = whole.size - _LENGTH
        if size < 0 or int.from_bytes(whole.slice(size), "little") != size:
            return None
        with contextlib.suppress(FileNotFoundError):  # when it was used, not when it was written
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
        return whole.slice(0, size)

    def stamp(self, key: str) -> Stamp | None:
        """Of the copy, if there is one."""
        return stamp(self._path(key))

    def drop(self, key: str) -> None:
        """Removes the copy."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def put(self, key: str, content: pa.Buffer) -> pa.Buffer:
        """Keeps a copy, and gives it memory-mapped; or `content` itself, where there is no room for it."""
        if content.size + _LENGTH > self.limit:
            return content
        temporary = os.path.join(self.folder, f".{uuid.uuid4().hex}.tmp")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.write(content.size.to_bytes(_LENGTH, "little"))
            os.replace(temporary, self._path(key))
        except OSError:  # a full disk, or another process that needed the room: slower, not wrong
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            return content
        found = self.get(key)
        self._evict()
        return content if found is None else found

    def _evict(self) -> None:
        """Removes the oldest, also what a process that was killed had begun."""
        known = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    known.append((found.st_atime_ns, found.st_size, entry.path))
        excess = sum(size for _, size, _ in known) - self.limit
        for _, size, path in sorted(known):
            if excess <= 0:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, hashlib.sha256(key.encode()).hexdigest())
