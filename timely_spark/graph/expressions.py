"""Expressions of columns, as in ``pyarrow.compute``: their values, and the columns that they read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Expression: TypeAlias = pc.Expression


def project(table: pa.Table, columns: Mapping[str, str | Expression]) -> pa.Table:
    """Compute named columns; the order of the rows stays."""
    if all(isinstance(column, str) for column in columns.values()):
        return table.select(list(columns.values())).rename_columns(list(columns))
    from pyarrow import acero  # loads pandas, as an import of the package must not

    expressions = [pc.field(column) if isinstance(column, str) else column for column in columns.values()]
    return _run(table, "project", acero.ProjectNodeOptions(expressions, list(columns)))


def columns_in(column: str | Expression, schema: pa.Schema) -> Collection[str]:
    """The columns that an expression refers to: those without which it has no value.

    >>> sorted(columns_in(pc.field("a") + pc.field("b"), pa.schema({"a": "int8", "b": "int8", "c": "int8"})))
    ['a', 'b']
    """
    if isinstance(column, str):
        return {column}
    if "FieldPath" in str(column):  # by position
        return {*schema.names}
    return {
        name for name in schema.names if not _has_value(column, schema.empty_table().drop_columns([name]))
    }


def _has_value(expression: Expression, table: pa.Table) -> bool:
    try:
        project(table, {"value": expression})
    except pa.ArrowException:
        return False
    return True


def _run(table: pa.Table, node: str, options: Any) -> pa.Table:
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    # several threads would reorder the rows
    return acero.Declaration.from_sequence([source, acero.Declaration(node, options)]).to_table(
        use_threads=False
    )
