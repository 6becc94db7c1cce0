"""Growing random graphs, epoch by epoch, against networkx and scipy."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

import timely_spark as ts
from tests.support.hops import spread
from tests.support.turns import in_turn
from timely_spark.testing import run

#: the distance by an edge of a weight
FURTHER = pc.field("d") + pc.field("w")


def growing(nodes: int, edges: int, epochs: int, seed: int) -> list[pa.Table]:
    r = np.random.default_rng(seed)
    ends = r.integers(0, nodes, (2, edges))
    return [
        pa.table(
            {"src": ends[0, i::epochs], "dst": ends[1, i::epochs]},
            schema=pa.schema([("src", pa.int64()), ("dst", pa.int64())]),
        )
        for i in range(epochs)
    ]


def graph(epochs: list[pa.Table], last: int, kind: type = nx.DiGraph) -> nx.Graph:
    made = kind()
    for table in epochs[: last + 1]:
        made.add_edges_from(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))
    return made


def hops_flow() -> ts.Dataflow:
    flow = ts.Dataflow("hops")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long, hops long")

    roots.loop(spread(edges, "hops", pc.field("hops") + 1)).capture("out")
    return flow


SIZES = [(10, 20, 5), (100, 200, 5), (100, 2000, 2), (400, 440, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "edges", "epochs", "workers"), in_turn(SIZES, [1, 3]))
def test_hop_distances(nodes: int, edges: int, epochs: int, workers: int) -> None:
    tables = growing(nodes, edges, epochs, seed=nodes)
    out = run(hops_flow(), {"edges": tables, "roots": [[(1, 0)]] + [[]] * (epochs - 1)}, workers=workers)[
        "out"
    ]

    known: dict[int, int] = {}
    for epoch in range(epochs):
        made = graph(tables, epoch)
        made.add_node(1)
        now = nx.single_source_shortest_path_length(made, 1)
        assert dict(out.rows()[epoch]) == {n: d for n, d in now.items() if known.get(n) != d}
        known = dict(now)
    assert len(known) > 3


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "edges", "epochs", "seed"), in_turn(SIZES, [None, 7]))
def test_components(nodes: int, edges: int, epochs: int, seed: int | None) -> None:
    flow = ts.Dataflow("components")
    x = flow.input("edges", "src long, dst long")
    both = x.concat(x.select(src="dst", dst="src"))

    labels = both.select(node="src", label="src").concat(both.select(node="dst", label="src"))
    labels.loop(spread(both)).capture("out")
    tables = growing(nodes, edges, epochs, seed=edges)
    out = run(flow, {"edges": tables}, workers=3, seed=seed, together=seed is not None)["out"].rows()

    known: dict[int, int] = {}
    for epoch in range(epochs):
        known |= dict(out[epoch])
        parts = nx.connected_components(graph(tables, epoch, nx.Graph))
        assert known == {node: least for part in parts for least in [min(part)] for node in part}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.campaign), 8])
def test_all_pairs_that_reach_each_other(workers: int) -> None:
    flow = ts.Dataflow("closure")
    edges = flow.input("edges", "src long, dst long")

    def further(pairs: ts.Stream) -> ts.Stream:
        targets = pairs.join(pairs.scope.enter(edges).select(dst="src", end="dst"), on=["dst"])
        return targets.select(src="src", dst="end").concat(pairs).distinct(name="pairs")

    edges.loop(further).capture("out")
    tables = growing(25, 40, 3, seed=3)
    out = run(flow, {"edges": tables}, workers=workers)["out"].rows()

    seen: set[tuple[int, int]] = set()
    for epoch in range(3):
        made = graph(tables, epoch)
        closure = {(a, b) for a in made for c in made[a] for b in {c} | nx.descendants(made, c)}
        assert set(out[epoch]) == closure - seen
        assert len(out[epoch]) == len(set(out[epoch]))
        seen = closure


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_shortest_paths_with_weights_are_scipys(workers: int) -> None:
    r = np.random.default_rng(5)
    n, m = 60, 240
    pairs = {
        (int(a), int(b)): round(float(w), 3)
        for a, b, w in zip(*r.integers(0, n, (2, m)), r.random(m) + 0.1, strict=True)
        if a != b
    }
    flow = ts.Dataflow("paths")
    edges, roots = (
        flow.input("edges", "src long, dst long, w double"),
        flow.input("roots", "node long, d double"),
    )

    roots.loop(spread(edges, "d", FURTHER)).capture("out")
    rows = [(a, b, w) for (a, b), w in pairs.items()]
    out = run(flow, {"edges": [rows], "roots": [[(0, 0.0)]]}, workers=workers, seed=workers)["out"].rows()[0]

    matrix = coo_array((list(pairs.values()), tuple(np.array(list(pairs)).T)), shape=(n, n)).tocsr()
    distances = shortest_path(matrix, indices=0)
    assert [node for node, _ in out] == np.flatnonzero(np.isfinite(distances)).tolist()
    np.testing.assert_allclose([d for _, d in out], distances[np.isfinite(distances)])


@pytest.mark.slow
def test_paths_of_at_most_k_edges_with_a_limit_on_the_iterations() -> None:
    """Bellman and Ford: with k iterations the paths of at most k edges; the limit is part of the time."""
    edges = [(0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 3, 10), (0, 2, 5)]
    for k, expected in (
        (1, {0: 0}),
        (2, {0: 0, 1: 1, 2: 5, 3: 10}),
        (3, {0: 0, 1: 1, 2: 2, 3: 6}),
        (4, {0: 0, 1: 1, 2: 2, 3: 3}),
    ):
        flow = ts.Dataflow("limited")
        links, roots = (
            flow.input("edges", "src long, dst long, w long"),
            flow.input("roots", "node long, d long"),
        )

        roots.loop(spread(links, "d", FURTHER), max_iterations=k, on_limit="return").capture("out")
        for workers in (1, 3):
            out = run(flow, {"edges": [edges], "roots": [[(0, 0)]]}, workers=workers)["out"].rows()
            assert dict(out[0]) == expected, (k, workers)
