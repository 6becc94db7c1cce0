"""`Driver`: the function of foreachBatch, which runs the coordinator and the sinks after each micro-batch.

A micro-batch may stay resident: after its own batch the driver goes on with batches of what handles, files,
tables and captures have since then, in this process. Spark commits the micro-batch when it ends.

The driver shares no object with the user's session, because under Connect it runs in another process. It
reads everything from the round log; keeping the coordinator for the next batch is an optimisation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import Coordinator, RoundLimits, RoundResult
from timely_spark.coordinator.loops import notices_to_log
from timely_spark.coordinator.spreading import spread
from timely_spark.errors import RAISED, TimelyError, VertexError
from timely_spark.runtime.errors import OtherFlow, QueryFailed, first_line
from timely_spark.runtime.process import short_turns
from timely_spark.runtime.query.resident import Ends, ResidentInputs
from timely_spark.runtime.query.rest import yields
from timely_spark.runtime.query.rounds import Rounds, description
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.session import has_stopped
from timely_spark.runtime.sinks.pending_outputs import PendingOutputs
from timely_spark.runtime.sinks.sink import CaptureSink, Output
from timely_spark.runtime.sinks.system_log import SystemLog
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.cancel import due, waiting
from timely_spark.runtime.storage.cuts import forget
from timely_spark.runtime.storage.entries import arrived
from timely_spark.runtime.storage.latencies import Latencies
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Delivered, Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.worker import ROWS, Worker, wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.epoch_columns import by_column
from timely_spark.worker.wire import Header, Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Seconds between two looks for input and for commands while a micro-batch stays; the pause doubles.
SHORTEST_LOOK, LONGEST_LOOK = 0.0005, 0.01


@dataclass
class Driver:
    """The function of foreachBatch. A batch that runs again gives the same manifest and deliveries."""

    context: RunContext
    outputs: Sequence[Output]
    system_log: SystemLog | None = None
    #: The state after this run's last batch, used for the next micro-batch only.
    _last: _BatchState | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._rounds = Rounds(self.context, self.context.parallel)
        self._inputs = ResidentInputs(self.context)
        #: The time of each output's last delivery.
        self._delivered: dict[str, float] = {}

    def release(self) -> None:
        """Let go of workers and inputs when the query has ended; Spark keeps this object for longer."""
        self.context.forget_query()
        self._rounds.leave()
        self._last = None
        self.__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_inputs": ResidentInputs(self.context)}

    def __call__(self, batch_df: DataFrame, micro_batch: int) -> None:
        """Finish one micro-batch."""
        last, self._last = self._last, None  # after an error the coordinator may be half a round on
        started = time.perf_counter()
        turns = short_turns() if self.context.resident else nullcontext()
        session, context = batch_df.sparkSession, self.context
        with context.reporting(), self._running(session), context.finishing(), self._rounds.staying(), turns:
            self._describe(session, micro_batch, None if last is None else last.manifest)
            # the one action: a second would run the stateful stage again
            rows = batch_df.toArrow().cast(ROWS)
            restored = last is None or last.manifest.micro_batch != micro_batch - 1
            if last is None or restored:
                last = self._restored(self.context.log, micro_batch)
            if last.manifest.micro_batch < micro_batch:
                last = self._first(session, last, rows, micro_batch, started)
            while restored and (begun := self.context.log.begun(last.manifest.batch + 1)) is not None:
                last = self._next(session, last, micro_batch, Ends(**begun))
            self._last = self._stay(session, last, micro_batch)
            if self.system_log is not None:
                self.system_log.wait()

    @contextmanager
    def _running(self, session: SparkSession) -> Iterator[None]:
        """Say of an error that the session was stopped, if it was: Spark fails in many ways then."""
        try:
            yield
        except Exception as error:
            if not has_stopped(session):
                raise
            raise QueryFailed.because(self.context.name, first_line(str(error)), stopped=True) from error

    # -- batches ---------------------------------------------------------------------------------------------
    def _first(
        self, session: SparkSession, last: _BatchState, rows: pa.Table, micro_batch: int, started: float
    ) -> _BatchState:
        """The first batch of a micro-batch, after the round of Spark's tasks."""
        log = self.context.log
        before, coordinator, states = last.manifest, last.coordinator, last.states
        offsets = log.spark.text(micro_batch)
        if self.context.resident and not rows.num_rows and before.batch >= self.context.first:
            # a micro-batch began so that the driver can stay: that is not a batch of the flow
            manifest = replace(before, micro_batch=micro_batch, offsets=offsets, resident=True, worked=False)
            log.write(manifest, pa.concat_tables([last.rows, states.rows()]))
            log.check_owner()  # Spark commits the micro-batch when this returns
            return replace(last, manifest=manifest)
        states.enter(rows)
        columns = any(by_column(source.epochs) for source in self.context.plan.inputs)
        ended = columns and log.at_the_end(micro_batch)
        result = coordinator.apply_round(before.batch + 1, rows, ended=ended)
        read = last.sent | files_of(result.rows)
        coordinator, result = self._rounds.run(
            session, coordinator, result, states, RoundLimits(**before.bound)
        )
        place = {
            "micro_batch": micro_batch, "resident": self.context.resident > 0, "offsets": offsets,
            **_read_to(log, before, micro_batch),
        }  # fmt: skip
        return self._complete(session, last, coordinator, result, read=read, place=place, started=started)

    def _next(
        self,
        session: SparkSession,
        last: _BatchState,
        micro_batch: int,
        ends: Ends,
        begun: Future[dict[str, Any]] | None = None,
    ) -> _BatchState:
        """A further batch of a micro-batch, run in this process or by tasks that stay.

        Args:
            begun: the write of `ends`; None if an earlier attempt at the batch has written them.
        """
        before, coordinator, states = last.manifest, last.coordinator, last.states
        started = time.perf_counter()
        self._inputs.check(before.batch + 1, Ends.of(before), ends)
        self.context.plan.spread(before.spread)
        with self._rounds.live.during(before.batch + 1, self.context.plan):
            rows = pa.concat_tables([last.rows, self._inputs.rows(Ends.of(before), ends)])
        start = RoundResult.of_input(Header.decode(before.header), self.context.blobs.resolve(rows))
        bound = RoundLimits(**before.bound)
        coordinator, result, ran = self._rounds.from_input(
            session, coordinator, before.batch + 1, start, states, bound=bound, repeated=begun is None
        )
        read = last.sent | files_of(result.rows)
        if bound.allows(result):  # larger rounds, which begin with the states
            self._rounds.write(coordinator.batch, ran, states)
            coordinator, result = self._rounds.run(session, coordinator, result, states, bound)
            ran = {}
        place = {"micro_batch": micro_batch, "resident": True, "offsets": before.offsets, **ends.encode()}
        if begun is not None and (written := Ends(**begun.result())) != ends:
            # the run before woke up after this one had begun, and was first with this batch
            return self._next(session, self._restored(self.context.log, micro_batch), micro_batch, written)
        return self._complete(
            session, last, coordinator, result, read=read, place=place, started=started, ran=ran
        )

    def _complete(
        self,
        session: SparkSession,
        last: _BatchState,
        coordinator: Coordinator,
        result: RoundResult,
        *,
        read: set[str],
        place: Mapping[str, Any],
        started: float,
        ran: Mapping[int, Worker] = MappingProxyType({}),
    ) -> _BatchState:
        """End a batch: deliver what is complete, and write the states and the manifest.

        Args:
            read: the files that the batch's messages referred to.
            place: the fields of the manifest that say where in the inputs the batch ends.
            ran: workers whose states are not written. Subscribers do not wait for that; until the manifest
                stands, a driver that takes over runs the batch again.
        """
        log, before, states, batch = self.context.log, last.manifest, last.states, coordinator.batch
        for name, refused in result.refused.items():
            stage = self.context.plan.source(name).stage
            self.context.log_message(logging.WARNING, "%s", refused.text(name, stage.where, stage.max_jump))
        if coordinator.loops.loops:
            result = coordinator.cancel(due(log, batch, before.kept_from), result)
        if result.stats.get("cut"):
            forget(log, before.kept_from)
        log.check_owner()
        pending = PendingOutputs(log, before, result.outputs, batch, {output.name for output in self.outputs})
        grouped = self.context.resident > 0 < self.context.commit_every and not result.complete
        captured = before.captured | self._deliver(session, pending, result, batch, grouped=grouped)
        self._rounds.write(batch, ran, states)
        coordinator, result = self._spread(coordinator, result, states)
        sent = files_of(result.rows)
        earlier = before.took if before.run == self.context.run else Latencies()
        milliseconds = round(1000 * (time.perf_counter() - started), 1)
        manifest = manifest_of(self._rounds, coordinator, result, states)
        manifest = replace(
            manifest,
            garbage=[*manifest.garbage, *sorted(read - sent)],
            captured=captured,
            released=pending.released(result.released),
            frontier=manifest.frontier | self._held_back(pending.due),
            not_resident=self._rounds.no_longer(states),
            milliseconds=milliseconds,
            latencies=dict(earlier.plus(milliseconds).counts),
            arrived=arrived(log, before.entries, place["entries"]),
            **place,
        )
        manifest = replace(manifest, delivered=self._delivered_by(manifest, before))
        manifest = pending.into(manifest)
        manifest = log.prune(manifest, keep=self.context.keep, seconds=self.context.keep_seconds)
        if self.system_log is not None:  # begun before the manifest, after which the batch does not run again
            self.system_log.write(before, manifest, states, result.pointstamps)
        log.write(manifest, pa.concat_tables([result.rows, states.rows()]))
        if manifest.resident and manifest.batch % self.context.keep == 0:
            self._inputs.forget(manifest)
        log.check_owner()  # Spark commits the micro-batch when this returns
        for text in self._first_warnings(coordinator, before):
            self.context.log_message(logging.WARNING, "%s", text)
        self._log_batch(manifest, result, time.perf_counter() - started)
        return _BatchState(manifest, coordinator, StateRefs(states.by_worker), sent, result.rows)

    def _first_warnings(self, coordinator: Coordinator, before: Manifest) -> Iterator[str]:
        """What has not been warned of before: hot keys, negative records, and expectations that fail."""
        for step, text in coordinator.hot_keys.items():
            if step not in before.hot_keys:
                yield text
        for step, (_, text) in coordinator.negatives.items():
            if step not in before.negatives:
                yield text
        warned = {step for step, counts in before.expectations.items() if counts.first is not None}
        for step, counts in coordinator.expectations.items():
            if counts.first is not None and step not in warned:
                stage = self.context.plan.by_name[step].stage
                yield counts.warning(step, stage.where, stage.detail)

    def _spread(
        self, coordinator: Coordinator, result: RoundResult, states: StateRefs
    ) -> tuple[Coordinator, RoundResult]:
        """Spread the hot keys that the batch has found, and write the states that this moves."""
        if not coordinator.to_spread:
            return coordinator, result
        blobs = self.context.blobs
        encoded = states.encoded(blobs, coordinator.plan.workers)
        coordinator, result, workers = spread(coordinator, result, encoded, blobs)
        self._rounds.write(coordinator.batch, dict(enumerate(workers)), states)
        return coordinator, result

    # -- staying ---------------------------------------------------------------------------------------------
    def _stay(self, session: SparkSession, last: _BatchState, micro_batch: int) -> _BatchState:
        """Run further batches as their input arrives, until Spark is to have the micro-batch back."""
        until, pause = time.monotonic() + self.context.resident, SHORTEST_LOOK
        looked = -math.inf
        while (now := time.monotonic()) < until and not (
            last.manifest.complete or last.manifest.not_resident
        ):
            if now - looked >= LONGEST_LOOK:
                looked = now
                if yields(self.context) or self.context.has_stopped():
                    break
            ends, small = self._inputs.available(Ends.of(last.manifest))
            if not small:
                break
            if ends != Ends.of(last.manifest) or self._has_work(last.manifest):
                if not self._rounds.can_stay(session, last.manifest.batch + 1):
                    break
                last, pause = self._begin(session, last, micro_batch, ends), SHORTEST_LOOK
            else:
                if self._inputs.wait(pause):  # what woke it may be a command: look for one at once
                    looked = -math.inf
                pause = min(2 * pause, LONGEST_LOOK)
        if last.manifest.due:
            self._delivered.clear()
            last = self._begin(session, last, micro_batch, Ends.of(last.manifest))
        if time.monotonic() < until:  # else the next micro-batch continues with the same tasks
            self._rounds.leave()
        return last

    def _begin(self, session: SparkSession, last: _BatchState, micro_batch: int, ends: Ends) -> _BatchState:
        """A further batch, which no earlier attempt has begun."""
        begun = self._inputs.begin(last.manifest.batch + 1, ends)
        try:
            return self._next(session, last, micro_batch, ends, begun)
        finally:
            begun.exception()  # no write outlives its batch

    def _has_work(self, manifest: Manifest) -> bool:
        """Whether there is a batch to run without new input."""
        if manifest.runnable or any(self._is_due(name) for name in manifest.due):
            return True
        return bool(self.context.plan.feedbacks) and waiting(self.context.log)

    def _is_due(self, output: str) -> bool:
        """Whether an output may be delivered again."""
        last = self._delivered.get(output)
        return last is None or time.monotonic() - last >= self.context.commit_every

    def _held_back(self, waiting: Mapping[str, list[int]]) -> dict[str, list[Any]]:
        """The frontiers of outputs with complete epochs that are not delivered."""
        epoch = self.context.plan.times.epoch
        return {name: [epoch(min(epochs)).encode()] for name, epochs in waiting.items()}

    def _describe(self, session: SparkSession, batch_id: int, before: Manifest | None) -> None:
        """Describe the micro-batch's jobs in Spark's user interface, until the next micro-batch."""
        text = f"{self.context.name}: batch {batch_id}"
        if before is not None:
            latest = Convergence.decode(before.stats.get("convergence", ())).latest()
            loops = [each[:3] for each in latest if each[1] in before.open_epochs]
            text = description(self.context.name, batch_id, before.rounds, loops)
        with suppress(Exception):  # Spark Connect has none; the batch does not depend on it
            session.sparkContext.setJobDescription(text)

    def _restored(self, log: RoundLog, micro_batch: int) -> _BatchState:
        newest = log.newest()
        manifest = None if newest is None else log.read(newest)
        if manifest is not None and manifest.resident and manifest.micro_batch == micro_batch:
            manifest, rows = log.newest_before(manifest.batch + 1)
        else:
            manifest, rows = log.before(micro_batch)
        if manifest.plan != self.context.plan.fingerprint or manifest.micro_batch < micro_batch - 1:
            raise OtherFlow.committed(log.checkpoint, micro_batch - 1)
        coordinator = Coordinator.decode(self.context.plan, manifest.coordinator)
        rows_of_next = wire.only(rows, Message, Header)
        sent = files_of(wire.only(rows, Message))
        return _BatchState(manifest, coordinator, StateRefs.of(rows), sent, rows_of_next)

    def _deliver(
        self,
        session: SparkSession,
        pending: PendingOutputs,
        result: RoundResult,
        batch: int,
        *,
        grouped: bool,
    ) -> dict[str, int]:
        """Deliver the epochs that are complete; return the last version of each captured output.

        Args:
            grouped: whether epochs of outputs that are committed together may wait.
        """
        versions: dict[str, int] = {}
        by_name = {output.name: output for output in self.outputs}
        for output in self.outputs:
            if output.release == "arrival" and (parts := pending.arrived(output)):
                with self._named(output):
                    output.sink.deliver(session, batch, parts)
                versions[output.name] = batch
        for name, epoch in [*pending.waiting(), *result.released]:
            if name in by_name and by_name[name].release == "epoch":
                if grouped and by_name[name].sink.grouped:
                    pending.due.setdefault(name, []).append(epoch)
                    continue
                part = pending.take(by_name[name], epoch)
                with self._named(by_name[name], epoch):
                    by_name[name].sink.deliver(session, epoch, [part])
                versions[name] = epoch
        for name in [name for name in pending.due if self._is_due(name)]:
            epochs = pending.due.pop(name)
            parts = [pending.take(by_name[name], epoch) for epoch in epochs]
            with self._named(by_name[name], epochs[-1]):
                by_name[name].sink.deliver(session, epochs[-1], parts)
            self._delivered[name] = time.monotonic()
        if result.complete:
            for output in self.outputs:
                if result.frontier[output.name]:  # late rows of a closed source may still arrive
                    continue
                with self._named(output):
                    output.sink.complete()
        return {name: at for name, at in versions.items() if isinstance(by_name[name].sink, CaptureSink)}

    def _delivered_by(self, manifest: Manifest, before: Manifest) -> dict[str, list[Any]]:
        """`Manifest.delivered` of a batch."""
        plan, moved, delivered = self.context.plan, manifest.stats["moved"], dict(before.delivered)
        for output in self.outputs:
            records, *last = before.outputs.get(output.name, Delivered())
            channels = plan.into[plan.by_name[output.name].index, 0]
            records += sum(moved.get(str(channel.index), 0) for channel in channels)
            if epochs := [epoch for name, epoch in manifest.released if name == output.name]:
                last = [epochs[-1], manifest.written]
            delivered[output.name] = [records, *last]
        return delivered

    @contextmanager
    def _named(self, output: Output, epoch: int | None = None) -> Iterator[None]:
        """Name the step and the user's line in errors of a user's function or a table."""
        try:
            yield
        except TimelyError:
            raise
        except RAISED as error:
            # a user's own function may have a full disk of its own
            what = None if output.sink.calls_user else output.described
            if what is not None and (own := self.context.storage_error(str(error), what)) is not None:
                raise own from error
            where = self.context.plan.by_name[output.name].stage.where
            at = None if epoch is None else f"epoch {epoch}"
            failed = VertexError.from_exception(output.name, where, error, time=at)
            # of an error whose cause is a StopIteration, contextlib raises the cause
            if isinstance(error, StopIteration):
                raise failed from None
            raise failed from error

    def _log_batch(self, manifest: Manifest, result: RoundResult, seconds: float) -> None:
        log, batch = partial(self.context.log_message, batch=manifest.batch), manifest.batch
        text = "batch %d: %d rows for the next one, %.1f ms"
        log(logging.DEBUG, text, batch, result.rows.num_rows, 1000 * seconds)
        for notice in notices_to_log(result.notices, self.context.plan.warn_after):
            log(logging.WARNING, "%s", notice, epoch=notice.epoch)
        for epoch in sorted({epoch for _, epoch in result.released}):
            log(logging.INFO, "epoch %d complete after batch %d", epoch, batch, epoch=epoch)


@dataclass(frozen=True, slots=True)
class _BatchState:
    """The state after a batch, from which the next batch continues."""

    manifest: Manifest
    coordinator: Coordinator
    states: StateRefs
    #: the files that messages refer to
    sent: set[str]
    #: messages and headers for the next batch
    rows: pa.Table


def _read_to(log: RoundLog, before: Manifest, micro_batch: int) -> dict[str, Any]:
    """The end of a micro-batch's first batch in the inputs, perhaps ahead of Spark's offsets."""
    entries, sources = log.read_to(micro_batch)
    _, old = log.read_to(before.micro_batch) if before.sources else ({}, {})
    changed = {name: _bare(offset) for name, offset in sources.items() if offset != old.get(name)}
    return {
        "entries": before.entries
        | {name: max(at, before.entries.get(name, -1)) for name, at in entries.items()},
        "sources": before.sources | changed,
    }


def _bare(offset: Mapping[str, Any]) -> dict[str, Any]:
    """An offset without the entries that resident batches have read: see `flow_reader`."""
    return {name: value for name, value in offset.items() if name != "after"}


def progress_fields(coordinator: Coordinator, result: RoundResult) -> dict[str, Any]:
    """The fields of a manifest that describe the progress of the flow."""
    return {
        "coordinator": coordinator.encode(),
        "header": result.header.encode(),
        "runnable": result.rows.num_rows > 0,
        "frontier": result.frontier,
        "complete": result.complete,
        "late": result.late,
        "read": result.read,
        "quarantined": result.quarantined,
        "cut_off": result.cut_off,
    }


def manifest_of(rounds: Rounds, coordinator: Coordinator, result: RoundResult, states: StateRefs) -> Manifest:
    """The manifest of a batch, without the fields that `PendingOutputs` takes over from the one before."""
    slowest = max(states.took.items(), key=lambda pair: pair[1], default=None)
    return Manifest(
        batch=coordinator.batch,
        micro_batch=coordinator.batch,
        plan=rounds.context.plan.fingerprint,
        run=rounds.context.run,
        released=list(result.released),
        captured={},
        unreleased={},
        garbage=list(states.garbage),
        kept_from=coordinator.batch,
        rounds=result.stats["rounds"],
        bound=asdict(rounds.bound),
        stats={
            **result.stats,
            "slowest": slowest,
            "slow": rounds.slow,
            "took": dict(states.took),
            "moved": dict(states.moved),
            "spent": dict(states.spent),
            "state_bytes": dict(states.sizes),
            "memory_bytes": dict(states.memory),
            "convergence": result.convergence.encode(),
        },
        **progress_fields(coordinator, result),
    )
