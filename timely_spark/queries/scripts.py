"""Queries over collections: one query, or a script of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timely_spark.differential.collections import Collection
from timely_spark.graph import composed, placed, refuse, start_of_text
from timely_spark.operators.sql import session_zone
from timely_spark.queries.binder import Binder, BoundQuery, View, column_node, written_name
from timely_spark.queries.building import Builder
from timely_spark.queries.first_rows import with_first_rows
from timely_spark.queries.narrowing import narrowed
from timely_spark.queries.query import QueryBinder
from timely_spark.queries.recursion import MEANT, take_clauses
from timely_spark.queries.relations import Projection, Relation, SparkColumns, TableScan
from timely_spark.queries.scopes import Fresh
from timely_spark.queries.shared_filters import with_shared_filters
from timely_spark.sql import bind, parse
from timely_spark.sql.parse import exp
from timely_spark.sql.types import spark_type


def table_view(name: str, table: Collection) -> View:
    """A collection by its name in a query, with Spark's types; of others a query keeps the values only."""
    schema, columns = table.schema, tuple(table.schema.names)
    scan, kinds = TableScan(schema, name), [spark_type(one, "UTC") for one in schema.types]
    read = [
        one if kind in {None, schema.field(one).type} else bind(column_node(one), schema)
        for one, kind in zip(columns, kinds, strict=True)
    ]
    plain = all(isinstance(one, str) for one in read)
    return View(
        scan if plain else SparkColumns(scan, tuple(zip(columns, read, strict=True))), columns, columns
    )


def statements(text: str) -> tuple[Binder, list[Any]]:
    """The syntax trees of a text's statements, and what binds them."""
    if not isinstance(text, str):
        refuse(text, what="sql", expected="a text", hint='write the statements in a text: "SELECT ...".')
    cleared, clauses = take_clauses(text)
    sqlglot = parse.needs_sqlglot()
    try:
        with parse.stack_checked(text):
            parsed = sqlglot.parse(cleared, dialect=parse.dialect())
        # a comment behind a semicolon is a tree, too
        trees = [one for one in parsed if not isinstance(one, sqlglot.exp.Semicolon | None)]
    except (sqlglot.errors.ParseError, sqlglot.errors.TokenError):
        trees = [parse.parse_query(cleared)]  # tells the mistake, and where it is
    trees = [parse.checked(text, tree) for tree in trees]
    binder = QueryBinder(text, clauses=clauses, zone=session_zone())
    binder.later = {written_name(one.this).lower() for one in trees if isinstance(one, exp.Create)}
    for tree in trees:
        for one in tree.find_all(sqlglot.exp.Identifier):
            if one.name in MEANT:
                one.set("this", MEANT[one.name])
        for one in tree.find_all(sqlglot.exp.CTE):
            if (start := parse.start_of(one.args["alias"].this)) is not None:
                binder.starts.append(start)
    return binder, trees


def bound(text: str, views: Mapping[str, View]) -> BoundQuery:
    """A query bound to tables."""
    binder, trees = statements(text)
    if len(trees) != 1:
        hint = "give one query; flow.sql(script) reads several CREATE VIEW."
        raise binder.refuse(trees[1] if trees else None, f"{len(trees)} statements", hint)
    return binder.query(trees[0], views)


def create_view(binder: Binder, tree: Any, views: dict[str, View]) -> str:
    """Add the view of a `CREATE VIEW` to those before it; its name."""
    target, name = tree.this, written_name(tree.this)
    named = type(target).__name__ == "Schema"
    binder.later.discard(name.lower())
    with parse.stack_checked(binder.text):
        answer = binder.query(tree.expression, views)
    columns = tuple(one.name for one in target.expressions) if named else answer.names
    if len(columns) != len(answer.columns):
        problem = f"{name} has {len(answer.columns)} columns, and {len(columns)} names"
        raise binder.refuse(target, problem, "name each column.")
    if name.lower() in {one.lower() for one in views}:
        raise binder.refuse(target, f"there is a table or view {name} already", "give the view another name.")
    views[name] = View(answer.relation, columns, answer.columns)
    return name


def views_of(text: str, tables: Mapping[str, Collection]) -> dict[str, Collection]:
    """The views of a script as collections; what several of them read is built once."""
    with parse.stack_checked(text):
        with placed(start_of_text(text)):
            views, names = _created(text, tables)
        collections = build_all([views[name].query for name in names], tables, names)
    return dict(zip(names, collections, strict=True))


def _created(text: str, tables: Mapping[str, Collection]) -> tuple[dict[str, View], list[str]]:
    """The tables and views of a script, and the names of its views."""
    binder, trees = statements(text)
    views = {name: table_view(name, one) for name, one in tables.items()}
    names = []
    for tree in trees:
        if type(tree).__name__ != "Create" or str(tree.args.get("kind")).upper() != "VIEW":
            hint = "write CREATE VIEW name AS SELECT ...; ts.sql(query, ...) takes one query."
            raise binder.refuse(tree, f"{tree.sql(dialect=parse.dialect()).split()[0]} in a script", hint)
        if tree.find(exp.MaterializedProperty) is not None:
            hint = (
                "keep it by python -m timely_spark run FILE; or write CREATE VIEW, and changes().to_delta()."
            )
            raise binder.refuse(tree, "CREATE MATERIALIZED VIEW in a script", hint)
        names.append(create_view(binder, tree, views))
    return views, names


def build_all(
    answers: Sequence[BoundQuery],
    tables: Mapping[str, Collection | Callable[[], Collection]],
    names: Sequence[str | None],
) -> list[Collection]:
    """Bound queries as collections: equal parts are built once, with the columns that any reader needs."""
    relations = relations_of(answers)
    builder = Builder(tables)
    builder.expect(*relations)
    table = next(iter(tables.values()), None)
    steps = [None if name is None else as_step(name) for name in names]
    return [_named(table, builder, one, name=step) for one, step in zip(relations, steps, strict=True)]


def as_step(name: str) -> str:
    """The name of a table or view, such as `schema.name`, as one of a step, which has no points."""
    return name.replace(".", "_")


def relations_of(answers: Sequence[BoundQuery]) -> list[Relation]:
    """The relations of queries, with the names of their columns; the second of a name gets a number."""
    projections = []
    for answer in answers:
        names = map(Fresh().name, answer.names)
        columns = tuple(zip(names, answer.columns, strict=True))
        projections.append(Projection(answer.relation, columns, where=answer.relation.where))
    return narrowed(with_first_rows(with_shared_filters(projections)))


def planned(text: str, tables: Mapping[str, Collection]) -> tuple[Relation, list[str]]:
    """The relation of a query, and what is worth knowing of it."""
    binder, trees = statements(text)
    views = {name: table_view(name, one) for name, one in tables.items()}
    answer = None
    for tree in trees:
        if type(tree).__name__ == "Create":
            answer = views[create_view(binder, tree, views)].query
        elif tree is not trees[-1]:
            raise binder.refuse(tree, "a query before other statements", "give one query, behind its views.")
        else:
            answer = binder.query(tree, views)
    if answer is None:
        raise binder.refuse(None, "0 statements", "give one query.")
    return relations_of([answer])[0], binder.notes


@composed  # which names the steps, in the flow of the first argument
def _named(table: Any, builder: Builder, relation: Relation, *, name: str | None) -> Collection:  # noqa: ARG001
    return builder.collection(relation)
