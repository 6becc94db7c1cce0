"""`RoundResult`: the coordinator's result of a round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.coordinator.loops import Notice
from timely_spark.worker import wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.epoch_columns import Refused
from timely_spark.worker.wire import Header, SinkRows

CountChange: TypeAlias = tuple[int | None, int, Any, int, int]
"""A change of a pointstamp's count: the worker that reported it (None if an input or another process did),
the location (see `Plan.places`), the encoded time, the change, and the count afterwards."""

#: stats that describe the state after a round; the others count work, and are summed
_OPEN = frozenset({"rows_in_flight", "bytes_in_flight", "pending_notifications", "left"})

OUTPUTS = pa.schema(
    [("sink", pa.string()), ("epoch", pa.int64()), ("worker", pa.int32()), ("payload", pa.binary())]
)
"""Records for the sinks. Columns: sink (the step's name), epoch, worker, payload (Arrow IPC stream)."""


NO_OUTPUTS = pa.Table.from_batches([], OUTPUTS)  # `empty_table` would import pandas


def as_outputs(rows: pa.Table) -> pa.Table:
    """The output rows of a round, in schema `OUTPUTS`."""
    if not len(places := wire.places(rows, SinkRows)):
        return NO_OUTPUTS
    outputs = wire.at(rows, places)
    items = [output for _, output in wire.read(outputs, SinkRows)]
    sinks = pa.array([output.sink for output in items], pa.string())
    epochs = pa.array([output.epoch for output in items], pa.int64())
    columns = [sinks, epochs, outputs.column("worker"), outputs.column("payload")]
    return pa.table(columns, schema=OUTPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of a round, or of all rounds of a batch."""

    #: messages and headers for the next round, in parallel rounds those for hosted workers
    rows: pa.Table
    #: whether any worker runs before there is more input
    awake: bool
    #: the next round's header, also for workers without a header row
    header: Header
    #: schema `OUTPUTS`
    outputs: pa.Table
    #: (sink, epoch) pairs that have become complete, by epoch
    released: list[tuple[str, int]]
    #: the frontier of each output and probe; empty if it is complete
    frontier: dict[str, list[Any]]
    #: whether all inputs are closed and no worker has anything left to do
    complete: bool
    #: late rows of each input since the flow began, including rows without an epoch or beyond `max_jump`
    late: dict[str, int]
    #: records of each input that were read since the flow began, late ones included
    read: dict[str, int]
    #: files or messages of each input that were quarantined since the flow began
    quarantined: dict[str, int]
    #: records that the limits of loops have dropped, per loop, since the flow began
    cut_off: dict[str, int]
    notices: list[Notice]
    #: counts summed over the rounds (`rounds`, `records`, ...), and counts after the last round (`_OPEN`)
    stats: dict[str, int]
    #: refused rows to warn the user of, by source
    refused: dict[str, Refused] = field(default_factory=dict)
    #: the records that the feedback of loops carried
    convergence: Convergence = field(default_factory=Convergence)
    #: if the plan is measured, by round the changes of counts, in order
    pointstamps: list[list[CountChange]] = field(default_factory=list)

    @classmethod
    def of_input(cls, header: Header, rows: pa.Table) -> RoundResult:
        """The start of a batch's first round, if one process runs all of the batch's rounds.

        Args:
            header: that of the batch before.
            rows: its messages and headers, and the packed input.
        """
        return cls(
            rows=rows, awake=True, header=header, outputs=OUTPUTS.empty_table(), released=[],
            frontier={}, complete=False, late={}, read={}, quarantined={}, cut_off={}, notices=[],
            stats={"rounds": 0, "bytes_in_flight": 0},
        )  # fmt: skip

    def then(self, later: RoundResult) -> RoundResult:
        """The result of both rounds together; `later` is the batch's next round."""
        counts = {
            name: count + (0 if name in _OPEN else self.stats.get(name, 0))
            for name, count in (dict.fromkeys(self.stats, 0) | later.stats).items()
        }
        return replace(
            later,
            outputs=pa.concat_tables([self.outputs, later.outputs]),
            released=[*self.released, *later.released],
            notices=[*self.notices, *later.notices],
            stats=counts,
            refused=self.refused | later.refused,  # only the first round reads input
            convergence=self.convergence + later.convergence,
            pointstamps=[*self.pointstamps, *later.pointstamps],
        )

    def encode(self) -> dict[str, Any]:
        """The result as plain JSON, without rows and outputs."""
        counts = ("late", "read", "quarantined", "cut_off", "stats")
        plain = ("awake", "released", "frontier", "complete", "pointstamps", *counts)
        return {name: getattr(self, name) for name in plain} | {
            "header": self.header.encode(),
            "notices": [asdict(notice) for notice in self.notices],
            "convergence": self.convergence.encode(),
            "refused": {name: asdict(rows) for name, rows in self.refused.items()},
        }

    @classmethod
    def decode(cls, encoded: dict[str, Any], rows: pa.Table, outputs: pa.Table) -> RoundResult:
        """The result that `encode` encoded, with its rows and outputs."""
        own = {
            "header": Header.decode(encoded["header"]),
            "released": [(sink, epoch) for sink, epoch in encoded["released"]],
            "notices": [Notice(**notice) for notice in encoded["notices"]],
            "convergence": Convergence.decode(encoded["convergence"]),
            "refused": {name: Refused(**counts) for name, counts in encoded["refused"].items()},
        }
        return cls(**encoded | own, rows=rows, outputs=outputs)
