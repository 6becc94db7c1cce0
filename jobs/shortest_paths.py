"""Keep the distance of each node from the nearest of some, as edges come and go: who came nearer or farther.

    python jobs/shortest_paths.py --edges DIR --from ID... [--weight COLUMN] --output DIR --checkpoint DIR
                                  [--format parquet|csv|delta] [--current DIR]
                                  [--files-per-epoch N] [--workers N] [--follow]

Input: edges src long, dst long, the column of weights if there is one, and optionally diff long: each row
adds an edge (1, and without diff) or removes it (-1). Edges lead from src to dst. Ids are not negative,
nor are weights; without weights the distance is the number of edges.
Output: a Delta table with epoch long, node long, distance (long; double if weights are), diff int; diff is +1
for a node's new distance and -1 for its old one. Nodes that cannot be reached are not in it, nor is a source
that no edge touches. --current: a Delta table with the present node, distance.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import cli
import pyarrow as pa
import pyarrow.compute as pc
from edges import arguments, dataflow, deliver, read_edges, run

import timely_spark as ts


def shortest_paths(edges: ts.Collection, sources: Sequence[int], weight: str | None) -> ts.Collection:
    """The least sums on ways from a source. Columns: in src, dst long, `weight`; out node long, distance."""
    edges = edges.distinct(name="once")
    ends = edges.select(node="src").concat(edges.select(node="dst"))
    roots = ends.where(pc.field("node").isin(pa.array(sources, pa.int64())))
    if weight is None:
        return ts.graphs.bfs(edges, roots, name="distances")
    return ts.graphs.sssp(edges, roots, weight=weight, name="distances")


def identity(text: str) -> int:
    """A node's id."""
    if not text.isdecimal() or int(text) >= 2**63:
        message = f"{text!r} is not an integer from 0 to 2**63 - 1"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def main() -> None:
    """Run the job."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--from", dest="sources", required=True, nargs="+", type=identity, metavar="ID", help="the sources"
    )
    parser.add_argument("--weight", metavar="COLUMN", help="the column of weights (default: each edge is 1)")
    args = parser.parse_args()
    if args.weight in {"src", "dst", "diff"}:
        parser.error(f"argument --weight: {args.weight!r} is another column's name")
    sources = sorted({*args.sources})
    flow = dataflow("shortest_paths", args, sources=sources, weight=args.weight)
    edges = read_edges(flow, args.edges, args.format, args.files_per_epoch, args.weight)
    deliver(shortest_paths(edges, sources, args.weight), args)
    run(flow, args)


if __name__ == "__main__":
    cli.run(main)
