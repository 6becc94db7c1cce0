"""Pathway's own PageRank over a trace of `benchmarks.engine`, in Pathway's Python: `pathway_ranks.py TRACE`.

Tells of each epoch the number of nodes and the sum of their ranks, added up by Pathway, and the seconds:
processor time but for that of the thread that gives it the edges one by one. One worker, the next epoch after
the answer. Edges only come.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pathway as pw
from pathway.stdlib.graphs.pagerank import pagerank

answered, answer = threading.Event(), {}


class Edges(pw.io.python.ConnectorSubject):
    """Each file an epoch."""

    deletions_enabled = False

    def run(self) -> None:
        for path in sorted(Path(sys.argv[1]).glob("*.bin")):
            rows = np.fromfile(path, "<i4").reshape(-1, 4)[:, :2].tolist()
            answered.clear()
            began = time.process_time() - time.thread_time(), time.perf_counter()
            for src, dst in rows:
                self.next(src=src, dst=dst)
            self.commit()
            answered.wait()
            seconds = time.process_time() - time.thread_time() - began[0]
            wall = time.perf_counter() - began[1]
            print(json.dumps({"seconds": seconds, "wall": wall, **answer}), flush=True)


def on_change(key: object, row: dict[str, int], time: int, is_addition: bool) -> None:
    if is_addition:
        answer.update(row)


def on_time_end(time: int) -> None:
    answered.set()


class Ends(pw.Schema):
    src: int
    dst: int


ends = pw.io.python.read(Edges(), schema=Ends, autocommit_duration_ms=None)
edges = ends.select(u=ends.pointer_from(ends.src), v=ends.pointer_from(ends.dst))
ranks = pagerank(edges, 5)
total = ranks.reduce(nodes=pw.reducers.count(), ranks=pw.reducers.sum(ranks.rank))
pw.io.subscribe(total, on_change, on_time_end=on_time_end)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
