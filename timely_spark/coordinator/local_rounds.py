"""Local and parallel rounds: further rounds of a micro-batch, instead of one micro-batch each.

A worker's step is a pure function of its state, a header and rows, so an exchange needs no micro-batch of its
own. One process runs all workers and the coordinator (local rounds), or several processes host a share of the
workers each and exchange rows directly (parallel rounds). The rounds are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from math import isqrt
from sys import maxsize
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.coordinator.coordinator import Coordinator
from timely_spark.coordinator.loops import ENDLESS
from timely_spark.coordinator.round_result import RoundResult
from timely_spark.errors import VertexError
from timely_spark.state.codec import BlobStore
from timely_spark.worker import wire
from timely_spark.worker.record import Recorded
from timely_spark.worker.round import Budget, Worker
from timely_spark.worker.wire import ELSEWHERE, Failure, Message, Report

#: So many processes exchange by way of each other.
MANY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """The limits of the further rounds of one batch: a batch must not delay new input for long.

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

    @classmethod
    def any_size(cls, rounds: int) -> RoundLimits:
        """The limits where parallel processes run large rounds."""
        return cls(rounds=rounds, exchanged=maxsize, delivered=maxsize, states=maxsize)

    def allows(self, result: RoundResult) -> bool:
        """Whether the batch runs another round after the one with this result."""
        rounds = result.stats["rounds"]
        return result.awake and (
            rounds == 0  # each batch has a first round, which moves the coordinator to the batch
            or (
                rounds < self.rounds
                and result.stats["bytes_in_flight"] <= self.exchanged
                and result.stats.get("bytes", 0) <= self.delivered
                and not result.stats.get("cut")  # a round was cut off, so that the batch ends
                # after very many iterations the batch ends, so that the driver sees the notice
                and not any(notice.kind in {"grows", *ENDLESS} for notice in result.notices)
            )
        )


@dataclass(frozen=True, slots=True)
class Share:
    """The workers that one of the processes of parallel rounds hosts: each `processes`-th, or by `places`.

    Every process has a coordinator, which applies the progress of all workers. So after an exchange each
    process knows the next header, as in Naiad's progress protocol, and none waits for a central one. The
    reports of a process are added up before they are sent, so the others apply one for each process.
    """

    rank: int = 0
    processes: int = 1
    #: sends a table to each process of a group, and returns the tables that it is sent, in that order
    swap: Callable[[list[pa.Table], list[int]], list[pa.Table]] = lambda parts, _: parts
    #: the process that hosts each worker
    places: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The processes that host workers."""
        return sorted({*self.places}) or [*range(self.processes)]

    def hosts(self, worker: int) -> bool:
        """Whether this process hosts the worker."""
        return bool(self._process(worker) == self.rank)

    def _process(self, workers: Any) -> Any:
        """The process of a worker, or of each worker of an array."""
        return np.asarray(self.places)[workers] if self.places else workers % self.processes

    def own(self, rows: pa.Table) -> pa.Table:
        """The rows from or for workers of this process."""
        if self.processes == 1:
            return rows
        workers = rows.column("worker").to_numpy()
        return wire.at(rows, (self._process(workers) == self.rank).nonzero()[0])

    def exchange(self, rows: pa.Table) -> pa.Table:
        """The rows that this process gets of those that all processes wrote in a round, in schema `ROWS`.

        Messages go to the process of their worker only, and failures to all. Outputs and reports stay, and
        the other processes get the sum of the reports.

        Few processes send to each other. `MANY` are the cells of a grid: each sends to those of its row what
        is for their columns, and they send it on within the column. A message more costs more than its bytes:
        64 processes each send 14 tables instead of 63, and get as many sums.
        """
        if self.processes == 1:
            return rows
        ranks = self.ranks
        count, place = len(ranks), ranks.index(self.rank)
        width = _width(count)
        rows = self._hop(rows, ranks[place - place % width :][:width], lambda to: to % width)
        return (
            rows if width == count else self._hop(rows, ranks[place % width :: width], lambda to: to // width)
        )

    def _hop(self, rows: pa.Table, group: list[int], member: Callable[[Any], Any]) -> pa.Table:
        """The rows that this process gets of those that the processes of a group have.

        Args:
            member: which of the group gets a message, by the place of its process in `ranks`.
        """
        messages = wire.are(rows, Message)
        places, stays = messages.nonzero()[0], (~messages).nonzero()[0]
        stay = wire.at(rows, stays)
        total = Report.sum(report for _, report in wire.read(stay, Report))
        to_all = wire.concat([wire.only(stay, Failure), wire.table([(ELSEWHERE, total)])])
        sent = pa.concat_tables([rows, to_all])
        to = member(np.searchsorted(self.ranks, self._process(rows.column("worker").to_numpy()[places])))
        ends = np.bincount(to, minlength=len(group)).cumsum()[:-1]
        others = np.arange(rows.num_rows, sent.num_rows)
        each = [
            np.append(own, stays if rank == self.rank else others)
            for rank, own in zip(group, np.split(places[np.argsort(to, kind="stable")], ends), strict=True)
        ]
        sent, cuts = wire.at(sent, np.concatenate(each)), accumulate(map(len, each), initial=0)
        return wire.together(
            self.swap([sent.slice(start, end - start) for start, end in pairwise(cuts)], group)
        )


def _width(count: int) -> int:
    """The columns of the grid of so many processes; all in one row if they are few, or a prime number.

    >>> [_width(count) for count in (5, 16, 32, 61, 64)]
    [5, 4, 4, 61, 8]
    """
    widths = [width for width in range(2, isqrt(count) + 1) if count % width == 0]
    return widths[-1] if widths and count >= MANY else count


def run_workers(rows: pa.Table, run: Callable[[int, pa.Table], pa.Table]) -> pa.Table:
    """Run a round of each worker that has rows; returns the rows that the workers write, in their order.

    A worker's `VertexError` becomes a `Failure`, and the other workers run.
    """
    written: list[pa.Table] = []
    for worker, own in wire.by_worker(rows):
        try:
            written.append(run(worker, own))
        except VertexError as error:  # noqa: PERF203 - see above
            written.append(wire.table([(worker, Failure.of(error))]))
    return wire.concat(written)


def run_local_rounds(
    coordinator: Coordinator,
    result: RoundResult,
    states: Mapping[int, Any],
    bound: RoundLimits,
    *,
    batch: int | None = None,
    workers: dict[int, Worker] | None = None,
    share: Share | None = None,
    blobs: BlobStore | None = None,
    budget: Callable[[], Budget | None] = lambda: None,
    watch: Callable[[Recorded], object] | None = None,
    report: Callable[[RoundResult, Worker | None], object] = lambda _result, _worker: None,
    ends: Callable[[int, RoundResult, Worker], bool] | None = None,
) -> tuple[RoundResult, dict[int, Worker]]:
    """Run further rounds of a batch after those so far; or a batch from its input on.

    Args:
        result: the result of the batch's rounds so far; or `RoundResult.of_input`.
        states: the `checkpoint` of each worker that has one.
        batch: the batch, by default the coordinator's.
        workers: workers as earlier batches left them; new ones are added.
        share: the workers that this process hosts, by default all.
        watch: called after each worker's round.
        report: called with the result so far after each round, and whenever a worker reaches another
            iteration of a loop, with that worker; it only looks.
        ends: called before each delivery with the number of the round in the batch, the result before it, and
            the worker: whether that worker's round ends there, and the batch with the round.

    Returns:
        The result of all rounds of the batch, with the rows and outputs of the hosted workers, and those of
        them that ran, each with its new state.
    """
    plan, share = coordinator.plan, share or Share()
    number = coordinator.batch if batch is None else batch
    if share.processes > 1:
        coordinator.host(share.hosts)
        result = replace(result, rows=share.own(result.rows), outputs=share.own(result.outputs))
    hosted, ran = {} if workers is None else workers, dict[int, Worker]()

    def run(index: int, rows: pa.Table, *, after: RoundResult, limit: Budget) -> pa.Table:
        if index not in hosted:
            hosted[index] = Worker(plan, states.get(index), index, blobs)
        worker = ran[index] = hosted[index]
        worker.iterations.watch = partial(report, after, worker)
        worker.ends = None if ends is None else partial(ends, after.stats["rounds"], after)
        if watch is None:
            return worker.step(number, rows, after.header, limit)
        recorded = Recorded.of_step(worker, number, rows, after.header, limit, number=after.stats["rounds"])
        watch(recorded)
        return recorded.out

    while bound.allows(result):
        limit = budget() or plan.budget or Budget()
        limit = replace(limit, bytes=min(limit.bytes, bound.delivered))
        written = run_workers(result.rows, partial(run, after=result, limit=limit))
        result = result.then(coordinator.apply_round(number, share.exchange(written)))
        report(result, None)
    return result, ran
