"""From a graph to a plan: which stages become vertices, which run on channels, and which channels exchange.

Every exchange costs a round. So routing and per-batch stages are fused into channels; stages run at the
sources, before Spark's own shuffle, if they can; and an exchange is elided where the records already have the
partitioning that the next stage requires.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from graphlib import CycleError as Unsortable
from graphlib import TopologicalSorter
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Channel, Node, Plan, PlanInput, Through
from timely_spark.errors import CycleError, CyclicTime, GraphError, SchemaError
from timely_spark.graph import (
    Edge,
    Forward,
    Kind,
    LogicalGraph,
    LoopContext,
    Partition,
    Stage,
    Stateless,
    as_table,
)
from timely_spark.graph.stage import closure, edges_into
from timely_spark.graph.suggest import a_type
from timely_spark.progress import Arc as Path
from timely_spark.progress import Reachability
from timely_spark.times import PathSummary


class BeforeExchange(Stateless):
    """A vertex's `before_exchange` of one input, as a per-batch stage of the channels to that input."""

    def __init__(self, function: Callable[[int, pa.Table], pa.Table], edge: int, *, by_user: bool) -> None:
        self.function, self.edge, self.by_user = function, edge, by_user

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The batch that the vertex receives; a user's one is copied, as what he sends is."""
        result = self.function(self.edge, batch)
        if not self.by_user:
            return (result,)
        if not isinstance(result, pa.Table):
            msg = f"before_exchange returns {a_type(result)}, not a table"
            raise SchemaError(msg, hint="return an Arrow table.")
        return (as_table(result, result.schema),)


#: a stage with several readers and more routes to it than this may become a vertex
_ROUTES = 16


def compile_plan(graph: LogicalGraph, workers: int) -> Plan:
    """Compile a graph."""
    return _Compiler(graph, workers).plan()


class _Compiler:
    def __init__(self, graph: LogicalGraph, workers: int) -> None:
        self.graph, self.workers = graph, workers
        self.into = edges_into(graph.edges)
        self.out: dict[Stage, list[Edge]] = defaultdict(list)
        for edge in graph.edges:
            self.out[edge.source].append(edge)
        for stage in graph.stages:
            if stage.kind is Kind.FEEDBACK and not self.into[stage]:
                msg = f"the loop variable {stage.name!r} ({stage.where}) is never fed"
                raise GraphError(msg, hint="call variable.feed(stream) once, or variable.set(collection).")
        self.before_exchange: dict[tuple[Stage, int], Stage] = {}
        self.ends: dict[tuple[Stage, int], list[tuple[Through, LoopContext]]] = defaultdict(list)
        self.at_sources = self._at_sources()
        self.exchanged: dict[int, Partition] = {}
        self.elided: dict[int, Partition] = {}
        self._chosen: dict[Stage, Partition] = {}
        for edge in sorted(graph.edges, key=lambda edge: edge.target.is_routing):  # user's exchanges last
            stage = edge.target
            need = stage.requires[edge.input] if edge.input < len(stage.requires) else None
            if need is not None and not (stage.is_routing and stage in self._chosen):
                self._require(edge, need)
        self.vertices = self._vertices()
        self.numbers = {s: i for i, s in enumerate(s for s in graph.stages if s in self.vertices)}
        self.channels: list[Channel] = []
        self._check_regions()

    def _check_regions(self) -> None:
        """Check that the steps of a region get records on its workers only."""
        for stage in self.graph.stages:
            if stage.workers is not None and max(stage.workers) >= self.workers:
                msg = f"{stage.name!r} is in a region on workers {stage.workers}; the flow has {self.workers}"
                raise GraphError(
                    msg,
                    where=stage.where,
                    hint="start(workers=...) with more workers, or name others in region().",
                )
        for edge in self.graph.edges:
            to = edge.target
            if to.workers is None or to.is_routing or to.is_stateless or to.kind.is_end:
                continue
            if not self._arrives_on(edge, to.workers, set()):
                msg = f"{to.name!r} is in a region on workers {to.workers} and gets records from any worker"
                hint = "say by which columns it is partitioned, or put exchange(...) before it in the region."
                raise GraphError(msg, where=to.where, hint=hint)

    def _arrives_on(self, edge: Edge, workers: tuple[int, ...], seen: set[int]) -> bool:
        by, source = self.exchanged.get(edge.index) or self.elided.get(edge.index), edge.source
        if by is not None:
            return by.workers == workers
        if edge.index in seen:  # around a loop, or by another path
            return True
        if not source.is_routing and not source.is_stateless:
            return source.workers == workers
        seen.add(edge.index)
        into = self.into[source]
        return bool(into) and all(self._arrives_on(one, workers, seen) for one in into)

    # -- stages at the sources, and exchanges ----------------------------------------------------------------

    def _at_sources(self) -> set[Stage]:
        """Sources, and routing and per-batch stages with such inputs only: they run in the sources' tasks."""
        at_sources: set[Stage] = set()
        for stage in self.graph.stages:  # a stage comes after its inputs, except over a feedback
            edges = self.into[stage]
            if stage.is_source or (
                (stage.is_routing or stage.is_stateless)
                and edges
                and stage.kind not in {Kind.FEEDBACK, Kind.VARIABLE, Kind.EXCHANGE}
                and all(edge.source in at_sources for edge in edges)
            ):
                at_sources.add(stage)
        return at_sources

    def _require(self, edge: Edge, need: Partition) -> None:
        if need.copies or not self._partitioned(edge.source, need):
            self.exchanged[edge.index] = need
        else:
            self.elided[edge.index] = need

    def _partitioned(self, stage: Stage, need: Partition) -> bool:
        """Whether the output is partitioned as `need` says, or can be without an exchange after the stage.

        A stage that preserves the columns passes the requirement on to its inputs: an exchange at the sources
        is free, and records of a feedback that are partitioned already need none.
        """
        if (
            not stage.is_routing
            or stage in self.at_sources
            or stage in self._chosen
            or stage.requires[0] is not None
            or stage.workers != need.workers
        ):
            return self._already_partitioned(stage, need)
        self._chosen[stage] = need
        for edge in self.into[stage]:
            self._require(edge, need)
        return True

    def _already_partitioned(self, stage: Stage, need: Partition) -> bool:
        """Whether the output is partitioned as `need` says, which per-batch stages may preserve."""
        if stage.guarantees is not None or stage in self._chosen:
            return need == (stage.guaranteed if stage.guarantees is not None else self._chosen[stage])
        if stage in self.at_sources:
            return False
        if stage.is_routing:
            return need == stage.requires[0]
        if stage.keeps is None or (before := need.renamed(stage.keeps)) is None:
            return False
        if not stage.is_stateless and stage.requires == (None,) and stage.workers == need.workers:
            # the stage accepts any partitioning, so choose the one that its readers need
            self._chosen[stage] = need
            self._require(self.into[stage][0], before)
            return True
        return all(
            edge.index not in self.exchanged and self._partitioned(edge.source, before)
            for edge in self.into[stage]
        )

    # -- which stages become vertices ------------------------------------------------------------------------

    def _vertices(self) -> set[Stage]:
        vertices = {s for s in self.graph.stages if s.vertex is not None and not s.is_stateless}
        # each copy of a broadcast record counts, so a broadcast arrives before the next exchange
        vertices |= {s for s in self.graph.stages if s.kind is Kind.BROADCAST and self._exchanged_again(s)}
        while more := self._sharing_work(vertices):
            vertices |= more
        variables = [stage for stage in self.graph.stages if stage.kind is Kind.VARIABLE]
        vertices |= {stage for stage in variables if self._in_vertexless_cycle(stage, vertices)}
        return vertices | self._with_many_routes(vertices)

    def _sharing_work(self, vertices: set[Stage]) -> set[Stage]:
        """Stages whose work would be repeated on channels: for each reader, or behind an exchange."""
        behind = self._behind_exchange(vertices)
        stages = set()
        for stage in self.graph.stages:
            if stage not in vertices and not stage.is_source:
                shared = len(self.out[stage]) > 1
                if (
                    stage.is_stateless or shared
                    if stage in behind
                    else stage.is_stateless and shared and stage not in self.at_sources
                ):
                    stages.add(stage)
        return stages

    def _with_many_routes(self, vertices: set[Stage]) -> set[Stage]:
        """Stages where the number of channels would multiply: k diamonds in a row have 2^k routes.

        Such a stage has several readers, and more routes to it than `_ROUTES` and than stages on the routes;
        a concat of many streams has fewer. Stages without vertices form no cycles, so they have an order.
        """
        before = {
            stage: [edge.source for edge in self.into[stage]]
            for stage in self.graph.stages
            if stage not in vertices
        }
        stages: set[Stage] = set()
        routes: dict[Stage, int] = {}
        for stage in TopologicalSorter(before).static_order():
            if stage in vertices or stage.is_source:
                routes[stage] = 1
                continue
            routes[stage] = sum(routes[source] for source in before[stage])
            if routes[stage] <= _ROUTES or len(self.out[stage]) < 2:
                continue
            on_routes = closure([stage], lambda s: () if s in stages else before.get(s, ()))
            if routes[stage] > len(on_routes):
                stages.add(stage)
                routes[stage] = 1
        return stages

    def _exchanged_again(self, stage: Stage) -> bool:
        """Whether an exchange follows with only routing in between."""
        return any(
            edge.index in self.exchanged or (edge.target.is_routing and self._exchanged_again(edge.target))
            for edge in self.out[stage]
            if edge.target.kind is not Kind.FEEDBACK
        )

    def _behind_exchange(self, vertices: set[Stage]) -> set[Stage]:
        """The stages to which an exchange leads with no vertex between."""

        def routed(stage: Stage) -> Iterable[Stage]:
            passes = stage.is_routing and stage not in vertices
            return (edge.target for edge in self.out[stage]) if passes else ()

        return closure((edge.target for edge in self.graph.edges if edge.index in self.exchanged), routed)

    def _in_vertexless_cycle(self, start: Stage, vertices: set[Stage]) -> bool:
        """Whether a stage is in a cycle without a vertex."""

        def following(stage: Stage) -> set[Stage]:
            return {edge.target for edge in self.out[stage]} - vertices

        return start in closure(following(start), following)

    # -- the plan --------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        graph = self.graph
        stages, number, positions = list(self.numbers), self.numbers, _positions(graph)
        inputs = []
        for stage in graph.stages:
            if stage.is_source:
                outputs = [self._channels_from(stage, port) for port in range(len(stage.outputs))]
                late = () if stage.epochs in {"clock", "manual"} else chain.from_iterable(outputs[1:])
                bad = () if stage.quarantined is None else outputs[stage.quarantined]
                entries = tuple(chain.from_iterable(outputs))
                inputs.append(
                    PlanInput(stage.name, stage, stage.epochs, entries, frozenset(late), frozenset(bad))
                )
        if not inputs and not any(s.vertex and tuple(s.vertex.initial) for s in stages):
            msg = f"flow {graph.name!r} has no input"
            raise GraphError(msg, hint="add flow.source(...) or flow.input(...).")
        counted, ports = self._counted(), self._ports()
        nodes = tuple(
            Node(
                index=number[stage],
                stage=stage,
                template=stage.vertex if stage.vertex is not None else Forward(),
                waits=stage.vertex is not None and stage.vertex.waits,
                out=tuple(self._channels_from(stage, port) for port in range(len(stage.outputs))),
                path=positions[stage],
                ignored_counters=frozenset(
                    i for i, scope in enumerate(stage.scope.path[1:]) if scope not in counted
                ),
                ports=ports.get(stage, ()),
            )
            for stage in stages
        )
        return Plan(
            name=graph.name,
            workers=self.workers,
            times=graph.every_time,
            nodes=nodes,
            channels=tuple(self.channels),
            inputs=tuple(inputs),
            reach=self._reachability(nodes),
            stages=tuple(sorted(graph.stages, key=positions.__getitem__)),
            edges=tuple(graph.edges),
            exchanged=self.exchanged,
            elided=self.elided,
            ends={(number[s], port): ways for (s, port), ways in self.ends.items() if s in number},
        )

    def _channels_from(self, start: Stage, port: int) -> tuple[int, ...]:
        """Add the channels of an output of a vertex or source; returns their numbers."""
        source, first = self.numbers.get(start), len(self.channels)
        for through, edges, summary, exchange in self._routes(start, port):
            edge = edges[-1]
            before = self._before_exchange(edge.target, edge.input)
            self.channels.append(
                Channel(
                    index=len(self.channels),
                    source=source,
                    target=self.numbers[edge.target],
                    input=edge.input,
                    through=through if before is None else (*through, (before, 0)),
                    edges=edges,
                    summary=summary,
                    exchange=exchange if self.workers > 1 or source is None else None,
                    schema=edge.schema,
                )
            )
        return tuple(range(first, len(self.channels)))

    def _before_exchange(self, stage: Stage, edge: int) -> Stage | None:
        """The vertex's `before_exchange` as a stage of the same name, which runs at the senders."""
        if stage.vertex is None or stage.vertex.before_exchange is None:
            return None
        if (stage, edge) not in self.before_exchange:
            by_user = stage.vertex.sends_for_user
            vertex = BeforeExchange(stage.vertex.before_exchange, edge, by_user=by_user)
            self.before_exchange[stage, edge] = replace(stage, vertex=vertex)
        return self.before_exchange[stage, edge]

    def _routes(
        self, start: Stage, port: int
    ) -> Iterator[tuple[Through, tuple[Edge, ...], PathSummary, Partition | None]]:
        """The routes from an output to the next vertices, over stages that are not vertices."""
        identity = start.scope.times.identity(start.scope.depth)
        todo: list[tuple[Stage, int, Through, tuple[Edge, ...], PathSummary, Partition | None]]
        todo = [(start, port, (), (), identity, None)]
        while todo:
            stage, port, through, before, summary, exchange = todo.pop(0)
            for edge in self.out[stage]:
                if edge.port != port:
                    continue
                by = self.exchanged.get(edge.index, exchange)
                target, edges = edge.target, (*before, edge)
                path = summary.followed_by(target.summary)
                if path is None:  # no time gets through the feedback of a loop with one iteration
                    if target.kind is Kind.FEEDBACK:
                        self.ends[start, port].append((through, target.scope))
                    continue
                if target in self.vertices:
                    yield through, edges, path, by
                elif target.is_stateless:
                    todo += [
                        (target, out, (*through, (target, out)), edges, path, by)
                        for out in range(len(target.outputs))
                    ]
                else:
                    todo.append((target, 0, through, edges, path, by))

    def _counted(self) -> set[LoopContext]:
        """The loops whose iterations matter: they have a limit, or a vertex that waits or reads times.

        An inner time always matters.
        """
        scopes = {scope for stage in self.graph.stages for scope in stage.scope.path}
        counted = {scope for scope in scopes if scope.limit is not None or scope.inner is not None}
        for stage in self.graph.stages:
            if stage.vertex is not None and (stage.vertex.waits or stage.vertex.reads_time):
                counted.update(stage.scope.path[1:])
        return counted

    def _ports(self) -> dict[Stage, tuple[tuple[int, int], ...]]:
        """The locations of the inputs of vertices with declared summaries: behind those of all vertices."""
        ports, location = {}, 2 * len(self.numbers)
        for stage in self.numbers:
            if stage.summaries is not None:
                end = location + 2 * len(stage.summaries)
                ports[stage] = tuple((at, at + 1) for at in range(location, end, 2))
                location = end
        return ports

    def _reachability(self, nodes: tuple[Node, ...]) -> Reachability:
        ported = [node for node in nodes for port in node.ports for _ in port]
        owners = [*(node for node in nodes for _ in range(2)), *ported]
        scopes = [node.stage.scope for node in owners]
        identities = [scope.times.identity(scope.depth) for scope in scopes]
        same = [(node.arrives, node.leaves) for node in nodes if not node.ports]
        # messages of any input concern the vertex's notifications; what they lead to is the input's matter
        same += [(at, to) for n in nodes for at, held in n.ports for to in (n.arrives, held)]
        paths = [Path(at, to, identities[at], exchange=False) for at, to in same]
        for channel in self.channels:
            if channel.source is None:
                continue
            to = nodes[channel.target].lands(channel.input)
            for held, summary in nodes[channel.source].departs(channel.edges[0].port):
                path = channel.summary if summary is None else summary.followed_by(channel.summary)
                if path is not None:
                    paths.append(Path(held, to, path, exchange=channel.exchange is not None))
        try:
            relays = [node.leaves for node in nodes if not node.ports]
            return Reachability(len(owners), paths, identities=identities, relays=relays)
        except CyclicTime as error:
            steps = list(dict.fromkeys(owners[location].stage for location in error.locations))
            cycle = " -> ".join(f"{stage.name} ({stage.where})" for stage in [*steps, steps[0]])
            msg = f"this cycle does not advance time: {cycle}"
            raise CycleError(msg, hint="close a cycle only by the feedback of a loop.") from error


def _positions(graph: LogicalGraph) -> dict[Stage, tuple[int, ...]]:
    """Each stage's positions in the topological orders of the scopes around it, where a loop is one stage."""
    inner: dict[Any, dict[Any, None]] = defaultdict(dict)
    for stage in graph.stages:
        path = (*stage.scope.path, stage)
        for outer, item in pairwise(path):
            inner[outer].setdefault(item)
    # dicts, not sets: the order must be the same in every process
    before: dict[Any, dict[Any, None]] = defaultdict(dict)
    for edge in graph.edges:
        if edge.source.kind is Kind.FEEDBACK:
            continue
        a, b = (*edge.source.scope.path, edge.source), (*edge.target.scope.path, edge.target)
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x is not y), None)
        if shared is not None:
            before[b[shared]].setdefault(a[shared])
    place: dict[Any, int] = {}
    for items in inner.values():
        order = TopologicalSorter({item: before[item] for item in items})
        place.update({item: i for i, item in enumerate(_sorted(order, items))})
    return {stage: tuple(place[item] for item in (*stage.scope.path[1:], stage)) for stage in graph.stages}


def _sorted(order: TopologicalSorter[Any], items: Iterable[Any]) -> Iterable[Any]:
    try:
        return list(order.static_order())
    except Unsortable:  # a cycle through an inner loop: any order will do, and `Reachability` checks cycles
        return items
