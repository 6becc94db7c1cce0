"""Tasks that stay, as threads of this process: workers move between them, and some of them are killed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.coordinator import Coordinator, Placement, RoundLimits, RoundResult, placement
from timely_spark.runtime.query import staying
from timely_spark.runtime.query.hosted import Hosted
from timely_spark.runtime.query.rounds import Rounds
from timely_spark.runtime.query.staying import AGAIN, StayingTasks
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.state.arrow import from_bytes
from timely_spark.worker import pack_input

TASKS, WORKERS = 3, 5
HOST = "127.0.0.1"


class Killed(Exception):
    """Ends a task."""


class Threads:
    """In place of Spark's job: a thread for each task."""

    def __init__(self, _: Any, stage: Any) -> None:
        self.stage, self.ended = stage, threading.Event()
        self.left = stage.tasks
        for rank in range(stage.tasks):
            threading.Thread(target=self._run, args=(rank,)).start()

    def _run(self, rank: int) -> None:
        threading.current_thread().name = str(rank)
        try:
            list(staying._host(self.stage, iter(())))
        except Exception:  # noqa: BLE001 - it was killed, or has lost one that was
            self.ended.set()
        self.left -= 1
        if not self.left:
            self.ended.set()

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    def address_of(self, rank: int) -> Any:
        return self.stage.addresses.of(rank)

    def end(self) -> None:
        self.ended.set()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session whose tasks are threads."""

    def task() -> Any:
        return mock.Mock(**{"partitionId.return_value": int(threading.current_thread().name)})

    monkeypatch.setattr("pyspark.BarrierTaskContext.get", task)
    monkeypatch.setattr(staying, "host_of", lambda _: HOST)
    monkeypatch.setattr(staying, "_Stay", Threads)
    monkeypatch.setattr(staying, "slots", lambda _: TASKS + 1)
    monkeypatch.setattr("timely_spark.runtime.query.rounds.await_slots", lambda *_: None)
    monkeypatch.setattr(staying, "await_slots", lambda *_: None)
    session = mock.Mock()
    session.sparkContext.getConf().get.return_value = HOST
    return session


def hops() -> ts.Dataflow:
    """Numbers that count down in a loop, across all workers, and how often each has been reached."""
    flow = ts.Dataflow("hops")

    def less(near: ts.Stream) -> ts.Stream:
        down = near.where("n % 5 > 0").select(n="n - 1")
        return down.concat(near).distinct(name="near")

    reached = flow.input("x", "n long").loop(less, name="down")
    reached.select(m="n % 9").group_by("m").count(name="counts").capture("out")
    return flow


def epochs(context: RunContext, session: Any, sent: list[list[int]]) -> Iterator[tuple[Any, Any]]:
    """The progress and the outputs after each batch; the workers are in tasks if the context says so."""
    rounds, states, coordinator = Rounds(context, parallel=True), StateRefs(), Coordinator(context.plan)
    result = coordinator.first()
    with rounds.staying():
        for batch, numbers in enumerate(sent):
            packed = pack_input(context.plan, "x", [(batch, "send", None, pa.table({"n": numbers}))])
            rows = context.blobs.resolve(pa.concat_tables([result.rows, packed]))
            start, states = RoundResult.of_input(result.header, rows), StateRefs(states.by_worker)
            coordinator, result, ran = rounds.from_input(
                session, coordinator, batch, start, states, bound=RoundLimits.any_size(100), repeated=False
            )
            if ran:
                rounds.write(batch, ran, states)
            outputs = [from_bytes(each.as_buffer()) for each in result.outputs["payload"]]
            yield (
                json.dumps(coordinator.encode()),
                sorted(str(row) for each in outputs for row in each.to_pylist()),
            )
        rounds.leave()


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(2))
def test_a_task_that_is_killed_in_the_middle_of_a_move_changes_nothing(
    seed: int, begin: Begin, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, methods = random.Random(seed), ("run", "write")
    sent = [draw.choices(range(300), k=draw.randrange(1, 4)) for _ in range(24)]
    context = begin(hops(), workers=WORKERS, rounds=100).context
    kills = ["write", "run"]
    count, armed, lock = Counter[str](), list[str](), threading.Lock()

    def move(self: Placement, *_: Any) -> str:
        if draw.random() < 0.7:
            self.places = tuple(draw.choices(range(draw.randint(1, TASKS)), k=WORKERS))
            armed[:] = [kills.pop()] if kills else []
            count["moves"] += 1
        return ""

    def killed(name: str) -> Any:
        method = getattr(Hosted, name)

        def called(*args: Any, **more: Any) -> Any:
            with lock:
                is_killed = name in armed and draw.random() < 0.4
                if is_killed:
                    armed.remove(name)
                    count["kills"] += 1
            if is_killed:
                raise Killed
            return method(*args, **more)

        return called

    expected = list(epochs(context, session, sent))
    monkeypatch.setattr(Placement, "enter", move)
    for name in methods:
        monkeypatch.setattr(Hosted, name, killed(name))
    moving = list(epochs(replace(context, in_tasks=True), session, sent))

    assert moving == expected
    assert sum(len(outputs) for _, outputs in expected) >= 20
    assert count["moves"] > 1
    assert count["kills"] > 0


@pytest.mark.slow
def test_new_tasks_are_taken_some_time_after_a_move(
    begin: Begin, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = replace(begin(hops(), workers=WORKERS, rounds=100).context, in_tasks=True)
    tasks = StayingTasks(context)
    tasks.begin(session, 0)
    first, now = tasks._job, time.monotonic()
    monkeypatch.setattr(Placement, "enter", lambda own, *_: setattr(own, "text", "task 1") or "task 1")
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for seconds in (AGAIN, 2 * AGAIN):
        tasks.place({}, 0)
        for later, same in ((seconds - 1, True), (seconds, False)):
            monkeypatch.setattr(time, "monotonic", lambda at=now + later: at)
            tasks.begin(session, 1)
            assert (tasks._job is first) == same
        assert tasks.placement.text == ""
        now, first = now + seconds, tasks._job
    tasks.end()


@pytest.mark.slow
def test_workers_leave_a_task_that_stays_slow_and_no_round_waits_for_it(
    begin: Begin, session: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "WORKED", 1)
    context = replace(begin(hops(), workers=WORKERS, rounds=100).context, in_tasks=True)
    sent = [[20 * batch + n for n in range(20)] for batch in range(16)]
    write, hosts = Hosted.write, list[int]()

    def slow(self: Hosted, batch: int, ran: Any, *args: Any, **more: Any) -> Any:
        hosts.append(self.rank)
        for worker in ran.values() if self.rank == 1 else ():
            worker.spent.update({step: 50 * spent for step, spent in worker.spent.items()})
        return write(self, batch, ran, *args, **more)

    expected = list(epochs(replace(context, in_tasks=False), session, sent))
    monkeypatch.setattr(Hosted, "write", slow)
    moving = list(epochs(context, session, sent))

    assert moving == expected
    (text,) = [each.message for each in caplog.records if "for equal work" in each.message]
    assert f"after batch 9 task 1 on {HOST} took" in text
    assert "workers 1, 4 have moved from it" in text
    assert hosts.count(1) == 10
    assert hosts.count(0) == hosts.count(2) == 16
