"""The references of the workers' states after a batch: which are current, and which files are not needed."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.coordinator import Coordinator
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.states import State, StateRefs, write_state
from timely_spark.state.codec import as_text
from timely_spark.worker import Worker, pack, wire
from timely_spark.worker.wire import Failure


@pytest.fixture
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    return Blobs(Files(str(tmp_path_factory.mktemp("checkpoint"))))


def test_files_of_which_no_state_refers_any_more_are_gone(blobs: Blobs) -> None:
    old, kept, new = (blobs.put(name, name.encode() * 10_000) for name in ("old", "kept", "new"))
    states = StateRefs()
    first = State(b"first", as_text([old, kept]), ms=1)
    states.enter(wire.table([(0, first), (1, State(b"other", ms=2))]))
    assert states.garbage == []

    failure = Failure({})  # any row of another kind
    states.enter(wire.table([(0, State(b"second", as_text([kept, new]), ms=5)), (0, failure)]))

    assert states.garbage == sorted(State(b"", as_text([old])).files)
    assert len(states.garbage) == 1
    assert {worker: state.reference for worker, state in states.by_worker.items()} == {
        0: b"second",
        1: b"other",
    }
    assert states.took == {0: 6, 1: 2}


def test_a_state_has_the_counts_of_the_rounds_since_the_one_before(blobs: Blobs) -> None:
    flow = ts.Dataflow("counts")
    flow.input("x", "n long").distinct().capture("out")
    plan = dataclasses.replace(flow.compile(workers=1), measured=True)
    worker = Worker(plan, None, 0)
    worker.step(0, pack(plan, "x", pa.table({"n": [1, 1, 2]}), shard=0), Coordinator(plan).first().header)

    first = write_state(blobs, worker, 0, None)
    again = write_state(blobs, worker, 1, first.reference)

    assert first.moved == {"0": 2, "1": 2}, "equal records are combined before"
    assert first.spent
    assert first.measured
    assert first.memory == again.memory
    assert first.memory["distinct"] >= 2 * 16, "two numbers with their hashes"
    assert again == dataclasses.replace(first, moved={}, spent={}, measured=[])


def test_a_round_reads_what_is_not_searched_in_mapped_files() -> None:
    state = State(b"12345", as_text([b"1234567"]), indexed=7)
    assert [state.read(mapped=mapped) for mapped in (False, True)] == [12, 5]
