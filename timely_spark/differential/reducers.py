"""What reductions compute: what is made of each key's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.trace import DIFF, consolidate, numbers, replaced
from timely_spark.errors import RecordError, SchemaError
from timely_spark.graph import as_table
from timely_spark.operators.rows import records
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.keys import flat

GROUP = "__timely_group"
"""A number for each key that is looked at: rows of one key stand together, in the order of the keys."""


@dataclass(frozen=True, slots=True)
class Logic:
    """What a reduction makes of a key's records."""

    keys: tuple[str, ...]

    def partial(self, changes: pa.Table) -> pa.Table:
        """What must be kept of changes: keys, what else tells records apart, and weights to be added up."""
        return changes

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The results for keys, by what each holds.

        **Columns:** `keys`: the keys; the row of number n is that of group n. `held`: `GROUP` (ascending),
        then what `partial` gives without the keys, consolidated. Out: `GROUP`, the results, `DIFF`.
        """
        raise NotImplementedError


def _starts(held: pa.Table) -> npt.NDArray[np.int64]:
    """Where each group begins."""
    groups = numbers(held, GROUP)
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])) if len(groups) else groups


def _there(held: pa.Table) -> pa.Table:
    """The records that are there: what is taken away more often than it came is not."""
    counts = numbers(held, DIFF)
    return held if (counts > 0).all() else held.filter(pa.array(counts > 0))


def _ones(n: int) -> pa.Array:
    return pa.array(np.ones(n, np.int64))


@dataclass(frozen=True, slots=True)
class Count(Logic):
    """How many records there are: nothing else is kept."""

    out: str

    def partial(self, changes: pa.Table) -> pa.Table:
        """The count alone."""
        return changes.select([*self.keys, DIFF])

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The counts."""
        return pa.table({GROUP: held[GROUP], self.out: held[DIFF], DIFF: _ones(held.num_rows)})


@dataclass(frozen=True, slots=True)
class Sum(Logic):
    """The sum of whole numbers, as a weight beside the count: no value is kept."""

    value: str

    def partial(self, changes: pa.Table) -> pa.Table:
        """The products with the values, and how many values there are."""
        values, diffs = changes.column(self.value).cast(pa.int64()), changes.column(DIFF)
        weighed = pc.multiply(pc.fill_null(values, 0), diffs)
        valid = pc.multiply(pc.is_valid(values).cast(pa.int64()), diffs)
        kept = changes.select([*self.keys, DIFF])
        return kept.append_column(f"{DIFF}_sum", weighed).append_column(f"{DIFF}_valid", valid)

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The sums, null of no values."""
        held = _there(held)
        valid = pa.array(numbers(held, f"{DIFF}_valid") > 0)
        totals = pc.if_else(valid, held[f"{DIFF}_sum"], pa.scalar(None, pa.int64()))
        return pa.table({GROUP: held[GROUP], self.value: totals, DIFF: _ones(held.num_rows)})


@dataclass(frozen=True, slots=True)
class SumOfFractions(Logic):
    """The sum of other numbers: of the values that are there, so that nothing is left of those that went."""

    value: str
    kind: pa.DataType

    def partial(self, changes: pa.Table) -> pa.Table:
        """The values."""
        return changes.select([*self.keys, self.value, DIFF])

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The sums, null of no values; added in the order of the values, so the same for the same."""
        held = _there(held)
        held = held.take(pc.sort_indices(held, [(GROUP, "ascending"), (self.value, "ascending")]))
        values, diffs = held.column(self.value), held.column(DIFF)
        if pa.types.is_decimal(values.type):  # room for the product, and for the sum
            values = values.cast(pa.decimal256(38, values.type.scale))
            weighed = pc.multiply(values, diffs.cast(pa.decimal256(19, 0)))
        else:
            weighed = pc.multiply(values.cast(pa.float64()), diffs.cast(pa.float64()))
        table = pa.table({GROUP: held[GROUP], "value": weighed})
        table = table.group_by(GROUP, use_threads=False).aggregate([("value", "sum")])
        totals = table.column("value_sum").cast(self.kind)
        return pa.table({GROUP: table[GROUP], self.value: totals, DIFF: _ones(table.num_rows)})


@dataclass(frozen=True, slots=True)
class Extreme(Logic):
    """The least or greatest value."""

    value: str
    greatest: bool

    def partial(self, changes: pa.Table) -> pa.Table:
        """The values."""
        return changes.select([*self.keys, self.value, DIFF])

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The best of the values that are any."""
        held = _there(held)
        value = held.column(self.value)
        if pa.types.is_floating(value.type):
            held = held.filter(pc.fill_null(pc.invert(pc.is_nan(value)), fill_value=False))
        elif value.null_count:
            held = held.filter(pc.is_valid(value))
        starts = _starts(held)
        values = flat(held.column(self.value))
        if pa.types.is_integer(values.type):
            least = (np.maximum if self.greatest else np.minimum).reduceat(values.to_numpy(), starts)
            best: Any = pa.array(least, values.type) if len(starts) else values
        else:
            direction = "descending" if self.greatest else "ascending"
            order = pc.sort_indices(held, [(GROUP, "ascending"), (self.value, direction)])
            best = values.take(order).take(starts)
        groups = held.column(GROUP).take(starts)
        return pa.table({GROUP: groups, self.value: best, DIFF: _ones(len(starts))})


@dataclass(frozen=True, slots=True)
class TopK(Logic):
    """The first records by a value; ties go by the other columns."""

    k: int
    value: str
    descending: bool

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The first records."""
        held = _there(held)
        others = [c for c in held.schema.names if c not in {GROUP, self.value, DIFF}]
        direction = "descending" if self.descending else "ascending"
        by = [(GROUP, "ascending"), (self.value, direction), *((c, "ascending") for c in others)]
        held = held.take(pc.sort_indices(held, by))
        counts, starts = numbers(held, DIFF), _starts(held)
        ends = np.cumsum(counts)
        before = ends - counts
        sizes = np.diff(starts, append=len(counts))
        left = self.k - (before - np.repeat(before[starts], sizes))
        held = replaced(held, DIFF, np.minimum(counts, left))
        return held.filter(pa.array(left > 0))


@dataclass(frozen=True, slots=True)
class Threshold(Logic):
    """A function of each record's multiplicity; the whole record is the key."""

    function: Callable[[Any], Any]

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """The records as often as the function says."""
        made = np.asarray(self.function(numbers(held, DIFF)))
        if made.shape != (held.num_rows,) or made.dtype.kind not in "biu":
            msg = (
                f"the function of counts gave {made.dtype} of shape {made.shape} for {held.num_rows} counts. "
                "Hint: compute whole numbers with the array, as in lambda counts: counts > 1."
            )
            raise SchemaError(msg)
        held = replaced(held, DIFF, made.astype(np.int64))
        return held.filter(pc.not_equal(held.column(DIFF), 0))


def present(counts: npt.NDArray[np.int64]) -> Any:
    """Once, if at all."""
    return counts > 0


@dataclass(frozen=True, slots=True)
class Batches(Logic):
    """A user's function of the records of many keys at once."""

    function: Callable[[pa.Table], Any]
    schema: pa.Schema

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """What the function makes of them."""
        held = _there(held)
        rows = keys.take(held.column(GROUP))
        for field in held.schema:
            if field.name not in {GROUP, DIFF}:
                rows = rows.append_column(field, held.column(field.name))
        rows = rows.append_column("count", held.column(DIFF))
        made = as_table(self.function(rows), self.schema) if held.num_rows else self.schema.empty_table()
        numbered = keys.append_column(GROUP, pa.array(np.arange(keys.num_rows)))
        history = Arrangement(self.keys, [])
        history.insert(numbered)
        at, found = history.lookup(made, self.keys)
        if len(at) != made.num_rows:
            msg = (
                f"the function gave results for {made.num_rows - len(at)} keys that it was not asked for. "
                f"Hint: return the key columns {list(self.keys)} as they came."
            )
            raise SchemaError(msg)
        results = made.drop_columns(list(self.keys)).add_column(0, GROUP, found.column(GROUP))
        return consolidate(results.append_column(DIFF, _ones(results.num_rows)))


@dataclass(frozen=True, slots=True)
class PerKey(Logic):
    """A user's function of one key and its records."""

    function: Callable[[Any, list[Any]], Iterable[Any]]
    schema: pa.Schema

    def results(self, keys: pa.Table, held: pa.Table) -> pa.Table:
        """What the function makes of each."""
        held = _there(held)
        starts, groups = _starts(held), numbers(held, GROUP)
        named = [column for column in held.schema.names if column not in {GROUP, DIFF}]
        values = held.select([*named, DIFF]).rename_columns([*named, "count"])
        rows, ends = list(records(values)), [*starts[1:], held.num_rows]
        whose = records(keys.take(groups[starts]))
        made = [self._result(k, rows[a:b]) for k, a, b in zip(whose, starts, ends, strict=bool(rows))]
        table = as_table([row for many in made for row in many], self.schema)
        of = np.repeat(groups[starts], [len(many) for many in made]).astype(np.int64)
        return consolidate(table.add_column(0, GROUP, pa.array(of)).append_column(DIFF, _ones(len(of))))

    def _result(self, key: Any, rows: list[Any]) -> list[Any]:
        try:
            return list(self.function(key, rows))
        except Exception as error:
            meaning = " (the key, and its distinct records, each with how often it is there as `count`)"
            raise RecordError((key, rows), meaning) from error
