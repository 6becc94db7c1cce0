"""Laws of the tracker on random graphs with nested loops: its frontiers are those of the definition."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

from timely_spark.errors import CyclicTime
from timely_spark.progress import Arc, Reachability, Tracker
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Antichain

Stamp = tuple[int, Any]
KINDS = st.sampled_from([PRODUCT, LEXICOGRAPHIC])


@dataclass(frozen=True)
class Drawn:
    """A random graph: for each location the loops around it."""

    kind: Any
    scopes: list[tuple[int, ...]]
    edges: list[Arc]
    relays: list[int]

    @property
    def identities(self) -> list[Any]:
        return [self.kind.identity(len(scope)) for scope in self.scopes]

    @property
    def reachability(self) -> Reachability:
        return Reachability(len(self.scopes), self.edges, identities=self.identities, relays=self.relays)

    def times(self, location: int) -> st.SearchStrategy[Any]:
        depth = len(self.scopes[location])
        return st.lists(st.integers(0, 3), min_size=depth + 1, max_size=depth + 1).map(self.kind.decode)

    @property
    def stamps(self) -> st.SearchStrategy[Stamp]:
        return st.integers(0, len(self.scopes) - 1).flatmap(lambda at: st.tuples(st.just(at), self.times(at)))


def step(
    kind: Any, source: tuple[int, ...], target: tuple[int, ...], around: int | None, limit: int | None
) -> Any:
    """From one scope to another; with ``around``, by the feedback of the loop so deep (0: by a delay)."""
    common = 0
    while common < min(len(source), len(target)) and source[common] == target[common]:
        common += 1
    meet, depth, path = common if around is None else around, len(source), kind.identity(len(source))
    while depth > meet:
        path, depth = path.followed_by(kind.leave(depth)), depth - 1
    if around is not None:
        path = path.followed_by(kind.feedback(around, limit) if around else kind.delay(0, 1))
    while path is not None and depth < len(target):
        path, depth = path.followed_by(kind.enter(depth)), depth + 1
    return path


@st.composite
def graphs(draw: Any) -> Drawn:
    """Loops nested up to three deep; edges forward, and back by the feedback of a loop around both ends."""
    kind = draw(KINDS)
    scopes: list[tuple[int, ...]] = []
    stack: list[int] = []
    for i, token in enumerate(draw(st.lists(st.sampled_from("((oooo))"), min_size=3, max_size=14))):
        if token == "(" and len(stack) < 3:
            stack.append(i)
        elif token == ")" and stack:
            stack.pop()
        elif token == "o" and len(scopes) < 7:
            scopes.append(tuple(stack))
    assume(scopes)
    locations = st.integers(0, len(scopes) - 1)
    edges = []
    for source, target, exchange in draw(
        st.lists(st.tuples(locations, locations, st.booleans()), max_size=14)
    ):
        around = None
        if source >= target or draw(st.integers(0, 3)) == 0:
            common = [a == b for a, b in zip(scopes[source], scopes[target], strict=False)]
            around = draw(st.integers(0, common.index(False) if False in common else len(common)))
        limited = kind is PRODUCT or around == 1
        limit = draw(st.sampled_from([None, None, 0, 1, 3])) if limited else None
        summary = step(kind, scopes[source], scopes[target], around, limit)
        if summary is not None:
            edges.append(Arc(source, target, summary, exchange))
    relays: list[int] = []
    for location in range(len(scopes)):
        into = [edge for edge in edges if edge.target == location]
        beside = {edge.target for edge in edges if edge.source == location} | {edge.source for edge in into}
        if len(into) == 1 and not into[0].exchange and beside.isdisjoint([*relays, location]):
            relays += [location] if draw(st.booleans()) else []
    return Drawn(kind, scopes, edges, relays)


def closure(drawn: Drawn, start: dict[tuple[int, int], list[Any]]) -> dict[tuple[int, int], Antichain[Any]]:
    """By definition, without summaries: walk every edge from every time, as long as it brings something new.

    Places are (location, whether an exchange was crossed).
    """
    found: dict[tuple[int, int], Antichain[Any]] = {}
    todo = [(place, time) for place, times in start.items() for time in times]
    while todo:
        (location, crossed), time = todo.pop()
        if found.setdefault((location, crossed), Antichain()).insert(time):
            todo += [
                ((edge.target, crossed or int(edge.exchange)), result)
                for edge in drawn.edges
                if edge.source == location and (result := edge.summary.results_in(time)) is not None
            ]
    return found


def expected(drawn: Drawn, counts: Counter[Stamp], inputs: Counter[Stamp]) -> tuple[list[Any], list[Any]]:
    """Frontiers and arrivals at each location, by definition."""
    start: dict[tuple[int, int], list[Any]] = {}
    for (location, time), n in counts.items():
        if n > 0:
            start.setdefault((location, 0), []).append(time)
    messages = closure(drawn, start)
    entering: dict[tuple[int, int], list[Any]] = {}
    for (location, time), n in inputs.items():
        if n > 0:
            entering.setdefault((location, 0), []).append(time)
    open_ = closure(drawn, entering)
    frontiers = []
    for location in range(len(drawn.scopes)):
        frontiers.append(Antichain())
        for found in (messages, open_):
            for crossed in (0, 1):
                frontiers[-1].extend(found.get((location, crossed), ()))
    return frontiers, [messages.get((location, 1), Antichain()) for location in range(len(drawn.scopes))]


def seen(drawn: Drawn, tracker: Tracker) -> tuple[list[Any], list[Any]]:
    locations = range(len(drawn.scopes))
    return [tracker.frontier(at) for at in locations], [tracker.arrivals(at) for at in locations]


def empty(tracker: Tracker) -> bool:
    tracker.arrived()  # what it has to tell
    return not any(value for name, value in vars(tracker).items() if name != "reachability")


@st.composite
def batches(draw: Any, drawn: Drawn) -> list[list[tuple[int, Any, int]]]:
    """Atomic batches of deltas; the counts may be negative in between and at the end."""
    stamps = draw(st.lists(drawn.stamps, min_size=1, max_size=6))
    delta = st.tuples(st.sampled_from(stamps), st.sampled_from([-2, -1, 1, 1, 2])).map(
        lambda d: (*d[0], d[1])
    )
    return draw(st.lists(st.lists(delta, min_size=1, max_size=4), min_size=1, max_size=6))


# -- the definition ----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(graphs(), st.data())
def test_frontiers_are_those_of_the_definition(drawn: Drawn, data: st.DataObject) -> None:
    tracker = Tracker(drawn.reachability)
    counts: Counter[Stamp] = Counter()
    inputs: Counter[Stamp] = Counter()
    standing: list[Stamp | None] = [None, None]
    for batch in data.draw(batches(drawn)):
        tracker.update(batch)
        for location, time, n in batch:
            counts[location, time] += n
        which = data.draw(st.integers(0, 1))
        old = standing[which]
        new = data.draw(st.one_of(st.none(), drawn.stamps if old is None else drawn.times(old[0])))
        if old is None and new is not None:
            tracker.input_at(new[0], None, new[1])
            standing[which] = new
        elif old is not None:
            later = None if new is None else old[1].join(new)
            tracker.input_at(old[0], old[1], later)
            standing[which] = None if later is None else (old[0], later)
        inputs = Counter(stamp for stamp in standing if stamp is not None)
        assert seen(drawn, tracker) == expected(drawn, counts, inputs)
        assert tracker.active == {stamp: n for stamp, n in counts.items() if n}
        assert tracker.inputs == inputs

    for location, time in filter(None, standing):
        tracker.input_at(location, time, None)
    tracker.update([(location, time, -n) for (location, time), n in counts.items()])
    assert not any(tracker.frontier(location) for location in range(len(drawn.scopes)))
    assert empty(tracker)


@given(graphs(), st.data())
def test_summaries_are_those_of_the_definition(drawn: Drawn, data: st.DataObject) -> None:
    reach = drawn.reachability
    source, time = data.draw(drawn.stamps)
    found = closure(drawn, {(source, 0): [time]})
    for target in range(len(drawn.scopes)):
        either = Antichain([*found.get((target, 0), ()), *found.get((target, 1), ())])
        for paths, wanted in (
            (reach.summaries(target), either),
            (reach.exchanged(target), found.get((target, 1))),
        ):
            results = [path.results_in(time) for path in paths.get(source, ())]
            assert Antichain(result for result in results if result is not None) == (wanted or Antichain())
            for path in paths.get(source, ()):
                others = [other for other in paths[source] if other is not path]
                assert not any(other.less_equal(path) for other in others)


# -- batches -----------------------------------------------------------------------------------------------


@given(graphs(), st.data())
def test_order_and_grouping_of_batches_do_not_matter(drawn: Drawn, data: st.DataObject) -> None:
    some = data.draw(batches(drawn))
    reach = drawn.reachability
    one = Tracker(reach)
    one.update([delta for batch in some for delta in batch])
    other = Tracker(reach)
    for batch in data.draw(st.permutations(some)):
        other.update(batch)
        if data.draw(st.booleans()):
            other.frontier(0)

    assert seen(drawn, one) == seen(drawn, other)
    assert one.active == other.active
    assert one.encode() == other.encode()


@given(graphs(), st.data())
def test_a_decoded_tracker_goes_on_as_the_first(drawn: Drawn, data: st.DataObject) -> None:
    first, *rest = data.draw(batches(drawn))
    tracker = Tracker(drawn.reachability)
    tracker.input_at(0, None, drawn.kind.decode([1] * (1 + len(drawn.scopes[0]))))
    tracker.update(first)
    twin = Tracker.decode(drawn.reachability, drawn.kind, json.loads(json.dumps(tracker.encode())))

    assert seen(drawn, twin) == seen(drawn, tracker)
    for batch in rest:
        for each in (tracker, twin):
            each.update(batch)
        assert seen(drawn, twin) == seen(drawn, tracker)


# -- a run: what holds pointstamps makes later ones --------------------------------------------------------


@pytest.mark.slow
@given(graphs(), st.data())
def test_in_a_run_frontiers_only_advance_and_end_empty(drawn: Drawn, data: st.DataObject) -> None:
    tracker = Tracker(drawn.reachability)
    held: Counter[Stamp] = Counter()
    source = data.draw(st.integers(0, len(drawn.scopes) - 1))
    at = drawn.kind.decode([0] * (1 + len(drawn.scopes[source])))
    tracker.input_at(source, None, at)
    before, _ = seen(drawn, tracker)
    for _ in range(data.draw(st.integers(1, 12))):
        batch: list[tuple[int, Any, int]] = []
        if held and data.draw(st.booleans()):
            location, time = data.draw(st.sampled_from(sorted(held, key=str)))
            batch.append((location, time, -1))
            for edge in drawn.edges:
                if edge.source == location and data.draw(st.booleans()):
                    sent = edge.summary.results_in(time.join(data.draw(drawn.times(location))))
                    if sent is not None:
                        batch.append((edge.target, sent, +1))
            tracker.update(batch)
        else:
            batch = [(source, at.join(data.draw(drawn.times(source))), +1)]
            tracker.update(batch)
            advanced = at.join(data.draw(drawn.times(source)))
            tracker.input_at(source, at, advanced)
            at = advanced
        for location, time, n in batch:
            held[location, time] += n
        held = +held
        after, _ = seen(drawn, tracker)
        note(f"{batch}: {after}")
        assert all(old.dominates(new) for old, new in zip(before, after, strict=True))
        before = after

    tracker.input_at(source, at, None)
    tracker.update([(location, time, -n) for (location, time), n in held.items()])
    assert empty(tracker)


# -- cycles ------------------------------------------------------------------------------------------------


@given(graphs(), st.data())
def test_every_edge_increases_the_order_of_work(drawn: Drawn, data: st.DataObject) -> None:
    reach = drawn.reachability
    for edge in drawn.edges:
        time = data.draw(drawn.times(edge.source))
        result = edge.summary.results_in(time)
        if result is not None:
            here, there = (
                reach.order(at, t.order_key()) for at, t in ((edge.source, time), (edge.target, result))
            )
            assert here < there
        other = data.draw(drawn.times(edge.source))
        orders = {reach.order(edge.source, t.order_key()) for t in (time, other)}
        assert len(orders) == len({time, other}), "a total order"


class Handled(dict[Stamp, int]):
    """Work to be done, which fails when any of it is done twice."""

    def __init__(self) -> None:
        self.done: set[Stamp] = set()

    def pop(self, entry: Stamp) -> int:
        assert entry not in self.done
        self.done.add(entry)
        return super().pop(entry)


@given(graphs(), st.data())
def test_each_pointstamp_is_handled_once(drawn: Drawn, data: st.DataObject) -> None:
    tracker = Tracker(drawn.reachability)
    for batch in data.draw(batches(drawn)):
        tracker._pending = Handled()
        tracker.update(batch)
        tracker.frontier(0)


@st.composite
def any_graphs(draw: Any) -> tuple[int, list[Arc]]:
    """Few locations at any depths, any edges between them: many of these have bad cycles."""
    kind = draw(KINDS)
    depths = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    edges = []
    for _ in range(draw(st.integers(1, 6))):
        source, target = (draw(st.integers(0, len(depths) - 1)) for _ in range(2))
        kept = draw(st.integers(0, min(depths[source], depths[target])))
        path = kind.identity(depths[source])
        for depth in range(depths[source], kept, -1):
            path = path.followed_by(kind.leave(depth))
        match draw(st.sampled_from(["", "", "feedback", "delay"])):
            case "feedback" if kept:
                path = path.followed_by(kind.feedback(kept))
            case "delay":
                path = path.followed_by(kind.delay(kept, 1))
        for depth in range(kept, depths[target]):
            path = path.followed_by(kind.enter(depth))
        edges.append(Arc(source, target, path, draw(st.booleans())))
    return len(depths), edges


def may_return(n: int, edges: list[Arc]) -> bool:
    """Whether one of the minimal summaries of all walks from a location to itself does not advance."""
    for start in range(n):
        found: dict[int, Antichain[Any]] = {}
        todo = [(edge.target, edge.summary) for edge in edges if edge.source == start]
        while todo:
            location, path = todo.pop()
            if found.setdefault(location, Antichain()).insert(path):
                todo += [
                    (edge.target, longer)
                    for edge in edges
                    if edge.source == location and (longer := path.followed_by(edge.summary)) is not None
                ]
        if any(not any(path.advances) for path in found.get(start, ())):
            return True
    return False


@given(any_graphs())
def test_a_graph_is_refused_iff_some_cycle_need_not_advance(drawn: tuple[int, list[Arc]]) -> None:
    n, edges = drawn
    if not may_return(n, edges):
        Reachability(n, edges)
        return
    with pytest.raises(CyclicTime) as caught:
        Reachability(n, edges)
    locations = caught.value.locations
    joined = {(edge.source, edge.target) for edge in edges}
    assert all(pair in joined for pair in zip(locations, locations[1:] + locations[:1], strict=True))
    within = [edge for edge in edges if {edge.source, edge.target} <= set(locations)]
    assert may_return(n, within)
