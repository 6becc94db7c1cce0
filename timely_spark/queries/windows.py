"""Window functions of SQL: a reduction by partition, which computes changed partitions again.

All partitions of a call are computed at once, on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import DIFF, GROUP, Logic, consolidate, flat, numbers
from timely_spark.differential.collections import Collection
from timely_spark.differential.reducers import MOST_RECORDS, present_records
from timely_spark.errors import SchemaError
from timely_spark.queries.aggregates import FUNCTIONS as AGGREGATES
from timely_spark.queries.aggregates import quotient
from timely_spark.queries.groups import GroupRecords, as_doubles
from timely_spark.queries.sorting import Order, by_keys, ranks, rows_in_order
from timely_spark.sql.calendar import DAY, later, plus_months
from timely_spark.sql.plain import unscaled
from timely_spark.sql.types import INTERVAL, scale_of
from timely_spark.state.arrow import Longs, Mask
from timely_spark.state.grouping import changes
from timely_spark.state.sums import limbs_of, sums_of_limbs

#: an end of a frame: a number of rows, or a distance (negative: before the row); None for the partition's end
Bound = int | float | None


#: the function of a frame whose one option is an aggregate of groups
GATHERED = "gathered"
#: so many records of frames are gathered at once
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Frame:
    """A function of windows: its arguments, and the frame of rows that it reads."""

    function: str
    columns: tuple[str, ...]
    type: pa.DataType
    options: tuple[Any, ...] = ()
    #: "rows"; "range", which has the peers of its first and last row, too; "distance" of values, or "months"
    unit: str = "range"
    low: Bound = None
    high: Bound = 0
    ignore_nulls: bool = False
    #: by whose calendar the days and months of a distance are, of times with a zone
    zone: str = "UTC"

    def __str__(self) -> str:
        if self.function == GATHERED:
            return str(self.options[0])
        inside = ", ".join([*self.columns, *map(str, self.options)])
        return f"{self.function}({inside})"


@dataclass(frozen=True)
class Partitions:
    """The rows of some partitions, each in its order."""

    table: pa.Table
    #: whether each row is not equal to the one before in the order
    new_peers: Mask
    order: tuple[Order, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.new_peers)

    @cached_property
    def place(self) -> Longs:
        """The number of each row."""
        return np.arange(self.rows)

    @cached_property
    def begin(self) -> Longs:
        """The first row of each row's partition."""
        new = changes(numbers(self.table, GROUP))
        return np.maximum.accumulate(np.where(new, self.place, 0)) if self.rows else self.place

    @cached_property
    def end(self) -> Longs:
        """The row behind each row's partition."""
        return _ends(changes(numbers(self.table, GROUP)))

    @cached_property
    def first_peer(self) -> Longs:
        """The first row that is equal in the order."""
        return np.maximum.accumulate(np.where(self.new_peers, self.place, 0)) if self.rows else self.place

    @cached_property
    def peers_end(self) -> Longs:
        """The row behind those that are equal in the order."""
        return _ends(self.new_peers)

    def frame(self, frame: Frame) -> tuple[Longs, Longs]:
        """For each row the first row of its frame, and the row behind it."""
        if frame.unit == "range":
            low = self.begin if frame.low is None else self.first_peer
            high = self.end if frame.high is None else self.peers_end
            return low, high
        if frame.unit in {"distance", "months"}:
            low = self.begin if frame.low is None else self.near(frame.low, frame, behind=False)
            high = self.end if frame.high is None else self.near(frame.high, frame, behind=True)
            return low, np.maximum(low, high)
        low = self.begin if frame.low is None else np.clip(self.place + frame.low, self.begin, self.end)
        high = self.end if frame.high is None else np.clip(self.place + frame.high + 1, self.begin, self.end)
        return low, np.maximum(low, high)

    @cached_property
    def values(self) -> tuple[npt.NDArray[Any], Longs]:
        """Numbers by which rows are ordered, ascending, and where others stand: 0 for a number."""
        (by,) = self.order
        column = flat(self.table.column(by.column))
        values = as_number(column)
        outside = np.where(np.isnan(values), -1 if by.descending else 1, 0)
        if by.descending:
            values = -values if values.dtype == np.float64 else ~values  # no integer overflows
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return values, np.where(valid, outside, -2 if by.nulls_first else 2)

    def near(self, distance: float, frame: Frame, *, behind: bool) -> Longs:
        """For each row the first row of its partition at a distance or more; or the row behind the last."""
        values, outside = self.values
        kind = self.table.schema.field(self.order[0].column).type
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None and frame.zone != "UTC"
        if frame.unit == "months" or zoned:
            wanted: npt.NDArray[Any] = self._moved(values, int(distance), frame)
        elif values.dtype == np.float64:  # a sum of floats is a float
            number = kind.to_pandas_dtype()
            wanted = (values.astype(number) + number(distance)).astype(np.float64)
        else:
            wanted = _added(values, int(distance))
        groups = np.cumsum(changes(numbers(self.table, GROUP)))
        asked = np.repeat([False, True], self.rows)
        flag = asked if behind else ~asked
        by_number = np.concatenate([values, wanted])
        order = np.lexsort([flag, by_number, np.tile(outside, 2), np.tile(groups, 2)])
        before = np.cumsum(order < self.rows)
        places = np.empty(self.rows, np.int64)
        requested = order >= self.rows
        places[order[requested] - self.rows] = before[requested]
        return np.where(outside == 0, places, self.peers_end if behind else self.first_peer)

    def _moved(self, values: Longs, distance: int, frame: Frame) -> Longs:
        """Dates and times some months, or microseconds, further in the order, by the calendar of a zone."""
        (by,) = self.order
        kind = self.table.schema.field(by.column).type
        times, distance = (~values, -distance) if by.descending else (values, distance)
        if pa.types.is_date32(kind):
            moved: Longs = plus_months(times, distance)
        elif frame.unit == "months":
            moved = later(times, kind.tz and frame.zone, months=distance)
        else:
            days = int(distance / DAY)
            moved = later(times, frame.zone, days=days) + (distance - days * DAY)
        return ~moved if by.descending else moved


def _added(values: Longs, distance: int) -> Longs:
    """The sums of values and a distance; the least or greatest long for a sum beyond it."""
    limits = np.iinfo(np.int64)
    distance = max(min(distance, limits.max), -limits.max)
    if distance > 0:
        return np.where(values > limits.max - distance, limits.max, values + distance)
    return np.where(values < limits.min - distance, limits.min, values + distance)


def as_number(column: pa.Array) -> npt.NDArray[Any]:
    """Numbers, dates (days), times (microseconds) and short decimals (their digits); 0 for null."""
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64()).fill_null(0.0).to_numpy()  # type: ignore[no-any-return]
    if pa.types.is_decimal(column.type):
        return unscaled(column.fill_null(pa.scalar(Decimal(0), column.type)))  # type: ignore[no-any-return]
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return column.cast(pa.int64()).fill_null(0).to_numpy()  # type: ignore[no-any-return]


def _ends(new: Mask) -> Longs:
    starts = np.append(np.flatnonzero(new), len(new))
    return np.repeat(starts[1:], np.diff(starts))


def fold(
    values: npt.NDArray[Any], low: Longs, high: Longs, combine: Callable[..., Any], neutral: Any
) -> npt.NDArray[Any]:
    """Combine the values of each range, in steps whose lengths are powers of two: nothing is subtracted.

    >>> fold(np.array([1, 2, 4]), np.array([0, 1, 2]), np.array([3, 3, 2]), np.add, 0).tolist()
    [7, 6, 0]
    """
    folded = np.full((len(low), *values.shape[1:]), neutral, values.dtype)
    sizes, at, power, width = high - low, low.copy(), values.copy(), 1
    while width <= sizes.max(initial=0):
        some = (sizes & width) > 0
        folded[some] = combine(folded[some], power[at[some]])
        at[some] += width
        if len(power) > width:
            power = combine(power[:-width], power[width:])
        width *= 2
    return folded


# -- each function -------------------------------------------------------------------------------------------


def _numbering(call: Frame, partitions: Partitions) -> pa.Array:
    size, place = partitions.end - partitions.begin, partitions.place - partitions.begin
    rank = partitions.first_peer - partitions.begin + 1
    match call.function:
        case "row_number":
            numbers: Any = place + 1
        case "rank":
            numbers = rank
        case "dense_rank":
            count = np.cumsum(partitions.new_peers)
            numbers = count - count[partitions.begin] + 1
        case "percent_rank":
            numbers = np.where(size > 1, (rank - 1) / np.maximum(size - 1, 1), 0.0)
        case "cume_dist":
            numbers = (partitions.peers_end - partitions.begin) / size
        case _:  # ntile
            parts = np.int64(call.options[0])
            small, more = size // parts, size % parts
            edge = more * (small + 1)
            numbers = (
                np.where(place < edge, place // (small + 1), more + (place - edge) // np.maximum(small, 1))
                + 1
            )
    return pa.array(numbers).cast(call.type)


def _taken(values: Any, rows: Longs, valid: Any, kind: pa.DataType) -> pa.Array:
    return flat(values).take(pa.array(np.where(valid, rows, 0), mask=~valid)).cast(kind)


def _shifted(call: Frame, partitions: Partitions) -> pa.Array:
    values = partitions.table.column(call.columns[0])
    by = int(call.options[0]) * (-1 if call.function == "lag" else 1)
    rows = partitions.place + by
    inside = (rows >= partitions.begin) & (rows < partitions.end)
    if call.ignore_nulls and by:
        some = np.flatnonzero(flat(values).is_valid().to_numpy(zero_copy_only=False))
        at = np.searchsorted(some, partitions.place, "left" if by < 0 else "right") + by - (by > 0)
        exists = (at >= 0) & (at < len(some))
        rows = some[np.where(exists, at, 0)] if len(some) else partitions.place
        inside = exists & (rows >= partitions.begin) & (rows < partitions.end)
    shifted = _taken(values, rows, inside, call.type)
    if len(call.columns) > 1:
        default = flat(partitions.table.column(call.columns[1])).cast(call.type)
        shifted = pc.if_else(pa.array(inside), shifted, default)
    return shifted


def _placed(call: Frame, partitions: Partitions) -> pa.Array:
    values = partitions.table.column(call.columns[0])
    low, high = partitions.frame(call)
    if call.ignore_nulls or len(call.columns) > 1:
        valid = flat(values).is_valid() if call.ignore_nulls else pa.scalar(True)  # noqa: FBT003
        for name in call.columns[1:]:  # FILTER
            valid = pc.and_(valid, flat(partitions.table.column(name)).fill_null(False))  # noqa: FBT003
        some = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
        first, last = np.searchsorted(some, low), np.searchsorted(some, high)
    else:
        some, first, last = partitions.place, low, high
    match call.function:
        case "first_value":
            at = first
        case "last_value":
            at = last - 1
        case _:  # nth_value
            at = first + int(call.options[0]) - 1
    inside = (at >= first) & (at < last)
    rows = some[np.where(inside, at, 0)] if len(some) else np.zeros(partitions.rows, np.int64)
    return _taken(values, rows, inside, call.type)


def _aggregated(call: Frame, partitions: Partitions) -> pa.Array:  # noqa: PLR0911 - a table
    low, high = partitions.frame(call)
    if not call.columns:
        return pa.array(high - low)
    values = flat(partitions.table.column(call.columns[0]))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    counts = fold(valid.astype(np.int64), low, high, np.add, 0)
    match call.function:
        case "count":
            return pa.array(counts)
        case "count_if":
            true = values.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
            return pa.array(fold(true.astype(np.int64), low, high, np.add, 0))
        case "min" | "max" | "bool_and" | "bool_or":
            least = call.function in {"min", "bool_and"}
            return _least(values, low, high, counts, call.type, least=least)
        case "sum":
            return _summed(values, low, high, counts, call.type)
        case function if function in _MOMENTS:
            return _moments(call.function, values, low, high)
    if pa.types.is_decimal(call.type) or call.type == INTERVAL:  # avg
        total = _summed(values, low, high, counts, pa.decimal128(38, scale_of(values.type)))
        return quotient(total, pa.array(counts, mask=counts == 0), call.type)
    total = _summed(values, low, high, counts, pa.float64(), exact=False)
    return pc.divide(total, pa.array(np.maximum(counts, 1)).cast(pa.float64()))


def _least(
    values: pa.Array, low: Longs, high: Longs, counts: Longs, kind: pa.DataType, *, least: bool
) -> pa.Array:
    rank = ranks(values)
    if least:
        best = fold(np.where(rank == 0, len(rank) + 1, rank), low, high, np.minimum, len(rank) + 1)
    else:
        best = fold(rank, low, high, np.maximum, 0)
    row_of = np.zeros(len(rank) + 2, np.int64)
    row_of[rank] = np.arange(len(rank))
    return _taken(values, row_of[best], counts > 0, kind)


def _summed(
    values: pa.Array, low: Longs, high: Longs, counts: Longs, kind: pa.DataType, *, exact: bool = True
) -> pa.Array:
    if exact and not pa.types.is_floating(kind):
        limbs = [fold(limb, low, high, np.add, 0) for limb in limbs_of(values)[1]]
        return sums_of_limbs(limbs, scale_of(kind), kind, counts == 0)
    doubles = as_doubles(values).fill_null(0.0).to_numpy()
    return pa.array(fold(doubles, low, high, np.add, 0.0), mask=counts == 0)


def _moments(function: str, values: pa.Array, low: Longs, high: Longs) -> pa.Array:
    """The variance of each range, or its root, from counts, means and sums of squared differences.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
    variances, 1979. Of equal values it is 0.
    """

    def merged(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
        n, apart = a[:, 0] + b[:, 0], b[:, 1] - a[:, 1]
        share = np.divide(b[:, 0], n, out=np.zeros_like(n), where=n > 0)
        return np.column_stack([n, a[:, 1] + apart * share, a[:, 2] + b[:, 2] + apart**2 * a[:, 0] * share])

    valid = values.is_valid().to_numpy(zero_copy_only=False)
    doubles = as_doubles(values).fill_null(0.0).to_numpy()
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        singles = np.column_stack([valid, doubles, np.where(np.isfinite(doubles), 0.0, np.nan)])
        n, _, squares = fold(singles, low, high, merged, 0.0).T
        least = 1 if function in {"variance", "stddev"} else 0
        variance = squares / (n - least)
        moments = np.sqrt(variance) if function.startswith("stddev") else variance
    return pa.array(moments, mask=n <= least)


def _gathered(call: Frame, partitions: Partitions) -> pa.Array:
    """An aggregate of groups, of which each distinct frame is one."""
    aggregate, table = call.options[0], partitions.table.select(dict.fromkeys(call.columns))
    frames, which = np.unique(np.column_stack(partitions.frame(call)), axis=0, return_inverse=True)
    ends, parts, start = np.cumsum(frames[:, 1] - frames[:, 0]), [pa.nulls(0, call.type)], 0
    while start < len(frames):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        low, sizes = frames[start:stop, 0], np.diff(frames[start:stop]).ravel()
        of = np.repeat(np.arange(stop - start), sizes)
        rows = np.arange(len(of)) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
        members = table.take(pa.array(rows)).append_column(GROUP, pa.array(of))
        members = members.append_column(DIFF, pa.array(np.ones(len(of), np.int64)))
        groups = GroupRecords(members, stop - start)
        parts.append(flat(AGGREGATES[aggregate.function](aggregate, groups)).cast(call.type))
        start = stop
    return pa.concat_arrays(parts).take(pa.array(which.ravel()))


_MOMENTS = ("stddev", "stddev_pop", "variance", "var_pop")
_AGGREGATES = ("count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or", *_MOMENTS)
FUNCTIONS: dict[str, Callable[[Frame, Partitions], pa.Array]] = {
    **dict.fromkeys(("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"), _numbering),
    **dict.fromkeys(("lag", "lead"), _shifted),
    **dict.fromkeys(("first_value", "last_value", "nth_value"), _placed),
    **dict.fromkeys(_AGGREGATES, _aggregated),
    GATHERED: _gathered,
}


# -- the reduction -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WindowFunctions(Logic):
    """The records of each partition with functions of their windows."""

    order: tuple[Order, ...]
    calls: tuple[tuple[str, Frame], ...]

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        columns = inputs.schema.names
        read = [one.column for one in self.order] + [name for _, call in self.calls for name in call.columns]
        for name in dict.fromkeys(one for one in read if one not in columns):  # keys of the partition
            inputs = inputs.append_column(name, keys.column(name).take(inputs.column(GROUP)))
        rows, order = rows_in_order(inputs, self.order)
        counts = numbers(inputs, DIFF)[rows]
        if (total := counts.astype(np.float64).sum()) > MOST_RECORDS:  # which no long may hold
            msg = f"windows of {total:,.0f} records, {len(rows):,} of them distinct"
            raise SchemaError(msg, hint="give the window a PARTITION BY, or drop equal records by DISTINCT.")
        many = np.repeat(np.arange(len(rows)), counts)
        table = inputs.take(pa.array(rows[many]))
        new = changes(numbers(table, GROUP))
        for one in order:
            new = new | changes(one[many])
        partitions = Partitions(table.combine_chunks(), new, self.order)
        extended = table.select([one for one in columns if one != DIFF])
        for name, call in self.calls:
            extended = extended.append_column(
                pa.field(name, call.type), FUNCTIONS[call.function](call, partitions)
            )
        return consolidate(extended.append_column(DIFF, pa.array(np.ones(extended.num_rows, np.int64))))


def windowed(
    collection: Collection, partition: tuple[str, ...], order: Sequence[Order], calls: Mapping[str, Frame]
) -> Collection:
    """The records with functions of their windows."""
    fields = [pa.field(name, call.type) for name, call in calls.items()]
    shown = f"{', '.join(map(str, calls.values()))} by {', '.join(map(str, order))}"
    return by_keys(
        "over",
        collection,
        partition,
        lambda by: WindowFunctions(by, tuple(order), tuple(calls.items())),
        fields,
        detail=shown,
        calls=[repr(call) for call in calls.values()],
        order=[str(one) for one in order],
    )
