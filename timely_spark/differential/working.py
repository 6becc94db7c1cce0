"""The working set of a reduction: the accumulated records and results of its active keys in one loop context.

A time is a context (all coordinates but the last) and an iteration. The times of one context are totally
ordered by iteration, so the accumulation of a key at one iteration is that of the iteration before, plus the
changes since. The traces of a key are read once per context, when the key becomes active. From then on an
iteration costs the accumulated records of the keys that change in it, however long their traces are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.differential.reducers import GROUP, Logic, NumberedRows
from timely_spark.differential.trace import DIFF, check_totals
from timely_spark.state.arrangement import Arrangement, Matches
from timely_spark.state.arrow import FEW, Hashes, Indices, numbers, rows_at
from timely_spark.state.codes import runs
from timely_spark.state.grouping import Groups, changes, group, ranges, run_starts
from timely_spark.state.hashing import exact, hashes, same
from timely_spark.state.row_times import TIME, Coordinates, by_join
from timely_spark.times import Timestamp

#: numbers are sorted instead of marked if fewer than one in so many of all occur
_SPARSE = 16


class HasNulls(Exception):
    """A value column that is used as its own number contains nulls."""


class Numbering:
    """Numbers distinct rows 0, 1, ... in the order of their first occurrence."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        #: the distinct rows in the order of their numbers; each part is at least twice as long as the next
        self._parts: list[pa.Table] = []
        #: a table without rows
        self._none = pa.table({})
        #: the number of the first row of each part, and at the end that of the next new row
        self._starts = np.zeros(1, np.int64)
        #: ascending hashes of rows and the rows' numbers; each run is at least twice as long as the next
        self._runs: list[tuple[Hashes, Indices]] = []
        #: whether equal hashes were of equal rows in all tables so far
        self._sure = True

    def __len__(self) -> int:
        return int(self._starts[-1])

    def of(self, table: pa.Table) -> tuple[Indices, Groups, pa.Table, Hashes, Indices]:
        """The number of each group of equal rows, and the groups; and new rows, their hashes and numbers."""
        table = table.select(self.columns)
        hashed = hashes(table, self.columns)
        groups = group(table, self.columns, hashed)
        firsts = groups.firsts
        hashed, self._sure = hashed[firsts], self._sure and exact(table, self.columns)
        ids = self._numbers(hashed, None if self._sure else table.take(pa.array(firsts)))
        (new,) = (ids < 0).nonzero()
        self._none = table.slice(0, 0)
        numbered = ids[new] = np.arange(self._starts[-1], self._starts[-1] + len(new))
        if len(new) == table.num_rows == 1:
            fresh = table.combine_chunks()
        else:
            fresh, hashed = rows_at(table, firsts[new]), hashed[new]
        if len(new):
            self._add(fresh, hashed, numbered)
        return ids, groups, fresh, hashed, numbered

    def _numbers(self, hashed: Hashes, rows: pa.Table | None) -> Indices:
        """The numbers of rows with these hashes; -1 for new rows. Without `rows`, equal hashes decide."""
        ids = np.full(len(hashed), -1, np.int64)
        for run, numbered in self._runs:
            at = run.searchsorted(hashed)
            (who,) = (run.take(at, mode="clip") == hashed).nonzero()
            at = at[who]
            while rows is not None and len(who):
                right = same(self.rows(numbered[at]), rows.take(pa.array(who)), self.columns, self.columns)
                ids[who[right]] = numbered[at[right]]
                who, at = who[~right], at[~right] + 1  # other rows with this hash
                equal = run.take(at, mode="clip") == hashed[who]
                equal &= at < len(run)
                who, at = who[equal], at[equal]
            ids[who] = numbered[at]
        return ids

    def _add(self, rows: pa.Table, hashed: Hashes, numbered: Indices) -> None:
        self._parts.append(rows)
        while len(self._parts) > 1 and self._parts[-2].num_rows < 2 * self._parts[-1].num_rows:
            self._parts[-2:] = [pa.concat_tables(self._parts[-2:]).combine_chunks()]
        self._starts = np.cumsum([0, *(part.num_rows for part in self._parts)])
        self._runs.append((hashed, numbered))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            hashed, numbered = (np.concatenate(each) for each in zip(*self._runs[-2:], strict=True))
            order = np.argsort(hashed, kind="stable")  # two sorted runs: linear
            self._runs[-2:] = [(hashed[order], numbered[order])]

    def among(self, *which: Indices) -> Indices:
        """The distinct numbers of several arrays, ascending."""
        every = which[0] if len(which) == 1 else np.concatenate(which)
        if _SPARSE * len(every) < self._starts[-1]:
            every = np.sort(every)
            return every[changes(every)]
        members = np.zeros(self._starts[-1], np.bool_)
        members[every] = True
        return np.flatnonzero(members)

    def rows(self, which: Indices) -> pa.Table:
        """The rows with these numbers."""
        part = self._starts.searchsorted(which, "right") - 1
        if not len(part):
            return self._none
        if (part == part[0]).all():
            return rows_at(self._parts[part[0]], which - self._starts[part[0]])
        order = np.argsort(part, kind="stable")
        ends = part[order].searchsorted(np.arange(len(self._parts) + 1))
        rows = [
            rows_at(self._parts[at], which[order[low:high]] - self._starts[at])
            for at, (low, high) in enumerate(pairwise(ends.tolist()))
            if low < high
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return rows_at(pa.concat_tables(rows).combine_chunks(), back)


class RowsByKey:
    """Integer rows grouped by key; the rows of a key are replaced as a whole."""

    def __init__(self) -> None:
        #: per key the position of its first row, and the number of its rows
        self._start = self._size = np.zeros(0, np.int64)
        self._columns: NumberedRows = []
        self._used = 0

    def of(self, keys: Indices) -> NumberedRows:
        """The rows of some keys; the first column is the position of the key in `keys`, ascending."""
        if not self._columns or not len(keys):
            return []
        self._grow(int(keys.max()) + 1)
        sizes = self._size[keys]
        if not sizes.any():
            return []
        which = np.arange(len(keys)).repeat(sizes)
        at = ranges(self._start[keys], sizes)
        return [which, *(column[at] for column in self._columns)]

    def replace(self, keys: Indices, rows: NumberedRows) -> None:
        """Replace the rows of some keys; the first column is the position of the key in `keys`, ascending."""
        if not len(keys):
            return
        self._grow(int(keys.max()) + 1)
        self._size[keys] = 0
        if not rows:
            return
        which, *columns = rows
        n = len(which)
        self._columns = self._columns or [np.zeros(0, np.int64) for _ in columns]
        if self._used + n > len(self._columns[0]):
            self._make_room(n)
        sizes = np.bincount(which, minlength=len(keys))
        self._start[keys], self._size[keys] = self._used + sizes.cumsum() - sizes, sizes
        for stored, new in zip(self._columns, columns, strict=True):
            stored[self._used : self._used + n] = new
        self._used += n

    def _grow(self, keys: int) -> None:
        if (more := keys - len(self._size)) > 0:
            room = np.zeros(max(more, len(self._size)), np.int64)
            self._start, self._size = (np.concatenate([old, room]) for old in (self._start, self._size))

    def _make_room(self, n: int) -> None:
        """Drop replaced rows, and allocate room for twice `n` new ones."""
        keys = np.flatnonzero(self._size)
        sizes = self._size[keys]
        at = ranges(self._start[keys], sizes)
        room = np.zeros(max(len(at) + 2 * n, FEW), np.int64)  # amortises the copies
        self._columns = [np.concatenate([column[at], room]) for column in self._columns]
        self._start[keys] = sizes.cumsum() - sizes
        self._used = len(at)


class Values:
    """Numbers of the values of records (the columns that are not keys), and the values of such numbers."""

    def __init__(self, *, plain: bool) -> None:
        #: whether a single integer column is used as its own number
        self.plain = plain
        self.fields: list[pa.Field] = []
        self._numbering: Numbering | None = None

    def numbers(self, rows: pa.Table | Matches, columns: Sequence[str]) -> Indices:
        """The number of each row."""
        assert rows.schema is not None
        self.fields = [rows.schema.field(column) for column in columns]
        if not columns:
            return np.zeros(len(rows), np.int64)
        if self._is_plain():
            values = _integers(rows, columns[0])
            if values is None:
                raise HasNulls
            return values.astype(np.int64, copy=False)
        if self._numbering is None:
            self._numbering = Numbering(columns)
        ids, groups, *_ = self._numbering.of(rows.table(columns) if isinstance(rows, Matches) else rows)
        return ids[groups.of]

    def columns(self, which: Indices) -> dict[str, Any]:
        """The values with these numbers, by column."""
        if self._is_plain():
            return {self.fields[0].name: pa.array(which, self.fields[0].type)}
        if self._numbering is None or not self.fields:
            return {}
        return dict(zip(self._numbering.columns, self._numbering.rows(which).columns, strict=True))

    def _is_plain(self) -> bool:
        return len(self.fields) == 1 and self.are_numbers(self.fields)

    def are_numbers(self, fields: Sequence[pa.Field]) -> bool:
        """Whether values of these columns are their own numbers, or there are no columns."""
        return not fields or (self.plain and [pa.types.is_signed_integer(f.type) for f in fields] == [True])


def _integers(rows: pa.Table | Matches, column: str) -> npt.NDArray[Any] | None:
    """A column of integers; None if it has nulls."""
    if isinstance(rows, Matches):
        return rows.integers(column)
    return None if rows.column(column).null_count else numbers(rows, column)


@dataclass
class Side:
    """A working set's part of one trace: the input trace, or the output trace."""

    trace: Arrangement
    values: Values
    #: per key the rows accumulated up to the present iteration
    accumulated: RowsByKey = field(default_factory=RowsByKey)
    #: rows of the trace that count from a later iteration on, by that iteration
    later: dict[int, list[NumberedRows]] = field(default_factory=dict)
    #: the changes of this context with their times; they are added to the trace when the context is left
    fresh: list[tuple[Any, pa.Table]] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)

    def coded(self, which: Indices, rows: pa.Table | Matches, keys: Sequence[str]) -> NumberedRows:
        """Rows whose keys have the numbers `which`."""
        assert rows.schema is not None
        names = rows.schema.names
        labels = [column for column in names if column not in keys and not column.startswith((DIFF, TIME))]
        self.weights = [column for column in names if column.startswith(DIFF)]
        weights = (
            rows.numbers(one) if isinstance(rows, Matches) else numbers(rows, one) for one in self.weights
        )
        return [which, self.values.numbers(rows, labels), *weights]

    def columns(self, rows: NumberedRows) -> dict[str, Any]:
        """The values and weights of rows, by column."""
        return self.values.columns(rows[1]) | dict(zip(self.weights, map(pa.array, rows[2:]), strict=True))

    def put_off(self, iterations: Indices, rows: NumberedRows) -> None:
        """Store rows that count from a later iteration on."""
        at, *rows = consolidated_rows([[iterations, *rows]], 3)
        bounds = [*run_starts(at).tolist(), len(at)]
        for low, high in pairwise(bounds if len(at) else ()):
            self.later.setdefault(int(at[low]), []).append([column[low:high] for column in rows])

    def due(self, iteration: int) -> list[NumberedRows]:
        """The stored rows that count from this iteration, or an earlier one, on."""
        return [rows for at in sorted(self.later) if at <= iteration for rows in self.later[at]]

    def forget_due(self, iteration: int) -> None:
        """Drop the rows that `due` gave."""
        for at in [at for at in self.later if at <= iteration]:
            del self.later[at]

    def parts(self, keys: Indices, place: Indices, added: NumberedRows) -> list[NumberedRows]:
        """Accumulated and added rows of `keys`; the first column is a key's position, as `place` has it."""
        parts = [self.accumulated.of(keys), [place[added[0]], *added[1:]] if added else []]
        return [part for part in parts if part and len(part[0])]


def _together(parts: Sequence[NumberedRows]) -> NumberedRows:
    """The rows of all parts."""
    if len(parts) > 1:
        return [np.concatenate(each) for each in zip(*parts, strict=True)]
    return parts[0] if parts else []


def consolidated_rows(parts: Sequence[NumberedRows], labels: int = 2) -> NumberedRows:
    """The rows of all parts, sorted by their labels; weights of equal labels are added up, zeros dropped."""
    if not parts:
        return []
    columns = _together(parts)
    equal = runs(columns[:labels], len(columns[0]))
    weights = columns[labels:]  # the first is the multiplicity
    check_totals(equal, {f"{DIFF}_{i}" if i else DIFF: each for i, each in enumerate(weights)})
    firsts, totals = equal.nonzero(weights)
    return [*(column[firsts] for column in columns[:labels]), *totals]


class WorkingSet:
    """The active keys of a reduction in one loop context.

    Args:
        indexed: whether the input trace is a shared index, with more columns than `Logic.partial` keeps.
        tells_negative: whether negative multiplicities have no meaning outside of loops.
    """

    def __init__(
        self,
        logic: Logic,
        time: Timestamp,
        records: Side,
        results: Side,
        *,
        indexed: bool,
        tells_negative: bool = False,
    ) -> None:
        self.logic, self.records, self.results, self.indexed = logic, records, results, indexed
        *self.context, _ = time.encode()
        self.keys = Numbering(logic.keys)
        #: whether there is `negative`; iterations of loops may have such records
        self._tells_negative = tells_negative and not self.context
        #: the affected records of negative multiplicity at the last call of `changes`; None if none was
        self.negative: pa.Table | None = None
        #: per key the contexts in which its times of other contexts join a time of this one: the first
        #: iteration there, and the context
        self._beside = RowsByKey()
        #: iterations for which a notification was requested
        self._requested: set[int] = set()

    def changes(
        self, time: Timestamp, keys: list[pa.Table], added: pa.Table | None
    ) -> tuple[pa.Table | None, list[tuple[list[int], pa.Table]]]:
        """The changes of the results at a time.

        Args:
            time: a complete time of this context, later than those of earlier calls.
            keys: the keys to recompute, those of `added` first.
            added: the changes of the input at this time.

        Returns:
            The changes of the output, or None; and interesting times in other contexts, with their keys.
            After `HasNulls` the working set is unusable, but for `Side.fresh` and `remaining`.
        """
        *_, at = time.encode()
        self.negative = None
        arrived: list[NumberedRows] = []
        old: list[NumberedRows] = []
        affected = np.zeros(0, np.int64)
        if keys:
            affected, groups, new, hashed, which = self.keys.of(pa.concat_tables(keys))
            if added is not None:
                ids = affected[groups.of[: added.num_rows]]
                arrived.append(self.records.coded(ids, added, self.logic.keys))
            if len(which):
                arrived += self._read(self.records, new, hashed, which, at)
                old += self._read(self.results, new, hashed, which, at)
        due_records, due_results = self.records.due(at), self.results.due(at)
        new_records, new_results = _together([*arrived, *due_records]), _together([*old, *due_results])
        if due := [*due_records, *due_results]:
            affected = self.keys.among(affected, *(rows[0] for rows in due))
        if not len(affected):
            return None, []
        changed = self._changed(affected, new_records, new_results)
        self.records.forget_due(at)
        self.results.forget_due(at)
        beside = self._beside.of(affected)
        if not beside:
            return changed, []
        times = np.stack([*beside[2:], beside[1]], axis=1)
        return changed, list(by_join(self.keys.rows(affected[beside[0]]), times, time))

    def _read(
        self, side: Side, keys: pa.Table, hashed: Hashes, which: Indices, at: int
    ) -> list[NumberedRows]:
        """A trace's rows of newly active keys up to an iteration; later ones are put in `Side.later`."""
        matches = side.trace.find(keys, self.logic.keys, hashed)
        if not len(matches):
            return []
        times = matches.times(len(self.context) + 1)
        rows: pa.Table | Matches = matches
        if self.indexed and side is self.records:
            rows = self.logic.partial(matches.table([c for c in matches.columns() if not c.startswith(TIME)]))
        coded = side.coded(which[matches.probe], rows, self.logic.keys)
        later = times[:, -1] > at
        inside = (times[:, :-1] <= np.array(self.context, np.int64)).all(axis=1)
        if not inside.all():
            if side is self.records:
                self._store_joins(coded[0][~inside], times[~inside])
            later, times = later[inside], times[inside]
            coded = [column[inside] for column in coded]
        if not later.any():
            return [coded]
        side.put_off(times[later, -1], [column[later] for column in coded])
        return [[column[~later] for column in coded]]

    def _store_joins(self, which: Indices, times: Coordinates) -> None:
        """Store the joins of this context with those of other times, and their first iterations."""
        joined = np.maximum(times[:, :-1], np.array(self.context, np.int64))
        first = runs([which, *joined.T, times[:, -1]], len(which)).firsts
        first = first[runs([which[first], *joined[first].T], len(first)).firsts]
        keys = self.keys.among(which)
        places = np.searchsorted(keys, which[first])
        self._beside.replace(keys, [places, times[first, -1], *joined[first].T])

    def _changed(self, affected: Indices, arrived: NumberedRows, old: NumberedRows) -> pa.Table | None:
        """The changes of the results of keys, after more records have been accumulated."""
        place = np.empty(len(self.keys), np.int64)
        place[affected] = np.arange(len(affected))
        rows = consolidated_rows(self.records.parts(affected, place, arrived))
        self.records.accumulated.replace(affected, rows)
        if self._tells_negative and rows and (below := rows[2] < 0).any():
            self.negative = self._table(self.records, affected, [column[below] for column in rows])
        parts = [self._results(affected, rows)] if rows and len(rows[0]) else []
        before = self.results.parts(affected, place, old)
        self.results.accumulated.replace(affected, parts[0] if parts else [])
        changed = consolidated_rows([*parts, *([*rows[:2], -rows[2]] for rows in before)])
        if not changed or not len(changed[0]):
            return None
        return self._table(self.results, affected, changed)

    def _table(self, side: Side, affected: Indices, rows: NumberedRows) -> pa.Table:
        columns = dict(zip(self.keys.columns, self.keys.rows(affected[rows[0]]).columns, strict=True))
        return pa.table(columns | side.columns(rows))

    def _results(self, affected: Indices, rows: NumberedRows) -> NumberedRows:
        """The results of accumulated records."""
        records, results = self.records.values, self.results.values
        numbered = self.logic.numbered(rows, records.fields) if records.are_numbers(records.fields) else None
        if numbered is None or not results.are_numbers(numbered[1]):
            groups = pa.table({GROUP: rows[0]} | self.records.columns(rows))
            table = self.logic.results(self.keys.rows(affected), groups)
            return self.results.coded(numbers(table, GROUP), table, [GROUP])
        rows, results.fields = numbered
        self.results.weights = [DIFF]
        return rows

    def requests(self) -> list[int]:
        """The iterations with later rows for which no notification was requested yet."""
        new = sorted({*self.records.later, *self.results.later} - self._requested)
        self._requested.update(new)
        return new

    def remaining(self) -> list[tuple[list[int], pa.Table]]:
        """The later rows as interesting times, with their keys."""
        return [
            ([*self.context, at], self.keys.rows(self.keys.among(*(rows[0] for rows in waiting))))
            for at in sorted({*self.records.later, *self.results.later})
            if (waiting := [*self.records.later.get(at, ()), *self.results.later.get(at, ())])
        ]
