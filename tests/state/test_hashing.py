"""H is the same for ever, and null, NaN and -0.0 have their place in it and in equality."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import CHARACTERS
from timely_spark.state.hashing import exact, hashes, mix, same

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


@pytest.mark.slow
@given(
    st.lists(st.one_of(st.none(), st.text(CHARACTERS, max_size=4)), min_size=1, max_size=30),
    st.integers(0, 5),
)
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


def test_negative_keys_are_equal_in_every_signed_width() -> None:
    narrow, wide = pa.array([-1, -(2**31), 5, None], pa.int32()), pa.array([-1, -(2**31), -5, None])
    equal = same(pa.table({"a": narrow}), pa.table({"b": wide}), ["a"], ["b"])
    assert equal.tolist() == [True, True, False, True]


def test_lists_that_differ_in_their_lengths_or_values_are_not_equal() -> None:
    left = pa.table({"a": pa.array([[1, 2], [1, 2], [1], None, [], [7], [3, 4, 5]])})
    right = pa.table({"a": pa.array([[1, 2], [1], [1, 2], [], [], [8], [3, 0, 5]])})
    equal = same(left, right, ["a"], ["a"])
    assert equal.tolist() == [True, False, False, False, True, False, False]


def test_only_one_column_of_integers_without_nulls_is_distinguished_by_its_hash() -> None:
    table = pa.table({"i": [1, 2], "n": [1, None], "s": ["a", "b"], "u": pa.array([1, 2], pa.uint64())})

    assert [exact(table, [column]) for column in "insu"] == [True, False, False, False]
    assert not exact(table, ["i", "s"])
    assert exact(table, [])


def test_h_of_many_rows_is_that_of_each() -> None:
    numbers = np.arange(70_000)
    whole = hashes(pa.table({"k": numbers}), ["k"])
    parts = [hashes(pa.table({"k": part}), ["k"]) for part in np.split(numbers, [1, 32_768, 40_000])]
    assert (whole == np.concatenate(parts)).all()


def test_mixing_is_a_bijection_as_far_as_one_sees() -> None:
    x = np.arange(100_000, dtype=np.uint64)

    assert len(np.unique(mix(x))) == len(x)
    assert np.bincount((mix(x) % np.uint64(8)).astype(int)).min() > 12_000, "and deals evenly"


NESTED = [
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 1), max_size=2)),
    (pa.large_list(pa.float64()), st.lists(st.sampled_from([0.0, -0.0, math.nan]), max_size=2)),
    (
        pa.list_(pa.list_(pa.string())),
        st.lists(st.none() | st.lists(st.sampled_from(["", "a"]), max_size=2), max_size=2),
    ),
    (
        pa.map_(pa.string(), pa.int8()),
        st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.just(1)), max_size=2),
    ),
    (
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | st.just(["x"])}),
    ),
]


def canonical(value: Any) -> str:
    return repr(value).replace("-0.0", "0.0")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values"), NESTED, ids=[str(kind) for kind, _ in NESTED])
@given(data=st.data())
def test_nested_values_are_one_key_if_all_their_parts_are_equal(
    kind: pa.DataType, values: Any, data: Any
) -> None:
    listed = data.draw(st.lists(st.none() | values, min_size=2, max_size=8))
    a = pa.array([None, *listed], kind)[1:]
    b = pa.array([*listed[1:], listed[0]], kind)
    equal = [canonical(x) == canonical(y) for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)]
    left, right = pa.table({"k": a}), pa.table({"k": b})
    assert same(left, right, ["k"], ["k"]).tolist() == equal
    assert (hashes(left, ["k"]) == hashes(right, ["k"])).tolist() == equal
