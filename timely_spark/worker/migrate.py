"""Going on from a checkpoint with another flow, or with another number of workers.

A step is known again by its name. One that holds anything (state, batches, notifications, epochs not yet
released) must be the same in both flows. A step that is new starts empty; what one that is gone kept is
dropped, and said; records on their way are never dropped. With another number of workers, what lies by
columns is repartitioned by H of them.

Counts of pointstamps are not translated but taken again, from what there is: so they are right by
construction. Nothing here acts: what is refused is refused before anything has changed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa

from timely_spark.errors import TimelyError
from timely_spark.graph import Kind, Partition, Stage, Vertex
from timely_spark.progress import Tracker
from timely_spark.worker.bounds import narrowed, rebounded
from timely_spark.worker.codec import Blobs, Codec, pack_parts, unpack_parts
from timely_spark.worker.context import at_fault
from timely_spark.worker.coordinator import Coordinator, Turn
from timely_spark.worker.keys import deal, from_bytes
from timely_spark.worker.notify import Pending
from timely_spark.worker.partitioning import BROADCAST
from timely_spark.worker.plan import Node, Plan, Source
from timely_spark.worker.round import FORMAT, Worker
from timely_spark.worker.rows import read_rows
from timely_spark.worker.vertex_snapshot import changed, instance


class FlowChanged(TimelyError, ValueError):
    """A flow cannot continue from a checkpoint: names every step that prevents it, and what to do.

    >>> issubclass(FlowChanged, ValueError)
    True
    """

    condition = "FLOW_CHANGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How a flow differs from the one that wrote a checkpoint; false: it does not."""

    #: how many there were, and are
    workers: tuple[int, int]
    #: steps by name
    added: tuple[str, ...]
    removed: tuple[str, ...]
    #: of steps that are in both, what was said of them before and is said now
    changed: Mapping[str, Mapping[str, tuple[Any, Any]]]
    #: whether anything differs but the number of workers
    flow: bool

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.flow or self.workers[0] != self.workers[1]


def compare(before: Mapping[str, Any], plan: Plan) -> Differences:
    """How a plan differs from what another one's `described` said.

    Example:
        >>> import timely_spark as ts
        >>> def flow(kind):
        ...     made = ts.Dataflow("flow")
        ...     getattr(made.input("x", "n long"), kind)(name="step").capture("out")
        ...     return made
        >>> before = flow("distinct").compile(2).described()
        >>> bool(compare(before, flow("distinct").compile(2)))
        False
        >>> compare(before, flow("exchange").compile(2)).changed["step"]["operator"]
        ('distinct', 'exchange')
    """
    now = plan.described()
    before = rebounded(before, now)
    old, new = before["stages"], now["stages"]
    both = [(step, said, new[step]) for step, said in old.items() if step in new]
    return Differences(
        workers=(before["workers"], plan.workers),
        added=tuple(step for step in new if step not in old),
        removed=tuple(step for step in old if step not in new),
        changed={
            step: {what: (was[what], said) for what, said in now.items() if was[what] != said}
            for step, was, now in both
            if was != now
        },
        flow=_logical(before) != _logical(now),
    )


def _logical(described: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a plan but for its number of workers, on which exchanges depend."""
    channels = [channel[:4] for channel in described["channels"]]
    return {**described, "workers": None, "channels": channels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What goes on, as if the plan itself had made the newest batch; and what became of the steps."""

    coordinator: Coordinator
    #: what the next round reads. Nothing is put out, and nothing released, by going on.
    turn: Turn
    #: one for each worker there is now
    workers: tuple[Worker, ...]
    #: steps that start empty
    added: tuple[str, ...]
    #: steps that are gone, and what of theirs was dropped
    removed: Mapping[str, Sequence[str]]
    #: how many workers there were, and are
    renumbered: tuple[int, int]
    #: loops that end sooner from now on: after how many iterations they did (None: never), and do
    bounded: Mapping[str, tuple[int | None, int]]


def migrate(  # noqa: PLR0917 - all of a checkpoint's parts, none of them optional
    before: Mapping[str, Any],
    plan: Plan,
    snapshot: Mapping[str, Any],
    states: Sequence[Any | None],
    messages: pa.Table,
    blobs: Blobs | None = None,
) -> Migration:
    """Let a plan go on from what another one committed.

    Args:
        before: what the other plan's `described` said.
        plan: the plan that goes on.
        snapshot: the other's `Coordinator.encode`.
        states: for each of its workers what `Worker.checkpoint` gave, None where it never ran.
        messages: of schema `ROWS`: the messages in flight. They come to wait with the workers they are for.
        blobs: where states keep large parts.

    Raises:
        FlowChanged: something in the checkpoint has no place in the plan.
        VertexError: a vertex cannot be restored.

    Example:
        Three workers instead of two:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("counts")
        >>> _ = flow.input("words", "word string").group_by("word").count().capture("out")
        >>> old = ts.testing.Simulation(flow, workers=2)
        >>> old.send("words", ["to", "be", "to"])
        >>> old.run()
        >>> made = migrate(
        ...     old.plan.described(), flow.compile(3), old.coordinator.encode(), old.states, old.turn.rows
        ... )
        >>> made.renumbered, len(made.workers), made.turn.released
        ((2, 3), 3, [])
    """
    return _Move(before, plan, snapshot, states, messages, blobs).migration()


#: a worker that has nothing
_EMPTY: Mapping[str, Any] = {"format": FORMAT, "vertices": {}, "queue": [], "batches": [], "pending": []}
_QUIESCE = 'run the flow as it was until nothing is in flight, start(trigger="available_now")'


class _Move:
    def __init__(  # noqa: PLR0917
        self,
        before: Mapping[str, Any],
        plan: Plan,
        snapshot: Mapping[str, Any],
        states: Sequence[Any | None],
        messages: pa.Table,
        blobs: Blobs | None,
    ) -> None:
        self.before, self.plan, self.snapshot, self.blobs = before, plan, snapshot, blobs
        self.now, self.differ = plan.described(), compare(before, plan)
        self.before, self.bounded = rebounded(before, self.now), narrowed(before, self.now)
        self.stages: dict[str, Stage] = {stage.name: stage for stage in plan.stages}
        self.heads = [self._head(worker, state) for worker, state in enumerate(states)]
        rows = (row for row in read_rows(messages) if row[1] == "message")
        self.messages = sorted(
            rows, key=lambda row: (row[2]["channel"], row[2]["from"], row[2].get("seq", 0))
        )
        self.rescaled = self.differ.workers[0] != self.differ.workers[1]
        #: by step what it holds: a number of each kind
        self.holds = self._holds()
        #: vertices that go on
        self.kept = set(before["nodes"]) & set(plan.by_name) - set(self.differ.changed)
        #: what stands in the way, and what can be done about it
        self.problems: list[str] = []
        self.hints: dict[str, None] = {}

    # -- what there is ---------------------------------------------------------------------------------------

    def _head(self, worker: int, state: Any | None) -> tuple[dict[str, Any], list[Any]]:
        """What a state says of itself, and its parts. Who never ran waits for its initial notifications."""
        if state is not None and len(state):
            head, *parts = unpack_parts(state)
            return json.loads(bytes(head)), parts
        asked = self.snapshot["pending"][worker]
        names = self.before["nodes"]
        return {**_EMPTY, "pending": [[names[node], time, time] for node, time, _ in asked]}, []

    def _holds(self) -> dict[str, Counter[str]]:
        holds: dict[str, Counter[str]] = defaultdict(Counter)
        for head, _ in self.heads:
            for name in head["vertices"]:
                holds[name]["state"] = 1
            for name, _, _ in head["queue"]:
                holds[name]["batch"] += 1
            for name, _, _ in head["pending"]:
                holds[name]["notification"] += 1
        for _, _, meta, _ in self.messages:
            holds[self.before["channels"][meta["channel"]][1]]["batch"] += 1
        for name, epochs in self.snapshot["unreleased"].items():
            if epochs:
                holds[name]["unreleased epoch"] += len(epochs)
        return holds

    def migration(self) -> Migration:
        """All of it, or an error with all that stands in the way."""
        inputs = self._inputs()
        self._judge()
        workers = [] if self.problems else self._workers()
        self._refuse()
        tracker = self._tracker(workers, inputs)
        self._overtakes(tracker, inputs)
        self._refuse()
        coordinator, turn = self._turn(workers, inputs, tracker)
        removed = {step: _words(self.holds.get(step, {})) for step in self.differ.removed}
        return Migration(
            coordinator=coordinator,
            turn=turn,
            workers=tuple(workers),
            added=self.differ.added,
            removed=removed,
            renumbered=self.differ.workers,
            bounded=self.bounded,
        )

    # -- what is refused -------------------------------------------------------------------------------------

    def _problem(self, text: str, *hint: str) -> None:
        self.problems.append(text)
        self.hints |= dict.fromkeys(hint)

    def _refuse(self) -> None:
        if self.problems:
            hint = "; or ".join([*self.hints, "start with a new checkpoint."])
            msg = f"flow {self.plan.name!r} cannot continue from the checkpoint: {'; '.join(self.problems)}."
            raise FlowChanged(msg, hint=hint)

    def _shown(self, name: str) -> str:
        stage = self.stages.get(name)
        return f"step {name!r}" + (f" ({stage.where})" if stage is not None else "")

    def _has(self, name: str) -> str:
        return f"{self._shown(name)} holds {' and '.join(_words(self.holds[name]))}"

    def _judge(self) -> None:
        """Whether all that holds anything is known again."""
        for name, held in self.holds.items():
            has = self._has(name)
            if name in self.differ.changed:
                self._problem(
                    f"{has}, and has changed: {self._changes(name)}",
                    "leave such steps as they were, or give the new ones other names: what the old ones kept "
                    "is dropped then",
                )
            elif name not in self.plan.by_name:
                if held["batch"]:
                    gone = "is gone" if name not in self.stages else "is no vertex any more"
                    self._problem(f"{has}, and {gone}", _QUIESCE)
            elif self.differ.flow and not self.stages[name].named and self._is_held(name):
                short = name.removesuffix(".settled").rsplit(".", 1)[-1]
                self._problem(
                    f"{has}, and in a flow that has changed its name, which was derived, "
                    "may be that of another step",
                    f"if it is the same, give it its name: name={short!r}, and the loops around it theirs",
                )

    def _changes(self, name: str) -> str:
        parts = self.differ.changed[name].items()
        return ", ".join(f"{part} was {old!r}, is {new!r}" for part, (old, new) in parts)

    def _is_held(self, name: str) -> bool:
        """Whether a step that is the same as before holds more than what it starts with."""
        held = self.holds[name]
        return any(kind != "state" for kind in held) or any(
            _has_state(worker, self.plan.by_name[name]) for worker in self.old
        )

    # -- inputs ----------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, Any]:
        """Where each input stands.

        Spark knows DataFrames by their order, so they must be the same; handles may come and go.
        """
        both = self.before, self.now
        for what, part in (("name", "flow"), ("kind of time", "times")):
            if self.before[part] != self.now[part]:
                self._problem(f"its {what} is {self.now[part]!r}, the checkpoint's is {self.before[part]!r}")
        frames = [[one[:2] for one in said["inputs"] if one[2] == "source"] for said in both]
        if frames[0] != frames[1]:
            self._problem(
                f"its DataFrame sources (name, epochs) are {frames[1]}, in this order; they were {frames[0]}",
                "keep DataFrame sources and their order: Spark's own log of what was read knows them by it",
            )
        stood, at = self.snapshot["inputs"], {}
        new = min((epoch for epoch in stood.values() if epoch is not None), default=self.fresh)
        kinds = {name: kind for name, *kind in self.before["inputs"]}
        for source in self.plan.inputs:
            name = source.name
            if name not in kinds:
                at[name] = self.snapshot["batch"] + 1 if source.epochs == "clock" else new
                continue
            at[name] = stood[name]
            if name in self.differ.changed and source.stage.handle:
                text = f"{self._shown(name)}, an input, has changed: {self._changes(name)}"
                self._problem(text, "give the new input another name")
        return at

    @cached_property
    def fresh(self) -> int:
        """An epoch: neither it nor a later one is over anywhere."""
        snapshot = self.snapshot
        clock = any(epochs == "clock" for _, epochs, _ in self.before["inputs"])
        over: list[int] = [snapshot["begun"], *snapshot["done"].values(), snapshot["batch"] if clock else -1]
        over += [at - 1 for at in snapshot["inputs"].values() if at is not None]
        return max(over) + 1

    # -- workers ---------------------------------------------------------------------------------------------

    @cached_property
    def old(self) -> list[Worker]:
        """The workers as they were, with the vertices that go on."""
        made = []
        for worker, (head, parts) in enumerate(self.heads):
            waits = zip(head["queue"], head["batches"], strict=True)
            queue = [(at, piece) for at, piece in waits if at[0] in self.kept]
            mine = {
                **head,
                "vertices": {name: said for name, said in head["vertices"].items() if name in self.kept},
                "queue": [at for at, _ in queue],
                "batches": [piece for _, piece in queue],
                "pending": [asked for asked in head["pending"] if asked[0] in self.kept],
            }
            made.append(self._worker(worker, mine, parts))
        return made

    def _worker(self, index: int, head: Mapping[str, Any], parts: Iterable[Any] = ()) -> Worker:
        return Worker(self.plan, pack_parts([json.dumps(head).encode(), *parts]), index, self.blobs)

    def _workers(self) -> list[Worker]:
        old = self.old
        if not self.rescaled:
            for to, _, meta, payload in self.messages:
                _, target, input_, *_ = self.before["channels"][meta["channel"]]
                time = self.plan.times.decode(meta["time"])
                old[to].enqueue(self.plan.by_name[target], input_, time, from_bytes(payload))
            return old
        new = [self._worker(index, _EMPTY) for index in range(self.plan.workers)]
        asked: dict[int, list[set[Pending]]] = defaultdict(lambda: [set() for _ in old])
        for number, worker in enumerate(old):
            for pending in worker.pending:
                asked[pending.node][number].add(pending)
                for other in new:  # each is notified of what any was to be
                    other.pending.add(pending)
        for node in self.plan.nodes:
            if node.name in self.kept:
                waits = asked[node.index]
                self._deal_state(node, old, new, alike=all(of == waits[0] for of in waits))
        self._deal_batches(old, new)
        return new

    def _deal_state(self, node: Node, old: Sequence[Worker], new: Sequence[Worker], *, alike: bool) -> None:
        """What a vertex keeps. `alike`: whether all workers wait for the same notifications."""
        having = [worker for worker in old if _has_state(worker, node)]
        silent = type(node.template).repartition is Vertex.repartition
        if silent and (having or not alike):
            self._problem(
                f"{self._has(node.name)}, and does not say how to partition that among {len(new)} "
                f"workers instead of {len(old)}",
                f"write repartition() for such vertices; or start with workers={len(old)}",
            )
        elif having:
            with at_fault(node):
                states = [changed(worker.vertex(node), node.template) for worker in having]
                dealt = node.template.repartition(
                    states, len(new), lambda input_, table: self._parts(node, "state", input_, table)
                )
                for worker, state in zip(new, dealt, strict=True):
                    worker.vertex(node).restore(state)
                    worker.called[node.index] = []  # to be written

    def _deal_batches(self, old: Sequence[Worker], new: Sequence[Worker]) -> None:
        """What waited for delivery, and what was in flight."""

        def enqueue(node: Node, input_: int, time: Any, table: pa.Table, *by: Partition) -> None:
            parts = self._parts(node, "batches", input_, table, *by)
            for worker, part in zip(new, parts, strict=True):
                if part.num_rows:
                    worker.enqueue(node, input_, time, part)

        for worker in old:
            for (index, input_, time), tables in worker.queue.items():
                enqueue(self.plan.nodes[index], input_, time, pa.concat_tables(tables))
        for _, _, meta, payload in self.messages:
            _, target, input_, _, columns = self.before["channels"][meta["channel"]]
            by = BROADCAST if columns == "broadcast" else Partition(tuple(columns))
            time = self.plan.times.decode(meta["time"])
            enqueue(self.plan.by_name[target], input_, time, from_bytes(payload), by)

    def _parts(self, node: Node, what: str, input_: int, table: pa.Table, *way: Partition) -> list[pa.Table]:
        """Records of an input for each worker; `way`: how the exchange they came over deals them."""
        workers, none = self.plan.workers, table.slice(0, 0)
        by = way[0] if way else self.plan.partitioning.get((node.name, input_))
        if by == BROADCAST or (by is None and workers > 1):
            self._unknown(node, what, input_, by)
            return [none] * workers
        parts = deal(table, by.columns if by is not None else (), workers)
        return [parts.get(worker, none) for worker in range(workers)]

    def _unknown(self, node: Node, what: str, input_: int, by: Partition | None) -> None:
        why = (
            "every worker has a copy of them"
            if by == BROADCAST
            else "steps on their way do not say which columns they preserve"
        )
        text = (
            f"{self._shown(node.name)} holds {what} of input {input_}, and nobody can tell on which of "
            f"{self.plan.workers} workers they belong: {why}"
        )
        if text not in self.problems:
            self._problem(text, f"{_QUIESCE}; or start with workers={self.differ.workers[0]}")

    # -- progress --------------------------------------------------------------------------------------------

    def _tracker(self, workers: Sequence[Worker], inputs: Mapping[str, Any]) -> Tracker:
        """The counts of all there is. Vertices that are new wait for what is not over where they are."""
        stand: Counter[tuple[int, Any]] = Counter()
        for source in self.plan.inputs:
            for index in source.entries:
                at, channel = self._standing(source, index, inputs), self.plan.channels[index]
                if at is None:
                    continue
                if (time := channel.summary.results_in(self.plan.times.epoch(at))) is not None:
                    stand[self.plan.nodes[channel.target].arrives, time] += 1

        def counted() -> Tracker:
            counts = Counter(chain.from_iterable(_pointstamps(worker) for worker in workers))
            said = {"counts": _encoded(counts), "inputs": _encoded(stand)}
            return Tracker.decode(self.plan.reach, self.plan.times, said)

        tracker = counted()
        for node in self.plan.nodes:
            for time in self._awaited(node, tracker):
                if tracker.less_equal(node.arrives, time):
                    for worker in workers:
                        worker.pending.add(Pending(node.index, time, time))
        return counted()

    def _standing(self, source: Source, entry: int, inputs: Mapping[str, Any]) -> int | None:
        """Where an entry of an input stands: late rows may come to a closed source, too."""
        at: int | None = inputs[source.name]
        return self.snapshot["after"].get(source.name) if at is None and entry in source.late else at

    def _awaited(self, node: Node, tracker: Tracker) -> Iterable[Any]:
        """What a vertex is notified of beside what it asked for: it is new, or was repartitioned."""
        if node.name not in self.kept:
            return self.plan.initial(node)
        if not (self.rescaled and node.template.announces and self.holds[node.name]["state"]):
            return ()
        epochs = {time.epoch for _, time in tracker.active} | {self.fresh}
        return [self.plan.times.epoch(epoch) for epoch in sorted(epochs)]

    def _overtakes(self, tracker: Tracker, inputs: Mapping[str, Any]) -> None:
        """Refuse what would bring a vertex that goes on something of an epoch that may be over there.

        By a channel that was there before nothing can; by a new one may come what was behind elsewhere.
        """
        known = {tuple(channel[:4]) for channel in self.before["channels"]}
        nodes, reach, times = self.plan.nodes, self.plan.reach, self.plan.times
        stand = {*tracker.active, *tracker.inputs}
        late: dict[str, int] = {}
        for channel, said in zip(self.plan.channels, self.now["channels"], strict=True):
            if tuple(said[:4]) in known:
                continue
            if channel.source is None:
                at = inputs[said[0]]
                starts = [] if at is None else [times.epoch(at)]
            else:
                paths = reach.summaries(nodes[channel.source].leaves)
                starts = [path.results_in(t) for location, t in stand for path in paths.get(location, ())]
            arrive = [channel.summary.results_in(time) for time in starts if time is not None]
            if behind := [time for time in arrive if time is not None and time.epoch < self.fresh]:
                onward, _ = reach.onward(nodes[channel.target].arrives)
                for node in nodes:
                    ends = (way.results_in(time) for way in onward.get(node.arrives, ()) for time in behind)
                    epoch = min((time.epoch for time in ends if time is not None), default=self.fresh)
                    if epoch < self.fresh and node.name in self.kept and not node.stage.is_stateless:
                        late[node.name] = min(epoch, late.get(node.name, epoch))
        for name, epoch in late.items():
            self._problem(
                f"{self._shown(name)} would get records of epoch {epoch} by a way that is new, and may have "
                "been told that this epoch is over",
                f"{_QUIESCE}, with all inputs at one epoch",
            )

    def _turn(
        self, workers: Sequence[Worker], inputs: dict[str, Any], tracker: Tracker
    ) -> tuple[Coordinator, Turn]:
        """The coordinator as the batch would have left it, and its turn; releases are for the next one."""
        snapshot = self.snapshot
        outputs = [node.name for node in self.plan.nodes if node.stage.kind is Kind.OUTPUT]
        old = [name for name in outputs if name in snapshot["unreleased"]]
        open_ = [at for at in (*inputs.values(), *snapshot["after"].values()) if at is not None]
        oldest = min([*open_, *(time.epoch for _, time in tracker.active)], default=self.fresh)
        done = min((snapshot["done"][name] for name in old), default=oldest - 1)
        begun = sorted({epoch for name in old for epoch in snapshot["unreleased"][name] if epoch > done})
        made = {
            "batch": snapshot["batch"],
            "tracker": tracker.encode(),
            "inputs": inputs,
            "pending": [[[p.node, p.guarantee.encode(), 1] for p in worker.pending] for worker in workers],
            "left": [index for index, worker in enumerate(workers) if worker.queue],
            "unreleased": {name: snapshot["unreleased"].get(name, begun) for name in outputs},
            "done": {name: snapshot["done"].get(name, done) for name in outputs},
            "opened": snapshot["opened"],
            "begun": snapshot["begun"],
            "loops": snapshot["loops"],
            "unseen": [name for name in snapshot["unseen"] if name in inputs],
            "after": {name: at for name, at in snapshot["after"].items() if name in inputs},
            "refused": {name: count for name, count in snapshot["refused"].items() if name in inputs},
            "late": {name: count for name, count in snapshot["late"].items() if name in inputs},
        }
        turn = Coordinator.decode(self.plan, made).first()
        if turn.released:  # only what is gone held them back: a round is due, whose turn releases them
            made["left"] = sorted({0, *made["left"]})
            turn = replace(Coordinator.decode(self.plan, made).first(), released=[])
        return Coordinator.decode(self.plan, made), turn


def _pointstamps(worker: Worker) -> Iterator[tuple[int, Any]]:
    """What a worker holds others back by: each batch that waits, and each capability."""
    nodes = worker.plan.nodes
    for index, _, time in worker.queue:
        yield nodes[index].arrives, time
    for pending in worker.pending:
        if pending.capability is not None:
            yield nodes[pending.node].leaves, pending.capability


def _encoded(counts: Mapping[tuple[int, Any], int]) -> list[list[Any]]:
    return [[location, time.encode(), n] for (location, time), n in counts.items()]


def _has_state(worker: Worker, node: Node) -> bool:
    """Whether a vertex has another state than it starts with."""
    saved = worker.saved.get(node.name)
    if saved is None:
        return False
    if saved.references:
        return True
    written = [
        Codec(worker.plan.times).write(
            changed(vertex, node.template), pickles=vertex.pickles, vertex=type(vertex)
        )
        for vertex in (worker.vertex(node), instance(node.template))
    ]
    return written[0] != written[1]


def _words(held: Mapping[str, int]) -> list[str]:
    """What a step holds, in words."""
    some = {"batch": "batches", "notification": "notifications", "unreleased epoch": "unreleased epochs"}
    return [f"{n} {some[kind] if n > 1 else kind}" if kind in some else kind for kind, n in held.items() if n]
