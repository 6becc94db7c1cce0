"""Keep the PageRank of a graph's nodes, as its edges come and go: for each epoch whose rank has changed.

    python jobs/pagerank.py --edges DIR [--format parquet|csv|delta] --output DIR --checkpoint DIR
                            [--current DIR] [--iterations N] [--damping D]
                            [--files-per-epoch N] [--workers N] [--follow]

Input: edges src long, dst long, and optionally diff long: each row adds an edge (1, and without diff) or
removes it (-1). An edge that was added twice counts twice. Ids are not negative.
Output: a Delta table with epoch long, node long, rank double, diff int; diff is +1 for a node's new rank and
-1 for its old one. Ranks are on average 1 at the beginning, and computed in millionths (see
timely_spark.graphs.pagerank). --current: a Delta table with the present node, rank.
"""

from __future__ import annotations

import argparse
from functools import partial

import cli
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from edges import arguments, dataflow, deliver, read_edges, run

import timely_spark as ts

UNIT = 1_000_000


def pagerank(edges: ts.Collection, iterations: int, damping: float) -> ts.Collection:
    """The rank of each node. Columns: in src, dst long; out node long, rank double."""
    there = edges.threshold(partial(np.maximum, 0), name="present")
    ranks = ts.graphs.pagerank(there, iterations, damping=damping, unit=UNIT, name="ranks")
    return ranks.select("node", rank=pc.field("rank").cast(pa.float64()) / pc.scalar(float(UNIT)))


def fraction(text: str) -> float:
    """A number from 0 up, and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        message = f"{text!r} is not a number from 0 up and below 1"
        raise argparse.ArgumentTypeError(message)
    return value


def main() -> None:
    """Run the job."""
    parser = arguments(__doc__)
    parser.add_argument("--iterations", type=cli.positive, default=20, help="default: %(default)s")
    parser.add_argument("--damping", type=fraction, default=0.85, help="default: %(default)s")
    args = parser.parse_args()
    flow = dataflow("pagerank", args, iterations=args.iterations, damping=args.damping)
    edges = read_edges(flow, args.edges, args.format, args.files_per_epoch)
    deliver(pagerank(edges, args.iterations, args.damping), args)
    run(flow, args)


if __name__ == "__main__":
    cli.run(main)
