"""`CutOff`: ends a worker's round between two calls of vertices if a command waits for the batch to end.

The worker's other deliveries stay in its queue, as if the round's budget was used up, and the batch is
committed. So a command takes effect in a moment, and no work is lost.
"""

from __future__ import annotations

from functools import cached_property

from timely_spark.coordinator import RoundResult
from timely_spark.runtime.errors import PeerLost
from timely_spark.runtime.query.live import Live
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.storage.cuts import Cuts, record, recorded_cuts
from timely_spark.worker import Worker


class CutOff:
    """Decides where the rounds of one process and micro-batch end early."""

    def __init__(self, context: RunContext, batch: int, live: Live, *, first: bool = False) -> None:
        self.context, self.batch, self.live = context, batch, live
        #: whether no earlier attempt at the rounds has run, of this run or another one
        self.first = first and batch > context.planned

    @cached_property
    def _recorded(self) -> Cuts:
        return {} if self.first else recorded_cuts(self.context.log, self.batch)

    def __call__(self, round_: int, before: RoundResult | None, worker: Worker) -> bool:
        """Whether a worker's round ends before the next delivery."""
        steps = worker.stats["steps"]
        if (at := self._recorded.get((round_, worker.worker))) is not None:
            return steps >= at
        self.live.round(before, worker)
        # what an earlier run has delivered on arrival must not come in other parts
        if not self.live.asked or (self.context.on_arrival and self.batch <= self.context.planned):
            return False
        at = record(self.context.log, self.batch, round_, worker.worker, steps)
        if at < steps:
            msg = f"another attempt at batch {self.batch} has ended round {round_} earlier"
            raise PeerLost(msg)  # Spark runs the task again
        self._recorded[round_, worker.worker] = at
        return at == steps
