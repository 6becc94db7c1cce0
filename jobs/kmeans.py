"""Find the centres of clusters of vectors by k-means (Lloyd), after each epoch in which vectors arrive.

    python jobs/kmeans.py [--data FILE] [--clusters N] [--digits N] [--epochs K] [--workers N]

Input: vectors in LIBSVM's format, of which labels are ignored; by default 150 irises, which come with
PySpark. In each of K epochs a part of them arrives. The first vectors are the first centres, and a centre
that no vector is nearest to stays. Coordinates are rounded to so many digits and summed up as integers:
so the centres are the same, to the last bit, for any number of workers and epochs. Prints the centres.
"""

from __future__ import annotations

import argparse
from functools import partial, reduce
from operator import add

import cli
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import vectors

import timely_spark as ts


def kmeans(
    points: ts.Collection, centres: ts.Collection, *, max_iterations: int | None = 300
) -> ts.Collection:
    """The centres at which Lloyd's algorithm ends, from the given ones.

    A point belongs to the nearest centre, of several to that with the least number; a centre moves to the
    mean of its points. An iteration compares all points with the centres that have moved, and sends the
    points that have another centre.

    Columns: points: point long, and coordinates, all long; centres, in and out: centre long, and the same
    coordinates as double.
    """
    axes = [column for column in points.schema.names if column != "point"]
    schema = ", ".join(f"{axis} double" for axis in axes)
    steps = [pc.field(axis).cast(pa.float64()) - pc.field(f"centre_{axis}") for axis in axes]
    no_points = {f"sum_{axis}": pc.scalar(0) for axis in axes}
    no_centre = {axis: pc.scalar(0.0) for axis in axes}

    def move(before: ts.Collection) -> ts.Collection:
        there = before.select("centre", {f"centre_{axis}": axis for axis in axes})
        pairs = points.broadcast_join(there, by="point")
        far = pairs.select("point", "centre", *axes, far=reduce(add, [step * step for step in steps]))
        nearest = far.top_k(1, "far", keys="point", descending=False)
        of = {f"sum_{axis}": axis for axis in axes}
        members = nearest.select("centre", no_centre, of, points=pc.scalar(1))
        both = members.concat(before.select("centre", *axes, no_points, points=pc.scalar(0)))
        return both.reduce_batches(partial(means, axes), schema, keys="centre")

    return centres.iterate(move, max_iterations=max_iterations)


def means(axes: list[str], rows: pa.Table) -> pa.Table:
    """For each centre, whose rows are its points and itself, the mean of its points, or itself."""
    centres, of = np.unique(rows["centre"].to_numpy(), return_inverse=True)
    is_point = rows["points"].to_numpy() == 1
    weights = np.where(is_point, rows["count"].to_numpy(), 0)
    sizes = np.bincount(of, weights)
    itself = np.flatnonzero(~is_point)
    columns = {"centre": centres}
    for axis in axes:
        sums = np.zeros(len(centres), np.int64)
        np.add.at(sums, of, rows[f"sum_{axis}"].to_numpy() * weights)
        stays = np.full(len(centres), np.nan)
        stays[of[itself]] = rows[axis].to_numpy()[itself]
        columns[axis] = np.where(sizes > 0, sums / np.maximum(sizes, 1), stays)
    return pa.table(columns).filter(pa.array(np.isin(np.arange(len(centres)), of[itself])))


def flow_of(axes: list[str]) -> ts.Dataflow:
    """The flow: points and first centres in, the changes of the centres out."""
    flow = ts.Dataflow("kmeans")
    columns = ", ".join(f"{axis} long" for axis in axes)
    points = flow.input("points", f"point long, {columns}", epochs="manual").collection()
    first = flow.input("centres", f"centre long, {columns}", epochs="manual").collection()
    start = first.select("centre", {axis: pc.field(axis).cast(pa.float64()) for axis in axes})
    kmeans(points, start).changes().capture("out")
    return flow


def digits(text: str) -> int:
    """A number of digits that a double can have."""
    if (number := cli.positive(text)) > 15:
        message = f"{text!r} is not a number from 1 to 15"
        raise argparse.ArgumentTypeError(message)
    return number


def main() -> None:
    """Run the job."""
    parser = vectors.arguments(__doc__)
    parser.add_argument("--clusters", type=cli.positive, default=3, help="default: %(default)s")
    parser.add_argument("--digits", type=digits, default=6, help="default: %(default)s")
    args = parser.parse_args()
    _, values = vectors.read(args.data)
    if args.clusters > len(values):
        message = f"--clusters {args.clusters}: there are only {len(values)} vectors to begin with"
        raise ts.TimelyError(message, hint="give fewer clusters.")
    scale = 10.0**args.digits
    whole = np.rint(values * scale)
    if np.abs(whole).max() * len(whole) >= 2**53:
        message = (
            f"{args.data}: sums of {len(whole)} values with {args.digits} digits are too large to be exact"
        )
        raise ts.TimelyError(message, hint="give fewer --digits.")
    rows = [(n, *row) for n, row in enumerate(whole.astype(np.int64).tolist())]
    axes = [f"x{n}" for n in range(1, values.shape[1] + 1)]
    parts = [rows[epoch :: args.epochs] for epoch in range(args.epochs)]
    changes = vectors.run(flow_of(axes), {"points": parts, "centres": [rows[: args.clusters]]}, args)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}:")
        for row in ts.snapshot(changes, at=epoch).sort_by("centre").to_pylist():
            print(f"  centre {row['centre']}:", *(f"{row[axis] / scale:.{args.digits}f}" for axis in axes))


if __name__ == "__main__":
    cli.run(main)
