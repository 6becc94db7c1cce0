"""A round is a function: what Spark ran comes out the same when it is run again without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import timely_spark as ts


def test_every_round_of_a_run_comes_out_the_same_in_the_simulator(
    spark: SparkSession, checkpoint: str, tmp_path: Path, component_sizes: Callable[[], ts.Dataflow]
) -> None:
    epochs = [[(i, i + 1) for i in range(9)], [(20, 3), (9, 20)]]
    made = component_sizes()
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
    plan = component_sizes().compile(workers=3)
    for one in rounds:
        state, out = one.again(plan)
        assert state == one.new_state
        assert out.equals(one.out)

    simulated = ts.testing.run(component_sizes(), {"edges": epochs}, workers=3)
    for name, tables in released.items():
        assert [table for table in tables if table] == list(simulated[name].rows().values())
