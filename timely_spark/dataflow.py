"""The handles a user holds while writing a flow: `Dataflow`, `Stream`, `Scope`, inputs and loop variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark import operators
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import (
    Graph,
    SchemaLike,
    Stage,
    Vertex,
    as_schema,
    as_table,
    caller,
    check_columns,
    describe,
)
from timely_spark.graph import Scope as GraphScope
from timely_spark.operators.custom import By
from timely_spark.operators.deliver import OutputSpec
from timely_spark.times import PRODUCT, Times
from timely_spark.worker import Plan, compile_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.differential import Collection
    from timely_spark.runtime.handle import Query
    from timely_spark.runtime.inputs import InputHandle

Trigger = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Records that flow: an output of a stage. All operators are methods of it, and return new streams.

    Example:
        >>> import timely_spark as ts
        >>> numbers = ts.Dataflow("numbers").input("x", "n long")
        >>> numbers.distinct(name="once").select(number="n")
        Stream(select: number int64)
    """

    flow: Dataflow
    stage: Stage
    port: int = 0

    map = operators.map
    select = operators.select
    where = filter = operators.where
    flat_map = select_many = operators.flat_map
    map_batches = operators.map_batches
    branch = operators.branch
    exchange = operators.exchange
    broadcast = operators.broadcast
    concat = operators.concat
    delay = operators.delay
    expire = operators.expire
    distinct = operators.distinct
    min = operators.min
    max = operators.max
    settle = operators.settle
    group_by = operators.group_by
    aggregate = operators.aggregate
    join = operators.join
    unary = operators.unary
    binary = operators.binary
    unary_notify = operators.unary_notify
    binary_notify = operators.binary_notify

    enter = operators.enter
    leave = operators.leave
    loop = operators.loop

    probe = operators.probe
    inspect = operators.inspect
    capture = operators.capture
    to_memory = operators.to_memory
    subscribe = operators.subscribe
    foreach_epoch = operators.foreach_epoch
    to_delta = operators.to_delta
    to_files = operators.to_files

    def collection(self, diff: str | None = None) -> Collection:
        """Its records as a collection, which is kept up to date incrementally: see `Collection`.

        Args:
            diff: a column of whole numbers: how many of the record there are more (or, negative, less).

        **Columns:** out: the stream's, without `diff`.

        Example:
            >>> import timely_spark as ts
            >>> ts.Dataflow("words").input("x", "word string, diff int").collection(diff="diff")
            Collection(collection: word string)

        Raises:
            SchemaError: `diff` is none, or no column is left; GraphError: the flow has times of its own kind.
        """
        from timely_spark.differential import collection

        return collection(self, diff)

    @property
    def schema(self) -> pa.Schema:
        """The declared schema of its records."""
        return self.stage.outputs[self.port]

    @property
    def scope(self) -> Scope:
        """The loop context it lives in."""
        return Scope(self.flow, self.stage.scope)

    @property
    def name(self) -> str:
        """The name of the step it comes from."""
        return self.stage.name

    def __repr__(self) -> str:
        return f"Stream({self.stage.name}: {describe(self.schema)})"

    def then(
        self,
        operator: str,
        outputs: Sequence[pa.Schema],
        *,
        others: Sequence[Stream] = (),
        name: str | None = None,
        scope: GraphScope | None = None,
        **parts: Any,
    ) -> tuple[Stream, ...]:
        """Add a stage behind this stream and others: what every operator is made of.

        Args:
            operator: its kind, shown by explain; a name is derived from it.
            outputs: the schema of each output.
            others: further inputs.
            name: the step's own name.
            scope: the scope of the outputs, if not that of the inputs.
            parts: `vertex`, `requires`, `guarantees`, `keeps`, `summary`, `detail` of the stage; `called`:
                what its name is derived from, by default `operator`.

        Raises:
            GraphError: the inputs are of different flows or scopes.
        """
        self.check_others(operator, others)
        stage = self.flow.graph.stage(
            operator,
            scope or self.stage.scope,
            outputs,
            inputs=[(stream.stage, stream.port) for stream in (self, *others)],
            name=name,
            **parts,
        )
        return tuple(Stream(self.flow, stage, port) for port in range(len(outputs)))

    def check_others(self, operator: str, others: Sequence[Stream]) -> None:
        """Check that an operator may read `others` beside this stream.

        Raises:
            GraphError: one is no stream, or of another flow or scope.
        """
        for other in others:
            if not isinstance(other, Stream):
                msg = (  # type: ignore[unreachable] # whoever writes without a type checker gets here
                    f"{operator} ({caller()}) got a {type(other).__name__}, not a stream. "
                    "Hint: take one output of a step that has several."
                )
                raise GraphError(msg)
            if other.flow is not self.flow:
                msg = (
                    f"{operator} ({caller()}): {self.name!r} is of flow {self.flow.name!r}, "
                    f"{other.name!r} of {other.flow.name!r}. "
                    "Hint: build all in one flow."
                )
                raise GraphError(msg)
            if other.stage.scope is not self.stage.scope:
                mine, theirs = (one.stage.scope.name or "no loop" for one in (self, other))
                how = ".scope.enter(...)" if theirs == "no loop" else "enter or leave"
                msg = (
                    f"{operator} ({caller()}): {self.name!r} is in {mine}, {other.name!r} in {theirs}. "
                    f"Hint: bring one into the other's scope with {how}."
                )
                raise GraphError(msg)


class Variable(Stream):
    """A loop variable: a stream that is read before what feeds it is known.

    `loop` makes and feeds one. That of collections is `timely_spark.differential.Variable`, which has `set`.

    Example:
        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("countdown")
        >>> loop = flow.scope.inner(name="down")
        >>> n = loop.variable(flow.input("x", "n long"), name="n")
        >>> n.feed(n.select(n=pc.field("n") - 1).where(pc.field("n") >= 0))
        >>> _ = n.leave().capture("out")
        >>> ts.testing.run(flow, {"x": [[3]]})["out"].rows()
        {0: [(0,), (1,), (2,), (3,)]}
    """

    __slots__ = ()

    def feed(self, stream: Stream) -> None:
        """Close the loop: what `stream` sends comes back in the next lap (Naiad's feedback).

        Raises:
            GraphError: it is fed already, or from another scope.
            SchemaError: the schemas differ.
        """
        graph, feedback = self.flow.graph, self.flow.feedbacks[self.stage.index]
        where = caller()
        if graph.into(feedback):
            msg = (
                f"feed ({where}): loop variable {self.name!r} is fed already. "
                "Hint: concat the streams, and feed once."
            )
            raise GraphError(msg)
        if stream.stage.scope is not self.stage.scope:
            msg = (
                f"feed ({where}): {stream.name!r} is in {stream.stage.scope.name or 'no loop'}, "
                f"the variable in {self.stage.scope.name}. "
                "Hint: feed from the variable's own loop; what left an inner loop may."
            )
            raise GraphError(msg)
        if stream.schema != self.schema:
            msg = (
                f"feed ({where}): {stream.name!r} has ({describe(stream.schema)}), "
                f"the variable {self.name!r} has ({describe(self.schema)}). "
                "Hint: select the variable's columns, in its order."
            )
            raise SchemaError(msg)
        graph.connect(stream.stage, stream.port, feedback, 0)


@dataclass(frozen=True, slots=True)
class Scope:
    """A loop context, or the outermost scope. Times inside a loop count its laps (Naiad section 2.1).

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("scopes")
        >>> inner = flow.scope.inner(name="laps").inner(name="steps")
        >>> inner.name, inner.graph_scope.depth
        ('laps.steps', 2)
    """

    flow: Dataflow
    graph_scope: GraphScope

    @property
    def name(self) -> str:
        """The loop's name; empty for the outermost scope."""
        return self.graph_scope.name

    def inner(self, *, name: str | None = None, max_iterations: int | None = None) -> Scope:
        """A new loop inside this scope.

        Args:
            name: the loop's name.
            max_iterations: how many laps there are at most.

        Raises:
            GraphError: `max_iterations` is no whole number of at least 1.
        """
        if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 1):
            msg = (
                f"loop ({caller()}): max_iterations={max_iterations!r}. "
                "Hint: give a whole number of at least 1, or None for no limit."
            )
            raise GraphError(msg)
        full = self.flow.graph.name_in(self.graph_scope, "loop", name)
        limit = None if max_iterations is None else max_iterations - 1
        return Scope(self.flow, GraphScope(full, self.graph_scope, limit, caller()))

    def enter(self, stream: Stream) -> Stream:
        """A stream of an outer scope in here, at lap 0 (Naiad's ingress); once per time, not per lap.

        Raises:
            GraphError: the stream's scope is not around this one.
        """
        path = self.graph_scope.path
        if stream.stage.scope not in path:
            msg = (
                f"enter ({caller()}): {stream.name!r} is in {stream.stage.scope.name or 'no loop'}, "
                f"which is not around {self.name or 'the outermost scope'}. "
                "Hint: let it leave its loop first."
            )
            raise GraphError(msg)
        for scope in path[path.index(stream.stage.scope) + 1 :]:
            summary = self.flow.graph.times.enter(scope.depth - 1)
            kept = {column: column for column in stream.schema.names}
            stream = stream.then("enter", [stream.schema], scope=scope, summary=summary, keeps=kept)[0]
        return stream

    def variable(self, initial: Stream | SchemaLike, *, name: str | None = None) -> Variable:
        """A loop variable, which starts as a stream (or empty, of a schema) and goes on as what it is fed.

        Raises:
            GraphError: this is no loop.
        """
        if self.graph_scope.parent is None:
            msg = f"variable ({caller()}): the outermost scope is no loop. Hint: make one with scope.inner()."
            raise GraphError(msg)
        graph, scope = self.flow.graph, self.graph_scope
        entered = self.enter(initial) if isinstance(initial, Stream) else None
        schema = entered.schema if entered is not None else as_schema(initial)
        back = graph.stage(
            "feedback", scope, [schema], name=None if name is None else f"{name}-feedback",
            summary=graph.times.feedback(scope.depth, scope.limit),
            detail="" if scope.limit is None else f"at most {scope.limit + 1} laps",
        )  # fmt: skip
        inputs = [(entered.stage, entered.port)] if entered is not None else []
        stage = graph.stage("variable", scope, [schema], inputs=[*inputs, (back, 0)], name=name)
        self.flow.feedbacks[stage.index] = back
        return Variable(self.flow, stage)


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
        """Say that epochs before `epoch` are over."""
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
        times: the kind of time; the product order by default.

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

    def source(self, name: str, frame: DataFrame | SchemaLike, *, epoch: str | None = None) -> Source:
        """A streaming DataFrame as input: an epoch is a micro-batch in which a source brought something.

        Args:
            name: the input's name.
            frame: the DataFrame; or only its schema, to be bound at `start(sources=...)` or fed in tests.
            epoch: a column of whole numbers that do not decrease, to be the epoch instead: one is over a
                round after a higher one was seen. What comes later is counted and goes to `late`.

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
            schema = as_schema({f.name: f.dataType.simpleString() for f in given.schema.fields})
        else:
            schema = as_schema(given)
        if epoch is not None:
            if epoch in {"clock", "manual"}:
                msg = (
                    f"source {name!r} ({caller()}): epoch={epoch!r} is no column's name here, but a kind of "
                    "epochs. Hint: give a column of another name; rename it in the DataFrame if need be."
                )
                raise GraphError(msg)
            check_columns("source", schema, [epoch])
            if not pa.types.is_integer(schema.field(epoch).type):
                msg = (
                    f"source {name!r} ({caller()}): epoch column {epoch!r} is {schema.field(epoch).type}. "
                    "Hint: use whole numbers."
                )
                raise SchemaError(msg)
        stage = self._input(name, [schema] * (1 if epoch is None else 2), epoch or "clock")
        return Source(self, stage)

    def input(self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock") -> Input:
        """A stream that the program itself sends.

        Args:
            name: the input's name.
            schema: of its records.
            epochs: "clock": what was sent since the last micro-batch joins the next epoch; "manual": you say.
        """
        from timely_spark.runtime.inputs import InputHandle

        if epochs not in ("clock", "manual"):
            msg = f"input {name!r} ({caller()}): epochs={epochs!r}. Hint: 'clock' or 'manual'."
            raise GraphError(msg)
        stage = self._input(name, [as_schema(schema)], epochs, handle=True)
        self._handles[name] = InputHandle(name, as_schema(schema), epochs=epochs)
        return Input(self, stage)

    def _input(self, name: str, outputs: list[pa.Schema], epochs: str, *, handle: bool = False) -> Stage:
        for stage in self.graph.stages:
            if stage.operator == "source" and _kind(stage.detail) != _kind(epochs):
                msg = (
                    f"input {name!r} ({caller()}) has epochs {_kind(epochs)}, "
                    f"{stage.name!r} ({stage.where}) has {_kind(stage.detail)}. "
                    "Hint: use one kind of epoch for all inputs of a flow."
                )
                raise GraphError(msg)
        return self.graph.stage(
            "source", self.graph.root, outputs, name=name, detail=epochs, requires=(), handle=handle
        )

    def handle(self, name: str) -> InputHandle:
        """The sending end of an input."""
        return self._handles[name]

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
            by: for each input the columns by which its records must be dealt to the workers; None: as they
                come. For a single input its columns may stand alone: ``by="id"``.
            name: the step's name.

        Returns:
            A stream; a tuple of streams where `outputs` is a list.
        """
        streams = [inputs] if isinstance(inputs, Stream) else list(inputs)
        several = isinstance(outputs, list | tuple)
        schemas: Any = outputs if several else [outputs]
        made = operators.add_vertex(streams, vertex, schemas, by=by, name=name)
        return made if several else made[0]

    def compile(self, workers: int = 1) -> Plan:
        """The physical plan for a number of workers.

        Raises:
            GraphError: the graph is not whole; or CycleError: a cycle does not advance time.
        """
        return compile_plan(operators.settle_graph(self.graph), workers)

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

        Returns:
            The query, with the verbs of Spark's `StreamingQuery` and those of time.
        """
        from timely_spark.runtime.outputs import outputs_of
        from timely_spark.runtime.start import default_workers, start

        plan = self.compile(workers or default_workers(session, checkpoint))
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
        )

    def explain(self, workers: int = 2) -> None:
        """Print the logical graph, and its physical form for a number of workers."""
        from timely_spark.show import explain

        print(explain(self, workers))  # noqa: T201

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


def _kind(epochs: str) -> str:
    return epochs if epochs in {"clock", "manual"} else "column"
