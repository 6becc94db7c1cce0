"""From what the flow declares as outputs to what the driver delivers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa

from timely_spark.runtime.delta import DeltaSink
from timely_spark.runtime.folder import FolderSink
from timely_spark.runtime.sinks import (
    CaptureSink,
    ForeachEpochSink,
    InspectSink,
    MemorySink,
    Output,
    Sink,
    SubscribeSink,
)
from timely_spark.worker import Plan


class Declared(Protocol):
    """An output as the flow declares it (`timely_spark.operators.OutputSpec`)."""

    @property
    def name(self) -> str:
        """The step's name."""

    @property
    def schema(self) -> pa.Schema:
        """What it gives, a column of changes included."""

    @property
    def kind(self) -> str:
        """capture, inspect, memory, subscribe, foreach_epoch, delta or files."""

    @property
    def release(self) -> Literal["epoch", "arrival"]:
        """When it is delivered."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The rest, by kind."""


def outputs_of(plan: Plan, declared: Iterable[Declared]) -> list[Output]:
    """The outputs of a compiled flow; how an epoch's parts are put together is the step's own affair."""
    found = []
    for spec in declared:
        vertex: Any = plan.by_name[spec.name].template
        sink = _sink(spec)
        found.append(Output(name=spec.name, vertex=vertex, sink=sink, release=spec.release))
    return found


def _sink(spec: Declared) -> Sink:
    options = spec.options
    sink: Sink
    match spec.kind:
        case "inspect":
            sink = InspectSink(spec.name, limit=options["limit"])
        case "capture":
            sink = CaptureSink()
        case "memory":
            sink = MemorySink(view=spec.name)
        case "subscribe":
            sink = SubscribeSink(options["on_epoch"], options["on_complete"])
        case "foreach_epoch":
            sink = ForeachEpochSink(options["function"])
        case "delta":
            keys = tuple(options["keys"] or ())
            diff, overwrite = options["diff"], options["overwrite"]
            sink = DeltaSink(options["table"], keys=keys, diff=diff, overwrite=overwrite)
        case "files":
            sink = FolderSink(options["path"], options["format"], overwrite=options["overwrite"])
        case _:
            msg = f"output {spec.name!r} is of an unknown kind {spec.kind!r}"
            raise ValueError(msg)
    return sink
