"""One superstep of Pregel, as a reduction: each node's columns, from its columns before and its message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    GROUP,
    Indices,
    Logic,
    as_table,
    caller,
    describe,
    map_records,
    named_expressions,
    numbers,
    project,
    projected,
)
from timely_spark.errors import SchemaError

NodeProgram = Callable[[pa.Table], pa.Table]
"""A vertex program: from a table of nodes that compute to their new columns, row by row."""

HALTED = "halted"
"""The column of votes: false: active; true: halted in the last superstep; null: halted before."""
IS_MESSAGE = "__timely_message"


def by_expressions(columns: Mapping[str, Any], schema: pa.Schema, batch: pa.Schema) -> NodeProgram:
    """The program of an expression for each column that changes; all read the columns of a `batch`."""
    step = "pregel: with_vertex_column"
    new = named_expressions(step, batch, {name: columns.get(name, name) for name in schema.names})
    computed = projected(step, new, batch)
    if computed != schema:
        msg = f"pregel: columns ({describe(schema)}) are ({describe(computed)}) after a superstep"
        hint = "cast one of them, as in pc.field('msg').cast('double')."
        raise SchemaError(msg, where=caller(), hint=hint)
    return lambda table: project(table, new)


def by_batch(function: Callable[[pa.Table], Any], schema: pa.Schema) -> NodeProgram:
    """The program of a function of an Arrow table."""

    def program(batch: pa.Table) -> pa.Table:
        results = as_table(function(batch), schema, of="compute", projected=True)
        if results.num_rows != batch.num_rows:
            msg = f"compute returned {results.num_rows} rows for {batch.num_rows} nodes"
            raise SchemaError(msg, hint="return a row for each node, in the same order.")
        return results

    return program


def by_row(function: Callable[[Any], Any], schema: pa.Schema) -> NodeProgram:
    """The program of a function of one node."""
    return lambda batch: as_table(map_records(function, batch), schema, of="vprog")


@dataclass(frozen=True, slots=True)
class Superstep(Logic):
    """Apply the program to the nodes that have a message or have not voted to halt.

    Records of a node are its columns and aggregates, and at most one message. A message to no node is
    dropped.
    """

    program: NodeProgram
    #: the columns of nodes, without the key and `HALTED`; those of messages; and aggregates
    columns: pa.Schema
    messages: tuple[str, ...]
    aggregates: tuple[str, ...]
    halt: Any

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        inputs = inputs.filter(pc.greater(inputs.column(DIFF), 0))
        is_message = inputs.column(IS_MESSAGE)
        nodes, messages = inputs.filter(pc.invert(is_message)), inputs.filter(is_message)
        _check_single("records", keys, nodes)
        _check_single("messages", keys, messages)
        groups, recipients = numbers(nodes, GROUP), numbers(messages, GROUP)
        at = np.searchsorted(recipients, groups)
        received = np.zeros(len(groups), np.bool_)
        received[at < len(recipients)] = recipients[at[at < len(recipients)]] == groups[at < len(recipients)]
        taken = messages.select(list(self.messages)).take(pa.array(at, mask=~received))
        batch = keys.take(pa.array(groups))
        for part in (nodes.select([*self.columns.names, *self.aggregates]), taken):
            for field, column in zip(part.schema, part.columns, strict=True):
                batch = batch.append_column(field, column)
        if self.halt is None:
            results = self._computed(batch)
        else:
            awake = pc.fill_null(pc.invert(nodes.column(HALTED)), fill_value=False)
            runs = received | awake.to_numpy()
            asleep = nodes.filter(pa.array(~runs)).select(self.columns.names)
            none = pa.nulls(asleep.num_rows, pa.bool_())
            results = pa.concat_tables(
                [self._computed(batch.filter(pa.array(runs))), asleep.append_column(HALTED, none)]
            )
            order = np.concatenate([np.flatnonzero(runs), np.flatnonzero(~runs)])
            results = results.take(pa.array(np.argsort(order)))
        ones = pa.array(np.ones(len(groups), np.int64))
        return results.add_column(0, GROUP, pa.array(groups)).append_column(DIFF, ones)

    def _computed(self, batch: pa.Table) -> pa.Table:
        """The new columns of nodes that compute, with their votes."""
        results = self.program(batch) if batch.num_rows else self.columns.empty_table()
        if self.halt is None:
            return results
        for column in self.columns.names:
            place = batch.schema.get_field_index(column)
            batch = batch.set_column(place, batch.schema.field(place), results.column(column))
        vote = project(batch, {HALTED: self.halt}).column(HALTED)
        return results.append_column(HALTED, pc.fill_null(vote, fill_value=False))


def _check_single(what: str, keys: pa.Table, rows: pa.Table) -> None:
    groups: Indices = numbers(rows, GROUP)
    twice = numbers(rows, DIFF) > 1
    twice[:-1] |= groups[1:] == groups[:-1]
    if twice.any():
        first = keys.take(pa.array(groups[twice][:1])).to_pylist()[0]
        own = describe(rows.drop_columns([GROUP, IS_MESSAGE, DIFF]).schema)
        msg = f"pregel: node {first} has several {what}, with ({own})"
        hint = "give one record for each node, and let agg_msgs return one message for each."
        raise SchemaError(msg, hint=hint)
