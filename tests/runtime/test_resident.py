"""Epochs of a micro-batch that stays, without Spark: what each costs, and a store that is slow."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.stepper import Begin, Stepper
from timely_spark.runtime.query.driver import Driver
from timely_spark.runtime.query.resident import ResidentInputs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import stop_file
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
        time.sleep(draw.choice([0, 0.01, 0.05]))
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
