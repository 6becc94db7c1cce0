"""What must be exact, by counting: rounds, and the bytes of progress."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import timely_spark as ts
from tests.support.hops import hop, spread
from timely_spark.testing import Simulation


def splitmix64(x: Any) -> Any:
    u = np.uint64
    x = x + u(0x9E3779B97F4A7C15)
    x = (x ^ (x >> u(30))) * u(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u(27))) * u(0x94D049BB133111EB)
    return x ^ (x >> u(31))


def random_edges(n: int, m: int) -> pa.Table:
    i = np.arange(m, dtype=np.uint64)
    ends = {"src": splitmix64(np.uint64(2) * i), "dst": splitmix64(np.uint64(2) * i + np.uint64(1))}
    return pa.table({name: (end % np.uint64(n)).astype(np.int64) for name, end in ends.items()})


def components_flow(diff: str | None = None) -> ts.Dataflow:
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))

    first = both.select(node="src", component=pc.min_element_wise(pc.field("src"), pc.field("dst")))
    first.loop(spread(both, "component")).to_delta("nowhere", diff=diff, name="out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "most"), [(1, 1), (2, 4), pytest.param(8, 5, marks=pytest.mark.campaign)]
)
def test_connected_components_of_a_random_graph(workers: int, most: int) -> None:
    n, edges = 10_000, random_edges(10_000, 50_000)
    simulation = Simulation(components_flow(), workers=workers)
    simulation.send("edges", edges)
    simulation.run()

    src, dst = edges["src"].to_numpy(), edges["dst"].to_numpy()
    _, which = connected_components(coo_array((np.ones(len(src)), (src, dst)), shape=(n, n)), directed=False)
    least = np.full(n, n)
    np.minimum.at(least, which, np.arange(n))
    nodes = np.union1d(src, dst)
    out = simulation.captured["out"].epochs[0].sort_by("node")
    assert np.array_equal(out["node"].to_numpy(), nodes)
    assert np.array_equal(out["component"].to_numpy(), least[which[nodes]])
    assert simulation.rounds <= most
    assert simulation.log[-1][1].released == [("out", 0)], "the last batch is the one that releases"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_word_count_takes_one_batch_per_epoch(workers: int) -> None:
    flow = ts.Dataflow("words")
    lines = flow.input("lines", "line string")
    lines.flat_map(lambda row: row.line.split(), "word string").group_by("word").count().capture("out")
    simulation = Simulation(flow, workers=workers)
    for epoch in range(10):
        simulation.send("lines", ["round", "a b c d e"])
        simulation.step()
        assert simulation.result.released == [("out", epoch)]
        assert simulation.idle

    assert simulation.captured["out"].rows()[9] == [(word, 10) for word in ("a", "b", "c", "d", "e", "round")]
    assert simulation.rounds == 10


def test_one_worker_ends_an_epoch_with_nested_loops_in_one_batch() -> None:
    flow = ts.Dataflow("nested")

    def outer(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        odd = n.loop(inner, name="inner")
        return odd.where(pc.field("n") < 300).map(lambda row: row.n + 100, "n long"), odd

    def inner(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        parts = n.distinct().settle().exchange("n").branch(lambda row: row.n % 2 == 0)
        return parts.trues.map(lambda row: row.n // 2, "n long"), parts.falses

    out = flow.input("x", "n long").loop(outer, name="outer")
    out.group_by("n").count().capture("out")
    simulation = Simulation(flow, workers=1)
    for epoch in range(3):
        simulation.send("x", [64 + epoch, 7])
        simulation.step()
        assert simulation.result.released == [("out", epoch)]

    assert simulation.rounds == 3
    assert simulation.idle


class Barrier(ts.Vertex):
    """Forwards one token to every worker when its time is complete: back for another iteration, or out."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0 if time[-1] < self.iterations - 1 else 1, time, pa.table({"to": list(range(64))}))


def barriers(iterations: int, *, exchanges: int) -> ts.Dataflow:
    """A bulk-synchronous loop; with two exchanges there is a second barrier on the way."""
    flow = ts.Dataflow("barrier")
    scope = flow.scope.inner(name="loop")
    variable = scope.variable(flow.input("x", "to long"))
    back, out = flow.vertex(Barrier(iterations), variable, ["to long"] * 2, by=[["to"]], name="barrier")
    if exchanges == 2:
        back = back.unary_notify(lambda time, batch: batch, "to long", by=["to"], name="second")
    variable.feed(back)
    out.leave().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("iterations", [1, 5, 20])
def test_a_bulk_synchronous_loop_takes_one_round_per_iteration(iterations: int, workers: int) -> None:
    simulation = Simulation(barriers(iterations, exchanges=1), workers=workers)
    simulation.send("x", range(64))
    simulation.run()

    assert simulation.rounds == iterations
    assert sorted(simulation.captured["out"].epochs) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 5, 20])
def test_two_exchanges_per_iteration_take_two_rounds(iterations: int) -> None:
    simulation = Simulation(barriers(iterations, exchanges=2), workers=3)
    simulation.send("x", range(64))
    simulation.run()

    assert simulation.rounds == 2 * iterations - 1


def nested_barriers(iterations: int) -> ts.Dataflow:
    flow = ts.Dataflow("nested")
    outer = flow.scope.inner(name="outer")
    entered = outer.variable(flow.input("x", "to long"))
    inner = outer.inner(name="inner")
    variable = inner.variable(entered)
    back, out = flow.vertex(Barrier(iterations), variable, ["to long"] * 2, by=[["to"]], name="barrier")
    variable.feed(back)
    again, leaves = flow.vertex(
        Barrier(iterations), out.leave(), ["to long"] * 2, by=[["to"]], name="outer_barrier"
    )
    entered.feed(again)
    leaves.leave().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 3])
def test_nested_bulk_synchronous_loops_take_the_rounds_of_their_exchanges(iterations: int) -> None:
    simulation = Simulation(nested_barriers(iterations), workers=3)
    simulation.send("x", range(64))
    simulation.run()

    # per outer iteration: inner ones, the exchange to the outer barrier, and (but for the last) the one back
    assert simulation.rounds == iterations * (iterations + 1)


def test_progress_does_not_grow_with_the_records() -> None:
    def progress(n: int) -> tuple[int, int, int]:
        flow = ts.Dataflow("two")
        x = flow.input("x", "k long, v long")
        x.group_by("k").count("v").group_by("v").count().capture("out")
        simulation = Simulation(flow, workers=4)
        sizes, headers = [], []

        def seen(*parts: Any) -> None:
            *_, header, _, made = parts
            sizes.append(sum(map(len, made["meta"].to_pylist())))
            headers.append(len(header.encode()))

        simulation.on_step = seen
        simulation.send("x", pa.table({"k": np.arange(n) % (n // 2), "v": np.arange(n)}))
        simulation.run()
        return max(sizes), max(headers), simulation.rounds

    small, large = progress(100), progress(100_000)
    assert small[2] == large[2]
    assert large[0] < small[0] * 1.2, "only the numbers in the statistics have more digits"
    assert large[1] == small[1]


@pytest.mark.slow
def test_a_loop_of_many_iterations_keeps_no_iteration_in_its_progress() -> None:
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long")

    edges.where(pc.field("src") == 0).select(node="src").loop(hop(edges)).capture("out")
    simulation = Simulation(flow, workers=3)
    simulation.send("edges", [(i, i + 1) for i in range(150)])
    headers = []
    while simulation.step():
        headers.append(len(simulation.result.header.encode()))

    assert simulation.rounds > 20
    assert max(headers) < 200
