"""Values that are equal and have other bits, and sums whose parts come and go."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts

#: two NaNs of other bits, -0.0 and 0.0
BITS = (0x7FF8000000000001, 0xFFF8000000000002, 0x8000000000000000, 0)


def changes(bits: tuple[int, ...], diff: int) -> pa.Table:
    values = pa.py_buffer(struct.pack(f"{len(bits)}Q", *bits))
    return pa.table(
        {"x": pa.Array.from_buffers(pa.float64(), len(bits), [None, values]), "d": [diff] * len(bits)}
    )


def counted(build: Any, schema: str, *epochs: Any) -> list[list[tuple[str, ...]]]:
    """The results after each epoch, as texts: NaN is not equal to itself."""
    flow = ts.Dataflow("odd")
    build(flow.input("x", schema).collection(diff="d")).capture("out")
    captured = ts.testing.run(flow, {"x": [*epochs]}, workers=2)["out"]
    return [
        sorted(
            tuple(map(str, row))
            for row in ts.snapshot(captured, at=epoch).to_pandas().itertuples(index=False)
        )
        for epoch in range(len(epochs))
    ]


@pytest.mark.parametrize("other", [0x7FF8000000000099, 0xFFF8000000000001])
def test_a_nan_is_a_nan_and_zero_is_zero(other: int) -> None:
    first, second = changes(BITS, 1), changes((other, 0), -1)
    both = counted(lambda x: x.count(keys="x"), "x double, d long", first, second)
    assert [[count for _, count in rows] for rows in both] == [["2", "2"], ["1", "1"]]


def test_texts_with_nul_are_texts() -> None:
    rows = [(text, 1) for text in ("a", "a\0", "a\0b", "", "\0")]
    after = counted(lambda x: x.count(keys="s"), "s string, d long", rows, [("a\0", -1)])
    assert [len(rows) for rows in after] == [5, 4]


@pytest.mark.parametrize("verb", ["sum", "mean"])
def test_what_was_added_and_taken_away_leaves_nothing(verb: str) -> None:
    parts = [math.inf, -math.inf, math.nan, 1e308, 1e308, 5e-324, 1e17]
    added = [(1.0, 1), *((part, 1) for part in parts)]
    taken = [(part, -1) for part in parts]
    after = counted(lambda x: getattr(x, verb)("x"), "x double, d long", added, taken)
    assert after == [[("nan",)], [("1.0",)]]
