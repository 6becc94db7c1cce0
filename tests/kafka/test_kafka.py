"""Kafka in and out, with a real broker: what is in a topic, and what is read back, whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, concat, expr, from_json, lit, struct, to_json

import timely_spark as ts
from tests.support.broker import Broker
from tests.support.sql_text import read_sql
from tests.support.tables import rows_of
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks.kafka import KafkaSink

PAYMENTS = "account string, amount long"


def options(broker: Broker, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def send(spark: SparkSession, broker: Broker, topic: str, rows: list[tuple[Any, ...]], schema: str) -> None:
    frame = spark.createDataFrame(rows, schema).select(to_json(struct("*")).alias("value"))
    to = {"kafka.bootstrap.servers": broker.servers, "topic": topic}
    frame.coalesce(1).write.format("kafka").options(**to).save()


def topic(spark: SparkSession, broker: Broker, name: str) -> DataFrame:
    return ts.kafka.origin(spark.read.format("kafka").options(**options(broker, name)).load())


def payments(spark: SparkSession, broker: Broker, name: str) -> DataFrame:
    frame = spark.readStream.format("kafka").options(**options(broker, name)).load()
    return frame.select(from_json(expr("cast(value AS string)"), PAYMENTS).alias("row")).select("row.*")


def summed(broker: Broker, frame: Any, into: str) -> ts.Dataflow:
    """Totals by account, from one topic to another."""
    flow = ts.Dataflow("totals")
    read = flow.source("payments", frame)
    totals = read.group_by("account").aggregate(total=("sum", "amount"))
    totals.to_kafka(into, broker.servers, key="account", name="out")
    return flow


def test_records_headers_and_values_there_and_back(
    spark: SparkSession, broker: Broker, checkpoint: str
) -> None:
    send(spark, broker, "in", [("a", 1), ("b", 2), ("a", 3)], PAYMENTS)
    flow = ts.Dataflow("there")
    read = flow.source("payments", payments(spark, broker, "in"))
    read.to_kafka("keyed", broker.servers, key="account", name="keyed")
    read.to_kafka("named", broker.servers, value=in_brackets, name="named")
    flow.start(spark, checkpoint=checkpoint, trigger="available_now").await_termination()
    send(spark, broker, "in", [("a", 3), ("a", 3), ("c", 4)], PAYMENTS)
    flow.start(spark, checkpoint=checkpoint, trigger="available_now").await_termination()

    rows = topic(spark, broker, "keyed").withColumn("value", expr("cast(value AS string)")).collect()
    read_back = [(row.epoch, row.key.decode(), json.loads(row.value)["amount"]) for row in rows]
    assert sorted(read_back) == [(0, "a", 1), (0, "a", 3), (0, "b", 2), (1, "a", 3), (1, "a", 3), (1, "c", 4)]
    assert len({row.partition for row in rows if row.key == b"a"}) == 1, "the key chooses the partition"
    assert len({(row.epoch, row.record) for row in rows}) == 6, "equal records have different names"
    assert len({row.flow for row in rows}) == 1
    named = topic(spark, broker, "named").collect()
    assert sorted(bytes(row.value) for row in named) == sorted(f"[{a}]".encode() for a in "abaaac")
    assert all(row.key.decode() == row.record for row in named)
    assert ts.kafka.drop_repeats(topic(spark, broker, "keyed")).count() == 6


@pytest.mark.campaign
def test_a_file_of_sql_keeps_a_table_of_the_messages(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    sql = f"""
    CREATE TABLE payments (account string, amount bigint) USING kafka OPTIONS (
      'kafka.bootstrap.servers' '{broker.servers}', 'subscribe' 'paid', 'startingOffsets' 'earliest');
    CREATE MATERIALIZED VIEW totals LOCATION '{tmp_path}/totals' AS
    SELECT account, sum(amount) AS total FROM payments WHERE amount < 100 GROUP BY account"""
    totals = []
    for rows in ([("a", 1), ("b", 2), ("a", 300)], [("a", 3), ("c", 4)]):
        send(spark, broker, "paid", rows, PAYMENTS)
        (query,) = read_sql(sql).start(
            spark, checkpoint=tmp_path / "check", tell=lambda _: None, trigger="available_now"
        )
        query.await_termination()
        totals.append(rows_of(tmp_path / "totals", "account", "total"))
    assert totals == [[("a", 1), ("b", 2)], [("a", 4), ("b", 2), ("c", 4)]]


def in_brackets(row: Column) -> Column:
    return concat(lit("["), row["account"], lit("]"))


LOCAL = datetime.fromisoformat("1969-07-20T20:17:40.999999")
DAY, AT = date(1, 2, 3), LOCAL.replace(tzinfo=timezone.utc)
NESTED = [{"a": None, "b": 'x"'}, None], {"é\n": 1e-5, "none": None}
AWKWARD = [
    (
        'a "quoted" \\ word',
        1,
        -(2**63),
        1.5,
        0.1,
        True,
        DAY,
        AT,
        LOCAL,
        Decimal("1E-7"),
        *NESTED,
    ),
    ("".join(map(chr, range(1, 128))) + "é\u2028\U0001f600", None, 2**63 - 1, 1e10, 1e-5, False, *[None] * 6),
    ("", -1, 0, -0.0, float("nan"), None, DAY, None, LOCAL, Decimal("-12345.6789"), [], {}),
    (*[None] * 7, AT, *[None] * 4),
    *[("equal", 7, 7, float("-inf"), float("inf"), True, DAY, AT, None, Decimal(0), [], {})] * 2,
]
COLUMNS = (
    '`the "word"` string, n int, long long, real double, single float, flag boolean, day date, at timestamp, '
    "local timestamp_ntz, paid decimal(12, 7), list array<struct<a: int, b: string>>, of map<string, double>"
)


@pytest.mark.campaign
def test_both_writers_write_the_same_messages(
    spark: SparkSession,
    broker: Broker,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    found = []
    keys = [None, 'the "word"', "real", "flag", "at", "paid"][
        :: 1 if request.config.getoption("--campaign") else 2
    ]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    for side, other in (("client", "_messages"), ("spark", "_produce")):
        flow = ts.Dataflow(side)
        rows = flow.input("rows", COLUMNS)
        for key in keys:
            rows.to_kafka(f"{side}-{keys.index(key)}", broker.servers, key=key, name=f"by {key}")
        rows.send(AWKWARD)
        if side == "spark":
            monkeypatch.setattr(KafkaSink, "_producer", lambda _: None)
        with monkeypatch.context() as only:
            only.delattr(KafkaSink, other)
            flow.start(session, checkpoint=checkpoint + side, trigger="available_now").await_termination()
        columns = "partition", "epoch", "record", "key", "value"
        topics = [topic(spark, broker, f"{side}-{n}").select(*columns).collect() for n in range(len(keys))]
        found.append([sorted(map(tuple, rows)) for rows in topics])

    assert found[0] == found[1]
    assert all(len(rows) == len(AWKWARD) for rows in found[0])


@pytest.mark.campaign
def test_an_epoch_of_many_small_records_is_one_of_the_client(
    spark: SparkSession, broker: Broker, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 101_000  # more than a client's queue holds by default
    flow = ts.Dataflow("many")
    rows = flow.input("rows", "n int")
    rows.to_kafka("many", broker.servers)
    rows.send({"n": list(range(many))})
    monkeypatch.delattr(KafkaSink, "_messages")
    flow.start(spark, checkpoint=checkpoint, trigger="available_now").await_termination()
    assert topic(spark, broker, "many").count() == many


def test_a_broker_is_killed_and_comes_back(spark: SparkSession, broker: Broker, checkpoint: str) -> None:
    flow = ts.Dataflow("numbers")
    numbers = flow.input("numbers", "n long", epochs="manual")
    numbers.to_kafka("interrupted", broker.servers, name="out")
    query = flow.start(spark, checkpoint=checkpoint)
    for epoch in range(4):
        numbers.send([10 * epoch + i for i in range(10)])
        numbers.advance_to(epoch + 1)
        if epoch == 1:
            query.wait_for(epoch=0)
            broker.kill()  # while epoch 1 is written, or before
    broker.start()
    query.wait_for(epoch=3)
    query.stop()

    read = ts.kafka.drop_repeats(topic(spark, broker, "interrupted"))
    rows = read.select("epoch", expr("cast(value AS string)").alias("value")).collect()
    assert Counter((row.epoch, json.loads(row.value)["n"]) for row in rows) == Counter(
        (epoch, 10 * epoch + i) for epoch in range(4) for i in range(10)
    )


@pytest.mark.campaign
def test_a_driver_is_killed_between_kafka_and_its_checkpoint(
    spark: SparkSession, broker: Broker, checkpoint: str
) -> None:
    sent = [(f"account {n % 3}", n) for n in range(30)]
    send(spark, broker, "transactions", sent[:20], PAYMENTS)
    program = [sys.executable, "-m", "tests.kafka.killed", broker.servers, checkpoint]
    killed = subprocess.run(program, env=os.environ, capture_output=True, text=True, check=False, timeout=200)
    assert killed.returncode == -9, killed.stderr
    send(spark, broker, "transactions", sent[20:], PAYMENTS)
    flow = summed(broker, payments(spark, broker, "transactions"), "account-totals")
    flow.start(spark, checkpoint=checkpoint, trigger="available_now").await_termination()

    assert topic(spark, broker, "account-totals").count() > 6, "the first epoch is there twice"
    assert once(spark, broker, "account-totals") == totals(sent[:20], sent)
    assert in_a_stream(spark, broker, "account-totals", checkpoint) == totals(sent[:20], sent)


def totals(*epochs: list[tuple[str, int]]) -> Counter[Any]:
    result: Counter[Any] = Counter()
    for epoch, rows in enumerate(epochs):
        sums: Counter[str] = Counter()
        for account, amount in rows:
            sums[account] += amount
        result.update((epoch, account, total) for account, total in sums.items())
    return result


def once(spark: SparkSession, broker: Broker, name: str) -> Counter[Any]:
    read = ts.kafka.drop_repeats(topic(spark, broker, name))
    rows = read.select("epoch", expr("cast(value AS string)").alias("value")).collect()
    return Counter((row.epoch, *json.loads(row.value).values()) for row in rows)


def in_a_stream(spark: SparkSession, broker: Broker, name: str, checkpoint: str) -> Counter[Any]:
    """The same by a flow, in many small micro-batches."""
    one = {**options(broker, name), "maxOffsetsPerTrigger": "4"}
    frame = ts.kafka.origin(spark.readStream.format("kafka").options(**one).load())
    columns = ["topic", "partition", "flow", "epoch", "record"]
    flow = ts.Dataflow("read back")
    read = flow.source("totals", frame.select(*columns, col("value").cast("string").alias("value")))
    ts.kafka.drop_repeats(read).select("epoch", "value").capture("out")
    query = flow.start(spark, checkpoint=checkpoint + "-back", trigger="available_now")
    query.await_termination()
    rows = [row for rows in query.captured("out").rows().values() for row in rows]
    return Counter((epoch, *json.loads(value).values()) for epoch, value in rows)


def test_what_cannot_be_written_or_read_is_refused(
    spark: SparkSession, broker: Broker, checkpoint: str
) -> None:
    flow = ts.Dataflow("refused")
    flow.input("x", "n long").to_kafka("nowhere", broker.servers, value=lambda row: row, name="out")
    with pytest.raises(OutputMismatch, match=r"gives a column of struct<n:bigint>, and messages are texts"):
        flow.start(spark, checkpoint=checkpoint)
    with pytest.raises(SchemaError, match="includeHeaders"):
        ts.kafka.origin(spark.range(1))
    with pytest.raises(SchemaError, match=r"no columns \['topic'"):
        ts.kafka.drop_repeats(spark.range(1))
    with pytest.raises(BadArgument, match="the DataFrame is streaming"):
        ts.kafka.drop_repeats(payments(spark, broker, "in"))
