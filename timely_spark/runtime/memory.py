"""The data source behind `to_memory`: the Arrow files of a folder, listed anew whenever the view is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from timely_spark.runtime.files import Files

_FILES_PER_TASK = 64


class MemorySource(DataSource):
    """Spark's view of it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "timely_memory"

    def reader(self, schema: StructType) -> MemoryReader:
        """A reader of one listing."""
        return MemoryReader(self.options["path"], schema)


class _Chunk(InputPartition):
    def __init__(self, names: list[str]) -> None:
        super().__init__(None)
        self.names = names


class MemoryReader(DataSourceReader):
    """Reads the files that are there when the plan is made."""

    def __init__(self, folder: str, schema: StructType) -> None:
        self.folder, self.schema = folder, schema

    def partitions(self) -> Sequence[InputPartition]:
        """A few tasks, in the order of delivery."""
        names = [f"{number}.arrow" for number in Files(self.folder).numbers(".")]
        return [_Chunk(names[i : i + _FILES_PER_TASK]) for i in range(0, max(1, len(names)), _FILES_PER_TASK)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        names = partition.names if isinstance(partition, _Chunk) else []
        for name in names:
            if (table := Files(self.folder).table(name)) is not None:
                yield from table.cast(schema).to_batches()
