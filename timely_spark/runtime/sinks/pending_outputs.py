"""Pending outputs: records of epochs that are not complete, stored in the log until their release."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.blobs import Blobs, files_of
from timely_spark.runtime.storage.log import RoundLog, row_count
from timely_spark.runtime.storage.manifest import Manifest


class PendingOutputs:
    """The pending outputs before a batch, those that the batch adds, and those that the batch releases."""

    def __init__(
        self, log: RoundLog, before: Manifest, outputs: pa.Table, batch: int, wanted: set[str]
    ) -> None:
        self.log, self.before, self.batch = log, before, batch
        self.blobs = Blobs(log.files, log.term)
        # A stable order by worker: Spark's order of rows depends on its partitions.
        order = np.argsort(outputs["worker"].to_numpy(), kind="stable").tolist()
        keys = _keys(outputs)
        self.now = outputs.take(pa.array([row for row in order if keys[row][0] in wanted], pa.int64()))
        self._rows = _by_key(self.now)
        self.unreleased = {
            sink: {epoch: list(files) for epoch, files in epochs.items()}
            for sink, epochs in before.unreleased.items()
            if sink in wanted
        }
        #: (output, epoch) that this batch delivers, or discards.
        self.taken: set[tuple[str, int]] = set()
        #: The complete epochs of each output that wait to be delivered together with later ones.
        self.due: dict[str, list[int]] = {}
        #: The files that were read, with their rows by key.
        self._files: dict[str, tuple[pa.Table, _Rows]] = {}

    def arrived(self, output: Output) -> list[Delivery]:
        """For each epoch the output's pending records, if there are any, and then those of this batch."""
        epochs = {epoch for sink, epoch in self._rows if sink == output.name}
        epochs.update(map(int, self.unreleased.get(output.name, ())))
        return [self.take(output, epoch) for epoch in sorted(epochs)]

    def waiting(self) -> list[tuple[str, int]]:
        """The epochs that were complete before this batch, and are not delivered."""
        return [(name, epoch) for name, epochs in self.before.due.items() for epoch in epochs]

    def released(self, complete: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """The complete epochs that do not wait."""
        epochs = [*self.waiting(), *complete]
        return [(name, epoch) for name, epoch in epochs if epoch not in self.due.get(name, ())]

    def take(self, output: Output, epoch: int) -> Delivery:
        """All records of an epoch: those of earlier batches, then those of this one."""
        files = self.unreleased.get(output.name, {}).pop(str(epoch), ())
        payloads = [
            payload[row].as_py()
            for table, rows in (*map(self._file, files), (self.now, self._rows))
            for payload in [table["payload"]]
            for row in rows.get((output.name, epoch), ())
        ]
        self.taken.add((output.name, epoch))
        return Delivery(epoch, payloads, self.blobs, output.vertex)

    def _file(self, name: str) -> tuple[pa.Table, _Rows]:
        if name not in self._files:
            table = self.log.outputs(name)
            self._files[name] = table, _by_key(table)
        return self._files[name]

    def into(self, manifest: Manifest) -> Manifest:
        """Write the outputs that stay pending, and add their files to the batch's manifest."""
        waiting = [row for key, rows in self._rows.items() if key not in self.taken for row in rows]
        pending = self.now.take(pa.array(sorted(waiting), pa.int64()))
        if pending.num_rows:
            # as blobs: an epoch of many small parts can be too large for the driver
            pending = self.blobs.refer_outputs(f"waiting-{self.batch}", self._merged(pending))
            file = self.log.write_outputs(self.batch, pending)
            for sink, epoch in sorted(set(_keys(pending))):
                self.unreleased.setdefault(sink, {}).setdefault(str(epoch), []).append(file)
        garbage = _files_in(self.before.unreleased) - _files_in(self.unreleased)
        blobs = files_of(self.now).union(*(files_of(self._file(file)[0]) for file in garbage))
        blobs -= files_of(pending)
        return replace(
            manifest,
            batch=self.batch,
            due=self.due,
            unreleased={sink: epochs for sink, epochs in self.unreleased.items() if epochs},
            garbage=[*manifest.garbage, *sorted(garbage | blobs)],
            kept_from=self.before.kept_from,
            rounds=self.before.rounds + manifest.rounds,
        )

    def _merged(self, pending: pa.Table) -> pa.Table:
        """The pending outputs, merged with files of up to twice as many rows: so an epoch has few files."""
        waiting = sorted(_files_in(self.unreleased), key=row_count, reverse=True)
        while waiting and row_count(waiting[-1]) < 2 * pending.num_rows:
            file = waiting.pop()
            keys = {
                (sink, int(epoch))
                for sink, epochs in self.unreleased.items()
                for epoch, files in epochs.items()
                if file in files
            }
            for sink, epoch in keys:
                self.unreleased[sink][str(epoch)].remove(file)
            older, _ = self._file(file)
            older = older.filter(pa.array([key in keys for key in _keys(older)], pa.bool_()))
            pending = pa.concat_tables([older, pending])
        return pending


def _files_in(unreleased: dict[str, dict[str, list[str]]]) -> set[str]:
    return {file for epochs in unreleased.values() for files in epochs.values() for file in files}


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    """The output and the epoch of each row."""
    sinks: list[str] = table["sink"].to_pylist()
    epochs: list[int] = table["epoch"].to_pylist()
    return list(zip(sinks, epochs, strict=True))


def _by_key(table: pa.Table) -> _Rows:
    rows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, key in enumerate(_keys(table)):
        rows[key].append(row)
    return rows


#: the positions of rows, by output and epoch
_Rows = Mapping[tuple[str, int], Sequence[int]]
