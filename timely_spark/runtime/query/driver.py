"""`Driver`: the function of foreachBatch, which runs the coordinator and the sinks after each micro-batch.

The driver shares no object with the user's session, because under Connect it runs in another process. It
reads everything from the round log; keeping the coordinator for the next batch is an optimisation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import Bound, Coordinator, RoundResult
from timely_spark.coordinator.loops import notices_to_log
from timely_spark.errors import TimelyError, VertexError
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.query.rounds import Rounds, description
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sinks.pending_outputs import PendingOutputs
from timely_spark.runtime.sinks.sink import CaptureSink, Output
from timely_spark.runtime.sinks.system_log import SystemLog
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.cancel import due
from timely_spark.runtime.storage.cuts import forget
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import States
from timely_spark.worker import ROWS, wire
from timely_spark.worker.columns import by_column
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.wire import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Driver:
    """The function of foreachBatch. A batch that runs again gives the same manifest and deliveries."""

    context: RunContext
    outputs: Sequence[Output]
    system_log: SystemLog | None = None
    #: The state after this run's last batch, used for batch + 1 only.
    _last: _BatchState | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._rounds = Rounds(self.context, self.context.parallel)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Finish one micro-batch."""
        last, self._last = self._last, None  # after an error the coordinator may be half a round on
        with self.context.reporting(), self.context.finishing():
            self._last = self._finish(last, batch_df, batch_id)

    def _finish(self, last: _BatchState | None, batch_df: DataFrame, batch_id: int) -> _BatchState:
        log, session = self.context.log, batch_df.sparkSession
        self._describe(session, batch_id, None if last is None else last.manifest)
        rows = batch_df.toArrow().cast(ROWS)  # the one action: a second would run the stateful stage again
        started = time.perf_counter()
        if last is None or last.manifest.batch != batch_id - 1:
            last = self._restored(log, batch_id)
        before, coordinator, states = last.manifest, last.coordinator, last.states
        states.enter(rows)
        columns = any(by_column(source.epochs) for source in self.context.plan.inputs)
        ended = columns and log.at_the_end(batch_id)
        result = coordinator.apply_round(batch_id, rows, ended=ended)
        for name, refused in result.refused.items():
            stage = self.context.plan.source(name).stage
            self.context.log_message(logging.WARNING, "%s", refused.text(name, stage.where, stage.max_jump))
        read = last.sent | files_of(result.rows)
        coordinator, result = self._rounds.run(session, coordinator, result, states, Bound(**before.bound))
        if coordinator.loops.loops:
            result = coordinator.cancel(due(log, batch_id, before.kept_from), result)
        if result.stats.get("cut"):
            forget(log, before.kept_from)
        log.check_owner()
        pending = PendingOutputs(
            log, before, result.outputs, batch_id, {output.name for output in self.outputs}
        )
        captured = before.captured | self._deliver(session, pending, result, batch_id)
        sent = files_of(result.rows)
        manifest = manifest_of(self._rounds, coordinator, result, states)
        garbage = [*manifest.garbage, *sorted(read - sent)]
        offsets = log.spark.text(batch_id)
        manifest = pending.into(replace(manifest, garbage=garbage, captured=captured, offsets=offsets))
        manifest = log.prune(manifest, keep=self.context.keep, seconds=self.context.keep_seconds)
        log.write(manifest, pa.concat_tables([result.rows, states.rows()]))
        if self.system_log is not None:
            self.system_log.write(manifest, states)
        log.check_owner()  # Spark commits the batch when this returns
        for step, text in coordinator.hot_keys.items():
            if step not in before.coordinator.get("hot_keys", ()):
                self.context.log_message(logging.WARNING, "%s", text)
        for step, (_, text) in coordinator.negatives.items():
            if step not in before.coordinator.get("negatives", ()):
                self.context.log_message(logging.WARNING, "%s", text)
        self._log_batch(manifest, result, time.perf_counter() - started)
        return _BatchState(manifest, coordinator, States(states.by_worker), sent)

    def _describe(self, session: SparkSession, batch_id: int, before: Manifest | None) -> None:
        """Describe the micro-batch's jobs in Spark's user interface, until the next micro-batch."""
        text = f"{self.context.name}: batch {batch_id}"
        if before is not None:
            latest, open_ = (
                Convergence.decode(before.stats.get("convergence", ())).latest(),
                before.open_epochs,
            )
            loops = [(loop, epoch, iteration) for loop, epoch, iteration, *_ in latest if epoch in open_]
            text = description(self.context.name, batch_id, before.rounds, loops)
        with suppress(Exception):  # Spark Connect has none; the batch does not depend on it
            session.sparkContext.setJobDescription(text)

    def _restored(self, log: RoundLog, batch_id: int) -> _BatchState:
        manifest, rows = log.newest_before(batch_id)
        if manifest.plan != self.context.plan.fingerprint:  # committed by a driver that has since died
            msg = (
                f"Checkpoint {log.checkpoint}: batch {manifest.batch} was committed by the run before while "
                "this one started."
            )
            raise OtherFlow(msg, hint="start again: the flow then continues from that batch.")
        coordinator = Coordinator.decode(self.context.plan, manifest.coordinator)
        sent = files_of(wire.only(rows, Message))
        return _BatchState(manifest, coordinator, States.of(rows), sent)

    def _deliver(
        self, session: SparkSession, pending: PendingOutputs, result: RoundResult, batch_id: int
    ) -> dict[str, int]:
        """Deliver the epochs that are complete; return the last version of each captured output."""
        delivered: dict[str, int] = {}
        for output in self.outputs:
            if output.release == "arrival":
                parts = pending.arrived(output)
                if parts:
                    with self._named(output):
                        output.sink.deliver(session, batch_id, parts)
                    delivered[output.name] = batch_id
        by_name = {output.name: output for output in self.outputs}
        for name, epoch in result.released:
            if name in by_name and by_name[name].release == "epoch":
                part = pending.take(by_name[name], epoch)
                with self._named(by_name[name], epoch):
                    by_name[name].sink.deliver(session, epoch, [part])
                delivered[name] = epoch
        if result.complete:
            for output in self.outputs:
                if result.frontier[output.name]:  # late rows of a closed source may still arrive
                    continue
                with self._named(output):
                    output.sink.complete()
        return {name: at for name, at in delivered.items() if isinstance(by_name[name].sink, CaptureSink)}

    @contextmanager
    def _named(self, output: Output, epoch: int | None = None) -> Iterator[None]:
        """Name the step and the user's line in errors of a user's function or a table."""
        try:
            yield
        except TimelyError:
            raise
        except Exception as error:
            # a user's own function may have a full disk of its own
            what = None if output.sink.calls_user else f"output {output.name!r}{output.sink.place}"
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
        text = "batch %d: %d rows for the next one, driver %.1f ms"
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
    states: States
    #: the files that messages refer to
    sent: set[str]


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
        "cut_off": result.cut_off,
    }


def manifest_of(rounds: Rounds, coordinator: Coordinator, result: RoundResult, states: States) -> Manifest:
    """The manifest of a batch, without the fields that `PendingOutputs` takes over from the one before."""
    slowest = max(states.took.items(), key=lambda pair: pair[1], default=None)
    return Manifest(
        batch=coordinator.batch,
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
            "state_bytes": dict(states.sizes),
            "convergence": result.convergence.encode(),
        },
        **progress_fields(coordinator, result),
    )
