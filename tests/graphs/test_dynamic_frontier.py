"""PageRank with a tolerance: its bound against the exact ranks, at every epoch and on any workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import move
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.graphs import pagerank
from timely_spark.graphs.dynamic_frontier import DynamicFrontier
from timely_spark.testing import Simulation, run

UNIT = 1_000_000
Epochs = list[list[tuple[Any, ...]]]


def flow_of(tolerance: int, kind: str = "long", **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("frontier")
    edges = flow.input("edges", f"src {kind}, dst {kind}, diff long").collection(diff="diff")
    pagerank(edges, None, tolerance=tolerance, **options).changes().capture("out")
    return flow


def exact(edges: Sequence[tuple[Any, Any]], damping: float = 0.85) -> dict[Any, float]:
    """The fixed point, by a linear system."""
    nodes = sorted({node for edge in edges for node in edge})
    number = {node: n for n, node in enumerate(nodes)}
    walk = np.zeros((len(nodes), len(nodes)))
    for a, b in edges:
        walk[number[b], number[a]] += 1
    walk /= np.maximum(walk.sum(axis=0), 1)
    ranks = np.linalg.solve(np.eye(len(nodes)) - damping * walk, np.full(len(nodes), (1 - damping) * UNIT))
    return dict(zip(nodes, ranks.tolist(), strict=True))


def near(present: Counter[Any], changes: Any, tolerance: int, damping: float = 0.85) -> bool:
    """Whether ranks are within their bound."""
    found = {row["node"]: row["rank"] for row in changes.to_pylist()}
    due = exact(list(present.elements()), damping)
    assert found.keys() == due.keys()
    off = sum(abs(found[node] - due[node]) for node in due)
    return off <= (len(due) * tolerance + present.total()) / (1 - damping)


def keeps_its_bound(epochs: Epochs, out: Any, tolerance: int, damping: float = 0.85) -> None:
    for epoch, present in enumerate(after_each(epochs)):
        assert near(present, ts.snapshot(out, at=epoch), tolerance, damping)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "tolerance"),
    in_turn(
        [
            {},
            {"workers": 2, "seed": 1},
            {"workers": 5, "seed": 2, "crashes": 0.05},
            {"workers": 3, "seed": 3, "together": True},
        ],
        [20_000, 200_000],
    ),
)
def test_ranks_keep_their_bound_in_every_epoch(changing, tolerance, how) -> None:
    epochs = changing(10, 30, 4, changes=6, seed=tolerance)

    keeps_its_bound(epochs, run(flow_of(tolerance), {"edges": epochs}, **how)["out"], tolerance)


@pytest.mark.slow
def test_ranks_depend_neither_on_workers_nor_on_schedules(changing, named) -> None:
    epochs = named(changing(12, 40, 3, seed=4))

    one, *others = (
        run(flow_of(20_000, "string"), {"edges": epochs}, workers=workers, seed=seed)["out"].rows()
        for workers, seed in ((1, None), (2, 5), (3, 6), (8, None))
    )

    assert all(one.values())
    assert others == [one] * 3


@pytest.mark.slow
@settings(max_examples=10)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14),
    cut=st.integers(0, 14),
    damping=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_what_comes_and_goes_leaves_nothing(edges, cut, damping) -> None:
    epochs = [[(*edge, 1) for edge in edges], [(*edge, -1) for edge in edges[:cut]]]
    epochs.append([(*edge, -1) for edge in edges[cut:]])

    out = run(flow_of(5000, damping=damping), {"edges": epochs}, workers=2)["out"]

    keeps_its_bound(epochs, out, 5000, damping)


def test_nodes_that_go_take_their_ranks_along() -> None:
    edges = [[(0, 1, 1), (1, 2, 1), (2, 0, 1)], [(2, 0, -1)], [(1, 2, -1)], [(0, 1, -1)]]
    out = run(flow_of(100), {"edges": edges})["out"]

    keeps_its_bound(edges[:3], out, 100)
    assert ts.snapshot(out).num_rows == 0


@pytest.mark.slow
def test_fine_ranks_are_networkx_s_with_hubs_and_sinks() -> None:
    graph = nx.DiGraph([(node, node * node % 7) for node in range(7, 600)])
    graph.add_edges_from((0, node) for node in range(7, 600, 2))
    graph.add_edges_from((node, node + 7) for node in range(593))
    out = run(flow_of(20), {"edges": [[(*edge, 1) for edge in graph.edges]]})["out"].rows()

    found = {node: rank for node, rank, _ in out[0]}

    sinks = [(node, None) for node in graph if not graph.out_degree(node)]
    graph.add_edges_from(sinks)  # what they hold is lost, and all else is in proportion
    graph.add_edges_from((None, None) for _ in sinks[:1])
    start = {node: float(node is not None) for node in graph}
    due = nx.pagerank(graph, personalization=start, tol=1e-13, max_iter=1000)
    assert {node: rank / len(found) / UNIT for node, rank in found.items()} == pytest.approx(
        {node: due[node] for node in found}, rel=1e-3
    )


@pytest.mark.slow
def test_a_flow_with_ranks_can_be_rescaled_again_and_again(changing) -> None:
    simulation, present = Simulation(flow_of(3000), workers=2), Counter[Any]()

    for changes, workers in zip(changing(12, 40, 5, changes=8, seed=9), (3, 8, 1, 2, 2), strict=True):
        simulation.send("edges", changes)
        simulation.run()
        for a, b, diff in changes:
            present[a, b] += diff
        assert near(present, ts.snapshot(simulation.captured["out"]), 3000)
        move(simulation, flow_of(3000), workers)


@pytest.mark.slow
def test_a_small_change_costs_few_records() -> None:
    draw = np.random.default_rng(1)
    given = [(*edge, 1) for edge in draw.integers(0, 2000, (10_000, 2)).tolist()]
    simulation, costs = Simulation(flow_of(10_000)), []

    for changes in (given, *([(a, b, -1)] for a, b, _ in given[:9])):
        before = len(simulation.log)
        simulation.send("edges", changes)
        simulation.run()
        costs.append(sum(result.stats["records"] for _, result in simulation.log[before:]))

    first, *later = costs
    assert 0 < max(later) < first / 50


@pytest.mark.slow
def test_edges_and_nodes_that_are_gone_take_no_room() -> None:
    simulation, sizes = Simulation(flow_of(100_000), workers=2), []
    of = [[(n, n + step, 1) for n in range(30 * at, 30 * at + 30) for step in (1, 7)] for at in range(16)]

    for at, edges in enumerate(of):
        simulation.send("edges", edges + [(a, b, -1) for a, b, _ in (of[at - 1] if at else [])])
        simulation.run()
        sizes.append(sum(len(state or b"") for state in simulation.states))

    assert max(sizes[8:]) < 1.2 * max(sizes[2:8])


def test_what_is_no_edge_cannot_be_removed() -> None:
    with pytest.raises(
        VertexError, match=r"(?s)frontier.*edge 1 to 2 was removed more often.*Hint: .*threshold"
    ):
        run(flow_of(10), {"edges": [[(1, 2, 1)], [(1, 2, -2)]]})


def test_a_rank_that_is_too_large_is_an_error() -> None:
    worker = DynamicFrontier(pa.int64(), 10**9, (17, 20), 10)
    worker._numbers(pa.chunked_array([[7]]))
    worker.present[:], worker.total[:] = True, 2**63 - 1

    with pytest.raises(SchemaError, match=r"(?s)rank is too large.*Hint: .*unit"):
        worker._move_ranks(np.array([0]))


def test_in_a_loop_ranks_have_no_tolerance() -> None:
    edges = ts.Dataflow("loop").input("edges", "src long, dst long").collection()

    with pytest.raises(
        GraphError, match=r"(?s)pagerank: .*tolerance.*test_dynamic_frontier.*Hint: .*leave the loop"
    ):
        edges.iterate(lambda left: left.semijoin(pagerank(left, None, tolerance=5), left="dst", right="node"))
