"""Aggregates of longs beyond 2^53, which no double holds exactly, and beyond 2^62, which no product does."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.testing import run

LONGS = [2**53 + 1, 2**53 + 3, 2**62 + 1, 3]
AGGREGATES: dict[str, Any] = {
    "avg(n)": statistics.fmean(LONGS),
    "avg(DISTINCT n)": statistics.fmean(LONGS),
    "sum(DISTINCT n)": sum(LONGS),
    "stddev(n)": statistics.stdev(LONGS),
    "var_pop(n)": statistics.pvariance(LONGS),
    "median(n)": float(2**53 + 2),
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY n)": float(2**53 + 2),
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY n)": float(2**53),
    "approx_percentile(n, 0.5)": 2**53 + 1,
}
OVER = ["avg(n)", "stddev(n)", "var_pop(n)"]


def answer(query: str, longs: list[int]) -> Any:
    flow = ts.Dataflow("longs")
    x = flow.input("x", "n long").collection()
    ts.sql(query, x=x).changes().capture("out")
    return run(flow, {"x": [longs]})["out"].rows()[0][0][0]


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_longs_that_no_double_holds_are_rounded(aggregate: str) -> None:
    assert answer(f"SELECT {aggregate} FROM x", LONGS) == pytest.approx(AGGREGATES[aggregate], rel=1e-15)


@pytest.mark.parametrize("aggregate", OVER)
def test_longs_in_windows_are_rounded(aggregate: str) -> None:
    over = answer(f"SELECT {aggregate} OVER (PARTITION BY 1) FROM x", LONGS)
    assert over == pytest.approx(AGGREGATES[aggregate], rel=1e-15)


def test_a_sum_of_distinct_longs_beyond_64_bits_is_refused() -> None:
    four = [2**61 + n for n in range(4)]
    with pytest.raises(VertexError, match=r"(?s)step 'aggregate'.*a sum of longs is beyond 64 bits\nHint: "):
        answer("SELECT sum(DISTINCT n) FROM x", four)
    assert answer("SELECT sum(DISTINCT n) FROM x", [*four[:3], four[0]]) == sum(four[:3])
