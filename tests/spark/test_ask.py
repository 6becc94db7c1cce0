"""Questions to a running query."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import NotComplete, UnknownName


def test_stale_answers_do_not_wait_for_a_running_batch_and_fresh_ones_do(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    busy, done = tmp_path / "busy", tmp_path / "done"

    def slow(batch: pa.Table) -> pa.Table:
        if 3 in batch["src"].to_pylist():
            busy.touch()
            limit = time.monotonic() + 60
            while not done.exists() and time.monotonic() < limit:
                time.sleep(0.01)
        return batch

    def flow() -> tuple[ts.Dataflow, ts.Input]:
        made = ts.Dataflow("asked")
        sent = made.input("edges", "src long, dst long, diff long")
        edges = sent.map_batches(slow, sent.schema).collection(diff="diff")
        edges.select(node="src", least="dst").min("least", keys="node").capture("least")
        edges.select(least="dst", by="src").max("by", keys="least").capture("by")
        return made, sent

    made, edges = flow()
    with made.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.ask("least", [1], keys="node").epoch in {None, 0}
        edges.send([(0, 1, 1), (1, 2, 1)])
        answer = query.ask("least", {"node": [1, 9]}, fresh=True, timeout=60)
        assert [tuple(row.values()) for row in answer.table.to_pylist()] == [(1, 2), (9, None)]
        edges.send([(3, 1, 1)])
        while not busy.exists():
            time.sleep(0.01)
        assert query.ask("least").rows() == [(0, 1), (1, 2)]
        assert query.ask("least", [3], keys="node").rows() == [(3, None)]
        assert query.ask("least", [3], keys="node", within="1 hour").epoch == answer.epoch
        with pytest.raises(NotComplete, match="complete until epoch"):
            query.ask("least", [3], keys="node", within=0.01, timeout=0.1)
        found: list[object] = []

        def asks() -> None:
            found.append(query.ask(["least", "by"], {"node": [3]}, fresh=True).rows())

        askers = [threading.Thread(target=asks) for _ in range(3)]
        for asker in askers:
            asker.start()
        assert not found, "the batch is not done"
        done.touch()
        for asker in askers:
            asker.join(60)
        assert found == 3 * [[(3, 1, 3)]]
        with pytest.raises(UnknownName, match="least"):
            query.ask("leasts")

    assert query.ask("least", [3], keys="node").rows() == [(3, 1)], "also when it has ended"
    made, edges = flow()
    with made.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.ask("least", [3], keys="node").rows() == [(3, 1)], "at once, after a restart"
        edges.send([(3, 1, -1)])
        assert query.ask("least", [3], keys="node", fresh=True, timeout=60).rows() == [(3, None)]
