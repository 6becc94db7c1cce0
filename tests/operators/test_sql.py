"""Texts in SQL as arguments of operators: the same as expressions of pyarrow, and clear errors."""

from __future__ import annotations

import subprocess
import sys

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler import compile_plan
from timely_spark.compiler.identity import described
from timely_spark.compiler.pushdown import needed
from timely_spark.errors import GraphError, SchemaError, SqlError, VertexError

ROWS = [(1, 2.0, "a"), (2, float("nan"), "b"), (3, -1.0, None)]


def flow() -> tuple[ts.Dataflow, ts.Stream]:
    made = ts.Dataflow("sql")
    return made, made.input("x", "n long, x double, s string")


def result(made: ts.Dataflow, rows: list[object] = ROWS) -> list[tuple[object, ...]]:
    return ts.testing.run(made, {"x": [rows]})["out"].rows()[0]


def test_a_stream_filters_and_computes_by_texts() -> None:
    made, x = flow()
    x.where("n > 1").select("n", "n * 2 AS twice", s="upper(coalesce(s, 'none'))", a="n").capture("out")

    assert result(made) == [(2, 4, "B", 2), (3, 6, "NONE", 3)]


def test_a_text_that_is_a_column_is_this_column() -> None:
    made = ts.Dataflow("named")
    made.input("x", {"a + b": "int", "a": "int", "b": "int"}).select(c="a + b", d="a+b").capture("out")

    assert result(made, [(7, 1, 2)]) == [(7, 3)]


def test_literals_are_no_names_unless_there_is_such_a_column() -> None:
    made, x = flow()
    x.select(yes="true", no="FALSE", nothing="null").capture("out")
    assert result(made, ROWS[:1]) == [(True, False, None)]

    named = ts.Dataflow("named")
    named.input("x", {"true": "int"}).select(yes="true").capture("out")
    assert result(named, [(7,)]) == [(7,)]


def test_a_collection_is_kept_under_deletions() -> None:
    made = ts.Dataflow("deletions")
    x = made.input("x", "n long, diff long").collection(diff="diff")
    x.where("n % 2 = 1").select(half="n div 2").changes().capture("out")

    assert ts.testing.run(made, {"x": [[(1, 1), (5, 1), (2, 1)], [(5, -1)]]})["out"].rows() == {
        0: [(0, 1), (2, 1)],
        1: [(2, -1)],
    }


def test_other_operators_take_texts() -> None:
    made, x = flow()
    parts = x.branch("s is null")
    parts.trues.exchange(by="n % 4").capture("out")
    x.select("n", "s").when("n >= 2", keys="s").capture("when")
    x.upserts("n", "x", apply_as_deletes="s is null").select("n").capture("now")
    out = ts.testing.run(made, {"x": [ROWS]}, workers=2)

    assert out["out"].rows() == {0: [(3, -1.0, None)]}
    assert sorted(map(str, out["when"].rows()[0])) == ["('b',)", "(None,)"]
    assert out["now"].rows()[0] == [(1, 1), (2, 1)]


def test_a_weight_may_be_computed() -> None:
    made = ts.Dataflow("paths")
    edges = made.input("edges", "src long, dst long, km double").collection()
    roots = made.input("roots", "node long").collection()
    ts.graphs.sssp(edges, roots, weight="km * 1.5D").capture("out")

    out = ts.testing.run(made, {"edges": [[(1, 2, 2.0), (2, 3, 4.0)]], "roots": [[1]]})
    assert out["out"].rows() == {0: [(1, 0.0, 1), (2, 3.0, 1), (3, 9.0, 1)]}


def test_a_function_of_the_user() -> None:
    ts.function("shout", "string", lambda text: pc.binary_join_element_wise(pc.utf8_upper(text), "!", ""))
    made, x = flow()
    x.select(s="Shout(s)").capture("out")

    assert result(made) == [(None,), ("A!",), ("B!",)]
    with pytest.raises(ts.TimelyError, match="'upper' is one of Spark"):
        ts.function("upper", "string", len)

    ts.function("newest", "string", lambda text: [text.to_pylist()[-1]] * len(text))  # of no rows it fails
    made, x = flow()
    x.where("n < 0").select(s="newest(s)").capture("out")
    assert result(made) == []

    ts.function("loud", "string", lambda text: [one.upper() for one in text.to_pylist()])
    made, x = flow()
    x.select(s="loud(s)").capture("out")
    with pytest.raises(
        VertexError, match=r"(?s)<lambda> \(.*test_sql.py:\d+\), with .*'s': None.*AttributeError"
    ):
        result(made)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda x: x.where("m > 1"), "where: no column 'm'"),
        (lambda x: x.where("n + 1"), "n \\+ 1 gives int64, not boolean"),
        (lambda x: x.select(y="n +"), "select: Add lacks an operand"),
        (lambda x: x.select("n + 1"), "write 'n \\+ 1 AS name'"),
        (lambda x: x.collection().where("rand() > 0.5"), "differs each time"),
        (lambda x: x.where("metaphone(s) = 'x'"), 'ts.function\\("metaphone", "type", f\\)'),
    ],
)
def test_a_mistake_is_told_with_the_step_and_the_line(build: object, says: str) -> None:
    _, x = flow()
    with pytest.raises(SchemaError, match=says) as raised:
        build(x)  # type: ignore[operator]

    assert __file__ in str(raised.value)


def test_a_record_without_a_value_names_step_expression_and_line() -> None:
    made, x = flow()
    x.select(y="1 / (n - 2)", name="quotient").capture("out")

    with pytest.raises(
        VertexError, match=r"step .quotient. \(.*test_sql.py.*1 / \(n - 2\): division by zero"
    ):
        result(made)


def test_a_column_of_a_data_frame_is_refused_with_the_text_to_write() -> None:
    class Column:
        __module__ = "pyspark.sql.classic.column"

        def __str__(self) -> str:
            return "Column<'(n > 1)'>"

    Column.__module__ = "pyspark.sql.classic.column"
    _, x = flow()
    with pytest.raises(SchemaError, match=r"as a text: '\(n > 1\)'"):
        x.where(Column())


def test_what_a_source_reads_is_told_by_the_text() -> None:
    made = ts.Dataflow("pushdown")
    x = made.input("x", "n long, x double, s string, unused long")
    x.where("n > 1 AND upper(s) = 'A' AND x > 2").select("s").capture("out")
    part = needed(compile_plan(made.graph, 1), "x")

    assert part.columns == ("n", "x", "s")
    assert str(part.condition) == "(n > 1)"  # not of floats: statistics leave NaN out


def test_the_same_text_is_the_same_plan() -> None:
    def plan(text: str) -> object:
        made, x = flow()
        x.where(text, name="filter").capture("out")
        return described(compile_plan(made.graph, 2))

    assert plan("n>1 and s='a'") == plan("n > 1 AND\n s = 'a'")
    assert plan("n > 1") != plan("n > 2")


@pytest.mark.slow
def test_importing_the_library_does_not_import_sqlglot() -> None:
    program = "import sys, timely_spark; print(*({'sqlglot', 'timely_spark.sql.forms'} & {*sys.modules}))"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert made.stdout.split() == []


def test_without_sqlglot_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    _, x = flow()
    with pytest.raises(GraphError, match=r"pip install 'timely-spark\[sql\]'"):
        x.where("n > 1")


def test_sql_error_is_a_schema_error() -> None:
    assert issubclass(SqlError, SchemaError)
