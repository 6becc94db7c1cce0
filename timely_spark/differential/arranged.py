"""Shared arrangements: a collection's trace, indexed by key, for many readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from timely_spark.differential.collections import Collection
from timely_spark.differential.skew import named_keys
from timely_spark.differential.trace import DIFF, SEQUENCE, became_negative, consolidate, insert
from timely_spark.errors import StateError
from timely_spark.graph import Context, Partition, Partitioner, States, Vertex, operator
from timely_spark.operators.rows import key_columns
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, numbers
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.grouping import group
from timely_spark.state.hashing import HASH, hashes
from timely_spark.state.repartition import repartition as repartitioned
from timely_spark.state.row_times import EPOCH, epochs_of
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

AnyVertex = TypeVar("AnyVertex", bound=Vertex)

#: Removed records of keys with more records than these are not looked up.
LOOKED_UP = 1 << 16


class Arrange(Vertex):
    """Keep the trace of a collection, and forward each change after inserting it.

    Readers on the same worker read the trace itself, which may be ahead of the changes that have reached
    them. A change has a sequence number, by which a reader knows whether it found the change in the trace,
    and H of its key.
    """

    needs_frontier = True
    takes_skew = True

    def __init__(self, keys: Sequence[str]) -> None:
        self.state = Arrangement(keys)
        #: the sequence number of the last batch of changes
        self.sequence = 0
        #: the first sequence number of each epoch; without complete epochs
        self.first: dict[int, int] = {}

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Insert the changes into the trace, and forward them."""
        since = self._context.compaction_frontier(downstream=True)
        self.sequence += 1
        self.first = {epoch: first for epoch, first in self.first.items() if epoch >= since}
        self.first.setdefault(time.epoch, self.sequence)
        hashed = self.state.hashes(batch)
        insert(self.state, batch, time, since, hashed)
        self.send_by(0, time, self.forwarded(batch, hashed))

    def forwarded(self, batch: pa.Table, hashed: Hashes) -> pa.Table:
        """The changes as readers get them."""
        return with_sequence(batch, self.sequence).append_column(HASH, pa.array(hashed.view(np.int64)))

    def received(self, since: int) -> int:
        """The last sequence number that a reader has received, if nothing before `since` will come to it."""
        return (
            min((one for epoch, one in self.first.items() if epoch >= since), default=self.sequence + 1) - 1
        )

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Keep sequence numbers: those of one key are from one worker, and new ones are greater than all.

        A hot key has those of several workers. Nothing of it is on its way to a reader: that is refused.
        """
        last = max(state.get("sequence", 0) for state in states)
        epochs = [item for state in states for item in state.get("first", {}).items()]
        first = dict(sorted(epochs, reverse=True))  # of each epoch its least number comes last
        traces = [{"state": state["state"]} for state in states if "state" in state]
        parts = repartitioned(self, traces, workers, partition)
        return [{**part, "sequence": last, "first": dict(first)} for part in parts]


class Removals(BufferingVertex):
    """Tell of records that are removed more often than the index, which is the input, has had them.

    The index may be ahead of its changes. So the removed records of a time are looked up when it is complete.
    Batches without removals are dropped: a negative record that is inserted and removed at a time may count
    again.
    """

    per_time = True

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        if (numbers(batch, DIFF) < 0).any():
            super().on_recv(edge, time, batch)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Look up the removed records of a time; send nothing."""
        index: Any = read_by(self._context, 0, Vertex)
        if not batches[0] or not len(index.state):
            return
        labels = [name for name in batches[0][0].schema.names if not name.startswith("__timely_")]
        changes = pa.concat_tables(batches[0]).select([*labels, DIFF])
        removed = changes.filter(pa.array(numbers(changes, DIFF) < 0))
        state: Arrangement = index.state
        on = [*state.keys, *state.within]
        keys = removed.take(pa.array(group(removed, on).firsts))
        keys = keys.filter(pa.array(state.at_most(keys, on) <= LOOKED_UP))
        _, rows = state.matches(keys, on, columns=[*labels, DIFF, EPOCH])
        asked, stored = np.sort(hashes(removed, labels)), hashes(rows, labels)
        some = asked.take(asked.searchsorted(stored), mode="clip") == stored
        some &= epochs_of(rows) <= time.epoch
        totals = consolidate(rows.filter(pa.array(some)).select([*labels, DIFF]))
        negative = totals.filter(pa.array(numbers(totals, DIFF) < 0))
        if (became := became_negative(negative, changes)).num_rows:
            self._context.negative(time, became)


def check_removals(collection: Collection, index: Stream, by: Partition) -> None:
    """Let an index of a collection, partitioned by some columns, report removals that are a mistake."""
    outside = collection.scope.graph_scope.parent is None  # iterations of loops may have negative records
    if collection.checks_removals and not collection.signed and outside:
        with index.flow.graph.parts_of(index.stage):
            index.then("removals", [], vertex=Removals(), requires=[by])


def read_by(context: Context, edge: int, kind: type[AnyVertex]) -> AnyVertex:
    """The vertex of a kind whose output is input `edge`, and whose trace may be read."""
    index = context.feeds(edge)
    if not isinstance(index, kind):
        msg = f"input {edge} was built to read {kind.__name__}, and reads {type(index).__name__}"
        raise StateError(msg, hint="this is a defect of timely_spark: please report it, with the flow.")
    return index


def index_of(context: Context, edge: int) -> Arrange:
    """The `Arrange` vertex whose output is input `edge`."""
    return read_by(context, edge, Arrange)


def forwarded_schema(changes: pa.Schema) -> pa.Schema:
    """The schema of changes as readers get them."""
    return changes.append(pa.field(SEQUENCE, pa.int64())).append(pa.field(HASH, pa.int64()))


def hashes_of(changes: pa.Table) -> Hashes:
    """H of the keys of changes that readers get."""
    return numbers(changes, HASH).view(np.uint64)


def with_sequence(batch: pa.Table, sequence: int) -> pa.Table:
    """The changes with a sequence number."""
    return batch.append_column(SEQUENCE, pa.array(np.full(batch.num_rows, sequence, np.int64)))


@operator(Collection)
def arrange(
    collection: Collection,
    keys: str | Sequence[str],
    *,
    skew: Iterable[Any] | None = None,
    name: str | None = None,
) -> Collection:
    """Index a collection by key, in one arrangement that many operators share.

    The records stay the same. A join or reduction by exactly these keys (the default of a reduction) reads
    the arrangement and keeps no copy of its own. An epoch writes its changes only (amortised), however large
    the arrangement is; times that no reader can distinguish are merged. Source: McSherry et al., Shared
    arrangements, VLDB 2020.

    Args:
        keys: the key columns, in the order in which readers name them.
        skew: hot keys, of several columns tuples: their records are spread over all workers, by H of whole
            records, and what joins them goes to every worker. With "auto" the run finds such keys, and moves
            their state, when a batch ends with no record in flight. A join reads the arrangement, a reduction
            does not: it brings what it needs of a key to one worker (`count`, `sum` and `mean` of integers:
            partial results; `min`, `max`, `top_k`: those of parts of the key; others: all records).

    **Columns:** out as in; keys may not be nested, and with `skew` no column.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("shared")
        >>> edges = flow.input("edges", "src long, dst long").collection().arrange("src")
        >>> roots = flow.input("roots", "src long").collection()
        >>> _ = roots.join(edges, on="src").changes().capture("near")
        >>> _ = edges.count().changes().capture("degrees")
        >>> made = ts.testing.run(flow, {"edges": [[(1, 2), (1, 3)]], "roots": [[1]]})
        >>> made["near"].rows(), made["degrees"].rows()
        ({0: [(1, 2, 1), (1, 3, 1)]}, {0: [(1, 2, 1)]})

    Raises:
        SchemaError: there are no keys, or one is missing, nested, or named twice; or `skew` lists no keys.
    """
    listed = key_columns("arrange", collection.schema, keys)
    hot = named_keys("arrange", collection.schema, listed, skew)
    stream, by = collection.stream, Partition(listed, skew=hot)
    arranged = stream.then(
        "arrange",
        [forwarded_schema(stream.schema)],
        name=name,
        own=(SEQUENCE, HASH),
        vertex=Arrange(listed),
        requires=[by],
        guarantees=listed,
        detail=", ".join(listed),
        parameters={"keys": list(listed)},
    )[0]
    check_removals(collection, arranged, by)
    return collection.like(arranged, listed, skew=hot)
