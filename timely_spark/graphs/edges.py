"""The arguments of the algorithms: a collection of edges, and a collection of nodes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import caller, check_collection, check_columns, describe
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError


def edges_of(algorithm: str, edges: Any, src: str, dst: str, weight: str | None = None) -> Collection:
    """The edges as columns `src`, `dst`, and `weight` if given, without edges that have a null end.

    The weight is a column's name, or an expression.
    """
    check_collection(algorithm, edges)
    if weight is not None and weight not in edges.schema.names and not weight.isidentifier():
        edges = edges.select({"src": src, "dst": dst, "weight": weight})
        src, dst, weight = "src", "dst", "weight"
    columns = {"src": src, "dst": dst} | ({} if weight is None else {"weight": weight})
    check_columns(algorithm, edges.schema, columns, keys=True)
    kinds = [edges.schema.field(end).type for end in (src, dst)]
    if kinds[0] != kinds[1]:
        msg = (
            f"{algorithm}: src={src!r} and dst={dst!r} are {' and '.join(map(str, kinds))}; the edges have "
            f"({describe(edges.schema)})"
        )
        hint = "name a column for each end, of one type; cast with select(dst=pc.field('dst').cast(...))."
        raise SchemaError(msg, where=caller(), hint=hint)
    valid = pc.is_valid(pc.field("src")) & pc.is_valid(pc.field("dst"))
    result: Collection = edges.select(columns).where(valid)
    result.checks_removals = True
    return result


def nodes_of(algorithm: str, nodes: Any, node: str, edges: Collection, **more: str) -> Collection:
    """Nodes like those of the edges as a column `node`, and further columns by new names, without nulls."""
    check_collection(algorithm, nodes)
    check_columns(algorithm, nodes.schema, {"node": node, **more}, keys=True)
    own, kind = nodes.schema.field(node).type, edges.schema.field("src").type
    if own != kind:
        msg = f"{algorithm}: node={node!r} is {own}, the ends of the edges are {kind}"
        raise SchemaError(msg, where=caller(), hint="cast one with select(node=pc.field('node').cast(...)).")
    result: Collection = nodes.select({"node": node, **more})
    for column in result.schema.names:
        result = result.where(pc.is_valid(pc.field(column)))
    return result


def all_nodes(algorithm: str, edges: Collection, nodes: Any, node: str) -> Collection:
    """The distinct nodes of the edges, and further nodes if they are given."""
    ends = ends_of(edges)
    if nodes is None:
        return ends
    ends, more = ends.together(algorithm, nodes_of(algorithm, nodes, node, edges))
    return ends.concat(more).distinct()


def with_nodes(algorithm: str, edges: Collection, nodes: Any, node: str) -> Collection:
    """The edges, and a self-loop at each further node, which to an algorithm only says that it exists."""
    if nodes is None:
        return edges
    edges, more = edges.together(algorithm, nodes_of(algorithm, nodes, node, edges).distinct())
    return edges.concat(more.select(src="node", dst="node"))


def ends_of(edges: Collection) -> Collection:
    """The distinct nodes of the edges."""
    return edges.select(node="src").concat(edges.select(node="dst")).distinct()


def links_of(edges: Collection) -> Collection:
    """The distinct edges of the undirected graph, each in both directions, without self-loops."""
    return edges.concat(reversed_of(edges)).where(differ(edges, "src", "dst")).distinct()


def reversed_of(edges: Collection) -> Collection:
    """The edges in the opposite direction."""
    return edges.select(src="dst", dst="src")


def magnitude(number: pc.Expression) -> pc.Expression:
    """The logarithm to base 2 of integers, rounded down; 0 for integers below 1.

    Near a power of 2 above 2^53 it may be 1 too large, as doubles are sparse there.
    """
    size = pc.log2(number.cast(pa.float64(), safe=False))
    return pc.floor(pc.max_element_wise(size, pc.scalar(0.0), skip_nulls=True)).cast(pa.int64())


def lesser(nodes: Collection, a: str, b: str) -> pc.Expression:
    """Whether one column of nodes is less than another; NaN is the greatest."""
    less = pc.field(a) < pc.field(b)
    if pa.types.is_floating(nodes.schema.field(a).type):
        less |= ~pc.is_nan(pc.field(a)) & pc.is_nan(pc.field(b))
    return less


def ends_in_order(edges: Collection) -> dict[str, pc.Expression]:
    """The ends of each edge as `a` and `b`, the lesser one first."""
    forward, source, target = lesser(edges, "src", "dst"), pc.field("src"), pc.field("dst")
    return {"a": pc.if_else(forward, source, target), "b": pc.if_else(forward, target, source)}


def differ(nodes: Collection, a: str, b: str) -> pc.Expression:
    """Whether two columns of nodes differ; all NaN are one node."""
    unlike = pc.field(a) != pc.field(b)
    if pa.types.is_floating(nodes.schema.field(a).type):
        unlike &= ~(pc.is_nan(pc.field(a)) & pc.is_nan(pc.field(b)))
    return unlike
