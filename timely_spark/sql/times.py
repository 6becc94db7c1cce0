"""How parts of dates, and functions with a unit of time, are bound."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from timely_spark.sql.binder import ExpressionBinder, special, syntax
from timely_spark.sql.calendar import DAYS_OF, MICROS_OF, MONTHS_OF
from timely_spark.sql.parse import exp
from timely_spark.sql.terms import Term
from timely_spark.sql.types import INTERVAL, MONTHS, is_date_or_time, is_interval, name_of

_PARTS = {
    **dict.fromkeys(("YEAR", "Y", "YEARS", "YR", "YRS"), "year"),
    **dict.fromkeys(("YEAROFWEEK",), "$iso_year"),
    **dict.fromkeys(("QUARTER", "QTR"), "quarter"),
    **dict.fromkeys(("MONTH", "MON", "MONS", "MONTHS"), "month"),
    **dict.fromkeys(("WEEK", "W", "WEEKS"), "weekofyear"),
    **dict.fromkeys(("DAY", "D", "DAYS"), "day"),
    **dict.fromkeys(("DAYOFWEEK", "DOW"), "dayofweek"),
    **dict.fromkeys(("DAYOFWEEK_ISO", "DOW_ISO"), "$iso_weekday"),
    **dict.fromkeys(("DOY",), "dayofyear"),
    **dict.fromkeys(("HOUR", "H", "HOURS", "HR", "HRS"), "hour"),
    **dict.fromkeys(("MINUTE", "M", "MIN", "MINS", "MINUTES"), "minute"),
    **dict.fromkeys(("SECOND", "S", "SEC", "SECONDS", "SECS"), "$second_with_fraction"),
}


syntax("Extract")(lambda binder, node: _part(binder, node, node.this.name, binder.bind(node.expression)))


@special("date_part datepart", 2, 2)
def _date_part(binder: ExpressionBinder, node: Any) -> Term:
    return _part(
        binder,
        node,
        binder.text_of(node.expressions[0], "the part of a date"),
        binder.bind(node.expressions[1]),
    )


def _part(binder: ExpressionBinder, node: Any, part: str, term: Term) -> Term:
    name = _PARTS.get(part.upper())
    if name is None:
        raise binder.refuse(node, f"a date has no part {part!r}", f"its parts are {', '.join(_PARTS)}.")
    if is_interval(term.type):
        of = name.removeprefix("$").removesuffix("_with_fraction")
        if of not in _OF_INTERVALS[term.type]:
            hint = f"its parts are {', '.join(_OF_INTERVALS[term.type])}."
            raise binder.refuse(node, f"{name_of(term.type)} has no part {part!r}", hint)
        name = f"$interval_{of}"
    return binder.call(node, name, term)


_OF_INTERVALS = {INTERVAL: ("day", "hour", "minute", "second"), MONTHS: ("year", "month")}
_UNITS = (*MONTHS_OF, *DAYS_OF, *MICROS_OF)


def _unit(binder: ExpressionBinder, node: Any) -> str:
    unit = str(node.expressions[0].name).upper()
    if node.expressions[0].is_string:
        raise binder.refuse(node, f"the unit of time {unit} is a text", f"write {unit} without quotes.")
    if unit not in _UNITS:
        raise binder.refuse(node, f"{unit} is not a unit of time", f"the units are {', '.join(_UNITS)}.")
    return unit


#: by the format of bytes the function that writes them
_OF_BYTES = {"base64": "base64", "hex": "hex"}


@special("to_char to_varchar", 2, 2)
def _to_char(binder: ExpressionBinder, node: Any) -> Term:
    value, pattern = binder.bind(node.expressions[0]), node.expressions[1]
    if is_date_or_time(value.type):
        return binder.call(node, "date_format", value, pattern)
    if value.type != pa.binary():
        problem = f"{node.name} of {name_of(value.type)}"
        raise binder.refuse(node, problem, "write format_number(n, 2), which groups digits, or printf.")
    name = binder.text_of(pattern, "the format of bytes").lower()
    if name == "utf-8":
        return binder.called(node, "$decode", [value, binder.constant(pa.scalar(name))])
    if name not in _OF_BYTES:
        raise binder.refuse(pattern, f"bytes as {name!r}", "the formats are 'base64', 'hex' and 'utf-8'.")
    return binder.called(node, _OF_BYTES[name], [value])


@special("timestampadd dateadd date_add", 2, 3)
def _timestampadd(binder: ExpressionBinder, node: Any) -> Term:
    if len(node.expressions) < 3:
        return binder.call(node, "date_add", *node.expressions)
    unit = binder.constant(pa.scalar(_unit(binder, node)))
    number, time = (binder.bind(one) for one in node.expressions[1:3])
    return binder.call(node, "$timestampadd", unit, number, time)


@special("timestampdiff datediff date_diff", 2, 3)
def _timestampdiff(binder: ExpressionBinder, node: Any) -> Term:
    if len(node.expressions) < 3:
        return binder.call(node, "datediff", *node.expressions)
    unit = binder.constant(pa.scalar(_unit(binder, node)))
    return binder.call(node, "$timestampdiff", unit, *node.expressions[1:])


@special("time_bucket", 2, 3)
def _time_bucket(binder: ExpressionBinder, node: Any) -> Term:
    if any(one.find(exp.Column) for one in node.expressions[::2]):
        raise binder.refuse(node, "a width or an origin of time_bucket that varies", "write literals.")
    return binder.call(node, "$time_bucket", *node.expressions)


special("current_timezone", 0, 0)(lambda binder, node: binder.constant(pa.scalar(binder.zone)))
