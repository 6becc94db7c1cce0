"""What reaches the disk, in which order records are, and which files stay: seen without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.engine import Process, World
from tests.support.hops import to_next_key
from timely_spark.errors import LogDamaged
from timely_spark.operators.output_vertex import OutputVertex
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.query import flow_reader
from timely_spark.runtime.session import refuse_wheel
from timely_spark.runtime.sinks import delivery
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.folder import Writer
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import HEAD, Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.state.arrow import to_bytes


def test_a_file_and_its_name_are_synced(tmp_path: Path, synced: list[str]) -> None:
    files = Files(str(tmp_path))
    files.write("a/b", b"x")
    synced.clear()
    files.sync("a/b")
    assert synced == [str(tmp_path / "a" / "b"), str(tmp_path / "a")]


def test_an_epoch_in_a_folder_is_durable_when_it_is_delivered(tmp_path: Path, synced: list[str]) -> None:
    table = pa.table({"n": [1]})
    Writer(Files(str(tmp_path)), "epoch-1.parquet", "parquet", table.schema, 1)([table])
    assert str(tmp_path) in synced
    assert any(path.startswith(f"{tmp_path}/.") for path in synced), "the content, before it has its name"
    sink = CaptureFolderSink(str(tmp_path / "captured"))
    output = SimpleNamespace(name="captured", schema=table.schema, resumed=False)
    sink.prepare(None, output, "/nowhere", "one")  # type: ignore[arg-type]
    for mark in (lambda: sink.claim(None, output), sink.complete):  # type: ignore[arg-type]
        synced.clear()
        mark()
        assert synced[-1] == sink.path


def test_records_of_a_large_epoch_are_in_the_order_of_their_payloads(tmp_path: Path) -> None:
    """An upsert takes the last record of a key: those of later payloads come after all others."""
    blobs = Blobs(Files(str(tmp_path)))
    tables = [pa.table({"n": [10 * place + row for row in range(5)]}) for place in range(3)]
    shares = [[(place, to_bytes(table))] for place, table in enumerate(tables)]
    read = delivery._reader(blobs, shares, tables[0].schema.append(pa.field("o", pa.int64())), "o")
    batches = list(read(iter([pa.record_batch({"id": [2, 0, 1]})])))
    rows = pa.Table.from_batches(batches).sort_by("o")
    assert rows["n"].to_pylist() == [10 * place + row for place in range(3) for row in range(5)]
    assert len(set(rows["o"].to_pylist())) == 15


def test_the_driver_reads_no_record_of_a_large_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("n", pa.int64())])

    def epoch(*rows: int) -> Delivery:
        payload = to_bytes(pa.table({"n": pa.array(rows, pa.int64())}))
        return Delivery(0, [payload], Blobs(Files(str(tmp_path))), OutputVertex(schema))

    assert [epoch().is_empty, epoch(7).is_empty] == [True, False]
    monkeypatch.setattr(delivery, "LARGE", 0)
    assert [epoch().is_empty, epoch(7).is_empty] == [False, False], "nobody has looked"


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("epochs", ["clock", "manual"])
def test_no_file_is_removed_that_a_retained_batch_needs(tmp_path: Path, epochs: Any) -> None:
    """After each batch of a loop, whose messages, states and waiting outputs are all in files."""
    flow = ts.Dataflow("kept")

    numbers = flow.input("x", "k long, v long", epochs=epochs)
    numbers.loop(to_next_key, max_iterations=3, on_limit="return").capture("out")
    numbers.distinct(name="once").capture("all")
    calls = [("send", ([(n % 7, 9 * n + m) for n in range(40)],)) for m in range(16)]
    if epochs == "manual":  # outputs wait for several batches
        for at in (12, 8, 4):
            calls.insert(at, ("advance_to", (at,)))  # type: ignore[arg-type]
    world = World(flow, str(tmp_path), {"x": calls}, rounds=1, workers=2, keep=3)
    looked: list[int] = []

    def look(batch: int) -> None:
        live, _, present = engine.files(RoundLog(world.checkpoint))
        assert live
        assert live <= present
        looked.append(batch)

    world.committed = look
    process = Process(world)
    process.thread = threading.current_thread()
    world.processes = [process]
    with engine._points(world):
        process.start()
        while process.batch():
            pass
    assert len(looked) > 9
    assert engine.difference(world) is None


def test_a_wheel_that_spark_does_not_import_from_is_refused_by_name() -> None:
    def session(files: str) -> Any:
        return SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: files))

    place = "/tmp/spark/timely_spark-0.1.0-py3-none-any.whl/timely_spark/__init__.py"
    given = "file:/x/other.py,hdfs:/y/timely_spark-0.1.0-py3-none-any.whl"
    with pytest.raises(ts.TimelyError, match=r"(?s)timely_spark-0\.1\.0-py3-none-any\.whl.*Hint: .*\.zip"):
        refuse_wheel(session(given), place)
    refuse_wheel(session("hdfs:/y/other-1.whl"), place)
    refuse_wheel(session(given), "/site-packages/timely_spark/__init__.py")
    refuse_wheel(session(given.replace(".whl", ".zip")), place.replace(".whl", ".zip"))


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupted_send_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    handle, real = InputHandle("x", "n long"), Files.write_table
    handle.open(RoundLog(str(tmp_path)))

    def interrupted(*args: Any, **options: Any) -> None:
        if written:
            real(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Files, "write_table", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.send([1])
    assert handle.sent == written
    handle.send([2])
    assert handle.sent == written + 1


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    schema = pa.schema([], {HEAD: b'{"format": 8}'})
    files.write_table("rounds/0/0.arrow", schema.empty_table())
    with pytest.raises(OtherFlow, match="has format 8"):
        Manifest.of(files, "rounds/0/0.arrow", files.schema("rounds/0/0.arrow"))


def numbers() -> ts.Dataflow:
    flow = ts.Dataflow("numbers")
    flow.input("x", "n long").capture("out")
    return flow


def test_a_question_of_spark_answers_a_request_to_rest_first(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, asked = begin(numbers()).reader, list[Any]()
    monkeypatch.setattr(flow_reader, "rest", asked.append)
    reader.latest_offset(reader.initial_offset())
    assert asked == [reader.context]


def test_a_manifest_that_is_missing_between_others_is_damage(begin: Any, tmp_path: Path) -> None:
    process = begin(numbers(), keep=9)
    for n in range(4):
        process.handles["x"].send([n])
        process.batches()
    log = process.context.log
    RoundLog(str(tmp_path), log.term + 1).chosen()
    log.files.remove(f"rounds/{log.term}/{log.newest() - 1}.arrow")
    with pytest.raises(LogDamaged, match=f"{log.newest() - 1}"):
        RoundLog(str(tmp_path), log.term + 1).chosen()
