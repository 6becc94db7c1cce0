"""`Placement`: which process hosts each worker; the workers of a process that stays slow move to the others.

`docs/naiad.md`, "Workers leave a slow process", says what is slow, what moves, and what prevents oscillation.
Work is compared by the greatest ratio of counts: if each call and each record has some price, an equal
machine takes at most so many times as long.

The results of a batch do not depend on the placement, and states are files. So a move is another placement of
the next batch: its processes read the states of the workers that they get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final, TypeAlias

#: For each step its microseconds, calls, records that it was given, and records that it has sent.
Effort: TypeAlias = Mapping[str, Sequence[int]]

NOTHING: Final = (0, 0, 0, 0)
#: Processes are compared after so many batches, when one has worked for so many microseconds.
BATCHES, WORKED = 5, 1_000_000
#: How many times as long as others a slow process takes; and how many times as fast its workers must be in
#: other processes, or they move back.
SLOW, HELPED = 2.0, 1.5


def slowness(own: Effort, other: Effort) -> float:
    """By what factor one process takes longer than another for equal work, at least.

    0 if it spent most of its time in steps in which the other process has no comparable work.

    >>> slowness({"count": [9000, 1, 300, 0]}, {"count": [1000, 1, 100, 0]})
    3.0
    """
    compared = expected = spent_in_all = 0.0
    for step, (spent, *work) in own.items():
        spent_in_all += spent
        base, *others = other.get(step, NOTHING)
        if all(m for n, m in zip(work, others, strict=True) if n):
            compared += spent
            expected += base * max([1.0, *(n / m for n, m in zip(work, others, strict=True) if n)])
    return compared / expected if expected and 2 * compared >= spent_in_all else 0.0


def total(efforts: Iterable[Effort]) -> dict[str, list[int]]:
    """The sum of efforts."""
    sums: dict[str, list[int]] = {}
    for effort in efforts:
        for step, counts in effort.items():
            sums[step] = [n + m for n, m in zip(counts, sums.get(step, NOTHING), strict=True)]
    return sums


@dataclass
class Placement:
    """The process of each worker: at first worker modulo `processes`."""

    workers: int
    processes: int
    #: whether workers have moved back, so that no more move
    settled: bool = False
    #: which workers have left which process, in words; empty if none has
    text: str = ""

    def __post_init__(self) -> None:
        #: the process of each worker
        self.places = self._equal = tuple(worker % self.processes for worker in range(self.workers))
        #: since processes were last compared: the work of each worker, microseconds by process, and batches
        self._efforts: dict[int, Effort] = {}
        self._spent = Counter[int]()
        self._batches = 0
        #: the processes that were slow when they were last compared
        self._slow: Collection[int] = ()
        #: workers that have moved, with their work before; and how often processes were compared since
        self._moved: tuple[list[int], Effort] | None = None
        self._compared = 0

    def enter(self, efforts: Mapping[int, Effort], name: Callable[[int], str] = "process {}".format) -> str:
        """Enter the work of each worker in a batch; returns which workers move before the next, in words."""
        self._batches += 1
        for worker, effort in efforts.items():
            self._efforts[worker] = total([self._efforts.get(worker, {}), effort])
            self._spent[self.places[worker]] += sum(spent for spent, *_ in effort.values())
        if self._batches < BATCHES or max(self._spent.values(), default=0) < WORKED:
            return ""
        said = self._compare(name) if self._moved is None else self._judge(*self._moved)
        self._efforts, self._spent, self._batches = {}, Counter(), 0
        return said

    def _hosted(self, rank: int) -> list[int]:
        return [worker for worker, at in enumerate(self.places) if at == rank]

    def _effort(self, workers: Iterable[int]) -> Effort:
        return total(self._efforts.get(worker, {}) for worker in workers)

    def _compare(self, name: Callable[[int], str]) -> str:
        """Move the workers of processes that are slow for the second time."""
        by_process = {rank: self._effort(self._hosted(rank)) for rank in sorted({*self.places})}
        if self.settled or len(by_process) < 2:
            return ""
        factors = {
            rank: median_low([slowness(own, other) for at, other in by_process.items() if at != rank])
            for rank, own in by_process.items()
        }
        before, self._slow = self._slow, [rank for rank, factor in factors.items() if factor > SLOW]
        leave = [rank for rank in self._slow if rank in before]
        if not leave or 2 * len(leave) > len(by_process):
            return ""
        self.text = "; ".join(self._move_text(name(at), at, factors[at]) for at in leave)
        places = [*self.places]
        moved = [worker for rank in leave for worker in self._hosted(rank)]
        for worker in moved:
            stay = (rank for rank in by_process if rank not in leave)
            places[worker] = min(stay, key=lambda rank: (places.count(rank), rank))
        self.places, self._moved, self._compared = tuple(places), (moved, self._effort(moved)), 0
        return self.text

    def _move_text(self, name: str, rank: int, factor: float) -> str:
        moved = f"workers {', '.join(map(str, self._hosted(rank)))} have moved from it"
        return f"{name} took {factor:.1f} times as long as others for equal work: {moved}"

    def _judge(self, moved: list[int], before: Effort) -> str:
        """Move workers back that are as slow elsewhere, because the reason is their own work then."""
        after, self._compared = self._effort(moved), self._compared + 1
        if self._compared < 2 or not after:  # at first they read their states
            return ""
        self._moved, self._slow = None, ()
        if slowness(before, after) >= HELPED:
            return ""
        self.settled, self.places, self.text = True, self._equal, ""
        return f"workers {', '.join(map(str, moved))} are as slow in other processes, and move back"
