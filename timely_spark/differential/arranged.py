"""A collection indexed by key, once for many readers (differential's shared arrangements)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from timely_spark.differential.trace import SEQUENCE, insert
from timely_spark.errors import SchemaError, StateError
from timely_spark.graph import Context, Partition, Vertex, caller, check_columns, names
from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.partitioning import repartition as repartitioned

if TYPE_CHECKING:
    from timely_spark.differential.collections import Collection


class Arrange(Vertex):
    """Keep the history of a collection, and pass each change on when it is in it.

    Readers on the same worker look into the history itself, so it may be ahead of the changes that have come
    to them. The sequence number of a change tells them which they met there before it came.
    """

    settles = True

    def __init__(self, keys: Sequence[str]) -> None:
        self.state = Arrangement(keys)
        #: of the change that came last
        self.sequence = 0
        #: by epoch the first that came in it; epochs that are over are dropped
        self.first: dict[int, int] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Into the history, and on."""
        since = self._context.since_here(onward=True)
        self.sequence += 1
        self.first = {epoch: first for epoch, first in self.first.items() if epoch >= since}
        self.first.setdefault(time.epoch, self.sequence)
        insert(self.state, batch, time, since)
        self.send_by(0, time, numbered(batch, self.sequence))

    def settled(self, since: int) -> int:
        """Changes up to this one have come to a reader at which nothing arrives before `since`."""
        return (
            min((one for epoch, one in self.first.items() if epoch >= since), default=self.sequence + 1) - 1
        )

    def repartition(
        self,
        states: Sequence[Mapping[str, Any]],
        workers: int,
        partition: Callable[[int, pa.Table], list[pa.Table]],
    ) -> list[dict[str, Any]]:
        """Equal keys were on one worker, so numbers of theirs stay in order; new ones are above all."""
        last = max(state.get("sequence", 0) for state in states)
        epochs = [item for state in states for item in state.get("first", {}).items()]
        first = {epoch: min(one for at, one in epochs if at == epoch) for epoch, _ in epochs}
        held = repartitioned(
            self, [{"state": s["state"]} for s in states if "state" in s], workers, partition
        )
        return [{**state, "sequence": last, "first": dict(first)} for state in held]


def index_of(context: Context, edge: int) -> Arrange:
    """The index in front of an input that was built to have one.

    Raises:
        StateError: the plan has something else in front.
    """
    index = context.feeds(edge)
    if not isinstance(index, Arrange):
        msg = f"input {edge} was built to read the index in front of it, and has {type(index).__name__} there"
        raise StateError(msg, hint="this is a defect of timely_spark: please report it, with the flow")
    return index


def numbered(batch: pa.Table, sequence: int) -> pa.Table:
    """The rows with a sequence number."""
    return batch.append_column(SEQUENCE, pa.array(np.full(batch.num_rows, sequence, np.int64)))


def key_columns(operator: str, schema: pa.Schema, columns: str | Sequence[str]) -> tuple[str, ...]:
    """The columns as keys.

    Raises:
        SchemaError: there are none, or one that is not there, or nested, or named twice.
    """
    listed = names(operator, columns)
    check_columns(operator, schema, listed, keys=True)
    if not listed or len(set(listed)) < len(listed):
        msg = f"{operator} ({caller()}): keys {list(listed)}. Hint: name the key columns, each once."
        raise SchemaError(msg)
    return listed


def arrange(collection: Collection, keys: str | Sequence[str], *, name: str | None = None) -> Collection:
    """Keep a collection indexed by key, for many operators to share.

    The same collection; a join by these very keys, or a reduction (whose default they are then), reads the
    index and keeps no copy of its own. An epoch writes what it changed (amortised), however large the index
    is; times that no reader can tell apart become one. Source: McSherry et al., Shared
    arrangements, VLDB 2020.

    Args:
        collection: any.
        keys: the key columns, in the order in which readers name them.
        name: the step's name.

    **Columns:** out as in; keys may not be nested.

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
        SchemaError: there are no keys, or one is not there, or nested, or named twice.
    """
    listed = key_columns("arrange", collection.schema, keys)
    stream = collection.stream
    made = stream.then(
        "arrange",
        [stream.schema.append(pa.field(SEQUENCE, pa.int64()))],
        name=name,
        own=(SEQUENCE,),
        vertex=Arrange(listed),
        requires=[Partition(listed)],
        guarantees=listed,
        detail=", ".join(listed),
        parameters={"keys": list(listed)},
    )[0]
    return collection.like(made, listed)
