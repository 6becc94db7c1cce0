"""One worker's round: a pure function of the worker's state, the round's header and the worker's input rows.

A round delivers messages and notifications in (time, topological) order, and a message before a notification
of the same time and vertex; where work may lead to an earlier key (`Plan.in_order`), all messages before any
notification. The messages that wait at one (time, input) are one batch. Messages to vertices of the same
worker are delivered in the same round. So the order of calls depends on times and the graph only, never on
the order of rows. A round ends when nothing can be delivered, or when its budget is used up.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter, perf_counter_ns
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Node, Plan
from timely_spark.errors import StateError
from timely_spark.graph import Stage, Vertex
from timely_spark.state.arrow import FEW, data_bytes, from_bytes, to_bytes
from timely_spark.state.codec import BlobRef, BlobStore, Chunk, Codec, pack_json, unpack_json
from timely_spark.state.memory import memory_of
from timely_spark.times import Timestamp
from timely_spark.worker import wire
from timely_spark.worker.context import CallContext, ErrorsOf, ReplayContext
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.hot_keys import Loads
from timely_spark.worker.loops import LoopState
from timely_spark.worker.negatives import Negatives
from timely_spark.worker.notify import LowerBounds, Notificator, Pending
from timely_spark.worker.outbox import Outbox
from timely_spark.worker.received import Received
from timely_spark.worker.vertex_snapshot import (
    Invocation,
    VertexSnapshot,
    changed,
    decode_chunk,
    encode_chunk,
    instance,
    own_values,
)
from timely_spark.worker.wire import Header, Item, Message, Report, SinkRows

FORMAT = 9
"""The version of a worker's encoded state."""

NESTED = 64
"""The most calls of vertices inside each other: each takes some ten frames of Python's stack."""

COUNTED = 20_000_000
"""After so many nanoseconds of calls a step's memory is counted again, in less than a hundredth of that."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one worker's work in one round: calls of vertices, and bytes delivered to them.

    Never wall time, because a round that runs again must take the same path. The next round does the rest.
    """

    steps: int = 1_000_000
    bytes: int = 4 << 30


def step(  # noqa: PLR0917 - the round's own signature
    plan: Plan,
    state: bytes | None,
    batch_id: int,
    worker: int,
    rows: pa.Table,
    header: Header | None = None,
    budget: Budget | None = None,
    blobs: BlobStore | None = None,
) -> tuple[bytes, pa.Table]:
    """Run one worker's round.

    Args:
        state: the state that the worker's last round returned; None in its first round.
        batch_id: the micro-batch; with clock epochs, also the epoch of its input.
        rows: the worker's input, of schema `ROWS`, in any order.
        header: the round's header; None if a row has it.

    Returns:
        The new state, and rows of schema `ROWS` for the driver: messages, outputs and one report.
    """
    restored = Worker(plan, state, worker, blobs)
    out = restored.step(batch_id, rows, header, budget)
    return restored.checkpoint(f"{worker}-{batch_id}"), out


class Worker:
    """A worker and its vertices: `step` runs one round, `checkpoint` encodes the state.

    A worker restored from a checkpoint behaves exactly like the original. After an error, discard the worker:
    its state may be half a round on.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long").distinct().capture("out")
        >>> from timely_spark.coordinator import Coordinator
        >>> from timely_spark.worker import pack
        >>> plan = flow.compile(workers=1)
        >>> header = Coordinator(plan).first().header
        >>> worker = Worker(plan, None, 0)
        >>> rows = worker.step(0, pack(plan, "x", pa.table({"n": [1, 1]}), shard=0), header)
        >>> sorted(rows.column("kind").to_pylist())
        ['output', 'report']
    """

    def __init__(self, plan: Plan, state: Any | None, worker: int, blobs: BlobStore | None = None) -> None:
        self.plan, self.worker, self.workers = plan, worker, plan.workers
        self.codec, self.iterations, self.loads = Codec(plan.times, blobs), LoopState(plan), Loads(plan)
        #: batches that wait for delivery, by (node, input, time); `order` is a heap of the same keys
        self.queue: dict[tuple[int, int, Any], list[pa.Table]] = defaultdict(list)
        self.order: list[tuple[Any, int, int, int, Any]] = []
        #: the queued batches that are written to blobs
        self.queue_blobs: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        self.sequence = itertools.count()
        self.pending = Notificator(plan)
        #: what may still arrive from outside in the present round
        self.lower_bounds = LowerBounds(plan, Header(batch=-1), {}, {})
        #: the last checkpoint of each vertex; `vertices` has those that were called in this process
        self.snapshots: dict[str, VertexSnapshot] = {}
        self.vertices: dict[int, Vertex] = {}
        #: per vertex with state that was called since the last checkpoint, its calls if the vertex is logged
        self.invocations: dict[int, list[Invocation]] = {}
        #: time spent in `step`, for statistics
        self.seconds = 0.0
        #: since the last state was written, records by channel, and nanoseconds by vertex
        self.moved: dict[int, int] = defaultdict(int)
        self.spent: dict[int, int] = defaultdict(int)
        #: the bytes in memory of each vertex, and the nanoseconds of its calls since these were counted
        self._memory: dict[int, tuple[int, int]] = {}
        #: since then, by vertex, the number of calls, and of records that it was given and has sent
        self.work: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        #: asked before each delivery whether the round ends there; the next round does the rest
        self.ends: Callable[[Worker], bool] | None = None
        #: the present call: stage, time, records, and its start by `time.monotonic`; None means between calls
        self.calling: tuple[Stage, Any, int, float] | None = None
        #: the vertices that are called, each by what the one before it has sent, with the times
        self.running: list[tuple[int, Any]] = []
        #: if `plan.measured`, by ("call" or "message", step, epoch): number, records, bytes, nanoseconds
        self.measured: dict[tuple[str, str, Any], list[int]] = {}
        self.context = CallContext(self)
        self._restore(state)

    def step(
        self, batch_id: int, rows: pa.Table, header: Header | None = None, budget: Budget | None = None
    ) -> pa.Table:
        """Run one round, and return its rows; see the function `step`."""
        started = perf_counter()
        self.budget = budget or self.plan.budget or Budget()
        self.outbox = Outbox(self.plan, self.worker)
        self.outputs: dict[tuple[int, Any], list[pa.Table]] = defaultdict(list)
        self.negatives: list[Negatives] = []
        self.expectations: defaultdict[str, Expectation] = defaultdict(Expectation)
        #: a look at one that is missing, which a clock decides, does not add it
        self.stats = Counter[str]()
        self.queued_before = self._queued()
        received = self.received = Received(self.plan, batch_id, rows, header)
        self.header = received.header
        self.plan.spread(self.header.spread)
        lower_bounds = LowerBounds(self.plan, self.header, received.frontiers, received.data_epochs)
        self.pending.begin(lower_bounds.changed(self.lower_bounds))
        self.lower_bounds = lower_bounds
        self.iterations.begin(self.header.bounds, self.header.oldest)
        for batch in received.batches():
            self.enqueue(*batch)
        self.run()
        for channel, records in received.moved.items():
            self.moved[channel] += records
        out = self._rows()
        self.seconds += perf_counter() - started
        return out

    # -- in --------------------------------------------------------------------------------------------------

    def _restore(self, state: Any | None) -> None:
        if state is None:
            for node in self.plan.nodes:
                for time in self.plan.initial(node):
                    self.pending.add(Pending(node.index, time, time))
            return
        head, parts = unpack_json(state)
        if head["format"] != FORMAT:
            msg = f"a worker's state has format {head['format']}, this version reads {FORMAT}"
            hint = "continue with the version that wrote it, or start with a new checkpoint."
            raise StateError(msg, hint=hint)
        decode, by_name = self.plan.times.decode, self.plan.by_name
        self.snapshots = {
            name: VertexSnapshot.decode(encoded, parts)
            for name, encoded in head["vertices"].items()
            if name in by_name  # a step that was removed from the flow loses its state
        }
        for (name, input_, time), encoded in zip(head["queue"], head["batches"], strict=True):
            node, chunk = by_name[name], decode_chunk(encoded, parts)
            table, time_ = from_bytes(self.codec.get(chunk)), decode(time)
            self.enqueue(node, input_, time_, table)
            if isinstance(chunk, BlobRef):
                self.queue_blobs[node.index, input_, time_] = table, chunk
        for name, guarantee, capability, later, *input_ in head["pending"]:
            held = decode(capability) if capability is not None else None
            self.pending.restore(Pending(by_name[name].index, decode(guarantee), held, *input_), later)

    def enqueue(self, node: Node, input_: int, time: Timestamp, table: pa.Table) -> None:
        """Queue a batch for delivery."""
        key = (node.index, input_, time)
        if key not in self.queue:
            heapq.heappush(
                self.order, (self.plan.key(node, time), node.index, input_, next(self.sequence), time)
            )
        self.queue[key].append(table)

    def receive(self, node: Node, input_: int, time: Timestamp, table: pa.Table) -> None:
        """Queue a batch that a running call has sent; or deliver it at once to a re-entrant vertex."""
        depth = node.template.reentrancy
        if (
            depth
            and len(self.running) < NESTED
            and sum(index == node.index for index, _ in self.running) <= depth
        ):
            key = self.plan.key(node, time)
            if self._goes_on() and (
                len(key) == 2 or self.iterations.enter(node, key, time, table, self.stats["steps"])
            ):
                self._deliver(node, input_, time, table)
                return
        self.enqueue(node, input_, time, table)

    # -- the round -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver batches and notifications until none is deliverable, the budget is used up, or `ends`."""
        while self._goes_on():
            before = self.order[0][0] if self.order else None
            pending = None
            if before is None or self.plan.in_order:
                # the queued messages have later keys, so nothing that they lead to concerns it
                pending = self.pending.first(self.lower_bounds, before)
            if pending is not None:
                node, time = self.plan.nodes[pending.node], pending.guarantee
                key = self.plan.key(node, time)
                if len(key) > 2 and not self.iterations.enter(node, key, time, None, self.stats["steps"]):
                    return
                requests = self.pending.together(pending)
                for request in requests:
                    self.pending.remove(request)
                self.stats["notifications"] += 1
                inputs = tuple(request.input for request in requests)
                self._call(node, Invocation(time, self.header.oldest), pending.capability, inputs)
            elif self.order:
                key, index, input_, _, time = self.order[0]
                node, tables = self.plan.nodes[index], self.queue[index, input_, time]
                if len(key) > 2 and not self.iterations.enter(
                    node, key, time, tables[0], self.stats["steps"]
                ):
                    return
                heapq.heappop(self.order)
                del self.queue[index, input_, time]
                batch = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
                pieces = max([column.num_chunks for column in batch.columns], default=1)
                if pieces > 1 and batch.num_rows < FEW * pieces:  # one piece is worked on faster
                    batch = batch.combine_chunks()
                self._deliver(node, input_, time, batch)
            else:
                return

    def _deliver(self, node: Node, input_: int, time: Timestamp, batch: pa.Table) -> None:
        """Call a vertex with a batch."""
        self.stats["bytes"] += data_bytes(batch)
        self.stats["records"] += batch.num_rows
        self.loads.add(node.index, input_, batch)
        self._call(node, Invocation(time, self.header.oldest, input_, batch), time, (input_,))

    def _goes_on(self) -> bool:
        """Whether the round may deliver more, if there is more."""
        if self.ends is not None and self.ends(self):
            self.stats["cut"] = 1
            return False
        within = self.stats["steps"] < self.budget.steps and self.stats["bytes"] < self.budget.bytes
        return within and not self.iterations.ends

    def epochs(self, node: Node) -> list[int]:
        """Lower bounds of the epochs at which a node of this worker may be called after the present call."""
        epochs = self.pending.epochs(node)
        epochs += [time.epoch for time in self.lower_bounds[node.index]]
        epochs += [time.epoch for *_, time in self.order[:1]]
        return epochs + [time.epoch for _, time in self.running[:-1]]

    def _call(
        self, node: Node, invocation: Invocation, capability: Timestamp | None, inputs: tuple[int | None, ...]
    ) -> None:
        """Call a vertex, with a capability that messages of `inputs` gave."""
        if not node.stage.is_stateless:
            invocations = self.invocations.setdefault(node.index, [])
            if node.template.logged:
                invocations.append(invocation)
        self.stats["steps"] += 1
        self.running.append((node.index, invocation.time))
        outer, started = self.calling, perf_counter_ns()
        records = 0 if invocation.batch is None else invocation.batch.num_rows
        work = self.work[node.index]
        work[0] += 1
        work[1] += records
        self.calling = node.stage, invocation.time, records, monotonic()
        with ErrorsOf(node, invocation.time, invocation.batch):
            self.context.call(node, self.vertex(node), invocation, capability, inputs)
        self.calling = outer
        self.running.pop()
        took = perf_counter_ns() - started
        self.spent[node.index] += took
        if self.plan.measured:
            self._measure("call", node, invocation.time, (1, records, 0, took))

    def _measure(self, kind: str, node: Node, time: Timestamp, counts: tuple[int, int, int, int]) -> None:
        total = self.measured.setdefault((kind, node.name, time.epoch), [0, 0, 0, 0])
        for i, count in enumerate(counts):
            total[i] += count

    def vertex(self, node: Node) -> Vertex:
        """The node's vertex on this worker, restored from its snapshot on first use."""
        if node.index not in self.vertices:
            vertex, snapshot = instance(node.template), self.snapshots.get(node.name, VertexSnapshot())
            if snapshot.full is not None:
                with ErrorsOf(node):
                    data = self.codec.get(snapshot.full)
                    vertex.restore(self.codec.read(data, pickles=vertex.pickles, vertex=type(vertex)))
            replay = ReplayContext(self)
            vertex._context = replay  # noqa: SLF001 - only the worker sets the context
            for invocation in snapshot.invocations(self.codec):
                with ErrorsOf(node, invocation.time):
                    replay.call(node, vertex, invocation, None)
            vertex._context = self.context  # noqa: SLF001
            self.vertices[node.index] = vertex
        return self.vertices[node.index]

    # -- out -------------------------------------------------------------------------------------------------

    def _queued(self) -> dict[tuple[int, Any], int]:
        queued: dict[tuple[int, Any], int] = defaultdict(int)
        for index, input_, time in self.queue:
            queued[self.plan.nodes[index].lands(input_), time] += 1
        return queued

    def _rows(self) -> pa.Table:
        """The rows for the driver: messages, outputs, and the report of the round."""
        received, items = self.received, list[tuple[int, Item]]()
        deltas = self._queued()
        for before in (self.queued_before, received.pointstamps):
            for place, n in before.items():
                deltas[place] -= n
        for pending, n in self.pending.changed.items():
            if pending.capability is not None:
                deltas[self.plan.nodes[pending.node].holds(pending.input), pending.capability] += n
        for index, time, to, rows, payload in self.outbox.messages():
            channel = self.plan.channels[index]
            node = self.plan.nodes[channel.target]
            deltas[node.lands(channel.input), time] += 1
            items.append(
                (to, Message(channel=index, time=time.encode(), sender=self.worker, payload=payload))
            )
            self.stats["sent"] += 1
            self.stats["bytes_sent"] += len(payload)
            self.stats["records_sent"] += rows
            if self.plan.measured:
                self._measure("message", node, time, (1, rows, len(payload), 0))
        for (index, time), tables in self.outputs.items():
            sink, payload = self.plan.nodes[index].name, to_bytes(pa.concat_tables(tables))
            items.append((self.worker, SinkRows(sink=sink, epoch=time.epoch, payload=payload)))
        changed = self.pending.changed.items()
        report = Report(
            deltas=[(location, time.encode(), n) for (location, time), n in deltas.items() if n],
            pending=[(p.node, p.guarantee.encode(), n) for p, n in changed if n],
            left=int(bool(self.queue)),
            ticks=sorted(received.ticks),
            advanced=received.advanced,
            seen=received.seen,
            late=received.late,
            read=received.read,
            quarantined=received.quarantined,
            refused=received.refused,
            loops=self.iterations.counts(),
            loads=self.loads.take(),
            negatives=self.negatives,
            expectations=self.expectations,
            outputs=[(self.plan.nodes[index].name, time.epoch) for index, time in self.outputs],
            stats=dict(self.stats),
        )
        return wire.table([*items, (self.worker, report)])

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def references(self) -> frozenset[bytes]:
        """The blobs that the last `checkpoint` refers to."""
        states = itertools.chain.from_iterable(one.references for one in self.snapshots.values())
        return frozenset([*states, *(blob.reference for _, blob in self.queue_blobs.values())])

    @property
    def arrangement_bytes(self) -> int:
        """Bytes of the batches of `Arrangement`s in blobs; a round reads a part of them only."""
        return sum(sum(one.blob_sizes.values()) for one in self.snapshots.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each step's state in the last `checkpoint`, blobs included."""
        return {name: one.full_size + one.log_size for name, one in self.snapshots.items()}

    def memory(self) -> dict[str, int]:
        """Bytes in memory by step: its state, if it was called in this process, and what waits for it.

        A step is counted again when it has worked for many times as long as counting takes.
        """
        total = Counter[str]()
        nodes = self.plan.nodes
        for index, took in self.spent.items():
            if not nodes[index].stage.is_stateless:
                size, spent = self._memory.get(index, (0, COUNTED))
                spent += took
                if spent >= COUNTED:
                    size, spent = memory_of(own_values(self.vertices[index], nodes[index].template)), 0
                self._memory[index] = size, spent
        for index, (size, _) in self._memory.items():
            total[nodes[index].name] += size
        for (index, *_), tables in self.queue.items():
            total[nodes[index].name] += sum(table.nbytes for table in tables)
        return dict(+total)

    def checkpoint(self, prefix: str = "", *, inline: bool = False) -> bytes:
        """The worker's state between two rounds (Naiad section 3.4).

        Only vertices that were called since the last checkpoint are encoded again.

        Args:
            prefix: the prefix of the names of new blobs.
            inline: encode a copy in one piece, without blobs and logs; the worker does not change.
        """
        self.codec.inline = inline
        nodes, snapshots = self.plan.nodes, {}
        for index in sorted({*self.invocations, *(self.plan.by_name[name].index for name in self.snapshots)}):
            self.codec.name_blobs(f"{prefix}-{index}")
            with ErrorsOf(nodes[index]):
                if snapshot := self._snapshot(nodes[index]):
                    snapshots[nodes[index].name] = snapshot
        self.codec.name_blobs(f"{prefix}-queue")
        queue_blobs, batches = self._encoded_queue()
        if not inline:
            self.snapshots, self.queue_blobs = snapshots, queue_blobs
            self.invocations.clear()
        parts: list[Any] = []
        head = {
            "format": FORMAT,
            "vertices": {name: snapshot.encode(parts) for name, snapshot in snapshots.items()},
            "queue": [[nodes[index].name, input_, time.encode()] for index, input_, time in self.queue],
            "batches": [encode_chunk(chunk, parts) for chunk in batches],
            "pending": [
                [
                    nodes[p.node].name,
                    p.guarantee.encode(),
                    None if p.capability is None else p.capability.encode(),
                    later,
                    *([] if p.input is None else [p.input]),
                ]
                for p, later in self.pending.active
            ],
        }
        return pack_json(head, parts)

    def _snapshot(self, node: Node) -> VertexSnapshot | None:
        """A vertex's new snapshot; None if the state is that of the template."""
        last, codec = self.snapshots.get(node.name, VertexSnapshot()), self.codec
        invocations = self.invocations.get(node.index)
        if codec.inline:
            if invocations is None and not last.log and not last.references:
                return last
        elif invocations is None:
            return last.in_blobs(codec)
        elif invocations and (logged := last.logged(invocations, codec)) is not None:
            return logged
        vertex = self.vertex(node)
        if not (state := changed(vertex, node.template)):
            return None
        full: Chunk = codec.write(state, pickles=vertex.pickles, vertex=type(vertex))
        # without a log, the next round probably writes the full state again: no blob for one round
        return VertexSnapshot(codec.put(full) if invocations else full, codec.blob_sizes)

    def _encoded_queue(self) -> tuple[dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]], list[Chunk]]:
        """The new `queue_blobs`, and the encoded batches of the queue."""
        queue_blobs: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        batches: list[Chunk] = []
        for key, tables in self.queue.items():
            old = None if self.codec.inline else self.queue_blobs.get(key)
            if old is not None and len(tables) == 1 and tables[0] is old[0]:
                queue_blobs[key] = old
                batches.append(old[1])
                continue
            table = pa.concat_tables(tables)
            batches.append(chunk := self.codec.put(to_bytes(table)))
            if isinstance(chunk, BlobRef):
                self.queue[key] = [table]
                queue_blobs[key] = table, chunk
        return queue_blobs, batches
