"""Expressions in Spark's SQL: parsed by sqlglot, bound to a schema, computed on whole Arrow columns.

`parse` makes syntax trees, `forms` give them columns and Spark's types, and `terms` evaluate them
with the kernels of `functions`, which `registry` lists. Workers need no sqlglot. Nothing here knows of flows:
queries are lowered to collections above.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timely_spark.sql import functions
    from timely_spark.sql.expressions import BoundExpression, bind

__all__ = ["BoundExpression", "bind", "functions"]


def __getattr__(name: str) -> Any:
    """Import what computes expressions with the first of them."""
    if name in {"BoundExpression", "bind"}:
        import_module("timely_spark.sql.functions")  # which registers them
        return getattr(import_module("timely_spark.sql.expressions"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
