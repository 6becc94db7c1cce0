"""Graphs that change, for `benchmarks.engine`: drawn at random, or the classes of PySpark's jars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.baselines import trace
from benchmarks.class_graph import ends as classes
from benchmarks.programs import Rows

#: Nodes and edges of graphs that are drawn.
SIZES = {
    "5k": (5_000, 25_000),
    "10k": (10_000, 50_000),
    "100k": (100_000, 500_000),
    "1m": (1_000_000, 5_000_000),
}
SEED = 20_13
LOAD, PERCENT, ONE, PROFILED = "load", "1 % of the edges", "one insert", "profiled"


@dataclass(frozen=True)
class Graph:
    """Both ends of each edge: of those that are loaded, then of those that come."""

    name: str
    nodes: int
    edges: int
    ends: np.ndarray

    @property
    def few(self) -> str:
        """The kind of epoch with few changes."""
        return self.kinds()[0][0]

    def kinds(self) -> list[tuple[str, int, int]]:
        """Of each epoch but the load: its kind, how many edges come, how many go."""
        count, percent = min(1_000, self.edges // 500), self.edges // 200
        few = (f"{count:,} inserts + {count:,} deletes", count, count)
        return [
            few,
            few,
            few,
            (PERCENT, percent, percent),
            (ONE, 1, 0),
            (ONE, 1, 0),
            (PROFILED, count, count),
        ]

    def epochs(self) -> Iterator[tuple[str, Rows, Rows]]:
        """The kind of each epoch, its changes, and all edges there are then."""
        random = np.random.default_rng(SEED)
        weights, one = random.integers(1, 100, len(self.ends)), np.ones(len(self.ends), np.int64)
        rows = np.column_stack([self.ends, weights, one])
        held, rows = rows[: self.edges], rows[self.edges :]
        yield LOAD, held, held
        for kind, come, go in self.kinds():
            gone, new, rows = random.choice(len(held), go, replace=False), rows[:come], rows[come:]
            changes = np.concatenate([new, held[gone] * [1, 1, 1, -1]])
            held = np.concatenate([np.delete(held, gone, axis=0), new])
            yield kind, changes, held


def graph_of(name: str, size: str = "") -> Graph:
    """A graph, numbered so that most edges go out of node 0, from where paths begin."""
    random = np.random.default_rng(SEED)
    if name == "classes":
        ends = random.permutation(classes())
        nodes, edges = int(ends.max()) + 1, len(ends) * 49 // 50
    else:
        nodes, edges = SIZES[size]
        ends = trace.GRAPHS[name](nodes, edges + edges // 50, random)
    most = np.bincount(ends[:, 0]).argmax()
    ends = np.where(ends == 0, most, np.where(ends == most, 0, ends))
    return Graph(f"{name} {nodes:,} / {edges:,}", nodes, edges, ends)
