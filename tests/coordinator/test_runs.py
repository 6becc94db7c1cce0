"""Arrivals as runs: the same times whatever happened before, and no more of them than differ."""

from __future__ import annotations

import random

import pytest

import timely_spark as ts
from timely_spark.coordinator import Coordinator
from timely_spark.coordinator.runs import Runs
from timely_spark.testing import Simulation
from timely_spark.worker.wire import Header

VERTICES = [1, 2, 4, 5, 9, 10, 30]


@pytest.mark.parametrize("seed", range(20))
def test_each_vertex_has_the_times_of_its_last_update(seed: int) -> None:
    draw = random.Random(seed)
    runs, times = Runs(VERTICES), {vertex: list[list[int]]() for vertex in VERTICES}
    for _ in range(60):
        vertex = draw.choice(VERTICES)
        times[vertex] = [[draw.randrange(3)]] if draw.random() < 0.7 else []
        runs.update(vertex, times[vertex])
        header = Header(batch=0, arrivals=runs.encode())
        assert {vertex: header.arrivals_at(vertex) for vertex in VERTICES} == times
        anew = Runs(VERTICES)
        for vertex in draw.sample(VERTICES, len(VERTICES)):
            anew.update(vertex, times[vertex])
        assert anew.encode() == runs.encode()
        assert all(
            before[1] != after[1]
            for before, after in zip([(0, []), *runs.encode()], runs.encode(), strict=False)
        )


def chain(steps: int) -> Simulation:
    """A record that waits at the first of some steps, each behind an exchange."""
    flow = ts.Dataflow("chain")
    held = flow.input("held", "n long", epochs="manual")
    for i in range(steps):
        held = held.group_by("n").count(name=f"count{i}").select(n="count")
    held.probe("end")
    simulation = Simulation(flow, workers=2)
    for epoch in range(3):
        simulation.send("held", [0], epoch=epoch)
        simulation.step()
    return simulation


@pytest.mark.slow
def test_the_header_does_not_grow_with_the_steps_that_wait() -> None:
    few, many = (chain(steps).result.header for steps in (10, 300))

    assert many.arrivals
    assert len(many.encode()) <= len(few.encode()) + 10


def test_a_restored_coordinator_writes_the_header_that_was_written() -> None:
    simulation = chain(10)
    coordinator = Coordinator.decode(simulation.plan, simulation.coordinator.encode())
    assert coordinator._updated_arrivals() == simulation.result.header.arrivals
