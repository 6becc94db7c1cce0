"""Loops: what an iteration costs, against the same loop written by hand with DataFrames.

Three loops, all of them small, so that what is measured is the price of an iteration and not of its data:
"barriers", bulk-synchronous: a vector is split and summed again, each iteration waits for the one before by
notification (Naiad Fig. 6b), one round per iteration; "hops", asynchronous: which nodes of a path can be
reached, the path partitioned over workers: an iteration is a hop, and a round is spent only on hops that
change workers; "nested": barriers inside barriers, K(K+1) of them.

Each runs as a flow, with many rounds in a micro-batch (the default) and with one (`rounds_per_batch=1`); as
a loop in foreachBatch, with joins and aggregates whose result localCheckpoint pins in each iteration, until
nothing changes or the iterations are over; as a chain of batch jobs, the same loop on a static DataFrame;
and, where the number of iterations is known beforehand, as one plan of all iterations. One session, the same
data, results compared before any time counts. Times are from sending an epoch to having its result, the
micro-batch that brings it included, divided by the loop's iterations, whose number is the same for all; first
epochs are dropped. By hand only the new epoch is looked at, while the flow keeps the state of all: that
favours the baselines.
"""

from __future__ import annotations

import inspect
import threading
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, OURS, Report, median
from benchmarks.resources import python_seconds
from timely_spark.captured import sorted_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS, PRIME = 64, 1_000_003
#: where the paths of different epochs begin: their nodes are different ones
APART = 1_000_000


# -- flows ---------------------------------------------------------------------------------------------------


class Superstep(ts.Vertex):
    """Sums each key's values of an iteration when it is complete; sends shares on, or the sum out."""

    def __init__(self, iterations: int, factor: int) -> None:
        self.iterations, self.factor, self.held = iterations, factor, {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.held.setdefault(time, []).append(batch)
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        summed = pa.concat_tables(self.held.pop(time)).group_by("to").aggregate([("value", "sum")])
        to, value = summed["to"].to_numpy(), summed["value_sum"].to_numpy() % PRIME
        if time[-1] < self.iterations - 1:
            to = np.concatenate([(self.factor * to + 1) % KEYS, (self.factor * to + 6) % KEYS])
            self.send_by(0, time, pa.table({"to": to, "value": np.tile(value, 2)}))
        else:
            self.send_by(1, time, pa.table({"to": to, "value": value}))


def barriers(iterations: int) -> ts.Dataflow:
    """A bulk-synchronous loop: one round per iteration."""
    flow = ts.Dataflow("barriers")
    scope = flow.scope.inner(name="loop")
    variable = scope.variable(flow.input("x", "to long, value long"))
    back, out = flow.vertex(
        Superstep(iterations, 3), variable, [variable.schema] * 2, by=[["to"]], name="superstep"
    )
    variable.feed(back)
    out.leave().capture("out")
    return flow


def nested(iterations: int) -> ts.Dataflow:
    """The same inside another such loop."""
    flow = ts.Dataflow("nested")
    outer = flow.scope.inner(name="outer")
    entered = outer.variable(flow.input("x", "to long, value long"))
    variable = outer.inner(name="inner").variable(entered)
    both = [variable.schema] * 2
    back, out = flow.vertex(Superstep(iterations, 3), variable, both, by=[["to"]], name="inner_step")
    variable.feed(back)
    again, leaves = flow.vertex(Superstep(iterations, 5), out.leave(), both, by=[["to"]], name="outer_step")
    entered.feed(again)
    leaves.leave().capture("out")
    return flow


def hops() -> ts.Dataflow:
    """Which nodes can be reached from those that begin a path."""
    flow = ts.Dataflow("hops")
    edges = flow.input("x", "src long, dst long, first long")

    def hop(near: ts.Stream) -> ts.Stream:
        targets = near.join(near.scope.enter(edges), left=["node"], right=["src"]).select(node="dst")
        return targets.concat(near).distinct(name="near")

    edges.where(pc.field("src") == pc.field("first")).select(node="src").loop(hop).capture("out")
    return flow


def vector(epoch: int) -> pa.Table:
    return pa.table({"to": np.arange(KEYS), "value": np.arange(KEYS) * (epoch + 1)})


def path(length: int, epoch: int) -> pa.Table:
    first = (epoch + 1) * APART
    src = np.arange(first, first + length)
    return pa.table({"src": src, "dst": src + 1, "first": np.full(length, first)})


# -- the same by hand ----------------------------------------------------------------------------------------


def summed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("to").agg({"value": "sum"}).selectExpr("to", f"`sum(value)` % {PRIME} AS value")


def dealt(frame: DataFrame, factor: int) -> DataFrame:
    to = f"array(({factor} * to + 1) % {KEYS}, ({factor} * to + 6) % {KEYS})"
    return frame.selectExpr(f"explode({to}) AS to", "value")


def barriers_by_hand(frame: DataFrame, iterations: int, *, pinned: bool = True) -> DataFrame:
    for iteration in range(iterations):
        frame = summed(frame if iteration == 0 else dealt(frame, 3))
        if pinned:
            frame = frame.localCheckpoint()
    return frame


def nested_by_hand(frame: DataFrame, iterations: int) -> DataFrame:
    for outer in range(iterations):
        frame = barriers_by_hand(frame if outer == 0 else dealt(frame, 5), iterations)
        frame = summed(frame).localCheckpoint()
    return frame


def hops_by_hand(edges: DataFrame) -> DataFrame:
    edges = edges.localCheckpoint()
    near = reached = edges.where("src = first").selectExpr("src AS node").distinct().localCheckpoint()
    while not near.isEmpty():
        targets = near.join(edges, near.node == edges.src).selectExpr("dst AS node").distinct()
        near = targets.join(reached, "node", "left_anti").localCheckpoint()
        reached = reached.union(near).localCheckpoint()
    return reached


# -- measuring -----------------------------------------------------------------------------------------------


@dataclass
class Run:
    """Milliseconds of each epoch, and of the processors of Python processes; rounds of the last; results."""

    times: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    rounds: int = 0
    results: list[list[tuple[Any, ...]]] = field(default_factory=list)

    def note(self, began: float, result: pa.Table) -> None:
        self.times.append(1000 * (clock.perf_counter() - began))
        self.results.append(sorted_rows(result))


def as_flow(
    session: SparkSession, flow: ts.Dataflow, data: list[pa.Table], *, workers: int = 2, **start: Any
) -> Run:
    """Epoch by epoch, each after the one before is released."""
    figures = Run()
    source = next(iter(flow.compile(1).sources))
    checkpoint = str(harness.folder() / "checkpoint")
    with flow.start(session, checkpoint=checkpoint, workers=workers, **start) as query:
        for table in data:
            taken = python_seconds()
            before, began = query.rounds, clock.perf_counter()
            flow.handle(source).send(table)
            harness.answered(query, "out")
            figures.times.append(1000 * (clock.perf_counter() - began))
            figures.processor.append(1000 * (python_seconds() - taken))
            figures.rounds = query.rounds - before
        epochs = (rows for rows in query.captured("out").rows().values() if rows)
        figures.results = list(epochs)
    return figures


def as_jobs(session: SparkSession, data: list[pa.Table], loop: Callable[[DataFrame], DataFrame]) -> Run:
    figures = Run()
    for table in data:
        began = clock.perf_counter()
        figures.note(began, loop(session.createDataFrame(table)).toArrow())
    return figures


def in_foreach_batch(
    session: SparkSession, data: list[pa.Table], loop: Callable[[DataFrame], DataFrame]
) -> Run:
    """A file per epoch; the loop runs inside foreachBatch."""
    figures, done = Run(), threading.Semaphore(0)
    folder = harness.folder()
    results: list[pa.Table] = []

    def each(frame: DataFrame, _: int) -> None:
        results.append(loop(frame).toArrow())
        done.release()

    files = folder / "in"
    files.mkdir()
    frame = session.readStream.schema(session.createDataFrame(data[0]).schema).parquet(str(files))
    query = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / "c")).start()
    try:
        for number, table in enumerate(data):
            hidden = Path(files, f".{number}")
            began = clock.perf_counter()
            pq.write_table(table, hidden)
            hidden.rename(files / f"{number}.parquet")
            while not done.acquire(timeout=1):
                if not query.isActive:
                    raise RuntimeError(query.exception())
            figures.note(began, results[-1])
    finally:
        query.stop()
    return figures


def one_round_each() -> dict[str, Any]:
    """What `start` takes for a micro-batch per round, if it knows anything else."""
    has_argument = "rounds_per_batch" in inspect.signature(ts.Dataflow.start).parameters
    return {"rounds_per_batch": 1} if has_argument else {}


def compare(
    session: SparkSession,
    build: Callable[[], ts.Dataflow],
    data: list[pa.Table],
    by_hand: Mapping[str, Callable[[DataFrame], DataFrame]],
) -> dict[str, Run]:
    """All ways of one loop, their results compared; the first epoch is warm-up."""
    runs = {"ours": as_flow(session, build(), data)}
    runs["a round per micro-batch"] = as_flow(session, build(), data, **one_round_each())
    for name, loop in by_hand.items():
        kind = in_foreach_batch if name == "foreachBatch" else as_jobs
        runs[name] = kind(session, data, loop)
    for name, other in runs.items():
        assert other.results == runs["ours"].results, f"{name} has another result"
        del other.times[0]
    return runs


#: name -> (iterations, the flow, an epoch's data, the loops by hand)
Loops = dict[
    str, tuple[int, Callable[[], ts.Dataflow], Callable[[int], pa.Table], Mapping[str, Callable[..., Any]]]
]


def loops(iterations: tuple[int, ...], length: int, deep: int) -> Loops:
    def both(loop: Callable[..., Any], **more: Callable[..., Any]) -> dict[str, Any]:
        return {"foreachBatch": loop, "batch jobs": loop, **more}

    cases: Loops = {}
    for count in iterations:
        by_hand = both(partial(barriers_by_hand, iterations=count))
        if count <= 20:  # as far as anybody would write them as one
            by_hand["one plan"] = partial(barriers_by_hand, iterations=count, pinned=False)
        cases[f"{count} barriers"] = count, partial(barriers, count), vector, by_hand
    cases[f"{length} hops"] = length, hops, partial(path, length), both(hops_by_hand)
    nest = both(partial(nested_by_hand, iterations=deep))
    cases[f"nested, {deep} x {deep + 1}"] = deep * (deep + 1), partial(nested, deep), vector, nest
    return cases


def rows(report: Report, name: str, iterations: int, runs: dict[str, Run]) -> None:
    ours, aims = runs["ours"], {"foreachBatch": "<=60"}
    if ours.rounds == iterations:  # else rounds cost less because they are fewer
        aims["a round per micro-batch"] = ">=3x"
    for way, other in runs.items():
        if way != "ours":
            report.add(
                f"{name}, each",
                ours=median(ours.times) / iterations,
                baseline=median(other.times) / iterations,
                against=way,
                aim=aims.get(way, ">=1x"),
                rounds=ours.rounds,
                least=min(ours.times) / iterations,
                least_of_baseline=min(other.times) / iterations,
            )
    if iterations >= 100:
        in_batches = runs["foreachBatch"].times
        report.add(
            f"{name}, all",
            ours=median(ours.times) / 1000,
            baseline=median(in_batches) / 1000,
            against="foreachBatch",
            unit="s",
            aim="<=8",
            rounds=ours.rounds,
            least=min(ours.times) / 1000,
            least_of_baseline=min(in_batches) / 1000,
        )


def run(quick: bool) -> Report:
    report = Report("loops", "Loops: the price of an iteration", quick=quick)
    session = harness.spark("loops")
    as_jobs(session, [vector(0)], partial(barriers_by_hand, iterations=3))  # warm
    bars: dict[str, dict[str, float]] = {}
    cases = loops(*(((20,), 8, 2) if quick else ((20, 100), 60, 4)))
    if quick:  # by hand these take longest
        cases = {"20 barriers": cases["20 barriers"]}
    for name, (iterations, build, data, by_hand) in cases.items():
        runs = compare(session, build, [data(epoch) for epoch in range(2 if quick else 3)], by_hand)
        rows(report, name, iterations, runs)
        bars[name] = {way: median(each.times) / iterations for way, each in runs.items()}

    def draw(axes: Any) -> None:
        ways = list(dict.fromkeys(way for by in bars.values() for way in by))
        colours = dict(zip(ways, [OURS, "#7fa9d6", BASELINE, "#8c8c8c", "#d8d8d8"], strict=False))
        for number, way in enumerate(ways):
            shown = {at + 0.16 * (number - 2): by[way] for at, by in enumerate(bars.values()) if way in by}
            axes.bar(list(shown), list(shown.values()), 0.15, label=way, color=colours[way])
        axes.set_xticks(range(len(bars)), bars)
        axes.set(ylabel="ms per iteration")
        axes.legend()

    report.plot("iterations", draw)
    report.write()
    return report
