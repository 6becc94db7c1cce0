"""`top_k` on streams: the first records of each key, accumulated as aggregates are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import check_columns, integer, operator
from timely_spark.operators.aggregate import ALL, Aggregate, Combines, one_group
from timely_spark.operators.expire import Per, check_per, options_text
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import keys_and_value
from timely_spark.state.arrow import Indices
from timely_spark.state.grouping import Groups
from timely_spark.streams import Stream

_GROUP = "__timely_group"


@dataclass(frozen=True, slots=True)
class First(Combines):
    """The first `k` records of each key in an order: they are among the first `k` of the parts."""

    keys: tuple[str, ...]
    k: int
    #: columns and directions
    order: tuple[tuple[str, str], ...]
    one_row: ClassVar[bool] = False

    def partial(self, batch: pa.Table) -> pa.Table:
        return self.combine(batch)

    def fold(self, table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
        by = [(_GROUP, "ascending"), *self.order]
        rows = pc.sort_indices(table.append_column(_GROUP, pa.array(groups.of)), by).to_numpy()
        first = np.arange(len(rows)) - np.repeat(groups.starts, groups.sizes) < self.k
        firsts: Indices = rows[first].astype(np.int64)
        return firsts, table.take(pa.array(firsts))


@operator(Stream)
def top_k(
    stream: Stream,
    k: int,
    value: str,
    *,
    keys: str | Sequence[str] | None = None,
    descending: bool = True,
    per: Per = "accumulated",
    name: str | None = None,
) -> Stream:
    """The first `k` records of each key by a column; ties are ordered by the other columns, ascending.

    When a time is complete, each key with records at that time sends all of its first records: of all records
    up to that time, or with ``per="time"`` of that time's records. A record that came several times takes
    several places. NaN come last, then nulls. A collection's `top_k` sends changes.

    Args:
        k: the greatest number of records per key.
        value: the column to order by.
        keys: the key columns; by default all records are one group.
        descending: the greatest first.
        per: "accumulated" or "time".

    **Columns:** out as in; none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("top")
        >>> scores = flow.input("scores", "game long, who string, points long")
        >>> _ = scores.top_k(1, "points", keys="game").capture("out")
        >>> ts.testing.run(flow, {"scores": [[(1, "a", 5), (1, "b", 7)], [(1, "c", 6), (2, "d", 1)]]})[
        ...     "out"
        ... ].rows()
        {0: [(1, 'b', 7)], 1: [(1, 'b', 7), (2, 'd', 1)]}

    Raises:
        SchemaError: `k` is not an integer of at least 1; a key is missing; `value` is missing or a key; a
            column is nested; or `per` is unknown.
    """
    k = integer("k", k, step="top_k", error=SchemaError)
    check_per("top_k", per)
    listed, columns = keys_and_value("top_k", stream.schema, keys, value), stream.schema.names
    check_columns("top_k", stream.schema, columns, keys=True)
    check_no_retractions("top_k", stream)
    if not listed:
        stream, listed = one_group(stream), (ALL,)
    others = [column for column in columns if column != value and column not in listed]
    direction = "descending" if descending else "ascending"
    order = ((value, direction), *((column, "ascending") for column in others))
    result = stream.then(
        "top_k",
        [stream.schema],
        name=name,
        vertex=Aggregate(First(listed, k, order), accumulate=per == "accumulated"),
        keyed=listed,
        detail=f"{k} by {value}" + options_text(per=per),
        parameters={"k": k, "value": value, "descending": bool(descending), "per": per},
    )[0]
    return result if listed != (ALL,) else result.select(*columns)
