"""Files as a source on Spark: the answer of a DataFrame source, epochs, restarts, replays, and mistakes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.hops import hop
from timely_spark.__main__ import main
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.errors import TimelyError
from timely_spark.runtime.errors import BadFile, QueryFailed, TableUnsupported
from timely_spark.runtime.handle.status import Status

EDGES = [(1, 2), (2, 3), (9, 10), (3, 4), (4, 5), (10, 1)]


def put(folder: Path, number: int, rows: list[tuple[int, ...]], names: str = "src dst") -> None:
    """A file with a smaller modification time than those of later numbers."""
    folder.mkdir(exist_ok=True, parents=True)
    columns = dict(zip(names.split(), zip(*rows, strict=True), strict=True))
    pq.write_table(
        pa.table({**columns, "unread": ["x"] * len(rows)}), folder / f"{number}.parquet", row_group_size=1
    )
    os.utime(folder / f"{number}.parquet", (number + 1, number + 1))


def reach(spark: SparkSession | None, folder: Path) -> ts.Dataflow:
    """What node 1 reaches: a loop over the source, so feedback and files take turns."""
    flow = ts.Dataflow("reach")
    if spark is None:
        edges = flow.files("edges", folder, files_per_epoch=2).where(pc.field("src") > 0).select("src", "dst")
    else:
        frame = (
            spark.readStream.schema("src long, dst long").option("maxFilesPerTrigger", 2).parquet(str(folder))
        )
        edges = flow.source("edges", frame)
    roots = flow.input("roots", "node long")

    roots.loop(hop(edges)).capture("near")
    roots.send([1])
    return flow


def run(flow: ts.Dataflow, spark: SparkSession, checkpoint: str, **more: Any) -> ts.Query:
    query = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now", **more)
    assert query.await_termination(240)
    return query


@pytest.mark.campaign
def test_the_answer_of_a_dataframe_source_at_each_epoch_and_after_a_restart_and_a_replay(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "edges"
    for number in range(4):
        put(folder, number, [EDGES[number]])
    same = run(reach(spark, folder), spark, f"{checkpoint}-frames").captured("near")
    query = run(reach(None, folder), spark, checkpoint, rounds_per_batch=1)
    first = query.captured("near").rows()
    assert [rows for _, rows in sorted(first.items())] == [rows for _, rows in sorted(same.rows().items())]
    assert sorted(row for rows in first.values() for row in rows) == [(1,), (2,), (3,), (4,)]

    put(folder, 9, [EDGES[5]])
    put(folder / "later", -1, [EDGES[4]])  # older than what was read
    flow = reach(None, folder)
    last = run(flow, spark, checkpoint).captured("near").rows()
    assert [rows for epoch, rows in last.items() if epoch not in first and rows] == [[(5,)]]

    newest = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as if the driver had been killed before: the batch runs again
    again = run(reach(None, folder), spark, checkpoint).captured("near").rows()
    assert {epoch: rows for epoch, rows in again.items() if rows or epoch in last} == last


def test_folders_and_tables_are_added_and_removed_and_one_that_comes_back_goes_on(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    def reads(*names: str, **options: Any) -> dict[str, list[tuple[Any, ...]]]:
        flow = ts.Dataflow("several")
        for name in names:
            counted = flow.files(name, tmp_path / name).group_by("n").count(name=f"{name}-counts")
            counted.capture(f"{name}-out")
        query = run(flow, spark, checkpoint, **options)
        counts = {name: query.captured(f"{name}-out").rows() for name in names}
        return {name: [row for epoch in sorted(rows) for row in rows[epoch]] for name, rows in counts.items()}

    for name in "abc":
        put(tmp_path / name, 0, [(7,)], "n")
    assert reads("b") == {"b": [(7, 1)]}
    assert reads("a", "b") == {"a": [(7, 1)], "b": [(7, 1)]}
    put(tmp_path / "a", 1, [(7,)], "n")
    put(tmp_path / "b", 1, [(7,)], "n")
    assert reads("c", "b") == {"c": [(7, 1)], "b": [(7, 1), (7, 2)]}
    put(tmp_path / "a", 2, [(8,)], "n")
    # its counts went with it, and what it has read it does not read again
    with pytest.raises(FlowChanged, match=r"new: step 'a-counts'.*records that have passed before"):
        reads("a")
    assert reads("a", new_steps="empty") == {"a": [(7, 1), (7, 1), (8, 1)]}


def test_epochs_of_a_column_end_with_what_is_available_and_late_rows_are_kept(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, [(1, 7), (2, 7)], "epoch n")
    put(tmp_path / "in", 1, [(4, 7), (0, 5)], "epoch n")

    flow = ts.Dataflow("ends")
    source = flow.files("in", tmp_path / "in", files_per_epoch=1, epoch="epoch")
    source.select("n").group_by("n").count().capture("out")
    source.late.capture("late")

    query = run(flow, spark, checkpoint)
    assert query.captured("out").rows() == {1: [(7, 1)], 2: [(7, 2)], 3: [], 4: [(7, 3)]}
    assert [row[:2] for rows in query.captured("late").rows().values() for row in rows] == [(0, 5)]


def test_a_damaged_file_ends_the_query_with_its_name_and_a_mended_one_is_read(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "edges"
    put(folder, 0, [EDGES[0]])
    flow = ts.Dataflow("damaged")
    flow.files("edges", folder).select("dst").capture("out")
    folder.joinpath("1.parquet").write_bytes(b"PAR1 half of it")

    query = flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now")
    with pytest.raises(
        BadFile, match=r"(?s)source 'edges': .*1\.parquet cannot be read.*test_files\.py:\d+\)\nHint"
    ):
        query.await_termination(240)
    put(folder, 1, [EDGES[1]])
    query = run(flow, spark, checkpoint)
    assert query.captured("out").rows() == {0: [(2,), (3,)]}

    gone = ts.Dataflow("gone")
    gone.files("edges", tmp_path / "none", schema="src long").capture("out")
    with pytest.raises(TimelyError, match="does not exist"):
        gone.start(spark, trigger="available_now")


def test_a_delta_table_and_its_changes_version_by_version(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    properties = "tblproperties (delta.enableChangeDataFeed = true)"
    spark.sql(
        f"create table delta.`{table}` (k long, day date) using delta partitioned by (day) {properties}"
    )
    spark.sql(f"insert into delta.`{table}` values (1, date'2024-01-01'), (2, null)")

    def answer(**more: Any) -> list[list[Any]]:
        flow = ts.Dataflow("delta")
        source = flow.delta("table", table, changes=True)
        source.collection(diff="diff").map(lambda row: (row.k,), "k long").changes("diff").capture("out")
        rows = run(flow, spark, checkpoint, **more).captured("out").rows()
        return [rows[epoch] for epoch in sorted(rows)]

    assert answer() == [[(1, 1), (2, 1)]]
    spark.sql(f"update delta.`{table}` set k = 5 where k = 1")
    spark.sql(f"optimize delta.`{table}`")
    spark.sql(f"delete from delta.`{table}` where k = 2")
    assert answer()[1:] == [[(1, -1), (5, 1)], [(2, -1)]]

    spark.sql(f"alter table delta.`{table}` set tblproperties (delta.enableDeletionVectors = true)")

    def by_spark() -> ts.Dataflow:
        flow = ts.Dataflow("by Spark")
        flow.delta("table", table).select("k").capture("out")
        return flow

    assert run(by_spark(), spark, f"{checkpoint}-2").captured("out").rows() == {0: [(5,)]}
    spark.sql(f"alter table delta.`{table}` set tblproperties (delta.enableChangeDataFeed = false)")
    spark.sql(f"delete from delta.`{table}`")
    with pytest.raises(TableUnsupported, match="does not record its changes"):
        ts.Dataflow("by path").delta("changes", table, changes=True)
    with pytest.raises(TableUnsupported, match="does not record its changes"):
        ts.Dataflow("by name").table("changes", f"delta.`{table}`", changes=True)
    with pytest.raises(QueryFailed, match="changes=True"):
        run(by_spark(), spark, f"{checkpoint}-2")


@pytest.mark.share(2)
@pytest.mark.parametrize("way", ["skip", "quarantine"])
def test_a_flow_goes_on_without_a_poison_file(
    spark: SparkSession, tmp_path: Path, checkpoint: str, way: Any
) -> None:
    folder = tmp_path / "in"
    put(folder, 1, [(1, 2)])

    def counted() -> ts.Dataflow:
        flow = ts.Dataflow("poisoned")
        more = {"on_bad_file": way} if way == "quarantine" else {}
        flow.files("edges", folder, schema="src long, dst long", **more).capture("out")
        return flow

    run(counted(), spark, checkpoint)
    put(folder, 3, [(5, 6), (7, 8)])
    half = (folder / "3.parquet").read_bytes()
    (folder / "odd 2% #?.parquet").write_bytes(half[: len(half) // 2])
    os.utime(folder / "odd 2% #?.parquet", (2, 2))
    command = f"python -m timely_spark skip {re.escape(checkpoint)} --file"
    if way == "skip":
        with pytest.raises(BadFile, match=r"(?s)odd 2% #\?\.parquet.*Hint: .*" + command):
            run(counted(), spark, checkpoint).await_termination()
        (folder / "odd 2% #?.parquet").unlink()  # which alone does not help
        with pytest.raises(BadFile, match="(?s)was removed .*" + command):
            run(counted(), spark, checkpoint).await_termination()
        assert main(["skip", checkpoint, "--file", "odd 2% #?.parquet"]) == 0
    query = run(counted(), spark, checkpoint)
    rows = [row for epoch in query.captured("out").rows().values() for row in epoch]
    assert sorted(rows) == [(1, 2), (5, 6), (7, 8)]
    read = Status.of(checkpoint).read["edges"]
    assert (read.listed, read.entered, read.rows) == (3, 2, 3)
    assert (read.quarantined, read.skipped) == ((1, 0) if way == "quarantine" else (0, 1))
    assert any("odd 2% #?.parquet" in name for name in read.names)


# by the clock: the flow above quarantines a file, and tests/runtime/sources/test_file_readers.py kills the
# process
@pytest.mark.parametrize(
    "more",
    [pytest.param({}, id="clock", marks=pytest.mark.campaign), pytest.param({"epoch": "src"}, id="column")],
)
def test_quarantined_files_are_told_once_also_if_no_file_is_good(
    spark: SparkSession, tmp_path: Path, checkpoint: str, more: Any
) -> None:
    folder = tmp_path / "in"

    def built() -> ts.Dataflow:
        flow = ts.Dataflow("quarantining")
        schema, way = "src long, dst long", {"on_bad_file": "quarantine", "files_per_epoch": 1}
        source = flow.files("edges", folder, schema=schema, **way, **more)
        source.select("dst").capture("out")
        source.quarantined.select("path", "size").capture("bad")
        return flow

    def bad(number: int) -> tuple[str, int]:
        put(folder, number, [(number, number)])
        half = (folder / f"{number}.parquet").read_bytes()[:-9]
        (folder / f"{number}.parquet").write_bytes(half)
        os.utime(folder / f"{number}.parquet", (number + 1, number + 1))
        return str(folder / f"{number}.parquet"), len(half)

    told = [bad(1)]
    run(built(), spark, checkpoint)  # the only file is damaged
    told += [bad(2), bad(4)]
    for number in (3, 5, 6):
        put(folder, number, [(number, number)])
    run(built(), spark, checkpoint)
    newest = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as if the driver had been killed before: the batch runs again
    query = run(built(), spark, checkpoint)

    found = {name: query.captured(name).rows() for name in ("out", "bad")}
    assert [row for rows in found["out"].values() for row in rows] == [(3,), (5,), (6,)]
    assert [row for rows in found["bad"].values() for row in rows] == told
    read = Status.of(checkpoint).read["edges"]
    assert (read.listed, read.entered, read.quarantined, read.rows) == (6, 3, 3, 3)


def test_a_checkpoint_or_an_output_in_a_folder_that_is_read_is_refused(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """The next epoch would have them as records."""

    def flow(out: Path, **table: Path) -> ts.Dataflow:
        made = ts.Dataflow("inside")
        read = made.files("in", tmp_path / "in", format="json", schema="n long")
        read.to_files(out, name="kept")
        for name, place in table.items():
            read.to_delta(str(place), name=name)
        return made

    (tmp_path / "in").mkdir()
    with pytest.raises(BadFile, match=r"'in': output 'table' is in the folder that it reads"):
        flow(tmp_path / "out", table=tmp_path / "in" / "table").start(spark, checkpoint=checkpoint)
    for argument in ("log_to", "record"):
        inside: Any = {argument: tmp_path / "in" / "more"}
        with pytest.raises(BadFile, match=rf"'in': .*{argument}=\) is in the folder that it reads"):
            flow(tmp_path / "out").start(spark, checkpoint=checkpoint, **inside)
    with pytest.raises(
        BadFile, match=r"(?s)'in': the checkpoint is in the folder that it reads.*Hint: put it"
    ):
        flow(tmp_path / "out").start(spark, checkpoint=str(tmp_path / "in/checkpoint"))
    with pytest.raises(
        BadFile, match=r"(?s)'in': output 'kept' is in the folder that it reads.*Hint: put it"
    ):
        flow(tmp_path / "in/out").start(spark, checkpoint=checkpoint)
    assert list((tmp_path / "in").iterdir()) == []
