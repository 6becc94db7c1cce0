"""What progress tracking costs: bytes per round, and driver time as a flow grows. In the simulator, no Spark.

Traffic (Naiad Fig. 6c): workers report, once per round, the net change of each pointstamp's count. Beside
it stands what they would send if every message and every notification sent its own +1 and -1, counted from
the very same rounds, in the same encoding, from below: batches that were delivered together count as one
message.

Growth: one record goes round a loop between workers, so each round changes the same few counts. Around it
the flow grows: steps that wait below a record that cannot go on, workers with nothing to do, vertices that
wait for one input (in local rounds, in which workers live on), or epochs in flight. `ours` is the time at the
largest size and `baseline` at the smallest: a ratio of 1x is time proportional to what changes, as is an
exponent of 0 (of a log-log fit over the larger half of the sizes).
"tracker" is update, propagation and one frontier; "coordinator" the driver's whole turn, of which the
tracker is part; "workers" the rounds of those that run. "recomputed" finds all frontiers anew from all
pointstamps, with could-result-in known beforehand. Where the input's epoch advances, every frontier behind
it really changes: there the figure is per frontier changed.
"""

from __future__ import annotations

import gc
import json
import math
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

import timely_spark as ts
from benchmarks import scopes
from benchmarks.harness import BASELINE, OURS, Report, median, slope, timed
from benchmarks.loops import barriers, vector
from benchmarks.programs import flow_of
from benchmarks.scaling import components, random_edges
from timely_spark import testing
from timely_spark.coordinator import Coordinator
from timely_spark.testing import Simulation
from timely_spark.times import Antichain
from timely_spark.worker import Worker, wire
from timely_spark.worker.wire import Header, InputBatch, Message

WARM = 3
_timed = partial(timed, per_second=1e6)


# -- traffic -------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Per round: updates and bytes as reported, and as each event by itself would send them."""

    updates: list[int] = field(default_factory=list)
    raw: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)
    records: int = 0

    def watch(self, simulation: Simulation) -> None:
        def seen(batch: int, _worker: int, _state: Any, rows: pa.Table, header: Header, *after: Any) -> None:
            sent_rows = after[-1]
            while len(self.raw) <= batch:
                for counts in (self.updates, self.raw, self.sent, self.headers):
                    counts.append(0)
            came = wire.only(rows, Message, InputBatch).num_rows
            ((_, report),) = wire.read(sent_rows, wire.Report)
            stats, left = report.stats, wire.only(sent_rows, Message).num_rows
            notified = stats.get("notifications", 0)
            # sent away, come in, delivered here: each was counted up once, and down once
            here = max(0, stats.get("steps", 0) - notified - came)
            self.raw[batch] += left + came + 2 * here + 2 * notified
            self.updates[batch] += len(report.deltas)
            self.sent[batch] += len(json.dumps(report.deltas, separators=(",", ":")))
            self.headers[batch] += len(header.encode())
            self.records += stats.get("records", 0)

        simulation.on_step = seen

    @property
    def raw_bytes(self) -> float:
        """The raw updates at the mean size of one that was sent."""
        return sum(self.raw) * sum(self.sent) / max(1, sum(self.updates))


def word_count() -> ts.Dataflow:
    flow = ts.Dataflow("words")
    flow.input("words", "word long").group_by("word").count("n").group_by("n").count().capture("out")
    return flow


def flows(*, quick: bool) -> dict[str, tuple[Callable[[], ts.Dataflow], str, Any]]:
    edges = random_edges(*((5000, 10_000) if quick else (20_000, 40_000)))
    words = pa.table({"word": random_edges(1000, 20_000)["src"]})
    iterations = 20 if quick else 100
    return {
        "word count": (word_count, "words", words),
        "components": (components, "edges", edges),
        f"{iterations} barriers": (lambda: barriers(iterations), "x", vector(0)),
    }


def traffic(report: Report, *, quick: bool) -> None:
    workers = (2, 8, 32) if quick else (2, 8, 32, 64)
    lines: dict[str, dict[int, Traffic]] = {}
    for name, (build, source, data) in flows(quick=quick).items():
        lines[name] = {}
        for count in workers:
            simulation, counts = Simulation(build(), workers=count), Traffic()
            counts.watch(simulation)
            simulation.send(source, data)
            simulation.run()
            lines[name][count] = counts
            if count not in {8, workers[-1]}:
                continue
            rounds = simulation.rounds
            report.add(
                f"traffic: {name}, {count} workers",
                ours=sum(counts.sent) / rounds,
                baseline=counts.raw_bytes / rounds,
                against="each event by itself",
                unit="bytes/round",
                aim=">=1x",
                rounds=rounds,
                updates=sum(counts.updates) / rounds,
                raw=sum(counts.raw) / rounds,
                headers=sum(counts.headers) / rounds,
                records=counts.records / rounds,
            )

    def draw(axes: Any) -> None:
        axes.figure.clear()
        for at, (name, by) in zip(axes.figure.subplots(1, 3), lines.items(), strict=True):
            for label, colour, size in (
                ("each event by itself", BASELINE, lambda counts: counts.raw_bytes),
                ("net, per round", OURS, lambda counts: sum(counts.sent)),
            ):
                at.loglog(list(by), [size(counts) for counts in by.values()], "o-", color=colour, label=label)
            at.set(title=name, xlabel="workers", ylabel="bytes of progress")
        at.legend()

    report.plot("traffic", draw, size=(11, 3.5))


# -- growth --------------------------------------------------------------------------------------------------


class Token(ts.Vertex):
    """One record, which goes to another worker in each iteration."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"to": [time[-1] + 1]}))


class Wait(ts.Vertex):
    """Waits for its epoch."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"to": [0]}))


def waiting(flow: ts.Dataflow, stream: ts.Stream, steps: int, *, by: str | None = "to") -> None:
    for i in range(steps):
        stream = flow.vertex(Wait(), stream, "to long", by=by, name=f"wait{i}")
    stream.probe("end")


def token_flow(steps: int) -> ts.Dataflow:
    flow = ts.Dataflow("token")
    scope = flow.scope.inner(name="loop")
    variable = scope.variable(flow.input("token", "to long", epochs="manual"))
    variable.feed(flow.vertex(Token(), variable, "to long", by="to", name="ring"))
    variable.leave().probe("out")
    waiting(flow, flow.input("held", "to long", epochs="manual"), steps)
    return flow


def token(steps: int, workers: int, epochs: int, rounds: int) -> dict[str, float]:
    """Microseconds per round, medians."""
    simulation = Simulation(token_flow(steps), workers=workers)
    simulation.send("token", [0])
    simulation.advance_to("token", 1)
    for epoch in range(epochs):
        simulation.send("held", [epoch], epoch=epoch)
    working, header = [], []
    gc.collect()
    with (
        _timed(Coordinator, "apply_round") as turns,
        _timed(testing, "step") as steps_of,
    ):
        for _ in range(rounds + WARM):
            simulation.step()
            working.append(sum(steps_of))
            steps_of.clear()
            header.append(len(simulation.result.header.encode()))
    coordinator = simulation.coordinator
    return {
        "tracker": tracker_time(coordinator, rounds),
        "coordinator": median(turns[WARM:]),
        "workers": median(working[WARM:]),
        "snapshot": median(_time(coordinator.encode) for _ in range(7)),
        "recomputed": recomputed(coordinator),
        "header": median(header[WARM:]),
    }


def beside(vertices: int, rounds: int) -> dict[str, float]:
    """Microseconds per local round, medians, beside vertices that all wait for one input."""
    flow = token_flow(0)
    held = flow.input("waiting", "to long", epochs="manual")
    waits = [flow.vertex(Wait(), held, "to long", by="to", name=f"waits{i}") for i in range(vertices)]
    waits[0].concat(*waits[1:]).probe("ends")
    simulation = Simulation(flow, workers=2, rounds_per_batch=rounds + WARM)
    simulation.send("token", [0])
    simulation.advance_to("token", 1)
    simulation.send("waiting", [0, 1, 2, 3], epoch=0)
    gc.collect()
    with _timed(Coordinator, "apply_round") as turns, _timed(Worker, "step") as steps_of:
        simulation.step()
    return {"coordinator": median(turns[WARM:]), "workers": median(steps_of[WARM:])}


def tracker_time(coordinator: Coordinator, rounds: int) -> float:
    """The token's next iteration: two counts that change, and the frontiers that change by them."""
    tracker, plan = coordinator.tracker, coordinator.plan
    place, time = next(stamp for stamp in tracker.active if stamp[1].counters)
    location = next(node.arrives for node in plan.nodes if isinstance(node.template, Token))
    tracker.update([(place, time, -1), (location, time, +1)])
    iteration = plan.times.feedback(1)

    def advance() -> None:
        nonlocal time
        next_time = iteration.results_in(time)
        tracker.update([(location, next_time, +1), (location, time, -1)])
        assert tracker.frontier(location)
        time = next_time

    return median(_time(advance) for _ in range(10 * rounds))


def recomputed(coordinator: Coordinator) -> float:
    """All frontiers anew, from all pointstamps."""
    tracker, reach = coordinator.tracker, coordinator.plan.reach
    stamps = [*tracker.active, *tracker.inputs]
    paths = {location: reach.paths_from(location)[0] for location, _ in stamps}

    def find() -> dict[int, Antichain[Any]]:
        frontiers: dict[int, Antichain[Any]] = {}
        for location, time in stamps:
            for target, summaries in paths[location].items():
                at = frontiers.setdefault(target, Antichain())
                at.extend(next_time for s in summaries if (next_time := s.results_in(time)) is not None)
        return frontiers

    if sum(len(paths[location]) for location, _ in stamps) < 1_000_000:
        assert all(tracker.frontier(location) == frontier for location, frontier in find().items())
        return median(_time(find) for _ in range(3))
    return math.nan


def clocked(steps: int, rounds: int) -> dict[str, float]:
    """The input's epoch advances in each round, and with it every frontier behind: per frontier changed."""
    flow = ts.Dataflow("clocked")
    waiting(flow, flow.input("x", "to long"), steps, by=None)
    simulation = Simulation(flow, workers=2)
    with _timed(Coordinator, "apply_round") as turns:
        for _ in range(rounds + WARM):
            before = _frontiers(simulation)
            simulation.send("x", [0, 1])
            simulation.step()
    changed = sum(old != new for old, new in zip(before, _frontiers(simulation), strict=True))
    return {"coordinator": median(turns[WARM:]) / changed}


def _frontiers(simulation: Simulation) -> list[Antichain[Any]]:
    tracker = simulation.coordinator.tracker
    return [tracker.frontier(location) for location in range(tracker.reachability.n)]


def _time(function: Callable[[], object]) -> float:
    began = clock.perf_counter()
    function()
    return 1e6 * (clock.perf_counter() - began)


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Of the growth, over the larger half of the sizes."""
    points = [(math.log(x), math.log(y)) for x, y in zip(sizes, times, strict=True) if math.isfinite(y)]
    return slope(points[-max(2, (len(points) + 1) // 2) :])


def growth(report: Report, *, quick: bool) -> None:
    rounds = 25 if quick else 50
    axes_of: dict[str, tuple[list[int], Callable[[int], dict[str, float]]]] = {
        "steps": ([10, 100, 1000, *([] if quick else [10_000])], lambda n: token(n, 2, 1, rounds)),
        "workers": ([4, 16, 64, 256], lambda n: token(10, n, 1, rounds)),
        "vertices that wait": ([10, 100, 1000], lambda n: beside(n, rounds)),
        "epochs in flight": ([1, 10, 100, 1000], lambda n: token(10, 2, n, rounds)),
        "steps, by the clock": ([10, 100, *([] if quick else [1000])], lambda n: clocked(n, 10)),
    }
    lines: dict[str, tuple[list[int], dict[str, list[float]]]] = {}
    for name, (sizes, measure) in axes_of.items():
        measured = [measure(size) for size in sizes]
        by = {part: [parts[part] for parts in measured] for part in measured[0]}
        lines[name] = sizes, by
        for part in ("tracker", "coordinator", "workers"):
            if part in by:
                report.add(
                    f"{part}: {sizes[-1]:,} {name}",
                    ours=by[part][-1],
                    baseline=by[part][0],
                    against=f"{sizes[0]} {name}",
                    unit="us",
                    aim=">=0.5x",
                    exponent=exponent(sizes, by[part]),
                    note=f"header {by['header'][0]:,.0f} -> {by['header'][-1]:,.0f} bytes"
                    if part == "coordinator" and "header" in by
                    else "",
                )
        finite = [i for i, value in enumerate(by.get("recomputed", ())) if math.isfinite(value)]
        if finite and name != "workers":  # of which the tracker knows nothing
            report.add(
                f"tracker: {sizes[finite[-1]]:,} {name}",
                ours=by["tracker"][finite[-1]],
                baseline=by["recomputed"][finite[-1]],
                against="recomputed",
                unit="us",
                aim=">=1x",
            )

    def draw(axes: Any) -> None:
        axes.figure.clear()
        colours = {"tracker": OURS, "coordinator": "#d1495b", "workers": "#edae49", "recomputed": BASELINE}
        for at, (name, (sizes, by)) in zip(axes.figure.subplots(1, len(lines)), lines.items(), strict=True):
            for part, colour in colours.items():
                if part in by:
                    at.loglog(sizes, by[part], "o-", color=colour, label=part)
            at.set(xlabel=name, ylabel="us per frontier" if "clock" in name else "us per round")
            at.legend()

    report.plot("growth", draw, size=(14, 3.5))


def run(quick: bool) -> Report:
    report = Report("progress", "Progress: its traffic, and what it costs as a flow grows", quick=quick)
    traffic(report, quick=quick)
    growth(report, quick=quick)
    scopes.synthetic(report, quick=quick)
    edges = random_edges(300, 600)
    weights = pa.array([1] * edges.num_rows)
    weighted = edges.append_column("weight", weights).append_column("diff", weights)
    programs = {name: (partial(flow_of, name), "edges", weighted) for name in ("pagerank", "scc")}
    scopes.real(report, flows(quick=True) | programs)
    report.write()
    return report
