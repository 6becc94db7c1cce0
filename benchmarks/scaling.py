"""Scaling: with workers, on Spark and by counts; and with the data.

Two flows: "components", of random edges, a loop with an exchange in each hop; and "words", counted by word and
then by count, two exchanges and no loop. Epochs are alike and apart: each has nodes of its own.

1. On Spark, with 2 cores: the same data on 1, 2, 4 and 8 workers. More workers than cores can only cost: rounds
   and messages; the ratio to one worker says how much.
2. In the simulator, up to 64 workers: work is the time of all workers' steps, the critical path the slowest
   worker of each round, summed up with the driver's turns. The predicted time on a cluster of nodes with 4 cores,
   a worker per core, is the critical path plus the rounds at their price, the latter as measured here on Spark for
   a loop with next to no data; ours is that prediction, the baseline the same for one worker. `balance` is work
   / (workers x critical path without the driver): 1 is perfect.
3. Time per record as the data grows tenfold and tenfold again; `exponent` is that of a log-log fit, 1 is linear.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, OURS, Report, median, slope
from benchmarks.loops import as_flow, barriers, components, one_round_each, random_edges, vector
from timely_spark import testing
from timely_spark.testing import Simulation
from timely_spark.worker import Coordinator

CORES_PER_NODE = 4


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
    """Seconds, by round: of each worker's step, and of the driver's turn; bytes and rows that were sent."""

    workers: int
    steps: list[list[float]] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0
    records: int = 0

    @property
    def rounds(self) -> int:
        return len(self.turns)

    @property
    def work(self) -> float:
        return sum(map(sum, self.steps))

    @property
    def slowest(self) -> float:
        return sum(max(times, default=0.0) for times in self.steps)

    @property
    def balance(self) -> float:
        return self.work / (self.workers * self.slowest)

    def time(self, price: float) -> float:
        """What a cluster with a core per worker would take."""
        return self.slowest + sum(self.turns) + self.rounds * price


@contextmanager
def watching(path: Path) -> Iterator[None]:
    step, turn = testing.step, Coordinator.turn
    times: list[float] = []

    def timed_step(*args: Any) -> Any:
        began = clock.perf_counter()
        found = step(*args)
        times.append(clock.perf_counter() - began)
        return found

    def timed_turn(coordinator: Coordinator, batch: int, rows: pa.Table) -> Any:
        began = clock.perf_counter()
        found = turn(coordinator, batch, rows)
        path.turns.append(clock.perf_counter() - began)
        path.steps.append(times.copy())
        times.clear()
        sent = rows.filter(pa.compute.equal(rows["kind"], "message"))
        path.messages += sent.num_rows
        path.bytes += sent["payload"].nbytes
        path.records += found.stats.get("records_sent", 0)
        return found

    with mock.patch.object(testing, "step", timed_step), mock.patch.object(Coordinator, "turn", timed_turn):
        yield


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
    sizes = [30_000] if quick else [100_000, 1_000_000]
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for name, (build, data) in FLOWS.items():
        for records in sizes:
            tables = [data(records, epoch) for epoch in range(2)]
            counts, times = [1, 2, 4, 8, 16, 64], []
            for workers in counts:
                path = simulated(build, tables, workers)[0]
                times.append(path.time(price))
                if workers in {1, 4, 16, 64}:
                    report.add(
                        f"{name}, {records:,} records, {workers} workers on {-(-workers // CORES_PER_NODE)} nodes",
                        ours=times[-1],
                        baseline=times[0],
                        against="1 worker",
                        unit="s",
                        note="predicted",
                        rounds=path.rounds,
                        work=path.work,
                        path=path.slowest,
                        driver=sum(path.turns),
                        balance=path.balance,
                        megabytes=path.bytes / 1e6,
                        messages=path.messages,
                        records_sent=path.records,
                    )
            lines[f"{name}, {records:,}"] = counts, [times[0] / each for each in times]

    def draw(axes: Any) -> None:
        for name, (counts, ratios) in lines.items():
            axes.loglog(counts, ratios, "o-", label=name)
        axes.loglog([1, 64], [1, 64], "--", color=BASELINE, label="linear")
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
    records, epochs = (20_000, 2) if quick else (100_000, 4)
    counts = [1, 2, 8] if quick else [1, 2, 4, 8]
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
    laps = 10 if quick else 20
    few, many = (
        as_flow(session, barriers(n), [vector(0), vector(1)], **one_round_each()).times[-1] for n in (2, laps)
    )
    price = (many - few) / (laps - 2) / 1000
    report.add("price of a round", ours=1000 * price, note="a micro-batch each, next to no data", rounds=laps)
    session.stop()
    return price


def run(quick: bool) -> Report:
    report = Report("scaling", "Scaling: with workers, and with the data", quick=quick)
    price = on_spark(report, quick=quick)
    by_counts(report, price, quick=quick)
    by_size(report, quick=quick)
    report.write()
    return report
