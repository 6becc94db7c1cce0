"""Records that may still improve are never read as final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError

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


def test_final_values_may_be_accumulated() -> None:
    assert len(results(hops(lambda near: near.settle().distinct()))) == 1


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
    with pytest.raises(GraphError, match=r"(?s)is to retract records, and .*Hint: "):
        flow.compile()


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
