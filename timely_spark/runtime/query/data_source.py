"""The data source of Spark by which a flow reads its feedback and its files."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType


def timely_source(path: Sequence[str]) -> type[DataSource]:
    """The data source class, for a driver that imports modules from `path`.

    Spark creates a data source in one Python process on the driver's machine, which has the session's
    --py-files on its path, and reads in another process, which has not. So unpickling the class must need
    PySpark only: a class defined in a function is pickled with its code, and its methods import what they
    use. An instance carries the import paths of its process and of the driver to the reading process.
    """

    class TimelySource(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            import sys

            super().__init__(options)
            self.path = [*sys.path, *path]

        @classmethod
        def name(cls) -> str:
            return "timely"

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
            self.extend_path()
            from timely_spark.runtime.query.feedback import FeedbackReader
            from timely_spark.runtime.query.run_context import RunContext

            return FeedbackReader(RunContext.from_option(self.options["context"]))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            if "files" not in self.options:  # then Spark asks for the other reader
                return super().streamReader(schema)
            self.extend_path()
            from timely_spark.runtime.query.run_context import RunContext
            from timely_spark.runtime.sources.reader import reader_of

            return reader_of(RunContext.from_option(self.options["context"]), self.options["files"])

        def extend_path(self) -> None:
            import sys

            sys.path += [entry for entry in self.path if entry not in sys.path]

    return TimelySource
