"""`StayingTasks`: tasks that host the workers while a micro-batch stays resident on a cluster.

They are one barrier stage. `Peers` connects its tasks to each other and to the driver, which has the last
rank. For each batch the driver sends every task the coordinator and the rows for its workers.
The tasks run the rounds as parallel ones, and return what a task of parallel rounds returns. The workers'
states stay in their memory, and are written as ever. Tasks that the driver leaves idle end by themselves, and
one slot of the cluster stays free: writes to tables, and micro-batches, need it.

The workers of a task that stays slow move to the others (`Placement`), and no round waits for it any more.
After a while the driver takes new tasks, which Spark places as it likes.
"""

from __future__ import annotations

import functools
import logging
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import Coordinator, Placement, RoundLimits, RoundResult, Share
from timely_spark.coordinator.placement import Effort
from timely_spark.coordinator.round_result import OUTPUTS
from timely_spark.errors import VertexError
from timely_spark.runtime.errors import PeersUnreachable, first_line
from timely_spark.runtime.query.hosted import SENT, Addresses, Hosted, answer_of, exchange_by_peers, host_of
from timely_spark.runtime.query.peers import Address, Peers
from timely_spark.runtime.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.session import await_slots, slots
from timely_spark.runtime.storage.states import State
from timely_spark.worker import ROWS, wire
from timely_spark.worker.wire import Failure, Item, RowKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds until the tasks must be there; after which idle ones end; and that the driver waits for their end.
BEGIN, IDLE, END = 20.0, 60.0, 5.0
#: Seconds to wait for a second slot, where executors have only begun.
SLOTS = 10.0
#: Seconds after a move until new tasks are taken; twice as many after the next one.
AGAIN = 600.0


@dataclass(frozen=True, slots=True)
class Work(Item):
    """A batch that tasks are to run; its rows are beside it."""

    kind = RowKind.WORK
    batch: int
    coordinator: dict[str, Any]
    #: the encoded `RoundResult.of_input`
    result: dict[str, Any]
    bounds: list[dict[str, int]]
    repeated: bool
    #: the task of each worker
    places: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        coordinator: Coordinator,
        batch: int,
        start: RoundResult,
        bounds: Sequence[RoundLimits],
        *,
        repeated: bool,
    ) -> Work:
        """The work of a batch from its input on, as far as each of the bounds allows."""
        return cls(batch, coordinator.encode(), start.encode(), list(map(asdict, bounds)), repeated)


@dataclass(frozen=True)
class _Stage:
    """The stage of the tasks; every task gets a copy."""

    context: RunContext
    #: the batch before which it began
    batch: int
    tasks: int
    token: bytes = field(default_factory=functools.partial(secrets.token_bytes, 32), repr=False)

    @property
    def addresses(self) -> Addresses:
        """The addresses of the tasks, and after them of the driver."""
        return Addresses(self.context, f"stay-{self.batch}", self.token)


class StayingTasks:
    """The driver's side; no tasks at first."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        #: how many tasks there are, or were last
        self.tasks = 0
        self.placement = Placement(context.plan.workers, 1)
        self._hosts: list[str] = []
        #: when new tasks are taken, and after how many seconds
        self._due, self._again = math.inf, AGAIN
        self._peers: Peers | None = None
        self._job: _Stay | None = None

    def begin(self, session: SparkSession, batch: int) -> None:
        """Start the tasks, unless they run.

        Raises:
            PeersUnreachable: there are no slots for them, or they cannot reach the driver.
        """
        if self._job is not None and self._job.is_running and time.monotonic() < self._due:
            return
        self.end()
        await_slots(session, 2, SLOTS)
        self.tasks = min(self.context.plan.workers, slots(session) - 1)
        if self.tasks < 1:
            msg = "Spark has one slot, and tasks that stay need one beside it"
            raise PeersUnreachable(msg)
        stage = _Stage(self.context, batch, self.tasks)
        host = session.sparkContext.getConf().get("spark.driver.host") or socket.gethostname()
        with ExitStack() as undo:
            try:
                peers = Peers(self.tasks, self.tasks + 1, host, stage.token, ROWS)
            except OSError as error:
                msg = f"the driver cannot listen at spark.driver.host={host}: {error}"
                raise PeersUnreachable(msg) from error
            undo.enter_context(peers)
            stage.addresses.publish(self.tasks, peers.address)
            undo.callback(stage.addresses.forget, self.tasks + 1)
            self._job = _Stay(session, stage)
            undo.callback(self._job.end)
            peers.connect(self._job.address_of, BEGIN)
            addresses = map(stage.addresses.of, range(self.tasks))
            self._hosts = ["" if address is None else address[0] for address in addresses]
            self.placement = Placement(self.context.plan.workers, self.tasks, self.placement.settled)
            self._peers, self._due = peers, math.inf
            undo.pop_all()
        stage.addresses.forget(self.tasks + 1)

    def run(self, work: Work, rows: pa.Table, references: Mapping[int, bytes]) -> pa.Table:
        """The rows that the tasks return for a batch.

        Args:
            rows: the messages, headers and the input of the batch.
            references: those of the workers' states before it.

        Raises:
            PeerLost: a task has ended.
        """
        assert self._peers is not None
        states = wire.table((worker, State(reference)) for worker, reference in references.items())
        share = Share(0, self.tasks, places=self.placement.places)
        work, all_rows = replace(work, places=share.places), pa.concat_tables([rows, states])
        for rank in share.ranks:
            own = replace(share, rank=rank).own(all_rows)
            self._peers.send(rank, pa.concat_tables([wire.table([(rank, work)]), own]))
        return pa.concat_tables([self._peers.receive(rank) for rank in share.ranks])

    def place(self, efforts: Mapping[int, Effort], batch: int) -> None:
        """Choose the tasks of the workers for the next batch.

        Args:
            efforts: those of a batch.
        """
        if self.tasks > 1 and (text := self.placement.enter(efforts, self._name)):
            self.context.log_message(logging.WARNING, "after batch %d %s", batch, text)
            has_left = bool(self.placement.text)
            self._due = time.monotonic() + self._again if has_left else math.inf
            self._again *= 1 + has_left

    def _name(self, rank: int) -> str:
        return f"task {rank} on {self._hosts[rank]}"

    def end(self) -> None:
        """Give the tasks back, if there are any."""
        peers, self._peers = self._peers, None
        job, self._job = self._job, None
        if peers is not None:
            with peers:
                for rank in range(self.tasks):
                    with suppress(Exception):  # it has ended already
                        peers.send(rank, ROWS.empty_table())
                if job is not None:
                    job.ended.wait(END)
        if job is not None:
            job.end()


class _Stay:
    """The job of Spark's that the tasks are in, which runs in a thread as long as they stay."""

    def __init__(self, session: SparkSession, stage: _Stage) -> None:
        from pyspark import InheritableThread

        self.ended = threading.Event()
        self._stage = stage
        self._error: str | None = None
        self._spark, self._tag = session.sparkContext, f"timely-stay-{stage.context.run}-{stage.batch}"
        text = f"{stage.context.name}: {stage.tasks} tasks that host workers, from batch {stage.batch} on"
        tasks = session.range(0, stage.tasks, 1, stage.tasks)
        hosts = tasks.mapInArrow(functools.partial(_host, stage), ROWS_DDL, barrier=True)

        def run() -> None:
            try:
                self._spark.addJobTag(self._tag)
                self._spark.setJobDescription(text)
                hosts.toArrow()
            except Exception as error:  # noqa: BLE001 - the driver notices that a peer is lost
                self._error = first_line(str(error))
            finally:
                self.ended.set()

        # of the query's job group, so that Spark ends the tasks with the query
        InheritableThread(target=run, daemon=True, name="timely-stay").start()

    @property
    def is_running(self) -> bool:
        """Whether the tasks run, or are starting."""
        return not self.ended.is_set()

    def address_of(self, rank: int) -> Address | None:
        """The address of a task; None if it is not known yet.

        Raises:
            PeersUnreachable: the job has ended.
        """
        if self.is_running:
            return self._stage.addresses.of(rank)
        msg = f"Spark did not run {self._stage.tasks} tasks that stay: {self._error}"
        raise PeersUnreachable(msg)

    def end(self) -> None:
        """Cancel the job if it has not ended."""
        if self.is_running:
            with suppress(Exception):  # the session has ended
                self._spark.cancelJobsWithTag(self._tag)


# -- in a task -----------------------------------------------------------------------------------------------


def _host(stage: _Stage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass
    task = BarrierTaskContext.get()
    rank, driver = task.partitionId(), stage.tasks
    with stage.context.task(), Peers(rank, driver + 1, host_of(task), stage.token, ROWS) as peers:
        hosted = Hosted(stage.context, rank)
        stage.addresses.publish(rank, peers.address)
        peers.connect(stage.addresses.of)
        while (rows := _next(peers, driver)).num_rows:
            peers.send(driver, _answer(stage, hosted, peers, rows))
    yield from ()


def _next(peers: Peers, driver: int) -> pa.Table:
    """The next batch; without rows at the end."""
    try:
        return peers.receive(driver, IDLE)
    except queue.Empty:
        return ROWS.empty_table()


def _answer(stage: _Stage, hosted: Hosted, peers: Peers, rows: pa.Table) -> pa.Table:
    context = stage.context
    ((rank, work),) = wire.read(rows, Work)
    references = {worker: state.reference for worker, state in wire.read(rows, State)}
    coordinator = Coordinator.decode(context.plan, work.coordinator)
    start = RoundResult.decode(work.result, wire.without(rows, Work, State), OUTPUTS.empty_table())
    swap, garbage = exchange_by_peers(context, peers, work.batch, SENT)
    share = Share(rank, stage.tasks, swap, tuple(work.places))
    bounds = [RoundLimits(**bound) for bound in work.bounds]
    try:
        result, ran = hosted.run(
            coordinator, work.batch, start, references, bounds, share=share, repeated=work.repeated
        )
        states = hosted.write(work.batch, ran, references, work=stage.tasks > 1)
    except VertexError as error:
        return wire.table([(rank, Failure.of(error))])
    return answer_of(context, coordinator, result, states, share=share, garbage=garbage)
