"""Texts in SQL as arguments of operators: bound to the columns of the operator's input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph import Expression, caller


def expression(operator: str, text: Any, schema: pa.Schema) -> Any:
    """A text as an expression of a schema's columns; anything else as it is.

    Raises:
        SqlError: the text does not fit; the message shows the place.
    """
    if not isinstance(text, str):
        return text
    from timely_spark.sql import bind

    return bind(text, schema, zone=session_zone(), step=operator)


def named_expressions(operator: str, schema: pa.Schema, *columns: str | Mapping[str, Any]) -> dict[str, Any]:
    """Each column to compute, by its name: a column's name, or an expression.

    A text that is the name of a column, or could be one, is a name; "*" is all columns; any other is an
    expression in Spark's SQL. What is not a text stays as it is.

    Example:
        >>> orders = pa.schema({"price": pa.int64(), "amount": pa.int64()})
        >>> columns = named_expressions("totals", orders, "price", {"total": "price * amount"})
        >>> columns["price"], columns["total"].type
        ('price', DataType(int64))

    Raises:
        SqlError: a text does not fit; the message shows the place.
        SchemaError: an expression has no name.
    """
    chosen: dict[str, Any] = {}
    for column in columns:
        if isinstance(column, str):
            chosen |= _positional(operator, column, schema)
        else:
            chosen |= {new: _of_text(operator, old, schema) for new, old in column.items()}
    return chosen


def _of_text(operator: str, text: Any, schema: pa.Schema) -> Any:
    if isinstance(text, str):
        could_be_a_name = text.isidentifier() and text.lower() not in ("true", "false", "null")
        if could_be_a_name or text in schema.names:
            return text
    return expression(operator, text, schema)


def _positional(operator: str, text: str, schema: pa.Schema) -> dict[str, str | Expression]:
    if text == "*" and "*" not in schema.names:
        return {name: name for name in schema.names}
    column = _of_text(operator, text, schema)
    if isinstance(column, str):
        return {text: column}
    if column.name is None:
        msg = f"{operator}: {text!r} has no name"
        hint = f"write '{text} AS name', or {operator}(name={text!r})."
        raise SchemaError(msg, where=caller(), hint=hint)
    return {column.name: column}


def session_zone() -> str:
    """The time zone of this process' Spark session; UTC without one."""
    if "pyspark" not in sys.modules:
        return "UTC"
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return "UTC" if session is None else str(session.conf.get("spark.sql.session.timeZone"))
