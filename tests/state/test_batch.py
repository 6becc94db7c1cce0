"""A packed batch gives back the rows that were put in, however they are read, sliced or stored."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timely_spark.state import arrangement, batch
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.batch import Batch
from timely_spark.state.hashing import exact, hashes
from timely_spark.state.row_times import EPOCH

LONGS = [0, 1, -1, 127, -128, 128, -129, 1 << 15, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
PLAIN = {"k", "v", "small", "null"}
SEEDS = st.integers(0, 1 << 32)


def rows_of(seed: int) -> pa.Table:
    """Columns of each kind; few keys, so that many rows have one, or many, or one."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 24))

    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([values[i] for i in random.integers(0, len(values), rows)], kind)

    longs = [[-2, 0, 2], LONGS, [5], list(range(-300, 300))]
    return pa.table(
        {
            "k": column(longs[seed % 4], pa.int64()),
            "v": column(longs[random.integers(4)], pa.int64()),
            "null": column([None, 3, 1 << 40], pa.int64()),
            "small": column([-5, 3], pa.int8()),
            "unsigned": column([0, (1 << 64) - 1], pa.uint64()),
            "text": column([None, "a", "b"], pa.string()).dictionary_encode(),
            "day": column([dt.date(2000, 1, 1), dt.date(2001, 1, 1)], pa.date32()),
            EPOCH: column([0, 1, 2], pa.int64()),
        },
        metadata={"mine": "yes"},
    )


def ordered(table: pa.Table, key: str) -> tuple[Any, pa.Table]:
    h = hashes(table, [key])
    order = np.argsort(h, kind="stable")
    return h[order], table.take(pa.array(order)).combine_chunks()


@pytest.fixture(autouse=True)
def _packed_from_one_row_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FEW", 1)


def check(made: Batch, hashed: Any, table: pa.Table) -> None:
    assert len(made) == table.num_rows
    assert made.table.equals(table)
    assert made.row_hashes.tolist() == hashed.tolist()
    assert made.distinct == (len(set(hashed.tolist())) == len(hashed))
    assert made.epochs.tolist() == table[EPOCH].to_pylist()
    assert made.earliest == min(made.epochs)
    assert made.half_past == sorted(made.epochs)[(len(made) - 1) // 2]
    assert [int(made.hash_at(row)) for row in range(len(made))] == hashed.tolist()
    at = np.arange(len(made))[::-2]
    assert made.take(at, None, hashed[at]).equals(table.take(pa.array(at)))
    for name in ("k", "v", "small", EPOCH):
        found = made.integers(name, at, hashed[at])
        assert found is not None
        assert (found.dtype, found.tolist()) == (
            table[name].type.to_pandas_dtype(),
            table[name].take(at).to_pylist(),
        )
    assert made.take(at, ["v", "k"], hashed[at]).equals(table.select(["v", "k"]).take(pa.array(at)))


@pytest.mark.slow
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([*sorted(PLAIN), "unsigned", "text"]))
def test_what_was_put_in_comes_back(seed: int, by: str) -> None:
    hashed, table = ordered(rows_of(seed), by)
    shuffled = np.random.default_rng(seed).permutation(len(hashed))
    back = np.argsort(shuffled)
    made = Batch.of(hashed[shuffled], table.take(pa.array(shuffled)), by, back)
    check(made, hashed, table)
    assert made.stored().equals(Batch.of(hashed, table, by).stored(), check_metadata=True)
    again = Batch.restored(from_bytes(to_bytes(made.stored())), distinct=made.distinct)
    assert again.table.schema.equals(table.schema, check_metadata=True)
    for each in (made, again):
        check(each, hashed, table)
        assert each.key == (by if by in PLAIN and not table[by].null_count else "")
        assert each.exact((by,)) == exact(table, [by])
        low, high = sorted([seed % len(made.hashes), len(made.hashes) * 2 // 3])
        if low < high:
            first, last = each.positions(np.array([low, high]))
            part, slice_ = each.between(low, high), table.slice(first, last - first)
            check(part, hashed[first:last], slice_)
            copy = Batch.restored(from_bytes(to_bytes(part.stored())), distinct=part.distinct)
            check(copy, hashed[first:last], slice_)


@pytest.mark.parametrize("keys", [[1, 1, 1, 2, 3, 3, 3, 3], [1, 1, 2, 3, 4, 5]], ids=["by key", "by row"])
def test_a_part_has_the_rows_of_its_hashes(keys: list[int]) -> None:
    columns = {"k": keys, "v": range(len(keys)), EPOCH: [n % 3 for n in range(len(keys))]}
    small = pa.array([-5] * len(keys), pa.int8())
    hashed, table = ordered(pa.table({**columns, "small": small}), "k")
    whole = Batch.of(hashed, table, "k")
    assert (whole.starts is None) == (len(whole.hashes) == len(keys))
    for low, high in itertools.combinations(range(len(whole.hashes) + 1), 2):
        first, last = whole.positions(np.array([low, high]))
        check(whole.between(low, high), hashed[first:last], table.slice(first, last - first))


@settings(max_examples=20)
@given(SEEDS)
def test_a_key_is_computed_only_from_its_own_hash(seed: int) -> None:
    table = rows_of(seed)
    hashed = np.sort(hashes(table, ["k"]) & np.uint64(1))
    made = Batch.of(hashed, table, "k")
    check(made, hashed, table)
    assert not made.key
    assert not made.exact(("k",)) or "k" in made.rows.schema.names


@pytest.mark.parametrize("type_", [pa.string(), pa.int64()])
def test_rows_in_pieces_are_stored_whole(type_: pa.DataType) -> None:
    pieces = (
        [pa.array([1, 2, 3, 4], type_), pa.array([5, 6], type_)]
        if type_ == pa.int64()
        else [pa.array(list("abcd")), pa.array(["e", None])]
    )
    values = pa.chunked_array(pieces)
    table = pa.table({"k": pa.chunked_array([[7] * 3, [7] * 3]), "v": values, "one": list("uvwxyz")})
    made = Batch.of(hashes(table, ["k"]), table, "k")

    again = Batch.restored(from_bytes(to_bytes(made.stored())), distinct=made.distinct)
    assert again.table.to_pylist() == made.table.to_pylist() == table.to_pylist()


def test_a_change_in_a_loop_takes_a_few_bytes() -> None:
    rows = 1 << 12
    key, value = np.repeat(np.arange(rows >> 4), 16), np.random.default_rng(0).integers(0, 1 << 17, rows)
    changes = {
        "k": key,
        "v": value,
        "diff": np.full(rows, -1),
        EPOCH: np.zeros(rows, np.int64),
        "at": key % 9,
    }
    hashed, table = ordered(pa.table(changes), "k")
    made = Batch.of(hashed, table, "k")
    assert made.rows.schema.names == ["v", "at"]
    assert [str(each) for each in made.rows.schema.types] == ["int32", "int8"]
    assert made.nbytes == 5 * rows + (8 + 4) * (rows >> 4) + 4


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=8), max_size=5))
def test_an_arrangement_of_packed_batches_is_a_dict_of_lists(batches: list[Any]) -> None:
    state, due = arrangement.Arrangement(["k"]), dict[int, list[int]]()
    for rows in batches:
        state.insert(
            pa.table({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate("kv")})
        )
        for key, value in rows:
            due.setdefault(key, []).append(value)
    assert state.at_most(pa.table({"q": range(6)}), ["q"]).tolist() == [len(due.get(k, [])) for k in range(6)]
    for kind in (pa.int64(), pa.int8()):
        asked = [None, *range(6)]
        at, found = state.lookup(pa.table({"q": pa.array(asked, kind)}), ["q"])
        got = zip(at.tolist(), found.to_pylist(), strict=True)
        made = {
            asked[i]: [(row["k"], row["v"]) for _, row in each]
            for i, each in itertools.groupby(got, lambda x: x[0])
        }
        assert made == {key: [(key, value) for value in values] for key, values in due.items()}


def test_a_column_whose_name_is_empty_is_no_key():
    rows = pa.table({"": pa.array([None, 2, 3]), "g": [1, 1, 1]})
    batch = Batch.of(np.arange(3, dtype=np.uint64), rows)
    assert batch.table.to_pydict() == batch.take(np.arange(3)).to_pydict() == rows.to_pydict()
