"""Local rounds on Spark: one task runs all workers and the coordinator for further rounds of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError
from timely_spark.runtime.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.states import State, write_state
from timely_spark.worker import OUTPUTS, ROWS, Bound, Coordinator, Turn, as_rows, read_rows, run_local_rounds
from timely_spark.worker.coordinator import as_outputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_rounds_on_spark(
    session: SparkSession,
    site: RunContext,
    *,
    coordinator: Coordinator,
    turn: Turn,
    states: Mapping[int, State],
    bound: Bound,
) -> tuple[Coordinator, Turn, pa.Table]:
    """Run local rounds of the micro-batch whose last round gave `turn`, as far as `bound` allows.

    Args:
        session: runs the task.
        site: the run.
        coordinator: as it was when it gave `turn`.
        turn: the result of the batch's rounds so far.
        states: the place of each worker's state, if it has one.
        bound: the limits of local rounds.

    Returns:
        The coordinator, the result of all rounds of the batch, and rows of the states that changed.

    Raises:
        VertexError: a vertex failed.
    """
    read = sum(state.read(mapped=site.blobs.files.local) for state in states.values())
    if not bound.allows(turn) or read > bound.states:
        return coordinator, turn, ROWS.empty_table()
    start = replace(turn, outputs=OUTPUTS.empty_table(), released=[])
    references = {worker: state.reference for worker, state in states.items()}
    task = _task(site, coordinator.encode(), start, references, bound)
    # `range` is a plan of one partition, on Connect as well; what the task needs travels with its function
    answer = session.range(0, 1, 1, 1).mapInArrow(task, ROWS_DDL).toArrow().cast(ROWS)
    return _decoded(site, coordinator.batch, turn, answer)


def _task(
    site: RunContext, snapshot: dict[str, Any], turn: Turn, states: dict[int, bytes], bound: Bound
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        with site.task():
            yield from _run(site, snapshot, turn, states, bound).to_batches()

    return run


def _run(
    site: RunContext, snapshot: dict[str, Any], turn: Turn, states: dict[int, bytes], bound: Bound
) -> pa.Table:
    coordinator, blobs = Coordinator.decode(site.plan, snapshot), site.blobs
    read = {worker: blobs.get(reference) for worker, reference in states.items()}
    turn = replace(turn, rows=blobs.resolve(turn.rows))
    folder = site.record
    watch = None if folder is None else lambda recorded: recorded.write(folder)
    try:
        turn, workers = run_local_rounds(coordinator, turn, read, bound, blobs=blobs, watch=watch)
        changed = [
            write_state(blobs, worker, coordinator.batch, states.get(index)).row(
                index, ms=1000 * worker.seconds
            )
            for index, worker in workers.items()
        ]
    except VertexError as error:
        return as_rows([(0, "error", error.encode(), None)])
    result = {
        "coordinator": coordinator.encode(),
        "header": turn.header,
        "released": turn.released,
        "frontier": turn.frontier,
        "complete": turn.complete,
        "late": turn.late,
        "cut_off": turn.cut_off,
        "notices": turn.notices,
        "stats": turn.stats,
    }
    out = blobs.refer(f"local-{coordinator.batch}", pa.concat_tables([turn.rows, _as_rows(turn.outputs)]))
    return pa.concat_tables([out, as_rows([(0, "turn", result, None), *changed])])


def _as_rows(outputs: pa.Table) -> pa.Table:
    """Outputs among the rows; sink and epoch are the meta."""
    pairs = zip(outputs["sink"].to_pylist(), outputs["epoch"].to_pylist(), strict=True)
    rows = as_rows((0, "output", {"sink": sink, "epoch": epoch}, None) for sink, epoch in pairs)
    return rows.set_column(0, ROWS.field(0), outputs["worker"]).set_column(
        3, ROWS.field(3), outputs["payload"]
    )


def _decoded(
    site: RunContext, batch: int, turn: Turn, answer: pa.Table
) -> tuple[Coordinator, Turn, pa.Table]:
    kind = answer.column("kind")
    rows = {name: answer.filter(pc.equal(kind, name)) for name in ("error", "turn", "state")}
    for _, _, meta, _ in read_rows(rows["error"]):
        raise VertexError.decode(meta, f"batch {batch}")
    result = read_rows(rows["turn"])[0][2]
    coordinator = Coordinator.decode(site.plan, result.pop("coordinator"))
    result["released"] = [*turn.released, *map(tuple, result["released"])]
    last = Turn(
        rows=answer.filter(pc.is_in(kind, pa.array(["message", "header"]))),
        outputs=pa.concat_tables([turn.outputs, as_outputs(answer)]),
        **result,
    )
    return coordinator, last, rows["state"]
