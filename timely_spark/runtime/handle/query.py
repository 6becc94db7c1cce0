"""`Query`: the handle of a running flow, with the methods of Spark's StreamingQuery and those of timely."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any

from timely_spark.captured import Captured
from timely_spark.errors import NotComplete, TimelyError, with_hint
from timely_spark.graph import caller, find, with_checked_arguments
from timely_spark.runtime.errors import (
    EpochClosed,
    LostOwnership,
    QueryEnded,
    QueryFailed,
    first_line,
)
from timely_spark.runtime.handle import display, living, questions, reasons
from timely_spark.runtime.handle import pointstamps as stamps
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.idle import Idle
from timely_spark.runtime.handle.indexes import Indexes
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.handle.interrupts import only_the_wait, timeout_seconds, wait_in_a_thread
from timely_spark.runtime.handle.log_view import BEAT, Completed, LogView, Progress
from timely_spark.runtime.handle.probe import QueryProbe
from timely_spark.runtime.handle.sent import Sent
from timely_spark.runtime.query import rest
from timely_spark.runtime.query.live import BatchProgress, running_batch
from timely_spark.runtime.query.rest import telling, wait_for_rest, what_runs, yielding
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.session import has_stopped
from timely_spark.runtime.sinks.outputs import published_by
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.cancel import request
from timely_spark.runtime.storage.entries import Journal, close_source
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import FIRST
from timely_spark.show.table import counted
from timely_spark.times import Timestamp, as_epoch
from timely_spark.worker.epoch_columns import by_column

if TYPE_CHECKING:
    from typing import Self

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: What Spark's errors say of a session that was stopped.
_NO_CONTEXT = re.compile("INTERNAL_ERROR|SparkContext|RpcEnv")

#: So many batches are recent.
_RECENT = 100


@with_checked_arguments
class Query:
    """A running flow.

    Has the methods of Spark's `StreamingQuery`, in snake_case and in camelCase, and those of a timely
    dataflow: `frontier`, `probe`, `wait_for`, `rounds`, `step`. As a context manager it stops the query at
    the end.

    Example:
        Who is in which group, also by way of other groups. The examples of the methods continue this one:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("access")
        >>> groups = flow.input("groups", "member string, of string", epochs="manual")
        >>> direct = groups.expect("not itself", "member <> of").collection()
        >>> def up(pairs):
        ...     links = direct.select(of="member", above="of")
        ...     return pairs.join(links, on="of").select("member", of="above").concat(direct).distinct()
        >>> _ = direct.iterate(up, name="closure").capture("all groups"), groups.capture("log")
        >>> query = flow.start(spark, workers=2)
        >>> groups.send([("ann", "ops"), ("ops", "staff"), ("bob", "bob")])
        >>> groups.advance_to(1)
        >>> query.wait_for(epoch=0)
        True
        >>> query.captured("all groups").rows()
        {0: [('ann', 'ops', 1), ('ann', 'staff', 1), ('ops', 'staff', 1)]}
    """

    def __init__(
        self,
        query: StreamingQuery,
        context: RunContext,
        *,
        session: SparkSession | None = None,
        inputs: Sequence[tuple[InputHandle, Journal]] = (),
        sources: Mapping[str, object] | None = None,
        ends: bool = False,
        lock: Lock | None = None,
        temporary: bool = False,
        views: bool = False,
        outputs: Sequence[Output] = (),
        started_after: int = FIRST,
    ) -> None:
        self._query, self._context, self._watch, self._lock = query, context, LogView(context), lock
        self._inputs = {journal.name: (handle, journal) for handle, journal in inputs}
        # Spark calls a query active until its micro-batch ends, also where its session was stopped meanwhile
        context.tell_stopped(lambda: query.isActive and not has_stopped(session))
        remote = type(session).__module__.startswith(living.CONNECT)
        idle = Idle(query, remote=remote, ends=ends)
        journals = [journal for _, journal in inputs]
        self._sent = Sent(context.plan, self._watch, journals, sources or {}, idle)
        self._indexes = Indexes(
            self._watch.schemas(), self._watch.complete, self._watch.released, context.plan.differences
        )
        #: Where each output writes.
        self._sinks = {output.name: output.sink for output in outputs}
        self._published = published_by(outputs)
        #: The session that runs the query.
        self.session = session
        #: The newest batch before the run, which may have run others by now.
        self._started_after = started_after
        #: Deletes a temporary checkpoint: at `stop`, when the process ends, or when this object is garbage
        #: (a running query is in `living`).
        self._deletes = (
            weakref.finalize(self, living.delete, context.checkpoint, views) if temporary else None
        )
        #: The error that ended the query, once its checkpoint is deleted.
        self._error: TimelyError | None = None
        #: The consoles of `ui`, by port.
        self._consoles: dict[int, Server] = {}

    # -- StreamingQuery's methods ----------------------------------------------------------------------------
    @property
    def id(self) -> str:
        """The query's id: the same after a restart from the checkpoint."""
        return self._query.id

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._query.runId

    @property
    def name(self) -> str | None:
        """The query's name in Spark."""
        return self._query.name

    @property
    def is_active(self) -> bool:
        """Whether the query is running."""
        return self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status, and what Spark does not know.

        `frontier`, `rounds`; `held_back_by`: what keeps the oldest epoch open; `residency`: whether
        micro-batches stay resident, and why not; `slow`: which workers have left a slow task; `batch_ms`: how
        many batches this run has had, with median, p99 and p99.9 of their milliseconds in the driver, at most
        9 % too high.

        Example:
            >>> query.status["frontier"]
            {'all groups': [[1]], 'log': [[1]]}
        """
        manifest = self._watch.newest()
        return {
            **self._query.status,
            "rounds": manifest.rounds,
            "frontier": manifest.frontier,
            "held_back_by": self._watch.held_back_by(),
            "residency": self._context.residency(manifest.not_resident),
            "slow": manifest.slow,
            "batch_ms": manifest.took.encode(),
        }

    @property
    def last_progress(self) -> Progress | None:
        """The progress of the last batch; None before the first.

        Example:
            >>> query.last_progress.epoch, query.last_progress.cut_off
            (..., {})
        """
        newest = self._watch.newest().batch
        return self._watch.progress(newest, self._durations()) if newest >= 0 else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of recent batches of this run, oldest first; if it has none, of the last one.

        Example:
            >>> [loop.loop for progress in query.recent_progress for loop in progress.iterations]
            ['closure']
        """
        return self._recent(_RECENT)

    def _recent(self, most: int) -> list[Progress]:
        durations, newest = self._durations(), self._watch.newest().batch
        first = max(0, min(newest, max(self._started_after + 1, newest - most + 1)))
        reports = (self._watch.progress(batch, durations) for batch in range(first, newest + 1))
        return [progress for progress in reports if progress is not None]

    def _durations(self) -> dict[int, int | None]:
        """The milliseconds of recent micro-batches, by Spark's own progress."""
        recent = self._query.recentProgress
        return {each["batchId"]: each["durationMs"].get("triggerExecution") for each in recent}

    def await_termination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; with a timeout in seconds, returns whether it has ended.

        Example:
            >>> query.await_termination(timeout=0.1)
            False

        Raises:
            TimelyError: the query failed.
        """
        self._context.check_may_wait("await_termination()")
        limit = None if timeout is None else max(timeout_seconds(timeout), 0.001)  # Spark's least
        with self._owning():
            return wait_in_a_thread(lambda: self._query.awaitTermination(limit))  # type: ignore[arg-type]

    def process_all_available(self) -> None:
        """Wait until everything that was available at the call is processed, loops included.

        Example:
            >>> query.process_all_available()

        Raises:
            TimelyError: the query failed.
        """
        self._context.check_may_wait("process_all_available()")
        taken = self._sent.taken()
        with self._owning(), yielding(self._context):
            # The poll that ends the first wait may have begun before the last send. The poll that ends
            # the second wait began later, but not every poll looks at every folder.
            wait_in_a_thread(self._query.processAllAvailable)
            wait_in_a_thread(self._query.processAllAvailable)
            while not taken() and self.is_active:
                wait_in_a_thread(self._query.processAllAvailable)

    def stop(self, timeout: float | None = None) -> None:
        """Stop the query, between two micro-batches if the running one ends soon.

        The flow can be started again from its checkpoint. A temporary checkpoint is deleted; captured outputs
        and frontiers can still be read from this handle. A running micro-batch ends at the next call of a
        step, and leaves its other work to the next start. A call that takes long is not ended: after half a
        second a line in the log names the step. In Spark's task, Spark interrupts it after some seconds; in
        the driver, where micro-batches stay resident, nothing can, and the stop waits until it returns.

        Args:
            timeout: seconds to wait; None means until the query has ended.

        Example:
            >>> query.stop()
            >>> query.is_active
            False

        Raises:
            NotComplete: the query has not ended after the timeout, and will, by itself, when the call that
                the error names returns; or a function of an output calls `stop`, inside the micro-batch for
                whose end it waits.
        """
        self._context.check_may_wait("stop()")
        started, limit = time.monotonic(), math.inf if timeout is None else timeout_seconds(timeout)
        end = partial(rest.end, self._query, self._context, waits=not living.ending)
        if living.ending:  # at its end the interpreter starts no thread
            wait_for_rest(self._query, self._context, self._watch.until, limit)
            end()
        else:
            with telling(self._context):
                wait_for_rest(self._query, self._context, self._watch.until, limit)
                try:
                    wait_in_a_thread(end, max(started + limit - time.monotonic(), 0.0))
                except TimeoutError:
                    msg = (
                        f"stop({timeout=}): flow {self._context.name!r} ends when the present call of a step "
                        f"or an output returns: {what_runs(self._context)}"
                    )
                    hint = "stop() again waits for it; or end this process: the next start repeats the batch."
                    raise NotComplete(msg, where=caller(), hint=hint) from None
        if self._lock is not None:
            self._lock.release()
        self._keep_error()
        if self._deletes is not None and self._deletes.alive:
            self._forget()
        living.let_go(self)

    def _keep_error(self) -> None:
        with contextlib.suppress(Exception):  # the checkpoint was removed or the JVM has ended
            if self._deletes is None:
                self._context.ended(self.exception())

    def _forget(self) -> None:
        self._error = self.exception()
        self._watch.close()
        taken = self._watch.newest().entries
        assert self._deletes is not None
        self._deletes()
        for _, journal in self._inputs.values():
            if (unread := journal.position.sent - 1 - taken.get(journal.name, -1)) > 0:
                text = (
                    f"{self._context.name}: stopped with {counted(unread, 'send')} into {journal.name!r} "
                    "that no micro-batch had read; without a checkpoint they are lost"
                )
                _log.warning(with_hint(text, "wait_for() before stop(), or start(checkpoint=...)."))

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002 - Spark's signature
        """Print Spark's plan of the last micro-batch (`flow.explain()` shows the dataflow)."""
        self._query.explain(extended)

    def exception(self) -> TimelyError | None:
        """The error that ended the query; or None. Spark's error is its `__context__`.

        What the flow itself has reported says all there is to know: its traceback leaves out Spark's.

        Example:
            >>> query.exception() is None
            True
        """
        if self._error is not None:
            return self._error
        error = self._query.exception()
        return None if error is None else self._own_error(error)

    # -- methods in modules of their own ---------------------------------------------------------------------
    __repr__ = display.query_line
    _repr_html_ = display.html
    watch = display.watch
    plot = display.plot
    ui = display.ui
    why = reasons.why
    audit = reasons.audit
    expectations = reasons.expectations
    explain_row = reasons.explain_row
    changing = reasons.changing
    ask = questions.ask
    pointstamps = stamps.pointstamps

    # -- timely's methods ------------------------------------------------------------------------------------
    @property
    def current_progress(self) -> BatchProgress | None:
        """The micro-batch that is running, as of the last 0.2 seconds; None if none has run for so long.

        What runs its rounds replaces a small file, at most every 0.2 seconds and for at most 2 % of its time.

        Example:
            >>> query.current_progress is None or query.current_progress.loops
            True
        """
        return running_batch(self._context.log, self._watch.newest().batch) if self.is_active else None

    @property
    def checkpoint(self) -> str:
        """The directory of the flow's state."""
        return self._context.checkpoint

    @property
    def rounds(self) -> int:
        """Rounds run since the checkpoint was made; a batch may take several.

        Example:
            >>> query.rounds > 1
            True
        """
        return self._watch.newest().rounds

    def frontier(self, name: str | None = None) -> Any:
        """The least times that may still appear at an output or probe; without a name, by name.

        Example:
            >>> query.frontier("all groups")
            Antichain([Time(1)])
        """
        if name is not None:
            return self._watch.frontier(name)
        return {name: self._watch.frontier(name) for name in self._watch.names()}

    def probe(self, name: str) -> QueryProbe:
        """A probe of the flow by the name of a probe or output.

        Example:
            >>> query.probe("all groups").less_than(1)
            False

        Raises:
            UnknownName: there is no probe or output of that name.
        """
        self._watch.frontier(name)
        return QueryProbe(self, name)

    def captured(self, name: str) -> Captured:
        """The records that an output of `capture` or `to_memory` has released so far.

        Example:
            >>> ts.snapshot(query.captured("all groups"), at=0).num_rows
            3

        Raises:
            UnknownName: there is no such output.
        """
        return self._watch.captured(name)

    def time(self, time: Timestamp) -> Any:
        """A time of the flow: the given time, or the time of an epoch.

        Example:
            >>> query.time(2)
            Time(2)
        """
        if hasattr(time, "less_equal"):
            return time
        return self._context.plan.times.epoch(
            as_epoch(time, f"a time of flow {self._context.name!r}", caller())
        )

    def wait_for(self, target: Any = None, *, epoch: int | None = None, timeout: float | None = None) -> bool:
        """Wait until an epoch is complete at a probe or output.

        Args:
            target: a probe, an output's or probe's name, or an epoch; None means all outputs and probes.
            epoch: the epoch; None means all that the inputs have at the call: what handles have sent, files,
                versions of tables, captured epochs; of a DataFrame, what a micro-batch reads that begins
                after the call. With manual epochs: all epochs that are closed at the call. With a column of
                epochs: those that are closed when all of it is read.
            timeout: seconds; None means without limit.

        Returns:
            Whether the epoch is complete; False after the timeout, or when the query has ended before.

        Example:
            >>> query.wait_for("all groups", epoch=0), query.wait_for(epoch=1, timeout=0.1)
            (True, False)

        Raises:
            InvalidTime: `epoch` is not an epoch.
            TimelyError: the query failed.
        """
        if isinstance(target, Number):
            target, epoch = None, target
        if epoch is not None:
            epoch = as_epoch(epoch, f"wait_for on flow {self._context.name!r}", caller())
        names = self._watch.names() if target is None else [getattr(target, "name", target)]
        for name in names:
            self._watch.frontier(name)  # an unknown name is an error
        with self._owning():
            if epoch is None and not self.is_active and (error := self.exception()) is not None:
                raise error  # records sent since then wait for another start
        wanted = (lambda: epoch) if epoch is not None else self._sent.epoch(names)
        return self._wait(self._watch.past(names, wanted), timeout)

    def cancel(self, epoch: int) -> None:
        """End the loops in which an epoch is active, so that the epoch completes.

        Each of these loops gets a bound: the highest iteration of any epoch so far. From then on the loop
        behaves in every epoch as if it had been made with that `max_iterations`. For collections this holds
        exactly: all outputs and states, of this and of later epochs, are those of the bounded loop. In loops
        of streams, records that `distinct`, `min` or `max` saw before the bound are not followed again, even
        if a later epoch reaches them in fewer iterations. Records beyond the bound are dropped, counted
        (`last_progress.cut_off`) and logged. The bound stays after a restart. An epoch that is complete or
        has not begun changes nothing.

        The request is durable when this returns. A running micro-batch ends at the next call of a step, and
        the bounds hold from then on; a line in the log names a step whose present call takes long. A vertex
        that requests one notification after the other is not ended.

        Args:
            epoch: the epoch, for example from a warning or from `frontier`.

        Example:
            >>> query.cancel(0)
            >>> query.wait_for(epoch=0)
            True

        Raises:
            InvalidTime: `epoch` is not an epoch.
            QueryEnded: the query's temporary checkpoint is deleted.
        """
        epoch = as_epoch(epoch, "cancel", caller())
        self._check_kept("cancel()")
        request(self._context.log, epoch)
        if (now := self.current_progress) is not None and now.calls:
            text = f"cancel({epoch}) takes effect at the next call of a step; {now}"
            self._context.log_message(logging.WARNING, "%s", text)

    def close(self, source: str) -> None:
        """Close an input, which completes its last epoch. Closing again does nothing.

        It is for an input with manual epochs, like `InputHandle.close`, and for a source with an epoch
        column: rows that the source reads from then on are late. The call is durable when it returns, and
        takes effect in the next batch.

        Args:
            source: the input's name.

        Example:
            >>> query.close("groups")
            >>> query.wait_for(), query.frontier("all groups")
            (True, Antichain([]))

        Raises:
            UnknownName: there is no input of that name.
            EpochClosed: the input has clock epochs, which end with each batch; or replays a capture.
            QueryEnded: the input's handle sends to another query, or the checkpoint is deleted.
        """
        inputs = {input_.name: input_ for input_ in self._context.plan.inputs}
        epochs = find(inputs, source, kind="input", flow=self._context.name).epochs
        if epochs == "clock":
            raise EpochClosed.by_the_clock(source, "close")
        self._check_kept("close()")
        if by_column(epochs):
            close_source(self._context.log, source)
        elif source not in self._inputs:
            raise EpochClosed.by_the_capture(source)
        else:
            handle, journal = self._inputs[source]
            if not handle.close_at(journal):
                why = f"the handle of {source!r} sends to another query"
                raise QueryEnded.verb(self._context.name, "close()", why, where=caller())

    def _check_kept(self, verb: str) -> None:
        if self._deletes is not None and not self._deletes.alive:
            why = "its temporary checkpoint is deleted"
            raise QueryEnded.verb(self._context.name, verb, why, where=caller())

    def step(self, timeout: float | None = None) -> bool:
        """Wait until one more batch has run; False after the timeout, or if the query has ended.

        Example:
            >>> groups.send([("eve", "ops")])
            >>> query.step(timeout=60)
            True

        Raises:
            TimelyError: the query failed.
        """
        before = self._watch.newest().batch
        return self._wait(lambda: self._watch.newest().batch > before, timeout)

    def epochs(self) -> Iterator[Completed]:
        """Iterate over the epochs that this run releases, in order, until the query ends.

        An epoch comes once for each output, when it is complete there. Outputs that print, or release records
        on arrival, have no epochs. If the program falls behind by more batches than are retained
        (`start(keep=...)`), it misses the epochs of the oldest. A failure of the query is raised by
        `await_termination`, not here.

        Example:
            >>> import itertools
            >>> sorted((done.output, done.epoch) for done in itertools.islice(query.epochs(), 2))
            [('all groups', 0), ('log', 0)]
        """
        batch = self._started_after
        durations: dict[int, int | None] = {}
        running = True

        def timed() -> bool:  # Spark forgets the durations of old micro-batches
            return not running or (batch < newest and self._watch.is_timed(batch + 1, durations))

        while running:
            with only_the_wait() as interruptible:
                while True:
                    running = self.is_active
                    newest = self._watch.newest().batch
                    # Spark writes the durations after the manifest
                    if (batch < newest or not running) and not self._context.resident:
                        durations |= self._durations()
                    if timed():
                        break
                    interruptible(time.sleep, BEAT)
            while batch < newest and timed():
                batch += 1
                yield from self._watch.completed(batch, durations)

    def _wait(self, reached: Any, timeout: Any) -> bool:
        limit = None if timeout is None else timeout_seconds(timeout)
        self._context.check_may_wait("the wait", reached)
        with self._owning():
            if self._watch.until(reached, lambda: self.is_active, limit):
                return True
            if (error := self.exception()) is not None:
                raise error
            return False

    @contextlib.contextmanager
    def _owning(self) -> Iterator[None]:
        """Raise an error of Spark's, as when its JVM has ended, as an error of the query."""
        try:
            yield
        except TimelyError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised as an error of the query
            own = self._own_error(error)
            raise own from own.__cause__

    def _own_error(self, error: Exception) -> TimelyError:
        if isinstance(error, TimelyError):
            return error
        step = self._context.failure()
        own = step or self._context.storage_error(str(error))
        if own is None:
            stopped = _NO_CONTEXT.search(str(error)) is not None and has_stopped(self.session)
            own = QueryFailed.because(self._context.name, first_line(str(error)), stopped=stopped)
        try:  # lost ownership causes other errors, also in Spark
            self._context.log.check_owner()
        except LostOwnership as lost:
            own = lost
        own.__cause__, own.__context__ = None if own is step else error, error
        return own

    def _published_folder(self, name: str) -> str:
        """The folder in which an output publishes a collection."""
        return find(self._published, name, kind="published collection", flow=self._context.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


#: The methods of `StreamingQuery` in snake_case; a test compares their camelCase names with Spark's class.
SPARK_NAMES = (
    "id", "run_id", "name", "is_active", "await_termination", "status", "recent_progress", "last_progress",
    "process_all_available", "stop", "explain", "exception",
)  # fmt: skip


for _name in SPARK_NAMES:
    if (_camel := re.sub("_(.)", lambda letter: letter[1].upper(), _name)) != _name:
        setattr(Query, _camel, Query.__dict__[_name])
