"""The body of the loops of many tests: one hop along edges, of streams and of collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timely_spark as ts


def hop(edges: ts.Stream, node: str = "node") -> Callable[[ts.Stream], ts.Stream]:
    """The step of a loop that adds the nodes that edges lead to."""

    def step(near: ts.Stream) -> ts.Stream:
        targets = near.join(near.scope.enter(edges), left=[node], right=["src"]).select(**{node: "dst"})
        return targets.concat(near).distinct(name="near")

    return step


def spread(
    edges: ts.Stream, value: str = "label", further: Any = None, *, exact: bool = False
) -> Callable[[ts.Stream], tuple[ts.Stream, ts.Stream]]:
    """The step of a loop that spreads the least values along edges.

    Args:
        value: the column of the values.
        further: what goes on; by default the value itself.
        exact: iterations are kept in step.
    """

    def step(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        least = proposed.min(value, keys=["node"], name="least")
        links = proposed.scope.enter(edges)
        targets = (least.settle() if exact else least).join(links, left=["node"], right=["src"])
        return targets.select(node="dst", **{value: value if further is None else further}), least

    return step


def hop_from(roots: ts.Collection, edges: Any) -> Callable[[ts.Collection], ts.Collection]:
    """The step of an iteration: the roots, and the nodes that edges, perhaps arranged, lead to."""

    def step(near: ts.Collection) -> ts.Collection:
        links = near.join(edges, left="node", right="src").select(node="dst")
        return links.concat(roots).distinct(name="near")

    return step


def to_next_key(sums: ts.Stream) -> ts.Stream:
    """The step of a loop in which the sum of a key, and one more, becomes that of the next of four keys."""
    one = sums.group_by("k").aggregate(v=("sum", "v"), per="time")
    return one.map(lambda row: ((row.k + 1) % 4, row.v + 1), "k long, v long")
