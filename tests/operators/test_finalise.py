"""Records that may still improve are never read as final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (4, 5), (5, 6), (2, 6)]


def hops(
    leaving: Callable[[ts.Stream], ts.Stream], forward: Callable[[ts.Stream], ts.Stream] = lambda s: s
) -> ts.Dataflow:
    flow = ts.Dataflow("hops")
    edges, start = flow.input("edges", "src long, dst long"), flow.input("start", "node long, hops long")

    def step(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        near = proposed.min("hops", keys=["node"], name="near")
        links = near.join(proposed.scope.enter(edges), left=["node"], right=["src"])
        return forward(links.select(node="dst", hops=pc.field("hops") + 1)), leaving(near)

    start.loop(step).capture("out")
    return flow


def results(flow: ts.Dataflow) -> set[str]:
    inputs = {"edges": [EDGES], "start": [[(0, 0)]]}
    return {
        str(ts.testing.run(flow, inputs, workers=workers, seed=seed)["out"].rows())
        for workers in (1, 2, 3)
        for seed in range(4)
    }


def test_a_minimum_may_leave_its_loop() -> None:
    (only,) = results(hops(lambda near: near))
    assert only == "{0: [(0, 0), (1, 1), (2, 2), (3, 3), (4, 1), (5, 2), (6, 3)]}"


@pytest.mark.parametrize(
    "leaving",
    [lambda near: near.select("node", "hops").distinct(), lambda near: near.max("hops", keys=["node"])],
)
def test_a_reduction_that_keeps_worse_values_is_refused(
    leaving: Callable[[ts.Stream], ts.Stream],
) -> None:
    with pytest.raises(GraphError, match=r"(?s)not final when they leave.*Hint"):
        hops(leaving).compile()


def test_final_values_may_be_accumulated() -> None:
    assert len(results(hops(lambda near: near.settle().distinct()))) == 1


def test_a_function_that_reads_the_iteration_gives_one_result_on_every_schedule() -> None:
    def scale(time: Any, batch: pa.Table) -> pa.Table:
        return batch.set_column(1, "hops", pc.multiply(pc.add(batch["hops"], 0), time.counters[0] + 1))

    flow = hops(
        lambda near: near, lambda s: s.unary(scale, "node long, hops long").where(pc.field("hops") < 99)
    )
    assert len(results(flow)) == 1


def test_an_aggregate_retracts_nothing() -> None:
    flow = ts.Dataflow("counts")
    flow.input("x", "k string").group_by("k").count().where(pc.field("count") > 1).to_delta(
        "/nowhere", diff="d"
    )
    with pytest.raises(GraphError, match=r"(?s)replaces values and retracts none.*Hint"):
        flow.compile()
