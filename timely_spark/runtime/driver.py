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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import TimelyError, VertexError
from timely_spark.runtime.errors import LostOwnership
from timely_spark.runtime.ledger import Ledger
from timely_spark.runtime.log import Manifest, RoundLog
from timely_spark.runtime.sinks import Output
from timely_spark.runtime.site import Site
from timely_spark.runtime.states import States
from timely_spark.runtime.within import further
from timely_spark.worker import ROWS, Bound, Coordinator, Turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


@dataclass
class Driver:
    """foreachBatch's function: a batch run again, in any process, gives the same manifest and deliveries."""

    site: Site
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
        turn = coordinator.turn(batch_id, states.written(rows))
        bound = Bound(rounds=before.rounds_ahead)
        coordinator, turn, changed = further(
            session, self.site, coordinator=coordinator, turn=turn, states=states.known, bound=bound
        )
        states.carry(changed)
        if (
            owner := log.owner()
        ) != self.site.run:  # on `file:` Spark's own fencing may be off (see session.py)
            raise LostOwnership.to(log.checkpoint, mine=self.site.run, other=owner)
        ledger = Ledger(log, before, turn.outputs, batch_id, {output.name for output in self.outputs})
        self._deliver(session, ledger, turn, batch_id)
        manifest = ledger.into(manifest_of(self.site, coordinator, turn, batch_id, states.gone))
        manifest = log.prune(manifest, keep=self.site.keep)
        woken = set(turn.rows.column("worker").to_pylist())
        log.write(manifest, pa.concat_tables([turn.rows, states.rows(woken)]))
        self._tell(manifest, turn, time.perf_counter() - started)
        return _After(manifest, coordinator, States(states.known, states.carried))

    def _restored(self, log: RoundLog, batch_id: int) -> _After:
        manifest = log.newest_before(batch_id)
        coordinator = Coordinator.decode(self.site.plan, manifest.coordinator)
        return _After(manifest, coordinator, log.states(manifest.batch))

    def _deliver(self, session: SparkSession, ledger: Ledger, turn: Turn, batch_id: int) -> None:
        for output in self.outputs:
            if output.release == "arrival":
                parts = ledger.arrived(output)
                if parts:
                    with self._named(output):
                        output.sink.deliver(session, batch_id, parts)
        by_name = {output.name: output for output in self.outputs}
        for name, epoch in turn.released:
            if name in by_name and by_name[name].release == "epoch":
                table = ledger.take(by_name[name], epoch)
                with self._named(by_name[name], epoch):
                    by_name[name].sink.deliver(session, epoch, [(epoch, table)])
        if turn.complete:
            for output in self.outputs:
                with self._named(output):
                    output.sink.complete()

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


def manifest_of(
    site: Site, coordinator: Coordinator, turn: Turn, batch: int, gone: Sequence[str] = ()
) -> Manifest:
    """The manifest of a turn; what it takes over from the one before is the ledger's to enter."""
    return Manifest(
        batch=batch,
        plan=site.plan.fingerprint,
        run=site.run,
        coordinator=coordinator.encode(),
        header=turn.header,
        runnable=turn.rows.num_rows > 0,
        released=list(turn.released),
        frontier=turn.frontier,
        complete=turn.complete,
        unreleased={},
        spent=[(name, batch) for name in gone],
        kept_from=batch,
        rounds=turn.stats["rounds"],
        rounds_ahead=site.rounds,
        late=dict(turn.late),
        stats=turn.stats,
    )
