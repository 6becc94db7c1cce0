"""Random queries are DuckDB's at each epoch: see `tests.support.random_queries`."""

from __future__ import annotations

import pytest

from tests.support.random_queries import TOGETHER, check


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n * TOGETHER, marks=pytest.mark.campaign) for n in (1, 2, 3))],
)
def test_random_queries_are_those_of_duckdb(seed: int) -> None:
    check(seed)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1_000_000, 1_010_000, 50 * TOGETHER))
def test_ten_thousand_random_queries_are_those_of_duckdb(seed: int) -> None:
    for one in range(seed, seed + 50 * TOGETHER, TOGETHER):
        check(one)
