"""Cores of graphs that change, against networkx."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import core_numbers, k_core
from timely_spark.testing import run

LONGS = "src long, dst long"


def simple(edges: Iterable[tuple[Any, Any]]) -> nx.Graph:
    graph = nx.Graph([(a, b) for a, b in edges if a != b])
    assert not any(nx.selfloop_edges(graph))
    return graph


def core(k: int) -> Callable[..., Iterable[tuple[Any]]]:
    return lambda edges: [(node,) for node in nx.k_core(simple(edges), k)]


def numbers(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, int]]:
    return nx.core_number(simple(edges)).items()


CASES: dict[str, tuple[Any, Any]] = {
    **{f"{k}-core": (partial(k_core, k=k), core(k)) for k in (1, 2, 3)},
    "core numbers": (core_numbers, numbers),
}
every = pytest.mark.parametrize(("algorithm", "oracle"), CASES.values(), ids=CASES)


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("algorithm", "oracle", "workers", "seed"), in_turn(CASES.values(), [(1, None), (3, 1)])
)
def test_edges_come_and_go(follows, changing, algorithm, oracle, *, workers, seed) -> None:
    edges = changing(9, 24, 5, seed=workers)

    rows = follows(algorithm, oracle, {"edges": (LONGS, edges)}, workers=workers, seed=seed)

    assert sum(len(one) for one in rows.values()) > 6


@pytest.mark.campaign  # in every run edges come and go, in the test above
@every
@pytest.mark.parametrize("size", [(10, 20, 6), (40, 110, 8)])
def test_a_window_slides(follows, window, algorithm, oracle, size) -> None:
    follows(algorithm, oracle, {"edges": (LONGS, window(*size))}, workers=5, seed=2)


@pytest.mark.slow
@every
def test_texts(follows, changing, named, algorithm, oracle) -> None:
    given = {"edges": ("src string, dst string", named(changing(9, 24, 3, seed=5)))}

    follows(algorithm, oracle, given, workers=2)


@pytest.mark.slow
def test_a_long_path_is_peeled_from_both_ends_and_a_cycle_is_not(follows) -> None:
    path = [(n, n + 1, 1) for n in range(12)]
    epochs = [path, [(12, 0, 1)], [(12, 0, -1)]]

    rows = follows(partial(k_core, k=2), core(2), {"edges": (LONGS, epochs)}, workers=2)

    assert [len(rows[epoch]) for epoch in range(3)] == [0, 13, 13]


@pytest.mark.slow
def test_as_networkx_says_of_a_larger_graph() -> None:
    graph = nx.barabasi_albert_graph(400, 4, seed=2)
    flow = ts.Dataflow("larger")
    edges = flow.input("edges", LONGS).collection()
    core_numbers(edges).changes().capture("numbers")
    k_core(edges, 4).changes().capture("core")
    some = np.random.default_rng(1).permutation(list(graph.edges)).tolist()

    made = run(flow, {"edges": [some[:1200], some[1200:]]}, workers=2)

    found = {row["node"]: row["core"] for row in ts.snapshot(made["numbers"]).to_pylist()}
    assert found == nx.core_number(graph)
    assert {row["node"] for row in ts.snapshot(made["core"]).to_pylist()} == {*nx.k_core(graph, 4)}


@pytest.mark.parametrize("wrong", [0, -1, 2.5, None, True])
def test_invalid_arguments_are_refused(wrong) -> None:
    edges = ts.Dataflow("refused").input("edges", LONGS).collection()

    with pytest.raises(GraphError, match=r"(?s)k_core: k=.*test_cores.*Hint"):
        k_core(edges, wrong)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        core_numbers(edges, src="from")
