"""Keyed state as a few immutable batches sorted by H, merged geometrically (differential's spines).

Recent rows are in a list of batches, each more than twice as large as the next. A batch that has grown beyond
a size is split by H into lanes, each again such a list. No batch is larger than a limit, unless its rows have
one hash. So an insertion merges a bounded number of rows, however large the state is; further merges are
left to later insertions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.state.arrow import FEW, Hashes, Indices, Mask, text_bytes
from timely_spark.state.batch import Batch
from timely_spark.state.grouping import in_order, ranges, run_starts
from timely_spark.state.hashing import exact, hashes, same
from timely_spark.state.row_times import EPOCH, TIME, Compact, Coordinates

LIMIT = 1 << 21
"""Rows of the largest batch; an insertion merges at most twice as many, and its own a few times."""
BYTES = 1 << 30
"""Bytes of texts in the largest batch of several rows: an Arrow column has at most twice as many."""
_LARGE = LIMIT >> 4
_LEVELS = 16
#: So many times fewer are far fewer.
_FEWER = 16
_U = np.uint64
_HALF = _U(32)
_REST = _U((1 << 32) - 1)


@dataclass(frozen=True, eq=False, slots=True)
class Matches:
    """The rows that a look-up has found, in an arbitrary order; nothing of them is read yet.

    Rows of one key are in the order of insertion.
    """

    #: for each row the index of the probe row that has its key
    probe: Indices
    #: batches, and the positions of the rows there
    parts: Sequence[tuple[Batch, Indices]]
    #: of a batch of the arrangement without rows; None if there is no batch
    schema: pa.Schema | None
    #: of each probe row
    hashed: Hashes

    def __len__(self) -> int:
        return len(self.probe)

    def columns(self, beginning: str = "") -> list[str]:
        """The names of the columns that begin so."""
        return [c for c in self.schema.names if c.startswith(beginning)] if self.schema is not None else []

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, or some of their columns."""
        if self.schema is None:
            return pa.table({})
        if not self.parts:
            return self.schema.empty_table().select(self.columns() if columns is None else list(columns))
        tables = [part.take(at, columns, hashed) for part, at, hashed in self._with_hashes(columns)]
        return tables[0] if len(tables) == 1 else _concat(tables)

    def integers(self, column: str) -> npt.NDArray[Any] | None:
        """A column of signed integers without nulls; None if it is another."""
        taken = []
        for part, at, hashed in self._with_hashes([column]):
            if (values := part.integers(column, at, hashed)) is None:
                return None
            taken.append(values)
        if len(taken) == 1:
            return taken[0]
        return np.concatenate(taken) if taken else np.zeros(0, np.int64)

    def _with_hashes(self, columns: Sequence[str] | None) -> Iterator[tuple[Batch, Indices, Hashes | None]]:
        """The parts, with the hashes of the rows where one of these columns is a key that is not stored."""
        end = 0
        for part, at in self.parts:
            begin, end = end, end + len(at)
            computed = part.key and (columns is None or part.key in columns)
            yield part, at, self.hashed[self.probe[begin:end]] if computed else None

    def numbers(self, column: str) -> npt.NDArray[Any]:
        """A column that has integers and no nulls."""
        values = self.integers(column)
        assert values is not None, column
        return values

    def times(self, depth: int) -> Coordinates:
        """The times of the rows, as `times_of`."""
        times = np.zeros((len(self), depth), np.int64, order="F")
        for i, column in enumerate(self.columns(TIME)):
            times[:, i] = self.numbers(column)
        return times

    def filter(self, some: Mask) -> Matches:
        """The rows for which `some` is true."""
        if some.all():
            return self
        ends = np.cumsum([len(at) for _, at in self.parts])[:-1]
        masks = np.split(some, ends) if self.parts else ()
        parts = [(part, at[mask]) for (part, at), mask in zip(self.parts, masks, strict=True)]
        return Matches(self.probe[some], parts, self.schema, self.hashed)


class Arrangement:
    """Rows indexed by key. The cost of an insertion is that of its rows (amortised), of a look-up its result.

    There are logarithmically many batches (per `LIMIT` rows, or `BYTES` of texts). A batch is never changed,
    so a checkpoint may keep it by reference. Rows that are equal in the keys, and in `within`, stay in the
    order of insertion.

    Args:
        keys: columns by which rows are found.
        tables: rows, in the order of their hashes.
        within: columns by which, with the keys, single rows are found among those of one key.

    Example:
        >>> state = Arrangement(("id",))
        >>> state.insert(pa.table({"id": [1, 2, 2], "name": ["a", "b", "c"]}))
        >>> wanted = pa.table({"id": [3, 2]})
        >>> probe, found = state.lookup(wanted, ["id"], hashed=state.hashes(wanted))
        >>> probe.tolist(), found["name"].to_pylist()
        ([1, 1], ['b', 'c'])
        >>> state.matches(wanted, ["id"], columns=["name"])[1].to_pydict()
        {'name': ['b', 'c']}
        >>> state.at_most(wanted, ["id"]).tolist(), len(state.find(wanted, ["id"]))
        ([0, 2], 2)
        >>> len(state), [batch.num_rows for batch in state.batches()]
        (3, [3])
    """

    def __init__(
        self, keys: Sequence[str], tables: Sequence[pa.Table] = (), *, within: Sequence[str] = ()
    ) -> None:
        self.keys, self.within = tuple(keys), tuple(within)
        #: the column whose H is that of the rows, if there is one
        self._key = self.keys[0] if len(self.keys) == 1 and not within else ""
        #: recent rows; each batch more than twice as large as the next
        self.recent = [Batch.of(self.hashes(table), table, self._key) for table in tables if table.num_rows]
        #: older rows: in each lane those with hashes from one of the cuts (or 0) to below the next
        self.lanes: list[list[Batch]] = [[]]
        self.cuts: list[int] = []
        #: the least epoch that has not expired; None if rows do not expire
        self._since: int | None = None

    @property
    def parts(self) -> list[Batch]:
        """All batches, in the order of insertion as far as one key is concerned."""
        return [*chain.from_iterable(self.lanes), *self.recent]

    def __len__(self) -> int:
        """The number of rows."""
        return sum(map(len, self.parts))

    def batches(self) -> list[pa.Table]:
        """The rows, as sorted batches."""
        return [part.table for part in self.parts]

    def hashes(self, table: pa.Table) -> Hashes:
        """The hashes by which rows are sorted: H of the keys, or with `within` of both (see `paired`)."""
        return self._hashes(table, (*self.keys, *self.within))

    @staticmethod
    def paired(keys: Hashes, within: Hashes) -> Hashes:
        """A hash of two values, from H of each; sorting by it brings equal first values together.

        Example:
            >>> [
            ...     hex(h)
            ...     for h in Arrangement.paired(
            ...         np.array([7 << 60], np.uint64), np.array([5 << 60], np.uint64)
            ...     ).tolist()
            ... ]
            ['0x7000000050000000']
        """
        both = within >> _HALF
        both |= keys & ~_REST
        return both

    def _hashes(self, table: pa.Table, on: Sequence[str]) -> Hashes:
        h, within = hashes(table, on[: len(self.keys)]), on[len(self.keys) :]
        return self.paired(h, hashes(table, within)) if within else h

    def insert(self, table: pa.Table, hashed: Hashes | None = None, compact: Compact | None = None) -> None:
        """Add rows.

        Args:
            table: the rows.
            hashed: their hashes, as `hashes` has them; None means they are computed.
            compact: may drop or combine rows whenever batches are merged.
        """
        if not (rows := table.num_rows):
            return
        if rows > 1 and text_bytes(table) > BYTES:
            for half in (slice(0, rows // 2), slice(rows // 2, rows)):
                part = table.slice(half.start, half.stop - half.start)
                self.insert(part, None if hashed is None else hashed[half], compact)
            return
        h = self.hashes(table) if hashed is None else hashed
        order = in_order(h) if (h[1:] < h[:-1]).any() else None
        self.recent.append(Batch.of(h, table.combine_chunks(), self._key, order))
        self._merge(compact)

    def _merge(self, compact: Compact | None) -> None:
        """Merge batches until each is at least twice as large as the next.

        Look-ups merge nothing, so that the batches of a trace do not depend on its readers.
        """
        left = _merged(self.recent, compact, 2 * LIMIT + _LEVELS * len(self.recent[-1]), self._key)
        while self.recent and len(self.recent[0]) >= _LARGE:
            self._split(self.recent.pop(0))
        for lane in self.lanes:
            left = _merged(lane, compact, left, self._key)
        self._cut()

    def _split(self, batch: Batch) -> None:
        """Split a batch into the lanes."""
        ends = np.searchsorted(batch.hashes, np.array(self.cuts, np.uint64))
        for lane, (low, high) in zip(
            self.lanes, pairwise([0, *ends.tolist(), len(batch.hashes)]), strict=True
        ):
            if low < high:
                lane.append(batch.between(low, high))

    def _cut(self) -> None:
        """Cut lanes with a batch above the limit in two, unless the rows of the batch have one hash."""
        at = 0
        while at < len(self.lanes):
            lane = self.lanes[at]
            largest = max(lane, key=len, default=None)
            if largest is None or len(largest) <= LIMIT or largest.hashes[0] == largest.hashes[-1]:
                at += 1
                continue
            middle, first = largest.hash_at(len(largest) // 2), largest.hashes[0]
            cut = middle if middle > first else largest.hashes[largest.hashes.searchsorted(middle, "right")]
            self.cuts.insert(at, int(cut))
            self.lanes[at : at + 1] = [[], []]
            for part in lane:
                end = int(np.searchsorted(part.hashes, cut))
                for side, (low, high) in enumerate(pairwise((0, end, len(part.hashes)))):
                    if low < high:
                        self.lanes[at + side].append(part.between(low, high))

    def expire(self, before: int) -> None:
        """From now on look-ups find no row before an epoch, by `EPOCH`. Checkpoints do not have the epoch.

        Batches drop such rows when they are half or more. So at most half of the stored rows have expired,
        and dropping a row costs as much as inserting it (amortised), however large the state is.

        Example:
            >>> state = Arrangement(("id",))
            >>> state.insert(pa.table({"id": [1, 2, 3], EPOCH: [3, 4, 4]}))
            >>> ids = pa.table({"id": [1, 2, 3]})
            >>> [(state.expire(epoch), len(state), len(state.find(ids, ["id"]))) for epoch in (3, 4, 5)]
            [(None, 3, 3), (None, 3, 2), (None, 0, 0)]
        """
        self._since = before
        self.recent = list(_unexpired(self.recent, before, self._key))
        self.lanes = [list(_unexpired(lane, before, self._key)) for lane in self.lanes]

    def take(self, epochs: Sequence[int]) -> pa.Table:
        """Remove the rows of the least epochs, and return them without `EPOCH`, which must be the key.

        Example:
            >>> waiting = Arrangement((EPOCH,))
            >>> waiting.insert(pa.table({"id": ["a", "b", "c"], EPOCH: [3, 4, 3]}))
            >>> waiting.take([3]).to_pydict(), waiting.later(3).take([4]).to_pydict()
            ({'id': ['a', 'c']}, {'id': ['b']})
        """
        _, rows = self.lookup(pa.table({EPOCH: pa.array(epochs, pa.int64())}), [EPOCH])
        self.expire(epochs[-1] + 1)
        return rows.drop_columns([EPOCH]) if rows.num_rows else rows

    def later(self, epoch: int) -> Arrangement:
        """The rows of later epochs than one."""
        later = pc.field(EPOCH) > epoch
        return Arrangement(self.keys, [table.filter(later) for table in self.batches()], within=self.within)

    def lookup(
        self, probe: pa.Table, on: Sequence[str], hashed: Hashes | None = None
    ) -> tuple[Indices, pa.Table]:
        """All rows whose key equals a probe row's; and for each the index of that probe row (ascending).

        Args:
            on: its columns: for the keys alone, or also for those within.
            hashed: of each probe row, as `hashes` has it; of keys alone H. None means it is computed.

        Returns:
            The indices, and the rows with all their columns.
        """
        at, rows = self.matches(probe, on, hashed)
        if (at[1:] >= at[:-1]).all():
            return at, rows
        order = in_order(at.view(np.uint64) << np.uint64(64 - probe.num_rows.bit_length()))
        return at[order], rows.take(pa.array(order))

    def matches(
        self,
        probe: pa.Table,
        on: Sequence[str],
        hashed: Hashes | None = None,
        *,
        columns: Sequence[str] | None = None,
        before: int | None = None,
        most: int | None = None,
    ) -> tuple[Indices, pa.Table]:
        """As `lookup`, in an arbitrary order, in which rows of one key are in the order of insertion.

        Args:
            columns: of the rows that are found; by default all.
            before: batches without rows before this epoch are not read; rows of others may be later.
            most: for each probe row, read only so many rows of each batch.
        """
        matches = self.find(probe, on, hashed, before=before, most=most)
        return matches.probe, matches.table(columns)

    def find(
        self,
        probe: pa.Table,
        on: Sequence[str],
        hashed: Hashes | None = None,
        *,
        before: int | None = None,
        most: int | None = None,
    ) -> Matches:
        """Find `matches` without reading any column."""
        keys = (*self.keys, *self.within)[: len(on)]
        rest = self._rest(on)
        h = self._hashes(probe, on) if hashed is None else hashed
        h = h & ~rest if rest else h
        # searching in sorted order walks each batch once, from end to end; small ones are in the cache
        lanes, many, parts = len(self.lanes) > 1, len(h) >= FEW, self._parts(before)
        ascending = (lanes or many) and bool((h[1:] >= h[:-1]).all())
        sorts = not ascending and (lanes or (many and any(len(part) >= FEW for part in parts)))
        # of a batch with far fewer hashes than are asked for, these are searched among them
        searched = parts if many and not rest and (ascending or sorts) else ()
        few = {id(part) for part in searched if _FEWER * len(part.hashes) < len(h)}
        by_hash = in_order(h, exactly=lanes or bool(few)) if sorts else None
        ordered = h if by_hash is None else h[by_hash]
        rows: list[Indices] = []
        pairs: list[tuple[Batch, Indices]] = []
        sure = not self.within and exact(probe, on)
        for part in parts:
            asked = (ordered, by_hash)
            if id(part) in few:
                own = part.hashes[run_starts(part.hashes)]
                first = ordered.searchsorted(own)
                some = ranges(first, ordered.searchsorted(own, "right") - first)
                asked = ordered[some], some if by_hash is None else by_hash[some]
            low, at = _runs(part, *asked, rest, among=lanes, most=most)
            if not len(low):
                continue
            if not (sure and part.exact(keys)):
                keys_at = part.take(low, list(dict.fromkeys(keys)), h[at])
                equal = same(keys_at, probe.select(list(dict.fromkeys(on))).take(pa.array(at)), keys, on)
                if not equal.all():
                    low, at = low[equal], at[equal]
            if self._since is not None and part.earliest < self._since:
                epochs = part.integers(EPOCH, low, h[at])
                assert epochs is not None
                low, at = low[current := epochs >= self._since], at[current]
            rows.append(at)
            pairs.append((part, low))
        at = rows[0] if len(rows) == 1 else np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return Matches(at, pairs, parts[-1].schema if parts else None, h)

    def _parts(self, before: int | None) -> list[Batch]:
        return [part for part in self.parts if before is None or part.earliest < before]

    def at_most(
        self, probe: pa.Table, on: Sequence[str], hashed: Hashes | None = None, *, before: int | None = None
    ) -> Indices:
        """For each probe row at least as many as the rows that `matches` finds; these are not read.

        Rows that are not merged yet, or that have equal hashes, count too.
        """
        rest = self._rest(on)
        h = (self._hashes(probe, on) if hashed is None else hashed) & ~rest
        order = in_order(h, exactly=False) if len(h) >= FEW else slice(None)  # see `find`
        h = h[order]
        ordered, counts = np.zeros((2, len(h)), np.int64)
        for part in self._parts(before):
            ordered += part.positions(part.hashes.searchsorted(h | rest, "right"))
            ordered -= part.positions(part.hashes.searchsorted(h))
        counts[order] = ordered
        return counts

    def _rest(self, on: Sequence[str]) -> np.uint64:
        """The bits of a hash in which the rows of one key may differ."""
        return _REST if self.within and len(on) == len(self.keys) else _U(0)


def _runs(
    part: Batch, asked: Hashes, by_hash: Indices | None, rest: np.uint64, *, among: bool, most: int | None
) -> tuple[Indices, Indices]:
    """The rows of a batch that have one of the hashes, each with its probe row.

    Args:
        by_hash: the probe row of each hash; None if they are in the order of the rows.
        among: whether the hashes are in order, and those of other lanes are among them.
        most: so many rows for each hash.
    """
    first = 0
    if among:
        first, last = asked.searchsorted(part.hashes[0] & ~rest), asked.searchsorted(part.hashes[-1], "right")
        asked = asked[first:last]
    low = part.hashes.searchsorted(asked)
    stored = part.hashes.take(low, mode="clip")
    (some,) = ((stored & ~rest if rest else stored) == asked).nonzero()
    if not len(some):
        return some, some
    low, who = low[some], some + first if first else some
    who = who if by_hash is None else by_hash[who]
    if part.distinct and not rest:
        return low, who
    once = part.starts is not None and not rest
    end = low + 1 if once else part.hashes.searchsorted(asked[some] | rest, "right")
    low = part.positions(low)
    counts = part.positions(end) - low
    if most is not None:
        np.minimum(counts, most, out=counts)
    return ranges(low, counts), who.repeat(counts)


def _merged(parts: list[Batch], compact: Compact | None, rows: int, key: str) -> int:
    """Merge neighbours until each batch is more than twice as large as the next; at most `rows` rows.

    No batch gets more than `BYTES` of texts.

    Returns:
        The number of rows that are left of `rows`.
    """
    end = len(parts)
    # all of them: a batch from which rows were dropped, or that was too large, may be anywhere
    while end > 0:
        first, size, held = end - 1, len(parts[end - 1]), parts[end - 1].text_bytes
        while first and (more := len(parts[first - 1])) < 2 * size and size + more <= rows:
            if (held := held + parts[first - 1].text_bytes) > BYTES:
                break
            first, size = first - 1, size + more
        if end - first > 1:
            rows -= size
            h = np.concatenate([part.row_hashes for part in parts[first:end]])
            order = np.argsort(h, kind="stable")  # a few sorted runs: linear
            h, table = h[order], _concat([part.table for part in parts[first:end]]).take(order)
            if compact is not None:
                h, table = compact(h, table)
            parts[first:end] = [Batch.of(h, table.combine_chunks(), key)] if len(h) else []
        end = first
    return rows


def _concat(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of all tables; a column with integers of several widths gets the widest."""
    return pa.concat_tables(tables, promote_options="permissive")


def _unexpired(parts: Sequence[Batch], before: int, key: str) -> Iterator[Batch]:
    """The batches; if half or more of one has expired, its other rows only."""
    for part in parts:
        if part.half_past >= before:
            yield part
            continue
        keep = part.epochs >= before
        if keep.any():
            yield Batch.of(part.row_hashes[keep], part.table.filter(pa.array(keep)).combine_chunks(), key)
