"""The values and types that a text writes."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.sql import parse, types
from timely_spark.sql.parse import exp

_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMPNTZ": types.timestamp(None),
}


def text(value: str) -> pa.Scalar:
    """A literal in quotes."""
    return pa.scalar(value, pa.string())


def number(value: str) -> pa.Scalar | None:
    """A literal of digits: an int or a bigint, a decimal with a point, a double with an exponent.

    >>> number("1").type, number("3000000000").type, number("1.50").type, number("1e3").type
    (DataType(int32), DataType(int64), Decimal128Type(decimal128(3, 2)), DataType(double))
    """
    if re.search("[eE]", value):
        return pa.scalar(float(value), pa.float64()) if abs(float(value)) != float("inf") else None
    if re.fullmatch(r"-?\d+", value) and -(2**63) <= int(value) < 2**63:
        small = -(2**31) <= int(value) < 2**31
        return pa.scalar(int(value), pa.int32() if small else pa.int64())
    exact = Decimal(value)
    _, digits, exponent = exact.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale, 1)
    return pa.scalar(exact, pa.decimal128(precision, scale)) if precision <= types.MOST_DIGITS else None


def named_type(node: exp.Expression, zone: str) -> pa.DataType | None:
    """The type that a syntax tree names; None if no column stores it."""
    kind = getattr(node.this, "name", None) or type(node.this).__name__
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in {"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"}:
        return types.timestamp(zone)
    if kind == "DECIMAL":
        numbers = [int(one.name) for one in node.expressions]
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        return pa.decimal128(precision, scale) if scale <= precision <= types.MOST_DIGITS else None
    inner = [named_type(getattr(one, "kind", None) or one, zone) for one in node.expressions]
    if None in inner:
        return None
    if kind == "ARRAY":
        return types.array_of(inner[0])
    if kind == "MAP":
        return pa.map_(*inner)
    if kind == "STRUCT":
        return pa.struct(
            [(one.name, field_type) for one, field_type in zip(node.expressions, inner, strict=True)]
        )
    return None


def type_of_text(text: str, zone: str) -> pa.DataType | None:
    """The type that a text names, or a struct of the columns that it lists; None if it is neither.

    >>> type_of_text("a INT, b ARRAY<STRING>", "UTC")
    StructType(struct<a: int32, b: list<element: string>>)
    """
    for one in (text, f"STRUCT<{text}>"):
        with suppress(SqlError):
            tree = parse.parse_expression(f"CAST(x AS {one})")
            if (kind := named_type(tree.args["to"], zone)) is not None:
                return kind
    return None


_MICROSECONDS = {
    "WEEK": 604_800_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
    "MILLISECOND": 1000,
    "MICROSECOND": 1,
}
_MONTHS = {"YEAR": 12, "MONTH": 1}
#: the parts of a text such as `1 02:03:04.5`, of `DAY TO SECOND`, from each unit on
_CLOCK = ("DAY", "HOUR", "MINUTE", "SECOND")


def interval(node: Any) -> pa.Scalar | None:
    """An INTERVAL literal; None if it is not understood."""
    unit = node.args.get("unit")
    text = node.this.name if node.this is not None else ""
    if type(node.this).__name__ == "Neg":
        text = f"-{node.this.this.name}"
    if unit is None:
        pairs = re.findall(r"([+-]?[\d.]+)\s*([A-Za-z]+)", text)
        return _of_parts([(number, name.upper().removesuffix("S")) for number, name in pairs])
    if type(unit).__name__ == "IntervalSpan":
        return _spanned(text, unit.this.name.upper(), unit.expression.name.upper())
    return _of_parts([(text, unit.name.upper().removesuffix("S"))])


def _of_parts(parts: list[tuple[str, str]]) -> pa.Scalar | None:
    names = {name for _, name in parts}
    try:
        exact = [(Decimal(value), name) for value, name in parts]
    except ArithmeticError:
        return None
    if parts and names <= _MONTHS.keys():
        months = pa.scalar(int(sum(value * _MONTHS[name] for value, name in exact)), pa.int32())
        return pa.ExtensionScalar.from_storage(types.MONTHS, months)
    if parts and names <= _MICROSECONDS.keys():
        return pa.scalar(int(sum(value * _MICROSECONDS[name] for value, name in exact)), types.INTERVAL)
    return None


def _spanned(text: str, first: str, last: str) -> pa.Scalar | None:
    sign = "-" if text.strip().startswith("-") else ""
    parts = re.split(r"[-: ]", text.strip().lstrip("+-"))
    if (first, last) == ("YEAR", "MONTH"):
        units: tuple[str, ...] = ("YEAR", "MONTH")
    elif first in _CLOCK and last in _CLOCK:
        units = _CLOCK[_CLOCK.index(first) : _CLOCK.index(last) + 1]
    else:
        return None
    if len(parts) != len(units):
        return None
    return _of_parts([(sign + value, unit) for value, unit in zip(parts, units, strict=True)])


def of_days(node: Any) -> bool:
    """Whether a sum has a literal interval of whole days only, so that a date stays one."""
    for one in (node.this, node.expression):
        if type(one).__name__ == "Interval":
            unit = one.args.get("unit")
            if type(unit).__name__ == "IntervalSpan":  # DAY TO SECOND
                return False
            names = re.findall("[A-Za-z]+", one.this.name) if unit is None else [unit.name]
            return {name.upper().removesuffix("S") for name in names} <= {"DAY", "WEEK"}
    return False
