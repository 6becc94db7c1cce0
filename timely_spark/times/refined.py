"""Times of scopes with an inner time of their own: epochs and loop counters, and values of a user's type.

The inner coordinate is one more coordinate of the product order, as a loop counter is. A path either keeps it
or begins it at its least value, so the algebra of path summaries is that of numbers, where 0 stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from timely_spark.errors import InvalidTime
from timely_spark.times.product import MAX, PRODUCT, Summary, Time
from timely_spark.times.timestamp import InnerTime, Times

if TYPE_CHECKING:
    from typing import Self

Inner: TypeAlias = type[InnerTime] | None
"""The type of a coordinate; None means a number."""


@dataclass(frozen=True, slots=True)
class Descending:
    """An integer as an inner time, greater numbers first: what is more urgent is earlier.

    >>> Descending(9).less_equal(Descending(5)), Descending(9).join(Descending(5))
    (True, Descending(5))
    """

    number: int = MAX

    @classmethod
    def least(cls) -> Descending:
        """The greatest number."""
        return cls()

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Descending:
        """The value of a number."""
        (number,) = data
        return cls(index(number))

    def encode(self) -> list[int]:
        """The number."""
        return [self.number]

    def less_equal(self, other: Descending) -> bool:
        """Whether the number is at least the other."""
        return self.number >= other.number

    def join(self, other: Descending) -> Descending:
        """The less of both numbers."""
        return Descending(min(self.number, other.number))

    def order_key(self) -> int:
        """The number, negated."""
        return -self.number

    def __repr__(self) -> str:
        return f"Descending({self.number})"


class RefinedTime(Time):
    """A time in a scope with an inner time: each coordinate is a number, or a value of the scope's type.

    The order is the product order of the coordinates.

    >>> urgent, normal = RefinedTime(3, Descending(9)), RefinedTime(3, Descending(5))
    >>> urgent <= normal, normal <= urgent, normal.epoch, normal.counters
    (True, False, 3, (Descending(5),))
    """

    __slots__ = ()

    def __new__(cls, epoch: int, *coordinates: Any) -> Self:
        return tuple.__new__(cls, (epoch, *coordinates))

    def less_equal(self, other: Self) -> bool:
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return all(map(_less_equal, self, other))

    def join(self, other: Self) -> Self:
        if len(self) != len(other):
            raise InvalidTime.depths_differ(self, other)
        return tuple.__new__(type(self), map(_join, self, other))

    def meet(self, other: Self) -> Self:
        """Not defined: an inner time need not have greatest lower bounds."""
        raise NotImplementedError

    def order_key(self) -> tuple[Any, ...]:
        values: Sequence[Any] = self
        return tuple(value if type(value) is int else value.order_key() for value in values)

    def encode(self) -> list[Any]:
        """The coordinates, epoch first; a value with the name of its type."""
        values: Sequence[Any] = self
        return [value if type(value) is int else {type(value).__name__: value.encode()} for value in values]


def _less_equal(a: Any, b: Any) -> bool:
    return bool(a <= b if type(a) is int else a.less_equal(b))


def _join(a: Any, b: Any) -> Any:
    return max(a, b) if type(a) is int else a.join(b)


@dataclass(frozen=True, slots=True)
class RefinedSummary(Summary):
    """A path summary from or to a scope with an inner time: to `Summary` an inner time is the number 0."""

    #: the types of the coordinates at the end of the path
    inner: tuple[Inner, ...] = ()

    def results_in(self, time: Any) -> Any | None:
        if self._same:
            return time
        numbers = tuple.__new__(Time, (value if type(value) is int else 0 for value in time))
        if (moved := Summary.results_in(self, numbers)) is None or not any(self.inner):
            return moved
        common = len(self.increments)
        values: Iterator[Any] = (
            number if inner is None else time[i] if i < common else inner.least()
            for i, (number, inner) in enumerate(zip(moved, self.inner, strict=True))
        )
        return RefinedTime(*values)

    def followed_by(self, other: Self) -> Self | None:
        """The summary of this path followed by the other, which may be plain; None if no time passes both."""
        following: Any = other
        if not isinstance(following, RefinedSummary):
            ends = (None,) * (len(other.increments) + len(other.appended))
            following = RefinedSummary(other.limits, other.increments, other.appended, ends)
        return Summary.followed_by(self, following)

    def with_parts(
        self, limits: tuple[int, ...], increments: tuple[int, ...], appended: tuple[int, ...]
    ) -> Self:
        """A path with another beginning that ends as this one."""
        return replace(self, limits=limits, increments=increments, appended=appended)


@dataclass(frozen=True, slots=True)
class RefinedTimes:
    """The kind of time of a scope with an inner time, or around which there is one.

    >>> kind = RefinedTimes((None, Descending))
    >>> kind.identity(1).results_in(kind.decode([3, {"Descending": [7]}]))
    RefinedTime(3, Descending(7))
    >>> kind.enter(0).followed_by(kind.leave(1)).results_in(Time(3))
    Time(3)
    """

    #: the types of the coordinates, the epoch's first; further ones are loop counters
    inner: tuple[Inner, ...]
    #: further types that `decode` knows: those of a flow's other scopes
    others: tuple[type[InnerTime], ...] = ()

    def epoch(self, n: int) -> Time:
        """The time of epoch ``n`` outside of all scopes."""
        return Time(n)

    def decode(self, data: Sequence[Any]) -> Time:
        """The time whose ``encode()`` is ``data``."""
        if all(type(value) is int for value in data):
            return Time(*data)
        types = {kind.__name__: kind for kind in (*self.inner, *self.others) if kind is not None}
        values: Iterator[Any] = (_decoded(types, one) if isinstance(one, dict) else one for one in data)
        return RefinedTime(*values)

    def identity(self, depth: int) -> RefinedSummary:
        """The path that changes nothing."""
        return self._path(PRODUCT.identity(depth))

    def enter(self, depth: int) -> RefinedSummary:
        """The ingress of a scope: a new coordinate at its least value."""
        return self._path(PRODUCT.enter(depth))

    def leave(self, depth: int) -> RefinedSummary:
        """The egress of a scope: the last coordinate is dropped."""
        return self._path(PRODUCT.leave(depth))

    def feedback(self, depth: int, limit: int | None = None) -> RefinedSummary:
        """The feedback of a loop: the last coordinate, its counter, + 1, and never above ``limit``."""
        return self._path(PRODUCT.feedback(depth, limit))

    def delay(self, depth: int, by_epochs: int) -> RefinedSummary:
        """The path that adds ``by_epochs`` to the epoch."""
        return self._path(PRODUCT.delay(depth, by_epochs))

    def coarse(self, time: Time, counters: frozenset[int]) -> Time:
        """``time`` with these loop counters (0 = outermost) set to 0; an inner time stays as it is."""
        values = (0 if i - 1 in counters and type(value) is int else value for i, value in enumerate(time))
        return tuple.__new__(type(time), values)

    def advance(self, time: Time, since: int) -> Time:
        """``time`` with epoch ``since - 1`` if its epoch is earlier, so that it stays before ``since``."""
        return tuple.__new__(type(time), (max(time[0], since - 1), *time[1:]))

    def _path(self, path: Summary) -> RefinedSummary:
        n = len(path.increments) + len(path.appended)
        ends = (*self.inner, *((None,) * n))[:n]
        return RefinedSummary(path.limits, path.increments, path.appended, ends)


def _decoded(types: dict[str, type[InnerTime]], value: dict[str, Any]) -> InnerTime:
    ((name, data),) = value.items()
    return types[name].decode(data)


def refined(times: Times, depth: int, inner: type[Any]) -> Times:
    """The kind of time of a scope at nesting depth ``depth`` with times of the type ``inner``.

    Integers are a coordinate of the product order as it is.

    >>> refined(PRODUCT, 1, int) == PRODUCT
    True
    """
    if inner is int:
        return times
    outside: Any = times
    before = outside.inner if isinstance(outside, RefinedTimes) else (None,)
    return RefinedTimes((*before, *((None,) * (depth - len(before))), inner))


def broken_inner_law(inner: Any) -> str | None:
    """A law of `InnerTime` that a type breaks at its least value, in words; None if none is broken there.

    >>> broken_inner_law(str)
    "AttributeError: type object 'str' has no attribute 'least'"
    """
    try:
        least, again = inner.least(), inner.least()
        encoded = least.encode()
        equal = least == again and hash(least) == hash(again) and least.less_equal(again)
        laws = {
            f"least() is {least!r}, and must be a {inner.__name__}": type(least) is inner,
            f"{least!r}, made twice, must be equal, have one hash, and be before or equal to itself": equal,
            f"{least!r}.join(itself) is {least.join(again)!r}": least.join(again) == least,
            f"{least!r} is encoded as {encoded!r}, which must be a list that is decoded to it": isinstance(
                encoded, list
            )
            and inner.decode(json.loads(json.dumps(encoded))) == least,
            f"{least!r}.order_key() must be one value that Python orders": not (
                least.order_key() < again.order_key()
            ),
        }
        return next((law for law, holds in laws.items() if not holds), None)
    except Exception as error:  # noqa: BLE001 - any error of the user's class
        return f"{type(error).__name__}: {error}"


def time_text(time: Iterable[Any]) -> str:
    """A time as text, as `encode` gives it; a value of an inner time's type is a call of the type.

    >>> time_text([3, 0]), time_text([3, {"Descending": [9]}])
    ('(3, 0)', '(3, Descending(9))')
    """
    return f"({', '.join(map(_coordinate, time))})"


def _coordinate(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{kind}({', '.join(map(repr, parts))})" for kind, parts in value.items())
