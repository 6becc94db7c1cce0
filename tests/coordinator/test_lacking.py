"""What is new in a changed flow: what may begin now, and what would be wrong without the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.coordinator.test_migrate import built, counts, go_on, refused, started

#: what is added to a flow of counts and of a collection's sums, and whether it needs the past
ADDED: dict[str, tuple[Callable[[ts.Stream], Any], bool]] = {
    "select": (lambda x: x.select("k").where(pc.field("k") > 0).capture("new"), False),
    "files": (lambda x: x.to_files("/none", name="new"), False),
    "delta log": (lambda x: x.to_delta("/none", name="new"), False),
    "delta by key": (lambda x: x.to_delta("/none", keys="k", name="new"), True),
    "probe": (lambda x: x.probe("new"), False),
    "inspect": (lambda x: x.collection().inspect("new"), False),
    "collection": (lambda x: x.collection().capture("new"), True),
    "its stream": (lambda x: x.collection().changes().where(pc.field("v") > 0).capture("new"), True),
    "distinct": (lambda x: x.distinct(name="new").capture(), True),
    "monotone": (lambda x: x.min("v", keys="k", name="new").to_delta("/none", diff="diff"), True),
    "per time": (lambda x: x.group_by("k").aggregate(n="count", per="time", name="new").capture(), False),
    "reduce": (lambda x: x.group_by("k").reduce(lambda _, rows: [len(rows)], "n long").capture("new"), False),
    "union": (lambda x: x.union(x.select("k", v="k"), name="new").capture(), False),
    "join per time": (lambda x: x.join(x.select("k", w="v"), on="k", per="time").capture("new"), False),
    "left join": (
        lambda x: x.join(x.select("k", w="v"), on="k", per="time", how="left").capture("new"),
        False,
    ),
    "join": (lambda x: x.join(x.select("k", w="v"), on="k", name="new").capture(), True),
    "unary": (lambda x: x.unary(lambda _, batch: batch, "k long, v long", name="new").capture(), False),
    "notify": (lambda x: x.unary_notify(lambda _, batch: batch, "k long, v long").capture("new"), False),
    "expire": (lambda x: x.expire(after=2, name="new").capture(), True),
    "stateful": (
        lambda x: x.stateful_map(
            lambda _, rows, s: ([len(rows)], 1), "n long", keys="k", state="n long"
        ).capture("new"),
        True,
    ),
    "loop": (lambda x: x.loop(lambda n: n.where(pc.field("v") > 9), name="new").capture(), False),
    "loop with state": (lambda x: x.loop(lambda n: n.distinct(), name="new").capture(), True),
    "own vertex": (lambda x: x.flow.vertex(ts.Vertex(), x, "n long", name="new").capture(), True),
}


@pytest.mark.parametrize("case", ADDED)
def test_new_steps_that_need_the_past_are_refused_and_others_are_not(case: str) -> None:
    more, needs = ADDED[case]
    old = started(counts)
    if needs:
        assert "; results there depend on records" in refused(old, built(counts, more))
    _, made = go_on(old, built(counts, more), empty=needs)
    assert bool(made.lacking) == needs
    assert all(name == "new" or name.startswith(("new.", "capture", "inspect")) for name in made.begins)
    behind_a_new_input = built(counts)
    more(behind_a_new_input.input("y", "k long, v long", epochs="manual"))
    assert not go_on(old, behind_a_new_input)[1].lacking
