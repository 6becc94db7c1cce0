"""Keyed state as a few immutable batches sorted by H, merged geometrically (differential's spines)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from timely_spark.worker.keys import Hashes, Indices, exact, flat, hashes, in_order, same

_HASH = "__timely_hash"
EPOCH = "__timely_epoch"
"""A column of rows that end: the epoch from which on their time is counted."""
Compact = Callable[[Hashes, pa.Table], tuple[Hashes, pa.Table]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows sorted by H, which are never changed, so that they need be written only once."""

    hashes: Hashes
    table: pa.Table
    #: whether no two rows have one hash
    distinct: bool

    @classmethod
    def of(cls, hashed: Hashes, table: pa.Table) -> Batch:
        """A batch of rows that are sorted."""
        return cls(hashed, table, bool((hashed[1:] != hashed[:-1]).all()))

    def stored(self) -> pa.Table:
        """The rows with their H, which need not be computed, nor read, whole again."""
        return self.table.append_column(_HASH, pa.array(self.hashes))

    @classmethod
    def restored(cls, table: pa.Table, *, distinct: bool) -> Batch:
        """The batch of what `stored` gave."""
        hashed = flat(table.column(_HASH)).to_numpy()
        return cls(hashed, table.drop_columns([_HASH]), distinct)

    @cached_property
    def half_past(self) -> int:
        """The epoch of a row in the middle: once it has ended, so have half of them."""
        epochs = flat(self.table.column(EPOCH)).to_numpy()
        middle = (len(epochs) - 1) // 2
        return int(np.partition(epochs, middle)[middle])


class Arrangement:
    """Rows indexed by key. Inserting costs what is inserted (amortised), a look-up what is asked and found.

    At most logarithmically many batches are held; a batch is never changed, so a checkpoint may keep it by
    reference.

    Example:
        >>> state = Arrangement(("id",))
        >>> state.insert(pa.table({"id": [1, 2, 2], "name": ["a", "b", "c"]}))
        >>> probe, found = state.lookup(pa.table({"id": [2, 3]}), ["id"])
        >>> probe.tolist(), sorted(found["name"].to_pylist())
        ([0, 0], ['b', 'c'])
    """

    def __init__(self, keys: Sequence[str], tables: Sequence[pa.Table] = ()) -> None:
        self.keys = tuple(keys)
        #: each more than twice as large as the next
        self.parts: list[Batch] = [Batch.of(hashes(table, self.keys), table) for table in tables]

    def __len__(self) -> int:
        """The number of rows."""
        return sum(part.table.num_rows for part in self.parts)

    def batches(self) -> list[pa.Table]:
        """The sorted batches, largest first."""
        return [part.table for part in self.parts]

    def insert(self, table: pa.Table, hashed: Hashes | None = None, compact: Compact | None = None) -> None:
        """Add rows. `compact` may drop or combine rows whenever batches are merged."""
        if table.num_rows == 0:
            return
        h = hashes(table, self.keys) if hashed is None else hashed
        order = in_order(h)
        self.parts.append(Batch.of(h[order], table.take(order).combine_chunks()))
        # all pairs: a batch that `expire` dropped rows from may be anywhere
        for at in range(len(self.parts) - 1, 0, -1):
            one, two = self.parts[at - 1 : at + 1]
            if len(one.hashes) >= 2 * len(two.hashes):
                continue
            h, table = np.concatenate([one.hashes, two.hashes]), pa.concat_tables([one.table, two.table])
            order = np.argsort(h, kind="stable")  # two sorted runs: linear
            h, table = h[order], table.take(order)
            if compact is not None:
                h, table = compact(h, table)
            self.parts[at - 1 : at + 1] = [Batch.of(h, table.combine_chunks())]

    def expire(self, before: int) -> None:
        """Drop rows whose `EPOCH` is before an epoch: all of them where they are half of a batch.

        What lies in the rest is dropped in its turn, so no more than half of the rows have ended; and to drop
        a row costs what it cost to insert it (amortised), however large the state is.
        """
        for place, part in enumerate(self.parts):
            if len(part.hashes) and part.half_past < before:
                keep = flat(part.table.column(EPOCH)).to_numpy() >= before
                table = part.table.filter(pa.array(keep)).combine_chunks()
                self.parts[place] = Batch.of(part.hashes[keep], table)
        self.parts = [part for part in self.parts if len(part.hashes)]

    def lookup(
        self, probe: pa.Table, on: Sequence[str], hashed: Hashes | None = None
    ) -> tuple[Indices, pa.Table]:
        """All rows whose key equals a probe row's; and for each the index of that probe row (ascending)."""
        h = hashes(probe, on) if hashed is None else hashed
        # searching in sorted order walks each batch once, from end to end
        by_hash = in_order(h)
        ordered = h[by_hash]
        found: list[tuple[Indices, pa.Table]] = []
        for part in self.parts:
            batch_hash, table = part.hashes, part.table
            if not len(batch_hash):  # all of it was dropped when batches were merged
                continue
            low = np.searchsorted(batch_hash, ordered, "left")
            if part.distinct:  # none or one for each: half the work
                hit = batch_hash[np.minimum(low, len(batch_hash) - 1)] == ordered
                rows, at = low[hit], by_hash[hit]
            else:
                counts = np.searchsorted(batch_hash, ordered, "right") - low
                within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
                rows, at = np.repeat(low, counts) + within, np.repeat(by_hash, counts)
            if not len(rows):
                continue
            rows = table.take(rows)
            if not (exact(probe, on) and exact(table, self.keys)):
                equal = same(rows, probe.select(list(dict.fromkeys(on))).take(at), self.keys, on)
                if not equal.all():
                    rows, at = rows.filter(equal), at[equal]
            found.append((at, rows))
        if not found:
            return np.zeros(0, np.int64), self.parts[0].table.slice(0, 0) if self.parts else pa.table({})
        at, rows = np.concatenate([at for at, _ in found]), pa.concat_tables([rows for _, rows in found])
        order = in_order(at.view(np.uint64) << np.uint64(64 - len(h).bit_length()))
        return at[order], rows.take(order)
