"""What a flow can be asked from outside: all of it is learnt from the log, nothing from shared objects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.errors import LogDamaged
from timely_spark.runtime.files import Files
from timely_spark.runtime.log import Manifest
from timely_spark.runtime.sinks import captured_folder
from timely_spark.runtime.site import Site
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


class Watch:
    """A view of one flow's log that remembers where the newest manifest was."""

    def __init__(self, site: Site) -> None:
        self.site, self.log = site, site.log
        self._newest: Manifest | None = None

    def newest(self) -> Manifest:
        """The newest manifest."""
        before = self._newest
        batch = self.log.newest(None if before is None else before.batch)
        if before is None or batch != before.batch:
            found = None if batch is None else self.log.read(batch)
            if found is None:
                raise LogDamaged.no_manifest(self.log.files.root, 0)
            self._newest = before = found
        return before

    def frontier(self, name: str) -> Antichain[Any]:
        """The times that may still appear at an output or probe.

        Raises:
            KeyError: there is no output or probe of that name.
        """
        frontiers = self.newest().frontier
        if name not in frontiers:
            msg = f"no output or probe {name!r}. Hint: there are {sorted(frontiers)}."
            raise KeyError(msg)
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
        manifest = self.newest() if batch == self.newest().batch else self.log.read(batch)
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
            state_bytes=manifest.stats.get("state_bytes", {}),
            slowest=None if slowest is None else (int(slowest[0]), float(slowest[1])),
            duration_ms=duration_ms,
        )

    def completed(self, batch: int, durations: Mapping[int, int | None]) -> list[Completed]:
        """What a micro-batch released; `durations` are those of the micro-batches that are known."""
        manifest = self.log.read(batch)
        clocked = all(source.epochs == "clock" for source in self.site.plan.inputs)
        found: list[Completed] = []
        if manifest is None:
            return found
        for output, epoch in manifest.released:
            took = [durations.get(each) for each in range(epoch if clocked else batch, batch + 1)]
            known = [each for each in took if each is not None]
            before = self.log.read(epoch - 1) if clocked else None
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
        """The deliveries that an output has kept."""
        node = self.site.plan.by_name.get(name)
        if node is None or not _is_kept(node):
            kept = sorted(n.name for n in self.site.plan.nodes if _is_kept(n))
            msg = f"no captured output {name!r}. Hint: there are {kept}."
            raise KeyError(msg)
        files = Files(captured_folder(self.site.checkpoint, name))
        found: dict[int, list[pa.Table]] = {}
        for number in files.numbers("."):
            table = files.table(f"{number}.arrow")
            if table is not None:
                epochs = [number] if not table.num_rows else sorted(set(table.column(0).to_pylist()))
                for epoch in epochs:
                    part = table.filter(pc.equal(table.column(0), epoch)).remove_column(0)
                    found.setdefault(epoch, []).append(part)
        template: Any = node.template
        return Captured(template.schema, {epoch: pa.concat_tables(found[epoch]) for epoch in sorted(found)})

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
