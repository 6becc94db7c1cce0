"""A pipeline of tables and views, in SQL and in Python: its order, its flows, and what a change rebuilds."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from timely_spark.coordinator.migration import FlowChanged
from timely_spark.dataflow import Dataflow
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, TimelyError
from timely_spark.graph import composed, placed
from timely_spark.graph.stage import closure
from timely_spark.queries.binder import BoundQuery, View
from timely_spark.queries.explained import plan_text
from timely_spark.queries.relations import Projection, TableScan
from timely_spark.queries.scopes import Fresh
from timely_spark.queries.scripts import as_step, build_all, create_view, relations_of, table_view
from timely_spark.queries.sql import as_collection
from timely_spark.queries.unique import unique_columns
from timely_spark.runtime.errors import CheckpointInUse
from timely_spark.runtime.sources.folder import Folder
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.sql.binder import near
from timely_spark.sql_file import FILES, NUMBERS, SqlView, TableSource, columns_ddl, in_file, read_statements
from timely_spark.streams import Stream
from timely_spark.views import FunctionView, views_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.runtime.handle.query import Query

#: in a folder of checkpoints, what each keeps
PARTS = "views.json"
_UNKNOWN: Mapping[str, float] = {}
_NO_SESSION = "give flow(spark=...), or start the pipeline by python -m timely_spark run."
_REBUILD = (
    "change the text of a view whose functions are other ones now, which rebuilds it; or begin with a new "
    "checkpoint and other tables."
)
Definition: TypeAlias = "TableSource | SqlView | FunctionView"


@dataclass(frozen=True)
class Pipeline:
    """Tables and views; made by `read_pipeline`."""

    #: the definitions by name, each after those that it reads
    definitions: Mapping[str, Definition]
    #: the tables and views that each view reads, by its name
    reads: Mapping[str, Sequence[str]]
    #: the values of `:name` in SQL, and of keyword-only arguments
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, definitions: Sequence[Definition], parameters: Mapping[str, str], place: str) -> Pipeline:
        """The pipeline of definitions in any order.

        Raises:
            GraphError: nothing is kept; a name is defined twice; a function reads an unknown table; or views
                read each other.
            SqlError: a query reads an unknown table.
        """
        by_name: dict[str, Definition] = {}
        for one in definitions:
            if (other := by_name.setdefault(one.name.lower(), one)) is not one:
                msg = f"{one.name} is defined twice, at {other.where} and {one.where}"
                raise GraphError(msg, hint="give one of them another name.")
        by_table: dict[str, Definition] = {}
        for one in definitions:
            if isinstance(one, TableSource) or one.output is None:
                continue
            if (other := by_table.setdefault(one.output[0], one)) is not one:
                both = f"{other.name} ({other.where}) and {one.name} ({one.where})"
                msg = f"{both} are both kept in {one.output[0]}"
                raise GraphError(msg, hint="give each view a table of its own.")
        if not by_table:
            hint = "write CREATE MATERIALIZED VIEW, or @ts.view(table=..., keys=...)."
            msg = f"{place} keeps nothing"
            raise GraphError(msg, hint=hint)
        names = {name: one.name for name, one in by_name.items()}
        reads = {one.name: _reads(one, names) for one in definitions}
        try:
            order = list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            cycle = [by_name[name.lower()] for name in reversed(error.args[1])]
            shown = ", which reads ".join(f"{one.name} ({one.where})" for one in cycle)
            hint = "a view that reads itself is WITH RECURSIVE in SQL, or iterate in one function."
            msg = f"views read each other: {shown}"
            raise GraphError(msg, hint=hint) from None
        return cls({name: by_name[name.lower()] for name in order}, reads, parameters)

    @property
    def tables(self) -> tuple[TableSource, ...]:
        """What `CREATE TABLE` defines."""
        return tuple(one for one in self.definitions.values() if isinstance(one, TableSource))

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The Delta table of each kept view, by its name, and the keys that are given."""
        views = [one for one in self.definitions.values() if not isinstance(one, TableSource)]
        return {one.name: one.output for one in views if one.output is not None}

    def flow(
        self,
        name: str = "pipeline",
        *,
        spark: SparkSession | None = None,
        views: Iterable[str] | None = None,
        overwrite: frozenset[str] = frozenset(),
        planned: _Built | None = None,
    ) -> tuple[Dataflow, dict[str, Collection]]:
        """The flow that keeps the views, and these as collections.

        Args:
            name: the flow's name.
            spark: the session, for tables that only Spark reads, and for functions.
            views: the names of those that it keeps (all). Steps that several need have the name of the first.
            overwrite: the ids of checkpoints whose Delta tables it may replace.
            planned: the plans of all views.
        """
        planned = planned or self._planned(spark, _UNKNOWN)
        outputs = {view: self.outputs[view] for view in (self.outputs if views is None else views)}
        built = _Built(self, Dataflow(name), outputs, spark, planned=planned)
        collections = built.all(outputs)
        for view, (table, keys) in outputs.items():
            key = built.keys(view, keys)
            diff = Fresh(collections[view].schema.names).name("diff")
            step = as_step(f"table {view}")
            with placed(self.definitions[view].where):
                changes = collections[view].changes(diff)
                changes.to_delta(table, keys=key, diff=diff, name=step, overwrite=overwrite)
        return built.flow, collections

    def start(
        self,
        spark: SparkSession,
        *,
        checkpoint: str | os.PathLike[str],
        name: str = "pipeline",
        tell: Callable[[str], None] = print,
        **options: Any,
    ) -> list[Query]:
        """Start the flows that keep the views, and continue what earlier definitions have kept.

        A view whose plan is as before continues from its state. One that is new, or has another plan, is
        built from the first record on, by a flow of its own: its checkpoint is the next number in the folder.
        Its Delta table is replaced if a flow of this folder has written it. A view that is no longer defined
        stops; its table stays.

        A start that is refused changes nothing, if no flow has started and the folder is on a local file
        system. Elsewhere no lock keeps other starts away, and `views.json` stays as the start has written it.

        Args:
            spark: the session.
            checkpoint: the folder of the checkpoints: one for each flow, and `views.json`, which says what
                each keeps, and how large the tables' files were at the first start: joins begin with the
                smallest.
            name: the flows' name.
            tell: is called with a line for each view that does not simply continue.
            options: as for `Dataflow.start`.
        """
        files, lines = Files(checkpoint), list[str]()
        with contextlib.ExitStack() as started, _as_it_was(files) as changed:
            sizes = self._sizes(files)
            planned = self._planned(spark, sizes)
            parts, shrunk = self._parts(files, planned.fingerprints(), sizes, lines.append)
            running = []
            while parts:
                part = parts.pop(0)
                number = part["number"]
                called = name if number == 1 else f"{name}_{number}"
                views, own = part["views"], _identities(files)
                flow, _ = self.flow(called, spark=spark, views=views, overwrite=own, planned=planned)
                try:
                    query = flow.start(spark, checkpoint=_place(files, number), **options)
                except FlowChanged as error:
                    # what a dropped view built is read by others under another name
                    if number not in shrunk:
                        raise FlowChanged(error.message, hint=_REBUILD) from error
                    parts.append(self._rebuilt(files, part, lines.append))
                else:
                    changed()
                    running.append(started.enter_context(query))
            started.pop_all()  # one that does not start stops the others
        for line in lines:  # nothing is built if one is refused
            tell(line)
        return running

    def _sizes(self, files: Files | None) -> Mapping[str, float]:
        """The bytes of each table's files at its first start: a later plan then is the same."""
        saved = (files and files.json(PARTS)) or {"sizes": {}}
        if "sizes" not in saved:
            return _UNKNOWN
        measured: Mapping[str, float] = saved["sizes"]
        sizes = {one.name: measured[one.name] if one.name in measured else _size(one) for one in self.tables}
        return {name: size for name, size in sizes.items() if size is not None}

    def _parts(
        self,
        files: Files,
        plans: Mapping[str, str],
        sizes: Mapping[str, float],
        tell: Callable[[str], None],
    ) -> tuple[list[dict[str, Any]], set[int]]:
        """The flows to start, each with the views that it keeps; and the numbers of those that lost some."""
        before = _saved(files)
        old = {of for part in before for of in part["views"]}
        for of in sorted(old - plans.keys()):
            tell(f"{of}: no longer kept")
        left, parts, shrunk = dict(plans), [], set()
        for part in before:
            views = {of: left.pop(of) for of, plan in part["views"].items() if left.get(of) == plan}
            parts.append({**part, "views": views})
            if len(views) < len(part["views"]):
                shrunk.add(part["number"])
        for of in left:
            tell(f"{of}: {'rebuilt, as it or what it reads changed' if of in old else 'built'}")
        if left:
            number = 1 + max((part["number"] for part in before), default=0)
            parts.append({"number": number, "views": left})
        files.write_json(PARTS, {"parts": parts, "sizes": dict(sizes)}, durable=True)
        return [part for part in parts if part["views"]], shrunk

    def _rebuilt(self, files: Files, part: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        """A flow for the views of another one that cannot continue without those that it has lost."""
        for of in part["views"]:
            tell(f"{of}: rebuilt, as it shared steps with a view that is dropped or changed")
        saved: dict[str, Any] = files.existing(PARTS, files.json(PARTS))
        number = 1 + max(one["number"] for one in saved["parts"])
        rebuilt = {**part, "number": number}
        others = (one if one["number"] != part["number"] else {**one, "views": {}} for one in saved["parts"])
        parts = [*others, rebuilt]
        files.write_json(PARTS, {**saved, "parts": parts}, durable=True)
        return rebuilt

    def _planned(self, spark: SparkSession | None, sizes: Mapping[str, float]) -> _Built:
        """All views in a flow that does not run.

        Args:
            spark: the session, as in `flow`.
            sizes: by table its size: joins begin with the smallest.
        """
        return _Built(self, Dataflow("plan"), self.definitions, spark, sizes)

    def explain(self, checkpoint: str | os.PathLike[str] | None = None) -> str:
        """The tables and views in the order of their flow, and the plans of queries: see `explain_sql`.

        Args:
            checkpoint: the folder of the checkpoints, which has the sizes of tables.
        """
        lines, sizes = [], self._sizes(None if checkpoint is None else Files(checkpoint))
        planned = self._planned(None, sizes)
        for name, one in self.definitions.items():
            reads = f" reads {', '.join(sorted(self.reads[name]))}" if self.reads[name] else ""
            output = ""
            if name in self.outputs:
                place, keys = self.outputs[name]
                output = f"; kept in {place} by {', '.join(planned.keys(name, keys))}"
            lines.append(f"{name} ({one.where}){reads}{output}")
        if queries := [one for of, one in planned.queries.items() if of in self.outputs]:
            views = [one for one in self.definitions.values() if isinstance(one, SqlView)]
            notes = [note for one in views for note in one.binder.notes]
            lines += ["", plan_text(relations_of(queries), notes, Dataflow("plan"))]
        return "\n".join(lines)


def _reads(one: Definition, names: Mapping[str, str]) -> list[str]:
    """The tables and views that a definition reads; `names`: of all definitions, by name in lower case."""
    if isinstance(one, TableSource):
        return []
    if isinstance(one, FunctionView):
        if wrong := sorted(one.reads - {*names.values()}):
            msg = f"view {one.name} ({one.where}) reads {wrong[0]}, which is not a table or view"
            raise GraphError(msg, hint=_tables_hint(wrong[0], names))
        return sorted(one.reads)
    for name, node in one.tables.items():
        if name not in names and name not in one.named:
            hint = _tables_hint(name, names)
            with in_file(one.file):
                raise one.binder.refuse(node, f"no table {name}", hint)
    own = {one.name.lower()} & one.named
    return sorted({names[name] for name in one.tables if name in names and name not in own})


def _tables_hint(name: str, names: Mapping[str, str]) -> str:
    tables = sorted(names.values())
    return near(name, tables) or f"the tables are {', '.join(tables)}."


class _Built:
    """Some views in one flow, with what they read.

    Queries that queries read are one plan with them. One that a function reads is built, and then a table.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        flow: Dataflow,
        wanted: Iterable[str],
        spark: SparkSession | None,
        sizes: Mapping[str, float] = _UNKNOWN,
        *,
        planned: _Built | None = None,
    ) -> None:
        """Build views; without `planned`, files whose columns are declared are not looked for."""
        self.pipeline, self.flow, self.spark, self.planned = pipeline, flow, spark, planned
        #: what is built
        self.collections: dict[str, Collection] = {}
        #: what queries read
        self.views: dict[str, View] = {}
        self.queries: dict[str, BoundQuery] = {} if planned is None else planned.queries
        called = [one for one in pipeline.definitions.values() if isinstance(one, FunctionView)]
        for one in self._needed(wanted):
            if isinstance(one, SqlView):
                if planned is None:
                    one.binder.sizes = sizes
                    with in_file(one.file):
                        create_view(one.binder, one.tree, self.views)
                    self.queries[one.name] = self.views[one.name].query
                if any(one.name in function.reads for function in called):
                    self._add(one.name, self.all([one.name])[one.name])
            elif isinstance(one, TableSource):
                with placed(one.where):
                    self._add(one.name, as_collection(self._read(one)))
            else:
                self._add(one.name, self._called(one))

    def _needed(self, wanted: Iterable[str]) -> list[Definition]:
        """The definitions of some views, and of all that they read."""
        needed = closure(wanted, self.pipeline.reads.__getitem__)
        return [one for name, one in self.pipeline.definitions.items() if name in needed]

    def _add(self, name: str, collection: Collection) -> None:
        self.collections[name], self.views[name] = collection, table_view(name, collection)

    def all(self, names: Iterable[str]) -> dict[str, Collection]:
        """Views as collections; queries among them that are not built yet are built together."""
        new = [name for name in names if name not in self.collections]
        views = build_all([self.queries[name] for name in new], self.collections, new)
        built = {**self.collections, **dict(zip(new, views, strict=True))}
        return {name: built[name] for name in names}

    def keys(self, name: str, chosen: Sequence[str] = ()) -> list[str]:
        """The columns that identify a row of a kept view: those chosen, or those that its query shows."""
        if (answer := self.queries.get(name)) is None:  # a function
            return [*chosen]
        schema = relations_of([answer])[0].schema
        new = tuple(zip(schema.names, answer.columns, strict=True))
        unique = frozenset(chosen) or unique_columns(Projection(answer.relation, new))
        problem = hint = ""
        if unique is None:
            problem = f"{name} may have equal rows, which a table with keys cannot"
            hint = "write SELECT DISTINCT; or TBLPROPERTIES ('keys' = 'a, b'), if these are unique."
        elif unknown := sorted(unique.difference(schema.names)):
            problem = f"{name} has no column {unknown[0]}, which is one of its keys"
            hint = near(unknown[0], schema.names) or f"its columns are {', '.join(schema.names)}."
        if unique is None or problem:
            one: Any = self.pipeline.definitions[name]
            with in_file(one.file):
                raise one.binder.refuse(one.tree.this, problem, hint)
        return [one for one in schema.names if one in unique] or schema.names

    def fingerprints(self) -> dict[str, str]:
        """A fingerprint of each kept view; another view of the same name has another one: see `identity`."""
        identities = {view: (self.identity(view), output) for view, output in self.pipeline.outputs.items()}
        return {view: hashlib.sha256(repr(parts).encode()).hexdigest() for view, parts in identities.items()}

    def identity(self, name: str) -> tuple[Any, ...]:
        """A definition, and all that it reads, by content: a query's plan, a function's text."""
        one = self.pipeline.definitions[name]
        if isinstance(one, TableSource):
            return (one,)
        if isinstance(one, FunctionView):
            reads = [self.identity(read) for read in sorted(one.reads)]
            return inspect.getsource(one.function), self._options(one), reads
        relation = relations_of([self.queries[name]])[0]
        scans = sorted({scan.name for scan in relation.walk() if isinstance(scan, TableScan)})
        return relation.digest, [self.identity(scan) for scan in scans]

    def _called(self, one: FunctionView) -> Collection:
        arguments = {**self.collections, "flow": self.flow, "spark": self.spark}
        if self.spark is None and "spark" in one.arguments:
            msg = f"view {one.name} ({one.where}) needs a session"
            raise GraphError(msg, hint=_NO_SESSION)
        read = (arguments[name] for name in one.arguments)
        result = _call(one, self._options(one), *read, name=one.name)
        if not isinstance(result, Collection | Stream):
            msg = f"view {one.name} ({one.where}) returned {type(result).__name__}"
            raise GraphError(msg, hint="return a collection, or a stream.")
        return as_collection(result)

    def _options(self, one: FunctionView) -> dict[str, Any]:
        options = {name: self.pipeline.parameters.get(name, value) for name, value in one.options.items()}
        if missing := [name for name, value in options.items() if value is inspect.Parameter.empty]:
            msg = f"view {one.name} ({one.where}): no value for {missing[0]}"
            raise GraphError(msg, hint=f"give --set {missing[0]}=value.")
        return options

    def _read(self, table: TableSource) -> Stream:
        name = as_step(table.name)
        if self.planned is None and table.schema is not None:
            return self.flow.source(name, table.schema)
        options: dict[str, Any] = {
            option: int(value) if option in NUMBERS and value.isdecimal() else value
            for option, value in table.options.items()
        }
        if table.format in FILES:
            schema = table.schema
            if schema is not None and "diff" in schema.names:
                options["defaults"] = {"diff": 1}
            path: Any = options.pop("path")
            kind: Any = table.format
            return self.flow.files(name, path, format=kind, schema=schema, **options)
        if table.format == "delta":
            return self.flow.delta(name, options.pop("path"), changes=True, **options)
        return self.flow.source(name, self._frame(table))

    def _frame(self, table: TableSource) -> DataFrame:
        """A table that Spark reads; messages of Kafka are JSON with the table's columns."""
        if self.spark is None:
            raise table.binder.refuse(
                table.tree, f"{table.name} USING {table.format} needs a session", _NO_SESSION
            )
        from pyspark.sql.functions import col, from_json

        options = {"startingOffsets": "earliest", **table.options}
        frame = self.spark.readStream.format("kafka").options(**options).load()
        row = from_json(col("value").cast("string"), columns_ddl(table.tree))
        return frame.select(row.alias("row")).select("row.*")


def read_pipeline(path: str | os.PathLike[str], parameters: Mapping[str, str]) -> Pipeline:
    """The pipeline of a file or folder: the `view` functions of files ``*.py``, the statements of ``*.sql``.

    - ``CREATE TABLE name (columns) USING parquet | csv | json | arrow | delta | kafka OPTIONS (...)``, with
      ``path`` among the options, or ``LOCATION``. A column ``diff`` is the change of a row's multiplicity.
      Each message of Kafka is one JSON object with the columns.
    - ``CREATE VIEW name AS query``.
    - ``CREATE MATERIALIZED VIEW name LOCATION '...' AS query``: a Delta table. Its keys are seen from
      the query, or are ``TBLPROPERTIES ('keys' = 'a, b')``.

    Files in folders of the folder belong to it; those whose names begin with ``.`` or ``_`` do not.

    Args:
        path: the folder, or one file.
        parameters: the values of ``:name`` in queries, locations and options, and of keyword-only arguments.

    Raises:
        OSError: there is no such file or folder.
        SqlError: a statement is of another kind, lacks its place or a parameter, or reads an unknown table.
        GraphError: nothing is kept, a name is defined twice, views read each other, or a file is not a text.
    """
    place, definitions = Path(path), list[Definition]()
    for file in _files(place) if place.is_dir() else [place]:
        if file.suffix == ".py":
            definitions += views_of_file(str(file))
        else:
            try:
                text = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                msg = f"{file} is not a text in UTF-8: {error}"
                raise GraphError(msg, hint="give files of SQL (*.sql) or of Python (*.py).") from None
            definitions += read_statements(text, parameters, str(file))
    return Pipeline.of(definitions, parameters, str(place))


def _files(folder: Path) -> list[Path]:
    files = (one for one in folder.rglob("*") if one.suffix in {".py", ".sql"} and one.is_file())
    return sorted(one for one in files if not any(part[0] in "._" for part in one.relative_to(folder).parts))


def _size(table: TableSource) -> float | None:
    """The bytes of a table's files; None if it has none, or they cannot be listed."""
    if table.format not in {*FILES, "delta"}:
        return None
    kind = "parquet" if table.format == "delta" else table.format
    with contextlib.suppress(TimelyError):  # the flow tells it
        folder = Folder.of(table.name, table.where, table.options["path"], kind, None)
        return float(sum(one.size for one in folder.files()))
    return None


def checkpoints_in(folder: str) -> list[str]:
    """The checkpoints in a folder that `Pipeline.start` was given; any other is a flow's own."""
    files = Files(folder)
    return [_place(files, part["number"]) for part in _saved(files) if part["views"]] or [folder]


def _place(files: Files, number: int) -> str:
    """The checkpoint of a flow, by its number.

    >>> _place(Files("s3://bucket/check?region=eu-west-1"), 2)
    's3://bucket/check/2?region=eu-west-1'
    """
    return files.below(str(number)).location


@contextlib.contextmanager
def _as_it_was(files: Files) -> Iterator[Callable[[], object]]:
    """Let one start write into a folder of checkpoints, and restore its `PARTS` if the start fails.

    Yields what the start calls once a flow has started: then the folder must stay as it is.
    """
    lock = Lock(files)
    if not lock.acquire():
        msg = f"{files.location} is in use by another start, or a flow of its own."
        raise CheckpointInUse(msg, hint="wait until that start has ended, or give another folder.")
    try:
        before = files.json(PARTS)
        with contextlib.ExitStack() as undo:
            if lock.path is None:  # where there are no locks, another start may have written it
                pass
            elif before is None:
                undo.callback(files.remove, PARTS)
            else:
                undo.callback(files.write_json, PARTS, before, durable=True)
            yield undo.pop_all
            undo.pop_all()
    finally:
        lock.release()


def _saved(files: Files) -> list[dict[str, Any]]:
    """All flows that a folder of checkpoints has had: number, and the views that it keeps, with plans."""
    parts: list[dict[str, Any]] = (files.json(PARTS) or {"parts": []})["parts"]
    return parts


def _identities(files: Files) -> frozenset[str]:
    """The ids of the checkpoints in a folder of checkpoints."""
    logs = (RoundLog(_place(files, part["number"])) for part in _saved(files))
    return frozenset(identity["id"] for log in logs if (identity := log.identity()) is not None)


@composed  # which names the steps, in the flow of an argument
def _call(view: FunctionView, options: Mapping[str, Any], *arguments: Any, name: str) -> Any:  # noqa: ARG001
    return view.function(*arguments, **options)
