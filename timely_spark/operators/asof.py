"""As-of join of streams, and what it shares with that of collections: the nearest record in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import caller, check_columns, operator, word
from timely_spark.operators.aggregate import ALL, one_group
from timely_spark.operators.event_time import Duration, length, time_type
from timely_spark.operators.expire import Per, check_per, checked_expire, options_text
from timely_spark.operators.join import matching_keys, other_columns, with_keys
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import key_columns
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Longs, Mask, flat
from timely_spark.state.buffering import BufferingVertex, per_input
from timely_spark.state.grouping import changes, group
from timely_spark.state.row_times import RowTimes, compaction, with_time
from timely_spark.streams import Stream, check_same_scope
from timely_spark.times import Timestamp

Direction: TypeAlias = Literal["backward", "forward", "nearest"]
Moments: TypeAlias = npt.NDArray[np.uint64]
"""Times as unsigned numbers of the same order."""

_GROUP = "__timely_asof"


@dataclass(frozen=True, slots=True)
class Nearest:
    """Which right record is the nearest in time to each left record of its group."""

    on: str
    #: the columns of the result that the right side has
    right_columns: tuple[str, ...]
    direction: Direction
    #: the greatest distance in time
    tolerance: int

    def columns(self, group: Longs, left: pa.Table, groups: Longs, right: pa.Table) -> tuple[Mask, pa.Table]:
        """For each left record whether it has a right record, and that record's columns, or nulls.

        Args:
            group: the number of each left record's group.
            left: the left records.
            groups: the number of each right record's group.
            right: the right records.
        """
        time, timed = _ordered(left.column(self.on))
        right = right.append_column(_GROUP, pa.array(groups))
        right = right.filter(pc.is_valid(right.column(self.on)))
        # of several right records at one time the first in the order of their columns
        right = right.take(
            pc.sort_indices(right, [(c, "ascending") for c in (_GROUP, self.on, *self.right_columns)])
        )
        groups, (at, _) = right.column(_GROUP).to_numpy(), _ordered(right.column(self.on))
        first = changes(groups) | changes(at)
        right, groups, at = right.filter(pa.array(first)), groups[first], at[first]
        places = self._places(group, time, groups, at)
        matched = (places >= 0) & timed
        return matched, right.select(list(self.right_columns)).take(pa.array(places, mask=~matched))

    def _places(self, group: Longs, time: Moments, groups: Longs, at: Moments) -> Longs:
        """For each left record the place of its right record, -1 if it has none."""
        nearest, distance = np.full(len(time), -1), np.zeros(len(time), np.uint64)
        for direction in ("backward", "forward"):
            if self.direction not in {direction, "nearest"} or not len(at):
                continue
            back = direction == "backward"
            place, exists = _of_group(_passed(group, time, groups, at, including=back) - back, group, groups)
            gap = np.maximum(time, at[place]) - np.minimum(time, at[place])
            nearer = exists & (gap <= np.uint64(self.tolerance)) & ((nearest < 0) | (gap < distance))
            nearest[nearer], distance[nearer] = place[nearer], gap[nearer]
        return nearest


def _ordered(column: pa.ChunkedArray) -> tuple[Moments, Mask]:
    """Times as unsigned numbers of the same order and distances, and which are not null."""
    values = flat(column)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_uint64(values.type):
        return values.fill_null(0).to_numpy(), valid
    values = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    return values.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64) ^ np.uint64(1 << 63), valid


def _of_group(place: Longs, group: Longs, groups: Longs) -> tuple[Longs, Any]:
    """The places that hold a right record of the left record's group, 0 for others; and which these are."""
    exists = (place >= 0) & (place < len(groups))
    place = np.where(exists, place, 0)
    exists[exists] = groups[place[exists]] == group[exists]
    return place, exists


def _passed(group: Longs, time: Moments, groups: Longs, at: Moments, *, including: bool) -> Longs:
    """For each left record the number of right records (sorted) before it; `including` those of its time."""
    is_left = np.repeat([False, True], [len(at), len(time)])
    last = is_left if including else ~is_left
    order = np.lexsort((last, np.concatenate([at, time]), np.concatenate([groups, group])))
    passed = np.empty(len(order), np.int64)
    passed[order] = np.cumsum(~is_left[order])
    return passed[len(at) :]


@dataclass(frozen=True, slots=True)
class Checked:
    """The arguments of an as-of join, checked."""

    by: tuple[str, ...]
    #: the columns of the result that only the right side has
    right_columns: tuple[str, ...]
    schema: pa.Schema
    nearest: Nearest

    @classmethod
    def of(
        cls, left: pa.Schema, right: pa.Schema, on: Any, *, by: Any, direction: Any, tolerance: Any, how: Any
    ) -> Checked:
        """Check the arguments."""
        listed = key_columns("asof_join", left, by) if by else ()
        word("direction", direction, get_args(Direction), step="asof_join", error=SchemaError)
        word("how", how, ("left", "inner"), step="asof_join", error=SchemaError)
        kind = _time(left, right, on, listed)
        limit = (1 << 64) - 1 if tolerance is None else length("asof_join", "tolerance", tolerance, kind)
        extra = tuple(other_columns("asof_join", left, right, (*listed, on)))
        others = [column for column in left.names if column not in listed]
        schema = pa.schema([*(left.field(c) for c in (*listed, *others)), *(right.field(c) for c in extra)])
        return cls(listed, extra, schema, Nearest(on, extra, direction, limit))


def _time(left: pa.Schema, right: pa.Schema, on: Any, by: Sequence[str]) -> pa.DataType:
    """Check the columns; returns the type of the time."""
    if not isinstance(on, str) or on in by:
        msg = f"asof_join: on={on!r}, by={list(by)}"
        raise SchemaError(msg, where=caller(), hint="name one column of time, and others as keys.")
    if by:
        matching_keys("asof_join", left, right, on=by, left=None, right=None)
    for schema in (left, right):
        check_columns("asof_join", schema, [on, *schema.names], keys=True)
    for column in (on, *by):
        kinds = left.field(column).type, right.field(column).type
        if kinds[0] != kinds[1]:
            msg = f"asof_join: {column!r} is {kinds[0]} on the left side, {kinds[1]} on the right side"
            raise SchemaError(msg, where=caller(), hint="cast one of them first.")
    return time_type("asof_join", left, on)


class AsOfJoin(BufferingVertex):
    """Join the left records of a complete time with the nearest right records up to it.

    Args:
        by: the key columns.
        nearest: which right record is the nearest.
        sides: the schema of each side.
        schema: the output's.
        how: "left" or "inner".
        per: "accumulated" or "time".
        expire: a right record is joined with left records of so many further epochs; None means of all.
    """

    def __init__(
        self,
        by: tuple[str, ...],
        nearest: Nearest,
        sides: tuple[pa.Schema, pa.Schema],
        schema: pa.Schema,
        *,
        how: str,
        per: Per,
        expire: int | None,
    ) -> None:
        super().__init__(inputs=2)
        self.by, self.nearest, self.schemas, self.schema = by, nearest, sides, schema
        self.how, self.per, self.expire, self.per_time = how, per, expire, per == "time"
        #: the records of each input that later ones need: those of the right side
        self.state: list[Any] = [[], Arrangement(by)]

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Store the right records of a time, and send its left records with their right ones."""
        left, right = per_input(batches, self.schemas)
        right = with_keys(right, self.by)
        index = Arrangement(self.by) if self.per == "time" else self.state[1]
        self._store(index, time, right)
        if not left.num_rows:
            return
        groups = group(left, self.by)
        places, matches = index.matches(left.take(pa.array(groups.firsts)), self.by)
        if self.per != "time" and len(places):
            before = RowTimes.of(matches, self._context.times)[0].less_equal(time)
            places, matches = places[before], matches.filter(pa.array(before))
        if not len(places):
            matches = self.schemas[1].empty_table()
        matched, columns = self.nearest.columns(groups.of, left, places, matches.select(right.schema.names))
        own = {c: left.column(c) for c in left.schema.names}
        joined = pa.table({c: own.get(c) if c in own else columns.column(c) for c in self.schema.names})
        self.send_by(0, time, joined if self.how == "left" else joined.filter(pa.array(matched)))

    def _store(self, index: Arrangement, time: Timestamp, right: pa.Table) -> None:
        if self.per == "time":
            index.insert(right)
            return
        if self.expire is not None:
            index.expire(time.epoch - self.expire)
        since = self._context.since() - (self.expire or 0)  # later rows expire by their own epoch
        rows = with_time(right, self._context.coarse(time))
        index.insert(rows, compact=compaction(since, self._context.times))


@operator(Stream)
def asof_join(
    stream: Stream,
    other: Stream,
    on: str,
    *,
    by: str | Sequence[str] | None = None,
    direction: Direction = "backward",
    tolerance: Duration | None = None,
    how: Literal["left", "inner"] = "left",
    per: Per = "accumulated",
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Each record with the latest record of the other side at or before its time: pandas' `merge_asof`.

    There are two kinds of time: `on` is a column, and the records of an epoch may come in any order; an
    epoch says what is known. When a record's epoch is complete, the record goes out, once, with the nearest
    of all records of the other side that came up to that epoch. What comes in later epochs changes nothing:
    a stream retracts nothing (a collection does: `Collection.asof_join`). If the other side comes later,
    `delay` this one.

    Of several records of the other side at one time the least counts: columns are compared in their order,
    nulls last. A null key matches nothing, and neither does a null time. An epoch costs its records, and all
    stored records of the other side with their keys: give `expire`, or use keys with few records each.

    Args:
        stream: the left side. Its records stay.
        other: the right side, in the same scope.
        on: the column of time on both sides: a timestamp, a date or an integer, of one type.
        by: the key columns on both sides; by default all records have one key, and are on one worker.
        direction: "backward"; "forward" for the earliest record at or after the time; or "nearest" for the
            nearer of both, of equally near ones the earlier.
        tolerance: the greatest distance in time, as a length of `every`; by default any.
        how: "left": a record without a match goes out with nulls; or "inner".
        per: "accumulated"; or "time" for only those records of the other side that come in the same epoch
            (see `join`).
        expire: outside loops, drop the records of the other side so many epochs after their own.

    **Columns:** out: `by`, the left side's others, then the right side's others without `on` (to have the
    right side's time as well, select it twice). None may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("trades")
        >>> trades = flow.input("trades", "at long, name string, n long")
        >>> prices = flow.input("prices", "at long, name string, price long")
        >>> _ = trades.asof_join(prices, "at", by="name", expire=100).capture("out")
        >>> inputs = {
        ...     "trades": [[(5, "a", 1)], [(6, "a", 2)]],
        ...     "prices": [[(9, "a", 90), (2, "a", 70)], [(4, "a", 80)]],
        ... }
        >>> ts.testing.run(flow, inputs)["out"].rows()
        {0: [('a', 5, 1, 70)], 1: [('a', 6, 2, 80)]}

    Raises:
        GraphError: `expire` is not an integer from 1 on, or given in a loop or ``per="time"``; or `other` is
            of another flow or scope.
        SchemaError: a column is missing, nested, or on both sides; the types of `on` or of a key differ;
            `tolerance` does not fit `on`; or `direction`, `how` or `per` is unknown.
    """
    check_same_scope("asof_join", stream, [other])
    checked = Checked.of(
        stream.schema, other.schema, on, by=by, direction=direction, tolerance=tolerance, how=how
    )
    check_per("asof_join", per)
    expire = checked_expire("asof_join", stream, expire, per=per)
    sides, keys = [stream, other], checked.by
    if not keys:
        sides = [one_group(side) for side in sides]
        keys = (ALL,)
    schemas = sides[0].schema, sides[1].schema
    fields = [schemas[0].field(key) for key in keys if key == ALL]
    vertex = AsOfJoin(
        keys,
        checked.nearest,
        schemas,
        pa.schema([*fields, *checked.schema]),
        how=how,
        per=per,
        expire=expire,
    )
    check_no_retractions("asof_join", *sides)
    joined = sides[0].then(
        "asof_join",
        [vertex.schema],
        others=[sides[1]],
        name=name,
        vertex=vertex,
        keyed=keys,
        detail=f"{on}, {direction}" + options_text(per=per, expire=expire),
        parameters={
            "on": on,
            "by": list(checked.by),
            "direction": direction,
            "tolerance": checked.nearest.tolerance,
            "how": how,
            "per": per,
            "expire": vertex.expire,
        },
    )[0]
    return joined if checked.by else joined.select(*checked.schema.names)
