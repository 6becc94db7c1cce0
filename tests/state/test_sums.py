"""Sums are exact: those of doubles are rounded once, whatever the order and the groups."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timely_spark.errors import SchemaError
from timely_spark.state import sums
from timely_spark.state.sums import (
    limbs_of,
    products_of_limbs,
    spreads_of_limbs,
    sums_of_limbs,
    sums_of_scaled_limbs,
)

LEAST, MOST = math.ulp(0.0), math.nextafter(math.inf, 0)
SPECIAL = st.sampled_from([0.0, -0.0, LEAST, -LEAST, MOST, -MOST, 2.0**-1022, 1.0, 1e16, -1e16, 2.0**53 + 2])


def nearest(values: list[float]) -> float:
    """The double next to the exact sum; infinite if it is too large."""
    return rounded(sum(map(Fraction, values), Fraction(0)))


def rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def totals(groups: list[list[float]]) -> list[float]:
    of = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    scales, limbs = limbs_of(pa.array([v for one in groups for v in one], pa.float64()))
    return sums_of_scaled_limbs(of, len(groups), scales, limbs).tolist()


@given(st.lists(st.lists(SPECIAL | st.floats(allow_nan=False, allow_infinity=False), max_size=9), max_size=5))
@example([[1.0, 2.0**-53], [1.0, 2.0**-53, LEAST], [1.0, 3 * 2.0**-53], [-1.0, -(2.0**-53), -LEAST]])  # ties
@example([[MOST, MOST, -MOST], [MOST, MOST], [MOST, 2.0**969], [MOST, 2.0**970], [-MOST, -MOST]])
def test_doubles_are_added_exactly_and_rounded_once(groups: list[list[float]]) -> None:
    assert totals(groups) == [nearest(one) for one in groups]


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.slow
@given(st.lists(st.lists(st.tuples(SPECIAL | FINITE, SPECIAL | FINITE), max_size=5), max_size=4))
@example(
    [[(1e9, 3.0), (1e9 + 1, 3.0), (1e9 + 2, 3.5)], [], [(0.1, 0.1)] * 3, [(LEAST, MOST), (MOST, -LEAST)]]
)
def test_spreads_are_exact_and_rounded_once(groups: list[list[tuple[float, float]]]) -> None:
    of = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    x, y = (limbs_of(pa.array([pair[n] for one in groups for pair in one], pa.float64())) for n in (0, 1))
    counts, products = np.array([len(one) for one in groups], np.int64), products_of_limbs(x[1], y[1])
    exact = []
    for one in groups:
        pairs = [(Fraction(a), Fraction(b)) for a, b in one]
        both = sum((a * b for a, b in pairs), Fraction(0))
        apart = sum((a for a, _ in pairs), Fraction(0)) * sum((b for _, b in pairs), Fraction(0))
        exact.append(rounded(len(one) * both - apart))

    assert spreads_of_limbs(of, counts, x, y, products).tolist() == exact


def test_spreads_of_what_is_no_number_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x = limbs_of(pa.array([1.0, math.inf, 1.0, 2.0, math.nan]))
    groups = np.array([0, 0, 1, 1, 2]), np.array([2, 2, 1]), x, x, products_of_limbs(x[1], x[1])
    spreads = spreads_of_limbs(*groups)
    monkeypatch.setattr(sums, "_AT_ONCE", 1)

    np.testing.assert_array_equal(spreads, [math.nan, 1.0, math.nan])
    np.testing.assert_array_equal(spreads_of_limbs(*groups), spreads)


def test_what_is_no_number_stays_so() -> None:
    inf, nan = math.inf, math.nan
    found = totals([[inf, 1.0, inf], [-inf, MOST], [inf, -inf], [nan, inf], [nan], [2.0], []])
    np.testing.assert_array_equal(found, [inf, -inf, nan, nan, nan, 2.0, 0.0])


def test_many_groups_are_added_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[n / 8, float(n)] if n % 3 else [] for n in range(100)]
    monkeypatch.setattr(sums, "_AT_ONCE", 7)
    assert totals(groups) == [math.fsum(one) for one in groups]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-3, 3) | st.none(), max_size=9))
@example([10**38 - 1, 1])
def test_decimals_are_added_exactly_or_are_an_error(digits: list[int | None]) -> None:
    kind, exact = pa.decimal128(38, 5), Context(prec=60)
    values = [None if one is None else Decimal(one).scaleb(-5, exact) for one in digits]
    total = sum(one for one in digits if one is not None)
    limbs = [limb.sum(keepdims=True) for limb in limbs_of(pa.array([None, *values], kind)[1:])[1]]
    if abs(total) < 10**38:
        assert sums_of_limbs(limbs, 5, kind, np.array([False])).to_pylist() == [
            Decimal(total).scaleb(-5, exact)
        ]
        doubles = sums_of_limbs(limbs, 0, pa.float64(), np.array([False])).to_pylist()
        assert doubles == pytest.approx([float(total)], rel=1e-15)
    else:
        with pytest.raises(SchemaError, match="beyond 38 digits"):
            sums_of_limbs(limbs, 5, kind, np.array([False]))


@pytest.mark.parametrize("kind", [getattr(pa, "decimal64", pa.decimal128)(10, 2), pa.decimal256(50, 2)])
def test_decimals_of_other_widths_have_the_same_limbs(kind: pa.DataType) -> None:
    values = pa.array([None, Decimal("1.25"), None, Decimal("-0.01")], kind)[1:]
    limbs = [limb.sum(keepdims=True) for limb in limbs_of(values)[1]]
    assert sums_of_limbs(limbs, 2, pa.decimal128(38, 2), np.array([False])).to_pylist() == [Decimal("1.24")]


def test_a_decimal_that_is_too_long_is_an_error() -> None:
    with pytest.raises(SchemaError, match="beyond 38 digits"):
        limbs_of(pa.array([Decimal(10) ** 40], pa.decimal256(50, 2)))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=9))
def test_longs_are_added_exactly_or_are_an_error(values: list[int]) -> None:
    limbs = [limb.sum(keepdims=True) for limb in limbs_of(pa.array(values, pa.int64()))[1]]
    if -(2**63) <= sum(values) < 2**63:
        assert sums_of_limbs(limbs, 0, pa.int64(), np.array([False])).to_pylist() == [sum(values)]
        assert sums_of_limbs(limbs, 0, pa.int64(), np.array([True])).to_pylist() == [None]
    else:
        with pytest.raises(SchemaError, match="beyond 64 bits"):
            sums_of_limbs(limbs, 0, pa.int64(), np.array([False]))
