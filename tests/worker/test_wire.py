"""The wire: what is written is read again, by class, in the order of the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from timely_spark.errors import VertexError
from timely_spark.worker import ROWS, wire
from timely_spark.worker.epoch_columns import Refused
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.loops import LoopCounts
from timely_spark.worker.negatives import Negatives
from timely_spark.worker.wire import (
    Advance,
    Failure,
    Header,
    InputBatch,
    Item,
    Message,
    Report,
    RowKind,
    SinkRows,
    Tick,
)

HEADER = Header(
    batch=3,
    inputs={"x": 4, "closed": None},
    oldest=2,
    arrivals=[[9, [[2, 0], [3]]], [10, [[2, 1]]]],  # type: ignore[list-item]  # JSON has no tuples
    bounds={"loop": 5},
    unseen=["s"],
    late={"closed": 7},
)
REPORT = Report(
    deltas=[[1, [0, 2], -1]],  # type: ignore[list-item]  # JSON has no tuples
    pending=[],
    left=1,
    ticks=[3],
    advanced={"x": None},
    seen={"s": 8},
    late={"s": 2},
    refused={"s": Refused(without=1, far=1, least=90, above=8)},
    loops=LoopCounts({"loop": 4}, [], []),
    loads=[Load(2, 0, 40_000, "7", 0.5)],
    negatives=[Negatives("count", 2, "{'k': 1} is there -1 times", 3)],
    expectations={"even": Expectation(5, 1, (2, "{'n': 7}"))},
    stats={"steps": 5},
)
ITEMS: list[Item] = [
    HEADER,
    Tick(source="x"),
    Tick(source="s", spans=[[3, 8, 7]], rows=[[3, 6], [8, 1]]),  # type: ignore[list-item]
    InputBatch(source="s", channel=2, shard=1, seq=0, epochs=[[3, 6]], payload=b"in"),  # type: ignore[list-item]
    Advance(source="x", to=None, seq=4),
    Message(channel=5, time=[2, 1], sender=1, payload=b"to"),
    SinkRows(sink="out", epoch=2, payload=b"out"),
    REPORT,
    Failure.of(VertexError.from_exception("step", None, ValueError("no"))),
]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_an_item_is_read_as_it_was_written(item: Item) -> None:
    rows = wire.table([(2, item)])
    ((worker, read),) = wire.read(rows, type(item))

    assert rows.schema == ROWS
    assert worker == 2
    assert read.encode() == item.encode()
    if (payload := getattr(item, item.binary, None)) is None:
        assert read == item
    else:
        assert getattr(read, item.binary).to_pybytes() == payload


def test_rows_of_other_kinds_are_passed_over_and_the_order_stays() -> None:
    rows = wire.table(enumerate(ITEMS))
    messages_and_ticks = wire.read(rows, Message, Tick)

    assert [(worker, type(item)) for worker, item in messages_and_ticks] == [
        (1, Tick),
        (2, Tick),
        (5, Message),
    ]
    assert wire.read(rows, Header) == [(0, HEADER)]
    assert wire.only(rows, Message, Tick) == rows.take(pa.array([1, 2, 5]))
    assert wire.without(rows, Message, Tick) == rows.take(pa.array([0, 3, 4, 6, 7, 8]))
    assert wire.read(ROWS.empty_table(), Header) == []


def test_rows_of_each_worker_are_not_copied() -> None:
    rows = wire.table([(3, ITEMS[1]), (1, ITEMS[5]), (1, ITEMS[1]), (3, ITEMS[5])])
    parts = dict(wire.by_worker(rows))

    assert list(parts) == [1, 3]
    for worker, part in parts.items():
        assert part.equals(rows.filter(pc.equal(rows["worker"], worker)))
        held = {chunk.buffers()[2].address for chunk in part["payload"].chunks}
        assert held == {rows["payload"].chunk(0).buffers()[2].address}
    assert list(wire.by_worker(ROWS.empty_table())) == []


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize("places", [[], [2], [1, 2, 3, 4], [4, 5, 0, 1, 1, 3], [5, 4, 3, 2, 1, 0]], ids=str)
def test_rows_are_chosen_in_any_order_and_large_payloads_are_not_copied(places, size) -> None:
    parts = [[ITEMS[5], replace(ITEMS[5], sender=n, payload=bytes(size))] for n in range(3)]
    rows = pa.concat_tables([wire.table(enumerate(part)) for part in parts])

    chosen = wire.at(rows, np.array(places, np.int64))

    assert chosen.combine_chunks() == rows.take(pa.array(places, pa.int64())).combine_chunks()
    held = {chunk.buffers()[2].address for chunk in chosen["payload"].chunks if len(chunk)}
    shared = held <= {chunk.buffers()[2].address for chunk in rows["payload"].chunks}
    assert shared or size == 1


def test_an_item_for_all_workers_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = Item.encode
    monkeypatch.setattr(Item, "encode", lambda self: encoded.append(self) or encode(self))
    rows = wire.table((worker, HEADER) for worker in range(9))

    assert len(encoded) == 1
    assert wire.read(rows, Header) == [(worker, HEADER) for worker in range(9)]


def test_each_kind_has_one_class() -> None:
    pairs = {(item.kind, item.__name__) for item in Item.__subclasses__()}
    kinds = [kind for kind, _ in pairs]

    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(RowKind)


def test_a_failure_names_the_part_of_the_run() -> None:
    failure = Failure.of(VertexError.from_exception("step", None, ValueError("no")))

    with pytest.raises(VertexError, match=r"step 'step' .* failed in batch 3, worker 1: ValueError: no"):
        failure.throw("batch 3, worker 1")
