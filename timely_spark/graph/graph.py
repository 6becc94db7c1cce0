"""The logical graph: stages and edges, checked when they are added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from timely_spark.errors import GraphError
from timely_spark.graph.arguments import check_columns, integer, refuse
from timely_spark.graph.caller import caller
from timely_spark.graph.locate_errors import CALL
from timely_spark.graph.loop_context import LoopContext
from timely_spark.graph.naming import Name, Names, Owner
from timely_spark.graph.schema import check_names
from timely_spark.graph.stage import Edge, Kind, Partition, Stage, Way
from timely_spark.times import PRODUCT, RefinedTimes, Times


@dataclass
class LogicalGraph:
    """A graph under construction. Stages and edges are only added, and each is checked when added."""

    name: str
    times: Times = PRODUCT
    root: LoopContext = field(init=False)
    stages: list[Stage] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    #: the loop whose body is being written
    inside: LoopContext | None = None
    #: the regions that are being written, each with the scope that it was opened in
    regions: list[tuple[LoopContext, Name, tuple[int, ...] | None]] = field(default_factory=list)
    #: the way that is being written
    way: Way | None = None

    def __post_init__(self) -> None:
        self.root = LoopContext(None, None, None, caller(), outermost=self.times)

    @property
    def every_time(self) -> Times:
        """A kind of time that decodes the times of all scopes."""
        scopes = {scope.inner: scope for stage in self.stages for scope in stage.scope.path}
        inner = [kind for kind in scopes if kind not in {None, int}]
        for i, kind in enumerate(inner):
            if (twin := next((one for one in inner[:i] if one.__name__ == kind.__name__), None)) is not None:
                both = f"{scopes[twin].name!r} and {scopes[kind].name!r}"
                msg = f"scopes {both} have inner times of two types called {kind.__name__}"
                raise GraphError(msg, where=scopes[kind].where, hint="give the types different names.")
        return RefinedTimes((None,), tuple(inner)) if inner else self.times

    def title(self, scope: LoopContext) -> Name | None:
        """The name around those of new steps in a scope: that of a region there, or the scope's own."""
        opened = (title for within, title, _ in reversed(self.regions) if within is scope)
        return next(opened, scope.title)

    @property
    def workers(self) -> tuple[int, ...] | None:
        """The only workers of new steps; None means all."""
        return next((only for *_, only in reversed(self.regions) if only is not None), None)

    def region(
        self, scope: LoopContext, name: str, workers: Sequence[int] | None
    ) -> AbstractContextManager[None]:
        """Add steps to a region within the context."""
        only = None if workers is None else tuple(integer("workers", one, least=0) for one in workers)
        if only is not None and len(only or (0, 0)) > len(set(only)):
            refuse(
                workers, what="workers", expected="different numbers", hint="name each worker once: [0, 1]."
            )
        return self._region(scope, self.names.add(self.title(scope), "region", name, caller()), only)

    @contextmanager
    def _region(self, scope: LoopContext, title: Name, workers: tuple[int, ...] | None) -> Iterator[None]:
        self.regions.append((scope, title, workers))
        try:
            with self.names.by(None):
                yield
        finally:
            self.regions.pop()

    @contextmanager
    def part_of(self, way: Way, scope: LoopContext, word: str | None = None) -> Iterator[None]:
        """Add steps of a way within the context; their names begin with a word, so others keep theirs."""
        before, depth, self.way = self.way, len(self.regions), way
        try:
            if word is None:
                yield
                return
            title = self.names.add(self.title(scope), word, None, caller())
            self.regions.append((scope, title, self.workers))
            with self.names.by(Owner(None, title.text, title.full, from_user=False, stable=title.stable)):
                yield
        finally:
            self.way = before
            del self.regions[depth:]

    def parts(self, scope: LoopContext, name: str | None) -> AbstractContextManager[Owner | None]:
        """Name the unnamed steps of a composed operator after the operator, if that has a name."""
        return self.names.by(self.names.owned(self.title(scope), name))

    @contextmanager
    def body(self, scope: LoopContext, outside: Owner | None) -> Iterator[None]:
        """Run the user's function that builds a loop body; its steps belong to no library operator."""
        before, self.inside = self.inside, scope
        try:
            with self.names.by(outside):
                yield
        finally:
            self.inside = before

    def parts_of(self, stage: Stage) -> AbstractContextManager[Owner | None]:
        """Name unnamed steps after `stage`, if the name of the stage comes from the user."""
        title = stage.title
        owner = Owner(None, title.text, title.full, from_user=False, stable=True) if title.stable else None
        return self.names.by(owner)

    def copied(self) -> tuple[LogicalGraph, dict[Stage, Stage]]:
        """A copy of the stages without edges, names unchanged; and for each stage its copy."""
        copy = LogicalGraph(self.name, self.times)
        copy.names, titles = self.names.copied()
        scopes: dict[LoopContext | None, LoopContext | None] = {None: None}
        copies: dict[Stage, Stage] = {}
        for stage in self.stages:
            for scope in stage.scope.path:
                if scope not in scopes:
                    scopes[scope] = replace(scope, title=titles[scope.title], parent=scopes[scope.parent])
            title, within = titles[stage.title], scopes[stage.scope]
            assert title is not None
            assert within is not None
            copies[stage] = replace(stage, title=title, scope=within)
        copy.root = scopes.get(self.root) or copy.root
        copy.stages.extend(copies.values())
        return copy, copies

    def stage(
        self,
        operator: str,
        scope: LoopContext,
        outputs: Sequence[pa.Schema],
        *,
        inputs: Sequence[tuple[Stage, int]] = (),
        name: str | None = None,
        called: str | None = None,
        requires: Sequence[Partition | None] | None = None,
        own: Collection[str] = (),
        **parts: Any,
    ) -> Stage:
        """Add a stage and its input edges; without a name the stage is named after `called` or `operator`.

        A reserved column name (``__timely_...``) must be in `own`, or be a column of an input. `parts` are
        other fields of `Stage`.
        """
        where = caller()
        kind = parts.get("kind", Kind.VERTEX)
        # inputs and outputs are known by their names outside of the flow, too
        around = scope.title if kind is Kind.SOURCE or kind.is_end else self.title(scope)
        title = self.names.add(around, called or operator, name, where)
        needs = tuple(requires) if requires is not None else (None,) * max(1, len(inputs))
        needs = tuple(need and replace(need, workers=self.workers) for need in needs)
        for (source, port), need in zip(inputs, needs, strict=False):
            if need is not None:
                check_columns(
                    title.full, source.outputs[port], need.columns, keys=not need.computed, nested=True
                )
        existing = {*own, *(name for source, port in inputs for name in source.outputs[port].names)}
        for schema in outputs:
            check_names(title.full, where, schema, existing=existing)
        stage = Stage(
            index=len(self.stages),
            title=title,
            operator=operator,
            scope=scope,
            call=CALL.get(),
            where=where,
            outputs=tuple(outputs),
            requires=needs,
            workers=self.workers,
            way=self.way,
            **{"summary": scope.times.identity(scope.depth), **parts},
        )
        self.stages.append(stage)
        for input_, (source, port) in enumerate(inputs):
            self.connect(source, port, stage, input_)
        return stage

    def connect(self, source: Stage, port: int, target: Stage, input_: int) -> Edge:
        """Add an edge."""
        edge = Edge(len(self.edges), source, port, target, input_)
        self.edges.append(edge)
        return edge

    @property
    def has_ways(self) -> bool:
        """Whether some records have several ways."""
        return any(stage.ways for stage in self.stages)

    def along(self, workers: int, steps: Collection[str] = ()) -> LogicalGraph:
        """A copy with one of several ways: that of `steps`, the names of a checkpoint's, else by workers."""
        joins = {stage: stage.ways for stage in self.stages if stage.ways}
        if not joins:
            return self
        names: dict[Way | None, list[str]] = defaultdict(list)
        for stage in self.stages:
            if stage.vertex is not None:
                names[stage.way].append(stage.name)
        taken = {
            join: next(
                (i for i, way in enumerate(ways) if {*names[way]} <= {*steps}),
                next(i for i, way in enumerate(ways) if workers in way.workers),
            )
            for join, ways in joins.items()
        }
        left = {way for join, ways in joins.items() for i, way in enumerate(ways) if i != taken[join]}
        ends = {edge.target: edge for edge in self.edges if taken.get(edge.target) == edge.input}
        stages = [stage for stage in self.stages if stage.way not in left and stage not in joins]
        copy = replace(self, stages=stages, edges=[])
        copy.root = self.root
        for edge in self.edges:
            if edge.target in joins or {edge.source.way, edge.target.way} & left:
                continue
            source, port = edge.source, edge.port
            while source in joins:
                source, port = ends[source].source, ends[source].port
            copy.connect(source, port, edge.target, edge.input)
        return copy

    def into(self, stage: Stage) -> list[Edge]:
        """The input edges of a stage."""
        return [edge for edge in self.edges if edge.target is stage]
