"""Aggregates of SQL: one reduction computes all of a query block.

Counts and sums are weights: their values are not stored. Other
aggregates store the distinct arguments of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import DIFF, GROUP, Logic, computed, flat, numbers, reduced
from timely_spark.differential.collections import Collection
from timely_spark.differential.joins import join_null_safe
from timely_spark.differential.reducers import Extreme, present_records
from timely_spark.differential.reductions import with_one_key
from timely_spark.errors import SchemaError
from timely_spark.operators.aggregate import ALL
from timely_spark.queries.groups import AggregateFunction, GroupRecords, written_alike
from timely_spark.queries.sorting import Order
from timely_spark.queries.statistics import SHAPES, lists_or_null, mode, percentile, shape, spreads
from timely_spark.queries.weights import (
    COUNTS,
    PAIRS,
    SUMS,
    VARIANCES,
    is_weight,
    products_in,
    scaled_limbs,
    summands,
    summed_limbs,
    valid_counts,
    with_own_weights,
    with_weights,
)  # fmt: skip
from timely_spark.sql.lists import lists_of
from timely_spark.sql.plain import checked_decimals, rounded_quotient, unscaled, wide
from timely_spark.sql.types import INTERVAL, array_of, has_map, is_interval, is_number, scale_of
from timely_spark.state.arrow import Mask
from timely_spark.state.sums import sums_of_limbs, sums_of_scaled_limbs

Calls: TypeAlias = "Mapping[str, AggregateFunction]"

_ALWAYS = f"{DIFF}_always"
_BITS = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}


# -- the types of results ------------------------------------------------------------------------------------


def _sum_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, 38), kind.scale)
    if kind == INTERVAL:
        return kind
    return pa.float64() if pa.types.is_floating(kind) or pa.types.is_null(kind) else None


def _average_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 4, 38), min(kind.scale + 4, 38))
    return _percentile_type(kind)


def _percentile_type(kind: pa.DataType) -> pa.DataType | None:
    return kind if kind == INTERVAL else _double(kind)


def _double(kind: pa.DataType) -> pa.DataType | None:
    return pa.float64() if _sum_type(kind) not in {None, INTERVAL} else None


def _ordered(kind: pa.DataType) -> pa.DataType | None:
    return None if has_map(kind) else kind


def _measured(kind: pa.DataType) -> pa.DataType | None:
    return kind if is_number(kind) or is_interval(kind) or pa.types.is_temporal(kind) else None


def _boolean(kind: pa.DataType) -> pa.DataType | None:
    return pa.bool_() if pa.types.is_boolean(kind) or pa.types.is_null(kind) else None


#: by function the number of arguments that are columns, and the type of the result from that of the first
TYPES: dict[str, tuple[int, Callable[[pa.DataType], pa.DataType | None]]] = {
    **dict.fromkeys(("count", "approx_count_distinct"), (1, lambda _: pa.int64())),
    "count_if": (1, lambda kind: pa.int64() if _boolean(kind) else None),
    **dict.fromkeys(("sum", "try_sum"), (1, _sum_type)),
    **dict.fromkeys(("avg", "try_avg"), (1, _average_type)),
    **dict.fromkeys(("min", "max"), (1, _ordered)),
    "approx_percentile": (1, _measured),
    **dict.fromkeys((*VARIANCES, *SHAPES), (1, _double)),
    **dict.fromkeys(("percentile", "percentile_disc", "median"), (1, _percentile_type)),
    **dict.fromkeys(PAIRS, (2, _double)),
    **dict.fromkeys(_BITS, (1, lambda kind: kind if pa.types.is_integer(kind) else None)),
    **dict.fromkeys(("bool_and", "bool_or"), (1, _boolean)),
    **dict.fromkeys(("mode", "any_value", "first", "last"), (1, lambda kind: kind)),
    **dict.fromkeys(("min_by", "max_by"), (2, lambda kind: kind)),
    "collect_list": (1, array_of),
    "collect_set": (1, lambda kind: None if has_map(kind) else array_of(kind)),
    "string_agg": (1, lambda kind: kind if kind in {pa.string(), pa.binary()} else None),
}


# -- each function -------------------------------------------------------------------------------------------


def _count(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    if not call.columns:
        return pa.array(groups.total(numbers(groups.table, DIFF)))
    if call.distinct:
        once = groups.once(*call.columns)
        return pa.array(once.total(numbers(once.table, DIFF)))
    return pa.array(valid_counts(groups, call.columns[0]))


def _sum(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    (column,) = call.columns
    groups = with_own_weights(call, groups)
    missing = valid_counts(groups, column) <= 0
    if (scaled := scaled_limbs(groups, column)) is not None:
        return pa.array(sums_of_scaled_limbs(groups.of, groups.count, *scaled), mask=missing)
    limbs = [groups.total(limb) for limb in summed_limbs(groups, column)]
    return sums_of_limbs(limbs, scale_of(call.type), call.type, missing)


def _average(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    (column,) = call.columns
    kind = groups.table.schema.field(column).type if column in groups.table.schema.names else None
    groups, total = with_own_weights(call, groups), replace(call, distinct=False)
    counts = valid_counts(groups, column)
    some = pa.array(np.where(counts > 0, counts, 0), mask=counts <= 0)
    if pa.types.is_decimal(call.type) or call.type == INTERVAL:
        scale = max(scale_of(call.type) - 4, 0) if kind is None else scale_of(kind)
        sums = _sum(replace(total, type=pa.decimal128(38, scale)), groups)
        return quotient(sums, some, call.type)
    return pc.divide(_sum(replace(total, type=pa.float64()), groups), some.cast(pa.float64()))


def quotient(total: pa.Array, counts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Sums, as decimals, divided by counts and rounded half up, as Spark's averages."""
    by = wide(counts.fill_null(1).to_numpy(zero_copy_only=False))
    digits = rounded_quotient(wide(unscaled(total)) * 10 ** (scale_of(kind) - total.type.scale), by)
    missing = pc.or_(counts.is_null(), total.is_null())
    means = (
        pa.array(digits.astype(np.int64)).cast(kind) if kind == INTERVAL else checked_decimals(digits, kind)
    )
    return pc.if_else(missing, pa.scalar(None, kind), means)


def _extreme(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    (column,) = call.columns
    records = groups.where(groups.valid(column))
    records = records.sorted([Order(column)])
    rows = records.lasts if call.function == "max" else records.firsts
    return records.spread(rows, records.table.column(column), call.type)


def _by(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    value, by = call.columns
    records = groups.where(groups.valid(by))
    records = records.sorted([Order(by), Order(value)])
    if call.options:
        return _several_by(call, records)
    rows = records.lasts if call.function == "max_by" else records.firsts
    return records.spread(rows, records.table.column(value), call.type)


def _several_by(call: AggregateFunction, records: GroupRecords) -> pa.Array:
    """The values of the least rows of each group, or of the greatest ones: null for a group without rows."""
    if call.function == "max_by":
        backwards = np.lexsort([-np.arange(len(records.of)), records.of])
        records = GroupRecords(records.table.take(pa.array(backwards)), records.count)
    counts = numbers(records.table, DIFF)
    before = np.cumsum(counts) - counts
    first = np.zeros(records.count, np.int64)
    first[records.of[records.firsts]] = before[records.firsts]
    taken = np.clip(call.options[0] - (before - first[records.of]), 0, counts)
    rows = np.repeat(np.arange(len(taken)), taken)
    values = written_alike(flat(records.table.column(call.columns[0])).take(pa.array(rows)))
    return lists_or_null(values, records.total(taken), call.type)


def _one_of(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """`first` and `last` by an order; `any_value` is the least value that is not null.

    A second column is null in the records that `FILTER` leaves out.
    """
    column, *filters = call.columns
    groups = groups.where(groups.valid(filters[0])) if filters else groups
    ignore = bool(call.options and call.options[0]) or call.function == "any_value"
    records = groups.where(groups.valid(column)) if ignore else groups
    records = records.sorted(call.order or [Order(column)])
    rows = records.lasts if call.function == "last" else records.firsts
    return records.spread(rows, records.table.column(column), call.type)


def _bits(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    (column,) = call.columns
    records = groups.with_values(call)
    values = numbers(records.table, column)
    if call.function == "bit_xor":  # of an even number nothing is left
        values = np.where(numbers(records.table, DIFF) % 2 == 1, values, 0)
    bits, missing = np.zeros(groups.count, np.int64), np.ones(groups.count, np.bool_)
    present = records.of[records.firsts]
    if len(present):
        bits[present], missing[present] = _BITS[call.function].reduceat(values, records.firsts), False
    return pa.array(bits, mask=missing).cast(call.type)


def _tried(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """`try_sum` and `try_avg`: null for a group whose sum is too large."""
    function = _sum if call.function == "try_sum" else _average
    try:
        return function(call, groups)
    except SchemaError:
        if groups.count == 1:
            return pa.nulls(1, call.type)
        return pa.concat_arrays([_tried(call, half) for half in groups.halves()])


def _booleans(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    (column,) = call.columns
    records = groups.where(groups.valid(column))
    true = flat(records.table.column(column)).cast(pa.bool_()).to_numpy(zero_copy_only=False)
    some = records.total(np.ones(len(true), np.int64))
    yes = records.total(true.astype(np.int64))
    return pa.array(yes == some if call.function == "bool_and" else yes > 0, mask=some == 0)


def _list_of(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    column = call.columns[0]
    if call.function == "collect_set" or call.distinct:
        records = groups.once(column).sorted(call.order or [Order(column)])
        counts = np.ones(records.table.num_rows, np.int64)
    else:
        records = groups.where(groups.valid(column)).sorted(call.order or [Order(column)])
        counts = numbers(records.table, DIFF)
    rows = np.repeat(np.arange(len(counts)), counts)
    values = written_alike(flat(records.table.column(column)).take(pa.array(rows)))
    sizes = records.total(counts)
    lists = lists_of(values, sizes)
    if call.function != "string_agg":
        return lists.cast(call.type)
    separator = pa.scalar((*call.options, None)[0] or "").cast(call.type)
    joined = pc.binary_join(lists, separator)
    return pc.if_else(pa.array(sizes == 0), pa.scalar(None, call.type), joined)


def _single(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """The one value of a subquery."""
    (column,) = call.columns
    if (groups.total(numbers(groups.table, DIFF)) > 1).any():
        msg = "a subquery has several rows where one value belongs"
        raise SchemaError(msg, hint="aggregate it, for example by max(...), or write IN or EXISTS.")
    return groups.spread(groups.firsts, groups.table.column(column), call.type)


FUNCTIONS: dict[str, Callable[[AggregateFunction, GroupRecords], pa.Array]] = {
    "single": _single,
    "count": _count,
    "count_if": _count,
    "sum": _sum,
    "avg": _average,
    "min": _extreme,
    "max": _extreme,
    "min_by": _by,
    "max_by": _by,
    **dict.fromkeys(("any_value", "first", "last"), _one_of),
    **dict.fromkeys(("try_sum", "try_avg"), _tried),
    **dict.fromkeys(_BITS, _bits),
    **dict.fromkeys((*VARIANCES, *PAIRS), spreads),
    **dict.fromkeys(SHAPES, shape),
    "mode": mode,
    **dict.fromkeys(("bool_and", "bool_or"), _booleans),
    **dict.fromkeys(("collect_list", "collect_set", "string_agg"), _list_of),
    "approx_count_distinct": lambda call, groups: _count(
        replace(call, function="count", distinct=True), groups
    ),
    **dict.fromkeys(("percentile", "percentile_disc", "approx_percentile", "median"), percentile),
}


# -- the reduction -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlAggregates(Logic):
    """All aggregates of a query block.

    A group is there while it has records, or a weight `_ALWAYS`.
    """

    calls: tuple[tuple[str, AggregateFunction], ...]
    #: the columns that are stored, and those whose values are weights, or are only counted
    stored: tuple[str, ...]
    summed: tuple[str, ...]
    counted: tuple[str, ...]
    #: the pairs of summed columns whose products are weights, too
    pairs: tuple[tuple[str, str], ...]

    def partial(self, changes: pa.Table) -> pa.Table:
        weights = [one for one in changes.schema.names if one.startswith(DIFF)]
        result = changes.select([*self.keys, *self.stored, *weights])
        return with_weights(result, changes, self.counted, self.summed, self.pairs)

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        diffs = numbers(inputs, DIFF)
        always = numbers(inputs, _ALWAYS) if _ALWAYS in inputs.schema.names else np.zeros_like(diffs)
        present = np.zeros(keys.num_rows, np.bool_)
        present[numbers(inputs, GROUP)[(diffs > 0) | (always > 0)]] = True
        groups = GroupRecords(present_records(inputs), keys.num_rows)
        columns = {name: FUNCTIONS[call.function](call, groups) for name, call in self.calls}
        results = pa.table(
            {GROUP: pa.array(np.arange(keys.num_rows))}
            | columns
            | {DIFF: pa.array(np.ones(keys.num_rows, np.int64))}
        )
        return results.filter(pa.array(present))

    @property
    def finds_irrelevant(self) -> bool:
        """Whether there are only least and greatest values, which most changes leave as they are."""
        return all(call.function in {"min", "max"} for _, call in self.calls)

    def irrelevant(self, results: pa.Table, changes: pa.Table) -> Mask:
        masks = [numbers(changes, DIFF) != 0]  # not those of the groups that are always there
        for name, call in self.calls:
            (column,) = call.columns
            best = pa.table({GROUP: results[GROUP], column: results[name]})
            extreme = Extreme(self.keys, column, greatest=call.function == "max")
            masks.append(extreme.irrelevant(best, changes))
        mask: Mask = np.logical_and.reduce(masks)
        return mask


@dataclass(frozen=True, slots=True)
class LeastOrNull(Extreme):
    """The least or greatest value, of which NaN is the greatest; null for a group without values."""

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """One row for each group that has records."""
        inputs = present_records(inputs)
        rows = GroupRecords(inputs, keys.num_rows)
        function = "max" if self.greatest else "min"
        best = _extreme(
            AggregateFunction(function, (self.value,), inputs.schema.field(self.value).type), rows
        )
        groups = numbers(inputs, GROUP)[rows.firsts]
        table = {GROUP: groups, self.value: best.take(pa.array(groups)), DIFF: np.ones(len(groups), np.int64)}
        return pa.table(table)


def aggregate_records(
    collection: Collection,
    keys: tuple[str, ...],
    calls: Calls,
    always: Collection | None = None,
) -> Collection:
    """One record for each group of equal keys, with its aggregates.

    Args:
        always: keys whose groups are there also without records.
    """
    by, parts = keys or (ALL,), []
    for distinct, part in reductions_in(calls, collection.schema).items():
        rows, each = collection, part
        if isinstance(distinct, tuple):
            rows = collection.select(*dict.fromkeys((*keys, *distinct))).distinct()
            each = {name: replace(call, distinct=False) for name, call in part.items()}
        parts.append(_reduction(rows, keys, each, always))
    joined = reduce(lambda left, right: join_null_safe(left, right, by, by, "inner"), parts)
    names = [*keys, *calls]
    return joined if joined.schema.names == names else joined.select(*names)


def reductions_in(calls: Calls, schema: pa.Schema) -> dict[Any, dict[str, AggregateFunction]]:
    """The aggregates of each reduction; of distinct rows by their columns.

    Sums of their own do not read the values that others store of a group. There is one reduction if some read
    all values of a group whatever changes.
    """
    parts: dict[Any, dict[str, AggregateFunction]] = {}
    for name, call in calls.items():
        kind: Any = "extremes" if call.function in {"min", "max"} else "values"
        if call.distinct and call.function in {*COUNTS, *SUMS} and len(call.columns) == 1:
            kind = call.columns
        elif is_weight(call, schema):
            kind = "sums"
        parts.setdefault(kind, {})[name] = call
    return parts if parts and "values" not in parts else {"values": dict(calls)}


def _reduction(
    collection: Collection, keys: tuple[str, ...], calls: Calls, always: Collection | None
) -> Collection:
    """The aggregates behind the keys, or behind `ALL`."""
    schema, by = collection.schema, keys or (ALL,)
    if always is None and keys and len(calls) == 1:
        ((out, call),) = calls.items()
        if call.function == "count" and not call.columns:
            return collection.count(out, keys=list(keys))
        if call.function in {"min", "max"} and call.columns[0] not in keys:
            (column,) = call.columns
            names = [*keys, column]
            input_ = collection if schema.names == names else collection.select(*names)
            logic = LeastOrNull(keys, column, greatest=call.function == "max")
            detail = f"{call} by {', '.join(keys)}"
            part = reduced(call.function, input_, logic, [schema.field(column)], name=None, detail=detail)
            return part if out == column else part.select(*keys, {out: column})
    weights = [call for call in calls.values() if is_weight(call, schema)]
    counted = tuple(dict.fromkeys(call.columns[0] for call in weights if call.columns))
    multiplied = tuple(dict.fromkeys(one for call in weights for one in products_in(call)))
    summed = tuple(dict.fromkeys(one for call in weights for one in summands(call)))
    values = [call for call in calls.values() if not is_weight(call, schema)]
    read = [one for call in values for one in (*call.columns, *(by.column for by in call.order))]
    stored = tuple(dict.fromkeys(one for one in read if one not in keys))
    if always is None:
        grouped = collection if keys else with_one_key(collection)
    else:
        grouped = _with_groups(collection, keys, always)
    fields = [pa.field(name, call.type) for name, call in calls.items()]
    aggregates = SqlAggregates(by, tuple(calls.items()), stored, summed, counted, multiplied)
    detail = f"{', '.join(map(str, calls.values()))}{' by ' if keys else ''}{', '.join(keys)}"
    return reduced(
        "aggregate",
        grouped,
        aggregates,
        fields,
        name=None,
        detail=detail,
        calls=[str(call) for call in calls.values()],
    )


def _with_groups(collection: Collection, keys: tuple[str, ...], always: Collection) -> Collection:
    """The records, and a weight of their own for the groups that are always there."""
    ours, groups = collection.together("aggregate", always)
    zero = pc.scalar(pa.scalar(0, pa.int64()))
    one_key = {} if keys else {ALL: pc.scalar(0)}
    own = (ALL, DIFF, _ALWAYS)
    columns = {name: name for name in ours.schema.names}
    null = {one.name: pc.scalar(pa.scalar(None, one.type)) for one in ours.schema}
    their_keys = dict(zip(keys, groups.schema.names if keys else (), strict=True))
    left = computed(ours.stream, columns | one_key | {DIFF: DIFF, _ALWAYS: zero}, own=own)
    right = computed(groups.stream, null | their_keys | one_key | {DIFF: zero, _ALWAYS: DIFF}, own=own)
    return ours.like(left).concat(groups.like(right))
