"""Mistakes with collections are errors as early as possible, with hints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.differential import DIFF
from timely_spark.errors import VertexError
from timely_spark.testing import run
from timely_spark.worker import Budget

Make = Callable[["Given"], Any]


class Given:
    """Two collections of a flow, and a stranger."""

    def __init__(self) -> None:
        self.flow = ts.Dataflow("mistakes")
        self.x = self.flow.input("x", "k long, v long").collection()
        self.y = self.flow.input("y", "k long, w string").collection()
        self.z = ts.Dataflow("other").input("z", "k long, w string").collection()

    @property
    def loop(self) -> ts.Scope:
        return self.flow.scope.inner()

    def input(self, schema: str, diff: str | None = None) -> ts.Collection:
        return self.flow.input("more", schema).collection(diff=diff)


def nothing(*_: Any) -> list[Any]:
    return []


def set_twice(given: Given) -> None:
    variable = given.x.variable(given.loop)
    variable.set(variable)
    variable.set(variable)


def never_set(given: Given) -> None:
    given.x.variable(given.loop).leave().changes().capture("out")
    given.flow.compile()


def other_times(_: Given) -> None:
    ts.Dataflow("paper", times=ts.LEXICOGRAPHIC).input("x", "n long").collection()


WHEN_IT_IS_BUILT: dict[str, tuple[Make, str]] = {
    "columns that are not there": (lambda of: of.x.count(keys="q"), "'count'.*asks for columns.*'q'"),
    "a column to select": (lambda of: of.x.select("q"), r"its input has \(k int64, v int64\) "),
    "a value that is not there": (lambda of: of.x.min("q"), "'min'.*asks for columns.*'q'"),
    "no numbers": (lambda of: of.y.sum("w", keys="k"), "sum.*'w' is string"),
    "a key as the value": (lambda of: of.x.sum("k", keys="k"), "sum.*'k' is a key"),
    "the name of a key": (lambda of: of.x.count("k", keys="k"), "count.*'k' is a key"),
    "no name": (lambda of: of.x.count(5, keys="k"), "count.*5 is not a name"),
    "a name of the library's": (lambda of: of.x.count(DIFF, keys="k"), f"count.*'{DIFF}'.*the library"),
    "a key twice": (lambda of: of.x.count(keys=["k", "k"]), r"count.*keys \['k', 'k'\]"),
    "keys of no kind": (lambda of: of.x.count(keys=3), "count.*3 are not column names"),
    "top 0": (lambda of: of.x.top_k(0, "v"), "top_k.*k=0"),
    "top of a part": (lambda of: of.x.top_k(1.5, "v"), "top_k.*k=1.5"),
    "a threshold of no kind": (lambda of: of.x.threshold(3), "threshold.*not a function"),
    "a reduction of no kind": (lambda of: of.x.reduce(3, "m long", keys="k"), "reduce.*not a function"),
    "a reduction without keys": (lambda of: of.x.reduce(nothing, "m long", keys=[]), r"reduce.*keys \[\]"),
    "a reduction to a key": (lambda of: of.x.reduce(nothing, "k long", keys="k"), "reduce.*'k' is a key"),
    "nested records": (
        lambda of: of.input("k long, parts array<long>").reduce(nothing, "m long", keys="k"),
        r"reduce.*nested columns \['parts'\]",
    ),
    "a nested result": (
        lambda of: of.x.reduce(nothing, "parts array<long>", keys="k"), r"reduce.*nested columns \['parts'\]",
    ),
    "a column count": (
        lambda of: of.input("k long, count long").reduce_batches(nothing, "m long", keys="k"),
        "reduce_batches.*'count' already",
    ),
    "a join without keys": (lambda of: of.x.join(of.y), "join.*keys"),
    "a join of types": (lambda of: of.x.join(of.y, left="k", right="w"), "'k' is int64.*'w' is string"),
    "a join of one name": (lambda of: of.x.join(of.x, on="k"), r"join.*both sides have \['v'\]"),
    "a join with a stream": (lambda of: of.x.join(of.y.stream, on="k"), "join.*Stream, not a collection"),
    "a join with nothing": (lambda of: of.x.semijoin(None, on="k"), "semijoin got None, not a collection"),
    "a join of flows": (lambda of: of.x.antijoin(of.z, on="k"), "antijoin.*'mistakes'.*'other'"),
    "a concat of flows": (lambda of: of.y.concat(of.z), "concat.*'mistakes'.*'other'"),
    "a concat with a stream": (lambda of: of.x.concat(of.x.stream), "concat.*Stream, not a collection"),
    "a concat of columns": (lambda of: of.x.concat(of.y), "concat.*v int64.*has.*w string"),
    "loops side by side": (lambda of: of.x.enter(of.loop).concat(of.x.enter(of.loop)), "is not around"),
    "out of no loop": (lambda of: of.x.leave(), "leave.*in no loop"),
    "into another flow": (lambda of: of.x.enter(of.z.scope.inner()), "enter.*not around"),
    "a variable of no loop": (lambda of: of.x.variable(of.flow.scope), "variable.*is not a loop"),
    "a variable set twice": (set_twice, "already"),
    "a variable never set": (never_set, "never"),
    "a variable set to a stream": (
        lambda of: of.x.variable(of.loop).set(of.x.stream), "set.*Stream, not a collection",
    ),
    "a variable of other columns": (lambda of: of.x.variable(of.loop).set(of.y), "set.*v int64.*w string"),
    "a variable of another loop": (lambda of: of.x.variable(of.loop).set(of.x.enter(of.loop)), "not around"),
    "a step of no kind": (lambda of: of.x.iterate(3), "iterate.*not a function"),
    "a step to nothing": (lambda of: of.x.iterate(lambda _: None), "the step returned None, not a coll"),
    "a step to other columns": (lambda of: of.x.iterate(lambda v: v.select("k")), "set.*k int64, v int64"),
    "a step to another loop": (lambda of: of.x.iterate(lambda _: of.x.enter(of.loop)), "not around"),
    "no iterations": (lambda of: of.x.iterate(lambda v: v, max_iterations=0), "max_iterations=0"),
    "a missing iteration": (lambda of: of.x.enter_at(of.loop, "q"), "enter_at.*'q'"),
    "a text iteration": (lambda of: of.y.enter_at(of.loop, "w"), "enter: at=w is string"),
    "an iteration of another kind": (
        lambda of: of.x.enter_at(of.flow.scope.inner(time=ts.times.Descending), "k"),
        "enter_at.*has times of its own kind",
    ),
    "no loop": (lambda of: of.x.enter_at(of.flow.scope, "k"), "enter_at.*not outside"),
    "its own loop": (
        lambda of: (v := of.x.enter(of.loop)).enter_at(v.scope, "k"), "enter_at.*not outside",
    ),
    "an index by nothing": (lambda of: of.x.arrange([]), r"arrange.*keys \[\]"),
    "an index by what is not there": (lambda of: of.x.arrange("q"), "'arrange'.*'q'"),
    "a column diff": (lambda of: of.x.changes("v"), "changes.*'v' is a column already"),
    "no condition": (lambda of: of.x.where(3), "where.*neither an expression nor a function"),
    "a column of the library's": (lambda of: of.x.select("k", {DIFF: "v"}), f"select.*'{DIFF}'.*the library"),
    "no columns": (lambda of: of.x.select(), "no columns"),
    "a collection of nothing": (lambda of: of.input("d long", "d"), "no columns"),
    "no diff": (lambda of: of.input("n long", "d"), r"collection.*diff='d'.*\(n int64\)"),
    "a diff of text": (lambda of: of.input("n long, d string", "d"), "collection.*d string"),
    "a diff of fractions": (lambda of: of.input("n long, d double", "d"), "collection.*d double"),
    "a collection's changes as records": (lambda of: of.x.stream.collection(), f"collection.*'{DIFF}'"),
    "nested columns": (
        lambda of: of.input("n long, parts array<long>").top_k(1, "n", keys="parts"),
        r"top_k.*nested columns \['parts'\]",
    ),
    "a key without equality": (
        lambda of: of.input(pa.schema([("age", pa.month_day_nano_interval())])).distinct(),
        r"distinct.*compares columns without equality \['age'\]",
    ),
    "records without equality": (
        lambda of: of.input(pa.schema([("age", pa.month_day_nano_interval())])).consolidate(),
        r"consolidate.*compares columns without equality \['age'\]",
    ),
    "times of another kind": (other_times, "collection: flow 'paper' has times of its own kind"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHEN_IT_IS_BUILT)
def test_a_mistake_in_building_is_an_error_at_once(case: str) -> None:
    make, match = WHEN_IT_IS_BUILT[case]
    with pytest.raises(ts.TimelyError, match=rf"(?s){match}.*Hint: ") as raised:
        make(Given())
    assert case == "a variable never set" or "test_errors.py" in str(raised.value), "the user's own line"


Of = ts.Collection
WHEN_IT_RUNS: dict[str, tuple[Callable[[Of], Of], str]] = {
    "fewer records": (
        lambda x: x.select("k").map_batches(lambda table: table.slice(1), "k long"), "returned 0 records for",
    ),
    "other columns": (lambda x: x.map(lambda row: (row.k, row.v), "n long"), "2 values for 1 columns"),
    "a reduction of other types": (lambda x: x.reduce(lambda *_: ["a"], "m long", keys="k"), "m int64"),
    "a reduction of other keys": (
        lambda x: x.reduce_batches(lambda _: pa.table({"k": [9], "m": [1]}), "m long", keys="k"),
        "for 1 keys that it did not get",
    ),
    "a reduction without its keys": (
        lambda x: x.reduce_batches(lambda _: pa.table({"m": [1]}), "m long", keys="k"), "k int64",
    ),
    "a threshold of fewer": (lambda x: x.threshold(lambda counts: counts[:0]), r"shape \(0,\) for 1 counts"),
    "a threshold of one": (lambda x: x.threshold(lambda _: 1), r"shape \(\) for 1 counts"),
    "a threshold of fractions": (lambda x: x.threshold(lambda counts: counts / 2), "float64"),
    "a threshold of text": (lambda x: x.threshold(lambda counts: ["a"] * len(counts)), "<U1"),
    "a threshold that writes": (lambda x: x.threshold(lambda c: c.clip(0, 1, out=c)), "read-only"),
    "a negative iteration": (lambda x: x.enter_at(x.scope.inner(), pc.field("w")).leave(), "negative"),
    "no iteration": (lambda x: x.enter_at(x.scope.inner(), pc.field("none")).leave(), "iteration is null"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHEN_IT_RUNS)
def test_an_error_at_run_time_names_the_step(case: str) -> None:
    make, match = WHEN_IT_RUNS[case]
    flow = ts.Dataflow("mistakes")
    make(flow.input("x", "k long, v long, w long, none long").collection()).changes().capture("out")

    with pytest.raises(VertexError, match=rf"(?s)step '[\w.]+' \(.*test_errors.py:\d+\).*{match}.*Hint: "):
        ts.testing.run(flow, {"x": [[(1, 2, -3, None)]]})


def test_a_record_without_a_diff_is_refused() -> None:
    flow = ts.Dataflow("mistakes")
    flow.input("x", "n long, d long").collection(diff="d").changes().capture("out")

    with pytest.raises(VertexError, match=r"(?s)1 records have a null 'd'.*Hint: fill the column"):
        ts.testing.run(flow, {"x": [[(1, 1), (2, None)]]})


@pytest.mark.parametrize("diff", [-(2**63), 2**62, pytest.param(2**64 - 1, id="of no long")])
def test_a_change_that_no_multiplicity_can_hold_is_refused(diff: int) -> None:
    """The least long is its own negation: what takes a record away would add it."""
    flow = ts.Dataflow("mistakes")
    schema = pa.schema([("n", pa.int64()), ("d", pa.int64() if diff < 2**63 else pa.uint64())])
    flow.input("x", schema).collection(diff="d").negate().changes().capture("out")

    with pytest.raises(VertexError, match=rf"(?s)multiplicity by {abs(diff)}, in 'd'.*Hint: give changes"):
        ts.testing.run(flow, {"x": [[(1, diff)]]})


@pytest.mark.slow
def test_an_endless_loop_is_an_error() -> None:
    flow = ts.Dataflow("endless")
    x = flow.input("x", "n long").collection()
    x.iterate(lambda n: n.select(n=pc.add(pc.field("n"), 1))).changes().capture("out")
    simulation = ts.testing.Simulation(flow, budget=Budget(steps=10))
    simulation.send("x", [1])

    with pytest.raises(ts.TimelyError, match=r"(?s)'endless' still runs.*Hint: let each loop"):
        simulation.run(limit=8)


def doubled(x: ts.Collection) -> ts.Collection:
    return x.iterate(lambda records: records.concat(records))


def squared(x: ts.Collection) -> ts.Collection:
    return x.join(x.select("a", b="a"), on="a")


def counted(x: ts.Collection) -> ts.Collection:
    return x.count(keys="a")


@pytest.mark.parametrize(
    ("build", "epochs"),
    [
        (doubled, [[(1, 1)]]),
        (doubled, [[(1, -3), (2, 1)]]),
        (squared, [[(1, 2**32)]]),
        (squared, [[(1, 2**31), (2, 5)]]),
        (counted, [[(1, 2**61)], [(1, 2**61)]]),
        (counted, [[(1, 2**60)] * 16]),
    ],
)
def test_a_multiplicity_that_would_wrap_around_is_an_error(build: Any, epochs: Any) -> None:
    flow = ts.Dataflow("large")
    build(flow.input("x", "a long, d long").collection(diff="d")).changes().capture("out")

    with pytest.raises(VertexError, match=r"occurs 2 \*\* 62 times or more(?s:.*)Hint: in a loop"):
        ts.testing.run(flow, {"x": epochs}, warn_after=None)


def test_large_multiplicities_that_cancel_out_are_none() -> None:
    flow = ts.Dataflow("large")
    x = flow.input("x", "a long, d long").collection(diff="d")
    x.count(keys="a").changes().capture("out")

    found = ts.testing.run(flow, {"x": [[(1, 2**61), (1, 1 - 2**61), (1, 2**60)]]})["out"].rows()

    assert found == {0: [(1, 2**60 + 1, 1)]}


@pytest.mark.parametrize(
    "draws",
    [
        lambda x, drawn: x.map(lambda row: (next(drawn),), "n long", name="draws"),
        lambda x, drawn: x.flat_map(lambda row: [(next(drawn),)], "n long", name="draws"),
        lambda x, drawn: x.map_batches(lambda rows: pa.table({"n": [next(drawn)]}), "n long", name="draws"),
        lambda x, drawn: x.where(lambda row: next(drawn) % 2, name="draws"),
    ],
    ids=["map", "flat_map", "map_batches", "where"],
)
@pytest.mark.parametrize("moved", [False, True])
def test_a_function_with_another_result_for_the_same_record_is_found(draws: Any, *, moved: bool) -> None:
    """The deletion of a record would leave what its insertion has made, for ever."""
    flow = ts.Dataflow("drawn")
    x = flow.input("x", "n long").collection()
    draws(x.distinct() if moved else x, itertools.count()).changes().capture("out")
    with pytest.raises(VertexError, match=r"(?s)'draws' \(.*same records it gives .*, then .*Hint: a del"):
        run(flow, {"x": [[1]]})


def test_a_result_with_nan_is_the_same() -> None:
    flow = ts.Dataflow("nan")
    x = flow.input("x", "n long").collection()
    x.map(lambda row: (row.n, float("nan")), "n long, f double").changes().capture("out")
    far = pa.table({"f": [float("nan")], "day": pa.array([3_000_000], pa.date32())})  # no date of Python's
    x.map_batches(lambda _: far, "f double, day date").changes().capture("far")
    result = run(flow, {"x": [[1]]})
    assert [len(result[name].rows()[0]) for name in ("out", "far")] == [1, 1]
