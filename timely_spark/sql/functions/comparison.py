"""Comparisons, with Spark's order: NaN equals itself and comes after all numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql import types
from timely_spark.sql.lists import dense_ranks
from timely_spark.sql.plain import to_numpy
from timely_spark.sql.registry import Failures, Typed, Value, as_array, spark_function
from timely_spark.sql.types import is_float


def _comparable(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    kind = types.common_of(types.named_alike(kinds))
    nested = kind is not None and pa.types.is_nested(kind)
    wrong = kind is None or pa.types.is_map(kind) or (nested and types.mixes_texts(kinds))
    return None if wrong else ([kind] * len(kinds), pa.bool_())


def _compared(compare: Callable[..., Any], nan: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def kernel(a: Value, b: Value, *, length: int) -> Any:
        if a.type == pa.null():
            return pa.scalar(None, pa.bool_())
        if pa.types.is_nested(a.type) or a.type == types.MONTHS:
            x, y = as_array(a, length), as_array(b, length)
            order = dense_ranks(pa.concat_arrays([x, y]))
            return compare(pa.array(order[:length]), pa.array(order[length:]))
        if not is_float(a.type):
            return compare(a, b)
        x, y = to_numpy(a), to_numpy(b)
        either = np.isnan(x) | np.isnan(y)
        return np.where(either, nan(np.isnan(x), np.isnan(y)), np.asarray(compare(a, b)))

    return kernel


equal = _compared(pc.equal, lambda x, y: x & y)
spark_function("=", _comparable)(equal)
spark_function("!=", _comparable)(_compared(pc.not_equal, lambda x, y: ~(x & y)))
spark_function("<", _comparable)(_compared(pc.less, lambda x, y: y & ~x))
spark_function("<=", _comparable)(_compared(pc.less_equal, lambda x, y: y))
spark_function(">", _comparable)(_compared(pc.greater, lambda x, y: x & ~y))
spark_function(">=", _comparable)(_compared(pc.greater_equal, lambda x, y: x))


@spark_function("<=>", _comparable, nulls=True)
def _not_distinct(a: Value, b: Value, *, length: int) -> Any:
    x, y = as_array(a, length), as_array(b, length)
    if x.type == pa.null():
        return pa.scalar(True)  # noqa: FBT003 - a constant
    both = pc.and_(x.is_null(), y.is_null())
    return pc.or_(both, pc.fill_null(_equal_or_null(x, y), fill_value=False))


def _equal_or_null(a: pa.Array, b: pa.Array) -> Any:
    null = np.asarray(pc.or_(a.is_null(), b.is_null()))
    rows = np.flatnonzero(~null)
    equals = np.zeros(len(a), bool)
    equals[rows] = np.asarray(equal(a.take(pa.array(rows)), b.take(pa.array(rows)), length=len(rows)))
    return pa.array(equals)


@spark_function("in", _comparable, nulls=True)
def _in(subject: Value, *values: Value, length: int) -> Any:
    array = as_array(subject, length)
    present, unknown = pa.array(np.zeros(length, bool)), array.is_null()
    for value in values:
        each = as_array(value, length)
        present = pc.or_(present, _equal_or_null(array, each))
        unknown = pc.or_(unknown, each.is_null())
    return pc.if_else(present, present, pc.if_else(unknown, pa.scalar(None, pa.bool_()), present))


spark_function("not !", "boolean -> boolean")(pc.invert)


@spark_function("isnull", "anything -> boolean", nulls=True)
def _is_null(a: Value) -> Any:
    return a.is_null() if isinstance(a, pa.Array) else pa.scalar(not a.is_valid)


@spark_function("isnotnull", "anything -> boolean", nulls=True)
def _is_not_null(a: Value) -> Any:
    return a.is_valid() if isinstance(a, pa.Array) else pa.scalar(a.is_valid)


@spark_function("isnan", "double -> boolean", nulls=True)
def _is_nan(a: Value) -> Any:
    return pc.fill_null(pc.is_nan(a), fill_value=False)


@spark_function("raise_error", "string -> void", nulls=True)
def _raise_error(text: Value, *, length: int, failures: Failures) -> Any:
    first = as_array(text, length)[0].as_py() if length else ""
    failures.at(
        np.ones(length, bool), str(first), "the query raises this for a record; WHERE can leave it out."
    )
    return pa.nulls(length)


@spark_function("assert_true", "boolean, string? -> void", nulls=True)
def _assert_true(condition: Value, text: Value | None = None, *, length: int, failures: Failures) -> Any:
    text = pa.scalar("a condition is not true") if text is None else text
    wrong = ~np.asarray(pc.fill_null(as_array(condition, length), fill_value=False))
    first = as_array(text, length).filter(pa.array(wrong))
    failures.at(
        wrong,
        str(first[0]) if len(first) else "",
        "the query raises this for a record; WHERE can leave it out.",
    )
    return pa.nulls(length)
