"""The notificator, and lower bounds of the times that may still arrive at a vertex from outside its worker.

A notification at (vertex, t) may be delivered when (a) nothing that its worker holds could result in
(vertex, t), and (b) no pointstamp anywhere could by a path with at least one exchange. Workers check (a) and
(b); the driver checks (b), to decide which workers run.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from timely_spark.compiler.plan import Node, Plan, PlanInput
from timely_spark.times import Antichain, MutableAntichain, Timestamp, only_epochs
from timely_spark.worker.wire import Header


def input_frontier(
    source: PlanInput, position: int | None, batch_id: int, *, first: bool = True
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
    for source, index, *reachable in plan.entries_to.get(node.arrives, ()):
        epochs = open_[source.name], present[source.name]
        if index in source.late and epochs[0] is None:  # rows of a closed source are late
            epochs = (header.late.get(source.name, epochs[1]),) * 2
        for paths, epoch in zip(reachable, epochs, strict=True):
            if epoch is not None:
                at = plan.times.epoch(epoch)
                times += [time for path in paths if (time := path.results_in(at)) is not None]
    return list(Antichain(dict.fromkeys(times)))


#: the range of all nodes
EVERY = ((0, sys.maxsize),)


class LowerBounds(dict[int, list[Any]]):
    """`lower_bounds` by node, computed on first use."""

    def __init__(
        self, plan: Plan, header: Header, open_: Mapping[str, int | None], present: Mapping[str, int | None]
    ) -> None:
        self.plan, self.header, self.open, self.present = plan, header, open_, present

    def __missing__(self, index: int) -> list[Any]:
        node = self.plan.nodes[index]
        bounds = self[index] = lower_bounds(self.plan, node, self.header, self.open, self.present)
        return bounds

    def changed(self, before: LowerBounds) -> Iterable[tuple[int, int]]:
        """Ranges of nodes, (first, end); elsewhere the bounds are those of the round before."""
        if self._inputs != before._inputs:
            return EVERY
        old, new = before.header, self.header
        runs = sorted({first for header in (old, new) for first, _ in header.arrivals})
        ranges = pairwise([*runs, sys.maxsize]) if old.arrivals != new.arrivals else ()
        return [(a, b) for a, b in ranges if old.arrivals_at(a) != new.arrivals_at(a)]

    @property
    def _inputs(self) -> object:
        return self.open, self.present, self.header.late


@dataclass(frozen=True, slots=True)
class Pending:
    """A requested notification: delivered when `guarantee` is complete; may send at `capability` or later."""

    node: int
    guarantee: Any
    capability: Timestamp | None
    #: where path summaries are declared, the input to which the capability is due; None means to no input
    input: int | None = None


class Notificator:
    """The notifications that the vertices of a worker requested, and the order of their delivery.

    Notifications of a vertex that differ only in their epoch, each with its guarantee as its capability, form
    a series. Whatever blocks the first of a series blocks the others, and whatever their capabilities lead
    to, that of the first leads to earlier. So only the first needs to be active: a round looks at one
    notification per series, and a worker's state has the others as numbers.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._sequence = itertools.count()
        #: the active notifications, each with a sequence number: all that are not in a series, and of each
        #: series the first and perhaps others
        self._numbers: dict[Pending, int] = {}
        #: the epochs of a series in order, by vertex and loop counters
        self._series: dict[_Series, list[int]] = {}
        #: a heap in (time, topological) order of the notifications that may be next, and of delivered ones
        self._order: list[_Entry] = []
        #: notifications that wait until a capability, (location, time), is dropped; not in `_order`
        self._behind: dict[tuple[int, Any], list[_Entry]] = defaultdict(list)
        #: each vertex's notifications that are blocked from outside until that changes; the vertices in order
        self._blocked: dict[int, list[_Entry]] = {}
        self._blocked_vertices: list[int] = []
        #: notifications that were requested (+1) and delivered (-1) since the round began
        self.changed: dict[Pending, int] = defaultdict(int)
        #: the capabilities, by location and epoch; and each location's epochs in order
        self._capabilities: dict[int, dict[int, MutableAntichain[Any]]] = {}
        self._epochs: dict[int, list[int]] = {}

    def __iter__(self) -> Iterator[Pending]:
        yield from self._numbers
        for series, epochs in self._series.items():
            every = (self._of_series(series, epoch) for epoch in epochs)
            yield from (pending for pending in every if pending not in self._numbers)

    def __contains__(self, pending: Pending) -> bool:
        if pending in self._numbers:
            return True
        epoch, epochs = pending.guarantee.epoch, self._epochs_of_series(pending)
        place = bisect_left(epochs, epoch)
        return epochs[place : place + 1] == [epoch]

    def begin(self, changed: Iterable[tuple[int, int]] = EVERY) -> None:
        """Begin a round: blocked notifications of vertices in these ranges may have become deliverable."""
        for low, end in changed:
            part = slice(bisect_left(self._blocked_vertices, low), bisect_left(self._blocked_vertices, end))
            for vertex in self._blocked_vertices[part]:
                for entry in self._blocked.pop(vertex):
                    heapq.heappush(self._order, entry)
            del self._blocked_vertices[part]
        self.changed.clear()

    def add(self, pending: Pending) -> None:
        """Request a notification; equal requests are one."""
        if pending in self:
            return
        self.changed[pending] += 1
        if (series := self._series_of(pending)) is not None:
            epochs = self._series.setdefault(series, [])
            insort(epochs, pending.guarantee.epoch)
            if epochs[0] < pending.guarantee.epoch:
                return
        elif pending.capability is not None and pending.capability != pending.guarantee:
            # with equal guarantees, the notification that was requested first is delivered first
            earlier = replace(pending, capability=pending.guarantee)
            if earlier in self:
                self._activate(earlier)
        self._activate(pending)

    def restore(self, pending: Pending, later: Sequence[int]) -> None:
        """Add one of the notifications that `active` gave, in their order."""
        if (series := self._series_of(pending)) is not None:
            epochs = self._series.get(series, ())
            self._series[series] = sorted([*epochs, pending.guarantee.epoch, *later])
        self._activate(pending)

    @property
    def active(self) -> Iterator[tuple[Pending, list[int]]]:
        """The active notifications; with the first of a series, the epochs of those that are not active."""
        active: dict[_Series | None, set[int]] = defaultdict(set)
        for pending in self._numbers:
            active[self._series_of(pending)].add(pending.guarantee.epoch)
        for pending in self._numbers:
            epochs, later = self._epochs_of_series(pending), list[int]()
            if epochs and epochs[0] == pending.guarantee.epoch:
                among = active[self._series_of(pending)]
                later = [epoch for epoch in epochs if epoch not in among]
            yield pending, later

    def _series_of(self, pending: Pending) -> _Series | None:
        times = self.plan.nodes[pending.node].stage.scope.times
        if not only_epochs(times) or pending.capability != pending.guarantee:
            return None
        return pending.node, pending.input, tuple(pending.guarantee.encode()[1:])

    def _epochs_of_series(self, pending: Pending) -> list[int]:
        series = self._series_of(pending)
        return self._series.get(series, []) if series is not None else []

    def _of_series(self, series: _Series, epoch: int) -> Pending:
        node, input_, counters = series
        time = self.plan.times.decode([epoch, *counters])
        return Pending(node, time, time, input_)

    def _activate(self, pending: Pending) -> None:
        """Make a notification one that may be next, if it is not."""
        if pending in self._numbers:
            return
        number = self._numbers[pending] = next(self._sequence)
        node, capability = self.plan.nodes[pending.node], pending.capability
        key = self.plan.key(node, pending.guarantee)
        heapq.heappush(self._order, (key, capability is None, number, pending))
        if capability is not None:
            location = node.holds(pending.input)
            by_epoch = self._capabilities.setdefault(location, {})
            if capability.epoch not in by_epoch:
                by_epoch[capability.epoch] = MutableAntichain()
                insort(self._epochs.setdefault(location, []), capability.epoch)
            by_epoch[capability.epoch].update_iter([(capability, +1)])

    def together(self, pending: Pending) -> list[Pending]:
        """All pending requests for a vertex and time, one per input: one call of `on_notify` answers them."""
        if pending.input is None or pending.capability is None:
            return [pending]
        every = range(len(self.plan.nodes[pending.node].ports))
        return [one for i in every if (one := replace(pending, input=i)) in self._numbers]

    def remove(self, pending: Pending) -> None:
        """Remove a delivered notification and its capability; notifications behind it may be next."""
        del self._numbers[pending]
        self.changed[pending] -= 1
        if (series := self._series_of(pending)) is not None:
            epochs = self._series[series]
            del epochs[bisect_left(epochs, pending.guarantee.epoch)]
            if epochs:
                self._activate(self._of_series(series, epochs[0]))
            else:
                del self._series[series]
        capability = pending.capability
        if capability is None:
            return
        location, epoch = self.plan.nodes[pending.node].holds(pending.input), capability.epoch
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
        leads, owners = self.plan.reach.may_lead, self.plan.owners
        return [e[0] for at, e in self._epochs.items() if owners[at] is node or leads(at, node.arrives)]

    def first(self, bounds: Mapping[int, list[Any]], before: tuple[Any, ...] | None = None) -> Pending | None:
        """The first deliverable notification. `bounds` must not change within a round.

        Args:
            bounds: what may still arrive from outside, by node.
            before: the key of the first message that is queued: only notifications with a lesser key.
        """
        while self._order and (before is None or self._order[0][0] < before):
            entry = self._order[0]
            _, _, number, pending = entry
            if self._numbers.get(pending) == number:
                if any(time.less_equal(pending.guarantee) for time in bounds[pending.node]):
                    if pending.node not in self._blocked:
                        insort(self._blocked_vertices, pending.node)
                    self._blocked.setdefault(pending.node, []).append(entry)
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
#: (vertex, input, loop counters)
_Series = tuple[int, int | None, tuple[Any, ...]]
