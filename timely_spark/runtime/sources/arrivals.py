"""Which files a batch reads, and which task reads which part of them. Pure: files are names and numbers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import pyarrow as pa

#: As Spark's file source: opening a file counts as so many bytes, and a task reads at most so many.
OPENING, MOST = 4 << 20, 128 << 20


FileValues: TypeAlias = tuple[tuple[str, str | None], ...]
"""Columns that have one value in a whole file: their names and texts."""


class File(NamedTuple):
    """A file of a source, in the order of reading: by modification time, then by name."""

    modified: int
    path: str
    size: int
    #: None means those in the names of the folders above
    values: FileValues | None = None
    #: device and inode of a local file; None if the store has only paths
    id: str | None = None
    #: why the file is quarantined; None if it is read
    bad: str | None = None

    @property
    def identity(self) -> str | None:
        """The file whatever its path, until it is changed; None if it is known by its path only."""
        return None if self.id is None else f"{self.id}:{self.modified}:{self.size}"


#: columns of the stream of quarantined files
QUARANTINED = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "modified": pa.timestamp("us", "UTC"),
        "reason": pa.string(),
    }
)


def quarantined(files: Iterable[File]) -> pa.Table:
    """The rows of quarantined files: there is at least one."""
    rows = [(file.path, file.size, file.modified // 1000, file.bad) for file in files]
    columns = map(pa.array, zip(*rows, strict=True), QUARANTINED.types)
    return pa.table(list(columns), schema=QUARANTINED)


class Part(NamedTuple):
    """Bytes `start` to `end` - 1 of a file; of Parquet the row groups with their middles there."""

    path: str
    start: int
    end: int
    values: FileValues | None = None
    #: the size of the file when it was listed, which it must have when it is read; None if it may have any
    size: int | None = None


def is_visible(path: str) -> bool:
    """Whether a file is complete by its relative path: Spark's rule for hidden and temporary names.

    >>> is_visible("day=1/a.parquet"), is_visible("_day=1/a.parquet")
    (True, True)
    >>> is_visible(".a.parquet"), is_visible("_temporary/0/a.parquet"), is_visible("a.csv._COPYING_")
    (False, False, False)
    """
    return not any(
        name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
        for name in path.split("/")
    )


class Unread:
    """The files that were listed and not read yet; each is read once.

    A file that arrives late is read although its modification time is older than that of others.

    Args:
        read: by path the files that were read, and their `File.identity`.
    """

    def __init__(self, read: Mapping[str, str | None]) -> None:
        self._read = dict(read)
        self._identities = {*read.values()} - {None}
        self._waiting: list[File] = []

    def __len__(self) -> int:
        """How many files wait."""
        return len(self._waiting)

    def enter(self, files: Iterable[File]) -> dict[str, str]:
        """Enter the files of a complete listing; returns by path those that are never read, and why.

        Empty files wait until they have content. A path that was read is not read again. A new path is not
        read if it is another link to a file that was read: by a path that is still listed, or by one that
        was removed. Inode, size and time of modification decide: an inode may be used for another file, with
        another time if it has fractions of a second.
        """
        arrived = sorted(files, key=lambda file: file[:2])
        links = {file.id: file.path for file in reversed(arrived) if file.path in self._read}
        ignored: dict[str, str] = {}
        for file in arrived:
            identity = file.identity
            if file.path in self._read:
                if identity is not None and self._read[file.path] not in {None, identity}:
                    ignored[file.path] = "has changed since it was listed; a file is read once"
            elif not file.size:
                continue
            elif identity is not None and file.id in links:
                ignored[file.path] = f"is a link to {links[file.id]}, which is read once"
            elif identity is not None and identity in self._identities and file.modified % 10**9:
                ignored[file.path] = "was read under another name"
            else:
                self._read[file.path] = identity
                self._identities.add(identity)
                links[file.id] = file.path
                heapq.heappush(self._waiting, file)
        return ignored

    def forget(self, paths: Iterable[str]) -> None:
        """Forget files that were removed before they were read, which may come back or have other names."""
        for path in paths:
            self._identities.discard(self._read.pop(path))

    def next(self, files: int | None = None, size: int | None = None) -> list[File]:
        """The files of the next batch: the oldest ones, at most so many and of so many bytes, at least one.

        >>> unread = Unread({"a": None})
        >>> unread.enter([File(2, "c", 5), File(1, "b", 5), File(0, "a", 5), File(3, "d", 0)])
        {}
        >>> [file.path for file in unread.next(size=9)], [file.path for file in unread.next()]
        (['b'], ['c'])
        """
        taken: list[File] = []
        total = 0
        while self._waiting and (files is None or len(taken) < files):
            total += self._waiting[0].size
            if taken and size is not None and total > size:
                break
            taken.append(heapq.heappop(self._waiting))
        return taken


def split_files(files: Iterable[File], tasks: int, *, divisible: bool) -> list[list[Part]]:
    """Divide files among tasks, as Spark's file source: about equal shares, none above `MOST` bytes.

    Every byte is in one part. The result depends on the arguments only, so a replay has the same parts.

    >>> [[part[:3] for part in share] for share in split_files([File(0, "a", 20 << 20)], 2, divisible=True)]
    [[('a', 0, 12582912)], [('a', 12582912, 20971520)]]
    >>> len(split_files([File(0, str(n), 1000) for n in range(9)], 2, divisible=False))
    2
    """
    listed = list(files)
    total = sum(file.size + OPENING for file in listed)
    share = min(MOST, max(OPENING, -(-total // tasks)))
    shares: list[list[Part]] = []
    room = 0
    for file in listed:
        step = share if divisible else file.size
        for start in range(0, file.size, step):
            size = min(step, file.size - start)
            if size > room:
                shares.append([])
                room = share
            shares[-1].append(Part(file.path, start, start + size, file.values, file.size))
            room -= size + OPENING
    return shares
