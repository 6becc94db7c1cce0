"""`running_max_by`: per key the whole record with the greatest value so far."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from timely_spark.graph import Monotone, check_columns, operator
from timely_spark.operators.monotone import ImprovementsPerTime, best_per_key
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import keys_and_value
from timely_spark.streams import Stream


class RunningMaxBy(ImprovementsPerTime):
    """Of several best records of a key, send the one whose other columns are least."""

    def __init__(self, monotone: Monotone, ties: Sequence[str]) -> None:
        super().__init__(monotone)
        #: the columns that decide between records of one key and value
        self.ties = tuple(ties)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Keep the best record of each key."""
        # `best_per_key` takes the first of several best ones: its sort is stable
        ordered = batch.sort_by([(column, "ascending") for column in self.ties]) if self.ties else batch
        return best_per_key(ordered, self.monotone)


@operator(Stream)
def running_max_by(
    stream: Stream, value: str, *, keys: str | Sequence[str], name: str | None = None
) -> Stream:
    """Per key the record with the greatest value so far: one record per key and epoch in which it changed.

    A record passes if its value exceeds all values of its key in earlier epochs, and is the greatest of its
    epoch. Of several such records the one passes whose other columns are least, compared in their order: so
    the result depends neither on the number of workers nor on the order of arrival. A record that only equals
    the greatest value of an earlier epoch does not pass. Null and NaN values are ignored.

    In a loop it does the same per iteration, so the loop ends once no value improves. `max` is faster: it
    needs no notification, but returns `keys` and `value` only.

    Args:
        value: the column to compare.
        keys: the key columns; empty: all records are one group.

    **Columns:** out as in; none may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("highest bids")
        >>> bids = flow.input("bids", "item string, bidder string, price long")
        >>> _ = bids.running_max_by("price", keys="item").capture("out")
        >>> epochs = [[("vase", "Cy", 5), ("vase", "Bo", 7), ("vase", "Ann", 7)], [("vase", "Di", 7)]]
        >>> ts.testing.run(flow, {"bids": epochs}, workers=2)["out"].rows()
        {0: [('vase', 'Ann', 7)], 1: []}

    Raises:
        SchemaError: a column is missing or nested, or `value` is a key.
    """
    keys, columns = keys_and_value("running_max_by", stream.schema, keys, value), stream.schema.names
    check_columns("running_max_by", stream.schema, columns, keys=True)
    check_no_retractions("running_max_by", stream)
    ties = [column for column in columns if column != value and column not in keys]
    return stream.then(
        "running_max_by",
        [stream.schema],
        name=name,
        vertex=RunningMaxBy(Monotone(keys, value, greatest=True), ties),
        keyed=keys,
        detail=value,
        parameters={"value": value},
    )[0]
