"""Why a row is in an output, or is not: against graphs, and by leaving records out."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.hops import hop_from
from timely_spark.errors import BadArgument, InvalidTime, SchemaError, UnknownName
from timely_spark.testing import explain_row

EDGES = "src long, dst long, diff long"


def reach() -> ts.Dataflow:
    flow = ts.Dataflow("reach")
    edges = flow.input("edges", EDGES).collection(diff="diff")
    roots = flow.input("roots", "node long").collection()

    roots.iterate(hop_from(roots, edges), name="hops").capture("near")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_a_node_is_near_because_of_a_path_in_the_graph_as_it_is_then(workers: int) -> None:
    draw, there, epochs, graphs = np.random.default_rng(workers), [], [], []  # type: ignore[var-annotated]
    for _ in range(2):
        gone, there = there[:4], there[4:]
        come = list({tuple(edge) for edge in draw.integers(0, 9, (6, 2)).tolist()} - {*there})
        there += come
        epochs.append([*((*edge, 1) for edge in come), *((*edge, -1) for edge in gone)])
        graphs.append(nx.DiGraph(there))
    plan = reach().compile(workers)

    for at, graph in enumerate(graphs):
        near = nx.descendants(graph, 0) | {0} if 0 in graph else {0}
        for node in [*sorted(near)[1:3], *sorted(set(range(9)) - near)[:1]]:
            why = explain_row(plan, {"edges": epochs, "roots": [[0]]}, "near", {"node": node}, at=at)
            assert why.present == (node in near)
            if why.present:
                path = nx.DiGraph(
                    zip(*(why.inputs["edges"][c].to_pylist() for c in ("src", "dst")), strict=True)
                )
                assert set(path.edges) <= set(graph.edges)
                assert list(nx.all_simple_paths(path, 0, node)) == [[*nx.topological_sort(path)]]
                sent = {each.step: each.records for each in why.steps}
                assert sent["hops.join"].num_rows >= path.number_of_edges()
                assert f"(node={node}) is in 'near' at epoch {at}, because of\n  edges: (src=" in str(why)


def orders() -> ts.Dataflow:
    flow = ts.Dataflow("orders")
    made = flow.input("orders", "id long, customer string, amount long, diff long", epochs="manual")
    banned = flow.input("banned", "customer string", epochs="manual").collection()
    sold = made.collection(diff="diff").antijoin(banned, on="customer")
    sold.sum("amount", keys="customer").where(pc.field("amount") >= 100, name="large").capture("good")
    made.collection(diff="diff").max("amount", keys="customer").capture("best")
    return flow


SOLD: list[list[Any]] = [
    [(1, "ann", 70, 1), (2, "ann", 40, 1), (3, "bob", 120, 1), (4, "cy", 60, 1)],
    [(2, "ann", 40, -1), (5, "cy", 50, 1), (6, "bob", 30, 1)],
]
GIVEN = {"orders": SOLD, "banned": [["bob"]]}


@pytest.mark.slow
def test_a_sum_needs_all_that_are_in_it() -> None:
    why = explain_row(orders(), GIVEN, "good", {"customer": "cy"})

    assert sorted(why.inputs["orders"]["id"].to_pylist()) == [4, 5]
    assert why.inputs["banned"].num_rows == 0
    assert not explain_row(orders(), GIVEN, "good", {"customer": "cy"}, at=0).present
    then = explain_row(orders(), GIVEN, "good", ("ann", 110), at=0)
    assert sorted(then.inputs["orders"]["id"].to_pylist()) == [1, 2]
    assert sum(each.step == "large" for each in then.steps) == 1


@pytest.mark.slow
def test_what_keeps_a_row_away_or_where_it_is_lost() -> None:
    banned = explain_row(orders(), GIVEN, "good", {"customer": "bob"})
    assert not banned.present
    assert banned.inputs["banned"]["customer"].to_pylist() == ["bob"]
    assert "would be without\n  banned: (customer='bob')" in str(banned)
    beaten = explain_row(orders(), GIVEN, "best", ("bob", 30))
    assert beaten.inputs["orders"]["id"].to_pylist() == [3]
    small = explain_row(orders(), GIVEN, "good", {"customer": "ann"})
    assert not any(table.num_rows for table in small.inputs.values())
    left = {each.step: each.records.num_rows for each in small.steps}
    assert left["sum"] == 1
    assert left["large"] == 0
    assert "no record was found that keeps it away" in str(small)


def program(flow: ts.Dataflow) -> None:
    """Joins, reductions, negation and a loop, all together."""
    x, y = (flow.input(name, "a long, b long, d long").collection(diff="d") for name in ("x", "y"))
    paths = x.select("a", c="b").join(y.select(c="a", b="b"), on="c").select("a", "b")

    def step(now: ts.Collection) -> ts.Collection:
        on = now.select("a", c="b").join(y.select(c="a", b="b"), on="c").select("a", "b")
        return on.concat(x).min("b", keys="a")

    low = x.iterate(step, max_iterations=4, on_limit="return")
    counts = paths.concat(low).count("b", keys="a")
    counts.antijoin(y.where(pc.field("b") == 0).select("a").distinct(), on="a").capture("out")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_smallest_explanation_suffices_and_needs_each_of_its_records(number: int) -> None:
    draw = np.random.default_rng(0)
    flow = ts.Dataflow("any")
    program(flow)
    inputs = {
        name: [[(*row, 1) for row in draw.integers(0, 4, (4, 2)).tolist()] for _ in range(2)] for name in "xy"
    }
    rows = ts.snapshot(ts.testing.run(flow, inputs)["out"]).to_pylist()
    assert len(rows) > number

    def there(row: Any, given: Any) -> bool:
        out = ts.testing.run(flow, {name: [table] for name, table in given.items()}, workers=2)["out"]
        return row in ts.snapshot(out).to_pylist()

    for row in rows[number : number + 1]:
        why = explain_row(flow, inputs, "out", row)
        assert there(row, why.inputs)
        for name, table in why.inputs.items():
            sent = Counter((a, b) for epoch in inputs[name] for a, b, _ in epoch)
            for i, record in enumerate(table.to_pylist()):
                assert sent[record["a"], record["b"]] == record["d"]
                rest = table.filter(pa.array([j != i for j in range(table.num_rows)], pa.bool_()))
                assert not there(row, {**why.inputs, name: rest})


def test_a_row_that_depends_on_epochs_is_of_those_epochs() -> None:
    flow = ts.Dataflow("epochs")
    flow.input("x", "k long, n long").group_by("k").aggregate(n=("sum", "n")).capture("sums")

    why = explain_row(flow, {"x": [[(1, 1), (2, 1)], [(1, 2)]]}, "sums", {"k": 1, "n": 1})

    assert why.present
    assert why.inputs["x"].to_pylist() == [{"k": 1, "n": 1}]


@pytest.mark.slow
def test_an_entity_has_its_id_because_of_the_epochs_of_its_records() -> None:
    flow = ts.Dataflow("entities")
    pairs = flow.input("pairs", "a long, b long, score double, diff long").collection(diff="diff")
    ts.entities(pairs, threshold=0.5).members.capture("members")
    epochs = [[(7, 8, 0.9, 1)], [(1, 2, 0.9, 1), (3, 4, 0.9, 1)], [(2, 7, 0.9, 1)], [(1, 2, 0.9, -1)], []]

    why = explain_row(flow, {"pairs": [*epochs, [(1, 2, 0.9, 1)]]}, "members", {"record": 1, "entity": "7@0"})

    assert why.present
    rows = [tuple(row.values()) for row in why.inputs["pairs"].to_pylist()]
    assert rows == [(7, 8, 0.9, 1), (1, 2, 0.9, 1), (2, 7, 0.9, 1), (1, 2, 0.9, -1), (1, 2, 0.9, 1)]
    assert not explain_row(flow, {"pairs": epochs}, "members", {"record": 1, "entity": "7@0"}).present


def test_streams_and_captured_inputs() -> None:
    flow = ts.Dataflow("stream")
    x = flow.input("x", "k long, n long")
    x.capture("log")
    x.where(pc.field("n") > 1).select("k").distinct().capture("keys")
    log = ts.testing.run(flow, {"x": [[(1, 1), (1, 2)], [(2, 5), (1, 7)]]})["log"]

    why = explain_row(flow, {"x": log}, "keys", 1)

    assert why.inputs["x"]["n"].to_pylist() in ([2], [7])
    assert not explain_row(flow, {}, "keys", 1).present


@pytest.mark.parametrize(
    ("output", "row", "inputs", "error", "text"),
    [
        ("goods", ("ann", 1), GIVEN, UnknownName, "did you mean 'good'"),
        ("good", {"custom": "ann"}, GIVEN, SchemaError, "not \\['custom'\\]"),
        ("good", ("ann", 1, 2), GIVEN, SchemaError, "a tuple of all of them"),
        ("good", {}, GIVEN, SchemaError, "not a row without columns"),
        ("good", {"customer": 7}, GIVEN, SchemaError, "7 is not a value of 'customer'"),
        ("good", {"amount": 1.5}, GIVEN, SchemaError, "1.5 is not a value of 'amount'"),
        ("good", {"customer": "ann"}, {"order": []}, UnknownName, "did you mean 'orders'"),
        ("good", {"customer": "ann"}, {"orders": 7}, BadArgument, "records by epoch"),
    ],
)
def test_mistakes(output: str, row: Any, inputs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        explain_row(orders(), inputs, output, row)


@pytest.mark.parametrize("at", [-1, 1.5, "now"])
def test_at_is_an_epoch(at: Any) -> None:
    with pytest.raises(InvalidTime, match=r"explain_row\(at=\).* is not an epoch"):
        explain_row(orders(), GIVEN, "good", {"customer": "ann"}, at=at)


@pytest.mark.slow
def test_what_is_sent_twice_keeps_a_row_away_until_both_are_gone() -> None:
    given = {**GIVEN, "banned": [["zoe", "bob", "kim"], ["bob"], ["lea", "tom"]]}

    why = explain_row(orders(), given, "good", {"customer": "bob"})

    assert why.inputs["banned"]["customer"].to_pylist() == ["bob", "bob"]


def test_one_of_those_that_are_equal_may_be_what_keeps_a_row_away() -> None:
    flow = ts.Dataflow("few")
    flow.input("x", "k string").collection().threshold(lambda n: n < 3).capture("out")

    why = explain_row(flow, {"x": [["a", "b", "a", "c", "a"]]}, "out", "a")

    assert why.inputs["x"]["k"].to_pylist() == ["a"]


def test_a_value_is_one_of_the_column_s_type() -> None:
    flow = ts.Dataflow("small")
    flow.input("x", "k float, d date").capture("out")

    why = explain_row(flow, {"x": [[(0.1, date(2026, 1, 1)), (0.2, None)]]}, "out", {"k": 0.1})

    assert why.present
    assert why.inputs["x"]["d"].to_pylist() == [date(2026, 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        ("array<double>", [float("nan"), None], [None, None]),
        ("struct<a: long>", {"a": 1}, {"a": None}),
        ("map<string, long>", {}, {"a": 1}),
        ("double", float("nan"), None),
    ],
)
def test_a_value_may_be_nested(kind: str, value: Any, other: Any) -> None:
    flow = ts.Dataflow("nested")
    flow.input("x", f"k long, v {kind}").capture("out")
    inputs = {"x": [[(1, value), (2, other)]]}

    assert explain_row(flow, inputs, "out", {"v": value}).inputs["x"]["k"].to_pylist() == [1]
    assert explain_row(flow, inputs, "out", {"v": other}).inputs["x"]["k"].to_pylist() == [2]


def test_of_a_step_with_several_outputs_only_what_goes_that_way_is_shown() -> None:
    class Split(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(edge, time, batch)

    for summaries in (None, {(0, 1): None, (1, 0): None}):
        flow = ts.Dataflow("split")
        inputs = [flow.input(name, "n long") for name in "ab"]
        for name, out in zip(
            "xy", flow.vertex(Split(), inputs, ["n long"] * 2, summaries=summaries), strict=True
        ):
            out.capture(name)
        given = {"a": [[3]], "b": [[2, 3]]}
        assert explain_row(flow, given, "x", {"n": 3}).inputs["a"].num_rows == 1
        missing = explain_row(flow, {"a": [[3]], "b": [[2]]}, "y", {"n": 3})
        assert not missing.present
        assert [step for step in missing.steps if step.records.num_rows] == []


@pytest.mark.slow
def test_columns_may_be_called_time_and_diff_and_the_flow_names_the_column_of_differences() -> None:
    flow = ts.Dataflow("readings")
    x = flow.input("x", "time long, diff string, change long", epochs="manual").collection(diff="change")
    x.distinct(name="once").capture("out", diff="change")
    x.count("n", keys="diff").capture("sizes", diff="change")
    readings = {"x": [[(5, "a", 1), (7, "b", 1)], [(5, "a", -1)]]}

    there = explain_row(flow, readings, "out", {"time": 7})
    sizes = explain_row(flow, readings, "sizes", {"diff": "b"})

    assert (there.present, there.inputs["x"]["time"].to_pylist()) == (True, [7])
    assert "once" in {each.step for each in there.steps}
    (once,) = (each.records for each in there.steps if each.step == "once")
    assert once.to_pylist() == [{"time_": "(0)", "time": 7, "diff": "b", "diff_": 1}]
    assert "): (0) (time=7, diff='b', diff_=1)" in str(there)
    assert sizes.present
    gone = explain_row(flow, readings, "out", {"time": 5})
    assert not gone.present
    assert not explain_row(flow, readings, "out", {"diff": "a", "time": 7}).present


@pytest.mark.slow
def test_a_call_of_the_library_is_one_line_of_the_text() -> None:
    """Strongly connected components are some fifty steps: the text has what leaves them."""
    flow = ts.Dataflow("rings")
    edges = flow.input("edges", "src long, dst long").collection()
    parts = ts.graphs.strongly_connected_components(edges, name="parts")
    parts.count("nodes", keys="component", name="sizes").capture("out")

    why = ts.testing.explain_row(flow, {"edges": [[(1, 2), (2, 1), (2, 3)]]}, "out", (1, 2))

    lines = [line.split(" (")[0].strip() for line in str(why).split("by way of")[1].splitlines() if line]
    assert lines == ["select", "parts", "sizes", "capture"]
    assert "): (0, 0) (node=1, component=1, diff=1); (0, 0) (node=2, component=1, diff=1)\n  sizes" in str(
        why
    )
    assert "parts.loop.loop.min" in {step.step for step in why.steps}
