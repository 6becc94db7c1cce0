"""The data source of Spark by which a flow reads its feedback, its handles, and its journaled sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from timely_spark.runtime.query.flow_reader import FlowReader
    from timely_spark.runtime.sources.reader import Offset


def timely_source(path: Sequence[str]) -> type[DataSource]:
    """The data source class, for a driver that imports modules from `path`.

    Spark creates a data source in one Python process on the driver's machine, which has the session's
    --py-files on its path, and reads in another process, which has not. So unpickling the classes must need
    PySpark only: a class defined in a function is pickled with its code, and its methods import what they
    use. An instance carries the import paths of its process and of the driver to the reading process.

    A third process plans the reading: it makes a reader, and pickles it. The first epoch waits for it, so it
    imports nothing of this package. Each source of a query has such processes of its own, which take longer
    to start than a small batch: so a flow is one source.
    """
    later = _later()

    class TimelySource(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            import sys

            super().__init__(options)
            self.path = [*sys.path, *path]

        @classmethod
        def name(cls) -> str:
            return "timely"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return later(self.flow_reader)

        def flow_reader(self) -> FlowReader:
            import sys

            sys.path += [entry for entry in self.path if entry not in sys.path]
            from timely_spark.runtime.query.flow_reader import FlowReader
            from timely_spark.runtime.run_context import RunContext

            return FlowReader(RunContext.from_option(self.options["context"]))

    return TimelySource


def _later() -> Callable[[Callable[[], FlowReader]], DataSourceStreamReader]:
    """The class of a `FlowReader` that is made when first asked; pickled with its code, as above."""

    class Later(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, flow_reader: Callable[[], FlowReader]) -> None:
            self.flow_reader = flow_reader
            self.own: FlowReader | None = None

        @property
        def reader(self) -> FlowReader:
            self.own = self.own or self.flow_reader()
            return self.own

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return self.reader.limit

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self.reader.fix_end()

        def initialOffset(self) -> Offset:  # noqa: N802
            return self.reader.initial_offset()

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
            return self.reader.latest_offset(start, unlimited=isinstance(limit, ReadAllAvailable))

        def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
            # pickled, for a task that has no path yet
            return list(map(InputPartition, self.reader.shares(start, end)))

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return self.reader.read(partition.value)

        def commit(self, end: Offset) -> None:
            self.reader.commit(end)

    return Later
