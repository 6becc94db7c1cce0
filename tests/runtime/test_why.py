"""Why an epoch is not complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler.summary import PlanSummary
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.handle.why import Why
from timely_spark.runtime.storage.log import RoundLog


def ask(process: Any, epoch: int) -> Why:
    newest = ts.inspect(process.context.checkpoint).at()
    return Why.of(replace(newest, own=PlanSummary.of(process.context.plan)), epoch)


@pytest.mark.slow
def test_what_a_loop_does_and_since_when(begin: Any, tmp_path: Path) -> None:
    flow = ts.Dataflow("hops")
    numbers = flow.input("numbers", "n long, to long")

    def step(each: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        more = (
            each.where(pc.field("n") < 40)
            .select(n=pc.field("n") + 1, to="to")
            .min("to", keys="n", name="seen")
        )
        return more, more

    numbers.loop(step, name="count up").unary_notify(
        lambda time, batch: [batch.num_rows], "rows long", name="size"
    ).capture("out")
    process = begin(flow, workers=2, rounds=1, keep=50)
    process.handles["numbers"].send([(1, 1), (2, 2), (3, 3)])
    for _ in range(4):
        assert process.batch()

    why = ask(process, 0)

    assert not why.complete
    moving = next(each for each in why.pointstamps if each.messages)
    assert moving.records > 0
    assert "test_why.py" in moving.where
    assert moving.since == why.batch, "each iteration is another time"
    assert moving.path[-1] == "out"
    waits = next(each for each in why.pointstamps if each.notifications)
    assert waits.since < why.batch, "something has waited since the first record left the loop"
    assert f"since batch {waits.since}" in str(why)
    assert f", {moving.records} record" in str(why)
    assert str(why) in str(Status.of(str(tmp_path)))
    process.batches()
    assert ask(process, 0).complete
    assert str(ask(process, 0)) == "epoch 0 is complete"
    assert "has not begun" in str(ask(process, 99))


def test_an_input_that_is_not_advanced(begin: Any, tmp_path: Path) -> None:
    flow = ts.Dataflow("held")
    flow.input("edges", "n long", epochs="manual").distinct().capture("out")
    process = begin(flow)
    process.feed("edges", [1])
    why = ask(process, 0)
    assert list(why.inputs) == ["edges"]
    assert "at epoch 0: advance or close it" in str(why)

    files = RoundLog(str(tmp_path)).files  # as of an input that replays, and of one with a column of epochs
    term = f"terms/{files.numbers('terms')[-1]}.json"
    files.write_json(term, {**(files.json(term) or {}), "replays": {"edges": "/data/c", "gone": "/data/d"}})
    assert "at epoch 0: the flow that captures /data/c completes it" in str(ask(process, 0))
    files.write_json(term, {**(files.json(term) or {}), "replays": {}})
    newest = ts.inspect(str(tmp_path)).at()
    summary = PlanSummary.of(process.context.plan)
    summary.inputs = {"edges": ("day", "job.py:1")}
    by_day = Why.of(replace(newest, own=summary), 0)
    assert "rows of a later epoch, or query.close('edges'), complete it" in str(by_day)
    process.handles["edges"].advance_to(2)
    process.batches()
    assert ask(process, 1).complete
    assert not ask(process, 2).complete


def test_times_of_a_users_kind(begin: Any) -> None:
    flow = ts.Dataflow("own", times=ts.LEXICOGRAPHIC)
    numbers = flow.input("numbers", "n long")
    numbers.loop(
        lambda each: each.where(pc.field("n") < 9).select(n=pc.field("n") + 1).exchange("n").distinct()
    ).capture("out")
    process = begin(flow, rounds=1)
    process.handles["numbers"].send([1])
    process.batch()
    process.batch()
    why = ask(process, 0)
    assert why.pointstamps
    assert why.pointstamps[0].path[-1] == "out"
