"""The parts of a bound expression: frozen, without sqlglot, so that workers evaluate them as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import ExpressionError
from timely_spark.sql import types
from timely_spark.sql.lists import Elements, lists_of, maps_of
from timely_spark.sql.registry import FUNCTIONS, Failed, Function, Value, apply_function, as_array, scatter


class Rows:
    """The columns of a batch, and the variables of lambdas; `take` chooses some rows."""

    def __init__(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], length: int) -> None:
        self.columns, self.length = dict(columns), length

    @classmethod
    def all(cls, table: pa.Table | pa.RecordBatch) -> Rows:
        """All rows of a table."""
        return cls(dict(zip(table.schema.names, table.columns, strict=True)), table.num_rows)

    def column(self, name: str) -> pa.Array:
        """The values of a column."""
        values = self.columns[name]
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
            self.columns[name] = values
        return values

    def take(self, rows: np.ndarray, **variables: pa.Array) -> Rows:
        """Some rows, with variables that have a value for each of them."""
        return _Chosen(self, pa.array(rows), variables)


class _Chosen(Rows):
    """Some rows of others: a column is only taken when it is asked for."""

    def __init__(self, source: Rows, rows: pa.Array, variables: Mapping[str, pa.Array]) -> None:
        super().__init__(variables, len(rows))
        self.source, self.rows = source, rows

    def column(self, name: str) -> pa.Array:
        if name not in self.columns:
            self.columns[name] = self.source.column(name).take(self.rows)
        return self.columns[name]


@dataclass(frozen=True)
class Term(ABC):
    """A part of an expression, with its type."""

    type: pa.DataType

    @abstractmethod
    def evaluate(self, rows: Rows) -> Value:
        """The values: an array, or one scalar for all rows."""

    def parts(self) -> Iterator[Term]:
        """The nodes right below this one."""
        for each in fields(self):
            value = getattr(self, each.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Term):
                    yield one

    @property
    def fails(self) -> bool:
        """Whether some row may have no value."""
        return any(part.fails for part in self.parts())

    @property
    def reads_zone(self) -> bool:
        """Whether the values depend on the session's time zone."""
        return any(part.reads_zone for part in self.parts())

    def array(self, rows: Rows) -> pa.Array:
        """The values as an array."""
        return as_array(self.evaluate(rows), rows.length)


@dataclass(frozen=True)
class ColumnValue(Term):
    """A column of the records, or a variable of a lambda."""

    name: str
    #: the type in which it is stored
    stored: pa.DataType

    def evaluate(self, rows: Rows) -> Value:
        """The column, with the type that Spark reads it as."""
        values = rows.column(self.name)
        if values.type == self.type:
            return values
        return values.cast(self.type, safe="[ns" not in str(values.type))  # Spark has microseconds


@dataclass(frozen=True)
class Constant(Term):
    """A literal, or a cast of one."""

    value: Any
    literal: bool = True

    def evaluate(self, rows: Rows) -> Value:
        return self.value


@dataclass(frozen=True)
class FunctionCall(Term):
    """A function of the table, apply_function to arguments."""

    name: str
    arguments: tuple[Term, ...]
    zone: str
    #: the text of the expression, for errors
    sql: str = field(compare=False)

    @property
    def function(self) -> Function:
        """The function, from this process' table."""
        return FUNCTIONS[self.name]

    @property
    def fails(self) -> bool:
        return self.function.fails or super().fails

    @property
    def reads_zone(self) -> bool:
        """Also by the types of timestamps, which have the zone; casts by them only."""
        zoned = any(types.has_zone(one.type) for one in (self, *self.arguments))
        named = "zone" in self.function.extras and self.name not in {"cast", "try_cast"}
        return named or zoned or super().reads_zone

    def evaluate(self, rows: Rows) -> Value:
        if not rows.length:  # not even a constant has to have a value
            return pa.nulls(0, self.type)
        values = self._values(rows)
        try:
            return apply_function(self.function, values, rows.length, result=self.type, zone=self.zone)
        except Failed as failed:
            msg = f"{self.sql}: {failed.problem}"
            raise ExpressionError(msg, hint=failed.hint) from None
        except pa.ArrowException as error:
            hint = "correct the values before, or leave these records out by a condition (CASE WHEN ... END)."
            msg = f"{self.sql}: {error}"
            raise ExpressionError(msg, hint=hint) from error

    def _values(self, rows: Rows) -> list[Value]:
        """The arguments' values: one that may fail is only computed where those before it are not null."""
        arguments = self.arguments
        if self.function.nulls or self.name in _ALL or not any(one.fails for one in arguments):
            return [one.evaluate(rows) for one in arguments]
        values: dict[int, Value] = {}
        needed = np.ones(rows.length, bool)
        # the divisor comes first
        for n in sorted(range(len(arguments)), reverse=self.name in _DIVISIONS):
            if needed.all() or not arguments[n].fails:
                values[n] = arguments[n].evaluate(rows)
            else:
                chosen = np.flatnonzero(needed)
                values[n] = scatter(
                    [(chosen, arguments[n].array(rows.take(chosen)))], rows.length, arguments[n].type
                )
            value = values[n]
            needed &= np.asarray(value.is_valid()) if isinstance(value, pa.Array) else value.is_valid
        return [values[n] for n in range(len(arguments))]


#: functions that compute all arguments, whatever is null
_ALL = {"$concat", "$binary_concat", "map_concat"}
_DIVISIONS = {"/", "%", "mod", "div", "pmod", "try_divide", "try_mod"}


@dataclass(frozen=True)
class UserCall(Term):
    """A function that the user has registered, apply_function to whole columns."""

    name: str
    arguments: tuple[Term, ...]
    function: Callable[..., Any] = field(compare=False)
    sql: str = field(compare=False)

    @property
    def fails(self) -> bool:
        """Always: nobody knows what the function does."""
        return True

    def evaluate(self, rows: Rows) -> Value:
        if not rows.length:  # such as the rows of a schema, when a flow is built
            return pa.array([], self.type)
        arguments = [one.array(rows) for one in self.arguments]
        try:
            values = self.function(*arguments)
            if not isinstance(values, pa.Array | pa.ChunkedArray):
                values = pa.array(values, self.type)
            values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            values = pa.concat_arrays([values])  # a copy: the function may write to its array again
            values = values if values.type == self.type else values.cast(self.type)
        except Exception as error:
            msg = f"{self.sql}: {self.name} failed: {type(error).__name__}: {error}"
            kind = types.name_of(self.type)
            hint = "the function gets an array for each argument, with nulls, and returns as many values "
            hint += f"of {kind}."
            raise ExpressionError(msg, hint=hint) from error
        if len(values) != rows.length:
            msg = f"{self.sql}: {self.name} returned {len(values)} values for {rows.length} rows"
            raise ExpressionError(msg, hint="return one value for each row.")
        return values


@dataclass(frozen=True)
class Case(Term):
    """The value of the first condition that is true: a value is only computed for the rows that have it."""

    conditions: tuple[Term, ...]
    values: tuple[Term, ...]
    default: Term

    def evaluate(self, rows: Rows) -> Value:
        left, parts = np.arange(rows.length), []
        for condition, value in zip(self.conditions, self.values, strict=True):
            if not len(left):
                break
            among = rows if len(left) == rows.length else rows.take(left)
            holds = np.asarray(pc.fill_null(condition.array(among), fill_value=False))
            if holds.any():
                chosen = left[holds]
                parts.append((chosen, value.array(among if holds.all() else rows.take(chosen))))
            left = left[~holds]
        if len(left):
            parts.append((left, self.default.array(rows if len(left) == rows.length else rows.take(left))))
        if len(parts) == 1:
            return parts[0][1]
        return scatter(parts, rows.length, self.type)


@dataclass(frozen=True)
class Coalesce(Term):
    """The first value that is not null; a later value is only computed for rows that need it."""

    values: tuple[Term, ...]

    def evaluate(self, rows: Rows) -> Value:
        result = self.values[0].array(rows)
        for value in self.values[1:]:
            if not result.null_count:
                break
            null = np.asarray(result.is_null())
            needed = np.flatnonzero(null)
            present = np.flatnonzero(~null)
            parts = [(present, result.take(pa.array(present))), (needed, value.array(rows.take(needed)))]
            result = scatter(parts, rows.length, self.type)
        return result


@dataclass(frozen=True)
class Logical(Term):
    """AND, or OR, in three-valued logic: the right side is not computed where the left side decides."""

    left: Term
    right: Term
    #: the value of the left side that decides: False of AND, True of OR
    decides: bool

    def evaluate(self, rows: Rows) -> Value:
        combine = pc.or_kleene if self.decides else pc.and_kleene
        left = self.left.array(rows)
        if not self.right.fails:
            return combine(left, self.right.evaluate(rows))
        decided = np.asarray(pc.fill_null(pc.equal(left, self.decides), fill_value=False))
        if not decided.any():
            return combine(left, self.right.array(rows))
        needed = np.flatnonzero(~decided)
        if not len(needed):
            return left
        right = scatter([(needed, self.right.array(rows.take(needed)))], rows.length, self.type)
        return combine(left, right)


def logical(sides: Sequence[Term], *, decides: bool) -> Term:
    """AND, or OR, of several conditions: a tree of few levels, as functions call each other on each level."""
    if len(sides) == 1:
        return sides[0]
    half = len(sides) // 2
    left, right = (logical(some, decides=decides) for some in (sides[:half], sides[half:]))
    return Logical(pa.bool_(), left, right, decides)


@dataclass(frozen=True)
class Struct(Term):
    """A struct of several values."""

    values: tuple[Term, ...]

    def evaluate(self, rows: Rows) -> Value:
        arrays = [one.array(rows) for one in self.values]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))


@dataclass(frozen=True)
class Field(Term):
    """A field of a struct, or of each struct in an array."""

    of: Term
    name: str

    def evaluate(self, rows: Rows) -> Value:
        array = self.of.array(rows)
        if not types.is_array(array.type):
            return pc.struct_field(array, self.name)
        elements = Elements(array)
        inner = pc.struct_field(elements.values, self.name)
        offsets = pa.array(elements.offsets, pa.int32())
        return pa.ListArray.from_arrays(offsets, inner, type=self.type, mask=array.is_null())


@dataclass(frozen=True)
class Listed(Term):
    """An array of values."""

    values: tuple[Term, ...]

    def evaluate(self, rows: Rows) -> Value:
        count = len(self.values)
        if not count:
            return pa.scalar([], self.type)
        arrays = [one.array(rows) for one in self.values]
        turned = np.arange(rows.length * count).reshape(count, rows.length).T.ravel()
        flat = pa.concat_arrays(arrays).take(pa.array(turned))
        return lists_of(flat, np.full(rows.length, count), self.type)


@dataclass(frozen=True)
class OfElements(Term):
    """A function of functions: the body of a lambda is computed for all elements of all arrays at once."""

    array_of: Term
    names: tuple[str, ...]
    body: Term

    def evaluate(self, rows: Rows) -> Value:
        lists = self.array_of.array(rows)
        present = np.flatnonzero(np.asarray(lists.is_valid()))
        if len(present) < rows.length:
            values = self.of_lists(rows.take(present), lists.take(pa.array(present)))
            return scatter([(present, values)], rows.length, self.type)
        return self.of_lists(rows, lists)

    def variables(self, elements: Elements) -> list[pa.Array]:
        """The values of the variables: the element, and its number."""
        return [elements.values, pa.array(elements.places, pa.int32())]

    def bodies(self, rows: Rows, elements: Elements) -> pa.Array:
        """The body for each element."""
        variables = self.variables(elements)
        inner = rows.take(elements.owners, **dict(zip(self.names, variables, strict=False)))
        return self.body.array(inner)

    @abstractmethod
    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        """The values for lists that are not null."""


@dataclass(frozen=True)
class Transformed(OfElements):
    """`transform`: the arrays of the bodies."""

    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        elements = Elements(lists)
        return lists_of(self.bodies(rows, elements), elements.sizes, self.type)


@dataclass(frozen=True)
class Zipped(Transformed):
    """`zip_with`: the elements are pairs, which the lambda gets as two values."""

    def variables(self, elements: Elements) -> list[pa.Array]:
        """Both values of each pair."""
        return list(elements.values.flatten())


@dataclass(frozen=True)
class OfEntries(OfElements):
    """A function of the entries of maps: those for which it is true, or new items, or arrays of new keys."""

    what: str

    def variables(self, elements: Elements) -> list[pa.Array]:
        """The key and the item of each entry."""
        return list(elements.values.flatten())

    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        elements = Elements(lists)
        values = self.bodies(rows, elements)
        if self.what == "keys":
            return lists_of(values, elements.sizes, self.type)
        if self.what == "items":
            return maps_of(elements.values.field(0), values, elements.sizes, self.type)
        entries = elements.filter(np.asarray(pc.fill_null(values, fill_value=False)))
        return pa.MapArray.from_arrays(entries.offsets, *entries.values.flatten(), type=self.type)


@dataclass(frozen=True)
class Filtered(OfElements):
    """`filter`: the elements for which the body is true."""

    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        elements = Elements(lists)
        return elements.filter(np.asarray(pc.fill_null(self.bodies(rows, elements), fill_value=False)))


@dataclass(frozen=True)
class Quantified(OfElements):
    """`exists` and `forall`, in three-valued logic."""

    every: bool

    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        elements = Elements(lists)
        truths = self.bodies(rows, elements)
        decides = np.asarray(pc.fill_null(pc.equal(truths, not self.every), fill_value=False))
        decided = np.bincount(elements.owners[decides], minlength=rows.length) > 0
        unknown = np.bincount(elements.owners[np.asarray(truths.is_null())], minlength=rows.length) > 0
        return pa.array(np.where(decided, not self.every, self.every), mask=unknown & ~decided)


@dataclass(frozen=True)
class Folded(OfElements):
    """`aggregate`: the body for the first elements of all arrays, then for the second ones, and so on."""

    start: Term

    def of_lists(self, rows: Rows, lists: pa.Array) -> pa.Array:
        elements, folded = Elements(lists), self.start.array(rows)
        for place in range(int(elements.sizes.max(initial=0))):
            longer = np.flatnonzero(elements.sizes > place)
            values = elements.values.take(pa.array(elements.offsets[longer] + place))
            before = folded.take(pa.array(longer))
            inner = rows.take(longer, **dict(zip(self.names, (before, values), strict=False)))
            others = np.flatnonzero(elements.sizes <= place)
            parts = [(longer, self.body.array(inner)), (others, folded.take(pa.array(others)))]
            folded = scatter(parts, rows.length, self.type)
        return folded


@dataclass(frozen=True)
class Applied(Term):
    """The body of a lambda for one value of each row."""

    value: Term
    name: str
    body: Term

    def evaluate(self, rows: Rows) -> Value:
        return self.body.array(rows.take(np.arange(rows.length), **{self.name: self.value.array(rows)}))
