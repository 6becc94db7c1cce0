"""Requests to end an epoch's loops, as files: every attempt at a batch finds the same ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from timely_spark.runtime.errors import LostOwnership
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.storage.cancel import due, request
from timely_spark.runtime.storage.cuts import record
from timely_spark.runtime.storage.entries import close_source
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path)).claim({"run": "first"})


def test_a_cancel_takes_effect_in_one_batch_also_when_it_runs_again(log: RoundLog) -> None:
    assert due(log, 3, kept_from=0) == []
    request(log, 2)
    request(log, 5)
    assert due(log, 4, kept_from=0) == [2, 5]
    assert due(log, 4, kept_from=0) == [2, 5]
    request(log, 6)
    assert due(log, 5, kept_from=0) == [6]
    again = RoundLog(log.checkpoint).claim({"run": "second"})
    assert [due(again, batch, kept_from=0) for batch in (3, 4, 5, 6)] == [[], [2, 5], [6], []]


def test_two_requests_at_one_moment_are_two(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    request(log, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Files, "numbers", lambda *_: [])  # as before the first one
        request(log, 4)
    assert due(log, 7, 0) == [3, 4]


def test_a_request_goes_when_no_batch_can_run_again_that_had_it(log: RoundLog) -> None:
    request(log, 2)
    assert due(log, 4, kept_from=0) == [2]
    request(log, 7)
    assert due(log, 9, kept_from=5) == [7]
    assert log.files.numbers("cancels") == [1]


def test_a_command_is_on_the_disk_when_it_is_given(log: RoundLog, synced: list[str]) -> None:
    for command, folder in (
        (partial(request, log, 2), "cancels"),
        (partial(due, log, 3, kept_from=0), "cancels"),
        (partial(record, log, 4, 0, 1, 7), "cuts"),
        (partial(close_source, log, "x"), "inputs/x"),
        (partial(Skipped(entries=(3,)).write, log.files, "x"), "skipped"),
    ):
        synced.clear()
        command()
        place = str(Path(log.checkpoint) / "timely" / folder)
        assert place in synced, "a file's name is in its folder"
        assert any(path.startswith(f"{place}/") for path in synced), "and its content"


def test_who_has_lost_the_checkpoint_takes_no_request(log: RoundLog) -> None:
    request(log, 2)
    other = RoundLog(log.checkpoint).claim({"run": "second"})
    with pytest.raises(LostOwnership):
        due(log, 4, kept_from=0)
    assert due(other, 6, kept_from=0) == [2]
