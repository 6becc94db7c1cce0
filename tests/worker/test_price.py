"""How many functions of the engine one change calls, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import timely_spark as ts
from timely_spark.testing import Simulation

PACKAGE = str(Path(ts.__file__).parent)
#: What only simulates is none of the engine.
SIMULATES = tuple(f"{PACKAGE}/{name}.py" for name in ("testing", "schedules", "simulated"))


def calls(run: Callable[[], object]) -> int:
    """The calls of functions of the engine, without comprehensions, which newer Pythons do not call."""
    count = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        code = frame.f_code
        engine = code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(SIMULATES)
        count += event == "call" and engine and not code.co_name.startswith("<")

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def counted(edges: ts.Collection) -> ts.Collection:
    return edges.count("degree", keys="src")


def nearest(edges: ts.Collection) -> ts.Collection:
    return ts.graphs.bfs(edges, edges.where("src = 0").select(node="src").distinct())


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [(counted, 850), (nearest, 10_200), (ts.graphs.connected_components, 780)],
)
def test_a_change_calls_few_functions(algorithm: Callable[..., ts.Collection], most: int) -> None:
    flow = ts.Dataflow("price")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    algorithm(edges).changes().capture("out")
    simulation = Simulation(flow, workers=1)
    for changes in ([(n, n + 1, 1) for n in range(20)], [(3, 9, 1)], [(3, 9, -1)]):
        simulation.send("edges", changes)
        simulation.run()

    simulation.send("edges", [(3, 9, 1)])
    assert calls(simulation.run) <= most
