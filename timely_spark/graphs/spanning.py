"""Spanning forests of a static graph: Boruvka's algorithm on whole arrays, and rooted trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timely_spark.state.keys import Indices, Mask


@dataclass(frozen=True, slots=True)
class Rooted:
    """A rooted spanning forest."""

    #: for each vertex the number of the edge to its parent; -1 at roots
    via: Indices
    #: for each vertex the root of its tree
    root: Indices


@dataclass(frozen=True, slots=True)
class _Level:
    """One round of contraction: each node is hooked onto another one by an edge, or is a root."""

    #: for each node its edge (-1: a root), and whether the edge's first end is the one in the node
    edge: Indices
    first: Mask
    #: for each node the node 1, 2, 4, ... hooks away
    jumps: list[Indices]
    #: for each node its node of the next level
    up: Indices


def rooted_forest(n: int, a: Indices, b: Indices, key: npt.NDArray[Any] | None = None) -> Rooted:
    """The spanning forest of least edge numbers, each tree rooted at its vertex of least `key`.

    Takes O(log n) passes over whole arrays, however deep the trees are: each level of Boruvka's algorithm is
    a forest of hooks. From the last level back to the first, each of its trees is rerooted at the node by
    which the level above enters it.

    Args:
        n: the number of vertices.
        a: for each edge one end.
        b: the other end. Edges may be parallel, or self-loops.
        key: a distinct key for each vertex; None: its number.

    Example:
        >>> a, b = np.array([1, 2, 0, 3]), np.array([2, 3, 1, 1])
        >>> forest = rooted_forest(5, a, b)
        >>> forest.via.tolist(), forest.root.tolist()
        ([-1, 2, 0, 1, -1], [0, 0, 0, 0, 4])
    """
    levels, of = _contracted(n, a, b)
    components = int(of.max(initial=-1)) + 1
    by_key = np.arange(n) if key is None or (key[1:] > key[:-1]).all() else np.argsort(key)
    roots = np.zeros(components, np.int64)
    roots[of[by_key[::-1]]] = by_key[::-1]  # the last write wins
    entry, via = roots, np.full(components, -1)
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        start = entry
        for below in levels[:depth]:
            start = below.up[start]
        reversed_ = np.zeros(len(level.up), np.bool_)
        reversed_[start] = True
        for jump in level.jumps:
            reversed_[jump[np.flatnonzero(reversed_)]] = True
        hooked = level.edge >= 0
        ends = np.where(level.first, a[level.edge], b[level.edge]), level.edge.copy()
        on_path = np.flatnonzero(reversed_ & hooked)
        onto, by = level.jumps[0][on_path], level.edge[on_path]
        ends[0][onto], ends[1][onto] = np.where(level.first[on_path], b[by], a[by]), by
        ends[0][start], ends[1][start] = entry, via
        entry, via = ends
    return Rooted(via, roots[of])


def _contracted(n: int, a: Indices, b: Indices) -> tuple[list[_Level], Indices]:
    """Boruvka's levels; and for each vertex its node of the last level.

    Contracting only the first n edges leaves few nodes, and few of the other edges between them.
    """
    levels: list[_Level] = []
    of = np.arange(n)
    for start, end in ((0, n), (n, len(a))):
        left, right, edges = of[a[start:end]], of[b[start:end]], np.arange(start, min(end, len(a)))
        while True:
            between = np.flatnonzero(left != right)
            if not len(between):
                break
            if len(between) < len(edges):
                left, right, edges = left[between], right[between], edges[between]
            levels.append(_hooked(n, left, right, edges))
            up = levels[-1].up
            of, left, right, n = up[of], up[left], up[right], int(up.max()) + 1
    return levels, of


def _hooked(n: int, left: Indices, right: Indices, edges: Indices) -> _Level:
    """Hook each of `n` nodes onto its neighbour by the first of its edges."""
    m = len(edges)
    backwards = np.arange(m - 1, -1, -1)
    pick = np.full(n, m)
    pick[left[::-1]] = backwards  # the last write is the least edge
    other = np.full(n, m)
    other[right[::-1]] = backwards
    first = pick < other
    np.minimum(pick, other, out=pick)
    hook = np.arange(n)
    has = np.flatnonzero(pick < m)
    by = pick[has]
    onto = np.where(first[has], right[by], left[by])
    # edges are totally ordered, so a cycle is an edge that both its ends have picked
    stays = (pick[onto] == by) & (has < onto)
    has, by, onto = has[~stays], by[~stays], onto[~stays]
    hook[has] = onto
    edge = np.full(n, -1)
    edge[has] = edges[by]
    jumps = [hook]
    while not np.array_equal(doubled := jumps[-1][jumps[-1]], jumps[-1]):
        jumps.append(doubled)
    number = np.cumsum(edge < 0) - 1
    return _Level(edge, first, jumps, number[jumps[-1]])


def along_paths(parent: Indices, weight: Indices) -> Indices:
    """For each vertex the sum of weights from it up to its root, whose own weight must be 0.

    Args:
        parent: the parent of each vertex; a root is its own parent.
        weight: the weight of each vertex.

    Example:
        >>> along_paths(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 5])).tolist()
        [0, 1, 2, 7]
    """
    total = weight
    while True:
        total = total + total[parent]
        grandparent = parent[parent]
        if np.array_equal(grandparent, parent):
            return total
        parent = grandparent


def breadth_first(
    parent: Indices, a: Indices, b: Indices, most: int, tie: Indices
) -> tuple[Indices, Indices]:
    """Breadth-first trees with the given trees' roots: parents, and ranks that increase from the root down.

    Vertices more than `most` edges from their root keep their parents, and have greater ranks than others.

    Args:
        parent: the parent of each vertex; a root is its own parent.
        a: for each edge one end.
        b: the other end.
        most: the greatest depth.
        tie: orders the vertices of a level, from 0 to below 2 ** 20.

    Example:
        >>> parent, a, b = np.array([0, 0, 1, 2]), np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0])
        >>> parent, rank = breadth_first(parent, a, b, 64, np.array([3, 2, 1, 0]))
        >>> parent.tolist(), (rank >> 20).tolist()
        ([0, 0, 3, 0], [0, 1, 2, 1])
    """
    vertices = np.arange(len(parent))
    reached, level = parent == vertices, np.zeros(len(parent), np.int64)
    parent = parent.copy()
    for depth in range(1, most + 1):
        at_a, at_b = reached[a], reached[b]
        onto_b, onto_a = np.flatnonzero(at_a & ~at_b), np.flatnonzero(at_b & ~at_a)
        if not len(onto_a) + len(onto_b):
            break
        for child, above in ((b[onto_b], a[onto_b]), (a[onto_a], b[onto_a])):
            parent[child], level[child], reached[child] = above, depth, True
        open_ = np.flatnonzero(~(at_a & at_b))
        a, b = a[open_], b[open_]
    rank = np.where(level > 0, (level << 20) + tie, 0)
    if not reached.all():
        rank = np.where(reached, rank, ((most + 1) << 20) + along_paths(parent, np.where(reached, 0, 1)))
    return parent, rank
