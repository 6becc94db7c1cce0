"""A file system that refuses a file owns the error, wherever it happens, and nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.engine import Process, World
from timely_spark.errors import LogDamaged, StorageFailed, VertexError
from timely_spark.runtime import start
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.outputs import prepare_outputs
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.sources.journal import EVERY, FileJournal
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.stores import Local

ERRNOS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES]
WRITES, READS = ["write", "sync", "remove"], ["read", "mapped", "names", "size"]


@contextmanager
def refusing(at: int | None, number: int, *, methods: list[str]) -> Iterator[list[str]]:
    """Refuse the `at`-th call of the store, and all later ones of its method; yields the paths."""
    paths: list[str] = []
    refused: list[str] = []

    def wrapped(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: Local, path: str, *args: Any, **more: Any) -> Any:
            if "/offsets/" in path or "/commits/" in path or path.endswith("/metadata"):
                return method(store, path, *args, **more)  # the engine's, which is Spark here
            paths.append(path)
            if len(paths) - 1 == at or name in refused:
                refused.append(name)
                raise OSError(number, os.strerror(number), path)
            return method(store, path, *args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in methods:
            patch.setattr(Local, name, wrapped(name, getattr(Local, name)))
        yield paths


def flow(folder: Path) -> ts.Dataflow:
    """State in blobs, messages between workers, outputs that wait, a folder for another flow."""
    made = ts.Dataflow("full")
    numbers = made.input("x", "n long, word string", epochs="manual")
    numbers.distinct(name="once").group_by("word").count(name="counts").capture("out")
    moved = numbers.exchange("n")
    moved.capture("all")
    moved.capture_to(folder / "folder", name="folder")
    return made


def world(folder: Path, *, stays: bool = False) -> World:
    def rows(first: int) -> tuple[str, Any]:
        return "send", ([(n, f"word {n % 20}") for n in range(first, first + 60)],)

    sends = [rows(0), rows(50), ("advance_to", (1,)), rows(100), ("advance_to", (2,)), ("close", ())]
    there = World(
        flow(folder), str(folder / "checkpoint"), {"x": sends}, rounds=100 if stays else 1, workers=2,
        keep=50, resident=stays,
    )  # fmt: skip
    there.clocked = False
    return there


def live(there: World, batches: int = sys.maxsize) -> Process:
    """A start and its batches, so many at most, on this thread."""
    process = Process(there)
    process.thread = threading.current_thread()
    there.processes = [process]
    with engine._points(there):
        process.start()
        process.started = True
        while batches and process.batch():
            batches -= 1
    return process


def outcome(process: Process, folder: Path) -> Any:
    """The records of all outputs, by epoch."""
    watch = LogView(process.context)
    rows = {name: watch.captured(name).rows() for name in ("out", "all")}
    files = {path.name: pa.ipc.open_file(path).read_all().num_rows for path in folder.rglob("epoch-*.arrow")}
    return rows, files


def calls(folder: Path, methods: list[str], *, stays: bool) -> list[str]:
    there = world(folder, stays=stays)
    with refusing(None, 0, methods=methods) as paths:
        live(there)
    assert bool(there.count["resident batches"]) is stays
    return paths


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    rows, files = outcome(live(world(folder)), folder)
    assert [len(each) for each in rows.values()] == [3, 3]
    assert sorted(files.values()) == [0, 60, 120]
    return rows, files


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("stays", [False, True], ids=["micro-batches", "resident"])
@pytest.mark.parametrize("methods", [WRITES, READS], ids=["writing", "reading"])
@pytest.mark.parametrize("share", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 11))])
def test_whatever_is_refused_the_storage_owns_the_error_and_a_restart_has_lost_nothing(
    tmp_path: Path, undisturbed: Any, methods: list[str], share: int, *, stays: bool
) -> None:
    total = len(calls(tmp_path / "counted", methods, stays=stays))
    assert total > 50
    owned = 0
    for at in range(share, total, 11 if methods is WRITES else 36):
        number, folder = ERRNOS[at % len(ERRNOS)], tmp_path / str(at)
        there = world(folder, stays=stays)
        with refusing(at, number, methods=methods) as paths:
            try:
                live(there)
            except (StorageFailed, LogDamaged) as error:
                owned += 1
                assert any(str(folder) in str(error) and "Hint" in str(error) for _ in paths)  # noqa: PT017
                assert os.strerror(number) in str(error)  # noqa: PT017
                assert methods is READS or isinstance(error, StorageFailed)  # noqa: PT017
        assert outcome(live(there), folder) == undisturbed
    assert owned > 4


@pytest.mark.slow
@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
def test_each_journal_says_which_file_was_refused(tmp_path: Path, number: int) -> None:
    handle = InputHandle("x", "n long", epochs="manual")
    log = start.RoundLog(str(tmp_path))
    handle.open(log, 0)
    journal = FileJournal(log.files, "y")
    files = [File(modified=1, path="/a", size=1)]
    for _ in range(EVERY):
        journal.append(files)
    sink = CaptureFolderSink(str(tmp_path / "out"))
    output: Any = SimpleNamespace(name="out", schema=pa.schema([("n", pa.int64())]), resumed=False)
    sink.prepare(None, output, "", "i")
    sink.claim(None, output)
    tried: dict[str, Callable[[], object]] = {
        "inputs/x/0.arrow": lambda: handle.send([1]),
        f"files/y/{EVERY}.arrow": lambda: journal.append(files),
        f"files/y/0-{EVERY - 1}.arrow": lambda: journal.merge(EVERY - 1),
        "epoch-00000000000000000003.arrow": lambda: sink.write(3, pa.table({"n": [1]})),
        "_complete": sink.complete,
    }
    for name, call in tried.items():
        with (
            refusing(0, number, methods=["write"]),
            pytest.raises(StorageFailed, match=rf"(?s){name} cannot be written: .*Hint") as caught,
        ):
            call()
        assert caught.value.errno == number
    handle.send([1])
    assert handle.sent == 1, "what was refused was not sent"
    with refusing(0, number, methods=["sync"]):
        journal.append(files)
        with pytest.raises(StorageFailed, match="synced"):
            journal.wait()


def test_a_users_function_owns_its_own_full_disk(tmp_path: Path) -> None:
    def full(row: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = ts.Dataflow("own")
    made.input("x", "n long").map(full, "n long", name="mine").capture("out")
    with pytest.raises(VertexError, match=r"(?s)'mine'.*in full \(.*No space left"):
        ts.testing.run(made, {"x": [[1]]})

    told = ts.Dataflow("told")
    told.input("x", "n long").subscribe(lambda epoch, table: full(epoch), name="mine")
    there = World(told, str(tmp_path), {"x": [("send", ([1],))]}, rounds=1, workers=1)
    with pytest.raises(VertexError, match=r"(?s)'mine'.*in <lambda> \(.*No space left"):
        live(there)


@pytest.mark.slow
def test_the_report_of_a_full_disk_need_not_be_written(tmp_path: Path) -> None:
    context = live(world(tmp_path)).context
    with refusing(0, errno.ENOSPC, methods=["write"]), pytest.raises(StorageFailed), context.reporting():
        context.log.files.write("blobs/0-x", b"x")
    failure = context.failure()
    assert isinstance(failure, StorageFailed)
    assert "blobs/0-x cannot be written: No space left on device (ENOSPC)" in str(failure)
    assert RunContext.from_option(context.to_option()).failure() is not None


TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: PythonException: Traceback:
  File "folder.py", line 118, in __call__
timely_spark.errors.StorageFailed: /data/out/epoch-3.parquet cannot be written: Disk quota exceeded (EDQUOT)
Hint: free space there, or raise the quota, and start again: nothing that was complete is lost.

\tat org.apache.spark.api.python.BasePythonRunner (PythonRunner.scala:602)"""
SPARK = (
    "org.apache.spark.SparkException: Task failed\nCaused by: java.io.IOException: No space left on device\n"
)


@pytest.mark.slow
def test_errors_of_spark_have_the_storage_as_their_owner_too(tmp_path: Path) -> None:
    context = live(world(tmp_path)).context
    error = context.storage_error(TASK)
    assert isinstance(error, StorageFailed)
    assert str(error).startswith(
        "/data/out/epoch-3.parquet cannot be written: Disk quota exceeded (EDQUOT)\nHint"
    )
    assert isinstance(context.storage_error(SPARK), StorageFailed)
    assert context.storage_error("no such column") is None

    state = f"[CANNOT_LOAD_STATE_STORE] Error reading file:{context.checkpoint}/state/0/1/3.delta of HDFS"
    assert "checkpoint: state/0/1/3.delta cannot be read" in str(context.storage_error(state))
    missing = "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart"
    assert "does not hold state." in str(context.storage_error(missing))


@pytest.mark.slow
@pytest.mark.parametrize("at_start", [True, False])
def test_an_output_of_spark_names_itself_and_its_place(tmp_path: Path, at_start: bool) -> None:  # noqa: FBT001
    process = live(world(tmp_path))
    sink = DeltaSink("/data/table")
    output: Any = Output(name="all", vertex=process.driver.outputs[1].vertex, sink=sink)

    def refuse(*_: Any) -> None:
        raise RuntimeError(SPARK)

    if at_start:
        sink.prepare = refuse  # type: ignore[method-assign]
    told = r"output 'all' to /data/table.*No space left on device \(ENOSPC\)"
    with pytest.raises(StorageFailed, match=told), process.driver._named(output, 3):
        prepare_outputs(None, [output], process.world.plan, "", "") if at_start else refuse()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get
)
def test_a_start_says_what_is_full(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(start.Lock, "acquire", refuse)
    with (
        ExitStack() as undo,
        pytest.raises(StorageFailed, match=rf"{tmp_path}.*{errno.errorcode[number]}.*\nHint"),
    ):
        start._locked(str(tmp_path / "checkpoint"), undo)
    monkeypatch.setattr(start, "on_one_machine", lambda _: True)
    monkeypatch.setattr(start.tempfile, "mkdtemp", refuse)
    with ExitStack() as undo, pytest.raises(StorageFailed, match=r"a temporary checkpoint in /.*\nHint"):
        start._temporary(None, None, undo)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_file_system_that_becomes_read_only_is_named_read_and_continued(
    tmp_path: Path, undisturbed: Any
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        there = world(disk)
        process = live(there, batches=4)
        before = outcome(process, disk)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StorageFailed, match=rf"(?s){disk}.*Read-only file system.*Hint: ") as error:
            live(there)
        assert error.value.errno == errno.EROFS
        assert outcome(process, disk) == before
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert outcome(live(there), disk) == undisturbed
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.write_json("flow.json", {})
    for number, kind in (
        (errno.EACCES, StorageFailed),
        (errno.EMFILE, StorageFailed),
        (errno.EIO, LogDamaged),
    ):
        with (
            refusing(0, number, methods=["read"]),
            pytest.raises(kind, match=r"(?s)flow\.json cannot be read.*Hint"),
        ):
            files.json("flow.json")
