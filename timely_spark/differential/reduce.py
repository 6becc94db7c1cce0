"""The vertex of all reductions: it keeps the history of each key's records, and that of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from timely_spark.differential.arranged import index_of
from timely_spark.differential.reducers import Logic
from timely_spark.differential.trace import compact, consolidate, stamped
from timely_spark.differential.working import HasNulls, Side, Values, WorkingSet
from timely_spark.graph import Vertex
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.partitioning import repartition


class Reduce(Vertex):
    """Keep each key's history and that of its results; when a time is complete, send how results change.

    A key's result may change at a time at which nothing of it came: where two times meet that are ordered
    neither way, what came at both counts together for the first time. These are the key's interesting times.
    """

    repartition = repartition

    def __init__(self, logic: Logic, *, shared: bool) -> None:
        self.logic, self.shared = logic, shared
        #: the records' history, and that of the results; the working set has what is not in them yet
        self.input, self.output = Arrangement(logic.keys), Arrangement(logic.keys)
        #: by time, what came at it
        self.waiting: dict[Any, list[pa.Table]] = {}
        #: by time, keys to which it is interesting though nothing of them came; none that the working set has
        self.interesting: dict[Any, list[pa.Table]] = {}
        #: of the context in which it was called last
        self._work: WorkingSet | None = None
        #: whether values have been whole numbers so far, without nulls
        self._plain = True
        #: the last epoch of which it is known that nothing comes before it
        self._since = 0

    @property
    def before_exchange(self) -> Callable[[int, pa.Table], pa.Table] | None:  # type: ignore[override]
        """What is added up where it is read need not travel; readers of an index get all of it."""
        return None if self.shared else self._partial

    def _partial(self, edge: int, batch: pa.Table) -> pa.Table:
        return consolidate(self.logic.partial(batch))

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Changes add up."""
        return consolidate(batch)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Wait until no more comes."""
        self.waiting.setdefault(time, []).append(batch)
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        """Say what is new at a complete time."""
        self._since = max(self._since, self._context.since_here())
        if self.shared or self._work is None or self._work.context != time.encode()[:-1]:
            self._give_up()
        came = self.waiting.pop(time, [])
        keys = [table.select(list(self.logic.keys)) for table in came] + self.interesting.pop(time, [])
        added = pa.concat_tables(came) if came and not self.shared else None
        try:
            new = self._at(time, keys, added)
        except HasNulls:
            self._plain = False
            self._give_up()
            new = self._at(time, [*keys, *self.interesting.pop(time, [])], None)
        if new is not None and new.num_rows:
            self.send_by(0, time, new)

    def _at(self, time: Any, keys: list[pa.Table], added: pa.Table | None) -> pa.Table | None:
        """How results change at a time."""
        if self._work is None:
            history = index_of(self._context, 0).state if self.shared else self.input
            records, results = (Side(one, Values(plain=self._plain)) for one in (history, self.output))
            self._work = WorkingSet(self.logic, time, records, results, indexed=self.shared)
        work = self._work
        if added is not None:
            work.records.fresh.append(stamped(added, time, self._since))
        changed, meet = work.changes(time, keys, added)
        if changed is not None:
            work.results.fresh.append(stamped(changed, time, self._since))
        self._look_at(meet)
        for iteration in work.ask():
            self.notify_at(self._context.times.decode([*work.context, iteration]))
        return changed

    def _look_at(self, meet: list[tuple[list[int], pa.Table]]) -> None:
        for moment, keys in meet:
            later = self._context.times.decode(moment)
            self.interesting.setdefault(later, []).append(keys)
            self.notify_at(later)

    def _give_up(self) -> None:
        """Write down what the working set has, and go on without it."""
        if (work := self._work) is None:
            return
        self._work = None
        for moment, keys in work.left():
            self.interesting.setdefault(self._context.times.decode(moment), []).append(keys)
        for history, side in ((self.input, work.records), (self.output, work.results)):
            if side.fresh:
                history.insert(pa.concat_tables(side.fresh), compact=partial(compact, self._since, 0))

    def checkpoint(self) -> Mapping[str, Any]:
        """The histories and what waits."""
        self._give_up()
        named = ("input", "output", "waiting", "interesting")
        return {name: value for name in named if len(value := getattr(self, name))}
