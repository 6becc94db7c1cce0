"""Lawful kinds of time that are not the library's: an outer coordinate of many orders, and loop counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from timely_spark.times import PRODUCT, Descending, Summary, Time


class Bitemporal(NamedTuple):
    """What was known when, of when: two coordinates, partially ordered. Its key is one number."""

    system: int
    valid: int = 0

    @property
    def epoch(self) -> int:
        return self.system

    def before(self, other: Bitemporal) -> bool:
        return self.system <= other.system and self.valid <= other.valid

    def joined(self, other: Bitemporal) -> Bitemporal:
        return type(self)(*map(max, self, other))

    def key(self) -> Any:
        return 1000 * (self.system + self.valid) + self.valid

    def delayed(self, by: int) -> Bitemporal:
        return self._replace(system=self.system + by)

    def later(self, by: int) -> Bitemporal:
        return self._replace(system=self.system + by // 2, valid=self.valid + 3 - by)


class Tupled(Bitemporal):
    """The same with a tuple as its key, and texts for the loop counters."""

    def key(self) -> Any:
        return (self.valid, self.system)


class Diagonal(Bitemporal):
    """The same, the epoch being that of both coordinates together."""

    @property
    def epoch(self) -> int:
        return self.system + self.valid


class Urgent(NamedTuple):
    """An epoch, and in it the more urgent before the less urgent: the larger number comes first."""

    epoch: int
    urgency: int = 9

    def before(self, other: Urgent) -> bool:
        return self.epoch <= other.epoch and self.urgency >= other.urgency

    def joined(self, other: Urgent) -> Urgent:
        return Urgent(max(self.epoch, other.epoch), min(self.urgency, other.urgency))

    def key(self) -> Any:
        return (-self.urgency, self.epoch)

    def delayed(self, by: int) -> Urgent:
        return self._replace(epoch=self.epoch + by)

    def later(self, by: int) -> Urgent:
        return self._replace(urgency=self.urgency - by)


class Phased(NamedTuple):
    """An epoch and a phase in it, in lexicographic order: any two times compare."""

    epoch: int
    phase: int = 0

    def before(self, other: Phased) -> bool:
        return self <= other

    def joined(self, other: Phased) -> Phased:
        return max(self, other)

    def key(self) -> Any:
        return tuple(self)

    def delayed(self, by: int) -> Phased:
        return self._replace(epoch=self.epoch + by)

    def later(self, by: int) -> Phased:
        return self._replace(phase=self.phase + by)


class Versioned(NamedTuple):
    """An epoch and the name of a version, both of which grow."""

    epoch: int
    version: str = ""

    def before(self, other: Versioned) -> bool:
        return self.epoch <= other.epoch and self.version <= other.version

    def joined(self, other: Versioned) -> Versioned:
        return Versioned(*map(max, self, other))  # type: ignore[arg-type, call-overload]

    def key(self) -> Any:
        return f"{self.version}|{self.epoch:09}"

    def delayed(self, by: int) -> Versioned:
        return self._replace(epoch=self.epoch + by)

    def later(self, by: int) -> Versioned:
        return self._replace(version=max(self.version, "abca"[by]))


@dataclass(frozen=True)
class Moment:
    """One such coordinate, and loop counters in the product order."""

    outer: Any
    counters: tuple[int, ...] = ()

    @property
    def epoch(self) -> int:
        return self.outer.epoch

    def less_equal(self, other: Moment) -> bool:
        mine, its = Time(0, *self.counters), Time(0, *other.counters)
        return self.outer.before(other.outer) and mine.less_equal(its)

    def join(self, other: Moment) -> Moment:
        counters = tuple(map(max, self.counters, other.counters))
        return replace(self, outer=self.outer.joined(other.outer), counters=counters)

    def order_key(self) -> tuple[Any, ...]:
        texts = isinstance(self.outer, Versioned | Tupled)
        return (self.outer.key(), *(f"{counter:09}" if texts else counter for counter in self.counters))

    def encode(self) -> list[Any]:
        return [list(self.outer), *self.counters]

    def later(self, by: int) -> Moment:
        """A later time, for what sends to one; `by` is from 0 to 3."""
        return replace(self, outer=self.outer.later(by))


@dataclass(frozen=True)
class Way:
    """A path: so many epochs later, and what it does to the counters."""

    counters: Summary

    def results_in(self, time: Moment) -> Moment | None:
        onward = self.counters.results_in(Time(0, *time.counters))
        if onward is None:
            return None
        outer = time.outer.delayed(onward.epoch) if onward.epoch else time.outer
        return replace(time, outer=outer, counters=onward.counters)

    def followed_by(self, other: Way) -> Way | None:
        both = self.counters.followed_by(other.counters)
        return None if both is None else Way(both)

    def less_equal(self, other: Way) -> bool:
        return self.counters.less_equal(other.counters)

    @property
    def advances(self) -> tuple[bool, ...]:
        return self.counters.advances


@dataclass(frozen=True)
class Moments:
    """A kind of time."""

    outer: Any
    moment: type[Moment] = Moment

    def epoch(self, n: int) -> Moment:
        return self.moment(self.outer(n))

    def decode(self, data: Sequence[Any]) -> Moment:
        outer, *counters = data
        return self.moment(self.outer(*outer), tuple(counters))

    def identity(self, depth: int) -> Way:
        return Way(PRODUCT.identity(depth))

    def enter(self, depth: int) -> Way:
        return Way(PRODUCT.enter(depth))

    def leave(self, depth: int) -> Way:
        return Way(PRODUCT.leave(depth))

    def feedback(self, depth: int, limit: int | None = None) -> Way:
        return Way(PRODUCT.feedback(depth, limit))

    def delay(self, depth: int, by_epochs: int) -> Way:
        return Way(PRODUCT.delay(depth, by_epochs))

    def coarse(self, time: Moment, counters: frozenset[int]) -> Moment:
        return replace(time, counters=PRODUCT.coarse(Time(0, *time.counters), counters).counters)


class CompactMoments(Moments):
    """The same for an outer coordinate whose first part is the epoch, independent of the second."""

    def advance(self, time: Moment, since: int) -> Moment:
        return replace(time, outer=time.outer._replace(system=max(time.outer.system, since)))


KINDS = {
    "bitemporal": Moments(Bitemporal),
    "compact": CompactMoments(Bitemporal),
    "tuple keys": Moments(Tupled),
    "diagonal": Moments(Diagonal),
    "urgent first": Moments(Urgent),
    "lexicographic": Moments(Phased),
    "texts": Moments(Versioned),
}


@dataclass(frozen=True, order=True)
class Version:
    """An inner time of two numbers, partially ordered."""

    major: int
    minor: int

    @classmethod
    def least(cls) -> Version:
        return cls(0, 0)

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Version:
        return cls(*data)

    def encode(self) -> list[int]:
        return [self.major, self.minor]

    def less_equal(self, other: Version) -> bool:
        return self.major <= other.major and self.minor <= other.minor

    def join(self, other: Version) -> Version:
        return Version(max(self.major, other.major), max(self.minor, other.minor))

    def order_key(self) -> tuple[int, int]:
        return self.minor, self.major


@dataclass(frozen=True)
class Label:
    """An inner time that is a text."""

    text: str = ""

    @classmethod
    def least(cls) -> Label:
        return cls()

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Label:
        return cls(*data)

    def encode(self) -> list[str]:
        return [self.text]

    def less_equal(self, other: Label) -> bool:
        return self.text <= other.text

    def join(self, other: Label) -> Label:
        return max(self, other, key=Label.order_key)

    def order_key(self) -> str:
        return self.text


INNER: dict[str, type[Any]] = {
    "numbers": int,
    "greater first": Descending,
    "partial": Version,
    "texts": Label,
}
