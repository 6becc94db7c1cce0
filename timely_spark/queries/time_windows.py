"""`window(time, '10 minutes', '5 minutes')` and `session_window(time, '5 minutes')` in a block of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from timely_spark.queries import calls
from timely_spark.queries.binder import Binder, tree_of
from timely_spark.sql import literals, parse
from timely_spark.sql.parse import exp
from timely_spark.sql.types import INTERVAL

NAME = "window"
#: how the function is called where it is parsed: sqlglot takes `window(` after GROUP BY for a clause
WINDOW = "w1ndow"
SESSION = "session_window"


def _calls(node: Any) -> Iterator[Any]:
    """The calls of a block, without those of subqueries."""
    for one in node.walk(prune=lambda of: of is not node and isinstance(of, exp.Query)):
        if isinstance(one, exp.Anonymous) and one.name.lower() in {WINDOW, SESSION}:
            yield one


def with_time_windows(binder: Binder, node: Any) -> tuple[Any, Any]:
    """A block whose windows of time are structs of start and end, and that struct; None if it has none.

    Rows without a time are in no window. A row is in several windows that slide, so there it is several rows.
    """
    calls = list(dict.fromkeys(_calls(node)))
    if not calls:
        return node, None
    if len(calls) > 1:
        raise binder.refuse(calls[1], "several windows of time", "select the other one in a subquery.")
    (call,) = calls
    if call.name.lower() == SESSION:
        return _with_sessions(binder, node, call)
    width, slide, start = (_microseconds(binder, call, place) for place in (1, 2, 3))
    slide = slide if len(call.expressions) > 2 else width
    if not 0 < slide <= width or abs(start) >= slide or not 2 <= len(call.expressions) <= 4:
        hint = "write window(time, '10 minutes'), or window(time, '10 minutes', '5 minutes')."
        raise binder.refuse(call, "a window of another form", hint)
    time = call.expressions[0].sql(dialect=parse.dialect())
    micros = f"`$micros`({time})"
    last = f"({micros} - pmod({micros} - {start}, {slide}))"
    struct = "named_struct('start', `$time`({0}, {2}), 'end', `$time`({0} + {1}, {2}))"
    window: Any = parse.parse_expression(struct.format(last, width, time))
    node = node.copy()
    if slide < width:
        many = -(-width // slide)
        each = struct.format(f"{last} - {slide} * CAST(nth_w1ndow AS BIGINT)", width, time)
        every = f"transform(sequence(0, {many - 1}), nth_w1ndow -> {each})"
        rows = f"explode(filter({every}, {WINDOW} -> `$micros`({WINDOW}.end) > {micros}))"
        alias = exp.TableAlias(this=exp.to_identifier("rows of windows"), columns=[exp.to_identifier(NAME)])
        view = exp.Lateral(this=parse.parse_expression(rows), view=True, alias=alias)
        node.set("laterals", [*(node.args.get("laterals") or ()), view])
        window = exp.column(NAME, table=exp.to_identifier("rows of windows", quoted=True))
    present = tree_of("x IS NOT NULL", x=call.expressions[0])
    return _replaced(node, window, NAME).where(present, copy=False), window


def _replaced(node: Any, window: Any, name: str) -> Any:
    """A block with a struct for its windows of time."""
    for one in list(_calls(node)):
        plain = one.parent is node and one.arg_key == "expressions"
        one.replace(exp.alias_(window.copy(), name) if plain else window.copy())
    return node


def _with_sessions(binder: Binder, node: Any, call: Any) -> tuple[Any, Any]:
    """A block over its rows, each with the session in which it is: rows of the block's other keys, in order.

    A session goes on while the next row is at most the gap later, and ends a gap after its last row.
    """
    gap = _microseconds(binder, call, 1)
    source, group = node.args.get("from_") or node.args.get("from"), node.args.get("group")
    if len(call.expressions) != 2 or gap <= 0:
        raise binder.refuse(call, "a session of another form", "write session_window(time, '10 minutes').")
    keys = [_meant(one, node.expressions) for one in group.expressions] if group is not None else []
    plain = group is not None and not any(group.args.get(one) for one in _SETS) and call in keys
    if not plain or source is None or node.args.get("joins") or node.args.get("laterals"):
        hint = "write GROUP BY session_window(...) of one table, or of a subquery that joins several."
        raise binder.refuse(call, "session_window that is not a key of one table's groups", hint)
    node, dialect = node.copy(), parse.dialect()
    table = source.this.copy()
    alias = exp.to_identifier(table.alias_or_name, quoted=True) if table.alias_or_name else None
    instant = call.expressions[0].sql(dialect=dialect)
    time = f"`$micros`({instant})"
    others = ", ".join(one.sql(dialect=dialect) for one in keys if one != call)
    partition = f"PARTITION BY {others}" if others else ""
    mark, number = "`begin of session`", "`number of session`"
    over = f"OVER ({partition} ORDER BY {time})"
    session = f"OVER (PARTITION BY {others + ', ' if others else ''}{number})"
    begin, end = (
        f"`$time`({one}({time}) {session} + {by}, {instant})" for one, by in (("min", 0), ("max", gap))
    )
    added = (
        f"IF({time} <= lag({time}) {over} + {gap}, 0, 1) AS {mark}",
        f"sum({mark}) {over} AS {number}",
        f"named_struct('start', {begin}, 'end', {end}) AS {SESSION}",
    )
    where = node.args.get("where")
    for expression in added:
        query = exp.select("*", parse.parse_expression(expression), dialect=dialect).from_(table)
        if expression is added[0]:
            query = query.where(f"{time} IS NOT NULL", dialect=dialect)
            query = query if where is None else query.where(where.this)
        table = exp.Subquery(this=query, alias=alias and exp.TableAlias(this=alias.copy()))
    node.set("where", None)
    node = _replaced(node, exp.column(SESSION), SESSION).from_(table, copy=False)
    return node, None


#: what a GROUP BY has besides keys
_SETS = ("rollup", "cube", "grouping_sets", "all")


def _meant(key: Any, items: Sequence[Any]) -> Any:
    """A key of GROUP BY that is the number or the alias of a selected expression, as that expression."""
    if (place := calls.place_of(key)) is not None and 0 <= place < len(items):
        return items[place].unalias()
    named = [
        one.this for one in items if isinstance(one, exp.Alias) and one.alias.lower() == key.name.lower()
    ]
    return named[0] if named and isinstance(key, exp.Column) and not key.table else key


def _microseconds(binder: Binder, call: Any, place: int) -> int:
    """The duration of an argument; 0 without one."""
    if len(call.expressions) <= place:
        return 0
    text = str(binder.constant(call.expressions[place]))
    length = literals.interval_of(text)
    if length is None or length.type != INTERVAL:
        hint = "write a number and a unit, such as week, day, hour, minute, second or millisecond."
        raise binder.refuse(call.expressions[place], f"a window of {text!r}", hint)
    return int(length.value)
