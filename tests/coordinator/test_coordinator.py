"""The driver's part between rounds: whom to wake, what is complete, and all of it as JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.hops import hop
from timely_spark.coordinator import Coordinator
from timely_spark.testing import Simulation


class Clock(ts.Vertex):
    """Asks for the next epoch, always."""

    initial = (0,)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Nothing."""

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"epoch": [time.epoch]}))
        if time.epoch < 900:
            self.notify_at(ts.Time(time.epoch + 1))


@pytest.mark.parametrize("closed", [(), ("y",)], ids=["alone", "beside a closed input"])
def test_a_vertex_that_always_asks_for_the_next_epoch_keeps_no_idle_query_running(closed: Any) -> None:
    flow = ts.Dataflow("clock")
    for name in closed:
        flow.input(name, "n long").capture("sent")
    flow.vertex(Clock(), flow.input("x", "n long"), "epoch long", name="clock").capture("out")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    for name in closed:
        simulation.close(name)
    simulation.run()
    begun = simulation.rounds
    assert begun == len(closed)
    for _ in range(3):
        simulation.send("x", [])
        simulation.run(limit=4)
    assert simulation.rounds <= begun + 6
    # every worker was told of every epoch up to the last that an input began
    said = [epoch for rows in simulation.captured["out"].rows().values() for (epoch,) in rows]
    assert all(said.count(epoch) == 2 for epoch in range(simulation.coordinator.last_epoch + 1))


def test_batches_without_input_begin_no_epoch() -> None:
    flow = ts.Dataflow("gaps")
    flow.input("x", "n long").group_by("n").count().capture("out")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    for batch in (0, 3, 17):
        simulation.batch = batch
        simulation.send("x", [1, 2])
        simulation.run()

    assert simulation.captured["out"].rows() == {
        0: [(1, 1), (2, 1)], 3: [(1, 2), (2, 2)], 17: [(1, 3), (2, 3)]
    }  # fmt: skip
    assert simulation.rounds == 3


def test_an_epoch_without_records_completes_and_is_released() -> None:
    flow = ts.Dataflow("empty")
    flow.input("x", "n long").where(lambda row: False).group_by("n").count().capture("out")

    assert ts.testing.run(flow, {"x": [[1], [], [2]]}, workers=3)["out"].rows() == {0: [], 1: [], 2: []}


def test_inputs_without_rows_hold_back_no_clock_epoch() -> None:
    flow = ts.Dataflow("silent")
    heard, _ = flow.input("heard", "n long"), flow.input("silent", "n long")
    heard.concat(_).group_by("n").count().capture("out")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    simulation.send("heard", [1])
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(1, 1)]}


def test_an_input_goes_on_when_those_before_it_are_closed() -> None:
    flow = ts.Dataflow("ends")
    x, y = flow.input("x", "n long"), flow.input("y", "n long")
    x.concat(y).group_by("n").count().capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("x", [1])
    simulation.run()
    simulation.close("x")
    for _ in range(2):
        simulation.send("y", [1])
        simulation.run()

    assert [rows for rows in simulation.captured["out"].rows().values() if rows] == [
        [(1, 1)],
        [(1, 2)],
        [(1, 3)],
    ]


def test_with_manual_epochs_both_inputs_must_be_advanced_and_the_one_that_holds_back_is_named() -> None:
    flow = ts.Dataflow("lookup")
    left = flow.input("left", "k long, a long", epochs="manual")
    right = flow.input("right", "k long, b long", epochs="manual")
    left.join(right, on=["k"]).group_by("k").count().capture("out")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    simulation.send("left", [(1, 2)])
    simulation.send("right", [(1, 3)])
    simulation.advance_to("left", 1)
    simulation.run()

    assert simulation.captured["out"].rows() == {}
    assert "right" in simulation.coordinator.holding(simulation.plan.by_name["out"], 0)
    assert "left" not in simulation.coordinator.holding(simulation.plan.by_name["out"], 0)
    simulation.advance_to("right", 1)
    simulation.run()
    assert simulation.captured["out"].rows() == {0: [(1, 1)]}
    assert not simulation.result.complete
    simulation.close("left")
    simulation.close("right")
    simulation.run()
    assert simulation.result.complete
    assert simulation.result.frontier == {"out": []}


def test_manual_epochs_may_be_sent_ahead_in_pieces_and_in_any_order() -> None:
    flow = ts.Dataflow("ahead")
    x = flow.input("x", "k long, v long", epochs="manual")
    x.min("v", keys=["k"]).group_by("k").count().capture("counts")
    x.min("v", keys=["k"], name="best").capture("least")
    simulation = Simulation(flow, workers=3, rounds_per_batch=1)
    for epoch, value in ((2, 1), (0, 9), (1, 5), (0, 8), (2, 0)):
        simulation.send("x", [(7, value)], epoch=epoch)
        simulation.step()
    simulation.advance_to("x", 3)
    simulation.run()

    assert simulation.captured["least"].rows() == {0: [(7, 8)], 1: [(7, 5)], 2: [(7, 0)]}
    assert simulation.captured["counts"].rows() == {0: [(7, 1)], 1: [(7, 2)], 2: [(7, 3)]}


def test_manual_epochs_begin_with_0_also_if_an_input_begins_with_a_later_one() -> None:
    flow = ts.Dataflow("begun")
    flow.input("x", "n long", epochs="manual").capture("out")
    simulation = Simulation(flow)
    simulation.advance_to("x", 3)
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [], 1: [], 2: []}


def test_what_is_sent_to_a_closed_epoch_or_input_is_an_error() -> None:
    flow = ts.Dataflow("closed")
    flow.input("x", "n long", epochs="manual").capture("out")
    simulation = Simulation(flow, rounds_per_batch=1)
    simulation.advance_to("x", 2)
    for wrong in (lambda: simulation.send("x", [1], epoch=1), lambda: simulation.advance_to("x", 1)):
        with pytest.raises(ts.TimelyError, match=r"stands at epoch 2.*\nHint: "):
            wrong()
    simulation.close("x")
    simulation.close("x")
    for wrong in (lambda: simulation.send("x", [1]), lambda: simulation.advance_to("x", 9)):
        with pytest.raises(ts.TimelyError, match=r"is closed \(.*\)\nHint: "):
            wrong()


def column_flow() -> ts.Dataflow:
    flow = ts.Dataflow("column")
    source = flow.source("s", "at long, n long", epoch="at")
    source.group_by("n").count().capture("out")
    source.late.capture("late")
    return flow


def test_a_column_epoch_completes_one_round_after_a_higher_one_and_late_rows_are_counted() -> None:
    simulation = Simulation(column_flow(), workers=2, rounds_per_batch=1)
    simulation.send("s", [(0, 1), (1, 1), (1, 2)])
    simulation.run()
    assert simulation.captured["out"].rows() == {0: [(1, 1)]}
    simulation.send("s", [(5, 1)])
    simulation.run()
    empty = {epoch: [] for epoch in (2, 3, 4)}
    assert simulation.captured["out"].rows() == {0: [(1, 1)], 1: [(1, 2), (2, 1)], **empty}
    assert [*simulation.coordinator.tracker.inputs.values()] == [1, 1], "in time, and late"
    simulation.send("s", [(0, 7), (1, 8), (5, 9), (None, 6), (-3, 6)])
    simulation.send("s", [(6, 1)])
    simulation.run()

    late = [row for rows in simulation.captured["late"].rows().values() for row in rows]
    assert sorted(late, key=str) == sorted([(0, 7), (1, 8), (None, 6), (-3, 6)], key=str)
    assert simulation.result.late == {"s": 4}
    assert simulation.captured["out"].rows()[5] == [(1, 3), (9, 1)]


@pytest.mark.parametrize("rows", [[(None, 1)], [(5, 1), (None, 1)], [(-3, 1), (None, 1)]])
def test_late_rows_of_the_last_batch_are_delivered(rows: list[tuple[int | None, int]]) -> None:
    simulation = Simulation(column_flow(), workers=2)
    simulation.send("s", rows)
    simulation.close("s")
    simulation.run()

    late = [row for rows in simulation.captured["late"].rows().values() for row in rows]
    assert sorted(late, key=str) == sorted(rows[-simulation.result.late["s"] :], key=str)


@pytest.mark.slow
def test_a_snapshot_is_plain_json_and_goes_on_like_the_original() -> None:
    flow = ts.Dataflow("snapshot")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

    roots.loop(hop(edges)).group_by("node").count().capture("out")
    plan = flow.compile(3)
    straight, resumed = (Simulation(plan, rounds_per_batch=1) for _ in range(2))
    for simulation in (straight, resumed):
        for epoch in range(2):
            simulation.send("edges", [(i, i + 1) for i in range(epoch * 6, epoch * 6 + 6)])
            simulation.send("roots", [0])
            while simulation.step():
                if simulation is resumed:
                    snapshot = json.loads(json.dumps(simulation.coordinator.encode()))
                    simulation.coordinator = Coordinator.decode(plan, snapshot)
                    assert simulation.coordinator.encode() == snapshot

    assert resumed.captured["out"].rows() == straight.captured["out"].rows()
    assert resumed.rounds == straight.rounds > 2


def test_initial_notifications_are_counted_for_every_worker_and_inside_loops_too() -> None:
    class Starts(Clock):
        def on_notify(self, time: Any) -> None:
            self.send_by(0, time, pa.table({"epoch": [self.worker]}))

    flow = ts.Dataflow("initial")
    x = flow.input("x", "epoch long")
    flow.vertex(Starts(), x, "epoch long", name="root").capture("root_out")
    x.loop(lambda v: flow.vertex(Starts(), v, "epoch long", name="inner"), max_iterations=2).capture(
        "loop_out"
    )
    simulation = Simulation(flow, workers=3, rounds_per_batch=1)
    assert len(simulation.coordinator.tracker.active) == 2
    assert set(simulation.coordinator.tracker.active.values()) == {3}
    simulation.send("x", [])
    simulation.run()

    assert simulation.captured["root_out"].rows() == {0: [(0,), (1,), (2,)]}
    assert simulation.captured["loop_out"].rows() == {0: [(0,), (1,), (2,)]}


def test_probes_have_the_frontier() -> None:
    flow = ts.Dataflow("probe")
    flow.input("x", "n long", epochs="manual").exchange("n").probe("p")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    for epoch in range(10):
        assert simulation.result.frontier == {"p": [[epoch]]}
        simulation.send("x", [epoch])
        simulation.advance_to("x", epoch + 1)
        simulation.run()
    simulation.close("x")
    simulation.run()
    assert simulation.result.frontier == {"p": []}
    assert simulation.result.complete


def test_notifications_that_were_received_leave_nothing_behind() -> None:
    flow = ts.Dataflow("notified")
    x = flow.input("x", "n long", epochs="manual")
    x.unary_notify(lambda _, batch: batch, "n long", by="n").capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("x", [1, 2, 3], epoch=0)
    simulation.run()
    assert any(simulation.coordinator.pending)
    simulation.advance_to("x", 1)
    simulation.run()

    assert simulation.coordinator.pending_count == 0
    assert not any(simulation.coordinator.pending)


@pytest.mark.slow
def test_a_flow_that_is_closed_leaves_nothing_behind() -> None:
    flow = ts.Dataflow("leak")
    x = flow.input("x", "n long")
    x.loop(lambda v: v.map(lambda row: row.n - 1, "n long").where(lambda row: row.n > 0)).distinct().capture(
        "out"
    )
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    for _ in range(50):
        simulation.send("x", [5])
        simulation.run()
    assert simulation.coordinator.tracker.active == {}
    assert len(json.dumps(simulation.coordinator.encode())) < 600
    simulation.close("x")
    simulation.run()
    assert simulation.coordinator.tracker.inputs == {}
    assert simulation.result.complete
