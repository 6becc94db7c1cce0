"""`FolderSink`: writes each epoch to one file of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from timely_spark.errors import LogDamaged, StorageFailed
from timely_spark.graph import describe
from timely_spark.graph.schema import without_nan
from timely_spark.runtime.batches import numbered, portions
from timely_spark.runtime.errors import OutputMismatch, TableTaken
from timely_spark.runtime.sinks.delivery import arrow_schema
from timely_spark.runtime.sinks.sink import (
    EPOCH,
    Output,
    Parts,
    Sink,
    real_place,
    with_epoch,
    with_epoch_column,
)
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.stores import first_rows
from timely_spark.state.hashing import hashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WrittenFormat = Literal["parquet", "arrow", "csv"]
"""The formats of files that outputs have."""
#: The owner of the files; readers ignore names that begin with an underscore.
OWNER = "_timely_spark.json"
#: Marks the end of a capture: there is no later epoch.
COMPLETE = "_complete"
_EPOCH = re.compile(r"(?:epoch|snapshot)-(\d{20})\.\w+")
#: Rows of a row group, or record batch.
_GROUP = 1 << 20


@dataclass
class FolderSink(Sink):
    """Writes each epoch to one file atomically; a repeated delivery writes the same file.

    So readers of the folder see each epoch exactly once. One of Spark's tasks writes a large epoch. The
    fields are the arguments of `Stream.to_files`; driver and executors see the path.
    """

    path: str
    format: WrittenFormat = "parquet"
    overwrite: bool = False
    grouped: ClassVar[bool] = True
    #: the last epoch that this run has written; -1 before its first delivery
    _reached: int = field(default=-1, init=False, repr=False, compare=False)

    @property
    def place(self) -> str:
        return self.path

    def resolved(self, session: SparkSession | None) -> str:
        return real_place(self.path)

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Check that the folder is, or may become, this output's: other files may have its names."""
        _, columns = with_epoch(self.path, output.schema)
        nested = [name for name in columns if pa.types.is_nested(output.schema.field(name).type)]
        if self.format == "csv" and nested:
            msg = f"{self.path}: columns {nested} are nested, which csv has no form for."
            hint = 'write to_files(format="parquet"), or select the fields inside them.'
            raise OutputMismatch(msg, hint=hint)
        self._begin(output, identity)

    def _begin(self, output: Output, identity: str) -> None:
        self._own, self._reached = {"checkpoint": identity, "output": output.name}, -1
        owner = self._check(output)
        self.replaces = owner is not None and owner["checkpoint"] != identity

    def _columns(self, output: Output) -> str:
        return f"{describe(output.schema)} in {self.format}"

    def _check(self, output: Output) -> dict[str, Any] | None:
        """Refuse a folder that this output may not write to; returns what the folder says of its owner."""
        own, identity, columns = self._own, self._own["checkpoint"], self._columns(output)
        owner = self._owner()
        if owner is not None and own.items() <= owner.items():
            if (stored := owner.get("columns", columns)) != columns:
                raise OutputMismatch.columns(output.name, stored=stored, now=columns)
            return owner
        if owner is not None and owner["checkpoint"] == identity:
            raise OutputMismatch.in_one_folder(self.path, owner["output"], output.name)
        if output.resumed:
            raise OutputMismatch.lost(self.path)
        names = Files(self.path).names(".")
        if owner is None and (others := [name for name in names if not name.startswith("_")]):
            msg = (
                f"{self.path} holds other files, such as {others[0]!r}, which would be read with the epochs."
            )
            raise OutputMismatch(msg, hint="write to a folder of the output's own.")
        if owner is not None and not self.overwrite:
            raise TableTaken.by(self.path, other=owner["checkpoint"], own=identity)
        return owner

    def claim(self, session: SparkSession | None, output: Output) -> None:
        files = Files(self.path)
        if (self._check(output) or {}).items() >= self._own.items():
            files.tidy(".")
            return
        # before the owner changes, so that the next start repeats an interrupted removal
        for name in files.names("."):
            if _EPOCH.fullmatch(name) or name == COMPLETE:
                files.remove(name)
        files.write(OWNER, json.dumps({**self._own, "columns": self._columns(output)}).encode(), durable=True)

    def written(self, most: int) -> pa.Table | None:
        files = Files(self.path)
        if not files.local or (last := self.last()) < 0:
            return None
        return first_rows(files.path(self._name(last)), most)

    def last(self) -> int:
        matches = map(_EPOCH.fullmatch, Files(self.path).names("."))
        return max((int(match[1]) for match in matches if match), default=-1)

    def _owner(self) -> dict[str, Any] | None:
        """What the folder says of its output; None if it says nothing."""
        files = Files(self.path)
        try:
            content = files.read(OWNER)
            return None if content is None else files.parsed(OWNER, content)
        except LogDamaged as damaged:  # of a checkpoint, whose hint would not help
            if isinstance(reason := damaged.__cause__, OSError):
                raise StorageFailed.of(files.path(OWNER), reason, "read") from reason
            raise OutputMismatch.unreadable(files.path(OWNER), reason) from reason

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write a file for each epoch, also an empty one, so that readers see which epochs are complete."""
        self._check_own(self._owner())
        reached = self._reached
        for part in parts:
            # in the first delivery the file may be there: the run before has written it, and then ended
            new = -1 < reached < part.epoch
            write = replace(self._writer(part.epoch, part.vertex.schema), new=new)
            self._reached = max(self._reached, part.epoch)
            if part.is_large:
                numbered(part.frame(session)).coalesce(1).mapInArrow(write.as_task, "rows long").collect()
            else:
                write([part.table])

    def _writer(self, epoch: int, schema: pa.Schema) -> Writer:
        return Writer(Files(self.path), self._name(epoch), self.format, arrow_schema(schema), epoch)

    def _name(self, epoch: int) -> str:
        return f"epoch-{epoch:020d}.{self.format}"


@dataclass(frozen=True)
class Writer:
    """Writes the file of one epoch."""

    files: Files
    name: str
    format: WrittenFormat
    schema: pa.Schema
    #: for the column of epochs; None means without the column
    epoch: int | None = None
    #: whether only another run can have written the file, if it exists
    new: bool = False

    def __call__(self, tables: Iterable[pa.Table]) -> int:
        """Write the records in Spark's types; returns the number of rows."""
        schema = self._with_epoch(self.schema.empty_table()).schema
        sink, rows = pa.BufferOutputStream(), 0
        with _open(self.format, sink, schema) as writer:
            for table in tables:
                writer.write_table(self._with_epoch(table.cast(self.schema)))
                rows += table.num_rows
        content = sink.getvalue()
        if self.new and self._has_others(content.to_pybytes()):
            raise OutputMismatch.shared(self.files.path(self.name))
        self.files.write(self.name, content, durable=True)
        return rows

    def _has_others(self, content: bytes) -> bool:
        """Whether the file has other records; a run that lost the checkpoint may have written the same."""
        present = self.files.read(self.name)
        if present is None or present == content:
            return False
        try:
            return _records(self.format, present) != _records(self.format, content)
        except pa.ArrowException:
            return True

    def _with_epoch(self, table: pa.Table) -> pa.Table:
        return table if self.epoch is None else with_epoch_column(table, self.epoch, EPOCH)

    def as_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the records in a Spark task, from batches with `numbered` columns."""
        tables = portions(batches, _GROUP, lambda batch: batch.num_rows)
        rows = self(table.rename_columns(self.schema.names) for table in tables)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})


def _records(format: WrittenFormat, content: bytes) -> list[Any]:
    """The lines or the records' hashes of a file, sorted: a run repeats records in another order."""
    match format:
        case "parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(pa.BufferReader(content))
        case "arrow":
            table = pa.ipc.open_file(content).read_all()
        case "csv":
            return sorted(content.splitlines())
    return sorted(hashes(table, table.schema.names).tolist())


def _open(format: WrittenFormat, sink: Any, schema: pa.Schema) -> Any:
    match format:
        case "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetWriter(sink, schema, write_statistics=without_nan(schema))
        case "arrow":
            return pa.ipc.new_file(sink, schema)
        case "csv":
            from pyarrow import csv

            return csv.CSVWriter(sink, schema)
