"""The physical plan: which stages become vertices, what rides on the channels, and which channels exchange.

A round is spent only on an exchange, so this is where rounds are saved: routing and per-batch stages ride on
the channels, whatever can runs at the sources, before their exchange (which is free: Spark's own shuffle
makes it), and an exchange stands only where records would really not lie where the next stage needs them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError as Unsortable
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.errors import CycleError, CyclicTime, GraphError
from timely_spark.graph import (
    Edge,
    Forward,
    Graph,
    Kind,
    Partition,
    Scope,
    Stage,
    Stateless,
    Vertex,
    known,
)
from timely_spark.progress import Edge as Path
from timely_spark.progress import Reachability
from timely_spark.times import PathSummary, Times
from timely_spark.worker.identity import described
from timely_spark.worker.partitioning import output_partitioning

#: per-batch stages, in order, and the output port of each that is followed
Through: TypeAlias = tuple[tuple[Stage, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """How batches get from a vertex (or a source) to an input of the next vertex."""

    index: int
    #: the sending vertex; None for a source
    source: int | None
    target: int
    input: int
    #: per-batch stages applied by the sender, in order, and the output port of each that is followed
    through: tuple[tuple[Stage, int], ...]
    #: the way it stands for: edges of the graph, over stages that became no vertices
    edges: tuple[Edge, ...]
    summary: PathSummary
    #: None: stays on its worker
    exchange: Partition | None
    schema: pa.Schema


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A vertex of the plan: a stage that receives, with what the worker has to know of it."""

    index: int
    stage: Stage
    template: Vertex
    waits: bool
    #: for each output port the channels that leave it
    out: tuple[tuple[int, ...], ...]
    #: places in the topological order of the scopes around it, outermost first
    path: tuple[int, ...]
    #: counters of loops around it whose iterations do not matter to what is accumulated
    forget: frozenset[int]

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @property
    def arrives(self) -> int:
        """The location where messages to the vertex stand."""
        return 2 * self.index

    @property
    def leaves(self) -> int:
        """The location where the vertex's capabilities stand."""
        return 2 * self.index + 1


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An input of the flow: a DataFrame or a handle. `epochs`: "clock", "manual", or the name of a column."""

    name: str
    stage: Stage
    epochs: str
    #: what its rows are packed for
    entries: tuple[int, ...]
    #: of those, the ones that get the rows which come too late for their epoch
    late: frozenset[int]


@dataclass(eq=False)
class Plan:
    """A graph compiled by `compile_plan` for a number of workers; the same on the driver and all of them."""

    name: str
    workers: int
    times: Times
    nodes: tuple[Node, ...]
    channels: tuple[Channel, ...]
    inputs: tuple[Source, ...]
    reach: Reachability
    #: in topological order, those of a loop together
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    #: by edge: exchanges that are made, and those that were asked for and need not be
    exchanged: dict[int, Partition]
    saved: dict[int, Partition]
    fused: frozenset[int]
    budget: Any = None
    #: notice is given where a loop has gone round so often in one epoch; None: never
    warn_after: int | None = 10_000
    #: by vertex and output, stages and loop of the ways back that no time gets through: at most one iteration
    ends: dict[tuple[int, int], list[tuple[Through, Scope]]] = field(default_factory=dict)
    by_name: dict[str, Node] = field(init=False)
    #: by vertex and input, the channels that lead there
    into: dict[tuple[int, int], list[Channel]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {node.name: node for node in self.nodes}
        self.into = defaultdict(list)
        for channel in self.channels:
            self.into[channel.target, channel.input].append(channel)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(source.name for source in self.inputs)

    def source(self, name: str) -> Source:
        """An input by name."""
        return known({source.name: source for source in self.inputs}, name, kind="input", flow=self.name)

    def initial(self, node: Node) -> Iterator[Any]:
        """The times a vertex is to be notified of from the start: its epochs, at iteration 0 of its loops."""
        for epoch in node.template.initial:
            time: Any = self.times.epoch(epoch)
            for depth in range(node.stage.scope.depth):
                time = self.times.enter(depth).results_in(time)
            yield time

    @cached_property
    def partitioning(self) -> dict[tuple[str, int], Partition | None]:
        """By step and input, the partitioning of the records that arrive there; None: unknown."""
        by_edge = output_partitioning(self.edges, self.exchanged, self.saved)
        return {(edge.target.name, edge.input): by_edge.get(edge.index) for edge in self.edges}

    def described(self) -> dict[str, Any]:
        """All by which a checkpoint of this plan can be judged, and gone on from: see `identity`."""
        return described(self)

    @cached_property
    def fingerprint(self) -> str:
        """A short name for `described`."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:16]

    def key(self, node: Node, time: Any) -> tuple[Any, ...]:
        """The place of work at (node, time) in (time, topological) order: behind what can lead to it."""
        counters = time.order_key()
        return tuple(part for pair in zip(counters, node.path, strict=True) for part in pair)


class Ahead(Stateless):
    """A vertex's `before_exchange` of one input, as a stage that rides on the channels to that input."""

    def __init__(self, function: Callable[[int, pa.Table], pa.Table], edge: int) -> None:
        self.function, self.edge = function, edge

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """What is received instead of the batch."""
        return (self.function(self.edge, batch),)


#: how many routes may lead to a stage that has several readers and is no vertex
_ROUTES = 16


def compile_plan(graph: Graph, workers: int) -> Plan:
    """Compile a graph.

    Raises:
        GraphError: the graph has no input, or a variable was never fed.
        CycleError: a cycle does not advance time; it is named by its steps and the user's lines.
    """
    if workers < 1:
        msg = f"workers is {workers}. Hint: give at least 1."
        raise GraphError(msg)
    return _Compiler(graph, workers).plan()


class _Compiler:
    def __init__(self, graph: Graph, workers: int) -> None:
        self.graph, self.workers = graph, workers
        self.into: dict[Stage, list[Edge]] = defaultdict(list)
        self.out: dict[Stage, list[Edge]] = defaultdict(list)
        for edge in graph.edges:
            self.into[edge.target].append(edge)
            self.out[edge.source].append(edge)
        for stage in graph.stages:
            if stage.kind is Kind.FEEDBACK and not self.into[stage]:
                msg = (
                    f"the loop variable {stage.name!r} ({stage.where}) is never fed. "
                    "Hint: call variable.feed(stream) once, or variable.set(collection)."
                )
                raise GraphError(msg)
        self.ahead: dict[tuple[Stage, int], Stage] = {}
        self.ends: dict[tuple[Stage, int], list[tuple[Through, Scope]]] = defaultdict(list)
        self.prefix = self._prefix()
        self.exchanged: dict[int, Partition] = {}
        self.saved: dict[int, Partition] = {}
        self._chosen: dict[Stage, tuple[str, ...]] = {}
        for edge in graph.edges:
            need = edge.target.requires[edge.input] if edge.input < len(edge.target.requires) else None
            if need is not None and not edge.target.is_routing:
                self._require(edge, need)
        for edge in graph.edges:  # what a user exchanges by hand comes after what stages need
            need = edge.target.requires[edge.input] if edge.input < len(edge.target.requires) else None
            if need is not None and edge.target.is_routing and self._chosen.get(edge.target) is None:
                self._require(edge, need)
        self.real = self._real()

    # -- what runs at the sources, and where exchanges stand -------------------------------------------------

    def _prefix(self) -> set[Stage]:
        """Stages whose whole past is per-batch: they run in the sources' own tasks."""
        prefix: set[Stage] = set()
        for stage in (
            self.graph.stages
        ):  # a stage is added after its inputs, except over a feedback, which is no prefix
            past = self.into[stage]
            if stage.is_source or (
                (stage.is_routing or stage.is_stateless)
                and past
                and stage.kind not in {Kind.FEEDBACK, Kind.VARIABLE, Kind.EXCHANGE}
                and all(edge.source in prefix for edge in past)
            ):
                prefix.add(stage)
        return prefix

    def _require(self, edge: Edge, need: Partition) -> None:
        if need.broadcast or not self._partitioned(edge.source, need.columns):
            self.exchanged[edge.index] = need
        else:
            self.saved[edge.index] = need

    def _partitioned(self, stage: Stage, columns: tuple[str, ...]) -> bool:
        """Whether the output is partitioned by `columns`, or can be without an exchange behind the stage.

        A stage that preserves the columns passes the requirement on to its inputs: an exchange is
        best made early, at the sources; and records that a feedback brings back partitioned need no exchange.
        """
        if (
            not stage.is_routing
            or stage in self.prefix
            or stage in self._chosen
            or stage.requires[0] is not None
        ):
            return self._already_partitioned(stage, columns)
        self._chosen[stage] = columns
        for edge in self.into[stage]:
            self._require(edge, Partition(columns))
        return True

    def _already_partitioned(self, stage: Stage, columns: tuple[str, ...]) -> bool:
        """Whether the output is partitioned by `columns`; per-batch stages may preserve them."""
        if stage.guarantees is not None or stage in self._chosen:
            guaranteed = stage.guarantees if stage.guarantees is not None else self._chosen[stage]
            return guaranteed == columns
        if stage in self.prefix:
            return False
        if stage.is_routing:
            by_hand = stage.requires[0]
            return by_hand is not None and not by_hand.broadcast and by_hand.columns == columns
        if stage.keeps is None or not all(column in stage.keeps for column in columns):
            return False
        before = tuple(stage.keeps[column] for column in columns)
        if not stage.is_stateless and stage.requires == (None,):
            # it takes records wherever they are, so its input and output may be partitioned differently
            self._chosen[stage] = columns
            self._require(self.into[stage][0], Partition(before))
            return True
        return all(
            edge.index not in self.exchanged and self._partitioned(edge.source, before)
            for edge in self.into[stage]
        )

    # -- which stages become vertices ------------------------------------------------------------------------

    def _real(self) -> set[Stage]:
        real = {s for s in self.graph.stages if s.vertex is not None and not s.is_stateless}
        # each copy of a broadcast record counts, so a broadcast arrives before the next exchange
        real |= {
            stage
            for stage in self.graph.stages
            if stage.kind is Kind.BROADCAST and self._exchanged_again(stage)
        }
        while True:
            behind = self._behind_exchange(real)
            more = {
                stage
                for stage in self.graph.stages
                if stage not in real
                and not stage.is_source
                and (
                    (stage.is_stateless and behind[stage])
                    or (
                        stage not in self.prefix
                        and len(self.out[stage]) > 1
                        and (stage.is_stateless or behind[stage])
                    )
                    or (stage in self.prefix and len(self.out[stage]) > 1 and behind[stage])
                )
            }
            if not more:
                break
            real |= more
        real |= {
            stage for stage in self.graph.stages if stage.kind is Kind.VARIABLE and self._spins(stage, real)
        }
        return real | self._crossings(real)

    def _crossings(self, real: set[Stage]) -> set[Stage]:
        """Stages where routes would multiply: k diamonds in a row are 2^k of them.

        Such a stage has more than one reader, and more routes to it than stages they lead over, and than
        `_ROUTES`; a concat of many streams has not. Each cycle was cut before, so the rest has an order.
        """
        before = {
            stage: [edge.source for edge in self.into[stage]]
            for stage in self.graph.stages
            if stage not in real
        }
        crossings: set[Stage] = set()
        routes: dict[Stage, int] = {}
        for stage in TopologicalSorter(before).static_order():
            if stage in real or stage.is_source:
                routes[stage] = 1
                continue
            routes[stage] = sum(routes[source] for source in before[stage])
            if routes[stage] <= _ROUTES or len(self.out[stage]) < 2:
                continue
            over, todo = {stage}, [stage]
            while todo:
                new = {s for s in before.get(todo.pop(), ()) if s not in over}
                over |= new
                todo += [s for s in new if s not in crossings]
            if routes[stage] > len(over):
                crossings.add(stage)
                routes[stage] = 1
        return crossings

    def _exchanged_again(self, stage: Stage) -> bool:
        """Whether an exchange follows with only routing in between."""
        return any(
            edge.index in self.exchanged or (edge.target.is_routing and self._exchanged_again(edge.target))
            for edge in self.out[stage]
            if edge.target.kind is not Kind.FEEDBACK
        )

    def _behind_exchange(self, real: set[Stage]) -> dict[Stage, bool]:
        """For each stage whether batches reach it fresh from an exchange, with no vertex between."""
        behind: dict[Stage, bool] = defaultdict(bool)
        changed = True
        while changed:
            changed = False
            for edge in self.graph.edges:
                source = edge.source
                arrives = edge.index in self.exchanged or (
                    source not in real and source.is_routing and behind[source]
                )
                if arrives and not behind[edge.target]:
                    behind[edge.target] = changed = True
        return behind

    def _spins(self, start: Stage, real: set[Stage]) -> bool:
        """Whether one gets from a stage back to it through no vertex."""
        seen: set[Stage] = set()
        todo = [start]
        while todo:
            for edge in self.out[todo.pop()]:
                if edge.target is start:
                    return True
                if edge.target not in real and edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)
        return False

    # -- the plan --------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        graph = self.graph
        stages = [stage for stage in graph.stages if stage in self.real]
        number = {stage: i for i, stage in enumerate(stages)}
        positions = _positions(graph)
        channels: list[Channel] = []

        def add(source: int | None, start: Stage, port: int) -> Iterator[int]:
            for through, edges, summary, exchange in self._routes(start, port):
                edge = edges[-1]
                ahead = self._ahead(edge.target, edge.input)
                index = len(channels)
                channels.append(
                    Channel(
                        index=index,
                        source=source,
                        target=number[edge.target],
                        input=edge.input,
                        through=through if ahead is None else (*through, (ahead, 0)),
                        edges=edges,
                        summary=summary,
                        exchange=exchange if self.workers > 1 or source is None else None,
                        schema=edge.schema,
                    )
                )
                yield index

        inputs = []
        for stage in graph.stages:
            if stage.is_source:
                entries = tuple(add(None, stage, 0))
                late = tuple(add(None, stage, 1)) if len(stage.outputs) > 1 else ()
                inputs.append(Source(stage.name, stage, stage.epochs, entries + late, frozenset(late)))
        if not inputs and not any(s.vertex and tuple(s.vertex.initial) for s in stages):
            msg = f"flow {graph.name!r} has no input. Hint: add flow.source(...) or flow.input(...)."
            raise GraphError(msg)
        counted = self._counted()
        nodes = tuple(
            Node(
                index=number[stage],
                stage=stage,
                template=stage.vertex if stage.vertex is not None else Forward(),
                waits=stage.vertex is not None and stage.vertex.waits,
                out=tuple(tuple(add(number[stage], stage, port)) for port in range(len(stage.outputs))),
                path=positions[stage],
                forget=frozenset(i for i, scope in enumerate(stage.scope.path[1:]) if scope not in counted),
            )
            for stage in stages
        )
        return Plan(
            name=graph.name,
            workers=self.workers,
            times=graph.times,
            nodes=nodes,
            channels=tuple(channels),
            inputs=tuple(inputs),
            reach=self._reachability(nodes, channels),
            stages=tuple(sorted(graph.stages, key=positions.__getitem__)),
            edges=tuple(graph.edges),
            exchanged=self.exchanged,
            saved=self.saved,
            ends={(number[s], port): ways for (s, port), ways in self.ends.items() if s in number},
            fused=frozenset(s.index for s in graph.stages if s not in self.real and not s.is_source),
        )

    def _ahead(self, stage: Stage, edge: int) -> Stage | None:
        """What runs at the senders on the vertex's behalf, under its name."""
        if stage.vertex is None or stage.vertex.before_exchange is None:
            return None
        if (stage, edge) not in self.ahead:
            vertex = Ahead(stage.vertex.before_exchange, edge)
            self.ahead[stage, edge] = replace(stage, vertex=vertex)
        return self.ahead[stage, edge]

    def _routes(
        self, start: Stage, port: int
    ) -> Iterator[tuple[tuple[tuple[Stage, int], ...], tuple[Edge, ...], PathSummary, Partition | None]]:
        """The ways from an output to the next vertices, over stages that became none."""
        identity = self.graph.times.identity(start.scope.depth)
        todo: list[
            tuple[Stage, int, tuple[tuple[Stage, int], ...], tuple[Edge, ...], PathSummary, Partition | None]
        ] = [(start, port, (), (), identity, None)]
        while todo:
            stage, port, through, before, summary, exchange = todo.pop(0)
            for edge in self.out[stage]:
                if edge.port != port:
                    continue
                deal = self.exchanged.get(edge.index, exchange)
                target, edges = edge.target, (*before, edge)
                onward = summary.followed_by(target.summary)
                if onward is None:  # no time gets through: the way back in a loop of one iteration
                    if target.kind is Kind.FEEDBACK:
                        self.ends[start, port].append((through, target.scope))
                    continue
                if target in self.real:
                    yield through, edges, onward, deal
                elif target.is_stateless:
                    todo += [
                        (target, out, (*through, (target, out)), edges, onward, deal)
                        for out in range(len(target.outputs))
                    ]
                else:
                    todo.append((target, 0, through, edges, onward, deal))

    def _counted(self) -> set[Scope]:
        """The loops whose iterations matter: those with a limit or a vertex that waits for or reads them."""
        counted = {stage.scope for stage in self.graph.stages if stage.scope.limit is not None}
        for stage in self.graph.stages:
            if stage.vertex is not None and (stage.vertex.waits or stage.vertex.reads_time):
                counted.update(stage.scope.path[1:])
        return counted

    def _reachability(self, nodes: tuple[Node, ...], channels: list[Channel]) -> Reachability:
        times = self.graph.times
        identities = [times.identity(node.stage.scope.depth) for node in nodes for _ in range(2)]
        paths = [Path(node.arrives, node.leaves, identities[node.arrives], exchange=False) for node in nodes]
        paths += [
            Path(nodes[c.source].leaves, nodes[c.target].arrives, c.summary, exchange=c.exchange is not None)
            for c in channels
            if c.source is not None
        ]
        try:
            return Reachability(2 * len(nodes), paths, identities=identities)
        except CyclicTime as error:
            steps = list(dict.fromkeys(nodes[location // 2].stage for location in error.locations))
            way = " -> ".join(f"{stage.name} ({stage.where})" for stage in [*steps, steps[0]])
            msg = (
                f"this cycle does not advance time: {way}. "
                "Hint: close a cycle only by the feedback of a loop."
            )
            raise CycleError(msg) from error


def _positions(graph: Graph) -> dict[Stage, tuple[int, ...]]:
    """For each stage its places in the topological orders of the scopes around it, a loop being one stage."""
    inner: dict[Any, dict[Any, None]] = defaultdict(dict)
    for stage in graph.stages:
        path = (*stage.scope.path, stage)
        for outer, item in pairwise(path):
            inner[outer].setdefault(item)
    before: dict[Any, dict[Any, None]] = defaultdict(
        dict
    )  # no set: the order must be the same in every process
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
    except (
        Unsortable
    ):  # through a loop from the outside: any order is right, and the check of cycles has the last word
        return items
