"""AllReduce: element by element the sum, mean, least or greatest of arrays, on every worker."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.authors import (
    BufferingVertex,
    Partition,
    Stateless,
    algorithm,
    caller,
    check_columns,
    flat,
    large_sums,
    numbers,
    word,
)
from timely_spark.errors import GraphError, SchemaError
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

Op = Literal["sum", "mean", "min", "max"]

_REDUCE: dict[str, Any] = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}


class Cut(Stateless):
    """Reduce the arrays of a batch to one, and cut it into parts."""

    def __init__(self, value: str, op: Op, kind: pa.DataType, place: Sequence[int]) -> None:
        self.value, self.op, self.kind, self.place = value, op, kind, tuple(place)

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """One row for each part that has elements, or one in all."""
        if not batch.num_rows:
            return (_parts(self.kind, [], [], [], []),)
        total = _reduced(_matrix(batch.column(self.value), self.kind), self.op)
        bounds = np.linspace(0, len(total), len(self.place) + 1).astype(np.int64)
        cuts = [part for part in range(len(self.place)) if bounds[part] < bounds[part + 1]] or [0]
        values = [total[bounds[part] : bounds[part + 1]] for part in cuts]
        return (
            _parts(
                self.kind, cuts, [self.place[part] for part in cuts], [batch.num_rows] * len(cuts), values
            ),
        )


class ReduceScatter(BufferingVertex):
    """Send each part of a time, reduced over all workers, when the time is complete."""

    per_time = True

    def __init__(self, op: Op, kind: pa.DataType) -> None:
        super().__init__()
        self.op, self.kind = op, kind

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Reduce the rows of each part."""
        part, weights = (numbers(batch, name) for name in ("part", "weight"))
        if len(np.unique(part)) == len(part):
            return batch.sort_by("part")
        place, values = numbers(batch, "place"), batch.column("value")
        rows = [np.flatnonzero(part == one) for one in np.unique(part)]
        return _parts(
            self.kind,
            [part[one[0]] for one in rows],
            [place[one[0]] for one in rows],
            [weights[one].sum() for one in rows],
            [_reduced(_matrix(values.take(pa.array(one)), self.kind), self.op) for one in rows],
        )

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if batches[0]:
            self.send_by(0, time, self.combine(0, pa.concat_tables(batches[0])))


class AllGather(ReduceScatter):
    """Send the reduced parts of a time as one array when the time is complete."""

    def __init__(self, value: str, op: Op, kind: pa.DataType) -> None:
        super().__init__(op, kind)
        self.value = value

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        parts = self.combine(0, pa.concat_tables(batches[0]))
        total = flat(parts.column("value")).flatten()
        if self.op == "mean":
            total = pa.array(total.to_numpy() / parts.column("weight")[0].as_py())
        offsets, kind = pa.array([0, len(total)], pa.int32()), pa.list_(pa.field("element", total.type))
        self.send_by(0, time, pa.table({self.value: pa.ListArray.from_arrays(offsets, total, kind)}))


@algorithm
def all_reduce(
    stream: Stream,
    value: str,
    *,
    op: Op = "sum",
    parts: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Stream:
    """The element-wise sum, mean, least or greatest of all arrays of a time, on every worker.

    When a time is complete each worker gets one record with the result, the same to the last bit on all; none
    if the time has no arrays. Arrays of one worker are reduced before they are sent. The step forgets
    complete times. In a loop a time is an iteration, so what workers compute from the result they can
    feed back without a further exchange.

    By default it takes one exchange, in which each worker sends its array to all others: for W workers and
    n elements (W - 1) n elements per worker. For large arrays give `parts`: a first exchange reduces each
    part on one worker, and a second one sends the results to all (reduce-scatter and all-gather): two rounds,
    about 2 n elements per worker.

    Sums of integers are exact, or an error beyond 64 bits, also those of one worker. The last bits of a sum
    of doubles depend on which records are on which worker, not on the order in which they arrive.

    Args:
        value: the column of arrays, all of one length at each time, without nulls.
        op: "sum", "mean" (over the records), "min" or "max". NaN spreads.
        parts: into how many parts arrays are cut, a few times the number of workers; or for each part an
            integer that places it: it is reduced where an operator has records with this number as key.

    **Columns:** in: `value`, an array of integers or floating ones; others are dropped. Out: `value`,
    array of long, or of double for floating numbers and means.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("gradients")
        >>> gradients = flow.input("gradients", "gradient array<double>")
        >>> _ = ts.all_reduce(gradients, "gradient", op="mean").capture("out")
        >>> ts.testing.run(flow, {"gradients": [[([1.0, 2.0],), ([3.0, 6.0],)]]}, workers=2)["out"].rows()
        {0: [([2.0, 4.0],), ([2.0, 4.0],)]}

    Raises:
        GraphError: `op` or `parts` is not one of the allowed values.
        SchemaError: `value` is missing, or no column of arrays of numbers.
        VertexError: at run time: an array or an element is null, arrays differ in length, or a sum of
            longs is beyond 64 bits.

    Source: Naiad section 4.2 and 6.2; Agarwal et al., A reliable effective terascale linear learning system.
    """
    kind = _check(stream, value, op)
    place = _places(parts)
    schema = pa.schema(
        [("part", "int64"), ("place", "int64"), ("weight", "int64"), ("value", pa.list_(kind))]
    )
    cuts = stream.then("cut", [schema], vertex=Cut(value, op, kind, place), detail=value)[0]
    if parts is not None:
        scatter = ReduceScatter(op, kind)
        cuts = cuts.then("reduce_scatter", [schema], vertex=scatter, requires=[Partition(("place",))])[0]
    result = pa.float64() if op == "mean" else kind
    return cuts.then(
        "all_reduce",
        [pa.schema([(value, pa.list_(pa.field("element", result)))])],
        name=name,
        vertex=AllGather(value, op, kind),
        requires=[Partition((), broadcast=True)],
        detail=f"{op} of {value}",
        parameters={"op": op, "parts": None if parts is None else list(place)},
    )[0]


def _check(stream: Any, value: Any, op: Any) -> pa.DataType:
    """The type of the elements: long or double."""
    if not isinstance(stream, Stream):
        msg = f"all_reduce got a {type(stream).__name__}, not a stream"
        raise GraphError(msg, where=caller(), hint="give collection.stream, the changes of the collection.")
    word("op", op, _REDUCE, step="all_reduce", error=GraphError)
    check_columns("all_reduce", stream.schema, [value])
    kind = stream.schema.field(value).type
    element = kind.value_type if pa.types.is_list(kind) else None
    if element is None or not (pa.types.is_integer(element) or pa.types.is_floating(element)):
        msg = f"all_reduce: {value!r} is {kind}, not an array of numbers"
        raise SchemaError(msg, where=caller(), hint="declare it as array<double>.")
    return pa.int64() if pa.types.is_integer(element) else pa.float64()


def _places(parts: Any) -> tuple[int, ...]:
    """The key of each part."""
    places: Any = (0,) if parts is None else parts
    each = places if isinstance(places, Sequence) else [places]
    if each and all(isinstance(one, Integral) and not isinstance(one, bool) for one in each):
        if each is places:
            return tuple(map(int, places))
        if 1 <= places <= 1 << 20:
            return tuple(range(places))
    msg = f"all_reduce: parts={parts!r}"
    hint = "give the number of parts, or a list with an integer for each."
    raise GraphError(msg, where=caller(), hint=hint)


def _matrix(column: pa.ChunkedArray, kind: pa.DataType) -> npt.NDArray[Any]:
    """The arrays of a column as rows."""
    arrays = flat(column)
    sizes = np.unique(arrays.value_lengths().fill_null(-1).to_numpy())
    values = arrays.flatten()
    if len(sizes) > 1 or sizes[0] < 0 or values.null_count:
        what = "a null element"
        if sizes[0] < 0:
            what = "a null array"
        elif len(sizes) > 1:
            what = f"arrays of {' and '.join(map(str, sizes.tolist()))} elements"
        msg = f"all_reduce got {what}"
        raise SchemaError(msg, hint="give arrays of one length at each time, without nulls.")
    matrix: npt.NDArray[Any] = values.cast(kind).to_numpy().reshape(len(arrays), sizes[0])
    return matrix


def _reduced(matrix: npt.NDArray[Any], op: Op) -> npt.NDArray[Any]:
    """One row for all, whatever their order."""
    if matrix.dtype.kind == "f" and op in {"sum", "mean"}:
        matrix = np.sort(matrix, axis=0)
    elif op in {"sum", "mean"} and large_sums(matrix, np.zeros(1, np.int64)).any():
        msg = "all_reduce: a sum of longs is beyond 64 bits"
        raise SchemaError(msg, hint="give arrays of doubles.")
    result: npt.NDArray[Any] = _REDUCE[op].reduce(matrix, axis=0)
    return result


def _parts(
    kind: pa.DataType, part: Sequence[int], place: Sequence[int], weight: Sequence[int], values: Sequence[Any]
) -> pa.Table:
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    elements = pa.array(np.concatenate(values) if values else [], kind)
    return pa.table(
        {
            "part": pa.array(part, pa.int64()),
            "place": pa.array(place, pa.int64()),
            "weight": pa.array(weight, pa.int64()),
            "value": pa.ListArray.from_arrays(pa.array(offsets), elements),
        }
    )
