"""The journal of a file source: which files each batch reads, written before Spark's log names the batch.

Batch k of the source is `<k>.arrow`. Batches that nobody will read again are merged into
`<first>-<last>.arrow`, which has the paths of their files only. A merged file whose predecessor is at most
twice as large is merged with that one. So each path is written O(log n) times for n files, and a start reads
O(log n) merged files.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.storage.files import Files, quoted

_SCHEMA = pa.schema([("modified", pa.int64()), ("path", pa.string()), ("size", pa.int64())])
#: Batches are merged when there are so many.
EVERY = 64


class MergedBatches(NamedTuple):
    """The batches of one merged file, and its number of paths."""

    first: int
    last: int
    paths: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.first}-{self.last}"


class FileJournal:
    """The journal of one source in a checkpoint. Reads the names in its folder when it is made.

    Raises:
        LogDamaged: a batch is missing.
    """

    def __init__(self, files: Files, source: str) -> None:
        self._files, self._folder = files, f"files/{quoted(source)}"
        self._thread = ThreadPoolExecutor(1, "timely-journal")
        self._durable: Future[None] | None = None
        names = [name.rpartition("/")[2].partition(".")[0] for name in files.names(self._folder)]
        spans = sorted(tuple(map(int, name.split("-"))) for name in names if "-" in name)
        self._merged: list[MergedBatches] = []
        for first, last in spans:
            if self._merged and first == self._merged[-1].first:  # the longer one has its paths
                self._merged.pop()
            if first == self._first:
                self._merged.append(MergedBatches(first, last, 0))
        batches = {int(name) for name in names if name.isdecimal()}
        #: The newest batch; -1: none.
        self.last = max([*batches, self._first - 1])
        for batch in range(self._first, self.last):
            if batch not in batches:
                raise LogDamaged.no_file(files.root, self._name(batch))
        kept = {*map(str, range(self._first, self.last + 1)), *(merged.name for merged in self._merged)}
        if batches:
            self._sync()  # the process that wrote the newest one may have been killed before
        for name in set(names) - kept:  # merged, by a process that was killed before it removed them
            files.remove(self._name(name))

    @property
    def _first(self) -> int:
        """The first batch that is not merged."""
        return self._merged[-1].last + 1 if self._merged else 0

    def paths(self) -> list[str]:
        """The paths of all files that were ever read."""
        found: list[str] = []
        for place, merged in enumerate(self._merged):
            paths = self._table(merged.name).column("path").to_pylist()
            self._merged[place] = merged._replace(paths=len(paths))
            found += paths
        return found + [
            file.path for batch in range(self._first, self.last + 1) for file in self.batch(batch)
        ]

    def batch(self, number: int) -> list[File]:
        """The files of a batch, in order."""
        rows = self._table(number).select(_SCHEMA.names).to_pylist()
        return [File(**row) for row in rows]

    def append(self, files: Sequence[File]) -> None:
        """Write the next batch; it is durable after `wait`.

        The disk takes 10 ms and more, in which Spark writes its own log and plans the micro-batch.
        """
        columns = list(zip(*((file.modified, file.path, file.size) for file in files), strict=True))
        table = pa.table(
            [pa.array(*pair) for pair in zip(columns, _SCHEMA.types, strict=True)], schema=_SCHEMA
        )
        self._files.write_table(self._name(self.last + 1), table, new=True)
        self.last += 1
        self._sync()

    def _sync(self) -> None:
        self._durable = self._thread.submit(self._files.sync, self._name(self.last))

    def wait(self) -> None:
        """Wait until all batches are durable.

        Raises:
            OSError: the disk has failed.
        """
        if self._durable is not None:
            self._durable.result()

    def merge(self, until: int) -> None:
        """Merge the batches up to `until`, once they are `EVERY`."""
        first = self._first
        if until - first + 1 < EVERY:
            return
        paths = [file.path for batch in range(first, until + 1) for file in self.batch(batch)]
        gone: list[str | int] = list(range(first, until + 1))
        while self._merged and self._merged[-1].paths <= 2 * len(paths):
            before = self._merged.pop()
            paths = self._table(before.name).column("path").to_pylist() + paths
            first, gone = before.first, [*gone, before.name]
        merged = MergedBatches(first, until, len(paths))
        self._files.write_table(self._name(merged.name), pa.table({"path": paths}), durable=True)
        self._merged.append(merged)
        for name in gone:
            self._files.remove(self._name(name))

    def _table(self, name: str | int) -> pa.Table:
        return self._files.found(self._name(name), self._files.table(self._name(name)))

    def _name(self, name: str | int) -> str:
        return f"{self._folder}/{name}.arrow"
