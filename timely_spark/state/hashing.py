"""The partition function H and the equality of keys, on whole columns.

H is part of the on-disk format: it never changes, and is equal in every process and for every integer width.
As in Spark's grouping, null is one key, NaN is one key, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.state.arrow import Hashes, Indices, Mask, flat

HASH = "__timely_hash"
"""The column that has H of each row, which its readers then need not compute."""

_U = np.uint64
#: the constants of `mix`: to make one takes as long as to use it
_ADDED, _FIRST, _SECOND = _U(0x9E37_79B9_7F4A_7C15), _U(0xBF58_476D_1CE4_E5B9), _U(0x94D0_49BB_1331_11EB)
_BY_30, _BY_27, _BY_31 = _U(30), _U(27), _U(31)
_NULL = _U(0x7C3A_91D5_E86B_20F7)
_PRIME = _U(0x0000_0100_0000_01B3)
#: bytes, or rows, that are hashed at once
_PIECE = 1 << 20
#: words that are mixed at once: they stay in the processor's cache
_CACHED = 1 << 15


def mix(x: Hashes) -> Hashes:
    """The finaliser of splitmix64, a bijection on 64 bits."""
    if len(x) > _CACHED:
        mixed = np.empty_like(x)
        for start in range(0, len(x), _CACHED):
            piece = slice(start, start + _CACHED)
            mixed[piece] = mix(x[piece])
        return mixed
    x = x + _ADDED
    x ^= x >> _BY_30
    x *= _FIRST
    x ^= x >> _BY_27
    x *= _SECOND
    x ^= x >> _BY_31
    return x


def unmix(x: Hashes) -> Indices:
    """Invert `mix`: a key of one integer, from H.

    >>> unmix(mix(np.array([-7], np.int64).view(np.uint64))).tolist()
    [-7]
    """
    x = (x ^ (x >> _U(31)) ^ (x >> _U(62))) * _U(0x3196_42B2_D24D_8EC3)
    x = (x ^ (x >> _U(27)) ^ (x >> _U(54))) * _U(0x96DE_1B17_3F11_9089)
    x = (x ^ (x >> _U(30)) ^ (x >> _U(60))) - _U(0x9E37_79B9_7F4A_7C15)
    return x.view(np.int64)


def hashes(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """H: a 64-bit hash for each row of `table`, of its values in `columns` in that order.

    Example:
        >>> ints, longs = pa.table({"k": pa.array([7], pa.int8())}), pa.table({"other": [7]})
        >>> bool(hashes(ints, ["k"])[0] == hashes(longs, ["other"])[0])
        True
    """
    result: Hashes | None = None
    for column in columns:
        hashed = _hash_column(flat(table.column(column)))
        result = hashed if result is None else mix(result * _PRIME ^ hashed)
    return result if result is not None else np.zeros(table.num_rows, _U)


def _hash_column(column: pa.Array) -> Hashes:
    kind = column.type
    nulls = column.null_count
    if pa.types.is_integer(kind):
        result = mix(words(column))
    elif (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        result = _hash_bytes(column)
    elif pa.types.is_null(kind):
        return np.full(len(column), mix(np.array([_NULL]))[0], _U)
    elif pa.types.is_nested(kind):
        result = _hash_nested(column)
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        result = _hash_bytes(column.cast(pa.string() if pa.types.is_decimal(kind) else pa.binary()))
    else:
        result = mix(words(column))
    if nulls:
        result[column.is_null().to_numpy(zero_copy_only=False)] = mix(np.array([_NULL]))[0]
    return result


def _hash_nested(column: pa.Array) -> Hashes:
    """The hashes of structs by those of their fields, and of lists and maps by those of their elements."""
    if pa.types.is_struct(column.type):
        result = np.zeros(len(column), _U)
        for part in column.flatten():
            result = mix(result * _PRIME ^ _hash_column(part))
        return result
    elements, starts, lengths = _elements(column)
    place = np.arange(len(elements)) - np.repeat(starts, lengths)
    hashed = mix(_hash_column(elements) * _PRIME ^ mix(place.astype(_U)))
    sums = np.concatenate([np.zeros(1, _U), np.cumsum(hashed, dtype=_U)])
    return mix((sums[starts + lengths] - sums[starts]) ^ mix(lengths.astype(_U)))


def _elements(column: pa.Array) -> tuple[pa.Array, Indices, Indices]:
    """The elements of lists or the entries of maps; for each row its first element, and how many it has."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    offsets = column.offsets.to_numpy().astype(np.int64)
    elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    return elements, offsets[:-1] - offsets[0], np.diff(offsets)


def words(column: pa.Array) -> Hashes:
    """A column of numbers or times as 64-bit words; equal values have equal words; nulls have any."""
    kind = column.type
    if pa.types.is_integer(kind):
        pass
    elif pa.types.is_floating(kind):
        values = (
            column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        )  # -0.0 + 0.0 is 0.0
        return np.where(np.isnan(values), np.nan, values).view(_U)
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    column = column.fill_null(0) if column.null_count else column
    words: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return words.view(_U) if words.dtype == np.uint64 else words.astype(np.int64).view(_U)


def _hash_bytes(column: pa.Array) -> Hashes:
    """The polynomial hash of each value's bytes, from prefix sums, for about a megabyte at once.

    The computation takes about 30 times as much memory as the bytes.
    """
    column = column.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = column.buffers()
    if len(column) == 0:
        return np.zeros(0, _U)
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.zeros(0, np.uint8)
    if data_buffer is not None and data_buffer.size:
        data = np.frombuffer(data_buffer, np.uint8)
    result = np.empty(len(column), _U)
    start = 0
    while start < len(column):
        fitting = int(np.searchsorted(offsets, offsets[start] + _PIECE, "right")) - 1
        end = min(max(fitting, start + 1), start + _PIECE)  # at least one value, however long
        result[start:end] = _hash_piece(data, offsets[start : end + 1])
        start = end
    return result


def _hash_piece(data: npt.NDArray[np.uint8], offsets: Indices) -> Hashes:
    lengths = np.diff(offsets)
    data = data[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    place = np.arange(len(data)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()) + 1, _PRIME), dtype=_U)
    sums = np.concatenate([np.zeros(1, _U), np.cumsum((data.astype(_U) + _U(1)) * powers[place], dtype=_U)])
    return mix((sums[starts + lengths] - sums[starts]) ^ mix(lengths.astype(_U)))


def same(left: pa.Table, right: pa.Table, left_on: Sequence[str], right_on: Sequence[str]) -> Mask:
    """Row by row, whether two tables of equal length have equal keys: null equals null, NaN equals NaN.

    >>> same(pa.table({"k": [1, None, 2]}), pa.table({"id": [1, None, 3]}), ["k"], ["id"]).tolist()
    [True, True, False]
    """
    result = np.ones(left.num_rows, np.bool_)
    for left_column, right_column in zip(left_on, right_on, strict=True):
        a, b = flat(left.column(left_column)), flat(right.column(right_column))
        if a.type != b.type and pa.types.is_integer(a.type) and pa.types.is_integer(b.type):
            unsigned = pa.uint64() in {a.type, b.type}
            a, b = a.cast(pa.int64(), safe=False), b.cast(pa.int64(), safe=False)
            if unsigned:  # values from 2**63 on became negative in the cast, and equal no signed value
                result &= pc.fill_null(pc.greater_equal(a, 0), fill_value=True).to_numpy(zero_copy_only=False)
        result &= _same_values(a, b)
    return result


def _same_values(a: pa.Array, b: pa.Array) -> Mask:
    if pa.types.is_null(a.type):
        return np.ones(len(a), np.bool_)
    if pa.types.is_nested(a.type):
        return _same_nested(a, b)
    equal = pc.equal(a, b)
    if equal.null_count:
        equal = pc.if_else(equal.is_valid(), equal, pc.and_(a.is_null(), b.is_null()))
    if pa.types.is_floating(a.type):
        both = pc.and_(pc.is_nan(a), pc.is_nan(b)).fill_null(fill_value=False)
        equal = pc.or_(equal, both)
    result: Mask = equal.to_numpy(zero_copy_only=False)
    return result


def _same_nested(a: pa.Array, b: pa.Array) -> Mask:
    valid, other = (one.is_valid().to_numpy(zero_copy_only=False) for one in (a, b))
    result: Mask = valid == other
    if pa.types.is_struct(a.type):
        for one, two in zip(a.flatten(), b.flatten(), strict=True):
            result &= _same_values(one, two)
        return result
    (left, starts, sizes), (right, others, lengths) = _elements(a), _elements(b)
    result &= ~valid | (sizes == lengths)
    rows = np.flatnonzero(result & valid)
    many = sizes[rows]
    place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    first, second = (pa.array(np.repeat(begins[rows], many) + place) for begins in (starts, others))
    wrong = ~_same_values(left.take(first), right.take(second))
    result[np.repeat(rows, many)[wrong]] = False
    return result


def exact(table: pa.Table, columns: Sequence[str]) -> bool:
    """Whether different keys have different hashes: keys of one integer column, or of no column."""
    return not columns or (
        len(columns) == 1
        and pa.types.is_integer(kind := table.schema.field(columns[0]).type)
        and (kind != pa.uint64() and table.column(columns[0]).null_count == 0)
    )
