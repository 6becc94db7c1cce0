"""Windows of event time as columns of a collection: a record that comes late corrects the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timely_spark.differential.collections import Collection
from timely_spark.differential.reducers import GROUP, Logic, present_records
from timely_spark.differential.reductions import reduced
from timely_spark.differential.trace import DIFF
from timely_spark.errors import SchemaError
from timely_spark.graph import caller, check_columns, names, operator
from timely_spark.operators.event_time import (
    Assign,
    Lengths,
    SessionsOf,
    Windowing,
    check_session_keys,
    merged,
    numbers_of_time,
)
from timely_spark.operators.rows import key_columns
from timely_spark.state.arrow import numbers


@dataclass(frozen=True, slots=True)
class SessionLogic(Logic):
    """The records of a key with their sessions."""

    lengths: Lengths
    fields: tuple[str, ...]

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        """The present records with the start and end of their sessions; null without a time."""
        present = present_records(inputs)
        times, usable = numbers_of_time(present.column(self.lengths.on))
        starts, ends = np.zeros_like(times), np.zeros_like(times)
        groups = numbers(present, GROUP)
        starts[usable], ends[usable] = merged(groups[usable], times[usable], self.lengths.size)
        sessions = self.lengths.with_windows(present, starts, ends, usable)
        return sessions.select([GROUP, *self.fields, *(one.name for one in self.lengths.fields()), DIFF])


@operator(Collection)
def window(
    collection: Collection,
    on: str,
    by: Windowing,
    *,
    keys: str | Sequence[str] | None = None,
    name: str | None = None,
) -> Collection:
    """The records with their windows of event time, as columns; windows never close.

    Group by these columns for results per window. A record that comes late, or is deleted, corrects them at
    once; nothing is final, and nothing is late. To drop old windows filter the input, or use `Stream.window`,
    whose windows close. A record has null windows if its time is null, or a number of 2^62 or more.

    Windows of `every` are computed for each record by itself. Sessions are a reduction: a change costs its
    key's records.

    **Columns:** out: the collection's (for sessions `keys` first), then `window_start` and `window_end` of
    the type of `on`, integers as long. A record in several windows comes once for each. For sessions
    none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("sliding")
        >>> clicks = flow.input("clicks", "at long, diff long").collection(diff="diff")
        >>> clicks.window("at", ts.every(30, size=60)).count("n", keys="window_start").capture("out")
        Collection(count: window_start int64, n int64)
        >>> ts.testing.run(flow, {"clicks": [[(70, 1)], [(70, -1), (5, 1)]]})["out"].rows()
        {0: [(30, 1, 1), (60, 1, 1)], 1: [(-30, 1, 1), (0, 1, 1), (30, 1, -1), (60, 1, -1)]}

    Raises:
        SchemaError: `on` is missing or of another type; a length does not fit it; a key is missing or nested,
            not given for sessions, or given for others; or the collection has columns of these names.
    """
    schema = collection.schema
    lengths = Lengths.of("window", schema, on, by)
    listed = names("window", keys)
    check_session_keys(by, listed)
    if isinstance(by, SessionsOf):
        listed = key_columns("window", schema, listed)
        check_columns("window", schema, schema.names, keys=True)
        if on in listed:
            msg = f"window: the time {on!r} is a key"
            raise SchemaError(msg, where=caller(), hint="take it out of keys.")
        others = tuple(column for column in schema.names if column not in listed)
        fields = [*(schema.field(column) for column in others), *lengths.fields()]
        logic = SessionLogic(listed, lengths, others)
        return reduced("window", collection, logic, fields, name=name, detail=on, gap=lengths.size)
    stream = collection.stream
    result = stream.then(
        "window",
        [pa.schema([*schema, *lengths.fields(), pa.field(DIFF, pa.int64())])],
        name=name,
        own=(DIFF,),
        vertex=AssignChanges(lengths),
        keeps={column: column for column in [*schema.names, DIFF]},
        detail=on,
        parameters={"by": lengths.described()},
    )[0]
    return collection.like(result, once=collection.once)


class AssignChanges(Assign):
    """Append the columns of windows, before the difference."""

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        (assigned,) = super().apply(batch)
        return (assigned.select([*(column for column in assigned.schema.names if column != DIFF), DIFF]),)
