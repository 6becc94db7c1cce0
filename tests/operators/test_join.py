"""Joins: keys of all kinds, nulls, sides, per time, and refused arguments."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import moved_at_each_epoch
from tests.support.turns import HOW
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


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_key_column_may_be_named_twice(how: Any) -> None:
    left, right = [1, 2, 3], [(1, 1), (2, 1), (9, 9)]
    flow = ts.Dataflow("twice")
    x, y = (flow.input(n, c, epochs="manual") for n, c in (("x", "a long"), ("y", "b long, c long")))
    x.join(y, left=["a", "a"], right=["b", "c"], how=how, per="time").capture("left twice")
    x.collection().join(y.collection(), left=["a", "a"], right=["b", "c"], how=how).capture("changes")
    y.join(x, left=["b", "c"], right=["a", "a"], how=how, per="time").select("b").capture("right twice")

    made = run(flow, {"x": [left], "y": [right]}, workers=2)
    kept = {"left": [1, 2, 3], "anti": [2, 3]}.get(how, [1])
    assert made["left twice"].rows() == {0: [(n,) for n in kept]}
    assert made["changes"].rows() == {0: [(n, 1) for n in kept]}
    kept = {"left": [1, 2, 9], "anti": [2, 9]}.get(how, [1])
    assert made["right twice"].rows() == {0: [(n,) for n in kept]}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_joins_itself(workers: int) -> None:
    flow = ts.Dataflow("self")
    edges = flow.input("e", "a long, b long")
    edges.join(edges.select(b="a", c="b"), on=["b"]).capture("out")

    rows = run(flow, {"e": [[(1, 2), (2, 3)], [(3, 1)]]}, workers=workers)["out"].rows()
    assert rows == {0: [(1, 2, 3)], 1: [(2, 3, 1), (3, 1, 2)]}


@pytest.mark.slow
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


KINDS = ["left", "right", "outer", "semi", "anti"]
KEYS = st.sampled_from([None, 0, 1, 2])
SIDE = st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=5)
EPOCHS = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=3)


def by_definition(how: str, left: Any, right: Any) -> list[Any]:
    """The records of one time, as SQL joins them."""
    ours = [any(k == j for j, _ in right) and k is not None for k, _ in left]
    theirs = [any(k == j for k, _ in left) and j is not None for j, _ in right]
    if how in ("semi", "anti"):
        return [row for row, matched in zip(left, ours, strict=True) if matched == (how == "semi")]
    rows = [(k, a, b) for k, a in left for j, b in right if k == j is not None]
    if how != "right":
        rows += [(*row, None) for row, matched in zip(left, ours, strict=True) if not matched]
    if how != "left":
        rows += [(j, None, b) for (j, b), matched in zip(right, theirs, strict=True) if not matched]
    return rows


@pytest.mark.slow
@given(
    epochs=EPOCHS,
    **HOW,
)
def test_the_other_kinds_are_those_of_sql_at_each_time(*, epochs: Any, **how: Any) -> None:
    flow = ts.Dataflow("kinds")
    left = flow.input("l", "k long, a long", epochs="manual")
    right = flow.input("r", "k long, b long", epochs="manual")
    for kind in KINDS:
        left.join(right, on="k", how=kind, per="time").capture(kind)
    inputs = {"l": [of for of, _ in epochs], "r": [of for _, of in epochs]}

    made = run(flow, inputs, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    for kind in KINDS:
        for epoch, sides in enumerate(epochs):
            assert Counter(made[kind].rows().get(epoch, [])) == Counter(by_definition(kind, *sides))


def within(how: str, n: int, epochs: list[Any]) -> dict[int, list[Any]]:
    """The records that a join of records at most n epochs apart sends, by epoch."""
    out: dict[int, list[Any]] = {}
    left, right = ([(e, *row) for e, sides in enumerate(epochs) for row in sides[i]] for i in (0, 1))

    def matches(one: Any, others: Any) -> list[Any]:
        e, k, _ = one
        return [other for other in others if k is not None and other[1] == k and abs(e - other[0]) <= n]

    for e, k, a in left:
        found = matches((e, k, a), right)
        if how == "semi" and found:
            out.setdefault(min(max(e, other[0]) for other in found), []).append((k, a))
        elif how == "anti" and not found:
            out.setdefault(e + n, []).append((k, a))
        elif how not in ("semi", "anti"):
            for at, _, b in found:
                out.setdefault(max(e, at), []).append((k, a, b))
            if not found and how != "right":
                out.setdefault(e + n, []).append((k, a, None))
    for e, k, b in right if how in ("right", "outer") else ():
        if not matches((e, k, b), left):
            out.setdefault(e + n, []).append((k, None, b))
    return {epoch: sorted(rows, key=repr) for epoch, rows in out.items()}


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    epochs=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=8),
    n=st.integers(1, 3),
    **HOW,
)
def test_the_other_kinds_with_expire(*, epochs: Any, n: int, **how: Any) -> None:
    flow = ts.Dataflow("kinds")
    left = flow.input("l", "k long, a long", epochs="manual")
    right = flow.input("r", "k long, b long", epochs="manual")
    for kind in KINDS:
        left.join(right, on="k", how=kind, expire=n).capture(kind)
    inputs = {"l": [of for of, _ in epochs], "r": [of for _, of in epochs]}

    made = run(flow, inputs, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    for kind in KINDS:
        found = {epoch: sorted(rows, key=repr) for epoch, rows in made[kind].rows().items() if rows}
        assert found == within(kind, n, epochs), kind


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("how", KINDS)
def test_a_rescaled_join_with_expire_sends_each_record_once(how: Any) -> None:
    draw = random.Random(how)
    epochs = [[[(draw.randrange(9), draw.randrange(9)) for _ in range(6)] for _ in "lr"] for _ in range(9)]
    flow = ts.Dataflow("moved")
    left = flow.input("l", "k long, a long", epochs="manual")
    right = flow.input("r", "j long, b long", epochs="manual")
    left.join(right, left="k", right="j", how=how, expire=2).capture("out")

    found = moved_at_each_epoch(flow, epochs, "lr")

    assert {e: sorted(rows, key=repr) for e, rows in found.items() if rows} == within(how, 2, epochs)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("how", KINDS)
def test_what_has_expired_leaves_the_state(how: Any) -> None:
    flow = ts.Dataflow("state")
    left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b long")
    left.join(right, on="k", how=how, expire=2).capture("out")
    simulation = Simulation(flow)
    sizes = []
    for epoch in range(30):
        for name in "lr":
            simulation.send(name, [(50 * epoch + k, k) for k in range(0, 50, 1 if name == "l" else 2)])
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))

    assert max(sizes[20:]) < 1.3 * max(sizes[8:20])


def test_columns_without_a_match_are_null_in_their_own_types() -> None:
    flow = ts.Dataflow("types")
    left = flow.input("l", "a int, k string, tags array<string>")
    right = flow.input("r", "j string, n int, at struct<x:double>, m map<string,int>, when timestamp")
    both = left.join(right, left="k", right="j", how="outer", per="time")
    both.capture("out")
    row = {
        "j": "y",
        "n": 7,
        "at": {"x": 0.5},
        "m": [("z", 1)],
        "when": datetime(2026, 1, 1, tzinfo=timezone.utc),
    }

    table = run(flow, {"l": [[(1, "x", ["t"])]], "r": [[row]]}, workers=2)["out"].table()

    right_columns = [field for field in right.schema if field.name != "j"]
    assert both.schema == pa.schema([*left.schema, *right_columns])
    assert table.drop_columns(["epoch"]).schema == both.schema
    made = {one["k"]: one for one in table.drop_columns(["epoch"]).to_pylist()}
    assert made["x"] == {"a": 1, "k": "x", "tags": ["t"], "n": None, "at": None, "m": None, "when": None}
    assert made["y"] == {"a": None, "k": "y", "tags": None} | {c: row[c] for c in ("n", "at", "m", "when")}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("right", [(8, None, 0), (9, 2, 0)]),
        ("outer", [(7, 1, None), (8, None, 0), (9, 2, 0)]),
    ],
)
def test_records_are_matched_whatever_their_places_in_a_batch(how: Any, expected: list[Any]) -> None:
    flow = ts.Dataflow("places")
    left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b long")
    left.join(right, on="k", how=how, per="time").capture("out")
    epochs = {"l": [[(7, 1), (9, 2)]], "r": [[(9, 0), (8, 0)]]}
    assert run(flow, epochs)["out"].rows() == {0: expected}


@pytest.mark.parametrize("of", ["streams", "collections"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "full"}, "how='full'"),
        ({"how": None}, "how=None"),
        ({"how": "right", "left": "k", "right": "small"}, "'k' is int64.*'small' is int16.*how='right'"),
        ({"how": "outer", "left": ["k", "k"], "right": ["j", "k"]}, "two values"),
        ({"how": "left", "left": "k", "right": "j"}, r"both sides have \['k'\]"),
    ],
)
def test_kinds_that_cannot_be_are_refused_when_the_graph_is_built(
    of: str, options: Any, message: str
) -> None:
    flow = ts.Dataflow("bad")
    left: Any = flow.input("l", "k long, a long")
    right: Any = flow.input("r", "k long, j long, small short, b long")
    if of == "collections":
        left, right = left.collection(), right.collection()
    else:
        options = {"per": "time"} | options
    with pytest.raises(SchemaError, match=rf"(?s)join: .*{message}.*Hint: "):
        left.join(right, **({"on": "k"} if "left" not in options else {}), **options)


@pytest.mark.parametrize("how", KINDS)
def test_unmatched_records_need_a_time_that_ends(how: Any) -> None:
    flow = ts.Dataflow("bad")
    left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b long")
    with pytest.raises(SchemaError, match=r"(?s)retract.*test_join.py.*Hint: give per=\"time\""):
        left.join(right, on="k", how=how)
    with pytest.raises(GraphError, match="expire"):
        left.join(right, on="k", how=how, per="time", expire=2)
    with pytest.raises(GraphError, match="inside loop"):
        left.loop(lambda x: x.join(x.scope.enter(right), on="k", how=how, expire=2).select(k="k", a="a"))


def test_semi_and_anti_may_share_columns_with_the_other_side() -> None:
    flow = ts.Dataflow("same")
    left, right = (flow.input(name, "k long, a long", epochs="manual") for name in "lr")
    left.join(right, on="k", how="anti", per="time").capture("anti")
    left.collection().join(right.collection(), on="k", how="semi").changes().capture("semi")

    made = run(flow, {"l": [[(1, 1), (2, 2)]], "r": [[(1, 5)]]}, workers=2)
    assert (made["anti"].rows(), made["semi"].rows()) == ({0: [(2, 2)]}, {0: [(1, 1, 1)]})


@pytest.mark.slow
@pytest.mark.parametrize(("right_side", "workers"), [("stored", 1), ("arranged", 3)])
def test_collections_of_many_records_join_as_those_of_few(right_side: str, workers: int) -> None:
    draw, flow = np.random.default_rng(workers), ts.Dataflow("many")
    first, second = (flow.input(name, f"k long, {name} long, diff long") for name in ("a", "b"))
    left, right = first.collection(diff="diff"), second.collection(diff="diff")
    left.join(right.arrange("k") if right_side == "arranged" else right, on="k").changes().capture("out")
    records = {name: draw.integers(0, (900, 9), (12_000, 2)).tolist() for name in ("a", "b")}
    epochs = {
        name: [
            [(*row, 1) for row in rows[:8_000]],
            [*((*row, -1) for row in rows[:4_000]), *((*row, 1) for row in rows[8_000:])],
        ]
        for name, rows in records.items()
    }
    out = run(flow, epochs, workers=workers)["out"].rows()

    for total, (low, high) in zip(after_each(out), [(0, 8_000), (4_000, 12_000)], strict=True):
        by_key = defaultdict(list)
        for key, value in records["b"][low:high]:
            by_key[key].append(value)
        pairs = ((key, a, b) for key, a in records["a"][low:high] for b in by_key[key])
        assert total == Counter(pairs), f"records {low} to {high}"
