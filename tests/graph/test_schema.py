"""Schemas as users write them, and records that are read by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError
from timely_spark.graph import as_schema, describe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n long", [("n", pa.int64())]),
        ("a INT,b Bigint , c  double", [("a", pa.int32()), ("b", pa.int64()), ("c", pa.float64())]),
        ("a: string, `odd name` boolean", [("a", pa.string()), ("odd name", pa.bool_())]),
        ("`a.b` int, `a``b` long, s struct<`a-b`: int, ````: long>", [("a.b", pa.int32()), ("a`b", pa.int64()), ("s", pa.struct([("a-b", pa.int32()), ("`", pa.int64())]))]),  # noqa: E501
        ("d decimal, e decimal(5), f decimal(12,3)", [("d", pa.decimal128(10)), ("e", pa.decimal128(5)), ("f", pa.decimal128(12, 3))]),  # noqa: E501
        ("t timestamp, u timestamp_ntz, v date", [("t", pa.timestamp("us", "UTC")), ("u", pa.timestamp("us")), ("v", pa.date32())]),  # noqa: E501
        ("l array<array<int>>", [("l", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32())))))]),  # noqa: E501
        ("m map<string,long>", [("m", pa.map_(pa.string(), pa.int64()))]),
        ("s struct<x:int,y:array<long>>", [("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.int64())))]))]),  # noqa: E501
    ],
)  # fmt: skip
def test_ddl(text: str, expected: Any) -> None:
    assert as_schema(text) == pa.schema(expected)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "n",
        "n lonng",
        "n long,",
        "n long m long",
        "n long; m long",
        "a long, a int",
        "l array<int",
        "d decimal(x)",
        7,
        None,
    ],
)
def test_invalid_ddl_is_refused_with_a_hint(schema: Any) -> None:
    with pytest.raises(SchemaError, match="Hint: "):
        as_schema(schema)


def test_schemas_of_arrow_and_mappings() -> None:
    assert as_schema({"a": "long", "b": pa.string()}) == as_schema("a long, b string")
    with_metadata = pa.schema([pa.field("a", pa.int64(), nullable=False)], metadata={"x": "y"})
    assert as_schema(with_metadata).metadata is None
    assert as_schema(with_metadata).field("a").nullable
    assert describe(as_schema("a long, b array<string>")) == "a int64, b list<element: string>"


def test_column_options_of_ddl_are_skipped() -> None:
    text = (
        "id long NOT NULL COMMENT 'the key, \"or so\", (n)', "
        "s varchar(10) not null, c char(1), t timestamp_ltz"
    )
    assert as_schema(text) == as_schema("id long, s string, c string, t timestamp")
    assert as_schema({"s": "varchar(3) not null"}) == as_schema("s string")
    for wrong in ("id long not", "id long comment x", "id long key", "s varchar(x)"):
        with pytest.raises(SchemaError, match="Hint: "):
            as_schema(wrong)
    with pytest.raises(SchemaError, match="after the type"):
        as_schema({"s": "long or so"})


def test_categories_are_their_values() -> None:
    """Arrow can neither sort nor compare encoded columns; the rows and the schema come from one table."""
    table = pa.table({"c": pa.array(["b", "a", "b"]).dictionary_encode()})
    flow = ts.Dataflow("categories")
    flow.input("x", table.schema).collection().min("c").capture("out")

    assert as_schema(table.schema) == as_schema("c string")
    assert ts.testing.run(flow, {"x": [table]})["out"].rows() == {0: [("a", 1)]}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string_view(), ["a", "b" * 20]),
        (pa.binary_view(), [b"a", b"b"]),
        (pa.float16(), [0.5, 2.0]),
        (pa.uuid(), [bytes(16), b"u" * 16]),
    ],
)
def test_types_that_arrow_cannot_take_or_compare_are_stored_as_plain_ones(kind: Any, values: Any) -> None:
    flow = ts.Dataflow("views")
    x = flow.input("x", pa.schema([("c", kind)])).collection()
    x.join(x.select("c").distinct(), on="c").changes().capture("out")

    out = ts.testing.run(flow, {"x": [pa.table({"c": pa.array([*values, None], kind)})]}, workers=2)["out"]

    assert out.rows() == {0: [(value, 1) for value in values]}


@pytest.mark.parametrize("inside", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("x", kind)])])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int64())]),
    ],
)
def test_types_that_arrow_does_not_compare_are_refused(kind: Any, inside: Any) -> None:
    with pytest.raises(SchemaError, match=r"column 'c.*' is of Arrow's type .*(?s:.)*Hint: cast it first"):
        as_schema({"c": inside(kind)})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.string_view()), [["a"], None]),
        (pa.large_list(pa.binary_view()), [[b"a"], None]),
        (pa.list_(pa.string_view(), 1), [["a"], None]),
        (pa.struct([("a", pa.list_(pa.string_view()))]), [{"a": ["x"]}, None]),
        (pa.map_(pa.string_view(), pa.string_view()), [[("a", "b")], None]),
        (pa.dictionary(pa.int8(), pa.string_view()), ["a", None]),
    ],
)
def test_views_inside_other_types_are_stored_as_plain_ones(kind: Any, values: Any) -> None:
    if pa.types.is_dictionary(kind):
        column = pa.DictionaryArray.from_arrays(
            pa.array([0, None], pa.int8()), pa.array(["a"], kind.value_type)
        )
    else:
        column = pa.array(values, kind)
    table = pa.table({"k": [1, 2], "c": column})
    flow = ts.Dataflow("views")
    x = flow.input("x", table.schema)
    x.join(x.select("k"), on="k", per="time").capture("out")

    out = ts.testing.run(flow, {"x": [table]}, workers=2)["out"]

    assert out.rows() == {0: [(1, values[0]), (2, values[1])]}
    assert "view" not in str(as_schema(table.schema))
    if not pa.types.is_dictionary(kind):
        assert ts.testing.run(flow, {"x": [table.to_pylist()]})["out"].rows() == out.rows()


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), "array<long>"),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), "struct<x: long>"),
        (pa.map_(pa.string(), pa.field("x", pa.int64(), nullable=False)), "map<string, long>"),
        (pa.list_(pa.map_(pa.string(), pa.list_(pa.int64()))), "array<map<string, array<long>>>"),
    ],
)
def test_inside_of_a_type_only_names_and_types_count(kind: Any, plain: str, tmp_path: Path) -> None:
    """A reader of Parquet gives the entries of a map the column's name, and knows what is never null."""
    pa.parquet.write_table(pa.table({"c": pa.array([None], kind)}), tmp_path / "a.parquet")

    for schema in (pa.schema([("c", kind)]), pa.parquet.read_schema(tmp_path / "a.parquet")):
        assert as_schema(schema) == as_schema({"c": plain})
        assert describe(as_schema(schema)) == describe(as_schema({"c": plain}))
