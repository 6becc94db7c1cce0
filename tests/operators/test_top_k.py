"""`top_k` on streams, against a sort."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import HOW
from timely_spark.errors import SchemaError
from timely_spark.testing import run

#: for the tests of all operators
TRIED = {
    "top_k": lambda x, _: x.top_k(2, "v", name="it"),
}

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, -1, 0, 5, 2**62]), st.sampled_from([None, "a", "b"])),
    max_size=6,
)


def first(rows: list[Any], k: int, *, descending: bool) -> list[Any]:
    def place(row: Any) -> Any:
        group, value, other = row
        sign = -1 if descending else 1
        return (value is None, 0 if value is None else sign * value, group, other is None, other or "")

    return sorted(rows, key=place)[:k]


@pytest.mark.slow
@given(
    epochs=st.lists(ROWS, min_size=1, max_size=5),
    k=st.integers(1, 3),
    descending=st.booleans(),
    **HOW,
)
def test_each_touched_key_has_its_first_records(*, epochs: Any, k: int, descending: bool, **how: Any) -> None:
    flow = ts.Dataflow("top")
    x = flow.input("x", "g long, v long, s string", epochs="manual")
    x.top_k(k, "v", keys="g", descending=descending).capture("so far")
    x.top_k(k, "v", keys="g", descending=descending, per="time").capture("each")
    x.top_k(k, "v", descending=descending).capture("all")

    made = run(flow, {"x": epochs}, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    before: list[Any] = []
    for epoch, rows in enumerate(epochs):
        before += rows
        keys = sorted({row[0] for row in rows})
        for name, among in (("so far", before), ("each", rows)):
            expected = [
                r for g in keys for r in first([r for r in among if r[0] == g], k, descending=descending)
            ]
            assert sorted(made[name].rows().get(epoch, []), key=str) == sorted(expected, key=str)
        expected = first(before, k, descending=descending) if rows else []
        assert sorted(made["all"].rows().get(epoch, []), key=str) == sorted(expected, key=str)


def test_ties_are_in_the_order_of_the_other_columns() -> None:
    flow = ts.Dataflow("ties")
    x = flow.input("x", "g long, v long, s string")
    x.top_k(1, "v", keys="g").capture("of keys")
    x.top_k(2, "v").capture("greatest")
    x.top_k(2, "v", descending=False).capture("least")
    made = run(flow, {"x": [[(1, 5, "b"), (1, 5, "a"), (2, 7, None), (2, None, "c")]]})
    assert made["of keys"].rows() == {0: [(1, 5, "a"), (2, 7, None)]}
    assert made["greatest"].rows() == {0: [(1, 5, "a"), (2, 7, None)]}
    assert made["least"].rows() == {0: [(1, 5, "a"), (1, 5, "b")]}


def test_in_a_loop_each_iteration_counts_what_came_up_to_it() -> None:
    flow = ts.Dataflow("loop")
    numbers = flow.input("x", "k long, v long")

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = n.top_k(1, "v", keys="k")
        return best.where(lambda row: row.v < 3).map(lambda row: (row.k, row.v + 1), "k long, v long"), best

    numbers.loop(step).capture("out")
    for workers in (1, 2):
        made = run(flow, {"x": [[(1, 0), (1, 1), (2, 7)]]}, workers=workers)
        assert made["out"].rows() == {0: [(1, 1), (1, 2), (1, 3), (2, 7)]}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0, "v"), {}), ((True, "v"), {}), ((2, "nothing"), {}), ((2, "v"), {"keys": "v"}),
        ((2, "v"), {"keys": "nothing"}), ((2, "many"), {}), ((2, "k"), {"keys": ()}),
        ((2, "v"), {"per": "epoch"}),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_when_the_graph_is_built(arguments: Any, options: Any) -> None:
    schema = "k long, v long" if arguments[1] == "v" else "k long, many array<long>"
    with pytest.raises(SchemaError, match=r"(?s)top_k.*test_top_k.py.*Hint: "):
        ts.Dataflow("bad").input("x", schema).top_k(*arguments, **options)
