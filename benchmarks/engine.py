"""The incremental engine beside its peers, epoch after epoch of a graph that changes.

A graph with weights from 1 to 99 is loaded and then changed: three times by 1,000 edges that come and 1,000
that go (fewer in a small graph); by 1 % of its edges, half of which come; twice by one edge. All sides get
the same changes, and after each epoch their answers must be the same.

- ours: the engine without Spark, one worker and its coordinator in one process, in memory. `checkpoint` is a
  column of its own: large parts of a state are blobs in memory there.
- differential: the same program in differential-dataflow (Rust), one worker, in memory. Its bytes of state
  are those that its process has resident after the last epoch, and had not before the first; ours are those
  of the last checkpoint.
- scipy: what it takes to compute the answer anew, with scipy and numpy in one thread, given arrays. The share
  of changed edges from which on that is faster (COST) is estimated from these.

All this is processor time, which other work on the machine disturbs less than the wall clock. No side's time
has the reading of files in it. GraphX is measured by `benchmarks.graphs`.

"On Spark" is the wall clock, from the sending of the changes to the answer in the driver: a streaming query
of one worker, checkpoints included. Pathway runs its own PageRank, whose rule `ts.graphs.pagerank` follows
when asked, on one worker; there edges only come, 1,000 in an epoch.

`python -m benchmarks.engine sssp uniform 100k` measures one program on one graph.
"""

from __future__ import annotations

import cProfile
import json
import math
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.alone import Engine, hottest
from benchmarks.baselines import built, trace
from benchmarks.changing import LOAD, ONE, PERCENT, PROFILED, SEED, Graph, graph_of
from benchmarks.harness import Report, median, yes_or_no
from benchmarks.programs import FLOWS, Rows, anew, flow_of, mark
from timely_spark.runtime.process import task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Which programs are measured on which graphs; what is not here was left out for the time that it takes.
CASES: tuple[tuple[tuple[str, str], tuple[str, ...]], ...] = (
    (("uniform", "100k"), tuple(FLOWS)),
    (("R-MAT", "100k"), tuple(name for name in FLOWS if name != "landmarks")),
    (("classes", ""), ("bfs", "sssp", "k-core", "triangles")),
    (("uniform", "1m"), ("bfs",)),
)
#: Of the first graph's, those that are measured on Spark, too.
SPARK = ("bfs", "sssp", "pagerank")
#: Nodes, edges and updates of what is measured beside Pathway.
PATHWAY = (80_000, 400_000, 3)
#: Seconds of a micro-batch.
BATCH = 0.15

Seconds = dict[str, list[float]]


@dataclass
class Measured:
    """A program on a graph: by kind of epoch, the seconds of each side."""

    program: str
    graph: Graph
    ours: Seconds = field(default_factory=lambda: defaultdict(list))
    checkpoint: Seconds = field(default_factory=lambda: defaultdict(list))
    scipy: Seconds = field(default_factory=lambda: defaultdict(list))
    differential: Seconds = field(default_factory=lambda: defaultdict(list))
    #: By the wall clock.
    spark: Seconds = field(default_factory=lambda: defaultdict(list))
    #: The answers; bytes of state by edge, ours and differential's; and where the time of few changes goes.
    marks: list[int] = field(default_factory=list)
    size: float = 0
    peer_size: float = math.nan
    hot: str = ""

    def ratio(self, kind: str, side: Seconds) -> float:
        """How many times as long as another side ours takes; NaN without it."""
        return median(self.ours[kind]) / median(side[kind])

    def over(self, kind: str) -> float:
        """How many times as long as differential an epoch on Spark takes, one micro-batch aside."""
        return (median(self.spark[kind]) - BATCH) / median(self.differential[kind])

    def cost(self) -> float:
        """The share of changed edges from which on computing anew is faster."""
        sizes = {kind: come + go for kind, come, go in self.graph.kinds() if kind != PROFILED}
        ordered = sorted([*sizes.items(), (LOAD, self.graph.edges)], key=lambda size: size[1])
        return crossing([(n / self.graph.edges, self.ratio(kind, self.scipy)) for kind, n in ordered])


def crossing(points: list[tuple[float, float]]) -> float:
    """The share at which a growing ratio becomes 1, by interpolation of logarithms; 0: it is always above.

    >>> round(crossing([(0.001, 0.1), (0.1, 10.0), (1.0, 20.0)]), 3)
    0.01
    """
    shares, ratios = np.log(np.array(points).T)
    return float(np.exp(np.interp(0.0, np.maximum.accumulate(ratios), shares, left=-np.inf, right=0.0)))


# -- what is measured ----------------------------------------------------------------------------------------


def measure(program: str, graph: Graph, report: Report) -> Measured:
    """All sides, ours and scipy first."""
    measured, folder, digest = Measured(program, graph), harness.folder(), 0
    engine, profile = Engine(flow_of(program), 1), cProfile.Profile()
    anew(program, np.ones((1, 4), np.int64), 2)  # imports
    for number, (kind, changes, held) in enumerate(graph.epochs()):
        changes.astype("<i4").tofile(folder / f"{number:04}.bin")
        inputs = tables(kind, changes)
        if kind == PROFILED:
            profile.enable()
        spent = [time.process_time()]
        out = engine.epoch(**inputs)
        spent.append(time.process_time())
        profile.disable()
        engine.checkpoint()
        spent.append(time.process_time())
        measured.marks.append(anew(program, held, graph.nodes))
        spent.append(time.process_time())
        digest = int(np.sum(np.array([digest, *map(mark, out)])))
        assert digest == measured.marks[-1], f"{program}, {graph.name}, {kind}: not what scipy says"
        for side, seconds in zip(
            (measured.ours, measured.checkpoint, measured.scipy), np.diff(spent), strict=True
        ):
            side[kind].append(float(seconds))
    measured.size, measured.hot = engine.size() / graph.edges, hottest(profile)
    kinds = [LOAD, *(kind for kind, _, _ in graph.kinds())]
    others = differential(program, folder, len(kinds), report)
    for kind, due, (seconds, answer, resident) in zip(kinds, measured.marks, others, strict=False):
        assert answer == due, f"{program}, {graph.name}, {kind}: not what differential says"
        measured.differential[kind].append(seconds)
        measured.peer_size = resident / graph.edges
    shutil.rmtree(folder)
    return measured


def tables(kind: str, changes: Rows) -> dict[str, pa.Table]:
    """An epoch as the flow's inputs."""
    columns = dict(zip(("src", "dst", "weight", "diff"), changes.T, strict=True))
    roots = pa.array([0] if kind == LOAD else [], pa.int64())
    return {"edges": pa.table(columns), "roots": pa.table({"node": roots})}


def differential(program: str, folder: Path, epochs: int, report: Report) -> Iterator[tuple[float, int, int]]:
    """Seconds, answer and bytes of state of each epoch; nothing without cargo."""
    if report.quick:
        return
    try:
        command = [built.rust("programs"), program, str(folder), str(epochs)]
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", b"").decode(), file=sys.stderr)
        reason = "there is no cargo" if isinstance(error, OSError) else "cargo could not build it"
        if (note := f"differential was not measured, {reason}.") not in report.notes:
            report.note(note)
        return
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        seen = json.loads(line)
        yield seen["seconds"], seen["digest"], seen["resident"]


def on_spark(measured: Measured, session: SparkSession) -> None:
    """The same in a streaming query."""
    answers, queue = measured.marks or [0] * 99, SimpleQueue[pa.Table]()
    flow, digest = flow_of(measured.program, lambda _, table: queue.put(table)), 0
    with flow.start(session, checkpoint=str(harness.folder()), workers=1) as query:
        flow.handle("roots").send(pa.table({"node": [0]}))
        harness.answered(query)
        for due, (kind, changes, _) in zip(answers, measured.graph.epochs(), strict=False):
            edges = tables(kind, changes)["edges"]
            began = time.perf_counter()
            flow.handle("edges").send(edges)
            harness.answered(query)
            measured.spark[kind].append(time.perf_counter() - began)
            while not queue.empty():
                digest = int(np.sum(np.array([digest, mark(queue.get())])))
            assert not measured.marks or digest == due, f"{measured.program}, {kind}: another answer on Spark"


def beside_pathway(report: Report, nodes: int, edges: int, updates: int) -> None:
    """PageRank as Pathway has it, of a skewed graph to which edges come."""
    folder, random = harness.folder(), np.random.default_rng(SEED)
    ends = trace.rmat(nodes, edges + 1_000 * updates, random)
    flow, answers, seconds = ts.Dataflow("ranks"), [], []
    links = flow.input("edges", "src long, dst long").collection()
    ts.graphs.pagerank(links, 5, damping=5 / 6, unit=6_000).changes().capture("out")
    engine, held = Engine(flow, 1), np.zeros(2, np.int64)
    for number, rows in enumerate(np.split(ends, range(edges, len(ends), 1_000))):
        np.column_stack([rows, rows]).astype("<i4").tofile(folder / f"{number:04}.bin")
        began = time.process_time()
        out = engine.epoch(edges=pa.table({"src": rows[:, 0], "dst": rows[:, 1]}))
        seconds.append(time.process_time() - began)
        for _, rank, diff in (map(pa.ChunkedArray.to_numpy, table.columns) for table in out):
            held += np.sum([diff, rank * diff], axis=1)
        answers.append(held.tolist())
    del engine
    lines = built.in_pathway("pathway_ranks.py", str(folder), threads=1)
    assert [[one["nodes"], one["ranks"]] for one in lines] == answers, "Pathway answers otherwise"
    case = f"pagerank as Pathway's, R-MAT {nodes:,} / {edges:,}"
    pathway = [one["seconds"] for one in lines]
    for kind, at in ((LOAD, slice(1)), ("1,000 edges come", slice(1, None))):
        report.add(
            f"{case}, {kind}",
            ours=median(seconds[at]),
            baseline=median(pathway[at]),
            against="Pathway",
            unit="s",
            aim="" if kind == LOAD else ">=5x",
            scipy="",
            checkpoint="",
            epochs=len(seconds[at]),
        )
    shutil.rmtree(folder)


# -- the report ----------------------------------------------------------------------------------------------


def run(quick: bool) -> Report:
    """All programs; quick: a small graph, beside scipy."""
    report = Report("engine", "The incremental engine beside its peers", quick=quick)
    cases = ((("uniform", "5k"), tuple(FLOWS)),) if quick else CASES
    with task():
        results = [
            measure(program, graph_of(*graph), report) for graph, programs in cases for program in programs
        ]
        if not quick:
            session = harness.spark("engine")
            on_spark(Measured("bfs", graph_of("uniform", "5k")), session)  # a JVM that has run before
            for one in results[: len(FLOWS)]:
                if one.program in SPARK:
                    on_spark(one, session)
            session.stop()
    for one in results:
        add(report, one)
    if not quick:
        try:
            beside_pathway(report, *PATHWAY)
        except subprocess.CalledProcessError as error:
            report.note("Pathway was not measured: it could not be installed, or did not run.")
            print(error.stderr, file=sys.stderr)
    judge(report, results)
    report.write()
    return report


def add(report: Report, measured: Measured) -> None:
    """A row for each kind of epoch."""
    for kind, seconds in measured.ours.items():
        if kind != PROFILED:
            beside = measured.differential[kind]
            report.add(
                f"{measured.program}, {measured.graph.name}, {kind}",
                ours=median(seconds),
                baseline=median(beside) if beside else None,
                against="differential" if beside else "",
                unit="s",
                scipy=median(measured.scipy[kind]),
                checkpoint=median(measured.checkpoint[kind]),
                epochs=len(seconds),
            )
            if measured.spark:
                report.add(
                    f"{measured.program}, {measured.graph.name}, {kind}, on Spark",
                    ours=median(measured.spark[kind]),
                    baseline=median(beside) if beside else None,
                    against="differential" if beside else "",
                    unit="s",
                    scipy=median(measured.scipy[kind]),
                    checkpoint="",
                    epochs=len(seconds),
                )


def judge(report: Report, measured: Sequence[Measured]) -> None:
    """What is aimed at, what is so, and where the time goes."""
    rows = [
        [
            f"{one.program}, {one.graph.name}",
            _judged(one.ratio(LOAD, one.differential), 3, "x"),
            _judged(one.ratio(one.graph.few, one.differential), 3, "x"),
            _judged(median(one.ours[PERCENT]) / median(one.ours[LOAD]), 1, "x"),
            _judged(1000 * median(one.ours[ONE]), 75, " ms"),
            _judged(one.over(one.graph.few), 3, "x"),
            _judged(1000 * median(one.spark[ONE]), 225, " ms"),
            _judged(one.size, 200, ""),
            _judged(one.size, one.peer_size, f" to {one.peer_size:,.3g}") if one.peer_size > 0 else "",
            f"{one.cost():.3%} {yes_or_no(one.cost() > 0.01)}",
            one.hot,
        ]
        for one in measured
    ]
    names = ["aims, and whether they are met", "load <= 3x differential", "few changes <= 3x differential"]
    names += ["1 % <= 1x the load", "one insert <= 75 ms"]
    names += ["few on Spark <= 3x differential + 150 ms", "one insert on Spark <= 225 ms"]
    names += ["bytes of state by edge <= 200", "bytes of state <= differential's", "COST > 1 %"]
    columns = [
        [cell.split()[-1] for cell in column if cell] for column in list(zip(*rows, strict=True))[1:-1]
    ]
    met = [f"{cells.count('yes')} of {len(cells)}" if cells else "" for cells in columns]
    report.table([*names, "where the time of few changes goes"], [*rows, ["met", *met, ""]])


def _judged(value: float, most: float, unit: str) -> str:
    return "" if math.isnan(value) else f"{value:,.3g}{unit} {yes_or_no(value <= most)}"


def main() -> None:
    """One program on one graph: `python -m benchmarks.engine sssp uniform 100k`."""
    program, *graph = sys.argv[1:]
    report = Report("engine", "The incremental engine alone", quick=False)
    with task():
        measured = measure(program, graph_of(*graph), report)
    add(report, measured)
    judge(report, [measured])
    print(report.markdown())


if __name__ == "__main__":
    main()
