"""An arrangement is a dict of lists: whatever is inserted, in whatever pieces, with or without collisions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.state import Arrangement, arrangement, hashing
from timely_spark.state.grouping import group

KEYS = st.sampled_from([None, "", "a", "b", "c", "dd"])
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=12), max_size=8)


def table(rows: list[tuple[Any, int]]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([row[0] for row in rows], pa.string()),
            "v": pa.array([row[1] for row in rows], pa.int64()),
        }
    )


def found(state: Arrangement, probes: list[Any]) -> list[list[int]]:
    at, rows = state.lookup(pa.table({"q": pa.array(probes, pa.string())}), ["q"])
    assert at.tolist() == sorted(at.tolist()), "by probe"
    result: list[list[int]] = [[] for _ in probes]
    for probe, row in zip(at.tolist(), rows.to_pylist(), strict=True):
        assert row["k"] == probes[probe]
        result[probe].append(row["v"])
    return [sorted(values) for values in result]


def check(batches: list[Any], probes: list[Any]) -> None:
    state, expected = Arrangement(["k"]), dict[Any, list[int]]()
    for rows in batches:
        state.insert(table(rows))
        for key, value in rows:
            expected.setdefault(key, []).append(value)
    assert len(state) == sum(map(len, batches))
    assert found(state, probes) == [sorted(expected.get(probe, [])) for probe in probes]
    sizes = [batch.num_rows for batch in state.batches()]
    assert all(a >= 2 * b for a, b in itertools.pairwise(sizes)), (
        "few batches, each much larger than the next"
    )
    again = Arrangement(["k"], state.batches())
    assert found(again, probes) == found(state, probes), "as read back from a checkpoint"


@given(BATCHES, st.lists(KEYS, max_size=6))
def test_an_arrangement_is_a_dict_of_lists(batches: list[Any], probes: list[Any]) -> None:
    check(batches, probes)


@given(BATCHES, st.lists(KEYS, max_size=6))
def test_even_if_all_keys_have_one_of_two_hashes(batches: list[Any], probes: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real = hashing._hash_column
        patch.setattr(hashing, "_hash_column", lambda column: real(column) & np.uint64(1))
        check(batches, probes)


@pytest.mark.slow
@pytest.mark.parametrize("collide", [False, True])
@given(batches=BATCHES, probes=st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=6))
def test_single_rows_are_found_within_those_of_a_key(
    batches: list[Any], probes: list[Any], *, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real = hashing._hash_column
        if collide:
            patch.setattr(hashing, "_hash_column", lambda column: real(column) & np.uint64(1))
        state = Arrangement(["k"], within=["v"])
        for rows in batches:
            state.insert(table(rows))
        all_rows = list(itertools.chain.from_iterable(batches))

        assert found(state, [key for key, _ in probes]) == [
            sorted(value for k, value in all_rows if k == key) for key, _ in probes
        ]
        at, rows = state.lookup(table(probes), ["k", "v"])
        assert [(row["k"], row["v"]) for row in rows.to_pylist()] == [probes[probe] for probe in at]
        assert np.bincount(at, minlength=len(probes)).tolist() == [all_rows.count(one) for one in probes]


def test_null_is_not_the_number_with_its_hash() -> None:
    number = int(hashing._NULL.astype(np.int64))
    null, one = (pa.table({"k": pa.array([key], pa.int64())}) for key in (None, number))
    assert hashing.hashes(null, ["k"]) == hashing.hashes(one, ["k"])
    for stored, probe in itertools.product((null, one), repeat=2):
        state = Arrangement(["k"])
        state.insert(stored)
        assert state.lookup(probe, ["k"])[1].num_rows == (stored is probe)


def test_numbers_of_several_widths_are_merged_as_the_widest() -> None:
    state = Arrangement(["k"])
    for kind in (pa.int8(), pa.int64(), pa.int8()):
        rows = table([("a", 7)])
        state.insert(rows.set_column(1, "v", rows["v"].cast(kind)))

    assert found(state, ["a"]) == [[7, 7, 7]]
    assert {one.schema.field("v").type for one in state.batches()} <= {pa.int8(), pa.int64()}


def test_merging_may_combine_rows() -> None:
    def sums(hashed: Any, rows: pa.Table) -> tuple[Any, pa.Table]:
        groups = group(rows, ["k"], hashed)
        total = np.add.reduceat(rows["v"].to_numpy()[groups.order], groups.starts)
        firsts = groups.firsts
        return hashed[firsts], rows.take(firsts).set_column(1, "v", pa.array(total))

    state = Arrangement(["k"])
    for _ in range(100):
        state.insert(table([("a", 1), ("b", 2)]), compact=sums)

    assert len(state) <= 4
    assert [sum(values) for values in found(state, ["a", "b", "c"])] == [100, 200, 0]


@pytest.mark.slow
def test_inserting_costs_what_is_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    real = arrangement._concat
    monkeypatch.setattr(
        arrangement, "_concat", lambda tables: moved.append(sum(map(len, tables))) or real(tables)
    )
    state = Arrangement(["k"])
    for i in range(512):
        state.insert(table([(str(i), i)]))
        assert len(state) == i + 1

    assert 512 < sum(moved) <= 512 * 10, "each row is moved about log2(n) times"


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(4))
def test_one_insertion_merges_a_bounded_number_of_rows_however_many_there_are(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, moved, rng = 64, [0], np.random.default_rng(seed)
    monkeypatch.setattr(arrangement, "LIMIT", limit)
    monkeypatch.setattr(arrangement, "_LARGE", limit >> 2)

    def as_they_are(hashed: Any, rows: pa.Table) -> tuple[Any, pa.Table]:
        moved[0] += len(hashed)
        return hashed, rows

    state, expected = Arrangement(["k"]), dict[Any, list[int]]()
    for size in rng.choice([1, 2, 5, 40, 300], 400, p=[0.5, 0.3, 0.15, 0.04, 0.01]):
        rows = [(str(key), int(value)) for key, value in rng.integers(0, 1000, (size, 2))]
        moved[0] = 0
        state.insert(table(rows), compact=as_they_are)
        for key, value in rows:
            expected.setdefault(key, []).append(value)

        assert moved[0] <= 2 * limit + arrangement._LEVELS * len(rows)
        sizes = [batch.num_rows for batch in state.batches()]
        assert max(sizes) <= limit
        assert len(sizes) <= 10 + 8 * sum(sizes) / limit
        ends = [int(part.hashes[i]) for lane in state.lanes for part in lane for i in (0, -1)]
        lanes = [i for i, lane in enumerate(state.lanes) for _ in lane for _ in (0, -1)]
        assert np.searchsorted(np.array(state.cuts, np.uint64), ends, "right").tolist() == lanes
    assert len(state.lanes) > 8
    probes = [str(key) for key in range(1000)]
    at, found_rows = state.lookup(pa.table({"q": probes}), ["q"])
    listed: dict[str, list[int]] = {}
    for probe, value in zip(at.tolist(), found_rows["v"].to_pylist(), strict=True):
        listed.setdefault(probes[probe], []).append(value)
    assert listed == expected, "of one key in the order in which they came"


def test_a_key_with_half_of_all_rows_leaves_the_others_in_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrangement, "LIMIT", 64)
    monkeypatch.setattr(arrangement, "_LARGE", 16)
    state, rng = Arrangement(["k"]), np.random.default_rng(0)
    for insertions in range(100):
        h = np.where(rng.random(20) < 0.6, 1, rng.integers(2, 2**63, 20)).astype(np.uint64)
        state.insert(table([(str(one), 0) for one in h]), h)
        assert len(state) == 20 * (insertions + 1)

    others = [lane for lane in state.lanes if any(part.hashes[-1] > 1 for part in lane)]
    assert len(others) > 8
    assert all(len(part.hashes) <= 64 for lane in others for part in lane)
    assert all(part.hashes[0] > 1 for lane in others for part in lane)


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_long_texts_have_few_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gigabytes of a column in one batch cannot be sorted, and a state has more."""
    monkeypatch.setattr(arrangement, "BYTES", 5_000)
    state, rng = Arrangement(["k"]), np.random.default_rng(seed)
    expected, total = dict[str, list[int]](), 0
    for number in range(60):
        texts = [chr(97 + n % 26) * int(n) for n in rng.choice([1, 30, 900, 6_000], rng.choice([1, 3, 40]))]
        rows = pa.table({"k": texts, "v": [number] * len(texts)})
        state.insert(rows)
        total += rows.nbytes
        for text in texts:
            expected.setdefault(text, []).append(number)

    assert all(part.text_bytes <= 5_000 or len(part) == 1 for part in state.parts)
    long = sum(len(numbers) for text, numbers in expected.items() if len(text) > 5_000)
    assert len(state.parts) < 10 + 2 * long + 4 * total / 5_000
    at, rows = state.lookup(pa.table({"q": list(expected)}), ["q"])
    numbers = rows["v"].to_numpy()
    for probe, listed in enumerate(expected.values()):
        assert numbers[at == probe].tolist() == listed, "of one key in the order in which they came"


@pytest.mark.parametrize("limit", [4, 1 << 21])
@pytest.mark.parametrize("fewer", [0, 16, 1 << 40])
@pytest.mark.parametrize("within", [(), ("n",)], ids=str)
def test_many_probe_rows_find_what_few_rows_have(
    within: tuple[str, ...], fewer: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrangement, "_FEWER", fewer)
    monkeypatch.setattr(arrangement, "LIMIT", limit)
    monkeypatch.setattr(arrangement, "_LARGE", limit)
    draw = np.random.default_rng(1)
    keys = draw.integers(0, 2_000, 3_000)
    state, here = Arrangement(("k",), within=within), list[tuple[int, int]]()
    for size in (40, 9, 3):
        rows = draw.integers(0, 60, size)
        state.insert(pa.table({"k": rows, "n": np.arange(size)}))
        here += zip(rows.tolist(), range(size), strict=True)
    assert (len(state.lanes) > 1) == (limit == 4)
    by_hash = np.argsort(hashing.hashes(pa.table({"k": keys}), ["k"]))
    for probe in (keys, keys[by_hash], keys[:50], keys[by_hash][:50]):
        at, found = state.lookup(pa.table({"k": probe}), ["k"])
        pairs = sorted(zip(at.tolist(), found["n"].to_pylist(), strict=True))
        assert pairs == sorted((i, n) for i, key in enumerate(probe.tolist()) for k, n in here if k == key)
        counts = state.at_most(pa.table({"k": probe}), ["k"])
        assert counts.tolist() == np.bincount(at, minlength=len(probe)).tolist()


def test_an_empty_arrangement_finds_nothing() -> None:
    assert found(Arrangement(["k"]), ["a"]) == [[]]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 12) | st.just(300), st.integers(0, 6)), min_size=5, max_size=30))
def test_of_rows_that_end_no_more_than_half_have_ended_and_all_others_are_found(
    inserted: list[tuple[int, int]],
) -> None:
    state, held = Arrangement(["k"]), list[tuple[int, int]]()
    before = 0
    for epoch, (size, ended) in enumerate(inserted):
        rows = [(key % 7, epoch) for key in range(size)]
        state.expire(before := max(before, epoch - ended))
        state.insert(pa.table({"k": [k for k, _ in rows], arrangement.EPOCH: [e for _, e in rows]}))
        held = [row for row in held if row[1] >= before] + rows
        kept = [tuple(row.values()) for batch in state.batches() for row in batch.to_pylist()]
        sizes = [batch.num_rows for batch in state.batches()]

        assert sorted(row for row in kept if row[1] >= before) == sorted(held)
        _, rows = state.matches(pa.table({"k": range(7)}), ["k"])
        assert sorted(tuple(row.values()) for row in rows.to_pylist()) == sorted(held)
        assert len(kept) <= 2 * len(held)
        assert all(a >= 2 * b for a, b in itertools.pairwise(sizes)) or not size
        again = Arrangement(["k"], state.batches())
        again.expire(epoch + 1)
        assert len(again) == 0
