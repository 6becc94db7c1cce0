"""The sections of the console's page for one flow, as HTML: each is replaced when it changes."""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa

from timely_spark.errors import split_hint
from timely_spark.graph.schema import RESERVED
from timely_spark.runtime.handle.asked import Asked, TimeSpan
from timely_spark.runtime.handle.charts import Point, bars, line_chart, spark_line, thinned, timeline
from timely_spark.runtime.handle.day import since_yesterday
from timely_spark.runtime.handle.history import Epoch, History, by_box, largest_over_time, quantile
from timely_spark.runtime.handle.overview import steps
from timely_spark.runtime.handle.row_reasons import RowReasons
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.handle.usage import Usage
from timely_spark.runtime.handle.verdict import Verdict
from timely_spark.runtime.storage.hours import HOUR, Hour, hours
from timely_spark.runtime.storage.manifest import Delivered
from timely_spark.show.drawing import Marks, sketch_svg
from timely_spark.show.sketch import CALL, Arrow, Sketch, Step
from timely_spark.show.table import ROWS, cell, counted, escaped, listed
from timely_spark.show.words import bytes_text, clock, number_text, seconds_text, short_number
from timely_spark.times.refined import time_text
from timely_spark.worker import wire
from timely_spark.worker.wire import Message

#: Opens all boxes; no step has such a name.
ALL = "*/"
#: The most rows of the timeline, and lines of a chart.
_BARS, _LINES = 24, 6
#: The links to other spans of time: each with its text and its key.
_SPANS = {
    "in": ("newest half", "i"),
    "out": ("twice as much", "o"),
    "earlier": ("earlier", ","),
    "later": ("later", "."),
    "all": ("all", "a"),
}


@dataclass(frozen=True)
class Page:
    """A flow at one moment."""

    status: Status
    history: History
    asked: Asked
    #: the seconds within which an epoch must be answered
    slo: float | None = None
    #: what the flow took of this machine lately, oldest first
    usages: Sequence[Usage] = ()
    #: why rows are in outputs; None where the flow's program is not at hand
    reasons: RowReasons | None = None

    @cached_property
    def now(self) -> float:
        """The moment."""
        return time.time()

    @cached_property
    def epochs(self) -> list[Epoch]:
        """The epochs that were completed."""
        return self.history.epochs()

    @cached_property
    def seen(self) -> History:
        """The history of the span of time that is shown."""
        span, history = self.asked.shown, self.history
        batches = [one for one in history.batches if span.holds(one.began, one.ended)]
        return History(history.clocked, batches, span.within(history.hour))

    @cached_property
    def opened(self) -> list[str]:
        """The boxes that are opened."""
        calls = self.status.after.sketch.calls
        return [name for name in calls if name in self.asked.opened or ALL in self.asked.opened]

    @cached_property
    def sketch(self) -> Sketch:
        """The flow, folded as asked."""
        return self.status.after.sketch.folded(self.opened)

    @cached_property
    def verdict(self) -> Verdict:
        """How the flow is."""
        return Verdict.of(self.status, self.history, self.slo, self.now)

    # -- sections --------------------------------------------------------------------------------------------

    def sections(self, drawn: str = "") -> dict[str, str]:
        """The HTML of each section, by the id of its element.

        Args:
            drawn: a drawing of several flows, instead of the flow's own.
        """
        return {
            "first": self._first(),
            "say": "".join(self._say()),
            "flow": self._flow(drawn),
            "step": self._step(),
            "why": self._why(),
            "epochs": self._epochs(),
            "day": self._day(),
            "loops": self._loops(),
            "io": self._io(),
            "sizes": self._sizes(),
            "usage": self._usage(),
        }

    def _first(self) -> str:
        status, manifest = self.status, self.status.after.manifest
        hour = self.history.hour[bisect(self.history.hour, (self.now - HOUR, 0.0)) :]
        took = [seconds for _, seconds in hour]
        last = self.epochs[-1] if self.epochs else None
        facts = {"frontier": escaped(self._frontier())}
        facts["behind"] = seconds_text(self.verdict.late) if self.verdict.late else "nothing waits"
        facts["newest answer"] = (
            f"epoch {last.epoch}, {seconds_text(self.now - last.ended)} ago" if last else "none yet"
        )
        facts["epochs a second"] = self._rate([one for one in self.epochs if self.now - one.ended <= HOUR])
        if took:
            median, p99 = quantile(took, 0.5) or 0.0, quantile(took, 0.99) or 0.0
            line = spark_line([high for _, high in thinned(hour, 160)], "seconds until an epoch was complete")
            facts["p50 and p99"] = f"{seconds_text(median)}, {seconds_text(p99)} {line}"
        number = "none yet" if manifest.batch < 0 else str(manifest.batch)
        facts["batch"] = f"{number}, {counted(manifest.rounds, 'round')}"
        facts["workers"] = str(status.workers)
        if started := status.owner.get("started"):
            ago = self.now - datetime.fromisoformat(started).timestamp()
            facts["started"] = f"{seconds_text(ago)} ago"
        spark = str(status.owner.get("page"))
        if status.running is not False and spark.startswith(("http://", "https://")):
            facts["Spark's page"] = f'<a href="{escaped(spark)}" rel="noreferrer">open</a>'
        shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
        state = f'<span class="state {self.verdict.kind}">{escaped(status.state)}</span>'
        return f'<h1>{escaped(status.after.flow)}</h1>{state}<dl class="charts">{shown}</dl>'

    def _frontier(self) -> str:
        frontier = self.status.after.manifest.frontier
        shown = {
            name: listed(list(map(time_text, times)), 2) or "complete" for name, times in frontier.items()
        }
        if len(set(shown.values())) == 1:
            return next(iter(shown.values()))
        return listed([f"{name}: {times}" for name, times in shown.items()], 3)

    def _rate(self, done: Sequence[Epoch]) -> str:
        span = done[-1].ended - done[0].began if len(done) > 1 else 0.0
        return number_text(len(done) / span) if span else f"{len(done) or 'none'} in the last hour"

    def _say(self) -> Iterator[str]:
        verdict, status = self.verdict, self.status
        if verdict.says:
            more = ""  # of an error the verdict says the first line, and what to do
            if status.failure is not None:
                more = split_hint(status.failure["error"])[0].partition("\n")[2]
            more = f"<pre>{escaped(more)}</pre>" * bool(more)
            says, do = escaped(verdict.says), escaped(_sentence(verdict.do))
            yield f'<div class="say {verdict.kind}"><b>{says}</b>{more}{do}</div>'
        for text in status.warnings:
            yield f'<div class="say warn">{escaped(text)}</div>'
        if (open_ := status.why or status.now) is not None:
            yield f'<div class="say"><pre>{escaped(str(open_))}</pre></div>'

    def _flow(self, drawn: str) -> str:
        if not self.sketch.steps:
            return "<h2>The flow</h2><p>An older version wrote this checkpoint: start the flow again.</p>"
        calls = self.status.after.sketch.calls
        verb, opened = ("open", (ALL,)) if len(self.opened) < len(calls) else ("close", ())
        href = escaped(self.asked.path(open=opened))
        links = f'<p><a data-key="expand" href="{href}">{verb} all boxes</a> (e)</p>' * bool(calls)
        drawn = drawn or sketch_svg(self.sketch, self.marks())
        return f'<h2>The flow</h2>{links}<div class="drawn">{drawn}</div>'

    def marks(self) -> Marks:
        """The texts and colours of the flow's drawing."""
        manifest, sketch = self.status.after.manifest, self.sketch
        moved, spent = self.seen.moved(), self.seen.spent()
        flying = Counter(message.channel for _, message in wire.read(self.status.after.rows, Message))
        total = sum(spent.values()) or 1.0
        texts, heat, classes = dict[str, str](), dict[str, float](), dict[str, str]()
        hot, running = set(manifest.hot_keys), self._running
        busy = {call.step for call in self.status.now.calls} if self.status.now else set[str]()
        for step in sketch.steps:
            size = sum(manifest.state_bytes.get(name, 0) for name in step.steps)
            took = sum(spent.get(name, 0.0) for name in step.steps)
            if step.is_source and (account := self.status.read.get(step.name)) is not None:
                parts = [f"{counted(account.rows, 'record')} in all"]
            else:
                parts = [bytes_text(size)] * bool(size) + [seconds_text(took)] * bool(took)
            parts += [f"iteration {n:,}" for name, n in running.items() if self._inside(name, step)][-1:]
            if parts:
                texts[step.key] = " · ".join(parts)
            heat[step.key] = took / total
            kinds = {
                "hot": hot & {*step.steps},
                "busy": busy & {*step.steps},
                "chosen": step.name == self.asked.step,
            }
            classes[step.key] = " ".join(kind for kind, holds in kinds.items() if holds)
        for name, text in self._loop_texts.items():
            texts[f"loop:{name}"] = text
        records = {
            arrow.index: self.sketch.records(arrow, moved) for arrow in sketch.arrows if arrow.channels
        }
        return Marks(
            texts=texts,
            heat=heat,
            classes=classes,
            records=records,
            notes={
                arrow.index: self._note(arrow, records.get(arrow.index), flying) for arrow in sketch.arrows
            },
            link=self._link,
            close=lambda frame: self.asked.path(open=tuple(one for one in self.opened if one != frame.name)),
        )

    def _link(self, step: Step) -> str:
        """Where a click on a step leads: to its facts; a second click opens a box."""
        calls = self.status.after.sketch.calls
        if step.kind == CALL and step.name in calls and step.name == self.asked.step:
            return self.asked.path(open=(*self.opened, step.name), step="")
        return self.asked.path(step=step.name)

    def _inside(self, loop: str, step: Step) -> bool:
        frames = {one.name: one.frames for one in self.status.after.sketch.steps}
        return step.kind == CALL and any(f"loop:{loop}" in frames[name] for name in step.steps)

    @cached_property
    def _running(self) -> dict[str, int]:
        """The iteration that each loop has reached in the micro-batch that runs."""
        if self.status.now is None:
            return {}
        sketch = self.status.after.sketch
        names = {sketch.loop(frame.name): frame.name for frame in sketch.frames.values()}
        return {names.get(each.loop, each.loop): each.iteration for each in self.status.now.loops}

    @cached_property
    def _loop_texts(self) -> dict[str, str]:
        """Where each loop is, or was last."""
        texts = dict[str, str]()
        for loop, epochs in self.seen.convergence().items():
            epoch, points = max(epochs.items())
            changes = short_number(sum(value for _, value in points))
            texts[loop] = f"epoch {epoch}: iteration {points[-1][0]}, {changes} changes"
        return texts | {loop: f"at iteration {n:,}" for loop, n in self._running.items()}

    def _note(self, arrow: Arrow, records: int | None, flying: Mapping[int, int]) -> str:
        parts = [arrow.exchange] * bool(arrow.exchange)
        if records is not None:
            parts.append(f"{counted(records, 'record')} {self._lately}")
        if waits := sum(flying.get(channel, 0) for channel in arrow.channels):
            parts.append(f"{counted(waits, 'message')} in flight")
        return ", ".join(parts)

    @cached_property
    def _lately(self) -> str:
        """The batches whose work is shown, in words."""
        return f"in {'the last ' * (self.asked.span is None)}{len(self.seen.batches)} batches"

    @cached_property
    def clicked(self) -> Step | None:
        """The step that was clicked."""
        return next((one for one in self.sketch.steps if one.name == self.asked.step), None)

    @cached_property
    def output(self) -> str | None:
        """The output that was clicked, or is in the box that was clicked."""
        names = () if self.clicked is None else self.clicked.steps
        steps = self.status.after.sketch.steps
        return next((one.name for one in steps if one.name in names and one.kind == "output"), None)

    def _step(self) -> str:
        """The facts of the step that was clicked."""
        step = self.clicked
        if step is None:
            return ""
        close = f'<a data-key="close" href="{escaped(self.asked.path(step=""))}">close</a> (Esc)'
        more = ""
        if step.kind == CALL:
            opened = self.asked.path(open=(*self.opened, step.name), step="")
            more = f' <a href="{escaped(opened)}">show its {len(step.steps)} steps</a>'
        spent, manifest = self.seen.spent(), self.status.after.manifest
        took = sum(spent.get(name, 0.0) for name in step.steps)
        names = {one.key: one.name for one in self.sketch.steps}
        plan = self.status.after.description.get("plans", {}).get(step.key)
        facts = {
            "is": step.label,
            "line": step.where,
            **({"columns": step.columns} if step.columns else {}),
            "reads": listed(
                [
                    f"{names[a.source]}{f' ({a.exchange})' * bool(a.exchange)}"
                    for a in self.sketch.arrows
                    if a.target == step.key
                ]
            )
            or "an input",
            **({"plan": plan} if plan else {}),
            "state": bytes_text(sum(manifest.state_bytes.get(name, 0) for name in step.steps)),
            "memory": bytes_text(sum(manifest.memory_bytes.get(name, 0) for name in step.steps)),
            "time": f"{seconds_text(took) if took else 'none'} {self._lately}",
        }
        rows = [[name, value] for name, value in facts.items()]
        inner = "".join(self._inner(step))
        return f"<h2>{escaped(step.name)}</h2><p>{close}{more}</p>{html_table(['', ''], rows)}{inner}"

    def _why(self) -> str:
        """Why a row is in the output that was clicked, or is not: a field to ask, and the answer."""
        output, row = self.output, self.asked.row
        if output is None:
            return ""
        head = "<h3>Why is a row there, or not?</h3>"
        if self.reasons is None:
            call = f"<code>query.explain_row({escaped(repr(output))}, {{...}})</code>"
            return f"{head}<p>The flow's program answers: {call}, or the page of <code>query.ui()</code>.</p>"
        ask = escaped(self.asked.path(row=""))
        field = (
            f'<p><input data-ask="{ask}&amp;row=" value="{escaped(row)}" aria-label="a row, as JSON" '
            """placeholder='some of its columns, as {"node": 3}, and Enter'/></p>"""
        )
        if not row:
            said = ""
        elif (answer := self.reasons.answer(output, row)) is None:
            said = "Another question is looked into: load the page again when it is answered."
        elif answer.text is None:
            said = f"The flow runs on parts of its inputs, for {seconds_text(self.now - answer.asked)}"
        else:
            later = "; batches were done since then: load the page again"
            stale = later * (answer.batch < self.status.after.manifest.batch)
            said = f"asked at {clock(answer.asked)}, after batch {answer.batch}{stale}: {answer.text}"
        said = f'<div class="say"><pre>{escaped(said)}</pre></div>' * bool(said)
        last = self.reasons.rows(output)
        rows = "".join(
            f'<tr><td><a href="{escaped(self.asked.path(row=text))}">why?</a></td>'
            + "".join(f"<td>{escaped(cell(value))}</td>" for value in values.values())
            + "</tr>"
            for text, values in last
        )
        names = "".join(f"<th>{escaped(name)}</th>" for name in ["", *(last[-1][1] if last else ())])
        return f'{head}{field}{said}<div class="scroll"><table><tr>{names}</tr>{rows}</table></div>'

    def _inner(self, step: Step) -> Iterator[str]:
        """The state of a step by worker, what waits for it, and the last records of its state."""
        after = self.status.after
        own = [name for name in step.steps if name in after.steps]
        sizes = Counter[str]()
        for row in after.sizes().to_pylist():
            if row["step"] in own:
                sizes[f"worker {row['worker']}"] += row["bytes"]
        if sizes:
            yield f"<h3>State by worker</h3>{bars(dict(sorted(sizes.items())), bytes_text)}"
        if len(own) != 1 or step.kind == CALL:
            return
        waits = [row for row in after.pending().to_pylist() if row["step"] == own[0]]
        if waits:
            rows = [[row["time"], row["messages"], row["notifications"]] for row in waits[:ROWS]]
            yield f"<h3>Waits</h3>{html_table(['time', 'messages', 'notifications'], rows)}"
        tables = {"records in flight": after.records(own[0])}
        if sum(after.manifest.state_bytes.get(name, 0) for name in own) <= _SMALL:
            tables |= {f"state: {name}": one for name, one in after.state(own[0]).items()}
        for name, one in tables.items():
            if one.num_rows:
                yield f"<h3>{escaped(name)}, {counted(one.num_rows, 'row')}</h3>{_records_table(one)}"

    def _epochs(self) -> str:
        span = self.asked.shown
        latency = self._over_time(
            "seconds until an epoch was complete", {"": self.seen.hour}, y=seconds_text, limit=self.slo
        )
        records = [(batch.ended, float(batch.records)) for batch in self.history.batches]
        rates = self._over_time("records a batch delivered to steps", {"": records})
        iterations: dict[int, list[tuple[str, int]]] = {}
        for loop, epochs in self.history.convergence().items():
            for epoch, points in epochs.items():
                last = self.status.after.sketch.loop(loop), points[-1][0] + 1
                iterations.setdefault(epoch, []).append(last)
        rows = []
        done = [one for one in self.epochs if span.holds(one.began, one.ended)]
        for one in done[-_BARS:]:
            kind = "late" if self.slo is not None and one.seconds > self.slo else "done"
            when = f"begun {clock(one.began)}, complete {clock(one.ended)} in batch {one.batch}"
            waited = one.began if one.arrived is None else min(one.arrived, one.began)
            if waited < one.began:
                when = f"arrived {clock(waited)}, {when}"
            parts = [seconds_text(one.seconds)] + [f"{one.rounds} rounds"] * (one.rounds is not None)
            parts += [f"{loop}: {n} iterations" for loop, n in iterations.get(one.epoch, ())]
            tip = f"epoch {one.epoch}: {when}, {', '.join(parts)}"
            rows.append((f"epoch {one.epoch}", waited, one.began, one.ended, kind, tip))
        for epoch in self.status.after.manifest.open_epochs[:_LINES]:
            if (since := self.history.open_since(epoch)) is not None:
                tip = f"epoch {epoch} is in flight since {clock(since)}"
                if span.holds(since, self.now):
                    rows.append((f"epoch {epoch}", since, since, self.now, "open", tip))
        start, end = min((row[1] for row in rows), default=0.0), max((row[3] for row in rows), default=1.0)
        start, end = self.asked.span or (start, end)
        drawn = timeline(rows, start=start, end=end)
        if not (drawn or latency or self.asked.span):
            return "<h2>Epochs</h2><p>none yet</p>"
        residency = f"<p>{escaped(self.status.residency)}</p>" * bool(self.status.residency)
        charts = f'{drawn}<div class="charts">{latency}{rates}</div>'
        return f"<h2>Epochs</h2>{residency}{self._times()}{charts}"

    def _times(self) -> str:
        """The time that is looked at, with links to others."""
        moments = [batch.began for batch in self.history.batches] + [at for at, _ in self.history.hour]
        begin, end = min(moments, default=self.now), self.now
        span = self.asked.span or TimeSpan(begin, end)
        spans: dict[str, TimeSpan | tuple[()]] = {**span.others(), "all": ()}
        if span.since <= begin and span.until >= end:
            spans = {"in": spans["in"]}
        shown = f"{clock(span.since)} to {clock(span.until)}" if self.asked.span else "all times"
        links = " ".join(
            f'<a data-key="{name}" href="{escaped(self.asked.path(span=other))}">{text}</a> ({key})'
            for name, other in spans.items()
            for text, key in [_SPANS[name]]
        )
        return f"<p>{shown}: {links}; or draw across a chart</p>"

    def _over_time(
        self,
        title: str,
        lines: Mapping[str, Sequence[Point]],
        *,
        y: Callable[[float], str] = short_number,
        limit: float | None = None,
    ) -> str:
        """A chart of the span of time that is shown."""
        shown = {label: self.asked.shown.within(line) for label, line in lines.items()}
        lines = {label: thinned(line, 240) for label, line in shown.items() if line}
        return line_chart(title, lines, x="time", x_text=clock, y=y, limit=limit, span=self.asked.span)

    def _day(self) -> str:
        after = self.status.after
        columns, rows = since_yesterday(hours(after.log.files), Hour.of(after.manifest), self.now)
        return f"<h2>Since yesterday</h2>{html_table(columns, rows)}" if rows else ""

    def _loops(self) -> str:
        sketch = self.status.after.sketch
        charts = [
            line_chart(
                f"loop {sketch.loop(loop)}: changed records by iteration",
                {f"epoch {epoch}": points for epoch, points in sorted(epochs.items())[-_LINES:]},
                x="iteration",
            )
            for loop, epochs in self.seen.convergence().items()
        ]
        return f'<h2>Loops</h2><div class="charts">{"".join(charts)}</div>' if charts else ""

    def _io(self) -> str:
        status, manifest = self.status, self.status.after.manifest
        inputs = [
            [
                name, "closed" if at is None else f"epoch {at}", str(replace(status.read[name], waiting=0)),
                status.read[name].backlog, line,
            ]
            for name, (at, line) in status.after.inputs.items()
        ]  # fmt: skip
        outputs = []
        for step in status.after.sketch.steps:
            if step.is_end:
                frontier = listed(list(map(time_text, manifest.frontier.get(step.name, [])))) or "complete"
                done = manifest.outputs.get(step.name, Delivered())
                commit = "none" if done.when is None else f"epoch {done.epoch} at {clock(done.when)}"
                outputs.append([step.name, frontier, commit, f"{done.records:,}", step.where])
        unread = [
            [name, reason]
            for account in status.read.values()
            for name, reason in list(account.names.items())[:5]
        ]
        not_read = f"<h3>Not read</h3>{html_table(['name', 'why'], unread)}" if unread else ""
        columns = ["output", "frontier", "last commit", "records", "line"]
        return (
            f"<h2>Inputs</h2>{html_table(['input', 'at', 'read', 'waits', 'line'], inputs)}{not_read}"
            f"<h2>Outputs</h2>{html_table(columns, outputs)}"
        )

    def _sizes(self) -> str:
        boxes = self.status.after.sketch.boxes(self.opened)
        took = by_box(self.seen.spent(), boxes)
        memory = by_box(self.status.after.manifest.memory_bytes, boxes)
        rows = [
            [
                name,
                frontier,
                "" if size is None else bytes_text(size),
                bytes_text(memory[name]) if memory[name] else "",
                seconds_text(took[name]) if took[name] else "",
            ]
            for name, frontier, size in steps(self.status.after.manifest, self.status.after.frontier, boxes)
        ]
        batches = self.history.batches
        charts = self._sizes_chart("state", [(one.ended, by_box(one.state_bytes, boxes)) for one in batches])
        charts += self._sizes_chart(
            "memory", [(one.ended, by_box(one.memory_bytes, boxes)) for one in batches]
        )
        workers = {f"worker {one}": ms / 1000 for one, ms in sorted(self.seen.took().items())}
        skew = f"<h3>Time by worker</h3>{bars(workers, seconds_text)}" if len(workers) > 1 else ""
        shown = html_table(["step", "frontier", "state", "memory", "time lately"], rows)
        return f'<h2>Steps</h2>{shown}<div class="charts">{charts}<div>{skew}</div></div>'

    def _sizes_chart(self, title: str, sizes: Sequence[tuple[float, Mapping[str, float]]]) -> str:
        """A line over time for each of the largest steps."""
        return self._over_time(f"{title} by step", largest_over_time(sizes, _LINES), y=bytes_text)

    def _usage(self) -> str:
        """The processes on this machine, and the files that are in memory."""
        if not self.usages:
            return ""
        cores: dict[str, list[Point]] = {}
        memory: dict[str, list[Point]] = {}
        files: dict[str, list[Point]] = {}
        for before, one in pairwise([self.usages[0], *self.usages]):
            for kind, processes in one.processes.items():
                memory.setdefault(kind, []).append((one.when, processes.memory))
                if one.when > before.when and kind in before.processes:
                    taken = max(0.0, processes.seconds - before.processes[kind].seconds)
                    cores.setdefault(kind, []).append((one.when, taken / (one.when - before.when)))
            for name, size in (("on disk", one.stored), ("in memory", one.cached)):
                if size is not None:
                    files.setdefault(name, []).append((one.when, size))
        shown = html_table(["", ""], list(self.usages[-1].lines()))
        charts = [
            self._over_time("cores", cores, y=number_text),
            self._over_time("memory of processes", memory, y=bytes_text),
            self._over_time("files of states and messages", files, y=bytes_text),
        ]
        return f'<h2>This machine</h2>{shown}<div class="charts">{"".join(charts)}</div>'


#: The largest state whose records are shown.
_SMALL = 1 << 20


def _sentence(text: str) -> str:
    """A text with a capital, unless it begins with code."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].rstrip(",;:").isalpha() else text


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table whose style is the page's."""
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escaped(value if isinstance(value, str) else cell(value))}</td>" for value in row)
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def _records_table(records: pa.Table) -> str:
    last = records.slice(max(0, records.num_rows - ROWS))
    names = [name.removeprefix(RESERVED) for name in last.schema.names]
    return html_table(names, [[cell(value) for value in row.values()] for row in last.to_pylist()])
