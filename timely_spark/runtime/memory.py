"""The data source behind `to_memory`: the Arrow files of a folder, listed anew whenever the view is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from timely_spark.runtime.files import Files


class MemorySource(DataSource):
    """Spark's view of it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "timely_memory"

    def reader(self, schema: StructType) -> MemoryReader:
        """A reader of one folder."""
        return MemoryReader(self.options["path"], schema)


class MemoryReader(DataSourceReader):
    """Reads the files that are there when a task runs.

    Spark asks for the partitions once per view, however often it is read, and for the rows every time. So
    there is one partition, and the listing is made with the rows.
    """

    def __init__(self, folder: str, schema: StructType) -> None:
        self.folder, self.schema = folder, schema

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of delivery."""
        schema, files = to_arrow_schema(self.schema, timezone="UTC"), Files(self.folder)
        for number in files.numbers("."):
            if (table := files.table(f"{number}.arrow")) is not None:
                yield from table.rename_columns(schema.names).cast(schema).to_batches()
