"""Computed columns, conditions and constant rows of collections."""

from __future__ import annotations

from collections.abc import Collection as Listed
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import DIFF
from timely_spark.differential.collections import Collection
from timely_spark.differential.consolidation import lasting
from timely_spark.graph import Stateless, Vertex
from timely_spark.sql import BoundExpression
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

Computed: TypeAlias = BoundExpression
"""An expression over the columns of a relation."""


class Compute(Stateless):
    """Compute columns, and keep `DIFF`."""

    def __init__(self, columns: Mapping[str, str | Computed], schema: pa.Schema) -> None:
        self.columns, self.schema = dict(columns), schema

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Listed[str]:
        """The columns that the expressions read."""
        read = {one for of in self.columns.values() for one in ((of,) if isinstance(of, str) else of.columns)}
        return {*read, DIFF}

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The columns."""
        values = [
            batch.column(of) if isinstance(of, str) else of.evaluate(batch) for of in self.columns.values()
        ]
        return (pa.table([*values, batch.column(DIFF)], schema=self.schema),)


class Keep(Stateless):
    """Keep the rows for which a condition is true."""

    def __init__(self, condition: Computed) -> None:
        self.expression = condition

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Listed[str]:
        """The condition's columns, too."""
        return {*columns, *self.expression.columns}

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The rows that pass: null is not true."""
        return (batch.filter(self.expression.evaluate(batch)),)


def with_columns(collection: Collection, columns: Mapping[str, str | Computed]) -> Collection:
    """A collection's records with computed columns instead of their own."""
    if all(isinstance(of, str) for of in columns.values()):
        if list(columns.items()) == [(name, name) for name in collection.schema.names]:
            return collection
        return collection.select(dict(columns))
    total = all(isinstance(of, str) or not of.fails for of in columns.values())
    source = collection if total else lasting(collection)
    given = source.schema
    kinds = [given.field(of).type if isinstance(of, str) else of.type for of in columns.values()]
    schema = pa.schema([*zip(columns, kinds, strict=True), (DIFF, pa.int64())])
    stream = source.stream.then(
        "select",
        [schema],
        vertex=Compute(columns, schema),
        keeps={name: of for name, of in columns.items() if isinstance(of, str)} | {DIFF: DIFF},
        detail=", ".join(name if of == name else f"{of} AS {name}" for name, of in columns.items()),
        own=(DIFF,),
    )[0]
    return source.like(stream)


def keep(collection: Collection, condition: Computed) -> Collection:
    """The records for which a condition is true."""
    source = lasting(collection) if condition.fails else collection
    schema = source.stream.schema
    stream = source.stream.then(
        "where",
        [schema],
        vertex=Keep(condition),
        keeps={name: name for name in schema.names},
        detail=str(condition),
        own=(DIFF,),
    )[0]
    return source.like(stream, once=source.once)


class SendRows(Vertex):
    """Send constant rows once, in the first epoch."""

    initial = (0,)
    per_time = True

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Nothing: the input only says when the flow begins."""

    def on_notify(self, time: Timestamp) -> None:
        """Send the rows."""
        if self.worker == 0 and self.rows.num_rows:
            self.send_by(0, time, self.rows)


def constant_rows(anchor: Stream, rows: pa.Table) -> Collection:
    """A collection that has the same rows in all epochs.

    Args:
        anchor: any stream outside of loops; none of its records is read.
        rows: the rows.
    """
    none = anchor.select(one=pc.scalar(1)).where(pc.scalar(False))  # noqa: FBT003 - a constant
    table = rows.append_column(DIFF, pa.array(np.ones(rows.num_rows, np.int64)))
    stream = none.then("values", [table.schema], vertex=SendRows(table), own=(DIFF,))[0]
    return Collection(stream)
