"""`DeltaLog`: a Delta table by its log: the files that each version adds and removes.

Tables whose files alone do not say what is in them are refused: those with deletion vectors, column mapping,
or another feature that readers must know.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from timely_spark.graph import as_schema, caller, describe, refuse
from timely_spark.graph.quoting import identifier, table_name
from timely_spark.runtime.errors import BadFile, TableUnsupported
from timely_spark.runtime.session import active_session
from timely_spark.runtime.sinks.delta_history import COMMIT
from timely_spark.runtime.sources.arrivals import File, FileValues
from timely_spark.runtime.sources.begin import MILLISECOND, UNIX_EPOCH, Begin
from timely_spark.runtime.sources.folder import FileSource, Folder
from timely_spark.state.bounds import parse_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from timely_spark.errors import Where

#: The column of a change's sign.
DIFF = "diff"
#: The column of a file of changes that has the kind of each change.
CHANGE = "_change_type"
#: Features that do not change how files are read. Of column mapping, only the mode "none" does not.
_HARMLESS = {"timestampNtz", "vacuumProtocolCheck", "columnMapping"}
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")

#: What an action that removes a file may lack.
_OPTIONAL = ("size", "partitionValues")
_VECTORS, _OUTSIDE = "has deletion vectors", "has files outside of its folder"

DeltaAction = dict[str, Any]
"""An action in a commit of Delta's log: that a file is added or removed, or the metadata."""


@dataclass(frozen=True)
class DeltaLog:
    """The log of a table. With `changes`, its rows have their sign in the column `diff`.

    Methods raise `BadFile` if a version is missing or does not fit the flow, and `TableUnsupported` if the
    table needs Spark's reader.
    """

    folder: Folder
    changes: bool

    # -- the log ---------------------------------------------------------------------------------------------
    def newest(self) -> int:
        """The newest version."""
        if versions := [int(match[1]) for name in self._names() if (match := COMMIT.fullmatch(name))]:
            return max(versions)
        msg = f"{self.folder.path} is not a Delta table"
        raise self.folder.error(msg, "give the folder that has _delta_log.")

    def check_reachable(self, version: int) -> None:
        """Check that a version comes, if the log does not have it: it may have been removed."""
        if self.has(version):
            return
        if (newest := self.newest()) >= version:
            msg = f"version {version} of {self.folder.path} is no longer in its log"
            raise self.folder.error(msg, "start from the newest version, with a new checkpoint.")
        if newest < version - 1:
            raise self._recreated(version - 1)

    def commit_id(self, version: int) -> str | None:
        """A version's fingerprint, which a recreated table does not have; None if the log lacks it."""
        if not self.has(version):
            return None
        path = self.commit(version)
        with self.folder.reading(path), self.folder.place[0].open_input_stream(path) as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]

    def check_same(self, version: int, commit: str | None) -> None:
        """Check that a version still has the `commit_id` that it had; an unknown one, None, fits any."""
        if commit is not None and self.commit_id(version) not in {None, commit}:
            raise self._recreated(version)

    def _recreated(self, version: int) -> BadFile:
        msg = f"{self.folder.path} has not version {version} that was read: the table was recreated"
        return self.folder.error(msg, "begin with a new checkpoint.")

    def has(self, version: int) -> bool:
        """Whether the log has the version."""
        system, _ = self.folder.place
        return bool(system.get_file_info(self.commit(version)).type == fs.FileType.File)

    def schema(self) -> pa.Schema:
        """The columns of the newest version."""
        _, metadata = self._state(self.newest())
        schema = _columns(metadata)
        return schema.append(pa.field(DIFF, pa.int64())) if self.changes else schema

    def files(self, version: int, expected: pa.Schema | None = None) -> list[File]:
        """The files of the rows that a version adds and, with `changes`, removes.

        The version must still have the columns of `expected`, which are read.
        """
        actions = list(self._actions(version))
        self._check(actions, version)
        for action in actions:
            if expected is not None and "metaData" in action:
                self._check_columns(_columns(action["metaData"]), expected, version)
        changed = [a["cdc"] for a in actions if "cdc" in a]
        if self.changes and changed:
            return [self._file(one) for one in self._with_nulls(changed, actions, version)]
        added = [a["add"] for a in actions if "add" in a and a["add"].get("dataChange", True)]
        removed = [a["remove"] for a in actions if "remove" in a and a["remove"].get("dataChange", True)]
        if removed and not self.changes:
            msg = f"version {version} of {self.folder.path} removes or updates rows"
            hint = "read its changes: delta(..., changes=True).collection(diff='diff')"
            raise self.folder.error(msg, f"{hint}{self.folder.or_without(self.commit(version))}.")
        return [
            *(
                self._file(one, "-1")
                for one in self._with_nulls(self._completed(removed, version), actions, version)
            ),
            *(self._file(action, "1") for action in added),
        ]

    def _with_nulls(
        self, files: list[DeltaAction], actions: list[DeltaAction], version: int
    ) -> list[DeltaAction]:
        """Files, but added ones, with all values of their partitions: Delta leaves null values out there."""
        if not files:
            return files
        added = next((a["add"] for a in actions if "add" in a), None)
        columns = (
            self._state(version)[1]["partitionColumns"] if added is None else dict(added["partitionValues"])
        )
        none = dict.fromkeys(columns)
        return [one | {"partitionValues": none | dict(one.get("partitionValues") or ())} for one in files]

    def _completed(self, removed: list[DeltaAction], version: int) -> list[DeltaAction]:
        """Removals with the size and the values of their partition, which are optional there."""
        if all(action.get(name) is not None for action in removed for name in _OPTIONAL):
            return removed
        before, _ = self._state(version - 1)
        unknown = [action["path"] for action in removed if unquote(action["path"]) not in before]
        if unknown:
            msg = f"version {version} of {self.folder.path} removes {unknown[0]}, which is not in it"
            raise self.folder.error(msg, "start from the newest version, with a new checkpoint.")
        return [action | {n: before[unquote(action["path"])][n] for n in _OPTIONAL} for action in removed]

    def _check_columns(
        self, columns: pa.Schema, expected: pa.Schema, version: int, *, first: bool = False
    ) -> None:
        """Check that columns that are read are neither dropped nor changed; others may be added.

        Args:
            first: whether nothing was read before, so that a new flow reads the same version.
        """
        fields = [field for field in expected if field.name != DIFF or not self.changes]
        kinds = {field.name: field.type for field in columns}
        other = [field for field in fields if kinds.get(field.name) != field.type]
        if other:
            now = pa.schema([field for field in columns if field.name in {field.name for field in other}])
            was, now_is = describe(pa.schema(other)), describe(now) if len(now) else "nothing"
            msg = f"version {version} of {self.folder.path} has {now_is} where the flow reads {was}"
            again = f"start again with from_version={version} and a new checkpoint."
            new = "build the flow again: it reads the present ones."
            hint = f"restore the columns, or {new if first else again}"
            raise self.folder.error(msg, hint)

    def since(self, moment: datetime) -> int:
        """The first version that was committed at a time or later: of those in the log.

        As in Delta, a commit's time is that of its file, or the one written in the commit where the table
        enables that; it is later than the time of the version before.
        """
        system, top = self.folder.place
        infos = system.get_file_info(fs.FileSelector(f"{top}/_delta_log", allow_not_found=True))
        commits = sorted((int(match[1]), i) for i in infos if (match := COMMIT.fullmatch(i.base_name)))
        modified = (int(info.mtime_ns) // 10**6 for _, info in commits)
        increasing = accumulate(modified, lambda last, at: max(last + 1, at))
        times: dict[int, int] = dict(zip((version for version, _ in commits), increasing, strict=True))
        versions, newest = list(times), self.newest()
        settings = dict(self._state(newest)[1].get("configuration") or ())
        enabled = settings.get("delta.enableInCommitTimestamps") == "true"
        first = int(settings.get("delta.inCommitTimestampEnablementVersion") or 0)

        def committed(version: int) -> int:
            if not enabled or version < first:
                return times[version]
            info = next(action["commitInfo"] for action in self._actions(version) if "commitInfo" in action)
            return int(info["inCommitTimestamp"])

        at = bisect_left(versions, -((UNIX_EPOCH - moment) // MILLISECOND), key=committed)
        if at < len(versions):
            return versions[at]
        last = (UNIX_EPOCH + committed(newest) * MILLISECOND).isoformat(timespec="milliseconds")
        newer = f"the newest, {newest}, is of {last}"
        msg = f"{self.folder.path} has no version since {moment.isoformat()}: {newer}"
        raise self.folder.error(msg, f"from_version={newest + 1} begins with the next one.")

    def first(self, begin: Begin) -> int | None:
        """The version with which a reader begins; None means with all rows of the newest one."""
        if begin.moment is not None:
            return self.since(begin.moment)
        if begin.version is not None and begin.version > (newest := self.newest()) + 1:
            msg = f"{self.folder.path} has no version {begin.version}: the newest is {newest}"
            raise self.folder.error(msg, f"from_version={newest + 1} begins with the next one.")
        return begin.version

    def snapshot(self, version: int, expected: pa.Schema | None = None) -> list[File]:
        """The files of the table at a version, the oldest first; the version must have `expected`."""
        active, metadata = self._state(version)
        if expected is not None:
            self._check_columns(_columns(metadata), expected, version, first=True)
        return sorted(self._file(action, "1") for action in active.values())

    def _state(self, version: int) -> tuple[dict[str, DeltaAction], DeltaAction]:
        """The files by path and the metadata of a version: of the last checkpoint, with later changes.

        Writers encode different characters of a path, so one may remove what another has added.
        """
        first = 0
        active: dict[str, DeltaAction] = {}
        metadata: DeltaAction = {}
        parts: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name in self._names():
            if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
                parts[int(match[1]), int(match[2] or 1)].append(name)
        if complete := [key for key, names in parts.items() if len(names) == key[1]]:
            last = max(complete)
            actions = [action for name in parts[last] for action in self._checkpoint(name)]
            self._check(actions, last[0])
            first = last[0] + 1
            active = {unquote(action["add"]["path"]): action["add"] for action in actions if "add" in action}
            metadata = next(action["metaData"] for action in actions if "metaData" in action)
        for number in range(first, version + 1):
            actions = list(self._actions(number))
            self._check(actions, number)
            for action in actions:
                if "remove" in action:
                    active.pop(unquote(action["remove"]["path"]), None)
                if "add" in action:
                    active[unquote(action["add"]["path"])] = action["add"]
                metadata = action.get("metaData", metadata)
        return active, metadata

    def _names(self) -> list[str]:
        system, top = self.folder.place
        selector = fs.FileSelector(f"{top}/_delta_log", allow_not_found=True)
        return [info.base_name for info in system.get_file_info(selector)]

    def commit(self, version: int) -> str:
        """The file of a version in the log."""
        return f"{self.folder.place[1]}/_delta_log/{version:020}.json"

    def _actions(self, version: int) -> Iterator[DeltaAction]:
        path = self.commit(version)
        with self.folder.reading(path), self.folder.place[0].open_input_stream(path) as file:
            if not (lines := file.read().splitlines()):
                msg = "it is empty: its writer has not ended, or its end was lost"
                raise ValueError(msg)
            yield from map(parse_json, lines)

    def _checkpoint(self, name: str) -> Iterator[DeltaAction]:
        path = f"{self.folder.place[1]}/_delta_log/{name}"
        with self.folder.reading(path), self.folder.place[0].open_input_file(path) as file:
            table = pq.ParquetFile(file).read(columns=["add", "metaData", "protocol"])
        for row in table.to_pylist():
            yield {kind: action for kind, action in row.items() if action is not None}

    # -- files -----------------------------------------------------------------------------------------------
    def _file(self, action: DeltaAction, diff: str | None = None) -> File:
        if action.get("deletionVector"):
            raise self._unsupported(_VECTORS)
        top = self.folder.place[1]
        path = unquote(action["path"])
        if "://" in path or path.startswith("/"):
            raise self._unsupported(_OUTSIDE)
        path = f"{top}/{path}"
        texts = dict(action.get("partitionValues") or ())
        values: FileValues = tuple(
            (name, text or None) for name, text in texts.items()
        )  # an empty text is null
        if self.changes and diff is not None:
            values += ((DIFF, diff),)
        return File(action.get("modificationTime") or 0, path, action["size"], values)

    def _check(self, actions: list[DeltaAction], version: int) -> None:
        """Check that the files alone say what is in the table."""
        for action in actions:
            if "protocol" in action:
                protocol = action["protocol"]
                unknown = {*(protocol.get("readerFeatures") or ())} - _HARMLESS
                if protocol["minReaderVersion"] > 3 or unknown:
                    wanted = sorted(unknown) or f"reader version {protocol['minReaderVersion']}"
                    msg = f"needs {wanted} since version {version}"
                    raise self._unsupported(msg)
            if "metaData" in action:
                mode = dict(action["metaData"].get("configuration") or ()).get("delta.columnMapping.mode")
                if mode not in {None, "none"}:
                    msg = f"maps its columns by {mode} since version {version}"
                    raise self._unsupported(msg)

    def _unsupported(self, what: str) -> TableUnsupported:
        msg = f"source {self.folder.source!r}: Delta table {self.folder.path} {what}"
        hint = "read it with flow.source(name, spark.readStream.format('delta')...), and a new checkpoint."
        return TableUnsupported(msg, where=self.folder.where, hint=hint)


def _columns(metadata: DeltaAction) -> pa.Schema:
    described: Any = parse_json(metadata["schemaString"])
    as_in_spark: Any = SimpleNamespace(jsonValue=lambda: described)
    return as_schema(as_in_spark)


@dataclass(frozen=True)
class DeltaSource(FileSource):
    """A source that reads a Delta table.

    Args:
        changes: also read updates and deletions, as rows with the column `diff`.
        versions_per_epoch: the most versions of a batch.
        from_version: the first version; None means first all rows of the newest version.
    """

    changes: bool = False
    versions_per_epoch: int = 1
    from_version: int | None = None

    @property
    def watched(self) -> str | None:
        """The folder of the table's log, if it is local."""
        return None if (top := super().watched) is None else f"{top}/_delta_log"

    def check_exists(self) -> None:
        """Check that there is a table."""
        self.log.newest()

    @property
    def log(self) -> DeltaLog:
        """The table's log."""
        return DeltaLog(self.folder, self.changes)

    @property
    def computed(self) -> Mapping[str, pc.Expression]:
        """The sign of the rows in files of changes."""
        added = pc.field(CHANGE).isin(["insert", "update_postimage"])
        return {DIFF: pc.if_else(added, pa.scalar(1), pa.scalar(-1))}


def spark_frame(source: DeltaSource, begin: Begin) -> Any:
    """The table by Spark's own reader, with the columns of `DeltaLog`; None if there is no session."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    if (session := SparkSession.getActiveSession()) is None:
        return None
    folder, quoted = source.folder, identifier("delta", source.folder.path)
    reader = _reader(session, folder.source, quoted, folder.where, changes=source.changes, begin=begin)
    return _signed(reader.load(folder.path), changes=source.changes)


def table_frame(name: str, table: str, *, changes: bool, begin: Begin) -> Any:
    """A table of a catalog by Spark's own reader, as a stream.

    Columns:
        those of the table; with `changes` also diff long

    Raises:
        NoSession: no session is active.
        TableUnsupported: Spark cannot read it as a stream, or not its changes.
    """
    argument: Any = table
    if not isinstance(argument, str):
        refuse(argument, what="table", expected="a text", hint="write catalog.schema.table.")
    session, quoted = active_session(None), table_name(table)
    reader = _reader(session, name, quoted, caller(), changes=changes, begin=begin)
    try:
        return _signed(reader.table(quoted), changes=changes)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        msg = f"source {name!r}: table {table} cannot be read as a stream: {reason}"
        hint = "check the name, in this session's catalog."
        raise TableUnsupported(msg, where=caller(), hint=hint) from error


def _check_recorded(session: SparkSession, name: str, quoted: str, where: Where) -> None:
    """Refuse the changes of a table that does not record them: Spark fails at the first that removes rows."""
    from pyspark.errors import PySparkException

    try:
        (detail,) = session.sql(f"DESCRIBE DETAIL {quoted}").collect()
    except PySparkException:  # that of the reader says more
        return
    if detail["properties"].get("delta.enableChangeDataFeed") != "true":
        msg = f"source {name!r}: {quoted} does not record its changes, which Spark's reader needs"
        hint = f"ALTER TABLE {quoted} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)."
        raise TableUnsupported(msg, where=where, hint=hint)


def _reader(
    session: SparkSession, name: str, quoted: str, where: Where, *, changes: bool, begin: Begin
) -> DataStreamReader:
    """Spark's reader of a table, or of its changes."""
    reader = session.readStream.format("delta").options(**begin.options())
    if not changes:
        return reader
    _check_recorded(session, name, quoted, where)
    return reader.option("readChangeFeed", "true")


def _signed(frame: DataFrame, *, changes: bool) -> DataFrame:
    from pyspark.sql import functions

    if not changes:
        return frame
    sign = functions.when(frame[CHANGE].isin("insert", "update_postimage"), 1).otherwise(-1)
    own = [name for name in frame.columns if name not in {CHANGE, "_commit_version", "_commit_timestamp"}]
    return frame.select(*own, sign.cast("long").alias(DIFF))
