"""The part of a condition that a reader of files can test, as an expression of pyarrow's."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.terms import ColumnValue, Constant, FunctionCall, Logical, Term
from timely_spark.sql.types import is_atomic, is_float

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_TURNED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def condition_of(term: Term) -> pc.Expression | None:
    """An expression that is true wherever a condition is; None if only `true` is.

    Of the parts of an AND those that cannot be tested are left out.
    """
    if isinstance(term, Logical) and not term.decides:
        sides = [side for one in (term.left, term.right) if (side := condition_of(one)) is not None]
        return reduce(and_, sides) if sides else None
    return _exact(term)


def _exact(term: Term) -> pc.Expression | None:
    """An expression with the values of a condition."""
    if isinstance(term, Logical):
        left, right = _exact(term.left), _exact(term.right)
        return None if left is None or right is None else (or_ if term.decides else and_)(left, right)
    if isinstance(term, ColumnValue):
        return _column(term)
    if not isinstance(term, FunctionCall):
        return None
    if term.name == "not":
        exact = _exact(term.arguments[0])
        return None if exact is None else ~exact
    if term.name in {"isnull", "isnotnull"}:
        exact = _column(term.arguments[0])
        return None if exact is None else exact.is_null() if term.name == "isnull" else exact.is_valid()
    if term.name == "in":
        return _in(*term.arguments)
    return _comparison(term.name, *term.arguments) if term.name in _COMPARE else None


def _column(term: Term) -> pc.Expression | None:
    """A column that statistics tell of; not one of floats, as they leave NaN out."""
    plain = isinstance(term, ColumnValue) and term.type == term.stored and is_atomic(term.type)
    return pc.field(term.name) if plain and not is_float(term.type) else None  # type: ignore[attr-defined]


def _in(subject: Term, *values: Term) -> pc.Expression | None:
    column = _column(subject)
    constants = [one.value for one in values if isinstance(one, Constant) and one.value.is_valid]
    if column is None or len(constants) < len(values):
        return None
    return pc.if_else(column.is_valid(), column.isin(pa.array(constants, subject.type)), None)


def _comparison(name: str, left: Term, right: Term) -> pc.Expression | None:
    if isinstance(left, Constant):
        name, left, right = _TURNED[name], right, left
    column = _column(left)
    if column is None or not isinstance(right, Constant) or not right.value.is_valid:
        return None
    return _COMPARE[name](column, right.value)
