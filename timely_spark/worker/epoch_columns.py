"""Epoch columns: which rows of a batch are in time, and which are late, have no epoch, or jump too far.

Each task of a source sees a part of a batch's rows, and sends the spans of its epochs to every worker. So all
workers decide the same, whatever the number of tasks and the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError, Where, with_hint
from timely_spark.graph import caller, check_columns, integer
from timely_spark.times import EPOCHS

NO_EPOCH = -1
"""Stands for an epoch that is null, negative or too large; such rows are always late."""

Epochs = npt.NDArray[np.int64]
EpochSpan = list[int]
"""(least epoch, greatest epoch, rows) of epochs with gaps of at most one jump."""


def check_epoch_column(name: str, schema: pa.Schema, column: Any, max_jump: Any) -> int:
    """Check the column of a source's epochs, and `max_jump`, which is returned as an int."""
    at, where = f"source {name!r}", caller()
    if column in ("clock", "manual"):
        msg = f"{at}: epoch={column!r} is not a column's name here, but a kind of epochs"
        hint = "give a column of another name; rename it in the DataFrame if need be."
        raise GraphError(msg, where=where, hint=hint)
    jump = integer("max_jump", max_jump, step=at, error=GraphError, hint="give a number of epochs.")
    check_columns("source", schema, [column])
    if not pa.types.is_integer(schema.field(column).type):
        msg = f"{at}: epoch column {column!r} is {schema.field(column).type}"
        raise SchemaError(msg, where=where, hint="use integers.")
    return jump


def kind_of(epochs: str) -> str:
    """The kind of an input's epochs: "clock", "manual" or "column"."""
    return "column" if by_column(epochs) else epochs


def by_column(epochs: str) -> bool:
    """Whether `Stage.epochs` is the name of a column."""
    return epochs not in {"clock", "manual"}


def column_epochs(column: pa.ChunkedArray) -> Epochs:
    """The epochs in a column of integers, with `NO_EPOCH` for invalid ones."""
    filled = pc.fill_null(column, pa.scalar(0, column.type)).to_numpy()
    valid = pc.is_valid(column).to_numpy()
    fits = valid & (filled >= 0) & (filled < EPOCHS)
    epochs: Epochs = np.where(fits, filled, 0).astype(np.int64)  # unsigned numbers are never NO_EPOCH
    epochs[~fits] = NO_EPOCH
    return epochs


def spans(counts: Iterable[tuple[int, int]], jump: int) -> list[EpochSpan]:
    """The spans of ascending epochs with their numbers of rows.

    >>> spans([(-1, 1), (3, 5), (4, 1), (90, 2)], jump=10)
    [[3, 4, 6], [90, 90, 2]]
    """
    return joined(([epoch, epoch, rows] for epoch, rows in counts if epoch != NO_EPOCH), jump)


def joined(parts: Iterable[EpochSpan], jump: int) -> list[EpochSpan]:
    """The spans of several tasks, joined where they are at most one jump apart."""
    merged: list[EpochSpan] = []
    for low, high, rows in sorted(parts):
        if merged and low - merged[-1][1] <= jump:
            merged[-1][1] = max(merged[-1][1], high)
            merged[-1][2] += rows
        else:
            merged.append([low, high, rows])
    return merged


@dataclass(frozen=True, slots=True)
class InTime:
    """The epochs of a batch that are in time, from `low` to `high`.

    Late rows enter at epoch `late`; None means that late rows are only counted.
    """

    low: int
    high: int
    late: int | None

    @classmethod
    def of(
        cls, parts: Iterable[EpochSpan], frontier: int | None, *, seen: bool, jump: int, after: int | None
    ) -> InTime:
        """Decide which epochs of a batch are in time.

        Args:
            parts: the spans of the source's tasks.
            frontier: the input's epoch; None if the input is closed.
            seen: whether the input has had an epoch before. If not, the span with the most rows is in time,
                so that one wrong row does not set the first epoch.
            jump: how far an epoch may be above the highest one before.
            after: the epoch at which rows of a closed source enter.
        """
        if frontier is None:
            return cls(0, NO_EPOCH, after)
        open_spans = [span for span in joined(parts, jump) if span[1] >= frontier]
        if not seen:
            if not open_spans:
                return cls(frontier, NO_EPOCH, frontier)
            _, high, _ = max(open_spans, key=lambda span: (span[2], -span[0]))
            return cls(frontier, high, max(frontier, open_spans[0][0]))
        # spans are more than a jump apart, so only spans within a jump of the frontier are in time
        high = max([frontier, *(high for low, high, _ in open_spans if low - frontier <= jump)])
        return cls(frontier, high, frontier)

    def __contains__(self, epoch: int) -> bool:
        return self.low <= epoch <= self.high


@dataclass(slots=True)
class Refused:
    """Rows of one source that are late because their epoch is invalid or jumps too far."""

    #: rows whose epoch is null, negative or too large
    without: int = 0
    #: rows that jump too far, their least epoch, and the highest epoch that was in time
    far: int = 0
    least: int = EPOCHS
    above: int = 0

    @property
    def rows(self) -> int:
        """The number of refused rows."""
        return self.without + self.far

    @classmethod
    def among(cls, counts: Iterable[tuple[int, int]], in_time: InTime) -> Refused:
        """The refused rows of a task, given the numbers of its rows by epoch."""
        refused = cls(above=in_time.high)
        for epoch, rows in counts:
            if epoch == NO_EPOCH:
                refused.without += rows
            elif epoch > in_time.high >= in_time.low:
                refused.far += rows
                refused.least = min(refused.least, epoch)
        return refused

    def __add__(self, other: Refused) -> Refused:
        without, far = self.without + other.without, self.far + other.far
        return Refused(without, far, min(self.least, other.least), max(self.above, other.above))

    def text(self, source: str, where: Where, jump: int) -> str:
        """The warning for the user."""
        parts = []
        if self.far:
            parts.append(
                f"{self.far} rows with epochs from {self.least} on, which is more than max_jump={jump} above "
                f"{self.above}, the highest epoch before"
            )
        if self.without:
            parts.append(f"{self.without} rows whose epoch is null, negative, or 2**62 or more")
        text = (
            f"source {source!r} ({where}) brought {' and '.join(parts)}. They are counted as late, and go to "
            "the stream `late`."
        )
        return with_hint(text, "correct the column, or raise max_jump in flow.source(...).")
