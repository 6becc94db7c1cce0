"""Joins with a small side, which every worker holds whole."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from timely_spark.differential.collections import Collection, Columns, check_collection
from timely_spark.differential.consolidation import transient
from timely_spark.differential.joins import JoinChanges
from timely_spark.differential.reductions import with_one_key
from timely_spark.differential.trace import DIFF
from timely_spark.graph import Partition, Partitioner, States, operator
from timely_spark.operators.aggregate import ALL
from timely_spark.operators.join import Keys, keys_text, matching_keys, other_columns
from timely_spark.operators.rows import key_columns
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.repartition import repartition as repartitioned


class BroadcastJoin(JoinChanges):
    """A join whose right side is on every worker."""

    def __init__(self, on: Keys, columns: Sequence[str]) -> None:
        super().__init__(on, columns, None)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Repartition the left side; each new worker gets a copy of the right side."""
        sides = [state["sides"] for state in states if "sides" in state]
        if not sides:
            return [{} for _ in range(workers)]
        lefts = repartitioned(self, [{"left": left} for left, _ in sides], workers, partition)
        right = next((right for _, right in sides if len(right)), sides[0][1]).batches()
        copies = [Arrangement(self.on[1], right) for _ in range(workers)]
        return [
            {"sides": [one.get("left", Arrangement(self.on[0])), copy]}
            for one, copy in zip(lefts, copies, strict=True)
        ]


@operator(Collection)
def broadcast_join(
    collection: Collection,
    other: Collection,
    on: Columns = None,
    *,
    left: Columns = None,
    right: Columns = None,
    by: Columns = None,
    name: str | None = None,
) -> Collection:
    """Every pair of records with equal keys, or without keys every pair: `other` is sent to each worker.

    The result is that of `join`. A change of `other` goes to every worker; a record of this side goes to one,
    whatever its key is. So `other` should be small: the centroids of k-means, the parameters of a model, a
    total. An epoch, and each iteration of a loop, has one exchange; a change of `other` costs the records
    that it matches, which without keys are all of this side's.

    Args:
        collection: the left side.
        other: the small side; from an outer scope it enters this one.
        on: the key columns, of one name on both sides; or
        left: key columns of the left side, and
        right: as many of the right side. Without any of the three all pairs match.
        by: the columns by which the left side is partitioned; by default all of its columns. Name those by
            which it is partitioned already, and it is not exchanged.

    **Columns:** out: all of the left, then those of the right that are not keys.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("shares")
        >>> sales = flow.input("sales", "shop string, sold long, diff long").collection(diff="diff")
        >>> total = sales.sum("sold", keys=[]).select(total="sold")
        >>> _ = sales.broadcast_join(total).changes().capture("out")
        >>> ts.testing.run(flow, {"sales": [[("a", 1, 1), ("b", 2, 1)], [("a", 1, -1)]]}, workers=2)[
        ...     "out"
        ... ].rows()
        {0: [('a', 1, 3, 1), ('b', 2, 3, 1)], 1: [('a', 1, 3, -1), ('b', 2, 2, 1), ('b', 2, 3, -1)]}

    Raises:
        GraphError: `other` is not a collection, of another flow, or in a loop that is not around this one.
        SchemaError: keys are missing or differ in number or type; a column of `by` has no equality; or both
            sides have another column of the same name.
    """
    check_collection("broadcast_join", other, beside=collection)
    schema = collection.schema
    parted = key_columns("broadcast_join", schema, schema.names if by is None else by)
    keys: Keys = ((ALL,), (ALL,))  # all pairs: one constant key
    if not (all_pairs := on is None and left is None and right is None):
        keys = matching_keys("broadcast_join", schema, other.schema, on=on, left=left, right=right)
    extra = other_columns("broadcast_join", schema, other.schema, keys[1])
    sides = collection.together("broadcast_join", other)
    streams = [(with_one_key(side) if all_pairs else side).stream for side in sides]
    fields = [*schema, *(other.schema.field(column) for column in extra)]
    joined = streams[0].then(
        "broadcast_join",
        [pa.schema([*fields, pa.field(DIFF, pa.int64())])],
        others=[streams[1]],
        name=name,
        vertex=BroadcastJoin(keys, [field.name for field in fields]),
        requires=[Partition(parted), Partition((), broadcast=True)],
        guarantees=parted,
        detail="" if all_pairs else keys_text(keys),
        parameters={"on": [list(side) for side in keys], "by": list(parted)},
    )
    return transient(collection.like(joined[0]))
