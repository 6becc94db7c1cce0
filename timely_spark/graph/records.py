"""Records that users give, and that their functions return, as Arrow tables; no value changes in silence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError, shorten
from timely_spark.graph.schema import PLAIN, UNITS, describe, entries_of, inner_fields, plain_type


def as_table(records: Any, schema: pa.Schema, *, of: str | None = None, projected: bool = False) -> pa.Table:
    """Convert records to an Arrow table of a declared schema.

    Records are Arrow, pandas, an iterable of rows (tuples, dicts, scalars), or a mapping of columns to lists
    of one length. Arrow tables and frames are copied. Named columns are matched by name: each one of the
    schema, and no other. A lossy conversion raises an error, which names `of`, the receiver of the records;
    so does a time without a zone for a column of times with one.

    Args:
        records: in one of these forms.
        schema: the columns and types of the result.
        of: what gets the records, for errors.
        projected: whether other columns of a table or frame are left out. That suits results of functions,
            which often add columns to the batch that they got. From the outside such a column would be lost.

    Example:
        >>> from timely_spark.graph import as_schema
        >>> as_table([(1, "a"), {"id": 2, "name": "b"}], as_schema("id long, name string")).to_pylist()
        [{'id': 1, 'name': 'a'}, {'id': 2, 'name': 'b'}]
    """
    if hasattr(records, "sparkSession") or hasattr(records, "toArrow"):
        msg = f"{of + ': ' if of else ''}a Spark DataFrame is not sent: its records are not in this process"
        hint = "give frame.toArrow() of a small one; or flow.source(name, frame) of a stream."
        raise SchemaError(msg, hint=hint)
    try:
        if isinstance(records, pa.RecordBatch):
            records = pa.Table.from_batches([records])
        if projected:
            records = _projected(records, schema.names)
        if isinstance(records, pa.Table):
            return _copied(_cast(records, schema) if records.schema != schema else records)
        if hasattr(records, "itertuples"):
            return _copied(_from_frame(records, schema))
        if isinstance(records, str | bytes) or not hasattr(records, "__iter__"):
            msg = f"{records!r} is one value, not rows"
            raise TypeError(msg)  # noqa: TRY301 - one message for all errors
        if isinstance(records, Mapping):
            return _from_columns(records, schema)
        rows = [_row(record, schema) for record in records]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.table(
            [_column(column, field) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
    except (KeyError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        msg = f"{of + ': ' if of else ''}records do not fit the schema ({describe(schema)}): {error}"
        hint = "give every column of the schema and no other, with values of its type."
        raise SchemaError(msg, hint=hint) from error


def _copied(table: pa.Table) -> pa.Table:
    """A copy of the table: its arrays may be numpy's, and the user may write to them again."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _projected(records: Any, names: list[str]) -> Any:
    """A table or frame without columns of other names; anything else as it is."""
    if isinstance(records, pa.Table):
        return records.drop_columns([name for name in {*records.column_names} if name not in names])
    if hasattr(records, "itertuples"):
        return records.loc[:, [name in names for name in records.columns]]
    return records


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema, cast; values that a cast would change are refused."""
    _check_names(table.column_names, schema, "a table")
    chosen = table.select(schema.names)
    for index, kind in enumerate(chosen.schema.types):
        if pa.types.is_dictionary(kind) and kind.value_type in PLAIN:  # which Arrow does not decode
            chosen = chosen.set_column(index, schema.names[index], _with_plain_values(chosen.column(index)))
    return pa.table(
        [_cast_column(column, field) for column, field in zip(chosen.columns, schema, strict=True)],
        schema=schema,
    )


def _cast_column(before: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column of another type, cast; values that a cast would change are refused."""
    _check_kinds(before.type, field.type, field.name)
    try:
        after = before.cast(field.type)
    except pa.ArrowException as error:
        msg = f"column {field.name!r} has values of type {before.type}, not {field.type}: {error}"
        raise ValueError(msg) from error
    _check_cast(before, after, field)
    return after


def _with_plain_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories of plain values."""
    parts = [(part.indices, part.dictionary.cast(plain_type(column.type))) for part in column.chunks]
    kind = pa.dictionary(column.type.index_type, plain_type(column.type), column.type.ordered)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(*part) for part in parts], kind)


def _from_frame(frame: Any, schema: pa.Schema) -> pa.Table:
    """The table of a pandas frame; missing values, NaN among them, are null."""
    _check_names(frame.columns, schema, "a frame")
    if not frame.columns.is_unique:
        msg = f"columns {[*frame.columns]} are not unique"
        raise ValueError(msg)
    if not len(frame):  # its columns have any types
        return schema.empty_table()
    return pa.table([_of_series(frame[field.name], field) for field in schema], schema=schema)


def _of_series(values: Any, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if values.dtype == object:
        _check_column(tuple(values[values.notna()]), field)
    else:
        before = pa.chunked_array([pa.array(values, from_pandas=True)])
        _check_kinds(before.type, field.type, field.name)
        if _drops(before.type, field.type):
            return _cast_column(before, field)  # the date of a time zone; `from_pandas` takes that of UTC
    try:
        return pa.array(values, field.type, from_pandas=True)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def _check_cast(before: pa.ChunkedArray, after: pa.ChunkedArray, field: pa.Field) -> None:
    """Check that a cast which Arrow takes for safe has changed no value."""
    if not _drops(before.type, field.type):
        return
    with contextlib.suppress(pa.ArrowException):
        ends = np.cumsum([len(chunk) for chunk in before.chunks]).tolist()
        parts = (after.slice(end - len(one), len(one)) for end, one in zip(ends, before.chunks, strict=True))
        if all(_same(one, part.combine_chunks()) for one, part in zip(before.chunks, parts, strict=True)):
            return
    msg = f"column {field.name!r}: values of type {before.type} would lose a part as {field.type}"
    raise ValueError(msg)


def _same(before: pa.Array, after: pa.Array) -> bool:
    """Whether the parts that a cast may drop are the same when cast back; times are those of their zone."""
    own, other = before.type, after.type
    if before.null_count == len(before) or not _drops(own, other):
        return True
    if pa.types.is_dictionary(own):
        return _same(before.dictionary_decode(), after)
    if pa.types.is_struct(own):
        parts = dict(zip((field.name for field in inner_fields(other)), after.flatten(), strict=True))
        return all(
            _same(part, parts[field.name]) if field.name in parts else part.null_count == len(part)
            for field, part in zip(inner_fields(own), before.flatten(), strict=True)
        )
    if pa.types.is_map(own):
        before, after = (one.cast(entries_of(one.type)) for one in (before, after))
    if pa.types.is_nested(own):
        return _same(before.flatten(), after.flatten())
    local = pc.local_timestamp(before) if pa.types.is_timestamp(own) and own.tz else before
    return bool(after.cast(local.type).equals(local))


def _drops(own: pa.DataType, to: pa.DataType) -> bool:
    """Whether Arrow's safe cast may drop parts of a value: of a number, a date, a time of day, a field."""
    if pa.types.is_dictionary(own):
        return _drops(own.value_type, to)
    if pa.types.is_boolean(to):
        return bool(pa.types.is_integer(own) or pa.types.is_floating(own))
    if pa.types.is_date(to) or pa.types.is_time(to):
        return bool(pa.types.is_timestamp(own))
    if pa.types.is_struct(own) and pa.types.is_struct(to):
        wanted = {field.name: field.type for field in inner_fields(to)}
        return any(
            field.name not in wanted or _drops(field.type, wanted[field.name]) for field in inner_fields(own)
        )
    inner, others = _compared(own), _compared(to)
    return len(inner) == len(others) and any(
        _drops(a.type, b.type) for a, b in zip(inner, others, strict=True)
    )


def _compared(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside of a type; the names that a map has for its keys and values do not count."""
    return inner_fields(entries_of(kind) if pa.types.is_map(kind) else kind)


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    listed = {name: values for name, values in columns.items() if hasattr(values, "__len__")}
    _check_names(columns, schema, "a mapping of columns")
    if any(name not in listed or isinstance(listed[name], str | bytes | Mapping) for name in columns):
        msg = "a mapping of columns has a list of values for each; one row is [{...}]"
        raise ValueError(msg)
    if len({len(values) for values in listed.values()}) > 1:
        msg = f"the columns differ in length: { {name: len(values) for name, values in listed.items()} }"
        raise ValueError(msg)
    return pa.table([_column(tuple(listed[field.name]), field) for field in schema], schema=schema)


def _column(values: tuple[Any, ...], field: pa.Field) -> pa.Array:
    _check_column(values, field)
    try:
        return pa.array(values, type=field.type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        msg = f"column {field.name!r}: {_unfit(values, field.type)}: {error}"
        raise ValueError(msg) from error


def _check_column(values: tuple[Any, ...], field: pa.Field) -> None:
    """Check what Arrow would change in the values of a column."""
    kind = field.type
    if not (pa.types.is_integer(kind) or pa.types.is_nested(kind) or pa.types.is_temporal(kind)):
        return
    try:
        for value in values:
            _check_lossless(value, kind)
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from None


def _check_lossless(value: Any, kind: pa.DataType) -> None:
    """Check what Arrow would change.

    It drops fractions, also of seconds, times of day and unknown fields, takes a text for a list, and before
    numpy 2.3 a list of one number for this number.
    """
    if isinstance(value, np.ndarray) and value.ndim and not pa.types.is_nested(kind):
        msg = f"{shorten(value.tolist())} is a list, not of type {kind}"
        raise ValueError(msg)
    if pa.types.is_temporal(kind) and isinstance(value, Number) and not isinstance(value, np.timedelta64):
        msg = f"{value!r} is a number, not of type {kind}"
        raise ValueError(msg)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        _check_instant(value, kind)
        fraction = isinstance(value, float | np.floating) and not value.is_integer()
        if fraction or (isinstance(value, Decimal) and value != value.to_integral_value()):
            msg = f"{value!r} is not an integer"
            raise ValueError(msg)
    elif pa.types.is_nested(kind) and isinstance(value, str | bytes):
        msg = f"{shorten(value)} is one value, not a list"
        raise ValueError(msg)
    elif pa.types.is_nested(kind):
        for one, own in _parts(value, kind):
            _check_lossless(one, own)


def _check_instant(value: Any, kind: pa.DataType) -> None:
    if isinstance(value, datetime | np.datetime64) and pa.types.is_timestamp(kind) and value == value:  # noqa: PLR0124
        _check_zone(getattr(value, "tzinfo", None) is not None, kind, repr(value))
    if not isinstance(value, datetime | time | timedelta) or value != value:  # noqa: PLR0124 - pandas' NaT
        return
    if pa.types.is_date(kind) and isinstance(value, datetime) and value.time() != time.min:
        msg = f"{value} has a time of day, which a date has not"
        raise ValueError(msg)
    if (unit := getattr(kind, "unit", None)) and _subsecond(value) % UNITS[unit]:
        msg = f"{value!r} has a part smaller than a unit of {kind}"
        raise ValueError(msg)


def _check_zone(zoned: bool, kind: pa.TimestampType, what: str) -> None:  # noqa: FBT001
    """Check that a time keeps its zone, or gets none: nobody can tell which one is meant."""
    if zoned and kind.tz is None:
        msg = f"{what} has a time zone, and a timestamp_ntz has none; declare the column as timestamp"
        raise ValueError(msg)
    if not zoned and kind.tz is not None:
        msg = (
            f"{what} has no time zone, and a timestamp has one; say which, as by tzinfo=timezone.utc, or "
            "declare the column as timestamp_ntz"
        )
        raise ValueError(msg)


def _check_kinds(own: pa.DataType, to: pa.DataType, column: str) -> None:
    """Check that no cast reads a text, counts a time's units, or changes its zone, also inside of others."""
    if pa.types.is_dictionary(own):
        return _check_kinds(own.value_type, to, column)
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(to):
        return _check_zone(own.tz is not None, to, f"column {column!r}, of type {own},")
    rounds = any(pa.types.is_floating(a) and pa.types.is_decimal(b) for a, b in ((own, to), (to, own)))
    if rounds or (_kind(own) != _kind(to) and not pa.types.is_null(own)):
        msg = f"column {column!r} has values of type {own}, not {to}"
        raise ValueError(msg)
    inner, others = _compared(own), _compared(to)
    if pa.types.is_struct(own) and pa.types.is_struct(to):
        by_name = {field.name: field for field in others}
        inner = [field for field in inner if field.name in by_name]
        others = [by_name[field.name] for field in inner]
    for a, b in zip(inner, others, strict=False):
        _check_kinds(a.type, b.type, column)
    return None


def _kind(kind: pa.DataType) -> object:
    """The kind of a type's values. A value is cast to another type only if both types are of one kind."""
    kind = getattr(kind, "storage_type", kind)
    return next((name for name, types in _KINDS.items() if any(each(kind) for each in types)), kind.id)


_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "number": (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "moment": (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time),
    "list": (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_map,
    ),  # without views of lists: Arrow's cast to a list loses elements
}


def _subsecond(value: datetime | time | timedelta) -> int:
    """The nanoseconds since the last whole second; only the types of pandas have some below 1000."""
    if isinstance(value, timedelta):
        return value.microseconds * 1000 + int(getattr(value, "nanoseconds", 0))
    return value.microsecond * 1000 + int(getattr(value, "nanosecond", 0))


def _parts(value: Any, kind: pa.DataType) -> Iterable[tuple[Any, pa.DataType]]:
    """The parts of a nested value, each with the type that it gets."""
    if not isinstance(value, Iterable):
        return ()
    if pa.types.is_map(kind):
        pairs = [*value.items()] if isinstance(value, Mapping) else [*value]
        two = [pair for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2]
        return [part for a, b in two for part in ((a, kind.key_type), (b, kind.item_type))]
    if pa.types.is_struct(kind):
        fields = inner_fields(kind)
        if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            value = dict(value)  # Arrow takes pairs of a name and a value, too
        if isinstance(value, tuple):
            return zip(value, (field.type for field in fields), strict=False)
        if not isinstance(value, Mapping):
            return ()
        if unknown := sorted(map(str, value.keys() - {field.name for field in fields})):
            msg = f"{shorten(dict(value))} has unknown fields {unknown}"
            raise ValueError(msg)
        return ((value.get(field.name), field.type) for field in fields)
    inner = getattr(kind, "value_type", None)
    return () if inner is None else ((one, inner) for one in value)


def _unfit(values: tuple[Any, ...], kind: pa.DataType) -> str:
    """A message about the first value that is not of a type."""
    fits = 0
    with contextlib.suppress(ValueError, TypeError, OverflowError, pa.ArrowException):
        for value in values:
            pa.array([value], type=kind)
            fits += 1
    return (
        f"{shorten(values[fits])} is not of type {kind}"
        if fits < len(values)
        else f"the values are not of type {kind}"
    )


def _row(record: Any, schema: pa.Schema) -> tuple[Any, ...]:
    if isinstance(record, Mapping):
        _check_names(record, schema, record)
        return tuple(record[name] for name in schema.names)
    row = record if isinstance(record, tuple | list) else (record,)
    if len(row) != len(schema):
        has = f"has {len(row)} values" if row is record else "is one value, not a tuple, list or dict"
        msg = f"{shorten(record, 200)} {has} for {len(schema)} columns"
        raise ValueError(msg)
    return tuple(row)


def _check_names(names: Iterable[str], schema: pa.Schema, what: str | Mapping[str, Any]) -> None:
    """Check that records have each column of a schema, and no other, which would be lost."""
    names = dict.fromkeys(names)
    unknown, missing = names.keys() - set(schema.names), [n for n in schema.names if n not in names]
    if unknown or missing:
        has = f"has no {', '.join(map(repr, missing))}" if missing else "has"
        more = f" unknown columns {sorted(map(str, unknown))}" if unknown else ""
        shown = what if isinstance(what, str) else shorten(dict(what), 200)
        msg = f"{shown} {has}{' but' if missing and more else ''}{more}"
        raise ValueError(msg)
