"""Local clustering coefficients of graphs that change, against all pairs of neighbours, and networkx."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import lcc
from timely_spark.testing import Simulation, run

LONGS = "src long, dst long"
both = pytest.mark.parametrize("directed", [True, False])


def coefficients(directed: bool) -> Callable[..., Iterable[tuple[Any, float]]]:  # noqa: FBT001
    """The definition, word by word."""

    def oracle(edges: list[tuple[Any, Any]], more: Iterable[tuple[Any]] = ()) -> Iterable[tuple[Any, float]]:
        there = {*edges} if directed else {*edges, *((b, a) for a, b in edges)}
        for node in {node for edge in edges for node in edge} | {node for (node,) in more}:
            near = {a for a, b in there if b == node} | {b for a, b in there if a == node}
            near -= {node}
            among = sum(pair in there for pair in permutations(near, 2))
            yield node, among / (len(near) * (len(near) - 1)) if len(near) > 1 else 0.0

    return oracle


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(("directed", "workers", "seed"), in_turn([True, False], [(1, None), (3, 1), (2, 0)]))
def test_edges_come_and_go(follows, changing, directed, *, workers, seed) -> None:
    edges = changing(8, 24, 5, seed=workers)

    rows = follows(
        partial(lcc, directed=directed), coefficients(directed), {"edges": (LONGS, edges)},
        workers=workers, seed=seed,
    )  # fmt: skip

    assert sum(len(one) for one in rows.values()) > 12


@pytest.mark.campaign  # in every run edges come and go, in the test above
@both
@pytest.mark.parametrize("size", [(10, 20, 10), (30, 200, 6)])
def test_a_window_slides(follows, window, size, directed) -> None:
    given = {"edges": (LONGS, window(*size))}

    follows(partial(lcc, directed=directed), coefficients(directed), given, workers=2)


@pytest.mark.slow
@both
def test_nodes_without_edges_have_0(follows, directed) -> None:
    edges = [[(1, 2, 1), (2, 3, 1), (3, 1, 1), (7, 7, 1)], [(3, 1, -1)], [(2, 3, -1), (7, 7, -1)]]
    nodes = [[(3, 1), (4, 1), (4, 1)], [(9, 1)], [(4, -2)]]

    rows = follows(
        lambda edges, nodes: lcc(edges, directed, nodes=nodes),
        coefficients(directed),
        {"edges": (LONGS, edges), "nodes": ("node long", nodes)},
        workers=2,
    )

    assert rows[2] == [(4, 0.0, -1), (7, 0.0, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["string", "double"])
def test_nodes_may_be_of_other_types(follows, changing, named, kind) -> None:
    edges = changing(8, 24, 4, seed=5)
    edges = named(edges) if kind == "string" else [[(a / 4, b / 4, n) for a, b, n in of] for of in edges]

    given = {"edges": (f"src {kind}, dst {kind}", edges)}
    follows(partial(lcc, directed=True), coefficients(directed=True), given, workers=2)


@pytest.mark.slow
@both
@settings(max_examples=settings().max_examples // 2)
@given(
    epochs=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=16), min_size=1, max_size=3
    )
)
def test_it_is_the_definition(epochs, directed) -> None:
    flow = ts.Dataflow("law")
    lcc(flow.input("edges", f"{LONGS}, diff long").collection(diff="diff"), directed).changes().capture("out")
    given = [
        [*((*edge, 1) for edge in now), *((*edge, -1) for edge in before)]
        for before, now in zip([[], *epochs], epochs, strict=False)
    ]

    made = run(flow, {"edges": given}, workers=2)["out"]

    found = [(row["node"], row["lcc"]) for row in ts.snapshot(made).to_pylist()]
    assert sorted(found) == sorted(coefficients(directed)(epochs[-1]))


@pytest.mark.slow
def test_clusters_are_those_of_networkx() -> None:
    graph = nx.Graph(np.random.default_rng(3).integers(0, 150, (2500, 2)).tolist())
    graph.remove_edges_from(nx.selfloop_edges(graph))
    flow = ts.Dataflow("networkx")
    lcc(flow.input("edges", LONGS).collection(), directed=False).changes().capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]}, workers=2)["out"].rows()

    assert {row[:2] for row in rows[0]} == {*nx.clustering(graph).items()}


def test_a_hub_costs_its_triangles_not_the_pairs_of_its_neighbours() -> None:
    """A star of 2,000 has 2 million pairs of neighbours."""
    flow = ts.Dataflow("star")
    lcc(flow.input("edges", LONGS).collection(), directed=True).changes().capture("out")
    simulation = Simulation(flow)
    simulation.send("edges", [*((0, node) for node in range(1, 2001)), (17, 18)])

    simulation.run()

    found = {row[:2] for row in simulation.captured["out"].rows()[0] if row[1]}
    assert found == {(0, 1 / (2000 * 1999)), (17, 0.5), (18, 0.5)}
    assert len(simulation.states[0] or b"") < 2_000_000  # as many bytes as there are pairs


def test_invalid_arguments_are_refused() -> None:
    flow = ts.Dataflow("refused")
    edges = flow.input("edges", "src long, dst string").collection()

    with pytest.raises(SchemaError, match=r"(?s)lcc: .*int64 and string.*test_clustering.*Hint"):
        lcc(edges, directed=True)
    with pytest.raises(SchemaError, match=r"(?s)lcc: node='dst' is string, .*test_clustering.*Hint"):
        lcc(edges, directed=True, dst="src", nodes=edges, node="dst")
    with pytest.raises(GraphError, match=r"(?s)test_clustering.*Hint"):
        lcc(edges.select("src", dst="src"), directed=True, nodes=[1])
