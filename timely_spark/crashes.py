"""Simulated crashes of batches: where an attempt ends, and the committed state from which it is repeated."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.compiler.plan import Node
from timely_spark.coordinator import RoundResult
from timely_spark.errors import StateError
from timely_spark.operators.custom import MUTABLE
from timely_spark.state.codec import unpack_parts
from timely_spark.worker import wire
from timely_spark.worker.vertex_snapshot import VertexSnapshot
from timely_spark.worker.wire import Message, SinkRows


class Crash(Exception):
    """A simulated crash of the process that runs the batch."""


class ClassState:
    """The attributes of vertices' classes: no checkpoint has them, and all workers of a process share them.

    A simulated crash loses none of it, so that changes are looked for.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        #: the step, the attribute's name and value, and a copy of the value
        self._attributes = [
            (node.name, node.stage.where, f"{each.__name__}.{name}", value, copy.deepcopy(value))
            for node in nodes
            for each in type(node.template).__mro__
            if each.__module__.partition(".")[0] not in {__name__.partition(".")[0], "builtins", "abc"}
            for name, value in vars(each).items()
            if isinstance(value, MUTABLE)
        ]

    def check(self) -> None:
        """Check that no vertex has changed its class.

        Raises:
            StateError: a vertex has.
        """
        for step, where, name, value, before in self._attributes:
            if value != before:
                msg = f"step {step!r} ({where}) changes {name}, of its class: no checkpoint has it"
                hint = "set it in __init__ as an attribute of self, which each worker has for itself."
                raise StateError(msg, hint=hint)


@dataclass
class Crashes:
    """Draws at random which attempts crash, and at which point."""

    random: random.Random
    likely: float
    #: the number of points of the last complete batch; the current point; the point of the crash, if any
    points: int
    #: looked at before each commit
    classes: ClassState
    point: int = -1
    at: int | None = None

    @classmethod
    def of(cls, plan: Plan, seed: int | None, likely: float) -> Crashes:
        """The crashes of a plan's batches."""
        drawn = random.Random(f"crashes {seed}")
        return cls(drawn, likely, 2 * plan.workers + 4, ClassState(plan.nodes))

    def attempt(self) -> Iterator[None]:
        """The points of an attempt at a batch: each `next` continues or crashes."""
        self.at = self.random.randint(0, self.points) if self.random.random() < self.likely else None
        for self.point in itertools.count():
            if self.point == self.at:
                raise Crash
            yield

    def end(self) -> None:
        """The last point, before the commit."""
        self.classes.check()
        self.points = self.point + 1
        if self.at is not None:
            raise Crash

    def back_to(self, at: int) -> int:
        """The batch to continue from after a crash of batch `at`."""
        return self.random.randint(0, at) if self.random.random() < 0.25 else at


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBatch:
    """A batch, and the committed state before it, from which it can be repeated."""

    number: int
    rows: pa.Table
    #: messages for later batches
    later: list[pa.Table]
    #: epochs whose loops are cancelled
    cancel: list[int]
    result: RoundResult
    states: list[bytes | None]
    #: as JSON
    coordinator: str
    #: output parts of incomplete epochs
    parts: dict[tuple[str, int], list[pa.Table]]
    #: the random state of the schedule
    draws: Any
    rounds: int
    logged: int


def results_by_step(plan: Plan, state: bytes | None, rows: pa.Table) -> dict[str, list[Any]]:
    """The results of a worker's round by step: state and sent messages."""
    results: dict[str, list[Any]] = defaultdict(list)
    if state:
        head, *parts = unpack_parts(state)
        for name, snapshot in json.loads(bytes(head))["vertices"].items():
            results[name].append(VertexSnapshot.decode(snapshot, parts))
    for to, message in wire.read(rows, Message):
        source = plan.channels[message.channel].source
        name = plan.nodes[source].name if source is not None else ""
        results[name].append((to, message.encode(), message.payload.to_pybytes()))
    for _, output in wire.read(rows, SinkRows):
        results[output.sink].append((output.encode(), output.payload.to_pybytes()))
    return results
