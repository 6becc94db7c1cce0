"""Epochs as files of a folder: one file each, named by its epoch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark.runtime.delivery import arrow_schema
from timely_spark.runtime.errors import OutputMismatch, TableTaken
from timely_spark.runtime.files import Files
from timely_spark.runtime.query import numbered, portions
from timely_spark.runtime.sinks import EPOCH, Output, Parts, stamped, with_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Format = Literal["parquet", "arrow", "csv"]
#: Says whose files they are; readers pass over names that begin like this.
_OWNER = "_timely_spark.json"
#: Rows of a row group, or record batch.
_GROUP = 1 << 20


@dataclass
class FolderSink:
    """Writes each epoch to one file, whole or not at all, and the same one when it comes again.

    Exactly once for who reads the folder. A large epoch is written by one of Spark's tasks.

    Columns:
        epoch long, then the stream's own

    Args:
        path: the folder, a path or URI as `Files` takes it, which driver and executors see.
        format: parquet, arrow (an IPC file) or csv.
        overwrite: remove the files that a flow with another checkpoint wrote there.
    """

    path: str
    format: Format = "parquet"
    overwrite: bool = False

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Makes the folder the checkpoint's own: its epochs begin at 0, and would mix with others'."""
        _, columns = with_epoch(self.path, output.schema)
        nested = [name for name in columns if pa.types.is_nested(output.schema.field(name).type)]
        if self.format == "csv" and nested:
            raise OutputMismatch.nested(self.path, nested)
        files, mine = Files(self.path), {"checkpoint": identity, "output": output.name}
        found = files.read(_OWNER)
        owner = None if found is None else files.parsed(_OWNER, found)
        if owner == mine:
            files.tidy(".")
            return
        names = files.names(".")
        if owner is None and (others := [name for name in names if not name.startswith("_")]):
            raise OutputMismatch.occupied(self.path, others)
        if owner is not None and owner["checkpoint"] == identity:
            raise OutputMismatch.shared(self.path, owner["output"], output.name)
        if owner is not None and not self.overwrite:
            raise TableTaken.by(self.path, found=owner["checkpoint"], mine=identity)
        for name in names:  # before the owner changes: stopped in between, the next start does it again
            if re.fullmatch(r"epoch-\d{20}\.\w+", name):
                files.remove(name)
        files.write(_OWNER, json.dumps(mine).encode())

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Writes a file for each epoch, also if it is empty: so that readers see that it is complete."""
        for part in parts:
            name = f"epoch-{part.epoch:020d}.{self.format}"
            schema = arrow_schema(part.vertex.schema)
            write = _Writer(Files(self.path), name, self.format, part.epoch, schema)
            if part.is_large:
                numbered(part.frame(session)).coalesce(1).mapInArrow(write.as_task, "rows long").collect()
            else:
                write([part.table])

    def complete(self) -> None:
        """Nothing to tell."""


@dataclass(frozen=True)
class _Writer:
    """Writes one file."""

    files: Files
    name: str
    format: Format
    epoch: int
    schema: pa.Schema

    def __call__(self, tables: Iterable[pa.Table]) -> int:
        """Writes the records, in Spark's types, whichever way they come; tells their number."""
        schema = stamped(self.schema.empty_table(), self.epoch, EPOCH).schema
        sink, rows = pa.BufferOutputStream(), 0
        with _open(self.format, sink, schema) as writer:
            for table in tables:
                writer.write_table(stamped(table.cast(self.schema), self.epoch, EPOCH))
                rows += table.num_rows
        self.files.write(self.name, sink.getvalue(), durable=True)
        return rows

    def as_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same for what comes from Spark, in many small batches, its columns `numbered`."""
        tables = portions(batches, _GROUP, lambda batch: batch.num_rows)
        rows = self(table.rename_columns(self.schema.names) for table in tables)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})


def _open(format: Format, sink: Any, schema: pa.Schema) -> Any:
    match format:
        case "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetWriter(sink, schema)
        case "arrow":
            return pa.ipc.new_file(sink, schema)
        case "csv":
            from pyarrow import csv

            return csv.CSVWriter(sink, schema)
