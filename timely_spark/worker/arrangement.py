"""Keyed state as a few immutable batches sorted by H, merged geometrically (differential's spines)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from timely_spark.worker.keys import Hashes, Indices, exact, hashes, in_order, same

Compact = Callable[[Hashes, pa.Table], tuple[Hashes, pa.Table]]


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
        #: sorted by H, each more than twice as large as the next; H is computed again when read, not stored
        self._batches: list[tuple[Hashes, pa.Table]] = [(hashes(table, self.keys), table) for table in tables]

    def __len__(self) -> int:
        """The number of rows."""
        return sum(table.num_rows for _, table in self._batches)

    def batches(self) -> list[pa.Table]:
        """The sorted batches, largest first."""
        return [table for _, table in self._batches]

    def insert(self, table: pa.Table, hashed: Hashes | None = None, compact: Compact | None = None) -> None:
        """Add rows. `compact` may drop or combine rows whenever batches are merged."""
        if table.num_rows == 0:
            return
        h = hashes(table, self.keys) if hashed is None else hashed
        order = in_order(h)
        self._batches.append((h[order], table.take(order).combine_chunks()))
        while len(self._batches) > 1 and len(self._batches[-2][0]) < 2 * len(self._batches[-1][0]):
            (h1, t1), (h2, t2) = self._batches[-2:]
            h, table = np.concatenate([h1, h2]), pa.concat_tables([t1, t2])
            order = np.argsort(h, kind="stable")  # two sorted runs: linear
            h, table = h[order], table.take(order)
            if compact is not None:
                h, table = compact(h, table)
            self._batches[-2:] = [(h, table.combine_chunks())]

    def lookup(
        self, probe: pa.Table, on: Sequence[str], hashed: Hashes | None = None
    ) -> tuple[Indices, pa.Table]:
        """All rows whose key equals a probe row's; and for each the index of that probe row (ascending)."""
        h = hashes(probe, on) if hashed is None else hashed
        # searching in sorted order walks each batch once, from end to end
        by_hash = in_order(h)
        ordered = h[by_hash]
        found: list[tuple[Indices, pa.Table]] = []
        for batch_hash, table in self._batches:
            low = np.searchsorted(batch_hash, ordered, "left")
            if (batch_hash[1:] != batch_hash[:-1]).all():  # none or one for each: half the work
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
            return np.zeros(0, np.int64), self._batches[0][1].slice(0, 0) if self._batches else pa.table({})
        at, rows = np.concatenate([at for at, _ in found]), pa.concat_tables([rows for _, rows in found])
        order = in_order(at.view(np.uint64) << np.uint64(64 - len(h).bit_length()))
        return at[order], rows.take(order)
