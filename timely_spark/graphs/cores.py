"""Cores of an undirected graph: k-cores, and the core number of each node."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import adjacent, algorithm, integer, numbers
from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graphs.edges import edges_of, links_of, nodes_of


@algorithm
def k_core(
    edges: Collection, k: int, *, src: str = "src", dst: str = "dst", name: str | None = None
) -> Collection:
    """The nodes of the k-core: the largest set of nodes that each have k neighbours within the set.

    The graph is undirected; parallel edges count as one, self-loops are ignored. The core's edges are those
    whose ends both belong to it: two semijoins.

    All nodes with fewer than k neighbours are removed at once, again and again. Takes as many iterations as
    there are such rounds, of one exchange each. An epoch costs the nodes that are removed in another
    iteration than before, and their edges; a node whose number of neighbours changes costs only itself.

    Args:
        edges: the edges, in either direction or both.
        k: the least number of neighbours.

    **Columns:** in: `src`, `dst`, of any key type; edges with a null end are ignored. Out: ``node``, of their
    type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("core")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.k_core(edges, 2).changes().capture("out")
        >>> changes = [[(1, 2, 1), (2, 3, 1), (3, 1, 1), (3, 4, 1)], [(1, 2, -1), (4, 1, 1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [(1, 1), (2, 1), (3, 1)], 1: [(2, -1), (4, 1)]}

    Raises:
        GraphError: `edges` is not a collection; `k` is not an integer from 1 on.
        SchemaError: a column is missing, or the ends are not of one flat type.

    Source: Seidman, Network structure and minimum degree, Social Networks 1983.
    """
    k = integer("k", k, step="k_core", error=GraphError)
    links = links_of(edges_of("k_core", edges, src, dst)).arrange("src")

    def peel(left: Collection) -> Collection:
        near = left.join(links, left="node", right="src").select(node="dst")
        return near.count("degree", keys="node").where(pc.field("degree") >= k).select("node")

    return links.select(node="src").distinct().iterate(peel, name=name)


@algorithm
def core_numbers(
    edges: Collection,
    *,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node its core number (coreness): the greatest k for which it is in the k-core.

    The graph is undirected; parallel edges count as one, self-loops are ignored, and a node with no other
    edge has no row unless it is in `nodes`.

    Each node starts with its number of neighbours, n. In each iteration all nodes take the greatest h such
    that h of their neighbours have at least h (the h-index); the limit is the core number. An iteration has
    one exchange; there are at most as many as there are nodes, and in practice few. An epoch costs the nodes
    whose number changes, in the iterations in which it changes, and their edges.

    Args:
        edges: the edges, in either direction or both.
        nodes: further nodes; one without edges has core number 0.

    **Columns:** in: `src`, `dst`, of any key type; `node`, of theirs. Nulls are ignored. Out: ``node``, of
    their type, ``core`` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("cores")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.core_numbers(edges).changes().capture("out")
        >>> changes = [[(1, 2, 1), (2, 3, 1), (3, 1, 1), (3, 4, 1)], [(3, 4, -1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [(1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 1, 1)], 1: [(4, 1, -1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: Lü et al., The H-index of a network node, Nature Communications 2016.
    """
    graph = edges_of("core_numbers", edges, src, dst)
    links = links_of(graph).arrange("src")

    def lower(cores: Collection) -> Collection:
        near = cores.join(links, left="node", right="src").select(node="dst", core="core")
        return near.reduce_batches(_h_index, "core long", keys="node")

    degrees = links.count("core", keys="src").select("core", node="src").select("node", "core")
    if nodes is None:
        return degrees.iterate(lower, name=name)
    degrees, more = degrees.together("core_numbers", nodes_of("core_numbers", nodes, node, graph).distinct())
    isolated = more.antijoin(degrees, on="node", unique=True).select("node", core=pc.scalar(0))
    return degrees.iterate(lower).concat(isolated, name=name)


def _h_index(near: pa.Table) -> pa.Table:
    """For each node the greatest h such that h of its neighbours have at least h."""
    groups = adjacent(near, ["node"])
    values, counts = (numbers(near, column) for column in ("core", "count"))
    order = np.lexsort((-values, groups.ids))
    values, counts = values[order], counts[order]
    total = np.cumsum(counts)
    before = (total - counts)[groups.starts][groups.ids]
    best = np.maximum.reduceat(np.minimum(values, total - before), groups.starts)
    return pa.table({"node": near.column("node").take(pa.array(groups.starts)), "core": best})
