"""The one streaming query: pack, union with the flow's own source, group by worker, one stateful operator.

The functions here run in Python tasks, get a `RunContext`, and call `timely_spark.worker`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.compiler.pushdown import needed
from timely_spark.errors import VertexError
from timely_spark.runtime.batches import numbered
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.query.cut_off import CutOff
from timely_spark.runtime.query.live import Live, packing
from timely_spark.runtime.run_context import ROWS_DDL, RunContext, batch_id, packed_sources
from timely_spark.runtime.session import cores, register
from timely_spark.runtime.sources.source import JournaledSource, SourceFrames
from timely_spark.runtime.storage.states import StateRefs, write_state
from timely_spark.worker import ROWS, Worker, wire
from timely_spark.worker.record import Recorded
from timely_spark.worker.wire import Failure, Header

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

#: Never changes: Spark refuses a checkpoint whose state schema differs. `manifest` is the reference of the
#: worker's state.
STATE_DDL = "format int, manifest binary"
STATE_FORMAT = 2
#: The number of tasks for a batch of files if the number of cores is unknown (Connect).
_TASKS = 8


def build(session: SparkSession, context: RunContext, dataframes: SourceFrames) -> DataFrame:
    """The streaming DataFrame whose micro-batches are rounds, with the rows for the driver.

    Columns:
        worker int, kind string, meta string, payload binary
    """
    from pyspark.sql import is_remote

    from timely_spark.runtime.query.data_source import timely_source

    ours = timely_source([] if is_remote() else sys.path)  # under Connect the driver has another path
    register(session, ours)

    # with the schema given, Spark's process that creates the source need not import this package
    own = session.readStream.format(ours.name()).schema(ROWS_DDL).option("context", context.to_option())
    frames = {n: frame for n, frame in dataframes.items() if not isinstance(frame, JournaledSource)}
    # Spark's offset log identifies sources by position: the flow's own first, then DataFrames in its order
    packed = [
        numbered(frames[name]).mapInArrow(partial(_pack, context, name), ROWS_DDL)
        for name in context.plan.sources
        if name in frames
    ]
    rows = reduce(lambda left, right: left.unionAll(right), packed, own.load())
    grouped = rows.groupBy("worker")
    return grouped.applyInPandasWithState(_operator(context), ROWS_DDL, STATE_DDL, "append", "NoTimeout")


def with_sources(session: SparkSession, context: RunContext, dataframes: SourceFrames) -> RunContext:
    """The run with the sources that this package reads; each source knows which columns the flow needs."""
    tasks = cores(session) or _TASKS
    bound = {
        name: source.bind(context.checkpoint, needed(context.plan, name), tasks)
        for name, source in dataframes.items()
        if isinstance(source, JournaledSource)
    }
    return replace(context, packed_sources=packed_sources(bound))


def _pack(context: RunContext, source: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    task = TaskContext.get()
    shard = task.partitionId() if task is not None else 0
    with context.task(packs=True), packing(context):
        names = context.plan.source(source).stage.outputs[0].names
        yield from context.pack(source, (batch.rename_columns(names) for batch in batches), shard)


def _operator(
    context: RunContext,
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def run_worker(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        with context.task():
            yield from _work(context, key, frames, state)

    return run_worker


def _work(
    context: RunContext, key: Any, frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    started = time.perf_counter()
    worker = context.labels.index(int(key[0]))
    rows = pa.concat_tables([_from_pandas(frame) for frame in frames])
    rows = rows.set_column(0, ROWS.field(0), pa.repeat(pa.scalar(worker, pa.int32()), rows.num_rows))
    rows = context.blobs.resolve(rows)
    micro_batch = batch_id(context.log)
    if micro_batch == context.continued:  # its batches have their manifests
        return
    header, state_before = None, StateRefs.of(rows).by_worker.get(worker)
    if own_header := list(wire.read(rows, Header)):
        batch = own_header[0][1].batch + 1
    else:  # only input came for this worker
        batch, header, state_before = context.log.header_and_state(micro_batch, worker)
    reference = None if state_before is None else state_before.reference
    own = restored_worker(context, worker, reference)
    try:
        live = Live(context.log, f"worker-{worker}", loops=bool(context.plan.feedbacks))
        with closing(live), live.during(batch) as progress:
            own.iterations.watch = partial(progress.round, None, own)
            own.ends = partial(CutOff(context, batch, progress, first=first_attempt()), 0, None)
            if context.record is None:
                out = own.step(batch, rows, header)
            else:
                recorded = Recorded.of_step(own, batch, rows, header)
                recorded.write(context.record)
                out = recorded.out
        new = write_state(context.blobs, own, batch, reference)
    except VertexError as error:
        yield wire.table([(worker, Failure.of(error))]).to_pandas()
        return
    if new.reference != _reference_in(state):
        state.update((STATE_FORMAT, new.reference))
    out = context.blobs.refer(f"{worker}-{batch}", out)
    new = replace(new, ms=1000 * (time.perf_counter() - started))
    yield pa.concat_tables([out, wire.table([(worker, new)])]).to_pandas()


def restored_worker(context: RunContext, worker: int, reference: bytes | None) -> Worker:
    """The worker whose state has a reference; a new worker if the reference is None."""
    if reference is None:
        return Worker(context.plan, None, worker, context.blobs)
    with context.blobs.reading(reference):
        return Worker(context.plan, context.blobs.get(reference), worker, context.blobs)


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    """The rows of a frame; four times as fast as `Table.from_pandas` for the few rows of a round."""
    columns = zip(ROWS, (column for _, column in frame.items()), strict=True)
    return pa.table([pa.array(c.to_numpy(), f.type) for f, c in columns], schema=ROWS)


def _reference_in(state: GroupState) -> bytes | None:
    """The reference in the worker's row of Spark's state store."""
    if not state.exists:
        return None
    version, manifest = state.get
    if version != STATE_FORMAT:
        store = "Spark's state store"
        raise OtherFlow.format_is(store, version, STATE_FORMAT)
    return bytes(manifest)


def first_attempt() -> bool:
    """Whether this task runs for the first time in its micro-batch."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task is not None and not task.attemptNumber()
