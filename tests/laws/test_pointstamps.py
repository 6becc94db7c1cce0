"""The logged changes of counts: replayed with dicts alone they give every frontier, round by round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.random_flows import Checked, random_flow, random_input
from timely_spark.progress import precursors
from timely_spark.times import Antichain


def frontiers(plan: Any, active: Iterable[tuple[int, Any]]) -> dict[int, Antichain[Any]]:
    """By definition: walk every edge from every active pointstamp, as long as it brings an earlier time."""
    found: dict[int, Antichain[Any]] = {at: Antichain() for at in range(plan.reach.n)}
    todo = list(active)
    while todo:
        location, time = todo.pop()
        if found[location].insert(time):
            results = [(arc.target, arc.summary.results_in(time)) for arc in plan.reach.out[location]]
            todo += [(target, at) for target, at in results if at is not None]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("salt", range(12))
def test_a_program_with_dicts_arrives_at_the_frontiers_of_each_round(salt: int) -> None:
    workers = 1 + salt % 3
    plan = dataclasses.replace(random_flow(salt).compile(workers), measured=True)
    simulation = Checked(plan, workers=workers, rounds_per_batch=1 if salt % 2 else 100)
    n, tracker = plan.reach.n, simulation.coordinator.tracker
    counts = dict(tracker.active)
    counts |= {(location + n, time): count for (location, time), count in tracker.inputs.items()}
    for batch, brought in random_input(salt).items():
        simulation.batch = max(batch, simulation.batch)
        for name, records in brought:
            simulation.send(name, records)
        while simulation.step():
            for changes in simulation.result.pointstamps:
                for _, location, encoded, change, afterwards in changes:
                    stamp = location, plan.times.decode(encoded)
                    counts[stamp] = counts.get(stamp, 0) + change
                    assert counts[stamp] == afterwards >= 0
                    if not counts[stamp]:
                        del counts[stamp]
            tracker = simulation.coordinator.tracker
            active = {(location % n, time) for location, time in counts}
            found = frontiers(plan, active)
            assert found == {at: tracker.frontier(at) for at in range(n)}
            for (at, time), before in precursors(plan.reach, active).items():
                others = frontiers(plan, active - {(at, time)})
                assert (before == 0) == (not others[at].less_equal(time))
            if simulation.idle:
                break
