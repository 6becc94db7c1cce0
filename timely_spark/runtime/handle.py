"""The handle of a running flow: StreamingQuery's verbs, and what only a timely dataflow can answer."""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from timely_spark.errors import TimelyError
from timely_spark.graph import caller, known
from timely_spark.runtime.cancel import ask
from timely_spark.runtime.entries import Durable, close_source
from timely_spark.runtime.errors import EpochClosed, LostOwnership, QueryEnded, QueryFailed
from timely_spark.runtime.lock import Lock
from timely_spark.runtime.rest import at_rest
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.watch import BEAT, Completed, Progress, Watch
from timely_spark.testing import Captured
from timely_spark.times import as_epoch
from timely_spark.worker.columns import by_column

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from timely_spark.times import Antichain

_log = logging.getLogger(__name__)

#: The queries that this process runs, by the ids of their runs.
_living: dict[str, Query] = {}
#: What is left of temporary checkpoints for the views of `to_memory`; and whether the process ends.
_shown: set[str] = set()
_ending: list[bool] = []


def living() -> list[Query]:
    """The queries that this process runs."""
    return list(_living.values())


def keep_until_it_ends(query: Query) -> None:
    """Holds the query, and its lock, until it ends; the end of the process stops it in good order."""
    run = query.run_id
    _living[run] = query
    if query._lock is not None:  # noqa: SLF001 - its own module
        query._lock.release_after(query._query, lambda: _living.pop(run, None))  # noqa: SLF001
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)  # the last one is the first to run: nothing that it needs has gone


def _stop_all() -> None:
    _ending.append(True)
    for query in living():
        if not type(query.session).__module__.startswith("pyspark.sql.connect"):  # there, a server runs it
            with contextlib.suppress(Exception):  # the JVM is gone already
                query.stop()
    for folder in _shown:
        shutil.rmtree(folder, ignore_errors=True)


def _delete(folder: str, views: bool) -> None:  # noqa: FBT001 - called by `finalize`
    """Deletes a temporary checkpoint; what views show of it stays until the process ends, as they do."""
    if not views or _ending:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for place in (*Path(folder).iterdir(), *Path(folder, "timely").iterdir()):
        if place.name not in {"timely", "captured"}:
            shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
    _shown.add(folder)


class Probe:
    """What may still appear at one place of a running flow (Naiad section 4.1; timely's probe)."""

    def __init__(self, query: Query, name: str) -> None:
        self.query, self.name = query, name

    def frontier(self) -> Antichain[Any]:
        """The earliest times that may still appear here; empty when none can."""
        found: Antichain[Any] = self.query.frontier(self.name)
        return found

    def less_than(self, time: Any) -> bool:
        """Whether a time strictly before `time` (an epoch, or a time of the flow) may still appear."""
        return self.frontier().less_than(self.query.time(time))

    def less_equal(self, time: Any) -> bool:
        """Whether `time`, or one before it, may still appear."""
        return self.frontier().less_equal(self.query.time(time))

    def wait_for(self, epoch: int | None = None, timeout: float | None = None) -> bool:
        """As `Query.wait_for`, for this place."""
        return self.query.wait_for(self, epoch=epoch, timeout=timeout)


class Query:
    """A running flow.

    Has the verbs of Spark's `StreamingQuery`, in snake_case and in its own camelCase, and those of a timely
    dataflow: `frontier`, `probe`, `wait_for`, `rounds`, `step`. As a context manager it stops the query at
    the end.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> numbers = flow.input("numbers", "n long")
        >>> _ = numbers.distinct().capture("seen")
        >>> with flow.start(spark, workers=2) as query:  # doctest: +SKIP
        ...     numbers.send([1, 1, 2])
        ...     query.wait_for()
        ...     query.captured("seen").table().num_rows
        True
        2
    """

    def __init__(
        self,
        query: StreamingQuery,
        site: RunContext,
        *,
        session: SparkSession | None = None,
        inputs: Sequence[Durable] = (),
        unset: Sequence[str] = (),
        lock: Lock | None = None,
        temporary: bool = False,
        views: bool = False,
        closing: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
    ) -> None:
        self._query, self._site, self._watch, self._lock = query, site, Watch(site), lock
        #: The session that runs it.
        self.session = session
        self._inputs = tuple(inputs)
        #: How the handles of inputs are closed, if they still send to this query.
        self._closing = closing
        self._started_after = self._watch.newest().batch
        #: Deletes the checkpoint, if none was given: when this is garbage, and the query has ended (while it
        #: runs, `_living` holds this), or at `stop`, or when the process ends.
        self._deletes = weakref.finalize(self, _delete, site.checkpoint, views) if temporary else None
        #: The error that ended the query, once its checkpoint is deleted.
        self._error: TimelyError | None = None
        #: Confs which the session did not let this query have, and why.
        self.unset = list(unset)

    # -- StreamingQuery's verbs ------------------------------------------------------------------------------
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
        """Spark's status, `frontier`, `rounds`, and `held_back_by`: what keeps the oldest epoch open."""
        manifest = self._watch.newest()
        return {
            **self._query.status,
            "rounds": manifest.rounds,
            "frontier": manifest.frontier,
            "held_back_by": self._watch.held_back_by(),
        }

    @property
    def last_progress(self) -> Progress | None:
        """The last round; None before the first."""
        return next(reversed(self.recent_progress), None)

    @property
    def recent_progress(self) -> list[Progress]:
        """Recent rounds, oldest first."""
        found = {p["batchId"]: p["durationMs"].get("triggerExecution") for p in self._query.recentProgress}
        newest = self._watch.newest().batch
        if newest >= 0:  # a manifest is there before Spark's own progress
            found.setdefault(newest, None)
        rounds = (self._watch.progress(batch, found[batch]) for batch in sorted(found))
        return [progress for progress in rounds if progress is not None]

    def await_termination(self, timeout: float | None = None) -> bool | None:
        """Waits until the query ends; with a timeout (seconds) says whether it did.

        Raises:
            TimelyError: the query failed.
        """
        try:
            # Spark takes whole seconds; waiting in one thread with no signals in between is its way, too
            return self._query.awaitTermination(timeout if timeout is None else max(1, round(timeout)))
        except Exception as error:
            raise self._ours(error) from error

    def process_all_available(self) -> None:
        """Waits until everything that was there when it was called is processed, loops included.

        Raises:
            TimelyError: the query failed.
        """
        try:
            # Spark ends the wait at the next poll that finds nothing, which may have begun before the last
            # send. The poll that ends a second wait began after the first one.
            self._query.processAllAvailable()
            self._query.processAllAvailable()
        except Exception as error:
            raise self._ours(error) from error

    def stop(self) -> None:
        """Stops the query, between two micro-batches if the one that runs ends soon.

        It can be started again from its checkpoint. Without one it is forgotten, and its temporary checkpoint
        deleted; what it has captured, and how far it came, can still be asked.
        """
        with at_rest(self._query, self._site):
            self._query.stop()
        if self._lock is not None:
            self._lock.release()
        if self._deletes is not None and self._deletes.alive:
            self._forget()
        _living.pop(self.run_id, None)

    def _forget(self) -> None:
        self._error = self.exception()
        taken = (self._watch.taken() or (0, {}))[1]
        self._watch.close()
        assert self._deletes is not None
        self._deletes()
        for end in self._inputs:
            if (unread := end.stand.sent - 1 - taken.get(end.name, -1)) > 0:
                _log.warning(
                    "%s: stopped with %d sends into %r that no micro-batch had read; without a checkpoint "
                    "they are gone. Hint: wait_for() before stop(), or start(checkpoint=...).",
                    self._site.name, unread, end.name,
                )  # fmt: skip

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002 - Spark's signature
        """Prints Spark's plan of the last micro-batch (`flow.explain()` shows the dataflow)."""
        self._query.explain(extended)

    def exception(self) -> TimelyError | None:
        """The error that ended the query, ours if there is one, with Spark's as its cause; or None."""
        if self._error is not None:
            return self._error
        error = self._query.exception()
        return None if error is None else self._ours(error)

    # -- a timely dataflow's ---------------------------------------------------------------------------------
    @property
    def checkpoint(self) -> str:
        """Where the flow's state is kept."""
        return self._site.checkpoint

    @property
    def rounds(self) -> int:
        """Rounds run since the checkpoint was made; a micro-batch may take several."""
        return self._watch.newest().rounds

    def frontier(self, name: str | None = None) -> Any:
        """The earliest times that may still appear at an output or probe; without a name, those of each."""
        if name is not None:
            return self._watch.frontier(name)
        return {each: self._watch.frontier(each) for each in self._watch.names()}

    def probe(self, name: str) -> Probe:
        """A probe of the flow, by name (an output's name serves, too).

        Raises:
            UnknownName: there is none of that name.
        """
        self._watch.frontier(name)
        return Probe(self, name)

    def captured(self, name: str) -> Captured:
        """What an output made with `capture` (or `to_memory`) has released so far.

        Raises:
            UnknownName: there is none of that name.
        """
        return self._watch.captured(name)

    def time(self, time: Any) -> Any:
        """A time of the flow: itself, or that of an epoch."""
        if hasattr(time, "less_equal"):
            return time
        return self._site.plan.times.epoch(as_epoch(time, f"a time of flow {self._site.name!r}", caller()))

    def wait_for(self, target: Any = None, *, epoch: int | None = None, timeout: float | None = None) -> bool:
        """Waits until an epoch is complete at a probe or output.

        Args:
            target: a probe, an output's or probe's name, or an epoch; without one, all outputs and probes.
            epoch: which epoch; without one, all that was sent into the flow's handles so far (with manual
                epochs, and those of a column: all epochs that are closed by now).
            timeout: seconds; without one, as long as it takes.

        Returns:
            Whether it is complete; False when time is up, or when the query has ended without it.

        Raises:
            InvalidTime: the epoch is none.
            TimelyError: the query failed.
        """
        if isinstance(target, Number):
            target, epoch = None, target
        if epoch is not None:
            epoch = as_epoch(epoch, f"wait_for on flow {self._site.name!r}", caller())
        names = self._watch.names() if target is None else [getattr(target, "name", target)]
        for name in names:
            self._watch.frontier(name)  # a wrong name is an error now, not a wait for ever
        if epoch is None and not self.is_active and (error := self.exception()) is not None:
            raise error  # what has been sent since then waits for another start
        wanted = (lambda: epoch) if epoch is not None else self._sent_by()

        def reached() -> bool:
            until = wanted()
            return until is not None and all(self._watch.is_past(name, until) for name in names)

        return self._wait(reached, timeout)

    def cancel(self, epoch: int) -> None:
        """Ends the loops in which an epoch still is, so that it completes; other epochs go on.

        Each of these loops gets a bound: the iteration that it has come to, in any epoch so far. From then on
        nothing goes round beyond it, in no epoch, as if the loop had been made with such a `max_iterations`
        from the beginning. That is also the guarantee for collections: all outputs and all states, of this
        epoch and of later ones, are those of the bounded loop, so what later epochs take back is taken back
        exactly. Loops of streams keep what they know: what `distinct`, `min` or `max` has seen before the
        bound is not followed again, should a later epoch come to it sooner. The epoch is released with what
        it has come to. What the bound drops is counted (`last_progress.cut_off`)
        and logged. The bound stays over restarts. A loop in which the epoch is not, has no bound; an epoch
        that is over, or has not begun, changes nothing.

        The request is durable when this returns, and takes effect with the next micro-batch; one that is
        running ends when the loop comes to a multiple of `warn_after` iterations. What goes round by no
        feedback, as a vertex that asks for one notification after the other, is not ended.

        Args:
            epoch: the epoch, such as a warning or `frontier` names.

        Example:
            >>> query.cancel(7)  # doctest: +SKIP
            >>> query.wait_for(7)  # doctest: +SKIP
            True

        Raises:
            InvalidTime: it is no epoch.
            QueryEnded: the query's temporary checkpoint is deleted.
        """
        epoch = as_epoch(epoch, "cancel", caller())
        self._check_kept("cancel()")
        ask(self._site.log, epoch)

    def close(self, source: str) -> None:
        """Ends an input: nothing more will come, so its last epoch is over. Closing again does nothing.

        Durable when it returns, as what is sent into a handle; the query takes note with its next batch. For
        a source with an epoch column, whose rows are late from then on, and for an input with manual epochs,
        as its handle's `close`.

        Args:
            source: the input's name.

        Raises:
            UnknownName: there is none of that name.
            EpochClosed: it goes by the clock, where an epoch ends with its micro-batch.
            QueryEnded: its handle sends to another query by now, or the checkpoint is deleted.
        """
        inputs = {each.name: each for each in self._site.plan.inputs}
        epochs = known(inputs, source, kind="input", flow=self._site.name).epochs
        if epochs == "clock":
            raise EpochClosed.by_the_clock(source, "close")
        self._check_kept("close()")
        if by_column(epochs):
            close_source(self._site.log, source)
        elif not self._closing[source]():
            why = f"the handle of {source!r} sends to it no longer"
            raise QueryEnded.verb(self._site.name, "close()", why, where=caller())

    def _check_kept(self, verb: str) -> None:
        if self._deletes is not None and not self._deletes.alive:
            why = "its temporary checkpoint is deleted"
            raise QueryEnded.verb(self._site.name, verb, why, where=caller())

    def step(self, timeout: float | None = None) -> bool:
        """Waits until one more micro-batch has run; False when time is up, or the query has ended.

        Raises:
            TimelyError: the query failed.
        """
        before = self._watch.newest().batch
        return self._wait(lambda: self._watch.newest().batch > before, timeout)

    def epochs(self) -> Iterator[Completed]:
        """Each epoch of this run as it is released at an output, in order, until the query ends.

        What failed the query is raised by `await_termination`, not here. Outputs that print or arrive at once
        have no epochs.
        """
        batch = self._started_after
        durations: dict[int, int | None] = {}
        going = True
        while going:
            going = self.is_active
            # Spark's own progress comes last, and tells how long a micro-batch took
            for progress in self._query.recentProgress:
                durations[progress["batchId"]] = progress["durationMs"].get("triggerExecution")
            newest = self._watch.newest().batch
            while batch < newest and (batch + 1 in durations or not going):
                batch += 1
                yield from self._watch.completed(batch, durations)
            if going:
                time.sleep(BEAT)

    def _wait(self, reached: Any, timeout: float | None) -> bool:
        if self._watch.until(reached, lambda: self.is_active, timeout):
            return True
        if (error := self.exception()) is not None:
            raise error
        return False

    def _sent_by(self) -> Any:
        """A function that gives the epoch with which all sent so far is complete, or None: not known."""
        manual = [end.stand for end in self._inputs if end.epochs == "manual"]
        if manual:
            closed = min((stand.epoch for stand in manual if not stand.closed), default=None)
            last = max(stand.epoch for stand in manual) if closed is None else closed - 1
            return lambda: last
        if any(by_column(source.epochs) for source in self._site.plan.inputs):
            now = self._watch.newest().coordinator
            open_ = [at for at in now["inputs"].values() if at is not None]
            over = min(open_) - 1 if open_ else now["begun"]
            return lambda: over
        sent = {end.name: end.stand.sent for end in self._inputs}

        def epoch() -> int | None:
            found = self._watch.taken()
            if found is None:
                return None if any(sent.values()) else self._watch.newest().batch
            batch, taken = found
            return batch if all(taken.get(name, -1) + 1 >= count for name, count in sent.items()) else None

        return epoch

    def _ours(self, error: Exception) -> TimelyError:
        if isinstance(error, TimelyError):
            return error
        ours = self._site.failure()
        if ours is None:
            ours = QueryFailed.because(self._site.name, str(error).partition("\n")[0])
        try:  # whatever else then goes wrong: Spark's own log fences a driver off, too, and cannot say why
            self._site.log.check_owner()
        except LostOwnership as lost:
            ours = lost
        ours.__cause__ = error
        return ours

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


#: What `StreamingQuery` has, by its names here; a test compares the camelCase forms with Spark's class.
SPARK_NAMES = (
    "id", "run_id", "name", "is_active", "await_termination", "status", "recent_progress", "last_progress",
    "process_all_available", "stop", "explain", "exception",
)  # fmt: skip


def _alias(owner: type, names: Sequence[str]) -> None:
    for name in names:
        camel = re.sub("_(.)", lambda found: found[1].upper(), name)
        if camel != name:
            setattr(owner, camel, owner.__dict__[name])


_alias(Query, SPARK_NAMES)
