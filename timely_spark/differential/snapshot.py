"""A collection as it was at an epoch, out of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timely_spark.errors import SchemaError
from timely_spark.graph import caller

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def snapshot(
    changes: DataFrame, at: int | None = None, *, diff: str = "diff", epoch: str = "epoch"
) -> DataFrame:
    """The records of a collection as it was at an epoch, from a table of its changes.

    Args:
        changes: a log of changes, such as `Collection.changes().to_delta(...)` writes.
        at: the epoch, included; None: the last one that is there.
        diff: the column of differences.
        epoch: the column of epochs.

    **Columns:** in: `epoch`, those of the records, `diff`; out: those of the records, each as often as it was
    there.

    Example:
        >>> import timely_spark as ts
        >>> log = spark.read.format("delta").load("/data/components")  # doctest: +SKIP
        >>> ts.snapshot(log, at=7).show()  # doctest: +SKIP

    Raises:
        SchemaError: a column is missing.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if missing := [column for column in (diff, epoch) if column not in changes.columns]:
        msg = (
            f"snapshot ({caller()}): no columns {missing} among {changes.columns}. "
            "Hint: give the table that changes() were written to; name its columns by diff= and epoch=."
        )
        raise SchemaError(msg)
    records = [F.col(f"`{column}`") for column in changes.columns if column not in {diff, epoch}]
    known = changes if at is None else changes.where(F.col(f"`{epoch}`") <= at)
    counted = known.groupBy(*records).agg(F.sum(F.col(f"`{diff}`")).alias("__timely_count"))
    there = counted.where(F.col("__timely_count") > 0)
    return there.withColumn(
        "__timely_count", F.explode(F.array_repeat(F.lit(1), F.col("__timely_count").cast("int")))
    ).drop("__timely_count")
