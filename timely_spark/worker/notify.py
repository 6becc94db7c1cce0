"""What may still arrive at a vertex from outside its worker's round: half of the rule of notifications.

A notification at (vertex, t) may be delivered when (a) nothing its worker holds could result in (vertex, t),
and (b) nothing anywhere that crosses at least one exchange could. Workers ask for (a) and (b), the driver
asks for (b) alone, to know whom to wake.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timely_spark.times import Antichain, MutableAntichain
from timely_spark.worker.plan import Node, Plan, Source


def input_frontier(
    source: Source, position: int | None, batch_id: int, *, first: bool = True
) -> tuple[int | None, int | None]:
    """The frontier of an input after batch `batch_id`, and the least epoch of the data in that batch.

    By the clock the batch itself is the epoch, used up whether or not the input brought rows; of a batch's
    rounds only the first has data. A closed input is None.
    """
    if position is None:
        return None, None
    return (batch_id + 1, batch_id if first else None) if source.epochs == "clock" else (position, position)


def lower_bounds(
    plan: Plan,
    node: Node,
    header: Mapping[str, Any],
    open_: Mapping[str, int | None],
    present: Mapping[str, int | None],
) -> list[Any]:
    """The least times at which messages may still arrive at `node` from outside the round and worker.

    Three kinds: what may arrive over an exchange (the header knows); an input that is still open, which
    blocks along every path; and the data of this very batch, which lies at its first vertex on every worker,
    and blocks by paths with an exchange.
    """
    times = [plan.times.decode(time) for time in header["arrivals"].get(str(node.index), ())]
    for source in plan.inputs:
        in_time = late = (open_[source.name], present[source.name])
        if source.late and open_[source.name] is None:  # closed: what comes still is late
            at = header.get("late", {}).get(source.name, present[source.name])
            late = at, at
        for index in source.entries:
            epochs = late if index in source.late else in_time
            if epochs == (None, None):
                continue
            channel = plan.channels[index]
            # from the few entries onward: back from each node that waits would be quadratic
            onward = plan.reach.onward(plan.nodes[channel.target].arrives)
            for paths, epoch in zip(onward, epochs, strict=True):
                if epoch is None or node.arrives not in paths:
                    continue
                entered = channel.summary.results_in(plan.times.epoch(epoch))
                if entered is None:
                    continue
                reached = (path.results_in(entered) for path in paths[node.arrives])
                times.extend(time for time in reached if time is not None)
    return list(Antichain(times))


class Blockers(dict[int, list[Any]]):
    """`lower_bounds` by node, computed on first use, because few of the nodes that could wait do."""

    def __init__(self, find: Callable[[int], list[Any]]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, index: int) -> list[Any]:
        found = self[index] = self.find(index)
        return found


@dataclass(frozen=True, slots=True)
class Pending:
    """A notification asked for: once `guarantee` is complete; it may send from `capability` on, if any."""

    node: int
    guarantee: Any
    capability: Any | None


class Notificator:
    """The notifications that the vertices of a worker requested, and the order of their delivery."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._tie = itertools.count()
        #: each with its number
        self._asked: dict[Pending, int] = {}
        #: in (time, topological) order: what may be first. Those delivered go when they come up.
        self._order: list[_Entry] = []
        #: what waits until a capability, (location, time), is gone; none of it is in `_order`
        self._behind: dict[tuple[int, Any], list[_Entry]] = defaultdict(list)
        #: what is blocked from outside for the rest of the round
        self._blocked: list[_Entry] = []
        #: what was asked for (+1) and delivered (-1) since the round began
        self.changed: Counter[Pending] = Counter()
        #: the capabilities held, by location and epoch; and each location's epochs in order
        self._held: dict[int, dict[int, MutableAntichain[Any]]] = {}
        self._epochs: dict[int, list[int]] = {}

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)

    def begin(self) -> None:
        """A round begins: what the last one could not deliver may be delivered in this one."""
        for entry in self._blocked:
            heapq.heappush(self._order, entry)
        self._blocked.clear()
        self.changed.clear()

    def add(self, pending: Pending) -> None:
        """Ask for a notification; once for each that is the same."""
        if pending in self._asked:
            return
        tie = self._asked[pending] = next(self._tie)
        self.changed[pending] += 1
        node, capability = self.plan.nodes[pending.node], pending.capability
        key = self.plan.key(node, pending.guarantee)
        heapq.heappush(self._order, (key, capability is None, tie, pending))
        if capability is not None:
            held = self._held.setdefault(node.leaves, {})
            if capability.epoch not in held:
                held[capability.epoch] = MutableAntichain()
                insort(self._epochs.setdefault(node.leaves, []), capability.epoch)
            held[capability.epoch].update_iter([(capability, +1)])

    def remove(self, pending: Pending) -> None:
        """It was delivered: its capability is gone, and what waited for that may be next."""
        del self._asked[pending]
        self.changed[pending] -= 1
        capability = pending.capability
        if capability is None:
            return
        location, epoch = self.plan.nodes[pending.node].leaves, capability.epoch
        held = self._held[location][epoch]
        held.update_iter([(capability, -1)])
        if capability not in held.counts:
            for entry in self._behind.pop((location, capability), ()):
                heapq.heappush(self._order, entry)
        if not held:
            del self._held[location][epoch]
            del self._epochs[location][bisect_left(self._epochs[location], epoch)]
            if not self._held[location]:
                del self._held[location], self._epochs[location]

    def epochs(self, node: Node) -> list[int]:
        """The least epoch of a capability, at each location where one is held by a node or may lead to it."""
        leads = self.plan.reach.may_lead
        return [e[0] for at, e in self._epochs.items() if at == node.leaves or leads(at, node.arrives)]

    def first(self, blockers: Mapping[int, list[Any]]) -> Pending | None:
        """The first that nothing can precede any more. `blockers` are the same throughout a round."""
        while self._order:
            entry = self._order[0]
            _, _, tie, pending = entry
            if self._asked.get(pending) == tie:
                if any(time.less_equal(pending.guarantee) for time in blockers[pending.node]):
                    self._blocked.append(entry)
                elif (capability := self._holds(pending)) is None:
                    return pending
                else:
                    self._behind[capability].append(entry)
            heapq.heappop(self._order)
        return None

    def _holds(self, pending: Pending) -> tuple[int, Any] | None:
        """A capability that could result in what the notification says is over, as (location, time)."""
        guarantee, reach = pending.guarantee, self.plan.reach
        target = self.plan.nodes[pending.node].arrives
        for location, held in self._held.items():
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


#: (its place, whether it has no capability, its number, the notification)
_Entry = tuple[tuple[Any, ...], bool, int, Pending]
