"""Times in the order of Naiad's paper: epochs as numbers, and loop counters lexicographically."""

from __future__ import annotations

from dataclasses import dataclass
from operator import gt
from typing import TYPE_CHECKING, Final

from timely_spark.errors import InvalidTime
from timely_spark.times.product import CompactingNestedTimes, NestedTimes, Summary, Time

if TYPE_CHECKING:
    from typing import Self


class Lexicographic(Time):
    """A time in Naiad's order: ``<=`` iff the epochs are, and the counters are, lexicographically.

    With two or more loop counters this differs from the product order. Source: Naiad section 2.1.

    >>> Lexicographic(0, 1, 5) <= Lexicographic(0, 2, 2), Time(0, 1, 5) <= Time(0, 2, 2)
    (True, False)
    >>> Lexicographic(0, 5) <= Lexicographic(1, 2)
    False
    """

    __slots__ = ()

    def less_equal(self, other: Self) -> bool:
        """Whether both the epoch and, lexicographically, the counters are at most the other's."""
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return self[0] <= other[0] and self[1:] <= other[1:]

    def join(self, other: Self) -> Self:
        """The least upper bound: the later epoch with the later counters."""
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return tuple.__new__(type(self), (max(self[0], other[0]), *max(self[1:], other[1:])))

    def meet(self, other: Self) -> Self:
        """The greatest lower bound: the earlier epoch with the earlier counters."""
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return tuple.__new__(type(self), (min(self[0], other[0]), *min(self[1:], other[1:])))


@dataclass(frozen=True, slots=True)
class LexicographicSummary(Summary):
    """A path summary of lexicographic times.

    Paths between two locations that delay by equally many epochs have *one* least summary. Source: Naiad
    section 2.3.

    >>> inner, outer = LEXICOGRAPHIC.feedback(2), LEXICOGRAPHIC.feedback(1)
    >>> outer = LEXICOGRAPHIC.leave(2).followed_by(outer).followed_by(LEXICOGRAPHIC.enter(1))
    >>> inner.less_equal(outer), outer.less_equal(inner)
    (True, False)
    """

    def less_equal(self, other: Self) -> bool:
        if not self._passes(other):
            return False
        for i, excess in enumerate(self._excess(other)):
            if excess > 0:
                return False
            if i > 0 and excess < 0:  # the first different counter decides
                return True
        return True

    def _passes(self, other: Self) -> bool:
        # Inner counters are limited by the 64-bit range only, which no counter reaches.
        return self._joins(other) and not any(map(gt, other.limits[:2], self.limits[:2]))


@dataclass(frozen=True, slots=True)
class LexicographicTimes(CompactingNestedTimes[Lexicographic, LexicographicSummary]):
    """Naiad's kind of time.

    Law: ``results_in`` must be monotone, with None later than all times. A limit on an inner counter breaks
    this law: (0,[1,4]) stops at a limit of 4, and the later (0,[2,2]) does not. So only the outermost loop
    may have a limit. (The 64-bit range is a limit in principle, which no inner counter reaches.)

    >>> LEXICOGRAPHIC.feedback(1, limit=4).results_in(Lexicographic(0, 3))
    Lexicographic(0, 4)

    Raises:
        InvalidTime: A limit is set on an inner loop.
    """

    def feedback(self, depth: int, limit: int | None = None) -> LexicographicSummary:
        """The feedback of a loop: the last of ``depth`` counters + 1; ``limit`` only for ``depth`` 1."""
        if limit is not None and depth > 1:
            msg = f"the lexicographic order has no limit ({limit}) for the loop at nesting depth {depth}"
            raise InvalidTime(msg, hint="limit only the outermost loop, or use the product order.")
        return NestedTimes.feedback(self, depth, limit)


#: Naiad's kind of time: the counters in lexicographic order.
LEXICOGRAPHIC: Final = LexicographicTimes(Lexicographic, LexicographicSummary)
