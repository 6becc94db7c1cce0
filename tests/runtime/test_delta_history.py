"""Whether a Delta table has all epochs of an output, by its log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from timely_spark.runtime.sinks.delta_history import DeltaHistory, remove_begun

OWN = {"txn": {"appId": "mine", "version": 0}}
OTHER = {"txn": {"appId": "another's", "version": 0}}
MADE = {"metaData": {}}


def did(operation: str, **parameters: Any) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, "operationParameters": parameters}}


def restored(version: int | str | None) -> list[dict[str, Any]]:
    return [did("RESTORE", version=version, timestamp=None), {"remove": {"path": "b"}}]


def restored_by_time(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [did("RESTORE", version=None, timestamp="2026-01-02 03:04:05.678"), *changes]


def add(path: str, vector: int | None = None) -> dict[str, Any]:
    return {
        "add": {"path": path, "size": 1} | ({} if vector is None else {"deletionVector": {"offset": vector}})
    }


def remove(path: str, vector: int | None = None) -> dict[str, Any]:
    return {"remove": dict(add(path, vector)["add"], dataChange=True)}


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
    ([restored_by_time()], True),
    ([restored_by_time(remove("own"))], False),
    ([[OTHER, add("a")], restored_by_time(remove("a"))], True),
    ([[OTHER, add("a")], restored_by_time(remove("a"), remove("own"))], False),
    ([[OTHER, add("a")], [remove("a"), add("b")], restored_by_time(add("a"), remove("b"))], True),
    ([[OTHER, add("a")], [remove("a"), add("b")], restored_by_time(remove("b"))], True),
    ([[OTHER, add("a")], [remove("a"), add("b")], restored_by_time(remove("b"), remove("own"))], False),
    ([[OTHER, add("a")], [remove("a"), add("a", 1)], restored_by_time(remove("a", 1), add("a"))], True),
    ([[OTHER, add("a")], [OWN, add("c")], restored_by_time(remove("c"))], False),
    ([[OTHER, add("a")], [OWN, add("c")], [remove("a")], restored_by_time(add("a"))], True),
    ([[remove("own"), add("own", 1)], restored_by_time(remove("own", 1))], False),
    ([restored_by_time(remove("own")), restored_by_time(add("own"))], True),
    ([restored_by_time(remove("own")), [OTHER, add("a")], restored_by_time(remove("a"))], False),
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
    ([[did("WRITE", mode="Overwrite"), {"remove": {"path": "b", "dataChange": False}}]], True),  # compaction
    ([overwritten(isDynamicPartitionOverwrite=True)], True),
    ([overwritten(isDynamicPartitionOverwrite=False)], False),
    ([overwritten(), restored(1)], True),
    ([[did("DELETE", predicate='["true"]'), {"remove": {"path": "b"}}]], True),  # as one who cleans up
]


def commit(folder: Path, version: int, actions: list[dict[str, Any]]) -> None:
    lines = "".join(f"{json.dumps(action)}\n" for action in actions)
    (folder / "_delta_log" / f"{version:020}.json").write_text(lines)


def logged(folder: Path, commits: Iterable[list[dict[str, Any]]], first: int = 0) -> None:
    (folder / "_delta_log").mkdir(exist_ok=True)
    for version, actions in enumerate(commits, first):
        commit(folder, version, actions)


def removed(folder: Path, versions: Iterable[int]) -> None:
    for version in versions:
        (folder / "_delta_log" / f"{version:020}.json").unlink()


def at_start(folder: Path, *, own: bool = True, delivered: bool = True) -> DeltaHistory:
    history = DeltaHistory(str(folder), "mine")
    history.begin(own=own, delivered=delivered)
    return history


@pytest.mark.parametrize("checkpoint", [None, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2))])
@pytest.mark.parametrize("case", CASES)
def test_restores_and_overwrites_take_epochs_away(
    tmp_path: Path, case: tuple[list[list[dict[str, Any]]], bool], checkpoint: int | None
) -> None:
    later, complete = case
    logged(tmp_path, [[MADE]])
    history = DeltaHistory(f"file:{tmp_path}", "mine")
    history.begin(own=False, delivered=False)
    for version, actions in enumerate([[OWN, add("own")], *later], 1):
        commit(tmp_path, version, actions)
        if version == 1:
            assert history.is_complete()
    assert history.is_complete() is complete, "seen at the next delivery"
    if checkpoint is not None and checkpoint < 2 + len(later):
        (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": checkpoint}))
    assert at_start(tmp_path).is_complete() is complete, "seen at the next start"


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    for place in (f"file:{tmp_path}", "abfss://nobody", "unity:somewhere"):
        history = DeltaHistory(place, "mine")
        history.begin(own=True, delivered=True)
        assert history.is_complete()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("change", [overwritten(), restored(0), restored_by_time(remove("b"))])
def test_a_table_lacks_nothing_before_the_first_delivery(
    tmp_path: Path, change: list[dict[str, Any]], *, own: bool
) -> None:
    logged(tmp_path, [[MADE], [OTHER, add("b")]])
    running = at_start(tmp_path, own=own, delivered=False)
    assert running.is_complete()
    commit(tmp_path, 2, change)
    starts = [at_start(tmp_path, delivered=delivered) for delivered in (False, True)]  # True: empty epochs
    assert all(history.is_complete() for history in (running, *starts))
    commit(tmp_path, 3, [OWN])
    assert (running.is_complete(), at_start(tmp_path).is_complete()) == (True, True)
    commit(tmp_path, 4, change)
    assert (running.is_complete(), at_start(tmp_path).is_complete()) == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "complete"), [(0, False), (2, True), (255, True)])
def test_a_start_goes_back_to_the_last_epoch_however_far(
    tmp_path: Path, version: int, *, complete: bool
) -> None:
    others = 257
    logged(tmp_path, [[MADE], [OWN], [OWN], *[[OTHER]] * others])
    running = at_start(tmp_path)
    assert running.is_complete()
    logged(tmp_path, [restored(version), *[[OTHER]] * others], 3 + others)
    assert (running.is_complete(), at_start(tmp_path).is_complete()) == (complete, complete)


@pytest.mark.parametrize("checkpoint", [None, 3, 12, 14])
@pytest.mark.parametrize(
    ("change", "complete"),
    [([OTHER], True), (overwritten(), False), (restored(0), False), (restored(12), True), ([OWN], True)],
)
def test_versions_that_were_removed_from_the_log_are_not_needed(
    tmp_path: Path, change: list[dict[str, Any]], *, complete: bool, checkpoint: int | None
) -> None:
    logged(tmp_path, [[MADE], [OWN]])
    running = at_start(tmp_path)
    assert running.is_complete()
    logged(tmp_path, [[OTHER]] * 12, 2)
    if checkpoint is not None:
        (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": checkpoint}))
    removed(tmp_path, range(11))
    assert at_start(tmp_path).is_complete()
    commit(tmp_path, 14, change)
    assert (running.is_complete(), at_start(tmp_path).is_complete()) == (complete, complete)
    assert at_start(tmp_path, delivered=False).is_complete(), (
        "as an output with another name has no epochs there"
    )


def test_a_log_that_does_not_say_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logged(tmp_path, [[MADE], [OTHER], [OTHER]])
    at_start(tmp_path)  # only empty epochs
    assert not caplog.messages
    removed(tmp_path, [0])
    at_start(tmp_path)
    assert "before version 1" in caplog.text
    caplog.clear()
    commit(tmp_path, 3, [OWN])
    removed(tmp_path, [1])
    at_start(tmp_path)
    assert not caplog.messages
    commit(tmp_path, 4, [OTHER])
    commit(tmp_path, 5, [OTHER])
    removed(tmp_path, [2, 3, 4])
    assert at_start(tmp_path).is_complete()
    assert "before version 5" in caplog.text
    at_start(tmp_path, delivered=False)
    assert len(caplog.messages) == 1


def test_a_restore_undoes_no_version_that_was_removed_from_the_log(tmp_path: Path) -> None:
    logged(tmp_path, [[MADE], [OWN], overwritten(), [OTHER, add("a")]])
    running = at_start(tmp_path)
    assert not running.is_complete()
    removed(tmp_path, range(3))
    commit(tmp_path, 4, restored_by_time(remove("a")))  # to version 2
    assert not running.is_complete()


def test_the_oldest_version_of_a_log_may_be_a_restore(tmp_path: Path) -> None:
    logged(tmp_path, [restored(3), [OTHER]], 7)
    assert not at_start(tmp_path).is_complete()


@pytest.mark.parametrize(
    ("files", "begun"),
    [
        ([], True),
        (["_delta_log/_staged_commits/"], True),
        (["_delta_log/.00000000000000000000.json.1f.tmp", ".part-0.crc"], True),
        (["_delta_log/_staged_commits/", "_delta_log/00000000000000000000.json"], False),
        (["_delta_log/00000000000000000003.json", "part-0"], False),
        (["_delta_log/_last_checkpoint"], False),
        (["part-0"], False),
        (["rows.csv"], False),
    ],
)
def test_a_log_without_versions_is_removed_where_there_is_nothing_else(
    tmp_path: Path, files: list[str], *, begun: bool
) -> None:
    remove_begun(str(tmp_path))  # there is no log
    (tmp_path / "_delta_log").mkdir()
    for name in files:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()

    remove_begun(str(tmp_path))

    assert (tmp_path / "_delta_log").exists() != begun
    assert all((tmp_path / name).exists() for name in files if not begun)


def test_rows_of_the_newest_file_are_read_and_no_more(tmp_path: Path) -> None:
    folder, history = str(tmp_path / "table"), DeltaHistory((tmp_path / "table").as_uri(), "mine")
    assert history.written(folder, 2) is None
    for day, numbers in {"mon day": [1], "tue": [2, 3, 4]}.items():
        rows = pa.table({"n": numbers, "day": [day] * len(numbers)})
        write_deltalake(folder, rows, mode="append", partition_by=["day"])

    def written() -> list[dict[str, Any]] | None:
        rows = history.written(folder, 2)
        return None if rows is None else rows.to_pylist()

    assert written() == [{"n": 2, "day": "tue"}, {"n": 3, "day": "tue"}]
    DeltaTable(folder).delete("day = 'tue'")
    assert written() == [{"n": 2, "day": "tue"}, {"n": 3, "day": "tue"}]  # they were written last
    write_deltalake(folder, pa.table({"n": [5], "day": ["mon day"]}), mode="append")
    assert written() == [{"n": 5, "day": "mon day"}]
    DeltaTable(folder).optimize.compact()
    assert written() == [{"n": 5, "day": "mon day"}]  # no rows are new
    table = DeltaTable(folder)
    deleted = [add(str(Path(path).relative_to(folder)), vector=1) for path in table.file_uris()]
    logged(tmp_path / "table", [deleted], first=table.version() + 1)  # as some of their rows were deleted
    assert written() == [{"n": 5, "day": "mon day"}]


def test_the_last_transaction_of_the_output_is_the_highest(tmp_path: Path) -> None:
    """What it has, a batch that runs again in other groups does not write once more."""
    later = [[{"txn": {"appId": "mine", "version": version}}] for version in (4, 7)]
    logged(tmp_path, [[MADE], *later, [OTHER]])
    assert at_start(tmp_path).last == 7
