"""Windows of event time, against their rule in a few lines of plain Python, and against pandas."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import move
from tests.support.turns import HOW
from timely_spark.errors import GraphError, InvalidTime, SchemaError, VertexError
from timely_spark.operators.windows import CloseWindows
from timely_spark.testing import Simulation, run

#: for the tests of all operators
TRIED = {
    "window": lambda x, _: x.window("v", ts.every(2, size=3), lateness=1, name="it").closed,
    "window of sessions": lambda x, _: x.window("v", ts.sessions(2), keys="k", name="it").late,
}

LAST = 2**61
BY = st.one_of(
    st.builds(
        lambda step, more, offset: ts.every(step, step + more, offset=offset),
        st.integers(1, 4),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    st.integers(1, 4).map(ts.sessions),
)
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.one_of(st.integers(-5, 25), st.sampled_from([None, 2**63 - 1]))),
    max_size=6,
)
EPOCHS = st.lists(ROWS, min_size=1, max_size=6)


def windows_of(time: int, by: Any) -> list[tuple[int, int]]:
    if not hasattr(by, "step"):
        return [(time, time + by.gap)]
    starts = range(time - by.size + 1, time + 1)
    return [(at, at + by.size) for at in starts if (at - by.offset) % by.step == 0]


def sessions_of(rows: Any, gap: int) -> Any:
    """The sessions of records (key, time, ...): one list of records for each."""
    found: list[list[Any]] = []
    for row in sorted(rows):
        same = found and found[-1][-1][0] == row[0] and row[1] - found[-1][-1][1] < gap
        found[-1].append(row) if same else found.append([row])
    return found


def usable(time: int | None) -> bool:
    return time is not None and abs(time) < 2**62


def by_rule(epochs: Any, by: Any, lateness: int) -> tuple[dict[int, Any], dict[int, Any]]:
    """Per epoch the records of the windows that close, and the late ones."""
    kept: list[Any] = []
    high, passed = None, None
    closed: dict[int, Any] = defaultdict(Counter)
    late: dict[int, Any] = defaultdict(Counter)
    for epoch, rows in [*enumerate(epochs), (LAST, [])]:
        for key, time in rows:
            for window in windows_of(time, by) if usable(time) else [(None, None)]:
                in_time = window[1] is not None and (passed is None or window[1] > passed)
                kept.append((key, time, *window)) if in_time else late[epoch].update([(key, time, *window)])
        high = max([high, *(time for _, time in rows if usable(time))], key=lambda t: -99 if t is None else t)
        passed = 2**63 if epoch == LAST else None if high is None else high - lateness
        if passed is None:
            continue
        if not hasattr(by, "step"):
            runs = sessions_of([row[:2] for row in kept], by.gap)
            kept = [(*row, run[0][1], run[-1][1] + by.gap) for run in runs for row in run]
        closed[epoch].update(row for row in kept if row[3] <= passed)
        kept = [row for row in kept if row[3] > passed]
    return closed, late


def flow_of(by: Any, lateness: int) -> ts.Dataflow:
    flow = ts.Dataflow("windows")
    x = flow.input("x", "k string, t long", epochs="manual")
    windows = x.window("t", by, lateness=lateness, keys=None if hasattr(by, "step") else "k", name="w")
    windows.closed.capture("closed")
    windows.late.capture("late")
    return flow


def check(made: Any, epochs: Any, by: Any, lateness: int) -> None:
    for name, expected in zip(("closed", "late"), by_rule(epochs, by, lateness), strict=True):
        found = {epoch: Counter(rows) for epoch, rows in made[name].rows().items() if rows}
        assert found == {epoch: rows for epoch, rows in expected.items() if rows}


@pytest.mark.slow
@given(epochs=EPOCHS, by=BY, lateness=st.integers(0, 6), **HOW)
def test_windows_close_and_records_are_late_as_the_epochs_say(
    *, epochs: Any, by: Any, lateness: int, **how: Any
) -> None:
    made = run(flow_of(by, lateness), {"x": epochs}, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    check(made, epochs, by, lateness)


@pytest.mark.slow
@given(epochs=EPOCHS, by=BY, lateness=st.integers(0, 6), seed=st.none() | st.integers(0, 10_000))
def test_open_windows_go_on_with_other_workers(*, epochs: Any, by: Any, lateness: int, seed: Any) -> None:
    flow = flow_of(by, lateness)
    simulation = Simulation(flow, workers=2, seed=seed)
    for epoch, rows in enumerate(epochs):
        simulation.send("x", rows)
        simulation.advance_to("x", epoch + 1)
        simulation.run()
        move(simulation, flow, (3, 1, 2)[epoch % 3])
    simulation.close("x")
    simulation.run()

    check(simulation.captured, epochs, by, lateness)


def test_late_records_are_counted_under_the_name_of_the_step() -> None:
    simulation = Simulation(flow_of(ts.every(5), 0), workers=2, seed=3, crashes=0.3)
    for epoch, rows in enumerate([[("a", 12)], [("a", 1), ("b", 2), ("b", 13)], [("a", None)]]):
        simulation.send("x", rows)
        simulation.advance_to("x", epoch + 1)
        simulation.run()

    assert simulation.result.late == {"w": 3}


def test_an_epoch_behind_the_last_one_is_refused() -> None:
    flow = flow_of(ts.every(5), 0)
    for epoch, fits in ((2**61 - 1, True), (2**61, False), (2**62 - 1, False)):
        simulation = Simulation(flow)
        simulation.send("x", [("a", 12)], epoch=epoch)
        simulation.close("x")
        with contextlib.nullcontext() if fits else pytest.raises(VertexError, match=r"2\*\*61(?s:.*)Hint: "):
            simulation.run()
        assert any(simulation.captured["closed"].rows().values()) == fits


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_windows_of_the_results_of_windows_close_after_these(late: int, workers: int) -> None:
    """Hours and then days: what is open at the end goes through both."""
    flow = ts.Dataflow("days")
    clicks = flow.input("clicks", "at long", epochs="manual")
    hours = clicks.window("at", ts.every(10)).closed.group_by("window_start").count("n", per="time")
    hours = hours.select(hour="window_start", n="n").delay(late)
    days = hours.window("hour", ts.every(20), name="days").closed.select("hour", "n", day="window_start")
    weeks = days.window("day", ts.sessions(25), keys="n", name="weeks")
    days.capture("days-out")
    weeks.closed.select("hour", week="window_start").capture("weeks-out")
    weeks.late.capture("late")

    made = run(flow, {"clicks": [[1, 2, 11], [25], [31, 47]]}, workers=workers, seed=4, crashes=0.3)

    rows = {name: [row for epoch in made[name].rows().values() for row in epoch] for name in made}
    assert sorted(rows["days-out"]) == [(0, 2, 0), (10, 1, 0), (20, 1, 20), (30, 1, 20), (40, 1, 40)]
    assert sorted(rows["weeks-out"]) == [(0, 0), (10, 0), (20, 0), (30, 0), (40, 0)]
    assert rows["late"] == []


@pytest.mark.parametrize("late", [0, 2**41])
def test_windows_of_what_other_flows_windows_have_captured(tmp_path: Path, late: int) -> None:
    """Four flows, each of which replays the one before: with a window, delayed, published and combined."""
    first, second, third = ts.Dataflow("hours"), ts.Dataflow("days"), ts.Dataflow("weeks")
    clicks = first.input("clicks", "at long", epochs="manual")
    hours = clicks.window("at", ts.every(10)).closed.group_by("window_start").count("n", per="time")
    hours.delay(late).capture_to(tmp_path / "hours")
    run(first, {"clicks": [[1, 2, 11], [25], [31]]})
    replayed = second.replay("hours", tmp_path / "hours").select("n", hour="window_start")
    days = replayed.window("hour", ts.every(20))
    closed = days.closed.select("hour", "n", day="window_start")
    closed.capture("out")
    closed.delay(late).select("day", diff=pc.scalar(1)).collection(diff="diff").publish(tmp_path / "days")
    days.late.capture("late")
    made = run(second, {}, workers=2)
    copied = ts.Dataflow("copied")
    copied.replay("days", tmp_path / "days").delay(late).capture_to(tmp_path / "copy")
    run(copied, {})
    hours = third.replay("hours", tmp_path / "hours").select(day="window_start", n="n")
    both = third.replay("days", tmp_path / "copy").select("day", n="diff").concat(hours)
    weeks = both.window("day", ts.every(40))
    weeks.closed.group_by("window_start").count("n", per="time").capture("out")
    weeks.late.capture("late")

    rows = {name: [row for epoch in made[name].rows().values() for row in epoch] for name in made}
    assert sorted(rows["out"]) == [(0, 2, 0), (10, 1, 0), (20, 1, 20), (30, 1, 20)]
    assert rows["late"] == []
    made = run(third, {}, workers=2)
    rows = {name: [row for epoch in made[name].rows().values() for row in epoch] for name in made}
    assert rows == {"out": [(0, 6)], "late": []}


def test_windows_so_far_apart_that_the_later_ones_never_close_are_refused() -> None:
    closed = ts.Dataflow("apart").input("x", "at long").window("at", ts.every(10)).closed.select("at")
    closed.delay(2**60).window("at", ts.every(20))
    with pytest.raises(InvalidTime, match=r"(?s)behind the last.*test_windows.py.*Hint: delay"):
        closed.delay(2**61).window("at", ts.every(20))


@pytest.mark.slow
def test_a_window_that_closed_leaves_the_state() -> None:
    flow = ts.Dataflow("state")
    windows = flow.input("x", "t long, v long").window("t", ts.every(10))
    windows.closed.group_by("window_start").count(per="time").capture("out")
    simulation, sizes = Simulation(flow, workers=2), []
    for epoch in range(12):
        simulation.send("x", [(epoch * 10 + n % 10, n) for n in range(200)])
        simulation.run()
        sizes.append(sum(len(state or b"") for state in simulation.states))

    rows = [row for of in simulation.captured["out"].rows().values() for row in of]
    assert rows == [(10 * n, 200) for n in range(11)]
    assert max(sizes) < 4 * sizes[1]


START = datetime(2026, 3, 1, 23, tzinfo=timezone.utc)


@pytest.mark.slow
def test_hours_and_days_are_those_of_pandas() -> None:
    times = [START + timedelta(minutes=17 * n) for n in range(200)]
    flow = ts.Dataflow("pandas")
    x = flow.input("x", "at timestamp, n long", epochs="manual")
    windows = x.window("at", ts.every("1 hour"), lateness="30 minutes")
    windows.closed.group_by("window_start").aggregate(n=("sum", "n"), per="time").capture("hours")
    days = x.collection().window("at", ts.every(timedelta(hours=6), "1 day", offset="2 hours"))
    days.count("n", keys=["window_start", "window_end"]).changes().capture("days")
    rows = [(time, n) for n, time in enumerate(times)]

    made = run(flow, {"x": [rows[at : at + 40] for at in range(0, 200, 40)]}, workers=3)

    frame = pd.DataFrame(rows, columns=["at", "n"])
    hours = frame.resample("1h", on="at")["n"].sum()
    found = made["hours"].table().to_pandas().set_index("window_start")["n"].sort_index()
    assert found.to_dict() == hours.to_dict()
    counts = Counter[Any]()
    for start, end, n, diff in (row for of in made["days"].rows().values() for row in of):
        counts[start, end] += n * diff
    for (start, end), n in counts.items():
        assert n == frame["at"].between(start, end, inclusive="left").sum()
        assert (end - start, (start.hour - 2) % 6, start.minute) == (timedelta(days=1), 0, 0)
    assert sum(counts.values()) == 4 * len(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:step .*more was removed")
@given(epochs=st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, *range(12)]),
                                          st.integers(-1, 2)), max_size=5), min_size=1, max_size=4),
       by=BY, **HOW)  # fmt: skip
def test_a_collection_has_the_windows_of_its_records_at_each_epoch(
    *, epochs: Any, by: Any, **how: Any
) -> None:
    flow = ts.Dataflow("collection")
    x = flow.input("x", "k string, t long, d long", epochs="manual").collection(diff="d")
    made = x.window("t", by, keys=None if hasattr(by, "step") else "k")
    made.changes().capture("out")

    rows = run(flow, {"x": epochs}, **how)["out"].rows()

    for found, total in zip(after_each(rows, len(epochs)), after_each(epochs), strict=True):
        assert found == windowed(total, by)


def windowed(total: Counter[Any], by: Any) -> Counter[Any]:
    if hasattr(by, "step"):
        made = {
            (*row, *w): n
            for row, n in total.items()
            if n and row[1] is not None
            for w in windows_of(row[1], by)
        }
        return Counter(made | {(*row, None, None): n for row, n in total.items() if n and row[1] is None})
    there = {row: n for row, n in total.items() if n > 0}
    made = {(*row, None, None): n for row, n in there.items() if row[1] is None}
    for run_ in sessions_of([row for row in there if row[1] is not None], by.gap):
        made |= {(*row, run_[0][1], run_[-1][1] + by.gap): there[row] for row in run_}
    return Counter(made)


def test_other_types_of_time() -> None:
    flow = ts.Dataflow("types")
    flow.input("d", "at date").collection().window("at", ts.every("1 week")).changes().capture("weeks")
    flow.input("n", "at timestamp_ntz").collection().window("at", ts.every("500 ms")).changes().capture(
        "halves"
    )
    flow.input("i", "at byte").collection().window("at", ts.every(100)).changes().capture("hundreds")
    at = datetime(1969, 12, 31, 23, 59, 59, 600_000)  # noqa: DTZ001 - without a zone

    made = run(flow, {"d": [[date(2026, 1, 1)]], "n": [[at]], "i": [[-128, 127]]})

    assert made["weeks"].rows() == {0: [(date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 8), 1)]}
    assert made["halves"].rows() == {
        0: [(at, at.replace(microsecond=500_000), datetime(1970, 1, 1), 1)]  # noqa: DTZ001
    }
    assert made["hundreds"].rows() == {0: [(-128, -200, -100, 1), (127, 100, 200, 1)]}


@pytest.mark.parametrize("kind", [pa.uint64(), pa.date32()])
def test_times_that_are_too_far_have_no_window(kind: Any) -> None:
    flow = ts.Dataflow("far")
    x = flow.input("x", pa.schema([("at", kind)]))
    size = 10 if kind == pa.uint64() else "10 days"
    windows = x.window("at", ts.every(size))
    windows.late.capture("late")
    x.collection().window("at", ts.every(size)).select("at", "window_start").capture("out")
    far, width = [2**31 - 1, -(2**31), 2**30], pa.int32()
    if kind == pa.uint64():
        far, width = [2**64 - 1, 2**63, 2**62], kind

    made = run(flow, {"x": [pa.table({"at": pa.array(far, width).cast(kind)})]})

    assert [row[1:] for row in made["out"].rows()[0]] == [(None, 1)] * 3
    assert len(made["late"].rows()[0]) == 3


@pytest.mark.parametrize(
    ("on", "by", "options"),
    [
        ("q", ts.every(1), {}), ("n", "1 hour", {}), ("s", ts.every(1), {}), ("n", ts.every("1 hour"), {}),
        ("n", ts.every(0), {}), ("n", ts.every(5, 4), {}), ("n", ts.every(1.5), {}), ("at", ts.every(5), {}),
        ("at", ts.every("1 month"), {}), ("at", ts.every("0 hours"), {}), ("at", ts.every("1 ns"), {}),
        ("day", ts.every("1 hour"), {}), ("n", ts.every(2**63), {}), ("n", ts.every(5, offset=-1), {}),
        ("n", ts.every(5), {"keys": "s"}), ("n", ts.sessions(5), {}), ("n", ts.sessions(0), {"keys": "s"}),
        ("n", ts.sessions(5), {"keys": "many"}), (7, ts.every(1), {}),
        ("day", ts.every("3000000000 days"), {}), ("day", ts.sessions("3000000000 days"), {"keys": "s"}),
        ("n", ts.every(1, 10**9), {}), ("at", ts.every("1 microsecond", "1 day"), {}),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_when_the_graph_is_built(on: Any, by: Any, options: Any) -> None:
    x = ts.Dataflow("bad").input("x", "n long, s string, at timestamp, day date, many array<long>")
    for one in (x, x.collection()):
        with pytest.raises(SchemaError, match=r"(?s)window.*test_windows.py.*Hint: "):
            one.window(on, by, **options)


def test_windows_are_for_times_in_order_and_for_new_columns() -> None:
    flow = ts.Dataflow("bad")
    x = flow.input("x", "n long")
    with pytest.raises(GraphError, match=r"(?s)window: .*inside loop.*Hint: "):
        x.enter(flow.scope.inner(name="loop")).window("n", ts.every(1))
    with pytest.raises(SchemaError, match=r"(?s)window: .*lateness='5 minutes'.*Hint: "):
        x.window("n", ts.every(1), lateness="5 minutes")
    with pytest.raises(SchemaError, match=r"(?s)window: .*\['window_start', 'window_end'\] already.*Hint: "):
        x.window("n", ts.every(1)).closed.window("n", ts.every(1))


def test_a_worker_that_has_closed_nothing_yet_gets_no_late_records_by_a_rescale() -> None:
    """The other one was notified of the epoch already, which takes a budget or a worker that lags."""
    first, second = CloseWindows(0), CloseWindows(0)
    first.closed, second.highs = 20, {ts.Time(0): 20}
    moved = CloseWindows(0).repartition([vars(first), vars(second)], 2, lambda _, table: [table, table])
    assert [(state["closed"], state["highs"]) for state in moved] == [(None, {ts.Time(0): 20})] * 2


def test_ends_of_windows_that_are_closed_are_forgotten() -> None:
    vertex = CloseWindows(0)
    vertex.ends = [10, 20, 30]
    vertex.close(ts.Time(0), 20)
    assert vertex.ends == [30]
