"""The tracker: counts of pointstamps in, frontiers out, by local propagation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

from timely_spark.errors import InvalidTime
from timely_spark.progress.reachability import Reachability
from timely_spark.times import Antichain, MutableAntichain, Times, Timestamp


class Tracker:
    """The frontier of each location, given counts of pointstamps.

    Laws: ``frontier(l)`` is the antichain of all ``s.results_in(t)`` for a pointstamp (t, m) whose count is
    strictly positive (or an open input) and a path ``s`` from m to l. The frontier depends only on the sums
    of the counts, which may be negative for a while; zero counts take no memory. Work is proportional to the
    changed pointstamps and frontiers, not to the graph. Source: Naiad section 2.3; timely's
    ``progress/reachability``.

    >>> from timely_spark.progress import Arc
    >>> from timely_spark.times import PRODUCT, Time
    >>> one = PRODUCT.identity(0)
    >>> edges = [Arc(0, 1, one, True), Arc(1, 2, one, False)]
    >>> tracker = Tracker(Reachability(3, edges, identities=[one] * 3))
    >>> tracker.input_at(0, None, Time(0))
    >>> tracker.update([(1, Time(0), 1), (0, Time(0), 1)])
    >>> tracker.input_at(0, Time(0), Time(1))
    >>> [tracker.frontier(location) for location in range(3)]
    [Antichain([Time(0)]), Antichain([Time(0)]), Antichain([Time(0)])]
    >>> tracker.update([(0, Time(0), -1)])
    >>> tracker.frontier(0), tracker.arrivals(2)
    (Antichain([Time(1)]), Antichain([]))
    """

    # The propagation runs on two layers of the graph; node = location + layer * n. Pointstamps begin in layer
    # 0, and move to layer 1 by their first exchange. Every edge increases `Reachability.order`, so all
    # changes of a (node, time) are made before it is handled, once. Open inputs are not propagated: they move
    # in each epoch, and few locations are asked for their frontier. A relay has its own pointstamps only.
    # These, and what comes to it, are added where its edges lead.

    def __init__(self, reachability: Reachability) -> None:
        self.reachability = reachability
        #: For each node the counts of its pointstamps. No entry is empty, here and below.
        self._stamps: dict[int, MutableAntichain[Any]] = {}
        #: For each node the sum of its own frontier and of its predecessors' frontiers after their edges.
        self._implied: dict[int, MutableAntichain[Any]] = {}
        #: Changes of `_implied` that are not propagated yet; each is in the queue once.
        self._pending: dict[tuple[int, Any], int] = {}
        self._queue: list[tuple[Any, int, Any]] = []
        #: Locations whose `arrivals` have changed since `arrived` was last called.
        self._arrived: set[int] = set()
        #: For each epoch the number of least times in `_stamps`; and a heap of epochs.
        self._epochs: dict[int, int] = {}
        self._oldest: list[int] = []
        #: For each location the counts of open inputs into it; and, of locations that were asked for since
        #: these have changed, the times to which open inputs lead there.
        self._inputs: dict[int, MutableAntichain[Any]] = {}
        self._led_to: dict[int, list[Any]] = {}

    # -- counts and inputs -----------------------------------------------------------------------------------

    def update(self, deltas: Iterable[tuple[int, Any, int]]) -> None:
        """Add to the counts of messages and capabilities, all at once: (location, time, change)."""
        grouped: dict[int, list[tuple[Any, int]]] = {}
        for location, time, n in deltas:
            assert 0 <= location < self.reachability.n, location
            grouped.setdefault(location, []).append((time, n))
        for location, changes in grouped.items():
            self._count(location, changes)

    def input_at(self, location: int, old: Any | None, new: Any | None) -> None:
        """Open an input into a location (``old`` is None), advance it, or close it (``new`` is None)."""
        assert 0 <= location < self.reachability.n, location
        if old is not None and new is not None and not old.less_equal(new):
            msg = f"an input stands at {old!r} and cannot move to {new!r}, which is not later"
            raise InvalidTime(msg, hint="advance an input to a later time, or close it.")
        self.update_inputs(location, [(time, n) for time, n in ((old, -1), (new, +1)) if time is not None])

    def update_inputs(self, location: int, changes: Iterable[tuple[Any, int]]) -> None:
        """Add to the counts of open inputs into a location: (time, change)."""
        if _counted(self._inputs, location, changes):
            self._led_to.clear()

    def _count(self, location: int, changes: Iterable[tuple[Any, int]]) -> None:
        changed = _counted(self._stamps, location, changes)
        if location in self.reachability.relays:
            self._follow(location, 0, changed)
        else:
            for time, n in changed:
                self._push(location, time, n)
        for time, n in changed:
            self._count_epoch(time.epoch, n)

    def _count_epoch(self, epoch: int, n: int) -> None:
        count = self._epochs.get(epoch, 0) + n
        if count:
            if epoch not in self._epochs:
                heappush(self._oldest, epoch)
            self._epochs[epoch] = count
        else:
            self._epochs.pop(epoch, None)
        while self._oldest and self._oldest[0] not in self._epochs:
            heappop(self._oldest)

    # -- propagation -----------------------------------------------------------------------------------------

    def _push(self, node: int, time: Timestamp, n: int) -> None:
        entry = (node, time)
        if entry in self._pending:
            self._pending[entry] += n
        else:
            self._pending[entry] = n
            reach = self.reachability
            heappush(self._queue, (reach.order(node % reach.n, time.order_key()), node, time))

    def _drain(self) -> None:
        if not self._queue:
            return
        n, implied = self.reachability.n, self._implied
        visited: set[int] = set()
        while self._queue:
            _, node, time = heappop(self._queue)
            if not (change := self._pending.pop((node, time))):
                continue
            if (counted := implied.get(node)) is None:
                counted = implied[node] = MutableAntichain()
            visited.add(node)
            if not (changes := counted.update(time, change)):
                continue
            layer, location = divmod(node, n)
            if layer == 1:
                self._arrived.add(location)
            self._follow(location, layer, changes)
        for node in visited:
            if not implied[node]:
                del implied[node]

    def _follow(self, location: int, layer: int, changes: Iterable[tuple[Any, int]]) -> None:
        n = self.reachability.n
        for edge in self.reachability.onward[location]:
            target, summary = edge.target + n * (layer or int(edge.exchange)), edge.summary
            for at, by in changes:
                if (result := summary.results_in(at)) is not None:
                    self._push(target, result, by)

    # -- frontiers -------------------------------------------------------------------------------------------

    def frontier(self, location: int) -> Antichain[Any]:
        """The least times of pointstamps that are at a location or could result there; empty if complete."""
        self._drain()
        layers = (self._implied.get(node) for node in (location, location + self.reachability.n))
        times = [time for counted in layers if counted is not None for time in counted.least]
        if location in self.reachability.relays:
            times += self._stamps[location].least if location in self._stamps else ()
            times += self._relayed(location, self.frontier)
        if self._inputs and location not in self._led_to:
            self._led_to[location] = self._from_inputs(location)
        return Antichain([*times, *self._led_to.get(location, ())])

    def _from_inputs(self, location: int) -> list[Any]:
        """The times at which something may arrive from open inputs."""
        return [
            time
            for at, counted in self._inputs.items()
            for path in self.reachability.paths_from(at)[0].get(location, ())
            for least in counted.least
            if (time := path.results_in(least)) is not None
        ]

    def arrivals(self, location: int) -> Antichain[Any]:
        """The least times that may still arrive over an exchange, not counting open inputs."""
        self._drain()
        if location in self.reachability.relays:
            return Antichain(self._relayed(location, self.arrivals))
        counted = self._implied.get(location + self.reachability.n)
        return Antichain() if counted is None else counted.frontier()

    def _relayed(self, location: int, times: Callable[[int], Iterable[Any]]) -> list[Any]:
        """The times at which what is at the location before a relay arrives there."""
        (edge,) = self.reachability.into[location]
        arrive = map(edge.summary.results_in, times(edge.source))
        return [time for time in arrive if time is not None]

    def arrived(self) -> set[int]:
        """The locations, without relays, whose `arrivals` have changed since the last call."""
        self._drain()
        changed, self._arrived = self._arrived, set()
        return changed

    def oldest(self) -> int | None:
        """The least epoch of any pointstamp, not counting open inputs."""
        return self._oldest[0] if self._oldest else None

    def less_equal(self, location: int, time: Timestamp) -> bool:
        """Whether the frontier of a location has an element ``<= time``."""
        return self.frontier(location).less_equal(time)

    def count(self, location: int, time: Timestamp) -> int:
        """The count of a pointstamp; with `Reachability.n` added to its location, that of open inputs."""
        n = self.reachability.n
        counted = self._stamps.get(location) if location < n else self._inputs.get(location - n)
        return 0 if counted is None else counted.counts.get(time, 0)

    # -- the counts ------------------------------------------------------------------------------------------

    @property
    def active(self) -> dict[tuple[int, Any], int]:
        """The counts that are not zero, by (location, time), without open inputs."""
        return _by_place(self._stamps)

    @property
    def inputs(self) -> dict[tuple[int, Any], int]:
        """The numbers of open inputs by (location, time)."""
        return _by_place(self._inputs)

    def encode(self) -> dict[str, Any]:
        """The counts as plain JSON; equal counts have equal JSON."""
        return {"counts": encoded_counts(self.active), "inputs": encoded_counts(self.inputs)}

    @classmethod
    def decode(cls, reachability: Reachability, times: Times, data: dict[str, Any]) -> Tracker:
        """The tracker whose ``encode()`` is ``data``, with all frontiers as they were.

        >>> from timely_spark.times import PRODUCT, Time
        >>> graph = Reachability(1, [])
        >>> tracker = Tracker(graph)
        >>> tracker.update([(0, Time(4), 2)])
        >>> Tracker.decode(graph, PRODUCT, tracker.encode()).frontier(0)
        Antichain([Time(4)])
        """
        self = cls(reachability)
        for kind, count in (("counts", self._count), ("inputs", self.update_inputs)):
            for location, time, n in data[kind]:
                count(location, [(times.decode(time), n)])
        return self


def _counted(
    counts: dict[int, MutableAntichain[Any]], location: int, changes: Iterable[tuple[Any, int]]
) -> list[tuple[Any, int]]:
    """Add to the counts of a location; returns the changes of its least times."""
    if (counted := counts.get(location)) is None:
        counted = counts[location] = MutableAntichain()
    changed = counted.update_iter(changes)
    if not counted:
        del counts[location]
    return changed


def _by_place(counts: Mapping[int, MutableAntichain[Any]]) -> dict[tuple[int, Any], int]:
    every = [((at, time), n) for at, counted in counts.items() for time, n in counted.counts.items()]
    return dict(sorted(every, key=lambda item: (item[0][0], item[0][1].order_key())))


def encoded_counts(counts: Mapping[tuple[int, Any], int]) -> list[list[Any]]:
    """Counts by (location, time) as plain JSON."""
    return [[location, time.encode(), n] for (location, time), n in counts.items()]
