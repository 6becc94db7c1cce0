"""TPC-H's 22 queries: rows come in random epochs, some go and come again, and the last epoch is DuckDB's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support.duck import plain
from tests.support.outside.epochs import last_epoch
from tests.support.tpch import queries, tables


def rows(table: pa.Table) -> Counter[Any]:
    """Rows that two engines have alike."""
    return Counter(map(alike, zip(*(one.to_pylist() for one in table.columns), strict=True)))


def alike(row: Any) -> Any:
    """A row with four digits: Spark's averages of decimals have six, DuckDB's are doubles."""
    return tuple(round(one, 4) if isinstance(one, float) else one for one in plain(row))


def compare(scale: float, numbers: list[int], seed: int) -> dict[int, int]:
    """Check queries; by number how many rows they have."""
    made = tables(scale, seed)
    with duckdb.connect() as duck:
        for name, table in made.items():
            duck.register(name, table)
        texts = queries()
        theirs = {n: Counter(map(alike, duck.execute(texts[n]).fetchall())) for n in numbers}
    ours = last_epoch([texts[n] for n in numbers], made, seed=seed, epochs=2)
    got = {n: rows(table) for n, table in zip(numbers, ours, strict=True)}
    assert {n: (got[n] - theirs[n], theirs[n] - got[n]) for n in numbers if got[n] != theirs[n]} == {}
    return {n: sum(of.values()) for n, of in theirs.items()}


@pytest.mark.slow
def test_all_queries_are_kept_up_to_date() -> None:
    counts = compare(0.0005, [*queries()], 3)
    assert len(counts) == 22
    assert sum(many > 0 for many in counts.values()) > 18  # parts and suppliers are few


@pytest.mark.campaign
@pytest.mark.parametrize("number", queries())
def test_a_query_at_a_hundredth_of_the_benchmark(number: int) -> None:
    assert compare(0.01, [number], 7)[number] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(3))
def test_all_queries_at_a_tenth_of_the_benchmark(part: int) -> None:
    assert all(compare(0.1, [*queries()][part::3], 7).values())
