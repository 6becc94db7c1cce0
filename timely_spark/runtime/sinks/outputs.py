"""From a flow's declared outputs to the driver's sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timely_spark.compiler import Plan
from timely_spark.errors import StorageFailed, TimelyError, without_stack
from timely_spark.operators.outputs import OutputSpec
from timely_spark.runtime.errors import OutputMismatch
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def prepare_outputs(
    session: SparkSession, outputs: Sequence[Output], plan: Plan, checkpoint: str, identity: str
) -> None:
    """Check at a start that each output may write to its place; changes no place.

    Raises:
        OutputMismatch: an output may not.
    """
    for output in outputs:
        with _named(output, plan):
            output.sink.prepare(session, output, checkpoint, identity)
    places: dict[str, Output] = {}
    for output in _in_turn(outputs):
        with _named(output, plan):
            place = output.sink.resolved(session)
            if place and (first := places.setdefault(place, output)) is not output:
                output.sink.check_beside(session, output, first)


def claim_outputs(
    session: SparkSession, outputs: Sequence[Output], plan: Plan, says: Callable[[str], object]
) -> None:
    """Make each place its output's, after `prepare_outputs`."""
    for output in _in_turn(outputs):
        says(f"prepares output {output.name!r}")
        with _named(output, plan):
            output.sink.claim(session, output)


def _in_turn(outputs: Iterable[Output]) -> list[Output]:
    """Tables and folders of other checkpoints are emptied last: Delta may yet refuse to make a table."""
    return sorted(outputs, key=lambda output: output.sink.replaces)


@contextmanager
def _named(output: Output, plan: Plan) -> Iterator[None]:
    """Errors of Spark name no step."""
    try:
        yield
    except TimelyError:
        raise
    except Exception as error:
        if own := StorageFailed.by_spark(str(error), output.described):
            raise own from error
        msg = f"Output {output.name!r} cannot be prepared: {without_stack(error)}"
        hint = "check the output's table or folder: the cause of this error says what is wrong there."
        node = plan.by_name.get(output.name)
        # the system's log is not a step's, of which one may have its name
        where = node.stage.where if node is not None and node.template is output.vertex else None
        raise OutputMismatch(msg, where=where, hint=hint) from error


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
