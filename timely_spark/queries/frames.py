"""`OVER`: partitions, orders and frames of window functions in syntax trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from timely_spark.queries import calls
from timely_spark.queries.aggregates import TYPES
from timely_spark.queries.aggregating import Aggregating
from timely_spark.queries.binder import cast_to, ordering
from timely_spark.queries.groups import AggregateFunction
from timely_spark.queries.sorting import Order
from timely_spark.queries.windows import FUNCTIONS, GATHERED, Bound, Frame
from timely_spark.sql import parse, types
from timely_spark.sql.parse import exp
from timely_spark.sql.types import name_of

#: of a decimal that is a long
_MOST_DIGITS = 18
_COUNTS = {"row_number", "rank", "dense_rank", "ntile"}
_SHARES = {"percent_rank", "cume_dist"}
_LISTS = {"collect_list", "string_agg"}
_PLACES = {"first_value", "last_value", "nth_value"}


def frame_of(
    block: Aggregating, node: Any, named: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[Order], Frame]:
    """The partition, order and function of a window; their expressions become columns of the relation."""
    binder = block.binder
    partition_by, order, spec = _parts(block, node, named)
    call, condition, _, ignores = calls.unwrapped(node.this)
    name = _name_of(call)
    if name not in calls.RANKING_NAMES and name not in TYPES:
        shown = calls.function_name(call)
        hint = f"the functions of windows are {', '.join(sorted({*calls.RANKING_NAMES, *TYPES}))}."
        raise binder.refuse(node, f"{shown} OVER is not kept up to date", hint)

    partition = [block.key(block.rewritten(one)) for one in partition_by]
    ordered = [block.add(block.rewritten(one.this), "order") for one in order]
    for one, column in zip((*partition_by, *order), (*partition, *ordered), strict=True):
        binder.refuse_maps(one, block.relation, [column], "ordered")
    by = [ordering(column, one) for column, one in zip(ordered, order, strict=True)]
    if name in calls.RANKING_NAMES and name not in _PLACES and not by:
        raise binder.refuse(node, f"{name} OVER without ORDER BY", "say by what rows are ordered.")
    if condition is not None and name in calls.RANKING_NAMES - {"first_value", "last_value"}:
        hint = "number the rows of a subquery with WHERE, and join them."
        raise binder.refuse(node, f"{name} with FILTER OVER", hint)
    if ignores and name not in {*_PLACES, "lag", "lead"}:
        raise binder.refuse(node, f"{name} IGNORE NULLS", "drop the nulls in a subquery first.")
    unit, low, high = _frame(block, node, spec, by)
    zone = binder.zone if unit in {"distance", "months"} else "UTC"
    framed = spec is not None and (name in {"lag", "lead"} or (unit, low, high) != ("rows", None, 0))
    if framed and name in calls.RANKING_NAMES - _PLACES:
        raise binder.refuse(node, f"{name} of a frame", "leave the frame out: it reads its partition.")

    def add(tree: Any) -> str:
        return block.add(block.final(tree), "argument")

    if name in TYPES:
        one = block.aggregate_function(node.this, block.rewritten, add)
        frame = _of_aggregate(one, by, (unit, low, high))
        return tuple(partition), by, replace(frame, zone=zone)
    arguments, options = _arguments(block, call, name)
    if condition is not None and name in _PLACES:
        arguments.append(block.rewritten(condition))
    columns = tuple(map(add, arguments))
    kinds = dict.fromkeys(_COUNTS, pa.int32()) | dict.fromkeys(_SHARES, pa.float64())
    result = kinds[name] if name in kinds else block.relation.schema.field(columns[0]).type
    return tuple(partition), by, Frame(name, columns, result, options, unit, low, high, ignores, zone)


def _name_of(call: Any) -> str | None:
    """The name of a function of windows, or of an aggregate."""
    name = calls.RANKINGS.get(type(call).__name__)
    if name is None and isinstance(call, exp.Anonymous) and call.name.lower() in calls.RANKING_NAMES:
        return str(call.name).lower()
    name = name or calls.aggregate_of(call)
    return "first_value" if name == "any_value" else name


def _of_aggregate(one: AggregateFunction, by: Sequence[Order], frame: tuple[str, Bound, Bound]) -> Frame:
    """An aggregate over a frame; a list has the order of its window."""
    if one.function in FUNCTIONS and not one.distinct:
        return Frame(one.function, one.columns, one.type, (), *frame)
    if one.function in _LISTS and not one.order:
        one = replace(one, order=tuple(by))
    columns = (*one.columns, *(each.column for each in one.order))
    return Frame(GATHERED, columns, one.type, (one,), *frame)


def _parts(block: Aggregating, node: Any, named: Mapping[str, Any]) -> tuple[list[Any], list[Any], Any]:
    """The `PARTITION BY`, `ORDER BY` and frame of a window, also of one in the clause `WINDOW`."""
    partition = list(node.args.get("partition_by") or ())
    order = node.args.get("order")
    orders = list(order.expressions) if order is not None else []
    spec = node.args.get("spec")
    alias = node.args.get("alias")
    if alias is None:
        return partition, orders, spec
    name = alias.name.lower()
    if (definition := named.get(name)) is None:
        hint = "define it behind HAVING: WINDOW w AS (PARTITION BY ...)."
        raise block.binder.refuse(node, f"no window {alias.name}", hint)
    if partition or orders or spec is not None:
        hint = f"define it by itself, without {alias.name}: (PARTITION BY ... ORDER BY ...)."
        raise block.binder.refuse(node, f"further clauses of the window {alias.name}", hint)
    return _parts(block, definition, {one: of for one, of in named.items() if one != name})


def _arguments(block: Aggregating, call: Any, name: str) -> tuple[list[Any], tuple[Any, ...]]:
    """The trees of the arguments of a function that only windows have, and its constants."""
    binder = block.binder
    if name in {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist"}:
        if call.args.get("this") not in {None, call.name} or call.expressions:
            raise binder.refuse(call, f"{name} with an argument", "order its window instead.")
        return [], ()
    this = call.args.get("this") if not isinstance(call, exp.Anonymous) else None
    this = this.this if isinstance(this, exp.IgnoreNulls | exp.Paren) else this
    named = map(call.args.get, ("expression", "offset", "default"))
    parts = (this, *call.expressions, *named)
    arguments = [one for one in parts if isinstance(one, exp.Expression)]
    least, most = {"ntile": (0, 1), "nth_value": (2, 2), "lag": (1, 3), "lead": (1, 3)}.get(name, (1, 1))
    if not least <= len(arguments) <= most:
        problem = f"{calls.function_name(call)} of {len(arguments)} arguments"
        raise binder.refuse(call, problem, f"give {least}.")
    if name in {"ntile", "nth_value"}:
        *values, number = arguments or [exp.Literal.number(1)]
        place = binder.constant(number)
        if not isinstance(place, int) or place < 1:
            raise binder.refuse(call, f"{name} of {place}", "give a number of at least 1.")
        return [block.rewritten(one) for one in values], (place,)
    if name in {"lag", "lead"}:
        value = block.rewritten(arguments[0])
        by = binder.constant(arguments[1]) if len(arguments) > 1 else 1
        if not _is_int(by):
            raise binder.refuse(call, f"{name} by {by}", "give a whole number of rows.")
        if len(arguments) < 3:
            return [value], (by,)
        kind = binder.bound(block.final(value), block.relation.schema).type
        return [value, cast_to(block.rewritten(arguments[2]), kind)], (by,)
    return [block.rewritten(arguments[0])], ()


def _frame(block: Aggregating, node: Any, spec: Any, by: Sequence[Order]) -> tuple[str, Bound, Bound]:
    """The unit, the first and the last row of a frame."""
    if spec is None:
        return "range", None, 0 if by else None
    unit = str(spec.args.get("kind") or "RANGE").upper()
    if unit not in {"ROWS", "RANGE"} or spec.args.get("exclude"):
        raise block.binder.refuse(node, f"a frame of {unit}", "write ROWS or RANGE, without EXCLUDE.")
    ends = [
        (spec.args.get("start"), spec.args.get("start_side")),
        (spec.args.get("end"), spec.args.get("end_side")),
    ]
    kind = None if unit == "ROWS" else _by_distance(block, node, [end for end, _ in ends], by)
    edges = [block.binder.bound(end, pa.schema([])) for end, _ in ends if isinstance(end, exp.Expression)]
    units = {edge.type == types.MONTHS for edge in edges}
    if len(units) > 1:
        hint = "write months or years at both ends."
        raise block.binder.refuse(node, "a frame of months and of another unit", hint)
    months = True in units
    low = _edge(block, node, *ends[0], kind, months=months)
    high = _edge(block, node, *ends[1], kind, months=months) if ends[1][0] is not None else 0
    sides = [str(side).upper() for _, side in ends]
    behind = low is None and sides[0] == "FOLLOWING"
    before = high is None and sides[1] == "PRECEDING"
    if behind or before or (low is not None and high is not None and low > high):
        hint = "write its first row first: ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING."
        raise block.binder.refuse(node, "a frame that ends before it begins", hint)
    return "months" if months else "distance" if kind is not None else unit.lower(), low, high


def _by_distance(
    block: Aggregating, node: Any, ends: Sequence[Any], by: Sequence[Order]
) -> pa.DataType | None:
    """The type of the values whose distance a frame of RANGE is about; None if it names no distance."""
    if not any(isinstance(one, exp.Expression) for one in ends):
        return None
    kind = block.relation.schema.field(by[0].column).type if len(by) == 1 else None
    if (
        kind is None
        or not (types.is_number(kind) or types.is_date_or_time(kind))
        or (types.is_decimal(kind) and kind.precision > _MOST_DIGITS)
    ):
        hint = "order by one number, date or time; or write ROWS."
        raise block.binder.refuse(node, "RANGE with a distance of other than one number or time", hint)
    return kind


def _edge(
    block: Aggregating, node: Any, edge: Any, side: Any, kind: pa.DataType | None, *, months: bool
) -> Bound:
    text = str(edge).upper() if not isinstance(edge, exp.Expression) else ""
    if text == "UNBOUNDED":
        return None
    if text in {"CURRENT ROW", ""} and not isinstance(edge, exp.Expression):
        return 0
    rows = _as_distance(block.binder.constant(edge), kind, months=months)
    if rows is None:
        shown = edge.sql(dialect=parse.dialect())
        unit = "rows" if kind is None else name_of(kind)
        hint = "give a whole number of rows, a number, or INTERVAL '1' DAY of dates and times."
        raise block.binder.refuse(node, f"a frame of {shown} {unit}", hint)
    return -rows if str(side).upper() == "PRECEDING" else rows


def _as_distance(value: Any, kind: pa.DataType | None, *, months: bool) -> Bound:
    """A distance in rows, in months, or in the unit in which values are stored; None if it has none."""
    temporal = kind is not None and types.is_date_or_time(kind)
    if isinstance(value, timedelta):
        unit = timedelta(days=1) if kind == pa.date32() else timedelta(microseconds=1)
        return None if not temporal or value % unit else value // unit
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if kind is not None and pa.types.is_floating(kind):
        return None if months else float(value)
    if kind is not None and types.is_decimal(kind):
        scaled = Decimal(value).scaleb(kind.scale)
        return int(scaled) if scaled == int(scaled) and not months else None
    if kind is None:
        return int(value) if _is_int(value) and not months else None
    fits = temporal if months else not pa.types.is_timestamp(kind)
    return value if isinstance(value, int) and fits else None


def _is_int(value: Any) -> bool:
    """Whether a constant is a number of rows, which Spark counts in 32 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
