"""Local rounds of a batch: the same as batches of their own, as far as the bound allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler import Plan
from timely_spark.coordinator import Coordinator, RoundLimits, RoundResult, run_local_rounds, run_workers
from timely_spark.testing import Simulation
from timely_spark.worker import Worker, notify, step

PATH = [(i, i + 1) for i in range(16)]


Flow = Callable[[], ts.Dataflow]


def first_round(
    component_sizes: Flow, workers: int
) -> tuple[Plan, Coordinator, RoundResult, dict[int, bytes]]:
    simulation = Simulation(component_sizes(), workers=workers)
    simulation.send("edges", PATH)
    simulation.step()
    states = {worker: state for worker, state in enumerate(simulation.states) if state is not None}
    return simulation.plan, simulation.coordinator, simulation.result, states


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, pytest.param(5, marks=pytest.mark.campaign)])
def test_local_rounds_give_the_results_of_micro_batches(component_sizes: Flow, workers: int) -> None:
    simulations = [Simulation(component_sizes(), workers=workers, rounds_per_batch=n) for n in (1, 3, 1000)]
    for simulation in simulations:
        simulation.send("edges", PATH)
        simulation.run()
        simulation.send("edges", [(17, 18), (16, 17)])
        simulation.run()
    answers = [list(simulation.captured["sizes"].rows().values()) for simulation in simulations]
    assert answers[0] == answers[1] == answers[2]
    assert len({simulation.rounds for simulation in simulations}) == 1
    assert simulations[2].batch == 2, "one batch an epoch"


@pytest.mark.slow
def test_a_live_worker_equals_a_restored_one(component_sizes: Flow) -> None:
    plan, coordinator, result, states = first_round(component_sizes, 3)
    resident = {index: Worker(plan, state, index) for index, state in states.items()}
    batch, seen = 0, 0

    def both(index: int, rows: pa.Table) -> pa.Table:
        states[index], out = step(plan, states[index], batch, index, rows)
        assert resident[index].step(batch, rows).equals(out)
        assert resident[index].checkpoint() == states[index]
        return out

    while result.rows.num_rows and seen < 20:
        seen += len(set(result.rows["worker"].to_pylist()))
        result = coordinator.apply_round(batch, run_workers(result.rows, both))
    assert seen >= 20


def bounds() -> dict[str, Any]:
    return {"rounds": 3, "exchanged": 0, "delivered": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), bounds().items())
def test_each_bound_ends_the_batch(component_sizes: Flow, name: str, value: int) -> None:
    plan, coordinator, result, states = first_round(component_sizes, 2)
    assert result.rows.num_rows, "there is more to do"
    later, changed = run_local_rounds(coordinator, result, states, RoundLimits(**{name: value}))
    assert later.stats["rounds"] == (value or 1)
    assert bool(changed) == (value > 1)
    assert later.rows.num_rows
    states |= {index: worker.checkpoint() for index, worker in changed.items()}
    whole, _ = run_local_rounds(coordinator, later, states, RoundLimits(rounds=1000))
    assert not whole.rows.num_rows
    assert plan is coordinator.plan


def test_a_batch_that_begins_with_its_input_has_a_first_round_under_any_bound(component_sizes: Flow) -> None:
    plan, coordinator, result, states = first_round(component_sizes, 2)
    batch = coordinator.batch + 1
    start = RoundResult.of_input(result.header, result.rows)

    later, ran = run_local_rounds(coordinator, start, states, RoundLimits(exchanged=-1), batch=batch)

    assert (coordinator.batch, later.stats["rounds"]) == (batch, 1), "else it would overwrite the one before"
    assert ran
    assert plan is coordinator.plan


def test_a_round_and_with_it_the_batch_ends_where_it_is_asked_to(component_sizes: Flow) -> None:
    _, coordinator, result, states = first_round(component_sizes, 2)
    asked: list[tuple[int, int]] = []

    def ends(number: int, before: RoundResult, worker: Worker) -> bool:
        asked.append((number, before.stats["rounds"]))
        return number == 2

    later, _ = run_local_rounds(coordinator, result, states, RoundLimits(rounds=1000), ends=ends)

    assert set(asked) == {(1, 1), (2, 2)}
    assert (later.stats["rounds"], bool(later.stats["cut"]), later.awake) == (3, True, True)


@pytest.mark.slow
def test_stats_of_work_are_summed_over_rounds_and_stats_of_the_state_are_not(component_sizes: Flow) -> None:
    _, coordinator, result, states = first_round(component_sizes, 2)
    later, _ = run_local_rounds(coordinator, result, states, RoundLimits(rounds=1000))
    assert later.stats["records"] > result.stats["records"]
    assert later.stats["rows_in_flight"] == 0
    assert later.stats["pending_notifications"] == 0
    assert sorted(later.released) == [("labels", 0), ("sizes", 0)]


def test_epochs_of_all_rounds_of_a_batch_are_released() -> None:
    flow = ts.Dataflow("early and late")
    given = flow.input("x", "n long")

    def hop(each: ts.Stream) -> ts.Stream:
        return each.where(pc.field("n") < 9).select(n=pc.add(pc.field("n"), 1)).concat(each).distinct()

    given.capture("early")
    given.loop(hop).capture("late")
    simulation = ts.testing.Simulation(flow, workers=3, rounds_per_batch=100)
    for n in (0, 20):
        simulation.send("x", [n])
        simulation.run()

    assert [result.released for _, result in simulation.log] == [
        [("early", epoch), ("late", epoch)] for epoch in (0, 1)
    ]
    assert simulation.log[0][1].stats["rounds"] > 3
    assert simulation.captured["early"].rows() == {0: [(0,)], 1: [(20,)]}
    assert simulation.captured["late"].rows() == {0: [(n,) for n in range(10)], 1: [(20,)]}


def test_bounds_are_inclusive_and_a_flow_completes_with_nothing_in_flight() -> None:
    flow = ts.Dataflow("hops")
    moved = flow.input("x", "n long").exchange("n").select(n=pc.add(pc.field("n"), 1)).exchange("n")
    moved.select(n=pc.multiply(pc.field("n"), 3)).exchange("n").capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("x", list(range(9)))
    simulation.close("x")
    simulation.run()
    turns = [result for _, result in simulation.log]

    assert [result.complete for result in turns] == [False] * (len(turns) - 1) + [True]
    result = dataclasses.replace(turns[0], stats={"rounds": 3, "bytes_in_flight": 50, "bytes": 70})
    bound = RoundLimits(rounds=4, exchanged=50, delivered=70)
    assert result.rows.num_rows
    assert bound.allows(result)
    for tighter in ({"rounds": 3}, {"exchanged": 49}, {"delivered": 69}):
        assert not dataclasses.replace(bound, **tighter).allows(result)


@pytest.mark.slow
def test_a_local_round_looks_at_no_notification_that_waits_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]
    lower_bounds = notify.lower_bounds

    def counted(*arguments: Any) -> list[Any]:
        looks[0] += 1
        return lower_bounds(*arguments)

    monkeypatch.setattr(notify, "lower_bounds", counted)

    def looked_at(vertices: int) -> int:
        flow = ts.Dataflow("waits")
        held = flow.input("held", "n long", epochs="manual").group_by("n")
        for i in range(vertices):
            held.count(name=f"count{i}").probe(f"end{i}")
        further = pc.add(pc.field("n"), 1)
        first = flow.input("first", "n long", epochs="manual")
        first.loop(lambda n: n.where(pc.field("n") < 60).select(n=further).distinct()).capture("out")
        simulation = Simulation(flow, workers=3, rounds_per_batch=1000)
        simulation.send("held", [1, 2, 3])
        simulation.send("first", [0])
        simulation.run()
        assert simulation.rounds > 30
        simulation.advance_to("held", 1)
        simulation.run()
        assert simulation.coordinator.pending_count == 0, "and all are delivered once they may be"
        looks[0], before = 0, looks[0]
        return before

    assert looked_at(100) - looked_at(10) < 90 * 3 * 6
