"""The mean of a column per key, against numpy."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError, VertexError


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["long", "double"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("arranged", [False, True])
def test_at_every_epoch_it_is_the_mean_of_the_present_values(
    kind: str, workers: int, *, arranged: bool
) -> None:
    random = np.random.default_rng(5)
    flow = ts.Dataflow("mean")
    x = flow.input("x", f"k long, v {kind}, diff long").collection(diff="diff")
    (x.arrange("k").mean("v") if arranged else x.mean("v", keys="k")).changes().capture("out")
    present: list[tuple[int, float | None]] = []
    epochs, expected = [], []
    for _ in range(6):
        gone = [present.pop(random.integers(len(present))) for _ in range(len(present) // 3)]
        values = random.integers(-50, 50, 20).tolist()
        new = [
            (int(k), None if v == 7 else v) for k, v in zip(random.integers(0, 6, 20), values, strict=True)
        ]
        present += new
        epochs.append([(*row, 1) for row in new] + [(*row, -1) for row in gone])
        by_key: dict[int, list[Any]] = {k: [v for key, v in present if key == k] for k, _ in present}
        expected.append({k: [v for v in of if v is not None] for k, of in by_key.items()})

    found = ts.testing.run(flow, {"x": epochs}, workers=workers, seed=1)["out"]

    assert [*found.rows()] == [*range(6)]
    held: dict[Any, int] = {}
    for epoch, changes in found.rows().items():
        for key, mean, diff in changes:
            held[key, mean] = held.get((key, mean), 0) + diff
        now = {key: mean for (key, mean), count in held.items() if count}
        assert now == {k: np.mean(of) if of else None for k, of in expected[epoch].items()}


def test_decimals_and_the_whole() -> None:
    flow = ts.Dataflow("mean")
    x = flow.input("x", "v decimal(10, 2)").collection()
    x.mean("v").changes().capture("out")

    assert ts.testing.run(flow, {"x": [[Decimal("1.50"), Decimal("2.00"), None]]})["out"].rows() == {
        0: [(1.75, 1)]
    }


def test_longs_beyond_the_exact_doubles_are_rounded() -> None:
    flow = ts.Dataflow("mean")
    flow.input("x", "v long").collection().mean("v").changes().capture("out")

    assert ts.testing.run(flow, {"x": [[2**60 + 1, 3]]})["out"].rows() == {0: [((2**60 + 4) / 2, 1)]}


def test_a_mean_is_of_numbers() -> None:
    x = ts.Dataflow("mean").input("x", "k long, v string").collection()

    with pytest.raises(
        SchemaError, match=r"(?s)mean: column 'v' is string.*\nHint: give a column of numbers"
    ):
        x.mean("v", keys="k")


def test_the_sum_behind_a_mean_may_be_larger_than_a_long() -> None:
    flow = ts.Dataflow("mean")
    x = flow.input("x", "k long, v long, d long").collection(diff="d")
    x.mean("v", keys="k").changes().capture("out")
    epochs = [
        [(1, 2**63 - 1, 1), (1, 2**63 - 1, 2), (2, -(2**63), 1), (2, -1, 1), (2, -(2**63), 1)],
        [(1, 2**63 - 1, -2), (1, 5, 1), (1, None, 4)],
    ]

    assert ts.testing.run(flow, {"x": epochs}, workers=2)["out"].rows() == {
        0: [(1, 2.0**63, 1), (2, -(2.0**65) / 6, 1)],
        1: [(1, 2.0**62, 1), (1, 2.0**63, -1)],
    }


MOST = (1 << 63) - 1


def test_a_sum_beyond_64_bits_is_an_error_and_what_cancels_is_none() -> None:
    flow = ts.Dataflow("sum")
    x = flow.input("x", "k long, v long, diff long").collection(diff="diff")
    x.sum("v", keys="k").changes().capture("out")

    first: list[Any] = [
        (1, MOST, 1),
        (2, -MOST - 1, 1),
        (3, -1, 1 << 40),
        (4, None, 1),
        (5, MOST, 2),
        (5, -MOST, 1),
    ]
    second: list[Any] = [(1, -1, 1), (2, MOST, 2), (3, 1 << 32, 1)]
    found = ts.testing.run(flow, {"x": [first, second]}, workers=2)["out"].rows()
    assert [row for row in found[0] if row[2] > 0] == [
        (1, MOST, 1), (2, -MOST - 1, 1), (3, -(1 << 40), 1), (4, None, 1), (5, MOST, 1),
    ]  # fmt: skip
    assert [row for row in found[1] if row[2] > 0] == [
        (1, MOST - 1, 1), (2, MOST - 1, 1), (3, (1 << 32) - (1 << 40), 1),
    ]  # fmt: skip
    for rows in ([(1, MOST, 1), (1, 1, 1)], [(1, -MOST, 1), (1, -2, 1)], [(1, 1 << 61, 4)]):
        with pytest.raises(VertexError, match=r"(?s)step 'sum'.*beyond 64 bits.*Hint: sum doubles"):
            ts.testing.run(flow, {"x": [rows]})


@pytest.mark.parametrize("operator", ["sum", "mean"])
@pytest.mark.parametrize(
    "epochs",
    [
        [[(1, 1 << 30, 1 << 34)]],
        [[(1, 1 << 62, 1 << 34)]],
        [[(1, -1 << 30, 1 << 31), (1, -1 << 29, 1 << 32)]],
        [[(1, 1 << 30, 1 << 31)], [(1, 1 << 29, 1 << 32)]],
    ],
)
def test_values_times_large_multiplicities_never_wrap_around(operator: str, epochs: Any) -> None:
    flow = ts.Dataflow("large")
    x = flow.input("x", "k long, v long, diff long").collection(diff="diff")
    getattr(x, operator)("v", keys="k").changes().capture("out")
    with pytest.raises(VertexError, match=r"(?s)values times their multiplicities.*Hint: count equal"):
        ts.testing.run(flow, {"x": epochs})


@pytest.mark.parametrize("operator", ["sum", "mean"])
@pytest.mark.parametrize("stream", [False, True])
def test_values_beyond_a_long_are_told_of_as_its_sums_are(operator: str, *, stream: bool) -> None:
    flow = ts.Dataflow("unsigned")
    x = flow.input("x", pa.schema([("v", pa.uint64())]))
    if stream:
        x.aggregate(v=(operator, "v")).capture("out")
    else:
        getattr(x.collection(), operator)("v", keys=[]).changes().capture("out")
    with pytest.raises(VertexError, match=r"(?s)step .* a sum of longs is beyond 64 bits\nHint: sum doubles"):
        ts.testing.run(flow, {"x": [[1 << 63]]})


def test_the_mean_of_decimals_needs_no_decimal_for_their_sum() -> None:
    flow = ts.Dataflow("decimals")
    x = flow.input("x", "v decimal(38, 0)").collection()
    x.sum("v", keys=[]).changes().capture("out")
    most, least = Decimal("9" * 38), Decimal("-" + "9" * 38)
    with pytest.raises(VertexError, match=r"(?s)step 'sum'.*decimals is beyond 38 digits\nHint: sum doubles"):
        ts.testing.run(flow, {"x": [[most, most]]})

    flow = ts.Dataflow("decimals")
    flow.input("x", "v decimal(38, 0)").collection().mean("v", keys=[]).changes().capture("out")
    assert ts.testing.run(flow, {"x": [[most, most, least]]})["out"].rows() == {0: [(float(most) / 3, 1)]}
    assert ts.testing.run(flow, {"x": [[most, most]]})["out"].rows() == {0: [(1e38, 1)]}


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_streams_sum_of_decimals_beyond_38_digits_says_so(kind: Any) -> None:
    flow = ts.Dataflow("decimals")
    flow.input("x", "v decimal(38, 0)").aggregate(v=(kind, "v")).capture("out")
    with pytest.raises(VertexError, match=r"(?s)decimals is beyond 38 digits\nHint: sum doubles"):
        ts.testing.run(flow, {"x": [[Decimal("9" * 38)] * 2]})
