"""Outputs of collections are those of their `changes()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import Simulation

EPOCHS = {"x": [[("a", 1, 1), ("b", 2, 1), ("a", 1, 1)], [("b", 2, -1), ("c", 3, 1)], []]}
ROWS = {0: [("a", 2, 1), ("b", 1, 1)], 1: [("b", 1, -1), ("c", 1, 1)], 2: []}

OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "capture": lambda of: of.capture("out"),
    "to_memory": lambda of: of.to_memory("out"),
    "subscribe": lambda of: of.subscribe(print, name="out"),
    "foreach_epoch": lambda of: of.foreach_epoch(print, release="epoch", name="out"),
    "to_files": lambda of: of.to_files("/nowhere", "csv", overwrite=True, name="out"),
    "to_delta": lambda of: of.to_delta("main.a.b", overwrite=True, name="out"),
    "to_kafka": lambda of: of.to_kafka("topic", "nowhere:1", key="k", options={"a": "b"}, name="out"),
}
#: what they must be given
FIRST: dict[str, list[Any]] = {
    "to_memory": ["view"],
    "subscribe": [print],
    "foreach_epoch": [print],
    "to_files": ["/nowhere"],
    "to_delta": ["/nowhere"],
    "to_kafka": ["topic", "nowhere:1"],
}


def counts(flow: ts.Dataflow) -> ts.Collection:
    return flow.input("x", "k string, v long, d long").collection(diff="d").count("n", keys="k")


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_of_a_collection_is_that_of_its_changes(name: str) -> None:
    flow, same = ts.Dataflow("flow"), ts.Dataflow("flow")
    collection = counts(flow)
    assert OUTPUTS[name](collection) is collection
    OUTPUTS[name](counts(same).changes())

    assert ts.testing.run(flow, EPOCHS, workers=2)["out"].rows() == ROWS
    assert ts.testing.run(same, EPOCHS, workers=2)["out"].rows() == ROWS
    mine, theirs = flow.outputs[0], same.outputs[0]
    assert (mine.kind, mine.release, mine.options) == (theirs.kind, theirs.release, theirs.options)
    assert mine.schema.names == ["k", "n", "diff"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_a_column_of_differences_with_a_free_name(name: str) -> None:
    flow = ts.Dataflow("flow")
    taken = counts(flow).select(k="k", diff="n")

    with pytest.raises(SchemaError, match=r"diff='diff' is a column already"):
        OUTPUTS[name](taken)
    getattr(taken, name)(*FIRST.get(name, []), diff="more")
    assert flow.outputs[0].schema.names == ["k", "diff", "more"]
    inside = taken.enter(flow.scope.inner(name="loop"))
    with pytest.raises(GraphError, match="inside loop 'loop'"):
        OUTPUTS[name](inside.select(k="k"))


def test_a_table_with_keys_is_the_current_collection() -> None:
    flow = ts.Dataflow("flow")
    counts(flow).to_delta("main.a.b", keys="k", diff="more")
    counts_ = flow.outputs[0]

    assert (counts_.options["keys"], counts_.options["diff"]) == (["k"], "more")
    with pytest.raises(GraphError, match="release='arrival'"):
        counts(ts.Dataflow("other")).to_delta("main.a.b", keys="k", release="arrival")


def test_a_collection_in_a_loop_can_be_inspected() -> None:
    flow = ts.Dataflow("flow")
    numbers = flow.input("x", "n long").collection()

    def halve(n: ts.Collection) -> ts.Collection:
        n.inspect("passing", limit=3)
        n.probe("watched")
        return n.map(lambda row: row.n // 2, "n long").distinct()

    numbers.iterate(halve, name="halves").capture("out")
    made = ts.testing.run(flow, {"x": [[5]]}, workers=2)
    assert made["out"].rows() == {0: [(0, 1)]}
    assert made["halves.passing"].rows() == {0: [(0, 1), (1, -1), (1, 1), (2, -1), (2, 1), (5, -1), (5, 1)]}


def test_the_frontier_at_a_collection_can_be_read() -> None:
    flow = ts.Dataflow("flow")
    probe = flow.input("x", "n long").collection().arrange("n").probe()
    simulation = Simulation(flow)
    simulation.send("x", [1])
    simulation.run()

    assert simulation.result.frontier[probe.name] == [[1]]


@pytest.mark.slow
def test_a_loop_in_the_body_of_a_loop_may_begin_with_a_collection_from_outside() -> None:
    """Which nodes are reached from a root by allowed ones; what is allowed grows with what is reached."""

    def build(*, by_hand: bool) -> ts.Dataflow:
        flow = ts.Dataflow("flow")
        edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        roots = flow.input("roots", "node long").collection()

        def grow(allowed: ts.Collection) -> ts.Collection:
            def hop(reached: ts.Collection) -> ts.Collection:
                targets = reached.join(edges, left="node", right="src").select(node="dst")
                return targets.semijoin(allowed, on="node").concat(roots).distinct()

            start = roots.enter(allowed.scope) if by_hand else roots
            reached = start.iterate(hop, name="reach")
            assert reached.scope == allowed.scope
            further = reached.join(edges, left="node", right="src").select(node="dst")
            return allowed.concat(further).distinct()

        roots.iterate(grow, name="grow").capture("out")
        return flow

    inputs = {
        "edges": [[(1, 2, 1), (2, 3, 1), (4, 5, 1)], [(3, 4, 1)], [(1, 2, -1)]],
        "roots": [[1], [], []],
    }
    truth = {0: [(1, 1), (2, 1), (3, 1)], 1: [(4, 1), (5, 1)], 2: [(n, -1) for n in (2, 3, 4, 5)]}
    for workers in (1, 2):
        for by_hand in (False, True):
            made = ts.testing.run(build(by_hand=by_hand), inputs, workers=workers, seed=5)
            assert made["out"].rows() == truth
