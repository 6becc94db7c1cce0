"""Windows that number rows, of which a condition lets the first pass: others are dropped before them.

So `row_number() OVER (PARTITION BY k ORDER BY v) <= 3` keeps and sends three rows of each key, and a change
behind them costs no look at the key's rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from timely_spark.queries.relations import Limit, Projection, Relation, Selection, Window
from timely_spark.sql.terms import ColumnValue, Constant, FunctionCall, Logical, Term

_TURNED = {"=": "=", ">=": "<=", ">": "<"}


def with_first_rows(roots: Sequence[Relation]) -> list[Relation]:
    """The relations, whose windows number no more rows than the conditions on them let pass."""
    order = list(dict.fromkeys(one for root in roots for one in root.walk()))
    if not any(isinstance(one, Window) for one in order):
        return list(roots)
    readers = Counter([*roots, *(input_ for one in order for input_ in one.inputs)])
    new: dict[Relation, Relation] = {}
    for one in order:
        over = one.over([new[input_] for input_ in one.inputs]) if one.inputs else one
        if isinstance(over, Selection):
            over = replace(over, input=_numbering(over.input, _bounds(over.condition.term), readers))
        new[one] = over
        readers[over] = readers[one]
    return [new[root] for root in roots]


def _numbering(relation: Relation, most: Mapping[str, int], readers: Mapping[Relation, int]) -> Relation:
    """A relation of which only rows are read whose columns have at most these values."""
    if readers[relation] > 1:
        return relation
    match relation:
        case Projection(columns=columns):
            below = {value: most[name] for name, value in columns if isinstance(value, str) and name in most}
            return replace(relation, input=_numbering(relation.input, below, readers))
        case Selection():
            return replace(relation, input=_numbering(relation.input, most, readers))
        case Window(input=rows, partition=keys, order=order, calls=calls):
            bounds = [most[name] for name, _ in calls if name in most]
            if bounds and all(call.function == "row_number" for _, call in calls):
                first = Limit(rows, keys, order, max(min(bounds), 0), where=relation.where)
                return replace(relation, input=first)
    return relation


def _bounds(condition: Term) -> dict[str, int]:
    """The columns of a condition that are at most a whole number where it is true."""
    match condition:
        case Logical(decides=False):  # AND
            left, right = _bounds(condition.left), _bounds(condition.right)
            return {name: min(one[name] for one in (left, right) if name in one) for name in left | right}
        case FunctionCall(name="<=" | "<" | "=" as sign, arguments=(column, Constant(value=value))):
            return _bound(column, sign, value)
        case FunctionCall(name=">=" | ">" | "=" as sign, arguments=(Constant(value=value), column)):
            return _bound(column, _TURNED[sign], value)
    return {}


def _bound(column: Term, sign: str, value: pa.Scalar) -> dict[str, int]:
    match column:
        case FunctionCall(name="cast", arguments=(ColumnValue() as one,)) | (ColumnValue() as one):
            if pa.types.is_integer(one.stored) and pa.types.is_integer(value.type) and value.is_valid:
                return {one.name: value.as_py() - (sign == "<")}
    return {}
