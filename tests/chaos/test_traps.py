"""Tasks that outlive their batch: they write when the winner has committed, or its files were collected."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.engine import CALM, Killed, Process, World, difference, files
from tests.support.hops import hop
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog


def looping(folder: Path, *, sends: int, keep: int) -> World:
    """Paths that grow: messages, keyed state, outputs; a round is a micro-batch, and most lies in files."""
    flow = ts.Dataflow("paths")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

    roots.loop(hop(edges), name="hops").capture("out")
    draw = random.Random(sends)
    calls: dict[str, list[Any]] = {"edges": [], "roots": [("send", ([(0,)],))]}
    for _ in range(sends):
        calls["edges"].append(("send", ([(draw.randint(0, 40), draw.randint(0, 40)) for _ in range(20)],)))
    return World(flow, str(folder), calls, rounds=1, keep=keep, workers=3)


class Late(Process):
    """A driver each of whose tasks has a second attempt, whose files arrive some batches later."""

    lag = 0
    count: ClassVar[Counter[str]] = Counter()

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: (batch, name, content) of what is on its way
        self.waiting: list[tuple[int, str, bytes]] = []

    def work(self, n: int, label: int, rows: pa.Table) -> Any:
        won = super().work(n, label, rows)

        def write(_: Files, name: str, content: bytes, **__: object) -> None:
            self.waiting.append((n, name, content))

        with mock.patch.object(Files, "write", write):
            state, _ = super().work(n, label, rows)
        assert state == won[0], "the same task, the same state"
        return won

    def batch(self) -> bool:
        more = super().batch()
        until = self.next - 1 - self.lag
        for _, name, content in [each for each in self.waiting if each[0] <= until]:
            there = self.context.log.files
            self.count["late"] += 1
            self.count["litter"] += not there.exists(name)
            there.write(name, content)
        self.waiting = [each for each in self.waiting if each[0] > until]
        return more


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 4], ids=["at once", "when its files were collected"])
def test_a_task_that_writes_after_the_winner_committed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    monkeypatch.setattr(Late, "lag", lag)
    monkeypatch.setattr(Late, "count", Counter())
    monkeypatch.setattr(engine, "Process", Late)
    world = looping(tmp_path, sends=7, keep=2)

    world.live()

    # how many came before the last batch is the clock's affair
    assert Late.count["late"]
    if lag > world.keep:
        assert Late.count["litter"], "some wrote what had been removed already"
    # a new start finds what a run that never failed says, and no file that nobody needs
    assert difference(world) is None


@pytest.mark.slow
def test_what_a_late_task_of_the_run_before_leaves_goes_at_the_next_start(tmp_path: Path) -> None:
    """The driver was killed, its executor was not: the task writes when the next run has swept already."""
    world = looping(tmp_path, sends=5, keep=2)
    world.live()
    first = RoundLog(world.checkpoint)
    with engine._points(world):
        second = Process(world)
        world.processes = [second]
        second.start()
    late = Blobs(first.files, 0).put("1-3-0", random.Random(0).randbytes(100_000))
    assert late.startswith(b"blobfile")
    live, gone, there = files(second.context.log)
    (litter,) = there - live - gone
    assert litter.startswith("blobs/0-1-3-0-"), "of the first term; nothing refers to it"

    assert difference(world) is None
    assert litter not in first.files.names("blobs")


def test_attempts_that_differ_write_files_that_differ(tmp_path: Path) -> None:
    """A user's function that draws at random: the reference that is kept finds its own attempt's bytes."""
    blobs = Blobs(Files(str(tmp_path)), 0)
    attempts = [random.Random(seed).randbytes(50_000) for seed in range(20)]
    references = [blobs.put("0-7-0", data) for data in attempts]

    assert [blobs.get(reference).to_pybytes() for reference in references] == attempts


class KilledOnce(Process):
    """A driver that is killed after a batch, before Spark commits its micro-batch."""

    def point(self, what: str) -> None:
        count = self.world.count
        if what.endswith("is to be committed") and count["batches"] == 2 and not count["kills"]:
            count["kills"] += 1
            raise Killed
        super().point(what)


@pytest.mark.slow
def test_other_workers_run_a_batch_again_that_spark_has_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is there; the migrated one of the batch before is the run's own."""
    monkeypatch.setattr(engine, "Process", KilledOnce)
    world = looping(tmp_path, sends=5, keep=2)
    world.odds = replace(CALM, rescale=1.0)

    world.live()

    assert world.count["kills"] == 1
    assert difference(world) is None
