"""Breadth-first search from node 0 in Pathway's Python: `pathway_search.py TRACE NODES`.

Each file of the trace is an epoch of edges that come and go; the next one follows the answer: a subscriber
hears of the edges, of the nodes that are reached, and of the sum of their distances. Tells these of each
epoch, and the seconds. All is in memory, and an epoch is committed when its last edge is sent.

The loop is written out: that of Pathway's library does not end where an edge leads back to the source.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pathway as pw

TRACE, NODES = Path(sys.argv[1]), int(sys.argv[2])
answered = threading.Event()
#: what the subscriber has heard
answer = {"edges": 0}


class Edges(pw.io.python.ConnectorSubject):
    """Each file an epoch; an edge has a number, by which it goes."""

    #: the edges there are
    count = 0

    def run(self) -> None:
        numbers, last = defaultdict(list), 0
        for path in sorted(TRACE.glob("*.bin")):
            rows = np.fromfile(path, "<i4").reshape(-1, 4)[:, [0, 1, 3]].tolist()
            answered.clear()
            Edges.count += sum(diff for *_, diff in rows)
            began = time.perf_counter()
            for src, dst, diff in rows:
                if diff > 0:
                    last += 1
                    numbers[src, dst].append(last)
                    self.next(number=last, src=src, dst=dst)
                else:
                    self.delete(number=numbers[src, dst].pop(), src=src, dst=dst)
            self.commit()
            answered.wait()
            print(json.dumps({"seconds": time.perf_counter() - began, **answer}), flush=True)


def on_change(key: object, row: dict[str, Any], time: int, is_addition: bool) -> None:
    if is_addition:
        answer[row["what"]] = row["total"]


def on_time_end(time: int) -> None:
    if answer["edges"] == Edges.count:  # the node from which the search starts is an epoch before them
        answered.set()


def nearer(near: pw.Table, edges: pw.Table, start: pw.Table) -> pw.Table:
    steps = edges.select(node=edges.v, distance=near.ix(edges.u).distance + 1.0)
    every = pw.Table.concat_reindex(steps, start.select(node=start.id, distance=start.distance))
    least = every.groupby(id=every.node).reduce(distance=pw.reducers.min(every.distance))
    return least.with_universe_of(near)


class Ends(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    src: int
    dst: int


ends = pw.io.python.read(Edges(), schema=Ends, autocommit_duration_ms=None)
edges = ends.select(u=ends.pointer_from(ends.src), v=ends.pointer_from(ends.dst))
nodes = pw.debug.table_from_rows(pw.schema_from_types(node=int), [(node,) for node in range(NODES)])
start = nodes.with_id_from(nodes.node).select(distance=pw.if_else(pw.this.node == 0, 0.0, math.inf))
near = pw.iterate(nearer, near=start, edges=edges, start=start)
reached = near.filter(near.distance < math.inf)
sums = [
    edges.reduce(what="edges", total=pw.cast(float, pw.reducers.count())),
    reached.reduce(what="nodes", total=pw.cast(float, pw.reducers.count())),
    reached.reduce(what="distances", total=pw.reducers.sum(reached.distance)),
]
pw.io.subscribe(pw.Table.concat_reindex(*sums), on_change, on_time_end=on_time_end)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
