"""Counts of loop iterations, and of the records that loop limits drop, of one worker in one round.

A worker reads loop counters from the times of the batches that it delivers, and applies the bounds that
`cancel` sets on running loops. A vertex that asks for a notification of the present time, again and again,
is a loop too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.compiler.plan import Channel, Node, Plan
from timely_spark.errors import LimitReached, excerpt
from timely_spark.graph import Kind, LoopContext
from timely_spark.state.arrow import data_bytes
from timely_spark.state.hashing import hashes
from timely_spark.state.row_times import DIFF
from timely_spark.times import Times, Timestamp
from timely_spark.worker.convergence import Convergence


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """The loops in a report of a round; of a loop in an epoch one entry in each list."""

    #: the highest counter of each loop
    reached: dict[str, int] = field(default_factory=dict)
    #: (loop, epoch, counter, sample records) of loops with very many iterations
    far: list[tuple[str, int, int, str]] = field(default_factory=list)
    #: (loop, epoch, iteration, number, sample records) of the records that limits dropped
    dropped: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    #: `Convergence` of the records that feedback carried, encoded
    fed: list[list[Any]] = field(default_factory=list)
    #: (loop, epoch, iteration, number, evidence) of an iteration that repeats very many records
    grown: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    #: (step, epoch, number, time) of notifications of one time that each asked for the next one
    again: list[tuple[str, int, int, str]] = field(default_factory=list)

    @classmethod
    def sum(cls, parts: Iterable[LoopCounts]) -> LoopCounts:
        """The loops of several reports: numbers of records added up, else the highest counters."""
        if not (parts := list(parts)):
            return cls()
        return cls(
            highest(part.reached for part in parts),
            _by_epoch((each for part in parts for each in part.far), max),
            _by_epoch((each for part in parts for each in part.dropped), _sum_of_dropped),
            Convergence.sum(Convergence.decode(part.fed) for part in parts).encode(),
            _by_epoch((each for part in parts for each in part.grown), partial(max, key=itemgetter(1, 0, 2))),
            _by_epoch((each for part in parts for each in part.again), max),
        )


def highest(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The highest number of each name.

    >>> highest([{"x": 3}, {"x": 2, "y": 1}])
    {'x': 3, 'y': 1}
    """
    return dict(sorted(chain.from_iterable(part.items() for part in parts)))


def _by_epoch(entries: Iterable[Sequence[Any]], add: Callable[[Any, Any], Any]) -> list[Any]:
    """One entry for each loop and epoch."""
    sums: dict[tuple[str, int], Any] = {}
    for loop, epoch, *rest in entries:
        sums[loop, epoch] = add(sums[loop, epoch], rest) if (loop, epoch) in sums else rest
    return [(*key, *rest) for key, rest in sorted(sums.items())]


def _sum_of_dropped(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return [min(one[0], other[0]), one[1] + other[1], min(one[2], other[2])]


#: Iterations of fewer records are not looked at; and the records of a sample.
MANY, SAMPLE = 1 << 16, 4096
#: A multiplicity of a collection's record that is certainly a mistake: records do not come so often.
OFTEN = 1 << 24


class LoopState:
    """Loop iterations, and records dropped by loop limits, of one worker in one round."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = plan.warn_after if _numbered(plan.times) else None
        self._bounds: Mapping[str, int] = {}
        #: path summaries of channels under these bounds; None if no time gets through
        self._bounded: dict[int, Any] = {}
        #: called when a loop reaches another iteration; it only looks
        self.watch: Callable[[], object] | None = None
        self._feedbacks = plan.feedbacks if _numbered(plan.times) else {}
        #: the last time of each other channel, and the records and bytes that were sent there
        self._sent: dict[int, tuple[Timestamp, int, int]] = {}
        #: the iteration, and the records and bytes that feedback carries into it, by loop and epoch
        self._carried: dict[tuple[str, int], tuple[int, int, int]] = {}
        #: the records of the last notice of growth, as a power of four, by loop and epoch
        self._marks: dict[tuple[str, int], int] = {}
        #: the time for which each vertex's notifications ask again, and how often since the last report
        self._again: dict[int, tuple[Timestamp, int]] = {}

    def begin(self, bounds: Mapping[str, int], oldest: int) -> None:
        """Begin a round with these bounds; epochs before the oldest are complete."""
        self._carried = {key: sums for key, sums in self._carried.items() if key[1] >= oldest}
        self._marks = {key: mark for key, mark in self._marks.items() if key[1] >= oldest}
        #: the highest counter of each loop
        self.reached: dict[str, int] = {}
        #: the counter of a loop with very many iterations, and sample records, by loop and epoch
        self.far: dict[tuple[str, int], tuple[int, str]] = {}
        #: the iteration and number of the dropped records, and sample records, by loop and epoch
        self.dropped: dict[tuple[str, int], tuple[int, int, str]] = {}
        #: the records that feedback carried
        self.convergence = Convergence()
        #: an iteration that repeats very many records, by loop and epoch: see `LoopCounts.grown`
        self.grown: dict[tuple[str, int], tuple[int, int, str]] = {}
        #: notifications that ask again, by step and epoch: see `LoopCounts.again`
        self.again: dict[tuple[str, int], tuple[int, str]] = {}
        #: whether the round ends, so that the driver hears of growth, or of notifications that ask again
        self.ends = False
        if bounds != self._bounds:
            self._bounds, self._bounded = bounds, {}

    def enter(
        self, node: Node, key: tuple[Any, ...], time: Timestamp, table: pa.Table | None, steps: int
    ) -> bool:
        """Count the iteration of the next delivery; False: end the round before the delivery.

        A round ends at each multiple of `plan.warn_after` iterations, so that the driver hears of a loop
        which never leaves its worker.
        """
        if self.every is None:
            return True
        continues = True
        for loop, counter in zip(node.stage.scope.path[1:], key[2::2], strict=False):
            if loop.inner is not None or not loop.watched:
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

    def _mark(self, loop: LoopContext, time: Timestamp) -> int:
        counter, _ = self.far.get((loop.name, time.epoch), (0, ""))
        return counter // (self.every or 1)

    def arrival(self, channel: Channel, time: Timestamp) -> Any | None:
        """The time at which a batch sent over a channel arrives; None if a loop's limit or bound drops it."""
        if not self._bounds:
            return channel.summary.results_in(time)
        if channel.index not in self._bounded:
            self._bounded[channel.index] = _bounded_summary(channel, self._bounds)
        summary = self._bounded[channel.index]
        return None if summary is None else summary.results_in(time)

    def sent(self, channel: Channel, time: Timestamp, batch: pa.Table, node: Node) -> None:
        """Count records that a step sends over a channel, if it is the one by which a feedback is counted.

        The channel may lead on, out of the loop, so the iteration is the one after that of the sender.

        Raises:
            LimitReached: an iteration has more records or bytes than `epoch_limit` allows.
        """
        if (loop := self._feedbacks.get(channel.index)) is None:
            return
        iteration, key = 1 + _counter(loop, time), (loop.name, time.epoch)
        self.convergence.add(*key, iteration, batch.num_rows)
        records, size = _added(self._carried, key, iteration, batch)
        if (too_many := self.plan.epoch_limit.exceeded(records, size)) is not None:
            raise LimitReached.grown(
                loop.name, loop.where, node.name, epoch=time.epoch, iteration=iteration,
                size=f"{records:,} records, {size:,} bytes on one worker", limit=too_many,
                evidence=repeats(batch) or f"among them {excerpt(batch)}",
            )  # fmt: skip
        if self.every is not None and (records >= MANY or iteration % 16 == 0):
            self._look(key, iteration, records, batch)

    def check_size(self, channel: Channel, time: Timestamp, batch: pa.Table, node: Node) -> None:
        """Add up what a step sends over a channel at one time; what feedback carries is added up by `sent`.

        Raises:
            LimitReached: there are more records or bytes than `epoch_limit` allows.
        """
        if channel.index in self._feedbacks:
            return
        records, size = _added(self._sent, channel.index, time, batch)
        if (too_many := self.plan.epoch_limit.exceeded(records, size, feedback=False)) is not None:
            raise LimitReached.large(
                node.name, node.stage.where, epoch=time.epoch, at=str(time),
                size=f"{records:,} records, {size:,} bytes on one worker", limit=too_many,
                evidence=repeats(batch) or f"among them {excerpt(batch)}",
            )  # fmt: skip

    def _look(self, key: tuple[str, int], iteration: int, records: int, batch: pa.Table) -> None:
        """Look whether an iteration repeats records; the round ends, so that the driver hears of it."""
        number = max(records, most_often(batch))
        mark = number.bit_length() // 2
        if number < MANY or mark <= self._marks.get(key, 0):
            return
        self._marks[key] = mark
        if (evidence := repeats(batch)) is not None:
            self.grown[key] = iteration, number, evidence
            self.ends = True

    def ask_again(self, node: Node, time: Timestamp) -> None:
        """Count a notification that asks for another one of its own time; the round ends after very many."""
        at, number = self._again.get(node.index, (time, 0))
        number = 1 + (number if at == time else 0)
        if number == self.plan.warn_after:
            self.again[node.name, time.epoch] = number, str(time)
            self.ends, number = True, 0
        self._again[node.index] = time, number

    def drop(self, node: Node, loop: LoopContext, time: Timestamp, table: pa.Table) -> None:
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
        grown = [(*key, *growth) for key, growth in self.grown.items()]
        again = [(*key, *growth) for key, growth in self.again.items()]
        return LoopCounts(self.reached, far, dropped, self.convergence.encode(), grown, again)


def _added(totals: dict[Any, tuple[Any, int, int]], key: Any, at: Any, batch: pa.Table) -> tuple[int, int]:
    """Add a batch to the records and bytes of a key's time, which is the last one; returns the sums."""
    last, *before = totals.get(key, (at, 0, 0))
    records, size = before if last == at else (0, 0)
    totals[key] = at, records + batch.num_rows, size + data_bytes(batch)
    return totals[key][1:]


def most_often(batch: pa.Table) -> int:
    """The highest multiplicity of the records of a batch of a collection, which has some; 0 for a stream."""
    if DIFF not in batch.schema.names:
        return 0
    ends: Any = pc.min_max(batch[DIFF])
    often: int = max(abs(ends["min"].as_py()), abs(ends["max"].as_py()))
    return often


def repeats(batch: pa.Table) -> str | None:
    """How often a batch repeats records, in words, by a sample; None if most records differ.

    >>> repeats(pa.table({"n": [7] * 70000}))
    "of 4096 sampled records 1 differ: {'n': 7}, {'n': 7}, {'n': 7} and 4093 more"
    >>> repeats(pa.table({"n": range(70000)}))
    >>> repeats(pa.table({"n": [7], "__timely_diff": [1 << 30]}))
    "a record comes 1073741824 times: {'n': 7}"
    """
    if (often := most_often(batch)) >= OFTEN:
        at = pc.index(pc.abs(batch[DIFF]), often).as_py()
        return f"a record comes {often} times: {excerpt(batch.slice(max(at, 0), 1))}"
    step = max(1, batch.num_rows // SAMPLE)
    sample = batch.take(pa.array(np.arange(0, batch.num_rows, step)[:SAMPLE]))
    differ = len(np.unique(hashes(sample, sample.schema.names)))
    if 2 * differ > sample.num_rows:
        return None
    return f"of {sample.num_rows} sampled records {differ} differ: {excerpt(sample)}"


def _bounded_summary(channel: Channel, bounds: Mapping[str, int]) -> Any | None:
    """A channel's path summary under bounds of loops; None if no time gets through."""
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


def limiting_loop(channel: Channel) -> LoopContext | None:
    """The loop whose feedback a channel crosses, if any."""
    return next((edge.target.scope for edge in channel.edges if edge.target.kind is Kind.FEEDBACK), None)


def _counter(loop: LoopContext, time: Timestamp) -> int:
    """The iteration of a time; records that enter the loop with this message have none yet."""
    counter: Any = time.order_key()[loop.depth :][:1]
    return counter[0] if counter and isinstance(counter[0], int) else 0


def _numbered(times: Times) -> bool:
    """Whether loop counters are numbers; in user-defined times they may be any values."""
    return isinstance(times.enter(0).results_in(times.epoch(0)).order_key()[1], int)  # type: ignore[union-attr]
