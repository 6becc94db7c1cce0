"""Reductions: for each key a function of its accumulated records, at each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection, Columns
from timely_spark.differential.reduce import Reduce
from timely_spark.differential.reducers import (
    Batches,
    Count,
    Extreme,
    Logic,
    Mean,
    PerKey,
    Sum,
    Threshold,
    TopK,
    presence,
)
from timely_spark.differential.skew import SALT, Salt, named_keys
from timely_spark.differential.trace import DIFF
from timely_spark.errors import SchemaError
from timely_spark.graph import (
    SchemaLike,
    Skew,
    as_schema,
    caller,
    check_columns,
    check_reserved,
    describe,
    integer,
    names,
    operator,
)
from timely_spark.operators.aggregate import ALL
from timely_spark.operators.rows import check_function, computed, key_columns, keys_and_value


def reduced(
    operator: str,
    collection: Collection,
    logic: Logic,
    fields: Sequence[pa.Field],
    hot: Skew | None = None,
    /,
    *,
    name: str | None,
    detail: str = "",
    **parameters: Any,
) -> Collection:
    """A reduction of a collection by the keys of `logic`, with the result columns `fields`.

    Args:
        operator: the operator's label, shown by explain; the step is named after it without a `name`.
        logic: computes the results.
        fields: the columns of the results.
        hot: hot keys: the collection has the results of parts of their records; None means no key is hot.
        detail: more of it, shown by explain.
        parameters: what the results depend on: where one changes, a restart does not take the step's state.

    **Columns:** out: the keys, then `fields`.

    Example: see `Logic`.
    """
    shared = collection.keys == logic.keys and collection.skew is None
    stream = collection.index if shared else collection.stream
    keys = [collection.schema.field(key) for key in logic.keys]
    tells = not collection.signed and (operator == "distinct" or not logic.signed)
    result = collection.like(
        stream.then(
            operator,
            [pa.schema([*keys, *fields, pa.field(DIFF, pa.int64())])],
            name=name,
            vertex=Reduce(logic, shared=shared, tells_negative=tells, skew=hot),
            keyed=logic.keys,
            detail=detail,
            parameters={"keys": list(logic.keys), **parameters},
        )[0],
        once=True,
    )
    result.signed = operator == "threshold"  # a function may return negative multiplicities
    result.checks_removals = False
    return result


def _grouped(
    operator: str, collection: Collection, keys: Columns, value: str | None
) -> tuple[Collection, tuple[str, ...]]:
    """The collection and its keys: those given, those of its arrangement, or one constant key."""
    listed = names(operator, keys) if keys is not None else (collection.keys or ())
    if listed:
        listed = key_columns(operator, collection.schema, listed)
    if value is not None:
        keys_and_value(operator, collection.schema, listed, value)
    if not listed:
        return with_one_key(collection), (ALL,)
    return collection, listed


def with_one_key(collection: Collection) -> Collection:
    """The records with a constant key `ALL`."""
    columns = {ALL: pc.scalar(0), DIFF: DIFF}
    return collection.like(computed(collection.stream, *collection.schema.names, columns, own=(ALL,)))


def _plain(result: Collection) -> Collection:
    """The result without the constant key."""
    names = result.schema.names
    return result.select(*(column for column in names if column != ALL)) if ALL in names else result


def _in_parts(
    operator: str,
    collection: Collection,
    logic: Logic,
    fields: Sequence[pa.Field],
    skew: Iterable[Any] | None,
    *,
    name: str | None,
    **options: Any,
) -> Collection:
    """A reduction whose result for a key is that of the results for parts of the key's records.

    The records of hot keys are reduced in parts on all workers first.
    """
    keys, columns = logic.keys, [*logic.keys, *(field.name for field in fields)]
    spread = [field.name for field in fields]
    hot = named_keys(operator, collection.schema, keys, skew, spread)
    if hot is None and collection.keys == keys and collection.skew is not None:
        hot = replace(collection.skew, spread=tuple(spread))
    if hot is not None:
        schema = pa.schema([collection.schema.field(column) for column in columns])
        changes = collection.select(*columns).stream
        salted = [schema.append(pa.field(SALT, pa.int64())), schema]
        parts, others = changes.then(
            "salt",
            [pa.schema([*one, pa.field(DIFF, pa.int64())]) for one in salted],
            own=(SALT,),
            vertex=Salt(keys, hot),
            detail=f"hot keys ({hot.shown})",
        )
        options["skew"] = hot.shown  # which decides where a record is stored
        first = replace(logic, keys=(SALT, *keys))
        best = reduced(operator, collection.like(parts), first, fields, name=None, **options)
        collection = collection.like(others).concat(best.select(*columns))
    return reduced(operator, collection, logic, fields, hot, name=name, **options)


@operator(Collection)
def count(
    collection: Collection, column: str = "count", *, keys: Columns = None, name: str | None = None
) -> Collection:
    """The number of records of each key; a key without records has no row.

    Args:
        column: the name of the count.
        keys: the key columns; by default those of its arrangement, or else all records are one group.

    **Columns:** out: `keys`, then `column` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("count")
        >>> words = flow.input("words", "word string, diff long").collection(diff="diff")
        >>> _ = words.count(keys="word").changes().capture("out")
        >>> ts.testing.run(flow, {"words": [[("to", 1), ("be", 1), ("to", 1)], [("to", -1)]]})["out"].rows()
        {0: [('be', 1, 1), ('to', 2, 1)], 1: [('to', 1, 1), ('to', 2, -1)]}

    Raises:
        SchemaError: a key is missing, or named twice; or `column` is a key.
    """
    collection, listed = _grouped("count", collection, keys, None)
    _check_free("count", column, listed)
    return _plain(
        reduced("count", collection, Count(listed, column), [pa.field(column, pa.int64())], name=name)
    )


@operator(Collection)
def sum(collection: Collection, value: str, *, keys: Columns = None, name: str | None = None) -> Collection:
    """The sum of a column per key: integers as long, others as double or decimal. Nulls are ignored.

    Sums are exact; one of doubles is rounded once, at its end. So a sum does not depend on past changes, on
    an order or on the number of workers, and values are not stored. A sum of longs beyond 64 bits, or of
    decimals beyond 38 digits, is an error when it runs. So is the product of a value and its multiplicity,
    if the product is 2^62 or more and the multiplicity 2^31 or more. Records of negative multiplicity count
    negatively, so ``a.concat(b.negate()).sum("v", keys="k")`` is a balance, also where b has more records.

    **Columns:** out: `keys` (as for `count`), then `value`; null where all values are. A key has a row unless
    its count, that of its values and their sum are all 0.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("sum")
        >>> sales = flow.input("sales", "shop string, amount long, diff long").collection(diff="diff")
        >>> _ = sales.sum("amount", keys="shop").changes().capture("out")
        >>> ts.testing.run(flow, {"sales": [[("a", 5, 1), ("a", 2, 2)], [("a", 2, -1)]]})["out"].rows()
        {0: [('a', 9, 1)], 1: [('a', 7, 1), ('a', 9, -1)]}

    Raises:
        SchemaError: a key is missing, or named twice; `value` is missing, a key, or not a number.
    """
    collection, listed = _grouped("sum", collection, keys, value)
    logic = _total("sum", collection, listed, value)
    fields = [pa.field(value, logic.kind)]
    return _plain(reduced("sum", collection, logic, fields, name=name, detail=value, value=value))


def _total(
    operator: str,
    collection: Collection,
    keys: tuple[str, ...],
    value: str,
    kind: pa.DataType | None = None,
) -> Sum:
    """The logic of a sum, which is of a type: by default long, or the widest decimal, or double."""
    of = collection.schema.field(value).type
    if pa.types.is_floating(of):
        return Sum(keys, value, pa.float64())
    if pa.types.is_integer(of) or pa.types.is_boolean(of):
        return Sum(keys, value, kind or pa.int64())
    if pa.types.is_decimal(of):
        return Sum(keys, value, kind or pa.decimal128(38, of.scale), of.scale)
    msg = f"{operator}: column {value!r} is {of}"
    raise SchemaError(msg, where=caller(), hint="give a column of numbers.")


@operator(Collection)
def mean(collection: Collection, value: str, *, keys: Columns = None, name: str | None = None) -> Collection:
    """The mean of a column per key, as double. Nulls are ignored.

    It is the exact sum divided by the number of valid values, so it does not depend on past changes or on the
    number of workers. The sum of longs may be larger than a long; products with multiplicities are limited
    as in `sum`.

    **Columns:** out: `keys` (as for `count`), then `value` double; null where there are 0 valid values.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("mean")
        >>> sales = flow.input("sales", "shop string, amount long, diff long").collection(diff="diff")
        >>> _ = sales.mean("amount", keys="shop").changes().capture("out")
        >>> ts.testing.run(flow, {"sales": [[("a", 5, 1), ("a", 2, 2)], [("a", 5, -1)]]})["out"].rows()
        {0: [('a', 3.0, 1)], 1: [('a', 2.0, 1), ('a', 3.0, -1)]}

    Raises:
        SchemaError: a key is missing, or named twice; `value` is missing, a key, or not a number.
    """
    collection, listed = _grouped("mean", collection, keys, value)
    logic = Mean(listed, _total("mean", collection, listed, value, pa.float64()))
    fields = [pa.field(value, pa.float64())]
    return _plain(reduced("mean", collection, logic, fields, name=name, detail=value, value=value))


@operator(Collection)
def min(
    collection: Collection,
    value: str,
    *,
    keys: Columns = None,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """The least value of a column per key, ignoring null and NaN; a key without values has no row.

    Args:
        value: the column.
        keys: the key columns, as for `count`.
        skew: keys that very many records have, of several columns tuples: all workers find the least values
            of parts of these records, and one worker that of the parts. An epoch takes an exchange more. With
            "auto" the run finds such keys, as for `arrange`.

    **Columns:** out: `keys` (as for `count`), then `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("min")
        >>> bids = flow.input("bids", "item string, price long, diff long").collection(diff="diff")
        >>> _ = bids.min("price", keys="item").changes().capture("out")
        >>> ts.testing.run(flow, {"bids": [[("a", 5, 1), ("a", 2, 1)], [("a", 2, -1)]]})["out"].rows()
        {0: [('a', 2, 1)], 1: [('a', 2, -1), ('a', 5, 1)]}

    Raises:
        SchemaError: a key is missing, or named twice; `value` is missing, a key, or nested; or `skew`
            lists no keys.
    """
    return _extreme("min", collection, value, keys, skew=skew, name=name)


@operator(Collection)
def max(
    collection: Collection,
    value: str,
    *,
    keys: Columns = None,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """The greatest value of a column per key, ignoring null and NaN; a key without values has no row.

    Args:
        value: the column.
        keys: the key columns, as for `count`.
        skew: hot keys, as for `min`.

    **Columns:** out: `keys` (as for `count`), then `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("max")
        >>> bids = flow.input("bids", "item string, price long").collection()
        >>> _ = bids.max("price", keys="item").changes().capture("out")
        >>> ts.testing.run(flow, {"bids": [[("a", 5), ("a", 2)]]})["out"].rows()
        {0: [('a', 5, 1)]}

    Raises:
        SchemaError: a key is missing, or named twice; `value` is missing, a key, or nested; or `skew`
            lists no keys.
    """
    return _extreme("max", collection, value, keys, skew=skew, name=name)


def _extreme(
    operator: str,
    collection: Collection,
    value: str,
    keys: Columns,
    *,
    skew: Iterable[Any] | None,
    name: str | None,
) -> Collection:
    collection, listed = _grouped(operator, collection, keys, value)
    logic = Extreme(listed, value, greatest=operator == "max")
    fields = [collection.schema.field(value)]
    return _plain(_in_parts(operator, collection, logic, fields, skew, name=name, detail=value, value=value))


@operator(Collection)
def top_k(
    collection: Collection,
    k: int,
    value: str,
    *,
    keys: Columns = None,
    descending: bool = True,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """The first `k` records of each key by a column; ties are ordered by the other columns, ascending.

    A record of multiplicity n takes n places. NaN come last, then nulls.

    Args:
        keys: the key columns, as for `count`.
        skew: hot keys, as for `min`.

    **Columns:** out: `keys`, then the others.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("top")
        >>> scores = flow.input("scores", "game long, who string, points long").collection()
        >>> _ = scores.top_k(1, "points", keys="game").changes().capture("out")
        >>> ts.testing.run(flow, {"scores": [[(1, "a", 5), (1, "b", 7)], [(1, "c", 9)]]})["out"].rows()
        {0: [(1, 'b', 7, 1)], 1: [(1, 'b', 7, -1), (1, 'c', 9, 1)]}

    Raises:
        SchemaError: `k` is not an integer of at least 1; a key is missing or named twice; `value` is missing
            or a key; a column is nested; or `skew` lists no keys.
    """
    k = integer("k", k, step="top_k", error=SchemaError)
    collection, listed = _grouped("top_k", collection, keys, value)
    check_columns("top_k", collection.schema, collection.schema.names, keys=True)
    fields = [field for field in collection.schema if field.name not in listed]
    logic = TopK(listed, k, value, descending=descending)
    arguments = {"k": k, "value": value, "descending": descending}
    detail = f"{k} by {value}"
    return _plain(_in_parts("top_k", collection, logic, fields, skew, name=name, detail=detail, **arguments))


@operator(Collection)
def distinct(collection: Collection, *, name: str | None = None) -> Collection:
    """Each present record once.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("distinct")
        >>> numbers = flow.input("x", "n long, diff long").collection(diff="diff")
        >>> _ = numbers.distinct().changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[(7, 1), (7, 1)], [(7, -1)], [(7, -1)]]})["out"].rows()
        {0: [(7, 1)], 1: [], 2: [(7, -1)]}

    Raises:
        SchemaError: a column has no equality, such as an interval.
    """
    return _threshold("distinct", collection, presence, name)


@operator(Collection)
def threshold(
    collection: Collection, function: Callable[[Any], Any], *, name: str | None = None
) -> Collection:
    """Replace each record's multiplicity by a function of it.

    Args:
        function: gets the multiplicities of many records, a numpy array of nonzero integers; returns as many
            integers (or booleans). It is not called for 0, and must mean 0 there.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("threshold")
        >>> numbers = flow.input("x", "n long").collection()
        >>> _ = numbers.threshold(lambda counts: counts >= 2).changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[7, 8], [7]]})["out"].rows()
        {0: [], 1: [(7, 1)]}

    Raises:
        GraphError: `function` cannot be called.
        SchemaError: a column has no equality, such as an interval.
        VertexError: at run time: the function returns no integers, or another number of them.
    """
    check_function("threshold", function, "counts")
    return _threshold("threshold", collection, function, name)


def _threshold(
    operator: str, collection: Collection, function: Callable[[Any], Any], name: str | None
) -> Collection:
    keys = tuple(collection.schema.names)
    return reduced(operator, collection, Threshold(keys, function), [], name=name)


@operator(Collection)
def reduce(
    collection: Collection,
    function: Callable[[Any, list[Any]], Iterable[Any]],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Collection:
    """Compute each key's results, by a function of one key's records: slower than `reduce_batches`.

    The function gets a record as often as the collection has it, as in `Stream.group_by(...).reduce`.

    Args:
        function: gets the key, a named row, and its records, named rows of the other columns, equal ones
            beside each other, else in no order; returns rows, without the key. It must be deterministic.
        schema: the schema of the results.
        keys: the key columns.

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
        GraphError: `function` cannot be called.
        SchemaError: there are no keys, or one is missing, named twice, or in `schema`; a column is nested.
        VertexError: at run time: the function returns rows of other columns, or a key has more than 2^26
            records.
    """
    check_function("reduce", function, "key", "rows")
    listed, results = _general("reduce", collection, schema, keys)
    return reduced("reduce", collection, PerKey(listed, function, results), list(results), name=name)


@operator(Collection)
def reduce_batches(
    collection: Collection,
    function: Callable[[pa.Table], Any],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Collection:
    """Compute the results of many keys at once, by a function of whole batches.

    The function gets each *distinct* record once, with its number in the column `count`. `reduce` gets a
    record as often as the collection has it.

    Args:
        function: gets an Arrow table with all distinct records of some keys, grouped by key, each with its
            `count`; returns a table (or pandas frame) of results, each with its key. A key's results must
            depend on its records alone.
        schema: the schema of the results, without the key.
        keys: the key columns.

    **Columns:** the function gets the collection's, then `count` long, the record's multiplicity (more than
    0); out: `keys`, then `schema`, which it returns.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("mean")
        >>> rows = flow.input("rows", "k string, v double").collection()
        >>> def mean(table):
        ...     each = table.to_pandas().eval("v = v * count").groupby("k")[["v", "count"]].sum()
        ...     return each.eval("mean = v / count")[["mean"]].reset_index()
        >>> _ = rows.reduce_batches(mean, "mean double", keys="k").changes().capture("out")
        >>> ts.testing.run(flow, {"rows": [[("a", 1.0), ("a", 1.0), ("a", 4.0), ("b", 5.0)]]})["out"].rows()
        {0: [('a', 2.0, 1), ('b', 5.0, 1)]}

    Raises:
        GraphError: `function` cannot be called.
        SchemaError: there are no keys, or one is missing, named twice, or in `schema`; a column is nested, or
            called ``count``.
        VertexError: at run time: the function returns other columns, or keys that it did not get.
    """
    check_function("reduce_batches", function, "table")
    listed, results = _general("reduce_batches", collection, schema, keys)
    full = pa.schema([*(collection.schema.field(key) for key in listed), *results])
    return reduced("reduce_batches", collection, Batches(listed, function, full), list(results), name=name)


def _general(
    operator: str, collection: Collection, schema: SchemaLike, keys: str | Sequence[str]
) -> tuple[tuple[str, ...], pa.Schema]:
    listed, results = key_columns(operator, collection.schema, keys), as_schema(schema)
    check_columns(operator, collection.schema, collection.schema.names, keys=True)
    check_columns(operator, results, results.names, keys=True)
    for column in results.names:
        _check_free(operator, column, listed)
    if operator == "reduce_batches" and "count" in collection.schema.names:
        msg = f"{operator}: the collection has a column 'count' already ({describe(collection.schema)})"
        hint = "rename it: the function gets multiplicities in a column of that name."
        raise SchemaError(msg, where=caller(), hint=hint)
    return listed, results


def _check_free(operator: str, column: Any, keys: Sequence[str]) -> None:
    if isinstance(column, str):
        check_reserved(operator, caller(), [column])
    if column in keys or not isinstance(column, str):
        why = "is a key" if column in keys else "is not a name for a result"
        msg = f"{operator}: column {column!r} {why}"
        raise SchemaError(msg, where=caller(), hint="give the result another name.")
