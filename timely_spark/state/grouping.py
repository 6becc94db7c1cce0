"""Rows in groups of equal keys, and the order and the runs that groups are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.state.arrow import FEW, Hashes, Indices, Mask, rows_at
from timely_spark.state.hashing import exact, hashes, same

_U = np.uint64
#: a hash that is shifted by so many bits has as many left as numpy's radix sort takes
_BEGIN = _U(48)
#: merging so few sorted runs takes less time than sorting their rows
_RUNS = 8


def run_starts(numbers: npt.NDArray[Any]) -> Indices:
    """The positions where runs of equal numbers begin.

    >>> run_starts(np.array([4, 4, 7, 4])).tolist()
    [0, 2, 3]
    """
    return changes(numbers).nonzero()[0]


def ranges(starts: Indices, sizes: Indices) -> Indices:
    """The numbers from each start on, as many as its size, one range after the other.

    >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    indices: Indices = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    indices += np.arange(len(indices))
    return indices


def changes(numbers: npt.NDArray[Any]) -> Mask:
    """Whether each number differs from the one before; the first does.

    >>> changes(np.array([4, 4, 7])).tolist()
    [True, False, True]
    """
    new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return new


def sort(codes: npt.NDArray[np.uint64]) -> None:
    """Sort in place; a few sorted runs are merged."""
    merges = np.count_nonzero(codes[1:] < codes[:-1]) < _RUNS
    codes.sort(kind="stable" if merges else None)


def in_order(h: Hashes, *, exactly: bool = True) -> Indices:
    """The row numbers in the order of the rows' hashes; rows with one hash keep their order.

    Args:
        exactly: else hashes that begin alike may be in another order.

    Example:
        >>> in_order(np.array([7, 3, 7, 3], np.uint64)).tolist()
        [1, 3, 0, 2]
    """
    rows = len(h)
    if rows < FEW:
        return np.argsort(h, kind="stable")
    if (h[1:] >= h[:-1]).all():
        return np.arange(rows)
    if not exactly:
        return np.argsort((h >> _BEGIN).astype(np.uint16), kind="stable")  # a radix sort
    # np.sort is five times as fast as np.argsort: sort the hashes with row numbers in their lowest bits
    low = _U((1 << (rows - 1).bit_length()) - 1)
    mixed = h & ~low
    mixed |= np.arange(rows, dtype=_U)
    sort(mixed)
    mixed &= low
    order = mixed.view(np.int64)
    ordered = h[order]
    if (ordered[1:] < ordered[:-1]).any():  # some hashes differ in the replaced bits only
        order = order[np.argsort(ordered, kind="stable")]
    return order


@dataclass(frozen=True)
class Groups:
    """Rows in groups of equal keys, within a group in their original order.

    Example:
        >>> table = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]})
        >>> groups = group(table, ["k"])
        >>> groups.order.tolist(), groups.starts.tolist(), groups.sizes.tolist(), groups.firsts.tolist()
        ([0, 2, 1], [0, 2], [2, 1], [0, 1])
        >>> groups.ids.tolist(), groups.of.tolist()  # of each row of `order`; of each row of the table
        ([0, 0, 1], [0, 1, 0])
        >>> groups.rows(table)["n"].to_pylist(), [one["n"].to_pylist() for one in groups.slices(table)]
        ([1, 3, 2], [[1, 3], [2]])
        >>> weights = np.array([1, 1, -1])
        >>> groups.totals(weights).tolist()
        [0, 1]
        >>> groups.nonzero([weights])
        (array([1]), [array([1])])
    """

    #: the rows, group by group
    order: Indices
    #: the position in `order` of the first row of each group
    starts: Indices

    @cached_property
    def sizes(self) -> Indices:
        """The number of rows of each group."""
        ends = np.empty_like(self.starts)
        ends[:-1], ends[-1:] = self.starts[1:], len(self.order)
        return ends - self.starts

    @cached_property
    def ids(self) -> Indices:
        """The group of each row of `order`."""
        new = np.zeros(len(self.order), np.int64)
        new[self.starts[1:]] = 1
        return new.cumsum()

    @property
    def of(self) -> Indices:
        """The group of each row, in the rows' own order."""
        ids = np.empty(len(self.order), np.int64)
        ids[self.order] = self.ids
        return ids

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows of the table, group by group."""
        return table if (self.order[1:] > self.order[:-1]).all() else rows_at(table, self.order)

    def slices(self, table: pa.Table) -> Iterator[pa.Table]:
        """The rows of each group: they are moved at most once, and then only sliced."""
        if len(self.starts) > 1:
            table = rows_at(table, self.order)
        return map(table.slice, self.starts.tolist(), self.sizes.tolist())

    @property
    def firsts(self) -> Indices:
        """The first row of each group."""
        return self.order[self.starts]

    def totals(self, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum of each group's weights."""
        if len(self.starts) < len(weights) and (weights == weights[0]).all():
            return np.asarray(self.sizes * weights[0])
        each = weights[self.order]
        if len(self.starts) == len(self.order):
            return each
        return np.add.reduceat(each, self.starts)

    def nonzero(self, weights: Sequence[npt.NDArray[np.int64]]) -> tuple[Indices, list[Indices]]:
        """The first rows of the groups with a total that is not zero, and their totals."""
        totals, firsts = [self.totals(each) for each in weights], self.firsts
        some = totals[0] != 0
        for total in totals[1:]:
            some |= total != 0
        if some.all():
            return firsts, totals
        return firsts[some], [total[some] for total in totals]


def group(table: pa.Table, columns: Sequence[str], hashed: Hashes | None = None) -> Groups:
    """Group the rows of a table by key, in the order of H; rows of one group keep the table's order.

    Args:
        columns: the key; without columns all rows are one group.
        hashed: H of each row's key; None means it is computed.

    Example: see `Groups`.
    """
    if table.num_rows < 2:
        return Groups(np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.int64))
    h = hashes(table, columns) if hashed is None else hashed
    order = in_order(h)
    ordered = h[order]
    new = changes(ordered)
    if not exact(table, columns):
        keys = table.select(list(columns)).take(order)
        equal = same(keys.slice(1), keys.slice(0, len(order) - 1), columns, columns)
        split = ~(new | np.append(True, equal))
        if split.any():
            order, new = _split_collisions(keys, order, new, split, columns)
    return Groups(order, new.nonzero()[0])


def _split_collisions(
    keys: pa.Table, order: Indices, new: Mask, split: Mask, columns: Sequence[str]
) -> tuple[Indices, Mask]:
    """`order` and `new` (the first rows of groups) after runs of equal hashes are split by key.

    Args:
        keys: the keys, in order.
        split: whether a row has the hash of the row before it, and another key.
    """
    order, new = order.copy(), new.copy()
    run = new.cumsum()
    rows = np.flatnonzero(np.isin(run, run[split]))
    key, rest, number = np.zeros(len(order), np.int64), rows, 0
    while len(rest):  # in each run the first row that is left, and all with its key
        starts = changes(run[rest])
        first = rest[starts][starts.cumsum() - 1]
        equal = same(keys.take(rest), keys.take(first), columns, columns)
        key[rest[equal]] = number
        rest, number = rest[~equal], number + 1
    moved = rows[np.lexsort((key[rows], run[rows]))]
    order[rows] = order[moved]
    new[rows] = changes(run[moved]) | changes(key[moved])
    return order, new
