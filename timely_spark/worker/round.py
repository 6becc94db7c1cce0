"""One worker's round: a pure function of the worker's state, the round's header and the worker's input rows.

A round delivers messages and notifications in (time, topological) order, and a message before a notification
of the same time and vertex; where work may lead to an earlier key (`Plan.in_order`), all messages before any
notification. The messages that wait at one (time, input) are one batch. Messages to vertices of the same
worker are delivered in the same round. So the order of calls depends on times and the graph only, never on
the order of rows. A round ends when nothing can be delivered, or when its budget is used up.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Channel, Node, Plan
from timely_spark.errors import StateError, VertexError
from timely_spark.graph import Vertex
from timely_spark.state.codec import BlobRef, Blobs, Chunk, Codec, pack_parts, unpack_parts
from timely_spark.state.keys import data_bytes, from_bytes, to_bytes
from timely_spark.worker.columns import InTime, Refused, by_column
from timely_spark.worker.context import CallContext, ReplayContext, errors_of
from timely_spark.worker.loops import Iterations
from timely_spark.worker.notify import Blockers, Notificator, Pending, input_frontier, lower_bounds
from timely_spark.worker.rows import Row, as_rows, read_rows
from timely_spark.worker.vertex_snapshot import (
    Invocation,
    VertexSnapshot,
    changed,
    decode_chunk,
    encode_chunk,
    instance,
)

FORMAT = 7
"""The version of a worker's encoded state."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one worker's work in one round: calls of vertices, and bytes delivered to them.

    Never wall time, because a round that runs again must take the same path. The next round does the rest.
    """

    steps: int = 1_000_000
    bytes: int = 4 << 30


def step(  # noqa: PLR0917 - the round's own signature, of which nothing is optional
    plan: Plan,
    state: bytes | None,
    batch_id: int,
    worker: int,
    rows: pa.Table,
    read_header: Callable[[], str],
    budget: Budget | None = None,
    blobs: Blobs | None = None,
) -> tuple[bytes, pa.Table]:
    """Run one worker's round.

    Args:
        plan: the compiled flow.
        state: the state that the worker's last round returned; None in its first round.
        batch_id: the micro-batch; with clock epochs, also the epoch of its input.
        worker: the index of the worker.
        rows: the worker's input, of schema `ROWS`, in any order.
        read_header: reads the header if no row has one.
        budget: the round's budget.
        blobs: the store of large parts of the state; None: the state is one piece.

    Returns:
        The new state, and rows of schema `ROWS` for the driver: messages, outputs, one report; or one error.
    """
    restored = Worker(plan, state, worker, blobs)
    try:
        out = restored.step(batch_id, rows, read_header, budget)
        return restored.checkpoint(f"{worker}-{batch_id}"), out
    except VertexError as error:
        return state or b"", as_rows([(worker, "error", error.encode(), None)])


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
        >>> rows = worker.step(0, pack(plan, "x", pa.table({"n": [1, 1]}), shard=0), lambda: header)
        >>> sorted(rows.column("kind").to_pylist())
        ['output', 'report']
    """

    def __init__(self, plan: Plan, state: Any | None, worker: int, blobs: Blobs | None = None) -> None:
        self.plan, self.worker, self.workers = plan, worker, plan.workers
        self.codec, self.iterations = Codec(plan.times, blobs), Iterations(plan)
        #: batches that wait for delivery, by (node, input, time); `order` is a heap of the same keys
        self.queue: dict[tuple[int, int, Any], list[pa.Table]] = defaultdict(list)
        self.order: list[tuple[Any, int, int, int, Any]] = []
        #: the queued batches that are written to blobs
        self.queue_blobs: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        self.sequence = itertools.count()
        self.pending = Notificator(plan)
        #: the last checkpoint of each vertex; `vertices` has those that were called in this process
        self.snapshots: dict[str, VertexSnapshot] = {}
        self.vertices: dict[int, Vertex] = {}
        #: per vertex with state that was called since the last checkpoint, its calls if the vertex is logged
        self.invocations: dict[int, list[Invocation]] = {}
        #: time spent in `step`, for statistics
        self.seconds = 0.0
        self.context = CallContext(self)
        self._restore(state)

    def step(
        self, batch_id: int, rows: pa.Table, read_header: Callable[[], str], budget: Budget | None = None
    ) -> pa.Table:
        """Run one round, and return its rows; see the function `step`.

        Raises:
            VertexError: a vertex failed.
        """
        started = perf_counter()
        self.batch_id, self.budget = batch_id, budget or self.plan.budget or Budget()
        self.outbox: dict[tuple[int, Any, int], list[pa.Table]] = defaultdict(list)
        self.outputs: dict[tuple[int, Any], list[pa.Table]] = defaultdict(list)
        self.received: Counter[tuple[int, Any]] = Counter()
        self.report: dict[str, Any] = {
            "ticks": set(), "advance": {}, "seen": {}, "late": Counter(), "refused": {}
        }  # fmt: skip
        self.stats: Counter[str] = Counter()
        self.queued_before = self._queued()
        self.pending.begin()
        self.receive(read_rows(rows), read_header)
        self.run()
        out = self._rows()
        self.seconds += perf_counter() - started
        return out

    # -- in --------------------------------------------------------------------------------------------------

    def _restore(self, state: Any | None) -> None:
        if state is None or not len(state):
            for node in self.plan.nodes:
                for time in self.plan.initial(node):
                    self.pending.add(Pending(node.index, time, time))
            return
        head_part, *parts = unpack_parts(state)
        head = json.loads(bytes(head_part))
        if head["format"] != FORMAT:
            msg = f"a worker's state has format {head['format']}, this version reads {FORMAT}"
            raise StateError(
                msg, hint="continue with the version that wrote it, or start with a new checkpoint"
            )
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
        for name, guarantee, capability in head["pending"]:
            held = decode(capability) if capability is not None else None
            self.pending.add(Pending(by_name[name].index, decode(guarantee), held))

    def receive(
        self, rows: list[tuple[int, str, dict[str, Any], Any]], read_header: Callable[[], str]
    ) -> None:
        """Take in the header, the advances of inputs, and the data, whatever the order of the rows."""
        headers = [meta for _, kind, meta, _ in rows if kind == "header"]
        self.header = headers[0] if headers else json.loads(read_header())
        self.iterations.begin(self.header["bounds"])
        inputs = self.header["inputs"]
        #: per input the frontier after this batch, and the least epoch of the batch's data
        self.frontiers: dict[str, int | None] = {}
        self.data_epochs: dict[str, int | None] = {}
        advances = sorted(
            (meta for _, kind, meta, _ in rows if kind == "advance"),
            key=lambda meta: (meta["source"], meta["seq"]),
        )
        for source in self.plan.inputs:
            self.frontiers[source.name], self.data_epochs[source.name] = input_frontier(
                source, inputs[source.name], self.batch_id, first=self.header["batch"] < self.batch_id
            )
        for meta in advances:
            before = self.frontiers[meta["source"]]
            closed = meta["to"] is None and before is not None
            if closed and self.plan.source(meta["source"]).epochs == "manual":
                self.report["ticks"].add(before)  # closing an input completes its last epoch
            self.frontiers[meta["source"]] = meta["to"]
            self.report["advance"][meta["source"]] = meta["to"]
        self._check_epochs([meta for _, kind, meta, _ in rows if kind == "input"])
        data = [(kind, meta, payload) for _, kind, meta, payload in rows if kind in {"input", "message"}]
        data.sort(
            key=lambda row: (
                row[0],
                row[1].get("channel", -1),
                row[1].get("from", row[1].get("shard", 0)),
                row[1].get("seq", 0),
                row[1].get("piece", 0),
                str(row[1].get("time", "")),
                row[1].get("epoch", -1),
            )
        )
        for kind, meta, payload in data:
            if kind == "message":
                channel, time = self.plan.channels[meta["channel"]], self.plan.times.decode(meta["time"])
                node = self.plan.nodes[channel.target]
                self.received[node.arrives, time] += 1
                self.enqueue(node, channel.input, time, from_bytes(payload))
            else:
                self._receive_input(meta, payload)

    def _check_epochs(self, metas: list[dict[str, Any]]) -> None:
        """Decide which epochs of sources with an epoch column are in time, and report the other rows."""
        self.in_time: dict[str, InTime] = {}
        for name in {meta["source"] for meta in metas if "spans" in meta}:
            ticks = [meta for meta in metas if meta["source"] == name and "spans" in meta]
            in_time = self.in_time[name] = InTime.of(
                itertools.chain.from_iterable(meta["spans"] for meta in ticks),
                self.data_epochs[name],
                seen=name not in self.header.get("unseen", ()),
                jump=self.plan.source(name).stage.max_jump,
                after=self.header.get("late", {}).get(name),
            )
            if in_time.high >= in_time.low:
                self.report["seen"][name] = in_time.high
            for rows in (meta["rows"] for meta in ticks if "rows" in meta):
                self.report["ticks"].update(epoch for epoch, _ in rows if epoch in in_time)
                if late := sum(n for epoch, n in rows if epoch not in in_time):
                    self.report["late"][name] += late
                if (refused := Refused.among(rows, in_time)).rows:
                    self.report["refused"].setdefault(name, Refused()).add(refused.encode())

    def _receive_input(self, meta: dict[str, Any], payload: Any) -> None:
        """Enqueue input data: at the batch's epoch with clock epochs, else at the epoch of the data."""
        source = self.plan.source(meta["source"])
        epoch = self.batch_id if source.epochs == "clock" else meta.get("epoch")
        if epoch is not None:
            self.report["ticks"].add(epoch)
        if payload is None:
            return
        channel, table = self.plan.channels[meta["channel"]], from_bytes(payload)
        if not by_column(source.epochs):
            self._enter(channel, epoch, table)
            return
        in_time, start = self.in_time[source.name], 0
        for epoch, rows in meta["epochs"]:
            late = epoch not in in_time
            if late == (channel.index in source.late):
                self._enter(channel, in_time.late if late else epoch, table.slice(start, rows))
            start += rows

    def _enter(self, channel: Channel, epoch: int | None, table: pa.Table) -> None:
        """Enqueue input records at an epoch; None: drop them."""
        if epoch is None:
            return
        time = channel.summary.results_in(self.plan.times.epoch(epoch))
        if time is not None:
            self.stats["records_in"] += table.num_rows
            self.enqueue(self.plan.nodes[channel.target], channel.input, time, table)

    def enqueue(self, node: Node, input_: int, time: Any, table: pa.Table) -> None:
        """Queue a batch for delivery."""
        key = (node.index, input_, time)
        if key not in self.queue:
            heapq.heappush(
                self.order, (self.plan.key(node, time), node.index, input_, next(self.sequence), time)
            )
        self.queue[key].append(table)

    # -- the round -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver batches and notifications until none is deliverable, or the budget is used up."""
        self.blockers = Blockers(
            lambda index: lower_bounds(
                self.plan, self.plan.nodes[index], self.header, self.frontiers, self.data_epochs
            )
        )
        while self.stats["steps"] < self.budget.steps and self.stats["bytes"] < self.budget.bytes:
            before = self.order[0][0] if self.order else None
            pending = None
            if before is None or self.plan.in_order:
                # the queued messages have later keys, so nothing that they lead to concerns it
                pending = self.pending.first(self.blockers, before)
            if pending is not None:
                node, time = self.plan.nodes[pending.node], pending.guarantee
                key = self.plan.key(node, time)
                if len(key) > 2 and not self.iterations.enter(node, key, time, None, self.stats["steps"]):
                    return
                self.pending.remove(pending)
                self.stats["notifications"] += 1
                self._call(node, Invocation(time, self.header["oldest"]), pending.capability)
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
                self.stats["bytes"] += data_bytes(batch)
                self.stats["records"] += batch.num_rows
                self._call(node, Invocation(time, self.header["oldest"], input_, batch), time)
            else:
                return
            self.stats["steps"] += 1

    def epochs(self, node: Node) -> list[int]:
        """Lower bounds of the epochs at which a node of this worker may be called after the present call."""
        queued = (time.epoch for *_, time in self.order[:1])
        outside = (time.epoch for time in self.blockers[node.index])
        return [*queued, *outside, *self.pending.epochs(node)]

    def _call(self, node: Node, invocation: Invocation, capability: Any | None) -> None:
        if not node.stage.is_stateless:
            invocations = self.invocations.setdefault(node.index, [])
            if node.template.logged:
                invocations.append(invocation)
        self.context.run(node, invocation, capability)

    def vertex(self, node: Node) -> Vertex:
        """The node's vertex on this worker, restored from its snapshot on first use.

        Raises:
            VertexError: the vertex cannot be restored.
        """
        if node.index not in self.vertices:
            vertex, snapshot = instance(node.template), self.snapshots.get(node.name, VertexSnapshot())
            if snapshot.full is not None:
                with errors_of(node):
                    data = self.codec.get(snapshot.full)
                    vertex.restore(self.codec.read(data, pickles=vertex.pickles, vertex=type(vertex)))
            replay = ReplayContext(self)
            vertex._context = replay  # noqa: SLF001 - only the worker sets the context
            for invocation in snapshot.invocations(self.codec):
                with errors_of(node, invocation.time):
                    replay.call(node, vertex, invocation, None)
            vertex._context = self.context  # noqa: SLF001
            self.vertices[node.index] = vertex
        return self.vertices[node.index]

    # -- out -------------------------------------------------------------------------------------------------

    def _queued(self) -> Counter[tuple[int, Any]]:
        return Counter((self.plan.nodes[index].arrives, time) for index, _, time in self.queue)

    def _rows(self) -> pa.Table:
        """The rows for the driver: messages, outputs, and the report of the round."""
        rows: list[Row] = []
        deltas = self._queued()
        deltas.subtract(self.queued_before)
        deltas.subtract(self.received)
        for pending, n in self.pending.changed.items():
            if pending.capability is not None:
                deltas[self.plan.nodes[pending.node].leaves, pending.capability] += n
        for index, time, to, table in self._messages():
            node = self.plan.nodes[self.plan.channels[index].target]
            deltas[node.arrives, time] += 1
            meta = {"channel": index, "time": time.encode(), "from": self.worker}
            payload = to_bytes(table, narrow=True)
            rows.append((to, "message", meta, payload))
            self.stats["sent"] += 1
            self.stats["bytes_sent"] += len(payload)
            self.stats["records_sent"] += table.num_rows
        for (index, time), tables in self.outputs.items():
            meta = {"sink": self.plan.nodes[index].name, "time": time.encode(), "epoch": time.epoch}
            rows.append((self.worker, "output", meta, to_bytes(pa.concat_tables(tables))))
        report = {
            "deltas": [[location, time.encode(), n] for (location, time), n in deltas.items() if n],
            "pending": [[p.node, p.guarantee.encode(), n] for p, n in self.pending.changed.items() if n],
            "left": len(self.queue),
            "ticks": sorted(self.report["ticks"]),
            "advance": self.report["advance"],
            "seen": self.report["seen"],
            "late": self.report["late"],
            "loops": self.iterations.report(),
            "refused": {name: refused.encode() for name, refused in self.report["refused"].items()},
            "stats": self.stats,
        }
        rows.append((self.worker, "report", report, None))
        return as_rows(rows)

    def _messages(self) -> Iterator[tuple[int, Any, int, pa.Table]]:
        """Messages to other workers: one batch per (channel, time, worker).

        If the receiver combines records and ignores iterations, the records of all iterations are one batch,
        at the join of their times.
        """
        together: dict[tuple[int, Any, int], list[tuple[Any, pa.Table]]] = defaultdict(list)
        for (index, time, to), tables in self.outbox.items():
            node = self.plan.nodes[self.plan.channels[index].target]
            combines = node.ignored_counters and node.template.combine is not None
            key = self.plan.times.coarse(time, node.ignored_counters) if combines else time
            together[index, key, to].append((time, pa.concat_tables(tables)))
        for (index, _, to), parts in together.items():
            channel = self.plan.channels[index]
            combine = self.plan.nodes[channel.target].template.combine
            table = pa.concat_tables([part for _, part in parts])
            latest = functools.reduce(lambda a, b: a.join(b), [time for time, _ in parts])
            yield index, latest, to, table if combine is None else combine(channel.input, table)

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def references(self) -> frozenset[bytes]:
        """The blobs that the last `checkpoint` refers to."""
        states = itertools.chain.from_iterable(one.references for one in self.snapshots.values())
        return frozenset([*states, *(blob.reference for _, blob in self.queue_blobs.values())])

    @property
    def arrangement_bytes(self) -> int:
        """Bytes of the batches of `Arrangement`s in blobs, of which a round reads a part only."""
        return sum(sum(one.kept.values()) for one in self.snapshots.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each step's state in the last `checkpoint`, blobs included."""
        return {name: one.full_size + one.log_size for name, one in self.snapshots.items()}

    def checkpoint(self, prefix: str = "", *, whole: bool = False) -> bytes:
        """The worker's state between two rounds (Naiad section 3.4).

        Only vertices that were called since the last checkpoint are encoded again.

        Args:
            prefix: the prefix of the names of new blobs.
            whole: encode a copy in one piece, without blobs and logs; the worker does not change.

        Raises:
            VertexError: a vertex's state has a value that cannot be encoded.
        """
        self.codec.whole = whole
        nodes, snapshots = self.plan.nodes, {}
        for index in sorted({*self.invocations, *(self.plan.by_name[name].index for name in self.snapshots)}):
            self.codec.name_blobs(f"{prefix}-{index}")
            with errors_of(nodes[index]):
                if snapshot := self._snapshot(nodes[index]):
                    snapshots[nodes[index].name] = snapshot
        self.codec.name_blobs(f"{prefix}-queue")
        queue_blobs, batches = self._encoded_queue()
        if not whole:
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
                ]
                for p in self.pending
            ],
        }
        return pack_parts([json.dumps(head, separators=(",", ":")).encode(), *parts])

    def _snapshot(self, node: Node) -> VertexSnapshot | None:
        """A vertex's new snapshot; None: the state is that of the template."""
        last, codec = self.snapshots.get(node.name, VertexSnapshot()), self.codec
        invocations = self.invocations.get(node.index)
        if codec.whole:
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
        return VertexSnapshot(codec.put(full) if invocations else full, codec.kept)

    def _encoded_queue(self) -> tuple[dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]], list[Chunk]]:
        """The new `queue_blobs`, and the encoded batches of the queue."""
        queue_blobs: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        batches: list[Chunk] = []
        for key, tables in self.queue.items():
            old = None if self.codec.whole else self.queue_blobs.get(key)
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
