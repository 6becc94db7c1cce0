"""Frontiers: the minimal elements of a set, kept as a set or with counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from timely_spark.times.timestamp import Ordered, Timestamp

X = TypeVar("X", bound=Ordered)
T = TypeVar("T", bound=Timestamp)


class Antichain(Generic[X]):
    """The minimal elements of the inserted elements: mutually incomparable, in no particular order.

    Law: after inserting the elements of a set, ``less_equal(t)`` iff some element of that set is ``<= t``. A
    frontier is an antichain such that only times ``t`` with ``less_equal(t)`` may still appear: an *empty*
    frontier means complete. Source: timely ``progress/frontier.rs``.

    >>> from timely_spark.times import Time
    >>> frontier = Antichain([Time(1, 5), Time(2, 4), Time(2, 6)])
    >>> frontier
    Antichain([Time(1, 5), Time(2, 4)])
    >>> frontier.insert(Time(3, 3)), frontier.insert(Time(3, 4))
    (True, False)
    """

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[X] = ()) -> None:
        #: Mutually incomparable.
        self._elements: tuple[X, ...] = ()
        if elements:
            self.extend(elements)

    def insert(self, element: X) -> bool:
        """Add an element unless an element ``<=`` it exists; remove elements ``>=`` it. True iff added."""
        if self.less_equal(element):
            return False
        self._elements = (*(old for old in self._elements if not element.less_equal(old)), element)
        return True

    def extend(self, elements: Iterable[X]) -> bool:
        """Insert several elements; True iff at least one was added."""
        added = False
        for element in elements:
            added = self.insert(element) or added
        return added

    @property
    def elements(self) -> tuple[X, ...]:
        """The minimal elements."""
        return self._elements

    def less_equal(self, time: X) -> bool:
        """Whether some element is ``<= time``: ``time`` may still appear. Always False when empty."""
        for element in self._elements:  # noqa: SIM110 (a generator costs more than the comparison)
            if element.less_equal(time):
                return True
        return False

    def less_than(self, time: X) -> bool:
        """Whether some element is ``< time``: something strictly before ``time`` may still appear."""
        return any(element != time and element.less_equal(time) for element in self._elements)

    def dominates(self, other: Antichain[X]) -> bool:
        """Whether each element of `other` is ``>=`` some element of this antichain.

        >>> from timely_spark.times import Time
        >>> Antichain([Time(1)]).dominates(Antichain([Time(2)])), Antichain([Time(1)]).dominates(Antichain())
        (True, True)
        """
        return all(map(self.less_equal, other))

    def copy(self) -> Antichain[X]:
        """A copy with the same elements."""
        copy: Antichain[X] = Antichain()
        copy._elements = self._elements
        return copy

    def __iter__(self) -> Iterator[X]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        return len(self) == len(other) and all(element in other.elements for element in self._elements)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Antichain({list(self._elements)!r})"


class MutableAntichain(Generic[T]):
    """The frontier of a multiset of times, given by changing counts.

    Laws: the frontier is the antichain of the times whose count is *strictly positive*. Counts may be
    negative for a while (a consumption may be reported before its production). The frontier depends only on
    the sums of the counts, not on the order or grouping of changes. A zero count takes no memory.
    Source: timely ``progress/frontier.rs``, Naiad section 2.3.

    >>> from timely_spark.times import Time
    >>> counted = MutableAntichain([(Time(1), 1)])
    >>> counted.update_iter([(Time(1), -1), (Time(2), +7)])
    [(Time(1), -1), (Time(2), 1)]
    >>> counted.frontier()
    Antichain([Time(2)])
    """

    __slots__ = ("_counts", "_frontier")

    def __init__(self, counts: Iterable[tuple[T, int]] = ()) -> None:
        #: Counts other than zero.
        self._counts: dict[T, int] = {}
        #: The minimal elements of the times with a positive count.
        self._frontier: Antichain[T] = Antichain()
        if counts:
            self.update_iter(counts)

    def update_iter(self, changes: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
        """Add to the counts, all at once; return the changes of the frontier.

        Returns:
            ``(time, -1)`` for each removed element, then ``(time, +1)`` for each added one.
        """
        counts = self._counts
        was: dict[T, int] = {}
        for time, n in changes:
            old = counts.get(time, 0)
            was.setdefault(time, old)
            if old + n:
                counts[time] = old + n
            else:
                counts.pop(time, None)
        before = self._frontier.elements
        if len(counts) <= 1:  # nearly always
            self._frontier._elements = tuple(time for time, n in counts.items() if n > 0)  # noqa: SLF001
            if self._frontier.elements == before:
                return []
        elif any(old > 0 >= counts.get(time, 0) and time in before for time, old in was.items()):
            # rebuilt from all counts, as in timely: a location has few times
            self._frontier = Antichain(time for time, n in counts.items() if n > 0)
        else:
            risen = [time for time, old in was.items() if old <= 0 < counts.get(time, 0)]
            if not self._frontier.extend(risen):
                return []
        after = self._frontier.elements
        removed = [(time, -1) for time in before if time not in after]
        return removed + [(time, +1) for time in after if time not in before]

    def update(self, time: T, n: int) -> list[tuple[T, int]]:
        """Add to one count; return the changes of the frontier, as `update_iter`.

        >>> from timely_spark.times import Time
        >>> counted = MutableAntichain([(Time(1), 1), (Time(3), 1)])
        >>> counted.update(Time(1), -1), counted.update(Time(2), +1)
        ([(Time(1), -1), (Time(3), 1)], [(Time(3), -1), (Time(2), 1)])
        """
        counts, before = self._counts, self._frontier.elements
        old = counts.get(time, 0)
        if new := old + n:
            counts[time] = new
        else:
            counts.pop(time, None)
        if old <= 0 < new:
            if not self._frontier.insert(time):
                return []
            after = self._frontier.elements
            return [*[(each, -1) for each in before if each not in after], (time, +1)]
        if new > 0 or time not in before:
            return []
        # rebuilt from all counts, as in timely: a location has few times
        self._frontier = Antichain([each for each, count in counts.items() if count > 0])
        return [(time, -1), *[(each, +1) for each in self._frontier.elements if each not in before]]

    def frontier(self) -> Antichain[T]:
        """A copy of the frontier."""
        return self._frontier.copy()

    @property
    def least(self) -> tuple[T, ...]:
        """The elements of the frontier."""
        return self._frontier.elements

    @property
    def counts(self) -> Mapping[T, int]:
        """The counts that are not zero."""
        return MappingProxyType(self._counts)

    def __len__(self) -> int:
        """The number of counts that are not zero."""
        return len(self._counts)

    def __repr__(self) -> str:
        return f"MutableAntichain({list(self._counts.items())!r})"
