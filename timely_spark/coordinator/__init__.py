"""The coordinator: the driver's part of each round, and the migration of a checkpoint to a changed flow.

The coordinator tracks progress, writes the next round's header, and releases complete epochs.
"""

from __future__ import annotations

from timely_spark.coordinator.coordinator import Coordinator, merged_snapshot
from timely_spark.coordinator.local_rounds import RoundLimits, Share, run_local_rounds, run_workers
from timely_spark.coordinator.placement import Placement
from timely_spark.coordinator.round_result import OUTPUTS, RoundResult

__all__ = [
    "OUTPUTS",
    "Coordinator",
    "Placement",
    "RoundLimits",
    "RoundResult",
    "Share",
    "merged_snapshot",
    "run_local_rounds",
    "run_workers",
]
