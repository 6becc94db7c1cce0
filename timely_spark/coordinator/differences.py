"""The differences between a plan and the description of the plan that wrote a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timely_spark.compiler.plan import Plan
from timely_spark.coordinator.bounds import with_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How a flow differs from the one that wrote a checkpoint; false if there is no difference."""

    #: the old and the new number
    workers: tuple[int, int]
    #: steps by name
    added: tuple[str, ...]
    removed: tuple[str, ...]
    #: of steps in both flows, the old and the new value of each part of their description that has changed
    changed: Mapping[str, Mapping[str, tuple[Any, Any]]]
    #: whether there is a difference other than the number of workers
    flow: bool

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return self.flow or self.workers[0] != self.workers[1]


def compare(before: Mapping[str, Any], plan: Plan) -> Differences:
    """Compare a plan with the description of another one (`Plan.described`).

    Example:
        >>> import timely_spark as ts
        >>> def flow(kind):
        ...     made = ts.Dataflow("flow")
        ...     getattr(made.input("x", "n long"), kind)(name="step").capture("out")
        ...     return made
        >>> before = flow("distinct").compile(2).described()
        >>> bool(compare(before, flow("distinct").compile(2)))
        False
        >>> compare(before, flow("exchange").compile(2)).changed["step"]["operator"]
        ('distinct', 'exchange')
    """
    now = plan.described()
    before = with_bounds(before, now)
    old, new = before["stages"], now["stages"]
    both = [(step, stage, new[step]) for step, stage in old.items() if step in new]
    return Differences(
        workers=(before["workers"], plan.workers),
        added=tuple(step for step in new if step not in old),
        removed=tuple(step for step in old if step not in new),
        changed={
            step: {part: (was[part], value) for part, value in is_now.items() if was[part] != value}
            for step, was, is_now in both
            if was != is_now
        },
        flow=_logical(before) != _logical(now),
    )


def _logical(described: Mapping[str, Any]) -> dict[str, Any]:
    """A description without the number of workers and the exchanges, which depend on it."""
    channels = [channel[:4] for channel in described["channels"]]
    return {**described, "workers": None, "channels": channels}
