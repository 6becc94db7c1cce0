"""The bridges of entities: pairs of records without which an entity falls into two parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    GROUP,
    Indices,
    Logic,
    Mask,
    algorithm,
    changes,
    numbers,
    ranges,
    reduced,
)
from timely_spark.differential import Collection


@algorithm
def bridges(links: Collection, *, name: str | None) -> Collection:
    """The bridges of entities, by their links. Columns: in: entity, a, b, score; out: see `Entities`."""
    kind = links.schema.field("a").type
    fields = [pa.field(end, kind) for end in ("a", "b")]
    fields += [pa.field("score", pa.float64()), pa.field("smaller", pa.int64())]
    return reduced("bridges", links, _Bridges(("entity",)), fields, name=name)


class _Bridges(Logic):
    """Bridges of all links of each entity."""

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        low, high = lesser_first(inputs["a"], inputs["b"])
        links = pa.table({GROUP: inputs[GROUP], "a": low, "b": high, "score": inputs["score"]})
        pairs = links.group_by([GROUP, "a", "b"], use_threads=False).aggregate([("score", "max")])
        pairs = pairs.sort_by(GROUP)
        # a record is a node of each of its groups: a call may have several times
        group = numbers(pairs, GROUP)
        record = pa.chunked_array([*pairs["a"].chunks, *pairs["b"].chunks]).combine_chunks()
        codes = record.dictionary_encode().indices.to_numpy()
        of_nodes = np.concatenate([group, group]) * (codes.max(initial=0) + 1) + codes
        _, nodes = np.unique(of_nodes, return_inverse=True)
        x, y = nodes[: len(group)], nodes[len(group) :]
        is_bridge, smaller = bridges_of(x, y, x[changes(group)])
        rows = pairs.rename_columns([GROUP, "a", "b", "score"]).append_column("smaller", pa.array(smaller))
        rows = rows.append_column(DIFF, pa.array(np.ones(len(group), np.int64)))
        return rows.filter(pa.array(is_bridge))


def lesser_first(a: Any, b: Any) -> tuple[Any, Any]:
    """The lesser end of each pair, and the greater one."""
    turned = pc.greater(a, b)
    return pc.if_else(turned, b, a), pc.if_else(turned, a, b)


def bridges_of(x: Indices, y: Indices, roots: Indices) -> tuple[Mask, Indices]:
    """Of each edge of a graph whether it is a bridge, and then the nodes of its smaller side.

    Tarjan's algorithm (1974), level by level: in a spanning tree whose nodes have numbers in preorder, the
    edge above a node is a bridge if no other edge leads out of the numbers of the node's subtree.

    Args:
        x, y: the ends of different edges, never a loop; nodes are 0, 1, ...
        roots: a node of each component.

    Example:
        A triangle, and a tail of two nodes:

        >>> x, y = np.array([0, 1, 2, 2, 3]), np.array([1, 2, 0, 3, 4])
        >>> is_bridge, smaller = bridges_of(x, y, np.array([0]))
        >>> is_bridge.tolist(), smaller[is_bridge].tolist()
        ([False, False, False, True, True], [2, 1])
    """
    edges, size = len(x), max(x.max(initial=-1), y.max(initial=-1)) + 1
    source, target = np.concatenate([x, y]), np.concatenate([y, x])
    order = np.argsort(source, kind="stable")
    target, edge = target[order], order % max(edges, 1)
    degree = np.bincount(source, minlength=size)
    start = np.cumsum(degree) - degree

    # a tree of least depth; the nodes of a level are in the order of their parents
    parent, above, root = (np.full(size, -1) for _ in range(3))
    root[roots] = roots
    levels = [roots]
    while len(levels[-1]):
        last = levels[-1]
        entries = ranges(start[last], degree[last])
        by = np.repeat(last, degree[last])
        reached = root[target[entries]] < 0
        entries, by = entries[reached], by[reached]
        _, first = np.unique(target[entries], return_index=True)
        entries, by = entries[np.sort(first)], by[np.sort(first)]
        level = target[entries]
        parent[level], above[level], root[level] = by, edge[entries], root[by]
        levels.append(level)

    below = np.ones(size, np.int64)
    for level in reversed(levels[1:]):
        np.add.at(below, parent[level], below[level])
    number = np.zeros(size, np.int64)
    for level in levels[1:-1]:
        before = np.cumsum(below[level]) - below[level]
        eldest = changes(parent[level])
        number[level] = number[parent[level]] + 1 + before - before[eldest][np.cumsum(eldest) - 1]
    least, greatest = number.copy(), number.copy()
    others = np.ones(edges, np.bool_)
    others[above[above >= 0]] = False
    for one, other in ((x, y), (y, x)):
        np.minimum.at(least, one[others], number[other[others]])
        np.maximum.at(greatest, one[others], number[other[others]])
    for level in reversed(levels[1:]):
        np.minimum.at(least, parent[level], least[level])
        np.maximum.at(greatest, parent[level], greatest[level])

    inner = (parent >= 0) & (least >= number) & (greatest < number + below)
    is_bridge, smaller = np.zeros(edges, np.bool_), np.zeros(edges, np.int64)
    is_bridge[above[inner]] = True
    smaller[above[inner]] = np.minimum(below[inner], below[root[inner]] - below[inner])
    return is_bridge, smaller
