"""The logic of each reduction: the results of a key's accumulated records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.trace import DIFF, MOST, consolidate, products
from timely_spark.errors import RAISED, RecordError, SchemaError
from timely_spark.graph import as_table
from timely_spark.operators.group_map import key_numbers
from timely_spark.operators.rows import records, rows_of, table_of
from timely_spark.state.arrow import Longs, Mask, flat, numbers, replaced
from timely_spark.state.grouping import run_starts
from timely_spark.state.sums import limbs_of, sums_of_limbs, sums_of_scaled_limbs

GROUP = "__timely_group"
"""The column with a number for each key of a call; rows are sorted by it."""

SCALE = "__timely_scale"
"""The column with the scales of doubles (`state.sums`)."""

_VALID = f"{DIFF}_valid"
_LIMBS = [f"{DIFF}_limb {n}" for n in range(4)]

MOST_RECORDS = 1 << 26
"""The most records of a key, equal ones repeated, that a user's function gets."""

NumberedRows = list[Longs]
"""Rows as integer columns: the number of the key, the number of the value, and the weights."""


@dataclass(frozen=True, slots=True)
class Logic:
    """The function of a reduction, over the accumulated records of many keys.

    The law: the results of a key depend on its records only.

    Args:
        keys: the columns of the keys.

    Example:
        The number of records of each key. What `partial` drops is not in the state:

        >>> class Size(Logic):
        ...     def partial(self, changes):
        ...         return changes.select([*self.keys, DIFF])
        ...
        ...     def results(self, keys, inputs):
        ...         ones = np.ones(inputs.num_rows, np.int64)
        ...         return pa.table({GROUP: inputs[GROUP], "size": inputs[DIFF], DIFF: ones})
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("sizes")
        >>> rows = flow.input("rows", "k string, v long").collection()
        >>> size = pa.field("size", pa.int64())
        >>> sizes = ts.authors.reduced("size", rows, Size(("k",)), [size], name="sizes")
        >>> _ = sizes.changes().capture("out")
        >>> ts.testing.run(flow, {"rows": [[("a", 1), ("a", 2), ("b", 1)], [("b", 2)]]})["out"].rows()
        {0: [('a', 2, 1), ('b', 1, 1)], 1: [('b', 1, -1), ('b', 2, 1)]}
    """

    #: whether negative multiplicities of the input have a meaning
    signed: ClassVar[bool] = False
    keys: tuple[str, ...]

    def partial(self, changes: pa.Table) -> pa.Table:
        """The columns of changes to keep: keys, other columns that distinguish records, and weights."""
        return changes

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The results of keys.

        **Columns:** `keys`: the keys, row n for group n. `inputs`: `GROUP` (ascending), then the columns
        of `partial` without the keys, consolidated. Out: `GROUP`, the results, `DIFF`.
        """
        raise NotImplementedError

    @property
    def finds_irrelevant(self) -> bool:
        """Whether there is `irrelevant`."""
        return type(self).irrelevant is not Logic.irrelevant

    def irrelevant(self, results: pa.Table, changes: pa.Table) -> Mask:
        """The changes that change no result, whatever the other records of their keys. Optional.

        **Columns:** `results`: `GROUP`, the present results, `DIFF`, consolidated. `changes`: `GROUP`, then
        the columns of `partial` without the keys.

        Example:
            Of a logic with one result for each present key, more records of a present one:

            >>> class Present(Logic):
            ...     def irrelevant(self, results, changes):
            ...         return np.isin(changes[GROUP], results[GROUP]) & (numbers(changes, DIFF) > 0)
            >>> Present(("k",)).finds_irrelevant
            True
        """
        raise NotImplementedError

    def numbered(
        self, rows: NumberedRows, values: list[pa.Field]
    ) -> tuple[NumberedRows, list[pa.Field]] | None:
        """Compute `results` with each key, from rows of integers; None if only `results` can. Optional.

        Args:
            rows: arrays of the groups, the values and the weights, sorted by group and value, consolidated.
            values: the column of the values; or none, then all values are 0.

        Returns:
            The results in the order of their groups, and the column of their values, or none.

        Example:
            >>> class Size(Logic):
            ...     def numbered(self, rows, values):
            ...         groups, _, counts = rows
            ...         return [groups, counts, np.ones_like(counts)], [pa.field("size", pa.int64())]
        """
        return None


def _starts(inputs: pa.Table) -> Longs:
    """The first row of each group."""
    return run_starts(numbers(inputs, GROUP))


def present_records(inputs: pa.Table) -> pa.Table:
    """The records of positive multiplicity."""
    counts = numbers(inputs, DIFF)
    return inputs if (counts > 0).all() else inputs.filter(pa.array(counts > 0))


def first_places(inputs: pa.Table, count: int | None, offset: int = 0) -> pa.Table:
    """The records of each group in `count` places from `offset` on (None means all); n equal ones have n."""
    counts, starts = numbers(inputs, DIFF), _starts(inputs)

    def begins(counts: Any) -> Any:
        before = np.cumsum(counts) - counts
        return before - np.repeat(before[starts], np.diff(starts, append=len(counts)))

    # a sum that has wrapped around on its way is right if it is small, which its double tells
    begin = np.where(begins(counts.astype(np.float64)) < MOST, begins(counts), MOST)
    most = np.iinfo(np.int64).max
    end = most if count is None else min(offset + count, most)
    taken = np.minimum(begin + counts, end) - np.maximum(begin, offset)
    return replaced(inputs, DIFF, taken).filter(pa.array(taken > 0))


def _beyond(last: pa.Table, changes: pa.Table, value: str, *, descending: bool) -> tuple[pa.Array, pa.Array]:
    """Whether values come after the last result of their group, or equal it; null without such a result.

    **Columns:** `last`: `GROUP`, each once, and `value`.
    """
    groups, values, bounds = numbers(changes, GROUP), flat(changes.column(value)), flat(last.column(value))
    at = np.full(max(groups.max(initial=0), numbers(last, GROUP).max(initial=0)) + 1, -1, np.int64)
    at[numbers(last, GROUP)] = np.arange(last.num_rows)
    bounds = bounds.take(pa.array(at[groups], mask=at[groups] < 0))
    if pa.types.is_boolean(bounds.type):  # which Arrow does not compare
        values, bounds = values.cast(pa.int8()), bounds.cast(pa.int8())
    return (pc.less if descending else pc.greater)(values, bounds), pc.equal(values, bounds)


def _true(mask: Any) -> Mask:
    result: Mask = flat(pc.fill_null(mask, fill_value=False)).to_numpy(zero_copy_only=False)
    return result


def _ones(n: int) -> pa.Array:
    return pa.array(np.ones(n, np.int64))


@dataclass(frozen=True, slots=True)
class Count(Logic):
    """The number of records."""

    out: str

    def partial(self, changes: pa.Table) -> pa.Table:
        return changes.select([*self.keys, DIFF])

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        return pa.table({GROUP: inputs[GROUP], self.out: inputs[DIFF], DIFF: _ones(inputs.num_rows)})

    def numbered(self, rows: NumberedRows, values: list[pa.Field]) -> tuple[NumberedRows, list[pa.Field]]:
        groups, _, counts = rows
        return [groups, counts, np.ones_like(counts)], [pa.field(self.out, pa.int64())]


@dataclass(frozen=True, slots=True)
class Sum(Logic):
    """The exact sum of numbers, inputs as weights; values are not stored.

    They are added in limbs, so that no sum wraps around unseen, and that of doubles is rounded once. A limb
    times its multiplicity that is 2^62 or more, which takes a multiplicity of 2^31 or more, is an error.
    """

    signed: ClassVar[bool] = True
    value: str
    #: the type of the sum
    kind: pa.DataType
    #: how many of a decimal's digits come after the point
    scale: int = 0

    def partial(self, changes: pa.Table) -> pa.Table:
        """The number of valid values, and the sums of their limbs; those of doubles by their scales."""
        column, diffs = flat(changes.column(self.value)), numbers(changes, DIFF)
        result = changes.select([*self.keys, DIFF])
        scales, limbs = limbs_of(column)
        if scales is not None:
            result = result.append_column(SCALE, pa.array(scales))
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        for name, part in zip((_VALID, *_LIMBS), (valid, *limbs), strict=False):
            result = result.append_column(name, pa.array(products(part, diffs, name)))
        return result

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The sums; null where no value is left."""
        return self.totals(keys, inputs)[0]

    def totals(self, keys: pa.Table, inputs: pa.Table) -> tuple[pa.Table, Longs]:
        """The sums and the numbers of valid values, of the groups that still have records."""
        starts, groups = _starts(inputs), numbers(inputs, GROUP)
        limbs = [numbers(inputs, one) for one in _LIMBS if one in inputs.schema.names]
        present = groups[starts]
        if SCALE in inputs.schema.names:
            sums = pa.array(
                sums_of_scaled_limbs(groups, keys.num_rows, numbers(inputs, SCALE), limbs)[present]
            )
        else:
            sums = sums_of_limbs(limbs, self.scale, self.kind, np.zeros(len(starts), bool))
        counts, records = (np.add.reduceat(numbers(inputs, one), starts) for one in (_VALID, DIFF))
        none = pc.and_(pa.array(counts == 0), pc.equal(sums, pa.scalar(0).cast(sums.type)))
        totals = pa.table(
            {GROUP: present, self.value: pc.if_else(none, None, sums), DIFF: _ones(len(present))}
        )
        left = pc.or_(pc.invert(none), pa.array(records != 0))
        return totals.filter(left), counts[left.to_numpy(zero_copy_only=False)]


@dataclass(frozen=True, slots=True)
class Mean(Logic):
    """The mean of the valid values, as double: their sum divided by their number."""

    signed: ClassVar[bool] = True
    total: Sum

    def partial(self, changes: pa.Table) -> pa.Table:
        return self.total.partial(changes)

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The means; null without valid values."""
        totals, counts = self.total.totals(keys, inputs)
        means = pc.divide(totals[self.total.value], pa.array(counts.astype(np.float64), mask=counts == 0))
        return pa.table({GROUP: totals[GROUP], self.total.value: means, DIFF: _ones(len(means))})


@dataclass(frozen=True, slots=True)
class Extreme(Logic):
    """The least or greatest value."""

    value: str
    greatest: bool

    def partial(self, changes: pa.Table) -> pa.Table:
        return changes.select([*self.keys, self.value, DIFF])

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        value = inputs.column(self.value)
        if pa.types.is_floating(value.type):
            inputs = inputs.filter(pc.fill_null(pc.invert(pc.is_nan(value)), fill_value=False))
        elif value.null_count:
            inputs = inputs.filter(pc.is_valid(value))
        starts = _starts(inputs)
        values = flat(inputs.column(self.value))
        if pa.types.is_integer(values.type):
            least = (np.maximum if self.greatest else np.minimum).reduceat(values.to_numpy(), starts)
            best: Any = pa.array(least, values.type) if len(starts) else values
        else:
            direction = "descending" if self.greatest else "ascending"
            order = pc.sort_indices(inputs, [(GROUP, "ascending"), (self.value, direction)])
            best = values.take(order).take(starts)
        groups = inputs.column(GROUP).take(starts)
        return pa.table({GROUP: groups, self.value: best, DIFF: _ones(len(starts))})

    def irrelevant(self, results: pa.Table, changes: pa.Table) -> Mask:
        """Changes that leave the result of a key: worse values, and more of the same value."""
        beyond, equal = _beyond(results, changes, self.value, descending=self.greatest)
        if pa.types.is_floating(changes.schema.field(self.value).type):
            return _true(beyond)  # 0.0 equals -0.0
        return _true(beyond) | (_true(equal) & (numbers(changes, DIFF) > 0))

    def numbered(self, rows: NumberedRows, values: list[pa.Field]) -> tuple[NumberedRows, list[pa.Field]]:
        groups, numbers, counts = rows
        if (counts <= 0).any():
            groups, numbers = groups[counts > 0], numbers[counts > 0]
        best = run_starts(groups)
        if self.greatest:
            best = np.append(best, len(groups))[1:] - 1
        return [groups[best], numbers[best], np.ones_like(best)], values


@dataclass(frozen=True, slots=True)
class TopK(Logic):
    """The first k records by a value, then by the other columns."""

    k: int
    value: str
    descending: bool

    def irrelevant(self, results: pa.Table, changes: pa.Table) -> Mask:
        """Changes that leave `k` results of a key: values worse than the last of these."""
        if not results.num_rows:
            return np.zeros(changes.num_rows, np.bool_)
        direction = "descending" if self.descending else "ascending"
        results = results.take(pc.sort_indices(results, [(GROUP, "ascending"), (self.value, direction)]))
        starts = _starts(results)
        last = np.append(starts[1:], results.num_rows) - 1
        last = last[np.add.reduceat(numbers(results, DIFF), starts) == self.k]
        beyond, _ = _beyond(results.take(pa.array(last)), changes, self.value, descending=self.descending)
        return _true(beyond)

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        others = [c for c in inputs.schema.names if c not in {GROUP, self.value, DIFF}]
        direction = "descending" if self.descending else "ascending"
        by = [(GROUP, "ascending"), (self.value, direction), *((c, "ascending") for c in others)]
        return first_places(inputs.take(pc.sort_indices(inputs, by)), self.k)


@dataclass(frozen=True, slots=True)
class Threshold(Logic):
    """A function of each record's multiplicity; the whole record is the key."""

    signed: ClassVar[bool] = True
    function: Callable[[Any], Any]

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = replaced(inputs, DIFF, self._counts(numbers(inputs, DIFF)))
        return inputs.filter(pc.not_equal(inputs.column(DIFF), 0))

    def numbered(self, rows: NumberedRows, values: list[pa.Field]) -> tuple[NumberedRows, list[pa.Field]]:
        counts = self._counts(rows[-1])
        return [each[counts != 0] for each in (*rows[:-1], counts)], values

    def _counts(self, multiplicities: Longs) -> Longs:
        read_only = multiplicities.view()
        read_only.flags.writeable = False  # it may be the array of a trace
        counts = np.asarray(self.function(read_only))
        if counts.shape != multiplicities.shape or counts.dtype.kind not in "biu":
            msg = f"the function gave {counts.dtype} of shape {counts.shape} for {len(multiplicities)} counts"
            hint = "compute integers with the array, as in lambda counts: counts > 1."
            raise SchemaError(msg, hint=hint)
        return counts.astype(np.int64)


def presence(counts: Longs) -> Any:
    """Multiplicity 1 for each present record."""
    return counts > 0


@dataclass(frozen=True, slots=True)
class Batches(Logic):
    """A user's function of the records of many keys at once."""

    function: Callable[[pa.Table], Any]
    schema: pa.Schema

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        rows = keys.take(inputs.column(GROUP))
        for field in inputs.schema:
            if field.name not in {GROUP, DIFF}:
                rows = rows.append_column(field, inputs.column(field.name))
        rows = rows.append_column("count", inputs.column(DIFF))
        results = self.schema.empty_table()
        if inputs.num_rows:
            results = table_of(self.function, self.function(rows), self.schema)
        groups = pa.array(key_numbers(keys, results, self.keys))
        results = results.drop_columns(list(self.keys)).add_column(0, GROUP, groups)
        return consolidate(results.append_column(DIFF, _ones(results.num_rows)))


@dataclass(frozen=True, slots=True)
class PerKey(Logic):
    """A user's function of one key and its records."""

    function: Callable[[Any, list[Any]], Iterable[Any]]
    schema: pa.Schema

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = present_records(inputs)
        starts, groups = _starts(inputs), numbers(inputs, GROUP)
        named = [column for column in inputs.schema.names if column not in {GROUP, DIFF}]
        rows, counts = list(records(inputs.select(named))), numbers(inputs, DIFF)
        ends = [*starts[1:], inputs.num_rows]
        key_rows = records(keys.take(groups[starts]))
        results = [
            self._result(k, rows[a:b], counts[a:b])
            for k, a, b in zip(key_rows, starts, ends, strict=bool(rows))
        ]
        table = as_table([row for many in results for row in many], self.schema)
        group = np.repeat(groups[starts], [len(many) for many in results]).astype(np.int64)
        return consolidate(table.add_column(0, GROUP, pa.array(group)).append_column(DIFF, _ones(len(group))))

    def _result(self, key: Any, rows: list[Any], counts: Longs) -> list[Any]:
        if (total := sum(counts.tolist())) > MOST_RECORDS:
            msg = f"the key {key} has {total:,} records, {len(rows):,} of them distinct"
            hint = "reduce_batches gets each distinct record once, with its number as count."
            raise SchemaError(msg, hint=hint)
        try:
            repeated = chain.from_iterable(map(repeat, rows, counts.tolist()))
            return rows_of(self.function, self.function(key, list(repeated)))
        except RAISED as error:
            meaning = " (the key, and its records)"
            raise RecordError((key, rows), meaning) from error
