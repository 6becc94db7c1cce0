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
SILENT = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT)


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
            raise confluent_kafka.KafkaException(SILENT)
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
    first = reader.latest_offset(begun)
    assert (first["offsets"], waiting()) == ({"a": [8, 1], "b": [1]}, {"count": 90})
    answers.ends["a"] = [80, 10, 5]  # a partition more
    every = reader.latest_offset(first, unlimited=True)
    assert (every["offsets"], waiting()) == ({"a": [80, 10, 5], "b": [10]}, {"count": 0})
    assert reader.latest_offset(every) is every
    assert [args[1:] for _, args, _ in reader.context.log_message.mock_calls] == [
        ("source %r: topic %r has %d partitions more, which are read from their first message", "in", "a", 1)
    ]
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
    assert [share.ranges for share in skipping.shares(begun, end)] == [
        [Range("a", 0, 0, 80), Range("a", 1, 0, 10), Range("b", 0, 0, 10)]
    ]
    (warned,) = skipping.context.log_message.mock_calls
    assert "were deleted" in str(warned)
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


def test_a_message_that_arrives_at_the_start_is_not_before_a_time(answers: Answers) -> None:
    """The client says -1 where nothing is as new, and the reader then begins at the end."""
    answers.later = lambda: answers.ends.update(b=[12])
    assert replace(SOURCE, start=11).begin() == {"a": [11, 10], "b": [11]}


def test_an_error_that_may_pass_is_waited_out(answers: Answers) -> None:
    def message(offset: int, error: Any = None) -> Any:
        return mock.Mock(**{
            "topic.return_value": "a", "partition.return_value": 0, "offset.return_value": offset,
            "error.return_value": error,
        })  # fmt: skip

    refused = confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer = mock.Mock()
    for error, expected in ((SILENT, nullcontext()), (refused, pytest.raises(BadTopic, match="may not be"))):
        consumer.consume.side_effect = [[message(3)], [message(0, error)], [message(4), message(5)]]
        with expected:
            fetched = kafka._Fetch(TOPICS, consumer, [Range("a", 0, 3, 5)], "fail").messages()
            assert [[m.offset() for m in some] for some in fetched] == [[3], [4]]


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
