"""Further rounds of a batch: exchanges made at once, in one place, where a micro-batch each would cost more.

A worker's step is a pure function of its state, a header and rows, so nothing but habit makes each exchange a
micro-batch. While what is exchanged is small, all workers go on side by side, and with them the coordinator;
large exchanges are left to the next micro-batch, whose tasks share the work.
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
    """How far a batch goes on by itself, so that input and commit are not kept waiting.

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
        """Whether the batch that has led to `turn` goes on."""
        return (
            turn.rows.num_rows > 0
            and turn.stats["rounds"] < self.rounds
            and turn.stats["bytes_in_flight"] <= self.exchanged
            and turn.stats.get("bytes", 0) <= self.delivered
            # a loop that goes on and on must not keep a batch to itself: the driver looks, and may end it
            and not any(notice["kind"] == "iterations" for notice in turn.notices)
        )


def go_on(
    coordinator: Coordinator,
    turn: Turn,
    states: Mapping[int, Any],
    bound: Bound,
    *,
    blobs: Blobs | None = None,
    budget: Callable[[], Budget | None] = lambda: None,
    watch: Callable[[Recorded], object] | None = None,
) -> tuple[Turn, dict[int, Worker]]:
    """Run further rounds, without input, of the batch that has led to `turn`.

    Args:
        coordinator: as it was when it gave `turn`.
        turn: what the batch's rounds have led to so far.
        states: what each worker's `checkpoint` gave, for those that have one.
        bound: how far to go.
        blobs: where states keep large parts.
        budget: of each worker's round.
        watch: told of each worker's round.

    Returns:
        What all rounds of the batch have led to, and the workers that ran, each with its new state.

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
