"""Groups are those of equal keys, also if hashes collide, and keep the order of their rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.state import grouping
from timely_spark.state.grouping import group, in_order, sort
from timely_spark.state.hashing import hashes, same


def same_key(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def grouped(values: list[Any], kind: pa.DataType, column2: list[int]) -> list[list[int]]:
    """Rows by key, by definition."""
    found: list[list[int]] = []
    for row in range(len(values)):
        for members in found:
            if same_key(values[members[0]], values[row]) and column2[members[0]] == column2[row]:
                members.append(row)
                break
        else:
            found.append([row])
    return found


FLOATS = st.sampled_from([None, 0.0, -0.0, math.nan, 1.0, -1.0])


WORDS = st.sampled_from([None, "", "a", "b", "ab"])


@given(
    st.sampled_from([(FLOATS, pa.float64()), (WORDS, pa.string())]).flatmap(
        lambda pair: st.tuples(st.lists(st.tuples(pair[0], st.integers(0, 2)), max_size=24), st.just(pair[1]))
    ),
    st.sampled_from([0, 1, 2**64 - 1]),
)
def test_groups_are_those_of_equal_keys_even_if_hashes_collide(drawn: Any, mask: int) -> None:
    rows, kind = drawn
    values, seconds = [row[0] for row in rows], [row[1] for row in rows]
    table = pa.table({"k": pa.array(values, kind), "n": pa.array(seconds, pa.int64())})
    hashed = hashes(table, ["k", "n"]) & np.uint64(mask)

    groups = group(table, ["k", "n"], hashed)

    ends = [*groups.starts[1:].tolist(), *[len(rows)] * bool(rows)]
    made = [groups.order[a:b].tolist() for a, b in zip(groups.starts.tolist(), ends, strict=True)]
    assert sorted(made) == sorted(grouped(values, kind, seconds)), "and each in the order of its rows"
    assert groups.firsts.tolist() == [members[0] for members in made]
    assert np.bincount(groups.ids, minlength=len(made)).tolist() == [len(members) for members in made]


@given(
    st.sampled_from([1, 2, 2047, 2048, 2049, 5000]),
    st.sampled_from([1, 3, 2**11, 2**40, 2**64 - 1]),
    st.sampled_from([0, 1, 60]),
    st.integers(0, 99),
)
def test_the_order_of_hashes_is_that_of_a_stable_sort(rows: int, most: int, shift: int, seed: int) -> None:
    """Also where they differ in the lowest bits alone, in whose place row numbers are sorted."""
    h = np.random.default_rng(seed).integers(0, most, rows, np.uint64, endpoint=True) << np.uint64(shift)

    for each in (h, np.sort(h)):
        assert np.array_equal(in_order(each), np.argsort(each, kind="stable"))
        nearly = in_order(each, exactly=False)
        assert np.array_equal(np.sort(nearly), np.arange(rows))
        assert np.array_equal(each[nearly] >> np.uint64(48), np.sort(each) >> np.uint64(48))


def test_a_collision_among_many_repeated_keys_is_split_without_a_look_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts, compared = [f"{n}" for n in range(5_000)] * 2, []
    table = pa.table({"k": texts})
    hashed = hashes(table, ["k"])
    for row in range(4):  # four keys with one hash
        hashed[[row, row + 5_000]] = hashed[7]
    monkeypatch.setattr(grouping, "same", lambda *args: (compared.append(args), same(*args))[1])

    groups = group(table, ["k"], hashed)

    assert len(groups.starts) == 5_000
    assert all(np.array_equal(rows, [rows[0], rows[0] + 5_000]) for rows in groups.order.reshape(-1, 2))
    assert len(compared) == 1 + 5, "once all neighbours, and once for each key of that hash"


def test_rows_of_groups_that_lie_in_order_are_not_moved() -> None:
    table = pa.table({"k": [1, 2, 1]})
    ordered = group(table, ["k"]).rows(table)

    assert sorted(ordered["k"].to_pylist()) == [1, 1, 2]
    assert group(ordered, ["k"]).rows(ordered) is ordered
    assert group(table.slice(0, 0), ["k"]).rows(table.slice(0, 0)).num_rows == 0


@given(st.lists(st.lists(st.integers(0, 2**64 - 1)), max_size=12))
def test_runs_are_merged_to_what_a_sort_makes(runs: list[list[int]]) -> None:
    codes = np.array([code for run in runs for code in sorted(run)], np.uint64)
    due = sorted(codes.tolist())
    sort(codes)

    assert codes.tolist() == due
