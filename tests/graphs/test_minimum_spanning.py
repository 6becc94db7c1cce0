"""Minimum spanning forests of graphs that change, against networkx."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx
import numpy as np
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.graphs import minimum_spanning_forest
from timely_spark.testing import run

WEIGHTED = "src long, dst long, weight long"
FEW, MANY = (-1, 0, 1, 2), tuple(range(-50, 50))


def forest(edges: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    """Kruskal's forest of the graph in which an edge weighs its place in the order of weights and ends."""
    order = sorted({(weight, min(a, b), max(a, b)) for a, b, weight in edges if a != b}, reverse=True)
    graph = nx.Graph()
    for place, (weight, a, b) in enumerate(order):  # the lightest parallel edge last
        graph.add_edge(a, b, place=-place, weight=weight)
    tree = nx.minimum_spanning_tree(graph, weight="place")
    assert tree.size("weight") == nx.minimum_spanning_tree(graph).size("weight")
    assert [*map(set, nx.connected_components(tree))] == [*map(set, nx.connected_components(graph))]
    return [(min(a, b), max(a, b), weight) for a, b, weight in tree.edges(data="weight")]


@pytest.mark.parametrize(
    ("workers", "seed", "weights"),
    [
        (1, None, FEW),
        pytest.param(2, 4, MANY, marks=pytest.mark.slow),
        pytest.param(3, 1, (1,), marks=pytest.mark.slow),
    ],
)
def test_edges_come_and_go(follows, changing, workers, seed, weights) -> None:
    edges = changing(8, 14, 3, seed=workers, weights=weights)

    rows = follows(minimum_spanning_forest, forest, {"edges": (WEIGHTED, edges)}, workers=workers, seed=seed)

    assert sum(len(one) for one in rows.values()) > 9


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("weights", [FEW, MANY])
def test_larger_graphs(follows, changing, weights) -> None:
    given = {"edges": (WEIGHTED, changing(30, 55, 4, seed=1, weights=weights))}

    follows(minimum_spanning_forest, forest, given, workers=8, seed=2)


@pytest.mark.slow
def test_a_long_path_of_rising_weights_takes_few_iterations(follows) -> None:
    path = [(n, n + 1, n, 1) for n in range(16)]

    follows(minimum_spanning_forest, forest, {"edges": (WEIGHTED, [path, [(8, 9, 8, -1)]])}, workers=2)


@pytest.mark.slow
def test_a_graph_becomes_empty_and_texts_have_an_order(follows, changing, named) -> None:
    edges = named(changing(6, 9, 2, seed=5, weights=FEW))
    present = [(*row[:3], -row[3]) for epoch in edges for row in epoch]

    schema = "src string, dst string, weight long"
    rows = follows(minimum_spanning_forest, forest, {"edges": (schema, [*edges, present])}, workers=2)

    assert rows[2]


@pytest.mark.slow
def test_without_weights_and_with_nan_as_a_node() -> None:
    flow = ts.Dataflow("nan")
    edges = flow.input("edges", "src double, dst double").collection()
    minimum_spanning_forest(edges, weight=None).changes().capture("out")

    given = [(np.nan, np.nan), (0.0, -0.0), (np.nan, 1.0), (1.0, 2.0), (2.0, np.nan), (None, 1.0)]
    rows = run(flow, {"edges": [given]}, workers=2)["out"].rows()[0]

    assert [str(row) for row in rows] == ["(1.0, 2.0, 1, 1)", "(1.0, nan, 1, 1)"]


@pytest.mark.parametrize("weight", [None, np.nan, np.inf])
def test_a_weight_that_is_no_number_is_an_error(weight) -> None:
    flow = ts.Dataflow("bad")
    edges = flow.input("edges", "src long, dst long, weight double").collection()
    minimum_spanning_forest(edges).changes().capture("out")

    with pytest.raises(VertexError, match=r"(?s)has no finite weight\..*Hint"):
        run(flow, {"edges": [[(1, 2, weight)]]})


def test_invalid_arguments_are_refused() -> None:
    edges = ts.Dataflow("refused").input("edges", "src long, dst long, weight string").collection()

    with pytest.raises(SchemaError, match=r"(?s)weight='weight' is string.*test_minimum.*Hint"):
        minimum_spanning_forest(edges)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        minimum_spanning_forest(edges, src="from", weight=None)
    with pytest.raises(GraphError, match="Hint"):
        minimum_spanning_forest("edges")  # type: ignore[arg-type]
