"""Times by vertex as runs: neighbours with equal times are stored and sent as one entry."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from timely_spark.times import Timestamp


class Runs:
    """The encoded times of some vertices; neighbours with equal times are one run.

    Vertices are numbered in topological order, so what may still arrive is mostly equal among neighbours. A
    change costs the logarithm of the number of vertices, and `encode` the number of runs.

    Law: `encode` depends only on the current times of the vertices, not on how they have changed.

    >>> runs = Runs([2, 3, 5, 8])
    >>> for vertex in (3, 5, 8):
    ...     runs.update(vertex, [[0]])
    >>> runs.encode()
    [(3, [[0]])]
    >>> runs.update(5, [])
    >>> runs.encode()
    [(3, [[0]]), (5, []), (8, [[0]])]
    """

    def __init__(self, vertices: Iterable[int]) -> None:
        self._vertices = sorted(vertices)
        self._places = {vertex: place for place, vertex in enumerate(self._vertices)}
        #: the times of each place; before the first vertex, and at first everywhere, there are none
        self._times: list[list[Any]] = [[] for _ in self._vertices]
        #: in order, the places whose times differ from those of the place before
        self._begins: list[int] = []

    def __contains__(self, vertex: int) -> bool:
        return vertex in self._places

    def update(self, vertex: int, times: list[Timestamp]) -> None:
        """Replace the times of a vertex."""
        place = self._places[vertex]
        self._times[place] = times
        for at in range(place, min(place + 2, len(self._times))):
            first = bisect_left(self._begins, at)
            begins = self._begins[first : first + 1] == [at]
            if (self._times[at] != (self._times[at - 1] if at else [])) == begins:
                continue
            if begins:
                del self._begins[first]
            else:
                insort(self._begins, at)

    def encode(self) -> list[tuple[int, list[Any]]]:
        """The first vertex and the times of each run, in order."""
        return [(self._vertices[at], self._times[at]) for at in self._begins]
