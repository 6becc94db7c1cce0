"""Epochs into a Delta table, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from timely_spark.runtime.errors import OutputMismatch, TableTaken
from timely_spark.runtime.session import DELTA
from timely_spark.runtime.sinks import EPOCH, Output, Parts, stamped, to_frame, with_epoch

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

_OWNER = "timely_spark.checkpoint"
_TXN = "spark.databricks.delta.write.txn"


@dataclass
class DeltaSink:
    """Writes to a Delta table: without `keys` a log of all that came, with `keys` a current table (upserts).

    Exactly once: each delivery is one Delta transaction with the pair (this checkpoint's id and the output's
    name, epoch), which Delta skips when it has it already. With keys the last record of a key in an epoch
    counts; with `diff` a key whose record only ceased to be is deleted.

    Columns:
        epoch long (with keys: the epoch of the last change), then the stream's own; `diff` without keys only

    Args:
        target: a path, a `file:` or cloud URI, or `catalog.schema.table`.
        keys: the columns that identify a row of the current table.
        diff: the column that says +1 for a record that became true and -1 for one that ceased to be.
        overwrite: replace a table that a flow with another checkpoint wrote.
    """

    target: str
    keys: tuple[str, ...] = ()
    diff: str | None = None
    overwrite: bool = False
    #: For the query's own session.
    confs: ClassVar[Mapping[str, str]] = DELTA
    _app: str = ""
    _columns: list[str] = field(default_factory=list)

    # -- at start --------------------------------------------------------------------------------------------
    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Makes the table, so that a stream without data leaves an empty one, or checks the one there."""
        schema, names = with_epoch(self.target, output.schema)
        missing = [key for key in self.keys if key not in names]
        if missing:
            raise OutputMismatch.keys(self.target, missing, names)
        if self.keys and self.diff is not None:
            names.remove(self.diff)
            schema = type(schema)([f for f in schema.fields if f.name != self.diff])
        self._app, self._columns = f"timely/{identity}/{output.name}", names
        try:
            import delta  # noqa: F401
        except ImportError as error:
            raise OutputMismatch.no_delta(self.target) from error
        if "delta" not in (session.conf.get("spark.sql.extensions", "") or "").lower():
            raise OutputMismatch.no_delta(self.target)
        if not self._exists(session):
            self._make(session, schema, identity)
            return
        table = self._table(session)
        owner = table.detail().collect()[0]["properties"].get(_OWNER)
        found = table.toDF().schema
        if owner == identity:
            return
        if self.overwrite:
            # the rows first: stopped between the two, the next start finds the old owner and overwrites again
            empty = session.createDataFrame([], schema).write.format("delta").mode("overwrite")
            self._save(empty.option("overwriteSchema", "true"))
            self._own(session, identity)
        elif owner is not None:
            raise TableTaken.by(self.target, found=owner, mine=identity)
        elif [(f.name, f.dataType) for f in found] != [(f.name, f.dataType) for f in schema]:
            raise OutputMismatch.columns(
                self.target,
                found=[f"{f.name} {f.dataType.simpleString()}" for f in found],
                expected=[f"{f.name} {f.dataType.simpleString()}" for f in schema],
            )
        else:  # the user's own, made for this
            self._own(session, identity)

    # -- per epoch -------------------------------------------------------------------------------------------
    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """One transaction, or none where there is nothing to write."""
        table = stamped(parts)
        if table.num_rows == 0:
            return
        if self.keys:
            self._upsert(session, version, table)
            return
        writer = to_frame(session, table.select([EPOCH, *self._columns])).write.format("delta").mode("append")
        writer = writer.option("txnAppId", self._app).option("txnVersion", version)
        self._save(writer)

    def complete(self) -> None:
        """Nothing to tell."""

    def _upsert(self, session: SparkSession, version: int, table: pa.Table) -> None:
        frame = to_frame(session, _last_per_key(table, self.keys, self.diff))
        same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in self.keys)
        values: dict[str, str | Column] = {f"`{name}`": f"s.`{name}`" for name in [EPOCH, *self._columns]}
        merge = self._table(session).alias("t").merge(frame.alias("s"), same)
        # released on arrival, an older epoch may come after a newer one
        newer = f"s.`{EPOCH}` >= coalesce(t.`{EPOCH}`, s.`{EPOCH}`)"
        if self.diff is not None:
            merge = merge.whenMatchedDelete(f"s.`{self.diff}` < 0 AND {newer}")
            merge = merge.whenMatchedUpdate(newer, values)
            merge = merge.whenNotMatchedInsert(f"s.`{self.diff}` > 0", values)
        else:
            merge = merge.whenMatchedUpdate(newer, values).whenNotMatchedInsert(values=values)
        with _transaction(session, self._app, version):
            merge.execute()

    # -- the table -------------------------------------------------------------------------------------------
    @property
    def _is_path(self) -> bool:
        return "/" in self.target or "\\" in self.target

    @property
    def _sql(self) -> str:
        return f"delta.`{self.target}`" if self._is_path else self.target

    def _exists(self, session: SparkSession) -> bool:
        from delta.tables import DeltaTable

        return (
            DeltaTable.isDeltaTable(session, self.target)
            if self._is_path
            else session.catalog.tableExists(self.target)
        )

    def _table(self, session: SparkSession) -> DeltaTable:
        from delta.tables import DeltaTable

        return (
            DeltaTable.forPath(session, self.target)
            if self._is_path
            else DeltaTable.forName(session, self.target)
        )

    def _save(self, writer: DataFrameWriter) -> None:
        if self._is_path:
            writer.save(self.target)
        else:
            writer.saveAsTable(self.target)

    def _make(self, session: SparkSession, schema: StructType, identity: str) -> None:
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema.fields)
        owner = f"TBLPROPERTIES ('{_OWNER}' = '{identity}')"
        session.sql(f"CREATE TABLE {self._sql} ({columns}) USING delta {owner}")

    def _own(self, session: SparkSession, identity: str) -> None:
        session.sql(f"ALTER TABLE {self._sql} SET TBLPROPERTIES ('{_OWNER}' = '{identity}')")


def _last_per_key(table: pa.Table, keys: tuple[str, ...], diff: str | None) -> pa.Table:
    """One row per key, the last; of a change, a -1 of the old and a +1 of the new record, the +1."""
    ranked = [*keys, EPOCH, *([diff] if diff is not None else [])]
    numbered = table.select(ranked).append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    numbered = numbered.sort_by([(column, "ascending") for column in [*ranked, "_row"]])
    last = numbered.group_by(list(keys), use_threads=False).aggregate([("_row", "last")])
    return table.take(last["_row_last"].combine_chunks().sort())


@contextmanager
def _transaction(session: SparkSession, app: str, version: int) -> Iterator[None]:
    """MERGE takes the pair from the session only: the query's own, with which no one else writes."""
    session.conf.set(f"{_TXN}AppId", app)
    session.conf.set(f"{_TXN}Version", str(version))
    try:
        yield
    finally:
        session.conf.unset(f"{_TXN}AppId")
        session.conf.unset(f"{_TXN}Version")
