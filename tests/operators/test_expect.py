"""expect: what is checked, what fails, and where it goes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument, GraphError, SchemaError, VertexError
from timely_spark.testing import Simulation
from timely_spark.worker.expectations import Expectation

#: How the tests of all operators (names, states) try this one, on two streams (k long, v long).
TRIED = {
    "expect": lambda x, _: x.expect("it", "v > 1", action="quarantine").quarantined.distinct(name="retained")
}

Row = tuple[Any, ...]


def drawn(seed: int, epochs: int = 5) -> list[list[Row]]:
    draw = random.Random(seed)
    return [
        [(draw.choice([None, *range(-3, 6)]), draw.randrange(3)) for _ in range(9)] for _ in range(epochs)
    ]


def passing(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[0] is not None and row[0] > 0]


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("crashes", [0, 0.2])
@pytest.mark.parametrize("action", ["drop", "keep", "quarantine"])
def test_each_record_is_counted_once_and_goes_one_way(action: Any, crashes: float) -> None:
    for seed in range(4):
        flow = ts.Dataflow("checked")
        checked = flow.input("x", "n long, k long").exchange("k").expect("positive", "n > 0", action=action)
        checked.capture("out")
        if action == "quarantine":
            checked.quarantined.capture("bad")
        simulation = Simulation(flow, workers=2, seed=seed, crashes=crashes)
        epochs = drawn(seed)
        for rows in epochs:
            simulation.send("x", rows)
            simulation.run()

        sent = [row for rows in epochs for row in rows]
        wanted = sent if action == "keep" else passing(sent)
        out = {name: Counter(row for of in one.rows().values() for row in of)
               for name, one in simulation.captured.items()}  # fmt: skip
        assert out["out"] == Counter(wanted)
        if action == "quarantine":
            assert out["bad"] == Counter(sent) - Counter(wanted)
        counts = simulation.coordinator.expectations["positive"]
        assert (counts.checked, counts.failed) == (len(sent), len(sent) - len(passing(sent)))
        assert counts.first is not None
        assert counts.first[0] == next(e for e, rows in enumerate(epochs) if passing(rows) != rows)


@pytest.mark.parametrize("action", ["drop", "keep", "quarantine"])
def test_of_a_collection_the_records_that_are_in_it_are_counted(action: Any) -> None:
    flow = ts.Dataflow("current")
    x = flow.input("x", "n long, diff long").collection(diff="diff")
    checked = x.expect("positive", "n > 0", action=action)
    checked.changes().capture("out")
    if action == "quarantine":
        checked.quarantined.changes().capture("bad")
    simulation = Simulation(flow, workers=2)
    current: Counter[int] = Counter()
    for changes in ([(1, 1), (-1, 1), (-2, 2)], [(-2, -2), (3, 1)], [(-1, -1)]):
        simulation.send("x", changes)
        simulation.run()
        for n, diff in changes:
            current[n] += diff
        counts = simulation.coordinator.expectations["positive"]
        assert counts.checked == sum(current.values())
        assert counts.failed == sum(times for n, times in current.items() if n <= 0)
    if action == "quarantine":
        assert simulation.captured["bad"].rows() == {0: [(-2, 2), (-1, 1)], 1: [(-2, -2)], 2: [(-1, -1)]}


def test_fail_ends_the_flow_before_the_epoch_is_released() -> None:
    flow = ts.Dataflow("strict")
    flow.input("x", "n long").expect("positive", lambda row: row.n > 0, action="fail").capture("out")
    simulation = Simulation(flow)
    simulation.send("x", [1, 2])
    simulation.run()
    simulation.send("x", [3, 0])
    with pytest.raises(VertexError, match=r"(?s)step 'positive' \(.*test_expect.py:\d+\).*{'n': 0}.*Hint: "):
        simulation.run()

    assert simulation.captured["out"].rows() == {0: [(1,), (2,)]}


def test_a_deletion_is_no_failure() -> None:
    """Only what is inserted can fail: its deletion corrects it."""
    flow = ts.Dataflow("corrected")
    x = flow.input("x", "n long, diff long").collection(diff="diff")
    x.concat(x.negate()).expect("positive", "n > 0", action="fail").changes().capture("out")
    ts.testing.run(flow, {"x": [[(-1, 1)], [(-1, -1)]]}, workers=2)


def test_retractions_are_counted_as_such() -> None:
    flow = ts.Dataflow("expired")
    flow.input("x", "n long").expire(2, diff="diff").expect("small", "n < 3").capture("out")
    simulation = Simulation(flow)
    for n in range(6):
        simulation.send("x", [n])
        simulation.run()
    assert simulation.coordinator.expectations["small"] == Expectation(2, 2, (3, "{'n': 3, 'diff': 1}"))


def test_an_expectation_that_has_checked_nothing_has_counts() -> None:
    flow = ts.Dataflow("empty")
    flow.input("x", "n long").expect("small", "n < 3").capture("out")
    assert ts.testing.run(flow, {"x": [[]]}).expectations == {"small": Expectation()}


def test_bad_arguments_are_refused_when_the_graph_is_built() -> None:
    x = ts.Dataflow("bad").input("x", "n long")
    with pytest.raises(SchemaError, match="Hint: "):
        x.expect("it", "m > 0")
    with pytest.raises(SchemaError, match="not boolean"):
        x.expect("it", "n + 1")
    with pytest.raises(BadArgument, match=r"(?s)action='warn'.*'keep'.*Hint: "):
        x.expect("it", "n > 0", action="warn")  # type: ignore[arg-type]
    for one in (x, x.expect("it", "n > 0"), x.collection(), x.collection().expect("too", "n > 0")):
        with pytest.raises(GraphError, match=r"(?s)does not quarantine.*Hint: "):
            _ = one.quarantined
