"""Aggregates that read all values of a group: moments, moments of pairs, percentiles and the mode.

The distinct values of a group are stored with their multiplicities. A change computes its groups again in the
order of the values, so a result does not depend on what was deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.authors import DIFF, numbers
from timely_spark.queries.groups import AggregateFunction, GroupRecords, as_doubles
from timely_spark.queries.sorting import Order, ranks
from timely_spark.state.grouping import changes, run_starts

Doubles: TypeAlias = "npt.NDArray[np.float64]"


MOMENTS = ("stddev", "stddev_pop", "variance", "var_pop", "skewness", "kurtosis")
PAIRS = (
    "covar_pop", "covar_samp", "corr", "regr_sxx", "regr_syy", "regr_sxy", "regr_slope", "regr_intercept",
    "regr_r2",
)  # fmt: skip


def centred(groups: GroupRecords, column: str) -> tuple[Doubles, Doubles]:
    """What each value is more than its group's mean; and the means. Equal values are exactly their mean."""
    values = as_doubles(groups.table.column(column)).to_numpy()
    counts = numbers(groups.table, DIFF).astype(np.float64)
    first = np.zeros(groups.count)
    first[groups.of[groups.firsts]] = values[groups.firsts]
    moved = values - first[groups.of]
    mean = groups.total(moved * counts) / groups.total(counts)
    return moved - mean[groups.of], first + mean


def moments(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """The variance, its root, the skewness or the kurtosis."""
    (column,) = call.columns
    records = groups.with_values(call)
    records = records.sorted([Order(column)])
    counts = numbers(records.table, DIFF).astype(np.float64)
    n = records.total(counts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart, _ = centred(records, column)
        squares = records.total(counts * apart**2)
        if call.function == "skewness":
            shape = np.sqrt(n) * records.total(counts * apart**3) / squares**1.5
            return pa.array(shape, mask=(n == 0) | (squares == 0))
        if call.function == "kurtosis":
            shape = n * records.total(counts * apart**4) / squares**2 - 3.0
            return pa.array(shape, mask=(n == 0) | (squares == 0))
        sample = call.function in {"variance", "stddev"}
        variance = squares / (n - 1 if sample else n)
        moments = np.sqrt(variance) if call.function.startswith("stddev") else variance
    return pa.array(moments, mask=n <= (1 if sample else 0))


def pairs(call: AggregateFunction, groups: GroupRecords) -> pa.Array:
    """Covariance, correlation and the line through the pairs `(y, x)` of a group."""
    records = groups.with_values(call).sorted([Order(one) for one in dict.fromkeys(call.columns)])
    counts = numbers(records.table, DIFF).astype(np.float64)
    n = records.total(counts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        (y, mean_y), (x, mean_x) = (centred(records, one) for one in call.columns)
        sxx, syy, sxy = (records.total(counts * each) for each in (x * x, y * y, x * y))
        few = n < 2
        results = {
            "covar_pop": (sxy / n, n == 0),
            "covar_samp": (sxy / (n - 1), few),
            "corr": (sxy / np.sqrt(sxx * syy), few | (sxx == 0) | (syy == 0)),
            "regr_sxx": (sxx, n == 0),
            "regr_syy": (syy, n == 0),
            "regr_sxy": (sxy, n == 0),
            "regr_slope": (sxy / sxx, few | (sxx == 0)),
            "regr_intercept": (mean_y - sxy / sxx * mean_x, few | (sxx == 0)),
            "regr_r2": (np.where(syy == 0, 1.0, sxy * sxy / (sxx * syy)), few | (sxx == 0)),
        }
    values, missing = results[call.function]
    return pa.array(values, mask=missing)


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
    return pa.array(percentiles, mask=~some)
