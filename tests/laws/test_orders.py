"""Laws of times, path summaries and antichains, on random ones of both kinds."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from timely_spark.times import LEXICOGRAPHIC, MAX, PRODUCT, Antichain, MutableAntichain, Summary, Time

Kind = Any
KINDS = st.sampled_from([PRODUCT, LEXICOGRAPHIC])
SMALL = st.integers(0, 4)
#: pure algebra costs next to nothing: more examples than others have, however few those are
MANY = settings(max_examples=max(50, settings().max_examples))


def some(kind: Kind, *times: tuple[int, ...]) -> tuple[Kind, list[Any]]:
    return kind, [kind.decode(list(time)) for time in times]


#: where the two orders differ; where one coordinate decides; and times that are one but for the last
EDGES = [
    ((0, 1, 5), (0, 2, 2), (1, 1, 5)),
    ((0, 2, 0), (1, 1, 9), (1, 2, 0)),
    ((0, 1, 1, 5), (0, 1, 2, 0), (0, 2, 0, 0)),
    ((0, 0), (0, 1), (1, 0)),
    ((3,), (3,), (4,)),
]


def at_edges(n: int) -> Any:
    """The same test, of these times too."""

    def decorate(test: Any) -> Any:
        for kind in (PRODUCT, LEXICOGRAPHIC):
            for times in EDGES:
                test = example(some(kind, *times[:n]))(test)
        return test

    return decorate


def coordinates(kind: Kind) -> st.SearchStrategy[int]:
    # At the end of the range only the product order's results are monotone: no inner counter gets there.
    return SMALL if kind is LEXICOGRAPHIC else st.one_of(SMALL, SMALL, st.integers(MAX - 4, MAX))


@st.composite
def alike(draw: Any, n: int) -> tuple[Kind, list[Any]]:
    """A kind, and n times of it at one depth."""
    kind, depth = draw(KINDS), draw(st.integers(0, 3))
    return kind, [kind.decode([draw(coordinates(kind)) for _ in range(depth + 1)]) for _ in range(n)]


@st.composite
def steps(draw: Any, kind: Kind, depth: int, most: int = 2) -> tuple[Any, int]:
    """A step from a depth, and the depth it leads to."""
    options = ["identity", "delay"] + ["enter"] * (depth < most) + ["leave", "feedback"] * (depth > 0)
    match draw(st.sampled_from(options)):
        case "enter":
            return kind.enter(depth), depth + 1
        case "leave":
            return kind.leave(depth), depth - 1
        case "feedback":
            limited = kind is PRODUCT or depth == 1
            limit = draw(st.one_of(st.none(), st.integers(0, 3))) if limited else None
            return kind.feedback(depth, limit), depth
        case "delay":
            return kind.delay(depth, draw(st.sampled_from([1, 2, MAX - 3]))), depth
        case _:
            return kind.identity(depth), depth


@st.composite
def paths(draw: Any, kind: Kind, depth: int) -> tuple[list[Any], int]:
    """A path as its steps, and the depth it leads to."""
    path = []
    for _ in range(draw(st.integers(0, 5))):
        step, depth = draw(steps(kind, depth))
        path.append(step)
    return path, depth


def along(path: list[Any], time: Any) -> Any:
    for step in path:
        if time is not None:
            time = step.results_in(time)
    return time


def composed(path: list[Any], identity: Any) -> Any:
    whole = identity
    for step in path:
        if whole is not None:
            whole = whole.followed_by(step)
    return whole


def before(a: Any, b: Any) -> bool:
    """None is later than all."""
    return b is None or (a is not None and a.less_equal(b))


# -- times -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@MANY
@given(alike(3))
@at_edges(3)
def test_partial_order(drawn: tuple[Kind, list[Any]]) -> None:
    _, (a, b, c) = drawn

    assert a.less_equal(a)
    assert not (a <= b <= a) or a == b
    assert not (a <= b <= c) or a <= c
    assert (a < b) == (a <= b and a != b)
    assert (a >= b) == (b <= a)
    assert (a > b) == (b < a)


@MANY
@given(alike(3))
@at_edges(3)
def test_join_and_meet_are_the_tightest_bounds(drawn: tuple[Kind, list[Any]]) -> None:
    _, (a, b, c) = drawn

    assert a <= a.join(b)
    assert b <= a.join(b)
    assert a.join(b) == b.join(a)
    assert (a <= c and b <= c) == (a.join(b) <= c)
    assert (c <= a and c <= b) == (c <= a.meet(b))
    assert type(a.join(b)) is type(a.meet(b)) is type(a)


@pytest.mark.slow
@MANY
@given(alike(2))
@at_edges(2)
def test_order_key_extends_the_order(drawn: tuple[Kind, list[Any]]) -> None:
    _, (a, b) = drawn

    assert not a < b or a.order_key() < b.order_key()
    assert (a == b) == (a.order_key() == b.order_key())
    assert len(a.order_key()) == 1 + len(a.counters)
    assert not a <= b or a.epoch <= b.epoch


@MANY
@given(alike(1), st.frozensets(st.integers(0, 3)))
def test_encode_and_coarse(drawn: tuple[Kind, list[Any]], counters: frozenset[int]) -> None:
    kind, (a,) = drawn
    coarse = kind.coarse(a, counters)

    assert kind.decode(json.loads(json.dumps(a.encode()))) == a
    assert coarse <= a
    assert kind.coarse(coarse, counters) == coarse
    assert all(value == (0 if i in counters else a.counters[i]) for i, value in enumerate(coarse.counters))


# -- summaries ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@MANY
@given(st.data())
def test_results_in_is_monotone_and_composes(data: st.DataObject) -> None:
    kind, (a, b) = data.draw(alike(2))
    depth = len(a.counters)
    assume(depth <= 2)
    path, onto = data.draw(paths(kind, depth))
    whole = composed(path, kind.identity(depth))
    results = [whole.results_in(time) if whole is not None else None for time in (a, b)]

    assert results == [along(path, a), along(path, b)]
    assert not a <= b or before(*results)
    assert not b <= a or before(*results[::-1])
    assert all(len(time.counters) == onto and type(time) is type(a) for time in results if time is not None)
    assert kind.identity(depth).results_in(a) == a


@pytest.mark.slow
@MANY
@given(st.data())
def test_a_composition_exists_iff_something_passes_it(data: st.DataObject) -> None:
    kind, depth = data.draw(KINDS), data.draw(st.integers(0, 2))
    path, _ = data.draw(paths(kind, depth))
    least = kind.decode([0] * (depth + 1))

    assert (composed(path, kind.identity(depth)) is None) == (along(path, least) is None)


@pytest.mark.slow
@MANY
@given(st.data())
def test_followed_by_is_associative(data: st.DataObject) -> None:
    kind, depth = data.draw(KINDS), data.draw(st.integers(0, 2))
    one, middle = data.draw(paths(kind, depth))
    two, _ = data.draw(paths(kind, middle))
    left, right = composed(one, kind.identity(depth)), composed(two, kind.identity(middle))
    expected = left.followed_by(right) if left is not None and right is not None else None

    assert composed(one + two, kind.identity(depth)) == expected


@pytest.mark.slow
@MANY
@given(st.data())
def test_what_a_path_advances(data: st.DataObject) -> None:
    kind, (time,) = data.draw(alike(1))
    assume(len(time.counters) <= 2)
    path, _ = data.draw(paths(kind, len(time.counters)))
    whole = composed(path, kind.identity(len(time.counters)))
    assume(whole is not None and whole.results_in(time) is not None)
    pairs = zip(time.order_key(), whole.results_in(time).order_key(), whole.advances, strict=False)

    assert all(new > old if advances else new == old for old, new, advances in pairs)
    assert len(whole.advances) <= len(time)


EDGE_CASES = [0, 1, 2, 3, 4, 20, *range(MAX - 4, MAX + 1)]


@st.composite
def boxes(draw: Any) -> Summary:
    """Any summary from depth 1 to depth 1, with or without limits."""
    kept = draw(st.integers(0, 2))
    limits = [draw(st.sampled_from([-1, 0, 1, 2, 3, MAX])) for _ in range(2)]
    return Summary(
        tuple(limits),
        tuple(draw(st.integers(0, 3)) for _ in range(kept)),
        tuple(draw(st.integers(0, 4)) for _ in range(2 - kept)),
    )


@MANY
@given(boxes(), boxes())
def test_less_equal_of_summaries_is_that_of_all_their_results(a: Summary, b: Summary) -> None:
    times = [Time(*pair) for pair in itertools.product(EDGE_CASES, repeat=2)]

    assert a.less_equal(b) == all(before(a.results_in(time), b.results_in(time)) for time in times)


@pytest.mark.slow
@given(st.data())
def test_less_equal_of_lexicographic_summaries(data: st.DataObject) -> None:
    found: dict[int, list[Any]] = {}
    for _ in range(2):
        path, onto = data.draw(paths(LEXICOGRAPHIC, 2))
        found.setdefault(onto, []).append(composed(path, LEXICOGRAPHIC.identity(2)))
    assume(len(found) == 1)
    ((a, b),) = found.values()
    assume(a is not None and b is not None)
    # no inner counter gets to the end of the range: see LexicographicTimes
    values = itertools.product(EDGE_CASES, EDGE_CASES, [0, 1, 2, 3, 4, 20])
    times = list(map(LEXICOGRAPHIC.decode, values))

    assert a.less_equal(b) == all(before(a.results_in(time), b.results_in(time)) for time in times)


# -- antichains --------------------------------------------------------------------------------------------


def minimal(times: Any) -> set[Any]:
    times = set(times)
    return {time for time in times if not any(other < time for other in times)}


@pytest.mark.slow
@MANY
@given(alike(8), st.data())
def test_an_antichain_holds_the_minimal_elements(drawn: tuple[Kind, list[Any]], data: st.DataObject) -> None:
    _, (probe, *times) = drawn
    frontier = Antichain(times)

    assert set(frontier.elements) == minimal(times)
    assert len(frontier.elements) == len(minimal(times))
    assert frontier == Antichain(data.draw(st.permutations(times)))
    assert frontier.less_equal(probe) == any(time <= probe for time in times)
    assert frontier.less_than(probe) == any(time < probe for time in times)
    assert frontier.insert(probe) == (not any(time <= probe for time in times))
    assert frontier.dominates(Antichain(times))


@pytest.mark.slow
@MANY
@given(alike(5), st.data())
def test_a_counted_frontier_is_that_of_the_positive_counts(
    drawn: tuple[Kind, list[Any]], data: st.DataObject
) -> None:
    _, times = drawn
    change = st.tuples(st.sampled_from(times), st.integers(-2, 2))
    batches = data.draw(st.lists(st.lists(change, max_size=4), max_size=6))
    counted: MutableAntichain[Any] = MutableAntichain()
    sums: dict[Any, int] = {}
    known: set[Any] = set()
    for batch in batches:
        one_by_one = data.draw(st.booleans()) and len(batch) == 1
        for time, n in counted.update(*batch[0]) if one_by_one else counted.update_iter(batch):
            assert n in {-1, 1}
            assert (time in known) == (n < 0)
            known ^= {time}
        for time, n in batch:
            sums[time] = sums.get(time, 0) + n
        assert set(counted.frontier()) == known == minimal(time for time, n in sums.items() if n > 0)
        assert dict(counted.counts) == {time: n for time, n in sums.items() if n}

    counted.update_iter([(time, -n) for time, n in sums.items()])
    assert len(counted) == 0
    assert not counted.frontier()


@pytest.mark.slow
@MANY
@given(alike(5), st.data())
def test_order_and_grouping_of_counts_do_not_matter(
    drawn: tuple[Kind, list[Any]], data: st.DataObject
) -> None:
    _, times = drawn
    changes = data.draw(st.lists(st.tuples(st.sampled_from(times), st.integers(-2, 2)), max_size=12))
    counted = MutableAntichain(changes)
    shuffled = data.draw(st.permutations(changes))
    cut = data.draw(st.integers(0, len(changes)))
    other = MutableAntichain(shuffled[:cut])
    other.update_iter(shuffled[cut:])

    assert other.frontier() == counted.frontier()
    assert other.counts == counted.counts
