"""Bounded re-entrancy on a tight cycle that multiplies its records: what waits, and how long it takes.

A vertex sends each batch that it gets back to itself `FANOUT` times, until a record has come round `LEVELS`
times; what has is counted. "ours" is the vertex with `reentrancy=n`, "baseline" the one without, in which an
iteration waits as one batch. "Waiting" is the most that waited in the worker's queue, in a second run. The
engine alone, one worker, processor time.
"""

from __future__ import annotations

import time as clock
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import Report
from timely_spark.testing import Simulation
from timely_spark.worker import Worker

FANOUT, LEVELS = 4, 5
MB = 1 << 20


class Multiply(ts.Vertex):
    """Sends each batch to itself several times; counts the last ones."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the batch again, with another number."""
        if time[1] == LEVELS:
            self.send_by(1, time, pa.table({"rows": [batch.num_rows]}))
            return
        for child in range(FANOUT):
            self.send_by(0, time, pa.table({"n": FANOUT * batch["n"].to_numpy() + child}))


def cycle(depth: int) -> ts.Dataflow:
    """The flow, with a vertex of a depth."""
    flow = ts.Dataflow("cycle")
    vertex = type(f"Multiply{depth}", (Multiply,), {"reentrancy": depth})

    def step(n: ts.Stream) -> Any:
        return flow.vertex(vertex(), n, ["n long", "rows long"], name="multiply")

    flow.input("x", "n long").loop(step).aggregate(rows=("sum", "rows")).capture("out")
    return flow


def measure(depth: int, table: pa.Table) -> tuple[float, float, int]:
    """Milliseconds, the most bytes in the queue, and the calls of the vertex."""
    took = 1000 * min(timed(depth, table) for _ in range(3))
    waiting, calls = [0], [0]
    enqueue, call = Worker.enqueue, Worker._call  # noqa: SLF001 - to look at them

    def watched(self: Worker, *arguments: Any) -> None:
        enqueue(self, *arguments)
        waiting[0] = max(waiting[0], sum(each.nbytes for tables in self.queue.values() for each in tables))

    def counted(self: Worker, node: Any, *arguments: Any) -> None:
        calls[0] += node.name.endswith("multiply")
        call(self, node, *arguments)

    with mock.patch.object(Worker, "enqueue", watched), mock.patch.object(Worker, "_call", counted):
        timed(depth, table)
    return took, waiting[0], calls[0]


def timed(depth: int, table: pa.Table) -> float:
    """Seconds of processor time."""
    simulation = Simulation(cycle(depth), warn_after=None)
    simulation.send("x", table)
    began = clock.process_time()
    simulation.run()
    took = clock.process_time() - began
    assert simulation.captured["out"].rows() == {0: [(FANOUT**LEVELS * table.num_rows,)]}
    return took


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("reentrancy", "Bounded re-entrancy on a cycle that multiplies its records", quick=quick)
    for rows in (10, 1_000, *([] if quick else [10_000])):
        table = pa.table({"n": np.arange(rows)})
        without = measure(0, table)
        for depth in (0, 1, 8):
            measured = without if depth == 0 else measure(depth, table)
            case = f"{rows:,} records, each becomes {FANOUT**LEVELS:,}, depth {depth}"
            against = "depth 0" if depth else ""
            note = f"{measured[2]:,} calls"
            for what, index, unit, size in (("", 0, "ms", 1), (", waiting", 1, "MB", MB)):
                baseline = without[index] / size if depth else None
                ours = measured[index] / size
                report.add(case + what, ours=ours, baseline=baseline, against=against, unit=unit, note=note)
    report.write()
    return report
