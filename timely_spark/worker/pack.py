"""Packing: what a source's own task does with its rows before Spark's shuffle brings them to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.errors import VertexError, excerpt
from timely_spark.graph import Stage, Stateless
from timely_spark.worker.columns import Epochs, epochs_of, spans
from timely_spark.worker.keys import deal, to_bytes
from timely_spark.worker.plan import Plan, Source
from timely_spark.worker.rows import Row, as_rows

#: What is sent at once travels in pieces of about this size.
PIECE_BYTES = 8 << 20


def pack(plan: Plan, source: str, table: pa.Table, shard: int, seq: int = 0) -> pa.Table:
    """Pack a part of what a source read in one micro-batch: one Arrow batch per (entry, worker).

    With epochs of a column a batch has the rows of all its epochs, in their order, and every worker is told
    which epochs there are.

    Args:
        plan: the plan.
        source: the input's name.
        table: rows in the input's schema.
        shard: which part of the micro-batch this is (the task's partition): the same when the batch is read
            again.
        seq: which piece of that part.

    Returns:
        Rows of schema `ROWS`; at least one, so that an epoch whose rows were all filtered away is heard of.
    """
    entry = plan.source(source)
    table = table.cast(entry.stage.outputs[0]) if table.schema != entry.stage.outputs[0] else table
    rows: list[Row] = []
    tick: dict[str, Any] = {"source": source}
    if entry.epochs in {"clock", "manual"}:
        rows += _pack(plan, entry, _Batch(table), {"shard": shard, "seq": seq})
    elif table.num_rows:
        batch = _by_epoch(table, entry.epochs)
        rows += _pack(plan, entry, batch, {"shard": shard, "seq": seq})
        counts = batch.counts
        tick["spans"] = spans(counts, entry.stage.max_jump)
        rows += [(w, "input", tick, None) for w in range(plan.workers) if w != shard % plan.workers]
        tick = tick | {"rows": counts}  # which one worker counts
    return as_rows([(shard % plan.workers, "input", tick, None), *rows])


def pack_input(
    plan: Plan, source: str, entries: Iterable[tuple[int, str, int | None, pa.Table | None]]
) -> pa.Table:
    """Pack what was done with a handle, in order: ``(seq, "send" | "advance" | "close", epoch, table)``."""
    entry = plan.source(source)
    rows: list[Row] = []
    for seq, kind, epoch, table in entries:
        if kind == "send" and table is not None:
            at = {"shard": -1, "seq": seq} | ({"epoch": epoch} if entry.epochs == "manual" else {})
            rows.append((0, "input", {"source": source} | ({"epoch": epoch} if "epoch" in at else {}), None))
            pieces = _pieces(table)
            for index, piece in enumerate(pieces):
                rows += _pack(plan, entry, _Batch(piece), at | ({"piece": index} if len(pieces) > 1 else {}))
        else:
            meta = {"source": source, "to": epoch if kind == "advance" else None, "seq": seq}
            rows += [(worker, "advance", meta, None) for worker in range(plan.workers)]
    return as_rows(rows)


def _pieces(table: pa.Table) -> list[pa.Table]:
    """A large entry in several rows of Spark's, which keeps some copies of each in its heap."""
    size = max(1, -(-table.num_rows * PIECE_BYTES // max(1, table.nbytes)))
    return [table.slice(first, size) for first in range(0, max(1, table.num_rows), size)]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows; with epochs of a column the epoch of each, ascending."""

    table: pa.Table
    epochs: Epochs | None = None

    @property
    def bounds(self) -> Epochs:
        """Where epochs begin, and the last one ends."""
        assert self.epochs is not None
        inner = np.flatnonzero(np.diff(self.epochs)) + 1
        return np.concatenate([[0], inner, [len(self.epochs)]]) if len(self.epochs) else np.zeros(1, np.int64)

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Each epoch, and how many rows it has."""
        bounds = self.bounds
        assert self.epochs is not None
        return list(zip(self.epochs[bounds[:-1]].tolist(), np.diff(bounds).tolist(), strict=True))

    def through(self, stage: Stage) -> list[_Batch]:
        """What a per-batch stage makes of it, by output: never of rows of two epochs together."""
        if self.epochs is None:
            return [_Batch(made) for made in apply_stage(stage, self.table)]
        bounds, which = self.bounds, self.epochs
        made = [apply_stage(stage, self.table.slice(a, b - a)) for a, b in pairwise(bounds.tolist())]
        out = []
        for tables in zip(*made, strict=True):
            sizes = [table.num_rows for table in tables]
            out.append(
                _Batch(pa.concat_tables(tables).combine_chunks(), np.repeat(which[bounds[:-1]], sizes))
            )
        return out

    def dealt(self, columns: tuple[str, ...], workers: int) -> dict[int, _Batch]:
        """The rows of each worker, in the order in which they are."""
        if self.epochs is None:
            return {worker: _Batch(part) for worker, part in deal(self.table, columns, workers).items()}
        parts = deal(self.table.append_column(_EPOCH, pa.array(self.epochs)), columns, workers)
        last = self.table.num_columns
        return {
            w: _Batch(part.remove_column(last), part.column(last).to_numpy()) for w, part in parts.items()
        }


#: a column that travels with the rows while they are dealt
_EPOCH = "__timely_epoch"


def _by_epoch(table: pa.Table, column: str) -> _Batch:
    """The rows in the order of their epochs."""
    epochs = epochs_of(table.column(column))
    if len(epochs) and np.any(epochs[1:] < epochs[:-1]):
        order = np.argsort(epochs, kind="stable")
        table, epochs = table.take(order), epochs[order]
    return _Batch(table.combine_chunks(), epochs)


def _pack(plan: Plan, entry: Source, whole: _Batch, meta: dict[str, Any]) -> Iterator[Row]:
    # by the whole way: a stage may be reached by several, and each brings it other rows
    done: dict[tuple[tuple[Stage, int], ...], _Batch] = {(): whole}
    for index in entry.entries:
        channel = plan.channels[index]
        way: tuple[tuple[Stage, int], ...] = ()
        for stage, port in channel.through:
            if (*way, (stage, port)) not in done:
                for out, made in enumerate(done[way].through(stage)):
                    done[(*way, (stage, out))] = made
            way = (*way, (stage, port))
        batch = done[way]
        if channel.exchange is None:  # anywhere will do; by shard, so that it is the same when read again
            there = (meta["shard"] + meta["seq"] + meta.get("piece", 0)) % plan.workers
            parts = {there: batch} if batch.table.num_rows else {}
        elif channel.exchange.broadcast:
            parts = dict.fromkeys(range(plan.workers), batch) if batch.table.num_rows else {}
        else:
            parts = batch.dealt(channel.exchange.columns, plan.workers)
        said = {"source": entry.name, "channel": index, **meta}
        for worker, part in parts.items():
            of = said if part.epochs is None else said | {"epochs": part.counts}
            yield worker, "input", of, to_bytes(part.table, narrow=True)


def apply_stage(stage: Stage, batch: pa.Table) -> tuple[pa.Table, ...]:
    """Apply a per-batch stage; what goes wrong in it carries the stage's name and the user's line."""
    assert isinstance(stage.vertex, Stateless)
    try:
        return stage.vertex.apply(batch)
    except Exception as error:
        raise VertexError.from_exception(stage.name, stage.where, error, rows=excerpt(batch)) from error
