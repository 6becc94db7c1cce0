"""A vertex's `combine`: its errors name the step, and the simulator checks its law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.testing import run

SCHEMA = "k long, v long"


def summed(batch: pa.Table) -> pa.Table:
    return batch.group_by("k").aggregate([("v", "sum")]).rename_columns(["k", "v"])


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


def flow(combined: Callable[[pa.Table], Any], *, from_a_vertex: bool) -> ts.Dataflow:
    """The records come from a source's task, or from a vertex."""
    made = ts.Dataflow("sums")
    records = made.input("x", SCHEMA)
    if from_a_vertex:
        records = records.unary(lambda time, batch: batch, SCHEMA, name="before")
    made.vertex(Sums(combined), records, SCHEMA, by="k", name="sums").capture("out")
    return made


INPUTS = {"x": [[(n % 5, n) for n in range(20)], [(7, 1)]]}


@pytest.mark.parametrize("from_a_vertex", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_combined_records_lead_to_the_same(*, from_a_vertex: bool, workers: int) -> None:
    found = run(flow(summed, from_a_vertex=from_a_vertex), INPUTS, workers=workers)["out"].rows()
    assert found == {0: [(k, sum(range(k, 20, 5))) for k in range(5)], 1: [(7, 1)]}


WRONG: dict[str, tuple[Callable[[pa.Table], Any], str]] = {
    "all as one": (
        lambda batch: pa.table({"k": batch["k"][:1], "v": [pc.sum(batch["v"])]}),
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


@pytest.mark.parametrize("from_a_vertex", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_combine_is_an_error_of_its_step(*, from_a_vertex: bool, case: str) -> None:
    combined, message = WRONG[case]
    with pytest.raises(VertexError, match=rf"(?s)^step 'sums' \(.*{message}.*\nHint: "):
        run(flow(combined, from_a_vertex=from_a_vertex), INPUTS, workers=3)
