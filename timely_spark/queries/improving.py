"""Whether a recursion that keeps a minimum or maximum for each key drops rows whose value improves.

A row that is dropped because its value improved takes the better value back: the loop may not end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from timely_spark.queries.relations import Aggregation, Named, Projection, Relation, RelationJoin, Selection
from timely_spark.sql.terms import ColumnValue, FunctionCall, Logical, Term

#: as the kept values improve it falls (-1), stays (0), or rises (1); None if it may do either
Trend: TypeAlias = int | None


def warn_of_dropped(loop: str, names: Sequence[str], bodies: Sequence[Relation]) -> None:
    """Warn of a condition by which a loop may lose a row as its minimum or maximum improves."""
    improved = {name: _improved(body) for name, body in zip(names, bodies, strict=True)}
    conditions = [one for body in bodies for one in _dropping(body, loop, improved)]
    if conditions:
        warnings.warn(
            f"the recursion {loop.rpartition(' ')[0]} may not end: {conditions[0]} can drop a row whose "
            "value improved, and the better value with it. Write it outside of the recursion, bound a "
            "minimum from above only (v < 9), or write RETURN AT RECURSION LIMIT n before AS",
            stacklevel=2,
        )


def _improved(body: Relation) -> dict[str, Trend]:
    """The columns of a body that are kept minima, which fall, or maxima, which rise."""
    columns = {name: name for name in body.schema.names}
    while isinstance(body, Projection) and all(isinstance(value, str) for _, value in body.columns):
        inner = dict(body.columns)
        columns, body = {name: str(inner[column]) for name, column in columns.items()}, body.input
    calls = dict(body.calls) if isinstance(body, Aggregation) else {}
    functions = {name: calls[column].function for name, column in columns.items() if column in calls}
    return {name: {"min": -1, "max": 1}.get(function) for name, function in functions.items()}


def _dropping(body: Relation, loop: str, improved: Mapping[str, Mapping[str, Trend]]) -> Iterator[str]:
    """The conditions of a body that may drop a row as kept values improve.

    Args:
        improved: by name of the loop its columns that improve.
    """
    trends: dict[Relation, dict[str, Trend]] = {}
    for one in body.walk():
        below: dict[str, Trend] = {}
        for each in one.inputs:
            for name, trend in trends[each].items():
                below[name] = _both([below.get(name, 0), trend])
        match one:
            case Named() if one.loop == loop:
                below = dict(improved[one.name])
            case Projection(columns=columns):
                below = {
                    name: below.get(value, 0) if isinstance(value, str) else _trend(value.term, below)
                    for name, value in columns
                }
            case Selection(conditions=conditions):
                yield from (str(one) for one in conditions if not _stays(one.term, below))
            case RelationJoin(left_keys=left, right_keys=right):
                pairs = zip(left, right, strict=True)
                yield from (f"{a} = {b}" for a, b in pairs if below.get(a, 0) != 0 or below.get(b, 0) != 0)
        trends[one] = below


def _both(trends: Iterable[Trend]) -> Trend:
    """The trend of a value that rises with each of others."""
    changing = {one for one in trends if one != 0}
    return next(iter(changing), 0) if len(changing) < 2 else None


def _against(trend: Trend) -> Trend:
    return None if trend is None else -trend


def _trend(term: Term, below: Mapping[str, Trend]) -> Trend:
    if isinstance(term, ColumnValue):
        return below.get(term.name, 0)
    parts: Sequence[Trend] = [_trend(one, below) for one in term.parts()]
    if isinstance(term, FunctionCall):
        match term.name:
            case "+" | "cast" | "greatest" | "least":
                return _both(parts)
            case "-":
                return _both([parts[0], _against(parts[1])])
            case "isnull" | "isnotnull":
                return 0
    return 0 if all(one == 0 for one in parts) else None


def _stays(condition: Term, below: Mapping[str, Trend]) -> bool:
    """Whether a condition that is true stays so."""
    if isinstance(condition, Logical):
        return _stays(condition.left, below) and _stays(condition.right, below)
    if isinstance(condition, FunctionCall) and condition.name in {"<", "<=", ">", ">="}:
        left, right = (_trend(one, below) for one in condition.arguments)
        rises = _both([left, _against(right)])
        return rises in ({0, -1} if condition.name.startswith("<") else {0, 1})
    return _trend(condition, below) == 0
