"""Graphs as collections: algorithms whose answers are kept as edges come and go.

- `connected_components`: for each node the least one that it is connected with.
- `strongly_connected_components`: the same along the edges' direction, there and back.
- `bfs`: for each node the number of edges from the nearest root.
- `sssp`: for each node the least sum of weights from a root.
- `pagerank`: how much each node counts.
- `triangles`: three nodes of which each two have an edge.

All take a collection of edges, so parallel edges are multiplicities, and must not be taken away more often
than they came; all may be used in loops, and their answers be read by further operators.

Example:
    >>> import timely_spark as ts
    >>> flow = ts.Dataflow("graph")
    >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    >>> _ = ts.graphs.triangles(edges).changes().capture("out")
    >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1), (3, 1, 1)], [(3, 1, -1)]]})["out"].rows()
    {0: [(1, 2, 3, 1)], 1: [(1, 2, 3, -1)]}
"""

from __future__ import annotations

from timely_spark.graphs.components import connected_components, strongly_connected_components
from timely_spark.graphs.paths import bfs, sssp
from timely_spark.graphs.ranks import pagerank
from timely_spark.graphs.triangles import triangles

__all__ = [
    "bfs",
    "connected_components",
    "pagerank",
    "sssp",
    "strongly_connected_components",
    "triangles",
]
