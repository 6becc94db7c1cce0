"""The logical graph: frozen stages, edges and scopes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from timely_spark.errors import SchemaError, Where
from timely_spark.graph.naming import Name, Names, Owner
from timely_spark.graph.schema import check_names, describe, is_key_type
from timely_spark.graph.vertex import Stateless, Vertex
from timely_spark.times import PRODUCT, PathSummary, Times

PACKAGE = str(Path(__file__).resolve().parents[1])


def caller() -> Where:
    """The line of the user's code that called into the package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file on the way
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


def _ours(frame: FrameType) -> bool:
    """Whether a frame runs code of the package, or code that `dataclass` generated for it."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    return file.startswith(PACKAGE) or (file == "<string>" and module.startswith("timely_spark."))


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A loop context, or the root. Times inside have one counter more than outside (Naiad section 2.1)."""

    #: None: the root
    title: Name | None
    parent: Scope | None
    #: the largest value of the loop counter; None: no limit
    limit: int | None
    where: Where
    #: what happens when the limit drops records: "return" (nothing), "warn" or "raise"
    on_limit: str = "return"

    @property
    def name(self) -> str:
        """The loop's full name, with the loops around it; empty for the root."""
        return self.title.full if self.title is not None else ""

    @property
    def depth(self) -> int:
        """How many loop counters a time has in this scope."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def path(self) -> tuple[Scope, ...]:
        """The scopes from the root to this one."""
        return (self,) if self.parent is None else (*self.parent.path, self)


class Kind(Enum):
    """How the compiler, the workers and the driver treat a stage. Operator names are labels only.

    The values are written to checkpoints.
    """

    SOURCE = "source"
    #: has a vertex
    VERTEX = "vertex"
    #: computes one record from each, column by column
    SELECT = "select"
    CONCAT = "concat"
    EXCHANGE = "exchange"
    BROADCAST = "broadcast"
    DELAY = "delay"
    ENTER = "enter"
    LEAVE = "leave"
    FEEDBACK = "feedback"
    VARIABLE = "variable"
    #: hands its records to the driver, to be released by epoch
    OUTPUT = "output"
    #: hands its records to the driver, to be printed on arrival
    INSPECT = "inspect"
    PROBE = "probe"

    @property
    def is_routing(self) -> bool:
        """Whether the stage only moves records."""
        return self in _ROUTING

    @property
    def is_end(self) -> bool:
        """Whether the frontier of the stage is observed from outside."""
        return self in _ENDS


_ROUTING = frozenset(
    {
        Kind.CONCAT,
        Kind.EXCHANGE,
        Kind.BROADCAST,
        Kind.DELAY,
        Kind.ENTER,
        Kind.LEAVE,
        Kind.FEEDBACK,
        Kind.VARIABLE,
    }
)
_ENDS = frozenset({Kind.OUTPUT, Kind.INSPECT, Kind.PROBE})


@dataclass(frozen=True, slots=True)
class Partition:
    """A partitioning of records: by H of some columns, or a copy of each record on every worker."""

    columns: tuple[str, ...]
    broadcast: bool = False

    def __str__(self) -> str:
        return "broadcast" if self.broadcast else f"by {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True)
class Monotone:
    """The guarantee of a monotone stream: later rounds only improve the records, per key.

    The final record of a key is the one with the least (or greatest) `value`.
    """

    keys: tuple[str, ...]
    #: None: the keys are the whole record, and a repeated record changes nothing
    value: str | None = None
    greatest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A stage of the graph: a source, a stage with a vertex, or a routing stage."""

    index: int
    title: Name
    kind: Kind = Kind.VERTEX
    #: a label for `explain`
    operator: str
    scope: Scope
    where: Where
    #: the path summary from its inputs to its outputs
    summary: PathSummary
    outputs: tuple[pa.Schema, ...]
    vertex: Vertex | None = None
    #: per input, the partitioning that it requires; None: any
    requires: tuple[Partition | None, ...] = (None,)
    #: the columns by which the (first) output is partitioned, for any input
    guarantees: tuple[str, ...] | None = None
    #: output column -> input column, where each output record copies values of one input record
    keeps: Mapping[str, str] | None = None
    #: set if the stage sends improvements: its records are not final
    monotone: Monotone | None = None
    #: shown by explain only
    detail: str = ""
    #: the arguments that decide the state and its meaning, as plain JSON; a restart compares them
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: of a source: whether the program sends the records
    handle: bool = False
    #: of a source: "clock", "manual", or the epoch column
    epochs: str = ""
    #: of a source with an epoch column: how far an epoch may lie above the highest so far
    max_jump: int = 0

    @property
    def name(self) -> str:
        """The full name, with the loops around the stage. A derived name may change while a flow is built."""
        return self.title.full

    @property
    def named(self) -> bool:
        """Whether the name comes from the user: see `Name.is_stable`."""
        return self.title.is_stable

    @property
    def is_source(self) -> bool:
        """Whether records enter the flow here."""
        return self.kind is Kind.SOURCE

    @property
    def is_routing(self) -> bool:
        """Whether the stage only moves records."""
        return self.kind.is_routing

    @property
    def is_stateless(self) -> bool:
        """Whether the stage computes each batch independently."""
        return isinstance(self.vertex, Stateless)


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A connector from an output of one stage to an input of another."""

    index: int
    source: Stage
    port: int
    target: Stage
    input: int

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records on the edge."""
        return self.source.outputs[self.port]


@dataclass
class Graph:
    """A graph under construction. Stages and edges are only added, and each is checked when added."""

    name: str
    times: Times = PRODUCT
    root: Scope = field(default_factory=lambda: Scope(None, None, None, caller()))
    stages: list[Stage] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    #: the loop whose body is being written
    inside: Scope | None = None

    def parts(self, scope: Scope, name: str | None) -> AbstractContextManager[Owner | None]:
        """Name the unnamed steps of a composed operator after the operator, if that has a name."""
        return self.names.by(self.names.owned(scope.title, name))

    @contextmanager
    def body(self, scope: Scope, outside: Owner | None) -> Iterator[None]:
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
        owner = Owner(None, title.text, title.full, given=False, stable=True) if title.stable else None
        return self.names.by(owner)

    def copied(self) -> tuple[Graph, dict[Stage, Stage]]:
        """A copy of the stages without edges, names unchanged; and for each stage its copy."""
        copy = Graph(self.name, self.times)
        copy.names, titles = self.names.copied()
        scopes: dict[Scope | None, Scope | None] = {None: None}
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
        scope: Scope,
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
        title = self.names.add(scope.title, called or operator, name, caller())
        needs = tuple(requires) if requires is not None else (None,) * max(1, len(inputs))
        for (source, port), need in zip(inputs, needs, strict=False):
            if need is not None:
                check_columns(title.full, source.outputs[port], need.columns, keys=True)
        where = caller()
        known = {*own, *(name for source, port in inputs for name in source.outputs[port].names)}
        for schema in outputs:
            check_names(title.full, where, schema, known=known)
        stage = Stage(
            index=len(self.stages),
            title=title,
            operator=operator,
            scope=scope,
            where=where,
            outputs=tuple(outputs),
            requires=needs,
            **{"summary": self.times.identity(scope.depth), **parts},
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

    def into(self, stage: Stage) -> list[Edge]:
        """The input edges of a stage."""
        return [edge for edge in self.edges if edge.target is stage]


def names(step: str, columns: str | Iterable[str] | None) -> tuple[str, ...]:
    """Normalise a user's column names: one name, several, or None.

    Example:
        >>> names("join", "id"), names("join", ["src", "dst"])
        (('id',), ('src', 'dst'))
    """
    listed = (columns,) if isinstance(columns, str) else columns or ()
    result: tuple[Any, ...] = tuple(listed) if hasattr(listed, "__iter__") else (listed,)
    if not all(isinstance(column, str) for column in result):
        msg = f"{step}: {columns!r} are no column names"
        raise SchemaError(msg, where=caller(), hint="give a column's name, or a list of names.")
    return result


def check_columns(step: str, schema: pa.Schema, columns: Sequence[str], *, keys: bool = False) -> None:
    """Check that a schema has the columns, and that they can be keys."""
    missing = [column for column in columns if column not in schema.names]
    if missing:
        msg = f"step {step!r} asks for columns {missing}, its input has ({describe(schema)})"
        raise SchemaError(msg, where=caller(), hint="check the spelling, or select the column first.")
    nested = [column for column in columns if keys and not is_key_type(schema.field(column).type)]
    if nested:
        msg = f"step {step!r} has nested columns {nested} as keys"
        raise SchemaError(msg, where=caller(), hint="select flat columns, or a text form of them.")
