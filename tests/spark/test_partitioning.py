"""A user's partition function, a guarantee, a region, and hot keys, on Spark: the simulator's answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.operators.test_partitioning import N, Where
from timely_spark.runtime.errors import QueryFailed
from timely_spark.runtime.query.rounds import Rounds
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.worker import Worker
from timely_spark.worker.hot_keys import MANY


def test_records_are_where_the_user_says(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("places")
    x = flow.input("x", "n long")
    flow.vertex(Where(), x.exchange("n").distinct(), "n long, at long", by=N, name="by").capture("number")
    with flow.region("one", workers=[2]):
        kept = flow.vertex(Where(), x, "n long, at long", by="n", guarantees="n", name="kept")
        kept.group_by("n", "at").count("rows", name="counts").capture("region")
    with flow.start(spark, checkpoint=checkpoint, workers=3) as query:
        x.send([4, -1, 5, 5])
        query.wait_for(timeout=120)
        assert query.captured("number").rows() == {0: [(-1, 2), (4, 1), (5, 2)]}
        assert query.captured("region").rows() == {0: [(-1, 2, 1), (4, 2, 1), (5, 2, 2)]}


@pytest.mark.campaign
def test_a_hot_key_that_the_run_finds_is_spread_also_if_the_move_is_cut_off(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, epochs = 4 * MANY, 3
    for epoch in range(epochs):  # half of the records have key 0
        rows = pa.table({"k": np.arange(n) % 2 * np.arange(n), "v": np.arange(n) + epoch * n})
        pq.write_table(rows, tmp_path / f"{epoch}.parquet")

    def start() -> Any:
        frame = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        flow = ts.Dataflow("visits")
        visits = flow.source("visits", frame.parquet(str(tmp_path))).collection(name="all visits")
        zero = visits.select("k", name="keys").where(pc.field("k") == 0).distinct(name="zero")
        counted = visits.join(zero, on="k", skew="auto", name="joined").count(keys="k", name="counts")
        counted.changes(name="changes").capture("counted")
        return flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")

    def spread() -> dict[str, list[int]]:
        log = RoundLog(checkpoint)
        return log.newest_before((log.newest() or 0) + 1)[0].spread

    def cut_off(rounds: Rounds, batch: int, moved: Mapping[int, Worker], states: StateRefs) -> None:
        write(rounds, batch, dict([*moved.items()][:1]), states)
        if moved:
            raise ConnectionError

    write = Rounds.write
    monkeypatch.setattr(Rounds, "write", cut_off)
    with pytest.raises(QueryFailed), start() as query:
        query.wait_for(timeout=120)
    assert not spread()
    monkeypatch.undo()
    with start() as query:
        assert query.await_termination(120)
        last = [epoch[-1] for epoch in query.captured("counted").rows().values() if epoch]

    (found,) = spread().values()
    assert len(found) == 1
    assert last == [(0, (epoch + 1) * n // 2, 1) for epoch in range(epochs)]
