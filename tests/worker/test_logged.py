"""A logged vertex: what it writes, when its state is written in full, and what is made of the log."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.memory import Memory
from timely_spark.errors import StateError, VertexError
from timely_spark.state import Arrangement, codec
from timely_spark.state.codec import unpack_parts
from timely_spark.testing import Recorded, Simulation
from timely_spark.worker import Worker, vertex_snapshot
from timely_spark.worker.round import FORMAT

SCHEMA = "n long, total long"


class Total(ts.Vertex):
    """Counts by number, in an array: there is nothing in it that could be written in part."""

    logged: ClassVar[bool] = True
    restored: ClassVar[int] = 0

    def __init__(self) -> None:
        self.totals = np.zeros(0, np.int64)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        counts = np.bincount(batch["n"].to_numpy(), minlength=len(self.totals))
        counts[: len(self.totals)] += self.totals
        self.totals = counts
        self.send_by(0, time, pa.table({"n": [0], "total": [int(counts.sum())]}))

    def restore(self, state: Any) -> None:
        type(self).restored += 1
        super().restore(state)


class Full(Total):
    logged = False


def flow_of(vertex: ts.Vertex) -> ts.Dataflow:
    flow = ts.Dataflow("totals")
    flow.vertex(vertex, flow.input("x", "n long"), SCHEMA, by="n", name="total").capture("out")
    return flow


def simulate(vertex: ts.Vertex, **options: Any) -> Simulation:
    return Simulation(flow_of(vertex), rounds_per_batch=1, **options)


def send(simulation: Simulation, records: Any) -> None:
    simulation.send("x", pa.table({"n": pa.array(records, pa.int64())}))
    simulation.run()


def state_of(simulation: Simulation) -> Any:
    state = simulation.states[0]
    assert state is not None
    return Worker(simulation.plan, state, 0, simulation.blobs)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOB_BYTES", 500)
    monkeypatch.setattr(vertex_snapshot, "LOG_BYTES", 4_000)


@pytest.mark.slow
def test_a_round_writes_what_it_received_however_large_the_state() -> None:
    written = {}
    for vertex in (Total(), Full()):
        blobs = Memory()
        simulation = simulate(vertex, blobs=blobs)
        send(simulation, np.arange(200_000))
        blobs.written, inline = 0, 0
        for i in range(40):
            send(simulation, np.arange(i, i + 100))
            inline += len(simulation.states[0] or b"")
        written[type(vertex)] = blobs.written + inline
        assert state_of(simulation).snapshots["total"].full_size > 1_000_000
    inputs = 40 * 100 * 8
    # each record a few times, as segments are merged, and what a call costs by itself
    assert written[Total] < 30 * inputs + 40 * (32 << 10)
    assert written[Total] < written[Full] / 30


@pytest.mark.slow
def test_a_log_is_replaced_by_the_full_state_when_it_is_as_large() -> None:
    blobs = Memory()
    simulation = simulate(Total(), blobs=blobs)
    logs, written = [], []
    for i in range(150):
        send(simulation, np.arange(150 * i, 150 * i + 150))
        (state,) = state_of(simulation).snapshots.values()
        logs.append(state.log_size)
        written.append(state.full_size)
        assert state.log_size <= max(state.full_size, vertex_snapshot.LOG_BYTES)
        assert len(state.log) < 10
    fulls = sorted(set(written))
    assert 2 < len(fulls) < 8, "each about twice as large as the one before"
    assert logs.count(0) == len(fulls) - 1
    assert max(logs) > 1.2 * vertex_snapshot.LOG_BYTES, "a larger state lets it grow longer"
    assert blobs.written < 12 * max(written), "amortised: nothing grows with the number of rounds"


@pytest.mark.usefixtures("small")
def test_small_logs_are_in_the_state_and_large_ones_in_blobs() -> None:
    simulation = simulate(Total(), blobs=Memory())
    send(simulation, [1])
    assert not state_of(simulation).references
    send(simulation, np.arange(300))
    worker = state_of(simulation)
    assert len(worker.references) == 1
    assert worker.sizes == {"total": worker.snapshots["total"].log_size}
    assert worker.sizes["total"] > 300 * 8 > len(simulation.states[0] or b"")
    assert not worker.arrangement_bytes, "a log is read from end to end"


@pytest.mark.usefixtures("small")
def test_sizes_are_by_step_and_include_blobs() -> None:
    sizes = []
    for blobs in (None, Memory()):
        flow = flow_of(Full())
        flow.input("y", "n long").map(lambda row: row.n, "n long").capture("plain")
        simulation = Simulation(flow, blobs=blobs)
        send(simulation, np.arange(300))
        simulation.send("y", [1])  # a round without the vertex
        simulation.run()
        worker = state_of(simulation)
        assert bool(worker.references) == (blobs is not None)
        sizes.append(worker.sizes)
    assert sizes[0] == sizes[1]
    assert list(sizes[0]) == ["total"], "there is no more that has a state"
    assert sizes[0]["total"] > 300 * 8


@pytest.mark.usefixtures("small")
def test_the_whole_checkpoint_is_one_piece_in_full_and_changes_nothing() -> None:
    simulation = simulate(Total(), blobs=Memory())
    for i in range(5):
        send(simulation, np.arange(20 * i, 20 * i + 20))
    worker = state_of(simulation)
    assert worker.references
    kept, sizes = worker.references, worker.sizes
    whole = worker.checkpoint(inline=True)

    assert (worker.references, worker.sizes) == (kept, sizes)
    assert worker.checkpoint() == simulation.states[0]
    alone = Worker(simulation.plan, whole, 0)
    assert not alone.references
    assert not alone.snapshots["total"].log
    node = simulation.plan.by_name["total"]
    for each in (alone, worker):
        assert vars(each.vertex(node))["totals"].tolist() == [1] * 100


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", [Total, Full])
def test_a_vertex_that_is_not_called_is_not_restored(kind: Any) -> None:
    flow = flow_of(kind())
    flow.input("y", "n long").capture("plain")
    simulation = Simulation(flow, blobs=Memory())
    for _ in range(3):
        send(simulation, np.arange(200))
    before = state_of(simulation).snapshots["total"]
    kind.restored, sizes = 0, []
    for _ in range(3):
        simulation.send("y", [1])
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))
        after = state_of(simulation).snapshots["total"]
        assert after.log == before.log
    assert kind.restored == 0
    assert sizes[-1] < 500, "what is large is written once more only to be kept apart"


@pytest.mark.usefixtures("small")
def test_a_log_is_read_by_a_vertex_that_is_no_longer_logged() -> None:
    one, other = simulate(Total(), blobs=Memory()), simulate(Full())
    plans = [one.plan, other.plan]
    for i in range(6):
        one.plan = plans[i % 2]
        for simulation in (one, other):
            send(simulation, [i, 100])
        (state,) = state_of(one).snapshots.values()
        assert bool(state.log) == (i % 2 == 0)
        assert isinstance(state.full, codec.BlobRef) == (i % 2 == 0 < i), (
            "what is written again is kept apart"
        )
    assert one.captured["out"].rows() == other.captured["out"].rows()


class Fails(Total):
    broken: ClassVar[bool] = False

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if self.broken:
            msg = "not as it was"
            raise ValueError(msg)
        super().on_recv(edge, time, batch)


def test_an_error_in_a_replayed_call_names_the_step_and_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = simulate(Fails())
    send(simulation, [1])
    monkeypatch.setattr(Fails, "broken", True)

    with pytest.raises(VertexError, match=r"step 'total' \(.*test_logged\.py.*at Time\(0\).*not as it was"):
        send(simulation, [2])


class Oldest(ts.Vertex):
    """Keeps what the context answers, which is another thing when it is asked again."""

    logged = True

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.state = Arrangement(["n"])

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.asked.append((edge, self._context.since(), self.worker, self.workers))
        self.state.insert(batch)
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.asked.append((time, self._context.since()))
        self.send_by(0, time, pa.table({"n": [len(self.asked)], "total": [len(self.state)]}))


def test_replayed_calls_get_the_same_epochs_and_send_nothing() -> None:
    simulation = simulate(Oldest(), workers=2)
    for i in range(6):
        send(simulation, [i, i + 1])
    node = simulation.plan.by_name["total"]
    asked = [
        vars(Worker(simulation.plan, state, index).vertex(node))["asked"]
        for index, state in enumerate(simulation.states)
    ]

    for index, calls in enumerate(asked):
        assert {call[2:] for call in calls if len(call) == 4} == {(index, 2)}
        answers = [call[1] for call in calls]
        assert answers == sorted(answers)
        assert len(set(answers)) > 2, "each as it was when the call was made"
    sent = [rows for of in simulation.captured["out"].rows().values() for rows in of]
    assert len(sent) == sum(len(calls) // 2 for calls in asked)


# -- what is pickled -----------------------------------------------------------------------------------------


class Trie:
    """Something of which the codec knows nothing."""

    opened: ClassVar[int] = 0

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        type(self).opened += 1
        vars(self).update(state)


class Refused(ts.Vertex):
    def __init__(self) -> None:
        self.trie: Any = None

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.trie = self.trie or Trie()
        self.trie.words[str(time.epoch)] = batch.num_rows
        self.send_by(0, time, pa.table({"n": [0], "total": [len(self.trie.words)]}))


class Pickles(Refused):
    pickles = "a trie has no Arrow form"


def test_an_object_is_refused_unless_the_vertex_says_why_it_must_be_pickled() -> None:
    with pytest.raises(VertexError, match=r"(?s)step 'total' .*type Trie cannot be kept as state.*`pickles`"):
        ts.testing.run(flow_of(Refused()), {"x": [[1]]})

    rows = ts.testing.run(flow_of(Pickles()), {"x": [[1]] * 4})["out"].rows()
    assert rows == {i: [(0, i + 1)] for i in range(4)}


def test_pickled_state_is_not_unpickled_for_a_vertex_without_a_reason() -> None:
    simulation = simulate(Pickles())
    send(simulation, [1])
    simulation.plan = flow_of(Refused()).compile(1)
    Trie.opened = 0

    with pytest.raises(VertexError, match=r"(?s)step 'total' .*StateError.*pickled.*Hint: .*`pickles`"):
        send(simulation, [2])
    assert Trie.opened == 0


def test_what_cannot_be_pickled_is_refused_too() -> None:
    class Local(Pickles):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.trie = lambda: 1

    with pytest.raises(VertexError, match=r"(?s)step 'total' .*type function cannot be pickled.*Hint: "):
        ts.testing.run(flow_of(Local()), {"x": [[1]]})


def test_pickles_is_a_text() -> None:
    with pytest.raises(StateError, match=r"Silent.*pickles=True.*\n?.*Hint: give the reason"):

        class Silent(Pickles):
            pickles = True  # type: ignore[assignment]


def test_a_state_of_another_version_is_refused() -> None:
    simulation = simulate(Total())
    send(simulation, [1])
    head, *_ = unpack_parts(simulation.states[0])
    mine, older = (b'{"format":%d' % version for version in (FORMAT, FORMAT - 1))
    assert bytes(head).startswith(mine)
    state = (simulation.states[0] or b"").replace(mine, older)

    with pytest.raises(StateError, match=rf"format {FORMAT - 1}, .* reads {FORMAT}\nHint: "):
        Worker(simulation.plan, state, 0)


# -- the queue -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_queued_batches_are_written_once() -> None:
    blobs, inputs = Memory(), 6
    flow = ts.Dataflow("slow")
    streams = [flow.input(f"x{i}", "n long") for i in range(inputs)]
    for i, stream in enumerate(streams):
        flow.vertex(Full(), stream, SCHEMA, by="n", name=f"v{i}").capture(f"out{i}")
    simulation = Simulation(flow, blobs=blobs, budget=ts.worker.Budget(steps=1), rounds_per_batch=1)
    table = pa.table({"n": np.zeros(10_000, np.int64)})
    for i in range(inputs):
        simulation.send(f"x{i}", table)
    inline = 0
    rounds = 0
    while simulation.step():
        inline += len(simulation.states[0] or b"")
        rounds += 1
    assert rounds > inputs
    assert blobs.written < 1.1 * inputs * table.nbytes
    assert inline < table.nbytes
    assert [out.rows() for out in simulation.captured.values()] == [{0: [(0, 10_000)]}] * inputs
    assert not state_of(simulation).references


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", [Total, Full])
def test_a_recorded_round_runs_again_with_the_same_results(kind: Any) -> None:
    simulation = simulate(kind(), blobs=Memory())
    for i in range(4):
        send(simulation, np.arange(i, 100 * i + 50))
    rounds = []

    def record(batch: int, index: int, *parts: Any) -> None:
        before, rows, header, after, out = parts
        old, new = (
            Worker(simulation.plan, state, index, simulation.blobs).checkpoint(inline=True)
            for state in (before, after)
        )
        rounds.append(
            Recorded(batch=batch, worker=index, header=header, state=old, rows=rows, new_state=new, out=out)
        )

    simulation.on_step = record
    for i in range(4):
        send(simulation, [i, 200])
    assert len(rounds) == 4
    for one in rounds:
        state, out = one.again(simulation.plan)
        assert state == one.new_state
        assert out.equals(one.out)
