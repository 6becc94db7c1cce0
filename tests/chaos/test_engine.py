"""The real runtime over a real checkpoint, without Spark: what crashes do to it, and what is left behind."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import changing, engine
from tests.support.engine import World, check_seed, difference, files
from tests.support.hops import to_next_key
from timely_spark.runtime.storage import entries
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs


@pytest.mark.slow
def test_random_crashes_change_no_output_and_leave_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--cases", "4"]) == 0
    printed = capsys.readouterr().out

    assert printed.endswith("no differences\n")
    for what in ("kills", "tasks lost", "batches"):
        assert what in printed


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_random_crashes_change_no_output_in_many_cases() -> None:
    assert engine.main(["--cases", "2000", "--first", "100"]) == 0


@pytest.mark.slow
def test_inputs_that_come_and_go_lose_nothing_and_are_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--cases", "2", "--first", "3"], changing.check_seed, "changing") == 0
    printed = capsys.readouterr().out

    for what in ("kills", "starts", "resident batches"):
        assert what in printed


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_inputs_that_come_and_go_lose_nothing_in_many_cases() -> None:
    assert engine.main(["--cases", "300", "--first", "100"], changing.check_seed, "changing") == 0


# -- what is left behind -------------------------------------------------------------------------------------


def endless(checkpoint: Path, batches: int) -> World:
    """A loop over few keys, its state bounded; every round is a micro-batch."""
    flow = ts.Dataflow("endless")

    iterated = flow.input("x", "k long, v long").loop(to_next_key, max_iterations=3, on_limit="return")
    iterated.group_by("k").aggregate(v=("max", "v")).capture("out")
    draw = random.Random(0)
    calls = [
        ("send", ([(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(30)],)) for _ in range(batches)
    ]
    return World(flow, str(checkpoint), {"x": calls}, rounds=1, workers=2)


def bounded(world: World) -> None:
    """Runs it all, and looks at the files after each batch."""
    counts: list[tuple[int, int, int]] = []

    def look(batch: int) -> None:
        if batch % 5:
            return
        log = RoundLog(world.checkpoint)
        paths = [path for path in Path(log.files.root).rglob("*") if path.is_file()]
        # captured epochs stay, in few files
        kept = [path.stat().st_size for path in paths if "captured" not in path.parts]
        counts.append((batch, len(paths), sum(kept)))
        if batch % 50 == 0:
            live, gone, there = files(log)
            assert live <= there <= live | gone

    world.committed = look
    world.live()
    half = len(counts) // 2
    for what in (1, 2):
        early, late = (mean(each[what] for each in part) for part in (counts[3:half], counts[half:]))
        assert late <= 1.5 * early, (what, early, late)  # files wait a while to be removed


@pytest.mark.campaign
@pytest.mark.slow
def test_files_and_bytes_stay_bounded(tmp_path: Path) -> None:
    world = endless(tmp_path, 80)
    bounded(world)
    assert world.count["batches"] > 60


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_files_and_bytes_stay_bounded_over_ten_thousand_rounds(tmp_path: Path) -> None:
    world = endless(tmp_path, 10_500)
    bounded(world)
    assert world.count["batches"] > 10_000


def resident_bounded(checkpoint: Path, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs so many epochs in micro-batches that stay; nothing grows after a third of them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no machine fails
    monkeypatch.setattr(entries, "_SENDS", 8)  # a handle remembers when it sent so many entries
    flow = ts.Dataflow("staying")
    sums = flow.input("x", "k long, v long").group_by("k").aggregate(v=("sum", "v"))
    sums.subscribe(lambda *_: None, name="heard")
    calls = [("send", ([(n % 7, n % 5)],)) for n in range(2 * epochs)]  # some epochs have two
    world = World(flow, str(checkpoint), {"x": calls}, resident=True, rounds=100, workers=2)
    world.leaves = 0.05
    thirds = [Counter[str]() for _ in range(3)]  # the most of each
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at

    def look(_: int) -> None:
        world.taken.clear()  # what the world itself remembers of each batch
        world.read.clear()
        root = Path(RoundLog(world.checkpoint).files.root)
        paths = [path for path in root.rglob("*") if path.is_file()]
        seen = Counter(path.relative_to(root).parts[0] for path in paths)
        gc.collect()
        seen["bytes"] = sum(path.stat().st_size for path in paths)
        seen["objects"], seen["Arrow's 64 kB"] = len(gc.get_objects()), pa.total_allocated_bytes() >> 16
        thirds[min(2, 3 * world.processes[-1].handles["x"].sent // len(calls))] |= seen

    world.committed = look
    world.live()
    gc.unfreeze()
    assert world.count["resident batches"] >= epochs, world.count
    first, middle, last = thirds
    for what in last:
        # a leak of one an epoch would be a third of the epochs; how many entries wait depends on the seed
        assert last[what] <= 1.1 * max(first[what], middle[what]) + 8, (
            what,
            *(each[what] for each in thirds),
        )


@pytest.mark.slow
def test_epochs_inside_a_micro_batch_leave_neither_files_nor_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident_bounded(tmp_path, 150, monkeypatch)


@pytest.mark.campaign
@pytest.mark.timeout(3 * 3600)
def test_twenty_thousand_epochs_inside_micro_batches_leave_neither_files_nor_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident_bounded(tmp_path, 20_000, monkeypatch)


@pytest.mark.slow
def test_the_oldest_retained_batch_can_be_run_again(tmp_path: Path) -> None:
    world = endless(tmp_path, 8)
    world.live()
    assert difference(world) is None
    oldest, *_, newest = world.files.numbers("commits")
    assert newest - oldest == world.keep
    for batch in range(oldest + 1, newest + 1):
        for name in (f"offsets/{batch}", f"commits/{batch}"):
            world.files.remove(name)
        del world.taken[batch]
    world.live()

    assert difference(world) is None


# -- the campaign has teeth ----------------------------------------------------------------------------------


def caught(seeds: range = range(40)) -> bool:  # a fault's begin with one that catches it
    # without a fault these cases end within 2,600 points
    told = (check_seed(seed, Counter(), points=5_000) for seed in seeds)
    return any(each is not None for each in told)


@pytest.mark.slow
def test_a_replay_that_reads_its_own_manifest_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RoundLog.newest_before
    monkeypatch.setattr(RoundLog, "newest_before", lambda self, batch: real(self, batch + self.has(batch)))
    assert caught()


@pytest.mark.slow
def test_a_sweep_that_forgets_a_kind_of_file_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateRefs, "of", classmethod(lambda cls, rows: cls()))
    assert caught()


@pytest.mark.slow
def test_files_that_go_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RoundLog.prune

    def early(log: RoundLog, manifest: Manifest, *, keep: int, seconds: float) -> Manifest:
        return real(log, manifest, keep=keep - 2, seconds=seconds)

    monkeypatch.setattr(RoundLog, "prune", early)
    assert caught(range(4, 40))


@pytest.mark.campaign
def test_an_operator_that_takes_an_older_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RoundLog.header_and_state

    def left(log: RoundLog, micro_batch: int, worker: int) -> Any:
        return (*real(log, micro_batch, worker)[:2], real(log, max(micro_batch - 1, 0), worker)[2])

    monkeypatch.setattr(RoundLog, "header_and_state", left)
    assert caught(range(10, 40))
