"""One worker's round: a pure function of its state, the round's header and the rows that came for it.

Messages before notifications; messages in (time, topological) order, what waits at one (time, input) as one
batch; what stays on the worker is delivered in the same round. So the order depends on times and the graph
only, never on how rows happened to lie, and a round ends when nothing is left to do here, or its budget is
used up.
"""

from __future__ import annotations

import copy
import functools
import heapq
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import CapabilityError, SchemaError, VertexError
from timely_spark.graph import Stateless, Vertex, as_table, describe
from timely_spark.worker.codec import Blobs, Codec, as_text, from_text, pack_parts, unpack_parts
from timely_spark.worker.keys import deal, from_bytes, to_bytes
from timely_spark.worker.notify import Agenda, Blockers, Pending, blocking, standing
from timely_spark.worker.pack import apply_stage
from timely_spark.worker.plan import Node, Plan
from timely_spark.worker.rows import Row, as_rows, read_rows

FORMAT = 2
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
        self.codec = Codec(plan.times, blobs)
        #: per vertex the references of what its state keeps apart
        self.references: dict[str, list[bytes]] = {}
        #: what waits for delivery; `order` holds each of its keys once
        self.queue: dict[tuple[int, int, Any], list[pa.Table]] = defaultdict(list)
        self.order: list[tuple[Any, int, int, int, Any]] = []
        self.tie = itertools.count()
        self.pending = Agenda(plan)
        #: states as they were read; a vertex is built when first called, others are written back as they are
        self.saved: dict[str, Any] = {}
        self.vertices: dict[int, Vertex] = {}
        self.call = _Call(self)
        self._read(state)

    def step(
        self, batch_id: int, rows: pa.Table, read_header: Callable[[], str], budget: Budget | None = None
    ) -> pa.Table:
        """Run one round: as the function `step`, but for the state, which stays here.

        Raises:
            VertexError: a vertex failed.
        """
        self.batch_id, self.budget = batch_id, budget or self.plan.budget or Budget()
        self.outbox: dict[tuple[int, Any, int], list[pa.Table]] = defaultdict(list)
        self.outputs: dict[tuple[int, Any], list[pa.Table]] = defaultdict(list)
        self.received: Counter[tuple[int, Any]] = Counter()
        self.report: dict[str, Any] = {"ticks": set(), "advance": {}, "seen": {}, "late": Counter()}
        self.stats: Counter[str] = Counter()
        self.before = self._queued()
        self.pending.begin()
        self.take(read_rows(rows), read_header)
        self.run()
        return self._rows()

    # -- in --------------------------------------------------------------------------------------------------

    def _read(self, state: Any | None) -> None:
        if state is None or not len(state):
            for node in self.plan.nodes:
                for time in self.plan.initial(node):
                    self.pending.add(Pending(node.index, time, time))
            return
        head_part, *parts = unpack_parts(state)
        head = json.loads(bytes(head_part))
        decode, by_name = self.plan.times.decode, self.plan.by_name
        self.saved = dict(zip(head["vertices"], parts, strict=False))
        self.references = {name: from_text(texts) for name, texts in head["kept"].items()}
        for (name, input_, time), part in zip(head["queue"], parts[len(self.saved) :], strict=True):
            self.enqueue(by_name[name], input_, decode(time), from_bytes(part))
        for name, guarantee, capability in head["pending"]:
            held = decode(capability) if capability is not None else None
            self.pending.add(Pending(by_name[name].index, decode(guarantee), held))

    def take(self, rows: list[tuple[int, str, dict[str, Any], Any]], read_header: Callable[[], str]) -> None:
        """Sort out what came: the header, how far inputs are, and data, in an order of its own."""
        headers = [meta for _, kind, meta, _ in rows if kind == "header"]
        self.header = headers[0] if headers else json.loads(read_header())
        inputs = self.header["inputs"]
        #: where each input stands after this batch, and (for `present`) where its data of this batch may be
        self.open: dict[str, int | None] = {}
        self.present: dict[str, int | None] = {}
        moved = sorted(
            (meta for _, kind, meta, _ in rows if kind == "advance"),
            key=lambda meta: (meta["source"], meta["seq"]),
        )
        for source in self.plan.inputs:
            self.open[source.name], self.present[source.name] = standing(
                source, inputs[source.name], self.batch_id, first=self.header["batch"] < self.batch_id
            )
        for meta in moved:
            if (
                self.present[meta["source"]] is not None
                and self.plan.source(meta["source"]).epochs != "clock"
            ):
                self.report["ticks"].add(
                    self.open[meta["source"]]
                )  # the epoch that is left is over, empty or not
            self.open[meta["source"]] = meta["to"]
            self.report["advance"][meta["source"]] = meta["to"]
        data = [(kind, meta, payload) for _, kind, meta, payload in rows if kind in {"input", "message"}]
        data.sort(
            key=lambda row: (
                row[0],
                row[1].get("channel", -1),
                row[1].get("from", row[1].get("shard", 0)),
                row[1].get("seq", 0),
                row[1].get("time", ()),
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

    def _input(self, meta: dict[str, Any], payload: Any) -> None:
        """Data of the batch: it enters at the batch's epoch; where the flow has no clock, at its own."""
        source = self.plan.source(meta["source"])
        epoch = self.batch_id if source.epochs == "clock" else meta.get("epoch")
        if "seen" in meta:
            self.report["seen"][source.name] = max(meta["seen"], self.report["seen"].get(source.name, -1))
        stands = self.present[source.name]
        if late_rows := sum(n for at, n in meta.get("rows", ()) if stands is not None and at < stands):
            self.report["late"][source.name] += late_rows
        if epoch is None:
            return
        late = source.epochs not in {"clock", "manual"} and stands is not None and epoch < stands
        if not late:
            self.report["ticks"].add(epoch)
        if payload is None:
            return
        channel = self.plan.channels[meta["channel"]]
        table = from_bytes(payload)
        if late != (channel.index in source.late):
            return
        time = channel.summary.results_in(
            self.plan.times.epoch(stands if late and stands is not None else epoch)
        )
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
        blockers = Blockers(
            lambda index: blocking(self.plan, self.plan.nodes[index], self.header, self.open, self.present)
        )
        while self.stats["steps"] < self.budget.steps and self.stats["bytes"] < self.budget.bytes:
            if self.order:
                _, index, input_, _, time = heapq.heappop(self.order)
                tables = self.queue.pop((index, input_, time))
                node = self.plan.nodes[index]
                batch = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
                self.stats["bytes"] += batch.nbytes
                self.stats["records"] += batch.num_rows
                self.call.run(node, time, time, methodcaller("on_recv", input_, time, batch))
            elif (pending := self.pending.first(blockers)) is not None:
                self.pending.remove(pending)
                node, time = self.plan.nodes[pending.node], pending.guarantee
                self.stats["notifications"] += 1
                self.call.run(node, time, pending.capability, methodcaller("on_notify", time))
            else:
                return
            self.stats["steps"] += 1

    def vertex(self, node: Node) -> Vertex:
        """The node's vertex on this worker, with its state."""
        if node.index not in self.vertices:
            vertex = _instance(node.template)
            if node.name in self.saved:
                vertex.restore(self.codec.read(self.saved[node.name]))
            vertex._context = self.call  # noqa: SLF001 - lent by the worker alone
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
            rows.append((to, "message", meta, to_bytes(table)))
            self.stats["sent"] += 1
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
            "stats": self.stats,
        }
        rows.append((self.worker, "report", report, None))
        return as_rows(rows)

    def _messages(self) -> Iterator[tuple[int, Any, int, pa.Table]]:
        """What goes to other workers: one batch per (channel, time, worker).

        Where the receiver combines and laps do not matter to it, those of all laps travel as one, at the last
        of them.
        """
        together: dict[tuple[int, Any, int], list[tuple[Any, pa.Table]]] = defaultdict(list)
        for (index, time, to), tables in self.outbox.items():
            node = self.plan.nodes[self.plan.channels[index].target]
            combines = node.forget and node.template.combine is not None
            key = self.plan.times.coarse(time, node.forget) if combines else time
            together[index, key, to].append((time, pa.concat_tables(tables)))
        for (index, _, to), parts in together.items():
            combine = self.plan.nodes[self.plan.channels[index].target].template.combine
            table = pa.concat_tables([part for _, part in parts])
            latest = functools.reduce(lambda a, b: a.join(b), [time for time, _ in parts])
            yield index, latest, to, table if combine is None else combine(table)

    @property
    def kept(self) -> frozenset[bytes]:
        """The blobs that the last `checkpoint` refers to."""
        return frozenset(itertools.chain.from_iterable(self.references.values()))

    def checkpoint(self, what: str = "", *, whole: bool = False) -> bytes:
        """All there is, between two rounds (Naiad section 3.4).

        Args:
            what: how blobs that are new are called.
            whole: in one piece, with no reference to blobs.

        Raises:
            VertexError: a vertex keeps what cannot be written.
        """
        self.codec.whole = whole
        if whole:
            for name in self.saved:  # those not yet called may refer to blobs
                self.vertex(self.plan.by_name[name])
        written, references = dict(self.saved), dict(self.references)
        for index, vertex in self.vertices.items():
            node = self.plan.nodes[index]
            if node.stage.is_stateless:
                continue
            try:
                references.pop(node.name, None)
                self.codec.what = f"{what}-{index}"
                if state := _changed(vertex, node.template):
                    written[node.name] = self.codec.write(state)
                    if self.codec.kept:
                        references[node.name] = self.codec.kept
                else:  # all is as the template has it, or has become so again
                    written.pop(node.name, None)
            except Exception as error:
                raise VertexError.from_exception(node.name, node.stage.where, error) from error
        queue = list(self.queue.items())
        nodes = self.plan.nodes
        head = {
            "format": FORMAT,
            "vertices": list(written),
            "kept": {name: as_text(kept) for name, kept in references.items()},
            "queue": [[nodes[index].name, input_, time.encode()] for (index, input_, time), _ in queue],
            "pending": [
                [nodes[p.node].name, p.guarantee.encode(), p.capability and p.capability.encode()]
                for p in self.pending
            ],
        }
        if not whole:
            self.references = references
        tables = [to_bytes(pa.concat_tables(tables)) for _, tables in queue]
        return pack_parts(
            [json.dumps(head, separators=(",", ":")).encode(), *map(bytes, written.values()), *tables]
        )


def _changed(vertex: Vertex, template: Vertex) -> dict[str, Any]:
    """What `checkpoint` gives, less what is still the template's very object: functions and settings.

    Where the user wrote `restore` himself it gets all that his `checkpoint` gave.
    """
    state, initial = dict(vertex.checkpoint()), vars(template)
    if type(vertex).restore is not Vertex.restore or type(vertex).checkpoint is not Vertex.checkpoint:
        return state
    return {name: value for name, value in state.items() if name not in initial or value is not initial[name]}


_ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    pa.Schema,
    pa.DataType,
    pa.Field,
    pa.Table,
    pc.Expression,
)


def _is_setting(value: Any) -> bool:
    """Whether a value never changes: all workers may share it, and the very same object is no state."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_setting, value))
    kind: Any = type(value)
    return isinstance(value, _ATOMS) or callable(value) or (is_dataclass(kind) and _frozen(kind))


def _frozen(kind: Any) -> bool:
    frozen: bool = kind.__dataclass_params__.frozen
    return frozen


def _instance(template: Vertex) -> Vertex:
    """A copy of a template with state of its own."""
    vertex = copy.copy(template)
    if isinstance(template, Stateless):
        return vertex
    for name, value in vars(template).items():
        if not _is_setting(value):
            setattr(vertex, name, copy.deepcopy(value))
    return vertex


class _Call:
    """What a vertex sees of the worker that calls it: the context of `Vertex`, and the keeper of its laws."""

    def __init__(self, here: Worker) -> None:
        self.round, self.worker, self.workers, self.times = here, here.worker, here.workers, here.plan.times

    def run(self, node: Node, time: Any, capability: Any | None, call: Callable[[Vertex], None]) -> None:
        """Call a vertex at `time`, with the right to send from `capability` on."""
        self.node, self.time, self.capability = node, time, capability
        try:
            call(self.round.vertex(node))
        except VertexError:
            raise
        except Exception as error:
            raise VertexError.from_exception(node.name, node.stage.where, error, time=str(time)) from error
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
        for index in node.out[edge] if batch.num_rows else ():
            self._over(index, time, batch)

    def _over(self, index: int, time: Any, batch: pa.Table) -> None:
        round_ = self.round
        channel = round_.plan.channels[index]
        onward = channel.summary.results_in(time)
        if onward is None:
            return
        for stage, port in channel.through:
            batch = apply_stage(stage, batch)[port]
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

    def notify(self, time: Any, capability: Any | None) -> None:
        """Ask for a notification."""
        node = self.node
        if not node.waits:
            msg = (
                f"step {node.name!r} asks for a notification and has no on_notify. "
                "Hint: write on_notify(self, time)."
            )
            raise CapabilityError(msg)
        if not self.time.less_equal(time) or (
            capability is not None
            and (
                self.capability is None
                or not self.capability.less_equal(capability)
                or not time.less_equal(capability)
            )
        ):
            msg = (
                f"step {node.name!r} at {self.time} (capability {self.capability}) asks to be notified of "
                f"{time} with capability {capability}. "
                "Hint: ask for the present time or a later one, with a capability no earlier than it."
            )
            raise CapabilityError(msg)
        self.round.pending.add(Pending(node.index, time, capability))

    def output(self, time: Any, batch: pa.Table) -> None:
        """Hand a batch to the driver."""
        self.round.outputs[self.node.index, time].append(batch)

    def coarse(self, time: Any) -> Any:
        """The time as far as it matters to what is accumulated here."""
        return self.round.plan.times.coarse(time, self.node.forget) if self.node.forget else time

    def since(self) -> int:
        """An epoch: nothing will arrive anywhere at an earlier one."""
        oldest: int = self.round.header["oldest"]
        return oldest


def _fit(node: Node, batch: Any, declared: pa.Schema) -> pa.Table:
    try:
        return as_table(batch, declared)
    except SchemaError as error:
        got = describe(batch.schema) if hasattr(batch, "schema") else type(batch).__name__
        msg = f"step {node.name!r} sends ({got}) by an output declared as ({describe(declared)}): {error}"
        raise SchemaError(msg) from error
