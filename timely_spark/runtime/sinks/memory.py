"""The data source behind `to_memory`, which lists an output's deliveries each time the view is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from timely_spark.runtime.storage.deliveries import Deliveries


class MemorySource(DataSource):
    """The data source of an output's deliveries."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "timely_memory"

    def reader(self, schema: StructType) -> MemoryReader:
        """A reader of one output's deliveries."""
        return MemoryReader(Deliveries(self.options["checkpoint"], self.options["output"]), schema)


class MemoryReader(DataSourceReader):
    """Reads the files that exist when a task runs.

    Spark asks for partitions once per view, and for rows at every read. So there is one partition, and `read`
    lists the files.
    """

    def __init__(self, deliveries: Deliveries, schema: StructType) -> None:
        self.deliveries, self.schema = deliveries, schema

    def partitions(self) -> Sequence[InputPartition]:
        """The only partition."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of delivery."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for _, table in self.deliveries.read():
            yield from table.rename_columns(schema.names).cast(schema).to_batches()
