"""Graphs that change: what every side of `benchmarks.graphs` reads, epoch by epoch, and what it must answer.

A trace is a folder: `0000.parquet` is the load, each further file an epoch, with columns src, dst (long) and
diff (+1 or -1); `0000.bin` has the same rows as packed 32-bit integers. Edges are a multiset, self loops
included; what is deleted is there. A node is one that an edge touches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LOAD = "load"
#: Inserts and deletes of each kind of epoch; a trace goes through them in turn.
KINDS = {
    "1,000 inserts + 1,000 deletes": (1_000, 1_000),
    "one insert": (1, 0),
    "100,000 changes": (50_000, 50_000),
}
SEED = 20_13
#: The heap of every JVM that is compared.
HEAP = "12g"


def uniform(nodes: int, edges: int, random: np.random.Generator) -> np.ndarray:
    """Both ends of each edge drawn evenly."""
    return random.integers(0, nodes, (edges, 2))


def rmat(nodes: int, edges: int, random: np.random.Generator) -> np.ndarray:
    """R-MAT with a, b, c, d = .57, .19, .19, .05: skewed degrees; nodes renumbered at random."""
    inside = np.empty((0, 2), np.int64)
    while len(inside) < edges:  # what falls outside a number of nodes that is no power of two is drawn again
        ends = np.zeros((edges, 2), np.int64)
        for _ in range((nodes - 1).bit_length()):
            quadrant = np.searchsorted((0.57, 0.76, 0.95), random.random(edges), side="right")
            ends = 2 * ends + np.stack([quadrant >> 1, quadrant & 1], axis=1)
        inside = np.concatenate([inside, ends[(ends < nodes).all(axis=1)]])
    return random.permutation(nodes)[inside[:edges]]


GRAPHS = {"uniform": uniform, "R-MAT": rmat}


def write(folder: Path, graph: str, nodes: int, edges: int, rounds: int) -> list[str]:
    """Writes a trace: the load, then `rounds` times an epoch of each kind.

    Returns:
        The kind of each epoch.
    """
    random = np.random.default_rng(SEED)
    drawn = GRAPHS[graph](nodes, edges + rounds * sum(inserts for inserts, _ in KINDS.values()), random)
    held, drawn = drawn[:edges], drawn[edges:]
    _write(folder, 0, held, held[:0])
    kinds = [LOAD, *list(KINDS) * rounds]
    for number, kind in enumerate(kinds[1:], 1):
        inserts, deletes = KINDS[kind]
        gone = random.choice(len(held), deletes, replace=False)
        _write(folder, number, drawn[:inserts], held[gone])
        held = np.concatenate([np.delete(held, gone, axis=0), drawn[:inserts]])
        drawn = drawn[inserts:]
    return kinds


def _write(folder: Path, number: int, inserted: np.ndarray, deleted: np.ndarray) -> None:
    ends = np.concatenate([inserted, deleted])
    diff = np.repeat([1, -1], [len(inserted), len(deleted)])
    table = pa.table({"src": ends[:, 0], "dst": ends[:, 1], "diff": diff})
    group = max(1, len(diff) // 4)  # so that several tasks can read a file
    pq.write_table(table, folder / f"{number:04}.parquet", row_group_size=group)
    np.column_stack([ends, diff]).astype("<i4").tofile(folder / f"{number:04}.bin")


def epochs(folder: Path, count: int) -> list[Path]:
    """The first epochs of a trace."""
    return sorted(folder.glob("*.parquet"))[:count]


def read(folder: Path, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Src, dst and diff of the first epochs."""
    for path in epochs(folder, count):
        src, dst, diff = (column.to_numpy() for column in pq.read_table(path))
        yield src, dst, diff


def answer(seconds: float, components: int, checksum: int) -> None:
    """Tells the answer to an epoch, and how long it took.

    `checksum` is the sum of (node + 1) * (component + 1), a component being named by its least node.
    """
    result = {"seconds": seconds, "components": int(components), "checksum": int(checksum)}
    print(json.dumps(result), flush=True)
