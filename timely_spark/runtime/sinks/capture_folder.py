"""`CaptureFolderSink`: writes the epochs of a stream, its schema and its end, for another flow to replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks.folder import COMPLETE, FolderSink, Writer, WrittenFormat
from timely_spark.runtime.sinks.sink import Output, Parts
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.published import Published, epoch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An empty table with the stream's schema, whose metadata have the end of windows.
SCHEMA = "_schema.arrow"
END_OF_WINDOWS = b"timely_end_of_windows"


@dataclass
class CaptureFolderSink(FolderSink):
    """Writes each epoch to one file, as `FolderSink` does, in the stream's own types and columns.

    The epoch is in the file's name. The file of an epoch appears after those of all epochs before it, and the
    mark of the end after all of them.
    """

    format: WrittenFormat = "arrow"
    #: Of a published collection: the seconds of a reader's hold, and the column of differences.
    lease: float | None = None
    diff: str = ""
    #: The columns by which a published collection is arranged; none if it is not.
    arranged: tuple[str, ...] = ()
    #: The epoch in which windows of the stream close at the end: no record of windows before it is later.
    end_of_windows: int = 0

    @property
    def _published(self) -> Published | None:
        if self.lease is None:
            return None
        return Published(Files(self.path), self.lease, self.diff, self.arranged)

    def prepare(self, session: SparkSession | None, output: Output, checkpoint: str, identity: str) -> None:
        self._begin(output, identity)

    def claim(self, session: SparkSession | None, output: Output) -> None:
        """Own the folder, and write the schema, so that a flow that replays can be built at once."""
        super().claim(session, output)
        empty = output.schema.with_metadata({END_OF_WINDOWS: str(self.end_of_windows)}).empty_table()
        Files(self.path).write_table(SCHEMA, empty, durable=True)
        if self._published is not None:
            self._published.declare()

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write a file for each epoch, and keep the folder of a published collection short."""
        super().deliver(session, version, parts)
        if self._published is not None:
            self._published.compact()

    def complete(self) -> None:
        self._check_own(self._owner())
        Files(self.path).write(COMPLETE, b"", durable=True)

    def write(self, epoch: int, table: pa.Table) -> None:
        """Write one epoch, as `deliver` does."""
        self._writer(epoch, table.schema)([table])
        if self._published is not None:
            self._published.compact()

    def _writer(self, epoch: int, schema: pa.Schema) -> Writer:
        files = Files(self.path)
        if files.exists(COMPLETE) and epoch > max(map(epoch_of, files.names(".")), default=-1):
            raise OutputMismatch.ended(self.path, epoch)
        return Writer(files, self._name(epoch), self.format, schema)
