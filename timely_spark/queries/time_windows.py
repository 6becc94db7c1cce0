"""`window(time, '10 minutes')` and `window(time, '10 minutes', '5 minutes')` in a block of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from timely_spark.sql import parse

if TYPE_CHECKING:
    from timely_spark.queries.binder import Binder

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
NAME = "window"
#: how the function is called where it is parsed: sqlglot takes `window(` after GROUP BY for a clause
WINDOW = "w1ndow"
SESSIONS = (
    "mark where one begins, by lag(time) OVER (PARTITION BY key ORDER BY time), number them by sum(mark) "
    "OVER (...) in a query around it, and group by key and number."
)


def _calls(node: Any) -> Iterator[Any]:
    """The calls of a block, without those of subqueries."""
    from sqlglot import exp

    for one in node.walk(prune=lambda of: of is not node and isinstance(of, exp.Query)):
        if isinstance(one, exp.Anonymous) and one.name.lower() in {WINDOW, "session_window"}:
            yield one


def with_time_windows(binder: Binder, node: Any) -> tuple[Any, Any]:
    """A block whose windows of time are structs of start and end, and that struct; None if it has none.

    Rows without a time are in no window. A row is in several windows that slide, so there it is several rows.
    """
    from sqlglot import exp

    calls = list(dict.fromkeys(_calls(node)))
    if not calls:
        return node, None
    for one in calls:
        if one.name.lower() != WINDOW:
            raise binder.refuse(one, "session_window is not kept up to date", SESSIONS)
    if len(calls) > 1:
        raise binder.refuse(calls[1], "several windows of time", "select the other one in a subquery.")
    (call,) = calls
    width, slide, start = (_microseconds(binder, call, place) for place in (1, 2, 3))
    slide = slide or width
    if not width or not 0 < slide <= width or not 2 <= len(call.expressions) <= 4:
        hint = "write window(time, '10 minutes'), or window(time, '10 minutes', '5 minutes')."
        raise binder.refuse(call, "a window of another form", hint)
    time = call.expressions[0].sql(dialect=parse.dialect())
    micros = f"unix_micros(CAST({time} AS TIMESTAMP))"
    last = f"({micros} - pmod({micros} - {start}, {slide}))"
    struct = "named_struct('start', timestamp_micros({0}), 'end', timestamp_micros({0} + {1}))"
    window: Any = parse.parse_expression(struct.format(last, width))
    node = node.copy()
    if slide < width:
        many = -(-width // slide)
        each = struct.format(f"{last} - {slide} * CAST(i AS BIGINT)", width)
        every = f"transform(sequence(0, {many - 1}), i -> {each})"
        rows = f"explode(filter({every}, w -> unix_micros(w.end) > {micros}))"
        alias = exp.TableAlias(this=exp.to_identifier("rows of windows"), columns=[exp.to_identifier(NAME)])
        view = exp.Lateral(this=parse.parse_expression(rows), view=True, alias=alias)
        node.set("laterals", [*(node.args.get("laterals") or ()), view])
        window = exp.column(NAME, table=exp.to_identifier("rows of windows", quoted=True))
    present = exp.Not(this=exp.Is(this=call.expressions[0].copy(), expression=exp.Null()))
    for one in list(_calls(node)):
        plain = one.parent is node and one.arg_key == "expressions"
        one.replace(exp.alias_(window.copy(), NAME) if plain else window.copy())
    return node.where(present, copy=False), window


def _microseconds(binder: Binder, call: Any, place: int) -> int:
    """The duration of an argument; 0 without one."""
    if len(call.expressions) <= place:
        return 0
    text = str(binder.constant(call.expressions[place], NAME))
    parts = re.findall(r"(\d+)\s*([a-z]+?)s?\b", text.lower().removeprefix("interval"))
    if not parts or any(unit not in _MICROSECONDS for _, unit in parts):
        hint = f"write a number and one of {', '.join(_MICROSECONDS)}."
        raise binder.refuse(call.expressions[place], f"a window of {text!r}", hint)
    return sum(int(number) * _MICROSECONDS[unit] for number, unit in parts)
