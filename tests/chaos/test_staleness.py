"""Micro-batches that stay although the flow reads a DataFrame (`max_staleness`): kills and other workers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support.engine import Odds, World, difference
from tests.support.feeds import Feed, FrameFeed


def world_of(seed: int, folder: Path) -> World:
    """Rows of a DataFrame, which come with micro-batches of Spark's only, beside what a handle sends."""
    draw, delivered = random.Random(seed), list[Any]()
    flow, feeds = ts.Dataflow("stale"), dict[str, Feed]()
    feeds["frame"] = FrameFeed(folder / "frame", draw, ("k", "v"))
    frame, sent = flow.source("frame", "k long, v long"), flow.input("sent", "k long, v long")
    both = frame.concat(sent)
    both.capture("out")
    both.to_files(folder / "out", name="files")
    both.group_by("k").aggregate(v=("sum", "v")).capture("sums")
    pairs = frame.collection().join(sent.collection(name="others").select("k", w="v"), on="k")
    pairs.count(keys="k", name="pairs").capture("counts")
    calls = [("send", ([(draw.randint(0, 9), draw.randint(0, 99))],)) for _ in range(draw.randint(3, 12))]
    odds = Odds(kill=draw.choice([0.003, 0.01, 0.03]), rescale=0.5, rollback=0)
    return World(
        flow, str(folder / "checkpoint"), {"sent": calls}, seed=seed, delivered=delivered, odds=odds,
        workers=draw.choice([1, 2, 3]), feeds=feeds, resident=draw.choice([0.5, 1.0]), points=100_000,
        folder=folder / "out",
    )  # fmt: skip


def check(seeds: range, folder: Path) -> Counter[str]:
    count: Counter[str] = Counter()
    for seed in seeds:
        world = world_of(seed, folder / str(seed))
        world.live()
        assert difference(world) is None, f"seed {seed}"
        count += world.count
    return count


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_restarts_with_other_workers_in_the_middle_change_nothing(tmp_path: Path) -> None:
    count = check(range(60), tmp_path)
    assert min(count[what] for what in ("kills", "rescaled", "resident runs", "resident batches")) > 0
