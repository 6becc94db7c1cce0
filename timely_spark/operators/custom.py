"""Generic operators: a function of batches, or a vertex written by the user."""

from __future__ import annotations

import inspect
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import (
    Expression,
    LoopContext,
    Partition,
    SchemaLike,
    Stateless,
    Vertex,
    as_schema,
    caller,
    check_columns,
    check_quotients,
    columns_in,
    describe,
    integer,
    names,
    operator,
    project,
    refuse,
)
from timely_spark.operators.rows import check_function, check_runs
from timely_spark.state.buffering import BufferingVertex, per_input
from timely_spark.streams import Stream, check_same_scope
from timely_spark.times import PathSummary, Timestamp, is_integer

PartitionColumns: TypeAlias = str | Sequence[str] | Expression | None
MUTABLE = (list, dict, set, bytearray, deque)
"""Types of plain state that changes in place."""

By: TypeAlias = Sequence[PartitionColumns] | str | Expression | None
"""For each input what partitions it: a column, several, an expression, or None. A single input needs no list.

Of an expression (Naiad's H(m)) the value, an integer, is the worker's number, modulo the number of workers.
"""
Summaries: TypeAlias = Mapping[tuple[int, int], PathSummary | int | None]
"""By (input, output): None (no path), a number of epochs, or a path summary; else the same time or later."""


class _OnRecv(Vertex):
    per_time = sends_for_user = True

    def __init__(self, function: Callable[..., Any], *, sides: bool) -> None:
        self.function, self.sides = function, sides

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        result = self.function(edge, time, batch) if self.sides else self.function(time, batch)
        if result is not None:
            self.send_by(0, time, result)


class _OnNotify(BufferingVertex):
    """Buffer by time; apply the function when the time is complete (Naiad section 4.1)."""

    per_time = sends_for_user = True

    def __init__(self, function: Callable[..., Any], schemas: tuple[pa.Schema, ...]) -> None:
        super().__init__(inputs=len(schemas))
        self.function, self.schemas = function, schemas

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not any(batches):
            return
        result = self.function(time, *per_input(batches, self.schemas))
        if result is not None:
            self.send_by(0, time, result)


@operator(Stream)
def unary(
    stream: Stream,
    function: Callable[[Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: PartitionColumns = None,
    name: str | None = None,
) -> Stream:
    """Apply a function of time and batch to each batch on arrival.

    Args:
        function: gets the time and an Arrow table; returns an Arrow table, a pandas frame, rows, or None to
            send no batch.
        schema: the schema of the results.
        by: the columns by which the input is partitioned, or an expression of worker numbers, as in
            `exchange`. No columns, ``[]``, bring all records to one worker. By default nothing is exchanged.

    **Columns:** in: any; out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("unary")
        >>> _ = (
        ...     flow.input("x", "n long")
        ...     .unary(lambda time, batch: [(time.epoch, batch.num_rows)], "e long, n long")
        ...     .capture("out")
        ... )
        >>> ts.testing.run(flow, {"x": [[7], [8]]})["out"].rows()
        {0: [(0, 1)], 1: [(1, 1)]}
    """
    check_function("unary", function, "time", "table")
    return custom([stream], _OnRecv(function, sides=False), [schema], [by], operator="unary", name=name)[0]


@operator(Stream)
def binary(
    stream: Stream,
    other: Stream,
    function: Callable[[int, Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: tuple[PartitionColumns, PartitionColumns] = (None, None),
    name: str | None = None,
) -> Stream:
    """Apply a function to each batch of two streams, on arrival.

    Args:
        other: the second stream, of the same flow and scope.
        function: as for `unary`, but it gets the side of the batch first, 0 or 1.
        schema: the schema of the results.
        by: for each side, as for `unary`.

    **Columns:** in: any; out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("binary")
        >>> sides = flow.input("x", "n long"), flow.input("y", "n long")
        >>> tag = lambda side, time, batch: [(side, n) for n in batch["n"].to_pylist()]
        >>> _ = sides[0].binary(sides[1], tag, "side long, n long").capture("out")
        >>> ts.testing.run(flow, {"x": [[5]], "y": [[6]]})["out"].rows()
        {0: [(0, 5), (1, 6)]}
    """
    check_function("binary", function, "side", "time", "table")
    vertex = _OnRecv(function, sides=True)
    return custom([stream, other], vertex, [schema], by, operator="binary", name=name)[0]


@operator(Stream)
def unary_notify(
    stream: Stream,
    function: Callable[[Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: PartitionColumns = None,
    name: str | None = None,
) -> Stream:
    """Buffer by time; when a time is complete, apply the function once to a worker's records of it.

    Args:
        function: gets the time and an Arrow table of all its records; returns what `unary` takes.
        schema: the schema of the results.
        by: as for `unary`.

    **Columns:** in: any; out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("buffered")
        >>> size = lambda time, batch: [batch.num_rows]
        >>> _ = flow.input("x", "n long").unary_notify(size, "rows long").capture("out")
        >>> ts.testing.run(flow, {"x": [[7, 8], [9]]})["out"].rows()
        {0: [(2,)], 1: [(1,)]}
    """
    check_function("unary_notify", function, "time", "table")
    vertex = _OnNotify(function, (stream.schema,))
    return custom([stream], vertex, [schema], [by], operator="unary_notify", name=name)[0]


@operator(Stream)
def binary_notify(
    stream: Stream,
    other: Stream,
    function: Callable[[Any, pa.Table, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: tuple[PartitionColumns, PartitionColumns] = (None, None),
    name: str | None = None,
) -> Stream:
    """Buffer two streams by time; when a time is complete, apply the function to both sides of it.

    Args:
        other: the second stream, of the same flow and scope.
        function: gets the time and an Arrow table of each side; returns what `unary` takes.
        schema: the schema of the results.
        by: for each side, as for `unary`.

    **Columns:** in: any; out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("both")
        >>> sides = [flow.input(name, "n long", epochs="manual") for name in "xy"]
        >>> sizes = lambda time, left, right: [(left.num_rows, right.num_rows)]
        >>> _ = sides[0].binary_notify(sides[1], sizes, "left long, right long").capture("out")
        >>> ts.testing.run(flow, {"x": [[5, 6], []], "y": [[1], [2]]})["out"].rows()
        {0: [(2, 1)], 1: [(0, 1)]}
    """
    check_function("binary_notify", function, "time", "left", "right")
    check_same_scope("binary_notify", stream, [other])
    vertex = _OnNotify(function, (stream.schema, other.schema))
    return custom([stream, other], vertex, [schema], by, operator="binary_notify", name=name)[0]


def _partitions(operator: str, streams: Sequence[Stream], by: By) -> list[Partition | None]:
    """The partitioning that each input requires."""
    if by is None:
        by = [None] * len(streams)
    listed: list[Any] = [by] if isinstance(by, str | Expression) else list(by)
    if len(streams) == 1 and all(isinstance(column, str) for column in listed):
        listed = [listed]  # one input: its columns
    if len(listed) != len(streams):
        msg = f"{operator}: by={by!r} has {len(listed)} entries for {len(streams)} inputs"
        hint = "give a list with one entry per input: its columns, or None."
        raise GraphError(msg, where=caller(), hint=hint)
    pairs = zip(streams, listed, strict=True)
    return [partition_by(operator, stream.schema, columns) for stream, columns in pairs]


def partition_by(operator: str, schema: pa.Schema, by: PartitionColumns) -> Partition | None:
    """The partitioning by columns or by an expression; None means any."""
    if by is None:
        return None
    if not isinstance(by, Expression):
        return Partition.by(names(operator, by))
    try:
        kind = project(schema.empty_table(), {"worker": by}).schema.field(0).type
    except pa.ArrowException as error:
        msg = f"{operator}: by={by} has no value in records of ({describe(schema)}): {error}"
        raise SchemaError(msg, where=caller(), hint="use the columns of the input.") from error
    if not pa.types.is_integer(kind):
        msg = f"{operator}: by={by} is of type {kind}, not an integer"
        raise SchemaError(msg, where=caller(), hint="cast it, as in pc.field('x').cast('int64').")
    check_quotients(operator, [by], schema)
    return Partition(tuple(sorted(columns_in(by, schema))), computed=str(by), expression=by)


def custom(
    streams: Sequence[Stream],
    vertex: Vertex,
    outputs: Sequence[SchemaLike],
    by: By,
    *,
    operator: str,
    name: str | None,
    guarantees: str | Sequence[str] | None = None,
    summaries: Summaries | None = None,
) -> tuple[Stream, ...]:
    """Add a vertex of a user's function, or one written by the user: see `Dataflow.vertex`."""
    first, *others = streams
    check_same_scope(operator, first, others)
    schemas = [as_schema(schema) for schema in outputs]
    promised = names(operator, guarantees) if guarantees is not None else None
    if promised is not None:
        check_columns(
            name or operator,
            schemas[0] if schemas else pa.schema([]),
            promised,
            keys=True,
            nested=True,
            of="output 0",
        )
    paths = _summaries(name or operator, streams, vertex, len(schemas), summaries or {})
    by_edge = (
        [] if paths is None else [[*pair, repr(paths[pair[0]][pair[1]])] for pair in sorted(summaries or ())]
    )
    return first.then(
        operator,
        schemas,
        summaries=paths,
        parameters={"summaries": by_edge} if by_edge else {},
        guarantees=promised,
        checked=promised is not None,
        others=others,
        name=name,
        vertex=vertex,
        requires=_partitions(operator, streams, by),
    )


def _summaries(
    step: str, streams: Sequence[Stream], vertex: Vertex, outputs: int, summaries: Summaries
) -> list[list[PathSummary | None]] | None:
    """The path summaries from each input to each output; None means the identity for all pairs."""
    scope = streams[0].stage.scope
    identity = scope.times.identity(scope.depth)
    paths: list[list[PathSummary | None]] = [[identity] * outputs for _ in streams]
    if not isinstance(summaries, Mapping):
        refuse(
            summaries,
            what="summaries",
            expected="a dict by (input, output)",
            hint="give a dict by (input, output), as in {(1, 0): None}.",
        )
    if summaries and (isinstance(vertex, Stateless) or tuple(vertex.initial)):
        what = "sends all it makes at once" if isinstance(vertex, Stateless) else "has initial notifications"
        msg = f"{step}: {type(vertex).__name__} {what}, so that no summaries of an input bind it"
        raise GraphError(msg, where=caller(), hint="leave summaries out.")
    pairs = {*itertools.product(range(len(streams)), range(outputs))}
    for pair, summary in summaries.items():
        if pair not in pairs:
            msg = f"{step}: summaries has {pair!r}; there are {len(streams)} inputs and {outputs} outputs"
            raise GraphError(msg, where=caller(), hint="give (input, output), counted from 0.")
        input_, output = map(int, pair)
        paths[input_][output] = _path(step, pair, summary, identity, scope)
    return paths if summaries else None


def _path(
    step: str, pair: tuple[int, int], summary: Any, identity: PathSummary, scope: LoopContext
) -> PathSummary | None:
    """One declared path summary, checked."""
    if summary is None:
        return None
    if is_integer(summary):
        return scope.times.delay(scope.depth, int(summary))
    try:
        path = identity.followed_by(summary)
        lawful = path is None or identity.less_equal(path)
    except (AttributeError, TypeError, ValueError):
        lawful = False
    if not lawful:
        declared = f"{step}: summaries[{pair}]={summary!r}"
        msg = f"{declared} is not a path from the times of its scope to the same or later"
        hint = (
            "give None (no path), a number of epochs from 0 on, or a path summary as `times.PRODUCT` makes."
        )
        raise GraphError(msg, where=caller(), hint=hint)
    return path


def check_methods(vertex: Vertex) -> None:
    """Check `initial`, and what the methods that the library calls take."""
    kind = type(vertex).__name__
    initial: Any = vertex.initial
    if isinstance(initial, str) or not hasattr(initial, "__iter__") or not all(map(is_integer, initial)):
        msg = f"vertex: {kind}.initial is {initial!r}"
        raise GraphError(msg, where=caller(), hint="list the epochs, integers from 0 on: initial = (0,).")
    integer(f"{kind}.reentrancy", vertex.reentrancy, least=0, most=60, step="vertex", error=GraphError)
    if vertex.reentrancy and vertex.logged:
        msg = f"vertex: {kind} is logged, and re-entrant to depth {vertex.reentrancy}"
        hint = (
            "leave one of them out: calls of a log are repeated one after the other, not inside each other."
        )
        raise GraphError(msg, where=caller(), hint=hint)
    takes = {
        "on_recv": ("edge", "time", "batch"),
        "on_notify": ("time",),
        "combine": ("edge", "batch"),
        "before_exchange": ("edge", "batch"),
    }
    for name, arguments in takes.items():
        if (method := getattr(vertex, name)) is None:
            continue
        try:
            inspect.signature(method).bind(*arguments)
        except (TypeError, ValueError) as error:
            msg = f"vertex: {kind}.{name} does not take ({', '.join(arguments)}): {error}"
            edge = "; edge is the number of the input" if "edge" in arguments else ""
            hint = f"write {name}(self, {', '.join(arguments)}){edge}."
            raise GraphError(msg, where=caller(), hint=hint) from error
        check_runs(f"vertex: {kind}.{name}", method)


def check_state(vertex: Vertex) -> None:
    """Check that `checkpoint` sees all of the state, and sees it once: no slots, no object by two names.

    Each attribute is copied and restored by itself, so an object by two names would be two.
    """
    kind = type(vertex)
    if kind.checkpoint is not Vertex.checkpoint:
        return
    hint = "or write checkpoint() and restore()."
    declared = [vars(each).get("__slots__", ()) for each in kind.__mro__[: kind.__mro__.index(Vertex)]]
    if slots := [name for names in declared for name in ([names] if isinstance(names, str) else names)]:
        msg = f"vertex: {kind.__name__} keeps {', '.join(slots)} in slots, which a checkpoint does not see"
        raise GraphError(msg, where=caller(), hint=f"leave __slots__ (slots=True) out, {hint}")
    names: dict[int, str] = {}
    for name, value in vars(vertex).items():
        if isinstance(value, MUTABLE) and (other := names.setdefault(id(value), name)) != name:
            msg = (
                f"vertex: {kind.__name__}.{other} and .{name} are one object, and would be two in each worker"
            )
            raise GraphError(msg, where=caller(), hint=f"keep it by one name, {hint}")
