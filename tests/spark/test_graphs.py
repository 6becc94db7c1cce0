"""Graph algorithms on Spark: the same answers as in the simulator, over edges that come and go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.testing import run

LONGS = "src long, dst long, diff long"
Build = Callable[[ts.Collection], ts.Collection]


def epochs() -> list[list[tuple[int, int, int]]]:
    edges = [tuple(edge) for edge in np.random.default_rng(7).integers(0, 12, (30, 2)).tolist()]
    return [
        [(*edge, 1) for edge in edges[:26]],
        [(*e, -1) for e in edges[:9]] + [(*e, 1) for e in edges[26:]],
    ]


def flow_of(algorithms: dict[str, Build]) -> ts.Dataflow:
    flow = ts.Dataflow("graphs")
    edges = flow.input("edges", LONGS).collection(diff="diff")
    for name, build in algorithms.items():
        build(edges).changes().capture(name)
    return flow


def few(edges: ts.Collection) -> ts.Collection:
    return edges.where(pc.field("src") < 2)


ALL: dict[str, Build] = {
    "betweenness": lambda edges: ts.graphs.betweenness(edges, directed=True, samples=few(edges), node="src"),
    "bfs": lambda edges: ts.graphs.bfs(edges, few(edges), node="src"),
    "cdlp": lambda edges: ts.graphs.cdlp(edges, 2),
    "colouring": ts.graphs.colouring,
    "connected_components": ts.graphs.connected_components,
    "connected_components spread": lambda edges: ts.graphs.connected_components(edges, spread=True),
    "core_numbers": ts.graphs.core_numbers,
    "distance_bounds": lambda edges: ts.graphs.distance_bounds(
        edges.select(node="src", landmark="dst", distance="src"), edges
    ),
    "k_core": lambda edges: ts.graphs.k_core(edges, 3),
    "label_propagation": lambda edges: ts.graphs.label_propagation(
        edges, edges.select("src", label="dst"), node="src", iterations=2
    ),
    "landmarks": lambda edges: ts.graphs.landmarks(edges, few(edges), node="src"),
    "lcc": lambda edges: ts.graphs.lcc(edges, directed=True),
    "maximal_independent_set": ts.graphs.maximal_independent_set,
    "minimum_spanning_forest": lambda edges: ts.graphs.minimum_spanning_forest(edges, weight=None),
    "motifs": lambda edges: ts.graphs.motifs(edges, "a->b, b->c, !c->a"),
    "pagerank": lambda edges: ts.graphs.pagerank(edges, None, tolerance=50_000),
    "sssp": lambda edges: ts.graphs.sssp(edges, few(edges), weight="dst", node="src"),
    "stable_matching": lambda edges: ts.graphs.stable_matching(
        edges.select("src", "dst", src_rank="dst", dst_rank="src")
    ),
    "strongly_connected_components": ts.graphs.strongly_connected_components,
    "triangles": ts.graphs.triangles,
}


def test_these_are_all_algorithms() -> None:
    assert {name.split()[0] for name in ALL} == {*ts.graphs.__all__}


@pytest.mark.share(4)
@pytest.mark.parametrize("part", range(4))
def test_spark_says_what_the_simulator_says(spark: SparkSession, checkpoint: str, part: int) -> None:
    algorithms = {name: ALL[name] for name in sorted(ALL)[part::4]}
    given = epochs()
    expected = run(flow_of(algorithms), {"edges": given})
    flow = flow_of(algorithms)

    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        for edges in given:
            flow.handle("edges").send(edges)
            assert query.wait_for(timeout=120)
        found = {name: query.captured(name).rows() for name in algorithms}

    assert found == {name: expected[name].rows() for name in algorithms}
    assert all(any(rows.values()) for rows in found.values())
