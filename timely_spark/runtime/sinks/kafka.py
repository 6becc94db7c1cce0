"""`KafkaSink`: writes each epoch to a topic, at least once; headers say which records are repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timely_spark.graph.quoting import identifier, literal
from timely_spark.libraries.kafka import HEADERS
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks.delivery import spark_schema
from timely_spark.runtime.sinks.sink import Output, Parts, Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass
class KafkaSink(Sink):
    """Writes the records of each epoch by Spark's own Kafka writer, which is at least once.

    A record's name is the same when its epoch is written again, in whatever order its records come then: a
    hash of key and value, and a number that tells the epoch's records with this hash apart. A record and its
    repeats are in the same partition: its key decides, and without a key, its name. The fields are the
    arguments of `Stream.to_kafka`.
    """

    topic: str
    servers: str
    key: str | None
    value: Callable[[Column], Column] | None
    options: Mapping[str, str]
    _flow: str = ""

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Check that the session can write to Kafka, and that the messages are texts or bytes."""
        self._flow = f"{identity}/{output.name}"
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
        empty = session.createDataFrame([], spark_schema(output.schema))
        kind = self._encoded(empty).schema["value"].dataType.simpleString()
        if kind not in {"string", "binary"}:
            msg = f"{where}: value(...) gives a column of {kind}, and messages are texts or bytes."
            raise OutputMismatch(msg, hint="encode it, for example with to_json, to_avro or to_protobuf.")

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write the epoch; returns when Kafka has acknowledged all records."""
        for part in parts:
            if part.is_empty:
                continue
            frame = part.frame(session)
            # in one partition a window needs no exchange
            frame = frame if part.is_large else frame.coalesce(1)
            messages = self._messages(self._encoded(frame), part.epoch)
            options = {**self.options, "kafka.bootstrap.servers": self.servers, "topic": self.topic}
            messages.write.format("kafka").options(**options).save()

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
        hashed = encoded.selectExpr("key", "cast(value AS binary) AS value", "xxhash64(key, value) AS hash")
        named = hashed.selectExpr(
            "key", "value", f"concat_ws('-', hex(hash), row_number() OVER ({equal_records})) AS record"
        )
        return named.selectExpr(
            "coalesce(key, cast(record AS binary)) AS key", "value", f"array({headers}) AS headers"
        )
