"""Patterns in a graph that changes: delta queries beside those of dogs^3, and joins of DataFrames.

A uniform graph is loaded, and then changed: three times by 100 edges that come and 100 that go. An edge has a
label, 0 to 2. The patterns are triangles, a->b, b->c, a->c; those whose first edge has label 0 and whose
second label 1; diamonds, a->b, a->c, b->d, c->d; and 4-cliques. All sides get the same changes, and after
each epoch their answers must be the same, as the sum of their matches' marks.

- ours: `ts.graphs.motifs`, the engine without Spark, one worker, in memory.
- dogs^3: delta queries of worst-case-optimal joins in differential dataflow (Rust), one worker, in memory.
- DataFrames: what GraphFrames makes of a pattern: a join for each edge of it, by Spark SQL, of all edges
  anew. The edges are cached.

All this is processor time, of all processes, which other work on the machine disturbs less than the wall
clock.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import mul
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import harness
from benchmarks.alone import Engine
from benchmarks.baselines import built, trace
from benchmarks.harness import Report, median
from benchmarks.resources import processor
from timely_spark.runtime.process import task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nodes and edges; how many edges come and go in each epoch after the load; what a mark is the rest by.
SIZE, QUICK = (2_000, 40_000), (500, 4_000)
CHANGES, EPOCHS, REST = 100, 3, 1_000_003
LOAD, FEW = "load", f"{CHANGES} inserts + {CHANGES} deletes"
#: By edge of the pattern its ends, and its label. `baselines/dogs` has the same.
PATTERNS: Mapping[str, list[tuple[str, str, int | None]]] = {
    "triangles": [("a", "b", None), ("b", "c", None), ("a", "c", None)],
    "labelled": [("a", "b", 0), ("b", "c", 1), ("a", "c", None)],
    "diamonds": [("a", "b", None), ("a", "c", None), ("b", "d", None), ("c", "d", None)],
    "4-cliques": [(a, b, None) for a, b in ("ab", "ac", "ad", "bc", "bd", "cd")],
}
Epoch = tuple[float, int]  # seconds, and the sum of the marks


def epochs(nodes: int, edges: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The changes of each epoch, and all edges there are then: src, dst, label, diff."""
    random = np.random.default_rng(trace.SEED)
    packed = random.choice(nodes * nodes, edges + EPOCHS * CHANGES, replace=False)  # no parallel edges
    ends = np.column_stack([packed // nodes, packed % nodes])
    rows = np.column_stack([ends, random.integers(0, 3, len(ends)), np.ones(len(ends), np.int64)])
    held, rows = rows[:edges], rows[edges:]
    yield held, held
    for _ in range(EPOCHS):
        gone, come, rows = random.choice(len(held), CHANGES, replace=False), rows[:CHANGES], rows[CHANGES:]
        changes = np.concatenate([come, held[gone] * [1, 1, 1, -1]])
        held = np.concatenate([np.delete(held, gone, axis=0), come])
        yield changes, held


def ours(name: str, history: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[Epoch]:
    """By the engine alone."""
    pattern = PATTERNS[name]
    text = "; ".join(
        f"({a})-[{'' if label is None else f'e{at}'}]->({b})" for at, (a, b, label) in enumerate(pattern)
    )
    where = {
        f"e{at}": pc.field("label") == label for at, (_, _, label) in enumerate(pattern) if label is not None
    }
    flow = ts.Dataflow(name)
    edges = flow.input("edges", "src long, dst long, label long, diff long").collection(diff="diff")
    nodes = sorted({end for a, b, _ in pattern for end in (a, b)})
    ts.graphs.motifs(edges, text, where=where).select(*nodes).changes().capture("out")
    engine, sum_ = Engine(flow, 1), 0
    for changes, _ in history:
        table = pa.table(dict(zip(("src", "dst", "label", "diff"), changes.T, strict=True)))
        began = process_time()
        out = engine.epoch(edges=table)
        seconds = process_time() - began
        for table in out:
            *columns, diff = (column.to_numpy() for column in table.columns)
            sum_ += int(np.sum(reduce(mul, (2 * each + 1 for each in columns)) % REST * diff))
        yield seconds, sum_


def joined(name: str, history: list[tuple[np.ndarray, np.ndarray]], spark: SparkSession) -> Iterator[Epoch]:
    """By joins of DataFrames, anew."""
    from pyspark.sql import functions as f

    pattern = PATTERNS[name]
    nodes = sorted({end for a, b, _ in pattern for end in (a, b)})
    for _, held in history:
        table = pa.table(dict(zip(("src", "dst", "label"), held.T, strict=False)))
        edges = spark.createDataFrame(table).cache()
        edges.count()
        began, rows, bound = processor(), None, set[str]()
        for a, b, label in pattern:
            some = edges if label is None else edges.where(f.col("label") == label)
            some = some.select(f.col("src").alias(a), f.col("dst").alias(b))
            rows = some if rows is None else rows.join(some, on=[end for end in (a, b) if end in bound])
            bound |= {a, b}
        mark = reduce(mul, (2 * f.col(node) + 1 for node in nodes)) % REST
        total = rows.select(f.sum(mark)).first()
        seconds = processor() - began
        edges.unpersist()
        yield seconds, int(total[0] or 0)


def dogs(name: str, history: list[tuple[np.ndarray, np.ndarray]], report: Report) -> Iterator[Epoch]:
    """By dogs^3; nothing without cargo."""
    folder = harness.folder()
    for number, (changes, _) in enumerate(history):
        changes.astype("<i4").tofile(folder / f"{number:04}.bin")
    try:
        command = [built.rust("motifs", "dogs"), name, str(folder), str(len(history))]
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", b"").decode(), file=sys.stderr)
        if not report.notes:
            report.note("dogs^3 was not measured: cargo is not there, or could not build it.")
        return
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(folder)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        yield row["seconds"], row["digest"]


def run(quick: bool) -> Report:
    """All patterns."""
    report = Report("motifs", "Patterns in a graph that changes", quick=quick)
    history = list(epochs(*(QUICK if quick else SIZE)))
    session = harness.spark("motifs")
    for _ in joined("triangles", history[:2], session):  # a JVM that has run before
        pass
    for name in PATTERNS:
        with task():
            own = list(ours(name, history))
        sides = {"DataFrames, anew": list(joined(name, history, session))}
        if not quick and (beside := list(dogs(name, history, report))):
            sides["dogs^3"] = beside
        for side, other in sides.items():
            assert [sum_ for _, sum_ in other] == [sum_ for _, sum_ in own], f"{name}: {side} says otherwise"
            for kind, at in ((LOAD, slice(1)), (FEW, slice(1, None))):
                report.add(
                    f"{name}, {kind}",
                    ours=1000 * median([seconds for seconds, _ in own[at]]),
                    baseline=1000 * median([seconds for seconds, _ in other[at]]),
                    against=side,
                )
    session.stop()
    nodes, edges = QUICK if quick else SIZE
    report.note(f"{nodes:,} nodes and {edges:,} edges; processor time.")
    report.write()
    return report
