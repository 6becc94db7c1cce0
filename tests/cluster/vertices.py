"""A module that a job ships under a name of its own, and that no machine of the cluster has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts


def doubled(batch: pa.Table) -> pa.Table:
    return pa.table({"n": pc.multiply(batch.column("n"), 2)})


class Total(ts.Vertex):
    """The sum of each epoch."""

    def __init__(self) -> None:
        self.sums: dict[Any, int] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.sums[time] = self.sums.get(time, 0) + pc.sum(batch.column("n")).as_py()
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"n": [self.sums.pop(time)]}))
