"""A Delta table by its log: the rows of each version, checkpoints, and the tables that are refused."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timely_spark as ts
from timely_spark.errors import Where
from timely_spark.runtime.errors import BadFile, TableUnsupported
from timely_spark.runtime.sources.arrivals import Part
from timely_spark.runtime.sources.delta_log import DeltaLog, DeltaSource
from timely_spark.runtime.sources.file_readers import DeltaReader
from timely_spark.runtime.sources.folder import Folder
from timely_spark.runtime.storage.files import Files

FIELDS = [
    {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("n", "long"), ("day", "date"))
]
METADATA = {
    "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
    "configuration": {},
    "partitionColumns": ["day"],
}
BEGIN = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": METADATA}]


class Table:
    """A Delta table whose log is written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.versions = folder, 0
        (folder / "_delta_log").mkdir()

    def commit(self, *actions: dict[str, Any]) -> None:
        name = f"{self.versions:020}.json"
        (self.folder / "_delta_log" / name).write_text("".join(f"{json.dumps(a)}\n" for a in actions))
        self.versions += 1

    def file(self, name: str, numbers: list[int], day: str | None = None, **more: Any) -> dict[str, Any]:
        changes = {"_change_type": more.pop("kinds")} if "kinds" in more else {}
        pq.write_table(pa.table({"n": numbers, **changes}), self.folder / name)
        size = (self.folder / name).stat().st_size
        return {"path": name, "size": size, "partitionValues": {"day": day}, "modificationTime": 1, **more}

    def log(self, *, changes: bool = False) -> DeltaLog:
        folder = Folder.of("t", Where("job.py", 3), self.folder, "parquet", None)
        return DeltaLog(folder, changes)

    def rows(self, files: list[Any], *, changes: bool = False) -> list[tuple[Any, ...]]:
        log = self.log(changes=changes)
        schema, parts = log.schema(), [Part(file.path, 0, file.size, file.values) for file in files]
        computed = DeltaSource(log.folder, changes=changes).computed
        batches = log.folder.read(parts, schema, schema.names, None, computed)
        return [tuple(row.values()) for batch in batches for row in batch.cast(schema).to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def days(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(n, day and str(day), *more) for n, day, *more in rows]


def test_versions_and_snapshots_of_a_table_that_grows(table: Table) -> None:
    table.commit(*BEGIN, {"add": table.file("a", [1], "2024-01-02")})
    table.commit({"add": table.file("b", [2, 3])})
    table.commit(
        {"commitInfo": {}},
        {"add": table.file("c", [1, 2, 3], dataChange=False)},
        {"remove": {"path": "b", "dataChange": False}},
    )
    log = table.log()

    assert log.newest() == 2
    assert (log.has(2), log.has(3)) == (True, False)
    assert days(table.rows(log.files(0))) == [(1, "2024-01-02")]
    assert days(table.rows(log.files(1))) == [(2, None), (3, None)]
    assert log.files(2) == [], "the same rows in other files"
    assert [Path(file.path).name for file in log.snapshot(2)] == ["a", "c"]


def test_changes_are_those_of_the_feed_or_else_of_whole_files(table: Table) -> None:
    a, b = table.file("a", [1, 2]), table.file("b", [2])
    table.commit(*BEGIN, {"add": a})
    table.commit({"remove": {"path": "a", "dataChange": True}}, {"add": b})
    change = table.file("c", [2, 2, 7, 9], kinds=["update_preimage", "update_postimage", "insert", "delete"])
    table.commit(
        {"remove": {"path": "b", "dataChange": True}}, {"add": table.file("d", [0])}, {"cdc": change}
    )

    log = table.log(changes=True)
    assert table.rows(log.files(1), changes=True) == [(1, None, -1), (2, None, -1), (2, None, 1)]
    assert table.rows(log.files(2), changes=True) == [
        (2, None, -1),
        (2, None, 1),
        (7, None, 1),
        (9, None, -1),
    ]
    for version in (1, 2):
        text = rf"(?s)source 't': version {version} of .* removes or updates rows \(job.py:3\)\nHint"
        with pytest.raises(BadFile, match=text):
            table.log().files(version)


def test_a_removal_that_does_not_say_its_partition_takes_back_the_rows_as_they_were(table: Table) -> None:
    a, b, c = (
        table.file(name, [n], day)
        for name, n, day in [("a", 1, "2024-01-02"), ("b", 2, None), ("c", 3, None)]
    )
    table.commit(*BEGIN, {"add": a}, {"add": b}, {"add": c})
    table.commit({"remove": {"path": "a"}}, {"remove": b}, {"remove": {"path": "c", "partitionValues": None}})
    table.commit({"remove": {"path": "a"}})

    log = table.log(changes=True)
    assert days(table.rows(log.files(1), changes=True)) == [
        (1, "2024-01-02", -1),
        (2, None, -1),
        (3, None, -1),
    ]
    with pytest.raises(BadFile, match=r"(?s)version 2 of .* removes a, which is not in it.*Hint"):
        log.files(2)


@pytest.mark.parametrize("path", ["day=__HIVE_DEFAULT_PARTITION__/a", "xY/a"])
def test_a_value_that_a_removal_leaves_out_is_null_whatever_the_file_has(table: Table, path: str) -> None:
    """Also without folders of values (`delta.randomizeFilePrefixes`)."""
    (table.folder / path).parent.mkdir()
    pq.write_table(pa.table({"n": [1], "day": [date(2024, 1, 2)]}), table.folder / path)
    size = (table.folder / path).stat().st_size
    table.commit(*BEGIN, {"add": {"path": path, "size": size, "partitionValues": {"day": None}}})
    table.commit({"remove": {"path": path, "size": size, "partitionValues": {}}})

    log = table.log(changes=True)
    assert [table.rows(log.files(n), changes=True) for n in (0, 1)] == [[(1, None, 1)], [(1, None, -1)]]


def test_a_version_of_a_log_whose_beginning_was_removed_can_be_read(table: Table) -> None:
    table.commit(*BEGIN, {"add": (a := table.file("a", [1]))})
    table.commit({"remove": a}, {"add": table.file("b", [2])})
    Path(table.log().commit(0)).unlink()
    log, folder = table.log(changes=True), str(table.folder)
    (none,) = {file.values for file in log.files(1) if file.path == f"{folder}/b"}
    assert [(Path(file.path).name, file.values) for file in log.files(1)] == [
        ("a", (("day", None), ("diff", "-1"))),
        ("b", none),
    ]


def modified(table: Table, *seconds: float) -> None:
    for version, at in enumerate(seconds):
        os.utime(table.folder / "_delta_log" / f"{version:020}.json", (at, at))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


@pytest.mark.parametrize("optional", [{}, {"size": 1, "partitionValues": {"day": None}}])
def test_a_path_may_be_encoded_otherwise_where_it_is_removed(table: Table, optional: dict[str, Any]) -> None:
    (table.folder / "a b").mkdir()
    table.commit(*BEGIN, {"add": table.file("a b/ü", [1]) | {"path": "a%20b/%C3%BC"}})
    table.commit({"remove": {"path": "a%20b/ü", "dataChange": True, **optional}})
    assert not table.log().snapshot(1)
    (removed,) = table.log(changes=True).files(1)
    assert removed.path == f"{table.folder}/a b/ü"


def test_a_version_without_content_is_one_that_was_not_written_to_its_end(table: Table) -> None:
    table.commit(*BEGIN, {"add": table.file("a", [1])})
    table.commit()
    for ask in (table.log().files, table.log().snapshot):
        with pytest.raises(BadFile, match=r"0001\.json cannot be read: .* it is empty"):
            ask(1)


def test_a_time_is_the_first_version_since_then(table: Table) -> None:
    table.commit(*BEGIN)
    table.commit({"add": table.file("a", [1])})
    table.commit({"add": table.file("b", [2])})
    modified(table, 100, 200, 150)  # the clock went back: the last is 1 ms after the one before
    log = table.log()

    assert [log.since(at(s)) for s in (1, 100, 100.001, 200, 200.0005, 200.001)] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(
        BadFile, match=r"(?s)no version since .*: the newest, 2, is of .*03:20.001.*from_version=3"
    ):
        log.since(at(200.002))


def test_a_version_that_is_not_the_next_one_is_none_to_begin_with(table: Table) -> None:
    table.commit(*BEGIN)
    flow = ts.Dataflow("later")

    flow.delta("next", table.folder, from_version=1)
    with pytest.raises(
        BadFile, match=r"(?s)no version 2: the newest is 0.*test_delta_log.py.*from_version=1"
    ):
        flow.delta("later", table.folder, from_version=2)


def test_commits_may_say_their_times_themselves(table: Table) -> None:
    table.commit(*BEGIN)
    own = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1"}
    said = {"commitInfo": {"inCommitTimestamp": 500_000}}
    table.commit(said, {"metaData": METADATA | {"configuration": own}})
    table.commit({"commitInfo": {"inCommitTimestamp": 700_000}}, {"add": table.file("a", [1])})
    modified(table, 100, 110, 120)

    assert [table.log().since(at(s)) for s in (100, 101, 500, 501, 700)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "wrong",
    [{"from_time": time} for time in (3, "", "soon", "2026-13-01")]
    + [{"from_version": 1, "from_time": "2026-11-22"}],
)
def test_a_beginning_that_is_none_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ts.TimelyError, match=r"(?s)from_time=.*test_delta_log.py.*Hint: "):
        ts.Dataflow("wrong").delta("t", tmp_path, **wrong)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_snapshot_begins_with_the_last_complete_checkpoint(table: Table, parts: int) -> None:
    adds = [{"add": table.file(name, [n]), "metaData": None, "protocol": None} for n, name in enumerate("ab")]
    table.commit({"add": table.file("x", [9])})  # which the checkpoint replaces
    table.commit()
    heads = [{"add": None, "metaData": METADATA | {"configuration": [("k", "v")]}, "protocol": None}]
    kinds = pa.schema(
        [
            (
                "add",
                pa.struct(
                    [
                        ("path", pa.string()),
                        ("size", pa.int64()),
                        ("partitionValues", pa.map_(pa.string(), pa.string())),
                    ]
                ),
            ),
            (
                "metaData",
                pa.struct(
                    [("schemaString", pa.string()), ("configuration", pa.map_(pa.string(), pa.string()))]
                ),
            ),
            ("protocol", pa.struct([("minReaderVersion", pa.int32())])),
        ]
    )
    for row in adds:
        row["add"]["partitionValues"] = [("day", None)]
    for part, rows in enumerate([adds + heads] if parts == 1 else [adds, heads], 1):
        name = f"{1:020}.checkpoint" + (f".{part:010}.{parts:010}" if parts > 1 else "") + ".parquet"
        pq.write_table(pa.Table.from_pylist(rows, kinds), table.folder / "_delta_log" / name)
    (table.folder / "_delta_log" / f"{2:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(b"half")
    table.commit({"add": table.file("c", [2])}, {"remove": {"path": "a"}})

    assert sorted(table.rows(table.log().snapshot(2))) == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([{"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}}], "deletionVectors"),
        ([{"protocol": {"minReaderVersion": 4}}], "reader version 4"),
        (
            [{"metaData": METADATA | {"configuration": {"delta.columnMapping.mode": "name"}}}],
            "maps its columns",
        ),
        (
            [{"add": {"path": "a", "size": 1, "deletionVector": {}, "x": 1} | {"deletionVector": {"a": 1}}}],
            "vectors",
        ),
        ([{"add": {"path": "s3://elsewhere/a", "size": 1}}], "outside"),
    ],
)
def test_tables_that_need_sparks_reader_are_refused(table: Table, actions: list[Any], why: str) -> None:
    table.commit(*BEGIN)
    table.commit(*actions)

    with pytest.raises(
        TableUnsupported, match=f"(?s)source 't': Delta table .*{why}.*job.py:3.\nHint: read it with"
    ):
        table.log().files(1)


def test_a_version_that_drops_or_changes_a_column_that_is_read_is_told(table: Table) -> None:
    def columns(*fields: tuple[str, str]) -> dict[str, Any]:
        described = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]
        schema = json.dumps({"type": "struct", "fields": described})
        return {"metaData": METADATA | {"schemaString": schema}}

    table.commit(*BEGIN)
    table.commit(columns(("more", "string"), ("n", "long"), ("day", "date")))
    table.commit(columns(("n", "string"), ("day", "date")))
    table.commit(columns(("day", "date")))
    log = table.log(changes=True)
    expected = pa.schema([("n", pa.int64()), ("diff", pa.int64())])

    assert log.files(1, expected) == [], "columns may be added"
    for version, now in ((2, "n string"), (3, "nothing")):
        message = rf"version {version} of .* has {now} where the flow reads n int64 .*from_version={version}"
        with pytest.raises(BadFile, match=f"(?s){message}"):
            log.files(version, expected)


def test_a_table_that_changes_its_columns_while_it_is_empty_is_told(table: Table) -> None:
    """The first rows had null in the columns that the table did not have any more."""
    table.commit(*BEGIN)
    reader = reader_of(table)
    assert polled(reader, reader.initial_offset()) == reader.initial_offset()

    schema = json.dumps({"type": "struct", "fields": FIELDS[1:]})
    table.commit({"metaData": METADATA | {"schemaString": schema}}, {"add": table.file("a", [1])})
    with pytest.raises(BadFile, match=r"version 1 of .* has nothing where the flow reads n int64"):
        polled(reader, reader.initial_offset())


def test_no_table_and_a_version_that_is_gone(table: Table) -> None:
    with pytest.raises(BadFile, match="is not a Delta table"):
        ts.Dataflow("d").delta("t", table.folder)
    table.versions = 4
    table.commit(*BEGIN)
    table.log().check_reachable(5)
    with pytest.raises(BadFile, match=r"version 3 of .* is no longer in its log"):
        table.log().check_reachable(3)


def reader_of(table: Table) -> DeltaReader:
    schema = table.log().schema()
    stage = SimpleNamespace(outputs=[schema])
    plan = SimpleNamespace(source=lambda _: SimpleNamespace(stage=stage))
    context: Any = SimpleNamespace(
        log=SimpleNamespace(files=Files(tempfile.mkdtemp())), resident=0.0, read_offsets={}, continued=-1,
        reporting=nullcontext, plan=plan,
    )  # fmt: skip
    return DeltaReader(context, DeltaSource(table.log().folder, columns=["n"]), lambda _: 0)


def polled(reader: DeltaReader, start: dict[str, Any]) -> dict[str, Any]:
    reader.look_again()
    return reader.latest_offset(start)


@pytest.fixture
def read(table: Table) -> tuple[DeltaReader, dict[str, Any]]:
    """A reader, and its offset after two versions."""
    table.commit(*BEGIN, {"add": table.file("a", [1])})
    table.commit({"add": table.file("b", [2])})
    reader = reader_of(table)
    return reader, polled(reader, reader.initial_offset())


def test_a_batch_reads_one_version_with_rows(table: Table, read: tuple[DeltaReader, dict[str, Any]]) -> None:
    reader, offset = read
    table.commit({"commitInfo": {}})
    table.commit({"add": table.file("c", [3])})
    table.commit({"add": table.file("d", [4])})

    assert offset["version"] == 1
    for version in (3, 4, 4):
        offset = polled(reader, offset)
        assert offset["version"] == version


def made_anew(table: Table, *, versions: int) -> None:
    for path in (table.folder / "_delta_log").iterdir():
        path.unlink()
    table.versions = 0
    table.commit(*BEGIN, {"add": table.file("c", [3])})
    for version in range(1, versions):
        table.commit({"add": table.file(f"c{version}", [version])})


def test_offsets_go_on_in_a_table_that_is_the_same(table: Table, read: tuple[Any, Any]) -> None:
    reader, offset = read
    assert offset["version"] == 1
    assert polled(reader, offset) is offset, "nothing new"
    table.commit({"add": table.file("c", [3])})
    for start in (offset, {"version": 1}):  # of a checkpoint from before commits were noted
        again = reader_of(table)
        end = polled(again, start)
        assert [share.parts[0].path for share in again.shares(start, end)] == [f"{table.folder}/c"]
        assert end == polled(reader, offset)


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_a_table_made_anew_in_the_same_folder_is_not_read_on(
    table: Table, read: tuple[Any, Any], versions: int
) -> None:
    reader, offset = read
    table.commit({"add": table.file("d", [4])})
    planned = polled(reader, offset)
    made_anew(table, versions=versions)

    with pytest.raises(BadFile, match=r"(?s)recreated|no longer .*job.py:3.*Hint.*new checkpoint"):
        polled(reader_of(table), offset)  # a restart
    with pytest.raises(BadFile, match=r"(?s)recreated|cannot be read|was removed"):
        reader_of(table).shares(offset, planned)  # a restart that runs a batch again
    if versions != 2:  # with as many it waits for the next one
        with pytest.raises(BadFile, match=r"(?s)has not version 1 that was read"):
            polled(reader, offset)  # seen by the running query


@pytest.mark.parametrize("fault", [FileNotFoundError("d"), pa.ArrowInvalid("damaged")])
def test_a_lost_or_damaged_file_of_a_version_is_not_skipped_alone(table: Table, fault: Exception) -> None:
    table.commit(*BEGIN, {"add": table.file("c", [3])})
    flow = ts.Dataflow("table")
    flow.delta("x", str(table.folder))
    source: Any = flow.frames["x"]

    with pytest.raises(BadFile, match=r"(?s)/d .*Hint: restore it") as lost, source.folder.reading("/d"):
        raise fault
    assert "skip" not in str(lost.value)


def test_a_version_that_cannot_be_read_names_the_command_that_skips_it(
    table: Table, read: tuple[Any, Any]
) -> None:
    reader, offset = read
    reader.source = replace(reader.source, folder=replace(reader.source.folder, checkpoint="/a checkpoint"))
    command = r"(?s)Hint: .*python -m timely_spark skip '/a checkpoint' --version 2"
    table.commit({"add": table.file("c", [3]) | {"path": "lost"}}, {"add": table.file("d", [4])})
    shares = reader.shares(offset, polled(reader, offset))
    folder = replace(reader.source.folder, versions=shares[0].versions)
    with pytest.raises(BadFile, match=command):
        list(folder.read(shares[0].parts, table.log().schema(), ["n"]))
    table.commit({"remove": {"path": "b", "dataChange": True}})
    with pytest.raises(BadFile, match=r"(?s)read its changes.*--version 3"):
        polled(reader, {**offset, "version": 2, "commit": None})
    first = reader.shares(reader.initial_offset(), offset)
    assert [share.versions for share in first] == [{}], "before a batch is complete, nothing can be skipped"
