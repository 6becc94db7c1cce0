"""Outputs: records handed to the driver, withdrawn, and combined per epoch."""

from __future__ import annotations

import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.operators.output_vertex import ChangesOutput
from timely_spark.testing import run


def test_diffs_of_min_retract_the_replaced_record() -> None:
    flow = ts.Dataflow("diff")
    flow.input("x", "k long, v long").min("v", keys=["k"]).to_delta("nowhere", diff="d", name="out")
    rows = run(flow, {"x": [[(1, 5), (1, 4), (2, 9)], [(1, 6)], [(1, 2), (1, 3), (3, 0)]]}, workers=2)[
        "out"
    ].rows()

    assert rows == {0: [(1, 4, 1), (2, 9, 1)], 1: [], 2: [(1, 2, 1), (1, 4, -1), (3, 0, 1)]}


def test_diffs_of_final_records_are_plus_one() -> None:
    flow = ts.Dataflow("plain")
    flow.input("x", "n long").to_delta("nowhere", diff="d", name="out")

    assert run(flow, {"x": [[1], [1]]})["out"].rows() == {0: [(1, 1)], 1: [(1, 1)]}


@pytest.mark.parametrize("kind", ["int", "long"])
def test_changes_of_an_epoch_that_cancel_out_leave_nothing_in_a_current_table(kind: str) -> None:
    flow = ts.Dataflow("current")
    x = flow.input("x", f"k long, v string, change {kind}", epochs="manual")
    x.to_delta("nowhere", keys="k", diff="change", name="out")
    simulation = ts.testing.Simulation(flow, workers=2)
    for epoch, parts in enumerate(
        [
            [[(1, "a", 1), (2, "b", 1)], [(2, "b", -1), (3, "c", 2), (3, "c", -1), (4, None, 0)]],
            [[(1, "d", 1), (1, "a", -1)], [(1, "d", -1)]],
            [],
        ]
    ):
        for rows in parts:
            simulation.send("x", rows, epoch=epoch)
            simulation.step()
        simulation.advance_to("x", epoch + 1)
    simulation.run()

    rows = simulation.captured["out"].rows()
    assert rows == {0: [(1, "a", 1), (3, "c", 1)], 1: [(1, "a", -1)], 2: []}


def test_a_change_without_a_number_is_refused() -> None:
    flow = ts.Dataflow("current")
    flow.input("x", "k long, change int").to_delta("nowhere", keys="k", diff="change", name="out")

    with pytest.raises(
        VertexError, match=r"(?s)'out' .*records have a null 'change'.*\nHint: fill the column"
    ):
        run(flow, {"x": [[(1, 1), (2, None)]]})


def test_the_changes_of_a_collection_need_no_adding_up() -> None:
    flow = ts.Dataflow("current")
    x = flow.input("x", "k long").collection()
    x.to_delta("nowhere", keys="k", name="once")
    x.distinct().changes("d").to_delta("nowhere", keys="k", diff="d", name="by_hand")

    assert not any(isinstance(stage.vertex, ChangesOutput) for stage in flow.graph.stages)


def test_an_output_inside_a_loop_and_a_taken_column_are_refused() -> None:
    flow = ts.Dataflow("bad")
    x = flow.input("x", "n long")

    with pytest.raises(GraphError, match=r"(?s)is inside loop 'l'.*\nHint"):
        flow.scope.inner(name="l").enter(x).capture()
    with pytest.raises(SchemaError, match=r"(?s)is a column already.*\nHint"):
        x.to_delta("nowhere", diff="n")
    with pytest.raises(SchemaError, match="Hint"):
        x.to_delta("nowhere", keys=["nothing"])


def test_many_outputs_are_released_together_and_in_order() -> None:
    flow = ts.Dataflow("many")
    x = flow.input("x", "n long")
    x.capture("now")
    x.exchange("n").map(lambda row: row.n, "n long").distinct().capture("later")
    simulation = ts.testing.Simulation(flow, workers=3)
    released = []
    for epoch in range(3):
        simulation.send("x", [epoch])
        simulation.step()
        released += simulation.result.released
    while simulation.step():
        released += simulation.result.released

    for name in ("now", "later"):
        assert [epoch for sink, epoch in released if sink == name] == [0, 1, 2]
    assert len(released) == len(set(released))


def test_a_record_of_an_older_epoch_withdraws_its_equal_of_a_newer_one() -> None:
    flow = ts.Dataflow("older")
    flow.input("x", "k long, v long", epochs="manual").min("v", keys="k").capture("out")
    simulation = ts.testing.Simulation(flow, workers=2)
    simulation.send("x", [(1, 5), (2, 5)], epoch=1)
    simulation.step()
    simulation.send("x", [(1, 5), (2, 6)], epoch=0)
    simulation.step()
    simulation.advance_to("x", 2)
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(1, 5), (2, 6)], 1: [(2, 5)]}
