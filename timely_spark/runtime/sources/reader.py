"""The file source: new files of a folder, read and packed by Spark's tasks.

Its offset is `{"files": k}`: batches 0 to k of the source's journal have been read. A batch is in the
journal, durably, before its offset is in Spark's log. So a replay reads the same files, and a restart goes on
from the journal.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Iterator, Sequence
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
from timely_spark.runtime.sources.arrivals import Part, Unread, split
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.sources.journal import FileJournal

Offset = dict[str, int]

#: Listing the folder takes at most one part in so many of the time.
_IDLE = 10


class Share(InputPartition):
    """What one task reads; `number` is the same when the batch is read again."""

    def __init__(self, number: int, parts: list[Part]) -> None:
        super().__init__(number)
        self.parts = parts


class FilesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's polls by listing the folder, and reads files in tasks."""

    def __init__(self, context: RunContext, source: FileSource) -> None:
        self.context, self.source = context, source
        self._available_now = False
        #: When the folder may be listed again.
        self._next_listing = 0.0

    @classmethod
    def of(cls, context: RunContext, option: str) -> FilesReader:
        """The reader for the text that `FileSource.to_option` made."""
        return cls(context, pickle.loads(base64.b64decode(option)))

    @property
    def _name(self) -> str:
        return self.source.folder.source

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
            self._check(start)
            if start["files"] < self._journal.last:  # the batch was planned before a restart
                return {"files": start["files"] + 1}
            unlimited = isinstance(limit, ReadAllAvailable)
            most_files = None if unlimited else self.source.files_per_epoch
            most_bytes = None if unlimited else self.source.max_bytes_per_epoch
            files = self._unread.next(most_files, most_bytes)
            if not files and not self._available_now and time.monotonic() >= self._next_listing:
                self._list()
                files = self._unread.next(most_files, most_bytes)
            if not files:
                return start
            self.context.log.check_owner()
            try:
                self._journal.append(files)
            except FileExistsError:  # written by a run that lost the checkpoint a moment ago
                del self._journal, self._unread
            return {"files": start["files"] + 1}

    def _list(self) -> None:
        began = time.monotonic()
        self._unread.enter(self.source.folder.files())
        ended = time.monotonic()
        self._next_listing = ended + (_IDLE - 1) * (ended - began)

    def _check(self, offset: Any) -> None:
        number = offset.get("files")
        if not isinstance(number, int):
            msg = f"source {self._name!r} reads files, but its position in the checkpoint is {offset!r}"
            hint = "it was a DataFrame there: use flow.source for it, or a new checkpoint."
            raise BadFile(msg, where=self.source.folder.where, hint=hint)
        if number > self._journal.last:
            self._journal.batch(number)  # which is missing

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The shares of the tasks between two offsets."""
        with self.context.reporting():
            numbers = range(start["files"] + 1, end["files"] + 1)
            files = [file for number in numbers for file in self._journal.batch(number)]
        shares = split(files, self.source.tasks, divisible=self.source.folder.divisible)
        return [Share(number, parts) for number, parts in enumerate(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share."""
        assert isinstance(partition, Share)
        source, schema = self.source, self.context.plan.source(self._name).stage.outputs[0]
        with self.context.task():
            rows = source.folder.read(partition.parts, schema, source.columns, source.condition)
            yield from self.context.pack(self._name, rows, partition.value)

    def commit(self, end: Offset) -> None:
        """Batches up to `end` are committed: merge those that no retained batch can read again."""
        with self.context.reporting():
            self._journal.merge(end["files"] - self.context.keep)
