"""`Latencies`: how long the batches of a run took, as counts by class of duration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: How many classes there are between a duration and its double; the least duration in milliseconds.
_CLASSES, _LEAST = 8, 0.1
#: The quantiles that are shown, by name.
QUANTILES = {"median": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Latencies:
    """Counts of durations, by class.

    Law: a quantile is at least the exact one, and at most 2^(1/8) times as much (9 %).

    Example:
        >>> latencies = Latencies()
        >>> for milliseconds in range(1, 101):
        ...     latencies = latencies.plus(milliseconds)
        >>> latencies.count, latencies.quantile(0.5)
        (100, 51.2)
        >>> print(latencies)
        100 batches: median 51.2 ms, p99 102.4 ms, p99.9 102.4 ms
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    def plus(self, milliseconds: float) -> Latencies:
        """The counts with another duration."""
        name = str(max(0, math.ceil(_CLASSES * math.log2(max(milliseconds, _LEAST) / _LEAST) - 1e-9)))
        return Latencies({**self.counts, name: self.counts.get(name, 0) + 1})

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts.values())

    def quantile(self, part: float) -> float | None:
        """The milliseconds within which this part of the batches was done; None before the first batch."""
        wanted = part * self.count
        for number in sorted(map(int, self.counts)):
            wanted -= self.counts[str(number)]
            if wanted <= 0:
                return round(_LEAST * 2 ** (number / _CLASSES), 2)
        return None

    def encode(self) -> dict[str, Any]:
        """`batches`, and the milliseconds of each quantile, for programs."""
        return {"batches": self.count, **{name: self.quantile(part) for name, part in QUANTILES.items()}}

    def __str__(self) -> str:
        parts = [f"{name} {self.quantile(part)} ms" for name, part in QUANTILES.items()]
        batches = f"{self.count:,} batch{'es' * (self.count != 1)}"
        return f"{batches}: {', '.join(parts)}" if self.counts else "no batches"
