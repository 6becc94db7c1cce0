"""Weights: what is stored of a group instead of its values, where sums of these are all that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from timely_spark.authors import DIFF, GROUP, flat, numbers
from timely_spark.differential.reducers import SCALE
from timely_spark.differential.trace import products
from timely_spark.queries.groups import AggregateFunction, GroupRecords
from timely_spark.sql.types import INTERVAL
from timely_spark.state.arrow import Longs
from timely_spark.state.sums import limbs_of, products_of_limbs

SUMS = {"sum", "avg", "try_sum", "try_avg"}
COUNTS = {"count", "count_if"}
VARIANCES = ("stddev", "stddev_pop", "variance", "var_pop")
#: by function of pairs `(y, x)` the products that it sums
PAIRS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("covar_pop", "covar_samp", "regr_sxy"), ("xy",)),
    **dict.fromkeys(("corr", "regr_r2"), ("xx", "xy", "yy")),
    **dict.fromkeys(("regr_slope", "regr_intercept"), ("xx", "xy")),
    "regr_sxx": ("xx",),
    "regr_syy": ("yy",),
}


def is_weight(call: AggregateFunction, schema: pa.Schema) -> bool:
    """Whether an aggregate is computed from sums alone, so that no values are stored."""
    if call.distinct:
        return False
    if call.function in {*COUNTS, *VARIANCES, *PAIRS}:
        return True
    kind = schema.field(call.columns[0]).type if call.columns else None
    if call.function not in SUMS or kind is None:
        return False
    if pa.types.is_decimal(kind):
        return bool(kind.scale + 4 <= 38)  # so that of a mean tells the sum's
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind == INTERVAL)


def products_in(call: AggregateFunction) -> list[tuple[str, str]]:
    """The pairs of columns whose products an aggregate sums."""
    if call.function in VARIANCES:
        return [(call.columns[0], call.columns[0])]
    named = dict(zip("yx", call.columns, strict=False))
    return [(named[pair[0]], named[pair[1]]) for pair in PAIRS.get(call.function, ())]


def summands(call: AggregateFunction) -> tuple[str, ...]:
    """The columns that an aggregate sums."""
    return tuple(dict.fromkeys(call.columns)) if call.function in {*SUMS, *VARIANCES, *PAIRS} else ()


def with_weights(
    result: pa.Table,
    changes: pa.Table,
    counted: Sequence[str],
    summed: Sequence[str],
    pairs: Sequence[tuple[str, str]],
) -> pa.Table:
    """A table with the weights of changes.

    Args:
        result: the columns to which they are added.
        changes: the values.
        counted: the columns of which valid values are counted.
        summed: those that are summed, in limbs.
        pairs: those of `summed` whose products are summed.
    """
    diffs, limbs = numbers(changes, DIFF), dict[str, list[Longs]]()
    for column in counted:
        valid = flat(changes.column(column)).is_valid().to_numpy(zero_copy_only=False)
        result = result.append_column(_valid(column), pa.array(valid * diffs))
    for column in summed:
        scales, limbs[column] = limbs_of(changes.column(column))
        if scales is not None:
            result = result.append_column(_scale(column), pa.array(scales))
    for x, y in pairs:
        limbs[product(x, y)] = products_of_limbs(limbs[x], limbs[y])
    for column, parts in limbs.items():
        for n, limb in enumerate(parts):
            weight = _limb(n, column)
            result = result.append_column(weight, pa.array(products(limb, diffs, weight)))
    return result


def with_own_weights(call: AggregateFunction, groups: GroupRecords) -> GroupRecords:
    """The records with the weights of an aggregate, which are computed where its values are stored."""
    if not call.distinct and _limb(0, call.columns[0]) in groups.table.schema.names:
        return groups
    present = groups.with_values(call).table
    weights = (call.columns[:1], summands(call), products_in(call))
    return GroupRecords(with_weights(present.select([GROUP, DIFF]), present, *weights), groups.count)


def valid_counts(groups: GroupRecords, column: str) -> Longs:
    """The number of valid values of each group."""
    return groups.total(numbers(groups.table, _valid(column)))


def summed_limbs(groups: GroupRecords, column: str) -> list[Longs]:
    """The limbs of a column in each record."""
    names = set(groups.table.schema.names)
    return [numbers(groups.table, one) for n in range(8) if (one := _limb(n, column)) in names]


def scaled_limbs(groups: GroupRecords, column: str) -> tuple[Longs, list[Longs]] | None:
    """The scales of a column of doubles, and its limbs, in each record; None of other numbers."""
    if (scale := _scale(column)) not in groups.table.schema.names:
        return None
    return numbers(groups.table, scale), summed_limbs(groups, column)


def product(x: str, y: str) -> str:
    """The name of the products of two columns."""
    return f"{x} * {y}"


def _valid(column: str) -> str:
    return f"{DIFF}_valid {column}"


def _limb(n: int, column: str) -> str:
    return f"{DIFF}_limb {n} {column}"


def _scale(column: str) -> str:
    return f"{SCALE} {column}"
