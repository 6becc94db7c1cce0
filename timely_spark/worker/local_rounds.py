"""Local rounds: further rounds of a micro-batch, run in one process instead of a micro-batch each.

A worker's step is a pure function of its state, a header and rows, so an exchange need not be a micro-batch.
While exchanges are small, one process runs all workers and the coordinator, round after round. A large
exchange is left to the next micro-batch, whose tasks share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError
from timely_spark.worker.codec import Blobs
from timely_spark.worker.coordinator import Coordinator, Turn
from timely_spark.worker.record import Recorded
from timely_spark.worker.round import Budget, Worker
from timely_spark.worker.rows import as_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The limits of the local rounds of one batch, so that input and commit are not kept waiting.

    Counts and bytes, never wall time: a batch that runs again must take the same path.
    """

    #: rounds of one batch, its own included; 1: each round is a micro-batch
    rounds: int = 100
    #: bytes that one round may exchange
    exchanged: int = 4 << 20
    #: bytes delivered to vertices in one batch, and by one worker in one round; what exceeds them is left to
    #: the next batch
    delivered: int = 64 << 20
    #: bytes of state of all workers together, as far as all of it must be read
    states: int = 256 << 20

    def allows(self, turn: Turn) -> bool:
        """Whether the batch runs another local round after the one that gave `turn`."""
        return (
            turn.rows.num_rows > 0
            and turn.stats["rounds"] < self.rounds
            and turn.stats["bytes_in_flight"] <= self.exchanged
            and turn.stats.get("bytes", 0) <= self.delivered
            # after very many iterations the batch ends, so that the driver sees the notice
            and not any(notice["kind"] == "iterations" for notice in turn.notices)
        )


def run_local_rounds(
    coordinator: Coordinator,
    turn: Turn,
    states: Mapping[int, Any],
    bound: Bound,
    *,
    blobs: Blobs | None = None,
    budget: Callable[[], Budget | None] = lambda: None,
    watch: Callable[[Recorded], object] | None = None,
) -> tuple[Turn, dict[int, Worker]]:
    """Run local rounds, without input, of the batch whose last round gave `turn`.

    Args:
        coordinator: as it was when it gave `turn`.
        turn: the result of the batch's rounds so far.
        states: the `checkpoint` of each worker that has one.
        bound: the limits of local rounds.
        blobs: the store of the large parts of states.
        budget: the budget of each worker's round.
        watch: called after each worker's round.

    Returns:
        The result of all rounds of the batch, and the workers that ran, each with its new state.

    Raises:
        VertexError: a vertex failed.
    """
    plan, batch = coordinator.plan, coordinator.batch
    workers: dict[int, Worker] = {}
    while bound.allows(turn):
        made = []
        share = budget() or plan.budget or Budget()
        share = replace(share, bytes=min(share.bytes, bound.delivered))
        for index in sorted(set(turn.rows.column("worker").to_pylist())):
            if index not in workers:
                workers[index] = Worker(plan, states.get(index), index, blobs)
            worker, mine = workers[index], turn.rows.filter(pc.equal(turn.rows.column("worker"), index))
            before = worker.checkpoint(whole=True) if watch is not None else None
            header = turn.header
            try:
                out = worker.step(batch, mine, lambda header=header: header, share)  # type: ignore[misc]
            except VertexError as error:
                made.append(as_rows([(index, "error", error.encode(), None)]))
                continue
            if watch is not None:
                new, number = worker.checkpoint(whole=True), turn.stats["rounds"]
                watch(
                    Recorded(
                        batch=batch, round=number, worker=index, header=header, state=before, rows=mine,
                        new_state=new, out=out,
                    )
                )  # fmt: skip
            made.append(out)
        turn = turn.then(coordinator.turn(batch, pa.concat_tables(made)))
    return turn, workers
