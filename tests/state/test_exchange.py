"""Every record comes to one worker, or to all that need it, in the order of the table."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.graph import Partition, Skew
from timely_spark.state.exchange import destinations, partitioned
from timely_spark.state.hashing import hashes


@given(st.lists(st.integers(-5, 5), max_size=40), st.integers(1, 8))
def test_dealing_loses_nothing_and_brings_equal_keys_together(values: list[int], workers: int) -> None:
    table = pa.table({"k": pa.array(values, pa.int64()), "place": pa.array(range(len(values)), pa.int64())})

    parts = partitioned(table, Partition(("k",)), workers)

    assert Counter(k for part in parts.values() for k in part["k"].to_pylist()) == Counter(values)
    for worker, part in parts.items():
        assert part.num_rows
        assert part["place"].to_pylist() == sorted(part["place"].to_pylist()), "rows keep their order"
        assert set((hashes(part, ["k"]) % np.uint64(workers)).tolist()) == {worker}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 8, 13, 32, 64, 200])
def test_pairs_in_blocks_are_spread_evenly_and_a_value_is_on_few_workers(workers: int) -> None:
    n, values, draw = 40_000, 20_000, np.random.default_rng(workers)
    a, b = draw.integers(0, values, (2, n))
    by = Partition(("a", "b"), blocks=True)

    parts = partitioned(pa.table({"a": a, "b": b, "place": np.arange(n)}), by, workers)

    there = np.zeros((values, workers), np.bool_)
    for worker, part in parts.items():
        assert np.all(np.diff(part["place"]) > 0), "rows keep their order"
        there[part["a"], worker] = there[part["b"], worker] = True
    assert sorted(row for part in parts.values() for row in part["place"].to_pylist()) == list(range(n))
    assert max(part.num_rows for part in parts.values()) <= 1.35 * n / workers + 20
    assert there.sum(axis=1).max() <= 2 * workers**0.5 + 1


@given(st.lists(st.tuples(*[st.none() | st.integers(-9, 9)] * 2), max_size=30), st.integers(3, 12))
def test_a_pair_has_one_block_alone_and_among_others_and_turned_round(
    rows: list[tuple[int | None, int | None]], workers: int
) -> None:
    by = Partition(("a", "b"), blocks=True, workers=tuple(range(3, 3 + workers)))

    def made(pairs: list[tuple[int | None, int | None]]) -> dict[tuple[int | None, int | None], int]:
        ends = zip(*pairs, strict=True) if pairs else ([], [])
        columns = [pa.array(end, pa.int64()) for end in ends]
        numbered = partitioned(pa.table(columns, ["a", "b"]), by, workers + 5)
        return {(row["a"], row["b"]): worker for worker, part in numbered.items() for row in part.to_pylist()}

    among = made(rows)
    assert set(among.values()) <= set(range(3, 3 + workers))
    for a, b in rows:
        assert made([(a, b)]) == {(a, b): among[a, b]}
        assert made([(b, a)]) == {(b, a): among[a, b]}


def test_the_block_of_a_pair_is_the_same_for_ever() -> None:
    pairs = pa.table({"a": [0, 1, 2, 3, 4, 5, 6, 7], "b": [1, 1, 5, 0, 9, 6, 4, 3]})

    parts = partitioned(pairs, Partition(("a", "b"), blocks=True), 8)

    found = {worker: part["a"].to_pylist() for worker, part in parts.items()}
    assert found == {0: [7], 3: [1, 2, 4], 4: [3], 6: [0, 5, 6]}


def test_dealing_by_no_column_brings_all_to_one_worker() -> None:
    parts = partitioned(pa.table({"k": [1, 2, 3]}), Partition(()), 4)

    assert [part.num_rows for part in parts.values()] == [3]


PARTITIONS = [
    Partition(("k",)),
    Partition(("k", "v"), blocks=True),
    Partition(("v",), computed="v", expression=pc.field("v")),
    Partition(("k",), workers=(3, 1)),
    Partition(("k",), skew=Skew((int(hashes(pa.table({"k": [0]}), ["k"])[0]),), "0", ("v",))),
]


@pytest.mark.parametrize("by", PARTITIONS, ids=repr)
@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), min_size=1), workers=st.integers(4, 9)
)
def test_the_destinations_are_those_of_the_parts(
    by: Partition, rows: list[tuple[int, int]], workers: int
) -> None:
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows], "row": range(len(rows))})
    to = destinations(table, by, workers)
    assert to is not None
    parts = partitioned(table, by, workers)
    assert {row: w for w, part in parts.items() for row in part["row"].to_pylist()} == dict(enumerate(to))


def test_records_for_several_workers_have_no_one_destination() -> None:
    table, hot = pa.table({"k": [0, 1]}), int(hashes(pa.table({"k": [0]}), ["k"])[0])
    assert destinations(table, Partition((), broadcast=True), 4) is None
    assert destinations(table, Partition(("k",), skew=Skew((hot,), "0", ())), 4) is None
    assert destinations(table.slice(1), Partition(("k",), skew=Skew((hot,), "0", ())), 4) is not None
