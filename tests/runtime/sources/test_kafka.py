"""The connections of a process to brokers, without any."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from timely_spark.runtime.sources import kafka
from timely_spark.runtime.sources.kafka import Brokers, Range


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
