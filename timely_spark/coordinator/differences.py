"""The differences between a plan and the description of the plan that wrote a checkpoint.

Lower loop bounds are not a difference: with a lower bound fewer times can arrive, so no complete epoch opens
again and no state changes its meaning. Records beyond the bound finish their iteration and leave the loop, or
are dropped and counted at the feedback like records at any limit. A larger bound is a change of the flow,
because the old bound has dropped records.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timely_spark.compiler.plan import Plan
from timely_spark.graph import Kind

#: So many steps of each kind are named.
SHOWN = 3
#: An expression in SQL that reads times in a zone; without it in UTC.
_ZONE = re.compile(r" /\* in (\S+) \*/")
_LIMITS = re.compile(r"limits=\([^()]*\)")


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
    #: whether hot keys differ: then the records of some steps are on other workers
    hot_keys: bool
    #: steps that are the same in both flows, behind steps that are the same, whatever the names of those
    same: frozenset[str]
    #: those among them that are the only steps of their kind in each flow: no other step has got their name
    certain: frozenset[str]
    #: whether there is another difference than these
    flow: bool

    def in_words(self) -> str:
        """The steps that differ, a few of each kind."""
        kinds = {"changed": [*self.changed], "new": [*self.added], "removed": [*self.removed]}
        shown = [
            f"{kind}: {', '.join(map(repr, steps[:SHOWN]))}{', ...' if steps[SHOWN:] else ''}"
            for kind, steps in kinds.items()
            if steps
        ]
        texts = {(str(old), str(new)) for parts in self.changed.values() for old, new in parts.values()}
        for old, new in sorted(texts):
            if _ZONE.sub("", old) == _ZONE.sub("", new):
                was, now = (", ".join(sorted({*_ZONE.findall(text)})) or "UTC" for text in (old, new))
                shown.append(f"times are read in {now}, before in {was}, by spark.sql.session.timeZone")
                break
        return "; ".join(shown) or "other channels"

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return self.flow or self.hot_keys or self.workers[0] != self.workers[1]


def compare(before: Mapping[str, Any], plan: Plan) -> Differences:
    """Compare a plan with the description of another one (`Plan.described`)."""
    now = plan.described()
    before, stages = with_bounds(before, now), now["stages"]
    both = [(stage, stages[step]) for step, stage in before["stages"].items() if step in stages]
    hot_keys = any(_hot_keys(was) != _hot_keys(is_now) for was, is_now in both)
    if hot_keys:  # state is repartitioned, in steps behind those with hot keys, too
        before, now = _without_partitioning(before), _without_partitioning(now)
    old, new = before["stages"], now["stages"]
    kinds = _kinds(before, now)
    counts = [Counter(of_flow.values()) for of_flow in kinds]
    same = {step for step, kind in kinds[0].items() if kinds[1].get(step) == kind}
    return Differences(
        workers=(before["workers"], plan.workers),
        added=tuple(step for step in new if step not in old),
        removed=tuple(step for step in old if step not in new),
        changed={
            step: {part: (was[part], value) for part, value in is_now.items() if was[part] != value}
            for step, was in old.items()
            if step in new and was != (is_now := new[step])
        },
        hot_keys=hot_keys,
        same=frozenset(same),
        certain=frozenset(step for step in same if all(of_flow[kinds[0][step]] == 1 for of_flow in counts)),
        flow=_logical(before) != _logical(now),
    )


#: what a step computes depends on these parts of its description, and on the steps before it
_COMPUTED = ("kind", "operator", "parameters", "vertex", "refines", "outputs")


def _kinds(*flows: Mapping[str, Any]) -> list[dict[str, int]]:
    """The kind of each step, by flow. Steps are of one kind if they do the same, behind steps of equal kinds.

    Kinds are refined until they stay the same, as cycles have no first step. Functions of the user are not
    compared, nor are the bounds of loops.
    """
    into: dict[tuple[int, str], list[tuple[int, int, str]]] = defaultdict(list)
    described: dict[tuple[int, str], Any] = {}
    for flow, of in enumerate(flows):
        for source, port, target, input_ in of.get("edges", ()):
            into[flow, target].append((input_, port, source))
        for name, stage in of["stages"].items():
            is_source = stage["kind"] == Kind.SOURCE.value
            parts = [name] if is_source else [stage[part] for part in _COMPUTED]
            if stage["kind"] == Kind.FEEDBACK.value:
                parts = [Kind.FEEDBACK.value]
            described[flow, name] = json.dumps([len(stage["loops"]), *parts], sort_keys=True)
    kinds, count = _numbered(described), 0
    while count < (count := len(set(kinds.values()))):
        refined = {
            (flow, name): (kind, sorted((*at, kinds[flow, source]) for *at, source in into[flow, name]))
            for (flow, name), kind in kinds.items()
        }
        kinds = _numbered({step: repr(kind) for step, kind in refined.items()})
    return [{name: kind for (of, name), kind in kinds.items() if of == flow} for flow in range(len(flows))]


def _numbered(values: Mapping[tuple[int, str], str]) -> dict[tuple[int, str], int]:
    """Equal values as equal numbers."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values.values()))}
    return {step: numbers[value] for step, value in values.items()}


def _hot_keys(stage: Mapping[str, Any]) -> list[str]:
    return [by.partition("; hot keys ")[2] for by in stage["partitioned"]]


def _without_partitioning(described: Mapping[str, Any]) -> dict[str, Any]:
    """A description that has only which inputs are broadcast: their records are on every worker."""
    stages = {
        step: {**stage, "partitioned": [by.startswith("broadcast") for by in stage["partitioned"]]}
        for step, stage in described["stages"].items()
    }
    return {**described, "stages": stages}


def _logical(described: Mapping[str, Any]) -> dict[str, Any]:
    """A description without the number of workers and the exchanges, which depend on it."""
    channels = [channel[:4] for channel in described["channels"]]
    return {**described, "workers": None, "channels": channels}


def lowered_bounds(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[int | None, int]]:
    """The old and the new bound of each loop that has a lower bound than before."""
    changed: dict[str, tuple[int | None, int]] = {}
    raised: set[str] = set()
    for name, stage in now["stages"].items():
        old_stage = before["stages"].get(name)
        if old_stage is None or not stage["kind"] == old_stage["kind"] == Kind.FEEDBACK.value:
            continue
        loop = stage["loops"][-1]
        old, new = (each["parameters"].get("max_iterations") for each in (old_stage, stage))
        if old != new:
            changed[loop] = (old, new)
            if new is None or (old is not None and new > old):
                raised.add(loop)
    return {loop: bounds for loop, bounds in changed.items() if loop not in raised}


def with_bounds(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """The old plan's description with the lowered bounds of the new plan."""
    loops = lowered_bounds(before, now)
    if not loops:
        return before
    stages = dict(before["stages"])
    for name, stage in now["stages"].items():
        if not loops.keys() & set(stage["loops"]) or name not in stages:
            continue
        old_stage = stages[name] = dict(stages[name])
        if old_stage["kind"] == Kind.FEEDBACK.value and stage["loops"][-1] in loops:
            old_stage["parameters"] = stage["parameters"]
        # iterations matter in a loop with a bound; the old state counts as iteration 0
        ignored = "iterations that do not matter"
        if set(stage[ignored]) <= set(old_stage[ignored]):
            old_stage[ignored] = stage[ignored]
    summaries = {(*channel[:3], _LIMITS.sub("", channel[3])): channel[3] for channel in now["channels"]}
    channels = [
        [*c[:3], summaries.get((*c[:3], _LIMITS.sub("", c[3])), c[3]), *c[4:]] for c in before["channels"]
    ]
    return {**before, "stages": stages, "channels": channels}
