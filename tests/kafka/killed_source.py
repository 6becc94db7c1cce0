"""A driver from a topic to a Delta table that is killed: before its n-th delivery, or after it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import timely_spark as ts
from tests.support.sessions import SHORT
from timely_spark.runtime.sinks.delta import DeltaSink


def totals(topic: str, servers: str, table: str, **arguments: Any) -> ts.Dataflow:
    """Totals by account, and the messages themselves, in Delta tables."""
    flow = ts.Dataflow("totals")
    schema = "account string, amount long"
    payments = flow.kafka("payments", topic, servers, schema=schema, on_bad_record="quarantine", **arguments)
    payments.to_delta(f"{table}/payments", name="payments out")
    payments.group_by("account").aggregate(total=("sum", "amount")).to_delta(f"{table}/totals", name="totals")
    payments.quarantined.select("partition", "offset").to_delta(f"{table}/bad", name="bad")
    return flow


def main(topic: str, servers: str, table: str, checkpoint: str, *kill: str) -> None:
    from pyspark.sql import SparkSession

    delivery, when = kill
    deliver, left = DeltaSink.deliver, [int(delivery)]

    def killed(*args: Any) -> None:
        left[0] -= 1
        if when == "after":
            deliver(*args)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "before":
            deliver(*args)

    DeltaSink.deliver = killed  # type: ignore[method-assign]
    builder = SparkSession.builder.master("local[2]").config(map=SHORT)
    spark = ts.configure(builder, delta=True).getOrCreate()
    flow = totals(topic, servers, table, records_per_epoch=40)
    flow.start(spark, checkpoint=checkpoint, workers=2, commit_every=0).await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
