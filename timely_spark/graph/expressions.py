"""Expressions of columns, as in ``pyarrow.compute``: their values, and the columns that they read."""

from __future__ import annotations

import re
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


#: functions that have a value for all arguments, as comparisons do
_TOTAL = {
    *("abs", "add", "and_kleene", "bit_wise_and", "bit_wise_or", "bit_wise_xor", "coalesce", "fill_null"),
    *("if_else", "invert", "is_in", "is_nan", "is_null", "is_valid", "max_element_wise", "min_element_wise"),
    *("multiply", "negate", "or_kleene", "subtract", "true_unless_null"),
}


def never_fails(value: Any) -> bool:
    """Whether a column or an expression is known to have a value for every record.

    >>> never_fails("n"), never_fails(pc.field("n") > 1), never_fails(1 / pc.field("n"))
    (True, True, False)
    """
    if isinstance(value, str):
        return True
    # also what a constant text has in it: then the answer is no, which is always right
    called = re.findall(r"(\w+)\(", str(value)) if isinstance(value, pc.Expression) else [""]
    return _TOTAL.issuperset(called)


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
