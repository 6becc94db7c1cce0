"""Local rounds on Spark: one task runs all workers and the coordinator for further rounds of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.coordinator import OUTPUTS, Bound, Coordinator, RoundResult, run_local_rounds
from timely_spark.coordinator.round_result import as_outputs
from timely_spark.errors import VertexError
from timely_spark.runtime.query.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.storage.states import State, write_state
from timely_spark.worker import ROWS, wire
from timely_spark.worker.wire import Failure, Header, Item, Message, Output, RowKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class LocalResult(Item):
    """The result of local rounds, without rows: the encoded coordinator and `RoundResult`."""

    kind = RowKind.RESULT
    coordinator: dict[str, Any]
    result: dict[str, Any]


def local_rounds_on_spark(
    session: SparkSession,
    context: RunContext,
    *,
    coordinator: Coordinator,
    result: RoundResult,
    states: Mapping[int, State],
    bound: Bound,
) -> tuple[Coordinator, RoundResult, pa.Table]:
    """Run local rounds of a micro-batch as far as `bound` allows.

    Args:
        states: the state reference of each worker that has a state.

    Returns:
        The coordinator, the result of all rounds of the batch, and rows of the states that changed.
    """
    read = sum(state.read(mapped=context.blobs.files.local) for state in states.values())
    if not bound.allows(result) or read > bound.states:
        return coordinator, result, ROWS.empty_table()
    start = replace(result, outputs=OUTPUTS.empty_table(), released=[])
    references = {worker: state.reference for worker, state in states.items()}
    task = _task(context, coordinator.encode(), start, references, bound)
    # `range` is a plan of one partition, on Connect as well; the function's closure carries the task's input
    answer = session.range(0, 1, 1, 1).mapInArrow(task, ROWS_DDL).toArrow().cast(ROWS)
    return _decoded(context, coordinator.batch, result, answer)


def _task(
    context: RunContext, snapshot: dict[str, Any], result: RoundResult, states: dict[int, bytes], bound: Bound
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        with context.task():
            yield from _run(context, snapshot, result, states, bound).to_batches()

    return run


def _run(
    context: RunContext, snapshot: dict[str, Any], result: RoundResult, states: dict[int, bytes], bound: Bound
) -> pa.Table:
    coordinator, blobs = Coordinator.decode(context.plan, snapshot), context.blobs
    read = {worker: blobs.get(reference) for worker, reference in states.items()}
    result = replace(result, rows=blobs.resolve(result.rows))
    folder = context.record
    batch = coordinator.batch
    watch = None if folder is None else lambda recorded: recorded.write(folder)
    try:
        result, workers = run_local_rounds(coordinator, result, read, bound, blobs=blobs, watch=watch)
        changed = [
            (index, write_state(blobs, worker, batch, states.get(index), ms=1000 * worker.seconds))
            for index, worker in workers.items()
        ]
    except VertexError as error:
        return wire.table([(0, Failure.of(error))])
    out = blobs.refer(f"local-{batch}", pa.concat_tables([result.rows, _as_rows(result.outputs)]))
    own = LocalResult(coordinator.encode(), result.encode())
    return pa.concat_tables([out, wire.table([(0, own), *changed])])


def _as_rows(outputs: pa.Table) -> pa.Table:
    """Outputs as rows of schema `ROWS`."""
    columns = (outputs[name].to_pylist() for name in ("worker", "sink", "epoch", "payload"))
    return wire.table(
        (worker, Output(sink=sink, epoch=epoch, payload=payload))
        for worker, sink, epoch, payload in zip(*columns, strict=True)
    )


def _decoded(
    context: RunContext, batch: int, result: RoundResult, answer: pa.Table
) -> tuple[Coordinator, RoundResult, pa.Table]:
    for _, failure in wire.read(answer, Failure):
        failure.throw(f"batch {batch}")
    ((_, local),) = wire.read(answer, LocalResult)
    last = RoundResult.decode(
        local.result,
        rows=wire.only(answer, Message, Header),
        outputs=pa.concat_tables([result.outputs, as_outputs(answer)]),
    )
    coordinator = Coordinator.decode(context.plan, local.coordinator)
    return coordinator, replace(last, released=[*result.released, *last.released]), answer
