"""Every function and operator has Spark's types and values: on null, NaN, extremes, empty and long texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.support.expressions import failing, plain, query, rows, same
from timely_spark.sql import BoundExpression, bind
from timely_spark.sql.binder import SPECIAL
from timely_spark.sql.forms import CHANGING
from timely_spark.sql.registry import FUNCTIONS
from timely_spark.sql.types import name_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Spark 4.3 changes some: ceil of a large double is an overflow there, where 4.2 takes the largest long
OTHER = not pyspark.__version__.startswith("4.2.")
pytestmark = pytest.mark.skipif(OTHER, reason="values are those of Spark 4.2")

LINES = (Path(__file__).parent / "expressions.sql").read_text(encoding="utf-8").splitlines()
CASES = [line for line in LINES if line and not line.startswith("--")]
#: those that have a syntax of their own
WRITTEN_OTHERWISE = {"cast": "cast(", "try_cast": "try_cast(", "in": " in (", "not": "not ", "div": " div "}
NAMES = sorted(name for name in {*FUNCTIONS, *SPECIAL} - {*CHANGING} if name.isidentifier())
#: what depends on the time zone
ZONED = re.compile(r"\b(at|at2|local|timestamp|hour|make_timestamp)\b")


def using(name: str) -> list[str]:
    """The expressions in which a function is called."""
    sign = (
        re.compile(re.escape(WRITTEN_OTHERWISE[name]))
        if name in WRITTEN_OTHERWISE
        else re.compile(rf"\b{name}\(")
    )
    return [text for text in CASES if sign.search(text)]


@dataclass(frozen=True)
class Answer:
    """What an expression is here, and in Spark."""

    expression: BoundExpression
    bad: list[int]
    ours: list[Any]
    theirs: list[Any]
    kind: str

    def differences(self, table: pa.Table) -> list[str]:
        """Where the values differ."""
        return [
            f"{ {name: table[name][row].as_py() for name in self.expression.columns} }: {a!r}, in Spark {b!r}"
            for row, (a, b) in enumerate(zip(self.ours, self.theirs, strict=True))
            if row not in self.bad and not same(a, b, close=True)
        ]


def answers(spark: SparkSession, zone: str, cases: list[str]) -> dict[str, Answer]:
    """The answers to expressions in a time zone, by a few queries."""
    session, table = spark.newSession(), rows()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    texts = table.append_column("local_text", table["local"].cast("string")).drop_columns(["local"])
    session.createDataFrame(texts).createOrReplaceTempView("given")
    session.sql("SELECT *, CAST(local_text AS TIMESTAMP_NTZ) AS local FROM given").createOrReplaceTempView(
        "rows"
    )
    session.conf.set("spark.sql.session.timeZone", zone)
    made = {}
    for start in range(0, len(cases), 150):
        some = cases[start : start + 150]
        bound = [bind(text, table.schema, zone=zone) for text in some]
        ours = [failing(one, table) for one in bound]
        frame = session.sql(query(some, [bad for _, bad in ours]))
        kinds = [field.dataType.simpleString() for field in frame.schema]
        columns = map(plain, frame.toArrow().columns)
        for text, one, (values, bad), kind, theirs in zip(some, bound, ours, kinds, columns, strict=True):
            made[text] = Answer(
                one, bad, values, theirs, re.sub(r"interval day.*", "interval day to second", kind)
            )
    return made


@pytest.fixture(scope="module")
def compared(spark: SparkSession) -> dict[str, Answer]:
    return answers(spark, "UTC", CASES)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_has_types_and_values_of_spark(name: str, compared: dict[str, Answer]) -> None:
    assert using(name), "add an expression to expressions.sql"
    check({text: compared[text] for text in using(name)})


def test_operators_have_types_and_values_of_spark(compared: dict[str, Answer]) -> None:
    called = {text for name in NAMES for text in using(name)}
    check({text: one for text, one in compared.items() if text not in called})


def check(compared: dict[str, Answer]) -> None:
    """Compare types and values."""
    table = rows()
    assert {text: name_of(one.expression.type) for text, one in compared.items()} == {
        text: one.kind for text, one in compared.items()
    }
    assert {
        text: one.differences(table)[:3] for text, one in compared.items() if one.differences(table)
    } == {}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+05:30"])
def test_times_in_other_zones(zone: str, spark: SparkSession) -> None:
    check(answers(spark, zone, [text for text in CASES if ZONED.search(text)]))


def test_a_record_without_a_value_has_none_in_spark(
    spark: SparkSession, compared: dict[str, Answer], request: pytest.FixtureRequest
) -> None:
    every = 1 if request.config.getoption("--campaign") else 9
    table = rows()
    for text in [text for text, one in compared.items() if one.bad][::every]:
        bad = table.slice(compared[text].bad[0], 1).select(list(compared[text].expression.columns))
        frame = spark.createDataFrame(bad)
        with pytest.raises(Exception, match=r"SQLSTATE|overflow|Exception"):
            frame.selectExpr(f"{text} AS x").toArrow()
