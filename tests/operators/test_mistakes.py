"""Mistakes in the writing of a flow: each raises an error with line and hint, or is accepted."""

from __future__ import annotations

import functools
import operator
import re
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, NoSuchMethod, SchemaError, TimelyError
from timely_spark.testing import run


class Silent(ts.Vertex):
    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch)


def people(flow: ts.Dataflow | None = None) -> Any:
    return (flow or ts.Dataflow("people")).input("people", "id long, name string, per long")


def rows(stream: Any) -> Any:
    stream.capture("out")
    return run(stream.flow, {"people": [[(1, "a", 5), (1, "b", 6)]]}, workers=2)["out"].rows()[0]


def test_a_column_called_name_is_written_in_a_mapping() -> None:
    assert rows(people().select("id", {"name": "name"}, up=pc.field("per") + 1)) == [(1, "a", 6), (1, "b", 7)]
    last = people().group_by("id").aggregate({"name": ("max", "name"), "per": "count"}, low=("min", "per"))
    assert rows(last) == [(1, "b", 2, 5)]
    assert rows(people().aggregate({"name": ("min", "name")})) == [("a",)]


@pytest.mark.parametrize(
    "slip",
    [
        lambda x: x.select(id="id", name="name"),
        lambda x: x.select(id="id", name=pc.field("name")),
        lambda x: x.aggregate(n="count", name="name"),
        lambda x: x.group_by("id").aggregate(n="count", name=("max", "name")),
        lambda x: x.group_by("id").aggregate(n="count", per=("max", "per")),
    ],
)
def test_a_column_name_as_the_name_of_a_step_is_refused(slip: Any) -> None:
    with pytest.raises(SchemaError, match=r"(?s)\(.*test_mistakes\.py:\d+\).*Hint: .*\(\{"):
        slip(people())


def test_one_column_may_be_given_as_a_text() -> None:
    flow = ts.Dataflow("text")
    left, right = flow.input("l", "id long, a long"), flow.input("r", "id long, b long")
    built = [
        left.join(right, "id"),
        left.join(right, left="id", right="id"),
        left.min("a", keys="id"),
        left.max("a", keys=("id",)),
        left.unary(lambda time, batch: batch, left.schema, by="id"),
        left.unary(lambda time, batch: batch, left.schema, by=["id", "a"]),
        left.binary(right, lambda side, time, batch: None, "n long", by=("id", ["id", "b"])),
        flow.vertex(Silent(), left, left.schema, by="id"),
        flow.vertex(Silent(), left, left.schema, by=["id", "a"]),
        flow.vertex(Silent(), left, left.schema, by=[["id"]]),
        flow.vertex(Silent(), [left, right], left.schema, by=["id", None]),
    ]
    left.to_delta("/nowhere", keys="id")

    required = [[need and need.columns for need in stream.stage.requires] for stream in built]
    one, both = ("id",), ("id", "a")
    assert required[:4] == [[one, one], [one, one], [one], [one]]
    assert required[4:7] == [[one], [both], [one, ("id", "b")]]
    assert required[7:] == [[one], [both], [one], [one, None]]
    assert flow.outputs[-1].options["keys"] == ["id"]


SLIPS: dict[str, tuple[Any, str]] = {
    "a table by no key": (lambda _, x: x.to_delta("t", keys=[]), r"to_delta: keys=\[\] has no column"),
    "parts of no column": (
        lambda _, x: x.to_delta("t", partition_by="dya"),
        r"partition_by has 'dya', the table has the columns \['id', 'name', 'per', 'epoch'\]",
    ),
    "clusters of no column": (
        lambda _, x: x.to_delta("t", keys="id", cluster_by=["epoch"]),
        r"cluster_by has 'epoch', the table has the columns \['id', 'name', 'per'\]",
    ),
    "parts and clusters": (
        lambda _, x: x.to_delta("t", partition_by="id", cluster_by="id"),
        "leave one out",
    ),
    "all parts": (
        lambda _, x: x.to_delta("t", keys="id", partition_by=["id", "name", "per"]),
        "has all columns of the table",
    ),
    "an own property": (lambda _, x: x.to_delta("t", properties={"timely_spark.x": ""}), "another name"),
    "by too short": (
        lambda f, x: f.vertex(Silent(), [x, x], x.schema, by=[["id"]]),
        "has 1 entries for 2 inputs",
    ),
    "by too long": (
        lambda f, x: f.vertex(Silent(), x, x.schema, by=[["id"], None]),
        "has 2 entries for 1 inputs",
    ),
    "by a text": (lambda f, x: f.vertex(Silent(), [x, x], x.schema, by="id"), "for 2 inputs"),
    "by of binary": (lambda f, x: x.binary(x, print, "n long", by=(["id"],)), "has 1 entries for 2 inputs"),
    "a class": (lambda f, x: f.vertex(Silent, x, x.schema), r"Hint: .*Silent\(\)"),
    "no streams": (lambda f, x: f.vertex(Silent(), [], x.schema), "no streams"),
    "on and left": (lambda f, x: x.join(x, on="id", left="id"), "on='id' and left='id'"),
    "no stream": (lambda f, x: x.join("y", "id"), "got a str, not a stream"),
    "keys": (lambda f, x: x.min("id", keys=3), "not column names"),
    "no columns": (lambda f, x: x.select(), r"select: its records have no columns.*pc\.scalar"),
    "no columns of an input": (
        lambda f, x: f.input("y", pa.schema([])),
        "y: its records have no columns",
    ),
    "a constant": (lambda f, x: x.select(a=1), r"a=1 is neither.*pc\.scalar"),
    "an expression as a text": (lambda f, x: x.select(a="idd + 1"), r"no column 'idd'.*did you mean id"),
    "a function": (lambda f, x: x.select(a=lambda row: row.id), r"Hint: map\(\)"),
    "a text": (lambda f, x: x.where("id + 3"), r"pc\.field.*lambda"),
    "a number": (lambda f, x: x.aggregate(a=1), "a=1"),
    "no function": (lambda f, x: x.map("id", "n long"), "not a function"),
    "no function of batches": (lambda f, x: x.unary(None, "n long"), "unary got None, not a function"),
    "a function of nothing": (
        lambda f, x: x.map(lambda: 1, "n long"),
        "map: the function takes other arguments.*let it take 1 argument: row",
    ),
    "a predicate of two": (lambda f, x: x.where(lambda a, b: True), "where: the function takes.*'b'"),
    "a function of two": (lambda f, x: x.collection().flat_map(lambda a, b: [a], "n long"), "'b'"),
    "a reducer of rows": (
        lambda f, x: x.collection().reduce(lambda rows: rows, "n long", keys="id"),
        "let it take 2 arguments: key, rows",
    ),
    "a reducer without its state": (
        lambda f, x: x.stateful_map(lambda key, rows: ([], None), "n long", keys="id", state="m long"),
        "let it take 3 arguments: key, rows, state",
    ),
    "a function of a batch alone": (lambda f, x: x.unary(lambda batch: batch, "n long"), "time, table"),
    "a subscriber of an epoch": (lambda f, x: x.subscribe(lambda epoch: None), "epoch, table"),
    "no subscriber": (lambda f, x: x.subscribe(None), "subscribe got None"),
    "a subscriber to the end": (lambda f, x: x.subscribe(print, 3), "subscribe got 3"),
    "a writer of a frame": (lambda f, x: x.foreach_epoch(lambda frame: None), "frame, epoch"),
    "both windows": (
        lambda f, x: x.window("id", ts.every(5)).capture("out"),
        "Windows has no 'capture'.*closed, late",
    ),
    "both branches": (lambda f, x: x.branch(pc.field("id") > 1).map(print, "n long"), "trues, falses"),
    "a vertex as a function": (
        lambda f, x: x.unary_notify(Silent(), "n long"),
        "(?s)not a function.*flow.vertex",
    ),
    "no function of two": (lambda f, x: x.binary(x, 1, "n long"), "binary got 1, not a function"),
    "no function of two times": (lambda f, x: x.binary_notify(x, 1, "n long"), "binary_notify got 1"),
    "epochs": (lambda f, x: f.input("y", "n long", epochs="manuel"), "'manuel'.*'manual'"),
    "epoch clock": (lambda f, x: f.source("y", "clock long", epoch="clock"), "another name"),
    "epoch manual": (lambda f, x: f.source("y", "manual long", epoch="manual"), "another name"),
    "iterations in text": (lambda f, x: x.loop(lambda y: y, max_iterations="3"), "max_iterations='3'"),
    "half an iteration": (lambda f, x: x.loop(lambda y: y, max_iterations=2.5), "max_iterations=2.5"),
    "release": (lambda f, x: x.to_memory("m", release="arrivals"), "release='arrivals'"),
    "diff": (lambda f, x: x.to_delta("t", diff="d", release="arrival"), "leave release at 'epoch'"),
    "a word sent": (lambda f, x: x.send("abc"), "input 'people'.*'abc' is one value"),
    "a row sent": (lambda f, x: x.send({"id": 1, "name": "a", "per": 1}), r"one row is \[\{"),
    "uneven": (lambda f, x: x.send({"id": [1, 2], "name": ["a"], "per": [1, 2]}), "differ in length"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("slip", "message"), SLIPS.values(), ids=SLIPS)
def test_an_error_has_the_line_and_a_hint(slip: Any, message: str) -> None:
    flow = ts.Dataflow("slip")
    stream = people(flow)
    with pytest.raises(
        (GraphError, SchemaError, NoSuchMethod), match=r"(?s)test_mistakes\.py:\d+.*Hint: "
    ) as caught:
        slip(flow, stream)
    assert caught.match(f"(?s){message}")


def test_functions_that_fit_are_taken() -> None:
    x = people()
    for function in (str, dict, lambda row, more=1: more, lambda *_: 1, operator.attrgetter("id")):
        x.map(function, "n long")
    x.merge("per", keys="id", merge=pc.max_element_wise)


def test_a_mapping_of_columns_may_be_sent() -> None:
    flow = ts.Dataflow("columns")
    people(flow).capture("out")
    simulation = ts.testing.Simulation(flow)
    simulation.send("people", {"per": [5, 6], "id": [1, 2], "name": ["a", "b"]})
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(1, "a", 5), (2, "b", 6)]}
    with pytest.raises(SchemaError, match=r"input 'people' \(.*test_mistakes\.py"):
        simulation.send("people", "abc")


def test_steps_without_a_name_are_numbered() -> None:
    flow = ts.Dataflow("numbered")
    stream = people(flow)
    for _ in range(2):
        stream.inspect().capture()
        stream.probe()

    assert [output.name for output in flow.outputs] == [
        "inspect-people",
        "capture-people",
        "inspect-people_2",
        "capture-people_2",
    ]


def test_a_derived_name_may_be_given_to_another_step() -> None:
    once = people().distinct()
    once.capture("distinct")

    assert [output.name for output in once.flow.outputs] == ["distinct"]
    assert once.name != "distinct"


def test_all_records_as_one_table_have_an_epoch_column() -> None:
    flow = ts.Dataflow("epochs")
    flow.input("x", "n long").capture("plain")
    flow.input("y", "epoch long").capture("own")
    none, some = run(flow, {}), run(flow, {"x": [[7]], "y": [[1]]})

    assert none["plain"].table().schema.names == ["epoch", "n"]
    assert some["plain"].table().to_pylist() == [{"epoch": 0, "n": 7}]
    with pytest.raises(TimelyError, match=r"(?s)have a column 'epoch'.*Hint"):
        some["own"].table()


def test_a_stream_with_a_column_diff_says_whether_it_is_the_change() -> None:
    x = ts.Dataflow("trap").input("x", "n long, diff int")
    with pytest.raises(SchemaError, match=r"(?s)test_mistakes\.py.*Hint: give diff='diff'.*rename"):
        x.collection()
    assert x.collection(diff="diff").schema.names == ["n"]
    assert x.select("n", change="diff").collection().schema.names == ["n", "change"]
    assert "diff" in ts.Dataflow("text").input("x", "diff string").collection().schema.names


N = pc.field("id")
QUOTIENTS: dict[str, Any] = {
    "select": lambda x: x.select(half=N / 2),
    "within": lambda x: x.select(half=pc.if_else(N > 1, pc.scalar(1) + N / 2, N).cast("double")),
    "the second": lambda x: x.select(half=(N / pc.scalar(2.0)) + N / pc.field("per")),
    "where": lambda x: x.where(N / 2 > 1),
    "a collection's": lambda x: x.collection().select(half=N / 2),
    "a collection's where": lambda x: x.collection().where(N / 2 > 1),
    "by": lambda x: x.exchange(by=N / 2),
    "pregel's": lambda x: ts.pregel(
        x.collection().select(node="id"),
        x.collection().select(src="id", dst="per"),
        with_vertex_column={"v": (1, pc.field("msg") / 2)},
        send_msg_to_dst=pc.field("src_v"),
        agg_msgs="sum",
    ),
}


FLAGS: dict[str, Any] = {
    "directed": lambda x, flag: ts.graphs.lcc(x.select(src="id", dst="per"), flag),
    "fixed": lambda x, flag: ts.graphs.label_propagation(
        x.select(src="id", dst="per"), x.select(node="id", label="name"), iterations=1, fixed=flag
    ),
    "descending": lambda x, flag: x.top_k(1, "per", descending=flag),
    "all": lambda x, flag: x.union(x, all=flag),
    "spread": lambda x, flag: ts.graphs.connected_components(x.select(src="id", dst="per"), spread=flag),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_neither_true_nor_false_is_refused(flag: str) -> None:
    """A text such as "no" would count as True."""
    for value in ("no", 0):
        with pytest.raises(ts.TimelyError, match=rf"(?s): {flag}={value!r}.*test_mistakes.py:\d+.*Hint: "):
            FLAGS[flag](people().collection(), value)
    FLAGS[flag](people().collection(), np.False_)


@pytest.mark.parametrize("case", QUOTIENTS)
def test_a_quotient_of_integers_is_refused(case: str) -> None:
    with pytest.raises(SchemaError, match=r"(?s)divide_checked\(.* of integers .*\.py:\d+.*Hint: cast one"):
        QUOTIENTS[case](people())


def test_quotients_of_which_a_side_is_no_integer_are_taken() -> None:
    halves = people().select(
        a=N.cast("double") / 2, b=N / pc.scalar(2.0), c=pc.divide(N, 2), d=(N / pc.scalar(4.0)).cast("string")
    )
    assert rows(halves) == [(0.5, 0.5, 0, "0.25"), (0.5, 0.5, 0, "0.25")]
    odd = ts.Dataflow("odd").input("x", {"call: 'divide_checked'": "long", "a'\nb": "double"})
    odd.select(x=pc.field("a'\nb") / 2, y=pc.field("call: 'divide_checked'") / pc.scalar(2.0))


def test_reductions_of_streams_and_of_collections_get_equal_records_alike() -> None:
    flow = ts.Dataflow("twice")
    x = flow.input("x", "k long, v long")
    x.group_by("k").reduce(lambda key, rows: [len(rows)], "n long").capture("stream")
    numbers = x.collection().reduce(lambda key, rows: [len(rows)], "n long", keys="k")
    numbers.changes().capture("collection")

    out = run(flow, {"x": [[(1, 5), (1, 5), (1, 6)]]}, workers=2)

    assert out["stream"].rows() == {0: [(1, 3)]}
    assert out["collection"].rows() == {0: [(1, 3, 1)]}


def test_a_record_that_a_collection_has_too_often_is_not_repeated() -> None:
    flow = ts.Dataflow("many")
    x = flow.input("x", "k long, v long, n long").collection(diff="n")
    x.reduce(lambda key, rows: [len(rows)], "n long", keys="k").capture("out")
    with pytest.raises(
        ts.errors.VertexError, match=r"(?s)1,099,511,627,776 records.*Hint: reduce_batches gets"
    ):
        run(flow, {"x": [[(1, 5, 2**40)]]})


def test_an_iteration_that_leaves_its_start_out_loses_it() -> None:
    """As the docstring of `iterate` says: what a step returns is the whole next value."""
    found = {}
    for kept in (True, False):
        flow = ts.Dataflow("start")
        roots, edges = flow.input("r", "n long").collection(), flow.input("e", "n long, m long").collection()

        def hop(n: Any, roots: Any = roots, edges: Any = edges, kept: Any = kept) -> Any:
            to = n.join(edges, on="n").select(n="m")
            return (to.concat(roots) if kept else to).distinct()

        roots.iterate(hop).changes().capture("out")
        found[kept] = run(flow, {"r": [[1]], "e": [[(1, 2)]]})["out"].rows()
    assert found == {True: {0: [(1, 1), (2, 1)]}, False: {0: []}}


def nothing(*_: Any) -> None:
    """A function without a return."""


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda x: x.map(nothing, "n long, m long"), r"with \{'id': 1, .* returned None, not a record"),
        (
            lambda x: x.collection().map(nothing, "n long, m long").changes(),
            r"with \{'id': 1, .* returned None, not a record",
        ),
        (lambda x: x.flat_map(nothing, "n long"), r"with \{'id': 1, .* returned None, not rows"),
        (lambda x: x.collection().flat_map(nothing, "n long").changes(), r"returned None, not rows"),
        (lambda x: x.collection().map_batches(nothing, "n long").changes(), r"returned None, not a table"),
        (lambda x: x.group_by("id").reduce_batches(nothing, "n long"), r"returned None, not a table"),
        (
            lambda x: x.collection().reduce_batches(nothing, "n long", keys="id").changes(),
            r"returned None, not a table",
        ),
        (lambda x: x.map_batches(nothing, "n long"), r"returned None, not a table"),
        (
            lambda x: x.group_by("id").reduce(nothing, "n long"),
            r"with \(Row\(id=1\).* returned None, not rows",
        ),
        (
            lambda x: x.collection().reduce(nothing, "n long", keys="id").changes(),
            r"with \(Row\(id=1\).* returned None, not rows",
        ),
    ],
)
def test_a_function_that_returns_nothing_is_named_with_its_record(use: Any, told: str) -> None:
    where = r"nothing \(.*test_mistakes\.py:\d+\)"
    with pytest.raises(
        ts.errors.VertexError, match=rf"(?s)test_mistakes\.py:\d+\).*{told}.*Hint: return"
    ) as e:
        rows(use(people()))
    assert re.search(where, str(e.value))


def a_text(*_: Any) -> str:
    return "text"


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.flat_map(a_text, "s string"),
        lambda x: x.flat_map(lambda row: {"s": "text"}, "s string"),
        lambda x: x.collection().flat_map(a_text, "s string").changes(),
        lambda x: x.group_by("id").reduce(a_text, "s string"),
        lambda x: x.collection().reduce(a_text, "s string", keys="id").changes(),
        lambda x: x.stateful_map(
            lambda key, rows, state: ("text", None), "s string", keys="id", state="n long"
        ),
    ],
)
def test_one_value_is_not_taken_apart_into_rows(use: Any) -> None:
    """A text would be a row for each character, and a mapping one for each name."""
    told = r"(?s)test_mistakes\.py:\d+\).* returned .*text.*, not rows.*Hint: return a list.*\[row\]"
    with pytest.raises(ts.errors.VertexError, match=told):
        rows(use(people()))


async def awaited(*_: Any) -> bool:
    return False


def yielding(*_: Any) -> Any:
    yield False


class Called:
    async def __call__(self, *_: Any) -> bool:
        return False


class Later(ts.Vertex):
    async def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:  # type: ignore[override]
        self.send_by(0, time, batch)


@pytest.mark.parametrize("function", [awaited, yielding, Called(), functools.partial(awaited)])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, function: x.where(function),
        lambda x, function: x.collection().where(function),
        lambda x, function: x.branch(function),
        lambda x, function: x.subscribe(function),
        lambda x, function: x.subscribe(print, on_complete=function),
        lambda x, function: x.foreach_epoch(function),
        lambda x, function: ts.once(list, "name", function),
    ],
)
def test_a_function_whose_body_would_never_run_is_refused(use: Any, function: Any) -> None:
    """A predicate would hold for every record, and a subscriber would get nothing, without a word."""
    with pytest.raises(
        GraphError, match=r"(?s)makes a (coroutine|generator), .*test_mistakes\.py:\d+\).*Hint: "
    ):
        use(people(), function)


def test_methods_of_a_vertex_and_functions_of_rows_run_too() -> None:
    x = people()
    with pytest.raises(GraphError, match=r"(?s)vertex: Later\.on_recv: .*makes a coroutine.*Hint: "):
        x.flow.vertex(Later(), x, x.schema)
    with pytest.raises(GraphError, match=r"(?s)flat_map: .*makes a coroutine.*Hint: "):
        people().flat_map(awaited, "n long")
    assert rows(people().flat_map(yielding, "b boolean")) == [(False,), (False,)]


def leave(*_: Any) -> Any:
    sys.exit(3)


def close(*_: Any) -> Any:
    raise GeneratorExit


@pytest.mark.parametrize("ends", [leave, close])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, ends: x.map(ends, "n long"),
        lambda x, ends: x.where(ends),
        lambda x, ends: x.unary(ends, "n long"),
        lambda x, ends: x.group_by("id").reduce(ends, "n long"),
        lambda x, ends: x.collection().reduce(ends, "n long", keys="id").changes(),
        lambda x, ends: x.call(ends, "n long", attempts=1),
    ],
    ids=["map", "where", "unary", "reduce", "a collection's reduce", "call"],
)
def test_a_function_that_ends_the_process_is_an_error_of_its_step(use: Any, ends: Any) -> None:
    """Spark would say that a process has ended, and neither step nor line."""
    with pytest.raises(
        ts.errors.VertexError, match=r"(?s)test_mistakes\.py:\d+\).*(SystemExit: 3|GeneratorExit)"
    ):
        rows(use(people(), ends))


@pytest.mark.parametrize(
    "slip",
    [
        lambda x: x.id > 1,
        lambda x: x["id"] > 1,
        lambda x: x.collection().id > 1,
        lambda x: x.collection()["id"] > 1,
    ],
)
def test_a_column_of_a_stream_is_named_in_an_expression(slip: Any) -> None:
    with pytest.raises(
        ts.errors.TimelyError, match=r"(?s)test_mistakes\.py:\d+\).*Hint: .*pc\.field\('id'\) > 1"
    ):
        slip(people())


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        (lambda x: [*x], "a stream has no items"),
        (lambda x: 1 in x.collection(), "a collection has no items"),
        (lambda x: x.group_by("id").capture("out"), r"aggregate\(...\) or reduce"),
        (lambda x: x.group_by("id").aggregate("sum"), "results by name"),
        (lambda x: x.join(x, pc.field("id") == pc.field("id")), "are not column names"),
        (lambda x: x.concat(x.collection()), r"collection\.changes\(\)"),
        (lambda x: x.flow.ask("out"), r"query that flow\.start"),
        (lambda x: x.rename(id="key"), r"select\(new='old'\)"),
        (lambda x: x.flow.input("y", {"n": int}), "column 'n': <class 'int'> is not a type"),
        (lambda x: x.send(None), "None is one value, not rows"),
        (lambda x: x.advance_to(3), "follows the flow's clock"),
        (lambda x: x.send(np.array([[1, 2], [3, 4]])), r"array\(\[1, 2\]\) is one value, not a tuple"),
        (lambda x: x.distinct(name="\ud800"), "step name '.ud800'"),
        (lambda x: x.group_by("id").aggregate(**{"\ud800": "count"}), "aggregate: .* surrogates not allowed"),
        (lambda x: ts.Dataflow("\ud800"), "name='.ud800': a text was expected"),
    ],
)
def test_slips_of_beginners_say_what_to_write(slip: Any, told: str) -> None:
    with pytest.raises(ts.errors.TimelyError, match=r"(?s)test_mistakes\.py:\d+\).*Hint: ") as error:
        slip(people())
    assert re.search(told, str(error.value))
