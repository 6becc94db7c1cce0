"""From a flow's declared outputs to the driver's sinks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timely_spark.compiler import Plan
from timely_spark.operators.outputs import OutputSpec
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.folder import FolderSink
from timely_spark.runtime.sinks.kafka import KafkaSink
from timely_spark.runtime.sinks.sink import (
    CaptureSink,
    ForeachEpochSink,
    InspectSink,
    MemorySink,
    Output,
    Sink,
    SubscribeSink,
)


def outputs_of(plan: Plan, declared: Iterable[OutputSpec]) -> list[Output]:
    """The outputs of a compiled flow with their sinks."""
    outputs = []
    for spec in declared:
        vertex: Any = plan.by_name[spec.name].template
        outputs.append(Output(name=spec.name, vertex=vertex, sink=_sink(spec), release=spec.release))
    return outputs


def published_by(outputs: Iterable[Output]) -> dict[str, str]:
    """The folders in which outputs publish collections, by the outputs' names."""
    sinks = ((output.name, output.sink) for output in outputs)
    return {name: sink.path for name, sink in sinks if isinstance(sink, CaptureFolderSink) and sink.lease}


def _sink(spec: OutputSpec) -> Sink:
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
            sink = DeltaSink(**options)
        case "files":
            sink = FolderSink(options["path"], options["format"], overwrite=options["overwrite"])
        case "kafka":
            sink = KafkaSink(**options)
        case "folder":
            sink = CaptureFolderSink(**options)
        case _:
            msg = f"output {spec.name!r} is of an unknown kind {spec.kind!r}"
            raise ValueError(msg)
    return sink
