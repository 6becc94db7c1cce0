"""The handle: Spark's verbs under both spellings."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import timely_spark as ts
from timely_spark.errors import BadArgument
from timely_spark.runtime.errors import InputsInUse, NameTaken, QueryRefused
from timely_spark.runtime.handle.query import SPARK_NAMES, Query


def public(owner: type) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def test_every_verb_of_a_streaming_query_is_here_under_both_names() -> None:
    assert public(StreamingQuery) <= public(Query)
    assert {name for name in public(Query) if name != name.lower()} <= public(StreamingQuery), "no others"
    assert set(SPARK_NAMES) <= public(Query)


def test_the_verbs(spark: SparkSession, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    flow = ts.Dataflow("verbs")
    x = flow.input("x", "n long")
    x.capture("out")
    x.send([1])
    with flow.start(spark, checkpoint=checkpoint, workers=1, name="verbs of a query") as query:
        assert query.wait_for(0, timeout=60)
        assert query.name == "verbs of a query"
        assert query.isActive is query.is_active is True
        assert query.id == query._query.id != query.runId == query.run_id
        assert query.await_termination(0.1) is False
        query.process_all_available()
        assert query.last_progress == query.lastProgress == query.recent_progress[-1]
        assert json.loads(query.last_progress.json())["frontier"] == {"out": [[1]]}
        assert query.last_progress.duration_ms > 0
        assert query.status["isTriggerActive"] in {True, False}
        assert query.status["held_back_by"] == []
        query.explain()
        assert "FlatMapGroupsInPandasWithState" in capsys.readouterr().out
        assert list(query.frontier("out")) == [ts.Time(1)]
        with pytest.raises(KeyError, match="out"):
            query.probe("nowhere")
        assert query.wait_for("out", epoch=5, timeout=0.2) is False
        assert query.wait_for("out", epoch=5, timeout=-1) is False
        with pytest.raises(BadArgument, match=r"(?s)timeout=.soon.*Hint"):
            query.wait_for(timeout="soon")
    assert not query.is_active
    assert query.wait_for("out", epoch=5) is False, "nobody is left to bring it about"
    assert query.exception() is None


# -- a second start -----------------------------------------------------------------------------------------


def counted(name: str = "twice") -> tuple[ts.Dataflow, ts.Input]:
    flow = ts.Dataflow(name)
    x = flow.input("x", "n long")
    x.exchange("n").capture("out")
    return flow, x


def rows(query: Query) -> list[int]:
    return sorted(n for epoch in query.captured("out").rows().values() for (n,) in epoch)


def test_a_second_start_of_a_flow_leaves_the_living_query_its_inputs(
    spark: SparkSession, checkpoint: str
) -> None:
    flow, x = counted()
    x.send([1])
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        x.send([2])
        refused = (
            r"(?s)'twice': the handles of \['x'\] send to query 'twice' .*test_handle\.py:\d+\)\nHint: stop"
        )
        for options in ({}, {"checkpoint": f"{checkpoint}-2"}, {"name": "other", "trigger": "available_now"}):
            with pytest.raises(InputsInUse, match=refused):
                flow.start(spark, workers=2, **options)  # type: ignore[arg-type]
        x.send([3])
        assert query.wait_for(timeout=300)
        assert rows(query) == [1, 2, 3]

        again = flow.start(spark, checkpoint=checkpoint, workers=2, replace=True)
        assert (query.is_active, again.is_active) == (False, True)
        x.send([4])
        assert again.wait_for(timeout=300)
        assert rows(again) == [1, 2, 3, 4]
        again.stop()
    x.send([5])  # durable in the checkpoint, for the next start there
    with flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now") as third:
        assert third.await_termination(300)
        assert rows(third) == [1, 2, 3, 4, 5]


def test_a_start_that_fails_loses_nothing_that_waits(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, y = counted("first")
    first = y.flow.start(spark, workers=1, name="taken")
    flow, x = counted()
    x.send([1])
    with pytest.raises(NameTaken, match=r"(?s)'taken'.*test_handle\.py:\d+\)\nHint: "):
        flow.start(spark, checkpoint=checkpoint, workers=1, name="taken")

    def refuse(*_: object, **__: object) -> None:
        msg = "Spark says no"
        raise OSError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(StreamingQuery, "runId", property(refuse))  # after Spark has accepted it
        with pytest.raises(OSError, match="says no"):
            flow.start(spark, checkpoint=checkpoint, workers=1)
    assert [query.name for query in spark.streams.active] == ["taken"]
    x.send([2])

    with flow.start(spark, checkpoint=f"{checkpoint}-2", workers=1, trigger="available_now") as query:
        assert query.await_termination(300)
        assert rows(query) == [1, 2]
    y.send([7])
    assert first.wait_for(timeout=300)
    assert rows(first) == [7]
    first.stop()


def test_without_a_checkpoint_what_is_sent_after_the_end_is_for_the_next_start(spark: SparkSession) -> None:
    flow, x = counted()
    with flow.start(spark, workers=1) as query:
        x.send([1])
        assert query.wait_for(timeout=300)
        assert Path(query.checkpoint).is_dir()
    assert not Path(query.checkpoint).exists(), "deleted at stop()"
    assert (rows(query), query.wait_for(0), query.wait_for(9), query.rounds) == ([1], True, False, 1)
    assert query.last_progress is not None
    assert query.exception() is None
    x.send([2])
    assert x.handle.sent == 0, "it waits"

    ended = flow.start(spark, workers=1, trigger="available_now")
    assert ended.await_termination(300)
    assert (ended.wait_for(timeout=10), rows(ended)) == (True, [2])
    assert (query.wait_for(timeout=1), rows(query)) == (True, [1]), "the first one speaks of its own inputs"
    place = ended.checkpoint
    x.send([3])
    assert x.handle.sent == 0, "it has ended by itself"
    del ended
    deadline = time.monotonic() + 60
    while Path(place).exists() and time.monotonic() < deadline:  # a thread lets go of it when it has ended
        gc.collect()
        time.sleep(0.05)
    assert not Path(place).exists(), "nobody can ask it any more"


def test_flows_of_dataframes_only_run_twice(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("frames")
    frame = spark.readStream.format("rate").load().selectExpr("value")
    flow.source("rate", frame).exchange("value").capture("out")
    one = flow.start(spark, checkpoint=f"{checkpoint}-1", workers=1, name="one")
    two = flow.start(spark, checkpoint=f"{checkpoint}-2", workers=1, name="two")
    assert one.is_active
    assert two.is_active
    three = flow.start(spark, checkpoint=f"{checkpoint}-2", workers=1, name="three", replace=True)
    assert (one.is_active, two.is_active, three.is_active) == (True, False, True)
    one.stop()
    three.stop()


def test_a_source_that_spark_refuses_is_named(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("refused")
    rate = spark.readStream.format("rate").load()
    plain = flow.source("plain", rate.selectExpr("value"))
    flow.source("summed", rate.groupBy("value").count().select("value")).concat(plain).capture("out")

    refused = r"(?s)'refused': source 'summed' \(.*test_handle\.py:\d+\) has .*Hint: give the flow"
    with pytest.raises(QueryRefused, match=refused) as caught:
        flow.start(spark, checkpoint=checkpoint, workers=1)
    assert "base64" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.campaign
@pytest.mark.spark
def test_a_healthy_script_prints_nothing_of_ours_and_leaves_nothing(tmp_path: Path) -> None:
    """A stop in the middle of the work; and a query that nobody stops."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    place = {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "tmp").mkdir()

    done = subprocess.run(
        [sys.executable, str(script)], check=False, capture_output=True, text=True, env=os.environ | place
    )

    assert done.returncode == 0, done.stderr
    printed = done.stderr[done.stderr.index("BEGIN") :]
    lines = [line for line in printed.splitlines()[1:] if "WARN" not in line and "[Stage" not in line]
    unread = ("no micro-batch had read", "Hint: wait_for() before stop()")  # it may, or may not, have
    lines = [line for line in lines if not any(text in line for text in unread)]
    assert [line for line in lines if line.strip() and not _HUNG_UP_ON.match(line)] == []
    assert list((tmp_path / "tmp").glob("timely-*")) == []


# A Python worker that Spark has hung up on says so, now and then, and may be ended while it does.
_HUNG_UP_ON = re.compile(
    r"Traceback |During handling |EOFError|BrokenPipeError|    "
    r'|  File ".*/(pyspark|lib/python3\.\d+)/(?!site-packages/timely_spark)'
)

_SCRIPT = """
import sys, time
from pyspark.sql import SparkSession
import timely_spark as ts
from timely_spark.runtime.query import rest

rest.PATIENCE = 200  # however slow the machine is, a stop waits for the micro-batch
spark = ts.configure(SparkSession.builder.master("local[2]")).getOrCreate()
flows = [ts.Dataflow(name) for name in ("one", "two")]
inputs = [flow.input("x", "n long") for flow in flows]
for x in inputs:
    x.exchange("n").capture("out")
queries = [flow.start(spark, workers=2) for flow in flows]
for query, x in zip(queries, inputs):
    x.send([1, 2, 3])
    assert query.wait_for(timeout=300)
print("BEGIN", file=sys.stderr, flush=True)
inputs[0].send([4])
time.sleep(0.5)
queries[0].stop()
"""
