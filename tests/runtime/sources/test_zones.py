"""Times in files: with a zone a timestamp, without one a timestamp_ntz, and neither becomes the other."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from timely_spark.errors import BadArgument, Where
from timely_spark.graph import as_schema
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.sources.arrivals import Part
from timely_spark.runtime.sources.folder import Folder

HERE = Where("job.py", 7)
LOCAL = pa.timestamp("us")


def rows(folder: Folder, columns: str) -> list[Any]:
    schema = as_schema(columns)
    parts = [Part(file.path, 0, file.size) for file in folder.files()]
    return pa.Table.from_batches(list(folder.read(parts, schema, schema.names)), schema).to_pylist()


WALL = datetime(2026, 1, 2, 5)  # noqa: DTZ001 - without a zone
MOMENT = WALL.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize("form", ["json", "csv", "folder"])
def test_a_text_without_a_zone_is_no_time_with_one(tmp_path: Path, form: str) -> None:
    texts = {"timestamp": ("2026-01-02T05:00:00Z", MOMENT), "timestamp_ntz": ("2026-01-02 05:00:00", WALL)}
    for (kind, (text, time)), (other, _) in zip(texts.items(), reversed(texts.values()), strict=True):
        folders = [tmp_path / kind / name for name in ("good", "bad")]
        for folder, of in zip(folders, (text, other), strict=True):
            below = folder / f"t={quote(of)}" if form == "folder" else folder
            below.mkdir(parents=True)
            columns = {"n": 1} if form == "folder" else {"n": 1, "t": of}
            lines = [",".join(columns), ",".join(map(str, columns.values()))]
            (below / "a").write_text("\n".join(lines) if form == "csv" else json.dumps(columns))
        good, bad = (
            Folder.of("in", HERE, each, "json" if form == "folder" else form, None) for each in folders
        )
        assert rows(good, f"n long, t {kind}") == [{"n": 1, "t": time}]
        if form != "folder":
            assert good.inspect(None)[0] == as_schema(f"n long, t {kind}")
        with pytest.raises(BadFile, match=r"(?s)zone offset.*Hint: .*timestamp_ntz.*skip CHECKPOINT --file"):
            rows(bad, f"n long, t {kind}")


def test_a_default_has_a_zone_if_its_column_has_one(tmp_path: Path) -> None:
    for kind, time, other in (("timestamp", MOMENT, WALL), ("timestamp_ntz", WALL, MOMENT)):
        for column, value, wrong in ((kind, time, other), (f"array<{kind}>", [time], [other])):
            pq.write_table(pa.table({"n": [1]}), tmp_path / "a")
            Folder.of("in", HERE, tmp_path, "parquet", None, defaults={"t": value}).inspect(
                f"n long, t {column}"
            )
            folder = Folder.of("in", HERE, tmp_path, "parquet", None, defaults={"t": wrong})
            with pytest.raises(BadArgument, match=r"(?s)defaults.*Hint: times of a timestamp have a zone"):
                folder.inspect(f"n long, t {column}")


def test_sparks_times_in_parquet_are_of_utc(tmp_path: Path) -> None:
    nested = pa.struct([("x", pa.int64()), ("y", pa.list_(LOCAL)), ("m", pa.map_(pa.string(), LOCAL))])
    value = {"x": 1, "y": [WALL], "m": [("k", WALL)]}
    table = pa.table({"n": [1], "t": pa.array([WALL], LOCAL), "s": pa.array([value], nested)})
    # as Spark writes it: INT96, and no schema of Arrow's
    pq.write_table(table, tmp_path / "a", use_deprecated_int96_timestamps=True, store_schema=False)
    folder = Folder.of("in", HERE, tmp_path, "parquet", None)
    columns = "n long, t timestamp, s struct<x: long, y: array<timestamp>, m: map<string, timestamp>>"
    assert folder.inspect(None)[0] == as_schema(columns)
    (row,) = rows(folder, columns)
    assert row == {"n": 1, "t": MOMENT, "s": {"x": 1, "y": [MOMENT], "m": [("k", MOMENT)]}}
    with pytest.raises(BadFile, match="column 't' is timestamp"):
        rows(folder, "n long, t timestamp_ntz")


def test_of_a_file_of_another_calendar_its_own_values_are_checked_as_they_are_in_it(tmp_path: Path) -> None:
    old, spark_2 = date(1500, 1, 1), {"org.apache.spark.version": "2.4.8"}
    written = as_schema("n long, d date").with_metadata(spark_2)
    (tmp_path / f"day={old}").mkdir()
    for own in (date(1600, 1, 1), old):
        pq.write_table(pa.table({"n": [1], "d": [own]}, written), tmp_path / f"day={old}" / "a")
        for columns, to in (("day date, e date", date), ("d timestamp_ntz", datetime), ("d string", str)):
            folder = Folder.of(
                "in", HERE, tmp_path, "parquet", None, defaults={"e": old} if to is date else None
            )
            if own == old and to is not date:
                with pytest.raises(BadFile, match=r"column 'd': .*calendar of Spark 2"):
                    rows(folder, f"n long, {columns}")
            else:
                (row,) = rows(folder, f"n long, {columns}")
                assert row["n"] == 1
                assert (to is not date) or (row["day"], row["e"]) == (old, old)


@pytest.mark.parametrize("metadata", [{"legacyDateTime": ""}, {"legacyINT96": ""}, {"version": "2.4.8"}, {}])
@pytest.mark.parametrize("in_map", [False, True])
def test_old_dates_and_times_of_another_calendar_are_refused(
    tmp_path: Path, metadata: dict[str, str], *, in_map: bool
) -> None:
    """Spark 2, and a later one if asked, writes 1500-01-01 as the day that is 1500-01-10 in Arrow."""
    values = {
        "date": (date(1582, 10, 14), date(1582, 10, 15)),
        "timestamp": (before := datetime(1899, 12, 31, tzinfo=timezone.utc), before.replace(year=1900)),
        "timestamp_ntz": (before.replace(year=1500, tzinfo=None), before.replace(tzinfo=None)),
    }
    named = {f"org.apache.spark.{key}": value for key, value in metadata.items()}
    for kind, (old, new) in values.items():
        declared = f"map<string, {kind}>" if in_map else kind
        schema = as_schema({"t": declared}).with_metadata(named)
        folder = Folder.of("in", HERE, tmp_path, "parquet", None)
        later = pc.field("t") > pa.scalar(new) if not in_map else None
        for value in (new, old):
            cell = {"a": value}.items() if in_map else value
            pq.write_table(pa.table({"t": [[*cell] if in_map else cell]}, schema), tmp_path / "a")
            parts = [Part(file.path, 0, file.size) for file in folder.files()]
            refused = value == old and metadata and kind != "timestamp_ntz"
            if refused and not (kind == "date" and "legacyINT96" in metadata):
                with pytest.raises(BadFile, match=r"(?s)calendar of Spark 2.*Hint: read it by Spark"):
                    # the statistics are of that calendar, too
                    list(folder.read(parts, schema.remove_metadata(), ["t"], later))
            else:
                (batch,) = folder.read(parts, schema.remove_metadata(), ["t"])
                assert batch["t"].to_pylist() == [[*cell] if in_map else cell]
