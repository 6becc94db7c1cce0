"""Matches of patterns in graphs that change, against all assignments of nodes, and networkx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import motifs, triangles
from timely_spark.testing import run

LONGS = "src long, dst long"

#: each with its edges, those that must not exist, and the nodes of the result
PATTERNS: dict[str, tuple[str, str, str]] = {
    "(a)-[]->(b); (b)-[]->(c); (a)-[]->(c)": ("ab bc ac", "", "abc"),
    "a->b, b->c, a->c": ("ab bc ac", "", "abc"),
    "(a)-[e]->(b); !(b)-[]->(a)": ("ab", "ba", "ab"),
    "(a)-[]->(b); (b)-[]->(c); !(a)-[]->(c)": ("ab bc", "ac", "abc"),
    "a->b, c<-b, !a->c": ("ab bc", "ac", "abc"),
    "(a)-[]->(b); ()<-[]-(b)": ("ab bx", "", "ab"),
    "(b)<-[]-(a); (a)-[]->(a)": ("ab aa", "", "ab"),
    "a->b, a->c, b->d, c->d, !a->d": ("ab ac bd cd", "ad", "abcd"),
}


def brute_force(pattern: str) -> Any:
    there, absent, named = PATTERNS[pattern]

    def oracle(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, ...]]:
        counts, nodes = Counter(edges), {node for edge in edges for node in edge}
        attributes = sorted({*there} - {" "})
        for values in product(nodes, repeat=len(attributes)):
            of = dict(zip(attributes, values, strict=True))
            if any(counts[of[a], of[b]] for a, b in absent.split()):
                continue
            for _ in range(int(np.prod([counts[of[a], of[b]] for a, b in there.split()]))):
                yield tuple(of[a] for a in named)

    return oracle


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "workers", "seed"), in_turn(PATTERNS, [(1, None), (3, 1)]))
def test_edges_come_and_go(follows, changing, pattern, workers, seed) -> None:
    given = {"edges": (LONGS, changing(6, 12, 4, seed=workers))}

    rows = follows(
        lambda edges: motifs(edges, pattern), brute_force(pattern), given, workers=workers, seed=seed
    )

    assert any(rows.values())


@pytest.mark.slow
def test_triangles_of_an_undirected_graph_are_those_of_triangles() -> None:
    graph = nx.gnm_random_graph(60, 400, seed=1)
    flow = ts.Dataflow("triangles")
    edges = flow.input("edges", f"{LONGS}, diff long").collection(diff="diff")
    ordered = edges.select(src=pc.min_element_wise(pc.field("src"), pc.field("dst")),
                           dst=pc.max_element_wise(pc.field("src"), pc.field("dst")))  # fmt: skip
    motifs(ordered, "a->b, b->c, a->c").changes().capture("motifs")
    motifs(ordered, "a->b, a->c, a->d, b->c, b->d, c->d").changes().capture("cliques")
    triangles(edges).changes().capture("triangles")
    links = list(graph.edges)
    epochs = [[(*edge, 1) for edge in links], [(*edge, -1) for edge in links[::7]]]

    made = run(flow, {"edges": epochs}, workers=2)

    graph.remove_edges_from(links[::7])
    assert made["motifs"].rows() == made["triangles"].rows()
    cliques = {tuple(row.values()) for row in ts.snapshot(made["cliques"]).to_pylist()}
    assert cliques == {tuple(sorted(c)) for c in nx.enumerate_all_cliques(graph) if len(c) == 4}


def test_labels_of_nodes_and_edges_and_their_columns(follows) -> None:
    people = [
        [(1, "p", "Ann", 1), (2, "p", "Bo", 1), (3, "q", "Ada", 1)],
        [(2, "p", "Bo", -1)],
        [(2, "q", "Bo", 1)],
    ]
    edges = [
        [(1, 2, "knows", 5, 1), (1, 3, "knows", 6, 1), (1, 2, "knows", 7, 1)],
        [(2, 3, "likes", 8, 1)],
        [],
    ]

    def found(edges: ts.Collection, nodes: ts.Collection) -> ts.Collection:
        where = {"e": pc.field("kind") == "knows", "a": pc.field("kind") == "p"}
        return motifs(edges, "(a)-[e]->(b)", nodes=nodes, where=where)

    def by_hand(edges: list[Any], nodes: list[Any]) -> Iterable[tuple[Any, ...]]:
        for a, b, kind, year in edges:
            for first, p, name in nodes:
                for second, q, other in nodes:
                    if (first, second, kind, p) == (a, b, "knows", "p"):
                        yield (a, b, kind, year, p, name, q, other)

    schemas = {
        "edges": "src long, dst long, kind string, year long",
        "nodes": "node long, kind string, name string",
    }
    follows(
        found, by_hand, {"edges": (schemas["edges"], edges), "nodes": (schemas["nodes"], people)}, workers=2
    )

    flow = ts.Dataflow("columns")
    made = found(
        flow.input("e", schemas["edges"]).collection(), flow.input("n", schemas["nodes"]).collection()
    )
    assert made.schema.names == ["a", "b", "e_kind", "e_year", "a_kind", "a_name", "b_kind", "b_name"]
    nameless = motifs(flow.input("l", schemas["edges"]).collection(), "(a)-[]->(b); (b)-[e]->(c)")
    assert nameless.schema.names == ["a", "b", "c", "e_kind", "e_year"]


def test_a_node_without_edges_and_one_that_has_none(follows) -> None:
    edges, nodes = [[(1, 2, 1)], [(1, 2, -1), (3, 1, 1)]], [[(n, 1) for n in range(4)], [(1, -1)]]

    follows(
        lambda edges, nodes: motifs(edges, "(a); !(a)-[]->(); !()-[]->(a)", nodes=nodes),
        lambda edges, nodes: [(n,) for (n,) in nodes if not any(n in edge for edge in edges)],
        {"edges": (LONGS, edges), "nodes": ("node long", nodes)},
        workers=2,
    )


WRONG = {
    "": r"has no terms",
    "(a)-[]-(b)": r"'\(a\)-\[\]-\(b\)' is not an edge or node",
    "(a)<-[]->(b)": r"is not an edge or node",
    "(a)-[e*1..3]->(b)": r"is not an edge or node",
    "a->b, (c)": r"node 'c' has no edge in the pattern",
    "a->b, !a->c": r"node 'c' has no edge in the pattern",
    "(a)-[e]->(b); (b)-[e]->(c)": r"'e' names two edges",
    "(a)-[a]->(b)": r"'a' names two edges, or an edge and a node",
    "(a)-[]->(b); !(a)-[e]->(b)": r"an edge after `!` has a name",
    "(a)-[]->(b); !()-[]->()": r"an edge after `!` has",
    "()-[]->()": r"no node of the pattern has a name",
    "a->b, c->d": r"the relations fall apart",
}


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_no_pattern_is_refused(pattern) -> None:
    edges = ts.Dataflow("refused").input("edges", LONGS).collection()

    with pytest.raises(
        GraphError, match=rf"(?s)motifs: .*{WRONG[pattern]}.*test_patterns.*Hint|{WRONG[pattern]}"
    ):
        motifs(edges, pattern)


def test_invalid_arguments_are_refused() -> None:
    edges = ts.Dataflow("refused").input("edges", f"{LONGS}, b long, e_b long").collection()

    with pytest.raises(GraphError, match=r"(?s)where= names 'x'.*test_patterns.*Hint"):
        motifs(edges, "(a)-[e]->(b)", where={"x": pc.field("b") > 1})
    with pytest.raises(GraphError, match=r"(?s)where= names 'a'.*test_patterns.*Hint"):
        motifs(edges, "(a)-[e]->(b)", where={"a": pc.field("b") > 1})
    with pytest.raises(SchemaError, match=r"(?s)several columns 'e_b'.*test_patterns.*Hint"):
        motifs(edges, "(a)-[e]->(e_b)")
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['node'\].*Hint"):
        motifs(edges, "(a)-[e]->(b)", nodes=edges)
    with pytest.raises(GraphError, match=r"(?s)has no terms.*test_patterns.*Hint"):
        motifs(edges, 7)
