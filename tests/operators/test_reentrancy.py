"""A vertex is never called while one of its calls runs: its own messages wait in the queue, as one batch."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.testing import run


class Countdown(ts.Vertex):
    """Sends twice what it gets, less one, which comes back to it over the feedback."""

    def __init__(self) -> None:
        self.running = False

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        assert not self.running
        self.running = True
        left = batch.select(["n"]).set_column(0, "n", pc.subtract(batch["n"], 1))
        for half in (left.slice(0, 1), left.slice(1)):
            self.send_by(0, time, half.append_column("together", pa.array([batch.num_rows] * half.num_rows)))
        self.running = False


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loop_deeper_than_the_stack_calls_a_vertex_once_per_iteration(workers: int) -> None:
    flow, deep = ts.Dataflow("deep"), sys.getrecursionlimit() + 200

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        sent = flow.vertex(Countdown(), n, "n long, together long", by="together", name="countdown")
        return sent.where(pc.field("n") > 0), sent.where(pc.field("n") == 0)

    flow.input("x", "n long, together long").loop(step).capture("out")
    rows = run(flow, {"x": [[(deep, 2), (deep, 2)]]}, workers=workers)["out"].rows()

    # two batches were sent in each iteration, and received as one
    assert rows == {0: [(0, 2), (0, 2)]}
