"""Switching: a flow that continues from a checkpoint takes another of several ways to the same records.

First the checkpoint becomes one of the old way, for the new number of workers and the changed flow. Then the
vertices of the new way take over what those of the old one hold, by `take_over`, and are notified of the
open epoch. That is possible when nothing is in flight.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from timely_spark.compiler.plan import Node, Plan
from timely_spark.coordinator.migrate import Migrator
from timely_spark.coordinator.migration import Migration
from timely_spark.graph import Vertex
from timely_spark.progress import Tracker
from timely_spark.state.codec import BlobStore
from timely_spark.worker import Worker
from timely_spark.worker.context import ErrorsOf
from timely_spark.worker.wire import NO_ROWS


def migration(  # noqa: PLR0917 - as of `Migrator`
    before: Mapping[str, Any],
    plan: Plan,
    snapshot: Mapping[str, Any],
    states: Sequence[Any | None],
    messages: Any,
    blobs: BlobStore | None = None,
    **options: Any,
) -> Migration:
    """The migration of a checkpoint to a plan, perhaps by other ways: arguments as of `Migrator`."""
    if plan.old_way is None:
        return Migrator(before, plan, snapshot, states, messages, blobs, **options).migration()
    first = Migrator(before, plan.old_way, snapshot, states, messages, blobs, **options).migration()
    switched = _Switching(first, plan, blobs).migration()
    return replace(first, coordinator=switched.coordinator, result=switched.result, workers=switched.workers)


class _Switching(Migrator):
    """A migration to the same flow by other ways."""

    def __init__(self, first: Migration, plan: Plan, blobs: BlobStore | None) -> None:
        old_way = first.coordinator.plan
        #: the vertices of the way before, by choice and operator
        self.before: dict[object, dict[str, list[Vertex]]] = defaultdict(lambda: defaultdict(list))
        for node in old_way.nodes:
            if node.stage.way is not None and node.name not in plan.by_name:
                for worker in first.workers:
                    self.before[node.stage.way.choice][node.stage.operator].append(worker.vertex(node))
                    worker.snapshots.pop(node.name, None)  # it is not in the new plan
                    worker.invocations.pop(node.index, None)
        snapshot = json.loads(json.dumps(first.coordinator.encode()))
        states = [worker.checkpoint(inline=True) for worker in first.workers]
        super().__init__(old_way.described(), plan, snapshot, states, NO_ROWS, blobs)
        #: the vertices that have taken over
        self.taking: list[Node] = []
        self.new, self.fed_otherwise = [], []

    def _may_be_another(self, name: str) -> bool:  # the steps of one flow have their names
        return False

    def _check_overtaking(self, tracker: Tracker, inputs: Mapping[str, Any]) -> None:
        """Nothing is in flight, and all that a new way sends is of the epochs that the old one would."""

    def _workers(self) -> list[Worker]:
        workers = super()._workers()
        for node in self.plan.nodes:
            way, template = node.stage.way, node.template
            if way is None or way.choice not in self.before or not hasattr(template, "take_over"):
                continue
            with ErrorsOf(node):
                parts = partial(self._parts, node, "state")
                if states := template.take_over(self.before[way.choice], parts):
                    self.taking.append(node)
                for worker, state in zip(workers, states, strict=bool(states)):
                    if any(state.values()):
                        worker.vertex(node).restore(state)
                        worker.invocations[node.index] = []  # so that the next checkpoint has the state
        return workers

    def _initial_notifications(self, node: Node, tracker: Tracker) -> Iterable[Any]:
        if node not in self.taking:
            return super()._initial_notifications(node, tracker)
        return [self.plan.least(node.stage, self._first_epoch(node.stage, tracker))]
