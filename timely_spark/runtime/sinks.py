"""Where outputs go: what the driver delivers an epoch to, once it is complete (or each batch's rows at once).

A sink is a picklable object: under Connect the driver has its own copy. `deliver` may be called again with
the same version after a crash; a sink that can tell (Delta, the memory view) writes it once, one that cannot
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from timely_spark.operators import output as vertices
from timely_spark.operators.once import Once
from timely_spark.runtime.captured import Deliveries
from timely_spark.runtime.delivery import Delivery, spark_schema
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Parts = Sequence[Delivery]
"""What is delivered at once: one epoch, or with release="arrival" all that a batch put out, by epoch."""
EPOCH = "epoch"
#: The epoch in the files of captured deliveries, where a column of the stream's own may be called `epoch`.
STAMP = "__timely_epoch"


class Sink(Protocol):
    """What the driver asks of an output."""

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Called in the user's process at start: check, and make what must be there before the first epoch.

        Args:
            session: the user's session.
            output: the output's name and schema.
            checkpoint: the checkpoint's path.
            identity: the checkpoint's id, the same after a restart, another for another checkpoint.
        """

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Takes complete epochs, in order; `version` increases, and is the same when a batch runs again."""

    def complete(self) -> None:
        """Nothing more will ever come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of the flow: which stream goes where, and when."""

    name: str
    #: Knows the schema, and how the parts of an epoch are put together.
    vertex: vertices.Output
    sink: Sink
    release: Literal["epoch", "arrival"] = "epoch"

    @property
    def schema(self) -> pa.Schema:
        """The columns of what it delivers."""
        return self.vertex.schema


@dataclass
class SubscribeSink:
    """Calls the user's functions with each epoch's table, at least once: a crash may bring an epoch again."""

    on_epoch: Callable[[int, pa.Table], object]
    on_complete: Callable[[], object] | None = None

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Tells `once` whose epochs it counts."""
        if isinstance(self.on_epoch, Once):
            self.on_epoch = self.on_epoch.of(identity)

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Calls `on_epoch` for each epoch."""
        for part in parts:
            self.on_epoch(part.epoch, part.table)

    def complete(self) -> None:
        """Calls `on_complete`."""
        if self.on_complete is not None:
            self.on_complete()


@dataclass
class ForeachEpochSink:
    """Calls the user's function with each epoch as a Spark DataFrame, at least once."""

    function: Callable[[DataFrame, int], object]

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Nothing to make."""

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Calls the function for each epoch."""
        for part in parts:
            self.function(part.frame(session), part.epoch)

    def complete(self) -> None:
        """Nothing to tell."""


@dataclass
class InspectSink:
    """Prints on the driver what comes, at most `limit` records per epoch."""

    name: str
    limit: int = 20

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Nothing to make."""

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Prints."""
        for part in parts:
            for record in part.table.slice(0, self.limit).to_pylist():
                print(f"{self.name} @ {part.epoch}: {record}", flush=True)  # noqa: T201
            if (more := part.table.num_rows - self.limit) > 0:
                print(f"{self.name} @ {part.epoch}: ... and {more} more")  # noqa: T201

    def complete(self) -> None:
        """Nothing to tell."""


@dataclass
class CaptureSink:
    """Keeps each delivery as an Arrow file in the checkpoint, for `Query.captured` and for views."""

    deliveries: Deliveries | None = None

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Notes where the files go."""
        self.deliveries = Deliveries(checkpoint, output.name)

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Writes one file, the same one if it is delivered again; also of an epoch without records."""
        tables = [stamped(part.table, part.epoch, STAMP) for part in parts]
        assert self.deliveries is not None
        self.deliveries.write(version, pa.concat_tables(tables))

    def complete(self) -> None:
        """Nothing to tell."""


@dataclass
class MemorySink(CaptureSink):
    """A temporary view of all that was delivered so far.

    The view lists the files whenever it is read, so it is always up to date, and needs no object of the
    query's: it works with the driver in another process, and after the query has stopped. For results that a
    person looks at.

    Columns:
        epoch long, then the stream's own
    """

    view: str = ""

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Makes the view."""
        from timely_spark.runtime.memory import MemorySource

        super().prepare(session, output, checkpoint, identity)
        schema, _ = with_epoch(f"view {self.view!r}", output.schema)
        register(session, MemorySource)
        options = {"checkpoint": checkpoint, "output": output.name}
        view = session.read.format(MemorySource.name()).schema(schema).options(**options).load()
        view.createOrReplaceTempView(self.view)


def stamped(table: pa.Table, epoch: int, column: str = EPOCH) -> pa.Table:
    """The table with the epoch as its first column."""
    return table.add_column(0, column, pa.repeat(pa.scalar(epoch, pa.int64()), table.num_rows))


def with_epoch(where: str, schema: pa.Schema) -> tuple[StructType, list[str]]:
    """Spark's schema of an output with the epoch in front, and the stream's own columns."""
    if EPOCH in schema.names:
        raise OutputMismatch.reserved(where, EPOCH)
    return spark_schema(schema.insert(0, pa.field(EPOCH, pa.int64()))), list(schema.names)
