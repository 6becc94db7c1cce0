"""The nodes of a forest that a batch of changes affects, numbered, with their values and rows as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    Hashes,
    Indices,
    Mask,
    changes,
    flat,
    hashes,
    in_order,
    numbers,
    same,
)

NO_NODE = -1
#: the rank in the row of a removed node
REMOVED = -1


class Affected:
    """Affected nodes, numbered, with their rows before and after the batch.

    The nodes of the first call of `numbers` are numbered in the order of their hashes, so that what is stored
    of them is sorted already; later ones follow in the order of their first use. All arrays are indexed by a
    node's number.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.values = pa.array([], kind)
        #: the edges whose multiplicities have become negative
        self.negative: pa.Table | None = None
        self._hashes: Hashes = np.zeros(0, np.uint64)
        #: integer values, sorted, with their numbers; newer values, at most as many, are not sorted yet
        self._sorted = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._flags, self._rows = np.zeros((3, 0), np.bool_), np.zeros((6, 0), np.int64)
        self._split()

    def _split(self) -> None:
        #: whether the node's row was looked up, whether the state has one, and whether it has lost its parent
        self.looked_up, self.stored, self.detached = self._flags
        #: the row before the batch: the least node of the component, and the parent; a root is its own parent
        self.old_label, self.old_parent, self.old_rank = self._rows[:3]
        #: the row after the batch; a parent's rank is less than the ranks of its children
        self.label, self.parent, self.rank = self._rows[3:]

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, *columns: Any) -> list[Indices]:
        """The numbers of nodes, given as columns of values; new nodes get the next numbers."""
        arrays, first = [flat(column) for column in columns], not len(self)
        if pa.types.is_integer(self.values.type) and not any(a.null_count for a in (self.values, *arrays)):
            values = [array.to_numpy() for array in arrays]
            if first and (dense := _dense(values)) is not None:
                low, different = dense
                self.values = pa.array(different, self.values.type)
                number = np.zeros(int(different[-1]) - low + 1, np.int64)
                number[_above(low, different)] = self._in_order()
                numbers = [number[_above(low, column)] for column in values]
                first = False
            else:
                numbers, self.values = self._numbered(values)
        else:
            encoded = pa.concat_arrays([self.values, *arrays]).dictionary_encode(null_encoding="encode")
            codes = encoded.indices.to_numpy()[len(self) :].astype(np.int64)
            numbers = np.split(codes, np.cumsum([len(array) for array in arrays])[:-1])
            self.values = encoded.dictionary
        if first and len(self):
            number = self._in_order()
            numbers = [number[codes] for codes in numbers]
        if more := len(self) - len(self.looked_up):
            self._flags = np.concatenate([self._flags, np.zeros((3, more), np.bool_)], axis=1)
            self._rows = np.concatenate([self._rows, np.full((6, more), NO_NODE)], axis=1)
            self._split()
        return numbers

    def _numbered(self, arrays: list[npt.NDArray[Any]]) -> tuple[list[Indices], pa.Array]:
        """The numbers of integer values, and all values including new ones."""
        import pandas as pd

        values = np.concatenate(arrays)
        numbered = self.values.to_numpy()
        if len(numbered) > 2 * len(self._sorted[0]):
            order = np.argsort(numbered, kind="stable")
            self._sorted = numbered[order], order
        sorted_, order = self._sorted
        numbers = np.full(len(values), NO_NODE)
        if len(sorted_):
            at = np.minimum(np.searchsorted(sorted_, values), len(sorted_) - 1)
            numbers = np.where(sorted_[at] == values, order[at], NO_NODE)
        start, new = len(sorted_), numbers == NO_NODE
        if not new.any():
            return np.split(numbers, np.cumsum([len(array) for array in arrays])[:-1]), self.values
        codes, different = pd.factorize(np.append(numbered[start:], values[new]))
        numbers[new] = codes[len(numbered) - start :] + start
        every = pa.array(np.append(numbered[:start], different), self.values.type)
        return np.split(numbers, np.cumsum([len(array) for array in arrays])[:-1]), every

    def _in_order(self) -> Indices:
        """Put all values in the order of their hashes. Returns their new numbers."""
        order = in_order(self.hashes())
        self.values, self._hashes = self.of(order), self._hashes[order]
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        return number

    def of(self, nodes: Indices) -> pa.Array:
        """The values of nodes."""
        if pa.types.is_integer(self.values.type) and not self.values.null_count:
            return pa.array(self.values.to_numpy()[nodes])
        return self.values.take(pa.array(nodes))

    def longs(self) -> Indices | None:
        """The value of each node; None if they are not longs, or one is null."""
        is_long = self.values.type == pa.int64() and not self.values.null_count
        return self.values.to_numpy() if is_long else None

    def hashes(self) -> Hashes:
        """The hash of each node."""
        if len(self._hashes) < len(self):
            new = pa.table({"node": self.values[len(self._hashes) :]})
            self._hashes = np.append(self._hashes, hashes(new, ["node"]))
        return self._hashes

    def ranks(self) -> npt.NDArray[Any]:
        """A number for each node, in the order of the values."""
        if pa.types.is_integer(self.values.type) and not self.values.null_count:
            values: npt.NDArray[Any] = self.values.to_numpy()
            return values
        ranks = np.empty(len(self), np.int64)
        ranks[pc.sort_indices(self.values).to_numpy()] = np.arange(len(self))
        return ranks

    @property
    def changed(self) -> Mask:
        """The nodes whose rows differ from the state."""
        changed: Mask = (self.parent != self.old_parent) | (self.label != self.old_label)
        changed |= self.rank != self.old_rank
        return changed

    def grown(self) -> tuple[int, int]:
        """How many nodes and trees the forest has gained."""
        own = np.arange(len(self))
        new, old = (
            (np.count_nonzero(label != NO_NODE), np.count_nonzero(label == own))
            for label in (self.label, self.old_label)
        )
        return int(new[0] - old[0]), int(new[1] - old[1])

    def relabelled(self, name: str) -> pa.Table:
        """The changes of nodes' labels, as columns "node", `name` and `DIFF`."""
        moved = np.flatnonzero(self.label != self.old_label)
        leave, join = moved[self.old_label[moved] != NO_NODE], moved[self.label[moved] != NO_NODE]
        changes = {
            "node": self.of(np.concatenate([leave, join])),
            name: self.of(np.concatenate([self.old_label[leave], self.label[join]])),
            DIFF: np.repeat([-1, 1], [len(leave), len(join)]),
        }
        return pa.table(changes)


def latest_rows(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """The last row of each node; none of a node that was added and removed."""
    repeats = hashed[1:] == hashed[:-1]
    if repeats.any():
        repeats &= same(table.slice(0, len(repeats)), table.slice(1), ["node"], ["node"])
    if not repeats.any():
        return hashed, table
    last = np.append(~repeats, True)
    total = np.add.reduceat(numbers(table, DIFF), np.flatnonzero(np.append(True, ~repeats)))
    keep = np.flatnonzero(last)
    rank = numbers(table, "rank")[keep]
    needed = (rank != REMOVED) | (total != 0)
    rows = table.take(keep[needed])
    return hashed[keep[needed]], rows.set_column(4, DIFF, pa.array(total[needed], rows.schema.field(4).type))


def ordered(a: pa.Array, b: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The pairs with the lesser value first; NaN is greater than all numbers, null than all values.

    Example:
        >>> ordered(pa.array([1, 5, None]), pa.array([2, 3, 4]))[0].to_pylist()
        [1, 3, 4]
    """
    if pa.types.is_integer(a.type) and not a.null_count + b.null_count:
        left, right = a.to_numpy(), b.to_numpy()
        if (left <= right).all():
            return a, b
        return pa.array(np.minimum(left, right)), pa.array(np.maximum(left, right))
    later = pc.greater(a, b)
    if pa.types.is_floating(a.type):
        later = pc.or_(later, pc.and_not(pc.is_nan(a), pc.is_nan(b)))
    later = pc.coalesce(later, pc.and_(a.is_null(), b.is_valid()))
    return pc.if_else(later, b, a), pc.if_else(later, a, b)


def _dense(arrays: list[npt.NDArray[Any]]) -> tuple[int, npt.NDArray[Any]] | None:
    """The least value, and the distinct ones in order, from a table; None if it would be too large."""
    some = [array for array in arrays if len(array)]
    if not some:
        return None
    low, high = min(int(array.min()) for array in some), max(int(array.max()) for array in some)
    if high - low > 2 * sum(map(len, some)):
        return None
    present = np.zeros(high - low + 1, np.bool_)
    for array in some:
        present[_above(low, array)] = True
    kind = np.uint64 if high >= 1 << 63 else np.int64
    return low, np.flatnonzero(present).astype(kind, copy=False) + kind(low)


def _above(low: int, values: npt.NDArray[Any]) -> Indices:
    """How much greater than `low` integers are."""
    kind = np.uint64 if values.dtype == np.uint64 else np.int64
    above: Indices = np.subtract(values, kind(low), dtype=kind).astype(np.int64, copy=False)
    return above


def unique(n: int, *numbers: Indices) -> Indices:
    """The distinct numbers, which are less than `n`, in order."""
    present = np.zeros(n, np.bool_)
    for some in numbers:
        present[some] = True
    return np.flatnonzero(present)


def summed(a: Indices, b: Indices, weights: npt.NDArray[Any]) -> tuple[Indices, Indices, Indices]:
    """Consolidate: the distinct pairs, in order, with the sums of their weights, without zeros.

    Example:
        >>> a, b, weights = summed(np.array([7, 3, 7, 3]), np.array([1, 0, 1, 0]), np.array([1, 2, 1, -2]))
        >>> a.tolist(), b.tolist(), weights.tolist()
        ([7], [1], [2])
    """
    bits = int(b.max(initial=0)).bit_length()
    keys = a << bits
    keys |= b
    if (weights == 1).all():
        keys.sort()
        starts = np.flatnonzero(changes(keys))
        totals = np.diff(starts, append=len(keys))
    else:
        room = 64 - int(keys.max(initial=1)).bit_length()
        order = in_order(keys.astype(np.uint64) << np.uint64(room))
        keys = keys[order]
        starts = np.flatnonzero(changes(keys))
        totals = np.add.reduceat(weights[order], starts, dtype=np.int64)
        starts, totals = starts[totals != 0], totals[totals != 0]
    keys = keys[starts]
    return keys >> bits, keys & ((1 << bits) - 1), totals
