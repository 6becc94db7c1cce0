"""Betweenness in graphs that change, against networkx."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import betweenness
from timely_spark.graphs.centrality import _nearest
from timely_spark.testing import run

Epochs = list[list[tuple[Any, ...]]]
LONGS = "src long, dst long"


def agrees(edges: Epochs, samples: Epochs | None = None, *, directed: bool, **how: Any) -> list[Any]:
    """Compare with networkx after each epoch; returns the rows of the last one."""
    flow = ts.Dataflow("agrees")
    given = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    inputs, sources = {"edges": edges}, None
    if samples is not None:
        sources = flow.input("samples", "node long, diff long").collection(diff="diff")
        inputs["samples"] = samples
    betweenness(given, directed, samples=sources).changes().capture("out")
    out = run(flow, inputs, **how)["out"]

    totals = after_each(edges), after_each(samples or [], len(edges))
    for epoch, (present, chosen) in enumerate(zip(*totals, strict=True)):
        graph = (nx.DiGraph if directed else nx.Graph)(list(present.elements()))
        if samples is None:
            expected = nx.betweenness_centrality(graph, normalized=False)
        else:
            some = [node for (node,) in chosen if node in graph]
            expected = nx.betweenness_centrality_subset(graph, some, list(graph))
        rows = ts.snapshot(out, at=epoch).to_pylist()
        assert {row["node"]: row["betweenness"] for row in rows} == pytest.approx(expected, abs=1e-9)
        assert len(rows) == len(graph)
    return sorted(map(str, rows))


@pytest.mark.parametrize("directed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("workers", "seed"), [(1, None), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_edges_come_and_go(changing, directed, workers, seed) -> None:
    agrees(changing(6, 11, 3, changes=2, seed=workers), directed=directed, workers=workers, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("directed", [False, True])
def test_samples_come_and_go(changing, directed) -> None:
    samples = [[(0, 1), (1, 2), (99, 1)], [(1, -1), (3, 1)], [(1, -1), (0, -1)]]

    agrees(changing(6, 11, 3, seed=4), samples, directed=directed, workers=2)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("directed", [False, True])
def test_results_are_equal_to_the_last_bit_however_they_came_to_be(changing, directed) -> None:
    epochs = changing(12, 30, 4, changes=6, seed=8)

    alone = agrees([[row for of in epochs for row in of]], directed=directed)

    assert alone == agrees(epochs, directed=directed, workers=3, seed=2, together=True)
    assert alone == agrees(epochs, directed=directed, workers=2, seed=1, crashes=0.05)


@pytest.mark.slow
def test_many_equal_paths() -> None:
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 3))

    agrees([[(*edge, 1) for edge in grid.edges], [(0, 1, -1)]], directed=False, workers=3)


@pytest.mark.slow
@pytest.mark.campaign
def test_a_window(window) -> None:
    agrees(window(10, 20, 2), directed=False, workers=2)


@pytest.mark.slow
def test_a_graph_becomes_empty() -> None:
    assert (
        agrees([[], [(1, 2, 1), (2, 3, 2), (4, 4, 1)], [(1, 2, -1)], [(2, 3, -2), (4, 4, -1)]], directed=True)
        == []
    )


def test_too_many_paths_are_an_error_not_a_wrong_result() -> None:
    rows = pa.table(
        {"node": [1, 1], "source": [0, 0], "distance": [5, 5], "paths": [2**61, 2**61], "count": [1, 1]}
    )

    with pytest.raises(SchemaError, match=r"(?s)2\^62 or more shortest paths.*Hint"):
        _nearest(rows)


@pytest.mark.slow
def test_more_paths_than_a_double_counts_exactly() -> None:
    layers = [[0], *([32 * depth + i for i in range(32)] for depth in range(1, 14))]
    pairs = [(a, b) for above, below in pairwise(layers) for a in above for b in below]
    flow = ts.Dataflow("layers")
    edges, samples = (flow.input(*each).collection() for each in (("edges", LONGS), ("samples", "node long")))
    betweenness(edges, directed=True, samples=samples).changes().capture("out")

    table = pa.table([*np.array(pairs).T], ["src", "dst"])
    rows = run(flow, {"edges": [table], "samples": [[0]]})["out"].rows()[0]
    # 2^60 paths lead to a node of the last layer; a node is on 1 of 32 of those to a node of a later layer
    depths = [(node, depth) for depth, layer in enumerate(layers) for node in layer]
    assert rows == [(node, 13.0 - depth if depth else 0.0, 1) for node, depth in depths]


@pytest.mark.slow
def test_texts_and_nan() -> None:
    flow = ts.Dataflow("nan")
    edges = flow.input("edges", "src double, dst double").collection()
    betweenness(edges, directed=False).changes().capture("out")

    rows = run(flow, {"edges": [[(np.nan, 1.0), (np.nan, 2.0), (None, 3.0)]]}, workers=2)["out"].rows()[0]

    assert sorted(map(str, rows)) == ["(1.0, 0.0, 1)", "(2.0, 0.0, 1)", "(nan, 1.0, 1)"]


def test_invalid_arguments_are_refused() -> None:
    edges = ts.Dataflow("refused").input("edges", f"{LONGS}, name string").collection()

    with pytest.raises(SchemaError, match=r"(?s)node='name' is string.*test_centrality.*Hint"):
        betweenness(edges, directed=True, samples=edges, node="name")
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        betweenness(edges, directed=True, src="from")
    with pytest.raises(GraphError, match="Hint"):
        betweenness("edges", directed=True)  # type: ignore[arg-type]
