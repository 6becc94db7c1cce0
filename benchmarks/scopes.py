"""Progress scope by scope against one flat tracker: what paths and a round cost. Part of `progress`.

The synthetic graph is a chain of loops, each a ring of 30 steps. "ours" is the scoped tracker, "baseline" the
flat one. Paths: the minimal summaries from each location that leads to a step, for all steps, which a
notification anywhere may need; scoped, the same for each scope. Then a round: a record goes on by one step
inside a loop; or the input advances by an epoch, and the frontier of the last step, or of all, is read.

Real flows run in the simulator, and both trackers get their counts, round by round.
"""

from __future__ import annotations

import time as clock
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import timely_spark as ts
from benchmarks.harness import Report, median
from tests.progress.nested import Route, Scopes
from timely_spark.compiler import Plan
from timely_spark.coordinator import Coordinator
from timely_spark.progress import Arc, Reachability, Tracker
from timely_spark.testing import Simulation
from timely_spark.times import PRODUCT, Time

SCOPE = 30


def chain(steps: int) -> tuple[list[Any], list[Route]]:
    """An input, loops of `SCOPE` steps one after the other, and an end."""
    paths, routes = [(), *((f"loop{i // SCOPE}",) for i in range(steps)), ()], []
    for v in range(steps + 1):
        source, target = paths[v], paths[v + 1]
        if source == target:
            routes.append(Route(v, v + 1, [(PRODUCT.identity(1), target)]))
            continue
        leave = [(PRODUCT.leave(1), ())] if source else []
        routes.append(Route(v, v + 1, leave + ([(PRODUCT.enter(0), target)] if target else [])))
    for first in range(1, steps + 1, SCOPE):
        last = min(first + SCOPE, steps + 1) - 1
        routes.append(Route(last, first, [(PRODUCT.feedback(1), paths[last])]))
    return paths, routes


def flat(paths: list[Any], routes: list[Route]) -> Tracker:
    """One tracker: vertex v receives at location 2v, and sends at 2v+1."""
    identities = [PRODUCT.identity(len(path)) for path in paths for _ in range(2)]
    edges = [Arc(2 * v, 2 * v + 1, identities[2 * v], exchange=False) for v in range(len(paths))]
    for route in routes:
        summary = identities[2 * route.source]
        for hop, _ in route.hops:
            summary = summary.followed_by(hop)  # type: ignore[assignment] # there is no limit
        edges.append(Arc(2 * route.source + 1, 2 * route.target, summary, exchange=False))
    return Tracker(Reachability(2 * len(paths), edges, identities=identities))


def scoped(paths: list[Any], routes: list[Route]) -> Scopes:
    return Scopes(paths, routes, identity=lambda path: PRODUCT.identity(len(path)))


def all_paths(reach: Reachability) -> None:
    for location in range(reach.n):
        reach.summaries(location)


def measured(function: Callable[[], object]) -> float:
    """Milliseconds."""
    began = clock.perf_counter()
    function()
    return 1e3 * (clock.perf_counter() - began)


def rounds(act: Callable[[int], object], count: int) -> float:
    """Microseconds per round, the median."""
    return median(1e3 * measured(lambda i=i: act(i)) for i in range(count))


def synthetic(report: Report, *, quick: bool) -> None:
    size, small = (3000, 300) if quick else (10_000, 1000)
    for steps in (small, size):
        paths, routes = chain(steps)
        scopes = scoped(paths, routes)
        of_scopes = sum(measured(partial(all_paths, s.reachability)) for s in scopes.scopes.values())
        of_flat = measured(partial(all_paths, flat(paths, routes).reachability)) if steps == small else None
        report.add(
            f"paths: {steps:,} steps in scopes of {SCOPE}",
            ours=of_scopes,
            baseline=of_flat,
            against="one flat graph",
            unit="ms",
            aim=">=1x" if of_flat is not None else "",
            note="" if of_flat is not None else "flat: not run, its paths grow with the square",
        )
    oracle, count = flat(paths, routes), 30 if quick else 100
    built = measured(lambda: scoped(paths, routes)), measured(lambda: flat(paths, routes))
    report.add(f"building: {size:,} steps", ours=built[0], baseline=built[1], against="flat", unit="ms")
    last, middle = len(paths) - 1, len(paths) // 2

    def both(name: str, one: Callable[[int], object], other: Callable[[int], object]) -> None:
        report.add(
            f"{name}: {size:,} steps",
            ours=rounds(one, count),
            baseline=rounds(other, count),
            against="flat",
            unit="us",
        )

    scopes.message(middle, Time(0, 0), 1)
    oracle.update([(2 * middle, Time(0, 0), 1)])
    both(
        "an iteration inside a loop",
        lambda i: (
            [scopes.message(middle, Time(0, i + n), 2 * n - 1) for n in (0, 1)] + [scopes.frontier(last)]
        ),
        lambda i: [
            oracle.update([(2 * middle, Time(0, i + n), 2 * n - 1) for n in (0, 1)]),
            oracle.frontier(2 * last),
        ],
    )
    scopes.message(middle, Time(0, count), -1)
    oracle.update([(2 * middle, Time(0, count), -1)])
    scopes.capability(0, Time(0), 1)
    oracle.input_at(0, None, Time(0))

    def epoch(i: int) -> None:
        scopes.capability(0, Time(i), -1)
        scopes.capability(0, Time(i + 1), 1)

    both(
        "an epoch, one frontier read",
        lambda i: [epoch(i), scopes.frontier(last)],
        lambda i: [oracle.input_at(0, Time(i), Time(i + 1)), oracle.frontier(2 * last)],
    )
    everywhere = range(len(paths))
    both(
        "an epoch, all frontiers read",
        lambda i: [epoch(count + i), [scopes.frontier(v) for v in everywhere]],
        lambda i: [
            oracle.input_at(0, Time(count + i), Time(count + i + 1)),
            [oracle.frontier(2 * v) for v in everywhere],
        ],
    )


# -- real flows ----------------------------------------------------------------------------------------------


def of_plan(plan: Plan) -> Scopes:
    """The scopes of a plan; its inputs are counts at the vertices that receive them."""
    paths = [node.stage.scope.path[1:] for node in plan.nodes]
    routes = [
        Route(c.source, c.target, [(edge.target.summary, edge.target.scope.path[1:]) for edge in c.edges])
        for c in plan.channels
        if c.source is not None
    ]
    return Scopes(paths, routes, identity=lambda path: plan.times.identity(len(path)))


def recorded(flow: ts.Dataflow, data: dict[str, Any], epochs: int) -> tuple[Plan, list[Any]]:
    """The plan of a flow, and the calls of its tracker in a run, round by round."""
    calls: list[list[tuple[str, tuple[Any, ...]]]] = [[]]

    def noting(name: str) -> Any:
        plain = getattr(Tracker, name)

        def noted(tracker: Tracker, *arguments: Any) -> Any:
            arguments = tuple(list(each) if name == "update" else each for each in arguments)
            calls[-1].append((name, arguments))
            return plain(tracker, *arguments)

        return mock.patch.object(Tracker, name, noted)

    def applied(coordinator: Coordinator, *arguments: Any, **how: Any) -> Any:
        calls.append([])
        return apply_round(coordinator, *arguments, **how)

    apply_round = Coordinator.apply_round
    with noting("update"), noting("input_at"), mock.patch.object(Coordinator, "apply_round", applied):
        simulation = Simulation(flow, workers=4)
        for _ in range(epochs):
            for source, rows in data.items():
                simulation.send(source, rows)
            simulation.run()
    return simulation.coordinator.plan, [part for part in calls if part]


def replay(plan: Plan, calls: Any) -> tuple[float, float, int]:
    """Microseconds per round of the scoped and of the flat tracker, which must agree; and the vertices."""
    ends = [node for node in plan.nodes if node.stage.kind.is_end]
    tracker, scopes = Tracker(plan.reach), of_plan(plan)
    taken: dict[str, list[float]] = defaultdict(list)
    for part in calls:
        began = clock.perf_counter()
        for name, arguments in part:
            getattr(tracker, name)(*arguments)
        flat = [tracker.frontier(node.arrives) for node in ends]
        taken["flat"].append(clock.perf_counter() - began)
        began = clock.perf_counter()
        for name, arguments in part:
            if name == "input_at":
                at, old, new = arguments
                for time, n in ((old, -1), (new, 1)):
                    if time is not None:
                        scopes.message(at // 2, time, n)
                continue
            for at, time, n in arguments[0]:
                (scopes.capability if at % 2 else scopes.message)(at // 2, time, n)
        nested = [scopes.frontier(node.index) for node in ends]
        taken["scoped"].append(clock.perf_counter() - began)
        assert flat == nested, (flat, nested)
    return 1e6 * median(taken["scoped"]), 1e6 * median(taken["flat"]), len(plan.nodes)


def real(report: Report, flows: dict[str, tuple[Callable[[], ts.Dataflow], str, Any]]) -> None:
    for name, (build, source, data) in flows.items():
        plan, calls = recorded(build(), {source: data}, epochs=3)
        ours, baseline, vertices = replay(plan, calls)
        report.add(f"{name}, {vertices} vertices", ours=ours, baseline=baseline, against="flat", unit="us")
