"""Which records of a loop still change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.coordinator.loops import with_warn_after
from timely_spark.errors import BadArgument, UnknownName


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends after each 40 iterations, so that one sees a loop which never leaves its worker."""
    compile_ = ts.Dataflow.compile
    monkeypatch.setattr(
        ts.Dataflow, "compile", lambda self, workers=1: with_warn_after(compile_(self, workers), 40)
    )


def looping(step: Any) -> ts.Dataflow:
    flow = ts.Dataflow("looping")
    numbers = flow.input("numbers", "k string, n long").collection()
    numbers.iterate(step, name="turns").capture("out")
    return flow


def modulo(period: int) -> Any:
    """Of each key the number goes round for ever; key "x" ends."""

    def step(now: ts.Collection) -> ts.Collection:
        following = pc.if_else(pc.equal(pc.field("n"), period - 1), 0, pc.add(pc.field("n"), 1))
        return now.select("k", n=pc.if_else(pc.equal(pc.field("k"), "x"), 7, following)).max(
            "n", keys="k", name="most"
        )

    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("period", "workers"),
    [(2, 1), pytest.param(3, 3, marks=pytest.mark.slow), pytest.param(5, 2, marks=pytest.mark.campaign)],
)
def test_a_loop_that_goes_round_is_told_with_its_cycle(
    period: int, workers: int, begin: Any, tmp_path: Path
) -> None:
    process = begin(looping(modulo(period)), workers=workers, rounds=25, keep=50)
    process.handles["numbers"].send([("a", 0), ("b", 1), ("x", 3)])
    for _ in range(3):
        process.batch()

    found = ts.inspect(str(tmp_path)).at().changing("turns")

    assert found.step == "turns.most"
    assert found.epoch == 0
    assert found.cycle == period
    assert set(found.changes["k"].to_pylist()) == {"a", "b"}, "x has come to rest"
    assert len(found.iterations) == 16
    for iteration in found.iterations[:-1]:
        rows = found.changes.filter(pc.equal(found.changes["iteration"], iteration)).to_pylist()
        now = {row["k"]: row["n"] for row in rows if row["diff"] == 1}
        assert now == {"a": (iteration + 1) % period, "b": (iteration + 2) % period}
    assert f"the same every {period}" in str(found)
    assert len(str(found).splitlines()) == 1 + period


@pytest.mark.slow
def test_a_loop_that_drifts_has_no_cycle_and_one_at_rest_has_no_changes(begin: Any, tmp_path: Path) -> None:
    def up(now: ts.Collection) -> ts.Collection:
        return now.select("k", n=pc.add(pc.field("n"), 1)).max("n", keys="k", name="most")

    process = begin(looping(up), workers=2, rounds=25, keep=50)
    process.handles["numbers"].send([("a", 0)])
    for _ in range(2):
        process.batch()
    look = ts.inspect(str(tmp_path)).at()

    found = look.changing("turns.most", last=4)

    assert found.cycle is None
    assert len(found.iterations) == 4
    assert "no cycle" in str(found)
    with pytest.raises(BadArgument, match="last"):
        look.changing("turns", last=1)
    with pytest.raises(UnknownName, match="no loop, or step in one 'out'"):
        look.changing("out")


@pytest.mark.parametrize("columns", ["n long", "n long, diff long, epoch long, worker long"])
def test_of_a_loop_of_streams_the_records_in_flight_are_shown(
    columns: str, begin: Any, tmp_path: Path
) -> None:
    flow = ts.Dataflow("plain")
    more = {name: name for name in columns.replace(" long", "").split(", ")[1:]}
    up = {"n": pc.add(pc.field("n"), 1)}
    flow.input("x", columns).loop(lambda n: n.select(**up, **more), name="up").capture("out")
    process = begin(flow, workers=2, rounds=2, keep=50)
    process.handles["x"].send([{"n": 7} | dict.fromkeys(more, 5)])
    process.batch()

    found = ts.inspect(str(tmp_path)).at().changing("up")

    assert found.iterations == [80], "two rounds have ended there and before"
    assert "iteration 80: +(n=87" in str(found)
    assert ("diff_=5, epoch_=5, worker_=5" in str(found)) == bool(more)
    with pytest.raises(UnknownName, match="no loop, or step in one 'down'"):
        ts.inspect(str(tmp_path)).at().changing("down")


def test_in_a_loop_of_streams_that_has_ended_nothing_changes(begin: Any, tmp_path: Path) -> None:
    flow = ts.Dataflow("ends")
    up = {"n": pc.add(pc.field("n"), 1)}
    turns = flow.input("x", "n long").loop(
        lambda n: n.select(**up).where(pc.field("n") < 9).loop(lambda m: m.distinct(), name="inner"),
        name="up",
    )
    turns.capture("out")
    process = begin(flow, workers=2, rounds=2, keep=50)
    none_yet = "up: no batch is complete yet"
    assert str(ts.inspect(str(tmp_path)).at().changing("up")).startswith(none_yet)
    for n in (7, 8):
        process.handles["x"].send([(n,)])
        process.batch()
    for _ in range(3):
        process.batch()
    look = ts.inspect(str(tmp_path)).at()

    for name in ("up", "up.inner", "up.inner.distinct"):
        found = look.changing(name)
        assert (found.step, found.epoch, found.cycle, found.iterations) == (name, 1, None, [])
        assert str(found) == f"{name} at epoch 1: nothing changes"
        assert found.changes.num_rows == 0
    with pytest.raises(UnknownName, match="no loop, or step in one 'u' "):
        look.changing("u")
