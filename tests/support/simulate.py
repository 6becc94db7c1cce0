"""Crash and recover the simulator: random flows, schedules and crashes, each against the run without crashes.

    make simulate STEPS=1000000
    .venv/bin/python -m tests.support.simulate --seed 42       one case again

A case is all drawn from its seed: the flow (the library's operators, or vertices that do anything allowed),
how many workers, budgets and rounds of a batch, whether states are kept in blobs, what is sent when, where it
crashes. With and without crashes it must come to the same outputs per epoch, states, and pointstamps.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from tests.support import rescaling
from tests.support.hops import hop, spread, to_next_key
from tests.support.memory import Memory
from tests.support.random_flows import WORLD, Checked, random_flow
from timely_spark.state import Arrangement, codec
from timely_spark.worker import Budget, Worker, vertex_snapshot

# -- flows ---------------------------------------------------------------------------------------------------


def reachability(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("reachability")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")
    near = roots.loop(hop(edges), max_iterations=draw.choice([None, None, 3]), on_limit="return")
    near.inspect("seen")
    near.capture("out")
    return flow


def components(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("components", times=draw.choice([ts.PRODUCT, ts.LEXICOGRAPHIC]))
    edges = flow.input("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))
    exact = draw.random() < 0.5

    labels = both.select(node="src", label=pc.min_element_wise(pc.field("src"), pc.field("dst")))
    labels = labels.loop(spread(both, exact=exact))
    labels.to_delta("nowhere", diff="diff", name="changes")
    labels.group_by("label").aggregate(nodes="count").capture("sizes")
    return flow


def nested(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("nested", times=draw.choice([ts.PRODUCT, ts.LEXICOGRAPHIC]))
    rescaling.halved(flow.input("x", "n long")).capture("out")
    return flow


def scopes(draw: random.Random) -> ts.Dataflow:
    """Inner times beside a loop that has other ones."""
    flow = ts.Dataflow("scopes")
    x = flow.input("x", "n long", epochs=draw.choice(["clock", "manual"]))
    first = flow.scope.inner(name="first", time=draw.choice([int, ts.times.Descending]))
    inside = x.enter(first, at="n").exchange("n").distinct(name="once")
    sizes = inside.unary_notify(lambda time, batch: [batch.num_rows], "n long", name="sizes")
    sizes.leave().capture("out")
    x.loop(lambda n: n.where(pc.field("n") < 90).select(n=pc.field("n") + 7).concat(n).distinct()).capture(
        "all"
    )
    return flow


def joins(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("joins")
    epochs = draw.choice(["clock", "manual"])
    left, right = (flow.input(name, f"k long, {name} string", epochs=epochs) for name in ("a", "b"))
    joined = left.join(right, on=["k"], per=draw.choice(["accumulated", "time"]))
    joined.capture("out")
    joined.group_by("a").aggregate(n="count", least=("min", "b")).capture("counts")
    return flow


def aggregates(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("aggregates")
    x = flow.input("x", "k long, v double, s string", epochs=draw.choice(["clock", "manual"]))
    every: dict[str, Any] = {
        "n": "count",
        "total": ("sum", "v"),
        "low": ("min", "s"),
        "all": ("collect", "s"),
    }
    by_key = x.exchange("s").group_by("k")
    by_key.aggregate(per=draw.choice(["accumulated", "time"]), **every).capture("out")
    x.min("v", keys=["s"]).group_by("s").aggregate(changes="count").capture("least")
    return flow


def iterations(draw: random.Random) -> ts.Dataflow:
    """Each iteration a key's count goes to the next key."""
    flow = ts.Dataflow("iterations")

    x = flow.input("x", "k long, v long")
    x.loop(to_next_key, max_iterations=draw.randint(1, 5), on_limit="return").capture("out")
    return flow


def column(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("column")
    source = flow.source("s", "at long, n long", epoch="at")
    source.group_by("n").count().capture("out")
    source.late.capture("late")
    return flow


class Pairs(ts.Vertex):
    """All kinds of state, answers at both calls; with a log of its calls or not."""

    def __init__(self, *, logged: bool) -> None:
        self.logged = logged
        self.all, self.least, self.fresh = Arrangement(["k"]), {}, Counter()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.fresh[time] += self.all.lookup(batch, ["k"])[1].num_rows
        self.all.insert(batch)
        for k, v in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
            self.least[k, time.epoch] = min(v, self.least.get((k, time.epoch), v))
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        rows = sorted((k, v) for (k, epoch), v in self.least.items() if epoch == time.epoch)
        self.send_by(0, time, pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}))


def pairs(draw: random.Random) -> ts.Dataflow:
    flow = ts.Dataflow("pairs")
    x = flow.input("x", "k long, v long", epochs=draw.choice(["clock", "manual"]))
    for name in ("first", "second"):
        x = flow.vertex(Pairs(logged=draw.random() < 0.7), x, "k long, v long", by="k", name=name)
    x.capture("out")
    return flow


def ends(draw: random.Random) -> ts.Dataflow:
    """State that ends."""
    flow = ts.Dataflow("ends")
    x = flow.input("x", "k long, v long")
    x.group_by("k").aggregate(total=("sum", "v"), expire=draw.randint(1, 3)).capture("totals")
    x.expire(after=draw.randint(1, 3)).capture("window")
    return flow


def anything(draw: random.Random) -> ts.Dataflow:
    flow: ts.Dataflow = random_flow(draw.randrange(10**6))
    return flow


FLOWS: list[Callable[[random.Random], ts.Dataflow]] = [
    reachability, components, nested, scopes, joins, aggregates, iterations, column, pairs, ends, anything,
]  # fmt: skip

# -- cases ---------------------------------------------------------------------------------------------------


class Run(ts.testing.Simulation):
    """A simulation that loses blobs and the vertices' own trace where it crashes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attempts = 0
        self.traces: dict[int, Counter[Any]] = {}
        self.faults = random.Random(1)

    def _attempt(self, batch: Any) -> None:
        self.attempts += 1
        if self.rounds > 1_000:  # a wrong recovery may leave work that is never done
            msg = f"flow {self.plan.name!r} does not end"
            raise ts.TimelyError(msg)
        WORLD.trace = self.traces.setdefault(batch.number, WORLD.trace).copy()
        WORLD.frontiers = {
            node.name.rsplit(".", 1)[-1]: self.coordinator.tracker.frontier(node.arrives)
            for node in self.plan.nodes
        }
        before = set(self.blobs.content) if self.blobs else set()
        try:
            super()._attempt(batch)
        except BaseException:
            if self.blobs:
                for reference in set(self.blobs.content) - before:
                    if self.faults.random() < 0.5:
                        del self.blobs.content[reference]
            raise


class CheckedRun(Run, Checked):
    """The same, which checks the laws of timely dataflow at each batch."""


@dataclass(frozen=True)
class Case:
    """All that a seed decides."""

    plan: Any
    #: (method of the simulation, its arguments)
    script: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    options: dict[str, Any]
    blobs: bool
    crashes: float

    @classmethod
    def of(cls, seed: int, flow: Callable[[random.Random], ts.Dataflow] | None = None) -> Case:
        """The case of a seed: of this flow, or of any."""
        draw = random.Random(seed)
        make = draw.choice([*FLOWS, anything, anything])
        plan = (flow or make)(draw).compile(draw.choice([1, 2, 3, 3, 5]))
        options = {
            "seed": draw.choice([None, seed]),
            "budget": draw.choice([None, None, Budget(steps=draw.randint(1, 20))]),
            "rounds_per_batch": draw.choice([None, 1, 2, 100]),
        }
        return cls(
            plan, list(_script(plan, draw)), options, draw.random() < 0.5, draw.choice([0.1, 0.3, 0.6])
        )

    def play(self, *, crashes: bool) -> Run:
        """Run it to its end."""
        WORLD.clear()
        run = (CheckedRun if self.plan.name == "random" else Run)(
            self.plan,
            **self.options,
            blobs=Memory() if self.blobs else None,
            crashes=self.crashes if crashes else 0.0,
        )
        small = mock.patch.object(codec, "BLOB_BYTES", 200 if self.blobs else codec.BLOB_BYTES)
        with small, mock.patch.object(vertex_snapshot, "LOG_BYTES", 2_000):
            for method, args, kwargs in self.script:
                getattr(run, method)(*args, **kwargs)
        run.trace = WORLD.trace
        return run


def _script(plan: Any, draw: random.Random) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Some epochs: what each input is sent, how far it moves, and how many batches run before the next."""
    stands = dict.fromkeys(plan.sources, 0)
    for _ in range(draw.randint(1, 6)):
        for name in draw.sample(sorted(stands), len(stands)):
            source = plan.source(name)
            manual = source.epochs == "manual"
            if draw.random() < 0.7:
                rows = draw.choice([0, 1, 2, 4, 8, 8, 60])
                at = draw.randint(0, 9)  # of a column of epochs: rows that are read together have one
                records = [_record(source.stage.outputs[0], draw, at) for _ in range(rows)]
                yield "send", (name, records), {"epoch": stands[name] + draw.randint(0, 1)} if manual else {}
            if manual and draw.random() < 0.6:
                stands[name] += draw.randint(1, 2)
                yield "advance_to", (name, stands[name]), {}
        for _ in range(draw.randint(0, 4)):
            yield "step", (), {}
    yield "run", (), {}
    if draw.random() < 0.8:
        for name in stands:
            yield "close", (name,), {}
        yield "run", (), {}


def _record(schema: pa.Schema, draw: random.Random, at: int) -> tuple[Any, ...]:
    make: dict[pa.DataType, Callable[[str], Any]] = {
        pa.int64(): lambda name: at if name == "at" else draw.randint(0, 3 if name == "ttl" else 9),
        pa.float64(): lambda _: draw.choice([draw.random(), -1.5, 0.1, None]),
        pa.string(): lambda _: draw.choice(["a", "b", "ä", None]),
    }
    return tuple(make[field.type](field.name) for field in schema)


def difference(calm: Run, crashed: Run) -> str | None:
    """In what two runs of a case differ, if they do."""
    for name, captured in calm.captured.items():
        ours, theirs = captured.rows(), crashed.captured[name].rows()
        if ours != theirs:
            epochs = [epoch for epoch in ours | theirs if ours.get(epoch) != theirs.get(epoch)]
            epoch = min(epochs)
            return f"output {name!r}, epoch {epoch}: {ours.get(epoch)} and {theirs.get(epoch)}"
    pairs = {
        "states": (calm.states, crashed.states),
        "coordinators": tuple(unordered(run.coordinator.encode()) for run in (calm, crashed)),
        "headers": tuple(unordered(json.loads(run.result.header.encode())) for run in (calm, crashed)),
        "batches": (calm.batch, crashed.batch),
        "rounds": (calm.rounds, crashed.rounds),
        "what vertices were told": (calm.trace, crashed.trace),
    }
    return next((what for what, (ours, theirs) in pairs.items() if ours != theirs), None)


def unordered(value: Any) -> Any:
    """Plain JSON, its lists in an order of their own: those of antichains are in none."""
    if isinstance(value, dict):
        return {key: unordered(item) for key, item in value.items()}
    return sorted(map(unordered, value), key=str) if isinstance(value, list) else value


# -- the campaign --------------------------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How many rounds workers run."""
    count: Counter[str] = Counter()
    real = Worker.step

    def step(self: Worker, *args: Any) -> pa.Table:
        count["rounds"] += 1
        return real(self, *args)

    with mock.patch.object(Worker, "step", step):
        yield count


def check(seed: int, total: Counter[str]) -> str | None:
    """Run a case with and without crashes; in what they differ."""
    case = Case.of(seed)
    try:
        calm = case.play(crashes=False)
    except Exception as error:  # noqa: BLE001 - whatever happens, the seed must be told
        return f"without crashes: {type(error).__name__}: {error}"
    try:
        crashed = case.play(crashes=True)
    except Exception as error:  # noqa: BLE001 - see above
        return f"{type(error).__name__}: {error}"
    total["crashes"] += crashed.crashed
    total["recoveries"] += crashed.attempts - crashed.batch
    total["deliveries made again"] += crashed.redelivered
    total["batches"] += crashed.batch
    return difference(calm, crashed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="rounds of workers in all")
    parser.add_argument("--first", type=int, default=0, help="the first case's seed")
    parser.add_argument("--seed", type=int, help="this case alone")
    options = parser.parse_args(arguments)
    seed = first = options.first if options.seed is None else options.seed
    total: Counter[str] = Counter()
    began = reported = time.monotonic()
    differs = None
    with counted() as count:
        while differs is None and count["rounds"] < options.steps:
            differs = check(seed, total)
            seed += 1
            if options.seed is not None:
                break
            if (now := time.monotonic()) - reported > 10:
                reported = now
                print(f"  {count['rounds']} rounds of workers, {total['crashes']} crashes", flush=True)
    rate = count["rounds"] / (time.monotonic() - began)
    counts = ", ".join(f"{n} {what}" for what, n in sorted(total.items()))
    print(f"seeds {first} to {seed - 1}: {count['rounds']} rounds of workers, {rate:.0f} a second; {counts}")
    if differs is not None:
        print(f"DIFFERS: seed {seed - 1}: {differs}\nagain: -m tests.support.simulate --seed {seed - 1}")
        return 1
    print("no differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
