"""Calls to a service on Spark: what a query that failed had been answered is not asked for again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import VertexError


def test_a_query_that_failed_asks_only_for_what_is_missing(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    works, asked = tmp_path / "works", tmp_path / "asked"
    asked.mkdir()

    async def ask(batch: pa.Table) -> list[tuple[int, int]]:
        (n,) = batch["n"].to_pylist()
        if n == 2 and not works.exists():
            raise ConnectionError
        (asked / str(n)).touch(exist_ok=False)  # once
        return [(n, n * n)]

    def flow() -> tuple[ts.Dataflow, ts.Input]:
        made = ts.Dataflow("asks")
        x = made.input("x", "n long")
        answers = x.call(
            ask, "n long, square long", rows=1, attempts=1, record=str(tmp_path / "r"), name="ask"
        )
        answers.capture("out")
        return made, x

    made, x = flow()
    with made.start(spark, checkpoint=checkpoint, workers=2) as query:
        x.send([1, 2, 3, 4])
        with pytest.raises(VertexError, match="ConnectionError"):
            query.wait_for(timeout=120)
    works.touch()
    made, _ = flow()
    with made.start(spark, checkpoint=checkpoint) as query:
        query.wait_for(timeout=120)
        assert query.captured("out").rows() == {0: [(n, n * n) for n in (1, 2, 3, 4)]}
