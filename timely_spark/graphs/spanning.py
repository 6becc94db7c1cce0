"""Spanning forests of a static graph, on whole arrays: breadth-first, and by Boruvka's algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timely_spark.authors import Indices, Mask, ranges


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
        key: a distinct key for each vertex; None means its number.

    Example:
        >>> a, b = np.array([1, 2, 0, 3]), np.array([2, 3, 1, 1])
        >>> forest = rooted_forest(5, a, b)
        >>> forest.via.tolist(), forest.root.tolist()
        ([-1, 2, 0, 1, -1], [0, 0, 0, 0, 4])
    """
    levels, node = _contracted(n, a, b)
    components = int(node.max(initial=-1)) + 1
    key = np.arange(n) if key is None else key
    least = np.empty(components, key.dtype)
    least[node] = key  # any of each component
    np.minimum.at(least, node, key)
    least_of = np.flatnonzero(key == least[node])
    roots = np.zeros(components, np.int64)
    roots[node[least_of]] = least_of
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
    return Rooted(via, roots[node])


def pieces(n: int, a: Indices, b: Indices) -> Indices:
    """For each vertex the number of its connected component.

    >>> pieces(5, np.array([1, 2]), np.array([2, 4])).tolist()
    [0, 1, 1, 2, 1]
    """
    return _contracted(n, a, b)[1]


def _contracted(n: int, a: Indices, b: Indices) -> tuple[list[_Level], Indices]:
    """Boruvka's levels; and for each vertex its node of the last level.

    Contracting only the first n edges leaves few nodes, and few of the other edges between them.
    """
    levels: list[_Level] = []
    node = np.arange(n)
    for start, end in ((0, n), (n, len(a))):
        left, right, edges = node[a[start:end]], node[b[start:end]], np.arange(start, min(end, len(a)))
        while True:
            between = np.flatnonzero(left != right)
            if not len(between):
                break
            if len(between) < len(edges):
                left, right, edges = left[between], right[between], edges[between]
            levels.append(_hooked(n, left, right, edges))
            up = levels[-1].up
            node, left, right, n = up[node], up[left], up[right], int(up.max()) + 1
    return levels, node


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
    """For each vertex the sum of weights from it up to its root. A root's own weight must be 0.

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


@dataclass(frozen=True, slots=True)
class Ranked:
    """A rooted spanning forest whose ranks increase from the roots down."""

    #: for each vertex the root of its tree
    root: Indices
    #: for each vertex its parent; a root is its own parent
    parent: Indices
    rank: Indices


def shallow_forest(
    starts: Indices, to: Indices, key: npt.NDArray[Any], tie: Indices, most: int = 64
) -> Ranked:
    """A spanning forest of breadth-first trees, each rooted at its vertex of least `key`.

    Vertices more than `most` edges from their root have any path to it, and greater ranks than others.

    Most graphs have one large component, and one of the least vertices is its root: trees are grown from a
    few of them, and what these do not reach is contracted by Boruvka's algorithm, which finds its roots.

    Args:
        starts: the neighbours of vertex v are ``to[starts[v] : starts[v + 1]]``.
        to: the neighbours; each edge is in the lists of both its ends, or once if these are equal.
        key: a distinct key for each vertex.
        tie: orders the vertices of a level, from 0 to below 2 ** 20.
        most: the greatest depth of breadth-first trees.

    Example:
        >>> starts, to = np.array([0, 2, 4, 6, 8, 8]), np.array([1, 3, 0, 2, 1, 3, 2, 0])
        >>> forest = shallow_forest(starts, to, np.arange(5), np.array([3, 2, 1, 0, 0]))
        >>> forest.root.tolist(), forest.parent.tolist(), (forest.rank >> 20).tolist()
        ([0, 0, 0, 0, 4], [0, 0, 3, 0, 4], [0, 1, 2, 1, 0])

    Source: Dhulipala, Hong and Shun, ConnectIt, 2020: a sample finds most of the largest component.
    """
    n = len(key)
    trees = _Growing(starts, to, np.full(n, NONE), np.full(n, NONE, np.int16))
    root, parent, level = np.full(n, NONE), trees.parent, trees.level
    few = np.argpartition(key, _TRIES)[:_TRIES] if n > _TRIES else np.arange(n)
    cut = None
    for least in few[np.argsort(key[few])]:
        if level[least] == NONE:
            grown, reached = trees.grow(np.array([least]), most)
            root[reached] = least
            if not grown:
                cut = least
                break
    rest = np.flatnonzero(level == NONE)
    if len(rest):
        _contract(trees, root, key, rest, cut)
        trees.grow(rest[root[rest] == rest], most)
    rank = np.where(level > 0, (level.astype(np.int64) << 20) + tie, 0)
    deep = level == NONE
    if deep.any():
        rank = np.where(deep, ((most + 1) << 20) + along_paths(parent, deep.astype(np.int64)), rank)
    return Ranked(root, parent, rank)


#: not reached
NONE = -1
#: Trees are grown from so many of the least vertices.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Growing:
    """Trees that grow breadth-first."""

    starts: Indices
    to: Indices
    #: for each vertex its parent, and its distance from the root, once reached
    parent: Indices
    level: npt.NDArray[np.int16]

    def grow(self, roots: Indices, most: int) -> tuple[bool, Indices]:
        """Grow trees from new roots. Returns whether nothing was left to reach, and all reached vertices."""
        self.parent[roots], self.level[roots] = roots, 0
        reached = [roots]
        unreached = int(np.count_nonzero(self.level == NONE))
        for depth in range(1, most + 1):
            if 2 * len(reached[-1]) < unreached:
                x, y = self._neighbours(reached[-1])
                new = self.level[y] == NONE
                x, y = x[new], y[new]
            else:  # from the side that has fewer
                y, x = self._neighbours(np.flatnonzero(self.level == NONE))
                new = self.level[x] == depth - 1
                x, y = x[new], y[new]
            if not len(y):
                return True, np.concatenate(reached)
            self.parent[y], self.level[y] = x, depth  # the last write wins
            reached.append(y[self.parent[y] == x])
            unreached -= len(reached[-1])
        return False, np.concatenate(reached)

    def _neighbours(self, vertices: Indices) -> tuple[Indices, Indices]:
        """The neighbours of vertices, behind these."""
        first, degree = self.starts[vertices], self.starts[vertices + 1] - self.starts[vertices]
        return np.repeat(vertices, degree), self.to[ranges(first, degree)]

    def edges(self, vertices: Indices) -> tuple[Indices, Indices]:
        """The edges of vertices that are not reached, those between two of them once."""
        x, y = self._neighbours(vertices)
        once = (x < y) | (self.level[y] != NONE)
        return x[once], y[once]


def _contract(trees: _Growing, root: Indices, key: npt.NDArray[Any], rest: Indices, cut: int | None) -> None:
    """Give the vertices that are not reached parents and roots; of the reached, only `cut`'s tree has edges.

    That tree counts as one vertex, the last one, of the least key.
    """
    x, y = trees.edges(rest)
    number = np.full(len(key), len(rest))
    number[rest] = np.arange(len(rest))
    vertices = rest if cut is None else np.append(rest, cut)
    forest = rooted_forest(len(vertices), number[x], number[y], key[vertices])
    via = forest.via[: len(rest)]
    inner = via >= 0
    trees.parent[rest] = rest
    trees.parent[rest[inner]] = x[via[inner]] + y[via[inner]] - rest[inner]
    root[rest] = vertices[forest.root[: len(rest)]]
