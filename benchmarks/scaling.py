"""Scaling: with workers, and with the data.

Four flows: "components", of random edges, a loop with an exchange in each hop; "forests", the same by the
library's `connected_components`, two exchanges and no loop; "words", counted by word and then by count, two
exchanges and no loop; "pagerank", five iterations over a collection. Epochs are alike and apart: each has
nodes of its own.

1. On Spark, with 2 cores: the same data on 1, 2, 4 and 8 workers. More workers than cores can only cost:
   rounds and messages; the ratio to one worker says how much.
2. Prices, measured here: a micro-batch with next to no data; the start of parallel tasks; and between two
   processes over loopback, an exchange of next to nothing, and the bytes of a large one.
3. In the simulator: strong scaling (the same data) and weak scaling (as much data for each worker). Work is
   the time of all workers' steps, the critical path the slowest worker of each round, summed up. The further
   rounds of a batch are those of a parallel stage, with a task for each worker, as on a cluster that has a
   core for each; the prediction is a micro-batch; the start of parallel tasks where there is a second round;
   the critical path; the coordinator, which each task runs for itself, with what it makes ready for the
   exchange; and in each round an exchange with each peer, and the bytes of the task that is sent most. A
   network slower than loopback is not in it. Balance is work / (workers x critical path): 1 is perfect.
4. Time per record as the data grows tenfold and again; `exponent` is that of a log-log fit over all sizes
   and `last` over the last two: 1 is linear, less means that a fixed cost is being spread.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, Report, median, slope, timed
from benchmarks.loops import as_flow, barriers, vector
from timely_spark import testing
from timely_spark.coordinator import OUTPUTS, Bound, Coordinator, Share, merged_snapshot, run_local_rounds
from timely_spark.runtime.query import rounds
from timely_spark.runtime.query.peers import Peers
from timely_spark.testing import Simulation
from timely_spark.worker import Worker


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


def forests() -> ts.Dataflow:
    """Connected components by spanning forests, incremental."""
    flow = ts.Dataflow("forests")
    links = flow.input("edges", "src long, dst long").collection()
    ts.graphs.connected_components(links).changes().capture("out")
    return flow


def words() -> ts.Dataflow:
    flow = ts.Dataflow("words")
    counted = flow.input("x", "word long").group_by("word").count("n")
    counted.group_by("n").count("words").capture("out")
    return flow


def pagerank() -> ts.Dataflow:
    flow = ts.Dataflow("pagerank")
    links = flow.input("edges", "src long, dst long").collection()
    ts.graphs.pagerank(links, 5).changes().capture("out")
    return flow


def edges(records: int, epoch: int) -> pa.Table:
    return random_edges(records // 2, records, seed=epoch, first=epoch * records)


def some_words(records: int, epoch: int) -> pa.Table:
    drawn = np.random.default_rng(epoch).integers(0, records // 4, records)
    return pa.table({"word": drawn + epoch * records})


Data = Callable[[int, int], pa.Table]
FLOWS: dict[str, tuple[Callable[[], ts.Dataflow], Data]] = {
    "components": (components, edges),
    "forests": (forests, edges),
    "words": (words, some_words),
    "pagerank": (pagerank, edges),
}


# -- in the simulator ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prices:
    """Seconds of a micro-batch, of starting parallel tasks, of an exchange; and the speed of exchanges."""

    micro_batch: float
    stage: float
    exchange: float
    bytes_per_second: float


@dataclass
class Path:
    """Seconds of packing, and by round of the workers' steps and of all else; what was sent."""

    processes: int
    #: by round, of each process
    steps: list[list[float]] = field(default_factory=list)
    #: by round what a process does besides, in the mean: coordinator, and rows for the exchange
    turns: list[float] = field(default_factory=list)
    packing: float = 0.0
    messages: int = 0
    #: by round but the first, the most bytes that a process is sent
    received: list[int] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.turns)

    @property
    def work(self) -> float:
        return self.packing + sum(map(sum, self.steps))

    @property
    def slowest(self) -> float:
        return self.packing / self.processes + sum(max(times, default=0.0) for times in self.steps)

    @property
    def balance(self) -> float:
        return self.work / (self.processes * self.slowest)

    def parts(self, prices: Prices) -> dict[str, float]:
        """Seconds on a cluster with a core per process, by what takes them."""
        further = self.rounds - 1
        return {
            "path": self.slowest,
            "micro-batch": prices.micro_batch,
            "tasks": prices.stage if further and self.processes > 1 else 0.0,
            "coordinator": sum(self.turns),
            "exchanges": further * (self.processes - 1) * prices.exchange
            + sum(self.received) / prices.bytes_per_second,
        }


class Cluster(Simulation):
    """The simulator, with the further rounds of a batch as the tasks of a parallel stage run them.

    Each task is a thread with a share of the workers, and they run in turn, from exchange to exchange.
    """

    def __init__(self, flow: ts.Dataflow, *, workers: int, processes: int) -> None:
        super().__init__(flow, workers=workers)
        self.processes, self.path = processes, Path(processes)

    def epoch(self, table: pa.Table) -> Path:
        """The path of an epoch with these records."""
        self.path = path = Path(self.processes)
        with (
            timed(testing, "pack") as packs,
            timed(testing, "step") as self._first,
            timed(Coordinator, "apply_round") as self._applied,
        ):
            self.send(self.plan.sources[0], table)
            self.run()
        path.packing = sum(packs)
        return path

    def _local_rounds(self, point: Iterator[None]) -> None:
        path, bound = self.path, Bound.any_size(100)
        path.steps.append([sum(self._first[rank :: self.processes]) for rank in range(self.processes)])
        path.turns.append(self._applied[-1])
        path.messages += self.result.stats["rows_in_flight"]
        self._first.clear()
        if bound.allows(self.result):
            self._stage(bound, Turns(self.processes))

    def _stage(self, bound: Bound, turns: Turns) -> None:
        start = replace(self.result, outputs=OUTPUTS.empty_table(), released=[])
        before, ended = json.dumps(self.coordinator.encode()), dict[int, Any]()

        def task(rank: int) -> None:
            with turns.of(rank):
                share = Share(rank, self.processes, partial(turns.swap, rank))
                own = Coordinator.decode(self.plan, json.loads(before))
                states = {n: state for n, state in enumerate(self.states) if state and share.hosts(n)}
                result, workers = run_local_rounds(own, start, states, bound, share=share)
                for index, worker in workers.items():
                    self.states[index] = worker.checkpoint(f"{index}-{self.batch}")
                ended[rank] = own.encode(), result

        step = Worker.step

        def stepped(worker: Worker, *args: Any) -> pa.Table:
            began = time.perf_counter()
            rows = step(worker, *args)
            turns.steps += time.perf_counter() - began
            return rows

        with mock.patch.object(Worker, "step", stepped):
            threads = [threading.Thread(target=task, args=(rank,)) for rank in range(self.processes)]
            for thread in threads:
                thread.start()
            turns.gates[0].release()
            for thread in threads:
                thread.join()
        self.coordinator = Coordinator.decode(
            self.plan, merged_snapshot([ended[rank][0] for rank in sorted(ended)])
        )
        results = [ended[rank][1] for rank in sorted(ended)]
        outputs, released = self.result.outputs, self.result.released
        self.result = replace(
            results[0],
            rows=pa.concat_tables([one.rows for one in results]),
            outputs=pa.concat_tables([outputs, *(one.outputs for one in results)]),
            released=[*released, *results[0].released],
        )
        for times in turns.laps:
            self.path.steps.append([steps for steps, _ in times])
            self.path.turns.append(sum(all_ - steps for steps, all_ in times) / self.processes)
        self.path.received += turns.received
        self.path.messages += results[0].stats.get("sent", 0) - start.stats.get("sent", 0)


class Turns:
    """Tasks in turn: each runs until it swaps, and goes on when all others have done so."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.gates = [threading.Semaphore(0) for _ in range(processes)]
        self.sent: list[list[list[pa.Table]]] = []
        #: of each round, by rank the seconds of the steps, and of all
        self.laps: list[list[tuple[float, float]]] = []
        self.steps, self.began = 0.0, 0.0

    @property
    def received(self) -> list[int]:
        """The most bytes that a task was sent in each round."""
        ranks = range(self.processes)
        return [max(sum(sent[r][to].nbytes for r in ranks if r != to) for to in ranks) for sent in self.sent]

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """A task's turns: the body begins with the first."""
        self._wait(rank)
        yield
        self._lap(rank, len(self.sent))
        self.gates[(rank + 1) % self.processes].release()

    def swap(self, rank: int, parts: list[pa.Table]) -> list[pa.Table]:
        """As `Share.swap`."""
        if rank == 0:
            self.sent.append([])
        sent = self.sent[-1]
        self._lap(rank, len(self.sent) - 1)
        sent.append(parts)
        self.gates[(rank + 1) % self.processes].release()
        self._wait(rank)
        return [parts[rank] for parts in sent]

    def _wait(self, rank: int) -> None:
        self.gates[rank].acquire()
        self.began, self.steps = time.perf_counter(), 0.0

    def _lap(self, rank: int, number: int) -> None:
        if number == len(self.laps):
            self.laps.append([])
        self.laps[number].append((self.steps, time.perf_counter() - self.began))


def simulated(build: Callable[[], ts.Dataflow], data: list[pa.Table], workers: int) -> list[Path]:
    """Each epoch's path, with a process for each worker; the first is warm-up."""
    cluster = Cluster(build(), workers=workers, processes=workers)
    return [cluster.epoch(table) for table in data][1:]


def by_counts(report: Report, prices: Prices, *, quick: bool) -> None:
    for weak in (False, True):
        records = (5_000 if quick else 50_000) if weak else (20_000 if quick else 1_000_000)
        counts = [1, 4, 16] if quick else [1, 2, 4, 16, 64]
        lines = {name: _predicted(report, name, prices, counts, records=records, weak=weak) for name in FLOWS}

        def draw(axes: Any, counts: list[int] = counts, weak: bool = weak, lines: Any = lines) -> None:
            for name, ratios in lines.items():
                axes.loglog(counts, ratios, "o-", label=name)
            axes.loglog(counts, [1] * len(counts) if weak else counts, "--", color=BASELINE, label="perfect")
            axes.set(xlabel="workers", ylabel="efficiency" if weak else "predicted speed-up")
            axes.legend()

        report.plot("weak" if weak else "workers", draw)


def _predicted(
    report: Report, name: str, prices: Prices, counts: list[int], *, records: int, weak: bool
) -> list[float]:
    """The ratios of the time of one worker to the time of several."""
    build, data = FLOWS[name]
    times: list[float] = []
    work = 0.0
    for workers in counts:
        many = records * workers if weak else records
        path = simulated(build, [data(many // 10, 0), data(many, 1)], workers)[0]
        parts = path.parts(prices)
        times.append(sum(parts.values()))
        per_record = (path.work + workers * sum(path.turns)) / many
        work = work or per_record
        each = "for each" if weak else "in all"
        report.add(
            f"{name}, {records:,} records {each}, {workers} workers, predicted",
            ours=times[-1],
            baseline=times[0],
            against="1 worker",
            unit="s",
            aim=">=0.7x" if weak and workers == counts[-1] else "",
            note=" + ".join(f"{part} {seconds:.2g}" for part, seconds in parts.items() if seconds),
            rounds=path.rounds,
            balance=path.balance,
            cpu=per_record / work,
            megabytes=sum(path.received) / 1e6,
            messages=path.messages,
        )
    return [times[0] / each for each in times]


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
        for name, times in lines.items():
            axes.loglog(sizes, times, "o-", label=name)
        axes.set(xlabel="records in an epoch", ylabel="us per record")
        axes.legend()

    report.plot("size", draw)


# -- on Spark ------------------------------------------------------------------------------------------------


def on_spark(report: Report, *, quick: bool) -> Prices:
    """Wall-clock times on Spark, and what a prediction adds up."""
    session = harness.spark("scaling")
    records, epochs = (20_000, 2) if quick else (100_000, 3)
    counts = [1, 4] if quick else [1, 2, 4, 8]
    for name, (build, data) in FLOWS.items():
        if quick and name != "components":
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
    micro_batch = median(as_flow(session, barriers(1), [vector(n) for n in range(6)], workers=1).times[2:])
    small = rounds.SMALL
    times = []
    for bound in (small, replace(small, exchanged=-1)):
        rounds.SMALL = bound
        times.append(median(as_flow(session, barriers(8), [vector(n) for n in range(6)]).times[2:]))
    rounds.SMALL = small
    session.stop()
    exchange, bytes_per_second = between_two()
    prices = Prices(micro_batch / 1000, max(0.0, times[1] - times[0]) / 1000, exchange, bytes_per_second)
    report.add("price of a micro-batch", ours=micro_batch, note="next to no data")
    report.add("price of parallel tasks", ours=1000 * prices.stage, note="their start; 8 small rounds")
    report.add("price of an exchange", ours=1e6 * exchange, unit="us", note="16 bytes between two processes")
    report.add("price of 64 MB", ours=1000 * (64 << 20) / bytes_per_second, note="each way")
    return prices


def between_two() -> tuple[float, float]:
    """Seconds of an exchange of 16 bytes, and bytes per second of one of 64 MB, between two processes."""
    schema, token = pa.schema([("payload", pa.binary())]), bytes(32)
    ours, theirs = multiprocessing.Pipe()
    plan = [(16, 500), (64 << 20, 5)]

    def work(rank: int, pipe: Any) -> list[float]:
        found = []
        with Peers(rank, 2, "127.0.0.1", token, schema) as peers:
            pipe.send(peers.address)
            address = pipe.recv()
            peers.connect(lambda _: address)
            for size, times in plan:
                table = pa.table([[bytes(size)]], schema=schema)
                began = time.perf_counter()
                for _ in range(times):
                    peers.swap([table, table])
                found.append((time.perf_counter() - began) / times)
            pipe.send(None)
            pipe.recv()
        return found

    child = os.fork()
    if child == 0:
        work(1, theirs)
        os._exit(0)
    small, large = work(0, ours)
    os.waitpid(child, 0)
    return small, plan[1][0] / large


def run(quick: bool) -> Report:
    report = Report("scaling", "Scaling: with workers, and with the data", quick=quick)
    prices = on_spark(report, quick=quick)
    by_counts(report, prices, quick=quick)
    by_size(report, quick=quick)
    report.write()
    return report
