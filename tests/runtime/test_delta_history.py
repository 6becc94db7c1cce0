"""Whether a Delta table has all epochs of an output, by its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timely_spark.runtime.sinks.delta_history import DeltaHistory

OWN = {"txn": {"appId": "mine", "version": 0}}
OTHER = {"txn": {"appId": "another's", "version": 0}}
MADE = {"metaData": {}}


def did(operation: str, **parameters: Any) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, "operationParameters": parameters}}


def restored(version: int | str | None) -> list[dict[str, Any]]:
    return [did("RESTORE", version=version, timestamp=None), {"remove": {"path": "b"}}]


def overwritten(**more: Any) -> list[dict[str, Any]]:
    return [did("WRITE", mode="Overwrite", **more), {"remove": {"path": "b"}}]


OPTIMIZED = [did("OPTIMIZE", predicate="[]"), {"remove": {"path": "b", "dataChange": False}}]
#: what comes after versions 0, the table, and 1, of the output; and whether it then has the output's epochs
CASES: list[tuple[list[list[dict[str, Any]]], bool]] = [
    ([], True),
    ([[OTHER]], True),
    ([OPTIMIZED], True),
    ([[OWN], OPTIMIZED, [OWN]], True),
    ([restored(0)], False),
    ([restored("0")], False),
    ([restored(1)], True),
    ([restored(None)], False),  # by a time, which may be earlier
    ([restored(0), [OTHER]], False),
    ([restored(0), [OWN]], False),  # between the check and the write
    ([restored(0), [OWN], restored(1)], False),  # which lacks what was written in between
    ([restored(0), [OWN], restored(3)], False),
    ([restored(0), restored(1)], True),
    ([restored(0), restored(2)], False),
    ([[OTHER], restored(0), restored(2), [OWN]], True),
    ([overwritten()], False),
    ([overwritten(predicate="[]")], False),
    ([overwritten(predicate='["k = 1"]')], True),
    ([[did("WRITE", mode="Overwrite")]], True),  # of an empty table
    ([overwritten(), restored(1)], True),
    ([[did("DELETE", predicate='["true"]'), {"remove": {"path": "b"}}]], True),  # as one who cleans up
]


def commit(folder: Path, version: int, actions: list[dict[str, Any]]) -> None:
    lines = "".join(f"{json.dumps(action)}\n" for action in actions)
    (folder / "_delta_log" / f"{version:020}.json").write_text(lines)


@pytest.mark.parametrize("checkpoint", [None, 0, 2])
@pytest.mark.parametrize("case", CASES)
def test_restores_and_overwrites_take_epochs_away(
    tmp_path: Path, case: tuple[list[list[dict[str, Any]]], bool], checkpoint: int | None
) -> None:
    later, whole = case
    (tmp_path / "_delta_log").mkdir()
    history = DeltaHistory(f"file:{tmp_path}", "mine")
    commit(tmp_path, 0, [MADE])
    history.begin(own=False)
    for version, actions in enumerate([[OWN], *later], 1):
        commit(tmp_path, version, actions)
        if version == 1:
            assert history.is_whole()
    assert history.is_whole() is whole, "seen at the next delivery"
    if checkpoint is not None and checkpoint < 2 + len(later):
        (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": checkpoint}))
    again = DeltaHistory(f"file:{tmp_path}", "mine")
    again.begin(own=True)
    assert again.is_whole() is whole, "seen at the next start"


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    for place in (f"file:{tmp_path}", "abfss://nobody", "unity:somewhere"):
        history = DeltaHistory(place, "mine")
        history.begin(own=True)
        assert history.is_whole()


def test_versions_that_were_removed_from_the_log_are_not_needed(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": 7}))
    for version in (7, 8):
        commit(tmp_path, version, [OTHER])
    history = DeltaHistory(str(tmp_path), "mine")
    history.begin(own=True)
    assert history.is_whole()
    commit(tmp_path, 9, restored(5))
    assert not history.is_whole()
