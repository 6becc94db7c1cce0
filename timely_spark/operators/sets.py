"""Set operations on streams: the records of each time of two streams, compared when the time is complete."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph import caller, check_columns, describe, operator
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.state.arrow import Longs
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.grouping import group
from timely_spark.streams import Stream, check_same_scope
from timely_spark.times import Timestamp

#: the multiplicity in the result, given those on both sides (none negative), by operation and `all`
OPERATIONS: dict[tuple[str, bool], Callable[[Longs, Longs], Longs]] = {
    ("union", False): lambda left, right: np.minimum(left + right, 1),
    ("union", True): lambda left, right: left + right,
    ("intersect", False): lambda left, right: np.minimum(np.minimum(left, right), 1),
    ("intersect", True): np.minimum,
    ("subtract", False): lambda left, right: np.where(right > 0, 0, np.minimum(left, 1)),
    ("subtract", True): lambda left, right: np.maximum(left - right, 0),
}


class SetOperation(BufferingVertex):
    """Compare the multiplicities of each record on both sides, when a time is complete."""

    per_time = True

    def __init__(self, operation: str, *, multiset: bool) -> None:
        super().__init__(inputs=2)
        self.operation = (operation, multiset)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        left, right = (sum(table.num_rows for table in side) for side in batches)
        if not left + right:
            return
        table = pa.concat_tables([*batches[0], *batches[1]])
        groups = group(table, table.schema.names)
        left = np.repeat(np.array([1, 0]), [left, right])
        counts = OPERATIONS[self.operation](groups.totals(left), groups.totals(1 - left))
        self.send_by(0, time, table.take(pa.array(np.repeat(groups.firsts, counts))))


def check_same_schema(operator: str, names: tuple[str, str], left: pa.Schema, right: pa.Schema) -> None:
    """Check that two sides have the same columns, which have equality."""
    if left != right:
        msg = f"{operator}: {names[0]!r} has ({describe(left)}), {names[1]!r} has ({describe(right)})"
        hint = "select the same columns, in the same order and of the same types, on both sides."
        raise SchemaError(msg, where=caller(), hint=hint)
    check_columns(operator, left, left.names, keys=True, nested=True)


@operator(Stream)
def union(stream: Stream, other: Stream, *, all: bool = False, name: str | None = None) -> Stream:
    """The records that one of two streams has at a time: SQL's ``UNION``.

    Each different record goes out once per time, when the time is complete. With `all` a record goes out as
    often as the two sides together have it, as from `concat`, which forwards at once. (PySpark's `union` has
    `all`.) Null equals null, and NaN equals NaN. For the records of all times so far see `Collection.union`,
    or use ``concat(other).distinct()``. Give two inputs ``epochs="manual"``: by the clock, what is sent to
    both together may be read by two batches, which have two times. Source: Union of Naiad section 4.2.

    **Columns:** out as in, the same on both sides.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("union")
        >>> x, y = (flow.input(name, "n long", epochs="manual") for name in "xy")
        >>> _ = x.union(y).capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 1], [1]], "y": [[1, 2], []]})["out"].rows()
        {0: [(1,), (2,)], 1: [(1,)]}

    Raises:
        SchemaError: the columns differ, or one has no equality.
        GraphError: `other` is of another kind or flow, or in another scope (collections: an unrelated one).
    """
    return _compared("union", stream, other, multiset=all, name=name)


@operator(Stream)
def intersect(stream: Stream, other: Stream, *, all: bool = False, name: str | None = None) -> Stream:
    """The records that both of two streams have at a time: SQL's ``INTERSECT``.

    Each goes out once per time, when the time is complete; with `all` as often as both sides have it.
    Otherwise as `union`.

    **Columns:** out as in, the same on both sides.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("intersect")
        >>> x, y = (flow.input(name, "n long", epochs="manual") for name in "xy")
        >>> _ = x.intersect(y).capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 1], [3]], "y": [[1, 3], [3]]})["out"].rows()
        {0: [(1,)], 1: [(3,)]}

    Raises:
        SchemaError: the columns differ, or one has no equality.
        GraphError: `other` is of another kind or flow, or in another scope (collections: an unrelated one).
    """
    return _compared("intersect", stream, other, multiset=all, name=name)


@operator(Stream)
def subtract(stream: Stream, other: Stream, *, all: bool = False, name: str | None = None) -> Stream:
    """The records that a stream has at a time and another has not: SQL's ``EXCEPT``.

    Each goes out once per time, when the time is complete; with `all` as often as the stream has it more
    often than the other (PySpark's `exceptAll`). Otherwise as `union`.

    **Columns:** out as in, the same on both sides.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("subtract")
        >>> x, y = (flow.input(name, "n long", epochs="manual") for name in "xy")
        >>> _ = x.subtract(y).capture("set"), x.subtract(y, all=True).capture("multiset")
        >>> made = ts.testing.run(flow, {"x": [[1, 1, 2, 2]], "y": [[1]]})
        >>> made["set"].rows(), made["multiset"].rows()
        ({0: [(2,)]}, {0: [(1,), (2,), (2,)]})

    Raises:
        SchemaError: the columns differ, or one has no equality.
        GraphError: `other` is of another kind or flow, or in another scope (collections: an unrelated one).
    """
    return _compared("subtract", stream, other, multiset=all, name=name)


def _compared(operation: str, stream: Stream, other: Stream, *, multiset: bool, name: str | None) -> Stream:
    check_same_scope(operation, stream, [other])
    check_same_schema(operation, (stream.name, other.name), stream.schema, other.schema)
    check_no_retractions(operation, stream, other)
    columns = tuple(stream.schema.names)
    return stream.then(
        operation,
        [stream.schema],
        others=[other],
        name=name,
        vertex=SetOperation(operation, multiset=bool(multiset)),
        keyed=columns,
        detail="all" if multiset else "",
        parameters={"all": bool(multiset)},
    )[0]
