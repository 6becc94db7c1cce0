"""The references of the workers' states after a batch: which are current, and which files are not needed."""

from __future__ import annotations

import pytest

from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.states import State, States
from timely_spark.worker import as_rows, read_rows


@pytest.fixture
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    return Blobs(Files(str(tmp_path_factory.mktemp("checkpoint"))))


def test_files_of_which_no_state_refers_any_more_are_gone(blobs: Blobs) -> None:
    old, kept, new = (blobs.put(name, name.encode() * 10_000) for name in ("old", "kept", "new"))
    states = States()
    states.enter(as_rows([State(b"first", (old, kept)).row(0, ms=1), State(b"other", ()).row(1, ms=2)]))
    assert states.gone == []

    rest = states.enter(as_rows([State(b"second", (kept, new)).row(0, ms=5), (0, "message", {}, None)]))

    assert states.gone == sorted(State(b"", (old,)).files)
    assert len(states.gone) == 1
    assert [kind for _, kind, _, _ in read_rows(rest)] == ["message"]
    assert {worker: state.reference for worker, state in states.by_worker.items()} == {
        0: b"second",
        1: b"other",
    }
    assert states.took == {0: 6, 1: 2}
