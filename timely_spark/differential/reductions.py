"""Reductions: for each key something made of its records, as they have come to at each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.arranged import key_columns
from timely_spark.differential.reduce import Reduce
from timely_spark.differential.reducers import (
    Batches,
    Count,
    Extreme,
    Logic,
    PerKey,
    Sum,
    SumOfFractions,
    Threshold,
    TopK,
    present,
)
from timely_spark.differential.trace import DIFF
from timely_spark.errors import SchemaError
from timely_spark.graph import (
    Partition,
    SchemaLike,
    as_schema,
    caller,
    check_columns,
    check_given,
    composed,
    describe,
    names,
)
from timely_spark.operators.aggregate import ALL
from timely_spark.operators.rows import check_function, computed

if TYPE_CHECKING:
    from timely_spark.differential.collections import Collection

Columns = str | Sequence[str] | None


def _reduced(
    operator: str,
    collection: Collection,
    logic: Logic,
    fields: Sequence[pa.Field],
    *,
    name: str | None,
    detail: str = "",
    **parameters: Any,
) -> Collection:
    shared = collection.keys == logic.keys
    stream = collection.index if shared else collection.stream
    keys = [collection.schema.field(key) for key in logic.keys]
    return collection.like(
        stream.then(
            operator,
            [pa.schema([*keys, *fields, pa.field(DIFF, pa.int64())])],
            name=name,
            vertex=Reduce(logic, shared=shared),
            requires=[Partition(logic.keys)],
            guarantees=logic.keys,
            detail=detail,
            parameters={"keys": list(logic.keys), **parameters},
        )[0],
        once=True,
    )


def _grouped(
    operator: str, collection: Collection, keys: Columns, value: str | None, *, comparable: bool = True
) -> tuple[Collection, tuple[str, ...]]:
    """The collection, its keys checked: those given, those it is arranged by, or one for all records."""
    listed = names(operator, keys) if keys is not None else (collection.keys or ())
    if listed:
        listed = key_columns(operator, collection.schema, listed)
    if value is not None:
        check_columns(operator, collection.schema, [value], keys=comparable)
        if value in listed:
            msg = f"{operator} ({caller()}): {value!r} is a key and the value. Hint: take it out of keys."
            raise SchemaError(msg)
    if not listed:
        columns = {ALL: pc.scalar(0), DIFF: DIFF}
        whole = computed(collection.stream, *collection.schema.names, columns, own=(ALL,))
        return collection.like(whole), (ALL,)
    return collection, listed


def _plain(made: Collection) -> Collection:
    """Without the key that stands for all records."""
    names = made.schema.names
    return made.select(*(column for column in names if column != ALL)) if ALL in names else made


@composed
def count(
    collection: Collection, column: str = "count", *, keys: Columns = None, name: str | None = None
) -> Collection:
    """How many records each key has; a key without any has no row.

    Args:
        collection: any.
        column: what the count is called.
        keys: the key columns; by default those it is arranged by, or else all records are counted together.
        name: the step's name.

    **Columns:** out: `keys`, then `column` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("count")
        >>> words = flow.input("words", "word string, diff long").collection(diff="diff")
        >>> _ = words.count(keys="word").changes().capture("out")
        >>> ts.testing.run(flow, {"words": [[("to", 1), ("be", 1), ("to", 1)], [("to", -1)]]})["out"].rows()
        {0: [('be', 1, 1), ('to', 2, 1)], 1: [('to', 1, 1), ('to', 2, -1)]}

    Raises:
        SchemaError: a key is not there, or nested, or named twice; or `column` is a key.
    """
    collection, listed = _grouped("count", collection, keys, None)
    _check_free("count", column, listed)
    return _plain(
        _reduced("count", collection, Count(listed, column), [pa.field(column, pa.int64())], name=name)
    )


@composed
def sum(collection: Collection, value: str, *, keys: Columns = None, name: str | None = None) -> Collection:
    """The sum of a column per key: whole numbers as long, others as double or decimal. Nulls are left out.

    Sums of doubles are those of the values that are there, added in an order of theirs: the same whatever
    came and went before, with any number of workers. A sum of longs that is too large wraps around.
    Of records that were taken away more often than they came, whole numbers count negatively, others not.

    Args:
        collection: any.
        value: the column.
        keys: the key columns; by default those it is arranged by, or else all records are one group.
        name: the step's name.

    **Columns:** out: `keys`, then `value`; null where all values are.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("sum")
        >>> sales = flow.input("sales", "shop string, amount long, diff long").collection(diff="diff")
        >>> _ = sales.sum("amount", keys="shop").changes().capture("out")
        >>> ts.testing.run(flow, {"sales": [[("a", 5, 1), ("a", 2, 2)], [("a", 2, -1)]]})["out"].rows()
        {0: [('a', 9, 1)], 1: [('a', 7, 1), ('a', 9, -1)]}

    Raises:
        SchemaError: a key is not there, or nested, or named twice; `value` is not
            there, or a key, or no number.
    """
    collection, listed = _grouped("sum", collection, keys, value)
    kind = collection.schema.field(value).type
    logic: Logic
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        logic, kind = Sum(listed, value), pa.int64()
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        kind = pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) else pa.float64()
        logic = SumOfFractions(listed, value, kind)
    else:
        msg = f"sum ({caller()}): column {value!r} is {kind}. Hint: sum numbers."
        raise SchemaError(msg)
    made = _reduced("sum", collection, logic, [pa.field(value, kind)], name=name, detail=value, value=value)
    return _plain(made)


@composed
def min(collection: Collection, value: str, *, keys: Columns = None, name: str | None = None) -> Collection:
    """The least value of a column per key. Null and NaN are no values; a key without any has no row.

    Args:
        collection: any.
        value: the column.
        keys: the key columns; by default those it is arranged by, or else all records are one group.
        name: the step's name.

    **Columns:** out: `keys`, then `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("min")
        >>> bids = flow.input("bids", "item string, price long, diff long").collection(diff="diff")
        >>> _ = bids.min("price", keys="item").changes().capture("out")
        >>> ts.testing.run(flow, {"bids": [[("a", 5, 1), ("a", 2, 1)], [("a", 2, -1)]]})["out"].rows()
        {0: [('a', 2, 1)], 1: [('a', 2, -1), ('a', 5, 1)]}

    Raises:
        SchemaError: a key is not there, or nested, or named twice; `value` is not
            there, or a key, or nested.
    """
    return _extreme("min", collection, value, keys, name)


@composed
def max(collection: Collection, value: str, *, keys: Columns = None, name: str | None = None) -> Collection:
    """The greatest value of a column per key. Null and NaN are no values; a key without any has no row.

    Args:
        collection: any.
        value: the column.
        keys: the key columns; by default those it is arranged by, or else all records are one group.
        name: the step's name.

    **Columns:** out: `keys`, then `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("max")
        >>> bids = flow.input("bids", "item string, price long").collection()
        >>> _ = bids.max("price", keys="item").changes().capture("out")
        >>> ts.testing.run(flow, {"bids": [[("a", 5), ("a", 2)]]})["out"].rows()
        {0: [('a', 5, 1)]}

    Raises:
        SchemaError: a key is not there, or nested, or named twice; `value` is not
            there, or a key, or nested.
    """
    return _extreme("max", collection, value, keys, name)


def _extreme(
    operator: str, collection: Collection, value: str, keys: Columns, name: str | None
) -> Collection:
    collection, listed = _grouped(operator, collection, keys, value)
    logic = Extreme(listed, value, greatest=operator == "max")
    fields = [collection.schema.field(value)]
    return _plain(_reduced(operator, collection, logic, fields, name=name, detail=value, value=value))


@composed
def top_k(
    collection: Collection,
    k: int,
    value: str,
    *,
    keys: Columns = None,
    descending: bool = True,
    name: str | None = None,
) -> Collection:
    """The first `k` records of each key by a column; ties go by the other columns, ascending.

    A record that is there several times takes as many places. Nulls come last.

    Args:
        collection: any.
        k: how many at most.
        value: the column to go by.
        keys: the key columns; by default those it is arranged by, or else all records are one group.
        descending: the greatest first.
        name: the step's name.

    **Columns:** out: `keys`, then the others.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("top")
        >>> scores = flow.input("scores", "game long, who string, points long").collection()
        >>> _ = scores.top_k(1, "points", keys="game").changes().capture("out")
        >>> ts.testing.run(flow, {"scores": [[(1, "a", 5), (1, "b", 7)], [(1, "c", 9)]]})["out"].rows()
        {0: [(1, 'b', 7, 1)], 1: [(1, 'b', 7, -1), (1, 'c', 9, 1)]}

    Raises:
        SchemaError: `k` is no whole number of at least 1; a key is not there, or named twice; `value` is not
            there, or a key; or a column is nested.
    """
    if type(k) is not int or k < 1:
        msg = f"top_k ({caller()}): k={k!r}. Hint: give a whole number of at least 1."
        raise SchemaError(msg)
    collection, listed = _grouped("top_k", collection, keys, value)
    check_columns("top_k", collection.schema, collection.schema.names, keys=True)
    fields = [field for field in collection.schema if field.name not in listed]
    logic = TopK(listed, k, value, descending=descending)
    said = {"k": k, "value": value, "descending": descending}
    return _plain(_reduced("top_k", collection, logic, fields, name=name, detail=f"{k} by {value}", **said))


@composed
def distinct(collection: Collection, *, name: str | None = None) -> Collection:
    """Each record that is there once, however often it is.

    **Columns:** out as in; none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("distinct")
        >>> numbers = flow.input("x", "n long, diff long").collection(diff="diff")
        >>> _ = numbers.distinct().changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[(7, 1), (7, 1)], [(7, -1)], [(7, -1)]]})["out"].rows()
        {0: [(7, 1)], 1: [], 2: [(7, -1)]}

    Raises:
        SchemaError: a column is nested.
    """
    return _threshold("distinct", collection, present, name)


@composed
def threshold(
    collection: Collection, function: Callable[[Any], Any], *, name: str | None = None
) -> Collection:
    """Each record as often as a function of its multiplicity says.

    Args:
        collection: any.
        function: gets the multiplicities of many records, a numpy array of whole numbers that are not 0;
            returns as many numbers (or booleans). Of 0 it is taken to give 0.
        name: the step's name.

    **Columns:** out as in; none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("threshold")
        >>> numbers = flow.input("x", "n long").collection()
        >>> _ = numbers.threshold(lambda counts: counts >= 2).changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[7, 8], [7]]})["out"].rows()
        {0: [], 1: [(7, 1)]}

    Raises:
        GraphError: `function` is none.
        SchemaError: a column is nested.
        VertexError: when it runs: the function gives no whole numbers, or not as many as it got.
    """
    check_function("threshold", function)
    return _threshold("threshold", collection, function, name)


def _threshold(
    operator: str, collection: Collection, function: Callable[[Any], Any], name: str | None
) -> Collection:
    keys = tuple(collection.schema.names)
    return _reduced(operator, collection, Threshold(keys, function), [], name=name)


@composed
def reduce(
    collection: Collection,
    function: Callable[[Any, list[Any]], Iterable[Any]],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Collection:
    """Make records of each key's records, by a function of one key: handy, and slower than `reduce_batches`.

    The function gets each *distinct* record of the key once, with how often it is there as `count`: the
    number of records is ``sum(row.count for row in rows)``, not ``len(rows)``.

    Args:
        collection: any.
        function: gets the key, a named row, and its distinct records, named rows of the other columns and
            `count` (more than 0), in no order; returns rows, without the key. It must depend on nothing else.
        schema: of what the function returns.
        keys: the key columns.
        name: the step's name.

    **Columns:** out: `keys`, then `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reduce")
        >>> words = flow.input("words", "n long, word string").collection()
        >>> longest = lambda key, records: [sorted((r.word for r in records), key=len)[-1]]
        >>> _ = words.reduce(longest, "word string", keys="n").changes().capture("out")
        >>> ts.testing.run(flow, {"words": [[(1, "a"), (1, "abc")], [(1, "abcd")]]})["out"].rows()
        {0: [(1, 'abc', 1)], 1: [(1, 'abc', -1), (1, 'abcd', 1)]}

    Raises:
        GraphError: `function` is none.
        SchemaError: there are no keys, or one is not there, or named twice, or in `schema`; a column is
            nested, or called ``count``.
        VertexError: when it runs: the function gives rows of other columns.
    """
    check_function("reduce", function)
    listed, made = _general("reduce", collection, schema, keys)
    return _reduced("reduce", collection, PerKey(listed, function, made), list(made), name=name)


@composed
def reduce_batches(
    collection: Collection,
    function: Callable[[pa.Table], Any],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Collection:
    """Make records of the records of many keys at once, by a function of whole batches.

    Args:
        collection: any.
        function: gets an Arrow table with all distinct records of some keys, those of a key together, each
            with its `count`; returns a table (or pandas frame) of results, each with its key. A key's results
            must depend on its records alone.
        schema: of the results, without the key.
        keys: the key columns.
        name: the step's name.

    **Columns:** the function gets the collection's, then `count` long, how often the record is there (more
    than 0); it returns `keys`, then `schema`, which is also what comes out.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("median")
        >>> rows = flow.input("rows", "k string, v double").collection()
        >>> def median(table):
        ...     return table.to_pandas().groupby("k", as_index=False).agg(median=("v", "median"))
        >>> _ = rows.reduce_batches(median, "median double", keys="k").changes().capture("out")
        >>> ts.testing.run(flow, {"rows": [[("a", 1.0), ("a", 3.0), ("b", 5.0)]]})["out"].rows()
        {0: [('a', 2.0, 1), ('b', 5.0, 1)]}

    Raises:
        GraphError: `function` is none.
        SchemaError: there are no keys, or one is not there, or named twice, or in `schema`; a column is
            nested, or called ``count``.
        VertexError: when it runs: the function gives other columns, or keys that it did not get.
    """
    check_function("reduce_batches", function)
    listed, made = _general("reduce_batches", collection, schema, keys)
    full = pa.schema([*(collection.schema.field(key) for key in listed), *made])
    return _reduced("reduce_batches", collection, Batches(listed, function, full), list(made), name=name)


def _general(
    operator: str, collection: Collection, schema: SchemaLike, keys: str | Sequence[str]
) -> tuple[tuple[str, ...], pa.Schema]:
    listed, made = key_columns(operator, collection.schema, keys), as_schema(schema)
    check_columns(operator, collection.schema, collection.schema.names, keys=True)
    check_columns(operator, made, made.names, keys=True)
    for column in made.names:
        _check_free(operator, column, listed)
    if "count" in collection.schema.names:
        msg = (
            f"{operator} ({caller()}): the collection has a column 'count' already "
            f"({describe(collection.schema)}). "
            "Hint: rename it, as the function gets multiplicities by that name."
        )
        raise SchemaError(msg)
    return listed, made


def _check_free(operator: str, column: Any, keys: Sequence[str]) -> None:
    if isinstance(column, str):
        check_given(operator, caller(), [column])
    if column in keys or not isinstance(column, str):
        why = "is a key" if column in keys else "is no name for a result"
        msg = f"{operator} ({caller()}): column {column!r} {why}. Hint: give the result another name."
        raise SchemaError(msg)
