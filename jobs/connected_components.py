"""Keep the connected components of a graph: for each epoch which node moved to which component.

    python jobs/connected_components.py --edges DIR [--format parquet|csv|delta] --output DIR --checkpoint DIR
                                        [--current DIR] [--files-per-epoch N] [--workers N] [--follow]

Input: edges src long, dst long, and optionally diff long; undirected; ids are not negative. Each row adds
an edge (diff 1, and without diff) or removes it (-1); it is there while its diffs add up to more than 0.
Output: a Delta table with epoch long, node long, component long, diff int. The component is the smallest id
in it; diff is +1 for a node's new component and -1 for its old one, so the sum over all epochs up to
one is that epoch's result. --current: a Delta table with the present node, component.
"""

from __future__ import annotations

import cli
from edges import arguments, dataflow, deliver, read_edges, run

import timely_spark as ts


def main() -> None:
    """Run the job."""
    args = arguments(__doc__).parse_args()
    flow = dataflow("connected_components", args)
    edges = read_edges(flow, args.edges, args.format, args.files_per_epoch)
    deliver(ts.graphs.connected_components(edges, name="components"), args)
    run(flow, args)


if __name__ == "__main__":
    cli.run(main)
