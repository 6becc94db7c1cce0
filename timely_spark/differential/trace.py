"""Traces: the changes of a collection, indexed by key, each with its time and its difference.

A change is a row with `DIFF`: from its time on, the record occurs so many times more. A trace is an
`Arrangement` of changes whose times are integer columns, so that many times are compared at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from timely_spark.errors import SchemaError, StateError
from timely_spark.state import row_times
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, Indices, abs_bound, numbers, replaced, rows_at
from timely_spark.state.codes import by_hash, numbers_of, runs
from timely_spark.state.grouping import Groups
from timely_spark.state.hashing import exact, hashes
from timely_spark.state.row_times import Compact, compaction, time_columns, with_time
from timely_spark.state.sums import large_sums
from timely_spark.times import PRODUCT, Timestamp

DIFF = row_times.DIFF
"""The column of differences: by how much the multiplicity of a record grows at a time."""

SEQUENCE = "__timely_sequence"
"""The column of sequence numbers: the order of changes in an index, or the last one that a join has read."""

MOST = 1 << 62
"""A multiplicity that is too large: with what is below it, a sum of two does not wrap around."""

#: a second weight
_NOW = f"{DIFF}_now"


def consolidate(table: pa.Table, keys: Sequence[str] = ()) -> pa.Table:
    """Add up the weights of equal rows, and drop rows whose weights are all zero; sort them by their labels.

    Args:
        table: changes.
        keys: the columns by which the rows are found next: if this is one of integers, sort by H of it first.

    **Columns:** in and out: any flat ones, and `DIFF`; or several weights with names that begin so.

    Example:
        >>> consolidate(pa.table({"k": [1, 2, 1, 3], DIFF: [1, 1, 1, 0]})).sort_by("k").to_pydict()
        {'k': [1, 2], '__timely_diff': [2, 1]}
    """
    if keys and table.num_rows > 1 and exact(table, keys):
        labels = [column for column in labels_of(table) if column not in keys]
        groups = by_hash(hashes(table, keys), numbers_of(table, labels))
    else:
        labels = labels_of(table) if table.num_rows > 1 else []
        groups = runs(numbers_of(table, labels), table.num_rows)
    if len(groups.starts) == table.num_rows and all(numbers(table, one).all() for one in weights_of(table)):
        order = groups.order
        return table if (order[1:] > order[:-1]).all() else rows_at(table, order)
    return added_up(table, groups)[1]


def added_up(table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
    """Each group's first row (index and row) with the group's total weights; none where these are zero."""
    weights = weights_of(table)
    if not table.num_rows:
        return groups.order, table
    columns = [numbers(table, one) for one in weights]
    check_totals(groups, dict(zip(weights, columns, strict=True)))
    firsts, totals = groups.nonzero(columns)
    rows = rows_at(table.drop_columns(weights), firsts)
    for column, total in zip(weights, totals, strict=True):
        rows = rows.append_column(column, pa.array(total))
    return firsts, rows.select(table.schema.names)


def check_totals(groups: Groups, weights: Mapping[str, Indices]) -> None:
    """Check that the totals of each group's weights are not too large.

    The totals are of some of the changes: near the bound, whether others would have brought one back in time
    depends on the schedule.
    """
    for name, counts in weights.items():
        if len(groups.starts) == len(counts) or abs_bound(counts) * len(counts) < MOST:
            continue  # nothing is added, or no total reaches the bound
        ordered = counts[groups.order]
        if (large_sums(ordered, groups.starts, MOST) | large_sums(-ordered, groups.starts, MOST)).any():
            raise _too_large(name)


def became_negative(negative: pa.Table, changes: pa.Table) -> pa.Table:
    """The records of `negative` that were not negative before `changes`.

    **Columns:** `negative`: any flat ones, and `DIFF`, the multiplicity; `changes`: these and others.

    >>> negative = pa.table({"n": [1, 2], DIFF: [-1, -2]})
    >>> became_negative(negative, pa.table({"n": [1, 2, 3], DIFF: [-1, -1, -1]})).to_pylist()
    [{'n': 1, '__timely_diff': -1}]
    """
    changes = changes.select(negative.column_names)
    before = replaced(changes, DIFF, -numbers(changes, DIFF))
    zeros = pa.array(np.zeros(changes.num_rows, np.int64))
    both = [negative.append_column(_NOW, negative[DIFF]), before.append_column(_NOW, zeros)]
    total = consolidate(pa.concat_tables(both))
    total = total.filter(pa.array((numbers(total, DIFF) >= 0) & (numbers(total, _NOW) < 0)))
    return replaced(total, DIFF, numbers(total, _NOW)).drop_columns(_NOW)


def products(left: Indices, right: Indices, weight: str = DIFF) -> Indices:
    """The products of multiplicities, or of values and multiplicities, which must not be too large."""
    if abs_bound(left) * abs_bound(right) >= MOST:
        one, other = (np.abs(each).view(np.uint64) for each in (left, right))
        if (one > np.uint64(MOST - 1) // np.maximum(other, np.uint64(1))).any(where=other > 0):
            raise _too_large(weight)
    return left * right


def _too_large(weight: str) -> SchemaError:
    if weight != DIFF:
        msg = "values times their multiplicities are 2 ** 62 or more, which no sum can add up"
        hint = "count equal records first, and sum the values times these counts, as doubles."
        return SchemaError(msg, hint=hint)
    msg = "a record occurs 2 ** 62 times or more, which no multiplicity can hold"
    hint = (
        "in a loop whose records add up from iteration to iteration, add distinct(), or give max_iterations."
    )
    return SchemaError(msg, hint=hint)


def insert(
    state: Arrangement, changes: pa.Table, time: Timestamp, since: int, hashed: Hashes | None = None
) -> None:
    """Add changes at a time to a trace, which is compacted up to `since` as its batches merge."""
    check_since(time, since)
    state.insert(with_time(changes, time), hashed, consolidation(since))


def check_since(time: Timestamp, since: int) -> None:
    """Check that a trace which was compacted up to an epoch may still get changes at a time."""
    if time.epoch < since:
        msg = f"a change at {time} arrives at a trace that was compacted up to epoch {since}"
        raise StateError(msg, hint="this is a defect of timely_spark: please report it, with the flow.")


def consolidation(since: int, received: int = 0) -> Compact:
    """The compaction of a trace: advance epochs before `since` to `since`, and consolidate.

    Args:
        since: no change arrives at an earlier epoch.
        received: all readers have the changes up to this sequence number: they are not distinguished.
    """

    def compact(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        if SEQUENCE in table.schema.names:
            sequence = numbers(table, SEQUENCE)
            table = replaced(table, SEQUENCE, np.where(sequence > received, sequence, 0))
        times = time_columns(table)
        labels = [column for column in labels_of(table) if column not in times]
        # nothing that is still to come distinguishes a change at `since` itself from earlier ones
        return compaction(since + 1, PRODUCT, labels, added_up)(hashed, table)

    return compact


def labels_of(table: pa.Table) -> list[str]:
    """The columns that are not weights."""
    return [column for column in table.schema.names if not column.startswith(DIFF)]


def weights_of(table: pa.Table) -> list[str]:
    """The weights, which are added up: `DIFF`, and the columns whose names begin with it."""
    return [column for column in table.schema.names if column.startswith(DIFF)]
