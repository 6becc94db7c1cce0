"""Three nested loops of vertices that declare their path summaries: the same, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.random_flows import no_arrivals, no_data_of_this_batch
from timely_spark.errors import VertexError
from timely_spark.testing import Simulation
from timely_spark.times import PRODUCT
from timely_spark.worker import notify

LEVELS = 3
#: a record, and how often it is to go round in each loop, counted anew whenever it enters the loop
SCHEMA = "n long, turns1 long, turns2 long, turns3 long"
COLUMNS = [part.split()[0] for part in SCHEMA.split(", ")]
#: number, (turns of each loop)
Record = tuple[int, ...]


@dataclass(frozen=True)
class Path:
    """What is declared of an input and an output."""

    epochs: int
    iterations: int
    #: whether records with an odd number go an iteration further than declared
    more: bool

    def summary(self, depth: int) -> Any:
        path: Any = PRODUCT.delay(depth, self.epochs)
        for _ in range(self.iterations):
            path = path.followed_by(PRODUCT.feedback(depth))
        return path

    def after(self, time: ts.Time, n: int) -> ts.Time:
        *outer, counter = time.counters
        further = self.iterations + (n % 2 if self.more else 0)
        return ts.Time(time.epoch + self.epochs, *outer, counter + further)


@dataclass(frozen=True)
class Loop:
    """A loop: a step of two inputs and two outputs, whose outputs go through the next loop inside."""

    #: by input and output; None: there is no path
    paths: tuple[tuple[Path | None, ...], ...]
    #: whether the step sends when its time is complete only
    waits: bool
    exchanged: bool
    #: whether what is fed back comes to the other input
    crossed: bool

    def output(self, edge: int, record: Record) -> int | None:
        """A record goes by one of the outputs that its input reaches."""
        reached = [output for output, path in enumerate(self.paths[edge]) if path is not None]
        return reached[sum(record) % len(reached)] if reached else None


class Step(ts.Vertex):
    """The step of a loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.held: dict[Any, list[tuple[int, Record]]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        records = [(edge, tuple(row.values())) for row in batch.to_pylist()]
        if self.loop.waits:
            self.held.setdefault(time, []).extend(records)
            self.notify_at(time)
        else:
            self.send(time, records)

    def on_notify(self, time: Any) -> None:
        self.send(time, self.held.pop(time, []))  # both inputs may have asked

    def send(self, time: Any, records: list[tuple[int, Record]]) -> None:
        for edge, record in records:
            if (output := self.loop.output(edge, record)) is not None:
                path = self.loop.paths[edge][output]
                assert path is not None
                self.send_by(output, path.after(time, record[0]), [record])


class Count(ts.Vertex):
    """How many records there are at each time, told when it is complete."""

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}
        self.told: list[Any] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        assert not any(time.less_equal(told) for told in self.told), f"{time} comes after {self.told}"
        self.counts[time] = self.counts.get(time, 0) + batch.num_rows
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.told.append(time)
        self.send_by(0, time, [(str(time), self.counts.pop(time))])


def nested(loops: list[Loop], *, wrong: int = 0) -> ts.Dataflow:
    """The flow; the step of loop `wrong` declares an epoch more than it takes."""
    flow = ts.Dataflow("nested")
    pair = [
        flow.input(name, "n long", epochs="manual").select(
            n="n", **{column: pc.scalar(0) for column in COLUMNS[1:]}
        )
        for name in "ab"
    ]

    def inside(pair: list[Any], depth: int) -> list[Any]:
        """The streams after loop `depth`, which is around the next ones."""
        if depth > LEVELS:
            return pair
        loop, column = loops[depth - 1], f"turns{depth}"
        turns = pc.bit_wise_and(pc.shift_right(pc.field("n"), depth), 1)
        scope = pair[0].scope.inner(name=f"loop{depth}")
        fresh = [scope.enter(one).select(**{c: turns if c == column else c for c in COLUMNS}) for one in pair]
        again = [scope.variable(SCHEMA) for _ in pair]
        summaries = {
            (i, o): None
            if path is None
            else path.summary(depth).followed_by(PRODUCT.delay(depth, int(depth == wrong)))
            for i, paths in enumerate(loop.paths)
            for o, path in enumerate(paths)
        }
        both = [one.concat(back) for one, back in zip(fresh, again, strict=True)]
        by = ["n", "n"] if loop.exchanged else None
        sent = flow.vertex(Step(loop), both, [SCHEMA] * 2, by=by, summaries=summaries, name="step")
        for i, one in enumerate(sent):
            counted = flow.vertex(
                Count(), one, "at string, records long", by=pc.bit_wise_and(pc.field("n"), 0)
            )
            for _ in range(depth):
                counted = counted.leave()
            counted.capture(f"count{depth}{i}")
        ends = inside(list(sent), depth + 1)
        left = pc.subtract(pc.field(column), 1)
        for variable, one in zip(again[::-1] if loop.crossed else again, ends, strict=True):
            variable.feed(
                one.where(pc.field(column) > 0).select(**{c: left if c == column else c for c in COLUMNS})
            )
        return [one.where(pc.field(column) == 0).leave() for one in ends]

    for name, one in zip("xy", inside(pair, 1), strict=True):
        one.select("n").capture(name)
    return flow


# -- the same, record by record ------------------------------------------------------------------------------


def walk(loops: list[Loop], time: ts.Time, edge: int, n: int) -> Iterator[tuple[str, ts.Time]]:
    """The outputs (of a step, or of the flow) by which a record goes, each with its time there."""
    record, depth = [n, 0, 0, 0], 0
    while True:
        if depth < LEVELS:  # into the next loop
            depth += 1
            time, record[depth] = ts.Time(*time, 0), n >> depth & 1
        else:  # behind the innermost one: round, or out, as often as there are no turns left
            while depth and not record[depth]:
                depth, time = depth - 1, ts.Time(*time[:-1])
            if not depth:
                yield "xy"[edge], time
                return
            record[depth] -= 1
            time, edge = ts.Time(*time[:-1], time[-1] + 1), edge ^ loops[depth - 1].crossed
        output = loops[depth - 1].output(edge, tuple(record))
        if output is None:
            return
        path = loops[depth - 1].paths[edge][output]
        assert path is not None
        edge, time = output, path.after(time, n)
        yield f"count{depth}{edge}", time


def delays(loops: list[Loop]) -> dict[tuple[int, int], int]:
    """By (input, output) of the flow, the fewest epochs of a path."""

    @cache
    def through(depth: int) -> dict[tuple[int, int], int]:
        """Of a loop, with those inside: by (input, output), over any number of iterations."""
        if depth > LEVELS:
            return {(0, 0): 0, (1, 1): 0}
        loop, once = loops[depth - 1], dict[tuple[int, int], int]()
        for (o, end), more in through(depth + 1).items():
            for i in range(2):
                if (path := loop.paths[i][o]) is not None:
                    once[i, end] = min(once.get((i, end), 99), path.epochs + more)
        found = dict(once)
        for _ in range(2):  # two inputs: a shortest path goes round twice at most
            for (i, end), epochs in list(found.items()):
                for (again, last), more in once.items():
                    if again == end ^ loop.crossed:
                        found[i, last] = min(found.get((i, last), 99), epochs + more)
        return found

    return through(1)


PATHS = st.none() | st.builds(Path, st.integers(0, 2), st.integers(0, 1), st.booleans())
LOOPS = st.lists(
    st.builds(Loop, st.tuples(st.tuples(PATHS, PATHS), st.tuples(PATHS, PATHS)), *[st.booleans()] * 3),
    min_size=LEVELS,
    max_size=LEVELS,
)


def rich(depth: int) -> Loop:
    """A loop in which paths are missing, delay, and increase the counter."""
    some, later = Path(0, 1, more=True), Path(depth % 2, 0, more=False)
    paths = ((some, later), (None if depth == 2 else some, some))
    return Loop(paths, waits=depth == 2, exchanged=depth != 3, crossed=depth != 2)


#: each loop of another kind, three workers, crashes
EXAMPLE: dict[str, Any] = {
    "loops": [rich(depth) for depth in range(1, LEVELS + 1)],
    "drawn": [(epoch, source, n) for epoch in range(2) for source in range(2) for n in (0, 7, 10, 15)],
    "ends": (2, 3),
    "seed": 11,
}


def check(loops: list[Loop], drawn: list[tuple[int, int, int]], ends: tuple[int, int], seed: int) -> None:
    sim = Simulation(nested(loops), workers=1 + seed % 3, seed=seed, crashes=0.2 * (seed % 2))
    sent = sorted(one for one in drawn if one[0] < ends[one[1]])
    for epoch, source, n in sent:
        sim.advance_to("ab"[source], epoch)
        sim.send("ab"[source], [n])
    for source, end in enumerate(ends):
        sim.advance_to("ab"[source], end)
    sim.run(limit=2000)
    if not sim.coordinator.tracker.active:  # no notification waits for an input
        for output, name in enumerate("xy"):
            of = [ends[i] + epochs for (i, o), epochs in delays(loops).items() if o == output]
            assert sim.result.frontier[name] == ([[min(of)]] if of else [])
    for name in "ab":
        sim.close(name)
    sim.run(limit=2000)

    assert sim.result.complete
    wanted = Counter(
        (where, time, n)
        for epoch, source, n in sent
        for where, time in walk(loops, ts.Time(epoch), source, n)
    )
    for name in "xy":
        found = [(epoch, n) for epoch, rows in sim.captured[name].rows().items() for (n,) in rows]
        assert Counter(found) == Counter((at.epoch, n) for where, at, n in wanted.elements() if where == name)
    for name in (f"count{depth}{i}" for depth in range(1, LEVELS + 1) for i in range(2)):
        counts = Counter[tuple[int, str]]()
        for epoch, rows in sim.captured[name].rows().items():
            for at, records in rows:  # of each worker that has some
                counts[epoch, at] += records
        assert counts == Counter((at.epoch, str(at)) for where, at, _ in wanted.elements() if where == name)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@example(**EXAMPLE)
@given(
    LOOPS,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 15)), max_size=6),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(0, 99),
)
def test_every_record_takes_its_path_and_every_time_is_complete_once(
    loops: list[Loop], drawn: list[tuple[int, int, int]], ends: tuple[int, int], seed: int
) -> None:
    check(loops, drawn, ends, seed)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", range(1, LEVELS + 1))
def test_a_step_that_sends_earlier_than_it_declares_is_an_error(wrong: int) -> None:
    path = Path(1, 1, more=False)
    loops = [Loop(((path, path), (path, path)), waits=wrong == 2, exchanged=True, crossed=True)] * LEVELS
    sim = Simulation(nested(loops, wrong=wrong), workers=2)
    sim.send("a", [15])
    for name in "ab":
        sim.close(name)
    with pytest.raises(VertexError, match=rf"loop{wrong}\.step.*as declared"):
        sim.run()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [no_arrivals, no_data_of_this_batch])
def test_a_wrong_rule_of_notifications_is_caught(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "lower_bounds", rule)
    with pytest.raises(VertexError, match="comes after"):
        check(**EXAMPLE)
