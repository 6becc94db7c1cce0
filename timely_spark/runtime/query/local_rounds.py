"""Local rounds on Spark: one task runs all workers and the coordinator for further rounds of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.coordinator import OUTPUTS, Bound, Coordinator, RoundResult, run_local_rounds
from timely_spark.coordinator.round_result import as_outputs
from timely_spark.errors import VertexError
from timely_spark.runtime.query.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.storage.states import State, write_state
from timely_spark.worker import ROWS, as_rows, read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        session: runs the task.
        context: the run.
        coordinator: the coordinator that gave `result`.
        result: the result of the batch's rounds so far.
        states: the state reference of each worker that has a state.
        bound: the limits of local rounds.

    Returns:
        The coordinator, the result of all rounds of the batch, and rows of the states that changed.

    Raises:
        VertexError: a vertex failed.
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
    watch = None if folder is None else lambda recorded: recorded.write(folder)
    try:
        result, workers = run_local_rounds(coordinator, result, read, bound, blobs=blobs, watch=watch)
        changed = [
            write_state(blobs, worker, coordinator.batch, states.get(index)).row(
                index, ms=1000 * worker.seconds
            )
            for index, worker in workers.items()
        ]
    except VertexError as error:
        return as_rows([(0, "error", error.encode(), None)])
    encoded = {
        "coordinator": coordinator.encode(),
        "header": result.header,
        "released": result.released,
        "frontier": result.frontier,
        "complete": result.complete,
        "late": result.late,
        "cut_off": result.cut_off,
        "notices": result.notices,
        "stats": result.stats,
    }
    out = blobs.refer(f"local-{coordinator.batch}", pa.concat_tables([result.rows, _as_rows(result.outputs)]))
    return pa.concat_tables([out, as_rows([(0, "result", encoded, None), *changed])])


def _as_rows(outputs: pa.Table) -> pa.Table:
    """Outputs as rows of schema `ROWS`, with sink and epoch in the meta column."""
    pairs = zip(outputs["sink"].to_pylist(), outputs["epoch"].to_pylist(), strict=True)
    rows = as_rows((0, "output", {"sink": sink, "epoch": epoch}, None) for sink, epoch in pairs)
    return rows.set_column(0, ROWS.field(0), outputs["worker"]).set_column(
        3, ROWS.field(3), outputs["payload"]
    )


def _decoded(
    context: RunContext, batch: int, result: RoundResult, answer: pa.Table
) -> tuple[Coordinator, RoundResult, pa.Table]:
    kind = answer.column("kind")
    rows = {name: answer.filter(pc.equal(kind, name)) for name in ("error", "result", "state")}
    for _, _, meta, _ in read_rows(rows["error"]):
        raise VertexError.decode(meta, f"batch {batch}")
    encoded = read_rows(rows["result"])[0][2]
    coordinator = Coordinator.decode(context.plan, encoded.pop("coordinator"))
    encoded["released"] = [*result.released, *map(tuple, encoded["released"])]
    last = RoundResult(
        rows=answer.filter(pc.is_in(kind, pa.array(["message", "header"]))),
        outputs=pa.concat_tables([result.outputs, as_outputs(answer)]),
        **encoded,
    )
    return coordinator, last, rows["state"]
