"""`Rounds`: runs the further rounds of a micro-batch in one process, or in parallel tasks.

While rounds are small, one process runs all workers and the coordinator: this one where it shares the machine
with the executors, else a task. Larger rounds are run by a barrier stage, whose tasks host a share of the
workers each and exchange rows directly. Where that is impossible, one task runs them, and an exchange of more
than 4 MB waits for the next micro-batch. The limits of a batch are in the manifest before it, so a repeated
batch runs the same rounds; the results do not depend on the processes that run them.
"""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import Bound, Coordinator, RoundResult, Share, merged_snapshot, run_local_rounds
from timely_spark.coordinator.round_result import OUTPUTS, as_outputs
from timely_spark.errors import VertexError
from timely_spark.runtime.errors import PeerLost, PeersUnreachable
from timely_spark.runtime.query.cut_off import CutOff
from timely_spark.runtime.query.live import Live, live
from timely_spark.runtime.query.peers import Address, Peers, address_in, signed
from timely_spark.runtime.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.session import on_one_machine, slots
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.states import State, States, write_state
from timely_spark.worker import ROWS, Worker, wire
from timely_spark.worker.wire import Failure, Header, Item, Message, RowKind, SinkRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rounds up to this size run in one process, perhaps the driver's: starting parallel tasks takes longer.
SMALL = Bound(exchanged=1 << 20, delivered=4 << 20)
#: Seconds until a barrier stage must have begun; and how often it may fail, since Spark does not try again.
BEGIN, ATTEMPTS = 60.0, 4
#: Seconds to wait until another executor replaces a lost one; Spark looks only every 15 seconds.
REPLACED = 10.0


@dataclass(frozen=True, slots=True)
class TaskResult(Item):
    """The result of a task's rounds, without rows: the encoded coordinator and `RoundResult`.

    Of all tasks but the first, what `merged_snapshot` needs of the coordinator.
    """

    kind = RowKind.RESULT
    coordinator: dict[str, Any]
    result: dict[str, Any]
    #: files that only this batch has read
    garbage: list[str]


@dataclass(frozen=True, slots=True)
class Unreachable(Item):
    """The tasks of a stage could not reach each other, and have run no round."""

    kind = RowKind.UNREACHABLE
    reason: str


@dataclass
class Rounds:
    """The further rounds of a run's micro-batches."""

    context: RunContext
    #: whether parallel tasks run large rounds
    parallel: bool
    #: workers that stay in this process, each with the reference of its state
    _hosted: dict[int, tuple[bytes | None, Worker]] = field(default_factory=dict, repr=False)
    #: the progress of batches that begin in this process
    _live: Live | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hosted": {}, "_live": None}

    @property
    def bound(self) -> Bound:
        """How far the next micro-batch may go."""
        rounds = self.context.rounds
        return Bound.any_size(rounds) if self.parallel else Bound(rounds=rounds)

    def run(
        self,
        session: SparkSession,
        coordinator: Coordinator,
        result: RoundResult,
        states: States,
        bound: Bound,
    ) -> tuple[Coordinator, RoundResult]:
        """Run the further rounds of a micro-batch as far as `bound` allows; enters their states in `states`.

        Returns the coordinator, which may be another one, and the result of all rounds of the batch.
        """
        small, attempt = replace(SMALL, rounds=bound.rounds), 1
        while bound.allows(result) and (read := self._read(states)) <= bound.states:
            start = replace(result, outputs=OUTPUTS.empty_table(), released=[])
            references = {worker: state.reference for worker, state in states.by_worker.items()}
            job = _Job(self.context, coordinator.batch, start, small, references)
            large = not (small.allows(result) and read <= small.states)
            if large:
                tasks = min(self.context.plan.workers, slots(session)) if self.parallel else 1
                job = replace(job, bound=bound, tasks=max(1, tasks))
            if not large and on_one_machine(session):
                last, rows = _run(job, coordinator, Share())
            else:
                job, attempt = replace(job, coordinator=coordinator.encode()), attempt + 1
                with _described(session, job.description):
                    answer = self._on_spark(session, job, again=attempt <= ATTEMPTS)
                if answer is None:
                    continue
                coordinator, last = _decoded(job, answer)
                rows = answer
                states.garbage += [name for _, item in wire.read(answer, TaskResult) for name in item.garbage]
            states.enter(rows)
            result = replace(
                last,
                outputs=pa.concat_tables([result.outputs, last.outputs]),
                released=[*result.released, *last.released],
            )
        return coordinator, result

    def from_input(
        self, coordinator: Coordinator, batch: int, start: RoundResult, states: States, *, repeated: bool
    ) -> tuple[RoundResult, dict[int, Worker]]:
        """Run the rounds of a batch from its input on, in this process; `write` then writes their states.

        Returns the result, and the workers that have run.

        Args:
            start: `RoundResult.of_input`.
            repeated: whether the batch may have begun before.
        """
        context, blobs = self.context, self.context.blobs
        references = {worker: state.reference for worker, state in states.by_worker.items()}
        workers = {at: own for at, (was, own) in self._hosted.items() if was == references.get(at)}
        self._hosted.clear()  # after an error they may be half a round on
        encoded = {at: blobs.get(each) for at, each in references.items() if at not in workers}
        if self._live is None:
            self._live = Live(context.log, "resident", bool(context.plan.feedbacks))
        with self._live.during(batch) as progress:
            result, ran = run_local_rounds(
                coordinator, start, encoded, replace(SMALL, rounds=context.rounds), batch=batch,
                workers=workers, blobs=blobs, report=progress.round,
                ends=CutOff(context, batch, progress, first=not repeated),
            )  # fmt: skip
        self._hosted = {at: (references.get(at), own) for at, own in workers.items() if at not in ran}
        return result, ran

    def write(self, batch: int, ran: Mapping[int, Worker], states: States) -> None:
        """Write the states of workers that have run, and enter them in `states`.

        The workers stay in memory for the next batch, unless something else changes their states before it.
        """
        before = {at: state.reference for at, state in states.by_worker.items()}
        states.enter(wire.table(_written(self.context, ran, batch, before)))
        self._hosted |= {at: (states.by_worker[at].reference, worker) for at, worker in ran.items()}

    def is_large(self, states: States) -> bool:
        """Whether the states are too large for this process."""
        return self._read(states) > SMALL.states

    def _read(self, states: States) -> int:
        mapped = self.context.blobs.files.local
        return sum(state.read(mapped=mapped) for state in states.by_worker.values())

    def _on_spark(self, session: SparkSession, job: _Job, *, again: bool) -> pa.Table | None:
        """The rows that the job's tasks return; None: they have run no round, and are to be run again."""
        # `range` is a plan of so many partitions, on Connect as well; the closure carries the tasks' input
        tasks = session.range(0, job.tasks, 1, job.tasks)
        if job.tasks == 1:
            return tasks.mapInArrow(functools.partial(_task, job), ROWS_DDL).toArrow().cast(ROWS)
        stage = tasks.mapInArrow(functools.partial(_task, job), ROWS_DDL, barrier=True)
        try:
            with _given_up(session, job) as given_up:
                answer = stage.toArrow().cast(ROWS)
        except Exception as error:
            if given_up.is_set():
                self._stop_parallel(f"a stage of {job.tasks} tasks has not begun in {BEGIN:g} s")
                return None
            if not again:
                raise
            text = "the parallel rounds of batch %d run again: %s"
            self.context.log_message(logging.WARNING, text, job.batch, _reason(error))
            until = time.monotonic() + REPLACED
            while slots(session) < job.tasks and time.monotonic() < until:
                time.sleep(0.1)
            return None
        finally:
            job.forget_addresses()
        if unreachable := [item.reason for _, item in wire.read(answer, Unreachable)]:
            self._stop_parallel(min(unreachable))
            return None
        return answer

    def _stop_parallel(self, reason: str) -> None:
        self.parallel = False
        text = "from now on large exchanges are micro-batches, because parallel tasks cannot run: %s"
        self.context.log_message(logging.WARNING, text, reason)


def _reason(error: Exception) -> str:
    """The line of an error that names the lost peer; else the first line."""
    lines = str(error).splitlines() or [repr(error)]
    return next((line for line in lines if PeerLost.__name__ in line), lines[0])


def description(
    flow: str, batch: int, rounds: int, loops: Iterable[tuple[str, int, int]] = (), tasks: int = 1
) -> str:
    """The description of a Spark job in Spark's user interface.

    Args:
        rounds: the rounds before it.
        loops: loops that are at work, each with an epoch and the last iteration before it.

    Example:
        >>> description("fraud", 5, 61, [("hops", 5, 40)])
        'fraud: batch 5, rounds after the first 61, loop hops after iteration 40 of epoch 5'
    """
    after = [
        f", loop {loop} after iteration {iteration} of epoch {epoch}" for loop, epoch, iteration in loops
    ]
    parallel = f" in {tasks} parallel tasks" * (tasks > 1)
    return f"{flow}: batch {batch}, rounds after the first {rounds}{parallel}{''.join(after)}"


@contextmanager
def _described(session: SparkSession, text: str) -> Iterator[None]:
    """Describe the body's Spark jobs; Spark Connect has no such descriptions."""
    try:
        spark = session.sparkContext
        before = spark.getLocalProperty("spark.job.description")
        spark.setJobDescription(text)
    except Exception:  # noqa: BLE001 - a description is no reason to fail
        yield
        return
    try:
        yield
    finally:
        with suppress(Exception):
            spark.setJobDescription(before)  # type: ignore[arg-type] # null removes it


@dataclass(frozen=True, slots=True)
class _Job:
    """The input of the task, or of the parallel tasks, that run further rounds."""

    context: RunContext
    batch: int
    result: RoundResult
    bound: Bound
    states: dict[int, bytes]
    coordinator: dict[str, Any] = field(default_factory=dict)
    tasks: int = 1
    #: bytes that a task sends its peers in one exchange; larger tables go by files
    sent: int = 256 << 20
    #: names the stage, and is known to its tasks only
    token: bytes = field(default_factory=functools.partial(secrets.token_bytes, 32))

    @property
    def description(self) -> str:
        """The job in Spark's user interface."""
        loops = [latest[:3] for latest in self.result.convergence.latest()]
        return description(self.context.name, self.batch, self.result.stats["rounds"], loops, self.tasks)

    def publish(self, rank: int, address: Address) -> None:
        """Let the other tasks know the address of a task."""
        place = self._place(rank)
        self.context.log.files.write_json(place, signed(self.token, place, address))

    def address_of(self, rank: int) -> Address | None:
        """The address of a task; None: not known yet, or not written by a task of this stage."""
        place = self._place(rank)
        content = self.context.log.files.json(place)
        return None if content is None else address_in(self.token, place, content)

    def forget_addresses(self) -> None:
        """Remove the files of `publish`."""
        for rank in range(self.tasks):
            self.context.log.files.remove(self._place(rank))

    def _place(self, rank: int) -> str:
        return f"peers/{self.context.term}-{self.batch}-{self.result.stats['rounds']}-{rank}.json"


@contextmanager
def _given_up(session: SparkSession, job: _Job) -> Iterator[threading.Event]:
    """Cancel the body's Spark jobs if the stage has not begun in time; yields whether that was done.

    A barrier stage waits until as many slots are free as it has tasks, which may never happen where other
    queries use them.
    """
    spark, given_up = session.sparkContext, threading.Event()  # there is one, where `slots` finds several
    tag = f"timely-{job.context.run}-{job.batch}"

    def check() -> None:
        if job.address_of(0) is None:
            given_up.set()
            with suppress(Exception):  # the session has ended
                spark.cancelJobsWithTag(tag)

    timer = threading.Timer(BEGIN, check)
    timer.daemon = True
    spark.addJobTag(tag)
    timer.start()
    try:
        yield given_up
    finally:
        timer.cancel()
        spark.removeJobTag(tag)


# -- in a task -----------------------------------------------------------------------------------------------


def _task(job: _Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    with job.context.task():
        coordinator = Coordinator.decode(job.context.plan, job.coordinator)
        try:
            with _share(job) as (share, garbage):
                result, rows = _run(job, coordinator, share)
                known, encoded = coordinator.encode(), result.encode()
                if share.rank:  # all tasks know the same, but for their workers
                    known, encoded = {name: known[name] for name in ("pending", "left")}, {}
                own = TaskResult(known, encoded, garbage)
            out = pa.concat_tables([result.rows, _as_rows(result.outputs)])
            out = job.context.blobs.refer(f"rounds-{job.batch}-{share.rank}", out)
            out = pa.concat_tables([out, rows, wire.table([(share.rank, own)])])
        except PeersUnreachable as error:
            out = wire.table([(0, Unreachable(str(error)))])
        except VertexError as error:
            out = wire.table([(0, Failure.of(error))])
        yield from out.to_batches()


@contextmanager
def _share(job: _Job) -> Iterator[tuple[Share, list[str]]]:
    """The share of this task, and the files through which it sent what was too large for memory."""
    if job.tasks == 1:
        yield Share(), []
        return
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    rank, blobs, garbage = task.partitionId(), job.context.blobs, list[str]()
    host = task.getTaskInfos()[rank].address.rpartition(":")[0].strip("[]")
    rounds = itertools.count()

    def swap(parts: Sequence[pa.Table]) -> list[pa.Table]:
        number, sent = next(rounds), []
        for to, part in enumerate(parts):
            large = to != rank and part.nbytes > job.sent // job.tasks
            sent.append(blobs.refer(f"peers-{job.batch}-{number}-{rank}-{to}", part) if large else part)
            if large:
                garbage.extend(files_of(sent[-1]))
        return [blobs.resolve(part) for part in peers.swap(sent)]

    with Peers(rank, job.tasks, host, job.token, ROWS) as peers:
        job.publish(rank, peers.address)
        peers.connect(job.address_of)
        yield Share(rank, job.tasks, swap), garbage


def _run(job: _Job, coordinator: Coordinator, share: Share) -> tuple[RoundResult, pa.Table]:
    """Run the rounds of the hosted workers; returns the result with their rows, and rows of their states."""
    context, blobs, rows = job.context, job.context.blobs, job.result.rows
    start = replace(job.result, rows=blobs.resolve(share.own(rows)))
    states = {index: blobs.get(state) for index, state in job.states.items() if share.hosts(index)}
    folder = context.record
    watch = None if folder is None else lambda recorded: recorded.write(folder)
    loops, name = bool(context.plan.feedbacks), f"rounds-{share.rank}"
    # all processes know the progress of all workers, so one of them reports it
    with live(context.log, job.batch, name, loops=loops, reports=share.rank == 0) as progress:
        result, workers = run_local_rounds(
            coordinator, start, states, job.bound, share=share, blobs=blobs, watch=watch,
            report=progress.round, ends=CutOff(context, job.batch, progress),
        )  # fmt: skip
    return result, wire.table(_written(context, workers, job.batch, job.states))


def _written(
    context: RunContext, workers: Mapping[int, Worker], batch: int, before: Mapping[int, bytes]
) -> list[tuple[int, State]]:
    """The states of workers that have run in a batch, which are written."""
    changed = []
    for index, worker in workers.items():
        milliseconds, worker.seconds = 1000 * worker.seconds, 0.0
        state = write_state(context.blobs, worker, batch, before.get(index), ms=milliseconds)
        changed.append((index, state))
    return changed


def _as_rows(outputs: pa.Table) -> pa.Table:
    """Outputs as rows of schema `ROWS`."""
    columns = (outputs[name].to_pylist() for name in ("worker", "sink", "epoch", "payload"))
    return wire.table(
        (worker, SinkRows(sink=sink, epoch=epoch, payload=payload))
        for worker, sink, epoch, payload in zip(*columns, strict=True)
    )


def _decoded(job: _Job, answer: pa.Table) -> tuple[Coordinator, RoundResult]:
    for _, failure in wire.read(answer, Failure):
        failure.throw(f"batch {job.batch}")
    results = [item for _, item in sorted(wire.read(answer, TaskResult), key=itemgetter(0))]
    rows, outputs = wire.only(answer, Message, Header), as_outputs(answer)
    result = RoundResult.decode(results[0].result, rows=rows, outputs=outputs)
    snapshot = merged_snapshot([each.coordinator for each in results])
    return Coordinator.decode(job.context.plan, snapshot), result
