"""Outputs: Delta, views, subscribers, and when they are told."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from delta.tables import DeltaTable as SparksTable
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.types import StructType as SparksSchema

import timely_spark as ts
from tests.support import tables
from tests.support.tables import part, records, rows_of
from timely_spark.errors import SchemaError
from timely_spark.operators.output_vertex import OutputVertex as Vertex
from timely_spark.operators.table_layout import TableLayout
from timely_spark.runtime.errors import OutputMismatch, TableTaken
from timely_spark.runtime.session import register
from timely_spark.runtime.sinks.delivery import to_frame
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.delta_history import DeltaHistory
from timely_spark.runtime.sinks.memory import MemorySource
from timely_spark.runtime.sinks.outputs import outputs_of, prepare_outputs
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.sinks.system_log import SystemLog

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
CHANGES = SCHEMA.append(pa.field("diff", pa.int32()))


def table(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.Table:
    return records(schema, *rows)


def prepared(
    spark: SparkSession, sink: DeltaSink, schema: pa.Schema = SCHEMA, identity: str = "one"
) -> DeltaSink:
    return tables.prepared(spark, sink, schema, identity)


def test_a_stream_without_data_leaves_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    prepared(spark, DeltaSink(path))

    assert spark.read.format("delta").load(path).dtypes == [
        ("epoch", "bigint"),
        ("k", "bigint"),
        ("v", "string"),
    ]
    assert rows_of(path) == []


@pytest.mark.parametrize("engine", ["delta-rs", pytest.param("Spark", marks=pytest.mark.campaign)])
def test_an_epoch_that_is_delivered_again_is_written_once(
    engine: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path))
    if engine == "Spark":  # what such a property asks of a writer is Delta's own affair
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for epoch in (0, 1, 1, 0, 3):
        sink.deliver(spark, epoch, [part(epoch, table((epoch, "a")))])
    sink = prepared(spark, DeltaSink(path))  # a restart
    sink.deliver(spark, 3, [part(3, table((3, "again")))])
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "1"})
    sink.deliver(spark, 1, [part(1, table((1, "again")))])  # one engine finds what the other wrote

    assert rows_of(path) == [(0, 0, "a"), (1, 1, "a"), (3, 3, "a")]
    written = [commit for commit in DeltaTable(path).history() if commit["operation"] == "WRITE"]
    assert [engine in commit["engineInfo"] for commit in written] == [True] * 3


def test_with_keys_the_table_is_current(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path, keys=("k",), epoch=True))
    sink.deliver(spark, 0, [part(0, table((1, "a"), (2, "b"), (1, "c")))])
    sink.deliver(spark, 2, [part(2, table((2, "z"), (3, "n")))])
    sink.deliver(spark, 2, [part(2, table((2, "again")))])

    assert rows_of(path) == [(0, 1, "c"), (2, 2, "z"), (2, 3, "n")]


@pytest.mark.campaign  # the table is current below
def test_with_keys_an_older_epoch_that_arrives_later_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, changes = str(tmp_path / "table"), str(tmp_path / "changes")
    sink = prepared(spark, DeltaSink(path, keys=("k",), epoch=True))
    sink.deliver(spark, 0, [part(4, table((1, "new"), (2, "b")))])
    sink.deliver(spark, 1, [part(3, table((1, "old"), (3, "c"))), part(4, table((2, "z")))])
    assert rows_of(path) == [(3, 3, "c"), (4, 1, "new"), (4, 2, "z")]

    sink = prepared(spark, DeltaSink(changes, keys=("k",), diff="diff", epoch=True), CHANGES)
    sink.deliver(spark, 0, [part(4, table((1, "new", 1), schema=CHANGES))])
    sink.deliver(
        spark,
        1,
        [
            part(3, table((1, "old", -1), (2, "b", 1), schema=CHANGES)),
            part(5, table((2, "b", -1), schema=CHANGES)),
        ],
    )
    assert rows_of(changes) == [(4, 1, "new")]


def test_with_keys_and_changes_rows_go(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path, keys=("k",), diff="diff"), CHANGES)
    sink.deliver(spark, 0, [part(0, table((1, "a", 1), (2, "b", 1), schema=CHANGES))])
    sink.deliver(spark, 1, [part(1, table((1, "z", 1), (1, "a", -1), (2, "b", -1), schema=CHANGES))])

    assert rows_of(path) == [(1, "z")]


@pytest.mark.campaign
def test_another_checkpoint_is_refused_without_overwrite(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    prepared(spark, DeltaSink(path)).deliver(spark, 0, [part(0, table((1, "a")))])

    with pytest.raises(TableTaken, match="overwrite=True"):
        prepared(spark, DeltaSink(path), identity="two")
    sink = DeltaSink(path, overwrite=True)
    output = Output(name="out", vertex=Vertex(SCHEMA), sink=sink)
    sink.prepare(spark, output, "/nowhere", "two")
    assert (rows_of(path), sink.replaces) == ([(0, 1, "a")], True), "a later output may refuse the start"
    sink.claim(spark, output)
    assert rows_of(path) == []
    sink.deliver(spark, 0, [part(0, table((2, "b")))])
    assert prepared(spark, DeltaSink(path, overwrite=True), identity="two").last() == 0
    assert rows_of(path) == [(0, 2, "b")], "a restart of the new owner overwrites nothing"


# without keys it is the table below, of an earlier version
@pytest.mark.parametrize("keys", [pytest.param((), marks=pytest.mark.campaign), ("k",)])
def test_a_table_without_the_epochs_before_is_refused(
    keys: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path, keys=keys))
    sink.deliver(spark, 0, [part(0, table((1, "a")))])

    prepared(spark, DeltaSink(path, overwrite=True), identity="two")
    with pytest.raises(OutputMismatch, match=r"(?s)table lacks epochs.*overwritten.*\nHint: restore"):
        sink.deliver(spark, 1, [part(1, table((2, "b")))])
    assert rows_of(path) == []
    shutil.rmtree(path)
    with pytest.raises(OutputMismatch, match="lacks epochs"):
        sink.deliver(spark, 1, [part(1, table((2, "b")))])
    for overwrite in (False, True):  # a restart, or the same checkpoint with another table
        again = DeltaSink(path, keys=keys, overwrite=overwrite)
        resumed = Output(name="out", vertex=Vertex(SCHEMA), sink=again, resumed=True)
        with pytest.raises(OutputMismatch, match="lacks epochs"):
            again.prepare(spark, resumed, "/nowhere", "one")
    assert not Path(path).exists()


@pytest.mark.campaign  # tests/runtime/test_delta_local.py restores one without Spark
def test_a_table_that_was_restored_to_before_an_epoch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path))
    for epoch in (0, 1):
        sink.deliver(spark, epoch, [part(epoch, table((epoch, "a")))])
    newest = DeltaTable(path).version()
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest - 1}")
    with pytest.raises(OutputMismatch, match=r"(?s)restored an earlier version.*\nHint: RESTORE"):
        sink.deliver(spark, 2, [part(2, table((2, "b")))])
    with pytest.raises(OutputMismatch, match="restored an earlier version"):
        prepared(spark, DeltaSink(path))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest}")
    for one in (sink, prepared(spark, DeltaSink(path))):
        one.deliver(spark, 2, [part(2, table((2, "b")))])
    assert rows_of(path) == [(0, 0, "a"), (1, 1, "a"), (2, 2, "b")]


@pytest.mark.campaign
def test_a_table_that_was_compacted_and_restored_to_a_time_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    sink = prepared(spark, DeltaSink(path))
    sink.deliver(spark, 0, [part(0, table((0, "a")))])
    compact = spark.read.format("delta").load(path).repartition(1).write.format("delta").mode("overwrite")
    compact.option("dataChange", "false").save(path)
    time = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0].timestamp
    other = spark.createDataFrame([(0, 9, "z")], "epoch long, k long, v string").write.format("delta")
    other.mode("append").save(path)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO TIMESTAMP AS OF '{time}'")
    assert rows_of(path) == [(0, 0, "a")]
    sink.deliver(spark, 1, [part(1, table((1, "b")))])
    assert rows_of(path) == [(0, 0, "a"), (1, 1, "b")]


def test_a_table_in_a_catalog(spark: SparkSession) -> None:
    sink = prepared(spark, DeltaSink("spark_catalog.default.words"))
    sink.deliver(spark, 0, [part(0, table((1, "a")))])

    assert [tuple(row) for row in spark.table("default.words").collect()] == [(0, 1, "a")]


ODD = pa.schema(
    [("a b", pa.int64()), ("v;{}()", pa.struct([("x=y.`z`", pa.string())])), ("n,\t\n", pa.int32())]
)


def properties(path: str) -> dict[str, str]:
    """Those of a Delta table, from its newest metadata."""
    commits = sorted(Path(path, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text("utf-8").splitlines()]
    return [action["metaData"]["configuration"] for action in actions if "metaData" in action][-1]


@pytest.mark.campaign
@pytest.mark.parametrize("keys", [(), ("a b",)])
def test_a_table_has_columns_of_any_name(spark: SparkSession, tmp_path: Path, keys: tuple[str, ...]) -> None:
    path, name = str(tmp_path / "table"), "spark_catalog.default.`odd" + "_keys" * len(keys) + "`"
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    for target in (path, name):
        diff = "n,\t\n" if keys else None
        sink = prepared(spark, DeltaSink(target, keys=keys, diff=diff, epoch=True), ODD)
        sink.deliver(spark, 0, [part(0, table((1, {"x=y.`z`": "a"}, 1), schema=ODD))])
        sink = prepared(spark, DeltaSink(target, keys=keys, diff=diff), ODD)  # a restart
        sink.deliver(spark, 1, [part(1, table((2, {"x=y.`z`": "b"}, 1), schema=ODD))])
        frame = spark.read.format("delta").load(path) if target is path else spark.table(name)
        assert frame.columns == ["epoch", *ODD.names[: 2 if keys else 3]]
        assert sorted(row[:3] for row in frame.collect()) == [(0, 1, ("a",)), (1, 2, ("b",))]


@pytest.mark.campaign  # tests/spark/test_current.py has odd names
def test_only_names_that_need_it_are_mapped(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")

    def rows() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.read.format("delta").load(path).collect()]

    dotted = pa.schema([("a.b", pa.int64()), ("`", pa.struct([("größe-x", pa.string())]))])
    prepared(spark, DeltaSink(path), dotted)
    assert "delta.columnMapping.mode" not in properties(path)

    sink = prepared(spark, DeltaSink(path, overwrite=True), ODD, identity="two")
    sink.deliver(spark, 0, [part(0, table((1, None, 1), schema=ODD))])
    assert properties(path)["delta.columnMapping.mode"] == "name"
    assert rows() == [(0, 1, None, 1)]
    sink = prepared(spark, DeltaSink(path, overwrite=True), identity="three")
    sink.deliver(spark, 0, [part(0, table((1, "a")))])
    assert rows() == [(0, 1, "a")]


def test_mistakes_about_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    with pytest.raises(OutputMismatch, match="'epoch'"):
        prepared(spark, DeltaSink(path), pa.schema([("epoch", pa.int64())]))
    spark.range(1).write.format("delta").save(path)
    with pytest.raises(OutputMismatch, match="exists with columns"):
        prepared(spark, DeltaSink(path))


def test_a_table_has_the_layout_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    path, feed = str(tmp_path / "table"), {"delta.enableChangeDataFeed": "true"}
    parts = TableLayout(partition_by=("v",), comment="it's ${env:HOME}", properties=feed)
    sink = prepared(spark, DeltaSink(path, layout=parts))
    sink.deliver(spark, 0, [part(0, table((1, "a"), (2, "b")))])
    assert DeltaTable(path).metadata().description == "it's ${env:HOME}"
    sink = prepared(spark, DeltaSink(path, layout=TableLayout(comment="other")))  # the next start

    metadata = DeltaTable(path).metadata()
    assert (metadata.partition_columns, metadata.description) == (["v"], "other")
    assert properties(path).items() >= feed.items()
    assert {file.parent.name for file in tmp_path.rglob("*.parquet")} >= {"v=a", "v=b"}
    assert rows_of(path) == [(0, 1, "a"), (0, 2, "b")]
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        why = f"'{text}' in column {{v}}, which Delta stores as null\nHint: "
        with pytest.raises(SchemaError, match=re.escape(why)):
            sink.deliver(spark, 1, [part(1, table((3, text), (4, None)))])
    with pytest.raises(OutputMismatch, match=r"is partitioned by \['v'\]; .*partition_by=\['k'\]"):
        prepared(spark, DeltaSink(path, layout=TableLayout(partition_by=("k",))))


def test_bytes_of_partitions_that_are_not_text_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, schema = str(tmp_path / "table"), pa.schema([("k", pa.int64()), ("v", pa.binary())])
    sink = prepared(spark, DeltaSink(path, layout=TableLayout(partition_by=("v",))), schema)
    rows = [(1, b"a"), (2, "é".encode()), (3, None)]
    sink.deliver(spark, 0, [part(0, table(*rows, schema=schema))])
    for lost, shown in ((b"\xff\xfe", "FFFE"), (b"", "")):
        why = f"'{shown}' in column {{v}}, which Delta stores as text\nHint: "
        with pytest.raises(SchemaError, match=re.escape(why)):
            sink.deliver(spark, 1, [part(1, table((4, lost), schema=schema))])

    assert sorted((row.k, row.v) for row in spark.read.format("delta").load(path).collect()) == rows


def test_a_table_is_partitioned_by_a_column_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    path, names = str(tmp_path / "table"), ("x.`y", "a b ${env:HOME}")
    fields = [pa.field("c d", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))]
    nested = pa.map_(pa.string(), pa.list_(pa.struct(fields)))
    schema = pa.schema([(names[0], pa.string()), (names[1], pa.int64()), ("n", nested)])
    spark = spark.newSession()
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    layout = TableLayout(partition_by=names)
    rows = [("a", 1, {"k": [(1, None)]}), ("b", None, None)]
    sink = prepared(spark, DeltaSink(path, layout=layout), schema)
    sink.deliver(spark, 0, [part(0, table(*rows, schema=schema))])
    assert sorted(spark.read.format("delta").load(path).drop("epoch").collect()) == rows
    prepared(spark, DeltaSink(path, layout=layout), schema)  # the next start
    prepared(spark, DeltaSink(path, layout=layout, overwrite=True), schema, identity="two")
    assert DeltaTable(path).metadata().partition_columns == [*names]


def test_a_table_that_a_killed_process_has_begun_is_made(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.1f.tmp").write_text("{")
    for epoch in (0, 1):
        sink = prepared(spark, DeltaSink(str(tmp_path / "table")))
        if epoch == 0:  # so that a process that is killed here leaves no more than the log
            assert not list(tmp_path.rglob("part-*"))
        sink.deliver(spark, epoch, [part(epoch, table((epoch, "a")))])
    assert rows_of(str(tmp_path / "table")) == [(0, 0, "a"), (1, 1, "a")]


def test_a_place_with_files_that_is_not_a_table_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("rows.csv", "_delta_log/part-0", "_checkpoint/offsets"):
        path = tmp_path / name.replace("/", "-")
        (path / name).parent.mkdir(parents=True)
        (path / name).touch()
        with pytest.raises(OutputMismatch, match=r"is not empty and not a Delta table.\nHint: write to"):
            prepared(spark, DeltaSink(str(path)))
        assert [file for file in path.rglob("*") if file.is_file()] == [path / name]
    name = "spark_catalog.default.forgotten"
    place = Path(spark.conf.get("spark.sql.warehouse.dir", "").removeprefix("file:"), "forgotten")
    place.mkdir(parents=True)
    (place / "part-0").touch()
    try:
        with pytest.raises(OutputMismatch, match=rf"no table {name}, but files (?s:.*)Hint: if this catalog"):
            prepared(spark, DeltaSink(name))
    finally:
        shutil.rmtree(place)


def test_a_start_looks_at_a_table_no_more_often_than_it_must(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, layout = str(tmp_path / "table"), TableLayout(partition_by=("v",))
    prepared(spark, DeltaSink(path, layout=layout))
    looked: list[str] = []

    def counts(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **more: looked.append(name) or function(*args, **more))

    counts(SparksTable, "detail")
    counts(DeltaHistory, "begin")
    prepared(spark, DeltaSink(path, layout=layout))
    assert looked == ["detail", "begin"]
    looked.clear()
    prepared(spark, DeltaSink(path, layout=layout, overwrite=True), identity="two")
    assert looked == ["begin"]  # of the new contents only


def test_a_query_leaves_the_programs_active_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []  # what another thread sees in the middle of each call

    def looking(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def look(*args: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                looks.append(pool.submit(lambda: SparkSession._activeSession).result() is spark)
            return function(*args)

        monkeypatch.setattr(owner, name, look)

    looking(SparkSession, "_create_from_arrow_table")
    looking(DataSourceRegistration, "register")
    spark.createDataFrame([], SparksSchema())  # which PySpark makes the active one
    looks.clear()
    queries = spark.newSession()
    assert to_frame(queries, table((1, "a"))).collect() == [(1, "a")]
    for session in (spark, spark.newSession()):
        register(session, MemorySource)
    assert len(looks) == 4  # the second session's name is refused once
    assert all(looks)
    assert SparkSession.getActiveSession() is spark
    jvm = cast("Any", spark)._jvm.org.apache.spark.sql.classic.SparkSession
    assert jvm.getActiveSession().get().equals(cast("Any", spark)._jsparkSession)


def test_views_whose_names_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    flow, session = ts.Dataflow("views"), cast("SparkSession", None)
    flow.input("x", "n long").to_memory("near").select(m="n").to_memory("Near")
    plan = flow.compile()
    outputs = outputs_of(plan, flow.outputs)
    with pytest.raises(OutputMismatch, match=r"(?s)'Near'.*for that of output 'near'.*Hint: give"):
        prepare_outputs(session, outputs, plan, str(tmp_path), "one")


@pytest.mark.parametrize("part", ["view", "path", "table", "column"])
def test_names_for_which_spark_puts_settings_are_refused(part: str, tmp_path: Path) -> None:
    flow, session, odd = ts.Dataflow("odd"), cast("SparkSession", None), "a${env:HOME}"
    stream = flow.input("x", pa.schema({odd if part == "column" else "n": pa.int64()}))
    if part == "view":
        stream.to_memory(odd)
    else:
        place = {"path": str(tmp_path / odd), "table": f"`{odd}`"}.get(part, str(tmp_path / "table"))
        stream.to_delta(place, keys=[odd] if part == "column" else None)
    plan = flow.compile()
    outputs = outputs_of(plan, flow.outputs)
    with pytest.raises(OutputMismatch, match=r"(?s)a\$\{env:HOME\}.*puts a setting.*Hint: name"):
        prepare_outputs(session, outputs, plan, str(tmp_path), "one")


def test_an_error_of_the_systems_log_is_not_a_step_of_its_name(tmp_path: Path) -> None:
    flow, session = ts.Dataflow("logged"), cast("SparkSession", None)
    flow.input("x", "n long").capture("log")
    plan, output = flow.compile(), SystemLog(str(tmp_path), ()).output
    failing = replace(output, sink=mock.Mock(prepare=mock.Mock(side_effect=ValueError("why"))))
    with pytest.raises(OutputMismatch, match="'log' cannot be prepared: ValueError: why\nHint"):
        prepare_outputs(session, [failing], plan, "", "one")


@pytest.mark.campaign  # the layout that is made, and the one that is refused, are above
def test_a_start_clusters_a_table_and_overwriting_lays_it_out_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    prepared(spark, DeltaSink(path, layout=TableLayout(partition_by=("v",))))
    others = DeltaSink(path, layout=TableLayout(partition_by=("k",)), overwrite=True)
    prepared(spark, others, identity="two")
    assert DeltaTable(path).metadata().partition_columns == ["k"]

    clustered = str(tmp_path / "clustered")
    layout = TableLayout(cluster_by=("k",))
    for _ in range(2):
        sink = prepared(spark, DeltaSink(clustered, keys=["k"], layout=layout))
    sink.deliver(spark, 0, [part(0, table((1, "a")))])
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{clustered}`").collect()
    assert detail["clusteringColumns"] == ["k"]
    assert len(spark.sql(f"DESCRIBE HISTORY delta.`{clustered}`").collect()) == 3  # made, laid out, written


def test_all_outputs_of_one_flow(
    spark: SparkSession, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Any] = []
    flow = ts.Dataflow("outputs")
    x = flow.input("x", "n long")
    x.to_memory("seen_by_people")
    x.to_delta(str(tmp_path / "table"))
    x.subscribe(lambda epoch, table: heard.append((epoch, sorted(table["n"].to_pylist()))))
    x.foreach_epoch(lambda frame, epoch: heard.append((epoch, frame.count())))
    x.inspect("spy", limit=1)
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert spark.table("seen_by_people").count() == 0
        x.send([1, 2])
        assert query.wait_for(timeout=60)
        x.send([3])
        assert query.wait_for(timeout=60)
        view = [tuple(row) for row in spark.table("seen_by_people").orderBy("epoch", "n").collect()]
    first, second = sorted({epoch for epoch, _ in view})
    assert view == [(first, 1), (first, 2), (second, 3)]
    assert rows_of(str(tmp_path / "table")) == view
    assert [each for each in heard if each[0] == first] == [(first, [1, 2]), (first, 2)]
    printed = capsys.readouterr().out
    assert f"spy @ {second}: {{'n': 3}}" in printed
    assert "and 1 more" in printed


def test_on_arrival_nobody_waits_for_the_epoch(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    flow = ts.Dataflow("arrival")
    x = flow.input("x", "n long", epochs="manual")
    x.to_delta(str(tmp_path / "table"), release="arrival")
    x.capture("out")
    with flow.start(spark, checkpoint=checkpoint, workers=1) as query:
        x.send([1])
        query.process_all_available()
        x.send([2])
        query.process_all_available()
        assert rows_of(str(tmp_path / "table")) == [(0, 1), (0, 2)]
        assert query.captured("out").rows() == {}
        x.advance_to(1)
        assert query.wait_for("out", epoch=0, timeout=60)
        assert query.captured("out").rows() == {0: [(1,), (2,)]}


# -- names that are SQL, too ---------------------------------------------------------------------------------
@pytest.mark.campaign
def test_an_id_is_one_property_whatever_it_holds(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for identity in ("x', 'delta.appendOnly' = 'true", "\\'"):
        prepared(spark, DeltaSink(path, overwrite=True), identity=identity)
        assert properties(path)["timely_spark.checkpoint"] == identity
        assert "delta.appendOnly" not in properties(path)


def test_a_relative_path_of_a_delta_table_is_one_of_the_working_directory(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = ts.Dataflow("relative")
    numbers = flow.input("x", "n long")
    numbers.to_delta("out/log")
    numbers.to_delta("./out/now", keys=["n"])
    numbers.send([(1,), (2,)])
    with flow.start(spark, checkpoint=checkpoint, workers=1) as query:
        monkeypatch.chdir("/")
        assert query.wait_for(timeout=100)
    for name in ("log", "now"):
        assert rows_of(tmp_path / "out" / name, "n") == [(1,), (2,)]
