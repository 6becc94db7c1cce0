"""Scaling: with workers, with executors, and with the data.

Five flows: "components", of random edges, a loop of labels with an exchange in each hop; "forests", the same
by the library's `connected_components` as with few workers, two exchanges and no loop; "spread", as with 16
and more, against one worker of "forests"; "words", counted by word and then by count, two exchanges and no
loop; "pagerank", five iterations over a collection. Epochs are alike and apart: each has nodes of its own.

1. On Spark, with 2 cores: the same data on 1, 2, 4 and 8 workers. More workers than cores can only cost:
   rounds and messages; the ratio to one worker says how much.
2. The same with executors, processes of one core each, of a local-cluster and of a standalone cluster, all on
   this machine: 1, 2 and 4 of them (`executors`). Four can only cost here, too. Beside each stands what is
   predicted of so many processes, and the error of that.
3. Prices, measured here: a micro-batch with next to no data; parallel tasks that stay (`resident=True`); and
   between two processes over loopback, an exchange of 16 bytes to 64 MB.
4. In the simulator, which predicts what a cluster takes (`predicted` says how, and what it assumes): strong
   scaling (the same data) and weak scaling (as much data for each worker), up to 256 workers; 64 workers
   are 16 nodes of four. The note says what limits a line: the part that most exceeds a perfect one, where
   all parts of one worker's epoch are divided by the workers (strong), or stay (weak). The growth of
   processor time is that of all workers, coordinators and exchanges, without the fixed costs.
5. Time per record as the data grows tenfold and again; `exponent` is that of a log-log fit over all sizes
   and `last` over the last two: 1 is linear, less means that a fixed cost is being spread.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import executors, harness
from benchmarks.executors import on_executors
from benchmarks.harness import BASELINE, Report, median, slope
from benchmarks.loops import as_flow, barriers, vector
from benchmarks.predicted import Curve, Path, Prices, limits, simulated
from tests.support.standalone import Cluster
from timely_spark.graphs.edges import magnitude
from timely_spark.runtime.query.peers import Peers

#: The most epochs of a series.
EPOCHS = 16


def components() -> ts.Dataflow:
    """The least node of each component, by labels that enter by magnitude: see docs/graphs.md."""
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long").collection()
    links = edges.concat(edges.select(src="dst", dst="src")).arrange("src")
    own, loop = links.select(node="src", label="src").distinct(), edges.scope.inner()
    passed = own.where(pc.scalar(False)).variable(loop)  # noqa: FBT003 - empty at first
    least = passed.concat(own.enter_at(loop, magnitude(pc.field("label")))).min("label", keys="node")
    met = least.join(links, left="node", right="src")
    passed.set(met.select(node="dst", label="label"), consolidate=False)
    least.leave().changes().capture("out")
    return flow


def random_edges(nodes: int, edges: int, *, seed: int = 1, first: int = 0) -> pa.Table:
    """Ends drawn at random."""
    ends = np.random.default_rng(seed).integers(first, first + nodes, (2, edges))
    return pa.table({"src": ends[0], "dst": ends[1]})


def forests() -> ts.Dataflow:
    """Connected components by spanning forests, incremental."""
    flow = ts.Dataflow("forests")
    links = flow.input("edges", "src long, dst long").collection()
    ts.graphs.connected_components(links, spread=False).changes().capture("out")
    return flow


def spread() -> ts.Dataflow:
    """The same with the nodes spread over all workers."""
    flow = ts.Dataflow("spread")
    links = flow.input("edges", "src long, dst long").collection()
    ts.graphs.connected_components(links, spread=True).changes().capture("out")
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
    """Nodes of an epoch are the numbers that leave it as remainder, so they are of all magnitudes."""
    drawn = random_edges(records // 2, records, seed=epoch)
    return pa.table({end: pc.add(pc.multiply(drawn[end], EPOCHS), epoch) for end in drawn.column_names})


def some_words(records: int, epoch: int) -> pa.Table:
    drawn = np.random.default_rng(epoch).integers(0, records // 4, records)
    return pa.table({"word": drawn + epoch * records})


Data = Callable[[int, int], pa.Table]
FLOWS: dict[str, tuple[Callable[[], ts.Dataflow], Data]] = {
    "components": (components, edges),
    "forests": (forests, edges),
    "spread": (spread, edges),
    "words": (words, some_words),
    "pagerank": (pagerank, edges),
}


#: What one worker does instead, which needs no places.
ALONE = {"spread": "forests"}

# -- predicted -----------------------------------------------------------------------------------------------

#: Flow, records in all, workers. The records for each of `WEAK[-1]` workers are those of all weak lines.
Series = tuple[str, int, tuple[int, ...]]
SERIES: tuple[Series, ...] = (
    ("words", 10_000_000, (1, 4, 16, 64, 256)),
    ("words", 100_000_000, (1, 16, 64, 256)),
    ("pagerank", 10_000_000, (1, 16, 64)),
    ("forests", 10_000_000, (1, 4, 16, 64, 256)),
    ("spread", 10_000_000, (1, 16, 64)),
    ("components", 3_200_000, (1, 16, 64)),
)
WEAK = (1, 4, 16, 64)
LEFT_OUT = (
    "Not predicted: 100 million records of other flows than words, since the simulator holds all states "
    "and messages in one process (PageRank of 10 million: 6 GB); and because it runs all tasks in turn, "
    "more than 3.2 million records of the loop of labels, and 256 workers of that and of PageRank."
)


def by_counts(report: Report, prices: Prices, *, quick: bool) -> None:
    weak = WEAK[:-1] if quick else WEAK
    series = [(name, 64_000, (1, 4, 16)) for name in FLOWS] if quick else SERIES
    lines: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
    for name, records, counts in series:
        each = records // weak[-1]
        paths = {workers: predicted(name, records, workers) for workers in counts}
        alike = {n: paths[n] if n == weak[-1] else predicted(name, each * n, n) for n in weak}
        lines[f"{name}, {records:,}"] = (
            _lines(report, f"{name}, {records:,} records in all", paths, prices, weak=False),
            _lines(report, f"{name}, {each:,} records for each", alike, prices, weak=True),
        )
    report.note(LEFT_OUT)

    for weak_ones, suffix, label in ((False, "workers", "predicted speed-up"), (True, "weak", "efficiency")):
        shown = {case: both[weak_ones] for case, both in lines.items()}

        def draw(axes: Any, shown: Any = shown, weak_ones: bool = weak_ones, label: str = label) -> None:
            for case, ratios in shown.items():
                axes.loglog(list(ratios), list(ratios.values()), "o-", label=case)
            most = sorted({workers for ratios in shown.values() for workers in ratios})
            perfect = [1] * len(most) if weak_ones else most
            axes.loglog(most, perfect, "--", color=BASELINE, label="perfect")
            axes.set(xlabel="workers", ylabel=label)
            axes.legend()

        report.plot(suffix, draw)


def predicted(name: str, records: int, workers: int) -> Path:
    """The path of an epoch, after a small one."""
    build, data = FLOWS[ALONE.get(name, name) if workers == 1 else name]
    return simulated(build, [data(min(records, 20_000), 0), data(records, 1)], workers)[0]


def _lines(
    report: Report, case: str, paths: dict[int, Path], prices: Prices, *, weak: bool
) -> dict[int, float]:
    """The ratios of the time of one worker to the time of several; rows of these, and of processor time."""
    parts = {workers: path.parts(prices) for workers, path in paths.items()}
    times = {workers: sum(of.values()) for workers, of in parts.items()}
    one, last = parts[1], max(workers for workers in paths if workers <= WEAK[-1])
    growth = {
        workers: path.processor(prices) / paths[1].processor(prices) / (workers if weak else 1)
        for workers, path in paths.items()
    }
    for workers, path in paths.items():
        (most, excess), *_ = limits(parts[workers], one, 1 if weak else 1 / workers)
        limit = f"{most} {excess:+.2g} s" if workers > 1 else ""
        seconds = " + ".join(f"{part} {took:.2g}" for part, took in parts[workers].items() if took)
        report.add(
            f"{case}, {workers} workers, predicted",
            ours=times[workers],
            baseline=times[1],
            against="1 worker",
            unit="s",
            aim=">=0.7x" if weak and workers == last else "",
            note=f"limit: {limit}; {path.rounds} rounds: {seconds}" if limit else seconds,
            limit=limit,
            rounds=path.rounds,
            balance=path.balance,
            cpu=growth[workers],
            megabytes=sum(int(sent.sum()) for sent in path.sent) / 1e6,
            messages=path.messages,
        )
    if not weak:
        report.add(
            f"{case}, {last} workers, processor time over that of 1",
            ours=growth[last],
            unit="times",
            aim="<1.3",
            note=", ".join(
                f"{workers} workers {times:.2f}" for workers, times in growth.items() if workers > 1
            ),
        )
    return {workers: times[1] / took for workers, took in times.items()}


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
            result = as_flow(session, build(), tables, workers=workers)
            assert results in (None, result.results), workers
            results = result.results
            took = median(result.times[1:])
            first = first or took
            report.add(
                f"{name}, {records:,} records, {workers} workers on Spark",
                ours=took,
                baseline=first,
                against="1 worker",
                rounds=result.rounds,
            )
    micro_batch = median(as_flow(session, barriers(1), [vector(n) for n in range(6)], workers=1).times[2:])
    vectors = [vector(n) for n in range(6 if quick else 16)]
    alone = median(as_flow(session, barriers(8), vectors).times[2:])
    session.stop()
    with (
        Cluster(harness.folder() / "cluster", workers=2) as cluster,
        executors.session(cluster.url, 2) as spark,
    ):
        staying = median(as_flow(spark, barriers(8), vectors, resident=True).times[2:])
    exchange, processor = between_two(quick=quick)
    prices = Prices(micro_batch / 1000, max(0.0, staying - alone) / 1000, exchange, processor)
    report.add("price of a micro-batch", ours=micro_batch, note="next to no data")
    report.add(
        "price of parallel tasks",
        ours=staying - alone,
        note="that stay in two executors, beside two workers in the driver; 8 small rounds",
    )
    for size, seconds, busy in zip(exchange.sizes, exchange.seconds, processor.seconds, strict=True):
        amount = f"{size} bytes" if size < 1 << 20 else f"{size >> 20} MB"
        report.add(
            f"price of an exchange of {amount}",
            ours=1000 * seconds,
            note=f"each way, between two processes; each {1000 * busy:.2g} ms of processor time",
        )
    return prices


def between_two(*, quick: bool) -> tuple[Curve, Curve]:
    """Seconds, and those of its processor, of a process that sends and is sent some bytes, one to one."""
    schema, token = pa.schema([("payload", pa.binary())]), bytes(32)
    ours, child_end = multiprocessing.Pipe()
    plan = [(16, 500), (1 << 20, 50), (16 << 20, 10), (64 << 20, 2 if quick else 5)]

    def work(rank: int, pipe: Any) -> list[tuple[float, float]]:
        curve = []
        with Peers(rank, 2, "127.0.0.1", token, schema) as peers:
            pipe.send(peers.address)
            address = pipe.recv()
            peers.connect(lambda _: address)
            for size, times in plan:
                table = pa.table([[random.Random(rank).randbytes(size)]], schema=schema)
                peers.swap([table, table])  # both are ready
                began, processor = time.perf_counter(), time.process_time()
                for _ in range(times):
                    peers.swap([table, table])
                took = time.perf_counter() - began, time.process_time() - processor
                curve.append((took[0] / times, took[1] / times))
            pipe.send(None)
            pipe.recv()
        return curve

    child = os.fork()
    if child == 0:
        work(1, child_end)
        os._exit(0)
    times, processor = zip(*work(0, ours), strict=True)
    os.waitpid(child, 0)
    sizes = tuple(size for size, _ in plan)
    return Curve(sizes, times), Curve(sizes, processor)


def run(quick: bool) -> Report:
    report = Report("scaling", "Scaling: with workers, with executors, and with the data", quick=quick)
    prices = on_spark(report, quick=quick)
    flows = ("words",) if quick else ("words", "pagerank")
    on_executors(report, {name: FLOWS[name] for name in flows}, prices, quick=quick)
    by_counts(report, prices, quick=quick)
    by_size(report, quick=quick)
    report.write()
    return report
