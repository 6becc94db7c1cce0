"""As-of joins of streams against pandas.merge_asof: of what each record's epoch knows."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.rescaling import moved_at_each_epoch
from tests.support.turns import HOW
from timely_spark.errors import GraphError, SchemaError

TRIED = {
    "asof_join": lambda x, y: x.asof_join(y.select("k", "v", w="v", name="times"), "v", by="k", name="it"),
    "asof_join expire": lambda x, y: x.asof_join(
        y.select("v", w="v", name="times"), "v", expire=1, name="it"
    ),
}
ROW = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 9), st.integers(0, 2))
EPOCHS = st.lists(st.tuples(st.lists(ROW, max_size=6), st.lists(ROW, max_size=6)), min_size=1, max_size=5)
ANY_WAY = {
    "epochs": EPOCHS,
    "direction": st.sampled_from(["backward", "forward", "nearest"]),
    "tolerance": st.none() | st.integers(0, 3),
    "by": st.sampled_from(["k", None]),
}


def by_pandas(left: Any, right: Any, direction: Any, tolerance: int | None, by: Any) -> list[Any]:
    ours = [row for row in left if row[1] is not None and (row[0] is not None or not by)]
    theirs = pd.DataFrame(right, columns=["k", "t", "b"]).dropna(subset=["t", *(["k"] if by else [])])
    # of several at one time the one with the least columns
    theirs = theirs.sort_values(["t", "b"]).drop_duplicates(["t", *(["k"] if by else [])])
    theirs = theirs.astype({"t": "int64"})[["k", "t", "b"] if by else ["t", "b"]]
    found = pd.DataFrame(ours, columns=["k", "t", "a"]).astype({"t": "int64"}).sort_values("t")
    made = pd.merge_asof(found, theirs, on="t", by=by, direction=direction, tolerance=tolerance)
    rows = [(k, t, a, None if pd.isna(b) else int(b)) for k, t, a, b in made.itertuples(index=False)]
    return [*((k if isinstance(k, str) else None, *rest) for k, *rest in rows)] + [
        (*row, None) for row in left if row not in ours
    ]


def flow_of(ways: dict[str, Any], **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("asof")
    x = flow.input("x", "k string, t long, a long", epochs="manual")
    y = flow.input("y", "k string, t long, b long", epochs="manual")
    right = y if options["by"] else y.select("t", "b")
    for name, way in ways.items():
        x.asof_join(right, "t", **options, **way).capture(name)
    return flow


@pytest.mark.parametrize("first", [-(1 << 63), (1 << 63) - 4, (1 << 64) - 4])
def test_times_of_all_64_bits_match(first: int) -> None:
    flow, kind = ts.Dataflow("far"), pa.uint64() if first >= 1 << 63 else pa.int64()
    x, y = (flow.input(name, pa.schema([("t", kind), (name, pa.int64())])) for name in "xy")
    ways = ["backward", "forward", "nearest"]
    for direction in ways:
        x.asof_join(y, "t", direction=direction, tolerance=2).capture(direction)

    found = ts.testing.run(flow, {"x": [[(first + 1, 1)]], "y": [[(first, 3), (first + 3, 4)]]})

    assert [found[way].rows()[0] for way in ways] == [[(first + 1, 1, y)] for y in (3, 4, 3)]


def test_any_distance_is_allowed_by_default() -> None:
    flow = ts.Dataflow("far")
    x, y = (flow.input(name, f"t long, {name} long") for name in "xy")
    x.asof_join(y, "t").capture("out")

    found = ts.testing.run(flow, {"x": [[((1 << 63) - 1, 1)]], "y": [[(-(1 << 63), 2)]]})

    assert found["out"].rows() == {0: [((1 << 63) - 1, 1, 2)]}


def expected(epochs: Any, first: Any, **options: Any) -> dict[int, list[Any]]:
    """By epoch e the left records with the right ones of the epochs from first(e) to e."""
    return {
        e: sorted(
            by_pandas(left, [row for at in range(first(e), e + 1) for row in epochs[at][1]], **options),
            key=repr,
        )
        for e, (left, _) in enumerate(epochs)
    }


def in_order(rows: dict[int, list[Any]], epochs: Any) -> dict[int, list[Any]]:
    return {e: sorted(rows[e], key=repr) for e in range(len(epochs))}


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    **ANY_WAY,
    n=st.integers(1, 3),
    **HOW,
)
def test_each_record_has_the_nearest_that_its_epoch_knows(
    *, epochs: Any, n: int, direction: Any, tolerance: Any, by: Any, **how: Any
) -> None:
    options = {"direction": direction, "tolerance": tolerance, "by": by}
    ways = {"all": {}, "inner": {"how": "inner"}, "time": {"per": "time"}, "expire": {"expire": n}}
    inputs = {name: [pair[side] for pair in epochs] for side, name in enumerate("xy")}

    made = ts.testing.run(
        flow_of(ways, **options), inputs, crashes=0.2 if how["seed"] is not None else 0.0, **how
    )

    found = {name: in_order(made[name].rows(), epochs) for name in ways}
    assert found["all"] == expected(epochs, lambda _: 0, **options)
    assert found["inner"] == {
        e: [row for row in rows if row[-1] is not None] for e, rows in found["all"].items()
    }
    assert found["time"] == expected(epochs, lambda e: e, **options)
    assert found["expire"] == expected(epochs, lambda e: max(0, e - n), **options)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["k", None])
def test_it_goes_on_with_other_workers(by: Any) -> None:
    draw = random.Random(1)
    epochs = [
        [[(draw.choice("abcde"), draw.randrange(99), i) for i in range(5)] for _ in "xy"] for _ in range(8)
    ]
    options = {"direction": "backward", "tolerance": None, "by": by}
    flow = flow_of({"out": {"expire": 3}}, **options)

    found = in_order(moved_at_each_epoch(flow, epochs, "xy"), epochs)

    assert found == expected(epochs, lambda e: max(0, e - 3), **options)


def test_in_a_loop_the_records_up_to_a_time_count() -> None:
    flow = ts.Dataflow("loop")
    steps, start = flow.input("steps", "t long, to long"), flow.input("start", "t long")

    def follow(near: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        found = near.asof_join(near.scope.enter(steps), "t", how="inner")
        return found.select(t="to"), found.select("t", "to")

    start.loop(follow).capture("out")
    inputs = {"steps": [[(8, 5), (3, 1)], [(4, 2), (20, 19)]], "start": [[9], [9]]}
    rows = ts.testing.run(flow, inputs, workers=2)["out"].rows()
    assert rows == {0: [(5, 1), (9, 5)], 1: [(5, 2), (9, 5)]}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on": "u"}, SchemaError, "'u'"),
        ({"by": "t"}, SchemaError, "on='t', by="),
        ({"by": ["k", "k"]}, SchemaError, r"keys \['k', 'k'\]"),
        ({"direction": "up"}, SchemaError, "direction='up'"),
        ({"how": "outer"}, SchemaError, "how='outer'"),
        ({"tolerance": "1 hour"}, SchemaError, "tolerance='1 hour'"),
        ({"per": "epoch"}, SchemaError, "per='epoch'"),
        ({"expire": 0}, GraphError, "expire=0"),
        ({"expire": 1, "per": "time"}, GraphError, "with per='time'"),
        ({"by": None}, SchemaError, r"both sides have \['k'\]"),
    ],
)
def test_mistakes_are_said_with_the_line_and_a_hint(options: Any, error: Any, message: str) -> None:
    flow = ts.Dataflow("bad")
    left, right = flow.input("l", "k string, t long, a long"), flow.input("r", "k string, t long, b long")
    with pytest.raises(error, match=rf"(?s)asof_join.*{message}.*test_asof.py.*Hint: "):
        left.asof_join(right, **{"on": "t", "by": "k"} | options)
