"""Where records leave the flow for the driver, and where one watches them pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Refines, Vertex
from timely_spark.operators.least import least
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.keys import Hashes, Indices, Mask, group
from timely_spark.worker.partitioning import repartition
from timely_spark.worker.stamps import settle_times, stamp, stamps

VOID = "__timely_void"
"""The column by which an output takes back what it handed out for an epoch that is not released yet."""


class Output(Vertex):
    """Hand every batch to the driver, which keeps it until its epoch is released."""

    reads_time = False

    def __init__(self, schema: pa.Schema, diff: str | None = None) -> None:
        self.schema, self.diff = schema, diff

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Hand over."""
        if self.diff is not None:
            batch = batch.append_column(self.diff, pa.array(np.ones(batch.num_rows, np.int32)))
        self._context.output(time, batch)

    @property
    def finish_keys(self) -> tuple[str, ...] | None:
        """The columns whose equal rows `finish` must be given together; None: each part is final."""
        return None

    def finish(self, tables: list[pa.Table]) -> pa.Table:
        """Put the parts of one epoch together, given in the order in which they were handed out."""
        return pa.concat_tables(tables) if tables else self.schema.empty_table()


class Watch(Vertex):
    """Receive, and do nothing: a place at which a frontier is of interest."""

    reads_time = False

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Nothing."""


class RefinedOutput(Output):
    """Hand out records that may still be bettered, each time they are, and take back what no longer holds.

    So that nobody must wait: whoever puts an epoch's parts together lets the last word on each key count, and
    the epoch is released as soon as nothing can arrive any more, with no further round. In the root scope
    only.
    """

    repartition = repartition

    def __init__(self, schema: pa.Schema, diff: str | None, refines: Refines) -> None:
        super().__init__(schema, diff)
        self.refines = refines
        self.state = Arrangement(refines.keys)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Say anew, for this epoch and those after it that have begun, what each touched key has come to."""
        refines, keys = self.refines, list(self.refines.keys)
        best = least(batch, refines)
        if not best.num_rows:
            return
        probe, known = self.state.lookup(best, keys)
        times, which = stamps(known, self._context.times) if len(probe) else ([], np.zeros(0, np.int64))
        epochs = np.array([one.epoch for one in times], np.int64)[which]
        columns = best.schema.names
        rows = pa.concat_tables([best, known.select(columns)]) if len(probe) else best
        key = np.concatenate([np.arange(best.num_rows), probe])
        epoch = np.concatenate([np.full(best.num_rows, time.epoch), epochs])
        rank, new = _ranks(rows, refines), np.arange(rows.num_rows) < best.num_rows
        order = np.lexsort((new, rank, epoch, key))
        key, epoch = key[order], epoch[order]
        # of each (key, epoch) the best; among equal ones the older
        one = np.concatenate([[True], (key[1:] != key[:-1]) | (epoch[1:] != epoch[:-1])])
        index, key, epoch, rank, new = order[one], key[one], epoch[one], rank[order][one], new[order][one]
        first = np.concatenate([[True], key[1:] != key[:-1]])
        # it holds if it betters all that the key had come to in the epochs before
        down = key * (rank.max() + 1)
        best_yet = np.minimum.accumulate(rank - down) + down
        holds = first | np.concatenate([[False], rank[1:] < best_yet[:-1]])
        holder = index[np.maximum.accumulate(np.where(holds, np.arange(len(index)), 0))]
        was = np.where(first, -1, np.concatenate([[-1], holder[:-1]]))
        starts = np.flatnonzero(first)
        touched = np.logical_or.reduceat(new, starts)[np.cumsum(first) - 1] & (epoch >= time.epoch)
        for one_epoch in np.unique(epoch[touched]):
            part = touched & (epoch == one_epoch)
            self._say(self._context.times.epoch(int(one_epoch)), rows, index[part], holds[part], was[part])
        compact = partial(self._compact, self._context.since())
        self.state.insert(stamp(best.take(index[new & holds]), time), compact=compact)

    def _say(self, time: Any, rows: pa.Table, index: Indices, holds: Mask, was: Indices) -> None:
        out = rows.take(index).append_column(VOID, pa.array(~holds))
        if self.diff is not None:
            plus = out.append_column(self.diff, pa.array(np.ones(len(index), np.int32)))
            takes_back = (was >= 0) & holds
            old = rows.take(np.where(takes_back, was, index))
            minus = old.append_column(VOID, pa.array(~takes_back)).append_column(
                self.diff, pa.array(np.full(len(index), -1, np.int32))
            )
            out = pa.concat_tables([minus, plus])
        self._context.output(time, out)

    @property
    def finish_keys(self) -> tuple[str, ...]:
        """Those on which there is one last word."""
        return self.refines.keys

    def finish(self, tables: list[pa.Table]) -> pa.Table:
        """The last word on each key, in parts given in the order in which they were handed out."""
        if not tables:
            return super().finish(tables)
        table = pa.concat_tables(tables)
        backwards = np.arange(table.num_rows)[::-1]
        keys = [*self.refines.keys, *([self.diff] if self.diff else [])]
        last = backwards[group(table.take(backwards), keys).firsts]
        table = table.take(np.sort(last))
        return table.filter(pc.invert(table.column(VOID))).select(self.schema.names)

    def _compact(self, since: int, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        table, at = settle_times(table, self._context.times, since)
        ranked = table.append_column("__timely_class", pa.array(at)).append_column(
            "__timely_rank", pa.array(_ranks(table, self.refines))
        )
        order = np.argsort(ranked.column("__timely_rank").to_numpy(), kind="stable")
        rows = np.sort(order[group(ranked.take(order), [*self.refines.keys, "__timely_class"]).firsts])
        return hashed[rows], table.take(rows)


def _ranks(table: pa.Table, refines: Refines) -> Any:
    """Numbers in the order of the values, the best least; equal for equal values."""
    if refines.value is None:
        return np.zeros(table.num_rows, np.int64)
    order = "descending" if refines.greatest else "ascending"
    return (
        pc.rank(table.column(refines.value), sort_keys=order, tiebreaker="dense").to_numpy().astype(np.int64)
    )
