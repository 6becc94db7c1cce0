"""The times of rows: those of each stored row, in columns, and logical compaction.

The library's own times are one column of integers per coordinate, so that the times of many rows are compared
at once. A time of a user's kind, or with an inner time of a user's type, is one column of JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.state.arrow import Hashes, Indices, Mask, numbers, replaced
from timely_spark.state.bounds import parse_json
from timely_spark.state.codes import numbers_of, runs
from timely_spark.state.grouping import Groups, changes
from timely_spark.state.hashing import exact
from timely_spark.times import PRODUCT, CompactingTimes, RefinedTime, Time, Times, Timestamp, only_epochs

Coordinates = npt.NDArray[np.int64]
"""The times of rows: an array of shape (rows, coordinates)."""

Compact = Callable[[Hashes, pa.Table], tuple[Hashes, pa.Table]]
"""Drops or combines rows, given in the order of their hashes; see `Arrangement.insert`."""

Fold = Callable[[pa.Table, Groups], tuple[Indices, pa.Table]]
"""Combines the rows of each group: in the order of the groups, a row number and the combined row."""

DIFF = "__timely_diff"
"""The column of differences: by how much the multiplicity of a record grows at a time."""

TIME = "__timely_time"
"""The beginning of the names of time columns."""
EPOCH = f"{TIME}0"
"""The column of epochs."""


def with_time(table: pa.Table, time: Timestamp) -> pa.Table:
    """The table with the time columns of `time`.

    Example:
        >>> with_time(pa.table({"k": ["a", "b"]}), Time(7, 1)).to_pydict()
        {'k': ['a', 'b'], '__timely_time0': [7, 7], '__timely_time1': [1, 1]}
    """
    if not isinstance(time, Time) or isinstance(time, RefinedTime):
        text = json.dumps(time.encode(), separators=(",", ":"))
        return table.append_column(EPOCH, pa.repeat(text, table.num_rows))
    for i, value in enumerate(time):
        table = table.append_column(f"{TIME}{i}", pa.array(np.full(table.num_rows, value, np.int64)))
    return table


def with_each_time(tables: Sequence[tuple[Time, pa.Table]]) -> pa.Table:
    """The rows of tables of one schema, each with the time columns of its table's time.

    Example:
        >>> a, b = pa.table({"k": ["a", "b"]}), pa.table({"k": ["c"]})
        >>> with_each_time([(Time(7), a), (Time(8), b)]).to_pydict()
        {'k': ['a', 'b', 'c'], '__timely_time0': [7, 7, 8]}
    """
    if len(tables) == 1:
        time, rows = tables[0]
        return with_time(rows, time)
    rows = pa.concat_tables([table for _, table in tables])
    sizes = [table.num_rows for _, table in tables]
    for i, values in enumerate(zip(*(time for time, _ in tables), strict=True)):
        rows = rows.append_column(f"{TIME}{i}", pa.array(np.repeat(np.array(values, np.int64), sizes)))
    return rows


def time_columns(table: pa.Table) -> list[str]:
    """The names of the time columns."""
    return [column for column in table.schema.names if column.startswith(TIME)]


def epochs_of(table: pa.Table) -> Indices:
    """The epochs of rows with times of the library's own kinds."""
    return numbers(table, EPOCH).astype(np.int64, copy=False)


def times_of(table: pa.Table, depth: int) -> tuple[Coordinates, pa.Table]:
    """The times of rows as integers, and the rows without the time columns.

    Rows from outside a loop have fewer coordinates; inside the loop they are at iteration 0.

    Args:
        table: rows with times of the library's own kinds.
        depth: the number of coordinates of a time here.
    """
    names = time_columns(table)
    times = np.zeros((table.num_rows, depth), np.int64, order="F")
    for i, column in enumerate(names):
        times[:, i] = numbers(table, column)
    return times, table.drop_columns(names)


def by_join(rows: pa.Table, times: Coordinates, time: Timestamp) -> Iterator[tuple[list[int], pa.Table]]:
    """Rows by the join of `time` with their own times in product order: each different join, and its rows."""
    joined = np.maximum(times, np.array(time, np.int64))
    if (joined == joined[:1]).all():
        yield from [(joined[0].tolist(), rows)] if len(joined) else ()
        return
    yield from _slices(rows, joined, lambda row: joined[row].tolist())


def _slices(rows: pa.Table, keys: Coordinates, key: Callable[[int], Any]) -> Iterator[tuple[Any, pa.Table]]:
    groups = runs(list(keys.T), len(keys))
    yield from zip(map(key, groups.firsts.tolist()), groups.slices(rows), strict=True)


@dataclass(frozen=True, slots=True)
class RowTimes:
    """The times of rows, of any kind.

    Example:
        >>> rows = with_time(pa.table({"k": ["a", "b"]}), Time(7, 1))
        >>> times, rows = RowTimes.of(rows, PRODUCT)
        >>> times.less_equal(Time(7, 0)).tolist(), [time for time, _ in times.joins(Time(3, 2), rows)]
        ([False, False], [Time(7, 2)])
    """

    kind: Times
    #: in product order the coordinates; else one number per row, an index into `values`
    numbers: Coordinates
    values: Sequence[Any] = ()

    @classmethod
    def of(cls, table: pa.Table, kind: Times) -> tuple[RowTimes, pa.Table]:
        """The times of rows, and the rows without the time columns."""
        names = time_columns(table)
        if kind == PRODUCT:
            times, rows = times_of(table, len(names))
            return cls(kind, times), rows
        groups = runs(numbers_of(table, names), table.num_rows)
        columns = [table.column(name).take(pa.array(groups.firsts)).to_pylist() for name in names]
        distinct = zip(*columns, strict=True)
        values = [kind.decode(parse_json(t[0]) if isinstance(t[0], str) else t) for t in distinct]
        return cls(kind, groups.of[:, np.newaxis], values), table.drop_columns(names)

    def filter(self, mask: Mask) -> RowTimes:
        """The times of some of the rows."""
        return RowTimes(self.kind, self.numbers[mask], self.values)

    def less_equal(self, time: Timestamp) -> Mask:
        """The rows whose time is before or equal to a time."""
        if self.kind == PRODUCT:
            return np.asarray((self.numbers <= np.array(time, np.int64)).all(axis=1))
        before = np.array([value.less_equal(time) for value in self.values], np.bool_)
        return np.asarray(before[self.numbers[:, 0]])

    def joins(self, time: Timestamp, rows: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        """The rows by the joins of their times with `time`."""
        if self.kind == PRODUCT:
            for moment, part in by_join(rows, self.numbers, time):
                yield self.kind.decode(moment), part
            return
        joined = [value.join(time) for value in self.values]
        distinct = {value: i for i, value in enumerate(dict.fromkeys(joined))}
        which = np.array([distinct[value] for value in joined], np.int64)[self.numbers]
        yield from _slices(rows, which, lambda row: joined[self.numbers[row, 0]])


def advanced(table: pa.Table, kind: Times, since: int) -> pa.Table:
    """The rows with `CompactingTimes.advance` applied to their times: none is before epoch `since` then."""
    if only_epochs(kind):
        return replaced(table, EPOCH, np.maximum(epochs_of(table), since - 1))
    if not isinstance(kind, CompactingTimes):
        return table
    times, rows = RowTimes.of(table, kind)
    one = rows.slice(0, 1)
    moments = pa.concat_tables([with_time(one, kind.advance(value, since)) for value in times.values])
    moments = moments.take(pa.array(times.numbers[:, 0]))
    for column in time_columns(moments):
        rows = rows.append_column(column, moments[column])
    return rows


def compaction(since: int, kind: Times, labels: Sequence[str] = (), fold: Fold | None = None) -> Compact:
    """Logical compaction (differential's `advance_by`): advance times, and fold the rows that become equal.

    Args:
        since: nothing arrives at an earlier epoch.
        labels: columns; rows are folded if they are equal there and their times become equal.
        fold: combines the rows of groups; None if none are folded.
    """

    def compact(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        table = advanced(table, kind, since)
        if fold is None:
            return hashed, table
        same_hash = np.cumsum(changes(hashed), dtype=np.int64)
        needed = [] if exact(table, labels) else labels
        numbers = numbers_of(table, [*needed, *time_columns(table)])
        rows, table = fold(table, runs([same_hash, *numbers], table.num_rows))
        return hashed[rows], table

    return compact
