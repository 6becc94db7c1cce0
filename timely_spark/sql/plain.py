"""Columns as numpy arrays, and back: for kernels, which get no nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.sql import types
from timely_spark.sql.registry import Value

_MASK = (1 << 64) - 1


def to_numpy(value: Value) -> Any:
    """The values of numbers, truths, dates (days), times and intervals (microseconds); one of a scalar."""
    if isinstance(value, pa.Scalar):
        return to_numpy(
            pa.array([value.as_py()], value.type) if types.is_decimal(value.type) else pa.repeat(value, 1)
        )[0]
    if types.is_decimal(value.type):
        return unscaled(value)
    if isinstance(value, pa.ExtensionArray):
        value = value.storage
    if pa.types.is_date32(value.type):
        value = value.view(pa.int32())
    elif pa.types.is_temporal(value.type):
        value = value.view(pa.int64())
    return value.to_numpy(zero_copy_only=False)


def longs(value: Value, length: int) -> Any:
    """The numbers of so many rows as longs."""
    return np.broadcast_to(to_numpy(value), length).astype(np.int64)


def unscaled(value: pa.Array) -> Any:
    """Decimals without their point, as whole numbers: of 64 bits if they fit, else Python's."""
    raw = np.frombuffer(value.buffers()[1], np.int64)
    pairs = raw[2 * value.offset : 2 * (value.offset + len(value))].reshape(-1, 2)
    low, high = pairs[:, 0], pairs[:, 1]
    if value.type.precision <= 18:
        return low
    return high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object)


def decimals(values: Any, kind: pa.DataType) -> pa.Array:
    """Unscaled integers as decimals of a type."""
    values = np.atleast_1d(values)
    pairs = np.empty((len(values), 2), np.int64)
    if values.dtype == object:
        pairs[:, 0] = (values & _MASK).astype(np.uint64).view(np.int64)
        pairs[:, 1] = (values >> 64).astype(np.int64)
    else:
        pairs[:, 0] = values
        pairs[:, 1] = values.astype(np.int64) >> 63
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(pairs)])


def checked_decimals(digits: Any, kind: pa.DataType) -> pa.Array:
    """Unscaled integers as decimals of a type.

    Raises:
        SchemaError: one has too many digits.
    """
    if len(digits) and max(abs(digits)) >= 10**kind.precision:
        raise too_many_digits(kind)
    return decimals(digits, kind)


def too_many_digits(kind: pa.DataType) -> SchemaError:
    """The error of a sum or an average that no decimal of a type can hold."""
    msg = f"a sum or an average is too large for {types.name_of(kind)}"
    return SchemaError(msg, hint="cast the argument to a decimal of fewer digits, or to double.")


def rounded_quotient(values: Any, by: Any) -> Any:
    """Whole numbers divided by positive ones, half away from zero."""
    sign = np.where(values < 0, -1, 1)
    return sign * ((abs(values) * 2 + by) // (2 * by))


def rescaled(values: Any, before: int, after: int) -> Any:
    """Whole numbers at one scale, at another; half away from zero."""
    if after >= before:
        return values * 10 ** (after - before)
    return rounded_quotient(values, 10 ** (before - after))


def wide(values: Any) -> Any:
    """Whole numbers as Python's, which never overflow; one number as an array of one."""
    return np.atleast_1d(values).astype(object)


def as_long(x: Any) -> Any:
    """Doubles as Java casts them to a long: NaN is 0, and what is too large the greatest."""
    x = np.asarray(x, np.float64)
    inside = np.isfinite(x) & (np.abs(x) < 2.0**63)
    longs = np.where(inside, x, 0).astype(np.int64)
    return np.where(x >= 2.0**63, np.int64(2**63 - 1), np.where(x <= -(2.0**63), np.int64(-(2**63)), longs))
