"""Computed columns are those of Arrow's own engine, whether or not their functions are called directly."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from timely_spark.errors import ExpressionError
from timely_spark.graph.projection import ColumnProjection, by_engine

F = pc.field
DAY = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc).replace(tzinfo=None)
TABLE = pa.table(
    {
        "a": [1, 2, None],
        "b": [4, 5, 6],
        "tiny": pa.array([1, 2, 127], pa.int8()),
        "int": pa.array([1, 2, 3], pa.int32()),
        "unsigned": pa.array([1, 2, 3], pa.uint64()),
        "text": ["x", "y", None],
        "double": [1.5, float("nan"), 2.0],
        "single": pa.array([1, 2, 3], pa.float32()),
        "day": pa.array([DAY] * 3, pa.timestamp("us")),
        "price": pa.array([Decimal("1.50")] * 3, pa.decimal128(10, 2)),
        "flag": [True, False, None],
        "code": pa.array(["x", "y", "x"]).dictionary_encode(),
        "struct": [{"q": 1}, {"q": 2}, None],
    }
)
EXPRESSIONS = [
    F("b"),
    pc.scalar(1),
    pc.scalar(None),
    pc.add(pc.scalar(1), 2),
    F(0) + 1,
    F(("struct", "q")),
    F("a") + 1,
    F("int") * 2,
    F("tiny") + 1,
    F("tiny") + 2,
    F("tiny") + 300,
    F("tiny") < 300,
    F("unsigned") + 1,
    F("unsigned") > -1,
    F("int") / 2,
    F("b") / 0,
    F("double") / 0,
    F("single") * 2.5,
    F("price") * 2,
    F("price") > 1,
    F("a") == F("int"),
    F("a").is_valid() & F("b").is_valid(),
    ~F("flag"),
    F("a").is_null(),
    F("a").cast("double"),
    F("text").cast("int64"),
    pc.if_else(F("a") > 1, F("b"), None),
    pc.if_else(F("a") > 1, F("tiny"), 0),
    F("text").isin(["x"]),
    F("code") == "x",
    pc.coalesce(F("text"), "z"),
    pc.utf8_length(F("text")) + 1,
    F("day") > DAY,
    F("day") > "2019-01-01",
    pc.strftime(F("day"), format="%Y"),
    pc.round(F("double"), 1),
    pc.power(F("int"), 2),
    pc.make_struct(F("a"), F("b")),
    pc.struct_field(F("struct"), [0]),
    pc.case_when(pc.make_struct(F("flag")), F("a"), F("b")),
    pc.max_element_wise(F("a"), F("b"), 2),
    F("none") + 1,
]


@pytest.mark.slow
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: str(one).partition("\n")[0])
@pytest.mark.parametrize("table", [TABLE, TABLE.slice(1), pa.concat_tables([TABLE, TABLE.slice(0, 1)])])
def test_is_what_the_engine_computes(expression: pc.Expression, table: pa.Table) -> None:
    project = ColumnProjection({"value": expression})
    if "add_checked(FieldPath" not in str(expression):  # Arrow pickles no column by its position
        project = pickle.loads(pickle.dumps(project))
    try:
        expected = by_engine(expression, table)
    except pa.ArrowException as error:
        with pytest.raises((ExpressionError, type(error))):  # of a record, or of the types
            project(table)
        return
    found = project(table).column(0)
    assert found.type == expected.type
    assert str(found.to_pylist()) == str(expected.to_pylist())  # NaN is equal to NaN


def test_what_has_no_value_is_named_with_its_record() -> None:
    rows = pa.table({"id": range(9), "n": [*range(7), 2**63 - 1, 2**63 - 1], "__timely_diff": [1] * 9})
    project = ColumnProjection({"id": "id", "more": F("n") + 1})

    with pytest.raises(
        ExpressionError, match=r"(?s)n, 1\): overflow, of {'id': 7, 'n': 92\d+}\nHint: .*where"
    ):
        project(rows)
    with pytest.raises(ExpressionError, match=r"^cast\(text, int64\): .* 'x'.*'text': 'x'.*\nHint"):
        ColumnProjection({"n": F("text").cast("int64")})(TABLE)


def test_tables_of_several_schemas() -> None:
    project = ColumnProjection({"n": F("n") + 1})
    for kind in (pa.int64(), pa.float64(), pa.int64()):
        assert project(pa.table({"n": pa.array([1], kind), "m": [0]})).column(0).to_pylist() == [2]


def test_many_rows_are_not_reordered() -> None:
    table = pa.table({"n": range(200_000)})
    assert ColumnProjection({"n": F("n") + 0, "one": pc.scalar(1)})(table).column(0).equals(table.column(0))


def test_a_long_name_is_read_whole() -> None:
    name = "a name of many words " * 20
    table = pa.table({name: [1, 2]})
    assert ColumnProjection({"n": pc.field(name), "m": pc.add(pc.field(name), 1)})(table).to_pydict() == {
        "n": [1, 2],
        "m": [2, 3],
    }
