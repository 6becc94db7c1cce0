"""`Delivery`: the output records of one epoch, as a table in the driver or as a DataFrame of Spark's tasks.

Small epochs are tables in the driver. For a large epoch the driver has only references: tasks read the blobs,
and group the parts by key if a later part may retract records of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from timely_spark.graph import Partition
from timely_spark.operators.output_vertex import OutputVertex
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.storage.blobs import Blobs, size_of
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.exchange import partitioned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

#: Tasks read epochs of more bytes than this.
LARGE = 8 << 20
#: About how many bytes each task reads.
TASK_BYTES = 16 << 20
#: The rows of a record batch that a task sends to the JVM.
_ROWS = 1 << 16
#: Payloads partitioned by key: the part of payload number `place` in `bucket`.
_BUCKETED = pa.schema([("bucket", pa.int32()), ("place", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class Delivery:
    """The output records of an epoch; with ``release="arrival"`` those of one batch and epoch.

    Valid during the call of `deliver` only, because the blobs are removed later.
    """

    epoch: int
    #: Arrow streams or references to them, in the workers' order.
    payloads: Sequence[bytes]
    blobs: Blobs
    #: The output's vertex, which has the schema and combines the parts of an epoch.
    vertex: OutputVertex

    @property
    def size(self) -> int:
        """The size of the payloads in bytes."""
        return sum(map(size_of, self.payloads))

    @property
    def is_large(self) -> bool:
        """Whether tasks should read the records."""
        return self.size > LARGE

    @cached_property
    def table(self) -> pa.Table:
        """The records as a table in this process."""
        return self.vertex.finish([self.blobs.table(payload) for payload in self.payloads])

    @property
    def is_empty(self) -> bool:
        """Whether there are no records; False for a large delivery."""
        return not self.is_large and not self.table.num_rows

    def frame(self, session: SparkSession, *, order: str | None = None) -> DataFrame:
        """The records as a DataFrame; with a column `order`, a long that ascends in each worker's order."""
        if not self.is_large:
            return to_frame(session, self.table if order is None else _numbered(self.table, order, 0))
        schema = self.vertex.schema
        schema = schema if order is None else schema.append(pa.field(order, pa.int64()))
        shares = _shares(self.payloads)
        tasks = session.range(0, len(shares), 1, len(shares))
        keys = self.vertex.finish_keys
        if keys is None:
            read = _reader(self.blobs, shares, schema, order)
            return tasks.mapInArrow(read, spark_schema(schema))
        to_buckets = _bucketer(self.blobs, shares, keys, buckets=max(1, self.size // TASK_BYTES))
        finish = _finisher(self.vertex, schema, order)
        bucketed = tasks.mapInArrow(to_buckets, spark_schema(_BUCKETED))
        return bucketed.groupBy("bucket").applyInArrow(finish, spark_schema(schema))


def to_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame, made without a change of the active session.

    `createDataFrame` of a classic session makes it the active one of the process, where other threads see it.
    The query's session has the settings and the views of its start, so a flow that the program builds
    meanwhile would have these. What that method calls next leaves the active session as it is.
    """
    from pyspark.sql.pandas.conversion import SparkConversionMixin

    schema = spark_schema(table.schema)  # without it Spark would add a zone to timestamps without one
    maker: Any = session
    if isinstance(maker, SparkConversionMixin):
        return SparkConversionMixin.createDataFrame(maker, table, schema)
    return session.createDataFrame(table, schema)  # Spark Connect has an active session per thread


def spark_schema(schema: pa.Schema) -> StructType:
    """A stream's schema in Spark's types."""
    from pyspark.sql.types import StructType

    return StructType([_spark_field(field) for field in schema])


def _spark_field(field: pa.Field) -> StructField:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0]
    except PySparkTypeError as error:
        msg = f"column {field.name!r} is {field.type}, for which Spark has no type."
        hint = "cast it before, for example select(n=pc.field('n').cast('int64'))."
        raise OutputMismatch(msg, hint=hint) from error


def arrow_schema(schema: pa.Schema) -> pa.Schema:
    """A stream's schema in the Arrow types that Spark and files use."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(schema), timezone="UTC")


Payloads = list[tuple[int, bytes]]
"""The payloads of one task: (number, payload)."""


def _shares(payloads: Sequence[bytes]) -> list[Payloads]:
    shares: list[Payloads] = [[]]
    size = 0
    for place, payload in enumerate(payloads):
        if size >= TASK_BYTES:
            shares.append([])
            size = 0
        shares[-1].append((place, payload))
        size += size_of(payload)
    return shares


def _numbered(table: pa.Table, column: str, place: int) -> pa.Table:
    """The table with a column of row numbers, which ascend with `place`."""
    return table.append_column(column, pa.array((place << 40) + np.arange(table.num_rows, dtype=np.int64)))


def _share(shares: list[Payloads], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from shares[index]


_Map = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _reader(blobs: Blobs, shares: list[Payloads], schema: pa.Schema, order: str | None) -> _Map:
    """The function of a task that reads payloads."""
    expected = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, payload in _share(shares, batches):
            table = blobs.table(payload)
            table = table if order is None else _numbered(table, order, place)
            yield from table.cast(expected).to_batches(_ROWS)

    return read


def _bucketer(blobs: Blobs, shares: list[Payloads], keys: Sequence[str], buckets: int) -> _Map:
    """The function of a task that partitions payloads by key, because other payloads may retract records."""
    by = Partition(tuple(keys))

    def to_buckets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, payload in _share(shares, batches):
            for bucket, part in partitioned(blobs.table(payload), by, buckets).items():
                row = {"bucket": bucket, "place": place, "payload": to_bytes(part)}
                yield pa.RecordBatch.from_pylist([row], schema=_BUCKETED)

    return to_buckets


def _finisher(vertex: OutputVertex, schema: pa.Schema, order: str | None) -> Callable[[pa.Table], pa.Table]:
    """The function that combines the parts of a bucket."""
    expected = arrow_schema(schema)

    def finish(bucketed: pa.Table) -> pa.Table:
        bucketed = bucketed.sort_by("place")
        table = vertex.finish([from_bytes(payload.as_buffer()) for payload in bucketed.column("payload")])
        table = table if order is None else _numbered(table, order, bucketed.column("bucket")[0].as_py())
        return table.cast(expected)

    return finish
