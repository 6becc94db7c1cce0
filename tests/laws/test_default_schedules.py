"""Simulations without a seed: rounds in a batch, workers in memory, and which inputs arrive together."""

from __future__ import annotations

import logging
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.schedules import SEED
from timely_spark.testing import Simulation, run


@pytest.fixture(params=[*range(3), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(3, 8))])
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A seed in the environment."""
    monkeypatch.setenv(SEED, str(request.param))
    return int(request.param)


def distances(kind: str) -> ts.Dataflow:
    """Hops from node 0: a reduction in a loop, of an index that a join shares, or of records of its own."""
    flow = ts.Dataflow("distances")
    edges = flow.input("edges", "src long, dst long, diff int").collection(diff="diff")
    start = flow.input("start", "node long, hops long").collection()

    def hop(reached: ts.Collection) -> ts.Collection:
        links = edges.enter(reached.scope)
        further = reached.join(links, left="node", right="src")
        proposed = further.select(node="dst", hops=pc.field("hops") + 1).concat(start.enter(reached.scope))
        if kind == "own":
            return proposed.min("hops", keys="node")
        index = proposed.arrange("node")
        return index.min("hops").join(index, on=["node", "hops"]).distinct()

    start.iterate(hop).capture("out")
    return flow


@pytest.mark.slow
def test_a_reduction_of_a_shared_index_in_a_loop_is_that_of_a_copy(seed: int) -> None:
    draw = random.Random(seed)
    edges = [[(draw.randrange(9), draw.randrange(9), 1) for _ in range(8)] for _ in range(3)]
    edges[2] += [(src, dst, -1) for src, dst, _ in edges[0]]
    inputs = {"edges": edges, "start": [[(0, 0)]]}

    shared, own = (run(distances(kind), inputs, workers=1 + seed % 3)["out"] for kind in ("shared", "own"))

    for epoch in range(3):
        rows = [sorted(map(str, ts.snapshot(out, at=epoch).to_pylist())) for out in (shared, own)]
        assert rows[0] == rows[1]


def test_a_reduction_of_a_shared_index_reads_what_comes_in_a_later_iteration() -> None:
    """Node 2 loses its edge in iteration 1 of epoch 1, and gets another way in iteration 2."""
    edges = [[(0, 1, 1), (0, 2, 1)], [(1, 2, 1), (0, 2, -1)]]

    out = run(distances("shared"), {"edges": edges, "start": [[(0, 0)]]})["out"]

    assert sorted(ts.snapshot(out).to_pylist(), key=str) == [{"node": n, "hops": n} for n in range(3)]


class Stale(ts.Vertex):
    """Counts its calls right only if its state is written and read before each."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.number: int | None = None

    def checkpoint(self) -> Any:
        return {"seen": self.seen}

    def restore(self, state: Any) -> None:
        self.seen = list(state["seen"])

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if self.number is None:
            self.number = len(self.seen)
        self.seen.append(self.number)
        self.send_by(0, time, pa.table({"n": [self.number]}))


def counting() -> ts.Dataflow:
    flow = ts.Dataflow("counting")

    def body(x: ts.Stream) -> ts.Stream:
        return flow.vertex(Stale(), x.exchange("n"), "n long", by="n", name="stale")

    flow.input("x", "n long").loop(body, max_iterations=4, on_limit="return").capture("out")
    return flow


def test_a_vertex_that_is_wrong_only_while_it_stays_in_memory_is_found_without_a_seed() -> None:
    found = run(counting(), {"x": [[0], [1], [2]]}, workers=2)["out"].rows()

    restored = Simulation(counting(), workers=2, rounds_per_batch=1)
    for n in range(3):
        restored.send("x", [n])
        restored.run()
    assert list(found.values()) != list(restored.captured["out"].rows().values())


@pytest.mark.slow
def test_a_batch_has_one_round_or_many_and_is_the_same_in_every_run(seed: int) -> None:
    def rounds() -> list[int]:
        simulation = Simulation(distances("own"), workers=2)
        for epoch in range(6):
            simulation.send("edges", [(n, n + 1, 1) for n in range(epoch * 5, epoch * 5 + 5)])
            if not epoch:
                simulation.send("start", [(0, 0)])
            simulation.run()
        return [result.stats["rounds"] for _, result in simulation.log]

    assert 1 in (drawn := rounds())
    assert max(drawn) > 5
    assert drawn == rounds()


def paired(epochs: Any) -> ts.Dataflow:
    flow = ts.Dataflow("paired")
    left, right = (flow.input(name, f"k long, {name} long", epochs=epochs) for name in "lr")
    left.join(right, on="k", per="time").capture("out")
    left.intersect(right.select("k", l="r")).capture("both")
    add = left.binary_notify(right, lambda _, x, y: [x.num_rows * y.num_rows], "n long", by=["k", "k"])
    add.where(pc.field("n") > 0).capture("product")
    return flow


@pytest.mark.slow
def test_what_two_inputs_by_the_clock_are_sent_together_may_have_two_times() -> None:
    inputs = {"l": [[(1, 1)]] * 12, "r": [[(1, 1)]] * 12}

    manual = run(paired("manual"), inputs)
    clock = run(paired("clock"), inputs)

    assert manual["out"].rows() == {epoch: [(1, 1, 1)] for epoch in range(12)}
    pairs = clock["out"].rows()
    assert {*map(len, pairs.values())} == {0, 1}, "both kinds of arrival"
    assert {epoch: [(1, 1)] if rows else [] for epoch, rows in pairs.items()} == clock["both"].rows()
    assert {epoch: [(1,)] if rows else [] for epoch, rows in pairs.items()} == clock["product"].rows()
    assert run(paired("clock"), inputs)["out"].rows() == pairs, "the same in every run"


@pytest.mark.slow
def test_explain_names_the_inputs_that_may_come_apart() -> None:
    assert "join matches records of one epoch of l, r:" in ts.show.explain(paired("clock"))
    assert "matches records of one epoch" not in ts.show.explain(paired("manual"))
    flow = ts.Dataflow("one")
    x = flow.input("x", "k long, v long")
    x.join(x.select("k", w="v"), on="k", per="time").capture("out")
    assert not flow.compile(2).pairing, "records of one input have one time"


def test_an_epoch_that_ends_with_its_input_is_the_last_one() -> None:
    for epochs in ("clock", "manual"):
        flow = ts.Dataflow("ends")
        flow.input("x", "n long", epochs=epochs).capture("out")
        for together in (False, True):
            rows = run(flow, {"x": [[1], [], [2]]}, together=together)["out"].rows()
            assert rows == {0: [(1,)], 1: [], 2: [(2,)]}


def test_a_failure_tells_the_seed(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    flow = ts.Dataflow("fails")
    flow.input("x", "n long").distinct().map(lambda row: 1 // row.n, "n long").capture("out")

    with caplog.at_level(logging.WARNING), pytest.raises(VertexError):
        run(flow, {"x": [[0]]})

    assert f"{SEED}={seed} in the environment" in caplog.text


def test_a_seed_in_the_environment_is_an_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "soon")
    with pytest.raises(ts.TimelyError, match=r"TIMELY_SPARK_SEED is 'soon'[\s\S]*Hint: set"):
        run(paired("clock"), {})
