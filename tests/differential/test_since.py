"""Nothing arrives before `compaction_frontier`, at a vertex or at the readers of its arrangement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.worker.context import CallContext

EDGES = "src long, dst long, diff long"


def strong(edges: ts.Collection) -> ts.Collection:
    return ts.graphs.strongly_connected_components(edges)


def shared(edges: ts.Collection) -> ts.Collection:
    """Readers of one index, one of them behind an exchange, another in a loop."""
    index = edges.arrange("src")
    two = index.select(src="dst", first="src").join(index, on="src").select("first", "dst")
    far = ts.graphs.bfs(edges, index.count("n").where(pc.field("n") > 2).select(node="src"))
    return two.concat(far.select(first="node", dst="distance"))


READERS: dict[str, Callable[[ts.Collection, ts.Collection], ts.Collection]] = {
    "join": lambda roots, edges: roots.join(edges.arrange("src"), on="src"),
    "delta query": lambda roots, edges: ts.wcoj([roots, edges, edges.select("dst").distinct()]),
}


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_whose_other_input_is_slower_finds_the_index_as_it_was(reader: str) -> None:
    flow = ts.Dataflow("slower")
    edges = flow.input("edges", EDGES, epochs="manual").collection(diff="diff")
    roots = flow.input("roots", "src long", epochs="manual").collection()
    READERS[reader](roots, edges).changes().capture("out")
    simulation = ts.testing.Simulation(flow)
    for epoch in range(8):
        simulation.send("edges", [(1, 2, -1 if epoch % 2 else 1)], epoch=epoch)
        simulation.advance_to("edges", epoch + 1)
        simulation.run()
    simulation.send("roots", [1], epoch=0)
    for name in ("edges", "roots"):
        simulation.close(name)
    simulation.run()

    rows = simulation.captured["out"].rows()
    assert [rows[epoch] for epoch in range(8)] == [[(1, 2, -1 if epoch % 2 else 1)] for epoch in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "epochs", "seed"),
    in_turn([strong, shared], [("clock", 0), ("manual", 1), ("clock", 1), ("manual", 0)]),
)
def test_nothing_arrives_before_the_promised_epoch(
    seed: int, algorithm: Any, epochs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    promised: dict[tuple[int, int], int] = {}
    ahead = []
    since_of, call = CallContext.compaction_frontier, CallContext.call

    def compaction_frontier(self: CallContext, *, downstream: bool = False) -> int:
        since = since_of(self, downstream=downstream)
        plan, nodes = self.round.plan, [self.node.index]
        if downstream:
            nodes += [plan.channels[index].target for out in self.node.out for index in out]
        for node in nodes:
            promised[self.worker, node] = max(since, promised.get((self.worker, node), since))
        ahead.append(since - self.since())
        return since

    def checked(self: CallContext, node: Any, vertex: Any, called: Any, *others: Any) -> None:
        assert called.time.epoch >= promised.get((self.worker, node.index), 0)
        call(self, node, vertex, called, *others)

    monkeypatch.setattr(CallContext, "compaction_frontier", compaction_frontier)
    monkeypatch.setattr(CallContext, "call", checked)
    draw = np.random.default_rng(seed)
    flow = ts.Dataflow("promised")
    edges = flow.input("edges", EDGES, epochs=epochs).collection(diff="diff")
    algorithm(edges).changes().capture("out")
    simulation = ts.testing.Simulation(flow, workers=3, seed=seed)
    there: list[Any] = []
    for epoch in range(6):
        new = [tuple(edge) for edge in draw.integers(0, 6, (5, 2)).tolist()]
        gone, there = there[:3], [*there[3:], *new]
        rows = [(*edge, diff) for of, diff in ((new, 1), (gone, -1)) for edge in of]
        simulation.send("edges", rows, epoch=epoch)
        if epochs == "clock":
            simulation.step()
    if epochs == "manual":
        simulation.close("edges")
    simulation.run()

    assert isinstance(simulation.captured["out"].rows(), dict)
    assert max(ahead) > 0, "it is later than what holds everywhere"
    assert pa.concat_tables(simulation.captured["out"].epochs.values()).num_rows
