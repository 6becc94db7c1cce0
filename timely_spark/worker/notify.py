"""The notificator, and lower bounds of the times that may still arrive at a vertex from outside its worker.

A notification at (vertex, t) may be delivered when (a) nothing that its worker holds could result in
(vertex, t), and (b) no pointstamp anywhere could by a path with at least one exchange. Workers check (a) and
(b); the driver checks (b), to decide which workers run.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timely_spark.compiler.plan import Node, Plan, Source
from timely_spark.times import Antichain, MutableAntichain
from timely_spark.worker.wire import Header


def input_frontier(
    source: Source, position: int | None, batch_id: int, *, first: bool = True
) -> tuple[int | None, int | None]:
    """The frontier of an input after batch `batch_id`, and the least epoch of the data in that batch.

    With clock epochs the epoch is the batch, with or without rows; only the first round of a batch has data.
    A closed input has (None, None).
    """
    if position is None:
        return None, None
    return (batch_id + 1, batch_id if first else None) if source.epochs == "clock" else (position, position)


def lower_bounds(
    plan: Plan, node: Node, header: Header, open_: Mapping[str, int | None], present: Mapping[str, int | None]
) -> list[Any]:
    """The least times at which messages may still arrive at `node` from outside the round and worker.

    Three kinds of messages: over an exchange (the header has their bounds); from an open input, along every
    path; and from data of this batch, which is at its first vertex on any worker, by paths with an exchange.
    """
    arrivals = header.arrivals_at(node.index) if node.needs_arrivals else ()
    times = [plan.times.decode(time) for time in arrivals]
    for source in plan.inputs:
        in_time = late = (open_[source.name], present[source.name])
        if source.late and open_[source.name] is None:  # rows of a closed source are late
            at = header.late.get(source.name, present[source.name])
            late = at, at
        for index in source.entries:
            epochs = late if index in source.late else in_time
            if epochs == (None, None):
                continue
            channel = plan.channels[index]
            # paths from the few entries: paths back from each waiting node would be quadratic
            reachable = plan.reach.paths_from(plan.nodes[channel.target].arrives)
            for paths, epoch in zip(reachable, epochs, strict=True):
                if epoch is None or node.arrives not in paths:
                    continue
                entered = channel.summary.results_in(plan.times.epoch(epoch))
                if entered is None:
                    continue
                reached = (path.results_in(entered) for path in paths[node.arrives])
                times.extend(time for time in reached if time is not None)
    return list(Antichain(times))


class Blockers(dict[int, list[Any]]):
    """`lower_bounds` by node, computed on first use."""

    def __init__(
        self, plan: Plan, header: Header, open_: Mapping[str, int | None], present: Mapping[str, int | None]
    ) -> None:
        super().__init__()
        self.plan, self.header, self.open, self.present = plan, header, open_, present

    def __missing__(self, index: int) -> list[Any]:
        node = self.plan.nodes[index]
        bounds = self[index] = lower_bounds(self.plan, node, self.header, self.open, self.present)
        return bounds


@dataclass(frozen=True, slots=True)
class Pending:
    """A requested notification: delivered when `guarantee` is complete; may send at `capability` or later."""

    node: int
    guarantee: Any
    capability: Any | None


class Notificator:
    """The notifications that the vertices of a worker requested, and the order of their delivery."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._sequence = itertools.count()
        #: the pending notifications, each with a sequence number
        self._numbers: dict[Pending, int] = {}
        #: a heap in (time, topological) order of the notifications that may be next, and of delivered ones
        self._order: list[_Entry] = []
        #: notifications that wait until a capability, (location, time), is dropped; not in `_order`
        self._behind: dict[tuple[int, Any], list[_Entry]] = defaultdict(list)
        #: notifications that are blocked from outside for the rest of the round
        self._blocked: list[_Entry] = []
        #: notifications that were requested (+1) and delivered (-1) since the round began
        self.changed: Counter[Pending] = Counter()
        #: the capabilities, by location and epoch; and each location's epochs in order
        self._capabilities: dict[int, dict[int, MutableAntichain[Any]]] = {}
        self._epochs: dict[int, list[int]] = {}

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def begin(self) -> None:
        """Begin a round, in which the blocked notifications of the last one may be deliverable."""
        for entry in self._blocked:
            heapq.heappush(self._order, entry)
        self._blocked.clear()
        self.changed.clear()

    def add(self, pending: Pending) -> None:
        """Request a notification; equal requests are one."""
        if pending in self._numbers:
            return
        number = self._numbers[pending] = next(self._sequence)
        self.changed[pending] += 1
        node, capability = self.plan.nodes[pending.node], pending.capability
        key = self.plan.key(node, pending.guarantee)
        heapq.heappush(self._order, (key, capability is None, number, pending))
        if capability is not None:
            by_epoch = self._capabilities.setdefault(node.leaves, {})
            if capability.epoch not in by_epoch:
                by_epoch[capability.epoch] = MutableAntichain()
                insort(self._epochs.setdefault(node.leaves, []), capability.epoch)
            by_epoch[capability.epoch].update_iter([(capability, +1)])

    def remove(self, pending: Pending) -> None:
        """Remove a delivered notification and its capability; notifications behind it may be next."""
        del self._numbers[pending]
        self.changed[pending] -= 1
        capability = pending.capability
        if capability is None:
            return
        location, epoch = self.plan.nodes[pending.node].leaves, capability.epoch
        held = self._capabilities[location][epoch]
        held.update_iter([(capability, -1)])
        if capability not in held.counts:
            for entry in self._behind.pop((location, capability), ()):
                heapq.heappush(self._order, entry)
        if not held:
            del self._capabilities[location][epoch]
            del self._epochs[location][bisect_left(self._epochs[location], epoch)]
            if not self._capabilities[location]:
                del self._capabilities[location], self._epochs[location]

    def epochs(self, node: Node) -> list[int]:
        """The least epochs of the capabilities of a node, and of those at locations that may lead to it."""
        leads = self.plan.reach.may_lead
        return [e[0] for at, e in self._epochs.items() if at == node.leaves or leads(at, node.arrives)]

    def first(
        self, blockers: Mapping[int, list[Any]], before: tuple[Any, ...] | None = None
    ) -> Pending | None:
        """The first deliverable notification. `blockers` must not change within a round.

        Args:
            blockers: what may still arrive from outside, by node.
            before: the key of the first message that is queued: only notifications with a lesser key.
        """
        while self._order and (before is None or self._order[0][0] < before):
            entry = self._order[0]
            _, _, number, pending = entry
            if self._numbers.get(pending) == number:
                if any(time.less_equal(pending.guarantee) for time in blockers[pending.node]):
                    self._blocked.append(entry)
                elif (capability := self._capability_before(pending)) is None:
                    return pending
                else:
                    self._behind[capability].append(entry)
            heapq.heappop(self._order)
        return None

    def _capability_before(self, pending: Pending) -> tuple[int, Any] | None:
        """A capability, (location, time), that could result in a time which the notification completes."""
        guarantee, reach = pending.guarantee, self.plan.reach
        target = self.plan.nodes[pending.node].arrives
        for location, held in self._capabilities.items():
            if not reach.may_lead(location, target):
                continue
            paths = reach.summaries(target).get(location, ())
            for epoch in self._epochs[location] if paths else ():
                if epoch > guarantee.epoch:
                    break
                for capability in held[epoch].frontier():
                    for path in paths:
                        time = path.results_in(capability)
                        if time is not None and time.less_equal(guarantee):
                            return location, capability
        return None


#: (order key, whether without capability, sequence number, notification)
_Entry = tuple[tuple[Any, ...], bool, int, Pending]
