"""Aggregates: kinds, nulls, types, no keys, epochs, and refused arguments."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import SchemaError, VertexError
from timely_spark.graph import as_schema
from timely_spark.operators import aggregate as module
from timely_spark.operators.aggregate import Aggregates
from timely_spark.operators.retractions import EXACT, SIGN
from timely_spark.state.arrow import from_bytes
from timely_spark.state.grouping import group
from timely_spark.state.row_times import EPOCH, with_time
from timely_spark.testing import Simulation, run
from timely_spark.times import Time
from timely_spark.worker import pack

ALL: dict[str, Any] = {
    "n": "count",
    "valid": ("count", "v"),
    "total": ("sum", "v"),
    "low": ("min", "v"),
    "high": ("max", "v"),
    "all": ("collect", "v"),
}


def out(epochs: list[Any], kind: str = "long", workers: int = 3, **options: Any) -> Any:
    flow = ts.Dataflow("aggregate")
    flow.input("x", f"k string, v {kind}").group_by("k").aggregate(**ALL, **options).capture("out")
    return run(flow, {"x": epochs}, workers=workers)["out"].rows()


def test_null_values_are_ignored_and_null_is_a_key() -> None:
    rows = [("a", 2), ("a", None), ("a", 1), ("b", None), (None, 5), (None, 6)]

    assert out([rows]) == {
        0: [(None, 2, 2, 11, 5, 6, [5, 6]), ("a", 3, 2, 3, 1, 2, [1, 2]), ("b", 1, 0, None, None, None, [])]
    }


def test_over_epochs_and_per_time() -> None:
    epochs = [[("a", 2), ("b", 1)], [], [("a", 1), ("a", None)]]

    assert out(epochs)[2] == [("a", 3, 2, 3, 1, 2, [1, 2])]
    assert out(epochs)[1] == []
    assert out(epochs, per="time")[2] == [("a", 2, 1, 1, 1, 1, [1])]


@pytest.mark.parametrize(
    ("kind", "values", "total", "made"),
    [
        ("byte", [127, 127], 254, pa.int64()),
        ("int", [2**31 - 1, 1], 2**31, pa.int64()),
        ("boolean", [True, True, False], 2, pa.int64()),
        ("float", [0.5, 0.25], 0.75, pa.float64()),
        ("double", [1.5, -1.5], 0.0, pa.float64()),
        ("decimal(4,2)", [Decimal("99.99")] * 2, Decimal("199.98"), pa.decimal128(14, 2)),
        ("decimal(38,2)", [Decimal("0.01")] * 2, Decimal("0.02"), pa.decimal128(38, 2)),
    ],
)
def test_sums_have_wider_types(kind: str, values: list[Any], total: Any, made: pa.DataType) -> None:
    flow = ts.Dataflow("sum")
    x = flow.input("x", f"v {kind}").aggregate(total=("sum", "v"))
    x.capture("out")

    assert x.schema.field("total").type == made
    assert run(flow, {"x": [values, [values[-1]]]}, workers=2)["out"].rows() == {
        0: [(total,)],
        1: [(total + values[-1],)],
    }


def test_nan_is_a_value_of_a_sum() -> None:
    flow = ts.Dataflow("nan")
    flow.input("x", "v double").aggregate(total=("sum", "v")).capture("out")

    assert math.isnan(run(flow, {"x": [[1.0, math.nan]]})["out"].rows()[0][0][0])


def test_infinities_are_added_up_without_a_warning() -> None:
    flow = ts.Dataflow("infinite")
    flow.input("x", "v double").aggregate(total=("sum", "v")).capture("out")

    rows = run(flow, {"x": [[1e308, 1e308], [-math.inf]]})["out"].rows()
    assert rows[0] == [(math.inf,)]
    assert math.isnan(rows[1][0][0])


def test_a_sum_of_decimals_does_not_wrap_around() -> None:
    flow = ts.Dataflow("wrap")
    flow.input("x", "v decimal(38,0)").aggregate(total=("sum", "v")).capture("out")
    most, least = Decimal("9" * 38), Decimal("-" + "9" * 38)

    assert run(flow, {"x": [[most, most, least, most, least]]})["out"].rows() == {0: [(most,)]}
    with pytest.raises(VertexError, match=r"step 'aggregate'.*a sum of decimals is beyond 38 digits"):
        run(flow, {"x": [[most] * 4]})  # modulo 2**128 it has 38 digits


def test_the_least_and_greatest_duration() -> None:
    flow = ts.Dataflow("durations")
    x = flow.input("x", pa.schema([("d", pa.duration("us"))]))
    x.aggregate(least=("min", "d"), most=("max", "d")).capture("out")
    day, less, none = timedelta(1), timedelta(microseconds=-1), [(None,)]

    assert run(flow, {"x": [[day, less, None], none]})["out"].rows() == {0: [(less, day)], 1: [(less, day)]}


def test_without_keys_all_records_are_one_group_and_an_empty_epoch_sends_nothing() -> None:
    flow = ts.Dataflow("total")
    x = flow.input("x", "n long, _all long")
    x.aggregate(total=("sum", "n"), other=("sum", "_all")).capture("out")
    x.group_by().count().capture("counts")
    result = run(flow, {"x": [[(1, 10), (2, 20)], [], [(3, 30)]]}, workers=3)

    assert result["out"].rows() == {0: [(3, 30)], 1: [], 2: [(6, 60)]}
    assert result["counts"].rows() == {0: [(2,)], 1: [], 2: [(3,)]}


def test_several_keys() -> None:
    flow = ts.Dataflow("keys")
    flow.input("x", "a long, b string").group_by("a", "b").count().capture("out")

    rows = run(flow, {"x": [[(1, "x"), (1, "y"), (1, "x"), (None, None), (None, None)]]}, workers=3)[
        "out"
    ].rows()
    assert rows == {0: [(None, None, 2), (1, "x", 2), (1, "y", 1)]}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.group_by("nothing").count(),
        lambda x: x.group_by("k").aggregate(),
        lambda x: x.group_by("k").aggregate(a="sum"),
        lambda x: x.group_by("k").aggregate(a=("median", "v")),
        lambda x: x.group_by("k").aggregate(a=("sum", "nothing")),
        lambda x: x.group_by("k").aggregate(a=("sum", "k")),
        lambda x: x.group_by("k").aggregate(a=("mean", "k")),
        lambda x: x.group_by("k").aggregate(a="mean"),
        lambda x: x.group_by("k").aggregate(k="count"),
        lambda x: x.group_by("k").aggregate(a="count", per="epoch"),
        lambda x: x.group_by("l").count(),
    ],
)
def test_invalid_arguments_are_refused_when_the_graph_is_built(build: Any) -> None:
    with pytest.raises(SchemaError, match="Hint: "):
        build(ts.Dataflow("bad").input("x", "k string, v long, l array<long>"))


def test_two_incomparable_times_change_the_value_at_their_join() -> None:
    """At (1, 1) both (1, 0) and (0, 1) count, though no record arrives at (1, 1) itself."""
    flow = ts.Dataflow("meet")

    def step(x: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        sent = (
            x.group_by("k")
            .count("n")
            .unary(
                lambda time, batch: [(*time, n) for n in batch["n"].to_pylist()],
                "epoch_ long, iteration long, n long",
            )
        )
        return x.where(lambda row: row.go).map(lambda row: (row.k, False), "k long, go boolean"), sent

    flow.input("x", "k long, go boolean", epochs="manual").loop(step).capture("out")
    for workers in (1, 3):
        rows = run(flow, {"x": [[(7, True)], [(7, False)]]}, workers=workers)["out"].rows()
        assert rows == {0: [(0, 0, 1), (0, 1, 2)], 1: [(1, 0, 2), (1, 1, 3)]}


@pytest.mark.slow
def test_state_does_not_grow_with_epochs() -> None:
    flow = ts.Dataflow("long")
    flow.input("x", "k long").group_by("k").count().capture("out")
    simulation = Simulation(flow)
    for _ in range(100):
        simulation.send("x", np.arange(10).tolist())
        simulation.run()

    assert simulation.captured["out"].rows()[99] == [(k, 100) for k in range(10)]
    assert len(simulation.states[0] or b"") < 20_000


def test_records_are_aggregated_before_the_exchange() -> None:
    flow = ts.Dataflow("early")
    flow.input("x", "k long, v long").group_by("k").aggregate(n="count", v=("sum", "v")).capture("out")
    plan = flow.compile(2)
    rows = pack(plan, "x", pa.table({"k": [1, 2, 1, 1], "v": [10, 20, 30, 40]}), shard=0)
    sent = pa.concat_tables(from_bytes(p.as_buffer()) for p in rows["payload"] if p.is_valid)

    assert sorted(sent.to_pylist(), key=str) == [{"k": 1, "n": 3, "v": 80}, {"k": 2, "n": 1, "v": 20}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "hashed"),
    [
        *((pa.int64(), True), (pa.int8(), True), (pa.uint64(), True), (pa.string(), True)),
        *((pa.binary(), True), (pa.float64(), False), (pa.timestamp("us"), False)),
    ],
    ids=str,
)
def test_records_of_keys_that_repeat_are_counted_as_if_they_were_sorted(
    kind: pa.DataType, *, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Aggregates(("k",), (("n", "count", None), ("m", "count", None)))
    numbers = np.random.default_rng(1).integers(0, 50, 4000)
    few = pa.array([None if n % 7 == 0 else n for n in numbers.tolist()], pa.int64())
    few = few.cast(pa.string()).cast(kind) if pa.types.is_binary(kind) else few.cast(kind)
    batch = pa.table({"k": pa.chunked_array([few.slice(0, 1500), few.slice(1500)])})
    assert counts._counts(batch) is None  # so few that it does not matter
    due = counts.partial(batch)
    monkeypatch.setattr(module, "_SAMPLE", 256)

    assert (counts._counts(batch) is not None) == hashed
    assert counts.partial(batch).equals(due)
    assert sum(due["n"].to_pylist()) == sum(due["m"].to_pylist()) == 4000
    other = Aggregates(("k",), (("n", "count", "k"),))
    assert other._counts(batch) is None
    assert other.partial(batch)["n"].to_pylist() == [
        n * (k is not None) for k, n in zip(due["k"].to_pylist(), due["n"].to_pylist(), strict=True)
    ]
    assert counts._counts(pa.table({"k": np.arange(4000)})) is None  # no key is there again
    pairs = pa.table({"k": few, "l": numbers % 3})
    for keys in (), ("k", "l"):
        found = Aggregates(keys, (("n", "count", None),)).partial(pairs)
        assert found.num_rows == len({tuple(row[key] for key in keys) for row in pairs.to_pylist()})
        assert sum(found["n"].to_pylist()) == 4000


def test_late_records_are_counted_one_by_one() -> None:
    flow = ts.Dataflow("late")
    flow.source("x", "epoch long, k long", epoch="epoch").group_by("k").count().capture("out")
    simulation = Simulation(flow, workers=2)
    for rows in ([(3, 1)], [(4, 1), (4, 1)], [(0, 7), (1, 7), (2, 7), (9, 7)]):
        simulation.send("x", rows)
        simulation.run()

    assert simulation.result.late == {"x": 3}
    empty = {epoch: [] for epoch in range(5, 9)}
    assert simulation.captured["out"].rows() == {3: [(1, 1)], 4: [(1, 3)], **empty}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte", "long", "double", "string"])
def test_workers_and_chunks_do_not_change_the_result(kind: str) -> None:
    random = np.random.default_rng(7)
    made = [
        pa.table({"k": random.integers(0, 300, 6000), "v": random.integers(-9, 9, 6000)}) for _ in range(3)
    ]
    tables = [
        table.set_column(1, "v", table["v"].cast(as_schema(f"v {kind}").field(0).type)) for table in made
    ]
    columns: dict[str, Any] = {"n": "count", "low": ("min", "v"), "high": ("max", "v")}
    if kind != "string":
        columns["total"] = ("sum", "v")
    results = []
    for workers in (1, 3):
        flow = ts.Dataflow("many")
        flow.input("x", f"k long, v {kind}").group_by("k").aggregate(columns).capture("out")
        results.append(run(flow, {"x": tables}, workers=workers)["out"].rows())

    assert results[0] == results[1]
    together = (
        pa.concat_tables(tables).group_by("k").aggregate([([], "count_all"), ("v", "min"), ("v", "max")])
    )
    last = {row[0]: row[1:4] for epoch in sorted(results[0]) for row in results[0][epoch]}
    assert last == {row["k"]: (row["count_all"], row["v_min"], row["v_max"]) for row in together.to_pylist()}


@pytest.mark.slow
@given(
    epochs=st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(-(2**40), 2**40)), max_size=6),
        max_size=4,
    ),
    kind=st.sampled_from(["long", "int", "double", "decimal(20, 2)"]),
    per=st.sampled_from(["accumulated", "time"]),
    workers=st.integers(1, 3),
)
def test_a_mean_is_that_of_pandas(epochs: Any, kind: str, per: str, workers: int) -> None:
    as_kind = {"int": lambda v: v % 1000, "long": int, "double": float}.get(kind, lambda v: Decimal(v) / 4)
    epochs = [[(k, None if v is None else as_kind(v)) for k, v in rows] for rows in epochs]
    flow = ts.Dataflow("mean")
    x = flow.input("x", f"k string, v {kind}", epochs="manual")
    x.group_by("k").aggregate(least=("min", "v"), m=("mean", "v"), n="count", per=per).capture("out")
    x.aggregate(m=("mean", "v"), per=per).capture("all")

    made = run(flow, {"x": epochs}, workers=workers)

    for epoch, rows in enumerate(epochs):
        until = rows if per == "time" else [row for some in epochs[: epoch + 1] for row in some]
        frame = pd.DataFrame(until, columns=["k", "v"]).astype({"v": float})
        means = frame.groupby("k")["v"].mean()
        found = {k: m for k, _, m, _ in made["out"].rows().get(epoch, [])}
        assert found.keys() == {k for k, _ in rows}
        for k, m in found.items():
            assert m == pytest.approx(means[k]) if m is not None else np.isnan(means[k])
        total = [m for (m,) in made["all"].rows().get(epoch, [])]
        mean = frame["v"].mean()
        assert total == ([] if not rows else [None] if np.isnan(mean) else [pytest.approx(mean)])


def test_the_mean_over_a_sliding_window_forgets_and_a_window_without_values_has_none() -> None:
    flow = ts.Dataflow("window")
    x = flow.input("x", "k string, v long").expire(after=1)
    x.group_by("k").aggregate(m=("mean", "v")).capture("out")

    rows = run(flow, {"x": [[("a", 1), ("a", 2)], [("a", 6)], [], [("a", None)]]})["out"].rows()

    assert rows == {0: [("a", 1.5)], 1: [("a", 6.0)], 2: [("a", None)], 3: [("a", None)], 4: [("a", None)]}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sliding_window_has_nothing_of_the_doubles_that_have_left_it(workers: int) -> None:
    flow = ts.Dataflow("window")
    x = flow.input("x", "k string, v double", epochs="manual").expire(after=1)
    x.group_by("k").aggregate(t=("sum", "v"), m=("mean", "v")).capture("out")
    x.group_by("k").aggregate(t=("sum", "v"), expire=1).capture("sessions")
    nan, inf = math.nan, math.inf
    epochs = [
        [("a", nan), ("b", inf), ("c", 1e20), ("d", None)],
        [("a", 0.1), ("b", -inf), ("c", 0.25), ("c", 0.5)],
        [("a", 0.2), ("b", inf), ("b", -inf)],
        [("b", 1.0)],
    ]

    made = run(flow, {"x": epochs}, workers=workers)

    rows = made["out"].rows()
    assert str(rows[0]) == str([("a", nan, nan), ("b", inf, inf), ("c", 1e20, 1e20), ("d", None, None)])
    assert str(rows[1]) == str([("a", 0.1, 0.1), ("b", -inf, -inf), ("c", 0.75, 0.375), ("d", None, None)])
    assert str(rows[2]) == str([("a", 0.2, 0.2), ("b", nan, nan), ("c", 0.0, None)])
    assert (rows[3], rows[4]) == ([("a", 0.0, None), ("b", 1.0, 1.0)], [("b", 0.0, None)])
    sums = {epoch: [row[:2] for row in of] for epoch, of in rows.items()}
    assert str(made["sessions"].rows()) == str(sums)


def test_a_sum_of_doubles_counts_a_record_as_often_as_a_function_says() -> None:
    flow = ts.Dataflow("window")
    x = flow.input("x", "k string, v double, i long", epochs="manual").expire(after=2)
    often = x.map(lambda row: (row.k, row.v, row.diff * (2**30 - 1)), "k string, v double, diff long")
    often.group_by("k").aggregate(t=("sum", "v")).capture("out")
    made = run(flow, {"x": [[("a", 1.5, i) for i in range(5)], [("a", -0.1, 5)]]})["out"].rows()
    both = Fraction(2**30 - 1) * (Fraction(15, 2) - Fraction(0.1))
    one = -0.1 * (2**30 - 1)
    assert made == {0: [("a", 7.5 * (2**30 - 1))], 1: [("a", float(both))], 2: [("a", one)], 3: [("a", 0.0)]}


def test_an_exact_sum_does_not_wrap_around() -> None:
    aggregates = Aggregates(("k",), (("t", EXACT, "v"),))
    values, times = [1.5, -0.75, 2.0**70, 1e300, -1e300, 0.1], 2**30 - 1
    batch = pa.table({"k": ["a"] * 6, "v": values, f"v{SIGN}": pa.array([times] * 6, pa.int64())})
    total = aggregates.partial(batch)
    for _ in range(30):
        total = aggregates.combine(pa.concat_tables([total, total]))
    expected = sum(map(Fraction, values), Fraction(0)) * times * 2**30
    assert aggregates.results(total)["t"].to_pylist() == [float(expected)]


@pytest.mark.parametrize("longs", [[2**53 + 1, 2**53 + 3], [1_700_000_000_000_000] * 7])
def test_a_mean_of_longs_beyond_what_a_double_holds_is_rounded(longs: list[int]) -> None:
    flow = ts.Dataflow("mean")
    flow.input("x", "n long").aggregate(m=("mean", "n")).capture("out")
    assert run(flow, {"x": [longs]})["out"].rows() == {0: [(sum(longs) / len(longs),)]}


def test_the_sum_of_a_mean_of_longs_beyond_64_bits_is_an_error() -> None:
    flow = ts.Dataflow("mean")
    flow.input("x", "k long, v long").group_by("k").aggregate(m=("mean", "v")).capture("out")
    with pytest.raises(VertexError, match=r"(?s)step 'aggregate'.*beyond 64 bits"):
        run(flow, {"x": [[(1, (1 << 63) - 1), (1, 1)]]})


@pytest.mark.parametrize("options", [{}, {"per": "time"}, {"expire": 3}])
def test_a_sum_of_longs_beyond_64_bits_is_an_error(options: Any) -> None:
    most = (1 << 63) - 1
    flow = ts.Dataflow("sums")
    x = flow.input("x", "k long, v long")
    x.group_by("k").aggregate(total=("sum", "v"), **options).capture("out")
    fits: list[Any] = [(1, most - 1), (1, 1), (2, -most), (2, -1), (2, None), (3, None)]
    assert run(flow, {"x": [fits]}, workers=2)["out"].rows() == {0: [(1, most), (2, -most - 1), (3, None)]}
    for rows in ([(1, most), (1, 1)], [(1, -most), (1, -2), (1, None)]):
        with pytest.raises(VertexError, match=r"(?s)step 'aggregate'.*beyond 64 bits.*Hint: sum doubles"):
            run(flow, {"x": [rows]})


HALF = 1 << 62


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"per": "time"}, {"expire": 3}])
@pytest.mark.parametrize("seed", range(6))
def test_sums_of_parts_beyond_64_bits_that_cancel_are_no_error(options: Any, seed: int) -> None:
    flow = ts.Dataflow("sums")
    x = flow.input("x", "k long, v long")
    x.group_by("k").aggregate(total=("sum", "v"), least=("min", "v"), n="count", **options).capture("out")
    rows: list[Any] = [(1, HALF), (1, HALF), (2, 7), (1, -HALF), (1, -HALF), (2, 8), (3, None)]
    assert run(flow, {"x": [rows]}, workers=2, seed=seed)["out"].rows() == {
        0: [(1, 0, -HALF, 4), (2, 15, 7, 2), (3, None, None, 1)]
    }


@pytest.mark.parametrize("options", [{}, {"expire": 3}])
def test_an_epochs_sum_beyond_64_bits_is_added_to_those_before(options: Any) -> None:
    flow = ts.Dataflow("sums")
    x = flow.input("x", "k long, v long")
    x.group_by("k").aggregate(total=("sum", "v"), **options).capture("out")
    epochs: list[Any] = [[(1, -HALF), (1, 1)], [(1, HALF), (1, HALF), (2, 1)], [(1, -HALF), (2, 1), (2, 1)]]
    assert run(flow, {"x": epochs}, workers=2)["out"].rows() == {
        0: [(1, 1 - HALF)],
        1: [(1, HALF + 1), (2, 1)],
        2: [(1, 1), (2, 3)],
    }


def test_partial_sums_beyond_64_bits_are_kept_apart_as_times_become_equal() -> None:
    sums = Aggregates(("k",), (("a", "sum", "a"), ("b", "sum", "b")))
    a, b = [HALF, HALF, 1, 2, 3, 4], [0, 0, 0, 0, -HALF, -2 * HALF]
    table = with_time(pa.table({"k": [1, 1, 2, 2, 3, 3], "a": a, "b": b}), Time(7))
    firsts, kept = sums.fold(table, group(table, ["k"]))
    assert table.column("k").take(pa.array(firsts)) == kept.column("k")
    assert sorted(kept.to_pylist(), key=lambda row: tuple(row.values())) == [
        {"k": 1, "a": HALF, "b": 0, EPOCH: 7},
        {"k": 1, "a": HALF, "b": 0, EPOCH: 7},
        {"k": 2, "a": 3, "b": 0, EPOCH: 7},
        {"k": 3, "a": 3, "b": -HALF, EPOCH: 7},
        {"k": 3, "a": 4, "b": -2 * HALF, EPOCH: 7},
    ]
