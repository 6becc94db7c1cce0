"""All schedules of small flows, explored breadth first: the model of the progress protocol.

The model runs the real workers, coordinators and rounds. It makes explicit what may happen around them: which
input a batch reads, which workers get their messages late, whether Spark's tasks run its first round or the
driver runs it from its input on, whether further rounds run in one process or in parallel ones, in which
order these step and receive, whether their stage is lost and runs again, where a batch crashes (after any
step, any number of times), and what was delivered before it did.

`make model` explores larger sizes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time as clock
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support import random_flows
from tests.support.random_flows import Broken, Checked
from timely_spark.coordinator import (
    Coordinator,
    RoundLimits,
    RoundResult,
    Share,
    merged_snapshot,
    run_local_rounds,
)
from timely_spark.coordinator.local_rounds import run_workers
from timely_spark.state.arrow import from_bytes
from timely_spark.worker import Budget, notify, pack, pack_input, step, wire
from timely_spark.worker.wire import Message

truth = Checked.truth


def hold(law: str, *, holds: bool) -> None:
    if not holds:
        raise Broken(law)


# -- small flows ---------------------------------------------------------------------------------------------


class Turn(ts.Vertex):
    """A barrier: passes on what came at a time when it is complete, out of the loop and around it."""

    outputs = 2

    def __init__(self, turns: int) -> None:
        self.turns, self.held, self.complete = turns, dict[Any, list[Any]](), list[Any]()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        hold("no record comes after its notification", holds=not any(time <= t for t in self.complete))
        self.held[time] = sorted([*self.held.get(time, []), *zip(*batch.to_pydict().values(), strict=True)])
        self.held = dict(sorted(self.held.items()))  # the order of arrival makes no other state
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.complete = sorted([*self.complete, time])
        held = self.held.pop(time)
        numbers = [n for _, n in held]
        self.send_by(0, time, pa.table({"key": [key for key, _ in held], "n": numbers}))
        if time[-1] < self.turns:
            self.send_by(1, time, pa.table({"key": [key + 1 for key, _ in held], "n": numbers}))


class Total(ts.Vertex):
    """The sum of an epoch, sent when it is complete; asked for with and without a capability."""

    def __init__(self) -> None:
        self.sums, self.complete = dict[Any, int](), list[Any]()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        hold("no record comes after its notification", holds=not any(time <= t for t in self.complete))
        self.sums[time] = self.sums.get(time, 0) + pc.sum(batch["n"]).as_py()
        self.sums = dict(sorted(self.sums.items()))
        self.notify_at(time)
        self.notify_at(time, capability=None)

    def on_notify(self, time: Any) -> None:
        if time not in self.complete:
            self.complete = sorted([*self.complete, time])
            self.send_by(0, time, pa.table({"epoch": [time.epoch], "n": [self.sums[time]]}))


def loop(turns: int = 1, *, epochs: Any = "manual") -> ts.Dataflow:
    """A loop with a barrier and an exchange in each iteration, left to a sum on one worker."""
    flow = ts.Dataflow("loop")
    scope = flow.scope.inner(name="turns")
    schema = "key long, n long"
    first, back = flow.input("x", schema, epochs=epochs), scope.variable(schema)
    turned = flow.vertex(
        Turn(turns), [scope.enter(first).concat(back)], [schema] * 2, by=["key"], name="turn"
    )
    back.feed(turned[1])
    one = turned[0].leave().select("n", all=pc.scalar(0))
    flow.vertex(Total(), [one], "epoch long, n long", by=["all"], name="total").capture("out")
    return flow


def two() -> ts.Dataflow:
    """Two inputs that are summed by epoch, one of them behind one more exchange."""
    flow = ts.Dataflow("two")
    x, y = (flow.input(name, "key long, n long", epochs="manual") for name in "xy")
    far = y.exchange("n").select("key", "n")
    both = x.concat(far).select("n", all=pc.scalar(0))
    flow.vertex(Total(), [both], "epoch long, n long", by=["all"], name="total").capture("out")
    return flow


Call = tuple[str, str, int | None, Any]


def calls(name: str, epochs: int = 1, *, parts: int = 1) -> list[Call]:
    """The calls of an input's handle: records for both workers in each epoch but the second, in parts."""
    made: list[Call] = []
    for epoch in range(epochs):
        for part in range(parts if epoch != 1 else 0):
            rows = pa.table({"key": [epoch + part, epoch + part + 1], "n": [1, 10]})
            made.append((name, "send", epoch, rows))
        made.append((name, "advance", epoch + 1, None))
    return [*made, (name, "close", None, None)]


def both(epochs: int = 1) -> list[Call]:
    """The calls of two inputs, in turn."""
    pairs = zip(calls("x", epochs), calls("y", epochs), strict=True)
    return [call for pair in pairs for call in pair]


# -- states --------------------------------------------------------------------------------------------------


def as_bytes(rows: pa.Table) -> bytes:
    """Rows in one order: the order of rows means nothing."""
    texts = list(map(repr, rows.to_pylist()))
    order = sorted(range(len(texts)), key=texts.__getitem__)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.take(pa.array(order, pa.int64())).combine_chunks())
    return sink.getvalue().to_pybytes()


def as_rows(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def as_json(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


@dataclass(frozen=True, slots=True)
class After:
    """What there is after a round: in the driver, in one process, or in a manifest."""

    coordinator: str
    result: str
    rows: bytes
    outputs: bytes
    states: tuple[bytes | None, ...]

    @classmethod
    def of(cls, coordinator: Coordinator, result: RoundResult, states: Any) -> After:
        return cls(
            as_json(coordinator.encode()),
            as_json(result.encode()),
            as_bytes(result.rows),
            as_bytes(result.outputs),
            tuple(states),
        )

    def decoded(self, plan: Any) -> tuple[Coordinator, RoundResult]:
        encoded, rows = json.loads(self.result), as_rows(self.rows)
        result = RoundResult.decode(encoded, rows, as_rows(self.outputs))
        return Coordinator.decode(plan, json.loads(self.coordinator)), result


@dataclass(frozen=True, slots=True)
class Process:
    """One process of parallel rounds: it is to step, or has stepped and waits for the others' rows."""

    after: After
    #: what its workers wrote in this round
    written: bytes | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A micro-batch: what Spark's log says it reads, and how many rounds it may have."""

    number: int
    rows: bytes
    rounds: int
    #: messages that it leaves for later, and the calls that were read up to its end
    later: bytes
    read: int


Parts = tuple[tuple[str, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class State:
    """The whole system."""

    #: after the last commit: also messages that are late, the calls read so far, and outputs not released yet
    commit: After
    later: bytes
    read: int
    parts: Parts
    #: what the sinks were given, by sink and epoch; no crash undoes that
    delivered: Parts
    choice: Choice | None = None
    #: after the rounds so far of the batch that runs
    now: After | None = None
    #: parallel rounds, and by sender and receiver the tables in flight between them
    processes: tuple[Process, ...] = ()
    mail: tuple[tuple[tuple[int, int], tuple[bytes, ...]], ...] = ()
    #: whether all rounds are done
    closing: bool = False


# -- what may happen -----------------------------------------------------------------------------------------


@dataclass
class Model:
    flow: Callable[[], ts.Dataflow]
    calls: list[Call]
    workers: int = 2
    processes: int = 2
    #: how many rounds a batch may have, and calls it may read
    rounds: tuple[int, ...] = (1, 100)
    reads: int = 2
    budget: Budget = field(default_factory=Budget)
    late: bool = True
    crashes: bool = True

    def __post_init__(self) -> None:
        self.plan = self.flow().compile(self.workers)
        self.done: dict[Any, Any] = {}
        #: the one state after each round of each batch, whichever way it was reached
        self.confluent: dict[Any, After] = {}

    def first(self) -> State:
        coordinator = Coordinator(self.plan)
        result = coordinator.first()
        none = as_bytes(wire.ROWS.empty_table())
        return State(After.of(coordinator, result, [None] * self.workers), none, 0, (), ())

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        """All that may happen next."""
        if state.choice is None:
            yield from (("batch", replace(state, choice=choice)) for choice in self.choices(state))
            return
        if state.now is None:
            yield "first round", replace(state, now=self.first_round(state.commit, state.choice))
            if state.choice.rounds > 1:  # none of its messages is late
                yield "in a stay", replace(state, now=self.in_a_stay(state.commit, state.choice))
        elif state.processes:
            yield from self.parallel(state, state.now, state.choice)
        elif state.closing:
            yield self.close(state, state.now, state.choice)
        else:
            yield from self.rounds_of(state, state.now, state.choice)
        if self.crashes and state.now is not None:
            # all is lost but what is committed, and what was delivered
            yield "crash", replace(state, now=None, processes=(), mail=(), closing=False)

    def choices(self, state: State) -> Iterator[Choice]:
        """The batches that Spark may plan: what they read, and which workers get their messages late."""
        newest, later = as_rows(state.commit.rows), as_rows(state.later)
        number = json.loads(state.commit.coordinator)["batch"] + 1
        for read in range(min(self.reads, len(self.calls) - state.read) + 1):
            brought = [self.packed(i) for i in range(state.read, state.read + read)]
            busy = {worker for table in brought for worker in table["worker"].to_pylist()}
            waiting = {*wire.only(pa.concat_tables([newest, later]), Message)["worker"].to_pylist()} - busy
            for n in range(len(waiting) + 1 if self.late else 1):
                for skipped in itertools.combinations(sorted(waiting), n):
                    arriving, left = [], []
                    for table in (later, newest):
                        skip = pa.array([w in skipped for w in table["worker"].to_pylist()], pa.bool_())
                        arriving.append(table.filter(pc.invert(skip)))
                        left.append(wire.only(table.filter(skip), Message))
                    rows = pa.concat_tables([*arriving, *brought])
                    if not rows.num_rows:
                        continue
                    for rounds in self.rounds:
                        later_ = pa.concat_tables(left)
                        if later_.num_rows and rounds > 1:
                            continue  # a late message must arrive before the next round
                        yield Choice(number, as_bytes(rows), rounds, as_bytes(later_), state.read + read)

    def packed(self, at: int) -> pa.Table:
        name, kind, epoch, table = self.calls[at]
        if self.plan.source(name).epochs == "clock":
            return pack(self.plan, name, table, 0, at)
        return pack_input(self.plan, name, [(at, kind, epoch, table)])

    # -- rounds ----------------------------------------------------------------------------------------------

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.done:
            self.done[key] = make()
        return self.done[key]

    def stepped(
        self, states: Any, batch: int, rows: pa.Table, header: Any
    ) -> tuple[pa.Table, tuple[Any, ...]]:
        """A round of the workers with rows; each is a pure function, so it is computed once."""
        states = list(states)

        def run(worker: int, own: pa.Table) -> pa.Table:
            key = "step", states[worker], batch, worker, as_bytes(own), header.encode()

            def make() -> Any:
                args = self.plan, states[worker], batch, worker
                made, again = (step(*args, r, header, self.budget) for r in (own, own[::-1]))
                hold("a round does not depend on the order of its rows", holds=made == again)
                return made

            states[worker], out = self.once(key, make)
            return out

        return run_workers(rows, run), tuple(states)

    def first_round(self, commit: After, choice: Choice) -> After:
        def make() -> After:
            coordinator, result = commit.decoded(self.plan)
            before = self.frontiers(coordinator)
            written, states = self.stepped(commit.states, choice.number, as_rows(choice.rows), result.header)
            result = coordinator.apply_round(choice.number, written)
            return self.checked(commit, choice, coordinator, result, states, before=before)

        return self.once(("first", commit, choice), make)

    def in_a_stay(self, commit: After, choice: Choice) -> After:
        """All rounds of a batch in the driver, from its input on."""

        def make() -> After:
            coordinator, result = commit.decoded(self.plan)
            before = self.frontiers(coordinator)
            start = RoundResult.of_input(result.header, as_rows(choice.rows))
            bound = RoundLimits(rounds=choice.rounds)
            states, result = self.ran(choice, coordinator, start, commit.states, bound=bound)
            return self.checked(commit, choice, coordinator, result, states, before=before)

        return self.once(("in a stay", commit, choice), make)

    def ran(
        self,
        choice: Choice,
        coordinator: Coordinator,
        result: RoundResult,
        states: Any,
        *,
        bound: RoundLimits,
    ) -> tuple[list[Any], RoundResult]:
        """The states and the result after the rounds of one process."""
        by_worker = {i: each for i, each in enumerate(states) if each is not None}
        result, ran = run_local_rounds(
            coordinator, result, by_worker, bound, batch=choice.number, budget=lambda: self.budget
        )
        for index, worker in ran.items():
            by_worker[index] = worker.checkpoint(f"{index}-{choice.number}")
        return [by_worker.get(i) for i in range(self.workers)], result

    def rounds_of(self, state: State, now: After, choice: Choice) -> Iterator[tuple[str, State]]:
        """One more round, or all of them, in one process; or parallel processes; or there is no more."""
        bound = RoundLimits(rounds=choice.rounds)
        _, result = now.decoded(self.plan)
        if not bound.allows(result):
            yield "last round", replace(state, closing=True)
            return
        for rounds in {result.stats["rounds"] + 1, choice.rounds}:
            after = self.local(state.commit, now, choice, RoundLimits(rounds=rounds))
            yield "rounds", replace(state, now=after)
        yield "stage", replace(state, processes=tuple(self.shared(now, n) for n in range(self.processes)))

    def local(self, commit: After, now: After, choice: Choice, bound: RoundLimits) -> After:
        def make() -> After:
            coordinator, result = now.decoded(self.plan)
            before = self.frontiers(coordinator)
            states, result = self.ran(choice, coordinator, result, now.states, bound=bound)
            return self.checked(commit, choice, coordinator, result, states, before=before)

        return self.once(("local", now, choice, bound), make)

    def parallel(self, state: State, now: After, choice: Choice) -> Iterator[tuple[str, State]]:
        """A process steps, or receives; or the stage is lost; or all have ended, and the run is adopted."""
        bound, ended, mail = RoundLimits(rounds=choice.rounds), 0, dict(state.mail)
        for rank, process in enumerate(state.processes):
            _, result = process.after.decoded(self.plan)
            if process.written is None and not bound.allows(result):
                ended += 1
            elif process.written is None:
                written, states, parts = self.sent(process.after, choice, rank)
                sent = {(rank, to): (*mail.get((rank, to), ()), part) for to, part in enumerate(parts)}
                then = Process(replace(process.after, states=states), written)
                yield "step", self.moved(state, rank, then, mail | sent)
            elif all(mail.get((other, rank)) for other in range(self.processes)):
                box = [mail[other, rank][0] for other in range(self.processes)]
                rest = {(other, rank): mail[other, rank][1:] for other in range(self.processes)}
                after = self.received(process, choice, rank, box)
                yield "receive", self.moved(state, rank, Process(after), mail | rest)
        if ended == self.processes:
            adopted = self.adopted(state.commit, state.processes, choice)
            yield "adopted", replace(state, now=adopted, processes=(), mail=())
        elif self.crashes:
            yield "stage lost", replace(state, processes=(), mail=())

    def shared(self, now: After, rank: int) -> Process:
        """A process at the start of parallel rounds."""
        coordinator, result = now.decoded(self.plan)
        share = Share(rank, self.processes)
        coordinator.host(share.hosts)
        result = replace(result, rows=share.own(result.rows), outputs=share.own(result.outputs))
        return Process(After.of(coordinator, result, now.states))

    def moved(self, state: State, rank: int, process: Process, mail: Any) -> State:
        processes = list(state.processes)
        processes[rank] = process
        left = tuple(sorted((pair, tables) for pair, tables in mail.items() if tables))
        return replace(state, processes=tuple(processes), mail=left)

    def sent(self, after: After, choice: Choice, rank: int) -> Any:
        """What a process writes in a round, its states then, and what it sends to each process."""

        def make() -> Any:
            _, result = after.decoded(self.plan)
            parts: list[pa.Table] = []
            share = Share(rank, self.processes, lambda tables, _: parts.extend(tables) or tables)
            written, states = self.stepped(after.states, choice.number, result.rows, result.header)
            share.exchange(written)
            return as_bytes(written), states, [as_bytes(part) for part in parts]

        return self.once(("sent", after, choice, rank), make)

    def received(self, process: Process, choice: Choice, rank: int, box: list[bytes]) -> After:
        def make() -> After:
            coordinator, result = process.after.decoded(self.plan)
            share = Share(rank, self.processes, lambda *_: [as_rows(part) for part in box])
            assert process.written is not None
            rows = share.exchange(as_rows(process.written))
            result = result.then(coordinator.apply_round(choice.number, rows))
            return After.of(coordinator, result, process.after.states)

        return self.once(("received", process, choice, rank, tuple(box)), make)

    def adopted(self, commit: After, processes: tuple[Process, ...], choice: Choice) -> After:
        """The driver goes on with the coordinator of the first, and the rows and states of each."""
        _, result = processes[0].after.decoded(self.plan)
        snapshots = [json.loads(process.after.coordinator) for process in processes]
        own = {"pending": None, "left": None, "elsewhere": None}
        hold("all processes know the same", holds=len({str(one | own) for one in snapshots}) == 1)
        coordinator = Coordinator.decode(self.plan, merged_snapshot(snapshots))
        rows, outputs, states = [], [], list(processes[0].after.states)
        for rank, process in enumerate(processes):
            _, kept = process.after.decoded(self.plan)
            rows.append(kept.rows)
            outputs.append(kept.outputs)
            for worker in range(rank, self.workers, self.processes):
                states[worker] = process.after.states[worker]
        result = replace(result, rows=pa.concat_tables(rows), outputs=pa.concat_tables(outputs))
        return self.checked(commit, choice, coordinator, result, states)

    # -- the end of a batch ----------------------------------------------------------------------------------

    def close(self, state: State, now: After, choice: Choice) -> tuple[str, State]:
        """The next delivery of the batch, or the commit."""
        _, result = now.decoded(self.plan)
        parts = list(state.parts)
        for row in result.outputs.to_pylist():
            parts += [(row["sink"], row["epoch"], as_bytes(from_bytes(pa.py_buffer(row["payload"]))))]
        for sink, epoch in result.released:
            of = [part for part in parts if part[:2] == (sink, epoch)]
            parts = [part for part in parts if part not in of]
            rows = pa.concat_tables([as_rows(part) for *_, part in of]) if of else EMPTY
            item = sink, epoch, as_bytes(rows)
            before = [each for each in state.delivered if each[:2] == item[:2]]
            hold("what is delivered again is the same", holds=before in ([], [item]))
            if not before:
                return "deliver", replace(state, delivered=tuple(sorted([*state.delivered, item])))
        gone = [part for part in parts if any(part[:2] == each[:2] for each in state.delivered)]
        hold("no record comes after the release of its epoch", holds=not gone)
        after = replace(now, outputs=as_bytes(result.outputs[:0]))
        return "commit", State(after, choice.later, choice.read, tuple(sorted(parts)), state.delivered)

    # -- laws ------------------------------------------------------------------------------------------------

    def frontiers(self, coordinator: Coordinator) -> list[Any]:
        return [coordinator.tracker.frontier(node.arrives) for node in self.plan.nodes]

    def checked(
        self,
        commit: After,
        choice: Choice,
        coordinator: Coordinator,
        result: RoundResult,
        states: Any,
        *,
        before: Any = None,
    ) -> After:
        """The state after a round, which breaks no law."""
        found = After.of(coordinator, result, states)
        key = commit, choice, result.stats["rounds"]
        hold(
            "a round has one result, wherever it runs",
            holds=self.confluent.setdefault(key, found) == found,
        )
        rows = [result.rows, as_rows(choice.later)]
        there = truth(SimpleNamespace(plan=self.plan, states=states, waiting=rows))
        counted = coordinator.tracker.active
        hold(f"counts are those of what there is: {counted}, {there}", holds=counted == there)
        frontiers = self.frontiers(coordinator)
        for node, frontier in zip(self.plan.nodes, frontiers, strict=True):
            paths = self.plan.reach.summaries(node.arrives)
            for location, time in there:
                reached = (path.results_in(time) for path in paths.get(location, ()))
                passed = [t for t in reached if t is not None and not frontier.less_equal(t)]
                hold(f"no frontier passes what is outstanding: {node.name}, {passed}", holds=not passed)
        for old, new in zip(before or frontiers, frontiers, strict=True):
            hold("a frontier only advances", holds=all(old.less_equal(time) for time in new))
        return found


EMPTY = pa.table({"epoch": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})


@dataclass
class Explored:
    states: int
    #: how often each thing happened
    happened: Counter[str]
    #: what the outputs had in the states in which nothing more may happen
    ends: list[dict[int, int]]


def explore(model: Model) -> Explored:
    """All reachable states, and the laws that no single state shows."""
    first = model.first()
    found, queue, happened, ends = {first: 0}, deque([first]), Counter[str](), list[State]()
    onward: dict[int, list[int]] = {}
    while queue:
        state = queue.popleft()
        onward[found[state]] = []
        for what, then in model.following(state):
            happened[what] += 1
            if then not in found:
                found[then] = len(found)
                queue.append(then)
            if what not in {"crash", "stage lost"}:
                onward[found[state]].append(found[then])
        if not onward[found[state]]:
            ends.append(state)
    acyclic(onward)
    for end in ends:
        coordinator, result = end.commit.decoded(model.plan)
        left = (
            coordinator.tracker.active,
            result.rows.num_rows,
            end.parts,
            end.choice,
            model.calls[end.read :],
        )
        hold(f"in the end nothing is left: {left}", holds=left == ({}, 0, (), None, []))
    return Explored(len(found), happened, [delivered(end) for end in ends])


def delivered(state: State) -> dict[int, int]:
    """The sums of the epochs; an epoch without records has none."""
    rows = [row for *_, part in state.delivered for row in as_rows(part).to_pylist()]
    hold("an epoch has one sum", holds=len(rows) == len({row["epoch"] for row in rows}))
    return {row["epoch"]: row["n"] for row in rows}


def acyclic(onward: dict[int, list[int]]) -> None:
    """Without crashes every run ends."""
    into = Counter(target for targets in onward.values() for target in set(targets))
    free = [state for state in onward if not into[state]]
    done = 0
    while free:
        done += 1
        for target in set(onward[free.pop()]):
            into[target] -= 1
            if not into[target]:
                free.append(target)
    hold("without crashes every run ends", holds=done == len(onward))


# -- the models ----------------------------------------------------------------------------------------------


def expected(of: list[Call], turns: int) -> dict[int, int]:
    """The sums of the epochs; a loop passes a record on in each of its turns."""
    sums = Counter[int]()
    for _, kind, epoch, table in of:
        if kind == "send":
            assert epoch is not None
            sums[epoch] += turns * sum(table["n"].to_pylist())
    return dict(sums)


EVENTS = {
    "batch", "first round", "in a stay", "rounds", "last round", "stage", "step", "receive", "adopted",
    "stage lost", "deliver", "commit", "crash",
}  # fmt: skip
#: models, and how often a record is counted in the end
SMALL: dict[str, tuple[Callable[[], Model], int]] = {
    "a loop": (lambda: Model(loop, calls("x")), 2),
    "two inputs": (lambda: Model(two, both(), reads=4, rounds=(100,)), 1),
}
LARGER: dict[str, tuple[Callable[[], Model], int]] = {
    "a loop, an epoch in two parts": (lambda: Model(loop, calls("x", parts=2)), 2),
    "a loop, three epochs": (lambda: Model(loop, calls("x", 3)), 2),
    "a loop, four turns": (lambda: Model(partial(loop, 3), calls("x"), rounds=(1, 2, 3, 4, 5, 100)), 4),
    "a loop, one call in each round": (lambda: Model(loop, calls("x"), budget=Budget(steps=1)), 2),
    "a loop, three workers in two processes": (lambda: Model(loop, calls("x", 3), workers=3), 2),
    "a loop, three processes": (lambda: Model(loop, calls("x"), workers=3, processes=3), 2),
    "two inputs, three epochs": (lambda: Model(two, both(3)), 1),
}


def check(make: Callable[[], Model], turns: int) -> str:
    model, began = make(), clock.perf_counter()
    explored = explore(model)
    assert set(explored.happened) == EVENTS, "all that may happen did"
    assert explored.ends
    for end in explored.ends:
        assert end == expected(model.calls, turns)
    seconds = clock.perf_counter() - began
    return f"{explored.states} states, {sum(explored.happened.values())} steps, {seconds:.0f} s"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_no_schedule_and_no_crash_breaks_a_law(name: str) -> None:
    check(*SMALL[name])


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGER)
def test_none_does_in_larger_models(name: str) -> None:
    check(*LARGER[name])


@pytest.mark.campaign
def test_epochs_by_the_clock_lose_nothing() -> None:
    sends = [call for call in calls("x", 3) if call[1] == "send"]
    explored = explore(Model(partial(loop, epochs="clock"), sends))

    assert {sum(end.values()) for end in explored.ends} == {44}
    assert {len(end) for end in explored.ends} == {1, 2}, "both in one epoch, or each in one of its own"


# -- the model has teeth -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "model"),
    [
        ("no_arrivals", Model(loop, calls("x"), crashes=False)),
        ("no_open_inputs", Model(loop, calls("x", parts=2), crashes=False)),
        ("no_data_of_this_batch", Model(two, both(), reads=4, crashes=False)),
    ],
)
def test_a_wrong_rule_of_notifications_is_caught(
    rule: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "lower_bounds", getattr(random_flows, rule))
    with pytest.raises(ts.TimelyError, match="no record comes after its notification"):
        explore(model)


def without_others(self: Share, rows: pa.Table) -> pa.Table:
    return pa.concat_tables([self.own(part) for part in self.swap([rows] * self.processes, self.ranks)])


def without_messages(self: Share, rows: pa.Table) -> pa.Table:
    return wire.without(pa.concat_tables(self.swap([rows] * self.processes, self.ranks)), Message)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [without_others, without_messages])
def test_a_wrong_exchange_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Share, "exchange", wrong)
    with pytest.raises(Broken):
        explore(Model(loop, calls("x"), rounds=(100,), late=False))


@pytest.mark.parametrize("part", ["pending", "tracker"])
def test_a_coordinator_that_comes_back_without_a_part_is_caught(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, new = Coordinator.decode, Coordinator(loop().compile(2)).encode()
    monkeypatch.setattr(
        Coordinator, "decode", lambda plan, snapshot: decode(plan, snapshot | {part: new[part]})
    )
    with pytest.raises(Broken):
        explore(Model(loop, calls("x"), crashes=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Explore the larger models.")
    parser.add_argument("part", nargs="?", default="", help="part of the name of a model; by default all")
    wanted = parser.parse_args().part
    for name, (make, turns) in (SMALL | LARGER).items():
        if wanted in name:
            print(f"{name}: {check(make, turns)}", flush=True)
