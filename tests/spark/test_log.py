"""The round log, without Spark."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import LostOwnership, OtherFlow
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import FORMAT, Manifest
from timely_spark.worker import ROWS as WIRE_ROWS

ROWS = pa.table({"x": [1, 2]})


def manifest(batch: int, **changed: object) -> Manifest:
    fields: dict[str, object] = {
        "batch": batch, "micro_batch": batch, "plan": "p", "run": "r", "coordinator": {"at": batch},
        "header": f"h{batch}",
        "runnable": True, "released": [("out", 0)], "frontier": {"out": [[batch + 1]]}, "complete": False,
        "captured": {}, "unreleased": {}, "garbage": [], "kept_from": -1, "rounds": batch + 1,
        "bound": {"rounds": 1},
    }  # fmt: skip
    return Manifest(**(fields | changed))  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path)).claim({"run": "r"})


def written(log: RoundLog, end: int, **changed: object) -> None:
    """Write the manifests of the batches below a number."""
    for batch in range(-1, end):
        log.write(manifest(batch, **changed), ROWS)


def restarted(log: RoundLog) -> RoundLog:
    """The log of the next run, fitted to Spark's."""
    after = RoundLog(log.checkpoint).claim({"run": "next"})
    after.align()
    return after


def test_a_manifest_comes_back_with_its_rows(log: RoundLog) -> None:
    log.write(manifest(3), ROWS)

    assert log.read(3) == manifest(3)
    assert log.manifest_and_rows(3) == (manifest(3), ROWS)
    assert log.read(4) is log.manifest_and_rows(4) is None


def test_a_manifest_written_again_replaces_the_first(log: RoundLog) -> None:
    log.write(manifest(3, header="first"), ROWS)
    _, rows = log.manifest_and_rows(3)
    log.write(manifest(3, header="second"), ROWS.slice(1))

    assert log.read(3).header == "second"
    assert rows == ROWS, "who had it open still reads what he opened"


def test_a_replayed_batch_does_not_see_its_own_manifest(log: RoundLog) -> None:
    for batch in (-1, 0, 1, 5):
        log.write(manifest(batch), ROWS)

    assert log.newest_before(1)[0].batch == 0
    assert log.newest_before(6)[0].batch == 5
    for batch in (-1, 5, 9):  # an older manifest would do for none of them
        with pytest.raises(LogDamaged, match=rf"(?s)manifest of batch {batch - 1}, .*Hint"):
            log.newest_before(batch)


def test_the_newest_is_found_from_any_hint(log: RoundLog) -> None:
    assert log.newest() is None
    written(log, 4)

    for each in (log, RoundLog(log.checkpoint, log.term, log.first), RoundLog(log.checkpoint)):
        assert [each.newest(hint) for hint in (None, -1, 2, 3, 77)] == [3] * 5


def test_the_manifest_is_read_without_the_rows(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(manifest(0), ROWS)
    monkeypatch.setattr(Files, "table", lambda *_: pytest.fail("rows were read"))

    assert log.read(0).header == "h0"


def spark_ran(log: RoundLog, *, offsets: list[int], commits: list[int]) -> None:
    spark = Files(log.checkpoint)
    spark.write("metadata", b'{"id": "00000000-0000-4000-8000-000000000000"}')
    for folder, numbers in (("offsets", offsets), ("commits", commits)):
        for number in numbers:
            spark.write(f"{folder}/{number}", b'v1\n{"batchTimestampMs": %d}\n' % number)


@pytest.mark.parametrize("resident", [False, True])
def test_what_a_run_writes_that_has_lost_the_checkpoint_does_not_count(
    log: RoundLog, *, resident: bool
) -> None:
    """The run between wrote no batch, and removed what the late manifest refers to."""
    written(log, 3, resident=resident)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])
    restarted(log)
    log.write(manifest(3, header="late", resident=True), ROWS)

    assert restarted(log).newest() == 2


@pytest.mark.parametrize("resident", [False, True])
def test_what_spark_has_committed_of_a_run_that_lost_the_checkpoint_counts(
    log: RoundLog, *, resident: bool
) -> None:
    """Without a lock: a changed flow has started, and Spark commits the old one's last micro-batch then."""
    for batch in range(-1, 5):
        log.write(manifest(batch, micro_batch=min(batch, 3), header="old", resident=resident), ROWS)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])
    restarted(log).write(manifest(2, plan="another"), ROWS)
    spark_ran(log, offsets=[], commits=[3])
    after = restarted(log)
    assert (after.newest(), after.read(4).header) == (4, "old")

    after.write(manifest(5, micro_batch=4), ROWS)
    log.write(manifest(6, micro_batch=4, header="old"), ROWS)
    spark_ran(log, offsets=[4], commits=[4])
    assert restarted(log).newest() == 5


def test_align_forgets_what_spark_has_forgotten(log: RoundLog) -> None:
    written(log, 6)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])

    after = restarted(log)

    assert after.newest() == 2, "batch 3 runs again, and writes its own"
    assert RoundLog(log.checkpoint).newest() == 3, "what comes after it is gone"


def test_align_forgets_what_was_captured_in_batches_that_spark_has_forgotten(log: RoundLog) -> None:
    for batch in range(-1, 6):
        log.write(manifest(batch, captured={"out": batch} if batch >= 0 else {}), ROWS)
    for version in range(6):
        log.deliveries("out").write(version, ROWS)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])

    names = restarted(log).files.names("captured/out")
    assert names == [f"captured/out/{version}.arrow" for version in range(4)]


def test_a_batch_that_was_committed_a_moment_too_late_counts(log: RoundLog) -> None:
    written(log, 4)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])

    after = restarted(log)
    assert after.read(3) is None
    spark_ran(log, offsets=[], commits=[3])  # by the driver that was killed: its JVM was still there

    assert after.newest() == after.newest(2) == 3
    assert after.read(3) == manifest(3)


def test_a_manifest_that_was_removed_and_is_written_again_too_late_does_not_count(log: RoundLog) -> None:
    written(log, 6)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])

    after = restarted(log)
    log.write(manifest(5, header="late"), ROWS)
    spark_ran(log, offsets=[4, 5], commits=[3, 4, 5])

    assert after.read(5) is None


def test_a_run_reads_what_an_earlier_one_wrote_of_the_micro_batch_that_runs_again(log: RoundLog) -> None:
    for batch in range(-1, 5):
        log.write(manifest(batch, micro_batch=min(batch, 2), resident=True), ROWS)
    spark_ran(log, offsets=[0, 1, 2], commits=[0, 1])

    after = restarted(log)
    assert (after.newest(), after.before(2)[0].batch) == (4, 1)
    assert after.read(3) == manifest(3, micro_batch=2, resident=True)


def test_a_run_reads_what_an_earlier_one_wrote_whose_commits_are_removed(log: RoundLog) -> None:
    written(log, 4)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[2])

    after = restarted(log)
    assert (after.read(1), after.read(3)) == (manifest(1), None)


def test_a_manifest_before_those_that_are_needed_is_removed(log: RoundLog) -> None:
    """A run that has lost the checkpoint may write one long after; the next one was removed."""
    for batch in (2, 5, 6, 7):
        log.write(manifest(batch, kept_from=5), ROWS)
    spark_ran(log, offsets=[*range(8)], commits=[*range(8)])

    assert restarted(log).newest() == 7
    assert log.files.numbers("rounds/0") == [5, 6, 7]


@pytest.mark.parametrize(("commits", "left"), [([0, 1, 2], [3, 4]), ([0, 1, 2, 3], [3])])
def test_the_ends_of_batches_that_will_not_run_again_are_removed(
    log: RoundLog, commits: list[int], left: list[int]
) -> None:
    """Only a micro-batch that runs again has begun a batch without a manifest."""
    written(log, 4, resident=True)
    for batch in (3, 4, 5):
        log.begin(batch, {})
    spark_ran(log, offsets=[0, 1, 2, 3], commits=commits)

    assert restarted(log).files.numbers("epochs") == left


def test_a_run_that_was_given_up_and_wakes_up_disturbs_nobody(log: RoundLog) -> None:
    written(log, 4)
    spark_ran(log, offsets=[0, 1, 2, 3], commits=[0, 1, 2])
    log.check_owner()

    after = restarted(log)
    after.write(manifest(3, header="mine"), ROWS)
    log.write(manifest(3, header="late"), ROWS)
    log.write(manifest(4, header="late"), ROWS)

    assert after.newest() == 3
    assert after.read(3).header == "mine"
    with pytest.raises(LostOwnership, match=r"(?s)next.*Hint"):
        log.check_owner()
    after.check_owner()
    spark_ran(log, offsets=[], commits=[3])
    assert restarted(log).read(3).header == "mine", "the last term counts"
    assert RoundLog(log.checkpoint).read(4) is None, "what nobody committed goes at the next start"


def test_of_two_starts_at_once_one_fails(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    other, numbers = RoundLog(log.checkpoint), Files.numbers
    monkeypatch.setattr(Files, "numbers", lambda files, folder: numbers(files, folder)[:0])
    with pytest.raises(FileExistsError):
        other.claim({"run": "at the same moment"})


def test_of_two_starts_at_once_where_nothing_is_exclusive_the_lower_one_has_lost(
    log: RoundLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "exclusive", False)
    monkeypatch.setattr(Files, "numbers", lambda *_: [])  # neither sees the other yet
    runs = sorted((RoundLog(log.checkpoint).claim({"run": name}) for name in "ab"), key=lambda run: run.term)
    monkeypatch.undo()
    runs[1].check_owner()
    with pytest.raises(LostOwnership):
        runs[0].check_owner()


def test_align_fills_ids_that_spark_used_without_us(log: RoundLog) -> None:
    written(log, 3)
    spark_ran(log, offsets=[0, 1, 2, 3, 4], commits=[0, 1, 2, 3, 4])

    after = restarted(log)

    assert after.newest() == 2
    expected = replace(manifest(2), micro_batch=4, offsets=after.spark.text(4))
    assert after.manifest_and_rows(2) == (expected, ROWS)


def test_old_manifests_and_outputs_go(log: RoundLog) -> None:
    current = manifest(-1)
    log.write(current, ROWS)
    for batch in range(30):
        if batch == 15:
            spark_ran(log, offsets=list(range(15)), commits=list(range(15)))
            log = restarted(log)
        gone = [log.write_outputs(batch, ROWS)]
        following = manifest(batch, kept_from=current.kept_from, garbage=gone)
        current = log.prune(following, keep=10)
        assert log.prune(following, keep=10) == current, "a run that goes on repeats what was not written"
        log.write(current, ROWS)

    kept = list(range(19, 30))
    assert log.files.numbers("rounds/1") == kept, "the first term's are gone"
    assert log.files.numbers("rounds/0") == []
    assert log.files.names("outputs") == [f"outputs/1-{batch}-2.arrow" for batch in kept]
    assert log.files.names("terms") == ["terms/0.json", "terms/1.json"]
    assert Path(log.files.path("rounds/0")).exists()
    spark_ran(log, offsets=list(range(15, 30)), commits=list(range(15, 30)))
    restarted(log)
    assert not Path(log.files.path("rounds/0")).exists()


def test_the_limits_of_resident_batches_go_with_their_manifests(log: RoundLog) -> None:
    for batch in range(4):
        log.begin(batch, {})
        log.write(manifest(batch, resident=batch != 1), ROWS)

    log.prune(manifest(4, kept_from=0), keep=1)
    assert log.files.numbers("epochs") == [1, 3], "only a resident one has them"


def test_what_was_written_lately_is_kept(log: RoundLog) -> None:
    for batch in range(4):
        log.write(manifest(batch, written=100.0 if batch != 1 else 10.0), ROWS)

    left = log.prune(manifest(4, written=101.0, kept_from=0), keep=1, seconds=50)

    assert left.kept_from == 0, "the first one is young"
    assert log.files.numbers("rounds/0") == [0, 1, 2, 3]
    assert log.prune(manifest(4, written=200.0, kept_from=0), keep=1, seconds=50).kept_from == 3
    assert log.files.numbers("rounds/0") == [3]


def test_another_format_is_refused(log: RoundLog) -> None:
    log.write(manifest(0, format=99), ROWS)
    with pytest.raises(OtherFlow, match=f"{re.escape(log.files.root)} has format 99"):
        log.read(0)


@pytest.mark.parametrize("text", [b'{"format": 3, "id": "x"}', b'{\n "format": 3\n}'])
def test_a_checkpoint_from_before_there_were_checksums_is_refused_as_one(log: RoundLog, text: bytes) -> None:
    log.files.write("flow.json", text)
    with pytest.raises(OtherFlow, match=f"format 3; this version of timely_spark reads {FORMAT}"):
        log.identity()


def test_sparks_offsets_tell_what_was_taken(log: RoundLog) -> None:
    line = b'{"round":3,"inputs":{"x":7},"sources":{"in":{"files":2}}}'
    Files(log.checkpoint).write("offsets/4", b'v1\n{"batchWatermarkMs":0}\n' + line + b"\n5\n")

    assert log.read_to(4) == ({"x": 7}, {"in": {"files": 2}})
    assert log.spark.flow_offset(5) is None
    assert log.planned() == 4


def test_a_run_knows_that_it_has_lost_however_many_came_after_it(log: RoundLog) -> None:
    for run in "abcd":
        RoundLog(log.checkpoint).claim({"run": run})

    with pytest.raises(LostOwnership, match="run d"):
        log.check_owner()


def test_what_a_batch_needs_that_is_committed_a_moment_too_late_is_kept(log: RoundLog) -> None:
    log.write(manifest(-1), WIRE_ROWS.empty_table())
    waiting = log.write_outputs(0, pa.table({"payload": pa.array([b"x"], pa.binary())}))
    log.write(manifest(0, unreleased={"out": {"0": [waiting]}}), WIRE_ROWS.empty_table())
    log.files.write("blobs/0-nobody-needs-it-1-0", b"x")
    spark_ran(log, offsets=[0], commits=[])

    after = restarted(log)
    of_others = [f"blobs/{after.term}-of-this-run", f"blobs/{after.term + 1}-of-a-later-run", "blobs/other"]
    for name in of_others:
        log.files.write(name, b"x")
    after.sweep()
    spark_ran(log, offsets=[], commits=[0])

    assert after.read(0).unreleased == {"out": {"0": [waiting]}}
    assert (after.files.names("outputs"), sorted(after.files.names("blobs"))) == ([waiting], of_others)


def test_a_checkpoint_without_its_manifests_is_damaged_and_stays_as_it_is(log: RoundLog) -> None:
    spark_ran(log, offsets=[7], commits=[])
    with pytest.raises(LogDamaged, match="Hint"):
        restarted(log)


def test_a_start_removes_what_killed_processes_had_begun_to_write(log: RoundLog) -> None:
    log.write(manifest(-1), WIRE_ROWS.empty_table())
    begun = ["timely/rounds/0/.1.tmp", "timely/blobs/.2.tmp", "offsets/.0.3.tmp", "timely/inputs/x/.4.tmp"]
    for name in begun:
        file = Path(log.checkpoint, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")

    restarted(log).sweep()

    assert [name for name in begun if Path(log.checkpoint, name).exists()] == []


def test_a_manifest_that_was_lost_is_not_taken_for_an_id_that_spark_used_up(log: RoundLog) -> None:
    written(log, 2)
    spark_ran(log, offsets=[0, 1, 2], commits=[0, 1, 2])
    for batch in (1, 2):
        line = b'{"round":%d,"inputs":{"x":7},"sources":{}}' % (batch - 1)
        Files(log.checkpoint).write(f"offsets/{batch}", b"v1\n{}\n" + line)

    with pytest.raises(LogDamaged, match="manifest of batch 2"):
        restarted(log)
    assert RoundLog(log.checkpoint).newest() == 1, "nothing is touched"


def test_a_manifest_that_was_lost_between_others_is_named(log: RoundLog) -> None:
    written(log, 5)
    spark_ran(log, offsets=[0, 1, 2, 3, 4], commits=[0, 1, 2, 3, 4])
    Path(log.files.path("rounds/0/2.arrow")).unlink()

    with pytest.raises(LogDamaged, match="manifest of batch 2"):
        restarted(log)


def test_a_manifest_that_is_not_whole_is_named(log: RoundLog) -> None:
    log.write(manifest(0), ROWS)
    Path(log.files.path("rounds/0/0.arrow")).write_bytes(b"")

    with pytest.raises(LogDamaged, match=r"(?s)rounds/0/0.arrow cannot be read.*Hint"):
        log.read(0)


def test_rolled_back_further_than_anything_is_kept_nothing_is_touched(log: RoundLog) -> None:
    for batch in range(100, 110):
        log.write(manifest(batch), ROWS)
    spark_ran(log, offsets=[49, 50], commits=[50])

    with pytest.raises(LogDamaged, match="manifest of batch 50"):
        restarted(log)
    assert RoundLog(log.checkpoint).newest() == 109


def test_an_output_has_delivered_if_its_frontier_has_moved() -> None:
    frontier: dict[str, list[object]] = {"ended": [], "begun": [[2]], "new": [[0]], "probe": [[2]]}
    coordinator: Any = {"unreleased": {"ended": [], "begun": [], "new": []}}
    first, later = (manifest(batch, frontier=frontier, coordinator=coordinator) for batch in (-1, 3))

    names = ("ended", "begun", "new", "probe", "unknown")
    assert [name for name in names if later.has_delivered(name, "epoch")] == ["ended", "begun"]
    assert later.has_delivered("new", "arrival")
    assert not first.has_delivered("new", "arrival")


def test_a_start_names_a_capture_that_is_missing_and_a_commit_that_is_half_written(log: RoundLog) -> None:
    for batch in (-1, 0):
        log.write(manifest(batch, captured={"out": 0} if batch == 0 else {}), ROWS)
    spark_ran(log, offsets=[0], commits=[0])
    with pytest.raises(LogDamaged, match=r"captured/out/0\.arrow"):
        restarted(log)
    Files(log.checkpoint).write("commits/0", b"v1\n{half")
    with pytest.raises(LogDamaged, match="commits/0"):
        restarted(log)
