"""Scopes with inner times: inside, each operator says what its definition says at times of both kinds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.definitions import FEW, ITERATIONS, OPERATORS, Items, looped, shift, with_time
from tests.support.orders import INNER, Label, Version
from tests.support.turns import HOW, in_turn
from timely_spark.errors import GraphError
from timely_spark.times import PRODUCT, Descending, RefinedTime, RefinedTimes, Time, refined

N = pc.field("v")
AT: dict[str, Any] = {
    "numbers": pc.bit_wise_and(N, 1),
    "greater first": N,
    "partial": [pc.bit_wise_and(N, 1), pc.shift_right(N, 1)],
    "texts": pc.if_else(N > 2, "late", "early"),
}
"""The inner time at which a record (k, v) enters."""


def inner_time(kind: str, v: int) -> Any:
    """The same by its definition."""
    return {
        "numbers": v & 1,
        "greater first": Descending(v),
        "partial": Version(v & 1, v >> 1),
        "texts": Label("late" if v > 2 else "early"),
    }[kind]


# -- paths ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data(), kind=st.sampled_from(["greater first", "partial", "texts"]))
def test_paths_through_scopes_and_loops_compose(data: Any, kind: str) -> None:
    """A walk between the root, loops and scopes: the composed path does what its steps do."""
    inner: list[Any] = [None]  # the types of the coordinates where the walk is
    times: list[Any] = [Time(data.draw(st.integers(0, 3)))]
    steps: list[Any] = []
    for _ in range(data.draw(st.integers(1, 7))):
        depth, here = len(inner) - 1, RefinedTimes(tuple(inner)) if any(inner) else PRODUCT
        way = data.draw(
            st.sampled_from(["enter loop", "enter scope", *["leave", "feedback", "delay"] * bool(depth)])
        )
        if way.startswith("enter"):
            inner.append(INNER[kind] if way == "enter scope" else None)
            inside = RefinedTimes(tuple(inner)) if any(inner) else PRODUCT
            steps.append(inside.enter(depth))
        elif way == "leave":
            steps.append(here.leave(depth))
            inner.pop()
        elif way == "feedback" and inner[-1] is None:
            steps.append(here.feedback(depth))
        else:
            steps.append(here.delay(depth, 1))
        times.append(steps[-1].results_in(times[-1]))

    path = steps[0]
    for step in steps[1:]:
        path = path.followed_by(step)
    assert path.results_in(times[0]) == times[-1]
    assert type(path.results_in(times[0])) is (RefinedTime if any(inner) else Time)
    assert path.less_equal(path)
    kinds = RefinedTimes(tuple(inner))
    assert kinds.decode(json.loads(json.dumps(times[-1].encode()))) == times[-1]


def test_numbers_are_a_coordinate_of_the_product_order() -> None:
    assert refined(PRODUCT, 1, int) == PRODUCT
    assert refined(refined(PRODUCT, 1, Label), 3, Version).inner == (None, Label, None, Version)


# -- operators -----------------------------------------------------------------------------------------------

Places = list[tuple[str, str, str]]


def flow_of(places: Places) -> ts.Dataflow:
    """A flow with a scope for each kind of inner time and operator, in one of several places."""
    flow = ts.Dataflow("scopes")
    given = flow.input("x", "k long, v long", epochs="manual")
    for i, (place, kind, name) in enumerate(places):
        build = OPERATORS[name][0]

        def within(
            stream: ts.Stream, i: int = i, kind: str = kind, build: Any = build, place: str = place
        ) -> Any:
            scope = stream.scope.inner(name=f"scope{i}", time=INNER[kind])
            inside = scope.enter(stream, at=AT[kind])
            if place == "loop in scope":
                return inside.loop(lambda v: shift(build(v)), max_iterations=ITERATIONS, on_limit="return")
            return build(inside)

        if place == "scope in loop":
            given.loop(
                lambda v, within=within: shift(within(v).leave()),
                max_iterations=ITERATIONS,
                on_limit="return",
            ).capture(f"out{i}")
            continue
        stream = within(given)
        stream.leave().capture(f"out{i}")
        stream.unary(with_time, "k long, v long, at string").leave().capture(f"timed{i}")
    return flow


def is_built(place: tuple[str, str, str]) -> bool:
    try:
        flow_of([place]).compile(1)
    except GraphError as refused:
        assert "Hint: " in str(refused)  # noqa: PT017 - a part of what is looked at
        return False
    return True


def entered(items: Items, kind: str) -> Items:
    made = Items()
    for (time, (k, v)), n in items.items():
        inner = inner_time(kind, v)
        made[(type(time) if kind == "numbers" else RefinedTime)(*time, inner), (k, v)] += n
    return made


def left(items: Items) -> Items:
    made = Items()
    for (time, record), n in items.items():
        made[Time(*time[:-1]), record] += n
    return made


def defined(place: tuple[str, str, str], epochs: list[list[Any]]) -> tuple[Items, Items]:
    """What leaves the scope by definition, and the records within with their times."""
    where, kind, name = place
    items = Items()
    for epoch, rows in enumerate(epochs):
        items.update((Time(epoch), row) for row in rows)
    answer = OPERATORS[name][1]
    if where == "scope in loop":
        return looped(lambda begins: left(answer(entered(begins, kind))), PRODUCT)(items), Items()
    if where == "loop in scope":
        times = refined(PRODUCT, 1, INNER[kind])
        within = looped(answer, times, 1)(entered(items, kind))
    else:
        within = answer(entered(items, kind))
    return left(within), within


def agree(places: Places, epochs: Any, schedule: Any) -> None:
    built = [place for place in places if is_built(place)]
    got = ts.testing.run(flow_of(built), {"x": epochs}, **schedule)
    for i, place in enumerate(built):
        outside, within = defined(place, epochs)
        if place[0] != "scope in loop":
            rows = got[f"timed{i}"].rows().values()
            decode = refined(PRODUCT, 1, INNER[place[1]]).decode
            timed = Counter((decode(json.loads(at)), (k, v)) for each in rows for k, v, at in each)
            assert timed == within, place
        by_epoch = Counter((epoch, row) for epoch, each in got[f"out{i}"].rows().items() for row in each)
        assert by_epoch == sum((Counter({(t.epoch, r): n}) for (t, r), n in outside.items()), Counter()), (
            place
        )


EPOCHS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=5), min_size=1, max_size=3
)
SCHEDULES = st.fixed_dictionaries({**HOW, "crashes": st.sampled_from([0, 0, 0.2])})
SOME = [[(0, 1), (0, 3), (1, 2)], [(0, 2), (0, 0)], [(0, 4)]]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), in_turn(INNER, range(3)))
@FEW
@given(epochs=EPOCHS, schedule=SCHEDULES)
@example(epochs=SOME, schedule={"workers": 2, "seed": 1, "together": True})
def test_an_operator_in_a_scope_gives_the_records_of_its_definition(
    kind: str, first: int, epochs: Any, schedule: Any
) -> None:
    places = ("in scope", "loop in scope", "scope in loop")
    agree([(places[(first + n) % 3], kind, name) for n, name in enumerate(OPERATORS)], epochs, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INNER)
def test_operators_in_a_scope(kind: str) -> None:
    places = [("in scope", kind, name) for name in OPERATORS]
    assert all(map(is_built, places))
    agree(places, SOME, {"workers": 2, "seed": 1})
