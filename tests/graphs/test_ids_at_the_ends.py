"""Ids at the ends of a long, edges that are inserted and deleted in one epoch, and graphs of loops only.

The law: an algorithm depends on the order of ids alone, so renaming them in order renames its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import timely_spark as ts
from timely_spark import graphs

LEAST, MOST = -(2**63), 2**63 - 1
NAMES = {0: LEAST, 1: LEAST + 1, 2: -1, 3: 0, 4: 1, 5: MOST - 1, 6: MOST}
#: the columns of results that are ids
IDS = {"src", "dst", "node", "component", "a", "b", "c"}
Epochs = list[list[tuple[int, int, int]]]
EDGES: dict[str, Epochs] = {
    "two circles and a path": [
        [(0, 6, 1), (6, 3, 1), (3, 2, 1), (2, 0, 1), (6, 2, 1), (5, 1, 1)],
        [(6, 3, -1), (3, 3, 1), (5, 0, 1)],
    ],
    "loops only": [[(0, 0, 1), (6, 6, 2), (3, 3, 1)], [(3, 3, -1), (6, 6, -1)]],
    "contradictory": [
        [(0, 1, 1), (0, 1, -1), (1, 2, 2), (2, 1, 1), (2, 6, 1)],
        [(1, 2, -2), (1, 2, 1), (6, 0, 1), (6, 0, -1)],
        [(1, 2, -1), (2, 1, -1), (1, 2, 1), (2, 1, 1)],
    ],
}
ALGORITHMS: dict[str, Callable[[ts.Collection], ts.Collection]] = {
    "bfs": lambda edges: graphs.bfs(edges, edges.select(node="dst").distinct().min("node")),
    "connected_components": graphs.connected_components,
    "core_numbers": graphs.core_numbers,
    "minimum_spanning_forest": lambda edges: graphs.minimum_spanning_forest(
        edges.select("src", "dst", weight="1")
    ),
    "strongly_connected_components": graphs.strongly_connected_components,
    "triangles": graphs.triangles,
}


def results(algorithm: Any, epochs: Epochs, names: dict[int, int]) -> set[tuple[Any, ...]]:
    """The changes, each with its epoch; ids as they were before they were renamed."""
    flow = ts.Dataflow("ids")
    algorithm(flow.input("edges", "src long, dst long, diff long").collection(diff="diff")).changes().capture(
        "out"
    )
    sent = [[(names[src], names[dst], diff) for src, dst, diff in epoch] for epoch in epochs]
    captured = ts.testing.run(flow, {"edges": sent}, workers=2)["out"]
    back = {name: number for number, name in names.items()}
    ids = [at for at, field in enumerate(captured.schema) if field.name in IDS]
    return {
        (epoch, *(back[value] if at in ids else value for at, value in enumerate(row)))
        for epoch, rows in captured.rows().items()
        for row in rows
    }


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_renaming_ids_in_order_renames_the_result(algorithm: str, edges: str) -> None:
    epochs, of = EDGES[edges], ALGORITHMS[algorithm]
    small = results(of, epochs, {number: number for number in NAMES})
    assert results(of, epochs, NAMES) == small
    assert small or edges != "two circles and a path"
