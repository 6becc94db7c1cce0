"""The journal of a file source: which files each batch reads, written before Spark's log names the batch.

Batch k of the source is `<k>.arrow`. Batches that nobody will read again are merged into
`<first>-<last>.arrow`, which has the paths and identities of their files only. A merged file is merged again
with the one before it, if that is at most twice as large. So each path is written O(log n) times for n
files, and a start reads O(log n) merged files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow.json import ParseOptions, ReadOptions, read_json

from timely_spark.errors import LogDamaged
from timely_spark.runtime.process import in_thread
from timely_spark.runtime.sources.arrivals import File, FileValues
from timely_spark.runtime.storage.files import HEAD, Files, quoted
from timely_spark.runtime.storage.merged_files import MergedFiles, Span, current
from timely_spark.state.bounds import parse_json

_NUMBER, _TEXT = pa.int64(), pa.string()
#: The values of columns are JSON; null means those in the names of the folders around the file.
_SCHEMA = pa.schema(
    {"modified": _NUMBER, "path": _TEXT, "size": _NUMBER, "values": _TEXT, "id": _TEXT, "bad": _TEXT}
)
_MERGED = pa.schema({"path": _TEXT, "identity": _TEXT})
#: Batches are merged when there are so many.
EVERY = 64


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The files of a source of files, by what became of them: `listed` is the sum of the others.

    A file is in one of the counts once, by its identity. The counts stand in the head of each batch of the
    journal, as sums over all batches so far. So `FileCounts.of(log.files, name, k)` reads one small file,
    from any process; k is the source's offset `{"files": k}` in Spark's log. With the k of the newest
    manifest's batch, all `entered` files are in `Manifest.read` and in the states; with None, files count
    that are planned but not yet in a manifest.
    """

    listed: int = 0
    #: their records are input of the flow
    entered: int = 0
    #: they could not be read, and `on_bad_file="quarantine"`
    quarantined: int = 0

    @classmethod
    def of(cls, files: Files, source: str, until: int | None = None) -> FileCounts:
        """The counts of the batches up to `until`; None means of all in the journal.

        Args:
            files: `RoundLog.files` of the checkpoint.
            source: the name of the input.

        Raises:
            LogDamaged: the batch is missing, or so old that it was merged.
        """
        folder = f"files/{quoted(source)}"
        if until is None:
            until = max(files.numbers(folder), default=-1)
        if until < 0:
            return cls()
        name = f"{folder}/{until}.arrow"
        return cls(**files.head(name, files.existing(name, files.schema(name))))

    def after(self, batch: Sequence[File]) -> FileCounts:
        """The counts after one more batch."""
        bad = sum(file.bad is not None for file in batch)
        return FileCounts(self.listed + len(batch), self.entered + len(batch) - bad, self.quarantined + bad)


class FileJournal:
    """The journal of one source in a checkpoint. Reads the names in its folder when it is made.

    Args:
        watches: whether another process may be writing it; then nothing is changed.

    Raises:
        LogDamaged: a batch is missing.
    """

    def __init__(self, files: Files, source: str, *, watches: bool = False) -> None:
        self._folder, self._source = MergedFiles(files, f"files/{quoted(source)}"), source
        self._counts: FileCounts | None = None
        self._thread = ThreadPoolExecutor(1, "timely-journal")
        self._durable: Future[None] | None = None
        #: The merged files in order, and the numbers of their paths.
        self._merged: list[tuple[Span, int]] = []
        #: The first batch that is not merged; the newest batch, -1 before the first.
        self.first, self.last = 0, -1
        present = self._folder.present()
        for span in current(present):
            if span.first != self.last + 1:
                raise LogDamaged.no_file(files.root, self._folder.name(self.last + 1))
            self.last = span.last
            if span.is_merged:
                self._merged.append((span, 0))
                self.first = span.last + 1
        if watches:
            return
        if self.first <= self.last:
            self._sync()  # the process that wrote the newest one may have been killed before
        self._folder.tidy(present)

    def identities(self) -> dict[str, str | None]:
        """The identities of all files that were ever in a batch, by path."""
        files: dict[str, str | None] = {}
        for place, (merged, _) in enumerate(self._merged):
            table = self._folder.table(*merged)
            self._merged[place] = merged, table.num_rows
            files |= _pairs(table)
        for batch in range(self.first, self.last + 1):
            files |= {file.path: file.identity for file in self.batch(batch)}
        return files

    def batch(self, number: int) -> list[File]:
        """The files of a batch, in order."""
        rows: list[dict[str, Any]] = self._folder.table(number).select(_SCHEMA.names).to_pylist()
        return [File(**row | {"values": _values(row["values"])}) for row in rows]

    def append(self, files: Sequence[File]) -> None:
        """Write the next batch; it is durable after `wait`.

        The disk takes 10 ms and more, in which Spark writes its own log and plans the micro-batch.
        """
        self.wait()  # the next sync would hide that one has failed
        if self._counts is None:
            self._counts = FileCounts.of(self._folder.files, self._source, self.last)
        counts = self._counts.after(files)
        head = {HEAD: json.dumps(asdict(counts)).encode()}
        table = _table(files).replace_schema_metadata(head)
        self._folder.files.write_table(self._folder.name(self.last + 1), table, new=True)
        self.last, self._counts = self.last + 1, counts
        self._sync()

    def _sync(self) -> None:
        name = self._folder.name(self.last)
        self._durable = in_thread(self._thread, partial(self._folder.files.sync, name))

    def wait(self) -> None:
        """Wait until all batches are durable.

        Raises:
            OSError: the disk has failed.
        """
        if self._durable is not None:
            self._durable.result()

    def is_behind(self) -> bool:
        """Whether another process has written a batch since."""
        return self._folder.files.exists(self._folder.name(self.last + 1))

    def merge(self, until: int) -> None:
        """Merge the batches up to `until`, once they are `EVERY`."""
        first = self.first
        if until - first + 1 < EVERY:
            return
        paths = {file.path: file.identity for batch in range(first, until + 1) for file in self.batch(batch)}
        merged = list(self._merged)
        while merged and merged[-1][1] <= 2 * len(paths):
            before, _ = merged.pop()
            paths, first = _pairs(self._folder.table(*before)) | paths, before.first
        span = Span(first, until)
        self._folder.merge(span, pa.table([list(paths), list(paths.values())], schema=_MERGED))
        self._merged, self.first = [*merged, (span, len(paths))], until + 1


def _table(files: Sequence[File]) -> pa.Table:
    """Files as rows, by way of JSON.

    Other ways to make columns of Python's values import pandas first: half of what it costs to start a query.
    """
    if not files:
        return _SCHEMA.empty_table()
    rows = (
        file._asdict() | {"values": None if file.values is None else json.dumps(file.values)}
        for file in files
    )
    lines = "\n".join(map(json.dumps, rows)).encode()
    one_block = ReadOptions(use_threads=False, block_size=len(lines))
    return read_json(pa.py_buffer(lines), one_block, ParseOptions(explicit_schema=_SCHEMA))


def _pairs(merged: pa.Table) -> dict[str, str | None]:
    """The paths in a merged file, and the identities."""
    return dict(zip(*(merged.column(name).to_pylist() for name in _MERGED.names), strict=True))


def _values(text: str | None) -> FileValues | None:
    return None if text is None else tuple((name, value) for name, value in parse_json(text))
