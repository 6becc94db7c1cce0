"""Reductions of keys with many records: what cannot change the result is stored and not looked at."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.differential import Collection, reduce
from timely_spark.differential.working import WorkingSet
from timely_spark.testing import run

VALUES: dict[str, list[Any]] = {
    "long": [None, *range(9)],
    "double": [None, math.nan, 0.0, 1.5, -2.5, math.inf],
    "string": [None, "", "a", "bc"],
    "boolean": [None, True, False],
    "date": [None, dt.date(2020, 1, 1), dt.date(2021, 1, 1)],
    "decimal(9,2)": [None, Decimal("1.25"), Decimal("-3.50")],
}
REDUCTIONS: dict[str, Callable[[Collection], Collection]] = {
    "min": lambda x: x.min("v", keys="k"),
    "max": lambda x: x.arrange("k").max("v"),
    "top_k": lambda x: x.arrange("k").top_k(2, "v"),
    "least": lambda x: x.top_k(3, "v", keys="k", descending=False),
}


def flow_of(kind: str) -> ts.Dataflow:
    flow = ts.Dataflow("reductions")
    x = flow.input("x", f"k long, v {kind}, who long, diff long").collection(diff="diff")
    for name, made in REDUCTIONS.items():
        made(x).changes().capture(name)
    return flow


def histories(values: list[Any], draw: random.Random) -> list[list[tuple[Any, ...]]]:
    """Records of two keys; some go again, some go before they come; in the end all have gone."""
    epochs, present = [], list[tuple[Any, ...]]()
    for _ in range(4):
        changes = []
        for _ in range(12):
            if present and draw.random() < 0.4:
                *record, n = present.pop(draw.randrange(len(present)))
            else:
                *record, n = (
                    draw.randrange(2),
                    draw.choice(values),
                    draw.randrange(2),
                    draw.choice([1, 1, 2, -1]),
                )
                present.append((*record, -n))
            changes.append((*record, n))
        epochs.append(changes)
    draw.shuffle(present)
    return [*epochs, *(present[i::4] for i in range(4))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:step .*more was removed")
@pytest.mark.parametrize("kind", VALUES)
def test_what_is_not_looked_at_changes_nothing(kind: str) -> None:
    epochs = histories(VALUES[kind], random.Random(kind))
    with mock.patch.object(reduce, "_MANY", 1 << 40):
        plain = run(flow_of(kind), {"x": epochs})
    with mock.patch.object(reduce, "_MANY", 1):
        found = run(flow_of(kind), {"x": epochs}, workers=2, seed=1)

    for name in REDUCTIONS:
        assert repr(found[name].rows()) == repr(plain[name].rows())
        assert not ts.snapshot(found[name]).num_rows


def test_a_change_that_cannot_matter_reads_no_records() -> None:
    many = [(k, v, 0, 1) for k in range(2) for v in range(100, 2100)]
    epochs = [many, [(0, 700, 1, 1), (0, 800, 0, -1)], [(0, 100, 0, -1), (0, 2099, 0, -1), (1, 800, 0, -1)]]
    seen: list[int] = []
    read = WorkingSet._read

    def counted(self: WorkingSet, side: Any, *args: Any) -> Any:
        rows = read(self, side, *args)
        if side is self.records:
            seen.append(sum(len(one[0]) for one in rows))
        return rows

    with mock.patch.object(WorkingSet, "_read", counted):
        simulation = ts.testing.Simulation(flow_of("long"), workers=1)
        for rows in epochs:
            simulation.send("x", rows)
            simulation.run()
            seen.append(-1)

    second = seen[seen.index(-1) + 1 :]
    assert sum(second[: second.index(-1)]) == 0
    assert 4 * 1900 < sum(second[second.index(-1) :]) < 5 * 2000, "not those of key 1"
    rows = {name: list(captured.rows().values())[1:] for name, captured in simulation.captured.items()}
    assert rows["min"] == [[], [(0, 100, -1), (0, 101, 1)]]
    assert rows["max"] == [[], [(0, 2098, 1), (0, 2099, -1)]]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_of_a_function_may_come_in_any_order(workers: int) -> None:
    def less(rows: pa.Table) -> pa.Table:  # in a loop results are stored by key
        rows = rows.sort_by([("k", "descending")])
        return pa.table({"k": rows["k"], "n": pc.max_element_wise(pc.subtract(rows["n"], 1), pa.scalar(0))})

    flow = ts.Dataflow("down")
    x = flow.input("x", "k long, n long, diff long").collection(diff="diff")
    x.iterate(lambda v: v.reduce_batches(less, "n long", keys="k")).changes().capture("out")

    out = run(flow, {"x": [[(1, 3, 1), (2, 5, 1), (3, 1, 1)], [(2, 5, -1)]]}, workers=workers)["out"].rows()

    assert out == {0: [(1, 0, 1), (2, 0, 1), (3, 0, 1)], 1: [(2, 0, -1)]}


@pytest.mark.slow
@pytest.mark.parametrize("start", [101, 102, 103, 104])
def test_a_null_among_integers_loses_no_change_of_another_key(start: int) -> None:
    """A nearer way comes in epoch 1; that the old one comes in iteration 3 only the trace tells."""

    def nearest(kind: str) -> dict[int, list[Any]]:
        flow = ts.Dataflow("nearest")
        x = flow.input("x", f"k long, v {kind}, diff long").collection(diff="diff")

        def step(v: Collection) -> Collection:
            near = v.where((pc.field("k") < 6) | (pc.field("k") > 9) & pc.field("v").is_valid())
            farther = near.map(
                lambda row: (row.k + 1, None if row.v == 104 else row.v + 1), "k long, v " + kind
            )
            return x.concat(farther).min("v", keys="k")

        x.iterate(step, max_iterations=20, on_limit="return").changes().capture("out")
        epochs = [[(0, 0, 1)], [(3, 1, 1), (10, start, 1)], [(3, 1, -1)]]
        return run(flow, {"x": epochs}, workers=1)["out"].rows()

    out = nearest("long")
    assert out == nearest("double")
    assert {(3, 3, -1), (3, 1, 1)} <= {*out[1]}
    assert {(3, 1, -1), (3, 3, 1)} <= {*out[2]}
