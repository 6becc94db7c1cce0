"""A scope whose operators are tracked by themselves, and are to the outside one operator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from tests.progress.nested.operate import Changes, Operate, Progress, Summaries, counted
from timely_spark.progress.reachability import Arc, Reachability
from timely_spark.progress.tracker import Tracker
from timely_spark.times import Antichain, MutableAntichain, PathSummary, Timestamp

__all__ = ("OUTSIDE", "Connection", "Subgraph")

#: (position among the scope's operators, number of the input or output)
Port: TypeAlias = tuple[int, int]

OUTSIDE: Final = -1
"""The number of the outside among operators: ``(OUTSIDE, i)`` is the scope's input i as a source, and its
output i as a target."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An edge inside a scope, from an output to an input, with its path summary.

    From an input of the scope, the summary leads from times outside to times inside (Naiad's ingress); to an
    output, back (egress). So a scope may refine the time around it by a time of any kind, or by none.

    >>> from timely_spark.times import PRODUCT
    >>> Connection((OUTSIDE, 0), (1, 0), PRODUCT.enter(0)).target
    (1, 0)
    """

    source: Port
    target: Port
    summary: PathSummary


class _Tracker(Tracker):
    """A tracker that tells which frontiers have changed."""

    def __init__(self, reachability: Reachability) -> None:
        super().__init__(reachability)
        #: by location the frontier that `propagate` returned last, and the locations that have changed since
        self._told: dict[int, tuple[Any, ...]] = {}
        self._changed: set[int] = set()
        self._outside: dict[int, MutableAntichain[Any]] = defaultdict(MutableAntichain)

    def update_inputs(self, location: int, changes: Iterable[tuple[Any, int]]) -> None:
        """Propagate open inputs as well, in a layer of their own: the changes of all frontiers are told."""
        for time, n in self._outside[location].update_iter(changes):
            self._push(location + 2 * self.reachability.n, time, n)

    def frontier(self, location: int) -> Antichain[Any]:
        outside = self._implied.get(location + 2 * self.reachability.n)
        return Antichain([*super().frontier(location), *(() if outside is None else outside.least)])

    def _follow(self, location: int, layer: int, changes: Iterable[tuple[Any, int]]) -> None:
        self._changed.add(location)
        super()._follow(location, layer, changes)

    def propagate(self) -> list[tuple[int, Any, int]]:
        """The changes of the frontiers since the last call: (location, time, -1 or +1), by location."""
        changes: list[tuple[int, Any, int]] = []
        self._drain()
        for location in sorted(self._changed):
            before, now = self._told.pop(location, ()), self.frontier(location).elements
            if now:
                self._told[location] = now
            changes += [(location, time, -1) for time in before if time not in now]
            changes += [(location, time, +1) for time in now if time not in before]
        self._changed.clear()
        return changes

    def counted(self, location: int) -> Antichain[Any]:
        """The least times that counts lead to, not counting open inputs; no connection is an exchange."""
        self._drain()
        return self._implied[location].frontier() if location in self._implied else Antichain()


class Subgraph:
    """A scope: operators and the connections between them. It is an operator (`Operate`) of the scope around.

    The scope tracks only the ports of its operators, which may be scopes themselves. It projects its
    unfinished work onto its outputs, and reports a change to the outside only if a projection changes.
    Changes that come from the outside wait at its inputs until somebody asks for a frontier inside.

    Law: when all progress is pulled, `frontier` equals that of one `Tracker` over the whole graph. Before,
    it is never later. The time to find the paths is quadratic in the operators of one scope, not of the
    graph. Source: timely's ``progress/subgraph``.

    >>> from tests.progress.nested import Operator
    >>> from timely_spark.times import PRODUCT, Time
    >>> one, inner = PRODUCT.identity(0), PRODUCT.identity(1)
    >>> step = Operator(1, 1, summary=inner)
    >>> ends = [Connection((OUTSIDE, 0), (0, 0), PRODUCT.enter(0))]
    >>> ends += [Connection((0, 0), (OUTSIDE, 0), PRODUCT.leave(1))]
    >>> back = Connection((0, 0), (0, 0), PRODUCT.feedback(1))
    >>> loop = Subgraph([step], [*ends, back], inputs=1, outputs=1, inner=inner, outer=one)
    >>> source, sink = Operator(0, 1), Operator(1, 0)
    >>> line = [Connection((0, 0), (1, 0), one), Connection((1, 0), (2, 0), one)]
    >>> flow = Subgraph([source, loop, sink], line, inner=one, outer=one)
    >>> flow.start()
    >>> source.produce(0, Time(5))
    >>> _ = flow.pull_internal_progress()
    >>> flow.frontier(2, 0), loop.frontier(0, 0)
    (Antichain([Time(5)]), Antichain([Time(5, 0)]))
    >>> loop.enter(0, Time(5))
    >>> step.consume(0, Time(5, 0))
    >>> step.produce(0, Time(5, 7))
    >>> _ = flow.pull_internal_progress()
    >>> flow.frontier(2, 0), loop.frontier(0, 0)
    (Antichain([Time(5)]), Antichain([Time(5, 8)]))

    Args:
        inner: the identity summary of the times inside.
        outer: the identity summary of the times outside.

    Raises:
        CyclicTime: a cycle does not advance time.
    """

    def __init__(
        self,
        operators: Sequence[Operate],
        connections: Iterable[Connection],
        *,
        inner: PathSummary,
        outer: PathSummary,
        inputs: int = 0,
        outputs: int = 0,
    ) -> None:
        self.operators, self.inputs, self.outputs = tuple(operators), inputs, outputs
        #: called when there is something to pull; the scope around sets it
        self.wake: Callable[[], None] | None = None
        self._parent: Subgraph | None = None
        #: locations: the scope's inputs, its outputs, and then of each operator the inputs and the outputs
        self._first: list[int] = []
        self._operator_of = [OUTSIDE] * (inputs + outputs)
        for child, each in enumerate(self.operators):
            self._first.append(len(self._operator_of))
            self._operator_of += [child] * (each.inputs + each.outputs)
        edges: list[Arc] = []
        #: for each source of connections (a location) where they lead
        self._out: dict[int, list[tuple[int, PathSummary]]] = defaultdict(list)
        for connection in connections:
            at, to = self._source(*connection.source), self._target(*connection.target)
            self._out[at].append((to, connection.summary))
            edges.append(Arc(at, to, connection.summary, exchange=False))
        work: list[tuple[int, Any, int]] = []
        for child, each in enumerate(self.operators):
            paths, internal = each.get_internal_summary()
            for i, by_output in enumerate(paths):
                for o, minimal in enumerate(by_output):
                    ends = self._target(child, i), self._source(child, o)
                    edges += [Arc(*ends, path, exchange=False) for path in minimal]
            work += [(self._source(child, o), *change) for o, port in enumerate(internal) for change in port]
        ports = len(self._operator_of) - inputs - outputs
        self.reachability = Reachability(
            len(self._operator_of), edges, identities=[outer] * (inputs + outputs) + [inner] * ports
        )
        self._tracker = _Tracker(self.reachability)
        self._tracker.update(work)
        #: changes that come from the outside and were not propagated yet
        self._external = [Counter[Any]() for _ in range(inputs)]
        self._consumed = [Counter[Any]() for _ in range(inputs)]
        self._produced = [Counter[Any]() for _ in range(outputs)]
        #: the projection of internal work onto each output that was reported
        self._reported: list[Antichain[Any]] = [Antichain() for _ in range(outputs)]
        #: operators that have something to report; and those that cannot say so
        self._woken: set[int] = set()
        self._polled = {child for child, each in enumerate(self.operators) if not hasattr(each, "wake")}
        #: operators with work that leads to no output
        self._unreported: set[int] = set()
        for child, each in enumerate(self.operators):
            if child not in self._polled:
                each.wake = partial(self._wake, child)  # type: ignore[attr-defined]
            if isinstance(each, Subgraph):
                each._parent = self

    def _target(self, child: int, port: int) -> int:
        return self.inputs + port if child == OUTSIDE else self._first[child] + port

    def _source(self, child: int, port: int) -> int:
        return port if child == OUTSIDE else self._first[child] + self.operators[child].inputs + port

    def _wake(self, child: int) -> None:
        if not self._woken and self.wake is not None:
            self.wake()
        self._woken.add(child)

    # -- set-up ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin as the outermost scope, which has no inputs and outputs."""
        self.set_external_summary([], [])

    def get_internal_summary(self) -> tuple[Summaries, Changes]:
        """The paths through the scope, and the projection of the work that its operators begin with."""
        ends = range(self.inputs, self.inputs + self.outputs)
        paths = [self.reachability.paths_from(i)[0] for i in range(self.inputs)]
        return [[by.get(o, Antichain()) for o in ends] for by in paths], self._projection()

    def set_external_summary(self, summaries: Summaries, external: Changes) -> None:
        """Hand each operator the paths around it, in this scope and outside, and its initial frontiers."""
        self.push_external_progress(external)
        outside = [
            Arc(self.inputs + o, i, path, exchange=False)
            for o, by_input in enumerate(summaries)
            for i, minimal in enumerate(by_input)
            for path in minimal
        ]
        reach = Reachability(
            self.reachability.n, [*self.reachability.edges, *outside], identities=self.reachability.identities
        )
        begun = self._changes_by_operator()
        for child, each in enumerate(self.operators):
            ends = [self._target(child, i) for i in range(each.inputs)]
            around: list[list[Antichain[PathSummary]]] = []
            for start in (self._source(child, o) for o in range(each.outputs)):
                paths = reach.paths_from(start)[0] if any(reach.may_lead(start, end) for end in ends) else {}
                around.append([paths.get(end, Antichain()) for end in ends])
            each.set_external_summary(around, begun.get(child, [[] for _ in ends]))

    # -- progress --------------------------------------------------------------------------------------------

    def enter(self, port: int, time: Timestamp, n: int = 1) -> None:
        """Messages that arrived at an input of the scope go on to the operators inside (Naiad's ingress)."""
        self._consumed[port][time] += n
        self._send(port, [(time, n)])
        self._wake(OUTSIDE)

    def _send(self, source: int, messages: Sequence[tuple[Any, int]]) -> None:
        for target, summary in self._out.get(source, ()):
            arrived = [(at, n) for time, n in messages if (at := summary.results_in(time)) is not None]
            if self._operator_of[target] == OUTSIDE:
                for at, n in arrived:
                    self._produced[target - self.inputs][at] += n
            else:
                self._tracker.update((target, at, n) for at, n in arrived)

    def push_external_progress(self, external: Changes) -> None:
        """Note the changes; they are propagated when a frontier inside is asked for."""
        for counts, changes in zip(self._external, external, strict=True):
            for time, n in changes:
                counts[time] += n

    def pull_internal_progress(self) -> Progress:
        """Pull the progress of all operators that have some, apply it at once, and report its projection."""
        for child in sorted((self._woken | self._polled) - {OUTSIDE}):
            progress = self.operators[child].pull_internal_progress()
            for port, changes in enumerate(progress.consumed):
                self._tracker.update((self._target(child, port), time, -n) for time, n in changes)
            for port, changes in enumerate(progress.produced):
                self._send(self._source(child, port), changes)
            for port, changes in enumerate(progress.internal):
                self._tracker.update((self._source(child, port), time, n) for time, n in changes)
            (self._unreported.add if progress.unreported else self._unreported.discard)(child)
        self._woken.clear()
        return Progress(
            self._projection(),
            counted(self._consumed),
            counted(self._produced),
            unreported=bool(self._unreported) or self._tracker.oldest() is not None,
        )

    def _projection(self) -> list[list[tuple[Any, int]]]:
        changes: list[list[tuple[Any, int]]] = []
        for port, before in enumerate(self._reported):
            now = self._reported[port] = self._tracker.counted(self.inputs + port)
            gone = [(time, -1) for time in before if time not in now.elements]
            changes.append(gone + [(time, 1) for time in now if time not in before.elements])
        return changes

    # -- frontiers -------------------------------------------------------------------------------------------

    def frontier(self, child: int, port: int) -> Antichain[Any]:
        """The frontier of an operator's input, as far as progress was pulled."""
        self.propagate()
        return self._tracker.frontier(self._target(child, port))

    def propagate(self) -> None:
        """Push what has changed around each operator: first in the scopes around this one, then here."""
        if self._parent is not None:
            self._parent.propagate()
        for child, changes in self._changes_by_operator().items():
            self.operators[child].push_external_progress(changes)

    def _changes_by_operator(self) -> dict[int, Changes]:
        for port, changes in enumerate(counted(self._external)):
            self._tracker.update_inputs(port, changes)
        pushed: dict[int, list[list[tuple[Any, int]]]] = {}
        for location, time, n in self._tracker.propagate():
            child = self._operator_of[location]
            if child == OUTSIDE or location >= self._source(child, 0):
                continue
            if child not in pushed:
                pushed[child] = [[] for _ in range(self.operators[child].inputs)]
            pushed[child][location - self._first[child]].append((time, n))
        return dict(pushed)
