"""Landmarks: distances to few nodes, and bounds of all others by the triangle inequality."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import algorithm, caller, check_collection, check_columns, describe
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError
from timely_spark.graphs.edges import nodes_of
from timely_spark.graphs.paths import FAR, sum_of, weighed, within_limit


@algorithm
def landmarks(
    edges: Collection,
    nodes: Collection,
    *,
    weight: str | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node the distance to each landmark that it is connected to, in an undirected graph.

    With few landmarks the distance of any two nodes has bounds at once: see `distance_bounds`.

    Takes as many iterations as the shortest paths have edges, of two exchanges each. An epoch costs the
    distances that change, in the iterations in which they change, and their edges; state is a row for each
    node, landmark and improvement.

    Args:
        edges: the edges, in either direction or both; of parallel ones the shortest counts.
        nodes: the landmarks, with or without edges.
        weight: the column of weights, as for `sssp`; None means each edge has length 1.

    **Columns:** in: `src`, `dst`, `weight`; `node`. Nulls are ignored. Out: ``node``, ``landmark``, of their
    type; ``distance``: long, or double if the weights are floating.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("landmarks")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> nodes = flow.input("nodes", "node long").collection()
        >>> _ = ts.graphs.landmarks(edges, nodes).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1)]], "nodes": [[1, 3]]})["out"].rows()
        {0: [(1, 1, 0, 1), (1, 3, 2, 1), (2, 1, 1, 1), (2, 3, 1, 1), (3, 1, 2, 1), (3, 3, 0, 1)]}

    Raises:
        GraphError: `edges` or `nodes` is not a collection.
        SchemaError: a column is missing, ends and nodes are not of one flat type, or weights no numbers.
        VertexError: when it runs: a weight is null, negative or not finite; a distance in integers, the least
            of a node and landmark, is 2^63 - 1 or more.

    Source: Potamias et al., Fast shortest path distance estimation in large networks, CIKM 2009.
    """
    graph = weighed("landmarks", edges, src, dst, weight)
    start = nodes_of("landmarks", nodes, node, graph)
    graph, start = graph.together("landmarks", start)
    kind = graph.schema.field("weight").type
    start = start.distinct().select("node", landmark="node", distance=pc.scalar(pa.scalar(0, kind)))
    back = graph.select("weight", src="dst", dst="src").select(*graph.schema.names)
    links = graph.concat(back).min("weight", keys=["src", "dst"]).arrange("src")

    def hop(near: Collection) -> Collection:
        steps = near.join(links, left="node", right="src")
        longer = sum_of(kind, "distance", "weight", hops=weight is None)
        farther = steps.select("landmark", node="dst", distance=longer).select("node", "landmark", "distance")
        return farther.concat(start).min("distance", keys=["node", "landmark"])

    distances = start.iterate(hop, name=name)
    return distances if weight is None else within_limit(distances, "distance", ["node", "landmark"])


@algorithm
def distance_bounds(
    distances: Collection, pairs: Collection, *, src: str = "src", dst: str = "dst", name: str | None = None
) -> Collection:
    """For pairs of nodes the bounds of their distance that follow from distances to landmarks.

    By the triangle inequality, of all landmarks l of both nodes: the distance is at least the greatest
    ``|d(a, l) - d(b, l)|``, and at most the least ``d(a, l) + d(b, l)``. The upper bound is the distance if a
    landmark is on a shortest path. A pair without a common landmark has no row. (Bounds of floating weights
    are rounded as their sums are.)

    There is no loop: two joins and two reductions, of seven exchanges. An epoch costs the changed pairs times
    the landmarks, and the pairs of each node with a changed distance.

    Args:
        distances: the result of `landmarks`.
        pairs: the pairs of nodes; equal ones count as one.

    **Columns:** in: ``node``, ``landmark``, ``distance``; `src`, `dst`. Nulls are ignored. Out: ``src``,
    ``dst``, ``lower``, ``upper``, of the type of the distances.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("bounds")
        >>> edges = flow.input("edges", "src long, dst long").collection()
        >>> nodes = flow.input("nodes", "node long").collection()
        >>> pairs = flow.input("pairs", "src long, dst long").collection()
        >>> near = ts.graphs.landmarks(edges, nodes)
        >>> _ = ts.graphs.distance_bounds(near, pairs).changes().capture("out")
        >>> inputs = {"edges": [[(1, 2), (2, 3), (2, 4)]], "nodes": [[1]], "pairs": [[(3, 4), (1, 3)]]}
        >>> ts.testing.run(flow, inputs)["out"].rows()
        {0: [(1, 3, 2, 2, 1), (3, 4, 0, 4, 1)]}

    Raises:
        GraphError: `distances` or `pairs` is not a collection.
        SchemaError: a column is missing, or nodes are not of one type.
        VertexError: when it runs: the upper bound of a pair is 2^63 - 1 or more; a sum of two distances is
            beyond their type, if that is shorter.

    Source: Potamias et al., Fast shortest path distance estimation in large networks, CIKM 2009.
    """
    check_collection("distance_bounds", pairs, beside=distances)
    check_columns("distance_bounds", distances.schema, ["node", "landmark", "distance"], keys=True)
    check_columns("distance_bounds", pairs.schema, {"src": src, "dst": dst}, keys=True)
    if src == dst:
        msg = f"distance_bounds: src and dst are both {src!r}; the pairs have ({describe(pairs.schema)})"
        raise SchemaError(msg, where=caller(), hint="name a column for each node.")
    of_node = distances.select("landmark", "distance", node="node").arrange("node")
    asked = pairs.select(src=src, dst=dst).distinct()
    from_src = asked.join(of_node, left="src", right="node")
    of_dst = distances.select("node", "landmark", other="distance")
    both = from_src.join(of_dst, left=["dst", "landmark"], right=["node", "landmark"])
    first, second = pc.field("distance"), pc.field("other")
    near = first
    if distances.schema.field("distance").type == pa.int64():  # a sum is at most the greatest one
        room = pc.subtract(pc.scalar(FAR), pc.max_element_wise(second, pc.scalar(0), skip_nulls=False))
        near = pc.min_element_wise(first, room, skip_nulls=False)
    each = both.select("src", "dst", lower=pc.abs_checked(first - second), upper=near + second)
    lower = each.select("src", "dst", "lower").max("lower", keys=["src", "dst"])
    least = each.select("src", "dst", "upper").min("upper", keys=["src", "dst"])
    upper = within_limit(least, "upper", ["src", "dst"])
    return lower.join(upper, on=["src", "dst"], name=name)
