"""`Upsert`: how an epoch changes a current table, for Spark's MERGE and for that of deltalake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from timely_spark.graph.quoting import identifier
from timely_spark.runtime.sinks.sink import EPOCH, STAMP
from timely_spark.state.arrow import rows_at
from timely_spark.state.grouping import changes, group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of the source: a record's position in its epoch, its rank among the records of its key, and the
#: greatest sum of the diffs of its key after an epoch.
PLACE, RANK, _MORE = "__timely_place", "__timely_rank", "__timely_more"
_LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class MergeClause:
    """What is done if the condition holds."""

    condition: str
    #: the columns that are written; None if the row is deleted
    values: Mapping[str, str] | None
    #: whether it is for keys that the table has; else for those that it has not
    matched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """The last record of each key in an epoch replaces the table's row of this key, or deletes it.

    Conditions are SQL that both Spark and deltalake read, of the table `t` and the source `s`. If several
    conditions hold, the first clause counts.
    """

    keys: Sequence[str]
    diff: str | None
    #: the stream's columns that the table has
    columns: Sequence[str]
    #: whether the table has a column of epochs
    epoch: bool

    @property
    def same(self) -> str:
        """Whether a row of the table and one of the source have the same key."""
        pairs = ((identifier("t", key), identifier("s", key)) for key in self.keys)
        return " AND ".join(f"({old} IS NOT DISTINCT FROM {new})" for old, new in pairs)

    def clauses(self, failing: str) -> list[MergeClause]:
        """The clauses, with an expression that fails in place of a key that has a second record."""
        values = {identifier(name): identifier("s", name) for name in self.columns}
        newer, stamp, more = "TRUE", identifier("s", STAMP), identifier("s", _MORE)
        if self.epoch:
            values[identifier(EPOCH)] = stamp
            # with release="arrival", an older epoch may come after a newer one
            newer = f"{stamp} >= coalesce({identifier('t', EPOCH)}, {stamp})"
        if self.diff is None:
            return [MergeClause(newer, values), MergeClause("TRUE", values, matched=False)]
        two, diff = values | {identifier(self.keys[0]): failing}, identifier("s", self.diff)
        return [
            MergeClause(f"{more} > 0 AND {newer}", two),
            MergeClause(f"{diff} < 0 AND {newer}", None),
            MergeClause(newer, values),
            MergeClause(f"{more} > 1", two, matched=False),
            MergeClause(f"{diff} > 0", values, matched=False),
        ]

    def last(self, records: pa.Table) -> pa.Table:
        """The last row of each key; of a -1 of the old and a +1 of the new record, the +1.

        The records have the epoch in the column `STAMP`, and are in the order of arrival. With a diff the
        greatest sum of the diffs of the key after an epoch is added: an epoch in which a key has two records
        is an error, also if a later one removes the first.
        """
        epochs, diffs = records[STAMP].to_numpy(), pa.chunked_array([pa.nulls(records.num_rows, pa.int64())])
        if self.diff is not None:
            diffs = records[self.diff].cast(pa.int64())
        order = np.lexsort((diffs.fill_null(_LEAST).to_numpy(), epochs))
        groups = group(records.select(self.keys).take(order), self.keys)
        order, lasts = order[groups.order], groups.starts + groups.sizes - 1
        table = rows_at(records, order[lasts])
        if self.diff is None or not records.num_rows:
            return table
        epochs, diffs = epochs[order], diffs.fill_null(0).to_numpy()[order]
        sums = diffs.cumsum()
        sums -= np.repeat(sums[groups.starts] - diffs[groups.starts], groups.sizes)
        # the last row of each epoch of a key: the one before the first of the next epoch, or of the next key
        ends = np.roll(changes(epochs), -1)
        ends[lasts] = True
        more = np.maximum.reduceat(np.where(ends, sums, _LEAST), groups.starts)
        return table.append_column(_MORE, pa.array(more))

    def last_of(self, frame: DataFrame) -> DataFrame:
        """The same of a DataFrame that has a column `PLACE` of the order of arrival."""
        from pyspark.sql import Window
        from pyspark.sql.functions import col, max, row_number, sum

        ranked = [STAMP, *([self.diff] if self.diff is not None else []), PLACE]
        keys = Window.partitionBy(*map(identifier, self.keys))
        last = keys.orderBy(*(col(identifier(column)).desc() for column in ranked))
        if self.diff is not None:
            until = keys.orderBy(identifier(STAMP)).rangeBetween(Window.unboundedPreceding, Window.currentRow)
            frame = frame.withColumn(_MORE, sum(identifier(self.diff)).over(until))
            frame = frame.withColumn(_MORE, max(_MORE).over(keys))
        return frame.withColumn(RANK, row_number().over(last)).where(f"{RANK} = 1")
