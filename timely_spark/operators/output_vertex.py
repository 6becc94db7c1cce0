"""Vertices at which records leave the flow for the driver, and at which a frontier is probed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Monotone, Vertex
from timely_spark.operators.monotone import best_per_key, keep_best
from timely_spark.operators.retractions import check_changes
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Indices, Mask, replaced, rows_at
from timely_spark.state.grouping import changes, group
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import epochs_of, with_time
from timely_spark.times import Timestamp

VOID = "__timely_void"
"""True on a record that withdraws an earlier one of its key and epoch, which is not released yet."""


class OutputVertex(Vertex):
    """Hand every batch to the driver, which keeps it until its epoch is released."""

    reads_time, improves = False, True

    def __init__(self, schema: pa.Schema, diff: str | None = None) -> None:
        self.schema, self.diff = schema, diff

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        if self.diff is not None:
            batch = batch.append_column(self.diff, pa.array(np.ones(batch.num_rows, np.int32)))
        self._context.output(time, batch)

    @property
    def finish_keys(self) -> tuple[str, ...] | None:
        """The columns whose equal rows `finish` must get in one call; None if parts are final as they are."""
        return None

    def finish(self, tables: list[pa.Table]) -> pa.Table:
        """One epoch's records from its parts, given in the order in which they were handed to the driver."""
        return pa.concat_tables(tables) if tables else self.schema.empty_table()


class ChangesOutput(OutputVertex):
    """Hand out a stream's changes for a current table, without those of one epoch that cancel out."""

    def __init__(self, schema: pa.Schema, weights: str, keys: Sequence[str]) -> None:
        super().__init__(schema)
        #: the column of the changes' weights; and the columns that equal records share
        self.weights, self.keys = weights, tuple(keys)

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Hand the batch to the driver; a change has a weight."""
        check_changes(batch, self.weights)
        super().on_recv(edge, time, batch)

    @property
    def finish_keys(self) -> tuple[str, ...]:
        """The keys: `finish` adds up the weights of equal records."""
        return self.keys

    def finish(self, tables: list[pa.Table]) -> pa.Table:
        """The records of one epoch, each with its total weight, without those whose total is zero."""
        table = super().finish(tables)
        groups = group(table, [name for name in self.schema.names if name != self.weights])
        weights = table.column(self.weights).cast(pa.int64()).to_numpy()
        totals = np.add.reduceat(weights[groups.order], groups.starts)
        some = totals.nonzero()[0]
        return replaced(rows_at(table, groups.order[groups.starts[some]]), self.weights, totals[some])


class ProbeVertex(Vertex):
    """Receive and drop records: a probe asks for the frontier here."""

    reads_time, improves = False, True

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Drop the batch."""


class MonotoneOutput(OutputVertex):
    """Hand out records that may still improve, and withdraw those that an improvement replaces.

    `finish` keeps the last record of each key, so nothing waits for a notification: an epoch is released as
    soon as nothing can arrive at it, with no further round. In the root scope only.
    """

    repartition = repartition

    def __init__(self, schema: pa.Schema, diff: str | None, monotone: Monotone) -> None:
        super().__init__(schema, diff)
        self.monotone = monotone
        self.state = Arrangement(monotone.keys)

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Hand out the best record of each affected key for this epoch and the later ones that have begun."""
        monotone, keys = self.monotone, list(self.monotone.keys)
        best = best_per_key(batch, monotone)
        if not best.num_rows:
            return
        probe, stored = self.state.lookup(best, keys)
        epochs = epochs_of(stored) if len(probe) else np.zeros(0, np.int64)
        columns = best.schema.names
        rows = pa.concat_tables([best, stored.select(columns)]) if len(probe) else best
        key = np.concatenate([np.arange(best.num_rows), probe])
        epoch = np.concatenate([np.full(best.num_rows, time.epoch), epochs])
        rank, arrived = _ranks(rows, monotone), np.arange(rows.num_rows) < best.num_rows
        order = np.lexsort((arrived, rank, epoch, key))
        key, epoch = key[order], epoch[order]
        # per (key, epoch) the best record; among equal ones the stored one
        one = changes(key) | changes(epoch)
        index, key, epoch = order[one], key[one], epoch[one]
        rank, arrived = rank[order][one], arrived[order][one]
        first = changes(key)
        # a record holds if it is better than the key's records of all earlier epochs
        down = key * (rank.max() + 1)
        best_so_far = np.minimum.accumulate(rank - down) + down
        holds = first | np.concatenate([[False], rank[1:] < best_so_far[:-1]])
        holder = index[np.maximum.accumulate(np.where(holds, np.arange(len(index)), 0))]
        previous = np.where(first, -1, np.concatenate([[-1], holder[:-1]]))
        starts = np.flatnonzero(first)
        affected = np.logical_or.reduceat(arrived, starts)[np.cumsum(first) - 1] & (epoch >= time.epoch)
        for one_epoch in np.unique(epoch[affected]):
            part = affected & (epoch == one_epoch)
            at = self._context.times.epoch(int(one_epoch))
            self._hand_out(at, rows, index[part], holds[part], previous[part])
        compact = keep_best(monotone, self._context.since(), self._context.times)
        self.state.insert(with_time(best.take(index[arrived & holds]), time), compact=compact)

    def _hand_out(
        self, time: Timestamp, rows: pa.Table, index: Indices, holds: Mask, previous: Indices
    ) -> None:
        out = rows.take(index).append_column(VOID, pa.array(~holds))
        if self.diff is not None:
            plus = out.append_column(self.diff, pa.array(np.ones(len(index), np.int32)))
            retracts = (previous >= 0) & holds
            old = rows.take(np.where(retracts, previous, index))
            minus = old.append_column(VOID, pa.array(~retracts)).append_column(
                self.diff, pa.array(np.full(len(index), -1, np.int32))
            )
            out = pa.concat_tables([minus, plus])
        self._context.output(time, out)

    @property
    def finish_keys(self) -> tuple[str, ...]:
        """The keys: `finish` keeps one record of each."""
        return self.monotone.keys

    def finish(self, tables: list[pa.Table]) -> pa.Table:
        """The last record of each key, from parts given in the order in which they were handed out."""
        if not tables:
            return super().finish(tables)
        table = pa.concat_tables(tables)
        backwards = np.arange(table.num_rows)[::-1]
        keys = [*self.monotone.keys, *([self.diff] if self.diff else [])]
        last = backwards[group(table.take(backwards), keys).firsts]
        table = table.take(np.sort(last))
        return table.filter(pc.invert(table.column(VOID))).select(self.schema.names)


def _ranks(table: pa.Table, monotone: Monotone) -> Any:
    """Dense ranks of the values: the best has the least rank."""
    if monotone.value is None:
        return np.zeros(table.num_rows, np.int64)
    order = "descending" if monotone.greatest else "ascending"
    ranks = pc.rank(table.column(monotone.value), sort_keys=order, tiebreaker="dense")
    return ranks.to_numpy().astype(np.int64)
