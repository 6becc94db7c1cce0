"""Counts of loop iterations, and of the records that loop limits drop, of one worker in one round.

A worker reads loop counters from the times of the batches that it delivers, and applies the bounds that
`cancel` sets on running loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Channel, Node, Plan
from timely_spark.errors import LimitReached, excerpt
from timely_spark.graph import Kind, Scope
from timely_spark.times import Times
from timely_spark.worker.convergence import Convergence


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """The loops in a worker's report of a round."""

    #: by loop the highest counter
    reached: dict[str, int]
    #: (loop, epoch, counter, sample records) of loops with very many iterations
    far: list[tuple[str, int, int, str]]
    #: (loop, epoch, iteration, number, sample records) of the records that limits dropped
    dropped: list[tuple[str, int, int, int, str]]
    #: `Convergence` of the records that feedback carried, encoded
    fed: list[list[Any]] = field(default_factory=list)


class Iterations:
    """Loop iterations, and records dropped by loop limits, of one worker in one round."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = plan.warn_after if _numbered(plan.times) else None
        self._bounds: Mapping[str, int] = {}
        #: path summaries of channels under these bounds; None: no time gets through
        self._bounded: dict[int, Any] = {}
        #: called when a loop reaches another iteration; it only looks
        self.watch: Callable[[], object] | None = None
        self._feedbacks = plan.feedbacks if _numbered(plan.times) else {}

    def begin(self, bounds: Mapping[str, int]) -> None:
        """Begin a round with these bounds."""
        #: by loop the highest counter
        self.reached: dict[str, int] = {}
        #: by loop and epoch, the counter of a loop with very many iterations, and sample records
        self.far: dict[tuple[str, int], tuple[int, str]] = {}
        #: by loop and epoch, the iteration and number of the dropped records, and sample records
        self.dropped: dict[tuple[str, int], tuple[int, int, str]] = {}
        #: the records that feedback carried
        self.convergence = Convergence()
        if bounds != self._bounds:
            self._bounds, self._bounded = bounds, {}

    def enter(self, node: Node, key: tuple[Any, ...], time: Any, table: pa.Table | None, steps: int) -> bool:
        """Count the iteration of the next delivery; False: end the round before the delivery.

        A round ends at each multiple of `plan.warn_after` iterations, so that the driver hears of a loop
        which never leaves its worker.
        """
        if self.every is None:
            return True
        continues = True
        for loop, counter in zip(node.stage.scope.path[1:], key[2::2], strict=False):
            if loop.inner is not None:
                continue
            if counter > self.reached.get(loop.name, -1):
                self.reached[loop.name] = counter
                if self.watch is not None:
                    self.watch()
            if counter >= self.every and counter // self.every > self._mark(loop, time):
                if steps and counter % self.every == 0:
                    continues = False
                else:
                    self.far[loop.name, time.epoch] = counter, "" if table is None else excerpt(table)
        return continues

    def _mark(self, loop: Scope, time: Any) -> int:
        counter, _ = self.far.get((loop.name, time.epoch), (0, ""))
        return counter // (self.every or 1)

    def arrival(self, channel: Channel, time: Any) -> Any | None:
        """The time at which a batch sent over a channel arrives; None: a loop's limit or bound drops it."""
        if not self._bounds:
            return channel.summary.results_in(time)
        if channel.index not in self._bounded:
            self._bounded[channel.index] = _bounded_summary(channel, self._bounds)
        summary = self._bounded[channel.index]
        return None if summary is None else summary.results_in(time)

    def sent(self, channel: Channel, time: Any, records: int) -> None:
        """Count records that are sent over a channel, if it is the one by which a feedback is counted.

        The channel may lead on, out of the loop, so the iteration is the one after that of the sender.
        """
        if (loop := self._feedbacks.get(channel.index)) is not None:
            self.convergence.add(loop.name, time.epoch, 1 + _counter(loop, time), records)

    def drop(self, node: Node, loop: Scope, time: Any, table: pa.Table) -> None:
        """Count records that a loop's limit drops."""
        if not table.num_rows:
            return
        iteration = 1 + _counter(loop, time)
        if loop.on_limit == "raise" and loop.name not in self._bounds:
            raise LimitReached.of(
                loop.name, loop.where, node.name, epoch=time.epoch, iteration=iteration, rows=excerpt(table)
            )
        key = loop.name, time.epoch
        first, rows, sample = self.dropped.get(key) or (iteration, 0, excerpt(table))
        self.dropped[key] = first, rows + table.num_rows, sample

    def counts(self) -> LoopCounts:
        """The round's counts for the coordinator."""
        far = [(*key, *sample) for key, sample in self.far.items()]
        dropped = [(*key, *sample) for key, sample in self.dropped.items()]
        return LoopCounts(self.reached, far, dropped, self.convergence.encode())


def _bounded_summary(channel: Channel, bounds: Mapping[str, int]) -> Any | None:
    """A channel's path summary under bounds of loops; None: no time gets through."""
    source = channel.edges[0].source.scope
    summary: Any = source.times.identity(source.depth)
    for edge in channel.edges:
        stage, following = edge.target, edge.target.summary
        if stage.kind is Kind.FEEDBACK and stage.scope.name in bounds:
            limits = [bounds[stage.scope.name], *([] if stage.scope.limit is None else [stage.scope.limit])]
            following = stage.scope.times.feedback(stage.scope.depth, min(limits))
        summary = summary.followed_by(following)
        if summary is None:
            return None
    return summary


def limiting_loop(channel: Channel) -> Scope | None:
    """The loop whose feedback a channel crosses, if any."""
    return next((edge.target.scope for edge in channel.edges if edge.target.kind is Kind.FEEDBACK), None)


def _counter(loop: Scope, time: Any) -> int:
    """The iteration of a time; records that enter the loop with this message have none yet."""
    counter: Any = time.order_key()[loop.depth :][:1]
    return counter[0] if counter and isinstance(counter[0], int) else 0


def _numbered(times: Times) -> bool:
    """Whether loop counters are numbers; in user-defined times they may be any values."""
    return isinstance(times.enter(0).results_in(times.epoch(0)).order_key()[1], int)  # type: ignore[union-attr]
