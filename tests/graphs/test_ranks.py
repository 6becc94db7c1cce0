"""PageRank in integers and as shares: against the same sums in plain Python, and networkx's ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.authors import DIFF, GROUP
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import pagerank
from timely_spark.graphs.ranks import _DEGREE, _Shares, _weights
from timely_spark.testing import run

LONGS = "src long, dst long"


def ranks(
    iterations: int | None, unit: int, up: int, down: int
) -> Callable[[list[tuple[Any, Any]]], Iterable[tuple[Any, int]]]:
    """The documented convention, word by word, with damping `up / down`."""

    def oracle(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, int]]:
        degree, nodes = Counter(a for a, _ in edges), {node for edge in edges for node in edge}
        least = unit - unit * up // down
        rank = dict.fromkeys(nodes, least if iterations is None else unit)
        for _ in range(10_000 if iterations is None else iterations):
            further = dict.fromkeys(nodes, least)
            for a, b in edges:
                further[b] += rank[a] * up // (degree[a] * down)
            if further == rank:
                break
            rank = further
        else:
            assert iterations is not None, "it never ends"
        return rank.items()

    return oracle


FIVE = ranks(5, 10**6, 17, 20)
CONVENTIONS = [
    pytest.param(partial(pagerank, iterations=7), ranks(7, 10**6, 17, 20), id="millionths"),
    pytest.param(
        partial(pagerank, iterations=1, damping=0.5, unit=100), ranks(1, 100, 1, 2), id="one iteration"
    ),
    pytest.param(
        partial(pagerank, iterations=None, damping=5 / 6, unit=6000), ranks(None, 6000, 5, 6), id="surfers"
    ),
]
every_convention = pytest.mark.parametrize(("algorithm", "oracle"), CONVENTIONS)


@pytest.mark.slow
@every_convention
def test_updates_agree_exactly_with_a_computation_from_scratch(algorithm, oracle, follows, changing) -> None:
    follows(algorithm, oracle, {"edges": (LONGS, changing(10, 20, 5))})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_workers_and_schedules_change_nothing(follows, changing, seed) -> None:
    edges = changing(9, 16, 3, seed=seed)

    follows(partial(pagerank, iterations=5), FIVE, {"edges": (LONGS, edges)}, workers=2 + seed, seed=seed)


@pytest.mark.slow
@every_convention
def test_a_window_slides(algorithm, oracle, follows, window) -> None:
    follows(algorithm, oracle, {"edges": (LONGS, window(30, 60, 3))})


@pytest.mark.slow
def test_nodes_may_be_texts(follows, changing, named) -> None:
    edges = named(changing(9, 16, 3, seed=5))

    follows(partial(pagerank, iterations=5), FIVE, {"edges": ("src string, dst string", edges)}, workers=2)


def test_a_graph_may_become_empty(follows) -> None:
    given = {"edges": (LONGS, [[], [(1, 2, 1), (2, 2, 1)], [(1, 2, -1), (2, 2, -1)]])}

    rows = follows(pagerank, ranks(20, 10**6, 17, 20), given)

    assert rows[1] == [(1, 150_000, 1), (2, 1_850_000, 1)]
    assert rows[2] == [(1, 150_000, -1), (2, 1_850_000, -1)]


def test_ranks_without_loss_are_those_of_networkx() -> None:
    graph = nx.gnp_random_graph(60, 0.1, seed=2, directed=True)
    graph.add_edges_from(
        (node, (node + 1) % 60) for node in range(60)
    )  # so each node has an edge that leaves it
    flow = ts.Dataflow("networkx")
    edges = flow.input("edges", "a long, b long").collection()
    pagerank(edges, 60, src="a", dst="b").changes().capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]})["out"].rows()

    expected = nx.pagerank(graph, alpha=0.85, tol=1e-12)
    assert {node: rank / 60e6 for node, rank, _ in rows[0]} == pytest.approx(expected, abs=1e-6)


def shares(
    edges: list[tuple[Any, Any]], nodes: Iterable[Any], iterations: int, dangling: str, damping: float = 0.85
) -> dict[Any, float]:
    """PageRank in doubles, word by word."""
    degree, nodes = Counter(a for a, _ in edges), {*nodes, *(node for edge in edges for node in edge)}
    rank = {node: 1 / len(nodes) for node in nodes}
    for _ in range(iterations):
        held = sum(rank[node] for node in nodes if not degree[node]) if dangling == "spread" else 0.0
        further = {node: (1 - damping + damping * held) / len(nodes) for node in nodes}
        for a, b in edges:
            further[b] += damping * rank[a] / degree[a]
        rank = further
    return rank


SINKS = {
    "edges": [
        [(1, 2, 1), (2, 3, 1), (3, 1, 1), (4, 1, 2), (1, 5, 1)],
        [(1, 5, -1), (3, 6, 1)],
        [(3, 6, -1), (4, 1, -2)],
        [(1, 2, -1), (2, 3, -1), (3, 1, -1)],
        [(8, 8, 1)],
    ],
    "nodes": [[(1, 1), (9, 1)], [(6, 1)], [], [], [(9, -1), (1, -1), (6, -1)]],
}


@pytest.mark.slow
@pytest.mark.parametrize("dangling", ["drop", "spread"])
@pytest.mark.parametrize("workers", [*(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2)), 3])
def test_shares_of_a_changing_graph(dangling, workers) -> None:
    flow = ts.Dataflow("shares")
    edges = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    nodes = flow.input("nodes", "node long, diff long").collection(diff="diff")
    pagerank(edges, 4, nodes=nodes, dangling=dangling, start="uniform").changes().capture("shares")
    pagerank(edges, 4, nodes=nodes, dangling=dangling, damping=0.6).changes().capture("whole")

    made = run(flow, SINKS, workers=workers)

    totals = (after_each(SINKS[name], 5) for name in ("edges", "nodes"))
    for epoch, (there, more) in enumerate(zip(*totals, strict=True)):
        present = list(there.elements()), [node for (node,) in more.elements()]
        found = {row["node"]: row["rank"] for row in ts.snapshot(made["shares"], at=epoch).to_pylist()}
        assert found == pytest.approx(shares(*present, 4, dangling), rel=1e-9)
        whole = {row["node"]: row["rank"] for row in ts.snapshot(made["whole"], at=epoch).to_pylist()}
        expected = shares(*present, 4, dangling, damping=0.6)
        assert whole == pytest.approx({k: v * len(expected) * 1e6 for k, v in expected.items()}, abs=8)
        assert all(isinstance(rank, int) for rank in whole.values())


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"start": "uniform", "dangling": "spread"}, {"dangling": "spread"}])
def test_shares_agree_to_the_last_bit_with_a_computation_from_scratch(options, changing) -> None:
    epochs = changing(12, 30, 6, changes=6, seed=8)
    flow = ts.Dataflow("bits")
    edges = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    pagerank(edges, 9, **options).changes().capture("out")

    def last(epochs: list[list[tuple[Any, ...]]], **how: Any) -> list[Any]:
        return sorted(map(str, ts.snapshot(run(flow, {"edges": epochs}, **how)["out"]).to_pylist()))

    alone = last([[row for of in epochs for row in of]])
    assert alone
    assert alone == last(epochs)
    assert alone == last(epochs, workers=3, seed=2, together=True)
    assert alone == last(epochs, workers=2, seed=1, crashes=0.05)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    edges=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20),
    gone=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=5),
    dangling=st.sampled_from(["drop", "spread"]),
)
def test_shares_are_the_definition(edges, gone, dangling) -> None:
    flow = ts.Dataflow("law")
    made = pagerank(
        flow.input("edges", f"{LONGS}, diff long").collection(diff="diff"), 4,
        start="uniform", dangling=dangling,
    )  # fmt: skip
    made.changes().capture("out")
    first = [(*edge, 1) for edge in edges[::2] + gone]
    then = [*((*edge, 1) for edge in edges[1::2]), *((*edge, -1) for edge in gone)]

    out = ts.snapshot(run(flow, {"edges": [first, then]}, workers=2)["out"]).to_pylist()

    found = {row["node"]: row["rank"] for row in out}
    assert found == pytest.approx(shares(edges, (), 4, dangling), rel=1e-9)


@pytest.mark.campaign  # shares are the definition, too
@pytest.mark.slow
def test_shares_are_those_of_networkx_with_hubs_and_sinks() -> None:
    graph = nx.DiGraph([(node, node * node % 7) for node in range(7, 1500)])
    graph.add_edges_from((0, node) for node in range(7, 1500, 2))
    flow = ts.Dataflow("networkx")
    pagerank(flow.input("edges", LONGS).collection(), 80, start="uniform", dangling="spread").capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]}, workers=2)["out"].rows()

    found = {node: rank for node, rank, _ in rows[0]}
    assert found == pytest.approx(nx.pagerank(graph, tol=1e-14, max_iter=500), rel=1e-5)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.slow
def test_edges_may_be_in_a_loop(follows, changing) -> None:
    def heavy(edges: ts.Collection) -> ts.Collection:
        """Twice: only edges that lead to what counts at least the average of those left."""

        def step(left: ts.Collection) -> ts.Collection:
            strong = pagerank(left, 3).where(lambda row: row.rank >= 700_000)
            return edges.semijoin(strong, left="dst", right="node", unique=True)

        return edges.iterate(step, max_iterations=2, on_limit="return")

    def oracle(edges: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        left = edges
        for _ in range(2):
            rank = dict(ranks(3, 10**6, 17, 20)(left))
            left = [edge for edge in edges if rank.get(edge[1], 0) >= 700_000]
        return left

    follows(heavy, oracle, {"edges": (LONGS, changing(9, 16, 3, seed=6))}, workers=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"iterations": 2.5},
        {"damping": 1},
        {"damping": 0.99999},
        {"damping": -0.1},
        {"damping": "half"},
        {"unit": 0},
        {"unit": 10**12},
        {"tolerance": 0, "iterations": None},
        {"tolerance": 0.01, "iterations": None},
        {"tolerance": 10**7, "iterations": None},
        {"tolerance": 10},
        {"dangling": "lost"},
        {"start": 1.0},
        {"start": "uniform", "iterations": None},
        {"dangling": "spread", "iterations": None},
    ],
)
def test_invalid_arguments_are_refused(wrong) -> None:
    edges = ts.Dataflow("refused").input("edges", LONGS).collection()

    with pytest.raises(GraphError, match=r"(?s)pagerank: .*test_ranks.*Hint"):
        pagerank(edges, **wrong)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        pagerank(edges, src="from")


def test_too_many_nodes_are_an_error_not_a_wrong_rank() -> None:
    known = pa.table({"all": [0], "step": [-1], "power": [2**22 + 1], "count": [1]})

    with pytest.raises(SchemaError, match=r"(?s)4,194,305 nodes.*at most 4,194,304"):
        _weights(3, 0.85, None, known)


def test_the_share_of_a_large_rank_or_degree_is_exact_or_an_error() -> None:
    logic, keys = _Shares(("node",), Fraction(999, 1000)), pa.table({"node": [7]})

    def share(rank: int, degree: int) -> int:
        inputs = pa.table({GROUP: [0], DIFF: [rank], _DEGREE: [degree]})
        return logic.results(keys, inputs)[DIFF][0].as_py()

    assert share(2**53, 2**54 + 1) == 0
    assert share(2**53, 3) == 2**53 * 999 // 3000
    with pytest.raises(SchemaError, match=r"a rank is too large, as 18,014,398,509,481,984\nHint: .*unit"):
        share(2**54, 3)
