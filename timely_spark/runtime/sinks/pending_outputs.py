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
        names = _names(outputs)
        self.now = outputs.take(pa.array([row for row in order if names[row][0] in wanted], pa.int64()))
        self._places = _by_name(self.now)
        self.unreleased = {
            sink: {epoch: list(files) for epoch, files in epochs.items()}
            for sink, epochs in before.unreleased.items()
            if sink in wanted
        }
        #: (output, epoch) that this batch delivers, or discards.
        self.taken: set[tuple[str, int]] = set()
        #: The epochs of each output that are complete, and wait for others.
        self.due: dict[str, list[int]] = {}
        #: The files that were read, with the rows of each output and epoch.
        self._files: dict[str, tuple[pa.Table, _Places]] = {}

    def arrived(self, output: Output) -> list[Delivery]:
        """Per epoch, the records of this batch, after pending ones if the output waited for epochs before."""
        epochs = {epoch for sink, epoch in self._places if sink == output.name}
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
            for table, places in (*map(self._file, files), (self.now, self._places))
            for payload in [table["payload"]]
            for row in places.get((output.name, epoch), ())
        ]
        self.taken.add((output.name, epoch))
        return Delivery(epoch, payloads, self.blobs, output.vertex)

    def _file(self, name: str) -> tuple[pa.Table, _Places]:
        if name not in self._files:
            table = self.log.outputs(name)
            self._files[name] = table, _by_name(table)
        return self._files[name]

    def into(self, manifest: Manifest) -> Manifest:
        """Write the outputs that stay pending, and add their files to the batch's manifest."""
        left = [row for name, rows in self._places.items() if name not in self.taken for row in rows]
        pending = self.now.take(pa.array(sorted(left), pa.int64()))
        if pending.num_rows:
            # as blobs: an epoch of many small parts can be too large for the driver
            pending = self.blobs.refer_outputs(f"waiting-{self.batch}", self._merged(pending))
            file = self.log.write_outputs(self.batch, pending)
            for sink, epoch in sorted(set(_names(pending))):
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
        """The pending outputs with those of files that have no more rows, so that an epoch has few files."""
        waiting = sorted(_files_in(self.unreleased), key=row_count, reverse=True)
        while waiting and row_count(waiting[-1]) < 2 * pending.num_rows:
            file = waiting.pop()
            names = {
                (sink, int(epoch))
                for sink, epochs in self.unreleased.items()
                for epoch, files in epochs.items()
                if file in files
            }
            for sink, epoch in names:
                self.unreleased[sink][str(epoch)].remove(file)
            older, _ = self._file(file)
            older = older.filter(pa.array([name in names for name in _names(older)], pa.bool_()))
            pending = pa.concat_tables([older, pending])
        return pending


def _files_in(unreleased: dict[str, dict[str, list[str]]]) -> set[str]:
    return {file for epochs in unreleased.values() for files in epochs.values() for file in files}


def _names(table: pa.Table) -> list[tuple[str, int]]:
    sinks: list[str] = table["sink"].to_pylist()
    epochs: list[int] = table["epoch"].to_pylist()
    return list(zip(sinks, epochs, strict=True))


def _by_name(table: pa.Table) -> _Places:
    """The rows of each output and epoch."""
    places: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, name in enumerate(_names(table)):
        places[name].append(row)
    return places


#: the numbers of rows, by output and epoch
_Places = Mapping[tuple[str, int], Sequence[int]]
