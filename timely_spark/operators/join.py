"""Join: each pair of records with equal keys, at the join of their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import Partition, Vertex, caller, check_columns, describe, names, operator
from timely_spark.operators.expire import check_expire, check_per, options_text
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.history import RowTimes, compaction, epochs_of, stamped
from timely_spark.state.keys import Indices, Mask, flat
from timely_spark.state.partitioning import repartition
from timely_spark.streams import Stream

Keys = tuple[tuple[str, ...], tuple[str, ...]]

How: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]
"""The kind of a join: which records go out beside the pairs, or instead of them."""

_ROW = "__timely_row"


class Join(Vertex):
    """Match each arriving batch with the other side's rows; send the pairs at the joins of their times.

    Nothing waits: of any two rows that match, the one that arrives later finds the other. All joins, of
    streams and of collections, are this vertex; they differ in what they store, and which rows match.

    Args:
        on: the key columns of each side.
        columns: the columns of a pair; those of both sides are the left side's.
    """

    reads_time = False
    repartition = repartition

    def __init__(self, on: Keys, columns: Sequence[str]) -> None:
        self.on, self.columns = on, tuple(columns)
        self.sides = [Arrangement(keys) for keys in on]

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send the batch's pairs with the other side, and store the batch."""
        batch = with_keys(batch, self.on[edge])
        if not batch.num_rows:
            return
        probe, found = self.stored(1 - edge, time).matches(batch, self.on[edge])
        if len(probe):
            self.send_pairs(edge, time, batch, probe, found)
        self.store(edge, time, batch)

    def stored(self, side: int, time: Any) -> Arrangement:
        """The rows of a side, with their times."""
        return self.sides[side]

    def send_pairs(self, edge: int, time: Any, mine: pa.Table, probe: Indices, found: pa.Table) -> None:
        """Send the pairs of rows `probe` of the batch with the rows that were found."""
        times, found = RowTimes.of(found, self._context.times)
        for at, part in times.joins(time, self.pairs(edge, mine, probe, found)):
            self.send_by(0, at, part)

    def pairs(self, edge: int, mine: pa.Table, probe: Indices, found: pa.Table) -> pa.Table:
        """The pairs in one table."""
        left = set((mine if edge == 0 else found).schema.names)
        own = [column for column in self.columns if (column in left) == (edge == 0)]
        taken = mine.select(own).take(pa.array(probe))
        return pa.table({c: (taken if c in own else found).column(c) for c in self.columns})

    def store(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Store the batch."""
        rows = stamped(batch, self._context.coarse(time))
        self.sides[edge].insert(rows, compact=compaction(self._context.since(), self._context.times))


class JoinExpiring(Join):
    """Join records at most `expire` epochs apart; older records are dropped."""

    def __init__(self, on: Keys, columns: Sequence[str], expire: int) -> None:
        super().__init__(on, columns)
        self.expire = expire

    def stored(self, side: int, time: Any) -> Arrangement:
        """The rows of a side that have not expired."""
        for each in self.sides:
            each.expire(self._context.since() - self.expire)
        return self.sides[side]

    def send_pairs(self, edge: int, time: Any, mine: pa.Table, probe: Indices, found: pa.Table) -> None:
        """Send the pairs of close epochs."""
        close = np.abs(epochs_of(found) - time.epoch) <= self.expire
        super().send_pairs(edge, time, mine, probe[close], found.filter(pa.array(close)))

    def store(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Store the batch with its own epoch."""
        self.sides[edge].insert(stamped(batch, time))


class JoinPerTime(Join):
    """Join records of equal times; a time's records are dropped when it is complete."""

    reads_time = True

    def __init__(self, on: Keys, columns: Sequence[str]) -> None:
        super().__init__(on, columns)
        self.by_time: dict[Any, list[Arrangement]] = {}

    def stored(self, side: int, time: Any) -> Arrangement:
        """The rows of a side at a time."""
        if time not in self.by_time:
            self.by_time[time] = [Arrangement(keys) for keys in self.on]
            self.notify_at(time, capability=None)  # only cleans up, so it delays no other notification
        return self.by_time[time][side]

    def send_pairs(self, edge: int, time: Any, mine: pa.Table, probe: Indices, found: pa.Table) -> None:
        """Send the pairs, which are all of one time."""
        self.send_by(0, time, self.pairs(edge, mine, probe, found))

    def store(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Store the batch until the time is complete."""
        self.by_time[time][edge].insert(batch)

    def on_notify(self, time: Any) -> None:
        """Drop the records of a complete time."""
        self.by_time.pop(time, None)


class JoinComplete(BufferingVertex):
    """The joins that are not inner: match the records of a time when no more of them can arrive.

    Args:
        on: the key columns of each side.
        sides: the schema of each side.
        schema: the output's.
        how: the kind of join.
    """

    def __init__(self, on: Keys, sides: tuple[pa.Schema, pa.Schema], schema: pa.Schema, how: How) -> None:
        super().__init__(inputs=2)
        self.on, self.sides, self.schema, self.how = on, sides, schema, how

    def on_complete(self, time: Any, *batches: list[pa.Table]) -> None:
        """Send the pairs, and the unmatched records that the kind of join keeps."""
        left, right = (
            pa.concat_tables(side or [schema.empty_table()])
            for side, schema in zip(batches, self.sides, strict=True)
        )
        index, known = Arrangement(self.on[1]), with_keys(_numbered(left), self.on[0])
        index.insert(with_keys(_numbered(right), self.on[1]))
        at, found = index.matches(known, self.on[0])
        probe = _rows(known)[at]
        matched = _among(probe, left)
        if self.how in {"semi", "anti"}:
            self.send_by(0, time, left.filter(pa.array(matched == (self.how == "semi"))))
            return
        parts = []
        if len(probe):
            taken = left.take(pa.array(probe))
            parts.append(
                {c: (taken if c in left.schema.names else found).column(c) for c in self.schema.names}
            )
        if self.how in {"left", "outer"}:
            alone = left.filter(pa.array(~matched))
            parts.append({c: alone.column(c) for c in left.schema.names})
        if self.how in {"right", "outer"}:
            alone = right.filter(pa.array(~_among(_rows(found) if len(probe) else probe, right)))
            extra = {c: alone.column(c) for c in self.schema.names if c not in left.schema.names}
            parts.append({ours: alone.column(theirs) for ours, theirs in zip(*self.on, strict=True)} | extra)
        for part in parts:
            self.send_by(0, time, padded(part, self.schema))


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(_ROW, pa.array(np.arange(table.num_rows)))


def _among(rows: Indices, table: pa.Table) -> Mask:
    mask = np.zeros(table.num_rows, np.bool_)
    mask[rows] = True
    return mask


def padded(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """A table of a schema; columns that are not given are null."""
    rows = len(next(iter(columns.values())))
    return pa.table(
        [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in schema],
        schema=schema,
    )


def with_keys(batch: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows without null keys: in a join null equals nothing, as in Spark."""
    for key in keys:
        if batch.column(key).null_count:
            batch = batch.filter(pc.is_valid(batch.column(key)))
    return batch


def _rows(table: pa.Table) -> Indices:
    """The numbers that `_numbered` gave."""
    values: Indices = flat(table.column(_ROW)).to_numpy()
    return values


def matching_keys(
    operator: str,
    ours: pa.Schema,
    theirs: pa.Schema,
    *,
    on: str | Sequence[str] | None,
    left: str | Sequence[str] | None,
    right: str | Sequence[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both sides, checked."""
    where = caller()
    if on is not None and (left is not None or right is not None):
        msg = f"{operator}: on={on!r} and left={left!r}, right={right!r}"
        hint = "give on= for keys of one name on both sides, else left= and right=."
        raise SchemaError(msg, where=where, hint=hint)
    keys = (names(operator, left if on is None else on), names(operator, right if on is None else on))
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


def check_how(operator: str, how: Any, ours: pa.Schema, theirs: pa.Schema, keys: Keys) -> None:
    """Check the kind of a join; the keys of a right or outer join come from both sides."""
    if how not in get_args(How):
        msg = f"{operator}: how={how!r}"
        raise SchemaError(msg, where=caller(), hint=f"one of {', '.join(get_args(How))}.")
    if how in {"right", "outer"}:
        for a, b in zip(*keys, strict=True):
            kinds = ours.field(a).type, theirs.field(b).type
            if kinds[0] != kinds[1]:
                msg = (
                    f"{operator}: left key {a!r} is {kinds[0]}, right key {b!r} is {kinds[1]}, and with "
                    f"how={how!r} column {a!r} has values of both"
                )
                raise SchemaError(msg, where=caller(), hint="cast one of them first.")
        if len(set(keys[0])) < len(keys[0]):
            msg = f"{operator}: left keys {list(keys[0])} with how={how!r}: a column cannot have two values"
            raise SchemaError(msg, where=caller(), hint="name each key column of the left side once.")


def other_columns(operator: str, ours: pa.Schema, theirs: pa.Schema, keys: Sequence[str]) -> list[str]:
    """The columns of the right side that are not keys."""
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
    how: How = "inner",
    per: str = "accumulated",
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Every pair of records with equal keys, once, at the earliest time at which both have arrived.

    Needs no notification. By default a record joins all records of the other side, before and after it; with
    ``per="time"`` only those of the same time, which are dropped when the time is complete. A null key joins
    nothing.

    The other kinds of join exist ``per="time"``: a record is known to match nothing only when its time is
    complete, and a stream retracts nothing (a collection does: `Collection.join`). They send everything
    when the time is complete. A record with a null key matches nothing, so it stays where unmatched records
    of its side do.

    Args:
        stream: the left side.
        other: the right side, in the same scope (`enter` it into a loop first).
        on: the key columns, if they have the same names on both sides.
        left: else the key columns of the left side.
        right: and as many of the right side, of the same types (integers of any width).
        how: "inner"; "left", "right" or "outer" to keep unmatched records of the left side, the right side
            or both; "semi" or "anti" for the left side's records with or without a match, each once.
        per: "accumulated" or "time".
        expire: outside loops, join only records at most so many epochs apart, whichever side comes first;
            older records are dropped.

    **Columns:** out: all of the left, then those of the right that are not keys, null in records that match
    nothing; the keys are those of the side that has the record. For "semi" and "anti" those of the left.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("join")
        >>> left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b string")
        >>> _ = left.join(right, on=["k"]).capture("inner")
        >>> _ = left.join(right, on=["k"], how="outer", per="time").capture("outer")
        >>> made = ts.testing.run(flow, {"l": [[(0, 0), (1, 2)], []], "r": [[(0, "a")], [(1, "B")]]})
        >>> made["inner"].rows()
        {0: [(0, 0, 'a')], 1: [(1, 2, 'B')]}
        >>> made["outer"].rows()
        {0: [(0, 0, 'a'), (1, 2, None)], 1: [(1, None, 'B')]}

    Raises:
        SchemaError: keys are missing or differ in number or type; both sides have another column of the
            same name; or `how` needs ``per="time"``.
    """
    stream.check_others("join", [other])
    keys = matching_keys("join", stream.schema, other.schema, on=on, left=left, right=right)
    check_how("join", how, stream.schema, other.schema, keys)
    whole = how not in {"semi", "anti"}
    extra = other_columns("join", stream.schema, other.schema, keys[1]) if whole else []
    check_per("join", per)
    if expire is not None:
        check_expire("join", stream, expire, per=per)
    if how != "inner" and per != "time":
        msg = (
            f"join: how={how!r} of all records up to each time would have to retract records that match later"
        )
        raise SchemaError(msg, where=caller(), hint='give per="time", or join collections.')
    schema = pa.schema([*stream.schema, *(other.schema.field(column) for column in extra)])
    vertex: Vertex
    if expire is not None:
        vertex = JoinExpiring(keys, schema.names, expire)
    elif how != "inner":
        vertex = JoinComplete(keys, (stream.schema, other.schema), schema, how)
    else:
        vertex = (Join if per == "accumulated" else JoinPerTime)(keys, schema.names)
    return stream.then(
        "join",
        [schema],
        others=[other],
        name=name,
        vertex=vertex,
        requires=[Partition(keys[0]), Partition(keys[1])],
        guarantees=keys[0],
        detail=" and ".join(a if a == b else f"{a} = {b}" for a, b in zip(*keys, strict=True))
        + (f", {how}" if how != "inner" else "")
        + options_text(per=per, expire=expire),
        parameters={"on": [list(side) for side in keys], "per": per, "expire": expire and int(expire)}
        | ({"how": how} if how != "inner" else {}),
    )[0]
