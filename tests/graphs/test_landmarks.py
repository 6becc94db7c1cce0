"""Distances to landmarks of graphs that change, and their bounds, against networkx."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.graphs import bfs, distance_bounds, landmarks
from timely_spark.testing import run

LONGS = "src long, dst long"
NODES = [[(0, 1), (3, 1), (77, 1)], [], [(0, -1)], [(5, 2)]]
PAIRS = [[(0, 1, 1), (2, 3, 1), (4, 4, 1), (6, 1, 1)], [(4, 6, 1), (2, 3, -1)]]


def graph_of(edges: list[Any]) -> nx.Graph:
    graph = nx.Graph()
    for a, b, *weight in edges:
        length = weight[0] if weight else 1
        graph.add_edge(a, b, weight=min(length, graph.get_edge_data(a, b, {"weight": length})["weight"]))
    return graph


def distances(edges: list[Any], nodes: list[Any]) -> Iterable[tuple[Any, ...]]:
    graph = graph_of(edges)
    for (landmark,) in {*nodes}:
        graph.add_node(landmark)
        for node, distance in nx.single_source_dijkstra_path_length(graph, landmark).items():
            yield node, landmark, distance


def bounds(edges: list[Any], nodes: list[Any], pairs: list[Any]) -> Iterable[tuple[Any, ...]]:
    near: dict[Any, dict[Any, Any]] = {}
    for node, landmark, distance in distances(edges, nodes):
        near.setdefault(node, {})[landmark] = distance
    graph = graph_of(edges)
    for a, b in {*pairs}:
        both = [(near[a][one], near[b][one]) for one in near.get(a, {}) if one in near.get(b, {})]
        if both:
            lower, upper = max(abs(x - y) for x, y in both), min(x + y for x, y in both)
            if a in graph and b in graph:
                assert lower <= nx.dijkstra_path_length(graph, a, b) <= upper
            yield a, b, lower, upper


WAYS = [
    {"workers": 1},
    {"workers": 3, "seed": 1},
    {"workers": 2, "together": True},
    {"workers": 5, "crashes": 0.05, "seed": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "weights"), in_turn(WAYS, [[], [0.5, 0.25, 4.0], [1, 2, 5]]))
def test_edges_and_landmarks_come_and_go(follows, changing, weights, how) -> None:
    kind = f", weight {'double' if 0.5 in weights else 'long'}" if weights else ""
    given = {
        "edges": (LONGS + kind, changing(8, 10, 5, seed=2, weights=weights)),
        "nodes": ("node long", NODES),
    }
    algorithm = partial(landmarks, weight="weight") if weights else landmarks

    rows = follows(algorithm, distances, given, **how)

    assert sum(map(len, rows.values())) > 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [pytest.param(way, marks=pytest.mark.campaign if n % 2 == 0 else ()) for n, way in enumerate(WAYS)]
)
def test_bounds_hold(follows, changing, how) -> None:
    given = {
        "edges": (LONGS, changing(8, 10, 5, seed=3)),
        "nodes": ("node long", NODES),
        "pairs": (LONGS, PAIRS),
    }

    follows(lambda edges, nodes, pairs: distance_bounds(landmarks(edges, nodes), pairs), bounds, given, **how)


def test_only_the_least_distances_must_be_within_64_bits() -> None:
    """The way there and back is beyond them, and so is the sum of the distances to landmark 4."""
    flow = ts.Dataflow("large")
    edges = flow.input("edges", f"{LONGS}, weight long").collection()
    near = landmarks(edges, flow.input("nodes", "node long").collection(), weight="weight")
    distance_bounds(near, edges.select("src", "dst")).changes().capture("out")
    weights = {"edges": [[(1, 2, 5), (2, 4, 2**62)]]}

    assert run(flow, weights | {"nodes": [[4, 1]]})["out"].rows() == {
        0: [(1, 2, 5, 5, 1), (2, 4, 2**62, 2**62, 1)]
    }
    with pytest.raises(VertexError, match=r"(?s)test_landmarks.*'upper', of {'src': 1.*\nHint: .*double"):
        run(flow, {"edges": [[(1, 2, 2), (1, 4, 2**62), (2, 4, 2**62)]], "nodes": [[4]]})
    with pytest.raises(VertexError, match=r"(?s)test_landmarks.*'distance', of {'node': 1, 'landmark': 4}"):
        run(flow, {"edges": [[(1, 2, 2**62), (2, 4, 2**62)]], "nodes": [[4]]})


def test_hops_are_not_checked() -> None:
    """No path has so many edges."""
    flow = ts.Dataflow("hops")
    edges, nodes = flow.input("edges", LONGS).collection(), flow.input("nodes", "node long").collection()
    for result in (landmarks(edges, nodes), bfs(edges, nodes)):
        result.changes().probe()
    assert "within_limit" not in {stage.operator for stage in flow.graph.stages}


def test_a_distance_that_is_null_bounds_nothing() -> None:
    flow = ts.Dataflow("nulls")
    distances = flow.input("distances", "node long, landmark long, distance long").collection()
    distance_bounds(distances, flow.input("pairs", LONGS).collection()).changes().capture("out")
    rows = [(1, 8, None), (2, 8, 3), (1, 9, 4), (2, 9, 6)]
    pairs = [(1, 2), (2, 1)]
    for some, expected in ((rows[:2], []), (rows, [(1, 2, 2, 10, 1), (2, 1, 2, 10, 1)])):
        assert run(flow, {"distances": [some], "pairs": [pairs]})["out"].rows() == {0: expected}


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("kind", "one", "other", "bound"),
    [
        ("int", 5, 7, pa.int32()),
        ("long", -5, -3, pa.int64()),
        ("decimal(10, 2)", Decimal(5), Decimal(7), pa.decimal128(11, 2)),
    ],
)
def test_bounds_of_distances_of_any_type(kind: str, one: Any, other: Any, bound: pa.DataType) -> None:
    flow = ts.Dataflow("types")
    distances = flow.input("distances", f"node long, landmark long, distance {kind}").collection()
    result = distance_bounds(distances, flow.input("pairs", LONGS).collection())
    result.changes().capture("out")
    beyond = [(1, 8, 2**62), (2, 8, 2**62)] if kind == "long" else []

    made = run(flow, {"distances": [[(1, 9, one), (2, 9, other), *beyond]], "pairs": [[(1, 2)]]})["out"]

    assert made.rows() == {0: [(1, 2, abs(one - other), one + other, 1)]}
    assert result.schema.field("lower").type == result.schema.field("upper").type == bound


def test_invalid_arguments_are_refused() -> None:
    edges = ts.Dataflow("refused").input("edges", f"{LONGS}, name string").collection()

    with pytest.raises(SchemaError, match=r"(?s)weight='name' is string.*test_landmarks.*Hint"):
        landmarks(edges, edges, weight="name", node="src")
    with pytest.raises(SchemaError, match=r"(?s)node='name' is string.*test_landmarks.*Hint"):
        landmarks(edges, edges, node="name")
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['node', 'landmark'.*Hint"):
        distance_bounds(edges, edges)
    near = landmarks(edges, edges, node="src")
    with pytest.raises(SchemaError, match=r"(?s)distance_bounds.*asks for columns \['of'\].*Hint"):
        distance_bounds(near, edges, src="of")
    with pytest.raises(GraphError, match=r"(?s)distance_bounds got None, not a collection.*Hint"):
        distance_bounds(near, None)
    with pytest.raises(SchemaError, match=r"(?s)src and dst are both.*test_landmarks.*Hint"):
        distance_bounds(near, edges, dst="src")
    with pytest.raises(GraphError, match=r"(?s)test_landmarks.*Hint"):
        landmarks(edges, [1])
