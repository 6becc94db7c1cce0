"""The two loops, ours and the bare one, as living queries that spin in turns while their rounds are timed."""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

import timely_spark as ts
from benchmarks import bare, harness
from timely_spark.runtime.log import RoundLog
from timely_spark.runtime.session import FILE_MANAGER, PARTITIONS, applied
from timely_spark.runtime.site import labels
from timely_spark.worker.keys import deal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rounds of each loop before any counts.
WARM = 3
SCHEMA = pa.schema([("key", pa.int64()), ("left", pa.int64())])


@dataclass
class Timed:
    """What is seen of one query's batches while it runs."""

    #: batch -> seconds by the clock: `action`, `acted` (toArrow), `write`, `wrote` (marker or manifest)
    at: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: batch -> `perf_counter` at the end of it
    ends: dict[int, float] = field(default_factory=dict)
    #: batches after which something else was measured
    breaks: set[int] = field(default_factory=set)
    #: the operator's file of calls: batch, worker, began, ended
    calls: Path = field(default_factory=lambda: harness.folder() / "calls")
    _action: tuple[float, float] = (0.0, 0.0)

    def write(self, write: Callable[..., None], batch: int, *args: Any) -> None:
        began = time.time()
        write(batch, *args)
        self.ends[batch] = time.perf_counter()
        action, acted = self._action
        self.at[batch] = {"action": action, "acted": acted, "write": began, "wrote": time.time()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the action of each batch, and a flow's manifests and operator; the same for both loops."""
        from pyspark.sql.classic.dataframe import DataFrame

        import timely_spark.runtime.query as ours

        to_arrow, manifest, operator = DataFrame.toArrow, RoundLog.write, ours._operator  # noqa: SLF001

        def timed_action(frame: DataFrame) -> pa.Table:
            began = time.time()
            table = to_arrow(frame)
            self._action = (began, time.time())
            return table

        def timed_manifest(log: RoundLog, found: Any, *rest: Any) -> None:
            self.write(lambda _, *args: manifest(log, found, *args), found.batch, *rest)

        with (
            mock.patch.object(DataFrame, "toArrow", timed_action),
            mock.patch.object(RoundLog, "write", timed_manifest),
            mock.patch.object(ours, "_operator", lambda site: timed(operator(site), str(self.calls))),
        ):
            yield

    def rounds(self, progress: list[Any]) -> list[dict[str, float]]:
        """The warm rounds: each part, and the whole, in ms."""
        durations = {p["batchId"]: p["durationMs"] for p in progress}
        operator = _calls(self.calls)
        found = []
        for batch in sorted(self.ends):
            # the first round after a break waits for its input, the one before it does not lead to another
            fresh = {batch - 1, batch - 2} & self.breaks or batch in self.breaks
            if not fresh and batch in durations and batch in operator and batch - 1 in self.ends:
                whole = 1000 * (self.ends[batch] - self.ends[batch - 1])
                found.append(_parts(whole, durations[batch], self.at[batch], operator[batch]))
        return found


def timed(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """An operator's function that notes when it was called, in a file."""

    def run(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        began = time.time()
        yield from function(key, frames, state)
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        with open(path, "a") as file:  # noqa: PTH123 - one short append
            file.write(f"{batch} {began} {time.time()}\n")

    return run


def _calls(path: Path) -> dict[int, tuple[float, float]]:
    found: dict[int, tuple[float, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        batch, began, ended = line.split()
        first, last = found.get(int(batch), (float(began), float(ended)))
        found[int(batch)] = min(first, float(began)), max(last, float(ended))
    return found


def _parts(whole: float, spark: Any, at: dict[str, float], calls: tuple[float, float]) -> dict[str, float]:
    parts = {
        "ask the sources": spark.get("latestOffset", 0),
        "offset log": spark.get("walCommit", 0),
        "planning": spark.get("queryPlanning", 0) + spark.get("getBatch", 0),
        "call of foreachBatch": spark["addBatch"] - 1000 * (at["wrote"] - at["action"]),
        "before the operator": 1000 * (calls[0] - at["action"]),
        "operator": 1000 * (calls[1] - calls[0]),
        "after the operator": 1000 * (at["acted"] - calls[1]),
        "driver: turn": 1000 * (at["write"] - at["acted"]),
        "driver: manifest": 1000 * (at["wrote"] - at["write"]),
        "commit log": spark.get("commitOffsets", 0),
    }
    return {**parts, "between batches": whole - sum(parts.values()), "whole": whole}


# -- the two loops -------------------------------------------------------------------------------------------


def lap(ring: dict[int, int]) -> Callable[[Any, pa.Table], pa.Table]:
    """The vertex: sends a record on to the next worker as long as it has laps left."""

    def step(time: Any, batch: pa.Table) -> pa.Table:
        rows = zip(batch["key"].to_pylist(), batch["left"].to_pylist(), strict=True)
        onward = [(ring[key], left - 1) for key, left in rows if left > 1]
        keys, left = zip(*onward, strict=True) if onward else ((), ())
        return pa.table([pa.array(keys, pa.int64()), pa.array(left, pa.int64())], schema=SCHEMA)

    return step


def ring_keys(workers: int) -> list[int]:
    """For each worker a key that lies with it."""
    table = pa.table({"key": pa.array(range(64 * workers), pa.int64())})
    dealt = deal(table, ["key"], workers)
    return [dealt[worker]["key"][0].as_py() for worker in range(workers)]


def ring_flow(workers: int) -> ts.Dataflow:
    keys = ring_keys(workers)
    ring = dict(zip(keys, [*keys[1:], keys[0]], strict=True))
    flow = ts.Dataflow("ring")
    tokens = flow.input("tokens", "key long, left long")
    tokens.loop(lambda token: token.unary(lap(ring), SCHEMA, by="key", name="lap")).probe("done")
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
    known = "rounds_per_batch" in inspect.signature(ts.Dataflow.start).parameters
    return {"rounds_per_batch": 1} if known else {}


class Side:
    """One of the two loops; with several workers a living query, with one a query per spin."""

    def __init__(self, session: SparkSession, workers: int, partitions: int) -> None:
        self.session, self.workers, self.partitions = session, workers, partitions
        self.seen, self.root = Timed(), harness.folder()
        self.progress: list[Any] = []
        self.query: Any = None

    def spin(self, laps: int) -> None:
        """So many rounds, back to back."""
        with self.seen.watching():
            if self.query is None:
                self.query = self.start()
                self.until(1)
            if self.workers == 1:
                self.until(len(self.seen.ends) + laps)
                self.stop()
            else:
                self.seen.breaks.add(max(self.seen.ends))
                self.turn(laps)
                time.sleep(0.1)  # Spark's own progress of the last batch
            self.seen.breaks.add(max(self.seen.ends))

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

    def turn(self, laps: int) -> None:
        raise NotImplementedError


class Ours(Side):
    def start(self) -> Any:
        self.flow = clock_flow(self.session) if self.workers == 1 else ring_flow(self.workers)
        places = {"workers": self.workers, "partitions": self.partitions}
        return self.flow.start(self.session, checkpoint=str(self.root / "c"), **places, **one_round_each())

    def turn(self, laps: int) -> None:
        self.flow.handle("tokens").send([(key, laps) for key in ring_keys(self.workers)])
        if not self.query.wait_for("done", timeout=60 + 2 * laps):
            raise TimeoutError

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

    def turn(self, laps: int) -> None:
        if not self.loop.spin(laps, timeout=60 + 2 * laps):
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
    laps: int,
    kinds: Sequence[type[Side]],
) -> list[list[dict[str, float]]]:
    """The rounds of each kind of loop, which took turns."""
    sides = [kind(session, workers, partitions) for kind in kinds]
    try:
        for side in sides:
            side.spin(WARM)
        for number in range(turns):
            for side in sides if number % 2 else sides[::-1]:
                side.spin(laps)
    finally:
        for side in sides:
            side.stop()
    return [side.rounds() for side in sides]


def within(session: SparkSession, workers: int, partitions: int, *, laps: int, turns: int) -> list[float]:
    """Ms per round where a micro-batch may hold several, one figure per epoch."""
    flow = ring_flow(workers)
    checkpoint = str(harness.folder() / "checkpoint")
    found = []
    with flow.start(session, checkpoint=checkpoint, workers=workers, partitions=partitions) as query:
        for count in [WARM] + [laps] * turns:
            began = time.perf_counter()
            flow.handle("tokens").send([(key, count) for key in ring_keys(workers)])
            if not query.wait_for("done", timeout=60 + 2 * count):
                raise TimeoutError
            found.append(1000 * (time.perf_counter() - began) / count)
    return found[1:]
