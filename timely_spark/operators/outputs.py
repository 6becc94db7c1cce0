"""Outputs and probes: records are captured, printed, passed to a function, or written to a sink."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import (
    Kind,
    Partition,
    Stage,
    absolute,
    caller,
    check_columns,
    check_names,
    integer,
    names,
    operator,
    path_text,
    refuse,
    word,
)
from timely_spark.operators.exactly_once import ExactlyOnce
from timely_spark.operators.output_vertex import ChangesOutput, OutputVertex, ProbeVertex
from timely_spark.operators.rows import check_function
from timely_spark.operators.table_layout import TableLayout
from timely_spark.operators.windows import end_of_windows
from timely_spark.state.row_times import DIFF
from timely_spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from timely_spark.methods import Dataflow

Release = Literal["epoch", "arrival"]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output as the user declared it."""

    stage: Stage
    schema: pa.Schema
    kind: str
    release: Release
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The step's name."""
        return self.stage.name


@dataclass(frozen=True, slots=True)
class Probe:
    """A place in the flow whose frontier can be read: `query.probe(probe).less_than(time)`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("watched")
        >>> probe = flow.input("x", "n long").probe("seen")
        >>> simulation = ts.testing.Simulation(flow)
        >>> simulation.send("x", [1])
        >>> simulation.run()
        >>> simulation.result.frontier[probe.name]
        [[1]]
    """

    flow: Dataflow
    stage: Stage

    @property
    def name(self) -> str:
        """The step's name."""
        return self.stage.name


@operator(Stream)
def probe(stream: Stream, name: str | None = None) -> Probe:
    """Add a probe, at which the frontier can be read.

    **Columns:** in: any.

    Example:
        >>> import timely_spark as ts
        >>> ts.Dataflow("watched").input("x", "n long").probe("seen").name
        'seen'

    Raises:
        GraphError: another step has the name.
    """
    probed = stream.then("probe", [stream.schema], kind=Kind.PROBE, name=name, vertex=ProbeVertex())[0]
    return Probe(stream.flow, probed.stage)


@operator(Stream)
def inspect(stream: Stream, name: str | None = None, *, limit: int = 20) -> Stream:
    """Print records on arrival, on the driver: at most `limit` a batch. Returns the stream.

    A batch may take many rounds; ``start(rounds_per_batch=1)`` shows each. To call a function with the
    records of each epoch, use `subscribe`.

    **Columns:** printed: the stream's.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("shown")
        >>> _ = flow.input("x", "n long").inspect("shown", limit=5)

    Raises:
        GraphError: `name` is a function, or another step has it.
    """
    label: Any = name
    if callable(label):
        msg = f"inspect: {label!r} is a function"
        hint = "call it by subscribe(lambda epoch, table: ...); inspect prints."
        raise GraphError(msg, where=caller(), hint=hint)
    limit = integer("limit", limit, least=0, step="inspect")
    return add_output(stream, "inspect", name, "inspect", "arrival", limit=limit)


@operator(Stream)
def capture(stream: Stream, name: str | None = None) -> Stream:
    """Store each epoch's records, to be read with `query.captured(name)` or from `testing.run`.

    The records pass through the driver: for results that a person or a test reads.

    **Columns:** stored: the stream's.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("kept")
        >>> _ = flow.input("x", "n long").capture("out")
        >>> ts.testing.run(flow, {"x": [[2, 1], [3]]})["out"].rows()
        {0: [(1,), (2,)], 1: [(3,)]}

    Raises:
        GraphError: the stream is in a loop, or another step has the name.
    """
    return add_output(stream, "capture", name, "capture", "epoch")


@operator(Stream)
def to_memory(stream: Stream, name: str, *, release: Release = "epoch") -> Stream:
    """Show all records so far, with their epoch, as a temporary view `name`.

    The records pass through the driver: for results that a person reads.

    **Columns:** epoch long, then the stream's own.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("viewed")
        >>> _ = flow.input("x", "n long").to_memory("numbers")

    Raises:
        GraphError: the stream is in a loop, or another step has the name.
        SchemaError: the stream has a column `epoch`.
    """
    return add_output(stream, "to_memory", name, "memory", release)


@operator(Stream)
def subscribe(
    stream: Stream,
    on_epoch: Callable[[int, pa.Table], object],
    on_complete: Callable[[], object] | None = None,
    *,
    release: Release = "epoch",
    name: str | None = None,
) -> Stream:
    """Call `on_epoch(epoch, table)` on the driver for each complete epoch, in order, also for empty ones.

    By the clock, epochs are the batches with input. Manual epochs, and those of a column, are all
    numbers from the first on; if one batch completes more than 100 empty ones in a row, `on_epoch` is
    called for the last of them only.

    At least once: after a crash, or a failed `on_epoch`, an epoch is repeated with the same number and
    records. For exactly-once writes to a database use `timely_spark.once`. The table holds the whole epoch in
    the driver; for large epochs use `foreach_epoch`, `to_delta` or `to_files`.
    `on_complete()` is called when all inputs are closed and all work is done (Naiad section 4.1).

    Args:
        on_epoch: gets the epoch's number and an Arrow table of its records; or `timely_spark.once`.
        on_complete: gets nothing.
        release: "epoch", or "arrival" to call it with each round's records at once.

    **Columns:** the table has those of the stream.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("subscribed")
        >>> _ = flow.input("x", "n long").subscribe(lambda epoch, table: print(epoch, table.num_rows))

    Raises:
        GraphError: a function takes other arguments, the stream is in a loop, or `release` is unknown or does
            not fit `once`.
    """
    if not isinstance(on_epoch, ExactlyOnce):
        check_function("subscribe", on_epoch, "epoch", "table", rows=False)
    if on_complete is not None:
        check_function("subscribe", on_complete, rows=False)
    if release == "arrival" and isinstance(on_epoch, ExactlyOnce):
        msg = f"subscribe: once({on_epoch.name!r}) with release='arrival'"
        hint = "leave release at 'epoch': by arrival an epoch has several parts, and once writes one only."
        raise GraphError(msg, where=caller(), hint=hint)
    return add_output(
        stream, "subscribe", name, "subscribe", release, on_epoch=on_epoch, on_complete=on_complete
    )


@operator(Stream)
def foreach_epoch(
    stream: Stream,
    function: Callable[[DataFrame, int], object],
    *,
    release: Release = "epoch",
    name: str | None = None,
) -> Stream:
    """Call `function(DataFrame, epoch)` for each complete epoch, in order; at least once, as foreachBatch.

    Spark's tasks read the epoch, so it may be large. Use the DataFrame within the call only.

    Args:
        function: gets a DataFrame of the epoch's records, and the epoch's number.
        release: "epoch", or "arrival" to call it with each round's records at once.

    **Columns:** the DataFrame has those of the stream.

    Example:
        >>> import timely_spark as ts
        >>> def write(frame, epoch):
        ...     frame.write.mode("overwrite").parquet(f"/data/archive/{epoch}")
        >>> flow = ts.Dataflow("archive")
        >>> _ = flow.input("x", "n long").foreach_epoch(write)

    Raises:
        GraphError: the function takes other arguments, the stream is in a loop, or `release` is unknown.
    """
    check_function("foreach_epoch", function, "frame", "epoch", rows=False)
    return add_output(stream, "foreach_epoch", name, "foreach_epoch", release, function=function)


@operator(Stream)
def to_delta(
    stream: Stream,
    table: str,
    *,
    keys: str | Sequence[str] | None = None,
    diff: str | None = None,
    epoch: bool | None = None,
    overwrite: bool | frozenset[str] = False,
    partition_by: str | Sequence[str] | None = None,
    cluster_by: str | Sequence[str] | None = None,
    comment: str | None = None,
    properties: Mapping[str, str] | None = None,
    release: Release = "epoch",
    name: str | None = None,
) -> Stream:
    """Write to a Delta table: each epoch exactly once, in one transaction.

    A transaction has one or more whole epochs (`commit_every` of `Dataflow.start`).

    If a column or field name has a space or one of ``,;{}()=``, the table is created with Delta's column
    mapping by name, which readers must support.

    Args:
        table: a path, which has a slash, or catalog.schema.table. A relative path is one of the program's
            working directory when the flow is built. It may exist, empty, with the columns below.
        keys: None means a change log, to which records are appended with their epoch. Else a current table,
            upserted by key: of a key's records in an epoch the last one counts, in the order in which a
            handle sent them, or of files. `upserts` says which one is the last otherwise.
        diff: after `distinct`, `min` or `max`: the name of a new int column, +1 for a record that the epoch
            adds and -1 for one that it retracts; the sum up to an epoch gives the result at that epoch. With
            `keys` also a column of the stream, as in the changes of a collection: the table is the current
            collection, and deletes a key with its record. Changes of one epoch that cancel out are left out.
            The keys must be unique, or the epoch fails. Not with `release` "arrival": retractions are known
            when the epoch is complete.
        epoch: whether there is a column of the epoch of a row's last change. A log has it, and so has a table
            of records on arrival. With `keys`, None means that a table that has the column keeps it up to
            date.
        overwrite: replace the contents of a table that another checkpoint wrote; or only of one that a
            checkpoint with one of these ids wrote.
        partition_by: columns of the table; each combination of their values gets a folder. A table that
            exists must have the same ones. An empty text there is an error, also in a table that was
            partitioned before: Delta would store it as null. So are bytes that are not UTF-8, which it would
            store as text. Spark writes its epochs, also small ones.
        cluster_by: columns by which OPTIMIZE sorts rows into files (liquid clustering); not with
            `partition_by`. At a start a table that exists gets them, a new `comment` and new `properties`.
        comment: what the table is, for its readers.
        properties: the table's properties, as ``{"delta.enableChangeDataFeed": "true"}``; others stay.
        release: "epoch", or "arrival" to append each round's records at once.

    **Columns:** without keys epoch long, the stream's own, `diff`. With keys the stream's own; epoch comes
    first if it is asked for.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> counts = flow.input("words", "word string").group_by("word").count()
        >>> _ = counts.to_delta("main.texts.counts", keys="word")

        A collection, as a log of its changes and as a current table:

        >>> words = flow.input("written", "word string, diff int").collection(diff="diff")
        >>> counts = words.count("n", keys="word")
        >>> _ = counts.to_delta("main.texts.changes").to_delta("main.texts.now", keys="word")

    Raises:
        SchemaError: a key is missing; or `diff` is a key, or a column that is not an integer.
        GraphError: the stream is in a loop, `keys` is empty, `diff` is combined with `release` "arrival", or
            the table has no column of `partition_by` or `cluster_by`.
            At the start: the output is to retract records of a step that replaces values and retracts none,
            as `aggregate`, or records that are derived of those of `min` or `max`.
    """
    columns = names("to_delta", keys)
    if keys is not None and not columns:
        hint = "leave keys out to append each epoch's records, or name the columns that identify a row."
        msg = f"to_delta: keys={keys!r} has no column"
        raise GraphError(msg, where=caller(), hint=hint)
    check_columns("to_delta", stream.schema, columns, keys=True)
    if not columns or release == "arrival":
        if epoch is False:
            msg = "to_delta: epoch=False " + ("with release='arrival'" if columns else "without keys")
            hint = "leave epoch out: a log, and a table in which a later epoch may come first, need it."
            raise GraphError(msg, where=caller(), hint=hint)
        epoch = True
    added, vertex = diff, None
    present = [field.name for field in stream.schema if not (columns and field.name == diff)]
    present += [diff] * (diff is not None and not columns) + ["epoch"] * bool(epoch)
    layout = TableLayout.of(present, partition_by, cluster_by, comment, properties)
    if diff is not None:
        _check_diff(stream, diff, columns, release)
        if diff in stream.schema.names:
            added, consolidated = None, (stream.stage.keeps or {}).get(diff) == DIFF  # a collection's changes
            vertex = None if consolidated else ChangesOutput(stream.schema, diff, columns)
    return add_output(
        stream,
        "to_delta",
        name,
        "delta",
        release,
        added=added,
        vertex=vertex,
        by=columns if diff is None else (),
        diff=diff,
        target=_table(table),
        keys=list(columns),
        epoch=epoch,
        overwrite=overwrite,
        layout=layout,
    )


def _table(table: Any) -> str:
    """A table's name; or its path, which has a slash, made absolute: Spark takes no relative one."""
    if isinstance(table, os.PathLike) or (isinstance(table, str) and ("/" in table or "\\" in table)):
        return absolute(os.fspath(table))
    if not isinstance(table, str) or not table:
        hint = 'write to_delta("catalog.schema.table"), or a path with a slash, as "./table".'
        refuse(table, what="table", expected="a path or the name of a table", hint=hint)
    return table


def _check_diff(stream: Stream, diff: str, keys: Sequence[str], release: Release) -> None:
    """Check the diff column, which may be a column of the stream or a new one."""
    if release == "arrival":
        msg = f"to_delta: diff={diff!r} with release='arrival'"
        hint = "leave release at 'epoch': an epoch's retractions are known when it is complete."
        raise GraphError(msg, where=caller(), hint=hint)
    if diff not in stream.schema.names:
        return
    kind = stream.schema.field(diff).type
    if not keys:
        what, hint = "is a column already", "choose another name; or leave diff out: a log keeps the column."
    elif diff in keys:
        what, hint = "is a key, too", "keys are columns of the record."
    elif not pa.types.is_signed_integer(kind):
        what, hint = f"is a column of {kind}", "give a column of integers, or choose another name."
    else:
        return
    msg = f"to_delta: diff={diff!r} {what}"
    raise SchemaError(msg, where=caller(), hint=hint)


@operator(Stream)
def to_files(
    stream: Stream,
    path: str | os.PathLike[str],
    format: Literal["parquet", "arrow", "csv"] = "parquet",
    *,
    overwrite: bool = False,
    name: str | None = None,
) -> Stream:
    """Write each complete epoch to a file of its own, ``epoch-<20 digits>.<format>``.

    Exactly once: a file appears whole or not at all, and an epoch that is written again after a crash
    replaces its file. An empty epoch writes a file without records, so the file names show which epochs are
    complete. ``spark.read.parquet(path)`` reads all epochs.

    Args:
        path: a folder for this output alone, which driver and executors can reach.
        format: "parquet", "arrow" (an IPC file) or "csv".
        overwrite: remove the epochs that another checkpoint wrote there.

    **Columns:** epoch long, then the stream's own.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("archive")
        >>> _ = flow.input("x", "n long").to_files("/data/archive", name="files")
        >>> flow.outputs[0].options["format"]
        'parquet'

    Raises:
        GraphError: the stream is in a loop, or there is no such format.
        SchemaError: the stream has a column `epoch`.
    """
    word("format", format, ("parquet", "arrow", "csv"), step="to_files", error=GraphError)
    folder = absolute(path_text(path, "give a folder for this output alone"))
    return add_output(
        stream, "to_files", name, "files", "epoch", path=folder, format=format, overwrite=overwrite
    )


@operator(Stream)
def to_kafka(
    stream: Stream,
    topic: str,
    servers: str,
    *,
    key: str | None = None,
    value: Callable[[Column], Column] | None = None,
    options: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Stream:
    """Write each complete epoch to a Kafka topic, in order, at least once, with names that show repeats.

    After a crash of Spark or of a broker, the records of one epoch may be in the topic twice. So each has the
    headers ``timely-flow``, ``timely-epoch`` and ``timely-record``, which are the same in its repeats and
    differ in all other records, and `timely_spark.kafka.drop_repeats` reads each record once. An epoch is
    written when Kafka has acknowledged all earlier ones. An empty epoch writes nothing. Needs Spark's Kafka
    connector: ``configure(builder, kafka=True)``. With the package ``confluent-kafka`` small epochs take
    milliseconds.

    Args:
        topic: the topic; the brokers may create it.
        servers: addresses of brokers, "host:port,host:port".
        key: the column of the messages' keys, by which Kafka chooses the partition; other types than binary
            as text. Without one, and where it is null, the key is the name of the record.
        value: a function from a Spark column, the struct of all columns, to one of texts or bytes, such as
            ``lambda row: to_avro(row, schema)``; by default JSON, with nulls.
        options: further options of Spark's Kafka writer, such as ``kafka.security.protocol``.

    **Columns:** written: the messages' key, value and headers.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("alerts")
        >>> alerts = flow.input("alerts", "account string, amount long")
        >>> _ = alerts.to_kafka("alerts", "127.0.0.1:9092", key="account")

    Raises:
        SchemaError: the key is missing or nested.
        GraphError: the stream is in a loop.
        BadArgument: an argument is of another kind.
        OutputMismatch: at the start: there is no Kafka connector, or `value` gives no texts or bytes.
    """
    _check_kafka(topic, servers, value, options or {})
    if key is not None:
        check_columns("to_kafka", stream.schema, [key], keys=True)
    return add_output(
        stream,
        "to_kafka",
        name,
        "kafka",
        "epoch",
        topic=topic,
        servers=servers,
        key=key,
        value=value,
        options=dict(options or {}),
    )


def _check_kafka(topic: Any, servers: Any, value: Any, options: Any) -> None:
    texts = [*options, *options.values()] if isinstance(options, Mapping) else [None]
    expected = (
        ("topic", topic, "a text", isinstance(topic, str) and topic),
        ("servers", servers, "a text", isinstance(servers, str) and servers),
        ("value", value, "a function of a Spark column", value is None or callable(value)),
        ("options", options, "texts by option", all(isinstance(text, str) for text in texts)),
    )
    for what, argument, kind, fits in expected:
        if not fits:
            refuse(
                argument,
                what=what,
                expected=kind,
                hint='write to_kafka("alerts", "host:9092", key="account").',
            )


@operator(Stream)
def capture_to(
    stream: Stream, path: str | os.PathLike[str], *, overwrite: bool = False, name: str | None = None
) -> Stream:
    """Write the records and the progress of the stream to a folder, which `Dataflow.replay` reads.

    Exactly once: an epoch appears, whole and after all epochs before it, when it is complete, also an empty
    one; so another flow sees the records and the frontier of this one, while this one runs or later, on any
    number of workers (timely dataflow's capture and replay). When all inputs are closed and all work is done,
    the end is written, too. Also in the simulator. Costs nothing but the files; a large epoch is written by
    one of Spark's tasks.

    Args:
        path: a folder for this output alone, which the processes of both flows can reach.
        overwrite: remove the epochs that another checkpoint wrote there.

    **Columns:** written: the stream's own; the epoch is in the file's name.

    Example:
        >>> import tempfile, timely_spark as ts
        >>> shared = tempfile.mkdtemp()
        >>> first, second = ts.Dataflow("first"), ts.Dataflow("second")
        >>> _ = first.input("x", "n long", epochs="manual").distinct().capture_to(shared)
        >>> _ = ts.testing.run(first, {"x": [[1, 2], [], [2, 3]]}, workers=2)
        >>> _ = second.replay("new", shared).capture("out")
        >>> ts.testing.run(second, {}, workers=3)["out"].rows()
        {0: [(1,), (2,)], 1: [], 2: [(3,)]}

    Raises:
        GraphError: the stream is in a loop.
        BadArgument: `path` is not a path.
        OutputMismatch: at the start: the folder holds other files.
        TableTaken: at the start: another checkpoint's epochs are there, and `overwrite` is false.
    """
    folder = absolute(path_text(path, "give a folder that both flows can reach"))
    return add_output(stream, "capture_to", name, "folder", "epoch", path=folder, overwrite=bool(overwrite))


def add_output(
    stream: Stream,
    operator: str,
    name: str | None,
    kind: str,
    release: Release,
    *,
    added: str | None = None,
    vertex: OutputVertex | None = None,
    by: Sequence[str] = (),
    **options: Any,
) -> Stream:
    """Add an output to the flow. Its sink gets the options, and records of equal `by` in their order."""
    if kind != "inspect":
        stream.check_outside(operator)
    word("release", release, ("epoch", "arrival"), step=operator, error=GraphError)
    schema = stream.schema if added is None else stream.schema.append(pa.field(added, pa.int32()))
    has_epochs = kind in {"memory", "files"} or options.get("epoch")
    epoch = [pa.field("epoch", pa.int64())] if has_epochs else []
    check_names(operator, caller(), pa.schema([*epoch, *schema]), existing=stream.schema.names)
    if kind == "folder":
        options["end_of_windows"] = end_of_windows(stream)
    stage_kind = Kind.INSPECT if kind == "inspect" else Kind.OUTPUT
    called = f"{operator}-{stream.name.rsplit('.', 1)[-1]}"
    stream.then(
        stage_kind.value,
        [],
        kind=stage_kind,
        name=name,
        called=called,
        vertex=vertex or OutputVertex(schema, added),
        requires=[Partition.by(tuple(by))] if by else None,
        detail=kind,
        parameters={"to": kind, **{key: options[key] for key in ("keys", "diff") if options.get(key)}},
    )
    stage = stream.flow.graph.stages[-1]
    stream.flow.outputs.append(OutputSpec(stage, schema, kind, release, options))
    return stream
