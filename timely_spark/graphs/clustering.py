"""Local clustering coefficients."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import algorithm
from timely_spark.differential import Collection
from timely_spark.graphs.edges import all_nodes, differ, edges_of, ends_in_order, lesser
from timely_spark.graphs.triangles import by_degree


@algorithm
def lcc(
    edges: Collection,
    directed: bool,  # noqa: FBT001 - there is no default: a wrong one would be wrong by a factor, silently
    *,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node its local clustering coefficient: the edges among its neighbours, of those possible.

    Neighbours of a node are the other nodes with an edge to or from it. Of d neighbours, d(d - 1) directed
    edges among them are possible; an existing one counts in its direction, and an edge of an undirected
    graph in both. With fewer than two neighbours the coefficient is 0. Parallel edges count as one,
    self-loops are ignored. Edges are counted in integers and divided once, so a coefficient does not
    depend on past changes.

    Each triangle is found once, as in `triangles`, and counts for its three corners, so a node with many
    neighbours costs its triangles, not the pairs of its neighbours. There is no loop: the exchanges of
    `triangles`, and one more of the counts. An epoch costs the triangles of its edges, and of edges that get
    or lose the opposite direction.

    Args:
        edges: the edges; if undirected, in either direction or both.
        directed: whether the edges are directed.
        nodes: further nodes; one without edges has coefficient 0.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, ``lcc`` double.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("clustering")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.lcc(edges, directed=True).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1), (1, 3, 1)], [(3, 2, 1)]]})["out"].rows()
        {0: [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 1)], 1: [(1, 0.5, -1), (1, 1.0, 1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: LDBC Graphalytics specification 1.0, section 2.3.6.
    """
    graph = edges_of("lcc", edges, src, dst)
    every = all_nodes("lcc", graph, nodes, node)
    links = _links(graph, directed=directed).arrange(["a", "b"])
    pairs = by_degree(links).arrange("low")
    more_pairs = pairs.select("low", first="high", to_first="n")
    wedges = more_pairs.join(pairs, on="low")
    wedges = wedges.where(lesser(wedges, "first", "high"))
    wedges = wedges.select("low", "first", "high", "to_first", to_high="n")
    closed = wedges.join(links, left=["first", "high"], right=["a", "b"])
    corners = closed.select(node="low", n="n").concat(
        closed.select(node="first", n="to_high"), closed.select(node="high", n="to_first")
    )
    none = every.select("node", n=pc.scalar(0))
    among = corners.concat(none).sum("n", keys="node")
    ends = links.select(node="a", n=pc.scalar(1)).concat(links.select(node="b", n=pc.scalar(1)))
    degrees = ends.concat(none).sum("n", keys="node").select("node", degree="n")
    d = pc.field("degree").cast(pa.float64())
    possible = pc.max_element_wise(d * (d - pc.scalar(1.0)), pc.scalar(1.0))
    return among.join(degrees, on="node", name=name).select(
        "node", lcc=pc.field("n").cast(pa.float64()) / possible
    )


def _links(graph: Collection, *, directed: bool) -> Collection:
    """The linked pairs a < b, each with the number n of its directed edges: 1 or 2."""
    graph, ends = graph.where(differ(graph, "src", "dst")), ends_in_order(graph)
    if not directed:
        return graph.select(ends).distinct().select("a", "b", n=pc.scalar(2))
    forward = lesser(graph, "src", "dst")
    return graph.select(ends, forward=forward).distinct().count("n", keys=["a", "b"])
