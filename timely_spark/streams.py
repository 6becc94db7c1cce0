"""Streams, loop variables and scopes: the handles whose methods are the operators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa

from timely_spark.errors import GraphError, InvalidTime, SchemaError
from timely_spark.graph import (
    Expression,
    Kind,
    LoopContext,
    OnLimit,
    Partition,
    SchemaLike,
    Stage,
    Suggests,
    as_schema,
    caller,
    check_limit,
    describe,
    locate_errors,
    no_items,
    no_truth_value,
)
from timely_spark.graph.suggest import a_type
from timely_spark.show.table import schema_table
from timely_spark.times import PRODUCT, InnerTime, broken_inner_law, only_epochs

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow, Input, StreamMethods
else:  # `operator` adds the methods
    StreamMethods = Suggests


@locate_errors
@dataclass(frozen=True, slots=True, eq=False)
class Stream(StreamMethods):
    """A stream of records: an output of a stage. The operators are its methods and return new streams.

    The argument `name` of an operator is the step's name: by it errors, `explain` and metrics name the step,
    and a changed flow finds the step's state. If an operator adds several steps, their names begin with it.

    Example:
        >>> import timely_spark as ts
        >>> numbers = ts.Dataflow("numbers").input("x", "n long")
        >>> numbers.distinct(name="unique").select(number="n")
        Stream(select: number int64)
    """

    flow: Dataflow
    stage: Stage
    port: int = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records."""
        return self.stage.outputs[self.port]

    @property
    def scope(self) -> Scope:
        """The loop context of the stream."""
        return Scope(self.flow, self.stage.scope)

    @property
    def name(self) -> str:
        """The name of the step that sends the stream."""
        return self.stage.name

    @property
    def quarantined(self) -> Stream:
        """The records that failed an ``expect(..., action="quarantine")``, of its result.

        **Columns:** out as in.

        Example: see `Stream.expect`.

        Raises:
            GraphError: the step does not quarantine.
        """
        if self.stage.quarantined is None:
            msg = f"quarantined: step {self.name!r} does not quarantine"
            hint = (
                "take it of the result of expect(..., action='quarantine'), or of a source with "
                "files(..., on_bad_file='quarantine') or kafka(..., on_bad_record='quarantine')."
            )
            raise GraphError(msg, where=caller(), hint=hint)
        return Stream(self.flow, self.stage, self.stage.quarantined)

    def __bool__(self) -> bool:
        return no_truth_value("stream")

    def __getitem__(self, column: object) -> NoReturn:
        no_items("stream", column)

    def __repr__(self) -> str:
        return f"Stream({self.stage.name}: {describe(self.schema)})"

    def _repr_html_(self) -> str:
        return schema_table(f"Stream {self.stage.name} ({self.stage.where})", self.schema).html()

    def then(
        self,
        operator: str,
        outputs: Sequence[pa.Schema],
        *,
        others: Sequence[Stream] = (),
        name: str | None = None,
        scope: LoopContext | None = None,
        keyed: Sequence[str] | None = None,
        **parts: Any,
    ) -> tuple[Stream, ...]:
        """Add a stage that reads this stream and others: the primitive of all operators.

        Args:
            operator: the operator's label, shown by explain; unnamed steps are named after it.
            outputs: the schema of each output.
            others: further inputs.
            scope: the scope of the outputs, if not that of the inputs.
            keyed: columns by which all inputs must be partitioned, and then the output is.
            parts: `kind` (by default a vertex), `vertex`, `requires`, `guarantees`, `keeps`, `summary`,
                `detail`, `parameters` of the stage; `called`: the text from which a name is derived, by
                default `operator`; `own`: reserved column names that the stage adds.

        Returns:
            A stream for each output.

        Example:
            >>> import timely_spark as ts
            >>> class Twice(ts.authors.Stateless):
            ...     def apply(self, batch):
            ...         return (pa.concat_tables([batch, batch]),)
            >>> words = ts.Dataflow("then").input("words", "word string")
            >>> words.then("twice", [words.schema], vertex=Twice(), keyed=["word"])
            (Stream(twice: word string),)

        Raises:
            GraphError: the inputs are of different flows or scopes.
        """
        check_same_scope(operator, self, others)
        if keyed is not None:
            by = tuple(keyed)
            parts |= {"requires": [Partition.by(by)] * (1 + len(others)), "guarantees": by}
        stage = self.flow.graph.stage(
            operator,
            scope or self.stage.scope,
            outputs,
            inputs=[(stream.stage, stream.port) for stream in (self, *others)],
            name=name,
            **parts,
        )
        return tuple(Stream(self.flow, stage, port) for port in range(len(outputs)))

    def check_outside(self, operator: str, *, epochs: str = "") -> None:
        """Check that the stream is outside of loops and scopes.

        Args:
            operator: the operator's label.
            epochs: why the times must also be epochs, which those of a flow with its own kind of time are
                not; empty if they may be any.

        Example:
            >>> import timely_spark as ts
            >>> hops = ts.Dataflow("loop").scope.inner(name="hops").variable("node long")
            >>> hops.check_outside("to_file")
            Traceback (most recent call last):
            timely_spark.errors.GraphError: to_file: 'hops.variable' is inside loop 'hops' (...)
            Hint: let it leave the loop first.

        Raises:
            GraphError: it is inside of one, or its times are not epochs.
        """
        scope, why = self.stage.scope, f", and {epochs}" if epochs else ""
        if scope.parent is not None:
            around = "loop" if scope.inner is None else "scope"
            msg = f"{operator}: {self.name!r} is inside {around} {scope.name!r}{why}"
            raise GraphError(msg, where=caller(), hint=f"let it leave the {around} first.")
        if epochs and not only_epochs(scope.times):
            kind = type(scope.times).__name__
            msg = f"{operator}: {self.name!r} is of a flow with times of its own kind, {kind}{why}"
            raise GraphError(msg, where=caller(), hint="use Dataflow's default times.")


_OTHER_FLOW = (
    "build all in one flow; or let the other flow hand it over in a folder: arrange(keys).publish(path) "
    "there, flow.import_arrangement(path, name) here; or capture_to(path) and flow.replay(name, path)."
)


def check_same_scope(operator: str, stream: Stream, others: Sequence[Stream]) -> None:
    """Check that an operator may read `others` beside a stream.

    Raises:
        GraphError: one is not a stream, or is of another flow or scope.
    """
    for other in others:
        if not isinstance(other, Stream):
            msg = f"{operator} got {a_type(other)}, not a stream"  # type: ignore[unreachable] # reached without a type checker
            hint = "take one output of a step that has several; a collection's is collection.changes()."
            raise GraphError(msg, where=caller(), hint=hint)
        if other.flow is not stream.flow:
            flows = stream.flow.name, other.flow.name
            msg = f"{operator}: {stream.name!r} is of flow {flows[0]!r}, {other.name!r} of {flows[1]!r}"
            raise GraphError(msg, where=caller(), hint=_OTHER_FLOW)
        if other.stage.scope is not stream.stage.scope:
            scopes = [one.stage.scope.name or "no loop" for one in (stream, other)]
            how = ".scope.enter(...)" if scopes[1] == "no loop" else "enter or leave"
            msg = f"{operator}: {stream.name!r} is in {scopes[0]}, {other.name!r} in {scopes[1]}"
            raise GraphError(msg, where=caller(), hint=f"bring one into the other's scope with {how}.")


@locate_errors
class Variable(Stream):
    """A loop variable: a stream that can be read before its feedback is defined by `feed`.

    `loop` makes and feeds one. For collections there is `timely_spark.differential.CollectionVariable`.

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
        """Close the loop: records of `stream` return in the next iteration (Naiad's feedback).

        Raises:
            GraphError: the variable is fed already, or `stream` is in another scope.
            SchemaError: the schemas differ.
        """
        graph, feedback = self.flow.graph, self.flow.feedbacks[self.stage.index]
        where = caller()
        if graph.into(feedback):
            msg = f"feed: loop variable {self.name!r} is fed already"
            raise GraphError(msg, where=where, hint="concat the streams, and feed once.")
        if stream.stage.scope is not self.stage.scope:
            msg = (
                f"feed: {stream.name!r} is in {stream.stage.scope.name or 'no loop'}, the variable in "
                f"{self.stage.scope.name}"
            )
            hint = "feed from the variable's own loop; a stream of an inner loop must leave that first."
            raise GraphError(msg, where=where, hint=hint)
        if stream.schema != self.schema:
            msg = (
                f"feed: {stream.name!r} has ({describe(stream.schema)}), the variable {self.name!r} has "
                f"({describe(self.schema)})"
            )
            raise SchemaError(msg, where=where, hint="select the variable's columns, in its order.")
        graph.connect(stream.stage, stream.port, feedback, 0)


@locate_errors
@dataclass(frozen=True, slots=True)
class Scope:
    """A loop context, a scope with an inner time, or the outermost scope.

    Times inside have one coordinate more: in a loop the iteration (Naiad section 2.1), in a scope made with
    ``inner(time=...)`` a value of that type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("scopes")
        >>> inner = flow.scope.inner(name="outer").inner(name="steps")
        >>> inner.name, inner.graph_scope.depth
        ('outer.steps', 2)
    """

    flow: Dataflow
    graph_scope: LoopContext

    @property
    def name(self) -> str:
        """The scope's name; empty for the outermost one."""
        return self.graph_scope.name

    def inner(
        self,
        *,
        name: str | None = None,
        time: type[int | InnerTime] | None = None,
        max_iterations: int | None = None,
        on_limit: OnLimit | None = None,
        watched: bool = True,
    ) -> Scope:
        """A new loop inside this scope; or, with `time`, a scope that refines the times around it.

        Law: a time inside is a pair of the time outside and an inner time, in the product order.
        Notifications, counts and joins are by these pairs, as if the whole flow had them; other scopes have
        times of their own. What leaves has the time outside again, and an epoch outside is complete when all
        of its inner times are. A worker delivers what waits in an epoch in the order of inner times: with
        priorities as times, the most urgent first. An inner time is complete when its epoch is and nothing
        before it in the epoch is under way. Source: timely's scopes and `Refines`; Naiad has loop counters
        only.

        Args:
            name: the scope's name.
            time: the type of the inner times: ``int`` for integers from 0 on, where everything works, loops
                and collections included; `times.Descending` for numbers, the greater ones first; or your own
                with the methods of `times.InnerTime`, where those operators on streams work that work in
                loops. Records enter at one by ``enter(at=...)``.
            max_iterations: the largest number of iterations; None means until nothing changes.
            on_limit: what happens if `max_iterations` drops records: see `Stream.loop`.
            watched: whether many iterations of a loop are a reason for a warning, and `Query.cancel` ends it;
                not if later epochs begin at later iterations, so that one passes after the other.

        Example:
            The higher bids of an epoch are handled first, whatever order they are sent in:

            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("bids")
            >>> by_price = flow.scope.inner(name="by_price", time=ts.times.Descending)
            >>> bids = by_price.enter(flow.input("bids", "item string, price long"), at="price")
            >>> order = []
            >>> _ = (
            ...     bids.unary(lambda time, bids: order.append(str(time)) or bids, bids.schema)
            ...     .leave()
            ...     .probe("end")
            ... )
            >>> _ = ts.testing.run(flow, {"bids": [[("a", 3), ("b", 7), ("a", 7)]]})
            >>> order
            ['RefinedTime(0, Descending(7))', 'RefinedTime(0, Descending(3))']

        Raises:
            GraphError: `max_iterations` is not an integer of at least 1, or `on_limit` is unknown; or there
                is a `time` with an iteration limit, or in a flow with times of its own kind.
            InvalidTime: `time` lacks a method of `InnerTime`, or breaks a law at its least value.
        """
        limit, where = check_limit(max_iterations, on_limit), caller()
        if time is not None:
            self._check_inner_time(time, limit)
        kind = "loop" if time is None else "scope"
        title = self.flow.graph.names.add(self.flow.graph.title(self.graph_scope), kind, name, where)
        on_limit = on_limit or "warn"
        context = LoopContext(
            title, self.graph_scope, limit, where, on_limit=on_limit, inner=time, watched=watched
        )
        return Scope(self.flow, context)

    def _check_inner_time(self, time: type[int | InnerTime], limit: int | None) -> None:
        if limit is not None:
            msg = f"inner: max_iterations={limit + 1} with time={time!r}"
            hint = "make a loop inside: a scope with an inner time does not iterate."
            raise GraphError(msg, where=caller(), hint=hint)
        if self.flow.graph.times != PRODUCT:
            msg = f"inner: time={time!r}, and flow {self.flow.name!r} has times of its own kind"
            hint = "refine Dataflow's default times, by one scope or more."
            raise GraphError(msg, where=caller(), hint=hint)
        if time is not int and (broken := broken_inner_law(time)) is not None:
            msg = f"inner: time={time!r}: {broken}"
            hint = "correct the class (times.InnerTime lists the laws), or give int."
            raise InvalidTime(msg, where=caller(), hint=hint)

    def region(self, name: str, *, workers: Sequence[int] | None = None) -> AbstractContextManager[None]:
        """Steps of this scope that belong together: their names begin with the region's.

        Names of inputs and outputs stay as they are. With `workers`, the steps, also those of loops inside,
        get records on these workers only: a loop on one worker exchanges nothing, so it takes one round.

        Args:
            name: the region's name.
            workers: the numbers of its workers; by default all.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("regions")
            >>> with flow.scope.region("small", workers=[0]):
            ...     flow.input("x", "n long").distinct(name="seen").name
            'small.seen'

        Raises:
            BadArgument: `workers` are not different numbers from 0 on.
            GraphError: at the start: the flow has fewer workers, or a step gets records from any worker.
        """
        return self.flow.graph.region(self.graph_scope, name, workers)

    def enter(
        self,
        stream: Stream,
        *,
        at: str | Expression | Sequence[str | Expression] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A stream of an outer scope inside this one (Naiad's ingress), by default at its least times.

        Args:
            stream: the stream.
            at: the inner time of each record (in a loop, its iteration): a column or expression of integers
                from 0 on; for an inner time of another type the columns that its `decode` gets.

        **Columns:** out as in.

        Example: see `Stream.enter`.

        Raises:
            GraphError: the stream's scope is not around this one.
            SchemaError: `at` is of another type. At run time: it is null, or before the least time.
        """
        if not isinstance(stream, Stream):
            msg = f"enter got {a_type(stream)}, not a stream"  # type: ignore[unreachable] # reached without a type checker
            hint = "collections enter by themselves, or by collection.enter(scope)."
            raise GraphError(msg, where=caller(), hint=hint)
        if at is not None:
            return stream.enter(self, at=at, name=name)
        path = self.graph_scope.path
        if stream.stage.scope not in path:
            msg = (
                f"enter: {stream.name!r} is in {stream.stage.scope.name or 'no loop'}, which is not around "
                f"{self.name or 'the outermost scope'}"
            )
            raise GraphError(msg, where=caller(), hint="let it leave its loop first.")
        with self.flow.graph.parts(self.graph_scope, name):
            for scope in path[path.index(stream.stage.scope) + 1 :]:
                stream = stream.then(
                    "enter",
                    [stream.schema],
                    kind=Kind.ENTER,
                    name=name if scope is self.graph_scope else None,
                    scope=scope,
                    summary=scope.times.enter(scope.depth - 1),
                    keeps={column: column for column in stream.schema.names},
                )[0]
        return stream

    def input(
        self,
        name: str,
        schema: SchemaLike,
        *,
        at: str | Expression | Sequence[str | Expression] | None = None,
        epochs: Literal["clock", "manual"] = "clock",
    ) -> Input:
        """An input that is opened in this scope: its records arrive at an epoch and an inner time.

        It is an input of the flow, by this name for `testing.run` and `Dataflow.handle`; the program ends its
        epochs, or the clock does. While an epoch is open, records of all its inner times may come; so these
        are complete when the epoch is.

        Args:
            name: the input's name.
            schema: the schema of the records.
            at: the inner time of each record, as for `enter`; by default the least one.
            epochs: as for `Dataflow.input`.

        **Columns:** out `schema`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("second")
            >>> sales = flow.scope.inner(name="by_day", time=int).input("sales", "day long", at="day")
            >>> _ = sales.group_by("day").count().leave().capture("sold")
            >>> ts.testing.run(flow, {"sales": [[8, 8, 2], [2]]})["sold"].rows()
            {0: [(2, 1), (8, 2)], 1: [(2, 2)]}

        Raises:
            GraphError: there is a loop around: its iterations come from what enters, and from its feedback.
            SchemaError: `at` is of another type. When records are sent: it is null or negative. At run time:
                it is before the least time.
        """
        if (loop := next((one for one in self.graph_scope.path[1:] if one.inner is None), None)) is not None:
            msg = f"input {name!r} in loop {loop.name!r} ({loop.where})"
            hint = "open the input outside, and let it enter the loop: an input has epochs, no iterations."
            raise GraphError(msg, where=caller(), hint=hint)
        source = self.flow.input(name, schema, epochs=epochs)
        if at is None and self.graph_scope.parent is None:
            return source
        inside = self.enter(source, at=at, name=name)
        if at is not None:
            vertex: Any = inside.stage.vertex
            source.handle.check = vertex.check_sent
        return type(source)(self.flow, inside.stage, inside.port, source=source.source)

    def variable(self, initial: Stream | SchemaLike, *, name: str | None = None) -> Variable:
        """A loop variable with an initial stream, or a schema; `feed` defines its later iterations.

        Args:
            initial: the variable's value in iteration 0; a schema, if it has none there.

        **Columns:** out those of `initial`.

        Example: see `Variable`.

        Raises:
            GraphError: this scope is not a loop.
        """
        if self.graph_scope.parent is None or self.graph_scope.inner is not None:
            msg = f"variable: {f'scope {self.name!r}' if self.name else 'the outermost scope'} is not a loop"
            if self.graph_scope.inner is not None:
                msg += ": its inner times are the records' own, and no feedback increases them"
            hint = (
                "make a loop, with scope.inner(): its iterations are inner times, which enter(at=...) begins."
            )
            raise GraphError(msg, where=caller(), hint=hint)
        graph, scope = self.flow.graph, self.graph_scope
        with graph.parts(scope, name):
            entered = self.enter(initial) if isinstance(initial, Stream) else None
            schema = entered.schema if entered is not None else as_schema(initial)
            back = graph.stage(
                "feedback",
                scope,
                [schema],
                kind=Kind.FEEDBACK,
                own=schema.names if entered is not None else (),
                summary=scope.times.feedback(scope.depth, scope.limit),
                detail="" if scope.limit is None else f"at most {scope.limit + 1} iterations",
                parameters={"max_iterations": None if scope.limit is None else scope.limit + 1},
            )
            inputs = [(entered.stage, entered.port)] if entered is not None else []
            inputs.append((back, 0))
            stage = graph.stage("variable", scope, [schema], kind=Kind.VARIABLE, inputs=inputs, name=name)
        self.flow.feedbacks[stage.index] = back
        return Variable(self.flow, stage)
