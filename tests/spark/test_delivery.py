"""Deliveries: small and large ones, those that come again, and sinks that fail for a while."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

import timely_spark as ts
from tests.support.tables import operations, part, prepared, rows_of
from timely_spark.coordinator import OUTPUTS
from timely_spark.errors import VertexError
from timely_spark.graph import Monotone
from timely_spark.operators.output_vertex import VOID, MonotoneOutput
from timely_spark.operators.output_vertex import OutputVertex as Vertex
from timely_spark.runtime.errors import OutputMismatch, TableTaken
from timely_spark.runtime.sinks import delivery, delta, delta_local
from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.folder import FolderSink
from timely_spark.runtime.sinks.pending_outputs import PendingOutputs
from timely_spark.runtime.sinks.sink import CaptureSink, Output
from timely_spark.runtime.storage.blobs import EMBEDDED, Blobs, file_of
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.state.arrow import to_bytes

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us", "UTC"))])
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc)


def table(*rows: tuple[int, str], schema: pa.Schema = SCHEMA, **more: list[Any]) -> pa.Table:
    found = pa.Table.from_pylist([{"k": k, "v": v, "at": NOON} for k, v in rows], schema=schema)
    for name, values in more.items():
        found = found.append_column(name, pa.array(values))
    return found


def test_a_column_for_which_spark_has_no_type_is_named() -> None:
    for kind in (pa.uint64(), pa.list_(pa.uint8()), pa.date64(), pa.float16()):
        with pytest.raises(
            OutputMismatch, match=r"(?s)column 'v' is .*, for which Spark has no type.*Hint: "
        ):
            delivery.spark_schema(pa.schema([("k", pa.int64()), ("v", kind)]))

    made = delivery.spark_schema(
        pa.schema([("k", pa.int64()), ("n", pa.timestamp("us")), ("d", pa.duration("us"))])
    )
    assert made.simpleString() == "struct<k:bigint,n:timestamp_ntz,d:interval day to second>"


def refined(*tables: pa.Table) -> Delivery:
    return part(0, *tables, vertex=MonotoneOutput(SCHEMA, None, Monotone(("k",), "v", greatest=False)))


# -- what waits for its epoch --------------------------------------------------------------------------------


def manifest(batch: int, **parts: Any) -> Manifest:
    nothing: dict[str, Any] = {
        "plan": "", "run": "", "coordinator": {}, "header": "", "runnable": True, "released": [],
        "frontier": {}, "complete": False, "captured": {}, "unreleased": {}, "garbage": [], "kept_from": 0,
        "rounds": 1, "bound": {"rounds": 1},
    }  # fmt: skip
    return Manifest(batch=batch, micro_batch=batch, **(nothing | parts))


def put_out(*rows: tuple[str, int, int, bytes]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=OUTPUTS)


def test_parts_wait_by_reference_and_go_with_the_last_of_their_file(tmp_path: Path) -> None:
    log = RoundLog(str(tmp_path), term=0)
    blobs, vertex = Blobs(log.files), Vertex(pa.schema([("n", pa.int64())]))
    ours = {name: Output(name=name, vertex=vertex, sink=CaptureSink()) for name in ("a", "b")}

    def bulky(n: int) -> bytes:
        return to_bytes(pa.table({"n": [n] * 100_000}))

    mine = blobs.put("0-0-out", bulky(7))  # by a worker
    outputs = put_out(
        ("a", 0, 1, bulky(2)),
        ("a", 0, 0, mine),
        ("b", 0, 1, bulky(3)),
        ("b", 9, 0, bulky(4)),
        ("c", 0, 0, b""),
    )
    first = PendingOutputs(log, manifest(-1), outputs, 0, {"a", "b"}).into(manifest(0))
    kept = log.outputs(first.unreleased["a"]["0"][0])
    assert first.garbage == []
    assert kept.num_rows == 4, "nobody asked for c"
    assert all(file_of(payload) for payload in kept["payload"].to_pylist())
    assert log.files.size(first.unreleased["a"]["0"][0]) < 10_000

    second = PendingOutputs(log, first, put_out(("a", 0, 0, to_bytes(pa.table({"n": [5]})))), 1, {"a", "b"})
    taken = second.take(ours["a"], 0).table["n"].to_pylist()
    assert taken == [*[7] * 100_000, *[2] * 100_000, 5], "by batch, then by worker"
    after = second.into(manifest(1))
    assert after.garbage == [], "others of the file still wait"

    third = PendingOutputs(log, after, OUTPUTS.empty_table(), 2, {"a", "b"})
    for epoch in (0, 9):
        third.take(ours["b"], epoch)
    assert sorted(third.into(manifest(2)).garbage) == sorted(
        [*log.files.names("outputs"), *log.files.names("blobs")]
    )


def test_what_is_delivered_in_its_own_batch_is_gone_with_it(tmp_path: Path) -> None:
    log = RoundLog(str(tmp_path), term=0)
    output = Output(name="a", vertex=Vertex(pa.schema([("n", pa.int64())])), sink=CaptureSink())
    payload = Blobs(log.files).put("0-0-out", to_bytes(pa.table({"n": list(range(EMBEDDED))})))
    pending = PendingOutputs(log, manifest(-1), put_out(("a", 0, 0, payload)), 0, {"a"})
    assert pending.arrived(output)[0].table.num_rows == EMBEDDED
    after = pending.into(manifest(0))
    assert (after.garbage, after.unreleased) == (log.files.names("blobs"), {})


def test_complete_epochs_that_wait_are_released_with_the_one_that_ends_the_wait(tmp_path: Path) -> None:
    log, names = RoundLog(str(tmp_path), term=0), {"a", "b"}
    pending = PendingOutputs(log, manifest(0, due={"a": [3]}), OUTPUTS.empty_table(), 1, names)
    pending.due["a"] = [3, 4]
    assert pending.released([("a", 4), ("b", 4)]) == [("b", 4)]

    after = PendingOutputs(log, pending.into(manifest(1)), OUTPUTS.empty_table(), 2, names)
    assert after.released([("a", 5)]) == [("a", 3), ("a", 4), ("a", 5)]


def test_parts_for_an_output_that_was_removed_are_gone(tmp_path: Path) -> None:
    log = RoundLog(str(tmp_path), term=0)
    before = PendingOutputs(log, manifest(-1), put_out(("a", 0, 0, b"x")), 0, {"a"}).into(manifest(0))
    after = PendingOutputs(log, before, OUTPUTS.empty_table(), 1, {"b"}).into(manifest(1))
    assert (after.unreleased, after.garbage) == ({}, log.files.names("outputs"))


# -- large epochs --------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_a_large_epoch_is_what_a_small_one_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key comes from two workers here, as it does when their number changes within an epoch."""
    plain = part(3, table((1, "a"), (2, "b")), table((1, "c")), table(), table((4, "d")))
    better = refined(
        table((1, "z"), (2, "y"), (3, "x"), **{VOID: [False] * 3}),
        table((2, "b"), (1, "c"), **{VOID: [False] * 2}),
        table((1, "c"), (5, "e"), **{VOID: [True, False]}),
    )
    whole = [(one.table, one.frame(spark, order="o").collect()) for one in (plain, better)]
    monkeypatch.setattr(delivery, "LARGE", 0)
    monkeypatch.setattr(delivery, "TASK_BYTES", 800)
    assert len(delivery._shares(better.payloads)) > 1
    for one, (expected, small) in zip((plain, better), whole, strict=True):
        assert one.frame(spark).schema == one.frame(spark, order="o").drop("o").schema
        found = one.frame(spark, order="o").collect()
        assert sorted(map(tuple, one.frame(spark).collect())) == sorted(row[:3] for row in found)
        assert sorted(row[:3] for row in found) == sorted(row[:3] for row in small)
        assert sorted(row[:2] for row in found) == sorted(
            zip(*expected.select(["k", "v"]).to_pydict().values(), strict=True)
        )
        assert len({row["o"] for row in found}) == len(found)
    ordered = plain.frame(spark, order="o").orderBy("o").collect()
    assert [row["v"] for row in ordered] == ["a", "b", "c", "d"]

    # the user's key, too, comes from several workers
    sink = prepared(spark, DeltaSink(str(tmp_path / "t"), keys=("k",), epoch=True), SCHEMA)
    sink.deliver(spark, 0, [part(3, table((2, "old"))), part(4, table((1, "a"), (2, "b")), table((1, "c")))])
    assert rows_of(tmp_path / "t", "epoch", "k", "v") == [(4, 1, "c"), (4, 2, "b")]


def test_a_large_epoch_reaches_its_sinks_past_the_driver(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table_of(one: Delivery) -> pa.Table:
        assert not one.payloads, "the driver reads an epoch"
        return one.vertex.finish([])

    monkeypatch.setattr(delivery, "LARGE", 1 << 20)
    monkeypatch.setattr(delivery, "TASK_BYTES", 1 << 20)
    monkeypatch.setattr(Delivery, "table", property(table_of))
    heard: list[Any] = []
    of_n = functions.count("n"), functions.sum("n")
    flow = ts.Dataflow("large")
    x = flow.input("x", "n long")
    x.exchange("n").foreach_epoch(
        lambda frame, epoch: heard.append((epoch, tuple(frame.agg(*of_n).collect()[0])))
    )
    x.to_files(str(tmp_path / "files"))
    n = 400_000
    x.send(pa.table({"n": range(n)}))
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for(timeout=60)
        query.process_all_available()
        last = query._watch.newest()
    (epoch, found), *_ = heard
    assert found == (n, n * (n - 1) // 2)
    files = RoundLog(checkpoint).files
    gone = {
        name for batch in range(last.batch + 1) for name in (RoundLog(checkpoint).read(batch) or last).garbage
    }
    assert set(files.names("blobs")) <= gone, "all of it is delivered, so nobody needs it"
    assert files.names("blobs"), "it went by reference"
    archive = spark.read.parquet(str(tmp_path / "files"))
    assert tuple(archive.agg(*of_n).collect()[0]) == found
    assert [row["epoch"] for row in archive.select("epoch").distinct().collect()] == [epoch]


# -- files ---------------------------------------------------------------------------------------------------


def folder(
    path: Path, format: Any = "parquet", identity: str = "one", output: str = "out", **options: Any
) -> FolderSink:
    return prepared(None, FolderSink(str(path), format, **options), SCHEMA, identity, output)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv"])
def test_an_epoch_is_one_file_and_the_same_when_it_comes_again(tmp_path: Path, format: str) -> None:
    sink = folder(tmp_path, format)
    for epoch in (0, 12):
        sink.deliver(None, epoch, [part(epoch, table((epoch, "a"), (2, "b")))])  # type: ignore[arg-type]
    sink.deliver(None, 3, [part(3, table())])  # type: ignore[arg-type]
    before = contents(tmp_path)
    assert sorted(before) == [
        "_timely_spark.json",
        *(f"epoch-000000000000000000{number}.{format}" for number in ("00", "03", "12")),
    ]
    folder(tmp_path, format).deliver(None, 12, [part(12, table((12, "a"), (2, "b")))])  # type: ignore[arg-type]
    assert contents(tmp_path) == before
    if format == "arrow":
        last = pa.ipc.open_file(tmp_path / max(before)).read_all()
        assert last.to_pydict() == {"epoch": [12, 12], "k": [12, 2], "v": ["a", "b"], "at": [NOON, NOON]}


def test_spark_reads_the_folder_and_no_temporary_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = folder(tmp_path / "small"), folder(tmp_path / "large")
    (tmp_path / "small" / ".half.tmp").write_bytes(b"half a file")
    parts = [part(0, table((1, "a")), table((2, "b"))), part(1, table())]
    for one in parts:
        small.deliver(spark, one.epoch, [one])
    monkeypatch.setattr(delivery, "LARGE", 0)
    for one in (*parts, parts[0]):  # and again
        large.deliver(spark, one.epoch, [one])
    found = [spark.read.parquet(str(tmp_path / name)) for name in ("small", "large")]
    assert [frame.dtypes[0] for frame in found] == [("epoch", "bigint")] * 2
    assert found[0].dtypes == found[1].dtypes
    assert [sorted(row[:3] for row in frame.collect()) for frame in found] == [[(0, 1, "a"), (0, 2, "b")]] * 2


def test_a_folder_that_is_not_the_outputs_own_is_refused(tmp_path: Path) -> None:
    epoch = part(7, table((1, "a")))
    folder(tmp_path / "mine").deliver(None, 7, [epoch])  # type: ignore[arg-type]
    with pytest.raises(TableTaken, match=r"one; this one is two.*\n.*overwrite=True"):
        folder(tmp_path / "mine", identity="two")
    with pytest.raises(OutputMismatch, match="output 'other' would overwrite"):
        folder(tmp_path / "mine", output="other", overwrite=True)
    assert "epoch-00000000000000000007.parquet" in contents(tmp_path / "mine")
    folder(tmp_path / "mine", identity="two", overwrite=True)
    assert list(contents(tmp_path / "mine")) == ["_timely_spark.json"]
    sink = FolderSink(str(tmp_path / "elsewhere"))
    resumed = Output(name="out", vertex=Vertex(SCHEMA), sink=sink, resumed=True)
    with pytest.raises(OutputMismatch, match=r"elsewhere lacks epochs .*\nHint: restore"):
        sink.prepare(None, resumed, "/nowhere", "one")  # type: ignore[arg-type]
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "data.parquet").touch()
    with pytest.raises(OutputMismatch, match=r"'data\.parquet'"):
        folder(tmp_path / "others", overwrite=True)
    with pytest.raises(OutputMismatch, match="nested"):
        prepared(None, FolderSink(str(tmp_path / "csv"), "csv"), pa.schema([("l", pa.list_(pa.int64()))]))


# -- exactly once --------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_two_outputs_of_a_flow_in_one_table_both_arrive_and_the_users_own_rows_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("n", pa.int64())])
    sinks = [prepared(spark, DeltaSink(str(tmp_path / "t")), schema, output=name) for name in "ab"]
    for _ in range(2):  # and again
        for n, sink in enumerate(sinks):
            sink.deliver(spark, 0, [part(0, pa.table({"n": [n]}))])
    spark.sql(f"INSERT INTO delta.`{tmp_path / 't'}` VALUES (-1, 7)")
    sinks[0].deliver(spark, 1, [part(1, pa.table({"n": [2]}))])
    assert rows_of(tmp_path / "t", "epoch", "n") == [(-1, 7), (0, 0), (0, 1), (1, 2)]
    assert Counter(operations(tmp_path / "t"))["WRITE"] == 4

    third = DeltaSink(str(tmp_path / "t"))  # with other columns is told so at the start
    with pytest.raises(OutputMismatch, match="the stream writes"):
        prepared(spark, third, pa.schema([("m", pa.int64())]), output="c")


def test_a_sink_that_fails_stops_the_query_and_a_restart_delivers_what_it_missed(
    spark: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    fails_at = [2]

    def on_epoch(epoch: int, table: pa.Table) -> None:
        heard.append((epoch, table["n"].to_pylist()))
        if epoch in fails_at:
            msg = "no more room"
            raise OSError(msg)

    def build(files: str = "files") -> tuple[ts.Dataflow, ts.Input]:
        flow = ts.Dataflow("failing")
        x = flow.input("x", "k long, n long", epochs="manual")
        x.to_delta(str(tmp_path / "log"), name="log")
        x.to_delta(str(tmp_path / "now"), keys="k", epoch=True, name="now")
        x.to_files(str(tmp_path / files), name="files")
        x.subscribe(on_epoch, name="heard")
        return flow, x

    def failing(query: ts.Query, reason: str) -> str:
        with query, pytest.raises(VertexError, match=reason) as failed:
            query.wait_for("heard", epoch=2, timeout=60)
        return str(failed.value)

    # two epochs are complete in one batch; the table takes the first, and then nothing for a while
    saved: list[int] = []

    def append_once(folder: str, records: pa.Table, app: str, version: int, owner: Any) -> bool:
        if saved:
            msg = "the table cannot be written"
            raise PermissionError(msg)
        saved.append(version)
        return delta_local.appended(folder, records, app, version, owner)

    flow, x = build()
    for epoch in range(2):
        x.send([(1, 10 + epoch)])
        x.advance_to(epoch + 1)
    with monkeypatch.context() as patched:
        patched.setattr(delta, "appended", append_once)
        query = flow.start(spark, checkpoint=checkpoint, workers=1, commit_every=0)
        message = failing(query, "step 'log'.* failed at epoch 1.*: PermissionError")
    assert "test_delivery.py:" in message
    assert rows_of(tmp_path / "log", "epoch", "n") == [(0, 10)]

    # now the subscriber fails, after all others have had the epoch
    flow, x = build()
    query = flow.start(spark, checkpoint=checkpoint, workers=1, commit_every=0)
    x.send([(1, 12)])
    x.advance_to(3)
    failing(query, "step 'heard'.* failed at epoch 2.*: OSError: no more room")
    fails_at.clear()
    with pytest.raises(OutputMismatch, match="elsewhere lacks epochs"):
        build("elsewhere")[0].start(spark, checkpoint=checkpoint, workers=1)
    flow, _ = build()
    with flow.start(spark, checkpoint=checkpoint, workers=1) as query:
        assert query.wait_for("heard", epoch=2, timeout=60)

    expected = [(epoch, 10 + epoch) for epoch in range(3)]
    assert rows_of(tmp_path / "log", "epoch", "n") == expected
    assert rows_of(tmp_path / "now", "epoch", "k", "n") == [(2, 1, 12)]
    assert Counter(operations(tmp_path / "log")) == {"CREATE TABLE": 1, "WRITE": 3}, "a commit for each epoch"
    assert Counter(operations(tmp_path / "now")) == {"CREATE TABLE": 1, "MERGE": 3}
    archive = spark.read.parquet(str(tmp_path / "files")).select("epoch", "n").collect()
    assert sorted(map(tuple, archive)) == expected
    assert [(epoch, [n]) for epoch, n in expected] == sorted(
        {epoch: (epoch, n) for epoch, n in heard}.values()
    )
    assert [epoch for epoch, _ in heard].count(2) == 2, "at least once"


@pytest.mark.campaign  # two outputs in one table are tested below
def test_transactions_of_one_query_are_not_seen_by_another_nor_by_the_user(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = "spark.databricks.delta.write.txnAppId"
    seen: list[Any] = []
    queries, inputs = [], []
    for name in ("one", "two"):
        flow = ts.Dataflow(name)
        x = flow.input("x", "k double, n long")  # by a key that is compared by Spark
        x.to_delta(str(tmp_path / name), keys="k")
        x.foreach_epoch(lambda frame, _: seen.append(frame.sparkSession.conf.get(app, None)))
        queries.append(flow.start(spark, checkpoint=str(tmp_path / f"c-{name}"), workers=1))
        inputs.append(x)
    try:
        for x in inputs:
            x.send([(1, 5)])
        for query in queries:
            assert query.wait_for(timeout=60)
    finally:
        for query in queries:
            query.stop()
    assert set(seen) == {None}
    assert spark.conf.get(app, None) is None
    assert [rows_of(tmp_path / name, "k", "n") for name in ("one", "two")] == [[(1, 5)]] * 2


def test_what_has_waited_for_its_epoch_comes_on_arrival(tmp_path: Path) -> None:
    log, schema = RoundLog(str(tmp_path), term=0), pa.schema([("n", pa.int64())])
    record = to_bytes(pa.table({"n": [5]}))
    before = PendingOutputs(log, manifest(-1), put_out(("a", 3, 0, record)), 0, {"a"}).into(manifest(0))
    now = PendingOutputs(log, before, OUTPUTS.empty_table(), 1, {"a"})
    arrived = now.arrived(Output(name="a", vertex=Vertex(schema), sink=CaptureSink()))
    assert [(each.epoch, each.table["n"].to_pylist()) for each in arrived] == [(3, [5])]
