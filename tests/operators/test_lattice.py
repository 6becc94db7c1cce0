"""Merges of lattices, counts and thresholds: exact for all schedules, and without waiting inside loops."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import HOW
from timely_spark.errors import BadArgument, GraphError, SchemaError, TimelyError, VertexError
from timely_spark.testing import BrokenLaw, check_lattice, run

TRIED = {
    "merge": lambda x, _: x.merge("v", pc.max_element_wise, keys="k", name="it"),
    "when": lambda x, _: x.when(pc.field("v") > 1, keys="k", name="it"),
    "count_distinct": lambda x, _: x.count_distinct("n", keys="k", name="it"),
}
RECORDS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15)), max_size=6), min_size=3, max_size=3
)


def gcd(left: pa.Array, right: pa.Array) -> Any:
    """The lattice of divisors, upside down."""
    from math import gcd as of

    return pa.array([of(a, b) for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], pa.int64())


@pytest.mark.slow
@given(epochs=RECORDS, how=st.fixed_dictionaries(HOW), kind=st.sampled_from(["or", "gcd"]))
def test_a_key_has_the_merge_of_its_values_at_each_epoch(epochs, how, kind) -> None:
    flow = ts.Dataflow("merged")
    x = flow.input("x", "k long, v long", epochs="manual")
    x.merge("v", pc.bit_wise_or if kind == "or" else gcd, keys="k").capture("out")

    rows = run(flow, {"x": epochs}, **how)["out"].rows()

    there: dict[int, int] = {}
    for epoch, of in enumerate(epochs):
        before = dict(there)
        for k, v in of:
            merged = there.get(k, 0) | v
            if kind == "gcd":
                from math import gcd as exact

                merged = exact(there[k], v) if k in there else v
            there[k] = merged
        assert rows.get(epoch, []) == sorted((k, v) for k, v in there.items() if before.get(k) != v)


@pytest.mark.slow
@given(epochs=RECORDS, how=st.fixed_dictionaries(HOW), up_to=st.sampled_from([None, 1, 2, 3]))
def test_counts_and_thresholds_at_each_epoch(epochs, how, up_to) -> None:
    flow = ts.Dataflow("counted")
    counts = flow.input("x", "k long, v long", epochs="manual").count_distinct("n", keys="k", up_to=up_to)
    counts.capture("counts")
    counts.when(pc.field("n") >= 2, keys="k").capture("two")

    out = run(flow, {"x": epochs}, **how)

    there: dict[int, set[int]] = defaultdict(set)
    for epoch, of in enumerate(epochs):
        before = {k: min(len(v), up_to or 99) for k, v in there.items()}
        for k, v in of:
            there[k].add(v)
        after = {k: min(len(v), up_to or 99) for k, v in there.items()}
        assert out["counts"].rows().get(epoch, []) == sorted(
            (k, n) for k, n in after.items() if before.get(k) != n
        )
        passed = sorted((k,) for k, n in after.items() if n >= 2 > before.get(k, 0))
        assert out["two"].rows().get(epoch, []) == passed


EDGES = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=7), min_size=2, max_size=2
)


def _read_by_a_vertex(found: ts.Stream) -> ts.Stream:
    return found.select(bits="bits", node="node").unary_notify(
        lambda _, batch: batch.select(["node", "bits"]), "node long, bits long"
    )


READ = st.sampled_from(
    [lambda found: found, lambda found: found.merge("bits", pc.bit_wise_or, keys="node"), _read_by_a_vertex]
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(epochs=EDGES, how=st.fixed_dictionaries(HOW), read=READ)
def test_a_loop_of_merges_ends_exactly(epochs, how, read) -> None:
    """Each node gets the set of the nodes that reach it, as bits: once, when it is final, for any reader."""
    flow = ts.Dataflow("ancestors")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    one = pc.shift_left(pc.scalar(1), pc.field("src"))
    start = edges.select(node="dst", bits=one)

    def step(known: ts.Stream) -> Any:
        links = known.scope.enter(edges)
        seen = known.merge("bits", pc.bit_wise_or, keys="node")
        further = seen.join(links, left="node", right="src").select(node="dst", bits="bits")
        return further.concat(seen).merge("bits", pc.bit_wise_or, keys="node")

    read(start.loop(step)).capture("out")

    rows = run(flow, {"edges": epochs}, **how)["out"].rows()

    found: dict[int, int] = {}
    graph = nx.DiGraph()
    for epoch, of in enumerate(epochs):
        graph.add_edges_from(of)
        changed = rows.get(epoch, [])
        assert len(dict(changed)) == len(changed)
        found |= dict(changed)
        expected = {}
        for node in graph:
            above = nx.ancestors(graph, node) | (
                {node} if any(node in c for c in nx.simple_cycles(graph)) else set()
            )
            if above:
                expected[node] = sum(1 << one for one in above)
        assert found == expected


def test_what_is_derived_from_a_merge_does_not_leave_its_loop() -> None:
    flow = ts.Dataflow("derived")
    start = flow.input("x", "k long, v long")

    def step(known: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        merged = known.merge("v", pc.bit_wise_or, keys="k")
        return merged, merged.select(k="k", w=pc.field("v") + 1)

    start.loop(step).capture("out")
    with pytest.raises(GraphError, match=r"(?s)not final when they leave their loop.*Hint"):
        run(flow, {"x": [[(1, 1)]]})


@pytest.mark.slow
@given(epochs=EDGES, how=st.fixed_dictionaries(HOW))
def test_thresholds_in_a_loop(epochs, how) -> None:
    """Bloom's quorums: a node is on when two of its neighbours are, which may turn on others."""
    flow = ts.Dataflow("quorum")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    first = edges.where(pc.field("src") < 2).select(node="src").distinct()

    def step(on: ts.Stream) -> ts.Stream:
        votes = on.join(on.scope.enter(edges), left="node", right="src").select("dst", "node")
        more = votes.count_distinct("n", keys="dst", up_to=2).when(pc.field("n") >= 2, keys="dst")
        return more.select(node="dst").concat(on).distinct()

    first.loop(step).distinct().capture("out")

    rows = run(flow, {"edges": epochs}, **how)["out"].rows()

    found, links = set[int](), set[tuple[int, int]]()
    for epoch, of in enumerate(epochs):
        links |= set(of)
        found |= {node for (node,) in rows.get(epoch, ())}
        on = {a for a, _ in links if a < 2}
        while more := {b for _, b in links if len({a for a, c in links if c == b and a in on}) >= 2} - on:
            on |= more
        assert found == on


@pytest.mark.slow
def test_the_state_of_a_key_does_not_grow_with_the_number_of_its_values() -> None:
    flow = ts.Dataflow("long")
    x = flow.input("x", "k long, v long")
    x.merge("v", pc.max_element_wise, keys="k").capture("out")
    simulation = ts.testing.Simulation(flow)
    sizes = []
    for epoch in range(48):
        simulation.send("x", [(k, epoch) for k in range(64)])
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))

    assert max(sizes) == max(sizes[:16])
    assert simulation.captured["out"].rows()[47] == [(k, 47) for k in range(64)]


def test_crashes_change_nothing() -> None:
    flow = ts.Dataflow("crashes")
    x = flow.input("x", "k long, v long")
    x.merge("v", pc.bit_wise_or, keys="k").capture("out")
    x.count_distinct("n", keys="k", up_to=4).capture("counts")
    epochs = {"x": [[(n % 3, n) for n in range(9)], [(1, 64), (2, 1)], [(0, 9)]]}

    alone, crashed = run(flow, epochs), run(flow, epochs, workers=3, seed=2, crashes=0.3)

    assert alone["out"].rows() == crashed["out"].rows()
    assert alone["counts"].rows() == crashed["counts"].rows()


def test_nulls_and_nan_are_ignored() -> None:
    flow = ts.Dataflow("nulls")
    flow.input("x", "k long, v double").merge("v", pc.max_element_wise, keys="k").capture("out")

    rows = run(flow, {"x": [[(1, None), (1, 2.0), (2, float("nan")), (None, 1.0)]]}, workers=2)["out"].rows()

    assert sorted(rows[0], key=str) == [(1, 2.0), (None, 1.0)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: x.merge("v", 3, keys="k"), GraphError),
        (lambda x: x.merge("v", pc.or_, keys="v"), SchemaError),
        (lambda x: x.merge("w", pc.or_, keys="k"), SchemaError),
        (lambda x: x.when(pc.field("w") > 1, keys="k"), SchemaError),
        (lambda x: x.when(pc.field("v") > 1, keys="w"), SchemaError),
        (lambda x: x.count_distinct("k", keys="k"), SchemaError),
        (lambda x: x.count_distinct("n", keys="k"), SchemaError),
        (lambda x: x.select("k").count_distinct("n", keys="k", up_to=0), BadArgument),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[TimelyError]) -> None:
    x = ts.Dataflow("refused").input("x", "k long, v long, a array<long>")

    with pytest.raises(error, match=r"(?s)test_lattice.*Hint"):
        call(x)


def test_a_merge_that_returns_other_rows_is_an_error() -> None:
    flow = ts.Dataflow("fewer")
    flow.input("x", "k long, v long").merge("v", lambda a, b: a[:0], keys="k").capture("out")

    with pytest.raises(TimelyError, match=r"(?s)returned 0 values.*for \d pairs.*Hint"):
        run(flow, {"x": [[(1, 2), (1, 3)]]})


@pytest.mark.parametrize(
    "merge", [pc.max_element_wise, pc.min_element_wise, pc.bit_wise_or, pc.bit_wise_and, gcd]
)
def test_lattices_keep_the_laws(merge: Any) -> None:
    check_lattice(merge, [1, 2, 6, 4, 12])


@pytest.mark.parametrize(
    ("merge", "law"),
    [
        (pc.add, "idempotent"),
        (lambda a, b: a, "commutative"),
        (lambda a, b: pc.shift_right(pc.add(a, b), 1), "associative"),
    ],
)
def test_a_broken_law_is_named(merge: Any, law: str) -> None:
    with pytest.raises(BrokenLaw, match=rf"(?s)merge is not {law}.*test_lattice.*Hint"):
        check_lattice(merge, [1, 2, 5])


@pytest.mark.parametrize(
    "wrong", [(3, [1]), (pc.add, []), (pc.add, [1, None]), (pc.add, [1, "a"]), (pc.add, 5)]
)
def test_samples_are_checked(wrong: Any) -> None:
    with pytest.raises(BadArgument, match=r"(?s)test_lattice.*Hint"):
        check_lattice(*wrong)


@pytest.mark.slow
def test_a_merge_in_a_loop_that_is_settled_sends_the_merge_of_each_iteration() -> None:
    flow = ts.Dataflow("kept in step")
    x = flow.input("x", "k long, v long")

    def doubled(values: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        final = values.merge("v", pc.bit_wise_or, keys="k").settle()
        twice = pc.bit_wise_or(pc.field("v"), pc.shift_left(pc.field("v"), 1))
        return final.where(pc.field("v") < 8).select("k", v=twice), final

    x.loop(doubled).capture("out")
    epochs = [[(1, 1), (1, 2)], [(1, 16)]]
    for workers in (1, 3):
        assert run(flow, {"x": epochs}, workers=workers)["out"].rows() == {
            0: [(1, 3), (1, 7), (1, 15)],
            1: [(1, 19), (1, 23), (1, 31)],
        }


WINS = np.array([[0, 0, 2], [0, 1, 1], [2, 1, 2]])
TAKES: dict[str, Any] = {
    "not idempotent": pc.add,
    "not commutative": lambda left, right: left,
    # of scissors (0), paper (1) and stone (2) the one that wins: commutative, idempotent, and no order
    "not associative": lambda left, right: pa.array(WINS[np.asarray(left), np.asarray(right)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", TAKES)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_records_show_a_merge_that_breaks_the_law(law: str, workers: int) -> None:
    flow = ts.Dataflow("broken")
    flow.input("x", "k string, v long", epochs="manual").merge("v", TAKES[law], keys="k").capture("out")
    epochs = [[("b", 1), ("b", 1), ("a", 0)], [("a", 1)], [("a", 2)], [("a", 0), ("a", 1), ("a", 2)]]
    with pytest.raises(VertexError, match=rf"(?s)merge is {law}: .*of the record .*'k': '[ab]'"):
        run(flow, {"x": epochs}, workers=workers)


def test_the_law_is_checked_on_the_first_records_only() -> None:
    calls: list[int] = []

    def greatest(left: Any, right: Any) -> Any:
        calls[-1] += 1
        return pc.max_element_wise(left, right)

    flow = ts.Dataflow("checked")
    flow.input("x", "k long, v long").merge("v", greatest, keys="k", name="it").capture("out")
    vertex = flow.compile(1).by_name["it"].template
    for _ in range(3):
        calls.append(0)
        vertex.combine(0, pa.table({"k": range(20), "v": range(20)}))  # of each key one: nothing to merge
    assert [bool(number) for number in calls] == [True, True, False]


def union(one: Any, other: Any) -> Any:
    """The join of sets, and of maps by key, in Python."""
    if any(isinstance(each, dict) for each in (*one, *other)):
        found: dict[str, int] = {}
        for each in (*one, *other):
            found[each["who"]] = max(found.get(each["who"], each["n"]), each["n"])
        return [{"who": who, "n": n} for who, n in sorted(found.items())]
    return sorted({*one, *other})


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("kind", ["array<long>", "array<string>", "array<struct<who: string, n: long>>"])
@pytest.mark.parametrize("seed", range(3))
def test_sets_maps_and_counters_are_joined_as_their_type_says(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    each: Any = {
        "array<long>": lambda: draw.randrange(5),
        "array<string>": lambda: draw.choice("xyz"),
    }.get(kind, lambda: {"who": draw.choice("abc"), "n": draw.randrange(9)})
    epochs = [
        [(draw.choice("kl"), [each() for _ in range(draw.randrange(4))]) for _ in range(draw.randrange(5))]
        for _ in range(4)
    ]
    flow = ts.Dataflow("natural")
    x = flow.input("x", f"k string, v {kind}", epochs="manual")
    x.exchange("k").merge("v", keys="k").capture("out")
    again = x.loop(lambda v: v.merge("v", keys="k"))
    again.capture("loop_out")

    made = run(flow, {"x": epochs}, workers=1 + seed)

    now: dict[str, Any] = {}
    for epoch, rows in enumerate(epochs):
        before = dict(now)
        for key, value in rows:
            now[key] = union(now.get(key, []), value)
        expected = sorted((key, value) for key, value in now.items() if before.get(key) != value)
        for output in ("out", "loop_out"):
            assert sorted(made[output].rows().get(epoch, [])) == expected


def test_a_type_without_an_order_is_refused_when_the_graph_is_built() -> None:
    x = ts.Dataflow("x").input("x", "k string, v map<string, long>")
    with pytest.raises(SchemaError, match=r"(?s)merge: column 'v' of type map.*Hint: give merge="):
        x.merge("v", keys="k")


def test_a_merge_that_writes_to_its_array_again_is_checked_all_the_same() -> None:
    array = np.zeros(100, np.int64)

    def first(left: pa.Array, right: pa.Array) -> pa.Array:
        array[: len(left)] = left.to_numpy()
        return pa.array(array[: len(left)])

    flow = ts.Dataflow("first")
    flow.input("x", "k long, n long").merge("n", first, keys="k").capture("out")
    with pytest.raises(VertexError, match="merge is not commutative"):
        run(flow, {"x": [[(1, 5), (1, 7)]]})
