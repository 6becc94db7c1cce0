"""`Convergence`: how many records the feedback of each loop carried, by epoch and iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: The most numbers of a loop in an epoch; and how many pairs of a loop and an epoch are kept, the last ones.
POINTS, PAIRS = 128, 32


class Iterations(NamedTuple):
    """The records that a loop's feedback carried in some successive iterations of an epoch."""

    loop: str
    epoch: int
    #: the first of `width` iterations
    first: int
    width: int
    #: how many records entered these iterations by feedback
    records: int


@dataclass(slots=True)
class Convergence:
    """Counts of the records that feedback carried, in bounded memory.

    Numbers of more than `POINTS` iterations are added up in twos, then in fours, and so on; so the counts are
    exact as sums, and do not depend on the order in which they are added.

    Example:
        >>> counts = Convergence()
        >>> for iteration in range(1, 1000):
        ...     counts.add("hops", 7, iteration, 2)
        >>> points = list(counts)
        >>> len(points), points[1], sum(point.records for point in points)
        (125, Iterations(loop='hops', epoch=7, first=8, width=8, records=16), 1998)
    """

    #: the width, the last iteration, and the counts by first iteration, of each epoch and loop
    _counts: dict[tuple[int, str], tuple[int, int, dict[int, int]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Iterations]:
        for (epoch, loop), (width, _, counts) in sorted(self._counts.items()):
            for first in sorted(counts):
                yield Iterations(loop, epoch, first, width, counts[first])

    def latest(self) -> Iterator[tuple[str, int, int, int, int]]:
        """By loop: the last epoch, its last iteration, the mean records of the last ones, and all records."""
        latest = {loop: (epoch, each) for (epoch, loop), each in sorted(self._counts.items())}
        for loop, (epoch, (_, last, counts)) in latest.items():
            first = max(counts)
            yield loop, epoch, last, round(counts[first] / (last - first + 1)), sum(counts.values())

    def add(self, loop: str, epoch: int, iteration: int, records: int) -> None:
        """Enter records of an iteration."""
        self._add(loop, epoch, 1, iteration, {iteration: records})

    def __add__(self, other: Convergence) -> Convergence:
        return Convergence.sum([self, other])

    @classmethod
    def sum(cls, parts: Iterable[Convergence]) -> Convergence:
        """The counts of all parts, which stay as they are."""
        total = cls()
        for part in parts:
            for (epoch, loop), (width, last, counts) in part._counts.items():  # noqa: SLF001 - of this class
                total._add(loop, epoch, width, last, counts)
        return total

    def _add(self, loop: str, epoch: int, width: int, last: int, more: Mapping[int, int]) -> None:
        own, own_last, counts = self._counts.setdefault((epoch, loop), (width, last, {}))
        wide, last = max(own, width), max(own_last, last)
        if wide > own:
            counts = _merged(counts, wide)
        for first, records in more.items():
            at = first // wide * wide
            counts[at] = counts.get(at, 0) + records
        while len(counts) > POINTS:
            wide *= 2
            counts = _merged(counts, wide)
        self._counts[epoch, loop] = wide, last, counts
        if len(self._counts) > PAIRS:
            del self._counts[min(self._counts)]

    @classmethod
    def of(cls, counts: Iterable[Iterations]) -> Convergence:
        """The counts that iterating over another gave."""
        convergence = cls()
        for loop, epoch, first, width, records in counts:
            convergence._add(loop, epoch, width, first + width - 1, {first: records})
        return convergence

    def encode(self) -> list[list[Any]]:
        """The counts as plain JSON."""
        return [
            [loop, epoch, width, last, [[first, counts[first]] for first in sorted(counts)]]
            for (epoch, loop), (width, last, counts) in sorted(self._counts.items())
        ]

    @classmethod
    def decode(cls, encoded: Iterable[Any]) -> Convergence:
        """The counts that `encode` gave."""
        return cls(
            {(epoch, loop): (width, last, dict(counts)) for loop, epoch, width, last, counts in encoded}
        )


def _merged(counts: dict[int, int], width: int) -> dict[int, int]:
    merged: dict[int, int] = {}
    for first, records in counts.items():
        at = first // width * width
        merged[at] = merged.get(at, 0) + records
    return merged
