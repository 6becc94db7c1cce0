"""The worker: one round of a worker, and the rows between sources, workers and driver.

A round is a pure function of the worker's state, the round's header and the input rows. This package uses
Arrow, and not Spark.
"""

from __future__ import annotations

from timely_spark.worker.pack import pack, pack_input, pack_quarantined
from timely_spark.worker.round import Budget, Worker, step
from timely_spark.worker.wire import ROWS

__all__ = ["ROWS", "Budget", "Worker", "pack", "pack_input", "pack_quarantined", "step"]
