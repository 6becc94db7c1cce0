"""Changes to records, and their history: rows with a difference, consolidated and indexed by key and time.

A change is a row with `DIFF`, how many of the record there are more from its time on. A history is an
`Arrangement` of changes whose times are columns of whole numbers, so that all of them are compared at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.errors import StateError
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.codes import Runs, numbers_of, runs
from timely_spark.worker.keys import Hashes, Indices, flat

DIFF = "__timely_diff"
"""The column that says how many of a record there are more (or less) from a time on."""

SEQUENCE = "__timely_sequence"
"""The column that says when a change came into an index, or up to where it was matched with one."""

_TIME = "__timely_time"

Coordinates = npt.NDArray[np.int64]
"""Times of rows: an array of (rows, coordinates)."""


def consolidate(table: pa.Table) -> pa.Table:
    """Add up the weights of equal rows, and drop those that come to nothing.

    **Columns:** in and out: any flat ones, and `DIFF`; or several weights, whose names begin with it.

    Example:
        >>> consolidate(pa.table({"k": [1, 2, 1, 3], DIFF: [1, 1, 1, 0]})).sort_by("k").to_pydict()
        {'k': [1, 2], '__timely_diff': [2, 1]}
    """
    return added_up(table, runs(numbers_of(table, labels_of(table)), table.num_rows))[1]


def added_up(table: pa.Table, of: Runs) -> tuple[Indices, pa.Table]:
    """One row for each run of equal ones that comes to anything: which row it was, and the rows."""
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
    """The table with other numbers in a column."""
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(values, field.type))


def numbers(table: pa.Table, column: str) -> npt.NDArray[Any]:
    """A column without nulls as numbers."""
    values: npt.NDArray[Any] = flat(table.column(column)).to_numpy()
    return values


def insert(state: Arrangement, changes: pa.Table, time: Any, since: int, settled: int = 0) -> None:
    """Add changes at a time to a history; times that nobody can tell apart become one as batches merge.

    Args:
        state: the history.
        changes: rows, each with its weights.
        time: of all of them, in the product order.
        since: an epoch before which nothing can arrive anywhere any more.
        settled: sequence numbers up to this one are all the same by now.

    Raises:
        StateError: `time` is before `since`, where what was held is not told apart any more.
    """
    state.insert(stamped(changes, time, since), compact=partial(compact, since, settled))


def stamped(changes: pa.Table, time: Any, since: int) -> pa.Table:
    """Changes with their time, as a history has them.

    Raises:
        StateError: `time` is before `since`.
    """
    if time.epoch < since:
        msg = f"a change at {time} comes into a history of which all before epoch {since} has become one"
        raise StateError(msg, hint="this is a defect of timely_spark: please report it, with the flow")
    for i, value in enumerate(time.encode()):
        changes = changes.append_column(f"{_TIME}{i}", pa.array(np.full(changes.num_rows, value, np.int64)))
    return changes


def compact(since: int, settled: int, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """Epochs before `since` become `since`, from where on both mean the same; what cancels out is dropped."""
    table = replaced(table, f"{_TIME}0", np.maximum(numbers(table, f"{_TIME}0"), since))
    if SEQUENCE in table.schema.names:
        sequence = numbers(table, SEQUENCE)
        table = replaced(table, SEQUENCE, np.where(sequence > settled, sequence, 0))
    same_hash = np.cumsum(np.concatenate([[0], hashed[1:] != hashed[:-1]]))
    firsts, table = added_up(table, runs([same_hash, *numbers_of(table, labels_of(table))], table.num_rows))
    return hashed[firsts], table


def labels_of(table: pa.Table) -> list[str]:
    """The columns of a table that are not added up."""
    return [column for column in table.schema.names if not column.startswith(DIFF)]


def weights_of(table: pa.Table) -> list[str]:
    """The columns of a table that are added up: `DIFF`, and those named after it."""
    return [column for column in table.schema.names if column.startswith(DIFF)]


def times_of(table: pa.Table, depth: int) -> tuple[Coordinates, pa.Table]:
    """The times of a history's rows, and the rows without them.

    A history that comes from outside a loop has fewer coordinates: inside it is all at iteration 0.

    Args:
        table: what a look-up gave.
        depth: how many coordinates a time has here.
    """
    names = [column for column in table.schema.names if column.startswith(_TIME)]
    times = np.zeros((table.num_rows, depth), np.int64)
    for i, column in enumerate(names):
        times[:, i] = numbers(table, column)
    return times, table.drop_columns(names)


def by_time(times: Coordinates, time: Any) -> Iterator[tuple[list[int], Indices | None]]:
    """The joins of `time` with many times: each different one, and the rows it is of; None for all."""
    joined = np.maximum(times, np.array(time.encode(), np.int64))
    found = runs(list(joined.T), len(joined))
    if len(found.starts) == 1:
        yield joined[0].tolist(), None
        return
    each = np.split(found.order, found.starts[1:])
    yield from zip(joined[found.firsts].tolist(), each, strict=bool(len(joined)))
