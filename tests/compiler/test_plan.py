"""The physical plan: where exchanges stand, which are elided, and what runs at the sources."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler import Plan
from timely_spark.errors import BadArgument, CycleError, GraphError


def exchanges(plan: Plan) -> list[str]:
    """What costs a round: the channels between vertices that exchange."""
    return [
        f"{plan.nodes[c.source].name} -> {plan.nodes[c.target].name} {c.exchange}"
        for c in plan.channels
        if c.source is not None and c.exchange is not None
    ]


def built(build: Callable[[ts.Dataflow], Any], workers: int = 2) -> Plan:
    flow = ts.Dataflow("plan")
    build(flow)
    return flow.compile(workers)


def word_count(flow: ts.Dataflow) -> None:
    words = flow.input("lines", "line string").flat_map(lambda row: row.line.split(), "word string")
    words.group_by("word").count().capture("out")


def test_per_batch_stages_run_at_the_source_and_their_exchange_costs_no_round() -> None:
    plan = built(word_count)

    assert exchanges(plan) == []
    assert [node.name for node in plan.nodes] == ["aggregate", "out"]
    assert [str(channel.exchange) for channel in plan.channels if channel.source is None] == ["by word"]


def components(flow: ts.Dataflow) -> None:
    edges = flow.input("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))

    def spread(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        least = proposed.min("label", keys=["node"], name="least")
        near = least.join(proposed.scope.enter(both), left=["node"], right=["src"], name="near")
        return near.select(node="dst", label="label"), least

    both.select(node="src", label="src").loop(spread, name="loop").capture("out")


def test_a_loop_has_one_exchange() -> None:
    assert exchanges(built(components)) == ["loop.near -> loop.least by node"]


def test_one_worker_has_no_exchanges() -> None:
    assert exchanges(built(components, workers=1)) == []


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        # the key is preserved: elided
        (lambda x: x.group_by("k").count("v").group_by("k").count(), 0),
        (lambda x: x.distinct().where(pc.field("v") > 1).distinct(), 0),
        (lambda x: x.group_by("k").count("v").select(key="k", v="v").group_by("key").count(), 0),
        (lambda x: x.exchange("k").group_by("k").count(), 0),
        (lambda x: x.group_by("k").count("v").exchange("k"), 0),
        (lambda x: x.group_by("k").count("v").concat(x).group_by("k").count(), 0),
        (lambda x: x.group_by("k").count("n").join(x, on=["k"]), 0),
        # it moves: stands
        (lambda x: x.group_by("k").count("v").group_by("v").count(), 1),
        (lambda x: x.group_by("k").count("v").select(k="v", v="k").group_by("k").count(), 1),
        (
            lambda x: x.group_by("k").count("v").map(lambda row: (row.k, row.v), "k long, v long").distinct(),
            1,
        ),
        (lambda x: x.group_by("k", "v").count().group_by("v", "k").count("n"), 1),
        (lambda x: x.exchange("v").group_by("k").count(), 0),  # the first is of no use, and dropped
        (lambda x: x.broadcast().group_by("k").count(), 1),  # each copy counts
    ],
)
def test_an_exchange_is_elided_where_records_are_partitioned(build: Any, expected: int) -> None:
    plan = built(lambda flow: build(flow.input("x", "k long, v long")).capture("out"))

    assert len(exchanges(plan)) == expected


def test_the_plan_is_the_same_each_time_and_distinguishes_flows() -> None:
    assert built(components).fingerprint == built(components).fingerprint
    assert built(components).fingerprint != built(components, workers=3).fingerprint
    assert built(components).fingerprint != built(word_count).fingerprint


def test_a_function_of_the_users_is_the_same_in_another_process() -> None:
    """Its representation has an address; with that, no flow with a lattice could be started again."""

    def fingerprint(keys: str = "k") -> str:
        def merge(a: pa.Array, b: pa.Array) -> pa.Array:  # another object in each call
            return pc.max_element_wise(a, b)

        return built(
            lambda f: f.input("x", "k long, j long, v long").merge("v", merge, keys=keys).capture("o")
        ).fingerprint

    assert fingerprint() == fingerprint() != fingerprint("j")


def test_loop_counters_are_ignored_without_limits_and_waiting_vertices() -> None:
    def forgets(*, waits: bool, limit: int | None) -> frozenset[int]:
        def build(flow: ts.Dataflow) -> None:
            def body(n: ts.Stream) -> ts.Stream:
                least = n.distinct(name="seen")
                return least.settle() if waits else least

            flow.input("x", "n long").loop(body, name="l", max_iterations=limit, on_limit="return").capture(
                "out"
            )

        return built(build).by_name["l.seen"].ignored_counters

    assert forgets(waits=False, limit=None) == {0}
    assert forgets(waits=True, limit=None) == frozenset()
    assert forgets(waits=False, limit=3) == frozenset()


def test_a_vertex_that_waits_in_an_inner_loop_waits_for_the_outer_iteration_too() -> None:
    def build(flow: ts.Dataflow) -> None:
        def outer(n: ts.Stream) -> ts.Stream:
            return n.loop(lambda m: m.distinct(name="seen").settle(), name="inner")

        flow.input("x", "n long").loop(outer, name="outer").capture("out")

    assert built(build).by_name["outer.inner.seen"].ignored_counters == frozenset()


def test_a_cycle_that_does_not_advance_time_is_named_by_its_steps_and_lines() -> None:
    flow = ts.Dataflow("cycle")
    x = flow.input("x", "n long")
    stay = flow.vertex(Twice(), [x], "n long", name="stay")
    flow.graph.connect(stay.stage, 0, stay.stage, 0)

    with pytest.raises(CycleError, match=r"(?s)stay \(.*test_plan\.py:\d+\) -> stay .*Hint: ") as caught:
        flow.compile()
    assert "does not advance time" in str(caught.value)


class Twice(ts.Vertex):
    def on_recv(self, edge: int, time: Any, batch: Any) -> None:
        self.send_by(0, time, batch)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda flow: None, r"has no input\nHint: "),
        (lambda flow: flow.scope.inner().variable("n long"), r"is never fed\nHint: "),
    ],
)
def test_an_incomplete_graph_is_refused(build: Any, message: str) -> None:
    flow = ts.Dataflow("part")
    build(flow)

    with pytest.raises(GraphError, match=message):
        flow.compile()


def test_zero_workers_are_refused() -> None:
    flow = ts.Dataflow("few")
    flow.input("x", "n long").capture()

    with pytest.raises(BadArgument, match=r"(?s)workers=0.*\nHint"):
        flow.compile(0)


def test_a_loop_of_routing_alone_has_a_vertex_and_ends_by_its_limit() -> None:
    flow = ts.Dataflow("spin")
    flow.input("x", "n long").loop(lambda n: n, max_iterations=4, on_limit="return").capture("out")

    assert ts.testing.run(flow, {"x": [[7]]})["out"].rows() == {0: [(7,)] * 4}


def test_many_readers_of_one_stream_compute_it_once() -> None:
    calls: list[int] = []
    flow = ts.Dataflow("shared")
    shared = flow.input("x", "n long").exchange("n").map(lambda row: calls.append(1) or row.n, "n long")
    for i in range(3):
        shared.capture(f"out{i}")

    result = ts.testing.run(flow, {"x": [[1]]}, workers=2)

    assert [result[f"out{i}"].rows() for i in range(3)] == [{0: [(1,)]}] * 3
    assert calls == [1]


@pytest.mark.slow
def test_wide_and_long_flows_compile_and_run() -> None:
    flow = ts.Dataflow("wide")
    x = flow.input("x", "n long")
    parts = [x.where(pc.field("n") == i) for i in range(100)]
    chained = parts[0].concat(*parts[1:])
    for _ in range(100):
        chained = chained.select(n=pc.field("n") + 1)
    chained.capture("out")

    assert len(ts.testing.run(flow, {"x": [range(100)]}, workers=2)["out"].rows()[0]) == 100
    assert re.fullmatch("[0-9a-f]{16}", flow.compile(2).fingerprint)


def test_a_pickled_plan_works_in_the_order_of_the_original() -> None:
    plan = built(lambda flow: flow.input("x", "n long").group_by("n").count().capture("out"))
    copy = pickle.loads(pickle.dumps(plan))

    assert copy.times == ts.PRODUCT
    assert copy.in_order == plan.in_order is True
