"""Join: each pair of records with equal keys, at the join of their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import SchemaError
from timely_spark.graph import (
    Partition,
    Partitioner,
    States,
    Vertex,
    caller,
    check_columns,
    describe,
    names,
    operator,
    word,
)
from timely_spark.operators.expire import Per, check_per, checked_expire, latest, options_text
from timely_spark.operators.retractions import check_no_retractions, retractions_in
from timely_spark.state.arrangement import Arrangement, Matches
from timely_spark.state.arrow import FEW, Hashes, Indices, Mask, numbers, rows_at
from timely_spark.state.buffering import BufferingVertex, per_input
from timely_spark.state.grouping import group
from timely_spark.state.hashing import exact
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import EPOCH, TIME, RowTimes, compaction, epochs_of, with_time
from timely_spark.streams import Stream, check_same_scope
from timely_spark.times import EPOCHS, Timestamp

Keys = tuple[tuple[str, ...], tuple[str, ...]]

JoinKind: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]
"""The kind of a join: which records go out beside the pairs, or instead of them."""

_ROW = "__timely_row"


class Join(Vertex):
    """Match each arriving batch with the other side's rows; send the pairs at the joins of their times.

    Nothing waits: of any two rows that match, the one that arrives later finds the other. All joins, of
    streams and of collections, are this vertex; they differ in what they store, and which rows match.

    Args:
        on: the key columns of each side.
        columns: the columns of a pair; those of both sides are the left side's.
        expire: match rows at most so many epochs apart; None means any.
    """

    #: whether null equals null: SQL's ``<=>``
    null_safe = False
    keeps_signs = True

    reads_time = False
    repartition = repartition

    def __init__(self, on: Keys, columns: Sequence[str], expire: int | None = None) -> None:
        self.on, self.columns, self.expire = on, tuple(columns), expire
        self.sides = [Arrangement(keys) for keys in on]

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send the batch's pairs with the other side, and store the batch."""
        if not self.null_safe:
            batch = with_keys(batch, self.on[edge])
        if not batch.num_rows:
            return
        if batch.num_rows >= FEW and self.stores(edge) and exact(batch, self.on[edge]):
            batch = group(batch, self.on[edge]).rows(batch)  # sorted once, to look up and to store
        matches = self.stored(1 - edge, time).find(batch, self.on[edge], self.hashed(edge, batch))
        if len(matches):
            self.send_pairs(edge, time, batch, matches)
        self.store(edge, time, batch)

    def stores(self, edge: int) -> bool:
        """Whether the rows of a side are stored here."""
        return True

    def hashed(self, edge: int, batch: pa.Table) -> Hashes | None:
        """H of the keys of a batch, if it has them."""
        return None

    def stored(self, side: int, time: Timestamp) -> Arrangement:
        """The rows of a side, with their times."""
        if self.expire is not None:
            for each in self.sides:
                each.expire(self._context.since() - self.expire)
        return self.sides[side]

    def send_pairs(self, edge: int, time: Timestamp, arrived: pa.Table, matches: Matches) -> None:
        """Send the pairs of rows of the batch with the rows that were found."""
        if self.expire is not None:
            matches = matches.filter(np.abs(matches.times(1)[:, 0] - time.epoch) <= self.expire)
        times, _ = RowTimes.of(matches.table(matches.columns(TIME)), self._context.times)
        for at, part in times.joins(time, self.pairs(edge, arrived, matches)):
            self.send_by(0, at, part)

    def pairs(self, edge: int, arrived: pa.Table, matches: Matches) -> pa.Table:
        """The pairs in one table."""
        stored = matches.columns()
        stored_columns = [c for c in self.columns if (c in stored if edge else c not in arrived.schema.names)]
        return joined_rows(self.columns, edge, arrived, matches.probe, matches.table(stored_columns))

    def store(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Store the batch."""
        since = self._context.since() - (self.expire or 0)  # later rows may still match by their own epoch
        rows = with_time(batch, self._context.coarse(time))
        self.sides[edge].insert(rows, compact=compaction(since, self._context.times))


class JoinPerTime(Join):
    """Join records of equal times; a time's records are dropped when it is complete."""

    reads_time = per_time = True

    def __init__(self, on: Keys, columns: Sequence[str]) -> None:
        super().__init__(on, columns)
        self.by_time: dict[Any, list[Arrangement]] = {}

    def stored(self, side: int, time: Timestamp) -> Arrangement:
        if time not in self.by_time:
            self.by_time[time] = [Arrangement(keys) for keys in self.on]
            self.notify_at(time, capability=None)  # only cleans up, so it delays no other notification
        return self.by_time[time][side]

    def send_pairs(self, edge: int, time: Timestamp, arrived: pa.Table, matches: Matches) -> None:
        self.send_by(0, time, self.pairs(edge, arrived, matches))

    def store(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        self.by_time[time][edge].insert(batch)

    def on_notify(self, time: Timestamp) -> None:
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

    keeps_signs = per_time = True

    def __init__(
        self, on: Keys, sides: tuple[pa.Schema, pa.Schema], schema: pa.Schema, how: JoinKind
    ) -> None:
        super().__init__(inputs=2)
        self.on, self.schemas, self.schema, self.how = on, sides, schema, how
        #: the sides whose records go out if nothing matches them
        self.preserved = {"left": (0,), "anti": (0,), "right": (1,), "outer": (0, 1)}.get(how, ())

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        left, right = per_input(batches, self.schemas)
        index, keyed = Arrangement(self.on[1]), with_keys(_numbered(left), self.on[0])
        index.insert(with_keys(_numbered(right), self.on[1]))
        at, matched = index.matches(keyed, self.on[0])
        probe = numbers(keyed, _ROW)[at]
        rows = probe, numbers(matched, _ROW) if len(probe) else probe
        if self.how == "semi":
            self.send_by(0, time, left.filter(pa.array(_among(probe, left))))
        elif self.how != "anti" and len(probe):
            self.send_by(0, time, joined_rows(self.schema.names, 0, left, probe, matched))
        for side in self.preserved:
            table = (left, right)[side]
            self.send_unmatched(side, time, table.filter(pa.array(~_among(rows[side], table))))

    def send_unmatched(self, side: int, time: Timestamp, rows: pa.Table) -> None:
        """Send records of a side that nothing matches, with nulls for the other side."""
        own = zip(self.on[0], self.on[1], strict=True) if side else ()
        renamed = {ours: rows.column(column) for ours, column in own}
        others = {c: rows.column(c) for c in rows.schema.names if c in self.schema.names and c not in renamed}
        self.send_by(0, time, with_nulls(renamed | others, self.schema))


class JoinCompleteExpiring(JoinComplete):
    """The joins that are not inner, of records at most `expire` epochs apart.

    Epochs are processed whole and in order. A record of epoch e that no record of the other side has matched
    when epoch ``e + expire`` is complete never will be.
    """

    per_time = False

    def __init__(
        self, on: Keys, sides: tuple[pa.Schema, pa.Schema], schema: pa.Schema, how: JoinKind, expire: int
    ) -> None:
        super().__init__(on, sides, schema, how)
        self.expire = expire
        #: the records of each side that later ones may match
        self.sides = [Arrangement(keys) for keys in on]
        #: the latest epoch of each key, by side, for twice as long
        self.latest = [Arrangement(keys) for keys in on]
        #: the records of each side that nothing had matched in their own epoch, by epoch
        self.alone = [Arrangement((EPOCH,)) for _ in on]
        #: the last epoch whose records without a match were sent
        self.sent = -1

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Match the records of an epoch; send those whose last chance of a match has passed."""
        both = per_input(batches, self.schemas)
        usable = [with_keys(table, keys) for table, keys in zip(both, self.on, strict=True)]
        for each in self.sides:
            each.expire(time.epoch - self.expire)
        if self.how == "semi":
            self._first_matches(time, *usable)
        elif self.how != "anti":
            self._pairs(time, *usable)
        for side in self.preserved:
            self._note(1 - side, time, usable[1 - side])
            self._unmatched(side, time, both[side])
        self.sent = time.epoch - self.expire

    def _pairs(self, time: Timestamp, left: pa.Table, right: pa.Table) -> None:
        for edge, table in enumerate((left, right)):
            probe, matched = self.sides[1 - edge].matches(table, self.on[edge])
            if len(probe):
                self.send_by(0, time, joined_rows(self.schema.names, edge, table, probe, matched))
            self.sides[edge].insert(with_time(table, time))

    def _first_matches(self, time: Timestamp, left: pa.Table, right: pa.Table) -> None:
        """Send the left records that this epoch's records are the first to match, and store the others."""
        keys = right.take(pa.array(group(right, self.on[1]).firsts))
        before = self._latest(1, keys, self.on[1])
        probe, earlier = self.sides[0].matches(keys, self.on[1])
        if len(probe):
            first = before[probe] < epochs_of(earlier) - self.expire
            self.send_by(0, time, earlier.filter(pa.array(first)).select(left.schema.names))
        self._note(1, time, keys)
        matched = self._latest(1, left, self.on[0]) >= time.epoch - self.expire
        self.send_by(0, time, left.filter(pa.array(matched)))
        self.sides[0].insert(with_time(left.filter(pa.array(~matched)), time))

    def _note(self, side: int, time: Timestamp, table: pa.Table) -> None:
        """Note the keys of an epoch."""
        keys = list(dict.fromkeys(self.on[side]))
        self.latest[side].expire(time.epoch - 2 * self.expire)
        now = table.select(keys).take(pa.array(group(table, keys).firsts))
        self.latest[side].insert(with_time(now, time), compact=partial(latest, keys))

    def _latest(self, side: int, table: pa.Table, on: Sequence[str]) -> Indices:
        """For each row of a table the latest epoch of its key on a side."""
        epochs = np.full(table.num_rows, -EPOCHS)
        probe, matched = self.latest[side].matches(table, on)
        if len(probe):
            np.maximum.at(epochs, probe, epochs_of(matched))
        return epochs

    def _unmatched(self, side: int, time: Timestamp, table: pa.Table) -> None:
        """Send a side's records of `expire` epochs ago that nothing has matched; store those of now."""
        now = table.filter(pa.array(self._latest(1 - side, table, self.on[side]) < time.epoch - self.expire))
        if now.num_rows:
            self.alone[side].insert(with_time(now, time))
            self.notify_at(self._context.times.epoch(time.epoch + self.expire))
        at = time.epoch - self.expire
        rows = self.alone[side].take([at])
        if not rows.num_rows:
            return
        rows = rows.filter(pa.array(self._latest(1 - side, rows, self.on[side]) < at - self.expire))
        self.send_unmatched(side, time, rows)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Drop records that were sent: another worker may still be notified of their epoch."""
        current = []
        for state in states:
            alone = [each.later(state.get("sent", self.sent)) for each in state.get("alone", self.alone)]
            current.append({key: value for key, value in state.items() if key != "sent"} | {"alone": alone})
        return repartition(self, current, workers, partition)


def joined_rows(
    columns: Sequence[str], edge: int, arrived: pa.Table, probe: Indices, stored: pa.Table
) -> pa.Table:
    """Pairs in one table: rows `probe` of a batch of a side, and the rows of the other that were found.

    Columns of both sides are the left side's.
    """
    left = set((arrived if edge == 0 else stored).schema.names)
    own = [column for column in columns if (column in left) == (edge == 0)]
    taken = rows_at(arrived.select(own), probe)
    return pa.table({c: (taken if c in own else stored).column(c) for c in columns})


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(_ROW, pa.array(np.arange(table.num_rows)))


def _among(rows: Indices, table: pa.Table) -> Mask:
    mask = np.zeros(table.num_rows, np.bool_)
    mask[rows] = True
    return mask


def with_nulls(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
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


def matching_keys(
    operator: str,
    left_schema: pa.Schema,
    right_schema: pa.Schema,
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
    check_columns(operator, left_schema, keys[0], keys=True, nested=True)
    check_columns(operator, right_schema, keys[1], keys=True, nested=True)
    for a, b in zip(*keys, strict=True):
        kinds = left_schema.field(a).type, right_schema.field(b).type
        if kinds[0] != kinds[1] and not all(pa.types.is_integer(kind) for kind in kinds):
            msg = f"{operator}: left key {a!r} is {kinds[0]}, right key {b!r} is {kinds[1]}"
            raise SchemaError(msg, where=where, hint="cast one of them first.")
    return keys


def keys_text(keys: Keys) -> str:
    """The keys of a join in a step's `detail`.

    >>> keys_text((("id", "a"), ("id", "b")))
    'id and a = b'
    """
    return " and ".join(a if a == b else f"{a} = {b}" for a, b in zip(*keys, strict=True))


def check_how(how: Any, left: pa.Schema, right: pa.Schema, keys: Keys) -> None:
    """Check the kind of a join; the keys of a right or outer join come from both sides."""
    word("how", how, get_args(JoinKind), step="join", error=SchemaError)
    if how in {"right", "outer"}:
        for a, b in zip(*keys, strict=True):
            kinds = left.field(a).type, right.field(b).type
            if kinds[0] != kinds[1]:
                msg = (
                    f"join: left key {a!r} is {kinds[0]}, right key {b!r} is {kinds[1]}, and with "
                    f"how={how!r} column {a!r} has values of both"
                )
                raise SchemaError(msg, where=caller(), hint="cast one of them first.")
        if len(set(keys[0])) < len(keys[0]):
            msg = f"join: left keys {list(keys[0])} with how={how!r}: a column cannot have two values"
            raise SchemaError(msg, where=caller(), hint="name each key column of the left side once.")


def other_columns(operator: str, left: pa.Schema, right: pa.Schema, keys: Sequence[str]) -> list[str]:
    """The columns of the right side that are not keys."""
    extra = [column for column in right.names if column not in keys]
    if both := sorted(set(extra) & set(left.names)):
        msg = f"{operator}: both sides have {both}; left ({describe(left)}), right ({describe(right)})"
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
    how: JoinKind = "inner",
    per: Per = "accumulated",
    expire: int | None = None,
    name: str | None = None,
) -> Stream:
    """Every pair of records with equal keys, once, at the earliest time at which both have arrived.

    Needs no notification. By default a record joins all records of the other side, before and after it; with
    ``per="time"`` only those of the same time, which are dropped when the time is complete. Give two inputs
    that are joined so ``epochs="manual"``: by the clock their epochs are micro-batches, and what is sent to
    both together may fall into two. A null key joins nothing.

    The other kinds of join need ``per="time"`` or `expire`, by which it becomes known that a record matches
    nothing: a stream retracts nothing (a collection does: `Collection.join`). They send a match when the
    later of its times is complete; a record without a match when its time is complete, or with ``expire=n``
    at the time n epochs after its own, when that is complete. A record with a null key matches nothing, so it
    stays where unmatched records of its side do.

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
        >>> left = flow.input("l", "k long, a long", epochs="manual")
        >>> right = flow.input("r", "k long, b string", epochs="manual")
        >>> _ = left.join(right, on=["k"]).capture("inner")
        >>> _ = left.join(right, on=["k"], how="outer", per="time").capture("outer")
        >>> made = ts.testing.run(flow, {"l": [[(0, 0), (1, 2)], []], "r": [[(0, "a")], [(1, "B")]]})
        >>> made["inner"].rows()
        {0: [(0, 0, 'a')], 1: [(1, 2, 'B')]}
        >>> made["outer"].rows()
        {0: [(0, 0, 'a'), (1, 2, None)], 1: [(1, None, 'B')]}

        Orders, and those for which no payment comes within two epochs:

        >>> flow = ts.Dataflow("within")
        >>> orders, payments = (
        ...     flow.input(name, "id long", epochs="manual") for name in ("orders", "payments")
        ... )
        >>> _ = orders.join(payments, on="id", how="semi", expire=2).capture("paid")
        >>> _ = orders.join(payments, on="id", how="anti", expire=2).capture("unpaid")
        >>> made = ts.testing.run(flow, {"orders": [[1, 2], [3]], "payments": [[], [2], [1]]})
        >>> made["paid"].rows()
        {0: [], 1: [(2,)], 2: [(1,)]}
        >>> made["unpaid"].rows()
        {0: [], 1: [], 2: [], 3: [(3,)]}

    Raises:
        SchemaError: keys are missing or differ in number or type; both sides have another column of the
            same name; or `how` needs ``per="time"`` or `expire`.
    """
    check_same_scope("join", stream, [other])
    keys = matching_keys("join", stream.schema, other.schema, on=on, left=left, right=right)
    check_how(how, stream.schema, other.schema, keys)
    # with one such side, the pairs of a record and of its retraction cancel each other
    both = retractions_in(stream) is not None and retractions_in(other) is not None
    if both or how != "inner" or per != "accumulated" or expire is not None:
        check_no_retractions("join", stream, other)
    adds_columns = how not in {"semi", "anti"}
    extra = other_columns("join", stream.schema, other.schema, keys[1]) if adds_columns else []
    check_per("join", per)
    expire = checked_expire("join", stream, expire, per=per)
    if how != "inner" and per != "time" and expire is None:
        msg = (
            f"join: how={how!r} of all records up to each time would have to retract records that match later"
        )
        raise SchemaError(msg, where=caller(), hint='give per="time" or expire=..., or join collections.')
    schema = pa.schema([*stream.schema, *(other.schema.field(column) for column in extra)])
    vertex: Vertex
    if how != "inner":
        sides = stream.schema, other.schema
        vertex = JoinComplete(keys, sides, schema, how)
        if expire is not None:
            vertex = JoinCompleteExpiring(keys, sides, schema, how, expire)
    elif per == "time":
        vertex = JoinPerTime(keys, schema.names)
    else:
        vertex = Join(keys, schema.names, expire)
    return stream.then(
        "join",
        [schema],
        others=[other],
        name=name,
        vertex=vertex,
        requires=[Partition(keys[0]), Partition(keys[1])],
        guarantees=keys[0],
        detail=keys_text(keys)
        + (f", {how}" if how != "inner" else "")
        + options_text(per=per, expire=expire),
        parameters={"on": [list(side) for side in keys], "per": per, "expire": expire}
        | ({"how": how} if how != "inner" else {}),
    )[0]
