"""`StateRefs`: the references of the workers' states after a batch, their sizes, and what the round took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from timely_spark.runtime.storage.blobs import Blobs, file_of, size_of
from timely_spark.state.codec import as_text, from_text
from timely_spark.worker import Worker, wire
from timely_spark.worker.wire import Item, RowKind


@dataclass(frozen=True, slots=True)
class State(Item):
    """The reference of one worker's state, and the references of blobs in that state."""

    kind, binary = RowKind.STATE, "reference"
    reference: bytes
    #: the references of blobs, as text
    blobs: list[str] = field(default_factory=list)
    #: bytes by step
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: bytes in memory by step
    memory: Mapping[str, int] = field(default_factory=dict)
    #: bytes of arrangements in `blobs`, which a round searches and does not read whole
    indexed: int = 0
    #: milliseconds that the worker has taken in this batch
    ms: float = 0.0
    #: in this batch, records by channel, and microseconds by step
    moved: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    #: if several tasks host workers, by step `Worker.work` in this batch
    work: Mapping[str, list[int]] = field(default_factory=dict)
    #: if the plan is measured, what the worker did in this batch: kind, step, epoch, and the counts
    measured: list[list[Any]] = field(default_factory=list)

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> State:
        return cls(**values | {"reference": values["reference"].to_pybytes()})

    def read(self, *, mapped: bool) -> int:
        """Bytes that a round may read; with mapped files, without arrangements."""
        return sum(map(size_of, self._references)) - (self.indexed if mapped else 0)

    @property
    def files(self) -> set[str]:
        """The files of the state."""
        return {file for each in self._references if (file := file_of(each)) is not None}

    @property
    def _references(self) -> list[bytes]:
        return [self.reference, *from_text(self.blobs)]


@dataclass
class StateRefs:
    """The references of all workers' states, as the manifest before a batch has them.

    The reference in Spark's state row may be outdated: it is from the operator, before the local rounds of
    the batch, or from a driver that was presumed dead.
    """

    by_worker: dict[int, State] = field(default_factory=dict)
    #: files that no state refers to after this batch
    garbage: list[str] = field(default_factory=list)
    #: milliseconds of each worker in this batch
    took: dict[int, float] = field(default_factory=dict)
    #: of all workers in this batch, records by channel, and microseconds by step
    moved: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)
    #: the most bytes in memory of each step in this batch, by worker
    peaks: dict[int, dict[str, int]] = field(default_factory=dict)
    #: microseconds and `Worker.work`, by worker and step, if several tasks host the workers
    efforts: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    #: what each worker did in this batch: see `State.measured`
    measured: dict[int, list[list[Any]]] = field(default_factory=dict)

    def enter(self, rows: pa.Table) -> None:
        """Enter the states among the rows of the operator, or of local rounds."""
        for worker, state in wire.read(rows, State):
            if (old := self.by_worker.get(worker)) is not None:
                self.garbage += sorted(old.files - state.files)
            self.by_worker[worker] = replace(state, ms=0.0, moved={}, spent={}, work={}, measured=[])
            if state.work:
                self.efforts[worker] = {
                    step: [spent, *state.work[step]] for step, spent in state.spent.items()
                }
            peaks = self.peaks.setdefault(worker, {})
            peaks.update({step: max(size, peaks.get(step, 0)) for step, size in state.memory.items()})
            self.moved.update(state.moved)
            self.spent.update(state.spent)
            self.measured.setdefault(worker, []).extend(state.measured)
            self.took[worker] = self.took.get(worker, 0.0) + state.ms

    @property
    def sizes(self) -> Counter[str]:
        """Bytes of state by step, summed over the workers."""
        total: Counter[str] = Counter()
        for state in self.by_worker.values():
            total.update(state.sizes)
        return total

    @property
    def memory(self) -> Counter[str]:
        """Bytes in memory by step, summed over the workers: of this batch the most, else the last ones."""
        total: Counter[str] = Counter()
        for worker, state in self.by_worker.items():
            total.update(self.peaks.get(worker, state.memory))
        return total

    @property
    def references(self) -> dict[int, bytes]:
        """The reference of each worker's state."""
        return {worker: state.reference for worker, state in self.by_worker.items()}

    def encoded(self, blobs: Blobs, workers: int) -> list[pa.Buffer | None]:
        """The state of each worker; None if it never ran."""
        states = map(self.by_worker.get, range(workers))
        return [None if state is None else blobs.get(state.reference) for state in states]

    def rows(self) -> pa.Table:
        """Rows for the manifest."""
        return wire.table(sorted(self.by_worker.items(), key=itemgetter(0)))

    @classmethod
    def of(cls, rows: pa.Table) -> StateRefs:
        """The states in a manifest's rows."""
        return cls(dict(wire.read(rows, State)))


def write_state(
    blobs: Blobs, worker: Worker, batch: int, before: bytes | None, *, ms: float = 0.0, work: bool = False
) -> State:
    """Write a worker's state after a round; if it equals the state `before`, keep that reference.

    Args:
        work: whether the state has the worker's work by step.
    """
    prefix = f"{worker.worker}-{batch}"
    data = worker.checkpoint(prefix)
    if before is None or size_of(before) != len(data) or blobs.get(before) != data:
        before = blobs.put(prefix, data)
    measured = [[*key, *counts] for key, counts in worker.measured.items()]
    worker.measured.clear()
    moved = {str(channel): records for channel, records in sorted(worker.moved.items())}
    nodes = worker.plan.nodes
    spent = {nodes[index].name: ns // 1000 for index, ns in sorted(worker.spent.items())}
    memory = worker.memory()
    counts = {nodes[index].name: each for index, each in worker.work.items()} if work else {}
    for each in (worker.moved, worker.spent, worker.work):
        each.clear()
    references = as_text(sorted(worker.references))
    return State(
        before,
        references,
        worker.sizes,
        memory,
        indexed=worker.arrangement_bytes,
        ms=ms,
        moved=moved,
        spent=spent,
        work=counts,
        measured=measured,
    )
