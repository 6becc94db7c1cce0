"""What a flow can be asked from outside: all of it is learnt from the log, nothing from shared objects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from threading import RLock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged, UnknownName
from timely_spark.graph import caller
from timely_spark.runtime.captured import Deliveries
from timely_spark.runtime.log import Manifest
from timely_spark.runtime.run_context import RunContext
from timely_spark.testing import Captured
from timely_spark.times import Antichain
from timely_spark.worker import Coordinator, Node

#: Seconds between two looks at the log while waiting.
BEAT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One round, as seen after it."""

    #: The micro-batch, which is the epoch of the input that it read.
    epoch: int
    #: Rounds run since the checkpoint was made; a micro-batch may take several.
    rounds: int
    #: Per output and probe the times that may still appear there; none: complete.
    frontier: Mapping[str, list[Any]]
    #: Messages that the next round will read.
    rows_in_flight: int
    pending_notifications: int
    #: Rows that came after their epoch was over, per input, since the flow began.
    late: Mapping[str, int]
    #: Records that the limits of loops have dropped, per loop, since the flow began.
    cut_off: Mapping[str, int]
    #: Bytes of state by step, of all workers together.
    state_bytes: Mapping[str, int]
    #: The worker that took longest for its part of the micro-batch, and how many milliseconds.
    slowest: tuple[int, float] | None
    #: How long the micro-batch took; None where Spark has forgotten it.
    duration_ms: int | None

    def json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An epoch that is complete at an output."""

    epoch: int
    #: The output's name.
    output: str
    #: Rounds of the micro-batches from the one that read its input to the one that released it, both counted;
    #: None where epochs are not micro-batches, or the first of them is forgotten.
    rounds: int | None
    #: How long those micro-batches took; None where Spark has forgotten one of them.
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class _Last:
    """What is known of a log that has gone."""

    manifests: Mapping[int, Manifest | None]
    captured: Mapping[str, Captured]
    taken: tuple[int, dict[str, int]] | None


class Watch:
    """A view of one flow's log that remembers where the newest manifest was; when it is closed, all of it."""

    def __init__(self, site: RunContext) -> None:
        self.site, self.log = site, site.log
        self._newest: Manifest | None = None
        #: Once the log may be deleted, what there is to be known of it.
        self._last: _Last | None = None
        #: Held while the log is read: it is not deleted then.
        self._reading = RLock()

    def close(self) -> None:
        """Reads all that can be asked; from then on the log can go."""
        with self._reading:
            if self._last is None:
                newest = self.newest().batch
                manifests = {batch: self.log.read(batch) for batch in range(max(0, newest - 100), newest + 1)}
                captured = {name: self.captured(name) for name in self._kept()}
                self._last = _Last(manifests, captured, self.taken())

    def newest(self) -> Manifest:
        """The newest manifest."""
        with self._reading:
            before = self._newest
            if before is not None and self._last is not None:
                return before
            batch = self.log.newest(None if before is None else before.batch)
            if before is None or batch != before.batch:
                found = None if batch is None else self.log.read(batch)
                if found is None:
                    raise LogDamaged.no_manifest(self.log.files.root, 0)
                self._newest = before = found
            return before

    def taken(self) -> tuple[int, dict[str, int]] | None:
        """(batch, entries taken of each input up to and with it), as far as Spark has planned; or None."""
        with self._reading:
            if self._last is not None:
                return self._last.taken
            newest = self.newest().batch
            return self.log.spark_offset(newest + 1) or self.log.spark_offset(newest)

    def _read(self, batch: int) -> Manifest | None:
        with self._reading:
            return self.log.read(batch) if self._last is None else self._last.manifests.get(batch)

    def frontier(self, name: str) -> Antichain[Any]:
        """The times that may still appear at an output or probe.

        Raises:
            UnknownName: there is no output or probe of that name.
        """
        frontiers = self.newest().frontier
        if name not in frontiers:
            raise self._unknown(name, frontiers, "output or probe")
        return Antichain(self.site.plan.times.decode(at) for at in frontiers[name])

    def names(self) -> list[str]:
        """The outputs and probes."""
        return sorted(self.newest().frontier)

    def is_past(self, name: str, epoch: int) -> bool:
        """Whether nothing of this epoch, or an earlier one, can appear there any more."""
        return all(at.epoch > epoch for at in self.frontier(name))

    def held_back_by(self) -> list[str]:
        """The inputs and steps that keep the oldest open epoch open, by name."""
        plan, manifest = self.site.plan, self.newest()
        clocked = all(source.epochs == "clock" for source in plan.inputs)
        coordinator = Coordinator.decode(plan, manifest.coordinator)
        found: dict[str, None] = {}
        for node in plan.nodes:
            epochs = [at.epoch for at in self.frontier(node.name)] if node.name in manifest.frontier else []
            if epochs and not (clocked and min(epochs) > manifest.batch):  # the next batch's is not open yet
                found.update(dict.fromkeys(coordinator.holding(node, min(epochs))))
        return list(found)

    def progress(self, batch: int, duration_ms: int | None) -> Progress | None:
        """A round; None where its manifest is gone."""
        manifest = self.newest() if batch == self.newest().batch else self._read(batch)
        if manifest is None:
            return None
        slowest = manifest.stats.get("slowest")
        return Progress(
            epoch=manifest.batch,
            rounds=manifest.rounds,
            frontier=manifest.frontier,
            rows_in_flight=int(manifest.stats.get("rows_in_flight", 0)),
            pending_notifications=int(manifest.stats.get("pending_notifications", 0)),
            late=manifest.late,
            cut_off=manifest.cut_off,
            state_bytes=manifest.stats.get("state_bytes", {}),
            slowest=None if slowest is None else (int(slowest[0]), float(slowest[1])),
            duration_ms=duration_ms,
        )

    def completed(self, batch: int, durations: Mapping[int, int | None]) -> list[Completed]:
        """What a micro-batch released; `durations` are those of the micro-batches that are known."""
        manifest = self._read(batch)
        clocked = all(source.epochs == "clock" for source in self.site.plan.inputs)
        found: list[Completed] = []
        if manifest is None:
            return found
        for output, epoch in manifest.released:
            took = [durations.get(each) for each in range(epoch if clocked else batch, batch + 1)]
            known = [each for each in took if each is not None]
            before = self._read(epoch - 1) if clocked else None
            found.append(
                Completed(
                    epoch=epoch,
                    output=output,
                    rounds=manifest.rounds - before.rounds if before is not None else None,
                    milliseconds=sum(known) if len(known) == len(took) else None,
                )
            )
        return found

    def captured(self, name: str) -> Captured:
        """The deliveries that an output has kept.

        Raises:
            UnknownName: no output of that name keeps any.
        """
        if name not in self._kept():
            raise self._unknown(name, self._kept(), "captured output")
        with self._reading:
            if self._last is not None:
                return self._last.captured[name]
            last = self.newest().captured.get(name)
            found: dict[int, list[pa.Table]] = {}
            for version, table in Deliveries(self.site.checkpoint, name).read(last):
                epochs = [version] if not table.num_rows else sorted(set(table.column(0).to_pylist()))
                for epoch in epochs:
                    part = table.filter(pc.equal(table.column(0), epoch)).remove_column(0)
                    found.setdefault(epoch, []).append(part)
        template: Any = self.site.plan.by_name[name].template
        return Captured(template.schema, {epoch: pa.concat_tables(found[epoch]) for epoch in sorted(found)})

    def _kept(self) -> list[str]:
        return [node.name for node in self.site.plan.nodes if _is_kept(node)]

    def _unknown(self, name: object, known: Iterable[str], kind: str) -> UnknownName:
        return UnknownName.of(name, known, kind=kind, flow=self.site.plan.name, where=caller())

    def until(self, reached: Callable[[], bool], alive: Callable[[], bool], timeout: float | None) -> bool:
        """Waits for a condition on the log; False when time is up, or nobody is left to bring it about."""
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            going = alive()  # asked first: what a query wrote last counts, too
            if reached():
                return True
            if not going or (limit is not None and time.monotonic() >= limit):
                return False
            time.sleep(BEAT)


def _is_kept(node: Node) -> bool:
    """Whether what an output was given can be read again."""
    return node.stage.parameters.get("to") in {"capture", "memory"}
