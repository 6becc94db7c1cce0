"""Records of every kind: null and empty keys, all flat types, many columns, and the floating sums."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import in_turn

pytestmark = pytest.mark.filterwarnings("ignore:step .*more was removed")

TEXT = ["", "a", "é", None]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), TEXT),
    "time": (pa.timestamp("us", tz="UTC"), [None, dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc),
                                            dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.timezone.utc)]),
    "money": (pa.decimal128(10, 2), [None, Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
    "flag": (pa.bool_(), [None, False, True]),
    "day": (pa.date32(), [None, dt.date(1969, 12, 31), dt.date(2000, 1, 1)]),
    "bytes": (pa.binary(), [None, b"", b"\0"]),
    "ratio": (pa.float64(), [None, 0.5, -math.inf, math.inf, 1e300]),
    "small": (pa.int8(), [None, -128, 0, 127]),
}  # fmt: skip
WIDE = 60


def changes_of(values: list[Any], rounds: int = 3) -> list[list[tuple[Any, ...]]]:
    """Changes of (key, value) that go up and down."""
    draw = random.Random(0)
    every = list(itertools.product(values, values))
    return [[(*draw.choice(every), draw.choice([-1, 1, 2])) for _ in range(12)] for _ in range(rounds)]


def added(epochs: Any, came_to: Any) -> list[Counter[Any]]:
    return [Counter({r: n for r, n in each.items() if n > 0}) for each in came_to(epochs)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shared"),
    in_turn(VALUES, [False, True]),
)
def test_every_flat_type_is_a_key_and_a_value(name: str, play: Any, came_to: Any, *, shared: bool) -> None:
    kind, values = VALUES[name]
    epochs = changes_of(values)
    flow = ts.Dataflow("kinds")
    schema = pa.schema([("k", kind), ("v", kind), ("d", pa.int64())])
    x = flow.input("x", schema, epochs="manual").collection(diff="d")
    positive = x.threshold(lambda counts: np.maximum(counts, 0))
    keyed = positive.arrange("k") if shared else positive
    keyed.count(keys="k").changes().capture("the count")
    keyed.min("v", keys="k").changes().capture("the min")
    keyed.max("v", keys="k").changes().capture("the max")
    keyed.top_k(2, "v", keys="k").changes().capture("the top")
    keyed.reduce(
        lambda _, of: [max(Counter(r.v for r in of).values())], "n long", keys="k"
    ).changes().capture("the most")
    other = positive.select(v="k").distinct()
    keyed.select(k="v", w="k").join(keyed, on="k").changes().capture("the join")
    keyed.semijoin(other, left="v", right="v").changes().capture("the semijoin")
    keyed.antijoin(other, left="v", right="v").changes().capture("the antijoin")

    results = {out: came_to(rows) for out, rows in play(flow, {"x": epochs}, workers=3, seed=1).items()}

    for epoch, held in enumerate(added(epochs, came_to)):
        keys = {k for k, _ in held}
        of = {k: Counter({v: n for (key, v), n in held.items() if key == k}) for k in keys}
        some = {k: [v for v in each if v is not None] for k, each in of.items()}
        expected = {
            "count": Counter({(k, sum(each.values())): 1 for k, each in of.items()}),
            "min": Counter({(k, min(each)): 1 for k, each in some.items() if each}),
            "max": Counter({(k, max(each)): 1 for k, each in some.items() if each}),
            "most": Counter({(k, max(each.values())): 1 for k, each in of.items()}),
            "semijoin": Counter({(k, v): n for (k, v), n in held.items() if v is not None and v in keys}),
            "antijoin": Counter({(k, v): n for (k, v), n in held.items() if v is None or v not in keys}),
        }
        pairs: Counter[Any] = Counter()
        for (w, k), n in held.items():
            for v, m in of.get(k, {}).items():
                pairs[k, w, v] += n * m * (k is not None)
        expected["join"] = +pairs
        expected["top"] = Counter(
            (k, v)
            for k, each in of.items()
            for v in (sorted((v for v in each.elements() if v is not None), reverse=True)
                      + [None] * each[None])[:2]
        )  # fmt: skip
        assert {out: got[epoch] for out, got in results.items()} == {
            f"the {out}": records for out, records in expected.items()
        }, epoch


@pytest.mark.slow
def test_keys_of_several_columns_and_records_of_many(play: Any, came_to: Any) -> None:
    draw = random.Random(1)
    columns = [f"c{i}" for i in range(WIDE)]
    kinds = [list(VALUES.values())[i % len(VALUES)] for i in range(WIDE)]
    pool = [tuple(draw.choice(values) for _, values in kinds) for _ in range(20)]
    epochs = [[(*draw.choice(pool), draw.choice([1, 1, -1])) for _ in range(8)] for _ in range(3)]
    flow = ts.Dataflow("wide")
    schema = pa.schema([*zip(columns, (kind for kind, _ in kinds), strict=True), ("d", pa.int64())])
    x = flow.input("x", schema, epochs="manual").collection(diff="d")
    x.distinct().changes().capture("the distinct")
    keys = [columns[3], columns[0], columns[2]]
    x.distinct().count(keys=keys).changes().capture("the count")
    x.distinct().arrange(keys).semijoin(x, on=keys).changes().capture("the self")

    results = {out: came_to(rows) for out, rows in play(flow, {"x": epochs}, workers=4, seed=2).items()}

    for epoch, held in enumerate(added(epochs, came_to)):
        counts = Counter((row[3], row[0], row[2]) for row in held)
        assert results["the distinct"][epoch] == Counter(dict.fromkeys(held, 1))
        assert results["the count"][epoch] == Counter({(*key, n): 1 for key, n in counts.items()})
        total = came_to(epochs)[epoch]
        there: Counter[Any] = Counter()
        for row, n in total.items():
            there[row[3], row[0], row[2]] += n
        kept = [row for row in held if None not in (key := (row[3], row[0], row[2])) and there[key] > 0]
        assert results["the self"][epoch] == Counter(kept)


def test_duplicates_self_loops_and_empty_keys_are_counted(play: Any, came_to: Any) -> None:
    edges = [
        [("", "", 2), ("a", "a", 1), ("a", "", 3), (None, "a", 1), ("a", None, 1)],
        [("", "", -1), ("a", "", -3), (None, None, 2)],
        [("", "", -1), ("a", "a", -1), (None, "a", -1), ("a", None, -1), (None, None, -2)],
    ]
    flow = ts.Dataflow("multigraph")
    x = flow.input("x", "src string, dst string, d int", epochs="manual").collection(diff="d")
    paths = x.select(a="src", b="dst").join(x.select(b="src", c="dst"), on="b")
    paths.select("a", "b", "c").changes().capture("the paths")
    x.count("degree", keys="src").changes().capture("the degrees")

    results = {out: came_to(rows) for out, rows in play(flow, {"x": edges}, workers=2).items()}

    for epoch, there in enumerate(came_to(edges)):
        expected: Counter[Any] = Counter()
        for (a, b), n in there.items():
            for (other, c), m in there.items():
                if b == other is not None:
                    expected[a, b, c] += n * m
        assert results["the paths"][epoch] == expected
        degrees: Counter[Any] = Counter()
        for (src, _), n in there.items():
            degrees[src] += n
        assert results["the degrees"][epoch] == Counter(dict.fromkeys(degrees.items(), 1))
    assert not results["the paths"][-1]


FLOATS = st.sampled_from([0.1, 0.2, 0.3, 0.7, 1e16, -1e16, 3.3, 1e-9])


@pytest.mark.slow
@given(
    kept=st.lists(st.tuples(st.integers(0, 2), FLOATS), max_size=8),
    gone=st.lists(st.tuples(st.integers(0, 5), FLOATS), max_size=8),
    workers=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_a_floating_sum_is_that_of_the_present_values_to_the_last_bit(
    kept: Any, gone: Any, *, workers: int, seed: int, play: Any, came_to: Any
) -> None:
    def sums(epochs: Any, **how: Any) -> Any:
        flow = ts.Dataflow("sums")
        x = flow.input("x", "k long, v double, d long", epochs="manual").collection(diff="d")
        x.sum("v", keys="k").changes().capture("the out")
        x.arrange("k").sum("v").changes().capture("the shared")
        results = play(flow, {"x": epochs}, **how)
        assert came_to(results["the out"]) == came_to(results["the shared"])
        return came_to(results["the out"])[-1]

    plain = [(k, v, 1) for k, v in kept]
    half = len(plain) // 2
    more, less = [(k, v, 1) for k, v in gone], [(k, v, -1) for k, v in gone]

    alone = sums([plain])
    assert sums([plain[half:] + more, plain[:half], less[::-1]], workers=workers, seed=seed) == alone
    for key, total in alone:
        values = [v for k, v in kept if k == key]
        assert abs(total - math.fsum(values)) <= 1e-15 * len(values) * sum(map(abs, values))


@pytest.mark.parametrize("workers", [1, 3])
def test_equal_values_have_equal_sums_for_every_key(workers: int, play: Any) -> None:
    flow = ts.Dataflow("sums")
    x = flow.input("x", "k long, v double", epochs="manual").collection()
    x.sum("v", keys="k").changes().capture("out")
    values = [0.1, 1e16, -1e16, 0.3, 0.7, 3.3]
    first = [(k, v) for k in range(20) for v in values]
    second = [(k, v) for k in range(20, 23) for v in values[::-1]]

    results = play(flow, {"x": [first, second[:9], second[9:]]}, workers=workers)["out"]

    assert len({total for (_, total, _) in results[0]}) == 1
    assert {total for (_, total, diff) in results[2] if diff == 1} == {results[0][0][1]}


def test_sums_of_decimals_are_exact_and_of_nulls_null(play: Any) -> None:
    flow = ts.Dataflow("sums")
    schema = pa.schema([("k", pa.int64()), ("v", pa.decimal128(38, 2)), ("n", pa.int32()), ("d", pa.int64())])
    x = flow.input("x", schema, epochs="manual").collection(diff="d")
    x.sum("v", keys="k").changes().capture("the v")
    x.sum("n", keys="k").changes().capture("the n")
    x.select("k", n=pc.field("n") > 0).sum("n", keys="k").changes().capture("the flags")
    large, total = Decimal(10) ** 35, Decimal("3" + "0" * 35 + ".01")

    results = play(flow, {"x": [[(1, large, 2, 3), (1, Decimal("0.01"), None, 1), (2, None, None, 2)],
                             [(1, large, 2, -3)]]})  # fmt: skip

    assert results["the v"] == [
        [(1, total, 1), (2, None, 1)],
        [(1, Decimal("0.01"), 1), (1, total, -1)],
    ]
    assert results["the n"] == [[(1, 6, 1), (2, None, 1)], [(1, None, 1), (1, 6, -1)]]
    assert results["the flags"] == [[(1, 3, 1), (2, None, 1)], [(1, None, 1), (1, 3, -1)]]


def test_nan_and_minus_zero_are_one_value_each_and_nan_is_no_extreme(play: Any) -> None:
    flow = ts.Dataflow("nan")
    x = flow.input("x", "k long, v double, d long", epochs="manual").collection(diff="d")
    x.distinct().count("n", keys="k").changes().capture("the different")
    x.min("v", keys="k").changes().capture("the min")
    nan = math.nan

    results = play(flow, {"x": [[(1, nan, 1), (1, -nan, 1), (1, 0.0, 1), (1, -0.0, 1), (2, nan, 1)],
                             [(1, nan, -2), (1, -0.0, -2)]]})  # fmt: skip

    assert results["the different"] == [[(1, 2, 1), (2, 1, 1)], [(1, 2, -1)]]
    assert results["the min"] == [[(1, 0.0, 1)], [(1, 0.0, -1)]]


# -- inserted and deleted records leave no state ------------------------------------------------------------

REDUCTIONS = {
    "count": lambda x: x.count(keys="k"),
    "sum": lambda x: x.sum("v", keys="k"),
    "min": lambda x: x.min("v", keys="k"),
    "max": lambda x: x.max("v", keys="k"),
    "top_k": lambda x: x.top_k(1, "v", keys="k"),
    "reduce": lambda x: x.reduce(lambda _, of: [of[0].v], "w long", keys="k"),
    "reduce_batches": lambda x: x.reduce_batches(lambda t: t.select(["k", "v"]), "v long", keys="k"),
}


def never_empty(table: pa.Table) -> pa.Table:
    assert table.num_rows, "a function of records is asked for keys that have some"
    return table.select(["k", "v"])


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", [*REDUCTIONS, "distinct"])
def test_changes_that_cancel_out_send_nothing(name: str, *, shared: bool) -> None:
    flow = ts.Dataflow("nothing")
    x = flow.input("x", "k long, v long").collection()
    both = x.concat(x.negate())
    made = both.distinct() if name == "distinct" else REDUCTIONS[name](both.arrange("k") if shared else both)
    made.changes().capture("the out")

    for workers in (1, 2):
        assert ts.testing.run(flow, {"x": [[(1, 2), (None, None)], [(1, 2)]]}, workers=workers)[
            "the out"
        ].rows() == {0: [], 1: []}


def test_a_function_of_batches_gets_no_keys_without_records() -> None:
    flow = ts.Dataflow("nothing")
    x = flow.input("x", "k long, v long, d long").collection(diff="d")
    x.reduce_batches(never_empty, "v long", keys="k").changes().capture("the out")

    results = ts.testing.run(flow, {"x": [[(1, 2, 1)], [(1, 2, -1)], [(1, 2, -1), (3, 4, -1)], [(1, 2, 2)]]})

    assert results["the out"].rows() == {0: [(1, 2, 1)], 1: [(1, 2, -1)], 2: [], 3: [(1, 2, 1)]}


def test_reductions_without_keys() -> None:
    flow = ts.Dataflow("all")
    x = flow.input("x", "k long, v long, d long").collection(diff="d")
    x.count().changes().capture("the count")
    x.sum("v").changes().capture("the sum")
    x.min("v").changes().capture("the min")
    x.top_k(1, "v").changes().capture("the top")

    results = ts.testing.run(flow, {"x": [[(1, 5, 2), (None, None, 1)], [(1, 5, -2), (2, 3, 1)]]}, workers=3)

    assert {name: out.rows() for name, out in results.items()} == {
        "the count": {0: [(3, 1)], 1: [(2, 1), (3, -1)]},
        "the sum": {0: [(10, 1)], 1: [(3, 1), (10, -1)]},
        "the min": {0: [(5, 1)], 1: [(3, 1), (5, -1)]},
        "the top": {0: [(1, 5, 1)], 1: [(1, 5, -1), (2, 3, 1)]},
    }


# -- a collection as it was ----------------------------------------------------------------------------------


def test_a_snapshot_repeats_records_by_multiplicity(came_to: Any) -> None:
    epochs = [[*changes_of(TEXT, 1)[0], ("gone", "", -3)], [], *changes_of(TEXT, 3)]
    flow = ts.Dataflow("log")
    x = flow.input("x", "k string, v string, d long").collection(diff="d")
    x.changes("n").capture("log")

    log = ts.testing.run(flow, {"x": epochs}, workers=2)["log"]

    held = added(epochs, came_to)
    for epoch, records in enumerate(held):
        table = ts.snapshot(log, at=epoch, diff="n")
        assert Counter(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)) == records
        assert table.column_names == ["k", "v"]
    assert ts.snapshot(log, diff="n").num_rows == sum(held[-1].values())
    counted = ts.snapshot(log, at=0, diff="n", count="times").to_pylist()
    assert {(row["k"], row["v"]): row["times"] for row in counted} == {**held[0], ("gone", ""): -3}
    with pytest.raises(ts.TimelyError, match="not an epoch"):
        ts.snapshot(log, at=-1, diff="n")
    with pytest.raises(ts.TimelyError, match=r"(?s)count='k' is a column of the records.*Hint: "):
        ts.snapshot(log, diff="n", count="k")
    with pytest.raises(ts.TimelyError, match=r"(?s)count=1 is not a name.*\nHint: give count= another name"):
        ts.snapshot(log, diff="n", count=1)  # type: ignore[arg-type]
    with pytest.raises(ts.TimelyError, match=r"(?s)no columns \['k'\] among \['n'\].*Hint: .*diff="):
        ts.snapshot(log, diff="k")
    with pytest.raises(ts.TimelyError, match=r"(?s)snapshot.*no columns \['diff'\].*Hint: .*diff="):
        ts.snapshot(log)


def test_a_snapshot_of_too_many_rows_names_the_record_and_its_multiplicity() -> None:
    changes = pa.table({"k": ["a", "b"], "diff": [2**40, 1]})
    log = ts.testing.Captured(changes.schema, {0: changes})
    with pytest.raises(ts.TimelyError, match=r"(?s)integers, and these are \{'k': 'string'\}.*Hint: .*diff="):
        ts.snapshot(log, diff="k")
    with pytest.raises(
        ts.TimelyError, match=r"(?s)snapshot: \{'k': 'a'\} is there 1099511627776 times.*count="
    ):
        ts.snapshot(log)
    assert ts.snapshot(log, count="n").to_pylist() == [{"k": "a", "n": 2**40}, {"k": "b", "n": 1}]
