"""The input of a worker's round: the header, the data and advances of the flow's inputs, and messages."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Channel, Node, Plan, PlanInput
from timely_spark.state.arrow import from_bytes
from timely_spark.worker import wire
from timely_spark.worker.epoch_columns import InTime, Refused, by_column
from timely_spark.worker.notify import input_frontier
from timely_spark.worker.wire import Advance, Header, InputBatch, Item, Message, Tick

ArrivedBatch = tuple[Node, int, Any, pa.Table]
"""Records that have come to a worker: the vertex, its input, the time, and the records."""


class Received:
    """The rows of a worker's round, decoded; the order of the rows does not matter.

    Args:
        batch_id: the micro-batch; with clock epochs, also the epoch of its input.
        rows: the worker's input, of schema `ROWS`.
        header: the round's header; None if a row has it.
    """

    def __init__(self, plan: Plan, batch_id: int, rows: pa.Table, header: Header | None = None) -> None:
        self.plan, self.batch_id = plan, batch_id
        items: dict[type[Item], list[Any]] = defaultdict(list)
        headers = () if header is not None else (Header,)
        for _, item in wire.read(rows, *headers, Tick, Advance, InputBatch, Message):
            items[type(item)].append(item)
        self.header: Header = items[Header][0] if header is None else header
        #: per input the frontier after this batch, and the least epoch of the batch's data
        self.frontiers: dict[str, int | None] = {}
        self.data_epochs: dict[str, int | None] = {}
        #: as in `Report`
        self.ticks: set[int] = set()
        self.advanced: dict[str, int | None] = {}
        self.seen: dict[str, int] = {}
        self.late: dict[str, int] = defaultdict(int)
        self.refused: dict[str, Refused] = defaultdict(Refused)
        self.read: dict[str, int] = defaultdict(int)
        self.quarantined: dict[str, int] = defaultdict(int)
        #: the pointstamps of the messages, and the records of inputs by channel, which `batches` counts
        self.pointstamps: dict[tuple[int, Any], int] = defaultdict(int)
        self.moved: dict[int, int] = defaultdict(int)
        self._advance_inputs(items[Advance])
        self._check_epochs(items[Tick])
        self._inputs: list[InputBatch] = sorted(items[InputBatch], key=attrgetter("order"))
        self._messages: list[Message] = sorted(items[Message], key=attrgetter("order"))

    def _advance_inputs(self, advances: list[Advance]) -> None:
        first = self.header.batch < self.batch_id
        for source in self.plan.inputs:
            name = source.name
            self.frontiers[name], self.data_epochs[name] = input_frontier(
                source, self.header.inputs[name], self.batch_id, first=first
            )
        for advance in sorted(advances, key=attrgetter("seq")):
            name, before = advance.source, self.frontiers[advance.source]
            declared = self.plan.source(name)
            if (
                advance.to is None
                and before is not None
                and declared.epochs == "manual"
                and declared.stage.handle
            ):
                self.ticks.add(before)  # closing a handle completes its last epoch
            self.frontiers[name] = self.advanced[name] = advance.to

    def _check_epochs(self, ticks: list[Tick]) -> None:
        """Find the epochs that begin; of sources with an epoch column, also which rows are in time."""
        #: the epochs that are in time of each source with an epoch column
        self.in_time: dict[str, InTime] = {}
        parts: dict[str, list[Tick]] = defaultdict(list)
        for tick in ticks:
            self.read[tick.source] += tick.read  # also 0: it was there
            if tick.quarantined:
                self.quarantined[tick.source] += tick.quarantined
            epochs = self.plan.source(tick.source).epochs
            if tick.spans is not None:
                parts[tick.source].append(tick)
            elif (epoch := self.batch_id if epochs == "clock" else tick.epoch) is not None:
                self.ticks.add(epoch)
        for name, of_source in parts.items():
            in_time = self.in_time[name] = InTime.of(
                itertools.chain.from_iterable(tick.spans or () for tick in of_source),
                self.data_epochs[name],
                seen=name not in self.header.unseen,
                jump=self.plan.source(name).stage.max_jump,
                after=self.header.late.get(name),
            )
            if in_time.high >= in_time.low:
                self.seen[name] = in_time.high
            for counts in (tick.rows for tick in of_source if tick.rows is not None):
                self.ticks.update(epoch for epoch, _ in counts if epoch in in_time)
                if late := sum(n for epoch, n in counts if epoch not in in_time):
                    self.late[name] += late
                if (refused := Refused.among(counts, in_time)).rows:
                    self.refused[name] += refused

    def batches(self) -> Iterator[ArrivedBatch]:
        """The batches to deliver, in an order that depends on their contents only."""
        by = attrgetter("source", "channel", "epoch")
        for (name, index, epoch), batches in itertools.groupby(self._inputs, key=by):
            source, channel = self.plan.source(name), self.plan.channels[index]
            if by_column(source.epochs):
                for batch in batches:
                    yield from self._by_column(source, channel, batch)
            else:
                at = self.batch_id if source.epochs == "clock" else epoch
                yield from self._entering(channel, at, from_bytes(*(batch.payload for batch in batches)))
        slices: dict[tuple[int, str], list[Message]] = defaultdict(list)
        for message in self._messages:
            slices[message.channel, str(message.time)].append(message)
        for (index, _), messages in slices.items():
            channel, time = self.plan.channels[index], self.plan.times.decode(messages[0].time)
            node = self.plan.nodes[channel.target]
            self.pointstamps[node.lands(channel.input), time] += len(messages)
            yield node, channel.input, time, from_bytes(*(message.payload for message in messages))

    def _by_column(self, source: PlanInput, channel: Channel, batch: InputBatch) -> Iterator[ArrivedBatch]:
        """Input data at the epochs of its rows."""
        table, in_time, start = from_bytes(batch.payload), self.in_time[source.name], 0
        if channel.index in source.quarantined:
            yield from self._entering(channel, in_time.late, table)
            if self.header.inputs[source.name] is None:  # a closed source's epoch of late rows ends
                self.late[source.name] += 0
            return
        for own, rows in batch.epochs or ():
            late = own not in in_time
            if late == (channel.index in source.late):
                yield from self._entering(channel, in_time.late if late else own, table.slice(start, rows))
            start += rows

    def _entering(self, channel: Channel, epoch: int | None, table: pa.Table) -> Iterator[ArrivedBatch]:
        """Input records at an epoch; None means drop them."""
        if epoch is None:
            return
        time = channel.summary.results_in(self.plan.times.epoch(epoch))
        if time is not None:
            self.moved[channel.index] += table.num_rows
            yield self.plan.nodes[channel.target], channel.input, time, table
