"""The incremental engine alone, without Spark: workers and coordinator in one process, epoch after epoch.

A uniform random graph with weights from 1 to 99 is loaded and then changed: by 1,000 edges that come and
1,000 that go (in proportion for other sizes), three times; by ten times as many; and by one edge, twice. Each
answer is compared with one computed anew by scipy and numpy; `scipy` is what that takes, on one thread, given
the matrix. The share of changed edges from which on computing anew is faster (COST) is estimated from these.

Ours is processor time, of all workers together, without that of `checkpoint`, which is a column of its own:
large parts of a state are blobs in memory there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks.harness import Report, median
from timely_spark.coordinator import Coordinator
from timely_spark.runtime.query.process import task
from timely_spark.state.keys import from_bytes
from timely_spark.worker import Worker, pack
from timely_spark.worker.rows import ROWS

#: Nodes and edges; strongly connected components have a tenth of both.
SIZES = {"5k": (5_000, 25_000), "100k": (100_000, 500_000)}
SEED, STEPS = 20_13, 5
Rows = np.ndarray  # of edges: src, dst, weight, diff


# -- the algorithms, and what they must answer ---------------------------------------------------------------


def labels(edges: ts.Collection) -> ts.Collection:
    """The textbook's loop: the least label goes from neighbour to neighbour."""
    links = edges.concat(edges.select(src="dst", dst="src")).arrange("src")
    own = edges.select(node="src").concat(edges.select(node="dst")).distinct()
    own = own.select("node", value="node")

    def spread(near: ts.Collection) -> ts.Collection:
        targets = near.join(links, left="node", right="src").select(node="dst", value="value")
        return targets.concat(own).min("value", keys="node")

    return own.iterate(spread)


def flow_of(name: str) -> ts.Dataflow:
    flow = ts.Dataflow(name)
    weighed = flow.input("edges", "src long, dst long, weight long, diff long").collection(diff="diff")
    roots, edges = flow.input("roots", "node long").collection(), weighed.select("src", "dst")
    made = {
        "bfs": lambda: ts.graphs.bfs(edges, roots),
        "sssp": lambda: ts.graphs.sssp(weighed, roots),
        "labels": lambda: labels(edges),
        "pagerank": lambda: ts.graphs.pagerank(edges, STEPS),
        "scc": lambda: ts.graphs.strongly_connected_components(edges),
    }[name]()
    node, value = made.schema.names
    made.select(node=node, value=value).changes().capture("out")
    return flow


def anew(name: str, edges: Rows, nodes: int) -> np.ndarray:
    """By node its value, -1 where there is none: by scipy and numpy."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components, dijkstra

    src, dst, weight, _ = edges.T
    if name == "pagerank":
        return ranks(src, dst, nodes)
    if name in {"bfs", "sssp"}:
        order = np.lexsort((weight, dst, src))  # the lightest of parallel edges
        order = order[np.unique(src[order] * nodes + dst[order], return_index=True)[1]]
        cost = weight[order] if name == "sssp" else np.ones(len(order))
        matrix = csr_matrix((cost, (src[order], dst[order])), shape=(nodes, nodes))
        far = dijkstra(matrix, indices=0)
        return np.where(np.isfinite(far), far, -1).astype(np.int64)
    matrix = csr_matrix((np.ones(len(src)), (src, dst)), shape=(nodes, nodes))
    how = {"directed": True, "connection": "strong"} if name == "scc" else {"directed": False}
    count, which = connected_components(matrix, **how)
    least = np.full(count, nodes)
    np.minimum.at(least, which, np.arange(nodes))
    return np.where(touched(src, dst, nodes), least[which], -1)


def ranks(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    """PageRank in whole numbers, as `ts.graphs.pagerank` defines it."""
    degree, there = np.bincount(src, minlength=nodes), touched(src, dst, nodes)
    rank = np.full(nodes, 1_000_000)
    for _ in range(STEPS):
        share = rank * 17 // (np.maximum(degree, 1) * 20)
        got = np.bincount(dst, share[src], nodes).astype(np.int64)
        rank = 150_000 + got
    return np.where(there, rank, -1)


def touched(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    found = np.zeros(nodes, bool)
    found[src] = found[dst] = True
    return found


# -- the engine ----------------------------------------------------------------------------------------------


class Memory(dict[bytes, bytes]):
    """Blobs in memory."""

    def put(self, what: str, data: bytes) -> bytes:
        self[what.encode()] = data
        return what.encode()

    def get(self, reference: bytes) -> bytes:
        return self[reference]


class Engine:
    """A flow's workers, alive, and its coordinator."""

    def __init__(self, flow: ts.Dataflow, workers: int) -> None:
        self.plan = flow.compile(workers)
        self.coordinator = Coordinator(self.plan)
        self.workers = [Worker(self.plan, None, worker, Memory()) for worker in range(workers)]
        self.turn, self.batch = self.coordinator.first(), 0

    def epoch(self, **inputs: pa.Table) -> list[pa.Table]:
        """All rounds of an epoch; what comes out."""
        packed = [pack(self.plan, name, table, 0) for name, table in inputs.items()]
        rows, out = pa.concat_tables([ROWS.empty_table(), self.turn.rows, *packed]), []
        while rows.num_rows:
            header, made = self.turn.header, []
            for index, worker in enumerate(self.workers):
                mine = rows.filter(pc.equal(rows.column("worker"), index))
                if mine.num_rows:
                    made.append(worker.step(self.batch, mine, lambda header=header: header))
            self.turn = self.coordinator.apply_round(self.batch, pa.concat_tables(made))
            out += [from_bytes(payload.as_buffer()) for payload in self.turn.outputs.column("payload")]
            rows = self.turn.rows
        self.batch += 1
        return out

    def checkpoint(self) -> None:
        for index, worker in enumerate(self.workers):
            worker.checkpoint(f"{index}-{self.batch}")


def epochs(nodes: int, edges: int) -> Iterator[tuple[str, Rows, Rows]]:
    """The kind of each epoch, its changes, and all edges there are then."""
    random = np.random.default_rng(SEED)

    def drawn(count: int) -> Rows:
        ends, weight = random.integers(0, nodes, (count, 2)), random.integers(1, 100, count)
        return np.column_stack([ends, weight, np.ones(count, np.int64)])

    held, few = drawn(edges), max(1, edges // 500)
    yield "load", held, held
    sizes = [few] * 3 + [10 * few]
    kinds = [(f"{size:,} inserts + {size:,} deletes", size, size) for size in sizes]
    for kind, come, go in [*kinds, *[("one insert", 1, 0)] * 2]:
        gone, new = random.choice(len(held), go, replace=False), drawn(come)
        changes = np.concatenate([new, held[gone] * [1, 1, 1, -1]])
        held = np.concatenate([np.delete(held, gone, axis=0), new])
        yield kind, changes, held


Seconds = dict[str, list[float]]


def measure(name: str, nodes: int, edges: int, workers: int) -> tuple[Seconds, Seconds, Seconds]:
    """By kind of epoch, seconds of ours, of its checkpoint, and of computing anew."""
    engine, answer = Engine(flow_of(name), workers), np.full(nodes, -1)
    anew(name, np.zeros((1, 4), np.int64), 1)  # imports
    found: tuple[Seconds, Seconds, Seconds] = ({}, {}, {})
    for kind, changes, held in epochs(nodes, edges):
        columns = dict(zip(("src", "dst", "weight", "diff"), changes.T, strict=True))
        roots = pa.table({"node": pa.array([0] if kind == "load" else [], pa.int64())})
        spent = [time.process_time()]
        out = engine.epoch(edges=pa.table(columns), roots=roots)
        spent.append(time.process_time())
        engine.checkpoint()
        spent.append(time.process_time())
        due = anew(name, held, nodes)
        spent.append(time.process_time())
        for sign in (-1, 1):
            for node, value, diff in (map(pa.ChunkedArray.to_numpy, table.columns) for table in out):
                answer[node[diff == sign]] = value[diff == sign] if sign > 0 else -1
        if name in {"bfs", "sssp"}:
            due[0] = 0  # a root is there without edges
        assert np.array_equal(answer, due), f"{name}, {workers} workers, {kind}: not what scipy says"
        for each, seconds in zip(found, np.diff(spent).tolist(), strict=True):
            each.setdefault(kind, []).append(seconds)
    return found


# -- the report ----------------------------------------------------------------------------------------------


def run(quick: bool) -> Report:
    """All algorithms; quick: a small graph, one worker."""
    report = Report("engine", "The incremental engine alone", quick=quick)
    nodes, edges = SIZES["5k" if quick else "100k"]
    with task():
        for name in ("bfs", "sssp", "labels", "pagerank", "scc"):
            less = 10 if name == "scc" and not quick else 1
            for workers in (1,) if quick else (1, 2):
                _compare(report, name, nodes // less, edges // less, workers)
    report.note("Processor time: other work on the machine disturbs it less than the wall clock.")
    report.write()
    return report


def _compare(report: Report, name: str, nodes: int, edges: int, workers: int) -> None:
    ours, written, scipy = measure(name, nodes, edges, workers)
    load = median(ours["load"])
    few = max(1, edges // 500)
    sizes = {
        "one insert": 1,
        **{f"{n:,} inserts + {n:,} deletes": 2 * n for n in (few, 10 * few)},
        "load": edges,
    }
    share = crossing([(n / edges, median(ours[kind]) / median(scipy[kind])) for kind, n in sizes.items()])
    report.note(
        f"{name}, {workers} w: computing anew with scipy is faster from {share:.3%} of changed edges on."
    )
    for kind, seconds in ours.items():
        case = f"{name} {nodes:,} / {edges:,}, {workers} w, {kind}"
        details = {"checkpoint": median(written[kind]), "of the load": median(seconds) / load}
        report.add(
            case, ours=median(seconds), baseline=median(scipy[kind]), against="scipy", unit="s", **details
        )  # fmt: skip


def crossing(points: list[tuple[float, float]]) -> float:
    """The share at which a growing ratio becomes 1, by interpolation of logarithms; 0: it is always above.

    >>> round(crossing([(0.001, 0.1), (0.1, 10.0), (1.0, 20.0)]), 3)
    0.01
    """
    shares, ratios = np.log(np.array(points).T)
    return float(np.exp(np.interp(0.0, np.maximum.accumulate(ratios), shares, left=-np.inf, right=0.0)))


def main() -> None:
    """One algorithm: `python -m benchmarks.engine sssp 100000 500000 1`."""
    name, *sizes = sys.argv[1:]
    report = Report("engine", f"The incremental engine alone: {name}", quick=True)
    with task():
        _compare(report, name, *map(int, sizes))
    print(report.markdown())


if __name__ == "__main__":
    main()
