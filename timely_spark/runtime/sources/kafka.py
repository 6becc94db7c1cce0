"""`KafkaSource`: topics of Kafka, by `confluent-kafka`: where partitions begin and end, and their messages.

There are no consumer groups: the flow's own log has the offsets of an epoch, and tasks read exactly these.
"""

from __future__ import annotations

import atexit
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from timely_spark.errors import BadArgument, Where
from timely_spark.runtime.errors import BadTopic
from timely_spark.runtime.sources.messages import Decoder
from timely_spark.runtime.sources.source import JournaledSource

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message

Offsets: TypeAlias = Mapping[str, Sequence[int]]
"""The offset of the next message of each partition, by topic."""

#: What may be asked for beside the values, and the types of these columns.
METADATA = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
}
#: Columns of the stream of messages that cannot be decoded.
QUARANTINED = pa.schema(
    {
        **{name: METADATA[name] for name in ("topic", "partition", "offset", "timestamp", "key")},
        "value": pa.binary(),
        "reason": pa.string(),
    }
)
#: Options of the client that this source sets.
_OWN = {
    "enable.auto.commit": False, "enable.auto.offset.store": False,
    "enable.partition.eof": True, "auto.offset.reset": "error",
}  # fmt: skip
_SECRET = re.compile(r"password|secret|token|key|credential|jaas|oauthbearer\.config", re.IGNORECASE)
#: Ranges with at most so many messages are fetched together; a call of the client gives at most so many.
_TOGETHER = 4096
#: Seconds that one question to the brokers, or one call for messages, takes at most.
_ANSWER, _CALL = 5.0, 0.1
#: Seconds for which a topic may be unknown.
_MISSING = 10.0
#: Seconds between two looks at a watch's end, and at the number of partitions.
_BEAT, _PARTITIONS = 0.05, 10.0


class Range(NamedTuple):
    """The messages of a partition from offset `start` to `end` - 1; not every offset has one."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Topics:
    """Topics, and how their brokers are reached. Credentials are in no text about it."""

    source: str
    where: Where
    names: tuple[str, ...]
    #: those of the client, with "bootstrap.servers"
    options: Mapping[str, Any] = field(repr=False, hash=False)
    #: seconds for which brokers may be silent
    timeout: float = 120.0

    @property
    def brokers(self) -> Brokers:
        """The connections of this process."""
        key = tuple(sorted((name, str(value)) for name, value in self.options.items()))
        if key not in _brokers:
            _brokers[key] = Brokers(self.options)
        return _brokers[key]

    def error(self, what: str, hint: str) -> BadTopic:
        """An error of the source, with the user's line."""
        what = self.without_secrets(what)
        return BadTopic(f"source {self.source!r}: {what}", where=self.where, hint=hint)

    def without_secrets(self, text: str) -> str:
        """A text without the values of options that are secret."""
        for name, value in self.options.items():
            if _SECRET.search(name) and isinstance(value, str) and value:
                text = text.replace(value, "***")
        return text

    def check_options(self) -> None:
        """Check the options, without the brokers.

        Raises:
            BadArgument: the client refuses an option, or the source sets it itself.
        """
        if own := sorted(_OWN.keys() & self.options.keys()):
            msg = f"options: the source sets {own} itself"
            raise BadArgument(msg, where=self.where, hint="leave them out: offsets are in the flow's log.")
        from confluent_kafka import KafkaException

        try:
            self.brokers.describe(())
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            msg = f"options: the client of Kafka refuses them: {self.without_secrets(reason)}"
            hint = 'they are those of librdkafka, such as {"security.protocol": "SASL_SSL"}.'
            raise BadArgument(msg, where=self.where, hint=hint) from None

    def refused(self, topic: str, error: KafkaError) -> BadTopic | None:
        """The error for an answer that waiting does not change; None if waiting may help."""
        from confluent_kafka import KafkaError as Code

        forbidden = {Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED}
        failed = {Code._AUTHENTICATION, Code._SSL, Code.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001
        if error.code() in _missing():
            hint = "check its name; if it was deleted, restore it, or begin with a new checkpoint."
            return self.error(f"there is no topic {topic!r}", hint)
        if error.code() in forbidden | failed:
            hint = "give the credentials in kafka(options=...), and the right to read (Read, Describe)."
            return self.error(f"topic {topic!r} may not be read: {error.str()}", hint)
        return None

    def check_waiting(self, error: KafkaException, seconds: float, most: float) -> None:
        """Check that waiting may help, after so many seconds of this answer to questions; `most` are allowed.

        A topic may be missing for a moment: brokers that have just started do not know all topics.
        """
        topic = error.args[1] if len(error.args) > 1 else ", ".join(self.names)
        last = self.brokers.last_error
        for each in [error.args[0], *([] if last is None else [last])]:
            refused = self.refused(topic, each)
            if refused is not None and (each.code() not in _missing() or seconds > min(most, _MISSING)):
                raise refused from None
        if seconds > most:
            raise self.silent(seconds) from None

    def silent(self, seconds: float) -> BadTopic:
        """The error for brokers that do not answer."""
        last = self.brokers.last_error
        reason = "" if last is None else f": {last.str()}"
        msg = f"brokers {self.options['bootstrap.servers']} have not answered for {seconds:.0f} s{reason}"
        return self.error(msg, "start again when they are back: the same offsets are read then.")

    def lost(self, topic: str, partition: int, start: int, end: int) -> BadTopic:
        """The error for messages that were deleted before they were read."""
        msg = f"offsets {start} to {end - 1} of {topic}[{partition}] were deleted before they were read"
        hint = (
            'kafka(on_lost="skip") goes on with the first message that is left; and let the topic keep '
            "messages for longer (retention.ms, retention.bytes)."
        )
        return self.error(msg, hint)

    def truncated(self, topic: str, partition: int, start: int, end: int) -> BadTopic:
        """The error for a partition that ends before what was read of it."""
        msg = f"{topic}[{partition}] ends at offset {end}, and was read up to offset {start}"
        hint = "it was deleted and created again, or its newest messages were lost: use a new checkpoint."
        return self.error(msg, hint)


def _missing() -> set[int]:
    """The codes for topics that do not exist."""
    from confluent_kafka import KafkaError as Code

    return {Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION}  # noqa: SLF001


class Brokers:
    """The connections of a process to brokers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import AdminClient

        self.last_error: KafkaError | None = None
        # a fetch that waits at the broker delays the next one, of other offsets, until it is answered; and
        # the client would log each of its tries to connect
        defaults = {"group.id": "timely-spark", "fetch.wait.max.ms": 10}
        common = {"log_level": 2, **defaults, **options, "error_cb": self._failed}
        committed = options.get("isolation.level", "read_committed") == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        self._reading = {**common, **_OWN}
        self._admin = AdminClient({name: value for name, value in common.items() if name not in defaults})
        self._idle: list[Consumer] = []

    def _failed(self, error: KafkaError) -> None:
        self.last_error = error

    def consumer(self, **options: Any) -> Consumer:
        """A new consumer."""
        from confluent_kafka import Consumer

        return Consumer({**self._reading, **options})

    def describe(self, topics: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        """Each topic's id and number of partitions.

        Raises:
            KafkaException: of a topic, which is the second argument; or the brokers do not answer.
        """
        from confluent_kafka import KafkaException, TopicCollection

        descriptions = {}
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_ANSWER)
        for topic, answer in asked.items() if topics else ():
            try:
                description = answer.result(2 * _ANSWER)
            except KafkaException as error:
                raise KafkaException(error.args[0], topic) from None
            descriptions[topic] = str(description.topic_id), len(description.partitions)
        return descriptions

    def offsets(self, counts: Mapping[str, int], at: Literal["earliest", "latest"] | int) -> Offsets:
        """The first or the next offset of each partition, or the first one since a time in milliseconds.

        Args:
            counts: by topic the number of its partitions.
        """
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        specs = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
        spec = OffsetSpec.for_timestamp(at) if isinstance(at, int) else specs[at]()
        wanted = {TopicPartition(topic, n): spec for topic, count in counts.items() for n in range(count)}
        offsets = {topic: [-1] * count for topic, count in counts.items()}
        answers = self._admin.list_offsets(wanted, isolation_level=self._isolation, request_timeout=_ANSWER)
        for partition, answer in answers.items():
            try:
                offset = self._checked_offset(answer.result(2 * _ANSWER).offset)
                offsets[partition.topic][partition.partition] = offset
            except KafkaException as error:  # noqa: PERF203 - each answer may be an error
                raise KafkaException(error.args[0], partition.topic) from None
        return offsets

    @staticmethod
    def _checked_offset(offset: int) -> int:
        """An offset; -1 if no message is as new."""
        from confluent_kafka import KafkaError, KafkaException

        if offset < -1:  # this is how the client answers when a broker is lost meanwhile
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return offset

    def fetch(self, topics: Topics, ranges: Sequence[Range], on_lost: str) -> Iterator[list[Message]]:
        """The messages of ranges, in the order of the ranges and their offsets.

        Raises:
            BadTopic: messages are lost, or the brokers do not answer.
        """
        ranges = [each for each in ranges if each.start < each.end]
        if not ranges:
            return
        try:
            consumer = self._idle.pop()
        except IndexError:  # flows of one process share the consumers
            consumer = self.consumer()
        try:
            for group in _groups(ranges):
                yield from _Fetch(topics, consumer, group, on_lost).messages()
            consumer.unassign()
        except BaseException:
            consumer.close()
            raise
        self._idle.append(consumer)

    def close(self) -> None:
        """Close the consumers that are not in use."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


_brokers: dict[Any, Brokers] = {}


@atexit.register
def _close() -> None:
    for brokers in _brokers.values():
        brokers.close()


def _groups(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Large ranges one by one, and small ones together."""
    group: list[Range] = []
    size = 0
    for each in ranges:
        if group and size + each.end - each.start > _TOGETHER:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.end - each.start
    if group:
        yield group


class _Fetch:
    """Fetches the messages of some ranges with a consumer."""

    def __init__(self, topics: Topics, consumer: Consumer, ranges: list[Range], on_lost: str) -> None:
        self._topics, self._consumer, self._on_lost = topics, consumer, on_lost
        self._ends = {(each.topic, each.partition): each.end for each in ranges}
        #: the next offset of each partition that is not complete
        self._next = {(each.topic, each.partition): each.start for each in ranges}

    def messages(self) -> Iterator[list[Message]]:
        """All messages: of several ranges together, because they arrive in any order."""
        if len(self._ends) == 1:
            yield from self._arriving()
            return
        order = {partition: place for place, partition in enumerate(self._ends)}
        messages = [message for some in self._arriving() for message in some]
        yield sorted(messages, key=lambda message: order[message.topic(), message.partition()])

    def _arriving(self) -> Iterator[list[Message]]:
        self._assign()
        heard = time.monotonic()
        while self._next:
            unread = sum(self._ends[partition] - at for partition, at in self._next.items())
            arrived = self._consumer.consume(min(_TOGETHER, unread), _CALL)
            good = [message for message in arrived if message.error() is None]
            messages = [m for m in good if m.offset() < self._ends[m.topic(), m.partition()]]
            if messages:
                yield messages
            lasts = {(m.topic(), m.partition()): m.offset() + 1 for m in good}
            for partition, at in lasts.items():
                self._reached(partition, at)
            for message in arrived:
                if (error := message.error()) is not None:
                    self._answered(message, error)
            if arrived:
                heard = time.monotonic()
            elif (silence := time.monotonic() - heard) > self._topics.timeout:
                raise self._topics.silent(silence)

    def _assign(self) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(*partition, at) for partition, at in self._next.items()])

    def _reached(self, partition: tuple[str, int], at: int) -> None:
        """All messages before the offset `at` have arrived."""
        if partition in self._next:
            self._next[partition] = max(at, self._next[partition])
            if at >= self._ends[partition]:
                del self._next[partition]

    def _answered(self, message: Message, error: KafkaError) -> None:
        """Take note of what is not a message."""
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import TopicPartition

        topic, partition = message.topic() or "", message.partition() or 0
        if error.code() == Code._PARTITION_EOF:  # noqa: SLF001 - so the client names it
            self._reached((topic, partition), message.offset() or 0)
        elif error.code() == Code._AUTO_OFFSET_RESET and (topic, partition) in self._next:  # noqa: SLF001
            at, end = self._next[topic, partition], self._ends[topic, partition]
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER)
            if at >= low:
                raise self._topics.truncated(topic, partition, at, high)
            if self._on_lost == "fail":
                raise self._topics.lost(topic, partition, at, min(low, end))
            self._reached((topic, partition), low)
            self._assign()
        elif refused := self._topics.refused(topic, error):
            raise refused


@dataclass(frozen=True)
class KafkaSource(JournaledSource):
    """A source that reads topics.

    Args:
        topics: the topics.
        decoder: makes columns of values.
        metadata: by what is asked for beside the values (`METADATA`) the column.
        start: where a new flow begins; an integer is a time in milliseconds.
        records_per_epoch: the most messages of a batch; by default all that are there.
        on_bad_record: what becomes of a message that cannot be decoded.
        on_lost: what becomes of messages that were deleted before they were read.
    """

    topics: Topics
    decoder: Decoder
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    start: Literal["earliest", "latest"] | int | Mapping[str, Mapping[int, int]] = "earliest"
    records_per_epoch: int | None = None
    on_bad_record: Literal["fail", "quarantine"] = "fail"
    on_lost: Literal["fail", "skip"] = "fail"

    @property
    def name(self) -> str:
        return self.topics.source

    @property
    def where(self) -> Where:
        return self.topics.where

    @property
    def schema(self) -> pa.Schema:
        """The columns of values, and those of `metadata`."""
        more = [pa.field(column, METADATA[what]) for what, column in self.metadata.items()]
        return pa.schema([*self.decoder.schema, *more])

    def check_exists(self) -> None:
        self.ask(lambda brokers: brokers.describe(self.topics.names))

    def ask(self, question: Callable[[Brokers], Any]) -> Any:
        """The answer to a question, or an error of the source."""
        from confluent_kafka import KafkaException

        began = time.monotonic()
        while True:
            try:
                return question(self.topics.brokers)
            except KafkaException as error:  # noqa: PERF203 - it is asked again
                most = min(self.topics.timeout, 2 * _ANSWER)
                self.topics.check_waiting(error, time.monotonic() - began, most)

    def ends(self) -> Offsets:
        """The present ends of the partitions."""
        counts = self._counts()
        ends: Offsets = self.ask(lambda b: b.offsets(counts, "latest"))
        return ends

    def _counts(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        return {topic: n for topic, (_, n) in self.ask(lambda b: b.describe(self.topics.names)).items()}

    def begin(self) -> Offsets:
        """The offsets with which a new flow begins."""
        counts = self._counts()
        if isinstance(self.start, Mapping):
            start, first = self.start, self.ask(lambda b: b.offsets(counts, "earliest"))
            if wrong := [(t, n) for t, offsets in start.items() for n in offsets if n >= counts[t]]:
                topic, partition = wrong[0]
                what = f"start= names partition {partition} of topic {topic!r}, which has {counts[topic]}"
                raise self.topics.error(what, "partitions are counted from 0.")
            return {t: [start.get(t, {}).get(n, at) for n, at in enumerate(first[t])] for t in counts}
        at = self.start
        if isinstance(at, int):
            # asked first: what arrives meanwhile is not before the end
            ends = self.ask(lambda b: b.offsets(counts, "latest"))
            offsets = self.ask(lambda b: b.offsets(counts, at))
            pairs = {topic: zip(offsets[topic], ends[topic], strict=True) for topic in counts}
            # -1: no message is as new
            return {t: [end if first < 0 else first for first, end in ranges] for t, ranges in pairs.items()}
        return dict(self.ask(lambda b: b.offsets(counts, at)))

    def tables(self, ranges: Sequence[Range]) -> Iterator[pa.Table]:
        """The messages of ranges: `METADATA` as far as the flow reads it, and value binary."""
        names = set(METADATA) if self.on_bad_record == "quarantine" else {"topic", "partition", "offset"}
        names |= {what for what, column in self.metadata.items() if column in self.columns}
        for some in self.topics.brokers.fetch(self.topics, ranges, self.on_lost):
            columns = {what: _COLUMNS[what](some) for what in METADATA if what in names}
            columns["value"] = pa.array([message.value() for message in some], pa.binary())
            yield pa.table(columns)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when a message has arrived, by a thread of its own."""
        ended = threading.Event()
        thread = threading.Thread(
            target=_watch, args=(self.topics, wake, ended), name="timely-kafka", daemon=True
        )
        thread.start()

        def end() -> None:
            ended.set()
            if thread is not threading.current_thread():  # it may be the last that has the wake-up
                thread.join()

        return end


def _headers(messages: list[Message]) -> pa.Array:
    headers: list[Any] = [message.headers() for message in messages]
    return pa.array(
        [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers],
        METADATA["headers"],
    )


def _timestamps(messages: list[Message]) -> pa.Array:
    stamps = [message.timestamp() for message in messages]
    times = np.array([1000 * at for _, at in stamps], np.int64)
    return pa.array(times, mask=np.array([kind == 0 for kind, _ in stamps], bool)).cast(METADATA["timestamp"])


_COLUMNS: dict[str, Callable[[list[Any]], pa.Array]] = {
    "topic": lambda messages: pa.array([m.topic() for m in messages], pa.string()),
    "partition": lambda messages: pa.array([m.partition() for m in messages], pa.int32()),
    "offset": lambda messages: pa.array([m.offset() for m in messages], pa.int64()),
    "timestamp": _timestamps,
    "key": lambda messages: pa.array([m.key() for m in messages], pa.binary()),
    "headers": _headers,
}


def _watch(topics: Topics, wake: Callable[[], None], ended: threading.Event) -> None:
    """Wake at each message that arrives: a fetch waits at the broker for the next one.

    After a message the consumer goes on behind all that the broker had then, so what is read elsewhere is not
    fetched here. A failure here costs only time: readers look by themselves, too.
    """
    from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

    with suppress(KafkaException):
        consumer = topics.brokers.consumer(**{"fetch.message.max.bytes": 1, "fetch.wait.max.ms": 50})
        counts: Mapping[str, tuple[str, int]] = {}
        due = 0.0
        while not ended.is_set():
            if time.monotonic() >= due:
                due = time.monotonic() + _PARTITIONS
                with suppress(KafkaException):
                    described = topics.brokers.describe(topics.names)
                    if described != counts:
                        counts = described
                        pairs = [(topic, n) for topic, (_, count) in counts.items() for n in range(count)]
                        consumer.assign([TopicPartition(*pair, OFFSET_END) for pair in pairs])
                        wake()
            message = consumer.poll(_BEAT)
            if message is None or message.error() is not None:
                continue
            wake()
            at = TopicPartition(message.topic() or "", message.partition() or 0)
            with suppress(KafkaException):
                _, high = consumer.get_watermark_offsets(at, cached=True)
                if high > (message.offset() or 0) + 1:
                    at.offset = high
                    consumer.seek(at)
        consumer.close()
