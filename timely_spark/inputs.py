"""Inputs: what a program sends, and what is read from DataFrames, files, tables and captures."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from timely_spark.differential.collections import check_product_order
from timely_spark.differential.imported import FILE, imported_arrangement
from timely_spark.errors import GraphError
from timely_spark.graph import (
    Kind,
    LogicalGraph,
    SchemaLike,
    as_schema,
    caller,
    find,
    frame_schema,
    integer,
    locate_errors,
    refuse,
    word,
)
from timely_spark.input_streams import Input, Source
from timely_spark.streams import Scope
from timely_spark.worker.epoch_columns import check_epoch_column, kind_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyarrow.dataset import FileFormat
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame

    from timely_spark.differential import Collection
    from timely_spark.runtime.handle.input_handle import InputHandle
    from timely_spark.runtime.handle.query import Query
    from timely_spark.runtime.sources.source import JournaledSource

_log = logging.getLogger(__name__)


AnyInput = TypeVar("AnyInput", Input, Source)


class Inputs:
    """The methods of a `Dataflow` that give it inputs; their argument `name` is the input's name."""

    name: str
    graph: LogicalGraph
    #: what is read, by the name of its input: a DataFrame, or what this package reads itself
    frames: dict[str, DataFrame | JournaledSource]
    _handles: dict[str, InputHandle]

    @locate_errors
    def source(
        self,
        name: str,
        frame: DataFrame | SchemaLike,
        *,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """A streaming DataFrame as input: each micro-batch with input is an epoch.

        Outputs release each epoch, in order, when it is complete. With epochs of a column, or manual ones,
        they release every number from the first epoch on (0 if manual), with an empty table for an empty
        epoch. If one micro-batch completes more than 100 empty epochs in a row, they release only the last
        one, so skipped epochs were empty.

        Args:
            frame: the DataFrame; or only its schema, bound later by `start(sources=...)` or in tests.
            epoch: an integer column that is the epoch and does not decrease: an epoch ends one round after a
                higher one was seen, or when all available input was read. Later records of it are counted and
                go to `late`, as do records without an epoch (null, negative, from 2**62 on).
            max_jump: by how much an epoch may exceed the highest epoch so far. Records with a greater epoch
                go to `late` with a warning. The first epoch may be any.

        **Columns:** out those of `frame`.

        Example:
            In a test a schema stands for the DataFrame:

            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("totals")
            >>> sales = flow.source("sales", "shop string, amount long")  # or spark.readStream...
            >>> _ = sales.group_by("shop").aggregate(total=("sum", "amount")).capture("totals")
            >>> ts.testing.run(flow, {"sales": [[("a", 5), ("a", 2)]]})["totals"].rows()
            {0: [('a', 7)]}

        Raises:
            GraphError: the DataFrame is not streaming, or the kinds of epoch are mixed.
        """
        value: Any = frame
        if not hasattr(value, "isStreaming"):
            return self._source(name, as_schema(value), epoch, max_jump, origin="dataframe")
        if not value.isStreaming:
            msg = f"source {name!r}: the DataFrame is not streaming"
            raise GraphError(msg, where=caller(), hint="read it with spark.readStream.")
        schema = frame_schema(name, value, caller())
        source = self._source(name, schema, epoch, max_jump, origin="dataframe")
        self.frames[name] = value
        return source

    @locate_errors
    def files(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        format: Literal["parquet", "csv", "json", "arrow"] | FileFormat = "parquet",
        schema: SchemaLike | None = None,
        files_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
        filesystem: FileSystem | None = None,
        defaults: Mapping[str, object] | None = None,
        on_bad_file: Literal["fail", "quarantine"] = "fail",
    ) -> Source:
        r"""The files of a folder, and those that arrive there, as columns: each is read exactly once.

        The tasks read files with pyarrow and hand whole columns to the workers, which takes half the time
        of `source` with a DataFrame of the same files. Columns that the flow drops, and row groups of
        Parquet that its first `where` excludes by their statistics, are not read.

        The files that one batch reads are an epoch. Files are read in the order of their modification times,
        and a late file with an older time is read, too. A changed file is not read again, nor is another link
        to a file that was read: a local file is known by its inode, others by their path. As in Spark's file
        source, names that begin with "." or "_" do not count, folders below are read, and folders called
        ``day=1`` are columns. Files must appear whole: write them under another name, and rename them.

        Args:
            path: the folder, which driver and executors see: a path, or a URI (s3, gs, abfss, hdfs).
            format: "parquet"; "csv" with a line of names, and empty fields as null; "json" with one object
                a line; "arrow" (IPC files); or a `pyarrow.dataset.FileFormat` with options of its own.
            schema: by default that of the newest file; of JSON, that of its first block (1 MB).
            files_per_epoch: the most files of an epoch; by default all new ones.
            max_bytes_per_epoch: the most bytes of an epoch's files, but one file at least.
            epoch: as for `source`, as is `max_jump`.
            filesystem: the `pyarrow.fs.FileSystem` of the path, if the path alone does not say it.
            defaults: the values of columns in files that lack them, such as ``{"diff": 1}``; a JSON record
                with null, too, has the default. Any file may have such a column, and any may lack it.
            on_bad_file: "fail": a file that cannot be read ends the query; "quarantine": the whole file is
                left out, counted, and listed by the stream `Source.quarantined`. Each file is read once
                more to check it before its epoch begins; what is decided then stands in the checkpoint.

        **Columns:** out `schema`. A column that an older file lacks is null in its rows, or has its default.

        Example:
            >>> import pathlib, tempfile, timely_spark as ts
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = (folder / "a.csv").write_text("src,dst\n1,2\n")
            >>> flow = ts.Dataflow("edges")
            >>> flow.files("edges", folder, format="csv").schema.names
            ['src', 'dst']

        Raises:
            BadFile: the folder has no file to take the schema from, or the newest file has other columns. At
                run time: a file is damaged, or was removed before it was read.
            BadLocation: the path cannot be reached.
            BadArgument: an argument is of another kind, or a default is not a value of its column.
        """
        from timely_spark.runtime.sources.arrivals import QUARANTINED
        from timely_spark.runtime.sources.folder import FileSource, Folder

        limits = {"files_per_epoch": files_per_epoch, "max_bytes_per_epoch": max_bytes_per_epoch}
        files, size = (limit if limit is None else integer(what, limit) for what, limit in limits.items())
        folder = Folder.of(name, caller(), path, format, filesystem, defaults=defaults)
        word("on_bad_file", on_bad_file, ("fail", "quarantine"), step="files")
        inspected, folder = folder.inspect(schema, quarantine=on_bad_file == "quarantine")
        bad = QUARANTINED if on_bad_file == "quarantine" else None
        source = self._source(name, inspected, epoch, max_jump, bad)
        self.frames[name] = FileSource(folder, files, size, on_bad_file=on_bad_file)
        return source

    @locate_errors
    def delta(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        changes: bool = False,
        from_version: int | None = None,
        from_time: str | None = None,
        versions_per_epoch: int = 1,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """A Delta table, version by version, as columns: first all its rows, then each version is an epoch.

        The tasks read the table's files as those of `files`. A table with deletion vectors, column mapping
        or another feature of readers is read by Spark's own reader, if there is a session with Delta Lake;
        the epochs are then Spark's micro-batches.

        Args:
            path: the table's folder, a path or URI that driver and executors see.
            changes: also read updates and deletions: rows have the column ``diff``, 1 for an added and -1 for
                a removed row, and ``collection(diff="diff")`` is the table. The table's change feed is used
                where there is one (Spark's reader needs it); else the files that a version removes are read,
                which must still exist. Without it, a version that removes rows is an error.
            from_version: start with this version, instead of all rows of the newest one.
            from_time: start with the first version at or after this time, such as ``"2026-11-22 08:00:00"``:
                by the clock of the active session (else of this machine), or with an offset.
            versions_per_epoch: the most versions of an epoch. Versions without rows do not count.
            epoch: as for `source`, as is `max_jump`.

        **Columns:** out those of the newest version when the flow is built; with `changes` also diff long.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("edges")
            >>> edges = flow.delta("edges", "/tables/edges", changes=True).collection(diff="diff")
            ... # doctest: +SKIP

        Raises:
            BadFile: there is no table, or no version since `from_time`, or `from_version` is later than the
                next one; or at run time: a version removes rows, or a file was removed.
            BadArgument: `from_time` is not a time, or both it and `from_version` are given.
            TableUnsupported: the table needs Spark's reader, and there is no session, or the table does not
                record its changes; or, at run time, since a version.
        """
        from timely_spark.runtime.errors import TableUnsupported
        from timely_spark.runtime.sources.begin import Begin
        from timely_spark.runtime.sources.delta_log import DeltaSource, spark_frame
        from timely_spark.runtime.sources.folder import Folder

        versions_per_epoch = integer("versions_per_epoch", versions_per_epoch)
        begin = Begin.of(from_version, from_time)
        folder = Folder.of(name, caller(), path, "parquet", None, versions={})
        table = DeltaSource(folder, changes=bool(changes), versions_per_epoch=versions_per_epoch)
        try:
            schema = table.log.schema()
            table = replace(table, from_version=table.log.first(begin))
        except TableUnsupported as error:
            if (frame := spark_frame(table, begin)) is None:
                raise
            _log.warning("%s: Spark's own reader is used", error.message)
            return self.source(name, frame, epoch=epoch, max_jump=max_jump)
        source = self._source(name, schema, epoch, max_jump)
        self.frames[name] = table
        return source

    @locate_errors
    def table(
        self,
        name: str,
        table: str,
        *,
        changes: bool = False,
        from_version: int | None = None,
        from_time: str | None = None,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """A Delta table by its name in a catalog: as `delta`, by Spark's own reader, in micro-batches.

        Spark ends the query with an error when columns change.

        Args:
            table: catalog.schema.table, or what else the session's catalog knows.
            changes: as for `delta`; by the table's change feed, which must be enabled.
            from_version: start with this version, instead of all rows of the newest one.
            from_time: as for `delta`.
            epoch: as for `source`, as is `max_jump`.

        **Columns:** out those of the table; with `changes` also diff long.

        Example:
            >>> flow.table("edges", "main.graph.edges", from_time="2026-11-22 08:00:00")  # doctest: +SKIP

        Raises:
            NoSession: no session is active.
            TableUnsupported: Spark cannot read it as a stream, or not its changes.
            BadArgument: `from_time` is not a time, or both it and `from_version` are given.
        """
        from timely_spark.runtime.sources.begin import Begin
        from timely_spark.runtime.sources.delta_log import table_frame

        begin = Begin.of(from_version, from_time)
        frame = table_frame(name, table, changes=bool(changes), begin=begin)
        return self.source(name, frame, epoch=epoch, max_jump=max_jump)

    @locate_errors
    def kafka(
        self,
        name: str,
        topics: str | Sequence[str],
        servers: str,
        *,
        format: Literal["bytes", "json", "avro"] | None = None,
        schema: SchemaLike | Mapping[str, object] | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        start: str | datetime | Mapping[str, Mapping[int, int]] = "earliest",
        records_per_epoch: int | None = None,
        on_bad_record: Literal["fail", "quarantine"] = "fail",
        on_lost: Literal["fail", "skip"] = "fail",
        timeout: float | str = "2 minutes",
        options: Mapping[str, object] | None = None,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """The messages of topics of Kafka, as columns: each is read exactly once.

        The tasks fetch messages with `confluent-kafka` (the extra `kafka`), and decode many at a time; no
        connector of Spark is needed. The messages that one batch reads are an epoch. Its offsets are in the
        checkpoint before anything of it is released, so a repeated epoch has the same. Messages of a
        partition stay in order. There is no consumer group: no other program can take partitions away. New
        partitions are read from their first message on.

        A message without a value (a tombstone) has null in all columns of `schema`. Of a transaction only
        what is committed is read.

        Args:
            topics: the names of one or more topics.
            servers: the brokers, such as ``"host1:9092,host2:9092"``.
            format: "bytes": the column `value`; "json": an object in each message. Its members are
                the columns of `schema` (others are ignored, missing ones are null); "avro": a record in each
                message, in Avro's binary encoding without a header, by `schema`. By default "json" with a
                schema, else "bytes".
            schema: of JSON, the columns; of Avro, the schema of Avro as JSON or as a dict.
            metadata: what else is a column: "topic", "partition", "offset", "timestamp", "key", "headers"; or
                a dict from these to names of columns.
            start: where a flow with a new checkpoint begins: "earliest": with the first messages; "latest":
                with what arrives from now on; a `datetime`, or a text as for `delta`: with the first messages
                since that time; a dict: by topic and partition the offset of the first message, of all
                messages where it has none.
            records_per_epoch: the most messages of an epoch; by default all new ones.
            on_bad_record: "fail": a message that cannot be decoded ends the query; "quarantine": it is left
                out, counted, and listed by the stream `Source.quarantined`.
            on_lost: "fail": messages that the brokers have deleted before they were read end the query;
                "skip": they are left out, with a warning.
            timeout: how long brokers may be silent until the query fails, in seconds or with a unit. When
                it is started again, it reads the same offsets.
            options: those of librdkafka, as ``{"security.protocol": "SASL_SSL"}``. Passwords and the like
                are in no log, error or checkpoint.
            epoch: as for `source`, as is `max_jump`.

        **Columns:** out those of the values, then those of `metadata`: topic string, partition int, offset
        long, timestamp timestamp, key binary, headers array<struct<key: string, value: binary>>.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("totals")
            >>> payments = flow.kafka(
            ...     "payments", "payments", "localhost:9092", schema="account string, amount long"
            ... )
            >>> payments.schema.names
            ['account', 'amount']

        Raises:
            BadArgument: an argument is of another kind, or the client refuses an option.
            SchemaError: a column of `metadata` has the name of another column.
            BadTopic: when the flow starts, or runs: the topic is missing, was deleted or created again, its
                messages were deleted before they were read, or its brokers do not answer.
            BadRecord: at run time: a message cannot be decoded.
        """
        from timely_spark.runtime.sources.kafka import QUARANTINED
        from timely_spark.runtime.sources.kafka_options import kafka_source

        source = kafka_source(
            name,
            topics,
            servers,
            form=format,
            schema=schema,
            metadata=metadata,
            start=start,
            records_per_epoch=records_per_epoch,
            on_bad_record=on_bad_record,
            on_lost=on_lost,
            timeout=timeout,
            options=options,
        )
        bad = QUARANTINED if on_bad_record == "quarantine" else None
        stream = self._source(name, source.schema, epoch, max_jump, bad)
        self.frames[name] = source
        return stream

    @locate_errors
    def replay(self, name: str, path: str | os.PathLike[str]) -> Source:
        """Read the captures of another flow's `Stream.capture_to`, epoch by epoch, also while it still runs.

        Law: the records of epoch e are those of the captured stream at epoch e, and the frontier is that of
        the captured stream: an epoch ends when its file is there, also an empty one, and the input is closed
        at the end of the capture. The number of workers, crashes and restarts of either flow change nothing.
        Epochs that the capture skipped are empty here. The epochs count as manual ones, so other inputs of
        this flow have manual epochs, too. Several epochs may be read together; the tasks read the files.
        A published collection (`Collection.publish`) begins with the sum of its changes up to one epoch.

        Args:
            path: the folder, in which the other flow has been started.

        **Columns:** out those of the captured stream.

        Example: see `Stream.capture_to`.

        Raises:
            BadFile: nothing was captured there; at run time: files were removed or damaged, or the folder has
                another capture now.
            BadLocation: the path cannot be reached.
        """
        from timely_spark.runtime.sources.folder import Folder
        from timely_spark.runtime.sources.replay import ReplaySource

        source = ReplaySource(Folder.of(name, caller(), path, "arrow", None, versions={}))
        stream = self._input(Source, name, [as_schema(source.schema())], "manual", origin="journal")
        self.frames[name] = source
        return stream

    @locate_errors
    def import_arrangement(self, published: str | os.PathLike[str] | Query, name: str) -> Collection:
        """An arrangement that another flow publishes: its sorted files, and what changes after them.

        The other flow publishes a collection that it has arranged: ``edges.arrange("src").publish(folder)``.
        The workers of this flow map the newest snapshot, and read the records of their keys in place, sorted
        as they are: nothing is exchanged, sorted or stored again, and all flows of a machine share the one
        copy in its page cache. Joins and reductions by the keys use it as an arrangement of their own.

        Law: as `replay`. The import begins with all records at the snapshot's epoch; from there on it has
        each epoch's changes, exactly once, and the frontier of the other flow. These changes are the
        workers' own; when they outweigh a worker's records in the snapshot, both are merged, and stored here.

        The flow holds the snapshot, and the epochs that it has not read, by a lease, as any reader of
        `publish` does. If it was away for longer, and they are removed, it ends with an error, which says to
        import again with a new checkpoint. The other flow waits for nobody beyond the lease.

        Args:
            published: the folder, or the query that publishes it.
            name: the name of this input; of a query also that of its `publish`.

        **Columns:** out those of the published collection.

        Example:
            >>> import tempfile, timely_spark as ts
            >>> folder, first, other = tempfile.mkdtemp(), ts.Dataflow("first"), ts.Dataflow("other")
            >>> edges = first.input("edges", "src long, dst long", epochs="manual").collection()
            >>> _ = edges.arrange("src").publish(folder, name="by_src")
            >>> _ = ts.testing.run(first, {"edges": [[(1, 2), (1, 3)], [(2, 3)]]})
            >>> imported = other.import_arrangement(folder, "edges")
            >>> _ = imported.count().changes().capture("degrees")
            >>> ts.snapshot(ts.testing.run(other, {})["degrees"]).to_pylist()
            [{'src': 1, 'count': 2}, {'src': 2, 'count': 1}]

        Raises:
            BadFile: nothing is published there, or a collection that is not arranged; at run time also: the
                lease has run out, files are damaged, or the folder has another collection now.
            UnknownName: the query publishes nothing of that name.
            GraphError: the flow has times of its own kind.
        """
        from timely_spark.runtime.handle.query import Query
        from timely_spark.runtime.sources.folder import Folder
        from timely_spark.runtime.sources.replay import ReplaySource

        folder: Any = published
        if isinstance(published, Query):
            folder = published._published_folder(name)  # noqa: SLF001 - not for users
        location = Folder.of(name, caller(), folder, "arrow", None, versions={})
        source = ReplaySource(location, maps=True)
        about = source.arranged()
        flow: Any = self  # a Dataflow
        check_product_order("import_arrangement", Scope(flow, self.graph.root))
        stream = self._input(Source, name, [source.schema()], "manual", own=(FILE,), origin="journal")
        self.frames[name] = source
        return imported_arrangement(stream, about.keys, about.diff, source.opened(about))

    def _source(
        self,
        name: str,
        schema: pa.Schema,
        epoch: str | None,
        max_jump: int,
        bad: pa.Schema | None = None,
        *,
        origin: str = "journal",
    ) -> Source:
        if epoch is not None:
            max_jump = check_epoch_column(name, schema, epoch, max_jump)
        outputs, more = [schema] * (1 if epoch is None else 2), dict[str, Any]()
        if bad is not None:
            outputs, more = [*outputs, bad], {"quarantined": len(outputs)}
        return self._input(Source, name, outputs, epoch or "clock", max_jump=max_jump, origin=origin, **more)

    @locate_errors
    def input(self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock") -> Input:
        """A stream whose records the program sends.

        Args:
            schema: the schema of the records.
            epochs: "clock": records sent since the last batch join the next epoch; "manual": the program
                ends epochs, by `Input.advance_to`.

        **Columns:** out `schema`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("numbers")
            >>> _ = flow.input("numbers", "n long").distinct().capture("seen")
            >>> ts.testing.run(flow, {"numbers": [[1, 1], [2, 1]]})["seen"].rows()
            {0: [(1,)], 1: [(2,)]}

        Raises:
            GraphError: the flow's other inputs have another kind of epoch.
            BadArgument: `name` is not a text.
        """
        from timely_spark.runtime.handle.input_handle import InputHandle

        word("epochs", epochs, ("clock", "manual"), step=f"input {name!r}", error=GraphError)
        stream = replace(self._input(Input, name, [as_schema(schema)], epochs, origin="handle"), source=name)
        self._handles[name] = InputHandle(name, stream.schema, epochs=epochs)
        return stream

    def _input(
        self, handle_type: type[AnyInput], name: Any, outputs: list[pa.Schema], epochs: str, **more: Any
    ) -> AnyInput:
        if not isinstance(name, str):
            hint = "name the input: its records are sent, and bound to DataFrames, by its name."
            refuse(name, what="name", expected="a text", hint=hint)
        kind = kind_of(epochs)
        for stage in self.graph.stages:
            if stage.is_source and (other := kind_of(stage.epochs)) != kind:
                msg = f"input {name!r} has epochs {kind}, {stage.name!r} ({stage.where}) has {other}"
                raise GraphError(msg, where=caller(), hint="use one kind of epoch for all inputs of a flow.")
        more |= {"detail": epochs, "parameters": {"epochs": epochs}, "requires": (), "epochs": epochs}
        stage = self.graph.stage("source", self.graph.root, outputs, kind=Kind.SOURCE, name=name, **more)
        flow: Any = self  # a Dataflow
        return handle_type(flow, stage)

    @locate_errors
    def handle(self, name: str) -> InputHandle:
        """The handle that sends to an input.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("numbers")
            >>> _ = flow.input("numbers", "n long", epochs="manual").capture("out")
            >>> flow.handle("numbers").epoch
            0

        Raises:
            UnknownName: the flow has no input of that name.
        """
        return find(self._handles, name, kind="input", flow=self.name)
