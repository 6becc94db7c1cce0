"""A start without a JVM: whatever goes wrong, wherever, nothing that was sent is lost, or there twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.errors import BadArgument, GraphError, StorageFailed
from timely_spark.runtime import start
from timely_spark.runtime.errors import (
    CheckpointInUse,
    InputsInUse,
    NameTaken,
    NoSession,
    OtherFlow,
    OutputMismatch,
    QueryEnded,
    QueryFailed,
    QueryRefused,
)
from timely_spark.runtime.handle import living
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.query.rest import yielding, yields
from timely_spark.runtime.restore import identify, identity_of
from timely_spark.runtime.sinks.sink import CaptureSink, MemorySink
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.entries import read_entry
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog


@dataclass
class Running:
    """A streaming query of Spark's."""

    name: str
    session: Session
    runId: str = ""  # noqa: N815 - Spark's names
    isActive: bool = True  # noqa: N815
    status: dict[str, str] = field(default_factory=lambda: {"message": "Waiting for next trigger"})
    ended: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self.runId = f"{self.name}-{id(self)}"
        self.session.all.append(self)

    def stop(self) -> None:
        self.isActive = False
        self.ended.set()

    def exception(self) -> Exception | None:
        return self.failure

    def awaitTermination(self) -> None:  # noqa: N802
        self.ended.wait()


class Session:
    """As much of a session as a start asks for, without its queries."""

    readStream = None  # noqa: N815
    sparkContext = SimpleNamespace(master="local[2]", defaultParallelism=2, pythonExec=sys.executable)  # noqa: N815
    conf = SimpleNamespace(get=lambda _, default=None: default, set=lambda *_: None, unset=lambda *_: None)

    def __init__(self) -> None:
        self.all: list[Running] = []

    @property
    def streams(self) -> Any:
        return SimpleNamespace(active=[query for query in self.all if query.isActive])


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = Session()
    monkeypatch.setattr(start, "_run", lambda _s, _context, _f, _d, *, name, trigger: Running(name, made))
    yield made
    for query in made.all:
        query.stop()


def small(**options: Any) -> tuple[ts.Dataflow, ts.Input]:
    flow = ts.Dataflow("small")
    x = flow.input("x", "n long", **options)
    x.capture("out")
    return flow, x


@pytest.mark.parametrize(("retained", "kept"), [("100", 102), ("500", 502)])
def test_workers_know_how_many_batches_spark_retains(
    session: Session, monkeypatch: pytest.MonkeyPatch, retained: str, kept: int
) -> None:
    values = {"spark.sql.streaming.minBatchesToRetain": retained}
    conf = SimpleNamespace(get=values.get, set=lambda *_: None, unset=lambda *_: None)
    monkeypatch.setattr(session, "conf", conf, raising=False)
    seen: list[Any] = []

    def run(_s: Any, context: Any, _f: Any, _d: Any, *, name: str, trigger: Any) -> Running:
        seen.append(context)
        return Running(name, session)

    monkeypatch.setattr(start, "_run", run)
    started(small()[0], session, None)
    assert (seen[0].keep, seen[0].plan.keep) == (kept, kept)


def numbers(place: Path) -> list[int]:
    log = RoundLog(str(place))
    return [read_entry(log, "x", k).table.column("n")[0].as_py() for k in log.files.numbers("inputs/x")]


def started(flow: ts.Dataflow, session: Session, place: Path | None, **more: Any) -> Query:
    given = None if place is None else str(place)
    return flow.start(session, checkpoint=given, workers=1, **more)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.campaign)])
def test_an_interrupt_anywhere_in_a_start_loses_nothing_and_leaves_no_query(
    session: Session, tmp_path: Path, interrupted_at: Callable[..., bool], every: int
) -> None:
    files = ("/runtime/start.py", "/runtime/handle/", "/runtime/storage/entries.py")
    done, line = False, 0
    while not done:
        line += every
        place = tmp_path / str(line)
        flow, x = small()
        x.send([1])
        x.send([2])
        done = interrupted_at(line, lambda f=flow, p=place: started(f, session, p), files=files)
        alive = [query for query in session.all if query.isActive]
        bound = x.handle.query
        assert [query.name for query in alive] == (["small"] if bound is not None else [])
        if bound is None:
            assert x.handle.sent == 0
            assert numbers(place) == [], "it is as if nobody had started"
            started(flow, session, place)
        x.send([3])
        assert numbers(place) == [1, 2, 3]
        for query in session.all:
            query.stop()
        session.all.clear()
    assert line > 80, "it did pass many lines"


def test_an_interrupt_while_spark_starts_the_query_leaves_none(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(_s: Any, _context: Any, _f: Any, _d: Any, *, name: str, trigger: Any) -> Running:
        signal.raise_signal(signal.SIGINT)  # Spark has not listed the query yet
        return Running(name, session)

    flow, x = small()
    x.send([1])
    with monkeypatch.context() as patched:
        patched.setattr(start, "_run", slowly)
        with pytest.raises(KeyboardInterrupt):
            started(flow, session, tmp_path / "here")
    assert len(session.all) == 1
    assert not session.streams.active
    started(flow, session, tmp_path / "here")
    assert numbers(tmp_path / "here") == [1]


def test_entries_read_before_an_interrupt_stay_in_the_log(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, x = small()
    x.send([1])

    def interrupted(_s: Any, context: Any, _f: Any, _d: Any, *, name: str, trigger: Any) -> None:
        Running(name, session)
        taken = json.dumps({"round": -1, "inputs": {"x": 0}, "sources": {}})
        Files(context.checkpoint).write("metadata", b"{}")
        Files(context.checkpoint).write("offsets/0", f"v1\n{{}}\n{taken}".encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(start, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            started(flow, session, tmp_path / "here")
    assert not session.streams.active
    x.send([2])

    started(flow, session, tmp_path / "here")

    assert numbers(tmp_path / "here") == [1, 2]


def test_a_second_start_is_refused_or_replaces(session: Session, tmp_path: Path) -> None:
    flow, x = small()
    first = started(flow, session, tmp_path / "a")
    for place, name in ((tmp_path / "a", None), (tmp_path / "b", "other"), (None, None)):
        with pytest.raises(
            InputsInUse, match=r"(?s)\['x'\] .*'small'.*test_start\.py:\d+\)\nHint: .*replace=True"
        ):
            started(flow, session, place, name=name)
    x.send([1])
    assert numbers(tmp_path / "a") == [1]

    second = started(flow, session, tmp_path / "a", replace=True)

    assert (first.is_active, second.is_active) == (False, True)
    assert x.handle.query is second
    x.send([2])
    assert numbers(tmp_path / "a") == [1, 2]


def test_a_name_or_a_checkpoint_in_use_is_another_flows_too(session: Session, tmp_path: Path) -> None:
    first = started(small()[0], session, tmp_path / "a")
    with pytest.raises(NameTaken, match=r"(?s)'small'.*Hint: "):
        started(small()[0], session, tmp_path / "b")
    with pytest.raises(CheckpointInUse):
        started(small()[0], session, tmp_path / "a", name="other")
    assert first.is_active
    other = started(small()[0], session, tmp_path / "b", name="other")

    again = started(small()[0], session, tmp_path / "a", replace=True)  # the cell builds its flow anew

    assert (first.is_active, other.is_active, again.is_active) == (False, True, True)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_checkpoint_that_cannot_be_made_is_named(session: Session) -> None:
    flow = ts.Dataflow("nowhere")
    flow.input("x", "n long").capture("out")

    with pytest.raises(
        BadArgument, match=r"(?s)checkpoint='/proc/none/below': .*test_start\.py:\d+\)\nHint: "
    ):
        flow.start(session, checkpoint="/proc/none/below")


def test_a_query_that_has_ended_frees_the_handles(session: Session, tmp_path: Path) -> None:
    flow, x = small()
    query = started(flow, session, tmp_path / "a")
    session.all[0].stop()  # by itself, or because it failed
    x.send([1])
    assert numbers(tmp_path / "a") == [1], "durable, for the next start there"

    assert started(flow, session, tmp_path / "b").is_active
    assert not query.is_active
    x.send([2])
    assert (numbers(tmp_path / "a"), numbers(tmp_path / "b")) == ([1], [2])


def test_a_query_whose_session_was_stopped_makes_room_for_its_flow(session: Session, tmp_path: Path) -> None:
    flow, x = small()
    old = started(flow, session, tmp_path)
    x.send([1])
    old.session = Session()  # type: ignore[assignment]
    assert started(small()[0], session, None, name="beside").is_active
    assert old.is_active, "its session lives"
    old.session.sparkContext = SimpleNamespace(master="local[2]")  # type: ignore[misc] # Spark's is of no use

    new = started(flow, session, tmp_path)
    x.send([2])
    assert (old.is_active, new.is_active, numbers(tmp_path)) == (False, True, [1, 2])


def test_a_session_that_was_stopped_is_refused() -> None:
    stopped: Any = Session()
    stopped.sparkContext = SimpleNamespace(master="local[2]")
    with pytest.raises(NoSession, match=r"(?s)session was stopped.*Hint: make another"):
        started(small()[0], stopped, None)


def test_a_checkpoint_that_is_none_is_told_whatever_the_number_of_workers(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "0").write_text("v1")
    (tmp_path / "file").write_text("")
    for name, error, says in (("spark", OtherFlow, "no flow started"), ("file", BadArgument, "checkpoint=")):
        for workers in (None, 1):
            with pytest.raises(error, match=rf"(?s){says}.*Hint"):
                small()[0].start(session, checkpoint=str(tmp_path / name), workers=workers)  # type: ignore[arg-type]


def test_nothing_is_complete_for_a_query_that_failed(session: Session) -> None:
    flow, x = small()
    query = started(flow, session, None)
    running = session.all[-1]
    running.failure = RuntimeError("a task was lost")
    running.stop()
    x.send([(1,)])  # waits for the next start

    with pytest.raises(QueryFailed, match="a task was lost"):
        query.wait_for()
    query.session = Session()  # type: ignore[assignment]
    query.session.sparkContext = SimpleNamespace()  # type: ignore[misc] # it was stopped later
    assert "a task was lost" in str(query.exception())
    running.failure = RuntimeError("Python worker failed to connect back.")
    told = str(query.exception())
    assert "connect back.\nHint: the machine was too busy to start" in told
    running.failure = RuntimeError("[INTERNAL_ERROR] You hit a bug in Spark: planning failed")
    assert "its Spark session was stopped.\nHint: stop() the query before" in str(query.exception())


@pytest.mark.parametrize("refused", ["stop-", "rest-"])
def test_a_storage_that_refuses_the_request_keeps_no_query_from_being_stopped(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    query = started(small()[0], session, tmp_path)

    def refuse(_: Files, name: str, *args: Any, **more: Any) -> None:
        if name.startswith(f"terms/{refused}"):
            raise StorageFailed.of(name, OSError(errno.EROFS, os.strerror(errno.EROFS)))

    monkeypatch.setattr(Files, "write", refuse)
    monkeypatch.setattr(Files, "remove", refuse)
    query.stop()
    assert not session.all[-1].isActive
    assert query not in living.running()
    assert query._lock is not None
    assert query._lock.is_held() is False


def test_a_wait_that_the_storage_refuses_lets_later_micro_batches_stay(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = replace(started(small()[0], session, tmp_path)._context, resident=1.0)
    with monkeypatch.context() as patch:
        full = StorageFailed.of("terms/yield-0", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        patch.setattr(Files, "write", Mock(side_effect=full))
        with pytest.raises(StorageFailed), yielding(context):
            pass
    with yielding(context):
        assert yields(context)
    assert not yields(context)


@pytest.mark.parametrize("runs", [False, True])
def test_a_changed_flow_that_spark_refuses_leaves_the_state_of_the_steps_that_it_lacks(
    session: Session,
    begin: Begin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: bool,  # noqa: FBT001
) -> None:
    def counts(name: str = "counts") -> ts.Dataflow:
        flow = ts.Dataflow("counts")
        flow.input("x", "n long").group_by("n").count(name=name).capture("out")
        return flow

    def refused(_s: Any, context: Any, *_: Any, **__: Any) -> None:
        if runs:  # Spark has run a batch, whatever its answer was
            manifest, rows = context.log.newest_before(1)
            context.log.write(replace(manifest, batch=1), rows)
        msg = "no"
        raise QueryRefused(msg, hint="none")

    process = begin(counts())
    process.handles["x"].send([1])
    process.batch()
    monkeypatch.setattr(start, "_run", refused)
    other = ts.Dataflow("counts")
    other.input("x", "n long").capture("all")
    with pytest.raises(QueryRefused):
        other.start(session, checkpoint=str(tmp_path), workers=2)  # type: ignore[arg-type]
    written = RoundLog(str(tmp_path)).files.numbers("rounds/1")
    assert written == ([0, 1] if runs else [0])
    if not runs:
        again = begin(counts())
        again.handles["x"].send([1])
        again.batch()
        assert again.captured()[1] == [(1, 2)]


def test_no_epoch_is_missed_that_completes_while_the_query_starts(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_s: Any, context: Any, _f: Any, _d: Any, *, name: str, trigger: Any) -> Running:
        log = context.log
        manifest, rows = log.newest_before(0)
        log.write(replace(manifest, batch=0, released=[("out", 0)]), rows)
        return Running(name, session)

    monkeypatch.setattr(start, "_run", run)
    query = started(small()[0], session, tmp_path, resident=False)
    session.all[-1].isActive = False
    session.all[-1].recentProgress = []  # type: ignore[attr-defined]
    assert [(each.output, each.epoch) for each in query.epochs()] == [("out", 0)]


@pytest.mark.parametrize("before", ["the check", "the write"])
def test_of_two_first_starts_without_a_lock_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    plan, log = small()[0].compile(1), RoundLog(str(tmp_path))
    own, other = (identity_of(log, plan, 2) for _ in range(2))
    write = Files.write_json

    def late(files: Files, name: str, content: Any, **options: Any) -> None:
        monkeypatch.setattr(Files, "write_json", write)
        identify(log, other)
        write(files, name, content, **options)

    if before == "the check":
        identify(log, other)
    else:
        monkeypatch.setattr(Files, "write_json", late)
    with pytest.raises(CheckpointInUse, match=r"by another start at the same moment\.\nHint: start again"):
        identify(log, own)
    assert log.identity() == other
    identify(log, identity_of(log, plan, 2))


def test_a_start_that_one_output_refuses_changes_nothing(session: Session, tmp_path: Path) -> None:
    def tree() -> dict[str, bytes]:
        files = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock")
        return {str(path): path.read_bytes() for path in files}

    def flow(second: str) -> ts.Dataflow:
        built = ts.Dataflow("two")
        x = built.input("x", "n long")
        x.to_files(tmp_path / "first", name="first", overwrite=True)
        x.to_files(tmp_path / second, name="second", overwrite=True)
        return built

    def refused(second: str, checkpoint: str, **options: Any) -> None:
        before = tree()
        with pytest.raises(OutputMismatch):
            flow(second).start(session, checkpoint=tmp_path / checkpoint, **options)  # type: ignore[arg-type]
        assert tree() == before

    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "data").touch()
    refused("others", "a")
    refused("first", "a")
    refused("second", "a", log_to=tmp_path / "others")
    started(flow("second"), session, tmp_path / "a").stop()
    (tmp_path / "first" / "epoch-00000000000000000000.parquet").touch()
    refused("others", "b")  # which would replace the first
    (tmp_path / "link").symlink_to("first")
    refused("link", "b")
    refused("others", "a")


def test_what_every_later_start_needs_is_on_the_disk(
    session: Session, tmp_path: Path, synced: list[str]
) -> None:
    flow, x = small()
    x.capture_to(tmp_path / "out", name="folder")
    query = started(flow, session, tmp_path / "c")
    log = query._context.log
    renamed = {f"{tmp_path}/c/timely/flows", f"{tmp_path}/c/timely", f"{tmp_path}/out"}
    assert log.files.names("flows")
    assert renamed <= set(synced)
    assert [len(list(Path(folder).glob(".*.tmp"))) for folder in renamed] == [0, 0, 0]


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_wait_whose_jvm_has_ended_fails_as_the_query(session: Session, epoch: int | None) -> None:
    class Gone:
        """A query of a JVM that has stopped."""

        def __getattr__(self, name: str) -> object:
            msg = "Connection refused"
            raise ConnectionError(msg)

    query = started(small()[0], session, None)
    running, query._query = query._query, Gone()  # type: ignore[assignment]
    with pytest.raises(QueryFailed, match="'small' failed: Connection refused") as caught:
        query.wait_for(epoch=epoch, timeout=60)
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(ValueError, match="own"), query._context.reporting():
        int("own")
    with pytest.raises(QueryFailed, match="own") as reported:
        query.wait_for(epoch=epoch, timeout=60)
    assert isinstance(reported.value.__context__, ConnectionError)
    assert "Connection refused" not in "".join(traceback.format_exception(reported.value))
    query._query = running


def test_a_temporary_checkpoint_goes_with_its_query(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    flow, x = small()
    query = started(flow, session, None)
    place = Path(query.checkpoint)
    x.send([1])
    assert numbers(place) == [1]
    query.stop()

    assert not place.exists()
    assert "1 send into 'x' that no micro-batch had read" in caplog.text
    assert (query.captured("out").rows(), query.rounds, query.wait_for(3)) == ({}, 0, False)
    assert query.exception() is None
    assert query not in living.running()
    query.stop()
    x.send([2])
    assert x.handle.sent == 0
    again = started(flow, session, None)
    assert numbers(Path(again.checkpoint)) == [2]
    again.stop()


def test_files_of_views_in_a_temporary_checkpoint_stay(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, _ = small()
    flow.input("y", "n long").to_memory("shown")
    monkeypatch.setattr(MemorySink, "claim", CaptureSink.claim)
    query = started(flow, session, None)
    deliveries = Deliveries(query.checkpoint, "shown")
    deliveries.write(0, pa.table({"n": [1]}))
    query.stop()

    assert [table["n"].to_pylist() for _, table in deliveries.read()] == [[1]]
    left = [place.name for place in Path(query.checkpoint).rglob("*")]
    assert left == ["timely", "captured", "shown", "0.arrow"]
    assert query.checkpoint in living.read_by_views, "deleted when the process ends"
    shutil.rmtree(query.checkpoint)


def test_a_start_that_fails_leaves_no_temporary_checkpoint(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_run", Mock(side_effect=OSError("no")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError, match="no"):
        started(small()[0], session, None)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_calls_of_other_threads_wait_for_a_start(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, x = small()
    x.send([1])
    reached, go_on = threading.Event(), threading.Event()

    def slow(_s: Any, _context: Any, _f: Any, _d: Any, *, name: str, trigger: Any) -> Running:
        reached.set()
        assert go_on.wait(60)
        return Running(name, session)

    def second() -> None:
        with pytest.raises(InputsInUse):
            started(flow, session, tmp_path / "b", name="other")
        done.append("refused")

    monkeypatch.setattr(start, "_run", slow)
    done: list[str] = []
    first = threading.Thread(target=lambda: started(flow, session, tmp_path / "a"))
    first.start()
    assert reached.wait(60)
    others = [threading.Thread(target=lambda: x.send([2])), threading.Thread(target=second)]
    for other in others:
        other.start()
        other.join(0.2)
        assert other.is_alive(), "it waits"
    go_on.set()
    for thread in (first, *others):
        thread.join(60)

    assert numbers(tmp_path / "a") == [1, 2]
    assert done == ["refused"]
    assert [query.name for query in session.streams.active] == ["small"]


@pytest.mark.parametrize("places", [("old", "new"), (None, None)], ids=["checkpoint", "temporary"])
def test_close_of_an_ended_query_does_not_close_the_next_querys_input(
    session: Session, tmp_path: Path, places: tuple[str | None, str | None]
) -> None:
    flow, x = small(epochs="manual")
    old, new = (None if place is None else tmp_path / place for place in places)
    query = started(flow, session, old)
    query.stop()
    later = started(flow, session, new)
    with pytest.raises(QueryEnded, match=r"(?s)small.*'x'|temporary"):
        query.close("x")
    x.send([1])
    later.close("x")
    assert x.handle.is_closed


def test_close_of_an_ended_query_without_a_checkpoint_does_nothing(
    session: Session,
) -> None:
    flow, x = small(epochs="manual")
    query = started(flow, session, None)
    query.stop()
    for ask in (lambda: query.close("x"), lambda: query.cancel(0)):
        with pytest.raises(QueryEnded, match=r"temporary checkpoint is deleted[^$]*Hint"):
            ask()
    assert not x.handle.is_closed
    assert not Path(query.checkpoint).exists()


def test_an_ended_query_with_a_checkpoint_is_closed_for_its_next_start(
    session: Session, tmp_path: Path
) -> None:
    flow, _ = small(epochs="manual")
    query = started(flow, session, tmp_path)
    query.stop()
    query.close("x")
    query.close("x")
    log = RoundLog(str(tmp_path))
    assert [read_entry(log, "x", k).kind for k in log.files.numbers("inputs/x")] == ["close"]


def test_the_first_start_names_the_steps_that_a_changed_flow_would_not_find(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def flow(*names: str | None) -> ts.Dataflow:
        made = ts.Dataflow("names")
        x = made.input("x", "n long")
        for name in names:
            x.select("n").distinct(name=name).capture()
            x.max("n", name=name and f"greatest {name}").capture()  # one line alone needs no names
        return made

    told = r"names: .*by which a changed flow finds it: distinct \(.*test_start\.py:\d+\)"
    for names, place, says in (((None,), tmp_path / "a", True), (("seen",), tmp_path / "b", False)):
        started(flow(*names), session, place).stop()
        assert bool(re.search(told, caplog.text)) == says
        caplog.clear()
        started(flow(*names), session, place).stop()
        assert not re.search(told, caplog.text), "once, when names can still be given"


def test_a_flow_that_nobody_sees_is_not_started(session: Session, tmp_path: Path) -> None:
    flow = ts.Dataflow("unseen")
    counted = flow.input("x", "n long").group_by("n").count("count")
    with pytest.raises(GraphError, match=r"'unseen' has no output(.|\n)*Hint: .*capture\(\)"):
        started(flow, session, tmp_path)
    assert not any(tmp_path.iterdir())
    counted.probe("seen")
    started(flow, session, tmp_path).stop()


@pytest.mark.parametrize(
    ("frames", "options", "stays"),
    [
        ((), {}, start.STAY),
        ((), {"staleness": 2.0}, start.STAY),
        (("clicks",), {"staleness": "2 seconds"}, 2.0),
        (("clicks",), {"staleness": 10 * start.STAY}, start.STAY),
        (("clicks",), {}, 0.0),
        (("clicks",), {"staleness": 2.0, "asked": False}, 0.0),
    ],
)
def test_a_micro_batch_stays_as_long_as_a_dataframe_may_wait(
    monkeypatch: pytest.MonkeyPatch, frames: tuple[str, ...], options: dict[str, Any], stays: float
) -> None:
    monkeypatch.setattr(start, "on_one_machine", lambda _: True)
    monkeypatch.setattr(start, "is_local_server", lambda _: False)

    def residency(**more: Any) -> dict[str, Any]:
        run = {"rounds": 100, "record": None, "asked": None, "staleness": None} | options | more
        return start._residency(Mock(), {}, dict.fromkeys(frames, Mock()), **run)

    assert residency()["resident"] == stays
    if not stays and not options:
        assert residency()["not_resident"].startswith("source 'clicks' is a DataFrame of Spark, and max_")
        with pytest.raises(BadArgument, match=r"resident=True, but source 'clicks'.*\nHint: leave resident"):
            residency(asked=True)


@pytest.mark.parametrize(
    ("options", "place", "reason"),
    [
        ({"trigger": {"availableNow": True}}, "", "the trigger is availableNow"),
        ({"trigger": {"processingTime": "1 second"}}, "", "the trigger is processingTime"),
        ({"rounds": 1}, "", "rounds_per_batch=1"),
        ({"record": "folder"}, "", "record="),
        ({}, "a cluster", "the executors may be on other machines; resident=True lets tasks stay there"),
        ({}, "a server", "a Spark Connect server runs the flow; resident=True lets its micro-batches stay"),
    ],
)
def test_why_no_micro_batch_stays(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], place: str, reason: str
) -> None:
    monkeypatch.setattr(start, "on_one_machine", lambda _: not place)
    monkeypatch.setattr(start, "is_local_server", lambda _: place == "a server")
    monkeypatch.setattr(start, "no_parallel_rounds", lambda _: "")

    def residency(*, asked: bool | None) -> dict[str, Any]:
        run = {"trigger": {}, "rounds": 100, "record": None, "asked": asked, "staleness": None} | options
        return start._residency(Mock(), run.pop("trigger"), {}, **run)

    for asked in (None, False):
        refused = residency(asked=asked)
        assert (refused["resident"], refused["in_tasks"]) == (0.0, False)
        assert (reason if asked is None else "resident=False") in refused["not_resident"]
    if place:
        asked_for = {"resident": start.STAY, "not_resident": "", "in_tasks": place == "a cluster"}
        assert residency(asked=True) == asked_for
    else:
        with pytest.raises(BadArgument, match=rf"resident=True, but .*{reason}.*\nHint: leave resident"):
            residency(asked=True)
