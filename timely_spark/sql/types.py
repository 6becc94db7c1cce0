"""Spark's types, as Arrow has them: their names, what they widen to, and what casts itself in ANSI mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import pyarrow as pa
from pyarrow import types as of

#: An interval of days, hours and seconds, which Arrow calls a duration.
INTERVAL = pa.duration("us")
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
#: from the narrowest to the widest
NUMBERS = (*INTEGERS, pa.float32(), pa.float64())
MOST_DIGITS = 38


class Months(pa.ExtensionType):  # type: ignore[misc]
    """An interval of years and months: only inside expressions, as no column stores one."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "timely_spark.months")

    def __hash__(self) -> int:
        return hash(type(self))

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Months:
        return cls()


MONTHS = Months()

_NAMES = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    INTERVAL: "interval day to second",
    MONTHS: "interval year to month",
}
BY_NAME = {name: kind for kind, name in _NAMES.items()}


def timestamp(zone: str | None) -> pa.DataType:
    """Spark's TIMESTAMP, in a zone; TIMESTAMP_NTZ if the zone is None."""
    return pa.timestamp("us", tz=zone)


def array_of(element: pa.DataType) -> pa.DataType:
    """The type of arrays of a type."""
    return pa.list_(pa.field("element", element))


def name_of(kind: pa.DataType) -> str:
    """A type's name in Spark's DDL.

    >>> name_of(array_of(pa.struct({"a": pa.decimal128(9, 2), "b": pa.timestamp("us", "UTC")})))
    'array<struct<a:decimal(9,2),b:timestamp>>'
    """
    if is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if of.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if is_array(kind):
        return f"array<{name_of(kind.value_type)}>"
    if of.is_map(kind):
        return f"map<{name_of(kind.key_type)},{name_of(kind.item_type)}>"
    if of.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{name_of(field.type)}' for field in kind)}>"
    return _NAMES.get(kind) or str(kind)


#: What Arrow stores and Spark does not, as the type that Spark reads it as.
READ_AS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def spark_type(kind: pa.DataType, zone: str) -> pa.DataType | None:
    """The type as which Spark reads a column, with times in the session's zone; None if it reads none.

    >>> spark_type(pa.large_list(pa.uint8()), "UTC"), spark_type(pa.time32("s"), "UTC")
    (ListType(list<element: int16>), None)
    """
    if kind in READ_AS:
        return READ_AS[kind]
    if of.is_dictionary(kind):
        return spark_type(kind.value_type, zone)
    if of.is_timestamp(kind):
        return timestamp(zone if kind.tz else None)
    if of.is_duration(kind):
        return INTERVAL
    if of.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= MOST_DIGITS else None
    if of.is_map(kind):
        inner = [spark_type(kind.key_type, zone), spark_type(kind.item_type, zone)]
        return None if None in inner else pa.map_(*inner)
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        element = spark_type(kind.value_type, zone)
        return None if element is None else array_of(element)
    if of.is_struct(kind):
        fields = [(field.name, spark_type(field.type, zone)) for field in kind]
        return None if any(one is None for _, one in fields) else pa.struct(fields)
    return kind if kind in _NAMES else None


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a decimal."""
    return bool(of.is_decimal(kind))


def scale_of(kind: pa.DataType) -> int:
    """How many digits of a number come after its point: 0 but of decimals."""
    return int(kind.scale) if is_decimal(kind) else 0


def is_integral(kind: pa.DataType) -> bool:
    """Whether a type is of integers."""
    return kind in INTEGERS


def is_float(kind: pa.DataType) -> bool:
    """Whether a type is float or double."""
    return bool(of.is_floating(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is of numbers."""
    return kind in NUMBERS or is_decimal(kind)


def is_array(kind: pa.DataType) -> bool:
    """Whether a type is an array."""
    return bool(of.is_list(kind))


def has_map(kind: pa.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    return bool(of.is_map(kind)) or any(has_map(one.type) for one in _fields(kind))


def has_float(kind: pa.DataType) -> bool:
    """Whether a type is float or double, or has one inside."""
    return is_float(kind) or any(has_float(one.type) for one in _fields(kind))


def has_zone(kind: pa.DataType) -> bool:
    """Whether a type is a timestamp with a time zone, or has one inside."""
    return bool(getattr(kind, "tz", None)) or any(has_zone(one.type) for one in _fields(kind))


def is_atomic(kind: pa.DataType) -> bool:
    """Whether a type has no parts."""
    return not of.is_nested(kind) and not of.is_null(kind)


def is_date_or_time(kind: pa.DataType) -> bool:
    """Whether a type is a date or a timestamp."""
    return bool(of.is_date32(kind) or of.is_timestamp(kind))


def is_interval(kind: pa.DataType) -> bool:
    """Whether a type is an interval."""
    return kind in {INTERVAL, MONTHS}


def decimal_for(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds all numbers of a type; of floats those that Spark takes.

    >>> decimal_for(pa.int16()), decimal_for(pa.float64())
    (Decimal128Type(decimal128(5, 0)), Decimal128Type(decimal128(30, 15)))
    """
    if is_decimal(kind):
        return kind
    digits = dict(zip(NUMBERS, ((3, 0), (5, 0), (10, 0), (20, 0), (14, 7), (30, 15)), strict=True))
    return pa.decimal128(*digits[kind])


def bounded(precision: int, scale: int) -> pa.DataType:
    """The decimal type with at most 38 digits: too many digits are taken from the scale, down to 6.

    >>> bounded(40, 10), bounded(60, 30)
    (Decimal128Type(decimal128(38, 8)), Decimal128Type(decimal128(38, 8)))
    """
    if precision <= MOST_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal128(MOST_DIGITS, max(MOST_DIGITS - (precision - scale), min(scale, 6)))


def wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The decimal that holds the values of two, as far as 38 digits do."""
    scale = max(a.scale, b.scale)
    whole = max(a.precision - a.scale, b.precision - b.scale)
    if whole + scale <= MOST_DIGITS:
        return pa.decimal128(whole + scale, scale)
    return pa.decimal128(MOST_DIGITS, max(0, min(scale, MOST_DIGITS - whole)))


def common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The least common type of two, texts included; None without a common type.

    >>> common(pa.int32(), pa.float32()), common(pa.string(), pa.int32()), common(pa.bool_(), pa.int8())
    (DataType(double), DataType(int64), None)
    """
    if a == b or b == pa.null():
        return a
    if a == pa.null():
        return b
    for text, other in ((a, b), (b, a)):
        if text == pa.string():
            return _text_and(other)
    if is_number(a) and is_number(b):
        return _common_number(a, b)
    if is_date_or_time(a) and is_date_or_time(b):
        zoned = [kind for kind in (a, b) if of.is_timestamp(kind)]
        return next((kind for kind in zoned if kind.tz), zoned[0])
    return _common_nested(a, b)


def _text_and(other: pa.DataType) -> pa.DataType | None:
    if is_integral(other):
        return pa.int64()
    if is_number(other):
        return pa.float64()
    return other if is_atomic(other) and not is_interval(other) else None


def _common_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if is_decimal(a) or is_decimal(b):
        if is_float(a) or is_float(b):
            return pa.float64()
        return wider_decimal(decimal_for(a), decimal_for(b))
    wider = max(a, b, key=NUMBERS.index)
    return pa.float64() if wider == pa.float32() else wider


def _common_nested(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if is_array(a) and is_array(b):
        element = common(a.value_type, b.value_type)
        return None if element is None else array_of(element)
    if of.is_map(a) and of.is_map(b):
        key, item = common(a.key_type, b.key_type), common(a.item_type, b.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if of.is_struct(a) and of.is_struct(b) and a.num_fields == b.num_fields:
        pairs = [(x.name, x.type, y) for x, y in zip(a, b, strict=True)]
        if all(name.lower() == y.name.lower() for name, _, y in pairs):
            fields = [(name, common(x, y.type)) for name, x, y in pairs]
            return None if any(kind is None for _, kind in fields) else pa.struct(fields)
    return None


def common_of(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """The least common type of several."""

    def both(a: pa.DataType | None, b: pa.DataType) -> pa.DataType | None:
        return None if a is None else common(a, b)

    # texts last: a text takes the type that the others have in common
    listed = sorted(kinds, key=lambda kind: kind == pa.string())
    return reduce(both, listed, pa.null())


def mixes_texts(kinds: Sequence[pa.DataType]) -> bool:
    """Whether texts and other types are together, also as parts of arrays, maps and structs.

    >>> mixes_texts([pa.list_(pa.string()), pa.list_(pa.int32())]), mixes_texts([pa.string(), pa.null()])
    (True, False)
    """
    some = {kind for kind in kinds if kind != pa.null()}
    if pa.string() in some:
        return len(some) > 1
    parts = zip(*([one.type for one in _fields(kind)] for kind in some), strict=False)
    return len(some) > 1 and any(map(mixes_texts, parts))


def same_but_names(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are the same, or differ in the names of fields only."""
    parts = _fields(a), _fields(b)
    nested = type(a) is type(b) and len(parts[0]) == len(parts[1]) > 0
    return a == b or (nested and all(same_but_names(x.type, y.type) for x, y in zip(*parts, strict=True)))


def named_alike(kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
    """Types that are compared: those that differ from the first in names of fields only, as the first."""
    return [kinds[0] if same_but_names(kind, kinds[0]) else kind for kind in kinds]


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields that a nested type has."""
    if of.is_map(kind):
        return [kind.key_field, kind.item_field]
    if is_array(kind):
        return [kind.value_field]
    return [*kind] if of.is_struct(kind) else []


def casts_itself(kind: pa.DataType, to: pa.DataType) -> bool:
    """Whether an argument of one type is taken where another is expected (ANSI's store assignment).

    >>> casts_itself(pa.int64(), pa.int32()), casts_itself(pa.date32(), pa.string())
    (True, True)
    >>> casts_itself(pa.bool_(), pa.int32())
    False
    """
    if kind in {to, pa.null()}:
        return True
    if kind == pa.string():
        return is_atomic(to)
    if to == pa.string():
        return is_atomic(kind)
    if is_number(kind) and is_number(to):
        return True
    if is_date_or_time(kind) and is_date_or_time(to):
        return True
    if is_array(kind) and is_array(to):
        return casts_itself(kind.value_type, to.value_type)
    if of.is_map(kind) and of.is_map(to):
        return casts_itself(kind.key_type, to.key_type) and casts_itself(kind.item_type, to.item_type)
    if of.is_struct(kind) and of.is_struct(to) and kind.num_fields == to.num_fields:
        return all(casts_itself(x.type, y.type) for x, y in zip(kind, to, strict=True))
    return False
