"""Greedy choices in the order of hashed priorities: maximal independent sets, and colourings.

A sequential greedy algorithm looks at the nodes one by one, and a node's choice depends on its neighbours
that came before it. Here a node chooses as soon as these have chosen, and never again; so the result is that
of the sequential algorithm, and the priorities alone decide it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    Groups,
    Hashes,
    Indices,
    Mask,
    adjacent,
    algorithm,
    flat,
    hashes,
    integer,
    numbers,
)
from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graphs.edges import all_nodes, edges_of

_CHOICE = "choice"
#: in place of a choice: a row for each earlier neighbour that must choose first, and one for the node
_WAITS = -1
_OUT, _IN = 0, 1


@algorithm
def maximal_independent_set(
    edges: Collection,
    *,
    nodes: Collection | None = None,
    seed: int = 0,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """A set of nodes without an edge between two of them, to which no further node can be added.

    The nodes have a random order: by a hash of the node and `seed`, then by the node. The set is the
    lexicographically first in that order, which is also the result of the sequential greedy algorithm: take
    the first node, drop its neighbours, and go on. So it depends on the graph alone, not on past changes or
    the number of workers. The graph is undirected; parallel edges count as one, self-loops are ignored.

    A node decides once all its earlier neighbours have, or one of them is in the set. Takes as many
    iterations as the longest chain of such decisions, O(log n) with high probability, of one exchange each.
    An epoch costs the nodes that decide otherwise or in another iteration, and their edges: on average few.

    Args:
        edges: the edges, in either direction or both.
        nodes: further nodes; one without edges is in the set.
        seed: another seed is another order.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, of their type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("independent")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.maximal_independent_set(edges).changes().capture("out")
        >>> star = [(0, 1, 1), (0, 2, 1), (0, 3, 1)]
        >>> ts.testing.run(flow, {"edges": [star, [(3, 3, 1), (0, 3, -1)]]}, workers=2)["out"].rows()
        {0: [(1, 1), (2, 1), (3, 1)], 1: []}

    Raises:
        GraphError: `edges` or `nodes` is not a collection; `seed` is not an integer.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: Blelloch, Fineman and Shun, Greedy sequential maximal independent set and matching are parallel on
    average, SPAA 2012; Fischer and Noever, SODA 2018, for the number of iterations.
    """
    every, links = _in_order("maximal_independent_set", edges, nodes, seed, src, dst, node)
    chosen = _chosen(every, links, _joins, name)
    return chosen.where(pc.field(_CHOICE) == _IN).select("node")


@algorithm
def colouring(
    edges: Collection,
    *,
    nodes: Collection | None = None,
    seed: int = 0,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node a colour, such that neighbours have different ones: 0, 1, 2, ...

    The nodes have a random order: by a hash of the node and `seed`, then by the node. Each node has the least
    colour that no earlier neighbour has, as in the sequential greedy algorithm. So a node has at most as many
    colours before it as neighbours, and the colouring depends on the graph alone, not on past changes or the
    number of workers. The graph is undirected; parallel edges count as one, self-loops are ignored.

    A node chooses once all its earlier neighbours have. Takes as many iterations as the longest path on
    which each node comes after the one before: with a random order, and a bounded number of neighbours,
    O(log n). An iteration has one exchange. An epoch costs the nodes with another colour, or one chosen in
    another iteration, and their edges.

    Args:
        edges: the edges, in either direction or both.
        nodes: further nodes; one without edges has colour 0.
        seed: another seed is another order.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, of their type;
    ``colour`` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("colours")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.colouring(edges).changes().capture("out")
        >>> rows = ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1), (3, 1, 1)]]})["out"].rows()
        >>> sorted(colour for _, colour, _ in rows[0])
        [0, 1, 2]

    Raises:
        GraphError: `edges` or `nodes` is not a collection; `seed` is not an integer.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: Jones and Plassmann, A parallel graph coloring heuristic, SIAM J. Scientific Computing 1993.
    """
    every, links = _in_order("colouring", edges, nodes, seed, src, dst, node)
    return _chosen(every, links, _least_free, name).select("node", colour=_CHOICE)


def priorities(nodes: pa.Table, column: str, seed: int) -> Hashes:
    """The priority of each node; equal ones are ordered by the nodes."""
    seeds = pa.table({"seed": np.array([seed % 2**64], np.uint64)})
    return hashes(pa.table({"mixed": hashes(nodes, [column]) ^ hashes(seeds, ["seed"])}), ["mixed"])


def _in_order(  # noqa: PLR0917
    algorithm: str, edges: Collection, nodes: Any, seed: Any, src: str, dst: str, node: str
) -> tuple[Collection, Collection]:
    """All nodes, and the linked pairs of an earlier and a later node: `first`, `second`."""
    graph = edges_of(algorithm, edges, src, dst)
    seed = integer("seed", seed, least=None, most=None, step=algorithm, error=GraphError)
    every = all_nodes(algorithm, graph, nodes, node)
    kind = graph.schema.field("src").type
    schema = pa.schema([("first", kind), ("second", kind), ("linked", pa.bool_())])
    ordered = graph.map_batches(partial(_ordered, seed), schema)
    return every, ordered.where(pc.field("linked")).select("first", "second").distinct()


def _ordered(seed: int, edges: pa.Table) -> pa.Table:
    """The ends of each edge in their order; `linked`: whether they are different nodes."""
    a, b = (flat(edges.column(end)) for end in ("src", "dst"))
    first, second = (priorities(edges, end, seed) for end in ("src", "dst"))
    tie = first == second
    less, greater = first < second, first > second
    if tie.any():
        less |= tie & pc.less(a, b).to_numpy(zero_copy_only=False)
        greater |= tie & pc.greater(a, b).to_numpy(zero_copy_only=False)
    early = pa.array(less)
    return pa.table(
        {"first": pc.if_else(early, a, b), "second": pc.if_else(early, b, a), "linked": less | greater}
    )


def _chosen(
    nodes: Collection, links: Collection, choose: Callable[[pa.Table], pa.Table], name: str | None
) -> Collection:
    """The choice of each node, a number from 0 on: `node`, `choice`.

    `choose` gets for each node the choices that its earlier neighbours have made so far, and `_WAITS` rows.
    """
    waits = pc.scalar(_WAITS)
    waiting = links.select(node="second", choice=waits).concat(nodes.select("node", choice=waits))
    by_first = links.arrange("first")

    def step(chosen: Collection) -> Collection:
        choices = chosen.join(by_first, left="node", right="first").select(node="second", choice=_CHOICE)
        return choices.concat(waiting).reduce_batches(choose, f"{_CHOICE} long", keys="node")

    nobody = waiting.where(pc.scalar(False))  # noqa: FBT003 - an expression
    return nobody.iterate(step, name=name)


def _rows(table: pa.Table) -> tuple[Groups, npt.NDArray[Any], Mask]:
    """The rows by node, as they are adjacent; the choices; whether a node's are complete."""
    choices, counts = (numbers(table, column) for column in (_CHOICE, "count"))
    of = adjacent(table, ["node"])
    return of, choices, of.totals(np.where(choices == _WAITS, counts, -counts)) == 1  # the node's own row


def _decided(table: pa.Table, starts: Indices, choices: npt.NDArray[Any], chosen: Mask) -> pa.Table:
    nodes = table.column("node").take(pa.array(starts[chosen]))
    return pa.table({"node": nodes, _CHOICE: choices[chosen].astype(np.int64)})


def _joins(table: pa.Table) -> pa.Table:
    """The nodes that can decide: out beside one that is in, and in beside none."""
    groups, choices, complete = _rows(table)
    out = np.maximum.reduceat(choices, groups.starts) == _IN
    return _decided(table, groups.starts, np.where(out, _OUT, _IN), complete | out)


def _least_free(table: pa.Table) -> pa.Table:
    """The least number that is not among the choices, for nodes whose neighbours have all chosen."""
    groups, choices, complete = _rows(table)
    order = np.lexsort((choices, groups.ids))
    # sorted, the row `_WAITS` comes first, and the k-th distinct choice is k - 1 as long as none is left out
    place = np.arange(len(order)) - groups.starts[groups.ids] - 1
    taken = np.add.reduceat(choices[order] == place, groups.starts) - 1
    return _decided(table, groups.starts, taken, complete)
