"""Logistic regression by Newton's method, after each epoch in which vectors arrive: of all vectors so far.

    python jobs/logistic_regression.py [--data FILE] [--label LABEL] [--ridge R] [--epochs K] [--workers N]

Input: vectors in LIBSVM's format; by default 150 irises, which come with PySpark. In each of K epochs a part
of them arrives. The model separates vectors with the label from all others: it minimises the log-loss plus
R / 2 times the sum of the squared weights (not the intercept's). Vectors stay on the worker that reads them:
an iteration adds up the workers' gradients and Hessians (all_reduce, one exchange). Prints the weights.
"""

from __future__ import annotations

import argparse
from typing import Any

import cli
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import vectors

import timely_spark as ts

MOST = 100


class Newton(ts.Vertex):
    """Newton's method on the vectors of one worker.

    Inputs: 0, vectors; 1, a record where an epoch begins; 2, the sums over all workers. Outputs: 0, this
    worker's gradient and Hessian, in one array; 1, the weights, from one worker.
    """

    def __init__(self, size: int, ridge: float, tolerance: float = 1e-12) -> None:
        self.size, self.ridge, self.tolerance = size, ridge, tolerance
        #: the vectors, with a 1 in front, and their classes, by epoch
        self.points: list[tuple[int, Any, Any]] = []
        #: by epoch, the weights so far; they are the same on all workers
        self.weights: dict[int, Any] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Store vectors; begin an epoch; or take a step with the sums."""
        if edge == 0:
            values = batch["x"].combine_chunks().flatten().to_numpy().reshape(batch.num_rows, -1)
            ones = np.ones((len(values), 1))
            self.points.append((time.epoch, np.hstack([ones, values]), batch["y"].to_numpy()))
        elif edge == 1:
            self.notify_at(time)
        else:
            self._step(time, np.array(batch["sums"][0].as_py()))

    def on_notify(self, time: Any) -> None:
        """All vectors of the epoch are here."""
        self.weights[time.epoch] = np.zeros(self.size)
        self._send_sums(time)

    def _send_sums(self, time: Any) -> None:
        """Send the gradient and the Hessian of the log-loss of this worker's vectors."""
        weights, size = self.weights[time.epoch], self.size
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        for epoch, x, y in self.points:
            if epoch <= time.epoch:
                chance = 1 / (1 + np.exp(-np.clip(x @ weights, -700, 700)))
                gradient += x.T @ (chance - y)
                hessian += (x * (chance * (1 - chance))[:, None]).T @ x
        sums = np.concatenate([gradient, hessian.ravel()])
        self.send_by(0, time, pa.table({"sums": pa.array([sums.tolist()], pa.list_(pa.float64()))}))

    def _step(self, time: Any, sums: Any) -> None:
        """Take Newton's step; the step is the same on all workers, as the sums are."""
        penalty = np.append(0.0, np.full(self.size - 1, self.ridge))
        gradient = sums[: self.size] + penalty * self.weights[time.epoch]
        hessian = sums[self.size :].reshape(self.size, self.size) + np.diag(penalty)
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        self.weights[time.epoch] = self.weights[time.epoch] - step
        if np.abs(step).max() > self.tolerance * max(1.0, np.abs(self.weights[time.epoch]).max()):
            if time.encode()[-1] >= MOST:
                message = f"no minimum after {MOST} steps; the last was {np.abs(step).max():g}"
                raise ts.TimelyError(message, hint="give a greater --ridge, or scale the vectors.")
            self._send_sums(time)
            return
        weights = self.weights.pop(time.epoch)
        if self.worker == 0:
            rows = {"feature": np.arange(self.size), "weight": weights}
            self.send_by(1, time, pa.table(rows))


def logistic_regression(points: ts.Stream, size: int, ridge: float) -> ts.Stream:
    """The weights that fit all points so far, for each epoch with points.

    Columns: points: x array<double> with `size` values, y double (0 or 1); out: feature long (0 is the
    intercept), weight double.
    """
    flow, loop = points.flow, points.scope.inner(name="newton")
    begin = points.select(n=pc.scalar(1)).aggregate(points=("sum", "n")).broadcast()
    sums = loop.variable("sums array<double>", name="sums")
    inputs = [points.enter(loop), begin.enter(loop), sums]
    outputs = ["sums array<double>", "feature long, weight double"]
    share, weights = flow.vertex(Newton(size + 1, ridge), inputs, outputs, name="step")
    sums.feed(ts.all_reduce(share, "sums"))
    return weights.leave()


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        message = f"{text!r} is not a number above 0"
        raise argparse.ArgumentTypeError(message)
    return value


def main() -> None:
    """Run the job."""
    parser = vectors.arguments(__doc__)
    parser.add_argument("--label", default="2", help="default: %(default)s")
    parser.add_argument("--ridge", type=positive, default=1.0, help="default: %(default)s")
    args = parser.parse_args()
    labels, values = vectors.read(args.data)
    if not 0 < labels.count(args.label) < len(labels):
        message = f"{args.label!r} is not one of several labels in {args.data}: {sorted({*labels})[:10]}"
        raise ts.TimelyError(message, hint="give one of several with --label.")
    flow = ts.Dataflow("logistic regression")
    points = flow.input("points", "x array<double>, y double", epochs="manual")
    logistic_regression(points, values.shape[1], args.ridge).capture("out")
    rows = [
        (vector, float(label == args.label)) for vector, label in zip(values.tolist(), labels, strict=True)
    ]
    out = vectors.run(flow, {"points": [rows[epoch :: args.epochs] for epoch in range(args.epochs)]}, args)
    for epoch, weights in out.rows().items():
        if weights:
            print(f"epoch {epoch}:", *(f"{weight:.8f}" for _, weight in sorted(weights)))


if __name__ == "__main__":
    cli.run(main)
