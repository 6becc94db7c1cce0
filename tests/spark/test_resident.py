"""Micro-batches that stay resident: many epochs in one, with the guarantees of one each."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.hops import hop
from tests.support.tables import operations, rows_of
from timely_spark.errors import VertexError
from timely_spark.runtime.query.hosted import Hosted
from timely_spark.runtime.storage.log import RoundLog

pytestmark = pytest.mark.spark


def counts(heard: list[Any] | None = None, fails_at: tuple[int, ...] = ()) -> tuple[ts.Dataflow, ts.Input]:
    """Running counts by key, and how many hops a node is from the node 0."""
    flow = ts.Dataflow("counts")
    edges = flow.input("edges", "src long, dst long")

    edges.where(pc.field("src") == 0).select(node="src").distinct(name="root").loop(
        hop(edges), name="hops"
    ).capture("near")
    edges.group_by("src").count(name="counted").capture("out")

    def on_epoch(epoch: int, table: pa.Table) -> None:
        if heard is not None:
            heard.append((epoch, table.num_rows))
        if epoch in fails_at:
            msg = "no more room"
            raise OSError(msg)

    edges.subscribe(on_epoch, name="heard")
    return flow, edges


def test_epochs_need_no_micro_batch_and_are_told_one_by_one(spark: SparkSession, checkpoint: str) -> None:
    heard: list[Any] = []
    flow, edges = counts(heard)
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.status["residency"].startswith("each micro-batch stays for")
        for n in range(20):
            edges.send([(n, n + 1)])
            assert query.wait_for(timeout=60)
        log = RoundLog(checkpoint)
        epochs = [epoch for epoch, _ in heard]
        assert epochs == list(range(epochs[0], epochs[0] + 20)), "each send is an epoch, and none is left out"
        assert len(log.spark.offsets) <= 3, "Spark has planned a few micro-batches"
        assert query.last_progress.epoch == epochs[-1]
        assert [each.epoch for each in query.recent_progress][-20:] == epochs
        near = {row for rows in query.captured("near").rows().values() for row in rows}
        assert near == {(n,) for n in range(21)}
        threading.Thread(target=interrupt, args=(signal.getsignal(signal.SIGINT),)).start()
        with pytest.raises(KeyboardInterrupt):
            query.step()
        query.process_all_available()  # which Spark answers between two micro-batches only
        edges.send([(20, 21)])
        query.wait_for(timeout=60)
        assert workers_in_memory(query) == 2
        began = time.monotonic()
        (own,) = (each for each in spark.streams.active if each.id == query.id)
        own.stop()  # by Spark's own handle, in the middle of its stay
        assert time.monotonic() - began < 30
    while workers_in_memory(query):
        assert time.monotonic() - began < 60, "the program has the handle, and the states need no memory"
        time.sleep(0.1)


def interrupt(handler: Any) -> None:
    """Interrupt the program once it waits, as a notebook's button does."""
    while signal.getsignal(signal.SIGINT) is handler:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def workers_in_memory(query: ts.Query) -> int:
    """The workers that this process has in memory for a query."""
    # `isinstance` would ask other tests' proxies, also of what is gone, for their class
    hosted = [each for each in gc.get_objects() if type(each) is Hosted]
    return sum(len(each._workers) for each in hosted if each.context.run == query._context.run)


def test_a_restart_goes_on_after_the_last_epoch(spark: SparkSession, checkpoint: str) -> None:
    heard: list[Any] = []
    flow, edges = counts(heard, fails_at=(4,))
    query = flow.start(spark, checkpoint=checkpoint, workers=2)
    for n in range(4):
        edges.send([(n, n + 1)])
        assert query.wait_for(timeout=60)
    edges.send([(4, 5)])
    with pytest.raises(VertexError, match=r"step 'heard'.*failed at epoch 4.*no more room"):
        query.wait_for(timeout=60)
    query.stop()
    assert (log := RoundLog(checkpoint)).spark.commits == [], "Spark has committed nothing"
    assert log.newest() == 3

    flow, edges = counts(heard)
    with flow.start(spark, checkpoint=checkpoint, workers=3) as query:  # other workers, too
        edges.send([(5, 6)])
        assert query.wait_for(timeout=60)
        found = query.captured("near").rows()
    assert [(epoch, rows) for epoch, rows in sorted(found.items()) if rows] == [
        (0, [(0,), (1,)]), *((n, [(n + 1,)]) for n in range(1, 6))
    ]  # fmt: skip
    assert [epoch for epoch, _ in heard] == [0, 1, 2, 3, 4, 4, 5], "at least once, under the same number"


def test_commits_of_tables_and_folders_are_grouped(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    flow = ts.Dataflow("grouped")
    x = flow.input("x", "k long, v long")
    x.to_delta(str(tmp_path / "log"), name="log")
    x.to_delta(str(tmp_path / "now"), keys="k", name="now")
    x.to_files(str(tmp_path / "files"), name="files")
    last = x.probe()
    with flow.start(spark, checkpoint=checkpoint, workers=1, commit_every="3 seconds") as query:
        x.send([(0, 0)])
        assert query.wait_for(timeout=60)
        for n in range(1, 21):
            x.send([(n % 3, n)])
            assert query.wait_for(last, timeout=60)
        assert query.wait_for(timeout=60), "no epoch waits for another one"
        assert len(operations(tmp_path / "log")) < 12, "several epochs are one commit"
        assert rows_of(tmp_path / "log", "v") == [(n,) for n in range(21)]
        assert rows_of(tmp_path / "now", "k", "v") == [(0, 18), (1, 19), (2, 20)]
    assert sorted(row.v for row in spark.read.parquet(str(tmp_path / "files")).collect()) == list(range(21))


def test_files_and_large_sends_are_read_too(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def put(number: int) -> None:
        pq.write_table(pa.table({"n": [number]}), tmp_path / "part")
        (tmp_path / "part").rename(folder / f"{number}.parquet")

    flow = ts.Dataflow("files")
    sent = flow.input("sent", "n long")
    flow.files("read", folder, schema="n long").concat(sent).aggregate(s=("sum", "n"), c="count").capture(
        "out"
    )
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        for n in range(5):
            put(n)
            assert query.wait_for(timeout=60)
        sent.send(pa.table({"n": range(2_500_000)}))  # 20 MB, too much for the driver: Spark's tasks read it
        put(5)
        assert query.wait_for(timeout=60)
        put(6)
        assert query.wait_for(timeout=60)
        (total,) = query.captured("out").rows()[query.last_progress.epoch]
        assert total == (21 + sum(range(2_500_000)), 2_500_007)
        counted = query.audit()["read"]
        assert (counted.listed, counted.entered, counted.rows) == (7, 7, 7)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"trigger": "1 second"}, "the trigger is processingTime"),
        ({"rounds_per_batch": 1}, "each round a micro-batch"),
        ({"resident": False}, "resident=False"),
    ],
)
def test_why_a_flow_is_not_resident_is_said(
    spark: SparkSession, checkpoint: str, options: dict[str, Any], reason: str
) -> None:
    flow, edges = counts()
    with flow.start(spark, checkpoint=checkpoint, workers=1, **options) as query:
        edges.send([(0, 1)])
        assert query.wait_for(timeout=60)
        assert reason in query.status["residency"]
    if "resident" not in options:
        with pytest.raises(ts.TimelyError, match=rf"(?s)resident=True, but .*{reason}.*Hint"):
            counts()[0].start(spark, checkpoint=checkpoint, workers=1, resident=True, **options)
