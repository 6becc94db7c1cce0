"""Queries in SQL as collections: parsed by `timely_spark.sql`, bound to relational plans, lowered.

- `relations`: the relational operators, each with how it is built from collections.
- `scopes`: which column a name means.
- `binder`, `query`: queries of any form; `names`, `subqueries`, `from_items`, `joins`, `aggregating`,
  `blocks`: a query block, each a part of the class that binds it.
- `calls`, `frames`, `recursion`, `generators`, `pivots`, `time_windows`: what trees have of aggregates,
  windows, loops, functions that make rows, PIVOT, and windows of time.
- `aggregates`, `windows`, `sorting`: reductions by aggregates, functions of windows, and orders.
- `narrowing`, `unique`: which columns each relation needs, and which tell its rows apart.
- `building`, `constant_rows`: from relations to collections.
- `sql`: what users call.
- `scripts`: several statements; `explained`: a plan as text.
"""

from __future__ import annotations
