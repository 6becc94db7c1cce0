"""Distinct, min and max: what became true stays true, so the first or best record of a key passes at once.

They keep, per key, the antichain of (time, value) of the improvements, and never let a later
epoch hide an earlier one. So they ask for no notification, and a loop that only confirms what is known comes
to its end by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import Partition, Refines, Vertex, caller, check_columns, composed, names
from timely_spark.operators.expire import Runs, check_expire
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.keys import Hashes, Indices, Mask, group, hashes
from timely_spark.worker.partitioning import repartition
from timely_spark.worker.stamps import settle_times, stamp, where_time

if TYPE_CHECKING:
    from timely_spark.streams import Stream


class Least(Vertex):
    """Pass, per key, each record that betters all that were seen at the same or an earlier time."""

    reads_time = False
    repartition = repartition

    def __init__(self, refines: Refines) -> None:
        self.refines = refines
        self.state = Arrangement(refines.keys)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send on what is new."""
        best = least(batch, self.refines)
        at = self.coarse(time)
        hashed = hashes(best, self.refines.keys)
        probe, known = self.state.lookup(best, self.refines.keys, hashed)
        if len(probe):
            worse = where_time(known, self._context.times, lambda before: before.less_equal(at))
            if self.refines.value is not None:
                worse &= no_worse(known, best.take(probe), self.refines)
            fresh = np.ones(best.num_rows, np.bool_)
            fresh[probe[worse]] = False
            best, hashed = best.filter(fresh), hashed[fresh]
        if best.num_rows:
            self.state.insert(stamp(best, at), hashed, partial(self._compact, self._context.since()))
            self.send_by(0, time, best)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """The best of each key alone is of use."""
        return least(batch, self.refines)

    def coarse(self, time: Any) -> Any:
        """The time with the counters of loops that run until nothing changes set to 0."""
        return self._context.coarse(time)

    def _compact(self, since: int, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        table, at = settle_times(table, self._context.times, since)
        # per (key, time) the best alone is of use
        keyed = table.append_column("__timely_class", pa.array(at))
        groups = group(_by_value(keyed, self.refines), [*self.refines.keys, "__timely_class"])
        order = _value_order(keyed, self.refines)
        rows = np.sort(order[groups.firsts])
        return hashed[rows], table.take(rows)


class Settled(Least):
    """The same, once a time is complete: each key's best record, if it betters those of earlier times."""

    def __init__(self, refines: Refines) -> None:
        super().__init__(refines)
        self.waiting: dict[Any, list[pa.Table]] = defaultdict(list)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Keep the best until the time is complete."""
        self.waiting[time].append(least(batch, self.refines))
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        """Send what is new at a complete time."""
        if came := self.waiting.pop(time, None):
            super().on_recv(0, time, pa.concat_tables(came))

    def coarse(self, time: Any) -> Any:
        """A vertex that waits for iterations keeps every loop counter."""
        return time


class LeastRuns(Runs):
    """Per key and run, each record that betters the run's earlier epochs, once its epoch is complete."""

    def __init__(self, refines: Refines, expire: int) -> None:
        super().__init__(refines.keys, expire)
        self.refines = refines

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """The best of each key alone is of use."""
        return least(batch, self.refines)

    def news(self, total: pa.Table, new: pa.Table, probe: Indices, known: pa.Table) -> pa.Table:
        """What is better than the run was before, or begins one."""
        fresh = np.ones(new.num_rows, np.bool_)
        if len(probe) and self.refines.value is not None:
            probe = probe[no_worse(known, new.take(probe), self.refines)]
        fresh[probe] = False
        return new.filter(fresh)


def least(batch: pa.Table, refines: Refines) -> pa.Table:
    """One record per key: the one with the least value (null and NaN are no values)."""
    if refines.value is not None:
        value = batch.column(refines.value)
        if value.null_count or pa.types.is_floating(value.type):
            keep = pc.is_valid(value)
            if pa.types.is_floating(value.type):
                keep = pc.and_(keep, pc.invert(pc.fill_null(pc.is_nan(value), fill_value=True)))
            batch = batch.filter(keep)
    ordered = _by_value(batch, refines)
    return ordered.take(group(ordered, refines.keys).firsts)


def _value_order(table: pa.Table, refines: Refines) -> Any:
    if refines.value is None:
        return np.arange(table.num_rows)
    direction = "descending" if refines.greatest else "ascending"
    return pc.sort_indices(table, [(refines.value, direction)]).to_numpy()


def _by_value(table: pa.Table, refines: Refines) -> pa.Table:
    return table if refines.value is None else table.take(_value_order(table, refines))


def no_worse(known: pa.Table, new: pa.Table, refines: Refines) -> Mask:
    """Row by row, whether the known value is as good as the new one."""
    compare = pc.greater_equal if refines.greatest else pc.less_equal
    result: Mask = compare(known.column(refines.value), new.column(refines.value)).to_numpy()
    return result


def distinct(stream: Stream, *, expire: int | None = None, name: str | None = None) -> Stream:
    """Each different record once: at the least time at which it appears.

    Asks for no notification: a record passes when it is first seen. Over epochs it accumulates: a record seen
    in an epoch does not appear again in a later one. In a loop it is what makes the loop end: what is known
    already goes no further.

    With `expire`, outside loops, a record that did not come for so many epochs is forgotten, and appears
    anew when it comes again: it is passed where it did not come in any of the `expire` epochs before. Then
    it waits: whether that is so is known when the epoch is complete.

    **Columns:** out as in; none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("distinct")
        >>> _ = flow.input("x", "n long").distinct().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2, 2], [2, 3]]})["out"].rows()
        {0: [(1,), (2,)], 1: [(3,)]}
    """
    return _least(
        stream, "distinct", Refines(tuple(stream.schema.names)), stream.schema, expire=expire, name=name
    )


def min(
    stream: Stream,
    value: str,
    *,
    keys: str | Sequence[str],
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Per key the least value so far, sent again at each improvement.

    Asks for no notification. Within an epoch a key's record may be improved again; what outputs release, and
    what stages that wait read, is the last word: one record per key and epoch in which it changed. Null and
    NaN are no values.

    With `expire`, outside loops, a key that had no value for so many epochs is forgotten, and starts anew
    when it comes again: least of the key's run, that is back to where two epochs with values of it lie
    further apart than `expire`. Then it waits for the epoch to be complete.

    **Columns:** in: `keys` and `value`, others are dropped; out: `keys`, `value`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("least")
        >>> _ = flow.input("x", "k string, v long").min("v", keys=["k"]).capture("out")
        >>> ts.testing.run(flow, {"x": [[("a", 3), ("a", 2)], [("a", 5), ("b", 1)]]})["out"].rows()
        {0: [('a', 2)], 1: [('b', 1)]}
    """
    return _extreme(stream, "min", value, keys, expire=expire, name=name)


def max(
    stream: Stream,
    value: str,
    *,
    keys: str | Sequence[str],
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


@composed
def _extreme(
    stream: Stream,
    operator: str,
    value: str,
    keys: str | Sequence[str],
    *,
    expire: int | None,
    name: str | None,
) -> Stream:
    keys = names(operator, keys)
    columns = [*keys, value]
    check_columns(operator, stream.schema, columns, keys=True)
    if value in keys:
        msg = (
            f"{operator} ({caller()}): {value!r} is a key and the value. Hint: the keys alone are distinct()."
        )
        raise SchemaError(msg)
    schema = pa.schema([stream.schema.field(column) for column in columns])
    narrow = stream if stream.schema.names == columns else stream.select(*columns)
    return _least(narrow, operator, Refines(keys, value, operator == "max"), schema, expire=expire, name=name)


def _least(
    stream: Stream,
    operator: str,
    refines: Refines,
    schema: pa.Schema,
    *,
    expire: int | None,
    name: str | None,
) -> Stream:
    if expire is not None:
        check_expire(operator, stream, expire)
    return stream.then(
        operator,
        [schema],
        name=name,
        vertex=Least(refines) if expire is None else LeastRuns(refines, expire),
        requires=[Partition(refines.keys)],
        guarantees=refines.keys,
        refines=refines if expire is None else None,
        detail=(refines.value or "") if expire is None else f"{refines.value or ''}, expire {expire}",
        parameters={"value": refines.value, "expire": expire and int(expire)},
    )[0]


def settle(stream: Stream, *, name: str | None = None) -> Stream:
    """Make the records of `distinct`, `min` or `max` final: wait for each time to be complete.

    Put in for you wherever it is needed outside loops and before whatever waits. Inside a loop, use it where
    iterations must be kept in step.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("final")
        >>> _ = flow.input("x", "n long").distinct().settle().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2, 2]]}, workers=3)["out"].rows()
        {0: [(1,), (2,)]}

    Raises:
        GraphError: the stream does not come straight from one of the three.
    """
    from timely_spark.errors import GraphError

    refines = stream.stage.refines
    if refines is None:
        msg = (
            f"settle: step {stream.stage.name!r} ({stream.stage.where}) has final records already. "
            "Hint: call it right after distinct, min or max."
        )
        raise GraphError(msg)
    return stream.then(
        "settle",
        [stream.schema],
        name=name,
        vertex=Settled(refines),
        requires=[Partition(refines.keys)],
        guarantees=refines.keys,
    )[0]
