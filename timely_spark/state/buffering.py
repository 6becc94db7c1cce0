"""`BufferingVertex`: a vertex that processes each time as a whole, when the time is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from timely_spark.graph import Vertex
from timely_spark.state.repartition import repartition
from timely_spark.times import Timestamp


def per_input(batches: Sequence[list[pa.Table]], schemas: Sequence[pa.Schema]) -> list[pa.Table]:
    """The records of each input as one table, without rows for an input that has none."""
    return [
        pa.concat_tables(tables or [schema.empty_table()])
        for tables, schema in zip(batches, schemas, strict=True)
    ]


class BufferingVertex(Vertex):
    """Buffer the batches of each time by input; process them when the time is complete.

    The buffer is its state, which is repartitioned when the flow is rescaled, as are other fields that are
    tables and `Arrangement`s.

    Args:
        inputs: the number of inputs.

    Example:
        >>> import timely_spark as ts
        >>> class Sizes(BufferingVertex):
        ...     def on_complete(self, time, batches):  # with two inputs: time, left, right
        ...         self.send_by(0, time, [sum(batch.num_rows for batch in batches)])
        >>> flow = ts.Dataflow("sizes")
        >>> _ = flow.vertex(Sizes(), flow.input("x", "n long"), "rows long", by=[]).capture("out")
        >>> ts.testing.run(flow, {"x": [[7, 8], [9]]}, workers=2)["out"].rows()
        {0: [(2,)], 1: [(1,)]}

    Source: the buffering vertices of Naiad section 4.1.
    """

    repartition = repartition

    def __init__(self, inputs: int = 1) -> None:
        self._inputs = inputs
        #: the batches that have arrived, by time and input
        self.buffered: dict[Any, list[list[pa.Table]]] = {}

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Buffer the batch until the time is complete."""
        if time not in self.buffered:
            self.buffered[time] = [[] for _ in range(self._inputs)]
        self.buffered[time][edge].append(batch)
        self.notify_at(time)

    def on_notify(self, time: Timestamp) -> None:
        """Process a complete time."""
        self.on_complete(time, *self.buffered.pop(time, [[]] * self._inputs))

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Process the batches of each input at a complete time; there may be none.

        Args:
            time: the time, at which or after which the vertex may send.
            batches: for each input its batches, in the order of their arrival.
        """
        raise NotImplementedError


class PerTime(BufferingVertex):
    """Let the vertex class that follows in the bases receive a time's records at once, when it is complete.

    What its `combine` makes of each batch is buffered.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        super(BufferingVertex, self).__init__(*arguments)  # that of the next base

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Buffer the combined batch."""
        assert self.combine is not None
        super().on_recv(edge, time, self.combine(edge, batch))

    def coarse(self, time: Timestamp) -> Any:
        """The time itself: a vertex that waits for iterations keeps every loop counter."""
        return time

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Receive the records of a complete time."""
        if batches[0]:
            super(BufferingVertex, self).on_recv(0, time, pa.concat_tables(batches[0]))
