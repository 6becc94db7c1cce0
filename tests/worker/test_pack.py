"""Packing: records of a source are combined before the exchange, for every step that can combine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler.pushdown import needed
from timely_spark.errors import VertexError
from timely_spark.state.arrow import from_bytes
from timely_spark.worker import pack, pack_input, wire
from timely_spark.worker.pack import SAMPLE
from timely_spark.worker.wire import InputBatch

KEYS = 10
Step = Callable[[ts.Stream], Any]


def exchanged(step: Step, table: pa.Table, *, epoch: str | None = None) -> int:
    """How many records of the table are sent to the workers."""
    flow = ts.Dataflow("packed")
    made = step(flow.source("x", "k long, v long, e long", epoch=epoch))
    (made.changes() if isinstance(made, ts.Collection) else made).capture("out")
    rows = pack(flow.compile(workers=4), "x", table, shard=0)
    return sum(from_bytes(batch.payload).num_rows for _, batch in wire.read(rows, InputBatch))


def records(n: int, keys: int) -> pa.Table:
    """Half of the records have key 0."""
    draw = np.random.default_rng(1)
    key = np.where(draw.random(n) < 0.5, 0, np.arange(n) % keys)
    return pa.table({"k": key, "v": key % 3, "e": np.full(n, 5)})


STEPS: dict[str, Step] = {
    "count": lambda x: x.group_by("k").count(),
    "aggregate": lambda x: x.group_by("k").aggregate(a=("sum", "v"), b=("min", "v"), c=("max", "v")),
    "min": lambda x: x.min("v", keys=["k"]),
    "max": lambda x: x.max("v", keys=["k"]),
    "distinct": lambda x: x.distinct(),
    "top_k": lambda x: x.top_k(1, "v", keys="k"),
    "collection count": lambda x: x.collection().count(keys="k"),
    "collection sum": lambda x: x.collection().sum("v", keys="k"),
    "collection mean": lambda x: x.collection().mean("v", keys="k"),
    "collection min": lambda x: x.collection().min("v", keys="k"),
    "collection distinct": lambda x: x.collection().distinct(),
    "consolidate": lambda x: x.collection().consolidate(),
    "join": lambda x: x.collection().join(x.collection().select("k").distinct(), on="k"),
}


@pytest.mark.parametrize("name", STEPS)
def test_few_keys_are_few_records(name: str) -> None:
    assert 0 < exchanged(STEPS[name], records(3 * SAMPLE, KEYS)) <= 2 * KEYS


def test_a_large_entry_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = ts.Dataflow("pieces")
    flow.input("x", "n long", epochs="manual").capture("out")
    monkeypatch.setattr(sys.modules["timely_spark.worker.pack"], "PIECE_BYTES", 800)  # 100 records
    rows = pack_input(flow.compile(workers=2), "x", [(0, "send", 0, pa.table({"n": range(250)}))])

    sent = sorted((batch.piece, from_bytes(batch.payload)) for _, batch in wire.read(rows, InputBatch))
    assert [n for _, piece in sent for n in piece["n"].to_pylist()] == [*range(250)]
    assert [piece.num_rows for _, piece in sent] == [100, 100, 50]


def test_records_that_would_not_become_few_are_sent_as_they_are() -> None:
    combined = list[int]()

    class Best(ts.Vertex):
        def combine(self, edge: int, batch: pa.Table) -> pa.Table:
            combined.append(batch.num_rows)
            return batch.group_by("k").aggregate([("v", "min")]).rename_columns(["k", "v"])

        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(0, time, batch)

    def best(x: ts.Stream) -> Any:
        return x.flow.vertex(Best(), x.select("k", "v"), "k long, v long", by="k")

    apart = pa.table({"k": np.arange(3 * SAMPLE), "v": np.zeros(3 * SAMPLE, np.int64)})
    apart = apart.append_column("e", apart["v"])
    assert exchanged(best, apart) == 3 * SAMPLE
    assert combined == [SAMPLE]
    assert exchanged(best, records(3 * SAMPLE, KEYS)) == KEYS


def test_records_of_several_epochs_are_not_combined() -> None:
    table = records(100, KEYS)
    assert exchanged(STEPS["min"], table) == KEYS
    assert exchanged(STEPS["min"], table, epoch="e") == 100


def test_a_combine_that_fails_names_its_step() -> None:
    class Broken(ts.Vertex):
        def combine(self, edge: int, batch: pa.Table) -> pa.Table:
            msg = "no"
            raise ValueError(msg)

    def broken(x: ts.Stream) -> Any:
        return x.flow.vertex(Broken(), x, "k long", by="k", name="broken")

    with pytest.raises(VertexError, match=r"broken.*ValueError: no"):
        exchanged(broken, records(100, KEYS))


RESULTS: dict[str, tuple[Callable[[pa.Table], Any], str]] = {
    "a table": (lambda batch: batch, "apply returns a Table; it has outputs: 1"),
    "two tables": (lambda batch: (batch, batch), "apply returns a tuple of 2; it has outputs: 1"),
    "nothing": (lambda batch: None, "apply returns None; it has outputs: 1"),
    "other columns": (lambda batch: (batch.rename_columns(["m"]),), "apply's result: .*n"),
    "another type": (
        lambda batch: (pa.table({"n": ["a"] * len(batch)}),),
        "apply's result: .*n.*string.*int64",
    ),
}


@pytest.mark.parametrize("at_the_source", [False, True])
@pytest.mark.parametrize("case", RESULTS)
def test_what_a_users_vertex_makes_of_a_batch_is_checked(case: str, *, at_the_source: bool) -> None:
    result, message = RESULTS[case]
    wrong = type("Wrong", (ts.authors.Stateless,), {"apply": lambda _, batch: result(batch)})
    flow = ts.Dataflow("wrong")
    x: Any = flow.input("x", "n long")
    x = x if at_the_source else x.distinct()
    flow.vertex(wrong(), x, "n long", name="wrong").capture("out")
    with pytest.raises(VertexError, match=rf"(?s)^step 'wrong' \(.*{message}.*\nHint: "):
        ts.testing.run(flow, {"x": [[1, 2]]})


@pytest.mark.parametrize("form", [lambda table: table, pa.Table.to_pandas])
def test_a_users_vertex_may_get_and_return_the_columns_that_are_needed(
    form: Callable[[pa.Table], Any],
) -> None:
    class Positive(ts.authors.Stateless):
        def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
            positive = batch.filter(pc.field("n") > 0)
            return (form(positive.append_column("its own", positive["n"])),)

        def reads(self, columns: Any, schema: pa.Schema) -> set[str]:
            return {*columns, "n"}

    flow = ts.Dataflow("positive")
    x = flow.source("x", "n long, m long, note string")
    flow.vertex(Positive(), x, x.schema).select("m").capture("out")
    plan = flow.compile(workers=2)
    assert needed(plan, "x").columns == ("n", "m")
    table = pa.table({"n": [1, -1], "m": [5, 6]})
    rows = wire.read(pack(plan, "x", table, shard=0), InputBatch)
    assert [from_bytes(batch.payload).to_pylist() for _, batch in rows] == [[{"m": 5}]]
