"""Small epochs are written to local Delta tables without a job of Spark's, by the library deltalake.

A job of Spark's that appends a few rows takes a quarter of a second, and its MERGE a second or two. Here an
append takes some ten milliseconds; an upsert takes longer, the larger the table is.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph.quoting import identifier
from timely_spark.runtime.sinks.sink import STAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalake import CommitProperties, DeltaTable

    from timely_spark.runtime.sinks.delta_upsert import Upsert

#: Spark upserts into tables of more bytes of files than this; a small file takes the time of so many bytes.
LARGEST, SMALL_FILE = 32 << 20, 32 << 10
#: Spark upserts into tables of more columns: the time in which deltalake plans grows with their square.
WIDEST = 200

#: What a table may require of its writers; Spark writes tables with other features.
_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
#: The base exceptions that end a process; a panic of Rust's, which is caught, is one, too.
_INTERRUPTS = (KeyboardInterrupt, SystemExit)
_log = logging.getLogger(__name__)


def local_folder(location: str) -> str | None:
    """The local folder of a table, from Spark's location of it; None if it is on another file system.

    Example:
        >>> local_folder("file:/tmp/a%20table"), local_folder("s3://bucket/table")
        ('/tmp/a table', None)
    """
    uri = urlsplit(location)
    return unquote(uri.path) if uri.scheme == "file" and not uri.netloc else None


def appended(folder: str, records: pa.Table, app: str, version: int, owner: Mapping[str, str]) -> bool:
    """Append records as transaction `version` of `app`, if the table lacks it; whether the table has it then.

    The table has the properties `owner` and the columns of the records, and no properties of Delta's, no
    constraints, no partitions and no newer features: Spark writes all other tables, and records with NaN,
    which statistics of deltalake leave out, so that readers would skip them. If the append fails, Spark
    repeats it; Delta ignores the repeat if the first attempt was committed.
    """

    def append(table: DeltaTable, once: CommitProperties) -> bool:
        from deltalake import write_deltalake

        if [field.name for field in table.schema().fields] != records.schema.names:
            return False
        write_deltalake(table, records, mode="append", commit_properties=once)
        return True

    return _is_committed(folder, records, append, app=app, version=version, owner=owner)


def upserted(
    folder: str, records: pa.Table, upsert: Upsert, *, app: str, version: int, owner: Mapping[str, str]
) -> bool:
    """Upsert the last records of keys as transaction `version` of `app`; otherwise as `appended`.

    Spark also upserts into larger tables, into files that have NaN, and by keys that DataFusion compares in
    another way than Spark.
    """

    def merge(table: DeltaTable, once: CommitProperties) -> bool:
        if any(map(_compares_otherwise, records.select(upsert.keys).schema.types)):
            return False
        if len(table.schema().fields) > WIDEST:
            return False
        files = pa.table(table.get_add_actions(flatten=True))  # with their statistics
        if sum(max(size, SMALL_FILE) for size in files["size_bytes"].to_pylist()) > LARGEST:
            return False
        if any(map(_has_nan, files.columns)):
            return False
        merging = table.merge(
            records, upsert.same, source_alias="s", target_alias="t", commit_properties=once
        )
        for clause in upsert.clauses(_failing(upsert.keys[0])):
            if not clause.matched:
                merging = merging.when_not_matched_insert(dict(clause.values or {}), clause.condition)
            elif clause.values is None:
                merging = merging.when_matched_delete(clause.condition)
            else:
                merging = merging.when_matched_update(dict(clause.values), clause.condition)
        merging.execute()
        return True

    return _is_committed(folder, records, merge, app=app, version=version, owner=owner)


def _is_committed(
    folder: str,
    records: pa.Table,
    write: Callable[[DeltaTable, CommitProperties], bool],
    *,
    app: str,
    version: int,
    owner: Mapping[str, str],
) -> bool:
    if find_spec("deltalake") is None or any(map(_has_nan, records.columns)):
        return False
    from deltalake import CommitProperties, DeltaTable, Transaction

    try:
        table = DeltaTable(folder)
        if not _is_plain(table) or not owner.items() <= table.metadata().configuration.items():
            return False
        last = table.transaction_version(app)
        if last is not None and last >= version:
            return True
        return write(table, CommitProperties(app_transactions=[Transaction(app, version)]))
    except _INTERRUPTS:
        raise
    except BaseException as error:  # noqa: BLE001 - an error of Arrow's is one of Python's, of many kinds
        _log.warning("%s: deltalake could not write, Spark does: %s", folder, error)
        return False


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Whether a column, or a field of its structs, has NaN; the statistics have no elements of arrays."""
    if pa.types.is_struct(column.type):
        return any(_has_nan(pc.struct_field(column, n)) for n in range(column.type.num_fields))
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _compares_otherwise(kind: pa.DataType) -> bool:
    """Whether deltalake compares a key's type differently from Spark, where NaN is NaN and -0.0 is 0.0."""
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _failing(key: str) -> str:
    """An expression of the type of a key, which fails."""
    text = f"concat('more than one record of ', CAST({identifier('s', STAMP)} AS STRING))"
    return f"CASE WHEN CAST({text} AS BIGINT) IS NULL THEN {identifier('s', key)} END"


def properties(folder: str) -> dict[str, str] | None:
    """The properties of a Delta table; None if deltalake cannot read them, or is not installed."""
    if find_spec("deltalake") is None:
        return None
    from deltalake import DeltaTable

    try:
        return dict(DeltaTable(folder).metadata().configuration)
    except _INTERRUPTS:
        raise
    except BaseException:  # noqa: BLE001 - as above; Spark reads them
        return None


def _is_plain(table: DeltaTable) -> bool:
    """Whether an append of columns is all that a write to the table takes."""
    protocol, metadata = table.protocol(), table.metadata()
    features = set(protocol.writer_features or ())
    schema = table.schema().to_json().replace(" ", "")
    return (
        (protocol.min_writer_version <= 2 or (protocol.min_writer_version == 7 and features <= _FEATURES))
        and not metadata.partition_columns
        and not any(key.startswith("delta.") for key in metadata.configuration)
        and '"nullable":false' not in schema
        and '"metadata":{"' not in schema  # computed columns, constraints, comments
    )
