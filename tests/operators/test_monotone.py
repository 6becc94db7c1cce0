"""distinct, min, max and settle: every type, nulls and NaN, several epochs, final records for readers."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.hops import spread
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Monotone
from timely_spark.operators.monotone import keep_best
from timely_spark.state.row_times import EPOCH, with_time
from timely_spark.testing import run
from timely_spark.times import PRODUCT, Time

UTC = dt.timezone.utc
#: of each type two values in order
TYPES: dict[str, tuple[Any, Any]] = {
    "boolean": (False, True),
    "byte": (-3, 100),
    "short": (-3, 100),
    "int": (-3, 100),
    "long": (-(2**63), 2**63 - 1),
    "float": (-0.5, 1.5),
    "double": (-math.inf, 1e300),
    "string": ("", "é"),
    "binary": (b"", b"\xff"),
    "date": (dt.date(1969, 1, 1), dt.date(2024, 2, 29)),
    "timestamp": (dt.datetime(1969, 1, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, tzinfo=UTC)),
    "timestamp_ntz": (dt.datetime(1969, 1, 1), dt.datetime(2024, 2, 29)),  # noqa: DTZ001
    "decimal(20,2)": (Decimal("-99.50"), Decimal("100000.25")),
}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("kind", TYPES)
def test_every_flat_type_is_a_value_and_a_key(kind: str) -> None:
    low, high = TYPES[kind]
    flow = ts.Dataflow("types")
    x = flow.input("x", f"k {kind}, v {kind}")
    x.min("v", keys=["k"]).capture("min_out")
    x.max("v", keys=["k"]).capture("max_out")
    x.distinct().capture("distinct_out")
    x.group_by("k").aggregate(
        low=("min", "v"), high=("max", "v"), all=("collect", "v"), n=("count", "v")
    ).capture("all_out")
    x.join(x.select(k="k", w="v"), on=["k"]).group_by("k").count().capture("join_out")
    rows = [(low, high), (low, low), (low, None), (None, high), (high, high), (low, high)]
    result = run(flow, {"x": [rows, [(low, high), (None, low)]]}, workers=3)

    first = sorted([(None, high), (low, low), (high, high)], key=str)
    assert sorted(result["min_out"].rows()[0], key=str) == first
    assert result["min_out"].rows()[1] == [(None, low)]
    assert sorted(result["max_out"].rows()[0], key=str) == sorted(
        [(None, high), (low, high), (high, high)], key=str
    )
    assert result["max_out"].rows()[1] == []
    assert sorted(result["distinct_out"].rows()[0], key=str) == sorted(set(rows), key=str)
    assert result["distinct_out"].rows()[1] == [(None, low)]
    assert sorted(result["all_out"].rows()[1], key=str) == sorted(
        [(low, low, high, [low, high, high, high], 4), (None, low, high, [low, high], 2)], key=str
    )
    assert result["join_out"].rows()[0] == [(low, 16), (high, 1)], "null joins nothing"


def test_null_and_nan_are_ignored_as_values_and_each_is_a_key() -> None:
    flow = ts.Dataflow("odd")
    x = flow.input("x", "k double, v double")
    x.min("v", keys=["k"]).capture("min_out")
    x.select("k").distinct().capture("distinct_out")
    nan = math.nan
    rows = [
        (nan, 2.0),
        (nan, 1.0),
        (None, 3.0),
        (None, nan),
        (0.0, None),
        (0.0, nan),
        (-0.0, 5.0),
        (9.0, nan),
    ]
    result = run(flow, {"x": [rows]}, workers=3)

    assert sorted(map(str, result["min_out"].rows()[0])) == sorted(
        map(str, [(None, 3.0), (-0.0, 5.0), (nan, 1.0)])
    )
    assert len(result["distinct_out"].rows()[0]) == 4


def test_without_keys_there_is_one_minimum() -> None:
    flow = ts.Dataflow("whole")
    x = flow.input("x", "v long")
    x.min("v", keys=[]).capture("out")
    x.max("v", keys=[]).settle().select(w="v").capture("settled_out")
    result = run(flow, {"x": [[3, 2], [5], [1]]}, workers=3)

    assert result["out"].rows() == {0: [(2,)], 1: [], 2: [(1,)]}
    assert result["settled_out"].rows() == {0: [(3,)], 1: [(5,)], 2: []}


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "epochs"), [(2, "clock"), (3, "manual")])
def test_without_keys_there_is_one_group_on_all_workers_and_in_regions_and_loops(
    workers: int, epochs: Any
) -> None:
    draw = random.Random(workers)
    rows = [[(draw.randrange(9),) for _ in range(draw.randrange(4))] for _ in range(9)]
    flow = ts.Dataflow("extremes")
    x = flow.input("x", "v long", epochs=epochs)
    x.exchange("v").min("v").capture("min_out")
    with flow.region("last", workers=[workers - 1]):
        x.max("v").capture("max_out")
    less = x.loop(
        lambda v: v.select(v=pc.field("v") - 1).exchange("v").where(pc.field("v") > 2).concat(v).min("v")
    )
    less.capture("loop_out")
    made = run(flow, {"x": rows}, workers=workers, seed=workers)

    for name, best in (
        ("min_out", min),
        ("max_out", max),
        ("loop_out", lambda vs: min(3, *vs)),
    ):
        seen: list[int] = []
        for epoch, each in enumerate(rows):
            before = best(seen) if seen else None
            seen += [v for (v,) in each]
            after = best(list(seen)) if seen else None
            assert made[name].rows()[epoch] == ([] if after == before else [(after,)]), name


def test_distinct_sends_a_record_once_over_all_epochs() -> None:
    flow = ts.Dataflow("seen")
    x = flow.input("x", "n long, s string")
    x.distinct().capture("out")
    rows = [[(1, None), (1, None), (None, "a")], [(1, None), (None, "a"), (1, "a")], []]

    assert run(flow, {"x": rows}, workers=3)["out"].rows() == {
        0: [(None, "a"), (1, None)],
        1: [(1, "a")],
        2: [],
    }


def test_distinct_per_time_is_of_each_time_alone_in_loops_too() -> None:
    flow = ts.Dataflow("distinct")
    x = flow.input("x", "n long", epochs="manual")
    x.exchange("n").distinct(per="time").capture("out")
    halves = x.loop(
        lambda n: n.select(n=pc.divide(pc.field("n"), 2)).where(pc.field("n") > 0).distinct(per="time"),
        max_iterations=9,
    )
    halves.capture("loop_out")
    epochs = [[(7,), (7,), (6,)], [(7,)], [], [(6,), (6,)]]
    for workers in (1, 3):
        made = run(flow, {"x": epochs}, workers=workers)
        assert made["out"].rows() == {0: [(6,), (7,)], 1: [(7,)], 2: [], 3: [(6,)]}
        assert made["loop_out"].rows() == {0: [(1,), (3,)], 1: [(1,), (3,)], 2: [], 3: [(1,), (3,)]}


@pytest.mark.parametrize("options", [{"per": "epoch"}, {"per": "time", "expire": 2}])
def test_per_is_checked_when_the_graph_is_built(options: Any) -> None:
    with pytest.raises((SchemaError, GraphError), match=r"(?s)distinct: .*Hint: "):
        ts.Dataflow("x").input("x", "n long").distinct(**options)


@pytest.mark.slow
def test_readers_outside_a_loop_get_final_records() -> None:
    """In a loop a minimum improves again and again; readers outside the loop see the last one only."""
    flow = ts.Dataflow("derived")
    edges, roots = flow.input("edges", "src long, dst long, w long"), flow.input("roots", "node long, d long")

    best = roots.loop(spread(edges, "d", pc.field("d") + pc.field("w")))
    best.select("d").group_by("d").count().capture("counts")
    best.map(lambda row: row.d * 10, "ten long").capture("mapped")
    best.max("d", keys=["node"], name="most").capture("worst")
    edges_ = [(0, 1, 9), (0, 2, 1), (2, 3, 1), (3, 1, 1), (1, 4, 1)]
    for workers in (1, 2, 3):
        for seed in (None, 1, 2):
            result = run(flow, {"edges": [edges_], "roots": [[(0, 0)]]}, workers=workers, seed=seed)
            assert result["counts"].rows() == {0: [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]}
            assert result["mapped"].rows() == {0: [(0,), (10,), (20,), (30,), (40,)]}
            assert result["worst"].rows() == {0: [(0, 0), (1, 3), (2, 1), (3, 2), (4, 4)]}


def test_records_derived_in_a_loop_from_records_that_are_not_final_may_not_leave_it() -> None:
    flow = ts.Dataflow("leak")

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = n.min("v", keys=["k"], name="best")
        return best, best.select("v")

    flow.input("x", "k long, v long").loop(step, name="loop").capture("out")
    with pytest.raises(
        GraphError, match=r"(?s)derives from 'loop\.best' .*test_monotone\.py:\d+.*Hint: .*settle"
    ):
        flow.compile()


def test_lists_are_keys() -> None:
    flow = ts.Dataflow("lists")
    x = flow.input("x", "l array<long>, v long")
    x.min("v", keys=["l"]).capture("least")
    x.select("l").distinct().capture("lists")

    out = run(
        flow, {"x": [[([1, 2], 5), ([], 3), (None, 4), ([1, 2], 6)], [([1, 2], 1), ([2, 1], 7)]]}, workers=3
    )

    assert out["least"].rows() == {0: [(None, 4), ([], 3), ([1, 2], 5)], 1: [([1, 2], 1), ([2, 1], 7)]}
    assert out["lists"].rows() == {0: [(None,), ([],), ([1, 2],)], 1: [([2, 1],)]}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.min("nothing", keys=["k"]),
        lambda x: x.max("v", keys=["nothing"]),
        lambda x: x.min("l", keys=["k"]),
        lambda x: x.min("v", keys=["v"]),
        lambda x: x.group_by("k").aggregate(m=("max", "l")),
        lambda x: x.group_by("k").aggregate(m=("collect", "l")),
    ],
)
def test_wrong_columns_are_refused_when_the_graph_is_built(build: Any) -> None:
    with pytest.raises(SchemaError, match="Hint: "):
        build(ts.Dataflow("bad").input("x", "k long, v long, l array<long>"))


def test_settle_refuses_records_that_are_final() -> None:
    with pytest.raises(GraphError, match="has final records already"):
        ts.Dataflow("bad").input("x", "n long").settle()


@pytest.mark.slow
def test_old_epochs_are_compacted() -> None:
    """State per key does not grow with the number of epochs."""
    flow = ts.Dataflow("long")
    x = flow.input("x", "k long, v long")
    x.min("v", keys=["k"]).capture("out")
    simulation = ts.testing.Simulation(flow)
    for epoch in range(100):
        simulation.send("x", [(k, -epoch) for k in range(10)])
        simulation.run()

    assert len(simulation.states[0] or b"") < 20_000
    assert simulation.captured["out"].rows()[99] == [(k, -99) for k in range(10)]


@pytest.mark.parametrize(("greatest", "due"), [(False, 3), (True, 8)])
def test_compaction_keeps_the_best_record_of_a_key(*, greatest: bool, due: int) -> None:
    rows = [with_time(pa.table({"k": [1], "v": [v]}), Time(epoch)) for epoch, v in enumerate([5, 3, 8, 4])]
    compact = keep_best(Monotone(("k",), "v", greatest), 3, PRODUCT)
    _, kept = compact(np.zeros(4, np.uint64), pa.concat_tables(rows))

    assert kept.to_pydict() == {"k": [1, 1], "v": [due, 4], EPOCH: [2, 3]}
