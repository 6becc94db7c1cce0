"""Arguments of the same kind are checked alike, wherever they are given: numpy's numbers are numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import timely_spark as ts


def edges() -> Any:
    return ts.Dataflow("x").input("x", "src long, dst long").collection()


def stream() -> Any:
    return ts.Dataflow("x").input("x", "src long, dst long")


def vectors() -> Any:
    return ts.Dataflow("x").input("x", "v array<double>")


def twice(table: Any) -> Any:
    return table


INTEGERS: dict[str, Callable[[Any], object]] = {
    "workers": lambda n: ts.testing.run(stream().capture("out").flow, {}, workers=n),
    "limit": lambda n: ts.testing.Simulation(stream().capture("out").flow).run(n),
    "k of k_core": lambda n: ts.graphs.k_core(edges(), n),
    "iterations of pagerank": lambda n: ts.graphs.pagerank(edges(), iterations=n),
    "unit of pagerank": lambda n: ts.graphs.pagerank(edges(), unit=n),
    "tolerance of pagerank": lambda n: ts.graphs.pagerank(edges(), iterations=None, tolerance=n),
    "iterations of cdlp": lambda n: ts.graphs.cdlp(edges(), iterations=n),
    "k of top_k": lambda n: stream().top_k(n, "dst", keys="src"),
    "k of a collection's top_k": lambda n: edges().top_k(n, "dst", keys="src"),
    "max_iterations": lambda n: stream().loop(lambda hops: hops, max_iterations=n),
    "expire": lambda n: stream().expire(n),
    "up_to": lambda n: stream().count_distinct("n", keys="src", up_to=n),
    "rows of call": lambda n: stream().call(twice, "n long", rows=n),
    "attempts of pipe": lambda n: stream().pipe("cat", "n long", attempts=n),
    "parts of all_reduce": lambda n: ts.all_reduce(vectors(), "v", parts=n),
}
WRONG = [0, -1, 1.0, np.float64(1), "1", True, np.True_, [1]]


@pytest.mark.parametrize("what", INTEGERS)
def test_an_integer_may_be_one_of_numpy(what: str) -> None:
    for number in (3, np.int64(3), np.uint8(3)):
        INTEGERS[what](number)


@pytest.mark.parametrize("what", INTEGERS)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_anything_else_is_refused_with_the_line(what: str, wrong: Any) -> None:
    if what == "parts of all_reduce" and wrong == [1]:
        return  # the keys of the parts
    with pytest.raises(ts.TimelyError, match=r"(?s)test_arguments\.py:\d+.*Hint: "):
        INTEGERS[what](wrong)
