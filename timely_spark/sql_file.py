"""A file of SQL as a flow: tables that are read, views, and views that are kept in Delta tables."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator.migrate import FlowChanged
from timely_spark.dataflow import Dataflow
from timely_spark.differential import Collection
from timely_spark.graph import as_schema, locate_errors
from timely_spark.queries.binder import Binder, BoundQuery, View
from timely_spark.queries.explained import plan_text
from timely_spark.queries.relations import Projection, TableScan
from timely_spark.queries.scripts import (
    build_all,
    create_view,
    relations_of,
    statements,
    table_view,
)
from timely_spark.queries.sql import as_collection
from timely_spark.queries.unique import unique_columns
from timely_spark.runtime.storage.files import Files
from timely_spark.sql import parse
from timely_spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.runtime.handle.query import Query

#: in a folder of checkpoints, what each keeps
PARTS = "views.json"
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
        self,
        name: str = "sql",
        *,
        spark: SparkSession | None = None,
        views: Container[str] | None = None,
        overwrite: Container[str] = (),
    ) -> tuple[Dataflow, dict[str, Collection]]:
        """The flow that keeps the materialized views, and these as collections.

        Args:
            name: the flow's name.
            spark: the session, for tables that only Spark reads.
            views: the names of those that it keeps (all).
            overwrite: the views whose Delta tables may be overwritten if something else wrote them.
        """
        made = Dataflow(name)
        outputs = {of: one for of, one in self.outputs.items() if views is None or of in views}
        tables: dict[str, Any] = {
            one.name: partial(self._collection, made, one, spark) for one in self.tables
        }
        bound = self._bound()
        answers = [bound[of].query for of in outputs]
        collections = dict(zip(outputs, build_all(answers, tables, list(outputs)), strict=True))
        for (of, (table, keys)), answer in zip(outputs.items(), answers, strict=True):
            found = list(keys) or self._keys(of, answer, collections[of])
            changes = collections[of].changes()
            changes.to_delta(table, keys=found, diff="diff", name=f"table {of}", overwrite=of in overwrite)
        return made, collections

    def start(
        self,
        spark: SparkSession,
        *,
        checkpoint: str | os.PathLike[str],
        name: str = "sql",
        tell: Callable[[str], None] = print,
        **options: Any,
    ) -> list[Query]:
        """Start the flows that keep the views, and continue what an earlier text of the file has kept.

        A view whose plan is as before continues from its state. One that is new, or has another plan, is
        built from the first record on, by a flow of its own: its checkpoint is the next number in the folder,
        and its Delta table is replaced. A view that the file lacks stops; its table stays.

        Args:
            spark: the session.
            checkpoint: the folder of the checkpoints: one for each flow, and `views.json`, which says what
                each keeps.
            name: the flows' name.
            tell: is called with a line for each view that does not simply continue.
            options: as for `Dataflow.start`.
        """
        files = Files(checkpoint)
        parts, shrunk = self._parts(files, tell)
        with contextlib.ExitStack() as started:
            running = []
            while parts:
                part = parts.pop(0)
                number = part["number"]
                called = name if number == 1 else f"{name}_{number}"
                flow, _ = self.flow(called, spark=spark, views=part["views"], overwrite=part["overwrite"])
                try:
                    query = flow.start(spark, checkpoint=files.path(str(number)), **options)
                except FlowChanged:
                    # what a dropped view built is read by others under another name
                    if number not in shrunk:
                        raise
                    parts += self._rebuilt(files, part, tell)
                else:
                    running.append(started.enter_context(query))
            started.pop_all()  # one that does not start stops the others
        return running

    def _parts(self, files: Files, tell: Callable[[str], None]) -> tuple[list[dict[str, Any]], set[int]]:
        """The flows to start, each with the views that it keeps; and the numbers of those that lost some."""
        plans = self._plans()
        before = _saved(files)
        old = {of for part in before for of in part["views"]}
        for of in sorted(old - plans.keys()):
            tell(f"{of}: no longer kept")
        left, parts, shrunk = dict(plans), [], set()
        for part in before:
            kept = {of: left.pop(of) for of, plan in part["views"].items() if left.get(of) == plan}
            if kept:
                parts.append({**part, "views": kept})
            if len(kept) < len(part["views"]):
                shrunk.add(part["number"])
        for of in left:
            tell(f"{of}: {'rebuilt, its query or its place changed' if of in old else 'built'}")
        if left:
            number = 1 + max((part["number"] for part in before), default=0)
            parts.append({"number": number, "views": left, "overwrite": sorted(old & left.keys())})
        files.write_json(PARTS, {"parts": parts}, durable=True)
        return parts, shrunk

    def _rebuilt(
        self, files: Files, part: dict[str, Any], tell: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """A flow for the views of another one that cannot continue without those that it has lost."""
        for of in part["views"]:
            tell(f"{of}: rebuilt, as it shared steps with a view that is dropped or changed")
        saved = _saved(files)
        number = 1 + max(one["number"] for one in saved)
        made = {**part, "number": number, "overwrite": sorted(part["views"])}
        files.write_json(
            PARTS, {"parts": [*(one for one in saved if one["number"] != part["number"]), made]}, durable=True
        )
        return [made]

    def _plans(self) -> dict[str, str]:
        """By materialized view what tells it from another one of its name: its plan, tables and place."""
        sources = {one.name: one for one in self.tables}
        made = {}
        for of, view in self._bound().items():
            if of in self.outputs:
                relation = relations_of([view.query])[0]
                scans = {one.name for one in relation.walk() if isinstance(one, TableScan)}
                parts = (relation.digest, [sources[one] for one in sorted(scans)], self.outputs[of])
                made[of] = hashlib.sha256(repr(parts).encode()).hexdigest()
        return made

    def explain(self) -> str:
        """The plans of the materialized views: see `explain_sql`."""
        bound = self._bound()
        relations = relations_of([bound[of].query for of in self.outputs])
        return plan_text(relations, self._binder.notes, Dataflow("plan"))

    def _bound(self) -> dict[str, View]:
        """The tables and views by name."""
        views: dict[str, View] = {}
        for one in self.tables:
            made = Dataflow("plan")
            table = self._read(made, one, None) if one.schema is None else made.source(one.name, one.schema)
            views[one.name] = table_view(one.name, as_collection(table))
        for tree in self._views:
            create_view(self._binder, tree, views)
        return views

    def _collection(self, flow: Dataflow, table: TableSource, spark: SparkSession | None) -> Collection:
        return as_collection(self._read(flow, table, spark))

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


def _saved(files: Files) -> list[dict[str, Any]]:
    """The flows of a folder of checkpoints: number, views with their plans, tables to overwrite."""
    found: list[dict[str, Any]] = (files.json(PARTS) or {"parts": []})["parts"]
    return found


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
