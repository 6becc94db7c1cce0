"""How many functions of the engine one change calls, on any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import timely_spark as ts
from tests.support.calls import calls
from timely_spark.testing import Simulation


def counted(edges: ts.Collection) -> ts.Collection:
    return edges.count("degree", keys="src")


def nearest(edges: ts.Collection) -> ts.Collection:
    return ts.graphs.bfs(edges, edges.where("src = 0").select(node="src").distinct())


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("algorithm", "most"),
    [(counted, 790), (nearest, 9_960), (ts.graphs.connected_components, 720)],
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
