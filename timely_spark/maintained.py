"""`maintain`: a Delta table that follows a streaming DataFrame, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from timely_spark.coordinator.migration import FlowChanged
from timely_spark.dataflow import Dataflow, Trigger
from timely_spark.differential import Collection
from timely_spark.differential.collections import check_collection
from timely_spark.errors import BadArgument
from timely_spark.graph import caller, locate_errors, refuse

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
    checkpoint: str | os.PathLike[str],
    diff: str | None = None,
    keys: str | list[str] | None = None,
    workers: int | None = None,
    trigger: Trigger = None,
    name: str | None = None,
    **arguments: Any,
) -> Query:
    """Keep a Delta table at the result of an algorithm on a streaming DataFrame; starts the query.

    After each micro-batch with input the table is what the algorithm gives for all records so far. It has
    each epoch's changes exactly once, in one transaction. For several outputs write a `Dataflow`.

    Args:
        frame: a streaming DataFrame.
        algorithm: a function of a collection to a collection: any of `graphs`, or your own.
        table: a path, or catalog.schema.table.
        sql: instead of `frame` and `algorithm`, a query in Spark's SQL of `tables`.
        tables: by their names in the query, streaming DataFrames.
        checkpoint: the directory from which the query continues after a stop.
        diff: the integer column of multiplicities: a row inserts its record so many times, and -1 deletes
            it. By default ``diff``, if the DataFrame has such a column; else all records are insertions.
            Tables of a query without the column have insertions only.
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
        BadArgument: `frame` is no DataFrame, or `algorithm` no function; or `sql` is given with them,
            or `tables` without it.
        GraphError: the DataFrame is not streaming, or the algorithm gives no collection.
        FlowChanged: the checkpoint is of another query or algorithm, or of other keys.
        TimelyError: another error of the algorithm, of `Stream.to_delta` or of `Dataflow.start`.
    """
    if not table:
        hint = "say which table is kept: table='main.graph.near'."
        refuse(table, what="table", expected="a table", hint=hint)
    others = {"tables": tables} if sql is None else {"frame": frame, "algorithm": algorithm} | arguments
    if unused := [argument for argument, value in others.items() if value is not None]:
        msg = f"maintain: {', '.join(unused)} {'without' if sql is None else 'beside'} sql"
        hint = "give sql= and tables=, or a DataFrame and an algorithm with its arguments."
        raise BadArgument(msg, where=caller(), hint=hint)
    if sql is None:
        flow, result = _of_algorithm(frame, algorithm, diff, name, arguments)
    else:
        flow, result = _of_query(sql, tables or {}, diff, name)
    columns, change = result.schema.names, "diff"
    while change in columns:
        change += "_"
    result.changes(change).to_delta(table, keys=columns if keys is None else keys, diff=change, name="table")
    source: Any = next(iter(flow.frames.values()))
    try:
        return flow.start(source.sparkSession, checkpoint=checkpoint, workers=workers, trigger=trigger)
    except FlowChanged as error:
        what = "algorithm" if sql is None else "query"
        hint = f"go on with the {what}, keys= and inputs of the first start; "
        hint += "or begin with a new checkpoint and another table."
        raise FlowChanged(error.message, hint=hint) from error


def _of_algorithm(
    frame: Any, algorithm: Any, diff: str | None, name: str | None, arguments: dict[str, Any]
) -> tuple[Dataflow, Collection]:
    if not hasattr(frame, "isStreaming"):
        refuse(frame, what="frame", expected="a DataFrame", hint="read it with spark.readStream.")
    if not callable(algorithm):
        hint = "give a function of a collection, for example ts.graphs.connected_components."
        refuse(algorithm, what="algorithm", expected="a function", hint=hint)
    flow = Dataflow(str(getattr(algorithm, "__name__", "maintain")) if name is None else name)
    records = _records(flow, "input", frame, diff)
    for argument, value in arguments.items():
        if hasattr(value, "isStreaming"):
            arguments[argument] = _records(flow, argument, value, diff if diff in value.columns else None)
    result = algorithm(records, **arguments)
    check_collection("maintain", result)
    return flow, result


def _of_query(query: str, frames: Any, diff: str | None, name: str | None) -> tuple[Dataflow, Collection]:
    tables = frames.values() if isinstance(frames, Mapping) else ()
    if not tables or not all(hasattr(one, "isStreaming") for one in tables):
        hint = "give streaming DataFrames by name: tables={'edges': spark.readStream.table('main.edges')}."
        refuse(frames, what="tables", expected="DataFrames", hint=hint)
    counted = [table for table, one in frames.items() if diff in one.columns]
    if diff is not None and not counted:
        hint = "name an integer column of the differences, or leave diff out."
        refuse(diff, what="diff", expected=f"a column of {', '.join(frames)}", hint=hint)
    flow = Dataflow("query" if name is None else name)
    streams = {table: flow.source(table, one) for table, one in frames.items()}
    collections = {table: streams[table].collection(diff=diff) for table in counted}
    views = flow.sql(f"CREATE VIEW result AS {query}", **streams | collections)
    return flow, views["result"]


def _records(flow: Dataflow, name: str, frame: DataFrame, diff: str | None) -> Collection:
    read = flow.source(name, frame)
    return read.collection(diff="diff" if diff is None and "diff" in read.schema.names else diff)
