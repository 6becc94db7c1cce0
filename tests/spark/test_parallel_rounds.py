"""Large rounds on Spark: parallel tasks that exchange directly, and what may happen to them."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.coordinator import RoundLimits
from timely_spark.errors import TimelyError, VertexError
from timely_spark.runtime.query import rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
Flow = Callable[..., ts.Dataflow]
LENGTH = 40


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every exchange counts as large."""
    monkeypatch.setattr(rounds, "SMALL", RoundLimits(exchanged=-1))


def sent(flow: ts.Dataflow) -> ts.Dataflow:
    flow.handle("edges").send([(i, i + 1) for i in range(LENGTH)])
    flow.handle("roots").send([0])
    return flow


def finished(flow: ts.Dataflow, spark: SparkSession, checkpoint: str, **options: Any) -> Any:
    query = flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now", **options)
    query.await_termination(120)
    assert query.exception() is None
    assert sorted(node for rows in query.captured("out").rows().values() for (node,) in rows) == list(
        range(LENGTH + 1)
    )
    return query


def peers(checkpoint: str) -> list[Path]:
    return list(Path(checkpoint).glob("timely/peers/*"))


@pytest.mark.usefixtures("large")
def test_parallel_tasks_take_the_rounds_of_local_ones(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: Flow
) -> None:
    query = finished(sent(paths()), spark, checkpoint)
    assert query.last_progress.epoch == 0, "all in one micro-batch"
    assert peers(checkpoint) == []
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id)
    assert len(jobs) == 2, "the micro-batch, and one stage of parallel tasks"
    store = spark.sparkContext._jsc.sc().statusStore()  # what Spark's pages show
    first, second = (store.job(job).description().get() for job in sorted(jobs))
    assert second.startswith("paths: batch 0, rounds after the first 1 in ")
    assert "parallel tasks, loop hops after iteration" in second
    assert first == "paths: batch 0"

    monkeypatch.setattr(rounds, "SMALL", RoundLimits())
    local = finished(sent(paths()), spark, str(tmp_path / "local"))
    assert query.rounds == local.rounds > 20
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(local.run_id)
    assert len(jobs) == 1, "small rounds run in the driver's process"


def test_a_batch_goes_on_in_parallel_when_its_rounds_become_large(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch, paths: Flow
) -> None:
    monkeypatch.setattr(rounds, "SMALL", RoundLimits(delivered=1500))
    query = finished(sent(paths()), spark, checkpoint)
    assert query.last_progress.epoch == 0
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id)) == 2


@pytest.mark.usefixtures("large")
def test_messages_too_large_to_send_go_by_files(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = ts.Dataflow("blocks")
    blocks = flow.input("blocks", "n long, data binary")
    for _ in range(4):
        blocks = blocks.exchange("n").map(lambda row: (row.n + 1, row.data), "n long, data binary")
    blocks.select("n").capture("out")
    flow.handle("blocks").send(pa.table({"n": range(120), "data": [os.urandom(50_000) for _ in range(120)]}))
    monkeypatch.setattr(rounds, "_Job", functools.partial(rounds._Job, sent=100_000))
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    query.await_termination(60)
    assert query.exception() is None
    assert sorted(query.captured("out").rows()[0]) == [(n + 4,) for n in range(120)]
    manifest = query._context.log.read(query.last_progress.epoch)
    assert any("peers-" in name for name in manifest.garbage), "the files are removed with the manifest"


@pytest.mark.usefixtures("large")
def test_an_error_names_step_and_line(spark: SparkSession, checkpoint: str, paths: Flow) -> None:
    def step(row: Any) -> tuple[int]:
        assert row.node != 30, "thirty"
        return (row.node,)

    query = sent(paths(step)).start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")
    with pytest.raises(VertexError, match=r"step.*thirty") as caught:
        query.await_termination(60)
    assert "test_parallel_rounds.py" in str(caught.value)


@pytest.mark.usefixtures("large")
def test_a_killed_task_runs_again_with_its_peers(
    spark: SparkSession, checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, paths: Flow
) -> None:
    killed = str(tmp_path / "killed")

    def step(row: Any) -> tuple[int]:
        if row.node == 30 and not Path(killed).exists():
            Path(killed).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (row.node,)

    with caplog.at_level(logging.WARNING, "timely_spark"):
        finished(sent(paths(step)), spark, checkpoint)
    assert Path(killed).exists()
    assert any("the parallel rounds of batch 0 run again" in record.message for record in caplog.records)
    assert peers(checkpoint) == []


@pytest.mark.usefixtures("large")
def test_a_stage_that_finds_no_slots_gives_way_to_one_process(
    spark: SparkSession,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    paths: Flow,
) -> None:
    monkeypatch.setattr(rounds, "BEGIN", 0.5)
    taken, released = Path(f"{checkpoint}-taken"), Path(f"{checkpoint}-released")

    def hold(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken.touch()
        while not released.exists():
            time.sleep(0.01)
        yield from rows

    busy = threading.Thread(target=spark.range(0, 1, 1, 1).mapInArrow(hold, "id long").collect)
    busy.start()
    try:
        while not taken.exists():
            assert busy.is_alive()
            time.sleep(0.01)
        with caplog.at_level(logging.WARNING, "timely_spark"):
            query = finished(sent(paths()), spark, checkpoint)
    finally:
        released.touch()
        busy.join()
    assert any("parallel tasks cannot run" in record.message for record in caplog.records)
    assert query.last_progress.epoch == 0, "the batch went as far as it was to go"
    manifest = query._context.log.read(0)
    assert manifest.bound == {"rounds": 100, "exchanged": 4 << 20, "delivered": 64 << 20, "states": 256 << 20}


@pytest.mark.campaign  # tests/runtime has the bound
@pytest.mark.usefixtures("large")
def test_without_parallel_rounds_a_large_exchange_is_a_micro_batch(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch, paths: Flow
) -> None:
    monkeypatch.setattr(RoundLimits, "allows", lambda *_: False)
    query = finished(sent(paths()), spark, checkpoint, parallel_rounds=False)
    assert query.last_progress.epoch > 20


def test_parallel_rounds_that_cannot_be_are_refused(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch, paths: Flow
) -> None:
    monkeypatch.setattr("timely_spark.runtime.start.no_parallel_rounds", lambda _: "ports are closed")
    with pytest.raises(TimelyError, match=r"parallel_rounds=True, but ports are closed\.\nHint: "):
        paths().start(spark, checkpoint=checkpoint, workers=2, parallel_rounds=True)
