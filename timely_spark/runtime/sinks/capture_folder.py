"""`CaptureFolderSink`: writes the epochs of a stream, its schema and its end, for another flow to replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from timely_spark.runtime.sinks.folder import COMPLETE, FolderSink, Format, Writer
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An empty table, whose schema is that of the stream.
SCHEMA = "_schema.arrow"


@dataclass
class CaptureFolderSink(FolderSink):
    """Writes each epoch to one file, as `FolderSink` does, in the stream's own types and columns.

    The epoch is in the file's name. The file of an epoch appears after those of all epochs before it, and the
    mark of the end after all of them.
    """

    format: Format = "arrow"

    def prepare(self, session: SparkSession | None, output: Output, checkpoint: str, identity: str) -> None:
        """Own the folder, and write the schema, so that a flow that replays can be built at once."""
        self._claim(output, identity)
        Files(self.path).write_table(SCHEMA, output.schema.empty_table(), durable=True)

    def complete(self) -> None:
        """Mark the end."""
        Files(self.path).write(COMPLETE, b"", durable=True)

    def write(self, epoch: int, table: pa.Table) -> None:
        """Write one epoch."""
        self._writer(epoch, table.schema)([table])

    def _writer(self, epoch: int, schema: pa.Schema) -> Writer:
        return Writer(Files(self.path), self._name(epoch), self.format, schema)
