"""What an output delivers of one epoch: a table in the driver, or a DataFrame that Spark's tasks read.

Small epochs pass the driver as they are. Of a large one the driver knows references only: tasks read the
blobs, and put the parts together by key where a later part may take back an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from timely_spark.operators.output import Output
from timely_spark.runtime.blobs import Blobs, size_of
from timely_spark.worker.keys import deal, from_bytes, to_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Bytes from which on an epoch is read by tasks,
LARGE = 8 << 20
#: and about how many each of them reads.
TASK_BYTES = 16 << 20
#: So many rows of a task go to the JVM at once.
_ROWS = 1 << 16
#: Payloads partitioned by key: the part of the payload at `place` that belongs to `bucket`.
_DEALT = pa.schema([("bucket", pa.int32()), ("place", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class Delivery:
    """The records of an epoch; with ``release="arrival"`` those that one batch put out for it.

    Valid during the call that gets it: what it refers to goes some time after the delivery.
    """

    epoch: int
    #: Arrow streams or references to them, in the order in which the workers handed them out.
    payloads: Sequence[bytes]
    blobs: Blobs
    #: The output's vertex, which knows the schema and how parts are put together.
    vertex: Output

    @property
    def size(self) -> int:
        """Bytes, before the parts are put together."""
        return sum(map(size_of, self.payloads))

    @property
    def is_large(self) -> bool:
        """Whether it should not pass the driver."""
        return self.size > LARGE

    @cached_property
    def table(self) -> pa.Table:
        """All of it, in this process."""
        return self.vertex.finish([from_bytes(self.blobs.get(payload)) for payload in self.payloads])

    @property
    def is_empty(self) -> bool:
        """Whether it certainly has no record; of a large one that is not known."""
        return not self.is_large and not self.table.num_rows

    def frame(self, session: SparkSession, *, order: str | None = None) -> DataFrame:
        """All of it as a DataFrame.

        Args:
            session: where.
            order: a column to be added: a long, ascending in the order in which a worker handed them out.
        """
        if not self.is_large:
            return to_frame(session, self.table if order is None else _placed(self.table, order, 0))
        schema = self.vertex.schema
        schema = schema if order is None else schema.append(pa.field(order, pa.int64()))
        shares = _shares(self.payloads)
        tasks = session.range(0, len(shares), 1, len(shares))
        keys = self.vertex.finish_keys
        if keys is None:
            read = _reader(self.blobs, shares, schema, order)
            return tasks.mapInArrow(read, spark_schema(schema))
        deal_out = _dealer(self.blobs, shares, keys, buckets=max(1, self.size // TASK_BYTES))
        finish = _finisher(self.vertex, schema, order)
        dealt = tasks.mapInArrow(deal_out, spark_schema(_DEALT))
        return dealt.groupBy("bucket").applyInArrow(finish, spark_schema(schema))


def to_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame; without a schema Spark takes a timestamp without a zone for one with."""
    return session.createDataFrame(table, schema=spark_schema(table.schema))


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's form of a stream's schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def arrow_schema(schema: pa.Schema) -> pa.Schema:
    """The types in which Spark and files take a stream's records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(schema), timezone="UTC")


Share = list[tuple[int, bytes]]
"""What a task reads: (place in the order, payload)."""


def _shares(payloads: Sequence[bytes]) -> list[Share]:
    shares: list[Share] = [[]]
    size = 0
    for place, payload in enumerate(payloads):
        if size >= TASK_BYTES:
            shares.append([])
            size = 0
        shares[-1].append((place, payload))
        size += size_of(payload)
    return shares


def _placed(table: pa.Table, column: str, place: int) -> pa.Table:
    """The table with its rows numbered, in the order of their tables' places."""
    return table.append_column(column, pa.array((place << 40) + np.arange(table.num_rows, dtype=np.int64)))


def _mine(shares: list[Share], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from shares[index]


_Map = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _reader(blobs: Blobs, shares: list[Share], schema: pa.Schema, order: str | None) -> _Map:
    """What a task does whose parts are final: it reads them."""
    expected = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, payload in _mine(shares, batches):
            table = from_bytes(blobs.get(payload))
            table = table if order is None else _placed(table, order, place)
            yield from table.cast(expected).to_batches(_ROWS)

    return read


def _dealer(blobs: Blobs, shares: list[Share], keys: Sequence[str], buckets: int) -> _Map:
    """What a task does whose parts may be taken back by others: it deals them out by key."""

    def deal_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, payload in _mine(shares, batches):
            for bucket, part in deal(from_bytes(blobs.get(payload)), keys, buckets).items():
                row = {"bucket": bucket, "place": place, "payload": to_bytes(part)}
                yield pa.RecordBatch.from_pylist([row], schema=_DEALT)

    return deal_out


def _finisher(vertex: Output, schema: pa.Schema, order: str | None) -> Callable[[pa.Table], pa.Table]:
    """And what is done with the parts of a bucket, which come together."""
    expected = arrow_schema(schema)

    def finish(dealt: pa.Table) -> pa.Table:
        dealt = dealt.sort_by("place")
        table = vertex.finish([from_bytes(payload.as_buffer()) for payload in dealt.column("payload")])
        table = table if order is None else _placed(table, order, dealt.column("bucket")[0].as_py())
        return table.cast(expected)

    return finish
