"""PageRank in whole numbers: against the same sums in plain Python, and networkx's ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import networkx as nx
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import pagerank
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


def test_nodes_may_be_texts(follows, changing, named) -> None:
    edges = named(changing(9, 16, 3, seed=5))

    follows(partial(pagerank, iterations=5), FIVE, {"edges": ("src string, dst string", edges)}, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_epochs_may_be_in_flight_together(follows, changing, seed) -> None:
    given = {"edges": (LONGS, changing(8, 14, 4, seed=3))}

    follows(partial(pagerank, iterations=5), FIVE, given, workers=2, seed=seed, together=True)


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


@pytest.mark.slow
def test_edges_may_be_in_a_loop(follows, changing) -> None:
    def heavy(edges: ts.Collection) -> ts.Collection:
        """Twice: only edges that lead to what counts at least the average of those left."""

        def step(left: ts.Collection) -> ts.Collection:
            strong = pagerank(left, 3).where(lambda row: row.rank >= 700_000)
            return edges.semijoin(strong, left="dst", right="node", unique=True)

        return edges.iterate(step, max_iterations=2)

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
    ],
)
def test_invalid_arguments_are_refused(wrong) -> None:
    edges = ts.Dataflow("refused").input("edges", LONGS).collection()

    with pytest.raises(GraphError, match=r"(?s)pagerank: .*test_ranks.*Hint"):
        pagerank(edges, **wrong)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        pagerank(edges, src="from")
