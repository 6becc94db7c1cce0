"""A vertex's `combine`: its errors name the step, and the simulator checks its law."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.testing import run

SCHEMA = "k long, v long"


def summed(batch: pa.Table) -> pa.Table:
    return batch.group_by("k").aggregate([("v", "sum")]).rename_columns(["k", "v"])


def summed_if_many(batch: pa.Table) -> pa.Table:
    return summed(batch) if batch.num_rows > 5 else batch


def summed_if_few(batch: pa.Table) -> pa.Table:
    return summed(batch) if batch.num_rows < 8 else batch


def fails(batch: pa.Table) -> pa.Table:
    return {}["gone"]  # type: ignore[no-any-return]


class Sums(ts.Vertex):
    def __init__(self, combined: Callable[[pa.Table], Any]) -> None:
        self.combined = combined
        self.sums: dict[int, int] = {}

    def combine(self, edge: int, batch: pa.Table) -> Any:
        return self.combined(batch)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        for row in batch.to_pylist():
            self.sums[row["k"]] = self.sums.get(row["k"], 0) + row["v"]
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, [*self.sums.items()])
        self.sums = {}


class Sent(Sums):
    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch)


def flow(combined: Callable[[pa.Table], Any], *, from_a_vertex: bool) -> ts.Dataflow:
    """The records come from a source's task, or from a vertex."""
    made = ts.Dataflow("sums")
    records = made.input("x", SCHEMA)
    if from_a_vertex:
        records = records.unary(lambda time, batch: batch, SCHEMA, name="before")
    made.vertex(Sums(combined), records, SCHEMA, by="k", name="sums").capture("out")
    return made


INPUTS = {"x": [[(n % 5, n) for n in range(20)], [(7, 1)]]}


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("from_a_vertex", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("combined", [summed, summed_if_many, summed_if_few])
def test_combined_records_lead_to_the_same(
    *, combined: Callable[[pa.Table], Any], from_a_vertex: bool, workers: int
) -> None:
    found = run(flow(combined, from_a_vertex=from_a_vertex), INPUTS, workers=workers)["out"].rows()
    assert found == {0: [(k, sum(range(k, 20, 5))) for k in range(5)], 1: [(7, 1)]}


WRONG: dict[str, tuple[Callable[[pa.Table], Any], str]] = {
    "all as one": (
        lambda batch: pa.table({"k": batch["k"][:1], "v": [pc.sum(batch["v"])]}),
        r"combine mixes records that are partitioned apart \(by k\)",
    ),
    "the sum of all, for each": (
        lambda batch: pa.table({"k": (k := pc.unique(batch["k"])), "v": [pc.sum(batch["v"])] * len(k)}),
        r"combine mixes records that are partitioned apart \(by k\)",
    ),
    "the largest of all": (
        lambda batch: batch.sort_by([("v", "descending")]).slice(0, 3),
        r"combine mixes records that are partitioned apart \(by k\)",
    ),
    "another key": (
        lambda batch: batch.set_column(0, "k", pc.add(batch["k"], 1)),
        r"combine makes records that are partitioned otherwise \(by k\): \{'k': ",
    ),
    "other columns": (
        lambda batch: batch.rename_columns(["k", "sum"]),
        r"combine returns \(k int64, sum int64\) of records \(k int64, v int64\)",
    ),
    "nothing": (lambda batch: None, "combine's result: records do not fit the schema"),
    "an exception": (fails, r"in combine \(.*test_combining.py:\d+\), with \{'k': .*KeyError: 'gone'"),
}


def test_combine_may_write_to_its_array_again() -> None:
    array = np.zeros(20, np.int64)

    def summed_in_place(batch: pa.Table) -> pa.Table:
        sums = summed(batch)
        array[: len(sums)] = sums["v"].to_numpy()
        return sums.set_column(1, "v", pa.array(array[: len(sums)]))

    out = run(flow(summed_in_place, from_a_vertex=True), INPUTS, workers=3)["out"].rows()
    assert out == {0: [(k, sum(range(k, 20, 5))) for k in range(5)], 1: [(7, 1)]}


@pytest.mark.parametrize("from_a_vertex", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_combine_is_an_error_of_its_step(*, from_a_vertex: bool, case: str) -> None:
    combined, message = WRONG[case]
    with pytest.raises(VertexError, match=rf"(?s)^step 'sums' \(.*{message}.*\nHint: "):
        run(flow(combined, from_a_vertex=from_a_vertex), INPUTS, workers=3)


def test_the_order_in_which_floats_are_added_does_not_matter() -> None:
    """Sums that cancel each other out differ by a part of their summands, not of themselves."""
    random = Random(7)

    def shuffled(batch: pa.Table) -> pa.Table:
        order = random.sample(range(batch.num_rows), batch.num_rows)
        sums = batch.take(order).group_by(["k"], use_threads=False).aggregate([("v", "sum"), ("w", "sum")])
        return sums.rename_columns(["k", "v", "w"])

    schema = "k double, v double, w double"
    values = [(n % 2 * 2 - 1) * 0.1 * (n // 2) for n in range(2000)]
    records = [(n % 14 // 2 / 2, value, value + 1e-3) for n, value in enumerate(values)]

    flow = ts.Dataflow("floats")
    flow.vertex(Sent(shuffled), flow.input("x", schema), schema, by="k", name="sums").capture("out")
    out = run(flow, {"x": [records]}, workers=3)["out"]
    assert sorted({k for k, _, _ in out.rows()[0]}) == [n / 2 for n in range(7)]


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
def test_a_sum_of_floats_with_a_record_of_another_key_is_found(size: float) -> None:
    def first(batch: pa.Table) -> pa.Table:
        total = pc.sum(batch["v"])
        return (
            batch.group_by("k")
            .aggregate([("v", "min")])
            .rename_columns(["k", "v"])
            .set_column(1, "v", pa.chunked_array([pa.array([total.as_py()] * len(pc.unique(batch["k"])))]))
        )

    flow = ts.Dataflow("floats")
    flow.vertex(Sent(first), flow.input("x", "k long, v double"), "k long, v double", by="k").capture("out")
    with pytest.raises(VertexError, match="combine mixes records"):
        run(flow, {"x": [[(n, n * size) for n in range(1, 9)]]}, workers=2)
