"""References of the workers' states after a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.storage.blobs import Blobs, file_of, size_of
from timely_spark.state.codec import as_text, from_text
from timely_spark.worker import Worker, as_rows, read_rows
from timely_spark.worker.rows import Row

#: The kind of a state row that stays in the manifest, because its worker need not run.
KEPT = "kept"


@dataclass(frozen=True, slots=True)
class State:
    """The reference of one worker's state, and the references of blobs in that state."""

    reference: bytes
    kept: tuple[bytes, ...] = ()
    #: bytes by step
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: bytes of arrangements in `kept`, which a round searches and does not read whole
    indexed: int = 0

    def read(self, *, mapped: bool) -> int:
        """Bytes that a round may read; with mapped files, without arrangements."""
        return sum(map(size_of, (self.reference, *self.kept))) - (self.indexed if mapped else 0)

    @property
    def files(self) -> set[str]:
        """The files of the state."""
        return {file for each in (self.reference, *self.kept) if (file := file_of(each)) is not None}

    def row(self, worker: int, kind: str = "state", **meta: Any) -> Row:
        """The state as a row to or from the driver."""
        own = {"kept": as_text(self.kept), "sizes": dict(self.sizes), "indexed": self.indexed}
        return worker, kind, {**meta, **own}, self.reference

    @classmethod
    def of(cls, meta: Mapping[str, Any], payload: pa.Buffer) -> State:
        """The state in a row."""
        return cls(payload.to_pybytes(), tuple(from_text(meta["kept"])), meta["sizes"], meta["indexed"])


@dataclass
class States:
    """The references of all workers' states, as the manifest before a batch has them.

    The reference in Spark's state row may be outdated: it is from the operator, before the local rounds of
    the batch, or from a driver that was presumed dead.
    """

    by_worker: dict[int, State] = field(default_factory=dict)
    #: files that no state refers to after this batch
    gone: list[str] = field(default_factory=list)
    #: milliseconds of each worker in this batch
    took: Counter[int] = field(default_factory=Counter)

    def enter(self, rows: pa.Table) -> pa.Table:
        """Enter the state rows of the operator or of local rounds; returns the other rows."""
        is_state = pc.equal(rows.column("kind"), "state")
        for worker, _, meta, payload in read_rows(rows.filter(is_state)):
            old, state = self.by_worker.get(worker), State.of(meta, payload)
            if old is not None:
                self.gone += sorted(old.files - state.files)
            self.by_worker[worker] = state
            self.took[worker] += meta["ms"]
        return rows.filter(pc.invert(is_state))

    @property
    def sizes(self) -> Counter[str]:
        """Bytes of state by step, summed over the workers."""
        total: Counter[str] = Counter()
        for state in self.by_worker.values():
            total.update(state.sizes)
        return total

    def rows(self, woken: set[int]) -> pa.Table:
        """Rows for the manifest; the next round sends `state` rows to the woken workers."""
        return as_rows(
            state.row(worker, "state" if worker in woken else KEPT)
            for worker, state in sorted(self.by_worker.items())
        )

    @classmethod
    def of(cls, rows: pa.Table) -> States:
        """The states in a manifest's rows."""
        states = cls()
        is_state = pc.is_in(rows.column("kind"), pa.array(["state", KEPT]))
        for worker, _, meta, payload in read_rows(rows.filter(is_state)):
            states.by_worker[worker] = State.of(meta, payload)
        return states


def write_state(blobs: Blobs, worker: Worker, batch: int, before: bytes | None) -> State:
    """Write a worker's state after a round; if it equals the state `before`, keep that reference."""
    prefix = f"{worker.worker}-{batch}"
    data = worker.checkpoint(prefix)
    if before is None or size_of(before) != len(data) or blobs.get(before) != data:
        before = blobs.put(prefix, data)
    return State(before, tuple(sorted(worker.references)), worker.sizes, worker.arrangement_bytes)
