"""The tracker: timely's published propagation, layers, durability, and what a change costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from timely_spark.errors import InvalidTime
from timely_spark.progress import Arc, Reachability, Tracker
from timely_spark.times import PRODUCT, Antichain, Summary, Time

SAME, NEXT = PRODUCT.delay(0, 0), PRODUCT.delay(0, 1)


def chain(n: int, *exchanges: int, summary: Any = SAME) -> Reachability:
    """0 -> 1 -> .. -> n-1; those into the named locations are exchanges."""
    edges = [Arc(i, i + 1, summary, i + 1 in exchanges) for i in range(n - 1)]
    return Reachability(n, edges, identities=[SAME] * n)


def frontiers(tracker: Tracker) -> dict[int, Any]:
    """The frontiers that are not empty, by location."""
    every = [tracker.frontier(location).elements for location in range(tracker.reachability.n)]
    return {location: times for location, times in enumerate(every) if times}


def empty(tracker: Tracker) -> bool:
    return not any(value for name, value in vars(tracker).items() if name != "reachability")


def test_timely_docs_of_propagation() -> None:
    # three nodes in a ring; node i receives at 2i and sends at 2i+1; only the last one increments
    edges = [Arc(2 * i, 2 * i + 1, NEXT if i == 2 else SAME, exchange=False) for i in range(3)]
    edges += [Arc(2 * i + 1, (2 * i + 2) % 6, SAME, exchange=False) for i in range(3)]
    tracker = Tracker(Reachability(6, edges))
    receiving = {0: (Time(18),), 2: (Time(17),), 4: (Time(17),)}

    for n in (+1, -1):
        tracker.update([(1, Time(17), n)])
        at = {location: times for location, times in frontiers(tracker).items() if location % 2 == 0}
        assert at == (receiving if n > 0 else {})
    assert empty(tracker)


def test_the_oldest_epoch_passes_all_that_have_ended() -> None:
    tracker = Tracker(chain(4))
    tracker.update([(location, Time(epoch), 1) for location, epoch in enumerate((0, 1, 2, 5))])
    assert tracker.oldest() == 0

    tracker.update([(1, Time(1), -1), (2, Time(2), -1)])
    assert tracker.oldest() == 0
    tracker.update([(0, Time(0), -1)])

    assert tracker.oldest() == 5, "epochs 1 and 2 ended before"


def test_a_pointstamp_is_in_the_frontier_of_its_location() -> None:
    tracker = Tracker(chain(3))
    tracker.update([(1, Time(3), 1)])

    assert [tracker.frontier(location) for location in range(3)] == [
        Antichain(at) for at in ([], [Time(3)], [Time(3)])
    ]
    assert tracker.less_equal(1, Time(3))
    assert not tracker.less_equal(0, Time(9))


def test_arrivals_are_times_over_an_exchange() -> None:
    tracker = Tracker(chain(5, 2, 4))
    tracker.update([(1, Time(3), 1)])

    assert [bool(tracker.arrivals(location)) for location in range(5)] == [False, False, True, True, True]
    tracker.update([(1, Time(3), -1), (2, Time(3), 1)])
    assert [bool(tracker.arrivals(location)) for location in range(5)] == [False, False, False, False, True]
    assert tracker.frontier(2) == Antichain([Time(3)])


def test_nothing_is_counted_at_a_relay_but_its_own_pointstamps() -> None:
    edges = chain(7, 2, 4).edges
    every, few = (Tracker(Reachability(7, edges, relays=relays)) for relays in ((), (1, 3, 5)))
    for tracker in (every, few):
        tracker.update([(0, Time(3), 1), (1, Time(2), 1)])

    for at in range(7):
        assert every.frontier(at) == few.frontier(at)
        assert every.arrivals(at) == few.arrivals(at)
    assert [len(tracker._implied) for tracker in (every, few)] == [7, 4]
    for tracker in (every, few):
        tracker.update([(5, Time(1), 1)])
    assert every.arrivals(6) == few.arrivals(6) == Antichain([Time(2)]), "no exchange leads from 5 to 6"


def test_an_exchange_in_a_loop_arrives_an_iteration_later() -> None:
    loop = [
        Arc(0, 1, PRODUCT.enter(0), exchange=True),
        Arc(1, 1, PRODUCT.feedback(1), exchange=True),
        Arc(1, 2, PRODUCT.leave(1), exchange=False),
    ]
    tracker = Tracker(Reachability(3, loop))
    tracker.update([(1, Time(0, 4), 1)])

    assert tracker.arrivals(1) == Antichain([Time(0, 5)])
    assert tracker.frontier(1) == Antichain([Time(0, 4)])
    assert tracker.arrivals(2) == tracker.frontier(2) == Antichain([Time(0)])


def test_an_input_blocks_every_location_after_it_and_is_no_arrival() -> None:
    tracker = Tracker(chain(3, 1))
    tracker.input_at(0, None, Time(0))
    assert frontiers(tracker) == dict.fromkeys(range(3), (Time(0),))
    assert not any(tracker.arrivals(location) for location in range(3))

    tracker.input_at(0, Time(0), Time(1))
    assert frontiers(tracker) == dict.fromkeys(range(3), (Time(1),))
    assert (tracker.active, tracker.inputs) == ({}, {(0, Time(1)): 1})
    assert (tracker.count(0, Time(1)), tracker.count(0 + 3, Time(1))) == (0, 1)
    tracker.input_at(0, None, None)
    tracker.input_at(0, Time(1), None)
    assert frontiers(tracker) == {}
    assert empty(tracker)


def test_an_input_does_not_go_back() -> None:
    tracker = Tracker(chain(1))
    tracker.input_at(0, None, Time(3))

    with pytest.raises(InvalidTime, match="Hint: advance an input to a later time, or close it"):
        tracker.input_at(0, Time(3), Time(2))


def test_two_inputs_at_one_location_are_counted() -> None:
    tracker = Tracker(chain(2))
    tracker.input_at(0, None, Time(0))
    tracker.input_at(0, None, Time(0))
    tracker.input_at(0, Time(0), Time(5))
    assert tracker.frontier(1) == Antichain([Time(0)])
    tracker.input_at(0, Time(0), Time(7))
    assert tracker.frontier(1) == Antichain([Time(5)])


def test_a_consumption_may_be_reported_before_its_production() -> None:
    tracker = Tracker(chain(3))
    tracker.update([(0, Time(0), -1), (1, Time(0), 1)])
    assert frontiers(tracker) == {1: (Time(0),), 2: (Time(0),)}
    assert tracker.active == {(0, Time(0)): -1, (1, Time(0)): 1}
    assert [tracker.count(location, Time(0)) for location in range(3)] == [-1, 1, 0]

    twin = Tracker.decode(tracker.reachability, PRODUCT, json.loads(json.dumps(tracker.encode())))
    for each in (tracker, twin):
        each.update([(0, Time(0), 1), (1, Time(0), -1)])
        assert frontiers(each) == {}
        assert empty(each)


def test_the_deltas_of_a_batch_are_applied_at_once() -> None:
    tracker = Tracker(chain(3))
    tracker.update([(0, Time(0), 1)])
    assert frontiers(tracker) == dict.fromkeys(range(3), (Time(0),))
    tracker.update([(0, Time(0), -1), (1, Time(0), 1)])

    assert frontiers(tracker) == {1: (Time(0),), 2: (Time(0),)}


def test_decode_restores_inputs_and_frontiers() -> None:
    tracker = Tracker(chain(3, 2))
    tracker.input_at(0, None, Time(5))
    tracker.update([(1, Time(3), 2), (0, Time(4), 1)])
    twin = Tracker.decode(tracker.reachability, PRODUCT, json.loads(json.dumps(tracker.encode())))

    assert twin.encode() == tracker.encode()
    for location in range(3):
        assert twin.frontier(location) == tracker.frontier(location)
        assert twin.arrivals(location) == tracker.arrivals(location)


CALLS = [0]


@dataclass(frozen=True, slots=True)
class Counting(Summary):
    """A summary that counts how often it is asked."""

    def results_in(self, time: Any) -> Any:
        CALLS[0] += 1
        return Summary.results_in(self, time)


@pytest.mark.slow
def test_a_hop_costs_the_same_in_a_graph_of_any_size() -> None:
    costs = []
    for n in (100, 10_000):
        tracker = Tracker(chain(n, summary=Counting(SAME.limits, (0,), ())))
        tracker.input_at(0, None, Time(1))
        tracker.update([(10, Time(0), 1)])
        assert tracker.frontier(n - 1) == Antichain([Time(0)])
        CALLS[0] = 0
        for location in range(10, 60):
            tracker.update([(location, Time(0), -1), (location + 1, Time(0), 1)])
            assert [tracker.frontier(at).elements for at in (location, n - 1)] == [(Time(1),), (Time(0),)]
        costs.append(CALLS[0])

    assert costs == [100, 100], "one for each hop, and one for the input at each location that is new"


@pytest.mark.slow
def test_a_wide_vertex_is_not_quadratic() -> None:
    n = 5_000
    one = Counting(SAME.limits, (0,), ())
    edges = [Arc(i, n, one, exchange=False) for i in range(n)]
    edges += [Arc(n, n + 1 + i, one, exchange=False) for i in range(n)]
    tracker = Tracker(Reachability(2 * n + 1, edges))
    CALLS[0] = 0
    tracker.update([(i, Time(0), 1) for i in range(n)])
    assert frontiers(tracker) == dict.fromkeys(range(2 * n + 1), (Time(0),))

    assert CALLS[0] == 2 * n
    tracker.update([(0, Time(0), -1)])
    assert frontiers(tracker) == dict.fromkeys(range(1, 2 * n + 1), (Time(0),))
    assert CALLS[0] == 2 * n + 1


def test_the_oldest_epoch_is_that_of_pointstamps_and_of_no_open_input() -> None:
    tracker = Tracker(chain(3, 1))
    tracker.input_at(0, None, Time(0))
    assert tracker.oldest() is None
    tracker.update([(1, Time(4), 1), (2, Time(3), 2)])

    assert tracker.oldest() == 3
    tracker.update([(2, Time(3), -2)])
    assert tracker.oldest() == 4


def test_equal_counts_have_equal_json_whatever_came_first() -> None:
    counts = [(0, Time(1), 1), (0, Time(0), 2), (2, Time(0), 1), (1, Time(4), 1)]
    texts = set()
    for order in (counts, counts[::-1]):
        tracker = Tracker(chain(3))
        tracker.update(order)
        texts.add(json.dumps(tracker.encode()))
    assert len(texts) == 1
