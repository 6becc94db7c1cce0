"""Functions of the records of a key: at each time by itself, or with a state that is kept between epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.errors import RAISED, RecordError, SchemaError, shorten
from timely_spark.graph import (
    Partition,
    SchemaLike,
    as_schema,
    as_table,
    caller,
    check_columns,
    check_reserved,
    describe,
    names,
    operator,
)
from timely_spark.operators.expire import checked_expire
from timely_spark.operators.rows import check_function, key_columns, records, rows_of, table_of
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, Indices, numbers
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.codes import numbers_of, runs
from timely_spark.state.grouping import Groups, changes, group
from timely_spark.state.row_times import with_time
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

_WEIGHT, _NUMBER = "__timely_weight", "__timely_number"


class GroupMap(BufferingVertex):
    """Apply a function to the records of a time, grouped by key, when the time is complete.

    Args:
        function: gets a table; returns results with their keys.
        keys: the key columns.
        columns: the columns that the function gets.
        schema: the schema of the results.
    """

    per_time = True

    def __init__(
        self, function: Callable[..., Any], keys: Sequence[str], columns: Sequence[str], schema: pa.Schema
    ) -> None:
        super().__init__()
        self.function, self.keys, self.columns, self.schema = function, tuple(keys), tuple(columns), schema

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        batch = pa.concat_tables(batches[0])
        groups = group(batch, self.keys)
        self.apply(
            time,
            batch.take(pa.array(groups.order)),
            batch.select(list(self.keys)).take(pa.array(groups.firsts)),
        )

    def apply(self, time: Timestamp, batch: pa.Table, keys: pa.Table) -> None:
        """Send the results of a batch with these (distinct) keys."""
        self.send_by(
            0, time, self.fitting(self.function(batch.select(list(self.columns))), self.schema, keys)
        )

    def fitting(self, results: Any, schema: pa.Schema, keys: pa.Table) -> pa.Table:
        """The function's results as a table; the keys are among those that the function got."""
        table = table_of(self.function, results, schema)
        if on := [key for key in self.keys if key in schema.names]:
            key_numbers(keys, table, on)
        return table


def key_numbers(keys: pa.Table, results: pa.Table, on: Sequence[str]) -> Indices:
    """For each result of a function the number of its key, among the distinct keys that the function got.

    Raises:
        SchemaError: a result has another key.
    """
    index = Arrangement(on)
    index.insert(keys.append_column(_NUMBER, pa.array(np.arange(keys.num_rows))))
    at, rows = index.lookup(results, on)
    if len(at) < results.num_rows:
        msg = f"the function gave rows for {results.num_rows - len(at)} keys that it did not get"
        raise SchemaError(msg, hint=f"return the key columns {list(on)} unchanged.")
    return numbers(rows, _NUMBER)


class StatefulMap(GroupMap):
    """Apply a function to the records of an epoch and the state of their keys; epochs come in order.

    The state is a trace of its own changes: a replaced row is stored again with weight -1, and compaction
    drops both. So an epoch writes the rows that it replaces, however large the state is.
    """

    per_time = False

    def __init__(
        self,
        function: Callable[..., Any],
        keys: Sequence[str],
        columns: Sequence[str],
        schema: pa.Schema,
        *,
        rows: pa.Schema,
        expire: int | None,
    ) -> None:
        super().__init__(function, keys, columns, schema)
        #: the schema of the state: the keys, then the columns of the state
        self.rows, self.expire = rows, expire
        self.state = Arrangement(self.keys)

    def apply(self, time: Timestamp, batch: pa.Table, keys: pa.Table) -> None:
        """Send the results, and replace the state of the keys."""
        before = self._stored(time, keys)
        results, state = _pair(
            self.function(batch.select(list(self.columns)), before.select(self.rows.names))
        )
        after = self.fitting(state, self.rows, keys)
        if self.expire is not None:
            after = with_time(after, time)
        replaced = with_summed_weights(pa.concat_tables([_weighed(before, -1), _weighed(after, 1)]))[1]
        self.state.insert(replaced, compact=_compact)
        self.send_by(0, time, self.fitting(results, self.schema, keys))

    def _stored(self, time: Timestamp, keys: pa.Table) -> pa.Table:
        """The present state of keys, with the epoch of its last change if it expires."""
        if self.expire is not None:
            self.state.expire(time.epoch - self.expire)
        _, rows = self.state.matches(keys, self.keys)
        if not rows.num_rows:
            none = self.rows.empty_table()
            return none if self.expire is None else with_time(none, time)
        rows = with_summed_weights(rows)[1]
        rows = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), np.maximum(numbers(rows, _WEIGHT), 0))))
        return rows.drop_columns([_WEIGHT])


def _weighed(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(_WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def with_summed_weights(rows: pa.Table, *first: Indices) -> tuple[Indices, pa.Table]:
    """Add up the weights of equal rows, and drop those of weight zero; in the order of `first`.

    Returns:
        The row numbers of the rows that remain, and these rows.
    """
    labels = [column for column in rows.schema.names if column != _WEIGHT]
    equal = runs([*first, *numbers_of(rows, labels)], rows.num_rows)
    firsts, (totals,) = equal.nonzero([numbers(rows, _WEIGHT)])
    return firsts, rows.select(labels).take(pa.array(firsts)).append_column(_WEIGHT, pa.array(totals))


def _compact(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    rows, left = with_summed_weights(table, np.cumsum(changes(hashed)))
    return hashed[rows], left


class KeyFunction:
    """A function of one key and its records, as a function of the records of many keys.

    Args:
        function: gets a key and its records; with a state also the state, and returns a pair.
        keys: the key columns.
        schema: the schema of the results, without the keys.
        state: the schema of the state, without the keys; None if the function has no state.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        keys: Sequence[str],
        schema: pa.Schema,
        state: pa.Schema | None = None,
    ) -> None:
        self.function, self.keys, self.schema, self.state = function, list(keys), schema, state

    def __call__(self, batch: pa.Table, states: pa.Table | None = None) -> Any:
        """The results with their keys; and the states with their keys."""
        groups = (
            group(batch, self.keys) if self.keys else Groups(np.arange(batch.num_rows), np.zeros(1, np.int64))
        )
        key_rows = batch.select(self.keys).take(pa.array(groups.firsts))
        others = [column for column in batch.schema.names if column not in self.keys]
        listed: list[Any] = (
            list(records(batch.select(others).take(pa.array(groups.order))))
            if others
            else [()] * len(groups.order)
        )
        ends = [*groups.starts[1:].tolist(), len(listed)]
        arguments: list[Any] = [
            list(records(key_rows)) if self.keys else [()],
            [listed[a:b] for a, b in zip(groups.starts.tolist(), ends, strict=True)],
        ]
        if self.state is None or states is None:
            return self._keyed(key_rows, [*map(self._called, *arguments)], self.schema)
        pairs = [*map(self._called, *arguments, self._aligned(key_rows, states))]
        lists = [[] if state is None else [state] for _, state in pairs]
        return (
            self._keyed(key_rows, [results for results, _ in pairs], self.schema),
            self._keyed(key_rows, lists, self.state),
        )

    def _called(self, *arguments: Any) -> Any:
        """The results, as a list; with a state also the next state."""
        try:
            answer = self.function(*arguments)
            if self.state is None:
                return rows_of(self.function, answer)
            results, state = _pair(answer)
            return rows_of(self.function, results), state
        except RAISED as error:
            raise RecordError(arguments, " (the key, its records, and its state if there is one)") from error

    def _aligned(self, key_rows: pa.Table, states: pa.Table) -> list[Any]:
        """The state of each key, None if it has none."""
        index, aligned = Arrangement(self.keys), [None] * key_rows.num_rows
        index.insert(states)
        at, stored = index.matches(key_rows, self.keys)
        if len(at):
            for place, state in zip(at.tolist(), records(stored.drop_columns(self.keys)), strict=True):
                aligned[place] = state
        return aligned

    def _keyed(self, key_rows: pa.Table, rows: list[list[Any]], schema: pa.Schema) -> pa.Table:
        table = as_table([row for many in rows for row in many], schema)
        each = key_rows.take(pa.array(np.repeat(np.arange(len(rows)), [len(many) for many in rows])))
        return pa.table([*each.columns, *table.columns], names=[*self.keys, *schema.names])


def _pair(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        msg = f"the function returned {shorten(returned)}, not results and state"
        raise SchemaError(msg, hint="return a pair: return results, state.")
    return returned


def keyed_schema(operator: str, stream: Stream, keys: Sequence[str], schema: SchemaLike) -> pa.Schema:
    """The schema of results, checked: the keys, then the columns that a function returns."""
    columns = as_schema(schema)
    check_reserved(operator, caller(), columns.names)
    if both := [column for column in columns.names if column in keys]:
        msg = f"{operator}: {both} are keys, and in the schema ({describe(columns)})"
        raise SchemaError(msg, where=caller(), hint="leave the keys out of the schema.")
    return pa.schema([*(stream.schema.field(key) for key in keys), *columns])


def group_mapped(
    operator: str,
    stream: Stream,
    keys: tuple[str, ...],
    function: Callable[..., Any],
    schema: SchemaLike,
    *,
    hidden: Sequence[str] = (),
    name: str | None,
) -> Stream:
    """The results of a function of the records of each key at each time: see `Grouped.reduce`.

    Args:
        hidden: keys that the function does not get.
    """
    check_function(operator, function, *(("key", "rows") if operator == "reduce" else ("table",)))
    check_columns(operator, stream.schema, keys, keys=True)
    shown = [key for key in keys if key not in hidden]
    results = keyed_schema(operator, stream, shown, schema)
    if operator == "reduce":
        function = KeyFunction(function, shown, as_schema(schema))
    columns = [column for column in stream.schema.names if column not in hidden]
    return stream.then(
        operator,
        [results],
        name=name,
        vertex=GroupMap(function, keys, columns, results),
        requires=[Partition(keys)],
        guarantees=keys if not hidden else None,
        detail=", ".join(shown),
    )[0]


@operator(Stream)
def stateful_map(
    stream: Stream,
    function: Callable[[Any, list[Any], Any], tuple[Iterable[Any], Any]],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    state: SchemaLike,
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Compute results from each key's new records and its state, which is kept between epochs.

    When an epoch is complete, the function is called once for each key that has records in it; epochs come
    in order. It returns results and the key's next state. The state is part of the checkpoint, as that of
    every operator: each record changes it exactly once, also after a crash or a restart. It is repartitioned
    when the number of workers changes. For many keys `stateful_map_batches` is faster.

    Args:
        function: gets the key, a named row; the records of the epoch, named rows of the other columns, in no
            order; and the state, a named row, or None for a key without one. Returns the results, an
            iterable of rows, and the next state: a tuple, a dict, for one column the value, or None to forget
            the key. It must be deterministic.
        schema: the schema of the results, without the keys.
        keys: the key columns.
        state: the schema of the state, without the keys.
        expire: forget a key when more than `expire` epochs pass without a record of it.

    **Columns:** out: `keys`, then `schema`. State may not be nested.

    Example:
        The difference of each reading to the last one:

        >>> import timely_spark as ts
        >>> def difference(key, rows, last):
        ...     (row,) = rows
        ...     return [row.value - (last.value if last else 0)], row.value
        >>> flow = ts.Dataflow("differences")
        >>> readings = flow.input("readings", "meter string, value long")
        >>> by = readings.stateful_map(difference, "used long", keys="meter", state="value long")
        >>> _ = by.capture("out")
        >>> ts.testing.run(flow, {"readings": [[("a", 5), ("b", 7)], [("a", 9)]]})["out"].rows()
        {0: [('a', 5), ('b', 7)], 1: [('a', 4)]}

    Raises:
        GraphError: `function` cannot be called; the stream is in a loop, or the flow has times of its own
            kind; or `expire` is not an integer of at least 1.
        SchemaError: a key is missing or nested; a column of the state is nested; or a key is in a schema.
        VertexError: at run time: the function fails, or returns no pair, or other columns.
    """
    check_function("stateful_map", function, "key", "rows", "state")
    listed = names("stateful_map", keys)
    each = KeyFunction(function, listed, as_schema(schema), as_schema(state))
    options: Any = {"keys": listed, "state": state, "expire": expire, "name": name}
    return _stateful("stateful_map", stream, each, schema, **options)


@operator(Stream)
def stateful_map_batches(
    stream: Stream,
    function: Callable[[pa.Table, pa.Table], tuple[Any, Any]],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    state: SchemaLike,
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Compute results from the new records of many keys and their state, by a function of whole batches.

    As `stateful_map`, but the function gets all the records of the epoch on a worker at once, and the state
    of their keys as a table, which may have any number of rows per key. An epoch costs its records and the
    state of their keys, however large the state of all keys is.

    Args:
        function: gets the records, grouped by key, and the state; returns the results, and the state that
            replaces it: a key that is not in it has no state any more. A key's results and state must depend
            on its records and state alone, not on their order.
        schema: the schema of the results, without the keys.
        keys: the key columns.
        state: the schema of the state, without the keys.
        expire: forget a key when more than `expire` epochs pass without a record of it.

    **Columns:** the function gets the stream's, and `keys` and `state`; returns `keys` and `schema`, and
    `keys` and `state`. Out: `keys`, then `schema`. State may not be nested.

    Example:
        Each record once, and how often its key has been seen:

        >>> import timely_spark as ts
        >>> def seen(batch, state):
        ...     counts = batch.group_by("word").aggregate([([], "count_all")])
        ...     counts = counts.rename_columns(["word", "times"])
        ...     total = pa.concat_tables([counts, state]).group_by("word").aggregate([("times", "sum")])
        ...     total = total.rename_columns(["word", "times"])
        ...     return total, total
        >>> flow = ts.Dataflow("seen")
        >>> words = flow.input("words", "word string")
        >>> times = words.stateful_map_batches(seen, "times long", keys="word", state="times long")
        >>> _ = times.capture("out")
        >>> ts.testing.run(flow, {"words": [["to", "be", "to"], ["be"]]})["out"].rows()
        {0: [('be', 1), ('to', 2)], 1: [('be', 2)]}

    Raises:
        GraphError: `function` cannot be called; the stream is in a loop, or the flow has times of its own
            kind; or `expire` is not an integer of at least 1.
        SchemaError: a key is missing or nested; a column of the state is nested; or a key is in a schema.
        VertexError: at run time: the function fails, returns no pair, or other columns or keys.
    """
    check_function("stateful_map_batches", function, "table", "states")
    options: Any = {"keys": keys, "state": state, "expire": expire, "name": name}
    return _stateful("stateful_map_batches", stream, function, schema, **options)


def _stateful(
    operator: str,
    stream: Stream,
    function: Callable[..., Any],
    schema: SchemaLike,
    *,
    keys: str | Sequence[str],
    state: SchemaLike,
    expire: int | None,
    name: str | None,
) -> Stream:
    keys = key_columns(operator, stream.schema, keys)
    stream.check_outside(operator, epochs="states follow one another by epochs")
    expire = checked_expire(operator, stream, expire)
    results = keyed_schema(operator, stream, keys, schema)
    rows = keyed_schema(operator, stream, keys, state)
    check_columns(operator, rows, rows.names, keys=True)
    return stream.then(
        operator,
        [results],
        name=name,
        vertex=StatefulMap(function, keys, stream.schema.names, results, rows=rows, expire=expire),
        keyed=keys,
        detail=", ".join(keys) + (f", expire {expire}" if expire is not None else ""),
        parameters={"state": describe(rows), "expire": expire},
    )[0]
