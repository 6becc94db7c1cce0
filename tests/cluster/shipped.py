"""A job whose vertices are in a module of --py-files, and then of one that it adds while it runs.

job.py CHECKPOINTS ARCHIVE: the archive has the module `later`.
"""

from __future__ import annotations

import sys
from typing import Any

import first  # --py-files has it
from pyspark.sql import SparkSession

import timely_spark as ts


def main(checkpoints: str, archive: str) -> None:
    print("found in", ts.__file__)
    spark = ts.configure(SparkSession.builder.appName("shipped")).getOrCreate()
    run(spark, first, f"{checkpoints}/first")
    spark.sparkContext.addPyFile(archive)
    import later

    run(spark, later, f"{checkpoints}/later")
    run(spark, later, f"{checkpoints}/later")  # and the feedback goes on from where it was
    spark.stop()


def run(spark: SparkSession, module: Any, checkpoint: str) -> None:
    """An epoch through a function and a vertex of the module."""
    flow = ts.Dataflow("shipped")
    numbers = flow.input("numbers", "n long")
    doubled = numbers.map_batches(module.doubled, "n long")
    flow.vertex(module.Total(), doubled, "n long", by=[[]], name="total").capture("totals")
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        numbers.send([(1,), (2,), (4,)])
        query.wait_for()
        print("totals", query.captured("totals").rows(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
