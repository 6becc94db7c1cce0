"""Local rounds: further rounds of a micro-batch, run in one process instead of one micro-batch each.

A worker's step is a pure function of its state, a header and rows, so an exchange needs no micro-batch of its
own. While exchanges are small, one process runs all workers and the coordinator. A large exchange waits for
the next micro-batch, in which the workers run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.coordinator.coordinator import Coordinator
from timely_spark.coordinator.round_result import RoundResult
from timely_spark.errors import VertexError
from timely_spark.state.codec import Blobs
from timely_spark.worker import wire
from timely_spark.worker.record import Recorded
from timely_spark.worker.round import Budget, Worker
from timely_spark.worker.wire import ROWS, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The limits of the local rounds of one batch: a batch must not delay new input for long.

    Limits are counts and bytes, never wall time, because a batch that runs again must take the same path.
    """

    #: rounds of one batch, including the first; 1: each round is a micro-batch
    rounds: int = 100
    #: bytes that one round may exchange
    exchanged: int = 4 << 20
    #: bytes delivered to vertices in one batch, and by one worker in one round
    delivered: int = 64 << 20
    #: bytes of the workers' states that the rounds would read
    states: int = 256 << 20

    def allows(self, result: RoundResult) -> bool:
        """Whether the batch runs another local round after the one with this result."""
        return (
            result.rows.num_rows > 0
            and result.stats["rounds"] < self.rounds
            and result.stats["bytes_in_flight"] <= self.exchanged
            and result.stats.get("bytes", 0) <= self.delivered
            # after very many iterations the batch ends, so that the driver sees the notice
            and not any(notice.kind == "iterations" for notice in result.notices)
        )


def run_workers(rows: pa.Table, run: Callable[[int, pa.Table], pa.Table]) -> pa.Table:
    """Run a round of each worker that has rows; returns the rows that the workers write, in their order.

    Args:
        run: runs a worker's round with the worker's rows; its `VertexError` becomes a `Failure`.
    """
    column, written = rows.column("worker"), [ROWS.empty_table()]
    for worker in sorted(set(column.to_pylist())):
        try:
            written.append(run(worker, rows.filter(pc.equal(column, worker))))
        except VertexError as error:  # noqa: PERF203 - the other workers run
            written.append(wire.table([(worker, Failure.of(error))]))
    return pa.concat_tables(written)


def run_local_rounds(
    coordinator: Coordinator,
    result: RoundResult,
    states: Mapping[int, Any],
    bound: Bound,
    *,
    blobs: Blobs | None = None,
    budget: Callable[[], Budget | None] = lambda: None,
    watch: Callable[[Recorded], object] | None = None,
) -> tuple[RoundResult, dict[int, Worker]]:
    """Run local rounds, which have no input, after the batch's rounds so far.

    Args:
        states: the `checkpoint` of each worker that has one.

    Returns:
        The result of all rounds of the batch, and the workers that ran, each with its new state.
    """
    plan, batch = coordinator.plan, coordinator.batch
    workers: dict[int, Worker] = {}

    def run(index: int, rows: pa.Table, *, after: RoundResult, share: Budget) -> pa.Table:
        if index not in workers:
            workers[index] = Worker(plan, states.get(index), index, blobs)
        if watch is None:
            return workers[index].step(batch, rows, after.header, share)
        number = after.stats["rounds"]
        recorded = Recorded.of_step(workers[index], batch, rows, after.header, share, number=number)
        watch(recorded)
        return recorded.out

    while bound.allows(result):
        share = budget() or plan.budget or Budget()
        share = replace(share, bytes=min(share.bytes, bound.delivered))
        written = run_workers(result.rows, partial(run, after=result, share=share))
        result = result.then(coordinator.apply_round(batch, written))
    return result, workers
