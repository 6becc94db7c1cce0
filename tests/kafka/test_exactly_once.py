"""From a topic to Delta tables: each message once, whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.kafka.killed_source import totals
from tests.support.broker import Broker

ACCOUNTS = "abc"
#: before which delivery a driver is killed, or after which
KILLS = [(4, "after"), (2, "before")]


def create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(60)


def send(broker: Broker, topic: str, numbers: range) -> None:
    """Payments, of which every seventh is none."""
    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})
    for n in numbers:
        value = (
            b"no payment" if n % 7 == 0 else json.dumps({"account": ACCOUNTS[n % 3], "amount": n}).encode()
        )
        producer.produce(topic, value=value, partition=n % 3)
    assert producer.flush(100) == 0


def check(table: Path, numbers: range) -> None:
    """Each payment is in the tables once, and the last total of each account is their sum."""
    sent = [(ACCOUNTS[n % 3], n) for n in numbers if n % 7]
    payments = DeltaTable(table / "payments").to_pyarrow_table().select(["account", "amount"])
    assert Counter(tuple(row.values()) for row in payments.to_pylist()) == Counter(sent)
    sums: Counter[str] = Counter()
    for account, amount in sent:
        sums[account] += amount
    rows = DeltaTable(table / "totals").to_pyarrow_table()
    last = rows.group_by("account").aggregate([("total", "max")])  # amounts are positive
    assert dict(zip(last["account"].to_pylist(), last["total_max"].to_pylist(), strict=True)) == sums
    bad = DeltaTable(table / "bad").to_pyarrow_table()
    places = list(zip(bad["partition"].to_pylist(), bad["offset"].to_pylist(), strict=True))
    assert sorted(places) == sorted((n % 3, n // 3) for n in numbers if n % 7 == 0)


@pytest.mark.campaign  # in every run test_kafka.py kills a driver and the broker, and docs fill a table
@pytest.mark.parametrize("kills", [1, 2])
def test_each_message_is_in_the_table_once_although_drivers_and_the_broker_are_killed(
    spark: SparkSession, broker: Broker, checkpoint: str, tmp_path: Path, kills: int
) -> None:
    topic = f"payments-to-delta-{kills}"
    create(broker, topic)
    send(broker, topic, range(120))
    for delivery, when in KILLS[:kills]:
        place = [broker.servers, str(tmp_path), checkpoint]
        program = [sys.executable, "-m", "tests.kafka.killed_source", topic, *place, str(delivery), when]
        killed = subprocess.run(
            program, env=os.environ, capture_output=True, text=True, check=False, timeout=250
        )
        assert killed.returncode == -9, killed.stderr

    flow = totals(topic, broker.servers, str(tmp_path), records_per_epoch=30)
    query = flow.start(spark, checkpoint=checkpoint)
    query.wait_for()
    broker.kill()
    broker.start()
    send(broker, topic, range(120, 210))
    query.wait_for()
    check(tmp_path, range(210))
    account = query.audit()["payments"]
    assert (account.unit, account.listed, account.entered, account.quarantined) == ("message", 210, 180, 30)
    assert str(account) == "180 messages, 30 quarantined"
    query.stop()

    manifests = [path.read_bytes() for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert not any(b"bootstrap.servers" in content for content in manifests), "options are in no file"
