"""Where each worker's state is after a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.blobs import Blobs, file_of, size_of
from timely_spark.worker import Worker, as_rows, read_rows
from timely_spark.worker.codec import as_text, from_text
from timely_spark.worker.rows import Row

#: A state row that stays in the manifest: its worker need not run.
KEPT = "kept"


@dataclass(frozen=True, slots=True)
class State:
    """Where one worker's state is: its reference, and those of the blobs that it refers to in turn."""

    reference: bytes
    kept: tuple[bytes, ...] = ()
    #: bytes by step
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: bytes of `kept` that are searched, not read from end to end
    indexed: int = 0

    def read(self, *, mapped: bool) -> int:
        """Bytes that going on from it may read; where files are mapped, without those that are searched."""
        return sum(map(size_of, (self.reference, *self.kept))) - (self.indexed if mapped else 0)

    @property
    def files(self) -> set[str]:
        """The files that it needs."""
        return {name for each in (self.reference, *self.kept) if (name := file_of(each)) is not None}

    def row(self, worker: int, kind: str = "state", **meta: Any) -> Row:
        """As a row to or from the driver."""
        said = {"kept": as_text(self.kept), "sizes": dict(self.sizes), "indexed": self.indexed}
        return worker, kind, {**meta, **said}, self.reference

    @classmethod
    def of(cls, meta: Mapping[str, Any], payload: pa.Buffer) -> State:
        """The reverse."""
        return cls(payload.to_pybytes(), tuple(from_text(meta["kept"])), meta["sizes"], meta["indexed"])


@dataclass
class States:
    """Where the workers' states are: the manifests say so.

    Spark's state row holds what the operator wrote last, which further rounds of a batch leave behind, and a
    driver that was given up for dead may still write. So the manifest before a batch has the last word.
    """

    known: dict[int, State] = field(default_factory=dict)
    #: files that nothing after this batch refers to
    gone: list[str] = field(default_factory=list)
    #: how long each worker took for its part of this batch, in milliseconds
    took: Counter[int] = field(default_factory=Counter)

    def enter(self, rows: pa.Table) -> pa.Table:
        """Enters the states that the operator wrote, or further rounds of the batch, and gives other rows."""
        mine = pc.equal(rows.column("kind"), "state")
        for worker, _, meta, payload in read_rows(rows.filter(mine)):
            old, state = self.known.get(worker), State.of(meta, payload)
            if old is not None:
                self.gone += sorted(old.files - state.files)
            self.known[worker] = state
            self.took[worker] += meta["ms"]
        return rows.filter(pc.invert(mine))

    @property
    def sizes(self) -> Counter[str]:
        """Bytes of state by step, of all workers together."""
        total: Counter[str] = Counter()
        for state in self.known.values():
            total.update(state.sizes)
        return total

    def rows(self, woken: set[int]) -> pa.Table:
        """For the manifest: those of the woken workers go to them."""
        return as_rows(
            state.row(worker, "state" if worker in woken else KEPT)
            for worker, state in sorted(self.known.items())
        )

    @classmethod
    def of(cls, rows: pa.Table) -> States:
        """The states which a manifest's rows tell of."""
        found = cls()
        mine = pc.is_in(rows.column("kind"), pa.array(["state", KEPT]))
        for worker, _, meta, payload in read_rows(rows.filter(mine)):
            found.known[worker] = State.of(meta, payload)
        return found


def write_state(blobs: Blobs, worker: Worker, batch: int, before: bytes | None) -> State:
    """Writes a worker's state after a batch, or one of its rounds: what has changed since `before`."""
    what = f"{worker.worker}-{batch}"
    data = worker.checkpoint(what)
    if before is None or size_of(before) != len(data) or blobs.get(before) != data:
        before = blobs.put(what, data)
    return State(before, tuple(sorted(worker.kept)), worker.sizes, worker.indexed)
