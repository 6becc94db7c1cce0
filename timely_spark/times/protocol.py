"""What a kind of time owes to the rest of the library: the contracts, with their laws.

A flow has one kind of time, which only its user knows by type; so times are Any in the contracts that carry
them along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing import Self

__all__ = ("CompactingTimes", "Ordered", "PathSummary", "Times", "Timestamp")


class Ordered(Protocol):
    """Something partially ordered: ``less_equal`` is reflexive, antisymmetric and transitive.

    >>> from timely_spark.times import PRODUCT, Time
    >>> ordered: list[Ordered] = [Time(1), PRODUCT.identity(0)]
    """

    def less_equal(self, other: Self, /) -> bool:
        """Whether ``self`` comes before ``other`` or equals it; False for incomparable ones."""
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
        """The epoch of input it belongs to; monotone: ``s <= t`` implies ``s.epoch <= t.epoch``."""
        ...

    def join(self, other: Self, /) -> Self:
        """The least upper bound: the earliest time that is not before either of the two."""
        ...

    def order_key(self) -> tuple[Any, ...]:
        """A key for sorting, with exactly one entry per coordinate (1 + the number of loop counters).

        An entry is whatever Python orders: a number, a text, a tuple. Nothing is read from it but the order.
        Law: ``s < t`` implies ``s.order_key() < t.order_key()`` as tuples; different times have different
        keys.
        """
        ...

    def encode(self) -> list[Any]:
        """The time as a list of JSON values; ``Times.decode`` is its inverse."""
        ...


class PathSummary(Ordered, Protocol):
    """What a path through the graph does to the times of the messages that follow it (Naiad section 2.3).

    Laws: ``results_in`` is monotone: ``s <= t`` implies ``results_in(s) <= results_in(t)``, None counting as
    later than all. No path leads to an earlier epoch. ``a.followed_by(b).results_in(t) ==
    b.results_in(a.results_in(t))``. ``a.less_equal(b)`` iff ``a.results_in(t) <= b.results_in(t)`` for every
    ``t``.

    >>> from timely_spark.times import PRODUCT, Time
    >>> path: PathSummary = PRODUCT.feedback(1)
    >>> path.results_in(Time(3, 0))
    Time(3, 1)
    """

    def results_in(self, time: Any, /) -> Any | None:
        """The earliest time at which a message sent at ``time`` can arrive; None: it cannot arrive."""
        ...

    def followed_by(self, other: Self, /) -> Self | None:
        """The summary of this path and then the other; None: no time passes both."""
        ...

    @property
    def advances(self) -> Sequence[bool]:
        """One entry for each coordinate of the time that survives the path: whether the path increases it.

        Law: with ``k = t.order_key()`` and ``l = results_in(t).order_key()``, for ``i < len(advances)``:
        ``l[i] >= k[i]``, and ``l[i] > k[i]`` where ``advances[i]``. Cycles are checked by it, and the tracker
        orders its work by it.
        """
        ...


class Times(Protocol):
    """A kind of time: its least times, and the summaries of the steps a graph is built of.

    ``depth`` is the number of loop counters on the step's source side. All times of a kind are of one class.

    To use times of your own, implement this and give it to ``Dataflow(times=...)``, which checks the laws as
    far as a few times show. Every operator on streams then is right for every order that keeps the laws, or
    raises `GraphError` when it is built: ``expire`` and ``expire=`` count epochs, an output with ``diff=``
    and a collection compare them, which takes the library's own kinds.

    >>> from timely_spark.times import PRODUCT
    >>> kind: Times = PRODUCT
    >>> kind.epoch(3)
    Time(3)
    """

    def epoch(self, n: int, /) -> Any:
        """The time of epoch ``n`` outside all loops, at which the records of an input enter.

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
        """The way into a loop (ingress): a new counter, at its least value."""
        ...

    def leave(self, depth: int) -> PathSummary:
        """The way out of a loop (egress): the innermost counter is dropped."""
        ...

    def feedback(self, depth: int, limit: int | None = None) -> PathSummary:
        """The way back in a loop: the innermost counter + 1, which is at most ``limit`` then."""
        ...

    def delay(self, depth: int, by_epochs: int) -> PathSummary:
        """The path that adds ``by_epochs`` to the epoch."""
        ...

    def coarse(self, time: Any, counters: frozenset[int]) -> Any:
        """The same time with these loop counters (0 = outermost) at their least.

        Laws: never after ``time``; monotone in it.
        """
        ...


@runtime_checkable
class CompactingTimes(Times, Protocol):
    """A kind of time that can tell which times have become one: so state does not grow with every epoch.

    Optional. With times that have no `advance`, operators keep the time of each record that they keep.

    >>> from timely_spark.times import LEXICOGRAPHIC, PRODUCT
    >>> isinstance(PRODUCT, CompactingTimes), isinstance(LEXICOGRAPHIC, CompactingTimes)
    (True, True)
    """

    def advance(self, time: Any, since: int, /) -> Any:
        """A time that stands for ``time``, now that all that is still to come is of epoch ``since`` or later.

        Laws: for every ``u`` with ``u.epoch >= since``, ``advance(t, since) <= u`` iff ``t <= u``, and
        ``advance(t, since).join(u) == t.join(u)``. Times that advance to the same one are kept as one.
        """
        ...
