"""The order of Naiad's paper: epochs in their order, and loop counters lexicographically."""

from __future__ import annotations

from dataclasses import dataclass
from operator import gt
from typing import TYPE_CHECKING, Final

from timely_spark.errors import InvalidTime
from timely_spark.times.product import NestedTimes, Summary, Time, advanced

if TYPE_CHECKING:
    from typing import Self

__all__ = ("LEXICOGRAPHIC", "Lexicographic", "LexicographicSummary")


class Lexicographic(Time):
    """A time with Naiad's order: ``<=`` iff so are the epochs, and, lexicographically, the counters.

    It differs from the product order from two loop counters on. Source: Naiad section 2.1.

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
    """What a path does to a lexicographic time; so the paths between two locations have *one* least summary.

    (As long as they delay by the same number of epochs.) Source: Naiad section 2.3.

    >>> inner, outer = LEXICOGRAPHIC.feedback(2), LEXICOGRAPHIC.feedback(1)
    >>> outer = LEXICOGRAPHIC.leave(2).followed_by(outer).followed_by(LEXICOGRAPHIC.enter(1))
    >>> inner.less_equal(outer), outer.less_equal(inner)
    (True, False)
    """

    def less_equal(self, other: Self) -> bool:
        """Whether ``self(t) <= other(t)`` for every time that passes ``other`` (a preorder)."""
        if not self._passes(other):
            return False
        for i, excess in enumerate(self._excess(other)):
            if excess > 0:
                return False
            if i > 0 and excess < 0:  # decided by this counter, whatever comes behind
                return True
        return True

    def _passes(self, other: Self) -> bool:
        # Inner counters have no limit but the end of the 64-bit range, which none gets to.
        return self._joins(other) and not any(map(gt, other.limits[:2], self.limits[:2]))


@dataclass(frozen=True, slots=True)
class LexicographicTimes(NestedTimes[Lexicographic, LexicographicSummary]):
    """Naiad's kind of time.

    Law: ``results_in`` must be monotone, None being later than all. A limit on a counter that is not the
    first breaks it: (0,[1,4]) stops at a limit of 4, and (0,[2,2]), which is later, does not. So only the
    outermost loop may have one. (The 64-bit range is such a limit in principle; no inner counter gets there.)

    >>> LEXICOGRAPHIC.feedback(1, limit=4).results_in(Lexicographic(0, 3))
    Lexicographic(0, 4)

    Raises:
        InvalidTime: A limit is set on an inner loop.
    """

    def feedback(self, depth: int, limit: int | None = None) -> LexicographicSummary:
        """The way back in a loop: the last of ``depth`` counters + 1; ``limit`` only where ``depth`` is 1."""
        if limit is not None and depth > 1:
            raise InvalidTime.limit_not_monotone(limit, depth)
        return NestedTimes.feedback(self, depth, limit)

    def advance(self, time: Lexicographic, since: int) -> Lexicographic:
        """A time that stands for ``time``, where all that is still to come is of epoch ``since`` or later."""
        return advanced(time, since)


#: Naiad's kind of time: the counters in lexicographic order.
LEXICOGRAPHIC: Final = LexicographicTimes(Lexicographic, LexicographicSummary)
