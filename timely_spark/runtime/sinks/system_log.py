"""`SystemLog`: what each micro-batch did, by step and worker, as a capture that a flow can replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.operators import output_vertex as vertices
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import States

CountChanges: TypeAlias = list[list[Any]]
"""By round of a micro-batch the changes of counts: `RoundResult.pointstamps`."""

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
    """Writes one epoch for each micro-batch, numbered like it. The first attempt at a micro-batch counts."""

    path: str
    #: by location the step and a word: `Plan.places`
    places: Sequence[tuple[str, str]]

    @property
    def _sink(self) -> CaptureFolderSink:
        return CaptureFolderSink(self.path)

    def prepare(self, checkpoint: str, identity: str) -> None:
        """Own the folder."""
        output = Output(name="log", vertex=vertices.OutputVertex(SCHEMA), sink=self._sink)
        self._sink.prepare(None, output, checkpoint, identity)

    def write(self, before: Manifest, manifest: Manifest, states: States, counted: CountChanges) -> None:
        """Write what a micro-batch did, and how it changed the counts of pointstamps."""
        if not Files(self.path).exists(self._sink._name(manifest.batch)):  # noqa: SLF001 - its own room
            rows = [dict(zip(SCHEMA.names, row, strict=False)) for row in _rows(manifest, states)]
            rows += _pointstamps(self.places, before.coordinator["tracker"], counted)
            self._sink.write(manifest.batch, pa.Table.from_pylist(rows, SCHEMA))
        if manifest.complete:
            self._sink.complete()


def _pointstamps(
    places: Sequence[tuple[str, str]], before: Mapping[str, Any], rounds: CountChanges
) -> Iterator[dict[str, Any]]:
    """The rows before the micro-batch, as of round -1, and then the changes of each round."""
    inputs = len(places) // 2
    active = [(at + inputs * (kind == "inputs"), *rest) for kind in before for at, *rest in before[kind]]
    first: CountChanges = [[(None, location, time, None, n) for location, time, n in active]]
    for number, changes in enumerate([*first, *rounds], -1):
        for worker, location, time, change, count in changes:
            step, place = places[location]
            yield {
                "kind": "pointstamp", "round": number, "step": step, "place": place, "worker": worker,
                "epoch": _epoch(time), "time": json.dumps(time), "change": change, "count": count,
            }  # fmt: skip


def _epoch(time: Any) -> int | None:
    """The epoch of an encoded time; None if it is of a user's type that shows none.

    >>> _epoch([3, 0]), _epoch("noon")
    (3, None)
    """
    return time[0] if isinstance(time, list) and time and isinstance(time[0], int) else None


def _rows(manifest: Manifest, states: States) -> Iterator[Iterable[Any]]:
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
