"""Distinct, min and max: monotone reductions that send each improvement at once.

Per key they keep the (time, value) pairs of the improvements; a later epoch never hides an earlier one. They
ask for no notification, so a loop around them ends as soon as no record improves on an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Monotone, Vertex, operator
from timely_spark.operators.expire import Per, Sessions, check_per, checked_expire, options_text
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import keys_and_value
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Indices, Mask
from timely_spark.state.buffering import BufferingVertex, PerTime
from timely_spark.state.grouping import Groups, group
from timely_spark.state.hashing import hashes
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import Compact, RowTimes, compaction, with_time
from timely_spark.streams import Stream
from timely_spark.times import Times, Timestamp


class Growing(Vertex):
    """Send, per key, a value of all records of earlier or equal times, whenever it grows."""

    reads_time = False
    repartition = repartition

    def __init__(self, monotone: Monotone) -> None:
        self.monotone = monotone
        #: the records that made a value grow, with their times
        self.state = Arrangement(monotone.keys)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Combine the records of each key, before the exchange too."""
        raise NotImplementedError

    def coarse(self, time: Timestamp) -> Any:
        """The time with the counters of loops that run to a fixed point set to 0."""
        return self._context.coarse(time)


class Improvements(Growing):
    """Pass, per key, each record that improves on all records of earlier or equal times."""

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        best = self.combine(edge, batch)
        at = self.coarse(time)
        hashed = hashes(best, self.monotone.keys)
        probe, stored = self.state.lookup(best, self.monotone.keys, hashed)
        if len(probe):
            times, stored = RowTimes.of(stored, self._context.times)
            beaten = times.less_equal(at)
            if self.monotone.value is not None:
                beaten &= at_least_as_good(stored, best.take(probe), self.monotone)
            improves = np.ones(best.num_rows, np.bool_)
            improves[probe[beaten]] = False
            best, hashed = best.filter(improves), hashed[improves]
        if best.num_rows:
            compacted = keep_best(self.monotone, self._context.since(), self._context.times)
            self.state.insert(with_time(best, at), hashed, compacted)
            self.send_by(0, time, best)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        return best_per_key(batch, self.monotone)


class ImprovementsPerTime(PerTime, Improvements):
    """Send each key's best record when a time is complete, if it improves on those of earlier times."""

    improves = True


class DistinctPerTime(BufferingVertex):
    """Send each record of a time once, when the time is complete."""

    per_time = True

    def __init__(self, monotone: Monotone) -> None:
        super().__init__()
        self.monotone = monotone

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Keep one of equal records, before the exchange too."""
        return best_per_key(batch, self.monotone)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if batches[0]:
            self.send_by(0, time, self.combine(0, pa.concat_tables(batches[0])))


class ImprovementSessions(Sessions, ImprovementsPerTime):
    """Per key and session, pass each record that improves on the session's earlier epochs."""

    improves = False

    def changes(self, total: pa.Table, batch: pa.Table, probe: Indices, stored: pa.Table) -> pa.Table:
        """The records that improve on their session or begin one."""
        improves = np.ones(batch.num_rows, np.bool_)
        if len(probe) and self.monotone.value is not None:
            probe = probe[at_least_as_good(stored, batch.take(probe), self.monotone)]
        improves[probe] = False
        return batch.filter(improves)


def best_per_key(batch: pa.Table, monotone: Monotone) -> pa.Table:
    """One record per key: the one with the best value. Null and NaN values are dropped."""
    if monotone.value is not None:
        value = batch.column(monotone.value)
        if value.null_count or pa.types.is_floating(value.type):
            keep = pc.is_valid(value)
            if pa.types.is_floating(value.type):
                keep = pc.and_(keep, pc.invert(pc.fill_null(pc.is_nan(value), fill_value=True)))
            batch = batch.filter(keep)
    return _best(monotone, batch, group(batch, monotone.keys))[1]


def keep_best(monotone: Monotone, since: int, kind: Times) -> Compact:
    """The compaction that keeps the best record per key and time."""
    return compaction(since, kind, monotone.keys, partial(_best, monotone))


def _best(monotone: Monotone, table: pa.Table, groups: Groups) -> tuple[Indices, pa.Table]:
    """The best record of each group, and its row number; of several best ones the first."""
    if monotone.value is None or len(groups.starts) == len(groups.order):  # one record in each group
        rows = groups.firsts
    else:
        direction = "descending" if monotone.greatest else "ascending"
        order = pc.sort_indices(table, [(monotone.value, direction)]).to_numpy()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rows = order[np.minimum.reduceat(place[groups.order], groups.starts)]
    return rows, table.take(pa.array(rows))


def at_least_as_good(stored: pa.Table, batch: pa.Table, monotone: Monotone) -> Mask:
    """Row by row, whether the stored value is at least as good as the batch's."""
    compare = pc.greater_equal if monotone.greatest else pc.less_equal
    result: Mask = compare(stored.column(monotone.value), batch.column(monotone.value)).to_numpy()
    return result


@operator(Stream)
def distinct(
    stream: Stream, *, per: Per = "accumulated", expire: int | None = None, name: str | None = None
) -> Stream:
    """Each different record once, at the least time at which it appears.

    A record passes when it is first seen; no notification is needed. A record of one epoch does not appear
    again in a later epoch. In a loop, `distinct` makes the loop end: a record that passed before is dropped.

    With ``per="time"`` each time's different records pass once, when the time is complete, whatever earlier
    times had: Naiad's Distinct (section 4.2). Nothing is kept, so in a loop it does not end the loop.

    With `expire`, outside loops, a record passes again if none of the `expire` epochs before its epoch has
    it. The records of an epoch then pass when the epoch is complete.

    Args:
        per: "accumulated" for the records that no earlier time had, or "time" for those of each time alone.
        expire: after how many epochs without it a record passes again; by default never.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("distinct")
        >>> x = flow.input("x", "n long")
        >>> _ = x.distinct().capture("out"), x.distinct(per="time").capture("per_time")
        >>> made = ts.testing.run(flow, {"x": [[1, 2, 2], [2, 3]]})
        >>> made["out"].rows(), made["per_time"].rows()
        ({0: [(1,), (2,)], 1: [(3,)]}, {0: [(1,), (2,)], 1: [(2,), (3,)]})

    Raises:
        SchemaError: a column has no equality, such as an interval, or `per` is unknown.
        GraphError: `expire` is not an integer of at least 1, is given with ``per="time"``, or the stream is
            in a loop.
    """
    check_per("distinct", per)
    check_no_retractions("distinct", stream)
    monotone = Monotone(tuple(stream.schema.names))
    return _monotone(stream, "distinct", monotone, per=per, expire=expire, name=name)


@operator(Stream)
def min(
    stream: Stream,
    value: str,
    *,
    keys: str | Sequence[str] | None = None,
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Per key the least value so far, sent again at each improvement.

    No notification is needed. Within an epoch a key's record may be improved by a later round; outputs, and
    vertices that wait for the epoch, get only the final one: one record per key and epoch in which the
    minimum changed. Null and NaN values are ignored.

    With `expire`, outside loops, the minimum is that of the key's session: a session ends when more than
    `expire` epochs pass without a value of the key. Values then pass when their epoch is complete.

    Args:
        value: the column whose least value is kept.
        keys: the key columns; by default all records are one group.
        expire: after how many epochs without a value a key's session ends; by default never.

    **Columns:** in: `keys` and `value`, others are dropped; out: `keys`, `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("least")
        >>> _ = flow.input("x", "k string, v long").min("v", keys=["k"]).capture("out")
        >>> ts.testing.run(flow, {"x": [[("a", 3), ("a", 2)], [("a", 5), ("b", 1)]]})["out"].rows()
        {0: [('a', 2)], 1: [('b', 1)]}

    Raises:
        SchemaError: a column is missing, `value` is a key, or a key has no equality.
        GraphError: `expire` is not an integer of at least 1, or the stream is in a loop.
    """
    return _extreme(stream, "min", value, keys, expire=expire, name=name)


@operator(Stream)
def max(
    stream: Stream,
    value: str,
    *,
    keys: str | Sequence[str] | None = None,
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Per key the greatest value so far, sent again at each improvement. Otherwise as `min`.

    **Columns:** in: `keys` and `value`, others are dropped; out: `keys`, `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("greatest")
        >>> _ = flow.input("x", "k string, v long").max("v", keys=["k"]).capture("out")
        >>> ts.testing.run(flow, {"x": [[("a", 3), ("a", 2)], [("a", 5)]]})["out"].rows()
        {0: [('a', 3)], 1: [('a', 5)]}
    """
    return _extreme(stream, "max", value, keys, expire=expire, name=name)


def _extreme(
    stream: Stream,
    operator: str,
    value: str,
    keys: str | Sequence[str] | None,
    *,
    expire: int | None,
    name: str | None,
) -> Stream:
    keys = keys_and_value(operator, stream.schema, keys, value)
    check_no_retractions(operator, stream)  # before the column of signs is dropped
    columns = [*keys, value]
    narrow = stream if stream.schema.names == columns else stream.select(*columns)
    monotone = Monotone(keys, value, operator == "max")
    return _monotone(narrow, operator, monotone, expire=expire, name=name)


def _monotone(
    stream: Stream,
    operator: str,
    monotone: Monotone,
    *,
    per: Per = "accumulated",
    expire: int | None,
    name: str | None,
) -> Stream:
    expire = checked_expire(operator, stream, expire, per=per)
    improves = expire is None and per == "accumulated"
    vertex: Vertex = Improvements(monotone) if improves else DistinctPerTime(monotone)
    return stream.then(
        operator,
        [stream.schema],
        name=name,
        vertex=vertex if expire is None else ImprovementSessions(expire, monotone),
        keyed=monotone.keys,
        monotone=monotone if improves else None,
        detail=(monotone.value or "") + options_text(per=per, expire=expire),
        parameters={"value": monotone.value, "expire": expire} | ({"per": per} if per == "time" else {}),
    )[0]
