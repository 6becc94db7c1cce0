"""As-of join of collections: each record with the nearest record in time of the same key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection
from timely_spark.differential.joins import padded
from timely_spark.differential.reducers import GROUP, Logic
from timely_spark.differential.reductions import reduced
from timely_spark.differential.trace import DIFF
from timely_spark.graph import operator
from timely_spark.operators.aggregate import ALL, one_group
from timely_spark.operators.asof import Checked, Direction, Nearest
from timely_spark.operators.event_time import Duration
from timely_spark.state.arrow import numbers

_SIDE = "__timely_side"


@dataclass(frozen=True, slots=True)
class AsOf(Logic):
    """The left records of a key, each with the columns of the right record that is nearest in time."""

    nearest: Nearest
    #: the columns of the result that the left side has
    ours: tuple[str, ...]
    keep_unmatched: bool

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The joined records, with the left side's multiplicities."""
        left = inputs.filter(pc.equal(inputs.column(_SIDE), 0))
        right = inputs.filter(pa.array((numbers(inputs, _SIDE) == 1) & (numbers(inputs, DIFF) > 0)))
        for key in self.keys:  # as in every join null equals nothing
            if keys.column(key).null_count:
                null = keys.column(key).is_null().to_numpy()
                right = right.filter(pa.array(~null[numbers(right, GROUP)]))
        matched, rows = self.nearest.columns(numbers(left, GROUP), left, numbers(right, GROUP), right)
        joined = left.select([GROUP, *self.ours])
        for field in rows.schema:
            joined = joined.append_column(field, rows.column(field.name))
        joined = joined.append_column(DIFF, left.column(DIFF))
        return joined if self.keep_unmatched else joined.filter(pa.array(matched))


@operator(Collection)
def asof_join(
    collection: Collection,
    other: Collection,
    on: str,
    *,
    by: str | Sequence[str] | None = None,
    direction: Direction = "backward",
    tolerance: Duration | None = None,
    how: Literal["left", "inner"] = "left",
    name: str | None = None,
) -> Collection:
    """Each record with the latest record of the other side at or before its time: pandas' `merge_asof`.

    Of several records of the other side at that time the least counts: columns are compared in their order,
    nulls last. Its multiplicity does not matter. A null key matches nothing, and neither does a null time. A
    change costs the records of its key on both sides: use keys with few records each.

    Args:
        collection: the left side. Its records stay.
        other: the right side; from an outer scope it enters this one.
        how: "left": a record without a match stays, with nulls; or "inner".

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("trades")
        >>> trades = flow.input("trades", "at long, name string, n long").collection()
        >>> prices = flow.input("prices", "at long, name string, price long").collection()
        >>> _ = trades.asof_join(prices, "at", by="name").changes().capture("out")
        >>> inputs = {"trades": [[(5, "a", 1)], []], "prices": [[(2, "a", 70), (9, "a", 90)], [(4, "a", 80)]]}
        >>> ts.testing.run(flow, inputs)["out"].rows()
        {0: [('a', 5, 1, 70, 1)], 1: [('a', 5, 1, 70, -1), ('a', 5, 1, 80, 1)]}

    Raises:
        GraphError: `other` is not a collection, or of another flow, or in an unrelated loop.
        SchemaError: a column is missing, nested, or on both sides; the types of `on` or of a key differ;
            `tolerance` does not fit `on`; or `direction` or `how` is unknown.
    """
    left, right = collection.together("asof_join", other)
    checked = Checked.of(
        left.schema, right.schema, on, by=by, direction=direction, tolerance=tolerance, how=how
    )
    listed, extra, schema = checked.by, checked.right_columns, checked.schema
    others = [column for column in left.schema.names if column not in listed]
    side = {c: c for c in (*listed, on, *extra)}
    both = padded(left, schema, **{_SIDE: pc.scalar(0)}).concat(
        padded(right, schema, side, **{_SIDE: pc.scalar(1)})
    )
    keys = listed
    if not listed:
        both, keys = both.like(one_group(both.stream)), (ALL,)
    logic = AsOf(keys, checked.nearest, tuple(others), how == "left")
    fields = [field for field in schema if field.name not in listed]
    arguments = {"direction": direction, "tolerance": checked.nearest.tolerance, "how": how}
    result = reduced("asof_join", both, logic, fields, name=name, detail=f"{on}, {direction}", **arguments)
    return result if listed else result.select(*schema.names)
