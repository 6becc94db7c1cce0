"""Calls of aggregates and window functions in syntax trees: what each is, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timely_spark.queries.binder import tree_of
from timely_spark.sql import parse, strict
from timely_spark.sql.binder import OF_SEVERAL_ROWS
from timely_spark.sql.parse import exp

#: The aggregates by sqlglot's classes; and by the names that it leaves as they are.
AGGREGATES = {
    "Count": "count", "CountIf": "count_if", "Sum": "sum", "Avg": "avg", "Min": "min", "Max": "max",
    "Stddev": "stddev", "StddevSamp": "stddev", "StddevPop": "stddev_pop", "Variance": "variance",
    "VariancePop": "var_pop", "Skewness": "skewness", "Kurtosis": "kurtosis", "RegrCount": "count",
    "RegrAvgx": "avg", "RegrAvgy": "avg", "RegrSxx": "regr_sxx", "RegrSyy": "regr_syy", "RegrSxy": "regr_sxy",
    "RegrSlope": "regr_slope", "RegrIntercept": "regr_intercept", "RegrR2": "regr_r2",
    "BitwiseAndAgg": "bit_and", "BitwiseOrAgg": "bit_or", "BitwiseXorAgg": "bit_xor", "Mode": "mode",
    "LogicalAnd": "bool_and", "LogicalOr": "bool_or", "AnyValue": "any_value", "First": "first",
    "FirstValue": "first", "Last": "last", "LastValue": "last", "ArgMin": "min_by", "ArgMax": "max_by",
    "ArrayAgg": "collect_list", "ArrayUniqueAgg": "collect_set", "ApproxDistinct": "approx_count_distinct",
    "Quantile": "percentile", "ApproxQuantile": "approx_percentile", "PercentileCont": "percentile",
    "PercentileDisc": "percentile_disc", "Median": "median", "GroupConcat": "string_agg",
}  # fmt: skip
NAMED = {
    "every": "bool_and", "some": "bool_or", "mean": "avg", "std": "stddev", "percentile": "percentile",
    "max_by": "max_by", "min_by": "min_by", "corr": "corr", "covar_pop": "covar_pop",
    "covar_samp": "covar_samp", "try_sum": "try_sum", "try_avg": "try_avg",
    "collect_list": "collect_list", "array_agg": "collect_list",
}  # fmt: skip
#: where sqlglot puts the arguments of aggregates
_SLOTS = ("this", "expression", "quantile", "separator")
#: those with a share
PERCENTILES = {"percentile", "percentile_disc", "approx_percentile"}
#: those that may be of several rows: `max_by(x, y, 3)`
BESTS = {"min_by", "max_by"}
#: Aggregates that Spark has, sqlglot does not know, and a collection does not keep.
KNOWN_AGGREGATES = {"count_min_sketch", "histogram_numeric", "hll_sketch_agg"}
#: Functions that only windows have, by sqlglot's classes and by name.
RANKINGS = {
    "RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank", "PercentRank": "percent_rank",
    "CumeDist": "cume_dist", "Ntile": "ntile", "Lag": "lag", "Lead": "lead", "FirstValue": "first_value",
    "LastValue": "last_value", "First": "first_value", "Last": "last_value", "NthValue": "nth_value",
}  # fmt: skip
RANKING_NAMES = set(RANKINGS.values())
OF_SEVERAL_ROWS.update((*AGGREGATES.values(), *NAMED, *RANKING_NAMES))


def function_name(node: Any) -> str:
    """The name of a call in small letters: the written one, or Spark's."""
    if (name := node.meta.get(strict.CALLED)) is not None:
        return str(name)
    ignore = parse.needs_sqlglot().ErrorLevel.IGNORE
    return str(node.sql(parse.dialect(), unsupported_level=ignore)).partition("(")[0].split()[0].lower()


def aggregate_of(node: Any) -> str | None:
    """The aggregate that a call is; "" if it is not supported; None if the call is not an aggregate."""
    kind = type(node).__name__
    if kind in AGGREGATES:
        return AGGREGATES[kind]
    if isinstance(node, exp.Any):
        likes = isinstance(node.parent, exp.Like | exp.ILike) and node.arg_key == "expression"
        return None if likes or isinstance(node.this, exp.Query | exp.Subquery) else "bool_or"
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        name = str(node.name).lower()
        if name in NAMED:
            return NAMED[name]
        return "" if name in KNOWN_AGGREGATES else None
    if kind in RANKINGS or isinstance(node, exp.Grouping | exp.GroupingId):
        return None
    return "" if isinstance(node, exp.AggFunc) else None


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate as it is written."""

    function: str
    node: Any
    arguments: tuple[Any, ...]
    distinct: bool
    filter: Any
    order: tuple[Any, ...]
    #: constants
    options: tuple[Any, ...]
    #: the arguments that nobody reads
    unread: tuple[Any, ...]
    #: whether it is written with `IGNORE NULLS`
    ignores: bool


def unwrapped(node: Any) -> tuple[Any, Any, tuple[Any, ...], bool]:
    """The call inside `FILTER`, `WITHIN GROUP` and `IGNORE NULLS`.

    Returns:
        The call, its filter, its order, and whether it ignores nulls.
    """
    condition, order, ignores = None, (), False
    while isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        if isinstance(node, exp.Filter):
            # of PIVOT there are two: that of the aggregate, and that of the value
            inner = node.expression.this
            condition = inner if condition is None else exp.and_(condition, inner)
        elif isinstance(node, exp.WithinGroup):
            order = tuple(node.expression.expressions)
        elif isinstance(node, exp.IgnoreNulls):
            ignores = True
        node = node.this
    return node, condition, order, ignores


def is_aggregate(node: Any) -> bool:
    """Whether a node is an aggregate, with what is around it."""
    return aggregate_of(unwrapped(node)[0]) is not None


def read_call(node: Any) -> AggregateCall:
    """An aggregate's parts."""
    call, condition, order, ignores = unwrapped(node)
    function = aggregate_of(call) or ""
    named = isinstance(call, exp.Anonymous | exp.AnonymousAggFunc)
    parts = [None if named else call.args.get(one) for one in _SLOTS]
    arguments = [one for one in (*parts, *call.expressions) if isinstance(one, exp.Expression)]
    distinct = False
    while arguments and isinstance(arguments[0], exp.IgnoreNulls | exp.Order | exp.Distinct | exp.Paren):
        first = arguments[0]
        if isinstance(first, exp.Distinct):
            distinct, arguments = True, [*first.expressions, *arguments[1:]]
            continue
        if isinstance(first, exp.IgnoreNulls):
            ignores = True
        elif isinstance(first, exp.Order):
            order = tuple(first.expressions)
        arguments[0] = first.this
    if function == "count" and arguments and isinstance(arguments[0], exp.Star):
        arguments = []
    others = [(name, one) for name, one in call.args.items() if isinstance(one, exp.Expression)]
    unread = [one for name, one in others if name not in _SLOTS and not _says_nothing(name, one)]
    constants, more = list[Any](), list[Any]()
    if type(call).__name__ in {"PercentileCont", "PercentileDisc"} or (function == "mode" and order):
        more = [*order[1:]]
        constants = [*arguments, bool(order and order[0].args.get("desc"))]
        arguments, order = [one.this for one in order[:1]], ()
    elif function in {*PERCENTILES, "string_agg"}:
        arguments, constants, more = arguments[:1], arguments[1:2], arguments[2:]
    elif function in BESTS:
        arguments, constants, more = arguments[:2], arguments[2:3], arguments[3:]
    elif function in {"first", "last"}:
        arguments, constants, more = arguments[:1], [ignores], arguments[1:]
    return AggregateCall(
        function,
        call,
        tuple(_of_pairs(call, arguments)),
        distinct,
        condition,
        order,
        tuple(constants),
        (*unread, *more),
        ignores,
    )


def _says_nothing(name: str, node: Any) -> bool:
    """Whether an argument is a constant that an exact answer, which is never one by chance, does not need."""
    number = isinstance(node, exp.Literal) and not node.is_string and float(node.name) > 0
    return (name == "accuracy" and number) or (name == "deterministic" and isinstance(node, exp.Boolean))


def _of_pairs(call: Any, arguments: list[Any]) -> list[Any]:
    """The arguments; of `regr_avgx` and `regr_avgy` one value of each pair, null if the other one is null."""
    if not isinstance(call, exp.RegrAvgx | exp.RegrAvgy):
        return arguments
    value, other = arguments[::-1] if isinstance(call, exp.RegrAvgx) else arguments
    return [tree_of("CASE WHEN y IS NULL THEN NULL ELSE x END", x=value, y=other)]


def aggregates_in(node: Any) -> Iterator[Any]:
    """The aggregates of a query block in an expression: not those of subqueries, nor those of windows."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        inner, condition, order, _ = unwrapped(node.this)
        parts = [
            *inner.iter_expressions(),
            condition,
            *order,
            *node.args.get("partition_by", []),
            node.args.get("order"),
        ]
        for one in parts:
            if one is not None:
                yield from aggregates_in(one)
        return
    if is_aggregate(node):
        yield node
        return
    for one in node.iter_expressions():
        yield from aggregates_in(one)


def place_of(node: Any) -> int | None:
    """The place of the selected column that a number in GROUP BY or ORDER BY means; None of other trees."""
    if isinstance(node, exp.Neg) and place_of(node.this) is not None:
        return -1
    digits = type(node).__name__ == "Literal" and not node.is_string and node.this.isdigit()
    return int(node.this) - 1 if digits else None


def windows_in(node: Any) -> Iterator[Any]:
    """The window functions of a query block in an expression."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        yield node
        return
    for one in node.iter_expressions():
        yield from windows_in(one)


def has_query(node: exp.Expression) -> bool:
    """Whether an expression has a subquery."""
    return any(isinstance(one, exp.Query | exp.Subquery) for one in node.walk())
