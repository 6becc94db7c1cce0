"""The progress of workers, added up: nothing is lost, and nothing counts twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.worker import wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.epoch_columns import Refused
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.loops import LoopCounts
from timely_spark.worker.negatives import Negatives
from timely_spark.worker.wire import Report


def fed(epoch: int, records: int) -> list[Any]:
    counts = Convergence()
    counts.add("hops", epoch, 1, records)
    return counts.encode()


LOAD = Load(3, 0, 1 << 16, "7", 0.9)
NEGATIVES = Negatives("count", 2, "{'k': 1} is there -1 times", 3)
#: of four workers
REPORTS = [
    Report(
        deltas=[(1, [0, 2], 5), (2, [0], -1)],
        pending=[(4, [3], 1)],
        left=1,
        ticks=[3],
        seen={"s": 4},
        refused={"s": Refused(1, 2, 90, 8)},
        loops=LoopCounts({"hops": 9, "inner": 1}, dropped=[("hops", 0, 9, 2, "x")], fed=fed(0, 10)),
        late={"windows": 1},
        expectations={"positive": Expectation(3), "even": Expectation(1, 1, (4, "{'n': 1}"))},
        outputs=[("out", 3)],
        stats={"calls": 2},
    ),
    Report(
        deltas=[(1, [0, 2], -5), (2, [0], 3), (2, [1], 1)],
        pending=[(4, [3], -1), (4, [4], 2)],
        ticks=[4, 3],
        seen={"s": 7},
        refused={"s": Refused(1, 1, 80, 7), "t": Refused(without=1)},
        loops=LoopCounts(
            {"hops": 4, "inner": 6},
            far=[("hops", 0, 10_000, "y")],
            dropped=[("hops", 0, 7, 3, "y"), ("hops", 1, 7, 1, "x")],
            fed=fed(0, 5),
        ),
        outputs=[("out", 3)],
        read={"s": 5},
        stats={"calls": 3, "bytes": 8},
    ),
    Report(
        deltas=[(2, [1], 1)],
        left=1,
        loads=[LOAD],
        negatives=[NEGATIVES],
        late={"windows": 4, "days": 2},
        expectations={"even": Expectation(2, 2, (3, "{'n': 7}"))},
        advanced={"x": None},
        outputs=[("out", 4)],
        loops=LoopCounts(far=[("hops", 0, 20_000, "x")], grown=[("hops", 0, 3, 70_000, "a")]),
    ),
    Report(
        loops=LoopCounts(fed=fed(1, 1), grown=[("hops", 0, 2, 80_000, "b")]),
        advanced={"x": None, "y": 3},
        read={"s": 1},
    ),
]
WANTED = Report(
    deltas=[(2, [0], 2), (2, [1], 2)],
    pending=[(4, [4], 2)],
    left=2,
    ticks=[3, 4],
    advanced={"x": None, "y": 3},
    seen={"s": 7},
    refused={"s": Refused(2, 3, 80, 8), "t": Refused(without=1)},
    loops=LoopCounts(
        {"hops": 9, "inner": 6},
        far=[("hops", 0, 20_000, "x")],
        dropped=[("hops", 0, 7, 5, "x"), ("hops", 1, 7, 1, "x")],
        fed=[*fed(0, 15), *fed(1, 1)],
        grown=[("hops", 0, 2, 80_000, "b")],
    ),
    loads=[LOAD],
    negatives=[NEGATIVES],
    late={"windows": 5, "days": 2},
    expectations={"positive": Expectation(3), "even": Expectation(3, 3, (3, "{'n': 7}"))},
    read={"s": 6},
    outputs=[("out", 3), ("out", 4)],
    stats={"calls": 5, "bytes": 8},
)


def test_reports_are_added_up() -> None:
    assert Report.sum(REPORTS) == WANTED
    for cut in range(5):
        assert Report.sum(REPORTS[:cut]) + Report.sum(REPORTS[cut:]) == WANTED


def test_a_sum_is_what_was_sent() -> None:
    ((sender, found),) = wire.read(wire.table([(wire.ELSEWHERE, WANTED)]), Report)

    assert (sender, found.encode()) == (wire.ELSEWHERE, WANTED.encode())
    assert Report.sum([found]) == WANTED


names, small = st.sampled_from("ab"), st.integers(0, 3)
number = st.integers(0, 1 << 20)
changes = st.lists(
    st.tuples(
        small, st.one_of(st.tuples(small).map(list), st.tuples(small, small).map(list)), st.integers(-2, 2)
    ),
    max_size=4,
)
counts = st.dictionaries(names, number)
evidence = st.sampled_from(["[1]", "[2]"])


@st.composite
def convergences(draw: st.DrawFn) -> list[Any]:
    made = Convergence()
    for loop, epoch, iteration, records in draw(st.lists(st.tuples(names, small, number, small), max_size=4)):
        made.add(loop, epoch, iteration, records)
    return made.encode()


def by_epoch(*rest: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Entries of which there is one for each loop and epoch."""
    return st.lists(st.tuples(names, small, *rest), max_size=3, unique_by=lambda entry: entry[:2])


reports = st.builds(
    Report,
    deltas=changes,
    pending=changes,
    left=small,
    ticks=st.lists(small, max_size=3),
    advanced=st.sets(names).map(lambda found: {name: {"a": None, "b": 3}[name] for name in found}),
    seen=counts,
    late=counts,
    refused=st.dictionaries(names, st.builds(Refused, number, number, number, number)),
    read=counts,
    loops=st.builds(
        LoopCounts,
        counts,
        by_epoch(number, evidence),
        by_epoch(small, number, evidence),
        convergences(),
        by_epoch(small, number, evidence),
        by_epoch(small, evidence),
    ),
    loads=st.lists(st.builds(Load, small, small, number, names, st.floats(0, 1)), max_size=2),
    negatives=st.lists(st.builds(Negatives, names, small, evidence, number), max_size=2),
    outputs=st.lists(st.tuples(names, small), max_size=3),
    stats=counts,
)


@pytest.mark.slow
@given(reports, reports, reports)
def test_reports_are_a_commutative_monoid(a: Report, b: Report, c: Report) -> None:
    assert (a + b) + c == a + (b + c) == Report.sum([a, b, c])
    assert a + b == b + a
    assert (a + b) + Report() == a + b == Report() + (a + b)
