"""The connections of a process to brokers, and what a reader makes of their answers, without any broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from timely_spark.errors import Where
from timely_spark.runtime.errors import BadTopic
from timely_spark.runtime.sources import kafka, kafka_reader
from timely_spark.runtime.sources.kafka import Brokers, KafkaSource, Range, Topics
from timely_spark.runtime.sources.kafka_reader import KafkaReader
from timely_spark.runtime.storage.files import Files

confluent_kafka = pytest.importorskip("confluent_kafka", reason="an environment without the client")
KafkaError = confluent_kafka.KafkaError


class Answers:
    """What brokers answer: ids, and the first and next offsets of the topics' partitions."""

    def __init__(self) -> None:
        self.last_error = None
        self.ids, self.ends = {"a": "1", "b": "1"}, {"a": [80, 10], "b": [10]}
        self.first = {"a": [0, 0, 0], "b": [0]}
        self.silent = False
        #: what happens after an answer
        self.later: Callable[[], None] = lambda: None

    def describe(self, names: tuple[str, ...]) -> dict[str, tuple[str, int]]:
        if self.silent:
            raise confluent_kafka.KafkaException(KafkaError(KafkaError._TRANSPORT))
        return {name: (self.ids[name], len(self.ends[name])) for name in names}

    def offsets(self, counts: dict[str, int], at: Any) -> dict[str, list[int]]:
        if isinstance(at, int):  # each message has its offset as its time
            answer = {topic: [at if at < end else -1 for end in ends] for topic, ends in self.ends.items()}
        else:
            answer = self.first if at == "earliest" else self.ends
        answer = {topic: answer[topic][:count] for topic, count in counts.items()}
        self.later()
        return answer


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setitem(kafka._brokers, (("bootstrap.servers", "b"),), answers)  # type: ignore[arg-type]
    monkeypatch.setattr(kafka_reader, "_DESCRIBED", 0.0)
    return answers


TOPICS = Topics("in", Where("job.py", 1), ("a", "b"), {"bootstrap.servers": "b"})
SOURCE = KafkaSource(TOPICS, decoder=mock.Mock(), records_per_epoch=10)


def reading(folder: Path, source: KafkaSource = SOURCE) -> KafkaReader:
    context: Any = SimpleNamespace(
        log=SimpleNamespace(files=Files(str(folder))),
        reporting=nullcontext,
        log_message=mock.Mock(),
        read_offsets={},
        continued=-1,
        resident=0.0,
    )
    return KafkaReader(context, source, lambda _: 0)


def test_an_epoch_has_so_many_messages_and_the_others_are_counted(tmp_path: Path, answers: Answers) -> None:
    reader = reading(tmp_path)

    def waiting() -> Any:
        return reader.context.log.files.json("ignored/in-waiting.json")

    begun = reader.initial_offset()
    assert begun["offsets"] == {"a": [0, 0], "b": [0]}
    assert replace(SOURCE, start={"a": {1: 7}}).begin() == {"a": [0, 7], "b": [0]}
    with pytest.raises(BadTopic, match="start= names partition 2 of topic 'a', which has 2"):
        replace(SOURCE, start={"a": {1: 0, 2: 7}}).begin()
    first = reader.latest_offset(begun)
    assert (first["offsets"], waiting()) == ({"a": [8, 1], "b": [1]}, {"count": 90})
    answers.ends["a"] = [80, 10, 5]  # a partition more
    every = reader.latest_offset(first, unlimited=True)
    assert (every["offsets"], waiting()) == ({"a": [80, 10, 5], "b": [10]}, {"count": 0})
    assert reader.latest_offset(every) is every
    assert [args[1:] for _, args, _ in reader.context.log_message.mock_calls] == [
        ("source %r: topic %r has %d partitions more, which are read from their first message", "in", "a", 1)
    ]
    answers.first["a"] = [1, 0, 0]
    assert reading(tmp_path).initial_offset() == begun, "the same in each process"
    latest = reading(tmp_path / "other", replace(SOURCE, start="latest"))
    assert latest.latest_offset(start := latest.initial_offset()) is start, "a batch has something to read"
    answers.ends["b"] = [11]
    reader.fix_end()
    answers.ends["b"] = [99]
    assert reader.latest_offset(every)["offsets"]["b"] == [11], "what was there at the start of availableNow"


def test_what_the_brokers_no_longer_have_is_not_read(tmp_path: Path, answers: Answers) -> None:
    reader = reading(tmp_path)
    begun = reader.initial_offset()
    answers.first["a"] = [5, 0, 0]
    with pytest.raises(BadTopic, match=r"offsets 0 to 4 of a\[0\] were deleted before they were read"):
        reader.latest_offset(begun)
    skipping = reading(tmp_path, replace(SOURCE, on_lost="skip", records_per_epoch=None))
    end = skipping.latest_offset(begun)
    (none,) = skipping.shares(end, end)
    assert list(none.ranges) == []
    assert [share.ranges for share in skipping.shares(begun, end)] == [
        [Range("a", 0, 0, 80), Range("a", 1, 0, 10), Range("b", 0, 0, 10)]
    ]
    (warned,) = skipping.context.log_message.mock_calls
    assert "were deleted" in str(warned)
    assert skipping.context.log.files.json("ignored/in-lost.json")["names"].keys() == {"a[0] offsets 0 to 4"}
    answers.ends["b"] = [9]
    with pytest.raises(BadTopic, match=r"b\[0\] ends at offset 9, and was read up to offset 10"):
        skipping.latest_offset(end)
    answers.ids["b"] = "2"
    with pytest.raises(BadTopic, match="'b' was deleted and created again"):
        skipping.latest_offset(end)


def test_silent_brokers_are_waited_for_and_warned_of_once(
    tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("timely_spark.runtime.sources.kafka_reader.time.monotonic", lambda: now[0])
    reader = reading(tmp_path)
    begun = reader.initial_offset()
    for silent in (True, True, False, True, True):
        answers.silent = silent
        now[0] += 100
        assert (reader.latest_offset(begun) is begun) == silent
    assert len(reader.context.log_message.mock_calls) == 2, "and again after they have answered"
    now[0] += 100
    with pytest.raises(BadTopic, match="have not answered for 200 s"):
        reader.latest_offset(begun)
    answers.silent = False
    reader = reading(tmp_path)
    reader.fix_end()
    answers.silent = True
    with pytest.raises(BadTopic, match="have not answered for 0 s"):  # "nothing new" would end the query
        reader.latest_offset(begun)


def test_a_message_that_arrives_at_the_start_is_not_before_a_time(answers: Answers) -> None:
    """The client says -1 where nothing is as new, and the reader then begins at the end."""
    answers.later = lambda: answers.ends.update(b=[12])
    assert replace(SOURCE, start=11).begin() == {"a": [11, 10], "b": [11]}


def arrived(offset: int, code: str | None = None) -> Any:
    """What the client gives for an offset of a[1]: a message, or an error."""
    error = None if code is None else KafkaError(getattr(KafkaError, code))
    return mock.Mock(**{
        "topic.return_value": "a", "partition.return_value": 1, "offset.return_value": offset,
        "error.return_value": error,
    })  # fmt: skip


def offsets_of(calls: list[list[Any]], on_lost: str, first: int) -> tuple[list[int], list[int]]:
    """Of a[1] from 3 to 7: the offsets that are read, and those from which the client was asked to read."""
    consumer: Any = mock.Mock(**{"consume.side_effect": [*calls]})
    consumer.get_watermark_offsets.return_value = first, 9
    fetch = kafka._Fetch(TOPICS, consumer, [Range("a", 1, 3, 8)], on_lost)
    read = [message.offset() for some in fetch.messages() for message in some]
    return read, [place.offset for call in consumer.assign.mock_calls for place in call.args[0]]


def test_a_fetch_goes_on_until_it_has_all_that_there_is() -> None:
    """Not every offset has a message, others were deleted, and some errors pass."""
    calls = [[arrived(3)], [arrived(0, "_TRANSPORT"), arrived(5), arrived(6)], [arrived(9, "_PARTITION_EOF")]]
    assert offsets_of(calls, "fail", 0) == ([3, 5, 6], [3])
    calls = [[arrived(3)], [arrived(0, "_AUTO_OFFSET_RESET")], [arrived(6), arrived(7), arrived(8)]]
    assert offsets_of(calls, "skip", 6) == ([3, 6, 7], [3, 6])
    assert offsets_of(calls, "skip", 8) == ([3], [3]), "the next call of the client would be one too many"
    with pytest.raises(BadTopic, match=r"offsets 4 to 5 of a\[1\] were deleted before they were read"):
        offsets_of(calls, "fail", 6)
    with pytest.raises(BadTopic, match=r"a\[1\] ends at offset 9, and was read up to offset 4"):
        offsets_of(calls, "skip", 4)
    with pytest.raises(BadTopic, match="'a' may not be read"):
        offsets_of([[arrived(0, "TOPIC_AUTHORIZATION_FAILED")]], "skip", 0)


def test_a_flow_whose_consumer_another_one_takes_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(list[Any]):
        """Has a consumer, which another thread has taken when it is asked for."""

        def __len__(self) -> int:
            return 1

    brokers, own = Brokers.__new__(Brokers), mock.Mock()
    brokers._idle = Taken()
    monkeypatch.setattr(brokers, "consumer", lambda: own, raising=False)
    monkeypatch.setattr(kafka, "_Fetch", lambda _t, consumer, *_: mock.Mock(messages=lambda: [[consumer]]))
    assert list(brokers.fetch(mock.Mock(), [Range("a", 0, 0, 1)], "fail")) == [[own]]
    brokers.close()
    assert own.close.called
