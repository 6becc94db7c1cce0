"""`Cache`: this machine's copies of remote blobs, bounded and shared by all processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import uuid

import pyarrow as pa

from timely_spark.errors import StorageFailed
from timely_spark.runtime.errors import BadLocation

#: Environment variables for the cache's directory (else the temporary one) and its size in bytes.
PLACE, LIMIT = "TIMELY_SPARK_CACHE", "TIMELY_SPARK_CACHE_BYTES"
_DEFAULT = 1 << 30
_LENGTH = 8


Stamp = tuple[int, ...]
"""Identifies a version of a file."""


def stamp(path: str) -> Stamp | None:
    """The stamp of a local file; None if there is no such file.

    The time of the last change of the file's inode is part of it, because nobody can set that one back.
    """
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class Cache:
    """Copies by key in one folder; the least recently used ones are removed.

    After each `put` the folder has at most `limit` bytes. Any number of processes may use it at once: a copy
    appears whole, and a mapped copy stays readable when it is removed. The last eight bytes of a copy are its
    length; a copy of another length (after a crash of the machine) counts as missing.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit

    @classmethod
    def of_this_user(cls) -> Cache:
        """The cache that the environment variables configure; makes its folder."""
        base = os.environ.get(PLACE)
        folder = os.path.join(base or tempfile.gettempdir(), f"timely-{os.getuid()}")
        with StorageFailed.owning(f"{folder}, for copies of remote files,"):
            if base:
                os.makedirs(base, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            msg = f"{folder} is for this user's copies of remote files, but others can read or write it."
            raise BadLocation(msg, hint=f"remove it, or set {PLACE} to another folder.")
        limit = os.environ.get(LIMIT) or str(_DEFAULT)
        if not limit.isdecimal():
            msg = f"{LIMIT} is {limit!r}; it must be a number of bytes."
            raise BadLocation(msg, hint=f"set it to a number, as in {LIMIT}=1073741824.")
        return cls(folder, int(limit))

    def get(self, key: str) -> pa.Buffer | None:
        """The copy, memory-mapped; None if there is no copy."""
        path = self._path(key)
        try:
            whole = pa.memory_map(path).read_buffer()
        except OSError:  # missing, or on a disk that fails: the file is fetched again
            return None
        size = whole.size - _LENGTH
        if size < 0 or int.from_bytes(whole.slice(size), "little") != size:
            return None
        with contextlib.suppress(FileNotFoundError):  # the access time is the time of the last use
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
        return whole.slice(0, size)

    def stamp(self, key: str) -> Stamp | None:
        """The stamp of the copy; None if there is no copy."""
        current = stamp(self._path(key))
        return None if current is None else current[:-1]  # each use of a copy changes its inode

    def drop(self, key: str) -> None:
        """Remove the copy."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def put(self, key: str, content: pa.Buffer) -> pa.Buffer:
        """Store a copy, and return it memory-mapped; or return `content` if there is no room for a copy."""
        if content.size + _LENGTH > self.limit:
            return content
        temporary = os.path.join(self.folder, f".{uuid.uuid4().hex}.tmp")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.write(content.size.to_bytes(_LENGTH, "little"))
            os.replace(temporary, self._path(key))
        except OSError:  # a full disk, or another process has removed the file: no copy
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            return content
        copy = self.get(key)
        self._evict()
        return content if copy is None else copy

    def _evict(self) -> None:
        """Remove the least recently used files, including unfinished files of killed processes."""
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    files.append((info.st_atime_ns, info.st_size, entry.path))
        excess = sum(size for _, size, _ in files) - self.limit
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, hashlib.sha256(key.encode()).hexdigest())
