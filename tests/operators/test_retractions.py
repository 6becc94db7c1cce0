"""Streams with retractions, which `expire` sends: which steps add them up, and which refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError
from timely_spark.testing import run

REFUSED: dict[str, Callable[[ts.Stream, ts.Stream], Any]] = {
    "distinct": lambda x, _: x.distinct(),
    "min": lambda x, _: x.select("k", "v").min("v", keys="k"),
    "max": lambda x, _: x.max("v", keys="k", expire=2),
    "top_k": lambda x, _: x.top_k(1, "v", keys="k"),
    "merge": lambda x, _: x.merge("v", max, keys="k"),
    "count_distinct": lambda x, _: x.select("k", "v").count_distinct("n", keys="k"),
    "union": lambda x, _: x.union(x),
    "window": lambda x, _: x.window("v", ts.every(2), lateness=1),
    "join": lambda x, y: x.join(x.select("k", u="v"), on="k"),
    "join how": lambda x, y: x.join(y, on="k", how="left", per="time"),
    "asof_join": lambda x, y: x.asof_join(y, "v", by="k"),
    "aggregate of min": lambda x, _: x.group_by("k").aggregate(least=("min", "v")),
    "aggregate without signs": lambda x, _: x.select("k").group_by("k").count(),
    "upserts": lambda x, _: x.upserts("k", "v"),
    "collection": lambda x, _: x.select("k").collection(),
    "aggregate behind a function": lambda x, _: x.map(lambda row: row.k, "k long").group_by("k").count(),
    "distinct behind a function": lambda x, _: x.map_batches(lambda batch: batch, x.schema).distinct(),
    "distinct of a join without signs": lambda x, y: x.join(y, on="k").select("k", "w").distinct(),
    "distinct behind a loop": lambda x, _: x.loop(lambda each: each.where(pc.field("k") < 0)).distinct(),
    "distinct of one of three": lambda x, y: x.concat(
        *[y.select("k", v="w", diff=pc.field("w").cast("int32"))] * 2
    ).distinct(),
    # a column that is called as that of the signs, and is not that
    "aggregate without signs, beside another's": lambda x, y: (
        x.map(lambda row: row.k, "k long").join(y.select("k", diff="w"), on="k").group_by("k").count()
    ),
    "aggregate without signs, behind another's": lambda x, _: (
        x.map(lambda row: row.k, "k long")
        .map(lambda row: (row.k, 1), "k long, diff long")
        .group_by("k")
        .count()
    ),
}
#: those that get retractions without their column of signs
UNSIGNED = {
    "min",
    "count_distinct",
    "collection",
    "aggregate behind a function",
    *(name for name in REFUSED if "without signs" in name),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_of_records_refuse_retractions(name: str) -> None:
    flow = ts.Dataflow("refused")
    x, y = (
        flow.input("x", "k long, v long").expire(1),
        flow.input("y", "k long, v long").select("k", "v", w="v"),
    )
    with pytest.raises(
        GraphError, match=rf"(?s)^{name.split(maxsplit=1)[0]}: .*retractions of step 'expire'.*Hint: "
    ) as caught:
        REFUSED[name](x, y if name == "asof_join" else y.select("k", "w"))
    assert "test_retractions.py" in str(caught.value)
    hint = "keep the column of signs" if name in UNSIGNED else "behind .collection(diff='diff')"
    assert hint in str(caught.value)


@pytest.mark.parametrize("diff", ["long", "double"])
def test_a_null_has_no_part_in_the_sums_and_counts_of_a_window(diff: str) -> None:
    flow = ts.Dataflow("nulls")
    changes = flow.input("x", f"k long, v int, w double, d {diff}")
    of: Any = {"valid": ("count", "v"), "total": ("sum", "v"), "w": ("sum", "w")}
    changes.expire(after=1, diff="d").aggregate(of).capture("out")
    most = (1 << 31) - 1
    rows = [(1, None, 0.5, 1), (1, most, None, 2), (1, 5, 2.0, None)]
    assert run(flow, {"x": [rows, []]})["out"].rows() == {0: [(2, 2 * most, 0.5)], 1: [(0, 0, 0.0)]}


def test_what_adds_retractions_up_retracts_nothing() -> None:
    flow = ts.Dataflow("sums")
    counts = flow.input("x", "k long, v long").expire(1).group_by("k").count("v")
    counts.distinct().min("v").capture("out")
    assert run(flow, {"x": [[(1, 1)], [(1, 2), (1, 3)]]})["out"].rows() == {0: [(1,)], 1: [], 2: [(0,)]}
