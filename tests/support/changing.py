"""Flows whose inputs come and go at each start, without Spark: no record is lost or read twice.

.venv/bin/python -m tests.support.changing --cases 100
.venv/bin/python -m tests.support.changing --seed 42        one case again
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import timely_spark as ts
from tests.support import engine
from tests.support.engine import CALM, Odds, Process, World, files, in_folder
from tests.support.feeds import Feed, FolderFeed, Record, TableFeed
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.storage.entries import close_source

SCHEMA = "k long, v long"
NAMES = ("k", "v")


class Payments(FolderFeed):
    """Files of records that no other file has, some of them half."""

    def __init__(self, folder: Path, draw: random.Random, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        super().__init__(folder, draw, NAMES)

    def records(self) -> list[Record] | None:
        return None if self.draw.random() < 0.2 else records(self.draw, self.numbers)


class Days(Payments):
    """Files of which `v` is the epoch: it grows, and some records are late."""

    day = 0

    def __init__(self, folder: Path, draw: random.Random, numbers: Iterator[int]) -> None:
        super().__init__(folder, draw, numbers)
        self.left.reverse()

    def records(self) -> list[Record] | None:
        if (drawn := super().records()) is None:
            return None
        days = [self._next() for _ in drawn]
        return [(number, day) for (number, _), day in zip(drawn, days, strict=True)]

    def _next(self) -> int:
        self.day += self.draw.choice([0, 0, 0, 1, 2])
        return max(0, self.day - self.draw.choice([0, 0, 0, 0, 1, 4]))


class Table(TableFeed):
    """Versions of a table with records that no other one has."""

    def __init__(self, folder: Path, draw: random.Random, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        super().__init__(folder, draw, NAMES)

    def records(self) -> list[Record]:
        return records(self.draw, self.numbers)


def records(draw: random.Random, numbers: Iterator[int]) -> list[Record]:
    """A few records."""
    return [(next(numbers), draw.randint(0, 3)) for _ in range(draw.choice([1, 3, 8]))]


class ChangingWorld(World):
    """A world in which each start has a flow of other inputs; one of them is always there."""

    def __init__(self, seed: int, folder: Path, points: int | None) -> None:
        draw, numbers = random.Random(seed), itertools.count()
        self.root, self.by_column = folder, draw.random() < 1 / 3
        self.all_sends: dict[str, list[Any]] = {}
        self.all_feeds: dict[str, Feed] = {}
        if self.by_column:
            self.all_feeds = {name: Days(folder / name, draw, numbers) for name in ("c0", "c1", "c2")}
        else:
            for name in ("h0", "h1", "h2"):
                self.all_sends[name] = [
                    ("send", (records(draw, numbers),)) for _ in range(draw.randint(1, 8))
                ]
            self.all_feeds = {name: Payments(folder / name, draw, numbers) for name in ("f1", "f2")}
            self.all_feeds["t1"] = Table(folder / "t1", draw, numbers)
        self.limits = {name: draw.choice([None, 1, 2]) for name in ("f1", "f2", "t1")}
        self.names = [*self.all_sends, *self.all_feeds]  # the first one is always there
        #: by start the inputs of its flow
        self.present: list[list[str]] = [self.names[:1]]
        #: whether all inputs are there from now on, and those by column are closed
        self.last = False
        odds = Odds(kill=draw.choice([0.003, 0.01, 0.02]), stall=0, rollback=0)
        super().__init__(
            self.of(self.names), str(folder / "checkpoint"), self.all_sends, seed=seed, odds=odds,
            workers=draw.choice([1, 2, 3]), keep=draw.choice([2, 5]), feeds=self.all_feeds,
            resident=draw.choice([0.0, 0.5, 1.0]), points=points,
        )  # fmt: skip

    def process(self) -> Process:
        return ChangingProcess(self)

    def of(self, names: list[str]) -> ts.Dataflow:
        """A flow with some of the inputs."""
        flow, streams = ts.Dataflow("changing"), dict[str, ts.Stream]()
        for name in names:
            files_ = partial(flow.files, name, self.root / name, schema=SCHEMA, on_bad_file="quarantine")
            if name.startswith("h"):
                streams[name] = flow.input(name, SCHEMA)
            elif name.startswith("t"):
                streams[name] = flow.delta(name, self.root / name, versions_per_epoch=self.limits[name] or 3)
            elif self.by_column:
                streams[name] = source = files_(epoch="v")
                source.late.capture(f"{name} late")
            else:
                streams[name] = source = files_(files_per_epoch=self.limits[name])
                source.quarantined.select("path", name=f"{name} paths").capture(f"{name} bad")
        for name, stream in streams.items():
            stream.capture(f"{name} rows")
            stream.to_files(self.root / "out" / name, name=f"{name} files")
        if (first := streams.get("h0")) is not None:
            first.loop(_hop, name="loop").capture("looped")
            first.group_by("v").count(name="counts").capture("counted")
        return flow


def _hop(stream: ts.Stream) -> ts.Stream:
    moved = stream.exchange("v", name="move").map(lambda row: (row.k, row.v - 1), SCHEMA, name="less")
    return moved.where(pc.field("v") >= 0, name="least").concat(stream, name="both").distinct(name="new")


class ChangingProcess(Process):
    """A process that draws its flow."""

    world: ChangingWorld

    def start(self) -> None:
        world = self.world
        some = [name for name in world.names if name == world.names[0] or world.draw.random() < 0.6]
        # a batch that runs again has to have the inputs that it reads
        for names in [world.names] if world.last else [some, world.present[-1], world.names]:
            order = world.draw.sample(names, len(names))
            world.flow = world.of(order)
            world.plan = world.flow.compile(world.plan.workers)
            world.sends = {name: calls for name, calls in world.all_sends.items() if name in order}
            try:
                super().start()
            except FlowChanged as error:
                world.count["refused"] += 1
                self.tell(f"refused {order}: {error}")
                if "runs again" not in str(error):
                    raise
            else:
                break
        world.present.append(names)
        self.tell(f"started with {order}")
        if world.last and world.by_column:
            for name in world.names:
                close_source(self.context.log, name)


def verify(world: ChangingWorld) -> None:
    """Check what the outputs have at the end, and which files are left."""
    world.odds = CALM
    process = ChangingProcess(world)
    process.start()
    view = LogView(process.context)
    for name in world.names:
        _verify_input(world, view, name)
    if not world.by_column:
        sent = [row for _, (rows,) in world.all_sends["h0"] for row in rows]
        looped = Counter(row for rows in _rows_of(view, "looped").values() for row in rows)
        assert looped == Counter({(k, v): 1 for k, most in sent for v in range(most + 1)})
        counted = {v: n for _, rows in sorted(_rows_of(view, "counted").items()) for v, n in rows}
        assert counted == Counter(v for _, v in sent)
    live, removable, present = files(process.context.log)
    assert live <= present <= live | removable


def _rows_of(view: LogView, output: str) -> dict[int, list[Any]]:
    return {epoch: sorted(rows) for epoch, rows in view.captured(output).rows().items() if rows}


def _verify_input(world: ChangingWorld, view: LogView, name: str) -> None:
    epochs, present = _rows_of(view, f"{name} rows"), [name in names for names in world.present]
    removed = any(before and not after for before, after in itertools.pairwise(present))
    rows = Counter(row for some in epochs.values() for row in some)
    if world.by_column:
        assert all(row[1] == epoch for epoch, some in epochs.items() for row in some), (name, epochs)
        rows += Counter(row for some in _rows_of(view, f"{name} late").values() for row in some)
    written = world.all_feeds[name].written if name in world.all_feeds else {}
    given = Counter(row for _, (sent,) in world.all_sends.get(name, []) for row in sent)
    given += Counter(row for some in written.values() for row in some or ())
    # what has not been delivered is reported as dropped where an output is removed: late rows, and files
    lost, more = given - rows, rows - given
    assert not more, f"{name}: more {more}"
    assert not lost or (world.by_column and removed), f"{name}: lost {lost}"
    delivered = in_folder(world.root / "out" / name)
    assert delivered.items() <= epochs.items() if removed else delivered == epochs, (name, delivered, epochs)
    if name.startswith("f"):
        bad = Counter((path,) for path, some in written.items() if some is None)
        assert Counter(itertools.chain(*_rows_of(view, f"{name} bad").values())) == bad


def check_seed(seed: int, count: Counter[str], points: int | None = 100_000) -> str | None:
    """Run a case; why it is wrong, and what led to it, or None."""
    with tempfile.TemporaryDirectory(prefix="timely-changing-") as folder:
        world = ChangingWorld(seed, Path(folder), points)
        try:
            world.live()
            world.last = True
            for _ in range(2):  # what is closed is read to its end
                world.live()
            verify(world)
        except Exception as error:  # noqa: BLE001 - whatever happens, the seed must be told
            return "\n  ".join([f"{type(error).__name__}: {error}", *world.story])
        count.update(world.count)
        count["starts"] += len(world.present)
        return None


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of changes
    sys.exit(engine.main(check=check_seed, module="changing"))
