"""Small epochs are appended to local Delta tables without a job of Spark's, by the library deltalake.

A job of Spark's that appends a few rows takes a quarter of a second; this takes some ten milliseconds.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from deltalake import DeltaTable

#: What a table may require of its writers; Spark writes tables with other features.
_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
_log = logging.getLogger(__name__)


def local_folder(location: str) -> str | None:
    """The folder of a table whose location Spark tells, if it is on the local file system.

    Example:
        >>> local_folder("file:/tmp/a%20table"), local_folder("s3://bucket/table")
        ('/tmp/a table', None)
    """
    uri = urlsplit(location)
    return unquote(uri.path) if uri.scheme == "file" and not uri.netloc else None


def appended(folder: str, records: pa.Table, app: str, version: int, owner: Mapping[str, str]) -> bool:
    """Whether a Delta table has transaction `version` of `app`: it is written if it is not there.

    The table has the properties `owner` and the columns of the records, and no properties of Delta's, no
    constraints, no partitions and no newer features: Spark writes all other tables. If the append fails,
    Spark repeats it; Delta ignores the repeat if the first attempt was committed.
    """
    if find_spec("deltalake") is None:
        return False
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(folder)
        if not _is_plain(table) or not owner.items() <= table.metadata().configuration.items():
            return False
        if [field.name for field in table.schema().fields] != records.schema.names:
            return False
        last = table.transaction_version(app)
        if last is None or last < version:
            once = CommitProperties(app_transactions=[Transaction(app, version)])
            write_deltalake(table, records, mode="append", commit_properties=once)
    except (DeltaError, OSError) as error:
        _log.warning("%s: deltalake could not append, Spark does: %s", folder, error)
        return False
    return True


def properties(folder: str) -> dict[str, str] | None:
    """The properties of a Delta table; None if deltalake cannot read them, or is not installed."""
    if find_spec("deltalake") is None:
        return None
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return dict(DeltaTable(folder).metadata().configuration)
    except (DeltaError, OSError):
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
