"""Where each worker's state is after a batch, and what of it the stateful operator has yet to adopt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.blobs import file_of
from timely_spark.worker import as_rows, read_rows

#: A state row that stays in the manifest: its worker need not run.
KEPT = "kept"


@dataclass
class States:
    """References of the workers' states.

    The operator's own state row holds the reference that it wrote last. Further rounds of a batch leave a
    newer one behind: it is carried in the manifests until the operator runs that worker again, and takes it.
    """

    references: dict[int, bytes] = field(default_factory=dict)
    carried: set[int] = field(default_factory=set)
    #: files that nothing after this batch refers to
    gone: list[str] = field(default_factory=list)

    def written(self, rows: pa.Table) -> pa.Table:
        """Enters what the operator wrote, and gives its other rows."""
        mine = pc.equal(rows.column("kind"), "state")
        for worker, _, _, reference in read_rows(rows.filter(mine)):
            self._enter(worker, reference.to_pybytes())
            self.carried.discard(worker)
        return rows.filter(pc.invert(mine))

    def carry(self, changed: Mapping[int, bytes]) -> None:
        """Enters what further rounds of the batch led to."""
        for worker, reference in changed.items():
            self._enter(worker, reference)
            self.carried.add(worker)

    def _enter(self, worker: int, reference: bytes) -> None:
        old, self.references[worker] = self.references.get(worker), reference
        if old is not None and old != reference and (name := file_of(old)) is not None:
            self.gone.append(name)

    def rows(self, woken: set[int]) -> pa.Table:
        """For the manifest: carried states of the woken workers go to them, all others are kept."""
        return as_rows(
            (
                worker,
                "state" if worker in self.carried and worker in woken else KEPT,
                {"carried": worker in self.carried},
                reference,
            )
            for worker, reference in sorted(self.references.items())
        )

    @classmethod
    def of(cls, rows: pa.Table) -> States:
        """The states which a manifest's rows tell of."""
        found = cls()
        mine = pc.is_in(rows.column("kind"), pa.array(["state", KEPT]))
        for worker, _, meta, reference in read_rows(rows.filter(mine)):
            found.references[worker] = reference.to_pybytes()
            if meta["carried"]:
                found.carried.add(worker)
        return found
