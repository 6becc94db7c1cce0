"""Whatever columns and their fields are called, they come through a flow, into every output, as they were."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import timely_spark as ts
from tests.support.turns import CHARACTERS
from timely_spark.errors import SchemaError
from timely_spark.graph import as_schema
from timely_spark.runtime.errors import SourceMismatch
from timely_spark.runtime.sinks import delivery

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


names = st.text(CHARACTERS, min_size=1, max_size=8) | st.sampled_from(NAMES)
kinds = st.recursive(
    st.sampled_from(FLAT),
    lambda inner: (
        inner.map(t.ArrayType)
        | st.builds(t.MapType, st.just(t.StringType()), inner)
        | struct_types(names, inner)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(struct_types(names, kinds))
def test_spark_types_are_taken_as_they_are_built(schema: t.StructType) -> None:
    assert as_schema(schema) == to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize(
    "kind",
    [t.NullType(), t.DayTimeIntervalType(), t.VariantType(), t.StructType([]), t.CalendarIntervalType()],
)
def test_other_types_are_refused_by_the_name_of_their_column(kind: t.DataType) -> None:
    nested = t.StructType([t.StructField("a.b", t.ArrayType(t.StructType([t.StructField("c", kind)])))])

    with pytest.raises(SchemaError, match=r"(?s)column 'a\.b\.element\.c' is of Spark's type .*Hint"):
        as_schema(nested)


def schema_of(draw: random.Random) -> t.StructType:
    """All of the names as columns of any types, and again as fields in them."""
    listed = iter(draw.sample(NAMES, len(NAMES)))

    def kind(depth: int) -> t.DataType:
        shape = draw.choice(["flat", "array", "map", "struct"]) if depth else "flat"
        if shape == "array":
            return t.ArrayType(kind(depth - 1))
        if shape == "map":
            return t.MapType(t.StringType(), kind(depth - 1))
        if shape == "struct":
            fields = draw.sample(NAMES, 3)
            return t.StructType([t.StructField(name, kind(depth - 1)) for name in fields])
        return draw.choice(FLAT)

    return t.StructType(
        [t.StructField("id", t.LongType()), *(t.StructField(name, kind(2)) for name in listed)]
    )


def values(kind: pa.DataType, draw: random.Random) -> Any:
    """A value of a type, as Python has it."""
    if draw.random() < 0.1:
        return None
    if pa.types.is_map(kind):
        return [(key, values(kind.item_type, draw)) for key in "ab"[: draw.randrange(3)]]
    if pa.types.is_list(kind):
        return [values(kind.value_type, draw) for _ in range(draw.randrange(3))]
    if pa.types.is_struct(kind):
        return {field.name: values(field.type, draw) for field in kind}
    number = pa.array([draw.randrange(1000)], pa.int32())
    return number.cast(pa.string() if pa.types.is_binary(kind) else _by_way_of(kind)).cast(kind)[0].as_py()


def _by_way_of(kind: pa.DataType) -> pa.DataType:
    """What Arrow casts an int to on the way to a type."""
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32()


def rows(table: pa.Table, schema: pa.Schema) -> list[dict[str, Any]]:
    """The records in order, by the columns' places."""
    table = table.select(range(table.num_columns - len(schema), table.num_columns))
    return table.cast(schema).sort_by("id").to_pylist()


@pytest.fixture(params=[pytest.param("driver", marks=pytest.mark.campaign), "tasks"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who reads the epochs."""
    monkeypatch.setattr(delivery, "LARGE", delivery.LARGE if request.param == "driver" else 0)
    return str(request.param)


@pytest.mark.campaign
def test_any_names_come_through(spark: SparkSession, checkpoint: str, tmp_path: Path, reader: str) -> None:
    draw = random.Random(reader)
    spark_schema = schema_of(draw)
    schema = as_schema(spark_schema)
    flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
    columns = [pa.array(range(20), pa.int64())]
    columns += [pa.array([values(f.type, draw) for _ in range(20)], f.type) for f in list(schema)[1:]]
    given = pa.table(columns, schema=schema)
    (tmp_path / "in").mkdir()
    pq.write_table(given, tmp_path / "in" / "part.parquet")
    frame = spark.readStream.schema(spark_schema).parquet(str(tmp_path / "in"))

    flow = ts.Dataflow("names")
    stream = flow.source("in", frame).exchange(*flat)
    stream.capture("captured").to_memory("in_memory")
    stream.to_delta(str(tmp_path / "log")).to_files(str(tmp_path / "files"))
    stream.to_delta(str(tmp_path / "current"), keys=["id", *flat[1:4]], name="current")
    stream.foreach_epoch(lambda out, epoch: out.write.mode("append").format("delta").option(
        "delta.columnMapping.mode", "name").save(str(tmp_path / "frames")))  # fmt: skip
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now")
    query.await_termination()

    expected = rows(given, schema)
    (written,) = (tmp_path / "files").glob("*.parquet")
    assert rows(pq.read_table(written), schema) == expected
    assert rows(query.captured("captured").table(), schema) == expected
    assert rows(spark.table("in_memory").toArrow(), schema) == expected
    for table in ("log", "current", "frames"):
        found = spark.read.format("delta").load(str(tmp_path / table))
        assert found.columns[-len(schema) :] == schema.names
        assert rows(found.toArrow(), schema) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a long, A long", r"'a' and 'A', which Spark takes for one"),
        ("größe long, GRÖSSE int, GRÖßE int", r"'größe' and 'GRÖßE', which Spark takes for one"),
        ("s struct<x: struct<a: int, A: int>>", r"'s\.x\.a' and 's\.x\.A', which Spark takes for one"),
        ("__timely_diff long, n long", r"\['__timely_diff'\]: names that begin with '__timely_'"),
    ],
)
def test_names_that_cannot_be_distinguished_are_refused_where_they_are_given(
    schema: str, message: str
) -> None:
    flow = ts.Dataflow("refused")
    for declare in (flow.source, flow.input):
        with pytest.raises(SchemaError, match=rf"(?s)has columns .*{message}.*test_columns\.py:\d+\)\nHint"):
            declare(declare.__name__, schema)


@pytest.mark.parametrize(
    "name", [f"__timely_{name}" for name in ("mine", "diff", "all", "sequence", "iteration")]
)
def test_the_librarys_names_are_refused_from_every_operator(name: str) -> None:
    flow = ts.Dataflow("refused")
    numbers = flow.input("x", "n long, m long")
    collection = numbers.collection()
    arranged = collection.arrange("n")
    loop = flow.scope.inner(name="loop")

    for made in (
        lambda: numbers.select({name: "n"}),
        lambda: numbers.map(lambda row: row, {name: "long"}),
        lambda: numbers.flat_map(lambda row: [row], {name: "long"}),
        lambda: numbers.map_batches(lambda batch: batch, {name: "long"}),
        lambda: numbers.aggregate({name: "count"}),
        lambda: numbers.group_by("n").aggregate({name: "count"}),
        lambda: numbers.group_by().count(name),
        lambda: flow.vertex(ts.Vertex(), numbers, {name: "long"}),
        lambda: loop.variable({name: "long"}),
        lambda: numbers.to_delta("/no/where", diff=name),
        lambda: collection.count(name),
        lambda: collection.count(name, keys="n"),
        lambda: arranged.count(name),
        lambda: collection.changes(name),
        lambda: collection.capture(diff=name),
        lambda: collection.select({name: "n"}),
        lambda: collection.select("n", {name: pc.scalar(1)}),
        lambda: collection.map(lambda row: row, {name: "long"}),
        lambda: collection.flat_map(lambda row: [row], {name: "long"}),
        lambda: collection.map_batches(lambda batch: batch, {name: "long"}),
        lambda: collection.reduce(lambda key, rows: rows, {name: "long"}, keys="n"),
        lambda: arranged.reduce_batches(lambda rows: rows, {name: "long"}, keys="n"),
    ):
        with pytest.raises(SchemaError, match=rf"(?s)\['{name}'\]: names that begin with '__timely_'.*Hint"):
            made()


def test_a_column_that_an_output_adds_is_refused_when_the_output_is_declared() -> None:
    stream = ts.Dataflow("refused").input("x", "Epoch long, Diff int")

    for made in (
        lambda: stream.to_memory("view"),
        lambda: stream.to_delta("/no/where"),
        lambda: stream.to_files("/no/where"),
    ):
        with pytest.raises(SchemaError, match=r"(?s)columns 'epoch' and 'Epoch'.*Hint"):
            made()
    with pytest.raises(SchemaError, match=r"(?s)columns 'Diff' and 'diff'.*Hint"):
        stream.select("Diff").to_delta("/no/where", diff="diff")


def test_a_dataframe_with_the_names_in_other_cases_is_another(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("other")
    flow.source("rate", "TIMESTAMP timestamp, value long").capture("out")

    with pytest.raises(SourceMismatch):
        flow.start(spark, checkpoint=checkpoint, sources={"rate": spark.readStream.format("rate").load()})
