"""A collection as it was at an epoch, out of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np
import pyarrow as pa

from timely_spark.differential.trace import DIFF, consolidate, numbers
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.graph import caller, identifier, told
from timely_spark.testing import Captured
from timely_spark.times import as_epoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def snapshot(
    changes: DataFrame, at: int | None = None, *, diff: str = "diff", epoch: str = "epoch"
) -> DataFrame: ...


@overload
def snapshot(changes: Captured, at: int | None = None, *, diff: str = "diff") -> pa.Table: ...


@told
def snapshot(
    changes: DataFrame | Captured, at: int | None = None, *, diff: str = "diff", epoch: str = "epoch"
) -> DataFrame | pa.Table:
    """The records of a collection as it was at an epoch, from its changes.

    Args:
        changes: a DataFrame of them, such as one of what `Collection.changes().to_delta(...)` wrote, or of
            the view of `to_memory`; or what `capture` kept of them.
        at: the epoch, included; None: the last one that is there.
        diff: the column of differences.
        epoch: the column of epochs, in a DataFrame.

    **Columns:** in: `epoch`, those of the records, `diff`; out: those of the records, each as often as it was
    there: a DataFrame of a DataFrame, else an Arrow table.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> words = flow.input("words", "word string, diff long").collection(diff="diff")
        >>> _ = words.changes().capture("log")
        >>> log = ts.testing.run(flow, {"words": [[("to", 2), ("be", 1)], [("to", -1)]]})["log"]
        >>> ts.snapshot(log, at=0)["word"].to_pylist(), ts.snapshot(log)["word"].to_pylist()
        (['be', 'to', 'to'], ['be', 'to'])

    Raises:
        SchemaError: a column is missing.
        InvalidTime: `at` is no epoch; BadArgument: `changes` are something else.
    """
    at = None if at is None else as_epoch(at, "snapshot(at=)", caller())
    if isinstance(changes, Captured):
        return _of_captured(changes, at, diff)
    if not hasattr(changes, "sparkSession"):
        hint = "give a DataFrame of what changes() were written to, or what a capture() of them has released."
        expected = "changes of a collection"
        raise BadArgument.kind(changes, what="changes", expected=expected, where=caller(), hint=hint)
    _check([diff, epoch], changes.columns)
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    records = [F.col(identifier(column)) for column in changes.columns if column not in {diff, epoch}]
    known = changes if at is None else changes.where(F.col(identifier(epoch)) <= at)
    counted = known.groupBy(*records).agg(F.sum(F.col(identifier(diff))).alias("__timely_count"))
    there = counted.where(F.col("__timely_count") > 0)
    return there.withColumn(
        "__timely_count", F.explode(F.array_repeat(F.lit(1), F.col("__timely_count").cast("int")))
    ).drop("__timely_count")


def _of_captured(changes: Captured, at: int | None, diff: str) -> pa.Table:
    _check([diff], changes.schema.names)
    columns = [column for column in changes.schema.names if column != diff]
    known = [table for epoch, table in changes.epochs.items() if at is None or epoch <= at]
    every = pa.concat_tables([changes.schema.empty_table(), *known]).select([*columns, diff])
    added = consolidate(every.rename_columns([*columns, DIFF])).sort_by([(c, "ascending") for c in columns])
    counts = np.maximum(numbers(added, DIFF), 0)
    return added.select(columns).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _check(needed: list[str], columns: list[str]) -> None:
    if missing := [column for column in needed if column not in columns]:
        msg = (
            f"snapshot ({caller()}): no columns {missing} among {columns}. "
            "Hint: give what changes() were written to or captured by; name its columns by diff= and epoch=."
        )
        raise SchemaError(msg)
