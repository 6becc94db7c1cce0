"""Random flows, whose vertices send and ask for notifications at random; a simulation checks their laws."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pyarrow as pa

import timely_spark as ts
from timely_spark.coordinator import Coordinator
from timely_spark.state.codec import unpack_parts
from timely_spark.testing import Simulation
from timely_spark.worker import Budget, step, wire
from timely_spark.worker.notify import lower_bounds
from timely_spark.worker.wire import Header, Message

SCHEMA = pa.schema([("h", pa.int64()), ("ttl", pa.int64())])


class Broken(AssertionError):
    """A law of timely dataflow does not hold."""


def broken(how: str) -> NoReturn:
    raise Broken(how)


@dataclass
class World:
    """What the vertices of the running case tell, and what they are checked against."""

    trace: Counter[Any] = field(default_factory=Counter)
    frontiers: dict[str, Any] = field(default_factory=dict)
    replaying: bool = False

    def clear(self) -> None:
        """Begin anew; others have the same world by its name."""
        self.trace, self.frontiers, self.replaying = Counter(), {}, False

    def happened(self, *event: Any) -> None:
        if not self.replaying:
            self.trace[event] += 1


WORLD = World()


def up(r: random.Random, time: Any) -> Any:
    """The same time or a later one."""
    return type(time)(*(x + (r.random() < (0.12 if i == 0 else 0.25)) for i, x in enumerate(time)))


class Noise(ts.Vertex):
    """Does anything that is allowed."""

    def __init__(self, salt: int, stage: int, initial: tuple[int, ...]) -> None:
        self.salt, self.stage, self.initial = salt, stage, initial
        self.sums: dict[Any, int] = {}
        self.asked: dict[Any, int] = {}
        self.notified: list[Any] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if any(time <= before for before in self.notified):
            broken(f"stage {self.stage} receives at {time} after notifications of {self.notified}")
        if not WORLD.frontiers[f"s{self.stage}"].less_equal(time):
            broken(f"stage {self.stage} receives at {time}, which was said to be complete")
        for h, ttl in zip(batch["h"].to_pylist(), batch["ttl"].to_pylist(), strict=True):
            self.sums[time] = self.sums.get(time, 0) + h
            WORLD.happened("received", self.stage, self.worker, edge, time, h, ttl)
            self._act(f"r {edge} {h}", time, time, ttl)

    def on_notify(self, time: Any) -> None:
        capability = self._context.capability  # type: ignore[attr-defined]
        total = sum(h for at, h in self.sums.items() if at <= time)
        self.notified.append(time)
        WORLD.happened("notified", self.stage, self.worker, time, capability, total)
        self._act(f"n {total}", time, capability, self.asked.pop((time, capability), 1), after=time)

    def _act(self, what: str, time: Any, capability: Any, ttl: int, after: Any = None) -> None:
        r = random.Random(f"{self.salt} {self.stage} {self.worker} {time} {capability} {ttl} {what}")
        if ttl <= 0:
            return
        if capability is not None:
            for _ in range(r.choice((0, 1, 1, 2))):
                record = pa.table({"h": [r.randrange(997)], "ttl": [ttl - 1]})
                self.send_by(r.randrange(2), up(r, capability), record)
        if r.random() < 0.6:
            base = time if capability is None else capability
            guarantee = up(r, base)
            if guarantee == after:
                guarantee = type(base)(base[0] + 1, *base[1:])
            kind = None if capability is None or r.random() < 0.2 else guarantee
            if kind is not None and r.random() < 0.5:
                kind = up(r, up(r, guarantee))
            self.asked[guarantee, kind] = max(ttl - 1, self.asked.get((guarantee, kind), 0))
            self.notify_at(guarantee, capability=kind)


def random_flow(salt: int) -> ts.Dataflow:  # noqa: C901 - the cases of a random graph
    """Stages 0..n-1 in the root, in a loop, or in a loop in it; edges forwards, and back over a feedback."""
    r = random.Random(salt)
    flow = ts.Dataflow("random", times=r.choice([ts.PRODUCT, ts.PRODUCT, ts.LEXICOGRAPHIC]))
    n = r.randint(2, 6)
    scopes = [flow.scope] * n
    if n >= 3 and r.random() < 0.8:
        a = r.randint(1, n - 1)
        b = r.randint(a, n - 1)
        outer = flow.scope.inner(name="outer", max_iterations=r.choice([None, None, 2]), on_limit="return")
        scopes[a : b + 1] = [outer] * (b - a + 1)
        if r.random() < 0.5:
            c = r.randint(a, b)
            d = r.randint(c, b)
            scopes[c : d + 1] = [outer.inner(name="inner")] * (d - c + 1)
    inputs: list[list[Any]] = [[] for _ in range(n)]
    by: list[list[Any]] = [[] for _ in range(n)]

    def connect(stream: Any, to: int, *, exchange: bool) -> None:
        while stream.stage.scope not in scopes[to].graph_scope.path:
            stream = stream.leave()
        inputs[to].append(scopes[to].enter(stream))
        by[to].append(["h"] if exchange else None)

    first, second = flow.input("first", SCHEMA), flow.input("second", SCHEMA)
    connect(first, 0, exchange=True)
    connect(second, r.choice([v for v in range(n) if scopes[v] == flow.scope]), exchange=True)
    forwards = {(r.randrange(v), v, r.random() < 0.5) for v in range(1, n)}
    forwards |= {(*sorted(r.sample(range(n), 2)), r.random() < 0.5) for _ in range(r.randint(0, 3))}
    back: dict[int, tuple[Any, list[int]]] = {}
    for scope in {id(s): s for s in scopes if s != flow.scope}.values():
        inside = [v for v in range(n) if scopes[v] is scope]
        for _ in range(r.randint(1, 2)):
            u, v = r.choice(inside), r.choice(inside)
            if min(u, v) not in back:
                back[min(u, v)] = scope.variable(SCHEMA), [max(u, v)]
                connect(back[min(u, v)][0], min(u, v), exchange=r.random() < 0.6)
            else:
                back[min(u, v)][1].append(max(u, v))
    streams: list[Any] = []
    for v in range(n):
        for source, _, exchange in sorted(edge for edge in forwards if edge[1] == v):
            connect(streams[source][r.randrange(2)], v, exchange=exchange)
        initial = (0, 2) if r.random() < 0.2 else ()
        streams.append(flow.vertex(Noise(salt, v, initial), inputs[v], [SCHEMA] * 2, by=by[v], name=f"s{v}"))
        if scopes[v] == flow.scope:
            streams[v][r.randrange(2)].capture(f"out{v}")
    for variable, sources in back.values():
        fed = [streams[u][r.randrange(2)] for u in dict.fromkeys(sources)]
        variable.feed(fed[0].concat(*fed[1:]) if len(fed) > 1 else fed[0])
    return flow


def random_input(salt: int) -> dict[int, list[tuple[str, list[tuple[int, int]]]]]:
    """For some batches what each input brings: to no worker, one, or all; often one input is silent."""
    r = random.Random(-salt - 1)
    names = r.choice([["first", "second"], ["first"], ["second"]])
    return {
        n: [
            (name, [(r.randrange(997), r.randint(2, 4)) for _ in range(r.choice([0, 1, 1, 2, 4]))])
            for name in r.sample(names, r.randint(1, len(names)))
        ]
        for n in sorted(r.sample(range(9), r.randint(1, 4)))
    }


class Checked(Simulation):
    """A simulation that checks the laws after each batch, and runs some rounds again."""

    last: Budget | None = None
    again: random.Random | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        draw = self.schedule.budget

        def budget() -> Budget | None:
            self.last = draw()
            return self.last

        self.schedule.budget = budget  # type: ignore[method-assign]

    def step(self) -> bool:
        nodes = self.plan.nodes
        WORLD.frontiers = {
            node.name.rsplit(".", 1)[-1]: self.coordinator.tracker.frontier(node.arrives) for node in nodes
        }
        released = {(sink, epoch) for sink, epochs in self.captured.items() for epoch in epochs.epochs}
        if not super().step():
            return False
        outputs = self.result.outputs.select(["sink", "epoch"]).to_pylist()
        late = [row for row in outputs if (row["sink"], row["epoch"]) in released]
        if late:
            broken(f"after its release an epoch gets records: {late}")
        counts = self.coordinator.tracker.active
        if any(n < 0 for n in counts.values()):
            broken(f"negative counts: {counts}")
        if counts != self.truth():
            broken(f"the tracker says {counts}, true is {self.truth()}")
        return True

    def truth(self) -> dict[Any, int]:
        """The pointstamps there are, looked up where they stand."""
        plan, found = self.plan, Counter[Any]()
        for state in self.states:
            if state is None:
                found.update((node.leaves, time) for node in plan.nodes for time in plan.initial(node))
                continue
            head = json.loads(bytes(unpack_parts(state)[0]))
            found.update(
                (plan.by_name[name].arrives, plan.times.decode(time)) for name, _, time in head["queue"]
            )
            found.update(
                (plan.by_name[name].leaves, plan.times.decode([*epoch, *time[len(epoch) :]]))
                for name, _, time, later in head["pending"]
                if time is not None
                for epoch in ([], *([epoch] for epoch in later))
            )
        for table in self.waiting:
            for _, message in wire.read(table, Message):
                target = plan.nodes[plan.channels[message.channel].target]
                found[target.arrives, plan.times.decode(message.time)] += 1
        return dict(found)

    def replay(
        self, batch: int, worker: int, before: Any, rows: pa.Table, header: Header, *after: Any
    ) -> None:
        assert self.again is not None
        if self.again.random() < 0.5:
            order = self.again.sample(range(rows.num_rows), rows.num_rows)
            WORLD.replaying = True
            state, made = step(self.plan, before, batch, worker, rows.take(order), header, self.last)
            WORLD.replaying = False
            if state != after[0] or made != after[1]:
                broken("a round that is run again, its rows in another order, gives something else")


def run(  # noqa: C901 - one schedule, from input to close
    salt: int,
    workers: int,
    seed: int | None = None,
    budget: Budget | None = None,
    rounds_per_batch: int | None = None,
) -> Counter[Any]:
    """One schedule of a case; what happened."""
    WORLD.clear()
    plan = random_flow(salt).compile(workers)
    simulation = Checked(plan, workers=workers, seed=seed, budget=budget, rounds_per_batch=rounds_per_batch)
    if seed is None:
        simulation.again = random.Random(salt)
        simulation.on_step = simulation.replay
    try:
        for batch, brought in random_input(salt).items():
            while not simulation.idle and simulation.batch < batch:
                simulation.step()
            simulation.batch = batch  # an idle query: numbers of batches have gaps
            for name, records in brought:
                simulation.send(name, records)
            simulation.step()
            if seed is not None:  # a restart between two batches
                encoded = json.loads(json.dumps(simulation.coordinator.encode()))
                simulation.coordinator = Coordinator.decode(plan, encoded)
        simulation.run(1_000)
        begun = simulation.coordinator.last_epoch
        late = [
            guarantee
            for pending in simulation.coordinator.pending
            for asked in pending.values()
            for guarantee in asked.counts
            if guarantee.epoch <= begun
        ]
        if late:
            broken(f"an idle flow owes notifications: {late}")
        for name in plan.sources:
            simulation.close(name)
        simulation.run(1_000)
    except ts.TimelyError as error:
        raise Broken(str(error)) from error
    left = simulation.coordinator.tracker.active
    if left or any(simulation.coordinator.pending) or not simulation.result.complete:
        broken(f"all inputs are closed, and {left}, {simulation.coordinator.pending} are left")
    if simulation.coordinator.tracker.inputs:
        broken("closed inputs are still counted")
    return WORLD.trace


def check(salt: int) -> int:
    workers = 1 + salt % 3
    base = run(salt, workers)
    schedules: list[dict[str, Any]] = [
        {"seed": salt},
        {"seed": -salt},
        {"budget": Budget(steps=3)},
        {"rounds_per_batch": 1},
        {"rounds_per_batch": 100},
    ]
    for schedule in schedules:
        if (trace := run(salt, workers, **schedule)) != base:
            broken(f"{schedule}: more {list(trace - base)[:3]}, less {list(base - trace)[:3]}")
    return sum(base.values())


def check_many(first: int) -> None:
    """The cases of 200 salts, beginning with one that tells."""
    for salt in range(first, first + 200):
        check(salt)


def no_arrivals(plan: Any, node: Any, header: Any, open_: Any, present: Any) -> list[Any]:
    return lower_bounds(plan, node, replace(header, arrivals=[]), open_, present)


def no_open_inputs(plan: Any, node: Any, header: Any, open_: Any, present: Any) -> list[Any]:
    return lower_bounds(plan, node, header, dict.fromkeys(open_), present)


def no_data_of_this_batch(plan: Any, node: Any, header: Any, open_: Any, present: Any) -> list[Any]:
    return lower_bounds(plan, node, header, open_, dict.fromkeys(present))
