"""The working set of a reduction: what the keys that it looks at have come to, within one loop context.

All coordinates of a time but the last are its context. The times of one context are in one order, that of
their last coordinate, the iteration; so what a key has come to at one iteration is what it had come to at the
iteration before, and what was added since. The histories of a key are read once in a context, when it is
first looked at; from then on an iteration costs what the keys it touches hold, not how they came to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from timely_spark.differential.reducers import GROUP
from timely_spark.differential.trace import Coordinates, by_time, labels_of, numbers, times_of, weights_of
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.codes import runs
from timely_spark.worker.keys import Indices, group

if TYPE_CHECKING:
    from timely_spark.differential.reducers import Logic

Rows = list[Indices]
"""Rows as columns of whole numbers: the number of the key, the number of the values, and the weights."""

_NUMBER = "__timely_number"


class HasNulls(Exception):
    """Values that were taken for whole numbers are not all there."""


class Numbering:
    """Gives each different row of some columns a number: 0, 1, ... in the order in which they come."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        #: the rows by their numbers
        self.table: pa.Table | None = None
        self._index = Arrangement(self.columns)

    def of(self, table: pa.Table) -> tuple[Indices, pa.Table, Indices]:
        """The number of each row; and the rows that are new, with their numbers."""
        table = table.select(self.columns)
        hashed = self._index.hashes(table)
        groups = group(table, self.columns, hashed)
        each, hashed = table.take(pa.array(groups.firsts)), hashed[groups.firsts]
        made = np.full(each.num_rows, -1, np.int64)
        probe, found = self._index.matches(each, self.columns, hashed, columns=[_NUMBER])
        if len(probe):
            made[probe] = numbers(found, _NUMBER)
        new = np.flatnonzero(made < 0)
        held = 0 if self.table is None else self.table.num_rows
        made[new] = np.arange(held, held + len(new))
        fresh = each if len(new) == len(made) else each.take(pa.array(new))
        if len(new):
            self._index.insert(fresh.append_column(_NUMBER, pa.array(made[new])), hashed[new])
            both = fresh if self.table is None else pa.concat_tables([self.table, fresh])
            self.table = both.combine_chunks()
        which = np.empty(table.num_rows, np.int64)
        which[groups.order] = made[groups.ids]
        return which, fresh, made[new]

    def among(self, *which: Indices) -> Indices:
        """The numbers that are among some, each once, in order."""
        found = np.zeros(0 if self.table is None else self.table.num_rows, np.bool_)
        for each in which:
            found[each] = True
        return np.flatnonzero(found)

    def rows(self, which: Indices) -> pa.Table:
        """The rows of some numbers."""
        assert self.table is not None
        return self.table.take(pa.array(which))


class Held:
    """Columns of whole numbers by key; those of a key are replaced as a whole."""

    def __init__(self) -> None:
        #: by key where its rows begin, and how many there are
        self._start = self._size = np.zeros(0, np.int64)
        self._columns: Rows = []
        self._used = 0

    def of(self, keys: Indices) -> Rows:
        """The rows of some keys: first, which of these keys it is; nothing where nothing was ever held."""
        if not self._columns or not len(keys):
            return []
        self._grow(int(keys.max()) + 1)
        sizes = self._size[keys]
        which = np.repeat(np.arange(len(keys)), sizes)
        shift = self._start[keys] - (np.cumsum(sizes) - sizes)
        at = shift[which] + np.arange(len(which))
        return [which, *(column[at] for column in self._columns)]

    def replace(self, keys: Indices, rows: Rows) -> None:
        """Hold other rows of some keys: first, which of these keys it is, ascending."""
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
        for held, new in zip(self._columns, columns, strict=True):
            held[used : used + n] = new
        self._used = used + n

    def _grow(self, keys: int) -> None:
        if (more := keys - len(self._size)) > 0:
            room = np.zeros(max(more, len(self._size)), np.int64)
            self._start, self._size = (np.concatenate([old, room]) for old in (self._start, self._size))

    def _make_room(self, n: int) -> int:
        """Leave out what was replaced, and make room for as much again; where what comes next begins."""
        kept = self._start + self._size <= self._used  # what is being replaced lies behind
        keys = np.flatnonzero(kept & (self._size > 0))
        sizes = self._size[keys]
        which = np.repeat(np.arange(len(keys)), sizes)
        ends = np.cumsum(sizes)
        at = (self._start[keys] - (ends - sizes))[which] + np.arange(len(which))
        room = np.zeros(len(which) + 2 * n, np.int64)  # so that it is made seldom
        self._columns = [np.concatenate([column[at], room]) for column in self._columns]
        self._start[keys] = ends - sizes
        return len(which)


class Values:
    """Whole numbers for the values of a record beside its key, and the values of such numbers."""

    def __init__(self, *, plain: bool) -> None:
        #: whether one column of whole numbers is its own number
        self.plain = plain
        self._fields: list[pa.Field] = []
        self._numbering: Numbering | None = None

    def numbers(self, table: pa.Table, columns: Sequence[str]) -> Indices:
        """The number of each row.

        Raises:
            HasNulls: there are nulls where there were none so far.
        """
        self._fields = [table.schema.field(column) for column in columns]
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
        """The values of some numbers, by column."""
        if self._is_plain():
            return {self._fields[0].name: pa.array(which, self._fields[0].type)}
        if self._numbering is None or not self._fields:
            return {}
        return dict(zip(self._numbering.columns, self._numbering.rows(which).columns, strict=True))

    def _is_plain(self) -> bool:
        return self.plain and len(self._fields) == 1 and pa.types.is_signed_integer(self._fields[0].type)


@dataclass
class Side:
    """What a working set has of one history: that of the records, or that of the results."""

    trace: Arrangement
    values: Values
    #: by key, what it has come to at the iterations so far
    held: Held = field(default_factory=Held)
    #: by iteration, what is in the history and counts from then on only
    later: dict[int, list[Rows]] = field(default_factory=dict)
    #: what was added, with its time; it goes into the history when the working set is given up
    fresh: list[pa.Table] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)

    def coded(self, which: Indices, table: pa.Table, keys: Sequence[str]) -> Rows:
        """Rows of a table, of keys of these numbers."""
        labels = [column for column in labels_of(table) if column not in keys]
        self.weights = weights_of(table)
        weights = (numbers(table, column) for column in self.weights)
        return [which, self.values.numbers(table, labels), *weights]

    def table(self, rows: Rows) -> pa.Table:
        """Rows as a table: the number of the key is `GROUP`."""
        weights = dict(zip(self.weights, rows[2:], strict=True))
        return pa.table({GROUP: rows[0], **self.values.columns(rows[1]), **weights})

    def put_off(self, iterations: Indices, rows: Rows) -> None:
        """Keep rows for the iterations from which on they count."""
        at, *rows = consolidated([[iterations, *rows]], 3)
        bounds = [*np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]])).tolist(), len(at)]
        for low, high in pairwise(bounds if len(at) else ()):
            self.later.setdefault(int(at[low]), []).append([column[low:high] for column in rows])

    def due(self, iteration: int) -> list[Rows]:
        """What counts from this iteration on, or an earlier one, and is not held yet."""
        return [rows for at in sorted(self.later) if at <= iteration for rows in self.later[at]]

    def forget_due(self, iteration: int) -> None:
        """It is held now."""
        for at in [at for at in self.later if at <= iteration]:
            del self.later[at]

    def merged(self, keys: Indices, added: Sequence[Rows]) -> Rows:
        """What keys have come to with what is added: first, which of these keys (ascending) it is."""
        parts = [self.held.of(keys), *([np.searchsorted(keys, rows[0]), *rows[1:]] for rows in added)]
        return consolidated([part for part in parts if part and len(part[0])])


def consolidated(parts: Sequence[Rows], labels: int = 2) -> Rows:
    """The rows of all parts, sorted by the first columns; equal ones are added up, zeros dropped."""
    if not parts:
        return []
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    found = runs(columns[:labels], len(columns[0]))
    totals = [found.totals(weights) for weights in columns[labels:]]
    some = np.any(totals, axis=0)
    firsts = found.firsts[some]
    return [*(column[firsts] for column in columns[:labels]), *(total[some] for total in totals)]


class WorkingSet:
    """What a reduction holds of the keys it has looked at in one context.

    Args:
        logic: what is made of a key's records.
        time: the first of its times.
        records: the records' history; of an index it has more than `Logic.partial` keeps.
        results: that of the results.
    """

    def __init__(self, logic: Logic, time: Any, records: Side, results: Side, *, indexed: bool) -> None:
        self.logic, self.records, self.results, self.indexed = logic, records, results, indexed
        *self.context, _ = time.encode()
        self.keys = Numbering(logic.keys)
        #: by key, the contexts of times that meet one of this context: the least iteration there, and where
        self._beside = Held()
        #: iterations that are complete, or asked for
        self._asked: set[int] = set()

    def changes(
        self, time: Any, keys: list[pa.Table], added: pa.Table | None
    ) -> tuple[pa.Table | None, list[tuple[list[int], pa.Table]]]:
        """Go on to a time.

        Args:
            time: in this context, complete, and later than all before.
            keys: keys to look at, those of `added` first.
            added: records that came at this time.

        Returns:
            How results change, if they do; and times in other contexts that are interesting to keys.

        Raises:
            HasNulls: then nothing is held as it should be, but for what is `fresh` or `left`.
        """
        *_, at = time.encode()
        came: list[Rows] = []
        before: list[Rows] = []
        looked_at = np.zeros(0, np.int64)
        if keys:
            looked_at, new, which = self.keys.of(pa.concat_tables(keys))
            if added is not None:
                came.append(self.records.coded(looked_at[: added.num_rows], added, self.logic.keys))
            if len(which):
                came += self._read(self.records, new, which, at)
                before += self._read(self.results, new, which, at)
        came += self.records.due(at)
        before += self.results.due(at)
        if not len(touched := self.keys.among(looked_at, *(rows[0] for rows in (*came, *before)))):
            return None, []
        named = self.keys.rows(touched)
        changed = self._changed(touched, named, came, before)
        self.records.forget_due(at)
        self.results.forget_due(at)
        beside = self._beside.of(touched)
        times = by_time(np.stack([*beside[2:], beside[1]], axis=1), time) if beside else ()
        meet = [
            (moment, named.take(pa.array(beside[0] if members is None else beside[0][members])))
            for moment, members in times
        ]
        return changed, meet

    def _read(self, side: Side, keys: pa.Table, which: Indices, at: int) -> list[Rows]:
        """What a history has of keys that are new here up to an iteration. What counts later is put off."""
        probe, rows = side.trace.matches(keys, self.logic.keys)
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
        """Keep the contexts in which keys meet times of other contexts, and from which iteration on."""
        joined = np.maximum(times[:, :-1], np.array(self.context, np.int64))
        first = runs([which, *joined.T, times[:, -1]], len(which)).firsts
        first = first[runs([which[first], *joined[first].T], len(first)).firsts]
        keys = self.keys.among(which)
        of = np.searchsorted(keys, which[first])
        self._beside.replace(keys, [of, times[first, -1], *joined[first].T])

    def _changed(
        self, touched: Indices, named: pa.Table, came: list[Rows], before: list[Rows]
    ) -> pa.Table | None:
        """How the results of keys differ from those before, now that they hold more."""
        held = self.records.merged(touched, came)
        self.records.held.replace(touched, held)
        made: list[Rows] = []
        if held and len(held[0]):
            table = self.logic.results(named, self.records.table(held))
            made = [consolidated([self.results.coded(numbers(table, GROUP), table, [GROUP])])]
        old = self.results.merged(touched, before)
        self.results.held.replace(touched, made[0] if made else [])
        changed = consolidated([*made, *([[*old[:2], -old[2]]] if old else [])])
        if not changed or not len(changed[0]):
            return None
        rows = named.take(pa.array(changed[0]))
        results = self.results.table(changed)
        for place in range(1, results.num_columns):
            rows = rows.append_column(results.field(place), results.column(place))
        return rows

    def ask(self) -> list[int]:
        """The iterations to be notified of that were not asked for yet."""
        new = sorted({*self.records.later, *self.results.later} - self._asked)
        self._asked.update(new)
        return new

    def left(self) -> list[tuple[list[int], pa.Table]]:
        """What is put off, as times that are interesting to keys."""
        return [
            ([*self.context, at], self.keys.rows(self.keys.among(*(rows[0] for rows in waiting))))
            for at in sorted({*self.records.later, *self.results.later})
            if (waiting := [*self.records.later.get(at, ()), *self.results.later.get(at, ())])
        ]
