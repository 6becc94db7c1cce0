"""Matches of a pattern of nodes and edges, in the language of GraphFrames' motifs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from timely_spark.authors import algorithm, caller
from timely_spark.differential import Collection
from timely_spark.differential.delta_queries import wcoj
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs.edges import edges_of, nodes_of

_EDGE = re.compile(r"(!?)\s*\(\s*(\w*)\s*\)\s*(<?)\s*-\s*\[\s*(\w*)\s*\]\s*-\s*(>?)\s*\(\s*(\w*)\s*\)")
_SHORT = re.compile(r"(!?)\s*(\w+)\s*(<?)\s*()-\s*(>?)\s*(\w+)")
_NODE = re.compile(r"\(\s*(\w+)\s*\)")
_HINT = 'write "(a)-[]->(b); (b)-[e]->(c); !(a)-[]->(c)", or for short "a->b, b->c, !a->c".'


@algorithm
def motifs(
    edges: Collection,
    pattern: str,
    *,
    nodes: Collection | None = None,
    where: Mapping[str, str | pc.Expression] | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """All matches of a pattern in a directed graph: a node of the graph for each node of the pattern.

    A pattern is written as in GraphFrames, ``"(a)-[]->(b); (b)-[e]->(c); !(a)-[]->(c)"``, or for short
    ``"a->b, b->c, !a->c"``. ``(a)`` and ``[e]`` name a node and an edge; one without a name, ``()`` or
    ``[]``, is part of the pattern, but not of the result. After ``!`` is an edge that must not exist. An
    arrow may also point to the left. For an undirected graph give edges in both directions.

    Several nodes of the pattern may be one node of the graph, as in GraphFrames: a match is a homomorphism.
    If they must differ, say so: ``.where("a <> c")``. A pattern that looks the same from several nodes has
    as many matches of the same nodes: ``"a->b, b->c, c->a"`` finds each triangle three times, and once with
    ``.where("a < b AND a < c")``.
    Parallel edges are different ones, so multiplicities multiply; self-loops are edges.

    The pattern is one `wcoj`: each changed edge is extended to all matches that it is part of, one node after
    the other, and no partial match is stored. State is the edges by either end. There is no loop. An epoch
    costs the partial matches of its changed edges: for triangles, of each the lesser degree of its ends. The
    directed triangle has 11 exchanges; four follow one another.

    Args:
        edges: the directed edges.
        pattern: the pattern. Its nodes hang together.
        nodes: the nodes, each once: those with a name in the pattern must be among them.
        where: for names of the pattern, a condition on the columns of `nodes`, or of `edges`, that the
            node or edge must satisfy, as ``{"f": "kind = 'follows'"}``: as for `Collection.where`.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Edges and nodes with nulls there are ignored. Out:
    each named node (of an edge its source first), of their type; then ``e_x`` for a further column ``x`` of
    `edges` and a named edge ``e``, and ``a_x`` for a further column ``x`` of `nodes` and a node ``a``.

    Example:
        Who follows someone who likes a film, but not that one's follower?

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("motifs")
        >>> edges = flow.input("edges", "src long, dst long, kind string, diff long").collection(diff="diff")
        >>> likes, follows = "kind = 'likes'", "kind = 'follows'"
        >>> pattern = "(a)-[f]->(b); (b)-[l]->(film); !(b)-[]->(a)"
        >>> found = ts.graphs.motifs(edges, pattern, where={"f": follows, "l": likes})
        >>> _ = found.select("a", "b", "film").changes().capture("out")
        >>> rows = [[(1, 2, "follows", 1), (2, 9, "likes", 1), (3, 2, "follows", 1)], [(2, 1, "follows", 1)]]
        >>> ts.testing.run(flow, {"edges": rows}, workers=2)["out"].rows()
        {0: [(1, 2, 9, 1), (3, 2, 9, 1)], 1: [(1, 2, 9, -1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection; the pattern is not in the language, is not
            connected, or names nothing; `where` names what the pattern does not.
        SchemaError: a column is missing, or ends and nodes are not of one flat type; two columns of the
            result have one name.

    Source: GraphFrames (Dave et al., GRADES 2016); Ammar et al., VLDB 2018.
    """
    graph = edges_of("motifs", edges, src, dst)
    if nodes is not None:
        nodes_of("motifs", nodes, node, graph)
    terms = _parsed(pattern)
    filters = dict(where or {})
    _check_names(terms, filters, nodes=nodes is not None)
    for end in (src, dst):
        edges = edges.where(pc.is_valid(pc.field(end)))
    edges.checks_removals = True
    named = [*dict.fromkeys(end for term in terms for end in term.named)]
    parts = [
        _part(edges, {src: term.source, dst: term.target}, term.edge, filters)
        for term in terms
        if term.edge is not None and not term.negated
    ]
    if nodes is not None:
        nodes = nodes.where(pc.is_valid(pc.field(node)))
        parts += [_part(nodes, {node: one}, one, filters) for one in named]
    columns = [*named, *(attribute for _, _, more in parts for attribute in more.values())]
    if twice := [column for column, n in Counter(columns).items() if n > 1]:
        msg = f"motifs: the result has several columns {twice[0]!r}"
        raise SchemaError(msg, where=caller(), hint="rename a node or an edge of the pattern, or a column.")
    relations: list[Any] = [(of, ends | more) for of, ends, more in parts]
    without: list[Any] = [
        (edges, {column: of for column, of in zip((src, dst), term.ends, strict=True) if of in term.named})
        for term in terms
        if term.negated
    ]
    return wcoj(relations, without=without).select(*columns, name=name)


def _part(
    relation: Collection, ends: dict[str, str], name: str, filters: Mapping[str, Any]
) -> tuple[Collection, dict[str, str], dict[str, str]]:
    """An edge or node of a pattern as a relation: the attributes of its ends, and of its other columns."""
    more = {column: f"{name}_{column}" for column in relation.schema.names if name and column not in ends}
    return relation.where(filters[name]) if name in filters else relation, ends, more


@dataclass(frozen=True)
class _Term:
    """A part of a pattern: an edge; or a node, which is both ends. Nameless nodes begin with `(`."""

    source: str
    target: str
    #: the edge's name, or empty; None means a node
    edge: str | None = None
    negated: bool = False

    @property
    def ends(self) -> tuple[str, str]:
        return self.source, self.target

    @property
    def named(self) -> list[str]:
        """The ends that have a name."""
        return [end for end in self.ends if not end.startswith("(")]


def _parsed(pattern: Any) -> list[_Term]:
    """The terms of a pattern."""
    texts = [text.strip() for text in re.split("[;,]", pattern)] if isinstance(pattern, str) else []
    terms = []
    for at, text in enumerate(text for text in texts if text):
        if node := _NODE.fullmatch(text):
            terms.append(_Term(node[1], node[1]))
            continue
        match = _EDGE.fullmatch(text) or _SHORT.fullmatch(text)
        if match is None or bool(match[3]) == bool(match[5]):
            msg = f"motifs: {text!r} is not an edge or node of a pattern"
            raise GraphError(msg, where=caller(), hint=_HINT)
        first, second = (match[2] or f"({at}.0)"), (match[6] or f"({at}.1)")
        ends = (first, second) if match[5] else (second, first)
        terms.append(_Term(*ends, match[4], bool(match[1])))
    if not terms:
        msg = f"motifs: pattern={pattern!r} has no terms"
        raise GraphError(msg, where=caller(), hint=_HINT)
    return terms


def _check_names(terms: list[_Term], filters: Mapping[str, Any], *, nodes: bool) -> None:
    """Check how names are used."""
    needed = [term for term in terms if not term.negated and (term.edge is not None or nodes)]
    ends = {end for term in needed for end in term.named}
    edges = [term.edge for term in terms if term.edge]
    for term in terms:
        if missing := [end for end in term.named if end not in ends]:
            hint = "give nodes=, to which it belongs."
            if term.edge is not None:
                hint = "add an edge to it, without `!`."
            msg = f"motifs: node {missing[0]!r} has no edge in the pattern"
        elif term.negated and (term.edge or not term.named):
            msg = "motifs: an edge after `!` has a name, or no node with a name"
            hint = "an edge that does not exist has no columns: write !(a)-[]->(b), or !(a)-[]->()."
        else:
            continue
        raise GraphError(msg, where=caller(), hint=hint)
    if twice := [one for one, n in Counter([*edges, *ends]).items() if n > 1]:
        msg = f"motifs: {twice[0]!r} names two edges, or an edge and a node"
        raise GraphError(msg, where=caller(), hint="give each edge a name of its own.")
    if not ends:
        msg = "motifs: no node of the pattern has a name"
        raise GraphError(msg, where=caller(), hint="name the nodes that the result shall have: (a)-[]->().")
    if unknown := [one for one in filters if one not in edges and not (nodes and one in ends)]:
        msg = (
            f"motifs: where= names {unknown[0]!r}; the pattern's edges are {edges}, its nodes {sorted(ends)}"
        )
        raise GraphError(msg, where=caller(), hint="name the edge as [e]; for a node's columns give nodes=.")
