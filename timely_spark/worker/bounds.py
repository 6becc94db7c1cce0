"""A loop that is given a bound, or a smaller one, when its flow is started again: it goes on as it is.

Fewer times can come than before, so nothing that was said to be complete comes again, and no state changes
its meaning. Nothing in flight is lost at once: records beyond the bound finish their iteration and leave;
those that would go round again are dropped, counted and told of like all that a limit drops. A larger bound
changes the flow as any change does: what was dropped before is missing then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from timely_spark.graph import Kind

_LIMITS = re.compile(r"limits=\([^()]*\)")


def narrowed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[int | None, int]]:
    """By name the loops that have a smaller bound than before, or one at last: the old and the new one."""
    found: dict[str, tuple[int | None, int]] = {}
    refused: set[str] = set()
    for name, said in now["stages"].items():
        was = before["stages"].get(name)
        if was is None or not said["kind"] == was["kind"] == Kind.FEEDBACK.value:
            continue
        loop = said["loops"][-1]
        old, new = (one["parameters"].get("max_iterations") for one in (was, said))
        if old != new:
            found[loop] = (old, new)
            if new is None or (old is not None and new > old):
                refused.add(loop)
    return {loop: pair for loop, pair in found.items() if loop not in refused}


def rebounded(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a plan's `described` would have said before, with the bounds that its loops have now."""
    loops = narrowed(before, now)
    if not loops:
        return before
    stages = dict(before["stages"])
    for name, said in now["stages"].items():
        if not loops.keys() & set(said["loops"]) or name not in stages:
            continue
        was = stages[name] = dict(stages[name])
        if was["kind"] == Kind.FEEDBACK.value and said["loops"][-1] in loops:
            was["parameters"] = said["parameters"]
        iterations = "iterations that do not matter"
        if set(said[iterations]) <= set(
            was[iterations]
        ):  # a loop with a bound counts; what was kept counts as iteration 0
            was[iterations] = said[iterations]
    known = {(*channel[:3], _LIMITS.sub("", channel[3])): channel[3] for channel in now["channels"]}
    channels = [
        [*c[:3], known.get((*c[:3], _LIMITS.sub("", c[3])), c[3]), *c[4:]] for c in before["channels"]
    ]
    return {**before, "stages": stages, "channels": channels}
