"""Flows that were changed between two runs, on Spark: what is only called otherwise, and what is new."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.tables import rows_of
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.runtime.handle.status import Status

EDGES = [(1, 2), (2, 3), (3, 1), (4, 5)]
#: what (5, 4) and (3, 4) change
CHANGES = {
    "connected_components": [(4, 1, 1), (4, 4, -1), (5, 1, 1), (5, 4, -1)],
    "strongly_connected_components": [(5, 4, 1), (5, 5, -1)],
}


def answered(
    spark: SparkSession, flow: ts.Dataflow, checkpoint: str, rows: dict[str, Any], **options: Any
) -> Any:
    """What outputs have kept, when some rows are answered."""
    with flow.start(spark, checkpoint=checkpoint, workers=2, **options) as query:
        for name, some in rows.items():
            flow.handle(name).send(some)
        assert query.wait_for(timeout=300)
        return {
            spec.name: query.captured(spec.name).rows() for spec in flow.outputs if spec.kind == "capture"
        }


@pytest.mark.campaign  # tests/coordinator/test_migrate.py has the cases
def test_a_function_may_be_renamed(spark: SparkSession, checkpoint: str) -> None:
    def half(row: Any) -> Any:
        return row.n // 2

    def by_two(row: Any) -> Any:
        return row.n // 2

    def flow(function: Callable[[Any], Any]) -> ts.Dataflow:
        made = ts.Dataflow("halves")
        halves = made.input("x", "n long").exchange("n").map(function, "n long")
        halves.collection().count("times", keys="n").capture("counts")
        return made

    answered(spark, flow(half), checkpoint, {"x": [2, 3, 4]})
    for function, times in ((by_two, 3), (lambda row: row.n // 2, 4)):
        made = answered(spark, flow(function), checkpoint, {"x": [2]})["counts"]
        assert list(made.values())[-1] == [(1, times - 1, -1), (1, times, 1)]


@pytest.mark.campaign
@pytest.mark.parametrize("algorithm", CHANGES)
def test_a_named_flow_goes_on_with_another_output(
    spark: SparkSession, checkpoint: str, algorithm: str
) -> None:
    def flow(*, more: bool) -> ts.Dataflow:
        made = ts.Dataflow("graph")
        edges = made.input("edges", "src long, dst long").collection(name="links")
        if more:
            edges.count("degree", keys="src").capture("count")
        found = getattr(ts.graphs, algorithm)(edges, name="parts")
        found.capture("out")
        if more:
            found.count("size", keys="component").capture("sizes")
        return made

    answered(spark, flow(more=False), checkpoint, {"edges": EDGES})
    made = answered(spark, flow(more=True), checkpoint, {"edges": [(5, 4), (3, 4)]}, new_steps="empty")

    last = {name: [part for part in epochs.values() if part][-1] for name, epochs in made.items()}
    assert last["out"] == CHANGES[algorithm]
    assert last["count"] == [(3, 1, 1), (5, 1, 1)], "what is new starts empty"


@pytest.mark.campaign
def test_a_new_table_by_key_is_refused_or_says_what_it_lacks(
    spark: SparkSession, checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def flow(*, more: bool) -> ts.Dataflow:
        made = ts.Dataflow("words")
        words = made.input("words", "word string")
        words.distinct().capture("seen")
        words.collection().count(keys="word").changes().capture("counted")
        counts = words.group_by("word").count(name="counts")
        if more:
            counts.to_delta(str(tmp_path / "now"), keys="word", name="now")
        counts.to_files(str(tmp_path / "files"), name="files")
        return made

    def properties() -> str:
        return str(spark.sql(f"SHOW TBLPROPERTIES delta.`{tmp_path / 'now'}`").collect())

    with caplog.at_level(logging.WARNING):
        answered(spark, flow(more=False), checkpoint, {"words": ["to", "be"]})
    unnamed = "without name=, by which a changed flow finds it: distinct ("
    assert unnamed in caplog.text
    assert unnamed in str(Status.of(checkpoint))
    with pytest.raises(FlowChanged, match=r"new: step 'now' .*test_changed.py:\d+"):
        answered(spark, flow(more=True), checkpoint, {})
    made = answered(spark, flow(more=True), checkpoint, {"words": ["be", "or"]}, new_steps="empty")
    assert [("be",), ("to",)] in made["seen"].values()
    assert [("or",)] in made["seen"].values(), "without a name it is the only step of its kind"
    assert rows_of(tmp_path / "now") == [("be", 2), ("or", 1)]
    assert "timely_spark.lacks" in properties()
    assert "now from epoch " in properties()
    answered(spark, flow(more=True), checkpoint, {"words": ["be"]})
    assert "now from epoch " in properties(), "also after further starts"


def test_a_collection_is_a_delta_table(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    flow = ts.Dataflow("words")
    words = flow.input("words", "word string, diff int").collection(diff="diff")
    counts = words.count("n", keys="word").to_delta(str(tmp_path / "log"), name="log")
    counts.to_delta(str(tmp_path / "now"), keys="word", name="now").to_memory("shown")
    epochs: list[Any] = []
    counts.subscribe(lambda _, changes: epochs.append(changes.to_pylist()), name="told")
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        for sent in ([("to", 1), ("be", 1)], [("to", 1), ("be", -1)]):
            flow.handle("words").send(sent)
            assert query.wait_for(timeout=300)
        assert sorted(row[1:] for row in rows_of(tmp_path / "log")) == [
            ("be", 1, -1), ("be", 1, 1), ("to", 1, -1), ("to", 1, 1), ("to", 2, 1),
        ]  # fmt: skip
        assert rows_of(tmp_path / "now") == [("to", 2)]
        assert list(map(tuple, ts.snapshot(spark.table("shown")).collect())) == [("to", 2)]
        rows = [(0, "a", 2**40), (0, "b", 1), (1, "b", -1)]
        many = spark.createDataFrame(rows, "epoch int, word string, diff long")
        assert sorted(ts.snapshot(many, at=0, count="n").collect()) == [("a", 2**40), ("b", 1)]
        assert ts.snapshot(many, count="n").collect() == [("a", 2**40)]
        with pytest.raises(Exception, match=r"snapshot: \{\"word\":\"a\"\} is there 1099511627776 times"):
            ts.snapshot(many).collect()
        assert [rows for rows in epochs if rows][-1][-1]["diff"] in {-1, 1}
