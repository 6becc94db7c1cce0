"""Bind an expression to the columns of a schema: names, types, and the casts that Spark adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import SqlExpression
from timely_spark.sql import forms, nested, parse, printing, times, types
from timely_spark.sql.binder import ExpressionBinder, Resolve, unaliased
from timely_spark.sql.conditions import condition_of
from timely_spark.sql.parse import exp
from timely_spark.sql.terms import Logical, Rows, Term, logical
from timely_spark.sql.users import USER_FUNCTIONS

#: the modules that say how a syntax is bound
FORMS = (forms, nested, printing, times)


@dataclass(frozen=True)
class BoundExpression(SqlExpression):
    """An expression of a schema's columns, which needs neither its text nor sqlglot any more.

    Attributes:
        sql: the expression in Spark's SQL: the same for the same expression.
        type: the type of its values, Spark's.
        columns: the schema's columns that it reads.
        name: the name after `AS`; None without one.
    """

    sql: str
    type: pa.DataType
    columns: tuple[str, ...]
    name: str | None
    term: Term = field(repr=False)

    def __str__(self) -> str:
        return self.sql

    @property
    def fails(self) -> bool:
        return self.term.fails

    @property
    def condition(self) -> pc.Expression | None:
        """For a condition what a file's reader can test of it: true wherever the condition is."""
        return condition_of(self.term)

    def evaluate(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The values of a table's records.

        Raises:
            ExpressionError: a record has no value.
        """
        values = self.term.array(Rows.all(table))
        return values if values.type == self.type else values.cast(self.type)


def conjunction(conditions: Sequence[BoundExpression]) -> BoundExpression:
    """The condition that all conditions are true."""
    if len(conditions) == 1:
        return conditions[0]
    terms = [one.term for one in conditions]
    texts = [f"({one})" if isinstance(one.term, Logical) else str(one) for one in conditions]
    columns = dict.fromkeys(column for one in conditions for column in one.columns)
    term = logical(terms, decides=False)
    return BoundExpression(" AND ".join(texts), term.type, tuple(columns), None, term)


def bind(
    expression: str | exp.Expression,
    schema: pa.Schema,
    *,
    resolve: Resolve | None = None,
    functions: Mapping[str, Any] = USER_FUNCTIONS,
    zone: str = "UTC",
    text: str | None = None,
    step: str = "",
) -> BoundExpression:
    """Bind an expression, as a text or as sqlglot's tree, to the columns of a schema.

    Args:
        resolve: finds the column of a name; by default the name is a column's, in any case.
        functions: functions of the user by their names, in small letters.
        zone: the session's time zone.
        text: the text that a tree is a part of, for errors.
        step: what the expression is for, for errors.

    Example:
        >>> rows = pa.table({"a": [1, 2], "s": ["x", None]})
        >>> expression = bind("upper(s) || a AS key", rows.schema)
        >>> expression.name, str(expression.type), expression.columns, expression.evaluate(rows).to_pylist()
        ('key', 'string', ('s', 'a'), ['X1', None])

    Raises:
        SqlError: the expression does not fit; the message shows the place.
    """
    if isinstance(expression, str):
        text, expression = expression, parse.parse_expression(expression, step=step)
    binder = ExpressionBinder(schema, resolve or by_name(schema), functions, zone, text, step)
    node = unaliased(expression)
    term = binder.bind(node)
    name = None if node is expression else expression.alias
    sql = parse.sql_of(node)
    if zone != "UTC" and term.reads_zone:
        sql = f"{sql} /* in {zone} */"
    # flows store times in UTC, whatever the session's zone
    kind = term.type if zone == "UTC" else types.spark_type(term.type, "UTC") or term.type
    return BoundExpression(sql, kind, tuple(dict.fromkeys(binder.columns)), name, term)


def by_name(schema: pa.Schema) -> Resolve:
    """Find columns by their names: as they are written, or else in any case, if one alone is called so."""
    names: dict[str, list[str]] = {}
    for name in schema.names:
        names.setdefault(name.lower(), []).append(name)

    def find(parts: Sequence[str]) -> tuple[str, int] | None:
        matches = names.get(parts[0].lower(), [])
        exact = [one for one in matches if one == parts[0]] or matches
        return (exact[0], 1) if len(exact) == 1 else None

    return find
