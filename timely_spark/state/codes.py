"""Dictionary codes: integers for the values of columns, packed into one, so that one sort groups the rows.

Equal values of a column have equal codes, within one table only. As in `hashing`, null equals null, NaN
equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.state.arrow import Hashes, Indices, flat
from timely_spark.state.grouping import Groups, changes, run_starts, sort
from timely_spark.state.hashing import words

Codes = npt.NDArray[np.uint64]

_U = np.uint64
_WIDTH = 64
#: fewer rows are sorted without packing, which takes as long as sorting so many
_FEW = 1 << 8
#: different hashes mostly differ in so many of their first bits
_BEGIN = 24


def numbers_of(table: pa.Table, columns: Sequence[str]) -> list[Indices]:
    """Arrays of integers that are equal in two rows where the rows' values in these columns are.

    Example:
        >>> [each.tolist() for each in numbers_of(pa.table({"a": ["x", None, "x"]}), ["a"])]
        [[1, 0, 1], [0, 0, 0]]
    """
    codes: list[Indices] = []
    for column in columns:
        codes += _of_values(flat(table.column(column)))
    return codes


def _of_values(values: pa.Array) -> list[Indices]:
    """A number for each value; and before it, if there are nulls, whether the value is valid."""
    codes: list[Indices] = []
    if values.null_count:
        codes.append(pc.is_valid(values).cast(pa.int64()).to_numpy(zero_copy_only=False))
    if not pa.types.is_null(values.type):
        codes.append(_numbers(values))
    return codes


def _of_nested(values: pa.Array) -> Indices:
    """The codes of structs by those of their fields, and of lists and maps by those of their elements."""
    if pa.types.is_struct(values.type):
        return runs([each for part in values.flatten() for each in _of_values(part)], len(values)).of
    if pa.types.is_map(values.type):
        entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
    else:
        if not pa.types.is_large_list(values.type):
            values = values.cast(pa.large_list(values.type.value_type))
        entries = values.values
    codes = runs(_of_values(entries), len(entries)).of.astype(np.int64)
    ends = values.offsets.to_numpy().astype(np.int64) * codes.itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(codes)]
    texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)
    indices: Indices = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), indices, 0)


def _numbers(values: pa.Array) -> Indices:
    kind = values.type
    if pa.types.is_nested(kind):
        return _of_nested(values)
    if pa.types.is_floating(kind):
        return words(values).view(np.int64)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int64() if kind.bit_width == _WIDTH else pa.int32())
    elif not pa.types.is_integer(kind):
        values = values.dictionary_encode().indices
    integers: npt.NDArray[np.integer] = (values.fill_null(0) if values.null_count else values).to_numpy(
        zero_copy_only=False
    )
    return integers.view(np.int64) if integers.dtype == np.uint64 else integers.astype(np.int64, copy=False)


def runs(numbers: Sequence[Indices], rows: int) -> Groups:
    """The rows grouped, and sorted, by several numbers, the first of them first.

    Example:
        >>> a, b = np.array([1, 0, 1, 0]), np.array([7, 8, 7, 2])
        >>> groups = runs([a, b], 4)
        >>> groups.order.tolist(), groups.starts.tolist()
        ([3, 1, 0, 2], [0, 1, 2])
    """
    if rows < 2:
        return Groups(np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    if numbers and rows < _FEW:
        order = np.lexsort(numbers[::-1])
        ordered = [each[order] for each in numbers]
        new = np.ones(rows, np.bool_)
        np.not_equal(ordered[0][1:], ordered[0][:-1], out=new[1:])
        for each in ordered[1:]:
            new[1:] |= each[1:] != each[:-1]
        return Groups(order, new.nonzero()[0])
    codes, bits = _packed(numbers, rows)
    return _sorted(codes, bits)


def by_hash(hashed: Hashes, numbers: Sequence[Indices]) -> Groups:
    """The rows grouped, and sorted, by hashes and then by several numbers: as `runs`, in one sort as a rule.

    Example:
        >>> groups = by_hash(np.array([5, 2, 5, 2], np.uint64) << np.uint64(60), [np.array([8, 7, 1, 7])])
        >>> groups.order.tolist(), groups.starts.tolist()
        ([1, 3, 2, 0], [0, 2, 3])
    """
    low = len(hashed).bit_length()
    codes, bits = _packed(numbers, len(hashed))
    if bits + low > _WIDTH - _BEGIN:
        codes, bits = _ranks(codes)
    room = _WIDTH - bits - low
    groups = _sorted(hashed >> _U(_WIDTH - room) << _U(bits) | codes, room + bits)
    order, ordered = groups.order, hashed[groups.order]
    new = changes(ordered)
    new[groups.starts] = True
    if (ordered[1:] < ordered[:-1]).any():  # hashes that begin alike
        order = order[np.argsort(ordered, kind="stable")]
        new = changes(hashed[order]) | changes(codes[order])
    return Groups(order, new.nonzero()[0])


def adjacent(table: pa.Table, columns: Sequence[str]) -> Groups:
    """The rows grouped by columns; rows with equal values must be adjacent already.

    Example:
        >>> adjacent(pa.table({"a": ["x", "x", "u", "x"]}), ["a"]).ids.tolist()
        [0, 0, 1, 2]
    """
    new = [changes(each) for each in numbers_of(table, columns)]
    return Groups(np.arange(table.num_rows), np.logical_or.reduce(new).nonzero()[0])


def _packed(numbers: Sequence[Indices], rows: int) -> tuple[Codes, int]:
    """One code for each row, in the order of its several numbers; and how many bits a code has.

    Each number takes the bits of its range. Numbers that do not fit are replaced by their ranks.
    """
    codes, bits = np.zeros(rows, _U), 0
    for each in numbers:
        low, high = int(each.min()), int(each.max())
        more = (high - low).bit_length()
        if not more:
            continue
        part = each.view(_U) - _U(low % (1 << _WIDTH))  # also right where the difference wraps around
        if bits + more > _WIDTH and more >= bits:
            part, more = _ranks(part)
        if bits + more > _WIDTH:
            codes, bits = _ranks(codes)
        if bits + more > _WIDTH:  # ranks of the wider of the two were not enough
            part, more = _ranks(part)
        codes = codes << _U(more) | part if bits else part
        bits += more
    return codes, bits


def _ranks(codes: Codes) -> tuple[Codes, int]:
    groups = _sorted(codes, _WIDTH)
    return groups.of.view(_U), len(groups.starts).bit_length()


def _sorted(codes: Codes, bits: int) -> Groups:
    n = len(codes)
    if not bits:
        return Groups(np.arange(n), np.zeros(1, np.int64))
    low = (n - 1).bit_length()
    if (codes[1:] >= codes[:-1]).all():
        order, ordered = np.arange(n), codes
    elif bits + low <= _WIDTH:  # sorting values is five times as fast as sorting rows by value
        ordered = codes << _U(low) | np.arange(n, dtype=_U)
        sort(ordered)
        order = (ordered & _U((1 << low) - 1)).view(np.int64)
        ordered >>= _U(low)
    else:
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
    return Groups(order, run_starts(ordered))
