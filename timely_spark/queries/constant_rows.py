"""Constant rows as collections."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import DIFF
from timely_spark.differential.collections import Collection
from timely_spark.graph import Vertex
from timely_spark.state.hashing import hashes
from timely_spark.streams import Stream
from timely_spark.times import Timestamp


class SendRows(Vertex):
    """Send constant rows once, in the first epoch."""

    initial = (0,)
    per_time = True

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Nothing: the input only says when the flow begins."""

    def on_notify(self, time: Timestamp) -> None:
        if self.worker == 0 and self.rows.num_rows:
            self.send_by(0, time, self.rows)


def constant_rows(anchor: Stream, rows: pa.Table) -> Collection:
    """A collection that has the same rows in all epochs.

    Args:
        anchor: any stream outside of loops; none of its records is read.
        rows: the rows.
    """
    none = anchor.select(one=pc.scalar(1)).where(pc.scalar(False))  # noqa: FBT003 - a constant
    table = rows.append_column(DIFF, pa.array(np.ones(rows.num_rows, np.int64)))
    # in any order; a restart with others is refused, as these were sent at the first start
    content = [rows.num_rows, int(hashes(rows, rows.schema.names).sum())]
    stream = none.then(
        "values", [table.schema], vertex=SendRows(table), parameters={"rows": content}, own=(DIFF,)
    )[0]
    return Collection(stream)
