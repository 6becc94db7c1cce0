"""Expressions in Spark's SQL: parsed by sqlglot, bound to a schema, computed on whole Arrow columns.

`parse` makes syntax trees, `forms` give them columns and Spark's types, and `terms` evaluate them
with the kernels of `functions`, which `registry` lists. Workers need no sqlglot. Nothing here knows of flows:
queries are lowered to collections above.
"""

from __future__ import annotations

from timely_spark.sql import functions
from timely_spark.sql.expressions import BoundExpression, bind

__all__ = ["BoundExpression", "bind", "functions"]
