"""What survives: bulk by reference, one owner of a checkpoint at a time, and what a checkpoint tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.__main__ import main
from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import CheckpointInUse
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.storage.blobs import BULK, Blobs, file_of, files_of, size_of
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.worker import ROWS, wire
from timely_spark.worker.wire import Header, Item, Message, SinkRows

ROWS_SENT = 250_000


def test_a_reference_is_a_part_of_a_file(tmp_path: Path) -> None:
    blobs = Blobs(Files(str(tmp_path)))
    payloads = [bytes([i]) * (300_000 + i) for i in range(6)]

    def item(i: int, payload: bytes) -> Item:
        message = Message(channel=i, time=[0], sender=0, payload=payload)
        return message if i % 2 else SinkRows(sink=f"{i}", epoch=0, payload=payload)

    items = [(i, item(i, payload)) for i, payload in enumerate(payloads)]
    rows = wire.table([*items, (0, item(7, b"small")), (0, Header(batch=0))])

    referring = blobs.refer("0-7", rows)

    assert len(files_of(referring)) == 2, "messages and outputs are needed for another time"
    assert pc.sum(pc.binary_length(referring.column("payload"))).as_py() < 1000
    back = blobs.resolve(referring).sort_by("meta")
    assert back == rows.sort_by("meta").cast(ROWS)
    mine = [each for each in referring.column("payload").to_pylist() if each and file_of(each)]
    assert sorted(map(size_of, mine)) == sorted(map(len, payloads))
    small = rows.slice(0, 2)
    assert blobs.refer("0-7", small) == small, "little is not worth a file"


def growing() -> ts.Dataflow:
    flow = ts.Dataflow("growing")
    flow.input("x", "n long").distinct(name="once").capture("out")
    return flow


def counted() -> ts.Dataflow:
    """Every record goes to another worker behind a stateful vertex, and again to an output."""
    flow = ts.Dataflow("bulk")
    numbers = flow.input("numbers", "n long, m long")
    once = numbers.distinct(name="once")
    once.group_by("m").aggregate(count="count", name="counts").capture("out")
    once.exchange("m").map_batches(lambda table: table, "n long, m long").capture("all")
    return flow


def test_bulk_goes_by_reference_past_driver_and_state_store(spark: SparkSession, checkpoint: str) -> None:
    flow = counted()
    numbers = pa.array(range(ROWS_SENT), pa.int64())
    flow.handle("numbers").send(pa.table({"n": numbers, "m": pc.bit_wise_and(numbers, 1023)}))
    with flow.start(spark, checkpoint=checkpoint, workers=2, rounds_per_batch=1) as query:
        assert query.wait_for(timeout=100)
        totals = query.captured("out").table()
        assert totals.num_rows == 1024
        assert pc.sum(totals["count"]).as_py() == ROWS_SENT
        assert query.captured("all").table()["n"].sort() == pa.chunked_array([numbers])
        log = RoundLog(checkpoint)
        batches = range(-1, query.last_progress.epoch + 1)
        sizes = [
            pc.sum(pc.binary_length(log.manifest_and_rows(batch)[1].column("payload"))).as_py() or 0
            for batch in batches
        ]
        gone = {name for batch in batches for name in log.read(batch).garbage}
        assert max(sizes) < BULK < query.last_progress.state_bytes["once"]
        assert any(f"-{kind}-" in name for name in gone for kind in (0, 1)), "messages and outputs had files"
        kept = {*log.files.names("blobs"), *log.files.names("outputs")}
        assert gone <= kept, "for a replay of what is retained"


FIRST = """
import sys, time
from pyspark.sql import SparkSession
import timely_spark as ts
from tests.spark.test_durable import growing
builder = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF")  # as nobody tuned it
flow = growing()
flow.handle("x").send([0, 1])
query = flow.start(builder.getOrCreate(), checkpoint=sys.argv[1], workers=2)
query.wait_for()
print("answered", flush=True)
try:
    query.await_termination(100)
except ts.TimelyError as error:
    print(error.condition, flush=True)
"""


@pytest.fixture
def first(checkpoint: str) -> Any:
    """Another process that runs a flow on the checkpoint."""
    path = os.pathsep.join([str(Path(ts.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST, checkpoint],
        env=os.environ | {"PYTHONPATH": path}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout.readline() == "answered\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.campaign
def test_of_two_drivers_one_is_refused_or_fenced_off(
    spark: SparkSession, checkpoint: str, first: Any
) -> None:
    with pytest.raises(CheckpointInUse, match=rf"(?s)process {first.pid} .*Hint") as error:
        growing().start(spark, checkpoint=checkpoint, workers=2)
    assert error.value.condition == "CHECKPOINT_IN_USE"

    os.killpg(first.pid, signal.SIGSTOP)  # it hangs; and where there are no locks nobody can know
    (Path(checkpoint) / "timely" / "lock").unlink()
    flow = growing()
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        flow.handle("x").send([1, 2])
        assert query.wait_for(timeout=60)
        os.killpg(first.pid, signal.SIGCONT)
        assert first.stdout.readline() == "LOST_OWNERSHIP\n"
        flow.handle("x").send([2, 3])
        assert query.wait_for(timeout=60)
        assert sorted(query.captured("out").table()["n"].to_pylist()) == [0, 1, 2, 3], "each once"


def test_in_one_process_a_checkpoint_is_free_when_its_query_has_ended(
    spark: SparkSession, checkpoint: str
) -> None:
    with growing().start(spark, checkpoint=checkpoint, workers=1):
        with pytest.raises(CheckpointInUse, match=f"process {os.getpid()}"):
            growing().start(spark, checkpoint=checkpoint, workers=1, name="second")
        assert Status.of(checkpoint).running
    for _ in range(2):  # one ends by itself, and is followed at once
        query = growing().start(spark, checkpoint=checkpoint, workers=1, trigger="available_now")
        assert query.await_termination(60)
    assert Status.of(checkpoint).running is False


def test_the_status_names_what_holds_an_epoch_back(
    spark: SparkSession, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = ts.Dataflow("held")
    left = flow.input("left", "n long", epochs="manual")
    right = flow.input("right", "n long", epochs="manual")
    left.concat(right).group_by("n").count(name="counts").capture("out")
    left.send([1, 2])
    left.advance_to(2)
    right.send([3])
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        until = time.monotonic() + 60
        while not Status.of(checkpoint).after.manifest.open_epochs:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert main(["status", checkpoint]) == 0
        printed = capsys.readouterr().out
        assert str(query.why()) in printed
        assert list(query.why(1).inputs) == ["right"]
    assert "epochs in flight  0" in printed
    assert "epoch 0 is held back by\n  input right (" in printed
    assert f"{Path(__file__).name}:" in printed
    assert "step counts (" in printed
    assert "before out" in printed

    assert main(["status", checkpoint, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["running"] is False
    assert list(found["why"]["inputs"]) == ["right"]
    assert [held["step"] for held in found["why"]["pointstamps"]] == ["counts"]
    assert found["frontier"]["counts"] == [[0]]
    assert main(["status", checkpoint + "-not"]) == 1
    assert "Hint" in capsys.readouterr().err


def test_nothing_in_a_checkpoint_is_pickled_nor_leads_out_of_it(spark: SparkSession, checkpoint: str) -> None:
    flow = counted()
    flow.handle("numbers").send([(i, i) for i in range(100)])
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        assert query.wait_for(timeout=60)
    files = [file for file in Path(checkpoint, "timely").rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".json", ".arrow", ""}
    assert all(not file.stat().st_mode & 0o007 for file in files), "for owner and group alone"
    for file in files:
        assert b"cloudpickle" not in file.read_bytes()

    blobs = Blobs(Files(str(Path(checkpoint, "timely"))))
    with pytest.raises(LogDamaged, match="Hint"):
        blobs.get(b"blobfileblobs/../../../secret")
