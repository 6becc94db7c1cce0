"""H is the same for ever; null, NaN and -0.0 have their place; two keys of one hash stay two keys."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.graph import Partition, Skew
from timely_spark.state import keys
from timely_spark.state.keys import (
    destinations,
    exact,
    from_bytes,
    group,
    hashes,
    in_order,
    partition,
    partitioned,
    same,
    to_bytes,
)

NULL, ZERO, ONE = 0xB287557FD4D9BCBB, 0xE220A8397B1DCDAF, 0x910A2DEC89025CC1


def of(value: Any, kind: pa.DataType) -> int:
    return int(hashes(pa.table({"k": pa.array([value], kind)}), ["k"])[0])


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (0, pa.int64(), ZERO),  # the first two are the published first outputs of splitmix64
        (1, pa.int64(), ONE),
        (-1, pa.int64(), 0xE4D971771B652C20),
        (2**63 - 1, pa.int64(), 0x2A67D7552E039EA7),
        (None, pa.int64(), NULL),
        (None, pa.string(), NULL),
        (None, pa.null(), NULL),
        (0.0, pa.float64(), ZERO),
        (-0.0, pa.float64(), ZERO),
        (1.5, pa.float64(), 0xD6DAB18E1392608A),
        (1.5, pa.float32(), 0xD6DAB18E1392608A),
        (math.nan, pa.float64(), 0xC72971D82E15BB46),
        (-math.nan, pa.float64(), 0xC72971D82E15BB46),
        (math.nan, pa.float32(), 0xC72971D82E15BB46),
        (math.inf, pa.float64(), 0x249E5410C2F97D99),
        ("", pa.string(), 0xA706DD2F4D197E6F),
        ("a", pa.string(), 0x119825D72E6DDADB),
        ("ab", pa.string(), 0x1188CC4D1BE8629D),
        ("ba", pa.string(), 0x3E7B01FDE2B58214),
        ("naïve", pa.string(), 0x29BF9E4B911A21B8),
        ("a\0", pa.string(), 0x9E55360E0095A310),
        (b"a", pa.binary(), 0x119825D72E6DDADB),
        (True, pa.bool_(), ONE),
        (dt.date(2024, 2, 29), pa.date32(), 0xDB8C04CA25F6E90D),
        (dt.datetime(2024, 2, 29), pa.timestamp("us", tz="UTC"), 0x076DE3AF40FE6332),  # noqa: DTZ001
        (Decimal("1.50"), pa.decimal128(10, 2), 0x9CB5CC039D3D331B),
    ],
    ids=str,
)
def test_h_is_the_same_for_ever(value: Any, kind: pa.DataType, expected: int) -> None:
    assert of(value, kind) == expected


def test_h_of_several_columns_minds_their_order_and_not_their_names() -> None:
    table = pa.table({"a": [1], "b": ["x"]})

    assert int(hashes(table, ["a", "b"])[0]) == 0x7E0786E1EC660B7A
    assert int(hashes(table, ["b", "a"])[0]) == 0x3D6D2C80A014D514
    assert int(hashes(table.rename_columns(["x", "y"]), ["x", "y"])[0]) == 0x7E0786E1EC660B7A


@pytest.mark.parametrize("value", [0, 1, 100, 127])
def test_an_integer_has_one_hash_in_every_width(value: int) -> None:
    kinds = [getattr(pa, f"{sign}int{width}")() for sign in ("", "u") for width in (8, 16, 32, 64)]

    assert len({of(value, kind) for kind in kinds}) == 1
    assert len({of(-value, kind) for kind in kinds if not str(kind).startswith("u")}) == 1


@given(st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=1, max_size=30), st.integers(0, 5))
def test_h_looks_at_the_value_alone(values: list[str | None], offset: int) -> None:
    one = hashes(pa.table({"k": pa.array(values, pa.string())}), ["k"])
    chunks = pa.chunked_array([pa.array(values[:1], pa.string()), pa.array(values[1:], pa.string())])
    forms = [
        pa.array(["x"] * offset + values, pa.string()).slice(offset),
        pa.array(values, pa.large_string()),
        pa.array(values, pa.string()).dictionary_encode(),
        chunks,
    ]

    for form in forms:
        assert hashes(pa.table({"k": form}), ["k"]).tolist() == one.tolist()


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


def test_rows_of_groups_that_lie_in_order_are_not_moved() -> None:
    table = pa.table({"k": [1, 2, 1]})
    ordered = group(table, ["k"]).rows(table)

    assert sorted(ordered["k"].to_pylist()) == [1, 1, 2]
    assert group(ordered, ["k"]).rows(ordered) is ordered
    assert group(table.slice(0, 0), ["k"]).rows(table.slice(0, 0)).num_rows == 0


def test_equality_of_keys_is_that_of_grouping() -> None:
    left = pa.table({"f": [None, math.nan, 0.0, 1.0, None], "i": pa.array([1, 2, 3, 4, 5], pa.int8())})
    right = pa.table({"f": [None, math.nan, -0.0, 2.0, 1.0], "i": pa.array([1, 2, 3, 4, 5], pa.int64())})

    assert same(left, right, ["f"], ["f"]).tolist() == [True, True, True, False, False]
    assert same(left, right, ["i"], ["i"]).all()


def test_a_large_unsigned_key_is_no_negative_one() -> None:
    left, right = (
        pa.table({"k": pa.array([2**64 - 1, 5], pa.uint64())}),
        pa.table({"k": pa.array([-1, 5], pa.int64())}),
    )

    assert same(left, right, ["k"], ["k"]).tolist() == [False, True]
    assert same(right, left, ["k"], ["k"]).tolist() == [False, True]
    assert same(left, left, ["k"], ["k"]).all()


def test_only_one_column_of_integers_without_nulls_is_distinguished_by_its_hash() -> None:
    table = pa.table({"i": [1, 2], "n": [1, None], "s": ["a", "b"], "u": pa.array([1, 2], pa.uint64())})

    assert [exact(table, [column]) for column in "insu"] == [True, False, False, False]
    assert not exact(table, ["i", "s"])
    assert exact(table, [])


@given(st.lists(st.integers(-5, 5), max_size=40), st.integers(1, 8))
def test_dealing_loses_nothing_and_brings_equal_keys_together(values: list[int], workers: int) -> None:
    table = pa.table({"k": pa.array(values, pa.int64()), "place": pa.array(range(len(values)), pa.int64())})

    parts = partition(table, ["k"], workers)

    assert Counter(k for part in parts.values() for k in part["k"].to_pylist()) == Counter(values)
    for worker, part in parts.items():
        assert part.num_rows
        assert part["place"].to_pylist() == sorted(part["place"].to_pylist()), "rows keep their order"
        assert {of(k, pa.int8()) % workers for k in part["k"].to_pylist()} == {worker}


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
    assert [part.num_rows for part in partition(pa.table({"k": [1, 2, 3]}), [], 4).values()] == [3]


def test_a_table_comes_back_from_its_bytes() -> None:
    table = pa.table({"a": pa.chunked_array([[1, None], [3]]), "b": ["x", None, "z"]})

    assert from_bytes(to_bytes(table)).equals(table)
    assert from_bytes(to_bytes(table.slice(0, 0))).schema == table.schema


@pytest.mark.parametrize("bits", [0, 7, 8, 15, 16, 31, 32, 63])
def test_longs_travel_in_as_few_bytes_as_they_need_and_come_back_as_they_were(bits: int) -> None:
    longs = pa.array([None, -(1 << bits), (1 << bits) - 1] * 2000, pa.int64())
    fields = [pa.field("n", pa.int64(), metadata={"unit": "m"}), ("none", pa.int64()), ("i", pa.int32())]
    columns = [longs, pa.nulls(len(longs), pa.int64()), pa.array(range(len(longs)), pa.int32())]
    table = pa.table(columns, schema=pa.schema(fields))

    sent = to_bytes(table, narrow=True)
    back = from_bytes(sent)
    assert back.equals(table)
    assert back.schema.equals(table.schema, check_metadata=True)
    width = next(bytes_ for bytes_ in (1, 2, 4, 8) if bits < 8 * bytes_)
    assert len(sent) < len(longs) * (width + 1 + 4 + 1)
    assert len(to_bytes(table)) > len(longs) * 20, "for what is kept they are left as they are: it is mapped"


def test_mixing_is_a_bijection_as_far_as_one_sees() -> None:
    x = np.arange(100_000, dtype=np.uint64)

    assert len(np.unique(keys.mix(x))) == len(x)
    assert np.bincount((keys.mix(x) % np.uint64(8)).astype(int)).min() > 12_000, "and deals evenly"


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("by", [-1, 0, 1])
@pytest.mark.parametrize("low", [False, True])
def test_a_column_of_longs_is_written_as_wide_as_its_numbers_at_every_boundary(
    bits: int, by: int, *, low: bool
) -> None:
    edge = (-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1) + by
    fits = by == 0 or (by > 0) == low
    if not fits and bits == 64:
        return
    column = pa.array([0, edge, None] * 1000, pa.int64())
    sent = to_bytes(pa.table({"n": column}), narrow=True)
    with pa.ipc.open_stream(sent) as reader:
        written = reader.schema.field("n").type

    assert written.bit_width == (bits if fits else 2 * bits)
    assert from_bytes(sent).column("n").to_pylist() == column.to_pylist()
    assert from_bytes(sent).schema == pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"n": [1, 2, None]}),
        pa.table({"n": range(100), "word": ["a", None] * 50}).slice(7, 31),
        pa.table({"n": pa.array([], pa.int64())}),
        pa.schema([("word", pa.string())]).empty_table(),
        pa.concat_tables([pa.table({"word": ["p", "q"]}), pa.table({"word": [None, "z"]})]),
        pa.table({"list": [[1], None, []], "flag": [True, None, False]}).slice(1),
        pa.table({"n": [1]}).replace_schema_metadata({"a": "b"}),
        pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()}),
    ],
    ids=lambda table: str(table.schema.names),
)
def test_tables_as_bytes_are_what_a_writer_of_streams_writes(table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    assert to_bytes(table) == sink.getvalue().to_pybytes()
    assert from_bytes(to_bytes(table)).equals(table)


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
