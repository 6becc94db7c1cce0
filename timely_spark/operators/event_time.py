"""Event time: lengths of time, windows of one length and sessions, and which windows a record is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph import Stateless, caller, check_columns, integer, names, nanoseconds
from timely_spark.graph.schema import UNITS
from timely_spark.state.arrow import flat
from timely_spark.state.grouping import changes
from timely_spark.times import is_integer

Duration: TypeAlias = str | timedelta | int
"""A length of event time: ``"90 seconds"``, a `timedelta`, or for a column of integers a number."""

Instants: TypeAlias = npt.NDArray[np.int64]

START, END = "window_start", "window_end"
FAR, FAR_DAYS = 1 << 62, 1 << 30
"""Times from here on, of dates those from `FAR_DAYS` on, have no window: its end might not be a time."""
#: the most windows of `every` that a record is in
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Every:
    """Windows of one length that begin at regular times; made by `every`."""

    step: Duration
    size: Duration | None = None
    offset: Duration = 0


@dataclass(frozen=True, slots=True)
class SessionsOf:
    """Windows that end when nothing comes for a while; made by `sessions`."""

    gap: Duration


Windowing: TypeAlias = Every | SessionsOf


def every(step: Duration, size: Duration | None = None, *, offset: Duration = 0) -> Every:
    """Windows of event time that begin every `step`: tumbling, or with a greater `size` sliding.

    A window has the times from `window_start` to before `window_end`. Windows begin at multiples of `step`
    since 1970-01-01 00:00 UTC (or since 0), as Spark's. With a `size` a record is in several windows.

    Args:
        step: "1 hour", "90 seconds", "1 day", ...; a `timedelta`; or an integer for a column of numbers.
        size: the length of a window, at least `step`, which it is by default.
        offset: a shift of all windows, at least 0.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hourly")
        >>> clicks = flow.input("clicks", "at long, page string").collection()
        >>> hourly = clicks.window("at", ts.every(60)).count(keys=["window_start", "page"])
        >>> _ = hourly.changes().capture("out")
        >>> ts.testing.run(flow, {"clicks": [[(5, "a"), (59, "a"), (60, "a")]]})["out"].rows()
        {0: [(0, 'a', 2, 1), (60, 'a', 1, 1)]}

    Raises:
        SchemaError: a length is not of these forms, or `step` or `size` is too small.
    """
    return Every(step, size, offset)


def sessions(gap: Duration) -> SessionsOf:
    """Windows of event time that end when a key has no record for `gap`, as Spark's `session_window`.

    Records belong to one session while each comes less than `gap` after the one before. A session begins
    with its first record, and its `window_end` is `gap` after its last one.

    Args:
        gap: as a step of `every`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("visits")
        >>> clicks = flow.input("clicks", "at long, who string").collection()
        >>> visits = clicks.window("at", ts.sessions(30), keys="who")
        >>> _ = visits.count(keys=["who", "window_start", "window_end"]).changes().capture("out")
        >>> ts.testing.run(flow, {"clicks": [[(5, "a"), (50, "a")], [(30, "a")]]})["out"].rows()
        {0: [('a', 5, 35, 1, 1), ('a', 50, 80, 1, 1)],
         1: [('a', 5, 35, 1, -1), ('a', 5, 80, 3, 1), ('a', 50, 80, 1, -1)]}

    Raises:
        SchemaError: `gap` is not of these forms, or too small.
    """
    return SessionsOf(gap)


def time_type(operator: str, schema: pa.Schema, on: str) -> pa.DataType:
    """The checked type of a column of event time."""
    kind = schema.field(on).type
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        msg = f"{operator}: time column {on!r} is {kind}"
        raise SchemaError(msg, where=caller(), hint="use a timestamp, a date or an integer.")
    return kind


# -- lengths -------------------------------------------------------------------------------------------------


def length(operator: str, what: str, value: Any, kind: pa.DataType, *, least: int = 0) -> int:
    """A length of event time in the unit of a time column of type `kind`."""
    msg = f"{operator}: {what}={value!r} for a time of type {kind}"
    if pa.types.is_integer(kind):
        hint = "give an integer, in the unit of the column."
        return integer(what, value, least=least, most=FAR - 1, step=operator, error=SchemaError, hint=hint)
    unit = 86_400 * 10**9 if pa.types.is_date(kind) else UNITS[kind.unit]
    total = 0 if is_integer(value, 0, 0) else nanoseconds(value)
    if total is None:
        hint = "give '1 hour', '90 seconds', '2 days', or a timedelta; months and years differ in length."
        raise SchemaError(msg, where=caller(), hint=hint)
    units, rest = divmod(total, unit)
    if rest:
        hint = "give a multiple of the type's unit, or cast the column to a finer unit."
        raise SchemaError(msg, where=caller(), hint=hint)
    if not least <= units < _far(kind):
        hint = f"give at least {least}, and less than {_far(kind)} units of {kind}."
        raise SchemaError(msg, where=caller(), hint=hint)
    return units


@dataclass(frozen=True, slots=True)
class Lengths:
    """A `Windowing` in the unit of a time column; of sessions `step` is 0 and `size` the gap."""

    on: str
    step: int
    size: int
    offset: int
    #: the type of window_start and window_end
    kind: pa.DataType

    @classmethod
    def of(cls, operator: str, schema: pa.Schema, on: Any, by: Any) -> Lengths:
        """The checked lengths of a windowing of records of a schema."""
        check_columns(operator, schema, names(operator, on))
        if not isinstance(on, str) or not isinstance(by, Every | SessionsOf):
            msg = f"{operator}: on={on!r}, by={by!r}"
            raise SchemaError(
                msg,
                where=caller(),
                hint='give a column and windows, as in window("time", ts.every("1 hour")).',
            )
        kind = time_type(operator, schema, on)
        if both := [column for column in (START, END) if column in schema.names]:
            msg = f"{operator}: the input has {both} already"
            raise SchemaError(msg, where=caller(), hint="rename them with select(new='old').")
        out = pa.int64() if pa.types.is_integer(kind) else kind
        if isinstance(by, SessionsOf):
            return cls(on, 0, length(operator, "gap", by.gap, kind, least=1), 0, out)
        step = length(operator, "step", by.step, kind, least=1)
        size = step if by.size is None else length(operator, "size", by.size, kind, least=step)
        if (windows := -(-size // step)) > _MOST:
            msg = f"{operator}: {by!r} puts each record into {windows:,} windows"
            raise SchemaError(msg, where=caller(), hint=f"give a greater step: at most {_MOST:,} windows.")
        return cls(on, step, size, length(operator, "offset", by.offset, kind), out)

    def fields(self) -> list[pa.Field]:
        """The columns of windows."""
        return [pa.field(START, self.kind), pa.field(END, self.kind)]

    def described(self) -> list[int]:
        """The lengths, for a plan's identity."""
        return [self.step, self.size, self.offset]

    def assigned(self, batch: pa.Table) -> pa.Table:
        """The rows with their windows, once for each; a row without a usable time has none (null).

        A session's window is that of the record alone.
        """
        times, usable = numbers_of_time(batch.column(self.on))
        if not self.step:
            return self.with_windows(batch, times, times + self.size, usable)
        first = (times - self.offset) // self.step * self.step + self.offset
        shifts = np.arange(-(-self.size // self.step)) * self.step
        starts = first[:, None] - shifts
        inside = (starts + self.size > times[:, None]) & usable[:, None]
        inside[~usable, 0] = True
        rows, column = np.nonzero(inside)
        batch = batch if len(shifts) == 1 else batch.take(pa.array(rows))
        starts = starts[rows, column]
        return self.with_windows(batch, starts, starts + self.size, usable[rows])

    def with_windows(self, batch: pa.Table, starts: Instants, ends: Instants, usable: Any = None) -> pa.Table:
        """The rows with columns of windows, null where a time is not usable."""
        for field, values in zip(self.fields(), (starts, ends), strict=True):
            column = pa.array(values, mask=None if usable is None else ~usable)
            column = column.cast(pa.int32()) if pa.types.is_date32(self.kind) else column
            batch = batch.append_column(field, column.cast(self.kind))
        return batch


def numbers_of_time(column: pa.ChunkedArray) -> tuple[Instants, Any]:
    """Event times as integers, and a mask of the usable ones; the others (null, too large) are 0."""
    values, far = flat(column), _far(column.type)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    numbers = values.cast(pa.int64(), safe=False).fill_null(0).to_numpy()  # from 2^63 on they are negative
    least = -1 if pa.types.is_uint64(values.type) else -far
    usable = valid & (numbers < far) & (numbers > least)
    return np.where(usable, numbers, 0), usable


def _far(kind: pa.DataType) -> int:
    """The least number of units that is too far, as a time or as a length."""
    return FAR_DAYS if pa.types.is_date(kind) else FAR


def check_session_keys(by: Windowing, keys: Sequence[str]) -> None:
    """Check that sessions have keys, and other windows none."""
    if bool(keys) != isinstance(by, SessionsOf):
        msg = f"window: keys={list(keys)} with {by!r}"
        hint = (
            "leave keys out, and group the windows by them: windows are the same for all keys."
            if keys
            else "name the keys; each key has its own sessions: keys='user'."
        )
        raise SchemaError(msg, where=caller(), hint=hint)


class Assign(Stateless):
    """Append the columns of windows."""

    reads_time = False

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (self.lengths.assigned(batch),)


def merged(keys: Instants, times: Instants, gap: int) -> tuple[Instants, Instants]:
    """For each record the start and end of its session.

    >>> merged(np.array([0, 0, 1, 0]), np.array([5, 30, 7, 12]), 10)
    (array([ 5, 30,  7,  5]), array([22, 40, 17, 22]))
    """
    if not len(times):
        return times, times
    order = np.lexsort((times, keys))
    k, t = keys[order], times[order]
    new = changes(k)
    new[1:] |= np.diff(t) >= gap
    which = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(t)) - 1
    starts, ends = np.empty_like(times), np.empty_like(times)
    starts[order], ends[order] = t[first][which], t[last][which] + gap
    return starts, ends
