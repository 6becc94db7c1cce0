"""Packing: what a source's own task does with its rows before Spark's shuffle brings them to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError, excerpt
from timely_spark.graph import Stage, Stateless
from timely_spark.worker.keys import deal, to_bytes
from timely_spark.worker.plan import Plan, Source
from timely_spark.worker.rows import Row, as_rows


def pack(plan: Plan, source: str, table: pa.Table, shard: int, seq: int = 0) -> pa.Table:
    """Pack a part of what a source read in one micro-batch: one Arrow batch per (entry, worker).

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
        rows += _pack(plan, entry, table, {"shard": shard, "seq": seq})
    else:
        counts = []
        for epoch, part in _by_epoch(table, entry.epochs):
            counts.append((epoch, part.num_rows))
            rows += _pack(plan, entry, part, {"shard": shard, "seq": seq, "epoch": epoch})
        tick |= {"seen": max([-1, *(epoch for epoch, _ in counts)]), "rows": counts}
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
            rows += _pack(plan, entry, table, at)
        else:
            meta = {"source": source, "to": epoch if kind == "advance" else None, "seq": seq}
            rows += [(worker, "advance", meta, None) for worker in range(plan.workers)]
    return as_rows(rows)


def _by_epoch(table: pa.Table, column: str) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each epoch. A null or negative one is no epoch: -1, which is late for ever."""
    epochs = pc.fill_null(table.column(column).cast(pa.int64()), -1).to_numpy()
    epochs = np.maximum(epochs, -1)
    for epoch in np.unique(epochs):
        yield int(epoch), table.filter(epochs == epoch)


def _pack(plan: Plan, entry: Source, table: pa.Table, meta: dict[str, Any]) -> Iterator[Row]:
    # by the whole way: a stage may be reached by several, and each brings it other rows
    done: dict[tuple[tuple[Stage, int], ...], pa.Table] = {(): table}
    for index in entry.entries:
        channel = plan.channels[index]
        way: tuple[tuple[Stage, int], ...] = ()
        for stage, port in channel.through:
            if (*way, (stage, port)) not in done:
                for out, made in enumerate(apply_stage(stage, done[way])):
                    done[(*way, (stage, out))] = made
            way = (*way, (stage, port))
        batch = done[way]
        if channel.exchange is None:  # anywhere will do; by shard, so that it is the same when read again
            parts = {(meta["shard"] + meta["seq"]) % plan.workers: batch} if batch.num_rows else {}
        elif channel.exchange.broadcast:
            parts = dict.fromkeys(range(plan.workers), batch) if batch.num_rows else {}
        else:
            parts = deal(batch, channel.exchange.columns, plan.workers)
        said = {"source": entry.name, "channel": index, **meta}
        for worker, part in parts.items():
            yield worker, "input", said, to_bytes(part, narrow=True)


def apply_stage(stage: Stage, batch: pa.Table) -> tuple[pa.Table, ...]:
    """Apply a per-batch stage; what goes wrong in it carries the stage's name and the user's line."""
    assert isinstance(stage.vertex, Stateless)
    try:
        return stage.vertex.apply(batch)
    except Exception as error:
        raise VertexError.from_exception(stage.name, stage.where, error, rows=excerpt(batch)) from error
