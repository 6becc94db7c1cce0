"""Every function and operator has Spark's types and values: on null, NaN, extremes, empty and long texts."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
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
pytestmark = [pytest.mark.slow, pytest.mark.skipif(OTHER, reason="values are those of Spark 4.2")]

LINES = (Path(__file__).parent / "expressions.sql").read_text(encoding="utf-8").splitlines()
CASES = [line for line in LINES if line and not line.startswith("--")]
#: those that have a syntax of their own
WRITTEN_OTHERWISE = {"cast": "cast(", "try_cast": "try_cast(", "in": " in (", "not": "not ", "div": " div "}
NAMES = sorted(name for name in {*FUNCTIONS, *SPECIAL} - {*CHANGING} if name.isidentifier())
#: what depends on the time zone
ZONED = [text for text in CASES if re.search(r"\b(at|at2|local|timestamp|hour|make_timestamp)\b", text)]
#: the expressions by the time zone in which they are evaluated
BY_ZONE = {"UTC": CASES, "Europe/Berlin": ZONED, "+05:30": ZONED}
#: The checksums of the answers here that were Spark's when it was asked. Every run asks it about all others,
#: in a session that it starts if there are any, and the campaign about all; then
#: `python -m tests.sql.test_against_spark` writes them again.
CONFIRMED = Path(__file__).with_name("confirmed.txt")


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


@functools.cache
def ours(text: str, zone: str) -> tuple[BoundExpression, list[Any], list[int]]:
    """An expression, its values here, and the rows without one."""
    table = rows()
    expression = bind(text, table.schema, zone=zone)
    return expression, *failing(expression, table)


def checksum(text: str, zone: str) -> str:
    """That of an answer: its type and values, of doubles all but their last digits."""
    expression, values, bad = ours(text, zone)
    shown = re.sub(r"-?\d+\.\d+(e[+-]\d+)?", lambda number: f"{float(number[0]):.12g}", repr(values))
    return hashlib.sha256(repr((text, zone, name_of(expression.type), bad, shown)).encode()).hexdigest()[:12]


def unconfirmed(zone: str) -> list[str]:
    """The expressions whose answers Spark has not confirmed."""
    confirmed = {*CONFIRMED.read_text(encoding="utf-8").split()}
    return [text for text in BY_ZONE[zone] if checksum(text, zone) not in confirmed]


def answers(start: Callable[[], SparkSession], zone: str, cases: list[str]) -> dict[str, Answer]:
    """The answers to expressions in a time zone, by a few queries."""
    if not cases:
        return {}
    session, table = start().newSession(), rows()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    texts = table.append_column("local_text", table["local"].cast("string")).drop_columns(["local"])
    session.createDataFrame(texts).createOrReplaceTempView("given")
    session.sql("SELECT *, CAST(local_text AS TIMESTAMP_NTZ) AS local FROM given").createOrReplaceTempView(
        "rows"
    )
    session.conf.set("spark.sql.session.timeZone", zone)
    made = {}
    for first in range(0, len(cases), 150):
        some = cases[first : first + 150]
        here = [ours(text, zone) for text in some]
        frame = session.sql(query(some, [bad for _, _, bad in here]))
        kinds = [field.dataType.simpleString() for field in frame.schema]
        columns = map(plain, frame.toArrow().columns)
        for text, (one, values, bad), kind, theirs in zip(some, here, kinds, columns, strict=True):
            made[text] = Answer(
                one, bad, values, theirs, re.sub(r"interval day.*", "interval day to second", kind)
            )
    return made


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Callable[[], SparkSession]:
    """Starts the session that all tests share."""
    return lambda: request.getfixturevalue("spark")


@pytest.fixture(scope="module")
def compared(session: Callable[[], SparkSession]) -> dict[str, Answer]:
    return answers(session, "UTC", unconfirmed("UTC"))


@pytest.mark.parametrize("name", NAMES)
def test_a_function_has_types_and_values_of_spark(name: str, compared: dict[str, Answer]) -> None:
    assert using(name), "add an expression to expressions.sql"
    check({text: compared[text] for text in using(name) if text in compared})


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


@pytest.mark.parametrize("zone", [*BY_ZONE][1:])
def test_times_in_other_zones(zone: str, session: Callable[[], SparkSession]) -> None:
    check(answers(session, zone, unconfirmed(zone)))


def test_a_record_without_a_value_has_none_in_spark(
    session: Callable[[], SparkSession], compared: dict[str, Answer]
) -> None:
    check_refused(session, compared)


def check_refused(start: Callable[[], SparkSession], compared: dict[str, Answer], every: int = 1) -> None:
    """Check that Spark, too, has no value for the first record without one: a query for each expression."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    table = rows()
    for text in [text for text, one in compared.items() if one.bad][::every]:
        bad = table.slice(compared[text].bad[0], 1).select(list(compared[text].expression.columns))
        frame = start().createDataFrame(bad)
        with pytest.raises((PySparkException, Py4JJavaError)):
            frame.selectExpr(f"{text} AS x").toArrow()


@pytest.mark.campaign
def test_spark_confirms_every_answer(spark: SparkSession) -> None:
    for zone, cases in BY_ZONE.items():
        check(compared := answers(lambda: spark, zone, cases))
        if zone == "UTC":
            check_refused(lambda: spark, compared, every=9)


if __name__ == "__main__":
    every = {checksum(text, zone) for zone, cases in BY_ZONE.items() for text in cases}
    CONFIRMED.write_text("\n".join(sorted(every)) + "\n", encoding="utf-8")
