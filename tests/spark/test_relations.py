"""Joins of every kind, set operations, windows and keyed state: Spark answers as the simulator does."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

import timely_spark as ts

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
