"""Scaling: with workers, on Spark and by counts; and with the data.

Two flows: "components", of random edges, a loop with an exchange in each hop; and "words", counted by word
and then by count, two exchanges and no loop. Epochs are alike and apart: each has nodes of its own.

1. On Spark, with 2 cores: the same data on 1, 2, 4 and 8 workers. More workers than cores can only cost:
   rounds and messages; the ratio to one worker says how much.
2. In the simulator, up to 64 workers: work is the time of all workers' steps, the critical path the slowest
   worker of each round, summed up; packing at the sources counts as shared by as many. The prediction for a
   cluster of nodes with 4 cores, a worker per core, is the critical path, the driver's turns, and the
   rounds at their price, which is measured here on Spark for a loop with next to no data, a micro-batch per
   round; the baseline is the same for one worker. What moving the bytes takes on a network is not in it.
   Balance is work / (workers x critical path): 1 is perfect.
3. Time per record as the data grows tenfold and again; `exponent` is that of a log-log fit over all sizes
   and `last` over the last two: 1 is linear, less means that a fixed cost is being spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, OURS, Report, median, slope, timed
from benchmarks.loops import as_flow, barriers, one_round_each, vector
from timely_spark import testing
from timely_spark.coordinator import Coordinator
from timely_spark.testing import Simulation
from timely_spark.worker import wire
from timely_spark.worker.wire import Message

CORES_PER_NODE = 4


def components() -> ts.Dataflow:
    """Connected components: the least node of each, as it is known after each epoch."""
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))

    def spread(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        least = proposed.min("component", keys=["node"], name="least")
        targets = least.join(proposed.scope.enter(both), left=["node"], right=["src"])
        return targets.select(node="dst", component="component"), least

    first = both.select(node="src", component=pc.min_element_wise(pc.field("src"), pc.field("dst")))
    first.loop(spread).capture("out")
    return flow


def random_edges(nodes: int, edges: int, *, seed: int = 1, first: int = 0) -> pa.Table:
    """Ends drawn at random."""
    ends = np.random.default_rng(seed).integers(first, first + nodes, (2, edges))
    return pa.table({"src": ends[0], "dst": ends[1]})


def words() -> ts.Dataflow:
    flow = ts.Dataflow("words")
    counted = flow.input("x", "word long").group_by("word").count("n")
    counted.group_by("n").count("words").capture("out")
    return flow


def edges(records: int, epoch: int) -> pa.Table:
    return random_edges(records // 2, records, seed=epoch, first=epoch * records)


def some_words(records: int, epoch: int) -> pa.Table:
    drawn = np.random.default_rng(epoch).integers(0, records // 4, records)
    return pa.table({"word": drawn + epoch * records})


Data = Callable[[int, int], pa.Table]
FLOWS: dict[str, tuple[Callable[[], ts.Dataflow], Data]] = {
    "components": (components, edges),
    "words": (words, some_words),
}


# -- in the simulator ----------------------------------------------------------------------------------------


@dataclass
class Path:
    """Seconds of packing, and by round of each worker's step and the coordinator; what was sent."""

    workers: int
    steps: list[list[float]] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    packing: float = 0.0
    bytes: int = 0
    messages: int = 0
    records: int = 0

    @property
    def rounds(self) -> int:
        return len(self.turns)

    @property
    def work(self) -> float:
        return self.packing + sum(map(sum, self.steps))

    @property
    def slowest(self) -> float:
        return self.packing / self.workers + sum(max(times, default=0.0) for times in self.steps)

    @property
    def balance(self) -> float:
        return self.work / (self.workers * self.slowest)

    def time(self, price: float) -> float:
        """What a cluster with a core per worker would take."""
        return self.slowest + sum(self.turns) + self.rounds * price


@contextmanager
def watching(path: Path) -> Iterator[None]:
    with (
        timed(testing, "pack") as packs,
        timed(testing, "step") as steps,
        timed(Coordinator, "apply_round") as turns,
    ):
        apply_round = Coordinator.apply_round

        def counted(coordinator: Coordinator, batch: int, rows: pa.Table, **options: Any) -> Any:
            found = apply_round(coordinator, batch, rows, **options)
            path.steps.append(steps.copy())
            steps.clear()
            sent = wire.only(rows, Message)
            path.messages += sent.num_rows
            path.bytes += sent["payload"].nbytes
            path.records += found.stats.get("records_sent", 0)
            return found

        with mock.patch.object(Coordinator, "apply_round", counted):
            yield
    path.packing += sum(packs)
    path.turns += turns


def simulated(build: Callable[[], ts.Dataflow], data: list[pa.Table], workers: int) -> list[Path]:
    """Each epoch's path; the first is warm-up."""
    simulation = Simulation(build(), workers=workers)
    found = []
    for table in data:
        path = Path(workers)
        with watching(path):
            simulation.send(simulation.plan.sources[0], table)
            simulation.run()
        found.append(path)
    return found[1:]


def by_counts(report: Report, price: float, *, quick: bool) -> None:
    records = 20_000 if quick else 300_000
    counts = [1, 4, 16] if quick else [1, 2, 4, 8, 16, 64]
    lines: dict[str, list[float]] = {}
    for name, (build, data) in FLOWS.items():
        times: list[float] = []
        for workers in counts:
            path = simulated(build, [data(records // 10, 0), data(records, 1)], workers)[0]
            times.append(path.time(price))
            parts = (path.slowest, sum(path.turns), path.rounds * price)
            slowest, driver, rounds = (f"{part:.2g}" for part in parts)
            report.add(
                f"{name}, {workers} workers on {-(-workers // CORES_PER_NODE)} nodes, predicted",
                ours=times[-1],
                baseline=times[0],
                against="1 worker",
                unit="s",
                note=f"path {slowest} + driver {driver} + rounds {rounds}; balance {path.balance:.2f}",
                rounds=path.rounds,
                records=records,
                work=path.work,
                path=path.slowest,
                driver=sum(path.turns),
                balance=path.balance,
                megabytes=path.bytes / 1e6,
                messages=path.messages,
                records_sent=path.records,
            )
        lines[name] = [times[0] / each for each in times]

    def draw(axes: Any) -> None:
        for name, ratios in lines.items():
            axes.loglog(counts, ratios, "o-", label=name)
        axes.loglog(counts, counts, "--", color=BASELINE, label="linear")
        axes.set(xlabel="workers", ylabel="predicted speed-up")
        axes.legend()

    report.plot("workers", draw)


# -- with the data -------------------------------------------------------------------------------------------


def by_size(report: Report, *, quick: bool) -> None:
    sizes = [3000, 30_000, 100_000] if quick else [10_000, 100_000, 1_000_000]
    lines: dict[str, list[float]] = {}
    for name, (build, data) in FLOWS.items():
        times, rounds = [], []
        for records in sizes:
            path = simulated(build, [data(min(records, 10_000), 0), data(records, 1)], 2)[0]
            times.append((path.work + sum(path.turns)) / records * 1e6)
            rounds.append(path.rounds)
        points = [(math.log(n), math.log(n * per)) for n, per in zip(sizes, times, strict=True)]
        lines[name] = times
        report.add(
            f"{name}, {sizes[-1]:,} records, each",
            ours=times[-1],
            baseline=times[0],
            against=f"{sizes[0]:,} records",
            unit="us",
            aim=">=0.5x",
            exponent=slope(points),
            last=slope(points[-2:]),
            rounds=rounds[-1],
        )

    def draw(axes: Any) -> None:
        for (name, times), colour in zip(lines.items(), (OURS, "#d1495b"), strict=True):
            axes.loglog(sizes, times, "o-", label=name, color=colour)
        axes.set(xlabel="records in an epoch", ylabel="us per record")
        axes.legend()

    report.plot("size", draw)


# -- on Spark ------------------------------------------------------------------------------------------------


def on_spark(report: Report, *, quick: bool) -> float:
    """Seconds that a round costs where it brings next to no data."""
    session = harness.spark("scaling")
    records, epochs = (20_000, 2) if quick else (100_000, 3)
    counts = [1, 4] if quick else [1, 2, 4, 8]
    for name, (build, data) in FLOWS.items():
        if quick and name == "words":
            continue
        tables = [data(records, epoch) for epoch in range(epochs)]
        first, results = 0.0, None
        for workers in counts:
            found = as_flow(session, build(), tables, workers=workers)
            assert results in (None, found.results), workers
            results = found.results
            took = median(found.times[1:])
            first = first or took
            report.add(
                f"{name}, {records:,} records, {workers} workers on Spark",
                ours=took,
                baseline=first,
                against="1 worker",
                rounds=found.rounds,
            )
    iterations = 8 if quick else 20
    few, many = (
        as_flow(session, barriers(n), [vector(0), vector(1)], **one_round_each()).times[-1]
        for n in (2, iterations)
    )
    price = (many - few) / (iterations - 2) / 1000
    report.add(
        "price of a round", ours=1000 * price, note="a micro-batch each, next to no data", rounds=iterations
    )
    session.stop()
    return price


def run(quick: bool) -> Report:
    report = Report("scaling", "Scaling: with workers, and with the data", quick=quick)
    price = on_spark(report, quick=quick)
    by_counts(report, price, quick=quick)
    by_size(report, quick=quick)
    report.write()
    return report
