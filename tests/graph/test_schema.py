"""Schemas as users write them, and records that are read by them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.graph import as_schema, as_table, describe


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


def test_records_of_all_forms_are_one_table() -> None:
    schema = as_schema("id long, name string")
    expected = pa.table({"id": [1, 2], "name": ["a", None]}, schema=schema)

    for records in (
        [(1, "a"), (2, None)],
        [[1, "a"], {"name": None, "id": 2}],
        expected,
        expected.to_batches()[0],
        pa.table({"name": ["a", None], "more": [0, 0], "id": pa.array([1, 2], pa.int16())}),
        pd.DataFrame({"name": ["a", None], "id": [1, 2]}, index=[7, 8]),
    ):
        made = as_table(records, schema)
        assert made.equals(expected)
        assert made.schema.metadata is None
    assert as_table([], schema).equals(expected.slice(0, 0))
    assert as_table(range(3), as_schema("n int"))["n"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    "records",
    [[(1,)], [(1, "a", 2)], [("x", "a")], [(1.5, "a")], [{"id": 1}], [{"id": 1, "name": "a", "more": 1}], pa.table({"id": [1]}),  # noqa: E501
     pa.table({"id": [1.5], "name": ["a"]}), pd.DataFrame({"id": [1]}), [(2**63, "a")], 7],
    ids=str,
)  # fmt: skip
def test_records_that_do_not_fit_are_refused_and_nothing_is_lost(records: Any) -> None:
    with pytest.raises(
        SchemaError, match=r"(?s)records do not fit the schema \(id int64, name string\).*Hint"
    ):
        as_table(records, as_schema("id long, name string"))


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


AT_FIVE = dt.datetime(2020, 1, 1, 5, tzinfo=dt.timezone.utc)
LATER = pd.Timestamp("2020-01-01 00:00:00.000000001", tz="UTC")


@pytest.mark.parametrize(
    ("schema", "records"),
    [
        ("d date", [AT_FIVE]),
        ("d date", pa.table({"d": [AT_FIVE]})),
        ("d date", pd.DataFrame({"d": [pd.Timestamp("2020-01-01 05:00")]})),
        ("d array<date>", [([AT_FIVE],)]),
        ("d array<date>", pa.table({"d": [[AT_FIVE]]})),
        ("t timestamp", [1.5]),
        ("t timestamp", [LATER]),
        ("m map<string,int>", [([("a", 1.5)],)]),
        ("m map<int,int>", [({1.5: 1},)]),
        ("s struct<x int>", [([("x", 1.5)],)]),
        ("s struct<x int, y string>", [([1, "a"],)]),
        ("s struct<x int>", pa.table({"s": [{"x": 1, "z": 2}]})),
        ("b boolean", pa.table({"b": [5]})),
        ("b boolean", pd.DataFrame({"b": [0.5]})),
        ("a array<boolean>", pa.table({"a": [[5]]})),
        ("a array<int>", pd.DataFrame({"a": [[1, 2.5]]})),
        ("d date", pd.DataFrame({"d": pd.Series([AT_FIVE, None], dtype=object)})),
    ],
)
def test_parts_of_values_are_not_dropped(schema: str, records: Any) -> None:
    with pytest.raises(SchemaError, match="column"):
        as_table(records, as_schema(schema))


@pytest.mark.parametrize(
    ("schema", "records", "expected"),
    [
        ("d date", [dt.datetime(2020, 1, 1), dt.date(2020, 1, 2), None], [dt.date(2020, 1, 1), dt.date(2020, 1, 2), None]),  # noqa: DTZ001, E501
        ("d date", pd.DataFrame({"d": [pd.Timestamp("2020-01-01"), None]}), [dt.date(2020, 1, 1), None]),
        ("d date", pd.DataFrame({"d": pd.Series([dt.date(2020, 1, 1), None], dtype=object)}), [dt.date(2020, 1, 1), None]),  # noqa: E501
        ("t timestamp", pd.DataFrame({"t": pd.Series([AT_FIVE, pd.NaT], dtype=object)}), [AT_FIVE, None]),
        ("t timestamp", [pd.Timestamp(AT_FIVE)], [AT_FIVE]),
        ("b boolean", pa.table({"b": [1, 0, None]}), [True, False, None]),
        ("b boolean", pd.DataFrame({"b": [1, 0]}), [True, False]),
        ("n long", pd.DataFrame({"n": pd.Series([1, None, float("nan")], dtype=object)}), [1, None, None]),
        ("m map<string,int>", [([("a", 1)],), ({"b": 2},)], [[("a", 1)], [("b", 2)]]),
        ("s struct<x int, y string>", [([("x", 1), ("y", "a")],)], [{"x": 1, "y": "a"}]),
        ("s struct<x int, y int>", pa.table({"s": [{"y": 1, "x": 2}]}), [{"x": 2, "y": 1}]),
        ("a array<double>", pa.table({"a": pa.array([[1.5]], pa.list_(pa.float32()))}), [[1.5]]),
    ],
)  # fmt: skip
def test_values_that_keep_all_parts_are_taken(schema: str, records: Any, expected: list[Any]) -> None:
    assert as_table(records, as_schema(schema)).column(0).to_pylist() == expected


ZONED, NAN = pa.timestamp("us", "Europe/Paris"), float("nan")
SHAPES: dict[str, Any] = {
    "flat": lambda kind: (kind, lambda value: value),
    "array": lambda kind: (pa.list_(kind), lambda value: [value]),
    "fixed": lambda kind: (pa.list_(kind, 1), lambda value: [value]),
    "struct": lambda kind: (pa.struct([("x", pa.float64()), ("t", kind)]), lambda v: {"x": NAN, "t": v}),
    "map": lambda kind: (pa.map_(pa.string(), kind), lambda value: [("a", value)]),
}


def zoned(hour: int) -> Any:
    return pd.Timestamp(2020, 1, 1, hour, tz=ZONED.tz)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_time_with_a_zone_is_the_date_of_its_zone_if_it_is_midnight_there(shape: str) -> None:
    (before, of), (after, _) = SHAPES[shape](ZONED), SHAPES[shape](pa.date32())
    schema = pa.schema([("d", after)])
    hidden = pa.array([of(zoned(5)), of(zoned(0)), None], before)[1:]

    made = as_table(pa.table({"d": pa.chunked_array([hidden, hidden[:1]])}), schema)

    assert str(made["d"].to_pylist()) == str([of(dt.date(2020, 1, 1)), None, of(dt.date(2020, 1, 1))])
    with pytest.raises(SchemaError, match=r"'d': values of type .* would lose a part"):
        as_table(pa.table({"d": pa.array([of(zoned(1))], before)}), schema)


@pytest.mark.parametrize("kind", ["datetime64[ns, Europe/Paris]", "category", "object", "arrow"])
def test_a_pandas_time_with_a_zone_is_the_date_of_its_zone(kind: str) -> None:
    dtype: Any = pd.ArrowDtype(ZONED) if kind == "arrow" else kind
    frame = lambda hour: pd.DataFrame({"n": [1, 2], "d": pd.Series([zoned(hour), None]).astype(dtype)})  # noqa: E731
    schema = as_schema("n long, d date")

    assert as_table(frame(0), schema).to_pydict() == {"n": [1, 2], "d": [dt.date(2020, 1, 1), None]}
    with pytest.raises(SchemaError, match="column 'd'"):
        as_table(frame(1), schema)


@pytest.mark.parametrize(
    ("value", "kind", "finer"),
    [
        (pd.Timedelta(1500, "ns"), pa.duration("us"), pa.duration("ns")),
        (dt.timedelta(microseconds=-1500), pa.duration("ms"), pa.duration("us")),
        (dt.time(1, 2, 3, 4000), pa.time32("s"), pa.time32("ms")),
        (dt.datetime(2020, 1, 1, 5, 0, 0, 4), pa.timestamp("ms"), pa.timestamp("us")),  # noqa: DTZ001
    ],
    ids=str,
)
def test_fractions_of_a_unit_of_time_are_not_dropped(value: Any, kind: Any, finer: Any) -> None:
    with pytest.raises(SchemaError, match=r"column 't': .* has a part smaller than a unit of"):
        as_table([(value,)], pa.schema([("t", kind)]))
    assert as_table([(value,), (None,)], pa.schema([("t", finer)]))["t"].to_pylist() == [value, None]


@pytest.mark.parametrize(("kind", "value"), [("date", AT_FIVE), ("boolean", 2)])
def test_encoded_values_keep_all_parts(kind: str, value: Any) -> None:
    with pytest.raises(SchemaError, match="would lose a part"):
        as_table(pa.table({"c": pa.array([value]).dictionary_encode()}), as_schema(f"c {kind}"))


def test_categories_are_their_values() -> None:
    """Arrow can neither sort nor compare encoded columns; the rows and the schema come from one table."""
    table = pa.table({"c": pa.array(["b", "a", "b"]).dictionary_encode()})
    flow = ts.Dataflow("categories")
    flow.input("x", table.schema).collection().min("c").capture("out")

    assert as_schema(table.schema) == as_schema("c string")
    assert ts.testing.run(flow, {"x": [table]})["out"].rows() == {0: [("a", 1)]}


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.string_view(), ["a", "b" * 20]), (pa.binary_view(), [b"a", b"b"]), (pa.float16(), [0.5, 2.0])],
)
def test_types_that_arrow_cannot_take_or_compare_are_stored_as_plain_ones(kind: Any, values: Any) -> None:
    flow = ts.Dataflow("views")
    x = flow.input("x", pa.schema([("c", kind)])).collection()
    x.join(x.select("c").distinct(), on="c").changes().capture("out")

    out = ts.testing.run(flow, {"x": [pa.table({"c": pa.array([*values, None], kind)})]}, workers=2)["out"]

    assert out.rows() == {0: [(value, 1) for value in values]}


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


@pytest.mark.parametrize("record", [np.int64(1), None, Decimal(1)])
def test_records_that_are_one_value_are_refused(record: Any) -> None:
    flow = ts.Dataflow("one")
    flow.input("x", "n long").capture("out")
    with pytest.raises(
        BadArgument, match=r"(?s)inputs\['x'\]\[0\]=.*a list with the records of epoch 0.*\nHint: "
    ):
        ts.testing.run(flow, {"x": [record]})


def test_a_time_of_day_is_not_taken_from_a_timestamp() -> None:
    schema = pa.schema([("t", pa.time64("us"))])
    with pytest.raises(SchemaError, match="would lose a part"):
        as_table(pa.table({"t": pa.array([AT_FIVE])}), schema)
    empty = as_table(pa.table({"t": pa.array([None], pa.timestamp("us"))}), schema)
    assert empty["t"].to_pylist() == [None]
