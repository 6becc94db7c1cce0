"""`SystemLog`: what each micro-batch did, by step and worker, as a capture that a flow can replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.operators import output_vertex as vertices
from timely_spark.operators.join import with_nulls
from timely_spark.runtime.process import in_thread
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs

CountChanges: TypeAlias = list[list[Any]]
"""The changes of counts in each round of a micro-batch: `RoundResult.pointstamps`."""

SCHEMA = pa.schema(
    [
        ("kind", pa.string()), ("step", pa.string()), ("worker", pa.int32()), ("epoch", pa.int64()),
        ("count", pa.int64()), ("records", pa.int64()), ("bytes", pa.int64()), ("ns", pa.int64()),
        ("round", pa.int32()), ("place", pa.string()), ("time", pa.string()), ("change", pa.int64()),
    ]
)  # fmt: skip
"""Columns: kind, step, worker, epoch (of the flow that is logged), count, records, bytes, ns; of pointstamps
also round, place, time and change. Null where a kind has none. The page "The system's log" explains them."""


@dataclass
class SystemLog:
    """Writes one epoch for each micro-batch, numbered like it. The first attempt at a micro-batch counts.

    A thread waits for the disk, which takes as long as a small epoch.
    """

    path: str
    #: the step of each location, and a word: `Plan.places`
    places: Sequence[tuple[str, str]]
    #: the last write; None if nothing is to be waited for
    _writing: Future[None] | None = field(default=None, repr=False)

    @property
    def _sink(self) -> CaptureFolderSink:
        return CaptureFolderSink(self.path)

    @property
    def output(self) -> Output:
        """The capture, as an output of the flow."""
        return Output(name="log", vertex=vertices.OutputVertex(SCHEMA), sink=CaptureFolderSink(self.path))

    def write(self, before: Manifest, manifest: Manifest, states: StateRefs, counted: CountChanges) -> None:
        """Begin to write what a micro-batch did, and how it changed the counts of pointstamps.

        Raises:
            StorageFailed: the write before this one failed.
        """
        self.wait()
        columns = zip(*_rows(manifest, states), strict=True)
        rows = with_nulls(dict(zip(SCHEMA.names, columns, strict=False)), SCHEMA)
        stamps = _pointstamps(self.places, before.coordinator["tracker"], counted)
        table = pa.concat_tables([rows, stamps])
        self._writing = in_thread(self._thread, partial(self._write, manifest, table))

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            StorageFailed: the last write failed.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, manifest: Manifest, table: pa.Table) -> None:
        if not Files(self.path).exists(self._sink._name(manifest.batch)):  # noqa: SLF001 - its own room
            self._sink.write(manifest.batch, table)
        if manifest.complete:
            self._sink.complete()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "timely-log")


def _pointstamps(
    places: Sequence[tuple[str, str]], before: Mapping[str, Any], rounds: CountChanges
) -> pa.Table:
    """The counts before the micro-batch, as of round -1, and then the changes of each round."""
    inputs = len(places) // 2
    active = [(at + inputs * (kind == "inputs"), *rest) for kind in before for at, *rest in before[kind]]
    first: CountChanges = [[(None, location, time, None, n) for location, time, n in active]]
    rows = [(number, *row) for number, changes in enumerate([*first, *rounds], -1) for row in changes]
    if not rows:
        return SCHEMA.empty_table()
    numbers, workers, locations, times, changes, counts = zip(*rows, strict=True)
    steps, words = zip(*(places[location] for location in locations), strict=True)
    columns = {
        "kind": ["pointstamp"] * len(rows), "round": numbers, "step": steps, "place": words,
        "worker": workers, "epoch": list(map(_epoch, times)), "time": list(map(json.dumps, times)),
        "change": changes, "count": counts,
    }  # fmt: skip
    return with_nulls(columns, SCHEMA)


def _epoch(time: Any) -> int | None:
    """The epoch of an encoded time; None if it is of a user's type that shows none.

    >>> _epoch([3, 0]), _epoch("noon")
    (3, None)
    """
    return time[0] if isinstance(time, list) and time and isinstance(time[0], int) else None


def _rows(manifest: Manifest, states: StateRefs) -> Iterator[tuple[Any, ...]]:
    for worker, measured in states.measured.items():
        for kind, step, epoch, count, records, size, ns in measured:
            if kind == "call":
                yield kind, step, worker, epoch, count, records, None, ns
            else:
                yield kind, step, worker, epoch, count, records, size, None
    for worker, state in states.by_worker.items():
        for step, size in state.sizes.items():
            yield "state", step, worker, None, None, None, size, None
    for output, times in manifest.frontier.items():
        for time in times:
            yield "frontier", output, None, _epoch(time), None, None, None, None
    stats = manifest.stats
    for worker, ms in states.took.items():
        yield "worker", None, worker, None, None, None, None, int(1e6 * ms)
    flying, size = stats.get("rows_in_flight", 0), stats.get("bytes_in_flight", 0)
    yield "batch", None, None, None, stats.get("rounds"), stats.get("records", 0), None, None
    yield "in flight", None, None, None, flying, None, size, None
    yield "notifications", None, None, None, manifest.notifications, None, None, None
