"""`Accumulated`: the progress of a process's workers in a round, added up before it is sent to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from timely_spark.worker import wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.loops import LoopCounts
from timely_spark.worker.wire import Item, Output, Report, RowKind

#: (location or vertex, time, number)
Change = tuple[int, Any, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated(Item):
    """The reports of a process's workers in one of a batch's further rounds, added up.

    Law: a coordinator that gets it in place of the reports computes the same frontiers, header and counts.
    Each report is in it whole, and a coordinator applies those of all processes at once, so no decrement
    is applied before its increment. Source: Naiad section 3.3.
    """

    kind = RowKind.ACCUMULATED
    #: as in `Report`: the sums that are not zero
    deltas: list[Change]
    pending: list[Change]
    #: the number of workers that ended their round because its budget was used up
    left: int
    #: (sink, epoch) of the records for sinks
    outputs: list[tuple[str, int]]
    #: by worker; first, as worker -1, the sums of the counts that are not needed by worker
    loops: list[tuple[int, LoopCounts]]
    loads: list[Load]
    late: dict[str, int]
    stats: dict[str, int]

    @classmethod
    def of(cls, rows: pa.Table) -> Accumulated:
        """The sum of the reports and outputs among the rows."""
        reports = wire.read(rows, Report)
        for _, report in reports:
            read = report.ticks, report.advanced, report.seen, report.refused, report.read
            assert not any(read), "the further rounds of a batch have no input"
        return cls._of_all(
            [report for _, report in reports],
            left=sum(report.left > 0 for _, report in reports),
            outputs={(output.sink, output.epoch) for _, output in wire.read(rows, Output)},
            loops=[(worker, report.loops) for worker, report in reports],
        )

    @classmethod
    def sum(cls, parts: Sequence[Accumulated]) -> Accumulated:
        """The sum of those of several processes: a coordinator applies one, however many there are."""
        return cls._of_all(
            parts,
            left=sum(part.left for part in parts),
            outputs={(sink, epoch) for part in parts for sink, epoch in part.outputs},
            loops=[counted for part in parts for counted in part.loops],
        )

    @classmethod
    def _of_all(
        cls,
        parts: Sequence[Report | Accumulated],
        *,
        left: int,
        outputs: set[tuple[str, int]],
        loops: list[tuple[int, LoopCounts]],
    ) -> Accumulated:
        reached, fed = dict[str, int](), Convergence()
        for _, counts in loops:
            if counts.fed:
                fed.merge(Convergence.decode(counts.fed))
            for loop, counter in counts.reached.items():
                reached[loop] = max(counter, reached.get(loop, 0))
        notable = [
            (worker, LoopCounts({}, far=counts.far, dropped=counts.dropped, grown=counts.grown))
            for worker, counts in loops
            if counts.far or counts.dropped or counts.grown
        ]
        return cls(
            deltas=_added_up(part.deltas for part in parts),
            pending=_added_up(part.pending for part in parts),
            left=left,
            outputs=sorted(outputs),
            loops=[(-1, LoopCounts(reached, [], [], fed.encode())), *notable],
            loads=[load for part in parts for load in part.loads],
            late=_totals(part.late for part in parts),
            stats=_totals(part.stats for part in parts),
        )

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Accumulated:
        loops = [(worker, LoopCounts(**counts)) for worker, counts in values["loops"]]
        return cls(**values | {"loops": loops, "loads": [Load(**load) for load in values["loads"]]})


def _added_up(parts: Iterable[list[Change]]) -> list[Change]:
    """The sums by place and time, without those that are zero."""
    sums: dict[tuple[int, str], list[Any]] = {}
    for part in parts:
        for at, time, n in part:  # times are lists, perhaps of lists
            sums.setdefault((at, str(time)), [time, 0])[1] += n
    return [(at, time, n) for (at, _), (time, n) in sums.items() if n]


def _totals(parts: Iterable[dict[str, int]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for part in parts:
        totals.update(part)
    return totals
