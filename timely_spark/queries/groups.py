"""The records of groups, and what an aggregate reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.authors import DIFF, GROUP, changes, flat, numbers
from timely_spark.queries.sorting import Order, ranks, rows_in_order
from timely_spark.sql.functions.collections import compared
from timely_spark.sql.types import has_float, has_map
from timely_spark.state.arrow import Longs, Mask, replaced
from timely_spark.state.grouping import run_starts
from timely_spark.state.sums import large_sums, too_large_sum


@dataclass(frozen=True)
class AggregateFunction:
    """One aggregate: its function, the columns of its arguments, and the type of its results."""

    function: str
    columns: tuple[str, ...]
    type: pa.DataType
    distinct: bool = False
    #: constants, such as the share of a percentile
    options: tuple[Any, ...] = ()
    order: tuple[Order, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join([*self.columns, *map(str, self.options)]) or "*"
        order = f" order by {', '.join(map(str, self.order))}" if self.order else ""
        return f"{self.function}({'distinct ' if self.distinct else ''}{inside}{order})"


@dataclass(frozen=True)
class GroupRecords:
    """The records of some groups, present ones alone, group by group.

    **Columns:** `table`: `GROUP`, the arguments, `DIFF`, and further weights.
    """

    table: pa.Table
    count: int

    @cached_property
    def of(self) -> Longs:
        """The group of each record."""
        return numbers(self.table, GROUP)

    def valid(self, column: str) -> Mask:
        """Whether each record has a value."""
        return flat(self.table.column(column)).is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def total(self, values: Any) -> Longs:
        """For each group the sum of a number for each of its records; of longs exact, or an error."""
        if (values := np.asarray(values)).dtype == np.int64 and large_sums(values, self.firsts).any():
            raise too_large_sum()
        totals = np.zeros(self.count, values.dtype)
        np.add.at(totals, self.of, values)
        return totals

    def where(self, mask: Any) -> GroupRecords:
        """The records of a mask."""
        return self if mask.all() else GroupRecords(self.table.filter(pa.array(mask)), self.count)

    def sorted(self, order: Sequence[Order]) -> GroupRecords:
        """The records of each group in an order; ties by the other columns."""
        rows, _ = rows_in_order(self.table, order)
        return GroupRecords(self.table.take(pa.array(rows)), self.count)

    def once(self, *columns: str) -> GroupRecords:
        """One record for each value of some columns in a group, with multiplicity 1; without nulls."""
        present = self.where(np.logical_and.reduce([self.valid(one) for one in columns]))
        labels = [*(ranks(present.table.column(one)) for one in columns), present.of]
        order = np.lexsort(labels)
        new = np.logical_or.reduce([changes(one[order]) for one in labels])
        table = present.table.take(pa.array(order[new]))
        return GroupRecords(replaced(table, DIFF, np.ones(table.num_rows, np.int64)), self.count)

    def with_values(self, call: AggregateFunction) -> GroupRecords:
        """The records with values of an aggregate's arguments; of one with `DISTINCT` each value once."""
        if call.distinct:
            return self.once(*call.columns)
        return self.where(np.logical_and.reduce([self.valid(one) for one in call.columns]))

    def spread(self, rows: Longs, values: pa.Array, kind: pa.DataType) -> pa.Array:
        """For each group the value of one of its records, null for groups without a row."""
        at = np.full(self.count, -1, np.int64)
        at[self.of[rows]] = rows
        chosen = flat(values).take(pa.array(at, mask=at < 0)).cast(kind, safe=False)  # longs as doubles
        return written_alike(chosen)

    def halves(self) -> tuple[GroupRecords, GroupRecords]:
        """The records of the first half of the groups, and of the others, which are numbered from 0 on."""
        half = self.count // 2
        first = int(np.searchsorted(self.of, half))
        others = self.table.slice(first)
        others = replaced(others, GROUP, numbers(others, GROUP) - half)
        return GroupRecords(self.table.slice(0, first), half), GroupRecords(others, self.count - half)

    @cached_property
    def firsts(self) -> Longs:
        """The first record of each group that has one."""
        return run_starts(self.of)

    @cached_property
    def lasts(self) -> Longs:
        """The last record of each group that has one."""
        return np.append(self.firsts[1:], len(self.of))[: len(self.firsts)] - 1


def written_alike(values: pa.Array) -> pa.Array:
    """Values with 0.0 for -0.0: which of equal ones is stored depends on their order."""
    some = has_float(values.type) and not has_map(values.type)
    return compared(values) if some else values


def as_doubles(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Numbers, or intervals' microseconds, as doubles, as Spark casts them: longs beyond 2^53 are rounded."""
    values = flat(values)
    if pa.types.is_duration(values.type):
        values = values.cast(pa.duration("us"), safe=False).cast(pa.int64())
    return values.cast(pa.float64(), safe=False)
