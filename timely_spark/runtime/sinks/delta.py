"""`DeltaSink`: writes each epoch to a Delta table exactly once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph.quoting import identifier, literal, table_name
from timely_spark.graph.schema import every_name
from timely_spark.operators.table_layout import TableLayout
from timely_spark.runtime.errors import BadLocation, OutputMismatch, TableTaken
from timely_spark.runtime.session import DELTA, applied, on_one_machine
from timely_spark.runtime.sinks.delivery import arrow_schema, spark_schema, to_frame
from timely_spark.runtime.sinks.delta_history import DeltaHistory, remove_begun
from timely_spark.runtime.sinks.delta_local import appended, local_folder, properties, upserted
from timely_spark.runtime.sinks.delta_upsert import PLACE, Upsert
from timely_spark.runtime.sinks.sink import (
    EPOCH,
    STAMP,
    Output,
    Parts,
    Sink,
    check_names_of_spark,
    real_place,
    with_epoch,
    with_epoch_column,
)

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder, DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import DataType, StructType

_OWNER = "timely_spark.checkpoint"
#: the steps that started without the past, so that the table has later records only
_LACKS = "timely_spark.lacks"
_TXN = "spark.databricks.delta.write.txn"
#: Delta refuses column names with these characters, unless it maps names, which older readers do not support.
_ODD = re.compile(r"[ ,;{}()\n\t=]")
#: The beginnings of the names of Delta's errors about another writer's commit.
_INTERRUPTED = ("Concurrent", "MetadataChanged", "ProtocolChanged", "DeltaConcurrent")
_CHANGED = "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS"
_BY_NAME = {"delta.columnMapping.mode": "name"}
#: Folders here that have other URIs in a session on Databricks.
_MOUNTS = ("/Volumes/", "/dbfs/")
#: What the error in Spark says of keys that several records share; and the hint.
_MANY, _TELL_APART = "are the keys of more than one record", "give keys that tell the records apart."
_TWICE = re.compile(rf"{{.*?}} {_MANY}")
#: Texts that Delta takes for null in the columns of partitions, and what Spark says of them. Bytes, which are
#: shown as hexadecimal digits, are stored as text there, too.
_NULLS = ("", "__HIVE_DEFAULT_PARTITION__")
_AS_NULL = re.compile(rf"'({'|'.join(_NULLS)})' in column {{.*?}}, which Delta stores as null")
_NOT_NULL = 'partition by other columns, or write null: select("*", k="nullif(k, \'\')").'
_AS_TEXT = re.compile(r"'[0-9A-F]*' in column {.*?}, which Delta stores as text")
_NOT_TEXT = 'partition by other columns, or by their digits: select("*", k="hex(k)").'
#: What Delta says of records that the table's constraints refuse, and of columns that it does not have.
_REFUSED = re.compile(r"(CHECK constraint .+ violated by row with values:(\n - .+)*|NOT NULL constraint .+)")
_MEND = "let ALTER TABLE drop the constraint, and start again: the epoch waits."
_OTHERS = re.compile(
    r"(A schema mismatch detected when writing|Cannot resolve .+ clause given columns .+"
    r"|Failed to merge fields '.+' and '.+')"
)
_FORGETS = (
    "if this catalog forgets its tables when the session ends, write to a path, or configure one that keeps "
    "them; else write to another table, or empty the place."
)
#: Columns such as `${cost}` keep their names.
_AS_WRITTEN = {"spark.sql.variable.substitute": "false"}
_RESTORE = "restore the columns of the table, and start again: the epoch waits."


@dataclass
class DeltaSink(Sink):
    """Writes to a Delta table: without `keys` a log of all records, with `keys` a current table (upserts).

    Exactly once: each delivery is one Delta transaction with an application id and a version, and Delta skips
    a transaction that it already has. The application id has the checkpoint's id; the output's name, because
    two outputs may write the same epoch to one table; and the kind of release, because batches and epochs are
    numbered differently. The version is the epoch. With keys the last record of a key in an epoch counts;
    with `diff` a key without a record is deleted, and a key with two records is an error. The fields are the
    arguments of `Stream.to_delta`.
    """

    target: str
    keys: Sequence[str] = ()
    diff: str | None = None
    #: whether to replace a table that another checkpoint has written; or the ids of such checkpoints
    overwrite: bool | frozenset[str] = False
    #: whether the table has a column of epochs; None means as in the existing table
    epoch: bool | None = None
    layout: TableLayout = field(default_factory=TableLayout)
    confs: ClassVar[Mapping[str, str]] = DELTA
    grouped: ClassVar[bool] = True
    _app: str = ""
    _own: Mapping[str, str] = field(default_factory=dict)
    #: the table's properties, before this output has it; None if there is no table
    _present: Mapping[str, str] | None = None
    #: whether the table has, or gets, a column of epochs
    _has_epoch: bool = False
    _columns: list[str] = field(default_factory=list)
    #: the columns of the table when the output has claimed it
    claimed: StructType | None = None
    #: where the table is, if on the local file system
    _folder: str | None = None
    #: whether versions are epochs; else they are batches
    _by_epoch: bool = True
    _history: DeltaHistory | None = None
    #: the columns by which the table is partitioned; None until they are needed
    _partitions: Sequence[str] | None = None

    @property
    def place(self) -> str:
        return self.target

    # -- at start --------------------------------------------------------------------------------------------
    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        columns = every_name(output.schema) if self.keys else self.layout.cluster_by
        check_names_of_spark(output, [self.target, *columns])
        self._app, self._own = f"timely/{identity}/{output.name}/{output.release}", {_OWNER: identity}
        self._by_epoch = output.release == "epoch"
        configured = "delta" in (session.conf.get("spark.sql.extensions", "") or "").lower()
        if not configured or find_spec("delta") is None:
            msg = f"{self.target}: this Spark session has no Delta Lake."
            hint = (
                "timely_spark.configure(SparkSession.builder, delta=True), and install timely-spark[delta]."
            )
            raise OutputMismatch(msg, hint=hint)
        self._folder = self._local_folder(session)
        self._present = self._properties(session)
        if output.resumed:
            self._check_own(self._present)
        if self._present is None:
            self.claimed = self._schema(output, [])
            return
        table = self._table(session)
        self._check_table(table, self._present, output)
        self._history = self._located(table)
        if not self.replaces:
            self._history.begin(own=self._present.get(_OWNER) == identity, delivered=output.resumed)
        self._check_whole(session)

    @property
    def is_made(self) -> bool:
        """Whether `claim` makes or replaces the table."""
        return self._present is None or self.replaces

    def resolved(self, session: SparkSession) -> str:
        """Where the table is; the whole name of one that is to be made in a catalog."""
        place = self.target if self._history is None else self._history.table
        if self._history is None and not self.is_path:
            catalog = session.catalog
            return table_name(place, (catalog.currentCatalog(), catalog.currentDatabase())).lower()
        try:
            return real_place(place)
        except BadLocation:  # on a file system of Spark's only
            return place.rstrip("/")

    def check_beside(self, session: SparkSession, output: Output, first: Output) -> None:
        """Refuse the table if it will not have this output's columns and partitions."""
        before = first.sink
        if not isinstance(before, DeltaSink):
            super().check_beside(session, output, first)
        elif self.is_made:  # else it stays as it was checked
            assert before.claimed is not None
            schema = self._schema(output, before.claimed.names)
            what = f"Output {output.name!r}: {self.target} is also the table of output {first.name!r},"
            hint = "write to another table, or give both outputs the same columns and partition_by."
            self._check_columns(before.claimed, schema, what=f"{what} with columns", hint=hint)
            partitions: Sequence[str] = before.layout.partition_by
            if not before.is_made:
                partitions = self._table(session).detail().collect()[0]["partitionColumns"]
            self._check_partitions(partitions, what=what, hint=hint)

    def claim(self, session: SparkSession, output: Output) -> None:
        """Create the table, or make the existing one this output's."""
        mapping = _BY_NAME if any(map(_ODD.search, every_name(output.schema))) else {}
        present, new = self._present, self.is_made
        if present is None:
            present = self._make(session, self._schema(output, []), {**self._own, **mapping})
        elif self.replaces:
            present = self._properties(session) or {}
        table = self._table(session)
        if new:  # perhaps another output of the flow has made or replaced it
            schema = self._check_table(table, present, output)
            if self.replaces:
                self._overwrite(session, schema, self._own, mapping)
        if _OWNER not in present and not self.replaces:  # a table that the user made for this output
            self._set(session, self._own)
        if replace(self.layout, partition_by=()) != TableLayout():
            self._lay_out(session, table)
        if output.lacks and present.get(_LACKS) != output.lacks:
            self._set(session, {_LACKS: output.lacks})
        if new:
            self._history = self._located(table)
            self._history.begin(own=not self.replaces, delivered=output.resumed)

    def _check_table(self, table: DeltaTable, present: Mapping[str, str], output: Output) -> StructType:
        """Refuse the table if this output may not write to it; returns the columns that it must have."""
        owner, identity, frame = present.get(_OWNER), self._own[_OWNER], table.toDF()
        schema = self._schema(output, frame.columns)
        self.replaces = owner != identity and self._may_replace(owner)
        if not self.replaces:
            if owner not in {None, identity}:
                raise TableTaken.by(self.target, other=owner, own=identity)
            other = "write to another table" + ", or pass overwrite=True" * (owner is None)
            lost = "restore the columns of the table, or begin with a new checkpoint and another table."
            hint = lost if output.resumed else f"{other}."
            # users may add columns to a table that a flow has made
            more, what = owner is not None, f"{self.target} exists with columns"
            self._check_columns(frame.schema, schema, what=what, hint=hint, more=more)
            if self.layout.partition_by:
                partitions = table.detail().collect()[0]["partitionColumns"]
                hint = f"{other}, or leave partition_by out."
                self._check_partitions(partitions, what=f"{self.target} is", hint=hint)
        self.claimed = schema if self.replaces else frame.schema
        return schema

    def _located(self, table: DeltaTable) -> DeltaHistory:
        """The history of the table, of which Delta computes the state to say where it is."""
        place = Path(self._folder).as_uri() if self._folder else str(table.detail().collect()[0]["location"])
        self._folder = local_folder(place)
        return DeltaHistory(place, self._app)

    def written(self, most: int) -> pa.Table | None:
        """Rows of a file that the last commit has added; an upsert adds rows that were there, too."""
        return (
            None
            if self._folder is None or self._history is None
            else self._history.written(self._folder, most)
        )

    def last(self) -> int:
        """The last transaction of this output, as the table's log says."""
        return -1 if self._history is None else self._history.last

    def _may_replace(self, owner: str | None) -> bool:
        return owner in self.overwrite if isinstance(self.overwrite, frozenset) else bool(self.overwrite)

    def _schema(self, output: Output, present: Sequence[str]) -> StructType:
        """The table's columns: those of the stream, without its diff in a current table, and the epoch.

        Args:
            present: the columns of the table; none if it is to be made.
        """
        columns = [f for f in output.schema if not self.keys or f.name != self.diff]
        self._columns = [field.name for field in columns]
        self._has_epoch = bool(self.epoch)
        if self.epoch is None:
            self._has_epoch = not self.keys or EPOCH in set(present) - set(self._columns)
        schema = pa.schema(columns)
        return with_epoch(self.target, schema)[0] if self._has_epoch else spark_schema(schema)

    def _check_columns(
        self, present: StructType, schema: StructType, *, what: str, hint: str, more: bool = True
    ) -> None:
        columns = [f"{f.name} {f.dataType.simpleString()}" for f in present]
        expected = [f"{f.name} {f.dataType.simpleString()}" for f in schema]
        if not set(expected) <= set(columns) or (not more and columns != expected):
            msg = f"{what} {columns}; the stream writes {expected}."
            raise OutputMismatch(msg, hint=hint)

    def _check_partitions(self, present: Sequence[str], *, what: str, hint: str) -> None:
        columns = [*self.layout.partition_by]
        if columns and columns != [*present]:
            msg = f"{what} partitioned by {[*present]}; to_delta has partition_by={columns}."
            raise OutputMismatch(msg, hint=hint)

    def _lay_out(self, session: SparkSession, table: DeltaTable) -> None:
        """Give the table the clustering, comment and properties of the layout."""
        layout, detail = self.layout, table.detail().collect()[0]
        if layout.cluster_by and [*layout.cluster_by] != detail["clusteringColumns"]:
            columns = ", ".join(map(identifier, layout.cluster_by))
            session.sql(f"ALTER TABLE {self._sql} CLUSTER BY ({columns})")
        if layout.comment is not None and layout.comment != detail["description"]:
            session.sql(f"COMMENT ON TABLE {self._sql} IS {literal(layout.comment)}")
        present = detail["properties"]
        if new := {key: text for key, text in layout.properties.items() if present.get(key) != text}:
            self._set(session, new)

    # -- per epoch -------------------------------------------------------------------------------------------
    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write one transaction, or none if there are no records."""
        parts = [part for part in parts if not part.is_empty]
        if not parts:
            return
        self._check_whole(session)
        if self._history is not None and self._history.is_shared(version):
            raise OutputMismatch.shared(self.target)
        # a batch that ran again may have ended later than before, and its epochs come in other groups; the
        # run before may even have committed some since this run began
        committed = self._history.last if self._by_epoch and self._history is not None else -1
        parts = [part for part in parts if part.epoch > committed]
        if not parts:
            return
        records = None
        if not any(part.is_large for part in parts):
            records = pa.concat_tables([with_epoch_column(part.table, part.epoch, STAMP) for part in parts])
        if self.keys:
            self._upsert(session, version, parts, records)
            return
        if records is not None and self._folder is not None:
            table = records.select([STAMP, *self._columns]).rename_columns([EPOCH, *self._columns])
            if appended(self._folder, _cast(table), self._app, version, self._own):
                return
        frame = _with_epochs(session, parts).withColumnRenamed(STAMP, EPOCH)
        frame = self._partitioned(session, frame.select(*map(identifier, [EPOCH, *self._columns])))
        writer = frame.write.format("delta").mode("append")
        writer = writer.option("txnAppId", self._app).option("txnVersion", version)

        def append() -> None:
            # each time: the commit in between may have been of another table
            self._check_own(self._properties(session))
            self._save(writer)

        try:
            _tried(append)
        except Exception as error:
            self._explain(error)
            raise

    def _upsert(self, session: SparkSession, version: int, parts: Parts, records: pa.Table | None) -> None:
        """Write the last records of the keys; the `records` of large parts are read by tasks."""
        upsert = Upsert(keys=self.keys, diff=self.diff, columns=self._columns, epoch=self._has_epoch)
        if records is None:
            frame = upsert.last_of(_with_epochs(session, parts, order=PLACE))
        else:
            last = _cast(upsert.last(records))
            app, owner = self._app, self._own
            if self._folder and upserted(self._folder, last, upsert, app=app, version=version, owner=owner):
                return
            frame = to_frame(session, last)
        frame = self._partitioned(session, frame)
        # MERGE reads the transaction from the session's settings; only this query writes with its session
        pair = {f"{_TXN}AppId": self._app, f"{_TXN}Version": str(version)}
        with applied(session, pair) as refused:
            if refused:
                why = "; ".join(refused)
                msg = f"{self.target}: an epoch cannot be written exactly once, because {why}."
                hint = "allow these settings; or leave out to_delta(keys=...): appends do not need them."
                raise OutputMismatch(msg, hint=hint)
            try:
                _tried(lambda: self._merge(session, frame, upsert).execute())
            except Exception as error:
                self._explain(error)
                raise

    def _partitioned(self, session: SparkSession, frame: DataFrame) -> DataFrame:
        """The frame, which fails at a value that Delta stores as another one in a column of partitions."""
        from pyspark.sql.functions import col, concat, is_valid_utf8, lit, raise_error, when
        from pyspark.sql.functions import hex as hexadecimal

        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        texts = {name for name, kind in kinds.items() if kind in {"string", "binary"}}
        if texts and self._partitions is None:  # those of a table that the user made are not in the layout
            self._partitions = self._table(session).detail().collect()[0]["partitionColumns"]
        for name in texts & {*(self._partitions or ())}:
            value = col(identifier(name))
            text = value.cast("string")
            lost, shown, stored = text.isin(*_NULLS), text, "null"
            if kinds[name] == "binary":
                lost, shown, stored = lost | ~is_valid_utf8(text), hexadecimal(value), "text"
            # an error that shows the plan does not have this text: the column is in it
            message = concat(lit("'"), shown, lit(f"' in column {{{name}}}, which Delta stores as {stored}"))
            failing = raise_error(message).cast(kinds[name])
            frame = frame.withColumn(name, when(lost, failing).otherwise(value))
        return frame

    def _explain(self, error: Exception) -> None:
        """Raise what is wrong with the records, or with the table for them."""
        hints = {_TWICE: _TELL_APART, _AS_NULL: _NOT_NULL, _AS_TEXT: _NOT_TEXT, _REFUSED: _MEND}
        hints[_OTHERS] = _RESTORE
        for text, hint in hints.items():
            if (match := text.search(str(error))) is not None:
                msg = f"{self.target}: {match[0]}"
                raise SchemaError(msg, hint=hint) from error

    def _merge(self, session: SparkSession, frame: DataFrame, upsert: Upsert) -> DeltaMergeBuilder:
        """The upsert of an epoch's last records into the table as it is now, if it is still this output's."""
        self._check_own(self._properties(session))
        merge = self._table(session).alias("t").merge(frame.alias("s"), upsert.same)
        key = ", ".join(identifier("s", key) for key in self.keys)
        for clause in upsert.clauses(f"raise_error(concat(to_json(struct({key})), ' {_MANY}'))"):
            if not clause.matched:
                merge = merge.whenNotMatchedInsert(clause.condition, dict(clause.values or {}))
            elif clause.values is None:
                merge = merge.whenMatchedDelete(clause.condition)
            else:
                merge = merge.whenMatchedUpdate(clause.condition, dict(clause.values))
        return merge

    def _check_whole(self, session: SparkSession) -> None:
        """Fail if another writer removed epochs that Delta still counts as committed."""
        if self._history is not None and not self._history.is_complete():
            self._check_own(self._properties(session))
            raise OutputMismatch.taken_away(self.target)

    # -- the table -------------------------------------------------------------------------------------------
    @property
    def is_path(self) -> bool:
        """Whether the table is given by its folder."""
        return "/" in self.target or "\\" in self.target

    @property
    def _sql(self) -> str:
        return identifier("delta", self.target) if self.is_path else table_name(self.target)

    def _exists(self, session: SparkSession) -> bool:
        from delta.tables import DeltaTable

        if self.is_path:
            return DeltaTable.isDeltaTable(session, self.target)
        return session.catalog.tableExists(self._sql)

    def _table(self, session: SparkSession) -> DeltaTable:
        from delta.tables import DeltaTable

        if self.is_path:
            return DeltaTable.forPath(session, self.target)
        return DeltaTable.forName(session, self._sql)

    def _local_folder(self, session: SparkSession) -> str | None:
        """The folder of a table that a path names; None if it may be on another machine, or is not there."""
        folder = self.is_path and on_one_machine(session) and not self.target.startswith(_MOUNTS)
        return self.target if folder and Path(self.target, "_delta_log").is_dir() else None

    def _properties(self, session: SparkSession) -> Mapping[str, str] | None:
        """The table's properties; None if there is no table."""
        own = None if self._folder is None else properties(self._folder)
        if own is None and self._exists(session):
            own = dict(map(tuple, session.sql(f"SHOW TBLPROPERTIES {self._sql}").collect()))
        return own

    def _save(self, writer: DataFrameWriter) -> None:
        if self.is_path:
            writer.save(self.target)
        else:
            writer.saveAsTable(self._sql)

    def _make(
        self, session: SparkSession, schema: StructType, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Create the table, if nobody else has meanwhile; returns its properties."""
        from pyspark.errors import AnalysisException

        if self.is_path:
            remove_begun(self.target)
        columns = ", ".join(f"{identifier(field.name)} {_ddl(field.dataType)}" for field in schema)
        text = f"CREATE TABLE IF NOT EXISTS {self._sql} ({columns}) USING delta"
        if self.layout.partition_by:
            text += f" PARTITIONED BY ({', '.join(map(identifier, self.layout.partition_by))})"
        try:
            with applied(session, _AS_WRITTEN):
                session.sql(f"{text} TBLPROPERTIES ({_listed(properties)})")
        except AnalysisException as error:
            if "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION" not in str(error):
                raise
            msg = f"The catalog has no table {self.target}, but files at its place: {error}"
            raise OutputMismatch(msg, hint=_FORGETS) from error
        self._folder = self._local_folder(session)
        if (present := self._properties(session)) is None:  # Spark leaves a folder of other files alone
            hint = "write to another folder (the checkpoint is not in the table's), or empty this one."
            msg = f"{self.target} is not empty and not a Delta table."
            raise OutputMismatch(msg, hint=hint)
        return present

    def _overwrite(
        self, session: SparkSession, schema: StructType, owner: Mapping[str, str], mapping: Mapping[str, str]
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        if mapping:
            self._set(session, mapping)
        rows = to_arrow_schema(schema, timezone="UTC").empty_table()
        # the rows before the owner: if the process stops in between, the next start overwrites again
        empty = to_frame(session, rows).write.format("delta").mode("overwrite")
        if self.layout.partition_by:
            empty = empty.partitionBy(*self.layout.partition_by)
        self._save(empty.option("overwriteSchema", "true"))
        self._set(session, owner)

    def _set(self, session: SparkSession, properties: Mapping[str, str]) -> None:
        session.sql(f"ALTER TABLE {self._sql} SET TBLPROPERTIES ({_listed(properties)})")


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())


def _ddl(kind: DataType) -> str:
    """A type in Spark's DDL, in which `simpleString` quotes no names. All values may be null."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{identifier(field.name)}: {_ddl(field.dataType)}' for field in kind)}>"
    # what `timestamp` is, a setting of the session decides
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString()


def _cast(records: pa.Table) -> pa.Table:
    """The records in the types that Spark and files use."""
    return records.cast(arrow_schema(records.schema))


def _with_epochs(session: SparkSession, parts: Parts, *, order: str | None = None) -> DataFrame:
    """The records of all deliveries, with a column of their epochs."""
    from pyspark.sql import DataFrame
    from pyspark.sql.functions import lit

    frames = [
        part.frame(session, order=order).withColumn(STAMP, lit(part.epoch).cast("long")) for part in parts
    ]
    return reduce(DataFrame.unionAll, frames)


def _tried(write: Callable[[], object], tries: int = 10) -> None:
    """Write, again if a commit of another writer, such as OPTIMIZE or ALTER TABLE, came in between.

    Delta skips a transaction that was committed in spite of the error.
    """
    try:
        write()
    except Exception as error:
        interrupted = type(error).__name__.startswith(_INTERRUPTED) or _CHANGED in str(error)
        if tries == 1 or not interrupted:
            raise
        _tried(write, tries - 1)
