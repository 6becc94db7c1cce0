"""Expressions to compare with Spark: rows of edge values, a list by function, and how values are compared."""

from __future__ import annotations

import functools
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from timely_spark.errors import ExpressionError
from timely_spark.sql import BoundExpression

UTC = timezone.utc
TEXTS = [
    "", "a", "abc", "Hello World", "  padded  ", "ÄÖÜ straße", "日本語", "😀 smile", "a,b,,c", "x.y.z", "12",
    "-7.5", "1e3", "true", "2024-02-29", "2024-02-29 12:34:56.789", "100%_", "a\\b",
    "A" * 300, "tab\tnew\nline", "ﬁn", "NaN", "a$b (2^3)",
]  # fmt: skip
LONGS = [0, 1, -1, 7, -7, 2**63 - 1, -(2**63), 2**31, 1000, 64, 3_000_000_000]
DOUBLES = [
    0.0, -0.0, 1.0, -1.5, 2.5, math.nan, math.inf, -math.inf, 1e-300, 1.7976931348623157e308, 4.9e-324, 0.1,
    123456.789, 3.5, 1e7, 1e-3, 9.999e22, 2.0**53 + 2,
]  # fmt: skip
DAYS = [
    date(1970, 1, 1),
    date(2024, 2, 29),
    date(1969, 12, 31),
    date(1, 1, 1),
    date(9999, 12, 31),
    date(2023, 1, 1),
]
TIMES = [
    datetime.fromisoformat(one)
    for one in ("1970-01-01", "2024-02-29T23:59:59.999999", "1969-12-31T12:00:00.000001",
                "2024-03-31T01:30:00", "1883-11-18T12:00:00", "2024-10-27T00:30:00",
                "2024-10-27T01:30:59.500000")
]  # fmt: skip


def _cycled(values: list[Any], kind: pa.DataType, length: int, step: int = 1) -> pa.Array:
    """Values again and again, with null in between."""
    with_null = [*values, None]
    return pa.array([with_null[(n * step) % len(with_null)] for n in range(length)], kind)


@functools.cache
def rows(length: int = 48) -> pa.Table:
    """Rows of edge values of each type; neighbouring columns repeat after different numbers of rows."""
    decimals = [
        Decimal(one) for one in ("0.00", "1.50", "-1.50", "2.50", "99999999.99", "-99999999.99", "0.01")
    ]
    wide = [Decimal(one) for one in ("0", "1.5", "-2.0000000001", "9" * 28 + "." + "9" * 10, "-" + "9" * 28)]
    arrays = [[], [1], [3, 1, 2], [1, None, 1], [None], [2**31 - 1, -(2**31)], [5, 5, 5]]
    words = [[], ["a"], ["b", "a", None], ["x", "x"], ["", "ä"]]
    maps = [[], [("a", 1)], [("a", 1), ("b", None)], [("ä", 3), ("c", 4)]]
    structs = [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": -3, "y": None}]
    laps = [timedelta(0), timedelta(days=1), timedelta(seconds=-1.5), timedelta(days=3, microseconds=7)]
    columns = {
        "id": pa.array(range(length), pa.int32()),
        "n": _cycled(LONGS, pa.int64(), length),
        "k": _cycled([1, 2, 3, -1, 0, 5, 10], pa.int64(), length, 3),
        "i": _cycled([0, 1, -1, 2**31 - 1, -(2**31), 5, 40], pa.int32(), length),
        "j": _cycled([2, 3, -2, 0, 1], pa.int32(), length),
        "h": _cycled([0, 1, -1, 2**15 - 1, -(2**15)], pa.int16(), length),
        "y": _cycled([0, 1, -1, 127, -128, 3], pa.int8(), length),
        "x": _cycled(DOUBLES, pa.float64(), length),
        "z": _cycled(DOUBLES, pa.float64(), length, 5),
        "f": _cycled(
            [0.0, 1.5, -2.25, math.nan, math.inf, 0.1, 3.4028235e38, 1e-45, 1.15], pa.float32(), length
        ),
        "d": _cycled(decimals, pa.decimal128(10, 2), length),
        "c": _cycled(
            [Decimal("3.0"), Decimal("-0.1"), Decimal("0.0"), Decimal("7.5")], pa.decimal128(5, 1), length
        ),
        "e": _cycled(wide, pa.decimal128(38, 10), length),
        "s": _cycled(TEXTS, pa.string(), length),
        "t": _cycled(["a", "", ",", "b", "World", "ä", "語", "."], pa.string(), length, 5),
        "b": _cycled([True, False], pa.bool_(), length),
        "g": _cycled([True, False, True, False], pa.bool_(), length, 2),
        "u": _cycled([b"", b"abc", b"\x00\xff", "ä".encode()], pa.binary(), length),
        "day": _cycled(DAYS, pa.date32(), length),
        "day2": _cycled(DAYS, pa.date32(), length, 4),
        "at": _cycled([one.replace(tzinfo=UTC) for one in TIMES], pa.timestamp("us", "UTC"), length),
        "at2": _cycled([one.replace(tzinfo=UTC) for one in TIMES], pa.timestamp("us", "UTC"), length, 3),
        "local": _cycled(TIMES, pa.timestamp("us"), length),
        "a": _cycled(arrays, pa.list_(pa.int32()), length),
        "a2": _cycled(arrays, pa.list_(pa.int32()), length, 3),
        "w": _cycled(words, pa.list_(pa.string()), length),
        "m": _cycled(maps, pa.map_(pa.string(), pa.int32()), length),
        "p": _cycled(structs, pa.struct([("x", pa.int32()), ("y", pa.string())]), length),
        "p2": _cycled(structs, pa.struct([("x", pa.int32()), ("y", pa.string())]), length, 3),
        "lap": _cycled(laps, pa.duration("us"), length),
    }
    return pa.table(columns)


def plain(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python's values; of dates and times, which may be out of Python's range, numbers."""
    if pa.types.is_temporal(values.type):
        width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
        return [one for chunk in getattr(values, "chunks", [values]) for one in chunk.view(width).to_pylist()]
    return list(values.to_pylist())


def failing(expression: BoundExpression, table: pa.Table) -> tuple[list[Any], list[int]]:
    """The values of the rows that have one, None for the others, and the numbers of the others."""
    try:
        return plain(expression.evaluate(table)), []
    except ExpressionError:
        pass
    table = table.select([*expression.columns] or table.column_names[:1])
    keys = [*zip(*(map(repr, plain(column)) for column in table.columns), strict=True)]
    first = {key: row for row, key in reversed([*enumerate(keys)])}  # equal rows fail alike
    numbers = _failing(expression, table.take(pa.array(first.values())))
    failed = {key for number, key in enumerate(first) if number in numbers}
    good = [row for row, key in enumerate(keys) if key not in failed]
    values: list[Any] = [None] * len(keys)
    for row, value in zip(
        good, plain(expression.evaluate(table.take(pa.array(good, pa.int64())))), strict=True
    ):
        values[row] = value
    return values, [row for row, key in enumerate(keys) if key in failed]


def _failing(expression: BoundExpression, table: pa.Table) -> set[int]:
    """The numbers of the rows without a value, from halves of halves."""
    try:
        expression.evaluate(table)
    except ExpressionError:
        if table.num_rows == 1:
            return {0}
        middle = table.num_rows // 2
        after = _failing(expression, table[middle:])
        return _failing(expression, table[:middle]) | {row + middle for row in after}
    return set()


def same(ours: Any, theirs: Any, *, close: bool = False) -> bool:
    """Whether two values are equal: NaN is itself; `close`: doubles may differ in their last digits."""
    if isinstance(ours, float) and isinstance(theirs, float):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        if ours == theirs:
            return math.copysign(1, ours) == math.copysign(1, theirs) or ours != 0 or close
        return close and math.isclose(ours, theirs, rel_tol=4e-15, abs_tol=1e-300)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(
            same(a, b, close=close) for a, b in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k], close=close) for k in ours)
    return bool(ours == theirs and type(ours) is type(theirs))


def query(expressions: list[str], bad: list[list[int]]) -> str:
    """One query of all expressions, without the rows in which one fails."""
    made = []
    for number, (text, rows_) in enumerate(zip(expressions, bad, strict=True)):
        guarded = f"CASE WHEN id NOT IN ({', '.join(map(str, rows_))}) THEN {text} END" if rows_ else text
        made.append(f"{guarded} AS x{number}")
    return f"SELECT {', '.join(made)} FROM rows ORDER BY id"
