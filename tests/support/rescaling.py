"""Flows that go on with another number of workers, and what each says of its epochs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from tests.support.hops import hop, spread
from tests.support.turns import in_turn
from timely_spark.coordinator.migration import Migration
from timely_spark.coordinator.switching import migration
from timely_spark.state.codec import unpack_parts
from timely_spark.testing import Simulation

Inputs = dict[str, list[list[Any]]]
Rows = dict[str, dict[int, list[tuple[Any, ...]]]]


def ways(flows: Iterable[str]) -> list[Any]:
    """Flows, each with the numbers of workers that it goes on with, and `together` of `answers`."""
    return in_turn(flows, [([2, 3], True), ([3, 1], False)])


def plain(value: Any) -> Any:
    """As a checkpoint has it."""
    return json.loads(json.dumps(value))


def migrated(old: Simulation, flow: ts.Dataflow, workers: int, *, empty: bool = False) -> Migration:
    """What a simulation is for another flow, or number of workers, by what a checkpoint has of it."""
    before, snapshot = plain(old.plan.described()), plain(old.coordinator.encode())
    messages = pa.concat_tables(old.waiting)
    plan = flow._continuing(workers, before, snapshot)
    return migration(before, plan, snapshot, old.states, messages, old.blobs, empty=empty)


def continued(
    old: Simulation, flow: ts.Dataflow, workers: int = 2, *, empty: bool = False, **options: Any
) -> tuple[Simulation, Migration]:
    """A simulation of a flow that goes on where another one stands."""
    made = migrated(old, flow, workers, empty=empty)
    new = Simulation(flow, workers=workers, **options)
    new.coordinator, new.result, new.batch = made.coordinator, made.result, old.batch
    new.states = [worker.checkpoint("moved") for worker in made.workers]
    new.waiting, new._input_epochs = [made.result.rows], dict(made.coordinator.inputs)
    new._parts.update({key: [*parts] for key, parts in old._parts.items() if key[0] in new.captured})
    return new, made


def move(simulation: Simulation, flow: ts.Dataflow, workers: int) -> Migration:
    """Let the simulation go on with another number of workers."""
    made = migrated(simulation, flow, workers)
    states = [worker.checkpoint(f"moved-{i}") for i, worker in enumerate(made.workers)]
    counted = {key: n for key, n in made.coordinator.tracker.active.items() if n}
    assert counted == recount(made, states)
    assert min(counted.values(), default=1) > 0
    assert made.result.frontier == simulation.result.frontier
    assert (made.result.released, made.result.outputs.num_rows) == ([], 0)
    simulation.plan, simulation.coordinator = made.coordinator.plan, made.coordinator
    simulation.result = made.result
    simulation.states, simulation.waiting = list(states), [made.result.rows]
    return made


def moved_at_each_epoch(flow: ts.Dataflow, epochs: list[Any], names: str) -> Rows:
    """The output `out` of a flow that goes on with another number of workers after each epoch."""
    simulation = Simulation(flow, workers=2, seed=3)
    for epoch, sides in enumerate(epochs):
        for name, rows in zip(names, sides, strict=True):
            simulation.send(name, rows, epoch=epoch)
            simulation.advance_to(name, epoch + 1)
        for _ in range(1 + epoch % 2):
            simulation.step()
        move(simulation, flow, 1 + epoch % 4)
    for name in names:
        simulation.close(name)
    simulation.run()
    return simulation.captured["out"].rows()


def recount(made: Migration, states: list[bytes]) -> dict[Any, int]:
    """The pointstamps there are, from what the states say of themselves."""
    plan, counts = made.coordinator.plan, Counter[Any]()
    for state in states:
        head = json.loads(bytes(unpack_parts(state)[0]))
        for name, _, time in head["queue"]:
            counts[plan.by_name[name].arrives, plan.times.decode(time)] += 1
        for name, _, capability, later in head["pending"]:
            if capability is not None:
                counts[plan.by_name[name].leaves, plan.times.decode(capability)] += 1
            for epoch in later:
                counts[plan.by_name[name].leaves, plan.times.decode([epoch, *capability[1:]])] += 1
    return dict(counts)


class Moving:
    """A simulation that is moved to the next of some numbers of workers, in turn, at each of `stops`."""

    def __init__(
        self,
        flow: ts.Dataflow,
        workers: list[int],
        stops: Callable[[int], bool],
        *,
        seed: int | None = None,
        blobs: Any = None,
    ) -> None:
        self.flow, self.workers, self.stops = flow, itertools.cycle(workers), stops
        self.simulation = Simulation(
            flow,
            workers=next(self.workers),
            seed=seed,
            blobs=blobs,
            rounds_per_batch=1 if seed is None else None,  # a stop after any round
        )
        self.batches = 0

    def stop(self) -> None:
        if self.stops(self.batches):
            move(self.simulation, self.flow, next(self.workers))

    def step(self) -> bool:
        self.batches += 1
        return self.simulation.step()

    def run(self) -> None:
        while self.step():
            self.stop()


def answers(
    flow: ts.Dataflow,
    inputs: Inputs,
    workers: list[int],
    *,
    stops: Callable[[int], bool] = lambda _: False,
    together: bool = False,
    **how: Any,
) -> tuple[Rows, int]:
    """What each output says of each epoch, and how many batches it took."""
    moving = Moving(flow, workers, stops, **how)
    simulation = moving.simulation
    manual = all(source.epochs == "manual" for source in simulation.plan.inputs)
    named: dict[int, int] = {}
    for epoch in range(max(map(len, inputs.values()))):
        moving.stop()
        named[epoch if manual else simulation.batch] = epoch
        for name, of in inputs.items():
            simulation.send(name, of[epoch] if epoch < len(of) else [], epoch=epoch if manual else None)
            if manual:
                simulation.advance_to(name, epoch + 1)
        moving.step() if together else moving.run()
    moving.stop()
    for name in inputs:
        simulation.close(name)
    moving.run()
    assert simulation.coordinator.tracker.active == {}
    assert simulation.coordinator.tracker.inputs == {}
    assert simulation.result.complete
    said = {name: captured.rows() for name, captured in simulation.captured.items()}
    return {name: {named.get(e, -1): of for e, of in rows.items() if of} for name, rows in said.items()}, (
        moving.batches
    )


# -- flows ---------------------------------------------------------------------------------------------------


def reachability(epochs: Any = "manual") -> ts.Dataflow:
    flow = ts.Dataflow("reachability")
    edges = flow.input("edges", "src long, dst long", epochs=epochs)
    roots = flow.input("roots", "node long", epochs=epochs)

    roots.loop(hop(edges)).capture("out")
    return flow


def components() -> ts.Dataflow:
    """Minima in a loop that are not final, and readers that wait for the final ones."""
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    both = edges.concat(edges.select(src="dst", dst="src"))
    labels = both.select(node="src", label="src").loop(spread(both))
    labels.to_delta("nowhere", diff="diff", name="out")
    labels.group_by("label").aggregate(nodes="count", largest=("max", "node")).capture("sizes")
    return flow


def settled() -> ts.Dataflow:
    """Iterations kept in step: everything in the loop waits."""
    flow = ts.Dataflow("settled")
    edges = flow.input("edges", "src long, dst long", epochs="manual")

    def spread(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        least = proposed.min("label", keys=["node"]).settle()
        links = proposed.scope.enter(edges)
        return least.join(links, left=["node"], right=["src"]).select(node="dst", label="label"), least

    edges.select(node="src", label="src").loop(spread).group_by("node").count().capture("out")
    return flow


def halved(starts: ts.Stream) -> ts.Stream:
    """Two nested loops. Outer: add 100 up to 300; inner: halve until odd."""

    def inner(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        seen = n.distinct(name="seen")
        parts = seen.branch(lambda row: row.n % 2 == 0)
        return parts.trues.map(lambda row: row.n // 2 if row.n else 1, "n long").exchange("n"), parts.falses

    def outer(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        odd = n.loop(inner, name="inner")
        return odd.where(pc.field("n") < 300).map(lambda row: row.n + 100, "n long"), odd

    return starts.loop(outer, name="outer").distinct(name="all")


def nested() -> ts.Dataflow:
    flow = ts.Dataflow("nested")
    pairs = flow.input("edges", "src long, dst long", epochs="manual")
    halved(pairs.select(n=pc.add(pc.multiply(pc.field("src"), 7), pc.field("dst")))).capture("out")
    return flow


def keyed() -> ts.Dataflow:
    """All that keeps state by key, behind an exchange of its own, so that epochs come in pieces."""
    flow = ts.Dataflow("keyed")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    far = edges.exchange("dst").map(lambda row: (row.src, row.dst), "k long, v long")
    other = edges.exchange("src", "dst").map(lambda row: (row.dst, row.src), "k long, w long")
    far.join(other, on="k").capture("pairs")
    far.join(other, on="k", per="time", name="now").capture("pairs now")
    far.join(other, on="k", expire=1, name="close").capture("pairs close")
    far.join(other, on="k", how="outer", per="time", name="all").capture("outer")
    far.subtract(other.select("k", v="w"), all=True, name="less").capture("left over")
    far.group_by("k").reduce(lambda _, rows: [len(rows)], "n long", name="sizes").capture("group sizes")
    sums = lambda _, rows, s: ([total := (s.n if s else 0) + sum(r.v for r in rows)], total)  # noqa: E731
    far.stateful_map(sums, "n long", keys="k", state="n long", name="running").capture("totals")
    far.stateful_map(sums, "n long", keys="k", state="n long", expire=1, name="last").capture("last totals")
    far.top_k(2, "v", keys="k", name="best").capture("top")
    far.group_by("k").aggregate(n="count", low=("min", "v"), all=("collect", "v")).capture("values")
    far.group_by("k").aggregate(n="count", per="time", name="each").capture("each time")
    far.group_by("k").aggregate(n="count", expire=1, name="run").capture("runs")
    far.distinct().capture("once")
    far.distinct(expire=1, name="again").capture("again and again")
    far.max("v", keys="k").to_delta("nowhere", diff="diff", name="greatest")
    far.exchange("k").expire(after=1, name="window").group_by("k").aggregate(
        n=("sum", "diff"), name="sums"
    ).capture("window sums")
    size = lambda time, batch: [(k, time.epoch) for k in sorted(set(batch["k"].to_pylist()))]  # noqa: E731
    far.unary_notify(size, "k long, e long", by="k").capture("keys")
    both = lambda time, left, right: [(left.num_rows > 0, right.num_rows > 0)]  # noqa: E731
    far.select("k", "v", all=pc.scalar(0)).binary_notify(
        other.select("k", "w", all=pc.scalar(0)), both, "left boolean, right boolean", by=("all", "all")
    ).capture("sides")
    return flow


def scoped() -> ts.Dataflow:
    """Inner times of two kinds, beside a loop and inside of one."""
    flow = ts.Dataflow("scoped")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    late = flow.scope.inner(name="late", time=ts.times.Descending)
    far = (
        late.enter(edges, at="dst").exchange("dst").group_by("src").aggregate(n="count", last=("max", "dst"))
    )
    far.exchange("n").unary_notify(
        lambda time, batch: [(time.counters[0].number, n) for n in batch["n"].to_pylist()],
        "at long, n long",
        by="n",
    ).leave().capture("sizes")

    def hop(near: ts.Stream) -> ts.Stream:
        first = near.scope.inner(name="first", time=int).enter(near, at="node")
        sizes = first.exchange("node").unary_notify(lambda _, batch: batch, "node long", by="node").leave()
        links = near.scope.enter(edges)
        targets = sizes.join(links, left=["node"], right=["src"]).select(node="dst")
        return targets.concat(near).distinct(name="near").settle()

    edges.select(node="src").loop(hop, max_iterations=4, on_limit="return").capture("near")
    return flow
