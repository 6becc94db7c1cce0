"""`Migration`: what a checkpoint has become for another plan; `FlowChanged`: it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timely_spark.coordinator.coordinator import Coordinator
from timely_spark.coordinator.round_result import RoundResult
from timely_spark.errors import TimelyError
from timely_spark.worker.round import Worker


class FlowChanged(TimelyError, ValueError):
    """A flow cannot continue from a checkpoint: names every step that prevents it, and what to do.

    >>> issubclass(FlowChanged, ValueError)
    True
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A coordinator and workers for the new plan, as if it had run the newest batch; and the changes."""

    coordinator: Coordinator
    #: the rows of the next round; no outputs, and no releases
    result: RoundResult
    workers: tuple[Worker, ...]
    #: new steps
    added: tuple[str, ...]
    #: the first epoch of the new steps that need the past and start empty, and of those before them
    lacking: Mapping[str, int]
    #: the first epoch of new outputs that do not need the past
    begins: Mapping[str, int]
    #: removed steps, and their contents that were dropped
    removed: Mapping[str, Sequence[str]]
    #: the old and the new number of workers
    worker_counts: tuple[int, int]
    #: steps that keep their state, and get their records from other steps than before
    fed_otherwise: tuple[str, ...]
    #: whether hot keys differ
    hot_keys: bool
    #: loops with a lower bound: the old and the new `max_iterations`
    bounded: Mapping[str, tuple[int | None, int]]
