"""MapReduce, and loops that end by a predicate: against plain Python, while records come and go."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import run

NUMBERS = st.lists(st.lists(st.tuples(st.integers(0, 40), st.just(1)), max_size=5), min_size=2, max_size=2)


@pytest.mark.slow
@given(epochs=NUMBERS, workers=st.sampled_from([1, 2, 3, 8]), seed=st.sampled_from([None, 1]))
def test_digits_are_counted(epochs, workers, seed) -> None:
    flow = ts.Dataflow("digits")
    numbers = flow.input("x", "n long, diff long").collection(diff="diff")
    numbers.map_reduce(
        lambda row: [(digit,) for digit in str(row.n)],
        lambda digit, rows: [len(rows)],
        mapped="digit string",
        reduced="times long",
        keys="digit",
    ).changes().capture("out")
    gone = [(n, -1) for n, _ in epochs[0][::2]]

    out = run(flow, {"x": [*epochs, gone]}, workers=workers, seed=seed)["out"]

    for epoch, there in enumerate(after_each([*epochs, gone])):
        expected = Counter(digit for (n,) in there.elements() for digit in str(n))
        assert {row["digit"]: row["times"] for row in ts.snapshot(out, at=epoch).to_pylist()} == expected


def halved(numbers: ts.Collection, least: int, most: int | None = None) -> ts.Collection:
    """The numbers halved, rounding down, until their sum is at most `least`."""

    def small(before: ts.Collection, after: ts.Collection) -> ts.Collection:
        return after.sum("n", keys=[]).where(pc.field("n") <= least)

    half = {"n": pc.shift_right(pc.field("n"), 1)}
    return numbers.iterate_until(lambda n: n.select(half), small, max_iterations=most, on_limit="return")


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    epochs=NUMBERS,
    least=st.integers(0, 60),
    most=st.sampled_from([None, 1, 2]),
    workers=st.sampled_from([1, 2, 3, 8]),
    seed=st.sampled_from([None, 1]),
)
def test_a_loop_ends_when_its_predicate_holds(epochs, least, most, workers, seed) -> None:
    flow = ts.Dataflow("halves")
    halved(flow.input("x", "n long, diff long").collection(diff="diff"), least, most).changes().capture("out")
    gone = [(n, -1) for n, _ in epochs[0][1:]]

    out = run(flow, {"x": [*epochs, gone]}, workers=workers, seed=seed)["out"]

    for epoch, there in enumerate(after_each([*epochs, gone])):
        expected = [n for (n,) in there.elements()]
        for _ in range(most or 10):
            expected = [n >> 1 for n in expected]
            if sum(expected) <= least:
                break
        assert sorted(row["n"] for row in ts.snapshot(out, at=epoch).to_pylist()) == sorted(expected)


def test_an_endless_loop_ends_by_its_predicate() -> None:
    flow = ts.Dataflow("up")
    start = flow.input("x", "n long").collection()

    def enough(before: ts.Collection, after: ts.Collection) -> ts.Collection:
        return before.where(pc.field("n") >= 9)  # of the value before: one step further

    start.iterate_until(lambda n: n.select(n=pc.field("n") + 1), enough).changes().capture("out")

    assert run(flow, {"x": [[3]]}, workers=2)["out"].rows() == {0: [(10, 1)]}


@pytest.mark.slow
def test_a_loop_in_the_body_of_another_may_begin_with_an_outer_collection() -> None:
    flow = ts.Dataflow("nested")
    zero, tops = (flow.input(name, "n long").collection() for name in ("zero", "tops"))

    def up(seen: ts.Collection) -> ts.Collection:  # counts up to the first number that was seen
        def met(before: ts.Collection, after: ts.Collection) -> ts.Collection:
            return after.semijoin(seen, on="n")

        counted = zero.iterate_until(lambda n: n.select(n=pc.field("n") + 1), met)
        return counted.select(n=pc.field("n") - 1).concat(seen).distinct()

    tops.iterate(up).changes().capture("out")

    assert run(flow, {"zero": [[0]], "tops": [[4]]}, workers=2)["out"].rows() == {
        0: [(n, 1) for n in range(5)]
    }


@pytest.mark.slow
def test_crashes_change_nothing() -> None:
    flow = ts.Dataflow("crashes")
    halved(flow.input("x", "n long, diff long").collection(diff="diff"), 20).changes().capture("out")
    epochs = {"x": [[(n, 1) for n in range(30)], [(9, -1), (8, -1)]]}

    rows = run(flow, epochs)["out"].rows()

    assert rows[0]
    assert run(flow, epochs, workers=3, seed=1, crashes=0.2)["out"].rows() == rows


@pytest.mark.parametrize(
    ("step", "converged"),
    [
        (3, lambda a, b: a),
        (lambda n: n, "no"),
        (lambda n: None, lambda a, b: a),
        (lambda n: n, lambda a, b: None),
    ],
)
def test_wrong_functions_are_refused(step: Any, converged: Any) -> None:
    x = ts.Dataflow("refused").input("x", "n long").collection()

    with pytest.raises(GraphError, match=r"(?s)iterate_until.*test_map_reduce.*Hint"):
        x.iterate_until(step, converged)


def test_other_columns_are_refused() -> None:
    x = ts.Dataflow("refused").input("x", "n long").collection()

    with pytest.raises(SchemaError, match=r"(?s)test_map_reduce.*Hint"):
        x.iterate_until(lambda n: n.select(m="n"), lambda a, b: a)
    with pytest.raises(GraphError, match=r"(?s)map_reduce got 3.*Hint"):
        x.map_reduce(lambda n: [n], 3, mapped="n long", reduced="m long", keys="n")
