"""Multiplicities near 2 ** 62, the least that is refused: compared exactly, as no double can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.differential.trace import DIFF, MOST, consolidate, products
from timely_spark.errors import SchemaError, VertexError

HALF = MOST // 2
#: eight records, whose multiplicities make more than 2 ** 64
HALVES = [(n, HALF) for n in range(8)]


def run(build: Any, changes: list[tuple[int, int]]) -> Any:
    flow = ts.Dataflow("large")
    x = flow.input("x", "n long, d long").collection(diff="d")
    build(x).changes().capture("out")
    return ts.testing.run(flow, {"x": [changes]})["out"].rows()[0]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("first", "second"), [(HALF, HALF - 1), (MOST - 1, 0), (MOST - 2, 1), (HALF + 7, HALF - 8)]
)
def test_the_largest_one_is_right(first: int, second: int, sign: int) -> None:
    changes = [(7, sign * first), *([(7, sign * second)] if second else [])]
    assert run(lambda x: x, changes) == [(7, sign * (MOST - 1))]
    if sign > 0:
        assert run(lambda x: x.count(keys="n"), changes) == [(7, MOST - 1, 1)]
        assert run(lambda x: x.distinct(), changes) == [(7, 1)]
        assert run(lambda x: x.join(x.distinct(), on="n"), changes) == [(7, MOST - 1)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("first", "second"), [(HALF, HALF), (MOST - 1, 1), (HALF + 1, HALF - 1)])
def test_the_next_one_is_refused(first: int, second: int, sign: int) -> None:
    changes = [(7, sign * first), (7, sign * second)]
    with pytest.raises(VertexError, match=r"2 \*\* 62 times or more"):
        run(lambda x: x.count(keys="n"), changes)
    n, weights = pa.array([7, 7]), pa.array([weight for _, weight in changes])
    with pytest.raises(SchemaError, match=r"2 \*\* 62"):
        consolidate(pa.table({"n": n, DIFF: [1, 1], f"{DIFF}_of": weights}))


@pytest.mark.parametrize(
    ("a", "b"), [(MOST - 1, 1), (1 << 31, (1 << 31) - 1), (3, (MOST - 1) // 3), (-MOST + 1, 1), (0, MOST - 1)]
)
def test_products_below_it(a: int, b: int) -> None:
    assert products(np.array([a, 1]), np.array([b, 1])).tolist() == [a * b, 1]


@pytest.mark.parametrize(
    ("a", "b"), [(1 << 31, 1 << 31), (3, (MOST - 1) // 3 + 1), (-(1 << 31), 1 << 31), (MOST - 1, 2)]
)
def test_products_from_it_on(a: int, b: int) -> None:
    for one, other in ((a, b), (b, a)):
        with pytest.raises(SchemaError, match=r"2 \*\* 62"):
            products(np.array([one, 1]), np.array([other, 1]))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: x.top_k(HALF + 1, "n", keys=[], descending=False), [(0, HALF), (1, 1)]),
        (lambda x: ts.sql("SELECT n FROM x ORDER BY n LIMIT 1", x=x), [(0, 1)]),
        (
            lambda x: ts.sql("SELECT n FROM x ORDER BY n LIMIT ALL OFFSET 1", x=x),
            [(0, HALF - 1), *HALVES[1:]],
        ),
    ],
)
def test_large_ones_of_a_group_may_be_more_than_a_long_together(build: Any, expected: list[Any]) -> None:
    assert run(build, HALVES) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT avg(CAST(n AS double)) AS n FROM x", r"2 \*\* 62 or more"),
        (
            "SELECT row_number() OVER (ORDER BY n) AS n FROM x",
            "18,446,744,073,709,551,616 records, 8 of them",
        ),
    ],
)
def test_sql_refuses_large_ones_that_it_cannot_add_up(query: str, message: str) -> None:
    with pytest.raises(VertexError, match=message):
        run(lambda x: ts.sql(query, x=x), HALVES)
