"""Expressions of columns, of ``pyarrow.compute`` and of SQL: their values, and the columns that they read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph.caller import caller
from timely_spark.graph.projection import ColumnProjection, SqlExpression, Subexpression
from timely_spark.graph.schema import columns_of

Expression: TypeAlias = pc.Expression | SqlExpression


def project(table: pa.Table, columns: Mapping[str, str | Expression]) -> pa.Table:
    """Compute named columns once; the order of the rows stays.

    >>> project(pa.table({"n": [1, 2]}), {"m": "n", "double": pc.field("n") * 2}).to_pydict()
    {'m': [1, 2], 'double': [2, 4]}

    Raises:
        pyarrow.ArrowException: an expression does not fit the table.
        KeyError: a column is missing.
    """
    return ColumnProjection(columns)(table)


def projected(step: str, columns: Mapping[str, str | Expression], schema: pa.Schema) -> pa.Schema:
    """The schema of columns computed from records of a schema.

    >>> projected("twice", {"m": pc.field("n") * 2}, pa.schema([("n", pa.int64())])).field("m").type
    DataType(int64)

    Raises:
        SchemaError: an expression does not fit, or divides integers by ``/``.
    """
    try:
        result = project(schema.empty_table(), columns).schema.remove_metadata()
    except (pa.ArrowException, KeyError) as error:
        msg = f"{step}: {error}; the input has {columns_of(schema)}"
        hint = "check the columns' names and types; pyarrow.compute lists the functions."
        raise SchemaError(msg, where=caller(), hint=hint) from error
    check_quotients(step, columns.values(), schema)
    return result


#: functions that have a value for all arguments, as comparisons do
_TOTAL = {
    *("abs", "add", "and_kleene", "bit_wise_and", "bit_wise_or", "bit_wise_xor", "coalesce", "fill_null"),
    *("if_else", "invert", "is_in", "is_nan", "is_null", "is_valid", "max_element_wise", "min_element_wise"),
    *("multiply", "negate", "or_kleene", "subtract", "true_unless_null"),
}


def never_fails(value: Any) -> bool:
    """Whether a column or an expression is known to have a value for every record.

    >>> never_fails("n"), never_fails(pc.field("n") > 1), never_fails(pc.scalar(1) / pc.field("n"))
    (True, True, False)
    """
    if isinstance(value, str):
        return True
    if isinstance(value, SqlExpression):
        return not value.fails
    # also what a constant text has in it: then the answer is no, which is always right
    called = re.findall(r"(\w+)\(", str(value)) if isinstance(value, pc.Expression) else [""]
    return _TOTAL.issuperset(called)


def check_quotients(operator: str, columns: Iterable[str | Expression], schema: pa.Schema) -> None:
    """Refuse ``/`` of two integers, which truncates in Arrow and does not in Spark or Python."""
    for column in columns:
        for quotient in _quotients(column) if isinstance(column, pc.Expression) else ():
            if pa.types.is_integer(project(schema.empty_table(), {"value": quotient}).schema.field(0).type):
                msg = f"{operator}: {quotient} of integers would be truncated, as Spark's / is not"
                hint = (
                    "cast one side, as in pc.field('n').cast('double') / 2, or write pc.divide(a, b) for the "
                    "integer quotient."
                )
                raise SchemaError(msg, where=caller(), hint=hint)


def _quotients(expression: pc.Expression) -> Iterator[pc.Expression]:
    """The parts of an expression that are made by ``/``."""
    if "divide_checked(" in str(expression):
        yield from (part.expression for part in Subexpression.of(expression).calls("divide_checked"))


def columns_in(column: str | Expression, schema: pa.Schema) -> Collection[str]:
    """The columns that an expression refers to: those without which it has no value.

    >>> sorted(columns_in(pc.field("a") + pc.field("b"), pa.schema({"a": "int8", "b": "int8", "c": "int8"})))
    ['a', 'b']
    """
    if isinstance(column, str):
        return {column}
    if isinstance(column, SqlExpression):
        return {*column.columns}
    if "FieldPath" in str(column):  # by position
        return {*schema.names}
    return {
        name for name in schema.names if not _has_value(column, schema.empty_table().drop_columns([name]))
    }


def _has_value(expression: pc.Expression, table: pa.Table) -> bool:
    try:
        project(table, {"value": expression})
    except pa.ArrowException:
        return False
    return True
