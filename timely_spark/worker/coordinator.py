"""The driver's part of a round: rows of a batch in; what the next round reads, and what is complete, out.

All deltas of a batch are applied at once, so no count is ever negative and no view ahead of another: the
protocol of Naiad section 3.3 holds by construction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError
from timely_spark.graph import Kind
from timely_spark.progress import Tracker
from timely_spark.times import MutableAntichain
from timely_spark.worker.columns import Refused, by_column
from timely_spark.worker.loops import Loops, Notice
from timely_spark.worker.notify import Blockers, input_frontier, lower_bounds
from timely_spark.worker.plan import Node, Plan
from timely_spark.worker.rows import ROWS, as_rows, read_rows, text

OUTPUTS = pa.schema(
    [("sink", pa.string()), ("epoch", pa.int64()), ("worker", pa.int32()), ("payload", pa.binary())]
)
"""What workers hand out. Columns: sink (the step's name), epoch, worker, payload (Arrow IPC stream)."""


def as_outputs(rows: pa.Table) -> pa.Table:
    """The outputs among a round's rows, of schema `OUTPUTS`."""
    mine = rows.filter(pc.equal(rows.column("kind"), "output"))
    pairs = [(meta["sink"], meta["epoch"]) for _, _, meta, _ in read_rows(mine)]
    sinks, epochs = pa.array([sink for sink, _ in pairs], pa.string()), [epoch for _, epoch in pairs]
    columns = [sinks, pa.array(epochs, pa.int64()), mine.column("worker"), mine.column("payload")]
    return pa.table(columns, schema=OUTPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a batch led to."""

    #: what the next round reads; empty where there is nothing to run without input
    rows: pa.Table
    #: the header, for a worker to which no row brings one
    header: str
    #: schema `OUTPUTS`
    outputs: pa.Table
    #: (sink, epoch) that are complete now, in order
    released: list[tuple[str, int]]
    #: per output and probe the times that may still appear there; none: complete
    frontier: dict[str, list[Any]]
    #: whether all inputs are closed and nothing is left to do
    complete: bool
    #: rows that came too late, per input, since the flow began; those that jump too far and those without an
    #: epoch among them
    late: dict[str, int]
    #: records that the limits of loops have dropped, per loop, since the flow began
    cut_off: dict[str, int]
    #: what the user should know of loops, as `Notice.encode` gives it
    notices: list[dict[str, Any]]
    #: counts: of its rounds together, `rounds` among them; and of what is open after them
    stats: dict[str, int]
    #: what is to be told of rows that this round refused, by source
    refused: dict[str, Refused] = field(default_factory=dict)

    def then(self, later: Turn) -> Turn:
        """This turn and the one of the batch's next round as one."""
        counts = {
            name: count + (0 if name in _OPEN else self.stats.get(name, 0))
            for name, count in (dict.fromkeys(self.stats, 0) | later.stats).items()
        }
        return replace(
            later,
            outputs=pa.concat_tables([self.outputs, later.outputs]),
            released=[*self.released, *later.released],
            notices=[*self.notices, *later.notices],
            stats=counts,
            refused=self.refused,  # only the first round reads input
        )


#: So many epochs in a row without records are released one by one; of more only the last one.
EMPTY = 100


def passed(brought: Iterable[int], after: int, until: int) -> Iterator[int]:
    """The epochs after `after` and before `until` that are released, in order: every one.

    But of a run of more than `EMPTY` epochs in which nothing was brought only the last, so that a jump costs
    no more than that, however far it goes.

    >>> list(passed([3], after=0, until=6)), list(passed([3], after=0, until=10**9))
    ([1, 2, 3, 4, 5], [1, 2, 3, 999999999])
    """
    for epoch in [*sorted(epoch for epoch in brought if epoch < until), until]:
        empty = range(after + 1, epoch)
        yield from empty[-1:] if len(empty) > EMPTY else empty
        if epoch < until:
            yield epoch
        after = max(after, epoch)


class Coordinator:
    """Progress of a whole flow, between batches. `encode` gives all of it as JSON.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").probe("seen")
        >>> coordinator = Coordinator(flow.compile(workers=2))
        >>> coordinator.first().frontier
        {'seen': [[0]]}
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tracker = Tracker(plan.reach)
        self.batch = -1
        self._index()
        #: where each input stands; None: closed. By the clock, the next batch.
        self.inputs: dict[str, int | None] = {source.name: 0 for source in plan.inputs}
        #: per worker and node the guarantees of the notifications it waits for; and their number in all
        self.pending: list[dict[int, MutableAntichain[Any]]] = [{} for _ in range(plan.workers)]
        self.waits = 0
        #: workers whose budget was used up
        self.left: set[int] = set()
        #: epochs that were opened and not yet released, per sink; and the last one released
        self.unreleased: dict[str, set[int]] = {
            node.name: set() for node in plan.nodes if node.stage.kind is Kind.OUTPUT
        }
        self.done: dict[str, int] = dict.fromkeys(self.unreleased, -1)
        #: the first and the last epoch that any input began; batches without input begin none. Manual epochs
        #: begin with 0, and one that an input has passed has begun.
        self.opened: int | None = 0 if any(s.epochs == "manual" for s in plan.inputs) else None
        self.begun = -1
        #: sources with epochs of a column that have had none yet
        self.unseen = {source.name for source in plan.inputs if by_column(source.epochs)}
        #: of closed sources, the epoch at which rows enter that come nevertheless
        self.after: dict[str, int] = {}
        #: rows that came too late, and those of them that could not be in time
        self.late: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.loops = Loops.of(plan)
        for node in plan.nodes:
            for time in plan.initial(node):
                self.tracker.update([(node.leaves, time, plan.workers)])
                for worker in range(plan.workers):
                    self._asked(worker, [(node.index, time, 1)])
        for name in self.inputs:
            self._move(name, None, 0)
        self.tracker.propagate()

    def _index(self) -> None:
        #: per vertex that asks what may arrive over an exchange, as the header has it; kept up to date
        self.arrivals: dict[str, list[Any]] = {}
        self.asking = {node.index for node in self.plan.nodes if node.waits or node.template.settles}
        self.watched = [node for node in self.plan.nodes if node.stage.kind.is_end]

    # -- turns -----------------------------------------------------------------------------------------------

    def first(self) -> Turn:
        """The turn before the first batch."""
        return self._turn(ROWS.empty_table(), OUTPUTS.empty_table(), Counter(), [])

    def turn(self, batch_id: int, rows: pa.Table, *, cancel: Iterable[int] = (), ended: bool = False) -> Turn:
        """Apply what the workers wrote in a round of a batch; only in its first there is input.

        Args:
            batch_id: the batch.
            rows: what they wrote.
            cancel: epochs whose loops are to end from now on.
            ended: whether all that is available of the sources has been read: then each epoch that a source
                has begun is over. What else comes for it, after a restart, is late.

        Raises:
            VertexError: a vertex failed; names the step, the time, and the user's line.
        """
        self.batch = batch_id
        messages: list[int] = []
        deltas = []
        loops: list[Any] = []
        stats: Counter[str] = Counter()
        ticks: set[int] = set()
        moved: dict[str, int | None] = {}
        seen: dict[str, int] = {}
        late: Counter[str] = Counter()
        refused: dict[str, Refused] = defaultdict(Refused)
        # in an order of its own: that of the rows is nobody's promise; rows of one worker keep theirs
        rows = rows.sort_by([("kind", "ascending"), ("worker", "ascending")])
        outputs = as_outputs(rows)
        rows = rows.filter(pc.not_equal(rows.column("kind"), "output"))
        for place, (worker, kind, meta, _) in enumerate(read_rows(rows)):
            match kind:
                case "error":
                    raise VertexError.decode(meta, f"batch {batch_id}, worker {worker}")
                case "message":
                    messages.append(place)
                case "report":
                    deltas += [(at, self.plan.times.decode(time), n) for at, time, n in meta["deltas"]]
                    self._asked(
                        worker,
                        [(node, self.plan.times.decode(time), n) for node, time, n in meta["pending"]],
                    )
                    (self.left.add if meta["left"] else self.left.discard)(worker)
                    ticks.update(meta["ticks"])
                    moved |= meta["advance"]
                    loops.append(meta["loops"])
                    seen |= meta["seen"]
                    late.update(meta["late"])
                    for name, told in meta["refused"].items():
                        refused[name].add(told)
                    stats.update(meta["stats"])
        self.tracker.update(deltas)
        self._begin(ticks)
        if ended:
            moved = {**{s.name: self.begun + 1 for s in self.plan.inputs if by_column(s.epochs)}, **moved}
        self._advance(moved, seen, late)
        self.tracker.propagate()
        self._await(ticks, outputs)
        notices = self.loops.enter(loops)
        for epoch in cancel:
            nodes = self.plan.nodes
            active = ((nodes[at // 2].stage.scope.path[1:], time) for at, time in self.tracker.active)
            self.loops.cancel(epoch, active)
        turn = self._turn(rows.take(pa.array(messages, pa.int64())), outputs, stats, notices)
        return replace(turn, refused=self._to_tell(refused))

    def _await(self, ticks: set[int], outputs: pa.Table) -> None:
        """Outputs hear of the epochs that inputs have brought, and of those of which they have records."""
        for sink, epochs in self.unreleased.items():
            epochs.update(epoch for epoch in ticks if epoch > self.done[sink])
        for sink, epoch in zip(outputs["sink"].to_pylist(), outputs["epoch"].to_pylist(), strict=True):
            if sink in self.unreleased:
                self.unreleased[sink].add(epoch)

    def _begin(self, epochs: set[int]) -> None:
        if epochs:
            self.opened = min(epochs) if self.opened is None else min(self.opened, *epochs)
            self.begun = max(self.begun, *epochs)

    def _advance(self, moved: dict[str, int | None], seen: dict[str, int], late: Counter[str]) -> None:
        """Take the inputs to where a batch has brought them."""
        self.late.update(late)
        self.unseen -= seen.keys()
        for source in self.plan.inputs:
            name, old = source.name, self.inputs[source.name]
            if old is None:
                if name in late and name in self.after:  # what has come now is complete when it is through
                    self._stand(source.late, self.after[name], self.after[name] + 1)
                    self.after[name] += 1
                continue
            new = self.batch + 1 if source.epochs == "clock" else max(old, seen.get(name, old))
            if (to := moved.get(name, new)) == old:
                continue
            if source.epochs == "manual" and to is not None:
                self._begin({to - 1})
            self._move(name, old, to)

    def _move(self, name: str, old: int | None, new: int | None) -> None:
        source = self.plan.source(name)
        self._stand([index for index in source.entries if index not in source.late], old, new)
        if source.late:
            if new is None:
                self.after[name] = self.begun + 1
            self._stand(source.late, old, self.after.get(name, new))
        self.inputs[name] = new

    def _stand(self, entries: Iterable[int], old: int | None, new: int | None) -> None:
        for index in entries:
            channel = self.plan.channels[index]
            location = self.plan.nodes[channel.target].arrives
            before, after = (
                channel.summary.results_in(self.plan.times.epoch(epoch)) if epoch is not None else None
                for epoch in (old, new)
            )
            self.tracker.input_at(location, before, after)

    def _to_tell(self, refused: dict[str, Refused]) -> dict[str, Refused]:
        """Of what was refused what is told: the first of it, and when it has become ten times as much."""
        told = {}
        for name, rows in refused.items():
            before, self.refused[name] = self.refused[name], self.refused[name] + rows.rows
            if not before or len(str(before)) < len(str(self.refused[name])):
                told[name] = rows
        return told

    def _turn(
        self, messages: pa.Table, outputs: pa.Table, stats: Counter[str], notices: list[Notice]
    ) -> Turn:
        oldest = self._oldest()
        self.loops.forget(oldest)
        header = {
            "batch": self.batch,
            "inputs": self.inputs,
            "oldest": oldest,
            "arrivals": self._arriving(),
            "bounds": self.loops.bounds,
            "unseen": sorted(self.unseen),
            "late": self.after,
        }
        header_text = text(header)
        wake = set(messages.column("worker").to_pylist()) | self.left | set(self._deliverable(header))
        stats["rounds"] = 1
        stats["rows_in_flight"] = messages.num_rows
        stats["bytes_in_flight"] = stats.pop("bytes_sent", 0)
        stats["pending_notifications"] = self.waits
        stats["left"] = len(self.left)
        return Turn(
            rows=pa.concat_tables(
                [messages, as_rows((worker, "header", header_text, None) for worker in sorted(wake))]
            ),
            header=header_text,
            outputs=outputs,
            released=sorted(self._release(), key=lambda pair: pair[1]),
            frontier={
                node.name: [time.encode() for time in self.tracker.frontier(node.arrives)]
                for node in self.watched
            },
            complete=not wake and all(at is None for at in self.inputs.values()) and not self.waits,
            late=dict(self.late),
            cut_off=dict(self.loops.cut),
            notices=[notice.encode() for notice in notices],
            stats=dict(stats),
        )

    def _arriving(self) -> dict[str, list[Any]]:
        """`arrivals`, of which only what has changed is looked up."""
        for location in self.tracker.arrived():
            if (index := location // 2) in self.asking and location % 2 == 0:
                if arrivals := self.tracker.arrivals(location):
                    self.arrivals[str(index)] = [time.encode() for time in arrivals]
                else:
                    self.arrivals.pop(str(index), None)
        return self.arrivals

    def _deliverable(self, header: dict[str, Any]) -> Iterable[int]:
        """Workers with a notification that the next batch may deliver even if it brings no input.

        By the clock, one for an epoch that no input has begun waits for input: else a vertex that always asks
        for the next epoch would keep an idle query running for ever, each batch without input making room for
        the next.
        """
        stands = {s.name: input_frontier(s, self.inputs[s.name], self.batch + 1) for s in self.plan.inputs}
        open_, present = {k: v[0] for k, v in stands.items()}, {k: v[1] for k, v in stands.items()}
        clocked = any(s.epochs == "clock" and self.inputs[s.name] is not None for s in self.plan.inputs)
        known = Blockers(
            lambda index: lower_bounds(self.plan, self.plan.nodes[index], header, open_, present)
        )
        for worker, pending in enumerate(self.pending):
            # what blocks the least guarantees of a vertex blocks its others
            least = ((index, guarantee) for index, asked in pending.items() for guarantee in asked.least)
            if any(
                not (clocked and guarantee.epoch > self.begun)
                and not any(time.less_equal(guarantee) for time in known[index])
                for index, guarantee in least
            ):
                yield worker

    def _asked(self, worker: int, changes: list[tuple[int, Any, int]]) -> None:
        """Enter the notifications that a worker has come to wait for (+1), and those it has had (-1)."""
        pending = self.pending[worker]
        grouped: dict[int, list[tuple[Any, int]]] = defaultdict(list)
        for index, guarantee, n in changes:
            grouped[index].append((guarantee, n))
            self.waits += n
        for index, of_it in grouped.items():
            asked = pending.setdefault(index, MutableAntichain())
            asked.update_iter(of_it)
            if not asked:
                del pending[index]

    def _release(self) -> Iterable[tuple[str, int]]:
        clocked = any(source.epochs == "clock" for source in self.plan.inputs)
        for sink, epochs in self.unreleased.items():
            until = max(self.begun, *epochs, -1) + 1
            for time in self.tracker.frontier(self.plan.by_name[sink].arrives):
                until = min(until, time.epoch)
            after = self.done[sink]
            if clocked or self.opened is None:  # batches that bring nothing are no epochs
                found = sorted(epoch for epoch in epochs if epoch < until)
            else:
                found = list(passed(epochs, max(after, self.opened - 1), until))
            epochs.difference_update(found)
            for epoch in found:
                self.done[sink] = epoch
                yield sink, epoch

    def _oldest(self) -> int:
        open_ = [
            self.batch + 1 if s.epochs == "clock" else at
            for s in self.plan.inputs
            if (at := self.inputs[s.name]) is not None
        ]
        oldest = self.tracker.oldest()
        return min(
            [*open_, *self.after.values(), *([] if oldest is None else [oldest])], default=self.batch + 1
        )

    # -- what holds the flow back ----------------------------------------------------------------------------

    def holding(self, node: Node, epoch: int) -> list[str]:
        """The inputs and steps that keep `epoch` from being complete at a node, by name."""
        limit = self.plan.times.epoch(epoch)
        names = [name for name, at in self.inputs.items() if at is not None and at <= epoch]
        paths = self.plan.reach.summaries(node.arrives)
        for location, time in self.tracker.active:
            step = self.plan.nodes[location // 2].name
            reaches = (path.results_in(time) for path in paths.get(location, ()))
            if step not in names and any(t is not None and t.epoch <= limit.epoch for t in reaches):
                names.append(step)
        return names

    # -- durability ------------------------------------------------------------------------------------------

    def encode(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        return {
            "batch": self.batch,
            "tracker": self.tracker.encode(),
            "inputs": self.inputs,
            "pending": [
                [
                    [node, time.encode(), n]
                    for node, asked in pending.items()
                    for time, n in asked.counts.items()
                ]
                for pending in self.pending
            ],
            "left": sorted(self.left),
            "unreleased": {sink: sorted(epochs) for sink, epochs in self.unreleased.items()},
            "done": self.done,
            "opened": self.opened,
            "begun": self.begun,
            "unseen": sorted(self.unseen),
            "after": self.after,
            "late": dict(self.late),
            "loops": self.loops.encode(),
            "refused": dict(self.refused),
        }

    @classmethod
    def decode(cls, plan: Plan, snapshot: dict[str, Any]) -> Coordinator:
        """A coordinator as it was when `encode` was called."""
        self = cls.__new__(cls)
        self.plan = plan
        self._index()
        self.tracker = Tracker.decode(plan.reach, plan.times, snapshot["tracker"])
        self.batch = snapshot["batch"]
        self.inputs = dict(snapshot["inputs"])
        self.pending, self.waits = [{} for _ in range(plan.workers)], 0
        for worker, pending in enumerate(snapshot["pending"]):
            self._asked(worker, [(node, plan.times.decode(time), n) for node, time, n in pending])
        self.left = set(snapshot["left"])
        self.unreleased = {sink: set(epochs) for sink, epochs in snapshot["unreleased"].items()}
        self.done = dict(snapshot["done"])
        self.opened, self.begun = snapshot["opened"], snapshot["begun"]
        self.unseen, self.after = set(snapshot["unseen"]), dict(snapshot["after"])
        self.late, self.refused = Counter(snapshot["late"]), Counter(snapshot["refused"])
        self.loops = Loops.of(plan)
        self.loops.restore(snapshot["loops"])
        return self


#: counts of what is open, not of what was done
_OPEN = frozenset({"rows_in_flight", "bytes_in_flight", "pending_notifications", "left"})
