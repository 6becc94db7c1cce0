"""The references of the workers' states after a batch: which are current, and which files are not needed."""

from __future__ import annotations

import pytest

from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.states import State, States
from timely_spark.state.codec import as_text
from timely_spark.worker import wire
from timely_spark.worker.wire import Failure


@pytest.fixture
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    return Blobs(Files(str(tmp_path_factory.mktemp("checkpoint"))))


def test_files_of_which_no_state_refers_any_more_are_gone(blobs: Blobs) -> None:
    old, kept, new = (blobs.put(name, name.encode() * 10_000) for name in ("old", "kept", "new"))
    states = States()
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
