"""Kafka: the records that `Stream.to_kafka` wrote to a topic, each once.

Records are written at least once, so a topic may have records of an epoch twice. Each record says in its
headers which flow wrote it, in which epoch, and which record of the epoch it is. By these, repeats are
dropped: of a whole topic in a DataFrame, or of a stream that continues.

Example:
    >>> import timely_spark as ts
    >>> flow = ts.Dataflow("read back")
    >>> columns = "topic string, partition int, flow string, epoch long, record string, n long"
    >>> records = flow.source("numbers", columns)  # of ts.kafka.origin(frame)
    >>> ts.kafka.drop_repeats(records).schema.names[-1]
    'n'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import BufferingVertex, algorithm, caller, check_columns, describe, group
from timely_spark.errors import BadArgument, SchemaError
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["drop_repeats", "origin"]

#: The headers of a record, and the columns and types that `origin` makes of them.
HEADERS = {"flow": "timely-flow", "epoch": "timely-epoch", "record": "timely-record"}
TYPES = {"topic": pa.string(), "partition": pa.int32(), "flow": pa.string(), "epoch": pa.int64()}
#: In a partition of a topic, the epochs of a flow are in order.
_SEQUENCE = ["topic", "partition", "flow"]
_IDENTITY = [*_SEQUENCE, "epoch", "record"]


@algorithm
def origin(frame: DataFrame) -> DataFrame:
    """Add to the records of a topic which flow wrote them, in which epoch, and which record of it they are.

    Args:
        frame: what Spark reads from Kafka with the option ``includeHeaders``, as a stream or at once.

    **Columns:** in `headers`, as Spark reads it; out also flow string, epoch long, record string, which are
    null in records that `to_kafka` did not write.

    Example:
        >>> import timely_spark as ts
        >>> read = spark.readStream.format("kafka").option("includeHeaders", "true")  # doctest: +SKIP
        >>> frame = ts.kafka.origin(read.options(**options).load())  # doctest: +SKIP

    Raises:
        SchemaError: the frame has no `headers`, or has one of the new columns.
    """
    from pyspark.sql.functions import expr

    source: Any = frame
    if not hasattr(source, "isStreaming"):
        msg = f"frame={source!r}: a DataFrame was expected"
        raise BadArgument(msg, where=caller(), hint="read the topic with Spark.")
    taken = sorted(set(HEADERS) & {*frame.columns})
    if "headers" not in frame.columns or taken:
        msg = f"kafka.origin: the frame has the columns {frame.columns}"
        hint = 'read the topic with option("includeHeaders", "true").'
        raise SchemaError(msg, where=caller(), hint=f"rename {taken}." if taken else hint)

    value = "cast(try_element_at(filter(headers, h -> h.key = '{}'), 1).value AS string)"
    columns = {name: expr(value.format(header)) for name, header in HEADERS.items()}
    return frame.withColumns(columns | {"epoch": columns["epoch"].cast("long")})


@algorithm
def drop_repeats(records: Any, *, name: str | None = None) -> Any:
    """The records that `to_kafka` wrote, each once; other records of the topic stay as they are.

    Of a DataFrame that was read at once, they are found by Spark's `dropDuplicates`. In a stream, a record
    is a repeat if its partition has shown it before, or a later epoch of its flow, because a flow writes an
    epoch when Kafka has acknowledged all earlier ones. So the state is the names of the records of one epoch
    for each flow and partition. Records are sent when their epoch here is complete. It costs one exchange, by
    flow and partition, and no iterations.

    The law for streams holds while the topic has the same number of partitions: a record that is written
    again after a partition was added may be in another one.

    Args:
        records: what `origin` returns, read at once; or a stream whose source is such a frame, with
            epochs by micro-batch, outside of loops.

    Returns:
        The same kind, DataFrame or stream.

    **Columns:** in topic string, partition int, flow string, epoch long, record string, and others; of a
    DataFrame also offset long. Out as in.

    Example:
        >>> import timely_spark as ts
        >>> columns = "topic string, partition int, flow string, epoch long, record string, n long"
        >>> flow = ts.Dataflow("read back")
        >>> _ = ts.kafka.drop_repeats(flow.source("numbers", columns)).select("n").capture("out")
        >>> first, second = ("t", 0, "f", 7, "a", 1), ("t", 0, "f", 7, "b", 2)
        >>> ts.testing.run(flow, {"numbers": [[first], [first, second]]})["out"].rows()
        {0: [(1,)], 1: [(2,)]}

    Raises:
        SchemaError: a column is missing, or of another type.
        GraphError: the stream is in a loop.
        BadArgument: `records` is neither, or a streaming DataFrame.
    """
    if isinstance(records, Stream):
        return _of_stream(records, name)
    if not hasattr(records, "isStreaming"):
        msg = f"records={records!r}: a DataFrame or a stream was expected"
        hint = "give it what ts.kafka.origin returns, or a stream of it."
        raise BadArgument(msg, where=caller(), hint=hint)
    if records.isStreaming:
        msg = "kafka.drop_repeats: the DataFrame is streaming"
        hint = "make it a stream, ts.kafka.drop_repeats(flow.source(name, frame))."
        raise BadArgument(msg, where=caller(), hint=hint)
    missing = [column for column in [*_IDENTITY, "offset"] if column not in records.columns]
    if missing:
        msg = f"kafka.drop_repeats: the frame has no columns {missing}; it has {records.columns}"
        raise SchemaError(msg, where=caller(), hint="read the topic, then call ts.kafka.origin.")
    return _of_frame(records)


def _of_frame(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr

    # the records of other writers have names of their own: their places
    place = expr("CASE WHEN flow IS NULL THEN struct(partition, offset) END")
    named = frame.withColumn("__timely_place", place)
    unique = named.dropDuplicates(["topic", "flow", "epoch", "record", "__timely_place"])
    return unique.drop("__timely_place")


def _of_stream(stream: Stream, name: str | None) -> Stream:
    stream.check_outside("kafka.drop_repeats")
    check_columns("kafka.drop_repeats", stream.schema, _IDENTITY, keys=True)
    types = {column: stream.schema.field(column).type for column in TYPES}
    if types != TYPES:
        msg = f"kafka.drop_repeats: {stream.name!r} has ({describe(stream.schema)})"
        raise SchemaError(msg, where=caller(), hint="give the columns the types that ts.kafka.origin gives.")
    by = list(_SEQUENCE)
    dropped: Stream = stream.flow.vertex(DropRepeats(), stream, stream.schema, by=by, name=name)
    return dropped


class DropRepeats(BufferingVertex):
    """Pass the records that their flow and partition have not shown before."""

    def __init__(self) -> None:
        super().__init__()
        #: of each flow and partition the names of the records of its newest epoch; after a rescaling, in
        #: several tables
        self.newest: list[pa.Table] = []

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Pass the new records of an epoch: earlier epochs have been here."""
        if not batches[0]:
            return
        table = pa.concat_tables(batches[0])
        named = pa.concat_tables([*self.newest, table.select(_IDENTITY)])
        earlier = named.num_rows - table.num_rows
        epochs = named["epoch"].fill_null(-1).to_numpy()
        sequences = group(named, _SEQUENCE)
        stored = np.where(np.arange(len(epochs)) < earlier, epochs, -1)
        newest, before = (
            np.maximum.reduceat(values[sequences.order], sequences.starts)[sequences.of]
            for values in (epochs, stored)
        )
        first = np.zeros(len(epochs), np.bool_)
        first[group(named, _IDENTITY).firsts] = True
        ours = pc.is_valid(named["flow"]).to_numpy()
        self.newest = [named.filter(pa.array(first & ours & (epochs == newest)))]
        new = ~ours | (first & (epochs >= before))
        self.send_by(0, time, table.filter(pa.array(new[earlier:])))
