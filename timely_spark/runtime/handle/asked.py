"""`Asked`: what a page of the console shows, as its address says; a `TimeSpan` is a part of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

#: The year 2248: dates end somewhere.
_END = float(1 << 33)

Timed = TypeVar("Timed", bound=tuple[Any, ...])


class TimeSpan(NamedTuple):
    """A span of time, in seconds since 1970.

    >>> span = TimeSpan.read({"since": "10", "until": "30"})
    >>> span, span.within([(5, "a"), (20, "b")])
    (TimeSpan(since=10.0, until=30.0), [(20, 'b')])
    >>> TimeSpan.read({"since": "10", "until": "nan"}), TimeSpan.read({"since": "10"})
    (None, None)
    >>> {name: tuple(other) for name, other in span.others().items()}
    {'in': (20.0, 30.0), 'out': (-10.0, 30.0), 'earlier': (0.0, 20.0), 'later': (20.0, 40.0)}
    """

    since: float
    until: float

    @classmethod
    def read(cls, values: Mapping[str, str]) -> TimeSpan | None:
        """The span that an address has; None if it has none."""
        with suppress(KeyError, ValueError):
            span = cls(float(values["since"]), float(values["until"]))
            if 0 <= span.since < span.until < _END:
                return span
        return None

    def holds(self, began: float, ended: float) -> bool:
        """Whether something that took a time was partly in the span."""
        return ended >= self.since and began <= self.until

    def within(self, values: Iterable[Timed]) -> list[Timed]:
        """Those of the values, which begin with their moment, that are in the span."""
        return [value for value in values if self.since <= value[0] <= self.until]

    def others(self) -> dict[str, TimeSpan]:
        """The spans that keys lead to: half as long, twice as long, and half a span earlier or later."""
        since, until = self
        half = (until - since) / 2
        return {
            "in": TimeSpan(since + half, until),
            "out": TimeSpan(since - 2 * half, until),
            "earlier": TimeSpan(since - half, until - half),
            "later": TimeSpan(since + half, until + half),
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page shows: flow, boxes, step, row and span of time."""

    flow: int = 0
    #: the boxes that are opened, and the step that was clicked
    opened: tuple[str, ...] = ()
    step: str = ""
    token: str = ""
    #: the row that is asked about, of the step that was clicked: some of its columns, as JSON
    row: str = ""
    #: the span of time that was chosen; None means all times
    span: TimeSpan | None = None

    @property
    def shown(self) -> TimeSpan:
        """The span of time that is shown: the one that was chosen, or all times."""
        return self.span or TimeSpan(-math.inf, math.inf)

    def path(self, **other: Any) -> str:
        """The address of a page that shows something else, without the question about a row."""
        asked = {"flow": self.flow, "open": self.opened, "step": self.step, "token": self.token}
        span = other.pop("span", self.span) or ()
        asked |= other | {name: f"{at:.3f}" for name, at in zip(TimeSpan._fields, span, strict=False)}
        return "/?" + urlencode(
            {name: value for name, value in asked.items() if value not in {"", ()}}, doseq=True
        )
