"""Bulk iterations: loops in which every iteration goes over all of the data, per iteration.

Naiad's own PageRank and logistic regression (section 6.1 and 6.2), on one graph and one matrix. Seconds per
iteration are differences: of a run with many iterations and one with few, divided by the iterations between;
so neither reading nor starting counts. Only of our PageRank they are those of the whole run.

- PageRank: `pagerank(tolerance=...)` over `flow.files`, 2 workers, from nothing to the tolerance; an
  iteration is one exchange of sums. Late ones move fewer ranks, so ours is the mean of all, with reading and
  starting. Checked against numpy, within the bound. GraphX: `PageRank.run`.
- Logistic regression: gradient descent by a vertex whose state is its share of the matrix; an iteration is a
  gradient and its `all_reduce`. Checked against numpy. Spark MLlib: `LogisticRegression`, whose L-BFGS takes
  the loss and the gradient of all points, on a cached DataFrame.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.baselines import trace
from benchmarks.harness import Report
from benchmarks.kernels import graphx

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRAPH, POINTS = (1_000_000, 5_000_000), (1_000_000, 100)
FEW_STEPS, RATE, UNIT, TOLERANCE = (5, 45), 0.5, 1_000_000, 2_000
POINT = "x array<double>, y double"


# -- PageRank ------------------------------------------------------------------------------------------------


def ranks(spark: SparkSession, folder: Path) -> tuple[float, int, pa.Table]:
    """Seconds from nothing to the ranks; exchanges; and the ranks."""
    flow = ts.Dataflow("ranks")
    edges = flow.files("edges", folder, schema="src long, dst long").collection()
    ts.graphs.pagerank(edges, None, tolerance=TOLERANCE, unit=UNIT).changes().capture("out")
    began = time.perf_counter()
    query = flow.start(spark, checkpoint=str(harness.folder()), workers=2, trigger="available_now")
    query.await_termination()
    seconds = time.perf_counter() - began
    return seconds, sum(done.rounds or 0 for done in query.epochs()), ts.snapshot(query.captured("out"))


def off(computed: pa.Table, ends: np.ndarray, nodes: int) -> float:
    """How far the ranks are off the exact ones, on average."""
    src, dst = ends.T
    share, rank = 0.85 / np.maximum(np.bincount(src, minlength=nodes), 1), np.full(nodes, float(UNIT))
    for _ in range(150):
        rank = 0.15 * UNIT + np.bincount(dst, (rank * share)[src], nodes)
    own = np.zeros(nodes)
    own[computed["node"].to_numpy()] = computed["rank"].to_numpy()
    there = np.zeros(nodes, bool)
    there[src] = there[dst] = True
    return float(np.abs(own - np.where(there, rank, 0)).mean())


def pageranks(report: Report, nodes: int, edges: int) -> None:
    """A row for PageRank."""
    folder = harness.folder()
    ends = trace.uniform(nodes, edges, np.random.default_rng(trace.SEED))
    table = pa.table({"src": ends[:, 0], "dst": ends[:, 1], "diff": np.ones(edges, np.int64)})
    pq.write_table(table, folder / "0000.parquet", row_group_size=edges // 4)
    spark = harness.spark("bulk", confs={"spark.driver.memory": "6g"})
    small = harness.folder()
    pq.write_table(table.slice(0, 1000), small / "0000.parquet")
    ranks(spark, small)
    seconds, iterations, out = ranks(spark, folder)
    assert off(out, ends, nodes) < (TOLERANCE + edges / nodes) / 0.15, "other ranks"
    spark.stop()
    baselines = (
        [] if report.quick else [epochs[0][0] for epochs in graphx(folder, ["PR:1", "PR:21"], 1).values()]
    )
    report.add(
        f"PageRank, {nodes:,} nodes, {edges:,} edges, an iteration",
        ours=seconds / iterations,
        baseline=(baselines[1] - baselines[0]) / 20 if baselines else None,
        against="GraphX" if baselines else "",
        unit="s",
        aim="" if report.quick else ">=5x",
        iterations=iterations,
        in_all=f"{seconds:.1f} s, of {iterations} exchanges",
    )


# -- logistic regression -------------------------------------------------------------------------------------


class Gradient(ts.Vertex):
    """Gradient descent on this worker's points; the weights are the same on all workers.

    Inputs: 0, points; 1, the number of steps to take; 2, the sums over all workers. Outputs: 0, this worker's
    gradient; 1, the weights after the steps, from one worker.
    """

    logged = True

    def __init__(self, size: int, count: int) -> None:
        self.count, self.left, self.weights = count, 0, np.zeros(size)
        self.x: list[Any] = []
        self.y: list[Any] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if edge == 0:
            for part in batch.to_batches(max_chunksize=4096):  # as much as a cache holds
                self.x.append(part["x"].flatten().to_numpy().reshape(len(part), -1))
                self.y.append(part["y"].to_numpy())
            return
        if edge == 1:
            self.left, self.weights = batch["steps"][0].as_py(), np.zeros(len(self.weights))
        else:
            sums = batch["sums"].combine_chunks().flatten().to_numpy()
            self.weights, self.left = self.weights - RATE / self.count * sums, self.left - 1
        if self.left:
            self.send_by(0, time, pa.table({"sums": pa.array([self._gradient()])}))
        elif self.worker == 0:
            self.send_by(1, time, pa.table({"feature": range(len(self.weights)), "weight": self.weights}))

    def _gradient(self) -> np.ndarray:
        total = np.zeros(len(self.weights))
        for x, y in zip(self.x, self.y, strict=True):
            total += (1 / (1 + np.exp(-(x @ self.weights))) - y) @ x
        return total


def descended(x: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        weights = weights - RATE / len(x) * ((1 / (1 + np.exp(-(x @ weights))) - y) @ x)
    return weights


def ours(spark: SparkSession, folder: Path, x: np.ndarray, y: np.ndarray) -> list[float]:
    """Seconds of few steps and of many."""
    flow = ts.Dataflow("logistic")
    points, steps = flow.files("points", folder, schema=POINT), flow.input("steps", "steps long")
    loop = flow.scope.inner(name="descent")
    sums = loop.variable("sums array<double>")
    gradients, weights = flow.vertex(
        Gradient(x.shape[1], len(x)),
        [points.enter(loop), steps.broadcast().enter(loop), sums],
        ["sums array<double>", "feature long, weight double"],
        name="gradient",
    )
    sums.feed(ts.all_reduce(gradients, "sums"))
    weights.leave().capture("out")
    seconds = []
    with flow.start(spark, checkpoint=str(harness.folder()), workers=2) as query:
        harness.answered(query)
        for count in (1, *FEW_STEPS):
            began = time.perf_counter()
            steps.send([(count,)])
            harness.answered(query)
            seconds.append(time.perf_counter() - began)
            *_, last = (rows for rows in query.captured("out").rows().values() if rows)
            if count < FEW_STEPS[1]:
                np.testing.assert_allclose([weight for _, weight in last], descended(x, y, count), rtol=1e-6)
    return seconds[1:]


def mllib(spark: SparkSession, folder: Path) -> tuple[float, float]:
    """Seconds of few iterations and of many, and how many there are between."""
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.functions import array_to_vector

    frame = spark.read.parquet(str(folder))
    frame = frame.select(array_to_vector(frame.x).alias("features"), frame.y.alias("label")).cache()
    frame.count()
    seconds, iterations = [], []
    for most in (1, 3, 23):
        began = time.perf_counter()
        learner = LogisticRegression(maxIter=most, tol=0.0, fitIntercept=False, standardization=False)
        iterations.append(learner.fit(frame).summary.totalIterations)
        seconds.append(time.perf_counter() - began)
    return (seconds[2] - seconds[1]), iterations[2] - iterations[1]


def regressions(report: Report, rows: int, columns: int) -> None:
    """A row for logistic regression."""
    random, folder = np.random.default_rng(trace.SEED), harness.folder()
    x = random.standard_normal((rows, columns))
    y = (random.random(rows) < 1 / (1 + np.exp(-x @ random.standard_normal(columns) / 10))).astype(float)
    arrays = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), columns).cast(pa.list_(pa.float64()))
    pq.write_table(pa.table({"x": arrays, "y": y}), folder / "points.parquet", row_group_size=rows // 8)
    spark = harness.spark("bulk", confs={"spark.driver.memory": "6g"})
    few, many = ours(spark, folder, x, y)
    between, iterations = (0.0, 0) if report.quick else mllib(spark, folder)
    spark.stop()
    report.add(
        f"logistic regression, {rows:,} x {columns}, an iteration",
        ours=(many - few) / (FEW_STEPS[1] - FEW_STEPS[0]),
        baseline=between / iterations if iterations else None,
        against="Spark MLlib" if iterations else "",
        unit="s",
        aim="" if report.quick else ">=1x",
        iterations=FEW_STEPS[1] - FEW_STEPS[0],
        in_all=f"{many:.1f} s, of {FEW_STEPS[1]} iterations",
    )


def run(quick: bool) -> Report:
    """Both loops; quick: small ones, without baselines."""
    report = Report("bulk", "Bulk iterations", quick=quick)
    pageranks(report, *((20_000, 100_000) if quick else GRAPH))
    regressions(report, *((20_000, 20) if quick else POINTS))
    report.write()
    return report
