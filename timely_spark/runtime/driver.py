"""The driver's part of a micro-batch and its rounds: what foreachBatch calls.

It shares no object with the user's session, because under Connect it runs in another process: all it knows
comes from the log. Within one run it keeps the coordinator of the last batch, an optimisation that is only
ever used for the very next batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import TimelyError, VertexError
from timely_spark.runtime.blobs import files_of
from timely_spark.runtime.cancel import due
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.local_rounds import local_rounds_on_spark
from timely_spark.runtime.log import Manifest, RoundLog
from timely_spark.runtime.pending_outputs import PendingOutputs
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sinks import CaptureSink, Output
from timely_spark.runtime.states import States
from timely_spark.worker import ROWS, Bound, Coordinator, Turn
from timely_spark.worker.columns import by_column
from timely_spark.worker.loops import worth_telling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


@dataclass
class Driver:
    """foreachBatch's function: a batch run again, in any process, gives the same manifest and deliveries."""

    site: RunContext
    outputs: Sequence[Output]
    #: Of the batch before: only of this run, only for batch + 1.
    _last: _After | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """One micro-batch."""
        last, self._last = self._last, None  # on an error it may have taken half a turn
        with self.site.reporting():
            self._last = self._round(last, batch_df, batch_id)

    def _round(self, last: _After | None, batch_df: DataFrame, batch_id: int) -> _After:
        log, session = self.site.log, batch_df.sparkSession
        rows = batch_df.toArrow().cast(ROWS)  # the one action: a second would run the stateful stage again
        started = time.perf_counter()
        if last is None or last.manifest.batch != batch_id - 1:
            last = self._restored(log, batch_id)
        before, coordinator, states = last.manifest, last.coordinator, last.states
        rows = states.enter(rows)
        cancel = due(log, batch_id, before.kept_from) if coordinator.loops.loops else ()
        columns = any(by_column(source.epochs) for source in self.site.plan.inputs)
        ended = columns and log.at_the_end(batch_id)
        turn = coordinator.turn(batch_id, rows, cancel=cancel, ended=ended)
        for name, refused in turn.refused.items():
            stage = self.site.plan.source(name).stage
            _log.warning("%s: %s", self.site.name, refused.text(name, stage.where, stage.max_jump))
        read = last.sent | files_of(turn.rows)
        bound = Bound(rounds=before.rounds_ahead)
        coordinator, turn, changed = local_rounds_on_spark(
            session, self.site, coordinator=coordinator, turn=turn, states=states.known, bound=bound
        )
        states.enter(changed)
        log.check_owner()
        pending = PendingOutputs(
            log, before, turn.outputs, batch_id, {output.name for output in self.outputs}
        )
        captured = before.captured | self._deliver(session, pending, turn, batch_id)
        sent = files_of(turn.rows)
        manifest = manifest_of(self.site, coordinator, turn, states)
        gone = [*manifest.gone, *sorted(read - sent)]
        manifest = pending.into(replace(manifest, gone=gone, captured=captured))
        manifest = log.prune(manifest, keep=self.site.keep)
        log.write(manifest, pa.concat_tables([turn.rows, states.rows(woken_by(turn))]))
        log.check_owner()  # Spark commits the batch when this returns
        self._tell(manifest, turn, time.perf_counter() - started)
        return _After(manifest, coordinator, States(states.known), sent)

    def _restored(self, log: RoundLog, batch_id: int) -> _After:
        manifest, rows = log.newest_before(batch_id)
        if manifest.plan != self.site.plan.fingerprint:  # Spark took up what a dying driver had committed
            raise OtherFlow.moved(log.checkpoint, manifest.batch)
        coordinator = Coordinator.decode(self.site.plan, manifest.coordinator)
        sent = files_of(rows.filter(pc.equal(rows.column("kind"), "message")))
        return _After(manifest, coordinator, States.of(rows), sent)

    def _deliver(
        self, session: SparkSession, pending: PendingOutputs, turn: Turn, batch_id: int
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
        for name, epoch in turn.released:
            if name in by_name and by_name[name].release == "epoch":
                part = pending.take(by_name[name], epoch)
                with self._named(by_name[name], epoch):
                    by_name[name].sink.deliver(session, epoch, [part])
                delivered[name] = epoch
        if turn.complete:
            for output in self.outputs:
                if turn.frontier[output.name]:  # rows may still come late to a closed source
                    continue
                with self._named(output):
                    output.sink.complete()
        return {name: at for name, at in delivered.items() if isinstance(by_name[name].sink, CaptureSink)}

    @contextmanager
    def _named(self, output: Output, epoch: int | None = None) -> Iterator[None]:
        """What the user's function or the table raises names the step and the user's line."""
        try:
            yield
        except TimelyError:
            raise
        except Exception as error:
            where = self.site.plan.by_name[output.name].stage.where
            at = None if epoch is None else f"epoch {epoch}"
            raise VertexError.from_exception(output.name, where, error, time=at) from error

    def _tell(self, manifest: Manifest, turn: Turn, seconds: float) -> None:
        context = {"flow": self.site.name, "batch": manifest.batch, "run": self.site.run}
        _log.debug(
            "%s: batch %d: %d rows for the next one, driver %.1f ms",
            self.site.name, manifest.batch, turn.rows.num_rows, 1000 * seconds, extra={"context": context},
        )  # fmt: skip
        for notice in worth_telling(turn.notices, self.site.plan.warn_after):
            _log.warning(
                "%s: %s", self.site.name, notice, extra={"context": {**context, "epoch": notice.epoch}}
            )
        for epoch in sorted({epoch for _, epoch in turn.released}):
            _log.info(
                "%s: epoch %d complete after batch %d",
                self.site.name, epoch, manifest.batch, extra={"context": {**context, "epoch": epoch}},
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _After:
    """What is known after a batch."""

    manifest: Manifest
    coordinator: Coordinator
    states: States
    #: the files that messages refer to
    sent: set[str]


def woken_by(turn: Turn) -> set[int]:
    """The workers that run in the next round, whatever the input."""
    return set(turn.rows.column("worker").to_pylist())


def manifest_of(site: RunContext, coordinator: Coordinator, turn: Turn, states: States) -> Manifest:
    """The manifest of a turn; what it takes over from the one before is entered by `PendingOutputs`."""
    slowest = max(states.took.items(), key=lambda each: each[1], default=None)
    return Manifest(
        batch=coordinator.batch,
        plan=site.plan.fingerprint,
        run=site.run,
        coordinator=coordinator.encode(),
        header=turn.header,
        runnable=turn.rows.num_rows > 0,
        released=list(turn.released),
        frontier=turn.frontier,
        complete=turn.complete,
        captured={},
        unreleased={},
        gone=list(states.gone),
        kept_from=coordinator.batch,
        rounds=turn.stats["rounds"],
        rounds_ahead=site.rounds,
        late=dict(turn.late),
        cut_off=dict(turn.cut_off),
        stats={**turn.stats, "slowest": slowest, "state_bytes": dict(states.sizes)},
    )
