"""Loops that go on for ever, or end at a limit: what is said of them, and how they are ended."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import move
from tests.support.turns import in_turn
from timely_spark.coordinator.coordinator import Coordinator
from timely_spark.coordinator.loops import with_warn_after
from timely_spark.errors import BadArgument, GraphError, LimitReached, TimelyError, VertexError
from timely_spark.testing import LoopWarning, Simulation, run
from timely_spark.worker import Worker, context, loops, pack
from timely_spark.worker.loops import LoopCounts

UP = {"n": pc.add(pc.field("n"), 1)}


@pytest.fixture
def notices() -> Iterator[list[Any]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LoopWarning)
        yield caught


def growing(*, scoped: bool = False, **options: Any) -> ts.Dataflow:
    """Every number leads to the next one, for ever."""
    flow = ts.Dataflow("growing")
    numbers = flow.input("x", "n long")
    if scoped:
        numbers = numbers.enter(flow.scope.inner(name="day", time=int), at=pc.scalar(0))
    grown = numbers.loop(lambda n: n.select(**UP), name="up", **options)
    (grown.leave() if scoped else grown).capture("out")
    return flow


def moved(flow: ts.Dataflow, **options: Any) -> ts.Dataflow:
    """The same as a collection, over an exchange, with a reduction."""

    def step(n: Any) -> Any:
        return n.select(**UP).concat(n).distinct(name="seen")

    numbers = flow.input("x", "n long, diff long").collection(diff="diff")
    numbers.iterate(step, name="up", **options).changes().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(("workers", "scoped"), [(1, False), (3, False), (1, True)])
def test_a_long_loop_warns_whenever_its_iterations_have_doubled(
    notices: list[Any], workers: int, *, scoped: bool
) -> None:
    simulation = Simulation(growing(scoped=scoped), workers=workers, warn_after=50, rounds_per_batch=1)
    simulation.send("x", [3])
    for _ in range(12):
        simulation.step()

    messages = [str(one.message) for one in notices]
    assert [int(text.split("iteration ")[1].split(" ")[0]) for text in messages] == [50, 100, 200, 400]
    assert f"loop '{'day.' * scoped}up' (" in messages[0]
    assert "test_loops.py:" in messages[0]
    assert "in epoch 0; records: {'n': 53}\nHint: " in messages[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_endless_loop_fails_in_tests(notices: list[Any], workers: int) -> None:
    flow = ts.Dataflow("alternating")
    numbers = flow.input("x", "n long").collection()
    numbers.iterate(lambda n: n.negate(), name="signs").changes().capture("out")

    with pytest.raises(TimelyError, match=r"(?s)loop 'signs' .*endless.*iteration 20 in epoch 0.*'n': 7"):
        run(flow, {"x": [[7]]}, workers=workers, warn_after=10)
    assert "iteration 10 in epoch 0" in str(notices[0].message)


class Again(ts.Vertex):
    """Ask at a time for that time, so often."""

    def __init__(self, times: int) -> None:
        self.times = times

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Wait for the time."""
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        """Go on with the work in another call."""
        if self.times:
            self.times -= 1
            self.notify_at(time)
        else:
            self.send_by(0, time, pa.table({"n": [7]}))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_vertex_that_asks_for_its_own_time_for_ever_is_told(notices: list[Any], workers: int) -> None:
    def calls(times: int) -> ts.Dataflow:
        flow = ts.Dataflow("again")
        numbers = flow.input("x", "n long")
        flow.vertex(Again(times), numbers, "n long", name="slices").capture("out")
        return flow

    assert run(calls(19), {"x": [[1]]}, workers=workers, warn_after=20)["out"].rows() == {0: [(7,)]}
    assert not notices
    assert run(calls(39), {"x": [[1]]}, workers=workers, warn_after=20)["out"].rows() == {0: [(7,)]}
    assert "20 times" in str(notices.pop().message)
    assert run(calls(99), {"x": [[1]]}, workers=workers, warn_after=None)["out"].rows() == {0: [(7,)]}
    assert not notices
    endless = r"(?s)step 'slices' \(.*test_loops.py:\d+\) seems endless: it was .*40 times.*Hint: let on"
    with pytest.raises(TimelyError, match=endless):
        run(calls(1_000_000), {"x": [[1]]}, workers=workers, warn_after=20)
    assert "20 times" in str(notices[0].message)


def test_a_long_loop_with_a_limit_ends_in_tests(notices: list[Any]) -> None:
    out = run(growing(max_iterations=30, on_limit="return"), {"x": [[0]]}, warn_after=10)["out"]
    assert len(out.rows()[0]) == 30
    assert len(notices) == 2


def test_a_round_ends_at_a_multiple_of_warn_after(notices: list[Any]) -> None:
    simulation = Simulation(growing(), warn_after=50, rounds_per_batch=1)
    simulation.send("x", [0])
    steps = []
    for _ in range(4):
        simulation.step()
        steps.append(simulation.result.stats["records"])

    assert max(steps) <= 52
    assert notices


def test_what_was_said_is_remembered_until_its_epoch_has_ended(notices: list[Any]) -> None:
    loops = Coordinator(with_warn_after(growing().compile(1), 10)).loops
    for epoch in (0, 1, 2):
        assert loops.enter(LoopCounts(far=[("up", epoch, 10, "x")]))
    loops.forget(1)
    assert [bool(loops.enter(LoopCounts(far=[("up", n, 10, "x")]))) for n in (0, 1, 2)] == [1, 0, 0]

    simulation = Simulation(growing(max_iterations=30, on_limit="return"), warn_after=10)
    for n in range(3):
        simulation.send("x", [n])
        simulation.run()
    assert notices
    assert not simulation.coordinator.loops.noticed


def test_no_warning_without_need(notices: list[Any]) -> None:
    run(growing(max_iterations=60, on_limit="return"), {"x": [[1], [2]]}, warn_after=61)
    run(growing(max_iterations=60, on_limit="return"), {"x": [[1], [2]]}, warn_after=None)
    assert not notices
    with pytest.raises(GraphError, match=r"(?s)warn_after=0.*\nHint: "):
        run(growing(max_iterations=3), {}, warn_after=0)


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("workers", [1, 2])
def test_records_dropped_by_a_limit_are_counted_and_warned_of(
    notices: list[Any], limit: int, workers: int
) -> None:
    silent = run(growing(max_iterations=limit, on_limit="return"), {"x": [[1, 5], [2]]}, workers=workers)
    assert silent.cut_off == {"up": 3}
    assert not notices

    warned = run(growing(max_iterations=limit), {"x": [[1, 5], [2]]}, workers=workers)
    assert warned.cut_off == {"up": 3}
    assert {name: of.rows() for name, of in warned.items()} == {
        name: of.rows() for name, of in silent.items()
    }
    assert len(notices) == 2  # once per epoch
    text = str(notices[0].message)
    assert f"ended at its limit after {limit} iterations of epoch 0: 2 records were dropped" in text
    assert f"{{'n': {1 + limit}}}" in text


def test_records_dropped_where_they_enter_are_counted() -> None:
    """The body is a collection from outside: its records meet the limit in the message that enters."""
    flow = ts.Dataflow("flow")
    x = flow.input("x", "n long").collection().distinct()
    x.iterate(
        lambda v: x.enter(v.scope), max_iterations=1, consolidate=False, on_limit="return"
    ).changes().capture("out")

    found = run(flow, {"x": [[1, 5], [2]]})

    assert found["out"].rows() == {0: [(1, 1), (5, 1)], 1: [(2, 1)]}
    assert list(found.cut_off.values()) == [6], "these, and the retractions of what the loop began with"


def test_a_loop_that_ends_by_itself_is_not_cut_off(notices: list[Any]) -> None:
    flow = ts.Dataflow("down")
    down = {"n": pc.subtract(pc.field("n"), 1)}
    x = flow.input("x", "n long")
    x.loop(lambda n: n.select(**down).where(pc.field("n") > 0), max_iterations=9, on_limit="warn").capture(
        "o"
    )

    assert run(flow, {"x": [[3]]}, workers=2).cut_off == {}
    assert not notices


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_limit_that_must_not_be_reached_fails_the_flow(limit: int, seed: int | None) -> None:
    with pytest.raises(
        LimitReached, match=r"(?s)loop 'up' \(.*test_loops\.py:\d+\) ended.*\nHint: "
    ) as caught:
        run(growing(max_iterations=limit, on_limit="raise"), {"x": [[1], [2]]}, workers=2, seed=seed)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is LimitReached
    assert (again.loop, again.epoch, str(again)) == ("up", 0, str(caught.value))


def test_slips() -> None:
    for wrong in ({"on_limit": "warn"}, {"on_limit": "stop", "max_iterations": 3}, {"on_limit": []}):
        with pytest.raises(GraphError, match=r"(?s)on_limit=.*Hint: "):
            growing(**wrong)


# -- cancel


def answers(simulation: Simulation) -> list[list[Any]]:
    return [rows for rows in simulation.captured["out"].rows().values() if rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "seed", "crashes", "workers"),
    in_turn(
        [
            (build, *schedule)
            for build in (growing, lambda **options: moved(ts.Dataflow("moved"), **options))
            for schedule in ((None, 0.0), (1, 0.0), (2, 0.3))
        ],
        [1, 3],
    ),
)
def test_after_cancel_the_results_are_those_of_a_bounded_loop(
    notices: list[Any], build: Any, workers: int, seed: int | None, crashes: float
) -> None:
    deletes = build is not growing
    first, second, third = ([(n, 1) if deletes else n for n in some] for some in ([3, 400], [1000], [-500]))
    third += [(3, -1)] if deletes else []
    simulation = Simulation(build(), workers=workers, seed=seed, crashes=crashes, warn_after=5)
    simulation.send("x", first)
    for _ in range(3):
        simulation.step()
    simulation.send("x", second)
    simulation.step()
    assert not simulation.captured["out"].epochs
    simulation.cancel(0)
    simulation.run()
    simulation.send("x", third)
    simulation.run()

    bound = simulation.coordinator.loops.bounds["up"]
    assert simulation.result.cut_off["up"] > 0
    assert any("ended by cancel after" in str(warning.message) for warning in notices)
    other = Simulation(
        build(max_iterations=bound + 1, on_limit="return"), workers=workers, rounds_per_batch=1
    )
    for records in (first, second, third):
        other.send("x", records)
        other.run()
    assert answers(simulation) == answers(other)
    assert len(answers(simulation)) == 3


def test_cancel_bounds_only_loops_in_which_the_epoch_is_active(notices: list[Any]) -> None:
    flow = ts.Dataflow("two")
    x = flow.input("x", "n long")
    x.where(pc.field("n") < 0).loop(lambda n: n.select(**UP), name="endless").capture("bad")
    good = x.loop(lambda n: n.select(**UP).where(pc.field("n") < 30), name="good")
    good.capture("seen")
    simulation = Simulation(flow, warn_after=20, rounds_per_batch=1)
    simulation.send("x", [-1])
    for _ in range(8):
        simulation.step()
    simulation.cancel(0)
    simulation.run()
    assert set(simulation.coordinator.loops.bounds) == {"endless"}

    simulation.send("x", [1])
    simulation.run()
    assert [len(rows) for rows in simulation.captured["seen"].rows().values() if rows] == [30, 28]


@pytest.mark.slow
def test_cancel_bounds_no_loop_in_which_only_another_epoch_is_active(notices: list[Any]) -> None:
    flow = ts.Dataflow("two")
    x = flow.input("x", "n long")
    x.where(pc.field("n") < 0).loop(lambda n: n.select(**UP), name="endless").capture("bad")
    x.loop(lambda n: n.select(**UP).where(pc.field("n") < 30), name="good").capture("seen")
    simulation = Simulation(flow, warn_after=20, rounds_per_batch=1)
    simulation.send("x", [-1])
    for _ in range(40):
        simulation.step()
    simulation.send("x", [1])
    for _ in range(3):
        simulation.step()
    simulation.cancel(0)
    simulation.run()
    assert set(simulation.coordinator.loops.bounds) == {"endless"}


def test_the_bound_of_cancel_survives_a_restart(notices: list[Any]) -> None:
    simulation = Simulation(growing(), warn_after=10, rounds_per_batch=1)
    simulation.send("x", [1])
    for _ in range(4):
        simulation.step()
    simulation.cancel(0)
    simulation.run()
    again = Coordinator.decode(simulation.plan, simulation.coordinator.encode())
    assert again.loops.bounds == simulation.coordinator.loops.bounds != {}
    assert again.loops.dropped == {"up": 1}


def test_a_lower_limit_of_the_program_replaces_the_bound_of_cancel(notices: list[Any]) -> None:
    simulation = Simulation(growing(), warn_after=10, rounds_per_batch=1)
    simulation.send("x", [1])
    for _ in range(9):
        simulation.step()
    simulation.cancel(0)
    simulation.run()
    move(simulation, growing(max_iterations=3, on_limit="raise"), 1)
    simulation.send("x", [1])
    with pytest.raises(LimitReached, match="3 iterations"):
        simulation.run()


def test_cancel_of_an_epoch_that_is_over_or_unknown_does_nothing() -> None:
    simulation = Simulation(growing(max_iterations=4, on_limit="return"), rounds_per_batch=1)
    simulation.send("x", [1])
    simulation.run()
    simulation.cancel(0)
    simulation.cancel(99)
    simulation.send("x", [1])
    simulation.run()
    assert simulation.coordinator.loops.bounds == {}
    assert len(answers(simulation)) == 2


def test_inner_loops_end_too(notices: list[Any]) -> None:
    flow = ts.Dataflow("nested")

    def outer(n: Any) -> Any:
        return n.loop(lambda m: m.select(**UP), name="inner").where(pc.field("n") < 10)

    flow.input("x", "n long").loop(outer, name="outer").distinct().capture("out")
    simulation = Simulation(flow, warn_after=10, workers=2, rounds_per_batch=1)
    simulation.send("x", [1])
    for _ in range(5):
        simulation.step()
    simulation.cancel(0)
    simulation.run()
    assert "outer.inner" in simulation.coordinator.loops.bounds
    assert len(answers(simulation)) == 1


# -- growth


def exploding(**options: Any) -> ts.Dataflow:
    """A `distinct` is forgotten beside `concat`: each iteration has twice the records."""
    flow = ts.Dataflow("exploding")
    x = flow.input("x", "n long")
    x.loop(lambda n: n.concat(n, name="both").exchange("n"), name="hops", **options).capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_loop_that_repeats_records_is_told_of_and_fails_in_tests(notices: list[Any], workers: int) -> None:
    with pytest.raises(
        TimelyError, match=r"(?s)loop 'hops' \(.*test_loops\.py:\d+\) grows.*Hint: .*distinct"
    ):
        run(exploding(), {"x": [[7]]}, workers=workers)
    text = str(notices[0].message)
    assert "iteration 16 of epoch 0 has 65,536 records" in text
    assert "of 4096 sampled records 1 differ: {'n': 7}" in text
    assert "cancel(0) ends the loop" in text


def test_growth_ends_rounds_so_that_it_is_told_while_the_loop_runs(notices: list[Any]) -> None:
    simulation = Simulation(exploding())
    simulation.send("x", [7])
    for _ in range(2):
        simulation.step()
    assert notices
    assert simulation.result.stats["records"] < 1 << 21


def test_a_loop_that_repeats_as_many_records_as_before_is_told_of_once(
    notices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "MANY", 64)
    simulation = Simulation(growing(max_iterations=20, on_limit="return"))
    simulation.send("x", [7] * 64)
    simulation.run()
    (notice,) = [str(one.message) for one in notices if "grows" in str(one.message)]
    assert "iteration 1 of epoch 0 has 64 records" in notice
    assert simulation.rounds < 10, "rounds do not end at each of the 20 iterations"


@pytest.mark.parametrize(("limit", "told"), [(1000, "1,000 records"), ("16 KB", "16,000 bytes")])
def test_an_iteration_beyond_its_limit_ends_the_epoch_with_the_evidence(limit: Any, told: str) -> None:
    with pytest.raises(LimitReached, match=r"(?s)'hops'.*grown too large.*Hint: .*distinct") as caught:
        run(exploding(), {"x": [[7]]}, workers=2, epoch_limit=limit)
    assert f"{told} are allowed" in str(caught.value)
    assert "sampled records 1 differ: {'n': 7}" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_records_of_lists_are_compared_too() -> None:
    flow = ts.Dataflow("lists")
    flow.input("x", "n array<long>").loop(lambda n: n.concat(n, name="both"), name="hops").capture("out")
    with pytest.raises(LimitReached, match=r"sampled records 1 differ: \{'n': \[7\]\}"):
        run(flow, {"x": [[([7],)]]}, epoch_limit=1000)


def test_a_worker_forgets_what_feedback_carried_in_complete_epochs() -> None:
    plan = growing(max_iterations=3).compile()
    coordinator, worker = Coordinator(plan), Worker(plan, None, 0)
    result = coordinator.first()
    for epoch in range(20):
        rows = pa.concat_tables([result.rows, pack(plan, "x", pa.table({"n": [epoch]}), shard=0)])
        result = coordinator.apply_round(epoch, worker.step(epoch, rows, result.header))
    assert worker.iterations._carried.keys() == {("up", 19)}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [900, "40 KB"])
def test_a_step_that_multiplies_its_input_ends_the_epoch_with_the_evidence(limit: Any) -> None:
    flow = ts.Dataflow("product")
    left, right = (flow.input(name, f"k long, {name} long") for name in "xy")
    left.join(right, on="k", name="pairs").group_by("k").count("n").capture("out")
    few = {"x": [[(1, n)] for n in range(30)], "y": [[(1, n)] for n in range(30)]}
    assert run(flow, few, epoch_limit=limit)["out"].rows()[29] == [(1, 900)]  # in many epochs

    many = {name: [[(1, n) for n in range(60)]] for name in "xy"}
    told = r"(?s)step 'pairs' \(.*sends 3,600 records.* at Time\(0\).*among them {'k': 1.*Hint: a join mult"
    with pytest.raises(LimitReached, match=told) as caught:
        run(flow, many, epoch_limit=limit)
    assert (caught.value.loop, caught.value.epoch, caught.value.step) == ("", 0, "pairs")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


class Parts(ts.Vertex):
    """Sends what it gets a part at a time."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        for n in range(batch.num_rows):
            self.send_by(0, time, batch.slice(n, 1))


def test_all_that_a_step_sends_at_a_time_counts_against_the_limit() -> None:
    flow = ts.Dataflow("parts")
    flow.vertex(Parts(), flow.input("x", "n long"), "n long", name="parts").capture("out")
    assert run(flow, {"x": [[*range(5)]] * 3}, epoch_limit=5)["out"].rows()[2] == [(n,) for n in range(5)]
    with pytest.raises(LimitReached, match=r"'parts' .* sends 6 records"):
        run(flow, {"x": [[*range(5)], [*range(6)]]}, epoch_limit=5)


def test_a_step_without_memory_blames_the_machine_and_a_user_s_function_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def greedy(batch: pa.Table) -> pa.Table:
        raise MemoryError(batch.num_rows)

    def failed(step: Any) -> str:
        flow = ts.Dataflow("memory")
        step(flow.input("x", "n long").exchange("n")).capture("out")
        with pytest.raises(VertexError) as caught:
            run(flow, {"x": [[1, 2]]})
        assert "MemoryError" in caught.value.trace
        return str(caught.value)

    assert re.search(
        r"'it' .* in greedy .*: MemoryError: 2$",
        failed_line := failed(lambda x: x.map_batches(greedy, "n long", name="it")).splitlines()[0],
    ), failed_line
    # a function of C's, which has no line
    monkeypatch.setattr("timely_spark.operators.join.joined_rows", "{1:>1000000000000000}".format)
    text = failed(lambda x: x.join(x, on="n", name="it"))
    assert "'it' (" in text
    assert "MemoryError: the machine has too little memory for an input of 2 records" in text
    assert "Hint: a join multiplies" in text
    with pytest.raises(MemoryError) as caught:  # NumPy's own kind, which is not made of a text
        np.zeros(1 << 58)
    assert "too little memory" in str(context._too_large(caught.value, None))


@pytest.mark.parametrize(
    "text",
    [
        "offset overflow while concatenating arrays, consider casting input from `string` to `large_string`",
        "Take operation overflowed binary array capacity",
    ],
)
def test_more_texts_than_a_column_can_have_are_a_time_that_is_too_large(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's error at 2 GiB names types that no user can give."""
    package = {"__name__": "timely_spark.texts", "error": pa.ArrowInvalid(text)}
    exec("def joined(*_): raise error", package)
    flow = ts.Dataflow("texts")
    x = flow.input("x", "n long")
    x.join(x, on="n", name="it").capture("out")
    monkeypatch.setattr("timely_spark.operators.join.joined_rows", package["joined"])

    with pytest.raises(VertexError) as caught:
        run(flow, {"x": [[1, 2]]})

    said = str(caught.value)
    assert (
        f"ArrowInvalid: a column of one time gets more than 2 GiB of texts for an input of 2 records: {text}"
        in said
    )
    assert "Hint: a join multiplies" in said
    assert "start more workers." in said


@pytest.mark.parametrize(
    "limit", [0, -1, 1.5, "", "x", "5", "-1 GB", "1e3 GB", "9" * 400 + " GB", True, "0 B"]
)
def test_slips_of_the_limit(limit: Any) -> None:
    with pytest.raises(BadArgument, match=r"(?s)epoch_limit.*Hint: "):
        run(growing(max_iterations=3), {}, epoch_limit=limit)


def test_multiplicities_that_double_are_told_of(notices: list[Any]) -> None:
    flow = ts.Dataflow("doubling")
    x = flow.input("x", "n long").collection()
    x.iterate(lambda n: n.concat(n), name="hops").changes().capture("out")
    with pytest.raises(TimelyError, match=r"(?s)loop 'hops' .* grows.*a record comes \d+ times: {'n': 7}"):
        run(flow, {"x": [[7]]})
    assert notices


def test_a_large_iteration_of_records_that_differ_is_no_growth(notices: list[Any]) -> None:
    flow = ts.Dataflow("large")
    down = {"n": pc.field("n"), "left": pc.subtract(pc.field("left"), 1)}
    x = flow.input("x", "n long, left long")
    x.loop(lambda n: n.select(**down).where(pc.field("left") > 0), name="hops").capture("out")
    run(flow, {"x": [pa.table({"n": range(1 << 17), "left": [3] * (1 << 17)})]})
    assert not notices


def test_only_the_loops_of_an_epoch_are_bounded_by_its_cancel() -> None:
    flow = ts.Dataflow("two")
    x = flow.input("x", "n long")
    for name in ("endless", "good"):
        x.loop(lambda n: n.select(**UP), name=name).capture(f"{name} out")
    coordinator = Simulation(flow).coordinator
    inside = [node.stage.scope.path[1:] for node in coordinator.plan.nodes]
    loop = {path[0].name: path for path in inside if path}
    coordinator.loops.cancel(0, [(loop["endless"], ts.Time(0, 5)), (loop["good"], ts.Time(1, 3))])
    assert coordinator.loops.bounds == {"endless": 5}
