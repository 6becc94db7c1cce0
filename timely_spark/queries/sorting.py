"""Orders of rows by several columns, and what needs one: the first rows, and whether rows are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from timely_spark.authors import DIFF, GROUP, Logic, flat, numbers, reduced
from timely_spark.differential.collections import Collection
from timely_spark.differential.reducers import first_places, present_records
from timely_spark.differential.reductions import with_one_key
from timely_spark.differential.sets import OTHER, side_by_side
from timely_spark.operators.aggregate import ALL
from timely_spark.sql.lists import dense_ranks
from timely_spark.sql.types import has_map
from timely_spark.state.arrow import Longs, Mask
from timely_spark.state.hashing import hashes


@dataclass(frozen=True)
class Order:
    """A column by which rows are ordered."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        down = " desc" if self.descending else ""
        nulls = (
            "" if self.nulls_first != self.descending else f" nulls {'first' if self.nulls_first else 'last'}"
        )
        return f"{self.column}{down}{nulls}"


def ranks(column: Any) -> Longs:
    """Positive numbers in the order of the values: 0 for null; NaN is greatest.

    >>> ranks(pa.array([2.0, None, float("nan"), -0.0, 0.0])).tolist()
    [3, 0, 4, 2, 2]
    """
    values = flat(column)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if has_map(values.type):  # maps have any order, the same one everywhere
        values = pa.array(hashes(pa.table({"value": values}), ["value"]))
    return np.where(valid, dense_ranks(values) + 1, 0)


def keyed(table: pa.Table, order: Sequence[Order]) -> list[Longs]:
    """For each column of an order numbers that ascend in it."""
    keys = []
    for one in order:
        rank = ranks(table.column(one.column))
        most = int(rank.max(initial=0)) + 1
        turned = np.where(rank == 0, 0, most - rank) if one.descending else rank
        keys.append(np.where(rank == 0, 0 if one.nulls_first else most + 1, turned))
    return keys


def rows_in_order(table: pa.Table, order: Sequence[Order]) -> tuple[Any, list[Longs]]:
    """The rows by `GROUP`, an order, and then the other columns; and the order's numbers, sorted so."""
    keys = keyed(table, order)
    named = {one.column for one in order}
    others = [
        ranks(table.column(name))
        for name in table.schema.names
        if name not in named and name != GROUP and not name.startswith(DIFF)
    ]
    rows = np.lexsort([*others[::-1], *keys[::-1], numbers(table, GROUP)])
    return rows, [one[rows] for one in keys]


@dataclass(frozen=True, slots=True)
class FirstRows(Logic):
    """The records from one place on to another in an order; a record of multiplicity n has n places."""

    order: tuple[Order, ...]
    count: int | None
    offset: int

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        rows, _ = rows_in_order(inputs, self.order)
        return first_places(inputs.take(pa.array(rows)), self.count, self.offset)

    def irrelevant(self, results: pa.Table, changes: pa.Table) -> Mask:
        """Changes that come after the last result of a group whose places all have one."""
        if not results.num_rows:
            return np.zeros(changes.num_rows, np.bool_)
        # of equal records changes come first: they are relevant
        both = pa.concat_tables([changes, results.select(changes.schema.names)])
        rows, _ = rows_in_order(both, self.order)
        places = np.empty(len(rows), np.int64)
        places[rows] = np.arange(len(rows))
        after, own = np.split(places, [changes.num_rows])
        of, groups = numbers(changes, GROUP), numbers(results, GROUP)
        last, filled = (np.zeros(max(of.max(initial=0), groups.max()) + 1, np.int64) for _ in range(2))
        np.maximum.at(last, groups, own)
        np.add.at(filled, groups, numbers(results, DIFF))
        mask: Mask = (filled[of] == self.count) & (after > last[of])
        return mask


def by_keys(
    operator: str,
    collection: Collection,
    keys: tuple[str, ...],
    logic: Any,
    more: Sequence[pa.Field] = (),
    **parameters: Any,
) -> Collection:
    """A reduction whose results have all columns of the records, and more, in their order."""
    schema = collection.schema
    names = [*schema.names, *(one.name for one in more)]
    keyed_by = keys or (ALL,)
    grouped = collection if keys else with_one_key(collection)
    fields = [*(one for one in schema if one.name not in keyed_by), *more]
    result = reduced(operator, grouped, logic(keyed_by), fields, name=None, **parameters)
    return result if result.schema.names == names else result.select(*names)


def limited(
    collection: Collection, keys: tuple[str, ...], order: tuple[Order, ...], count: int | None, offset: int
) -> Collection:
    """The first records of each key by an order, after an offset."""
    order = tuple(one for one in order if one.column not in keys)
    detail = f"{'all' if count is None else count} by {', '.join(map(str, order))}"
    return by_keys(
        "limit",
        collection,
        keys,
        lambda by: FirstRows(by, order, count, offset),
        detail=detail,
        order=[str(one) for one in order],
        count=count,
        offset=offset,
    )


@dataclass(frozen=True, slots=True)
class Present(Logic):
    """The records of one side that the other side has, or has not; the whole record is the key."""

    signed: ClassVar[bool] = True
    present: bool

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        left, right = numbers(inputs, DIFF), numbers(inputs, OTHER)
        passing = (left > 0) & ((right > 0) == self.present)
        return pa.table({GROUP: inputs[GROUP], DIFF: inputs[DIFF]}).filter(pa.array(passing))


def matched(left: Collection, right: Collection, *, present: bool) -> Collection:
    """The left records that are among the right ones, or are not; null equals null."""
    left, right = left.together("match", right)
    logic = Present(tuple(left.schema.names), present)
    return reduced("match", side_by_side(left, right), logic, [], name=None, present=present)
