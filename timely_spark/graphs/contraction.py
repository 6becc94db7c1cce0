"""Positions for the nodes of a partitioned graph, by contracting clusters: near nodes get near positions.

In each level a node becomes the least of itself and a few of its neighbours, in an order that differs from
level to level; nodes that became the same one are a cluster, and a node of the next level. Then, from the
last level back to the first, each cluster divides its interval of positions among its members. So intervals
of one length have equal weights, and nested clusters lie together wherever intervals are cut.

Nodes are 64-bit hashes. Each function is one step of one worker, between two exchanges of `Messages`: two for
a level, and one for each level back. When few clusters are left, one worker arranges them all: two exchanges.
Messages to unknown nodes are ignored.

Source: Łącki, Mirrokni and Włodarczyk, Connected Components at Scale via Local Contractions, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from timely_spark.authors import Hashes, Indices, Mask, changes, in_order
from timely_spark.graphs.spanning import pieces

#: how many levels all workers contract at most; and how many levels there are if one worker goes on
SHARED, LEVELS = 8, 12
#: neighbours of a node that are looked at: those of least hashes
_SAMPLE = 2
#: the hash of no neighbour
_NONE = np.uint64((1 << 64) - 1)
#: a piece of so many homes moves
_FEW = 32
#: so many nodes are looked up by a hash table
_HASHED = 4096
#: what one of two hashes is multiplied by, where both make one
ODD = np.uint64(0x9E3779B97F4A7C15)
#: products with odd numbers give other orders of hashes; the first keeps that of the hashes
_ORDERS = tuple(pow(int(ODD), level, 1 << 64) for level in range(LEVELS))


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Numbers for nodes, each with the node that it comes from or tells of."""

    to: Hashes
    of: Hashes
    number: Indices
    amount: Indices


@dataclass(frozen=True, slots=True, eq=False)
class LocalGraph:
    """A worker's nodes, in order, and some of their neighbours."""

    nodes: Hashes
    #: the sum of those of the nodes of the first level that each consists of
    weight: Indices
    #: for each link the number of the node here, in order, and its neighbour
    at: Indices
    other: Hashes


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The clusters that a worker's nodes became."""

    nodes: Hashes
    weight: Indices
    #: what each node became
    became: Hashes
    #: nodes that became one of those here, in its order, and their weights
    cluster: Hashes
    member: Hashes
    amount: Indices


def linked(nodes: Hashes, weight: Indices, at: Indices, other: Hashes) -> LocalGraph:
    """A graph of these nodes, with at most a few of the links of each; links have numbers of nodes, or -1."""
    if (at < 0).any():
        at, other = at[at >= 0], other[at >= 0]
    least, second = np.full((_SAMPLE, len(nodes)), _NONE)  # a sort would take seven times as long
    np.minimum.at(least, at, other)
    more = np.flatnonzero(other != least[at])
    np.minimum.at(second, at[more], other[more])
    few = np.column_stack([least, second]).ravel()
    links = np.flatnonzero(few != _NONE)
    return LocalGraph(nodes, weight, links // _SAMPLE, few[links])


def _keys(nodes: Hashes, at: Indices, other: Hashes) -> Hashes:
    """Numbers in the order of nodes, and then of the first bits of others."""
    bits = np.uint64(len(nodes).bit_length())
    keys: Hashes = at.astype(np.uint64) << (np.uint64(64) - bits)
    keys |= other >> bits
    return keys


def choose(graph: LocalGraph, level: int) -> tuple[Level, Messages]:
    """The cluster that each node joins, and the messages that tell the cluster and the neighbours."""
    order, nodes = np.uint64(_ORDERS[level]), graph.nodes
    back = np.uint64(pow(_ORDERS[level], -1, 1 << 64))
    least = nodes * order
    starts = np.flatnonzero(changes(graph.at))
    if len(starts):
        at = graph.at[starts]
        least[at] = np.minimum(least[at], np.minimum.reduceat(graph.other * order, starts))
    became = least * back
    left = np.flatnonzero(became != nodes)
    tells = np.flatnonzero(became[graph.at] != graph.other)  # the others learn it from the node that joins
    none = np.zeros(0, np.int64)
    level_ = Level(nodes, graph.weight, became, nodes[:0], nodes[:0], none)
    return level_, Messages(
        np.append(became[left], graph.other[tells]),
        np.append(nodes[left], became[graph.at[tells]]),
        np.zeros(len(left) + len(tells), np.int64),
        np.append(graph.weight[left], np.zeros(len(tells), np.int64)),
    )


def contracted(level: Level, received: Messages) -> tuple[Level, LocalGraph, Messages]:
    """The members of each cluster; the clusters; and the links, which go to the clusters of their nodes."""
    nodes, at = level.nodes, node_rows(level.nodes, received.to)
    joins = np.flatnonzero((at >= 0) & (received.amount > 0))
    joins = joins[in_order(_keys(nodes, at[joins], received.of[joins]))]
    cluster, amount = received.to[joins], received.amount[joins]
    weight = np.where(level.became == nodes, level.weight, 0)
    np.add.at(weight, at[joins], amount)
    links = np.flatnonzero((at >= 0) & (received.amount == 0))
    joined = at[joins][changes(cluster)]  # what these became, their members have as neighbours
    receiver = level.became[np.append(at[links], joined)]
    sender = np.append(received.of[links], nodes[joined])
    receiver, sender = receiver[receiver != sender], sender[receiver != sender]
    # both get to know the link: few look at a node of great hash, which would be left without links
    receiver, sender = np.append(receiver, sender), np.append(sender, receiver)
    zeros = np.zeros(len(receiver), np.int64)
    level = replace(level, cluster=cluster, member=received.of[joins], amount=amount)
    left = weight > 0
    graph = LocalGraph(nodes[left], weight[left], joins[:0], nodes[:0])
    return level, graph, Messages(receiver, sender, zeros, zeros)


def relinked(graph: LocalGraph, received: Messages) -> LocalGraph:
    """The graph of clusters, with their links."""
    return linked(graph.nodes, graph.weight, node_rows(graph.nodes, received.to), received.of)


def arrange(nodes: Hashes, weight: Indices, at: Indices, other: Hashes, number: int) -> Messages:
    """The start of the interval of each node, by levels from this number on that one worker contracts."""
    graph, levels = linked(nodes, weight, at, other), list[Level]()
    for next_number in range(number, LEVELS):
        level, messages = choose(graph, next_number)
        level, graph, messages = contracted(level, messages)
        levels.append(level)
        graph = relinked(graph, messages)
    starts, clusters = np.cumsum(graph.weight) - graph.weight, graph.nodes
    for level in reversed(levels):
        starts = starts_of(level, clusters, starts, divide(level, clusters, starts))
        clusters = level.nodes
    return Messages(nodes, nodes, starts, np.zeros(len(nodes), np.int64))


def divide(level: Level, clusters: Hashes, start: Indices) -> Messages:
    """The start of each member's interval; a cluster sends nothing while its own start is unknown (-1)."""
    own = np.where(level.became == level.nodes, level.weight, 0)
    base, at = start[node_rows(clusters, level.cluster)], node_rows(level.nodes, level.cluster)
    before = np.cumsum(level.amount) - level.amount
    first = np.flatnonzero(changes(level.cluster))
    before -= np.repeat(before[first], np.diff(first, append=len(before)))
    placed = base >= 0
    number = (base + own[at] + before)[placed]
    return Messages(level.member[placed], level.member[placed], number, np.zeros(len(number), np.int64))


def starts_of(level: Level, clusters: Hashes, start: Indices, received: Messages) -> Indices:
    """The start of each node's interval: of a cluster's own node its start, of others as received."""
    starts = np.full(len(level.nodes), -1)
    own = np.flatnonzero(level.became == level.nodes)
    starts[own] = start[node_rows(clusters, level.nodes[own])]
    at = node_rows(level.nodes, received.to)
    starts[at[at >= 0]] = received.number[at >= 0]
    return starts


def moves_of(received: Messages) -> Messages:
    """From edges of the places here: the homes that are to move, each with the place of a neighbour.

    A piece of connected nodes moves if its homes are few and all may move.

    Args:
        received: to a place and of a home, with the other end as number. The amount is four times the other
            end's place, plus 2 if the home may move, and 1 if the other end has moved.
    """
    import pandas as pd

    home, other, here = received.of, received.number.view(np.uint64), received.to.astype(np.int64)
    if not len(home):
        return received
    salt = received.to * ODD  # a node is another one in each place
    number, nodes = pd.factorize(np.append(home + salt, other + salt))
    x, y = number[: len(home)], number[len(home) :]
    piece = pieces(len(nodes), x, y)
    place, may, moved = received.amount >> 2, received.amount & 2 > 0, received.amount & 1 > 0
    first = np.full(len(nodes), -1)
    rows = np.flatnonzero(may)[::-1]
    first[x[rows]] = rows  # the last write is that of the first
    homes = np.flatnonzero(first >= 0)
    target = np.full(len(nodes), -1)
    for some in (moved, ~moved):  # rather where one stays
        rows = np.flatnonzero(some & (place != here))
        target[piece[y[rows]]] = place[rows]
    target[np.bincount(piece[homes], minlength=len(nodes)) > _FEW] = -1
    target[piece[x[~may]]] = target[piece[y[~moved & (place == here)]]] = -1
    homes = homes[target[piece[homes]] >= 0]
    at = home[first[homes]]
    return Messages(at, at, target[piece[homes]], np.zeros(len(at), np.int64))


def node_rows(nodes: Hashes, which: Hashes) -> Indices:
    """The numbers of nodes among others, in order; -1 of one that is not there.

    Example:
        >>> node_rows(np.array([2, 5], np.uint64), np.array([5, 3, 2], np.uint64)).tolist()
        [1, -1, 0]
    """
    if not len(nodes):
        return np.full(len(which), -1)
    if len(which) > _HASHED:  # a hash table: a binary search of many misses the processor's cache
        import pandas as pd

        return pd.Index(nodes).get_indexer(which)  # type: ignore[arg-type]
    at = np.minimum(np.searchsorted(nodes, which), len(nodes) - 1)
    return np.where(nodes[at] == which, at, -1)


def union(a: Hashes, b: Hashes) -> tuple[Hashes, Indices, Indices]:
    """The distinct nodes of both, which are in order, and the numbers of each side's nodes among them.

    NumPy's own union counts hashes in a table, which takes many times as long as merging sorted runs.

    Example:
        >>> every, of_a, of_b = union(np.array([2, 5], np.uint64), np.array([3, 5], np.uint64))
        >>> every.tolist(), of_a.tolist(), of_b.tolist()
        ([2, 3, 5], [0, 2], [1, 2])
    """
    both = np.append(a, b)
    order = np.argsort(both, kind="stable")
    first = changes(both[order])
    number = np.empty(len(both), np.int64)
    number[order] = np.cumsum(first) - 1
    return both[order][first], number[: len(a)], number[len(a) :]


def contains(numbers: Hashes, which: npt.NDArray[Any]) -> Mask:
    """Whether each number is one of others, by a hash table: NumPy sorts large ones three times.

    >>> contains(np.array([7, 7], np.uint64), np.array([3, 7], np.uint64)).tolist()
    [False, True]
    """
    import pandas as pd

    present: Mask = pd.Index(which).isin(numbers)
    return present
