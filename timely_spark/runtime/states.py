"""Where each worker's state is after a batch, and what of it the stateful operator has yet to adopt."""

from __future__ import annotations

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

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(map(size_of, (self.reference, *self.kept)))

    @property
    def files(self) -> set[str]:
        """The files that it needs."""
        return {name for each in (self.reference, *self.kept) if (name := file_of(each)) is not None}

    def row(self, worker: int, kind: str = "state", **meta: Any) -> Row:
        """As a row to or from the driver."""
        return worker, kind, {**meta, "kept": as_text(self.kept)}, self.reference

    @classmethod
    def of(cls, meta: Mapping[str, Any], payload: pa.Buffer) -> State:
        """The reverse."""
        return cls(payload.to_pybytes(), tuple(from_text(meta["kept"])))


@dataclass
class States:
    """Where the workers' states are.

    The operator's own state row holds the reference that it wrote last. Further rounds of a batch leave a
    newer one behind: it is carried in the manifests until the operator runs that worker again, and takes it.
    """

    known: dict[int, State] = field(default_factory=dict)
    carried: set[int] = field(default_factory=set)
    #: files that nothing after this batch refers to
    gone: list[str] = field(default_factory=list)

    def written(self, rows: pa.Table) -> pa.Table:
        """Enters what the operator wrote, and gives its other rows."""
        mine = pc.equal(rows.column("kind"), "state")
        for worker, _, meta, payload in read_rows(rows.filter(mine)):
            self._enter(worker, State.of(meta, payload))
            self.carried.discard(worker)
        return rows.filter(pc.invert(mine))

    def carry(self, changed: Mapping[int, State]) -> None:
        """Enters what further rounds of the batch led to."""
        for worker, state in changed.items():
            self._enter(worker, state)
            self.carried.add(worker)

    def _enter(self, worker: int, state: State) -> None:
        old, self.known[worker] = self.known.get(worker), state
        if old is not None:
            self.gone += sorted(old.files - state.files)

    def rows(self, woken: set[int]) -> pa.Table:
        """For the manifest: carried states of the woken workers go to them, all others are kept."""
        return as_rows(
            state.row(
                worker,
                "state" if worker in self.carried and worker in woken else KEPT,
                carried=worker in self.carried,
            )
            for worker, state in sorted(self.known.items())
        )

    @classmethod
    def of(cls, rows: pa.Table) -> States:
        """The states which a manifest's rows tell of."""
        found = cls()
        mine = pc.is_in(rows.column("kind"), pa.array(["state", KEPT]))
        for worker, _, meta, payload in read_rows(rows.filter(mine)):
            found.known[worker] = State.of(meta, payload)
            if meta["carried"]:
                found.carried.add(worker)
        return found


def written(blobs: Blobs, worker: Worker, batch: int, before: bytes | None) -> State:
    """Writes a worker's state after a batch, or one of its rounds: what has changed since `before`."""
    what = f"{worker.worker}-{batch}"
    data = worker.checkpoint(what)
    if before is None or size_of(before) != len(data) or blobs.get(before) != data:
        before = blobs.put(what, data)
    return State(before, tuple(sorted(worker.kept)))
