"""Independent sets and colourings of graphs that change, against the sequential greedy algorithms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import colouring, maximal_independent_set
from timely_spark.graphs.greedy import priorities
from timely_spark.testing import run

LONGS = "src long, dst long"


def in_order(edges: Iterable[tuple[Any, Any]], more: Iterable[tuple[Any]], seed: int) -> Any:
    """The graph, and its nodes one by one."""
    graph = nx.Graph([(a, b) for a, b in edges if a != b])
    graph.add_nodes_from(node for edge in edges for node in edge)
    graph.add_nodes_from(node for (node,) in more)
    nodes = sorted(graph)
    first = priorities(pa.table({"node": nodes}), "node", seed) if nodes else []
    return graph, [node for _, node in sorted(zip(first, nodes, strict=True))]


def independent(edges: list[Any], more: Iterable[Any] = (), *, seed: int = 0) -> Iterable[tuple[Any]]:
    graph, order = in_order(edges, more, seed)
    taken: set[Any] = set()
    for node in order:
        if not taken & set(graph[node]):
            taken.add(node)
    return [(node,) for node in taken]


def coloured(edges: list[Any], more: Iterable[Any] = (), *, seed: int = 0) -> Iterable[tuple[Any, int]]:
    graph, order = in_order(edges, more, seed)
    colours: dict[Any, int] = {}
    for node in order:
        taken = {colours.get(other) for other in graph[node]}
        colours[node] = next(one for one in range(len(graph) + 1) if one not in taken)
    return colours.items()


CASES: dict[str, tuple[Any, Any]] = {
    "set": (maximal_independent_set, independent),
    "colours": (colouring, coloured),
}
both = pytest.mark.parametrize(("algorithm", "oracle"), CASES.values(), ids=CASES)


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("algorithm", "oracle", "workers", "seed"), in_turn(CASES.values(), [(1, None), (3, 1)])
)
def test_edges_come_and_go(follows, changing, algorithm, oracle, *, workers, seed) -> None:
    edges = changing(9, 18, 5, seed=workers)

    rows = follows(algorithm, oracle, {"edges": (LONGS, edges)}, workers=workers, seed=seed)

    assert sum(len(one) for one in rows.values()) > 6


@pytest.mark.campaign  # in every run edges come and go, in the test above
@both
@pytest.mark.parametrize("size", [(10, 20, 6), (60, 110, 8)])
def test_a_window_slides(follows, window, algorithm, oracle, size) -> None:
    follows(algorithm, oracle, {"edges": (LONGS, window(*size))}, workers=8, seed=2)


@pytest.mark.slow
@both
def test_further_nodes_and_texts(follows, changing, named, algorithm, oracle) -> None:
    edges = named(changing(9, 12, 3, seed=5))
    nodes = [[("alone", 1), ("0-0", 1)], [("alone", -1), ("other", 2)], [("other", -1)]]

    follows(
        lambda edges, nodes: algorithm(edges, nodes=nodes),
        oracle,
        {"edges": ("src string, dst string", edges), "nodes": ("node string", nodes)},
        workers=2,
    )


@pytest.mark.slow
@both
def test_another_seed_is_another_order(follows, changing, algorithm, oracle) -> None:
    given = {"edges": (LONGS, changing(12, 24, 2, seed=7))}

    rows = [
        follows(
            lambda edges, seed=seed: algorithm(edges, seed=seed),
            lambda edges, seed=seed: oracle(edges, seed=seed),
            given,
        )
        for seed in (1, -1, 2**70)
    ]

    assert rows[0] != rows[1] != rows[2]


@pytest.mark.slow
@pytest.mark.share(1)
@both
def test_a_loop_at_nan_is_a_self_loop(algorithm, oracle) -> None:
    flow = ts.Dataflow("nan")
    edges = flow.input("edges", "src double, dst double").collection()
    algorithm(edges).changes().capture("out")

    rows = run(flow, {"edges": [[(np.nan, np.nan), (0.0, -0.0), (1.0, 1.0)]]}, workers=2)["out"].rows()[0]

    assert len(rows) == 3


@pytest.mark.slow
def test_a_larger_graph_has_no_edge_between_chosen_ones_and_no_room_for_more() -> None:
    graph = nx.gnm_random_graph(500, 2500, seed=1)
    flow = ts.Dataflow("larger")
    edges = flow.input("edges", LONGS).collection()
    maximal_independent_set(edges).changes().capture("set")
    colouring(edges).changes().capture("colours")

    made = run(flow, {"edges": [list(graph.edges)]}, workers=2)

    chosen = {row["node"] for row in ts.snapshot(made["set"]).to_pylist()}
    assert not any(a in chosen and b in chosen for a, b in graph.edges)
    assert all(node in chosen or chosen & set(graph[node]) for node in graph if graph[node])
    colour = {row["node"]: row["colour"] for row in ts.snapshot(made["colours"]).to_pylist()}
    assert all(colour[a] != colour[b] for a, b in graph.edges)
    assert max(colour.values()) <= max(dict(graph.degree).values())


@both
@pytest.mark.parametrize("wrong", [2.5, None, True, "1"])
def test_invalid_arguments_are_refused(algorithm, oracle, wrong) -> None:
    edges = ts.Dataflow("refused").input("edges", "src long, dst long, other string").collection()

    with pytest.raises(GraphError, match=r"(?s)seed=.*test_greedy.*Hint"):
        algorithm(edges, seed=wrong)
    with pytest.raises(SchemaError, match=r"(?s)node='other' is string.*test_greedy.*Hint"):
        algorithm(edges, nodes=edges, node="other")
