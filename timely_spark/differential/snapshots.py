"""`snapshot`: a collection at an epoch, from its changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from timely_spark.captured import Captured
from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.errors import NotComplete, SchemaError, excerpt, with_hint
from timely_spark.graph import caller, identifier, locate_errors, refuse
from timely_spark.state.arrow import numbers
from timely_spark.times import as_epoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST = 100_000_000
"""How many rows may repeat others."""

#: The names of integers' types in Spark and in Arrow.
_INTEGERS = {"bigint", "int", "smallint", "tinyint", "int64", "int32", "int16", "int8"}
_HINT = "give count= the name of a column for the multiplicity: each record is then there once."


@overload
def snapshot(
    changes: DataFrame,
    at: int | None = None,
    *,
    diff: str = "diff",
    epoch: str = "epoch",
    count: str | None = None,
) -> DataFrame: ...


@overload
def snapshot(
    changes: Captured, at: int | None = None, *, diff: str = "diff", count: str | None = None
) -> pa.Table: ...


@locate_errors
def snapshot(
    changes: DataFrame | Captured,
    at: int | None = None,
    *,
    diff: str = "diff",
    epoch: str = "epoch",
    count: str | None = None,
) -> DataFrame | pa.Table:
    """The records of a collection at an epoch, from its changes.

    Args:
        changes: a DataFrame of changes, such as the table that `to_delta` wrote or the view of `to_memory`;
            or the result of `capture`.
        at: the epoch, inclusive; None means the last one. A DataFrame does not say which epochs are
            complete: after its last epoch the records stay the same.
        diff: the column of differences.
        epoch: the column of epochs, in a DataFrame.
        count: a column for the multiplicity: each record is then there once, also one of negative
            multiplicity.

    **Columns:** in: `epoch`, the records', `diff`; out: the records', each row repeated by its multiplicity,
    if it is positive; with `count`, the records' and `count`. The result is a DataFrame for a DataFrame, else
    an Arrow table.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> words = flow.input("words", "word string, diff long").collection(diff="diff")
        >>> _ = words.changes().capture("log")
        >>> log = ts.testing.run(flow, {"words": [[("to", 2), ("be", 1)], [("to", -1)]]})["log"]
        >>> ts.snapshot(log, at=0)["word"].to_pylist(), ts.snapshot(log)["word"].to_pylist()
        (['be', 'to', 'to'], ['be', 'to'])
        >>> ts.snapshot(log, at=0, count="n").to_pylist()
        [{'word': 'be', 'n': 1}, {'word': 'to', 'n': 2}]

    Raises:
        SchemaError: a column is missing, or not of integers; or records are there so often that repeating
            them makes more than 100 million rows (in a DataFrame, where it is computed: a record more often
            than that).
        InvalidTime: `at` is not an epoch.
        NotComplete: the captured output is not complete up to `at`.
        BadArgument: `changes` is neither a DataFrame nor captured changes.
    """
    at = None if at is None else as_epoch(at, "snapshot(at=)", caller())
    if isinstance(changes, Captured):
        return _of_captured(changes, at, diff, count)
    if not hasattr(changes, "sparkSession"):
        hint = "give a DataFrame of the table to which changes() were written, or the result of capture()."
        expected = "changes of a collection"
        refuse(changes, what="changes", expected=expected, hint=hint)
    _check([diff, epoch], {field.name: field.dataType.simpleString() for field in changes.schema})
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    records = [F.col(identifier(column)) for column in changes.columns if column not in {diff, epoch}]
    upto = changes if at is None else changes.where(F.col(identifier(epoch)) <= at)
    counted = upto.groupBy(*records).agg(F.sum(F.col(identifier(diff))).alias("__timely_count"))
    number = F.col("__timely_count")
    if count is not None:
        _check_new(count, [name for name in changes.columns if name not in {diff, epoch}])
        return counted.where(number != 0).withColumnRenamed("__timely_count", count)
    text = F.concat(
        F.lit("snapshot: "), F.to_json(F.struct(*records)), F.lit(" is there "), number.cast("string")
    )
    error = F.raise_error(F.concat(text, F.lit(with_hint(" times", _HINT))))
    times = F.when(number <= MOST, number).otherwise(error.cast("long")).cast("int")
    repeated = counted.where(number > 0).withColumn(
        "__timely_count", F.explode(F.array_repeat(F.lit(1), times))
    )
    return repeated.drop("__timely_count")


def _of_captured(changes: Captured, at: int | None, diff: str, count: str | None) -> pa.Table:
    if at is not None and changes.until is not None and at > changes.until:
        what = f"snapshot(at={at})"
        raise NotComplete.yet(what, changes.until, where=caller())
    fields = [one for one in changes.schema if changes.diff in {None, one.name}]
    _check([diff], {field.name: str(field.type) for field in fields})
    columns = [column for column in changes.schema.names if column != diff]
    upto = [table for epoch, table in changes.epochs.items() if at is None or epoch <= at]
    every = pa.concat_tables([changes.schema.empty_table(), *upto]).select([*columns, diff])
    total = consolidate(every.rename_columns([*columns, DIFF])).sort_by([(c, "ascending") for c in columns])
    if count is not None:
        _check_new(count, columns)
        return total.rename_columns([*columns, count])
    counts = np.maximum(numbers(total, DIFF), 0)
    if (more := sum(counts.tolist()) - len(counts)) > MOST:
        often = int(counts.argmax())
        record = excerpt(total.select(columns).slice(often, 1))
        msg = f"snapshot: {record} is there {counts[often]} times; {more} rows would repeat others"
        raise SchemaError(msg, where=caller(), hint=_HINT)
    return total.select(columns).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _check_new(count: Any, columns: list[str]) -> None:
    if not isinstance(count, str) or count in columns:
        what = f"is a column of the records {columns}" if count in columns else "is not a name of a column"
        msg = f"snapshot: count={count!r} {what}"
        raise SchemaError(msg, where=caller(), hint="give count= another name.")


def _check(needed: list[str], columns: Mapping[str, str]) -> None:
    """Check that columns are there and integers, by the names of all types."""
    msg = ""
    if missing := [column for column in needed if column not in columns]:
        msg = f"snapshot: no columns {missing} among {[*columns]}"
    elif others := {column: columns[column] for column in needed if columns[column] not in _INTEGERS}:
        msg = f"snapshot: columns of differences and epochs are integers, and these are {others}"
    if msg:
        hint = "give written or captured changes(); name their columns by diff= and epoch=."
        raise SchemaError(msg, where=caller(), hint=hint)
