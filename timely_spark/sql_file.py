"""The statements of a file of SQL: tables that are read, views, and views that are kept in Delta tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from timely_spark.errors import Where
from timely_spark.graph import as_schema, identifier, placed
from timely_spark.queries.binder import Binder, written_name
from timely_spark.queries.scripts import statements
from timely_spark.sql import parse
from timely_spark.sql.parse import exp

#: the formats of files
FILES: Any = ("parquet", "csv", "json", "arrow")
#: options of tables that are numbers; and options by format
NUMBERS = frozenset({"files_per_epoch", "from_version", "versions_per_epoch"})
_OPTIONS = {
    **dict.fromkeys(FILES, ("files_per_epoch", "on_bad_file", "path")),
    "delta": ("from_time", "from_version", "path", "versions_per_epoch"),
}


@dataclass(frozen=True)
class Statement:
    """A statement of a file."""

    name: str
    tree: Any = field(repr=False, compare=False)
    binder: Binder = field(repr=False, compare=False)
    #: empty if the text is of no file
    file: str = field(repr=False, compare=False)

    @property
    def where(self) -> Where:
        """The statement's line."""
        start = parse.start_of(self.tree.this) or 0
        return Where(self.file or "SQL", 1 + self.binder.text.count("\n", 0, start))


@dataclass(frozen=True)
class TableSource(Statement):
    """A `CREATE TABLE ... USING format`: where its rows are."""

    format: str
    schema: pa.Schema | None
    options: Mapping[str, str]


@dataclass(frozen=True)
class SqlView(Statement):
    """A `CREATE VIEW`, or a `CREATE MATERIALIZED VIEW`."""

    #: the Delta table that keeps it, and its keys, if any are given; None if nothing keeps it
    output: tuple[str, tuple[str, ...]] | None

    @property
    def tables(self) -> dict[str, Any]:
        """By name in lower case, where the query reads it; names of its own `WITH` are among them."""
        query = self.tree.expression
        read = (one for one in query.find_all(exp.Table) if isinstance(one.this, exp.Identifier))
        return {written_name(one).lower(): one for one in read}

    @property
    def named(self) -> set[str]:
        """The names of its own `WITH`, in lower case."""
        return {one.alias.lower() for one in self.tree.expression.find_all(exp.CTE)}


def read_statements(text: str, parameters: Mapping[str, str], file: str = "") -> list[TableSource | SqlView]:
    """The tables and views of a text; see `read_pipeline`."""
    with in_file(file):
        binder, trees = statements(text)
        return [_statement(binder, tree, parameters, file) for tree in trees]


@contextmanager
def in_file(file: str) -> Iterator[None]:
    """Let mistakes and steps of a text name their places in its file."""
    with placed(Where(file, 1, 1) if file else None):
        yield


def _statement(binder: Binder, tree: Any, parameters: Mapping[str, str], file: str) -> TableSource | SqlView:
    _fill(binder, tree, parameters)
    kind = str(tree.args.get("kind", "")).upper() if type(tree).__name__ == "Create" else ""
    if kind == "TABLE" and tree.expression is None:
        return _table(binder, tree, file)
    if kind == "VIEW":
        properties = _properties(binder, tree)
        output = _output(binder, tree, properties) if "materialized" in properties else None
        return SqlView(written_name(tree.this), tree, binder, file, output)
    hint = "write CREATE TABLE ... USING, CREATE VIEW, or CREATE MATERIALIZED VIEW ... LOCATION."
    shown = tree.sql(dialect=parse.dialect()).split()
    raise binder.refuse(tree, f"{' '.join(shown[:2])} in a file of SQL", hint)


def _fill(binder: Binder, tree: Any, parameters: Mapping[str, str]) -> None:
    """Put the values of parameters in their places: a number if it is one, as 007 is not, else a text."""
    for one in list(tree.find_all(exp.Placeholder)):
        name = str(one.this or "")
        if name not in parameters:
            raise binder.refuse(one, f"no value for :{name}", f"give --set {name}=value.")
        value = parameters[name]
        number = re.fullmatch(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)", value, re.ASCII)
        one.replace(exp.Literal.number(value) if number else exp.Literal.string(value))


def _properties(binder: Binder, tree: Any) -> dict[str, Any]:
    """The clauses between the name and the query: the format, the place, options."""
    properties: dict[str, Any] = {}
    clause = tree.args.get("properties")
    says_nothing = exp.SchemaCommentProperty | exp.TemporaryProperty | exp.ExternalProperty
    for one in clause.expressions if clause is not None else ():
        if isinstance(one, exp.FileFormatProperty):
            properties["format"] = one.this.name.lower()
        elif isinstance(one, exp.LocationProperty):
            place = one.this.name  # a name without a slash would be a table of the catalog
            properties["path"] = place if "/" in place or "\\" in place else f"./{place}"
        elif isinstance(one, exp.MaterializedProperty):
            properties["materialized"] = ""
        elif isinstance(one, exp.OptionsProperty):
            properties |= {option.name: option.args["value"].name for option in one.expressions}
        elif type(one) is exp.Property:
            properties[one.name] = one.args["value"].name
        elif not isinstance(one, says_nothing):
            shown = one.sql(dialect=parse.dialect())
            raise binder.refuse(
                tree.this, f"{written_name(tree.this)} has the clause {shown}", "leave it out."
            )
    return properties


def _table(binder: Binder, tree: Any, file: str) -> TableSource:
    name, properties = written_name(tree.this), _properties(binder, tree)
    kind = properties.pop("format", None)
    if kind not in {*FILES, "delta", "kafka"}:
        hint = f"write USING {', '.join(FILES)}, delta or kafka."
        raise binder.refuse(tree.this, f"{name} USING {kind or 'nothing'}", hint)
    if kind != "kafka":
        if "path" not in properties:
            hint = "write LOCATION '/folder', or OPTIONS (path '/folder')."
            raise binder.refuse(tree.this, f"{name} has no place", hint)
        if kind == "csv" and properties.get("header", "").lower() == "true":  # it always has one
            del properties["header"]
        if unknown := sorted(properties.keys() - {*_OPTIONS[kind]}):
            hint = f"the options of {kind} are {', '.join(_OPTIONS[kind])}."
            raise binder.refuse(tree.this, f"{name} has options {', '.join(unknown)}", hint)
    ddl = columns_ddl(tree)
    if kind == "kafka" and not ddl:
        raise binder.refuse(tree.this, f"{name} has no columns", "list them: their messages are JSON.")
    return TableSource(name, tree, binder, file, kind, as_schema(ddl) if ddl else None, properties)


def columns_ddl(tree: Any) -> str:
    """The columns of a `CREATE TABLE` in Spark's DDL; empty if it declares none. No constraint is checked."""
    listed = tree.this.expressions if type(tree.this).__name__ == "Schema" else []
    columns = [one for one in listed if type(one).__name__ == "ColumnDef"]
    return ", ".join(
        f"{identifier(one.this.name)} {one.args['kind'].sql(dialect='spark')}" for one in columns
    )


def _output(binder: Binder, tree: Any, properties: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    name = written_name(tree.this)
    if unknown := sorted(properties.keys() - {"format", "path", "materialized", "keys"}):
        problem = f"{name} has properties {', '.join(unknown)}"
        raise binder.refuse(tree.this, problem, "the property of a kept view is 'keys'.")
    if properties.get("format", "delta") != "delta":
        raise binder.refuse(tree.this, f"{name} USING {properties['format']}", "a view is kept USING delta.")
    keys = tuple(one.strip() for one in str(properties.get("keys", "")).split(",") if one.strip())
    return str(properties.get("path", name)), keys
