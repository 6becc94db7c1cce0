"""The journal of a file source: which files each batch reads, written before Spark's log names the batch.

Batch k of the source is `<k>.arrow`. Batches that nobody will read again are merged into
`<first>-<last>.arrow`, which has the paths and identities of their files only. A merged file whose
predecessor is at most twice as large is merged with that one. So each path is written O(log n) times for n
files, and a start reads O(log n) merged files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.sources.arrivals import File, Values
from timely_spark.runtime.storage.files import HEAD, Files, quoted
from timely_spark.state.bounds import parse_json

_NUMBER, _TEXT = pa.int64(), pa.string()
#: The values of columns are JSON; null: those in the names of the folders above.
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
            until = max((number for number in files.numbers(folder)), default=-1)
        if until < 0:
            return cls()
        name = f"{folder}/{until}.arrow"
        return cls(**files.head(name, files.existing(name, files.schema(name))))

    def after(self, batch: Sequence[File]) -> FileCounts:
        """The counts after one more batch."""
        bad = sum(file.bad is not None for file in batch)
        return FileCounts(self.listed + len(batch), self.entered + len(batch) - bad, self.quarantined + bad)


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

    Args:
        watches: whether another process may be writing it; then nothing is changed.

    Raises:
        LogDamaged: a batch is missing.
    """

    def __init__(self, files: Files, source: str, *, watches: bool = False) -> None:
        self._files, self._folder, self._source = files, f"files/{quoted(source)}", source
        self._counts: FileCounts | None = None
        self._thread = ThreadPoolExecutor(1, "timely-journal")
        self._durable: Future[None] | None = None
        names = [name.rpartition("/")[2].partition(".")[0] for name in files.names(self._folder)]
        spans = sorted(tuple(map(int, name.split("-"))) for name in names if "-" in name)
        self._merged: list[MergedBatches] = []
        for first, last in spans:
            if self._merged and first == self._merged[-1].first:  # the longer one has its paths
                self._merged.pop()
            if first == self.first:
                self._merged.append(MergedBatches(first, last, 0))
        batches = {int(name) for name in names if name.isdecimal()}
        #: The newest batch; -1: none.
        self.last = max([*batches, self.first - 1])
        for batch in range(self.first, self.last):
            if batch not in batches:
                raise LogDamaged.no_file(files.root, self._name(batch))
        if watches:
            return
        kept = {*map(str, range(self.first, self.last + 1)), *(merged.name for merged in self._merged)}
        if batches:
            self._sync()  # the process that wrote the newest one may have been killed before
        for name in set(names) - kept:  # merged, by a process that was killed before it removed them
            files.remove(self._name(name))

    @property
    def first(self) -> int:
        """The first batch that is not merged."""
        return self._merged[-1].last + 1 if self._merged else 0

    def seen(self) -> dict[str, str | None]:
        """By path all files that were ever in a batch, and their identities."""
        files: dict[str, str | None] = {}
        for place, merged in enumerate(self._merged):
            table = self._table(merged.name)
            self._merged[place] = merged._replace(paths=table.num_rows)
            files |= _pairs(table)
        for batch in range(self.first, self.last + 1):
            files |= {file.path: file.identity for file in self.batch(batch)}
        return files

    def batch(self, number: int) -> list[File]:
        """The files of a batch, in order."""
        rows: list[dict[str, Any]] = self._table(number).select(_SCHEMA.names).to_pylist()
        return [File(**row | {"values": _decoded(row["values"])}) for row in rows]

    def append(self, files: Sequence[File]) -> None:
        """Write the next batch; it is durable after `wait`.

        The disk takes 10 ms and more, in which Spark writes its own log and plans the micro-batch.
        """
        if self._counts is None:
            self._counts = FileCounts.of(self._files, self._source, self.last)
        counts = self._counts.after(files)
        rows = [file._asdict() | {"values": _encoded(file.values)} for file in files]
        head = {HEAD: json.dumps(asdict(counts)).encode()}
        table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata(head))
        self._files.write_table(self._name(self.last + 1), table, new=True)
        self.last, self._counts = self.last + 1, counts
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

    def is_behind(self) -> bool:
        """Whether another process has written a batch since."""
        return self._files.exists(self._name(self.last + 1))

    def merge(self, until: int) -> None:
        """Merge the batches up to `until`, once they are `EVERY`."""
        first = self.first
        if until - first + 1 < EVERY:
            return
        seen = {file.path: file.identity for batch in range(first, until + 1) for file in self.batch(batch)}
        garbage: list[str | int] = list(range(first, until + 1))
        while self._merged and self._merged[-1].paths <= 2 * len(seen):
            before = self._merged.pop()
            seen = _pairs(self._table(before.name)) | seen
            first, garbage = before.first, [*garbage, before.name]
        merged = MergedBatches(first, until, len(seen))
        table = pa.table([list(seen), list(seen.values())], schema=_MERGED)
        self._files.write_table(self._name(merged.name), table, durable=True)
        self._merged.append(merged)
        for name in garbage:
            self._files.remove(self._name(name))

    def _table(self, name: str | int) -> pa.Table:
        return self._files.existing(self._name(name), self._files.table(self._name(name)))

    def _name(self, name: str | int) -> str:
        return f"{self._folder}/{name}.arrow"


def _pairs(merged: pa.Table) -> dict[str, str | None]:
    """The paths in a merged file, and the identities."""
    return dict(zip(*(merged.column(name).to_pylist() for name in _MERGED.names), strict=True))


def _encoded(values: Values | None) -> str | None:
    return None if values is None else json.dumps(values)


def _decoded(text: str | None) -> Values | None:
    return None if text is None else tuple((name, value) for name, value in parse_json(text))
