"""PageRank: in integers, and as shares of 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    GROUP,
    Logic,
    algorithm,
    caller,
    computed,
    integer,
    numbers,
    reduced,
    word,
)
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs.dynamic_frontier import by_frontier
from timely_spark.graphs.edges import all_nodes, edges_of, nodes_of

#: the greatest unit: sums of many ranks must fit in a long
_LARGEST = 10**9
#: powers of walks are in parts of 2^40; all nodes' together must fit in a long
_POWER = 2.0**40
_MOST_NODES = 1 << 22
#: shares of 1 are summed in parts of 2^62, ranks around `unit` in parts of 2^8
_SHARE, _BITS = 2.0**62, 8
#: the greatest long
_MOST = 2**63 - 1
_DEGREE = f"{DIFF}_degree"


@algorithm
def pagerank(
    edges: Collection,
    iterations: int | None = 20,
    *,
    nodes: Collection | None = None,
    sources: Collection | None = None,
    dangling: Literal["drop", "spread"] = "drop",
    start: Literal["unit", "uniform"] = "unit",
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    damping: float = 0.85,
    unit: int = 1_000_000,
    tolerance: int | None = None,
    name: str | None = None,
) -> Collection:
    """The PageRank of each node of a directed graph: in integers, or as doubles that sum up to 1.

    By default each node starts with rank `unit`, which is the average. In each iteration a node gets
    ``(1 - damping) * unit``, and ``damping * rank / degree`` of the source of each edge to it, both rounded
    down; degree is the source's number of outgoing edges, parallel ones counted. The rank of a node without
    outgoing edges is lost (as in GraphX), so the ranks then sum up to less. With integers, incremental
    results equal those of a computation from scratch exactly.

    With ``start="uniform"`` each of n nodes starts with 1 / n, and ranks are doubles. With
    ``dangling="spread"`` each iteration spreads the ranks of nodes without outgoing edges over all nodes, so
    the sum of ranks stays the same. With both this is PageRank as LDBC Graphalytics defines it. In either
    case walks are counted in parts of 2^40 and added as integers, so these results too are those of a
    computation from scratch to the last bit, for at most four million nodes. With a damping of 0.85 the
    relative error is at most 2e-12 * iterations^2 * the most edges that leave a node (and one in ranks
    around `unit`, which are rounded down).

    With ``iterations=None`` ranks start at ``(1 - damping) * unit`` and only grow, and the loop ends when
    nothing changes. With ``damping=5/6, unit=6000`` as well, this is timely's example: a thousand surfers
    start at each node, and 5/6 of those at a node move on. (Timely's example drops changes below 6, so its
    ranks depend on past changes; here rounding down ends the loop, and ranks do not.)

    With a `tolerance` as well (Dynamic Frontier) a rank is computed again only if it would move by more than
    the tolerance, or for a node with many edges by more than ``1 / (1 - damping) / 1000`` for each of them.
    At the end of each epoch all ranks together are off the exact ones (those of the linear system, without
    any rounding) by at most ``(nodes * tolerance + edges) / (1 - damping)``: on average by less than 7
    tolerances with a damping of 0.85, and by far less than that in practice. What is left over is known
    exactly and counts later, so errors do not add up over epochs. Ranks then depend on how the changes come
    in epochs, but neither on the number of workers nor, if epochs come one after the other, on the schedule.
    While an earlier epoch is in flight, a worker starts the next one later than others may, and computes in
    one iteration what they compute in two: such ranks differ from these, within the same bound.

    Takes ``iterations`` iterations; each costs the ranks that change in it, and their edges. An edge changes
    all ranks in which it makes a difference of one. Among 10,000 nodes with 50,000 edges these are nearly
    all ranks with the default unit, which costs up to as much as a computation from scratch; with
    ``unit=1000`` they are a tenth. With ``iterations=None`` there are as many iterations as a rank takes to
    its last step, each of one exchange. With a `tolerance` the nodes are arrays, so a load costs what a plain
    loop over arrays costs: some 100 ns an edge and iteration. There are
    ``log(tolerance / unit) / log(damping)`` iterations. An epoch costs the ranks that move by a tolerance,
    and their edges, and writes the state: some 50 bytes an edge. With "uniform" or "spread" an iteration has
    two exchanges, and an epoch also costs ``iterations`` records of each node if the number
    of nodes, or what is spread, changes.

    Args:
        edges: the directed edges.
        iterations: the number of iterations; None means until nothing changes.
        nodes: further nodes, with or without edges.
        sources: the ranks are personalised: walks begin at these nodes only. What is said above of all nodes
            then holds for sources: each starts with `unit`, or 1 / n of n sources, and so on.
            Nodes that no source reaches have no row. Not with `nodes` or a `tolerance`.
        dangling: what becomes of the rank of nodes without outgoing edges: "drop" or "spread".
        start: "unit", for integers, or "uniform", for doubles.
        damping: the part of a rank that moves on, below 1; rounded to the nearest fraction with a denominator
            of at most 1000.
        unit: the average rank, if they are integers; at most a billion.
        tolerance: by how much a rank may be off what its node gets, in the same units; with
            ``iterations=None``, outside loops.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, ``rank``: long,
    or with "uniform" double.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("ranks")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.pagerank(edges).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 1, 1)], [(3, 1, 1)]]})["out"].rows()
        {0: [(1, 1000000, 1), (2, 1000000, 1)], 1: [(1, 1000000, -1), (1, 1441648, 1), (2, 1000000, -1),
         (2, 1408346, 1), (3, 150000, 1)]}

    Raises:
        GraphError: `edges`, `nodes` or `sources` is not a collection, or does not go with another argument;
            `iterations`, `damping`, `unit` or `tolerance` is out of range; `dangling` or `start` is another
            word, or needs a number of iterations.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.
        VertexError: when it runs: a rank is too large, or there are too many nodes; with a `tolerance`, an
            edge was removed more often than added.

    Source: LDBC Graphalytics specification 1.0, section 2.3.3; with a tolerance Ohsaka et al., Efficient
    PageRank tracking in evolving networks, KDD 2015, and Sahu, DF* PageRank, 2024.
    """
    graph = edges_of("pagerank", edges, src, dst)
    if iterations is not None:
        iterations = integer("iterations", iterations, step="pagerank", error=GraphError)
    unit = integer("unit", unit, most=_LARGEST, step="pagerank", error=GraphError)
    share = _fraction(damping)
    shares = _shares(iterations, dangling, start)
    tolerance = _check_tolerance(tolerance, unit, iterations)
    every = begins = all_nodes("pagerank", graph, nodes if sources is None else sources, node)
    if sources is not None:
        _check_sources(nodes, tolerance)
        graph, begins = graph.together("pagerank", nodes_of("pagerank", sources, node, graph).distinct())
    if tolerance is not None:
        return by_frontier(graph, every, unit, share.as_integer_ratio(), tolerance, name=name)
    by_source = graph.arrange("src")
    if shares and iterations is not None:
        powers = _powers(begins, by_source, iterations, float(damping))
        spread = powers.semijoin(every.antijoin(graph, left="node", right="src"), on="node", unique=True)
        held = powers.where(pc.scalar(False)) if dangling == "drop" else spread  # noqa: FBT003 - none
        scale = None if start == "uniform" else unit
        ranks = _weighed(powers, held, begins, partial(_weights, iterations, float(damping), scale))
        rank = pc.field("rank")
        as_share = rank.cast(pa.float64(), safe=False) / pc.scalar(_SHARE)
        rounded = as_share if start == "uniform" else pc.shift_right(rank, pc.scalar(_BITS))
        return ranks.select("node", rank=rounded, name=name)
    # a rank is the multiplicity of its node, so that a change of it is one record, and sums need no reduction
    least = unit - unit * share.numerator // share.denominator
    base = _multiplied(begins, least)
    first = base if iterations is None else _multiplied(begins, unit)
    degrees = graph.select(node="src", degree=pc.scalar(1))
    logic = _Shares(("node",), share)

    def walk(ranks: Collection) -> Collection:
        both = ranks.select("node", degree=pc.scalar(0)).concat(degrees)
        shares = reduced("shares", both, logic, [], name=None)
        received = shares.join(by_source, left="node", right="src").select(node="dst")
        return received.concat(base).consolidate()

    # the reduction in the next iteration consolidates
    ranks = first.iterate(walk, max_iterations=iterations, on_limit="return", consolidate=False).consolidate()
    return ranks.count("rank", keys="node", name=name)


def _multiplied(collection: Collection, factor: int) -> Collection:
    """The records with their multiplicities multiplied."""
    diff = pc.multiply(pc.field(DIFF), pc.scalar(factor))
    return collection.like(computed(collection.stream, *collection.schema.names, {DIFF: diff}, own=(DIFF,)))


@dataclass(frozen=True, slots=True)
class _Shares(Logic):
    """The share of each edge of a node, as the multiplicity of the node.

    The rank is the multiplicity of the records whose `degree` is 0, the degree that of those where it is 1.
    Both are weights, which add up: a node is one row, whatever its degree.
    """

    share: Fraction

    def partial(self, changes: pa.Table) -> pa.Table:
        """The ranks and degrees as weights."""
        degrees = pc.multiply(changes["degree"], changes[DIFF])
        result = changes.select(self.keys).append_column(DIFF, pc.subtract(changes[DIFF], degrees))
        return result.append_column(_DEGREE, degrees)

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = inputs.filter(pc.greater(inputs[_DEGREE], 0))
        ranks, degrees = numbers(inputs, DIFF), numbers(inputs, _DEGREE)
        if (np.abs(ranks) > _MOST // max(1, self.share.numerator)).any():
            msg = f"pagerank: a rank is too large, as {np.abs(ranks).max():,}"
            raise SchemaError(msg, hint="give a smaller unit.")
        # one division after the other is that by their product, which may be too large
        moved = ranks * self.share.numerator // degrees // self.share.denominator
        return pa.table({GROUP: inputs[GROUP], DIFF: moved})


# A rank after n iterations is linear in what all nodes get at once. Let c(i) be what each gets in iteration i
# besides the ranks that move to it, and power(j) the damped walks of j edges to a node, from anywhere:
#     rank(n) = c(n) power(0) + c(n - 1) power(1) + ... + c(1) power(n - 1) + start power(n)
# The powers do not depend on what is spread, nor on the number of nodes. So a change costs the powers near it
# in the loop; the weights c are computed behind it, from the powers' sums at the nodes whose rank is spread.


def _powers(nodes: Collection, by_source: Collection, iterations: int, damping: float) -> Collection:
    """For each node, and each number of steps up to `iterations`, its damped walks: `node, step, power`."""
    # each edge with the degree of its source, so that an iteration is one join and one reduction
    links = by_source.join(by_source.count("degree"), on="src").arrange("src")
    one = nodes.select("node", step=pc.scalar(0), power=pc.scalar(int(_POWER)))
    power, degree = (pc.field(c).cast(pa.float64(), safe=False) for c in ("power", "degree"))
    moved = pc.round(power * (pc.scalar(damping) / degree)).cast(pa.int64())

    def step(powers: Collection) -> Collection:
        walked = powers.join(links, left="node", right="src")
        walked = walked.select(node="dst", step=pc.field("step") + pc.scalar(1), power=moved)
        return walked.concat(one).sum("power", keys=["node", "step"])

    return one.iterate(step, max_iterations=iterations, on_limit="return")


def _weighed(
    powers: Collection, held: Collection, nodes: Collection, weights: Callable[[pa.Table], pa.Table]
) -> Collection:
    """The ranks: the sums of the powers, weighed by their steps."""
    size = nodes.count("power", keys=[]).select("power", step=pc.scalar(-1))
    sums = held.sum("power", keys="step").concat(size.select("step", "power"))
    sums = sums.select("step", "power", all=pc.scalar(0))
    of_steps = sums.reduce_batches(weights, "step long, weight double", keys="all").select("step", "weight")
    power = pc.field("power").cast(pa.float64(), safe=False)
    part = pc.round(power * pc.field("weight")).cast(pa.int64())
    return powers.join(of_steps, on="step").select("node", rank=part).sum("rank", keys="node")


def _weights(iterations: int, damping: float, unit: int | None, powers: pa.Table) -> pa.Table:
    """The weight of the powers of each step.

    `powers` has the number of nodes as step -1, and for each step the powers at nodes whose rank is spread.
    """
    by_step = dict(zip(powers["step"].to_pylist(), powers["power"].to_pylist(), strict=True))
    n = by_step.get(-1, 0)
    if n > _MOST_NODES:
        msg = f"pagerank: {n:,} nodes"
        hint = f"ranks as doubles, or with dangling='spread', are for at most {_MOST_NODES:,} nodes."
        raise SchemaError(msg, hint=hint)
    if not n:
        return pa.table({"all": powers["all"][:0], "step": np.zeros(0, np.int64), "weight": np.zeros(0)})
    held = np.array([by_step.get(step, 0) / _POWER / n for step in range(iterations)])
    weights = np.array([1.0])
    for _ in range(iterations):  # ranks relative to the average
        each = 1.0 - damping + damping * float(sum((weights * held[: len(weights)]).tolist()))
        weights = np.append(each, weights)
    scale = _SHARE / n if unit is None else float(unit << _BITS)
    return pa.table(
        {
            "all": pa.repeat(powers["all"][0], len(weights)),
            "step": np.arange(len(weights)),
            "weight": weights / _POWER * scale,
        }
    )


def _shares(iterations: int | None, dangling: Any, start: Any) -> bool:
    """Whether ranks are computed from powers; checks the words."""
    word("dangling", dangling, ("drop", "spread"), step="pagerank", error=GraphError)
    word("start", start, ("unit", "uniform"), step="pagerank", error=GraphError)
    shares: bool = dangling == "spread" or start == "uniform"
    if shares and iterations is None:
        msg = f"pagerank: iterations=None, dangling={dangling!r}, start={start!r}"
        raise GraphError(msg, where=caller(), hint="give a number of iterations.")
    return shares


def _check_sources(nodes: Any, tolerance: int | None) -> None:
    for argument, value in (("nodes", nodes), ("tolerance", tolerance)):
        if value is not None:
            msg = f"pagerank: sources= with {argument}="
            hint = f"leave out {argument}: the nodes that sources reach have ranks, without a tolerance."
            raise GraphError(msg, where=caller(), hint=hint)


def _check_tolerance(tolerance: Any, unit: int, iterations: int | None) -> int | None:
    if tolerance is None:
        return None
    if iterations is not None:
        msg = f"pagerank: tolerance={tolerance!r}, iterations={iterations!r}"
        hint = "give iterations=None: with a tolerance the loop ends by itself."
        raise GraphError(msg, where=caller(), hint=hint)
    return integer("tolerance", tolerance, most=unit, step="pagerank", error=GraphError)


def _fraction(damping: Any) -> Fraction:
    """The damping as a fraction."""
    valid = isinstance(damping, Real) and 0 <= float(damping) < 1
    share = Fraction(float(damping)).limit_denominator(1000) if valid else Fraction(1)
    if share == 1:
        msg = f"pagerank: damping={damping!r}"
        raise GraphError(msg, where=caller(), hint="give a damping of at least 0 and at most 0.999.")
    return share
