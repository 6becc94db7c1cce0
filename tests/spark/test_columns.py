"""Whatever columns and their fields are called, they come through a flow, into every output, as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import timely_spark as ts
from timely_spark.errors import SchemaError
from timely_spark.graph import as_schema

NAMES = [
    "a.b", "a`b", "`", "``.`", "a-b", "a b", " a", "a:b", "a<b>", "a,b;c", "{a}", "(a)", "a=b", "a\tb",
    "a\nb", "'", '"', "\\", "/", "%", "$1", "1", "1.5", "select", "struct<a:int>", "größe", "名前", "ΑΒΓ",
    "key", "value", "element", "worker", "kind", "meta", "payload", "x" * 200,
]  # fmt: skip
FLAT = [
    t.LongType(), t.IntegerType(), t.StringType(), t.DoubleType(), t.BooleanType(), t.BinaryType(),
    t.DateType(), t.TimestampType(), t.TimestampNTZType(), t.DecimalType(15, 3),
]  # fmt: skip


def struct_types(names: st.SearchStrategy[str], kinds: st.SearchStrategy[t.DataType]) -> Any:
    fields = st.lists(
        st.builds(t.StructField, names, kinds), min_size=1, max_size=4, unique_by=lambda f: f.name.casefold()
    )
    return fields.map(t.StructType)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(NAMES)
kinds = st.recursive(
    st.sampled_from(FLAT),
    lambda inner: (
        inner.map(t.ArrayType)
        | st.builds(t.MapType, st.just(t.StringType()), inner)
        | struct_types(names, inner)
    ),
    max_leaves=8,
)


@given(struct_types(names, kinds))
def test_spark_types_are_taken_as_they_are_built(schema: t.StructType) -> None:
    assert as_schema(schema) == to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize(
    "kind",
    [t.NullType(), t.DayTimeIntervalType(), t.VariantType(), t.StructType([]), t.CalendarIntervalType()],
)
def test_other_types_are_refused_by_the_name_of_their_column(kind: t.DataType) -> None:
    nested = t.StructType([t.StructField("a.b", t.ArrayType(t.StructType([t.StructField("c", kind)])))])

    with pytest.raises(SchemaError, match=r"column 'a\.b\.element\.c' is of Spark's type .*Hint"):
        as_schema(nested)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a long, A long", r"'a' and 'A', which Spark takes for one"),
        ("größe long, GRÖSSE int, GRÖßE int", r"'größe' and 'GRÖßE', which Spark takes for one"),
        ("s struct<x: struct<a: int, A: int>>", r"'s\.x\.a' and 's\.x\.A', which Spark takes for one"),
        ("__timely_diff long, n long", r"\['__timely_diff'\]: names that begin with '__timely_'"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused_where_they_are_given(schema: str, told: str) -> None:
    flow = ts.Dataflow("refused")
    for declare in (flow.source, flow.input):
        with pytest.raises(SchemaError, match=rf"test_columns\.py:\d+\) has columns .*{told}.*Hint"):
            declare(declare.__name__, schema)


def test_the_librarys_names_are_refused_from_every_operator() -> None:
    numbers = ts.Dataflow("refused").input("x", "n long")
    told = r"\['__timely_mine'\]: names that begin with '__timely_'.*Hint"

    for made in (
        lambda: numbers.select(__timely_mine="n"),
        lambda: numbers.map(lambda row: row, "__timely_mine long"),
        lambda: numbers.map_batches(lambda batch: batch, "__timely_mine long"),
        lambda: numbers.group_by("n").aggregate(__timely_mine="count"),
        lambda: numbers.collection().count("__timely_mine", keys="n"),
        lambda: numbers.collection().changes("__timely_mine"),
        lambda: numbers.collection().select(__timely_mine="n"),
    ):
        with pytest.raises(SchemaError, match=told):
            made()


def test_a_column_that_an_output_adds_is_refused_when_the_output_is_declared() -> None:
    stream = ts.Dataflow("refused").input("x", "Epoch long, Diff int")

    for made in (
        lambda: stream.to_memory("view"),
        lambda: stream.to_delta("/no/where"),
        lambda: stream.to_files("/no/where"),
    ):
        with pytest.raises(SchemaError, match=r"columns 'epoch' and 'Epoch'.*Hint"):
            made()
    with pytest.raises(SchemaError, match=r"columns 'Diff' and 'diff'.*Hint"):
        stream.select("Diff").to_delta("/no/where", diff="diff")
