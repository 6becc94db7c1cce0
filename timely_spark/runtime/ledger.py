"""What was put out for epochs that are not complete: kept in the log, batch by batch, until their release."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.log import Manifest, RoundLog, outputs_file
from timely_spark.runtime.sinks import Output


class Ledger:
    """Which batches hold parts of epochs that are not complete, and what becomes of them in this turn."""

    def __init__(
        self, log: RoundLog, before: Manifest, outputs: pa.Table, batch: int, wanted: set[str]
    ) -> None:
        self.log, self.before, self.batch = log, before, batch
        outputs = outputs.filter(pc.is_in(outputs["sink"], pa.array(sorted(wanted), pa.string())))
        # A stable order by worker: Spark's order of rows depends on its partitions.
        self.now = outputs.take(pc.sort_indices(outputs, [("worker", "ascending")]))
        self.unreleased = {
            sink: {epoch: list(batches) for epoch, batches in epochs.items()}
            for sink, epochs in before.unreleased.items()
        }
        #: (output, epoch) that need not be kept beyond this turn.
        self.taken: set[tuple[str, int]] = set()
        self._files: dict[int, pa.Table] = {}

    def arrived(self, output: Output) -> list[tuple[int, pa.Table]]:
        """What this batch put out, per epoch; it is not kept."""
        epochs = sorted(epoch for sink, epoch in set(_names(self.now)) if sink == output.name)
        self.taken.update((output.name, epoch) for epoch in epochs)
        return [(epoch, output.read(_parts(self.now, output.name, epoch))) for epoch in epochs]

    def take(self, output: Output, epoch: int) -> pa.Table:
        """All of an epoch: from earlier batches, then from this one."""
        payloads = []
        for batch in self.unreleased.get(output.name, {}).pop(str(epoch), ()):
            if batch not in self._files:
                self._files[batch] = self.log.outputs(batch)
            payloads += _parts(self._files[batch], output.name, epoch)
        payloads += _parts(self.now, output.name, epoch)
        self.taken.add((output.name, epoch))
        return output.read(payloads)

    def into(self, manifest: Manifest) -> Manifest:
        """Writes what stays unreleased and enters it all into the turn's manifest."""
        names = _names(self.now)
        kept = self.now.filter(pa.array([name not in self.taken for name in names], pa.bool_()))
        if kept.num_rows:
            self.log.write_outputs(self.batch, kept)
            for sink, epoch in sorted(set(names) - self.taken):
                self.unreleased.setdefault(sink, {}).setdefault(str(epoch), []).append(self.batch)
        old = _files_of(self.before.unreleased)
        gone = old - _files_of(self.unreleased)
        return replace(
            manifest,
            batch=self.batch,
            unreleased={sink: epochs for sink, epochs in self.unreleased.items() if epochs},
            spent=[
                *self.before.spent,
                *((outputs_file(part), self.batch) for part in sorted(gone)),
                *manifest.spent,
            ],
            kept_from=self.before.kept_from,
            rounds=self.before.rounds + manifest.rounds,
        )


def _files_of(unreleased: dict[str, dict[str, list[int]]]) -> set[int]:
    return {batch for epochs in unreleased.values() for batches in epochs.values() for batch in batches}


def _names(table: pa.Table) -> list[tuple[str, int]]:
    sinks: list[str] = table["sink"].to_pylist()
    epochs: list[int] = table["epoch"].to_pylist()
    return list(zip(sinks, epochs, strict=True))


def _parts(table: pa.Table, sink: str, epoch: int) -> list[bytes]:
    mine = (pc.field("sink") == sink) & (pc.field("epoch") == epoch)
    parts: list[bytes] = table.filter(mine)["payload"].to_pylist()
    return parts
