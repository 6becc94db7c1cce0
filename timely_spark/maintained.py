"""`maintain`: a Delta table that follows a streaming DataFrame, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from timely_spark.dataflow import Dataflow, Trigger
from timely_spark.differential import Collection
from timely_spark.differential.collections import check_collection
from timely_spark.graph import locate_errors, refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from timely_spark.runtime.handle.query import Query


@locate_errors
def maintain(
    frame: DataFrame | None = None,
    algorithm: Callable[..., Collection] | None = None,
    table: str = "",
    *,
    sql: str | None = None,
    tables: Mapping[str, DataFrame] | None = None,
    checkpoint: str,
    diff: str | None = None,
    keys: str | list[str] | None = None,
    workers: int | None = None,
    trigger: Trigger = None,
    name: str | None = None,
    **arguments: Any,
) -> Query:
    """Keep a Delta table at the result of an algorithm on a streaming DataFrame; starts the query.

    After each micro-batch with input the table is what the algorithm gives for all records so far: each
    epoch's changes are one transaction, exactly once. For several outputs write a `Dataflow`.

    Args:
        frame: a streaming DataFrame.
        algorithm: a function of a collection to a collection: any of `graphs`, or your own.
        table: a path, or catalog.schema.table.
        sql: instead of `frame` and `algorithm`, a query in Spark's SQL of `tables`.
        tables: by their names in the query, streaming DataFrames.
        checkpoint: the directory from which the query continues after a stop.
        diff: the integer column that says how many more times a record is there, -1: it is deleted. By
            default ``diff``, if the DataFrame has a column of that name; else all records are insertions.
        keys: columns that are unique in the result, by which the table is updated; by default all.
        workers: as for `Dataflow.start`, as is `trigger`.
        name: the query's name, by default that of the algorithm.
        arguments: further arguments of the algorithm, such as ``src`` and ``dst``. A streaming DataFrame
            among them becomes a collection too, as with ``roots`` of `graphs.bfs`; if it has the column
            `diff`, its rows count by that.

    **Columns:** in: the algorithm's, and `diff`. Out: those of the result.

    Example:
        >>> import timely_spark as ts
        >>> edges = spark.readStream.table("main.graph.edges")  # doctest: +SKIP
        >>> query = ts.maintain(  # doctest: +SKIP
        ...     edges,
        ...     ts.graphs.connected_components,
        ...     "main.graph.parts",
        ...     checkpoint="/Volumes/main/graph/parts",
        ... )
        >>> query = ts.maintain(  # doctest: +SKIP
        ...     edges, ts.graphs.bfs, "main.graph.near", checkpoint="/Volumes/main/graph/near", roots=roots
        ... )

    Raises:
        BadArgument: `frame` is no DataFrame, or `algorithm` no function.
        GraphError: the DataFrame is not streaming, or the algorithm gives no collection.
        TimelyError: another error of the algorithm, of `Stream.to_delta` or of `Dataflow.start`.
    """
    if not table:
        refuse(
            table, what="table", expected="a table", hint="say which table is kept: table='main.graph.near'."
        )
    if sql is not None:
        return _of_query(sql, tables or {}, table, keys, (checkpoint, workers, trigger, name))
    source: Any = frame
    if not hasattr(source, "isStreaming"):
        refuse(source, what="frame", expected="a DataFrame", hint="read it with spark.readStream.")
    function: Any = algorithm
    if not callable(function):
        hint = "give a function of a collection, for example ts.graphs.connected_components."
        refuse(function, what="algorithm", expected="a function", hint=hint)
    flow = Dataflow(str(getattr(function, "__name__", "maintain")) if name is None else name)
    records = _records(flow, "input", source, diff)
    for argument, value in arguments.items():
        if hasattr(value, "isStreaming"):
            arguments[argument] = _records(flow, argument, value, diff if diff in value.columns else None)
    result = function(records, **arguments)
    check_collection("maintain", result)
    keys = keys or result.schema.names
    result.changes().to_delta(table, keys=keys, diff="diff", name="table")
    return flow.start(source.sparkSession, checkpoint=checkpoint, workers=workers, trigger=trigger)


def _of_query(
    query: str, frames: Mapping[str, DataFrame], table: str, keys: Any, options: tuple[Any, ...]
) -> Query:
    checkpoint, workers, trigger, name = options
    if not frames or not all(hasattr(one, "isStreaming") for one in frames.values()):
        hint = "give streaming DataFrames by name: tables={'edges': spark.readStream.table('main.edges')}."
        refuse(frames, what="tables", expected="DataFrames", hint=hint)
    flow = Dataflow("query" if name is None else name)
    views = flow.sql(
        f"CREATE VIEW result AS {query}", **{view: flow.source(view, one) for view, one in frames.items()}
    )
    result = views["result"]
    result.changes().to_delta(table, keys=keys or result.schema.names, diff="diff", name="table")
    session = next(iter(frames.values())).sparkSession
    return flow.start(session, checkpoint=checkpoint, workers=workers, trigger=trigger)


def _records(flow: Dataflow, name: str, frame: DataFrame, diff: str | None) -> Collection:
    read = flow.source(name, frame)
    return read.collection(diff="diff" if diff is None and "diff" in read.schema.names else diff)
