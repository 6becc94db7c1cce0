"""As-of join of collections: each record with the nearest record in time of the same key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.arranged import key_columns
from timely_spark.differential.collections import Collection
from timely_spark.differential.joins import padded
from timely_spark.differential.reducers import GROUP, Logic
from timely_spark.differential.reductions import reduced
from timely_spark.differential.trace import DIFF, numbers
from timely_spark.errors import SchemaError
from timely_spark.graph import caller, check_columns, composed, names, operator
from timely_spark.operators.aggregate import ALL
from timely_spark.operators.event_time import Duration, length, numbers_of_time, time_type
from timely_spark.operators.join import matching_keys, other_columns
from timely_spark.operators.rows import computed

Direction: TypeAlias = Literal["backward", "forward", "nearest"]
Numbers: TypeAlias = npt.NDArray[np.int64]

_SIDE = "__timely_side"


@dataclass(frozen=True, slots=True)
class AsOf(Logic):
    """The left records of a key, each with the columns of the right record that is nearest in time."""

    on: str
    #: the columns of the result that the left and the right side have
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    direction: Direction
    #: the greatest distance in time
    tolerance: int
    keep_unmatched: bool

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The joined records, with the left side's multiplicities."""
        left = inputs.filter(pc.equal(inputs.column(_SIDE), 0))
        right = inputs.filter(pa.array((numbers(inputs, _SIDE) == 1) & (numbers(inputs, DIFF) > 0)))
        right = right.filter(pa.array(numbers_of_time(right.column(self.on))[1]))
        # of several right records at one time the first in the order of their columns
        right = right.take(pc.sort_indices(right, [(c, "ascending") for c in (GROUP, self.on, *self.theirs)]))
        group, (time, usable) = numbers(left, GROUP), numbers_of_time(left.column(self.on))
        there, (at, _) = numbers(right, GROUP), numbers_of_time(right.column(self.on))
        first = np.ones(len(at), np.bool_)
        first[1:] = (there[1:] != there[:-1]) | (at[1:] != at[:-1])
        right, there, at = right.filter(pa.array(first)), there[first], at[first]
        found = self._nearest(group, time, there, at)
        for key in self.keys:  # as in every join null equals nothing
            if (null := keys.column(key).is_null().to_numpy())[group].any():
                usable &= ~null[group]
        matched = (found >= 0) & usable
        rows = right.take(pa.array(found, mask=~matched))
        made = left.select([GROUP, *self.ours])
        for column in self.theirs:
            made = made.append_column(right.schema.field(column), rows.column(column))
        made = made.append_column(DIFF, left.column(DIFF))
        return made if self.keep_unmatched else made.filter(pa.array(matched))

    def _nearest(self, group: Numbers, time: Numbers, there: Numbers, at: Numbers) -> Numbers:
        """For each left record the place of its right record, -1 if it has none."""
        if not len(at):
            return np.full(len(time), -1)
        backward = _passed(group, time, there, at, including=True) - 1
        forward = _passed(group, time, there, at, including=False)
        far = np.iinfo(np.int64).max
        before, after = (
            np.where(exists, np.abs(time - at[place]), far)
            for place, exists in (_of_group(place, group, there) for place in (backward, forward))
        )
        if self.direction == "backward":
            after[:] = far
        elif self.direction == "forward":
            before[:] = far
        place = np.where(before <= after, backward, forward)
        return np.where(np.minimum(before, after) <= self.tolerance, place, -1)


def _of_group(place: Numbers, group: Numbers, there: Numbers) -> tuple[Numbers, Any]:
    """Places of right records, 0 where there is none of the left record's group; and where there is one."""
    exists = (place >= 0) & (place < len(there))
    place = np.where(exists, place, 0)
    exists[exists] = there[place[exists]] == group[exists]
    return place, exists


def _passed(group: Numbers, time: Numbers, there: Numbers, at: Numbers, *, including: bool) -> Numbers:
    """For each left record the number of right records (sorted) before it; `including` those of its time."""
    is_left = np.repeat([False, True], [len(at), len(time)])
    last = is_left if including else ~is_left
    order = np.lexsort((last, np.concatenate([at, time]), np.concatenate([there, group])))
    passed = np.empty(len(order), np.int64)
    passed[order] = np.cumsum(~is_left[order])
    return passed[len(at) :]


@operator(Collection)
@composed
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

    Of several records of the other side at that time, the one counts whose columns are least, compared in
    their order (nulls last); its multiplicity does not matter. A null key matches nothing, and neither does a
    null time. A change costs the records of its key on both sides: use keys with few records each.

    Args:
        collection: the left side, whose records stay.
        other: the right side; from an outer scope it enters this one.
        on: the column of time on both sides: a timestamp, a date or a whole number, of one type.
        by: the key columns on both sides; by default all records have one key, and are on one worker.
        direction: "backward"; "forward" for the earliest record at or after the time; or "nearest" for the
            nearer of both, of equally near ones the earlier.
        tolerance: the greatest distance in time, as a length of `every`; by default any.
        how: "left": a record without a match stays, with nulls; or "inner".

    **Columns:** out: `by`, the left side's others, then the right side's others without `on` (to have the
    right side's time as well, select it twice). None may be nested.

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
        GraphError: `other` is no collection, or of another flow, or in an unrelated loop.
        SchemaError: a column is missing, nested, or on both sides; the types of `on` or of a key differ;
            `tolerance` does not fit `on`; or `direction` or `how` is unknown.
    """
    ours, theirs = collection.together("asof_join", other)
    listed = names("asof_join", by)
    for what, value, valid in (
        ("direction", direction, get_args(Direction)),
        ("how", how, ("left", "inner")),
    ):
        if value not in valid:
            msg = f"asof_join: {what}={value!r}"
            raise SchemaError(msg, where=caller(), hint=f"one of {', '.join(valid)}.")
    lengths = _check(ours.schema, theirs.schema, on, listed)
    limit = (1 << 63) - 2 if tolerance is None else length("asof_join", "tolerance", tolerance, lengths)
    extra = other_columns("asof_join", ours.schema, theirs.schema, (*listed, on))
    mine = [column for column in ours.schema.names if column not in listed]
    schema = pa.schema(
        [*(ours.schema.field(c) for c in (*listed, *mine)), *(theirs.schema.field(c) for c in extra)]
    )
    both = _side(ours, [*listed, *mine], schema, 0).concat(_side(theirs, [*listed, on, *extra], schema, 1))
    keys = listed
    if not listed:
        every = both.stream.schema.names
        both, keys = (
            both.like(computed(both.stream, *every, {ALL: pc.scalar(0)}, own=(ALL, _SIDE, DIFF))),
            (ALL,),
        )
    logic = AsOf(keys, on, tuple(mine), tuple(extra), direction, limit, how == "left")
    fields = [field for field in schema if field.name not in listed]
    arguments = {"direction": direction, "tolerance": limit, "how": how}
    result = reduced("asof_join", both, logic, fields, name=name, detail=f"{on}, {direction}", **arguments)
    return result if listed else result.select(*schema.names)


def _side(collection: Collection, columns: Sequence[str], schema: pa.Schema, side: int) -> Collection:
    marked = padded(collection, {column: column for column in columns}, schema)
    return collection.like(
        computed(marked.stream, *schema.names, {_SIDE: pc.scalar(side), DIFF: DIFF}, own=(_SIDE, DIFF))
    )


def _check(ours: pa.Schema, theirs: pa.Schema, on: Any, by: Sequence[str]) -> pa.DataType:
    """Check the columns; returns the type of the time."""
    if not isinstance(on, str) or on in by:
        msg = f"asof_join: on={on!r}, by={list(by)}"
        raise SchemaError(msg, where=caller(), hint="name one column of time, and others as keys.")
    if by:
        key_columns("asof_join", ours, by)
        matching_keys("asof_join", ours, theirs, on=by, left=None, right=None)
    for schema in (ours, theirs):
        check_columns("asof_join", schema, [on, *schema.names], keys=True)
    for column in (on, *by):
        kinds = ours.field(column).type, theirs.field(column).type
        if kinds[0] != kinds[1]:
            msg = f"asof_join: {column!r} is {kinds[0]} on the left side, {kinds[1]} on the right side"
            raise SchemaError(msg, where=caller(), hint="cast one of them first.")
    return time_type("asof_join", ours, on)
