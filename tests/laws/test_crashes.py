"""Crash at any step, lose what was not committed, run again: the same answer (Naiad section 3.4)."""

from __future__ import annotations

import dataclasses
import random
import time as clock
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.simulate import FLOWS, Case, check, components, difference, reachability
from timely_spark.coordinator import Coordinator
from timely_spark.testing import Diverged, Simulation, run

#: flows and cases, as the campaign draws them
SEEDS = st.integers(0, 10**9)
#: a part of the examples that a profile asks for
FEW = settings(max_examples=settings().max_examples // 6)


# -- the law -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
@FEW
@given(seed=SEEDS)
def test_outputs_states_and_pointstamps_are_those_of_a_run_that_never_failed(flow: Any, seed: int) -> None:
    case = Case.of(seed, flow)

    assert difference(case.play(crashes=False), case.play(crashes=True)) is None


@FEW
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=7), min_size=1, max_size=3),
    SEEDS,
    st.sampled_from([1, 2, 3, 8]),
    st.booleans(),
)
def test_crashes_do_not_change_an_answer_with_epochs_one_by_one_or_together(
    edges: list[Any],
    seed: int,
    workers: int,
    together: bool,  # noqa: FBT001 - drawn
) -> None:
    flow = components(random.Random(seed))
    options: dict[str, Any] = {"workers": workers, "together": together}
    calm = run(flow, {"edges": edges}, **options, seed=seed)
    crashed = run(flow, {"edges": edges}, **options, seed=seed, crashes=0.3)

    assert {name: out.rows() for name, out in crashed.items()} == {
        name: out.rows() for name, out in calm.items()
    }


@pytest.mark.slow
def test_it_does_crash_everywhere_roll_back_and_deliver_again() -> None:
    seen: Counter[str] = Counter()

    class Watched(Simulation):
        def _restore(self, batch: Any) -> None:
            seen["rolled back"] += batch.number < self.batch
            seen["crashed first"] += self._crashes.point == 0
            seen["crashed last"] += self._crashes.at is not None and self._crashes.point < self._crashes.at
            super()._restore(batch)

    for seed in range(5):
        simulation = Watched(reachability(random.Random(seed)), workers=3, seed=seed, crashes=0.5)
        for epoch in range(4):
            simulation.send("edges", [(i, i + 1) for i in range(epoch, 9)])
            simulation.send("roots", [epoch])
            simulation.step()
        simulation.run()
        seen["crashed"] += simulation.crashed
        seen["delivered again"] += simulation.redelivered

    assert len(seen) == 5
    assert min(seen.values()) > 0, seen


@pytest.mark.parametrize("crashes", [-0.1, 1, 2])
def test_crashes_are_a_probability_below_one(crashes: float) -> None:
    with pytest.raises(
        ts.TimelyError, match=r"a probability below 1 was expected[\s\S]*Hint: .*crashes=0\.2"
    ):
        run(ts.Dataflow("none"), {}, crashes=crashes)


# -- vertices that cannot be recovered are found out ---------------------------------------------------------


def flow_of(vertex: ts.Vertex) -> ts.Dataflow:
    flow = ts.Dataflow("own")
    flow.vertex(vertex, flow.input("x", "n long"), "n long", by="n", name="mine").capture("out")
    return flow


class Own(ts.Vertex):
    """Sends what `answer` makes of each batch."""

    def __init__(self, answer: Callable[[pa.Table], int]) -> None:
        self.answer = answer

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, pa.table({"n": [self.answer(batch)]}))


def counting_elsewhere() -> Callable[[pa.Table], int]:
    """A count in a closure: run again, it counts twice."""
    seen: list[int] = []

    def answer(batch: pa.Table) -> int:
        seen.extend(batch["n"].to_pylist())
        return len(seen)

    return answer


def knowing_elsewhere() -> Callable[[pa.Table], int]:
    """A set in a closure: it is the same when a batch is run twice, not when the one before it is."""
    seen: set[int] = set()

    def answer(batch: pa.Table) -> int:
        seen.update(batch["n"].to_pylist())
        return len(seen)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        counting_elsewhere(),
        knowing_elsewhere(),
        lambda _: clock.perf_counter_ns(),
        lambda _: random.randrange(10**9),
    ],
    ids=["count in a closure", "set in a closure", "clock", "random numbers"],
)
def test_a_vertex_that_depends_on_anything_but_its_fields_is_found_out(answer: Any) -> None:
    inputs = {"x": [[n] for n in range(6)]}
    found = r"step '(mine|out)' \(.*test_crashes.py:\d+\)[\s\S]*Hint: keep all"
    with pytest.raises(Diverged, match=found):  # noqa: PT012 - one run or another
        for seed in range(20):
            run(flow_of(Own(answer)), inputs, workers=2, seed=seed, crashes=0.3)


@pytest.mark.slow
def test_a_vertex_with_all_of_it_in_its_fields_is_not() -> None:
    class Fields(ts.Vertex):
        def __init__(self) -> None:
            self.seen: set[int] = set()

        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.seen.update(batch["n"].to_pylist())
            self.send_by(0, time, pa.table({"n": [len(self.seen)]}))

    inputs = {"x": [[n, n + 1] for n in range(6)]}
    answers = {
        str(run(flow_of(Fields()), inputs, workers=2, seed=seed, crashes=crashes)["out"].rows())
        for seed in range(5)
        for crashes in (0.0, 0.5)
    }
    assert len(answers) == 1


# -- the law has teeth: wrong recoveries, each of which it must catch ----------------------------------------

restore, attempt, decode = Simulation._restore, Simulation._attempt, Coordinator.decode


def keeps_a_state(self: Any, batch: Any) -> None:
    kept = self.states[0]
    restore(self, batch)
    self.states[0] = kept


def forgets_a_state(self: Any, batch: Any) -> None:
    restore(self, batch)
    self.states[-1] = None


def keeps_the_coordinator(self: Any, batch: Any) -> None:
    kept = self.coordinator
    restore(self, batch)
    self.coordinator = kept


def keeps_the_outputs(self: Any, batch: Any) -> None:
    kept = self._parts
    restore(self, batch)
    self._parts = kept


def forgets_the_outputs(self: Any, batch: Any) -> None:
    restore(self, batch)
    self._parts.clear()


def forgets_blobs(self: Any, batch: Any) -> None:
    restore(self, batch)
    if self.blobs:
        self.blobs.content.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "first"),  # the first seed that tells
    [
        (keeps_a_state, 2), (forgets_a_state, 1), (keeps_the_coordinator, 1), (keeps_the_outputs, 7),
        (forgets_the_outputs, 3), (forgets_blobs, 1),
    ],
)  # fmt: skip
def test_a_wrong_recovery_is_caught(wrong: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "_restore", wrong)
    assert any(check(seed, Counter()) for seed in range(first, first + 100))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), [("message", 3), ("input", 1)])
def test_a_replay_without_some_of_its_rows_is_caught(
    kind: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def less(self: Any, batch: Any) -> None:
        if self.crashed:
            kept = pc.not_equal(batch.rows.column("kind"), kind)
            batch = dataclasses.replace(batch, rows=batch.rows.filter(kept))
        attempt(self, batch)

    monkeypatch.setattr(Simulation, "_attempt", less)
    assert any(check(seed, Counter()) for seed in range(first, first + 100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "first"),
    [("pending", 4), ("tracker", 1), ("unreleased", 20), ("inputs", 1)],  # the first seed that tells
)
def test_a_coordinator_that_comes_back_without_a_part_is_caught(
    part: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial = Coordinator(FLOWS[0](random.Random(0)).compile(1)).encode()

    def less(plan: Any, snapshot: Any) -> Coordinator:
        return decode(plan, snapshot | {part: Coordinator(plan).encode()[part]})

    assert part in initial
    monkeypatch.setattr(Coordinator, "decode", less)
    assert any(check(seed, Counter()) for seed in range(first, first + 100))
