"""Records that may still improve are never read as final."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.orders import KINDS
from timely_spark.errors import GraphError
from timely_spark.operators.output_vertex import MonotoneOutput

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (4, 5), (5, 6), (2, 6)]


def hops(
    leaving: Callable[[ts.Stream], ts.Stream], forward: Callable[[ts.Stream], ts.Stream] = lambda s: s
) -> ts.Dataflow:
    flow = ts.Dataflow("hops")
    edges, start = flow.input("edges", "src long, dst long"), flow.input("start", "node long, hops long")

    def step(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        near = proposed.min("hops", keys=["node"], name="near")
        links = near.join(proposed.scope.enter(edges), left=["node"], right=["src"])
        return forward(links.select(node="dst", hops=pc.field("hops") + 1)), leaving(near)

    start.loop(step).capture("out")
    return flow


def results(flow: ts.Dataflow) -> set[str]:
    inputs = {"edges": [EDGES], "start": [[(0, 0)]]}
    return {
        str(ts.testing.run(flow, inputs, workers=workers, seed=seed)["out"].rows())
        for workers in (1, 2, 3)
        for seed in range(4)
    }


@pytest.mark.slow
def test_a_minimum_may_leave_its_loop() -> None:
    (only,) = results(hops(lambda near: near))
    assert only == "{0: [(0, 0), (1, 1), (2, 2), (3, 3), (4, 1), (5, 2), (6, 3)]}"


@pytest.mark.parametrize(
    "leaving",
    [lambda near: near.select("node", "hops").distinct(), lambda near: near.max("hops", keys=["node"])],
)
def test_a_reduction_that_keeps_worse_values_is_refused(
    leaving: Callable[[ts.Stream], ts.Stream],
) -> None:
    with pytest.raises(GraphError, match=r"(?s)not final when they leave.*Hint"):
        hops(leaving).compile()


@pytest.mark.slow
def test_final_values_may_be_accumulated() -> None:
    assert len(results(hops(lambda near: near.settle().distinct()))) == 1


@pytest.mark.slow
def test_a_function_that_reads_the_iteration_gives_one_result_on_every_schedule() -> None:
    def scale(time: Any, batch: pa.Table) -> pa.Table:
        return batch.set_column(1, "hops", pc.multiply(pc.add(batch["hops"], 0), time.counters[0] + 1))

    flow = hops(
        lambda near: near, lambda s: s.unary(scale, "node long, hops long").where(pc.field("hops") < 99)
    )
    assert len(results(flow)) == 1


def test_an_aggregate_retracts_nothing() -> None:
    flow = ts.Dataflow("counts")
    flow.input("x", "k string").group_by("k").count().where(pc.field("count") > 1).to_delta(
        "/nowhere", diff="d"
    )
    with pytest.raises(GraphError, match=r"(?s)replaces values and retracts none.*Hint"):
        flow.compile()


@pytest.mark.slow
def test_a_minimum_is_final_before_its_maximum_is_taken() -> None:
    flow = ts.Dataflow("extremes")
    least = flow.input("x", "k string, v long", epochs="manual").min("v", keys="k")
    least.max("v", keys="k").group_by("k").aggregate(v=("sum", "v"), per="time").capture("out")
    rows = [[("a", v) for v in (9, 7, 8)], [("b", 7), ("a", 5)], [("a", 6)]]
    for seed in range(6):
        found = ts.testing.run(flow, {"x": rows}, workers=3, seed=seed)["out"].rows()
        assert found == {0: [("a", 7)], 1: [("b", 7)], 2: []}, seed


def test_different_records_are_not_made_final_for_a_minimum_of_them() -> None:
    flow = ts.Dataflow("few")
    flow.input("x", "k string, v long", epochs="manual").distinct().min("v", keys="k").capture("out")
    assert [stage.operator for stage in flow.compile(2).stages] == ["source", "distinct", "min", "output"]


def test_what_a_partition_function_places_is_final_and_stays_there() -> None:
    flow = ts.Dataflow("placed")
    least = flow.input("x", "k long, v long", epochs="manual").min("v", keys="k").exchange(by=pc.field("v"))

    def count(time: Any, batch: pa.Table) -> pa.Table:
        return pa.table({"epoch": [time.epoch], "rows": [batch.num_rows]})

    least.unary_notify(count, "epoch long, rows long").capture("out")
    rows = [(k, v) for k in range(30) for v in (5, 4)]
    assert ts.testing.run(flow, {"x": [rows]}, workers=3, seed=1)["out"].rows() == {0: [(0, 30)]}


def test_an_output_of_a_lattice_has_what_is_merged_of_each_epoch() -> None:
    flow = ts.Dataflow("greatest")
    given = flow.input("x", "k string, v long", epochs="manual")
    given.loop(lambda each: each.merge("v", pc.max_element_wise, keys="k")).capture("out")
    rows = [[("a", 3), ("a", 5)], [("a", 9), ("b", 1)], [("a", 8)]]
    found = ts.testing.run(flow, {"x": rows}, workers=2)["out"].rows()
    assert found == {0: [("a", 5)], 1: [("a", 9), ("b", 1)], 2: []}


def test_an_output_behind_a_loop_of_stateless_steps_may_retract() -> None:
    flow = ts.Dataflow("steps")
    given = flow.input("x", "n long")
    upward = given.loop(lambda n: n.where(pc.field("n") < 5).select(n=pc.field("n") + 1))
    upward.to_delta("/nowhere", diff="d")
    assert [stage.operator for stage in flow.compile().stages][-2:] == ["leave", "output"]


@pytest.mark.parametrize("epochs", ["clock", "manual"])
@pytest.mark.parametrize(
    "derived",
    [
        lambda least: least.where(pc.field("v") > 1),
        lambda least: least.select(w="v"),
        lambda least: least.select("k", w=pc.add(pc.field("v"), 1)),
        lambda least: least.concat(least),
        lambda least: least.settle(),
        lambda least: least.exchange(by=pc.field("v")).map_batches(lambda batch: batch, "k long, v long"),
        lambda least: least.loop(lambda each: each.merge("v", pc.min_element_wise, keys="k")),
    ],
)
def test_an_output_cannot_retract_what_is_derived_of_improvements(
    derived: Callable[[ts.Stream], ts.Stream], epochs: Any
) -> None:
    """A later epoch would add what replaces a record, and leave the record."""
    flow = ts.Dataflow("derived")
    least = flow.input("x", "k long, v long", epochs=epochs).min("v", keys="k", name="least")
    derived(least).to_delta("/nowhere", diff="d")
    with pytest.raises(GraphError, match=r"(?s)is to retract records, and .*|are not final when.*Hint: "):
        flow.compile()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [
        lambda least: least,
        lambda least: least.select(k="v", v="k"),
        lambda least: least.exchange("k").select(v="v", k="k"),
        lambda least: least.min("v", keys="k"),
        lambda least: least.loop(lambda each: each.min("v", keys="k")),
    ],
)
def test_the_diffs_of_an_output_add_up_to_its_records(kept: Callable[[ts.Stream], ts.Stream]) -> None:
    flow = ts.Dataflow("kept")
    least = flow.input("x", "k long, v long", epochs="manual").min("v", keys="k", name="least")
    kept(least).select("k", "v").to_delta("/nowhere", diff="d", name="out")
    rows = [[(1, 5), (2, 7)], [(1, 3)], [(1, 9)], [(1, 0), (3, 3)]]
    total: Counter[tuple[int, ...]] = Counter()
    for seed in range(3):
        total.clear()
        for part in ts.testing.run(flow, {"x": rows}, workers=2, seed=seed)["out"].rows().values():
            for *row, diff in part:
                total[tuple(sorted(row))] += diff
        assert +total == {(0, 1): 1, (2, 7): 1, (3, 3): 1}
        assert min(total.values()) == 0


@pytest.mark.parametrize("derived", [lambda few: few.where(pc.field("v") > 1), lambda few: few.select(w="v")])
def test_what_is_derived_of_a_set_is_never_retracted(derived: Callable[[ts.Stream], ts.Stream]) -> None:
    flow = ts.Dataflow("set")
    derived(flow.input("x", "k long, v long").distinct()).to_delta("/nowhere", diff="d", name="out")
    found = ts.testing.run(flow, {"x": [[(1, 5), (1, 5)], [(1, 5), (1, 7)]]})["out"].rows()
    assert [[row[-1] for row in rows] for rows in found.values()] == [[1], [1]]


# -- which steps get final records ---------------------------------------------------------------------------

KV, V = "k long, v long", pc.field("v")
Build = Callable[[ts.Stream], ts.Stream]


def few(s: ts.Stream, name: str = "few") -> ts.Stream:
    return s.distinct(name=name)


def least(s: ts.Stream, name: str = "least") -> ts.Stream:
    return s.min("v", keys="k", name=name)


def swap(s: ts.Stream) -> ts.Stream:
    return s.select(k="v", v="k", name="swapped")


def count(s: ts.Stream) -> ts.Stream:
    return s.group_by("k").count("v", name="count")


def up(s: ts.Stream) -> ts.Stream:
    return s.select("k", v=pc.add(V, 1), name="up")


def merged(s: ts.Stream, name: str = "merged") -> ts.Stream:
    return s.merge("v", pc.max_element_wise, keys="k", name=name)


def keyless(s: ts.Stream) -> ts.Stream:
    return s.select(k="v", v="v", name="keyless")


class Split(ts.Vertex):
    """Two outputs."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(1, time, batch)


def split(s: ts.Stream) -> ts.Stream:
    _, second = s.flow.vertex(Split(), s, [KV, KV], name="split")
    return second


def waits(s: ts.Stream) -> ts.Stream:
    return s.unary_notify(lambda _, batch: batch, KV, name="waits")


def stepwise(s: ts.Stream) -> ts.Stream:
    return s.unary(lambda _, batch: batch, KV, name="unary")


def two_readers(s: ts.Stream) -> ts.Stream:
    both = least(s)
    return count(both).concat(waits(both), name="both")


def looped(body: Callable[[ts.Stream], Any]) -> Build:
    return lambda s: s.loop(body, name="loop")


def inner(body: Build) -> Build:
    def build(s: ts.Stream) -> ts.Stream:
        scope = s.scope.inner(name="inner", time=int)
        return body(s.enter(scope, at="v", name="in")).leave(name="back")

    return build


def decided(epochs: Any, build: Build, **times: Any) -> str:
    """Whose records are made final, for which readers; or which are refused. `output` finalises by itself.

    No reader outside loops, and none that waits, gets improvements; and no step waits without need.
    """
    flow = ts.Dataflow("final", **times)
    build(flow.input("x", KV, epochs=epochs)).capture("o")
    try:
        plan = flow.compile(2)
    except GraphError as error:
        found = re.search(r"'([^']+)' \([^)]*\) are not final when they .* '([^']+)'", str(error))
        assert found is not None
        return f"refused: {found[1]} -> {found[2]}"
    before = {edge.target: edge.source for edge in plan.edges}
    settled = [edge for edge in plan.edges if edge.source.operator == "settle" and edge.source.name != "set"]
    assert len({edge.source for edge in settled}) == len({before[edge.source] for edge in settled}), (
        "one each"
    )
    itself = ["output"] * any(isinstance(stage.vertex, MonotoneOutput) for stage in plan.stages)
    return ", ".join([*(f"{before[e.source].name} -> {e.target.name}" for e in settled), *itself])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "build", "decision"),
    [
        # by the clock an epoch's records come in one batch, up to an exchange, a loop, or a step with state
        pytest.param("clock", lambda s: count(few(s)), "", id="clock count"),
        pytest.param("clock", lambda s: count(few(s.where(V > 0))), "", id="clock where"),
        pytest.param("clock", lambda s: count(few(s.concat(s.where(V > 0)))), "", id="clock concat"),
        pytest.param("clock", lambda s: count(few(s.exchange("v"))), "few -> count", id="clock exch"),
        pytest.param(
            "clock", lambda s: count(few(s.concat(s.exchange("v")))), "few -> count", id="clock concat exch"
        ),
        pytest.param("clock", lambda s: count(few(s.map_batches(lambda b: b, KV))), "", id="clock batches"),
        pytest.param("clock", lambda s: count(few(stepwise(s))), "few -> count", id="clock behind unary"),
        pytest.param("clock", lambda s: count(few(s.delay(1))), "few -> count", id="clock behind delay"),
        pytest.param("clock", lambda s: count(least(few(s))), "least -> count", id="clock two"),
        pytest.param(
            "clock", lambda s: few(s).concat(few(s.where(V > 1), "few2")), "", id="clock concat few"
        ),
        pytest.param("manual", lambda s: count(few(s)), "few -> count", id="count"),
        pytest.param("manual", lambda s: few(s).where(V > 0), "few -> where", id="where"),
        pytest.param(
            "manual",
            lambda s: few(s).where(V > 0).distinct(name="again"),
            "few -> where, output",
            id="few few",
        ),
        pytest.param("manual", lambda s: least(s).where(V > 0), "least -> where", id="min where"),
        pytest.param("manual", lambda s: count(swap(least(s))), "swapped -> count", id="min swap count"),
        pytest.param("manual", lambda s: swap(least(s)), "output", id="min swap"),
        pytest.param(
            "manual", lambda s: least(s).select("k", name="keys"), "least -> keys", id="min valueless"
        ),
        pytest.param("manual", lambda s: few(s).select("k", name="keys"), "few -> keys", id="few valueless"),
        pytest.param(
            "manual", lambda s: count(keyless(least(s))), "least -> keyless", id="min keyless count"
        ),
        pytest.param("manual", lambda s: count(keyless(few(s))), "few -> keyless", id="few keyless count"),
        pytest.param("manual", lambda s: count(split(least(s))), "least -> split", id="min in two"),
        pytest.param("manual", lambda s: swap(few(s)).distinct(name="again"), "output", id="few swap few"),
        pytest.param("manual", lambda s: least(s).min("v", keys="k", name="again"), "output", id="min min"),
        pytest.param(
            "manual",
            lambda s: least(s).min("k", keys="v", name="again"),
            "again.select -> again, output",
            id="min min other",
        ),
        pytest.param(
            "manual",
            lambda s: least(s).max("v", keys="k", name="most"),
            "least -> most, output",
            id="min max",
        ),
        pytest.param("manual", lambda s: few(least(s)), "least -> few, output", id="min few"),
        pytest.param("manual", lambda s: least(few(s)), "output", id="few min"),
        pytest.param("manual", lambda s: least(s).exchange("k", name="by"), "output", id="min exch"),
        pytest.param(
            "manual", lambda s: count(least(s).exchange("v", name="by")), "by -> count", id="min exch count"
        ),
        pytest.param(
            "manual", lambda s: least(s).exchange(by=V, name="by"), "least -> by", id="min exch computed"
        ),
        pytest.param("manual", lambda s: least(s).broadcast(name="all"), "least -> all", id="min broadcast"),
        pytest.param(
            "manual",
            lambda s: least(s).concat(least(s, "other"), name="both"),
            "least -> both, other -> both",
            id="min concat",
        ),
        pytest.param("manual", lambda s: few(s).concat(s, name="both"), "few -> both", id="few concat"),
        pytest.param(
            "manual",
            lambda s: few(s).concat(s, name="both").distinct(name="again"),
            "few -> both, output",
            id="few concat few",
        ),
        pytest.param("manual", two_readers, "least -> count, least -> waits", id="two readers"),
        pytest.param("manual", lambda s: count(merged(s)), "", id="merged"),
        pytest.param(
            "manual",
            lambda s: few(s).join(s.select("k", w="v"), on="k", name="pairs"),
            "few -> pairs",
            id="join",
        ),
        pytest.param("manual", inner(few), "inner.few -> back", id="inner few"),
        pytest.param("manual", inner(least), "inner.least -> back", id="inner min"),
        pytest.param("manual", inner(lambda x: count(few(x))), "inner.few -> inner.count", id="inner count"),
        pytest.param(
            "manual", lambda s: least(inner(few)(s)), "inner.few -> back, output", id="inner few then min"
        ),
        pytest.param("manual", lambda s: count(least(s).settle(name="set")), "", id="settled"),
    ],
)
def test_which_records_are_made_final_for_whom(epochs: Any, build: Build, decision: str) -> None:
    assert decided(epochs, build) == decision


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "decision"),
    [
        pytest.param(looped(few), "output", id="loop few"),
        pytest.param(looped(lambda x: few(x).where(V > 0)), "output", id="loop few where"),
        pytest.param(looped(lambda x: few(up(x).where(V < 9).concat(x))), "output", id="loop few up"),
        pytest.param(
            looped(lambda x: (few(x), up(x.distinct(name="l2")))),
            "refused: loop.l2 -> loop.leave",
            id="loop leaves up of few",
        ),
        pytest.param(looped(least), "output", id="loop min"),
        pytest.param(
            looped(lambda x: (least(x), up(least(x, "l2")))),
            "refused: loop.l2 -> loop.leave",
            id="loop min up leaves",
        ),
        pytest.param(
            looped(lambda x: (least(x), least(x, "l2").where(V > 1))),
            "refused: loop.l2 -> loop.leave",
            id="loop min where leaves",
        ),
        pytest.param(looped(lambda x: (least(x), swap(least(x, "l2")))), "output", id="loop min swap leaves"),
        pytest.param(
            looped(lambda x: (least(x), least(x, "l2").broadcast(name="b"))),
            "refused: loop.l2 -> loop.leave",
            id="loop min bcast leaves",
        ),
        pytest.param(
            looped(lambda x: (few(x), x.distinct(name="l2").broadcast(name="b"))),
            "refused: loop.l2 -> loop.leave",
            id="loop few bcast leaves",
        ),
        pytest.param(
            looped(lambda x: least(x).max("v", keys="k", name="most")),
            "refused: loop.least -> loop.leave",
            id="loop min max",
        ),
        pytest.param(looped(lambda x: few(least(x))), "refused: loop.least -> loop.leave", id="loop min few"),
        pytest.param(looped(lambda x: least(few(x))), "output", id="loop few min"),
        pytest.param(
            looped(lambda x: least(up(least(x, "l1")).where(V < 9))), "output", id="loop min up min"
        ),
        pytest.param(looped(lambda x: waits(least(x))), "loop.least -> loop.waits", id="loop waits"),
        pytest.param(
            looped(lambda x: (x.where(V < 0), waits(few(x)))),
            "loop.few -> loop.waits",
            id="loop waits few",
        ),
        pytest.param(
            looped(lambda x: (x.where(V < 0), count(least(x)))),
            "loop.least -> loop.count",
            id="loop count",
        ),
        pytest.param(
            looped(lambda x: (x.where(V < 0), few(x).concat(x.distinct(name="l2")))),
            "refused: loop.few -> loop.leave",
            id="loop concat",
        ),
        pytest.param(looped(merged), "loop.leave -> o", id="loop merged"),
        pytest.param(
            looped(lambda x: least(merged(x))),
            "refused: loop.merged -> loop.leave",
            id="loop merged min",
        ),
        pytest.param(
            looped(lambda x: (merged(x), up(merged(x, "m2")))),
            "refused: loop.m2 -> loop.leave",
            id="loop merged up",
        ),
        pytest.param(
            lambda s: count(looped(least)(s)),
            "loop.leave -> count",
            id="loop then count",
        ),
        pytest.param(
            lambda s: looped(least)(s).max("v", keys="k", name="most"),
            "loop.leave -> most, output",
            id="loop then max",
        ),
        pytest.param(
            lambda s: looped(least)(s).where(V > 0),
            "loop.leave -> where",
            id="loop then where",
        ),
        pytest.param(
            looped(lambda x: (x.where(V < 0), count(inner(least)(x)))),
            "loop.inner.least -> loop.back",
            id="loop inner min count",
        ),
    ],
)
def test_which_records_are_made_final_for_whom_in_loops(build: Build, decision: str) -> None:
    assert decided("manual", build) == decision


@pytest.mark.parametrize(
    ("build", "decision"),
    [
        (few, "few -> o"),
        (lambda s: few(few(s, "again")), "few -> o"),
        (lambda s: count(least(s)), "least -> count"),
        (merged, ""),
        (swap, ""),
    ],
)
def test_an_output_of_epochs_that_are_not_one_time_has_final_records(build: Build, decision: str) -> None:
    assert decided("manual", build, times=KINDS["bitemporal"]) == decision


def test_an_output_does_not_make_merged_values_final() -> None:
    assert decided("manual", looped(merged)) == "loop.leave -> o"
    assert decided("manual", lambda s: looped(merged)(s).where(V > 0)) == "loop.leave -> where"


def test_a_minimum_is_final_for_a_maximum() -> None:
    most = decided("manual", lambda s: least(s).max("v", keys="k", name="most"))
    assert most == "least -> most, output"


@pytest.mark.parametrize(("build", "times"), [(lambda s: waits(least(s)), "product"), (swap, "bitemporal")])
def test_an_output_with_diff_may_have_final_records(build: Build, times: str) -> None:
    flow = ts.Dataflow("final", **({"times": KINDS[times]} if times in KINDS else {}))
    build(flow.input("x", KV)).to_delta("/nowhere", diff="d")
    assert [stage.operator for stage in flow.compile().stages][-1] == "output"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_leaves_a_scope_is_final_at_its_inner_time_in_a_loop_too(workers: int) -> None:
    def timed(s: ts.Stream) -> ts.Stream:
        scope = s.scope.inner(name="inner", time=int)
        return s.enter(scope, at="at").min("v", keys="k").leave()

    flow = ts.Dataflow("minima")
    given = flow.input("x", "k long, v long, at long", epochs="manual")
    timed(given).capture("outside")
    given.loop(lambda x: (x.where(V < 0), timed(x))).capture("in a loop")
    rows = [(1, 5, 1), (1, 4, 1), (1, 3, 3), (1, 2, 3)]
    found = ts.testing.run(flow, {"x": [rows]}, workers=workers)
    assert found["outside"].rows() == found["in a loop"].rows() == {0: [(1, 2), (1, 4)]}


@pytest.mark.parametrize(
    ("build", "in_a_loop"),
    [
        (few, False),
        (least, False),
        (lambda s: swap(least(s)), False),
        (inner(few), False),
        (looped(least), True),
    ],
)
def test_an_output_that_retracts_matches_the_records_of_all_epochs(build: Build, *, in_a_loop: bool) -> None:
    """Within an epoch by the clock they are final; a later epoch may improve them all the same."""
    flow = ts.Dataflow("retracts")
    changed = build(flow.input("x", KV))
    changed.capture("log")
    changed.to_delta("/nowhere", diff="d", name="now")
    kinds = {s.name: isinstance(s.vertex, MonotoneOutput) for s in flow.compile().stages}
    assert kinds["now"]
    assert kinds["log"] == in_a_loop
