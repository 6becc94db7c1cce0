"""The vertex of all reductions, with an input trace and an output trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.differential.arranged import index_of
from timely_spark.differential.reducers import GROUP, Logic
from timely_spark.differential.trace import became_negative, check_since, consolidate, consolidation
from timely_spark.differential.working import HasNulls, Side, Values, WorkingSet
from timely_spark.graph import Skew
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import FEW, Mask
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.exchange import is_hot
from timely_spark.state.grouping import group
from timely_spark.state.hashing import hashes
from timely_spark.state.row_times import RowTimes, times_of, with_each_time, with_time
from timely_spark.times import Times, Timestamp

#: keys with more records than these are looked at before their records are read
_MANY = 1 << 8


class Reduce(BufferingVertex):
    """Send the changes of results when a time is complete, of the keys to which the time is interesting.

    The interesting times of a key are the times of its changes, and all joins of these. At the join of two
    incomparable times the changes of both count together for the first time, so the result may change there
    although no change has that time.
    """

    def __init__(
        self, logic: Logic, *, shared: bool, tells_negative: bool = False, skew: Skew | None = None
    ) -> None:
        super().__init__()
        #: the hot keys: all workers have reduced parts of their records, and the results are reduced here
        self.skew = skew
        self.logic, self.shared, self.tells_negative = logic, shared, tells_negative
        #: the traces; the changes of the present loop context are in the working set only
        self.input, self.output = Arrangement(logic.keys), Arrangement(logic.keys)
        #: the keys to which a time is interesting as a join of times, by time; without those of the working
        #: set
        self.interesting: dict[Any, list[pa.Table]] = {}
        #: of the loop context of the last notification
        self._work: WorkingSet | None = None
        #: whether all values so far were integers without nulls
        self._plain = True
        #: the compaction frontier as of the last notification
        self._since: int

    @property
    def takes_skew(self) -> bool:
        """Whether results for parts of a key's records suffice: of `min`, `max` and `top_k`."""
        return self.logic.finds_irrelevant

    @property
    def before_exchange(self) -> Callable[[int, pa.Table], pa.Table] | None:  # type: ignore[override]
        """Partial sums before the exchange; readers of a shared index need all columns."""
        return None if self.shared else self._partial

    def _partial(self, edge: int, batch: pa.Table) -> pa.Table:
        partial = self.logic.partial(batch)
        # consolidating few rows takes longer than sending them; the working set adds them up
        return partial if partial.num_rows < FEW else consolidate(partial, self.logic.keys)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Consolidate the changes."""
        return consolidate(batch)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        self._since = self._context.compaction_frontier()
        check_since(time, self._since)
        if self.shared or self._work is None or self._work.context != time.encode()[:-1]:
            self._leave_context()
        (arrived,) = batches
        # outside of loops all records are of earlier times
        if arrived and self.logic.finds_irrelevant and len(time.encode()) == 1:
            changes = pa.concat_tables(arrived)
            irrelevant = self._irrelevant(changes)
            if irrelevant.any():
                if not self.shared:
                    trace = with_time(changes.filter(pa.array(irrelevant)), time)
                    self.input.insert(trace, compact=consolidation(self._since))
                arrived = [] if irrelevant.all() else [changes.filter(pa.array(~irrelevant))]
        keys = [table.select(list(self.logic.keys)) for table in arrived] + self.interesting.pop(time, [])
        added = pa.concat_tables(arrived) if arrived and not self.shared else None
        try:
            new = self._at(time, keys, added)
        except HasNulls:
            self._plain = False
            self._leave_context()
            new = self._at(time, [*keys, *self.interesting.pop(time, [])], None)
        if new is not None and new.num_rows:
            self.send_by(0, time, new)
        if arrived and self._work is not None and (negative := self._work.negative) is not None:
            became = became_negative(negative, self.logic.partial(pa.concat_tables(arrived)))
            if became.num_rows:
                self._context.negative(time, became)

    def _at(self, time: Timestamp, keys: list[pa.Table], added: pa.Table | None) -> pa.Table | None:
        """The changes of the results at a time."""
        if self._work is None:
            records, results = (Side(one, Values(plain=self._plain)) for one in (self._records, self.output))
            self._work = WorkingSet(
                self.logic,
                time,
                records,
                results,
                indexed=self.shared,
                tells_negative=self.tells_negative,
            )
        work = self._work
        if added is not None:
            work.records.fresh.append((time, added))
        changed, interesting = work.changes(time, keys, added)
        if changed is not None:
            work.results.fresh.append((time, changed))
        self._add_interesting(interesting)
        for iteration in work.requests():
            self.notify_at(self._context.times.decode([*work.context, iteration]))
        return changed

    def _irrelevant(self, arrived: pa.Table) -> Mask:
        """The changes of keys with many records whose results cannot change.

        They cost no look at the key's records.
        """
        keys, irrelevant = list(self.logic.keys), np.zeros(arrived.num_rows, np.bool_)
        if self._work is not None and sum(rows.num_rows for _, rows in self._work.records.fresh) > _MANY:
            self._leave_context()  # records that are not in the trace yet are not seen
        if not len(self._records):
            return irrelevant
        groups = group(arrived, keys)
        each = arrived.select(keys).take(pa.array(groups.firsts))
        many = self._records.at_most(each, keys) > _MANY
        if not many.any():
            return irrelevant
        self._leave_context()
        which, stored = self.output.matches(each.filter(pa.array(many)), keys)
        if not len(which):
            return irrelevant
        results = times_of(stored, 1)[1].drop_columns(keys).add_column(0, GROUP, pa.array(which))
        rows = many[groups.of].nonzero()[0]
        position = (many.cumsum() - 1)[groups.of[rows]]
        changes = arrived.take(pa.array(rows))
        changes = self.logic.partial(changes) if self.shared else changes
        changes = changes.drop_columns(keys).add_column(0, GROUP, pa.array(position))
        relevant = np.bincount(position, ~self.logic.irrelevant(consolidate(results), changes)) > 0
        irrelevant[rows] = ~relevant[position]
        return irrelevant

    @property
    def _records(self) -> Arrangement:
        return index_of(self._context, 0).state if self.shared else self.input

    def _add_interesting(self, interesting: list[tuple[list[int], pa.Table]]) -> None:
        for moment, keys in interesting:
            later = self._context.times.decode(moment)
            self.interesting.setdefault(later, []).append(keys)
            self.notify_at(later)

    def _leave_context(self) -> None:
        """Add the changes of the working set to the traces, and drop it."""
        if (work := self._work) is None:
            return
        self._work = None
        for moment, keys in work.remaining():
            self.interesting.setdefault(self._context.times.decode(moment), []).append(keys)
        for trace, side in ((self.input, work.records), (self.output, work.results)):
            if side.fresh:
                few = [one for one in side.fresh if one[1].num_rows < FEW]  # see `_partial`
                rows = [with_time(table, time) for time, table in side.fresh if table.num_rows >= FEW]
                rows += [consolidate(with_each_time(few))] if few else []
                trace.insert(pa.concat_tables(rows), compact=consolidation(self._since))

    def stored(
        self, keys: Sequence[int], time: Timestamp, kind: Times
    ) -> Iterator[tuple[Timestamp, pa.Table]]:
        """The changes of some keys, given by H, at the joins of `time` with their own times, of a kind."""
        buffered = [with_time(one, at) for at, (tables,) in self.buffered.items() for one in tables]
        for table in [*self.input.batches(), *buffered]:
            rows = table.filter(pa.array(is_hot(hashes(table, self.logic.keys), keys)))
            if rows.num_rows:
                times, rows = RowTimes.of(rows, kind)
                yield from times.joins(time, rows)

    def checkpoint(self) -> Mapping[str, Any]:
        self._leave_context()
        named = ("input", "output", "buffered", "interesting")
        return {name: value for name in named if len(value := getattr(self, name))}
