"""How much a node counts: PageRank in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from numbers import Real
from typing import Any

import pyarrow.compute as pc

from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graph import caller, composed, told
from timely_spark.graphs.edges import edges_of, ends_of

#: of a unit, so that ranks of many nodes together are still numbers
_LARGEST = 10**9


@told
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
    """The PageRank of each node of a directed graph, in whole numbers.

    The convention: the average rank is `unit`, and there each node begins. In each iteration a node gets
    ``(1 - damping) * unit``, and from each edge that leads to it ``damping * rank / degree`` of the node it
    comes from, both rounded down, where degree is the number of edges that leave that node, parallel ones
    counted. What a node without edges that leave it has, goes nowhere (as in GraphX): the ranks then add up
    to less. Whole numbers make increments agree exactly with a computation from the beginning.

    With ``iterations=None`` it goes on until nothing changes, from ``(1 - damping) * unit`` upwards, so that
    it always ends. With ``damping=5/6, unit=6000`` as well, that is timely's example: a thousand surfers
    start at each node, and 5/6 of those at a node go on. (There a change of less than 6 is not applied, so
    ranks depend on what came before; here rounding down ends it, and they do not.)

    Takes ``iterations`` iterations; each costs the ranks that change in it, and their edges. An edge
    changes ranks as far as it makes a difference of one: among 10,000 nodes with 50,000 edges that is
    nearly all ranks in millionths, which costs more than to begin anew; a tenth of them with ``unit=1000``.

    Args:
        edges: the edges.
        iterations: how many; None: until nothing changes.
        src: the column of the end where they begin.
        dst: the column of the end where they lead; of the same type.
        damping: which part of a rank goes on, below 1; taken as the nearest fraction with a denominator of
            at most 1000.
        unit: the average rank; at most a billion.
        name: the loop's name; those of the parts begin with it.

    **Columns:** in: `src`, `dst`, any that can be keys; an edge with a null end is none. Out: ``node``,
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
        GraphError: `edges` is no collection; `iterations`, `damping` or `unit` make no sense.
        SchemaError: a column is missing, or the ends are not of one flat type.
        VertexError: when it runs: a rank is too large.
    """
    graph = edges_of("pagerank", edges, src, dst)
    share = _fraction(iterations, damping, unit)
    links = graph.arrange("src")
    degrees, nodes = links.count("degree"), ends_of(graph)
    least = unit - unit * share.numerator // share.denominator
    base = nodes.select("node", rank=pc.scalar(least))
    start = nodes.select("node", rank=pc.scalar(unit)) if iterations is not None else base
    rank, degree = pc.field("rank"), pc.field("degree")
    dealt = pc.divide(
        pc.multiply_checked(rank, pc.scalar(share.numerator)),
        pc.multiply(degree, pc.scalar(share.denominator)),
    )

    def walk(ranks: Collection) -> Collection:
        shares = ranks.join(degrees, left="node", right="src").select("node", rank=dealt)
        onward = shares.join(links, left="node", right="src").select(node="dst", rank="rank")
        return onward.concat(base).sum("rank", keys="node")

    return start.iterate(walk, max_iterations=iterations, name=name)


def _fraction(iterations: Any, damping: Any, unit: Any) -> Fraction:
    """The damping as a fraction.

    Raises:
        GraphError: an argument makes no sense.
    """
    numbers = iterations is None or (type(iterations) is int and iterations >= 1)
    numbers = numbers and type(unit) is int and 1 <= unit <= _LARGEST and isinstance(damping, Real)
    share = Fraction(damping).limit_denominator(1000) if numbers and 0 <= damping < 1 else Fraction(1)
    if share == 1:
        msg = (
            f"pagerank ({caller()}): iterations={iterations!r}, damping={damping!r}, unit={unit!r}. "
            "Hint: damping is at least 0 and at most 0.999, iterations and unit are whole numbers from 1 on, "
            f"and unit at most {_LARGEST:,}."
        )
        raise GraphError(msg)
    return share
