"""Computed columns, prepared once per schema: Arrow's functions are called without its execution engine."""

from __future__ import annotations

import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import ExpressionError, excerpt

#: the options of a cast in an expression's text; only the type is shown
_CAST_OPTIONS = re.compile(r"\{to_type=([^{}]+?)(?:, allow_\w+=\w+)*\}")
#: what computes a column of a table of one schema; or a scalar, if the column is constant
_Compute = Callable[[pa.Table], Any]


class SqlExpression(ABC):
    """An expression that computes itself; `sql` binds texts to such ones.

    Attributes:
        type: the type of its values.
        columns: the columns that it reads.
    """

    type: pa.DataType
    columns: tuple[str, ...]

    @property
    @abstractmethod
    def fails(self) -> bool:
        """Whether a record may have no value."""

    @property
    @abstractmethod
    def condition(self) -> pc.Expression | None:
        """A weaker condition that pyarrow can test: true wherever the condition is; None if it has none."""

    @abstractmethod
    def evaluate(self, table: pa.Table) -> pa.Array:
        """The values of a table's records."""


class ColumnProjection:
    """Named columns computed from a table; the order of the rows stays.

    Arrow's execution engine takes as long for three rows as for some thousand. So an expression is read once
    per schema, and then its functions are called directly.

    >>> double = ColumnProjection({"n": "n", "double": pc.field("n") * 2})
    >>> double(pa.table({"n": [1, 2]})).to_pydict()
    {'n': [1, 2], 'double': [2, 4]}

    Raises:
        ExpressionError: a record has no value; the error shows the record.
        pyarrow.ArrowException: an expression does not fit the table.
    """

    def __init__(self, columns: Mapping[str, str | pc.Expression | SqlExpression]) -> None:
        self.columns = dict(columns)
        self._plain = all(isinstance(column, str) for column in self.columns.values())
        #: of the last table: its schema, the computations, and the schema of their results
        self._last: tuple[pa.Schema, list[_Compute], pa.Schema] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnProjection, (self.columns,)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The columns of a table."""
        if self._plain:
            return table.select(list(self.columns.values())).rename_columns(list(self.columns))
        last = self._last
        if last is None or not last[0].equals(table.schema):
            last = self._last = self._prepared(table.schema)
        _, columns, schema = last
        try:
            values = [compute(table) for compute in columns]
        except pa.ArrowInvalid as error:
            if not table.num_rows:  # no record is to blame
                raise
            raise self._no_value(table, columns, error) from error
        return pa.Table.from_arrays(values, schema=schema)

    def _no_value(self, table: pa.Table, columns: Sequence[_Compute], error: Exception) -> ExpressionError:
        """The error for the first record of a table for which a column has no value."""
        both = zip(self.columns.values(), columns, strict=True)
        expression, compute = next(one for one in both if _failure(one[1], table))
        while table.num_rows > 1:
            half = table.slice(0, table.num_rows // 2)
            table = half if _failure(compute, half) else table.slice(half.num_rows)
        record, text = excerpt(table), _CAST_OPTIONS.sub(r"\1", str(expression))
        msg = f"{text}: {_failure(compute, table) or error}" + (f", of {record}" if record else "")
        hint = (
            "leave such records out before, by where(); or cast to 'double', which has larger numbers, too."
        )
        return ExpressionError(msg, hint=hint)

    def _prepared(self, schema: pa.Schema) -> tuple[pa.Schema, list[_Compute], pa.Schema]:
        computed = [_computed(column, schema) for column in self.columns.values()]
        fields = [pa.field(name, kind) for name, (_, kind) in zip(self.columns, computed, strict=True)]
        return schema, [compute for compute, _ in computed], pa.schema(fields)


def _failure(compute: _Compute, table: pa.Table) -> pa.ArrowInvalid | None:
    """Why there are no values; None if there are."""
    try:
        compute(table)
    except pa.ArrowInvalid as error:
        return error
    return None


def _computed(column: str | pc.Expression | SqlExpression, schema: pa.Schema) -> tuple[_Compute, pa.DataType]:
    if isinstance(column, SqlExpression):
        return column.evaluate, column.type
    return _prepared(_Same.of(pc.field(column) if isinstance(column, str) else column), schema)


@dataclass(frozen=True, slots=True)
class Subexpression:
    """An expression, or a part of one, in its serialised form.

    That is a batch of constants, and a tree in preorder: each call from its ``call`` to its ``end``.
    """

    constants: pa.RecordBatch
    entries: Sequence[tuple[str, str]]
    read: Callable[[pa.Buffer], pc.Expression]

    @classmethod
    def of(cls, expression: pc.Expression) -> Subexpression:
        """A whole expression."""
        read, (serialised,) = expression.__reduce__()
        with pa.ipc.open_file(serialised) as file:
            batch = file.get_batch(0)
        # a mapping of the metadata would drop repeated keys
        try:  # newer versions cut long names off
            shown = batch.schema.to_string(truncate_metadata=False, element_size_limit=serialised.size)
        except TypeError:
            shown = batch.schema.to_string(truncate_metadata=False)
        _, _, text = shown.partition("-- schema metadata --\n")
        return cls(batch, re.findall(r"(?ms)^(\w+): '(.*?)'$(?=\n\w+: '|\Z)", text), read)

    @property
    def expression(self) -> pc.Expression:
        """The part as an expression."""
        metadata = pa.KeyValueMetadata(self.entries)
        return self.read(_file(self.constants.replace_schema_metadata(metadata)))

    @property
    def inner(self) -> list[Subexpression]:
        """The arguments of a call, and its options; nothing of what is not a call."""
        depth, inner, first = 0, list[Subexpression](), 1
        for at, (kind, _) in enumerate(self.entries):
            depth += {"call": 1, "end": -1}.get(kind, 0)
            if at and depth == 1:
                inner.append(Subexpression(self.constants, self.entries[first : at + 1], self.read))
                first = at + 1
        return inner

    @property
    def options(self) -> pc.FunctionOptions:
        """The options of a call."""
        column = self.constants.column(int(self.entries[0][1]))
        return pc.FunctionOptions.deserialize(_file(pa.record_batch([column], names=[""])))

    def calls(self, function: str) -> list[Subexpression]:
        """All calls of a function."""
        inner = [call for part in self.inner for call in part.calls(function)]
        return [self, *inner] if self.entries[0] == ("call", function) else inner


def by_engine(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """The values of an expression, by Arrow's execution engine."""
    from pyarrow import acero  # loads pandas, as an import of the package must not

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    node = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    # several threads would reorder the rows
    return acero.Declaration.from_sequence([source, node]).to_table(use_threads=False).column(0)


class _Same:
    """An expression as a key: equal if it is written equally."""

    def __init__(self, expression: pc.Expression, written: Any) -> None:
        self.expression, self._written = expression, written

    @classmethod
    def of(cls, expression: pc.Expression) -> _Same:
        try:
            return cls(expression, pickle.dumps(expression))
        except pa.ArrowNotImplementedError:  # of a column by its position
            return cls(expression, object())

    def __hash__(self) -> int:
        return hash(self._written)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._written == other._written


@lru_cache(maxsize=1000)
def _prepared(same: _Same, schema: pa.Schema) -> tuple[_Compute, pa.DataType]:
    """How to compute an expression for tables of a schema, and the type of its values."""
    expression, empty = same.expression, schema.empty_table()
    kind = by_engine(expression, empty).type
    try:
        compute = _computation(Subexpression.of(expression), empty)
    except pa.ArrowException:  # not read, or not called, as it is written
        compute = None
    if compute is None:
        return (lambda table: by_engine(expression, table)), kind
    if isinstance(compute(empty), pa.Scalar):
        return (lambda table: pa.repeat(compute(table), table.num_rows)), kind
    return compute, kind


def _computation(part: Subexpression, empty: pa.Table) -> _Compute | None:
    """How to compute an expression by calls of functions; None if the engine gives the result another type.

    Both cast the arguments of a function alike, except constants: there the engine looks at the value.
    """
    kind, name = part.entries[0]
    if kind == "literal":
        constant = part.constants.column(int(name))[0]
        return lambda _: constant
    if kind == "field_ref":
        place = empty.schema.get_field_index(name)
        return lambda table: table.column(place)
    if kind != "call" or not {entry for entry, _ in part.entries} <= _READ:
        return None
    arguments, options = list[_Compute](), None
    for one in part.inner:
        if one.entries[0][0] == "options":
            options = one.options
        elif (computation := _computation(one, empty)) is None:
            return None
        else:
            arguments.append(computation)
    if not arguments:  # such as a random number: how many is not said
        return None
    if len({argument(empty).type for argument in arguments}) > 1:
        arguments = [_narrow(argument, empty) for argument in arguments]
    call = pc.get_function(name).call

    def compute(table: pa.Table) -> Any:
        return call([argument(table) for argument in arguments], options)

    return compute if compute(empty).type == by_engine(part.expression, empty).type else None


#: the kinds of entries that are read; a column inside another one is not
_READ = {"call", "end", "field_ref", "literal", "options"}


def _narrow(argument: _Compute, empty: pa.Table) -> _Compute:
    """A constant integer in the narrowest type that holds it; other arguments as they are."""
    constant = argument(empty)
    if not isinstance(constant, pa.Scalar) or not pa.types.is_signed_integer(constant.type):
        return argument
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        try:
            narrow = constant.cast(kind)
        except pa.ArrowInvalid:
            continue
        return lambda _: narrow
    return argument


def _file(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
