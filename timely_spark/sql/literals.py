"""The values and types that a text writes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

from timely_spark.sql import types

if TYPE_CHECKING:
    from sqlglot import exp

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


def number(value: str) -> pa.Scalar:
    """A literal of digits: an int or a bigint, a decimal with a point, a double with an exponent.

    >>> number("1").type, number("3000000000").type, number("1.50").type, number("1e3").type
    (DataType(int32), DataType(int64), Decimal128Type(decimal128(3, 2)), DataType(double))
    """
    if re.search("[eE]", value):
        return pa.scalar(float(value), pa.float64())
    if value.isdecimal() and int(value) < 2**63:
        return pa.scalar(int(value), pa.int32() if int(value) < 2**31 else pa.int64())
    exact = Decimal(value)
    _, digits, exponent = exact.as_tuple()
    scale = -int(exponent)
    return pa.scalar(exact, pa.decimal128(max(len(digits), scale, 1), scale))


def type_of(node: exp.Expression, zone: str) -> pa.DataType | None:
    """The type that a syntax tree names; None if no column stores it."""
    kind = getattr(node.this, "name", None) or type(node.this).__name__
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in {"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"}:
        return types.timestamp(zone)
    if kind == "DECIMAL":
        given = [int(one.name) for one in node.expressions]
        precision, scale = (*given, *(10, 0)[len(given) :])
        return pa.decimal128(precision, scale) if scale <= precision <= types.MOST_DIGITS else None
    inner = [type_of(getattr(one, "kind", None) or one, zone) for one in node.expressions]
    if None in inner:
        return None
    if kind == "ARRAY":
        return types.array_of(inner[0])
    if kind == "MAP":
        return pa.map_(*inner)
    if kind == "STRUCT":
        return pa.struct([(one.name, of) for one, of in zip(node.expressions, inner, strict=True)])
    return None
