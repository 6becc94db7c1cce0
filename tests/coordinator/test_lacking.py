"""What is new in a changed flow: what may begin now, and what would be wrong without the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.coordinator.test_migrate import built, counts, go_on, refused, started
from timely_spark.compiler.summary import plan_summary, unnamed_in_words
from timely_spark.coordinator.lacking import lacks_past
from timely_spark.graph import Kind

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


@pytest.mark.parametrize(
    ("options", "complete"), [({}, False), ({"keys": "k"}, True), ({"diff": "d"}, True)], ids=str
)
def test_an_output_that_is_read_as_a_whole_needs_the_past(options: Any, *, complete: bool) -> None:
    flow = built(lambda x: x.min("v", keys="k").to_delta("/none", name="new", **options))
    plan = flow.compile(2)
    assert lacks_past(plan, plan.by_name["new"].stage) is complete


@pytest.mark.slow
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


def test_an_output_by_key_or_with_diffs_is_read_as_a_whole() -> None:
    flow = built(
        lambda x: x.to_delta("/none", name="log"),
        lambda x: x.to_delta("/none", keys="k", name="by key"),
        lambda x: x.collection().changes().to_delta("/none", diff="diff", keys="k", name="changes"),
    )
    plan = flow.compile(2)
    outputs = [stage for stage in plan.stages if stage.kind is Kind.OUTPUT]
    assert {stage.name: lacks_past(plan, stage) for stage in outputs} == {
        "log": False, "by key": True, "changes": True,
    }  # fmt: skip


# -- steps that stay, behind others --------------------------------------------------------------------------

ABOVE = {bound: pc.field("v") > bound for bound in (0, 5)}


def collected(change: Callable[[ts.Stream], ts.Stream]) -> Callable[[ts.Stream], Any]:
    return lambda x: change(x).collection().count(keys="k", name="counts").capture("counted")


CHANGES: dict[str, Callable[[ts.Stream], ts.Stream]] = {
    "inserted": lambda x: x.where(ABOVE[5]).where(ABOVE[0]),
    "gone": lambda x: x,
    "changed": lambda x: x.where(ABOVE[5]),
    "doubled": lambda x: x.where(ABOVE[0]).concat(x),
    "moved": lambda x: x.select("k", v=pc.field("v") + 1).where(ABOVE[0]),
}


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_collection_made_by_other_steps_is_refused_and_a_stream_is_told(change: str) -> None:
    before = lambda x: x.where(ABOVE[0])  # noqa: E731
    old = started(collected(before))
    for empty in (False, True):
        text = refused(old, built(collected(CHANGES[change])), empty=empty)
        assert f"step 'counts' ({__file__}:" in text
        assert "a deletion would not remove what the old ones made" in text
    go_on(old, built(counts_new, collected(before)), empty=True)

    old = started(lambda x: counts(before(x)))
    _, made = go_on(old, built(lambda x: counts(CHANGES[change](x))))
    assert made.fed_otherwise == ("counts",)
    assert go_on(old, built(lambda x: counts(before(x))))[1].fed_otherwise == ()


def counts_new(x: ts.Stream) -> None:
    x.group_by("v").count(name="others").capture("others-out")


def test_what_is_before_new_steps_is_not_told_twice_of_old_ones_behind() -> None:
    old = started(lambda x: x.collection().count(keys="k", name="counts").capture("counted"))

    def distinct(x: ts.Stream) -> None:
        x.collection().distinct(name="once").count(keys="k", name="counts").capture("counted")

    text = refused(old, built(distinct))
    assert "new: step 'once'" in text
    assert "counts" not in text
    _, made = go_on(old, built(distinct), empty=True)
    assert set(made.lacking) == {"once"}


def test_an_input_with_one_more_column_is_the_same_if_a_select_leaves_it_out() -> None:
    def flow(schema: str) -> ts.Dataflow:
        made = ts.Dataflow("flow")
        x = made.source("x", schema)
        x.select("k", "v").collection().count(keys="k", name="counts").capture("counted")
        return made

    old = ts.testing.Simulation(flow("k long, v long"), workers=2)
    old.send("x", [(1, 5)])
    old.run()
    new, made = go_on(old, flow("k long, v long, w string"))
    assert made.fed_otherwise == ()
    new.send("x", [(1, 5, "w")])
    new.run()
    assert list(new.captured["counted"].rows().values())[-1] == [(1, 1, -1), (1, 2, 1)]


def test_steps_that_need_a_name_are_listed_a_few_of_them_and_by_line() -> None:
    def flow(times: int, *, others: int = 0) -> tuple[str, ...]:
        made = ts.Dataflow("flow")
        x = made.input("x", "k long, v long")
        for _ in range(times):
            x.collection().count(keys="k").distinct().capture()
        for _ in range(others):
            x.distinct().capture()
        x.distinct(name="named").group_by("k").aggregate(n="count", per="time").capture()
        return tuple(map(str, plan_summary(made.compile(2))["unnamed"]))

    assert flow(0) == flow(1) == flow(2) == (), "those of one line are found in any case"
    assert [name.split()[0] for name in flow(2, others=2)] == ["count", "distinct_3"]
    assert unnamed_in_words([]) == ""
    assert unnamed_in_words(list("abcd")).endswith(": a, b, c and 1 more")


def test_a_step_that_remembers_more_than_before_is_new() -> None:
    def step(**options: Any) -> Callable[[ts.Stream], Any]:
        return lambda x: x.group_by("k").aggregate(n="count", name="s", **options).capture("out")

    old = started(step(per="time"))
    assert "new: step 's'" in refused(old, built(step()))
    old = started(lambda x: x.collection().where(ABOVE[0], name="s").capture("out"))
    assert "new: step 's'" in refused(
        old, built(lambda x: x.collection().min("v", keys="k", name="s").capture("out"))
    )
    idle = ts.testing.Simulation(built(step(per="time")), workers=2)
    idle.advance_to("x", 3)
    idle.run()
    go_on(idle, built(step()))  # no record has passed
