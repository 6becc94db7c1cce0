"""Spreading: the hot keys that a run has found are spread over all workers, between two batches.

State moves as in a restart with other hot keys. It moves when no record is in flight, because a change of an
arrangement has a number of the worker that sent it. The manifest of the batch has the moved states and the
keys. So a batch that runs again, after a kill at any instant of a move, finds the states and the keys of
before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from timely_spark.compiler.plan import Node, Plan
from timely_spark.coordinator.coordinator import SPREAD_LATER, Coordinator
from timely_spark.coordinator.migrate import Migrator
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.coordinator.round_result import RoundResult
from timely_spark.graph import FoundKeys, Stage
from timely_spark.graph.stage import closure
from timely_spark.state.arrow import replaced
from timely_spark.state.codec import BlobStore
from timely_spark.state.row_times import DIFF
from timely_spark.worker import Worker, wire
from timely_spark.worker.wire import NO_ROWS, Message


def spread(
    coordinator: Coordinator,
    result: RoundResult,
    states: Sequence[Any | None],
    blobs: BlobStore | None = None,
) -> tuple[Coordinator, RoundResult, tuple[Worker, ...]]:
    """After a batch, spread the hot keys that it has found, if no record is in flight.

    If a step cannot move its state, the keys stay where they are, and `Coordinator.hot_keys` says why.

    Args:
        coordinator: as of the batch.
        result: the batch's.
        states: the `Worker.checkpoint` of each worker, None if it never ran.

    Returns:
        The coordinator and the result to continue from; and all workers, if their states have moved.
    """
    unfinished = coordinator.unfinished or coordinator.unfinished_elsewhere
    if not coordinator.to_spread or unfinished or result.complete or len(wire.places(result.rows, Message)):
        return coordinator, result, ()
    try:
        moved = _Spreading(coordinator, states, blobs).migration()
    except _Later:
        coordinator.plan.spread(coordinator.spread)
        return coordinator, result, ()
    except FlowChanged as error:
        coordinator.plan.spread(coordinator.spread)
        coordinator.not_spread, coordinator.to_spread = f"it is not spread, since {error.message}", {}
        for step, text in coordinator.hot_keys.items():
            coordinator.hot_keys[step] = text.replace(SPREAD_LATER, coordinator.not_spread)
        return coordinator, result, ()
    new = moved.result
    result = replace(result, rows=new.rows, awake=new.awake, header=new.header, frontier=new.frontier)
    return moved.coordinator, result, moved.workers


class _Later(Exception):
    """An epoch is complete in a part of a loop: the keys are spread after a later batch."""


class _Spreading(Migrator):
    """A migration to the same flow, with more hot keys."""

    def __init__(
        self, coordinator: Coordinator, states: Sequence[Any | None], blobs: BlobStore | None
    ) -> None:
        plan, snapshot = coordinator.plan, json.loads(json.dumps(coordinator.encode()))
        super().__init__(plan.described(), plan, snapshot, states, NO_ROWS, blobs, empty=False)
        added = snapshot["to_spread"]
        plan.spread({step: [*keys, *added.get(step, ())] for step, keys in plan.found_keys.items()})
        self.rescaled, self.as_before = True, "name the hot keys: skew=[...]"
        self.moving = self.continuing & _placed_by_found_keys(plan)
        self.tracker, self.added = coordinator.tracker, added

    def _workers(self) -> list[Worker]:
        """The workers; what a reduction has stored of the keys goes to the step that reduces their parts."""
        workers = super()._workers()
        salts = [stage for stage in self.plan.stages if stage.is_stateless and hasattr(stage.vertex, "skew")]
        for step, keys in self.added.items() if not self.problems else ():
            hot = self.plan.found_keys[step]
            for stage in (salt for salt in salts if salt.vertex.skew.hot is hot):  # type: ignore[union-attr]
                self._reduce_parts(stage, keys, workers)
        return workers

    def _reduce_parts(self, salt: Stage, keys: Sequence[int], workers: Sequence[Worker]) -> None:
        """Queue the stored changes of keys for the step of parts, and their opposites for that of all.

        Both steps get them at one time, so no result changes.
        """
        ends = {
            edge.port: self.plan.nodes[channel.target]
            for channel in self.plan.channels
            for edge in channel.edges
            if edge.source is salt
        }
        parts, every = ends[0], ends[1]
        epochs = [time.epoch for time in self.tracker.frontier(parts.arrives)]
        if not epochs:  # nothing arrives any more
            return
        least, kind = self.plan.least(every.stage, min(epochs)), every.stage.scope.times
        divide: Any = salt.vertex
        for worker in workers:
            vertex: Any = worker.vertex(every)
            for time, rows in vertex.stored(keys, least, kind):
                if not all(self.tracker.less_equal(node.arrives, time) for node in (parts, every)):
                    raise _Later
                worker.enqueue(every, 0, time, replaced(rows, DIFF, pc.negate(rows.column(DIFF))))
                divided = parts.template.before_exchange(0, divide.apply(rows)[0])  # type: ignore[misc]
                for to, part in enumerate(self._parts(parts, "state", 0, divided)):
                    if part.num_rows:
                        workers[to].enqueue(parts, 0, time, part)


def _placed_by_found_keys(plan: Plan) -> set[str]:
    """The vertices at which hot keys that a run finds decide the workers of records, or steps before them do.

    Where the partitioning is unknown, records stay on the worker of the step before.
    """
    skewed, unknown = set[Node](), set[Node]()
    for (step, _), by in plan.partitioning.items():
        if (node := plan.by_name.get(step)) is None:
            continue
        if by is None:
            unknown.add(node)
        elif by.skew is not None and isinstance(by.skew.hot, FoundKeys):
            skewed.add(node)

    def staying(node: Node) -> set[Node]:
        channels = (plan.channels[index] for port in node.out for index in port)
        return unknown & {plan.nodes[channel.target] for channel in channels if channel.exchange is None}

    return {node.name for node in closure(skewed, staying)}
