"""The protocols of times, path summaries and kinds of time, with their laws.

A flow has one kind of time, perhaps of a user's class, so times have type Any in these protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing import Self


class Ordered(Protocol):
    """Something partially ordered: ``less_equal`` is reflexive, antisymmetric and transitive.

    >>> from timely_spark.times import PRODUCT, Time
    >>> ordered: list[Ordered] = [Time(1), PRODUCT.identity(0)]
    """

    def less_equal(self, other: Self, /) -> bool:
        """Whether ``self`` is before or equal to ``other``; False for incomparable elements."""
        ...


class Timestamp(Ordered, Protocol):
    """One logical time: immutable, hashable, picklable, partially ordered (Naiad section 2.1).

    >>> from timely_spark.times import Time
    >>> time: Timestamp = Time(3, 0)
    >>> time.epoch
    3
    """

    def __hash__(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The epoch of the time; monotone: ``s <= t`` implies ``s.epoch <= t.epoch``."""
        ...

    def join(self, other: Self, /) -> Self:
        """The least upper bound: the least time that is ``>=`` both."""
        ...

    def order_key(self) -> tuple[Any, ...]:
        """A key for sorting, with exactly one entry per coordinate (1 + the number of loop counters).

        An entry is any value that Python orders, for example a number or a text.
        Law: ``s < t`` implies ``s.order_key() < t.order_key()`` as tuples; different times have different
        keys.
        """
        ...

    def encode(self) -> list[Any]:
        """The time as a list of JSON values; ``Times.decode`` is its inverse."""
        ...


class InnerTime(Ordered, Protocol):
    """A type whose values are the inner times of a scope: ``Scope.inner(time=...)``.

    Values are immutable, hashable and picklable, and partially ordered. With the time around the scope a
    value makes a time of the scope, in the product order: timely's ``Refines``.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Urgency:
    ...     level: int = 9
    ...
    ...     @classmethod
    ...     def least(cls):
    ...         return cls()
    ...
    ...     @classmethod
    ...     def decode(cls, data):
    ...         return cls(*data)
    ...
    ...     def encode(self):
    ...         return [self.level]
    ...
    ...     def less_equal(self, other):  # the greater number comes first
    ...         return self.level >= other.level
    ...
    ...     def join(self, other):
    ...         return Urgency(min(self.level, other.level))
    ...
    ...     def order_key(self):
    ...         return -self.level
    >>> urgency: InnerTime = Urgency(5)
    >>> urgency.less_equal(Urgency(1))
    True
    """

    def __hash__(self) -> int: ...

    @classmethod
    def least(cls) -> Self:
        """The value before all others, at which records enter without a time of their own."""
        ...

    @classmethod
    def decode(cls, data: Sequence[Any], /) -> Self:
        """The value whose ``encode()`` is ``data``: the values of the columns by which a record enters."""
        ...

    def encode(self) -> list[Any]:
        """The value as a list of numbers, texts and booleans; ``decode`` is the inverse."""
        ...

    def join(self, other: Self, /) -> Self:
        """The least upper bound."""
        ...

    def order_key(self) -> Any:
        """One value that Python orders, for example a number or a tuple; another one for each value.

        Law: ``s < t`` implies ``s.order_key() < t.order_key()``.
        """
        ...


class PathSummary(Ordered, Protocol):
    """The effect of a path through the graph on the times of messages (Naiad section 2.3).

    Laws: ``results_in`` is monotone: ``s <= t`` implies ``results_in(s) <= results_in(t)``, with None later
    than all times. No path leads to an earlier epoch. ``a.followed_by(b).results_in(t) ==
    b.results_in(a.results_in(t))``. ``a.less_equal(b)`` iff ``a.results_in(t) <= b.results_in(t)`` for every
    ``t``.

    >>> from timely_spark.times import PRODUCT, Time
    >>> path: PathSummary = PRODUCT.feedback(1)
    >>> path.results_in(Time(3, 0))
    Time(3, 1)
    """

    def results_in(self, time: Any, /) -> Any | None:
        """The earliest time at which a message sent at ``time`` can arrive; None if it cannot arrive."""
        ...

    def followed_by(self, other: Self, /) -> Self | None:
        """The summary of this path followed by the other; None if no time gets through both."""
        ...

    @property
    def advances(self) -> Sequence[bool]:
        """For each coordinate that the path keeps, whether the path increases the coordinate.

        Law: with ``k = t.order_key()`` and ``l = results_in(t).order_key()``, for ``i < len(advances)``:
        ``l[i] >= k[i]``, and ``l[i] > k[i]`` where ``advances[i]``. The check of cycles and the order of
        propagation use this law.
        """
        ...


class Times(Protocol):
    """A kind of time: the times of epochs, and the path summaries of edges.

    ``depth`` is the number of loop counters at the edge's source. All times of a kind are of one class. A
    restart compares path summaries by their ``repr()``, such as a dataclass has.

    For user-defined times, implement this protocol and pass it to ``Dataflow(times=...)``, which checks the
    laws on some samples. All operators on streams work with every order that keeps the laws, except those
    that raise `GraphError` when they are built: ``expire``, ``expire=``, outputs with ``diff=`` and
    collections need the library's own kinds.

    >>> from timely_spark.times import PRODUCT
    >>> kind: Times = PRODUCT
    >>> kind.epoch(3)
    Time(3)
    """

    def epoch(self, n: int, /) -> Any:
        """The time of epoch ``n`` outside of loops, at which the records of an input enter.

        Laws: ``epoch(n).epoch == n``; ``epoch(m) <= epoch(n)`` iff ``m <= n``.
        """
        ...

    def decode(self, data: Sequence[int], /) -> Any:
        """The time whose ``encode()`` is ``data``."""
        ...

    def identity(self, depth: int) -> PathSummary:
        """The path that changes nothing: ``results_in(t) == t``."""
        ...

    def enter(self, depth: int) -> PathSummary:
        """The ingress of a loop: a new counter, at its least value."""
        ...

    def leave(self, depth: int) -> PathSummary:
        """The egress of a loop: the innermost counter is dropped."""
        ...

    def feedback(self, depth: int, limit: int | None = None) -> PathSummary:
        """The feedback of a loop: the innermost counter + 1, if the result is at most ``limit``."""
        ...

    def delay(self, depth: int, by_epochs: int) -> PathSummary:
        """The path that adds ``by_epochs`` to the epoch."""
        ...

    def coarse(self, time: Any, counters: frozenset[int]) -> Any:
        """``time`` with these loop counters (0 = outermost) at their least values.

        Laws: never after ``time``; monotone in ``time``.
        """
        ...


@runtime_checkable
class CompactingTimes(Times, Protocol):
    """A kind of time with logical compaction (differential's `advance_by`), so that state stays bounded.

    Optional. Without `advance`, operators keep the original time of each record in their state.

    >>> from timely_spark.times import LEXICOGRAPHIC, PRODUCT
    >>> isinstance(PRODUCT, CompactingTimes), isinstance(LEXICOGRAPHIC, CompactingTimes)
    (True, True)
    """

    def advance(self, time: Any, since: int, /) -> Any:
        """A representative of ``time`` if all later times have epoch ``since`` or a later one.

        Laws: for every ``u`` with ``u.epoch >= since``, ``advance(t, since) <= u`` iff ``t <= u``, and
        ``advance(t, since).join(u) == t.join(u)``. Times with one representative are merged in state.
        """
        ...
