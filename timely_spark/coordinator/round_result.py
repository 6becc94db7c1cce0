"""`RoundResult`: the coordinator's result of a round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.worker.columns import Refused
from timely_spark.worker.rows import read_rows

#: stats that describe the state after a round; the others count work, and are summed
_OPEN = frozenset({"rows_in_flight", "bytes_in_flight", "pending_notifications", "left"})

OUTPUTS = pa.schema(
    [("sink", pa.string()), ("epoch", pa.int64()), ("worker", pa.int32()), ("payload", pa.binary())]
)
"""Records for the sinks. Columns: sink (the step's name), epoch, worker, payload (Arrow IPC stream)."""


def as_outputs(rows: pa.Table) -> pa.Table:
    """The output rows of a round, in schema `OUTPUTS`."""
    outputs = rows.filter(pc.equal(rows.column("kind"), "output"))
    metas = [meta for _, _, meta, _ in read_rows(outputs)]
    sinks = pa.array([meta["sink"] for meta in metas], pa.string())
    epochs = pa.array([meta["epoch"] for meta in metas], pa.int64())
    columns = [sinks, epochs, outputs.column("worker"), outputs.column("payload")]
    return pa.table(columns, schema=OUTPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of a round, or of all rounds of a batch."""

    #: messages and headers for the next round; empty if no worker runs until there is input
    rows: pa.Table
    #: the next round's header, also for workers without a header row
    header: str
    #: schema `OUTPUTS`
    outputs: pa.Table
    #: (sink, epoch) pairs that have become complete, by epoch
    released: list[tuple[str, int]]
    #: the frontier of each output and probe; empty: complete
    frontier: dict[str, list[Any]]
    #: whether all inputs are closed and no worker has anything left to do
    complete: bool
    #: late rows of each input since the flow began, including rows without an epoch or beyond `max_jump`
    late: dict[str, int]
    #: records that the limits of loops have dropped, per loop, since the flow began
    cut_off: dict[str, int]
    #: encoded `Notice`s
    notices: list[dict[str, Any]]
    #: counts summed over the rounds (`rounds`, `records`, ...), and counts after the last round (`_OPEN`)
    stats: dict[str, int]
    #: refused rows to warn the user of, by source
    refused: dict[str, Refused] = field(default_factory=dict)

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
            refused=self.refused,  # only the first round reads input
        )
