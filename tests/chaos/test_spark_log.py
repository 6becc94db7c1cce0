"""Damage to what Spark itself writes into a checkpoint is found at a restart, and named."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support.engine import CALM, Killed, Process, World, _points
from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.spark_log import SparkLog


def flow() -> ts.Dataflow:
    made = ts.Dataflow("offsets")
    made.input("x", "n long").group_by("n").count(name="counts").capture("out")
    return made


def here(world: World) -> Process:
    """A process on this thread."""
    process = Process(world)
    process.thread = threading.current_thread()
    world.processes = [process]
    return process


def run(folder: Path, batches: int, *, kill_in: int | None = None) -> Process:
    """Run micro-batches with one send each, and be killed in one of them: planned, and not delivered."""
    world = World(flow(), str(folder), {"x": [("send", ([n],)) for n in range(batches)]}, rounds=1, workers=1)
    world.odds = CALM
    process = here(world)
    with _points(world):
        process.start()
        handle, sends = process.handles["x"], world.sends["x"]
        process.send = lambda: bool(sends) and not handle.send(*sends.pop(0)[1]) and bool(sends)  # type: ignore[method-assign]
        if kill_in is not None:
            tasks = process.tasks

            def dies(n: int, rows: Any) -> Any:
                if n == kill_in:
                    raise Killed
                return tasks(n, rows)

            process.tasks = dies  # type: ignore[method-assign]
        try:
            while process.batch():
                pass
        except Killed:
            pass
    return process


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A flow that was stopped, and one that was killed in batch 4, which has offsets only."""
    folder = tmp_path_factory.mktemp("templates")
    made = {"stopped": folder / "stopped", "killed": folder / "killed", "other": folder / "other"}
    run(made["stopped"], 5)
    run(made["killed"], 5, kill_in=4)
    run(made["other"], 5)
    return made


@pytest.fixture(params=["stopped", "killed"])
def checkpoint(request: pytest.FixtureRequest, templates: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(templates[request.param], tmp_path / "checkpoint"))


def go_on(checkpoint: Path) -> dict[int, list[Any]]:
    """Restart, without the batches of Spark, and look at what is there."""
    process = Process(World(flow(), str(checkpoint), {}, rounds=1, workers=1))
    process.start()
    return process.captured()


def newest(checkpoint: Path, folder: str = "offsets") -> list[Path]:
    files = [file for file in (checkpoint / folder).iterdir() if file.name.isdigit()]
    return sorted(files, key=lambda file: -int(file.name))


@pytest.mark.slow
def test_an_untouched_checkpoint_goes_on(checkpoint: Path) -> None:
    assert len(newest(checkpoint)) == 5
    assert len(go_on(checkpoint)) >= 4


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_its_last_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def no_text(path: Path) -> None:
    path.write_bytes(b"v1\n{}\n\xff\xfe\x00")


def deep(path: Path) -> None:
    path.write_bytes(b"v1\n" + b"[" * 100_000 + b"\n" + b"[" * 100_000)


def linked_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def linked_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS = [
    zeroed, emptied, cut_short, without_its_last_bytes, no_text, deep, linked_to_nothing, linked_to_zeros,
    a_pipe, a_folder,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("which", ["offsets", "offsets before", "commits", "metadata"])
def test_damage_is_named(checkpoint: Path, harm: Callable[[Path], None], which: str) -> None:
    path = checkpoint / "metadata"
    if which != "metadata":
        path = newest(checkpoint, which.partition(" ")[0])[which.endswith("before")]
    harm(path)
    name = str(path.relative_to(checkpoint))
    with pytest.raises(LogDamaged, match=rf"(?s){name}.*Hint") as caught:
        go_on(checkpoint)
    assert not {"delete", "remove", "empty"} & set((caught.value.hint or "").split())


def exchanged(checkpoint: Path, _: Path) -> None:
    first, second = newest(checkpoint)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def exchanged_with_an_older_one(checkpoint: Path, _: Path) -> None:
    first, *_, last = newest(checkpoint)
    content = first.read_bytes()
    first.write_bytes(last.read_bytes())
    last.write_bytes(content)


def copied(checkpoint: Path, _: Path) -> None:
    first, second = newest(checkpoint)[:2]
    first.write_bytes(second.read_bytes())


def of_another_checkpoint(checkpoint: Path, other: Path) -> None:
    first, second = newest(checkpoint)[:2]
    shutil.copy(other / "offsets" / first.name, first)
    shutil.copy(other / "offsets" / second.name, second)


def behind(checkpoint: Path, _: Path) -> None:
    first, second = newest(checkpoint)[:2]
    *head, feedback = first.read_text().split("\n")
    old = json.loads(second.read_text().split("\n")[2])
    first.write_text(
        "\n".join([*head, json.dumps(json.loads(feedback) | {"inputs": {"x": old["inputs"]["x"] - 1}})])
    )


def of_fewer_sources(checkpoint: Path, _: Path) -> None:
    for file in newest(checkpoint)[1:]:
        file.write_text(file.read_text() + "\n7")


EXCHANGES = [exchanged, exchanged_with_an_older_one, copied, of_another_checkpoint, behind, of_fewer_sources]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.__name__)
def test_offsets_that_no_batch_was_given_are_named(
    checkpoint: Path, templates: dict[str, Path], exchange: Callable[[Path, Path], None]
) -> None:
    before = sorted((checkpoint / "timely").rglob("*"))
    exchange(checkpoint, templates["other"])
    with pytest.raises(LogDamaged, match=r"(?s)offsets/\d+ cannot be read: it .*Hint"):
        go_on(checkpoint)
    assert [path for path in sorted((checkpoint / "timely").rglob("*")) if path.name != "lock"] == before


@pytest.mark.slow
def test_a_batch_that_has_no_manifest_begins_where_the_one_before_it_ended(
    templates: dict[str, Path], tmp_path: Path
) -> None:
    """Each of the checks alone: the manifests of the two last batches are those of the first format."""
    for exchange in (copied, behind, of_fewer_sources):
        checkpoint = Path(shutil.copytree(templates["killed"], tmp_path / exchange.__name__))
        with pytest.MonkeyPatch.context() as patch:
            check = SparkLog.check
            patch.setattr(
                SparkLog, "check", lambda log, batches, check=check: check(log, dict.fromkeys(batches))
            )
            go_on(Path(shutil.copytree(checkpoint, tmp_path / f"{exchange.__name__} before")))
            exchange(checkpoint, templates["other"])
            with pytest.raises(LogDamaged, match="offsets/4 cannot be read"):
                go_on(checkpoint)


def test_a_manifest_has_the_offsets_of_its_batch(checkpoint: Path) -> None:
    log = RoundLog(str(checkpoint))
    assert len(log.spark.commits) > 1
    for batch in log.spark.commits:
        manifest = log.read(batch)
        assert isinstance(manifest, Manifest)
        assert manifest.offsets == (checkpoint / "offsets" / str(batch)).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["timely", "timely/flow.json", "offsets", "commits", "timely/terms", "timely/rounds", "metadata"]
)
def test_a_part_that_was_deleted_is_named_as_missing(checkpoint: Path, part: str) -> None:
    path = checkpoint / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    missing = {
        "timely": "flow.json",
        "timely/flow.json": "flow.json",
        "offsets": r"offsets/\d+",
        "commits": r"commits/\d+",
        "timely/terms": r"terms/\d+.json",
        "timely/rounds": "rounds/",
        "metadata": "metadata",
    }[part]
    with pytest.raises(
        LogDamaged, match=rf"(?s)does not hold .*{missing}.*Hint: restore the whole checkpoint"
    ) as caught:
        go_on(checkpoint)
    assert not {"delete", "remove", "empty"} & set((caught.value.hint or "").split())


def test_a_manifest_of_a_batch_without_offsets_is_damage_before_the_first_commit_too(tmp_path: Path) -> None:
    log = SparkLog(Files(tmp_path))
    log.check({})
    with pytest.raises(LogDamaged, match="does not hold offsets/0"):
        log.check({0: None})


def test_a_checkpoint_that_was_removed_under_a_running_flow_is_no_foreign_one(tmp_path: Path) -> None:
    process = run(tmp_path / "checkpoint", 3)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(LogDamaged, match=r"does not hold flow\.json"):
        process.handles["x"].send([7])
    process.context.log.files.write("inputs/x/3.arrow", b"")  # as of a handle in the middle of a send
    with pytest.raises(LogDamaged), _points(process.world):
        process.batch()
    left = [path.relative_to(tmp_path / "checkpoint") for path in tmp_path.rglob("checkpoint/*/*")]
    assert left != []
    with pytest.raises(LogDamaged, match=r"does not hold flow\.json"):
        go_on(tmp_path / "checkpoint")
    with pytest.raises(LogDamaged, match=r"does not hold flow\.json"):
        Status.of(str(tmp_path / "checkpoint"))


def test_offsets_of_another_query_are_not_a_flows(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":0}')
    with pytest.raises(OtherFlow, match="no flow started"):
        go_on(tmp_path)


def test_other_names_are_no_batches(checkpoint: Path) -> None:
    first = newest(checkpoint)[0]
    for name in ("99.orig", "99 copy", ".99.crc", "٩٩", "99.arrow.bak"):
        shutil.copy(first, first.parent / name)
        shutil.copy(first, checkpoint / "timely" / "rounds" / "0" / name)
    assert len(go_on(checkpoint)) >= 4


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("harm", [None, *HARMS], ids=lambda harm: getattr(harm, "__name__", "deleted"))
@pytest.mark.parametrize("which", ["3", "4", "2.compact"])
def test_what_sparks_source_of_files_has_listed_is_checked(
    checkpoint: Path, harm: Callable[[Path], None] | None, which: str
) -> None:
    """A flow that reads a DataFrame of files: the second line of its offsets counts Spark's list."""
    log = RoundLog(str(checkpoint))
    for path in newest(checkpoint):
        path.write_text(path.read_text() + f'\n{{"logOffset":{path.name}}}')
    folder = checkpoint / "sources" / "1"
    folder.mkdir(parents=True)
    for name in ("2.compact", "3", "4"):
        (folder / name).write_text('v1\n{"path":"file:/x/1.csv","timestamp":1,"batchId":2}')
    given = {batch: log.spark.text(batch) for batch in (3, 4)}
    log.spark.check(given)
    folder.joinpath(which).unlink() if harm is None else harm(folder / which)
    with pytest.raises(LogDamaged, match=rf"sources/1/{'0' if harm is None and which[0] == '2' else which}"):
        log.spark.check(given)
    shutil.rmtree(checkpoint / "sources")
    with pytest.raises(LogDamaged, match="sources/1/0"):
        log.spark.check(given)
