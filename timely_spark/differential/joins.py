"""Join of collections: each change is matched with the trace of the other side as it arrives (bilinear)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.arranged import hashes_of, index_of, with_sequence
from timely_spark.differential.collections import Collection, Columns, check_collection
from timely_spark.differential.consolidation import partition_of, transient, without_transient
from timely_spark.differential.skew import named_keys
from timely_spark.differential.trace import DIFF, SEQUENCE, check_since, consolidate, consolidation, products
from timely_spark.errors import GraphError
from timely_spark.graph import (
    Expression,
    Kind,
    Partition,
    Partitioner,
    Skew,
    States,
    caller,
    operator,
)
from timely_spark.operators.join import (
    Join,
    JoinKind,
    Keys,
    check_how,
    keys_text,
    matching_keys,
    other_columns,
)
from timely_spark.operators.rows import computed
from timely_spark.state.arrangement import Arrangement, Matches
from timely_spark.state.arrow import Hashes, numbers
from timely_spark.state.exchange import is_hot
from timely_spark.state.hashing import hashes
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import by_join, with_each_time
from timely_spark.times import Timestamp

#: so many batches of changes are added to a trace in any case
_MANY = 32


class JoinChanges(Join):
    """A join of changes: the multiplicities of two changes are multiplied.

    At most one side reads the trace of an `Arrange` before it; the other keeps a trace of its own.

    The records of hot keys of one side are anywhere. Each worker has a copy of those of the other side.
    """

    reads_time = True
    needs_frontier = True
    takes_skew = True

    def __init__(
        self, on: Keys, columns: Sequence[str], shared: int | None, *, copied: tuple[int, Skew] | None = None
    ) -> None:
        super().__init__(on, columns)
        #: the side whose records of hot keys are copied to all workers; and the hot keys
        self.copied = copied
        #: that side, and H of each of these keys, in a restored state; None if no state was restored
        self.copies: tuple[int, ...] | None = None
        #: the side that reads the trace of an `Arrange`
        self.shared = shared
        #: the compaction frontier, and what readers had received of the shared trace, as of the last change
        self._compacted = 0, 0
        #: the last changes of each side with their times, which are not in its trace yet
        self._stored: list[list[tuple[Any, pa.Table]]] = [[] for _ in on]

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Consolidate the changes."""
        return consolidate(batch)

    def stores(self, edge: int) -> bool:
        return edge != self.shared

    def hashed(self, edge: int, batch: pa.Table) -> Hashes | None:
        """H of the keys that the index has computed."""
        return hashes_of(batch) if edge == self.shared else None

    def stored(self, side: int, time: Timestamp) -> Arrangement:
        if side == self.shared:
            return index_of(self._context, side).state
        self._merge(side)
        return self.sides[side]

    def store(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Add changes to the trace of their side, unless it is shared."""
        if not self.stores(edge):
            return
        since = self._context.compaction_frontier()
        received = 0
        if self.shared is not None:
            index = index_of(self._context, self.shared)
            batch, received = with_sequence(batch, index.sequence), index.received(since)
        check_since(time, since)
        self._compacted = since, received
        self._stored[edge].append((time, batch))
        if len(self._stored[edge]) > _MANY:
            self._merge(edge)

    def _merge(self, side: int) -> None:
        """Add what was stored to its trace: in a loop often no iteration but the first looks a side up."""
        if stored := self._stored[side]:
            compact = consolidation(*self._compacted)
            self.sides[side].insert(with_each_time(stored), compact=compact)
            stored.clear()

    def checkpoint(self) -> Mapping[str, Any]:
        for side in range(len(self.sides)):
            self._merge(side)
        if not any(map(len, self.sides)):
            return {}
        now = () if self.copied is None else (self.copied[0], *self.copied[1].hot)
        return {"sides": self.sides, "copies": now if self.copies is None else self.copies}

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Repartition as any keyed state, but one of several copies of a record, perhaps as new copies."""
        stored = [[*state["sides"]] for state in states if "sides" in state]
        for side, *hot in {state["copies"] for state in states if state.get("copies")}:
            for sides in stored[1:]:
                batches, keys = sides[side].batches(), self.on[side]
                cold = [rows.filter(pa.array(~is_hot(hashes(rows, keys), hot))) for rows in batches]
                sides[side] = Arrangement(keys, cold)
        return repartition(self, [{"sides": sides} for sides in stored], workers, partition)

    def send_pairs(self, edge: int, time: Timestamp, arrived: pa.Table, matches: Matches) -> None:
        if edge == self.shared:  # the others were matched when they arrived at this join
            unmet = matches.numbers(SEQUENCE) < numbers(arrived, SEQUENCE)[matches.probe]
            matches = matches.filter(unmet)
        diffs = products(numbers(arrived, DIFF)[matches.probe], matches.numbers(DIFF))
        pairs = self.pairs(edge, arrived, matches).append_column(DIFF, pa.array(diffs))
        for moment, part in by_join(pairs, matches.times(len(time.encode())), time):
            self.send_by(0, self._context.times.decode(moment), part)


class NullSafeJoin(JoinChanges):
    """A join of changes in which null equals null."""

    null_safe = True


@operator(Collection)
def join(
    collection: Collection,
    other: Collection,
    on: Columns = None,
    *,
    left: Columns = None,
    right: Columns = None,
    how: JoinKind = "inner",
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """Every pair of records with equal keys; multiplicities multiply. A null key joins nothing.

    Each change is matched when it arrives. If a side is arranged by exactly the keys, the join reads that
    arrangement and stores nothing of the side; if both are, it reads that of the right side.

    The kinds "left", "right" and "outer" add the records of a side that match nothing, with the
    multiplicities that they have there: a left record stays until the right side gets its key, and returns
    once the right side has lost the key. They are an inner join and an `antijoin` for each kept side. As in
    SQL, null keys match nothing, so their records stay unmatched; a side has a key while the key's
    multiplicity is positive.

    Args:
        collection: the left side.
        other: the right side; from an outer scope it enters this one.
        skew: keys that very many records of this side have, of several columns tuples; as in the hint
            ``skew`` of Spark SQL on Databricks. The records of these keys are spread over all workers, by H
            of whole records, and those of `other` with these keys go to every worker. With "auto" the run
            finds them, as for `arrange`. If this side is arranged by the keys, give it to `arrange`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("join")
        >>> left = flow.input("l", "k long, a long").collection()
        >>> right = flow.input("r", "k long, b string").collection()
        >>> _ = left.join(right, on="k").changes().capture("inner")
        >>> _ = left.join(right, on="k", how="left").changes().capture("left")
        >>> inputs = {"l": [[(0, 0), (1, 2)], []], "r": [[(0, "a")], [(1, "B")]]}
        >>> made = ts.testing.run(flow, inputs)
        >>> made["inner"].rows()
        {0: [(0, 0, 'a', 1)], 1: [(1, 2, 'B', 1)]}
        >>> made["left"].rows()
        {0: [(0, 0, 'a', 1), (1, 2, None, 1)], 1: [(1, 2, None, -1), (1, 2, 'B', 1)]}

    Raises:
        GraphError: `other` is not a collection, of another flow, or in a loop that is not around this one.
        SchemaError: keys are missing or differ in number or type, both sides have another column of the same
            name, `how` is unknown, or `skew` lists no keys.
    """
    keys = _keys("join", collection, other, on=on, left=left, right=right)
    check_how(how, collection.schema, other.schema, keys)
    if how in {"semi", "anti"}:
        return _by_keys("join", collection, other, keys, how, skew=skew, name=name)
    extra = other_columns("join", collection.schema, other.schema, keys[1])
    if how == "inner":
        return _join("join", collection, other, keys, extra=extra, skew=skew, name=name)
    pairs, unmatched = _join("join", collection, other, keys, extra=extra, skew=skew, name=None), []
    if how in {"left", "outer"}:
        ours = _by_keys("join", collection, other, keys, "anti", skew=skew)
        unmatched.append(padded(ours, pairs.schema))
    if how in {"right", "outer"}:
        unmatched_right = _by_keys("join", other, collection, keys[::-1], "anti")
        columns = {column: column for column in extra} | dict(zip(*keys, strict=True))
        unmatched.append(padded(unmatched_right, pairs.schema, columns))
    return pairs.concat(*unmatched, name=name)


def padded(
    collection: Collection, schema: pa.Schema, columns: Mapping[str, str] | None = None, **more: Expression
) -> Collection:
    """The records with the columns of `schema`, which are null where `columns` (new: old) has none.

    Args:
        columns: by default the collection's own.
        more: further columns, which may have reserved names.

    **Columns:** out: `schema`, then those of `more`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("padded")
        >>> people = flow.input("people", "id long").collection()
        >>> both = pa.schema([("id", pa.int64()), ("name", pa.string())])
        >>> _ = padded(people, both).changes().capture("out")
        >>> ts.testing.run(flow, {"people": [[7]]})["out"].rows()
        {0: [(7, None, 1)]}
    """
    sources = {column: column for column in collection.schema.names} if columns is None else columns
    every = {one.name: sources.get(one.name, pc.scalar(pa.scalar(None, one.type))) for one in schema}
    own = {**more, DIFF: DIFF}
    return collection.like(computed(collection.stream, every, own, own=own))


def join_null_safe(
    collection: Collection,
    other: Collection,
    left: Sequence[str],
    right: Sequence[str],
    how: Literal["inner", "left", "semi", "anti"],
) -> Collection:
    """A join in which null equals null: for the kinds, see `join`; no column is that of both sides."""
    keys: Keys = (tuple(left), tuple(right))
    if how in {"semi", "anti"}:
        return _by_keys("join", collection, other, keys, how, vertex=NullSafeJoin)
    extra = other_columns("join", collection.schema, other.schema, keys[1])
    pairs = _join("join", collection, other, keys, extra=extra, skew=None, name=None, vertex=NullSafeJoin)
    if how == "inner":
        return pairs
    unmatched = _by_keys("join", collection, other, keys, "anti", vertex=NullSafeJoin)
    return pairs.concat(padded(unmatched, pairs.schema))


@operator(Collection)
def semijoin(
    collection: Collection,
    other: Collection,
    on: Columns = None,
    *,
    left: Columns = None,
    right: Columns = None,
    unique: bool = False,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """The records whose key the other side has, with their multiplicities: SQL's ``LEFT SEMI JOIN``.

    A null key matches nothing. The other side has a key while the key's multiplicity is positive.

    Args:
        collection: the records.
        other: the collection of keys; from an outer scope it enters this one.
        on: the keys; or left and right, as for `join`.
        unique: the other side never has a key twice, so `distinct` is not needed.
        skew: hot keys, as for `join`.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("semijoin")
        >>> words = flow.input("words", "id long, word string").collection()
        >>> ids = flow.input("ids", "id long, diff long").collection(diff="diff")
        >>> _ = words.semijoin(ids, on="id").changes().capture("out")
        >>> inputs = {"words": [[(0, "a"), (1, "b")], []], "ids": [[(0, 1), (0, 1)], [(0, -2), (1, 1)]]}
        >>> ts.testing.run(flow, inputs)["out"].rows()
        {0: [(0, 'a', 1)], 1: [(0, 'a', -1), (1, 'b', 1)]}

    Raises:
        GraphError: `other` is not a collection, of another flow, or in a loop that is not around this one.
        SchemaError: keys are missing or differ in number or type.
    """
    keys = _keys("semijoin", collection, other, on=on, left=left, right=right)
    return _by_keys("semijoin", collection, other, keys, "semi", unique=unique, skew=skew, name=name)


@operator(Collection)
def antijoin(
    collection: Collection,
    other: Collection,
    on: Columns = None,
    *,
    left: Columns = None,
    right: Columns = None,
    unique: bool = False,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """The records whose key the other side does not have: SQL's ``LEFT ANTI JOIN``.

    These are the records that `semijoin`, with the same arguments, drops. So records with a null key stay.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("antijoin")
        >>> words = flow.input("words", "id long, word string").collection()
        >>> ids = flow.input("ids", "id long").collection()
        >>> _ = words.antijoin(ids, on="id").changes().capture("out")
        >>> ts.testing.run(flow, {"words": [[(0, "a"), (1, "b")]], "ids": [[0]]})["out"].rows()
        {0: [(1, 'b', 1)]}

    Raises:
        GraphError: `other` is not a collection, of another flow, or in a loop that is not around this one.
        SchemaError: keys are missing or differ in number or type.
    """
    keys = _keys("antijoin", collection, other, on=on, left=left, right=right)
    return _by_keys("antijoin", collection, other, keys, "anti", unique=unique, skew=skew, name=name)


def _by_keys(
    operator: str,
    collection: Collection,
    other: Collection,
    keys: Keys,
    how: JoinKind,
    *,
    unique: bool = False,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
    vertex: type[JoinChanges] = JoinChanges,
) -> Collection:
    """The records whose key the other side has ("semi"), or does not have ("anti")."""
    if not unique:
        other = other.select(*keys[1]).distinct()
    matched = _join(operator, collection, other, keys, skew=skew, name=name, vertex=vertex)
    if how == "semi":
        return matched

    def unmatched() -> Collection:
        left, right = collection.together(operator, matched.negate())
        by = partition_of(right.stream.flow.graph, right.stream.stage)
        if by is not None:  # records go to where their matches are, so that no further round is needed
            moved = left.stream.then("exchange", [left.stream.schema], kind=Kind.EXCHANGE, requires=[by])
            left = left.like(moved[0])
        return without_transient(left.concat(right))

    result = collection.concat(matched.negate())
    result.signed = collection.signed
    return transient(result, unmatched)


def _join(
    operator: str,
    collection: Collection,
    other: Collection,
    keys: Keys,
    *,
    extra: Sequence[str] = (),
    skew: Iterable[Any] | None,
    name: str | None,
    vertex: type[JoinChanges] = JoinChanges,
) -> Collection:
    sides = collection.together(operator, other)
    indexed = [side.keys == on for side, on in zip(sides, keys, strict=True)]
    hot, spread = _hot_side(operator, sides, keys, indexed, skew)
    if hot is None:
        shared = 1 if indexed[1] else 0 if indexed[0] else None
        parted = [Partition(on) for on in keys]
    else:  # an arrangement without copies of hot keys does not serve
        shared = spread if indexed[spread] else None
        parted = [Partition(on, skew=hot if i == spread else hot.copied) for i, on in enumerate(keys)]
    streams = [side.index if i == shared else side.stream for i, side in enumerate(sides)]
    fields = [*collection.schema, *(other.schema.field(column) for column in extra)]
    schema = pa.schema([*fields, pa.field(DIFF, pa.int64())])
    columns = [field.name for field in fields]
    return transient(
        collection.like(
            streams[0].then(
                operator,
                [schema],
                others=[streams[1]],
                name=name,
                vertex=vertex(keys, columns, shared, copied=None if hot is None else (1 - spread, hot)),
                requires=parted,
                # the records of hot keys are where those of the left side are, if these are spread
                guarantees=keys[0] if hot is None or spread == 0 else None,
                detail=keys_text(keys),
                parameters={"on": [list(side) for side in keys]},
            )[0]
        )
    )


def _hot_side(
    operator: str,
    sides: Sequence[Collection],
    keys: Keys,
    indexed: Sequence[bool],
    skew: Iterable[Any] | None,
) -> tuple[Skew | None, int]:
    """The hot keys of a join, and the side whose records of them are spread."""
    hot = named_keys(operator, sides[0].schema, keys[0], skew)
    arranged = [side.skew if index else None for side, index in zip(sides, indexed, strict=True)]
    if hot is not None and (indexed[0] or arranged[1] is not None):
        which = "left side is arranged by the keys" if indexed[0] else "right side is arranged with hot keys"
        msg = f"{operator}: skew=({hot.shown}), and the {which}"
        hint = "give skew= to arrange; one side's records of hot keys are spread, and the other's are copied."
        raise GraphError(msg, where=caller(), hint=hint)
    return (arranged[1], 1) if arranged[1] is not None else (hot or arranged[0], 0)


def _keys(
    operator: str, collection: Collection, other: Collection, *, on: Columns, left: Columns, right: Columns
) -> Keys:
    check_collection(operator, other, beside=collection)
    return matching_keys(operator, collection.schema, other.schema, on=on, left=left, right=right)
