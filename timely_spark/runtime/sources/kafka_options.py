"""A user's options for topics, checked, as a `KafkaSource`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from timely_spark.errors import BadArgument, SchemaError
from timely_spark.graph import as_schema, caller, integer, refuse, seconds, word
from timely_spark.runtime.sources.avro import Avro
from timely_spark.runtime.sources.begin import MILLISECOND, UNIX_EPOCH, read_time
from timely_spark.runtime.sources.kafka import METADATA, KafkaSource, Topics
from timely_spark.runtime.sources.messages import Bytes, Decoder, Json


def kafka_source(
    name: str,
    topics: Any,
    servers: Any,
    *,
    form: Any,
    schema: Any,
    metadata: Any,
    start: Any,
    records_per_epoch: Any,
    on_bad_record: Any,
    on_lost: Any,
    timeout: Any,
    options: Any,
) -> KafkaSource:
    """The source for the arguments of `Inputs.kafka`, which says what is raised."""
    try:
        import confluent_kafka  # noqa: F401 - the flow would fail with less words
    except ImportError as error:
        msg = "flow.kafka needs the package confluent-kafka"
        raise BadArgument(msg, where=caller(), hint="pip install 'timely-spark[kafka]'.") from error
    names = (topics,) if isinstance(topics, str) else topics
    if not (isinstance(names, Sequence) and names and all(isinstance(n, str) and n for n in names)):
        refuse(topics, what="topics", expected="a text, or a list of texts", hint="name the topics.")
    if not isinstance(servers, str) or not servers:
        refuse(servers, what="servers", expected="a text", hint='as in "host1:9092,host2:9092"')
    word("on_bad_record", on_bad_record, ("fail", "quarantine"), step="kafka")
    word("on_lost", on_lost, ("fail", "skip"), step="kafka")
    if not isinstance(options, Mapping | None):
        hint = 'as in options={"security.protocol": "SSL"}'
        refuse(type(options), what="options", expected="a dict", hint=hint)
    if "bootstrap.servers" in (options or {}):
        msg = "options: bootstrap.servers is given beside servers"
        raise BadArgument(msg, where=caller(), hint="leave it out of the options.")
    decoder = _decoder(form, schema)
    subscribed = Topics(
        name,
        caller(),
        tuple(dict.fromkeys(names)),
        {"bootstrap.servers": servers, **(options or {})},
        seconds("timeout", timeout, above=True),
    )
    subscribed.check_options()
    most = records_per_epoch
    return KafkaSource(
        subscribed,
        decoder,
        _metadata(metadata, decoder.schema),
        _start(start, subscribed.names),
        most if most is None else integer("records_per_epoch", most),
        on_bad_record,
        on_lost,
    )


def _decoder(form: Any, schema: Any) -> Decoder:
    form = form if form is not None else "bytes" if schema is None else "json"
    hint = "read other formats as bytes, and decode them in a step of the flow."
    word("format", form, ("bytes", "json", "avro"), step="kafka", hint=hint)
    if form == "bytes":
        if schema is not None:
            hint = "leave it out: the column is called value."
            refuse(schema, what="schema", expected="None beside format='bytes'", hint=hint)
        return Bytes()
    if schema is None:
        hint = 'as in schema="account string, amount long"' if form == "json" else "give the schema of Avro"
        refuse(schema, what="schema", expected=f"a schema beside format={form!r}", hint=hint)
    return Json(as_schema(schema)) if form == "json" else Avro.of(schema)


def _metadata(metadata: Any, schema: pa.Schema) -> Mapping[str, str]:
    """The name of the column of each thing that is asked for."""
    one = isinstance(metadata, str) or not isinstance(metadata, Mapping | Sequence)
    named = (
        {}
        if one
        else dict(metadata)
        if isinstance(metadata, Mapping)
        else dict(zip(metadata, metadata, strict=True))
    )
    if one or not (named.keys() <= METADATA.keys() and all(isinstance(n, str) for n in named.values())):
        expected = f"some of {', '.join(METADATA)}"
        refuse(metadata, what="metadata", expected=expected, hint='as in metadata=["key", "timestamp"]')
    names = [*schema.names, *named.values()]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        msg = f"metadata={metadata!r}: the messages have columns {twice}, too"
        hint = f'name it otherwise: metadata={{"timestamp": "sent_at"}}, not {twice}.'
        raise SchemaError(msg, where=caller(), hint=hint)
    return named


def _start(start: Any, topics: Sequence[str]) -> Any:
    """The begin of a new flow; a time in milliseconds."""
    if start in ("earliest", "latest"):
        return start
    moment = read_time(start) if isinstance(start, str) else start
    if isinstance(moment, datetime):
        return (moment.astimezone(timezone.utc) - UNIX_EPOCH) // MILLISECOND
    if (
        isinstance(start, Mapping)
        and start.keys() <= {*topics}
        and all(isinstance(offsets, Mapping) for offsets in start.values())
        and all(
            type(n) is int and n >= 0 for offsets in start.values() for pair in offsets.items() for n in pair
        )
    ):
        return {topic: dict(offsets) for topic, offsets in start.items()}
    hint = 'as in start="2026-11-22 08:00:00", or start={"payments": {0: 120, 1: 80}}'
    return refuse(start, what="start", expected="'earliest', 'latest', a time, or offsets", hint=hint)
