"""A file of SQL as a flow: tables that are read, views, and views that are kept in Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.dataflow import Dataflow
from timely_spark.differential import Collection
from timely_spark.graph import as_schema, locate_errors
from timely_spark.queries.binder import Binder, BoundQuery, View
from timely_spark.queries.explained import plan_text
from timely_spark.queries.relations import Projection
from timely_spark.queries.scripts import (
    build_all,
    create_view,
    relations_of,
    statements,
    table_view,
)
from timely_spark.queries.sql import as_collection
from timely_spark.queries.unique import unique_columns
from timely_spark.sql import parse
from timely_spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES: Any = ("parquet", "csv", "json", "arrow")
#: options of tables, by format
_OPTIONS = {
    **dict.fromkeys(_FILES, ("files_per_epoch", "on_bad_file", "path")),
    "delta": ("from_time", "from_version", "path", "versions_per_epoch"),
}


@dataclass(frozen=True)
class TableSource:
    """A `CREATE TABLE ... USING format`: where its rows are."""

    name: str
    format: str
    schema: pa.Schema | None
    options: Mapping[str, str]
    node: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class SqlFile:
    """The contents of a file of SQL; made by `read_sql`."""

    text: str
    tables: tuple[TableSource, ...]
    #: by name the table of each materialized view, and its keys
    outputs: Mapping[str, tuple[str, tuple[str, ...]]]
    _binder: Binder = field(repr=False)
    _views: tuple[Any, ...] = field(repr=False)

    def flow(
        self, name: str = "sql", *, spark: SparkSession | None = None, overwrite: bool = False
    ) -> tuple[Dataflow, dict[str, Collection]]:
        """The flow that keeps the materialized views, and these as collections.

        Args:
            name: the flow's name.
            spark: the session, for tables that only Spark reads.
            overwrite: whether Delta tables that something else wrote may be overwritten.
        """
        made = Dataflow(name)
        tables = {one.name: as_collection(self._read(made, one, spark)) for one in self.tables}
        views: dict[str, View] = {of: table_view(of, one) for of, one in tables.items()}
        for tree in self._views:
            create_view(self._binder, tree, views)
        answers = [views[of].query for of in self.outputs]
        collections = dict(zip(self.outputs, build_all(answers, tables, list(self.outputs)), strict=True))
        for (of, (table, keys)), answer in zip(self.outputs.items(), answers, strict=True):
            found = list(keys) or self._keys(of, answer, collections[of])
            changes = collections[of].changes()
            changes.to_delta(table, keys=found, diff="diff", name=f"table {of}", overwrite=overwrite)
        return made, collections

    def explain(self) -> str:
        """The plans of the materialized views: see `explain_sql`."""
        tables = {}
        for one in self.tables:
            if one.schema is None:
                tables[one.name] = as_collection(self._read(Dataflow("plan"), one, None))
            else:
                tables[one.name] = as_collection(Dataflow("plan").source(one.name, one.schema))
        views: dict[str, View] = {of: table_view(of, one) for of, one in tables.items()}
        for tree in self._views:
            create_view(self._binder, tree, views)
        return plan_text(relations_of([views[of].query for of in self.outputs]), self._binder.notes)

    def _keys(self, name: str, answer: BoundQuery, collection: Collection) -> list[str]:
        """The columns that tell the rows of a view apart."""
        new = tuple(zip(collection.schema.names, answer.columns, strict=True))
        unique = unique_columns(Projection(answer.relation, new))
        if unique is None:
            node = next(one for one in self._views if _name(one) == name)
            hint = "write SELECT DISTINCT; or TBLPROPERTIES ('keys' = 'a, b'), if these are unique."
            raise self._binder.refuse(
                node.this, f"{name} may have equal rows, which a table with keys cannot", hint
            )
        return [one for one in collection.schema.names if one in unique] or collection.schema.names

    def _read(self, flow: Dataflow, table: TableSource, spark: SparkSession | None) -> Stream:
        options: dict[str, Any] = {
            name: int(value) if value.isdecimal() else value for name, value in table.options.items()
        }
        if table.format in _FILES:
            schema = table.schema
            if schema is not None and "diff" in schema.names:
                options["defaults"] = {"diff": 1}
            path: Any = options.pop("path")
            kind: Any = table.format
            return flow.files(table.name, path, format=kind, schema=schema, **options)
        if table.format == "delta":
            return flow.delta(table.name, options.pop("path"), changes=True, **options)
        return flow.source(table.name, self._frame(table, spark))

    def _frame(self, table: TableSource, spark: SparkSession | None) -> DataFrame:
        """A table that Spark reads: of Kafka, messages are JSON with the table's columns."""
        if spark is None:
            hint = "give flow(spark=...), or start the file by python -m timely_spark sql."
            raise self._binder.refuse(table.node, f"{table.name} USING {table.format} needs a session", hint)
        from pyspark.sql.functions import col, from_json

        options = {"startingOffsets": "earliest", **table.options}
        frame = spark.readStream.format("kafka").options(**options).load()
        ddl = ", ".join(
            f"{one.this.name} {one.args['kind'].sql(dialect='spark')}" for one in table.node.this.expressions
        )
        return frame.select(from_json(col("value").cast("string"), ddl).alias("row")).select("row.*")


@locate_errors
def read_sql(text: str, parameters: Mapping[str, str] | None = None) -> SqlFile:
    """The statements of a file of SQL.

    - ``CREATE TABLE name (columns) USING parquet | csv | json | arrow | delta | kafka OPTIONS (...)``, with
      ``path`` among the options, or ``LOCATION``. A column ``diff`` is the change of a row's multiplicity. Of
      Kafka each message is one JSON object with the columns.
    - ``CREATE VIEW name AS query``.
    - ``CREATE MATERIALIZED VIEW name LOCATION '...' AS query``: a Delta table, whose keys are seen from the
      query, or are ``TBLPROPERTIES ('keys' = 'a, b')``.

    Args:
        text: the file's text.
        parameters: the values of ``:name`` in queries, locations and options.

    Example:
        >>> made = read_sql(
        ...     '''
        ...     CREATE TABLE edges (src bigint, dst bigint) USING csv LOCATION '/data/edges';
        ...     CREATE MATERIALIZED VIEW degrees LOCATION :out AS
        ...       SELECT src, count(*) AS n FROM edges GROUP BY src''',
        ...     {"out": "/data/degrees"},
        ... )
        >>> made.tables[0].options["path"], made.outputs["degrees"]
        ('/data/edges', ('/data/degrees', ()))

    Raises:
        SqlError: a statement is of another kind, or lacks its place or a parameter.
    """
    binder, trees = statements(text)
    given = dict(parameters or {})
    tables, views, outputs = [], [], {}
    for tree in trees:
        _fill(binder, tree, given)
        kind = str(tree.args.get("kind", "")).upper() if type(tree).__name__ == "Create" else ""
        if kind == "TABLE" and tree.expression is None:
            tables.append(_table(binder, tree))
        elif kind == "VIEW":
            views.append(tree)
            properties = _properties(tree)
            if "materialized" in properties:
                outputs[_name(tree)] = _output(binder, tree, properties)
        else:
            hint = "write CREATE TABLE ... USING, CREATE VIEW, or CREATE MATERIALIZED VIEW ... LOCATION."
            shown = tree.sql(dialect=parse.dialect()).split()
            raise binder.refuse(tree, f"{' '.join(shown[:2])} in a file of SQL", hint)
    if not outputs:
        raise binder.refuse(None, "no CREATE MATERIALIZED VIEW", "say which result is kept, and where.")
    return SqlFile(text, tuple(tables), outputs, binder, tuple(views))


def _name(tree: Any) -> str:
    target = tree.this
    return str((target.this if type(target).__name__ == "Schema" else target).name)


def _fill(binder: Binder, tree: Any, parameters: Mapping[str, str]) -> None:
    """Put the values of parameters in their places: a number if it is one, else a text."""
    from sqlglot import exp

    for one in list(tree.find_all(exp.Placeholder)):
        name = str(one.this or "")
        if name not in parameters:
            raise binder.refuse(one, f"no value for :{name}", f"give --set {name}=value.")
        value = parameters[name]
        number = value.lstrip("-").replace(".", "", 1).isdecimal()
        one.replace(exp.Literal.number(value) if number else exp.Literal.string(value))


def _properties(tree: Any) -> dict[str, Any]:
    """The clauses between the name and the query: the format, the place, options."""
    from sqlglot import exp

    made: dict[str, Any] = {}
    found = tree.args.get("properties")
    for one in found.expressions if found is not None else ():
        if isinstance(one, exp.FileFormatProperty):
            made["format"] = one.this.name.lower()
        elif isinstance(one, exp.LocationProperty):
            made["path"] = one.this.name
        elif isinstance(one, exp.MaterializedProperty):
            made["materialized"] = ""
        elif isinstance(one, exp.OptionsProperty):
            made |= {option.name: option.args["value"].name for option in one.expressions}
        elif isinstance(one, exp.Property):
            made[one.name] = one.args["value"].name
    return made


def _table(binder: Binder, tree: Any) -> TableSource:
    properties = _properties(tree)
    kind = properties.pop("format", None)
    if kind not in {*_FILES, "delta", "kafka"}:
        hint = f"write USING {', '.join(_FILES)}, delta or kafka."
        raise binder.refuse(tree.this, f"{_name(tree)} USING {kind or 'nothing'}", hint)
    if kind != "kafka":
        if "path" not in properties:
            hint = "write LOCATION '/folder', or OPTIONS (path '/folder')."
            raise binder.refuse(tree.this, f"{_name(tree)} has no place", hint)
        if unknown := sorted(properties.keys() - {*_OPTIONS[kind]}):
            hint = f"the options of {kind} are {', '.join(_OPTIONS[kind])}."
            raise binder.refuse(tree.this, f"{_name(tree)} has options {', '.join(unknown)}", hint)
    columns = tree.this.expressions if type(tree.this).__name__ == "Schema" else []
    if kind == "kafka" and not columns:
        raise binder.refuse(tree.this, f"{_name(tree)} has no columns", "list them: their messages are JSON.")
    ddl = ", ".join(f"`{one.this.name}` {one.args['kind'].sql(dialect='spark')}" for one in columns)
    return TableSource(_name(tree), kind, as_schema(ddl) if columns else None, properties, tree)


def _output(binder: Binder, tree: Any, properties: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    name = _name(tree)
    if properties.get("format", "delta") != "delta":
        raise binder.refuse(tree.this, f"{name} USING {properties['format']}", "a view is kept USING delta.")
    keys = tuple(one.strip() for one in str(properties.get("keys", "")).split(",") if one.strip())
    return str(properties.get("path", name)), keys
