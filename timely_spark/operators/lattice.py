"""Asynchronous aggregates in the manner of Bloom: merges of a lattice, counts and thresholds.

Their values only grow, so they are sent at once, and no iteration waits for others (Naiad section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError, excerpt
from timely_spark.graph import (
    Expression,
    Monotone,
    Stateless,
    caller,
    check_columns,
    integer,
    names,
    operator,
)
from timely_spark.operators.monotone import Growing
from timely_spark.operators.natural import merged_neighbours, natural
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import Passing, check_function, check_predicate, keys_and_value
from timely_spark.operators.sql import expression
from timely_spark.state.arrow import Indices, Mask, flat, numbers, replaced
from timely_spark.state.buffering import PerTime
from timely_spark.state.codes import numbers_of
from timely_spark.state.grouping import Groups, group
from timely_spark.state.row_times import Fold, RowTimes, compaction, with_time
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

Merge = Callable[[pa.Array, pa.Array], Any]
"""The join of a lattice: associative, commutative and idempotent, element by element."""


class Joined(Growing):
    """Values also grow at the joins of a record's time with stored ones, where both first count together."""

    @property
    def value(self) -> str:
        """The column of values."""
        return self.monotone.value or ""

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send the values that grow, and store the records that make them grow."""
        batch = self.combine(edge, batch)
        if not batch.num_rows:
            return
        at, kind = self.coarse(time), self._context.times
        keys = self.monotone.keys
        groups = group(batch, keys)
        named = batch.select(keys).take(pa.array(groups.firsts))
        ids = groups.of
        probe, stored = self.state.lookup(named, keys)
        times, rows = RowTimes.of(stored, kind) if len(probe) else (None, batch.slice(0, 0))
        moments: dict[Any, Indices] = {at: np.arange(named.num_rows)}
        if times is not None:
            for moment, part in times.joins(at, pa.table({"key": probe})):
                moments.setdefault(moment, np.unique(numbers(part, "key")))
        grown = np.zeros(0, np.bool_)
        for moment, which in moments.items():
            earlier = times.less_equal(moment) if times is not None else np.zeros(0, np.bool_)
            before = rows.filter(pa.array(earlier, pa.bool_()))
            old = self.values(before, probe[earlier], named.num_rows)
            both = pa.concat_tables([before.select(batch.schema.names), batch])
            new = self.values(both, np.concatenate([probe[earlier], ids]), named.num_rows)
            grows = _differ(new, old)
            if moment == at:
                grown = grows
            if len(rising := which[grows[which]]):
                sent = named.append_column(self.value, new).take(pa.array(rising))
                self.send_by(0, time if moment == at else time.join(moment), sent)
        compact = compaction(self._context.since(), kind, *self.folds(batch.schema.names))
        self.state.insert(with_time(batch.filter(pa.array(grown[ids])), at), compact=compact)

    def values(self, rows: pa.Table, ids: Indices, keys: int) -> pa.Array:
        """The value of each of some keys, given all their records; null without records. `ids`: the keys."""
        raise NotImplementedError

    def folds(self, columns: Sequence[str]) -> tuple[Sequence[str], Fold]:
        """How compaction folds rows: the columns to group by, and the row that is kept of each group."""
        return columns, _firsts


#: how many of the first records a vertex checks the law of a merge on
_CHECKED = 32


def broken_lattice(merge: Merge, values: pa.Array, *triples: Indices) -> tuple[str, int] | None:
    """The first law of a lattice that a triple of values breaks: in words, and the number of the triple.

    >>> broken_lattice(pc.add, pa.array([0, 1]), np.array([0, 1]), np.array([0, 0]), np.array([0, 0]))
    ('merge is not idempotent: merge(1, 1) is 2, not 1', 1)
    """
    a, b, c = (values.take(pa.array(each)) for each in triples)
    laws = {
        "idempotent": ("merge({a}, {a})", merge(a, a), a),
        "commutative": ("merge({a}, {b})", merge(a, b), merge(b, a)),
        "associative": ("merge(merge({a}, {b}), {c})", merge(merge(a, b), c), merge(a, merge(b, c))),
    }
    for law, (text, left, right) in laws.items():
        sides = (side.to_pylist() if hasattr(side, "to_pylist") else list(side) for side in (left, right))
        for at, (one, other) in enumerate(zip(*sides, strict=True)):
            if one != other and not (one != one and other != other):  # noqa: PLR0124 - NaN
                return (
                    f"merge is not {law}: {text.format(a=a[at], b=b[at], c=c[at])} is {one!r}, not {other!r}",
                    at,
                )
    return None


class Merged(Joined):
    """The merge of the values of a lattice."""

    _transient: ClassVar[frozenset[str]] = Joined._transient | {"_unchecked"}  # noqa: SLF001 - of its base

    def __init__(self, monotone: Monotone) -> None:
        super().__init__(monotone)
        #: on how many more records this process checks the law; it is not a state
        self._unchecked = 0 if monotone.merge is natural else _CHECKED

    def _check(self, rows: pa.Table) -> None:
        """Check the law on neighbouring records of each key, the stored ones among them."""
        rows = rows.slice(0, self._unchecked)
        self._unchecked -= rows.num_rows
        keys = self.monotone.keys
        _, stored = self.state.lookup(rows.take(pa.array(group(rows, keys).firsts)), keys)
        if stored.num_rows:
            rows = pa.concat_tables([rows, stored.select(rows.schema.names)])
        groups = group(rows, keys)
        rows, last = groups.rows(rows), (groups.starts + groups.sizes - 1)[groups.ids]
        triples = [np.minimum(np.arange(rows.num_rows) + n, last) for n in range(3)]
        values = flat(rows.column(self.value))
        if (violation := broken_lattice(partial(_merged, self.monotone), values, *triples)) is not None:
            text, at = violation
            msg = f"{text}, of the record {excerpt(rows.slice(at, 1))}"
            raise SchemaError(msg, hint="let it return the least value that is at least as great as both.")

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Merge the values of each key; null and NaN values are dropped."""
        column = batch.column(self.value)
        if self.monotone.merge is natural:  # a set or a map without repetitions, in order
            batch = replaced(batch, self.value, natural(column := flat(column), column))
        is_number = pa.types.is_floating(column.type)
        batch = batch.filter(pc.equal(column, column) if is_number else pc.is_valid(column))
        if self._unchecked and batch.num_rows:
            self._check(batch)
        groups = group(batch, self.monotone.keys)
        rows = batch.take(pa.array(groups.firsts))
        values = self.values(batch, groups.of, rows.num_rows)
        return replaced(rows, self.value, values)

    def values(self, rows: pa.Table, ids: Indices, keys: int) -> pa.Array:
        """Merge neighbours of one key, until each key has one value."""
        order = np.argsort(ids, kind="stable")
        values = flat(rows.column(self.value)).take(pa.array(order))
        values, ids = merged_neighbours(values, ids[order], partial(_merged, self.monotone))
        at = np.searchsorted(ids, np.arange(keys))
        none = np.isin(np.arange(keys), ids, invert=True)
        return values.take(pa.array(at, mask=none))

    def folds(self, columns: Sequence[str]) -> tuple[Sequence[str], Fold]:
        """Fold the records of a key into their merge, where no later time distinguishes their times."""
        return self.monotone.keys, self._merged

    def _merged(self, table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
        values = self.values(table, groups.of, len(groups.starts))
        firsts, rows = _firsts(table, groups)
        return firsts, replaced(rows, self.value, values)


class MergedPerTime(PerTime, Merged):
    """Send each key's merge when a time is complete, if the merge has grown."""

    improves = True


class Counted(Joined):
    """The number of different records, up to a bound."""

    def __init__(self, monotone: Monotone, up_to: int | None) -> None:
        super().__init__(monotone)
        self.up_to = up_to

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        return batch.take(pa.array(group(batch, batch.schema.names).firsts))

    def values(self, rows: pa.Table, ids: Indices, keys: int) -> pa.Array:
        counts = np.bincount(ids[group(rows, rows.schema.names).firsts], minlength=keys)
        if self.up_to is not None:
            counts = np.minimum(counts, self.up_to)
        return pa.array(counts.astype(np.int64), mask=counts == 0)


def _differ(new: pa.Array, old: pa.Array) -> Mask:
    """Whether values are others than before, or there was none; of nested ones too."""
    both = pa.table({"value": pa.chunked_array([new, old], new.type)})
    same = np.ones(len(new), np.bool_)
    for each in numbers_of(both, ["value"]):
        same &= each[: len(new)] == each[len(new) :]
    differ: Mask = ~(same & new.is_valid().to_numpy(zero_copy_only=False))
    return differ


def _firsts(table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
    return groups.firsts, table.take(pa.array(groups.firsts))


class Reached(Stateless):
    """Send the keys of the records that pass a threshold, which better records pass too."""

    improves = True

    def __init__(self, reached: Expression | Callable[[Any], bool], keys: Sequence[str]) -> None:
        self.passing, self.keys = Passing(reached), tuple(keys)

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (batch.filter(self.passing(batch)).select(list(self.keys)),)


def _merged(monotone: Monotone, left: Any, right: Any) -> pa.Array:
    """The user's merge, checked."""
    left, right = flat(left), flat(right)
    assert monotone.merge is not None
    merged = monotone.merge(left, right)
    # a copy, because the function may write to its array again
    merged = pa.concat_arrays([flat(merged) if isinstance(merged, pa.ChunkedArray) else pa.array(merged)])
    if len(merged) != len(left) or merged.null_count:
        msg = f"merge returned {len(merged)} values, {merged.null_count} of them null, for {len(left)} pairs"
        hint = "return an array with a value for each pair, as pc.max_element_wise does."
        raise SchemaError(msg, hint=hint)
    return merged if merged.type == left.type else merged.cast(left.type)


@operator(Stream)
def merge(
    stream: Stream,
    value: str,
    merge: Merge | Literal["join"] = "join",
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Stream:
    """Per key the merge of all values so far, in a lattice of the user's: sent again when it grows.

    In a loop a value is sent as soon as it grows, without a notification, whatever the iteration it comes
    from: no worker waits for another. What leaves the loop, or is read outside loops, is exact: the values of
    an epoch are merged once more, and sent when the epoch is complete, one record for each key whose value
    has grown in it.

    The law: ``merge`` is associative, commutative and idempotent, so the result depends neither on the order
    of arrival nor on repetitions. It is checked on the first 32 records of each worker, and the error names
    the record that breaks it; `testing.check_lattice` checks samples. A loop ends if its values can grow
    only finitely often. There is one exchange; values of a key are merged before it.

    Args:
        value: the column of the lattice's values.
        merge: a function of two Arrow arrays: the least upper bound, element by element. Those of
            `pyarrow.compute` are `max_element_wise`, `min_element_wise`, `or_`, `and_`, and for sets of small
            numbers `bit_wise_or`. (`distinct` is the lattice of sets of records.) By default "join", that of
            the type: of numbers, texts and times the greater; of arrays the union, as sets; of arrays of
            structs, which begin with a key, a map whose values are joined key by key; of structs field by
            field. So a counter that only grows is a map from who counts to how many, and its value their sum.
        keys: the key columns.

    **Columns:** in: `keys`, none nested, and `value`, others are dropped; null and NaN values are ignored.
    Out: `keys`, `value`.

    Example:
        Who knows what, by messages that may come in any order, and twice:

        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("gossip")
        >>> knows = flow.input("knows", "who string, facts long")
        >>> _ = knows.merge("facts", pc.bit_wise_or, keys="who").capture("out")
        >>> ts.testing.run(flow, {"knows": [[("Ann", 1), ("Ann", 4), ("Bo", 2)], [("Ann", 4), ("Bo", 3)]]})[
        ...     "out"
        ... ].rows()
        {0: [('Ann', 5), ('Bo', 2)], 1: [('Bo', 3)]}

        Sets, as arrays:

        >>> tags = flow.input("tags", "page string, tags array<string>")
        >>> _ = tags.merge("tags", keys="page").capture("sets")
        >>> ts.testing.run(flow, {"tags": [[("a", ["x", "y"]), ("a", ["y", "z"])]]})["sets"].rows()
        {0: [('a', ['x', 'y', 'z'])]}

    Raises:
        GraphError: `merge` cannot be called.
        SchemaError: a column is missing, a key has no equality, or `value` is a key.
        VertexError: at run time: `merge` returns nulls, or another number of values, or breaks the law.

    Source: Naiad section 4.2; Conway et al., Logic and lattices for distributed programming, SoCC 2012.
    """
    if merge == "join":
        merge = natural
    check_function("merge", merge, "left", "right")
    keys = keys_and_value("merge", stream.schema, keys, value, nested=True)
    if merge is natural:
        _check_natural(stream.schema.field(value).type, value)
    check_no_retractions("merge", stream)
    narrow = stream.select(*keys, value)
    outside, monotone = stream.stage.scope.parent is None, Monotone(keys, value, merge=merge)
    return narrow.then(
        "merge",
        [narrow.schema],
        name=name,
        vertex=(MergedPerTime if outside else Merged)(monotone),
        monotone=None if outside else monotone,
        keyed=keys,
        detail=value,
        parameters={"value": value},
    )[0]


def _check_natural(kind: pa.DataType, value: str) -> None:
    """Check that a type has a lattice of its own."""
    try:
        natural(pa.array([], kind), pa.array([], kind))
    except (pa.ArrowException, ValueError, TypeError) as error:
        msg = f"merge: column {value!r} of type {kind} has no natural order: {error}"
        hint = "give merge= a function; of a map an array of structs, which begin with the key, has an order."
        raise SchemaError(msg, where=caller(), hint=hint) from error


@operator(Stream)
def when(
    stream: Stream,
    reached: str | Expression | Callable[[Any], bool],
    *,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Stream:
    """Each key once, as soon as one of its records passes a threshold (Bloom's monotone tests).

    Exact at the end of each epoch without waiting, if the records of a key only grow and the threshold, once
    passed, stays passed: ``pc.field("count") >= 3`` of a count. Nothing is taken back.

    Args:
        reached: the threshold: an expression, or a function of one record.
        keys: the key columns.

    **Columns:** out: `keys`, none nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("votes")
        >>> votes = flow.input("votes", "motion string, by string")
        >>> counts = votes.count_distinct("n", keys="motion")
        >>> _ = counts.when("n >= 2", keys="motion").capture("out")
        >>> ts.testing.run(flow, {"votes": [[("a", "Ann"), ("a", "Ann"), ("b", "Bo")], [("a", "Bo")]]})[
        ...     "out"
        ... ].rows()
        {0: [], 1: [('a',)]}

    Raises:
        SchemaError: a column is missing or nested, or the expression does not fit.
    """
    keys = names("when", keys)
    check_columns("when", stream.schema, keys, keys=True)
    reached = expression("when", reached, stream.schema)
    check_predicate("when", stream, reached)
    schema = pa.schema([stream.schema.field(key) for key in keys])
    vertex = Reached(reached, keys)
    passed = stream.then("threshold", [schema], vertex=vertex, keeps={key: key for key in keys})
    return passed[0].distinct(name=name)


@operator(Stream)
def count_distinct(
    stream: Stream,
    column: str = "count",
    *,
    keys: str | Sequence[str],
    up_to: int | None = None,
    name: str | None = None,
) -> Stream:
    """Per key the number of different records so far, sent again as it grows: a counter that only counts up.

    As `max`, it needs no notification: in a loop counts are sent at once, and outputs, and vertices that wait
    for the epoch, get only the last one, exact. A record costs the records of its key so far, at most
    `up_to`.

    Args:
        column: the name of the count.
        keys: the key columns.
        up_to: a bound: a key that has reached it keeps no further records.

    **Columns:** in: none nested; all columns distinguish records. Out: `keys`, then `column` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("visitors")
        >>> visits = flow.input("visits", "page string, who string")
        >>> _ = visits.count_distinct("visitors", keys="page", up_to=2).capture("out")
        >>> ts.testing.run(flow, {"visits": [[("a", "Ann"), ("a", "Ann")], [("a", "Bo")], [("a", "Cy")]]})[
        ...     "out"
        ... ].rows()
        {0: [('a', 1)], 1: [('a', 2)], 2: []}

    Raises:
        SchemaError: a column is missing or nested, or `column` is a key.
        BadArgument: `up_to` is not an integer of at least 1.
    """
    keys = names("count_distinct", keys)
    check_columns("count_distinct", stream.schema, [*keys, *stream.schema.names], keys=True)
    if column in keys or not isinstance(column, str):
        msg = f"count_distinct: {column!r} is {'a key' if column in keys else 'no name'}"
        raise SchemaError(msg, where=caller(), hint="give the count another name.")
    if up_to is not None:
        up_to = integer("up_to", up_to, step="count_distinct")
    check_no_retractions("count_distinct", stream)
    monotone = Monotone(keys, column, greatest=True)
    schema = pa.schema([*(stream.schema.field(key) for key in keys), pa.field(column, pa.int64())])
    return stream.then(
        "count_distinct",
        [schema],
        name=name,
        vertex=Counted(monotone, up_to),
        keyed=keys,
        monotone=monotone,
        detail=column,
        parameters={"column": column, "up_to": up_to},
    )[0]
