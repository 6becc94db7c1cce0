"""The one streaming query: pack, union with the feedback source, group by worker, one stateful operator.

Small functions that refer to a `RunContext` run in Python tasks; the work is that of `timely_spark.worker`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.log import RoundLog
from timely_spark.runtime.run_context import ROWS_DDL, RunContext
from timely_spark.runtime.session import register
from timely_spark.runtime.states import States, write_state
from timely_spark.worker import ROWS, Worker, as_rows, pack
from timely_spark.worker.record import Recorded

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

#: Fixed for ever: Spark refuses a checkpoint whose state schema differs. The manifest is the reference of the
#: worker's state.
STATE_DDL = "format int, manifest binary"
STATE_FORMAT = 2
#: A source task packs its rows in portions of about this size.
PORTION_BYTES = 16 << 20
_BATCH_ID = "streaming.sql.batchId"  # internal to Spark, and the only such key that is relied on


def build(session: SparkSession, site: RunContext, dataframes: Mapping[str, DataFrame]) -> DataFrame:
    """The streaming DataFrame whose every micro-batch begins with a round; what it gives goes to the driver.

    Columns:
        worker int, kind string, meta string, payload binary
    """
    from pyspark.sql import is_remote

    from timely_spark.runtime.feedback import feedback_source

    source = feedback_source([] if is_remote() else sys.path)  # under Connect, Spark's driver is elsewhere
    register(session, source)
    feedback = session.readStream.format(source.name()).option("site", site.to_option()).load()
    # Spark's offset log knows sources by their position: the feedback first, then the flow's own order.
    packed = [
        numbered(dataframes[name]).mapInArrow(_packer(site, name), ROWS_DDL)
        for name in site.plan.sources
        if name in dataframes
    ]
    rows = reduce(lambda left, right: left.unionAll(right), packed, feedback)
    grouped = rows.groupBy("worker")
    return grouped.applyInPandasWithState(_operator(site), ROWS_DDL, STATE_DDL, "append", "NoTimeout")


def _packer(site: RunContext, source: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pack_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with site.task():
            yield from _pack(site, source, batches)

    return pack_partition


def _pack(site: RunContext, source: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    shard = context.partitionId() if context is not None else 0
    seq = 0
    schema = site.plan.source(source).stage.outputs[0]
    for table in portions(batches, PORTION_BYTES, lambda batch: batch.nbytes):
        named = table.rename_columns(schema.names)
        yield from site.labelled(pack(site.plan, source, named, shard, seq)).to_batches()
        seq += 1
    if not seq:  # Spark runs us on partitions without rows, too: an epoch filtered away still ticks, and ends
        yield from site.labelled(pack(site.plan, source, schema.empty_table(), shard)).to_batches()


def numbered(frame: DataFrame) -> DataFrame:
    """The columns in their order, called by numbers: `mapInArrow` takes a dot in a name for a field's."""
    return frame.toDF(*map(str, range(len(frame.columns))))


def portions(
    batches: Iterator[pa.RecordBatch], most: int, size_of: Callable[[pa.RecordBatch], int]
) -> Iterator[pa.Table]:
    """The batches as tables, each as soon as it comes to the size `most`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += size_of(batch)
        if size >= most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _operator(
    site: RunContext,
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def run_worker(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        with site.task():
            yield from _work(site, key, frames, state)

    return run_worker


def _work(
    site: RunContext, key: Any, frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    started = time.perf_counter()
    worker = site.worker(int(key[0]))
    rows = pa.concat_tables([_from_pandas(frame) for frame in frames])
    rows = rows.set_column(0, ROWS.field(0), pa.repeat(pa.scalar(worker, pa.int32()), rows.num_rows))
    rows = site.blobs.resolve(rows)
    batch = batch_id(site.log)
    header, known = "", States.of(rows).known.get(worker)
    if not pc.any(pc.equal(rows.column("kind"), "header")).as_py():  # it was not woken: only input came
        header, known = site.log.left(batch, worker)
    reference = None if known is None else known.reference
    here = restored(site, worker, reference)
    old = here.checkpoint(whole=True) if site.record is not None and reference is not None else None
    try:
        out = here.step(batch, rows, lambda: header)
        new = write_state(site.blobs, here, batch, reference)
    except VertexError as error:
        yield as_rows([(worker, "error", error.encode(), None)]).to_pandas()
        return
    if site.record is not None:
        whole = here.checkpoint(whole=True)
        Recorded(
            batch=batch, worker=worker, header=header, state=old, rows=rows, new_state=whole, out=out
        ).write(site.record)
    if new.reference != _written(state):
        state.update((STATE_FORMAT, new.reference))
    out = site.blobs.refer(f"{worker}-{batch}", out)
    took = 1000 * (time.perf_counter() - started)
    yield pa.concat_tables([out, as_rows([new.row(worker, ms=took)])]).to_pandas()


def restored(site: RunContext, worker: int, reference: bytes | None) -> Worker:
    """A worker as it was.

    Raises:
        LogDamaged: its state cannot be read.
    """
    if reference is None:
        return Worker(site.plan, None, worker, site.blobs)
    with site.blobs.reading(reference):
        return Worker(site.plan, site.blobs.get(reference), worker, site.blobs)


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    """The rows of a frame, in a quarter of the time that `Table.from_pandas` takes for the few of a round."""
    columns = zip(ROWS, (column for _, column in frame.items()), strict=True)
    return pa.table([pa.array(c.to_numpy(), f.type, from_pandas=True) for f, c in columns], schema=ROWS)


def _written(state: GroupState) -> bytes | None:
    """The reference of the worker's state which the operator wrote last."""
    if not state.exists:
        return None
    version, manifest = state.get
    if version != STATE_FORMAT:
        raise OtherFlow.format_is(version, STATE_FORMAT)
    return bytes(manifest)


def batch_id(log: RoundLog) -> int:
    """The micro-batch this task belongs to; by Spark's own log, should the property ever go."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found = context.getLocalProperty(_BATCH_ID) if context is not None else None
    return int(found) if found is not None else log.spark_batch()
