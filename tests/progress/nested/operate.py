"""A scope is an operator: the protocol by which a scope and the world around it tell each other of progress.

Source: timely's ``progress/operate``, in its first form the trait ``Scope``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timely_spark.times import Antichain, MutableAntichain, PathSummary, Timestamp

__all__ = ("Changes", "Operate", "Operator", "Progress", "Summaries", "counted")

#: For each port, the changes of counts: (time, change).
Changes: TypeAlias = Sequence[Sequence[tuple[Any, int]]]
#: For each port where paths begin and each port where they end, the minimal summaries; none: no path.
Summaries: TypeAlias = Sequence[Sequence[Antichain[PathSummary]]]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a scope reports at once: a part of it alone could let a frontier pass work that is left.

    A consumed message may become internal work, and internal work a produced message: were one reported
    without the other, the outside would believe for a while that there is neither.

    >>> from timely_spark.times import Time
    >>> Progress(internal=[[(Time(3), 1)]], consumed=[[(Time(3), 1)]], produced=[[]]).unreported
    False
    """

    #: by output, the changes of the internal work, projected: the least times at which it may send
    internal: Changes
    #: by input, how many messages were consumed
    consumed: Changes
    #: by output, how many messages were produced
    produced: Changes
    #: whether there is work that leads to no output, for example of a sink: the flow must not end yet
    unreported: bool = False


@runtime_checkable
class Operate(Protocol):
    """An operator of a graph, as the scope around it sees it: a vertex, or a whole scope.

    The outside sees the numbers of inputs and outputs, the path summaries between them, and counts of
    messages and of work at the ports. First `get_internal_summary`, then `set_external_summary`, then in any
    order `push_external_progress` and `pull_internal_progress`.

    Laws: internal work at an output is a lower bound of all that the operator may produce there without
    further input. A produced message was possible by the internal work, or by the consumed messages, of the
    report before. ``push_external_progress`` gives changes of the frontier of each input: the least times of
    the messages on their way there, and of all that could result in one.

    >>> isinstance(Operator(1, 1), Operate)
    True
    """

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        ...

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        ...

    def get_internal_summary(self) -> tuple[Summaries, Changes]:
        """The paths from each input to each output; and the initial internal work, by output."""
        ...

    def set_external_summary(self, summaries: Summaries, external: Changes) -> None:
        """The paths outside from each output to each input; and the initial frontier of each input."""
        ...

    def push_external_progress(self, external: Changes) -> None:
        """Changes of the frontier of each input. No answer: the operator reads them when it needs to."""
        ...

    def pull_internal_progress(self) -> Progress:
        """What the operator did since the last call."""
        ...


class Operator:
    """A vertex as its scope sees it: a worker enters what the vertex does, and the scope pulls it at once.

    >>> from timely_spark.times import PRODUCT, Time
    >>> vertex = Operator(1, 1, summary=PRODUCT.identity(0))
    >>> vertex.consume(0, Time(2))
    >>> vertex.hold(0, Time(2))
    >>> vertex.pull_internal_progress()
    Progress(internal=[[(Time(2), 1)]], consumed=[[(Time(2), 1)]], produced=[[]], unreported=False)

    Args:
        summary: the path from each input to each output.
        summaries: instead of `summary`, those of each (input, output); an empty antichain: no path.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        summary: PathSummary | None = None,
        summaries: Summaries | None = None,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        one: Antichain[PathSummary] = Antichain([] if summary is None else [summary])
        self.summaries = [[one] * outputs for _ in range(inputs)] if summaries is None else summaries
        #: called when there is something to pull; the scope around sets it
        self.wake: Callable[[], None] | None = None
        #: whether there is work that leads to no output
        self.unreported = False
        #: the frontier of each input
        self.frontiers: list[MutableAntichain[Any]] = [MutableAntichain() for _ in range(inputs)]
        self._consumed = [Counter[Any]() for _ in range(inputs)]
        self._produced = [Counter[Any]() for _ in range(outputs)]
        self._internal = [Counter[Any]() for _ in range(outputs)]

    def consume(self, port: int, time: Timestamp, n: int = 1) -> None:
        """Messages of an input were consumed."""
        self._enter(self._consumed[port], time, n)

    def produce(self, port: int, time: Timestamp, n: int = 1) -> None:
        """Messages were sent by an output."""
        self._enter(self._produced[port], time, n)

    def hold(self, port: int, time: Timestamp, n: int = 1) -> None:
        """A capability of an output was acquired, or dropped (``n=-1``)."""
        self._enter(self._internal[port], time, n)

    def _enter(self, counts: Counter[Any], time: Timestamp, n: int) -> None:
        counts[time] += n
        if self.wake is not None:
            self.wake()

    def get_internal_summary(self) -> tuple[Summaries, Changes]:
        """The declared summaries, and the capabilities that the vertex begins with."""
        return self.summaries, counted(self._internal)

    def set_external_summary(self, summaries: Summaries, external: Changes) -> None:
        """Set the frontiers; a vertex needs no summaries."""
        self.push_external_progress(external)

    def push_external_progress(self, external: Changes) -> None:
        """Update the frontiers of the inputs."""
        for frontier, changes in zip(self.frontiers, external, strict=True):
            frontier.update_iter(changes)

    def pull_internal_progress(self) -> Progress:
        """What was entered since the last call."""
        internal, consumed, produced = map(counted, (self._internal, self._consumed, self._produced))
        return Progress(internal, consumed, produced, unreported=self.unreported)


def counted(counts: Iterable[Counter[Any]]) -> list[list[tuple[Any, int]]]:
    """The counts that are not zero, by port; they begin again at zero."""
    changes = [[(time, n) for time, n in each.items() if n] for each in counts]
    for each in counts:
        each.clear()
    return changes
