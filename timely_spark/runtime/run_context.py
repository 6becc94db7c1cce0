"""`RunContext`: checkpoint, plan and limits of one run, sent to every Python process of the run.

Each task's closure has the pickled plan, with the user's functions in it. A Python process unpickles the plan
once and keeps it for later tasks. Like Spark's closures, the pickled plan is never in the checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from sys import maxsize
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.compiler import Plan
from timely_spark.errors import (
    LogDamaged,
    NotComplete,
    StorageFailed,
    TimelyError,
    VertexError,
    without_stack,
)
from timely_spark.graph import caller, with_cell
from timely_spark.runtime import process
from timely_spark.runtime.batches import portions
from timely_spark.runtime.errors import OtherFlow, PeerLost, QueryFailed, Unpicklable, first_line
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.log import FIRST, RoundLog, failure_file
from timely_spark.worker import ROWS, pack

_log = logging.getLogger(__name__)

#: `timely_spark.worker.ROWS`, as Spark's DDL.
ROWS_DDL = "worker int, kind string, meta string, payload binary"

#: A source task packs its rows in portions of about this size.
PORTION_BYTES = 16 << 20

#: Where Spark's text has an error of a task that names a file.
_RAISED = re.compile(r"timely_spark\.[\w.]*\b(StorageFailed|LogDamaged): (.*(?:\n\s*Hint[:] .*)?)")
#: Seconds between two questions to Spark.
_ASK = 0.2
#: The fields that are bytes.
_BYTES = ("packed", "packed_sources")
# Reports of errors by run: those of this process, which may be all that is left where a disk is full.
_reports: dict[str, dict[str, Any]] = {}
#: `run`: the run whose micro-batch this thread finishes
_finishing = threading.local()
# By run, what says whether Spark still runs its query, in the process that started it; and when it was asked.
_running: dict[str, Callable[[], bool]] = {}
_asked: dict[str, float] = {}
# Plans by run and digest. A process serves one or two runs; more come from restarts in a notebook.
_plans: dict[tuple[str, str], Plan] = {}
_BATCH_ID = "streaming.sql.batchId"  # internal to Spark; the only internal key that is used


@dataclass(frozen=True)
class RunContext:
    """A run's checkpoint, plan, workers' labels and limits; small, because every task gets a copy."""

    checkpoint: str
    #: The compiled flow, pickled.
    packed: bytes
    #: A short name for `packed`.
    digest: str
    #: Spark's grouping key of each worker.
    labels: tuple[int, ...]
    #: Names of the inputs that have entries: inputs with a handle, and sources that can be closed.
    inputs: tuple[str, ...]
    #: The name of the flow.
    name: str
    #: The id of this start.
    run: str
    #: The term of this start in the round log.
    term: int | None = None
    #: The first batch of this run.
    first: int = FIRST
    #: The last batch that an earlier run may have begun.
    planned: int = FIRST
    #: The micro-batch after which this run goes on; earlier runs have completed batches of it.
    continued: int = FIRST
    #: The last entry, and the offset, that earlier runs have read of each input.
    read_entries: Mapping[str, int] = field(default_factory=dict)
    read_offsets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Seconds that a micro-batch stays resident; 0 if none does, and why not.
    resident: float = 0.0
    not_resident: str = ""
    #: Whether tasks that stay host the workers then; else the driver does.
    in_tasks: bool = False
    #: Seconds between two commits of an output to a table or to files, while a micro-batch stays resident.
    commit_every: float = 0.25
    #: Whether an output delivers records when they arrive.
    on_arrival: bool = False
    #: How many batches can be rolled back; Spark keeps as many of its own log.
    keep: int = 100
    #: How long, in seconds, even more batches are kept for inspection.
    keep_seconds: float = 0.0
    #: How many rounds a micro-batch may take; 1: each round is one.
    rounds: int = 100
    #: Whether parallel tasks run large rounds; else large exchanges are micro-batches.
    parallel: bool = False
    #: A folder into which every worker's round is recorded, for `testing.recorded`.
    record: str | None = None
    #: The sources that this package reads, by input; pickled, since they may have credentials in them.
    packed_sources: bytes = field(default=pickle.dumps({}), repr=False)

    def tell_stopped(self, is_active: Callable[[], bool]) -> None:
        """Let the driver, if it is in this process, know that the query is to stop."""
        _running[self.run] = is_active

    def forget_query(self) -> None:
        """Ask no more for the query, which has ended: Spark's own object then goes with the last handle."""
        _running.pop(self.run, None)
        _asked.pop(self.run, None)

    def has_stopped(self) -> bool:
        """Whether the query is to stop; looked up a few times a second only."""
        is_active, now = _running.get(self.run), time.monotonic()
        if is_active is None or now - _asked.get(self.run, 0.0) < _ASK:
            return False
        _asked[self.run] = now
        return not is_active()

    def residency(self, no_longer: str = "") -> str:
        """Whether a micro-batch stays resident, and why not, in words.

        Args:
            no_longer: `Manifest.not_resident`.
        """
        if self.resident and not no_longer:
            where = ", its workers in tasks of Spark's that stay" * self.in_tasks
            return f"each micro-batch stays for {self.resident:g} s{where}"
        reason = no_longer or self.not_resident
        return "each epoch is a micro-batch" + f": {reason}" * bool(reason)

    def to_option(self) -> str:
        """Encode as the text of a data source's option."""
        coded = {key: base64.b64encode(getattr(self, key)).decode() for key in _BYTES}
        return json.dumps(asdict(self) | coded)

    @classmethod
    def from_option(cls, text: str) -> RunContext:
        """Decode the text that `to_option` made."""
        values: dict[str, Any] = json.loads(text)
        pairs = {name: tuple(values[name]) for name in ("labels", "inputs")}
        return cls(**(values | pairs | {key: base64.b64decode(values[key]) for key in _BYTES}))

    @cached_property
    def log(self) -> RoundLog:
        """The round log."""
        return RoundLog(self.checkpoint, self.term, self.first)

    @cached_property
    def blobs(self) -> Blobs:
        """The store of messages and states that are too large for rows."""
        return Blobs(self.log.files, self.term)

    @cached_property
    def plan(self) -> Plan:
        """The compiled flow."""
        if (plan := _plans.get((self.run, self.digest))) is None:
            if len(_plans) >= 4:
                _plans.pop(next(iter(_plans)), None)
            plan = _plans[self.run, self.digest] = self.own_plan()
        return plan

    def own_plan(self) -> Plan:
        """A copy of the compiled flow, to run it beside this run: `Plan.spread` changes a plan."""
        return process.with_default_limit(pickle.loads(self.packed))

    @cached_property
    def sources(self) -> Mapping[str, Any]:
        """The sources that this package reads, by input: each a `JournaledSource`."""
        return dict(pickle.loads(self.packed_sources))

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def labelled(self, rows: pa.Table) -> pa.Table:
        """The rows with each worker's label for its index: what Spark groups by."""
        labels = pa.array(self.labels, pa.int32())
        return rows.set_column(0, ROWS.field(0), pc.take(labels, rows.column("worker"))).cast(ROWS)

    def pack(
        self, source: str, batches: Iterator[pa.RecordBatch], shard: int, *, epoch: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows for the workers of the part `shard` of a source's input, in portions."""
        seq = 0
        for seq, table in enumerate(portions(batches, PORTION_BYTES, lambda batch: batch.nbytes), 1):
            yield from self.labelled(pack(self.plan, source, table, shard, seq - 1, epoch=epoch)).to_batches()
        if not seq:  # an empty part reports its epoch, too: an epoch without rows still completes
            empty = self.plan.source(source).stage.outputs[0].empty_table()
            yield from self.labelled(pack(self.plan, source, empty, shard, epoch=epoch)).to_batches()

    def log_message(self, level: int, text: str, *args: object, **more: object) -> None:
        """Log a message about the flow, with the fields of a structured log."""
        extra = {"flow": self.name, "run": self.run, **more}
        _log.log(level, f"%s: {text}", self.name, *args, extra={"context": extra})

    @contextmanager
    def task(self, *, packs: bool = False) -> Iterator[None]:
        """Run the body as a task: `process.task`, and errors are reported.

        Args:
            packs: whether it packs input, which the hot keys that were found before its micro-batch spread.
        """
        with process.task(), self.reporting():
            # of a micro-batch that is `continued`, nothing that a task packs is used
            micro_batch = _batch_of_task() if packs and self.plan.found_keys else None
            if micro_batch is not None and micro_batch != self.continued:
                self.plan.spread(self.log.before(micro_batch)[0].spread)
            yield

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Write an error of this process to the log, where `Query.exception()` finds it.

        Raises:
            OtherFlow: in place of an error that follows from a batch of another flow.
        """
        try:
            yield
        except Exception as error:
            own = self._of_another_flow(error) or error
            self._report(own)
            if own is error:
                raise
            raise own from error

    def _of_another_flow(self, error: Exception) -> OtherFlow | None:
        """The cause of an error, if Spark has committed a batch of another flow while this run started."""
        if not isinstance(error, TimelyError):
            with suppress(TimelyError):
                newest = self.log.newest()
                manifest = None if newest is None else self.log.read(newest)
                if manifest is not None and manifest.plan != self.plan.fingerprint:
                    return OtherFlow.committed(self.checkpoint, manifest.micro_batch)
        return None

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Run the body as the end of a micro-batch, in which functions of the user's are called."""
        _finishing.run = self.run
        try:
            yield
        finally:
            del _finishing.run

    def check_may_wait(self, command: str, reached: Callable[[], bool] = lambda: False) -> None:
        """Refuse a command of a function in the micro-batch that would wait for the micro-batch's end.

        Args:
            reached: whether there is nothing to wait for.

        Raises:
            NotComplete: this thread finishes a micro-batch of this run.
        """
        if getattr(_finishing, "run", None) == self.run and not reached():
            msg = f"{command} waits for the micro-batch of flow {self.name!r} that calls it"
            hint = (
                "return from the function first: let it set a threading.Event, for which the program waits "
                f"before it calls {command}; to end the flow here, raise an exception."
            )
            raise NotComplete(msg, where=caller(), hint=hint)

    def _report(self, error: Exception) -> None:
        own = error if isinstance(error, TimelyError) else self.storage_error(str(error)) or error
        vertex = own.encode() if isinstance(own, VertexError) else None
        text = str(own) if isinstance(own, TimelyError) else without_stack(own)
        kind, rank = type(own).__name__, _rank(own)
        report = {"kind": kind, "text": text, "vertex": vertex, "rank": rank, "at": time.time()}
        with suppress(StorageFailed):  # a full disk: this process still knows, and Spark tells the driver
            _reports[self.run] = report
            with suppress(LogDamaged):  # a damaged report is overwritten
                if (newest := self._newest()) is not None:
                    report["after"] = newest
                earlier = self._reported()
                if earlier is not None and earlier["rank"] > report["rank"]:
                    return  # a task's own error says more than the error that Spark makes of it
            self.log.files.write_json(self._failure, report)

    @property
    def _failure(self) -> str:
        return failure_file(self.term)

    def _reported(self) -> dict[str, Any] | None:
        """The log's report of the error that has ended this run, or is about to; None if there is none."""
        return self._lasting(self.log.files.json(self._failure))

    def _lasting(self, report: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if report is None or is_over(report, self._newest()) else report

    def _newest(self) -> int | None:
        """The newest batch by what is in the log now, also in the process that writes it."""
        return RoundLog(self.checkpoint, self.term, self.first).newest()

    def ended(self, error: TimelyError | None) -> None:
        """The run has ended: keep its error for `status` if no process has reported one; None if stopped."""
        if error is None:
            self.log.files.remove(self._failure)
        elif (report := self._reported()) is None:
            self._report(error)
        elif report["vertex"] is not None:  # its task knew no cells of a notebook
            self.log.files.write_json(self._failure, report | {"text": str(self.failure())})

    def failure(self) -> TimelyError | None:
        """The error that `reporting` wrote in this run, made again from its text."""
        try:
            report = self._reported() or self._lasting(_reports.get(self.run))
        except LogDamaged as damaged:
            return damaged
        except StorageFailed:
            report = _reports.get(self.run)
        if report is None:
            return None
        if report["vertex"] is not None:
            return VertexError.decode(with_cell(report["vertex"]))
        return _remade(report["kind"], report["text"]) or QueryFailed.because(self.name, report["text"])

    def storage_error(self, text: str, what: str = "what Spark writes") -> TimelyError | None:
        """The error that a text of Spark's is about, if a file system or the checkpoint is its cause.

        `what` names the file if the text does not.
        """
        if (raised := _RAISED.search(text)) and (error := _remade(raised[1], raised[2])):
            return error
        line = first_line(text)
        if (failed := StorageFailed.by_spark(text, f"{self.name}: {what} ({line})")) is not None:
            return failed
        files = self.log.spark.files
        if "STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY" in text:
            return LogDamaged.no_file(files.root, "state")
        own = re.search(re.escape(files.root) + r"/((?:state|sources|offsets|commits)/[\w./-]*\w)", text)
        return None if own is None else LogDamaged.unreadable(files.root, own[1], line)


def is_over(report: Mapping[str, Any], newest: int | None) -> bool:
    """Whether a batch is complete after a reported error: a task that had failed was run again.

    Args:
        newest: the newest batch that is complete.
    """
    return newest is not None and newest > report.get("after", maxsize)


def batch_id(log: RoundLog) -> int:
    """Spark's id of this task's micro-batch; from Spark's own log if the task property is missing."""
    batch = _batch_of_task()
    return max(0, log.planned()) if batch is None else batch


def _batch_of_task() -> int | None:
    """Spark's id of this task's micro-batch; None if it has none, or if this is not a task of Spark's."""
    from pyspark import TaskContext

    task = TaskContext.get()
    batch = task.getLocalProperty(_BATCH_ID) if task is not None else None
    return None if batch is None else int(batch)


def packed(plan: Plan) -> dict[str, Any]:
    """The plan as fields of a `RunContext`."""
    from pyspark import cloudpickle

    def refused(vertex: object) -> bool:
        try:
            cloudpickle.dumps(vertex)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - anything may come out of a user's __reduce__
            return True
        return False

    try:
        content: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]
    except Exception as error:
        stage = next((stage for stage in plan.stages if refused(stage.vertex)), None)
        step, where = (plan.name, None) if stage is None else (stage.name, stage.where)
        reason = str(error).partition("\n")[0]
        msg = f"step {step!r} cannot be sent to Spark's tasks: {type(error).__name__}: {reason}"
        hint = (
            "let its functions refer to plain values; open what cannot be copied (a lock, a connection, the "
            "SparkSession) inside of them."
        )
        raise Unpicklable(msg, where=where, hint=hint) from error
    return {"packed": content, "digest": hashlib.sha256(content).hexdigest()[:16]}


def packed_sources(sources: Mapping[str, Any]) -> bytes:
    """The sources as a field of a `RunContext`; their options may have functions, of the user's program."""
    from pyspark import cloudpickle

    content: bytes = cloudpickle.dumps(dict(sources))  # type: ignore[no-untyped-call]
    return content


def _rank(error: Exception) -> int:
    """How specific an error is: 2 names a step, 1 is one of this package, 0 any other, -1 a consequence."""
    if isinstance(error, PeerLost):
        return -1
    return isinstance(error, TimelyError) + isinstance(error, VertexError)


def _remade(kind: str, text: str) -> TimelyError | None:
    """An error of this package from the name of its class and its text."""
    kinds = {each.__name__: each for each in _kinds(TimelyError)}
    if kind not in kinds:
        return None
    error = kinds[kind].__new__(kinds[kind])
    Exception.__init__(error, text)
    error.message, error.where, error.hint = text, None, None
    return error


def _kinds(kind: type[TimelyError]) -> Iterator[type[TimelyError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _kinds(subclass)


def labels(workers: int, partitions: int) -> tuple[int, ...]:
    """Grouping keys that put worker i into partition i mod `partitions`.

    Spark places an int key at `pmod(murmur3(key), partitions)`. Plain 0..W-1 would leave partitions empty and
    others with several workers; these keys spread them evenly.

    >>> labels(4, 2)
    (2, 0, 4, 1)
    """
    labels: list[int] = []
    used: set[int] = set()
    for worker in range(workers):
        label = 0
        while label in used or murmur3(label) % partitions != worker % partitions:
            label += 1
        used.add(label)
        labels.append(label)
    return tuple(labels)


def murmur3(value: int) -> int:
    """Spark's hash of one int column (Murmur3_x86_32.hashInt), signed.

    >>> murmur3(0), murmur3(1)
    (933211791, -559580957)
    """
    mask = 0xFFFFFFFF
    k = value * 0xCC9E2D51 & mask
    k = (k << 15 | k >> 17) & mask
    k = k * 0x1B873593 & mask
    h = 42 ^ k  # Spark's seed
    h = (h << 13 | h >> 19) & mask
    h = h * 5 + 0xE6546B64 & mask
    h ^= 4  # the length in bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h
