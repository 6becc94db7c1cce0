"""Records in every form: one table, with the values that were given, or an error."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.graph import as_schema, as_table


def test_records_of_all_forms_are_one_table() -> None:
    schema = as_schema("id long, name string")
    expected = pa.table({"id": [1, 2], "name": ["a", None]}, schema=schema)

    for records in (
        [(1, "a"), (2, None)],
        [[1, "a"], {"name": None, "id": 2}],
        expected,
        expected.to_batches()[0],
        pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int16())}),
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


def test_a_frame_without_rows_has_columns_of_any_type() -> None:
    schema = as_schema("id long, name string")
    for empty in (pd.DataFrame({"name": [], "id": []}, dtype=float), pd.DataFrame(columns=["id", "name"])):
        assert as_table(empty, schema) == schema.empty_table()
    with pytest.raises(SchemaError, match="a frame has no 'name'"):
        as_table(pd.DataFrame({"id": []}), schema)


def test_names_of_keys_and_values_of_maps_do_not_count() -> None:
    def maps(value: pa.DataType, one: Any) -> pa.Table:
        kind = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", value, nullable=False))
        return pa.table({"m": pa.array([[("a", one)]], kind)})

    assert as_table(maps(pa.int64(), 1), as_schema("m map<string, long>"))["m"].to_pylist() == [[("a", 1)]]
    for value, one, declared in ((pa.string(), "007", "long"), (pa.timestamp("us"), AT_FIVE, "date")):
        with pytest.raises(SchemaError, match="column 'm'"):
            as_table(maps(value, one), as_schema(f"m map<string, {declared}>"))


AT_FIVE = dt.datetime(2020, 1, 1, 5, tzinfo=dt.timezone.utc)
LATER = pd.Timestamp("2020-01-01 00:00:00.000000001", tz="UTC")


@pytest.mark.parametrize("form", [pa.table, pd.DataFrame])
def test_a_function_may_return_the_columns_that_it_got(form: Any) -> None:
    schema = as_schema("id long, name string")
    batch = form({"name": ["a"], "more": [0], "id": [1]})
    assert as_table(batch, schema, projected=True).to_pylist() == [{"id": 1, "name": "a"}]
    with pytest.raises(SchemaError, match=r"a (table|frame) has no 'name'"):
        as_table(form({"id": [1], "more": [0]}), schema, projected=True)


@pytest.mark.parametrize("form", [pa.table, pd.DataFrame, dict, lambda one: pa.table(one).to_pylist()])
def test_a_column_that_would_be_lost_is_refused(form: Any) -> None:
    """Spark refuses such frames of `mapInPandas` too; only tuples have no names to compare."""
    records = form({"name": ["a"], "id": [1], "more": [0], "yet": [0]})
    with pytest.raises(SchemaError, match=r"unknown columns \['more', 'yet'\]\nHint: give every column of"):
        as_table(records, as_schema("id long, name string"))


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


@pytest.mark.parametrize("inside", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("x", kind)])])
def test_views_of_lists_are_refused_where_arrow_loses_elements(inside: Any) -> None:
    view, plain = (inside(kind(pa.int64())) for kind in (pa.list_view, pa.list_))
    values = pa.array([[9], [2, 3], None], pa.list_view(pa.int64())).slice(1)
    if view != values.type:
        values = pa.array([{"x": [2]}] if pa.types.is_struct(view) else [[[2]]], view)
    with pytest.raises(SchemaError, match=r"column 'c' has values of type list_view<"):
        as_table(pa.table({"c": values}), pa.schema([("c", plain)]))


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


#: a column of each kind of value
GIVEN: dict[str, Any] = {
    "integers": pa.array([1, None]),
    "unsigned ones": pa.array([2**63, None], pa.uint64()),
    "doubles": pa.array([1.5, None]),
    "large doubles": pa.array([2.0**60, None]),
    "decimals": pa.array([Decimal("1.50"), None]),
    "booleans": pa.array([True, None]),
    "texts": pa.array(["007", None]),
    "texts of numbers": pa.array(["1e3", None]),
    "categories": pa.array(["1", "2"]).dictionary_encode(),
    "bytes": pa.array([b"ab", None]),
    "dates": pa.array([dt.date(2020, 1, 1), None]),
    "timestamps": pa.array([1_577_854_800_000_000, None], pa.timestamp("us")),
    "durations": pa.array([dt.timedelta(1), None]),
    "lists of texts": pa.array([["1"], None]),
}
TAKEN = (
    "long", "double", "float", "decimal(5,1)", "decimal(3,0)", "string", "boolean", "date", "timestamp_ntz",
    "binary", "array<long>",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("form", ["arrow", "rows", "pandas", "columns"])
def test_a_value_is_taken_as_it_is_or_refused(form: str, given: str, kind: str) -> None:
    """Arrow reads texts, counts units of times, rounds to decimals, and takes memory of pandas for bytes."""
    values = GIVEN[given].to_pylist()
    table = pa.table({"c": GIVEN[given]})
    forms = {
        "arrow": table,
        "rows": [(one,) for one in values],
        "pandas": table.to_pandas(),
        "columns": {"c": values},
    }
    taken, refused = None, ""
    try:
        taken = as_table(forms[form], as_schema(f"c {kind}"))["c"].to_pylist()
    except SchemaError as error:
        refused = str(error)
    assert (
        re.search("column '?c", refused) if taken is None else taken == [_taken(one, kind) for one in values]
    )


def _taken(value: Any, kind: str) -> Any:
    """A value in the only other form that it may get: a date is a midnight, a text has its bytes."""
    if kind == "timestamp_ntz" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime.combine(value, dt.time())
    if kind == "binary" and isinstance(value, str):
        return value.encode()
    return value.decode() if kind == "string" and isinstance(value, bytes) else value


@pytest.mark.parametrize("form", ["arrow", "batch", "pandas"])
def test_arrays_to_which_the_user_writes_again_are_copied(form: str) -> None:
    values = np.array([1, 2])
    forms = {
        "arrow": pa.table({"n": values}),
        "batch": pa.record_batch({"n": values}),
        "pandas": pd.DataFrame({"n": values}, copy=False),
    }
    table = as_table(forms[form], as_schema("n long"))
    values[:] = 0
    assert table["n"].to_pylist() == [1, 2]
