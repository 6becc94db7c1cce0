"""Counts of what feedback carries: exact sums, in any order, in bounded memory; changes of collections."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.worker import convergence
from timely_spark.worker.convergence import PAIRS, POINTS, Convergence, Iterations

ADDED = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.integers(0, 2_000) | st.integers(0, 2**40),
        st.integers(1, 9),
    ),
    max_size=300,
)


def counted(added: list[tuple[str, int, int, int]]) -> Convergence:
    counts = Convergence()
    for one in added:
        counts.add(*one)
    return counts


@pytest.fixture(params=[2, POINTS], ids=["few points", "points"])
def points(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most numbers of a loop in an epoch."""
    most: int = request.param
    monkeypatch.setattr(convergence, "POINTS", most)
    return most


EVERY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@EVERY
@given(added=ADDED, random=st.randoms(use_true_random=False), parts=st.integers(1, 4))
def test_counts_do_not_depend_on_order_or_grouping(
    points: int, added: list[tuple[str, int, int, int]], random: Random, parts: int
) -> None:
    shuffled = random.sample(added, len(added))
    merged = Convergence.sum(counted(shuffled[part::parts]) for part in range(parts))

    assert list(merged) == list(counted(added))
    assert list(merged.latest()) == list(counted(added).latest())
    assert Convergence.decode(json.loads(json.dumps(merged.encode()))) == merged


@EVERY
@given(added=ADDED)
def test_sums_are_exact_and_numbers_few(points: int, added: list[tuple[str, int, int, int]]) -> None:
    found = list(counted(added))

    exact: Counter[tuple[str, int]] = Counter()
    for loop, epoch, _, records in added:
        exact[loop, epoch] += records
    assert max(Counter((loop, epoch) for loop, epoch, *_ in found).values(), default=0) <= points
    for at in found:
        inside = [
            n for loop, epoch, i, n in added if at[:2] == (loop, epoch) and 0 <= i - at.first < at.width
        ]
        assert sum(inside) == at.records
    for loop, epoch, last, mean, total in counted(added).latest():
        at = max(each for each in found if each[:2] == (loop, epoch))
        assert mean == round(at.records / (last - at.first + 1))
        assert epoch == max(e for other, e in exact if other == loop)
        assert last == max(i for other, e, i, _ in added if (other, e) == (loop, epoch))
        assert total == exact[loop, epoch]


def test_counts_of_few_iterations_are_as_wide_as_those_that_are_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convergence, "POINTS", 2)
    few, many = ([("a", 0, iteration, 1) for iteration in each] for each in ([0], [0, 1, 3]))

    assert list(counted(few) + counted(many)) == list(counted(few + many))
    assert list(counted(many) + counted(few)) == list(counted(few + many))


def test_of_many_epochs_the_last_are_kept() -> None:
    epochs = [epoch for _, epoch, *_ in counted([("a", (7 * i) % 1000, 1, 1) for i in range(1000)])]

    assert epochs == list(range(1000 - PAIRS, 1000))


# -- what a collection changes -------------------------------------------------------------------------------

EPOCHS = [
    [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 1), (7, 8, 1)],
    [(0, 3, 1), (4, 7, 1)],
    [(1, 2, -1), (0, 3, -1)],
    [],
]


def near(edges: set[tuple[int, int]]) -> Iterator[set[int]]:
    """What can be reached from 0 by at most 0, 1, 2, ... edges."""
    reached = {0}
    while True:
        yield reached
        reached = {0} | reached | {dst for src, dst in edges if src in reached}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_loop_of_collections_counts_the_changes_of_each_iteration(workers: int) -> None:
    flow = ts.Dataflow("near")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    roots = flow.input("roots", "node long").collection()

    def hop(node: ts.Collection) -> ts.Collection:
        return node.join(edges, left="node", right="src").select(node="dst").concat(node).distinct()

    roots.iterate(hop, name="hops").changes().capture("near")
    simulation = ts.testing.Simulation(flow, workers=workers)
    now: set[tuple[int, int]] = set()
    before = [set[int]()] * 12
    for epoch, changes in enumerate(EPOCHS):
        simulation.send("edges", changes)
        simulation.send("roots", [0] if epoch == 0 else [])
        counts = Convergence()
        simulation.step()
        batch = simulation.batch - 1
        counts += simulation.result.convergence
        while simulation.result.rows.num_rows:
            simulation.step()
            counts += simulation.result.convergence
        for src, dst, diff in changes:
            (now.add if diff > 0 else now.discard)((src, dst))
        after = [value for value, _ in zip(near(now), range(12), strict=False)]
        expected = {}
        for i in range(1, 12):  # the change of a change: by iteration, and by epoch
            change = Counter(after[i])
            change.subtract(before[i])
            change.subtract(after[i - 1])
            change.update(before[i - 1])
            if records := sum(n != 0 for n in change.values()):
                expected[i] = records
        assert {point.first: point.records for point in counts} == expected
        assert {point[:2] for point in counts} == ({("hops", batch)} if expected else set())
        before = after


def test_iterations_are_named() -> None:
    assert list(counted([("a", 0, 3, 5)])) == [Iterations(loop="a", epoch=0, first=3, width=1, records=5)]


def test_a_feedback_that_leads_out_of_its_loop_is_counted_by_the_iteration_of_its_sender() -> None:
    """The channel of the feedback goes on through `leave` to a step outside."""
    flow = ts.Dataflow("out")
    around = flow.scope.inner(name="around")
    x = around.enter(flow.input("x", "n long"), at="n").collection()
    n = x.variable(x.scope.inner(name="down"))
    n.set(n.select(n=pc.field("n") - 1).where(pc.field("n") >= 0).concat(x).distinct())
    n.leave().changes().leave().capture("out")

    found = ts.testing.run(flow, {"x": [[3, 1]]}, workers=2)["out"].rows()[0]
    assert {row[0] for row in found} == {0, 1, 2, 3}
