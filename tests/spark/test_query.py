"""The one streaming query: loops, quiescence, restarts, and what it costs, by counting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.hops import hop
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.runtime.errors import NoSession, SourceMismatch
from timely_spark.runtime.start import default_workers, written_to

HOPS = 5


def reachability() -> ts.Dataflow:
    """Nodes that can be reached from the roots: an asynchronous loop with an exchange."""
    flow = ts.Dataflow("reachability")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

    near = roots.loop(hop(edges), name="hops")
    near.capture("out")
    near.probe("seen")
    return flow


def chain(flow: ts.Dataflow, hops: int = HOPS) -> None:
    flow.handle("edges").send([(i, i + 1) for i in range(hops)])
    flow.handle("roots").send([0])


def reached(query: Any) -> list[int]:
    return sorted(node for rows in query.captured("out").rows().values() for (node,) in rows)


def jobs(spark: SparkSession, query: Any) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id))


def test_a_loop_runs_to_quiescence_and_stops_by_itself(spark: SparkSession, checkpoint: str) -> None:
    flow = reachability()
    chain(flow)
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now", rounds_per_batch=1)

    assert query.await_termination(60)
    assert not query.is_active
    assert query.exception() is None
    assert query.captured("out").rows() == {0: [(i,) for i in range(HOPS + 1)]}
    simulated = ts.testing.Simulation(reachability(), workers=2)
    simulated.send("edges", [(i, i + 1) for i in range(HOPS)])
    simulated.send("roots", [0])
    simulated.run()
    assert query.rounds == simulated.rounds > 2
    assert jobs(spark, query) == query.rounds, "one Spark job per micro-batch"
    for progress in query._query.recentProgress:
        assert len(progress["stateOperators"]) == 1
        assert progress["stateOperators"][0]["numShufflePartitions"] == 2


@pytest.mark.parametrize("resident", [None, pytest.param(False, marks=pytest.mark.campaign)])
def test_an_idle_query_runs_no_batches(
    spark: SparkSession,
    checkpoint: str,
    resident: bool | None,  # noqa: FBT001
) -> None:
    flow = reachability()
    with flow.start(spark, checkpoint=checkpoint, workers=2, resident=resident) as query:
        while resident is False and query.rounds == 0:  # Spark runs a first micro-batch in any case
            assert query.is_active
            time.sleep(0.01)
        assert not query.step(1.0)
        assert query.rounds == (resident is False)
        chain(flow)
        assert query.wait_for("out", timeout=60)
        rounds = query.rounds
        assert not query.step(1.0)
        assert query.rounds == rounds
        batches = query.last_progress.epoch + 1
        assert query.probe("seen").less_equal(batches)
        assert not query.probe("seen").less_than(batches)
        flow.handle("edges").send([(HOPS, 99)])
        query.process_all_available()
        assert reached(query)[-1] == 99


@pytest.mark.parametrize(
    ("rounds_per_batch", "lost"),
    [
        pytest.param(1, ("commits",), id="1-replayed"),
        pytest.param(3, ("commits", "offsets"), id="3-rolled back"),
        pytest.param(1, ("commits", "offsets"), id="1-rolled back", marks=pytest.mark.campaign),
        pytest.param(3, ("commits",), id="3-replayed", marks=pytest.mark.campaign),
    ],
)
def test_a_restart_in_mid_loop_changes_nothing(
    spark: SparkSession, checkpoint: str, lost: tuple[str, ...], rounds_per_batch: int
) -> None:
    flow = reachability()
    chain(flow, 12)
    query = flow.start(
        spark, checkpoint=checkpoint, workers=3, rounds_per_batch=rounds_per_batch, resident=False
    )
    while query.rounds < 4:
        assert query.step(60)
    query.stop()
    assert reached(query) == []
    for folder in lost:
        path = Path(checkpoint) / folder
        newest = max(int(file.name) for file in path.iterdir() if file.name.isdigit())
        (path / str(newest)).unlink()
        (path / f".{newest}.crc").unlink(missing_ok=True)

    query = reachability().start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")
    query.await_termination(120)

    assert query.exception() is None
    assert query.captured("out").rows() == {0: [(i,) for i in range(13)]}


def test_a_source_that_is_filtered_away_still_ends_its_epoch(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number, text in enumerate(["a\nb\n", "skip\n", "c\n"]):
        (files / f"{number}.txt").write_text(text)
        os.utime(files / f"{number}.txt", (number, number))
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files)).where("value <> 'skip'")
    flow = ts.Dataflow("lines")
    flow.source("lines", lines).capture("out")
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    query.await_termination(60)

    assert query.captured("out").rows() == {0: [("a",), ("b",)], 1: [], 2: [("c",)]}
    assert query.rounds == 3, "an epoch that needs no exchange is one micro-batch"


def test_columns_as_epochs_with_timestamps_and_late_rows(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    columns = "epoch long, at timestamp, wall timestamp_ntz"
    at = "timestamp '2026-01-01 00:00:00 America/New_York'"
    for number, epochs in enumerate([(0, 1), (5,), (1, 6)]):
        rows = " UNION ALL ".join(
            f"SELECT {e}L epoch, {at} at, timestamp_ntz '2026-01-01' wall" for e in epochs
        )
        spark.sql(rows).coalesce(1).write.mode("append").parquet(str(tmp_path / "files"))
        for path in (tmp_path / "files").glob("*.parquet"):
            if path.stat().st_mtime > 1000:
                os.utime(path, (number, number))
    types: list[Any] = []
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = (
            spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "files"))
        )
        flow = ts.Dataflow("events")
        events = flow.source("events", frame, epoch="epoch")
        events.capture("out")
        events.late.capture("late")
        events.foreach_epoch(lambda frame, _: types.append(dict(frame.dtypes)))
        query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
        query.await_termination(60)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert query.exception() is None
    out = query.captured("out").rows()
    assert sorted(epoch for rows in out.values() for epoch, *_ in rows) == [0, 1, 5, 6]
    row = out[0][0]
    assert row[1].timestamp() == datetime.fromisoformat("2026-01-01T00:00:00-05:00").timestamp()
    assert row[2] == datetime(2026, 1, 1)  # noqa: DTZ001 - a time without a zone
    assert types[0] == {"epoch": "bigint", "at": "timestamp", "wall": "timestamp_ntz"}
    assert sum(query.last_progress.late.values()) == 1
    assert [epoch for rows in query.captured("late").rows().values() for epoch, *_ in rows] == [1]


def test_a_restart_with_the_sources_in_another_order(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    def run(names: str) -> dict[str, list[str]]:
        flow = ts.Dataflow("two")
        for name in "ab":
            flow.source(name, "value string").capture(f"out_{name}")
        sources = {name: spark.readStream.text(str(tmp_path / name)) for name in names}
        workers = default_workers(spark, written_to(checkpoint)) if names == "ba" else 3
        query = flow.start(
            spark, checkpoint=checkpoint, workers=workers, sources=sources, trigger="available_now"
        )
        query.await_termination(60)
        assert query.exception() is None
        kept = {name: query.captured(f"out_{name}").rows().values() for name in "ab"}
        return {name: [text for rows in found for (text,) in rows] for name, found in kept.items()}

    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.txt").write_text(f"{name}0\n")
    run("ab")
    (tmp_path / "b" / "1.txt").write_text("b1\n")

    assert run("ba") == {"a": ["a0"], "b": ["b0", "b1"]}


def test_an_error_in_a_step_is_ours(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("faulty")
    numbers = flow.input("n", "n long")
    numbers.exchange("n").map(lambda row: 1 // row.n, "x long", name="divide").capture("out")
    numbers.send([1, 0])
    query = flow.start(spark, checkpoint=checkpoint, workers=2)

    with pytest.raises(ts.TimelyError, match="divide") as caught:
        query.await_termination(60)
    assert "ZeroDivisionError" in str(caught.value)
    assert Path(__file__).name in str(caught.value)
    assert type(caught.value.__context__).__name__ == "StreamingQueryException"
    shown = "".join(traceback.format_exception(caught.value))
    assert "StreamingQueryException" not in shown
    assert Path(__file__).name in shown
    assert "divide" in str(query.exception())


def test_an_error_in_a_subscriber_fails_the_query(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("faulty")
    numbers = flow.input("n", "n long")
    numbers.subscribe(lambda epoch, table: [][epoch])
    numbers.send([1])
    query = flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now")

    with pytest.raises(ts.TimelyError, match=r"'subscribe-n'.*test_query.py:.*epoch 0.*IndexError"):
        query.await_termination(60)


def test_manual_epochs_complete_when_the_program_advances(spark: SparkSession, checkpoint: str) -> None:
    seen: list[tuple[int, int]] = []
    flow = ts.Dataflow("hello")
    numbers = flow.input("n", "n long", epochs="manual")
    numbers.exchange("n").subscribe(
        lambda epoch, table: seen.append((epoch, table.num_rows)), lambda: seen.append((-1, -1))
    )
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        numbers.send([1, 2])
        query.process_all_available()
        assert seen == []
        assert query.status["held_back_by"] == ["n"]
        numbers.advance_to(2)
        assert query.wait_for(epoch=1, timeout=60)
        numbers.send([3])
        numbers.close()
        assert query.wait_for(timeout=60)
        query.process_all_available()
    assert [each for each in seen if each != (1, 0)] == [(0, 2), (2, 1), (-1, -1)]
    again = ts.Dataflow("hello")
    numbers = again.input("n", "n long", epochs="manual")
    numbers.exchange("n").subscribe(lambda *_: None)
    query = again.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    query.await_termination(60)
    assert numbers.handle.is_closed


def test_mistakes_are_reported_before_anything_starts(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    flow = ts.Dataflow("one")
    flow.source("lines", "value string").capture("out")
    with pytest.raises(SourceMismatch, match=r"without a DataFrame \['lines'\]"):
        flow.start(spark, checkpoint=checkpoint, workers=2)
    with pytest.raises(SourceMismatch, match="batch DataFrame"):
        flow.start(spark, checkpoint=checkpoint, workers=2, sources={"lines": spark.range(1)})
    (tmp_path / "in").mkdir()
    lines = spark.readStream.text(str(tmp_path / "in"))
    for wrong in (lines.select(lines.value.alias("line")), lines.selectExpr("length(value) AS value")):
        with pytest.raises(SourceMismatch, match=r"with columns \['value string'\]; the DataFrame given"):
            flow.start(spark, checkpoint=checkpoint, workers=2, sources={"lines": wrong})
    flow.start(spark, checkpoint=checkpoint, workers=2, sources={"lines": lines}).stop()
    with pytest.raises(FlowChanged, match=r"(?s)its name is 'reachability', the checkpoint's is 'one'.*Hint"):
        reachability().start(spark, checkpoint=checkpoint, workers=2)


def test_without_a_session_the_hint_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))

    with pytest.raises(NoSession, match="configure"):
        reachability().start(workers=1)


PLAIN = """
import sys
from pyspark.sql import SparkSession
from tests.spark.test_query import HOPS, chain, reachability
spark = SparkSession.builder.master(sys.argv[2]).config("spark.log.level", "ERROR").getOrCreate()
flow = reachability()
chain(flow)
query = flow.start(spark, checkpoint=sys.argv[1], workers=2, trigger="available_now")
query.await_termination(100)
assert spark.conf.get("spark.sql.shuffle.partitions") == "200"
assert query.captured("out").rows() == {0: [(i,) for i in range(HOPS + 1)]}, query.captured("out").rows()
print("ok", query.rounds)
spark.stop()
"""


@pytest.mark.campaign
def test_two_executors_and_a_session_that_nobody_tuned(checkpoint: str) -> None:
    command = [sys.executable, "-c", PLAIN, checkpoint, "local-cluster[2,1,1024]"]
    path = os.pathsep.join([str(Path(ts.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        timeout=110,
    )

    assert "ok" in done.stdout, done.stderr[-3000:]


OLD_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.log.level", "ERROR").getOrCreate()
assert spark.sparkContext.pythonExec != sys.executable
import timely_spark as ts
flow = ts.Dataflow("hello")
n = flow.input("n", "n long")
n.capture("out")
n.send([1])
query = flow.start(spark, checkpoint=sys.argv[1], workers=1, trigger="available_now")
query.await_termination(100)
print("ok", query.captured("out").rows())
spark.stop()
"""


@pytest.mark.campaign
def test_a_virtual_environment_that_is_not_active(checkpoint: str) -> None:
    """The session is older than PYSPARK_PYTHON, and the PATH has another Python."""
    venv = str(Path(sys.executable).parent)
    path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != venv)
    env = {k: v for k, v in os.environ.items() if k not in {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}}
    done = subprocess.run(
        [sys.executable, "-c", OLD_SESSION, checkpoint],
        capture_output=True, text=True, check=False, env=env | {"PATH": path}, timeout=110,
    )  # fmt: skip

    assert "ok {0: [(1,)]}" in done.stdout, done.stderr[-3000:]
