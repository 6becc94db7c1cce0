"""`LogView`: reads frontiers, progress and captured outputs of a flow from its log."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.captured import Captured
from timely_spark.compiler.summary import PlanSummary
from timely_spark.coordinator import Coordinator
from timely_spark.errors import LogDamaged
from timely_spark.graph import find
from timely_spark.runtime.handle.history import LAST, History, PastBatch
from timely_spark.runtime.handle.interrupts import only_the_wait
from timely_spark.runtime.handle.usage import Usage
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.storage.log import FIRST
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.sketch import Sketch
from timely_spark.times import Antichain
from timely_spark.worker.convergence import Convergence, Iterations

#: Seconds between two looks at the log while waiting: the most, the least, and by which part of the time so
#: far they grow. Where this process writes the log, it wakes the waiting thread, and only the most counts.
BEAT, FIRST_BEAT, _PARTS = 0.01, 0.001, 8
#: A `Usage` is not taken again for so many seconds.
_RECENT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one batch of the flow.

    A micro-batch of Spark's has one, or many if it stays resident.
    """

    #: The batch, which with clock epochs is the epoch of its input.
    epoch: int
    #: Rounds run since the checkpoint was made; a batch may have several.
    rounds: int
    #: The frontier of each output and probe; empty if it is complete.
    frontier: Mapping[str, list[Any]]
    #: Records that the batch delivered to steps.
    records: int
    #: The records that entered each iteration by feedback, by loop and epoch; of a collection these are the
    #: changed records. The numbers of more than 128 iterations are added up.
    iterations: tuple[Iterations, ...]
    #: Messages for the next round.
    rows_in_flight: int
    pending_notifications: int
    #: Late rows, per input, since the flow began.
    late: Mapping[str, int]
    #: Records that the limits of loops have dropped, per loop, since the flow began.
    cut_off: Mapping[str, int]
    #: Bytes of state by step, summed over the workers.
    state_bytes: Mapping[str, int]
    #: Bytes in the memory of the workers by step: the most of the batch.
    memory_bytes: Mapping[str, int]
    #: The slowest worker in the batch, and its milliseconds.
    slowest: tuple[int, float] | None
    #: The milliseconds of the batch, by Spark's progress if each is a micro-batch: None if Spark has none.
    duration_ms: int | None

    def json(self) -> str:
        """The progress as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An epoch that is complete at an output."""

    epoch: int
    #: The output's name.
    output: str
    #: Rounds from the batch that read the epoch's input to the one that released the epoch, inclusive;
    #: None if epochs are not the clock's, or the first manifest was removed.
    rounds: int | None
    #: The duration of those batches; None if Spark no longer has one of them.
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class _Retained:
    """The contents of a log that may be deleted."""

    manifests: Mapping[int, Manifest | None]
    captured: Mapping[str, Captured]
    accounts: Mapping[str, Account]


class LogView:
    """A view of one flow's log. It keeps the newest manifest; after `close`, everything that can be read."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.log = context, context.log
        self._newest: Manifest | None = None
        self._usage: Usage | None = None
        #: After `close`, the contents of the log.
        self._last: _Retained | None = None
        #: Held while the log is read, so that the log is not deleted meanwhile.
        self._reading = threading.RLock()

    def close(self) -> None:
        """Read everything that can be read; from then on the log may be deleted."""
        with self._reading:
            if self._last is None:
                newest = self.newest().batch
                batches = range(max(FIRST, newest - LAST), newest + 1)
                manifests = {batch: self.log.read(batch) for batch in batches}
                present = [one for batch, one in manifests.items() if one is not None and batch > FIRST]
                self._history.batches = list(map(PastBatch.of, present))
                captured = {name: self.captured(name) for name in self._schemas("capture", "memory")}
                self._last = _Retained(manifests, captured, self.accounts())

    def newest(self) -> Manifest:
        """The newest manifest."""
        with self._reading:
            before = self._newest
            if before is not None and self._last is not None:
                return before
            batch = self.log.newest(None if before is None else before.batch)
            if before is None or batch != before.batch:
                manifest = None if batch is None else self.log.read(batch)
                if manifest is None:
                    raise LogDamaged.no_manifest(self.log.files.root, 0)
                self._newest = before = manifest
            return before

    def _read(self, batch: int) -> Manifest | None:
        with self._reading:
            if batch == (newest := self.newest()).batch:
                return newest
            return self.log.read(batch) if self._last is None else self._last.manifests.get(batch)

    @cached_property
    def summary(self) -> PlanSummary:
        """The summary of the flow's plan."""
        return PlanSummary.of(self.context.plan)

    def history(self) -> History:
        """The last batches, also of earlier runs."""
        with self._reading:
            if self._last is None:
                self._history.look(self.log, self.newest())
            return History(self._history.clocked, self._history.batches, self._history.hour)

    @cached_property
    def _history(self) -> History:
        return History(self.context.plan.clocked)

    @cached_property
    def sketch(self) -> Sketch:
        """The flow to look at."""
        return Sketch.of(self.context.plan)

    def usage(self) -> Usage:
        """What the flow takes of this machine, at most `_RECENT` seconds ago."""
        with self._reading:
            if self._usage is None or time.time() - self._usage.when >= _RECENT:
                self._usage = Usage.of(self.log.files, os.getpid() if self._last is None else None)
            return self._usage

    def accounts(self) -> Mapping[str, Account]:
        """What became of all that each input was given."""
        with self._reading:
            if self._last is not None:
                return self._last.accounts
            return Account.of(self.log, self.newest(), self.context.plan.described()["inputs"])

    def frontier(self, name: str) -> Antichain[Any]:
        """The frontier of an output or probe."""
        return Antichain(self._times(name, self.newest()))

    def _times(self, name: str, manifest: Manifest) -> list[Any]:
        plan = self.context.plan
        times = find(manifest.frontier, name, kind="output or probe", flow=plan.name)
        return list(map(plan.times.decode, times))

    def names(self) -> list[str]:
        """The outputs and probes."""
        return sorted(self.newest().frontier)

    def least_epochs(self) -> dict[str, int]:
        """The least epoch that may still appear at each output or probe; without those that are complete."""
        return {
            name: min(at.epoch for at in frontier)
            for name in self.names()
            if (frontier := self.frontier(name))
        }

    def is_past(self, name: str, epoch: int) -> bool:
        """Whether an epoch and all earlier ones are complete at an output or probe."""
        return all(at.epoch > epoch for at in self.frontier(name))

    def past(self, names: Sequence[str], epoch: Callable[[], int | None]) -> Callable[[], bool]:
        """A function that returns whether outputs are complete up to an epoch, once that is known."""

        def reached() -> bool:
            until = epoch()
            return until is not None and all(self.is_past(name, until) for name in names)

        return reached

    def held_back_by(self) -> list[str]:
        """The inputs and steps that keep the oldest open epoch open, by name."""
        plan, manifest = self.context.plan, self.newest()
        coordinator, least = Coordinator.decode(plan, manifest.coordinator), self.least_epochs()
        holding: dict[str, None] = {}
        for node in plan.nodes:
            epoch = least.get(node.name)
            if epoch is not None and not (plan.clocked and epoch > manifest.batch):  # that has not begun
                holding.update(dict.fromkeys(coordinator.holding(node, epoch)))
        return list(holding)

    def duration(self, batch: int, durations: Mapping[int, int | None]) -> int | None:
        """The milliseconds of a batch; None if they are not known.

        Args:
            durations: of micro-batches, by Spark's own progress.
        """
        manifest = self._read(batch)
        if manifest is None:
            return None
        if self.context.resident:  # Spark knows a micro-batch's duration when it has ended
            return round(manifest.milliseconds)
        return durations.get(manifest.micro_batch)

    def is_timed(self, batch: int, durations: Mapping[int, int | None]) -> bool:
        """Whether the duration of a batch is known, or will never be."""
        if self.context.resident:
            return batch <= self.newest().batch
        manifest = self._read(batch)
        return manifest is None or manifest.micro_batch <= max(durations, default=FIRST)

    def progress(self, batch: int, durations: Mapping[int, int | None]) -> Progress | None:
        """The progress of a batch; None if its manifest was removed."""
        manifest = self._read(batch)
        if manifest is None:
            return None
        slowest = manifest.stats.get("slowest")
        return Progress(
            epoch=manifest.batch,
            rounds=manifest.rounds,
            frontier=manifest.frontier,
            records=int(manifest.stats.get("records", 0)),
            iterations=tuple(Convergence.decode(manifest.stats.get("convergence", ()))),
            rows_in_flight=int(manifest.stats.get("rows_in_flight", 0)),
            pending_notifications=int(manifest.stats.get("pending_notifications", 0)),
            late=manifest.late,
            cut_off=manifest.cut_off,
            state_bytes=manifest.state_bytes,
            memory_bytes=manifest.memory_bytes,
            slowest=None if slowest is None else (int(slowest[0]), float(slowest[1])),
            duration_ms=self.duration(batch, durations),
        )

    def micro_batch(self, number: int, durations: Mapping[int, int | None]) -> Progress | None:
        """The progress of the last batch of a micro-batch; None if its manifest was removed."""
        batch = self.newest().batch
        while (manifest := self._read(batch)) is not None and manifest.micro_batch > number:
            batch -= 1
        present = manifest is not None and manifest.micro_batch == number
        return self.progress(batch, durations) if present else None

    def completed(self, batch: int, durations: Mapping[int, int | None]) -> list[Completed]:
        """The epochs that a batch released; `durations`: as for `duration`."""
        manifest = self._read(batch)
        clocked = self.context.plan.clocked
        completed: list[Completed] = []
        if manifest is None:
            return completed
        for output, epoch in manifest.released:
            batches = range(epoch if clocked else batch, batch + 1)
            times = [time for each in batches if (time := self.duration(each, durations)) is not None]
            before = self._read(epoch - 1) if clocked else None
            completed.append(
                Completed(
                    epoch=epoch,
                    output=output,
                    rounds=manifest.rounds - before.rounds if before is not None else None,
                    milliseconds=sum(times) if len(times) == len(batches) else None,
                )
            )
        return completed

    def captured(self, name: str) -> Captured:
        """The deliveries of a captured output."""
        flow = self.context.plan.name
        schema = find(self._schemas("capture", "memory"), name, kind="captured output", flow=flow)
        with self._reading:
            if self._last is not None:
                return self._last.captured[name]
            until = self.complete([name])  # before the records are read: a flow that runs has more then
            last = self.newest().captured.get(name)
            parts: dict[int, list[pa.Table]] = {}
            for version, table in self.log.deliveries(name).read(last):
                epochs = [version] if not table.num_rows else sorted(set(table.column(0).to_pylist()))
                for epoch in epochs:
                    part = table.filter(pc.equal(table.column(0), epoch)).remove_column(0)
                    parts.setdefault(epoch, []).append(part)
        tables = {epoch: pa.concat_tables(parts[epoch]) for epoch in sorted(parts)}
        return Captured(schema, tables, until, self.context.plan.differences.get(name))

    def schemas(self) -> dict[str, pa.Schema]:
        """The schemas of the outputs of `capture`."""
        return self._schemas("capture")

    def _schemas(self, *kinds: str) -> dict[str, pa.Schema]:
        nodes: Any = self.context.plan.nodes
        return {node.name: node.template.schema for node in nodes if node.stage.parameters.get("to") in kinds}

    def complete(self, names: Sequence[str]) -> int:
        """The newest epoch that is complete at all of some outputs; -1 if none is.

        Once no epoch can follow, and with clock epochs, it is at most the last one that has begun.
        """
        manifest = self.newest()
        begun: int = manifest.coordinator["begun"]
        ended = [int(at.epoch) - 1 for name in names for at in self._times(name, manifest)]
        return min(ended) if ended and not self.context.plan.clocked else min([begun, *ended])

    def released(self, name: str, after: int, until: int) -> Generator[tuple[int, pa.Table], None, None]:
        """The changes of a captured output in each epoch after one, up to another; to be closed."""
        with self._reading:
            if self._last is not None:
                epochs = self._last.captured[name].epochs
                yield from ((epoch, table) for epoch, table in epochs.items() if after < epoch <= until)
            elif (last := self.newest().captured.get(name)) is not None:
                for epoch, table in self.log.deliveries(name).read(last, after=after):
                    if epoch > min(last, until):
                        break
                    yield epoch, table.remove_column(0)

    def until(self, reached: Callable[[], bool], alive: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition on the log; False after the timeout, or if the query has ended without it."""
        started = asked = time.monotonic()
        with only_the_wait() as interruptible:
            running = alive()  # before the condition, which may read the query's last manifest
            while True:
                written = self.log.written  # before the condition: the next one ends the pause
                if reached():
                    return True
                now = time.monotonic()
                left = BEAT if timeout is None else started + timeout - now
                if not running or left <= 0:
                    return False
                pause = max(FIRST_BEAT, (now - started) / _PARTS) if written is None else BEAT
                interruptible(self.log.wait, written, min(pause, BEAT, left))
                if now - asked >= BEAT:  # it is a call of the JVM
                    running, asked = alive(), now
