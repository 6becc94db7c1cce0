"""Aggregates: one final value per key and time, sent when the time is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import (
    Expression,
    caller,
    check_columns,
    check_reserved,
    composed,
    operator,
)
from timely_spark.operators.expire import Per, Sessions, check_per, checked_expire, options_text
from timely_spark.operators.retractions import EXACT, SIGN, with_signs
from timely_spark.operators.rows import all_named, check_name, computed
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Indices, Longs, abs_bound, flat, numbers
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.codes import runs
from timely_spark.state.grouping import Groups, group
from timely_spark.state.row_times import RowTimes, compaction, time_columns, with_time
from timely_spark.state.sums import (
    as_sums,
    large_sums,
    limbs_of,
    signed_limbs,
    sums_of_scaled_limbs,
    too_large_sum,
)
from timely_spark.streams import Stream
from timely_spark.times import Timestamp, only_epochs

_FOLD: Mapping[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
AggregateKind: TypeAlias = Literal["count", "sum", "mean", "min", "max", "collect"]
_KINDS = get_args(AggregateKind)
_PART = "__timely_part"
"""Prefix of the columns that hold the sum and the count of a mean."""
#: An exact sum is a list with, for each scale of `limbs_of`, the scale, the number of values, and the limbs
#: of their sum: one more than a value has, so that there is room for 2^63 times the greatest.
_WIDTH = 7

#: Types whose equal values have equal bytes; and how many keys are looked at to see whether keys repeat.
_HASHED = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary)
_SAMPLE = 1 << 14

ALL = "__timely_all"
"""A constant column that makes all records one group, on one worker."""

AggregateSpec: TypeAlias = Literal["count"] | tuple[AggregateKind, str]
"""``"count"`` of all records, or a kind and a column: ``("sum", "amount")``."""


class Combines:
    """A summary of a key's records; the summaries of parts give that of all."""

    __slots__ = ()
    keys: tuple[str, ...]
    #: whether a summary is one row per key
    one_row: ClassVar[bool]

    def partial(self, batch: pa.Table) -> pa.Table:
        """The summaries of a batch of records."""
        raise NotImplementedError

    def fold(self, table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
        """The summary of each group of summaries, with its time columns, as a `Fold`."""
        raise NotImplementedError

    def combine(self, table: pa.Table) -> pa.Table:
        """The summary of each key's summaries."""
        return self.fold(table, group(table, self.keys))[1]

    def results(self, table: pa.Table) -> pa.Table:
        """What is sent for each key, from its complete summary."""
        return table


@dataclass(frozen=True, slots=True)
class Aggregates(Combines):
    """The aggregates: for each output column its kind and the column it reads, None for a count."""

    keys: tuple[str, ...]
    columns: tuple[tuple[str, str, str | None], ...]
    one_row: ClassVar[bool] = True

    def partial(self, batch: pa.Table) -> pa.Table:
        if (counts := self._counts(batch)) is not None:
            return self.combine(counts)
        partial = {}
        for out, kind, column in self.columns:
            values = batch.column(column) if column is not None else None
            if kind == "count":
                ones = np.ones(batch.num_rows, np.int64)
                partial[out] = ones if values is None else pc.is_valid(values).cast(pa.int64())
            elif kind == "sum" and values is not None:
                partial[out] = as_sums(values, _sum_type(values.type))
            elif kind == "collect" and values is not None:
                one = flat(values)
                ends = np.concatenate([[0], np.cumsum(one.is_valid().to_numpy(zero_copy_only=False))])
                partial[out] = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), one.drop_null())
            elif kind == EXACT and values is not None:
                (scales, limbs), signs = limbs_of(values), numbers(batch, f"{column}{SIGN}")
                assert scales is not None
                if abs_bound(signs) >= 1 << 31:  # a limb times a sign must fit
                    msg = "a record comes 2 ** 31 - 1 times or more often, and sums of doubles take fewer"
                    raise SchemaError(msg, hint="split it into records that come less often each.")
                parts = np.column_stack([scales, signs, *signed_limbs(limb * signs for limb in limbs)])
                valid = flat(values).is_valid().to_numpy(zero_copy_only=False)
                partial[out] = _exact_sums(parts[valid], valid.astype(np.int64), ~valid)
            else:
                partial[out] = values
        table = pa.table({key: batch.column(key) for key in self.keys} | partial)
        return self.combine(table)

    def _counts(self, batch: pa.Table) -> pa.Table | None:
        """The records of each key counted by a hash table, in a tenth of the time of sorting them.

        None if there are other aggregates, if keys are neither numbers nor texts, or if a sample shows that
        hardly any key repeats: then a hash table takes longer.
        """
        if len(self.keys) != 1 or any((kind, column) != ("count", None) for _, kind, column in self.columns):
            return None
        keys = batch.column(self.keys[0])
        if len(keys) < 2 * _SAMPLE or not any(is_kind(keys.type) for is_kind in _HASHED):
            return None
        sample = keys.take(pa.array(np.arange(0, len(keys), len(keys) // _SAMPLE)))
        if 8 * pc.count_distinct(sample).as_py() > 7 * len(sample):
            return None
        frequencies = pc.value_counts(keys)
        counts = {out: frequencies.field("counts") for out, _, _ in self.columns}
        return pa.table({self.keys[0]: frequencies.field("values")} | counts)

    def fold(self, table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
        """Combine partial aggregates: one row per group; where a sum is beyond 64 bits, its rows as they are.

        Other partial aggregates may bring such a sum back: only a result that is beyond 64 bits is an error.
        """
        groups, combined = self._combined(table, groups)
        for column in time_columns(table):
            combined = combined.append_column(column, table.column(column).take(pa.array(groups.firsts)))
        return groups.firsts, combined

    def _combined(self, table: pa.Table, groups: Groups) -> tuple[Groups, pa.Table]:
        """The groups that were combined to one row each, and these rows."""
        rows = groups.rows(table)
        if len(groups.starts) < rows.num_rows:
            groups = self._without_large_sums(rows, groups)
        if len(groups.starts) == rows.num_rows:  # one row per group, as in most small epochs
            names = (*self.keys, *(out for out, _, _ in self.columns))
            return groups, pa.table({name: rows.column(name) for name in names})
        firsts = rows.select(list(self.keys)).take(groups.starts)
        columns = {key: firsts.column(key) for key in self.keys}
        for out, kind, _ in self.columns:
            fold = {"collect": _collect, EXACT: _add}.get(kind, _fold)
            columns[out] = fold(rows.column(out), groups, "sum" if kind == "count" else kind)
        return groups, pa.table(columns)

    def results(self, table: pa.Table) -> pa.Table:
        for out, kind, _ in self.columns:
            if kind == EXACT:
                lists = flat(table.column(out))
                of, parts = _parts(lists, np.arange(len(lists)))
                sums = sums_of_scaled_limbs(of, len(lists), parts[:, 0], list(parts.T[2:]))
                sums = pc.if_else(lists.is_null(), None, pa.array(sums))
                table = table.set_column(table.schema.get_field_index(out), out, sums)
        return table

    def _without_large_sums(self, rows: pa.Table, groups: Groups) -> Groups:
        """The groups, but each row of those with a sum beyond 64 bits is a group of its own."""
        for out, kind, _ in self.columns:
            if kind == "sum" and pa.types.is_integer(rows.schema.field(out).type):
                values = rows.column(out)
                values = flat(values.fill_null(0) if values.null_count else values).to_numpy()
                large = large_sums(values, groups.starts)
                if large.any():
                    single = np.flatnonzero(np.repeat(large, groups.sizes))
                    groups = Groups(groups.order, np.union1d(groups.starts, single))
        return groups


def _fold(values: pa.ChunkedArray, groups: Groups, function: str) -> pa.Array:
    """The sum, min or max of each group; `values` are sorted by group."""
    kind = values.type
    plain = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and function == "sum")
    if plain and not values.null_count:
        with np.errstate(invalid="ignore", over="ignore"):  # infinities are values
            return pa.array(_FOLD[function].reduceat(flat(values).to_numpy(), groups.starts), kind)
    if pa.types.is_decimal128(kind) and function == "sum":  # where too large a sum would wrap around
        values = values.cast(pa.decimal256(76, kind.scale))
    elif pa.types.is_duration(kind):  # Arrow compares none
        values = values.cast(pa.int64())
    table = pa.table({"id": groups.ids, "value": values})
    table = table.group_by("id", use_threads=False).aggregate([("value", function)])
    return as_sums(table.sort_by("id").column(f"value_{function}"), kind)


def _collect(lists: pa.ChunkedArray, groups: Groups, _: str) -> pa.Array:
    """One list per group, sorted by value, so that it does not depend on the order of arrival."""
    one = flat(lists)
    lengths = pc.fill_null(pc.list_value_length(one), 0).to_numpy(zero_copy_only=False)
    table = pa.table({"id": np.repeat(groups.ids, lengths), "value": pc.list_flatten(one)})
    table = table.sort_by([("id", "ascending"), ("value", "ascending")])
    sizes = np.bincount(table.column("id").to_numpy(), minlength=len(groups.starts))
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), flat(table.column("value")))


def _parts(lists: pa.Array, ids: Longs) -> tuple[Longs, Longs]:
    """The parts of exact sums, a row each, and the number of the sum that each belongs to."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(ids, sizes // _WIDTH), pc.list_flatten(lists).to_numpy().reshape(-1, _WIDTH)


def _exact_sums(parts: Longs, sizes: Longs, null: Any) -> pa.Array:
    """Exact sums of these numbers of parts each."""
    ends = np.concatenate([[0], np.cumsum(_WIDTH * sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(parts.ravel()), mask=pa.array(null))


def _add(lists: pa.ChunkedArray, groups: Groups, _: str) -> pa.Array:
    """The exact sum of each group; of a scale no part stays if nothing of it is left."""
    of, parts = _parts(flat(lists), groups.ids)
    equal = runs([of, parts[:, 0]], len(of))
    count, *limbs = (equal.totals(part) for part in parts.T[1:])
    sums = np.column_stack([parts[equal.firsts, 0], count, *signed_limbs(limbs)[:-1]])
    some = sums[:, 1:].any(axis=1)
    sizes = np.bincount(of[equal.firsts[some]], minlength=len(groups.starts))
    null = np.logical_and.reduceat(flat(lists).is_null().to_numpy(zero_copy_only=False), groups.starts)
    return _exact_sums(sums[some], sizes, null)


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_decimal128(kind):  # room for ten more digits, as in Spark
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else kind


class Aggregate(BufferingVertex):
    """Accumulate per key; when a time is complete, send the values of the keys that changed."""

    def __init__(self, aggregates: Combines, *, accumulate: bool) -> None:
        super().__init__()
        self.aggregates, self.accumulate, self.per_time = aggregates, accumulate, not accumulate
        self.state = Arrangement(aggregates.keys)
        #: interesting times (joins of times with records), and the keys whose value changes there
        self.interesting: dict[Any, list[pa.Table]] = {}

    def before_exchange(self, edge: int, batch: pa.Table) -> pa.Table:
        """Aggregate at the sender: less to exchange and to sort."""
        return self.aggregates.partial(batch)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Combine partial aggregates before the exchange."""
        return self.aggregates.combine(batch)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not self.accumulate:
            if batches[0]:
                self.send_by(0, time, self._results(pa.concat_tables(batches[0])))
            return
        batch, once = None, False
        if batches[0]:
            batch, once = self._combined(pa.concat_tables(batches[0]))
            compact = compaction(
                self._since(time), self._context.times, self.aggregates.keys, self.aggregates.fold
            )
            self.state.insert(with_time(batch, time), compact=compact)
        keys = list(self.aggregates.keys)
        interesting = self.interesting.pop(time, [])
        changed = [table.select(keys) for table in (batch, *interesting) if table is not None]
        if not changed:
            return
        probe = changed[0]
        if len(changed) > 1 or not once:
            one = pa.concat_tables(changed)
            probe = one.take(group(one, keys).firsts)
        _, rows = self.state.lookup(probe, keys)
        times, rows = RowTimes.of(rows, self._context.times)
        if not (counts := times.less_equal(time)).all():
            others = rows.select(keys).filter(pa.array(~counts))
            for later, some in times.filter(~counts).joins(time, others):
                self.interesting.setdefault(later, []).append(some)
                self.notify_at(later)
            rows = rows.filter(pa.array(counts))
        self.send_by(0, time, self._results(rows))

    def _combined(self, table: pa.Table) -> tuple[pa.Table, bool]:
        """The combined partial aggregates, and whether each key is there once."""
        groups = group(table, self.aggregates.keys)
        _, combined = self.aggregates.fold(table, groups)
        return combined, self.aggregates.one_row and combined.num_rows == len(groups.starts)

    def _results(self, table: pa.Table) -> pa.Table:
        """The aggregates of partial ones."""
        results, once = self._combined(table)
        if self.aggregates.one_row and not once:
            raise too_large_sum()
        return self.aggregates.results(results)

    def _since(self, time: Timestamp) -> int:
        """The compaction frontier when `time` is complete: later times do not distinguish earlier epochs."""
        outermost = only_epochs(self._context.times) and len(time.order_key()) == 1
        return int(time.epoch) + 1 if outermost else self._context.since()


class AggregateSessions(Sessions, Aggregate):
    """Aggregate per key and session; when an epoch is complete, send the values of the keys in it."""

    def changes(self, total: pa.Table, batch: pa.Table, probe: Indices, stored: pa.Table) -> pa.Table:
        if total.num_rows > batch.num_rows:
            raise too_large_sum()
        return self.aggregates.results(total)


@operator(Stream)
def aggregate(
    stream: Stream,
    named: Mapping[str, AggregateSpec] | None = None,
    /,
    *,
    per: Per = "accumulated",
    expire: int | None = None,
    name: str | None = None,
    **columns: AggregateSpec,
) -> Stream:
    """Aggregate all records as one group.

    Args:
        named: results by name, for names that are not words of Python.
        per: "accumulated" for all records up to each epoch, or "time" for those of each time alone.
        expire: after how many epochs without records the result starts again; by default never.
        columns: for each result ``"count"``, or a kind and a column as in ``("sum", "n")``: see
            `Grouped.aggregate`, which has the kinds.

    **Columns:** out: `columns`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("total")
        >>> _ = flow.input("x", "n long").aggregate(total=("sum", "n"), count="count").capture("out")
        >>> ts.testing.run(flow, {"x": [range(10)]})["out"].rows()
        {0: [(45, 10)]}
    """
    return aggregated(stream, (), all_named(named, columns), per, expire=expire, name=name)


def one_group(stream: Stream) -> Stream:
    """The stream with the column `ALL`."""
    return computed(stream, *stream.schema.names, {ALL: pc.scalar(0)}, own=(ALL,))


@composed
def aggregated(
    stream: Stream,
    keys: tuple[str, ...],
    columns: dict[str, AggregateSpec],
    per: Per,
    *,
    expire: int | None,
    name: str | None,
) -> Stream:
    """The aggregates of a stream, as `Grouped.aggregate`; without keys of all records."""
    where = caller()
    check_name("aggregate", stream, name, "('max', 'name')")
    check_per("aggregate", per)
    expire = checked_expire("aggregate", stream, expire, per=per)
    check_reserved("aggregate", where, columns)
    if not keys:
        result = aggregated(one_group(stream), (ALL,), columns, per, expire=expire, name=name)
        return result.select(*columns)
    check_columns("aggregate", stream.schema, keys, keys=True)
    listed: list[tuple[str, str, str | None]] = []
    fields = [stream.schema.field(key) for key in keys]
    results: dict[str, str | Expression] = {}
    details: list[str] = []
    for out, aggregate in columns.items():
        if out in keys:
            msg = f"aggregate: column {out!r} is a key"
            raise SchemaError(msg, where=where, hint="give the aggregate another name.")
        kind, column, type_ = _checked(stream.schema, out, aggregate)
        results[out], parts = out, [(out, kind, type_)]
        if kind == "mean":
            total, number = f"{_PART}{len(listed)}_sum", f"{_PART}{len(listed)}_count"
            results[out] = _quotient(total, number)
            parts = [(total, "sum", type_), (number, "count", pa.int64())]
        fields += [pa.field(part, type_) for part, _, type_ in parts]
        listed += [(part, kind, column) for part, kind, _ in parts]
        details.append(f"{out}={kind}({column or ''})")
    if not columns:
        msg = "aggregate: nothing to compute"
        hint = "name what to compute, for example aggregate(count='count')."
        raise SchemaError(msg, where=where, hint=hint)
    stream, listed = with_signs(stream, keys, listed)
    aggregates = Aggregates(keys, tuple(listed))
    result = stream.then(
        "aggregate",
        [pa.schema(fields)],
        name=name,
        vertex=Aggregate(aggregates, accumulate=per == "accumulated")
        if expire is None
        else AggregateSessions(expire, aggregates, accumulate=True),
        keyed=keys,
        detail=", ".join(details) + options_text(per=per, expire=expire),
        parameters={
            "aggregates": [list(one) for one in listed],
            "per": per,
            "expire": expire,
        },
        own=[part for part, *_ in listed if part.startswith(_PART)],
    )[0]
    return result if len(listed) == len(results) else computed(result, *keys, results)


def _quotient(total: str, number: str) -> Expression:
    """A column of sums divided by one of counts, as double; null where the count is 0."""
    none = pc.scalar(pa.scalar(None, pa.float64()))
    one, other = (pc.field(column).cast(pa.float64(), safe=False) for column in (total, number))
    quotient = pc.divide(one, other)
    return pc.if_else(pc.field(number) == 0, none, quotient)


def _checked(schema: pa.Schema, out: str, aggregate: Any) -> tuple[str, str | None, pa.DataType]:
    """The kind, column and type (of a mean: its sum's) of an aggregate, as the user gave it for `out`."""
    kind, column = (
        aggregate if isinstance(aggregate, tuple | list) and len(aggregate) == 2 else (aggregate, None)
    )
    if kind not in _KINDS or (column is None and kind != "count"):
        msg = f"aggregate: {out}={aggregate!r}"
        hint = f"give 'count', or (kind, column) with kind one of {', '.join(_KINDS)}."
        raise SchemaError(msg, where=caller(), hint=hint)
    if column is not None:
        check_columns("aggregate", schema, [column], keys=kind in {"min", "max", "collect"})
    if kind == "count":
        return kind, column, pa.int64()
    source = schema.field(column).type
    if kind == "collect":
        return kind, column, pa.list_(pa.field("item", source))
    if kind not in {"sum", "mean"}:
        return kind, column, source
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    if not any(is_kind(source) for is_kind in is_number):
        msg = f"aggregate: {out} would be the {kind} of column {column!r} of type {source}"
        raise SchemaError(msg, where=caller(), hint="name a column of numbers.")
    return kind, column, _sum_type(source)
