"""iterate: what a step may use and return, loops in loops, and what leaves a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.testing import run

Of = ts.Collection


def up(v: Of) -> Of:
    return v.concat(v.where(pc.field("n") < 5).select(n=pc.add(pc.field("n"), 1))).distinct()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x, _: x.iterate(up), [3, 4, 5]),
        (lambda x, y: x.iterate(lambda _: y), [0, 8]),
        # a loop of a collection of outside, with a step that reads a variable around it
        (lambda x, y: x.iterate(lambda v: y.iterate(lambda w: up(w).concat(v).distinct())), [*range(6), 8]),
        (lambda x, y: x.iterate(lambda v: v.iterate(lambda w: up(w).concat(y).distinct())), [*range(6), 8]),
    ],
)
def test_a_loop_comes_to_the_fixed_point_of_its_step(result: Callable[[Of, Of], Of], expected: Any) -> None:
    flow = ts.Dataflow("loops")
    x, y = (flow.input(name, "n long, d long", epochs="manual").collection(diff="d") for name in "xy")
    result(x, y).changes().capture("out")
    out = run(flow, {"x": [[(3, 1)], [(3, -1)]], "y": [[(0, 1), (8, 1)], [(0, -1), (8, -1)]]})["out"]
    assert [ts.snapshot(out, at=at)["n"].to_pylist() for at in (0, 1)] == [expected, []]


@pytest.mark.parametrize("consolidate", [True, False])
def test_what_iterations_undo_does_not_leave(*, consolidate: bool) -> None:
    flow = ts.Dataflow("leaves")
    x = flow.input("x", "n long").collection()

    def down(v: Of) -> Of:
        return v.concat(v.where(pc.field("n") > 5).select(n=pc.subtract(pc.field("n"), 1))).min("n")

    x.iterate(down, consolidate=consolidate).stream.capture("out")
    values = {n for n, _ in run(flow, {"x": [[7]]})["out"].rows()[0]}
    assert values == ({5} if consolidate else {5, 6})
