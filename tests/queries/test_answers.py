"""Queries with their answers in Spark: rows come in random epochs, and some go and come again."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.outside.epochs import last_epoch
from tests.support.outside.spark import spark_text
from timely_spark.errors import SqlError
from timely_spark.queries.scripts import statements, table_view
from timely_spark.sql.types import name_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARRAY = pa.list_(pa.field("element", pa.int32()))
TABLES = {
    "t": pa.table(
        {
            "a": pa.array([1, 1, 2, None], pa.int32()),
            "b": pa.array([1, 2, 3, None], pa.int32()),
            "c": ["x", "y", "x", None],
            "l": pa.array([[1, 2], [], None, [3]], ARRAY),
            "m": pa.array([[("k", 1)], [("k", 2), ("j", 3)], None, []], pa.map_(pa.string(), pa.int32())),
            "p": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal("3.00")], pa.decimal128(5, 2)),
            "d": [1.0, 5.0, 2.0, 9.0],
        }
    ),
    "u": pa.table(
        {
            "a": pa.array([1, 2, 2], pa.int32()),
            "b": pa.array([2, 3, None], pa.int32()),
            "e": pa.array([5, 6, 7], pa.int64()),
        }
    ),
}


REFUSED = (Path(__file__).parent / "refused.sql").read_text(encoding="utf-8").splitlines()


#: In the file of answers, above those that Spark has not: it refuses the query, or answers it in another way.
NOT_OF_SPARK = "-- Spark refuses these, or has another answer: docs/sql.md\n"


def read(text: str) -> dict[str, list[str]]:
    """The queries of a text, each with its rows as texts."""
    blocks = [one.strip() for one in text.split("\n\n") if not one.startswith("-- ")]
    split = [one.partition("\n----") for one in blocks if one]
    return {query: sorted(rows.split("\n")[1:]) for query, _, rows in split}


ANSWERS, OTHER_ANSWERS = map(
    read, (Path(__file__).parent / "answers.sql").read_text(encoding="utf-8").split(NOT_OF_SPARK)
)


def rows_of(table: pa.Table) -> list[str]:
    return sorted(row.replace("\t", " ") for row in spark_text(table).elements())


@pytest.mark.slow
@pytest.mark.share(15)
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("seed", range(3))
def test_a_query_has_the_answer_of_spark(seed: int, part: int) -> None:
    some = dict([*ANSWERS.items(), *OTHER_ANSWERS.items()][part::5])
    tables = last_epoch([*some], TABLES, seed=seed)

    assert {query: rows_of(table) for query, table in zip(some, tables, strict=True)} == some


@pytest.mark.slow
def test_a_query_with_an_answer_can_be_read() -> None:
    """All of them in every run, in which a part has its answers compared."""
    for query in (*ANSWERS, *OTHER_ANSWERS):
        assert statements(query)[1]


@pytest.mark.spark
@pytest.mark.campaign
def test_spark_has_these_answers_and_no_other(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    session = spark.newSession()
    for name, table in TABLES.items():
        ddl = ", ".join(f"{one.name} {name_of(one.type)}" for one in table.schema)
        rows = [tuple(row.values()) for row in table.to_pylist(maps_as_pydicts="strict")]
        session.createDataFrame(rows, ddl).createOrReplaceTempView(name)

    def answer(query: str) -> list[str]:
        return rows_of(session.sql(query).toArrow())

    assert {query: answer(query) for query in ANSWERS} == ANSWERS
    for query, rows in OTHER_ANSWERS.items():
        with contextlib.suppress(PySparkException):
            assert answer(query) != rows, query


@pytest.mark.slow
@pytest.mark.parametrize("query", REFUSED)
def test_what_spark_refuses_is_refused(query: str) -> None:
    flow = ts.Dataflow("refused")
    tables = {name: flow.input(name, one.schema).collection() for name, one in TABLES.items()}
    with pytest.raises(SqlError, match="Hint:"):
        ts.sql(query, **tables)


@pytest.mark.spark
@pytest.mark.campaign  # what Spark refuses changes with its version only, and takes it 17 seconds
def test_spark_refuses_it(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException, IllegalArgumentException

    session = spark.newSession()
    for name, table in TABLES.items():
        ddl = ", ".join(f"{one.name} {name_of(one.type)}" for one in table.schema)
        session.createDataFrame([], ddl).createOrReplaceTempView(name)
    for query in REFUSED:
        with pytest.raises((AnalysisException, IllegalArgumentException)):  # the second of an interval's text
            session.sql(query)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [
        (
            "MONTH",
            datetime(2024, 1, 30, 12, tzinfo=timezone.utc),
            datetime(2024, 2, 29, 23, tzinfo=timezone.utc),
        ),
        (
            "DAY",
            datetime(2024, 3, 30, 22, 30, tzinfo=timezone.utc),
            datetime(2024, 3, 31, 22, tzinfo=timezone.utc),
        ),
    ],
)
def test_days_and_months_of_a_frame_are_those_of_the_zone(
    unit: str, first: datetime, second: datetime
) -> None:
    tables = {"t": pa.table({"time": pa.array([first, second], pa.timestamp("us", "UTC"))})}
    view = table_view("t", ts.Dataflow("zone").input("t", tables["t"].schema).collection())
    text = f"SELECT count(*) OVER (ORDER BY time RANGE INTERVAL '1' {unit} PRECEDING) AS n FROM t"
    counts = {}
    for zone in ("UTC", "Europe/Berlin"):
        binder, (tree,) = statements(text)
        binder.zone = zone
        (table,) = last_epoch([binder.query(tree, {"t": view})], tables, views=True)
        counts[zone] = sorted(table["n"].to_pylist())

    assert counts == {"UTC": [1, 2], "Europe/Berlin": [1, 1]}
