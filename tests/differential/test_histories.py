"""What histories cost, by counting rows: of many times, after many epochs, and what an epoch writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.hops import hop_from
from tests.support.memory import Memory
from tests.support.turns import in_turn
from timely_spark.differential import DIFF
from timely_spark.differential.joins import JoinChanges
from timely_spark.differential.reduce import Reduce
from timely_spark.differential.reducers import Count
from timely_spark.differential.trace import insert
from timely_spark.errors import StateError
from timely_spark.state import Arrangement, codec
from timely_spark.state.row_times import by_join, times_of
from timely_spark.testing import Simulation
from timely_spark.times import Time
from timely_spark.worker.round import Worker


class Looked:
    """Counts the rows that histories give, and how many they hold at most."""

    def __init__(self) -> None:
        self.rows = self.held = self.batches = self.times = 0
        #: by history, of those with a key of this name, the rows it has given
        self.key, self.of = "", dict[Arrangement, int]()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    counts, find = Looked(), Arrangement.find

    def counted(self: Arrangement, *args: Any, **how: Any) -> Any:
        found = find(self, *args, **how)
        counts.rows += len(found)
        counts.times += 1
        if self.keys == (counts.key,):
            counts.of[self] = counts.of.get(self, 0) + len(found)
        counts.held = max(counts.held, len(self))
        counts.batches = max(counts.batches, len(self.parts))
        return found

    monkeypatch.setattr(Arrangement, "find", counted)
    return counts


class Alone:
    """The context of a vertex that is driven by hand: what it sends, and what it asks for."""

    worker, workers, times = 0, 1, ts.PRODUCT

    def __init__(self, vertex: ts.Vertex) -> None:
        self.vertex, self.epoch = vertex, 0
        self.sent: list[tuple[Any, pa.Table]] = []
        self.asked: list[Any] = []
        vertex._context = self

    def send(self, _: int, time: Any, batch: pa.Table) -> None:
        self.sent.append((time, batch))

    def notify(self, time: Any, _: Any) -> None:
        self.asked.append(time)

    def since(self) -> int:
        return self.epoch

    def compaction_frontier(self, *, downstream: bool = False) -> int:
        return self.epoch


def changes(**columns: Any) -> pa.Table:
    made = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return made.append_column(DIFF, pa.array(np.ones(made.num_rows, np.int64)))


# -- a join over many times ----------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [10_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.campaign)])
def test_a_join_with_a_history_of_a_million_times_looks_at_what_it_finds(times: int, looked: Looked) -> None:
    """Keys of their own, each at a time of its own, none of which is over."""
    vertex = JoinChanges((("k",), ("k",)), ("k", "a", "b"), None)
    context = Alone(vertex)
    at = np.arange(times)
    vertex.sides[1].insert(changes(k=at * 2, b=at).append_column("__timely_time0", pa.array(at)))

    vertex.on_recv(0, Time(0), changes(k=at * 2 + 1, a=at))
    assert looked.rows == 0
    assert context.sent == []

    vertex.on_recv(0, Time(0), changes(k=at[:1000] * 2, a=at[:1000]))
    assert looked.rows == 1000
    assert [time.epoch for time, _ in context.sent] == list(range(1000)), "at the later time of both"
    assert all(batch.num_rows == 1 for _, batch in context.sent)


@pytest.mark.slow
def test_rows_are_moved_once_to_be_split_by_join() -> None:
    n = 20_000
    rows = pa.table({"n": np.arange(n)})
    times = np.stack([np.arange(n) % (n // 2), np.zeros(n, np.int64)], axis=1)

    split = list(by_join(rows, times, Time(5, 1)))

    assert [moment for moment, _ in split] == [[epoch, 1] for epoch in range(5, n // 2)]
    assert len({part["n"].chunk(0).buffers()[1].address for _, part in split}) == 1, "slices of one table"
    assert sorted(pa.concat_tables([part for _, part in split])["n"].to_pylist()) == list(range(n))
    assert list(by_join(rows[:0], times[:0], Time(0, 0))) == []
    assert list(by_join(rows[:9], times[:9], Time(9, 9))) == [([9, 9], rows[:9])]


def odds_and_evens(*, epochs: str = "clock", index: str | None = None) -> ts.Dataflow:
    """How often one key came; joined, odd counts with even ones: never both at a time."""
    flow = ts.Dataflow("scaling")
    counts = flow.input("x", "k long", epochs=epochs).collection().count(keys="k")
    odd = counts.where(pc.equal(pc.bit_wise_and(pc.field("count"), 1), 1))
    even = counts.where(pc.equal(pc.bit_wise_and(pc.field("count"), 1), 0)).select("k", other="count")
    odd, even = odd.arrange("k") if index == "odd" else odd, even.arrange("k") if index == "even" else even
    odd.join(even, on="k").changes().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [100, pytest.param(20_000, marks=pytest.mark.campaign)])
@pytest.mark.timeout(1200)
def test_a_key_that_changes_in_every_epoch_costs_the_same_in_each(epochs: int, looked: Looked) -> None:
    simulation = Simulation(odds_and_evens())
    for _ in range(epochs):
        simulation.send("x", [0])
        simulation.step()
    simulation.run()

    assert not any(table.num_rows for table in simulation.captured["out"].epochs.values())
    assert looked.rows <= 10 * epochs
    assert looked.held <= 10
    assert looked.batches <= 5


@pytest.mark.slow
@pytest.mark.parametrize(("index", "workers"), in_turn([None, "odd", "even"], [1, 2]))
@pytest.mark.parametrize("times", [100, pytest.param(10_000, marks=pytest.mark.campaign)])
@pytest.mark.timeout(1200)
def test_a_key_that_changes_at_very_many_times_at_once_is_joined_in_linear_time(
    times: int, workers: int, index: str | None, looked: Looked
) -> None:
    """Differential's case: all of them are there before any of them is over."""
    simulation = Simulation(odds_and_evens(epochs="manual", index=index), workers=workers)
    for epoch in range(times):
        simulation.send("x", [0], epoch=epoch)
    simulation.close("x")
    simulation.run()

    assert not any(table.num_rows for table in simulation.captured["out"].epochs.values())
    assert looked.rows <= 10 * times
    assert looked.held <= 10


@pytest.mark.slow
@pytest.mark.parametrize("times", [500, pytest.param(100_000, marks=pytest.mark.campaign)])
@pytest.mark.timeout(1200)
def test_counting_what_comes_at_very_many_times_at_once_is_linear(times: int, looked: Looked) -> None:
    """All of them are there before any of them is over."""
    vertex = Reduce(Count(("k",), "n"), shared=False)
    context = Alone(vertex)
    for epoch in range(times):
        vertex.on_recv(0, Time(epoch), changes(k=[0]))
    assert len(context.asked) == times
    for epoch in range(times):
        context.epoch = epoch
        vertex.on_notify(Time(epoch))

    assert looked.rows <= 4 * times
    assert looked.held <= 10
    last, batch = context.sent[-1]
    assert last == Time(times - 1)
    assert sorted(zip(batch["n"].to_pylist(), batch[DIFF].to_pylist(), strict=True)) == [
        (times - 1, -1),
        (times, 1),
    ]


@pytest.mark.parametrize(("kind", "number"), [("long", int), ("double", float), ("decimal(30, 4)", Decimal)])
@pytest.mark.parametrize(
    "text", [None, "SELECT k, sum(v) AS s, avg(v) AS m, count(v) AS n FROM x GROUP BY k"]
)
def test_sums_and_means_look_at_no_value_again(
    kind: str, number: type, text: str | None, looked: Looked
) -> None:
    flow = ts.Dataflow("sums")
    x = flow.input("x", f"k long, v {kind}, diff long").collection(diff="diff")
    means = x.mean("v", keys="k").select("k", m="v")
    result = ts.sql(text, x=x) if text else x.sum("v", keys="k").join(means, "k")
    result.changes().capture("out")
    simulation = Simulation(flow)
    simulation.send("x", [(1, number(n % 250), 1) for n in range(1000)])
    simulation.run()
    looked.rows = 0
    simulation.send("x", [(1, number(7), -1)])
    simulation.run()

    assert looked.rows < 30
    assert looked.held < 30


def test_counting_distinct_values_looks_at_no_others(looked: Looked) -> None:
    flow = ts.Dataflow("distinct")
    x = flow.input("x", "k long, v long, diff long").collection(diff="diff")
    ts.sql("SELECT k, count(DISTINCT v) AS n, sum(DISTINCT v) AS s FROM x GROUP BY k", x=x).changes().capture(
        "out"
    )
    simulation = Simulation(flow)
    simulation.send("x", [(1, n % 250, 1) for n in range(1000)])
    simulation.run()
    looked.rows = 0
    simulation.send("x", [(1, 7, -1), (1, 8, -4)])
    simulation.run()

    assert looked.rows < 30
    assert simulation.captured["out"].rows() == {
        0: [(1, 250, 31125, 1)],
        1: [(1, 249, 31117, 1), (1, 250, 31125, -1)],
    }


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("algorithm", ["sssp", "pagerank"])
def test_a_loop_reads_the_history_of_a_key_once_in_an_epoch_and_not_in_every_iteration(
    algorithm: str, looked: Looked
) -> None:
    flow = ts.Dataflow("once")
    edges = flow.input("edges", "src long, dst long, weight long, diff long").collection(diff="diff")
    roots = flow.input("roots", "node long").collection()
    if algorithm == "sssp":
        made = ts.graphs.sssp(edges, roots)
    else:
        made = ts.graphs.pagerank(edges.select("src", "dst"), 15)
    made.changes().capture("out")
    simulation = Simulation(flow)
    draw = np.random.default_rng(0)
    rows = np.column_stack([draw.integers(0, 400, (2000, 2)), draw.integers(1, 99, 2000), np.ones(2000)])
    rows = rows.astype(np.int64)
    simulation.send("roots", [rows[0, 0]])
    simulation.send("edges", [tuple(row) for row in rows.tolist()])
    simulation.run()
    looked.rows, looked.key = 0, "node"
    gone = rows[:20] * [1, 1, 1, -1]
    simulation.send("edges", [tuple(row) for row in gone.tolist()])
    simulation.run()

    iterations = simulation.log[-1][1].stats["notifications"]
    assert iterations > 10, "so many iterations, each of which touches keys that others touch"
    assert looked.of, "the records' histories, and those of the results"
    assert looked.times > iterations / 4, "keys are looked at in many of them"
    for history, given in looked.of.items():
        assert given <= 2 * len(history)


# -- histories that stay small -------------------------------------------------------------------------------


LIVE = 200


def histories(simulation: Simulation) -> Iterator[tuple[str, Arrangement]]:
    """All histories of all workers, with the name of their step."""
    for index, state in enumerate(simulation.states):
        worker = Worker(simulation.plan, state, index, simulation.blobs)
        for name in worker.snapshots:
            held = vars(worker.vertex(simulation.plan.by_name[name])).values()
            for value in held:
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, Arrangement):
                        yield name, each


def degrees(x: ts.Collection) -> ts.Collection:
    return x.count(keys="src")


def least(x: ts.Collection) -> ts.Collection:
    return x.min("dst", keys="src")


def paths(x: ts.Collection) -> ts.Collection:
    return x.select(a="src", b="dst").join(x.select(b="src", c="dst"), on="b")


def shared(x: ts.Collection) -> ts.Collection:
    index = x.arrange("src")
    near = x.select(a="src", src="dst").join(index, on="src").count("n", keys="a")
    return near.concat(index.count("n").select(a="src", n="n"))


def reach(x: ts.Collection) -> ts.Collection:
    roots = x.where(pc.field("src") < 3).select(node="src").distinct()
    links = x.arrange("src")

    return roots.iterate(hop_from(roots, links))


FLOWS: list[Callable[[ts.Collection], ts.Collection]] = [
    degrees,
    least,
    paths,
    shared,
    reach,
    ts.Collection.distinct,
]


def window(epoch: int, seed: int = 0, step: int = 20) -> list[tuple[int, int, int]]:
    """Edges of which about `LIVE` are there: the newest come, the oldest go."""

    def edge(i: int) -> tuple[int, int]:
        drawn = np.random.default_rng([seed, i]).integers(0, 60, 2)
        return int(drawn[0]), int(drawn[1])

    come = range(epoch * step, (epoch + 1) * step)
    return [*((*edge(i), 1) for i in come), *((*edge(i - LIVE), -1) for i in come if i >= LIVE)]


@pytest.mark.slow
@pytest.mark.parametrize("make", FLOWS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("epochs", [20, pytest.param(1000, marks=pytest.mark.campaign)])
@pytest.mark.timeout(1200)
def test_after_many_epochs_a_history_holds_the_live_records_in_few_batches(make: Any, epochs: int) -> None:
    flow = ts.Dataflow("window")
    make(flow.input("x", "src long, dst long, d long").collection(diff="d")).changes().capture("out")
    simulation, young = Simulation(flow, workers=2), dict[str, int]()
    for epoch in range(epochs):
        simulation.send("x", window(epoch))
        simulation.run()
        if epoch == LIVE // 20:  # as many records are there as ever
            young = {name: len(each) for name, each in histories(simulation)}
    found = list(histories(simulation))

    assert found
    for name, each in found:
        # of a live record there may be its time, and, until batches merge, what has gone since
        assert len(each) <= 4 * max(young.get(name, 0), LIVE), name
        assert len(each.parts) <= math.log2(max(len(each), 2)) + 2, name


@pytest.mark.slow
def test_what_has_all_gone_leaves_no_rows() -> None:
    flow = ts.Dataflow("gone")
    x = flow.input("x", "src long, dst long, d long").collection(diff="d")
    shared(x).changes().capture("out")
    simulation = Simulation(flow)
    rows = [(i % 7, i % 5, 1) for i in range(50)]
    for _ in range(20):
        for diff in (1, -1):
            simulation.send("x", [(a, b, diff) for a, b, _ in rows])
            simulation.run()

    assert sum(len(each) for _, each in histories(simulation)) <= 2 * len(rows)


def test_times_that_nobody_can_tell_apart_become_one_and_no_others() -> None:
    history = Arrangement(["k"])
    for iteration in (0, 1):
        for epoch in range(8):
            insert(history, changes(k=[1]), Time(epoch, iteration), since=min(epoch, 5))
    _, rows = history.lookup(pa.table({"k": [1]}), ["k"])
    times, rows = times_of(rows, 2)

    found = {tuple(time) for time in times.tolist()}
    assert {(5, 0), (5, 1), (6, 0), (6, 1), (7, 0), (7, 1)} == {
        (max(e, 5), iteration) for e, iteration in found
    }
    for time in [
        (e, iteration) for e in range(5, 9) for iteration in (0, 1)
    ]:  # from `since` on all is as it was
        come_to = (times <= time).all(axis=1) @ rows[DIFF].to_numpy()
        assert come_to == sum(e <= time[0] and iteration <= time[1] for e in range(8) for iteration in (0, 1))
    assert len(history) < 16


def test_what_comes_before_a_time_from_which_all_is_one_is_refused() -> None:
    history = Arrangement(["k"])

    with pytest.raises(StateError, match=r"Time\(1, 7\) .* up to epoch 2"):
        insert(history, pa.table({"k": [1], DIFF: [1]}), Time(1, 7), since=2)

    assert len(history) == 0


def test_records_that_were_there_before_an_index_had_any_meet_its_first_one() -> None:
    flow = ts.Dataflow("early")
    index = flow.input("x", "k long, v long").collection().arrange("k")
    flow.input("y", "k long, w long").collection().join(index, on="k").changes().capture("out")
    y = [[(1, 5)], [(1, 6)], [(1, 7)], []]

    out = ts.testing.run(flow, {"x": [[], [], [], [(1, 9)]], "y": y})["out"].rows()

    assert out[3] == [(1, w, 9, 1) for w in (5, 6, 7)]


def test_an_index_and_its_readers_hold_each_record_once() -> None:
    """Whatever the number of readers."""

    def rows(readers: int) -> int:
        flow = ts.Dataflow("readers")
        index = flow.input("x", "k long, v long").collection().arrange("k")
        other = flow.input("y", "k long, w long").collection()
        for i in range(readers):
            other.join(index, on="k").changes().capture(f"out {i}")
        simulation = Simulation(flow)
        simulation.send("x", [(i, i) for i in range(1000)])
        simulation.run()
        return sum(len(each) for _, each in histories(simulation))

    assert rows(1) == rows(3) == 1000


# -- what is written -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [degrees, paths, shared, reach], ids=lambda make: make.__name__)
def test_a_small_change_writes_a_small_part(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOB_BYTES", 2_000)
    nodes, blobs = 10_000, Memory()
    draw = np.random.default_rng(0)
    flow = ts.Dataflow("written")
    make(flow.input("x", "src long, dst long, d long").collection(diff="d")).changes().capture("out")
    simulation = Simulation(flow, workers=2, blobs=blobs, rounds_per_batch=100)

    def send(edges: Any, diff: int) -> int:
        blobs.written, inline = 0, 0
        table = pa.table({"src": edges[:, 0], "dst": edges[:, 1], "d": np.full(len(edges), diff)})
        simulation.send("x", table)
        while simulation.step():
            inline += sum(len(state or b"") for state in simulation.states)
        return blobs.written + inline

    first = draw.integers(0, nodes, (2 * nodes, 2))
    whole = send(first, 1)
    small = [send(first[i * 20 : (i + 1) * 20], -1) for i in range(8)]

    assert sum(small) / len(small) < 0.2 * whole, "of a state that is packed, while few changes are not"


def test_what_a_reduction_feeds_back_waits_to_be_consolidated_in_the_first_iteration_only() -> None:
    flow, hops = ts.Dataflow("path"), 30
    edges, roots = flow.input("edges", "src long, dst long").collection(), flow.input("roots", "node long")
    ts.graphs.bfs(edges, roots.collection()).changes().capture("out")
    simulation = Simulation(flow)
    simulation.send("roots", [0])
    simulation.send("edges", [(node, node + 1) for node in range(hops)])
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(node, node, 1) for node in range(hops + 1)]}
    assert hops <= simulation.log[-1][1].stats["notifications"] < 1.5 * hops, "those of the reduction"
