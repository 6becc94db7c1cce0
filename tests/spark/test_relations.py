"""Joins of every kind, set operations, windows and keyed state: Spark answers as the simulator does."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.runtime.handle.status import Status

EPOCHS = [
    {"left": [(1, 5), (2, 7), (None, 8)], "right": [(1, 50), (3, 70)]},
    {"left": [(3, 12), (1, 5)], "right": [(2, 7), (3, 12)]},
    {"left": [(2, 1), (2, 25)], "right": [(1, 50)]},
]


def last(key: Any, rows: list[Any], state: Any) -> Any:
    total = sum(row.v for row in rows) + (state.total if state else 0)
    return [total], total


def relations() -> ts.Dataflow:
    flow = ts.Dataflow("relations")
    left, right = (flow.input(name, "k long, v long", epochs="manual") for name in ("left", "right"))
    left.join(right.select("k", w="v"), on="k", how="outer", per="time").capture("each")
    left.join(right.select("k", w="v"), on="k", how="outer", expire=1).capture("near")
    left.asof_join(right.select("k", "v", w="v"), "v", by="k", expire=2).capture("latest")
    left.subtract(right, all=True).capture("less")
    left.stateful_map(last, "total long", keys="k", state="total long").capture("totals")
    windows = left.window("v", ts.every(10, size=20), lateness=2, name="windows")
    windows.closed.capture("closed")
    windows.late.capture("late")
    ours, theirs = left.collection(), right.collection()
    ours.join(theirs.select("k", w="v"), on="k", how="outer").changes().capture("both")
    ours.union(theirs).window("v", ts.sessions(10), keys="k").changes().capture("sessions")
    return flow


def test_relations_on_spark_are_those_of_the_simulator(spark: SparkSession, checkpoint: str) -> None:
    flow = relations()
    for number, epoch in enumerate(EPOCHS):
        for name, rows in epoch.items():
            flow.handle(name).send(ts.graph.as_table(rows, ts.graph.as_schema("k long, v long")))
            flow.handle(name).advance_to(number + 1)
    for name in ("left", "right"):
        flow.handle(name).close()
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for(timeout=60)
        captured = {output.name: query.captured(output.name).rows() for output in flow.outputs}
        assert query.last_progress.late == {"windows": 1}, "1 is late for -10 to 10: event time was 10"

    inputs = {name: [epoch[name] for epoch in EPOCHS] for name in ("left", "right")}
    expected = ts.testing.run(relations(), inputs)
    for name, rows in captured.items():
        assert {at: of for at, of in rows.items() if of} == {
            at: of for at, of in expected[name].rows().items() if of
        }
    assert all(any(rows.values()) for rows in captured.values())


def test_records_removed_more_often_than_inserted_are_told_of_or_end_the_flow(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> ts.Dataflow:
        flow = ts.Dataflow("negatives")
        x = flow.input("x", "k long, diff long").collection(diff="diff")
        x.count(keys="k", name="counts").changes().capture("out")
        return flow

    flow = counted()
    query = flow.start(spark, checkpoint=checkpoint, workers=2, on_negative="raise")
    flow.handle("x").send([(1, 1), (2, -1)])
    with pytest.raises(
        VertexError, match=r"(?s)step 'counts' \(.*{'k': 2} is there -1 times after epoch 0.*Hint"
    ):
        query.wait_for(timeout=120)

    flow = counted()
    with caplog.at_level(logging.WARNING, "timely_spark"), flow.start(spark, checkpoint=checkpoint) as query:
        assert query.wait_for(timeout=120)  # what failed runs again
        flow.handle("x").send([(1, -2), (2, -1)])
        assert query.wait_for(timeout=120)
        found = ts.snapshot(query.captured("out")).to_pylist()
        assert found == [
            {"k": 1, "count": -1},
            {"k": 2, "count": -2},
        ]
    (logged,) = [
        each.getMessage()
        for each in caplog.records
        if "more was removed" in each.getMessage() and each.levelno == logging.WARNING
    ]
    assert "{'k': 2} is there -1 times" in logged
    assert "negative records  counts: 2" in str(Status.of(checkpoint))
