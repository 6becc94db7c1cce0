"""SQL as users call it. What plans a query is imported by the first one, and sqlglot with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import timely_spark.sql  # noqa: F401 - if it came later, it would hide the function `timely_spark.sql`
from timely_spark.authors import check_collection
from timely_spark.differential.collections import Collection
from timely_spark.errors import GraphError
from timely_spark.graph import caller, locate_errors, placed, start_of_text
from timely_spark.sql.parse import stack_checked
from timely_spark.streams import Stream


@locate_errors
def sql(query: str, *, name: str | None = None, **tables: Collection | Stream) -> Collection:
    """A query in Spark's SQL as a collection, which follows its tables.

    The law: at every epoch the collection is what the query gives on the tables of that epoch.

    Args:
        query: one query, `WITH RECURSIVE` included.
        name: the name by which its steps are called; no other step has it.
        tables: by their names in the query, collections; or streams, whose rows count by a column ``diff``,
            or else are insertions.

    **Columns:** out: the selected columns, in their order.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("near")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> near = ts.sql(
        ...     '''
        ...     WITH RECURSIVE near(node) AS (
        ...       VALUES (1L) UNION SELECT dst FROM near JOIN edges ON node = src)
        ...     SELECT * FROM near''',
        ...     edges=edges,
        ... )
        >>> _ = near.changes().capture("near")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 1, 1), (2, 3, 1)], [(1, 2, -1)]]})["near"].rows()
        {0: [(1, 1), (2, 1), (3, 1)], 1: [(2, -1), (3, -1)]}

    Raises:
        SqlError: the text is not a query, does not fit the tables, or cannot be kept up to date; the message
            shows the place.
        GraphError: a table is not a collection, or of another flow, or there is none; or a step has the name.
    """
    from timely_spark.queries.scripts import bound, build_all, table_view

    collections = as_collections(tables)
    with stack_checked(query):
        with placed(start_of_text(query)):
            answer = bound(query, {each: table_view(each, one) for each, one in collections.items()})
        if name is not None:  # its steps are called after it, and none may be called so itself
            first = next(iter(collections.values())).stream
            graph = first.flow.graph
            graph.names.add(graph.title(first.stage.scope), "sql", name, caller())
        return build_all([answer], collections, [name])[0]


@locate_errors
def explain_sql(query: str, **tables: Collection | Stream) -> str:
    """The plan of a query as text: operators, what each stores, by what rows are exchanged, what files skip.

    Nothing is added to the flow. A part that several operators read is built once, and shown once: later it
    is "as #n". An exchange is "elided" where an operator before it has partitioned its rows so already; what
    the program did to its tables before is not seen.

    Args:
        query: as for `sql`, as are `tables`.

    Example:
        >>> import timely_spark as ts
        >>> edges = ts.Dataflow("plan").input("edges", "src long, dst long").collection()
        >>> print(
        ...     ts.explain_sql("SELECT src, count(*) AS n FROM edges WHERE dst > 1 GROUP BY src", edges=edges)
        ... )
        Projection src, count AS n
          Aggregation count(*) by src: stores sums by src; exchanged by src
            Projection src
              Selection `dst` > 1
                TableScan edges: reads rows where (dst > 1)

    Raises:
        SqlError: as `sql`, as is GraphError.
    """
    from timely_spark.queries.explained import plan_text
    from timely_spark.queries.scripts import planned

    collections = as_collections(tables)
    with stack_checked(query):
        with placed(start_of_text(query)):
            relation, notes = planned(query, collections)
        like = type(next(iter(collections.values())).index.flow)
        return plan_text([relation], notes, like("plan"))


def as_collections(tables: Mapping[str, Any]) -> dict[str, Collection]:
    """A program's tables, at least one, as collections."""
    if not tables:
        msg = "sql: there are no tables"
        raise GraphError(msg, where=caller(), hint="give each by its name: ts.sql(query, edges=edges).")
    return {name: as_collection(table) for name, table in tables.items()}


def as_collection(table: Any) -> Collection:
    """A program's table: a collection, or a stream; its rows count by a column `diff` if it has one."""
    if isinstance(table, Stream):
        counted = "diff" in table.schema.names and pa.types.is_integer(table.schema.field("diff").type)
        return table.collection(diff="diff" if counted else None)
    check_collection("sql", table)
    collection: Collection = table
    return collection
