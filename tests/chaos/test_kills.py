"""kill -9 anywhere, and a restart, as if nothing had happened: a sample of `make chaos`.

In every run the engine without a JVM is killed anywhere (`test_engine.py`), a driver between a sink and its
checkpoint (`tests/kafka`), and an executor in the middle of a loop (`tests/cluster`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import verdict
from tests.support.campaign import (
    CLUSTER,
    LOCAL,
    RETRYING,
    Campaign,
    Chain,
    Order,
    Params,
    Unfailed,
    unfailed,
)

pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.timeout(600)]

SEED = 7 if os.environ.get("CI") else int(time.time()) % 100_000
KILLS = 1
LOOPING, STAYING = Params("looping", workers=2, rounds=1), Params("staying", workers=2)
SAMPLE = [LOOPING]


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder for all."""
    folder = Path(tempfile.mkdtemp(prefix="timely-chaos-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def known(base: Path) -> dict[Params, Unfailed]:
    """The unfailed runs."""
    return unfailed(SAMPLE, base)


def test_a_driver_killed_anywhere_loses_nothing_and_repeats_nothing(
    base: Path, known: dict[Params, Unfailed]
) -> None:
    campaign = Campaign(SEED, base / "drivers", kills=KILLS, length=3)

    campaign.go([SAMPLE], jobs=1, known=known)

    print(campaign.report())
    assert campaign.failures == []
    assert sum(len(chain.kills) for chain in campaign.chains) >= KILLS


def test_python_workers_killed_in_the_middle_of_their_tasks(
    base: Path, known: dict[Params, Unfailed]
) -> None:
    chain = Chain(replace(LOOPING, master=RETRYING), base / "workers")

    # a task that was killed runs again whole: its operator runs twice for one partition
    assert chain.start(
        [("operator.before", 5, "python"), ("blobs.temp", 8, "python"), ("operator.made", 14, "python")]
    )

    assert len(chain.kills) == 3
    assert verdict.differences(known[LOOPING].outcome, verdict.outcome(chain.home)) == []


def test_a_driver_and_tasks_killed_in_parallel_rounds(base: Path) -> None:
    params = Params("looping", workers=2, partitions=2, parallel=True)
    chain = Chain(replace(params, master=RETRYING), base / "parallel")

    assert not chain.start([("localrounds.before", 3, "driver")])
    assert not chain.start([("localrounds.after", 4, "group")])
    assert chain.start([("localrounds.before", 2, "python")])

    assert [victim for _, victim in chain.kills] == ["driver", "group", "python"]
    unkilled = unfailed([params], base)[params]
    assert verdict.differences(unkilled.outcome, verdict.outcome(chain.home)) == []


def test_executors_killed_and_a_task_that_is_done_twice(base: Path, known: dict[Params, Unfailed]) -> None:
    chain = Chain(replace(LOOPING, master=CLUSTER, partitions=2), base / "executors")

    assert chain.start([("operator.before", 6, "twice"), ("operator.made", 14, "executor")])

    assert chain.doubles == 1
    assert [victim for _, victim in chain.kills] == ["twice", "executor"]
    assert verdict.differences(known[LOOPING].outcome, verdict.outcome(chain.home)) == []


def test_the_file_source_killed_around_its_journal(base: Path, known: dict[Params, Unfailed]) -> None:
    chain = Chain(LOOPING, base / "journal")

    for order in (
        ("journal.before", 2, "python"),
        ("files.temp", 1, "group"),
        ("journal.after", 1, "driver"),
    ):
        chain.start([order])
    assert chain.start([])

    assert len(chain.kills) == 3
    assert verdict.differences(known[LOOPING].outcome, verdict.outcome(chain.home)) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("master", "orders"),
    [
        (
            LOCAL,
            [
                [("epochs.temp", 5, "driver")],
                [("round.before", 40, "group")],
                [("capture.before", 4, "driver")],
                [("delta.after", 3, "group")],
                [("manifest.after", 5, "driver")],
                [("batch.after", 1, "group")],
            ],
        ),
        (
            CLUSTER,
            [
                # a start goes on to the end of the program if its driver lives
                [
                    ("hosted.before", 3, "executor"),
                    ("round.before", 20, "executor"),
                    ("manifest.before", 7, "group"),
                ],
                [("epochs.temp", 3, "driver")],
                [("blobs.temp", 6, "driver")],
                [("capture.before", 3, "group")],
                [("delta.after", 2, "driver")],
                [("batch.after", 1, "group")],
            ],
        ),
    ],
    ids=["in the driver", "in tasks that stay"],
)
def test_kills_inside_of_micro_batches_that_stay(base: Path, master: str, orders: list[list[Order]]) -> None:
    folder = base / ("tasks" if master == CLUSTER else "driver")
    expected = unfailed([STAYING], folder)[STAYING].outcome
    chain = Chain(replace(STAYING, master=master), folder / "chain")

    for order in orders:
        chain.start(order)
    assert chain.start()

    assert [victim for _, victim in chain.kills] == [victim for order in orders for *_, victim in order]
    assert verdict.differences(expected, verdict.outcome(chain.home)) == []
