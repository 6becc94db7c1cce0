"""Epochs of a micro-batch that stays, without Spark: their cost, when a stay ends, and a slow store."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.stepper import Begin, Stepper
from timely_spark.coordinator import RoundLimits
from timely_spark.runtime.errors import LostOwnership
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.query.driver import Driver
from timely_spark.runtime.query.flow_reader import FlowReader
from timely_spark.runtime.query.resident import ResidentInputs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog, stop_file
from timely_spark.runtime.storage.manifest import Manifest


def hops(released: Callable[[int, pa.Table], None] = lambda *_: None) -> ts.Dataflow:
    """The numbers up to six from each that is sent, an exchange each."""
    flow = ts.Dataflow("hops")
    x = flow.input("x", "k long")
    x.subscribe(released, name="told")

    def hop(each: ts.Stream) -> ts.Stream:
        return each.where("k < 6").select(k="k + 1").concat(each).exchange("k").distinct()

    x.loop(hop).capture("out")
    return flow


def stay(process: Stepper, sends: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> list[Manifest]:
    """Send each after the answer to the one before, all in one micro-batch; the manifests of the epochs."""
    context = dataclasses.replace(process.context, resident=1e9)
    process.driver = Driver(context, process.driver.outputs)
    left = deque(sends)

    def wait(_: ResidentInputs, seconds: float) -> bool:
        if left:
            process.handles["x"].send(left.popleft())
        else:
            context.log.files.write(stop_file(context.term), b"")
        return True

    monkeypatch.setattr(ResidentInputs, "wait", wait)
    process.handles["x"].send(left.popleft())
    process.batch()
    found = [context.log.read(batch) for batch in range(len(sends))]
    return [manifest for manifest in found if manifest is not None]


@pytest.mark.slow
def test_an_epoch_has_the_rounds_of_a_micro_batch_two_writes_and_no_job_of_spark(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = [[6], [3], [9], [0], [0]]
    batch = begin(hops(), workers=2, rounds=100, path=tmp_path / "batches", keep=9)
    for records in sends:
        assert batch.feed("x", records) == 1
    rounds = [batch.context.log.read(n).stats["rounds"] for n in range(len(sends))]  # type: ignore[union-attr]
    assert max(rounds) > min(rounds) == 1

    written, write, job = list[str](), Files.write, engine.Frame.mapInArrow
    jobs = list[int]()

    def noted(files: Files, name: str, *args: Any, **more: Any) -> Any:
        written.append(name)
        return write(files, name, *args, **more)

    def run(frame: engine.Frame, *args: Any) -> engine.Frame:
        jobs.append(len(written))
        return job(frame, *args)

    monkeypatch.setattr(Files, "write", noted)
    monkeypatch.setattr(engine.Frame, "mapInArrow", run)
    process = begin(hops(), workers=2, rounds=100, path=tmp_path / "stays", keep=9)
    assert [each.stats["rounds"] for each in stay(process, sends, monkeypatch)] == rounds
    first = next(n for n, name in enumerate(written) if name.startswith("epochs/"))
    assert max(jobs, default=0) <= first, "no epoch after the micro-batch's own one"
    folders = Counter(name.partition("/")[0] for name in written[first:])
    assert folders == {"epochs": 4, "captured": 4, "rounds": 4, "inputs": 3, "terms": 1, "commits": 1}


@pytest.mark.slow
def test_a_store_that_is_slow_changes_no_epoch(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one thread writes may be late for all others; what is released is durable all the same."""
    sends, write, draw = [[n % 5] for n in range(12)], Files.write, random.Random(1)
    heard: list[int] = []

    def released(epoch: int, _: pa.Table) -> None:
        assert not epoch or process.context.log.files.exists(f"epochs/{epoch}.json")
        heard.append(epoch)

    def slowly(*args: Any, **more: Any) -> Any:
        time.sleep(draw.choice([0, 0, 0, 0, 0.1]))
        return write(*args, **more)

    rows = []
    for name in ("quick", "slow"):
        heard.clear()
        process = begin(hops(released), workers=2, rounds=100, path=tmp_path / name)
        if name == "slow":
            monkeypatch.setattr(Files, "write", slowly)
        stay(process, sends, monkeypatch)
        rows.append(process.captured())
        assert heard == [*range(len(sends))]
    assert rows[0] == rows[1]


def test_a_stay_ends_in_its_time_and_the_next_one_follows_at_once_unless_nothing_has_happened(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, now, left = begin(hops(), rounds=100, keep=9), [0.0], deque([[3], [9]])
    context = dataclasses.replace(process.context, resident=30.0)
    process.driver, process.reader = Driver(context, process.driver.outputs), FlowReader(context)

    def wait(_: ResidentInputs, seconds: float) -> bool:
        now[0] += 10
        assert now[0] < 100, "it ends"
        if left:
            process.handles["x"].send(left.popleft())
        return True

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter, time=time.time)
    monkeypatch.setattr("timely_spark.runtime.query.driver.time", clock)
    monkeypatch.setattr(ResidentInputs, "wait", wait)
    process.handles["x"].send([6])
    assert process.batch()
    assert (now, process.newest().batch) == ([30.0], 2), "three epochs in the first stay"
    assert process.batch(), "a micro-batch without input"
    assert (now, process.newest().batch, process.newest().micro_batch) == ([60.0], 2, 1), "which is no epoch"
    assert process.poll() is None, "the query rests"
    process.handles["x"].send([1])
    assert process.batch()
    assert (process.newest().batch, process.newest().micro_batch) == (3, 2)
    assert sorted(process.captured()) == [0, 1, 2, 3]


def test_of_two_runs_one_begins_a_batch_durably_and_the_other_is_refused(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = ({"entries": {"x": n}, "sources": {}} for n in (1, 2))
    before = RoundLog(str(tmp_path)).claim({"run": "before"})
    synced.clear()
    assert before.begin(3, first) == first
    content, folder = synced[-2:]
    assert (Path(content).parent, folder) == (tmp_path / "timely" / "epochs", f"{tmp_path}/timely/epochs")
    after = RoundLog(str(tmp_path)).claim({"run": "after"})
    assert after.begin(3, other) == first, "the batch that the run before has begun"
    with pytest.raises(LostOwnership, match="to run after"):
        before.begin(5, first)
    assert after.begun(5) is None

    monkeypatch.setattr(RoundLog, "check_owner", lambda _: None)  # it was suspended just after this look
    assert after.begin(4, first) == first
    with pytest.raises(LostOwnership, match="to run after"):
        before.begin(4, other)
    assert after.begun(4) == first


def test_where_states_are_too_large_no_micro_batch_stays_and_the_status_says_so(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timely_spark.runtime.query.rounds.SMALL", RoundLimits(states=0))
    process = begin(hops(), rounds=100)
    context = dataclasses.replace(process.context, resident=1e9)
    process.driver, process.reader = Driver(context, process.driver.outputs), FlowReader(context)
    monkeypatch.setattr(ResidentInputs, "wait", lambda *_: pytest.fail("it stays"))
    assert process.feed("x", [6]) == 1
    assert process.feed("x", [7]) == 1
    assert process.newest().micro_batch == process.newest().batch == 1
    residency = Status.of(context.checkpoint).residency
    assert residency.startswith("each epoch is a micro-batch: the states that a batch may read have ")
