"""Kinds of time of one's own: every operator on streams says what its definition says, or is not built."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.definitions import FEW, ITERATIONS, OPERATORS, Items, looped, shift, with_time
from tests.support.orders import KINDS, Bitemporal, Moment, Moments
from tests.support.turns import in_turn
from timely_spark.compiler.summary import PlanSummary, plan_summary
from timely_spark.errors import GraphError, InvalidTime
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, CompactingTimes, broken_law, only_epochs
from timely_spark.worker import Worker

#: the library's own kinds beside them: the definitions below must hold for these as well
ALL = {**KINDS, "product": PRODUCT, "Naiad's": LEXICOGRAPHIC}


# -- the laws ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=max(50, settings().max_examples))
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=3, max_size=3))
def test_the_kinds_here_are_lawful(name: str, steps: list[tuple[int, int]]) -> None:
    kind = KINDS[name]
    a, b, c = (kind.epoch(epoch).later(by) for epoch, by in steps)

    assert a.less_equal(a)
    assert not (a.less_equal(b) and b.less_equal(a)) or a == b
    assert not (a.less_equal(b) and b.less_equal(c)) or a.less_equal(c)
    assert (a.less_equal(c) and b.less_equal(c)) == a.join(b).less_equal(c)
    assert not a.less_equal(b) or (a.epoch <= b.epoch and a.order_key() <= b.order_key())
    assert (a == b) == (a.order_key() == b.order_key())
    assert kind.decode(json.loads(json.dumps(a.encode()))) == a
    assert kind.epoch(a.epoch if name != "diagonal" else 0).less_equal(a)
    for path in (kind.identity(0), kind.delay(0, 2), kind.enter(0)):
        assert path.results_in(a).epoch >= a.epoch
        assert not a.less_equal(b) or path.results_in(a).less_equal(path.results_in(b))
    if isinstance(kind, CompactingTimes) and c.epoch >= b.epoch:
        assert kind.advance(a, b.epoch).less_equal(c) == a.less_equal(c)
        assert kind.advance(a, b.epoch).join(c) == a.join(c)


@pytest.mark.parametrize("name", ALL)
def test_a_lawful_kind_is_taken(name: str) -> None:
    assert broken_law(ALL[name]) is None
    assert only_epochs(ALL[name]) == (name not in KINDS)


class Broken(Moments):
    """Breaks a law, by name."""

    def __init__(self, **broken: Callable[..., Any]) -> None:
        super().__init__(Bitemporal)
        vars(self).update(broken)


class Keyed(Moment):
    def order_key(self) -> tuple[Any, ...]:
        return (*self.outer, *self.counters)


class Outer(Moment):
    def less_equal(self, other: Moment) -> bool:
        return self.epoch <= other.epoch

    def join(self, other: Moment) -> Moment:
        return max(self, other, key=lambda time: time.epoch)


class Beyond(Moment):
    def join(self, other: Moment) -> Moment:
        return Beyond(**vars(super().join(other).later(1)))


class Either(Moment):
    def join(self, other: Moment) -> Moment:
        return other if self.less_equal(other) else self


def times_of(kind: type[Moment]) -> Broken:
    return Broken(
        epoch=lambda n: kind(Bitemporal(n)),
        decode=lambda data: kind(**vars(KINDS["bitemporal"].decode(data))),
    )


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (times_of(Outer), "are each before the other, and must be equal"),
        (times_of(Beyond), "not their least upper bound"),
        (times_of(Either), "not their least upper bound"),
        (Broken(epoch=lambda n: Moment(Bitemporal(n + 1))), r"epoch\(0\).epoch is 1, and must be 0"),
        (Broken(epoch=lambda n: Moment(Bitemporal(n, 2 - n))), r"epoch\(0\) <= epoch\(1\) is False"),
        (
            Broken(epoch=lambda n: Keyed(Bitemporal(n))),
            r"order_key\(\) is \(0, 0\), and must be a tuple of 1",
        ),
        (Broken(decode=lambda _: Moment(Bitemporal(0))), "is encoded as .* which is not decoded to it"),
        (
            Broken(feedback=lambda depth, _=None: PRODUCT.identity(depth)),
            "an iteration must lead to|Error",
        ),
        (Broken(coarse=lambda time, _: replace(time, outer=Bitemporal(99))), "coarse.* is not before it"),
        (Broken(enter=lambda depth: 1 / 0), "ZeroDivisionError"),
        (Broken(delay=lambda *_: object()), "repr.* is another one in each process, and a restart"),
    ],
)
def test_a_law_that_is_broken_is_named_when_the_flow_is_made(kind: Any, law: str) -> None:
    with pytest.raises(InvalidTime, match=law) as caught:
        ts.Dataflow("unlawful", times=kind)

    assert "flow 'unlawful'" in str(caught.value)
    assert __file__ in str(caught.value)
    assert "Hint: correct the class: times.Times lists the laws" in str(caught.value)


# -- operators, and what they are defined to say -------------------------------------------------------------


class Spread(ts.Vertex):
    """Send each record on at a later time, told by its third column."""

    def on_recv(self, edge: int, time: Any, batch: Any) -> None:
        for by in sorted(set(batch["by"].to_pylist())):
            rows = batch.filter(pc.equal(batch["by"], by)).drop_columns(["by"])
            self.send_by(0, time.later(by) if hasattr(time, "later") else time, rows)


Program = list[tuple[str, str]]


def flow_of(times: Any, programs: list[Program]) -> ts.Dataflow:
    """A flow with the steps of each program, plain or in a loop; captures records, and records with times."""
    flow = ts.Dataflow("own", times=times)
    given = flow.input("x", "k long, v long, by long", epochs="manual")
    begin = flow.vertex(Spread(), given, "k long, v long")
    for i, program in enumerate(programs):
        stream = begin
        for place, name in program:
            build = OPERATORS[name][0]
            if place == "loop":
                stream = stream.loop(
                    lambda v, build=build: shift(build(v)), max_iterations=ITERATIONS, on_limit="return"
                )
            else:
                stream = build(stream.delay(epochs=1) if place == "delayed" else stream)
        stream.capture(f"out{i}")
        stream.unary(with_time, "k long, v long, at string").capture(f"timed{i}")
    return flow


def is_built(times: Any, program: Program) -> bool:
    try:
        flow_of(times, [program]).compile(1)
    except GraphError as refused:
        assert "Hint: " in str(refused)  # noqa: PT017 - a part of what is looked at
        return False
    return True


def defined(times: Any, program: Program, epochs: list[list[Any]]) -> Items:
    """What the steps are defined to say of the input."""
    items = Items()
    for epoch, rows in enumerate(epochs):
        for k, v, by in rows:
            time = times.epoch(epoch)
            items[time.later(by) if hasattr(time, "later") else time, (k, v)] += 1
    for place, name in program:
        answer = OPERATORS[name][1]
        if place == "loop":
            items = looped(answer, times)(items)
        elif place == "delayed":
            delay = times.delay(0, 1)
            items = answer(
                Items({(delay.results_in(time), record): n for (time, record), n in items.items()})
            )
        else:
            items = answer(items)
    return items


def agree(times: Any, programs: list[Program], epochs: Any, schedule: Any) -> None:
    built = [program for program in programs if is_built(times, program)]
    got = ts.testing.run(flow_of(times, built), {"x": epochs}, **schedule)
    for i, program in enumerate(built):
        items = defined(times, program, epochs)
        rows = got[f"timed{i}"].rows().values()
        timed = Counter((times.decode(json.loads(at)), (k, v)) for each in rows for k, v, at in each)
        by_epoch = Counter((epoch, row) for epoch, each in got[f"out{i}"].rows().items() for row in each)

        assert timed == items, program
        assert by_epoch == sum((Counter({(t.epoch, r): n}) for (t, r), n in items.items()), Counter()), (
            program
        )


ROWS = st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3))
EPOCHS = st.lists(st.lists(ROWS, max_size=5), min_size=1, max_size=3)
STEPS = st.tuples(st.sampled_from(["plain", "plain", "loop", "delayed"]), st.sampled_from(list(OPERATORS)))
SCHEDULES = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, 2, 3]),
        "seed": st.one_of(st.none(), st.integers(0, 10**6)),
        "together": st.booleans(),
    }
)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize(("name", "first"), in_turn(ALL, [0, 1]))
@FEW
@given(epochs=EPOCHS, schedule=SCHEDULES)
@example(
    epochs=[[(0, 1, 0), (0, 3, 3), (1, 2, 1)], [(0, 2, 1), (0, 0, 2)], [(0, 4, 0)]],
    schedule={"workers": 2, "seed": 1, "together": True},
)
def test_an_operator_gives_the_records_of_its_definition(
    name: str, first: int, epochs: Any, schedule: Any
) -> None:
    """Every second one in a loop, with which of them is the first."""
    programs = [[(("plain", "loop")[(first + n) % 2], each)] for n, each in enumerate(OPERATORS)]
    agree(ALL[name], programs, epochs, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=max(1, settings().max_examples // 10))
@given(
    programs=st.lists(st.lists(STEPS, min_size=2, max_size=2), min_size=2, max_size=2),
    epochs=EPOCHS,
    schedule=SCHEDULES,
)
def test_composed_operators_give_the_records_of_their_definitions(
    name: str, programs: Any, epochs: Any, schedule: Any
) -> None:
    agree(ALL[name], programs, epochs, schedule)


@pytest.mark.slow
def test_operators_at_times_of_two_coordinates() -> None:
    epochs = [[(0, 1, 0), (0, 3, 3), (1, 2, 1)], [(0, 2, 1), (0, 0, 2)], [(0, 4, 0)]]
    names = ["distinct", "min", "max", "sum", "count", "sum per time", "join", "join per time"]
    agree(ALL["bitemporal"], [[("plain", name)] for name in names], epochs, {"workers": 2, "seed": 1})


@pytest.mark.slow
def test_the_flows_of_these_tests_are_not_refused() -> None:
    refused = {
        (name, program)
        for name in ALL
        for program in OPERATORS
        if not is_built(ALL[name], [("plain", program)])
    }
    assert not refused


# -- what counts epochs is refused when it is built ----------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "build"),
    [
        ("expire", lambda s: s.expire(2)),
        ("distinct", lambda s: s.distinct(expire=2)),
        ("min", lambda s: s.min("v", keys="k", expire=2)),
        ("max", lambda s: s.max("v", keys="k", expire=2)),
        ("aggregate", lambda s: s.group_by("k").count(expire=2)),
        ("join", lambda s: s.join(s.select(k="k"), on="k", expire=2)),
        ("collection", lambda s: s.collection()),
    ],
)
def test_what_counts_epochs_is_refused(operator: str, build: Callable[[ts.Stream], Any]) -> None:
    stream = ts.Dataflow("own", times=KINDS["bitemporal"]).input("x", "k long, v long")

    with pytest.raises(GraphError, match=rf"(?s)^{operator}: .*of.* own kind.*test_own.*Hint: "):
        build(stream)


def test_an_output_that_retracts_across_epochs_is_refused() -> None:
    flow = ts.Dataflow("own", times=KINDS["bitemporal"])
    flow.input("x", "k long, v long").min("v", keys="k").to_delta("nowhere", diff="diff", name="out")

    with pytest.raises(
        GraphError, match=r"(?s)output 'out' \(.*test_own.*times of its own kind.*Hint: leave diff"
    ):
        flow.compile(1)


# -- what is kept --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bitemporal", "compact"])
def test_with_advance_state_does_not_grow_with_the_epochs(name: str) -> None:
    flow = ts.Dataflow("own", times=KINDS[name])
    flow.input("x", "k long, v long").group_by("k").aggregate(v=("sum", "v")).capture("out")
    simulation = ts.testing.Simulation(flow)
    for epoch in range(40):
        simulation.send("x", [(0, epoch)])
        simulation.run()

    assert simulation.captured["out"].rows()[39] == [(0, sum(range(40)))]
    worker = Worker(simulation.plan, simulation.states[0], 0)
    state: Any = worker.vertex(simulation.plan.by_name["aggregate"])
    rows = sum(table.num_rows for table in state.state.batches())
    assert (rows <= 8) == (name == "compact")


def test_a_snapshot_of_such_times_can_be_looked_at_without_their_code() -> None:
    flow = ts.Dataflow("own", times=KINDS["texts"])
    flow.input("x", "k long", epochs="manual").unary_notify(
        lambda _, batch: batch, "k long", name="waits"
    ).capture("out")
    simulation = ts.testing.Simulation(flow)
    simulation.send("x", [1])
    simulation.run()
    told = PlanSummary(plan_summary(simulation.plan))

    held = told.open_pointstamps(simulation.coordinator.encode(), epoch=0)
    assert [(one.time, one.step, one.notifications) for one in held] == [([[0, ""]], "waits", 1)]
    assert told.frontier(simulation.coordinator.encode()) == {}
