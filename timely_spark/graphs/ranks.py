"""PageRank in integers."""

from __future__ import annotations

from fractions import Fraction
from numbers import Real
from typing import Any

import pyarrow.compute as pc

from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graph import caller, composed, locate_errors
from timely_spark.graphs.edges import edges_of, ends_of

#: the greatest unit: sums of many ranks must fit in a long
_LARGEST = 10**9


@locate_errors
@composed
def pagerank(
    edges: Collection,
    iterations: int | None = 20,
    *,
    src: str = "src",
    dst: str = "dst",
    damping: float = 0.85,
    unit: int = 1_000_000,
    name: str | None = None,
) -> Collection:
    """The PageRank of each node of a directed graph, in integers.

    Each node starts with rank `unit`, which is the average. In each iteration a node gets
    ``(1 - damping) * unit``, and ``damping * rank / degree`` of the source of each edge to it, both rounded
    down; degree is the source's number of outgoing edges, parallel ones counted. The rank of a node without
    outgoing edges is lost (as in GraphX), so the ranks then sum up to less. With integers, incremental
    results equal those of a computation from scratch exactly.

    With ``iterations=None`` ranks start at ``(1 - damping) * unit`` and only grow, and the loop ends when
    nothing changes. With ``damping=5/6, unit=6000`` as well, this is timely's example: a thousand surfers
    start at each node, and 5/6 of those at a node move on. (Timely's example drops changes below 6, so its
    ranks depend on past changes; here rounding down ends the loop, and ranks do not.)

    Takes ``iterations`` iterations; each costs the ranks that change in it, and their edges. An edge changes
    all ranks in which it makes a difference of one: of 10,000 nodes with 50,000 edges nearly all with the
    default unit, which costs more than a computation from scratch; a tenth of them with ``unit=1000``.

    Args:
        edges: the directed edges.
        iterations: the number of iterations; None: until nothing changes.
        damping: the part of a rank that moves on, below 1; rounded to the nearest fraction with a denominator
            of at most 1000.
        unit: the average rank; at most a billion.

    **Columns:** in: `src`, `dst`, of any key type; edges with a null end are ignored. Out: ``node``,
    ``rank`` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("ranks")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.pagerank(edges).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 1, 1)], [(3, 1, 1)]]})["out"].rows()
        {0: [(1, 1000000, 1), (2, 1000000, 1)], 1: [(1, 1000000, -1), (1, 1441648, 1), (2, 1000000, -1),
         (2, 1408346, 1), (3, 150000, 1)]}

    Raises:
        GraphError: `edges` is no collection; `iterations`, `damping` or `unit` is out of range.
        SchemaError: a column is missing, or the ends are not of one flat type.
        VertexError: when it runs: a rank is too large.
    """
    graph = edges_of("pagerank", edges, src, dst)
    share = _fraction(iterations, damping, unit)
    nodes, by_source = ends_of(graph), graph.arrange("src")
    # each edge with the degree of its source, so that an iteration is one join and one reduction
    links = by_source.join(by_source.count("degree"), on="src").arrange("src")
    least = unit - unit * share.numerator // share.denominator
    base = nodes.select("node", rank=pc.scalar(least))
    start = nodes.select("node", rank=pc.scalar(unit)) if iterations is not None else base
    rank, degree = pc.field("rank"), pc.field("degree")
    per_edge = pc.divide(
        pc.multiply_checked(rank, pc.scalar(share.numerator)),
        pc.multiply(degree, pc.scalar(share.denominator)),
    )

    def walk(ranks: Collection) -> Collection:
        received = ranks.join(links, left="node", right="src").select(node="dst", rank=per_edge)
        return received.concat(base).sum("rank", keys="node")

    return start.iterate(walk, max_iterations=iterations, name=name)


def _fraction(iterations: Any, damping: Any, unit: Any) -> Fraction:
    """The damping as a fraction."""
    numbers = iterations is None or (type(iterations) is int and iterations >= 1)
    numbers = numbers and type(unit) is int and 1 <= unit <= _LARGEST and isinstance(damping, Real)
    share = Fraction(damping).limit_denominator(1000) if numbers and 0 <= damping < 1 else Fraction(1)
    if share == 1:
        msg = f"pagerank: iterations={iterations!r}, damping={damping!r}, unit={unit!r}"
        hint = (
            "damping is at least 0 and at most 0.999, iterations and unit are whole numbers from 1 on, and "
            f"unit at most {_LARGEST:,}."
        )
        raise GraphError(msg, where=caller(), hint=hint)
    return share
