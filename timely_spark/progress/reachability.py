"""The graph of locations: could-result-in by path summaries, and the check that every cycle advances time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timely_spark.errors import CyclicTime
from timely_spark.times import Antichain, PathSummary


@dataclass(frozen=True, slots=True)
class Arc:
    """An edge between two locations, with its path summary; `exchange`: it may lead to another worker.

    >>> from timely_spark.times import PRODUCT
    >>> Arc(0, 1, PRODUCT.identity(0), exchange=True).target
    1
    """

    source: int
    target: int
    summary: PathSummary
    exchange: bool


#: The minimal summaries of the paths from each location to a target.
Paths = dict[int, Antichain[PathSummary]]


class Reachability:
    """The could-result-in relation of a graph with the locations 0, 1, .., n-1.

    Law: a pointstamp (t, l) could result in (u, m) iff ``s.results_in(t) <= u`` for some ``s`` in
    ``summaries(m)[l]``. It is a partial order because every cycle advances time, which is checked here.

    Args:
        identities: The identity summary of each location, which the searches for paths need.
        relays: Locations at which `Tracker` keeps no counts of what passes: it follows two edges at once.
            Each has one edge into it, which is not an exchange and comes from a location that is not a relay.

    Raises:
        CyclicTime: A cycle need not advance time, even if a limit ends it.

    Source: Naiad section 2.3.

    >>> from timely_spark.times import PRODUCT
    >>> one, loop, iteration = PRODUCT.identity(0), PRODUCT.identity(1), PRODUCT.feedback(1)
    >>> ends = Arc(0, 1, PRODUCT.enter(0), False), Arc(1, 2, PRODUCT.leave(1), False)
    >>> graph = Reachability(3, [*ends, Arc(1, 1, iteration, True)], identities=[one, loop, one])
    >>> graph.summaries(2)[0] == Antichain([one])
    True
    >>> Reachability(2, [Arc(0, 1, one, False), Arc(1, 0, one, True)])
    Traceback (most recent call last):
    ...
    timely_spark.errors.CyclicTime: the cycle of locations 0 -> 1 -> 0 does not advance time: ...
    """

    def __init__(
        self,
        n: int,
        edges: Iterable[Arc],
        *,
        identities: Sequence[PathSummary] = (),
        relays: Iterable[int] = (),
    ) -> None:
        self.n = n
        self.edges = tuple(edges)
        self.identities = tuple(identities)
        #: For each location the edges out of it, and into it.
        self.out: list[list[Arc]] = [[] for _ in range(n)]
        self.into: list[list[Arc]] = [[] for _ in range(n)]
        for edge in self.edges:
            assert 0 <= edge.source < n, edge
            assert 0 <= edge.target < n, edge
            self.out[edge.source].append(edge)
            self.into[edge.target].append(edge)
        self.relays = frozenset(relays)
        for location in self.relays:
            (edge,) = self.into[location]
            assert not edge.exchange, edge
            assert edge.source not in self.relays, edge
        #: For each location the edges to the next ones that are not relays.
        self.onward = [self._onward(location) for location in range(n)]
        #: For each location its position among the graph's components, then inside its component, and so on.
        self._places = _places(n, self.edges)
        self._paths_to: dict[int, tuple[Paths, Paths]] = {}
        self._paths_from: dict[int, tuple[Paths, Paths]] = {}

    def _onward(self, location: int) -> list[Arc]:
        onward = [edge for edge in self.out[location] if edge.target not in self.relays]
        return onward + [
            Arc(location, then.target, summary, then.exchange)
            for edge in self.out[location]
            if edge.target in self.relays
            for then in self.out[edge.target]
            if (summary := edge.summary.followed_by(then.summary)) is not None
        ]

    def order(self, location: int, key: Sequence[object]) -> tuple[object, ...]:
        """A total order of pointstamps (location, ``time.order_key()``) that extends could-result-in.

        Law: every edge strictly increases the order. So each pointstamp is handled once in this order.
        """
        places = self._places[location]
        if len(places) == 1:
            return (places[0], *key)
        together: list[object] = []
        for pair in zip(places, key, strict=False):
            together += pair
        both = min(len(places), len(key))
        return (*together, *places[both:], *key[both:])

    def summaries(self, target: int) -> Paths:
        """For each location that leads to the target: the minimal summaries of all paths, also empty ones.

        Computed on first use, by a search backwards from the target.
        """
        return self._to(target)[0]

    def exchanged(self, target: int) -> Paths:
        """For each location that leads to the target by an exchange: the minimal summaries of such paths.

        >>> from timely_spark.times import PRODUCT
        >>> one = PRODUCT.identity(0)
        >>> graph = Reachability(3, [Arc(0, 1, one, True), Arc(1, 2, one, False)], identities=[one] * 3)
        >>> sorted(graph.summaries(2)), sorted(graph.exchanged(2))
        ([0, 1, 2], [0])
        """
        return self._to(target)[1]

    def paths_from(self, source: int) -> tuple[Paths, Paths]:
        """For each location that the source leads to: minimal summaries of all paths, and with an exchange.

        Law: equal to `summaries` and `exchanged` of all targets, by one search forwards from the source.

        >>> from timely_spark.times import PRODUCT
        >>> one = PRODUCT.identity(0)
        >>> graph = Reachability(3, [Arc(0, 1, one, True), Arc(1, 2, one, False)], identities=[one] * 3)
        >>> [sorted(paths) for paths in graph.paths_from(0)]
        [[0, 1, 2], [1, 2]]
        """
        if source not in self._paths_from:
            self._paths_from[source] = self._search(source, forwards=True)
        return self._paths_from[source]

    def may_lead(self, source: int, target: int) -> bool:
        """False if the order of the graph's components rules out a path."""
        return self._places[source][0] <= self._places[target][0]

    def _to(self, target: int) -> tuple[Paths, Paths]:
        if target not in self._paths_to:
            self._paths_to[target] = self._search(target, forwards=False)
        return self._paths_to[target]

    def _search(self, start: int, *, forwards: bool) -> tuple[Paths, Paths]:
        # by[x]: paths without (0) or with (1) an exchange. The search ends, because of infinitely many
        # summaries one is <= a later one (Dickson's lemma), which is not added.
        assert len(self.identities) == self.n, "the paths to a location need the identities of all locations"
        by: tuple[Paths, Paths] = ({}, {})
        todo: deque[tuple[int, int, PathSummary]] = deque()

        def visit(location: int, crossed: int, summary: PathSummary) -> None:
            if by[crossed].setdefault(location, Antichain()).insert(summary):
                todo.append((location, crossed, summary))

        visit(start, 0, self.identities[start])
        while todo:
            location, crossed, path = todo.popleft()
            if path not in by[crossed][location].elements:
                continue  # a smaller summary is stored by now
            for edge in self.out[location] if forwards else self.into[location]:
                first, then = (path, edge.summary) if forwards else (edge.summary, path)
                summary = first.followed_by(then)
                if summary is not None:
                    visit(edge.target if forwards else edge.source, crossed or int(edge.exchange), summary)
        either = {location: paths.copy() for location, paths in by[0].items()}
        for location, paths in by[1].items():
            either.setdefault(location, Antichain()).extend(paths)
        return either, by[1]


def _places(n: int, edges: Sequence[Arc]) -> list[tuple[int, ...]]:
    """Positions of the locations in nested topological orders; raises `CyclicTime` if there are none.

    The first position is that of the strongly connected component. Inside a component (a loop context) each
    edge must keep the first coordinate of time, or the cycle through the edge does not advance. So the
    coordinate never decreases there. Without the edges that increase the coordinate, the components of the
    rest give the second position; with the next coordinate the third; and so on. The work is linear: each
    edge is visited once per loop around it.
    """
    places: list[list[int]] = [[] for _ in range(n)]
    todo: list[tuple[Sequence[int], Sequence[Arc], int]] = [(range(n), edges, 0)]
    while todo:
        locations, among, coordinate = todo.pop()
        components = _components(locations, among)
        component = {location: i for i, members in enumerate(components) for location in members}
        inside: dict[int, list[Arc]] = {}
        for edge in among:
            if component[edge.source] == component[edge.target]:
                inside.setdefault(component[edge.source], []).append(edge)
        for location, i in component.items():
            places[location].append(i)
        for i, connected in inside.items():
            remaining = []
            for edge in connected:
                advances = edge.summary.advances
                if len(advances) <= coordinate:
                    raise CyclicTime.around(_cycle(edge, connected))
                if not advances[coordinate]:
                    remaining.append(edge)
            todo.append((components[i], remaining, coordinate + 1))
    return [tuple(place) for place in places]


def _cycle(first: Arc, edges: Iterable[Arc]) -> list[int]:
    """The locations of a shortest cycle through an edge."""
    out: dict[int, list[int]] = {}
    for edge in edges:
        out.setdefault(edge.source, []).append(edge.target)
    back = {first.target: first.source}
    todo = deque([first.target])
    while first.source not in back:
        location = todo.popleft()
        for target in out.get(location, ()):
            if target not in back:
                back[target] = location
                todo.append(target)
    path = [first.source]
    while path[-1] != first.target:
        path.append(back[path[-1]])
    return [first.source, *reversed(path[1:])]


def _components(locations: Iterable[int], edges: Iterable[Arc]) -> list[list[int]]:
    """The strongly connected components, in topological order (Gabow 2000, without recursion)."""
    out: dict[int, list[int]] = {location: [] for location in locations}
    for edge in edges:
        out[edge.source].append(edge.target)
    done = len(out)
    #: the position on the stack, or `done`
    place: dict[int, int] = {}
    stack: list[int] = []
    #: positions on the stack where components may begin
    begins: list[int] = []
    components: list[list[int]] = []
    todo = list(out)
    while todo:
        location = todo.pop()
        if location < 0:  # all successors of ~location were visited
            begin = place[~location]
            if begins[-1] == begin:
                begins.pop()
                components.append(stack[begin:])
                place.update(dict.fromkeys(stack[begin:], done))
                del stack[begin:]
        elif location not in place:
            place[location] = len(stack)
            begins.append(len(stack))
            stack.append(location)
            todo.append(~location)
            todo += out[location]
        else:
            while begins and place[location] < begins[-1]:
                begins.pop()
    return components[::-1]
