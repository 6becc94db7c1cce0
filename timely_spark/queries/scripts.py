"""Queries over collections: one query, or a script of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timely_spark.authors import check_collection
from timely_spark.differential.collections import Collection
from timely_spark.errors import GraphError
from timely_spark.graph import caller, composed, locate_errors
from timely_spark.queries.binder import Binder, BoundQuery, View
from timely_spark.queries.building import Builder
from timely_spark.queries.narrowing import narrowed
from timely_spark.queries.query import QueryBinder
from timely_spark.queries.recursion import take_clauses
from timely_spark.queries.relations import Projection, Relation, TableScan
from timely_spark.queries.scopes import Fresh
from timely_spark.sql import parse
from timely_spark.streams import Stream


@locate_errors
def sql(query: str, *, name: str | None = None, **tables: Collection | Stream) -> Collection:
    """A query in Spark's SQL as a collection, which follows its tables.

    The law: at every epoch the collection is what the query gives on the tables of that epoch.

    Args:
        query: one query, `WITH RECURSIVE` included.
        name: the name of its steps.
        tables: by their names in the query, collections; of a stream each record is inserted.

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
        SqlError: the text is no query, does not fit the tables, or cannot be kept up to date; the message
            shows the place.
        GraphError: a table is no collection, or of another flow, or there is none.
    """
    if not tables:
        msg = "sql: the query has no tables"
        raise GraphError(msg, where=caller(), hint="give each by its name: ts.sql(query, edges=edges).")
    given = {of: as_collection(table) for of, table in tables.items()}
    answer = bound(query, {of: table_view(of, one) for of, one in given.items()})
    return built(answer, given, name=name)


def as_collection(table: Any) -> Collection:
    """A table that a program gives: a collection, or a stream of insertions."""
    if isinstance(table, Stream):
        return table.collection()
    check_collection("sql", table)
    made: Collection = table
    return made


def table_view(name: str, table: Collection) -> View:
    """A collection by its name in a query."""
    columns = tuple(table.schema.names)
    return View(TableScan(name, table.schema), columns, columns)


def bound(text: str, views: Mapping[str, View], binder: Binder | None = None) -> BoundQuery:
    """A query bound to tables."""
    from sqlglot import exp

    cleared, clauses = take_clauses(text)
    tree = parse.parse_query(cleared)
    binder = binder or QueryBinder(text)
    binder.clauses = clauses
    binder.starts = [
        start
        for one in tree.find_all(exp.CTE)
        if (start := parse.start_of(one.args["alias"].this)) is not None
    ]
    return binder.query(tree, views)


def result(answer: BoundQuery) -> Relation:
    """A query's relation with the names of its columns; the second one of a name gets a number."""
    fresh = Fresh()
    columns = tuple(
        (fresh.name(name), column) for name, column in zip(answer.names, answer.columns, strict=True)
    )
    return narrowed([Projection(answer.relation, columns)])[0]


def built(
    answer: BoundQuery, tables: Mapping[str, Collection | Callable[[], Collection]], *, name: str | None
) -> Collection:
    """A bound query as a collection."""
    building = Builder(tables)
    relation = result(answer)
    building.expect(relation)
    return _named(building, relation, name=name)


@composed  # which names the steps
def _named(building: Builder, relation: Relation, *, name: str | None) -> Collection:  # noqa: ARG001
    return building.collection(relation)
