"""Windows of event time on streams, which close, and send late records to an output of their own.

Event time is a column; epochs say in which order the flow learned of the records. When an epoch is complete,
event time is the greatest time in it and all epochs before, less the allowed lateness. That closes
the windows which end by then, and records of later epochs for them are late. So the windows that an epoch
closes and its late records depend on the records of the epochs alone: not on clocks, workers or schedules.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import InvalidTime
from timely_spark.graph import (
    Kind,
    Partition,
    Partitioner,
    Several,
    Stage,
    States,
    caller,
    check_columns,
    names,
    operator,
)
from timely_spark.graph.stage import closure, edges_into
from timely_spark.operators.event_time import (
    END,
    FAR,
    START,
    Assign,
    Duration,
    Instants,
    Lengths,
    SessionsOf,
    Windowing,
    check_session_keys,
    length,
    merged,
    numbers_of_time,
)
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.grouping import group
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import EPOCH
from timely_spark.streams import Stream
from timely_spark.times import EPOCHS, Timestamp

_HIGH = "high"
_LAST = EPOCHS // 2
"""The epoch at which the windows close that are open when all inputs are closed."""
_APART = 1 << 40
"""So many epochs later, beside delays between them, windows of what such windows send close."""
_END = (1 << 63) - 1


class CloseWindows(BufferingVertex):
    """Keep the records of open windows; send those of a window when event time has passed its end.

    Input 0 has the records with their windows, input 1 the greatest event time so far.
    """

    def __init__(self, lateness: int, last: int = _LAST) -> None:
        super().__init__()
        self.lateness = lateness
        #: the epoch at which open windows close
        self.last = last
        #: the greatest event time up to each time that is not complete
        self.highs: dict[Any, int] = {}
        #: windows that end by this time are closed; None if no record has come yet
        self.closed: int | None = None
        #: the ends of open windows
        self.ends: list[int] = []
        #: the records of open windows, by the end of the window
        self.state = Arrangement((EPOCH,))

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        if edge == 0:
            super().on_recv(edge, time, batch)
        else:
            self.highs[time] = int(numbers_of_time(batch.column(_HIGH))[0].max())
            self.notify_at(time)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Sort out late records, store the others, and close windows."""
        if batches[0] and time.epoch >= self.last:
            last = "2**61" if self.last == _LAST else self.last
            msg = f"epoch {time.epoch}, and the windows that are still open at the end close in epoch {last}"
            hint = "give the inputs epochs below 2**61, and delays in loops fewer than 2**40 in all."
            raise InvalidTime(msg, hint=hint)
        if batches[0]:
            self._arrived(time, pa.concat_tables(batches[0]))
        if time.epoch < self.last:
            self.notify_at(self._context.times.epoch(self.last))
        to = self.highs.pop(time, None)
        if time.epoch >= self.last:  # later than it if the flow had another window before this one
            self.close(time, _END)
        elif to is not None and (self.closed is None or to - self.lateness > self.closed):
            self.close(time, to - self.lateness)

    def _arrived(self, time: Timestamp, batch: pa.Table) -> None:
        ends, usable = numbers_of_time(batch.column(END))
        late = ~usable if self.closed is None else ~usable | (ends <= self.closed)
        if late.any():
            self._context.late(int(late.sum()))
            self.send_by(1, time, batch.filter(pa.array(late)))
            batch, ends = batch.filter(pa.array(~late)), ends[~late]
        if batch.num_rows:
            self.store(batch, ends)

    def store(self, batch: pa.Table, ends: Instants) -> None:
        """Store records of open windows."""
        self.state.insert(batch.append_column(EPOCH, pa.array(ends)))
        self.ends = sorted({*self.ends, *np.unique(ends).tolist()})

    def close(self, time: Timestamp, to: int) -> None:
        """Send the records of the windows that end by `to`, and forget them."""
        self.closed = to
        due = [end for end in self.ends if end <= to]
        if not due:
            return
        self.ends = self.ends[len(due) :]
        if (rows := self.state.take(due)).num_rows:
            self.send_by(0, time, rows)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Continue from the least time up to which a worker has closed its windows; None is before all.

        Every worker is notified again of the times that one of them has not processed. The records of windows
        that a worker has closed may still be in its arrangement: they are dropped.
        """
        current = []
        for state in states:
            one = {name: state[name] for name in ("buffered", "open") if name in state}
            if "state" in state:
                one["state"] = state["state"].later(-FAR if state.get("closed") is None else state["closed"])
            current.append(one)
        closed: list[Any] = [state.get("closed") for state in states]
        whole = {
            "closed": None if None in closed else min(closed),
            "ends": sorted({end for state in states for end in state.get("ends", ())}),
            "highs": {time: high for state in states for time, high in state.get("highs", {}).items()},
        }
        return [{**part, **copy.deepcopy(whole)} for part in repartition(self, current, workers, partition)]


class CloseSessions(CloseWindows):
    """Keep the records of open sessions. An epoch that closes windows costs the records of all of them."""

    def __init__(self, lateness: int, last: int, keys: Sequence[str], lengths: Lengths) -> None:
        super().__init__(lateness, last)
        self.keys, self.lengths = tuple(keys), lengths
        #: the records of open sessions
        self.open: list[pa.Table] = []

    def store(self, batch: pa.Table, ends: Instants) -> None:
        self.open = [*self.open, batch]

    def close(self, time: Timestamp, to: int) -> None:
        """Send the sessions that end by `to`."""
        self.closed = to
        if not self.open:
            return
        rows = pa.concat_tables(self.open)
        keys = group(rows, self.keys).of
        times, _ = numbers_of_time(rows.column(self.lengths.on))
        starts, ends = merged(keys, times, self.lengths.size)
        due = ends <= to
        rows = rows.drop_columns([START, END])
        closed, left, own = rows.filter(pa.array(due)), rows.filter(pa.array(~due)), times[~due]
        still_open = self.lengths.with_windows(left, own, own + self.lengths.size)
        self.open = [still_open] if still_open.num_rows else []
        self.send_by(0, time, self.lengths.with_windows(closed, starts[due], ends[due]))


@dataclass(frozen=True, slots=True)
class Windows(Several):
    """The records of windows that have closed, and those that came too late for theirs."""

    closed: Stream
    late: Stream


@operator(Stream)
def window(
    stream: Stream,
    on: str,
    by: Windowing,
    *,
    keys: str | Sequence[str] | None = None,
    lateness: Duration = 0,
    name: str | None = None,
) -> Windows:
    """Windows of event time, each sent as a whole when it closes; late records go out beside them.

    When an epoch is complete, event time is the greatest value of `on` in it and in all epochs
    before it, less `lateness`. The windows that end by then close: all their records go out in this epoch,
    once. Records of later epochs for a closed window are late: they go to `late`, and are counted, in
    `Query.status` under the step's name. A record without a time (null, or a number of 2^62 or more) is late,
    too. A record in an epoch is not late because of others in the same epoch. The window of a record of
    sessions is the one that it would have alone: if that has closed the record is late, also where a session
    around it is still open, as in Spark. When all inputs are closed, the windows that are still open close in
    a last epoch, 2**61; windows of their results 2**40 epochs later, and delays between them, also where
    another flow captures these results (`Stream.capture_to`) and the flow of the later windows replays them.

    Aggregate the closed windows with ``per="time"``: a window's records have one time. For results that
    come at once, and are corrected by late records, use `Collection.window`.

    An epoch costs its records, the records of the windows that it closes, and one exchange for event time;
    of sessions, all records of open sessions whenever event time advances.

    Args:
        on: the column of event time: a timestamp, a date or an integer.
        by: `every` or `sessions`.
        keys: the key columns of sessions: each key has sessions of its own. Windows of `every` have no keys.
        lateness: for how long after its end a window stays open.

    **Columns:** out: both the stream's, then `window_start` and `window_end` of the type of `on` (integers
    as long); a record in several windows goes out once for each.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("counts")
        >>> clicks = flow.input("clicks", "at long, page string", epochs="manual")
        >>> windows = clicks.window("at", ts.every(60), lateness=10)
        >>> counts = windows.closed.group_by("window_start", "page").count(per="time")
        >>> _ = counts.capture("counts"), windows.late.select("at").capture("late")
        >>> epochs = [[(5, "a"), (65, "a")], [(9, "a"), (70, "a")], [(8, "a")]]
        >>> made = ts.testing.run(flow, {"clicks": epochs})
        >>> [rows for rows in made["counts"].rows().values() if rows]
        [[(0, 'a', 2)], [(60, 'a', 2)]]
        >>> made["late"].rows()[2]
        [(8,)]

    Raises:
        GraphError: the stream is in a loop, or the flow has times of its own kind.
        SchemaError: `on` is missing or of another type; a length does not fit it; a key is missing or nested,
            not given for sessions, or given for others; or the stream has columns of these names.
        VertexError: when it runs: an epoch is 2**61 or greater.
    """
    lengths = Lengths.of("window", stream.schema, on, by)
    listed = names("window", keys)
    check_columns("window", stream.schema, listed, keys=True)
    check_session_keys(by, listed)
    stream.check_outside("window", epochs="windows close by epochs")
    check_no_retractions("window", stream)
    late = length("window", "lateness", lateness, stream.schema.field(on).type)
    schema = pa.schema([*stream.schema, *lengths.fields()])
    assigned = stream.then(
        "windows", [schema], vertex=Assign(lengths), keeps={c: c for c in stream.schema.names}
    )[0]
    usable = assigned.where(pc.is_valid(pc.field(START)))
    high = usable.select({_HIGH: on}).aggregate({_HIGH: ("max", _HIGH)}).broadcast()
    session = isinstance(by, SessionsOf)
    last = end_of_windows(stream)
    vertex = CloseSessions(late, last, listed, lengths) if session else CloseWindows(late, last)
    closed, too_late = assigned.then(
        "window",
        [schema, schema],
        others=[high],
        name=name,
        vertex=vertex,
        requires=[Partition(listed or (on,)), None],
        detail=on,
        parameters={"by": lengths.described(), "lateness": late, "keys": list(listed)},
    )
    return Windows(closed, too_late)


def end_of_windows(stream: Stream) -> int:
    """The epoch in which windows of a stream close at the end: after all windows before them.

    Also those of the flow that captured what a source replays. Delays and vertices between two windows count.
    """
    edges, out, last = stream.flow.graph.edges, defaultdict[Stage, list[Stage]](list), _LAST
    for edge in edges:
        out[edge.source].append(edge.target)
    into = edges_into(edges)
    before = closure([stream.stage], lambda stage: [edge.source for edge in into[stage]])
    for stage in before:
        if isinstance(stage.vertex, CloseWindows):
            end = stage.vertex.last + _APART
        elif stage.origin == "journal" and stage.epochs == "manual":
            replayed: Any = stream.flow.frames[stage.name]  # a ReplaySource
            end = replayed.end_of_windows
        else:
            continue
        last = max(last, end + sum(map(_epochs_later, closure([stage], out.__getitem__) & before)))
    if last >= EPOCHS:
        msg = f"window: with the windows and delays before, it would close in epoch {last}, behind the last"
        hint = "delay(...) by fewer epochs: windows, and what is between them, have 2**61 in all."
        raise InvalidTime(msg, where=caller(), hint=hint)
    return last


def _epochs_later(stage: Stage) -> int:
    """By how many epochs a stage outside loops delays records at most."""
    if stage.scope.parent is not None or stage.kind not in {Kind.VERTEX, Kind.DELAY}:
        return 0
    start = stage.scope.times.epoch(0)
    paths = [stage.summary, *(path for row in stage.summaries or () for path in row if path is not None)]
    return max((time.epoch for path in paths if (time := path.results_in(start)) is not None), default=0)
