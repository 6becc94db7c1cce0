"""A job one of whose tasks hangs at its first attempt: Spark starts a second one on another machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import timely_spark as ts


def main(folder: str) -> None:
    """Run it; prints what was captured."""

    def slow(batch: pa.Table) -> pa.Table:
        context = TaskContext.get()
        assert context is not None
        attempt = f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}"
        Path(folder, attempt).touch()
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            time.sleep(10)
        return batch

    flow = ts.Dataflow("speculated")
    numbers = flow.input("numbers", "n long")
    slowed = numbers.exchange("n").map_batches(slow, "n long", name="slow")
    slowed.distinct(name="once").capture("out")
    numbers.send(list(range(1000)))
    spark = ts.configure(SparkSession.builder).getOrCreate()
    query = flow.start(spark, checkpoint=f"{folder}-checkpoint", workers=2, trigger="available_now")
    query.await_termination()
    print("captured", sorted(query.captured("out").table()["n"].to_pylist()) == list(range(1000)))


if __name__ == "__main__":
    main(sys.argv[1])
