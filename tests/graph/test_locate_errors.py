"""Errors with the user's line: of a failed record, an unknown name, an unfit value."""

from __future__ import annotations

import copy
import dataclasses
import linecache
import pickle
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, NoSuchMethod, SchemaError, TimelyError, VertexError
from timely_spark.testing import run

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    (number,) = (number for number, line in enumerate(LINES, 1) if line.strip() == text)
    return number


def inverse(row: Any) -> float:
    return 1 / row.n  # fails


FLOWS = {
    "map": lambda x: x.map(inverse, "n double"),
    "map behind an exchange": lambda x: x.exchange("n").map(inverse, "n double"),
    "flat_map": lambda x: x.flat_map(lambda row: (inverse(row),), "n double"),
    "a generator": lambda x: x.flat_map(lambda row: (inverse(one) for one in [row]), "n double"),
    "where": lambda x: x.where(inverse),
    "branch": lambda x: x.branch(inverse).trues,
    "map of a collection": lambda x: x.collection().map(inverse, "n double").changes(),
    "flat_map of one": lambda x: x.collection().flat_map(lambda row: [inverse(row)], "n double").changes(),
    "where of one": lambda x: x.collection().where(inverse).changes(),
    "in a loop": lambda x: x.loop(lambda y: y.where(inverse)),
    "reduce": lambda x: (
        x.collection().reduce(lambda key, rows: [inverse(key)], "m double", keys="n").changes()
    ),
}


@pytest.mark.parametrize("build", FLOWS.values(), ids=FLOWS)
def test_an_error_shows_the_record_and_the_function_s_own_line(build: Any) -> None:
    flow = ts.Dataflow("bad")
    build(flow.input("x", "n long, s string")).capture("out")
    with pytest.raises(VertexError, match=r"ZeroDivisionError") as caught:
        run(flow, {"x": [[(5, "a" * 300), (0, "b" * 300), (7, "c")]]}, workers=2)
    text = str(caught.value)
    assert f"test_locate_errors.py:{line_of('return 1 / row.n  # fails')})" in text or "<" in text
    assert "test_locate_errors.py:" in text.split("failed")[1]
    assert "'b" in text or "n=0" in text
    assert "'a" not in text
    assert "b" * 100 not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_an_error_in_a_function_of_batches_shows_some_of_the_records() -> None:
    def fails(batch: pa.Table) -> pa.Table:
        return batch.column("nothing")

    flow = ts.Dataflow("bad")
    flow.input("x", "n long").map_batches(fails, "n long").capture("out")
    with pytest.raises(
        VertexError, match=r"in fails \(.*test_locate_errors\.py:\d+\), with \{'n': 0\}.* and 2 more"
    ):
        run(flow, {"x": [list(range(5))]})


def test_an_error_of_a_users_vertex_shows_its_line_and_records() -> None:
    class Picky(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            raise LookupError(edge)

    flow = ts.Dataflow("bad")
    flow.vertex(Picky(), flow.input("x", "n long"), "n long", name="picky").capture("out")
    with pytest.raises(
        VertexError, match=r"step 'picky' .* in on_recv \(.*test_locate_errors\.py:\d+\), with \{'n': 4"
    ):
        run(flow, {"x": [[4]]})


# -- names from elsewhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("groupBy", "(group_by|keys=)"), ("agg", "(aggregate|keys=)"), ("withColumn", "select"),
        ("unionAll", "concat"),
        ("drop", "select"), ("orderBy", "top_k"), ("collect", "capture"), ("show", "inspect"),
        ("distnct", "distinct"), ("exceptAll", "subtract"), ("leftOuterJoin", "join"),
    ],
)  # fmt: skip
def test_a_name_of_another_library_gives_a_suggestion(name: str, meant: str) -> None:
    x = ts.Dataflow("names").input("x", "n long")
    for one in (x, x.distinct(), x.collection(), x.collection().variable(x.scope.inner(name="loop"))):
        with pytest.raises(NoSuchMethod, match=rf"errors\.py:\d+\)\nHint: did you mean .*{meant}"):
            getattr(one, name)
        assert not hasattr(one, name)


def test_no_suggestion_is_missing_itself() -> None:
    with pytest.raises(NoSuchMethod) as raised:
        _ = ts.Dataflow("names").input("x", "n long").collection().group_by

    assert "group_by" not in str(raised.value).split("Hint: ")[1]


def test_methods_of_streams_and_of_collections_are_told_apart() -> None:
    x = ts.Dataflow("names").input("x", "n long")
    for name in ("expire", "branch", "loop", "upserts"):
        with pytest.raises(NoSuchMethod, match=rf"{name} is a method of streams: call it before collection"):
            getattr(x.collection(), name)
    for name in ("negate", "mean", "changes", "threshold"):
        with pytest.raises(NoSuchMethod, match=rf"{name} is a method of collections: call it behind collec"):
            getattr(x, name)


def test_a_collection_is_not_entered_as_a_stream() -> None:
    x = ts.Dataflow("names").input("x", "n long")
    with pytest.raises(GraphError, match=r"enter got a Collection, not a stream(?s:.*)collection\.enter"):
        x.collection().iterate(lambda n: n.scope.enter(x.collection()))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("pageRank", "pagerank"), ("shortest_paths", "bfs, sssp or landmarks"), ("triangleCount", "triangles")],
)
def test_algorithms_suggest_names_too(name: str, meant: str) -> None:
    with pytest.raises(NoSuchMethod, match=rf"errors\.py:\d+\)\nHint: did you mean {meant}"):
        getattr(ts.graphs, name)
    assert not hasattr(ts.graphs, name)


def test_groups_and_flows_suggest_names_too() -> None:
    flow = ts.Dataflow("names")
    for one, name, meant in (
        (flow.input("x", "n long").group_by("n"), "agg", "aggregate"),
        (flow, "inputs_", "input"),
        (flow, "run", r"start\(\.\.\.\), or ts\.testing\.run"),
    ):
        with pytest.raises(NoSuchMethod, match=rf"errors\.py:\d+\)\nHint: did you mean .*{meant}"):
            getattr(one, name)


def test_protocol_lookups_find_no_suggestion() -> None:
    x = ts.Dataflow("names").input("x", "n long").distinct()
    assert copy.copy(x).name == x.name
    assert dataclasses.replace(x, port=0).schema == x.schema
    for protocol in ("__deepcopy__", "__array__", "_repr_latex_", "_ipython_display_", "__arrow_c_stream__"):
        assert not hasattr(x, protocol)
        assert not hasattr(x.collection(), protocol)


# -- values that do not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"id": 1, "name": "a"}, {"name": "b"}], r"\{'name': 'b'\} has no 'id'"),
        ([{"id": 1, "nam": "a"}], r"has no 'name' but unknown columns \['nam'\]"),
        ([{"id": 1, "name": "a", 3: 4}], r"has unknown columns \['3'\]"),
        ([(1, "a"), ("x", "b")], r"column 'id': 'x' is not of type int64"),
        ([(1, "a"), (2, 7)], r"column 'name': 7 is not of type string"),
        ([(1.5, "a")], r"column 'id': 1\.5 is not an integer"),
        ([(2**70, "a")], r"column 'id': 1180591620717411303424 is not of type int64"),
        ({"id": [1, None, "q"], "name": ["a", "b", "c"]}, r"column 'id': 'q' is not of type int64"),
    ],
)
def test_an_unfit_value_is_named_with_input_and_column(records: Any, message: str) -> None:
    x = ts.Dataflow("values").input("x", "id long, name string")
    with pytest.raises(
        SchemaError, match=rf"(?s)input 'x' \(.*test_locate_errors\.py:\d+\): .*{message}.*Hint: "
    ):
        x.send(records)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("long", Decimal("5.5"), "5.5.* is not an integer"),
        ("long", np.float32(0.5), "0.5.* is not an integer"),
        ("array<long>", [1, 2.5], "2.5 is not an integer"),
        ("array<string>", "ab", "'ab' is one value, not a list"),
        ("map<string,array<int>>", {"a": [0.5]}, "0.5 is not an integer"),
        ("struct<a:long>", {"a": 1, "b": 2}, r"has unknown fields \['b'\]"),
        ("array<struct<a:long>>", [{"b": 2}], r"has unknown fields \['b'\]"),
        ("struct<a:long>", (0.5,), "0.5 is not an integer"),
        ("array<long>", 5, "5 is not of type list"),
    ],
)
def test_no_part_of_a_value_is_lost(kind: str, value: Any, message: str) -> None:
    x = ts.Dataflow("parts").input("x", f"v {kind}")
    with pytest.raises(SchemaError, match=rf"column 'v': .*{message}"):
        x.send([(value,)])


def test_whole_values_of_other_types_fit() -> None:
    kinds = "array<long>", "map<string,long>", "struct<a:long,b:string>"
    flow = ts.Dataflow("whole")
    flow.input("x", ", ".join(f"v{n} {kind}" for n, kind in enumerate(kinds))).capture("out")
    rows = [
        ([1.0, Decimal(2), None], {"a": 3.0}, (None, None)),
        (np.array([4]), [("a", 5)], (6, "b")),
        (None,) * 3,
    ]

    made = ts.testing.run(flow, {"x": [rows]})["out"].table().to_pylist()
    assert [tuple(row[f"v{n}"] for n in range(3)) for row in made] == [
        ([1, 2, None], [("a", 3)], {"a": None, "b": None}),
        ([4], [("a", 5)], {"a": 6, "b": "b"}),
        (None, None, None),
    ]


def test_an_unknown_output_is_an_error_with_the_existing_outputs() -> None:
    flow = ts.Dataflow("outputs")
    flow.input("x", "n long").capture("numbers")
    with pytest.raises(
        KeyError, match=r"'outputs' has no output 'number' \(.*test_locate_errors\.py:\d+\)\nHint: .*numbers"
    ):
        run(flow, {"x": [[1]]})["number"]


# -- names of steps that are names of columns ----------------------------------------------------------------

STEPS = {
    "collection": lambda x: x.collection(name="n").distinct().changes(),
    "diff": lambda x: x.collection(diff="n", name="n").distinct().changes(),
    "negate": lambda x: x.collection().negate(name="n").changes(),
    "changes": lambda x: x.collection().changes(name="n"),
    "changes of what is consolidated": lambda x: x.collection().distinct().changes(name="n"),
    "distinct": lambda x: x.distinct(name="n"),
    "where": lambda x: x.collection().where(pc.field("n") > 0, name="n").changes(),
    "count": lambda x: x.collection().count("m", keys="n", name="n").changes(),
    "join": lambda x: x.collection().join(x.collection().select("n"), on="n", name="n").changes(),
}


@pytest.mark.parametrize("build", STEPS.values(), ids=STEPS)
def test_a_step_may_have_the_name_of_a_column_if_no_column_can_be_meant(build: Any) -> None:
    flow = ts.Dataflow("called")
    build(flow.input("x", "n long, s string")).capture("out")
    assert "n" in {stage.name for stage in flow.graph.stages}
    assert run(flow, {"x": [[(1, "a")]]})["out"].rows()[0]


def test_a_step_may_not_have_the_name_of_a_column_if_a_column_can_be_meant() -> None:
    x = ts.Dataflow("called").input("x", "n long, s string")
    for one in (x, x.collection()):
        with pytest.raises(
            SchemaError, match=r"select: name='n' would be the step's .*\(.*test_locate_errors\.py:\d+\)"
        ):
            one.select("s", name="n")


# -- combine -------------------------------------------------------------------------------------------------


class Both(ts.Vertex):
    """Adds up what comes on its first input, before it is exchanged, and takes the greatest of the second."""

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        how = ("n", "max") if edge else ("n", "sum")
        return batch.group_by("k").aggregate([how]).rename_columns(["k", "n"])

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch.append_column("edge", pa.array([edge] * batch.num_rows)))


def test_combine_gets_the_number_of_the_input() -> None:
    flow = ts.Dataflow("both")
    a, b = (flow.input(name, "k long, n long").distinct() for name in "ab")
    flow.vertex(Both(), [a, b], "k long, n long, edge long", by=["k", "k"]).capture("out")
    rows = [(k, n) for k in range(4) for n in range(1, 30)]
    out = run(flow, {"a": [rows], "b": [rows]}, workers=3)["out"].rows()[0]
    best = {k: max(n for key, n, edge in out if key == k and edge) for k in range(4)}
    total = {k: sum(n for key, n, edge in out if key == k and not edge) for k in range(4)}
    assert best == dict.fromkeys(range(4), 29)
    assert total == dict.fromkeys(range(4), sum(range(1, 30)))


class Negated(ts.Vertex):
    """Negates what comes on its second input, where it is sent from."""

    def before_exchange(self, edge: int, batch: pa.Table) -> pa.Table:
        if edge == 0:
            return batch
        return batch.set_column(1, "n", pc.negate(batch.column("n")))

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch.append_column("edge", pa.array([edge] * batch.num_rows)))


@pytest.mark.parametrize("workers", [1, 3])
def test_before_exchange_gets_the_number_of_the_input(workers: int) -> None:
    flow = ts.Dataflow("negated")
    x = flow.input("x", "k long, n long")
    flow.vertex(Negated(), [x, x], "k long, n long, edge long", by=["k", "k"]).capture("out")
    out = run(flow, {"x": [[(k, 7) for k in range(9)]]}, workers=workers)["out"].rows()[0]
    assert sorted(out) == sorted((k, 7 - 14 * edge, edge) for k in range(9) for edge in (0, 1))


@pytest.mark.parametrize("method", ["combine", "before_exchange"])
def test_a_method_without_the_number_of_the_input_is_refused(method: str) -> None:
    old = type("Old", (ts.Vertex,), {method: lambda self, batch: batch})
    flow = ts.Dataflow("old")
    x = flow.input("x", "n long")
    with pytest.raises(
        GraphError, match=rf"(?s)Old\.{method} does not take \(edge, batch\).*Hint: .*edge, batch"
    ):
        flow.vertex(old(), x, "n long", by="n")


@pytest.mark.parametrize(
    "call",
    [
        lambda x, column: x.select(column),
        lambda x, column: x.where(column),
        lambda x, column: x.join(x, on=column),
        lambda x, column: x.select(a=column),
        lambda x, column: x.collection().min(column),
    ],
)
def test_columns_of_dataframes_are_refused(call: Any) -> None:
    column = type("Column", (), {"__module__": "pyspark.sql.classic.column", "__hash__": None})()
    x = ts.Dataflow("frames").input("x", "n long")
    with pytest.raises(
        SchemaError, match=r"(?s)is a column of a DataFrame \(.*test_locate_errors.*Hint: .*as a text"
    ):
        call(x, column)


def test_a_cell_of_a_notebook_has_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython compiles a cell as a file that nobody can open."""
    file, texts = (
        "/tmp/ipykernel_7/1740788592.py",
        ["flow = ts.Dataflow('cells')", "x = flow.input('x', 'n long')"],
    )
    texts += [
        "y = x.distinct(name='once')",
        "y.map(lambda n: 1 // n, 'n long').capture('out')",
        "y.where('m > 2')",
    ]
    numbers = {file: ("Cell", "In[3]")}
    ipython = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=numbers.get))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: ipython))  # type: ignore[arg-type]
    monkeypatch.setitem(linecache.cache, file, (1, None, [f"{line}\n" for line in texts], file))
    program, names = compile("\n".join(texts), file, "exec"), {"ts": ts}
    with pytest.raises(TimelyError, match=r"(?s)no column.*'m'.*\(In\[3\]:5"):
        exec(program, names)
    flow: Any = names["flow"]
    flow.explain()
    assert "In[3]:3" in capsys.readouterr().out
    with pytest.raises(TimelyError, match=r"step 'map' \(In\[3\]:4\) .*, in <lambda> \(In\[3\]:4\)"):
        ts.testing.run(flow, {"x": [[0]]})
