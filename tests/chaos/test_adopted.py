"""Other flows, inputs and workers on one checkpoint, one after the other: the real runtime, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.engine import Process, World
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.states import StateRefs


def world(flow: ts.Dataflow, folder: Path, *, keep: int = 5, rounds: int | None = None) -> World:
    return World(flow, str(folder), {}, seed=3, keep=keep, rounds=rounds)


def run(
    there: World,
    flow: ts.Dataflow,
    sends: dict[str, Any],
    workers: int = 2,
    *,
    clocked: bool = True,
    go: bool = True,
) -> Process:
    """A process that starts a flow there and, if it is to go on, takes all that is said."""
    there.flow, there.sends, there.plan, there.clocked = flow, sends, flow.compile(workers), clocked
    with engine._points(there):
        process = Process(there)
        there.processes = [process]
        if go:
            while not process.ended:
                process.go_on()
        else:
            process.start()
    assert process.ended in {"done", None, ""} or not go, process.error
    return process


def rows(process: Process, name: str) -> list[Any]:
    delivered = process.captured(name)
    return [row for epoch in sorted(delivered) for row in delivered[epoch]]


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("between", [2, 30], ids=["soon", "when much is forgotten"])
@pytest.mark.parametrize(
    "steps", [((3, 0), (2, 0), (3, 0)), ((2, 0), (2, 1), (2, 0)), ((1, 0), (3, 1), (1, 0))]
)
def test_there_and_back_again_nothing_that_is_needed_goes(tmp_path: Path, steps: Any, between: int) -> None:
    def flow(more: int) -> ts.Dataflow:
        made = ts.Dataflow("there")
        numbers = made.input("x", "n long")
        numbers.group_by("n").count(name="counts").capture("out")
        if more:
            numbers.select(m="n").capture("more")
        return made

    calls = [("send", (list(range(300)),))]
    (first, kind), *others = steps
    there = world(flow(kind), tmp_path)
    run(there, flow(kind), {"x": calls}, first)
    for workers, kind in others:
        run(there, flow(kind), {"x": calls}, workers, go=False)
        log = RoundLog(str(tmp_path))
        manifest, table = log.manifest_and_rows(log.newest())
        needed = set().union(*(state.files for state in StateRefs.of(table).by_worker.values()))
        assert not needed & set(manifest.garbage)
    calls += [("send", ([0],))] * between  # it touches one worker
    run(there, flow(kind), {"x": calls}, first)
    calls += [("send", (list(range(300)),))]
    process = run(there, flow(kind), {"x": calls}, first)
    assert rows(process, "out")[-1] == (299, 2)
    assert (0, between + 2) in rows(process, "out")


@pytest.mark.slow
@pytest.mark.parametrize("between", [2, 20])
def test_an_input_that_comes_back_goes_on_where_it_stood(tmp_path: Path, between: int) -> None:
    def flow(*inputs: str) -> ts.Dataflow:
        made = ts.Dataflow("inputs")
        for name in inputs:
            made.input(name, "n long").capture(f"out_{name}")
        return made

    xs, ys = [("send", ([i],)) for i in range(3)], [("send", ([100 + i],)) for i in range(4)]
    there = world(flow("x", "y"), tmp_path)
    run(there, flow("x", "y"), {"x": xs, "y": ys})
    xs += [("send", ([i],)) for i in range(3, 3 + 3 * between)]
    run(there, flow("x"), {"x": xs})
    ys += [("send", ([999],))]
    process = run(there, flow("x", "y"), {"x": xs, "y": ys})
    assert rows(process, "out_y") == [(100,), (101,), (102,), (103,), (999,)]
    assert rows(process, "out_x") == [(i,) for i in range(3 + 3 * between)]


def test_pending_outputs_are_delivered_when_the_output_releases_on_arrival(tmp_path: Path) -> None:
    delivered: list[int] = []

    def flow(release: Any) -> ts.Dataflow:
        made = ts.Dataflow("release")
        numbers = made.input("x", "n long", epochs="manual")
        numbers.subscribe(
            lambda _, table: delivered.extend(table["n"].to_pylist()), name="told", release=release
        )
        return made

    there = world(flow("epoch"), tmp_path)
    calls: list[Any] = [("send", ([1, 2],))]
    run(there, flow("epoch"), {"x": calls}, clocked=False)
    assert delivered == []
    calls += [("send", ([3],)), ("advance_to", (1,))]
    run(there, flow("arrival"), {"x": calls}, clocked=False)
    assert sorted(delivered) == [1, 2, 3]
    log = RoundLog(str(tmp_path))
    assert log.read(log.newest()).unreleased == {}


@pytest.mark.slow
def test_an_epoch_that_stays_open_for_long_has_a_few_files(tmp_path: Path) -> None:
    flow = ts.Dataflow("open")
    flow.input("x", "n long", epochs="manual").capture("out")
    there = world(flow, tmp_path, rounds=1)
    calls: list[Any] = [("send", ([i],)) for i in range(60)]
    run(there, flow, {"x": calls}, clocked=False)
    log = RoundLog(str(tmp_path))
    manifest = log.read(log.newest())
    assert manifest.batch > 20
    waiting = manifest.unreleased["out"]["0"]
    assert len(waiting) < 10
    assert len(log.files.names("outputs")) < 10 + 2 * there.keep

    again = ts.Dataflow("open")
    again.input("x", "n long", epochs="manual").capture("out")
    process = run(there, again, {"x": [*calls, ("advance_to", (1,))]}, clocked=False)
    assert rows(process, "out") == [(i,) for i in range(60)]
