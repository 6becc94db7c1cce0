"""The sources of files: read and packed by Spark's tasks.

The offset of a folder is `{"files": k}`: batches 0 to k of the source's journal have been read. A batch is in
the journal, durably, before its offset is in Spark's log. So a replay reads the same files, and a restart
goes on from the journal.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.query.run_context import RunContext
from timely_spark.runtime.sources.arrivals import File, Part, Unread, split
from timely_spark.runtime.sources.delta_log import DeltaSource
from timely_spark.runtime.sources.journal import FileJournal

Offset = dict[str, int]

#: Looking for new files takes at most one part in so many of the time.
_IDLE = 10


class Share(InputPartition):
    """What one task reads; `number` is the same when the batch is read again."""

    def __init__(self, number: int, parts: list[Part]) -> None:
        super().__init__(number)
        self.parts = parts


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the files between two offsets in tasks; a kind of source says which files those are."""

    def __init__(self, context: RunContext, source: Any) -> None:
        self.context, self.source = context, source
        #: When the source may be looked at again.
        self._next_look = 0.0

    @property
    def _name(self) -> str:
        name: str = self.source.folder.source
        return name

    def _files(self, start: Offset, end: Offset) -> list[File]:
        """The files between two offsets, in order."""
        raise NotImplementedError

    def _number(self, offset: Any, key: str) -> int:
        """The number in an offset.

        Raises:
            BadFile: the offset is of a source of another kind.
        """
        if not isinstance(number := offset.get(key), int):
            msg = f"source {self._name!r} reads {key}, but its position in the checkpoint is {offset!r}"
            hint = "it was of another kind there: keep its kind, or use a new checkpoint."
            raise BadFile(msg, where=self.source.folder.where, hint=hint)
        return number

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at the source; looking takes at most one part in `_IDLE` of the time."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self._next_look = ended + (_IDLE - 1) * (ended - began)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The shares of the tasks between two offsets."""
        with self.context.reporting():
            files = self._files(start, end)
        shares = split(files, self.source.tasks, divisible=self.source.folder.divisible)
        return [Share(number, parts) for number, parts in enumerate(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share."""
        assert isinstance(partition, Share)
        source, schema = self.source, self.context.plan.source(self._name).stage.outputs[0]
        with self.context.task():
            rows = source.folder.read(
                partition.parts, schema, source.columns, source.condition, source.computed
            )
            yield from self.context.pack(self._name, rows, partition.value)


class FilesReader(Reader):
    """Answers Spark's polls by listing a folder."""

    _available_now = False

    @cached_property
    def _journal(self) -> FileJournal:
        return FileJournal(self.context.log.files, self._name)

    @cached_property
    def _unread(self) -> Unread:
        return Unread(self._journal.paths())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and nothing later."""
        with self.context.reporting():
            self._list()
        self._available_now = True

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset before the first batch."""
        return {"files": -1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A limit if the source has one: Spark asks for everything with some triggers."""
        if self.source.files_per_epoch is not None:
            return ReadMaxFiles(self.source.files_per_epoch)
        if self.source.max_bytes_per_epoch is not None:
            return ReadMaxBytes(self.source.max_bytes_per_epoch)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The offset after the next batch of files; `start` if there are no new files.

        Raises:
            BadFile: the position in the checkpoint is not of a file source.
            LogDamaged: the journal is damaged.
            LostOwnership: another run has claimed the checkpoint.
        """
        with self.context.reporting():
            number = self._number(start, "files")
            if number > self._journal.last:
                self._journal.batch(number)  # which is missing
            if number < self._journal.last:  # the batch was planned before a restart
                return {"files": number + 1}
            unlimited = isinstance(limit, ReadAllAvailable)
            most_files = None if unlimited else self.source.files_per_epoch
            most_bytes = None if unlimited else self.source.max_bytes_per_epoch
            files = self._unread.next(most_files, most_bytes)
            if not files and not self._available_now and time.monotonic() >= self._next_look:
                self._list()
                files = self._unread.next(most_files, most_bytes)
            if not files:
                return start
            self.context.log.check_owner()
            try:
                self._journal.append(files)
            except FileExistsError:  # written by a run that lost the checkpoint a moment ago
                del self._journal, self._unread
            return {"files": number + 1}

    def _list(self) -> None:
        with self._looking():
            self._unread.enter(self.source.folder.files())

    def _files(self, start: Offset, end: Offset) -> list[File]:
        numbers = range(start["files"] + 1, end["files"] + 1)
        return [file for number in numbers for file in self._journal.batch(number)]

    def commit(self, end: Offset) -> None:
        """Batches up to `end` are committed: merge those that no retained batch can read again."""
        with self.context.reporting():
            self._journal.merge(end["files"] - self.context.keep)


class DeltaReader(Reader):
    """Answers Spark's polls by looking for the next version of a Delta table.

    Its offset is `{"version": v}`: the versions up to v have been read. The table's own log is the journal.
    """

    #: With availableNow, the newest version at the start.
    _target: int | None = None
    #: The newest version that was seen, after the offset, to have no rows.
    _empty = -1
    #: The version after which none was missing.
    _checked: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and nothing later."""
        with self.context.reporting():
            self._target = self.source.log.newest()

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset before the first version."""
        return {"version": (self.source.from_version or 0) - 1}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The offset after the next versions with rows; `start` if there are none.

        Raises:
            BadFile: the position in the checkpoint is not of a Delta table, or a version removes rows.
            TableUnsupported: the table needs Spark's reader since a version.
        """
        with self.context.reporting():
            version = self._number(start, "version")
            log = self.source.log
            if self._is_first(start):
                newest = log.newest() if self._target is None else self._target
                return {"version": newest} if log.snapshot(newest) else start
            if self._target is None and time.monotonic() < self._next_look:
                return start
            with self._looking():
                end, found = max(version, self._empty), 0
                while found < self.source.versions_per_epoch and end != self._target and log.has(end + 1):
                    end += 1
                    found += bool(log.files(end))
                if not found:
                    self._empty = end
                    if end != self._checked:
                        log.check_reachable(end + 1)
                        self._checked = end
            return {"version": end} if found else start

    def _is_first(self, start: Offset) -> bool:
        return self.source.from_version is None and start["version"] == -1

    def _files(self, start: Offset, end: Offset) -> list[File]:
        log = self.source.log
        if self._is_first(start):
            return list(log.snapshot(end["version"]))
        versions = range(start["version"] + 1, end["version"] + 1)
        return [file for version in versions for file in log.files(version)]


def reader_of(context: RunContext, option: str) -> Reader:
    """The reader for the text that `FileSource.to_option` made."""
    source = pickle.loads(base64.b64decode(option))
    return DeltaReader(context, source) if isinstance(source, DeltaSource) else FilesReader(context, source)
