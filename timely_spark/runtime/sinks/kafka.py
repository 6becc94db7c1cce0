"""`KafkaSink`: writes each epoch to a topic, at least once; headers say which records are repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from timely_spark.graph.quoting import identifier, literal
from timely_spark.libraries.kafka import HEADERS
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks.delivery import to_frame
from timely_spark.runtime.sinks.messages import COLUMNS, json_type, messages_of, record_names
from timely_spark.runtime.sinks.sink import Output, Parts, Sink
from timely_spark.state.hashing import hashes

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from pyspark.sql import Column, DataFrame, SparkSession

#: Options of Spark's writer that `confluent-kafka` has by the same names and with the same values.
_SHARED = {"acks", "client.id", "compression.type", "delivery.timeout.ms", "linger.ms"}
#: Those that differ from the client's own defaults are the defaults of Spark's writer.
_CLIENT = {
    "partitioner": "murmur2",
    "enable.idempotence": True,
    "delivery.timeout.ms": 120_000,
    "linger.ms": 0,
    "log_level": 2,
    # an epoch's bytes are bounded, and all its messages wait here at once
    "queue.buffering.max.messages": 0,
}
#: Seconds until the brokers must have answered the driver once.
_ANSWER = 5.0
#: The client of this process for some options; None means that the brokers have not answered it.
_producers: dict[frozenset[tuple[str, str]], Producer | None] = {}


@dataclass
class KafkaSink(Sink):
    """Writes the records of each epoch at least once.

    The driver writes a small epoch as JSON by `confluent-kafka`, where that is installed, reaches the brokers
    and has all the options. Spark's own Kafka writer, a job that takes longer than such an epoch, writes all
    others: also those with columns of bytes, or in a form of the user's. The messages are the same.

    A record's name is the same when its epoch is written again, in whatever order its records come then, and
    by either writer: H of key and value, and a number among the epoch's records with this hash. A
    record and its repeats are in the same partition: its key decides, and without a key, its name. The fields
    are the arguments of `Stream.to_kafka`.
    """

    topic: str
    servers: str
    key: str | None
    value: Callable[[Column], Column] | None
    options: Mapping[str, str]
    _flow: str = ""
    _zone: str = "UTC"
    #: the type of records whose JSON the driver may write; None if Spark writes all messages
    _type: pa.DataType | None = None

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Check that the session can write to Kafka, and that the messages are texts or bytes."""
        self._flow = f"{identity}/{output.name}"
        self._zone = session.conf.get("spark.sql.session.timeZone") or self._zone
        self._type = json_type(output.schema, self._zone) if self.value is None else None
        where = f"topic {self.topic!r} of output {output.name!r}"
        options = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        try:
            session.read.format("kafka").options(**options).load().schema  # noqa: B018 - Connect asks the server here
        except Exception as error:
            if "find" not in str(error).lower():  # DATA_SOURCE_NOT_FOUND, or a text of Connect's
                raise
            msg = f"{where}: this Spark session has no Kafka connector."
            hint = "timely_spark.configure(SparkSession.builder, kafka=True)."
            raise OutputMismatch(msg, hint=hint) from error
        empty = to_frame(session, output.schema.empty_table())
        kind = self._encoded(empty).schema["value"].dataType.simpleString()
        if kind not in {"string", "binary"}:
            msg = f"{where}: value(...) gives a column of {kind}, and messages are texts or bytes."
            raise OutputMismatch(msg, hint="encode it, for example with to_json, to_avro or to_protobuf.")

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write the epoch; returns when Kafka has acknowledged all records."""
        for part in parts:
            if part.is_empty:
                continue
            if part.is_large or self._type is None or (producer := self._producer()) is None:
                frame = part.frame(session)
                # in one partition a window needs no exchange
                encoded = self._encoded(frame if part.is_large else frame.coalesce(1))
                options = {**self.options, "kafka.bootstrap.servers": self.servers, "topic": self.topic}
                self._messages(encoded, part.epoch).write.format("kafka").options(**options).save()
            else:
                messages = messages_of(part.table, self.key, self._type, self._zone)
                self._produce(producer, messages, str(part.epoch).encode())

    def _produce(self, producer: Producer, messages: pa.Table, epoch: bytes) -> None:
        from confluent_kafka import KafkaException

        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            errors.extend([] if error is None else [error])

        columns = [column.to_pylist() for column in messages.columns]
        for key, value, name in zip(*columns, record_names(messages), strict=True):
            record = name.encode()
            of = {"flow": self._flow.encode(), "epoch": epoch, "record": record}
            headers = [(header, of[what]) for what, header in HEADERS.items()]
            producer.produce(
                self.topic, value, record if key is None else key, on_delivery=delivered, headers=headers
            )
        producer.flush()
        if errors:
            _producers.clear()  # after some errors a client sends nothing any more
            raise KafkaException(errors[0])

    def _producer(self) -> Producer | None:
        """The client of this process; None if Spark's writer is to be used."""
        options = {name.removeprefix("kafka."): text for name, text in self.options.items()}
        if not {*options} <= _SHARED:
            return None
        options["bootstrap.servers"] = self.servers
        if (key := frozenset(options.items())) not in _producers:
            _producers[key] = None
            with suppress(Exception):  # not installed; refused; not reached
                from confluent_kafka import Producer

                producer = Producer({**_CLIENT, **options})
                producer.list_topics(timeout=_ANSWER)
                _producers[key] = producer
        return _producers[key]

    def _encoded(self, frame: DataFrame) -> DataFrame:
        """The keys and values of the messages."""
        from pyspark.sql.functions import col, lit, struct, to_json

        row = struct(*(col(identifier(column)) for column in frame.columns))
        value = to_json(row, {"ignoreNullFields": "false"}) if self.value is None else self.value(row)
        key = lit(None) if self.key is None else col(identifier(self.key))
        if self.key is not None and frame.schema[self.key].dataType.simpleString() != "binary":
            key = key.cast("string")
        return frame.select(key.cast("binary").alias("key"), value.alias("value"))

    def _messages(self, encoded: DataFrame, epoch: int) -> DataFrame:
        """The messages of an epoch, with their headers."""
        equal_records = "PARTITION BY hash ORDER BY key, value"
        texts = {"flow": literal(self._flow), "epoch": literal(str(epoch)), "record": "record"}
        headers = ", ".join(
            f"struct({literal(header)} AS key, cast({texts[name]} AS binary) AS value)"
            for name, header in HEADERS.items()
        )
        binary = encoded.selectExpr("key", "cast(value AS binary) AS value")
        hashed = binary.mapInArrow(_hashed, "key binary, value binary, hash long")
        named = hashed.selectExpr(
            *COLUMNS, f"concat_ws('-', hex(hash), row_number() OVER ({equal_records})) AS record"
        )
        return named.selectExpr(
            "coalesce(key, cast(record AS binary)) AS key", "value", f"array({headers}) AS headers"
        )


def _hashed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashed = hashes(pa.table(batch), COLUMNS).view(np.int64)
        yield pa.record_batch([*batch.columns, pa.array(hashed)], [*COLUMNS, "hash"])
