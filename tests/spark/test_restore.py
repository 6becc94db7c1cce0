"""Going on from a checkpoint with another number of workers, or another flow, on Spark."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.accumulated import after
from tests.support.hops import hop
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.graphs import components
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.start import default_workers, written_to
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.show.table import counted

HOPS = 30


def paths(*, parity: bool = False, node: str = "node") -> ts.Dataflow:
    """Which nodes are reached; and, if asked for, how many of them are odd."""
    flow = ts.Dataflow("paths")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", f"{node} long")

    near = roots.loop(hop(edges, node), name="hops")
    near.capture("out")
    if parity:
        odd = near.map(lambda row: row[0] % 2, "odd long")
        odd.group_by("odd").count(name="counts").capture("parity")
    return flow


def begun(spark: SparkSession, checkpoint: str) -> None:
    """A flow of two workers that was stopped in the middle of its loop."""
    flow = paths()
    flow.handle("edges").send([(i, i + 1) for i in range(HOPS)])
    flow.handle("roots").send([0])
    with flow.start(spark, checkpoint=checkpoint, workers=2, rounds_per_batch=1) as query:
        while query.rounds < 4:
            query.step(timeout=60)
    assert query.last_progress is None or query.last_progress.frontier["out"] == [[0]], "in mid-loop"


# fewer workers: tests/laws/test_rescale.py without Spark, in every run
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_another_number_of_workers_in_the_middle_of_a_loop(
    spark: SparkSession, checkpoint: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    begun(spark, checkpoint)
    assert default_workers(spark, written_to(checkpoint)) == 2
    again = paths()
    with caplog.at_level(logging.WARNING):
        query = again.start(spark, checkpoint=checkpoint, workers=workers, trigger="available_now")
    assert f"continues with {counted(workers, 'worker')} instead of 2" in caplog.text
    assert query.await_termination(100)
    assert query.exception() is None
    assert query.captured("out").rows()[0] == [(i,) for i in range(HOPS + 1)]

    last = paths()
    last.handle("edges").send([(HOPS, HOPS + 1)])
    with last.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for(timeout=60)
        assert [row for rows in query.captured("out").rows().values() for row in rows][-1] == (HOPS + 1,)
        blobs = set(RoundLog(checkpoint).files.names("blobs"))
        assert len(blobs) < 50


def test_steps_may_be_added_and_go(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun(spark, checkpoint)
    flow = paths(parity=True)
    with pytest.raises(FlowChanged, match=r"new: step 'counts' .*test_restore.py:\d+"):
        flow.start(spark, checkpoint=checkpoint, workers=2)
    options: Any = {"checkpoint": checkpoint, "workers": 2, "trigger": "available_now", "new_steps": "empty"}
    with caplog.at_level(logging.WARNING), flow.start(spark, **options) as query:
        assert query.await_termination(100)
        assert query.exception() is None
        assert "output parity lacks the past: counts from epoch 0 on, " in caplog.text
        assert "without the past  counts from epoch 0 on, " in str(Status.of(checkpoint))
        assert query.captured("out").rows()[0] == [(i,) for i in range(HOPS + 1)]
        counted = query.captured("parity").rows()
        assert sum(n for rows in counted.values() for _, n in rows) <= HOPS + 1, "from here on"
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        query = paths().start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    assert query.await_termination(100)
    assert "paths: removed, with what they stored: " in caplog.text
    assert "counts (its state)" in caplog.text
    assert query.exception() is None


@pytest.mark.campaign
def test_what_is_no_longer_the_same_is_refused_and_nothing_is_touched(
    spark: SparkSession, checkpoint: str
) -> None:
    begun(spark, checkpoint)
    before = {file: file.stat().st_mtime_ns for file in Path(checkpoint).rglob("*.arrow")}
    with pytest.raises(FlowChanged, match=r"(?s)'hops.near' .*/hops.py:\d+.*Hint") as error:
        paths(node="vertex").start(spark, checkpoint=checkpoint, workers=2)
    assert "node int64" in str(error.value)
    assert "vertex int64" in str(error.value)
    assert {file: file.stat().st_mtime_ns for file in Path(checkpoint).rglob("*.arrow")} == before

    query = paths().start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    assert query.await_termination(100)
    assert query.captured("out").rows()[0] == [(i,) for i in range(HOPS + 1)]


@pytest.mark.campaign
def test_components_take_the_other_way_with_many_workers(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "_MANY", 3)  # without Spark: tests/graphs/test_placed.py, in every run
    for epoch, workers in enumerate([2, 3, 1]):
        flow = ts.Dataflow("ways")
        edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        ts.graphs.connected_components(edges).changes().capture("out")
        gone = 10 * epoch - 5
        path = [(n, n + 1, 1) for n in range(10 * epoch, 10 * epoch + 10)]
        flow.handle("edges").send([*path, *([(gone, gone + 1, -1)] if epoch else [])])
        options: Any = {"checkpoint": checkpoint, "workers": workers}
        with caplog.at_level(logging.WARNING), flow.start(spark, **options) as query:
            assert query.wait_for(timeout=100)
            rows = [row for changes in query.captured("out").rows().values() for row in changes]
    assert after(rows) == Counter((n, max(cut for cut in (0, 6, 16) if cut <= n)) for n in range(31))
    assert caplog.text.count("by the number of workers, with steps") == 2
