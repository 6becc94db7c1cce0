"""The driver's part of a round: from the rows of the workers to the next header and the complete epochs.

The coordinator applies all progress deltas of a round at once. So no count is ever negative and no local view
is ahead of the global one: the protocol of Naiad section 3.3 holds by construction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.compiler.plan import Node, Plan
from timely_spark.coordinator.hot_keys import hot_keys
from timely_spark.coordinator.loops import Loops, Notice
from timely_spark.coordinator.round_result import NO_OUTPUTS, CountChange, RoundResult, as_outputs
from timely_spark.coordinator.runs import Runs
from timely_spark.graph import Kind
from timely_spark.progress import Tracker
from timely_spark.times import MutableAntichain, Timestamp
from timely_spark.worker import wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.epoch_columns import Refused, by_column
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.notify import LowerBounds, input_frontier
from timely_spark.worker.wire import ELSEWHERE, NO_ROWS, Failure, Header, Item, Message, Report, SinkRows

#: What the log says of a hot key that the run has found.
SPREAD_LATER = "it is spread when no record is in flight"
#: Longer runs of empty epochs are released as one epoch.
MAX_EMPTY = 100


def epochs_to_release(with_records: Iterable[int], after: int, until: int) -> Iterator[int]:
    """The epochs between `after` and `until` to release, in order.

    Of more than `MAX_EMPTY` empty epochs in a row only the last is released: a large jump costs little.

    >>> list(epochs_to_release([3], after=0, until=6)), list(epochs_to_release([3], after=0, until=10**9))
    ([1, 2, 3, 4, 5], [1, 2, 3, 999999999])
    """
    for epoch in [*sorted(epoch for epoch in with_records if epoch < until), until]:
        empty = range(after + 1, epoch)
        yield from empty[-1:] if len(empty) > MAX_EMPTY else empty
        if epoch < until:
            yield epoch
        after = max(after, epoch)


class Coordinator:
    """The progress of a flow between rounds; `encode` gives its whole state as JSON."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tracker = Tracker(plan.reach)
        self.batch = -1
        self._index()
        #: the epoch of each input, with clock epochs the next batch; None if the input is closed
        self.inputs: dict[str, int | None] = {source.name: 0 for source in plan.inputs}
        #: the epochs of inputs that the flow had before, and may have again
        self.removed_inputs: dict[str, int | None] = {}
        self._forget_workers()
        #: per sink the epochs that have begun and were not released; and the last released epoch
        self.unreleased: dict[str, set[int]] = {
            node.name: set() for node in plan.nodes if node.stage.kind is Kind.OUTPUT
        }
        self.last_released: dict[str, int] = dict.fromkeys(self.unreleased, -1)
        #: the first and the last epoch that any input began. A batch without input begins no epoch. Manual
        #: epochs begin with 0; advancing an input past an epoch begins that epoch.
        self.first_epoch: int | None = 0 if any(s.epochs == "manual" for s in plan.inputs) else None
        self.last_epoch = -1
        #: sources with an epoch column that have read no epoch yet
        self.no_epoch_yet = {source.name for source in plan.inputs if by_column(source.epochs)}
        #: per closed source, the epoch at which rows that still arrive enter
        self.late_epochs: dict[str, int] = {}
        #: per source the late rows, and among them those without an epoch or beyond `max_jump`
        self.late_rows: dict[str, int] = {}
        #: per input the records read, late ones included
        self.read_rows: dict[str, int] = {}
        self.quarantined: dict[str, int] = {}
        self.refused_rows: Counter[str] = Counter()
        self.loops = Loops.of(plan)
        #: the warning of each step's last hot key, with its micro-batch
        self.hot_keys: dict[str, str] = {}
        #: H of each step's hot keys that are spread, and of those that will be, as the run has found them
        self.spread: dict[str, list[int]] = {}
        self.to_spread: dict[str, list[int]] = {}
        #: why no hot key is spread; empty if they are
        self.not_spread = ""
        plan.spread(self.spread)
        #: records that have become negative since the flow began, by step, and the warning of the first
        self.negatives: dict[str, tuple[int, str]] = {}
        #: steps that were new at a restart and started without the past, and the first epoch of each
        self.lacking: dict[str, int] = {}
        for node in plan.nodes:
            for time in plan.initial(node):
                self.tracker.update([(node.leaves, time, plan.workers)])
                for worker in range(plan.workers):
                    self._update_pending(worker, [(node.index, time, 1)])
        for name in self.inputs:
            self._advance_input(name, None, 0)

    def _forget_workers(self) -> None:
        #: per worker and node the guarantees of the pending notifications, and last those of all workers that
        #: are not hosted, together; and the number of all
        self.pending: list[dict[int, MutableAntichain[Any]]] = [{} for _ in range(self.plan.workers + 1)]
        self.pending_count = 0
        #: hosted workers that ended their round because its budget was used up, and the number of others
        self.unfinished: set[int] = set()
        self.unfinished_elsewhere = 0
        #: whether other processes host workers
        self.hosts_some = False

    def _index(self) -> None:
        #: `Tracker.arrivals` of the vertices that need them
        self.arrivals = Runs(node.index for node in self.plan.nodes if node.needs_arrivals)
        #: the locations of capabilities that are due to one input
        self._port_holds = {held for node in self.plan.nodes for _, held in node.ports}
        self.end_nodes = [node for node in self.plan.nodes if node.stage.kind.is_end]
        #: what each `expect` has checked, by its step
        checking = (node for node in self.plan.nodes if node.template.checks_records)
        self.expectations = {node.name: Expectation() for node in checking}
        #: pairs of a worker and a vertex with a deliverable notification, as of these positions of the inputs
        self._deliverable: set[tuple[int, int]] = set()
        self._positions: object = None
        #: the changes of counts in the present round, if the plan is measured
        self._counted: list[CountChange] = []
        #: changes since then: pairs with other notifications, and vertices with other arrivals
        self._requested: set[tuple[int, int]] = set()
        self._arrived: set[int] = set()

    def host(self, hosts: Callable[[int], bool]) -> None:
        """From now on keep the workers of this process, by `hosts`, one by one, and all others as one sum.

        `apply_round` then takes one sum of the reports of each other process.
        `merged_snapshot` makes one snapshot of those of all processes.
        """
        pending, unfinished, elsewhere = self.pending, self.unfinished, self.unfinished_elsewhere
        self._forget_workers()
        for worker, waiting in enumerate(pending):
            place = worker if worker < self.plan.workers and hosts(worker) else self.plan.workers
            for index, guarantees in waiting.items():
                self._update_pending(place, [(index, time, n) for time, n in guarantees.counts.items()])
        self.hosts_some = True
        self.unfinished = {worker for worker in unfinished if hosts(worker)}
        self.unfinished_elsewhere = elsewhere + len(unfinished - self.unfinished)
        self._deliverable.clear()
        self._positions = None

    # -- rounds ----------------------------------------------------------------------------------------------

    def first(self) -> RoundResult:
        """The result that the first batch starts from."""
        return self._result(NO_ROWS, NO_OUTPUTS, Counter(), [], {}, Convergence())

    def apply_round(self, batch_id: int, rows: pa.Table, *, ended: bool = False) -> RoundResult:
        """Apply the rows that the workers wrote in one round of a batch.

        Args:
            ended: whether the sources have no more rows. Then every epoch that has begun is over; rows that
                arrive for it after a restart are late.
        """
        self.batch = batch_id
        reports = _read(batch_id, rows)
        counted = self._counted = self._reported(reports)
        reports = _others_as_one(reports)
        # of small epochs mostly one worker has anything to do
        total = reports[0][1] if len(reports) == 1 else Report.sum(report for _, report in reports)
        ticks, advanced = set(total.ticks), dict(total.advanced)
        self.read_rows = wire.totals([self.read_rows, total.read])
        self.quarantined = wire.totals([self.quarantined, total.quarantined])
        self.late_rows = wire.totals([self.late_rows, total.late])
        self._count(reports)
        # all changes of the round at once, so that no decrement comes before its increment
        self.tracker.update([(at, self.plan.times.decode(time), n) for at, time, n in total.deltas])
        self._begin_epochs(ticks)
        if ended:
            for source in self.plan.inputs:
                if by_column(source.epochs):
                    advanced.setdefault(source.name, self.last_epoch + 1)
        self._advance_inputs(advanced, total)
        outputs = as_outputs(_by_worker(rows, SinkRows)) if total.outputs else NO_OUTPUTS
        self._add_unreleased(ticks, total.outputs)
        self._enter_hot_keys(total.loads)
        for one in total.negatives:  # in order, so that in each process the same one is the first
            where = self.plan.by_name[one.step].stage.where
            before, text = self.negatives.get(one.step, (0, one.text(where)))
            self.negatives[one.step] = before + one.records, text
        for step, counts in total.expectations.items():
            self.expectations[step] += counts
        notices = self.loops.enter(total.loops)
        refused, fed = self._refused_to_report(total.refused), Convergence.decode(total.loops.fed)
        stats = Counter(total.stats)
        messages = _by_worker(rows, Message) if stats["sent"] else NO_ROWS
        result = self._result(messages, outputs, stats, notices, refused, fed)
        return replace(result, pointstamps=[counted]) if self.plan.measured else result

    def _reported(self, reports: list[tuple[int, Report]]) -> list[CountChange]:
        """If the plan is measured, the reported changes: positive ones first, so no count is below 0."""
        if not self.plan.measured:
            return []
        changes = [
            (None if worker == ELSEWHERE else worker, *change)
            for worker, report in reports
            for change in report.deltas
        ]
        counts: dict[tuple[int, Any], int] = {}
        counted = list[CountChange]()
        for worker, location, encoded, n in sorted(changes, key=lambda change: change[-1] < 0):
            place = location, self.plan.times.decode(encoded)
            counts[place] = counts.get(place, self.tracker.count(*place)) + n
            counted.append((worker, location, encoded, n, counts[place]))
        return counted

    def _enter_hot_keys(self, loads: Iterable[Load]) -> None:
        for step, hot in hot_keys(self.plan, loads, self.batch).items():
            self.hot_keys[step] = hot.text
            if hot.spread is not None:
                salted, keys = hot.spread
                self.hot_keys[step] += f"; {self.not_spread or SPREAD_LATER}"
                if self.not_spread:
                    continue
                present = [*self.spread.get(salted, ()), *self.to_spread.get(salted, ())]
                if new := [key for key in keys if key not in present]:
                    self.to_spread = self.to_spread | {salted: [*self.to_spread.get(salted, ()), *new]}

    def cancel(self, epochs: Iterable[int], result: RoundResult) -> RoundResult:
        """End the running loops of epochs; returns the batch's result with the bounds in its header."""
        for epoch in epochs:
            owners = self.plan.owners
            active = ((owners[at].stage.scope.path[1:], time) for at, time in self.tracker.active)
            self.loops.cancel(epoch, active)
        if result.header.bounds == self.loops.bounds:
            return result
        header = replace(result.header, bounds=dict(self.loops.bounds))
        messages, headers = wire.only(result.rows, Message), wire.only(result.rows, Header)
        renewed = wire.table((worker, header) for worker in headers.column("worker").to_pylist())
        return replace(result, header=header, rows=wire.concat([messages, renewed]))

    def _count(self, reports: list[tuple[int, Report]]) -> None:
        """Enter a round's notifications and unfinished workers."""
        self.unfinished_elsewhere = 0
        for worker, report in reports:
            changes = [(node, self.plan.times.decode(time), n) for node, time, n in report.pending]
            self._update_pending(self.plan.workers if worker == ELSEWHERE else worker, changes)
            if worker == ELSEWHERE:
                self.unfinished_elsewhere += report.left
            else:
                (self.unfinished.add if report.left else self.unfinished.discard)(worker)

    def _add_unreleased(self, ticks: set[int], outputs: Iterable[tuple[str, int]]) -> None:
        """Enter the epochs that inputs began, for all sinks, and the epochs of output records."""
        for sink, epochs in self.unreleased.items():
            epochs.update(epoch for epoch in ticks if epoch > self.last_released[sink])
        for sink, epoch in outputs:
            if sink in self.unreleased:
                self.unreleased[sink].add(epoch)

    def _begin_epochs(self, epochs: set[int]) -> None:
        if epochs:
            self.first_epoch = min(epochs) if self.first_epoch is None else min(self.first_epoch, *epochs)
            self.last_epoch = max(self.last_epoch, *epochs)

    def _advance_inputs(self, advanced: dict[str, int | None], total: Report) -> None:
        """Advance the inputs as a round's reports say."""
        self.no_epoch_yet -= total.seen.keys()
        for source in self.plan.inputs:
            name, old = source.name, self.inputs[source.name]
            if old is None:
                if name in total.late and name in self.late_epochs:  # the next ones enter an epoch later
                    self._update_entries(source.late, self.late_epochs[name], self.late_epochs[name] + 1)
                    self.late_epochs[name] += 1
                continue
            new = self.batch + 1 if source.epochs == "clock" else max(old, total.seen.get(name, old))
            if (to := advanced.get(name, new)) == old:
                continue
            if source.epochs == "manual" and to is not None:
                self._begin_epochs({to - 1})
            self._advance_input(name, old, to)

    def _advance_input(self, name: str, old: int | None, new: int | None) -> None:
        source = self.plan.source(name)
        self._update_entries([index for index in source.entries if index not in source.late], old, new)
        if source.late:
            if new is None:  # late rows of this batch are at the epoch `old`, which need not have begun
                self.late_epochs[name] = max(self.last_epoch, old or 0) + 1
            self._update_entries(source.late, old, self.late_epochs.get(name, new))
        self.inputs[name] = new

    def _update_entries(self, entries: Iterable[int], old: int | None, new: int | None) -> None:
        for index in entries:
            channel = self.plan.channels[index]
            location = self.plan.lands(channel)
            before, after = (
                channel.summary.results_in(self.plan.times.epoch(epoch)) if epoch is not None else None
                for epoch in (old, new)
            )
            self.tracker.input_at(location, before, after)
            if self.plan.measured:
                place = location + self.plan.reach.n
                self._counted += [
                    (None, place, time.encode(), n, self.tracker.count(place, time))
                    for time, n in ((after, +1), (before, -1))
                    if time is not None
                ]

    def _refused_to_report(self, refused: dict[str, Refused]) -> dict[str, Refused]:
        """The refusals to warn of: a source's first ones, and again when their number has one more digit."""
        reported = {}
        for name, rows in refused.items():
            before, self.refused_rows[name] = self.refused_rows[name], self.refused_rows[name] + rows.rows
            if not before or len(str(before)) < len(str(self.refused_rows[name])):
                reported[name] = rows
        return reported

    def _result(  # noqa: PLR0917 - all of a round's results
        self,
        messages: pa.Table,
        outputs: pa.Table,
        stats: Counter[str],
        notices: list[Notice],
        refused: dict[str, Refused],
        convergence: Convergence,
    ) -> RoundResult:
        oldest = self._oldest()
        self.loops.forget(oldest)
        # copies: the coordinator's own change with the next round
        header = Header(
            batch=self.batch,
            inputs=dict(self.inputs),
            oldest=oldest,
            arrivals=self._updated_arrivals(),
            bounds=dict(self.loops.bounds),
            unseen=sorted(self.no_epoch_yet),
            late=dict(self.late_epochs),
            spread=self.spread,
        )
        wake = set(messages.column("worker").to_pylist()) | self.unfinished
        wake |= set(self._deliverable_workers(header))
        awake = bool(wake or self.unfinished_elsewhere or stats["sent"])
        wake.discard(self.plan.workers)
        stats["rounds"] = 1
        stats["rows_in_flight"] = stats["sent"]
        stats["bytes_in_flight"] = stats.pop("bytes_sent", 0)
        stats["pending_notifications"] = self.pending_count
        stats["left"] = len(self.unfinished) + self.unfinished_elsewhere
        frontiers = {node.name: _in_order(self.tracker.frontier(node.arrives)) for node in self.end_nodes}
        return RoundResult(
            rows=wire.concat([messages, wire.table((worker, header) for worker in sorted(wake))]),
            awake=awake,
            header=header,
            outputs=outputs,
            released=sorted(self._release(frontiers), key=lambda pair: pair[1]),
            frontier={name: [time.encode() for time in times] for name, times in frontiers.items()},
            complete=not awake and all(at is None for at in self.inputs.values()) and not self.pending_count,
            late=dict(self.late_rows),
            read=dict(self.read_rows),
            quarantined=dict(self.quarantined),
            cut_off=dict(self.loops.dropped),
            notices=notices,
            stats=dict(stats),
            refused=refused,
            convergence=convergence,
        )

    def _updated_arrivals(self) -> list[tuple[int, list[Any]]]:
        """`arrivals`, once the changed ones were looked up again."""
        for location in self.tracker.arrived():
            if (index := location // 2) in self.arrivals and location % 2 == 0:
                times = _in_order(self.tracker.arrivals(location))
                self.arrivals.update(index, [time.encode() for time in times])
                self._arrived.add(index)
        return self.arrivals.encode()

    def _deliverable_workers(self, header: Header) -> Iterable[int]:
        """Workers with a notification that the next batch may deliver even if it has no input.

        With clock epochs, a notification for an epoch that no input has begun waits for input. Otherwise a
        vertex that always requests the next epoch would keep an idle query running.

        Only notifications that have changed are looked at.
        """
        # with clock epochs the next batch: no epoch that has begun waits for it
        positions = {
            s.name: input_frontier(s, self.inputs[s.name], self.batch + 1)[1] for s in self.plan.inputs
        }
        clocked = any(s.epochs == "clock" and self.inputs[s.name] is not None for s in self.plan.inputs)
        begun = self.last_epoch if clocked else None
        # a capability due to one input may wait for another input, which does not reach what it keeps open
        active = self.tracker.active if self._port_holds else ()
        held = [(at, time) for at, time in active if at in self._port_holds]
        if self._positions == (now := (positions, header.late, begun)) and not self._port_holds:
            pairs = {(w, index) for index in self._arrived for w, p in enumerate(self.pending) if index in p}
            pairs |= self._requested
            self._deliverable -= pairs
        else:
            pairs = {(worker, index) for worker, pending in enumerate(self.pending) for index in pending}
            self._deliverable.clear()
        self._positions = now
        self._arrived.clear()
        self._requested.clear()
        lower_bounds = LowerBounds(self.plan, header, positions, positions)
        for worker, index in pairs:
            waiting = self.pending[worker].get(index)
            # if the least guarantees of a vertex are blocked, so are its others
            if waiting and any(
                not (begun is not None and guarantee.epoch > begun)
                and not any(time.less_equal(guarantee) for time in lower_bounds[index])
                and not self._is_held(index, guarantee, held)
                for guarantee in waiting.least
            ):
                self._deliverable.add((worker, index))
        return {worker for worker, _ in self._deliverable}

    def _is_held(self, index: int, guarantee: Any, held: Iterable[tuple[int, Any]]) -> bool:
        """Whether a capability that is due to one input could result in what a notification completes."""
        to = self.plan.reach.summaries(self.plan.nodes[index].arrives) if held else {}
        ends = (path.results_in(time) for at, time in held for path in to.get(at, ()))
        return any(time is not None and time.less_equal(guarantee) for time in ends)

    def _update_pending(self, worker: int, changes: list[tuple[int, Any, int]]) -> None:
        """Enter the notifications that a worker's vertices requested (+1) and received (-1)."""
        pending = self.pending[worker]
        grouped: dict[int, list[tuple[Any, int]]] = defaultdict(list)
        for index, guarantee, n in changes:
            grouped[index].append((guarantee, n))
            self.pending_count += n
        for index, counts in grouped.items():
            self._requested.add((worker, index))
            waiting = pending.setdefault(index, MutableAntichain())
            waiting.update_iter(counts)
            if not waiting:
                del pending[index]

    def _release(self, frontiers: Mapping[str, list[Any]]) -> Iterable[tuple[str, int]]:
        clocked = any(source.epochs == "clock" for source in self.plan.inputs)
        for sink, epochs in self.unreleased.items():
            until = max(self.last_epoch, *epochs, -1) + 1
            for time in frontiers[sink]:
                until = min(until, time.epoch)
            after = self.last_released[sink]
            if clocked or self.first_epoch is None:  # a batch without input is not an epoch
                released = sorted(epoch for epoch in epochs if epoch < until)
            else:
                released = list(epochs_to_release(epochs, max(after, self.first_epoch - 1), until))
            epochs.difference_update(released)
            for epoch in released:
                self.last_released[sink] = epoch
                yield sink, epoch

    def _oldest(self) -> int:
        open_ = [
            self.batch + 1 if s.epochs == "clock" else at
            for s in self.plan.inputs
            if (at := self.inputs[s.name]) is not None
        ]
        oldest = self.tracker.oldest()
        return min(
            [*open_, *self.late_epochs.values(), *([] if oldest is None else [oldest])],
            default=self.batch + 1,
        )

    # -- what keeps an epoch open ----------------------------------------------------------------------------

    def holding(self, node: Node, epoch: int) -> list[str]:
        """The inputs and steps that keep `epoch` from being complete at a node, by name."""
        names: list[str] = []
        for source, _, reachable, _ in self.plan.entries_to.get(node.arrives, ()):
            at = self.inputs[source.name]
            if at is None or source.name in names:
                continue
            arrives = (path.results_in(self.plan.times.epoch(at)) for path in reachable)
            if any(time is not None and time.epoch <= epoch for time in arrives):
                names.append(source.name)
        paths = self.plan.reach.summaries(node.arrives)
        for location, time in self.tracker.active:
            step = self.plan.owners[location].name
            reaches = (path.results_in(time) for path in paths.get(location, ()))
            if step not in names and any(t is not None and t.epoch <= epoch for t in reaches):
                names.append(step)
        return names

    # -- durability ------------------------------------------------------------------------------------------

    def encode(self) -> dict[str, Any]:
        """The coordinator as plain JSON."""
        *pending, elsewhere = [
            [[node, time.encode(), n] for node, waiting in each.items() for time, n in waiting.counts.items()]
            for each in self.pending
        ]
        return {
            "batch": self.batch,
            "tracker": self.tracker.encode(),
            "inputs": self.inputs,
            "removed": self.removed_inputs,
            "pending": pending,
            "left": sorted(self.unfinished),
            **({"elsewhere": [elsewhere, self.unfinished_elsewhere]} if self.hosts_some else {}),
            "unreleased": {sink: sorted(epochs) for sink, epochs in self.unreleased.items()},
            "done": self.last_released,
            "opened": self.first_epoch,
            "begun": self.last_epoch,
            "unseen": sorted(self.no_epoch_yet),
            "after": self.late_epochs,
            "late": dict(self.late_rows),
            "read": dict(self.read_rows),
            "quarantined": dict(self.quarantined),
            "loops": self.loops.encode(),
            "refused": dict(self.refused_rows),
            "hot_keys": dict(self.hot_keys),
            "spread": self.spread,
            "to_spread": self.to_spread,
            "not_spread": self.not_spread,
            "negatives": {step: list(counted) for step, counted in self.negatives.items()},
            "expectations": {step: asdict(counts) for step, counts in self.expectations.items()},
            "lacking": self.lacking,
        }

    @classmethod
    def decode(cls, plan: Plan, snapshot: dict[str, Any]) -> Coordinator:
        """A coordinator as it was when `encode` was called."""
        self = cls.__new__(cls)
        self.plan = plan
        self._index()
        self.tracker = Tracker.decode(plan.reach, plan.times, snapshot["tracker"])
        self.batch = snapshot["batch"]
        self.inputs, self.removed_inputs = dict(snapshot["inputs"]), dict(snapshot.get("removed", {}))
        self._forget_workers()
        elsewhere, self.unfinished_elsewhere = snapshot.get("elsewhere", ([], 0))
        self.hosts_some = "elsewhere" in snapshot
        for worker, pending in enumerate([*snapshot["pending"], elsewhere]):
            self._update_pending(worker, [(node, plan.times.decode(time), n) for node, time, n in pending])
        self.unfinished = set(snapshot["left"])
        self.unreleased = {sink: set(epochs) for sink, epochs in snapshot["unreleased"].items()}
        self.last_released = dict(snapshot["done"])
        self.first_epoch, self.last_epoch = snapshot["opened"], snapshot["begun"]
        self.no_epoch_yet, self.late_epochs = set(snapshot["unseen"]), dict(snapshot["after"])
        self.late_rows, self.refused_rows = dict(snapshot["late"]), Counter(snapshot["refused"])
        self.read_rows = dict(snapshot.get("read", {}))
        self.quarantined = dict(snapshot.get("quarantined", {}))
        self.loops = Loops.of(plan)
        self.loops.restore(snapshot["loops"])
        self.hot_keys = dict(snapshot.get("hot_keys", {}))
        self.spread = dict(snapshot.get("spread", {}))
        self.to_spread = dict(snapshot.get("to_spread", {}))
        self.not_spread = snapshot.get("not_spread", "")
        self.negatives = {step: (n, text) for step, (n, text) in snapshot.get("negatives", {}).items()}
        self.expectations |= Expectation.by_step(snapshot.get("expectations", {}))
        self.lacking = dict(snapshot.get("lacking", {}))
        return self


def merged_snapshot(snapshots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshot of all workers' coordinator, from those of the processes that `host` a part each."""
    every = zip(*(snapshot["pending"] for snapshot in snapshots), strict=True)
    return {
        **{name: value for name, value in snapshots[0].items() if name != "elsewhere"},
        "pending": [list(chain.from_iterable(of_worker)) for of_worker in every],  # one of them knows
        "left": [worker for snapshot in snapshots for worker in snapshot["left"]],
    }


def _read(batch_id: int, rows: pa.Table) -> list[tuple[int, Report]]:
    """The reports in the order of workers, since Spark promises no order of rows; those of others first."""
    items = sorted(wire.read(rows, Failure, Report), key=itemgetter(0))
    for worker, item in items:
        if isinstance(item, Failure):
            item.throw(f"batch {batch_id}, worker {worker}")
    return [(worker, item) for worker, item in items if isinstance(item, Report)]


def _others_as_one(reports: list[tuple[int, Report]]) -> list[tuple[int, Report]]:
    """The reports with those of all other processes, which come first, as one sum."""
    others = bisect_right(reports, ELSEWHERE, key=itemgetter(0))
    if others < 2:
        return reports
    return [(ELSEWHERE, Report.sum(report for _, report in reports[:others])), *reports[others:]]


def _by_worker(rows: pa.Table, kind: type[Item]) -> pa.Table:
    """The rows of a kind in the order of workers, in which rows of one worker keep their order."""
    if not len(places := wire.places(rows, kind)):
        return NO_ROWS
    return wire.at(rows, places[np.argsort(rows["worker"].to_numpy()[places], kind="stable")])


def _in_order(times: Iterable[Timestamp]) -> list[Any]:
    return sorted(times, key=lambda time: time.order_key())
