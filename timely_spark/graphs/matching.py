"""Stable matchings of a bipartite graph with preferences."""

from __future__ import annotations

import pyarrow.compute as pc

from timely_spark.authors import algorithm, caller, check_collection, check_columns
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError


@algorithm
def stable_matching(
    edges: Collection,
    *,
    src: str = "src",
    dst: str = "dst",
    src_rank: str = "src_rank",
    dst_rank: str = "dst_rank",
    name: str | None = None,
) -> Collection:
    """A matching in which no two nodes prefer each other to those they are matched with (stable marriage).

    An edge leads from a node on one side to one on the other, and has the rank that each gives the other: a
    lesser one is preferred, and of equal ones the edge with the lesser values. A name may be on both sides:
    the node `src` and the node `dst` of that name are different. Of all stable matchings this is the best one
    for the `src` side. A node that is in no pair stays alone.

    Deferred acceptance: in each iteration every `src` node proposes to the first one left on its list, every
    `dst` node turns down all but the best proposal, and these edges are removed. Takes as many iterations as
    there are rounds of refusals (at worst one for each edge), of three exchanges each. An epoch costs the
    edges that are removed in another iteration than before.

    Args:
        edges: the possible pairs. Equal records count as one.

    **Columns:** in: `src`, `dst`, of any key type, and `src_rank`, `dst_rank`, of any comparable one. Edges
    with nulls are ignored. Out: ``src``, ``dst``.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("dance")
        >>> schema = "src string, dst string, src_rank long, dst_rank long, diff long"
        >>> pairs = flow.input("pairs", schema).collection(diff="diff")
        >>> _ = ts.graphs.stable_matching(pairs).changes().capture("out")
        >>> both = [("a", "x", 1, 2, 1), ("b", "x", 1, 1, 1), ("a", "y", 2, 1, 1)]
        >>> ts.testing.run(flow, {"pairs": [both, [("b", "x", 1, 1, -1)]]}, workers=2)["out"].rows()
        {0: [('a', 'y', 1), ('b', 'x', 1)], 1: [('a', 'x', 1), ('a', 'y', -1), ('b', 'x', -1)]}

    Raises:
        GraphError: `edges` is not a collection.
        SchemaError: a column is missing, nested, or named twice.

    Source: Gale and Shapley, College admissions and the stability of marriage, 1962; as a loop, the example
    of differential dataflow.
    """
    check_collection("stable_matching", edges)
    columns = {"src": src, "dst": dst, "src_rank": src_rank, "dst_rank": dst_rank}
    check_columns("stable_matching", edges.schema, columns, keys=True)
    if len({*columns.values()}) < len(columns):
        msg = f"stable_matching: src, dst, src_rank and dst_rank are {[*columns.values()]}"
        raise SchemaError(msg, where=caller(), hint="name a column for each.")
    possible = edges.select(src=src, dst=dst, first=src_rank, second=dst_rank)
    for column in possible.schema.names:
        possible = possible.where(pc.is_valid(pc.field(column)))

    def refuse(left: Collection) -> Collection:
        proposed = left.top_k(1, "first", keys="src", descending=False)
        accepted = proposed.top_k(1, "second", keys="dst", descending=False).select(*left.schema.names)
        return left.concat(proposed.negate(), accepted)

    left = possible.distinct().iterate(refuse)
    return left.top_k(1, "first", keys="src", descending=False).select("src", "dst", name=name)
