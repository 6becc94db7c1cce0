"""Deviations and correlations, from exact sums; shapes, percentiles and modes, from all values of a group.

A change computes the latter again in the order of the values, so a result depends on these alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.authors import DIFF, numbers
from timely_spark.queries.groups import AggregateFunction, GroupRecords, as_doubles
from timely_spark.queries.sorting import Order, ranks
from timely_spark.queries.weights import (
    product,
    products_in,
    scaled_limbs,
    summed_limbs,
    valid_counts,
    with_own_weights,
)
from timely_spark.sql.types import INTERVAL
from timely_spark.state.arrow import Doubles
from timely_spark.state.grouping import changes, run_starts
from timely_spark.state.sums import spreads_of_limbs, sums_of_scaled_limbs

SHAPES = ("skewness", "kurtosis")


def spreads(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """Variance and deviation; covariance, correlation and the line through the pairs `(y, x)` of a group."""
    y, x = call.columns[0], call.columns[-1]
    groups = with_own_weights(call, groups)
    scaled: dict[str, Any] = {one: scaled_limbs(groups, one) for one in call.columns}
    n = (counts := valid_counts(groups, y)).astype(np.float64)

    def spread(one: str, other: str) -> Doubles:
        products = summed_limbs(groups, product(one, other))
        return spreads_of_limbs(groups.of, counts, scaled[one], scaled[other], products)

    def mean(one: str) -> Doubles:
        return sums_of_scaled_limbs(groups.of, groups.count, *scaled[one]) / n

    function, pairs = call.function, products_in(call)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if len(pairs) == 1:
            sample = function in {"variance", "stddev", "covar_samp"}
            by = n - 1 if sample else 1 if function.startswith("regr") else n
            values, missing = spread(*pairs[0]) / (n * by), n < (2 if sample else 1)
            return pa.array(np.sqrt(values) if function.startswith("stddev") else values, mask=missing)
        sxx, sxy = spread(x, x), spread(x, y)
        missing = (n < 2) | (sxx == 0)
        if function == "regr_slope":
            values = sxy / sxx
        elif function == "regr_intercept":
            values = mean(y) - sxy / sxx * mean(x)
        elif function == "corr":
            syy = spread(y, y)
            values, missing = sxy / np.sqrt(sxx * syy), missing | (syy == 0)
        else:
            syy = spread(y, y)
            values = np.where(syy == 0, 1.0, sxy * sxy / (sxx * syy))
    return pa.array(values, mask=missing)


def shape(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """The skewness or the kurtosis."""
    (column,) = call.columns
    records = groups.with_values(call).sorted([Order(column)])
    values, counts = numbers(records.table, column), numbers(records.table, DIFF).astype(np.float64)
    n = records.total(counts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        first = np.zeros(records.count)  # so that equal values are exactly their mean
        first[records.of[records.firsts]] = values[records.firsts]
        moved = values - first[records.of]
        apart = moved - (records.total(moved * counts) / n)[records.of]
        square = apart * apart  # products have the same bits on every processor, powers do not
        squares = records.total(counts * square)
        if call.function == "skewness":
            shapes = np.sqrt(n) * records.total(counts * square * apart) / (squares * np.sqrt(squares))
        else:
            shapes = n * records.total(counts * square * square) / (squares * squares) - 3.0
    return pa.array(shapes, mask=(n == 0) | (squares == 0))


def mode(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """The most frequent value; of several the least, or the greatest where the order descends."""
    (column,) = call.columns
    records = groups.with_values(call)
    records = records.sorted([Order(column, descending=bool(call.options and call.options[0]))])
    new = changes(records.of) | changes(ranks(records.table.column(column)))
    starts = np.flatnonzero(new)
    totals = np.add.reduceat(numbers(records.table, DIFF), starts) if len(starts) else starts
    order = np.lexsort([-totals, records.of[starts]])  # stable: the first of equal ones
    rows = starts[order][run_starts(records.of[starts][order])]
    return records.spread(rows, records.table.column(column), call.type)


def lists_or_null(values: pa.Array, sizes: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Lists of consecutive values; null for the empty ones."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(sizes == 0)).cast(kind)


def percentile(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """The value at a share of a group's values, in their order; of several shares a list."""
    column = call.columns[0]
    if call.options and isinstance(call.options[0], tuple):
        shares, *more = call.options
        single = replace(call, type=call.type.value_type)
        each = [percentile(replace(single, options=(one, *more)), groups) for one in shares]
        by_group = np.arange(len(shares) * groups.count).reshape(len(shares), groups.count).T
        valid = each[0].is_valid().to_numpy(zero_copy_only=False)
        values = pa.concat_arrays(each).take(pa.array(by_group[valid].ravel()))
        return lists_or_null(values, np.where(valid, len(shares), 0), call.type)
    share = float(call.options[0]) if call.options else 0.5
    records = groups.with_values(call)
    records = records.sorted([Order(column)])
    backwards = len(call.options) > 1 and bool(call.options[1])  # from the greatest on
    counts = numbers(records.table, DIFF)
    sizes = records.total(counts)
    ends = np.cumsum(counts)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    some = sizes > 0
    if call.function in {"percentile_disc", "approx_percentile"}:
        place = np.maximum(np.ceil(share * sizes).astype(np.int64) - 1, 0)
        place = sizes - 1 - place if backwards else place
        rows = np.searchsorted(ends, (begins + place)[some], side="right")
        return records.spread(rows, records.table.column(column), call.type)
    values = as_doubles(records.table.column(column)).to_numpy()
    percentiles = np.zeros(groups.count)
    if some.any():
        place = (1.0 - share if backwards else share) * (sizes[some] - 1)
        low = np.floor(place).astype(np.int64)
        first = values[np.searchsorted(ends, begins[some] + low, side="right")]
        high = np.minimum(low + 1, sizes[some] - 1)
        second = values[np.searchsorted(ends, begins[some] + high, side="right")]
        part = place - low
        percentiles[some] = np.where(part == 0, first, (1 - part) * first + part * second)
    percentiles += 0.0  # 0.0 for -0.0
    if call.type == INTERVAL:
        percentiles = percentiles.astype(np.int64)
    return pa.array(percentiles, mask=~some).cast(call.type)
