"""Traces: the changes of a collection, indexed by key, each with its time and its difference.

A change is a row with `DIFF`: from its time on, the record occurs so many times more. A trace is an
`Arrangement` of changes whose times are integer columns, so that many times are compared at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.errors import StateError
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.codes import Runs, numbers_of, runs
from timely_spark.state.keys import Hashes, Indices, flat

DIFF = "__timely_diff"
"""The column of differences: by how much the multiplicity of a record grows at a time."""

SEQUENCE = "__timely_sequence"
"""The column of sequence numbers: the order of changes in an index, or the last one that a join has read."""

_TIME = "__timely_time"

Coordinates = npt.NDArray[np.int64]
"""The times of rows: an array of shape (rows, coordinates)."""


def consolidate(table: pa.Table) -> pa.Table:
    """Add up the weights of equal rows, and drop rows whose weights are all zero.

    **Columns:** in and out: any flat ones, and `DIFF`; or several weights, whose names begin with it.

    Example:
        >>> consolidate(pa.table({"k": [1, 2, 1, 3], DIFF: [1, 1, 1, 0]})).sort_by("k").to_pydict()
        {'k': [1, 2], '__timely_diff': [2, 1]}
    """
    return added_up(table, runs(numbers_of(table, labels_of(table)), table.num_rows))[1]


def added_up(table: pa.Table, of: Runs) -> tuple[Indices, pa.Table]:
    """Each run's first row (index and row) with the run's total weights; none where these are zero."""
    weights = weights_of(table)
    if not table.num_rows:
        return of.order, table
    totals = [of.totals(numbers(table, one)) for one in weights]
    some = np.any(totals, axis=0)
    firsts = of.firsts if some.all() else of.firsts[some]
    rows = table.drop_columns(weights).take(pa.array(firsts))
    for column, total in zip(weights, totals, strict=True):
        rows = rows.append_column(column, pa.array(total if len(firsts) == len(total) else total[some]))
    return firsts, rows.select(table.schema.names)


def replaced(table: pa.Table, column: str, values: npt.NDArray[Any]) -> pa.Table:
    """The table with a column replaced."""
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(values, field.type))


def numbers(table: pa.Table, column: str) -> npt.NDArray[Any]:
    """A numeric column without nulls as an array."""
    values: npt.NDArray[Any] = flat(table.column(column)).to_numpy()
    return values


def insert(state: Arrangement, changes: pa.Table, time: Any, since: int, settled: int = 0) -> None:
    """Add changes at a time to a trace, which is compacted as its batches merge.

    Args:
        state: the trace.
        changes: rows with weights.
        time: the time of all changes.
        since: the compaction frontier: no change arrives at an earlier epoch.
        settled: sequence numbers up to this one are not distinguished any more.

    Raises:
        StateError: `time` is before `since`.
    """
    state.insert(stamped(changes, time, since), compact=partial(compact, since, settled))


def stamped(changes: pa.Table, time: Any, since: int) -> pa.Table:
    """Changes with the time columns of a trace.

    Raises:
        StateError: `time` is before `since`.
    """
    if time.epoch < since:
        msg = f"a change at {time} arrives at a trace that was compacted up to epoch {since}"
        raise StateError(msg, hint="this is a defect of timely_spark: please report it, with the flow")
    for i, value in enumerate(time.encode()):
        changes = changes.append_column(f"{_TIME}{i}", pa.array(np.full(changes.num_rows, value, np.int64)))
    return changes


def compact(since: int, settled: int, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """Logical compaction: advance epochs before `since` to `since`, and consolidate."""
    table = replaced(table, f"{_TIME}0", np.maximum(numbers(table, f"{_TIME}0"), since))
    if SEQUENCE in table.schema.names:
        sequence = numbers(table, SEQUENCE)
        table = replaced(table, SEQUENCE, np.where(sequence > settled, sequence, 0))
    same_hash = np.cumsum(np.concatenate([[0], hashed[1:] != hashed[:-1]]))
    firsts, table = added_up(table, runs([same_hash, *numbers_of(table, labels_of(table))], table.num_rows))
    return hashed[firsts], table


def labels_of(table: pa.Table) -> list[str]:
    """The columns that are not weights."""
    return [column for column in table.schema.names if not column.startswith(DIFF)]


def weights_of(table: pa.Table) -> list[str]:
    """The weights, which are added up: `DIFF`, and the columns whose names begin with it."""
    return [column for column in table.schema.names if column.startswith(DIFF)]


def times_of(table: pa.Table, depth: int) -> tuple[Coordinates, pa.Table]:
    """The times of a trace's rows, and the rows without the time columns.

    A trace from outside a loop has fewer coordinates; inside the loop its rows are at iteration 0.

    Args:
        table: rows of a trace.
        depth: the number of coordinates of a time here.
    """
    names = [column for column in table.schema.names if column.startswith(_TIME)]
    times = np.zeros((table.num_rows, depth), np.int64)
    for i, column in enumerate(names):
        times[:, i] = numbers(table, column)
    return times, table.drop_columns(names)


def by_time(rows: pa.Table, times: Coordinates, time: Any) -> Iterator[tuple[list[int], pa.Table]]:
    """Rows by the join of `time` with their own times: each different join, and its rows."""
    joined = np.maximum(times, np.array(time.encode(), np.int64))
    found = runs(list(joined.T), len(joined))
    if len(found.starts) > 1:  # rows are moved once, and then only sliced
        rows = rows.take(pa.array(found.order))
    for moment, start, size in zip(joined[found.firsts], found.starts, found.sizes, strict=True):
        yield moment.tolist(), rows.slice(start, size)
