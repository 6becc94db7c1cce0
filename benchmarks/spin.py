"""The two loops, ours and the bare one, as living queries that spin in turns while their rounds are timed."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

import timely_spark as ts
from benchmarks import bare, harness
from benchmarks.resources import processor
from benchmarks.timed import Timed, timed
from timely_spark.graph import Partition
from timely_spark.runtime.run_context import labels
from timely_spark.runtime.session import FILE_MANAGER, PARTITIONS, applied
from timely_spark.state.exchange import partitioned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rounds of each loop before any counts.
WARM = 3
SCHEMA = pa.schema([("key", pa.int64()), ("left", pa.int64())])


def iteration(ring: dict[int, int]) -> Callable[[Any, pa.Table], pa.Table]:
    """The vertex: sends a record on to the next worker as long as it has iterations left."""

    def step(time: Any, batch: pa.Table) -> pa.Table:
        rows = zip(batch["key"].to_pylist(), batch["left"].to_pylist(), strict=True)
        forwarded = [(ring[key], left - 1) for key, left in rows if left > 1]
        keys, left = zip(*forwarded, strict=True) if forwarded else ((), ())
        return pa.table([pa.array(keys, pa.int64()), pa.array(left, pa.int64())], schema=SCHEMA)

    return step


def ring_keys(workers: int) -> list[int]:
    """For each worker a key that lies with it."""
    table = pa.table({"key": pa.array(range(64 * workers), pa.int64())})
    parts = partitioned(table, Partition(("key",)), workers)
    return [parts[worker]["key"][0].as_py() for worker in range(workers)]


def ring_flow(workers: int) -> ts.Dataflow:
    keys = ring_keys(workers)
    ring = dict(zip(keys, [*keys[1:], keys[0]], strict=True))
    flow = ts.Dataflow("ring")
    tokens = flow.input("tokens", "key long, left long")
    tokens.loop(lambda token: token.unary(iteration(ring), SCHEMA, by="key", name="iteration")).probe("done")
    return flow


def clock(session: SparkSession) -> DataFrame:
    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    return ticks.option("numPartitions", 1).load().select("value")


def clock_flow(session: SparkSession) -> ts.Dataflow:
    flow = ts.Dataflow("clock")
    flow.source("clock", clock(session)).unary(same, "value long", by="value").probe("done")
    return flow


def same(time: Any, batch: pa.Table) -> pa.Table:
    return batch


def one_round_each() -> dict[str, int]:
    """The argument of `start` that gives every round a micro-batch of its own."""
    has_argument = "rounds_per_batch" in inspect.signature(ts.Dataflow.start).parameters
    return {"rounds_per_batch": 1} if has_argument else {}


class Side:
    """One of the two loops; with several workers a living query, with one a query per spin."""

    def __init__(self, session: SparkSession, workers: int, partitions: int) -> None:
        self.session, self.workers, self.partitions = session, workers, partitions
        self.seen, self.root = Timed(), harness.folder()
        self.progress: list[Any] = []
        self.query: Any = None

    def spin(self, iterations: int) -> None:
        """So many rounds, back to back."""
        with self.seen.watching():
            if self.query is None:
                self.query = self.start()
                self.until(1)
            first, cpu = max(self.seen.ends), processor()
            self.seen.breaks.add(first)
            if self.workers == 1:
                self.until(len(self.seen.ends) + iterations)
            else:
                self.turn(iterations)
            last, cpu = max(self.seen.ends), processor() - cpu
            self.seen.breaks.add(last)
            self.seen.cpu |= dict.fromkeys(range(first + 1, last + 1), 1000 * cpu / (last - first))
            if self.workers == 1:
                self.stop()
            else:
                time.sleep(0.1)  # Spark's own progress of the last batch

    def until(self, rounds: int) -> None:
        limit = time.monotonic() + 60 + 2 * rounds
        while len(self.seen.ends) < rounds:
            if not self.spark.isActive or time.monotonic() > limit:
                msg = f"{len(self.seen.ends)} of {rounds} rounds ran: {self.spark.exception()}"
                raise RuntimeError(msg)
            time.sleep(0.01)

    def stop(self) -> None:
        if self.query is not None:
            self.progress += self.spark.recentProgress
            self.query.stop()
            self.query = None

    def rounds(self) -> list[dict[str, float]]:
        return self.seen.rounds(self.progress)

    @property
    def spark(self) -> Any:
        return self.query

    def start(self) -> Any:
        raise NotImplementedError

    def turn(self, iterations: int) -> None:
        raise NotImplementedError


class Ours(Side):
    def start(self) -> Any:
        self.flow = clock_flow(self.session) if self.workers == 1 else ring_flow(self.workers)
        places = {"workers": self.workers, "partitions": self.partitions}
        return self.flow.start(self.session, checkpoint=str(self.root / "c"), **places, **one_round_each())

    def turn(self, iterations: int) -> None:
        self.flow.handle("tokens").send([(key, iterations) for key in ring_keys(self.workers)])
        harness.answered(self.query, "done", timeout=60 + 2 * iterations)

    @property
    def spark(self) -> Any:
        return self.query._query  # noqa: SLF001 - Spark's own progress


class Bare(Side):
    confs = FILE_MANAGER

    def start(self) -> Any:
        of = labels(self.workers, self.partitions)
        ticks = clock(self.session) if self.workers == 1 else None
        self.loop = bare.BareLoop(self.root, of, clock=ticks, on_write=self.seen.write)
        operator, calls = bare.operator, str(self.seen.calls)
        with (
            mock.patch.object(bare, "operator", lambda of: timed(operator(of), calls)),
            applied(self.session, {PARTITIONS: str(self.partitions), **self.confs}),
        ):
            return self.loop.start(self.session)

    def turn(self, iterations: int) -> None:
        if not self.loop.spin(iterations, timeout=60 + 2 * iterations):
            raise TimeoutError


class Plain(Bare):
    """The bare loop as Spark comes, but for the number of partitions."""

    confs: Mapping[str, str] = MappingProxyType({})


def measure(
    session: SparkSession,
    workers: int,
    partitions: int,
    *,
    turns: int,
    iterations: int,
    kinds: Sequence[type[Side]],
) -> list[list[dict[str, float]]]:
    """The rounds of each kind of loop, which took turns."""
    sides = [kind(session, workers, partitions) for kind in kinds]
    try:
        for side in sides:
            side.spin(WARM)
        for number in range(turns):
            for side in sides if number % 2 else sides[::-1]:
                side.spin(iterations)
    finally:
        for side in sides:
            side.stop()
    return [side.rounds() for side in sides]


def within(
    session: SparkSession, workers: int, partitions: int, *, iterations: int, turns: int
) -> list[dict[str, float]]:
    """Ms and processor ms per round where a micro-batch may hold several, one pair per epoch."""
    flow = ring_flow(workers)
    checkpoint = str(harness.folder() / "checkpoint")
    per_round = []
    with flow.start(session, checkpoint=checkpoint, workers=workers, partitions=partitions) as query:
        for count in [WARM] + [iterations] * turns:
            began, cpu = time.perf_counter(), processor()
            flow.handle("tokens").send([(key, count) for key in ring_keys(workers)])
            harness.answered(query, "done", timeout=60 + 2 * count)
            spent = {"whole": time.perf_counter() - began, "cpu": processor() - cpu}
            per_round.append({name: 1000 * seconds / count for name, seconds in spent.items()})
    return per_round[1:]
