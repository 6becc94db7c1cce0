"""Negative multiplicities: records that were removed more often than inserted, with one warning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timely_spark.errors import TimelyError, with_hint
from timely_spark.graph import word

_HINT = (
    "look for deletes that are sent twice, updates whose old record is not the one that was inserted, late "
    "inserts, and a wrong column of differences (diff=)"
)


@dataclass(frozen=True, slots=True, order=True)
class Negatives:
    """Records whose multiplicity became negative in one epoch of a step.

    >>> print(Negatives("count", 2, "{'k': 1} is there -1 times", 3).text("job.py:3").partition(",")[0])
    step 'count' (job.py:3): more was removed than inserted: {'k': 1} is there -1 times after epoch 2
    Hint: look for deletes that are sent twice
    """

    step: str
    epoch: int
    #: one of the records, and its multiplicity
    example: str
    records: int

    def text(self, where: Any) -> str:
        """The warning; `where`: the user's line that made the step."""
        return with_hint(f"step {self.step!r} ({where}): {self._cause()}", f"{_HINT}; {_OTHERWISE['warn']}")

    def error(self) -> TimelyError:
        """The error, to which the caller adds the step."""
        return TimelyError(self._cause(), hint=f"{_HINT}; {_OTHERWISE['raise']}")

    def _cause(self) -> str:
        return f"more was removed than inserted: {self.example} after epoch {self.epoch}"


_OTHERWISE = {
    "warn": 'on_negative="raise" ends a flow there',
    "raise": 'on_negative="warn" counts such records and goes on',
}


def check_on_negative(on_negative: Any) -> None:
    """Check the argument `on_negative`."""
    word("on_negative", on_negative, _OTHERWISE, hint=f"{_OTHERWISE['raise']}; {_OTHERWISE['warn']}.")
