"""The handle: Spark's verbs under both spellings."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import timely_spark as ts
from timely_spark.runtime.handle import SPARK_NAMES, Query


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
    assert not query.is_active
    assert query.wait_for("out", epoch=5) is False, "nobody is left to bring it about"
    assert query.exception() is None
