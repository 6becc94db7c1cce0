"""Streams grouped by keys: each group is aggregated or reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from timely_spark.graph import SchemaLike, Suggests, composed, locate_errors, operator
from timely_spark.operators.aggregate import ALL, AggregateSpec, aggregated, one_group
from timely_spark.operators.expire import Per
from timely_spark.operators.group_map import group_mapped
from timely_spark.operators.rows import all_named
from timely_spark.streams import Stream


@locate_errors
class Grouped(Suggests):
    """A stream grouped by keys, to be aggregated or reduced.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("shops")
        >>> by_shop = flow.input("sales", "shop string, amount long").group_by("shop")
        >>> _ = by_shop.aggregate(total=("sum", "amount"), most=("max", "amount")).capture("out")
        >>> ts.testing.run(flow, {"sales": [[("a", 5), ("a", 2), ("b", 1)]]})["out"].rows()
        {0: [('a', 7, 5), ('b', 1, 1)]}
    """

    _suggestions = dict.fromkeys(
        ("capture", "inspect", "select", "where", "map", "join"), "aggregate(...) or reduce(...) before it"
    )

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self.stream, self.keys = stream, keys

    def aggregate(
        self,
        named: Mapping[str, AggregateSpec] | None = None,
        /,
        *,
        per: Per = "accumulated",
        expire: int | None = None,
        name: str | None = None,
        **columns: AggregateSpec,
    ) -> Stream:
        """One row per key, each of `columns` an aggregate: ``"count"``, or ``("sum", "amount")``.

        Kinds: count (of records, or of values that are not null), sum (integers as long, floats as double),
        mean (a double: the sum divided by the count), min, max, collect (all values as a sorted list). Null
        values are ignored; a key with only nulls has a null sum, mean, min, max. The last digits of a sum of
        doubles depend on the order of addition; a sum of decimals of more than 38 digits, or of integers of
        more than 64 bits, is an error when it runs, a mean's sum too; of integers the sum that is sent, not
        one of a part of them. A mapping names columns that cannot be keyword arguments:
        ``aggregate({"name": ("max", "name")})``.

        When a time is complete, the value of each key that changed at it is sent once; epochs are sent in
        order. The value is of all records up to that time, or with ``per="time"`` of that time's records.

        With `expire` the value is of the key's session: a session ends when more than `expire` epochs pass
        without a record of the key. Nothing is sent when a session ends, so a current table keeps the last
        value. For values that decrease as records age, aggregate the output of `Stream.expire`.

        **Columns:** out: the keys, then `columns`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("wordcount")
            >>> _ = (
            ...     flow.input("words", "word string")
            ...     .group_by("word")
            ...     .aggregate(count="count")
            ...     .capture("out")
            ... )
            >>> ts.testing.run(flow, {"words": [["to", "be", "to"], ["be"]]})["out"].rows()
            {0: [('be', 1), ('to', 2)], 1: [('be', 2)]}

        Raises:
            SchemaError: a column is missing; a key or compared column is nested; a kind or `per` is unknown;
                or no aggregate is given.
        """
        return aggregated(self.stream, self.keys, all_named(named, columns), per, expire=expire, name=name)

    def count(
        self,
        column: str = "count",
        *,
        per: Per = "accumulated",
        expire: int | None = None,
        name: str | None = None,
    ) -> Stream:
        """How many records each key has, as column `column`; `per` and `expire` as for `aggregate`.

        **Columns:** out: the keys, then `column` long.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("count")
            >>> _ = flow.input("words", "word string").group_by("word").count("n").capture("out")
            >>> ts.testing.run(flow, {"words": [["to", "be", "to"]]})["out"].rows()
            {0: [('be', 1), ('to', 2)]}
        """
        return aggregated(self.stream, self.keys, {column: "count"}, per, expire=expire, name=name)

    def reduce(
        self,
        function: Callable[[Any, list[Any]], Iterable[Any]],
        schema: SchemaLike,
        *,
        name: str | None = None,
    ) -> Stream:
        """Compute each key's results at each time, by a function of its records; `reduce_batches` is faster.

        The function gets the records of one time, when the time is complete (Naiad's GroupBy, section 4.2).
        For those of all times so far see `Collection.reduce`; with a state, `Stream.stateful_map`.

        Args:
            function: gets the key, a named row, and its records, named rows of the other columns, equal ones
                repeated, in no order; returns rows, without the key. It must be deterministic.
            schema: the schema of the results.

        **Columns:** out: the keys, then `schema`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("longest")
            >>> by_size = flow.input("words", "n long, word string").group_by("n")
            >>> longest = lambda key, rows: [max((row.word for row in rows), key=len)]
            >>> _ = by_size.reduce(longest, "word string").capture("out")
            >>> ts.testing.run(flow, {"words": [[(1, "a"), (1, "abc")], [(1, "ab")]]})["out"].rows()
            {0: [(1, 'abc')], 1: [(1, 'ab')]}

        Raises:
            GraphError: `function` cannot be called.
            SchemaError: a key is missing, or in `schema`.
            VertexError: at run time: the function fails, or returns other columns.
        """
        return _grouped(self.stream, "reduce", self.keys, function, schema, name=name)

    def reduce_batches(
        self, function: Callable[[pa.Table], Any], schema: SchemaLike, *, name: str | None = None
    ) -> Stream:
        """Compute the results of many keys at each time, by a function of whole batches.

        As `reduce`, but the function gets all of a worker's records of a time at once.

        Args:
            function: gets an Arrow table, grouped by key; returns a table (or pandas frame) of results, each
                with its key. A key's results must depend on its records alone.
            schema: the schema of the results, without the key.

        **Columns:** the function gets the stream's; out: the keys, then `schema`, which it returns.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("median")
            >>> rows = flow.input("rows", "k string, v double")
            >>> def median(table):
            ...     return table.to_pandas().groupby("k", as_index=False).agg(median=("v", "median"))
            >>> _ = rows.group_by("k").reduce_batches(median, "median double").capture("out")
            >>> ts.testing.run(flow, {"rows": [[("a", 1.0), ("a", 3.0), ("b", 5.0)]]})["out"].rows()
            {0: [('a', 2.0), ('b', 5.0)]}

        Raises:
            GraphError: `function` cannot be called.
            SchemaError: a key is missing, or in `schema`.
            VertexError: at run time: the function fails, or returns other columns, or keys that it did not
                get.
        """
        return _grouped(self.stream, "reduce_batches", self.keys, function, schema, name=name)


@operator(Stream)
def group_by(stream: Stream, *keys: str) -> Grouped:
    """Group by columns, to aggregate or reduce; with no columns all records are one group.

    Args:
        keys: the key columns. They are checked by the method that is called next.

    Returns:
        The groups, with the methods `aggregate`, `count`, `reduce` and `reduce_batches`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("sum")
        >>> _ = flow.input("x", "k string, v long").group_by("k").aggregate(total=("sum", "v")).capture("out")
        >>> ts.testing.run(flow, {"x": [[("a", 1), ("b", 5), ("a", 2)]]})["out"].rows()
        {0: [('a', 3), ('b', 5)]}
    """
    return Grouped(stream, keys)


@composed
def _grouped(
    stream: Stream,
    operator: str,
    keys: tuple[str, ...],
    function: Callable[..., Any],
    schema: SchemaLike,
    *,
    name: str | None,
) -> Stream:
    if keys:
        return group_mapped(operator, stream, keys, function, schema, name=name)
    return group_mapped(operator, one_group(stream), (ALL,), function, schema, hidden=(ALL,), name=name)
