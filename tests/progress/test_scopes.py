"""Progress scope by scope: the frontiers of the flat tracker, and never later while reports are due."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.progress.nested import (
    OUTSIDE,
    Connection,
    Operate,
    Operator,
    Progress,
    Route,
    Scopes,
    Subgraph,
)
from timely_spark.errors import CyclicTime
from timely_spark.progress import Arc, Reachability, Tracker
from timely_spark.times import PRODUCT, Antichain, PathSummary, Time

REGION = "region"


def depth(path: tuple[Any, ...]) -> int:
    """The loop counters of times in a scope: a region has none of its own."""
    return sum(not str(name).startswith(REGION) for name in path)


def identity(path: tuple[Any, ...]) -> PathSummary:
    return PRODUCT.identity(depth(path))


def hops(
    source: tuple[Any, ...], target: tuple[Any, ...], around: int | None, limit: int | None
) -> list[Any]:
    """Out of scopes that only the source is in, perhaps by a feedback, and into those of the target."""
    found, at = [], source
    common = next((i for i, (a, b) in enumerate(zip(source, target, strict=False)) if a != b), None)
    meet = min(len(source), len(target)) if common is None else common
    meet = meet if around is None else around
    while len(at) > meet:
        at = at[:-1]
        found.append(
            (PRODUCT.leave(depth(at) + 1) if depth(source[: len(at) + 1]) > depth(at) else identity(at), at)
        )
    if around is not None:
        loops = depth(at)
        found.append((PRODUCT.feedback(loops, limit) if loops else PRODUCT.delay(0, 1), at))
    while len(at) < len(target):
        outer, at = at, target[: len(at) + 1]
        found.append((PRODUCT.enter(depth(outer)) if depth(at) > depth(outer) else identity(outer), at))
    return found


@st.composite
def nested(draw: Any) -> tuple[list[Any], list[Route]]:
    """Vertices in nested loops and regions; routes forward, and back by a feedback around both ends."""
    paths: list[tuple[Any, ...]] = []
    stack: list[str] = []
    for i, token in enumerate(draw(st.lists(st.sampled_from("([oooo)]"), min_size=4, max_size=16))):
        if token in "([" and len(stack) < 4:
            stack.append(f"{REGION if token == '[' else 'loop'}{i}")
        elif token in ")]" and stack:
            stack.pop()
        elif token == "o" and len(paths) < 8:
            paths.append(tuple(stack))
    paths = paths or [()]
    vertices = st.integers(0, len(paths) - 1)
    routes = []
    for source, target, again in draw(st.lists(st.tuples(vertices, vertices, st.booleans()), max_size=14)):
        around = None
        if source >= target or again:
            same = [a == b for a, b in zip(paths[source], paths[target], strict=False)]
            around = draw(st.integers(0, same.index(False) if False in same else len(same)))
        limit = draw(st.sampled_from([None, None, 0, 1, 3]))
        routes.append(Route(source, target, hops(paths[source], paths[target], around, limit)))
    return paths, routes


def flat(paths: list[Any], routes: list[Route]) -> Tracker:
    """One tracker over all: vertex v receives at 2v, and sends at 2v+1."""
    edges = [Arc(2 * v, 2 * v + 1, identity(path), exchange=False) for v, path in enumerate(paths)]
    for route in routes:
        path: PathSummary | None = identity(paths[route.source])
        for summary, _ in route.hops:
            path = path.followed_by(summary) if path is not None else None
        if path is not None:
            edges.append(Arc(2 * route.source + 1, 2 * route.target, path, exchange=False))
    return Tracker(Reachability(2 * len(paths), edges))


@pytest.mark.slow
@given(nested(), st.data())
def test_frontiers_are_those_of_the_flat_tracker(graph: tuple[list[Any], list[Route]], data: Any) -> None:
    paths, routes = graph
    oracle, scopes = flat(paths, routes), Scopes(paths, routes, identity=identity)
    held: Counter[tuple[int, bool, Any]] = Counter()
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(1, 3))):
            gone = sorted(held.elements()) if data.draw(st.booleans()) else []
            if gone:
                (vertex, message, time), n = data.draw(st.sampled_from(gone)), -1
            else:
                vertex, n = data.draw(st.integers(0, len(paths) - 1)), +1
                message = data.draw(st.booleans())
                time = Time(*(data.draw(st.integers(0, 3)) for _ in range(depth(paths[vertex]) + 1)))
            held[vertex, message, time] += n
            oracle.update([(2 * vertex + (not message), time, n)])
            (scopes.message if message else scopes.capability)(vertex, time, n)
        for vertex in data.draw(st.sets(st.integers(0, len(paths) - 1))):
            assert scopes.frontier(vertex) == oracle.frontier(2 * vertex)
    for vertex in range(len(paths)):
        assert scopes.frontier(vertex) == oracle.frontier(2 * vertex)
    assert scopes.root.pull_internal_progress().unreported == bool(oracle.active)


SUMMARIES = st.lists(
    st.lists(st.sets(st.integers(0, 2), max_size=2), min_size=2, max_size=2), min_size=2, max_size=2
)


@pytest.mark.slow
@given(nested(), st.data())
def test_frontiers_are_those_of_the_flat_tracker_where_inputs_reach_some_outputs_only(
    graph: tuple[list[Any], list[Route]], data: Any
) -> None:
    """Two inputs and two outputs each; a path between them may be missing, delay, or increase a counter."""
    paths, routes = graph
    port = st.integers(0, 1)
    routes = [replace(one, output=data.draw(port), input=data.draw(port)) for one in routes]
    summaries = {
        vertex: [
            [
                Antichain(
                    [PRODUCT.feedback(loops) if n == 2 and loops else PRODUCT.delay(loops, n) for n in own]
                )
                for own in row
            ]
            for row in data.draw(SUMMARIES)
        ]
        for vertex, loops in enumerate(map(depth, paths))
    }
    # flat: of vertex v the inputs are 4v and 4v+1, the outputs 4v+2 and 4v+3
    edges = [
        Arc(4 * v + i, 4 * v + 2 + o, path, exchange=False)
        for v, rows in summaries.items()
        for i, row in enumerate(rows)
        for o, own in enumerate(row)
        for path in own
    ]
    for one in routes:
        path: PathSummary | None = identity(paths[one.source])
        for summary, _ in one.hops:
            path = path.followed_by(summary) if path is not None else None
        if path is not None:
            edges.append(
                Arc(4 * one.source + 2 + one.output, 4 * one.target + one.input, path, exchange=False)
            )
    oracle = Tracker(Reachability(4 * len(paths), edges))
    scopes = Scopes(paths, routes, identity=identity, summaries=summaries)
    held: list[tuple[int, bool, int, Any]] = []
    for _ in range(data.draw(st.integers(1, 10))):
        if held and data.draw(st.booleans()):
            stamp, n = held.pop(data.draw(st.integers(0, len(held) - 1))), -1
        else:
            vertex = data.draw(st.integers(0, len(paths) - 1))
            time = Time(*(data.draw(st.integers(0, 3)) for _ in range(depth(paths[vertex]) + 1)))
            stamp, n = (vertex, data.draw(st.booleans()), data.draw(port), time), +1
            held.append(stamp)
        vertex, message, at, time = stamp
        oracle.update([(4 * vertex + at + 2 * (not message), time, n)])
        (scopes.message if message else scopes.capability)(vertex, time, n, port=at)
        for vertex in data.draw(st.sets(st.integers(0, len(paths) - 1), max_size=2)):
            assert scopes.frontier(vertex, port=at) == oracle.frontier(4 * vertex + at)
    for vertex in range(len(paths)):
        for at in range(2):
            assert scopes.frontier(vertex, port=at) == oracle.frontier(4 * vertex + at)


class Late(Operator):
    """A vertex that reports when it is due, and then all at once."""

    due = False

    def pull_internal_progress(self) -> Progress:
        none: list[list[Any]] = [[]]
        return super().pull_internal_progress() if self.due else Progress(none, none, none)

    def report(self, root: Subgraph) -> None:
        self.due = True
        assert self.wake is not None
        self.wake()
        root.pull_internal_progress()
        self.due = False


class Run:
    """Vertices that receive, hold and send by the rules; messages pass the ports of scopes."""

    def __init__(self, paths: list[Any], routes: list[Route]) -> None:
        self.paths, self.routes = paths, routes
        self.scopes = Scopes(paths, routes, identity=identity)
        self.path_of = {id(scope): path for path, scope in self.scopes.scopes.items()}
        self.vertex_of = {id(vertex): number for number, vertex in enumerate(self.scopes.vertices)}
        #: messages at an input: (scope, location of the input, time)
        self.messages: list[tuple[Subgraph, int, Time]] = []
        self.held: list[tuple[int, Time]] = []
        for number, vertex in enumerate(self.scopes.vertices):
            vertex.__class__ = Late
            self.hold(number, Time(0, *[0] * depth(paths[number])), +1)
            self.report(number)

    def report(self, vertex: int) -> None:
        late = self.scopes.vertices[vertex]
        assert isinstance(late, Late)
        late.report(self.scopes.root)

    def hold(self, vertex: int, time: Time, n: int) -> None:
        self.scopes.vertices[vertex].hold(0, time, n)
        (self.held.append if n > 0 else self.held.remove)((vertex, time))

    def send(self, vertex: int, time: Time) -> None:
        self.scopes.vertices[vertex].produce(0, time)
        scope = self.scopes.scopes[self.paths[vertex]]
        child = self.scopes._position[vertex]
        self.messages += self.targets(scope, scope._source(child, 0), time)

    def targets(self, scope: Subgraph, source: int, time: Time) -> list[tuple[Subgraph, int, Time]]:
        """The inputs to which a message goes from a source, through outputs of scopes."""
        found = []
        for target, summary in scope._out.get(source, ()):
            if (at := summary.results_in(time)) is None:
                continue
            if scope._operator_of[target] == OUTSIDE:
                outer = self.scopes.scopes[self.path_of[id(scope)][:-1]]
                child = outer.operators.index(scope)
                found += self.targets(outer, outer._source(child, target - scope.inputs), at)
            else:
                found.append((scope, target, at))
        return found

    def receive(self, message: tuple[Subgraph, int, Time], *, hold: bool, send: bool) -> None:
        self.messages.remove(message)
        scope, target, time = message
        child = scope._operator_of[target]
        operator = scope.operators[child]
        if isinstance(operator, Subgraph):
            port = target - scope._first[child]
            operator.enter(port, time)
            self.messages += self.targets(operator, port, time)
            return
        vertex = self.vertex_of[id(operator)]
        self.scopes.vertices[vertex].consume(0, time)
        if hold:
            self.hold(vertex, time, +1)
        if send:
            self.send(vertex, time)

    def truth(self) -> Tracker:
        tracker, todo = flat(self.paths, self.routes), list(self.messages)
        tracker.update((2 * vertex + 1, time, 1) for vertex, time in self.held)
        while todo:
            scope, target, time = todo.pop()
            child = scope._operator_of[target]
            operator = scope.operators[child]
            if isinstance(operator, Subgraph):
                todo += self.targets(operator, target - scope._first[child], time)
            else:
                tracker.update([(2 * self.vertex_of[id(operator)], time, 1)])
        return tracker


@pytest.mark.slow
@given(nested(), st.data())
def test_a_frontier_is_never_later_than_the_truth(graph: tuple[list[Any], list[Route]], data: Any) -> None:
    run = Run(*graph)
    for vertex in range(len(run.paths)):
        run.send(vertex, run.held[vertex][1])
    for _ in range(data.draw(st.integers(1, 25))):
        if run.messages and data.draw(st.integers(0, 3)):
            message = data.draw(st.sampled_from(run.messages))
            run.receive(message, hold=data.draw(st.booleans()), send=data.draw(st.booleans()))
        elif run.held:
            vertex, time = data.draw(st.sampled_from(run.held))
            if data.draw(st.booleans()):
                run.send(vertex, time)
            if data.draw(st.booleans()):
                run.hold(vertex, time, -1)
        for vertex in data.draw(st.sets(st.integers(0, len(run.paths) - 1), max_size=2)):
            run.report(vertex)
        truth = run.truth()
        for vertex, path in enumerate(run.paths):
            seen = run.scopes.scopes[path].frontier(run.scopes._position[vertex], 0)
            assert seen.dominates(truth.frontier(2 * vertex))
    for vertex in range(len(run.paths)):
        run.report(vertex)
    truth = run.truth()
    assert [run.scopes.frontier(v) for v in range(len(run.paths))] == [
        truth.frontier(2 * v) for v in range(len(run.paths))
    ]


class Foreign:
    """An operator that knows only the protocol: one input, two outputs, one of them for the next epoch."""

    inputs, outputs = 1, 2

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.progress: list[Progress] = []

    def get_internal_summary(self) -> Any:
        one, later = Antichain([PRODUCT.identity(0)]), Antichain([PRODUCT.delay(0, 1)])
        return [[one, later]], [[], [(Time(7), 1)]]

    def set_external_summary(self, summaries: Any, external: Any) -> None:
        self.said.append((summaries, external))

    def push_external_progress(self, external: Any) -> None:
        self.said.append(external)

    def pull_internal_progress(self) -> Progress:
        none: list[Any] = []
        return self.progress.pop() if self.progress else Progress([none, none], [none], [none, none])


ONE = PRODUCT.identity(0)


def test_an_operator_of_another_kind_is_polled_and_told() -> None:
    foreign, source, ends = Foreign(), Operator(0, 1), [Operator(1, 0), Operator(1, 0)]
    assert isinstance(foreign, Operate)
    connections = [Connection((0, 0), (1, 0), ONE)]
    connections += [Connection((1, o), (2 + o, 0), ONE) for o in range(2)]
    connections += [Connection((1, 1), (1, 0), PRODUCT.delay(0, 10))]
    flow = Subgraph([source, foreign, *ends], connections, inner=ONE, outer=ONE)
    source.hold(0, Time(2))
    flow.start()
    # around it there is a path from its second output to its input; its own initial work comes back at 17
    assert foreign.said.pop(0) == ([[Antichain()], [Antichain([PRODUCT.delay(0, 10)])]], [[(Time(17), 1)]])
    assert flow.frontier(2, 0) == Antichain([Time(17)])

    flow.pull_internal_progress()
    assert (flow.frontier(2, 0), flow.frontier(3, 0)) == (Antichain([Time(2)]), Antichain([Time(3)]))
    assert foreign.said == [[[(Time(17), -1), (Time(2), 1)]]]
    source.hold(0, Time(2), -1)
    foreign.progress = [Progress([[], [(Time(7), -1)]], [[]], [[], []], unreported=True)]
    assert flow.pull_internal_progress().unreported
    assert flow.frontier(3, 0) == Antichain()
    foreign.progress = [Progress([[], []], [[]], [[], []])]
    assert not flow.pull_internal_progress().unreported


def test_an_operator_is_told_the_paths_around_it_that_lead_through_the_outside() -> None:
    foreign = Foreign()
    ends = [Connection((OUTSIDE, 0), (0, 0), ONE), Connection((0, 1), (OUTSIDE, 0), ONE)]
    region = Subgraph([foreign], ends, inner=ONE, outer=ONE, inputs=1, outputs=1)
    back = Connection((0, 0), (0, 0), PRODUCT.delay(0, 10))
    Subgraph([region], [back], inner=ONE, outer=ONE).start()

    around, frontiers = foreign.said.pop(0)

    assert around == [[Antichain()], [Antichain([PRODUCT.delay(0, 10)])]]
    assert frontiers == [[(Time(17), 1)]]


def test_what_a_vertex_holds_at_first_counts_before_anything_is_pulled() -> None:
    source = Operator(0, 1)
    source.hold(0, Time(2))
    flow = Subgraph([source, Operator(1, 0)], [Connection((0, 0), (1, 0), ONE)], inner=ONE, outer=ONE)
    flow.start()
    assert flow.frontier(1, 0) == Antichain([Time(2)])

    source.hold(0, Time(2), -1)
    flow.pull_internal_progress()
    assert flow.frontier(1, 0) == Antichain()


def test_messages_of_one_time_are_counted_until_the_last_one_is_consumed() -> None:
    source, target = Operator(0, 1), Operator(1, 0)
    flow = Subgraph([source, target], [Connection((0, 0), (1, 0), ONE)], inner=ONE, outer=ONE)
    flow.start()
    source.produce(0, Time(3), 2)
    source.produce(0, Time(3))
    found = []
    for consumed in (0, 1, 2):
        target.consume(0, Time(3), consumed)
        flow.pull_internal_progress()
        found.append(flow.frontier(1, 0))

    assert found == [Antichain([Time(3)]), Antichain([Time(3)]), Antichain()]


def loop_around(step: Operator) -> Subgraph:
    return Subgraph(
        [step],
        [
            Connection((OUTSIDE, 0), (0, 0), PRODUCT.enter(0)),
            Connection((0, 0), (0, 0), PRODUCT.feedback(1)),
            Connection((0, 0), (OUTSIDE, 0), PRODUCT.leave(1)),
        ],
        inner=PRODUCT.identity(1),
        outer=ONE,
        inputs=1,
        outputs=1,
    )


def test_what_the_outside_takes_back_before_anybody_asks_counts_when_it_comes_again() -> None:
    loop = loop_around(Operator(1, 1, summary=PRODUCT.identity(1)))
    for change in (+1, -1):
        loop.push_external_progress([[(Time(4), change)]])
    assert loop.frontier(0, 0) == Antichain()
    loop.push_external_progress([[(Time(4), +1)]])

    assert loop.frontier(0, 0) == Antichain([Time(4, 0)])


def test_the_outside_hears_of_a_loop_only_what_changes_at_its_output() -> None:
    step = Operator(1, 1, summary=PRODUCT.identity(1))
    loop = loop_around(step)
    assert loop.get_internal_summary() == ([[Antichain([ONE])]], [[]])
    loop.enter(0, Time(4))
    step.consume(0, Time(4, 0))
    step.hold(0, Time(4, 0))
    assert loop.pull_internal_progress() == Progress(
        [[(Time(4), 1)]], [[(Time(4), 1)]], [[]], unreported=True
    )
    for iteration in range(3):
        step.hold(0, Time(4, iteration), -1)
        step.hold(0, Time(4, iteration + 1))
        assert loop.pull_internal_progress() == Progress([[]], [[]], [[]], unreported=True)
    step.hold(0, Time(4, 3), -1)
    step.produce(0, Time(4, 3))
    step.consume(0, Time(4, 4))
    assert loop.pull_internal_progress() == Progress([[(Time(4), -1)]], [[]], [[(Time(4), 1)]])


def test_a_cycle_through_a_scope_must_advance() -> None:
    inside = Subgraph(
        [Operator(1, 1, summary=ONE)],
        [Connection((OUTSIDE, 0), (0, 0), ONE), Connection((0, 0), (OUTSIDE, 0), ONE)],
        inner=ONE,
        outer=ONE,
        inputs=1,
        outputs=1,
    )
    with pytest.raises(CyclicTime, match="does not advance time"):
        Subgraph([inside], [Connection((0, 0), (0, 0), ONE)], inner=ONE, outer=ONE)
