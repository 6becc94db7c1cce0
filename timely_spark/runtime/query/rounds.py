"""`Rounds`: runs the further rounds of a micro-batch in one process, or in parallel tasks.

While rounds are small, one process runs all workers and the coordinator: this one where it shares the machine
with the executors, else a task. Larger rounds are run by a barrier stage: each task hosts a share of the
workers, and tasks exchange rows directly. Where that is impossible, one task runs them, and an exchange of
more than 4 MB waits for the next micro-batch. The limits of a batch are in the manifest before it, so a
repeated batch runs the same rounds; the results do not depend on the processes that run them.
"""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from sys import maxsize
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import Coordinator, RoundLimits, RoundResult, Share
from timely_spark.coordinator.round_result import OUTPUTS
from timely_spark.errors import VertexError
from timely_spark.runtime.errors import PeerLost, PeersUnreachable
from timely_spark.runtime.query.hosted import (
    SENT,
    Addresses,
    Hosted,
    answer_of,
    decoded,
    exchange_by_peers,
    garbage_of,
    host_of,
)
from timely_spark.runtime.query.live import Live
from timely_spark.runtime.query.peers import Peers
from timely_spark.runtime.query.staying import StayingTasks, Work
from timely_spark.runtime.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.session import await_slots, on_one_machine, slots
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.worker import ROWS, Worker, wire
from timely_spark.worker.wire import Failure, Item, RowKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rounds up to this size run in one process, perhaps the driver's: starting parallel tasks takes longer.
SMALL = RoundLimits(exchanged=1 << 20, delivered=4 << 20)
#: Seconds until a barrier stage must have begun; and how often it may fail, since Spark does not try again.
BEGIN, ATTEMPTS = 60.0, 4
#: Seconds to wait until another executor replaces a lost one; Spark looks only every 15 seconds.
REPLACED = 10.0


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
    #: why this process can no longer let micro-batches stay; empty if it can
    not_resident: str = ""

    def __post_init__(self) -> None:
        #: the workers of this process; and the tasks that host them instead, if this process may not
        self._hosted = Hosted(self.context)
        self._tasks = StayingTasks(self.context) if self.context.in_tasks else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def bound(self) -> RoundLimits:
        """How far the next micro-batch may go."""
        rounds = self.context.rounds
        return RoundLimits.any_size(rounds) if self.parallel else RoundLimits(rounds=rounds)

    def run(
        self,
        session: SparkSession,
        coordinator: Coordinator,
        result: RoundResult,
        states: StateRefs,
        bound: RoundLimits,
    ) -> tuple[Coordinator, RoundResult]:
        """Run the further rounds of a micro-batch as far as `bound` allows; enters their states in `states`.

        Returns the coordinator, which may be another one, and the result of all rounds of the batch.
        """
        small, attempt = replace(SMALL, rounds=bound.rounds), 1
        while bound.allows(result) and (read := self._read(states)) <= bound.states:
            start = replace(result, outputs=OUTPUTS.empty_table(), released=[])
            job = _Job(self.context, coordinator.batch, start, small, states.references)
            large = not (small.allows(result) and read <= small.states)
            if large:
                self.leave()  # the stage needs their slots
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
                coordinator, last = decoded(self.context.plan, job.batch, answer)
                rows = answer
                states.garbage += garbage_of(answer)
            states.enter(rows)
            result = replace(
                last,
                outputs=pa.concat_tables([result.outputs, last.outputs]),
                released=[*result.released, *last.released],
            )
        return coordinator, result

    def from_input(
        self,
        session: SparkSession,
        coordinator: Coordinator,
        batch: int,
        start: RoundResult,
        states: StateRefs,
        *,
        bound: RoundLimits,
        repeated: bool,
    ) -> tuple[Coordinator, RoundResult, dict[int, Worker]]:
        """Run the small rounds of a batch from its input on, and in tasks that stay all of them.

        The workers, of this process or of the tasks, are in memory for the next call. The tasks write their
        states, which are entered in `states`; `write` does so for workers of this process.

        Args:
            start: `RoundResult.of_input`.
            bound: of how many rounds; and how far tasks go, where they are parallel.
            repeated: whether the batch may have begun before.

        Returns:
            The coordinator, which may be another one; the result of the rounds; the workers of this process
            that have run.
        """
        references = states.references
        bounds = [replace(SMALL, rounds=bound.rounds)]
        if self._tasks is not None:
            wide = [*bounds, bound] if bound.states == maxsize else bounds
            work = Work.of(coordinator, batch, start, wide, repeated=repeated)
            if (answer := self._by_tasks(session, work, start.rows, references)) is not None:
                coordinator, result = decoded(self.context.plan, batch, answer)
                states.enter(answer)
                states.garbage += garbage_of(answer)
                self._tasks.place(states.efforts, batch)
                return coordinator, result, {}
            repeated = True
        result, ran = self._hosted.run(
            coordinator, batch, start, references, bounds, share=Share(), repeated=repeated
        )
        return coordinator, result, ran

    @property
    def live(self) -> Live:
        """Writes what this process does."""
        return self._hosted.live

    def write(self, batch: int, ran: Mapping[int, Worker], states: StateRefs) -> None:
        """Write the states of workers of this process that have run, and enter them in `states`."""
        states.enter(self._hosted.write(batch, ran, states.references))

    def can_stay(self, session: SparkSession, batch: int) -> bool:
        """Whether further batches can run without a micro-batch; takes tasks for it where they host workers.

        If not, `not_resident` says why.
        """
        if self._tasks is not None and not self.not_resident:
            try:
                self._tasks.begin(session, batch)
            except PeersUnreachable as error:
                self.not_resident = str(error)
                text = "from now on each epoch is a micro-batch: %s"
                self.context.log_message(logging.WARNING, text, error)
        return not self.not_resident

    @contextmanager
    def staying(self) -> Iterator[None]:
        """While the body runs, tasks may stay; after an error they are given back."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give the tasks that stay back."""
        if self._tasks is not None:
            self._tasks.end()

    def _by_tasks(
        self, session: SparkSession, work: Work, rows: pa.Table, references: Mapping[int, bytes]
    ) -> pa.Table | None:
        """The answer of the tasks that stay; None if no task could be taken, and none has run a round."""
        assert self._tasks is not None
        for attempt in itertools.count(1):
            if not self.can_stay(session, work.batch):
                return None
            try:
                return self._tasks.run(work, rows, references)
            except PeerLost as error:
                self._tasks.end()
                if attempt == ATTEMPTS:
                    raise
                text = "batch %d runs again, because a task that hosts workers was lost: %s"
                self.context.log_message(logging.WARNING, text, work.batch, error)
                await_slots(session, self._tasks.tasks + 1, REPLACED)
            work = replace(work, repeated=True)
        raise AssertionError

    def no_longer(self, states: StateRefs) -> str:
        """Why no micro-batch can stay after a batch with these states; empty if one can."""
        tasks = 1 if self._tasks is None else max(1, self._tasks.tasks)
        if (read := self._read(states)) > SMALL.states * tasks:
            limit = f"{SMALL.states >> 20} MB" + f" for each of {tasks} tasks" * (tasks > 1)
            return f"the states that a batch may read have {read >> 20} MB, more than {limit}"
        return self.not_resident

    @property
    def slow(self) -> str:
        """`Manifest.slow`."""
        return "" if self._tasks is None else self._tasks.placement.text

    def _read(self, states: StateRefs) -> int:
        mapped = self.context.blobs.files.local
        return sum(state.read(mapped=mapped) for state in states.by_worker.values())

    def _on_spark(self, session: SparkSession, job: _Job, *, again: bool) -> pa.Table | None:
        """The rows that the job's tasks return; None if they have run no round, and must run again."""
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
            await_slots(session, job.tasks, REPLACED)
            return None
        finally:
            job.addresses.forget(job.tasks)
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
    except Exception:  # noqa: BLE001 - a description is not a reason to fail
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
    bound: RoundLimits
    states: dict[int, bytes]
    coordinator: dict[str, Any] = field(default_factory=dict)
    tasks: int = 1
    #: bytes that a task sends its peers in one exchange; larger tables go by files
    sent: int = SENT
    #: names the stage, and is known to its tasks only
    token: bytes = field(default_factory=functools.partial(secrets.token_bytes, 32))

    @property
    def description(self) -> str:
        """The job in Spark's user interface."""
        loops = [latest[:3] for latest in self.result.convergence.latest()]
        return description(self.context.name, self.batch, self.result.stats["rounds"], loops, self.tasks)

    @property
    def addresses(self) -> Addresses:
        """The addresses of the stage's tasks."""
        return Addresses(self.context, f"{self.batch}-{self.result.stats['rounds']}", self.token)


@contextmanager
def _given_up(session: SparkSession, job: _Job) -> Iterator[threading.Event]:
    """Cancel the body's Spark jobs if the stage has not begun in time; yields whether that was done.

    A barrier stage waits until as many slots are free as it has tasks, which may never happen where other
    queries use them.
    """
    spark, given_up = session.sparkContext, threading.Event()  # there is one, where `slots` finds several
    tag = f"timely-{job.context.run}-{job.batch}"

    def check() -> None:
        if job.addresses.of(0) is None:
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
                out = answer_of(job.context, coordinator, result, rows, share=share, garbage=garbage)
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
    rank = task.partitionId()
    with Peers(rank, job.tasks, host_of(task), job.token, ROWS) as peers:
        job.addresses.publish(rank, peers.address)
        peers.connect(job.addresses.of)
        swap, garbage = exchange_by_peers(job.context, peers, job.batch, job.sent)
        yield Share(rank, job.tasks, swap), garbage


def _run(job: _Job, coordinator: Coordinator, share: Share) -> tuple[RoundResult, pa.Table]:
    """Run the rounds of the hosted workers; returns the result with their rows, and rows of their states."""
    start = replace(job.result, rows=job.context.blobs.resolve(share.own(job.result.rows)))
    with closing(Hosted(job.context, share.rank)) as hosted:  # the next batch may run elsewhere
        result, ran = hosted.run(
            coordinator, job.batch, start, job.states, [job.bound], share=share, repeated=True
        )
        return result, hosted.write(job.batch, ran, job.states)
