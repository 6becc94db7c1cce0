"""Linear operators, which treat each change independently and keep no state; and `consolidate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential import trace
from timely_spark.differential.collections import Collection, check_product_order
from timely_spark.differential.consolidation import Consolidate, consolidated, lasting, transient
from timely_spark.differential.trace import DIFF
from timely_spark.errors import ExpressionError, SchemaError
from timely_spark.graph import (
    Expression,
    SchemaLike,
    SqlExpression,
    Stateless,
    as_schema,
    as_table,
    caller,
    check_reserved,
    describe,
    never_fails,
    operator,
)
from timely_spark.operators.expect import Action, expected
from timely_spark.operators.retractions import check_changes, check_no_retractions
from timely_spark.operators.rows import (
    check_function,
    computed,
    each_record,
    map_records,
    rows_of,
    table_of,
)
from timely_spark.operators.sql import expression, named_expressions
from timely_spark.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping


class Failing(Stateless):
    """The records for which expressions have values, and the others."""

    def __init__(self, expressions: Sequence[SqlExpression]) -> None:
        self.expressions = tuple(expressions)

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """Nearly always all records have values; if one fails, try each half by itself."""
        try:
            for one in self.expressions:
                one.evaluate(batch)
        except ExpressionError:
            if batch.num_rows == 1:
                return batch.slice(0, 0), batch
            middle = batch.num_rows // 2
            halves = self.apply(batch.slice(0, middle)), self.apply(batch.slice(middle))
            return tuple(pa.concat_tables(both) for both in zip(*halves, strict=True))
        return batch, batch.slice(0, 0)


def may_fail(collection: Collection, expressions: Sequence[Any]) -> Collection:
    """The collection for expressions that may fail: they are not evaluated on transient records.

    What may be transient is exchanged and consolidated only where an expression fails; for functions, all is.
    """
    if not expressions or collection.lasting is None:
        return collection
    if not all(isinstance(one, SqlExpression) for one in expressions):
        return lasting(collection)
    schema = collection.stream.schema
    fine, failing = collection.stream.then(
        "failing",
        [schema, schema],
        vertex=Failing(expressions),
        keeps={name: name for name in schema.names},
        own=(DIFF,),
    )
    return collection.like(fine).concat(lasting(collection.like(failing)))


class Weigh(Stateless):
    """Turn a column of differences into `DIFF`."""

    one_each = True

    def __init__(self, column: str) -> None:
        self.column = column

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> set[str]:
        return {*columns, self.column}

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        diffs = batch.column(self.column)
        check_changes(batch, self.column)
        extremes = [abs(one) for one in pc.min_max(diffs).as_py().values() if one is not None]
        if max(extremes, default=0) >= trace.MOST:  # of the least long even the negation is itself
            msg = f"a record changes its multiplicity by {max(extremes)}, in {self.column!r}"
            raise SchemaError(msg, hint="give changes between -2 ** 62 and 2 ** 62.")
        return (batch.drop_columns([self.column]).append_column(DIFF, diffs.cast(pa.int64())),)


class _Each(Stateless):
    """Apply a function of whole batches that returns one record for each."""

    def __init__(self, function: Callable[[pa.Table], Any], schema: pa.Schema) -> None:
        self.function, self.schema = function, schema

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        results = table_of(self.function, self.function(batch.drop_columns([DIFF])), self.schema)
        if results.num_rows != batch.num_rows:
            msg = f"the function returned {results.num_rows} records for {batch.num_rows}"
            raise SchemaError(msg, hint="return one record for each, or use flat_map, for any number.")
        return (results.append_column(DIFF, batch.column(DIFF)),)


class _Many(Stateless):
    """Apply a function of one record that returns any number of records."""

    def __init__(self, function: Callable[[Any], Iterable[Any]], schema: pa.Schema) -> None:
        self.function, self.schema = function, schema

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        results = map_records(
            lambda row: rows_of(self.function, self.function(row)), batch.drop_columns([DIFF])
        )
        sources = np.repeat(np.arange(batch.num_rows), [len(one) for one in results])
        table = as_table(list(chain.from_iterable(results)), self.schema)
        return (table.append_column(DIFF, batch.column(DIFF).take(pa.array(sources))),)


def changed_by(stream: Stream, diff: str | None, *, name: str | None = None) -> Stream:
    """A stream's records as changes with `DIFF`: 1 for each, or column `diff`."""
    if diff is None:
        return computed(stream, *stream.schema.names, {DIFF: pc.scalar(1)}, own=(DIFF,), name=name)
    if diff not in stream.schema.names or not pa.types.is_integer(stream.schema.field(diff).type):
        msg = f"collection: diff={diff!r}; {stream.name!r} has ({describe(stream.schema)})"
        hint = "name a column of integers, or leave diff out to count each record once."
        raise SchemaError(msg, where=caller(), hint=hint)
    fields = [field for field in stream.schema if field.name != diff]
    return stream.then(
        "collection",
        [pa.schema([*fields, pa.field(DIFF, pa.int64())])],
        name=name,
        own=(DIFF,),
        vertex=Weigh(diff),
        keeps={field.name: field.name for field in fields},
        detail=diff,
        parameters={"diff": diff},
    )[0]


@operator(Stream)
def collection(stream: Stream, diff: str | None = None, *, name: str | None = None) -> Collection:
    """A stream's records as changes of a collection: each adds 1 to its record's multiplicity, or `diff`.

    A record must not be removed more often than it was inserted.

    Args:
        diff: an integer column: the change of the record's multiplicity.

    **Columns:** out: the stream's, without `diff`. `min`, `max` and `top_k`
    compare no nested values, and `reduce` takes no nested columns.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("deletions")
        >>> names = flow.input("names", "name string, diff int").collection(diff="diff")
        >>> _ = names.changes().capture("out")
        >>> ts.testing.run(flow, {"names": [[("Ann", 1)], [("Ann", -1), ("Bo", 1)]]})["out"].rows()
        {0: [('Ann', 1)], 1: [('Ann', -1), ('Bo', 1)]}

    Raises:
        SchemaError: `diff` is not an integer column; there is no other column; one has a reserved name; or an
            integer column is called ``diff`` and not given as `diff`.
        GraphError: the flow's times are not in product order; or the stream has retractions (of
            `Stream.expire`), and there is no `diff`.
    """
    if own := [column for column in stream.schema.names if column.startswith("__timely_") and column != diff]:
        msg = f"collection: {stream.name!r} has {own}, names that are reserved"
        hint = f"for changes of a collection, give diff={DIFF!r}; else rename with select(new='old')."
        raise SchemaError(msg, where=caller(), hint=hint)
    if (
        diff is None
        and "diff" in stream.schema.names
        and pa.types.is_integer(stream.schema.field("diff").type)
    ):
        msg = f"collection: {stream.name!r} has a column 'diff', which would be an ordinary one"
        hint = "give diff='diff' for changes of a collection; else rename it: select(..., change='diff')."
        raise SchemaError(msg, where=caller(), hint=hint)
    check_product_order("collection", stream.scope)
    if diff is None:
        check_no_retractions("collection", stream)
    return Collection(changed_by(stream, diff, name=name))


@operator(Collection)
def select(
    collection: Collection,
    *columns: str | Mapping[str, str | Expression],
    name: str | None = None,
    **named: str | Expression,
) -> Collection:
    """Choose, rename and compute columns. The multiplicities of equal records add up."""
    chosen = named_expressions("select", collection.schema, *columns, named)
    check_reserved("select", caller(), chosen, existing=collection.schema.names)
    source = may_fail(collection, [one for one in chosen.values() if not never_fails(one)])
    # where no column is left out, different records stay different
    once = source.once and {one for one in chosen.values() if isinstance(one, str)} >= {*source.schema.names}
    projected = source.like(source.stream.select(chosen, {DIFF: DIFF}, name=name), once=once)
    if projected.lasting is not None:  # before columns are dropped, equal records are on one worker
        transient(projected, lambda: lasting(collection).select(chosen))
    return projected


@operator(Collection, also="filter")
def where(
    collection: Collection, predicate: str | Expression | Callable[[Any], bool], *, name: str | None = None
) -> Collection:
    """Keep the records that pass a predicate. `filter` is an alias.

    A function must be deterministic, as it is applied to a record's insertion and deletion.
    """
    predicate = expression("where", predicate, collection.schema)
    source = collection if never_fails(predicate) else may_fail(collection, [predicate])
    return source.like(source.stream.where(predicate, name=name), once=source.once)


@operator(Collection)
def expect(
    collection: Collection,
    name: str,
    condition: str | Expression | Callable[[Any], bool],
    *,
    action: Action = "drop",
) -> Collection:
    """Check a condition of each record, and count the records that fail it; null counts as failed.

    The counts are of the records that are in the collection now: one that is deleted, or is corrected, is no
    longer among those that fail. `Query.status`, the console, the metrics and `Query.expectations` show them,
    and they are exact after any crash.
    """
    source = lasting(collection)  # a transient record does not fail
    return source.like(expected(source.stream, name, condition, action, diff=DIFF), once=source.once)


@operator(Collection)
def map(
    collection: Collection, function: Callable[[Any], Any], schema: SchemaLike, *, name: str | None = None
) -> Collection:
    """Compute one record from each, by a function of a record: slower than `select`.

    It must be deterministic, as it is applied to a record's insertion and deletion.
    """
    check_function("map", function, "row")
    result = as_schema(schema)
    vertex = _Each(partial(each_record, function, result), result)
    return _each(collection, "map", vertex, result, name)


@operator(Collection)
def map_batches(
    collection: Collection,
    function: Callable[[pa.Table], Any],
    schema: SchemaLike,
    *,
    name: str | None = None,
) -> Collection:
    """Compute one record from each, by a function of whole batches that treats each record independently.

    Args:
        function: gets an Arrow table; returns as many rows, in the same order: an Arrow table, a record batch
            or a pandas frame.

    Raises:
        GraphError: `function` cannot be called.
        VertexError: at run time: the function returns another number of rows, or another schema.
    """
    check_function("map_batches", function, "table")
    result = as_schema(schema)
    return _each(collection, "map_batches", _Each(function, result), result, name)


@operator(Collection)
def flat_map(
    collection: Collection,
    function: Callable[[Any], Iterable[Any]],
    schema: SchemaLike,
    *,
    name: str | None = None,
) -> Collection:
    """Compute any number of records from each, by a function of a record.

    It must be deterministic, as for `map`.
    """
    check_function("flat_map", function, "row")
    result = as_schema(schema)
    return _each(collection, "flat_map", _Many(function, result), result, name)


def _each(
    collection: Collection, operator: str, vertex: Stateless, result: pa.Schema, name: str | None
) -> Collection:
    check_reserved(operator, caller(), result.names, existing=collection.schema.names)
    schema = result.append(pa.field(DIFF, pa.int64()))
    source = lasting(collection)
    return source.like(source.stream.then(operator, [schema], name=name, vertex=vertex)[0])


@operator(Collection)
def concat(collection: Collection, *others: Collection, name: str | None = None) -> Collection:
    """All records of several collections, with added multiplicities. Outer collections enter the scope."""
    first, *rest = every = collection.together("concat", *others)
    union = Collection(first.stream.concat(*(one.stream for one in rest), name=name))
    union.signed = any(one.signed for one in every)
    union.checks_removals = any(one.checks_removals for one in every)
    if union.signed:  # records of two sides may cancel each other
        return transient(union)
    if all(one.lasting is None for one in every):
        return union
    return transient(union, lambda: lasting(first).concat(*(lasting(one) for one in rest)))


@operator(Collection)
def negate(collection: Collection, *, name: str | None = None) -> Collection:
    """The records with negated multiplicities: `a.concat(b.negate())` is a minus b.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("negate")
        >>> numbers = flow.input("x", "n long").collection()
        >>> _ = numbers.concat(numbers.negate()).changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2]]})["out"].rows()
        {0: []}
    """
    less = {DIFF: pc.negate(pc.field(DIFF))}
    negated = computed(collection.stream, *collection.schema.names, less, own=(DIFF,), name=name)
    result = collection.like(negated, once=collection.once)
    result.signed = True
    return result


@operator(Collection)
def consolidate(collection: Collection, *, name: str | None = None) -> Collection:
    """Consolidate each time's changes when the time is complete: at most one change of each record.

    The output of a reduction is consolidated already and returned unchanged.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("consolidated")
        >>> numbers = flow.input("x", "n long, d long").collection(diff="d")
        >>> _ = numbers.consolidate().stream.capture("out")
        >>> ts.testing.run(flow, {"x": [[(1, 1), (1, 1), (2, 1), (2, -1)]]})["out"].rows()
        {0: [(1, 2)]}

    Raises:
        SchemaError: a column has no equality, such as an interval.
    """
    if collection.once:
        return collection
    return consolidated(collection, Consolidate(first=collection.later), name=name)
