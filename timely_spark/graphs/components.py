"""Connected components, and strongly connected components."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import algorithm, by_workers
from timely_spark.differential import Collection
from timely_spark.graphs.edges import differ, edges_of, ends_of, magnitude, reversed_of, with_nodes
from timely_spark.graphs.forest import components, spanning_forest
from timely_spark.graphs.placed import spread_components
from timely_spark.streams import Stream

#: From this number of workers on, nodes get places: 400,000 random edges load as fast, more load faster.
_MANY = 16


@algorithm
def connected_components(
    edges: Collection,
    *,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    spread: bool | None = None,
    name: str | None = None,
) -> Collection:
    """For each node of an undirected graph the least node of its component.

    A node is present while it has an edge, or a self-loop, or is in `nodes`; parallel edges count as one.

    Outside loops, each worker maintains a spanning forest of its edges and sends the forest's changes to one
    worker: two exchanges, however long the paths are, and an epoch costs the affected nodes. That worker has
    a row for each node, and at most about sqrt(2 * workers) edges for each, so many workers spread the nodes
    instead. Inside a loop, labels propagate
    from neighbour to neighbour: as many iterations as the longest shortest path from a least node.

    Args:
        edges: the edges, in either direction or both.
        nodes: further nodes; one without edges is a component of its own.
        spread: whether all workers have equal shares of the nodes, for graphs that outgrow one worker: nodes
            that are near each other when they come get one place, and each place has a forest of its own.
            The results are the same, but may stay wrong once an edge was removed more often than inserted;
            the log warns of that. An epoch takes up to 12 exchanges, one with many new nodes about 40. By
            default, None, with 16 workers or more. No effect inside loops.

    **Columns:** in: `src`, `dst`, of any key type; `node`, of theirs. Nulls are ignored. Out: ``node``,
    ``component``, of their type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("components")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.connected_components(edges).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (3, 2, 1)], [(1, 2, -1)]]}, workers=2)["out"].rows()
        {0: [(1, 1, 1), (2, 1, 1), (3, 1, 1)], 1: [(1, 1, -1), (2, 1, -1), (2, 2, 1), (3, 1, -1), (3, 2, 1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: Borůvka, O jistém problému minimálním, 1926, for the forest of each worker.
    """
    graph = edges_of("connected_components", edges, src, dst)
    graph = with_nodes("connected_components", graph, nodes, node)
    if graph.scope.graph_scope.parent is None:
        tells = not graph.signed

        def forests(edges: Stream) -> Stream:
            return components(spanning_forest(edges, tells_negative=tells), name=name)

        def by_place(edges: Stream, name: str | None = None) -> Stream:
            return spread_components(edges, tells_negative=tells, name=name)

        if spread is None:
            labels = by_workers(graph.stream, forests, by_place, least=_MANY, word="by_place")
        else:
            labels = by_place(graph.stream, name) if spread else forests(graph.stream)
        return graph.like(labels, once=True)
    links = graph.concat(reversed_of(graph)).distinct()
    return least_reaching(ends_of(links), links, name=name)


@algorithm
def strongly_connected_components(
    edges: Collection,
    *,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node of a directed graph the least node that it reaches and is reached from.

    Each node with an edge, or in `nodes`, has a row; a node on no cycle is a component of its own.

    First a loop removes nodes without an edge in, and nodes without an edge out, with their edges, until
    there are none: what is on no cycle and between no cycles costs its edges once. Another loop keeps the
    edges whose ends are reached from the same least node and reach the same least node, until nothing
    changes: then all edges left are on cycles, and the label of an end is its component. Each of its
    iterations runs an inner loop in both directions at once, as long as labels propagate. An iteration has
    one exchange. An epoch costs the labels that change, in the iterations in which they change, and their
    edges. Integer labels propagate in order of magnitude, so that few are retracted: number the nodes from 1
    if you can. A cycle takes as many iterations as it has edges; if numbers increase along it, the labels of
    most nodes improve in each of them, so its cost grows with the square of its length. A path takes half as
    many, each of two nodes.

    Args:
        edges: the edges.
        nodes: further nodes; one without edges is a component of its own.

    **Columns:** in: `src`, `dst`, of any key type; `node`, of theirs. Nulls are ignored. Out: ``node``,
    ``component``, of their type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("cycles")
        >>> edges = flow.input("edges", "src string, dst string, diff long").collection(diff="diff")
        >>> _ = ts.graphs.strongly_connected_components(edges).changes().capture("out")
        >>> changes = [[("a", "b", 1), ("b", "c", 1)], [("c", "b", 1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [('a', 'a', 1), ('b', 'b', 1), ('c', 'c', 1)], 1: [('c', 'b', 1), ('c', 'c', -1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: `scc` of differential dataflow; trimming: McLendon, Hendrickson, Plimpton and Rauchwerger, Finding
    strongly connected components in distributed graphs, 2005.
    """
    graph = edges_of("strongly_connected_components", edges, src, dst)
    graph = with_nodes("strongly_connected_components", graph, nodes, node).distinct()
    loop = graph.scope.inner()
    nodes = ends_of(graph)
    nodes, cyclic = nodes.enter(loop), _trimmed(graph, nodes).variable(loop)
    first = least_reaching(nodes, cyclic)
    last = least_reaching(nodes, reversed_of(cyclic))
    labels = first.select("node", first="component").join(last.select("node", last="component"), on="node")
    ends = labels.select("node", first_of_dst="first", last_of_dst="last")
    both = cyclic.join(labels, left="src", right="node").join(ends, left="dst", right="node")
    same_labels = (pc.field("first") == pc.field("first_of_dst")) & (
        pc.field("last") == pc.field("last_of_dst")
    )
    cyclic.set(both.where(same_labels).select("src", "dst"))
    return last.leave(name=name)


def _trimmed(edges: Collection, nodes: Collection) -> Collection:
    """The edges left when nodes without an edge in, or without one out, are removed again and again.

    Self-loops do not count, and are left out.
    """
    edges = edges.where(differ(edges, "src", "dst"))
    outgoing, incoming = edges.arrange("src"), edges.arrange("dst")

    def trim(left: Collection) -> Collection:
        heads = left.join(outgoing, left="node", right="src").select(node="dst").distinct()
        tails = left.join(incoming, left="node", right="dst").select(node="src").distinct()
        return heads.semijoin(tails, on="node", unique=True)

    core = nodes.iterate(trim)
    left = outgoing.semijoin(core, left="src", right="node", unique=True)
    return left.semijoin(core, left="dst", right="node", unique=True)


def least_reaching(nodes: Collection, edges: Collection, *, name: str | None = None) -> Collection:
    """For each node the least node that reaches it, which may be the node itself."""
    own = nodes.select("node", component="node")
    links, loop = edges.arrange("src"), nodes.scope.inner()
    proposed = own.where(pc.scalar(False)).variable(loop)  # noqa: FBT003 - empty at first
    labels = proposed.concat(own.enter_at(loop, _iteration(own))).min("component", keys="node")
    propagated = labels.join(links, left="node", right="src").select(node="dst", component="component")
    proposed.set(propagated, consolidate=False)  # only `min` reads the variable, and consolidates
    least = labels.leave()
    if pa.types.is_floating(own.schema.field("component").type):  # `min` ignores NaN
        of_nan = [one.where(pc.is_nan(pc.field("node"))) for one in (own, least)]
        least = least.concat(of_nan[0].antijoin(of_nan[1].select("node"), on="node"))
    return least.consolidate(name=name)


def _iteration(labels: Collection) -> pc.Expression:
    """The iteration at which a label enters: small labels, which win, enter first."""
    label, kind = pc.field("component"), labels.schema.field("component").type
    if not pa.types.is_integer(kind):
        return pc.scalar(0)
    return magnitude(label)
