"""Nodes without edges, which the edges do not name; and ranks seen from some nodes. Oracle: networkx."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import networkx as nx
import numpy as np
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark import graphs
from timely_spark.errors import GraphError

LONGS = "src long, dst long"
NODES = [[(0, 1), (3, 1), (90, 1), (90, 1)], [(91, 1), (3, -1)], [(90, -2)], [(90, 1)]]
Rows = Iterable[tuple[Any, ...]]


def directed(edges: Rows, nodes: Rows) -> nx.DiGraph:
    made = nx.DiGraph(list(edges))
    made.add_nodes_from(node for (node,) in nodes)
    return made


def undirected(edges: Rows, nodes: Rows) -> nx.Graph:
    return nx.Graph(directed(edges, nodes))


def parts(groups: Iterable[set[int]]) -> Rows:
    return [(node, min(group)) for group in groups for node in group]


def cores(edges: Rows, nodes: Rows) -> Rows:
    made = undirected(edges, nodes)
    loops = list(nx.selfloop_edges(made))
    made.remove_edges_from(loops)
    given = {node for (node,) in nodes}
    return [(node, core) for node, core in nx.core_number(made).items() if core or node in given]


def between(edges: Rows, nodes: Rows) -> Rows:
    made = undirected(edges, nodes)
    made.remove_edges_from(list(nx.selfloop_edges(made)))
    return [(n, round(b, 9)) for n, b in nx.betweenness_centrality(made, normalized=False).items()]


def rounded_betweenness(edges: ts.Collection, nodes: ts.Collection) -> ts.Collection:
    return graphs.betweenness(edges, directed=False, nodes=nodes).map(
        lambda row: (row.node, round(row.betweenness, 9)), "node long, betweenness double"
    )


CASES: dict[str, tuple[Callable[..., ts.Collection], Callable[..., Rows]]] = {
    "connected_components": (
        lambda edges, nodes: graphs.connected_components(edges, nodes=nodes),
        lambda edges, nodes: parts(nx.connected_components(undirected(edges, nodes))),
    ),
    "strongly_connected_components": (
        lambda edges, nodes: graphs.strongly_connected_components(edges, nodes=nodes),
        lambda edges, nodes: parts(nx.strongly_connected_components(directed(edges, nodes))),
    ),
    "core_numbers": (lambda edges, nodes: graphs.core_numbers(edges, nodes=nodes), cores),
    "betweenness": (rounded_betweenness, between),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "workers", "seed"), in_turn(CASES, [(1, None), (3, 2)]))
def test_a_node_without_edges_is_there_while_it_is_given(
    follows: Any, changing: Any, case: str, workers: int, seed: int | None
) -> None:
    algorithm, oracle = CASES[case]
    inputs = {"edges": (LONGS, changing(7, 9, 4, seed=workers)), "nodes": ("node long", NODES)}

    rows = follows(algorithm, oracle, inputs, workers=workers, seed=seed)

    assert any(row[0] == 91 for row in rows[1])
    assert any(row[0] == 90 and row[-1] == -1 for row in rows[2])


@pytest.mark.slow
def test_components_in_a_loop_have_nodes_without_edges_too(follows: Any) -> None:
    def twice(edges: ts.Collection, nodes: ts.Collection) -> ts.Collection:
        none = nodes.select("node", component="node").where(pc.scalar(False))  # noqa: FBT003 - an expression
        return none.iterate(
            lambda found: graphs.connected_components(edges.enter(found.scope), nodes=nodes),
            max_iterations=2,
            on_limit="return",
        )

    inputs = {"edges": (LONGS, [[(1, 2, 1)], [(1, 2, -1)], [], []]), "nodes": ("node long", NODES)}
    follows(twice, CASES["connected_components"][1], inputs, workers=2)


def personalised(edges: Rows, sources: Rows, iterations: int, *, dangling: str) -> dict[int, float]:
    """What dangling nodes hold is dropped, or spread over the sources, as networkx does."""
    given = {node for (node,) in sources}
    made = nx.MultiDiGraph(list(edges))
    made.add_nodes_from(given)
    if not given:
        return {}
    ranks = dict.fromkeys(made, 0.0) | dict.fromkeys(given, 1 / len(given))
    for _ in range(iterations):
        moved = dict.fromkeys(made, 0.0)
        for a, b in made.edges():
            moved[b] += 0.85 * ranks[a] / made.out_degree(a)
        lost = sum(ranks[n] for n in made if not made.out_degree(n)) if dangling == "spread" else 0.0
        for node in given:
            moved[node] += (0.15 + 0.85 * lost) / len(given)
        ranks = moved
    return {node: rank for node, rank in ranks.items() if rank > 0}


def test_the_oracle_is_networkx(changing: Any) -> None:
    edges = [(a, b) for a, b, _ in changing(12, 30, 1, seed=5)[0]]
    made = nx.DiGraph()
    for a, b in edges:
        made.add_edge(a, b, weight=made.get_edge_data(a, b, {"weight": 0})["weight"] + 1)
    made.add_node(77)
    theirs = nx.pagerank(made, 0.85, {0: 1, 77: 1}, tol=1e-12, max_iter=500)
    ours = personalised(edges, [(0,), (77,)], 100, dangling="spread")
    assert all(abs(rank - ours.get(node, 0.0)) < 1e-6 for node, rank in theirs.items())


@pytest.mark.slow
@pytest.mark.parametrize(("dangling", "start"), in_turn(["drop", "spread"], ["unit", "uniform"]))
def test_ranks_from_sources_are_those_of_networkx(changing: Any, dangling: str, start: str) -> None:
    edges = changing(8, 14, 4, seed=5)
    sources = [[(0, 1), (1, 1)], [(77, 1), (1, -1)], [(0, -1)], [(2, 1), (2, 1)]]

    def algorithm(edges: ts.Collection, sources: ts.Collection) -> ts.Collection:
        ranks = graphs.pagerank(edges, 8, sources=sources, dangling=dangling, start=start)  # type: ignore[arg-type]
        kind = "long" if start == "unit" else "double"
        return ranks.map(lambda row: (row.node, row.rank), f"node long, rank {kind}")

    flow = ts.Dataflow("ranks")
    made = [flow.input("e", f"{LONGS}, diff long"), flow.input("s", "node long, diff long")]
    algorithm(*(one.collection(diff="diff") for one in made)).changes().capture("out")
    rows = ts.testing.run(flow, {"e": edges, "s": sources}, workers=2)["out"]
    present: dict[str, list[Any]] = {"e": [], "s": []}
    for epoch in range(4):
        for name, of in (("e", edges), ("s", sources)):
            for *record, diff in of[epoch]:
                present[name].append(tuple(record)) if diff > 0 else present[name].remove(tuple(record))
        expected = personalised(present["e"], present["s"], 8, dangling=dangling)
        found = {row["node"]: row["rank"] for row in ts.snapshot(rows, at=epoch).to_pylist()}
        count = len({node for (node,) in present["s"]})
        scale = 1.0 if start == "uniform" else 1_000_000.0 * count
        near = {node for node, rank in expected.items() if rank * scale > 50}
        assert near <= set(found) <= set(expected)
        for node, rank in found.items():
            assert abs(rank / scale - expected[node]) < 1e-4


def test_sources_are_not_combined_with_what_they_do_not_go_with() -> None:
    flow = ts.Dataflow("ranks")
    edges, nodes = (flow.input(n, s).collection() for n, s in (("e", LONGS), ("n", "node long")))
    for more in ({"nodes": nodes}, {"iterations": None, "tolerance": 10}):
        with pytest.raises(GraphError, match=r"(?s)sources= with (nodes|tolerance)=.*Hint: leave out"):
            graphs.pagerank(edges, **{"sources": nodes, **more})  # type: ignore[arg-type]


@pytest.mark.slow
def test_until_nothing_changes_too() -> None:
    flow = ts.Dataflow("ranks")
    edges, nodes = (flow.input(n, s).collection() for n, s in (("e", LONGS), ("n", "node long")))
    graphs.pagerank(edges, None, sources=nodes).changes().capture("out")
    drawn = np.random.default_rng(1).integers(0, 9, (20, 2)).tolist()
    rows = ts.snapshot(ts.testing.run(flow, {"e": [drawn], "n": [[0]]})["out"]).to_pylist()
    expected = personalised([tuple(edge) for edge in drawn], [(0,)], 60, dangling="drop")
    assert {row["node"] for row in rows} <= set(expected)
    assert all(abs(row["rank"] / 1e6 - expected[row["node"]]) < 0.01 for row in rows)
