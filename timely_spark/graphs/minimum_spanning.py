"""Minimum spanning forests, by Borůvka's algorithm."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import algorithm, flat
from timely_spark.differential import Collection
from timely_spark.graphs.affected import ordered
from timely_spark.graphs.edges import differ
from timely_spark.graphs.paths import weighed


@algorithm
def minimum_spanning_forest(
    edges: Collection,
    *,
    weight: str | None = "weight",
    src: str = "src",
    dst: str = "dst",
    name: str | None = None,
) -> Collection:
    """The edges of least total weight that connect what the edges of an undirected graph connect.

    Edges of equal weight are in the order of their lesser ends, then of their other ends. So the forest is
    unique: it depends on the graph alone, not on past changes or the number of workers. Of parallel edges the
    lightest counts, self-loops are ignored. The forest has the components of the graph:
    ``connected_components(forest)`` has a row for each node that has an edge to another.

    In each iteration every component takes its lightest edge to another one; these edges belong to the
    forest, and the components that they connect become one (an inner loop, in which each component
    takes the parent of its parent until that is the root). Takes at most log2(n) iterations of 5 exchanges,
    each with at most log2(n) inner ones of 1. An epoch costs the components that take another edge, or become
    part of another one, in the iterations in which they do, and their edges; an edge that is too heavy to be
    taken costs itself in the iterations until its ends are connected.

    Args:
        edges: the edges, in either direction or both.
        weight: the column of weights, which may be negative; None means all are 1.

    **Columns:** in: `src`, `dst`, of any key type, `weight`; edges with a null end are ignored. Out: ``src``,
    ``dst``, of their type, the lesser end first; ``weight``: long, or double if the weights are floating.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("forest")
        >>> edges = flow.input("edges", "src long, dst long, weight long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.minimum_spanning_forest(edges).changes().capture("out")
        >>> changes = [[(1, 2, 5, 1), (2, 3, 7, 1), (3, 1, 9, 1)], [(2, 3, 7, -1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [(1, 2, 5, 1), (2, 3, 7, 1)], 1: [(1, 3, 9, 1), (2, 3, 7, -1)]}

    Raises:
        GraphError: `edges` is not a collection.
        SchemaError: a column is missing, the ends are not of one flat type, or weights no numbers.
        VertexError: when it runs: a weight is null or not finite.

    Source: Borůvka, O jistém problému minimálním, 1926.
    """
    graph = weighed("minimum_spanning_forest", edges, src, dst, weight, signed=True)
    kind = graph.schema.field("src").type
    fields = [("low", kind), ("high", kind), ("weight", graph.schema.field("weight").type)]
    lightest = graph.map_batches(_ordered, pa.schema(fields)).min("weight", keys=["low", "high"])
    both = lightest.select("weight", "low", "high", a="low", b="high")
    both = both.concat(lightest.select("weight", "low", "high", a="high", b="low"))
    links = both.where(differ(both, "a", "b"))

    loop = links.scope.inner()
    left, nothing = links.variable(loop), pc.scalar(False)  # noqa: FBT003 - an expression
    forest = lightest.where(nothing).variable(loop)
    # The first edge of each component by weight and ends. All compare in one order, so the only cycles are
    # two components that take the same edge: the one without it becomes the root.
    first = left.top_k(1, "weight", keys="a", descending=False)
    taken = first.top_k(1, "a", keys=["low", "high"], descending=False)
    parents = taken.select("a", "b")
    roots = first.select("a", "b").concat(parents.negate()).select("a", b="a")
    root = parents.concat(roots).iterate(_jump).select(end="a", root="b").arrange("end")
    moved = left.join(root, left="a", right="end").select("weight", "low", "high", "b", a="root")
    moved = moved.join(root, left="b", right="end").select("weight", "low", "high", "a", b="root")
    left.set(moved.where(differ(moved, "a", "b")).select(*left.schema.names))
    forest.set(forest.concat(taken.select("low", "high", "weight")))
    return forest.leave().select("weight", src="low", dst="high").select("src", "dst", "weight", name=name)


def _jump(parents: Collection) -> Collection:
    """For each component its parent's parent; a root is its own parent."""
    above = parents.select(above="a", root="b")
    return parents.join(above, left="b", right="above").select("a", b="root")


def _ordered(edges: pa.Table) -> pa.Table:
    """The edges with the lesser end first."""
    low, high = ordered(flat(edges.column("src")), flat(edges.column("dst")))
    return pa.table({"low": low, "high": high, "weight": edges.column("weight")})
