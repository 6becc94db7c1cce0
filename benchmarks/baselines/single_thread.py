"""Connected components computed anew for each epoch on one thread: `single_thread.py scipy|networkx TRACE N`.

What COST asks for (McSherry, Isard, Murray: "Scalability! But at what COST?", 2015). Reading an epoch's file
is not counted; keeping the edges is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.baselines.trace import answer, read


def with_scipy(folder: Path, count: int) -> None:
    """The edges are a sparse matrix of how often each is there, to which an epoch's matrix is added."""
    from scipy.sparse import coo_matrix, csr_matrix
    from scipy.sparse.csgraph import connected_components

    matrix, nodes = None, 0
    for src, dst, diff in read(folder, count):
        began = time.perf_counter()
        nodes = max(nodes, src.max() + 1, dst.max() + 1)
        change = coo_matrix((diff, (src, dst)), shape=(nodes, nodes)).tocsr()
        if matrix is not None:
            matrix.resize(change.shape)
            change = matrix + change
        matrix: csr_matrix = change
        matrix.eliminate_zeros()
        number, label = connected_components(matrix, directed=False)
        node, least = np.arange(nodes), np.empty(number, np.int64)
        least[label[::-1]] = node[::-1]  # the last one stays: the least
        touched = np.diff(matrix.indptr) > 0
        touched[matrix.indices] = True
        node, component = node[touched], least[label][touched]
        took = time.perf_counter() - began
        answer(took, np.sum(node == component), np.sum((node + 1) * (component + 1)))


def with_networkx(folder: Path, count: int) -> None:
    """A MultiGraph without the nodes that no edge touches."""
    import networkx as nx

    graph = nx.MultiGraph()
    for src, dst, diff in read(folder, count):
        began = time.perf_counter()
        for sign, change in ((1, graph.add_edges_from), (-1, graph.remove_edges_from)):
            chosen = diff == sign
            change(zip(src[chosen].tolist(), dst[chosen].tolist(), strict=True))
        graph.remove_nodes_from(list(nx.isolates(graph)))
        least = {min(members): members for members in nx.connected_components(graph)}
        took = time.perf_counter() - began
        answer(took, len(least), sum((at + 1) * (sum(nodes) + len(nodes)) for at, nodes in least.items()))


if __name__ == "__main__":
    {"scipy": with_scipy, "networkx": with_networkx}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
