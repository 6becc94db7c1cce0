"""Arithmetic: the operators, their types as Spark's, and errors where a number is too large."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.sql import types
from timely_spark.sql.plain import decimals, rescaled, rounded_quotient, to_numpy, wide
from timely_spark.sql.registry import Failures, Typed, Value, spark_function
from timely_spark.sql.types import bounded, common, decimal_for, is_decimal, is_float, is_integral, is_number


def overflow(failures: Failures, rows: Any, result: pa.DataType, instead: str = "a wider type") -> None:
    """Rows whose number is too large for the type of the result."""
    hint = f"cast to a wider type, such as decimal; or use {instead}, which gives null there."
    failures.at(rows, f"the number is too large for {types.name_of(result)}", hint)


def _numeric(decimal: Callable[[pa.DataType, pa.DataType], pa.DataType]) -> Callable[..., Typed | None]:
    """The types of an operator of numbers; `decimal` is the type of its result for decimals."""

    def typed(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
        kind = common(*kinds) if len(kinds) == 2 else None
        if kind in {pa.null(), pa.string()}:
            kind = pa.float64()
        if kind is None or not is_number(kind):
            return None
        if not is_decimal(kind):
            return [kind, kind], kind
        a, b = (decimal_for(one if is_number(one) else kind) for one in kinds)
        return [a, b], decimal(a, b)

    return typed


def _sum_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    scale = max(a.scale, b.scale)
    return bounded(max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale)


def _product_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    return bounded(a.precision + b.precision + 1, a.scale + b.scale)


def _quotient_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    scale = max(6, a.scale + b.precision + 1)
    return bounded(a.precision - a.scale + b.scale + scale, scale)


def _rest_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    scale = max(a.scale, b.scale)
    return bounded(min(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def fitted_decimals(values: Any, scale: int, result: pa.DataType, failures: Failures) -> pa.Array:
    """Exact whole numbers at a scale, as decimals of the result's type."""
    values = np.atleast_1d(rescaled(values, scale, result.scale))
    large = np.asarray(abs(values) >= 10**result.precision, bool)
    overflow(failures, large, result)
    return decimals(np.where(large, 0, values), result)


def _at_one_scale(a: Value, b: Value, result: pa.DataType) -> tuple[Any, Any, int]:
    """The whole numbers of two decimals at their greater scale."""
    scale = max(a.type.scale, b.type.scale)
    whole = max(a.type.precision - a.type.scale, b.type.precision - b.type.scale)
    x, y = to_numpy(a), to_numpy(b)
    if whole + scale + 1 > 18:
        x, y = wide(x), wide(y)
    return rescaled(x, a.type.scale, scale), rescaled(y, b.type.scale, scale), scale


def _sum(plus: Callable[[Any, Any], Any], sign: int) -> Callable[..., Any]:
    def kernel(a: Value, b: Value, *, result: pa.DataType, failures: Failures) -> Any:
        if is_decimal(result):
            x, y, scale = _at_one_scale(a, b, result)
            return fitted_decimals(plus(x, y), scale, result, failures)
        x, y = to_numpy(a), to_numpy(b)
        with np.errstate(all="ignore"):
            total = plus(x, y)
            if not is_float(result):
                overflow(
                    failures,
                    ((total ^ x) & (total ^ (y if sign > 0 else ~y))) < 0,
                    result,
                    "try_add" if sign > 0 else "try_subtract",
                )
        return total

    return kernel


spark_function("+", _numeric(_sum_type))(_sum(operator.add, 1))
spark_function("-", _numeric(_sum_type))(_sum(operator.sub, -1))
spark_function("try_add", _numeric(_sum_type), tries=True)(_sum(operator.add, 1))
spark_function("try_subtract", _numeric(_sum_type), tries=True)(_sum(operator.sub, -1))


def _product(a: Value, b: Value, *, result: pa.DataType, failures: Failures) -> Any:
    x, y = to_numpy(a), to_numpy(b)
    if is_decimal(result):
        if a.type.precision + b.type.precision > 18:
            x, y = wide(x), wide(y)
        return fitted_decimals(x * y, a.type.scale + b.type.scale, result, failures)
    with np.errstate(all="ignore"):
        product = x * y
        if result == pa.int64():
            # the quotient tells of an overflow, but for the least number times -1
            least = np.iinfo(np.int64).min
            bad = ((x != 0) & (product // np.where(x == 0, 1, x) != y)) | ((x == -1) & (y == least))
            overflow(failures, bad, result, "try_multiply")
        elif is_integral(result):
            exact = x.astype(np.int64) * y.astype(np.int64)
            overflow(failures, exact != product, result, "try_multiply")
    return product


spark_function("*", _numeric(_product_type))(_product)
spark_function("try_multiply", _numeric(_product_type), tries=True)(_product)


def _zero(failures: Failures, divisor: Any) -> Any:
    """Rows that divide by zero; the divisor with 1 instead."""
    zero = np.asarray(divisor == 0, bool)
    failures.at(zero, "division by zero", "use try_divide, or NULLIF(divisor, 0), which give null there.")
    return np.where(zero, 1, divisor)


def _quotient_types(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    typed = _numeric(_quotient_type)(kinds, zone)
    return typed if typed is None or is_decimal(typed[1]) else ([pa.float64()] * 2, pa.float64())


def _quotient(a: Value, b: Value, *, result: pa.DataType, failures: Failures) -> Any:
    x, y = to_numpy(a), _zero(failures, to_numpy(b))
    if not is_decimal(result):
        with np.errstate(all="ignore"):
            return x / y
    # as Spark: first to 38 digits after the point, then to the scale of the result
    x, y = wide(x), wide(y)
    up = 38 + b.type.scale - a.type.scale
    x, y = x * 10 ** max(up, 0), y * 10 ** max(-up, 0)
    return fitted_decimals(rounded_quotient(np.where(y < 0, -x, x), abs(y)), 38, result, failures)


spark_function("/", _quotient_types)(_quotient)
spark_function("try_divide", _quotient_types, tries=True)(_quotient)


def _remainder(a: Value, b: Value, *, result: pa.DataType, failures: Failures, positive: bool = False) -> Any:
    """What is left of a division that rounds to zero; or, of a negative rest, that of `rest + b`."""
    exact = is_decimal(result)
    x, y, scale = _at_one_scale(a, b, result) if exact else (to_numpy(a), to_numpy(b), 0)
    y, of = _zero(failures, y), _exact_rest if exact else np.fmod
    with np.errstate(all="ignore"):
        rest = of(x, y)
        rest = np.where(rest < 0, of(rest + y, y), rest) if positive else rest
    return fitted_decimals(rest, scale, result, failures) if exact else rest.astype(result.to_pandas_dtype())


def _exact_rest(x: Any, y: Any) -> Any:
    return np.where(x < 0, -1, 1) * (abs(x) % abs(y))


spark_function("% mod", _numeric(_rest_type))(_remainder)
spark_function("try_mod", _numeric(_rest_type), tries=True)(_remainder)
spark_function("pmod", _numeric(_rest_type))(partial(_remainder, positive=True))


def _whole_quotient_types(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    typed = _numeric(_quotient_type)(kinds, zone)
    if typed is None or is_float(typed[1]):
        return None
    return (typed[0], pa.int64()) if is_decimal(typed[1]) else ([pa.int64()] * 2, pa.int64())


@spark_function("div", _whole_quotient_types, "=daytime, =daytime -> bigint", "=months, =months -> bigint")
def _whole_quotient(a: Value, b: Value, *, result: pa.DataType, failures: Failures) -> Any:
    if is_decimal(a.type):
        x, y, _ = _at_one_scale(a, b, a.type)
        x, y = wide(x), wide(y)
    else:
        x, y = to_numpy(a), to_numpy(b)
    y = _zero(failures, y)
    with np.errstate(all="ignore"):
        down = x // y
        quotient = down + ((down < 0) & (down * y != x))
        least = -(2**63)
        if is_decimal(a.type):
            large = np.asarray((quotient < least) | (quotient >= 2**63), bool)
            quotient = np.where(large, 0, quotient).astype(np.int64)
        else:
            large = (x == least) & (y == -1)
    overflow(failures, large, result)
    return quotient


def _of_sign(name: str, changed: Callable[[Any], Any]) -> None:
    """A function of a number, or an interval, that only may change its sign."""

    @spark_function(name, "number -> N", "interval -> N", result=lambda kind: kind)
    def _kernel(a: Value, *, result: pa.DataType, failures: Failures) -> Any:
        x = to_numpy(a)
        if is_decimal(result):
            return decimals(changed(x), result)
        with np.errstate(all="ignore"):
            if not is_float(result):
                overflow(failures, x == np.iinfo(x.dtype).min, result)
            return changed(x)


_of_sign("negative", operator.neg)
_of_sign("abs", abs)


spark_function("positive", "number -> N", "interval -> N", result=lambda kind: kind)(lambda a: a)
