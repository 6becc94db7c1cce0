"""Incremental graph algorithms on collections: results follow insertions and deletions of edges.

- `connected_components`: for each node the least node of its component.
- `strongly_connected_components`: for each node the least node on a common cycle.
- `bfs`: for each node the number of edges from the nearest root.
- `sssp`: for each node the least sum of weights from a root.
- `pagerank`: the PageRank of each node.
- `motifs`: each match of a pattern of nodes and edges.
- `landmarks`: for each node the distances to few nodes; `distance_bounds`: and what follows for others.
- `stable_matching`: pairs of two sides, such that no two nodes prefer each other to their partners.
- `triangles`: each three nodes with an edge between every two.
- `lcc`: for each node the density of edges among its neighbours (its local clustering coefficient).
- `cdlp`: for each node the label of its community, by label propagation.
- `label_propagation`: for each node the label that reaches it from labelled nodes.
- `minimum_spanning_forest`: the edges of least weight that connect what all edges connect.
- `betweenness`: for each node the part of shortest paths that lead through it.
- `k_core`: the nodes with k neighbours among themselves.
- `core_numbers`: for each node the greatest k such that it is in the k-core.
- `maximal_independent_set`: nodes without an edge between two of them, to which none can be added.
- `colouring`: for each node a colour, other than those of its neighbours.

All take a collection of edges: parallel edges are multiplicities, and no edge may be removed more often than
it was added. All can be used in loops, and other operators can read their results. `src`, `dst` and
`node` are names of columns, of one type; `name` is the name of the algorithm's step or loop, with which the
names of its parts begin.

Example:
    >>> import timely_spark as ts
    >>> flow = ts.Dataflow("graph")
    >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    >>> _ = ts.graphs.triangles(edges).changes().capture("out")
    >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1), (3, 1, 1)], [(3, 1, -1)]]})["out"].rows()
    {0: [(1, 2, 3, 1)], 1: [(1, 2, 3, -1)]}
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from timely_spark.authors import caller
from timely_spark.errors import NoSuchMethod
from timely_spark.graphs.centrality import betweenness
from timely_spark.graphs.clustering import lcc
from timely_spark.graphs.components import connected_components, strongly_connected_components
from timely_spark.graphs.cores import core_numbers, k_core
from timely_spark.graphs.greedy import colouring, maximal_independent_set
from timely_spark.graphs.labels import cdlp, label_propagation
from timely_spark.graphs.landmarks import distance_bounds, landmarks
from timely_spark.graphs.matching import stable_matching
from timely_spark.graphs.minimum_spanning import minimum_spanning_forest
from timely_spark.graphs.paths import bfs, sssp
from timely_spark.graphs.patterns import motifs
from timely_spark.graphs.ranks import pagerank
from timely_spark.graphs.triangles import triangles

__all__ = [
    "betweenness",
    "bfs",
    "cdlp",
    "colouring",
    "connected_components",
    "core_numbers",
    "distance_bounds",
    "k_core",
    "label_propagation",
    "landmarks",
    "lcc",
    "maximal_independent_set",
    "minimum_spanning_forest",
    "motifs",
    "pagerank",
    "sssp",
    "stable_matching",
    "strongly_connected_components",
    "triangles",
]

#: our names, by those of other libraries, in lower case without underscores
_SUGGESTIONS = {
    "aggregatemessages": "pregel of timely_spark; or join and sum",
    "betweennesscentrality": "betweenness",
    "clustering": "lcc",
    "coloring": "colouring",
    "dijkstra": "sssp",
    "find": "motifs",
    "minimumspanningtree": "minimum_spanning_forest",
    "pregel": "pregel of timely_spark",
    "scc": "strongly_connected_components",
    "shortestpaths": "bfs, sssp or landmarks",
    "trianglecount": "triangles",
    "wcc": "connected_components",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        word = name.lower().replace("_", "")
        ours = {one.replace("_", ""): one for one in __all__}
        close = ", ".join(ours[one] for one in difflib.get_close_matches(word, ours))
        meant = _SUGGESTIONS.get(word) or close or f"one of {', '.join(__all__)}"
        msg = f"graphs has no {name!r}"
        raise NoSuchMethod(msg, where=caller(), hint=f"did you mean {meant}?")
