"""Shortest paths: by number of edges, and by weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import DIFF, Stateless, algorithm, caller
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError
from timely_spark.graphs.edges import edges_of, nodes_of

#: a distance that is as great or greater
FAR = 2**63 - 1


@algorithm
def bfs(
    edges: Collection,
    roots: Collection,
    *,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node that a root reaches, the least number of edges from a root.

    Takes as many iterations as the greatest distance, of one exchange each. An epoch costs the nodes whose
    distance changes, in the iterations in which it changes, and their edges.

    Args:
        edges: the directed edges. For both directions: ``edges.concat(edges.select(src="dst", dst="src"))``.
        roots: the start nodes, at distance 0, with or without edges.

    **Columns:** in: `src`, `dst`; `node`. Nulls are ignored. Out: ``node``, ``distance`` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hops")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> roots = flow.input("roots", "node long").collection()
        >>> _ = ts.graphs.bfs(edges, roots).changes().capture("out")
        >>> inputs = {"edges": [[(1, 2, 1), (2, 3, 1)], [(1, 3, 1), (1, 2, -1)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, inputs, workers=2)["out"].rows()
        {0: [(1, 0, 1), (2, 1, 1), (3, 2, 1)], 1: [(2, 1, -1), (3, 1, 1), (3, 2, -1)]}

    Raises:
        GraphError: `edges` or `roots` is not a collection.
        SchemaError: a column is missing, or ends and roots are not of one flat type.

    Source: `bfs` of differential dataflow.
    """
    graph = edges_of("bfs", edges, src, dst)
    start = nodes_of("bfs", roots, node, graph)
    return _nearest("bfs", graph.select("src", "dst", weight=pc.scalar(1)), start, name)


@algorithm
def sssp(
    edges: Collection,
    roots: Collection,
    *,
    src: str = "src",
    dst: str = "dst",
    weight: str = "weight",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node that a root reaches, the least sum of weights from a root (Bellman-Ford).

    Integer distances are exact. Distances of doubles are summed edge by edge from the root, as in Dijkstra's
    algorithm, so to the last bit they do not depend on past changes. Takes as many iterations as the shortest
    paths have edges, of one exchange each; an epoch costs the nodes whose distance changes, in the iterations
    in which it changes, and their edges.

    Args:
        edges: the directed edges.
        roots: the start nodes, at distance 0, with or without edges.
        weight: the column of weights: integers or floating ones, finite and at least 0.

    **Columns:** in: `src`, `dst`, `weight`; `node`. Nulls are ignored. Out: ``node``, ``distance``: long, or
    double if the weights are floating.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("roads")
        >>> edges = flow.input("roads", "src string, dst string, km double, diff int").collection(diff="diff")
        >>> roots = flow.input("homes", "node string").collection()
        >>> _ = ts.graphs.sssp(edges, roots, weight="km").changes().capture("out")
        >>> roads = [[("a", "b", 9.5, 1), ("a", "c", 2.0, 1)], [("c", "b", 1.5, 1)]]
        >>> ts.testing.run(flow, {"roads": roads, "homes": [["a"], []]})["out"].rows()
        {0: [('a', 0.0, 1), ('b', 9.5, 1), ('c', 2.0, 1)], 1: [('b', 3.5, 1), ('b', 9.5, -1)]}

    Raises:
        GraphError: `edges` or `roots` is not a collection.
        SchemaError: a column is missing, ends and roots are not of one flat type, or weights no numbers.
        VertexError: when it runs: a weight is null, negative or not finite; a distance in integers, the least
            of a node, is 2^63 - 1 or more (in doubles, one that is too large is infinite).

    Source: the algorithm of Bellman (1958) and Ford (1956).
    """
    graph = weighed("sssp", edges, src, dst, weight)
    start = nodes_of("sssp", roots, node, graph)
    return within_limit(_nearest("sssp", graph, start, name), "distance", ["node"])


def weighed(
    algorithm: str, edges: Collection, src: str, dst: str, weight: str | None, *, signed: bool = False
) -> Collection:
    """The edges with weights as long or double, which are checked at run time; by default each has 1.

    Weights below 0 are refused, unless `signed`.
    """
    graph = edges_of(algorithm, edges, src, dst, weight)
    if weight is None:
        return graph.select("src", "dst", weight=pc.scalar(1))
    kind = graph.schema.field("weight").type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        msg = f"{algorithm}: weight={weight!r} is {kind}"
        hint = "give integers or doubles; cast with select(weight=pc.field('weight').cast('double'))."
        raise SchemaError(msg, where=caller(), hint=hint)
    wide = pa.int64() if pa.types.is_integer(kind) else pa.float64()
    cast = graph.select("src", "dst", weight=pc.field("weight").cast(wide))
    return cast.map_batches(partial(_checked, signed=signed), cast.schema)


def _nearest(algorithm: str, edges: Collection, roots: Collection, name: str | None) -> Collection:
    """The least sums of weights from the roots."""
    edges, roots = edges.together(algorithm, roots)
    kind = edges.schema.field("weight").type
    start = roots.distinct().select("node", distance=pc.scalar(pa.scalar(0, kind)))
    links, longer = edges.arrange("src"), sum_of(kind, "distance", "weight", hops=algorithm == "bfs")

    def hop(near: Collection) -> Collection:
        steps = near.join(links, left="node", right="src")
        farther = steps.select(node="dst", distance=longer)
        return farther.concat(start).min("distance", keys="node")

    return start.iterate(hop, name=name)


def sum_of(kind: pa.DataType, one: str, other: str, *, hops: bool = False) -> pc.Expression:
    """The sum of two distances. Beyond 64 bits it is the greatest integer: another path may be shorter.

    Args:
        hops: whether they are numbers of hops, which stay below that.
    """
    total = pc.add(pc.field(one), pc.field(other))
    if hops or pa.types.is_floating(kind):
        return total
    return pc.if_else(pc.less(total, pc.scalar(0)), pc.scalar(FAR), total)


def within_limit(distances: Collection, column: str, keys: Sequence[str]) -> Collection:
    """The least distances of their keys: it is an error if one of these is beyond 64 bits."""
    if distances.schema.field(column).type != pa.int64():
        return distances
    stream, all_ = distances.stream, distances.stream.schema
    (within,) = stream.then(
        "within_limit",
        [all_],
        vertex=_Within(column, keys),
        keeps={name: name for name in all_.names},
        own=(DIFF,),
    )
    return distances.like(within, once=distances.once)


class _Within(Stateless):
    """Refuse a distance of 2^63 - 1, which stands for all that are greater."""

    one_each = True

    def __init__(self, column: str, keys: Sequence[str]) -> None:
        self.column, self.keys = column, keys

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> set[str]:
        return {*columns, self.column, *self.keys}

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        far = pc.equal(batch.column(self.column), FAR)
        if pc.any(far).as_py():
            of = batch.select(self.keys).filter(far).slice(0, 1).to_pylist()[0]
            msg = f"the least distance, {self.column!r}, of {of} is 2^63 - 1 or more"
            raise SchemaError(msg, hint="cast weights to 'double', or give smaller ones.")
        return (batch,)


def _checked(edges: Any, *, signed: bool) -> Any:
    """The edges, checked."""
    weights = edges.column("weight")
    good = pc.is_finite(weights)
    if not signed:
        good = pc.and_(good, pc.greater_equal(weights, 0))
    if not pc.all(pc.fill_null(good, fill_value=False), min_count=0).as_py():
        bad = edges.filter(pc.invert(pc.fill_null(good, fill_value=False))).slice(0, 1).to_pylist()[0]
        msg = f"edge {bad} has no finite weight" + ("." if signed else " of at least 0.")
        hint = "filter such edges out." if signed else "filter such edges out, or shift the weights."
        raise SchemaError(msg, hint=hint)
    return edges
