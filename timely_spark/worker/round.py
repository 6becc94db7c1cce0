"""One worker's round: a pure function of its state, the round's header and the rows that came for it.

Messages before notifications; messages in (time, topological) order, what waits at one (time, input) as one
batch; what stays on the worker is delivered in the same round. So the order depends on times and the graph
only, never on how rows happened to lie, and a round ends when nothing is left to do here, or its budget is
used up.
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

from timely_spark.errors import StateError, VertexError
from timely_spark.graph import Vertex
from timely_spark.worker.codec import BlobRef, Blobs, Chunk, Codec, pack_parts, unpack_parts
from timely_spark.worker.columns import InTime, Refused, by_column
from timely_spark.worker.context import Live, Muted, at_fault
from timely_spark.worker.keys import from_bytes, to_bytes
from timely_spark.worker.loops import Iterations
from timely_spark.worker.notify import Blockers, Notificator, Pending, input_frontier, lower_bounds
from timely_spark.worker.plan import Channel, Node, Plan
from timely_spark.worker.rows import Row, as_rows, read_rows
from timely_spark.worker.vertex_snapshot import (
    Invocation,
    VertexSnapshot,
    changed,
    decode_piece,
    encode_piece,
    instance,
)

FORMAT = 6
"""Version of the state's form."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one worker may do in one round: calls of vertices, and bytes delivered to them. Never wall time.

    A round that is run again must take the same path; what is left over is done in the next round.
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
        state: what the worker's last round returned, None at its first.
        batch_id: the micro-batch, which is the epoch of clocked input that comes with it.
        worker: which worker.
        rows: what came for it, of schema `ROWS`, in any order.
        read_header: gives the header where no row brought one.
        budget: the round's budget.
        blobs: where large parts of the state are kept apart; without, all of it is in the state.

    Returns:
        The new state, and rows of schema `ROWS` for the driver: messages, outputs, one report; or one error.
    """
    here = Worker(plan, state, worker, blobs)
    try:
        made = here.step(batch_id, rows, read_header, budget)
        return here.checkpoint(f"{worker}-{batch_id}"), made
    except VertexError as error:
        return state or b"", as_rows([(worker, "error", error.encode(), None)])


class Worker:
    """One worker between rounds, its vertices alive: `step` takes it a round on, `checkpoint` is its state.

    A worker made from what `checkpoint` gave goes on exactly as this one would. After an error it is of no
    further use: its state may be half a round on.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long").distinct().capture("out")
        >>> from timely_spark.worker import Coordinator, pack
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
        #: what waits for delivery; `order` holds each of its keys once
        self.queue: dict[tuple[int, int, Any], list[pa.Table]] = defaultdict(list)
        self.order: list[tuple[Any, int, int, int, Any]] = []
        #: large batches of the queue, and where they are kept
        self.laid: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        self.tie = itertools.count()
        self.pending = Notificator(plan)
        #: states as they were written last; a vertex is built when first called
        self.saved: dict[str, VertexSnapshot] = {}
        self.vertices: dict[int, Vertex] = {}
        #: by vertex, those with state, the calls since then; of vertices that are not logged none is listed
        self.called: dict[int, list[Invocation]] = {}
        #: spent in `step`; of interest to people only
        self.seconds = 0.0
        self.live = Live(self)
        self._read(state)

    def step(
        self, batch_id: int, rows: pa.Table, read_header: Callable[[], str], budget: Budget | None = None
    ) -> pa.Table:
        """Run one round: as the function `step`, but for the state, which stays here.

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
        self.before = self._queued()
        self.pending.begin()
        self.take(read_rows(rows), read_header)
        self.run()
        made = self._rows()
        self.seconds += perf_counter() - started
        return made

    # -- in --------------------------------------------------------------------------------------------------

    def _read(self, state: Any | None) -> None:
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
        self.saved = {
            name: VertexSnapshot.decode(said, parts)
            for name, said in head["vertices"].items()
            if name in by_name  # a step that the flow has no more leaves nothing behind
        }
        for (name, input_, time), said in zip(head["queue"], head["batches"], strict=True):
            node, piece = by_name[name], decode_piece(said, parts)
            table, time_ = from_bytes(self.codec.get(piece)), decode(time)
            self.enqueue(node, input_, time_, table)
            if isinstance(piece, BlobRef):
                self.laid[node.index, input_, time_] = table, piece
        for name, guarantee, capability in head["pending"]:
            held = decode(capability) if capability is not None else None
            self.pending.add(Pending(by_name[name].index, decode(guarantee), held))

    def take(self, rows: list[tuple[int, str, dict[str, Any], Any]], read_header: Callable[[], str]) -> None:
        """Sort out what came: the header, how far inputs are, and data, in an order of its own."""
        headers = [meta for _, kind, meta, _ in rows if kind == "header"]
        self.header = headers[0] if headers else json.loads(read_header())
        self.iterations.begin(self.header["bounds"])
        inputs = self.header["inputs"]
        #: where each input stands after this batch, and (for `present`) where its data of this batch may be
        self.open: dict[str, int | None] = {}
        self.present: dict[str, int | None] = {}
        moved = sorted(
            (meta for _, kind, meta, _ in rows if kind == "advance"),
            key=lambda meta: (meta["source"], meta["seq"]),
        )
        for source in self.plan.inputs:
            self.open[source.name], self.present[source.name] = input_frontier(
                source, inputs[source.name], self.batch_id, first=self.header["batch"] < self.batch_id
            )
        for meta in moved:
            left = self.open[meta["source"]]
            closed = meta["to"] is None and left is not None
            if closed and self.plan.source(meta["source"]).epochs == "manual":
                self.report["ticks"].add(left)  # the epoch at which it is closed is over
            self.open[meta["source"]] = meta["to"]
            self.report["advance"][meta["source"]] = meta["to"]
        self._judge([meta for _, kind, meta, _ in rows if kind == "input"])
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
                self._input(meta, payload)

    def _judge(self, metas: list[dict[str, Any]]) -> None:
        """Which epochs of columns are in time, and what must be told of the others."""
        self.in_time: dict[str, InTime] = {}
        for name in {meta["source"] for meta in metas if "spans" in meta}:
            mine = [meta for meta in metas if meta["source"] == name and "spans" in meta]
            verdict = self.in_time[name] = InTime.of(
                itertools.chain.from_iterable(meta["spans"] for meta in mine),
                self.present[name],
                seen=name not in self.header.get("unseen", ()),
                jump=self.plan.source(name).stage.max_jump,
                after=self.header.get("late", {}).get(name),
            )
            if verdict.high >= verdict.low:
                self.report["seen"][name] = verdict.high
            for rows in (meta["rows"] for meta in mine if "rows" in meta):
                self.report["ticks"].update(epoch for epoch, _ in rows if epoch in verdict)
                if late := sum(n for epoch, n in rows if epoch not in verdict):
                    self.report["late"][name] += late
                if (refused := Refused.among(rows, verdict)).rows:
                    self.report["refused"].setdefault(name, Refused()).add(refused.encode())

    def _input(self, meta: dict[str, Any], payload: Any) -> None:
        """Data of the batch: it enters at the batch's epoch; where the flow has no clock, at its own."""
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
        verdict, place = self.in_time[source.name], 0
        for epoch, rows in meta["epochs"]:
            late = epoch not in verdict
            if late == (channel.index in source.late):
                self._enter(channel, verdict.late if late else epoch, table.slice(place, rows))
            place += rows

    def _enter(self, channel: Channel, epoch: int | None, table: pa.Table) -> None:
        """Records come in at an epoch; None: nowhere."""
        if epoch is None:
            return
        time = channel.summary.results_in(self.plan.times.epoch(epoch))
        if time is not None:
            self.stats["records_in"] += table.num_rows
            self.enqueue(self.plan.nodes[channel.target], channel.input, time, table)

    def enqueue(self, node: Node, input_: int, time: Any, table: pa.Table) -> None:
        """Put a batch where the vertex will find it."""
        key = (node.index, input_, time)
        if key not in self.queue:
            heapq.heappush(self.order, (self.plan.key(node, time), node.index, input_, next(self.tie), time))
        self.queue[key].append(table)

    # -- the round -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver until nothing is left that may be delivered, or the budget is used up."""
        self.blockers = Blockers(
            lambda index: lower_bounds(
                self.plan, self.plan.nodes[index], self.header, self.open, self.present
            )
        )
        while self.stats["steps"] < self.budget.steps and self.stats["bytes"] < self.budget.bytes:
            if self.order:
                key, index, input_, _, time = self.order[0]
                node, tables = self.plan.nodes[index], self.queue[index, input_, time]
                if len(key) > 2 and not self.iterations.passes(
                    node, key, time, tables[0], self.stats["steps"]
                ):
                    return
                heapq.heappop(self.order)
                del self.queue[index, input_, time]
                batch = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
                self.stats["bytes"] += batch.nbytes
                self.stats["records"] += batch.num_rows
                self._call(node, Invocation(time, self.header["oldest"], input_, batch), time)
            elif (pending := self.pending.first(self.blockers)) is not None:
                node, time = self.plan.nodes[pending.node], pending.guarantee
                key = self.plan.key(node, time)
                if len(key) > 2 and not self.iterations.passes(node, key, time, None, self.stats["steps"]):
                    return
                self.pending.remove(pending)
                self.stats["notifications"] += 1
                self._call(node, Invocation(time, self.header["oldest"]), pending.capability)
            else:
                return
            self.stats["steps"] += 1

    def epochs(self, node: Node) -> list[int]:
        """The least epochs at which something may still come to a node here, once this call is over."""
        waiting = (time.epoch for *_, time in self.order[:1])
        outside = (time.epoch for time in self.blockers[node.index])
        return [*waiting, *outside, *self.pending.epochs(node)]

    def _call(self, node: Node, called: Invocation, capability: Any | None) -> None:
        if not node.stage.is_stateless:
            calls = self.called.setdefault(node.index, [])
            if node.template.logged:
                calls.append(called)
        self.live.run(node, called, capability)

    def vertex(self, node: Node) -> Vertex:
        """The node's vertex on this worker, with its state.

        Raises:
            VertexError: it cannot be restored.
        """
        if node.index not in self.vertices:
            vertex, saved = instance(node.template), self.saved.get(node.name, VertexSnapshot())
            if saved.full is not None:
                with at_fault(node):
                    data = self.codec.get(saved.full)
                    vertex.restore(self.codec.read(data, pickles=vertex.pickles, vertex=type(vertex)))
            muted = Muted(self)
            vertex._context = muted  # noqa: SLF001 - lent by the worker alone
            for called in saved.calls(self.codec):
                with at_fault(node, called.time):
                    muted.call(node, vertex, called, None)
            vertex._context = self.live  # noqa: SLF001
            self.vertices[node.index] = vertex
        return self.vertices[node.index]

    # -- out -------------------------------------------------------------------------------------------------

    def _queued(self) -> Counter[tuple[int, Any]]:
        return Counter((self.plan.nodes[index].arrives, time) for index, _, time in self.queue)

    def _rows(self) -> pa.Table:
        """What the round did, for the driver."""
        rows: list[Row] = []
        deltas = self._queued()
        deltas.subtract(self.before)
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
        """What goes to other workers: one batch per (channel, time, worker).

        Where the receiver combines and iterations do not matter to it, those of all iterations travel as
        one, at the last of them.
        """
        together: dict[tuple[int, Any, int], list[tuple[Any, pa.Table]]] = defaultdict(list)
        for (index, time, to), tables in self.outbox.items():
            node = self.plan.nodes[self.plan.channels[index].target]
            combines = node.forget and node.template.combine is not None
            key = self.plan.times.coarse(time, node.forget) if combines else time
            together[index, key, to].append((time, pa.concat_tables(tables)))
        for (index, _, to), parts in together.items():
            channel = self.plan.channels[index]
            combine = self.plan.nodes[channel.target].template.combine
            table = pa.concat_tables([part for _, part in parts])
            latest = functools.reduce(lambda a, b: a.join(b), [time for time, _ in parts])
            yield index, latest, to, table if combine is None else combine(channel.input, table)

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def kept(self) -> frozenset[bytes]:
        """The blobs that the last `checkpoint` refers to."""
        states = itertools.chain.from_iterable(saved.references for saved in self.saved.values())
        return frozenset([*states, *(kept.reference for _, kept in self.laid.values())])

    @property
    def indexed(self) -> int:
        """Bytes of blobs of which a round reads what it asks for: the batches of `Arrangement`s."""
        return sum(sum(saved.kept.values()) for saved in self.saved.values())

    @property
    def sizes(self) -> dict[str, int]:
        """By step the bytes of its state in the last `checkpoint`, blobs included; none without state."""
        return {name: saved.full_size + saved.log_size for name, saved in self.saved.items()}

    def checkpoint(self, what: str = "", *, whole: bool = False) -> bytes:
        """All there is, between two rounds (Naiad section 3.4): what was called is written, the rest is kept.

        Args:
            what: how blobs that are new are called.
            whole: a copy in one piece, each state in full and with no reference to blobs; nothing changes.

        Raises:
            VertexError: a vertex keeps what cannot be written.
        """
        self.codec.whole = whole
        nodes, written = self.plan.nodes, {}
        for index in sorted({*self.called, *(self.plan.by_name[name].index for name in self.saved)}):
            self.codec.call_blobs(f"{what}-{index}")
            with at_fault(nodes[index]):
                if saved := self._written(nodes[index]):
                    written[nodes[index].name] = saved
        self.codec.call_blobs(f"{what}-queue")
        laid, batches = self._laid()
        if not whole:
            self.saved, self.laid = written, laid
            self.called.clear()
        parts: list[Any] = []
        head = {
            "format": FORMAT,
            "vertices": {name: saved.encode(parts) for name, saved in written.items()},
            "queue": [[nodes[index].name, input_, time.encode()] for index, input_, time in self.queue],
            "batches": [encode_piece(piece, parts) for piece in batches],
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

    def _written(self, node: Node) -> VertexSnapshot | None:
        """A vertex's state as it is to be written; None: all is as the template has it, or has become so."""
        saved, calls, codec = (
            self.saved.get(node.name, VertexSnapshot()),
            self.called.get(node.index),
            self.codec,
        )
        if codec.whole:
            if calls is None and not saved.log and not saved.references:
                return saved
        elif calls is None:
            return saved.apart(codec)
        elif calls and (logged := saved.logged(calls, codec)) is not None:
            return logged
        vertex = self.vertex(node)
        if not (state := changed(vertex, node.template)):
            return None
        full: Chunk = codec.write(state, pickles=vertex.pickles, vertex=type(vertex))
        # what is not logged is likely to be written in full again, and a file of its own would be for nothing
        return VertexSnapshot(codec.put(full) if calls else full, codec.kept)

    def _laid(self) -> tuple[dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]], list[Chunk]]:
        """The batches of the queue as they are to be written, and those of them that are kept apart."""
        laid: dict[tuple[int, int, Any], tuple[pa.Table, BlobRef]] = {}
        batches: list[Chunk] = []
        for key, tables in self.queue.items():
            known = None if self.codec.whole else self.laid.get(key)
            if known is not None and len(tables) == 1 and tables[0] is known[0]:
                laid[key] = known
                batches.append(known[1])
                continue
            table = pa.concat_tables(tables)
            batches.append(piece := self.codec.put(to_bytes(table)))
            if isinstance(piece, BlobRef):
                self.queue[key] = [table]
                laid[key] = table, piece
        return laid, batches
