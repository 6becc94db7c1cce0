"""As-of joins against pandas.merge_asof, under insertions and deletions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import HOW
from timely_spark.errors import SchemaError

TIMES = st.integers(0, 9)
CHANGES = st.lists(st.tuples(st.sampled_from("ab"), TIMES, st.integers(0, 2), st.booleans()), max_size=6)
EPOCHS = st.lists(st.tuples(CHANGES, CHANGES), min_size=1, max_size=4)


def inserted_or_deleted(epochs: Any) -> list[list[Any]]:
    """Changes that never delete an absent record."""
    present: Counter[Any] = Counter()
    changes: list[list[Any]] = []
    for drawn in epochs:
        changes.append([])
        for *record, insert in drawn:
            row = tuple(record)
            if insert or present[row]:
                present[row] += 1 if insert else -1
                changes[-1].append((*row, 1 if insert else -1))
    return changes


def by_pandas(left: Any, right: Any, direction: Any, tolerance: int | None, by: Any) -> Counter[Any]:
    ours = pd.DataFrame(left.elements(), columns=["k", "t", "a"]).astype({"t": "int64"}).sort_values("t")
    theirs = pd.DataFrame(sorted(right), columns=["k", "t", "b"]).astype({"t": "int64"})
    if by is None:
        theirs = theirs.rename(columns={"k": "j"}).sort_values(["t", "b"])
        theirs = theirs.drop(columns="j")
    # of several at one time the one with the least columns
    theirs = theirs.sort_values(["t", "b"]).drop_duplicates(["t", *(["k"] if by else [])])
    joined = pd.merge_asof(ours, theirs, on="t", by=by, direction=direction, tolerance=tolerance)
    rows = joined[["k", "t", "a", "b"]].itertuples(index=False)
    return Counter((k, t, a, None if pd.isna(b) else int(b)) for k, t, a, b in rows)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    epochs=EPOCHS,
    direction=st.sampled_from(["backward", "forward", "nearest"]),
    tolerance=st.none() | st.integers(0, 3),
    by=st.sampled_from(["k", None]),
    **HOW,
)
def test_at_every_epoch_it_is_that_of_pandas(
    *,
    epochs: Any,
    direction: Any,
    tolerance: int | None,
    by: Any,
    play: Callable[..., Any],
    came_to: Callable[..., Any],
    **how: Any,
) -> None:
    flow = ts.Dataflow("asof")
    schema = "k string, t long, {} long, d long"
    x = flow.input("x", schema.format("a"), epochs="manual").collection(diff="d")
    y = flow.input("y", schema.format("b"), epochs="manual").collection(diff="d")
    right = y if by else y.select("t", "b")
    x.asof_join(right, "t", by=by, direction=direction, tolerance=tolerance).changes().capture("left")
    x.asof_join(right, "t", by=by, direction=direction, tolerance=tolerance, how="inner").changes().capture(
        "inner"
    )
    inputs = {name: inserted_or_deleted([pair[side] for pair in epochs]) for side, name in enumerate("xy")}

    outputs = play(flow, inputs, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    totals = {name: came_to(of) for name, of in outputs.items()}
    for epoch, (left, right_now) in enumerate(zip(came_to(inputs["x"]), came_to(inputs["y"]), strict=True)):
        expected = by_pandas(left, right_now, direction, tolerance, by)
        assert totals["left"][epoch] == expected
        assert totals["inner"][epoch] == Counter(
            {row: n for row, n in expected.items() if row[-1] is not None}
        )


def test_null_keys_and_null_times_match_nothing() -> None:
    flow = ts.Dataflow("nulls")
    x = flow.input("x", "k string, t timestamp_ntz, a long").collection()
    y = flow.input("y", "k string, t timestamp_ntz, b int").collection()
    x.asof_join(y, "t", by="k", direction="nearest", tolerance="90 seconds").changes().capture("out")
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone
    left = [("a", at, 1), (None, at, 2), ("a", None, 3), ("a", at + timedelta(minutes=4), 4)]
    right = [("a", at + timedelta(seconds=90), 7), (None, at, 8), ("a", None, 9)]

    out = ts.testing.run(flow, {"x": [left], "y": [right]}, workers=2)["out"]

    assert {row[2]: row[3] for row in out.rows()[0]} == {1: 7, 2: None, 3: None, 4: None}


def test_it_runs_in_a_loop() -> None:
    """Follow the latest step before a time, until there is none."""
    flow = ts.Dataflow("loop")
    steps = flow.input("steps", "t long, to long").collection()
    start = flow.input("start", "t long").collection()

    def follow(near: Any) -> Any:
        return near.asof_join(steps, "t", how="inner").select(t="to").concat(start).distinct()

    start.iterate(follow).changes().capture("out")
    rows = ts.testing.run(flow, {"steps": [[(3, 1), (8, 5)], [(4, 2)]], "start": [[9], []]}, workers=2)
    assert rows["out"].rows() == {0: [(1, 1), (5, 1), (9, 1)], 1: [(1, -1), (2, 1)]}


@pytest.mark.parametrize(
    ("options", "schema"),
    [
        ({"on": "q"}, "k long, t long, b long"),
        ({"on": "k", "by": "k"}, "k long, t long, b long"),
        ({"on": "t", "by": ["k", "k"]}, "k long, t long, b long"),
        ({"on": "t", "direction": "back"}, "k long, t long, b long"),
        ({"on": "t", "how": "outer"}, "k long, t long, b long"),
        ({"on": "t", "tolerance": "1 hour"}, "k long, t long, b long"),
        ({"on": "t", "tolerance": -1}, "k long, t long, b long"),
        ({"on": "t"}, "k long, t int, b long"),
        ({"on": "t"}, "k long, t long, a long"),
        ({"on": "t"}, "k int, t long, b long"),
        ({"on": "t", "by": "k"}, "k long, t long, b array<long>"),
        ({"on": "s", "by": "k"}, "k long, s string, b long"),
    ],
)
def test_wrong_arguments_are_refused_when_the_graph_is_built(options: Any, schema: str) -> None:
    flow = ts.Dataflow("bad")
    x = flow.input("x", "k long, t long, a long, s string").collection()
    y = flow.input("y", schema).collection()
    with pytest.raises(SchemaError, match=r"(?s)asof_join.*test_asof.py.*Hint: "):
        x.asof_join(y, **options)
