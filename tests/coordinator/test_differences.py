"""A bound on a loop that is added when a flow is started again: it goes on, and ends."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import continued, migrated
from tests.support.turns import in_turn
from tests.worker.test_loops import answers
from timely_spark.coordinator.differences import compare
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.testing import Simulation

UP = {"n": pc.add(pc.field("n"), 1)}


def stream(**options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("growing")
    x = flow.input("x", "n long, diff long")
    x.loop(lambda n: n.select(**UP, diff="diff").exchange("n"), **options).capture("out")
    return flow


def collection(**options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("growing")
    x = flow.input("x", "n long, diff long").collection(diff="diff")
    x.iterate(lambda n: n.select(**UP).concat(n).distinct(), **options).changes().capture("out")
    return flow


def begun(flow: ts.Dataflow, batches: int) -> Simulation:
    """A flow that has run for some batches, of two rounds each, on one epoch."""
    simulation = Simulation(flow, workers=2, rounds_per_batch=2, warn_after=None)
    simulation.send("x", [(0, 1), (300, 1)])
    for _ in range(batches):
        simulation.step()
    return simulation


def moved(old: Simulation, flow: ts.Dataflow, workers: int = 2) -> Simulation:
    """The flow, going on from where another one stood."""
    new, made = continued(old, flow, workers)
    assert set(made.bounded) == {"loop"}
    return new


@pytest.mark.slow
@pytest.mark.parametrize(("build", "workers"), in_turn([stream, collection], [2, 3]))
def test_a_bound_that_no_time_exceeds_gives_the_results_of_the_bounded_flow(build: Any, workers: int) -> None:
    flow = moved(begun(build(), 5), build(max_iterations=40, on_limit="return"), workers)
    flow.run()
    flow.send("x", [(1000, 1)])
    flow.run()
    other = Simulation(build(max_iterations=40, on_limit="return"), workers=workers)
    other.send("x", [(0, 1), (300, 1)])
    other.run()
    other.send("x", [(1000, 1)])
    other.run()
    assert answers(flow) == answers(other)
    assert flow.result.cut_off["loop"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("build", [stream, collection])
@pytest.mark.parametrize("limit", [2, 3])
def test_records_beyond_the_bound_are_dropped_and_counted(build: Any, limit: int) -> None:
    flow = moved(begun(build(), 8), build(max_iterations=limit, on_limit="return"))
    flow.run()
    assert flow.idle
    assert len(answers(flow)) == 1
    assert flow.result.cut_off["loop"] > 0
    assert all(time != [0] for times in flow.result.frontier.values() for time in times)


@pytest.mark.slow
def test_a_bound_may_become_lower_but_not_higher_or_disappear_with_records_in_flight() -> None:
    old = begun(collection(max_iterations=50, on_limit="return"), 3)
    moved(old, collection(max_iterations=20, on_limit="return")).run()
    for wider in ({"max_iterations": 51, "on_limit": "return"}, {}):
        with pytest.raises(FlowChanged, match="cannot continue from the checkpoint"):
            moved(old, collection(**wider))
    assert not compare(old.plan.described(), collection(max_iterations=20, on_limit="return").compile(2)).flow


def test_a_lower_bound_hides_no_other_difference_in_its_loop() -> None:
    def flow(k: int, bound: int) -> ts.Dataflow:
        flow = ts.Dataflow("growing")
        x = flow.input("x", "n long, diff long").collection(diff="diff")
        step = lambda n: n.select(**UP).concat(n).top_k(k, "n", name="first")  # noqa: E731
        x.iterate(step, name="grow", max_iterations=bound, on_limit="return").changes().capture("out")
        return flow

    before = flow(2, 50).compile(2).described()
    assert not compare(before, flow(2, 20).compile(2)).changed
    assert [*compare(before, flow(3, 20).compile(2)).changed] == ["grow.first"]


def test_the_order_in_which_a_description_is_written_means_nothing() -> None:
    plan = stream(max_iterations=9).compile(2)
    described = json.loads(json.dumps(plan.described(), sort_keys=True))
    assert compare(described, plan).same == described["stages"].keys()


def test_a_step_is_the_same_by_what_it_computes_not_by_names() -> None:
    def flow(first: str, least: int = 0) -> ts.Dataflow:
        flow = ts.Dataflow("renamed")
        x = flow.input("x", "n long").where(pc.field("n") > least, name=first)
        x.distinct(name="once").capture("out")
        return flow

    before = flow("a").compile(2).described()
    assert compare(before, flow("b").compile(2)).certain == {"x", "once", "out"}
    assert compare(before, flow("a", least=1).compile(2)).same == {"x"}


def named(**options: Any) -> ts.Dataflow:
    """A flow whose steps all have names that the user gave."""
    flow = ts.Dataflow("growing")
    x = flow.input("x", "n long, diff long").collection(diff="diff", name="numbers")
    grown = x.iterate(lambda n: n.select(**UP, name="up").distinct(name="once"), name="grow", **options)
    grown.changes(name="told").capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize(
    "wider",
    [{"max_iterations": 51, "on_limit": "return"}, {}],
    ids=["larger", "gone"],
)
def test_a_higher_bound_is_accepted_with_named_steps_and_nothing_in_flight(wider: Any) -> None:
    old, flow = begun(named(max_iterations=50, on_limit="return"), 3), named(**wider)
    with pytest.raises(FlowChanged, match=r"step 'grow\S*' \(.*test_differences\.py:\d+\).*\nHint: "):
        migrated(old, flow, 2)
    old.run()
    made = migrated(old, flow, 2)
    assert (made.added, made.removed) == ((), {})
