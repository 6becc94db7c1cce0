"""One worker's round: pure, in order, within its budget, and the keeper of the laws of vertices."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.memory import Memory
from timely_spark.coordinator import Coordinator
from timely_spark.errors import VertexError
from timely_spark.state import codec
from timely_spark.state.arrow import from_bytes
from timely_spark.testing import Simulation
from timely_spark.worker import Budget, Worker, pack, step, wire
from timely_spark.worker.wire import Message, Report


def flow_of(vertex: ts.Vertex, **input_: Any) -> ts.Dataflow:
    flow = ts.Dataflow("one")
    flow.vertex(vertex, flow.input("x", "n long", **input_), "n long", by=[["n"]], name="it").capture("out")
    return flow


def one(n: int) -> pa.Table:
    return pa.table({"n": [n]})


class Acts(ts.Vertex):
    """Does in `on_recv`, and in the notification that it asked for, what it is told to."""

    def __init__(self, recv: Any, notify: Any = None) -> None:
        self.recv, self.notify = recv, notify

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.recv(self, time)

    def on_notify(self, time: Any) -> None:
        if self.notify is not None:
            self.notify(self, time)


def later(time: Any, by: int = 1) -> Any:
    return ts.Time(time.epoch + by)


def cleanup(self: ts.Vertex, time: Any) -> None:
    self.notify_at(time, capability=None)


def delayed(self: ts.Vertex, time: Any) -> None:
    self.notify_at(time, capability=later(time, 2))


MISTAKES = {
    "send in the past": (Acts(lambda v, t: v.send_by(0, ts.Time(t.epoch - 1), one(1))), 1),
    "ask in the past": (Acts(lambda v, t: v.notify_at(ts.Time(t.epoch - 1))), 1),
    "capability before the guarantee": (Acts(lambda v, t: v.notify_at(later(t), capability=t)), 0),
    "capability in the past": (Acts(lambda v, t: v.notify_at(t, capability=ts.Time(t.epoch - 1))), 1),
    "send without capability": (Acts(cleanup, lambda v, t: v.send_by(0, t, one(1))), 0),
    "ask for more without capability": (Acts(cleanup, lambda v, t: v.notify_at(later(t))), 0),
    "send before the capability": (Acts(delayed, lambda v, t: v.send_by(0, later(t), one(1))), 0),
    "unknown output": (Acts(lambda v, t: v.send_by(1, t, one(1))), 0),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_vertex_has_no_right_to(name: str) -> None:
    vertex, epoch = MISTAKES[name]

    with pytest.raises(VertexError, match=r"step 'it' .*test_round\.py:\d+.*CapabilityError.*\n?.*Hint: "):
        ts.testing.run(flow_of(vertex), {"x": [[]] * epoch + [[1]]})


RIGHTS = {
    "send later": (Acts(lambda v, t: v.send_by(0, later(t), one(1))), {1: [(1,)]}),
    "send at its notification": (
        Acts(lambda v, t: v.notify_at(t), lambda v, t: v.send_by(0, t, one(2))),
        {0: [(2,)]},
    ),
    "send from its capability on": (
        Acts(delayed, lambda v, t: v.send_by(0, later(t, 2), one(3))),
        {2: [(3,)]},
    ),
    "clean up later without capability": (Acts(cleanup, cleanup_later := lambda v, t: None), {}),
}


@pytest.mark.parametrize("name", RIGHTS)
def test_a_vertex_has_the_right_to(name: str) -> None:
    vertex, expected = RIGHTS[name]

    rows = ts.testing.run(flow_of(vertex), {"x": [[1], [], [], []]})["out"].rows()

    assert {epoch: of for epoch, of in rows.items() if of} == expected


def test_the_capability_ends_with_the_call() -> None:
    kept: list[Any] = []

    class Keeps(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            if kept:
                kept[0].send_by(0, ts.Time(0), one(9))  # the time at which it was kept
            kept.append(self)

    with pytest.raises(VertexError, match="CapabilityError"):
        ts.testing.run(flow_of(Keeps()), {"x": [[1], [2]]})


def test_asking_without_on_notify_is_an_error() -> None:
    class Deaf(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.notify_at(time)

    with pytest.raises(VertexError, match=r"(?s)has no on_notify.*\nHint"):
        ts.testing.run(flow_of(Deaf()), {"x": [[1]]})


def test_asking_twice_is_asking_once() -> None:
    def ask(self: ts.Vertex, time: Any) -> None:
        self.notify_at(time)
        self.notify_at(time)

    rows = ts.testing.run(flow_of(Acts(ask, lambda v, t: v.send_by(0, t, one(1)))), {"x": [[1, 2, 3]]})[
        "out"
    ].rows()

    assert rows == {0: [(1,)]}


def test_an_error_names_the_step_the_time_and_the_users_lines_and_survives_pickling() -> None:
    flow = ts.Dataflow("bad")
    flow.input("x", "n long").exchange("n").unary(
        lambda time, batch: 1 // 0, "n long", name="divide"
    ).capture()
    line = "in <lambda>"

    with pytest.raises(VertexError) as caught:
        ts.testing.run(flow, {"x": [[], [1]]})

    error = pickle.loads(pickle.dumps(caught.value))
    assert error.step == "divide"
    assert "ZeroDivisionError" in error.cause
    assert line in error.trace
    assert "test_round.py" in str(error)
    assert "Time(1)" in str(error)
    assert "batch 1, worker 0" in str(error)
    assert "Hint: " in str(error)


def test_an_error_in_a_fused_stage_names_that_stage() -> None:
    flow = ts.Dataflow("bad")
    flow.input("x", "n long").group_by("n").count().map(
        lambda row: row.nothing, "n long", name="fused"
    ).capture()

    with pytest.raises(VertexError, match=r"step 'fused' .*AttributeError"):
        ts.testing.run(flow, {"x": [[1]]})


def test_a_failed_round_leaves_the_state_as_it_was() -> None:
    flow = flow_of(Acts(lambda v, t: 1 // (1 - t.epoch)))
    simulation = Simulation(flow, rounds_per_batch=1)
    simulation.send("x", [1])
    simulation.run()
    before = list(simulation.states)
    simulation.send("x", [1])

    with pytest.raises(VertexError):
        simulation.run()
    assert simulation.states == before


# -- order, and purity ---------------------------------------------------------------------------------------


class Log(ts.Vertex):
    """Writes down what it is called for, and forwards at notifications."""

    def __init__(self) -> None:
        self.held: dict[Any, list[int]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.held.setdefault(time, []).extend(batch["n"].to_pylist())
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"n": self.held.pop(time)}))


def recorded(
    flow: ts.Dataflow, inputs: list[Any], workers: int, **options: Any
) -> tuple[Simulation, list[Any]]:
    simulation, steps = Simulation(flow, workers=workers, rounds_per_batch=1, **options), []
    simulation.on_step = lambda *parts: steps.append(parts)
    for records in inputs:
        simulation.send("x", records)
        simulation.run()
    return simulation, steps


def loops() -> ts.Dataflow:
    flow = ts.Dataflow("loops")

    def hop(n: ts.Stream) -> ts.Stream:
        seen = n.distinct()
        more = seen.flat_map(lambda row: [row.n * 2 % 97, row.n + 5 if row.n < 90 else 0], "n long")
        return more.concat(seen).distinct(name="near")

    flow.input("x", "n long").loop(hop).group_by("n").count().capture("out")
    return flow


def exchanged() -> ts.Dataflow:
    flow = ts.Dataflow("exchanged")
    flow.input("x", "n long").exchange("n").map(lambda row: row.n // 9, "n long").exchange("n").capture("out")
    return flow


@pytest.mark.parametrize("flow", [exchanged, pytest.param(loops, marks=pytest.mark.slow)])
def test_a_round_is_a_pure_function_whatever_the_order_of_rows(flow: Any) -> None:
    simulation, steps = recorded(flow(), [[*range(20)], [50, 3]], 3)
    shuffle = random.Random(1)
    rounds = [(batch, worker, before, rows, header) for batch, worker, before, rows, header, *_ in steps]

    assert len(rounds) > 5
    for i in range(5):
        shuffled = [
            (
                b,
                w,
                state,
                rows.take(shuffle.sample(range(rows.num_rows), rows.num_rows)) if i else rows,
                header,
            )
            for b, w, state, rows, header in rounds
        ]
        made = [
            step(simulation.plan, state, batch, worker, rows, header)
            for batch, worker, state, rows, header in shuffled
        ]
        assert [state for state, _ in made] == [parts[5] for parts in steps]
        assert [rows for _, rows in made] == [parts[6] for parts in steps]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_work_left_by_a_budget_gives_the_same_result_in_later_rounds(workers: int) -> None:
    expected, _ = recorded(loops(), [[1], [50, 3]], workers)

    for budget in (Budget(steps=1), Budget(steps=3), Budget(bytes=1)):
        tight, _ = recorded(loops(), [[1], [50, 3]], workers, budget=budget)
        assert [sorted(rows) for rows in tight.captured["out"].rows().values()] == [
            sorted(rows) for rows in expected.captured["out"].rows().values()
        ]
        assert tight.rounds > expected.rounds
        assert max(result.stats.get("steps", 0) for _, result in tight.log) <= workers * budget.steps


def test_budget_counts_what_is_left() -> None:
    simulation = Simulation(flow_of(Log()), budget=Budget(steps=1), rounds_per_batch=1)
    simulation.send("x", [1])
    simulation.step()
    assert simulation.result.released == []
    assert not simulation.idle
    simulation.run()
    assert simulation.captured["out"].rows() == {0: [(1,)]}


def test_records_of_one_time_are_one_batch_and_messages_precede_notifications() -> None:
    calls: list[Any] = []

    class Tell(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            calls.append(("recv", edge, time.epoch, batch.num_rows))
            self.notify_at(time)

        def on_notify(self, time: Any) -> None:
            calls.append(("notify", time.epoch))

    flow = ts.Dataflow("order")
    x = flow.input("x", "n long")
    flow.vertex(Tell(), [x.concat(x.select(n="n")), x], "n long", by=[["n"], ["n"]]).capture()
    simulation = Simulation(flow, rounds_per_batch=1)
    simulation.send("x", [1])
    simulation.send("x", [2, 3])
    simulation.run()

    assert calls == [("recv", 0, 0, 6), ("recv", 1, 0, 3), ("notify", 0)]


def test_combining_before_the_exchange_sends_one_record_per_key() -> None:
    flow = ts.Dataflow("combine")
    spread = flow.input("x", "n long").exchange("n").flat_map(lambda row: [(7, row.n)] * 50, "k long, v long")
    spread.min("v", keys=["k"]).capture("out")
    simulation = Simulation(flow, workers=4, rounds_per_batch=1)
    simulation.send("x", range(20))
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(7, 0)]}
    assert sum(result.stats.get("records_sent", 0) for _, result in simulation.log) <= 3


def test_the_input_of_several_tasks_is_one_batch_in_the_order_of_the_tasks() -> None:
    flow = ts.Dataflow("tasks")
    flow.input("x", "n long").exchange("n").capture("out")
    plan = flow.compile(1)
    parts = [pack(plan, "x", pa.table({"n": [7, task]}), shard=task) for task in range(3)]
    header = Coordinator(plan).first().header

    one, other = (step(plan, None, 0, 0, pa.concat_tables(rows), header) for rows in (parts, parts[::-1]))

    assert one == other


def test_the_counts_of_a_round_are_those_of_its_messages() -> None:
    flow = ts.Dataflow("exchange")
    x = flow.input("x", "n long").exchange("n").map(lambda row: row.n + 1, "n long")
    x.exchange("n").distinct().capture("out")
    _, steps = recorded(flow, [range(20), [3]], 3)
    sent = []
    for *_, out in steps:
        payloads = [message.payload for _, message in wire.read(out, Message)]
        ((_, report),) = wire.read(out, Report)
        counts = (len(payloads), sum(map(len, payloads)), sum(from_bytes(one).num_rows for one in payloads))
        assert tuple(report.stats.get(n, 0) for n in ("sent", "bytes_sent", "records_sent")) == counts
        sent.append(len(payloads))
    assert max(sent) > 1


def test_batches_that_are_left_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOB_BYTES", 200)
    flow = ts.Dataflow("left")
    flow.input("x", "n long").distinct(name="it").capture("out")
    plan, blobs = flow.compile(1), Memory()
    worker, written = Worker(plan, None, 0, blobs), [0]
    for epoch in range(3):
        worker.enqueue(plan.by_name["it"], 0, ts.Time(epoch), pa.table({"n": range(100)}))
        state = worker.checkpoint(f"0-{epoch}")
        written.append(blobs.written)
        restored = Worker(plan, state, 0, blobs)
        assert [[table.num_rows for table in tables] for tables in restored.queue.values()] == [[100]] * (
            epoch + 1
        )
        assert restored.references == worker.references
    assert len(set(np.diff(written))) == 1


def test_a_worker_counts_the_records_that_enter_and_those_that_it_sends() -> None:
    flow = ts.Dataflow("moved")
    flow.input("x", "n long").distinct().capture("out")
    plan = flow.compile(1)
    simulation = Simulation(plan, rounds_per_batch=1)
    simulation.send("x", [4, 5, 5])
    worker = Worker(plan, None, 0)

    worker.step(0, simulation._input[0], simulation.result.header)

    steps = {plan.nodes[plan.channels[at].target].name: n for at, n in worker.moved.items()}
    assert steps == {"distinct": 2, "out": 2}, "equal records are one before they enter"


def test_a_step_without_header_rows_reads_the_one_it_is_given() -> None:
    flow = flow_of(Log())
    plan = flow.compile(1)
    simulation = Simulation(plan, rounds_per_batch=1)
    simulation.send("x", [4])
    rows = simulation._input[0]

    _, made = step(plan, None, 0, 0, rows, simulation.result.header)

    assert made["kind"].to_pylist() == ["output", "report"]
