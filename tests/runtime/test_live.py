"""What is seen of a running micro-batch, how often it is written, and that it disturbs nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import timely_spark as ts
from tests.support.hops import hop
from tests.support.stepper import Begin
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.query import live
from timely_spark.runtime.query.live import EVERY, SHARE, BatchProgress, Live, LoopProgress, running_batch
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.testing import Simulation
from timely_spark.worker import Worker
from timely_spark.worker.convergence import Convergence


class Clock:
    """The time, and how long a write takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: float = 0.0) -> None:
        self.now, self.takes, self.writes = 0.0, takes, 0
        self.content: Any = None
        monkeypatch.setattr(live.time, "monotonic", lambda: self.now)
        self.fails: Exception | None = None

    def write_json(self, name: str, content: object) -> None:
        self.now += self.takes
        self.writes += 1
        self.content = content
        if self.fails is not None:
            raise self.fails


class Log:
    term = 0

    def __init__(self, clock: Clock) -> None:
        self.files: Any = clock


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(12_000):  # a minute: the machine may be busy
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError


def path(length: int) -> ts.Dataflow:
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long")

    edges.select(n="src").where(lambda row: row.n == 0).loop(hop(edges, "n"), name="hops").capture("out")
    flow.handle("edges").send([(i, i + 1) for i in range(length)])
    return flow


@pytest.mark.slow
@pytest.mark.parametrize(("takes", "most"), [(0.0, 60 / EVERY), (0.001, 60 / EVERY), (0.1, 60 * SHARE / 0.1)])
def test_a_minute_of_rounds_writes_seldom_and_briefly(
    monkeypatch: pytest.MonkeyPatch, takes: float, most: float
) -> None:
    clock = Clock(monkeypatch, takes)
    result = Simulation(path(1)).coordinator.first()
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]

    with progress.during(0):
        while clock.now < 60:
            progress.round(result, None)
            clock.now += 0.001

    assert most / 2 <= clock.writes <= most + 1
    assert clock.writes * takes <= (SHARE + 0.001) * clock.now


def test_a_short_batch_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]

    with progress.during(0):
        clock.now = EVERY * 0.9
        progress.round(Simulation(path(1)).coordinator.first(), None)

    assert clock.writes == 0


@pytest.mark.parametrize(("seconds", "told"), [(EVERY / 2, []), (3.0, [["slow", "job.py:7", "5", 9, 3.0]])])
def test_a_call_that_takes_long_is_told_with_its_seconds(
    seconds: float, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.now = 100.0
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]
    stage = SimpleNamespace(name="slow", where="job.py:7")
    iterations = SimpleNamespace(convergence=Convergence())
    worker: Any = SimpleNamespace(calling=None, stats={"records": 0}, iterations=iterations)

    with progress.during(0):
        clock.now += 10
        worker.calling = stage, 5, 9, clock.now - seconds
        progress.round(None, worker)

    assert clock.content["calls"] == told


def test_a_first_round_that_has_not_ended_counts_and_the_packing_before_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(calling=None)
    for packs, expected in ((path(1).compile(1), 0), (None, 1)):
        with progress.during(0, packs):
            if packs is None:
                progress.round(None, worker)  # which works on it for longer than a look takes
            clock.now += 2 * EVERY
            progress._write(0)
            assert clock.content["rounds"] == expected
            clock.now += 2 * EVERY
            result: Any = SimpleNamespace(stats={"rounds": 7}, convergence=Convergence())
            progress.round(result, None)
            assert clock.content["rounds"] == 7


def test_a_file_is_there_while_its_batch_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(monkeypatch), RoundLog(str(tmp_path), 0)
    progress = Live(log, process="rounds")

    with progress.during(4):
        clock.now = 10
        progress.round(Simulation(path(1)).coordinator.first(), None)
        assert running_batch(log, 3) == BatchProgress(epoch=4, rounds=1, records=0, loops=())

    assert log.files.names("live") == []


def test_an_error_while_writing_is_none_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.fails = OSError("no space left on device")
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]

    with progress.during(0):
        clock.now = 10
        progress.round(Simulation(path(1)).coordinator.first(), None)

    assert clock.writes == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_running_batch_is_seen_and_its_file_does_not_outlive_it(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    seen: list[BatchProgress | None] = []
    write = Live._write

    def and_look(self: Live, *args: Any) -> None:
        self._due = float("-inf")
        write(self, *args)
        self._due = float("-inf")
        seen.append(running_batch(self.log, self.batch - 1))
        assert running_batch(self.log, self.batch) is None, "the manifest says more than the file"

    monkeypatch.setattr(live, "EVERY", float("-inf"))
    monkeypatch.setattr(Live, "_write", and_look)
    monkeypatch.setattr(Live, "_look", lambda self: None)  # a thread that writes would look after the end
    process = begin(path(30), workers=workers, rounds=1000)
    process.world.sends["edges"] = [("send", ([(i, i + 1) for i in range(30)],))]
    while process.send():
        pass
    process.batches()

    assert len(seen) >= 30
    assert all(each is not None and each.epoch == 0 for each in seen)
    iterations = [loop.iteration for each in seen if each is not None for loop in each.loops]
    assert sorted(iterations) == iterations
    assert {*range(1, 30)} <= {*iterations}
    log: RoundLog = process.context.log
    assert log.files.names("live") == []
    last = LogView(process.context).progress(0, {})
    assert last is not None
    assert sum(point.records for point in last.iterations) == 31
    assert last.records > 31


def test_a_batch_runs_also_when_the_interpreter_ends(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        msg = "can't create new thread at interpreter shutdown"
        raise RuntimeError(msg)

    progress = Live(RoundLog(str(tmp_path), 0), process="rounds")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with progress.during(0) as running:
            assert running.batch == 0
    with progress.during(1):
        assert progress._thread is not None
    progress.close()


def test_one_thread_serves_batch_after_batch_and_ends_when_idle(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "IDLE", 60.0)
    log = RoundLog(str(tmp_path), 0)
    progress = Live(log, process="rounds")
    threads = set()

    for batch in range(3):
        with progress.during(batch):
            assert not progress.asked, "what an earlier batch was asked counts no more"
            log.files.write(live.stop_file(0), b"")
            wait_until(lambda: progress.asked)
            threads.add(progress._thread)
        log.files.remove(live.stop_file(0))

    assert len(threads) == 1
    monkeypatch.setattr(live, "IDLE", 0.05)
    wait_until(lambda: progress._thread is None)
    with progress.during(3):
        time.sleep(0.05)
        assert not progress.asked
    progress.close()


def test_workers_of_the_first_round_are_seen_together(tmp_path: Any) -> None:
    log = RoundLog(str(tmp_path), 0)
    for worker, loops in enumerate(
        [{"a": [3, 7, 2, 20]}, {"a": [3, 8, 5, 10]}, {"a": [3, 8, 1, 3]}, {"a": [2, 9, 1, 1]}, {}]
    ):
        content = {"batch": 4, "rounds": 1, "records": 10, "loops": loops}
        log.files.write_json(f"live/0-worker-{worker}.json", content)
    log.files.write_json("live/0-worker-9.json", {"batch": 3, "rounds": 1, "records": 99, "loops": {}})

    assert running_batch(log, 3) == BatchProgress(
        epoch=4,
        rounds=1,
        records=50,
        loops=(LoopProgress(loop="a", epoch=3, iteration=8, changes=6, total=33),),
    )


def test_a_look_at_a_worker_changes_none_of_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a look depends on the clock, and a round that runs again has the same rows."""
    clock = Clock(monkeypatch)
    progress = Live(Log(clock), process="rounds")  # type: ignore[arg-type]
    first = Simulation(path(1)).coordinator.first()
    worker = Worker(path(1).compile(1), None, 0)
    worker.step(0, first.rows, first.header)
    counts = dict(worker.stats)

    clock.now += 2 * EVERY
    progress.round(None, worker)

    assert "records" not in counts
    assert worker.stats == counts


def test_files_of_killed_processes_go_with_the_next_start(tmp_path: Any) -> None:
    log = RoundLog(str(tmp_path), 1)
    for name in ("live/0-rounds.json", "live/1-rounds.json"):
        log.files.write_json(name, {})

    log.sweep()

    assert log.files.names("live") == ["live/1-rounds.json"]


def test_no_thread_stays_behind_the_rounds_of_a_micro_batch(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "IDLE", 60.0)
    before = {*threading.enumerate()}
    process = begin(path(3), rounds=100)
    process.feed("edges", [(0, 1), (1, 2)])
    wait_until(lambda: not any(each.name == "timely-live" for each in {*threading.enumerate()} - before))
