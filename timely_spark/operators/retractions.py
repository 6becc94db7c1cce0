"""Retractions, which `expire` sends among a stream's records: which steps add them up, and which refuse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Stage, caller
from timely_spark.operators.expire import Expire
from timely_spark.operators.rows import computed
from timely_spark.streams import Stream

_SIGNED = "__timely_signed"
"""Values that are negative in retractions."""
EXACT, SIGN = "exact", "_sign"
"""The kind of a sum of doubles; and the end of the name of the column that has the signs of the values."""

ListedAggregates = list[tuple[str, str, str | None]]
"""Aggregates: for each output column its kind and the column it reads."""


def retractions_in(stream: Stream) -> tuple[str, str | None] | None:
    """The step that retracts records of a stream, and the column of signs; None if no step does.

    The column is None if a later step has dropped it.
    """
    signs: dict[str, str | None] = {}
    seen, todo = set(), list[tuple[Stage, str | None, str | None]]()
    for column in [None, *stream.schema.names]:
        todo.append((stream.stage, column, column))
    while todo:
        stage, column, name = todo.pop()
        if (stage, column, name) in seen:
            continue
        seen.add((stage, column, name))
        if isinstance(stage.vertex, Expire):
            if column is None:
                signs.setdefault(stage.name, None)
            elif column == stage.vertex.diff:
                signs[stage.name] = name
        elif (
            stage.is_routing
            or stage.is_stateless
            or stage.keeps is not None
            or (stage.vertex is not None and stage.vertex.keeps_signs)
        ):
            # a function's column of signs is the one that has their name
            old = column if stage.keeps is None or column is None else stage.keeps.get(column)
            into = stream.flow.graph.into(stage)
            todo += [(e.source, old, name) for e in into if old is None or old in e.schema.names]
    return next(iter(signs.items()), None)


def check_changes(batch: pa.Table, diff: str) -> None:
    """Check that each record of a batch says by how much its multiplicity changes."""
    if nulls := batch.column(diff).null_count:
        msg = f"{nulls} records have a null {diff!r}, their change of multiplicity"
        raise SchemaError(msg, hint="fill the column, or filter such records out.")


def check_no_retractions(operator: str, *streams: Stream) -> None:
    """Refuse streams with retractions, which an operator of records would take for records."""
    for stream in streams:
        if (source := retractions_in(stream)) is not None:
            why = f"{operator} takes them for records"
            raise _refused(why, *source, operator=operator)


def _refused(why: str, step: str, diff: str | None, *, operator: str) -> GraphError:
    if diff is None:
        hint = "keep the column of signs that expire adds, and use .collection(diff=...) with it."
    else:
        hint = f"use the operators of collections, behind .collection(diff={diff!r})."
    msg = f"{operator}: its input has retractions of step {step!r}, and {why}"
    return GraphError(msg, where=caller(), hint=hint)


def with_signs(
    stream: Stream, keys: tuple[str, ...], listed: ListedAggregates
) -> tuple[Stream, ListedAggregates]:
    """A stream with retractions, and its aggregates, as sums of values with signs; others as they are."""
    if (source := retractions_in(stream)) is None:
        return stream, listed
    values: dict[str, Any] = {}
    signed: ListedAggregates = []
    for number, (out, kind, column) in enumerate(listed):
        diff = source[1]
        if diff is None or kind not in {"sum", "count"}:
            why = f"{kind} cannot subtract them"
            raise _refused(why, *source, operator="aggregate")
        new, types = f"{_SIGNED}{number}", [stream.schema.field(one).type for one in (column or diff, diff)]
        if kind == "sum" and pa.types.is_floating(types[0]) and pa.types.is_integer(types[1]):
            values |= {new: column, f"{new}{SIGN}": pc.coalesce(pc.field(diff).cast(pa.int64()), 0)}
            signed.append((out, EXACT, new))
        else:
            values[new] = _value(stream.schema, kind, column, diff)
            signed.append((out, "sum", new))
    return computed(stream, *keys, values, own=[*keys, *values]), signed


def _value(schema: pa.Schema, kind: str, column: str | None, diff: str) -> Any:
    """The summand of a record in a sum or a count."""
    sign: Any = pc.field(diff)
    if column is None or kind == "count":
        one = sign.cast(pa.int64())
        zero = pc.scalar(pa.scalar(0, pa.int64()))
        return one if column is None else pc.if_else(pc.is_valid(pc.field(column)), one, zero)
    if column == diff:
        return sign
    value_type = schema.field(column).type
    if pa.types.is_decimal(value_type):  # room for the product
        wide = pc.field(column).cast(pa.decimal256(38, value_type.scale))
        return pc.multiply_checked(wide, sign.cast(pa.decimal256(19, 0))).cast(value_type)
    value_type = value_type if pa.types.is_floating(value_type) else pa.int64()
    return pc.multiply_checked(pc.field(column).cast(value_type), sign.cast(value_type))
