"""The body of the loops of many tests: one hop along edges, of streams and of collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timely_spark as ts


def hop(edges: ts.Stream) -> Callable[[ts.Stream], ts.Stream]:
    """The step of a loop that adds the nodes that edges lead to."""

    def step(near: ts.Stream) -> ts.Stream:
        targets = near.join(near.scope.enter(edges), left=["node"], right=["src"]).select(node="dst")
        return targets.concat(near).distinct(name="near")

    return step


def hop_from(roots: ts.Collection, edges: Any) -> Callable[[ts.Collection], ts.Collection]:
    """The step of an iteration: the roots, and the nodes that edges, perhaps arranged, lead to."""

    def step(near: ts.Collection) -> ts.Collection:
        links = near.join(edges, left="node", right="src").select(node="dst")
        return links.concat(roots).distinct(name="near")

    return step
