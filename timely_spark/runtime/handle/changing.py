"""`Changing`: the records of a loop that change in its last iterations, and whether that repeats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.state.arrow import replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Changing:
    """The changes of a step in the last iterations of its loop; as text, one line for each iteration."""

    #: the step, or the loop if nothing changes in it
    step: str
    #: the oldest epoch in flight, or the last one; -1 before the first one
    epoch: int
    #: Columns: iteration long, the records', diff long: by how much a record's multiplicity changes then.
    changes: pa.Table
    #: the iterations of a cycle, after which the records are again what they were; None if the shown
    #: iterations do not have a cycle twice
    cycle: int | None

    @classmethod
    def of(cls, step: str, epoch: int, trace: pa.Table, last: int) -> Changing:
        """The last changes in a trace with the columns epoch, iteration1, ..., the records', and diff."""
        counters = [name for name in trace.schema.names if re.fullmatch(r"iteration\d+", name)]
        records = [name for name in trace.schema.names if name not in {"worker", "epoch", "diff", *counters}]
        trace = trace.filter(pc.less_equal(trace["epoch"], epoch))
        times = np.stack([trace[name].to_numpy() for name in counters], axis=1)
        if len(counters) > 1 and len(times):  # the last iteration of the loops around
            now = trace["epoch"].to_numpy() == epoch
            around = max(map(tuple, (times[now] if now.any() else times)[:, :-1].tolist()))
            trace = trace.filter(pa.array((times[:, :-1] <= around).all(axis=1)))
        names = ["iteration", *records, DIFF]
        changes = consolidate(trace.select([counters[-1], *records, "diff"]).rename_columns(names))
        newest = pc.max(changes["iteration"]).as_py() or 0
        changes = changes.filter(pc.greater(changes["iteration"], newest - last))
        cycle = next((p for end in (newest, newest - 1) if (p := _period(changes, end, last))), None)
        changes = changes.rename_columns(["iteration", *records, "diff"])
        order = [(name, "ascending") for name in ("iteration", *records)]
        return cls(step=step, epoch=epoch, changes=changes.sort_by(order), cycle=cycle)

    @classmethod
    def nothing(cls, step: str, epoch: int) -> Changing:
        """The answer if nothing changes in a loop, or at a step in one."""
        schema = pa.schema({"iteration": pa.int64(), "diff": pa.int64()})
        return cls(step=step, epoch=epoch, changes=schema.empty_table(), cycle=None)

    @property
    def iterations(self) -> list[int]:
        """The iterations that have changes, in order."""
        return sorted(set(self.changes["iteration"].to_pylist()))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        iterations = self.iterations
        if not iterations:
            none_yet = "no batch is complete yet; of a loop that grows the log has records"
            at = f"{self.step} at epoch {self.epoch}: nothing changes"
            yield at if self.epoch >= 0 else f"{self.step}: {none_yet}"
            return
        cycle = f"the same every {self.cycle}" if self.cycle else "no cycle among them"
        yield f"{self.step} at epoch {self.epoch}, iterations {iterations[0]} to {iterations[-1]}: {cycle}"
        for iteration in iterations[-self.cycle :] if self.cycle else iterations:
            rows = self.changes.filter(pc.equal(self.changes["iteration"], iteration)).to_pylist()
            more = f", and {len(rows) - 5} more" if len(rows) > 5 else ""
            yield f"  iteration {iteration}: {', '.join(map(_text, rows[:5]))}{more}"


def _text(change: dict[str, Any]) -> str:
    record = ", ".join(f"{k}={v!r}" for k, v in change.items() if k not in {"iteration", "diff"})
    times = "" if abs(change["diff"]) == 1 else f"{abs(change['diff'])} * "
    return f"{'+' if change['diff'] > 0 else '-'}{times}({record})"


def _period(changes: pa.Table, end: int, last: int) -> int | None:
    """The length of a cycle: the changes of so many iterations cancel out, and repeat those before them."""
    for period in range(1, last // 2 + 1):
        once, before = (_after(changes, end - n * period, period) for n in (1, 2))
        if not once.num_rows or consolidate(once.drop_columns(["iteration"])).num_rows:
            continue
        opposite = replaced(before, DIFF, pc.negate(before.column(DIFF)))
        if not consolidate(pa.concat_tables([once, opposite])).num_rows:
            return period
    return None


def _after(changes: pa.Table, base: int, number: int) -> pa.Table:
    """The changes of some iterations after one, from which they are counted."""
    at = pc.subtract(changes["iteration"], base)
    return replaced(changes, "iteration", at).filter(pc.and_(pc.greater(at, 0), pc.less_equal(at, number)))
