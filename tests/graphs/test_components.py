"""Connected and strongly connected components of graphs that change, against networkx."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx
import numpy as np
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.graphs import connected_components, strongly_connected_components
from timely_spark.testing import run

LONGS = "src long, dst long"
WINDOWS = [
    (10, 20, 12),
    pytest.param((100, 200, 10), marks=pytest.mark.campaign),
    (100, 2000, 1),
    pytest.param((10, 20, 1000), marks=[pytest.mark.campaign, pytest.mark.timeout(1800)]),
]


def connected(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return ((node, min(one)) for one in nx.connected_components(nx.Graph(edges)) for node in one)


def strong(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return ((node, min(one)) for one in nx.strongly_connected_components(nx.DiGraph(edges)) for node in one)


def in_a_loop(edges: ts.Collection) -> ts.Collection:
    """The same computed inside of a loop of a user's, by the general way, which must have one meaning."""
    loop = edges.scope.inner()
    return connected_components(edges.enter(loop)).leave()


ALGORITHMS = [
    (connected_components, connected),
    (in_a_loop, connected),
    (strongly_connected_components, strong),
]
every_algorithm = pytest.mark.parametrize(("algorithm", "oracle"), ALGORITHMS)


@pytest.mark.slow
@every_algorithm
def test_nan_has_a_component_also_alone(algorithm, oracle) -> None:
    found = []
    for node in (np.nan, 9.0):
        flow = ts.Dataflow("nan")
        edges = flow.input("edges", "src double, dst double, diff long").collection(diff="diff")
        algorithm(edges).changes().capture("out")
        epochs = [[(node, node, 1)], [(1.0, node, 1), (node, 1.0, 1)]]
        rows = run(flow, {"edges": epochs})["out"].rows()
        found.append([sorted(str(row).replace("nan", "9.0") for row in rows[epoch]) for epoch in range(2)])

    assert found[0] == found[1]
    assert found[0][0] == ["(9.0, 9.0, 1)"]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "oracle", "graph"), in_turn(ALGORITHMS, range(2)))
def test_edges_are_inserted_and_deleted(algorithm, oracle, follows, changing, graph) -> None:
    edges = changing(12, 14 + 6 * graph, 6, seed=graph)

    follows(algorithm, oracle, {"edges": (LONGS, edges)})


def test_all_nan_are_one_node() -> None:
    """Processors make a negative NaN, Python a positive one."""
    flow = ts.Dataflow("nan")
    edges = flow.input("edges", "src double, dst double, diff long").collection(diff="diff")
    connected_components(edges).changes().capture("out")
    python, processor = np.array([0x7FF8 << 48, 0xFFF8 << 48], np.uint64).view(np.float64)

    epochs = [[(1.0, python, 1), (processor, 2.0, 1)], [(1.0, processor, -1)]]
    rows = run(flow, {"edges": epochs}, workers=2)["out"].rows()

    assert sorted(map(str, rows[0])) == ["(1.0, 1.0, 1)", "(2.0, 1.0, 1)", "(nan, 1.0, 1)"]
    gone = ["(1.0, 1.0, -1)", "(2.0, 1.0, -1)", "(2.0, 2.0, 1)", "(nan, 1.0, -1)", "(nan, 2.0, 1)"]
    assert sorted(map(str, rows[1])) == gone


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "oracle", "seed"), in_turn(ALGORITHMS, range(3)))
def test_workers_and_schedules_change_nothing(algorithm, oracle, follows, changing, seed) -> None:
    edges = changing(9, 12, 3, seed=seed)

    follows(algorithm, oracle, {"edges": (LONGS, edges)}, workers=2 + seed % 2, seed=seed)


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("size", WINDOWS)
def test_a_window_slides(algorithm, oracle, follows, window, size) -> None:
    rows = follows(algorithm, oracle, {"edges": (LONGS, window(*size, seed=1))})

    assert rows[0]


@pytest.mark.slow
@every_algorithm
def test_nodes_may_be_texts(algorithm, oracle, follows, changing, named) -> None:
    edges = named(changing(8, 12, 3, seed=5))

    follows(algorithm, oracle, {"edges": ("src string, dst string", edges)}, workers=2)


@pytest.mark.slow
@every_algorithm
def test_a_graph_may_be_empty_and_become_empty(algorithm, oracle, follows) -> None:
    loop = (7, 7)

    given = {"edges": (LONGS, [[], [(*loop, 1)], [(*loop, 1)], [(*loop, -1)], [(*loop, -1)]])}
    rows = follows(algorithm, oracle, given, workers=2)

    assert rows == {0: [], 1: [(7, 7, 1)], 2: [], 3: [], 4: [(7, 7, -1)]}


@pytest.mark.slow
@every_algorithm
def test_a_bridge_is_removed_and_added(algorithm, oracle, follows) -> None:
    ring = [(i, i % 6 + 1, 1) for i in range(1, 7)] + [(i, (i - 10) % 6 + 11, 1) for i in range(11, 17)]
    bridge = [(3, 14, 1), (15, 2, 1)]
    cut = [(a, b, -1) for a, b, _ in bridge]

    given = {"edges": (LONGS, [ring + bridge, cut, bridge, cut[:1], bridge[:1]])}
    rows = follows(algorithm, oracle, given, workers=2)

    assert rows[1][-6:] == [
        (node, 11, 1) if sign else (node, 1, -1) for node in (14, 15, 16) for sign in (0, 1)
    ]


def test_other_columns_are_ignored(follows) -> None:
    def algorithm(edges: ts.Collection) -> ts.Collection:
        return connected_components(edges, src="from", dst="to")

    def oracle(edges: list[tuple[Any, ...]]) -> Iterable[tuple[Any, Any]]:
        return connected([(a, b) for _, b, a in edges])

    flights = [[("x", 2, 1, 1), ("y", 2, 1, 1), ("z", 3, 2, 1)], [("x", 2, 1, -1)], [("y", 2, 1, -1)]]
    follows(algorithm, oracle, {"flights": ("carrier string, to long, from long", flights)})


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("algorithm", [connected_components, in_a_loop, strongly_connected_components])
def test_edges_with_a_null_end_are_ignored(algorithm) -> None:
    flow = ts.Dataflow("halves")
    algorithm(flow.input("edges", LONGS).collection()).changes().capture("out")

    rows = run(flow, {"edges": [[(1, None), (None, 2), (None, None), (3, 4), (4, 3)]]}, workers=2)[
        "out"
    ].rows()

    assert rows == {0: [(3, 3, 1), (4, 3, 1)]}


@pytest.mark.parametrize("algorithm", [connected_components, strongly_connected_components])
def test_invalid_edges_are_refused(algorithm) -> None:
    flow = ts.Dataflow("refused")
    edges = flow.input("edges", "src long, dst long, name string, tags array<long>")

    with pytest.raises(GraphError, match=r"(?s)got an Input, not a collection.*Hint: .*collection\(\)"):
        algorithm(edges)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['to'\].*Hint: say which columns.* src="):
        algorithm(edges.collection(), dst="to")
    with pytest.raises(SchemaError, match=r"(?s)int64 and string.*test_components.*Hint"):
        algorithm(edges.collection(), dst="name")
    with pytest.raises(SchemaError, match=r"(?s)nested columns \['tags'\].*Hint"):
        algorithm(edges.collection(), dst="tags")


@pytest.mark.slow
def test_components_inside_a_users_loop_are_equal(follows, changing) -> None:
    def peeled(edges: ts.Collection) -> ts.Collection:
        """Twice: leave out the edges of nodes 0 and 1 of what is there, and label what is left."""

        def step(left: ts.Collection) -> ts.Collection:
            label = connected_components(left)
            least = label.min("component", keys=[]).select("component")
            return edges.antijoin(least, left="src", right="component").antijoin(
                least, left="dst", right="component"
            )

        return edges.iterate(step, max_iterations=2, on_limit="return")

    def oracle(edges: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        left = edges
        for _ in range(2):
            least = min((a for edge in left for a in edge), default=None)
            left = [edge for edge in edges if least not in edge]
        return left

    edges = changing(8, 12, 6, seed=4)
    follows(peeled, oracle, {"edges": (LONGS, edges)}, workers=2)


@pytest.mark.slow
def test_nodes_on_no_cycle_cost_their_edges_once() -> None:
    """Also on a path whose numbers increase, where in each iteration most labels would improve."""
    delivered = []
    for nodes in (32, 64):
        flow = ts.Dataflow("path")
        edges = flow.input("edges", "src long, dst long").collection()
        strongly_connected_components(edges).changes().capture("out")
        simulation = ts.testing.Simulation(flow)
        simulation.send("edges", [(node, node + 1) for node in range(nodes - 1)])
        simulation.run()
        assert simulation.captured["out"].rows()[0] == [(node, node, 1) for node in range(nodes)]
        delivered.append(sum(result.stats["records"] for _, result in simulation.log))

    assert delivered[1] < 2.2 * delivered[0]


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("epochs", [[[(1, 2, 1)], [(4, 3, -1)]], [[(4, 3, -1), (1, 2, 1)]]])
def test_an_edge_that_is_removed_but_never_was_is_told_of(epochs: Any, *, spread: bool) -> None:
    flow = ts.Dataflow("negative")
    edges = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    connected_components(edges, spread=spread).changes().capture("out")
    told = (
        r"(?s)test_components.py:\d+.*more was removed than inserted: {'src': 3, 'dst': 4} is there -1 times"
    )
    with pytest.warns(UserWarning, match=told):
        assert run(flow, {"edges": epochs})["out"].rows()[0] == [(1, 1, 1), (2, 1, 1)]
    with pytest.raises(VertexError, match=told):
        run(flow, {"edges": epochs}, on_negative="raise")


@pytest.mark.parametrize("spread", [False, True])
def test_edges_that_are_meant_to_be_negative_are_not_told_of(*, spread: bool) -> None:
    flow = ts.Dataflow("meant")
    edges = flow.input("edges", LONGS).collection()
    connected_components(edges.concat(edges.negate(), edges.negate()), spread=spread).changes().capture("out")
    assert run(flow, {"edges": [[(1, 2)], [(2, 3)]]}, on_negative="raise")["out"].rows() == {0: [], 1: []}
