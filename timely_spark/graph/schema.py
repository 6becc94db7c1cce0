"""Schemas: parsing, and checks of columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa

from timely_spark.errors import SchemaError, Where

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

#: Spark's name for what is in a list.
_ELEMENT = "element"
#: The prefix of reserved column names.
RESERVED = "__timely_"

SchemaLike: TypeAlias = pa.Schema | str | Mapping[str, Any]
"""A schema: Spark DDL (``"node long, name string"``), an Arrow schema, a mapping of names to types, or a
`StructType` of Spark."""


def as_schema(schema: SchemaLike) -> pa.Schema:
    """Convert a `SchemaLike` to an Arrow schema.

    Metadata, nullability and dictionaries are dropped: schemas are equal if names and types are, and a
    column of categories is one of their values. Views of texts and bytes, and doubles of 16 bits, are stored
    as plain columns and floats, and extension types as their storage: Arrow compares and takes no others.

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
    columns = [pa.field(name, plain_type(kind)) for name, kind in fields]
    for column in columns:
        _check_stored(column.name, column.type)
    return pa.schema(columns)


def _check_stored(column: str, kind: pa.DataType) -> None:
    """Check that Arrow compares values of a type, also inside of others."""
    if any(is_kind(kind) for is_kind in _NOT_STORED):
        msg = f"column {column!r} is of Arrow's type {kind}, which a flow does not take"
        raise SchemaError(msg, hint="cast it first: views of lists to lists, encoded runs to their values.")
    for field in inner_fields(kind):
        _check_stored(f"{column}.{field.name}", field.type)


def plain_type(kind: pa.DataType, plain: Mapping[pa.DataType, pa.DataType] | None = None) -> pa.DataType:
    """A type with the types in `plain` replaced, also nested ones; by default the type that is stored.

    All that is inside may be null, and lists and maps have Spark's names for it. Arrow compares both
    differently: a list without nulls is of another type, and the name of an element is not compared.
    """
    if isinstance(kind, pa.DictionaryType | pa.BaseExtensionType):
        return plain_type(kind.value_type if pa.types.is_dictionary(kind) else kind.storage_type, plain)
    inner = [pa.field(field.name, plain_type(field.type, plain)) for field in inner_fields(kind)]
    match kind:
        case pa.StructType():
            kind = pa.struct(inner)
        case pa.MapType():
            kind = pa.map_(*(field.type for field in inner[0].type), keys_sorted=kind.keys_sorted)
        case pa.LargeListType():
            kind = pa.large_list(inner[0].with_name(_ELEMENT))
        case pa.ListType():
            kind = pa.list_(inner[0].with_name(_ELEMENT))
        case pa.FixedSizeListType():  # a pickle loses the name of what is in it
            kind = pa.list_(inner[0].type, kind.list_size)
        case _:
            kind = (PLAIN if plain is None else plain).get(kind, kind)
    return kind


_NOT_STORED = (
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
)
PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}


def _described(kind: Any) -> Any:
    """A Spark type as JSON; None for other objects."""
    return kind.jsonValue() if hasattr(kind, "jsonValue") and not isinstance(kind, type) else None


def _as_type(kind: Any, column: str) -> Any:
    if isinstance(kind, str):
        return _whole_type(_Tokens(kind))
    described = _described(kind)
    if described is None and not isinstance(kind, pa.DataType):
        msg = f"column {column!r}: {kind!r} is not a type"
        raise SchemaError(msg, hint="write a type as in DDL, such as 'long', or give one of pyarrow's.")
    return kind if described is None else _of_spark(described, column)


def _of_spark(kind: Any, column: str) -> pa.DataType:
    """The Arrow type of a Spark type in JSON."""
    shape = kind["type"] if isinstance(kind, Mapping) else kind
    if shape == "array":
        return pa.list_(pa.field(_ELEMENT, _of_spark(kind["elementType"], f"{column}.element")))
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


def check_reserved(step: str, where: Where, names: Iterable[str], *, existing: Collection[str] = ()) -> None:
    """Check that no name is reserved.

    Args:
        existing: reserved names that the step's inputs have, or that the library adds.
    """
    if own := [name for name in names if name.startswith(RESERVED) and name not in existing]:
        msg = f"{step} has columns {own}: names that begin with {RESERVED!r} are the library's"
        raise SchemaError(msg, where=where, hint="rename them.")


def check_names(step: str, where: Where, schema: pa.Schema, *, existing: Collection[str] = ()) -> None:
    """Check that there are columns, none with a reserved name, and that Spark can distinguish the names."""
    if not schema.names:
        msg = f"{step}: its records have no columns"
        hint = "keep a column, or add a constant: select(one=pc.scalar(1))."
        raise SchemaError(msg, where=where, hint=hint)
    check_reserved(step, where, schema.names, existing=existing)
    if equal := next(_equal_but_for_case("", list(schema)), None):
        msg = f"{step} has columns {equal[0]!r} and {equal[1]!r}, which Spark takes for one: it ignores case"
        raise SchemaError(msg, where=where, hint="rename one of them.")


def every_name(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of columns and of their nested fields."""
    for field in fields:
        yield field.name
        yield from every_name(inner_fields(field.type))


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type; none of others."""
    return [kind.field(n) for n in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def entries_of(kind: pa.DataType) -> pa.DataType:
    """A map's type as that of the list which it is."""
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def without_nan(schema: pa.Schema) -> list[str]:
    """The columns without floats. Statistics of Parquet leave NaN out, so they exclude too much.

    >>> without_nan(as_schema("a long, b double, c array<float>, d struct<x long>"))
    ['a', 'd']
    """
    return [field.name for field in schema if not _has_floats(field.type)]


def _has_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(field.type) for field in inner_fields(kind))


def _equal_but_for_case(prefix: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, str]]:
    """Pairs of names of one level that differ in case only."""
    seen: dict[str, str] = {}
    for field in fields:
        if (caseless := _caseless(field.name)) in seen:
            yield prefix + seen[caseless], prefix + field.name
        seen[caseless] = field.name
        yield from _equal_but_for_case(f"{prefix}{field.name}.", inner_fields(field.type))


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
        return pa.list_(pa.field(_ELEMENT, inner))
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


def describe(schema: pa.Schema) -> str:
    """A schema on one line, as errors show it.

    >>> describe(pa.schema([("src", pa.int64()), ("name", pa.string())]))
    'src int64, name string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def columns_of(schema: pa.Schema) -> str:
    """The columns of a step's records, without the library's own, such as a collection's differences.

    >>> columns_of(pa.schema([("n", pa.int64()), ("__timely_diff", pa.int64())]))
    '(n int64)'
    """
    return f"({describe(pa.schema([field for field in schema if not field.name.startswith(RESERVED)]))})"
