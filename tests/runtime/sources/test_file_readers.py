"""The file source under Spark's protocol: nothing is read twice or missed, whatever stops in between."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.errors import LogDamaged, Where
from timely_spark.runtime.errors import BadFile, LostOwnership
from timely_spark.runtime.sources import file_readers, journal, reader
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.sources.file_readers import FilesReader, ReplayReader
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.reader import FilesShare
from timely_spark.runtime.storage.files import Files

ROOT = Path(__file__).parents[3]


class Killed(Exception):
    """The process is killed."""


class World:
    """Spark's log of offsets, a folder that files arrive in, and the process that reads them."""

    def __init__(self, limit: int | None, *, quarantine: bool = False) -> None:
        self.root, self.arrived = Files(tempfile.mkdtemp()), []
        self.way: Any = "quarantine" if quarantine else "fail"
        self.limit, self.removed = limit, set[str]()
        #: of files that were changed
        self.sizes: dict[str, int] = {}
        self.offsets = [{"files": -1}]
        #: by batch its files, as they were first read; and those that the flow is told of as quarantined
        self.read: dict[int, list[str]] = {}
        self.told: dict[int, list[str]] = {}
        self.start()

    def start(self) -> None:
        log = SimpleNamespace(files=self.root, check_owner=lambda: None)
        plan = SimpleNamespace(source=lambda _: SimpleNamespace(stage=SimpleNamespace(outputs=[None])))
        context: Any = SimpleNamespace(
            log=log,
            reporting=nullcontext,
            keep=2,
            log_message=mock.Mock(),
            plan=plan,
            resident=0.0,
            read_offsets={},
            continued=-1,
        )
        here = Where("job.py", 1)
        folder: Any = SimpleNamespace(
            source="in",
            where=here,
            place=(None, "/in"),
            divisible=False,
            listing=lambda: ([file for file in self.arrived if file.path not in self.removed], {}),
            sizes=lambda files: {
                file.path: None if file.path in self.removed else self.sizes.get(file.path, file.size)
                for file in files
            },
            why_bad=lambda file, **_: "half of it" if file.modified % 2 else None,
        )
        source = FileSource(folder, files_per_epoch=self.limit, on_bad_file=self.way)
        self.reader = FilesReader(context, source, lambda _: 0)

    def arrive(self, modified: int) -> None:
        self.arrived.append(File(modified, f"/in/{len(self.arrived)}", 1))

    def poll(self) -> dict[str, int]:
        self.reader.look_again()
        return self.reader.latest_offset(self.offsets[-1])

    def run(self, batch: int) -> None:
        shares = self.reader.shares(self.offsets[batch - 1], self.offsets[batch])
        assert all(isinstance(share, FilesShare) for share in shares)
        files = [part.path for share in shares for part in share.parts]
        assert self.read.setdefault(batch, files) == files, "a replay reads the same files"
        told = [file.path for share in shares for file in share.bad]  # type: ignore[attr-defined]
        assert self.told.setdefault(batch, told) == told, "and tells of the same files"

    def batch(self) -> bool:
        end = self.poll()
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        self.run(len(self.offsets) - 1)
        self.reader.commit(end)
        return True


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.just("arrive"), st.integers(0, 9))
        | st.tuples(st.sampled_from(["batch", "planned", "begun", "merging", "restart"]), st.integers(0, 6)),
        max_size=60,
    ),
    st.integers(1, 3) | st.none(),
    st.booleans(),
)
def test_every_file_is_read_or_quarantined_once_however_often_the_process_is_killed(
    steps: list[tuple[str, int]],
    limit: int | None,
    quarantine: bool,  # noqa: FBT001 - drawn
) -> None:
    with mock.patch.object(journal, "EVERY", 2):
        world = World(limit, quarantine=quarantine)
        for step, number in steps:
            if step == "arrive":
                world.arrive(number)
            elif step == "batch":
                world.batch()
            else:
                _killed(world, step, number)
        while world.batch():
            pass
    read, told = ([path for files in of.values() for path in files] for of in (world.read, world.told))
    bad = {file.path for file in world.arrived if quarantine and file.modified % 2}

    assert sorted(told) == sorted(bad)
    assert sorted(read) == sorted(file.path for file in world.arrived if file.path not in bad)


@pytest.mark.slow
def test_a_query_starts_without_waiting_for_pandas() -> None:
    code = (
        "import sys; from tests.runtime.sources.test_file_readers import World; world = World(None); "
        "world.arrive(2); assert world.batch(); print('pandas' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"


def test_files_that_no_batch_has_begun_to_read_are_counted_when_that_changes() -> None:
    world = World(2)

    def waits() -> str:
        context: Any = world.reader.context
        manifest: Any = SimpleNamespace(entries={}, sources={"in": world.offsets[-1]}, read={}, late={})
        return Account.of(context.log, manifest, [["in", "clock", "journal"]])["in"].backlog

    with mock.patch.object(Files, "write_json", autospec=True, side_effect=Files.write_json) as written:
        assert not world.batch()
        assert not written.called
        for number in range(5):
            world.arrive(number)
        assert world.batch()
        assert waits() == "3 files"
        world.start()
        assert waits() == "3 files"
        assert world.batch()
        assert waits() == "1 file"
        assert world.batch()
        assert waits() == ""
        count = written.call_count
        world.arrive(9)
        assert world.batch()
        assert written.call_count == count


@pytest.mark.slow
@pytest.mark.parametrize("after", range(3))
def test_a_process_killed_while_it_removes_merged_files_has_lost_none(after: int) -> None:
    killed = 0
    with mock.patch.object(journal, "EVERY", 2):
        world = World(None)
        for number in range(9):
            world.arrive(number)
            killed += _killed(world, "merging", after)
        while world.batch():
            pass

    assert killed > 1
    assert [path for files in world.read.values() for path in files] == [file.path for file in world.arrived]


def _killed(world: World, step: str, after: int) -> bool:
    """Kill the process: after a batch was planned, or begun, or when it has removed so many merged files.

    Returns:
        Whether it was killed while it removed files.
    """
    merging = False
    if step == "planned":
        world.poll()
    if step == "begun" and (end := world.poll()) != world.offsets[-1]:
        world.offsets.append(end)
        world.run(len(world.offsets) - 1)
    if step == "merging":
        remove, removed = Files.remove, []

        def until(files: Files, name: str) -> None:
            nonlocal merging
            if len(removed) == after:
                merging = True
                raise Killed
            removed.append(name)
            remove(files, name)

        with mock.patch.object(Files, "remove", until), suppress(Killed):
            world.batch()
    world.start()
    if len(world.offsets) > 1:
        world.run(len(world.offsets) - 1)  # Spark runs the last batch again
    return merging


def test_what_resident_batches_of_an_earlier_run_have_read_is_not_read_again() -> None:
    world = World(1)
    for number in range(3):
        world.arrive(number)
        world.batch()
    del world.offsets[2:]  # Spark knows of the first batch
    world.start()
    world.reader.context.read_offsets["in"] = {"files": 2}
    assert world.poll() == world.offsets[-1], "nothing is new"
    world.arrive(3)
    end = world.poll()
    assert (end["files"], end["after"]) == (3, {"files": 2})
    (share,) = world.reader.shares(world.offsets[-1], end)
    assert [part.path for part in share.parts] == ["/in/3"]


def test_under_available_now_what_arrives_later_is_left() -> None:
    world = World(1)
    world.arrive(1)
    world.arrive(2)
    world.reader.fix_end()
    world.arrive(0)
    while world.batch():
        pass

    assert world.read == {1: ["/in/0"], 2: ["/in/1"]}


def test_a_file_that_is_removed_before_its_batch_is_not_waited_for() -> None:
    world = World(1)
    for n in range(4):
        world.arrive(n)
    world.batch()
    world.removed = {"/in/1", "/in/2"}
    while world.batch():
        pass

    assert world.read == {1: ["/in/0"], 2: ["/in/3"]}
    assert [call.args[-1] for call in world.reader.context.log_message.mock_calls] == ["/in/1", "/in/2"]


def test_a_damaged_file_that_was_restored_is_read_whole_by_the_next_run() -> None:
    world = World(None)
    world.arrive(0)
    world.batch()

    def ends() -> list[int]:
        shares = world.reader.shares(*world.offsets)
        return [part.end for share in shares for part in share.parts]

    world.sizes["/in/0"] = 7
    assert ends() == [1], "this run has read it"
    world.start()
    assert ends() == [7]


def test_a_file_that_comes_back_after_it_was_removed_is_read_without_a_restart() -> None:
    world = World(1)
    world.arrive(1)
    world.arrive(2)
    world.batch()
    world.removed = {"/in/1"}
    assert not world.batch()
    world.removed = set()
    world.batch()

    assert world.read == {1: ["/in/0"], 2: ["/in/1"]}


def test_batches_are_journaled_and_checked_also_when_the_interpreter_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = mock.Mock(side_effect=RuntimeError("cannot schedule new futures after interpreter shutdown"))
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    world = World(None, quarantine=True)
    world.arrive(1)
    world.arrive(2)
    world.batch()

    assert (world.read, world.told) == ({1: ["/in/1"]}, {1: ["/in/0"]})


def test_a_hold_is_renewed_at_the_first_look_however_long_the_machine_has_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holds = list[tuple[Any, ...]]()
    source = SimpleNamespace(name="in", hold=lambda *args: holds.append(args[1:]))
    own: Any = ReplayReader(SimpleNamespace(checkpoint="/c"), source, lambda _: 0)  # type: ignore[arg-type]
    monkeypatch.setattr(file_readers.time, "monotonic", lambda: 1.0)
    published: Any = SimpleNamespace(lease=1000.0, held=lambda _: 3)
    assert own._since({"epoch": 5, "since": 2}, published) == 2
    assert holds == [(own._reader, 3, 2)]


def test_a_trigger_that_asks_for_everything_gets_it() -> None:
    world = World(1)
    world.arrive(1)
    world.arrive(2)

    end = world.reader.latest_offset({"files": -1}, unlimited=True)
    (share,) = world.reader.shares({"files": -1}, end)
    assert [part.path for part in share.parts] == ["/in/0", "/in/1"]


def test_a_batch_is_on_the_disk_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(files: Files, name: str) -> None:
        begun.wait(10)
        synced.append(name)
        sync(files, name)

    sync, begun, synced = Files.sync, threading.Event(), list[str]()
    monkeypatch.setattr(Files, "sync", slow)
    world = World(None)
    world.arrive(1)
    world.offsets.append(world.poll())
    assert synced == []  # Spark goes on meanwhile
    begun.set()
    world.run(1)
    assert synced == ["files/in/0.arrow"]
    world.start()  # the process before may have been killed meanwhile
    world.run(1)
    assert synced == ["files/in/0.arrow"] * 2


def test_a_disk_that_fails_keeps_a_batch_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(None)
    world.root.write("files/in/x", b"")  # so that the folders are there
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.EIO, "the disk")))
    world.arrive(1)
    world.offsets.append(world.poll())
    with pytest.raises(OSError, match="the disk"):
        world.run(1)


def test_a_batch_that_another_process_has_written_is_the_one_that_counts() -> None:
    world = World(None)
    world.arrive(1)
    assert world.poll() == {"files": 0}
    other = FileJournal(world.root, "in")
    other.append([File(1, "/in/other", 1)])
    world.offsets.append({"files": 0})
    world.arrive(2)
    world.batch()
    assert world.read == {2: ["/in/other"]}
    world.batch()

    assert world.read == {2: ["/in/other"], 3: ["/in/1"]}


@pytest.mark.slow
def test_the_journal_of_many_batches_is_a_few_files_and_each_path_is_written_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(files: Files, name: str, table: pa.Table, **options: bool) -> None:
        paths.append(table.num_rows)
        written(files, name, table, **options)

    written, paths = Files.write_table, list[int]()
    monkeypatch.setattr(Files, "write_table", write)
    with mock.patch.object(journal, "EVERY", 4):
        world = World(1)
        for n in range(128):
            world.arrive(n)
            world.batch()
            if n % 8 == 7:
                world.start()  # a restart knows how large the files are
    names = [name.rpartition("/")[2] for name in world.root.names("files/in")]

    assert len([name for name in names if "-" in name]) <= 5
    assert len([name for name in names if "-" not in name]) <= 2 + 4
    assert sum(paths) <= 128 * (2 + 7)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [7, 11], ids=["one merged file", "two merged files"])
@pytest.mark.parametrize("removed", range(5))
def test_a_process_that_is_killed_while_it_removes_merged_batches_leaves_nothing(
    removed: int, batches: int
) -> None:
    """The merged file is written, and so many of those in it were removed."""
    with mock.patch.object(journal, "EVERY", 2):
        world = World(1)
        for n in range(16):
            world.arrive(n)
        for _ in range(batches):
            world.batch()
        _killed(world, "merging", removed)
        names = [name.rpartition("/")[2].removesuffix(".arrow") for name in world.root.names("files/in")]
        spans = [[int(number) for number in name.split("-")] for name in names]
        there = sorted(number for span in spans for number in range(span[0], span[-1] + 1))
        assert there == list(range(world.reader._journal.last + 1)), "each batch is in one file"
        while world.batch():
            pass
    assert [world.read[batch] for batch in sorted(world.read)] == [[f"/in/{n}"] for n in range(16)]


def test_merged_batches_are_on_the_disk_before_theirs_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(files: Files, name: str, table: pa.Table, *, durable: bool = False, new: bool = False) -> None:
        if durable:
            on_disk.add(name)
        written(files, name, table, durable=durable, new=new)

    def sync(files: Files, name: str) -> None:
        on_disk.add(name)

    def remove(files: Files, name: str) -> None:
        kept = [name for name in files.names("files/in") if "-" in name]
        assert kept
        assert {*kept} <= on_disk
        removed.append(name)
        remove_(files, name)

    written, remove_, on_disk, removed = Files.write_table, Files.remove, set[str](), list[str]()
    for name, method in {"write_table": write, "sync": sync, "remove": remove}.items():
        monkeypatch.setattr(Files, name, method)
    with mock.patch.object(journal, "EVERY", 2):
        world = World(1)
        for n in range(9):
            world.arrive(n)
            world.batch()
    assert len(removed) > 6


def test_a_process_that_lost_the_checkpoint_writes_no_batch() -> None:
    world = World(None)
    world.arrive(1)
    world.poll()
    world.arrive(2)
    lost = LostOwnership("a later run")
    world.reader.context.log.check_owner = mock.Mock(side_effect=lost)
    world.offsets.append({"files": 0})
    with pytest.raises(LostOwnership):
        world.poll()

    assert len(world.root.names("files/in")) == 1


def test_what_is_not_read_is_that_of_the_last_listing_also_after_a_restart() -> None:
    world = World(None)
    world.reader._report({"/in/link": "is a link"})
    world.start()
    world.reader._list()
    assert world.root.json("ignored/in-ignored.json") == {"count": 0, "names": {}}
    world.start()
    with mock.patch.object(Files, "write_json") as write:
        world.reader._list()
    assert not write.called, "it says so already"


def test_each_flow_of_a_process_is_warned_once_of_columns_that_are_not_read() -> None:
    warnings = list[int]()
    for checkpoint in ("/one", "/other", "/one"):
        world = World(None)
        context: Any = world.reader.context
        context.checkpoint = checkpoint
        world.reader._warn_of_columns("/in/new.csv", ["more"], ["n"])
        texts = [str(call) for call in context.log_message.call_args_list]
        assert all("The file lacks ['n'], which is null in its rows." in text for text in texts)
        warnings.append(len(texts))
    assert warnings == [1, 1, 0]


def test_a_source_is_looked_at_for_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def listed() -> tuple[list[File], dict[str, str]]:
        now[0] += 2.0
        looks.append(now[0])
        return [], {}

    looks: list[float] = []
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = World(None)
    monkeypatch.setattr(world.reader.source.folder, "listing", listed)
    for _ in range(50):
        world.reader.latest_offset({"files": -1}, unlimited=True)
        now[0] += 1.0

    assert looks == [102.0, 122.0, 142.0]


def test_a_missing_batch_and_a_checkpoint_of_another_kind_are_errors() -> None:
    world = World(1)
    for n in range(3):
        world.arrive(n)
        world.batch()
    world.offsets.append({"files": 9})
    with pytest.raises(LogDamaged, match=r"files/in/9\.arrow"):
        world.poll()
    world.offsets.append({"logOffset": 3})
    with pytest.raises(BadFile, match=r"position in the checkpoint is \{'logOffset': 3\} \(job.py:1\)\nHint"):
        world.poll()
    world.offsets.pop()
    world.root.remove("files/in/1.arrow")
    world.start()
    with pytest.raises(LogDamaged, match=r"files/in/1\.arrow"):
        world.poll()


def test_a_batch_that_is_not_durable_is_told_of_though_the_next_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = Files.sync, [OSError(errno.EIO, "the disk fails")]

    def sync(files: Files, name: str) -> None:
        if failures:
            raise failures.pop()
        real(files, name)

    monkeypatch.setattr(Files, "sync", sync)
    batches = FileJournal(Files(tmp_path), "in")
    batches.append([File(1, "a", 1)])
    with pytest.raises(OSError, match="the disk fails"):
        batches.append([File(2, "b", 1)])


@pytest.mark.parametrize(("resident", "continued"), [(1e9, -1), (0.0, 5)], ids=["stays", "did before"])
def test_a_batch_begins_after_what_batches_without_a_micro_batch_have_read(
    resident: float, continued: int
) -> None:
    world = World(None)
    context: Any = world.reader.context
    start = world.offsets[0]
    for modified in (1, 2):
        world.arrive(modified)
        start, before = world.poll(), start
        world.offsets.append(start)
    manifests: dict[int, Any] = {7: SimpleNamespace(sources={"in": start})}
    looked = list[int]()
    context.resident, context.continued = resident, continued
    context.log.newest = lambda _: max(manifests) if manifests else None
    context.log.read = lambda number: looked.append(number) or manifests[number]
    latest = world.reader.latest_offset

    assert latest(before) is before, "nothing is new"
    world.arrive(3)
    world.reader.look_again()
    assert latest(before) == {"files": 2, "after": {"files": 1}}
    assert looked == [7]
    manifests[8] = SimpleNamespace(sources={"in": {"files": 2}})
    assert latest(before) is before
    for manifests[9] in (SimpleNamespace(sources={}), None):  # a new source; and a manifest that was removed
        world.reader._newest = 8
        assert latest({"files": 1}) == {"files": 2}
    manifests.clear()
    assert latest({"files": 1}) == {"files": 2}
