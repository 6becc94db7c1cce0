"""Routing operators: they move records between workers, streams or times, and do not change them."""

from __future__ import annotations

import sys
from collections.abc import Callable

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Expression, Kind, Partition, Way, caller, describe, integer, operator
from timely_spark.operators.custom import partition_by
from timely_spark.operators.sql import expression
from timely_spark.streams import Stream


@operator(Stream)
def exchange(
    stream: Stream, *keys: str, by: str | Expression | None = None, name: str | None = None
) -> Stream:
    """Bring records with equal `keys` (by default: equal records) to one worker.

    Operators that need an exchange add it themselves. The compiler elides it if the input is already
    partitioned by the keys. With `by`, an expression of integers, a record goes to the worker of that number
    (Naiad's partitioning function H(m), section 3.1): modulo the number of workers, with null as 0.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("exchange")
        >>> _ = flow.input("x", "n long").exchange("n").capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2]]}, workers=2)["out"].rows()
        {0: [(1,), (2,)]}
        >>> halves = flow.input("y", "n long").exchange(by="n % 2")

    Raises:
        SchemaError: `by` is not an expression of integers over the stream's columns.
        GraphError: both `keys` and `by` are given.
    """
    by = expression("exchange", by, stream.schema)
    if by is not None and (keys or not isinstance(by, Expression)):
        msg = f"exchange: keys={list(keys)} and by={by!r}"
        raise GraphError(msg, where=caller(), hint="give columns, or by= an expression: 'n % 4'.")
    return stream.then(
        "exchange",
        [stream.schema],
        kind=Kind.EXCHANGE,
        name=name,
        requires=[
            partition_by("exchange", stream.schema, keys or tuple(stream.schema.names) if by is None else by)
        ],
    )[0]


@operator(Stream)
def broadcast(stream: Stream, *, name: str | None = None) -> Stream:
    """Bring every record to every worker.

    **Columns:** out as in, each record once per worker.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("broadcast")
        >>> _ = flow.input("x", "n long").broadcast().capture("out")
        >>> ts.testing.run(flow, {"x": [[1]]}, workers=3)["out"].rows()
        {0: [(1,), (1,), (1,)]}
    """
    return stream.then(
        "broadcast", [stream.schema], kind=Kind.BROADCAST, name=name, requires=[Partition((), broadcast=True)]
    )[0]


@operator(Stream)
def concat(stream: Stream, *others: Stream, name: str | None = None) -> Stream:
    """All records of several streams of one schema; forwarded at once (Naiad section 4.1).

    **Columns:** out as in, the same on all sides.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("concat")
        >>> x, y = flow.input("x", "n long"), flow.input("y", "n long")
        >>> _ = x.concat(y).capture("out"), x.collection().concat(y.collection()).capture("collection")
        >>> made = ts.testing.run(flow, {"x": [[1, 2]], "y": [[2]]})
        >>> made["out"].rows(), made["collection"].rows()
        ({0: [(1,), (2,), (2,)]}, {0: [(1, 1), (2, 2)]})

    Raises:
        SchemaError: the columns differ.
        GraphError: one is of another kind or flow, or in another scope (collections: an unrelated one).
    """
    for other in others:
        if getattr(other, "schema", stream.schema) != stream.schema:  # `then` refuses what is not a stream
            msg = (
                f"concat: {stream.stage.name!r} has ({describe(stream.schema)}), {other.stage.name!r} has "
                f"({describe(other.schema)})"
            )
            hint = "select the same columns, in the same order and of the same types, on both sides."
            raise SchemaError(msg, where=caller(), hint=hint)
    return stream.then("concat", [stream.schema], kind=Kind.CONCAT, others=others, name=name)[0]


@operator(Stream)
def delay(stream: Stream, epochs: int = 1, *, name: str | None = None) -> Stream:
    """Delay records by a number of epochs.

    By the clock an epoch is a batch, including one that only runs a loop, so the delay then depends on
    how busy the flow is. Use it with manual epochs, or epochs of a column.

    Args:
        epochs: how many epochs later each record comes out. The last epoch is 2**63 - 1: records that would
            come later are dropped, as behind the limit of a loop.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("delay")
        >>> _ = flow.input("x", "n long").delay(1).capture("out")
        >>> ts.testing.run(flow, {"x": [[1], [2]]})["out"].rows()
        {0: [], 1: [(1,)], 2: [(2,)]}

    Raises:
        GraphError: `epochs` is not an integer from 0 on and below 2**62.
    """
    hint = "give a number of epochs: time only goes forward."
    number = integer("epochs", epochs, least=0, step="delay", error=GraphError, hint=hint)
    summary = stream.stage.scope.times.delay(stream.stage.scope.depth, number)
    return stream.then(
        "delay",
        [stream.schema],
        kind=Kind.DELAY,
        name=name,
        summary=summary,
        detail=str(number),
        parameters={"epochs": number},
    )[0]


def by_workers(
    stream: Stream,
    few: Callable[[Stream], Stream],
    many: Callable[[Stream], Stream],
    *,
    least: int,
    word: str,
) -> Stream:
    """What `many` makes of a stream with `least` workers or more; with fewer what `few` makes, the same.

    A flow that continues with another number of workers takes the other way only if no epoch is under way,
    so each must be right with any number of workers. The vertices of a way that hold state then have a method
    ``take_over(before, partition) -> States``: `before` has, by operator, the vertices of the other way.

    Args:
        few: adds the steps for few workers.
        many: adds those for many.
        word: the names of the steps of `many` begin with it.

    **Columns:** out as of `few` and `many`, which are the same.

    Example:
        >>> import timely_spark as ts
        >>> from timely_spark.authors import by_workers
        >>> flow = ts.Dataflow("ways")
        >>> x = flow.input("x", "n long")
        >>> distinct = by_workers(x, lambda x: x.distinct(), lambda x: x.distinct(), least=16, word="many")
        >>> _ = distinct.capture("out")
        >>> [[node.name for node in flow.compile(workers).nodes] for workers in (15, 16)]
        [['distinct', 'out'], ['many.distinct', 'out']]
    """
    graph = stream.flow.graph
    if graph.workers is not None:  # a region's
        return few(stream) if len(graph.workers) < least else many(stream)
    choice = object()
    ways = Way(range(least), choice), Way(range(least, sys.maxsize), choice)
    with graph.part_of(ways[0], stream.stage.scope):
        one = few(stream)
    with graph.part_of(ways[1], stream.stage.scope, word):
        other = many(stream)
    return one.then("by_workers", [one.schema], kind=Kind.CONCAT, others=[other], ways=ways)[0]
