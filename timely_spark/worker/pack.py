"""Packing: a source's task applies per-batch stages and partitions its rows before Spark's shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.compiler.plan import Channel, Plan, PlanInput
from timely_spark.errors import RAISED, SchemaError, VertexError, excerpt, row_texts
from timely_spark.graph import Partition, Stage, Stateless, as_table
from timely_spark.graph.suggest import a_type
from timely_spark.state.arrow import to_bytes
from timely_spark.state.exchange import partitioned
from timely_spark.state.row_times import DIFF
from timely_spark.worker import wire
from timely_spark.worker.combining import combined
from timely_spark.worker.epoch_columns import Epochs, by_column, column_epochs, spans
from timely_spark.worker.wire import Advance, InputBatch, Item, Tick

#: The size of the sample that decides whether a source's rows are combined before the exchange.
SAMPLE = 4096

#: Results of at most so many records are compared by the simulator.
_COMPARED = 10_000
#: A large `send` is split into rows of about this size.
PIECE_BYTES = 8 << 20


def pack(
    plan: Plan, source: str, table: pa.Table, shard: int, seq: int = 0, *, epoch: int | None = None
) -> pa.Table:
    """Pack a part of what a source read in one micro-batch: one Arrow batch per (entry, worker).

    With an epoch column, a batch has the rows of all epochs, in order of epochs, and every worker gets the
    list of the epochs.

    Args:
        table: rows in the input's schema, perhaps without columns that nothing reads.
        shard: the number of the task's partition, which is the same when the batch is read again.
        seq: the number of this call for the partition.
        epoch: with manual epochs, the epoch of the rows.

    Returns:
        Rows of schema `ROWS`; at least one, so that an epoch without records completes, too.
    """
    entry = plan.source(source)
    schema = pa.schema([entry.stage.outputs[0].field(name) for name in table.schema.names])
    table = table.cast(schema) if table.schema != schema else table
    first, tick = shard % plan.workers, Tick(source=source, epoch=epoch, read=table.num_rows)
    if not table.num_rows:
        return wire.table([(first, tick)])
    if not by_column(entry.epochs):
        return wire.table([(first, tick), *_pack(plan, entry, _Batch(table), shard, seq, epoch=epoch)])
    batch = _by_epoch(table, entry.epochs)
    counts, batches = batch.counts, _pack(plan, entry, batch, shard, seq)
    tick = replace(tick, spans=spans(counts, entry.stage.max_jump))
    others = [(worker, replace(tick, read=0)) for worker in range(plan.workers) if worker != first]
    # one worker counts the rows of each epoch
    return wire.table([(first, replace(tick, rows=counts)), *batches, *others])


def pack_input(
    plan: Plan,
    source: str,
    entries: Iterable[tuple[int, Literal["send", "advance", "close"], int | None, pa.Table | None]],
) -> pa.Table:
    """Pack the calls of a handle, in order: ``(seq, "send" | "advance" | "close", epoch, table)``."""
    entry = plan.source(source)
    items: list[tuple[int, Item]] = []
    for seq, kind, epoch, table in entries:
        if kind == "send" and table is not None:
            at = epoch if entry.epochs == "manual" else None
            items.append((0, Tick(source=source, epoch=at, read=table.num_rows)))
            for piece, part in enumerate(_pieces(table)):
                items += _pack(plan, entry, _Batch(part), -1, seq, piece=piece, epoch=at)
        else:
            advance = Advance(source=source, to=epoch if kind == "advance" else None, seq=seq)
            items += [(worker, advance) for worker in range(plan.workers)]
    return wire.table(items)


def pack_quarantined(plan: Plan, source: str, table: pa.Table, shard: int = 0) -> pa.Table:
    """Pack the rows about quarantined files or messages; with an epoch column they enter as late rows do."""
    entry = plan.source(source)
    batches = list(_pack(plan, entry, _Batch(table), shard, 0, entries=entry.quarantined))
    tick = Tick(source=source, spans=[] if by_column(entry.epochs) else None)
    ticks = {worker: tick for worker, _ in batches}
    ticks[shard % plan.workers] = replace(tick, quarantined=table.num_rows)  # one worker counts them
    return wire.table([*ticks.items(), *batches])


def _pieces(table: pa.Table) -> list[pa.Table]:
    """A table as pieces for Spark's rows: Spark keeps some copies of each row in its heap."""
    size = max(1, -(-table.num_rows * PIECE_BYTES // max(1, table.nbytes)))
    return [table.slice(first, size) for first in range(0, table.num_rows, size)]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows, and with an epoch column the epochs of the rows, ascending."""

    table: pa.Table
    epochs: Epochs | None = None

    @property
    def bounds(self) -> Epochs:
        """The first rows of the epochs, and the number of rows."""
        assert self.epochs is not None
        inner = np.flatnonzero(np.diff(self.epochs)) + 1
        return np.concatenate([[0], inner, [len(self.epochs)]]) if len(self.epochs) else np.zeros(1, np.int64)

    @property
    def counts(self) -> list[tuple[int, int]]:
        """The epochs and their numbers of rows."""
        bounds = self.bounds
        assert self.epochs is not None
        return list(zip(self.epochs[bounds[:-1]].tolist(), np.diff(bounds).tolist(), strict=True))

    def through(self, stage: Stage, plan: Plan, at: str) -> list[_Batch]:
        """The outputs of a per-batch stage, which is applied to each epoch's rows by themselves."""
        twice = plan.checks_laws
        plan.calling = stage, at, self.table.num_rows, monotonic()
        if self.epochs is None:
            return [_Batch(output) for output in apply_stage(stage, self.table, twice=twice)]
        bounds, epochs = self.bounds, self.epochs
        parts = (self.table.slice(a, b - a) for a, b in pairwise(bounds.tolist()))
        outputs = [apply_stage(stage, part, twice=twice) for part in parts]
        batches = []
        for tables in zip(*outputs, strict=True):
            sizes = [table.num_rows for table in tables]
            batches.append(
                _Batch(pa.concat_tables(tables).combine_chunks(), np.repeat(epochs[bounds[:-1]], sizes))
            )
        return batches

    def partitioned(self, by: Partition, workers: int) -> dict[int, _Batch]:
        """The rows of each worker, in the batch's order."""
        if self.epochs is None:
            parts = partitioned(self.table, by, workers, narrow=True)
            return {worker: _Batch(part) for worker, part in parts.items()}
        numbered = partitioned(self.table.append_column(_EPOCH, pa.array(self.epochs)), by, workers)
        last = self.table.num_columns
        return {
            w: _Batch(part.remove_column(last), part.column(last).to_numpy()) for w, part in numbered.items()
        }


#: the name of the column of epochs while rows are partitioned
_EPOCH = "__timely_epoch"


def _by_epoch(table: pa.Table, column: str) -> _Batch:
    """The rows in the order of their epochs."""
    epochs = column_epochs(table.column(column))
    if len(epochs) and np.any(epochs[1:] < epochs[:-1]):
        order = np.argsort(epochs, kind="stable")
        table, epochs = table.take(order), epochs[order]
    return _Batch(table.combine_chunks(), epochs)


def _pack(
    plan: Plan,
    entry: PlanInput,
    whole: _Batch,
    shard: int,
    seq: int,
    *,
    piece: int = 0,
    epoch: int | None = None,
    entries: Iterable[int] | None = None,
) -> Iterator[tuple[int, InputBatch]]:
    # outputs by the route from the source, because a stage gets other rows by another route
    outputs: dict[tuple[tuple[Stage, int], ...], _Batch] = {(): whole}
    at = f"input {entry.name!r}"
    for index in sorted({*entry.entries} - entry.quarantined if entries is None else entries):
        channel = plan.channels[index]
        route: tuple[tuple[Stage, int], ...] = ()
        for stage, port in channel.through:
            if (*route, (stage, port)) not in outputs:
                for out, output in enumerate(outputs[route].through(stage, plan, at)):
                    outputs[(*route, (stage, out))] = output
                plan.calling = None
            route = (*route, (stage, port))
        batch = outputs[route]
        if channel.exchange is None:  # any worker; by shard, so that a replay chooses the same one
            worker = (shard + seq + piece) % plan.workers
            by_worker = {worker: batch} if batch.table.num_rows else {}
        else:
            if not channel.exchange.broadcast:
                batch = _combined(plan, channel, batch)
            by_worker = batch.partitioned(channel.exchange, plan.workers)
        for worker, part in by_worker.items():
            yield (
                worker,
                InputBatch(
                    source=entry.name,
                    channel=index,
                    shard=shard,
                    seq=seq,
                    piece=piece,
                    epoch=epoch,
                    epochs=None if part.epochs is None else part.counts,
                    payload=to_bytes(part.table, narrow=True),
                ),
            )


def _combined(plan: Plan, channel: Channel, batch: _Batch) -> _Batch:
    """The records combined as before any exchange, if among the first ones at least a quarter is saved.

    Combining is optional, so the sample decides only what is cheaper, and equal rows decide equally. What a
    vertex does `before_exchange` was done already, and rows of several epochs cannot be combined.
    """
    template, first = plan.nodes[channel.target].template, batch.table.slice(0, SAMPLE)
    if template.combine is None or template.before_exchange is not None or batch.epochs is not None:
        return batch
    many = first.num_rows == SAMPLE and 4 * combined(plan, channel, first).num_rows > 3 * SAMPLE
    return batch if many else _Batch(combined(plan, channel, batch.table))


def apply_stage(stage: Stage, batch: pa.Table, *, twice: bool = False) -> tuple[pa.Table, ...]:
    """Apply a per-batch stage; its errors name the stage and the user's line.

    Args:
        twice: apply a user's function of a collection twice, and compare the results.
    """
    vertex = stage.vertex
    assert isinstance(vertex, Stateless)
    try:
        results = vertex.apply(batch)
        if vertex.sends_for_user:
            results = _checked(stage, vertex, results)
        if twice and DIFF in batch.schema.names and batch.num_rows <= _COMPARED and _calls(vertex):
            again = vertex.apply(batch)
            _check_same(results, _checked(stage, vertex, again) if vertex.sends_for_user else again)
    except RAISED as error:
        raise VertexError.from_exception(stage.name, stage.where, error, rows=excerpt(batch)) from error
    return results


def _checked(stage: Stage, vertex: Stateless, results: Any) -> tuple[pa.Table, ...]:
    """The rows that a user's vertex makes of a batch, checked and copied like those that it sends."""
    if not isinstance(results, tuple | list) or len(results) != len(stage.outputs):
        count = f" of {len(results)}" if isinstance(results, tuple | list) else ""
        msg = f"apply returns {a_type(results)}{count}; it has outputs: {len(stage.outputs)}"
        raise SchemaError(msg, hint="return a tuple with a table for each output.")
    return tuple(
        as_table(one, _declared(vertex, schema, one), of="apply's result", projected=True)
        for one, schema in zip(results, stage.outputs, strict=True)
    )


def _declared(vertex: Stateless, schema: pa.Schema, result: Any) -> pa.Schema:
    """The columns of a result: where `reads` says what is needed, a source may have read fewer than all."""
    if type(vertex).reads is Stateless.reads:
        return schema
    names = getattr(result, "column_names", getattr(result, "columns", schema.names))
    return pa.schema([field for field in schema if field.name in names])


def _calls(vertex: Stateless) -> bool:
    """Whether a function of Python's is applied, not expressions alone."""
    return vertex.sends_for_user or any(
        callable(value) and not isinstance(value, pc.Expression) for value in vars(vertex).values()
    )


def _check_same(results: tuple[pa.Table, ...], again: tuple[pa.Table, ...]) -> None:
    """Check that two results are the same; NaN is itself."""
    for one, other in zip(results, again, strict=True):
        if one.equals(other) or row_texts(one) == row_texts(other):
            continue
        msg = f"of the same records it gives {excerpt(one)}, then {excerpt(other)}"
        hint = (
            "a deletion computes its record once more, so another result leaves the first one for ever: use "
            "no clock, no random numbers and nothing from outside."
        )
        raise SchemaError(msg, hint=hint)
