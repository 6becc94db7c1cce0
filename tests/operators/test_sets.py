"""Set operations on streams, against counters: per time, distinct and with multiplicities."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import HOW
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import run

#: for the tests of all operators
TRIED = {
    "union": lambda x, y: x.union(y, name="it"),
    "intersect": lambda x, y: x.intersect(y, all=True, name="it"),
    "subtract": lambda x, y: x.subtract(y, name="it"),
}

VALUES = st.sampled_from([None, 0, 1, 2])
EPOCHS = st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=6), min_size=1, max_size=4)
KINDS = [
    (operation, multiset) for operation in ("union", "intersect", "subtract") for multiset in (False, True)
]


def by_definition(operation: str, multiset: bool, left: Any, right: Any) -> Counter[Any]:  # noqa: FBT001
    ours, theirs = Counter(left), Counter(right)
    if multiset:
        return {"union": ours + theirs, "intersect": ours & theirs, "subtract": ours - theirs}[operation]
    one, two = set(left), set(right)
    return Counter({"union": one | two, "intersect": one & two, "subtract": one - two}[operation])


@pytest.mark.slow
@given(
    x=EPOCHS,
    y=EPOCHS,
    crashes=st.sampled_from([0.0, 0.2]),
    **HOW,
)
def test_each_time_has_what_the_definition_says(*, x: Any, y: Any, crashes: float, **how: Any) -> None:
    flow = ts.Dataflow("sets")
    left, right = (flow.input(name, "a long, b long", epochs="manual") for name in "xy")
    for operation, multiset in KINDS:
        getattr(left, operation)(right, all=multiset).capture(f"{operation} {multiset}")

    made = run(flow, {"x": x, "y": y}, crashes=crashes if how["seed"] is not None else 0.0, **how)

    for operation, multiset in KINDS:
        rows = made[f"{operation} {multiset}"].rows()
        for epoch in range(max(len(x), len(y))):
            sides = (of[epoch] if epoch < len(of) else [] for of in (x, y))
            assert Counter(rows.get(epoch, [])) == by_definition(operation, multiset, *sides)


def test_null_equals_null_and_nan_equals_nan() -> None:
    flow = ts.Dataflow("equal")
    x, y = (flow.input(name, "v double", epochs="manual") for name in "xy")
    x.intersect(y).select(null="v").capture("both")
    x.subtract(y).capture("left")
    nan = float("nan")

    made = run(flow, {"x": [[nan, None, -0.0, 1.0]], "y": [[nan, None, 0.0]]}, workers=3)

    assert made["both"].table().num_rows == 3
    assert made["left"].rows() == {0: [(1.0,)]}


def test_in_a_loop_a_time_is_an_iteration() -> None:
    """Each number goes round as often as it is large, and what is removed once comes back in no iteration."""
    flow = ts.Dataflow("rounds")
    start, stop = (flow.input(name, "n long", epochs="manual") for name in "xy")

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        left = n.subtract(n.scope.enter(stop).concat(n.where(lambda row: row.n <= 0)))
        return left.map(lambda row: row.n - 1, "n long"), left

    start.loop(step).capture("out")

    for workers in (1, 3):
        made = run(flow, {"x": [[3, 3, 7, 0]], "y": [[7]]}, workers=workers)
        assert made["out"].rows() == {0: [(1,), (2,), (3,)]}


@pytest.mark.parametrize("operation", ["union", "intersect", "subtract"])
@pytest.mark.parametrize(
    ("other", "error"),
    [
        ("k int, v long", SchemaError),
        ("v long, k long", SchemaError),
        ("k long", SchemaError),
        ("k long, v array<long>", SchemaError),
    ],
)
def test_other_columns_are_refused_when_the_graph_is_built(operation: str, other: str, error: Any) -> None:
    flow = ts.Dataflow("bad")
    x, y = flow.input("x", "k long, v long"), flow.input("y", other)

    with pytest.raises(error, match=rf"(?s){operation}: 'x' has .*'y' has .*test_sets.py.*Hint: "):
        getattr(x, operation)(y)
    with pytest.raises(error, match=rf"(?s){operation}: .*test_sets.py.*Hint: "):
        getattr(x.collection(), operation)(y.collection())


@pytest.mark.parametrize("operation", ["union", "intersect", "subtract"])
def test_other_things_than_streams_are_refused(operation: str) -> None:
    flow = ts.Dataflow("bad")
    x = flow.input("x", "k long, v array<long>")

    assert getattr(x, operation)(x).schema == x.schema
    with pytest.raises(GraphError, match=rf"(?s){operation} got a str.*Hint: "):
        getattr(x, operation)("y")
    ages = flow.input("ages", pa.schema([("age", pa.month_day_nano_interval())]))
    with pytest.raises(SchemaError, match=rf"(?s){operation}.* columns without equality \['age'\].*Hint: "):
        getattr(ages, operation)(ages)
