"""A round is a function: what Spark ran comes out the same when it is run again without it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import timely_spark as ts


def flow() -> ts.Dataflow:
    made = ts.Dataflow("recorded")
    edges = made.input("edges", "src long, dst long")

    def spread(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        labels = proposed.min("label", keys=["node"], name="least")
        links = labels.join(proposed.scope.enter(edges), left=["node"], right=["src"])
        return links.select(node="dst", label="label"), labels

    labels = edges.select(node="src", label="src").loop(spread)
    labels.capture("labels")
    labels.group_by("label").aggregate(nodes="count").capture("sizes")
    return made


def test_every_round_of_a_run_comes_out_the_same_in_the_simulator(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    epochs = [[(i, i + 1) for i in range(9)], [(20, 3), (9, 20)]]
    made = flow()
    made.handle("edges").send(epochs[0])
    folder = str(tmp_path / "rounds")
    with made.start(spark, checkpoint=checkpoint, workers=3, record=folder) as query:
        query.wait_for(timeout=90)
        made.handle("edges").send(epochs[1])
        query.wait_for(timeout=90)
        released = {name: list(query.captured(name).rows().values()) for name in ("labels", "sizes")}

    rounds = ts.testing.recorded(folder)
    assert len({(one.batch, one.round) for one in rounds}) > 4
    assert any(one.round for one in rounds)
    plan = flow().compile(workers=3)
    for one in rounds:
        state, out = one.again(plan)
        assert state == one.new_state
        assert out.equals(one.out)

    simulated = ts.testing.run(flow(), {"edges": epochs}, workers=3)
    for name, tables in released.items():
        assert [table for table in tables if table] == list(simulated[name].rows().values())
