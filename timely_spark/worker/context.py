"""What a vertex sees of the worker that calls it: the context of `Vertex`, and the keeper of its laws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import CapabilityError, LogDamaged, SchemaError, VertexError, excerpt
from timely_spark.graph import Scope, Vertex, as_table, describe
from timely_spark.worker.keys import deal
from timely_spark.worker.loops import limited
from timely_spark.worker.notify import Pending
from timely_spark.worker.pack import apply_stage
from timely_spark.worker.plan import Node, Through
from timely_spark.worker.vertex_snapshot import Invocation

if TYPE_CHECKING:
    from timely_spark.worker.round import Worker


@contextmanager
def at_fault(node: Node, time: Any = "", batch: pa.Table | None = None) -> Iterator[None]:
    """Whatever is raised within is an error of the step; `batch` is what it was given.

    Raises:
        VertexError: of the step, or of the one that is to blame already.
        LogDamaged: what the step had kept is damaged, for which no step is to blame.
    """
    try:
        yield
    except (VertexError, LogDamaged):
        raise
    except Exception as error:
        rows = "" if batch is None else excerpt(batch)
        where = node.stage.where
        raise VertexError.from_exception(node.name, where, error, time=str(time), rows=rows) from error


class Live:
    """The context of calls as they come: what the vertex sends goes on its way."""

    def __init__(self, here: Worker) -> None:
        self.round, self.worker, self.workers, self.times = here, here.worker, here.workers, here.plan.times

    def run(self, node: Node, called: Invocation, capability: Any | None = None) -> None:
        """Call a node's vertex, with the right to send from `capability` on."""
        with at_fault(node, called.time, called.batch):
            self.call(node, self.round.vertex(node), called, capability)

    def call(self, node: Node, vertex: Vertex, called: Invocation, capability: Any | None) -> None:
        """Call a vertex of `node`."""
        self.node, self.called, self.capability = node, called, capability
        try:
            if called.batch is None:
                vertex.on_notify(called.time)
            else:
                vertex.on_recv(called.edge, called.time, called.batch)
        finally:
            self.capability = None  # it ends with the call

    def send(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send by an output: over each of its channels, here at once, to others at the end of the round."""
        node = self.node
        if self.capability is None or not self.capability.less_equal(time):
            msg = (
                f"step {node.name!r} sends at {time} while it may send from {self.capability} on. "
                "Hint: send at the time of what is processed or later; "
                "a notification without capability cannot send."
            )
            raise CapabilityError(msg)
        if not 0 <= edge < len(node.stage.outputs):
            msg = (
                f"step {node.name!r} sends by output {edge}, it has {len(node.stage.outputs)}. "
                "Hint: declare the output."
            )
            raise CapabilityError(msg)
        declared = node.stage.outputs[edge]
        if not isinstance(batch, pa.Table) or batch.schema != declared:
            batch = _fit(node, batch, declared)
        if not batch.num_rows:
            return
        for stages, loop in self.round.plan.ends.get((node.index, edge), ()):
            self._dropped(stages, loop, time, batch)
        for index in node.out[edge]:
            self._over(index, time, batch)

    def _over(self, index: int, time: Any, batch: pa.Table) -> None:
        round_ = self.round
        channel = round_.plan.channels[index]
        onward = round_.iterations.onward(channel, time)
        if onward is None:
            if (loop := limited(channel)) is not None:
                self._dropped(channel.through, loop, time, batch)
            return
        batch = through(channel.through, batch)
        if not batch.num_rows:
            return
        if channel.exchange is None:
            parts = {self.worker: batch}
        elif channel.exchange.broadcast:
            parts = dict.fromkeys(range(self.workers), batch)
        else:
            parts = deal(batch, channel.exchange.columns, self.workers)
        for to, part in parts.items():
            if to == self.worker:
                round_.enqueue(round_.plan.nodes[channel.target], channel.input, onward, part)
            else:
                round_.outbox[index, onward, to].append(part)

    def _dropped(self, stages: Through, loop: Scope, time: Any, batch: pa.Table) -> None:
        """A loop's limit lets nothing pass: what would have, is counted."""
        self.round.iterations.drop(self.node, loop, time, through(stages, batch))

    def notify(self, time: Any, capability: Any | None) -> None:
        """Ask for a notification."""
        node, now = self.node, self.called.time
        if not node.waits:
            msg = (
                f"step {node.name!r} asks for a notification and has no on_notify. "
                "Hint: write on_notify(self, time)."
            )
            raise CapabilityError(msg)
        if not now.less_equal(time) or (
            capability is not None
            and (
                self.capability is None
                or not self.capability.less_equal(capability)
                or not time.less_equal(capability)
            )
        ):
            msg = (
                f"step {node.name!r} at {now} (capability {self.capability}) asks to be notified of "
                f"{time} with capability {capability}. "
                "Hint: ask for the present time or a later one, with a capability no earlier than it."
            )
            raise CapabilityError(msg)
        self.round.pending.add(Pending(node.index, time, capability))

    def output(self, time: Any, batch: pa.Table) -> None:
        """Hand a batch to the driver."""
        self.round.outputs[self.node.index, time].append(batch)

    def feeds(self, edge: int) -> Vertex | None:
        """The vertex here whose output comes to an input as it is."""
        plan = self.round.plan
        first, *others = plan.into[self.node.index, edge]
        if others or first.source is None or first.exchange is not None or first.through:
            return None
        return self.round.vertex(plan.nodes[first.source])

    def coarse(self, time: Any) -> Any:
        """The time as far as it matters to what is accumulated here."""
        return self.round.plan.times.coarse(time, self.node.forget) if self.node.forget else time

    def since(self) -> int:
        """An epoch: nothing will arrive anywhere at an earlier one."""
        return self.called.since

    def since_here(self, *, onward: bool = False) -> int:
        """An epoch, no earlier: nothing will arrive here, on this worker; `onward`: nor where it sends to.

        What has come is worked off in the order of its times, so this moves on within a round.
        """
        plan, nodes = self.round.plan, [self.node]
        if onward:
            nodes += [plan.nodes[plan.channels[index].target] for out in self.node.out for index in out]
        epochs = (epoch for node in nodes for epoch in self.round.epochs(node))
        least: int = min([self.called.time.epoch, *epochs])
        return max(self.called.since, least)


def through(stages: Through, batch: pa.Table) -> pa.Table:
    """What the per-batch stages on a channel make of a batch."""
    for stage, port in stages:
        if not batch.num_rows:
            break
        batch = apply_stage(stage, batch)[port]
    return batch


class Muted(Live):
    """The context of calls made again for the state's sake: what they led to is on its way already."""

    def since_here(self, *, onward: bool = False) -> int:
        """As far as it is written down."""
        return self.called.since

    def send(self, edge: int, time: Any, batch: pa.Table) -> None:
        """It was sent."""

    def notify(self, time: Any, capability: Any | None) -> None:
        """It was asked for."""

    def output(self, time: Any, batch: pa.Table) -> None:
        """It was handed over."""


def _fit(node: Node, batch: Any, declared: pa.Schema) -> pa.Table:
    try:
        return as_table(batch, declared)
    except SchemaError as error:
        got = describe(batch.schema) if hasattr(batch, "schema") else type(batch).__name__
        msg = f"step {node.name!r} sends ({got}) by an output declared as ({describe(declared)}): {error}"
        raise SchemaError(msg) from error
