"""The physical plan: vertices, channels and inputs, as the workers and the coordinator read them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from timely_spark.compiler.identity import described
from timely_spark.compiler.partitioning import output_partitioning
from timely_spark.graph import (
    Edge,
    FoundKeys,
    Kind,
    LoopContext,
    Partition,
    Stage,
    Vertex,
    find,
    integer,
    refuse,
)
from timely_spark.graph.stage import closure
from timely_spark.progress import Reachability
from timely_spark.state.row_times import DIFF
from timely_spark.times import PRODUCT, Antichain, PathSummary, RefinedTimes, Times, Timestamp

_UNITS = {unit: 1000**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB"))}

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
    #: per-batch stages that the sender applies
    through: Through
    #: the path in the graph, over stages that are not vertices
    edges: tuple[Edge, ...]
    summary: PathSummary
    #: None means records stay on their worker
    exchange: Partition | None
    schema: pa.Schema


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A vertex of the plan: its stage, its template, and its channels."""

    index: int
    stage: Stage
    template: Vertex
    waits: bool
    #: the channels of each output port
    out: tuple[tuple[int, ...], ...]
    #: positions in the topological orders of the scopes around the vertex, outermost first
    path: tuple[int, ...]
    #: counters of surrounding loops whose iterations do not matter to the vertex's state
    ignored_counters: frozenset[int]
    #: where summaries are declared, by input the locations of its messages and of the capabilities they give
    ports: tuple[tuple[int, int], ...] = ()
    #: the stage's name: to put it together takes a while, and each call of the vertex asks for it
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.stage.name)

    @property
    def arrives(self) -> int:
        """The location of messages to the vertex, whichever input they are for."""
        return 2 * self.index

    @property
    def leaves(self) -> int:
        """The location of capabilities of all outputs."""
        return 2 * self.index + 1

    def lands(self, input_: int) -> int:
        """The location of messages to an input."""
        return self.ports[input_][0] if self.ports else self.arrives

    def holds(self, input_: int | None) -> int:
        """The location of the capabilities that messages of an input give; None means of all outputs."""
        return self.leaves if input_ is None or not self.ports else self.ports[input_][1]

    def departs(self, output: int) -> Iterator[tuple[int, PathSummary | None]]:
        """The locations of capabilities of an output; and the path from there, if it is not the identity."""
        yield self.leaves, None
        for (_, held), paths in zip(self.ports, self.stage.summaries or (), strict=True):
            if (path := paths[output]) is not None:
                yield held, path

    @property
    def needs_arrivals(self) -> bool:
        """Whether the vertex's calls depend on what may still arrive."""
        return self.waits or self.template.needs_frontier


@dataclass(frozen=True, slots=True, eq=False)
class PlanInput:
    """An input of the flow: a DataFrame or a handle. `epochs`: "clock", "manual", or the name of a column."""

    name: str
    stage: Stage
    epochs: str
    #: the channels of the input's rows
    entries: tuple[int, ...]
    #: the entries that get records at the epoch of late rows
    late: frozenset[int]
    #: the entries that get the rows about quarantined files
    quarantined: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The most that a step may send at one time, on one worker: in an epoch, or an iteration of a loop.

    None if there is no limit.
    """

    records: int | None = None
    bytes: int | None = None
    #: bytes of what is not a feedback of a loop; None means as feedback
    others: int | None = None

    @classmethod
    def of(cls, limit: int | str | None) -> SizeLimit:
        """A number of records, or a text of bytes.

        >>> SizeLimit.of("1.5 GB")
        SizeLimit(records=None, bytes=1500000000, others=None)
        """
        if limit is None:
            return cls()
        if not isinstance(limit, str):
            return cls(records=integer("epoch_limit", limit))
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?B)\s*", limit, re.ASCII | re.IGNORECASE)
        if match is None or not (size := int(float(match[1]) * _UNITS[match[2].upper()])):
            hint = 'give epoch_limit=1_000_000 (records), or "500 MB", "2 GB".'
            return refuse(
                limit, what="epoch_limit", expected="a number of records, or bytes as text,", hint=hint
            )
        return cls(bytes=size)

    def exceeded(self, records: int, size: int, *, feedback: bool = True) -> str | None:
        """The limit that is exceeded, in words; None if it is not."""
        if self.records is not None:
            return f"{self.records:,} records are allowed" if records > self.records else None
        most = self.bytes if feedback or self.others is None else self.others
        return f"{most:,} bytes are allowed" if most is not None and size > most else None


class InputPath(NamedTuple):
    """A way from an input to a location: the input's channel, and path summaries from the input's epochs."""

    source: PlanInput
    channel: int
    paths: tuple[PathSummary, ...]
    #: of the paths with an exchange
    exchanged: tuple[PathSummary, ...]


@dataclass(eq=False)
class Plan:
    """A graph compiled for a number of workers; equal on the driver and on all workers."""

    name: str
    workers: int
    #: the kind of time outside of scopes; it decodes the times of all scopes
    times: Times
    nodes: tuple[Node, ...]
    channels: tuple[Channel, ...]
    inputs: tuple[PlanInput, ...]
    reach: Reachability
    #: in topological order, those of a loop together
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    #: by edge: the exchanges, and required partitionings for which the exchange is elided
    exchanged: dict[int, Partition]
    elided: dict[int, Partition]
    budget: Any = None
    #: warn when a loop has so many iterations in one epoch; None means never
    warn_after: int | None = 10_000
    #: the most that a step may send at one time on one worker; a process that runs the plan has a default
    epoch_limit: SizeLimit = SizeLimit()
    #: what a negative multiplicity does, where it has no meaning: "warn" or "raise"
    on_negative: str = "warn"
    #: whether workers measure each call and message, for the system's log
    measured: bool = False
    #: whether the laws of the user's functions are checked, as the simulator does
    checks_laws: bool = False
    #: how many micro-batches can be rolled back: by default what Spark retains, and two more
    keep: int = 102
    #: stages and loop of the feedback paths that no time gets through (one iteration), by vertex and output
    ends: dict[tuple[int, int], list[tuple[Through, LoopContext]]] = field(default_factory=dict)
    #: the plan by the ways of the checkpoint from which the flow continues, if they are others
    old_way: Plan | None = None
    #: the present call while input is packed: stage, what it reads, records, and its start, as of a `Worker`
    calling: tuple[Stage, Any, int, float] | None = field(default=None, compare=False)
    by_name: dict[str, Node] = field(init=False)
    #: the channels that lead to each input of a vertex
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

    @property
    def clocked(self) -> bool:
        """Whether each micro-batch with input is an epoch."""
        return all(source.epochs == "clock" for source in self.inputs)

    def source(self, name: str) -> PlanInput:
        """An input by name."""
        return find({source.name: source for source in self.inputs}, name, kind="input", flow=self.name)

    @cached_property
    def owners(self) -> tuple[Node, ...]:
        """The vertex of each location."""
        both = [node for node in self.nodes for _ in range(2)]
        return (*both, *(node for node in self.nodes for port in node.ports for _ in port))

    @cached_property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The step and a word for each location, and then for each location as one that an input enters."""
        words: dict[int, str] = {}
        for node in self.nodes:
            words |= {node.arrives: "messages", node.leaves: "capabilities"}
            for number, (lands, holds) in enumerate(node.ports):
                words |= {lands: f"messages of input {number}", holds: f"capabilities of input {number}"}
        places = [(node.name, words[location]) for location, node in enumerate(self.owners)]
        return *places, *((step, "open input") for step, _ in places)

    def lands(self, channel: Channel) -> int:
        """The location of a channel's messages."""
        return self.nodes[channel.target].lands(channel.input)

    def initial(self, node: Node) -> Iterator[Any]:
        """The times of a vertex's initial notifications: its epochs, at iteration 0 of its loops."""
        for epoch in node.template.initial:
            yield self.least(node.stage, epoch)

    def least(self, stage: Stage, epoch: int) -> Any:
        """The least time of an epoch at a stage: at iteration 0 of its loops."""
        time = self.times.epoch(epoch)
        for scope in stage.scope.path[1:]:
            time = scope.times.enter(scope.depth - 1).results_in(time)
        return time

    @cached_property
    def partitioning(self) -> dict[tuple[str, int], Partition | None]:
        """The partitioning of the records that arrive at each step's inputs; None means unknown."""
        by_edge = output_partitioning(self.edges, self.exchanged, self.elided)
        return {(edge.target.name, edge.input): by_edge.get(edge.index) for edge in self.edges}

    @cached_property
    def differences(self) -> dict[str, str]:
        """The column of differences of each output that has a collection's changes, perhaps renamed."""
        columns: dict[str, str] = {}
        for node in self.nodes:
            for channel in self.into[node.index, 0] if node.stage.kind is Kind.OUTPUT else ():
                names = {name: name for name in channel.edges[-1].schema.names}
                for stage, _ in reversed(channel.through):
                    before = stage.keeps or {}
                    names = {name: before[old] for name, old in names.items() if old in before}
                    columns.update((node.name, name) for name, old in names.items() if old == DIFF)
        return columns

    @cached_property
    def found_keys(self) -> dict[str, FoundKeys]:
        """The hot keys that a run finds itself, by the first step that places records by them."""
        steps: dict[FoundKeys, str] = {}
        for stage in self.stages:
            for each in (*stage.requires, stage.vertex):
                skew = getattr(each, "skew", None)
                if skew is not None and isinstance(skew.hot, FoundKeys):
                    steps.setdefault(skew.hot, stage.name)
        return {step: keys for keys, step in steps.items()}

    def spread(self, keys_by_step: Mapping[str, Sequence[int]]) -> None:
        """Spread the records of these hot keys, by step, and of no others of `found_keys`, from now on."""
        for step, keys in self.found_keys.items():
            keys[:] = keys_by_step.get(step, ())

    @cached_property
    def in_order(self) -> bool:
        """Whether all that work leads to has a later `key`; not where two loops lead to each other."""
        inner = (c for c in self.channels if not any(edge.target.kind is Kind.FEEDBACK for edge in c.edges))
        return (self.times == PRODUCT or isinstance(self.times, RefinedTimes)) and all(
            c.source is None or self.nodes[c.source].path < self.nodes[c.target].path for c in inner
        )

    @cached_property
    def feedbacks(self) -> dict[int, LoopContext]:
        """The loop of each channel that crosses a feedback; only of the first one with the same records."""
        first: dict[int, tuple[int, LoopContext]] = {}
        for channel in self.channels:
            for edge in channel.edges:
                if edge.target.kind is Kind.FEEDBACK:
                    first.setdefault(edge.index, (channel.index, edge.target.scope))
        return dict(first.values())

    @cached_property
    def entries_to(self) -> dict[int, list[InputPath]]:
        """The inputs' channels that lead to each location."""
        entries: dict[int, list[InputPath]] = defaultdict(list)
        for source in self.inputs:
            for index in source.entries:
                channel = self.channels[index]
                every, exchanged = self.reach.paths_from(self.lands(channel))
                for location in every:
                    behind = every[location], exchanged.get(location, ())
                    both = ([channel.summary.followed_by(path) for path in paths] for paths in behind)
                    minimal = (Antichain(path for path in one if path is not None).elements for one in both)
                    entries[location].append(InputPath(source, index, *minimal))
        return dict(entries)

    @cached_property
    def pairing(self) -> dict[str, tuple[str, ...]]:
        """The steps that match records of one epoch of different inputs by the clock, with these inputs.

        Records that are sent to these inputs together may fall into different micro-batches, which are
        epochs.
        """
        reaching: dict[tuple[int, int], set[str]] = defaultdict(set)
        for source in self.inputs if self.clocked else ():
            for index in closure(source.entries, self._next_channels):
                channel = self.channels[index]
                reaching[channel.target, channel.input].add(source.name)
        pairing = {}
        for node in self.nodes:
            pairs = node.waits and node.template.per_time
            sides = [reaching[node.index, side] for side in (0, 1)] if pairs else []
            if sides and sides[0] and sides[1] and len(names := sides[0] | sides[1]) > 1:
                pairing[node.name] = tuple(name for name in self.sources if name in names)
        return pairing

    def _next_channels(self, index: int) -> Iterator[int]:
        return chain.from_iterable(self.nodes[self.channels[index].target].out)

    def counting_given_epochs(self) -> Plan:
        """The plan with manual epochs in place of the clock's, if results depend on them; for simulations.

        State expires by epochs, and ids are made of them. By the clock an epoch is a batch, and the schedule
        decides how many batches have no input.
        """
        counts = any(stage.parameters.get(key) for stage in self.stages for key in ("expire", "after"))
        counts |= any(getattr(stage.vertex, "counts_epochs", False) for stage in self.stages)
        if not (counts and self.clocked and all(source.stage.handle for source in self.inputs)):
            return self
        return replace(self, inputs=tuple(replace(source, epochs="manual") for source in self.inputs))

    @property
    def unnamed(self) -> tuple[Stage, ...]:
        """The steps that keep state over epochs and have no name of the user's, one for each line.

        None if all are of one line: whatever is added or changed elsewhere, a changed flow finds them.
        """
        lines: dict[Any, Stage] = {}
        for node in self.nodes:
            if node.stage.kind is Kind.VERTEX and not node.template.per_time and not node.stage.named:
                lines.setdefault(node.stage.where, node.stage)
        return tuple(lines.values()) if len(lines) > 1 else ()

    def described(self) -> dict[str, Any]:
        """The description of this plan in a checkpoint: see `identity`."""
        return described(self)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of `described`."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:16]

    def key(self, node: Node, time: Timestamp) -> tuple[Any, ...]:
        """The sort key of (node, time) in (time, topological) order: after all that could result in it."""
        return tuple(chain.from_iterable(zip(time.order_key(), node.path, strict=True)))
