"""Sums that are exact, or an error: none wraps around, and none depends on an order.

Integers are added in limbs of 32 bits, each a long. A decimal is the integer of its digits; a double is an
integer times a power of two, and those whose powers are near each other are added together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.state.arrow import Doubles, Indices, Longs, Mask, abs_bound, flat

_LOW = (1 << 32) - 1

#: the scales of NaN and of infinities, beyond those of numbers
_NAN, _INFINITE, _MINUS_INFINITE = 100, 101, 102
#: how many groups are added up at once
_AT_ONCE = 1 << 18


# -- limbs ---------------------------------------------------------------------------------------------------


def limbs_of(values: Any) -> tuple[Longs | None, list[Longs]]:
    """Numbers in limbs, the least one first; and the scales of doubles, None for other numbers.

    Integers, and decimals of at most 18 digits, have two limbs, longer decimals four. A double is an
    integer of four limbs, times ``2**(64 * scale)``. Each limb has a sign, so that those of -1 are small.
    Null is 0.

    >>> scales, limbs = limbs_of(pa.array([-1, 1 << 32, None]))
    >>> scales, [limb.tolist() for limb in limbs]
    (None, [[-1, 0, 0], [0, 1, 0]])
    >>> scales, limbs = limbs_of(pa.array([1.0, -3.0, 2.0**64, None]))
    >>> scales.tolist(), [limb.tolist() for limb in limbs]
    ([-1, -1, 0, 0], [[0, 0, 0, 0], [0, 0, 0, 0], [1, -3, 1, 0], [0, 0, 0, 0]])
    """
    values = flat(values)
    kind = values.type
    if pa.types.is_floating(kind):
        return _limbs_of_doubles(values.cast(pa.float64()).fill_null(0.0).to_numpy())
    if pa.types.is_duration(kind):
        values = values.cast(pa.duration("us"), safe=False)
    if not pa.types.is_decimal(kind):
        return None, _halves_of(as_sums(values, pa.int64()).fill_null(0).to_numpy())
    values = as_sums(values, pa.decimal128(min(kind.precision, 38), kind.scale))  # of 64 or 256 bits
    raw = np.frombuffer(values.buffers()[1], np.int64)
    words = raw[2 * values.offset : 2 * (values.offset + len(values))].reshape(-1, 2)
    if values.null_count:
        words = np.where(values.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)
    low, high = words.T
    return None, _limbs_of_words(low, high) if kind.precision > 18 else _halves_of(low)


def _limbs_of_doubles(doubles: Doubles) -> tuple[Longs, list[Longs]]:
    """`limbs_of` for doubles: NaN and infinities have limbs of 0, and each a scale of its own."""
    fractions, exponents = np.frexp(doubles)
    with np.errstate(invalid="ignore"):
        digits = np.ldexp(fractions, 53).astype(np.int64)
    exponents = np.where(digits == 0, 53, exponents).astype(np.int64) - 53
    scales, by = exponents >> 6, exponents & 63
    high = np.where(by == 0, digits >> 63, digits >> (64 - np.maximum(by, 1)))
    limbs = _limbs_of_words(digits << by, high)
    odd = ~np.isfinite(doubles)
    if odd.any():
        signs = np.where(doubles > 0, _INFINITE, _MINUS_INFINITE)
        scales = np.where(odd, np.where(np.isnan(doubles), _NAN, signs), scales)
        limbs = [np.where(odd, 0, limb) for limb in limbs]
    return scales, limbs


def _limbs_of_words(low: Longs, high: Longs) -> list[Longs]:
    """The limbs of ``high * 2**64 + low``, where `low` has no sign."""
    return _halves_of(low) + _halves_of(high + (low < 0))


def _halves_of(values: Longs) -> list[Longs]:
    low = values.astype(np.int32).astype(np.int64)
    return [low, (values >> 32) + (low < 0)]


# -- sums of limbs -------------------------------------------------------------------------------------------


def sums_of_limbs(limbs: Sequence[Longs], scale: int, kind: pa.DataType, null: Mask) -> pa.Array:
    """The sums of numbers from those of their limbs; null where `null` is.

    Args:
        limbs: the sum of each limb.
        scale: how many of the decimal digits come after the point: 0 for integers.
        kind: the type of the sums.

    Raises:
        SchemaError: one does not fit.
    """
    digits, carry = _carried(np.column_stack(limbs))
    words = [low | (high << 32) for low, high in zip(digits[::2], digits[1::2], strict=True)]
    words += [carry, *[carry >> 63] * (3 - len(words))]
    sums = pa.Array.from_buffers(
        pa.decimal256(76, scale), len(carry), [None, pa.py_buffer(np.column_stack(words))]
    )
    sums = pc.if_else(pa.array(null), pa.scalar(None, sums.type), sums)
    return as_sums(sums, pa.int64()).cast(kind) if pa.types.is_duration(kind) else as_sums(sums, kind)


def _carried(limbs: Longs) -> tuple[list[Longs], Longs]:
    """Limbs from 0 to 2^32, and what is carried beyond the last one. A row is a number."""
    digits, carry = list[Longs](), np.zeros(len(limbs), np.int64)
    for limb in limbs.T:
        carry = carry + limb
        digits.append(carry & _LOW)
        carry = carry >> 32
    return digits, carry


def sums_of_scaled_limbs(of: Indices, count: int, scales: Longs, limbs: Sequence[Longs]) -> Doubles:
    """The sums of groups of doubles, each rounded once; 0 for a group without rows.

    Args:
        of: the group of each row, ascending.
        count: the number of groups.
        scales: the scale of each row, as by `limbs_of`.
        limbs: the sum of each limb.

    Example:
        >>> scales, limbs = limbs_of(pa.array([1e100, 0.1, -1e100, 0.2]))
        >>> sums_of_scaled_limbs(np.array([0, 0, 0, 1]), 2, scales, limbs).tolist()
        [0.1, 0.2]
    """
    if count > _AT_ONCE:
        return np.concatenate(
            [
                sums_of_scaled_limbs(of[rows] - first, some, scales[rows], [limb[rows] for limb in limbs])
                for rows, first, some in _halves(of, count)
            ]
        )
    finite = scales < _NAN
    table, least = _by_place(of[finite], count, scales[finite], [limb[finite] for limb in limbs])
    sums = _rounded_with_sign(table, least)
    if not finite.all():
        with np.errstate(invalid="ignore"):
            odd = np.select([scales == _INFINITE, scales == _MINUS_INFINITE], [np.inf, -np.inf], np.nan)
            np.add.at(sums, of[~finite], odd[~finite])
    return sums


def _halves(of: Indices, count: int) -> Iterator[tuple[slice, int, int]]:
    """The rows of the first half of the groups, and of the others; with the first group and their number."""
    end, half = int(np.searchsorted(of, count // 2)), count // 2
    yield slice(0, end), 0, half
    yield slice(end, None), half, count - half


def _by_place(of: Indices, count: int, scales: Longs, limbs: Sequence[Longs]) -> tuple[Longs, int]:
    """The sums of limbs by the group and by 32 bits of place, and the scale of the first place."""
    least = int(scales.min(initial=_NAN))
    table = np.zeros((count, 2 * (int(scales.max(initial=least)) - least) + len(limbs) + 2), np.int64)
    for n, limb in enumerate(limbs):
        np.add.at(table, (of, 2 * (scales - least) + n), limb)
    return table, least


def _rounded_with_sign(table: Longs, scale: int) -> Doubles:
    """The doubles next to numbers in limbs, a row each; the table changes."""
    _, carry = _carried(table)
    table[carry < 0] *= -1
    return np.where(carry < 0, -1.0, 1.0) * _rounded(np.column_stack(_carried(table)[0]), 64 * scale)


def _rounded(digits: Longs, exponent: int) -> Doubles:
    """The doubles next to positive integers of 32 bits a column, times a power of two; ties to even."""
    rows, width = np.arange(len(digits)), digits.shape[1]
    top = np.maximum(width - 1 - np.argmax(digits[:, ::-1] != 0, axis=1), 2)
    first, second, third = (digits[rows, top - n].astype(np.uint64) for n in range(3))
    below = (np.arange(width) < (top - 2)[:, None]) & (digits != 0)
    left = 32 - np.frexp(first.astype(np.float64))[1].astype(np.uint64)  # the zeros before the highest bit
    bits = (((first << np.uint64(32)) | second) << left) | (third >> (np.uint64(32) - left))
    rest = ((third << left) & np.uint64(_LOW) != 0) | below.any(axis=1)
    with np.errstate(over="ignore"):  # infinite
        doubles: Doubles = np.ldexp(
            (bits | rest).astype(np.float64), 32 * (top - 1) - left.astype(np.int64) + exponent
        )
    return doubles


# -- sums of products ----------------------------------------------------------------------------------------


def products_of_limbs(left: Sequence[Longs], right: Sequence[Longs]) -> list[Longs]:
    """The limbs of products of numbers; the scale of a product is the sum of their scales.

    >>> three, four = [np.array([3]), np.array([0])], [np.array([0]), np.array([4])]
    >>> [limb.tolist() for limb in products_of_limbs(three, four)]
    [[0], [12], [0], [0]]
    """
    result = [np.zeros(len(left[0]), np.int64) for _ in range(len(left) + len(right))]
    for n, one in enumerate(left):
        for m, other in enumerate(right):
            low, high = _halves_of(one * other)
            result[n + m] += low
            result[n + m + 1] += high
    return signed_limbs(result)[:-1]


def signed_limbs(limbs: Iterable[Longs]) -> list[Longs]:
    """The same numbers in limbs of at most 2^31, and what is carried beyond the last one.

    >>> [limb.tolist() for limb in signed_limbs([np.array([3 << 40, 1 << 31]), np.array([1, -1])])]
    [[0, -2147483648], [769, 0], [0, 0]]
    """
    digits: list[Longs] = []
    carry: Any = 0
    for limb in limbs:
        low, carry = _halves_of(limb + carry)
        digits.append(low)
    return [*digits, carry]


def spreads_of_limbs(
    of: Indices, counts: Longs, x: tuple[Longs, list[Longs]], y: tuple[Longs, list[Longs]], xy: list[Longs]
) -> Doubles:
    """For each group ``n * sum(x * y) - sum(x) * sum(y)`` of pairs of doubles, rounded once.

    Divided by `n` this is the sum of ``(x - mean(x)) * (y - mean(y))``. NaN if a value is not finite.

    Args:
        of: the group of each row, ascending.
        counts: the number of pairs of each group.
        x: the scale of each row, as by `limbs_of`, and the sum of each limb.
        y: the scale and the sums of the other values, as for `x`.
        xy: the sum of each limb of the products.

    Example:
        >>> x = limbs_of(pa.array([1e9, 1e9 + 1, 1e9 + 2, 7.0]))
        >>> of, counts = np.array([0, 0, 0, 1]), np.array([3, 1])
        >>> spreads_of_limbs(of, counts, x, x, products_of_limbs(x[1], x[1])).tolist()
        [6.0, 0.0]
    """
    if (count := len(counts)) > _AT_ONCE:
        parts = [
            spreads_of_limbs(
                of[rows] - first,
                counts[first : first + some],
                (x[0][rows], [limb[rows] for limb in x[1]]),
                (y[0][rows], [limb[rows] for limb in y[1]]),
                [limb[rows] for limb in xy],
            )
            for rows, first, some in _halves(of, count)
        ]
        return np.concatenate(parts)
    finite = (x[0] < _NAN) & (y[0] < _NAN)

    def sums(scales: Longs, limbs: Sequence[Longs]) -> tuple[list[Longs], int]:
        table, least = _by_place(of[finite], count, scales[finite], [limb[finite] for limb in limbs])
        return signed_limbs(table.T), least

    (sum_x, least_x), (sum_y, least_y), (sum_xy, least_xy) = sums(*x), sums(*y), sums(x[0] + y[0], xy)
    least = least_x + least_y
    left = [np.zeros(count, np.int64)] * (2 * (least_xy - least))
    left += products_of_limbs(_halves_of(counts), sum_xy)
    pairs = zip_longest(left, products_of_limbs(sum_x, sum_y), fillvalue=np.zeros(count, np.int64))
    table = np.column_stack([*(a - b for a, b in pairs), np.zeros(count, np.int64)])
    spreads = _rounded_with_sign(table, least)
    spreads[of[~finite]] = np.nan
    return spreads


# -- sums that are too large ---------------------------------------------------------------------------------


def large_sums(values: Longs, starts: Indices, most: int = 1 << 63) -> Mask:
    """Whether the sum of each group, which begins at one of `starts`, is not from ``-most`` to ``most - 1``.

    Args:
        values: the values, in the order of their groups.
        starts: the place of each group's first value.
        most: a power of two, at least 2^32; by default sums must fit into 64 bits.

    >>> large_sums(np.array([1, 2, (1 << 63) - 1, 1]), np.array([0, 2])).tolist()
    [False, True]
    """
    if abs_bound(values) * len(values) < most:
        return np.zeros(len(starts), np.bool_)
    low = np.add.reduceat(values & _LOW, starts)
    high: Longs = np.add.reduceat(values >> 32, starts) + (low >> 32)
    return (high < -(most >> 32)) | (high >= most >> 32)


def as_sums(values: Any, kind: pa.DataType) -> Any:
    """Values, or sums of them, as the type of their sums.

    Raises:
        SchemaError: one does not fit.
    """
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        raise too_large_sum(kind) from None


def too_large_sum(kind: pa.DataType | None = None) -> SchemaError:
    """The error of a sum that its type, by default long, cannot hold."""
    if kind is not None and pa.types.is_decimal(kind):
        msg = f"a sum of decimals is beyond {kind.precision} digits"
    else:
        msg = "a sum of longs is beyond 64 bits"
    hint = 'sum doubles, or longs as decimals: select(..., amount=pc.field("amount").cast("float64")).'
    return SchemaError(msg, hint=hint)
