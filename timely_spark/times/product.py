"""The default kind of time: an epoch and a counter per loop, in the product order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, gt, index, le, sub
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from timely_spark.errors import InvalidTime

if TYPE_CHECKING:
    from typing import Self

#: The largest epoch and the largest loop counter: what fits a 64-bit integer.
MAX: Final = 2**63 - 1

TimeT = TypeVar("TimeT", bound="Time")
TimeT_co = TypeVar("TimeT_co", bound="Time", covariant=True)
SummaryT_co = TypeVar("SummaryT_co", bound="Summary", covariant=True)


class Time(tuple[int, ...]):
    """A logical time: the epoch, and one counter for each surrounding loop, outermost first.

    The order is the product order, a *partial* one: ``s <= t`` iff every coordinate is. So ``not s <= t``
    does not mean ``t < s``; sort times with ``key=Time.order_key``, never by ``sorted(times)`` alone. Times
    of different loop contexts do not compare. Equality and hash are those of tuples. Source: Naiad section
    2.1; the order is timely's ``Product``.

    >>> Time(1, 5).less_equal(Time(2, 5)), Time(1, 5) <= Time(2, 4), Time(2, 4) <= Time(1, 5)
    (True, False, False)
    >>> Time(1, 5).join(Time(2, 4)), Time(1, 5).meet(Time(2, 4))
    (Time(2, 5), Time(1, 4))
    >>> sorted([Time(2, 4), Time(1, 5)], key=Time.order_key)
    [Time(1, 5), Time(2, 4)]
    >>> Time(1, 5).epoch, Time(1, 5).counters, Time(1, 5).encode()
    (1, (5,), [1, 5])

    Raises:
        InvalidTime: a coordinate is not an integer, negative, or above ``MAX``; or times of different numbers
            of coordinates are compared.
    """

    __slots__ = ()

    def __new__(cls, epoch: int, *counters: int) -> Self:
        try:
            self = tuple.__new__(cls, map(index, (epoch, *counters)))
        except TypeError:
            msg = f"{cls.__name__}{(epoch, *counters)} has coordinates that are not integers"
            hint = f"give the epoch and each loop counter by itself: {cls.__name__}(0, 2)."
            raise InvalidTime(msg, hint=hint) from None
        if min(self) < 0 or max(self) > MAX:
            raise InvalidTime.out_of_range(self, MAX)
        return self

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self[0]

    @property
    def counters(self) -> tuple[int, ...]:
        """The loop counters, outermost first."""
        return self[1:]

    def less_equal(self, other: Self) -> bool:
        """Whether every coordinate is at most the other's; a partial order."""
        if self == other:  # mostly, since a vertex sends at the time of its call
            return True
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return all(map(le, self, other))

    def join(self, other: Self) -> Self:
        """The least upper bound: ``s <= u and t <= u`` iff ``s.join(t) <= u``."""
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return tuple.__new__(type(self), map(max, self, other))

    def meet(self, other: Self) -> Self:
        """The greatest lower bound: ``u <= s and u <= t`` iff ``u <= s.meet(t)``."""
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return tuple.__new__(type(self), map(min, self, other))

    def order_key(self) -> tuple[int, ...]:
        """A sorting key: ``s < t`` implies ``s.order_key() < t.order_key()``."""
        return tuple(self)

    def encode(self) -> list[int]:
        """The coordinates as a list, epoch first; ``PRODUCT.decode`` is the inverse."""
        return list(self)

    def __le__(self, other: object) -> bool:
        return type(self).less_equal(self, other) if isinstance(other, tuple) else NotImplemented  # type: ignore[type-var]

    def __ge__(self, other: object) -> bool:
        return type(self).less_equal(other, self) if isinstance(other, tuple) else NotImplemented  # type: ignore[type-var]

    def __lt__(self, other: object) -> bool:
        return self != other and self <= other

    def __gt__(self, other: object) -> bool:
        return self != other and self >= other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self))})"


@dataclass(frozen=True, slots=True)
class Summary:
    """A path summary: keep some leading coordinates of a time, increase them, and append new ones.

    A time passes only if each of its coordinates, dropped ones included, is at most its limit. So the limit
    of a loop also holds for paths that leave the loop. The 64-bit range is a limit, too (``limits`` are cut
    to it), so no sum overflows. Source: Naiad section 2.3, timely's ``PathSummary``.

    >>> five = Summary((MAX,), (5,), ())
    >>> five.results_in(Time(3))
    Time(8)
    >>> print(five.results_in(Time(MAX - 4)))
    None

    Args:
        limits: For each coordinate before the path, the largest value that passes (-1: nothing passes).
        increments: The increments of the leading coordinates; the other coordinates are dropped.
        appended: The appended coordinates.

    Raises:
        InvalidTime: Negative increments or coordinates, or more increments than limits.
    """

    limits: tuple[int, ...]
    increments: tuple[int, ...]
    appended: tuple[int, ...]
    _same: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        increments, appended = tuple(self.increments), tuple(self.appended)
        if len(increments) > len(self.limits):
            raise InvalidTime.depths_differ(self.limits, increments)
        if min((*increments, *appended), default=0) < 0 or max((*increments, *appended), default=0) > MAX:
            raise InvalidTime.out_of_range((*increments, *appended), MAX)
        room = [*(MAX - more for more in increments), *(MAX for _ in self.limits[len(increments) :])]
        limits = tuple(max(-1, min(pair)) for pair in zip(self.limits, room, strict=True))
        if -1 in limits:  # nothing passes: a canonical form
            limits = (-1,) * len(limits)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "increments", increments)
        object.__setattr__(self, "appended", appended)
        same = (
            not appended and len(increments) == len(limits) and not any(increments) and set(limits) <= {MAX}
        )
        object.__setattr__(self, "_same", same)

    def results_in(self, time: TimeT) -> TimeT | None:
        """The time at which a message sent at ``time`` arrives; None if a limit drops the message."""
        if len(time) != len(self.limits):
            raise InvalidTime.depths_differ(time, self)
        if self._same:
            return time
        if any(map(gt, time, self.limits)):
            return None
        return tuple.__new__(type(time), (*map(add, time, self.increments), *self.appended))

    def followed_by(self, other: Self) -> Self | None:
        """The summary of this path followed by the other; None if no time passes both.

        >>> Summary((MAX,), (5,), ()).followed_by(Summary((MAX,), (MAX - 3,), ())) is None
        True
        """
        common = len(self.increments)
        if common + len(self.appended) != len(other.limits):
            raise InvalidTime.depths_differ(self, other)
        if any(map(gt, self.appended, other.limits[common:])):
            return None
        limits = list(map(min, self.limits, map(sub, other.limits, self.increments)))
        limits += self.limits[common:]
        if min(limits, default=0) < 0:
            return None
        increments = tuple(map(add, self.increments, other.increments))
        carried = tuple(map(add, self.appended, other.increments[common:]))
        return other.with_parts(tuple(limits), increments, carried + other.appended)

    def with_parts(
        self, limits: tuple[int, ...], increments: tuple[int, ...], appended: tuple[int, ...]
    ) -> Self:
        """A summary of the same kind."""
        return type(self)(limits, increments, appended)

    def less_equal(self, other: Self) -> bool:
        """Whether ``self(t) <= other(t)`` for every time that passes ``other`` (a preorder)."""
        return self._passes(other) and all(excess <= 0 for excess in self._excess(other))

    @property
    def advances(self) -> tuple[bool, ...]:
        """For each kept coordinate, whether the path strictly increases it."""
        return tuple(more > 0 for more in self.increments)

    def _passes(self, other: Self) -> bool:
        """Whether every time that passes ``other`` passes ``self``, to the same loop context."""
        return self._joins(other) and not any(map(gt, other.limits, self.limits))

    def _joins(self, other: Self) -> bool:
        """Whether both lead from the same loop context to the same loop context."""
        own, others = self.increments + self.appended, other.increments + other.appended
        return len(own) == len(others) and len(self.limits) == len(other.limits)

    def _excess(self, other: Self) -> Iterator[int]:
        """For each coordinate, the largest ``self(t)[i] - other(t)[i]`` over the times that pass ``other``.

        Each coordinate of the result depends on one coordinate of ``t``, so one time has all these maxima.
        """
        if -1 in other.limits:  # no time passes `other`
            return
        length, other_length = len(self.increments), len(other.increments)
        own, others = self.increments + self.appended, other.increments + other.appended
        for i, (a, b) in enumerate(zip(own, others, strict=True)):
            yield a - b + (other.limits[i] if other_length <= i < length else 0)


@dataclass(frozen=True, slots=True)
class NestedTimes(Generic[TimeT_co, SummaryT_co]):
    """A kind of time with an epoch and loop counters, and its path summaries.

    Source: Naiad section 2.3.

    >>> there_and_back = PRODUCT.enter(0).followed_by(PRODUCT.leave(1))
    >>> there_and_back == PRODUCT.identity(0)
    True
    """

    time: type[TimeT_co]
    summary: type[SummaryT_co]

    def epoch(self, n: int) -> TimeT_co:
        """The time of epoch ``n`` outside all loops."""
        return self.time(n)

    def decode(self, data: Sequence[int]) -> TimeT_co:
        """The time whose ``encode()`` is ``data``."""
        return self.time(*data)

    def identity(self, depth: int) -> SummaryT_co:
        """The path that changes nothing."""
        return self._path(depth)

    def enter(self, depth: int) -> SummaryT_co:
        """The ingress of a loop: a new counter 0 after ``depth`` counters."""
        return self._path(depth, appended=(0,))

    def leave(self, depth: int) -> SummaryT_co:
        """The egress of a loop: the last of ``depth`` counters is dropped."""
        self._in_loop(depth)
        return self._path(depth, common=depth)

    def feedback(self, depth: int, limit: int | None = None) -> SummaryT_co:
        """The feedback of a loop: the last of ``depth`` counters + 1, and never above ``limit``.

        >>> twice = PRODUCT.feedback(1, limit=2)
        >>> twice.results_in(Time(0, 1)), twice.results_in(Time(0, 2))
        (Time(0, 2), None)
        """
        self._in_loop(depth)
        return self._path(depth, steps={depth: 1}, limit=MAX if limit is None else limit - 1)

    def delay(self, depth: int, by_epochs: int) -> SummaryT_co:
        """The path that adds ``by_epochs`` to the epoch."""
        return self._path(depth, steps={0: by_epochs})

    def coarse(self, time: TimeT, counters: frozenset[int]) -> TimeT:
        """``time`` with these loop counters (0 = outermost) set to 0.

        >>> PRODUCT.coarse(Time(7, 3, 4), frozenset({1}))
        Time(7, 3, 0)
        """
        return tuple.__new__(type(time), (0 if i - 1 in counters else value for i, value in enumerate(time)))

    def _path(
        self,
        depth: int,
        *,
        common: int | None = None,
        steps: dict[int, int] | None = None,
        limit: int = MAX,
        appended: tuple[int, ...] = (),
    ) -> SummaryT_co:
        increments = tuple((steps or {}).get(i, 0) for i in range(depth + 1 if common is None else common))
        return self.summary((MAX,) * depth + (limit,), increments, appended)

    @staticmethod
    def _in_loop(depth: int) -> None:
        if depth < 1:
            msg = f"there is no loop to leave or to go round at depth {depth}"
            raise InvalidTime(msg, hint="enter a loop first.")


@dataclass(frozen=True, slots=True)
class CompactingNestedTimes(NestedTimes[TimeT_co, SummaryT_co]):
    """A kind of time with logical compaction: all later times have later epochs.

    >>> PRODUCT.advance(Time(2, 7), 5), PRODUCT.advance(Time(6, 7), 5)
    (Time(4, 7), Time(6, 7))
    """

    def advance(self, time: TimeT, since: int) -> TimeT:
        """``time`` with epoch ``since - 1`` if its epoch is earlier, so that it stays before ``since``."""
        return tuple.__new__(type(time), (max(time[0], since - 1), *time[1:]))


#: The default kind of time: epochs and loop counters in the product order.
PRODUCT: Final = CompactingNestedTimes(Time, Summary)
