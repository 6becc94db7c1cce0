"""From a flow's declared outputs to the driver's sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.folder import FolderSink
from timely_spark.runtime.sinks.sink import (
    CaptureSink,
    ForeachEpochSink,
    InspectSink,
    MemorySink,
    Output,
    Sink,
    SubscribeSink,
)


class Declared(Protocol):
    """An output as the flow declares it (`timely_spark.operators.OutputSpec`)."""

    @property
    def name(self) -> str:
        """The step's name."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the output's records, with a column of changes if there is one."""

    @property
    def kind(self) -> str:
        """capture, inspect, memory, subscribe, foreach_epoch, delta or files."""

    @property
    def release(self) -> Literal["epoch", "arrival"]:
        """Whether records are released by epoch or on arrival."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Other options, by kind."""


def outputs_of(plan: Plan, declared: Iterable[Declared]) -> list[Output]:
    """The outputs of a compiled flow with their sinks."""
    outputs = []
    for spec in declared:
        vertex: Any = plan.by_name[spec.name].template
        outputs.append(Output(name=spec.name, vertex=vertex, sink=_sink(spec), release=spec.release))
    return outputs


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
