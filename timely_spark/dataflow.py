"""`Dataflow`, and its inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark import show
from timely_spark.compiler import Plan, compile_plan
from timely_spark.coordinator.loops import with_warn_after
from timely_spark.errors import GraphError, InvalidTime
from timely_spark.graph import (
    Graph,
    Kind,
    SchemaLike,
    Stage,
    Vertex,
    as_schema,
    as_table,
    caller,
    find,
    frame_schema,
    locate_errors,
    refuse,
    whole,
)
from timely_spark.operators.custom import By, add_vertex
from timely_spark.operators.finalise import finalise_graph
from timely_spark.operators.outputs import OutputSpec
from timely_spark.streams import Scope, Stream
from timely_spark.times import PRODUCT, Times, broken_law
from timely_spark.worker.columns import check_epoch_column, kind_of

if TYPE_CHECKING:
    import os

    from pyarrow.dataset import FileFormat
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.runtime.handle.inputs import InputHandle
    from timely_spark.runtime.handle.query import Query
    from timely_spark.runtime.sources.folder import FileSource

_log = logging.getLogger(__name__)

Trigger = str | Mapping[str, Any] | None


class Input(Stream):
    """A stream whose records the program sends. Records sent before the start wait for it.

    With ``epochs="manual"`` the program also ends epochs, by `advance_to` and `close`.

    Example:
        >>> import timely_spark as ts
        >>> numbers = ts.Dataflow("hello").input("numbers", "n long", epochs="manual")
        >>> numbers.send([1, 2])
        >>> numbers.advance_to(1)
        >>> numbers.epoch
        1
    """

    __slots__ = ()

    @property
    def handle(self) -> InputHandle:
        """The handle that sends."""
        return self.flow.handle(self.name)

    def send(self, records: Any, *, epoch: int | None = None) -> None:
        """Send rows, a pandas frame or an Arrow table; durable when it returns, once the flow has started."""
        table = as_table(records, self.schema, of=f"input {self.name!r} ({caller()})")
        self.handle.send(table, epoch=epoch)

    def advance_to(self, epoch: int) -> None:
        """Close the epochs before `epoch`: outputs release each of them, also empty ones.

        If one micro-batch completes more than 100 empty epochs in a row, outputs release only the last one.
        """
        self.handle.advance_to(epoch)

    def close(self) -> None:
        """Close the input: no more records will be sent."""
        self.handle.close()

    @property
    def epoch(self) -> int:
        """The first epoch that is not durably closed."""
        return self.handle.epoch


class Dataflow:
    """A timely dataflow: stages over streams, with nested loops, that runs as one streaming query.

    Building a flow runs nothing; `start` runs it on Spark, `testing.run` in this process.

    Args:
        name: the flow's name.
        times: the kind of time, by default the product order. For your own see `times.Times`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reachability")
        >>> edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")
        >>> def hop(reached):
        ...     links = reached.scope.enter(edges)
        ...     targets = reached.join(links, left=["node"], right=["src"]).select(node="dst")
        ...     return targets.concat(reached).distinct(name="near")
        >>> _ = roots.loop(hop).capture("near")
        >>> epochs = {"edges": [[(1, 2), (2, 3)], [(3, 4)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, epochs, workers=2)["near"].rows()
        {0: [(1,), (2,), (3,)], 1: [(4,)]}
    """

    def __init__(self, name: str, *, times: Times = PRODUCT) -> None:
        given: Any = name
        if not isinstance(given, str) or not given:
            hint = 'name the flow after its result: Dataflow("reachability")'
            refuse(name, what="name", expected="a text", hint=hint)
        if (broken := broken_law(times)) is not None:
            msg = f"flow {name!r} has times of the kind {type(times).__name__}: {broken}"
            raise InvalidTime(msg, where=caller(), hint="the laws of a kind of time are in times.Times")
        self.name = name
        self.graph = Graph(name, times)
        self.outputs: list[OutputSpec] = []
        self.frames: dict[str, DataFrame | FileSource] = {}
        self.feedbacks: dict[int, Stage] = {}
        self._handles: dict[str, InputHandle] = {}

    def __repr__(self) -> str:
        loops = {scope.name: None for stage in self.graph.stages for scope in stage.scope.path[1:]}
        parts = {
            "inputs": [stage.name for stage in self.graph.stages if stage.is_source],
            "loops": loops,
            "outputs": [stage.name for stage in self.graph.stages if stage.kind.is_end],
        }
        listed = "".join(f"; {what}: {', '.join(names)}" for what, names in parts.items() if names)
        return f"Dataflow({self.name!r}{listed})"

    def _repr_html_(self) -> str:
        return show.to_html(self)

    @property
    def scope(self) -> Scope:
        """The outermost scope."""
        return Scope(self, self.graph.root)

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
            name: the input's name.
            frame: the DataFrame; or only its schema, bound later by `start(sources=...)` or in tests.
            epoch: an integer column that is the epoch and does not decrease: an epoch ends one round after a
                higher one was seen, or when all available input was read. Later records of it are counted and
                go to `late`, as do records without an epoch (null, negative, from 2**62 on).
            max_jump: by how much an epoch may exceed the highest epoch so far. Records with a greater epoch
                go to `late` with a warning. The first epoch may be any.

        Raises:
            GraphError: the DataFrame is not streaming, or the kinds of epoch are mixed.
        """
        given: Any = frame
        if hasattr(given, "isStreaming"):
            if not given.isStreaming:
                msg = f"source {name!r}: the DataFrame is not streaming"
                raise GraphError(msg, where=caller(), hint="read it with spark.readStream.")
            self.frames[name] = given
            schema = frame_schema(name, given, caller())
        else:
            schema = as_schema(given)
        return self._source(name, schema, epoch, max_jump)

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
    ) -> Source:
        r"""The files of a folder, and those that arrive there, as columns: each is read exactly once.

        The tasks read files with pyarrow and hand whole columns to the workers, which takes half the time
        of `source` with a DataFrame of the same files. Columns that the flow drops, and row groups of
        Parquet that its first `where` excludes by their statistics, are not read.

        The files of one micro-batch are an epoch. Files are read in the order of their modification times,
        and a late file with an older time is read, too. A file is known by its path: a changed one is not
        read again. As in Spark's file source, names that begin with "." or "_" do not count, folders below
        are read, and folders called ``day=1`` are columns. Files must appear whole: write them under
        another name, and rename them.

        Args:
            name: the input's name.
            path: the folder, which driver and executors see: a path, or a URI (s3, gs, abfss, hdfs).
            format: "parquet"; "csv" with a line of names, and empty fields as null; "json" with one object
                a line; "arrow" (IPC files); or a `pyarrow.dataset.FileFormat` with options of its own.
            schema: by default that of the newest file.
            files_per_epoch: the most files of an epoch; by default all new ones.
            max_bytes_per_epoch: the most bytes of an epoch's files, but one file at least.
            epoch: as for `source`.
            max_jump: as for `source`.
            filesystem: the `pyarrow.fs.FileSystem` of the path, if the path alone does not say it.

        **Columns:** out `schema`. A column that an older file lacks is null in its rows.

        Raises:
            BadFile: the folder has no file to take the schema from, or the newest file has other columns. At
                run time: a file is damaged, or gone before it was read.
            BadLocation: the path cannot be reached.
            BadArgument: an argument is of another kind.

        Example:
            >>> import pathlib, tempfile, timely_spark as ts
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = (folder / "a.csv").write_text("src,dst\n1,2\n")
            >>> flow = ts.Dataflow("edges")
            >>> flow.files("edges", folder, format="csv").schema.names
            ['src', 'dst']
        """
        from timely_spark.runtime.sources.folder import FileSource, Folder

        for what, limit in (
            ("files_per_epoch", files_per_epoch),
            ("max_bytes_per_epoch", max_bytes_per_epoch),
        ):
            if limit is not None:
                whole(what, limit)
        folder = Folder.of(name, caller(), path, format, filesystem)
        source = self._source(name, folder.schema(schema), epoch, max_jump)
        self.frames[name] = FileSource(folder, files_per_epoch, max_bytes_per_epoch)
        return source

    @locate_errors
    def delta(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        changes: bool = False,
        from_version: int | None = None,
        versions_per_epoch: int = 1,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """A Delta table, version by version, as columns: first all its rows, then each version is an epoch.

        The tasks read the table's files as those of `files`. A table with deletion vectors, column mapping
        or another feature of readers is read by Spark's own reader, if there is a session with Delta Lake;
        the epochs are then Spark's micro-batches.

        Args:
            name: the input's name.
            path: the table's folder, a path or URI that driver and executors see.
            changes: also read updates and deletions: rows have the column ``diff``, 1 for an added and -1 for
                a removed row, and ``collection(diff="diff")`` is the table. The table's change feed is used
                where there is one; else the files that a version removes are read, which must still exist.
                Without it, a version that removes rows is an error.
            from_version: start with this version, instead of all rows of the newest one.
            versions_per_epoch: the most versions of an epoch. Versions without rows do not count.
            epoch: as for `source`.
            max_jump: as for `source`.

        **Columns:** out those of the newest version when the flow is built; with `changes` also diff long.

        Raises:
            BadFile: there is no table, or at run time: a version removes rows, or a file is gone.
            TableUnsupported: the table needs Spark's reader, and there is no session; or, at run time, since
                a version.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("edges")
            >>> edges = flow.delta("edges", "/tables/edges", changes=True).collection(diff="diff")
            ... # doctest: +SKIP
        """
        from timely_spark.runtime.errors import TableUnsupported
        from timely_spark.runtime.sources.delta_log import DeltaSource, spark_frame
        from timely_spark.runtime.sources.folder import Folder

        whole("versions_per_epoch", versions_per_epoch)
        if from_version is not None:
            whole("from_version", from_version, least=0)
        folder = Folder.of(name, caller(), path, "parquet", None)
        table = DeltaSource(
            folder, changes=bool(changes), versions_per_epoch=versions_per_epoch, from_version=from_version
        )
        try:
            schema = table.log.schema()
        except TableUnsupported as error:
            if (frame := spark_frame(table)) is None:
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
    ) -> Source:
        """A Delta table by its name in a catalog: as `delta`, by Spark's own reader, in micro-batches.

        It starts with all rows; or with a version, or with the first version after a time that Spark reads,
        such as "2026-11-22 08:00:00". Spark ends the query with an error when columns change.
        """
        from timely_spark.runtime.sources.delta_log import table_frame

        begin = {"startingVersion": from_version, "startingTimestamp": from_time}
        return self.source(name, table_frame(name, table, changes=bool(changes), begin=begin))

    @locate_errors
    def replay(self, name: str, path: str | os.PathLike[str]) -> Source:
        """What another flow captures by `Stream.capture_to`, epoch by epoch, also while it still runs.

        Law: the records of epoch e are those of the captured stream at epoch e, and the frontier is that of
        the captured stream: an epoch ends when its file is there, also an empty one, and the input is closed
        at the end of the capture. The number of workers, crashes and restarts of either flow change nothing.
        Epochs that the capture skipped are empty here. The epochs count as manual ones, so other inputs of
        this flow have manual epochs, too. Several epochs may be read together; the tasks read the files.
        A published collection (`Collection.publish`) begins with the sum of its changes up to one epoch.

        Args:
            name: the input's name.
            path: the folder, in which the other flow has been started.

        **Columns:** out those of the captured stream.

        Raises:
            BadFile: nothing was captured there; at run time: files are gone or damaged, or the folder has
                another capture now.
            BadLocation: the path cannot be reached.

        Example: see `Stream.capture_to`.
        """
        from timely_spark.runtime.sources.folder import Folder
        from timely_spark.runtime.sources.replay import ReplaySource

        source = ReplaySource(Folder.of(name, caller(), path, "arrow", None))
        stage = self._input(name, [as_schema(source.schema())], "manual")
        self.frames[name] = source
        return Source(self, stage)

    def _source(self, name: str, schema: pa.Schema, epoch: str | None, max_jump: int) -> Source:
        if epoch is not None:
            check_epoch_column(name, schema, epoch, max_jump)
        stage = self._input(name, [schema] * (1 if epoch is None else 2), epoch or "clock", max_jump=max_jump)
        return Source(self, stage)

    @locate_errors
    def input(self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock") -> Input:
        """A stream whose records the program sends.

        Args:
            name: the input's name.
            schema: the schema of the records.
            epochs: "clock": records sent since the last micro-batch join the next epoch; "manual": the
                program ends epochs, by `Input.advance_to`.
        """
        from timely_spark.runtime.handle.inputs import InputHandle

        given: Any = epochs
        if not isinstance(given, str) or given not in ("clock", "manual"):
            msg = f"input {name!r}: epochs={epochs!r}"
            raise GraphError(msg, where=caller(), hint="'clock' or 'manual'.")
        stage = self._input(name, [as_schema(schema)], epochs, handle=True)
        self._handles[name] = InputHandle(name, as_schema(schema), epochs=epochs)
        return Input(self, stage)

    def _input(self, name: Any, outputs: list[pa.Schema], epochs: str, **more: Any) -> Stage:
        if not isinstance(name, str):
            hint = "name the input: its records are sent, and bound to DataFrames, by its name"
            refuse(name, what="name", expected="a text", hint=hint)
        mine = kind_of(epochs)
        for stage in self.graph.stages:
            if stage.is_source and (other := kind_of(stage.epochs)) != mine:
                msg = f"input {name!r} has epochs {mine}, {stage.name!r} ({stage.where}) has {other}"
                raise GraphError(msg, where=caller(), hint="use one kind of epoch for all inputs of a flow.")
        more |= {"detail": epochs, "parameters": {"epochs": epochs}, "requires": (), "epochs": epochs}
        return self.graph.stage("source", self.graph.root, outputs, kind=Kind.SOURCE, name=name, **more)

    @locate_errors
    def handle(self, name: str) -> InputHandle:
        """The handle that sends to an input.

        Raises:
            UnknownName: the flow has no input of that name.
        """
        return find(self._handles, name, kind="input", flow=self.name)

    @locate_errors
    def vertex(
        self,
        vertex: Vertex,
        inputs: Stream | Sequence[Stream],
        outputs: SchemaLike | Sequence[SchemaLike],
        *,
        by: By = None,
        guarantees: str | Sequence[str] | None = None,
        name: str | None = None,
    ) -> Any:
        """Add a vertex written by the user.

        Args:
            vertex: the template; each worker runs a copy.
            inputs: the streams it receives, in the order of `on_recv`'s `edge`.
            outputs: the schema of each output, in the order of `send_by`'s `edge`; one schema for one output.
            by: for each input its columns of partitioning, or an expression of worker numbers (modulo their
                number); None: it is not exchanged. A single input needs no outer list: ``by="id"``.
            guarantees: columns by which output 0 is partitioned: no exchange by them follows. Checked.

        Returns:
            A stream; a tuple of streams if `outputs` is a list.
        """
        streams: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        several = isinstance(outputs, list | tuple)
        schemas: Any = outputs if several else [outputs]
        results = add_vertex(streams, vertex, schemas, by=by, guarantees=guarantees, name=name)
        return results if several else results[0]

    @locate_errors
    def region(self, name: str, *, workers: Sequence[int] | None = None) -> AbstractContextManager[None]:
        """A region outside of loops: see `Scope.region`."""
        return self.scope.region(name, workers=workers)

    @locate_errors
    def compile(self, workers: int = 1) -> Plan:
        """The physical plan for a number of workers.

        Raises:
            BadArgument: `workers` is no number of at least 1.
            GraphError: the graph is incomplete.
            CycleError: a cycle does not advance time.
        """
        return compile_plan(finalise_graph(self.graph), whole("workers", workers))

    def start(
        self,
        session: SparkSession | None = None,
        *,
        checkpoint: str | None = None,
        workers: int | None = None,
        trigger: Trigger = None,
        name: str | None = None,
        sources: Mapping[str, DataFrame] | None = None,
        partitions: int | None = None,
        rounds_per_batch: int | None = None,
        parallel_rounds: bool | None = None,
        record: str | None = None,
        log_to: str | os.PathLike[str] | None = None,
        replace: bool = False,
        warn_after: int | None = 10_000,
        keep: float | str | None = None,
    ) -> Query:
        """Run on Spark, as one streaming query that continues from its checkpoint.

        An interrupt (Ctrl-C, or a notebook's button) during `start` leaves no query behind. While the program
        waits, by `Query.watch`, `wait_for`, `step` or `await_termination`, it ends the wait, and the query
        runs on until `Query.stop` or the end of the program. A notebook cell that is run twice is harmless:
        the second `start` is refused and the first query runs on; or, with `replace`, it takes its place.

        Args:
            session: the session, by default the active one.
            checkpoint: a directory that driver and executors can reach; without one, state is lost at the
                end.
            workers: by default the checkpoint's number, or for a new one the session's parallelism, at most
                8.
            trigger: None: always on. "available_now": until all available input is processed. Or as for
                Spark's `trigger`.
            name: the query's name, by default the flow's.
            sources: DataFrames for sources that were declared by their schema.
            partitions: Spark tasks per round; by default as many as workers or cores. A restart uses the
                number in the checkpoint.
            rounds_per_batch: the most rounds of a micro-batch, by default 100; with 1 every round is a
                micro-batch, so input and commits wait for one round at most. While the rounds after the first
                are small (1 MB exchanged, 4 MB delivered, and 256 MB of states read, not counting keyed
                state in mapped files) one process runs them, at a few milliseconds each.
            parallel_rounds: whether larger rounds are run by parallel tasks that exchange directly with each
                other; else one task runs them, and what exceeds 4 MB exchanged or 64 MB delivered waits for
                the next micro-batch. None: yes, unless Spark allocates executors dynamically, encrypts its
                traffic, or runs behind Spark Connect.
            record: a folder into which each worker's round is written, to be repeated by `testing.recorded`.
            log_to: a folder into which each micro-batch writes what it did, by step, worker and epoch, as a
                capture: `replay` reads it in another flow. Its columns are explained in "The system's log".
            replace: for a notebook cell that is run again: first stop queries of this process that read this
                flow's inputs, or have the query's name or checkpoint. Sent records are kept if the checkpoint
                is the same.
            warn_after: iterations of a loop in one epoch, after which a warning is logged; None: never.
            keep: how long the states of earlier micro-batches are kept for `timely_spark.inspect`: seconds,
                or text such as "7 days"; at least as many are kept as Spark keeps of its own log.

        Returns:
            The query, with the methods of Spark's `StreamingQuery` and those of time.

        Raises:
            BadArgument: an argument is not allowed.
            InputsInUse: a running query reads this flow's inputs, and `replace` is false.
            NameTaken: the session runs a query of that name.
            CheckpointInUse: a running query has the checkpoint.
            TimelyError: another error; inputs and other queries are unchanged after any of them.
        """
        from timely_spark.runtime.arguments import check_arguments
        from timely_spark.runtime.sinks.outputs import outputs_of
        from timely_spark.runtime.start import default_workers, start

        check_arguments(
            session=session, checkpoint=checkpoint, name=name, sources=sources, record=record, log_to=log_to
        )
        if workers is None:
            workers = default_workers(session, checkpoint)
        plan = with_warn_after(self.compile(workers), warn_after)
        return start(
            plan,
            dataframes={**self.frames, **(sources or {})},
            outputs=outputs_of(plan, self.outputs),
            inputs=list(self._handles.values()),
            session=session,
            checkpoint=checkpoint,
            trigger=trigger,
            name=name or self.name,
            partitions=partitions,
            rounds_per_batch=rounds_per_batch,
            parallel_rounds=parallel_rounds,
            record=record,
            log_to=log_to,
            replace=replace,
            keep=keep,
        )

    @locate_errors
    def explain(self, workers: int = 2) -> None:
        """Print the logical graph, and its physical form for a number of workers."""
        print(show.explain(self, workers))  # noqa: T201

    @locate_errors
    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return show.to_mermaid(self)

    @locate_errors
    def to_svg(self) -> str:
        """The graph as an SVG drawing, which a notebook shows for the flow itself.

        Example:
            >>> import pathlib, timely_spark as ts
            >>> flow = ts.Dataflow("hello")
            >>> _ = flow.input("numbers", "n long").distinct().capture("out")
            >>> _ = pathlib.Path("hello.svg").write_text(flow.to_svg())  # doctest: +SKIP
        """
        return show.to_svg(self)


class Source(Stream):
    """A stream read from a DataFrame or from files."""

    __slots__ = ()

    @property
    def late(self) -> Stream:
        """The records that arrived after their epoch had ended, in the epoch that was open then.

        Raises:
            GraphError: the source has no epoch column.
        """
        if len(self.stage.outputs) < 2:
            msg = f"late: source {self.name!r} has no epoch column"
            raise GraphError(msg, where=caller(), hint="source(..., epoch='column').")
        return Stream(self.flow, self.stage, 1)
