"""The values and types that a text writes."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.sql import parse, types
from timely_spark.sql.calendar import DAY, MICROS_OF, MONTHS_OF
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


def number(value: str) -> pa.Scalar | None:
    """A literal of digits: an int or a bigint, a decimal with a point, a double with an exponent.

    >>> number("1").type, number("3000000000").type, number("1.50").type, number("1e3").type
    (DataType(int32), DataType(int64), Decimal128Type(decimal128(3, 2)), DataType(double))
    """
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value) is None:  # 1.e, .0.5
        return None
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
    if kind not in {"DECIMAL", "ARRAY", "MAP", "STRUCT"} and node.expressions:  # FLOAT(24)
        return None
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in {"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"}:
        return types.timestamp(zone)
    if kind == "DECIMAL":
        numbers = [int(one.name) for one in node.expressions]
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        return (
            pa.decimal128(precision, scale)
            if 0 < precision <= types.MOST_DIGITS and scale <= precision
            else None
        )
    inner = [named_type(getattr(one, "kind", None) or one, zone) for one in node.expressions]
    if None in inner or len(inner) != {"ARRAY": 1, "MAP": 2}.get(kind, len(inner)):
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


#: the units of an INTERVAL's text
_MICROSECONDS = {"WEEK": 7 * DAY, "DAY": DAY, **MICROS_OF}
_PART = r"\s*([+-]?\s*(?:\d+\.?\d*|\.\d+))\s*([a-zA-Z]+)"
_SPANS = (("YEAR", "MONTH"), ("DAY", "HOUR", "MINUTE", "SECOND"))
#: by unit how it stands behind the greater one in `1 02:03:04.5`, and a number that is too large for it
_LATER = {
    "MONTH": (r"-(\d+)", 12),
    "HOUR": (r" (\d+)", 24),
    "MINUTE": (r":(\d+)", 60),
    "SECOND": (r":(\d+(?:\.\d{1,9})?)", 60),
}


def interval(node: Any) -> pa.Scalar | None:
    """An INTERVAL literal; None if it is not understood."""
    unit = node.args.get("unit")
    text = node.this.name if node.this is not None else ""
    if type(node.this).__name__ == "Neg":
        text = f"-{node.this.this.name}".removeprefix("--")
    if type(unit).__name__ == "IntervalSpan":
        return _spanned(text, unit.this.name.upper(), unit.expression.name.upper())
    return interval_of(text if unit is None else f"{text} {unit.name}")


def interval_of(text: str) -> pa.Scalar | None:
    """The interval of a text; None if it is not one. Only seconds have a fraction, as in Spark.

    >>> interval_of("1 day -2 hours").as_py(), interval_of("1 day ago"), interval_of("1.5 days")
    (datetime.timedelta(seconds=79200), None, None)
    """
    body = re.sub(r"(?i)^\s*interval\b", "", text)
    if re.fullmatch(rf"(?:{_PART})+\s*", body) is None:
        return None
    return _of_parts([(re.sub(r"\s", "", one), name) for one, name in re.findall(_PART, body)])


def _of_parts(parts: list[tuple[str, str]]) -> pa.Scalar | None:
    exact = [(Decimal(value), name.upper().removesuffix("S")) for value, name in parts]
    names = {name for _, name in exact}
    whole = all(value % 1 == 0 or name == "SECOND" for value, name in exact)
    months = names <= {"YEAR", "MONTH"}
    if not parts or not whole or not (months or names <= _MICROSECONDS.keys()):
        return None
    total = int(sum(value * (MONTHS_OF if months else _MICROSECONDS)[name] for value, name in exact))
    if abs(total) >= 2 ** (31 if months else 63):
        return None
    if months:
        return pa.ExtensionScalar.from_storage(types.MONTHS, pa.scalar(total, pa.int32()))
    return pa.scalar(total, types.INTERVAL)


def _spanned(text: str, first: str, last: str) -> pa.Scalar | None:
    """The interval of a text such as `1 02:03:04.5`, of DAY TO SECOND."""
    span = next((one for one in _SPANS if {first, last} <= {*one}), ())
    units = span[span.index(first) : span.index(last) + 1] if span else ()
    later = [_LATER[one] for one in units[1:]]
    match = re.fullmatch(rf"\s*([+-]?)(\d+){''.join(shape for shape, _ in later)}\s*", text)
    if not units or match is None:
        return None
    numbers = match.groups()[1:]
    if any(Decimal(one) >= limit for one, (_, limit) in zip(numbers[1:], later, strict=True)):
        return None
    return _of_parts([(match[1] + one, unit) for one, unit in zip(numbers, units, strict=True)])


def of_days(node: Any, term: Any = None) -> bool:
    """Whether an interval, as a tree and its term, is of whole days, so that a date stays one.

    That are literals and differences of dates, and sums, differences, negations and `abs` of such.
    """
    if getattr(term, "name", "") == "$days_between":
        return True
    kind = type(node).__name__
    if kind == "Paren":
        return of_days(node.this, term)
    parts = [node.this, node.expression] if kind in {"Add", "Sub"} else [node.this] if kind == "Neg" else []
    if kind == "Anonymous" and node.name.lower() == "abs":
        parts = node.expressions
    if parts:
        return all(map(of_days, parts, getattr(term, "arguments", None) or [None] * len(parts)))
    unit = node.args.get("unit") if kind == "Interval" else None
    if kind != "Interval" or type(unit).__name__ == "IntervalSpan":  # DAY TO SECOND
        return False
    names = re.findall("[A-Za-z]+", node.this.name) if unit is None else [unit.name]
    return {name.upper().removesuffix("S") for name in names} <= {"DAY", "WEEK"}
