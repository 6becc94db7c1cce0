"""State that expires: windows and sessions against a few lines of plain Python, and the size of the state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.state.arrangement import EPOCH, Arrangement
from timely_spark.testing import Simulation, run

Epochs = dict[int, list[Any]]
KINDS = ("clock", "manual", "column")


def source(flow: ts.Dataflow, name: str, kind: str, second: str = "v") -> ts.Stream:
    if kind == "column":
        columns = f"minute long, k long, {second} long"
        return flow.source(name, columns, epoch="minute").select("k", second)
    return flow.input(name, f"k long, {second} long", epochs="clock" if kind == "clock" else "manual")


def build(kind: str, n: int) -> ts.Dataflow:
    flow = ts.Dataflow("ends")
    x, y = source(flow, "x", kind), source(flow, "y", kind, "w")
    x.capture("in_x")
    y.capture("in_y")
    x.expire(after=n).capture("the expire")
    x.expire(after=n).group_by("k").aggregate(total=("sum", "diff")).capture("the window")
    runs = x.group_by("k").aggregate(n="count", total=("sum", "v"), all=("collect", "v"), expire=n)
    runs.capture("the runs")
    x.distinct(expire=n).capture("the distinct")
    x.min("v", keys="k", expire=n).capture("the min")
    x.max("v", keys="k", expire=n).capture("the max")
    x.join(y, on="k", expire=n).capture("the join")
    return flow


def by_runs(epochs: Epochs, n: int, width: int = 1) -> Iterator[tuple[int, Any, list[Any], list[Any]]]:
    """Per epoch and key: the records of its session before, and those of the epoch."""
    last: dict[Any, int] = {}
    held: dict[Any, list[Any]] = {}
    for epoch in sorted(epochs):
        for key in sorted({row[:width] for row in epochs[epoch]}):
            now = [row[-1] for row in epochs[epoch] if row[:width] == key]
            before = held[key] if key in last and epoch - last[key] <= n else []
            yield epoch, key, before, now
            last[key], held[key] = epoch, before + now


def expected(x: Epochs, y: Epochs, n: int) -> dict[str, Epochs]:
    names = ("expire", "window", "runs", "distinct", "min", "max", "join")
    made: dict[str, Epochs] = {name: defaultdict(list) for name in names}
    for epoch, rows in x.items():
        made["expire"][epoch] += [(*row, 1) for row in rows]
        made["expire"][epoch + n] += [(*row, -1) for row in rows]
        for later, others in y.items():
            if abs(epoch - later) <= n:
                pairs = [(k, v, w) for k, v in rows for j, w in others if j == k]
                made["join"][max(epoch, later)] += pairs
    for epoch in {at + ends for at in x for ends in (0, n)}:
        counts = Counter(k for at in x if epoch - n < at <= epoch for k, _ in x[at])
        touched = {k for at in (epoch, epoch - n) for k, _ in x.get(at, ())}
        made["window"][epoch] = [(k, counts[k]) for k in touched]
    for epoch, (k,), before, now in by_runs(x, n):
        all_ = sorted(before + now)
        made["runs"][epoch].append((k, len(all_), sum(all_), all_))
        made["min"][epoch] += [(k, min(now))] if not before or min(now) < min(before) else []
        made["max"][epoch] += [(k, max(now))] if not before or max(now) > max(before) else []
    for epoch, row, before, _ in by_runs(x, n, width=2):
        made["distinct"][epoch] += [] if before else [row]
    return {name: nonempty(of) for name, of in made.items()}


def nonempty(epochs: Epochs) -> Epochs:
    return {epoch: sorted(rows) for epoch, rows in epochs.items() if rows}


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4)


@pytest.mark.slow
@given(
    kind=st.sampled_from(KINDS),
    brought=st.lists(st.tuples(ROWS, ROWS, st.integers(0, 2)), min_size=1, max_size=7),
    n=st.integers(1, 4),
    workers=st.integers(1, 3),
    seed=st.none() | st.integers(0, 10_000),
    together=st.booleans(),
)
def test_expiry_depends_on_times_and_not_on_schedules(
    *,
    kind: str,
    brought: list[tuple[Any, Any, int]],
    n: int,
    workers: int,
    seed: int | None,
    together: bool,
) -> None:
    simulation = Simulation(build(kind, n), workers=workers, seed=seed)
    for epoch, (*parts, back) in enumerate(brought):
        for name, rows in zip("xy", parts, strict=True):
            if kind == "column":  # some are late, and so not part of any epoch
                simulation.send(name, [(max(0, epoch - back * row[1]), *row) for row in rows])
            else:
                simulation.send(name, rows, epoch=epoch if kind == "manual" else None)
            if kind == "manual":
                simulation.advance_to(name, epoch + 1)
        simulation.step() if together else simulation.run()
    for name in "xy":
        if kind == "manual":
            simulation.close(name)
        elif kind == "column":
            simulation.send(name, [(1_000, 0, 0)])
    if kind == "clock":  # what ends after the last input waits for the next
        simulation.batch += n
        simulation.send("x", [])
    simulation.run()

    captured = {name.removeprefix("the "): of.rows() for name, of in simulation.captured.items()}
    x, y = captured.pop("in_x"), captured.pop("in_y")
    assert {name: nonempty(captured[name]) for name in captured} == expected(x, y, n)
    if kind == "manual":
        assert [x[epoch] for epoch in range(len(brought))] == [sorted(rows) for rows, _, _ in brought]


def test_retractions_of_an_epoch_without_input_are_sent_with_the_next_input() -> None:
    flow = ts.Dataflow("gap")
    x = flow.input("x", "k long")
    x.expire(after=2).capture("out")
    turns = x.loop(lambda y: y.select(k="k").where(lambda row: row.k < 0))  # only uses batches up
    turns.capture("turns")
    simulation = Simulation(flow)
    simulation.send("x", [1])
    simulation.run()
    simulation.batch = 7  # batch ids may have gaps
    assert simulation.captured["out"].rows() == {0: [(1, 1)]}

    simulation.send("x", [2])
    simulation.run()
    assert nonempty(simulation.captured["out"].rows()) == {0: [(1, 1)], 2: [(1, -1)], 7: [(2, 1)]}


def test_changes_of_a_collection_are_retracted_by_their_negation() -> None:
    flow = ts.Dataflow("collection")
    changes = flow.input("x", "k string, times double", epochs="manual")
    changes.expire(2, diff="times").capture("out")
    changes.expire(1).capture("both")
    result = run(flow, {"x": [[("a", 2.0), ("b", -1.5)], [("a", None)]]})

    assert nonempty(result["out"].rows()) == {
        0: [("a", 2.0), ("b", -1.5)],
        1: [("a", None)],
        2: [("a", -2.0), ("b", 1.5)],
        3: [("a", None)],
    }
    assert result["both"].rows()[1] == [("a", None, 1), ("a", 2.0, -1), ("b", -1.5, -1)]


def test_records_are_finalised_before_a_window() -> None:
    flow = ts.Dataflow("final")
    flow.input("x", "k string, v long", epochs="manual").min("v", keys="k").expire(1).capture("out")

    for seed in range(5):
        rows = run(flow, {"x": [[("a", 3), ("a", 1)], [("a", 0)]]}, workers=2, seed=seed)["out"].rows()
        assert rows == {0: [("a", 1, 1)], 1: [("a", 0, 1), ("a", 1, -1)], 2: [("a", 0, -1)]}


def test_sessions_of_keys_of_any_type_restart() -> None:
    flow = ts.Dataflow("kinds")
    x = flow.input("x", "k double, s string", epochs="manual")
    x.distinct(expire=1).capture("rows")
    x.aggregate(n="count", expire=1).capture("total")
    row, nan = (None, None), float("nan")
    result = run(flow, {"x": [[row, (-0.0, "é")], [row, (0.0, "é")], [], [row, (nan, "")]]}, workers=2)

    assert [len(rows) for rows in result["rows"].rows().values()] == [2, 0, 0, 2]
    assert result["total"].rows() == {0: [(2,)], 1: [(4,)], 2: [], 3: [(2,)]}


def test_other_keys_do_not_end_a_session() -> None:
    flow = ts.Dataflow("others")
    flow.input("x", "k string").group_by("k").count("n", expire=2).capture("out")

    assert run(flow, {"x": [["a"], ["b"], ["a"]]})["out"].rows() == {
        0: [("a", 1)],
        1: [("b", 1)],
        2: [("a", 2)],
    }


def test_null_values_continue_no_session() -> None:
    flow = ts.Dataflow("null")
    flow.input("x", "k string, v double", epochs="manual").max("v", keys="k", expire=1).capture("out")
    rows = run(flow, {"x": [[("a", 3.0)], [("a", None), ("a", float("nan"))], [("a", 1.0)]]})["out"].rows()

    assert rows == {0: [("a", 3.0)], 1: [], 2: [("a", 1.0)]}


STEPS: dict[str, Callable[[ts.Stream, ts.Stream], ts.Stream]] = {
    "window": lambda x, _: x.expire(3),
    "window summed up": lambda x, _: x.expire(3).group_by("k").aggregate(n=("sum", "diff"), expire=3),
    "aggregate": lambda x, _: x.group_by("k").count(expire=3),
    "distinct": lambda x, _: x.distinct(expire=3),
    "min": lambda x, _: x.min("x", keys="k", expire=3),
    "join": lambda x, y: x.join(y, on="k", expire=3),
}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("step", STEPS)
def test_new_keys_do_not_make_the_state_grow(step: str) -> None:
    flow = ts.Dataflow("new")
    x, y = (flow.input(name, f"k long, {name} long", epochs="manual") for name in "xy")
    STEPS[step](x, y).capture("out")
    simulation = Simulation(flow)
    sizes = []
    for epoch in range(80):
        burst = 5_000 if epoch == 40 else 50
        for name in "xy":
            keys = range(epoch * 10_000, epoch * 10_000 + burst)
            simulation.send(name, [(key, epoch) for key in keys], epoch=epoch)
            simulation.advance_to(name, epoch + 1)
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))

    before = max(sizes[20:40])
    assert before < 25_000
    assert sizes[40] > 4 * before
    assert max(sizes[50:]) < 1.2 * before, "nothing of the burst is left, although large batches merge rarely"


@pytest.mark.slow
def test_a_key_in_every_epoch_is_never_dropped_and_stored_once() -> None:
    flow = ts.Dataflow("always")
    flow.input("x", "k long").group_by("k").count(expire=1_000).capture("out")
    simulation = Simulation(flow)
    for _ in range(100):
        simulation.send("x", list(range(10)))
        simulation.run()

    assert simulation.captured["out"].rows()[99] == [(k, 100) for k in range(10)]
    assert len(simulation.states[0] or b"") < 10_000


def test_a_rescaled_window_retracts_no_record_twice() -> None:
    def held(*rows: tuple[int, int]) -> Arrangement:
        table = pa.table({"k": [k for k, _ in rows], EPOCH: [epoch for _, epoch in rows]})
        return Arrangement((EPOCH,), [table])

    flow = ts.Dataflow("moved")
    flow.input("x", "k long").expire(2)
    (template,) = (node.template for node in flow.compile(1).nodes if node.name == "expire")
    ahead, behind = {"state": held((1, 0), (2, 1), (3, 1)), "retracted": 0}, {"state": held((4, 0), (5, 1))}
    made = template.repartition([ahead, behind], 2, lambda _, table: [table.slice(0, 1), table.slice(1)])
    left = [row["k"] for state in made for table in state["state"].batches() for row in table.to_pylist()]

    assert sorted(left) == [2, 3, 4, 5]
    assert [list(state) for state in made] == [["state"]] * 2


MISTAKES: dict[str, tuple[Any, type[Exception], str, str]] = {
    "none": (lambda x, y: x.expire(0), GraphError, "expire", "after=0.*an integer from 1 on"),
    "half": (lambda x, y: x.distinct(expire=1.5), GraphError, "distinct", "expire=1.5"),
    "truth": (lambda x, y: x.min("v", keys="k", expire=True), GraphError, "min", "expire=True"),
    "text": (lambda x, y: x.join(y, on="k", expire="1"), GraphError, "join", "expire='1'"),
    "column": (
        lambda x, y: x.group_by("k").aggregate(expire=("max", "v")),
        GraphError,
        "aggregate",
        r"aggregate\(\{\"expire\": \.\.\.\}\)",
    ),
    "aggregate per time": (
        lambda x, y: x.group_by("k").count(per="time", expire=1),
        GraphError,
        "aggregate",
        "expire=1 with per='time'",
    ),
    "join per time": (
        lambda x, y: x.join(y, on="k", per="time", expire=1),
        GraphError,
        "join",
        "with per='time'",
    ),
    "text diff": (lambda x, y: x.expire(1, diff="s"), SchemaError, "expire", "column 's' is string.*sign"),
    "unsigned diff": (lambda x, y: x.expire(1, diff="u"), SchemaError, "expire", "column 'u' is uint8.*sign"),
    "no diff": (lambda x, y: x.expire(1, diff=None), SchemaError, "expire", "diff=None"),
    "window in a loop": (
        lambda x, y: x.loop(lambda z: z.expire(1)),
        GraphError,
        "expire",
        "inside loop 'loop'",
    ),
    "aggregate in a loop": (
        lambda x, y: x.loop(lambda z: z.group_by("k").count(expire=1)),
        GraphError,
        "aggregate",
        "inside loop 'loop'",
    ),
    "distinct in a loop": (
        lambda x, y: x.loop(lambda z: z.distinct(expire=1)),
        GraphError,
        "distinct",
        "inside",
    ),
    "max in a loop": (
        lambda x, y: x.loop(lambda z: z.max("v", keys="k", expire=1)),
        GraphError,
        "max",
        "inside loop",
    ),
    "join in a loop": (
        lambda x, y: x.loop(lambda z: z.join(z.scope.enter(y), on="k", expire=1)),
        GraphError,
        "join",
        "inside loop",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_have_the_line_and_a_hint(mistake: str) -> None:
    slip, error, step, message = MISTAKES[mistake]
    flow = ts.Dataflow("bad")
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("u", pa.uint8())])
    with pytest.raises(error, match=rf"(?s)^{step}: .*{message}") as caught:
        slip(flow.input("x", schema), flow.input("y", "k long, w long"))
    assert "Hint: " in str(caught.value)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: x.distinct(expire=1), "distinct 'distinct' with expire .* retracts none"),
        (lambda x: x.group_by("k").count(expire=1), "aggregate 'aggregate' with expire .* retracts none"),
        (lambda x: x.expire(1).select("k"), "expire 'expire' .* retracts them itself, in column 'diff'"),
    ],
)
def test_an_output_with_diff_refuses_expired_state(step: Any, message: str) -> None:
    flow = ts.Dataflow("diff")
    step(flow.input("x", "k long, v long")).to_delta("/nowhere", diff="change")

    with pytest.raises(GraphError, match=rf"(?s){message}.*Hint: "):
        flow.compile(1)


@pytest.mark.parametrize(
    ("value", "diff", "message"),
    [
        ("long", -(1 << 31), "-2147483648 in 'diff', and int32 lacks what retracts it"),
        ("double", (1 << 31) - 1, "comes 2 ** 31 - 1 times or more often"),
    ],
)
def test_a_multiplicity_that_cannot_be_retracted_is_named(value: str, diff: int, message: str) -> None:
    flow = ts.Dataflow("window")
    changes = flow.input("x", f"k long, v {value}, diff int")
    changes.expire(after=1).group_by("k").aggregate(total=("sum", "v")).capture("out")
    with pytest.raises(VertexError, match=f"(?s){re.escape(message)}.*Hint: split it"):
        run(flow, {"x": [[(1, 2, diff)], []]})


def test_another_expire_is_another_flow() -> None:
    def fingerprint(n: int) -> str:
        return build("manual", n).compile(1).fingerprint

    assert fingerprint(1) == fingerprint(1) != fingerprint(2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("seed", [None, 2])
def test_simulated_epochs_of_the_clock_are_counted_as_they_are_given(workers: int, seed: Any) -> None:
    # an exchange behind another takes a batch, which is not an epoch of the inputs
    flow = ts.Dataflow("steps")
    x, y = flow.input("x", "k long, v long"), flow.input("y", "v long, w long")
    x.distinct().min("v", keys="k").join(y, on="v", expire=1).capture("pairs")
    inputs: Any = {
        "x": [[(1, 1), (2, 2)], [(3, 3)], [(4, 4)]],
        "y": [[(3, 0)], [(1, 5), (2, 5)], [(3, 9)]],
    }
    made = run(flow, inputs, workers=workers, seed=seed, together=seed == 2)
    assert made["pairs"].rows() == {0: [], 1: [(1, 1, 5), (2, 2, 5), (3, 3, 0)], 2: [(3, 3, 9)]}


@pytest.mark.slow
def test_a_sum_over_a_window_subtracts_what_leaves_it() -> None:
    flow = ts.Dataflow("sums")
    x = flow.input("x", "k string, v long, price decimal(9,2), w double", epochs="manual").expire(after=2)
    of: dict[str, Any] = {
        "total": ("sum", "v"),
        "n": "count",
        "valid": ("count", "v"),
        "paid": ("sum", "price"),
        "w": ("sum", "w"),
    }
    x.group_by("k").aggregate(of, sign=("sum", "diff")).capture("all")
    renamed = x.select("k", "v", s="diff").where(lambda row: True).group_by("k")
    renamed.aggregate(n="count", total=("sum", "v"), expire=2).capture("renamed")
    x.aggregate(n="count").capture("of all")
    epochs = {"x": [[("a", 5, Decimal("1.50"), 0.5)], [("a", 2, None, 1.0)], [], []]}
    for workers in (1, 2):
        made = run(flow, epochs, workers=workers)
        assert [made["all"].rows()[epoch] for epoch in range(4)] == [
            [("a", 5, 1, 1, Decimal("1.50"), 0.5, 1)],
            [("a", 7, 2, 2, Decimal("1.50"), 1.5, 2)],
            [("a", 2, 1, 1, Decimal("0.00"), 1.0, 1)],
            [("a", 0, 0, 0, Decimal("0.00"), 0.0, 0)],
        ]
        assert [made["renamed"].rows()[epoch] for epoch in range(4)] == [
            [("a", 1, 5)], [("a", 2, 7)], [("a", 1, 2)], [("a", 0, 0)],
        ]  # fmt: skip
        assert [made["of all"].rows()[epoch] for epoch in range(4)] == [[(1,)], [(2,)], [(1,)], [(0,)]]


def test_a_window_that_is_joined_with_records_keeps_its_signs() -> None:
    flow = ts.Dataflow("joined")
    x, y = (
        flow.input("x", "k long, v long", epochs="manual"),
        flow.input("y", "k long, w long", epochs="manual"),
    )
    joined = x.expire(after=1).join(y, on="k").group_by("k").aggregate(total=("sum", "w"), n="count")
    joined.capture("out")
    odd = x.expire(after=1).map(lambda row: (row.v % 2, row.diff), "odd long, diff int")
    odd.group_by("odd").count("n").capture("behind a function")
    made = run(flow, {"x": [[(1, 1), (1, 2)], [], []], "y": [[(1, 5)], [(1, 7)], []]})
    assert made["out"].rows() == {0: [(1, 10, 2)], 1: [(1, 0, 0)], 2: []}
    assert made["behind a function"].rows() == {0: [(0, 1), (1, 1)], 1: [(0, 0), (1, 0)], 2: []}
