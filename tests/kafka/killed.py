"""A driver that is killed when Kafka has an epoch, and its checkpoint does not know it yet."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import timely_spark as ts
from tests.kafka.test_kafka import payments, summed
from tests.support.sessions import SHORT
from timely_spark.runtime.sinks.kafka import KafkaSink


def main(servers: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    deliver = KafkaSink.deliver

    def killed(*args: Any) -> None:
        deliver(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    KafkaSink.deliver = killed  # type: ignore[method-assign]
    broker: Any = SimpleNamespace(servers=servers)
    builder = SparkSession.builder.master("local[2]").config(map=SHORT)
    spark = ts.configure(builder, kafka=True).getOrCreate()
    flow = summed(broker, payments(spark, broker, "transactions"), "account-totals")
    flow.start(spark, checkpoint=checkpoint, workers=2).await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
