"""Scopes with inner times: the order of work, the frontier outside, collections, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from tests.test_named import COLLECTIONS, STREAMS
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, InvalidTime, SchemaError, VertexError
from timely_spark.show.explain import explain
from timely_spark.times import Descending, RefinedTime


class Calls(ts.Vertex):
    """Sends a line for each of its calls, in their order."""

    def __init__(self) -> None:
        self.number = 0

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.notify_at(time)
        self.call(time, "message", batch.num_rows)

    def on_notify(self, time: Any) -> None:
        self.call(time, "notification", 0)

    def call(self, time: Any, kind: str, rows: int) -> None:
        self.number += 1
        self.send_by(
            0, time, pa.table({"n": [self.number], "at": [str(time)], "kind": [kind], "rows": [rows]})
        )


CALLS = "n long, at string, kind string, rows long"


def urgent() -> ts.Dataflow:
    flow = ts.Dataflow("urgent")
    jobs = flow.input("jobs", "urgency long, job string", epochs="manual")
    by_urgency = flow.scope.inner(name="by_urgency", time=Descending)
    flow.vertex(Calls(), by_urgency.enter(jobs, at="urgency"), CALLS, name="work").leave().capture("calls")
    return flow


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_is_urgent_is_worked_on_first_and_a_notification_comes_after_its_messages(
    seed: int | None,
) -> None:
    """The user's order of delivery, under crashes and repeated batches, too."""
    jobs = [[(1, "a"), (9, "b"), (5, "c"), (9, "d")], [(7, "e"), (5, "f")]]

    calls = ts.testing.run(urgent(), {"jobs": jobs}, seed=seed, crashes=0.3)["calls"].rows()

    at = [[line[1:] for line in calls[epoch]] for epoch in (0, 1)]
    assert at == [
        [
            (f"RefinedTime({epoch}, Descending({urgency}))", kind, rows)
            for urgency, n in urgencies
            for kind, rows in (("message", n), ("notification", 0))
        ]
        for epoch, urgencies in enumerate([[(9, 2), (5, 1), (1, 1)], [(7, 1), (5, 1)]])
    ]


class Stepped(ts.Vertex):
    """Work that leads to less urgent work: what arrives is sent on, 2 less urgent."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        later = RefinedTime(*time[:-1], Descending(time[-1].number - 2))
        self.send_by(0, later, batch)


def test_work_may_lead_to_later_inner_times_and_never_to_earlier_ones() -> None:
    def flow_of(vertex: ts.Vertex) -> ts.Dataflow:
        flow = ts.Dataflow("steps")
        scope = flow.scope.inner(name="s", time=Descending)
        stream = scope.enter(flow.input("x", "n long"), at="n")
        stepped = flow.vertex(vertex, stream, "n long")
        stepped.unary_notify(
            lambda time, batch: [(n, time.counters[0].number) for n in batch["n"].to_pylist()],
            "n long, at long",
        ).leave().capture("out")
        return flow

    assert ts.testing.run(flow_of(Stepped()), {"x": [[3, 9]]}, workers=2)["out"].rows() == {
        0: [(3, 1), (9, 7)]
    }

    class Backwards(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(0, RefinedTime(*time[:-1], Descending(time[-1].number + 1)), batch)

    with pytest.raises(VertexError, match="Descending"):
        ts.testing.run(flow_of(Backwards()), {"x": [[3]]})


def test_the_epoch_outside_is_complete_when_all_inner_times_are() -> None:
    flow = ts.Dataflow("frontier")
    scope = flow.scope.inner(name="s", time=int)
    waiting = scope.enter(flow.input("x", "n long", epochs="manual"), at="n").exchange("n")
    waiting.unary_notify(lambda _, batch: batch, "n long", by="n").leave().probe("outside")
    simulation = ts.testing.Simulation(flow, workers=3)
    simulation.send("x", [5, 2, 8], epoch=0)
    simulation.run()
    assert simulation.result.frontier["outside"] == [[0]]
    simulation.advance_to("x", 1)
    simulation.run()
    assert simulation.result.frontier["outside"] == [[1]]


def test_a_probe_inside_shows_inner_times() -> None:
    flow = ts.Dataflow("inside")
    x = flow.input("x", "n long", epochs="manual")
    flow.scope.inner(name="s", time=Descending).enter(x, at="n").probe("inside")
    simulation = ts.testing.Simulation(flow)
    simulation.send("x", [5])
    simulation.run()
    assert simulation.result.frontier["s.inside"] == [[0, {"Descending": [2**63 - 1]}]]
    assert simulation.plan.times.decode(simulation.result.frontier["s.inside"][0]) == RefinedTime(
        0, Descending()
    )


def test_several_kinds_of_time_in_one_flow() -> None:
    """A loop inside a scope inside a loop, and a scope in a scope, each with its own times."""
    flow = ts.Dataflow("mixed")
    x = flow.input("x", "n long")
    seen = "n long, at string"

    def body(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        inside = n.enter(n.scope.inner(name="down", time=Descending), at="n")
        halved = inside.loop(
            lambda m: m.where(pc.field("n") > 1).select(n=pc.shift_right(pc.field("n"), 1)), name="halves"
        )
        times = halved.unary(lambda time, batch: [(n, str(time)) for n in batch["n"].to_pylist()], seen)
        return n.where(pc.field("n") < 0), times.leave()

    x.loop(body, name="outer").capture("loops")
    outer = flow.scope.inner(name="a", time=int)
    inner = outer.inner(name="b", time=Descending)
    both = x.enter(outer, at=pc.bit_wise_and(pc.field("n"), 1)).enter(inner, at="n")
    both.unary(
        lambda time, batch: [(n, str(time)) for n in batch["n"].to_pylist()], seen
    ).leave().leave().capture("two")

    for workers in (1, 3):
        got = ts.testing.run(flow, {"x": [[4, 5]]}, workers=workers)
        assert got["loops"].rows() == {
            0: [
                *[(1, f"RefinedTime(0, 0, Descending({n}))") for n in (4, 5)],
                *[(2, f"RefinedTime(0, 0, Descending({n}))") for n in (4, 5)],
            ]
        }
        assert got["two"].rows() == {
            0: [(4, "RefinedTime(0, 0, Descending(4))"), (5, "RefinedTime(0, 1, Descending(5))")]
        }


def test_an_output_that_retracts_follows_what_leaves_a_scope() -> None:
    """What is best at each inner time leaves; over epochs the output has one best record per key."""
    flow = ts.Dataflow("changes")
    x = flow.input("x", "k long, v long, at long", epochs="manual")
    scope = flow.scope.inner(name="s", time=Descending)
    least = scope.enter(x, at="at").select("k", "v").min("v", keys="k").leave()
    least.to_delta("nowhere", diff="diff", name="out")
    least.capture("all")
    epochs = [[(0, 5, 1), (0, 7, 2), (1, 3, 1)], [(0, 6, 9)], [(0, 2, 5), (1, 4, 0)]]

    got = ts.testing.run(flow, {"x": epochs}, workers=2, seed=3)

    rows = {name: {epoch: lines for epoch, lines in got[name].rows().items() if lines} for name in got}
    assert rows["all"] == {0: [(0, 5), (0, 7), (1, 3)], 1: [(0, 6)], 2: [(0, 2)]}
    assert rows["out"] == {0: [(0, 5, 1), (1, 3, 1)], 2: [(0, 2, 1), (0, 5, -1)]}


# -- every operator ------------------------------------------------------------------------------------------

REFUSED_INSIDE = {
    "asof_join expire",
    "capture",
    "capture_to",
    "expire",
    "foreach_epoch",
    "stateful_map",
    "stateful_map_batches",
    "subscribe",
    "to_delta",
    "to_files",
    "to_kafka",
    "to_memory",
    "upserts",
    "window",
    "window of sessions",
}
"""What counts epochs, makes collections, or is the end of a flow."""


def results(build: Callable[..., Any], inner: Any, *, collections: bool = False) -> Any:
    """What an operator says per epoch, outside of scopes, or in one where all enters at one inner time."""
    flow = ts.Dataflow("each")
    streams = [flow.input(name, "k long, v long", epochs="manual") for name in ("x", "y")]
    if inner is not None:
        scope = flow.scope.inner(name="s", time=inner)
        streams = [scope.enter(stream, at=pc.scalar(3)) for stream in streams]
    made = streams
    if collections:
        x, y = (stream.collection() for stream in streams)
        made = [x, y.select("k", w="v")]
    out = build(*made)
    out = out.changes() if isinstance(out, Collection) else out
    (out if inner is None else out.leave()).capture("result")
    epochs = {"x": [[(0, 1), (0, 1), (1, 2)], [(0, 3), (2, 5)]], "y": [[(0, 4)], [(1, 2), (2, 5)]]}
    return ts.testing.run(flow, epochs, workers=2)["result"].rows()


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize(("name", "inner"), in_turn(STREAMS, [int, Descending]))
def test_where_all_is_at_one_inner_time_an_operator_does_in_a_scope_what_it_does_outside(
    name: str, inner: Any
) -> None:
    build = STREAMS[name]
    if name in REFUSED_INSIDE or (name == "collection" and inner is not int):
        with pytest.raises(GraphError, match=r"Hint: "):
            results(build, inner)
    else:
        assert results(build, inner) == results(build, None)


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("name", COLLECTIONS)
def test_so_does_one_on_collections(name: str) -> None:
    build = COLLECTIONS[name]

    try:
        inside = results(build, int, collections=True)
    except GraphError as refused:
        assert "inside scope" in str(refused)  # noqa: PT017 - outputs
    else:
        assert inside == results(build, None, collections=True)


# -- collections ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_collection_in_a_scope_is_right_at_each_pair_of_times(workers: int) -> None:
    """Two event times: what was known when (the epoch), of when (the inner time)."""
    flow = ts.Dataflow("bitemporal")
    x = flow.input("x", "k long, v long, day long, diff long", epochs="manual").collection(diff="diff")
    scope = flow.scope.inner(name="valid", time=int)
    facts = x.enter_at(scope, "day").select("k", "v")

    def timed(collection: Any, name: str) -> None:
        changes = collection.changes()
        names = changes.schema.names
        lines = lambda time, batch: [  # noqa: E731
            (*time, *map(int, row.values())) for row in batch.select(names).to_pylist()
        ]
        changes.unary(lines, ", ".join(f"{c} long" for c in ["e", "day", *names])).leave().capture(name)

    timed(facts.count(keys="k"), "counts")
    timed(facts.join(facts.select(k="v", w="k"), on="k"), "pairs")
    near = facts.select("k").iterate(
        lambda n: n.join(facts, on="k").select(k="v").concat(facts.select("k")).distinct()
    )
    timed(near, "near")
    epochs = [
        [(0, 1, 3, 1), (1, 2, 1, 1), (0, 2, 2, 1)],
        [(0, 1, 3, -1), (2, 3, 0, 1)],
        [(1, 2, 1, -1), (1, 0, 2, 1)],
    ]

    got = ts.testing.run(flow, {"x": epochs}, workers=workers, seed=workers)

    for e in range(3):
        for day in range(5):
            known: Counter[tuple[int, int]] = Counter()
            for at, rows in enumerate(epochs):
                for k, v, of, n in rows:
                    known[k, v] += n * (at <= e and of <= day)
            for name, expected in batch(+known).items():
                assert accumulated(got[name].rows(), e, day) == expected, (name, e, day)


def batch(facts: Counter[tuple[int, int]]) -> dict[str, Counter[Any]]:
    """What a batch program says of the facts."""
    sizes: Counter[int] = Counter()
    for (k, _), n in facts.items():
        sizes[k] += n
    ways = {((k, v), (w, key)) for k, v in facts for w, key in facts if k == key}
    reached = {k for k, _ in facts}
    while more := {v for k, v in facts if k in reached} - reached:
        reached |= more
    return {
        "counts": Counter(dict.fromkeys(sizes.items(), 1)),
        "pairs": Counter({(*one, other[0]): facts[one] * facts[other] for one, other in ways}),
        "near": Counter((k,) for k in reached),
    }


def accumulated(changes: dict[int, list[Any]], epoch: int, day: int) -> Counter[Any]:
    """The records at a pair of times, from lines of (epoch, day, *record, diff)."""
    found: Counter[Any] = Counter()
    for at, of, *record, n in (line for lines in changes.values() for line in lines):
        found[tuple(record)] += n * (at <= epoch and of <= day)
    assert min(found.values(), default=0) >= 0
    return +found


# -- what is refused -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Least:
    """Breaks the law of the least value, for negative numbers."""

    n: int

    @classmethod
    def least(cls) -> Least:
        return cls(0)

    @classmethod
    def decode(cls, data: Any) -> Least:
        return cls(*data)

    def encode(self) -> list[int]:
        return [self.n]

    def less_equal(self, other: Least) -> bool:
        return self.n <= other.n

    def join(self, other: Least) -> Least:
        return self if self.n >= other.n else other

    def order_key(self) -> int:
        return self.n


class Other(Least):
    """Of another class than its least value."""

    @classmethod
    def least(cls) -> Least:
        return Least(0)


class Twin(Least):
    """To be called as another one."""


def twice(x: ts.Stream) -> Any:
    Twin.__name__ = "Least"
    for i, kind in enumerate((Least, Twin)):
        x.enter(x.scope.inner(name=f"s{i}", time=kind), at="n").leave().capture(f"out{i}")
    return x.flow.compile(1)


REFUSED: dict[str, tuple[Callable[[ts.Stream], Any], str]] = {
    "a limit": (lambda x: x.scope.inner(time=int, max_iterations=3), "max_iterations=3 with time="),
    "no inner time": (lambda x: x.scope.inner(time=str), "time=<class 'str'>: AttributeError.*least"),
    "an instance": (lambda x: x.scope.inner(time=3), "time=3: AttributeError"),
    "a subclass": (lambda x: x.scope.inner(time=Other), "must be a Other"),
    "own times": (
        lambda _: ts.Dataflow("own", times=ts.LEXICOGRAPHIC).scope.inner(time=int),
        "flow 'own' has times of its own kind",
    ),
    "iterations": (
        lambda x: x.scope.inner(name="s", time=int).variable(x),
        "scope 's' is not a loop: its inner times are",
    ),
    "a text as a number": (lambda x: x.enter(x.scope.inner(time=int), at="text"), "at=text is string"),
    "two numbers": (lambda x: x.enter(x.scope.inner(time=int), at=["n", "n"]), r"at=\['n', 'n'\]"),
    "no column": (lambda x: x.enter(x.scope.inner(time=Descending), at=[]), r"at=\[\]"),
    "an unknown column": (lambda x: x.enter(x.scope.inner(time=int), at="m"), r"columns \['m'\]"),
    "a time": (lambda x: x.enter(x.scope.inner(time=Descending), at="moment"), "at=moment is timestamp"),
    "the scope it is in": (lambda x: x.enter(x.scope, at="n"), "is not outside 'the outermost scope'"),
    "two types of one name": (twice, "'s0' and 's1' have inner times of two types called Least"),
    "a collection made there": (
        lambda x: x.enter(x.scope.inner(name="s", time=Descending), at="n").collection(),
        "collection: scope 's' has times of its own kind, and traces compare",
    ),
    "a collection that enters": (
        lambda x: x.select("n").collection().enter(x.scope.inner(name="s", time=Descending)),
        "enter: scope 's' has times of its own kind",
    ),
    "a collection that enters at a time": (
        lambda x: x.select("n").collection().enter_at(x.scope.inner(name="s", time=Descending), "n"),
        "enter_at: scope 's' has times of its own kind",
    ),
    "an output": (
        lambda x: x.enter(x.scope.inner(name="s", time=int), at="n").capture("out"),
        "capture: 's.enter_at' is inside scope 's'",
    ),
    "an inner time that is to close": (
        lambda _: (
            ts.Dataflow("closes")
            .scope.inner(time=int)
            .input("y", "n long", at="n", epochs="manual")
            .advance_to((0, 3))  # type: ignore[arg-type]
        ),
        "is not an epoch; inner times and iterations end with their epoch",
    ),
    "expire": (lambda x: x.enter(x.scope.inner(name="s", time=Descending), at="n").expire(after=1), "expire"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_lawful_is_refused_when_it_is_built(case: str) -> None:
    build, match = REFUSED[case]
    x = ts.Dataflow("refused").input("x", "n long, text string, moment timestamp")

    with pytest.raises((GraphError, InvalidTime, ts.TimelyError), match=rf"(?s){match}.*Hint: ") as caught:
        build(x)

    assert __file__ in str(caught.value)


@pytest.mark.parametrize(
    ("time", "row", "match"),
    [
        (int, (-1,), "inner time is null or negative"),
        (int, (None,), "inner time is null"),
        (Descending, (None,), "inner time is null"),
        (Least, (-1,), r"inner time, Least\(n=-1\), is not after the least one"),
    ],
)
def test_a_record_that_has_no_lawful_time_is_an_error(time: Any, row: Any, match: str) -> None:
    flow = ts.Dataflow("records")
    flow.scope.inner(time=time).enter(flow.input("x", "n long"), at="n").leave().capture("out")

    with pytest.raises(VertexError, match=match):
        ts.testing.run(flow, {"x": [[row]]})


def test_an_input_of_a_scope_ends_its_epochs_by_itself() -> None:
    """Inputs are opened outside: an epoch that is over is what says that no earlier inner time will come."""
    flow = ts.Dataflow("inputs")
    scope = flow.scope.inner(name="s", time=int)
    fast, slow = (
        scope.enter(flow.input(name, "n long", epochs="manual"), at="n", name=f"{name} at")
        for name in ("fast", "slow")
    )
    for stream, name in ((fast, "fast out"), (fast.concat(slow), "both out")):
        stream.unary_notify(lambda time, _: [time.counters[0]], "n long").leave().capture(name)
    simulation = ts.testing.Simulation(flow)
    simulation.send("fast", [3, 1], epoch=0)
    simulation.advance_to("fast", 1)
    simulation.run()
    assert simulation.captured["fast out"].rows() == {0: [(1,), (3,)]}
    assert simulation.captured["both out"].rows() == {}, "slow may still send a record at inner time 0"
    simulation.send("slow", [0], epoch=0)
    simulation.close("slow")
    simulation.run()
    assert simulation.captured["both out"].rows() == {0: [(0,), (1,), (3,)]}


@pytest.mark.slow
def test_an_input_opened_in_a_scope_is_one_that_enters_it() -> None:
    def flow_of(*, inside: bool) -> ts.Dataflow:
        flow = ts.Dataflow("opened")
        scopes = {
            "day": flow.scope.inner(name="by_day", time=int),
            "urgency": flow.scope.inner(name="by_urgency", time=Descending),
        }
        for at, scope in scopes.items():
            schema = f"{at} long, n long"
            stream = (
                scope.input(f"in {at}", schema, at=at, epochs="manual")
                if inside
                else scope.enter(flow.input(f"in {at}", schema, epochs="manual"), at=at)
            )
            flow.vertex(Calls(), stream.select("n"), CALLS).leave().capture(f"calls {at}")
            stream.distinct().leave().capture(f"seen {at}")
        nested = scopes["day"].inner(name="also", time=int)
        least = nested.input("least", "n long", epochs="manual") if inside else None
        entered = nested.enter(flow.input("least", "n long", epochs="manual")) if least is None else least
        flow.vertex(Calls(), entered, CALLS).leave().leave().capture("calls least")
        return flow

    rows: Any = [[(3, 1), (1, 1), (3, 2)], [], [(2, 1)]]
    given = {"in day": rows, "in urgency": rows, "least": [[5], [], [6]]}
    found = [
        {name: out.rows() for name, out in ts.testing.run(flow_of(inside=inside), given, **how).items()}
        for how in ({"workers": 2, "seed": 1}, {"workers": 2, "seed": 1, "crashes": 0.4})
        for inside in (True, False)
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert {epoch for epoch, calls in found[0]["calls least"].items() if calls} == {0, 2}

    flow = flow_of(inside=True)
    day = flow.graph.stages[0]
    assert (day.name, day.detail) == ("in day", "manual")
    sales = flow.scope.inner(name="days", time=int).input("sales", "day long", at="day", epochs="manual")
    sales.send([(3,), (1,)])
    sales.advance_to(1)
    assert (sales.name, sales.source, sales.epoch, sales.handle) == (
        "days.sales",
        "sales",
        1,
        flow.handle("sales"),
    )
    with pytest.raises(SchemaError, match="input 'sales'"):
        sales.send(["soon"])
    for day in (None, -1):
        with pytest.raises(SchemaError, match=r"(?s)inner time is null or negative.*test_scopes.py:\d+"):
            sales.send([(3,), (day,)])
    assert flow.scope.input("plain", "n long", epochs="manual").handle is flow.handle("plain")
    for loop in (flow.scope.inner(name="loop"), flow.scope.inner(name="out").inner(name="in", time=int)):
        with pytest.raises(GraphError, match=r"input 'x' in loop '(loop|out)'.*\n.*open the input outside"):
            loop.input("x", "n long", epochs="manual")


def test_explain_shows_inner_times() -> None:
    text = explain(urgent(), 1)
    assert "by_urgency:" in text
    assert "scope, inner times Descending" in text
    assert "scope 'by_urgency': inner times of type Descending, which by_urgency.work waits for" in text
    assert "scope by_urgency, inner times Descending" in urgent().to_mermaid()


def test_a_plan_with_other_inner_times_is_another_plan() -> None:
    def plan(time: type[Any]) -> Any:
        flow = ts.Dataflow("plan")
        flow.scope.inner(name="s", time=time).enter(flow.input("x", "n long"), at="n").leave().capture("out")
        return flow.compile(1).fingerprint

    assert plan(int) == plan(int)
    assert len({plan(int), plan(Descending), plan(Least)}) == 3
