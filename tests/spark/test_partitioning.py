"""A user's partition function, a guarantee and a region, on Spark: the simulator's answer."""

from __future__ import annotations

from pyspark.sql import SparkSession

import timely_spark as ts
from tests.operators.test_partitioning import N, Where


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
