"""`Live`: the progress of the running micro-batch, in a small file that other processes read.

A micro-batch may run a loop for minutes before its manifest is written. The process that runs the rounds
replaces the file from time to time, also while a step takes long. It never waits for a reader, and a failed
write does not fail the batch. The same process looks for commands (`cancel`, `stop`), which end the batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from timely_spark.compiler import Plan
from timely_spark.coordinator import RoundResult
from timely_spark.errors import TimelyError
from timely_spark.runtime.storage.cancel import waiting
from timely_spark.runtime.storage.log import RoundLog, stop_file
from timely_spark.show.table import counted
from timely_spark.worker import Worker
from timely_spark.worker.convergence import Convergence

if TYPE_CHECKING:
    from timely_spark.runtime.run_context import RunContext

_log = logging.getLogger(__name__)

#: Seconds between two files, and before the first: a shorter batch writes none. A write takes at most this
#: share of the time.
EVERY, SHARE = 0.2, 0.02
#: Seconds after which a thread without a batch ends.
IDLE = 5.0
#: The batch after the newest one, as tasks that pack input see it.
NEXT = -1
_FOLDER = "live"
_CALL = ("step", "where", "time", "records", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProgress:
    """A loop in a micro-batch that is running."""

    loop: str
    #: The last epoch in the loop, and its last iteration.
    epoch: int
    iteration: int
    #: The records that entered this iteration by feedback, of a collection the changed records (after many
    #: iterations, the mean of the last ones); and those of all iterations of the epoch in this micro-batch.
    changes: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """A call of a step that has not returned."""

    step: str
    #: the user's line
    where: str
    #: the time of the call, as text, and the records that the step got
    time: str
    records: int
    #: how long ago the call began
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A micro-batch that is running."""

    #: The micro-batch, which with clock epochs is the epoch of its input.
    epoch: int
    #: The rounds of the micro-batch so far (none while its input is read), and the records that they
    #: delivered to steps.
    rounds: int
    records: int
    loops: tuple[LoopProgress, ...]
    #: The calls of steps that had not returned when the progress was written.
    calls: tuple[StepProgress, ...] = ()

    def named(self, loop: Callable[[str], str]) -> BatchProgress:
        """The same, with names of loops for people."""
        return replace(self, loops=tuple(replace(each, loop=loop(each.loop)) for each in self.loops))

    def __str__(self) -> str:
        work = f"runs: round {self.rounds}, {self.records:,} records" if self.rounds else "reads its input"
        parts = [f"batch {self.epoch} {work}"]
        parts += [
            f"loop {loop.loop!r} at iteration {loop.iteration} of epoch {loop.epoch}, "
            f"{loop.changes:,} changes"
            for loop in self.loops
        ]
        parts += [
            f"step {call.step!r} ({call.where}) at {call.time} has {counted(call.records, 'record')}, for "
            f"{call.seconds:.1f} s"
            for call in self.calls
        ]
        return "; ".join(parts)


@dataclass
class Live:
    """Writes the file of one process, a micro-batch at a time, and looks for commands. Call `round` often.

    Its thread stays for `IDLE` seconds after a batch: to start one takes as long as a small batch.
    """

    log: RoundLog
    #: distinguishes the processes of a micro-batch
    process: str
    #: whether the flow has loops, which `cancel` ends
    loops: bool = True
    #: whether this process reports the rounds before, of all workers; the others report their own only
    reports: bool = True
    #: the running batch; None between two batches, and `NEXT` for a batch whose number is not known
    batch: int | None = None
    #: whether the batch has a file
    written: bool = False
    #: whether a command waits for the end of the batch
    asked: bool = False
    #: the worker that runs, or the plan that packs an input; and what the rounds before have done
    _caller: Worker | Plan | None = None
    _content: dict[str, Any] = field(default_factory=dict)
    #: when the next file is due, when the counts are to be taken again, and when a batch last began or ended
    _due: float = 0.0
    _stale: float = 0.0
    _changed: float = 0.0
    _closed: threading.Event = field(default_factory=threading.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    @contextmanager
    def during(self, batch: int, packs: Plan | None = None) -> Iterator[Live]:
        """Write, and look for commands, while the body runs a batch, or packs input; then remove the file."""
        with self._writing:
            self._changed = time.monotonic()
            self._due = self._stale = self._changed + EVERY
            self._caller, self._content = packs, {"rounds": 0, "records": 0, "loops": {}}
            self.written, self.asked, self.batch = False, False, batch
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="timely-live", daemon=True)
                with suppress(RuntimeError):  # the interpreter is about to end, and starts none
                    thread.start()
                    self._thread = thread
        try:
            yield self
        finally:
            with self._writing:
                self.batch, self._caller, self._changed = None, None, time.monotonic()
                if self.written:
                    with suppress(Exception):
                        self.log.files.remove(self._name)

    def round(self, result: RoundResult | None, worker: Worker | None) -> None:
        """A round has ended with `result`; or `worker` works on the next one."""
        self._caller = worker
        if (now := time.monotonic()) < self._stale:
            return
        self._stale = now + EVERY
        self._count(result if self.reports else None, worker)
        if now >= self._due:
            self._write(self.batch)

    def _count(self, result: RoundResult | None, worker: Worker | None) -> None:
        rounds, records, carried = 0, 0, Convergence()
        if result is not None:
            rounds, records = result.stats["rounds"], result.stats.get("records", 0)
            carried = result.convergence
        if worker is not None:
            rounds, records = rounds + 1, records + worker.stats["records"]
            carried += worker.iterations.convergence
        self._content = {
            "rounds": rounds, "records": records,
            "loops": {loop: numbers for loop, *numbers in carried.latest()},
        }  # fmt: skip

    def _look(self) -> None:
        """Look for commands and write the file, on the thread; not for a batch that ends soon."""
        pause = EVERY
        while not self._closed.wait(pause):
            started, pause = time.monotonic(), EVERY
            with self._writing:
                batch, since = self.batch, started - self._changed
                if batch is None and since > IDLE:
                    self._thread = None
                    return
            if batch is None or since < EVERY:
                continue
            with suppress(Exception):  # the next look may succeed; the batch itself reports a bad disk
                asked = self.asked or requested(self.log, loops=self.loops)
                with self._writing:
                    self.asked = asked and self.batch == batch
            if started >= self._due and (self._calling() or isinstance(self._caller, Plan)):
                self._write(batch)
            pause = max(EVERY, (time.monotonic() - started) / SHARE)

    def _calling(self) -> list[Any] | None:
        """The present call, if it takes long."""
        calling = None if self._caller is None else self._caller.calling
        if calling is None or (seconds := time.monotonic() - calling[3]) < EVERY:
            return None
        stage, at, records, _ = calling
        return [stage.name, str(stage.where), str(at), records, seconds]

    def _write(self, batch: int | None) -> None:
        with self._writing:
            if batch is None or self.batch != batch:
                return
            started = time.monotonic()
            calling = self._calling()
            content = {**self._content, "calls": [] if calling is None else [calling]}
            try:
                if not isinstance(self._caller, Plan):
                    content["rounds"] = max(1, content["rounds"])
                if batch == NEXT:
                    newest = self.log.newest()
                    batch = 0 if newest is None else newest + 1
                content["batch"] = batch
                self.log.files.write_json(self._name, content)
                self.written = True
            except Exception as error:  # noqa: BLE001 - the batch itself reports a full disk
                _log.debug("progress of batch %d is not written: %s", batch, error)
            ended = time.monotonic()
            self._due = ended + max(EVERY, (ended - started) / SHARE)

    @property
    def _name(self) -> str:
        return f"{_FOLDER}/{self.log.term}-{self.process}.json"

    def close(self) -> None:
        """End the thread."""
        self._closed.set()


@contextmanager
def packing(context: RunContext) -> Iterator[None]:
    """Write what a task does while the body packs a part of a micro-batch's input."""
    from pyspark import TaskContext

    task = TaskContext.get()
    name = f"packs-{0 if task is None else task.partitionId()}"
    live = Live(context.log, name, loops=bool(context.plan.feedbacks))
    with closing(live), live.during(NEXT, context.plan):
        yield


def requested(log: RoundLog, *, loops: bool) -> bool:
    """Whether a command waits for the end of the running micro-batch."""
    return log.files.exists(stop_file(log.term)) or (loops and waiting(log))


def running_batch(log: RoundLog, after: int) -> BatchProgress | None:
    """The micro-batch after batch `after`, if it runs and has written what it has done so far.

    A file that is damaged counts for nothing: it is there for display only.
    """
    contents: list[dict[str, Any]] = []
    for name in log.files.names(_FOLDER):
        # replaced meanwhile, on a file system without atomic renames
        with suppress(TimelyError, LookupError, TypeError):
            content = log.files.json(name)
            if content is not None and content["batch"] > after:
                contents.append(content)
    with suppress(LookupError, TypeError, ValueError, AttributeError):
        return _together(contents) if contents else None
    return None


def _together(contents: list[dict[str, Any]]) -> BatchProgress:
    """The progress of all processes of the newest micro-batch."""
    batch = max(content["batch"] for content in contents)
    contents = [content for content in contents if content["batch"] == batch]
    loops: dict[str, list[int]] = {}
    for content in contents:
        for loop, (epoch, iteration, changes, total) in content["loops"].items():
            last = loops.setdefault(loop, [epoch, 0, 0, 0])
            if [epoch, iteration] > last[:2]:
                last[2] = 0
                last[3] = last[3] if epoch == last[0] else 0
                last[:2] = epoch, iteration
            last[2] += changes if [epoch, iteration] == last[:2] else 0
            last[3] += total if epoch == last[0] else 0
    return BatchProgress(
        epoch=batch,
        rounds=max(content["rounds"] for content in contents),
        records=sum(content["records"] for content in contents),
        calls=tuple(
            StepProgress(**dict(zip(_CALL, call, strict=True)))
            for c in contents
            for call in c.get("calls", ())
        ),
        loops=tuple(
            LoopProgress(loop=loop, epoch=epoch, iteration=iteration, changes=changes, total=total)
            for loop, (epoch, iteration, changes, total) in sorted(loops.items())
        ),
    )
