"""`Hosted`: workers that one process hosts; and what tasks that run rounds together have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.coordinator import (
    Coordinator,
    RoundLimits,
    RoundResult,
    Share,
    merged_snapshot,
    run_local_rounds,
)
from timely_spark.coordinator.round_result import as_outputs
from timely_spark.runtime.query.cut_off import CutOff
from timely_spark.runtime.query.live import Live
from timely_spark.runtime.query.peers import Address, Peers, address_in, signed
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.states import write_state
from timely_spark.worker import Worker, wire
from timely_spark.worker.wire import Failure, Header, Item, Message, RowKind, SinkRows

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

#: bytes that a task sends its peers in one exchange; larger tables go by files
SENT = 256 << 20


@dataclass(frozen=True, slots=True)
class TaskResult(Item):
    """The result of a task's rounds, without rows: the encoded coordinator and `RoundResult`.

    What `merged_snapshot` needs of the coordinator, for all tasks but the first.
    """

    kind = RowKind.RESULT
    coordinator: dict[str, Any]
    result: dict[str, Any]
    #: files that only this batch has read
    garbage: list[str]


@dataclass(frozen=True)
class Addresses:
    """The addresses of a stage's tasks, in files of the round log; those of other writers do not count."""

    context: RunContext
    #: names the stage among those of the run
    stage: str
    #: known to the tasks of the stage only
    token: bytes

    def publish(self, rank: int, address: Address) -> None:
        """Let the other tasks know the address of a task."""
        place = self._place(rank)
        self.context.log.files.write_json(place, signed(self.token, place, address))

    def of(self, rank: int) -> Address | None:
        """The address of a task; None until a task of this stage has written it."""
        place = self._place(rank)
        content = self.context.log.files.json(place)
        return None if content is None else address_in(self.token, place, content)

    def forget(self, tasks: int) -> None:
        """Remove the files of `publish`."""
        for rank in range(tasks):
            self.context.log.files.remove(self._place(rank))

    def _place(self, rank: int) -> str:
        return f"peers/{self.context.term}-{self.stage}-{rank}.json"


@dataclass
class Hosted:
    """Workers that stay in this process from batch to batch, each with the reference of its state."""

    context: RunContext
    #: the process among those of its rounds
    rank: int = 0
    _workers: dict[int, tuple[bytes | None, Worker]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        loops, name = bool(self.context.plan.feedbacks), f"rounds-{self.rank}"
        self.live = Live(self.context.log, name, loops)

    def run(
        self,
        coordinator: Coordinator,
        batch: int,
        result: RoundResult,
        references: Mapping[int, bytes],
        bounds: Iterable[RoundLimits],
        *,
        share: Share,
        repeated: bool,
    ) -> tuple[RoundResult, dict[int, Worker]]:
        """Run rounds of a batch; `write` then writes the workers' states.

        Args:
            result: the result of the batch's rounds so far; or `RoundResult.of_input`.
            references: those of the workers' states before the batch.
            bounds: one after the other limits the rounds.
            repeated: whether the batch may have begun before.

        Returns:
            The result, and the workers that have run.
        """
        context, blobs = self.context, self.context.blobs
        workers = {at: own for at, (was, own) in self._workers.items() if was == references.get(at)}
        self._workers.clear()  # after an error they may be half a round on
        encoded = {
            at: blobs.get(each) for at, each in references.items() if share.hosts(at) and at not in workers
        }
        ran: dict[int, Worker] = {}
        folder = context.record
        watch = None if folder is None else lambda recorded: recorded.write(folder)
        # all processes know the progress of all workers, so one of them reports it
        self.live.reports = share.rank == share.ranks[0]
        with self.live.during(batch) as progress:
            for bound in bounds:
                result, more = run_local_rounds(
                    coordinator, result, encoded, bound, batch=batch, workers=workers, share=share,
                    blobs=blobs, watch=watch, report=progress.round,
                    ends=CutOff(context, batch, progress, first=not repeated),
                )  # fmt: skip
                ran |= more
        self._workers = {at: (references.get(at), own) for at, own in workers.items() if at not in ran}
        return result, ran

    def write(
        self, batch: int, ran: Mapping[int, Worker], references: Mapping[int, bytes], *, work: bool = False
    ) -> pa.Table:
        """Write the states of workers that have run; returns rows of them, perhaps with their work.

        The workers stay in memory for the next batch, unless something else changes their states before it.
        """
        states = []
        for at, worker in ran.items():
            milliseconds, worker.seconds = 1000 * worker.seconds, 0.0
            state = write_state(
                self.context.blobs, worker, batch, references.get(at), ms=milliseconds, work=work
            )
            states.append((at, state))
            self._workers[at] = state.reference, worker
        return wire.table(states)

    def close(self) -> None:
        """Report no progress any more."""
        self.live.close()


def exchange_by_peers(
    context: RunContext, peers: Peers, batch: int, sent: int
) -> tuple[Callable[[Sequence[pa.Table], Sequence[int]], list[pa.Table]], list[str]]:
    """The `Share.swap` of a task, and the files through which it sends tables too large for memory."""
    rank, blobs, garbage, rounds = peers.rank, context.blobs, list[str](), itertools.count()

    def swap(parts: Sequence[pa.Table], ranks: Sequence[int]) -> list[pa.Table]:
        number, tables = next(rounds), []
        for to, part in zip(ranks, parts, strict=True):
            large = to != rank and part.nbytes > sent // len(ranks)
            tables.append(blobs.refer(f"peers-{batch}-{number}-{rank}-{to}", part) if large else part)
            if large:
                garbage.extend(files_of(tables[-1]))
        return [blobs.resolve(part) for part in peers.swap(tables, ranks)]

    return swap, garbage


def answer_of(
    context: RunContext,
    coordinator: Coordinator,
    result: RoundResult,
    states: pa.Table,
    *,
    share: Share,
    garbage: list[str],
) -> pa.Table:
    """The rows that a task returns for a batch: messages, outputs, states, and a `TaskResult`."""
    snapshot, encoded = coordinator.encode(), result.encode()
    if share.rank != share.ranks[0]:  # all tasks know the same, but for their workers
        snapshot, encoded = {name: snapshot[name] for name in ("pending", "left")}, {}
    out = pa.concat_tables([result.rows, _as_rows(result.outputs)])
    out = context.blobs.refer(f"rounds-{coordinator.batch}-{share.rank}", out)
    return pa.concat_tables([out, states, wire.table([(share.rank, TaskResult(snapshot, encoded, garbage))])])


def decoded(plan: Plan, batch: int, answer: pa.Table) -> tuple[Coordinator, RoundResult]:
    """The coordinator and the result that the tasks return together.

    Raises:
        VertexError: a step has failed.
    """
    for _, failure in wire.read(answer, Failure):
        failure.throw(f"batch {batch}")
    results = [item for _, item in sorted(wire.read(answer, TaskResult), key=itemgetter(0))]
    rows, outputs = wire.only(answer, Message, Header), as_outputs(answer)
    result = RoundResult.decode(results[0].result, rows=rows, outputs=outputs)
    snapshot = merged_snapshot([each.coordinator for each in results])
    return Coordinator.decode(plan, snapshot), result


def garbage_of(answer: pa.Table) -> list[str]:
    """The files that only the batch of an answer has read."""
    return [name for _, item in wire.read(answer, TaskResult) for name in item.garbage]


def host_of(task: BarrierTaskContext) -> str:
    """The address of the executor that runs a task of a barrier stage."""
    return task.getTaskInfos()[task.partitionId()].address.rpartition(":")[0].strip("[]")


def _as_rows(outputs: pa.Table) -> pa.Table:
    """Outputs as rows of schema `ROWS`."""
    columns = (outputs[name].to_pylist() for name in ("worker", "sink", "epoch", "payload"))
    return wire.table(
        (worker, SinkRows(sink=sink, epoch=epoch, payload=payload))
        for worker, sink, epoch, payload in zip(*columns, strict=True)
    )
