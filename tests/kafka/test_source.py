"""`flow.kafka` with a real broker: which messages an epoch has, and what becomes of those it cannot have."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import timely_spark as ts
from tests.support.broker import Broker
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.runtime.errors import BadRecord, BadTopic
from timely_spark.runtime.sources import kafka, kafka_reader
from timely_spark.runtime.sources.kafka import KafkaSource
from timely_spark.runtime.sources.kafka_reader import KafkaReader
from timely_spark.runtime.sources.present import present
from timely_spark.runtime.storage.files import Files

SECRET = "open sesame"
_numbers = itertools.count()


class Topic:
    """A topic of its own, and what a test does to it."""

    def __init__(self, servers: str, partitions: int) -> None:
        self.servers, self.name = servers, f"topic-{next(_numbers)}"
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self.create(partitions)

    def create(self, partitions: int) -> None:
        self.admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result(60)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(60)

    def send(self, *values: bytes | None, partition: int = 0, **more: Any) -> None:
        for value in values:
            self.producer.produce(self.name, value=value, partition=partition, **more)
        assert self.producer.flush(60) == 0

    def delete_before(self, offset: int, partition: int = 0) -> None:
        (answer,) = self.admin.delete_records([TopicPartition(self.name, partition, offset)]).values()
        answer.result(60)


@pytest.fixture
def topic(broker: Broker) -> Callable[..., Topic]:
    return lambda partitions=1: Topic(broker.servers, partitions)


class Reading:
    """What Spark does with a source, in this process: its log of offsets, and restarts."""

    def __init__(self, of: Topic, **arguments: Any) -> None:
        self.of, self.files = of, Files(tempfile.mkdtemp())
        self.offsets: list[dict[str, Any]] = []
        self.restart(**arguments)

    def restart(self, **arguments: Any) -> None:
        flow = ts.Dataflow("reads")
        self.stream = flow.kafka("in", self.of.name, self.of.servers, **arguments)
        source: Any = flow.frames["in"]
        self.source: KafkaSource = replace(source, columns=tuple(self.stream.schema.names), tasks=2)
        log = SimpleNamespace(files=self.files, check_owner=lambda: None)
        self.told = mock.Mock()
        context: Any = SimpleNamespace(
            log=log,
            reporting=nullcontext,
            log_message=self.told,
            read_offsets={},
            continued=-1,
            resident=False,
        )
        self.reader = KafkaReader(context, self.source, lambda _: 0)
        if not self.offsets:
            self.offsets.append(self.reader.initial_offset())

    def poll(self) -> bool:
        """Whether there is a next epoch."""
        end = json.loads(json.dumps(self.reader.latest_offset(self.offsets[-1])))
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def rows(self, epoch: int = -1) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows of an epoch, by default the last one, and what is quarantined."""
        ends = self.offsets[1:][epoch], self.offsets[:-1][epoch]
        bad: list[pa.Table] = []
        good = [
            row
            for part in self.reader.shares(ends[1], ends[0])
            for batch in self.reader._rows(pickle.loads(pickle.dumps(part)).ranges, bad)
            for row in batch.to_pylist()
        ]
        return good, [row for table in bad for row in table.to_pylist()]


def record(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.slow
def test_values_and_metadata_of_json_and_what_cannot_be_decoded(topic: Callable[..., Topic]) -> None:
    of = topic(2)
    of.send(record(a=1, more=[]), None, b"{", partition=0, key=b"k", timestamp=5000)
    of.send(
        record(a=2), record(a="x"), b'{"a": 1} {"a": 2}', b'{\n"a": 3}', partition=1, headers=[("h", b"v")]
    )
    arguments = {
        "schema": "a long",
        "metadata": {"partition": "p", "offset": "o", "key": "k", "headers": "h"},
    }
    reading = Reading(of, **arguments, on_bad_record="quarantine")
    assert reading.stream.schema.names == ["a", "p", "o", "k", "h"]
    assert reading.poll()
    rows, bad = reading.rows()
    headers = [{"key": "h", "value": b"v"}]
    assert [tuple(row.values()) for row in rows] == [
        (1, 0, 0, b"k", None),
        (None, 0, 1, b"k", None),
        (2, 1, 0, None, headers),
        (3, 1, 3, None, headers),
    ]
    assert [(row["partition"], row["offset"], row["value"]) for row in bad] == [
        (0, 2, b"{"),
        (1, 1, b'{"a": "x"}'),
        (1, 2, b'{"a": 1} {"a": 2}'),
    ]
    assert bad[0]["timestamp"] == datetime.fromtimestamp(5, timezone.utc)
    assert all(row["reason"] for row in bad)
    assert reading.rows() == (rows, bad), "a repeated epoch is the same"

    reading.restart(**arguments)
    with pytest.raises(
        BadRecord, match=r"offset 2 of topic-\d+\[0\] cannot be decoded: .*\nHint: .*quarantine"
    ):
        reading.rows()


def test_values_of_avro_and_bytes(topic: Callable[..., Topic]) -> None:
    of, schema = topic(), {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}

    def encoded(a: int) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, {"a": a})
        return file.getvalue()

    values = [encoded(-5), b"\xff" * 20, encoded(1 << 40), encoded(7) + b"x"]
    of.send(*values)
    reading = Reading(of, format="avro", schema=json.dumps(schema), on_bad_record="quarantine")
    reading.poll()
    rows, bad = reading.rows()
    assert [row["a"] for row in rows] == [-5, 1 << 40]
    assert [row["offset"] for row in bad] == [1, 3]
    plain = Reading(of)
    plain.poll()
    assert plain.rows() == ([{"value": value} for value in values], [])


def test_epochs_have_their_offsets_whatever_arrives_later_and_whoever_reads(
    topic: Callable[..., Topic],
) -> None:
    of = topic(3)
    sent: list[bytes] = []

    def send(number: int, partition: int) -> None:
        values = [b"%d" % n for n in range(len(sent), len(sent) + number)]
        sent.extend(values)
        of.send(*values, partition=partition)

    send(6000, 0)
    send(10, 1)
    reading = Reading(of, records_per_epoch=2500)
    first = []
    while reading.poll():
        first.append(reading.rows())
        send(1 if len(sent) < 6020 else 0, 2)
    assert [len(rows) for rows, _ in first[:2]] == [2500, 2500]
    assert max(len(rows) for rows, _ in first) == 2500
    reading.restart(records_per_epoch=1)
    assert [reading.rows(epoch) for epoch in range(len(first))] == first, "another process reads the same"
    assert sorted(row["value"] for rows, _ in first for row in rows) == sorted(sent)
    send(3, 1)
    assert reading.poll()
    assert len(reading.rows()[0]) == 1, "a new limit counts from the next epoch on"


def test_where_a_flow_begins_is_decided_once(topic: Callable[..., Topic]) -> None:
    of = topic(2)
    of.send(b"old", timestamp=1000)
    of.send(b"new", timestamp=3000)
    starts: dict[str, Any] = {
        "latest": [],
        "earliest": [b"old", b"new"],
        "1970-01-01T00:00:02+00:00": [b"new"],
        "2100-01-01T00:00:00+00:00": [],
    }
    readings = [Reading(of, start=start) for start in starts]
    readings += [
        Reading(of, start=datetime.fromtimestamp(2, timezone.utc)),
        Reading(of, start={of.name: {0: 1}}),
    ]
    of.send(b"later", partition=1)
    for reading, before in zip(readings, [*starts.values(), [b"new"], [b"new"]], strict=True):
        reading.offsets.clear()  # killed before its first epoch
        reading.restart(start="latest")
        reading.poll()
        assert [row["value"] for row in reading.rows()[0]] == [*before, b"later"]


def test_a_partition_that_a_topic_does_not_have_is_no_beginning(topic: Callable[..., Topic]) -> None:
    of = topic(2)
    with pytest.raises(BadTopic, match=r"start= names partition 2 of topic '.*', which has 2"):
        Reading(of, start={of.name: {1: 0, 2: 5}})


def test_messages_that_were_deleted_are_named_and_may_be_skipped(
    topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = topic()
    of.send(*(b"%d" % n for n in range(10)))
    reading = Reading(of, records_per_epoch=4)
    reading.poll()
    of.delete_before(6)
    lost = rf"offsets {{}} to {{}} of {of.name}\[0\] were deleted .*\nHint: .*on_lost=\"skip\""
    with pytest.raises(BadTopic, match=lost.format(0, 3)):
        reading.rows()  # planned, and not read yet
    reading.restart()
    with pytest.raises(BadTopic, match=lost.format(4, 5)):
        reading.poll()
    reading.restart(on_lost="skip")
    assert reading.rows() == ([], [])
    assert reading.poll()
    assert [row["value"] for row in reading.rows()[0]] == [b"6", b"7", b"8", b"9"]
    assert "offsets 4 to 5" in str(reading.told.call_args)
    of.delete_before(10)
    monkeypatch.setattr(kafka_reader, "_DESCRIBED", 0.0)
    of.send(b"last")
    assert reading.poll()
    assert [row["value"] for row in reading.rows()[0]] == [b"last"]


def test_new_partitions_are_read_and_topics_that_are_gone_are_errors(
    topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_DESCRIBED", 0.0)
    monkeypatch.setattr(kafka, "_MISSING", 0.5)
    of = topic()
    of.send(b"a")
    reading = Reading(of)
    assert reading.poll()
    of.admin.create_partitions([NewPartitions(of.name, 3)])[of.name].result(60)
    of.producer = Producer({"bootstrap.servers": of.servers})  # the other one knows one partition
    wait_until(lambda: of.send(b"b", partition=2) or True, ignoring=KafkaException)
    wait_until(reading.poll)
    assert [row["value"] for row in reading.rows()[0]] == [b"b"]
    assert reading.told.call_args.args[-2:] == (of.name, 2)
    assert reading.offsets[-1]["offsets"] == {of.name: [1, 0, 1]}

    of.delete()
    with pytest.raises(BadTopic, match=rf"there is no topic '{of.name}'.*\nHint: "):
        wait_until(reading.poll)
    with pytest.raises(BadTopic, match="there is no topic"):
        reading.source.check_exists()
    wait_until(lambda: of.create(3) or True, ignoring=Exception)

    def anew() -> bool:
        with pytest.raises(BadTopic) as failed:  # until all brokers know of it, there is no such topic
            wait_until(reading.poll)
        return "was deleted and created again" in str(failed.value)

    wait_until(anew)


def test_of_transactions_only_what_is_committed_is_read(topic: Callable[..., Topic]) -> None:
    of = topic()
    writer = Producer({"bootstrap.servers": of.servers, "transactional.id": of.name, "log_level": 0})
    writer.init_transactions(60)
    reading = Reading(of)
    for commits in (True, False, True, False):
        writer.begin_transaction()
        writer.produce(of.name, value=b"%d" % commits)
        writer.flush(60)
        assert not reading.poll(), "a transaction that is open"
        if commits:
            writer.commit_transaction(60)
        else:
            writer.abort_transaction(60)
        wait_until(reading.poll)
        assert [row["value"] for row in reading.rows()[0]] == [b"1"] * commits
    assert [len(reading.rows(epoch)[0]) for epoch in range(4)] == [1, 0, 1, 0]


def test_available_now_reads_what_was_there(topic: Callable[..., Topic]) -> None:
    of = topic(2)
    of.send(b"a")
    reading = Reading(of)
    reading.reader.fix_end()
    covers = present(reading.source, "in", reading.files)
    of.send(b"b", b"c", partition=1)
    assert not covers(reading.offsets[-1])
    assert reading.poll()
    assert covers(reading.offsets[-1])
    assert not reading.poll()
    assert [row["value"] for row in reading.rows()[0]] == [b"a"]
    assert not present(reading.source, "in", reading.files)(reading.offsets[-1])


@pytest.mark.campaign
@pytest.mark.slow
def test_a_broker_that_is_away_is_waited_for_and_then_the_query_fails(
    topic: Callable[..., Topic], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = topic()
    of.send(b"a", b"b")
    reading = Reading(of, records_per_epoch=1, timeout="90s")
    reading.poll()
    monkeypatch.setattr(kafka, "_ANSWER", 1.0)
    broker.kill()
    try:
        assert not reading.poll()
        assert not reading.poll()
        assert reading.told.call_count == 1, "said once"
        impatient = replace(reading.source, topics=replace(reading.source.topics, timeout=0.5))
        with pytest.raises(BadTopic, match=r"have not answered for \d+ s"):
            impatient.check_exists()
        with pytest.raises(BadTopic, match=r"have not answered for \d+ s"):
            list(impatient.tables(reading.reader.shares(*reading.offsets[-2:])[0].ranges))
        with ThreadPoolExecutor(1) as thread:
            planned = thread.submit(reading.rows)
            time.sleep(1.0)
            broker.start()
            assert [row["value"] for row in planned.result()[0]] == [b"a"], "what is planned waits"
        wait_until(reading.poll)
        assert [row["value"] for row in reading.rows()[0]] == [b"b"]
    except BaseException:
        broker.kill()
        broker.start()
        raise


def test_a_message_wakes(topic: Callable[..., Topic]) -> None:
    of = topic(2)
    of.send(*[b"before"] * 1000)
    reading, woken = Reading(of), threading.Event()
    threads = {*threading.enumerate()}
    end = reading.source.watch(woken.set)
    woken.wait(60)  # its own start wakes, too
    time.sleep(1.0)  # until it knows where the partitions end
    for partition in (0, 1, 0):
        woken.clear()
        of.send(*[b"x"] * 50, partition=partition)
        assert woken.wait(60)
    end()
    assert not any(each.name == "timely-kafka" for each in {*threading.enumerate()} - threads)


def test_passwords_are_in_no_text(topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_ANSWER", 1.0)
    of = topic()
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ali"}
    options |= {"sasl.password": SECRET}
    flow = ts.Dataflow("secret")
    stream = flow.kafka("in", of.name, of.servers, options=options, timeout=1)
    stream.capture("out")
    source: Any = flow.frames["in"]
    with pytest.raises(BadTopic) as failed:
        source.check_exists()
    with pytest.raises(BadArgument) as refused:
        flow.kafka(
            "other", of.name, of.servers, options={**options, "ssl.key.password": SECRET, "no.such": SECRET}
        )
    described = json.dumps(flow.compile().described())
    texts = [repr(source), repr(flow), str(flow.explain()), str(failed.value), str(refused.value), described]
    assert [text for text in texts if SECRET in text] == []
    assert "no.such" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"topics": []}, BadArgument, "topics"),
        ({"servers": ""}, BadArgument, "servers"),
        ({"format": "xml"}, BadArgument, "format"),
        ({"format": "json"}, BadArgument, "schema"),
        ({"format": "bytes", "schema": "a long"}, BadArgument, "schema"),
        ({"format": "avro", "schema": "{}"}, BadArgument, "not a schema of Avro"),
        ({"format": "avro", "schema": '{"type": "long"}'}, BadArgument, "record"),
        ({"metadata": ["value"]}, BadArgument, "metadata"),
        ({"metadata": {"key": "value"}}, SchemaError, "value"),
        ({"start": "last week"}, BadArgument, "start"),  # Spark knows a yesterday
        ({"start": {"other": {0: 1}}}, BadArgument, "start"),
        ({"start": {"t": {0: -1}}}, BadArgument, "start"),
        ({"on_bad_record": "drop"}, BadArgument, "on_bad_record"),
        ({"on_lost": True}, BadArgument, "on_lost"),
        ({"timeout": "soon"}, BadArgument, "timeout"),
        ({"records_per_epoch": 0}, BadArgument, "records_per_epoch"),
        ({"options": {"group.idd": "x"}}, BadArgument, "group.idd"),
        ({"options": {"auto.offset.reset": "latest"}}, BadArgument, "sets"),
        ({"options": {"bootstrap.servers": "x"}}, BadArgument, "servers"),
    ],
)
def test_what_a_flow_cannot_read_is_refused_when_it_is_built(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    given: dict[str, Any] = {"topics": "t", "servers": "127.0.0.1:1", **arguments}
    with pytest.raises(error, match=words) as refused:
        ts.Dataflow("refused").kafka("in", given.pop("topics"), given.pop("servers"), **given)
    assert "test_source.py" in str(refused.value)
    assert "Hint: " in str(refused.value)


def wait_until(condition: Callable[[], object], *, ignoring: type[Exception] | tuple[()] = ()) -> None:
    until = time.monotonic() + 100
    while True:
        try:
            if condition():
                return
        except ignoring:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)
