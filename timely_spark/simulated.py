"""`SimulatedFolders`: what a simulated flow captures to folders, and replays from them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.dataflow import Dataflow
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.outputs import outputs_of
from timely_spark.runtime.sources.arrivals import Part
from timely_spark.runtime.sources.replay import ReplaySource


class SimulatedInputs(Protocol):
    """The inputs of a simulation."""

    def send(self, name: str, records: Any, *, epoch: int | None = None) -> None: ...
    def advance_to(self, name: str, epoch: int) -> None: ...
    def close(self, name: str) -> None: ...


class SimulatedFolders:
    """The folders of a simulation, which counts as one run with a checkpoint of its own."""

    def __init__(self, flow: Dataflow | Plan, plan: Plan) -> None:
        self._identity = identity = f"simulation-{uuid.uuid4()}"
        self._sinks: dict[str, CaptureFolderSink] = {}
        #: The captures that have not ended, and the last epoch read.
        self._sources: dict[str, ReplaySource] = {}
        if isinstance(flow, Dataflow):
            outputs = outputs_of(plan, flow.outputs)
            captures = [(one, one.sink) for one in outputs if isinstance(one.sink, CaptureFolderSink)]
            for output, sink in captures:
                sink.prepare(None, output, "", identity)
            for output, sink in captures:
                sink.claim(None, output)
                self._sinks[output.name] = sink
            self._sources = {
                name: source for name, source in flow.frames.items() if isinstance(source, ReplaySource)
            }
        self._read = dict.fromkeys(self._sources, -1)
        #: The snapshot that each source begins with.
        self._since: dict[str, int] = {}

    def replay(self, inputs: SimulatedInputs) -> None:
        """Send what was captured since the last time."""
        for name, source in list(self._sources.items()):
            published, reader = source.published, f"{self._identity[-12:]}{name}"
            if published is not None and name not in self._since:
                self._since[name] = source.begin(published, reader)
            captured = source.after(self._read[name], self._since.get(name, -1))
            for epoch, file in captured.epochs:
                schema = source.schema()
                batches = source.read(Part(file.path, 0, file.size), schema, schema.names)
                inputs.send(name, pa.Table.from_batches(batches, schema), epoch=epoch)
                inputs.advance_to(name, epoch + 1)
                self._read[name] = epoch
            if published is not None:
                source.hold(published, reader, max(self._read[name], self._since[name]), self._since[name])
            if captured.complete:
                if published is not None:
                    published.release(reader)
                inputs.close(name)
                del self._sources[name]

    def deliver(self, name: str, epoch: int, table: pa.Table) -> None:
        """Write an epoch, if the output is a folder."""
        if name in self._sinks:
            self._sinks[name].write(epoch, table)

    def end(self, outputs: Iterable[str]) -> None:
        """Write the end of the captures among outputs that will have no more epochs."""
        for name in self._sinks.keys() & {*outputs}:
            self._sinks[name].complete()
