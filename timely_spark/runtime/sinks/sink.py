"""Sinks: the driver delivers each epoch to them when it is complete, or each batch's records on arrival.

A sink is a picklable object, because under Connect the driver has a copy. After a crash `deliver` may be
called again with the same version; sinks that detect this (Delta, folders, captures) write each epoch once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from timely_spark.graph import as_schema, describe
from timely_spark.operators import output_vertex as vertices
from timely_spark.operators.exactly_once import ExactlyOnce
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.session import register
from timely_spark.runtime.sinks.delivery import Delivery, spark_schema
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.files import location
from timely_spark.runtime.storage.stores import without_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Parts = Sequence[Delivery]
"""One call's deliveries: one epoch, or with release="arrival" a batch's records by epoch."""
EPOCH = "epoch"
#: The epoch column in files of captured deliveries: a stream may have a column `epoch` of its own.
STAMP = "__timely_epoch"


class Sink:
    """The base class of sinks."""

    #: settings for the query's session
    confs: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: whether it calls a function of the user's, which owns the errors
    calls_user: ClassVar[bool] = False
    #: whether several epochs are written together if they follow each other quickly
    grouped: ClassVar[bool] = False

    #: whether `claim` removes what another checkpoint's output has written
    replaces: bool = False
    #: the properties by which a table or folder is this output's
    _own: Mapping[str, str] = MappingProxyType({})

    @property
    def place(self) -> str:
        """The table or folder to which it writes; empty if it writes to none."""
        return ""

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Check, in the user's process, that the output may write to its place; changes no file or table.

        The `identity` of the checkpoint is the same after a restart.
        """

    def resolved(self, session: SparkSession) -> str:
        """The place, equal for equal places, after `prepare`; empty if it writes to none."""
        return ""

    def check_beside(self, session: SparkSession, output: Output, first: Output) -> None:
        """Refuse the place if it cannot be that of the flow's output `first`, too, which claims it before."""
        raise OutputMismatch.in_one_folder(self.place, first.name, output.name)

    def claim(self, session: SparkSession, output: Output) -> None:
        """Make the place this output's, for example create a table: at a start that no output has refused."""

    def last(self) -> int:
        """The last epoch, or batch, that the place has of this output; -1 if it has none, or does not say."""
        return -1

    def written(self, most: int) -> pa.Table | None:
        """So many rows, at most, of what was written last; None if that is not in files of this machine."""
        return None

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write deliveries; `version` increases, and is the same when a batch runs again."""
        raise NotImplementedError

    def complete(self) -> None:
        """All epochs are delivered."""

    def _check_own(self, properties: Mapping[str, object] | None) -> None:
        """Check that the place has the properties of this output: another place lacks earlier epochs."""
        if properties is None or not self._own.items() <= properties.items():
            raise OutputMismatch.lost(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of the flow with its sink."""

    name: str
    #: The output's vertex, which has the schema and combines the parts of an epoch.
    vertex: vertices.OutputVertex
    sink: Sink
    release: Literal["epoch", "arrival"] = "epoch"
    #: Whether it has delivered epochs before this start: a new table or folder would lack them.
    resumed: bool = False
    #: The steps before it that started without the past, in words.
    lacks: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the delivered records."""
        return self.vertex.schema

    @property
    def described(self) -> str:
        """The output and its table or folder, for messages."""
        place = self.sink.place
        return f"output {self.name!r} to {place}" if place else f"output {self.name!r}"


@dataclass
class SubscribeSink(Sink):
    """Calls the user's functions with each epoch's table, at least once: after a crash perhaps again."""

    calls_user: ClassVar[bool] = True
    on_epoch: Callable[[int, pa.Table], object]
    on_complete: Callable[[], object] | None = None

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Give an `ExactlyOnce` function the checkpoint's id."""
        if isinstance(self.on_epoch, ExactlyOnce):
            self.on_epoch = self.on_epoch.of(identity)

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        for part in parts:
            self.on_epoch(part.epoch, part.table)

    def complete(self) -> None:
        if self.on_complete is not None:
            self.on_complete()


@dataclass
class ForeachEpochSink(Sink):
    """Calls the user's function with each epoch as a Spark DataFrame, at least once."""

    calls_user: ClassVar[bool] = True
    function: Callable[[DataFrame, int], object]

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        for part in parts:
            self.function(part.frame(session), part.epoch)


@dataclass
class InspectSink(Sink):
    """Prints records on the driver, at most `limit` per epoch."""

    name: str
    limit: int = 20

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        for part in parts:
            for record in part.table.slice(0, self.limit).to_pylist():
                print(f"{self.name} @ {part.epoch}: {record}", flush=True)  # noqa: T201
            if (more := part.table.num_rows - self.limit) > 0:
                print(f"{self.name} @ {part.epoch}: ... and {more} more")  # noqa: T201


@dataclass
class CaptureSink(Sink):
    """Writes each delivery to an Arrow file in the checkpoint, for `Query.captured` and for views."""

    deliveries: Deliveries | None = None

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Set the folder of the files, whose columns must be those of the stream."""
        self.deliveries = Deliveries(checkpoint, output.name)
        stored, now = self.deliveries.schema(), describe(as_schema(output.schema))
        if stored is not None and (before := describe(as_schema(stored))) != now:
            raise OutputMismatch.columns(output.name, stored=before, now=now)

    def deliver(self, session: SparkSession, version: int, parts: Parts) -> None:
        """Write one file, also for an epoch without records; a repeated delivery writes the same file."""
        tables = [with_epoch_column(part.table, part.epoch, STAMP) for part in parts]
        assert self.deliveries is not None
        self.deliveries.write(version, pa.concat_tables(tables))


@dataclass
class MemorySink(CaptureSink):
    """A temporary view of all deliveries so far: a column `epoch`, then the stream's own.

    The view lists the files at each read. So it is up to date, and works with the driver in another process
    and after the query has stopped. Meant for small results.
    """

    view: str = ""
    _checkpoint: str = ""

    def prepare(self, session: SparkSession, output: Output, checkpoint: str, identity: str) -> None:
        """Do as `CaptureSink`, and check that the view can have a column of epochs."""
        super().prepare(session, output, checkpoint, identity)
        check_names_of_spark(output, [self.view])
        with_epoch(f"view {self.view!r}", output.schema)
        self._checkpoint = checkpoint

    def resolved(self, session: SparkSession) -> str:
        """The view, whose name has no case for Spark."""
        return f"view {self.view.lower()}"

    def check_beside(self, session: SparkSession, output: Output, first: Output) -> None:
        """Refuse the name: one view would replace the other."""
        msg = f"Output {output.name!r}: Spark takes its view for that of output {first.name!r}."
        raise OutputMismatch(msg, hint="give the views names that differ in more than their case.")

    def claim(self, session: SparkSession, output: Output) -> None:
        from timely_spark.runtime.sinks.memory import MemorySource

        schema, _ = with_epoch(f"view {self.view!r}", output.schema)
        register(session, MemorySource)
        options = {"checkpoint": self._checkpoint, "output": output.name}
        view = session.read.format(MemorySource.name()).schema(schema).options(**options).load()
        view.createOrReplaceTempView(self.view)


def check_names_of_spark(output: Output, names: Iterable[str]) -> None:
    """Refuse names for which Spark would take others: nothing quotes ``${...}`` in names of a statement."""
    for name in names:
        if "${" in name:
            what = "for which Spark puts a setting or a variable of the environment"
            msg = f"Output {output.name!r}: {name!r} has ${{...}}, {what}."
            hint = "name it without ${: in Python, os.environ and spark.conf.get have these values."
            raise OutputMismatch(msg, hint=hint)


def real_place(place: str) -> str:
    """The canonical text of a location, without options; links of a local path are followed."""
    root = without_options(location(place))
    return root if "://" in root else os.path.realpath(root)


def with_epoch_column(table: pa.Table, epoch: int, column: str = EPOCH) -> pa.Table:
    """The table with the epoch as its first column."""
    return table.add_column(0, column, pa.repeat(pa.scalar(epoch, pa.int64()), table.num_rows))


def with_epoch(where: str, schema: pa.Schema) -> tuple[StructType, list[str]]:
    """Spark's schema of an output with a first column of epochs, and the names of the stream's columns."""
    if EPOCH in schema.names:
        msg = f"{where}: the stream has a column {EPOCH!r}, which the output adds."
        raise OutputMismatch(msg, hint="rename it with select.")
    return spark_schema(schema.insert(0, pa.field(EPOCH, pa.int64()))), list(schema.names)
