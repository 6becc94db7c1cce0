"""Columns of arrays, structs and maps, which are not keys: joins carry them, and add up equal records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.state.codes import numbers_of, runs
from timely_spark.testing import Simulation

NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "array": (pa.list_(pa.int64()), [[1, 2], [1], [], None, [None], [1, 2], [2, 1], None, [1], [None]]),
    "large": (pa.large_list(pa.string()), [["a", "b"], ["ab"], ["", "ab"], ["a", "b"], None, []]),
    "fixed": (pa.list_(pa.int8(), 2), [[1, 2], [2, 1], None, [1, 2], None]),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.float64()}),
        [{"a": 1, "b": 0.0}, {"a": 1, "b": -0.0}, None, {"a": None, "b": None}, {"a": 1, "b": np.nan}] * 2,
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], [("a", 1), ("b", 2)], [], None, [("a", 1)], [("a", None)]],
    ),
    "deep": (
        pa.list_(pa.struct({"a": pa.list_(pa.int64())})),
        [[{"a": [1]}, {"a": []}], [{"a": [1]}], [{"a": None}], [{"a": [1]}, {"a": []}], [None], None, []],
    ),
}  # fmt: skip


def plain(value: Any) -> str:
    return repr(value).replace("-0.0", "0.0")


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_equal_values_have_equal_numbers(kind: str, start: int) -> None:
    type_, values = NESTED[kind]
    table = pa.table({"v": pa.array(values, type_)}).slice(start)
    groups = runs(numbers_of(table, ["v"]), table.num_rows).of.tolist()
    texts = [plain(one) for one in table["v"].to_pylist()]
    assert [[a == b for a in groups] for b in groups] == [[a == b for a in texts] for b in texts]


@pytest.mark.parametrize("kind", NESTED)
def test_no_rows_and_one_row(kind: str) -> None:
    type_, values = NESTED[kind]
    for n in (0, 1):
        table = pa.table({"v": pa.array(values[:n], type_), DIFF: pa.array([1] * n, pa.int64())})
        assert consolidate(table).num_rows == n


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("kind", NESTED)
def test_joins_carry_them(kind: str, how: Any) -> None:
    type_, values = NESTED[kind]
    flow = ts.Dataflow("nested")
    x = flow.input("x", pa.schema([("k", pa.int64()), ("v", type_), ("d", pa.int64())])).collection(diff="d")
    y = flow.input("y", "k long, d long").collection(diff="d")
    joined = x.join(y, on="k", how=how)
    joined.map(lambda row: (row.k, plain(row.v)), "k long, v string").capture("out")

    rows = [(i % 2, value) for i, value in enumerate(values)]
    inputs: dict[str, Any] = {
        "x": [[(*row, 1) for row in rows], [(*row, -1) for row in rows[1:]]],
        "y": [[(0, 1)], []],
    }
    kept = [row for row in rows if how == "left" or (row[0] == 0) == (how != "anti")]
    expected = [
        sorted((k, plain(v)) for k, v in some) for some in (kept, [row for row in kept if row is rows[0]])
    ]
    for workers in (1, 2):
        made = ts.testing.run(flow, inputs, workers=workers)["out"]
        for at, wanted in enumerate(expected):
            rows_at = ts.snapshot(made, at=at).to_pylist()
            assert sorted((row["k"], row["v"]) for row in rows_at) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", NESTED)
def test_records_of_them_are_compared(kind: str) -> None:
    type_, values = NESTED[kind]
    flow = ts.Dataflow("nested")
    x = flow.input("x", pa.schema([("v", type_), ("d", pa.int64())])).collection(diff="d")
    x.distinct().stream.capture("distinct")
    x.threshold(lambda counts: counts >= 2).stream.capture("repeated")
    x.consolidate().stream.capture("all")
    x.changes().capture("changes")
    counts = Counter(map(plain, values))
    expected = {
        "distinct": [Counter([*counts]), Counter([plain(values[0])])],
        "repeated": [Counter([value for value, n in counts.items() if n > 1]), Counter[str]()],
        "all": [counts, Counter([plain(values[0])])],
        "changes": [counts, Counter([plain(values[0])])],
    }

    inputs = {"x": [[(value, 1) for value in values], [(value, -1) for value in values[1:]]]}
    made = ts.testing.run(flow, inputs, workers=3)
    for name, epochs in expected.items():
        total = Counter[str]()
        for epoch, records in enumerate(epochs):
            for value, diff in made[name].rows().get(epoch, []):
                total[plain(value)] += diff
            assert +total == records, (name, epoch)


@pytest.mark.slow
def test_a_trace_forgets_nested_records_that_are_deleted() -> None:
    flow = ts.Dataflow("forgets")
    x = flow.input("x", "k long, v array<long>, d long").collection(diff="d")
    y = flow.input("y", "k long").collection()
    x.join(y, on="k").map(lambda row: row.k, "k long").capture("out")
    simulation = Simulation(flow)
    sizes = []
    for epoch in range(60):
        simulation.send("x", [(k, [epoch, k], 1) for k in range(50)])
        simulation.run()
        simulation.send("x", [(k, [epoch, k], -1) for k in range(50)])
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))
    assert sizes[-1] < 3 * min(sizes[5:])


def test_a_lattice_of_sets() -> None:
    def union(left: pa.Array, right: pa.Array) -> pa.Array:
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return pa.array([sorted({*a, *b}) for a, b in pairs], left.type)

    flow = ts.Dataflow("sets")
    x = flow.input("x", "k long, v array<long>")
    x.merge("v", union, keys="k").capture("out")
    made = ts.testing.run(flow, {"x": [[(1, [1]), (1, [2]), (2, [])], [(1, [2]), (2, [5])]]}, workers=2)
    assert made["out"].rows() == {0: [(1, [1, 2]), (2, [])], 1: [(2, [5])]}

    flow = ts.Dataflow("reach")
    edges = flow.input("edges", "src long, dst long")
    first = edges.select(k="src", v=pc.if_else(pc.field("src") >= 0, pc.scalar([0]), pc.scalar([0])))

    def step(sets: ts.Stream) -> ts.Stream:
        targets = sets.join(sets.scope.enter(edges), left="k", right="src")
        return targets.map(lambda row: (row.dst, sorted({*row.v, row.dst})), "k long, v array<long>").merge(
            "v", union, keys="k"
        )

    first.loop(step).capture("out")
    sets = ts.testing.run(flow, {"edges": [[(1, 2), (2, 1), (2, 3)]]}, workers=2)["out"].rows()
    assert sets == {0: [(1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 1, 2, 3])]}
