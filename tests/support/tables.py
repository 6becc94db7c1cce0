"""What is in a Delta table, read without a job of Spark's, which takes a second; and what a sink gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable

from timely_spark.operators.output_vertex import OutputVertex
from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import to_bytes

S = TypeVar("S", bound=Any)


def rows_of(table: str | Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table, in order; of all columns unless some are named."""
    opened = DeltaTable(str(table))
    assert "delta.columnMapping.mode" not in opened.metadata().configuration, "delta-rs would find nulls"
    read = opened.to_pyarrow_table(columns=list(columns) or None)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True))


def operations(table: str | Path) -> list[str]:
    """The operation of each commit, newest first."""
    return [commit["operation"] for commit in DeltaTable(str(table)).history()]


def records(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def prepared(session: Any, sink: S, schema: pa.Schema, identity: str = "one", output: str = "out") -> S:
    """The sink of an output, at a start of its flow."""
    to = Output(name=output, vertex=OutputVertex(schema), sink=sink)
    sink.prepare(session, to, "/nowhere", identity)
    sink.claim(session, to)
    return sink


def part(epoch: int, *tables: pa.Table, vertex: OutputVertex | None = None) -> Delivery:
    """The records of an epoch, from several workers."""
    payloads = [*map(to_bytes, tables)]
    return Delivery(epoch, payloads, Blobs(Files("/nowhere")), vertex or OutputVertex(tables[0].schema))
