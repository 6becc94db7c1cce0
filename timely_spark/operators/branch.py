"""`branch`: two outputs, by a predicate. An operator of streams is a file such as this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Expression, Several, operator
from timely_spark.operators.rows import Filter, filtered
from timely_spark.operators.sql import expression
from timely_spark.streams import Stream


class Branch(Filter):
    """Send the records that pass by output 0, and the others by output 1."""

    condition = None  # a source must not drop the others

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        passes = pc.fill_null(self.passing(batch), fill_value=False)
        return batch.filter(passes), batch.filter(pc.invert(passes))


@dataclass(frozen=True, slots=True)
class Branches(Several):
    """The two parts of a branched stream."""

    trues: Stream
    falses: Stream


@operator(Stream)
def branch(
    stream: Stream, predicate: str | Expression | Callable[[Any], bool], *, name: str | None = None
) -> Branches:
    """Split a stream in two by a predicate; null counts as false.

    Args:
        predicate: as for `where`.

    Returns:
        The streams `trues` and `falses`.

    **Columns:** both out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("branch")
        >>> parts = flow.input("x", "n long").branch("n % 2 = 0")
        >>> _ = parts.trues.capture("even"), parts.falses.capture("odd")
        >>> ts.testing.run(flow, {"x": [[1, 2, 3]]})["odd"].rows()
        {0: [(1,), (3,)]}
    """
    condition = expression("branch", predicate, stream.schema)
    return Branches(*filtered("branch", stream, Branch(condition), outputs=2, name=name))
