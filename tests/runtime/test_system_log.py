"""The system's log: what is measured, and that measuring changes nothing."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import timely_spark as ts
from tests.support.hops import hop_from
from timely_spark.errors import BadArgument, UnknownName
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.handle.pointstamps import pointstamps
from timely_spark.runtime.sinks.system_log import SystemLog
from timely_spark.testing import Simulation, run


def reach() -> ts.Dataflow:
    flow = ts.Dataflow("reach")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    roots = flow.input("roots", "node long").collection()
    roots.iterate(hop_from(roots, edges), name="hops").capture("out")
    return flow


def edges(epoch: int) -> list[tuple[int, int, int]]:
    draw = random.Random(epoch)
    return [(draw.randrange(9), draw.randrange(9), 1) for _ in range(6)]


@pytest.fixture
def logged(begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Begins the flow, with the log of its system in the folder `log`."""
    compile_ = ts.Dataflow.compile
    monkeypatch.setattr(
        ts.Dataflow,
        "compile",
        lambda self, workers=1: dataclasses.replace(compile_(self, workers), measured=True),
    )

    def begun(rounds: int) -> Any:
        process = begin(reach(), workers=2, rounds=rounds, keep=50)
        process.driver.system_log = SystemLog(str(tmp_path / "log"), process.context.plan.places)
        output = process.driver.system_log.output
        output.sink.prepare(None, output, "checkpoint", "one")
        output.sink.claim(None, output)
        return process

    return begun


@pytest.mark.slow
def test_measuring_changes_no_result() -> None:
    plan = reach().compile(3)
    given = [edges(epoch) for epoch in range(4)]

    def rounds(plan: Any) -> list[Any]:
        simulation = Simulation(plan)
        for rows in given:
            simulation.send("edges", rows)
            simulation.send("roots", [0])
            simulation.run()
        return [(result.rows, result.header, result.stats) for _, result in simulation.log]

    assert rounds(plan) == rounds(dataclasses.replace(plan, measured=True))


@pytest.mark.slow
def test_each_call_and_each_message_is_counted_at_its_step_and_epoch(logged: Any, tmp_path: Path) -> None:
    process = logged(100)
    stats: Counter[str] = Counter()
    for epoch in range(3):
        process.handles["edges"].send(edges(epoch))
        process.feed("roots", [epoch])
        newest = process.newest()
        stats.update({name: n for name, n in newest.stats.items() if name in {"steps", "records", "sent"}})

    flow = ts.Dataflow("analysis")
    log = flow.replay("log", tmp_path / "log")
    log.capture("rows")
    found = run(flow, {})
    rows = [row for table in found["rows"].epochs.values() for row in table.to_pylist()]

    def total(kind: str, column: str = "count") -> int:
        return sum(row[column] for row in rows if row["kind"] == kind)

    assert total("call") == stats["steps"]
    assert total("call", "records") == stats["records"]
    assert total("message") == stats["sent"] > 0
    assert {row["epoch"] for row in rows if row["kind"] == "call"} == {0, 1, 2}
    assert {row["worker"] for row in rows if row["kind"] == "call"} == {0, 1}
    assert all(row["ns"] > 0 for row in rows if row["kind"] == "call")
    assert any(row["step"] == "hops.near" for row in rows if row["kind"] == "state")
    assert {row["epoch"] for row in rows if row["kind"] == "frontier"} == {1, 2, 3}

    process.driver.system_log.write(newest, newest, process.driver._last.states, [])  # the batch runs again
    process.driver.system_log.wait()
    assert len(run(flow, {})["rows"].epochs) == len(found["rows"].epochs)


def test_a_batch_is_logged_before_it_cannot_run_again(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resident batch whose manifest stands does not run again after a kill, and nobody would log it."""
    logged: dict[int, bool] = {}
    process = begin(reach())

    def write(_: SystemLog, __: Any, manifest: Any, *___: Any) -> None:
        logged[manifest.batch] = process.context.log.has(manifest.batch)

    monkeypatch.setattr(SystemLog, "write", write)
    process.driver.system_log = SystemLog(str(tmp_path / "log"), process.driver.context.plan.places)
    process.feed("edges", edges(0))
    assert logged
    assert not any(logged.values())


@pytest.mark.slow
def test_changes_of_counts_lead_from_what_was_active_to_what_is(logged: Any, tmp_path: Path) -> None:
    process = logged(2)
    for epoch in range(3):
        process.handles["edges"].send(edges(epoch))
        process.feed("roots", [epoch])
    flow = ts.Dataflow("analysis")
    flow.replay("log", tmp_path / "log").capture("rows")
    query: Any = SimpleNamespace(_context=process.context, checkpoint=process.context.checkpoint)

    counts: dict[tuple[str, str, str], int] = {}
    waited = negative = 0
    for batch, table in run(flow, {})["rows"].epochs.items():
        rows = [row for row in table.to_pylist() if row["kind"] == "pointstamp"]
        before = {(r["step"], r["place"], r["time"]): r["count"] for r in rows if r["change"] is None}
        assert before == counts or not counts
        counts = before
        for row in sorted(rows, key=lambda row: (row["round"], (row["change"] or 1) < 0)):
            stamp = row["step"], row["place"], row["time"]
            counts[stamp] = counts.get(stamp, 0) + (row["change"] or 0) * (row["round"] >= 0)
            assert counts[stamp] >= 0
            negative += row["worker"] is not None and (row["change"] or 0) < 0
        counts = {stamp: n for stamp, n in counts.items() if n}
        shown = pointstamps(query, round=batch).to_pylist()
        assert sorted(n for n in counts.values()) == sorted(row["occurrences"] for row in shown)
        assert Counter((step, place) for step, place, _ in counts) == Counter(
            (row["step"], row["place"]) for row in shown
        )
        assert any(not row["precursors"] for row in shown)
        waited += sum(row["precursors"] > 0 for row in shown)
    assert waited
    assert negative
    with pytest.raises(UnknownName, match="no retained round 999"):
        pointstamps(query, round=999)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="log_to"):
        ts.Dataflow("none").start(log_to=7)  # type: ignore[arg-type]
    (tmp_path / "other.txt").write_text("")
    log = SystemLog(str(tmp_path), ()).output
    with pytest.raises(OutputMismatch, match="holds other files"):
        log.sink.prepare(None, log, "checkpoint", "one")  # type: ignore[arg-type]
