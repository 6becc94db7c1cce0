"""Joins: keys of all kinds, nulls, sides, per time, and refused arguments."""

from __future__ import annotations

from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import Simulation, run


def joined(of_left: Any, of_right: Any, schemas: tuple[str, str], workers: int = 3, **options: Any) -> Any:
    flow = ts.Dataflow("join")
    flow.input("l", schemas[0]).join(flow.input("r", schemas[1]), **options).capture("out")
    return run(flow, {"l": of_left, "r": of_right}, workers=workers)["out"].rows()


def test_columns_are_those_of_the_left_then_those_of_the_right_without_keys() -> None:
    flow = ts.Dataflow("columns")
    left, right = flow.input("l", "a long, k long"), flow.input("r", "b string, j int, c long")

    assert left.join(right, left=["k"], right=["j"]).schema.names == ["a", "k", "b", "c"]


def test_integers_of_two_widths_join() -> None:
    rows = joined(
        [[1, -1, 300]],
        [[(1, "a"), (-1, "b"), (44, "c")]],
        ("k int", "j byte, s string"),
        left=["k"],
        right=["j"],
    )

    assert rows == {0: [(-1, "b"), (1, "a")]}


def test_duplicates_multiply_and_nulls_join_nothing() -> None:
    left, right = [[("x", 1), ("x", 2), (None, 3)]], [[("x", 7), ("x", 8), (None, 9)]]

    rows = joined(left, right, ("k string, a long", "k string, b long"), on=["k"])
    assert rows == {0: [("x", 1, 7), ("x", 1, 8), ("x", 2, 7), ("x", 2, 8)]}


def test_several_keys_of_which_one_is_null() -> None:
    left, right = [[(1, "a", 5), (1, None, 6)]], [[(1, "a", 7), (1, None, 8)]]

    assert joined(left, right, ("j long, k string, a long", "j long, k string, b long"), on=["j", "k"]) == {
        0: [(1, "a", 5, 7)]
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_joins_itself(workers: int) -> None:
    flow = ts.Dataflow("self")
    edges = flow.input("e", "a long, b long")
    edges.join(edges.select(b="a", c="b"), on=["b"]).capture("out")

    rows = run(flow, {"e": [[(1, 2), (2, 3)], [(3, 1)]]}, workers=workers)["out"].rows()
    assert rows == {0: [(1, 2, 3)], 1: [(2, 3, 1), (3, 1, 2)]}


def test_per_time_keeps_nothing_of_a_complete_time() -> None:
    flow = ts.Dataflow("time")
    left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b long")
    left.join(right, on=["k"], per="time").capture("out")
    simulation = Simulation(flow, workers=2)
    sizes = []
    for epoch in range(20):
        simulation.send("l", [(k, epoch) for k in range(50)])
        simulation.send("r", [(k, -epoch) for k in range(50)])
        simulation.run()
        sizes.append(sum(len(state or b"") for state in simulation.states))

    assert simulation.captured["out"].rows()[19] == [(k, 19, -19) for k in range(50)]
    assert max(sizes) <= sizes[0] + 100


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"on": ["nothing"]},
        {"left": ["k"]},
        {"left": ["k"], "right": ["k", "b"]},
        {"left": ["k"], "right": ["s"]},
        {"on": ["k"], "per": "epoch"},
        {"on": ["l"]},
        {"left": ["k"], "right": ["b"]},
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_when_the_graph_is_built(options: dict[str, Any]) -> None:
    flow = ts.Dataflow("bad")
    left = flow.input("a", "k long, x long, l array<long>")
    right = flow.input("b", "k long, b long, s string, l array<long>")

    with pytest.raises(SchemaError, match="Hint: "):
        left.join(right, **options)


def test_sides_of_two_scopes_or_two_flows_are_refused() -> None:
    flow, other = ts.Dataflow("one"), ts.Dataflow("two")
    x = flow.input("x", "k long")

    with pytest.raises(GraphError, match=r"(?s)of flow 'one'.*'two'.*\nHint"):
        x.join(other.input("y", "k long, b long"), on=["k"])
    with pytest.raises(GraphError, match=r"(?s)no loop.*Hint: .*enter"):
        flow.scope.inner(name="loop").enter(x).join(x.select("k"), on=["k"])
