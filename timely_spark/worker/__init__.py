"""One worker's round, the driver's turn between rounds, and the physical plan both read.

Knows times, graphs and progress; of Spark nothing: only Arrow.
"""

from __future__ import annotations

from timely_spark.worker.arrangement import Arrangement
from timely_spark.worker.coordinator import OUTPUTS, Coordinator, Turn
from timely_spark.worker.local_rounds import Bound, run_local_rounds
from timely_spark.worker.pack import pack, pack_input
from timely_spark.worker.plan import Channel, Node, Plan, Source, compile_plan
from timely_spark.worker.round import Budget, Worker, step
from timely_spark.worker.rows import ROWS, as_rows, read_rows

__all__ = [
    "OUTPUTS",
    "ROWS",
    "Arrangement",
    "Bound",
    "Budget",
    "Channel",
    "Coordinator",
    "Node",
    "Plan",
    "Source",
    "Turn",
    "Worker",
    "as_rows",
    "compile_plan",
    "pack",
    "pack_input",
    "read_rows",
    "run_local_rounds",
    "step",
]
