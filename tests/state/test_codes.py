"""Rows sorted by several numbers are as sorted by tuples of them, and rows of equal values run together."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timely_spark.state import codes
from timely_spark.state.codes import by_hash, numbers_of, runs

FAR = 2**63 - 1
NUMBERS = st.integers(-3, 3) | st.sampled_from([-FAR - 1, -FAR, FAR, 2**40, -(2**40)])


@pytest.mark.parametrize("few", [0, 1 << 8], ids=["packed", "few"])
@example(rows=[(2**40, -1), (1, -FAR), (-FAR - 1, -2), (-FAR - 1, -2)]).via("a rank beside 63 bits")
@given(rows=st.integers(0, 4).flatmap(lambda n: st.lists(st.tuples(*[NUMBERS] * n), max_size=30)))
def test_rows_are_sorted_as_tuples_are(few: int, rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    with mock.patch.object(codes, "_FEW", few):
        found = runs(columns, len(rows))

    order = sorted(range(len(rows)), key=rows.__getitem__)
    assert found.order.tolist() == order, "rows of one number as they stood"
    each = sorted(set(rows))
    assert [rows[first] for first in found.firsts] == each
    assert found.totals(np.ones(len(rows), np.int64)).tolist() == [rows.count(row) for row in each]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), NUMBERS), min_size=1, max_size=30),
    st.sampled_from([7, 1 << 62]),
)
def test_rows_are_sorted_by_their_hash_first_also_where_hashes_begin_alike(
    rows: list[tuple[int, int, int]], different: int
) -> None:
    hashed = np.array([first << 62 | last for first, last, _ in rows], np.uint64)
    numbers = np.array([number % different for *_, number in rows], np.int64)
    groups = by_hash(hashed, [numbers])

    keys = list(zip(hashed.tolist(), numbers.tolist(), strict=True))
    ordered = [keys[row] for row in groups.order]
    assert sorted(groups.order.tolist()) == [*range(len(rows))]
    assert [hash_ for hash_, _ in ordered] == sorted(hashed.tolist())
    assert [keys[first] for first in groups.firsts] == list(dict.fromkeys(ordered))
    assert len(groups.starts) == len(set(keys)), "equal rows are beside each other"


NANOSECOND = pa.array([1, 2, 1], pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        (pa.array(["b", None, "b", ""]), [0, 1, 0, 2]),
        (pa.array([0.0, -0.0, float("nan"), None, -float("nan")]), [0, 0, 1, 2, 1]),
        (pa.array([None, 0, None, 1], pa.int8()), [0, 1, 0, 2]),
        (pa.array([2**64 - 1, 0, 2**63], pa.uint64()), [0, 1, 2]),
        (pa.array([True, False, None]), [0, 1, 2]),
        (pa.array([datetime(1, 1, 1), None, datetime(1, 1, 1)]), [0, 1, 0]),  # noqa: DTZ001
        (NANOSECOND, [0, 1, 0]),
        (NANOSECOND.cast(pa.int64()).cast(pa.duration("ns")), [0, 1, 0]),
        (pa.array(["1.50", "1.50", "0"]).cast(pa.decimal128(9, 2)), [0, 0, 1]),
        (pa.array([b"xy", b"xz", b"xy"], pa.binary(2)), [0, 1, 0]),
        (pa.nulls(3), [0, 0, 0]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), [0, 1, 0]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_numbers_are_equal_where_values_are(values: Any, alike: list[int]) -> None:
    rows = list(zip(*numbers_of(pa.table({"v": values}), ["v"]), strict=True)) or [()] * len(values)
    seen = list(dict.fromkeys(rows))

    assert [seen.index(row) for row in rows] == alike
