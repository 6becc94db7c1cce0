"""Where records leave the flow for the driver, and where one watches them pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Refines, Vertex
from timely_spark.operators.least import least
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.keys import Hashes, group
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

    def __init__(self, schema: pa.Schema, diff: str | None, refines: Refines) -> None:
        super().__init__(schema, diff)
        self.refines = refines
        self.state = Arrangement(refines.keys)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Say anew, for this epoch and those after it that have begun, what each touched key has come to."""
        refines, keys = self.refines, list(self.refines.keys)
        best = least(batch, refines)
        probe, known = self.state.lookup(best, keys)
        times, which = stamps(known, self._context.times) if len(probe) else ([], np.zeros(0, np.int64))
        epochs = np.array([one.epoch for one in times], np.int64)[which]
        columns = best.schema.names
        rows = pa.concat_tables([best, known.select(columns)]) if len(probe) else best
        frame = pd.DataFrame(
            {
                "key": np.concatenate([np.arange(best.num_rows), probe]),
                "epoch": np.concatenate([np.full(best.num_rows, time.epoch), epochs]),
                "rank": _ranks(rows, refines),
                "new": np.arange(rows.num_rows) < best.num_rows,
            }
        ).sort_values(["key", "epoch", "rank", "new"], kind="stable")
        # of each (key, epoch) the best; `before` is what the key had come to in the epochs before
        frame = frame[~frame.duplicated(["key", "epoch"])]
        frame["before"] = frame.groupby("key")["rank"].cummin().groupby(frame["key"]).shift(1)
        frame["holds"] = frame["before"].isna() | (frame["rank"] < frame["before"])
        holder = frame.index.to_series().where(frame["holds"]).groupby(frame["key"]).ffill()
        frame["was"] = holder.groupby(frame["key"]).shift(1)
        touched = frame.groupby("key")["new"].transform("any") & (frame["epoch"] >= time.epoch)
        for epoch, part in frame[touched].groupby("epoch"):
            self._say(self._context.times.epoch(int(epoch)), rows, part)
        fresh = frame.index[frame["new"] & frame["holds"]].to_numpy()
        self.state.insert(stamp(best.take(fresh), time), compact=self._compact)

    def _say(self, time: Any, rows: pa.Table, part: pd.DataFrame) -> None:
        out = rows.take(part.index.to_numpy()).append_column(VOID, pa.array(~part["holds"].to_numpy()))
        if self.diff is not None:
            plus = out.append_column(self.diff, pa.array(np.ones(len(part), np.int32)))
            was = part["was"].notna().to_numpy() & part["holds"].to_numpy()
            old = rows.take(
                np.where(was, part["was"].fillna(0).to_numpy(), part.index.to_numpy()).astype(np.int64)
            )
            minus = old.append_column(VOID, pa.array(~was)).append_column(
                self.diff, pa.array(np.full(len(part), -1, np.int32))
            )
            out = pa.concat_tables([minus, plus])
        self._context.output(time, out)

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

    def _compact(self, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        table, at = settle_times(table, self._context.times, self._context.since())
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
