"""Prefixes of a join's records, extended through indexes: the vertices of `wcoj`.

A prefix is a record with some of the attributes, on its way from index to index. Between two of them it is
partitioned by `AT`, H of the key by which it is looked up next, so that prefixes with different next indexes
are in one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.differential.arranged import read_by
from timely_spark.differential.trace import DIFF, check_since, consolidate, consolidation, products
from timely_spark.graph import Partitioner, Stateless, States, Vertex
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, numbers, replaced
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.hashing import hashes
from timely_spark.state.repartition import repartition as repartitioned
from timely_spark.state.row_times import EPOCH, epochs_of, with_time
from timely_spark.times import Timestamp

AT = "__timely_at"
"""The column with H of the key of the next look-up."""

BEST = "__timely_best"
"""The column with the number of the index that has the fewest records for the prefix."""

FEWEST = "__timely_fewest"
"""The column with the number of those records."""

_ROW = "__timely_row"
#: prefixes that are looked up at once
_SOME = 1 << 16


def located(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows with `AT`, H of `keys`."""
    return rows.append_column(AT, pa.array(hashes(rows, keys).view(np.int64)))


def _hashed(rows: pa.Table) -> Hashes:
    return numbers(rows, AT).view(np.uint64)


class Locate(Stateless):
    """Add `AT`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (located(batch, self.keys),)


class Index(Vertex):
    """Keep the trace of a relation, by key and within a key by further columns, and forward each change.

    Readers on the same worker read the trace itself. They look up the changes up to an epoch, or those
    before it. So compaction never merges the last epoch that a reader may ask for with earlier ones.
    """

    needs_frontier = True

    def __init__(self, keys: Sequence[str], within: Sequence[str]) -> None:
        self.state = Arrangement(keys, within=within)

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Insert the changes into the trace, and forward them."""
        since = self._context.compaction_frontier(downstream=True)
        check_since(time, since)
        rows = batch.drop_columns([AT])
        within = self.state.within
        hashed = Arrangement.paired(_hashed(batch), hashes(rows, within)) if within else _hashed(batch)
        self.state.insert(with_time(rows, time), hashed, consolidation(since - 1))
        self.send_by(0, time, batch)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """The trace has no `AT`: compute it."""

        def parted(edge: int, table: pa.Table) -> Any:
            return [part.drop_columns([AT]) for part in partition(edge, located(table, self.state.keys))]

        return repartitioned(self, states, workers, parted)


@dataclass(frozen=True, slots=True)
class IndexLookup:
    """How prefixes are looked up in the index of a relation.

    `keys` and `within` are attributes of the join, in the order of the index's columns.
    """

    #: whether changes of the prefix's own epoch are left out
    before: bool
    #: the attributes by which the index is partitioned
    keys: tuple[str, ...]
    #: the attributes by which records are found within a key
    within: tuple[str, ...]
    #: attributes that only this relation has, each with its column
    others: tuple[tuple[str, str], ...]
    #: whether prefixes that find nothing stay, and the others go
    negated: bool

    def until(self, time: Timestamp) -> int:
        """The first epoch that is left out for prefixes of a time."""
        epoch: int = time.epoch
        return epoch if self.before else epoch + 1


class _Lookup(BufferingVertex):
    """Look prefixes up when their epoch is complete, also in the indexes, which are inputs 1, 2, ..."""

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Buffer prefixes; the changes of an index are in its trace already."""
        if edge == 0:
            super().on_recv(edge, time, batch)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Send the prefixes that were looked up, some at a time: temporary columns then stay in the cache."""
        if not batches[0]:
            return
        prefixes = pa.concat_tables(batches[0])
        for first in range(0, prefixes.num_rows, _SOME):
            for rows in self.looked_up(time, prefixes.slice(first, _SOME).combine_chunks()):
                self.send_by(0, time, rows)

    def looked_up(self, time: Timestamp, rows: pa.Table) -> Iterator[pa.Table]:
        raise NotImplementedError

    def index(self, number: int) -> Arrangement:
        """The trace of the index that is read by input `number`."""
        return read_by(self._context, number, Index).state


class Counting(_Lookup):
    """Count the records that an index has for each prefix; note in `BEST` where they are fewest.

    Args:
        number: the number of the index among those that are counted.
        probes: how each of those indexes is looked up.
    """

    def __init__(self, number: int, probes: Sequence[IndexLookup]) -> None:
        super().__init__()
        self.number, self.probes = number, tuple(probes)

    def looked_up(self, time: Timestamp, rows: pa.Table) -> Iterator[pa.Table]:
        """The prefixes that can be extended."""
        probe = self.probes[self.number]
        counts = self.index(1).at_most(rows, probe.keys, _hashed(rows), before=probe.until(time))
        rows, counts = rows.drop_columns([AT]).filter(pa.array(counts > 0)), counts[counts > 0]
        if self.number == 0:
            rows = rows.append_column(FEWEST, pa.array(counts))
            rows = rows.append_column(BEST, pa.array(np.zeros(len(counts), np.int64)))
        else:
            fewer = counts < numbers(rows, FEWEST)
            rows = replaced(rows, BEST, np.where(fewer, self.number, numbers(rows, BEST)))
            rows = replaced(rows, FEWEST, np.where(fewer, counts, numbers(rows, FEWEST)))
        if self.number + 1 < len(self.probes):
            yield located(rows, self.probes[self.number + 1].keys)
            return
        best = numbers(rows, BEST)
        for number, each in enumerate(self.probes):
            yield located(rows.filter(pa.array(best == number)), each.keys)


class Match(_Lookup):
    """Match each prefix with the records of the index that is `turn` places after its `BEST` one.

    In turn 0 the key is known, and the records found extend the prefix. Then these attributes are known, too.

    Args:
        schema: that of the output.
        probes: how each index is looked up. If there is only one, rows have no `BEST`.
        then: the key's attributes for the look-up after the last turn; empty without one.
    """

    def __init__(
        self, schema: pa.Schema, probes: Sequence[IndexLookup], turn: int, then: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.schema, self.probes, self.turn, self.then = schema, tuple(probes), turn, then

    def looked_up(self, time: Timestamp, rows: pa.Table) -> Iterator[pa.Table]:
        """The extended prefixes."""
        many = len(self.probes)
        best = numbers(rows, BEST) if many > 1 else np.zeros(rows.num_rows, np.int64)
        for first in range(many):
            number = (first + self.turn) % many
            of_this = best == first
            matched = self._matched(time, number, rows if of_this.all() else rows.filter(pa.array(of_this)))
            last = self.turn == many - 1
            keys = self.then if last else self.probes[(number + 1) % many].keys
            if matched.num_rows:
                yield (located(matched, keys) if keys else matched).select(self.schema.names)

    def _matched(self, time: Timestamp, number: int, rows: pa.Table) -> pa.Table:
        """Prefixes with the records of one index, without `AT`."""
        probe, index = self.probes[number], self.index(1 + number)
        within = [attribute for attribute in probe.within if attribute in rows.schema.names]
        hashed = Arrangement.paired(_hashed(rows), hashes(rows, within)) if within else _hashed(rows)
        new = dict(probe.others) | (dict(zip(probe.within, index.within, strict=True)) if not within else {})
        until, read = probe.until(time), [*dict.fromkeys(new.values()), EPOCH, DIFF]
        which, candidates = index.matches(rows, [*probe.keys, *within], hashed, columns=read, before=until)
        if not len(which):
            return rows.drop_columns([AT]) if probe.negated else rows.slice(0, 0)
        up_to = epochs_of(candidates) < until
        extensions = {attribute: candidates.column(column) for attribute, column in new.items()}
        matches = pa.table({_ROW: pa.array(which), **extensions, DIFF: candidates.column(DIFF)})
        matches = matches if up_to.all() else matches.filter(pa.array(up_to))
        if (numbers(matches, DIFF) < 0).any():  # else nothing cancels
            matches = consolidate(matches)
        which = numbers(matches, _ROW)
        if probe.negated:
            unmatched = np.ones(rows.num_rows, np.bool_)
            unmatched[which] = False
            return rows.drop_columns([AT]).filter(pa.array(unmatched))
        taken = rows.drop_columns([AT]).take(pa.array(which))
        parts = {name: taken.column(name) for name in taken.schema.names}
        parts |= {to: matches.column(to) for to in new}
        parts[DIFF] = pa.array(products(numbers(taken, DIFF), numbers(matches, DIFF)))
        # what only the other indexes of this step have is not known yet
        absent = {f.name: pa.nulls(len(which), f.type) for f in self.schema if f.name not in {*parts, AT}}
        return pa.table({name: (absent | parts)[name] for name in self.schema.names if name != AT})
