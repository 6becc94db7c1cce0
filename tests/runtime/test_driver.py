"""The driver over a real log: commits, replays, gaps, prunes, takeovers, failures."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import inotify_simple
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.engine import Frame
from tests.support.stepper import Begin, Stepper
from timely_spark.compiler.pushdown import needed
from timely_spark.coordinator import Coordinator, RoundLimits, RoundResult, Share
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.errors import LogDamaged, VertexError
from timely_spark.runtime.errors import LostOwnership, OtherFlow, OutputMismatch, QueryFailed
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.query import driver as driver_module
from timely_spark.runtime.query.driver import Driver
from timely_spark.runtime.query.hosted import Hosted
from timely_spark.runtime.query.resident import Ends, ResidentInputs
from timely_spark.runtime.query.rest import yielding, yields
from timely_spark.runtime.query.rounds import Rounds
from timely_spark.runtime.query.staying import StayingTasks, Work
from timely_spark.runtime.run_context import RunContext, packed_sources
from timely_spark.runtime.sources.folder import Folder
from timely_spark.runtime.storage import blobs
from timely_spark.runtime.storage.cuts import record
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog, stop_file
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.testing import Simulation
from timely_spark.worker import ROWS, Worker, wire
from timely_spark.worker.wire import Message

Delivered = list[tuple[int, list[Any]]]


def loop() -> ts.Dataflow:
    """Iterations over two workers: every round is an exchange."""
    flow = ts.Dataflow("loop")
    given = flow.input("x", "k long")

    def body(each: ts.Stream) -> ts.Stream:
        return each.where(lambda row: row.k < 6).map(lambda row: row.k + 1, "k long").concat(each).distinct()

    given.loop(body).capture("out")
    return flow


def manual(delivered: Delivered | None = None, **calls: Any) -> ts.Dataflow:
    """Counts by epochs of one's own."""
    flow = ts.Dataflow("manual")
    counted = flow.input("x", "k long", epochs="manual").group_by("k").count("n", per="time")
    rows: Delivered = [] if delivered is None else delivered
    counted.subscribe(
        lambda epoch, table: rows.append((epoch, list(table.sort_by("k").to_pylist()))), **calls
    )
    return flow


def passing(delivered: Delivered, **calls: Any) -> ts.Dataflow:
    """What comes, as it comes; the epochs of one's own."""
    flow = ts.Dataflow("passing")
    stream = flow.input("x", "k long", epochs="manual").exchange("k")
    stream.subscribe(
        lambda epoch, table: delivered.append((epoch, sorted(table["k"].to_pylist()))), name="told", **calls
    )
    return flow


def manifests(process: Stepper) -> list[int]:
    return sorted(int(name.partition(".")[0]) for name in _names(process, f"rounds/{process.context.term}"))


def _names(process: Stepper, folder: str) -> list[str]:
    return [name.rpartition("/")[2] for name in process.context.log.files.names(folder)]


def stay(process: Stepper) -> RunContext:
    """Let the micro-batches of a process stay; returns the context of their run."""
    context = dataclasses.replace(process.context, resident=1e9)
    process.driver = Driver(context, process.driver.outputs)
    return context


def raw(process: Stepper, batch: int) -> tuple[Any, pa.Table]:
    """A manifest but for how long things took, and its rows."""
    found = process.context.log.manifest_and_rows(batch)
    assert found is not None
    manifest = dataclasses.asdict(found[0])
    for timed in ("slowest", "took", "spent"):
        manifest["stats"].pop(timed)
    for timed in ("written", "milliseconds", "latencies"):
        manifest.pop(timed)
    manifest["delivered"] = {name: each[:2] for name, each in manifest["delivered"].items()}
    return manifest, found[1]


# -- a batch, and the same batch again ---------------------------------------------------------------------


def test_a_batch_delivers_the_outputs_of_the_flow(begin: Begin) -> None:
    process = begin(loop())

    assert process.feed("x", [0, 4]) > 3  # every round a batch
    assert process.captured()[0] == [(k,) for k in range(7)]


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True], ids=["by the same driver", "by another one"])
def test_a_batch_that_runs_again_leaves_the_same(begin: Begin, other: bool) -> None:  # noqa: FBT001
    process = begin(loop())
    process.handles["x"].send([0, 4])
    for _ in range(4):
        assert process.poll() is not None
        frame = process.run()
        process.driver(frame, process.next)  # type: ignore[arg-type]
        first = raw(process, process.next)
        driver = pickle.loads(pickle.dumps(process.driver)) if other else process.driver
        assert driver._last is None or not other
        driver(process.run(), process.next)
        assert raw(process, process.next)[0] == first[0]
        assert raw(process, process.next)[1].equals(first[1])
        process.commit()


def test_a_driver_goes_on_from_memory_with_the_very_next_batch_only(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    read: list[int] = []
    real = RoundLog.newest_before
    monkeypatch.setattr(RoundLog, "newest_before", lambda log, batch: read.append(batch) or real(log, batch))

    def restored() -> bool:
        process.poll()
        frame = process.run()
        read.clear()
        process.driver(frame, process.next)  # type: ignore[arg-type]
        return bool(read)

    assert restored()  # the first of its run
    frame = process.run()
    read.clear()
    process.driver(frame, process.next)  # type: ignore[arg-type]
    assert read[-1] == 0  # the same again: not from what it led to
    process.commit()
    assert not restored()
    process.commit()


def test_a_hot_key_is_logged_once_and_stays_in_the_status(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", 10)

    def exchanged() -> ts.Dataflow:
        flow = ts.Dataflow("hot")
        for name in ("x", "y"):
            flow.input(name, "k long, v long").exchange("k", name=f"by key of {name}").probe(f"seen {name}")
        return flow

    for inputs in ("xxy", "xy"):
        process = begin(exchanged())
        for name in inputs:
            process.feed(name, [(7, i) for i in range(200)])

    logged, other = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert logged.startswith("hot: step 'by key of x' (")
    assert other.startswith("hot: step 'by key of y' (")
    assert "hot key k = 7: of 2 workers one got 200 records, at least 1.9 times its share" in logged
    checkpoint = process.context.log.checkpoint
    warning, _, _ = logged.removeprefix("hot: ").partition(" (batch 0)")
    assert f"{warning} (batch " in str(status := Status.of(checkpoint))
    assert "(batch 0)" not in str(status)  # it is the last one that stays
    assert "by key" in status.json()


def test_negative_records_are_logged_once_and_counted_in_the_status(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> ts.Dataflow:
        flow = ts.Dataflow("negatives")
        x = flow.input("x", "k long, diff long").collection(diff="diff")
        x.count(keys="k", name="counts").changes().capture("out")
        return flow

    for rows in ([(1, 1), (2, -1)], [(1, -2), (2, -1)]):
        process = begin(counted())
        process.feed("x", rows)

    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    text = logged.removeprefix("negatives: ")
    assert text.startswith("step 'counts' (")
    assert "{'k': 2} is there -1 times after epoch 0\nHint: " in text
    status = Status.of(process.context.log.checkpoint)
    assert f"negative records  counts: 2\n{text}" in str(status)
    assert "is there -1 times" in status.json()


def test_an_expectation_is_warned_of_once_and_counted_across_restarts(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def checked() -> ts.Dataflow:
        flow = ts.Dataflow("checked")
        x = flow.input("x", "k long").expect("small", "k < 9").expect("positive", "k > 0", action="keep")
        x.capture("out")
        return flow

    for rows in ([1, 2], [3, 0], [0, 9]):
        process = begin(checked())
        process.feed("x", rows)

    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(" (")[0] for text in warned] == [
        "checked: step 'positive'",
        "checked: step 'small'",
    ]
    assert "expects k > 0, else keep: 1 of 4 records failed, first {'k': 0} in epoch 1\nHint: " in warned[0]
    status = Status.of(process.context.log.checkpoint)
    assert "expectation 'small'  1 of 6 records failed, first {'k': 9} in epoch 2" in str(status)
    assert '"failed": 2' in status.json()
    counts = status.after.manifest.expectations
    assert {step: (one.checked, one.failed) for step, one in counts.items()} == {
        "small": (6, 1),
        "positive": (5, 2),
    }
    assert sorted(row for of in process.captured().values() for row in of) == [
        (0,), (0,), (1,), (2,), (3,)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("output", ["to_files", "capture_to"])
def test_a_copy_of_a_checkpoint_is_refused_once_the_other_has_written_later_epochs(
    begin: Begin, tmp_path: Path, output: str
) -> None:
    def flow() -> ts.Dataflow:
        written = ts.Dataflow("written")
        getattr(written.input("x", "k long").exchange("k"), output)(tmp_path / "out", name="out")
        return written

    process = begin(flow(), path=tmp_path / "first")
    for number in range(3):
        process.feed("x", [number])
        shutil.copytree(tmp_path / "first", tmp_path / f"copy {number}")

    with pytest.raises(OutputMismatch, match=r"has epoch 2 of .*begun none after 1(?s:.*)Hint: start on the"):
        begin(flow(), path=tmp_path / "copy 0")
    begin(flow(), path=tmp_path / "copy 1")  # it may have been killed while it wrote epoch 2
    begin(flow(), path=tmp_path / "first")


@pytest.mark.slow
def test_a_restart_with_other_hot_keys_goes_on(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    def joined(skew: list[int] | None) -> ts.Dataflow:
        flow = ts.Dataflow("hot")
        x, y = (flow.input(name, f"k long, {name} long").collection(name=f"of {name}") for name in "xy")
        x.join(y, on="k", skew=skew, name="joined").changes(name="all").capture("out")
        return flow

    for i, skew in enumerate([None, [0], [0, 1], [2]]):
        process = begin(joined(skew))
        for name in "xy":
            process.handles[name].send([(k, i) for k in range(3)])
        process.batches()

    rows = [row for of in process.captured().values() for row in of]
    assert sorted(rows) == [(k, i, j, 1) for k in range(3) for i in range(4) for j in range(4)]
    assert caplog.text.count("continues with other hot keys") == 3


def test_a_minimum_whose_records_other_hot_keys_would_move_is_refused(begin: Begin) -> None:
    def least(skew: list[int]) -> ts.Dataflow:
        flow = ts.Dataflow("least")
        x = flow.input("x", "k long, v long").collection(name="of x")
        x.min("v", keys="k", skew=skew, name="least").changes(name="all").capture("out")
        return flow

    process = begin(least([0, 1]))
    process.feed("x", [(0, 7)])
    with pytest.raises(FlowChanged, match="'skew': '"):
        begin(least([2]))
    begin(least([1, 0])).batches()


def test_after_a_restart_the_flow_goes_on_in_the_middle_of_a_loop(begin: Begin) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    process.batch()
    process.batch()
    after = begin(loop())

    assert after.next == 2
    after.batches()
    assert after.captured()[0] == [(k,) for k in range(7)]


def test_a_batch_that_was_not_committed_runs_again_after_a_restart(begin: Begin) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    process.batch()
    process.poll()
    process.driver(process.run(), 1)  # type: ignore[arg-type]
    after = begin(loop())

    assert after.next == 1
    after.finish(after.run())
    after.batches()
    assert after.captured()[0] == [(k,) for k in range(7)]


def test_ids_that_spark_uses_up_by_itself_are_no_gap(begin: Begin) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    process.batch()
    process.world.plan_batch(1, process.world.offset(0))
    process.world.add("commits/1", "v1\n{}")
    process.world.versions[2] = process.world.versions[1]
    after = begin(loop())

    assert after.next == 2
    after.batches()
    assert after.captured()[0] == [(k,) for k in range(7)]


def test_rounds_of_one_batch_lead_to_the_same(begin: Begin) -> None:
    process = begin(loop(), rounds=100)

    assert process.feed("x", [0, 4]) == 1
    manifest = process.context.log.read(0)
    assert manifest is not None
    assert manifest.rounds == manifest.stats["rounds"] > 3
    assert manifest.bound["rounds"] == 100
    assert not manifest.runnable
    assert manifest.released == [("out", 0)]
    assert process.captured()[0] == [(k,) for k in range(7)]
    process.feed("x", [0, 3, 9])
    assert process.captured()[1] == [(9,)]  # from the states that those rounds left


# -- what a manifest says ----------------------------------------------------------------------------------


def test_a_manifest_has_the_progress_of_the_flow(begin: Begin) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    process.batch()
    first = process.context.log.read(0)
    assert first is not None

    assert (first.batch, first.rounds, first.runnable, first.released) == (0, 1, True, [])
    assert (first.plan, first.run) == (process.context.plan.fingerprint, process.name)
    assert first.frontier["out"] == [[0]]
    assert list(first.unreleased) == ["out"]
    process.batches()
    last = process.newest()
    assert (last.rounds, last.released, last.unreleased) == (process.next, [("out", 0)], {})
    assert not last.complete


def test_a_manifest_of_another_flow_is_refused(begin: Begin) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    process.poll()
    frame = process.run()
    log = process.context.log
    first, rows = log.newest_before(0)
    log.write(dataclasses.replace(first, plan="another"), rows)

    with pytest.raises(OtherFlow):
        process.driver(frame, 0)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("planned", [False, True])
def test_a_changed_flow_says_that_the_run_before_has_committed_meanwhile(
    begin: Begin,
    planned: bool,  # noqa: FBT001
) -> None:
    before = begin(loop())
    before.handles["x"].send([0])
    before.poll()
    before.driver(before.run(), 0)  # type: ignore[arg-type]
    changed = ts.Dataflow("loop")
    other = changed.input("x", "k long").distinct(name="other")
    other.group_by("k").count(per="time", name="by time").capture("new")
    process = begin(changed)
    before.commit()  # it has looked for a newer run before that
    if planned:
        before.world.plan_batch(1, {**before.world.offset(0), "round": 0})
    process.next = 1

    def go_on() -> None:
        assert planned or process.poll()
        process.finish(process.run())

    with pytest.raises(OtherFlow, match=r"(?s)micro-batch 0 was committed .*Hint: start again"):
        go_on()
    assert isinstance(process.context.failure(), OtherFlow)


# -- outputs -----------------------------------------------------------------------------------------------


def test_epochs_are_delivered_in_order_and_when_they_are_complete(begin: Begin) -> None:
    delivered: Delivered = []
    process = begin(passing(delivered))
    handle = process.handles["x"]
    handle.send([1], epoch=1)
    process.batches()
    handle.send([0])
    process.batches()
    assert delivered == []
    handle.advance_to(1)
    process.batches()
    assert delivered == [(0, [0])]
    handle.send([2])
    process.batches()
    handle.advance_to(3)
    process.batches()
    assert [(epoch, rows) for epoch, rows in delivered if rows] == [(0, [0]), (1, [1, 2])]
    manifest = process.newest()
    assert [epoch for _, epoch in manifest.released] == [1, 2]
    assert manifest.delivered["told"][:2] == [3, 2], "three records; the last epoch without any"


@pytest.mark.slow
def test_parts_of_an_open_epoch_are_in_few_files_which_go_with_its_delivery(begin: Begin) -> None:
    delivered: Delivered = []
    process = begin(passing(delivered), keep=2)
    for n in range(9):
        process.feed("x", [n])
    manifest = process.newest()
    ((name, epochs),) = manifest.unreleased.items()
    assert (name, list(epochs)) == ("told", ["0"])
    assert len(epochs["0"]) <= 4  # merged as they come: nine parts are not nine files
    process.handles["x"].advance_to(1)
    process.batches()

    assert delivered == [(0, list(range(9)))]
    for _ in range(6):
        process.feed("x", [0])
    manifest = process.newest()
    needed = {name.rpartition("/")[2] for files in manifest.unreleased["told"].values() for name in files}
    assert needed <= set(_names(process, "outputs"))
    assert len(_names(process, "outputs")) <= len(needed) + 2 * 4  # of batches that may run again


def test_by_arrival_each_batch_is_delivered(begin: Begin) -> None:
    delivered: Delivered = []
    process = begin(passing(delivered, release="arrival"))
    for n in (5, 6):
        process.feed("x", [n])

    process.handles["x"].advance_to(1)
    process.batches()

    assert delivered == [(0, [5]), (0, [6])], "and nothing again when the epoch is complete"
    manifest = process.newest()
    assert manifest.unreleased == {}


def test_when_all_inputs_are_closed_it_is_complete(begin: Begin) -> None:
    done: list[str] = []
    process = begin(manual(on_complete=lambda: done.append("done")))
    process.feed("x", [1])
    assert done == []
    process.handles["x"].close()
    process.batches()

    assert done == ["done"]
    manifest = process.newest()
    assert manifest.complete


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_subscriber_raises_is_named_and_the_epoch_comes_again(
    error: type[BaseException], begin: Begin
) -> None:
    delivered: Delivered = []
    failing = [True]

    def tell(epoch: int, table: pa.Table) -> None:
        if epoch and failing:
            failing.pop()
            raise error(epoch)
        delivered.append((epoch, table["n"].to_pylist()))

    flow = ts.Dataflow("fails")
    flow.input("x", "k long").group_by("k").count("n").subscribe(tell, name="told")
    process = begin(flow)
    process.handles["x"].send([7])
    process.batch()
    process.handles["x"].send([7, 7])
    process.poll()
    frame = process.run()

    told = rf"step 'told' \(.*test_driver.*failed at epoch 1.*{error.__name__}: 1"
    with pytest.raises(VertexError, match=told):
        process.driver(frame, 1)  # type: ignore[arg-type]
    assert not process.context.log.has(1)
    process.finish(frame)
    process.handles["x"].send([7])
    process.batch()
    assert delivered == [(0, [1]), (1, [3]), (2, [4])]


def test_the_error_of_a_task_that_was_run_again_hides_no_later_one(begin: Begin, tmp_path: Path) -> None:
    process = begin(loop())
    context = process.context
    where, once = context.plan.stages[0].where, ValueError("once")
    with pytest.raises(VertexError), context.reporting():
        raise VertexError.from_exception(context.plan.stages[0].name, where, once)
    assert "once" in str(context.failure())
    process.handles["x"].send([0])
    process.batch()
    assert context.failure() is None
    assert Status.of(str(tmp_path)).failure is None

    for text in ("a later one", "what Spark makes of it"):
        with pytest.raises(RuntimeError), context.reporting():
            raise RuntimeError(text)
    assert "what Spark makes of it" in str(context.failure())
    context.ended(context.failure())
    failure = Status.of(str(tmp_path)).failure
    assert failure is not None
    assert "what Spark makes of it" in failure["error"]


def test_a_batch_that_failed_runs_again_from_the_one_before(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(loop())
    process.handles["x"].send([0])
    for _ in range(3):
        process.batch()
    process.poll()
    frame = process.run()
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "_deliver", mock.Mock(side_effect=ValueError("once")))
        with pytest.raises(ValueError, match="once"):
            process.driver(frame, process.next)  # type: ignore[arg-type]
    process.finish(frame)
    process.batches()

    assert process.captured()[0] == [(k,) for k in range(7)]
    assert process.driver._last is not None
    assert process.driver._last.coordinator.tracker.active == {}, "no progress was applied twice"


# -- large things, and what nobody needs any more ----------------------------------------------------------


def sent_and_kept(process: Stepper) -> set[str]:
    """The files of messages that the manifests refer to, each of which could be gone back to."""
    messages = set[str]()
    for batch in manifests(process):
        _, rows = process.context.log.newest_before(batch + 1)
        sent = blobs.files_of(wire.only(rows, Message))
        needed = sent.union(*(state.files for state in StateRefs.of(rows).by_worker.values()))
        assert {name.rpartition("/")[2] for name in needed} <= set(_names(process, "blobs")), batch
        messages |= sent
    return messages


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("rounds", [1, 3])
def test_files_go_when_no_batch_that_may_run_again_needs_them(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """With further rounds in a batch, also those that its first round has sent and the next one has read."""
    monkeypatch.setattr(blobs, "EMBEDDED", 64)
    monkeypatch.setattr(blobs, "BULK", 0)
    process = begin(loop(), keep=3, rounds=rounds)
    live: list[int] = []
    of_messages = set[str]()
    for n in range(12):
        process.feed("x", [n % 3, 100 + n])
        live.append(len(_names(process, "blobs")))
        of_messages |= sent_and_kept(process)

    assert manifests(process)[0] == process.next - 1 - 3
    assert len(manifests(process)) == 4
    assert len(of_messages) > 6 or rounds > 1
    assert 0 < max(live[6:]) <= max(live[2:6]), "none stays"


def test_files_stay_for_the_copy_of_a_manifest_as_long_as_for_the_manifest(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "EMBEDDED", 64)
    monkeypatch.setattr(blobs, "BULK", 0)
    process = begin(loop(), keep=1)
    process.handles["x"].send([0, 100, 101])
    process.batch()
    for batch in (1, 2):  # Spark uses up ids by itself
        process.world.plan_batch(batch, process.world.offset(0))
        process.world.add(f"commits/{batch}", "v1\n{}")
        process.world.versions[batch + 1] = process.world.versions[1]
    process = begin(loop(), keep=1)
    kept = sent_and_kept(process)
    while process.batch():
        kept |= sent_and_kept(process)
    assert len(kept) >= 3
    assert process.captured()[0] == [*((k,) for k in range(7)), (100,), (101,)]


# -- takeovers ---------------------------------------------------------------------------------------------


def test_a_driver_whose_checkpoint_was_taken_delivers_nothing(begin: Begin) -> None:
    delivered: Delivered = []
    flow = ts.Dataflow("taken")
    flow.input("x", "k long").subscribe(lambda epoch, _: delivered.append((epoch, [])), name="told")
    process = begin(flow)
    process.handles["x"].send([7])
    process.poll()
    frame = process.run()
    RoundLog(process.context.log.checkpoint).claim({"run": "another"})

    with pytest.raises(LostOwnership):
        process.driver(frame, 0)  # type: ignore[arg-type]
    assert delivered == []
    assert not process.context.log.has(0)


def test_a_driver_whose_checkpoint_is_taken_while_it_delivers_does_not_commit(begin: Begin) -> None:
    flow = ts.Dataflow("taken")
    taken: list[Any] = []
    flow.input("x", "k long").subscribe(
        lambda *_: taken.append(RoundLog(process.context.log.checkpoint).claim({"run": "another"})),
        name="told",
    )
    process = begin(flow)
    process.handles["x"].send([7])
    process.poll()

    with pytest.raises(LostOwnership):
        process.finish(process.run())
    assert taken
    assert process.world.files.numbers("commits") == []


def test_a_resident_micro_batch_without_rows_of_a_taken_checkpoint_does_not_commit(
    begin: Begin,
) -> None:
    flow = ts.Dataflow("taken")
    flow.input("x", "k long").capture("out")
    process = begin(flow)
    process.feed("x", [7])
    process.driver.context = dataclasses.replace(process.context, resident=1e-9)
    process.world.plan_batch(process.next, process.world.offset(process.next - 1))
    RoundLog(process.context.log.checkpoint).claim({"run": "another"})

    # what Spark commits must be in the manifest that the other run continues from
    with pytest.raises(LostOwnership):
        process.finish(Frame(ROWS.empty_table(), process))


def test_a_command_that_ends_the_wait_of_a_resident_micro_batch_is_seen_before_the_next_wait(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait takes a quarter of a second where nothing escapes the wake-up, and a command wakes it once."""
    process = begin(loop())
    context = stay(process)
    process.handles["x"].send([0])
    waits: list[float] = []

    def wait(_: ResidentInputs, seconds: float) -> bool:
        waits.append(seconds)
        assert len(waits) < 3, "the command was not seen"
        if len(waits) == 2:
            context.log.files.write(stop_file(context.term), b"")
        return len(waits) == 2

    monkeypatch.setattr(ResidentInputs, "wait", wait)
    monkeypatch.setattr(driver_module, "LONGEST_LOOK", 1e9)  # it looked but a moment ago
    process.batch()
    assert len(waits) == 2


def test_micro_batches_yield_until_the_last_of_two_waits_has_ended(begin: Begin) -> None:
    context = stay(begin(loop()))
    with yielding(context):
        with yielding(context):
            pass
        assert yields(context)
    assert not yields(context)


def test_an_epoch_of_a_resident_micro_batch_is_delivered_after_one_write(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a write takes long, what is sent meanwhile joins the next epoch."""
    heard: list[str] = []
    flow = ts.Dataflow("slow")
    sums = flow.input("x", "k long").group_by("k").count("n", name="sums")
    sums.subscribe(lambda epoch, table: heard.append(f"told {epoch}: {table.num_rows}"), name="told")
    process = begin(flow)
    context = stay(process)
    sent = process.handles["x"].send
    to_send = {1: [[1], [2], [3]], 2: [[4]]}
    real = Files.write

    def write(files: Files, name: str, *args: Any, **more: Any) -> Any:
        folder = name.partition("/")[0]
        if folder == "epochs":  # slow: the program sends meanwhile
            for records in to_send.pop(int(Path(name).stem), []):
                sent(records)
        # of the program, of `stop`, of Spark, and of one batch an hour
        if folder not in {"inputs", "terms", "commits", "hours.json"}:
            heard.append(folder)
        return real(files, name, *args, **more)

    def wait(_: ResidentInputs, seconds: float) -> bool:
        context.log.files.write(stop_file(context.term), b"")
        return True

    sent([0])
    process.poll()
    frame = process.run()
    sent([0])
    can_stay, asked = Rounds.can_stay, list[int]()
    monkeypatch.setattr(
        Rounds,
        "can_stay",
        lambda rounds, session, batch: asked.append(batch) or can_stay(rounds, session, batch),
    )
    monkeypatch.setattr(Files, "write", write)
    monkeypatch.setattr(ResidentInputs, "wait", wait)
    process.finish(frame)
    assert heard == [
        "told 0: 1", "rounds",
        "epochs", "told 1: 1", "rounds",
        "epochs", "told 2: 3", "rounds",
        "epochs", "told 3: 1", "rounds",
    ]  # fmt: skip
    assert asked == [1, 2, 3]


def test_an_entry_that_is_missing_ends_what_a_resident_batch_reads(begin: Begin) -> None:
    process = begin(loop())
    for n in range(4):
        process.handles["x"].send([n])
    process.context.log.files.remove("inputs/x/2.arrow")
    inputs = ResidentInputs(process.context)

    assert inputs.available(Ends({"x": -1}, {})) == (Ends({"x": 1}, {}), True)
    assert inputs.available(Ends({"x": 1}, {})) == (Ends({"x": 1}, {}), True)


def test_a_process_reads_the_states_of_its_own_workers_that_it_does_not_have(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, read = begin(loop(), workers=4).context, list[bytes]()
    get = blobs.Blobs.get
    monkeypatch.setattr(blobs.Blobs, "get", lambda store, state: read.append(state) or get(store, state))
    coordinator, states = Coordinator(context.plan), {worker: b"%d" % worker for worker in range(4)}
    worker = Worker(context.plan, None, 1)
    with closing(Hosted(context, rank=1)) as hosted:
        hosted._workers[1] = states[1], worker
        share, start = Share(1, 2), coordinator.first()
        hosted.run(coordinator, 0, start, states, [RoundLimits()], share=share, repeated=False)

    assert read == [states[3]]


@pytest.mark.parametrize("parallel", [False, True])
def test_tasks_that_stay_run_large_rounds_if_tasks_may_be_parallel(
    parallel: bool,  # noqa: FBT001 - drawn
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, works = begin(loop()).context, list[Work]()
    coordinator, rounds = Coordinator(context.plan), Rounds(context, parallel)
    monkeypatch.setattr(Rounds, "_by_tasks", lambda _, __, work, *___: works.append(work))
    rounds._tasks = StayingTasks(context)
    start = RoundResult.of_input(coordinator.first().header, ROWS.empty_table())
    rounds.from_input(None, coordinator, 0, start, StateRefs(), bound=rounds.bound, repeated=False)  # type: ignore[arg-type]

    (work,) = works
    assert [RoundLimits(**bound) for bound in work.bounds][1:] == [rounds.bound] * parallel


def test_a_batch_that_runs_again_has_the_rounds_that_it_had(begin: Begin) -> None:
    """Else it would release on arrival what its version is not written for any more."""
    context = begin(loop(), rounds=100).context
    simulation = Simulation(loop(), workers=2, rounds_per_batch=1)
    simulation.send("x", [0, 4])
    simulation.step()
    start = RoundResult.of_input(simulation.result.header, simulation.result.rows)
    _, result, _ = Rounds(context, parallel=False).from_input(
        None, simulation.coordinator, 0, start, StateRefs(), bound=RoundLimits(rounds=2), repeated=True
    )  # type: ignore[arg-type]

    assert result.stats["rounds"] == 2


def test_tasks_that_stay_go_with_the_query_that_rested(begin: Begin) -> None:
    driver = begin(loop()).driver
    driver._rounds._tasks = tasks = mock.Mock()
    driver.release()
    assert tasks.end.called


def test_a_batch_begins_also_when_the_interpreter_ends(begin: Begin) -> None:
    """The driver delivers what waits for a common commit when the program ends without `stop`."""
    inputs = ResidentInputs(begin(loop()).context)
    ends = Ends({"x": 3}, {})
    inputs._thread.shutdown()
    assert inputs.begin(7, ends).result() == ends.encode()
    assert inputs.context.log.begun(7) == ends.encode()


def test_a_source_that_no_batch_has_read_is_read_from_its_beginning(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "one.csv").write_text("k\n7\n8\n")
    flow = ts.Dataflow("files")
    flow.files("f", folder, format="csv", schema="k long").capture("out")
    context = begin(flow, path=tmp_path / "checkpoint").context
    bound = {"f": flow.frames["f"].bind(context.checkpoint, needed(context.plan, "f"), 2)}
    inputs = ResidentInputs(dataclasses.replace(context, packed_sources=packed_sources(bound)))
    nothing = Ends({}, {})

    ends, small = inputs.available(nothing)

    assert small
    assert ends.sources["f"]["files"] == 0
    assert inputs.rows(nothing, ends).num_rows
    inputs.check(0, nothing, ends)
    with pytest.raises(LogDamaged, match="ends before what was read of 'f'"):
        inputs.check(1, ends, nothing)
    monkeypatch.setattr("timely_spark.runtime.query.resident.SMALL_BYTES", len("k\n7\n8\n") - 1)
    assert inputs.available(nothing) == (ends, False), "tasks read so much"


def test_a_send_lets_no_folder_be_listed(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources and entries share one watch, which tells in which folder something has changed."""
    folders = [tmp_path / "one", tmp_path / "other"]
    flow = ts.Dataflow("files")
    flow.input("x", "k long").capture("sent")
    for folder in folders:
        folder.mkdir()
        (folder / "first.csv").write_text("k\n7\n")
        flow.files(folder.name, folder, format="csv", schema="k long").capture(f"of_{folder.name}")
    process = begin(flow, path=tmp_path / "checkpoint")
    context, listed, made = process.context, list[str](), list[inotify_simple.INotify]()
    bound = {
        name: frame.bind(context.checkpoint, needed(context.plan, name), 2)
        for name, frame in flow.frames.items()
    }
    inputs = ResidentInputs(dataclasses.replace(context, packed_sources=packed_sources(bound)))
    listing, watch = Folder.listing, inotify_simple.INotify
    monkeypatch.setattr(Folder, "listing", lambda folder: (listed.append(folder.source), listing(folder))[1])
    monkeypatch.setattr(inotify_simple, "INotify", lambda: (made.append(watch()), made[-1])[1])
    monkeypatch.setattr("timely_spark.runtime.sources.reader._IDLE", 1e9)  # else time lets it look, too

    read, _ = inputs.available(Ends({}, {}))
    assert listed == ["one", "other"]
    process.handles["x"].send([1])
    assert inputs.wait(5)
    read, _ = inputs.available(read)
    assert read.entries == {"x": 0}
    assert listed == ["one", "other"]
    (folders[1] / "second.csv").write_text("k\n8\n")
    assert inputs.wait(5)
    read, _ = inputs.available(read)
    assert {name: end["files"] for name, end in read.sources.items()} == {"one": 0, "other": 1}
    assert listed == ["one", "other", "other"]
    assert len(made) == 1


def test_what_was_read_is_let_go_of_when_a_manifest_says_so(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is killed in between reads it once more."""
    process = begin(loop())
    process.context = dataclasses.replace(process.context, keep=1)
    context, forgotten = stay(process), list[int]()

    def forget(inputs: ResidentInputs, manifest: Manifest) -> None:
        assert inputs.context.log.has(manifest.batch)
        forgotten.append(manifest.batch)

    def wait(_: ResidentInputs, seconds: float) -> bool:
        if len(forgotten) < 3:
            process.handles["x"].send([0])
        else:
            context.log.files.write(stop_file(context.term), b"")
        return True

    monkeypatch.setattr(ResidentInputs, "forget", forget)
    monkeypatch.setattr(ResidentInputs, "wait", wait)
    process.handles["x"].send([0])
    process.batch()
    assert forgotten[:3] == [0, 1, 2]


def test_what_was_captured_after_a_roll_back_is_gone(begin: Begin) -> None:
    """By hand, as the documents say: Spark's newest offsets and commits are removed."""
    flow = ts.Dataflow("back")
    flow.input("x", "k long").capture("out")
    process = begin(flow)
    for n in range(4):
        process.feed("x", [n])
    for batch in (2, 3):
        process.world.files.remove(f"offsets/{batch}")
        process.world.files.remove(f"commits/{batch}")
    again = begin(flow)

    def rows() -> dict[int, list[tuple[Any, ...]]]:
        return {epoch: rows for epoch, rows in again.captured().items() if rows}

    assert rows() == {0: [(0,)], 1: [(1,)]}
    again.batches()
    assert sorted(row for each in rows().values() for row in each) == [(n,) for n in range(4)]


@pytest.mark.slow
def test_a_driver_spreads_the_keys_that_its_batches_find(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", 2)
    flow = ts.Dataflow("hot")
    x = flow.input("x", "k long, v long").collection()
    x.min("v", keys="k", skew="auto").changes().capture("out")
    process = begin(flow, workers=3, rounds=100)
    least = []
    for first in (30, 20, 10):
        process.feed("x", [(7, first + n) for n in range(9)])
        least.append(process.captured())

    newest = process.newest()
    assert newest.spread
    changes = [rows for rows in least[-1].values() if rows]
    assert changes == [[(7, 30, 1)], [(7, 20, 1), (7, 30, -1)], [(7, 10, 1), (7, 20, -1)]]


def test_a_batch_that_the_run_before_has_begun_meanwhile_is_repeated_as_it_was_begun(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was suspended may write the limits while the new one runs the batch with others."""
    heard: list[Any] = []
    flow = ts.Dataflow("begun")
    sums = flow.input("x", "k long").group_by("k").count("n", name="sums")
    sums.subscribe(lambda epoch, table: heard.append((epoch, table["n"].to_pylist())), name="told")
    process = begin(flow)
    context = stay(process)
    process.handles["x"].send([0])
    process.poll()
    frame = process.run()
    for _ in range(2):
        process.handles["x"].send([0])
    real, before = RoundLog.begin, RoundLog(context.checkpoint, context.term - 1)

    def begins(log: RoundLog, batch: int, ends: Any) -> Any:
        if batch == 1:
            assert ends["entries"] == {"x": 2}
            before.files.write_json("epochs/1.json", {"term": before.term, "ends": other}, new=True)
        return real(log, batch, ends)

    def wait(_: ResidentInputs, seconds: float) -> bool:
        context.log.files.write(stop_file(context.term), b"")
        return True

    other = {"entries": {"x": 1}, "sources": {}}
    monkeypatch.setattr(RoundLog, "begin", begins)
    monkeypatch.setattr(ResidentInputs, "wait", wait)
    process.finish(frame)
    assert heard == [(0, [1]), (1, [2]), (2, [3])]


@pytest.mark.parametrize("stopped", [False, True])
def test_an_error_in_a_session_that_was_stopped_is_not_that_of_a_step(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    def write(_: int, __: object) -> None:
        msg = "Cannot invoke DAGScheduler.cleanupQueryJobs(long)"
        raise RuntimeError(msg)

    flow = ts.Dataflow("x")
    flow.input("n", "n long").subscribe(write, name="out")
    process = begin(flow)
    monkeypatch.setattr(driver_module, "has_stopped", lambda _: stopped)
    process.handles["n"].send([1])
    kind, text = (QueryFailed, "its Spark session was stopped") if stopped else (VertexError, "step 'out'")
    with pytest.raises(kind, match=text):
        process.batches()
    reported = process.context.failure()
    assert isinstance(reported, kind)
    assert text in str(reported)


def test_a_source_goes_on_where_batches_without_a_micro_batch_have_read_it() -> None:
    """The offset of the next micro-batch repeats the old one where Spark has seen nothing new."""
    offsets = {4: {"same": {"files": 1}, "new": {"files": 1}}, 5: {"same": {"files": 1}, "new": {"files": 7}}}
    log: Any = mock.Mock(read_to=lambda batch: ({"x": 3}, offsets[batch]))
    resident = {"same": {"files": 5}, "new": {"files": 6}}
    before: Any = mock.Mock(micro_batch=4, entries={"x": 8, "y": 0}, sources=resident)

    assert driver_module._read_to(log, before, 5) == {
        "entries": {"x": 8, "y": 0},
        "sources": {"same": {"files": 5}, "new": {"files": 7}},
    }


def test_where_rounds_ended_early_is_forgotten_with_their_batches(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, run = begin(loop(), rounds=100, keep=1), Rounds.run
    for n in range(3):
        process.feed("x", [n])
    log, newest = process.context.log, process.newest()
    for batch in range(newest.batch + 1):
        record(log, batch, 0, 0, 1)

    def ended_early(*args: Any) -> Any:
        coordinator, result = run(*args)
        result.stats["cut"] = 1
        return coordinator, result

    process.feed("x", [0])
    assert len(log.files.names("cuts")) == newest.batch + 1, "no folder is listed"
    before = process.newest().kept_from
    monkeypatch.setattr(Rounds, "run", ended_early)
    process.feed("x", [0])
    assert log.files.names("cuts") == [f"cuts/{batch}-0-0.json" for batch in range(before, newest.batch + 1)]


def test_a_clock_that_jumps_changes_no_result(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back by a day, on by a year, to 1970 and before, also between two starts."""
    now, clock, nanoseconds = [0.0], time.time, time.time_ns
    flow = ts.Dataflow("clock")
    flow.input("x", "k long").distinct().capture("out")
    monkeypatch.setattr(time, "time", lambda: clock() + now[0])
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(now[0] * 1e9))
    process = begin(flow, workers=1)
    for n, jump in enumerate((0.0, -86_400.0, 3e7, -clock(), -10.0, 2.0**33)):
        now[0] += jump
        process.feed("x", [n])
        if n % 2:
            process = begin(flow, workers=1)
    assert sorted(row for rows in process.captured().values() for row in rows) == [(n,) for n in range(6)]
    assert Status.of(process.context.log.checkpoint)
