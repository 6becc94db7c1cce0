"""The context of a vertex: the part of its worker that the vertex may use, with checks."""

from __future__ import annotations

from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.compiler.plan import Node, Through
from timely_spark.errors import (
    FEWER,
    RAISED,
    CapabilityError,
    LogDamaged,
    SchemaError,
    StorageFailed,
    VertexError,
    excerpt,
    user_line,
    with_hint,
)
from timely_spark.graph import Context, LoopContext, Vertex, as_table, describe
from timely_spark.state.exchange import destinations
from timely_spark.times import Times, Timestamp, is_integer
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.loops import limiting_loop
from timely_spark.worker.negatives import Negatives
from timely_spark.worker.notify import Pending
from timely_spark.worker.pack import apply_stage
from timely_spark.worker.vertex_snapshot import Invocation

if TYPE_CHECKING:
    from timely_spark.worker.round import Worker


class ErrorsOf:
    """Raises exceptions of its body as errors of the step that was called with `batch`.

    It is entered in each call of a vertex: a generator would take three times as many calls of functions.
    """

    __slots__ = ("_batch", "_node", "_time")

    def __init__(self, node: Node, time: Timestamp | str = "", batch: pa.Table | None = None) -> None:
        self._node, self._time, self._batch = node, time, batch

    def __enter__(self) -> None:
        """Begin nothing: only the end matters."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, RAISED) or isinstance(error, VertexError | LogDamaged | StorageFailed):
            return
        if (isinstance(error, MemoryError) or _overflows(error)) and not user_line(error):
            error = _too_large(error, self._batch)
        rows = "" if self._batch is None else excerpt(self._batch)
        node, time = self._node, str(self._time)
        raise VertexError.from_exception(node.name, node.stage.where, error, time=time, rows=rows) from error


def _overflows(error: BaseException) -> bool:
    """Whether a column would have more than 2 GiB of texts, which Arrow's columns cannot have."""
    said = ("offset overflow", "array capacity")
    return isinstance(error, pa.ArrowInvalid) and any(text in str(error) for text in said)


def _too_large(error: BaseException, batch: pa.Table | None) -> BaseException:
    """An error of the machine, or of Arrow, in a step's own code, with what may be done."""
    size = "" if batch is None else f" for an input of {batch.num_rows:,} records"
    kind: type[Exception] = MemoryError  # NumPy's own kind is not made of a text
    cause, do = "the machine has too little memory", "give the machine more memory"
    if not isinstance(error, MemoryError):
        kind, do = pa.ArrowInvalid, "start more workers"
        cause = "a column of one time gets more than 2 GiB of texts"
    text = with_hint(f"{cause}{size}: {error}", f"{FEWER}; or {do}.")
    return kind(text).with_traceback(error.__traceback__)


class CallContext(Context):
    """The means of a vertex in a call: send, ask for notifications, look at frontiers."""

    node: Node
    invocation: Invocation
    inputs: tuple[int | None, ...]

    def __init__(self, round_: Worker) -> None:
        self.round, self.worker, self.workers = round_, round_.worker, round_.workers
        #: that of the present call; None between calls, and in a notification without one
        self.capability: Timestamp | None = None

    @property
    def times(self) -> Times:
        return self.node.stage.scope.times

    def call(
        self,
        node: Node,
        vertex: Vertex,
        invocation: Invocation,
        capability: Timestamp | None,
        inputs: tuple[int | None, ...] = (None,),
    ) -> None:
        """Call a vertex of `node`, which may send at `capability`, due to messages of `inputs`, or later."""
        # only what may send may be interrupted by a call that its message makes
        may_send = self.capability is not None
        outer = (self.node, self.invocation, self.capability, self.inputs) if may_send else None
        self.node, self.invocation, self.capability = node, invocation, capability
        self.inputs = inputs if node.ports else (None,)
        try:
            if invocation.batch is None:
                vertex.on_notify(invocation.time)
            else:
                vertex.on_recv(invocation.edge, invocation.time, invocation.batch)
        finally:
            self.capability = None  # the capability ends with the call
            if outer is not None:
                self.node, self.invocation, self.capability, self.inputs = outer

    def send(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send by an output: to this worker at once, mostly to its queue; to others at the round's end."""
        node = self.node
        if time is not self.invocation.time:
            self._check_time("sends at", time)
        if self.capability is None or not self.capability.less_equal(time):
            msg = f"step {node.name!r} sends at {time} while it may send from {self.capability} on"
            hint = (
                "send at the time of what is processed or later; a notification without capability cannot "
                "send."
            )
            raise CapabilityError(msg, hint=hint)
        if not is_integer(edge) or not edge < len(node.stage.outputs):
            msg = f"step {node.name!r} sends by output {edge!r}, it has {len(node.stage.outputs)}"
            raise CapabilityError(msg, hint="give the number of a declared output, from 0 on.")
        if node.ports:
            self._check_summaries(edge, time)
        declared = node.stage.outputs[edge]
        if node.template.sends_for_user or not isinstance(batch, pa.Table) or batch.schema != declared:
            batch = _fit(node, batch, declared)
        if not batch.num_rows:
            return
        if node.stage.checked and edge == 0 and self.workers > 1:
            self._check_guarantee(node, batch)
        for stages, loop in self.round.plan.ends.get((node.index, edge), ()):
            self._drop(stages, loop, time, batch)
        for index in node.out[edge]:
            self._send_over(index, time, batch)

    def _check_time(self, does: str, time: Timestamp) -> None:
        if not hasattr(time, "less_equal"):
            msg = f"step {self.node.name!r} {does} {time!r}, which is not a time"
            raise CapabilityError(msg, hint="give the time of the call, or a later one, as ts.Time(epoch).")

    def _send_over(self, index: int, time: Timestamp, batch: pa.Table) -> None:
        round_ = self.round
        channel = round_.plan.channels[index]
        arrival = round_.iterations.arrival(channel, time)
        if arrival is None:
            if (loop := limiting_loop(channel)) is not None:
                self._drop(channel.through, loop, time, batch)
            return
        round_.work[self.node.index][2] += batch.num_rows
        sent = batch
        if channel.through:
            batch = self._through(channel.through, time, batch)
        # stateless steps on the way may make more of it, or fewer
        round_.iterations.check_size(channel, time, max(sent, batch, key=len), self.node)
        if not batch.num_rows:
            return
        round_.iterations.sent(channel, time, batch, self.node)
        round_.moved[index] += batch.num_rows
        own = batch if channel.exchange is None else round_.outbox.add(channel, arrival, batch)
        if own is not None:
            round_.receive(round_.plan.nodes[channel.target], channel.input, arrival, own)

    def _through(self, stages: Through, time: Timestamp, batch: pa.Table) -> pa.Table:
        """Apply the per-batch stages of a channel; each is the worker's present call while it runs."""
        round_ = self.round
        outer, twice = round_.calling, round_.plan.checks_laws
        for step in stages:
            round_.calling = step[0], time, batch.num_rows, monotonic()
            batch = through((step,), batch, twice=twice)
        round_.calling = outer
        return batch

    def _check_summaries(self, edge: int, time: Timestamp) -> None:
        """Check that the inputs which gave the capability reach an output at a time as early."""
        summaries = self.node.stage.summaries or ()
        if None in self.inputs:
            return
        paths = [summaries[i][edge] for i in self.inputs if i is not None]
        least = [path.results_in(self.capability) for path in paths if path is not None]
        if any(from_ is not None and from_.less_equal(time) for from_ in least):
            return
        cause = " and ".join(f"input {i}" for i in self.inputs)
        begins = " and ".join(str(from_) for from_ in least if from_ is not None)
        declared = f"it sends there from {begins} on" if begins else f"{cause} does not reach it"
        sent = f"sends by output {edge} at {time} due to {cause}"
        msg = f"step {self.node.name!r} {sent}: as declared, {declared}"
        raise CapabilityError(msg, hint="correct `summaries`, or what is sent.")

    def _check_guarantee(self, node: Node, batch: pa.Table) -> None:
        """Check that a user's vertex sends its records where its `guarantees` say they are."""
        by = node.stage.guaranteed
        assert by is not None
        to = destinations(batch, by, self.workers)
        assert to is not None, "the inputs of a user's vertex have no copies of records"
        if (elsewhere := to[to != self.worker]).size:
            msg = (
                f"step {node.name!r} guarantees an output partitioned {by}, and worker {self.worker} sends "
                f"records of worker {elsewhere[0]}"
            )
            hint = "partition its input by the same columns and keep them, or leave guarantees out."
            raise CapabilityError(msg, where=node.stage.where, hint=hint)

    def _drop(self, stages: Through, loop: LoopContext, time: Timestamp, batch: pa.Table) -> None:
        """Count the records that a loop's limit drops."""
        self.round.iterations.drop(self.node, loop, time, through(stages, batch))

    def notify(self, time: Timestamp, capability: Timestamp | None) -> None:
        node, now = self.node, self.invocation.time
        self._check_time("asks to be notified of", time)
        if capability is not None:
            self._check_time("asks for the capability of", capability)
        if not node.waits:
            msg = f"step {node.name!r} asks for a notification and has no on_notify"
            raise CapabilityError(msg, hint="write on_notify(self, time).")
        if not now.less_equal(time) or (
            capability is not None
            and (
                self.capability is None
                or not self.capability.less_equal(capability)
                or not time.less_equal(capability)
            )
        ):
            msg = (
                f"step {node.name!r} at {now} (capability {self.capability}) asks to be notified of {time} "
                f"with capability {capability}"
            )
            hint = "ask for the present time or a later one, with a capability no earlier than it."
            raise CapabilityError(msg, hint=hint)
        if self.invocation.batch is None and time == now:
            self.round.iterations.ask_again(node, time)
        for input_ in self.inputs if capability is not None else (None,):
            self.round.pending.add(Pending(node.index, time, capability, input_))

    def output(self, time: Timestamp, batch: pa.Table) -> None:
        self.round.outputs[self.node.index, time].append(batch)

    def late(self, rows: int) -> None:
        self.round.received.late[self.node.name] += rows

    def negative(self, time: Timestamp, records: pa.Table) -> None:
        """Count records that have become negative; or end the flow."""
        times = records.column(records.num_columns - 1)[0].as_py()
        one = excerpt(records.slice(0, 1))
        example = f"{one} is there {times} times" if one else f"the collection has {times} records"
        negatives = Negatives(self.node.name, time.epoch, example, records.num_rows)
        if self.round.plan.on_negative == "raise":
            raise negatives.error()
        self.round.negatives.append(negatives)

    def expected(self, time: Timestamp, checked: int, failed: int, example: str) -> None:
        counts = Expectation(checked, failed, (time.epoch, example) if example else None)
        self.round.expectations[self.node.name] += counts

    def feeds(self, edge: int) -> Vertex | None:
        plan = self.round.plan
        first, *others = plan.into[self.node.index, edge]
        if others or first.source is None or first.exchange is not None or first.through:
            return None
        return self.round.vertex(plan.nodes[first.source])

    def coarse(self, time: Timestamp) -> Any:
        ignored = self.node.ignored_counters
        return self.times.coarse(time, ignored) if ignored else time

    def batch(self) -> int:
        return self.round.received.batch_id

    def repeatable_batches(self) -> int:
        return self.round.plan.keep

    def since(self) -> int:
        return self.invocation.since

    def compaction_frontier(self, *, downstream: bool = False) -> int:
        """The least epoch at which the vertex may be called again; `downstream`: or one of its receivers.

        At least `since()`. A worker delivers its queue in the order of times, so the epoch grows in a round.
        """
        plan, nodes = self.round.plan, [self.node]
        if downstream:
            nodes += [plan.nodes[plan.channels[index].target] for out in self.node.out for index in out]
        epochs = chain.from_iterable(map(self.round.epochs, nodes))
        least: int = min([self.invocation.time.epoch, *epochs])
        return max(self.invocation.since, least)


def through(stages: Through, batch: pa.Table, *, twice: bool = False) -> pa.Table:
    """The batch after the per-batch stages of a channel; see `apply_stage`."""
    for stage, port in stages:
        if batch.num_rows:
            batch = apply_stage(stage, batch, twice=twice)[port]
    return batch


class ReplayContext(CallContext):
    """The context of calls that are replayed to restore a state: their effects are not repeated."""

    def compaction_frontier(self, *, downstream: bool = False) -> int:
        """The epoch that the log has: a lower bound."""
        return self.invocation.since

    def _nothing(self, *_: Any, **__: Any) -> None:
        """It was done, or counted, before."""

    send = notify = late = negative = expected = output = _nothing


def _fit(node: Node, batch: Any, declared: pa.Schema) -> pa.Table:
    try:
        return as_table(batch, declared, projected=True)
    except SchemaError as error:
        got = describe(batch.schema) if hasattr(batch, "schema") else type(batch).__name__
        as_declared = f"an output declared as ({describe(declared)})"
        msg = f"step {node.name!r} sends ({got}) by {as_declared}: {error.message}"
        raise SchemaError(msg, hint=error.hint) from error
