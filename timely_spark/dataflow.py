"""The flow that a user writes: `Dataflow`, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark import operators
from timely_spark.errors import BadArgument, GraphError, InvalidTime
from timely_spark.graph import (
    Graph,
    Kind,
    SchemaLike,
    Stage,
    Vertex,
    as_schema,
    as_table,
    caller,
    frame_schema,
    known,
    told,
    whole,
)
from timely_spark.operators.custom import By
from timely_spark.operators.deliver import OutputSpec
from timely_spark.streams import Scope, Stream
from timely_spark.times import PRODUCT, Times, broken_law
from timely_spark.worker import Plan, compile_plan
from timely_spark.worker.columns import check_epoch_column, kind_of
from timely_spark.worker.loops import warned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.runtime.handle import Query
    from timely_spark.runtime.inputs import InputHandle

Trigger = str | Mapping[str, Any] | None


class Input(Stream):
    """A stream that the program itself sends. Before the start, what is sent waits for it.

    With ``epochs="manual"`` the program also says when an epoch is over, by `advance_to` and `close`.

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
        """The sending end."""
        return self.flow.handle(self.name)

    def send(self, records: Any, *, epoch: int | None = None) -> None:
        """Send rows, a pandas frame or an Arrow table; durable when it returns, once the flow has started."""
        table = as_table(records, self.schema, of=f"input {self.name!r} ({caller()})")
        self.handle.send(table, epoch=epoch)

    def advance_to(self, epoch: int) -> None:
        """Say that epochs before `epoch` are over: outputs hear of each of them, empty ones too.

        But where one micro-batch passes more than 100 empty epochs in a row, only of the last one.
        """
        self.handle.advance_to(epoch)

    def close(self) -> None:
        """Say that nothing more will come."""
        self.handle.close()

    @property
    def epoch(self) -> int:
        """The first epoch that is not durably closed."""
        return self.handle.epoch


class Dataflow:
    """A timely dataflow: stages over streams, with nested loops, that runs as one streaming query.

    Building only describes; `start` runs on Spark, `testing.run` in this process.

    Args:
        name: the flow's name.
        times: the kind of time; the product order by default. For one of your own see `times.Times`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reachability")
        >>> edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")
        >>> def hop(reached):
        ...     links = reached.scope.enter(edges)
        ...     onward = reached.join(links, left=["node"], right=["src"]).select(node="dst")
        ...     return onward.concat(reached).distinct(name="near")
        >>> _ = roots.loop(hop).capture("near")
        >>> epochs = {"edges": [[(1, 2), (2, 3)], [(3, 4)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, epochs, workers=2)["near"].rows()
        {0: [(1,), (2,), (3,)], 1: [(4,)]}
    """

    def __init__(self, name: str, *, times: Times = PRODUCT) -> None:
        given: Any = name
        if not isinstance(given, str) or not given:
            hint = 'call the flow after what it answers: Dataflow("reachability")'
            raise BadArgument.kind(name, what="name", expected="a text", where=caller(), hint=hint)
        if (broken := broken_law(times)) is not None:
            msg = f"flow {name!r} has times of the kind {type(times).__name__}: {broken}"
            raise InvalidTime(msg, where=caller(), hint="the laws of a kind of time are in times.Times")
        self.name = name
        self.graph = Graph(name, times)
        self.outputs: list[OutputSpec] = []
        self.frames: dict[str, DataFrame] = {}
        self.feedbacks: dict[int, Stage] = {}
        self._handles: dict[str, InputHandle] = {}

    @property
    def scope(self) -> Scope:
        """The outermost scope."""
        return Scope(self, self.graph.root)

    @told
    def source(
        self,
        name: str,
        frame: DataFrame | SchemaLike,
        *,
        epoch: str | None = None,
        max_jump: int = 10_000_000_000,
    ) -> Source:
        """A streaming DataFrame as input: an epoch is a micro-batch in which a source brought something.

        Outputs hear of each such epoch, in order, when it is complete. With epochs of a column, or manual
        ones, they hear of each number from the first epoch on (0 if manual), with an empty table where
        nothing came; but where one micro-batch passes more than 100 empty epochs in a row, only of the last
        one. So an epoch that was passed over was empty.

        Args:
            name: the input's name.
            frame: the DataFrame; or only its schema, to be bound at `start(sources=...)` or fed in tests.
            epoch: a column of whole numbers that do not decrease, to be the epoch instead: one is over a
                round after a higher one was seen, or at the end of what is available. What comes later is
                counted and goes to `late`, as does what has no epoch (null, negative, from 2**62 on).
            max_jump: by how much an epoch may exceed the highest one before; what jumps further is taken
                for a mistake, goes to `late`, and is warned of. The first epoch may be any.

        Raises:
            GraphError: the DataFrame is not a streaming one, or the kinds of epoch are mixed.
        """
        given: Any = frame
        if hasattr(given, "isStreaming"):
            if not given.isStreaming:
                msg = (
                    f"source {name!r} ({caller()}): the DataFrame is not streaming. "
                    "Hint: read it with spark.readStream."
                )
                raise GraphError(msg)
            self.frames[name] = given
            schema = frame_schema(name, given, caller())
        else:
            schema = as_schema(given)
        if epoch is not None:
            check_epoch_column(name, schema, epoch, max_jump)
        stage = self._input(name, [schema] * (1 if epoch is None else 2), epoch or "clock", max_jump=max_jump)
        return Source(self, stage)

    @told
    def input(self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock") -> Input:
        """A stream that the program itself sends.

        Args:
            name: the input's name.
            schema: of its records.
            epochs: "clock": what was sent since the last micro-batch joins the next epoch; "manual": you say.
        """
        from timely_spark.runtime.inputs import InputHandle

        given: Any = epochs
        if not isinstance(given, str) or given not in ("clock", "manual"):
            msg = f"input {name!r} ({caller()}): epochs={epochs!r}. Hint: 'clock' or 'manual'."
            raise GraphError(msg)
        stage = self._input(name, [as_schema(schema)], epochs, handle=True)
        self._handles[name] = InputHandle(name, as_schema(schema), epochs=epochs)
        return Input(self, stage)

    def _input(self, name: Any, outputs: list[pa.Schema], epochs: str, **more: Any) -> Stage:
        if not isinstance(name, str):
            hint = "name the input: its records are sent, and bound to DataFrames, by its name"
            raise BadArgument.kind(name, what="name", expected="a text", where=caller(), hint=hint)
        for stage in self.graph.stages:
            if stage.is_source and kind_of(stage.epochs) != kind_of(epochs):
                msg = (
                    f"input {name!r} ({caller()}) has epochs {kind_of(epochs)}, "
                    f"{stage.name!r} ({stage.where}) has {kind_of(stage.epochs)}. "
                    "Hint: use one kind of epoch for all inputs of a flow."
                )
                raise GraphError(msg)
        return self.graph.stage(
            "source",
            self.graph.root,
            outputs,
            kind=Kind.SOURCE,
            name=name,
            detail=epochs,
            parameters={"epochs": epochs},
            requires=(),
            epochs=epochs,
            **more,
        )

    @told
    def handle(self, name: str) -> InputHandle:
        """The sending end of an input.

        Raises:
            UnknownName: the flow has no input of that name.
        """
        return known(self._handles, name, kind="input", flow=self.name)

    @told
    def vertex(
        self,
        vertex: Vertex,
        inputs: Stream | Sequence[Stream],
        outputs: SchemaLike | Sequence[SchemaLike],
        *,
        by: By = None,
        name: str | None = None,
    ) -> Any:
        """Add a vertex of one's own.

        Args:
            vertex: the template; each worker runs a copy.
            inputs: the streams it receives, in the order of `on_recv`'s `edge`.
            outputs: the schema of each output, in the order of `send_by`'s `edge`; one schema for one output.
            by: for each input the columns by which its records must be partitioned; None: as they
                come. For a single input its columns may stand alone: ``by="id"``.
            name: the step's name.

        Returns:
            A stream; a tuple of streams where `outputs` is a list.
        """
        streams: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        several = isinstance(outputs, list | tuple)
        schemas: Any = outputs if several else [outputs]
        made = operators.add_vertex(streams, vertex, schemas, by=by, name=name)
        return made if several else made[0]

    @told
    def compile(self, workers: int = 1) -> Plan:
        """The physical plan for a number of workers.

        Raises:
            BadArgument: `workers` is no number of at least 1.
            GraphError: the graph is not whole; or CycleError: a cycle does not advance time.
        """
        return compile_plan(operators.settle_graph(self.graph), whole("workers", workers))

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
        record: str | None = None,
        replace: bool = False,
        warn_after: int | None = 10_000,
    ) -> Query:
        """Run on Spark, as one streaming query; from where an earlier run with its checkpoint stopped.

        Args:
            session: the session, by default the active one.
            checkpoint: a directory that driver and executors see; without one all is forgotten at the end.
            workers: by default those of the checkpoint, and at first the session's parallelism, at most 8.
            trigger: None: always on. "available_now": until nothing is left. Or as for Spark's `trigger`.
            name: the query's name, by default the flow's.
            sources: DataFrames for sources that were declared by their schema.
            partitions: Spark tasks per round; by default as many as workers or cores.
            rounds_per_batch: how many rounds a micro-batch may take, by default 100; with 1 each is a
                micro-batch of its own, so that input and commits wait for one round at most. Further rounds
                cost a few milliseconds each, in one task; they end where a round exchanges more than 4 MB,
                where 64 MB have been delivered, and are not made where more than 256 MB of states must be
                read (batches of keyed state are not, where files are mapped).
            record: a folder into which each worker's round is written, to be run again by `testing.recorded`.
            replace: for a notebook's cell that is run again: stop first what this process runs with this
                flow's inputs, under the query's name or on the checkpoint. What was sent is kept where the
                checkpoint is the same.
            warn_after: iterations of a loop in one epoch, after which a warning is logged; None: never.

        Returns:
            The query, with the verbs of Spark's `StreamingQuery` and those of time.

        Raises:
            BadArgument: an argument is none of its values.
            InputsInUse: a query that is running reads this flow's inputs, and `replace` was not asked for.
            NameTaken: the session runs a query of that name; or CheckpointInUse: on the checkpoint.
            TimelyError: more that is wrong; whatever it is, inputs and other queries stay as they are.
        """
        from timely_spark.runtime.arguments import check_arguments
        from timely_spark.runtime.outputs import outputs_of
        from timely_spark.runtime.start import default_workers, start

        check_arguments(session=session, checkpoint=checkpoint, name=name, sources=sources, record=record)
        if workers is None:
            workers = default_workers(session, checkpoint)
        plan = warned(self.compile(workers), warn_after)
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
            record=record,
            replace=replace,
        )

    @told
    def explain(self, workers: int = 2) -> None:
        """Print the logical graph, and its physical form for a number of workers."""
        from timely_spark.show import explain

        print(explain(self, workers))  # noqa: T201

    @told
    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from timely_spark.show import to_mermaid

        return to_mermaid(self)


class Source(Stream):
    """A stream read from a DataFrame."""

    __slots__ = ()

    @property
    def late(self) -> Stream:
        """The records that came too late for their epoch, in the epoch that was open then.

        Raises:
            GraphError: the source goes by the clock, where nothing is late.
        """
        if len(self.stage.outputs) < 2:
            msg = (
                f"late ({caller()}): source {self.name!r} has no epoch column. "
                "Hint: source(..., epoch='column')."
            )
            raise GraphError(msg)
        return Stream(self.flow, self.stage, 1)
