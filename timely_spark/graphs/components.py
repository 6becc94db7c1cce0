"""Which nodes hang together: connected components, and strongly connected ones."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential import Collection
from timely_spark.graph import composed, told
from timely_spark.graphs.edges import edges_of, ends_of, magnitude, reversed_of
from timely_spark.graphs.forest import components, spanning_forest


@told
@composed
def connected_components(
    edges: Collection, *, src: str = "src", dst: str = "dst", name: str | None = None
) -> Collection:
    """For each node of an undirected graph the least node that it is connected with.

    A node is there while an edge touches it, a loop to itself included; parallel edges are as one.

    Outside of loops, each worker keeps a spanning forest of its edges and tells one worker its changes: one
    exchange however long the paths are, and an epoch costs what its edges touch. In a loop of yours, labels
    go from neighbour to neighbour: as many iterations as the longest shortest path from a least node.

    Args:
        edges: the edges, in either direction or both.
        src: the column of one end.
        dst: the column of the other end; of the same type.
        name: the step's name; those of its parts begin with it.

    **Columns:** in: `src`, `dst`, any that can be keys; an edge with a null end is none. Out: ``node``,
    ``component``, of their type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("components")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.connected_components(edges).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (3, 2, 1)], [(1, 2, -1)]]}, workers=2)["out"].rows()
        {0: [(1, 1, 1), (2, 1, 1), (3, 1, 1)], 1: [(1, 1, -1), (2, 1, -1), (2, 2, 1), (3, 1, -1), (3, 2, 1)]}

    Raises:
        GraphError: `edges` is no collection.
        SchemaError: a column is missing, or the ends are not of one flat type.
    """
    graph = edges_of("connected_components", edges, src, dst)
    if graph.scope.graph_scope.parent is None:
        return graph.like(components(spanning_forest(graph.stream), name=name), once=True)
    links = graph.concat(reversed_of(graph)).distinct()
    return least_reaching(ends_of(links), links, name=name)


@told
@composed
def strongly_connected_components(
    edges: Collection, *, src: str = "src", dst: str = "dst", name: str | None = None
) -> Collection:
    """For each node of a directed graph the least node that it reaches and is reached from.

    Each node that an edge touches has a row; a node that is on no cycle is a component of its own.

    Edges are kept whose ends are reached from the same least node and reach the same least node, of these
    those for which it still holds among these, and so on until all that are left are on cycles; what their
    ends are labelled is then the component. An iteration of this loop takes, inside, as many iterations as
    labels go far, both ways at once. An epoch costs the labels that change, in the iterations where they
    do, and their edges. Labels that are whole numbers set out in the order of their size, so that hardly
    any is taken back: number the nodes from 1 on where you can.

    Args:
        edges: the edges.
        src: the column of the end where they begin.
        dst: the column of the end where they lead; of the same type.
        name: the step's name; those of its parts begin with it.

    **Columns:** in: `src`, `dst`, any that can be keys; an edge with a null end is none. Out: ``node``,
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
        GraphError: `edges` is no collection.
        SchemaError: a column is missing, or the ends are not of one flat type.
    """
    graph = edges_of("strongly_connected_components", edges, src, dst).distinct()
    loop = graph.scope.inner()
    nodes, cyclic = ends_of(graph).enter(loop), graph.variable(loop)
    first = least_reaching(nodes, cyclic)
    last = least_reaching(nodes, reversed_of(cyclic))
    labels = first.select("node", first="component").join(last.select("node", last="component"), on="node")
    ends = labels.select("node", first_there="first", last_there="last")
    both = cyclic.join(labels, left="src", right="node").join(ends, left="dst", right="node")
    alike = (pc.field("first") == pc.field("first_there")) & (pc.field("last") == pc.field("last_there"))
    cyclic.set(both.where(alike).select("src", "dst"))
    return last.leave(name=name)


def least_reaching(nodes: Collection, edges: Collection, *, name: str | None = None) -> Collection:
    """For each node the least one that reaches it, itself included."""
    own = nodes.select("node", component="node")
    links, loop = edges.arrange("src"), nodes.scope.inner()
    heard = own.where(pc.scalar(False)).variable(loop)  # noqa: FBT003 - nothing, at first
    labels = heard.concat(own.enter_at(loop, _iteration(own))).min("component", keys="node")
    onward = labels.join(links, left="node", right="src").select(node="dst", component="component")
    heard.set(onward, consolidate=False)  # min adds it up, and nothing else reads it
    return labels.leave(name=name)


def _iteration(labels: Collection) -> pc.Expression:
    """When a label sets out: those that win come first, and meet few others on the way."""
    label, kind = pc.field("component"), labels.schema.field("component").type
    if not pa.types.is_integer(kind):
        return pc.scalar(0)
    return magnitude(label)
