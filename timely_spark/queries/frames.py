"""`OVER`: partitions, orders and frames of window functions in syntax trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from timely_spark.queries import calls
from timely_spark.queries.aggregates import TYPES
from timely_spark.queries.binder import Binder, cast_to, ordering
from timely_spark.queries.relations import Relation
from timely_spark.queries.sorting import Order
from timely_spark.queries.windows import FUNCTIONS, Frame
from timely_spark.sql.types import name_of


class GrowingBlock(Protocol):
    """A block of a query, whose relation grows by columns."""

    binder: Binder
    relation: Relation

    def rewritten(self, node: Any) -> Any:
        """A tree with the columns of the relation."""
        ...

    def final(self, node: Any) -> Any:
        """A tree in which columns that joins have dropped are those that equal them."""
        ...

    def add(self, node: Any, wanted: str) -> str:
        """The column of the relation with an expression's values."""
        ...


_COUNTS = {"row_number", "rank", "dense_rank", "ntile"}
_SHARES = {"percent_rank", "cume_dist"}
_PLACES = {"first_value", "last_value", "nth_value"}


def frame_of(
    block: GrowingBlock, node: Any, named: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[Order], Frame]:
    """The partition, order and function of a window; their expressions become columns of the relation."""
    from sqlglot import exp

    binder = block.binder
    partition_by, order, spec = _parts(block, node, named)
    call, condition, _, ignores = calls.unwrapped(node.this)
    kind = type(call).__name__
    name = calls.RANKINGS.get(kind)
    if name is None and isinstance(call, exp.Anonymous):
        name = call.name.lower() if call.name.lower() in calls.RANKING_NAMES else None
    if name is None:
        name = calls.aggregate_of(call)
    if name not in FUNCTIONS:
        shown = calls.function_name(call)
        hint = f"the functions of windows are {', '.join(sorted(FUNCTIONS))}."
        raise binder.refuse(node, f"{shown} OVER is not kept up to date", hint)
    partition = [block.add(block.rewritten(one), "partition") for one in partition_by]
    by = [ordering(block.add(block.rewritten(one.this), "order"), one) for one in order]
    if name in calls.RANKING_NAMES and name not in _PLACES and not by:
        raise binder.refuse(node, f"{name} OVER without ORDER BY", "say by what rows are ordered.")
    given, options = _arguments(block, call, name, condition)
    if ignores and name not in _PLACES:
        raise binder.refuse(node, f"{name} IGNORE NULLS", "drop the nulls in a subquery first.")
    columns = tuple(block.add(block.final(one), "argument") for one in given)
    result = _result(block, node, name, columns)
    unit, low, high = _frame(block, node, spec, ordered=bool(by))
    return tuple(partition), by, Frame(name, columns, result, options, unit, low, high, ignores)


def _result(block: GrowingBlock, node: Any, name: str, columns: tuple[str, ...]) -> pa.DataType:
    """The type of a function's results."""
    if name in _COUNTS:
        return pa.int32()
    if name in _SHARES:
        return pa.float64()
    first = block.relation.schema.field(columns[0]).type if columns else pa.int64()
    if name not in TYPES:
        return first
    result = TYPES[name][1](first)
    if result is None or (name == "avg" and pa.types.is_decimal(first)):
        raise block.binder.refuse(node, f"{name} of {name_of(first)} OVER", "cast the argument to double.")
    return result


def _parts(block: GrowingBlock, node: Any, named: Mapping[str, Any]) -> tuple[list[Any], list[Any], Any]:
    """What `PARTITION BY`, `ORDER BY` and the frame are, also of a window in the clause `WINDOW`."""
    partition = list(node.args.get("partition_by") or ())
    order = node.args.get("order")
    orders = list(order.expressions) if order is not None else []
    spec = node.args.get("spec")
    alias = node.args.get("alias")
    if alias is not None and not partition and not orders:
        if (found := named.get(alias.name.lower())) is None:
            hint = "define it behind HAVING: WINDOW w AS (PARTITION BY ...)."
            raise block.binder.refuse(node, f"no window {alias.name}", hint)
        return _parts(block, found, {})
    return partition, orders, spec


def _arguments(
    block: GrowingBlock, call: Any, name: str, condition: Any
) -> tuple[list[Any], tuple[Any, ...]]:
    """The trees of a call's arguments, and its constants."""
    from sqlglot import exp

    binder = block.binder
    if name in {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist"}:
        return [], ()
    this = call.args.get("this") if not isinstance(call, exp.Anonymous) else None
    this = this.this if isinstance(this, exp.IgnoreNulls | exp.Paren) else this
    given = [one for one in (this, *call.expressions) if isinstance(one, exp.Expression)]
    if name in {"ntile", "nth_value"}:
        *values, number = [*given, call.args["offset"]] if call.args.get("offset") else given
        place = binder.constant(number, name)
        if not isinstance(place, int) or place < 1:
            raise binder.refuse(call, f"{name} of {place}", "give a number of at least 1.")
        return [block.rewritten(one) for one in values], (place,)
    if name in {"lag", "lead"}:
        more = [call.args.get("offset"), call.args.get("default"), *given[1:]]
        offset, default = [*(one for one in more if one is not None), None, None][:2]
        value = block.rewritten(given[0])
        by = 1 if offset is None else int(binder.constant(offset, name))
        if default is None:
            return [value], (by,)
        kind = binder.bound(block.final(value), block.relation.schema).type
        return [value, cast_to(block.rewritten(default), kind)], (by,)
    if name in _PLACES:
        return [block.rewritten(given[0])], ()
    return _of_aggregate(block, call, name, given, condition), ()


def _of_aggregate(block: GrowingBlock, call: Any, name: str, given: list[Any], condition: Any) -> list[Any]:
    """The arguments of an aggregate over a window."""
    from sqlglot import exp

    if given and isinstance(given[0], exp.Distinct):
        hint = "aggregate in a subquery, and join it."
        raise block.binder.refuse(call, f"{name}(DISTINCT ...) OVER", hint)
    if name == "count" and given and isinstance(given[0], exp.Star):
        given = []
    trees = [block.rewritten(one) for one in given]
    if condition is not None:
        value = trees[0] if trees else exp.Boolean(this=True)
        trees = [exp.Case(ifs=[exp.If(this=block.rewritten(condition), true=value)])]
    if trees and pa.types.is_null(block.binder.bound(block.final(trees[0]), block.relation.schema).type):
        trees = [cast_to(trees[0], pa.float64() if name in {"sum", "avg"} else pa.bool_())]
    return trees


def _frame(block: GrowingBlock, node: Any, spec: Any, *, ordered: bool) -> tuple[str, int | None, int | None]:
    """The unit, the first and the last row of a frame."""
    if spec is None:
        return "range", None, 0 if ordered else None
    unit = str(spec.args.get("kind") or "RANGE").upper()
    if unit not in {"ROWS", "RANGE"} or spec.args.get("exclude"):
        raise block.binder.refuse(node, f"a frame of {unit}", "write ROWS or RANGE, without EXCLUDE.")
    low = _edge(block, node, spec.args.get("start"), spec.args.get("start_side"), unit)
    end = spec.args.get("end")
    high = _edge(block, node, end, spec.args.get("end_side"), unit) if end is not None else 0
    return unit.lower(), low, high


def _edge(block: GrowingBlock, node: Any, of: Any, side: Any, unit: str) -> int | None:
    from sqlglot import exp

    text = str(of).upper() if not isinstance(of, exp.Expression) else ""
    if text == "UNBOUNDED":
        return None
    if text in {"CURRENT ROW", ""} and not isinstance(of, exp.Expression):
        return 0
    if unit == "RANGE":
        hint = "write ROWS, or join the rows that are near enough."
        raise block.binder.refuse(node, "RANGE with a distance", hint)
    rows = int(block.binder.constant(of, "a frame"))
    return -rows if str(side).upper() == "PRECEDING" else rows
