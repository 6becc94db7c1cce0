"""Files as Arrow: what is listed, the schema, parts of files, and the mistakes."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import math
import os
import pickle
import struct
import time
import tracemalloc
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, fs
from pyarrow import json as pa_json

import timely_spark as ts
from timely_spark.compiler.pushdown import needed
from timely_spark.errors import BadArgument, SchemaError, Where
from timely_spark.graph import as_schema
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.sources import arrivals, json_files
from timely_spark.runtime.sources.arrivals import Part, split_files
from timely_spark.runtime.sources.csv_files import csv_batches
from timely_spark.runtime.sources.delta_log import DeltaSource
from timely_spark.runtime.sources.file_types import changes_values, row_groups_at
from timely_spark.runtime.sources.folder import FileSource, Folder

HERE = Where("job.py", 7)


def folder_of(path: Any, form: Any = "parquet", filesystem: Any = None) -> Folder:
    return Folder.of("in", HERE, path, form, filesystem)


def rows(folder: Folder, schema: Any = None, columns: list[str] | None = None, **more: Any) -> list[Any]:
    schema = folder.inspect(schema)[0] if not isinstance(schema, pa.Schema) else schema
    parts = [Part(file.path, 0, file.size) for file in sorted(folder.files())]
    batches = folder.read(parts, schema, columns or schema.names, more.get("condition"))
    return pa.Table.from_batches(
        list(batches), pa.schema([schema.field(n) for n in columns or schema.names])
    ).to_pylist()


TABLE = pa.table({"n": [1, 2, None], "s": ["a", None, ""]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("length", [1, 1 << 17])
@pytest.mark.parametrize("end", ["", "\n", " ", "\n\n"])
def test_the_last_line_of_json_needs_no_end(tmp_path: Path, name: str, length: int, end: str) -> None:
    first, second = {"n": 1, "s": "a" * length}, {"n": 2, "s": "b"}
    for records in ([first], [first, second]):
        content = ("\n".join(map(json.dumps, records)) + end).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert rows(folder_of(tmp_path, "json"), "n long, s string") == records
        assert rows(folder_of(tmp_path, "json")) == records
    (tmp_path / name).write_text('{"n": "x"}')
    with pytest.raises(BadFile, match=name):
        rows(folder_of(tmp_path, "json"), "n long")


@pytest.mark.parametrize(
    ("name", "form", "named"),
    [
        ("a.csv", "parquet", "csv"),
        ("a.parquet", "csv", "parquet"),
        ("a.json.gz", "csv", "json"),
        ("a.csv.parquet", "csv", "parquet"),
        ("a.jsonl", "csv", "json"),
        ("A.CSV.GZ", "json", "csv"),
        ("a.feather", "csv", "arrow"),
    ],
)
def test_a_file_whose_name_has_another_format_is_said_to_have_it(
    name: str, form: str, named: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"")
    folder = folder_of(tmp_path, form)
    with (
        pytest.raises(BadFile, match=f"format='{named}' .of a job: --format {named}.; else mend it"),
        folder.reading(name),
    ):
        raise pa.ArrowInvalid("damaged")  # noqa: EM101 - as Arrow says it


@pytest.mark.slow
def test_a_line_of_json_that_is_longer_than_a_block(tmp_path: Path) -> None:
    record = {"s": "a" * (3 << 20)}
    (tmp_path / "a.json").write_text(json.dumps(record) + "\n" + json.dumps(record))
    with pytest.raises(BadFile, match=r"(?s)a.json cannot be read.*Hint: .*block_size="):
        rows(folder_of(tmp_path, "json"), "s string")
    larger = ds.JsonFileFormat(read_options=pa_json.ReadOptions(block_size=8 << 20))
    assert rows(folder_of(tmp_path, larger), "s string") == [record, record]


def test_of_a_stream_of_json_no_more_is_read_than_is_asked_for() -> None:
    class Stream(io.BytesIO):
        asked = 0

        def read(self, size: int | None = -1) -> bytes:
            self.asked += 1
            return super().read(size)

    stream = Stream(b'{"n": null}\n' * 1000)
    lines = json_files.NullsAsObjects(stream)
    assert lines.read(400) == (b'{"n": null}\n' * 1000)[:400]
    assert stream.asked <= 2


@pytest.mark.parametrize("name", ["n", "ß", "ΐ", "name"])  # others are longer in another case
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_name_in_another_case_is_seen_wherever_a_read_ends(name: str, size: int) -> None:
    names = json_files._Names(io.BytesIO(f'{{"{name.upper()}": 1}}'.encode()), [name])
    while names.read(size):
        pass
    assert names.written == {name.upper()}


@pytest.mark.slow
def test_json_with_long_lines_is_not_held_in_memory(tmp_path: Path) -> None:
    record = {"s": "a" * 70_000}
    (tmp_path / "a.json").write_text("\n \n" + (json.dumps(record) + "\n") * 600)
    blocks = ds.JsonFileFormat(read_options=pa_json.ReadOptions(block_size=100_000))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        folder = folder_of(tmp_path, blocks)
        schema, _ = folder.inspect(None)
        (file,) = folder.files()
        read = 0
        for batch in folder.read([Part(file.path, 0, file.size)], schema, ["s"]):
            read += batch.num_rows
            assert pa.total_allocated_bytes() - before < file.size // 3
        assert read == 600
        assert tracemalloc.get_traced_memory()[1] < file.size // 3
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_compressed_csv_is_not_held_in_memory(tmp_path: Path) -> None:
    line = b"1," + b"a" * 1000 + b"\n"
    with pa.output_stream(str(tmp_path / "a.csv.zst"), compression="zstd") as file:
        file.write(b"n,s\n")
        for _ in range(100):
            file.write(line * 1000)
    folder = folder_of(tmp_path, "csv")
    before, read = pa.total_allocated_bytes(), 0
    for batch in folder.read(
        [Part(file.path, 0, file.size) for file in folder.files()], as_schema("n long"), ["n"]
    ):
        read += batch.num_rows
        assert pa.total_allocated_bytes() - before < 50 << 20
    assert read == 100_000


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "arrow"])
def test_each_format_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    write = {
        "parquet": lambda path: pq.write_table(TABLE, path),
        "csv": lambda path: path.write_text('n,s\n1,a\n2,\n,""\n'),
        "json": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist())),
        "arrow": lambda path: feather.write_feather(TABLE, path),
    }
    write[form](tmp_path / "a")
    folder = folder_of(tmp_path, form)

    assert folder.inspect(None)[0] == as_schema("n long, s string")
    assert rows(folder) == TABLE.to_pylist()
    assert rows(pickle.loads(pickle.dumps(folder)), "n double, s string")[0] == {"n": 1.0, "s": "a"}
    assert rows(folder, columns=["s"]) == TABLE.select(["s"]).to_pylist()


def test_a_format_with_options_of_its_own_and_compressed_files(tmp_path: Path) -> None:
    for name, codec, record in (("a.csv.gz", "gzip", b"1;x\n"), ("b.csv.zst", "zstd", b"2;y\n")):
        with pa.CompressedOutputStream(str(tmp_path / name), codec) as file:
            file.write(record)
    form = ds.CsvFileFormat(
        csv.ParseOptions(delimiter=";"), read_options=csv.ReadOptions(column_names=["n", "s"])
    )

    assert rows(folder_of(tmp_path, form)) == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]


@pytest.mark.parametrize("form", ["csv", ds.CsvFileFormat(csv.ParseOptions(delimiter=","))])
def test_a_value_of_csv_has_several_lines_also_at_the_end_of_a_block(tmp_path: Path, form: Any) -> None:
    head, second = "n,s\n1,", '2,"a\n7,b"\n'
    block = 1 << 20  # the first one ends before the end of the line between quotes
    long = "x" * (block - len(f"{head}\n") - second.index("\n"))
    (tmp_path / "a.csv").write_text(f"{head}{long}\n{second}")

    assert rows(folder_of(tmp_path, form)) == [{"n": 1, "s": long}, {"n": 2, "s": "a\n7,b"}]


@pytest.mark.parametrize("condition", [pc.field("x") != 7, ~(pc.field("x") < 9), pc.is_nan(pc.field("x"))])
def test_a_row_with_nan_is_read_although_the_statistics_leave_it_out(tmp_path: Path, condition: Any) -> None:
    pq.write_table(pa.table({"x": [7.0, float("nan")]}), tmp_path / "a.parquet")
    flow = ts.Dataflow("nan")
    flow.files("in", tmp_path).where(condition).capture("out")
    read = needed(flow.compile(1), "in")

    values = rows(folder_of(tmp_path), "x double", list(read.columns), condition=read.condition)

    assert sum(math.isnan(row["x"]) for row in values) == 1


@pytest.mark.parametrize(
    "values", [[2, 10], [2.5, 10.0], [True, False], [date(2026, 1, 2), date(2026, 1, 1)]]
)
def test_values_that_are_read_as_texts_have_statistics_that_are_not_compared(
    tmp_path: Path, values: list[Any]
) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
    assert len(rows(folder_of(tmp_path), "x string", condition=pc.field("x") < "3")) == 2


def test_columns_and_fields_of_one_name_are_damage(tmp_path: Path) -> None:
    one, inner = pa.array([1]), pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["b", "b"])
    for number, table in enumerate([pa.table([one, one, one], ["n", "a", "a"]), pa.table([inner], ["a"])]):
        for form in ("parquet", "arrow"):
            (folder := tmp_path / f"{form}{number}").mkdir()
            with pa.ipc.new_file(str(folder / "a"), table.schema) as writer:
                writer.write_table(table)
            if form == "parquet":
                pq.write_table(table, folder / "a")
            why = r"(?s)several columns or fields have the name 'a(\.b)?'.*Hint"
            for schema in (None, "n long", "a long", "a struct<b long>"):
                with pytest.raises(BadFile, match=why):
                    rows(folder_of(folder, form), schema)


@pytest.mark.slow
def test_parts_of_a_parquet_file_have_every_row_group_once_and_in_order(tmp_path: Path) -> None:
    table = pa.table({"n": range(5000), "s": [str(n) for n in range(5000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    folder, schema = folder_of(tmp_path), as_schema("n long, s string")
    (file,) = folder.files()
    for cuts in ([], [1, 5, 999], list(range(0, file.size, 97)), [file.size - 1]):
        bounds = sorted({0, *cuts, file.size})
        parts = [Part(file.path, a, b) for a, b in itertools.pairwise(bounds)]
        read = pa.Table.from_batches(list(folder.read(parts, schema, ["n", "s"], None)))
        assert read.equals(table.cast(schema))
    assert sum(map(len, split_files([file._replace(size=100 << 20)], 2, divisible=True))) > 1


@pytest.mark.parametrize(("tasks", "groups"), [(2, 2), (2, 4), (3, 3), (3, 9)])
def test_tasks_get_equal_shares_of_the_row_groups_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, groups: int
) -> None:
    monkeypatch.setattr(arrivals, "OPENING", 100)
    table = pa.table({"n": [n * 7_777_777_777 for n in range(9000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9000 // groups, use_dictionary=False)
    folder = folder_of(tmp_path)

    shares = split_files(folder.files(), tasks, divisible=folder.divisible)

    read = [sum(map(len, folder.read(share, as_schema("n long"), ["n"]))) for share in shares]
    assert read == [9000 // tasks] * tasks


def test_row_groups_that_a_condition_excludes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "day=3").mkdir()
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "day=3" / "a.parquet", row_group_size=100)
    folder = folder_of(tmp_path)
    pq.write_table(pa.table({"n": [7777]}), tmp_path / "day=3" / "b.parquet")

    assert rows(folder, condition=pc.field("n") > 6000) == [{"n": 7777, "day": 3}]
    assert len(rows(folder, condition=pc.field("n").isin([950, 7777]))) == 101
    assert rows(folder, condition=pc.field("n") > 8000) == []
    assert rows(folder, condition=pc.field("day") == 4) == []


def test_folders_are_columns_and_hidden_files_do_not_count(tmp_path: Path) -> None:
    for place, n in (("day=3/k=x%2Fy", 1), ("day=4/k=z", 2), ("_temporary/0", 9), (".hidden", 9)):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(pa.table({"n": [n]}), tmp_path / place / "a.parquet")
    for name in ("_SUCCESS", ".a.parquet.crc", "b.parquet._COPYING_"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty.parquet").touch()
    folder = folder_of(tmp_path)
    found = [file for file in folder.files() if file.size]

    assert sorted(folder._relative(file.path) for file in found) == [
        "day=3/k=x%2Fy/a.parquet",
        "day=4/k=z/a.parquet",
    ]
    schema, _ = folder.inspect(None)
    assert schema == as_schema("n long, day long, k string")
    parts = [Part(file.path, 0, file.size) for file in sorted(found, key=lambda file: file.path)]
    read = pa.Table.from_batches(list(folder.read(parts, schema, schema.names, None))).to_pylist()
    assert read == [{"n": 1, "day": 3, "k": "x/y"}, {"n": 2, "day": 4, "k": "z"}]


def test_a_folder_has_the_name_of_its_column_as_spark_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a%3Ab=x%2Fy").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a%3Ab=x%2Fy" / "a.parquet")

    assert rows(folder_of(tmp_path)) == [{"n": 1, "a:b": "x/y"}]


@pytest.mark.parametrize("place", ["n", "=3", "n/=4"])
def test_a_folder_without_a_name_or_a_value_is_no_column(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    pq.write_table(pa.table({"n": [7]}), tmp_path / place / "a.parquet")
    folder = folder_of(tmp_path)

    assert folder.inspect(None)[0].names == ["n"]
    assert rows(folder) == [{"n": 7}]


def test_types_that_spark_lacks_are_those_that_its_reader_gives(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array(["a", "b"]).dictionary_encode(),
            "t": pa.array([1000, 2000], pa.timestamp("ns")),
            "u": pa.array([1, 2], pa.uint32()),
            "l": pa.array(["x", "y"], pa.large_string()),
            "day": pa.array([0, 86_400_000], pa.date64()),
        }
    )
    feather.write_feather(table, tmp_path / "a")
    folder = folder_of(tmp_path, "arrow")

    assert folder.inspect(None)[0] == as_schema("d string, t timestamp_ntz, u long, l string, day date")
    assert [row["d"] for row in rows(folder)] == ["a", "b"]
    assert [row["day"].day for row in rows(folder)] == [1, 2]


def test_a_file_system_of_pyarrow(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    system = fs.SubTreeFileSystem(str(tmp_path.parent), fs.LocalFileSystem())

    assert rows(pickle.loads(pickle.dumps(folder_of(tmp_path.name, filesystem=system)))) == TABLE.to_pylist()
    assert rows(folder_of(f"file:{tmp_path}/a.parquet")) == TABLE.to_pylist()


def test_a_folder_is_watched_if_it_is_local(tmp_path: Path) -> None:
    tree = folder_of("x", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    remote = folder_of("x", filesystem=fs.S3FileSystem(anonymous=True, region="eu-west-1"))

    assert FileSource(folder_of(tmp_path)).watched == str(tmp_path)
    assert FileSource(tree).watched == f"{tmp_path}/x"
    assert FileSource(remote).watched is None
    assert DeltaSource(folder_of(tmp_path)).watched == f"{tmp_path}/_delta_log"
    assert DeltaSource(remote).watched is None


def test_a_column_that_an_older_file_lacks_is_null_and_other_differences_are_errors(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    folder, schema = folder_of(tmp_path), as_schema("n long, s string")
    assert rows(folder, schema) == [{"n": 1, "s": None}]

    with pytest.raises(
        BadFile,
        match=r"(?s)source 'in' has columns \(n int64, t .*lacks \['t'\], it has \['n'\].*:7\)\nHint"
        r".*defaults=\{'t': \.\.\.\} gives the value; with on_bad_file=\"quarantine\" an older file may fit",
    ):
        folder.inspect("n long, t string")
    with pytest.raises(BadFile, match="case counts"):
        rows(folder, as_schema("N long, z long"))
    both = r"\.parquet.*Hint: .*timely_spark skip .*\.parquet; files\(on_bad_file=\"quarantine\"\)"
    with pytest.raises(BadFile, match="(?s)a" + both):
        rows(folder, as_schema("x long"))
    pq.write_table(pa.table({"n": ["many"]}), tmp_path / "b.parquet")
    with pytest.raises(BadFile, match=r"(?s)column 'n' is int64, and string in .*b" + both):
        rows(folder, schema)


def test_texts_of_a_file_with_types_are_not_read_as_other_types(tmp_path: Path) -> None:
    for form, name in (("parquet", "a.parquet"), ("arrow", "a.arrow")):
        (folder := tmp_path / form).mkdir()
        table = pa.table({"n": ["007", "1e3"], "s": pa.array(["x", "y"]).dictionary_encode()})
        if form == "parquet":
            pq.write_table(table, folder / name)
        else:
            feather.write_feather(table, folder / name, compression="uncompressed")
        for kind in ("long", "double", "date", "timestamp", "decimal(9,2)", "boolean"):
            with pytest.raises(
                BadFile, match=rf"(?s)column 'n' is .*, and string in .*{name}.*Hint: give files"
            ):
                rows(folder_of(folder, form), as_schema(f"n {kind}, s string"))
        assert rows(folder_of(folder, form), as_schema("n binary, s string"))[0] == {"n": b"007", "s": "x"}
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("n\n007\n")
    assert rows(folder_of(tmp_path / "csv", "csv"), as_schema("n long")) == [{"n": 7}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1e300, "float"),  # would be infinite
        (1.005, "decimal(9,2)"),  # would be 1.00
        (Decimal("12345678901234567.89"), "double"),  # would be ...568.0
        (date(2026, 1, 1), "timestamp"),  # whose midnight, the file does not say
    ],
)
def test_values_of_a_file_with_types_are_not_rounded(tmp_path: Path, value: Any, kind: str) -> None:
    pq.write_table(pa.table({"v": [value], "l": [[value]]}), tmp_path / "a.parquet")
    for schema in (f"v {kind}", f"l array<{kind}>"):
        with pytest.raises(BadFile, match=r"(?s)column '[vl]' is .*a.parquet.*Hint: give files"):
            rows(folder_of(tmp_path), schema)


@pytest.mark.parametrize(
    ("own", "to", "changes"),
    [
        (pa.float32(), pa.float64(), False),
        (pa.int64(), pa.float32(), False),  # Arrow's cast refuses what it would round
        (pa.int64(), pa.decimal128(20, 0), False),
        (pa.decimal128(5, 1), pa.decimal128(9, 2), False),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("ns"), False),
        (pa.timestamp("us"), pa.string(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us"), pa.date32(), True),
        (pa.timestamp("us"), pa.time64("us"), True),
        (pa.large_list_view(pa.int64()), pa.large_list(pa.int64()), True),
    ],
)
def test_casts_that_change_values_and_those_that_do_not(own: Any, to: Any, changes: bool) -> None:  # noqa: FBT001
    assert changes_values(own, to) == changes


def test_columns_that_come_later_are_told_and_those_left_out_on_purpose_are_not(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "unread": [2]}), tmp_path / "a.parquet")
    schema, folder = folder_of(tmp_path).inspect("n long, unread long")
    pq.write_table(pa.table({"n": [2], "new": [3]}), tmp_path / "b.parquet")
    told: list[Any] = []
    parts = [Part(file.path, 0, file.size) for file in folder.files()]
    assert (
        sum(batch.num_rows for batch in folder.read(parts, schema, ["n"], unknown=lambda *a: told.append(a)))
        == 2
    )
    assert told == [(f"{tmp_path}/b.parquet", ["new"], ["unread"])]


def test_why_a_file_is_bad_is_its_content_and_not_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": list(range(1000))})
    pq.write_table(table, tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "page.parquet").write_bytes(content[:20] + bytes(100) + content[120:])
    (tmp_path / "other.parquet").write_text("n\n1\n")
    pq.write_table(pa.table({"n": ["1"]}), tmp_path / "text.parquet")
    folder, schema = folder_of(tmp_path), as_schema("n long")
    by_name = {Path(file.path).stem: file for file in folder.files()}
    reasons = {name: folder.why_bad(file, schema, ["n"]) for name, file in by_name.items()}
    assert reasons.pop("a") is None
    assert all(reason is not None and name in reason for name, reason in reasons.items())
    assert len(reasons) == 4
    (tmp_path / "half.parquet").unlink()
    assert folder.why_bad(by_name["half"], schema, ["n"]) is None

    def failing(*_: Any) -> Any:
        raise OSError(5, "the disk")

    monkeypatch.setattr(Folder, "_fragment", failing)
    assert folder.why_bad(by_name["a"], schema, ["n"]) is not None
    monkeypatch.setattr(
        Folder, "place", (SimpleNamespace(open_input_stream=failing, get_file_info=failing), "")
    )
    with pytest.raises(BadFile, match="the disk"):
        folder_of(tmp_path).why_bad(by_name["a"], schema, ["n"])


def test_a_file_that_the_storage_did_not_give_at_first_is_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    folder, fragment, failed = folder_of(tmp_path), Folder._fragment, list[int]()

    def at_first(self: Folder, *args: Any) -> Any:
        failed.append(1)
        if len(failed) == 1:
            msg = "AWS Error NETWORK_CONNECTION"
            raise OSError(msg)
        return fragment(self, *args)

    monkeypatch.setattr(Folder, "_fragment", at_first)
    (file,) = folder.files()
    assert folder.why_bad(file, as_schema("n long"), ["n"]) is None
    assert len(failed) == 3, "once more while the bad row is looked for"


def test_a_csv_row_that_is_short_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,s\n1,a\n2\n")
    folder = folder_of(tmp_path, "csv")
    (file,) = folder.files()
    assert "Expected 2 columns, got 1" in str(folder.why_bad(file, as_schema("n long, s string"), ["n"]))


@pytest.mark.slow
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("start", ["null\n", "\ufeffnull", " \n\n null \r\nnull\n", ""])
def test_a_record_of_json_may_be_null_also_the_first_of_a_block(
    tmp_path: Path, start: str, block: int | None
) -> None:
    text = start + "\n" + '{"v": "} null"}\nnull\n\n null\n' * 9 + "null"
    (tmp_path / "a.json").write_bytes(text.encode())
    form = "json" if block is None else ds.JsonFileFormat(read_options=pa_json.ReadOptions(block_size=block))

    values = [None] * start.count("null") + ["} null", None, None] * 9 + [None]
    assert rows(folder_of(tmp_path, form), TEXT) == [{"v": value} for value in values]
    assert folder_of(tmp_path, form).inspect("v string")[0] == TEXT


@pytest.mark.parametrize("text", ["null-", "null]\n", "\ufeffnullL"])
def test_null_before_what_is_no_json_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(BadFile, match="JSON parse error"):
        rows(folder_of(tmp_path, "json"), TEXT)


NUMBER, TEXT = pa.schema({"v": pa.decimal128(5, 2)}), pa.schema({"v": pa.string()})


@pytest.mark.parametrize(
    ("form", "content", "schema", "why"),
    [
        ("csv", b"v\n1000\n", NUMBER, "column 'v': .*does not fit in precision"),
        ("json", b'{"v": "1000"}\n', NUMBER, "row 1, column 'v': .*does not fit in precision"),
        ("json", b'{"v": "\xff"}\n', TEXT, "row 1, column 'v': .*UTF8"),
        ("parquet", b"\xff", TEXT, "row 1, column 'v': .*UTF8"),
    ],
)
def test_what_readers_of_arrow_take_and_is_no_value_is_damage(
    tmp_path: Path, form: str, content: bytes, schema: pa.Schema, why: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    if form == "parquet":
        text = pa.Array.from_buffers(pa.string(), 1, pa.array([content]).buffers())
        pq.write_table(pa.table({"v": text}), path)

    with pytest.raises(BadFile, match=rf"(?s)cannot be read: .*{why}.*Hint"):
        rows(folder_of(tmp_path, form), schema)


def write_csv(lines: list[str], path: Path) -> None:
    path.write_text("\n".join(["n,s", *lines]))


def write_json(lines: list[str], path: Path) -> None:
    path.write_bytes("\n".join(lines).encode("latin1"))


def write_parquet(numbers: list[Any], path: Path) -> None:
    pq.write_table(pa.table({"s": ["a"] * len(numbers), "n": numbers}), path, row_group_size=100)


def write_arrow(texts: list[bytes], path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts).buffers())
    table = pa.table({"n": range(len(texts)), "s": text})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


#: Eleven thousand of them are more than one block of a reader.
LONG, GOOD = "1," + "a" * 100, json.dumps({"n": 1, "s": "a" * 100})
DAMAGED, DAY = '{"n": 1, "s": "\xff"}', '{"n": "2026-01-01"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "write", "values", "schema", "at"),
    [
        ("csv", write_csv, ["1,a"] * 9 + ["x,a"], "n long, s string", "row 11, column 'n': "),
        ("csv", write_csv, ["1,a"] * 9 + ["7"], "n long, s string", "row 11: "),
        ("csv", write_csv, [LONG] * 11_000 + ["x,a"], "n long, s string", "row 11002, column 'n': "),
        ("json", write_json, [GOOD] * 11_000 + ['{"s": 1}'], "n long, s string", "row 11001, column 's'"),
        ("json", write_json, ["", GOOD, " ", "null", DAMAGED], "n long, s string", "row 3, column 's'"),
        ("json", write_json, [DAY, DAY.replace("01", "13")], "n date, s long", "row 2, column 'n'"),
        ("json", write_json, [GOOD, '{"n": 1', GOOD], "n long, s string", "row 2, column 'n': "),
        ("parquet", write_parquet, [1] * 250 + [1 << 40], "n int, s string", "row 251, column 'n': "),
        ("arrow", write_arrow, [b"a"] * 120 + [b"\xff"], "n long, s string", "row 121, column 's': "),
    ],
)
def test_a_file_that_cannot_be_read_has_its_first_bad_row(
    *, tmp_path: Path, form: str, write: Any, values: list[Any], schema: str, at: str
) -> None:
    write(values, tmp_path / "a")
    with pytest.raises(BadFile, match=rf"(?s)a cannot be read: {at}.*job\.py:7.*Hint: "):
        rows(folder_of(tmp_path, form), as_schema(schema))


def test_a_page_of_parquet_that_changed_is_damage(tmp_path: Path) -> None:
    number = 0x1234567890
    pq.write_table(
        pa.table({"n": [1, number, 3]}),
        tmp_path / "a",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,  # as Spark does
    )
    assert [row["n"] for row in rows(folder_of(tmp_path), as_schema("n long"))] == [1, number, 3]
    content, at = (tmp_path / "a").read_bytes(), number.to_bytes(8, "little")
    assert content.count(at) == 1
    (tmp_path / "a").write_bytes(content.replace(at, (number ^ 1).to_bytes(8, "little")))
    with pytest.raises(BadFile, match=r"(?s)a cannot be read: .*checksum.*Hint: "):
        rows(folder_of(tmp_path), as_schema("n long"))


def test_a_record_of_json_lacks_columns_but_none_in_another_case(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"other": 2}\n')
    assert rows(folder_of(tmp_path, "json"), as_schema("n long, s string")) == [
        {"n": 1, "s": None},
        {"n": None, "s": None},
    ]

    (tmp_path / "a.json").write_text('{"N": 1}\n')
    with pytest.raises(BadFile, match=r"lacks \['n', 's'\], it has \['N'\](?s:.*)case counts"):
        rows(folder_of(tmp_path, "json"), as_schema("n long, s string"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "row"),
    [
        ('{"N": 5}', 2),
        ('{"n": null, "p": {"x": 1, "X": 2}}', 2),
        ('{"ps": [{"x": 1}, {"X": 2}]}', 2),
        ('{"Ps": []}', 2),
        ('{"Größe": 1}', 2),
        ('{"grÖße": 1}', 2),
    ],
)
@pytest.mark.parametrize("before", [1, 4_000], ids=["in one block", "in a later block"])
def test_a_member_of_json_in_another_case_is_refused_in_any_record(
    tmp_path: Path, record: str, row: int, before: int
) -> None:
    schema = as_schema("n long, p struct<x: long>, ps array<struct<x: long>>, größe long")
    first = '{"n": 1, "p": {"x": 1}, "ps": [{"x": 1}], "größe": 1, "more": "%s"}\n' % ("a" * 400)
    (tmp_path / "a.json").write_text(first * before + record + "\n")
    with pytest.raises(BadFile, match=rf"row {before + row - 1:d}, column .* in another case") as refused:
        rows(folder_of(tmp_path, "json"), schema)
    assert "--file" in str(refused.value)


def test_a_member_of_json_that_is_no_column_may_have_the_name_of_one_in_another_case(tmp_path: Path) -> None:
    schema = as_schema("n long, p struct<x: long>")
    harmless = [
        '{"N": null}',
        '{"other": {"N": 1, "X": 2}}',
        '{"names": ["N", "X"], "p": {"x": 1, "N": 3}}',
        "{}",
    ]
    (tmp_path / "a.json").write_text("".join(f"{line}\n" for line in ['{"n": 1}', *harmless]))
    assert [row["n"] for row in rows(folder_of(tmp_path, "json"), schema)] == [1, None, None, None, None]


@pytest.mark.parametrize("long", [json_files._LONG, 0], ids=["names", "very many names"])
def test_a_file_of_json_is_read_again_only_if_a_name_is_in_it_in_another_case(
    long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "_LONG", long)
    form, schema = ds.JsonFileFormat(), as_schema("n long, name string, été long, p struct<x: long>")
    opened = []

    def read(content: str) -> list[Any]:
        opened.clear()

        def again() -> Any:
            opened.append(content)
            return io.BytesIO(content.encode())

        return [row for batch in json_files.json_batches(again, form, schema) for row in batch.to_pylist()]

    lacking = {"n": None, "name": None, "été": None, "p": None}
    assert read('{"n": 1, "name": "Paris", "été": 2}\n{"p": {"x": 1}}\n{}\n') == [
        lacking | {"n": 1, "name": "Paris", "été": 2},
        lacking | {"p": {"x": 1}},
        lacking,
    ]
    assert len(opened) == 1
    assert read('{"name": "Name", "n": 5}\n')[0] == lacking | {"n": 5, "name": "Name"}
    with pytest.raises(pa.ArrowInvalid, match=r"members \['Name'\], .*in another case"):
        read('{"n": 5, "name": null}\n{"Name": "Rome"}\n')
    assert len(opened) == 2


@pytest.mark.parametrize("encoding", ["utf8", "utf16"])
@pytest.mark.parametrize("read", ["n long", "n long, s string"])
def test_rows_behind_a_quote_that_is_not_closed_are_not_lost(
    tmp_path: Path, read: str, encoding: str
) -> None:
    """Arrow takes them for one value, or for the header. Columns that nobody reads are not looked at."""
    folder = folder_of(tmp_path, ds.CsvFileFormat(read_options=csv.ReadOptions(encoding=encoding)))
    for closed in ('n,s\n1,"a\nb"\n', 'n,s\n1,"a\nb"""', 'n,s\n1,"a\n"\n2,b', 'n,s\n1,"\n"\n', '"n","s\nt"'):
        (tmp_path / "a.csv").write_bytes(closed.encode(encoding))
        assert len(rows(folder, as_schema(read))) == closed.count(",") - 1
    in_values = (
        ('n,s\n1,"a\n2,b\n', "last row is not closed: the text behind it has 2 ends"),
        ('n,s\n1,"a\n2,b""', "last row is not closed"),
        ('n,s\r1,"a\r2,b\r', "last row is not closed: the text behind it has 2 ends"),
    )
    in_headers = (
        ('n,"s\n1,a\n2,b\n', "header does not end"),
        ('n"m,"s\n1,a\n2,b\n', "header does not end"),
        ("\0" * 100, "header does not end"),
    )
    for content, reason in in_headers + in_values * ("s" in read.split()):
        (tmp_path / "a.csv").write_bytes(content.encode(encoding))
        with pytest.raises(BadFile, match=rf"a.csv cannot be read: .*{reason}") as refused:
            rows(folder, as_schema(read))
        assert "types" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "content"),
    [
        ({"escape_char": "\\"}, b'n,s\n1,"a\nsaid \\"hi\\""\n'),
        ({"double_quote": False}, b'n,s\n1,"a\nb""'),
        ({"invalid_row_handler": lambda _: "skip"}, b'n,s\n1,"a\nb"\nbad\n'),
        ({"quote_char": False}, b'n,s\n1,"a\n'),
        ({"quote_char": False}, b'n,"s'),
    ],
)
def test_formats_of_csv_in_which_texts_end_otherwise_are_read(
    tmp_path: Path, options: Any, content: bytes
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    folder = folder_of(tmp_path, ds.CsvFileFormat(parse_options=csv.ParseOptions(**options)))
    assert [row["n"] for row in rows(folder, as_schema("n long"))] == [1][: content.count(b",") - 1]


def test_the_last_column_of_csv_may_be_that_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "d=1").mkdir()
    (tmp_path / "d=1" / "a.csv").write_text("n,d\n1,1\n2,1\n")
    folder, schema = folder_of(tmp_path, "csv"), as_schema("n long, d long")
    assert rows(folder, schema, ["n"]) == [{"n": 1}, {"n": 2}]


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "end"), [(False, b""), (True, b"\n")])
def test_json_deeper_than_sparks_is_refused(tmp_path: Path, lines: Any, end: bytes) -> None:
    """Where it is 100,000 deep, Arrow overflows the stack, which ends the process."""
    form = ds.JsonFileFormat(parse_options=pa_json.ParseOptions(newlines_in_values=lines))
    folder, schema = folder_of(tmp_path, form), as_schema("n long")
    first = b'{"n": 1, "t": "\\\\\\"' + b"[" * 2000 + b'"}\r\n'
    for depth in (999, 1000):
        deep = b'{"n": 2, "d": ' + (b"[" + end) * depth + b"]" * depth + b"}\n"
        (tmp_path / "a.json").write_bytes(first + deep)
        if depth == 999:
            assert rows(folder, schema) == [{"n": 1}, {"n": 2}]
        else:
            with pytest.raises(BadFile, match="more than 1,000 arrays and objects inside of each other"):
                rows(folder, schema)


def test_the_depth_of_json_is_counted_once_for_each_byte_wherever_a_chunk_ends() -> None:
    """A long line was gone through again for each chunk."""
    text = b'{"t": "\\\\\\"[[", "d": [{}, "]"], "": "\\\\"}\n["{"]\n'
    for size in (1, 2, 3, 7, len(text)):
        deep = json_files.Depth(997)
        for at in range(0, len(text), size):
            deep.check(text[at : at + size])
            assert len(deep._text) <= 2
        assert (deep._depth, deep._text) == (997, b"")
        with pytest.raises(pa.ArrowInvalid, match="inside of each other"):
            deep.check(b"[[[[")


def test_nothing_is_read_of_json_at_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's thread would abort it, where a reader is not at its end."""
    exits: list[Any] = []
    monkeypatch.setattr(json_files.atexit, "register", exits.append)
    monkeypatch.setattr(json_files.atexit, "unregister", exits.remove)
    with json_files.reading_json(io.BytesIO(b'{"n": 1}\n'), ds.JsonFileFormat()):
        (end,) = exits
        end()
        assert end.__self__.read(1) == b""
    assert not exits


def test_nothing_is_read_of_json_once_its_columns_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's thread reads ahead: it aborted a process that ended meanwhile."""
    monkeypatch.setattr(json_files, "_FAR_AHEAD", 5.0)  # on a busy machine a read takes as long
    reads: list[int] = []

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            time.sleep(0.001)
            reads.append(1)
            return super().read(size)

    blocks = ds.JsonFileFormat(read_options=pa_json.ReadOptions(block_size=1000))
    with json_files.reading_json(Slow(b'{"n": 1}\n' * 100_000), blocks) as content:
        assert content.schema.names == ["n"]
    before = len(reads)
    time.sleep(0.02)
    assert len(reads) == before < 900


def test_metadata_of_spark_that_are_very_deep_are_a_bad_file(tmp_path: Path) -> None:
    name = "org.apache.spark.sql.parquet.row.metadata"
    pq.write_table(TABLE.replace_schema_metadata({name: "[" * 100_000}), tmp_path / "a.parquet")
    with pytest.raises(BadFile, match=r"a.parquet cannot be read: .*nested too deeply"):
        rows(folder_of(tmp_path), as_schema("n long"))


@pytest.mark.parametrize("compression", ["zstd", "brotli"])
@pytest.mark.parametrize("content", [b"", b"n,s", b'n,s\n1,"a\nb"\n'])
def test_csv_is_checked_as_arrow_decompresses_it(tmp_path: Path, compression: str, content: bytes) -> None:
    with pa.output_stream(str(tmp_path / f"a.csv.{compression}"), compression=compression) as file:
        file.write(content)
    assert len(rows(folder_of(tmp_path, "csv"), as_schema("n long, s string"))) == len(content) // 12


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", b" \n\n"), ("a.json.gz", b""), ("a.json.zst", b"\n"), ("a.csv.gz", b""), ("a.csv.zst", b"")],
)
def test_a_file_of_text_without_content_has_no_rows(tmp_path: Path, name: str, content: bytes) -> None:
    """Spark writes one for each empty partition; one without bytes is not even listed."""
    with pa.output_stream(str(tmp_path / name), compression="detect") as file:
        file.write(content)
    assert (tmp_path / name).stat().st_size
    assert rows(folder_of(tmp_path, name.split(".")[1]), as_schema("n long")) == []


def test_a_folder_in_another_case_is_no_null_column(tmp_path: Path) -> None:
    for name in ("day=1", "Day=2"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"n": [1]}), tmp_path / name / "a.parquet")
    with pytest.raises(BadFile, match=r"lacks \['day'\], it has \['Day', 'n'\](?s:.*)case counts"):
        rows(folder_of(tmp_path), as_schema("n long, day long"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
def test_a_file_that_the_storage_does_not_give_is_not_to_be_mended(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    refused = OSError(number, os.strerror(number), "a.parquet")
    monkeypatch.setattr(Folder, "_columns_of", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(BadFile, match=r"(?s)a\.parquet cannot be read.*Hint: (give|raise|check) ") as error:
        rows(folder_of(tmp_path), as_schema("n long"))
    assert "mend it" not in str(error.value)
    assert f"skip CHECKPOINT --file {tmp_path / 'a.parquet'}." in str(error.value)
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=refused))
    with pytest.raises(BadFile, match=r"(?s)cannot be read.*Hint: (give|raise|check) ") as error:
        folder_of(tmp_path).files()
    assert "skip CHECKPOINT" not in str(error.value)


def test_a_column_without_a_value_has_no_type(tmp_path: Path) -> None:
    for form, text in {"csv": "n,s\n1,\n", "json": '{"n": 1, "s": null}\n'}.items():
        (tmp_path / form).mkdir()
        (tmp_path / form / "a").write_text(text)
        folder = folder_of(tmp_path / form, form)
        with pytest.raises(BadFile, match=r"(?s)has no value in \['s'\].*Hint: give one: files.*s string"):
            folder.inspect(None)
        assert rows(folder, "n long, s string") == [{"n": 1, "s": None}]


def test_values_that_a_cast_would_change_are_refused(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 5)  # noqa: DTZ001
    zoned = pa.array([at], pa.timestamp("us", "UTC"))
    wrong: list[tuple[Any, str]] = [
        ([at], "date"), ([5], "boolean"), ([0.5], "boolean"), ([at], "long"), (zoned, "long"),
        (zoned, "timestamp_ntz"), ([at], "timestamp"), ([5], "timestamp"), ([5], "timestamp_ntz"),
        ([5], "date"),
    ]  # fmt: skip
    for column, kind in wrong:
        pq.write_table(pa.table({"c": column}), tmp_path / "a")
        with pytest.raises(BadFile, match=r"column 'c' is .*, and .* in "):
            rows(folder_of(tmp_path), as_schema(f"c {kind}"))
    for kind in ("date", "boolean", "long", "timestamp"):
        pq.write_table(pa.table({"c": pa.nulls(1)}), tmp_path / "a")
        assert rows(folder_of(tmp_path), as_schema(f"c {kind}")) == [{"c": None}]


INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("of", "to", "value"),
    [
        (pa.int64(), INSTANT, 5),
        (INSTANT, LOCAL, datetime(2026, 1, 1, tzinfo=timezone.utc)),
        (LOCAL, INSTANT, datetime(2026, 1, 1)),  # noqa: DTZ001
        (INSTANT, pa.date32(), datetime(2026, 1, 1, tzinfo=timezone.utc)),
        (pa.struct([("A", pa.int64())]), pa.struct([("a", pa.int64())]), {"A": 5}),
    ],
    ids=str,
)
def test_values_inside_of_others_that_a_cast_would_change_are_refused(
    tmp_path: Path, form: str, of: pa.DataType, to: pa.DataType, value: Any
) -> None:
    text = pa.string()
    nested: list[tuple[Any, Any, Any]] = [
        (pa.list_, pa.list_, [value]),
        (pa.large_list, pa.list_, [value]),
        (lambda kind: pa.list_(kind, 1), pa.list_, [value]),
        (lambda kind: pa.map_(text, kind), lambda kind: pa.map_(text, kind), [("k", value)]),
        (
            lambda kind: pa.map_(text, kind),
            lambda kind: pa.list_(pa.struct([("key", text), ("value", kind)])),
            [("k", value)],
        ),
        (
            lambda kind: pa.struct([("x", text), ("c", kind)]),
            lambda kind: pa.struct([("c", kind), ("new", LOCAL), ("x", text)]),
            {"c": value},
        ),
        (
            lambda kind: pa.list_(pa.struct([("c", pa.list_(kind))])),
            lambda kind: pa.list_(pa.struct([("c", pa.list_(kind))])),
            [{"c": [value]}],
        ),
    ]
    for around, asked, inside in nested:
        table = pa.table({"c": pa.array([inside], around(of))})
        if form == "parquet":
            pq.write_table(table, tmp_path / "a")
        else:
            feather.write_feather(table, str(tmp_path / "a"), compression="uncompressed")
        with pytest.raises(BadFile, match=r"column 'c' is .*, and .* in "):
            rows(folder_of(tmp_path, form), pa.schema([("c", asked(to))]))
        assert rows(folder_of(tmp_path, form), pa.schema([("c", asked(of))]))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "json", "arrow"])
def test_a_column_has_its_default_in_files_that_lack_it(tmp_path: Path, form: str) -> None:
    write: dict[str, Any] = {
        "parquet": pq.write_table,
        "csv": csv.write_csv,
        "json": lambda table, path: path.write_text("".join(f"{json.dumps(r)}\n" for r in table.to_pylist())),
        "arrow": lambda table, path: feather.write_feather(table, str(path)),
    }

    def folder(defaults: Any, schema: Any = None) -> tuple[Folder, pa.Schema]:
        made = Folder.of("in", HERE, tmp_path, form, None, defaults=defaults)
        return made, made.inspect(schema)[0]

    write[form](pa.table({"n": [1, 2], "diff": [-1, 5]}), tmp_path / "a")
    write[form](pa.table({"n": [3]}), tmp_path / "b")
    defaults, all_rows = {"diff": 1, "at": date(2026, 1, 2)}, {(1, -1), (2, 5), (3, 1)}
    for newest in ("a", "b"):
        for name in ("a", "b"):
            os.utime(tmp_path / name, (2, 2) if name == newest else (1, 1))
        for schema in (None, "n long, diff long, at date", "n long, diff int, at date"):
            made, all_columns = folder(defaults, schema)
            found = rows(pickle.loads(pickle.dumps(made)), all_columns)
            assert {(row["n"], row["diff"]) for row in found} == all_rows
            assert {row["at"] for row in found} == {date(2026, 1, 2)}
            assert sorted(row["diff"] for row in rows(made, all_columns, ["diff"])) == [-1, 1, 5]
            # no row group is left out because of statistics that it does not have
            assert {"n": 3} in rows(made, all_columns, ["n"], condition=pc.field("diff") == 1)
    (tmp_path / "b").unlink()
    for wrong in ({"diff": "x"}, {"other": 1}, {"diff": None}, {"n": 1 << 70}, "diff"):
        with pytest.raises(BadArgument, match=r"defaults=(?s:.*)Hint"):
            folder(wrong, "n long, diff long")
    (tmp_path / "a").unlink()
    write[form](pa.table({"n": [3], "Diff": [-1]}), tmp_path / "b")
    with pytest.raises(BadFile, match=r"lacks \['diff'\], it has \['Diff', 'n'\](?s:.*)case counts"):
        rows(*folder({"diff": 1}, "n long, diff long"))


@pytest.mark.slow
def test_a_default_in_json_is_that_of_records(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"n": 1}\n' * 120_000 + '{"n": 2, "diff": -1}\n{"n": 3, "diff": null}\n')
    made = Folder.of("in", HERE, tmp_path, "json", None, defaults={"diff": 1})
    found = rows(made, made.inspect("n long, diff long")[0], ["diff"])
    assert [row["diff"] for row in found[-3:]] == [1, -1, 1]
    made = folder_of(tmp_path, "json")
    found = rows(made, made.inspect("n long, diff long, day date")[0])  # the first block lacks the column
    assert found[-3:] == [{"n": n, "diff": diff, "day": None} for n, diff in ((1, None), (2, -1), (3, None))]
    assert len(found) == 120_002


def test_folders_of_json_are_columns(tmp_path: Path) -> None:
    for day, text in (("1", '{"n": 1, "day": 7}\n{"n": 2}'), ("__HIVE_DEFAULT_PARTITION__", '{"n": 3}')):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.json").write_text(text)
    folder = Folder.of("in", HERE, tmp_path, "json", None, defaults={"day": 9})
    schema, _ = folder.inspect("n long, day long")
    found = rows(folder, schema)
    assert sorted((row["n"], row["day"]) for row in found if row["day"]) == [(1, 1), (2, 1)]
    assert {"n": 3, "day": None} in found
    assert len(rows(folder, schema, ["day"])) == 3


def test_views_of_lists_are_no_lists(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array([[1], [2, 3]], pa.list_view(pa.int64()))})
    with pa.ipc.new_file(tmp_path / "a", table.schema) as file:
        file.write_table(table)
    with pytest.raises(BadFile, match="column 'c' is list<"):
        rows(folder_of(tmp_path, "arrow"), pa.schema([("c", pa.list_(pa.int64()))]))
    with pytest.raises(SchemaError, match=r"column 'c' is of Arrow's type list_view<.*(?s:.)*Hint: cast it"):
        folder_of(tmp_path, "arrow").inspect(None)


def test_intervals_that_spark_wrote_are_durations(tmp_path: Path) -> None:
    """The metadata is that of Spark 4.2: intervals of days and times are plain int64 in Parquet."""

    def field(name: str, kind: Any) -> dict[str, Any]:
        return {"name": name, "type": kind, "nullable": True, "metadata": {}}

    pair = {"type": "struct", "fields": [field("a", "interval minute"), field("b", "long")]}
    kinds = {
        "d": "interval day to second",
        "l": {"type": "array", "elementType": "interval hour", "containsNull": True},
        "m": {"type": "map", "keyType": "string", "valueType": pair, "valueContainsNull": True},
        "n": "long",
    }
    written = {"type": "struct", "fields": [field(name, kind) for name, kind in kinds.items()]}
    struct = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    plain = pa.schema(
        [("d", pa.int64()), ("l", pa.list_(pa.int64())), ("m", pa.map_("string", struct)), ("n", pa.int64())]
    )
    row = {"d": 93_784_500_000, "l": [1, None], "m": [("k", {"a": 2, "b": 3})], "n": 4}
    table = pa.Table.from_pylist([row], plain)
    spark = table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": json.dumps(written)})
    pq.write_table(spark, tmp_path / "a")
    long = pa.duration("us")
    struct = pa.struct([("a", long), ("b", pa.int64())])
    asked = pa.schema([("d", long), ("l", pa.list_(long)), ("m", pa.map_("string", struct)), ("n", "int64")])

    def lasting(microseconds: int) -> timedelta:
        return timedelta(microseconds=microseconds)

    assert rows(folder_of(tmp_path), asked) == [
        {
            "d": timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
            "l": [lasting(1), None],
            "m": [("k", {"a": lasting(2), "b": 3})],
            "n": 4,
        }
    ]
    assert rows(folder_of(tmp_path)) == [row]
    for schema in ([("n", long)], [("d", pa.duration("ms"))], [("d", INSTANT)]):
        with pytest.raises(BadFile, match="and int64 in"):
            rows(folder_of(tmp_path), pa.schema(schema))
    pq.write_table(table, tmp_path / "a")
    with pytest.raises(BadFile, match="column 'd' is duration"):
        rows(folder_of(tmp_path), pa.schema([("d", long)]))


def test_dates_inside_of_others_in_json(tmp_path: Path) -> None:
    kind = pa.struct([("days", pa.list_(pa.date32())), ("n", pa.int64())])
    record = {"c": {"days": ["2026-01-02", None], "n": 1}}
    (tmp_path / "a").write_text(json.dumps(record) + "\n")
    assert rows(folder_of(tmp_path, "json"), pa.schema([("c", kind)])) == [
        {"c": {"days": [date(2026, 1, 2), None], "n": 1}}
    ]
    for wrong, says in (('{"days": [17]}', "cannot be read"), ('{"Days": null}', "case counts")):
        (tmp_path / "a").write_text(f'{{"c": {wrong}}}\n')
        with pytest.raises(BadFile, match=rf"(?s){says}"):
            rows(folder_of(tmp_path, "json"), pa.schema([("c", kind)]))


def test_dates_and_times_of_texts(tmp_path: Path) -> None:
    day, at = date(2026, 1, 2), datetime(2026, 1, 2, 5, tzinfo=timezone.utc)
    columns = "d date, t timestamp, c decimal(5,2)"
    found = [{"d": day, "t": at, "c": Decimal("1.50")}, {"d": None, "t": None, "c": None}]
    (tmp_path / "json").write_text(
        '{"d": "2026-01-02", "t": "2026-01-02T05:00:00Z", "c": "1.50"}\n{"d": null, "t": null, "c": null}\n'
    )
    (tmp_path / "csv").write_text("d,t,c\n2026-01-02,2026-01-02T05:00:00Z,1.50\n,,\n")
    for form in ("json", "csv"):
        assert rows(folder_of(tmp_path / form, form), columns) == found
    (tmp_path / "json").write_text('{"d": "2026-01-02 05:00:00"}\n')
    with pytest.raises(BadFile, match="cannot be read"):
        rows(folder_of(tmp_path / "json", "json"), as_schema("d date"))
    (tmp_path / "csv").write_text("t\n2026-01-02T05:00:00\n")
    with pytest.raises(BadFile, match=r"(?s)zone offset.*Hint: .*timestamp_ntz"):
        rows(folder_of(tmp_path / "csv", "csv"), as_schema("t timestamp"))


def test_missing_damaged_and_empty(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(BadFile, match=r"no schema is given, and .* \(job.py:7\)\nHint"):
        folder.inspect(None)
    assert folder.inspect("n long")[0] == as_schema("n long")
    with pytest.raises(BadFile, match="does not exist"):
        folder_of(tmp_path / "*.parquet").inspect(None)[0]
    with pytest.raises(BadFile, match="was removed after it was listed"):
        list(folder.read([Part(str(tmp_path / "x.parquet"), 0, 9)], as_schema("n long"), ["n"], None))
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no end")
    with pytest.raises(BadFile, match=r"half\.parquet cannot be read"):
        folder.inspect(None)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_that_grew_since_it_was_listed_is_not_read_in_part(tmp_path: Path, form: str) -> None:
    """The parts are those of the listed file: no task would read the row groups behind its end."""

    def write(number: int) -> None:
        table = pa.table({"n": range(number)})
        if form == "csv":
            csv.write_csv(table, tmp_path / "a.csv")
        else:
            pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000, compression="none")

    write(1000)
    folder = folder_of(tmp_path, form)
    (parts,) = split_files(folder.files(), 1, divisible=folder.divisible)
    write(20_000)

    with pytest.raises(BadFile, match=r"bytes when it was listed.*\(job.py:7\)\nHint: .*skip CHECKPOINT"):
        list(folder.read(parts, as_schema("n long"), ["n"]))


def test_a_flow_with_a_schema_is_built_again_though_the_newest_file_is_damaged(tmp_path: Path) -> None:
    """Else a file that was skipped or quarantined would stop each later start."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "whole.parquet")
    os.utime(tmp_path / "whole.parquet", (1, 1))
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no end")

    schema, folder = folder_of(tmp_path).inspect("n long")

    assert schema == as_schema("n long")
    assert list(folder.newest_columns) == ["n"]
    with pytest.raises(BadFile, match="'m'"):
        folder_of(tmp_path).inspect("m long")


def test_a_flow_that_quarantines_starts_beside_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no end")
    pq.write_table(pa.table({"other": ["x"]}), tmp_path / "other.parquet")
    folder = folder_of(tmp_path)

    with pytest.raises(BadFile, match=r"other\.parquet lacks \['n'\]"):
        folder.inspect("n long", quarantine=True)  # no file fits, so the schema is wrong
    pq.write_table(pa.table({"n": [1]}), tmp_path / "whole.parquet")
    os.utime(tmp_path / "whole.parquet", (1, 1))
    assert folder.inspect("n long", quarantine=True)[1].newest_columns == ("n",)
    with pytest.raises(BadFile, match=r"other\.parquet lacks"):
        folder.inspect("n long")
    (tmp_path / "other.parquet").unlink()
    assert folder.inspect(None, quarantine=True)[0] == as_schema("n long")
    with pytest.raises(BadFile, match=r"half\.parquet cannot be read"):
        folder.inspect(None)
    (tmp_path / "whole.parquet").unlink()
    for quarantine in (True, False):  # a file that does not open says nothing of the columns
        assert folder.inspect("n long", quarantine=quarantine)[0] == as_schema("n long")
        with pytest.raises(BadFile, match=r"half\.parquet cannot be read"):
            folder.inspect(None, quarantine=quarantine)


@pytest.mark.parametrize(
    "wrong",
    [{"format": "orc"}, {"format": ["csv"]}, {"path": 3}, {"filesystem": "s3"}, {"files_per_epoch": 0}],
    ids=str,
)
def test_arguments_of_another_kind(tmp_path: Path, wrong: dict[str, Any]) -> None:
    arguments = {"path": tmp_path, "schema": "n long"} | wrong
    with pytest.raises(BadArgument, match=r"(?s)test_folder\.py:\d+\).*Hint"):
        ts.Dataflow("x").files("in", **arguments)


def test_a_flow_of_files_is_tested_with_records(tmp_path: Path) -> None:
    flow = ts.Dataflow("x")
    flow.files("in", tmp_path, schema="n long").distinct().capture("out")

    assert ts.testing.run(flow, {"in": [[1, 1, 2]]})["out"].rows() == {0: [(1,), (2,)]}


@pytest.mark.parametrize(
    ("honest", "forged"),
    [(struct.pack("<iii", 0, 4, 8), struct.pack("<iii", 0, 4, 1 << 28)), (b"word", b"wo\xff\xff")],
)
def test_a_made_up_offset_or_text_in_a_file_of_arrow_is_a_damaged_file(
    honest: bytes, forged: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "a.arrow"
    feather.write_feather(pa.table({"s": ["word", "more"]}), str(file), compression="uncompressed")
    good = file.read_bytes()
    assert good.count(honest) == 1
    file.write_bytes(good.replace(honest, forged))
    with pytest.raises(BadFile, match=r"a\.arrow cannot be read"):
        rows(folder_of(tmp_path, "arrow"), as_schema("s string"))


@pytest.mark.parametrize("at", [0, -4, 900, 1 << 40])
def test_a_row_group_that_is_not_in_its_file_is_an_error(at: int) -> None:
    """A damaged footer says so; no part of the file would have its rows."""
    column = SimpleNamespace(dictionary_page_offset=None, data_page_offset=at)
    group = SimpleNamespace(num_rows=1, column=lambda _: column)
    metadata = SimpleNamespace(num_row_groups=1, row_group=lambda _: group)
    with pytest.raises(pa.ArrowInvalid, match=f"begins at byte {at} of 900"):
        list(row_groups_at(SimpleNamespace(metadata=metadata), 900))


def test_a_row_group_without_rows_has_no_pages_and_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": [True], "n": [1]}), tmp_path / "full.parquet")
    pq.write_table(
        pa.table({"b": pa.array([], pa.bool_()), "n": pa.array([], pa.int64())}), tmp_path / "0.parquet"
    )

    assert rows(folder_of(tmp_path), as_schema("b boolean, n long")) == [{"b": True, "n": 1}]


def test_csv_is_read_some_blocks_ahead() -> None:
    stream = io.BytesIO(b"n,s\n" + (b"1,%b\n" % (b"x" * 1000)) * 20_000)
    form = ds.CsvFileFormat(read_options=csv.ReadOptions(block_size=1 << 16))
    schema = as_schema("n long, s string")
    batches = csv_batches(lambda: pa.PythonFile(stream, "r"), form, schema, schema.names, {}, own=["n", "s"])
    first = next(batches)
    assert stream.tell() < len(stream.getvalue()) / 2
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 20_000
    empty = csv_batches(lambda: io.BytesIO(b"n,s\n1,a\n2,b\n"), form, schema, [], {}, own=["n", "s"])
    assert [batch.num_rows for batch in empty] == [2]
