"""Graphs that change: connected components kept up to date, against computing them anew and against others'.

A graph is loaded, then changed in epochs of three kinds in turn: 1,000 inserts and 1,000 deletes, one insert,
and 100,000 changes (half of them deletes). All sides read the same files, one after the other in a process of
their own, and answer every epoch before they see the next; the number of components, and a checksum over
(node, component), must be the same for all. Where a side has fewer epochs than ours, they are the first ones.

- ours: `flow.files` over parquet files, an epoch each, as a collection; `connected_components`, whose
  changes reach the driver by `subscribe`. From the file's appearance to the epoch's manifest, 2 workers. The
  query has just been started when the load appears, so it is still coming up: some 2 s.
- scipy, networkx: one thread, components computed anew; without reading the file (the COST line).
- differential: differential-dataflow in Rust, by label propagation, 2 workers; incremental, as ours. In
  memory alone, nothing is durable; without reading the file.
- foreachBatch: a loop of DataFrames, as one writes it by hand. From the file's appearance to the labels.
- GraphX: components computed anew by `connectedComponents`; from the file to the components.

All on 2 cores; a JVM has run a small graph before. Peak memory is what all processes of a side have resident
together at once, divided by the edges loaded; a page that Python workers share counts in each.

`python -m benchmarks.graphs --graph R-MAT --size 1m --side graphx` measures sides by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.baselines import built, trace
from benchmarks.harness import BASELINE, OURS, Report, median
from benchmarks.machine import ROOT
from benchmarks.resources import Resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASELINES = Path(__file__).parent / "baselines"
#: Nodes and edges.
SIZES = {
    "20k": (20_000, 100_000),
    "100k": (100_000, 500_000),
    "1m": (1_000_000, 5_000_000),
    "2m": (2_000_000, 10_000_000),
}
#: What is aimed at with a million nodes, in seconds.
AIMS = {trace.LOAD: "<=5", "1,000 inserts + 1,000 deletes": "<=1", "one insert": "<=0.3"}


@dataclass
class Measured:
    """What a side has told."""

    #: Of each kind of epoch.
    seconds: dict[str, list[float]] = field(default_factory=dict)
    #: Of each epoch: how many components, and the checksum.
    answers: list[tuple[int, int]] = field(default_factory=list)
    #: MB of its processes, when they took most.
    memory: dict[str, float] = field(default_factory=dict)


# -- ours ----------------------------------------------------------------------------------------------------


def ours(folder: str, count: str) -> None:
    """Tells the answers of a trace's first epochs, as the baselines do."""
    spark = harness.spark("graphs", confs={"spark.driver.memory": trace.HEAP})
    small = harness.folder()
    trace.write(small, "uniform", 100, 500, rounds=0)
    list(fed(spark, trace.epochs(small, 1)))
    components = checksum = 0
    for seconds, changes in fed(spark, trace.epochs(Path(folder), int(count))):
        node, component, diff = (changes[name].to_numpy() for name in ("node", "component", "diff"))
        components += np.sum(diff * (node == component))
        checksum += np.sum(diff * (node + 1) * (component + 1))
        trace.answer(seconds, components, checksum)


def fed(spark: SparkSession, files: Sequence[Path]) -> Iterator[tuple[float, pa.Table]]:
    """Seconds of each epoch, and the components' changes."""
    seen = harness.folder()
    flow, answered = ts.Dataflow("components"), queue.Queue[tuple[int, pa.Table]]()
    edges = flow.files("edges", seen, schema="src long, dst long, diff long").collection(diff="diff")
    components = ts.graphs.connected_components(edges).changes()
    components.subscribe(lambda epoch, table: answered.put((epoch, table)))
    with flow.start(spark, checkpoint=str(harness.folder()), workers=2) as query:
        yield from answers(query, files, seen, answered)


def answers(
    query: ts.Query, files: Sequence[Path], seen: Path, answered: queue.Queue[tuple[int, pa.Table]]
) -> Iterator[tuple[float, pa.Table]]:
    """Seconds of each epoch, which a file in the folder `seen` begins, and what the query told of it."""
    for path in files:
        began = time.perf_counter()
        os.link(path, seen / path.name)
        while (answer := _taken(answered)) is None:
            if not query.is_active:
                raise query.exception() or RuntimeError("the query has ended")
        epoch, changes = answer
        harness.answered(query, epoch=epoch)
        yield time.perf_counter() - began, changes


def _taken(answered: queue.Queue[tuple[int, pa.Table]]) -> tuple[int, pa.Table] | None:
    """What comes next; None after a second. To look for it often would cost what is measured a core."""
    try:
        return answered.get(timeout=1)
    except queue.Empty:
        return None


# -- sides ---------------------------------------------------------------------------------------------------


def own(folder: Path, count: int) -> list[str]:
    call = "import sys; from benchmarks.graphs import ours; ours(*sys.argv[1:])"
    return [sys.executable, "-c", call, str(folder), str(count)]


def single_thread(library: str) -> Callable[[Path, int], list[str]]:
    module = "benchmarks.baselines.single_thread"
    return lambda folder, count: [sys.executable, "-m", module, library, str(folder), str(count)]


def foreach_batch(folder: Path, count: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.baselines.foreach_batch", str(folder), str(count)]


def graphx(folder: Path, count: int, script: str = "graphx.scala") -> list[str]:
    import pyspark

    confs = {
        "spark.driver.memory": trace.HEAP,
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    shell = str(Path(pyspark.__file__).parent / "bin" / "spark-shell")
    options = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    return [shell, "--master", "local[2]", *options, "-i", str(BASELINES / script)]


def differential(folder: Path, count: int) -> list[str]:
    return [built.rust("components"), str(folder), str(count), "-w", "2"]


SIDES: Mapping[str, Callable[[Path, int], list[str]]] = {
    "ours": own,
    "scipy": single_thread("scipy"),
    "networkx": single_thread("networkx"),
    "differential": differential,
    "foreachBatch": foreach_batch,
    "GraphX": graphx,
}


def measure(name: str, folder: Path, kinds: Sequence[str]) -> Measured:
    """Runs a side over the first epochs of a trace."""
    measured = Measured()
    command = SIDES[name](folder, len(kinds))
    env = os.environ | {"TRACE": str(folder), "EPOCHS": str(len(kinds)), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=DEVNULL, stdout=PIPE, stderr=errors, text=True
        ) as process,
        Resources({}, every=0.2, root=process.pid) as resources,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"seconds"'):
                row = json.loads(line)
                measured.seconds.setdefault(kinds[len(measured.answers)], []).append(row["seconds"])
                measured.answers.append((row["components"], row["checksum"]))
        if process.wait() or len(measured.answers) < len(kinds):
            errors.seek(0)
            msg = (
                f"{name} ended after {len(measured.answers)} of {len(kinds)} epochs:\n{errors.read()[-4000:]}"
            )
            raise RuntimeError(msg)
    parts = ("driver", "JVM", "Python workers")
    samples = [{part: sample[part] for part in parts} for sample in resources.samples]
    measured.memory = max(samples, key=lambda sample: sum(sample.values()), default=dict.fromkeys(parts, 0.0))
    return measured


# -- the report ----------------------------------------------------------------------------------------------


def compare(report: Report, graph: str, size: str, rounds: Mapping[str, int]) -> dict[str, Measured]:
    """All sides of one graph: how many rounds of epochs each takes, ours first and most."""
    nodes, edges = SIZES[size]
    folder = harness.folder()
    kinds = trace.write(folder, graph, nodes, edges, rounds["ours"])
    sides: dict[str, Measured] = {}
    for name, count in rounds.items():
        try:
            sides[name] = measure(name, folder, kinds[: 1 + count * len(trace.KINDS)])
        except (OSError, subprocess.CalledProcessError) as error:
            if name != "differential":
                raise
            reason = "there is no cargo" if isinstance(error, OSError) else "cargo could not build it"
            report.note(f"{graph}, {size}: differential was not measured, {reason}.")
            print(getattr(error, "stderr", b"").decode(), file=sys.stderr)
            continue
        due = sides["ours"].answers[: len(sides[name].answers)]
        assert sides[name].answers == due, f"{graph}, {size}: {name} has other components"
    shutil.rmtree(folder)
    ours = sides.pop("ours")
    case = f"{graph} {nodes:,} / {edges:,}"
    for kind, seconds in ours.seconds.items():
        for name, side in sides.items():
            report.add(
                f"{case}, {kind}",
                ours=median(seconds),
                baseline=median(side.seconds[kind]),
                against=name,
                unit="s",
                aim=AIMS.get(kind, "") if size == "1m" else "",
                epochs=len(seconds),
                baseline_epochs=len(side.seconds[kind]),
            )
    for name, side in sides.items():
        total, parts = sum(ours.memory.values()), ours.memory.items()
        report.add(
            f"{case}, peak memory",
            ours=total * 2**20 / edges,
            baseline=sum(side.memory.values()) * 2**20 / edges,
            against=name,
            unit="bytes an edge",
            aim="<=200" if size == "1m" else "",
            note=", ".join(f"{part} {mb * 2**20 / edges:,.0f}" for part, mb in parts),
            epochs=len(ours.answers),
            baseline_epochs=len(side.answers),
        )
    return {"ours": ours, **sides}


def run(quick: bool) -> Report:
    """Both graphs in both sizes; quick: a small skewed one, against what needs no JVM and no compiler."""
    report = Report("graphs", "Graphs: components of a graph that changes", quick=quick)
    few = {"ours": 2, "scipy": 2, "networkx": 2}
    small = {"ours": 5, "scipy": 5, "networkx": 2, "differential": 5, "foreachBatch": 2, "GraphX": 2}
    large = {"ours": 4, "scipy": 4, "differential": 4, "foreachBatch": 1, "GraphX": 1}
    sizes = {"20k": few} if quick else {"100k": small, "1m": large}
    graphs = ["R-MAT"] if quick else list(trace.GRAPHS)
    compared = {
        (graph, size): compare(report, graph, size, rounds)
        for size, rounds in sizes.items()
        for graph in graphs
    }

    def draw(axes: Any) -> None:
        figure = axes.figure
        figure.clear()
        grid = figure.subplots(len(sizes), len(graphs), squeeze=False, sharey=True)
        colours = [OURS, "#333333", "#8c8c8c", "#d9822b", BASELINE, "#d8d8d8"]
        for one, ((graph, size), sides) in zip(grid.flat, compared.items(), strict=True):
            for at, (name, side) in enumerate(sides.items()):
                shown = [median(seconds) for seconds in side.seconds.values()]
                place = [kind + 0.14 * at for kind in range(len(shown))]
                one.bar(place, shown, 0.13, label=name, color=colours[list(SIDES).index(name)])
            one.set_xticks([kind + 0.3 for kind in range(4)], ["load", "2,000", "one", "100,000"])
            one.set(title=f"{graph}, {size} nodes", yscale="log", ylabel="s", xlabel="changes in an epoch")
        grid[0, 0].legend(fontsize="small")

    report.plot("seconds", draw, size=(5 * len(graphs), 3.5 * len(sizes)))
    report.write()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphs")
    parser.add_argument("--graph", choices=trace.GRAPHS, default="uniform")
    parser.add_argument("--size", choices=SIZES, default="100k")
    parser.add_argument("--rounds", type=int, default=1, help="epochs of each kind")
    parser.add_argument("--side", choices=SIDES, nargs="+", default=list(SIDES))
    args = parser.parse_args()
    folder = harness.folder()
    kinds = trace.write(folder, args.graph, *SIZES[args.size], args.rounds)
    for name in args.side:
        measured = measure(name, folder, kinds)
        print(f"{name}, {args.graph} {args.size}")
        for kind, seconds in measured.seconds.items():
            print(f"  {kind}: {median(seconds):.3f} s of {', '.join(f'{one:.3f}' for one in seconds)}")
        print(f"  components and checksum at the end: {measured.answers[-1]}")
        print(
            f"  peak MB: {', '.join(f'{part} {mb:.0f}' for part, mb in measured.memory.items())}", flush=True
        )


if __name__ == "__main__":
    main()
