"""map, select, where, flat_map, map_batches: each record by itself."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from decimal import Decimal, Inexact, getcontext, localcontext
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError, VertexError
from timely_spark.operators.rows import map_records
from timely_spark.testing import run


def out(build: Any, records: Any, schema: str = "n long", workers: int = 2) -> list[tuple[Any, ...]]:
    flow = ts.Dataflow("rows")
    build(flow.input("x", schema)).capture("out")
    return run(flow, {"x": [records]}, workers=workers)["out"].rows()[0]


def test_map_gets_a_named_row_and_returns_a_scalar_a_tuple_or_a_dict() -> None:
    for made in (lambda row: row.n + 1, lambda row: (row.n + 1,), lambda row: {"m": row.n + 1}):
        assert out(lambda x, f=made: x.map(f, "m long"), [1, 2]) == [(2,), (3,)]


def test_map_gets_nulls_as_none_and_may_return_none() -> None:
    assert out(lambda x: x.map(lambda r: None if r.n else 0, "n long"), [None, 1]) == [(None,), (0,)]


def test_a_record_that_does_not_fit_the_declared_schema_is_an_error_of_the_step() -> None:
    for wrong in (lambda row: "text", lambda row: (1, 2), lambda row: {"other": 1}, lambda row: 1.5):
        with pytest.raises(VertexError, match=r"(?s)step 'bad' .*SchemaError.*m int64.*Hint"):
            out(lambda x, f=wrong: x.map(f, "m long", name="bad"), [1])


def test_flat_map_gives_any_number_of_records() -> None:
    assert out(lambda x: x.flat_map(lambda r: range(r.n), "m long"), [0, 1, 3]) == [(0,), (0,), (1,), (2,)]
    assert out(lambda x: x.select_many(lambda r: [], "m long"), [1, 2]) == []


def test_select_chooses_renames_and_computes() -> None:
    def build(x: ts.Stream) -> ts.Stream:
        return x.select("b", a="b", c=pc.field("a") + pc.field("b"), d=pc.scalar("k"))

    assert out(build, [(1, 10), (None, 20)], "a long, b long") == [(10, 10, 11, "k"), (20, 20, None, "k")]
    assert out(lambda x: x.select(a="b", b="a"), [(1, 2)], "a long, b long") == [(2, 1)]
    assert out(lambda x: x.select("*", a="b", c="a"), [(1, 2)], "a long, b long") == [(2, 2, 1)]
    both = out(lambda x: x.collection().select("*", c="a").changes(), [(1, 2)], "a long, b long")
    assert both == [(1, 2, 1, 1)]
    with pytest.raises(SchemaError):
        out(lambda x: x.select(all="*"), [(1, 2)], "a long, b long")


def test_where_takes_an_expression_or_a_function_and_null_fails() -> None:
    for predicate in (
        pc.field("n") > 1,
        lambda row: row.n is not None and row.n > 1,
        lambda row: row.n and row.n > 1,
    ):
        assert out(lambda x, p=predicate: x.where(p), [None, 1, 2, 3]) == [(2,), (3,)]
    assert out(lambda x: x.filter(pc.field("n").is_null()), [None, 1]) == [(None,)]


def test_map_batches_takes_arrow_and_pandas_results() -> None:
    def frame(batch: pa.Table) -> pd.DataFrame:
        return pd.DataFrame({"m": batch["n"].to_pandas() * 2})

    for function in (
        frame,
        lambda b: pa.table({"m": pc.multiply(b["n"], 2)}),
        lambda b: pa.record_batch({"m": pc.multiply(b["n"], 2).combine_chunks()}),
    ):
        assert out(lambda x, f=function: x.map_batches(f, "m long"), [1, 2]) == [(2,), (4,)]


def test_a_stage_reached_by_two_paths_gets_both() -> None:
    """At the sources too, where what several channels share is computed once."""

    def build(x: ts.Stream) -> ts.Stream:
        both = x.concat(x.select(a="b", b="a"))
        return both.select(n="a").concat(
            both.select(n="b", name="second"), both.where(pc.field("a") > 1).select(n="a")
        )

    for workers in (1, 2):
        assert out(build, [(1, 2)], "a long, b long", workers) == [(1,), (1,), (2,), (2,), (2,)]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.select("nothing"),
        lambda x: x.select(m=pc.field("nothing")),
        lambda x: x.select(m=pc.utf8_upper(pc.field("n"))),
        lambda x: x.where(pc.field("nothing") > 1),
        lambda x: x.where(pc.field("n") + 1),
        lambda x: x.map(lambda row: row.n, "m lonng"),
        lambda x: x.map(lambda row: row.n, 7),
    ],
)
def test_invalid_arguments_are_refused_when_the_graph_is_built(build: Any) -> None:
    with pytest.raises(SchemaError, match="Hint: "):
        build(ts.Dataflow("bad").input("x", "n long"))


def test_columns_may_have_any_name() -> None:
    names = ["_at", "_class", "class", "a b", "é", "_all", "_void"]
    schema = dict.fromkeys(names, "long")
    flow = ts.Dataflow("names")
    x = flow.input("x", schema)
    x.distinct().capture("distinct_out")
    x.min("_at", keys=names[1:]).capture("min_out")
    x.aggregate(n=("sum", "_all"), _at=("max", "_at")).capture("all")
    x.group_by(*names[:3]).count("_void").capture("grouped")
    x.map(lambda row: row, schema).where(lambda row: row[3] == 4).capture("mapped")
    rows = [tuple(range(1, 8))]
    result = run(flow, {"x": [rows, rows]}, workers=2)

    fields = lambda row: [row["class"], row["a b"], row["é"], row["_at"], row[-1]]  # noqa: E731
    assert out(
        lambda x: x.select(**dict.fromkeys(names, "n")).map(lambda row: sum(fields(row)), "n long"), [2]
    ) == [(10,)]
    assert result["distinct_out"].rows() == {0: rows, 1: []}
    assert result["min_out"].rows() == {0: [(2, 3, 4, 5, 6, 7, 1)], 1: []}
    assert result["all"].rows() == {0: [(6, 1)], 1: [(12, 1)]}
    assert result["grouped"].rows() == {0: [(1, 2, 3, 1)], 1: [(1, 2, 3, 2)]}
    assert result["mapped"].rows() == {0: rows, 1: rows}


def test_a_function_that_changes_its_process_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context of decimals, what numpy raises, the filters of warnings, random numbers, the folder."""

    def answers(harm: Callable[[], object]) -> Any:
        flow = ts.Dataflow("process")
        numbers = flow.input("x", "n long, price decimal(20, 3)")
        priced = numbers.map(lambda row: (harm(), row)[1], "n long, price decimal(20, 3)").collection()
        priced.sum("price").changes().capture("sum")
        priced.mean("price").changes().capture("mean")
        priced.select(a="price / 7", b="exp(cast(1000 * n as double))").changes().capture("select")
        rows = [(n, Decimal("12345.678") + n) for n in range(3)]
        return {name: out.rows() for name, out in run(flow, {"x": [rows, rows[:1]]}).items()}

    def harm() -> None:
        getcontext().prec = 2
        getcontext().traps[Inexact] = True
        np.seterr(all="raise")
        warnings.simplefilter("error")
        random.seed(0)
        monkeypatch.chdir("/")

    plain = answers(lambda: None)
    with localcontext(), np.errstate(), warnings.catch_warnings():
        assert answers(harm) == plain


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.time64("ns"), 1),
        (pa.timestamp("us"), 2**62),
        (pa.timestamp("s"), -(2**63)),
        (pa.date32(), 2**31 - 1),
        (pa.duration("s"), 2**62),
    ],
    ids=str,
)
def test_a_value_that_python_does_not_have_is_refused(kind: pa.DataType, value: int) -> None:
    """It would be rounded, or fail without the column's name."""
    units = pa.array([value], pa.int32() if kind == pa.date32() else pa.int64())
    table = pa.table({"k": ["a"], "x": pa.Array.from_buffers(kind, 1, units.buffers())})
    with pytest.raises(SchemaError, match=r"column 'x' has a value of type .* that Python does not have"):
        map_records(lambda row: row.x, table)
    assert map_records(lambda row: row.x, table.slice(0, 0)) == []
    inside = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), table["x"].combine_chunks())
    with pytest.raises(SchemaError, match=r"column 'x' has a value of type list.* that Python does not have"):
        map_records(lambda row: row.x, table.set_column(1, "x", inside))
