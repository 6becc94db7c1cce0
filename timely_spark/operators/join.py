"""Join: each pair of records with equal keys, at the join of their times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import Partition, Vertex, caller, check_columns, describe, names, operator
from timely_spark.operators.expire import check_expire, epochs_of, in_epoch
from timely_spark.state.arrangement import EPOCH, Arrangement
from timely_spark.state.keys import Hashes
from timely_spark.state.partitioning import repartition
from timely_spark.state.stamps import AT, settle_times, stamp, stamps
from timely_spark.streams import Stream


class Join(Vertex):
    """Join each arriving batch with all records of the other side. Needs no notification."""

    reads_time = False
    repartition = repartition

    def __init__(self, on: tuple[tuple[str, ...], tuple[str, ...]], drop: frozenset[str]) -> None:
        self.on, self.drop = on, drop
        self.sides = [Arrangement(on[0]), Arrangement(on[1])]

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the batch's pairs with the other side, and store the batch."""
        batch = with_keys(batch, self.on[edge])
        if batch.num_rows:
            self.match(edge, time, batch)

    def match(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the pairs, and store the batch."""
        other = 1 - edge
        probe, found = self.sides[other].lookup(batch, self.on[edge])
        if len(probe):
            times, which = stamps(found, self._context.times)
            found = found.drop_columns([AT])
            self._send(edge, time, batch, probe=probe, found=found, times=times, which=which)
        compact = partial(self._compact, self._context.since())
        self.sides[edge].insert(stamp(batch, self._context.coarse(time)), compact=compact)

    def _send(
        self,
        edge: int,
        time: Any,
        batch: pa.Table,
        *,
        probe: Any,
        found: pa.Table,
        times: list[Any],
        which: Any,
    ) -> None:
        probing = batch.take(probe)
        left, right = (probing, found) if edge == 0 else (found, probing)
        pairs = left
        for column in right.schema.names:
            if column not in self.drop:
                pairs = pairs.append_column(right.schema.field(column), right.column(column))
        joins = [time.join(other) for other in times]
        for at in dict.fromkeys(joins):
            members = np.flatnonzero(np.array([one == at for one in joins])[which])
            self.send_by(0, at, pairs if len(members) == pairs.num_rows else pairs.take(members))

    def _compact(self, since: int, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        return hashed, settle_times(table, self._context.times, since)[0]


class JoinExpiring(Join):
    """Join records at most `expire` epochs apart; older records are dropped."""

    def __init__(
        self, on: tuple[tuple[str, ...], tuple[str, ...]], drop: frozenset[str], expire: int
    ) -> None:
        super().__init__(on, drop)
        self.expire = expire

    def match(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the pairs of close epochs, and store the batch."""
        for side in self.sides:
            side.expire(self._context.since() - self.expire)
        probe, found = self.sides[1 - edge].lookup(batch, self.on[edge])
        if len(probe):
            epochs = epochs_of(found)
            close = np.abs(epochs - time.epoch) <= self.expire
            epochs, which = np.unique(epochs[close], return_inverse=True)
            times = [self._context.times.epoch(int(epoch)) for epoch in epochs]
            found = found.filter(close).drop_columns([EPOCH])
            self._send(edge, time, batch, probe=probe[close], found=found, times=times, which=which)
        self.sides[edge].insert(in_epoch(batch, time.epoch))


class JoinPerTime(Join):
    """Join records of equal times; a time's records are dropped when it is complete."""

    reads_time = True

    def __init__(self, on: tuple[tuple[str, ...], tuple[str, ...]], drop: frozenset[str]) -> None:
        super().__init__(on, drop)
        self.by_time: dict[Any, list[Arrangement]] = {}

    def match(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the pairs within the time, and store the batch."""
        if time not in self.by_time:
            self.by_time[time] = [Arrangement(keys) for keys in self.on]
            self.notify_at(time, capability=None)  # only cleans up, so it delays no other notification
        sides = self.by_time[time]
        probe, found = sides[1 - edge].lookup(batch, self.on[edge])
        if len(probe):
            self._send(
                edge,
                time,
                batch,
                probe=probe,
                found=found,
                times=[time],
                which=np.zeros(len(probe), np.int64),
            )
        sides[edge].insert(batch)

    def on_notify(self, time: Any) -> None:
        """Drop the records of a complete time."""
        self.by_time.pop(time, None)


def with_keys(batch: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows without null keys: in a join null equals nothing, as in Spark."""
    for key in keys:
        if batch.column(key).null_count:
            batch = batch.filter(pc.is_valid(batch.column(key)))
    return batch


def matching_keys(
    operator: str,
    ours: pa.Schema,
    theirs: pa.Schema,
    *,
    on: str | Sequence[str] | None,
    left: str | Sequence[str] | None,
    right: str | Sequence[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both sides, checked.

    Raises:
        SchemaError: keys are missing or differ in number or type.
    """
    where = caller()
    if on is not None and (left is not None or right is not None):
        msg = f"{operator}: on={on!r} and left={left!r}, right={right!r}"
        hint = "give on= for keys of one name on both sides, else left= and right=."
        raise SchemaError(msg, where=where, hint=hint)
    keys = (
        names(operator, left if on is None else on),
        names(operator, right if on is None else on),
    )
    if not keys[0] or len(keys[0]) != len(keys[1]):
        msg = f"{operator}: keys {list(keys[0])} and {list(keys[1])}"
        hint = "give on=[...], or left=[...] and right=[...] of equal length."
        raise SchemaError(msg, where=where, hint=hint)
    check_columns(operator, ours, keys[0], keys=True)
    check_columns(operator, theirs, keys[1], keys=True)
    for a, b in zip(*keys, strict=True):
        kinds = ours.field(a).type, theirs.field(b).type
        if kinds[0] != kinds[1] and not all(pa.types.is_integer(kind) for kind in kinds):
            msg = f"{operator}: left key {a!r} is {kinds[0]}, right key {b!r} is {kinds[1]}"
            raise SchemaError(msg, where=where, hint="cast one of them first.")
    return keys


def other_columns(operator: str, ours: pa.Schema, theirs: pa.Schema, keys: Sequence[str]) -> list[str]:
    """The columns of the right side that are not keys.

    Raises:
        SchemaError: the left side has a column of that name.
    """
    extra = [column for column in theirs.names if column not in keys]
    if both := sorted(set(extra) & set(ours.names)):
        msg = f"{operator}: both sides have {both}; left ({describe(ours)}), right ({describe(theirs)})"
        raise SchemaError(msg, where=caller(), hint="rename with select(new='old') on one side.")
    return extra


@operator(Stream)
def join(
    stream: Stream,
    other: Stream,
    on: str | Sequence[str] | None = None,
    *,
    left: str | Sequence[str] | None = None,
    right: str | Sequence[str] | None = None,
    per: str = "accumulated",
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Every pair of records with equal keys, once, at the earliest time at which both have arrived.

    Needs no notification. By default a record joins all records of the other side, before and after it; with
    ``per="time"`` only those of the same time, which are dropped when the time is complete. A null key joins
    nothing.

    Args:
        stream: the left side.
        other: the right side, in the same scope (`enter` it into a loop first).
        on: the key columns, if they have the same names on both sides.
        left: else the key columns of the left side.
        right: and as many of the right side, of the same types (integers of any width).
        per: "accumulated" or "time".
        expire: outside loops, join only records at most so many epochs apart, whichever side comes first;
            older records are dropped.
        name: the step's name.

    **Columns:** out: all of the left, then those of the right that are not keys.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("join")
        >>> left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b string")
        >>> _ = left.join(right, on=["k"]).capture("out")
        >>> ts.testing.run(flow, {"l": [[(0, 0), (1, 2)], []], "r": [[(0, "a")], [(1, "B")]]})["out"].rows()
        {0: [(0, 0, 'a')], 1: [(1, 2, 'B')]}

    Raises:
        SchemaError: keys are missing or differ in number or type, or both sides have another column of the
            same name.
    """
    stream.check_others("join", [other])
    keys = matching_keys("join", stream.schema, other.schema, on=on, left=left, right=right)
    extra = other_columns("join", stream.schema, other.schema, keys[1])
    if per not in {"accumulated", "time"}:
        msg = f"join: per={per!r}"
        raise SchemaError(msg, where=caller(), hint="'accumulated' or 'time'.")
    if expire is not None:
        check_expire("join", stream, expire, per=per)
    drop = frozenset(keys[1])
    vertex: Join
    if expire is not None:
        vertex = JoinExpiring(keys, drop, expire)
    else:
        vertex = (Join if per == "accumulated" else JoinPerTime)(keys, drop)
    schema = pa.schema([*stream.schema, *(other.schema.field(column) for column in extra)])
    return stream.then(
        "join",
        [schema],
        others=[other],
        name=name,
        vertex=vertex,
        requires=[Partition(keys[0]), Partition(keys[1])],
        guarantees=keys[0],
        detail=" and ".join(a if a == b else f"{a} = {b}" for a, b in zip(*keys, strict=True))
        + (", per time" if per == "time" else "")
        + (f", expire {expire}" if expire is not None else ""),
        parameters={"on": [list(side) for side in keys], "per": per, "expire": expire and int(expire)},
    )[0]
