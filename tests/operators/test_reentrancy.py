"""Messages to a vertex that runs wait in the queue, or arrive at once to a depth that the vertex gives."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.orders import Moment, Moments, Phased
from timely_spark.errors import CapabilityError, GraphError, VertexError
from timely_spark.testing import Simulation, run

DEPTHS = [0, 1, 8]


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


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_a_loop_deeper_than_the_stack_calls_a_vertex_once_per_iteration(workers: int, shallow: int) -> None:
    flow, deep = ts.Dataflow("deep"), shallow + 100

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        sent = flow.vertex(Countdown(), n, "n long, together long", by="together", name="countdown")
        return sent.where(pc.field("n") > 0), sent.where(pc.field("n") == 0)

    flow.input("x", "n long, together long").loop(step).capture("out")
    rows = run(flow, {"x": [[(deep, 2), (deep, 2)]]}, workers=workers)["out"].rows()

    # two batches were sent in each iteration, and received as one
    assert rows == {0: [(0, 2), (0, 2)]}


class Branch(ts.Vertex):
    """Makes two of each record, one less and two less, batch by batch; counts all by time."""

    depth = deepest = 0

    def __init__(self) -> None:
        self.records: dict[Any, int] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        Branch.depth += 1
        Branch.deepest = max(Branch.deepest, Branch.depth)
        self.records[time] = self.records.get(time, 0) + batch.num_rows
        self.notify_at(time)
        for less in (1, 2):
            left = batch.set_column(0, "n", pc.subtract(batch["n"], less))
            self.send_by(0, time, left.filter(pc.greater_equal(left["n"], 0)))
        self.notify_at(time)  # the capability of the outer call is there again
        Branch.depth -= 1

    def on_notify(self, time: Any) -> None:
        self.send_by(1, time, pa.table({"n": [self.records.pop(time)]}))


def tree(depth: int, *, other: int | None = None, exchange: bool = False) -> ts.Dataflow:
    """A cycle through one vertex, or with `other` through a second one of that depth."""
    flow = ts.Dataflow("tree")
    vertex, second = (type("Deep", (Branch,), {"reentrancy": n}) for n in (depth, other or 0))

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        again, counts = flow.vertex(vertex(), n, ["n long"] * 2, by="n" if exchange else None, name="one")
        if other is not None:
            again, more = flow.vertex(second(), again, ["n long"] * 2, by=None, name="two")
            counts = counts.concat(more)
        return again, counts

    x = flow.input("x", "n long", epochs="manual")
    made = x.loop(step)
    made.group_by().aggregate(records=("sum", "n")).capture("out")
    return flow


def numbers(draw: random.Random) -> list[list[Any]]:
    return [[draw.randrange(9) for _ in range(draw.randrange(4))] for _ in range(3)]


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("other", [None, 0, 3])
def test_outputs_are_the_same_for_each_depth_and_schedule(*, other: int | None, exchange: bool) -> None:
    given = {"x": numbers(random.Random(f"{other} {exchange}"))}
    expected = run(tree(0, other=other, exchange=exchange), given)["out"].rows()
    assert any(expected.values())

    for depth in DEPTHS:
        for workers, seed in ((1, None), (3, 7)):
            flow = tree(depth, other=other, exchange=exchange)
            assert run(flow, given, workers=workers, seed=seed)["out"].rows() == expected


@pytest.mark.slow
@pytest.mark.parametrize("depth", DEPTHS)
def test_calls_are_inside_each_other_to_the_depth_that_is_given(depth: int) -> None:
    Branch.deepest = 0
    run(tree(depth), {"x": [[12]]})
    assert Branch.deepest == 1 + depth


@pytest.mark.slow
def test_two_vertices_of_the_greatest_depth_leave_room_on_the_stack() -> None:
    given = {"x": [[14]]}
    assert run(tree(60, other=60), given)["out"].rows() == run(tree(0, other=0), given)["out"].rows()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_leads_to_the_same_outputs_and_states(seed: int) -> None:
    given = numbers(random.Random(seed))
    simulations = [Simulation(tree(3, exchange=True), workers=2, seed=seed, crashes=p) for p in (0.0, 0.4)]
    for simulation in simulations:
        for epoch, rows in enumerate(given):
            simulation.send("x", rows, epoch=epoch)
            simulation.run()
        simulation.close("x")
        simulation.run()
    sure, crashed = simulations
    assert crashed.crashed
    assert crashed.captured["out"].rows() == sure.captured["out"].rows()
    assert crashed.states == sure.states


class Late(ts.Vertex):
    """Sends at a later time inside, and then at an earlier one, which an inner call may not."""

    reentrancy = 2

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 1:
            self.send_by(0, ts.Time(0, 0), batch)


def test_an_inner_call_has_the_capability_of_its_message_alone() -> None:
    flow = ts.Dataflow("late")
    x = flow.input("x", "n long", epochs="manual")
    x.loop(lambda n: flow.vertex(Late(), n, "n long", name="late")).capture("out")
    with pytest.raises(VertexError, match="sends at") as failed:
        run(flow, {"x": [[1]]})
    assert CapabilityError.__name__ in str(failed.value)


class Sized(Moment):
    """A time that is false outside of loops."""

    def __len__(self) -> int:
        return len(self.counters)


class Twice(ts.Vertex):
    """Sends its input twice; the second vertex gets it inside."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch)
        self.send_by(0, time, batch)


def test_a_capability_of_a_time_that_is_false_outlasts_an_inner_call() -> None:
    flow = ts.Dataflow("sized", times=Moments(Phased, Sized))
    x = flow.vertex(Twice(), flow.input("x", "n long"), "n long")
    flow.vertex(type("Inner", (Twice,), {"reentrancy": 1})(), x, "n long").capture("out")
    assert run(flow, {"x": [[1]]})["out"].rows() == {0: [(1,)] * 4}


@pytest.mark.parametrize("given", [-1, 61, 1.5, "many"])
def test_a_depth_is_checked_when_the_graph_is_built(given: Any) -> None:
    flow = ts.Dataflow("depth")
    vertex = type("Deep", (Branch,), {"reentrancy": given})
    with pytest.raises(GraphError, match=r"(?s)Deep.reentrancy.*Hint: "):
        flow.vertex(vertex(), flow.input("x", "n long"), ["n long"] * 2)


def test_a_vertex_that_logs_its_calls_is_not_reentrant() -> None:
    flow = ts.Dataflow("depth")
    vertex = type("Deep", (Branch,), {"reentrancy": 1, "logged": True})
    with pytest.raises(GraphError, match=r"(?s)Deep is logged, and re-entrant to depth 1.*Hint: leave one"):
        flow.vertex(vertex(), flow.input("x", "n long"), ["n long"] * 2)
