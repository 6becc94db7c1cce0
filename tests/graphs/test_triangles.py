"""Triangles of graphs that change, against all threes of nodes, and networkx."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError
from timely_spark.graphs import core_numbers, lcc, triangles
from timely_spark.testing import Simulation, run

LONGS = "src long, dst long"


def threes(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, Any, Any]]:
    there = {frozenset(edge) for edge in edges}
    nodes = sorted({node for edge in edges for node in edge})
    return (
        three
        for three in combinations(nodes, 3)
        if all(frozenset(two) in there for two in combinations(three, 2))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "seed"), [(1, None), pytest.param(2, 0, marks=pytest.mark.campaign), (3, 1)]
)
@pytest.mark.parametrize("graph", [2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (0, 1))])
def test_edges_change_and_degrees_pass_powers_of_two(follows, changing, workers, seed, graph) -> None:
    edges = changing(9, 16 + 10 * graph, 12, changes=8, seed=graph)

    rows = follows(triangles, threes, {"edges": (LONGS, edges)}, workers=workers, seed=seed)

    assert sum(len(one) for one in rows.values()) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "edges", "rounds"),
    [(10, 20, 8), pytest.param(30, 200, 10, marks=pytest.mark.campaign), (30, 400, 1)],
)
def test_a_window_slides(follows, window, nodes, edges, rounds) -> None:
    follows(triangles, threes, {"edges": (LONGS, window(nodes, edges, rounds))}, workers=2)


@pytest.mark.slow
def test_nodes_may_be_texts(follows, changing, named) -> None:
    edges = named(changing(9, 24, 6, changes=6, seed=5))

    follows(triangles, threes, {"edges": ("src string, dst string", edges)}, workers=2)


@pytest.mark.slow
def test_differentials_regression_case_and_each_removal(follows) -> None:
    edges = [(0, 1, 1), (1, 2, 1), (0, 2, 1)]
    epochs = [
        edges,
        [(2, 1, 1), (1, 1, 3)],
        [(1, 2, -1)],
        [(2, 1, -1)],
        [(2, 1, 1)],
        [(1, 1, -3), (0, 1, -1)],
    ]

    rows = follows(triangles, threes, {"edges": (LONGS, epochs)}, workers=3)

    there, gone = [(0, 1, 2, 1)], [(0, 1, 2, -1)]
    assert list(rows.values()) == [there, [], [], gone, there, gone]


@pytest.mark.slow
def test_it_runs_inside_a_loop(follows, changing) -> None:
    def peeled(edges: ts.Collection) -> ts.Collection:
        """Only edges whose ends are both the least node of a triangle of those left, over and over."""

        def step(left: ts.Collection) -> ts.Collection:
            least = triangles(left).select(src="a").distinct()
            return left.semijoin(least, on="src")

        return edges.iterate(step)

    def oracle(edges: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        while True:
            least = {a for a, _, _ in threes(edges)}
            left = [edge for edge in edges if edge[0] in least]
            if left == edges:
                return left
            edges = left

    follows(peeled, oracle, {"edges": (LONGS, changing(9, 24, 5, seed=6))}, workers=2)


def test_a_hub_of_a_skewed_graph_costs_its_edges_not_their_pairs() -> None:
    """A star of 2,000 has 2 million pairs of edges, and two rows of it one triangle each."""
    flow = ts.Dataflow("star")
    edges = flow.input("edges", LONGS).collection()
    triangles(edges).changes().capture("out")
    simulation = Simulation(flow)
    spokes = [(0, node) for node in range(1, 2001)]
    simulation.send("edges", [*spokes, (17, 18), (500, 1900)])

    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(0, 17, 18, 1), (0, 500, 1900, 1)]}
    assert len(simulation.states[0] or b"") < 2_000_000  # as many bytes as there are pairs


@pytest.mark.slow
def test_as_many_as_networkx_counts() -> None:
    graph = nx.Graph(np.random.default_rng(3).integers(0, 150, (2500, 2)).tolist())
    graph.remove_edges_from(nx.selfloop_edges(graph))
    flow = ts.Dataflow("networkx")
    triangles(flow.input("edges", LONGS).collection()).changes().capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]}, workers=2)["out"].rows()

    assert len(rows[0]) == sum(nx.triangles(graph).values()) // 3
    assert all(a < b < c for a, b, c, _ in rows[0])


def test_invalid_edges_are_refused() -> None:
    edges = ts.Dataflow("refused").input("edges", "src long, dst string").collection()

    with pytest.raises(SchemaError, match=r"(?s)triangles: .*int64 and string.*test_triangles.*Hint"):
        triangles(edges)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [triangles, core_numbers, partial(lcc, directed=True)], ids=["triangles", "cores", "lcc"]
)
def test_nan_is_a_node_as_any_other(algorithm) -> None:
    edges = [(1.0, np.nan), (np.nan, 2.0), (2.0, 1.0), (np.nan, np.nan), (3.0, np.nan), (3.0, 2.0)]
    found = []
    for node in (np.nan, 9.0):
        flow = ts.Dataflow("nan")
        algorithm(flow.input("edges", "src double, dst double").collection()).changes().capture("out")
        given = [tuple(node if np.isnan(end) else end for end in edge) for edge in edges]
        rows = run(flow, {"edges": [given]}, workers=2)["out"].rows()[0]
        found.append(sorted(str(row).replace("nan", "9.0") for row in rows))

    assert found[0] == found[1]
    assert len(found[1]) > 1
