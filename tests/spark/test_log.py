"""The round log, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from timely_spark.runtime.errors import LogDamaged, OtherFlow
from timely_spark.runtime.files import Files, local_path
from timely_spark.runtime.log import Manifest, RoundLog

ROWS = pa.table({"x": [1, 2]})


def manifest(batch: int, **changed: object) -> Manifest:
    fields: dict[str, object] = {
        "batch": batch, "plan": "p", "run": "r", "coordinator": {"at": batch}, "header": f"h{batch}",
        "runnable": True, "released": [("out", 0)], "frontier": {"out": [[batch + 1]]}, "complete": False,
        "unreleased": {}, "spent": [], "kept_from": -1, "rounds": batch + 1, "rounds_ahead": 1,
    }  # fmt: skip
    return Manifest(**(fields | changed))  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path))


def test_a_manifest_comes_back_with_its_rows(log: RoundLog) -> None:
    log.write(manifest(3), ROWS)

    assert log.read(3) == manifest(3)
    assert log.rows(3) == ROWS
    assert log.is_runnable(3)
    assert log.read(4) is None


def test_a_manifest_written_again_replaces_the_first(log: RoundLog) -> None:
    log.write(manifest(3, header="first"), ROWS)
    rows = log.rows(3)
    log.write(manifest(3, header="second"), ROWS.slice(1))

    assert log.read(3).header == "second"
    assert rows == ROWS, "who had it open still reads what he opened"


def test_a_replayed_batch_does_not_see_its_own_manifest(log: RoundLog) -> None:
    for batch in (-1, 0, 1, 5):
        log.write(manifest(batch), ROWS)

    assert log.newest_before(1).batch == 0
    assert log.newest_before(5).batch == 1, "ids may have gaps"
    assert log.newest_before(9).batch == 5
    with pytest.raises(LogDamaged, match="Hint"):
        log.newest_before(-1)


def test_the_newest_is_found_from_any_hint(log: RoundLog) -> None:
    assert log.newest() is None
    for batch in range(-1, 4):
        log.write(manifest(batch), ROWS)

    assert [log.newest(hint) for hint in (None, -1, 2, 3, 77)] == [3] * 5


def test_the_manifest_is_read_without_the_rows(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(manifest(0), ROWS)
    monkeypatch.setattr(Files, "table", lambda *_: pytest.fail("rows were read"))

    assert log.read(0).header == "h0"


def spark_ran(log: RoundLog, *, offsets: list[int], commits: list[int]) -> None:
    spark = Files(log.checkpoint)
    for folder, numbers in (("offsets", offsets), ("commits", commits)):
        for number in numbers:
            spark.write(f"{folder}/{number}", b"v1\n{}\n")


def test_align_forgets_what_spark_has_forgotten(log: RoundLog) -> None:
    for batch in range(-1, 6):
        log.write(manifest(batch), ROWS)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])

    log.align()

    assert log.newest() == 3, "batch 3 runs again and overwrites its own"


def test_align_fills_ids_that_spark_used_without_us(log: RoundLog) -> None:
    for batch in range(-1, 3):
        log.write(manifest(batch), ROWS)
    spark_ran(log, offsets=[0, 1, 2, 3, 4], commits=[0, 1, 2, 3, 4])

    log.align()

    assert log.newest() == 4
    assert log.read(4).header == "h2"
    assert log.rows(4) == ROWS


def test_old_manifests_and_outputs_go(log: RoundLog) -> None:
    current = manifest(-1)
    log.write(current, ROWS)
    for batch in range(30):
        log.write_outputs(batch, ROWS)
        spent = [*current.spent, (f"outputs/{batch}.arrow", batch)]
        current = log.prune(manifest(batch, kept_from=current.kept_from, spent=spent), keep=10)
        log.write(current, ROWS)

    assert log.files.numbers("rounds") == list(range(19, 30))
    assert log.files.numbers("outputs") == list(range(19, 30))


def test_another_format_is_refused() -> None:
    with pytest.raises(OtherFlow, match="format 99"):
        Manifest.decode(manifest(0, format=99).encode())


def test_sparks_offsets_tell_what_was_taken(log: RoundLog) -> None:
    line = b'{"round":3,"inputs":{"x":7}}'
    Files(log.checkpoint).write("offsets/4", b'v1\n{"batchWatermarkMs":0}\n' + line + b"\n5\n")

    assert log.spark_offset(4) == (4, {"x": 7})
    assert log.spark_offset(5) is None
    assert log.spark_batch() == 4


def test_only_paths_that_everybody_sees_are_checkpoints() -> None:
    assert local_path("file:///a/b") == local_path("/a/b") == "/a/b"
    with pytest.raises(ValueError, match="Hint"):
        local_path("s3://bucket/x")


def test_a_new_file_never_replaces_one(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.write("a/b", b"1", new=True)

    with pytest.raises(FileExistsError):
        files.write("a/b", b"2", new=True)
    assert files.read("a/b") == b"1"
    assert files.names("a") == ["a/b"], "no temporary file is left"
