"""What one micro-batch takes from an input, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import timely_spark as ts
from timely_spark.runtime import feedback
from timely_spark.runtime.feedback import FeedbackReader
from timely_spark.runtime.inputs import InputHandle
from timely_spark.runtime.log import RoundLog
from timely_spark.runtime.site import Site, labels, packed


@pytest.fixture
def handle(tmp_path: Path) -> InputHandle:
    handle = InputHandle("x", "s string")
    handle.open(RoundLog(str(tmp_path)))
    return handle


@pytest.fixture
def reader(tmp_path: Path) -> FeedbackReader:
    flow = ts.Dataflow("taken")
    flow.input("x", "s string").capture("out")
    parts = packed(flow.compile(1))
    return FeedbackReader(
        Site(checkpoint=str(tmp_path), **parts, labels=labels(1, 1), inputs=("x",), name="taken", run="r")
    )


def test_a_batch_takes_no_more_bytes_than_it_should_and_a_large_entry_alone(
    handle: InputHandle, reader: FeedbackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "MAX_BYTES", 10_000)
    for size in (4_000, 4_000, 4_000, 50_000, 10, 10, 50_000):
        handle.send([("x" * size,)])

    taken, ends = {"round": -1, "inputs": {}}, []
    while (last := reader._last("x", taken)) != taken["inputs"].get("x", -1):
        taken = {"round": -1, "inputs": {"x": last}}
        ends.append(last)

    assert ends == [1, 2, 3, 5, 6]


def test_a_batch_takes_a_bounded_number_of_entries(
    handle: InputHandle, reader: FeedbackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "MAX_ENTRIES", 3)
    for _ in range(5):
        handle.send([("x",)])

    assert reader._last("x", {"round": -1, "inputs": {}}) == 2
    assert reader._last("x", {"round": -1, "inputs": {"x": 2}}) == 4
