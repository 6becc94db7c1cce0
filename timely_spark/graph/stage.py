"""Stages and the connectors between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import pyarrow as pa

from timely_spark.errors import Where
from timely_spark.graph.expressions import Expression
from timely_spark.graph.locate_errors import OperatorCall
from timely_spark.graph.loop_context import LoopContext
from timely_spark.graph.naming import Name
from timely_spark.graph.vertex import Stateless, Vertex
from timely_spark.times import PathSummary

T = TypeVar("T")


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


class FoundKeys(list[int]):
    """H of the hot keys that a run finds, oldest first; the coordinator gives each process the new ones.

    A list is equal to itself only: the hot keys of one step are not those of another.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Skew:
    """Hot keys: their records do not go to the one worker of their key."""

    #: H of each hot key: ascending if the user names them
    hot: tuple[int, ...] | FoundKeys
    #: the keys as text
    shown: str
    #: records of hot keys are partitioned by H of these columns; if none, every worker gets a copy of each
    spread: tuple[str, ...]

    def __str__(self) -> str:
        return f"; hot keys ({self.shown}) {'by ' + ', '.join(self.spread) if self.spread else 'broadcast'}"

    @property
    def copied(self) -> Skew:
        """The skew of the other side of a join: every worker gets a copy of its records with hot keys."""
        return replace(self, spread=())


@dataclass(frozen=True, slots=True)
class Partition:
    """A partitioning of records: by H of some columns, or a copy of each record on every worker.

    `Stream.then` takes one for each input, as `requires`; None means any.

    Example:
        >>> by = Partition.by(["k"])
        >>> str(by), by.reads, by.copies, str(by.renamed({"k": "id", "v": "v"})), by.renamed({"v": "v"})
        ('by k', ('k',), False, 'by id', None)
    """

    #: those that H reads
    columns: tuple[str, ...]
    broadcast: bool = False
    #: the only workers that get records; None means all
    workers: tuple[int, ...] | None = None
    #: a user's H, of integers, as text; empty if H is the hash of the columns
    computed: str = ""
    #: of two columns of one kind: pairs with one value, in either column, are on few of the workers
    blocks: bool = False
    expression: Expression | None = field(default=None, compare=False, repr=False)
    #: the hot keys, which are partitioned in another way
    skew: Skew | None = None

    @classmethod
    def by(cls, keys: Sequence[str], workers: tuple[int, ...] | None = None) -> Partition:
        """By H of some keys; without keys all records are on one worker."""
        return cls(tuple(keys), computed="" if keys else "()", workers=workers)

    def __str__(self) -> str:
        by = "broadcast" if self.broadcast else f"by {self.computed or ', '.join(self.columns)}"
        by += " in blocks" if self.blocks else ""
        by += "" if self.skew is None else str(self.skew)
        return by + ("" if self.workers is None else f" on workers {', '.join(map(str, self.workers))}")

    @property
    def copies(self) -> bool:
        """Whether some records are on every worker."""
        return self.broadcast or (self.skew is not None and not self.skew.spread)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns on which a record's worker depends."""
        return (*self.columns, *(self.skew.spread if self.skew is not None else ()))

    def renamed(self, names: Mapping[str, str]) -> Partition | None:
        """The same partitioning where columns have other names; None if a column is missing."""
        if not all(column in names for column in self.reads):
            return None
        columns = tuple(names[column] for column in self.columns)
        if self.computed:
            return self if columns == self.columns else None
        skew = self.skew and replace(self.skew, spread=tuple(names[column] for column in self.skew.spread))
        return replace(self, columns=columns, skew=skew)


@dataclass(frozen=True, slots=True)
class Monotone:
    """The guarantee of a monotone stream: later rounds only improve the records, per key.

    The final record of a key is the one with the least (or greatest) `value`.
    """

    keys: tuple[str, ...]
    #: None means that the keys are the complete record, and a repeated record changes nothing
    value: str | None = None
    greatest: bool = False
    #: of a user's lattice: the least upper bound of two arrays of values, which is the better value
    merge: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One of several ways to the same records; a plan takes one of them."""

    #: the numbers of workers for which it is taken
    workers: range
    #: equal for the ways to the same records
    choice: object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A stage of the graph: a source, a stage with a vertex, or a routing stage."""

    index: int
    title: Name
    kind: Kind = Kind.VERTEX
    #: a label for `explain`
    operator: str
    #: the user's call that made the stage; None if the library's own program did, or the compiler
    call: OperatorCall | None = None
    scope: LoopContext
    where: Where
    #: the path summary from its inputs to its outputs
    summary: PathSummary
    #: those of each (input, output), where a user's vertex declares them; None means no path
    summaries: Sequence[Sequence[PathSummary | None]] | None = None
    outputs: tuple[pa.Schema, ...]
    vertex: Vertex | None = None
    #: per input, the partitioning that it requires; None means any
    requires: tuple[Partition | None, ...] = (None,)
    #: the columns by which the (first) output is partitioned, for any input
    guarantees: tuple[str, ...] | None = None
    #: whether each batch is checked against `guarantees`
    checked: bool = False
    #: the only workers that the stage gets records on; None means all
    workers: tuple[int, ...] | None = None
    #: the way that the stage is part of
    way: Way | None = None
    #: of a concat: the ways that it joins, one for each input
    ways: tuple[Way, ...] = ()
    #: output column -> input column, where each output record copies values of one input record
    keeps: Mapping[str, str] | None = None
    #: set if the stage sends improvements: its records are not final
    monotone: Monotone | None = None
    #: shown by explain only
    detail: str = ""
    #: the arguments that decide the state and its meaning, as plain JSON; a restart compares them
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: of a source: "handle": the program sends the records; "journal": this package reads them, of files,
    #: tables or topics; "dataframe": Spark reads them
    origin: str = ""
    #: of a source: "clock", "manual", or the epoch column
    epochs: str = ""
    #: of a source with an epoch column: how far an epoch may lie above the highest so far
    max_jump: int = 0
    #: of a source that quarantines files: the output that lists them
    quarantined: int | None = None

    @property
    def handle(self) -> bool:
        """Of a source: whether the program sends the records."""
        return self.origin == "handle"

    @property
    def name(self) -> str:
        """The full name, with the loops around the stage. A derived name may change while a flow is built."""
        return self.title.full

    @property
    def named(self) -> bool:
        """Whether the name comes from the user: see `Name.is_stable`."""
        return self.title.is_stable

    @property
    def direct(self) -> bool:
        """Whether the user called the stage's operator itself, not a function of the library that uses it."""
        return self.call is not None and self.call.is_of(self.operator)

    @property
    def guaranteed(self) -> Partition | None:
        """The partitioning of the (first) output, if the stage guarantees one; hot keys are the input's."""
        if self.guarantees is None:
            return None
        skew = self.requires[0].skew if self.requires and self.requires[0] is not None else None
        return replace(Partition.by(self.guarantees, self.workers), skew=skew)

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


def edges_into(edges: Iterable[Edge]) -> Mapping[Stage, list[Edge]]:
    """The input edges of each stage; a stage without inputs has none."""
    into: dict[Stage, list[Edge]] = defaultdict(list)
    for edge in edges:
        into[edge.target].append(edge)
    return into


def closure(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """The starts and all that can be reached from them: what follows each, what follows that, and so on.

    >>> sorted(closure([1, 3], lambda n: [2 * n] if n < 4 else []))
    [1, 2, 3, 4, 6]
    """
    reached = set(starts)
    todo = list(reached)
    while todo:
        new = set(following(todo.pop())) - reached
        reached |= new
        todo += new
    return reached
