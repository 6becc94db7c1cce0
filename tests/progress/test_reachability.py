"""Could-result-in: timely's published graphs, nested loops, and the check of cycles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from timely_spark.errors import CyclicTime
from timely_spark.progress import Arc, Reachability
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Antichain, Summary, Time

SAME, NEXT = PRODUCT.delay(0, 0), PRODUCT.delay(0, 1)


def edge(source: int, target: int, summary: Summary = SAME, *, exchange: bool = False) -> Arc:
    return Arc(source, target, summary, exchange)


def ring(*inside: Summary) -> list[Arc]:
    """Timely's documented graph: three nodes in a ring; node i receives at 2i and sends at 2i+1."""
    return [edge(2 * i, 2 * i + 1, summary) for i, summary in enumerate(inside)] + [
        edge(2 * i + 1, (2 * i + 2) % 6) for i in range(3)
    ]


def test_is_acyclic_docs_ring_without_increment_is_refused() -> None:
    with pytest.raises(CyclicTime) as caught:
        Reachability(6, ring(SAME, SAME, SAME))

    locations = caught.value.locations
    assert sorted(locations) == [0, 1, 2, 3, 4, 5]
    assert all((b - a) % 6 == 1 for a, b in zip(locations, locations[1:] + locations[:1], strict=True))
    assert pickle.loads(pickle.dumps(caught.value)).locations == locations


def test_is_acyclic_docs_ring_with_increment_is_accepted() -> None:
    Reachability(6, ring(SAME, SAME, NEXT))


@pytest.mark.parametrize(("second", "cyclic"), [(NEXT, False), (SAME, True)])
def test_is_acyclic_docs_two_crossed_ports(second: Summary, *, cyclic: bool) -> None:
    # one node: inputs 0 and 1, outputs 2 and 3; each output leads to the opposite input
    edges = [edge(0, 2, SAME), edge(1, 3, second), edge(2, 1), edge(3, 0)]
    if cyclic:
        with pytest.raises(CyclicTime):
            Reachability(4, edges)
    else:
        Reachability(4, edges)


def test_a_location_that_leads_to_itself() -> None:
    with pytest.raises(CyclicTime) as caught:
        Reachability(2, [edge(1, 1)])

    assert caught.value.locations == [1]
    Reachability(2, [edge(1, 1, NEXT)])


@pytest.mark.parametrize("kind", [PRODUCT, LEXICOGRAPHIC])
def test_a_feedback_does_not_excuse_a_cycle_around_the_loop(kind: Any) -> None:
    # 0 -> [1 -> 2] -> 0: the inner counter grows and is forgotten on the way out
    feedback, enter, leave = kind.feedback(1), kind.enter(0), kind.leave(1)
    inside = [edge(0, 1, enter), edge(1, 2, kind.identity(1)), edge(2, 1, feedback), edge(2, 3, leave)]

    Reachability(4, inside)
    with pytest.raises(CyclicTime) as caught:
        Reachability(4, [*inside, edge(3, 0, kind.identity(0))])
    assert sorted(caught.value.locations) == [0, 1, 2, 3]
    Reachability(4, [*inside, edge(3, 0, kind.delay(0, 1))])


def test_a_cycle_that_advances_the_epoch_may_drop_counters() -> None:
    Reachability(2, [edge(0, 1, PRODUCT.enter(0)), edge(1, 0, PRODUCT.leave(1).followed_by(NEXT))])


def nested() -> Reachability:
    """0 -> ( 1 -> ( 2 ) -> 3 ) -> 4 with a feedback in each loop, the outer one by an exchange."""
    identities = [PRODUCT.identity(depth) for depth in (0, 1, 2, 1, 0)]
    edges = [
        edge(0, 1, PRODUCT.enter(0), exchange=True),
        edge(1, 2, PRODUCT.enter(1)),
        edge(2, 2, PRODUCT.feedback(2)),
        edge(2, 3, PRODUCT.leave(2)),
        edge(3, 1, PRODUCT.feedback(1), exchange=True),
        edge(3, 4, PRODUCT.leave(1)),
    ]
    return Reachability(5, edges, identities=identities)


def test_minimal_summaries_are_an_antichain() -> None:
    graph = nested()
    feedback = PRODUCT.feedback(2)
    around = PRODUCT.leave(2).followed_by(PRODUCT.feedback(1)).followed_by(PRODUCT.enter(1))

    assert graph.summaries(2)[2] == Antichain([PRODUCT.identity(2), around])
    assert not feedback.less_equal(around)
    assert graph.summaries(4)[0] == Antichain([PRODUCT.identity(0)])
    assert 4 not in graph.summaries(3)
    assert graph.exchanged(2)[2] == Antichain([around])
    assert graph.exchanged(0) == {}
    assert graph.summaries(2) is graph.summaries(2)


def test_a_path_that_is_replaced_by_a_smaller_one_does_not_end_the_search() -> None:
    edges = [edge(0, 1), edge(1, 2, NEXT), edge(1, 2), edge(2, 3)]
    graph = Reachability(4, edges, identities=[SAME] * 4)

    assert graph.paths_from(1)[0][3] == graph.summaries(2)[0] == Antichain([SAME])


def test_a_limit_is_part_of_the_summary() -> None:
    feedback = PRODUCT.feedback(1, limit=2)
    identities = [PRODUCT.identity(1), PRODUCT.identity(1), PRODUCT.identity(0)]
    graph = Reachability(3, [edge(0, 1, feedback), edge(1, 2, PRODUCT.leave(1))], identities=identities)
    (path,) = graph.summaries(2)[0]

    assert path.results_in(Time(0, 1)) == Time(0)
    assert path.results_in(Time(0, 2)) is None


@pytest.mark.slow
def test_many_paths_cost_no_more_than_many_edges() -> None:
    # a ladder of diamonds: 2**1000 paths
    rungs = 1000
    edges = [
        edge(3 * i + a, 3 * i + b, exchange=a == 1)
        for i in range(rungs)
        for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))
    ]
    graph = Reachability(3 * rungs + 1, edges, identities=[SAME] * (3 * rungs + 1))

    assert len(graph.summaries(3 * rungs)) == 3 * rungs + 1
    assert graph.summaries(3 * rungs)[0] == Antichain([SAME])
    assert graph.exchanged(3 * rungs)[0] == Antichain([SAME])


@pytest.mark.slow
def test_deep_graphs_need_no_deep_stack() -> None:
    n = 20_000
    with pytest.raises(CyclicTime) as caught:
        Reachability(n, [edge(i, (i + 1) % n) for i in range(n)])

    assert len(caught.value.locations) == n


def test_may_lead_is_true_for_every_path() -> None:
    graph = Reachability(8, [*ring(SAME, SAME, NEXT), edge(6, 0), edge(5, 7)], identities=[SAME] * 8)

    for target in range(8):
        assert all(graph.may_lead(source, target) for source in graph.summaries(target))
    assert not graph.may_lead(7, 0)
    assert not graph.may_lead(0, 6)
