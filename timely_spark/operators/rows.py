"""Stateless operators: map, filter, select. They run where their input is, also in a source's own tasks."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import RAISED, GraphError, RecordError, SchemaError, function_text, shorten
from timely_spark.graph import (
    ColumnProjection,
    Expression,
    Kind,
    SchemaLike,
    SqlExpression,
    Stateless,
    Vertex,
    as_schema,
    as_table,
    caller,
    check_columns,
    check_quotients,
    columns_in,
    columns_of,
    names,
    operator,
    projected,
    refuse,
)
from timely_spark.graph.schema import plain_type
from timely_spark.operators.sql import expression, named_expressions
from timely_spark.state.arrow import flat
from timely_spark.streams import Stream


class _Select(Stateless):
    one_each = True

    def __init__(self, columns: Mapping[str, str | Expression], schema: pa.Schema) -> None:
        self.columns, self.schema = columns, schema
        #: of the last batch: its columns, the projection, and the schema of the result
        self._last: tuple[list[str], ColumnProjection, pa.Schema] | None = None

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        present = batch.schema.names
        if self._last is None or self._last[0] != present:  # a source leaves out what nothing reads
            columns = {new: c for new, c in self.columns.items() if not isinstance(c, str) or c in present}
            schema = pa.schema([self.schema.field(new) for new in columns])
            self._last = present, ColumnProjection(columns), schema
        _, projection, schema = self._last
        result = projection(batch)
        return (result if result.schema == schema else result.cast(schema),)

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Collection[str]:
        wanted = (
            value for new, value in self.columns.items() if not isinstance(value, str) or new in columns
        )
        return {name for column in wanted for name in columns_in(column, schema)}


class Filter(Stateless):
    """Keep the records that pass a predicate."""

    one_each = True

    def __init__(self, predicate: Expression | Callable[[Any], bool]) -> None:
        self.predicate, self.passing = predicate, Passing(predicate)

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Collection[str]:
        if not isinstance(self.predicate, Expression):
            return {*schema.names}
        return {*columns, *columns_in(self.predicate, schema)}

    @property
    def condition(self) -> pc.Expression | None:
        if isinstance(self.predicate, SqlExpression):
            return self.predicate.condition
        return self.predicate if isinstance(self.predicate, pc.Expression) else None

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        passes = self.passing(batch)
        # no copy if all records pass
        return (batch if passes.true_count == batch.num_rows else batch.filter(passes),)


class _Records(Stateless):
    def __init__(self, function: Callable[[Any], Any], schema: pa.Schema, *, many: bool) -> None:
        self.function, self.schema, self.many = function, schema, many

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        if not self.many:
            return (as_table(each_record(self.function, self.schema, batch), self.schema),)
        results = map_records(lambda row: rows_of(self.function, self.function(row)), batch)
        return (as_table([one for many in results for one in many], self.schema),)


class _Batches(Stateless):
    def __init__(self, function: Callable[[pa.Table], Any], schema: pa.Schema) -> None:
        self.function, self.schema = function, schema

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (table_of(self.function, self.function(batch), self.schema),)


def table_of(function: Callable[..., Any], answer: Any, schema: pa.Schema) -> pa.Table:
    """The table that a user's function returned."""
    if answer is None:
        msg = f"{function_text(function)} returned None, not a table"
        raise SchemaError(msg, hint="return an Arrow table, a record batch or a pandas frame.")
    return as_table(answer, schema, projected=True)


def each_record(function: Callable[[Any], Any], schema: pa.Schema, batch: pa.Table) -> list[Any]:
    """The record that a user's function returned for each."""

    def one(row: Any) -> Any:
        if (result := function(row)) is None and len(schema) != 1:  # one column may be null
            msg = f"{function_text(function)} returned None, not a record {columns_of(schema)}"
            raise SchemaError(msg, hint="return a record; leave records out by where or flat_map.")
        return result

    return map_records(one, batch)


def rows_of(function: Callable[..., Any], answer: Any) -> list[Any]:
    """The rows that a user's function returned."""
    if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
        msg = f"{function_text(function)} returned {shorten(answer)}, not rows"
        raise SchemaError(msg, hint="return a list of rows, [] for none; [row] for one.")
    return list(answer)


def records(batch: pa.Table) -> Iterable[Any]:
    """The rows of a batch as named tuples; `row["column"]` works for every name, as in PySpark."""
    row = _row_type(tuple(batch.schema.names))
    columns = [_values(name, column) for name, column in zip(batch.column_names, batch.columns, strict=True)]
    rows = zip(*columns, strict=True) if columns else repeat((), batch.num_rows)
    return (row(*values) for values in rows)


#: Python's times of day have microseconds; `to_pylist` would drop the rest.
_IN_PYTHON = {pa.time64("ns"): pa.time64("us")}


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """The values in Python, which has no nanoseconds of a time of day, and no year 10,000."""
    try:
        if (kind := plain_type(column.type, _IN_PYTHON)) != column.type:
            column = column.cast(kind)
        return column.to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, OverflowError, ValueError) as error:
        msg = f"column {name!r} has a value of type {column.type} that Python does not have: {error}"
        hint = "convert it before, by select(...) or map_batches(...), or leave the record out by where(...)."
        raise SchemaError(msg, hint=hint) from error


@lru_cache(maxsize=1000)
def _row_type(columns: tuple[str, ...]) -> Any:
    make: Any = namedtuple  # noqa: PYI024 - the schema gives the fields
    places = {column: place for place, column in enumerate(columns)}

    def item(row: Any, key: Any) -> Any:
        return tuple.__getitem__(row, places[key] if isinstance(key, str) else key)

    return type("Row", (make("Row", columns, rename=True),), {"__slots__": (), "__getitem__": item})


def map_records(function: Callable[[Any], Any], batch: pa.Table) -> list[Any]:
    """The results of a user's function for each record, a named row.

    >>> map_records(lambda row: row.n + 1, pa.table({"n": [1, 2]}))
    [2, 3]

    Raises:
        RecordError: the function failed; the cause is its exception. The step's `VertexError` shows both.
    """
    results, row, rows = [], None, records(batch)
    try:
        for row in rows:
            results.append(function(row))
    except RAISED as error:
        raise RecordError(row) from error
    return results


class Passing:
    """Row by row, whether a predicate is true of a batch.

    >>> Passing(pc.field("n") > 1)(pa.table({"n": [1, 2, None]})).to_pylist()
    [False, True, None]
    """

    def __init__(self, predicate: Expression | Callable[[Any], bool]) -> None:
        self._predicate: Any = predicate
        self._computed = (
            ColumnProjection({"passes": predicate}) if isinstance(predicate, Expression) else None
        )

    def __call__(self, batch: pa.Table) -> pa.BooleanArray:
        """An array of booleans, null where the predicate is."""
        if self._computed is not None:
            return flat(self._computed(batch).column(0))
        return pa.array(map_records(lambda row: bool(self._predicate(row)), batch), pa.bool_())


@operator(Stream)
def select(
    stream: Stream,
    *columns: str | Mapping[str, str | Expression],
    name: str | None = None,
    **named: str | Expression,
) -> Stream:
    """Choose, rename and compute columns.

    Args:
        columns: columns to keep, ``"*"`` for all; expressions with a name, ``"a + b AS c"``; or mappings
            like `named`, for names that cannot be keyword arguments: ``select({"name": "name"})``.
        named: for each new column a column's name, or an expression: a text in Spark's SQL, or one of
            `pyarrow.compute`.

    **Columns:** out: `columns`, then one for each of `named`; one that replaces a column keeps its place.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("select")
        >>> x = flow.input("x", "a long, b long")
        >>> _ = x.select("b", double="a * 2").capture("stream")
        >>> _ = x.collection().select("b").capture("collection")
        >>> made = ts.testing.run(flow, {"x": [[(1, 5), (2, 5)]]})
        >>> made["stream"].rows(), made["collection"].rows()
        ({0: [(5, 2), (5, 4)]}, {0: [(5, 2)]})

    Raises:
        SchemaError: a column is missing, an expression does not fit, or a collection has no column left.
    """
    check_name("select", stream, name)
    return computed(stream, *columns, named, name=name)


def computed(
    stream: Stream,
    *columns: str | Mapping[str, str | Expression],
    own: Collection[str] = (),
    name: str | None = None,
) -> Stream:
    """`select` for operators: the columns in `own` may have reserved names.

    Args:
        columns: as for `select`.
        own: the reserved names, such as `DIFF`.
        name: the step's name, even if a column has it.

    **Columns:** out those of `columns`, in their order.

    Example:
        >>> import timely_spark as ts
        >>> numbers = ts.Dataflow("computed").input("numbers", "n long")
        >>> DIFF = "__timely_diff"
        >>> computed(numbers, "n", {DIFF: pc.scalar(1)}, own=[DIFF]).schema.names
        ['n', '__timely_diff']

    Raises:
        SchemaError: a column is missing, an expression does not fit, or a name is reserved and not in `own`.
    """
    chosen = named_expressions("select", stream.schema, *columns)
    for new, old in chosen.items():
        if not isinstance(old, str | Expression):
            how = "map() takes functions" if callable(old) else "write a constant as pc.scalar(...)"
            msg = f"select: {new}={old!r} is neither a column's name nor an expression"
            raise SchemaError(msg, where=caller(), hint=f"{how}.")
    names = [column for column in chosen.values() if isinstance(column, str)]
    check_columns("select", stream.schema, names)
    schema = as_schema(projected("select", chosen, stream.schema))
    return stream.then(
        "select",
        [schema],
        name=name,
        kind=Kind.SELECT,
        own=own,
        vertex=_Select(chosen, schema),
        keeps={new: old for new, old in chosen.items() if isinstance(old, str)},
        detail=", ".join(
            new if isinstance(old, str) and new == old else f"{new}={old}" for new, old in chosen.items()
        ),
        parameters={"columns": {new: str(old) for new, old in chosen.items()}},
    )[0]


def check_name(operator: str, stream: Stream, name: Any, also: str = "...") -> None:
    """Check `name`, the step's name, which is easily mistaken for a column called ``name``."""
    if name is not None and (not isinstance(name, str) or name in stream.schema.names):
        msg = f"{operator}: name={name!r} would be the step's name, not a column"
        hint = (
            f'for a column called "name" write {operator}({{"name": {also}}}); else give the step a name '
            "that no column has."
        )
        raise SchemaError(msg, where=caller(), hint=hint)


def all_named(named: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The results of `aggregate` by name."""
    if not isinstance(named, Mapping | None):
        refuse(named, what="named", expected="results by name", hint="write aggregate(total=('sum', 'n'))")
    return {**(named or {}), **columns}


def keys_and_value(
    operator: str, schema: pa.Schema, keys: str | Sequence[str] | None, value: str, *, nested: bool = False
) -> tuple[str, ...]:
    """The key columns, checked: `value` is another column, which may be `nested`."""
    listed = names(operator, keys)
    check_columns(operator, schema, listed, keys=True, nested=True)
    check_columns(operator, schema, [value], keys=not nested)
    if value in listed:
        msg = f"{operator}: {value!r} is a key and the value"
        hint = "take it out of keys; for the keys alone there is distinct()."
        raise SchemaError(msg, where=caller(), hint=hint)
    return listed


def key_columns(operator: str, schema: pa.Schema, columns: str | Sequence[str]) -> tuple[str, ...]:
    """Check and normalise key columns."""
    listed = names(operator, columns)
    check_columns(operator, schema, listed, keys=True, nested=True)
    if not listed or len(set(listed)) < len(listed):
        msg = f"{operator}: keys {list(listed)}"
        raise SchemaError(msg, where=caller(), hint="name the key columns, each once.")
    return listed


def check_function(
    operator: str, function: Any, *gets: str, rows: bool = True, awaited: bool = False
) -> None:
    """Check that an argument can be called, and takes arguments of these names.

    Args:
        gets: the names of the arguments; without names only that it can be called is checked.
        rows: whether it may be a generator, of rows.
        awaited: whether it may be a coroutine.

    Example:
        >>> check_function("peel", lambda row: row, "row", "time")
        Traceback (most recent call last):
        timely_spark.errors.GraphError: peel: the function takes other arguments: too many ... (...)
        Hint: let it take 2 arguments: row, time.

    Raises:
        GraphError: it cannot be called so, or makes a coroutine or generator that nobody would run.
    """
    if not callable(function):
        msg = f"{operator} got {function!r}, not a function"
        hint = "give a function, for example a lambda."
        if isinstance(function, Vertex):
            hint = "add a vertex by flow.vertex(vertex, inputs, outputs)."
        raise GraphError(msg, where=caller(), hint=hint)
    check_runs(operator, function, rows=rows, awaited=awaited)
    try:
        takes = inspect.signature(function).bind if gets else lambda *_: None
    except (TypeError, ValueError):  # some builtins do not tell
        return
    try:
        takes(*gets)
    except TypeError as error:
        msg = f"{operator}: the function takes other arguments: {error}"
        number = f"{len(gets)} argument{'s' if len(gets) > 1 else ''}"
        raise GraphError(msg, where=caller(), hint=f"let it take {number}: {', '.join(gets)}.") from error


def check_runs(operator: str, function: Any, *, rows: bool = False, awaited: bool = False) -> None:
    """Refuse a function that only makes a coroutine or a generator: nobody would run it."""
    called = (
        function if isinstance(function, partial) or inspect.isroutine(function) else type(function).__call__
    )
    what = "a coroutine" if inspect.iscoroutinefunction(called) and not awaited else ""
    what = "an asynchronous generator" if inspect.isasyncgenfunction(called) else what
    what = "a generator" if inspect.isgeneratorfunction(called) and not rows else what
    if what:
        msg = f"{operator}: {function_text(function)} makes {what}, which would not run"
        hint = "write it without async and yield; functions of call(...) may be coroutines."
        raise GraphError(msg, where=caller(), hint=hint)


@operator(Stream, also="filter")
def where(
    stream: Stream, predicate: str | Expression | Callable[[Any], bool], *, name: str | None = None
) -> Stream:
    """Keep the records that pass a predicate. `filter` is an alias.

    Args:
        predicate: a condition in Spark's SQL, such as ``"n > 1"``; a `pyarrow.compute` expression; or a
            function of one record (a named row).

    **Columns:** out as in.

    Example:
        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("where")
        >>> numbers = flow.input("x", "n long")
        >>> _ = numbers.where("n > 1").filter(lambda row: row.n < 4).capture("out")
        >>> _ = numbers.collection().where(pc.field("n") > 3).capture("collection")
        >>> made = ts.testing.run(flow, {"x": [[1, 2, 3, 4]]})
        >>> made["out"].rows(), made["collection"].rows()
        ({0: [(2,), (3,)]}, {0: [(4, 1)]})

    Raises:
        SchemaError: `predicate` is neither, or the expression does not fit.
    """
    condition = expression("where", predicate, stream.schema)
    return filtered("where", stream, Filter(condition), outputs=1, name=name)[0]


@operator(Stream)
def map(
    stream: Stream, function: Callable[[Any], Any], schema: SchemaLike, *, name: str | None = None
) -> Stream:
    """Compute one record from each, by a function of a record: slower than `select` and `map_batches`.

    Args:
        function: gets a named row; returns a tuple, a dict, or for one column the value (None is null).
        schema: the schema of the results.

    **Columns:** out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("chain")
        >>> numbers = flow.input("x", "n long")
        >>> for f in (lambda row: row.n + 1, lambda row: row.n * 2, lambda row: row.n + 10):
        ...     numbers = numbers.map(f, "n long")
        >>> _ = numbers.capture("out")
        >>> _ = numbers.collection().map(lambda row: row.n // 10, "tens long").capture("collection")
        >>> made = ts.testing.run(flow, {"x": [range(3)]})
        >>> made["out"].rows(), made["collection"].rows()
        ({0: [(12,), (14,), (16,)]}, {0: [(1, 3)]})

    Raises:
        GraphError: `function` cannot be called.
    """
    check_function("map", function, "row")
    return _mapped("map", stream, _Records(function, as_schema(schema), many=False), name)


@operator(Stream, also="select_many")
def flat_map(
    stream: Stream, function: Callable[[Any], Iterable[Any]], schema: SchemaLike, *, name: str | None = None
) -> Stream:
    """Compute any number of records from each, by a function of a record. `select_many` is an alias.

    Args:
        function: gets a named row; returns an iterable of tuples, dicts, or for one column values.
        schema: the schema of the results.

    **Columns:** out: `schema`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> lines = flow.input("lines", "line string")
        >>> _ = lines.flat_map(lambda row: row.line.split(), "word string").capture("out")
        >>> _ = lines.collection().flat_map(lambda row: row.line.split(), "word string").capture("all")
        >>> made = ts.testing.run(flow, {"lines": [["to be", "be"]]})
        >>> made["out"].rows(), made["all"].rows()
        ({0: [('be',), ('be',), ('to',)]}, {0: [('be', 2), ('to', 1)]})

    Raises:
        GraphError: `function` cannot be called.
    """
    check_function("flat_map", function, "row")
    return _mapped("flat_map", stream, _Records(function, as_schema(schema), many=True), name)


@operator(Stream)
def map_batches(
    stream: Stream, function: Callable[[pa.Table], Any], schema: SchemaLike, *, name: str | None = None
) -> Stream:
    """Transform whole batches, by a function of an Arrow table that treats each record independently.

    The division of records into batches is not defined, so the results must not depend on it.

    Args:
        function: gets an Arrow table; returns an Arrow table, a record batch or a pandas frame.
        schema: the schema of the results.

    **Columns:** the function gets the input's; out: `schema`, which it returns.

    Example:
        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("upper")
        >>> upper = lambda batch: batch.set_column(0, "s", pc.utf8_upper(batch["s"]))
        >>> words = flow.input("x", "s string")
        >>> _ = words.map_batches(upper, "s string").capture("out")
        >>> _ = words.collection().map_batches(upper, "s string").capture("collection")
        >>> made = ts.testing.run(flow, {"x": [["a", "A"]]})
        >>> made["out"].rows(), made["collection"].rows()
        ({0: [('A',), ('A',)]}, {0: [('A', 2)]})

    Raises:
        GraphError: `function` cannot be called.
        VertexError: at run time: the function returns another schema.
    """
    check_function("map_batches", function, "table")
    return _mapped("map_batches", stream, _Batches(function, as_schema(schema)), name)


def _mapped(operator: str, stream: Stream, vertex: _Records | _Batches, name: str | None) -> Stream:
    detail = text_of(vertex.function)
    return stream.then(operator, [vertex.schema], name=name, vertex=vertex, detail=detail)[0]


def filtered(
    operator: str, stream: Stream, vertex: Filter, *, outputs: int, name: str | None
) -> tuple[Stream, ...]:
    """A step that passes records by a predicate."""
    predicate = vertex.predicate
    check_predicate(operator, stream, predicate)
    return stream.then(
        operator,
        [stream.schema] * outputs,
        name=name,
        vertex=vertex,
        keeps={column: column for column in stream.schema.names},
        detail=text_of(predicate),
        # a restart compares expressions; functions cannot be compared
        parameters={"predicate": str(predicate)} if isinstance(predicate, Expression) else {},
    )


def check_predicate(operator: str, stream: Stream, predicate: Any) -> None:
    """Evaluate an expression on an empty table, so that mistakes show when the graph is built."""
    if callable(predicate):
        check_function(operator, predicate, "row", rows=False)
        return
    hint = "write 'n > 1', pc.field('n') > 1 (pyarrow.compute as pc), or lambda row: row.n > 1."
    if not isinstance(predicate, Expression):
        msg = f"{operator}: {predicate!r} is neither an expression nor a function"
        raise SchemaError(msg, where=caller(), hint=hint)
    try:
        kind = Passing(predicate)(stream.schema.empty_table()).type
    except pa.ArrowException as error:
        msg = f"{operator}: {error}; the input has {columns_of(stream.schema)}"
        raise SchemaError(msg, where=caller(), hint="check the columns' names and types.") from error
    if not pa.types.is_boolean(kind):
        msg = f"{operator}: the expression {predicate} gives {kind}, not boolean"
        raise SchemaError(msg, where=caller(), hint=hint)
    check_quotients(operator, [predicate], stream.schema)


def text_of(function: Any) -> str:
    """A short text for a function or expression, the same in every process."""
    return getattr(function, "__name__", None) or (
        str(function) if isinstance(function, Expression) else type(function).__name__
    )
