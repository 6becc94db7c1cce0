"""Commands inside a round of any length: each answers at once, and replays take the same path."""

from __future__ import annotations

import atexit
import json
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark import TaskContext

import timely_spark as ts
from tests.runtime.test_display import Shown
from tests.support.stepper import Begin, Stepper
from timely_spark.coordinator import RoundLimits, Share
from timely_spark.errors import NotComplete, VertexError
from timely_spark.runtime.errors import QueryFailed
from timely_spark.runtime.handle.asked import Asked
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.living import keep_until_it_ends, let_go
from timely_spark.runtime.handle.overview import Overview
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.query import live, rest
from timely_spark.runtime.query.cut_off import CutOff
from timely_spark.runtime.query.hosted import Hosted
from timely_spark.runtime.query.streaming import first_attempt
from timely_spark.runtime.storage.cancel import request
from timely_spark.runtime.storage.cuts import record, recorded_cuts
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import stop_file
from timely_spark.testing import Simulation

#: Seconds on the busiest machine. A step of these flows waits for twice as long, and some rounds have no end.
SOON = 10.0


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 0.02)


def endless() -> ts.Dataflow:
    """Every number leads to the next one, on the same worker: one round, for ever."""
    flow = ts.Dataflow("endless")
    up = {"n": pc.add(pc.field("n"), 1)}
    x = flow.input("x", "n long").where(pc.field("n") >= 0)
    x.loop(lambda n: n.select(**up), name="up").capture("out")
    return flow


@contextmanager
def batch_running(process: Stepper) -> Iterator[threading.Thread]:
    """A micro-batch that runs meanwhile."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            assert process.batch()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def until(reached: Callable[[], Any]) -> Any:
    end = time.monotonic() + 2 * SOON
    while not (found := reached()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def test_cancel_ends_a_round_that_never_ends(begin: Begin) -> None:
    process = begin(endless(), workers=2, rounds=100, keep=1)
    log = process.context.log
    for _ in range(3):
        process.feed("x", [-1])
    record(log, 0, 0, 0, 1)  # of a batch that cannot run again
    process.handles["x"].send([0])
    with batch_running(process):
        until(lambda: live.running_batch(log, 2))
        request(log, 3)
        started = time.monotonic()
    assert time.monotonic() - started < SOON
    process.batches()
    manifest = log.read(log.newest())
    assert manifest.cut_off == {"up": 1}
    assert not manifest.open_epochs
    assert {*recorded_cuts(log, 3).values()} > {*recorded_cuts(log, 0).values()} == set()


GO_ON = threading.Event()


def wait(time: Any, batch: Any) -> Any:
    """A user's function that takes long."""
    GO_ON.wait(20)
    return batch.slice(0, 0)


def at_once(command: Callable[[], Any]) -> str:
    """What a command answers within a second, on a busy machine one time of some."""
    for _ in range(5):
        started = time.monotonic()
        text = str(command())
        if time.monotonic() - started < 1:
            return text
    raise AssertionError


def slow() -> ts.Dataflow:
    flow = ts.Dataflow("slow")
    numbers = flow.input("x", "n long")
    numbers.loop(lambda n: n.unary(wait, "n long", name="slowly"), name="up").capture("out")
    return flow


def test_a_stop_rests_between_two_batches_and_the_next_start_goes_on(begin: Begin) -> None:
    process = begin(endless(), workers=2, rounds=100)
    process.handles["x"].send([0])
    with batch_running(process):
        until(lambda: (now := live.running_batch(process.context.log, -1)) and any(now.loops))
        process.context.log.files.write(stop_file(process.context.term), b"")
        started = time.monotonic()
    assert time.monotonic() - started < SOON
    newest = process.newest()
    assert (newest.batch, newest.open_epochs, newest.stats["cut"]) == (0, [0], 1)
    reached = newest.coordinator["loops"]["reached"]["up"]
    assert reached > 0

    again = begin(endless(), workers=2, rounds=100)
    with batch_running(again):
        until(lambda: live.running_batch(again.context.log, 0))
        request(again.context.log, 0)
    again.batches()
    newest = again.newest()
    assert newest.cut_off == {"up": 1}
    assert newest.coordinator["loops"]["reached"]["up"] > reached, "no work was lost"


@pytest.mark.slow
def test_a_batch_that_was_cut_off_takes_the_same_path_when_it_runs_again(begin: Begin) -> None:
    process = begin(endless(), workers=2, rounds=100)
    process.handles["x"].send([0])
    process.poll()
    thread = threading.Timer(0.2, request, (process.context.log, 0))
    thread.start()
    first = process.run()
    thread.join()
    assert len(process.context.log.files.names("cuts")) == 1
    second = process.run()
    process.finish(first)
    manifest, rows = process.context.log.manifest_and_rows(0)

    process.next, process.driver._last = 0, None
    process.world.files.remove("commits/0")
    process.finish(second)
    again, rows_again = process.context.log.manifest_and_rows(0)

    def path(manifest: Any) -> Any:
        return manifest.coordinator, manifest.header, manifest.released, manifest.stats["steps"]

    assert path(manifest) == path(again)
    assert rows.column("meta").to_pylist().sort() == rows_again.column("meta").to_pylist().sort()
    process.batches()
    assert process.newest().cut_off == {"up": 1}


def test_no_new_cut_where_an_earlier_run_may_have_delivered_on_arrival(begin: Begin) -> None:
    class Asked:
        asked = True

        def round(self, *_: object) -> None: ...

    process = begin(endless())
    worker: Any = SimpleNamespace(stats={"steps": 7}, worker=0)
    sealed = replace(process.context, planned=3, on_arrival=True)
    assert not CutOff(sealed, 3, Asked())(0, None, worker)  # type: ignore[arg-type]
    assert CutOff(sealed, 4, Asked())(0, None, worker)  # type: ignore[arg-type]
    assert CutOff(replace(sealed, on_arrival=False), 3, Asked())(0, None, worker)  # type: ignore[arg-type]


@pytest.mark.parametrize(("attempt", "first"), [(0, True), (1, False), (None, False)])
def test_a_task_that_runs_again_ends_its_round_where_the_first_attempt_did(
    *, attempt: int | None, first: bool, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    context = begin(endless()).context
    record(context.log, 4, 0, 1, 7)
    idle: Any = SimpleNamespace(asked=False, round=lambda *_: None)
    worker: Any = SimpleNamespace(stats={"steps": 7}, worker=1)
    ends = CutOff(context, 4, idle, first=first_attempt())
    assert ends(0, None, worker) == (not first), "the first attempt has no cut to look for"


@pytest.mark.parametrize("repeated", [False, True])
def test_rounds_that_run_again_in_one_process_end_where_the_first_attempt_did(
    *, repeated: bool, begin: Begin
) -> None:
    flow = ts.Dataflow("down")
    numbers = flow.input("x", "n long")
    less = {"n": pc.subtract(pc.field("n"), 1)}
    numbers.loop(lambda n: n.exchange("n").select(**less).where("n > 0"), name="down").capture("out")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    simulation.send("x", [9])
    simulation.step()
    context = begin(flow, workers=2).context
    for worker in range(2):
        record(context.log, 0, 1, worker, 0)
    with closing(Hosted(context)) as hosted:
        result, _ = hosted.run(
            simulation.coordinator,
            0,
            simulation.result,
            {},
            [RoundLimits()],
            share=Share(),
            repeated=repeated,
        )
    assert result.stats.get("cut", 0) == repeated


def waits(row: Any) -> int:
    GO_ON.wait(20)
    return int(row.n)


def slow_input() -> ts.Dataflow:
    """The step that takes long is applied while input is packed."""
    flow = ts.Dataflow("slow")
    flow.input("x", "n long").map(waits, "n long", name="slowly").capture("out")
    return flow


def slow_message() -> ts.Dataflow:
    """The step that takes long is applied to what another one sends."""
    flow = ts.Dataflow("slow")
    first = flow.input("x", "n long").unary(lambda time, batch: batch, "n long", name="first")
    first.map(waits, "n long", name="slowly").capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "step", "work"),
    [
        (slow, "up.slowly", "runs: round 1"),
        (slow_input, "slowly", "reads its input"),
        (slow_message, "slowly", "runs: round 1"),
    ],
)
def test_all_tell_of_a_step_that_takes_long(
    *,
    flow: Callable[[], ts.Dataflow],
    step: str,
    work: str,
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Lock, "is_held", lambda self: True)
    monkeypatch.setattr(rest, "QUIET", 0.01)
    GO_ON.clear()
    process = begin(flow())
    process.handles["x"].send([0])
    with batch_running(process):
        try:
            running = until(lambda: (at := live.running_batch(process.context.log, -1)) and at.calls and at)
            assert running.calls[0].step == step
            shown = Shown(process, looks=100)
            status = Status.of(process.context.checkpoint)
            texts = [str(status), at_once(shown.why), at_once(lambda: shown.why(5))]
            texts += [at_once(Overview.of(shown).line)]
            at_once(lambda: shown.cancel(9))
            with rest.telling(process.context):
                until(lambda: "stop()" in caplog.text)
        finally:
            GO_ON.set()
    for text in texts:
        assert step in text
        assert "now batch 0" in text or f"batch 0 {work}" in text
    for said in ("cancel(9) takes effect at the next call of a step; ", "stop() waits for a batch to end: "):
        assert re.search(f"{re.escape(said)}batch 0 {work}.*step '{step}' \\(.*test_commands", caplog.text)
    assert "test_commands.py" in texts[0]
    assert status.state == "running"
    json.loads(status.json())
    process.batches()
    assert Status.of(process.context.checkpoint).state == "idle"


def collected() -> ts.Dataflow:
    """A collection to ask about, and beside it a step that takes long, or fails."""
    flow = ts.Dataflow("collected")
    x = flow.input("x", "n long")
    x.collection().count("times", keys="n").capture("counts")
    x.unary(wait_or_fail, "n long", name="slowly").capture("out")
    return flow


FAILS = threading.Event()


def wait_or_fail(time: Any, batch: Any) -> Any:
    GO_ON.wait(20)
    if FAILS.is_set():
        msg = "out of order"
        raise ValueError(msg)
    return batch.slice(0, 0)


def commands(process: Stepper, error: Exception | None, capsys: pytest.CaptureFixture[str]) -> str:
    """What each command says, of a query that runs for a few looks more; none waits for the step."""
    looks = iter([error is None] * 3)

    class Streaming:
        name, recentProgress = "collected", ()  # noqa: N815 - Spark's name

        @property
        def isActive(self) -> bool:  # noqa: N802 - Spark's name
            return next(looks, False)

        def exception(self) -> Exception | None:
            return error

    query = Query(Streaming(), process.context, inputs=[])  # type: ignore[arg-type]
    at_once(lambda: query.ask("counts", [7], keys="n"))
    answer = query.ask("counts", [7], keys="n")
    assert answer.rows() == [(7, 1 + (answer.epoch or 0))], "epoch by epoch one 7 more"
    texts = [at_once(lambda: query.why(1)), at_once(lambda: Status.of(process.context.checkpoint))]
    at_once(lambda: (query.audit(), query.frontier(), query.last_progress, query.cancel(99)))

    def watch() -> None:
        with suppress(VertexError, QueryFailed):
            query.watch(every=0.01)

    at_once(watch)
    return "\n".join([*texts, capsys.readouterr().out])


@pytest.mark.slow
def test_all_commands_answer_at_once_idle_in_a_slow_step_and_after_a_failure(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    GO_ON.set()
    FAILS.clear()
    process = begin(collected())
    process.feed("x", [7])
    assert "epoch 1 has not begun" in commands(process, None, capsys)

    GO_ON.clear()
    process.handles["x"].send([7])
    with batch_running(process):
        try:
            until(lambda: (at := live.running_batch(process.context.log, 0)) and at.calls)
            assert "slowly" in commands(process, None, capsys)
        finally:
            GO_ON.set()

    FAILS.set()
    process.handles["x"].send([7])
    with pytest.raises(VertexError, match="out of order") as failed:
        process.batches()
    FAILS.clear()
    told = commands(process, failed.value, capsys)
    assert "failed at" in told
    assert "out of order" in told


def test_a_live_file_of_junk_is_not_shown(begin: Begin) -> None:
    process = begin(endless())
    for number, junk in enumerate(({}, {"batch": 9}, {"batch": "x"}, {"batch": 9, "loops": 3})):
        process.context.log.files.write_json(f"live/0-{number}.json", junk)
    assert live.running_batch(process.context.log, 0) is None


def failing() -> ts.Dataflow:
    flow = ts.Dataflow("failing")
    flow.input("x", "n long").map(lambda row: 1 // row.n, "n long", name="bad").capture("out")
    return flow


def test_a_failed_flow_is_told_from_a_stopped_one(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(failing())
    process.handles["x"].send([0])
    with pytest.raises(VertexError):
        process.batches()

    status = Status.of(str(tmp_path))
    assert status.state == "failed"
    assert status.failure is not None
    for text in ("step 'bad' (", "test_commands.py", "ZeroDivisionError", "Hint: "):
        assert text in status.failure["error"]
    assert "start the flow again" in str(status)
    assert status.failure["when"] in str(status)
    with Server([str(tmp_path)], address="127.0.0.1", port=0) as server:
        page = server.sections(Asked())["say"]
    assert "Failed at" in page
    assert "ZeroDivisionError" in page
    ask = Shown(process, looks=0)
    assert "1 message" in str(ask.why(0)) or "has not begun" in str(ask.why(0))

    compile_ = SimpleNamespace(format_code_name={__file__: ("Cell", "In[3]")}.get)
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compile_))
    monkeypatch.setitem(sys.modules, "IPython", notebook)  # type: ignore[arg-type]
    process.context.ended(process.context.failure())
    failure = Status.of(str(tmp_path)).failure
    assert failure is not None
    assert failure["error"] == re.sub(r"<lambda> \(\S+:", "<lambda> (In[3]:", status.failure["error"])

    process.context.ended(None)  # as `stop` does without an error
    assert Status.of(str(tmp_path)).state == "stopped"
    process.context.ended(QueryFailed.because("failing", "Spark has lost its disk"))
    assert "lost its disk" in str(Status.of(str(tmp_path)))
    begin(failing())
    assert Status.of(str(tmp_path)).state == "stopped"
    lock = Lock(process.context.log.files)
    assert lock.acquire()
    try:
        status = Status.of(str(tmp_path))
    finally:
        lock.release()
    assert status.state == "running"  # what failed is planned, and not yet repeated
    assert "since the start no batch is done yet" in str(status)


def test_an_error_after_which_the_flow_went_on_is_no_failure(begin: Begin, tmp_path: Path) -> None:
    process = begin(endless())
    report = {"text": "a task was lost", "at": 1.0, "after": -1}
    process.context.log.files.write_json("failures/0.json", report)
    assert Status.of(str(tmp_path)).failure is not None
    process.handles["x"].send([-1])
    process.batch()
    assert Status.of(str(tmp_path)).failure is None
    process.context.log.files.write_json("failures/0.json", {"text": "no time"})
    assert "damaged" in str(Status.of(str(tmp_path)).failure)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("command", [["status"], ["status", "--watch", "0.1"], ["inspect"]])
def test_a_reader_that_ends_early_is_no_error(begin: Begin, tmp_path: Path, command: list[str]) -> None:
    begin(endless())
    line = [sys.executable, "-m", "timely_spark", command[0], str(tmp_path), *command[1:]]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (128 + signal.SIGPIPE, b"")


def test_a_stop_with_a_timeout_does_not_wait_for_a_call_of_a_step(begin: Begin) -> None:
    """The query ends later, by itself, and the request stays until then: the round ends at its next call."""
    process = begin(endless())
    log, returns, ended = process.context.log, threading.Event(), threading.Event()

    class Busy:
        isActive, status = True, {"message": "Processing new data"}  # noqa: N815 - Spark's name

        def stop(self) -> None:
            assert returns.wait(SOON)
            ended.set()

    query = Query(Busy(), process.context)  # type: ignore[arg-type]
    started = time.monotonic()
    told = r"stop\(timeout=0.05\): flow 'endless' ends when the present call of a step or an output returns: "
    with pytest.raises(NotComplete, match=told):
        query.stop(timeout=0.05)
    assert time.monotonic() - started < SOON / 2
    assert log.files.exists(stop_file(log.term))
    returns.set()
    assert ended.wait(SOON)
    until(lambda: not log.files.exists(stop_file(log.term)))


def test_a_stop_timeout_of_the_session_does_not_end_a_stop(begin: Begin) -> None:
    """It is for the session's other queries; a stop of a flow has a timeout of its own."""
    process, calls = begin(endless()), list[str]()

    class Slow:
        isActive, status = True, {"message": "Processing new data"}  # noqa: N815 - Spark's name
        runId, exception = "a run", staticmethod(lambda: None)  # noqa: N815 - Spark's name

        def stop(self) -> None:
            calls.append("stop")
            msg = "java.util.concurrent.TimeoutException: Stream Execution thread failed to stop within 1 ms"
            raise RuntimeError(msg)

        def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
            calls.append("awaited")
            self.isActive = False

    query = Query(Slow(), process.context)  # type: ignore[arg-type]
    query.stop()
    assert calls == ["stop", "awaited"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        lambda query: query.stop(),
        lambda query: query.wait_for("out", epoch=1),
        lambda query: query.step(),
        lambda query: query.await_termination(),
        lambda query: query.process_all_available(),
        lambda query: query.ask("out", fresh=True),
    ],
)
def test_a_function_inside_a_micro_batch_does_not_wait_for_its_end(
    begin: Begin, command: Callable[[Query], object]
) -> None:
    """It would wait for ever: a micro-batch ends after its functions. What is there needs no wait."""
    answered: list[bool] = []

    def call(epoch: int, _: Any) -> None:
        if epoch:
            handles: Any = [(handle, handle._target) for handle in process.handles.values()]
            query = Query(SimpleNamespace(isActive=True), process.context, inputs=handles)  # type: ignore[arg-type]
            answered.append(query.wait_for("out", epoch=0))
            command(query)

    flow = ts.Dataflow("inside")
    x = flow.input("x", "n long")
    x.capture("out")
    x.subscribe(call, name="told")
    process = begin(flow)
    process.feed("x", [7])
    process.handles["x"].send([8])
    told = (
        r"(?s) waits for the micro-batch of flow 'inside' that calls it \(.*test_commands.*Hint: return from"
    )
    with pytest.raises(NotComplete, match=told):
        process.batches()
    assert answered == [True]


def test_a_driver_that_stays_learns_that_its_session_was_stopped(begin: Begin) -> None:
    """Spark calls the query active for as long as the micro-batch stays."""
    process = begin(endless())
    context = SimpleNamespace(defaultParallelism=2)
    session: Any = SimpleNamespace(sparkContext=context)
    active: Any = SimpleNamespace(isActive=True)
    query = Query(active, process.context, session=session)
    assert query.is_active
    assert not process.context.has_stopped()
    del context.defaultParallelism  # as of a context without its Java object
    assert until(process.context.has_stopped)


def test_a_process_that_ends_stops_its_queries_before_it_closes_what_they_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watches of inputs are closed by finalizers, which all end together."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(weakref.finalize, "_registered_with_atexit", False)

    class Running:
        run_id, session, _lock = "run", None, None

    query: Any = Running()
    keep_until_it_ends(query, lambda: None)
    weakref.finalize(query, lambda: None)
    assert [call.__name__ for call in at_exit] == ["_exitfunc", "_stop_all"], "the last one runs first"
    assert let_go(query)
