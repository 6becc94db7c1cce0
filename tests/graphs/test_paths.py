"""Hops and weighted distances in graphs that change, against networkx and scipy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import networkx as nx
import numpy as np
import pyarrow.compute as pc
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.errors import GraphError, SchemaError, TimelyError, VertexError
from timely_spark.graphs import bfs, sssp
from timely_spark.testing import run

WINDOWS = [
    (10, 20, 16),
    pytest.param(100, 200, 10, marks=pytest.mark.campaign),
    (100, 2000, 1),
    pytest.param(10, 20, 1000, marks=[pytest.mark.campaign, pytest.mark.timeout(1800)]),
]
LONGS = "src long, dst long"


def hops(edges: list[tuple[Any, Any]], roots: list[tuple[Any]]) -> Iterable[tuple[Any, int]]:
    return nearest([(a, b, 1) for a, b in edges], roots)


def nearest(edges: list[tuple[Any, ...]], roots: list[tuple[Any]]) -> Iterable[tuple[Any, Any]]:
    graph = nx.DiGraph()
    graph.add_nodes_from(root for (root,) in roots)
    for a, b, weight in sorted(edges, reverse=True):  # of parallel edges the lightest stays
        graph.add_edge(a, b, weight=weight)
    sources = {root for (root,) in roots}
    return nx.multi_source_dijkstra_path_length(graph, sources).items() if sources else ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "seed"), [(1, None), pytest.param(2, 0, marks=pytest.mark.campaign), (3, 1)]
)
@pytest.mark.parametrize("graph", [2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (0, 1))])
def test_roots_and_edges_are_inserted_and_deleted(follows, changing, workers, seed, graph) -> None:
    edges = changing(12, 18 + 6 * graph, 8, seed=graph)
    roots = [[(1, 1)], [(2, 1), (40, 1)], [(1, -1)], [], [(2, -1), (40, -1)], [(1, 1), (1, 1)], [(1, -1)]]

    given = {"edges": (LONGS, edges), "roots": ("node long", roots)}
    follows(bfs, hops, given, workers=workers, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "workers"), [("whole", 1), ("after nothing", 3), ("in two epochs", 2)])
def test_a_load_of_many_edges_changes_as_one_of_few(follows, changing, load, workers) -> None:
    edges, *later = changing(1_000, 12_000, 4, changes=300, seed=workers, weights=range(1, 9))
    first = {"whole": [edges], "after nothing": [[], edges], "in two epochs": [edges[::2], edges[1::2]]}[load]
    inputs = {"edges": (f"{LONGS}, weight long", [*first, *later]), "roots": ("node long", [[(0, 1)]])}

    follows(sssp, nearest, inputs, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "edges", "rounds"), WINDOWS)
def test_distances_in_a_sliding_window(window, nodes, edges, rounds) -> None:
    """Differential's own test: how many nodes are at each distance, epoch by epoch."""
    flow = ts.Dataflow("window")
    slides = window(nodes, edges, rounds, seed=edges)
    links = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    root = flow.input("roots", "node long").collection()
    bfs(links, root).count("nodes", keys="distance").changes().capture("out")

    rows = run(flow, {"edges": slides, "roots": [[1]]}, workers=2)["out"].rows()

    before: Counter[Any] = Counter()
    for epoch, there in enumerate(after_each(slides)):
        now = Counter(Counter(distance for _, distance in hops(list(there.elements()), [(1,)])).items())
        expected = {record: now[record] - before[record] for record in now.keys() | before.keys()}
        assert {record: diff for *record_, diff in rows.get(epoch, ()) for record in [tuple(record_)]} == {
            record: diff for record, diff in expected.items() if diff
        }
        before = now


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "seed"), [(1, None), (3, 5)])
@pytest.mark.parametrize("weights", [[0, 1, 2, 7], [0.0, 0.1, 0.7, 1e-3, 2.5]], ids=["long", "double"])
def test_weights_are_summed_exactly_zero_cycles_and_all(follows, changing, workers, seed, weights) -> None:
    kind = "double" if isinstance(weights[0], float) else "long"
    given = {
        "edges": (f"{LONGS}, weight {kind}", changing(9, 24, 8, seed=7, weights=weights)),
        "roots": ("node long", [[(0, 1), (3, 1)], [], [], [(0, -1)]]),
    }

    rows = follows(sssp, nearest, given, workers=workers, seed=seed)

    assert len(rows[0]) > 4


@pytest.mark.slow
def test_distances_in_a_graph_of_hundreds_of_nodes_are_those_of_scipy() -> None:
    draw = np.random.default_rng(1)
    ends, weights = draw.integers(0, 300, (2, 1200)), draw.integers(1, 50, 1200)
    flow = ts.Dataflow("scipy")
    edges = flow.input("edges", f"{LONGS}, km int").collection()
    sssp(edges, flow.input("roots", "id long").collection(), weight="km", node="id").changes().capture("out")

    given = [(int(a), int(b), int(w)) for a, b, w in zip(*ends, weights, strict=True)]
    rows = run(flow, {"edges": [given], "roots": [[0]]}, workers=2)["out"].rows()

    lightest: dict[tuple[int, int], int] = {}
    for a, b, w in given:
        lightest[a, b] = min(w, lightest.get((a, b), w))
    index = np.array(list(lightest)).T
    matrix = coo_array((np.array(list(lightest.values())), index), shape=(300, 300)).tocsr()
    far = dijkstra(matrix, indices=0)
    assert rows[0] == [(node, int(far[node]), 1) for node in range(300) if np.isfinite(far[node])]


@pytest.mark.slow
def test_nodes_may_be_texts(follows, changing, named) -> None:
    edges = named(changing(10, 20, 6, seed=5))
    given = {"edges": ("src string, dst string", edges), "roots": ("node string", [[("0-0", 1), ("7-1", 1)]])}

    follows(bfs, hops, given, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))])
def test_epochs_may_be_in_flight_together(follows, changing, seed) -> None:
    given = {"edges": (LONGS, changing(12, 18, 8, seed=3)), "roots": ("node long", [[(1, 1)], [(2, 1)]])}

    follows(bfs, hops, given, workers=2, seed=seed, together=True)


@pytest.mark.slow
def test_nothing_is_lost_in_crashes(follows, changing) -> None:
    edges = changing(9, 20, 4, seed=2, weights=[1, 2, 5])
    given = {"edges": (f"{LONGS}, weight long", edges), "roots": ("node long", [[(1, 1)]])}

    follows(sssp, nearest, given, workers=2, seed=4, crashes=0.1)


@pytest.mark.slow
def test_nodes_behind_a_removed_edge_are_unreachable(follows) -> None:
    path = [(i, i + 1, 1) for i in range(30)] + [(30, 5, 1)]  # what is behind runs in a circle, too

    given = {"edges": (LONGS, [path, [(4, 5, -1)], [(2, 20, 1)]]), "roots": ("node long", [[(0, 1)]])}
    rows = follows(bfs, hops, given, workers=2)

    assert rows[1] == [(node, node, -1) for node in range(5, 31)]


def test_the_graph_may_be_empty_and_a_root_alone(follows) -> None:
    given = {"edges": (LONGS, [[]]), "roots": ("node long", [[], [(3, 1)], [(3, -1)]])}

    rows = follows(bfs, hops, given)

    assert rows == {0: [], 1: [(3, 0, 1)], 2: [(3, 0, -1)]}


@pytest.mark.slow
def test_it_runs_inside_a_loop_with_roots_from_outside(follows, changing) -> None:
    def around(edges: ts.Collection, roots: ts.Collection) -> ts.Collection:
        """Three times over: from the farthest nodes that were found, and the roots."""

        def step(start: ts.Collection) -> ts.Collection:
            far = bfs(edges, start).where(pc.field("distance") >= 2).select("node")
            return far.concat(roots).distinct()

        return roots.iterate(step, max_iterations=3, on_limit="return")

    def oracle(edges: list[tuple[int, int]], roots: list[tuple[int]]) -> Iterable[tuple[int]]:
        start = roots
        for _ in range(3):
            start = list({*((node,) for node, far in hops(edges, start) if far >= 2), *roots})
        return start

    given = {"edges": (LONGS, changing(12, 16, 5, seed=8)), "roots": ("node long", [[(1, 1)]])}
    follows(around, oracle, given, workers=2)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), None])
def test_an_invalid_weight_stops_the_flow_and_is_named(weight) -> None:
    flow = ts.Dataflow("negative")
    edges = flow.input("edges", f"{LONGS}, weight double").collection()
    sssp(edges, flow.input("roots", "node long").collection()).changes().capture("out")

    with pytest.raises(TimelyError, match=r"(?s)test_paths.*no finite weight of at least 0.*Hint"):
        run(flow, {"edges": [[(1, 2, 0.5), (2, 1, weight)]], "roots": [[1]]})


def test_a_distance_that_is_too_large_stops_the_flow_and_a_longer_path_does_not() -> None:
    flow = ts.Dataflow("large")
    edges = flow.input("edges", f"{LONGS}, weight long, diff long").collection(diff="diff")
    sssp(edges, flow.input("roots", "node long").collection()).changes().capture("out")
    long = [(1, 2, 2**62, 1), (2, 3, 2**62, 1), (2, 1, 2**62, 1)]
    short = [(1, 4, 1, 1), (4, 5, 1, 1), (5, 3, 1, 1)]

    rows = run(flow, {"edges": [long + short], "roots": [[1]]})["out"].rows()
    assert rows == {0: [(1, 0, 1), (2, 2**62, 1), (3, 3, 1), (4, 1, 1), (5, 2, 1)]}

    why = r"(?s)test_paths.*least distance, 'distance', of {'node': 3} is 2\^63 - 1 or more\nHint: .*double"
    with pytest.raises(VertexError, match=why):
        run(flow, {"edges": [long + short, [(1, 4, 1, -1)]], "roots": [[1], []]})


def test_invalid_arguments_are_refused() -> None:
    flow = ts.Dataflow("refused")
    edges = flow.input("edges", "src long, dst long, weight string").collection()
    roots = flow.input("roots", "node string").collection()

    with pytest.raises(SchemaError, match=r"(?s)node='node' is string.*int64.*test_paths.*Hint"):
        bfs(edges, roots)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['root'\].*Hint"):
        bfs(edges, roots, node="root")
    with pytest.raises(SchemaError, match=r"(?s)weight='weight' is string.*Hint"):
        sssp(edges, roots.select(node=pc.field("node").cast("int64")))
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['km'\].*Hint"):
        sssp(edges, roots, weight="km")
    with pytest.raises(GraphError, match=r"(?s)not a collection.*Hint"):
        bfs(edges, flow.input("more", "node long"))
