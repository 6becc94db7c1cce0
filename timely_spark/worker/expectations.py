"""`Expectation`: how many records an expectation has checked, and how many failed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timely_spark.errors import with_hint


@dataclass(frozen=True, slots=True)
class Expectation:
    """The records that the step of an `expect` has checked; of a collection those that are in it now.

    Law: `+` is associative and commutative, and `Expectation()` is its unit.

    >>> print(Expectation(1204, 2, (3, "{'k': 1}")) + Expectation(96, 1, (2, "{'k': 7}")))
    3 of 1,300 records failed, first {'k': 7} in epoch 2

    Attributes:
        checked: the number of records.
        failed: how many of them did not meet the condition.
        first: the epoch of the first one that failed, and its text; None if none has.
    """

    checked: int = 0
    failed: int = 0
    first: tuple[int, str] | None = None

    def __add__(self, other: Expectation) -> Expectation:
        first = min((one.first for one in (self, other) if one.first is not None), default=None)
        return Expectation(self.checked + other.checked, self.failed + other.failed, first)

    def __str__(self) -> str:
        counts = f"{self.failed:,} of {self.checked:,} records failed"
        return counts if self.first is None else f"{counts}, first {self.first[1]} in epoch {self.first[0]}"

    @classmethod
    def by_step(cls, encoded: Mapping[str, Mapping[str, Any]]) -> dict[str, Expectation]:
        """The expectation of each step, as `dataclasses.asdict` wrote it, through JSON."""
        return {
            step: cls(counts["checked"], counts["failed"], counts["first"] and tuple(counts["first"]))
            for step, counts in encoded.items()
        }

    def warning(self, step: str, where: Any, condition: str) -> str:
        """The warning of the first records that failed; `where`: the user's line that made the step."""
        hint = (
            "look at what sends them; action='quarantine' gives them as a stream, and action='fail' ends a "
            "flow there"
        )
        return with_hint(f"step {step!r} ({where}) expects {condition}: {self}", hint)
