"""Functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql import doubles, types
from timely_spark.sql.functions.arithmetic import fitted_decimals, overflow
from timely_spark.sql.functions.casts import parsed_decimals
from timely_spark.sql.lists import dense_ranks
from timely_spark.sql.plain import as_long, longs, rounded_quotient, to_numpy, wide
from timely_spark.sql.registry import Failures, Typed, Value, as_array, spark_function
from timely_spark.sql.types import bounded, is_decimal, is_float, is_integral


def _of_doubles(names: str, formula: Callable[[Any], Any], null: Callable[[Any], Any] | None = None) -> None:
    """A function of doubles; `null`: for which it has none."""

    @spark_function(names, "double -> double")
    def _kernel(a: Value) -> Any:
        x = np.atleast_1d(to_numpy(a))
        with np.errstate(all="ignore"):
            y = formula(x)
            return y if null is None else pa.array(y, mask=null(x))


_names: str
_of: Callable[[Any], Any]
for _names, _of in (
    ("sin", doubles.sin), ("cos", doubles.cos), ("tan", doubles.tan), ("asin", doubles.asin),
    ("acos", doubles.acos), ("atan", doubles.atan), ("sinh", doubles.sinh), ("cosh", doubles.cosh),
    ("tanh", doubles.tanh), ("asinh", doubles.asinh), ("acosh", doubles.acosh), ("exp", doubles.exp),
    ("expm1", doubles.expm1), ("cbrt", doubles.cbrt),
    ("sqrt", np.sqrt), ("rint", np.rint), ("degrees", np.degrees), ("radians", np.radians),
    ("sign signum", np.sign),
    # by Spark's formulas, whose parts are rounded, too
    ("cot", lambda x: 1 / doubles.tan(x)), ("sec", lambda x: 1 / doubles.cos(x)),
    ("csc", lambda x: 1 / doubles.sin(x)), ("atanh", lambda x: 0.5 * (doubles.log1p(x) - doubles.log1p(-x))),
):  # fmt: skip
    _of_doubles(_names, _of)
for _names, _of in (
    ("ln", doubles.log), ("log10", doubles.log10),
    ("log2", lambda x: doubles.log(x) / math.log(2)),  # in Spark, too, that of 2 ** 29 is more than 29
):  # fmt: skip
    _of_doubles(_names, _of, lambda x: x <= 0)
_of_doubles("log1p", doubles.log1p, lambda x: x <= -1)


@spark_function("log", "double, double? -> double")
def _log(a: Value, b: Value | None = None) -> Any:
    x = np.atleast_1d(to_numpy(a))
    with np.errstate(all="ignore"):
        if b is None:
            return pa.array(doubles.log(x), mask=x <= 0)
        y = np.atleast_1d(to_numpy(b))
        return pa.array(doubles.log(y) / doubles.log(x), mask=(x <= 0) | (y <= 0))


for _names, _of_two in (
    ("pow power", doubles.power),
    # Spark adds 0.0, which takes the sign of -0.0
    ("atan2", lambda y, x: doubles.atan2(y + 0.0, x + 0.0)),
    ("hypot", doubles.hypot),
):

    @spark_function(_names, "double, double -> double")
    def _of_pairs(a: Value, b: Value, formula: Callable[[Any, Any], Any] = _of_two) -> Any:
        with np.errstate(all="ignore"):
            return formula(np.atleast_1d(to_numpy(a)), np.atleast_1d(to_numpy(b)))


for _name, _value in (("pi", math.pi), ("e", math.e)):
    spark_function(_name, "-> double")(lambda value=_value: pa.scalar(value))


@spark_function("factorial", "int -> bigint")
def _factorial(a: Value) -> Any:
    x = to_numpy(a)
    table = np.array([math.factorial(n) for n in range(21)], np.int64)
    return pa.array(table[np.clip(x, 0, 20)], mask=(x < 0) | (x > 20))


# -- rounding ------------------------------------------------------------------------------------------------


def _half_even(values: Any, by: Any) -> Any:
    down = values // by
    rest = values - down * by
    up = (rest * 2 > by) | ((rest * 2 == by) & (down % 2 == 1))
    return down + np.where(up, 1, 0)


def _towards(values: Any, by: Any, *, up: bool) -> Any:
    return -(-values // by) if up else values // by


def exactly_rounded(
    a: Value, digits: int, result: pa.DataType, how: Callable[[Any, Any], Any], failures: Failures
) -> Any:
    """Numbers rounded to a number of digits after the point."""
    x = np.atleast_1d(to_numpy(a))
    if is_float(a.type):
        return _float_rounded(x.astype(np.float64), digits, how).astype(result.to_pandas_dtype())
    scale, x = types.scale_of(a.type), wide(x)
    if digits < scale:
        by = 10 ** (scale - digits)
        x = how(x, by) * by
    if not is_decimal(result):
        info = np.iinfo(result.to_pandas_dtype())
        large = np.asarray((x < info.min) | (x > info.max), bool)
        overflow(failures, large, result)
        return np.where(large, 0, x).astype(result.to_pandas_dtype())
    return fitted_decimals(x, scale, result, failures)


def _float_rounded(x: Any, digits: int, how: Callable[[Any, Any], Any]) -> Any:
    """Doubles as Spark rounds them: as the decimal that is written."""
    finite = np.isfinite(x) & (np.abs(x) < 1e17) if digits >= 0 else np.isfinite(x)
    texts = pa.array(np.where(finite, x, 0)).cast(pa.string())
    whole, scale = parsed_decimals(texts)
    by = np.array([10**n for n in range(700)], object)[np.clip(scale - digits, 0, 699)]
    unscaled = np.where(scale > digits, how(whole, by) * by, whole)
    rounded = _as_doubles(unscaled, scale)
    return np.where(finite & (scale > digits), rounded, x) + 0.0  # zero has no sign


def _as_doubles(whole: Any, scale: Any) -> Any:
    """Whole numbers at scales as doubles, rounded once."""
    texts = pc.binary_join_element_wise(pa.array(whole.astype(str)), pa.array(-scale).cast(pa.string()), "e")
    return np.asarray(texts.cast(pa.float64()))


def _round_result(kind: pa.DataType, digits: int) -> pa.DataType:
    if not is_decimal(kind):
        return kind
    if digits < 0:
        return bounded(max(kind.precision - kind.scale, -digits) + 1, 0)
    scale = min(kind.scale, digits)
    return pa.decimal128(min(kind.precision - kind.scale + scale + 1, 38), scale)


def round_result(name: str, kind: pa.DataType, digits: int | None) -> pa.DataType:
    """The type of round, bround, ceil and floor to a number of digits; None without that argument."""
    if name in {"round", "bround"}:
        return _round_result(kind, digits or 0)
    if digits is None:
        if is_decimal(kind):
            return bounded(kind.precision - kind.scale + 1, 0) if kind.scale else kind
        return pa.int64()
    decimal_type = types.decimal_for(kind)
    return _round_result(decimal_type, digits)


def _rounding(name: str, how: Callable[[Any, Any], Any]) -> None:
    @spark_function(f"${name}", "number, int -> N", result=lambda kind, _: kind, constant=[1])
    def _kernel(a: Value, digits: pa.Scalar, *, result: pa.DataType, failures: Failures) -> Any:
        if is_float(a.type) and result == pa.int64():
            x = np.atleast_1d(to_numpy(a)).astype(np.float64)
            rounded = np.ceil(x) if name == "ceil" else np.floor(x)
            return as_long(rounded)
        return exactly_rounded(a, digits.as_py(), result, how, failures)


_rounding("round", rounded_quotient)
_rounding("bround", _half_even)
_rounding("ceil", lambda x, by: _towards(x, by, up=True))
_rounding("floor", lambda x, by: _towards(x, by, up=False))


# -- bits ----------------------------------------------------------------------------------------------------


def _bits(name: str, operation: Callable[[Any, Any], Any]) -> None:
    def typed(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
        kind = types.common_of(kinds)
        kind = pa.int32() if kind == pa.null() else kind
        return ([kind, kind], kind) if kind is not None and is_integral(kind) else None

    @spark_function(name, typed)
    def _kernel(a: Value, b: Value) -> Any:
        return operation(to_numpy(a), to_numpy(b))


_bits("&", np.bitwise_and)
_bits("|", np.bitwise_or)
_bits("^", np.bitwise_xor)


spark_function("~", "=integer -> N", result=lambda kind: kind)(lambda a: ~to_numpy(a))


def _shift(name: str, operation: Callable[[Any, Any], Any]) -> None:
    @spark_function(name, "int, int -> int", "bigint, int -> bigint")
    def _kernel(a: Value, by: Value, *, result: pa.DataType) -> Any:
        x = np.atleast_1d(to_numpy(a))
        n = np.atleast_1d(to_numpy(by)) & (31 if result == pa.int32() else 63)
        return operation(x, n.astype(x.dtype)).astype(x.dtype)


_shift("shiftleft", np.left_shift)
_shift("shiftright", np.right_shift)
_shift(
    "shiftrightunsigned", lambda x, n: (x.view(f"u{x.itemsize}") >> n.astype(f"u{x.itemsize}")).view(x.dtype)
)


@spark_function("bit_count", "=bigint -> int", "=boolean -> int")
def _bit_count(a: Value) -> Any:
    x = np.atleast_1d(to_numpy(a)).astype(np.int64)
    return np.unpackbits(x.view(np.uint8)).reshape(len(x), 64).sum(axis=1).astype(np.int32)


@spark_function("bit_get getbit", "=bigint, int -> tinyint")
def _bit_get(a: Value, place: Value, *, failures: Failures) -> Any:
    n = np.atleast_1d(to_numpy(place))
    failures.at((n < 0) | (n > 63), "there is no such bit", "bits are counted from 0 at the right.")
    return ((to_numpy(a) >> np.clip(n, 0, 63)) & 1).astype(np.int8)


# -- several numbers -----------------------------------------------------------------------------------------


def _of_one_kind(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    texts = sum(one == pa.string() for one in kinds)
    kind = types.common_of(kinds)
    mixed = texts and any(one not in {pa.string(), pa.null()} for one in kinds)
    wrong = kind is None or types.has_map(kind) or mixed or len(kinds) < 2
    return None if wrong else ([kind] * len(kinds), kind)


def _extreme(name: str, *, greatest: bool) -> None:
    @spark_function(name, _of_one_kind, nulls=True)
    def _kernel(*values: Value, length: int) -> Any:
        arrays = [as_array(one, length) for one in values]
        both = pa.concat_arrays(arrays)
        order = dense_ranks(both).reshape(len(arrays), length)
        null = np.asarray(both.is_null()).reshape(len(arrays), length)
        order = np.where(null, -1 if greatest else np.iinfo(np.int64).max, order)
        best = order.argmax(axis=0) if greatest else order.argmin(axis=0)
        return both.take(pa.array(best * length + np.arange(length)))


_extreme("greatest", greatest=True)
_extreme("least", greatest=False)


@spark_function("width_bucket", "double, double, double, bigint -> bigint")
def _width_bucket(a: Value, low: Value, high: Value, count: Value, *, length: int) -> Any:
    x, first, last = (np.broadcast_to(to_numpy(one), length) for one in (a, low, high))
    n = longs(count, length)
    bad = (
        (n <= 0) | (n == 2**63 - 1) | np.isnan(x) | (first == last) | ~np.isfinite(first) | ~np.isfinite(last)
    )
    down = first > last
    with np.errstate(all="ignore"):
        share = np.where(down, (first - x) / (first - last), (x - first) / (last - first))
        place = np.where(bad, 0, n * share)
        inside = as_long(np.where(np.isfinite(place), place, 0)) + 1
    bucket = np.where(share < 0, 0, np.where(share >= 1, n + 1, inside))
    return pa.array(bucket, mask=bad)
