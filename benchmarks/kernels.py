"""The kernels of LDBC Graphalytics beside GraphX's own: a graph all at once, and epochs of 1,000 changes.

A graph of R-MAT, without self-loops and parallel edges, is loaded, and then changed in epochs of 500 inserts
and 500 deletes. Both sides read the same files, and must answer alike: how many nodes have a value, and the
sum of the values, each times a number of the node.

- ours: a collection of `flow.files`, the algorithm of `ts.graphs`, 2 workers; from the file's appearance to
  the epoch's manifest, with the changes of the values in the driver. Of the load some 2 s are the start of
  the query.
- GraphX: each epoch computed anew, from the file to the values: `connectedComponents`, `PageRank`,
  `TriangleCount`, and for the others Pregel, as GraphX's guide and `LabelPropagation` have it (whose ties are
  arbitrary; here of several labels the least wins, as Graphalytics defines it). The edges stay cached.

Ranks differ a little by their rounding, and with a tolerance by that. LCC is that of the undirected graph.
All on 2 cores; each side has run a graph before.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import graphs, harness
from benchmarks.baselines import trace
from benchmarks.harness import Report, median
from benchmarks.machine import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nodes and edges.
SIZE, QUICK = (100_000, 500_000), (5_000, 25_000)
CHANGES, EPOCHS = 500, 3
LOAD, FEW = "load", "1,000 changes"
UNIT, TOLERANCE = 1_000_000, 1_000
#: One of each epoch: seconds, how many nodes have a value, the digest, and the sum of the values.
Told = tuple[float, int, float, float]


def weighted(edges: ts.Collection) -> ts.Collection:
    """Weights from 1 to 99."""
    sum_ = pc.field("src") * pc.scalar(31) + pc.field("dst") * pc.scalar(17)
    rest = sum_ - pc.divide(sum_, pc.scalar(99)) * pc.scalar(99)
    return edges.select("src", "dst", weight=rest + pc.scalar(1))


def root(edges: ts.Collection) -> ts.Collection:
    """Node 0, which has edges."""
    return edges.where(pc.field("src") == pc.scalar(0)).select(node="src").distinct()


#: By its name in `baselines/kernels.scala`: ours, and by how much the digests may differ.
KERNELS: Mapping[str, tuple[Callable[[ts.Collection], ts.Collection], float]] = {
    "BFS": (lambda edges: ts.graphs.bfs(edges, root(edges)), 0),
    "WCC": (ts.graphs.connected_components, 0),
    "SSSP": (lambda edges: ts.graphs.sssp(weighted(edges), root(edges)), 0),
    "PR:10": (lambda edges: ts.graphs.pagerank(edges, 10, unit=UNIT), 1e-4),
    f"PRtol:{TOLERANCE / UNIT}": (
        lambda edges: ts.graphs.pagerank(edges, None, unit=UNIT, tolerance=TOLERANCE),
        2e-2,
    ),
    "CDLP:10": (lambda edges: ts.graphs.cdlp(edges, 10), 0),
    "LCC": (lambda edges: ts.graphs.lcc(edges, directed=False), 1e-9),
}


# -- the graph -----------------------------------------------------------------------------------------------


def write(folder: Path, nodes: int, edges: int, epochs: int) -> list[Path]:
    """The files of the epochs; node 0 is the one with most edges."""
    random = np.random.default_rng(trace.SEED)
    ends = trace.rmat(nodes, 2 * edges, random)
    most = np.bincount(ends[:, 0]).argmax()
    ends = np.where(ends == 0, most, np.where(ends == most, 0, ends))
    packed = ends[:, 0] * nodes + ends[:, 1]
    packed = packed[np.sort(np.unique(packed, return_index=True)[1])]
    packed = packed[packed // nodes != packed % nodes]
    held, coming, files = packed[:edges], packed[edges:], []
    for epoch in range(epochs + 1):
        gone = random.choice(len(held), CHANGES, replace=False) if epoch else np.zeros(0, np.int64)
        come = coming[(epoch - 1) * CHANGES : epoch * CHANGES] if epoch else held
        rows = np.concatenate([come, held[gone]])
        diff = np.repeat([1, -1], [len(come), len(gone)])
        table = pa.table({"src": rows // nodes, "dst": rows % nodes, "diff": diff})
        files.append(folder / f"{epoch:04}.parquet")
        pq.write_table(table, files[-1], row_group_size=max(1, len(rows) // 4))
        if epoch:
            held = np.concatenate([np.delete(held, gone), come])
    return files


# -- sides ---------------------------------------------------------------------------------------------------


def ours(
    spark: SparkSession, files: Sequence[Path], build: Callable[[ts.Collection], ts.Collection]
) -> Iterator[Told]:
    """Of each epoch, in a query of its own."""
    seen, answered = harness.folder(), Queue[tuple[int, pa.Table]]()
    flow = ts.Dataflow("kernel")
    edges = flow.files("edges", seen, schema="src long, dst long, diff long", files_per_epoch=1)
    changes = build(edges.collection(diff="diff")).changes()
    changes.subscribe(lambda epoch, table: answered.put((epoch, table)))
    sums = np.zeros(3)
    with flow.start(spark, checkpoint=str(harness.folder()), workers=2) as query:
        for seconds, table in graphs.answers(query, files, seen, answered):
            node, value, diff = (column.to_numpy().astype(np.float64) for column in table.columns)
            sums += [diff.sum(), ((node % 1009 + 1) * value * diff).sum(), (value * diff).sum()]
            yield seconds, round(sums[0]), sums[1], sums[2]


def graphx(folder: Path, kernels: Sequence[str], epochs: int) -> dict[str, list[Told]]:
    """Of each kernel and epoch, in a JVM of its own."""
    command = graphs.graphx(folder, epochs, "kernels.scala")
    answers_of: dict[str, list[Told]] = {kernel: [] for kernel in kernels}
    env = os.environ | {"TRACE": str(folder), "EPOCHS": str(epochs), "KERNELS": " ".join(kernels)}
    env["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith('{"kernel"'):
                row = json.loads(line)
                answers_of[row["kernel"]].append((row["seconds"], row["nodes"], row["digest"], row["total"]))
        if any(len(answers) < epochs for answers in answers_of.values()):
            errors.seek(0)
            msg = f"GraphX ended early:\n{done.stdout[-2000:]}\n{errors.read()[-4000:]}"
            raise RuntimeError(msg)
    return answers_of


def agree(kernel: str, one: Told, other: Told, tolerance: float) -> bool:
    """Whether two answers are alike; ranks in proportion to their sum."""
    digests = [digest / total if kernel.startswith("PR") else digest for _, _, digest, total in (one, other)]
    return one[1] == other[1] and math.isclose(*digests, rel_tol=tolerance + 1e-12)


# -- the report ----------------------------------------------------------------------------------------------


def run(quick: bool) -> Report:
    """All kernels; quick: ours alone, on a small graph."""
    report = Report("kernels", "The kernels of Graphalytics beside GraphX", quick=quick)
    (nodes, edges), folder = (QUICK if quick else SIZE), harness.folder()
    files = write(folder, nodes, edges, EPOCHS)
    spark = harness.spark("kernels", confs={"spark.driver.memory": "4g"})
    small = write(harness.folder(), 500, 2_000, 1)
    own: dict[str, list[Told]] = {}
    for kernel, (build, _) in KERNELS.items():
        if not own:
            list(ours(spark, small, build))
        own[kernel] = list(ours(spark, files, build))
        print(kernel, *(f"{epochs[0]:.2f}" for epochs in own[kernel]), flush=True)
    spark.stop()
    baselines: Mapping[str, list[Told]] = {} if quick else graphx(folder, list(KERNELS), 2)
    for kernel, epochs in own.items():
        other = baselines.get(kernel, [])
        for epoch, pair in enumerate(zip(epochs, other, strict=False)):
            assert agree(kernel, *pair, KERNELS[kernel][1]), f"{kernel}, epoch {epoch}: {pair}"
        for kind, at in ((LOAD, slice(1)), (FEW, slice(1, None))):
            report.add(
                f"{kernel.replace(':', ' ')}, R-MAT {nodes:,} / {edges:,}, {kind}",
                ours=median(one[0] for one in epochs[at]),
                baseline=median(one[0] for one in other[at]) if other else None,
                against="GraphX, anew" if other else "",
                unit="s",
                epochs=len(epochs[at]),
                baseline_epochs=len(other[at]),
            )
    report.write()
    return report


def main() -> None:
    """Some kernels on the small graph: `python -m benchmarks.kernels BFS WCC`."""
    folder = harness.folder()
    files = write(folder, *QUICK, EPOCHS)
    baselines = graphx(folder, sys.argv[1:], 2)
    spark = harness.spark("kernels")
    for kernel in sys.argv[1:]:
        pairs = list(zip(ours(spark, files, KERNELS[kernel][0]), baselines[kernel], strict=False))
        print(kernel, [agree(kernel, *pair, KERNELS[kernel][1]) for pair in pairs], pairs, flush=True)


if __name__ == "__main__":
    main()
