"""Tasks that stay, and host the workers of a micro-batch that stays: on a cluster, whose driver does not."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.coordinator import placement
from timely_spark.errors import BadArgument, VertexError
from timely_spark.runtime import start
from timely_spark.runtime.query import rounds, staying
from timely_spark.runtime.storage.log import RoundLog

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executors count as being on other machines."""
    for module in (start, rounds):
        monkeypatch.setattr(module, "on_one_machine", lambda _: False)


def noted(folder: str, batch: pa.Table) -> pa.Table:
    """Notes the process that a step runs in; at the number 7 it is killed, and at 13 the step fails."""
    Path(folder, str(os.getpid())).touch()
    numbers = set(batch["n"].to_pylist())
    if 7 in numbers and not (killed := Path(folder, "killed")).exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert 13 not in numbers, "thirteen"
    return batch


def hops(folder: Path, heard: list[Any]) -> tuple[ts.Dataflow, ts.Input]:
    """Numbers that count down to 0 in a loop, and how often each has been reached."""
    folder.mkdir(exist_ok=True)
    flow = ts.Dataflow("hops")
    numbers = flow.input("numbers", "n long")

    def less(near: ts.Stream) -> ts.Stream:
        down = near.where("n > 0").map(lambda row: row.n - 1, "n long", name="down")
        return down.concat(near).distinct(name="near")

    reached = numbers.loop(less, name="hops")
    reached.map_batches(functools.partial(noted, str(folder)), "n long", name="noted").capture("out")
    reached.select(m="n % 2").group_by("m").count(name="counts").subscribe(
        lambda epoch, table: heard.append((epoch, sorted(zip(*table.to_pydict().values(), strict=True)))),
        name="heard",
    )
    return flow, numbers


def test_epochs_run_in_a_task_that_stays_and_is_replaced_when_it_is_killed(
    spark: SparkSession, checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    flow, numbers = hops(tmp_path / "noted", heard)
    with flow.start(spark, checkpoint=checkpoint, workers=2, resident=True) as query:
        assert "tasks of Spark's that stay" in query.status["residency"]
        for n in (1, 2, 3):
            numbers.send([n])
            assert query.wait_for(timeout=60)
        before = {int(path.name) for path in (tmp_path / "noted").iterdir()}
        assert os.getpid() not in before, "the driver hosts no worker"
        log = RoundLog(checkpoint)
        with caplog.at_level(logging.WARNING, "timely_spark"):
            numbers.send([7])
            assert query.wait_for(timeout=60)
        assert any("a task that hosts workers was lost" in each.message for each in caplog.records)
        assert query.captured("out").table()["n"].to_pylist().count(7) == 1
        numbers.send([9])
        assert query.wait_for(timeout=60)
        assert len(log.spark.offsets) <= 3, "Spark has planned a few micro-batches"
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id)
        assert len(jobs) <= 6, "and run no job for each epoch"
        assert list(Path(checkpoint).glob("timely/peers/*")) == []
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert [epoch for epoch, _ in heard] == [0, 1, 2, 3, 4], "each epoch once"
    assert heard[-1][1] == [(0, 5), (1, 5)]


def working(folder: str, batch: pa.Table) -> pa.Table:
    """Works for 20 ms, whatever that takes, in a process that it notes."""
    Path(folder, str(os.getpid())).touch()
    worked = time.thread_time()
    while time.thread_time() - worked < 0.02:
        sum(range(1000))
    return batch


@pytest.mark.campaign
def test_workers_leave_a_process_that_is_often_stopped_and_then_nothing_waits_for_it(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staying, "slots", lambda _: 3)
    monkeypatch.setattr(placement, "WORKED", 200_000)
    (noted := tmp_path / "noted").mkdir()
    flow = ts.Dataflow("working")
    numbers = flow.input("numbers", "n long").exchange("n")
    seen = numbers.unary(lambda _, batch: working(str(noted), batch), "n long", by="n", name="working")
    seen.select(m="n % 3").group_by("m").count(name="counts").capture("out")
    stopped, epochs, ended = 0, 0, threading.Event()

    def pulses() -> None:
        while not ended.wait(0.02):
            os.kill(stopped, signal.SIGSTOP)
            ended.wait(0.08)
            os.kill(stopped, signal.SIGCONT)

    with flow.start(spark, checkpoint=checkpoint, workers=2, resident=True) as query:

        def epoch() -> None:
            nonlocal epochs
            flow.handle("numbers").send(list(range(20)))
            assert query.wait_for(timeout=30)
            epochs += 1

        epoch()  # a micro-batch
        for path in noted.iterdir():
            path.unlink()
        epoch()  # in the tasks that stay
        first, stopped = (int(path.name) for path in noted.iterdir())
        assert os.getpid() not in {first, stopped}
        slows = threading.Thread(target=pulses)
        slows.start()
        try:
            until = time.monotonic() + 60
            while not query.status["slow"] and time.monotonic() < until:
                epoch()
        finally:
            ended.set()
            slows.join()
        assert "for equal work: workers" in query.status["slow"]
        epoch()
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(3):
                epoch()
        finally:
            os.kill(stopped, signal.SIGCONT)
        rows = query.captured("out").rows()
    assert [rows[n] for n in range(epochs)] == [
        [(m, (n + 1) * c) for m, c in ((0, 7), (1, 7), (2, 6))] for n in range(epochs)
    ]


def test_an_error_in_a_task_that_stays_names_step_and_line(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    flow, numbers = hops(tmp_path / "noted", [])
    query = flow.start(spark, checkpoint=checkpoint, workers=2, resident=True)
    for n in (1, 13):
        numbers.send([n])
        if n == 1:
            assert query.wait_for(timeout=60)
    with pytest.raises(VertexError, match=r"(?s)step 'noted' .*test_staying.py.*thirteen"):
        query.wait_for(timeout=60)
    query.stop()
    assert RoundLog(checkpoint).newest() == 0, "the failed epoch is not there"


def test_where_tasks_find_no_slots_each_epoch_is_a_micro_batch(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staying, "SLOTS", 0.1)
    monkeypatch.setattr(staying, "slots", lambda _: 1)
    heard: list[Any] = []
    flow, numbers = hops(tmp_path / "noted", heard)
    with flow.start(spark, checkpoint=checkpoint, workers=2, resident=True) as query:
        for n in (1, 2, 3):
            numbers.send([n])
            assert query.wait_for(timeout=60)
        assert "each epoch is a micro-batch: Spark has one slot" in query.status["residency"]
    assert [epoch for epoch, _ in heard] == [0, 1, 2]


def holds(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Holds its slot until it is let go."""
    Path(folder, "holds").touch()
    while not Path(folder, "ends").exists():
        time.sleep(0.01)
    yield from batches


@pytest.mark.campaign
def test_another_query_that_takes_the_slots_changes_no_epoch(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staying, "BEGIN", 5.0)
    heard: list[Any] = []
    flow, numbers = hops(tmp_path / "noted", heard)
    other = spark.range(0, 4, 1, 2).mapInArrow(functools.partial(holds, str(tmp_path)), "id long")
    with (
        ThreadPoolExecutor(1) as thread,
        flow.start(spark, checkpoint=checkpoint, workers=2, resident=True) as query,
    ):
        for n in (1, 2):  # the second one takes a task
            numbers.send([n])
            assert query.wait_for(timeout=60)
        done = thread.submit(other.collect)
        try:
            while not (tmp_path / "holds").exists():
                time.sleep(0.01)
            numbers.send([3])
            assert query.wait_for(timeout=30), "the task that stays has a slot of its own"
            numbers.send([7])  # the other query takes it when that task is killed
            assert query.wait_for(timeout=60)
            assert not done.done()
        finally:
            (tmp_path / "ends").touch()
        assert len(done.result(60)) == 4
        numbers.send([2])
        assert query.wait_for(timeout=60)
        assert "each epoch is a micro-batch" in query.status["residency"]
    assert [epoch for epoch, _ in heard] == [0, 1, 2, 3, 4]


PREVENTED = {
    "spark.dynamicAllocation.enabled": "set spark.dynamicAllocation.enabled=false",
    "spark.network.crypto.enabled": "asks for encryption",
}


@pytest.mark.parametrize("conf", PREVENTED)
def test_what_prevents_tasks_from_staying_is_said(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: str
) -> None:
    flow, _ = hops(tmp_path / "noted", [])
    get = type(spark.conf).get
    monkeypatch.setattr(
        type(spark.conf), "get", lambda self, key, *more: "true" if key == conf else get(self, key, *more)
    )
    with pytest.raises(BadArgument, match=rf"(?s)resident=True, but .*{PREVENTED[conf]}.*Hint"):
        flow.start(spark, checkpoint=checkpoint, workers=2, resident=True)
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert PREVENTED[conf] in query.status["residency"]


def test_without_being_asked_for_tasks_do_not_stay(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    flow, _ = hops(tmp_path / "noted", [])
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert "resident=True lets tasks stay there" in query.status["residency"]
