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

`python -m benchmarks.scaling spread --part predicted` measures some of the flows again, without executors and
at the prices of the last report, whose other rows stay.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import executors, harness
from benchmarks.executors import on_executors
from benchmarks.harness import BASELINE, Report, median, slope
from benchmarks.loops import as_flow, barriers, vector
from benchmarks.machine import commit
from benchmarks.predicted import Curve, Path, Prices, limits, simulated
from tests.support.standalone import Cluster
from timely_spark.graphs.edges import magnitude
from timely_spark.runtime.query.peers import Peers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


#: What can be measured again: times on Spark, what is predicted, and how it grows with the data.
PARTS = ("spark", "predicted", "size")
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


def by_counts(report: Report, prices: Prices, names: Iterable[str], *, quick: bool) -> None:
    """What is predicted of some flows."""
    weak = WEAK[:-1] if quick else WEAK
    series = [(name, 64_000, (1, 4, 16)) for name in FLOWS] if quick else SERIES
    for name, records, counts in series:
        if name in names:
            each = records // weak[-1]
            paths = {workers: predicted(name, records, workers) for workers in counts}
            equal_parts = {n: paths[n] if n == weak[-1] else predicted(name, each * n, n) for n in weak}
            _lines(report, f"{name}, {records:,} records in all", paths, prices, weak=False)
            _lines(report, f"{name}, {each:,} records for each", equal_parts, prices, weak=True)


def predicted(name: str, records: int, workers: int) -> Path:
    """The path of an epoch, after a small one."""
    build, data = FLOWS[ALONE.get(name, name) if workers == 1 else name]
    return simulated(build, [data(min(records, 20_000), 0), data(records, 1)], workers)[0]


def _lines(report: Report, case: str, paths: dict[int, Path], prices: Prices, *, weak: bool) -> None:
    """Rows of the times, and of processor time."""
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


def draw_counts(report: Report) -> None:
    """Plots of the rows of `by_counts`."""
    for kind, suffix, label in (
        ("in all", "workers", "predicted speed-up"),
        ("for each", "weak", "efficiency"),
    ):
        pattern = re.compile(rf"(.+) records {kind}, (\d+) workers, predicted")
        lines: dict[str, dict[int, float]] = {}
        for row in report.rows:
            if at := pattern.fullmatch(row["case"]):
                lines.setdefault(at[1], {})[int(at[2])] = row["ratio"]

        def draw(axes: Any, lines: dict[str, dict[int, float]] = lines, label: str = label) -> None:
            for case, ratios in lines.items():
                axes.loglog(list(ratios), list(ratios.values()), "o-", label=case)
            most = sorted({workers for ratios in lines.values() for workers in ratios})
            perfect = [1] * len(most) if label == "efficiency" else most
            axes.loglog(most, perfect, "--", color=BASELINE, label="perfect")
            axes.set(xlabel="workers", ylabel=label)
            axes.legend()

        report.plot(suffix, draw)


# -- with the data -------------------------------------------------------------------------------------------


def sizes(*, quick: bool) -> list[int]:
    return [3000, 30_000, 100_000] if quick else [10_000, 100_000, 1_000_000]


def by_size(report: Report, names: Iterable[str], *, quick: bool) -> None:
    """Rows of some flows, by the records of an epoch."""
    counts = sizes(quick=quick)
    for name in names:
        build, data = FLOWS[name]
        times, rounds = [], []
        for records in counts:
            path = simulated(build, [data(min(records, 10_000), 0), data(records, 1)], 2)[0]
            times.append((path.work + sum(path.turns)) / records * 1e6)
            rounds.append(path.rounds)
        points = [(math.log(n), math.log(n * per)) for n, per in zip(counts, times, strict=True)]
        report.add(
            f"{name}, {counts[-1]:,} records, each",
            ours=times[-1],
            baseline=times[0],
            against=f"{counts[0]:,} records",
            unit="us",
            aim=">=0.5x",
            exponent=slope(points),
            last=slope(points[-2:]),
            rounds=rounds[-1],
        )


def draw_sizes(report: Report, *, quick: bool) -> None:
    """A plot of the rows of `by_size`."""
    counts = sizes(quick=quick)

    def draw(axes: Any) -> None:
        for row in report.rows:
            if row["case"].endswith(" records, each"):
                middle = row["ours"] * (counts[2] / counts[1]) ** (1 - row["details"]["last"])
                times = [row["baseline"], middle, row["ours"]]
                axes.loglog(counts, times, "o-", label=row["case"].split(",")[0])
        axes.set(xlabel="records in an epoch", ylabel="us per record")
        axes.legend()

    report.plot("size", draw)


# -- on Spark ------------------------------------------------------------------------------------------------


def with_workers(report: Report, session: SparkSession, names: Iterable[str], *, quick: bool) -> None:
    """Wall-clock times of some flows on Spark, with several workers."""
    records, epochs = (20_000, 2) if quick else (100_000, 3)
    for name in names:
        build, data = FLOWS[name]
        tables = [data(records, epoch) for epoch in range(epochs)]
        first, results = 0.0, None
        for workers in [1, 4] if quick else [1, 2, 4, 8]:
            measured = as_flow(session, build(), tables, workers=workers)
            assert results in (None, measured.results), workers
            results = measured.results
            took = median(measured.times[1:])
            first = first or took
            report.add(
                f"{name}, {records:,} records, {workers} workers on Spark",
                ours=took,
                baseline=first,
                against="1 worker",
                rounds=measured.rounds,
            )


def measured_prices(report: Report, session: SparkSession, *, quick: bool) -> Prices:
    """What a prediction adds up; the session ends."""
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
            bytes=size,
            processor=1000 * busy,
        )
    return prices


def last_prices(rows: list[dict[str, Any]]) -> Prices:
    """The prices of a report."""
    by_case = {row["case"]: row["ours"] / 1000 for row in rows}
    exchanges = [row for row in rows if row["case"].startswith("price of an exchange")]
    of_size = tuple(row["details"]["bytes"] for row in exchanges)
    seconds = tuple(row["ours"] / 1000 for row in exchanges)
    busy = tuple(row["details"]["processor"] / 1000 for row in exchanges)
    both = (by_case[f"price of {what}"] for what in ("a micro-batch", "parallel tasks"))
    return Prices(*both, Curve(of_size, seconds), Curve(of_size, busy))


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
    session = harness.spark("scaling")
    with_workers(report, session, ("components",) if quick else FLOWS, quick=quick)
    prices = measured_prices(report, session, quick=quick)
    flows = ("words",) if quick else ("words", "pagerank")
    on_executors(report, {name: FLOWS[name] for name in flows}, prices, quick=quick)
    by_counts(report, prices, FLOWS, quick=quick)
    by_size(report, FLOWS, quick=quick)
    report.note(LEFT_OUT)
    return _written(report, quick=quick)


def again(names: list[str], parts: list[str]) -> Report:
    """Measure some flows again, and put their rows in the place of those of the last report."""
    last = json.loads((harness.RESULTS / "scaling.json").read_text(encoding="utf-8"))
    report, prices = Report("scaling", last["title"], quick=False), last_prices(last["rows"])
    if "spark" in parts:
        with_workers(report, harness.spark("scaling"), names, quick=False)
    if "predicted" in parts:
        by_counts(report, prices, names, quick=False)
    if "size" in parts:
        by_size(report, names, quick=False)
    rows = {row["case"]: row for row in report.rows}
    report.rows = [rows.pop(row["case"], row) for row in last["rows"]] + [*rows.values()]
    report.notes = last["notes"]
    if not any(note.startswith("Measured again ") for note in report.notes):
        report.note(f"Measured on {last['date'][:16]} at {last['commit']}, but for what was measured again.")
    now = datetime.now(timezone.utc).isoformat(timespec="minutes")[:16]
    report.note(f"Measured again on {now} at {commit()}: {', '.join(names)} ({', '.join(parts)}).")
    return _written(report, quick=False)


def _written(report: Report, *, quick: bool) -> Report:
    draw_counts(report)
    draw_sizes(report, quick=quick)
    report.write()
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=again.__doc__)
    parser.add_argument("name", nargs="+", choices=FLOWS)
    parser.add_argument("--part", action="append", choices=PARTS, help="by default all of these")
    args = parser.parse_args()
    again(args.name, args.part or list(PARTS))
