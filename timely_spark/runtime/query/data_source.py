"""The data source of Spark by which a flow reads its feedback and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from timely_spark.runtime.query.feedback import FeedbackReader, Offset


def timely_source(path: Sequence[str]) -> type[DataSource]:
    """The data source class, for a driver that imports modules from `path`.

    Spark creates a data source in one Python process on the driver's machine, which has the session's
    --py-files on its path, and reads in another process, which has not. So unpickling the classes must need
    PySpark only: a class defined in a function is pickled with its code, and its methods import what they
    use. An instance carries the import paths of its process and of the driver to the reading process.

    A third process plans the reading: it makes a reader, and pickles it. The first epoch waits for it, so it
    imports nothing of this package: the feedback's reader is made when something is read.
    """
    reader = _later()

    class TimelySource(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            import sys

            super().__init__(options)
            self.path = [*sys.path, *path]

        @classmethod
        def name(cls) -> str:
            return "timely"

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
            return reader(self.options["context"], self.extend_path)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            if "source" not in self.options:  # then Spark asks for the other reader
                return super().streamReader(schema)
            self.extend_path()
            from timely_spark.runtime.run_context import RunContext
            from timely_spark.runtime.sources.reader import reader_of

            return reader_of(RunContext.from_option(self.options["context"]), self.options["source"])

        def extend_path(self) -> None:
            import sys

            sys.path += [entry for entry in self.path if entry not in sys.path]

    return TimelySource


def _later() -> Callable[[str, Callable[[], None]], SimpleDataSourceStreamReader]:
    """The class of a `FeedbackReader` that is made when first asked; pickled with its code, as above."""

    class Feedback(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, context: str, extend_path: Callable[[], None]) -> None:
            self.context, self.extend_path = context, extend_path
            self.made: FeedbackReader | None = None

        @property
        def reader(self) -> FeedbackReader:
            if self.made is None:
                self.extend_path()
                from timely_spark.runtime.query.feedback import FeedbackReader
                from timely_spark.runtime.run_context import RunContext

                self.made = FeedbackReader(RunContext.from_option(self.context))
            return self.made

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self.reader.prepareForTriggerAvailableNow()

        def initialOffset(self) -> Offset:  # noqa: N802
            return self.reader.initialOffset()

        def read(self, start: Offset) -> tuple[Iterator[Any], Offset]:
            return self.reader.read(start)

        def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[Any]:  # noqa: N802
            return self.reader.readBetweenOffsets(start, end)

    return Feedback
