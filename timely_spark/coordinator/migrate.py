"""Migration: continue from a checkpoint with a changed flow, or with another number of workers.

Steps are identified by name. A step with contents (state, batches, notifications, unreleased epochs) must be
the same in both flows. A new step that needs the past (see `lacking`) is refused, or starts empty if the user
says so. The state of a removed step is dropped and reported; records in flight are never dropped. With
another number of workers, state and batches are repartitioned by H; with other hot keys, only state.

Pointstamps are counted again from the migrated workers, so the counts are right by construction. A migration
writes nothing: a flow that is refused leaves the checkpoint unchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.compiler.partitioning import ANYWHERE, BROADCAST
from timely_spark.compiler.plan import Channel, Node, Plan, PlanInput
from timely_spark.coordinator.contents import contents_in_words, has_state, pointstamps_of
from timely_spark.coordinator.coordinator import Coordinator
from timely_spark.coordinator.differences import SHOWN, compare, lowered_bounds, with_bounds
from timely_spark.coordinator.lacking import (
    fed_otherwise,
    lacks_past,
    new_steps,
    reads_changes,
    refusal,
)
from timely_spark.coordinator.migration import FlowChanged, Migration
from timely_spark.coordinator.round_result import RoundResult
from timely_spark.graph import Kind, Partition, Stage, Vertex, describe
from timely_spark.progress import Tracker
from timely_spark.progress.tracker import encoded_counts
from timely_spark.state.arrow import from_bytes
from timely_spark.state.codec import BlobStore, pack_json, unpack_json
from timely_spark.state.exchange import partitioned
from timely_spark.times import Timestamp
from timely_spark.worker import wire
from timely_spark.worker.context import ErrorsOf
from timely_spark.worker.epoch_columns import by_column
from timely_spark.worker.notify import Pending
from timely_spark.worker.round import FORMAT, Worker
from timely_spark.worker.vertex_snapshot import changed
from timely_spark.worker.wire import Message

UnreadEntry: TypeAlias = tuple[int, int | None, pa.Schema]
"""An entry of a handle: its number, its epoch (None by the clock), and its columns."""

#: the encoded state of a worker without contents
_EMPTY: Mapping[str, Any] = {"format": FORMAT, "vertices": {}, "queue": [], "batches": [], "pending": []}
_QUIESCE = 'first run the old flow to its end, by start(trigger="available_now"), so nothing is in flight'


class Migrator:
    """Continues another plan's checkpoint, by `migration`, or raises an error with all reasons against it.

    Args:
        before: the old plan's `described`.
        snapshot: the old `Coordinator.encode`.
        states: the `Worker.checkpoint` of each old worker, None if it never ran.
        messages: the messages in flight, of schema `ROWS`. They are queued at their workers.
        empty: whether new steps that need the past may start empty.
        planned: the inputs that are read by a batch that has begun, and will run again.
        unread: what no batch has read of each handle that the old plan lacks: number, epoch and columns.
        due: the complete epochs of each output that are not delivered.
    """

    def __init__(  # noqa: PLR0917 - all of a checkpoint's parts, none of them optional
        self,
        before: Mapping[str, Any],
        plan: Plan,
        snapshot: Mapping[str, Any],
        states: Sequence[Any | None],
        messages: pa.Table,
        blobs: BlobStore | None = None,
        *,
        empty: bool = False,
        planned: Collection[str] = (),
        unread: Mapping[str, Iterable[UnreadEntry]] = MappingProxyType({}),
        due: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.plan, self.snapshot, self.blobs, self.empty = plan, snapshot, blobs, empty
        self.planned, self.unread, self.due = planned, unread, due
        self.new_plan, self.differences = plan.described(), compare(before, plan)
        self.old_plan = with_bounds(before, self.new_plan)
        self.bounded = lowered_bounds(before, self.new_plan)
        self.stages: dict[str, Stage] = {stage.name: stage for stage in plan.stages}
        self.heads = [self._head(worker, state) for worker, state in enumerate(states)]
        self.messages = sorted(
            wire.read(messages, Message), key=lambda sent: (sent[1].channel, sent[1].sender)
        )
        old, new = self.differences.workers
        plan.spread(spread := snapshot.get("spread", {}))
        #: whether the hot keys of some steps differ
        self.hot_keys = self.differences.hot_keys or not spread.keys() <= plan.found_keys.keys()
        self.rescaled = old != new or self.hot_keys
        #: what the user may do instead of letting state be repartitioned
        self.as_before = f"start with workers={old}" if old != new else "leave the hot keys as they were"
        #: per step the number of states, batches, notifications and unreleased epochs
        self.contents = self._contents()
        #: vertices that keep their contents
        self.continuing = set(before["nodes"]) & set(plan.by_name) - set(self.differences.changed)
        #: continuing vertices with state that is repartitioned if `rescaled`
        self.moving = self.continuing
        #: new and changed steps that records of before the restart would have reached
        self.new = new_steps(plan, self.continuing, self._read())
        same = self.differences.same if "edges" in before and snapshot.get("read") else self.continuing
        #: steps that need the past, and got it from other steps than those before them now
        self.fed_otherwise = fed_otherwise(plan, sorted(self.continuing - same), self.new)
        #: the reasons to refuse the new plan, and hints
        self.problems: list[str] = []
        self.hints: dict[str, None] = {}

    # -- the contents of the checkpoint ----------------------------------------------------------------------

    def _head(self, worker: int, state: Any | None) -> tuple[dict[str, Any], list[Any]]:
        """The head and the parts of a worker's state; a worker that never ran has initial notifications."""
        if state is not None and len(state):
            return unpack_json(state)
        pending = self.snapshot["pending"][worker]
        names = self.old_plan["nodes"]
        return {**_EMPTY, "pending": [[names[node], time, time, []] for node, time, _ in pending]}, []

    def _contents(self) -> dict[str, Counter[str]]:
        contents: dict[str, Counter[str]] = defaultdict(Counter)
        for head, _ in self.heads:
            for name in head["vertices"]:
                contents[name]["state"] = 1
            for name, _, _ in head["queue"]:
                contents[name]["batch"] += 1
            for name, _, _, later, *_ in head["pending"]:
                contents[name]["notification"] += 1 + len(later)
        for _, message in self.messages:
            contents[self.old_plan["channels"][message.channel][1]]["batch"] += 1
        for name, epochs in chain(self.snapshot["unreleased"].items(), self.due.items()):
            if epochs:
                contents[name]["unreleased epoch"] += len(epochs)
        return contents

    def _read(self) -> list[str]:
        """The inputs that were read; from one with a journal perhaps only what the old flow did not need."""
        read = self.snapshot.get("read", {})
        inputs = [source for source in self.plan.inputs if source.name in read]
        return [each.name for each in inputs if read[each.name] or each.stage.origin == "journal"]

    def migration(self) -> Migration:
        """The migration, or an error with all reasons against it."""
        inputs = self._inputs()
        self._check_steps()
        self._check_new_steps()
        if self.hot_keys and any(contents["batch"] for contents in self.contents.values()):
            self._problem("records are in flight, and its hot keys have changed", _QUIESCE, self.as_before)
        workers = [] if self.problems else self._workers()
        self._refuse()
        tracker = self._tracker(workers, inputs)
        self._check_overtaking(tracker, inputs)
        first = {stage: self._first_epoch(stage, tracker) for stage in self.new}
        self._check_delivered(first)
        self._refuse()
        lacking = {
            name: at for name, at in self.snapshot.get("lacking", {}).items() if name in self.continuing
        }
        lacking |= {
            stage.name: at
            for stage, at in first.items()
            if lacks_past(self.plan, stage) or self._skips(stage, at)
        }
        coordinator, result = self._result(workers, inputs, tracker, lacking)
        removed = {step: contents_in_words(self.contents.get(step, {})) for step in self.differences.removed}
        return Migration(
            coordinator=coordinator,
            result=result,
            workers=tuple(workers),
            added=self.differences.added,
            lacking=lacking,
            begins={
                stage.name: at
                for stage, at in first.items()
                if stage.kind is Kind.OUTPUT and stage.name not in lacking
            },
            removed=removed,
            fed_otherwise=tuple(stage.name for stage in self.fed_otherwise),
            worker_counts=self.differences.workers,
            hot_keys=self.hot_keys,
            bounded=self.bounded,
        )

    # -- refusals --------------------------------------------------------------------------------------------

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

    def _held(self, name: str) -> str:
        return f"{self._shown(name)} holds {' and '.join(contents_in_words(self.contents[name]))}"

    def _check_steps(self) -> None:
        """Refuse steps with contents that are changed, removed, or perhaps other steps of the same name."""
        for name, contents in self.contents.items():
            has = self._held(name)
            if name in self.differences.changed:
                self._problem(
                    f"{has}, and has changed: {self._changes(name)}",
                    "leave such steps as they were, or give them new names: they then start empty, and the "
                    "old state is dropped",
                )
            elif name not in self.plan.by_name:
                if contents["batch"]:
                    why = (
                        "is not in the flow any more"
                        if name not in self.stages
                        else "is not a vertex any more"
                    )
                    self._problem(f"{has}, and {why}", _QUIESCE)
            elif self._may_be_another(name) and self._has_contents(name):
                short = name.removesuffix(".settled").rsplit(".", 1)[-1]
                self._problem(
                    f"{has}, and its derived name may now be that of another step, as the flow has changed "
                    f"({self.differences.in_words()})",
                    f"if it is the same step, write name={short!r} there, and name its loops likewise",
                )

    def _may_be_another(self, name: str) -> bool:
        """Whether a step of the new flow may be another one than that of this name in the old flow."""
        if not self.differences.flow or self.stages[name].named:
            return False
        return name not in self.differences.certain

    def _check_new_steps(self) -> None:
        """Refuse new steps that need the past."""
        lacking = [stage for stage in self.new if lacks_past(self.plan, stage)]
        if lacking and not self.empty:
            retained = {name for name, of in self.contents.items() if "state" in of}
            retained |= {*self.snapshot.get("expectations", ())}
            operators = {stage.operator for stage in lacking}
            removed = [
                name
                for name in self.differences.removed
                if name in retained and self.old_plan["stages"][name]["operator"] in operators
            ]
            self._problem(*refusal(lacking, removed))
        if rewired := [stage for stage in self.fed_otherwise if reads_changes(self.plan, stage)]:
            self._problem(
                f"{', '.join(self._shown(stage.name) for stage in rewired[:SHOWN])}: the collection there is "
                f"made by other steps than before ({self.differences.in_words()}), and a deletion would not "
                "remove what the old ones made",
                "leave the steps before them as they were, or give them and all steps behind new names, with "
                'new_steps="empty"',
            )

    def _first_epoch(self, stage: Stage, tracker: Tracker) -> int:
        """The first epoch whose records a new step gets."""
        frontier = tracker.frontier(self.plan.by_name[stage.name].arrives)
        return min((time.epoch for time in frontier), default=self.open_epoch)

    def _check_delivered(self, first: Mapping[Stage, int]) -> None:
        """Refuse outputs that come back, and would deliver an epoch twice, or captures that lack some."""
        for stage, epoch in first.items():
            if stage.kind is Kind.OUTPUT and epoch <= (last := self.snapshot["done"].get(stage.name, -1)):
                text = (
                    f"{self._shown(stage.name)} has delivered epoch {last}, and gets records of epoch {epoch}"
                )
                self._problem(text, "give the output another name, and another table or folder")
        if not self.empty and (skipping := [stage for stage, at in first.items() if self._skips(stage, at)]):
            self._problem(*refusal(skipping, ()))

    def _skips(self, output: Stage, first: int) -> bool:
        """Whether a capture comes back and lacks epochs, which its readers would take for empty ones."""
        last: int = self.snapshot["done"].get(output.name, -1)
        return output.parameters.get("to") == "folder" and -1 < last < first - 1

    def _changes(self, name: str) -> str:
        parts = self.differences.changed[name].items()
        return ", ".join(f"{part} was {old!r}, is {new!r}" for part, (old, new) in parts)

    def _has_contents(self, name: str) -> bool:
        """Whether an unchanged step has more than its initial state."""
        return any(kind != "state" for kind in self.contents[name]) or any(
            has_state(worker, self.plan.by_name[name]) for worker in self.old_workers
        )

    # -- inputs ----------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, Any]:
        """The epoch of each input, None if it is closed.

        Spark identifies DataFrames by their order, so they must be the same; other inputs may come and go.
        """
        for noun, part in (("name", "flow"), ("kind of time", "times")):
            if (old := self.old_plan[part]) != (new := self.new_plan[part]):
                self._problem(f"its {noun} is {new!r}, the checkpoint's is {old!r}")
        self._refuse()  # the name of another flow says enough
        frames = [
            [each[:2] for each in plan["inputs"] if each[2] == "dataframe"]
            for plan in (self.old_plan, self.new_plan)
        ]
        if frames[0] != frames[1]:
            self._problem(
                f"its DataFrame sources (name, epochs) are {frames[1]}, in this order; they were {frames[0]}",
                "keep DataFrame sources and their order, by which Spark's log of offsets identifies them",
            )
        for name in sorted({*self.planned} - {*self.plan.sources}):
            self._problem(f"input {name!r} is removed, and a batch that runs again reads it", _QUIESCE)
        kinds = {name: kind for name, *kind in self.old_plan["inputs"]}
        for source in self.plan.inputs:
            if source.name in kinds:
                self._check_input(source, kinds[source.name])
        old = self.snapshot["inputs"]
        return {s.name: old[s.name] if s.name in kinds else self._begins(s) for s in self.plan.inputs}

    def _begins(self, source: PlanInput) -> int | None:
        """The epoch at which a new input begins, or one that comes back; None if it was closed."""
        if (stands := self.snapshot.get("removed", {}).get(source.name, 0)) is None:
            return None
        open_epochs = [epoch for epoch in self.snapshot["inputs"].values() if epoch is not None]
        begins: int = max(stands, min(open_epochs, default=self.open_epoch))
        if source.epochs == "clock":
            begins = int(self.snapshot["batch"]) + 1
        elif begins > stands and source.epochs == "manual" and not source.stage.handle:
            text = f"{self._shown(source.name)}, a replay, is new: its first epochs are complete here"
            self._problem(text, "replay it in a flow with a new checkpoint")
        self._check_unread(source, begins)
        return begins

    def _check_unread(self, source: PlanInput, begins: int) -> None:
        """Check that what an earlier flow was sent, and has not read, can enter an input that comes back."""
        declared = source.stage.outputs[0]
        for number, epoch, columns in self.unread.get(source.name, ()):
            if (epoch is None) != (source.epochs == "clock"):
                what = "was sent to an input with other epochs"
            elif not columns.equals(declared):
                what = f"has the columns {describe(columns)}, the input {describe(declared)}"
            elif epoch is not None and epoch < begins:
                what = f"is of epoch {epoch}, and epoch {begins - 1} may be complete"
            else:
                continue
            text = f"{self._shown(source.name)}, an input, comes back: its unread entry {number} {what}"
            self._problem(text, "give the input another name, and send the records again")
            return

    def _check_input(self, source: PlanInput, old: list[str]) -> None:
        """Check that an input has the epochs and the origin that it had, and a handle its columns."""
        if (kind := [source.epochs, source.stage.origin]) != old:
            what = f"its epochs and origin were {old}, are {kind}"
        elif source.name in self.differences.changed and source.stage.handle:
            what = self._changes(source.name)
        else:
            return
        text = f"{self._shown(source.name)}, an input, has changed: {what}"
        self._problem(text, "give the new input another name")

    @cached_property
    def open_epoch(self) -> int:
        """An epoch that is complete nowhere; no later one is complete either."""
        snapshot = self.snapshot
        clock = any(epochs == "clock" for _, epochs, _ in self.old_plan["inputs"])
        past: list[int] = [snapshot["begun"], *snapshot["done"].values(), snapshot["batch"] if clock else -1]
        past += [at - 1 for at in snapshot["inputs"].values() if at is not None]
        return max(past) + 1

    # -- workers ---------------------------------------------------------------------------------------------

    @cached_property
    def old_workers(self) -> list[Worker]:
        """The old workers, with the continuing vertices only."""
        workers = []
        for worker, (head, parts) in enumerate(self.heads):
            queued = zip(head["queue"], head["batches"], strict=True)
            queue = [(key, chunk) for key, chunk in queued if key[0] in self.continuing]
            continuing = {
                **head,
                "vertices": {
                    name: vertex for name, vertex in head["vertices"].items() if name in self.continuing
                },
                "queue": [key for key, _ in queue],
                "batches": [chunk for _, chunk in queue],
                "pending": [pending for pending in head["pending"] if pending[0] in self.continuing],
            }
            workers.append(self._worker(worker, continuing, parts))
        return workers

    def _worker(self, index: int, head: Mapping[str, Any], parts: Iterable[Any] = ()) -> Worker:
        return Worker(self.plan, pack_json(head, parts), index, self.blobs)

    def _workers(self) -> list[Worker]:
        old = self.old_workers
        if not self.rescaled:
            for to, message in self.messages:
                _, target, input_, *_ = self.old_plan["channels"][message.channel]
                time = self.plan.times.decode(message.time)
                old[to].enqueue(self.plan.by_name[target], input_, time, from_bytes(message.payload))
            return old
        new = [self._new_worker(index) for index in range(self.plan.workers)]
        requested: dict[int, list[set[Pending]]] = defaultdict(lambda: [set() for _ in old])
        for number, worker in enumerate(old):
            for pending in worker.pending:
                requested[pending.node][number].add(pending)
                if self.plan.nodes[pending.node].name in self.moving:
                    for other in new:  # every new worker gets the notifications of all old ones
                        other.pending.add(pending)
        for node in self.plan.nodes:
            if node.name in self.moving:
                first, *others = requested[node.index]
                self._repartition_state(node, old, new, same_pending=all(other == first for other in others))
        self._repartition_batches(old, new)
        return new

    def _new_worker(self, index: int) -> Worker:
        """A worker with those parts of the old one, or of an empty one, that do not move."""
        staying = self.continuing - self.moving
        head, parts = self.heads[index] if staying else (_EMPTY, [])
        vertices = {name: entry for name, entry in head["vertices"].items() if name in staying}
        pending = [entry for entry in head["pending"] if entry[0] in staying]
        return self._worker(index, {**_EMPTY, "vertices": vertices, "pending": pending}, parts)

    def _repartition_state(
        self, node: Node, old: Sequence[Worker], new: Sequence[Worker], *, same_pending: bool
    ) -> None:
        """Repartition a vertex's state.

        Args:
            same_pending: whether all workers have the same notifications pending.
        """
        with_state = [worker for worker in old if has_state(worker, node)]
        unable = type(node.template).repartition is Vertex.repartition
        if unable and (with_state or not same_pending):
            self._problem(
                f"{self._held(node.name)}, and does not say how to partition that over {len(new)} workers"
                + (f" instead of {len(old)}" if len(old) != len(new) else ""),
                f"write repartition() for such vertices; or {self.as_before}",
            )
        elif with_state:
            with ErrorsOf(node):
                states = [changed(worker.vertex(node), node.template) for worker in with_state]
                repartitioned = node.template.repartition(
                    states, len(new), lambda input_, table: self._parts(node, "state", input_, table)
                )
                for worker, state in zip(new, repartitioned, strict=True):
                    worker.vertex(node).restore(state)
                    worker.invocations[node.index] = []  # so that the next checkpoint has the state

    def _repartition_batches(self, old: Sequence[Worker], new: Sequence[Worker]) -> None:
        """Repartition queued batches, and messages in flight."""

        def enqueue(node: Node, input_: int, time: Timestamp, table: pa.Table, *by: Partition | None) -> None:
            parts = self._parts(node, "batches", input_, table, *by)
            for worker, part in zip(new, parts, strict=True):
                if part.num_rows:
                    worker.enqueue(node, input_, time, part)

        for worker in old:
            for (index, input_, time), tables in worker.queue.items():
                enqueue(self.plan.nodes[index], input_, time, pa.concat_tables(tables))
        for _, message in self.messages:
            _, target, input_, _, columns = self.old_plan["channels"][message.channel]
            of_plan = {str(by): by for by in [*self.plan.exchanged.values(), BROADCAST]}
            by = of_plan.get(columns) if isinstance(columns, str) else Partition(tuple(columns))
            time = self.plan.times.decode(message.time)
            enqueue(self.plan.by_name[target], input_, time, from_bytes(message.payload), by)

    def _parts(
        self, node: Node, noun: str, input_: int, table: pa.Table, *exchange: Partition | None
    ) -> list[pa.Table]:
        """Records of an input for each worker; `exchange`: the partitioning of messages in flight."""
        workers, empty = self.plan.workers, table.slice(0, 0)
        by = exchange[0] if exchange else self.plan.partitioning.get((node.name, input_))
        unknown = workers > 1 if by is None else by.broadcast
        if by is not None and by.skew is not None and noun == "batches":
            # what was queued has sequence numbers of one worker, with which a join compares others
            unknown = by.copies or not exchange
        if unknown:
            self._refuse_unknown_partitioning(node, noun, input_, by)
            return [empty] * workers
        numbered = partitioned(table, by or ANYWHERE, workers)
        return [numbered.get(worker, empty) for worker in range(workers)]

    def _refuse_unknown_partitioning(self, node: Node, noun: str, input_: int, by: Partition | None) -> None:
        why = "steps before it do not say which columns they preserve"
        if by is not None:
            copies = "every worker has a copy of them"
            why = copies if by.copies else "records of hot keys are on any worker"
        text = (
            f"{self._shown(node.name)} holds {noun} of input {input_} of unknown partitioning over "
            f"{self.plan.workers} workers: {why}"
        )
        if text not in self.problems:
            self._problem(text, f"{_QUIESCE}; or {self.as_before}")

    # -- progress --------------------------------------------------------------------------------------------

    def _tracker(self, workers: Sequence[Worker], inputs: Mapping[str, Any]) -> Tracker:
        """The tracker of the migrated pointstamps. New vertices get their initial notifications."""
        inputs_at: Counter[tuple[int, Any]] = Counter()
        for source in self.plan.inputs:
            for index in source.entries:
                epoch, channel = inputs[source.name], self.plan.channels[index]
                if epoch is None and index in source.late:
                    epoch = self._late_epochs(inputs)[source.name]
                time = None if epoch is None else channel.summary.results_in(self.plan.times.epoch(epoch))
                if time is not None:
                    inputs_at[self.plan.lands(channel), time] += 1

        def counted() -> Tracker:
            counts = Counter(chain.from_iterable(pointstamps_of(worker) for worker in workers))
            encoded = {"counts": encoded_counts(counts), "inputs": encoded_counts(inputs_at)}
            return Tracker.decode(self.plan.reach, self.plan.times, encoded)

        tracker = counted()
        for node in self.plan.nodes:
            for time in self._initial_notifications(node, tracker):
                if tracker.less_equal(node.arrives, time):
                    for worker in workers:
                        worker.pending.add(Pending(node.index, time, time))
        return counted()

    def _late_epochs(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """For each closed source that uses late rows: the epoch at which these enter."""
        after = self.snapshot["after"]
        closed = [each.name for each in self.plan.inputs if each.late and inputs[each.name] is None]
        return {name: after.get(name, self.open_epoch) for name in closed}

    def _initial_notifications(self, node: Node, tracker: Tracker) -> Iterable[Any]:
        """The times of notifications for vertices that are new, or announce their repartitioned state."""
        if node.name not in self.continuing:
            return self.plan.initial(node)
        if not (self.rescaled and node.template.announces and self.contents[node.name]["state"]):
            return ()
        epochs = {time.epoch for _, time in tracker.active} | {self.open_epoch}
        return [self.plan.times.epoch(epoch) for epoch in sorted(epochs)]

    def _check_overtaking(self, tracker: Tracker, inputs: Mapping[str, Any]) -> None:
        """Refuse new channels over which records of an epoch may arrive that is complete at a vertex.

        Old channels cannot carry such records. A new channel can, from a part of the flow that was behind.
        """
        old_channels = {tuple(channel[:4]) for channel in self.old_plan["channels"]}
        late: dict[str, int] = {}
        for channel, described in zip(self.plan.channels, self.new_plan["channels"], strict=True):
            if tuple(described[:4]) in old_channels:
                continue
            arrive = [channel.summary.results_in(time) for time in self._starts(channel, tracker, inputs)]
            if behind := [time for time in arrive if time is not None and time.epoch < self.open_epoch]:
                paths, _ = self.plan.reach.paths_from(self.plan.lands(channel))
                for node in self.plan.nodes:
                    ends = (p.results_in(time) for p in paths.get(node.arrives, ()) for time in behind)
                    epoch = min((time.epoch for time in ends if time is not None), default=self.open_epoch)
                    remembers = node.name in self.continuing and not node.stage.is_stateless
                    if epoch < self.open_epoch and remembers:
                        late[node.name] = min(epoch, late.get(node.name, epoch))
        for name, epoch in late.items():
            self._problem(
                f"{self._shown(name)} would get records of epoch {epoch} over a new channel, and that epoch "
                "may be complete there",
                f"{_QUIESCE}, with all inputs at one epoch",
            )

    def _starts(self, channel: Channel, tracker: Tracker, inputs: Mapping[str, Any]) -> list[Any]:
        """Lower bounds of the times that may be sent over a channel."""
        if channel.source is None:
            epoch = inputs[channel.edges[0].source.name]
            return [] if epoch is None else [self.plan.times.epoch(epoch)]
        pointstamps = {*tracker.active, *tracker.inputs}
        ends: list[Any] = []
        for held, summary in self.plan.nodes[channel.source].departs(channel.edges[0].port):
            paths = self.plan.reach.summaries(held)
            own = [path.results_in(t) for location, t in pointstamps for path in paths.get(location, ())]
            own = [time for time in own if time is not None]
            ends += own if summary is None else map(summary.results_in, own)
        return [time for time in ends if time is not None]

    def _result(
        self,
        workers: Sequence[Worker],
        inputs: dict[str, Any],
        tracker: Tracker,
        lacking: Mapping[str, int],
    ) -> tuple[Coordinator, RoundResult]:
        """The new plan's coordinator and result after the newest batch; the next batch releases epochs."""
        snapshot = self.snapshot
        outputs = [node.name for node in self.plan.nodes if node.stage.kind is Kind.OUTPUT]
        delivered = snapshot["done"]  # also those of removed outputs, which may come back
        old_outputs = [name for name in outputs if name in snapshot["unreleased"]]
        before, late_epochs = snapshot.get("removed", {}) | snapshot["inputs"], self._late_epochs(inputs)
        open_ = [at for at in (*inputs.values(), *late_epochs.values()) if at is not None]
        oldest = min([*open_, *(time.epoch for _, time in tracker.active)], default=self.open_epoch)
        done = min((delivered[name] for name in old_outputs), default=oldest - 1)
        begun = sorted(
            {epoch for name in old_outputs for epoch in snapshot["unreleased"][name] if epoch > done}
        )
        unseen = {*snapshot["unseen"], *inputs.keys() - snapshot["inputs"].keys()}
        encoded = {
            "batch": snapshot["batch"],
            "tracker": tracker.encode(),
            "inputs": inputs,
            "removed": {name: at for name, at in before.items() if name not in inputs},
            "pending": [[[p.node, p.guarantee.encode(), 1] for p in worker.pending] for worker in workers],
            "left": [index for index, worker in enumerate(workers) if worker.queue],
            "unreleased": {
                name: snapshot["unreleased"].get(name, [e for e in begun if e > delivered.get(name, done)])
                for name in outputs
            },
            "done": dict.fromkeys(outputs, done) | delivered,
            "opened": snapshot["opened"],
            "begun": snapshot["begun"],
            "loops": snapshot["loops"],
            "unseen": [s.name for s in self.plan.inputs if by_column(s.epochs) and s.name in unseen],
            "after": late_epochs,
            **{counted: snapshot.get(counted, {}) for counted in ("read", "late", "refused", "quarantined")},
            "lacking": lacking,
            **{
                part: {step: value for step, value in snapshot.get(part, {}).items() if step in self.stages}
                for part in ("hot_keys", "negatives", "expectations")
            },
            "spread": {step: [*keys] for step, keys in self.plan.found_keys.items() if keys},
        }
        result = Coordinator.decode(self.plan, encoded).first()
        if result.released:  # removed steps held them back: run a round, which releases them
            encoded["left"] = sorted({0, *encoded["left"]})
            result = replace(Coordinator.decode(self.plan, encoded).first(), released=[])
        return Coordinator.decode(self.plan, encoded), result
