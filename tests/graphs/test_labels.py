"""Communities by label propagation, against the definition in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import cdlp, label_propagation
from timely_spark.testing import run

LONGS = "src long, dst long"


def labels(iterations: int) -> Callable[..., Iterable[tuple[Any, Any]]]:
    """The definition, word by word."""

    def oracle(edges: list[tuple[Any, Any]], more: Iterable[tuple[Any]] = ()) -> Iterable[tuple[Any, Any]]:
        neighbours: dict[Any, list[Any]] = {node: [] for (node,) in more}
        for a, b in edges:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        label = {node: node for node in neighbours}
        for _ in range(iterations):
            votes = {node: Counter(label[one] for one in near) for node, near in neighbours.items()}
            label = {
                node: min(one for one in of if of[one] == max(of.values())) if of else node
                for node, of in votes.items()
            }
        return label.items()

    return oracle


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "seed"),
    [(1, None), (2, 0), (3, 1)],
)
def test_edges_come_and_go(follows, changing, workers, seed) -> None:
    edges = changing(9, 14, 6, seed=workers)

    rows = follows(
        partial(cdlp, iterations=3), labels(3), {"edges": (LONGS, edges)}, workers=workers, seed=seed
    )

    assert sum(len(one) for one in rows.values()) > 12


@pytest.mark.campaign  # in every run edges come and go, in a case of the test above
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_a_window_slides(follows, window, iterations) -> None:
    given = {"edges": (LONGS, window(30, 50, 6))}

    follows(partial(cdlp, iterations=iterations), labels(iterations), given, workers=2)


@pytest.mark.slow
def test_nodes_without_edges_keep_their_label(follows) -> None:
    edges = [[(1, 2, 1), (5, 4, 1)], [(5, 4, -1)], [(2, 3, 1)], []]
    nodes = [[(3, 1), (4, 1), (4, 1)], [(9, 1)], [], [(4, -2), (1, -1), (1, 1)]]

    rows = follows(
        lambda edges, nodes: cdlp(edges, 2, nodes=nodes),
        labels(2),
        {"edges": (LONGS, edges), "nodes": ("node long", nodes)},
        workers=2,
    )

    assert rows[1] == [(5, 5, -1), (9, 9, 1)]
    assert rows[3] == [(4, 4, -1)]


def test_a_label_may_be_nan_and_is_the_greatest() -> None:
    flow = ts.Dataflow("nan")
    edges = flow.input("edges", "src double, dst double").collection()
    known = flow.input("known", "node double, label double").collection()
    label_propagation(edges, known, iterations=1, fixed=True).changes().capture("out")

    inputs = {"edges": [[(np.nan, 2.0)]], "known": [[(np.nan, np.nan), (1.0, np.nan), (1.0, 5.0)]]}
    rows = run(flow, inputs, workers=2)["out"].rows()[0]
    assert sorted(map(str, rows)) == ["(1.0, 5.0, 1)", "(2.0, nan, 1)", "(nan, nan, 1)"]


def test_a_neighbour_in_both_directions_counts_twice() -> None:
    flow = ts.Dataflow("twice")
    cdlp(flow.input("edges", LONGS).collection(), 1).changes().capture("out")

    rows = run(flow, {"edges": [[(1, 5), (2, 5), (5, 3), (3, 5)]]}, workers=2)["out"].rows()

    assert (5, 3, 1) in rows[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["string", "double"])
def test_nodes_may_be_of_other_types(follows, changing, named, kind) -> None:
    edges = changing(9, 16, 4, seed=5)
    edges = named(edges) if kind == "string" else [[(a / 4, b / 4, n) for a, b, n in of] for of in edges]

    follows(partial(cdlp, iterations=3), labels(3), {"edges": (f"src {kind}, dst {kind}", edges)}, workers=2)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    epochs=st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=10), min_size=1, max_size=3
    ),
    iterations=st.integers(1, 4),
)
def test_it_is_the_definition(epochs, iterations) -> None:
    flow = ts.Dataflow("law")
    edges = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    cdlp(edges, iterations).changes().capture("out")
    given = [
        [*((*edge, 1) for edge in now), *((*edge, -1) for edge in before)]
        for before, now in zip([[], *epochs], epochs, strict=False)
    ]

    made = run(flow, {"edges": given}, workers=2)["out"]

    found = [(row["node"], row["label"]) for row in ts.snapshot(made).to_pylist()]
    assert sorted(found) == sorted(labels(iterations)(epochs[-1]))


@pytest.mark.slow
def test_communities_of_a_hundred_cliques() -> None:
    graph = nx.connected_caveman_graph(100, 8)
    flow = ts.Dataflow("cliques")
    cdlp(flow.input("edges", LONGS).collection(), 10).changes().capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]}, workers=2)["out"].rows()

    assert {row[:2] for row in rows[0]} == {*labels(10)(list(graph.edges))}
    assert {label % 8 for _, label, _ in rows[0]} <= {0, 1, 7}


def spread(iterations: int, fixed: bool) -> Callable[..., Iterable[tuple[Any, Any]]]:  # noqa: FBT001
    """The definition, word by word."""

    def oracle(edges: list[tuple[Any, Any]], known: list[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
        first = {node: min(label for of, label in known if of == node) for node, _ in known}
        neighbours: dict[Any, list[Any]] = {node: [] for node in first}
        for a, b in edges:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        label = dict(first)
        for _ in range(iterations):
            new = {}
            for node, near in neighbours.items():
                votes = Counter(label[one] for one in near if one in label)
                if fixed and node in first:
                    new[node] = first[node]
                elif votes:
                    new[node] = min(one for one in votes if votes[one] == max(votes.values()))
                elif node in label:
                    new[node] = label[node]
            label = new
        return label.items()

    return oracle


fixed_or_not = pytest.mark.parametrize("fixed", [True, False])
LABELS = [
    [(0, "b", 1), (3, "a", 1), (3, "c", 1), (77, "x", 1)],
    [(3, "a", -1)],
    [(0, "b", -1), (5, "d", 2)],
    [(5, "d", -2), (0, "a", 1)],
]


@pytest.mark.slow
@fixed_or_not
@pytest.mark.parametrize(("workers", "seed"), [(1, None), (3, 1)])
def test_labels_and_edges_come_and_go(follows, changing, workers, seed, fixed) -> None:
    given = {
        "edges": (LONGS, changing(9, 9, 5, changes=3, seed=workers)),
        "known": ("node long, label string", LABELS),
    }

    rows = follows(
        partial(label_propagation, iterations=3, fixed=fixed), spread(3, fixed), given,
        workers=workers, seed=seed,
    )  # fmt: skip

    assert all(rows[epoch] for epoch in range(4))


@pytest.mark.parametrize("wrong", [0, -1, 2.5, None, True])
def test_invalid_arguments_are_refused(wrong) -> None:
    edges = ts.Dataflow("refused").input("edges", LONGS).collection()

    with pytest.raises(GraphError, match=r"(?s)cdlp: iterations=.*test_labels.*Hint"):
        cdlp(edges, wrong)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['from'\].*Hint"):
        cdlp(edges, 2, src="from")
    with pytest.raises(GraphError, match=r"(?s)test_labels.*Hint"):
        cdlp(edges, 2, nodes=[1])
    with pytest.raises(GraphError, match=r"(?s)label_propagation: iterations=.*test_labels.*Hint"):
        label_propagation(edges, edges, iterations=wrong, node="src", label="dst")
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['label'\].*Hint"):
        label_propagation(edges, edges, iterations=2, node="src")
