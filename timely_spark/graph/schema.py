"""Schemas: parsing, checks of columns, and conversion of records to Arrow tables."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError, Where, shorten

_TYPES: dict[str, pa.DataType] = {
    name: kind
    for names, kind in (
        ("boolean", pa.bool_()),
        ("byte tinyint", pa.int8()),
        ("short smallint", pa.int16()),
        ("int integer", pa.int32()),
        ("long bigint", pa.int64()),
        ("float real", pa.float32()),
        ("double", pa.float64()),
        ("string varchar char character", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp timestamp_ltz", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
    )
    for name in names.split()
}
#: text types with a length, which Arrow ignores
_TEXTS = frozenset({"varchar", "char", "character"})
_TOKEN = re.compile(r"""\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:])""")

#: nanoseconds in Arrow's units of time
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

#: The prefix of reserved column names.
RESERVED = "__timely_"

SchemaLike: TypeAlias = pa.Schema | str | Mapping[str, Any]
"""A schema: Spark DDL (``"node long, name string"``), an Arrow schema, a mapping of names to types, or a
`StructType` of Spark."""


def as_schema(schema: SchemaLike) -> pa.Schema:
    """Convert a `SchemaLike` to an Arrow schema.

    Metadata, nullability and dictionaries are dropped: schemas are equal if names and types are, and a
    column of categories is one of their values. Views of texts and bytes, and doubles of 16 bits, are stored
    as plain columns and floats: Arrow compares and takes no others.

    Example:
        >>> as_schema("src long, dst long, tags array<string>")
        src: int64
        dst: int64
        tags: list<element: string>
          child 0, element: string
    """
    if isinstance(schema, pa.Schema):
        fields = [(field.name, field.type) for field in schema]
    elif isinstance(schema, str):
        fields = list(_parse_fields(_Tokens(schema), end=""))
    elif isinstance(schema, Mapping):
        fields = [(name, _as_type(kind, name)) for name, kind in schema.items()]
    elif isinstance(described := _described(schema), Mapping) and described.get("type") == "struct":
        fields = [(field["name"], _of_spark(field["type"], field["name"])) for field in described["fields"]]
    else:
        msg = f"a schema cannot be read from {type(schema).__name__}"
        raise SchemaError(msg, hint="write DDL such as 'node long, name string'.")
    names = [name for name, _ in fields]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        msg = f"the schema names {twice} more than once"
        raise SchemaError(msg, hint="rename columns first.")
    return pa.schema([pa.field(name, _plain(kind)) for name, kind in fields])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is stored."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    inner = [field.with_type(_plain(field.type)) for field in _fields_of(kind)]
    if inner == _fields_of(kind):
        return _PLAIN.get(kind, kind)
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    if pa.types.is_map(kind):
        return pa.map_(*inner[0].type, keys_sorted=kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(inner[0])
    lists = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return pa.list_(inner[0], getattr(kind, "list_size", -1)) if lists else kind


_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}


def _described(kind: Any) -> Any:
    """A Spark type as JSON; None for other objects."""
    return kind.jsonValue() if hasattr(kind, "jsonValue") and not isinstance(kind, type) else None


def _as_type(kind: Any, column: str) -> Any:
    if isinstance(kind, str):
        return _whole_type(_Tokens(kind))
    described = _described(kind)
    if described is None and not isinstance(kind, pa.DataType):
        msg = f"column {column!r}: {kind!r} is no type"
        raise SchemaError(msg, hint="write a type as in DDL, such as 'long', or give one of pyarrow's.")
    return kind if described is None else _of_spark(described, column)


def _of_spark(kind: Any, column: str) -> pa.DataType:
    """The Arrow type of a Spark type in JSON."""
    shape = kind["type"] if isinstance(kind, Mapping) else kind
    if shape == "array":
        return pa.list_(pa.field("element", _of_spark(kind["elementType"], f"{column}.element")))
    if shape == "map":
        return pa.map_(
            _of_spark(kind["keyType"], f"{column}.key"), _of_spark(kind["valueType"], f"{column}.value")
        )
    if shape == "struct" and kind["fields"]:
        return pa.struct(
            [
                pa.field(field["name"], _of_spark(field["type"], f"{column}.{field['name']}"))
                for field in kind["fields"]
            ]
        )
    try:
        return _whole_type(_Tokens(shape if isinstance(kind, str) else "an object"))
    except SchemaError:
        msg = f"column {column!r} is of Spark's type {shape}, which a flow does not take"
        raise SchemaError(msg, hint="cast the column, or drop it, in the DataFrame.") from None


def check_given(step: str, where: Where, names: Iterable[str], *, known: Collection[str] = ()) -> None:
    """Check that no name is reserved.

    Args:
        known: reserved names that the step's inputs have, or that the library adds.
    """
    if own := [name for name in names if name.startswith(RESERVED) and name not in known]:
        msg = f"{step} has columns {own}: names that begin with {RESERVED!r} are the library's"
        raise SchemaError(msg, where=where, hint="rename them.")


def check_names(step: str, where: Where, schema: pa.Schema, *, known: Collection[str] = ()) -> None:
    """Check that there are columns, none with a reserved name, and that Spark can distinguish the names."""
    if not schema.names:
        msg = f"{step}: its records have no columns"
        raise SchemaError(
            msg, where=where, hint="keep a column, or add a constant: select(one=pc.scalar(1))."
        )
    check_given(step, where, schema.names, known=known)
    if equal := next(_equal_but_for_case("", list(schema)), None):
        msg = f"{step} has columns {equal[0]!r} and {equal[1]!r}, which Spark takes for one: it ignores case"
        raise SchemaError(msg, where=where, hint="rename one of them.")


def every_name(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of columns and of their nested fields."""
    for field in fields:
        yield field.name
        yield from every_name(_fields_of(field.type))


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(n) for n in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def _equal_but_for_case(prefix: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, str]]:
    """Pairs of names of one level that differ in case only."""
    seen: dict[str, str] = {}
    for field in fields:
        if (caseless := _caseless(field.name)) in seen:
            yield prefix + seen[caseless], prefix + field.name
        seen[caseless] = field.name
        yield from _equal_but_for_case(f"{prefix}{field.name}.", _fields_of(field.type))


def _caseless(name: str) -> str:
    """The name as Java's `equalsIgnoreCase` compares it, character by character."""
    return "".join(big.lower() if len(big := one.upper()) == 1 else one.lower() for one in name)


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, _TOKEN.findall(text)
        if re.sub(r"\s+", "", "".join(self.tokens)) != re.sub(r"\s+", "", text):
            self.fail("an unknown character")

    def next(self) -> str:
        return self.tokens.pop(0) if self.tokens else ""

    def number(self) -> int:
        if not (text := self.next()).isdecimal():
            self.fail(f"{text!r} where a number belongs")
        return int(text)

    def expect(self, token: str) -> None:
        if (got := self.next()) != token:
            self.fail(f"{got!r} where {token!r} belongs")

    def fail(self, problem: str) -> NoReturn:
        msg = f"schema {self.text!r}: {problem}"
        raise SchemaError(msg, hint="write DDL such as 'node long, name string'.")


def _parse_fields(tokens: _Tokens, *, end: str) -> Iterator[tuple[str, pa.DataType]]:
    while True:
        name = tokens.next()
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if not name:
            tokens.fail("a column name is missing")
        if tokens.tokens[:1] == [":"]:
            tokens.next()
        yield name, _parse_type(tokens)
        _skip_options(tokens)
        if (separator := tokens.next()) == end:
            return
        if separator != ",":
            tokens.fail(f"{separator!r} where ',' belongs")


def _skip_options(tokens: _Tokens) -> None:
    """Skip the column options NOT NULL and COMMENT of Spark's DDL."""
    while (word := "".join(tokens.tokens[:1]).lower()) in {"not", "comment"}:
        tokens.next()
        option = tokens.next()
        if not (option.lower() == "null" if word == "not" else option[:1] in {"'", '"'}):
            tokens.fail(f"{option!r} after {word!r}")


def _whole_type(tokens: _Tokens) -> pa.DataType:
    kind = _parse_type(tokens)
    _skip_options(tokens)
    if rest := tokens.next():
        tokens.fail(f"{rest!r} after the type")
    return kind


def _parse_type(tokens: _Tokens) -> pa.DataType:
    kind = tokens.next().lower()
    if kind == "array":
        tokens.expect("<")
        inner = _parse_type(tokens)
        tokens.expect(">")
        return pa.list_(pa.field("element", inner))
    if kind == "map":
        tokens.expect("<")
        key = _parse_type(tokens)
        tokens.expect(",")
        value = _parse_type(tokens)
        tokens.expect(">")
        return pa.map_(key, value)
    if kind == "struct":
        tokens.expect("<")
        return pa.struct([pa.field(name, inner) for name, inner in _parse_fields(tokens, end=">")])
    if kind in _TEXTS and tokens.tokens[:1] == ["("]:
        tokens.next()
        tokens.number()
        tokens.expect(")")
    if kind in {"decimal", "dec"}:
        return _parse_decimal(tokens)
    if kind not in _TYPES:
        tokens.fail(f"unknown type {kind!r}")
    return _TYPES[kind]


def _parse_decimal(tokens: _Tokens) -> pa.DataType:
    precision, scale = 10, 0
    if tokens.tokens[:1] == ["("]:
        tokens.next()
        precision = tokens.number()
        if tokens.tokens[:1] == [","]:
            tokens.next()
            scale = tokens.number()
        tokens.expect(")")
    if not 0 < precision <= 38 or not 0 <= scale <= precision:
        tokens.fail(f"decimal({precision}, {scale})")
    return pa.decimal128(precision, scale)


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type may be a key: any flat type, which has equality, an order and a hash.

    >>> is_key_type(pa.float64()), is_key_type(pa.list_(pa.int8())), is_key_type(pa.month_day_nano_interval())
    (True, False, False)
    """
    return not (pa.types.is_nested(kind) or pa.types.is_union(kind) or pa.types.is_interval(kind))


def as_table(records: Any, schema: pa.Schema, *, of: str | None = None) -> pa.Table:
    """Convert records to an Arrow table of a declared schema.

    Records are Arrow, pandas, an iterable of rows (tuples, dicts, scalars), or a mapping of columns to lists
    of one length. Named columns are matched by name. A lossy conversion raises an error, which
    names `of`, the receiver of the records; so does a time without a zone for a column of times with one.

    Example:
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
        if isinstance(records, pa.Table):
            return _cast(records, schema) if records.schema != schema else records
        if hasattr(records, "itertuples"):
            return _from_frame(records[schema.names], schema)
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
        hint = "give a list of rows, each with every column, with values of its type."
        raise SchemaError(msg, hint=hint) from error


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema, cast; values that a cast would change are refused."""
    chosen = table.select(schema.names)
    for index, kind in enumerate(chosen.schema.types):
        if pa.types.is_dictionary(kind) and kind.value_type in _PLAIN:  # which Arrow does not decode
            chosen = chosen.set_column(index, schema.names[index], _with_plain_values(chosen.column(index)))
    for field in schema:
        _check_zones(chosen.schema.field(field.name).type, field.type, field.name)
    made = chosen.cast(schema)
    for before, after, field in zip(chosen.columns, made.columns, schema, strict=True):
        _check_cast(before, after, field)
    return made


def _with_plain_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories of plain values."""
    parts = [(part.indices, part.dictionary.cast(_plain(column.type))) for part in column.chunks]
    kind = pa.dictionary(column.type.index_type, _plain(column.type), column.type.ordered)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(*part) for part in parts], kind)


def _from_frame(frame: Any, schema: pa.Schema) -> pa.Table:
    """The table of a pandas frame; missing values, NaN among them, are null."""
    made = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    for index, field in enumerate(schema):
        values = frame[field.name]
        if values.dtype == object:
            missing = values.isna()
            _check_column(
                tuple(value for value, none in zip(values, missing, strict=True) if not none), field
            )
            continue
        before = pa.chunked_array([pa.array(values, from_pandas=True)])
        _check_zones(before.type, field.type, field.name)
        if _drops(before.type, field.type):
            after = before.cast(field.type)  # the date of a time zone; `from_pandas` takes that of UTC
            _check_cast(before, after, field)
            made = made.set_column(index, field, after)
    return made.replace_schema_metadata()


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
    of, to = before.type, after.type
    if before.null_count == len(before) or not _drops(of, to):
        return True
    if pa.types.is_dictionary(of):
        return _same(before.dictionary_decode(), after)
    if pa.types.is_struct(of):
        kept = dict(zip((field.name for field in _fields_of(to)), after.flatten(), strict=True))
        return all(
            _same(part, kept[field.name]) if field.name in kept else part.null_count == len(part)
            for field, part in zip(_fields_of(of), before.flatten(), strict=True)
        )
    if pa.types.is_map(of):
        before, after = (one.cast(pa.list_(one.type.field(0))) for one in (before, after))
    if pa.types.is_nested(of):
        return _same(before.flatten(), after.flatten())
    local = pc.local_timestamp(before) if pa.types.is_timestamp(of) and of.tz else before
    return bool(after.cast(local.type).equals(local))


def _drops(of: pa.DataType, to: pa.DataType) -> bool:
    """Whether Arrow's safe cast may drop parts of a value: of a number, a date, a time of day, a field."""
    if pa.types.is_dictionary(of):
        return _drops(of.value_type, to)
    if pa.types.is_boolean(to):
        return bool(pa.types.is_integer(of) or pa.types.is_floating(of))
    if pa.types.is_date(to) or pa.types.is_time(to):
        return bool(pa.types.is_timestamp(of))
    if pa.types.is_struct(of) and pa.types.is_struct(to):
        wanted = {field.name: field.type for field in _fields_of(to)}
        return any(
            field.name not in wanted or _drops(field.type, wanted[field.name]) for field in _fields_of(of)
        )
    inner, others = _fields_of(of), _fields_of(to)
    return len(inner) == len(others) and any(
        _drops(a.type, b.type) for a, b in zip(inner, others, strict=True)
    )


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    listed = {name: values for name, values in columns.items() if hasattr(values, "__len__")}
    if set(columns) != set(schema.names):
        msg = f"a mapping with {list(columns)} has other columns"
        raise ValueError(msg)
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

    It drops fractions, also of seconds, times of day and unknown fields, and takes a text for a list.
    """
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
        for one, of in _parts(value, kind):
            _check_lossless(one, of)


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


def _check_zones(of: pa.DataType, to: pa.DataType, column: str) -> None:
    """Check that no time of a type gets a time zone, or loses it, also inside of others."""
    if pa.types.is_dictionary(of):
        return _check_zones(of.value_type, to, column)
    if pa.types.is_timestamp(of) and pa.types.is_timestamp(to):
        return _check_zone(of.tz is not None, to, f"column {column!r}, of type {of},")
    inner, others = _fields_of(of), _fields_of(to)
    if pa.types.is_struct(of) and pa.types.is_struct(to):
        by_name = {field.name: field for field in others}
        inner = [field for field in inner if field.name in by_name]
        others = [by_name[field.name] for field in inner]
    for a, b in zip(inner, others, strict=False):
        _check_zones(a.type, b.type, column)
    return None


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
        fields = _fields_of(kind)
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
    return f"{shorten(values[fits])} is no {kind}" if fits < len(values) else f"the values are no {kind}"


def _row(record: Any, schema: pa.Schema) -> tuple[Any, ...]:
    if isinstance(record, Mapping):
        unknown, missing = set(record) - set(schema.names), [n for n in schema.names if n not in record]
        if unknown or missing:
            has = f"has no {', '.join(map(repr, missing))}" if missing else "has"
            more = f" unknown columns {sorted(map(str, unknown))}" if unknown else ""
            msg = f"{shorten(dict(record), 200)} {has}{' but' if missing and more else ''}{more}"
            raise ValueError(msg)
        return tuple(record[name] for name in schema.names)
    row = record if isinstance(record, tuple | list) else (record,)
    if len(row) != len(schema):
        msg = f"{shorten(record, 200)} has {len(row)} values for {len(schema)} columns"
        raise ValueError(msg)
    return tuple(row)


def describe(schema: pa.Schema) -> str:
    """A schema on one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def columns_of(schema: pa.Schema) -> str:
    """The columns of a step's records, without the library's own, such as a collection's differences.

    >>> columns_of(pa.schema([("n", pa.int64()), ("__timely_diff", pa.int64())]))
    '(n int64)'
    """
    return f"({describe(pa.schema([field for field in schema if not field.name.startswith(RESERVED)]))})"
