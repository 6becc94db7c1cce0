"""The programs of `benchmarks.engine`: as flows of ours, and computed anew by scipy and numpy.

A row's `mark` is an odd number for each node, times its value and one; an answer is the sum of its rows'
marks, as integers of 64 bits. `baselines/differential/src/bin/programs.rs` says the same in Rust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts

#: Iterations of pagerank, the least degree in the core, and the number of landmarks.
STEPS, CORE, LANDMARKS = 5, 5, 4
Rows = np.ndarray  # of edges: src, dst, weight, diff


# -- as flows ------------------------------------------------------------------------------------------------


def labels(edges: ts.Collection) -> ts.Collection:
    """The textbook's loop: the least label goes from neighbour to neighbour."""
    links = edges.concat(edges.select(src="dst", dst="src")).arrange("src")
    own = edges.select(node="src").concat(edges.select(node="dst")).distinct()
    own = own.select("node", value="node")

    def spread(near: ts.Collection) -> ts.Collection:
        targets = near.join(links, left="node", right="src").select(node="dst", value="value")
        return targets.concat(own).min("value", keys="node")

    return own.iterate(spread)


def core(edges: ts.Collection) -> ts.Collection:
    """The textbook's loop: nodes of few edges go, with their edges; of those left, their degree."""
    both = edges.concat(edges.select(src="dst", dst="src"))

    def peel(left: ts.Collection) -> ts.Collection:
        degrees = left.count("degree", keys="src").where(pc.field("degree") >= CORE)
        many = degrees.select(node="src").consolidate().arrange("node")  # a degree that stays enough is none
        inside = both.semijoin(many, left="src", right="node", unique=True)
        return inside.semijoin(many, left="dst", right="node", unique=True)

    return both.iterate(peel).count("degree", keys="src")


def landmarks(edges: ts.Collection) -> ts.Collection:
    """Naiad's approximate shortest paths: the distances, in both directions, from the first nodes."""
    first = edges.select(node="src").where(pc.field("node") < LANDMARKS).distinct()
    return ts.graphs.landmarks(edges, first)


FLOWS: Mapping[str, Callable[[ts.Collection, ts.Collection], ts.Collection]] = {
    "bfs": lambda edges, roots: ts.graphs.bfs(edges.select("src", "dst"), roots),
    "sssp": ts.graphs.sssp,
    "labels": lambda edges, _: labels(edges.select("src", "dst")),
    "pagerank": lambda edges, _: ts.graphs.pagerank(edges.select("src", "dst"), STEPS),
    "scc": lambda edges, _: ts.graphs.strongly_connected_components(edges.select("src", "dst")),
    "k-core": lambda edges, _: core(edges.select("src", "dst")),
    "triangles": lambda edges, _: ts.graphs.triangles(edges.select("src", "dst")),
    "landmarks": lambda edges, _: landmarks(edges.select("src", "dst")),
}


def flow_of(name: str, tell: Callable[[int, pa.Table], None] | None = None) -> ts.Dataflow:
    """The program, from changes of edges to changes of the answer, which are captured or told."""
    flow = ts.Dataflow(name)
    edges = flow.input("edges", "src long, dst long, weight long, diff long").collection(diff="diff")
    roots = flow.input("roots", "node long").collection()
    changes = FLOWS[name](edges, roots).changes()
    if tell is None:
        changes.capture("out")
    else:
        changes.subscribe(tell)
    return flow


def mark(table: pa.Table) -> int:
    """The sum of the marks of an answer's changes: node, value, diff, or three nodes and diff."""
    *first, last, diff = (column.to_numpy() for column in table.columns)
    odd = [2 * node + 1 for node in first]
    row = odd[0] * odd[1] * (2 * last + 1) if len(odd) == 2 else odd[0] * (last + 1)
    return int(np.sum(row * diff))


# -- computed anew -------------------------------------------------------------------------------------------


def anew(name: str, edges: Rows, nodes: int) -> int:
    """The marks of the answer, by scipy and numpy in one thread."""
    src, dst, weight, _ = edges.T
    if name == "triangles":
        return _triangles(src, dst, nodes)
    if name == "landmarks":
        return _landmarks(src, dst, nodes)
    values = _values(name, src, dst, weight, nodes)
    return int(np.sum((2 * np.arange(nodes) + 1) * np.where(values < 0, 0, values + 1)))


def _values(name: str, src: np.ndarray, dst: np.ndarray, weight: np.ndarray, nodes: int) -> np.ndarray:
    """By node its value, -1 where there is none."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components, dijkstra

    if name == "pagerank":
        return _ranks(src, dst, nodes)
    if name == "k-core":
        return _core(src, dst, nodes)
    if name == "sssp":
        packed = np.sort((src * nodes + dst) * 128 + weight)
        pair = packed >> 7
        lightest = np.append(True, pair[1:] != pair[:-1])
        src, dst = np.divmod(pair[lightest], nodes)
        matrix = csr_matrix((packed[lightest] & 127, (src, dst)), shape=(nodes, nodes))
        far = dijkstra(matrix, indices=0)
        return np.where(np.isfinite(far), far, -1).astype(np.int64)
    matrix = csr_matrix((np.ones(len(src)), (src, dst)), shape=(nodes, nodes))
    if name == "bfs":
        return _levels(matrix, nodes)
    how = {"directed": True, "connection": "strong"} if name == "scc" else {"directed": False}
    count, which = connected_components(matrix, **how)
    least = np.full(count, nodes)
    np.minimum.at(least, which, np.arange(nodes))
    return np.where(_touched(src, dst, nodes), least[which], -1)


def _levels(matrix: object, nodes: int, first: int = 0) -> np.ndarray:
    """How far each node is from the first one, of the order in which a search meets them."""
    from scipy.sparse.csgraph import breadth_first_order

    order, before = breadth_first_order(matrix, first)
    place = np.empty(nodes, np.int64)
    place[order] = np.arange(len(order))
    parents, far = place[before[order[1:]]], np.full(nodes, -1)  # they ascend
    begin, end, level = 0, 1, 0
    while begin < end:
        far[order[begin:end]] = level
        begin, end, level = end, 1 + int(np.searchsorted(parents, end)), level + 1
    return far


def _ranks(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    """PageRank in integers, as `ts.graphs.pagerank` defines it."""
    degree = np.bincount(src, minlength=nodes)
    rank = np.full(nodes, 1_000_000)
    for _ in range(STEPS):
        share = rank * 17 // (np.maximum(degree, 1) * 20)
        rank = 150_000 + np.bincount(dst, share[src], nodes).astype(np.int64)
    return np.where(_touched(src, dst, nodes), rank, -1)


def _core(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    while True:
        degree = np.bincount(src, minlength=nodes) + np.bincount(dst, minlength=nodes)
        inside = (degree[src] >= CORE) & (degree[dst] >= CORE)
        if inside.all():
            return np.where(degree > 0, degree, -1)
        src, dst = src[inside], dst[inside]


def _triangles(src: np.ndarray, dst: np.ndarray, nodes: int) -> int:
    """The marks of all triangles: paths of two edges from the node of least degree, where a third closes."""
    from scipy.sparse import csr_matrix

    links = np.unique(np.minimum(src, dst) * nodes + np.maximum(src, dst))
    a, b = np.divmod(links, nodes)
    a, b = a[a != b], b[a != b]
    degree = np.bincount(np.concatenate([a, b]), minlength=nodes)
    turned = degree[a] > degree[b]
    low, high = np.where(turned, b, a), np.where(turned, a, b)
    odd = 2 * np.arange(nodes) + 1
    first = csr_matrix((odd[low], (low, high)), shape=(nodes, nodes))
    second = csr_matrix((odd[low] * odd[high], (low, high)), shape=(nodes, nodes))
    closing = csr_matrix((np.ones(len(low), np.int64), (low, high)), shape=(nodes, nodes))
    return int((first @ second).multiply(closing).data.sum())


def _landmarks(src: np.ndarray, dst: np.ndarray, nodes: int) -> int:
    """The marks of the distances from the first nodes, each by a breadth-first search."""
    from scipy.sparse import csr_matrix

    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    matrix = csr_matrix((np.ones(2 * len(src)), ends), shape=(nodes, nodes))
    odd, total = 2 * np.arange(nodes) + 1, 0
    for first in np.intersect1d(src, np.arange(LANDMARKS)).tolist():
        far = _levels(matrix, nodes, first)
        total += int(np.sum(odd * odd[first] * np.where(far < 0, 0, 2 * far + 1)))
    return total


def _touched(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    touched = np.zeros(nodes, bool)
    touched[src] = touched[dst] = True
    return touched
