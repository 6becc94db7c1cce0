"""Indexes of pairs of nodes: arrangements with a first node, a second node and a multiplicity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.authors import (
    DIFF,
    Arrangement,
    Hashes,
    Indices,
    Partitioner,
    States,
    changes,
    group,
    in_order,
    numbers,
    ranges,
)
from timely_spark.graphs.affected import Affected, summed

#: so many hashes are computed at a time: that takes five times their memory
_PIECE = 1 << 18


def insert_pairs(
    index: Arrangement, nodes: Affected, first: Indices, second: Indices, diff: npt.NDArray[Any]
) -> None:
    """Insert pairs, with changes of their multiplicities. The three arrays get what is inserted."""
    names, hashed, values = (*index.keys, *index.within), nodes.hashes(), nodes.longs()
    h = np.empty(len(first), np.uint64)
    for start in range(0, len(h), _PIECE):
        piece = slice(start, start + _PIECE)
        a, b = first[piece], second[piece]
        h[piece] = index.paired(hashed[a], hashed[b])
        if values is not None:  # in place: columns of a first batch are the largest part of its memory
            a[:], b[:] = values[a], values[b]
    if (rows := _unordered(h)) is not None:
        order = rows[in_order(h[rows])]
        for column in (h, first, second, diff):
            column[rows] = column[order]
    ends = (first, second) if values is not None else (nodes.of(first), nodes.of(second))
    index.insert(pa.table([*map(pa.array, ends), pa.array(diff)], [*names, DIFF]), h, compact)


def _unordered(h: Hashes) -> Indices | None:
    """The rows that change places when hashes are sorted; None if they are in order.

    Pairs that come in the order of their nodes' hashes have few: rows whose hashes have equal upper halves.
    """
    (descents,) = (h[1:] < h[:-1]).nonzero()
    if not len(descents):
        return None
    half = np.uint64(32)
    begin = h[descents] >> half
    if len(descents) << 10 > len(h) or (begin != h[descents + 1] >> half).any():
        return np.arange(len(h))
    least = np.unique(begin) << half  # upper halves are in order
    low, high = h.searchsorted(least), h.searchsorted(least | np.uint64(0xFFFF_FFFF), "right")
    return ranges(low, high - low)


def pairs_of(index: Arrangement, nodes: Affected, first: Indices) -> tuple[Indices, Indices]:
    """The pairs of positive multiplicity with these first nodes, which are distinct.

    A pair may be repeated that was inserted several times and never removed.
    """
    if not len(first) or not len(index):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = pa.table({"node": nodes.of(first)})
    probe, stored = index.lookup(keys, ["node"], nodes.hashes()[first])
    (second,) = nodes.numbers(stored.column(index.within[0]))
    diff = numbers(stored, DIFF)
    if (diff > 0).all():
        return first[probe], second
    first, second, totals = summed(first[probe], second, diff)
    return first[totals > 0], second[totals > 0]


def compact(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """Consolidate: sum the weights of equal pairs. Most pairs are unique and are not copied."""
    repeats = hashed[1:] == hashed[:-1]
    if not repeats.any():
        return hashed, table
    rows = np.flatnonzero(np.append(repeats, False) | np.append(False, repeats))
    groups = group(table.take(rows), table.schema.names[:2], hashed[rows])
    weights = numbers(table, DIFF).astype(np.int64)
    totals = np.add.reduceat(weights[rows[groups.order]], groups.starts)
    keep = np.ones(len(hashed), np.bool_)
    keep[rows] = False
    keep[rows[groups.firsts]] = totals != 0
    weights[rows[groups.firsts]] = totals
    table = table.filter(pa.array(keep)).set_column(2, DIFF, pa.array(in_bytes(weights[keep])))
    return hashed[keep], table


def in_bytes(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weights as int8, if all fit."""
    small = weights.astype(np.int8, copy=False)
    return small if (small == weights).all() else weights


def both_ways(a: Indices, b: Indices, count: npt.NDArray[Any]) -> tuple[Indices, Indices, npt.NDArray[Any]]:
    """The distinct edges from either end, a self-loop once, in order, with the sums of their counts."""
    back = a != b
    if not (count == 1).all():
        return summed(np.append(a, b[back]), np.append(b, a[back]), np.append(count, count[back]))
    bits = int(max(a.max(initial=0), b.max(initial=0))).bit_length()
    pairs = np.empty(len(a) + np.count_nonzero(back), np.int64)
    forward, backward = pairs[: len(a)], pairs[len(a) :]
    np.left_shift(a, bits, out=forward)
    forward |= b
    np.compress(back, b, out=backward)
    backward <<= bits
    backward |= a[back]
    pairs.sort()
    new = changes(pairs)
    (repeats,) = np.logical_not(new).nonzero()
    pairs = pairs[new] if len(repeats) else pairs
    count = np.ones(len(pairs), np.int8)
    if len(repeats):  # mostly few: numbers of all rows would take as much memory as the pairs
        rows = repeats - np.arange(1, len(repeats) + 1)
        (starts,) = changes(rows).nonzero()
        more = np.diff(starts, append=len(rows)) + 1
        count = count if more.max() < 128 else count.astype(np.int64)
        count[rows[starts]] = more
    a = pairs >> bits
    pairs &= (1 << bits) - 1
    return a, pairs, count


def states_with(name: str, tables: Iterable[pa.Table], partition: Partitioner) -> States:
    """A state for each worker: under a name its parts of tables; no states if there are no tables."""
    parts = [partition(0, table) for table in tables]
    return [{name: [part for part in of_one if part.num_rows]} for of_one in zip(*parts, strict=True)]
