"""The progress of a whole graph, scope by scope: scopes made from a list of vertices and their routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.progress.nested.operate import Operator, Summaries
from tests.progress.nested.subgraph import OUTSIDE, Connection, Subgraph
from timely_spark.times import Antichain, PathSummary

__all__ = ("Route", "Scopes")

#: The scopes from the outermost one's child to a vertex's own; empty: the vertex is in the outermost scope.
ScopePath: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A path between two vertices, hop by hop: each hop's summary, and the scope that it leads to.

    A hop leads to the same scope, to the one around, or to one inside.
    """

    source: int
    target: int
    hops: Sequence[tuple[PathSummary, ScopePath]]
    output: int = 0
    input: int = 0


@dataclass
class _Members:
    """A scope under construction."""

    #: the positions of its vertices (a number) and scopes (a path)
    position: dict[Any, int] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    inputs: int = 0
    outputs: int = 0


class Scopes:
    """The frontiers of vertices 0, 1, .., n-1 in nested scopes; counts are applied when progress is pulled.

    Law: `frontier` equals that of one `Tracker` over all vertices.

    >>> from timely_spark.times import PRODUCT, Time
    >>> into = Route(0, 1, [(PRODUCT.enter(0), ("loop",))])
    >>> round_ = Route(1, 1, [(PRODUCT.feedback(1), ("loop",))])
    >>> out = Route(1, 2, [(PRODUCT.leave(1), ())])
    >>> scopes = Scopes(
    ...     [(), ("loop",), ()], [into, round_, out], identity=lambda path: PRODUCT.identity(len(path))
    ... )
    >>> scopes.message(1, Time(3, 4), +1)
    >>> scopes.frontier(1), scopes.frontier(2)
    (Antichain([Time(3, 4)]), Antichain([Time(3)]))

    Args:
        paths: the scopes around each vertex.
        identity: the identity summary of a scope's times.
        summaries: of vertices the summaries from each input to each output; others have one of each.
    """

    def __init__(
        self,
        paths: Sequence[ScopePath],
        routes: Iterable[Route],
        *,
        identity: Callable[[ScopePath], PathSummary],
        summaries: Mapping[int, Summaries] | None = None,
    ) -> None:
        given = [(summaries or {}).get(i, [[Antichain([identity(at)])]]) for i, at in enumerate(paths)]
        self.vertices = [Operator(len(own), len(own[0]), summaries=own) for own in given]
        self._paths = paths
        members: dict[ScopePath, _Members] = {(): _Members()}
        for vertex, path in enumerate(paths):
            for depth in range(len(path)):
                inner, outer = path[: depth + 1], members[path[:depth]]
                if inner not in members:
                    members[inner] = _Members()
                    outer.position[inner] = len(outer.position)
            members[path].position[vertex] = len(members[path].position)
        for route in routes:
            self._connect(members, route, identity)
        #: by path; inner scopes are made first
        self.scopes: dict[ScopePath, Subgraph] = {}
        for path in sorted(members, key=len, reverse=True):
            made = members[path]
            self.scopes[path] = Subgraph(
                # a vertex has a number, and an inner scope a path
                [self.vertices[n] if isinstance(n, int) else self.scopes[n] for n in made.position],
                made.connections,
                inner=identity(path),
                outer=identity(path[:-1]),
                inputs=made.inputs,
                outputs=made.outputs,
            )
        self._position = [members[path].position[vertex] for vertex, path in enumerate(paths)]
        self.root = self.scopes[()]
        self.root.start()

    def _connect(
        self, members: dict[ScopePath, _Members], route: Route, identity: Callable[[ScopePath], PathSummary]
    ) -> None:
        scope = self._paths[route.source]
        at, so_far = (members[scope].position[route.source], route.output), identity(scope)
        for summary, to in route.hops:
            if len(to) > len(scope):  # times at an input of a scope are those outside
                inner, outer = members[to], members[scope]
                outer.connections.append(Connection(at, (outer.position[to], inner.inputs), so_far))
                at, so_far, inner.inputs = (OUTSIDE, inner.inputs), summary, inner.inputs + 1
            else:
                path = so_far.followed_by(summary)
                if path is None:
                    return  # no time gets through
                so_far = path
                if len(to) < len(scope):  # and so are times at an output
                    inner, outer = members[scope], members[to]
                    inner.connections.append(Connection(at, (OUTSIDE, inner.outputs), so_far))
                    at = (outer.position[scope], inner.outputs)
                    so_far, inner.outputs = identity(to), inner.outputs + 1
            scope = to
        target = members[scope].position[route.target], route.input
        members[scope].connections.append(Connection(at, target, so_far))

    def message(self, vertex: int, time: Any, n: int, *, port: int = 0) -> None:
        """Messages to an input of a vertex: those that were sent (n > 0), or delivered (n < 0)."""
        self.vertices[vertex].consume(port, time, -n)

    def capability(self, vertex: int, time: Any, n: int, *, port: int = 0) -> None:
        """Capabilities of an output of a vertex, or an open input: acquired (n > 0), or dropped (n < 0)."""
        self.vertices[vertex].hold(port, time, n)

    def frontier(self, vertex: int, *, port: int = 0) -> Antichain[Any]:
        """The least times that may still arrive at an input of a vertex."""
        self.root.pull_internal_progress()
        return self.scopes[self._paths[vertex]].frontier(self._position[vertex], port)
