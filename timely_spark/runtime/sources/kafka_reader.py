"""`KafkaReader`: which offsets of topics each epoch has, and their messages as packed rows.

Its offset is `{"offsets": {topic: [next offset by partition]}, "ids": {topic: id}}`: the messages before
these offsets have been read. So the log of offsets is the journal: a repeated epoch has the same messages.
Where a new flow begins is in the checkpoint before its first epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.runtime.errors import BadRecord
from timely_spark.runtime.sources.account import write_names
from timely_spark.runtime.sources.kafka import QUARANTINED, KafkaSource, Offsets, Range
from timely_spark.runtime.sources.reader import Offset, Reader
from timely_spark.runtime.storage.files import quoted
from timely_spark.worker import pack_quarantined

#: The fewest and the most messages of a task; fewer only if fewer are new.
_LEAST, _MOST = 2_000, 200_000
#: An estimate of the bytes of a message.
_BYTES = 512
#: Seconds between two looks at the partitions, and at what the brokers have deleted.
_DESCRIBED = 5.0


@dataclass(frozen=True, slots=True)
class MessagesShare:
    """The messages that one task reads; `number` is the same when the batch is read again."""

    number: int
    ranges: Sequence[Range]

    @property
    def size(self) -> int:
        """Bytes to read, as an estimate."""
        return _BYTES * sum(each.end - each.start for each in self.ranges)


class KafkaReader(Reader):
    """Finds what is new by asking the brokers where partitions end."""

    counts, count = "offsets", dict
    source: KafkaSource
    #: With availableNow, where the partitions ended at the start.
    _target: Offsets | None = None
    #: Each topic's id and number of partitions, and when the brokers are asked again.
    _topics: Mapping[str, tuple[str, int]] = {}
    _next_description = 0.0
    #: Since when the brokers do not answer; 0 if they do.
    _silent = 0.0

    def initial_offset(self) -> Offset:
        name = f"topics/{quoted(self._name)}.json"
        files = self.context.log.files
        if (begun := files.json(name)) is not None:
            return begun
        # a run that lost the checkpoint a moment ago may write it, too
        return files.write_once(name, {"offsets": self.source.begin(), "ids": {}})

    def _fix_end(self) -> None:
        self._target = self.source.ends()

    @property
    def limited(self) -> bool:
        return self.source.records_per_epoch is not None

    def _next(self, start: Offset, *, unlimited: bool) -> Offset:
        if (answer := self._asked(start)) is None:
            return start
        begun, ends = answer
        if self._target is not None:
            ends = {
                t: [min(e, x) for e, x in zip(ends[t], self._target.get(t, []), strict=False)] for t in ends
            }
        most = None if unlimited else self.source.records_per_epoch
        newest, ends = ends, epoch_ends(begun, ends, most)
        self._waiting = self.position({"offsets": newest}) - self.position({"offsets": ends})
        if all(list(start["offsets"].get(topic, ())) == at for topic, at in ends.items()):
            return start
        return {
            "offsets": {**start["offsets"], **ends},
            "ids": {t: topic_id for t, (topic_id, _) in self._topics.items()},
        }

    def _asked(self, start: Offset) -> tuple[Offsets, Offsets] | None:
        """The first offsets with messages, and those after the last; None if the brokers do not answer."""
        from confluent_kafka import KafkaException

        topics, brokers = self.source.topics, self.source.topics.brokers
        offsets: Offsets = start["offsets"]
        try:
            described = time.monotonic() >= self._next_description
            if described:
                self._describe(start, brokers.describe(topics.names))
            counts = {topic: count for topic, (_, count) in self._topics.items()}
            begun: Offsets = {
                t: [*offsets.get(t, ()), *[0] * (n - len(offsets.get(t, ())))] for t, n in counts.items()
            }
            if described:
                begun = self._without_lost(begun, brokers.offsets(counts, "earliest"))
            ends = brokers.offsets(counts, "latest")
        except KafkaException as error:
            self._unanswered(error)
            return None
        self._silent, brokers.last_error = 0.0, None
        for topic, partition, at, end in _each(begun, ends):
            if at > end:
                raise topics.truncated(topic, partition, at, end)
        return begun, ends

    def _describe(self, start: Offset, topics: Mapping[str, tuple[str, int]]) -> None:
        """Check that the topics are the same, and look for new partitions."""
        for topic, (topic_id, count) in topics.items():
            identity, number = start["ids"].get(topic), len(start["offsets"].get(topic, ()))
            if (identity is not None and identity != topic_id) or count < number:
                hint = "begin with a new checkpoint, which reads all its messages."
                msg = f"topic {topic!r} was deleted and created again: what was read is of another one"
                raise self.source.topics.error(msg, hint)
            if number < count and count != self._topics.get(topic, ("", 0))[1]:
                text = "source %r: topic %r has %d partitions more, which are read from their first message"
                self.context.log_message(logging.WARNING, text, self._name, topic, count - number)
        self._topics = topics
        self._next_description = time.monotonic() + _DESCRIBED

    def _without_lost(self, begun: Offsets, first: Offsets) -> Offsets:
        """The offsets behind those that the brokers have deleted."""
        for topic, partition, at, low in _each(begun, first):
            if at < low:
                lost = self.source.topics.lost(topic, partition, at, low)
                if self.source.on_lost == "fail":
                    raise lost
                self.context.log_message(logging.WARNING, "%s; they are skipped", lost.message)
                deleted = {
                    f"{topic}[{partition}] offsets {at} to {low - 1}": "were deleted before they were read"
                }
                write_names(self.context.log.files, "lost", self._name, deleted)
        return {t: [max(a, b) for a, b in zip(begun[t], first[t], strict=True)] for t in begun}

    def position(self, offset: Offset) -> int:
        return sum(sum(at) for at in offset["offsets"].values())

    def _unanswered(self, error: Any) -> None:
        """Wait for brokers that do not answer; raise the error after a while."""
        topics, now = self.source.topics, time.monotonic()
        most = topics.timeout if self._target is None else -1.0  # "nothing new" would end the query
        topics.check_waiting(error, now - (self._silent or now), most)
        if not self._silent:
            self._silent = now
            reason = topics.without_secrets(str(error.args[0].str()))
            text = "source %r: the brokers do not answer, and are waited for: %s"
            self.context.log_message(logging.WARNING, text, self._name, reason)

    def shares(self, start: Offset, end: Offset) -> Sequence[MessagesShare]:
        before = self._begins(start, end)["offsets"]
        ranges = [
            Range(topic, partition, (*before.get(topic, ()), *[0] * len(ends))[partition], at)
            for topic, ends in sorted(end["offsets"].items())
            for partition, at in enumerate(ends)
        ]
        parts = shared([each for each in ranges if each.start < each.end], self.source.tasks) or [[]]
        return [MessagesShare(number, part) for number, part in enumerate(parts)]

    def packed(self, share: MessagesShare) -> Iterator[pa.RecordBatch]:
        bad: list[pa.Table] = []
        rows = self._rows(share.ranges, bad)
        yield from self.context.pack(self._name, rows, share.number)
        if bad:
            table = pa.concat_tables(bad)
            packed = pack_quarantined(self.context.plan, self._name, table, share.number)
            yield from self.context.labelled(packed).to_batches()

    def _rows(self, ranges: Sequence[Range], bad: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows of the messages that can be decoded; the others go to `bad`."""
        source = self.source
        wanted = [name for name in source.columns if name in source.decoder.schema.names]
        more = {column: what for what, column in source.metadata.items()}
        for messages in source.tables(ranges):
            values = messages.column("value").combine_chunks()
            decoded = source.decoder.decode(values, wanted)
            good = messages
            if decoded.reasons:
                good = messages.filter(pa.array(decoded.good))
                wrong = messages.filter(pa.array(~decoded.good))
                if source.on_bad_record == "fail":
                    raise self._bad_record(wrong, decoded.reasons[0])
                reasons = pa.array(decoded.reasons, pa.string())
                bad.append(wrong.append_column("reason", reasons).select(QUARANTINED.names).cast(QUARANTINED))
            columns = {
                name: good.column(more[name]) if name in more else decoded.rows.column(name)
                for name in source.columns
            }
            yield from pa.table(columns).combine_chunks().to_batches()

    def _bad_record(self, wrong: pa.Table, reason: str) -> BadRecord:
        topic, partition, offset = (wrong.column(name)[0] for name in ("topic", "partition", "offset"))
        place = f"the message at offset {offset} of {topic}[{partition}]"
        msg = f"source {self._name!r}: {place} cannot be decoded: {reason}"
        hint = (
            'start again with kafka(on_bad_record="quarantine"), which tells of such messages by the stream '
            "`quarantined`; or with types in kafka(schema=...) that fit all messages."
        )
        return BadRecord(msg, where=self.source.where, hint=hint)


def _each(first: Offsets, second: Offsets) -> Iterator[tuple[str, int, int, int]]:
    """Each topic and partition, with its offset in `first` and in `second`."""
    for topic, offsets in first.items():
        for partition, pair in enumerate(zip(offsets, second[topic], strict=False)):
            yield topic, partition, *pair


def epoch_ends(begun: Offsets, ends: Offsets, most: int | None) -> Offsets:
    """The end of an epoch: `ends`, or less, if these are more than `most` messages away.

    Each partition gets a part as large as its part of all messages that wait.

    >>> epoch_ends({"a": [0, 5]}, {"a": [90, 15]}, None), epoch_ends({"a": [0, 5]}, {"a": [90, 15]}, 10)
    ({'a': [90, 15]}, {'a': [9, 6]})
    >>> epoch_ends({"a": [0, 0], "b": [0]}, {"a": [90], "b": [10]}, 10)  # a[1] came after the end was fixed
    {'a': [9], 'b': [1]}
    """
    waiting = [end - at for _, _, at, end in _each(begun, ends)]
    total = sum(waiting)
    if most is None or total <= most:
        return {topic: list(ends[topic]) for topic in begun}
    # the differences of rounded sums are the parts, and add up
    sums = np.cumsum([0, *waiting]).astype(object) * most // total
    parts = iter(np.diff(sums).tolist())
    return {t: [at + next(parts) for at, _ in zip(begun[t], ends[t], strict=False)] for t in begun}


def shared(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Divide ranges among tasks: about equal shares, none above `_MOST` messages, in order.

    >>> share = shared([Range("a", 0, 0, 5000), Range("a", 1, 7, 8)], 2)
    >>> [[each[1:] for each in ranges] for ranges in share]
    [[(0, 0, 2501)], [(0, 2501, 5000), (1, 7, 8)]]
    """
    total = sum(each.end - each.start for each in ranges)
    size = min(_MOST, max(_LEAST, -(-total // tasks)))
    shares: list[list[Range]] = []
    room = 0
    for each in ranges:
        at = each.start
        while at < each.end:
            if not room:
                shares.append([])
                room = size
            end = min(each.end, at + room)
            shares[-1].append(each._replace(start=at, end=end))
            room -= end - at
            at = end
    return shares
