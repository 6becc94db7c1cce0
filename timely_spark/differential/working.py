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
import pyarrow as pa

from timely_spark.differential.reducers import GROUP, Logic, Rows
from timely_spark.differential.trace import DIFF, labels_of, numbers, weights_of
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.codes import runs
from timely_spark.state.history import Coordinates, by_join, times_of
from timely_spark.state.keys import Hashes, Indices, exact, group, hashes, same


class HasNulls(Exception):
    """A value column that is used as its own number contains nulls."""


class Numbering:
    """Numbers distinct rows 0, 1, ... in the order of their first occurrence."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        #: the distinct rows, by number
        self.table: pa.Table | None = None
        #: ascending hashes of rows and the rows' numbers; each run is at least twice as long as the next
        self._runs: list[tuple[Hashes, Indices]] = []

    def of(self, table: pa.Table) -> tuple[Indices, pa.Table, Hashes, Indices]:
        """The number of each row; and the rows that were not numbered before, their hashes and numbers."""
        table = table.select(self.columns)
        hashed = hashes(table, self.columns)
        groups = group(table, self.columns, hashed)
        each, hashed = table.take(pa.array(groups.firsts)), hashed[groups.firsts]
        made = self._known(each, hashed)
        (new,) = (made < 0).nonzero()
        used = 0 if self.table is None else self.table.num_rows
        made[new] = np.arange(used, used + len(new))
        fresh, hashed = (each, hashed) if len(new) == len(made) else (each.take(pa.array(new)), hashed[new])
        if len(new):
            both = fresh if self.table is None else pa.concat_tables([self.table, fresh])
            self.table = both.combine_chunks()
            self._add(hashed, made[new])
        return made[groups.of], fresh, hashed, made[new]

    def _known(self, rows: pa.Table, hashed: Hashes) -> Indices:
        """The numbers of rows; -1 of those without."""
        found = np.full(len(hashed), -1, np.int64)
        sure = self.table is not None and all(exact(each, self.columns) for each in (rows, self.table))
        for known, numbered in self._runs:
            who, at = np.arange(len(hashed)), known.searchsorted(hashed)
            while len(who):
                equal = known.take(at, mode="clip") == hashed[who]
                equal &= at < len(known)
                who, at = who[equal], at[equal]
                if sure or not len(who):
                    found[who] = numbered[at]
                    break
                right = same(self.rows(numbered[at]), rows.take(pa.array(who)), self.columns, self.columns)
                found[who[right]] = numbered[at[right]]
                who, at = who[~right], at[~right] + 1  # other rows with this hash
        return found

    def _add(self, hashed: Hashes, numbered: Indices) -> None:
        self._runs.append((hashed, numbered))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            hashed, numbered = (np.concatenate(each) for each in zip(*self._runs[-2:], strict=True))
            order = np.argsort(hashed, kind="stable")  # two sorted runs: linear
            self._runs[-2:] = [(hashed[order], numbered[order])]

    def among(self, *which: Indices) -> Indices:
        """The distinct numbers of several arrays, ascending."""
        found = np.zeros(0 if self.table is None else self.table.num_rows, np.bool_)
        for each in which:
            found[each] = True
        return np.flatnonzero(found)

    def rows(self, which: Indices) -> pa.Table:
        """The rows with these numbers."""
        assert self.table is not None
        return self.table.take(pa.array(which))


class RowsByKey:
    """Integer rows grouped by key; the rows of a key are replaced as a whole."""

    def __init__(self) -> None:
        #: per key the position of its first row, and the number of its rows
        self._start = self._size = np.zeros(0, np.int64)
        self._columns: Rows = []
        self._used = 0

    def of(self, keys: Indices) -> Rows:
        """The rows of some keys; the first column is the position of the key in `keys`."""
        if not self._columns or not len(keys):
            return []
        self._grow(int(keys.max()) + 1)
        sizes = self._size[keys]
        which = np.repeat(np.arange(len(keys)), sizes)
        shift = self._start[keys] - (np.cumsum(sizes) - sizes)
        at = shift[which] + np.arange(len(which))
        return [which, *(column[at] for column in self._columns)]

    def replace(self, keys: Indices, rows: Rows) -> None:
        """Replace the rows of some keys; the first column is the position of the key in `keys`, ascending."""
        if not len(keys):
            return
        self._grow(int(keys.max()) + 1)
        if not rows:
            self._size[keys] = 0
            return
        which, *columns = rows
        sizes = np.bincount(which, minlength=len(keys))
        used, n = self._used, len(which)
        self._start[keys], self._size[keys] = used + np.cumsum(sizes) - sizes, sizes
        if not self._columns:
            self._columns = [np.zeros(0, np.int64) for _ in columns]
        if used + n > len(self._columns[0]):
            used = self._make_room(n)
            self._start[keys] = used + np.cumsum(sizes) - sizes
        for stored, new in zip(self._columns, columns, strict=True):
            stored[used : used + n] = new
        self._used = used + n

    def _grow(self, keys: int) -> None:
        if (more := keys - len(self._size)) > 0:
            room = np.zeros(max(more, len(self._size)), np.int64)
            self._start, self._size = (np.concatenate([old, room]) for old in (self._start, self._size))

    def _make_room(self, n: int) -> int:
        """Drop replaced rows, and allocate room for twice `n` new ones. Returns the first free position."""
        kept = self._start + self._size <= self._used  # rows that are being replaced have a start behind
        keys = np.flatnonzero(kept & (self._size > 0))
        sizes = self._size[keys]
        which = np.repeat(np.arange(len(keys)), sizes)
        ends = np.cumsum(sizes)
        at = (self._start[keys] - (ends - sizes))[which] + np.arange(len(which))
        room = np.zeros(len(which) + 2 * n, np.int64)  # amortises the copies
        self._columns = [np.concatenate([column[at], room]) for column in self._columns]
        self._start[keys] = ends - sizes
        return len(which)


class Values:
    """Numbers of the values of records (the columns that are not keys), and the values of such numbers."""

    def __init__(self, *, plain: bool) -> None:
        #: whether a single integer column is used as its own number
        self.plain = plain
        self.fields: list[pa.Field] = []
        self._numbering: Numbering | None = None

    def numbers(self, table: pa.Table, columns: Sequence[str]) -> Indices:
        """The number of each row."""
        self.fields = [table.schema.field(column) for column in columns]
        if not columns:
            return np.zeros(table.num_rows, np.int64)
        if self._is_plain():
            if table.column(columns[0]).null_count:
                raise HasNulls
            return numbers(table, columns[0]).astype(np.int64, copy=False)
        if self._numbering is None:
            self._numbering = Numbering(columns)
        return self._numbering.of(table)[0]

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


@dataclass
class Side:
    """A working set's part of one trace: the input trace, or the output trace."""

    trace: Arrangement
    values: Values
    #: per key the rows accumulated up to the present iteration
    accumulated: RowsByKey = field(default_factory=RowsByKey)
    #: rows of the trace that count from a later iteration on, by that iteration
    later: dict[int, list[Rows]] = field(default_factory=dict)
    #: the changes of this context with their times; they are added to the trace when the context is left
    fresh: list[pa.Table] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)

    def coded(self, which: Indices, table: pa.Table, keys: Sequence[str]) -> Rows:
        """The rows of a table whose keys have the numbers `which`."""
        labels = [column for column in labels_of(table) if column not in keys]
        self.weights = weights_of(table)
        weights = (numbers(table, column) for column in self.weights)
        return [which, self.values.numbers(table, labels), *weights]

    def table(self, rows: Rows) -> pa.Table:
        """Rows as a table, with the number of the key in the column `GROUP`."""
        values = self.values.columns(rows[1])
        columns = [pa.array(rows[0]), *values.values(), *map(pa.array, rows[2:])]
        return pa.Table.from_arrays(columns, [GROUP, *values, *self.weights])

    def put_off(self, iterations: Indices, rows: Rows) -> None:
        """Store rows that count from a later iteration on."""
        at, *rows = consolidated([[iterations, *rows]], 3)
        bounds = [*np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]])).tolist(), len(at)]
        for low, high in pairwise(bounds if len(at) else ()):
            self.later.setdefault(int(at[low]), []).append([column[low:high] for column in rows])

    def due(self, iteration: int) -> list[Rows]:
        """The stored rows that count from this iteration, or an earlier one, on."""
        return [rows for at in sorted(self.later) if at <= iteration for rows in self.later[at]]

    def forget_due(self, iteration: int) -> None:
        """Drop the rows that `due` gave."""
        for at in [at for at in self.later if at <= iteration]:
            del self.later[at]

    def parts(self, keys: Indices, added: Sequence[Rows]) -> list[Rows]:
        """Accumulated and added rows of ascending `keys`; the first column is the position in `keys`."""
        parts = [self.accumulated.of(keys), *([keys.searchsorted(rows[0]), *rows[1:]] for rows in added)]
        return [part for part in parts if part and len(part[0])]


def consolidated(parts: Sequence[Rows], labels: int = 2) -> Rows:
    """The rows of all parts, sorted by their labels; weights of equal labels are added up, zeros dropped."""
    if not parts:
        return []
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)] if len(parts) > 1 else parts[0]
    found = runs(columns[:labels], len(columns[0]))
    firsts, totals = found.nonzero(columns[labels:])
    return [*(column[firsts] for column in columns[:labels]), *totals]


class WorkingSet:
    """The active keys of a reduction in one loop context.

    Args:
        indexed: whether the input trace is a shared index, with more columns than `Logic.partial` keeps.
    """

    def __init__(self, logic: Logic, time: Any, records: Side, results: Side, *, indexed: bool) -> None:
        self.logic, self.records, self.results, self.indexed = logic, records, results, indexed
        *self.context, _ = time.encode()
        self.keys = Numbering(logic.keys)
        #: per key the contexts in which its times of other contexts join a time of this one: the first
        #: iteration there, and the context
        self._beside = RowsByKey()
        #: iterations for which a notification was requested
        self._requested: set[int] = set()

    def changes(
        self, time: Any, keys: list[pa.Table], added: pa.Table | None
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
        arrived: list[Rows] = []
        old: list[Rows] = []
        active = np.zeros(0, np.int64)
        if keys:
            active, new, hashed, which = self.keys.of(pa.concat_tables(keys))
            if added is not None:
                arrived.append(self.records.coded(active[: added.num_rows], added, self.logic.keys))
            if len(which):
                arrived += self._read(self.records, new, hashed, which, at)
                old += self._read(self.results, new, hashed, which, at)
        arrived += self.records.due(at)
        old += self.results.due(at)
        if not len(affected := self.keys.among(active, *(rows[0] for rows in (*arrived, *old)))):
            return None, []
        named = self.keys.rows(affected)
        changed = self._changed(affected, named, arrived, old)
        self.records.forget_due(at)
        self.results.forget_due(at)
        beside = self._beside.of(affected)
        if not beside:
            return changed, []
        interesting = by_join(
            named.take(pa.array(beside[0])), np.stack([*beside[2:], beside[1]], axis=1), time
        )
        return changed, list(interesting)

    def _read(self, side: Side, keys: pa.Table, hashed: Hashes, which: Indices, at: int) -> list[Rows]:
        """A trace's rows of newly active keys up to an iteration; later ones are put in `Side.later`."""
        probe, rows = side.trace.matches(keys, self.logic.keys, hashed)
        if not len(probe):
            return []
        times, rows = times_of(rows, len(self.context) + 1)
        if self.indexed and side is self.records:
            rows = self.logic.partial(rows)
        coded = side.coded(which[probe], rows, self.logic.keys)
        inside = (times[:, :-1] <= np.array(self.context, np.int64)).all(axis=1)
        later = times[:, -1] > at
        if (put_off := inside & later).any():
            side.put_off(times[put_off, -1], [column[put_off] for column in coded])
        if side is self.records and not inside.all():
            self._meet(coded[0][~inside], times[~inside])
        now = inside & ~later
        return [[column[now] for column in coded]]

    def _meet(self, which: Indices, times: Coordinates) -> None:
        """Store the joins of this context with those of other times, and their first iterations."""
        joined = np.maximum(times[:, :-1], np.array(self.context, np.int64))
        first = runs([which, *joined.T, times[:, -1]], len(which)).firsts
        first = first[runs([which[first], *joined[first].T], len(first)).firsts]
        keys = self.keys.among(which)
        of = np.searchsorted(keys, which[first])
        self._beside.replace(keys, [of, times[first, -1], *joined[first].T])

    def _changed(
        self, affected: Indices, named: pa.Table, arrived: list[Rows], old: list[Rows]
    ) -> pa.Table | None:
        """The changes of the results of keys, after more records have been accumulated."""
        rows = consolidated(self.records.parts(affected, arrived))
        self.records.accumulated.replace(affected, rows)
        made = [self._results(named, rows)] if rows and len(rows[0]) else []
        before = self.results.parts(affected, old)
        self.results.accumulated.replace(affected, made[0] if made else [])
        changed = consolidated([*made, *([*rows[:2], -rows[2]] for rows in before)])
        if not changed or not len(changed[0]):
            return None
        keys, results = named.take(pa.array(changed[0])), self.results.table(changed)
        return pa.Table.from_arrays(
            [*keys.columns, *results.columns[1:]], [*keys.schema.names, *results.schema.names[1:]]
        )

    def _results(self, named: pa.Table, rows: Rows) -> Rows:
        """The results of accumulated records."""
        records, results = self.records.values, self.results.values
        made = self.logic.numbered(rows, records.fields) if records.are_numbers(records.fields) else None
        if made is None or not results.are_numbers(made[1]):
            table = self.logic.results(named, self.records.table(rows))
            return self.results.coded(numbers(table, GROUP), table, [GROUP])
        rows, results.fields = made
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
