"""Epochs of a column: which rows of a batch are in time, and which are late, have no epoch, or jump too far.

A source's tasks each see a part of a batch's rows. All of them send every worker the spans of epochs that
they saw, so that all workers come to one verdict, whatever the number of tasks and the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError, Where
from timely_spark.graph import caller, check_columns
from timely_spark.times import EPOCHS, is_whole

NO_EPOCH = -1
"""In place of an epoch that is null, negative or too large: late for ever."""

Epochs = npt.NDArray[np.int64]
Span = list[int]
"""(least epoch, greatest epoch, rows) of epochs of which none is further than a jump from the next."""


def check_epoch_column(name: str, schema: pa.Schema, column: Any, max_jump: Any) -> None:
    """Refuse a column that cannot give a source its epochs, and a jump that is none.

    Raises:
        GraphError: the column has the name of a kind of epochs, or the jump is no number of epochs.
        SchemaError: there is no such column, or it does not hold whole numbers.
    """
    at = f"source {name!r} ({caller()})"
    if column in ("clock", "manual"):
        msg = (
            f"{at}: epoch={column!r} is no column's name here, but a kind of epochs. "
            "Hint: give a column of another name; rename it in the DataFrame if need be."
        )
        raise GraphError(msg)
    if not is_whole(max_jump, least=1):
        msg = f"{at}: max_jump={max_jump!r}. Hint: give a number of epochs, whole and from 1 on, below 2**62."
        raise GraphError(msg)
    check_columns("source", schema, [column])
    if not pa.types.is_integer(schema.field(column).type):
        msg = f"{at}: epoch column {column!r} is {schema.field(column).type}. Hint: use whole numbers."
        raise SchemaError(msg)


def kind_of(epochs: str) -> str:
    """The kind of an input's epochs: "clock", "manual" or "column"."""
    return "column" if by_column(epochs) else epochs


def by_column(epochs: str) -> bool:
    """Whether an input's epochs, as `Source` has them, are those of a column."""
    return epochs not in {"clock", "manual"}


def epochs_of(column: pa.ChunkedArray) -> Epochs:
    """The epochs of a column of whole numbers."""
    filled = pc.fill_null(column, pa.scalar(0, column.type)).to_numpy()
    there = pc.is_valid(column).to_numpy()
    epochs: Epochs = np.where(there & (filled >= 0) & (filled < EPOCHS), filled, NO_EPOCH).astype(np.int64)
    return epochs


def spans(counts: Iterable[tuple[int, int]], jump: int) -> list[Span]:
    """The spans of epochs, given in ascending order with their numbers of rows.

    >>> spans([(-1, 1), (3, 5), (4, 1), (90, 2)], jump=10)
    [[3, 4, 6], [90, 90, 2]]
    """
    return joined(([epoch, epoch, rows] for epoch, rows in counts if epoch != NO_EPOCH), jump)


def joined(parts: Iterable[Span], jump: int) -> list[Span]:
    """Spans of several parts as those of all their epochs together."""
    made: list[Span] = []
    for low, high, rows in sorted(parts):
        if made and low - made[-1][1] <= jump:
            made[-1][1] = max(made[-1][1], high)
            made[-1][2] += rows
        else:
            made.append([low, high, rows])
    return made


@dataclass(frozen=True, slots=True)
class InTime:
    """The epochs of a batch that are in time, from `low` to `high`, and the epoch at which the others enter.

    `late`: where the late ones go; None: nowhere, they are only counted.
    """

    low: int
    high: int
    late: int | None

    @classmethod
    def of(
        cls, parts: Iterable[Span], stands: int | None, *, seen: bool, jump: int, after: int | None
    ) -> InTime:
        """The verdict on a batch.

        Args:
            parts: the spans that the source's tasks saw.
            stands: where the input stands; None: closed.
            seen: whether it has had an epoch before. If not, the batch's epochs are counted from where most
                of its rows lie, so that a single wrong one is not taken for the first.
            jump: how far an epoch may lie above the highest one before.
            after: at which epoch rows enter that come when the source is closed.
        """
        if stands is None:
            return cls(0, NO_EPOCH, after)
        found = [span for span in joined(parts, jump) if span[1] >= stands]
        if not seen:
            if not found:
                return cls(stands, NO_EPOCH, stands)
            _, high, _ = max(found, key=lambda span: (span[2], -span[0]))
            return cls(stands, high, max(stands, found[0][0]))
        # between two spans there is more than a jump, so none is reached by way of another
        high = max([stands, *(high for low, high, _ in found if low - stands <= jump)])
        return cls(stands, high, stands)

    def __contains__(self, epoch: int) -> bool:
        return self.low <= epoch <= self.high


@dataclass(slots=True)
class Refused:
    """Rows of a batch that no patience would have made in time, of one source."""

    #: rows whose epoch is null, negative or too large
    without: int = 0
    #: rows that jump too far, the least epoch of them, and the highest epoch that was in time
    far: int = 0
    least: int = EPOCHS
    above: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.without + self.far

    @classmethod
    def among(cls, counts: Iterable[tuple[int, int]], verdict: InTime) -> Refused:
        """Those among a task's rows, by epoch."""
        made = cls(above=verdict.high)
        for epoch, rows in counts:
            if epoch == NO_EPOCH:
                made.without += rows
            elif epoch > verdict.high >= verdict.low:
                made.far += rows
                made.least = min(made.least, epoch)
        return made

    def add(self, other: Mapping[str, int]) -> None:
        """And those that another worker tells of."""
        self.without += other["without"]
        self.far += other["far"]
        self.least = min(self.least, other["least"])
        self.above = max(self.above, other["above"])

    def encode(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"without": self.without, "far": self.far, "least": self.least, "above": self.above}

    def text(self, source: str, where: Where, jump: int) -> str:
        """What to tell the user."""
        what = []
        if self.far:
            what.append(
                f"{self.far} rows with epochs from {self.least} on, which is more than max_jump={jump} above "
                f"{self.above}, the highest epoch before"
            )
        if self.without:
            what.append(f"{self.without} rows whose epoch is null, negative, or 2**62 or more")
        return (
            f"source {source!r} ({where}) brought {' and '.join(what)}. They are counted as late, and are in "
            "the stream `late`. Hint: mend the column, or raise max_jump in flow.source(...)."
        )
