"""Kills and other numbers of workers change nothing of what expires, is expected, or comes on arrival."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support.engine import Odds, Process, World, expected, simulated


def flow_of(delivered: list[Any]) -> ts.Dataflow:
    """State that expires, checks of records of a hot key and at times of one's own, an output on arrival."""
    flow = ts.Dataflow("rescaled")
    x = flow.input("x", "k long, v long", epochs="manual")
    y = flow.input("y", "k long, w long", epochs="manual")
    far = x.exchange("v").expect("checked", "v % 5 > 0", action="quarantine")
    far.capture("passed")
    far.quarantined.group_by("k").count().capture("failed")
    far.expire(after=2).group_by("k").aggregate(n=("sum", "diff")).capture("window")
    far.distinct(expire=2).capture("again")
    far.join(y, on="k", expire=1).capture("close")
    far.group_by("k").aggregate(n="count", expire=2).capture("runs")
    inner = flow.scope.inner(name="own", time=int).enter(x, at="v % 4").exchange("k")
    odd = inner.expect("odd", "v % 2 = 1", action="keep")
    odd.group_by("k").aggregate(n="count").leave().capture("own times")
    current = x.collection()
    current.count("n", keys="k", name="counts").expect("few", "n < 9", action="keep").capture("counted")
    far.subscribe(
        lambda epoch, table: delivered.append((epoch, [tuple(row.values()) for row in table.to_pylist()])),
        name="told",
        release="arrival",
    )
    return flow


def world_of(seed: int, folder: Path) -> World:
    draw, delivered = random.Random(seed), list[Any]()
    sends: dict[str, list[Any]] = {"x": [], "y": []}
    for epoch in range(draw.randint(3, 7)):
        for calls in sends.values():
            for _ in range(draw.choice([0, 1, 1, 2])):
                keys = [0 if draw.random() < 0.7 else draw.randint(1, 5) for _ in range(9)]
                calls.append(("send", ([(key, draw.randint(0, 99)) for key in keys],)))
            calls.append(("advance_to", (epoch + 1,)))
    for calls in sends.values():
        calls.append(("close", ()))
    odds = Odds(kill=0.02, rescale=0.6, rollback=0.1)
    return World(
        flow_of(delivered), str(folder / "checkpoint"), sends, seed=seed, delivered=delivered, odds=odds,
        workers=draw.choice([1, 2, 3]), resident=draw.choice([0.0, 0.5]), rounds=draw.choice([1, None]),
        points=100_000,
    )  # fmt: skip


def check(seed: int, folder: Path) -> None:
    world = world_of(seed, folder)
    world.live()
    wanted = expected(world)
    process = Process(world)
    process.start()
    delivered: dict[int, set[Any]] = defaultdict(set)
    for epoch, records in world.delivered:
        delivered[epoch] |= set(records)
    told = wanted.pop("told")
    assert {epoch: records for epoch, records in delivered.items() if records} == {
        epoch: set(records) for epoch, records in told.items()
    }, f"seed {seed}"
    for name, epochs in wanted.items():
        found = process.captured(name)
        assert {epoch: records for epoch, records in found.items() if records} == epochs, (
            f"seed {seed}: {name}"
        )
    checked = simulated(world).coordinator.expectations
    counts = process.newest().expectations
    assert {name: (each.checked, each.failed) for name, each in counts.items()} == {
        name: (each.checked, each.failed) for name, each in checked.items()
    }, f"seed {seed}"


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_what_expires_is_expected_or_comes_on_arrival_survives_kills_and_other_workers(
    tmp_path: Path,
) -> None:
    for seed in range(60):
        check(seed, tmp_path / str(seed))
