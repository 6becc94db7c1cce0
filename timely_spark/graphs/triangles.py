"""Triangles of an undirected graph."""

from __future__ import annotations

import pyarrow.compute as pc

from timely_spark.authors import algorithm
from timely_spark.differential import Collection
from timely_spark.differential.delta_queries import wcoj
from timely_spark.graphs.edges import differ, edges_of, ends_in_order, magnitude


@algorithm
def triangles(
    edges: Collection, *, src: str = "src", dst: str = "dst", name: str | None = None
) -> Collection:
    """All triangles of an undirected graph, each once; parallel edges count as one, self-loops are ignored.

    A `wcoj` of the edges, each from its lesser end to the greater one: a changed edge is extended by the
    neighbours of that end which has fewer, and these are looked up at the other end. So a hub costs its
    edges, not their pairs, and no path of two edges is stored: state is the edges by either end. There is no
    loop. There are twelve exchanges; five of them follow one another. An epoch costs, for each of its edges,
    the lesser degree of the ends. (In the scope of a loop the edges are joined one after the other: paths
    are stored.)

    Args:
        edges: the edges, in either direction or both.

    **Columns:** in: `src`, `dst`, of any key type; edges with a null end are ignored. Out: ``a``, ``b``,
    ``c``, of their type, with a < b < c.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("triangles")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.triangles(edges).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(0, 1, 1), (2, 1, 1), (0, 2, 1)], [(1, 0, -1)]]})["out"].rows()
        {0: [(0, 1, 2, 1)], 1: [(0, 1, 2, -1)]}

    Raises:
        GraphError: `edges` is not a collection.
        SchemaError: a column is missing, or the ends are not of one flat type.

    Source: Ammar et al., VLDB 2018 (see `wcoj`).
    """
    graph = edges_of("triangles", edges, src, dst)
    links = graph.where(differ(graph, "src", "dst")).select(ends_in_order(graph)).distinct()
    ends = [{"a": "a", "b": "b"}, {"a": "b", "b": "c"}, {"a": "a", "b": "c"}]
    return wcoj([(links, each) for each in ends], name=name)


def by_degree(links: Collection) -> Collection:
    """Edges `a`, `b`, each directed from the end of the lower degree to the other: `low`, `high`.

    Further columns stay as they are.
    """
    more = [column for column in links.schema.names if column not in {"a", "b"}]
    ends = links.select(node="a").concat(links.select(node="b"))
    size = magnitude(pc.field("degree"))
    sizes = ends.count("degree", keys="node").select("node", size=size).consolidate().arrange("node")
    one = links.join(sizes, left="a", right="node").select("a", "b", *more, first="size")
    both = one.join(sizes, left="b", right="node")
    first, second = pc.field("first"), pc.field("size")
    ascending = first <= second
    a, b = pc.field("a"), pc.field("b")
    return both.select(*more, low=pc.if_else(ascending, a, b), high=pc.if_else(ascending, b, a))
