"""Operators from functions of batches, for what the others do not do; and the vertex, which can do all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.graph import Partition, SchemaLike, Vertex, as_schema

if TYPE_CHECKING:
    from timely_spark.dataflow import Stream


class _OnRecv(Vertex):
    def __init__(self, function: Callable[..., Any], *, sides: bool) -> None:
        self.function, self.sides = function, sides

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        made = self.function(edge, time, batch) if self.sides else self.function(time, batch)
        if made is not None:
            self.send_by(0, time, made)


class _OnNotify(Vertex):
    """Buffer by time; apply when the time is complete (Naiad section 4.1)."""

    def __init__(self, function: Callable[..., Any], schemas: tuple[pa.Schema, ...]) -> None:
        self.function, self.schemas = function, schemas
        self.buffers: dict[Any, list[list[pa.Table]]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.buffers.setdefault(time, [[] for _ in self.schemas])[edge].append(batch)
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        sides = self.buffers.pop(time)
        made = self.function(
            time,
            *(
                pa.concat_tables(side or [schema.empty_table()])
                for side, schema in zip(sides, self.schemas, strict=True)
            ),
        )
        if made is not None:
            self.send_by(0, time, made)


def unary(
    stream: Stream,
    function: Callable[[Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: Sequence[str] | None = None,
    name: str | None = None,
) -> Stream:
    """Make a batch of each, by a function of time and batch, as soon as it comes.

    Args:
        stream: any.
        function: gets the time and an Arrow table; returns an Arrow table, pandas frame, rows, or None for
            nothing.
        schema: of what the function returns.
        by: columns by which records must lie together; by default they come as they are.
        name: the step's name.

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
    return _custom([stream], _OnRecv(function, sides=False), schema, [by], operator="unary", name=name)


def binary(
    stream: Stream,
    other: Stream,
    function: Callable[[int, Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    name: str | None = None,
) -> Stream:
    """Make a batch of each batch of two streams: the function also gets which side (0 or 1) it came on.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("binary")
        >>> sides = flow.input("x", "n long"), flow.input("y", "n long")
        >>> tag = lambda side, time, batch: [(side, n) for n in batch["n"].to_pylist()]
        >>> _ = sides[0].binary(sides[1], tag, "side long, n long").capture("out")
        >>> ts.testing.run(flow, {"x": [[5]], "y": [[6]]})["out"].rows()
        {0: [(0, 5), (1, 6)]}
    """
    return _custom([stream, other], _OnRecv(function, sides=True), schema, by, operator="binary", name=name)


def unary_notify(
    stream: Stream,
    function: Callable[[Any, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: Sequence[str] | None = None,
    name: str | None = None,
) -> Stream:
    """Buffer by time; apply the function once to all of a worker's records of a time, when it is complete.

    Args: as `unary`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("buffered")
        >>> size = lambda time, batch: [batch.num_rows]
        >>> _ = flow.input("x", "n long").unary_notify(size, "rows long").capture("out")
        >>> ts.testing.run(flow, {"x": [[7, 8], [9]]})["out"].rows()
        {0: [(2,)], 1: [(1,)]}
    """
    return _custom(
        [stream], _OnNotify(function, (stream.schema,)), schema, [by], operator="unary_notify", name=name
    )


def binary_notify(
    stream: Stream,
    other: Stream,
    function: Callable[[Any, pa.Table, pa.Table], Any],
    schema: SchemaLike,
    *,
    by: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    name: str | None = None,
) -> Stream:
    """Buffer two streams by time, and apply the function to both sides of a time once it is complete.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("both")
        >>> sides = flow.input("x", "n long"), flow.input("y", "n long")
        >>> sizes = lambda time, left, right: [(left.num_rows, right.num_rows)]
        >>> _ = sides[0].binary_notify(sides[1], sizes, "left long, right long").capture("out")
        >>> ts.testing.run(flow, {"x": [[5, 6], []], "y": [[1], [2]]})["out"].rows()
        {0: [(2, 1)], 1: [(0, 1)]}
    """
    return _custom(
        [stream, other],
        _OnNotify(function, (stream.schema, other.schema)),
        schema,
        by,
        operator="binary_notify",
        name=name,
    )


def _custom(
    streams: Sequence[Stream],
    vertex: Vertex,
    schema: SchemaLike,
    by: Sequence[Sequence[str] | None],
    *,
    operator: str,
    name: str | None,
) -> Stream:
    first, *others = streams
    return first.then(
        operator,
        [as_schema(schema)],
        others=others,
        name=name,
        vertex=vertex,
        requires=[Partition(tuple(columns)) if columns else None for columns in by],
    )[0]


def add_vertex(
    streams: Sequence[Stream],
    vertex: Vertex,
    outputs: Sequence[SchemaLike],
    *,
    by: Sequence[Sequence[str] | None] | None = None,
    name: str | None = None,
) -> tuple[Stream, ...]:
    """Add a vertex of one's own: see `Dataflow.vertex`."""
    first, *others = streams
    return first.then(
        type(vertex).__name__.lower(),
        [as_schema(schema) for schema in outputs],
        others=others,
        name=name,
        vertex=vertex,
        requires=[Partition(tuple(columns)) if columns else None for columns in by or [None] * len(streams)],
    )
