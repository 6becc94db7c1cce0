"""Queries in SQL as collections: parsed by `timely_spark.sql`, bound to relational plans, lowered.

- `relations`: the relational operators, each with how it is built from collections.
- `scopes`: which column a name means.
- `names`, `subqueries`, `from_items`, `joins`, `aggregating`, `blocks`: a query block, step by step.
- `calls`, `recursion`, `generators`: aggregates in a tree, loops, functions that make rows.
- `aggregates`, `windows`: reductions by aggregates and by functions of windows.
- `narrowing`: which columns each relation needs.
- `sql`: what users call.
- `scripts`: several statements; `explained`: a plan as text.
"""

from __future__ import annotations
