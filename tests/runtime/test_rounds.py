"""Where the further rounds of a micro-batch run: in how many tasks, and whether tasks stay."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.coordinator import RoundLimits
from timely_spark.runtime.errors import PeerLost, PeersUnreachable
from timely_spark.runtime.query import rounds
from timely_spark.runtime.query.rounds import ATTEMPTS, Rounds
from timely_spark.runtime.query.staying import StayingTasks, Work
from timely_spark.runtime.session import no_parallel_rounds
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.testing import Simulation
from timely_spark.worker import ROWS


def down() -> ts.Dataflow:
    flow = ts.Dataflow("down")
    x = flow.input("x", "n long")
    x.loop(lambda n: n.exchange("n").map(lambda row: row.n - 1, "n long").where("n > 0")).capture("out")
    return flow


@pytest.mark.parametrize(("slots", "tasks"), [(2, 2), (9, 3), (0, 1)])
def test_large_rounds_have_no_more_tasks_than_there_are_slots_or_workers(
    slots: int, tasks: int, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    stages: list[int] = []

    def start(self: Rounds, session: Any, job: Any, *, again: bool) -> None:
        stages.append(job.tasks)
        if len(stages) == 2:  # the first one has run no round
            raise Started

    monkeypatch.setattr(rounds, "SMALL", RoundLimits(exchanged=-1))
    monkeypatch.setattr(rounds, "slots", lambda _: slots)
    monkeypatch.setattr(Rounds, "_on_spark", start)
    simulation = Simulation(down(), workers=3, rounds_per_batch=1)
    simulation.send("x", [9])
    simulation.step()

    of_run, session = Rounds(begin(down(), workers=3).context, parallel=True), None
    with pytest.raises(Started):
        of_run.run(session, simulation.coordinator, simulation.result, StateRefs(), RoundLimits.any_size(10))  # type: ignore[arg-type]
    assert stages == [tasks, tasks]


def test_a_run_without_slots_for_tasks_that_stay_says_why_and_asks_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(self: StayingTasks, session: Any, batch: int) -> None:
        asked.append(batch)
        msg = "Spark has one slot"
        raise PeersUnreachable(msg)

    monkeypatch.setattr(StayingTasks, "begin", refuse)
    of_run, session = Rounds(replace(begin(down()).context, in_tasks=True), parallel=False), None
    assert of_run.no_longer(StateRefs()) == ""
    assert [of_run.can_stay(session, batch) for batch in (3, 4)] == [False, False]  # type: ignore[arg-type]
    assert asked == [3]
    assert of_run.no_longer(StateRefs()) == "Spark has one slot"


def test_a_batch_whose_task_is_lost_runs_again_and_says_so(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works, answer = list[Work](), ROWS.empty_table()

    def run(work: Work, *_: object) -> pa.Table:
        works.append(work)
        if len(works) <= losses:
            msg = "task 1 is gone"
            raise PeerLost(msg)
        return answer

    monkeypatch.setattr(rounds, "await_slots", lambda *_: None)
    of_run = Rounds(begin(down()).context, parallel=False)
    of_run._tasks = tasks = mock.Mock(run=run, tasks=2)
    work = Work(3, {}, {}, [], repeated=False)
    for losses, expected in ((2, nullcontext()), (ATTEMPTS, pytest.raises(PeerLost))):
        works.clear()
        caplog.clear()
        with expected:
            assert of_run._by_tasks(None, work, answer, {}) is answer  # type: ignore[arg-type]
        assert [each.repeated for each in works] == [False, True, True, True][: losses + 1]
        lost = "down: batch 3 runs again, because a task that hosts workers was lost: task 1 is gone"
        assert [record.message for record in caplog.records] == [lost] * (len(works) - 1)
    assert tasks.end.call_count == 2 + ATTEMPTS


@pytest.mark.parametrize(
    "key",
    ["spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption"],
)
def test_tasks_exchange_nothing_in_the_clear_where_spark_encrypts(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(value: str) -> Any:
        return SimpleNamespace(conf=SimpleNamespace(get={key: value}.get))

    monkeypatch.setattr("timely_spark.runtime.session.slots", lambda _: 2)
    assert f"{key} asks for encryption" in no_parallel_rounds(session("True"))
    assert no_parallel_rounds(session("false")) == ""
