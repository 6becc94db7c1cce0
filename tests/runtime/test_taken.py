"""What one micro-batch takes from an input, without Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.query import flow_reader
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.worker import pack_input


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path))


@pytest.fixture
def handle(log: RoundLog) -> InputHandle:
    handle = InputHandle("x", "s string")
    handle.open(log)
    return handle


def test_a_batch_takes_no_more_bytes_than_it_should_and_a_large_entry_alone(
    handle: InputHandle, log: RoundLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_reader, "MAX_BYTES", 10_000)
    for size in (4_000, 4_000, 4_000, 50_000, 10, 10, 50_000):
        handle.send([("x" * size,)])

    taken, ends = -1, []
    while (last := flow_reader.next_entries(log, "x", taken)[0]) != taken:
        taken = last
        ends.append(last)

    assert ends == [1, 2, 3, 5, 6]


def test_a_batch_takes_a_bounded_number_of_entries(
    handle: InputHandle, log: RoundLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_reader, "MAX_ENTRIES", 3)
    for _ in range(5):
        handle.send([("x",)])

    assert flow_reader.next_entries(log, "x", -1)[0] == 2
    assert flow_reader.next_entries(log, "x", 2)[0] == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_large_entry_is_split_and_its_records_keep_their_order(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[list[list[int]], int]:
        flow = ts.Dataflow("pieces")
        seen: list[list[int]] = []

        class Seen(ts.Vertex):
            def on_recv(self, edge: int, time: Any, batch: pa.RecordBatch) -> None:
                seen.append(batch.column(0).to_pylist())
                self.send_by(edge, time, pa.table({"n": batch.column(0)}))

        x = flow.input("x", "n long", epochs="manual")
        flow.vertex(Seen(), x, "n long", by="n" if workers == 1 else None).capture("out")
        plan = flow.compile(workers)
        packed = pack_input(plan, "x", [(0, "send", 0, pa.table({"n": range(1000)}))])
        for seed in range(5):  # a batch that runs again gets its rows from Spark in another order
            ts.testing.run(flow, {"x": [range(1000)]}, workers=workers, seed=seed, crashes=0.7)
        seen.clear()
        out = ts.testing.run(flow, {"x": [range(1000), range(10)]}, workers=workers, seed=1)
        rows = out["out"].rows()
        assert [rows[0], rows[1]] == [[(n,) for n in range(1000)], [(n,) for n in range(10)]]
        return seen, packed.num_rows

    whole, one = run()
    monkeypatch.setattr(sys.modules["timely_spark.worker.pack"], "PIECE_BYTES", 800)  # 100 records
    pieces, many = run()

    assert many > one
    if workers == 1:
        assert [n for batch in whole for n in batch] == [n for batch in pieces for n in batch]
