"""A plan summary as JSON, which explains the frontiers of a checkpoint without the code of the flow."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from timely_spark.compiler.plan import Plan
from timely_spark.graph import Kind
from timely_spark.progress import Arc, Reachability, Tracker
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Times

_TIMES: Mapping[str, Any] = {type(times.epoch(0)).__name__: times for times in (PRODUCT, LEXICOGRAPHIC)}


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The vertices of a plan with the user's lines, and the path summaries between them.

    Path summaries of user-defined times are code, so they are left out.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long").distinct(name="once").capture("out")
        >>> [name for name, *_ in plan_summary(flow.compile(2))["steps"]]
        ['once', 'out']
    """
    own = _TIMES.get(type(plan.times.epoch(0)).__name__) != plan.times
    return {
        "times": type(plan.times.epoch(0)).__name__,
        "steps": [[n.name, n.stage.kind.value, str(n.stage.where), n.stage.scope.depth] for n in plan.nodes],
        "channels": [[plan.nodes[channel.target].name, channel.input] for channel in plan.channels],
        "unnamed": [f"{stage.name} ({stage.where})" for stage in plan.unnamed],
        "inputs": {source.name: [source.epochs, str(source.stage.where)] for source in plan.inputs},
        "ports": [[node.index, i % 2] for node in plan.nodes for i in range(2 * len(node.ports))],
        "edges": None
        if own
        else [
            [edge.source, edge.target, edge.exchange, encoded_path(edge.summary)] for edge in plan.reach.edges
        ],
    }


#: so many steps are listed
_LISTED = 3


def unnamed_in_words(steps: Sequence[str]) -> str:
    """A sentence that names steps with state and without a name; empty if all have names."""
    listed = ", ".join(steps[:_LISTED]) + f" and {len(steps) - _LISTED} more" * (len(steps) > _LISTED)
    return f"steps with state and without name=, by which a changed flow finds it: {listed}" * bool(steps)


def encoded_path(summary: Any) -> list[list[int]]:
    """A path summary as plain JSON, from which the kind's `summary` makes it again."""
    return [list(getattr(summary, field.name)) for field in fields(summary) if field.init]


@dataclass(frozen=True, slots=True)
class OpenPointstamp:
    """Messages and notifications at a step and time, which keep an epoch open."""

    time: list[Any]
    step: str
    #: the user's line
    where: str
    #: queued messages
    messages: int
    #: pending notifications with a capability
    notifications: int
    #: the steps from this one to the nearest output or probe
    path: list[str]


class PlanSummary:
    """A decoded plan summary, which explains a coordinator's snapshot."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.steps: list[tuple[str, str, str, int]] = [tuple(step) for step in data["steps"]]
        #: the step and its input to which each channel leads
        self.channels: list[tuple[str, int]] = [(step, input_) for step, input_ in data["channels"]]
        self.unnamed: list[str] = data.get("unnamed", [])
        self.inputs: Mapping[str, tuple[str, str]] = data["inputs"]
        #: whether the inputs' epochs are batches
        self.clocked = all(epochs == "clock" for epochs, _ in self.inputs.values())
        self.times: Times | None = _TIMES[data["times"]] if data["edges"] is not None else None
        self.reach: Reachability | None = None
        #: for each location its step, and whether it is of capabilities
        self.places: list[tuple[int, int]] = [(step, i) for step in range(len(self.steps)) for i in range(2)]
        self.places += [(step, i) for step, i in data.get("ports", ())]
        if self.times is not None:
            kind: Any = self.times
            edges = [Arc(a, b, kind.summary(*map(tuple, s)), exchange=x) for a, b, x, s in data["edges"]]
            identities = [kind.identity(self.steps[step][-1]) for step, _ in self.places]
            self.reach = Reachability(len(self.places), edges, identities=identities)

    @classmethod
    def of(cls, plan: Plan) -> PlanSummary:
        """The summary of a plan in this process, also with user-defined times."""
        summary = cls(plan_summary(plan) | {"edges": None})
        summary.times, summary.reach = plan.times, plan.reach
        return summary

    def frontier(self, snapshot: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The frontier of each step; empty with user-defined times."""
        if self.reach is None or self.times is None:
            return {}
        tracker = Tracker.decode(self.reach, self.times, snapshot["tracker"])
        return {
            name: [time.encode() for time in tracker.frontier(2 * index)]
            for index, (name, *_) in enumerate(self.steps)
        }

    def open_pointstamps(self, snapshot: Mapping[str, Any], epoch: int) -> list[OpenPointstamp]:
        """The pointstamps up to an epoch, by time; all of them where times of a user's kind are unknown."""
        times, active = self.times, dict[tuple[str, int], list[int]]()
        locations: dict[tuple[str, int], list[int]] = defaultdict(list)
        for location, time, n in snapshot["tracker"]["counts"]:
            if times is None or times.decode(time).epoch <= epoch:
                index, capability = self.places[location]
                active.setdefault((json.dumps(time), index), [0, 0])[capability] += n
                locations[json.dumps(time), index].append(location)
        counts = [(json.loads(time), index, *numbers) for (time, index), numbers in active.items()]
        if times is not None:
            counts.sort(
                key=lambda count: (times.decode(count[0]).epoch, count[1], times.decode(count[0]).order_key())
            )
        return [
            OpenPointstamp(
                time,
                self.steps[index][0],
                self.steps[index][2],
                messages,
                waits,
                self._path(locations[json.dumps(time), index]),
            )
            for time, index, messages, waits in counts
        ]

    def _path(self, start: list[int]) -> list[str]:
        """The steps on a shortest path from locations of a step to an output or a probe."""
        seen, todo = set(start), deque([location] for location in start)
        while todo:
            path = todo.popleft()
            if Kind(self.steps[self.places[path[-1]][0]][1]).is_end:
                return list(dict.fromkeys(self.steps[self.places[at][0]][0] for at in path))
            for edge in self.reach.out[path[-1]] if self.reach is not None else ():
                if edge.target not in seen:
                    seen.add(edge.target)
                    todo.append([*path, edge.target])
        return [self.steps[self.places[start[0]][0]][0]]
