"""The logical graph: what the user said, as frozen stages, edges and scopes."""

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
    """The line of the user's code that is now calling into the package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file on the way
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


def _ours(frame: FrameType) -> bool:
    """Whether a frame runs code of the package; what `dataclass` generates for it has no file."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    return file.startswith(PACKAGE) or (file == "<string>" and module.startswith("timely_spark."))


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A loop context, or the root. Times inside have one counter more than outside (Naiad section 2.1).

    `limit`: the largest value the counter may take, None for no limit.
    """

    #: None: the root
    title: Name | None
    parent: Scope | None
    limit: int | None
    where: Where
    #: what happens when the limit drops records: "warn", "raise" or, without a word, "return"
    on_limit: str = "return"

    @property
    def name(self) -> str:
        """What the loop is called, with those around it; empty for the root."""
        return self.title.full if self.title is not None else ""

    @property
    def depth(self) -> int:
        """How many loop counters a time has in here."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def path(self) -> tuple[Scope, ...]:
        """The scopes from the root to this one."""
        return (self,) if self.parent is None else (*self.parent.path, self)


class Kind(Enum):
    """What a stage is to the compiler, the workers and the driver; they ask for nothing else of it.

    What an operator or a vertex is called is a label, for people. The values are for checkpoints.
    """

    SOURCE = "source"
    #: computes: it has a vertex
    VERTEX = "vertex"
    #: computes of each record one record, column by column
    SELECT = "select"
    CONCAT = "concat"
    EXCHANGE = "exchange"
    BROADCAST = "broadcast"
    DELAY = "delay"
    ENTER = "enter"
    LEAVE = "leave"
    FEEDBACK = "feedback"
    VARIABLE = "variable"
    #: gives its records to the driver, epoch by epoch
    OUTPUT = "output"
    #: gives its records to the driver as they come
    INSPECT = "inspect"
    PROBE = "probe"

    @property
    def is_routing(self) -> bool:
        """Whether it moves records only."""
        return self in _ROUTING

    @property
    def is_end(self) -> bool:
        """Whether somebody outside looks at how far it is."""
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
class Refines:
    """A stream of improvements: later rounds may send better records; the final content is the least of them.

    Per `keys` the least (or greatest) `value` counts; with no `value` a record counts once.
    """

    keys: tuple[str, ...]
    value: str | None = None
    greatest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A stage of the graph: it computes, with a vertex; or it routes, or is a source."""

    index: int
    title: Name
    kind: Kind
    #: what it is called by people, who see it in `explain`; nothing is decided by it
    operator: str
    scope: Scope
    where: Where
    #: what the stage does to a time on its way through
    summary: PathSummary
    outputs: tuple[pa.Schema, ...]
    vertex: Vertex | None = None
    #: per input, the partitioning that it requires; None: any
    requires: tuple[Partition | None, ...] = (None,)
    #: the columns by which the (first) output is partitioned, whatever the input was
    guarantees: tuple[str, ...] | None = None
    #: output column -> input column, where the stage keeps the values of a record together
    keeps: Mapping[str, str] | None = None
    #: set if this stage sends improvements, so that its output is not final
    refines: Refines | None = None
    #: shown by explain, and nothing else
    detail: str = ""
    #: what it was told that decides what it keeps and what that means, as plain JSON: a restart compares it
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: of a source, whether the program itself sends
    handle: bool = False
    #: of a source: "clock", "manual", or the column that says
    epochs: str = ""
    #: of a source with epochs of a column: how far one may lie above the highest before
    max_jump: int = 0

    @property
    def name(self) -> str:
        """What it is called, with the loops around it. A derived name may change while a flow is built."""
        return self.title.full

    @property
    def named(self) -> bool:
        """Whether the user gave the name, or that of what it is a part of; and those of the loops around."""
        return self.title.is_known

    @property
    def is_source(self) -> bool:
        """Whether records come into the flow here."""
        return self.kind is Kind.SOURCE

    @property
    def is_routing(self) -> bool:
        """Whether the stage moves records only."""
        return self.kind.is_routing

    @property
    def is_stateless(self) -> bool:
        """Whether the stage computes, on each batch by itself."""
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
        """The schema of what flows."""
        return self.source.outputs[self.port]


@dataclass
class Graph:
    """A graph under construction. Stages and edges are only ever added; each is checked when it is."""

    name: str
    times: Times = PRODUCT
    root: Scope = field(default_factory=lambda: Scope(None, None, None, caller()))
    stages: list[Stage] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    #: the loop whose body is being written
    inside: Scope | None = None

    def parts(self, scope: Scope, name: str | None) -> AbstractContextManager[Owner | None]:
        """Let steps that are given no name be called after an operator that has one, while it makes them."""
        return self.names.by(self.names.owned(scope.title, name))

    @contextmanager
    def body(self, scope: Scope, outside: Owner | None) -> Iterator[None]:
        """Let a user's function say what a loop does: what he makes there, he names."""
        before, self.inside = self.inside, scope
        try:
            with self.names.by(outside):
                yield
        finally:
            self.inside = before

    def parts_of(self, stage: Stage) -> AbstractContextManager[Owner | None]:
        """Let steps that are given no name be called after another one, if the user gave that a name."""
        title = stage.title
        owner = Owner(None, title.text, title.full, given=False, known=True) if title.known else None
        return self.names.by(owner)

    def copied(self) -> tuple[Graph, dict[Stage, Stage]]:
        """The stages, with names that stay as they are, and no edges; and what has become of each stage."""
        made = Graph(self.name, self.times)
        made.names, titles = self.names.copied()
        scopes: dict[Scope | None, Scope | None] = {None: None}
        new: dict[Stage, Stage] = {}
        for stage in self.stages:
            for scope in stage.scope.path:
                if scope not in scopes:
                    scopes[scope] = replace(scope, title=titles[scope.title], parent=scopes[scope.parent])
            title, within = titles[stage.title], scopes[stage.scope]
            assert title is not None
            assert within is not None
            new[stage] = replace(stage, title=title, scope=within)
        made.root = scopes.get(self.root) or made.root
        made.stages.extend(new.values())
        return made, new

    def stage(
        self,
        operator: str,
        scope: Scope,
        outputs: Sequence[pa.Schema],
        *,
        kind: Kind = Kind.VERTEX,
        inputs: Sequence[tuple[Stage, int]] = (),
        name: str | None = None,
        vertex: Vertex | None = None,
        summary: PathSummary | None = None,
        requires: Sequence[Partition | None] | None = None,
        guarantees: tuple[str, ...] | None = None,
        keeps: Mapping[str, str] | None = None,
        refines: Refines | None = None,
        detail: str = "",
        parameters: Mapping[str, Any] | None = None,
        called: str | None = None,
        handle: bool = False,
        epochs: str = "",
        max_jump: int = 0,
        own: Collection[str] = (),
    ) -> Stage:
        """Add a stage and the edges that lead to it; without a name it is named after `called` or `operator`.

        A name of the library's is that of a column of its inputs, or among `own`: those that it adds.

        Raises:
            GraphError: the name is taken.
            SchemaError: a required column is missing or cannot be a key; or another name is the library's.
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
            kind=kind,
            operator=operator,
            scope=scope,
            where=where,
            summary=summary if summary is not None else self.times.identity(scope.depth),
            outputs=tuple(outputs),
            vertex=vertex,
            requires=needs,
            guarantees=guarantees,
            keeps=keeps,
            refines=refines,
            detail=detail,
            parameters=parameters or {},
            handle=handle,
            epochs=epochs,
            max_jump=max_jump,
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
        """The edges that lead to a stage."""
        return [edge for edge in self.edges if edge.target is stage]

    def out_of(self, stage: Stage) -> list[Edge]:
        """The edges that lead from a stage."""
        return [edge for edge in self.edges if edge.source is stage]


def names(step: str, columns: str | Iterable[str] | None) -> tuple[str, ...]:
    """Columns as a user may write them: one name, several, or None for none.

    Example:
        >>> names("join", "id"), names("join", ["src", "dst"])
        (('id',), ('src', 'dst'))

    Raises:
        SchemaError: they are no names.
    """
    listed = (columns,) if isinstance(columns, str) else columns or ()
    made: tuple[Any, ...] = tuple(listed) if hasattr(listed, "__iter__") else (listed,)
    if not all(isinstance(column, str) for column in made):
        msg = (
            f"{step} ({caller()}): {columns!r} are no names of columns. "
            "Hint: give a column's name, or a list of names."
        )
        raise SchemaError(msg)
    return made


def check_columns(step: str, schema: pa.Schema, columns: Sequence[str], *, keys: bool = False) -> None:
    """Check that a schema has the columns, and that they can be keys.

    Raises:
        SchemaError: naming the step, the columns asked for and those there are.
    """
    missing = [column for column in columns if column not in schema.names]
    if missing:
        msg = (
            f"step {step!r} ({caller()}) asks for columns {missing}, its input has ({describe(schema)}). "
            "Hint: check the spelling, or select the column first."
        )
        raise SchemaError(msg)
    nested = [column for column in columns if keys and not is_key_type(schema.field(column).type)]
    if nested:
        msg = (
            f"step {step!r} ({caller()}) has nested columns {nested} as keys. "
            "Hint: select flat columns, or a text form of them."
        )
        raise SchemaError(msg)
