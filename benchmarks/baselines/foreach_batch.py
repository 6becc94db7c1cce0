"""Connected components as one writes them by hand in foreachBatch: `foreach_batch.py TRACE N`.

Edges and labels are DataFrames that localCheckpoint pins. An epoch's changes are added to the edges; labels
then go from neighbour to neighbour, the least one stays, until nothing changes. Only nodes whose label has
changed tell it. After inserts alone the labels of the epoch before are where it starts; a delete may split
any component, so that after one all labels are found anew.

As fast as it gets with little thought: as many shuffle partitions as cores, the edges shuffled by node once
an epoch and kept so.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from benchmarks import harness
from benchmarks.baselines.trace import HEAP, answer, epochs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONFS = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": HEAP}


class Components:
    """The function of foreachBatch, and what it holds from one batch to the next."""

    def __init__(self, spark: SparkSession) -> None:
        self.edges = spark.createDataFrame([], "src long, dst long, diff long")
        self.labels = spark.createDataFrame([], "node long, component long")
        self.answers: queue.Queue[tuple[float, int, int]] = queue.Queue()

    def __call__(self, batch: DataFrame, _: int) -> None:
        batch = batch.localCheckpoint()
        counted = self.edges.union(batch).groupBy("src", "dst").agg(sf.sum("diff").alias("diff"))
        self.edges = counted.where("diff > 0").localCheckpoint()
        near = both_ways(self.edges).repartition("node").persist()
        if batch.where("diff < 0").isEmpty():
            new = both_ways(batch).select("node").distinct()
            old = self.labels.join(new, "node", "full")
            old = old.select("node", sf.coalesce("component", "node").alias("component")).localCheckpoint()
            self.labels = propagated(near, old, old.join(new, "node", "semi"))
        else:
            least = sf.least("node", sf.min("neighbour")).alias("component")
            first = near.groupBy("node").agg(least).localCheckpoint()
            self.labels = propagated(near, first, first)
        ended = time.perf_counter()
        near.unpersist()
        totals = self.labels.selectExpr(
            "count_if(node = component)", "sum((node + 1) * (component + 1))"
        ).first()
        self.answers.put((ended, *totals))


def both_ways(edges: DataFrame) -> DataFrame:
    there = edges.selectExpr("src AS node", "dst AS neighbour")
    return there.union(edges.selectExpr("dst AS node", "src AS neighbour"))


def propagated(near: DataFrame, labels: DataFrame, changed: DataFrame) -> DataFrame:
    while not changed.isEmpty():
        least = (
            changed.join(near, "node").groupBy("neighbour").agg(sf.min("component").alias("component_beside"))
        )
        least = least.withColumnRenamed("neighbour", "node")
        both = labels.join(least, "node", "left").localCheckpoint()
        changed = both.where("component_beside < component").selectExpr(
            "node", "component_beside AS component"
        )
        labels = both.selectExpr("node", "least(component, component_beside) AS component")
    return labels.localCheckpoint()


def main(folder: Path, count: int) -> None:
    spark = harness.spark("foreach_batch", tuned=False, confs=CONFS)
    small = spark.range(1, 1000).selectExpr("id AS src", "id DIV 2 AS dst", "1L AS diff")
    Components(spark)(small, 0)  # the JVM is warm
    seen = harness.folder()
    each = Components(spark)
    frame = spark.readStream.schema("src long, dst long, diff long").parquet(str(seen))
    checkpoint = str(harness.folder())
    query = frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).start()
    for path in epochs(folder, count):
        began = time.perf_counter()
        os.link(path, seen / path.name)
        while query.isActive:
            try:
                ended, components, checksum = each.answers.get(timeout=1)
            except queue.Empty:
                continue
            answer(ended - began, components, checksum)
            break
        query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
