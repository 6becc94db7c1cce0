"""`Overview`: a query at a glance, as HTML, as text, and on one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timely_spark.runtime.handle.log_view import Progress
from timely_spark.runtime.handle.usage import Usage
from timely_spark.runtime.query.live import BatchProgress
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.table import Table, escaped, listed
from timely_spark.show.words import seconds_text
from timely_spark.times.refined import time_text

if TYPE_CHECKING:
    from timely_spark.methods import Query

#: The most batches, epochs and times that are listed.
_BATCHES, _EPOCHS, _TIMES = 5, 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of a query, its epochs in flight, its steps, and its last batches."""

    name: str
    #: "running", "ended", or "failed: " and the error
    state: str
    #: of the newest batch that is done
    manifest: Manifest
    #: records that the recent batches delivered to steps, per second; None means unknown
    rate: float | None
    #: the inputs and steps that keep the oldest epoch in flight open
    held_back_by: Sequence[str]
    running: BatchProgress | None
    #: each step with its frontier, and the bytes of its state
    steps: Sequence[tuple[str, str, int | None]]
    recent: Sequence[Progress]
    #: whether micro-batches stay resident, or why not
    residency: str
    #: what waits to be read of each input, in words
    waiting: Mapping[str, str]
    usage: Usage

    @classmethod
    def of(cls, query: Query) -> Overview:
        """A query's overview."""
        active = query.is_active
        error = None if active else query.exception()
        watch, manifest = query._watch, query._watch.newest()  # noqa: SLF001 - shows a query as it is
        recent = query._recent(_BATCHES + 1)  # noqa: SLF001 - each is a file to read
        timed = [progress for progress in recent if progress.duration_ms]
        seconds = sum(progress.duration_ms or 0 for progress in timed) / 1000
        running = query.current_progress
        return cls(
            name=query.name or watch.context.name,
            state="running" if active else "ended" if error is None else f"failed: {error}",
            manifest=manifest,
            rate=sum(progress.records for progress in timed) / seconds if seconds else None,
            held_back_by=watch.held_back_by(),
            running=running and running.named(watch.sketch.loop),
            steps=steps(manifest, watch.summary.frontier(manifest.coordinator), watch.sketch.boxes(), _TIMES),
            recent=recent,
            residency=watch.context.residency(manifest.not_resident),
            waiting={name: one.backlog for name, one in watch.accounts().items() if one.waiting},
            usage=watch.usage(),
        )

    def line(self) -> str:
        """The overview on one line: ``hello: ended, batch 3, 9 rounds, 1,234 records/s``."""
        manifest, parts = self.manifest, [self.state.partition("\n")[0]]
        if manifest.batch >= 0:
            parts += [f"batch {manifest.batch}", f"{manifest.rounds} rounds"]
        elif self.state == "running":
            parts.append("the first micro-batch also starts Spark's Python workers")
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f} records/s")
        if (median := manifest.took.quantile(0.5)) is not None:
            p99 = manifest.took.quantile(0.99) or median
            parts.append(f"{seconds_text(median / 1000)} a batch, p99 {seconds_text(p99 / 1000)}")
        parts += [f"{backlog} of {name} waiting" for name, backlog in self.waiting.items()]
        if epochs := manifest.open_epochs:
            parts.append(f"epochs in flight: {listed(epochs, _EPOCHS)}")
        line = f"{self.name}: {', '.join(parts)}"
        if self.running is not None:
            line += f"; now batch {self.running.epoch}, round {self.running.rounds}"
            for loop in self.running.loops:
                line += f", {loop.loop}: iteration {loop.iteration}, {loop.changes:,} changes"
            for call in self.running.calls:
                line += f", {call.step} for {call.seconds:.0f} s with {call.records:,} records"
        return " ".join(line.split())

    def tables(self) -> Iterator[Table]:
        """The overview as tables."""
        manifest, epochs = self.manifest, self.manifest.open_epochs
        facts = [["epochs in flight", listed(epochs, _EPOCHS) or "none"]]
        if epochs and self.held_back_by:
            facts.append(["held back by", ", ".join(self.held_back_by)])
        facts += [["latency", str(manifest.took)]] * bool(manifest.latencies)
        facts += [["epochs", self.residency]]
        facts += [["waiting", f"{backlog} of {name}"] for name, backlog in self.waiting.items()]
        facts += [["output", f"{name}: {one}"] for name, one in manifest.outputs.items()]
        facts += map(list, self.usage.lines())
        facts += [["hot key", text] for text in manifest.hot_keys.values()]
        facts += [["slow task", manifest.slow]] * bool(manifest.slow)
        facts += [["negative records", text] for _, text in manifest.negatives.values()]
        facts += [[f"expectation {step!r}", str(one)] for step, one in manifest.expectations.items()]
        yield Table(["", ""], facts)
        if self.running is not None:
            yield loops_table(self.running)
        yield steps_table(self.steps)
        if batches := list(self._batches()):
            columns = ["batch", "rounds", "records", "ms", "late rows", "cut off"]
            yield Table(columns, batches, "Last batches")

    def _batches(self) -> Iterator[list[Any]]:
        before = {-1: 0} | {progress.epoch: progress.rounds for progress in self.recent}
        for each in self.recent[-_BATCHES:]:
            rounds = each.rounds - before[each.epoch - 1] if each.epoch - 1 in before else ""
            late, cut_off = sum(each.late.values()), sum(each.cut_off.values())
            yield [each.epoch, rounds, each.records, each.duration_ms, late, cut_off]

    def html(self) -> str:
        """The overview as one HTML element."""
        tables = "".join(table.html() for table in self.tables())
        return f"<div><div><b>Query {escaped(self.line())}</b></div>{tables}</div>"


def loops_table(running: BatchProgress) -> Table:
    """The loops of the batch that is running."""
    title = f"Running: batch {running.epoch}, round {running.rounds}, {running.records:,} records"
    rows = [[each.loop, each.epoch, each.iteration, each.changes, each.total] for each in running.loops]
    return Table(["loop", "epoch", "iteration", "changes", "changes so far"], rows, title)


def steps_table(steps: Iterable[tuple[str, str, int | None]]) -> Table:
    """Each step's frontier, and the bytes of its state."""
    rows = [[name, frontier, "" if size is None else size] for name, frontier, size in steps]
    title = "Steps: the least times that may still arrive"
    return Table(["step", "frontier", "bytes of state"], rows, title)


def steps(
    manifest: Manifest,
    frontier: Mapping[str, list[Any]],
    boxes: Mapping[str, str],
    most: int | None = None,
) -> list[tuple[str, str, int | None]]:
    """For each step, or box of steps, its frontier in words and the bytes of its state.

    Args:
        boxes: by step the name of what stands for it: `Sketch.boxes`.
        most: how many times are listed.
    """
    inside: dict[str, list[str]] = {}
    for name in frontier:
        inside.setdefault(boxes.get(name, name), []).append(name)
    rows = []
    for name, parts in inside.items():
        times = frontier[parts[0]]
        if len(parts) > 1:  # of the times inside a box only the epochs say something outside
            times = [[least] for least in sorted({time[0] for part in parts for time in frontier[part]})[:1]]
        sizes = [manifest.state_bytes[part] for part in parts if part in manifest.state_bytes]
        shown = listed(list(map(time_text, times)), most) or "complete"
        rows.append((name, shown, sum(sizes) if sizes else None))
    return rows
