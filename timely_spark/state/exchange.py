"""The records of a table for each worker: by H, by an expression, to all, in blocks, with hot keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from timely_spark.graph import Partition, project
from timely_spark.state.arrow import Hashes, Mask, flat, with_narrow_longs
from timely_spark.state.hashing import hashes

_U = np.uint64


def partitioned(table: pa.Table, by: Partition, workers: int, *, narrow: bool = False) -> dict[int, pa.Table]:
    """The records for each worker that gets some, in the table's order; `narrow`: see `with_narrow_longs`.

    A user's H is taken modulo the number of workers; null counts as 0. Pairs in blocks: see `_blocks`.

    >>> import pyarrow.compute as pc
    >>> by = Partition(("n",), computed="n", expression=pc.field("n"), workers=(1, 4))
    >>> {
    ...     to: part["n"].to_pylist()
    ...     for to, part in partitioned(pa.table({"n": [3, 2, None, -1]}), by, 5).items()
    ... }
    {1: [2, None], 4: [3, -1]}
    """
    among = range(workers) if by.workers is None else by.workers
    if table.num_rows == 0:
        return {}
    if by.broadcast:
        return dict.fromkeys(among, table)
    if len(among) == 1 and by.expression is None:
        return {among[0]: table}
    if (to := destinations(table, by, workers)) is not None:
        return split(with_narrow_longs(table) if narrow else table, to, workers)
    assert by.skew is not None
    hashed = hashes(table, by.columns)
    hot = is_hot(hashed, by.skew.hot)
    cold = split(table.filter(pa.array(~hot)), hashed[~hot] % _U(len(among)), len(among))
    copied = table.filter(pa.array(hot))
    return {
        worker: pa.concat_tables([cold[number], copied]) if number in cold else copied
        for number, worker in enumerate(among)
    }


def destinations(table: pa.Table, by: Partition, workers: int) -> Hashes | None:
    """The worker of each record, as in `partitioned`; None if some records are for several workers."""
    among = range(workers) if by.workers is None else by.workers
    if by.broadcast:
        return None
    if by.skew is not None and len(among) > 1:
        to = hashes(table, by.columns)
        if (hot := is_hot(to, by.skew.hot)).any():
            if not by.skew.spread:
                return None
            to[hot] = hashes(table.filter(pa.array(hot)), by.skew.spread)
        to %= _U(len(among))
    elif by.blocks and len(among) > 2:  # of two workers both would get all values
        to = _blocks(table, by.columns, len(among))
    elif by.expression is None:
        to = hashes(table, by.columns) % _U(len(among))
    else:
        value = flat(project(table, {"worker": by.expression}).column(0)).fill_null(0)
        number = value.to_numpy(zero_copy_only=False)
        number = number if number.dtype == np.uint64 else number.astype(np.int64)
        to = (number % number.dtype.type(len(among))).astype(_U)
    return to if by.workers is None else np.array(among, _U)[to]


def is_hot(hashed: Hashes, hot: Sequence[int]) -> Mask:
    """The keys, given by H, that are hot."""
    return np.isin(hashed, np.array(hot, _U))


def _blocks(table: pa.Table, columns: Sequence[str], workers: int) -> Hashes:
    """The worker of each pair of values: about sqrt(2 * workers) workers get pairs with any one value.

    The pairs of a greater and a lesser hash are a triangle. It is cut into strips by the greater one, and a
    strip into cells by the ratio of both: one for each worker, all of one area, about as wide as high. Whole
    numbers of at most 64 bits: a pair has one worker on all machines.
    """
    strips = max(1, round((2 * workers) ** 0.5 - 0.5))
    until = [workers * i * (i + 1) // (strips * (strips + 1)) for i in range(strips + 1)]
    a, b = (hashes(table, [column]) >> _U(38) for column in columns)
    high, low = np.maximum(a, b), np.minimum(a, b)
    area = (high * high >> _U(20)) * _U(workers) >> _U(32)
    strip, first = np.searchsorted(until[1:], area, side="right"), np.array(until, _U)
    to: Hashes = first[strip] + low * np.diff(first)[strip] // (high + _U(1))
    return to


def split(table: pa.Table, to: Hashes, workers: int) -> dict[int, pa.Table]:
    """The records for each worker that gets some, given the worker of each, in the table's order."""
    # numpy sorts 16-bit integers stably by counting
    order = np.argsort(to.astype(np.uint16) if workers <= 1 << 16 else to, kind="stable")
    bounds = np.searchsorted(to[order], np.arange(workers + 1, dtype=_U))
    rows = table.take(order)
    return {
        w: rows.slice(bounds[w], bounds[w + 1] - bounds[w])
        for w in range(workers)
        if bounds[w] < bounds[w + 1]
    }
