"""`History`: the retained batches of a checkpoint, across restarts: how long epochs took, and on what."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from timely_spark.runtime.storage.hours import HOUR
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.worker.convergence import Convergence, Iterations

Moment = TypeVar("Moment", int, float)

#: The most batches that are read.
LAST = 100
#: Of the epochs that are completed between two looks, the latencies of so many are remembered for an hour.
_BETWEEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PastBatch:
    """The work of one batch; times in seconds since 1970."""

    number: int
    #: `Manifest.arrived`
    arrived: float | None
    began: float
    ended: float
    #: rounds since the checkpoint was made, and records delivered to steps
    rounds: int
    records: int
    released: Sequence[tuple[str, int]]
    open_epochs: Sequence[int]
    iterations: Sequence[Iterations]
    state_bytes: Mapping[str, int]
    memory_bytes: Mapping[str, int]
    #: records by channel, seconds by step, and milliseconds by worker
    moved: Mapping[int, int]
    spent: Mapping[str, float]
    took: Mapping[int, float]
    #: the run (one start) that ran it
    run: str

    @classmethod
    def of(cls, manifest: Manifest) -> PastBatch:
        """The batch that wrote a manifest."""
        stats = manifest.stats
        return cls(
            number=manifest.batch,
            arrived=manifest.arrived,
            began=manifest.written - manifest.milliseconds / 1000,
            ended=manifest.written,
            rounds=manifest.rounds,
            records=int(stats.get("records", 0)),
            released=manifest.released,
            open_epochs=manifest.open_epochs,
            iterations=tuple(Convergence.decode(stats.get("convergence", ()))),
            state_bytes=manifest.state_bytes,
            memory_bytes=manifest.memory_bytes,
            moved={int(channel): records for channel, records in stats.get("moved", {}).items()},
            spent={step: microseconds / 1e6 for step, microseconds in stats.get("spent", {}).items()},
            took={int(worker): ms for worker, ms in stats.get("took", {}).items()},
            run=manifest.run,
        )

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch that is complete at an output: from the start of the batch that read its input."""

    epoch: int
    #: when its first record was sent to a handle; None if none was, or nothing says when
    arrived: float | None
    began: float
    ended: float
    #: the batch that released it, and the rounds up to and with it; None if the batch before was removed
    batch: int
    rounds: int | None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(slots=True)
class History:
    """The last retained batches of a checkpoint, oldest first; `look` reads what is new."""

    #: whether the inputs' epochs are batches
    clocked: bool
    batches: list[PastBatch] = field(default_factory=list)
    #: of epochs of the last hour: when each was complete, and the seconds that it took. A checkpoint retains
    #: fewer batches than an hour may have.
    hour: list[tuple[float, float]] = field(default_factory=list)
    _term: int | None = None

    def look(self, log: RoundLog, newest: Manifest) -> History:
        """Read the batches up to a manifest that are new since the last look.

        Args:
            log: the log that the manifest was read from; one opened earlier lacks batches of later runs.
            newest: the manifest.
        """
        term = max(log.files.numbers("terms"), default=None)
        if term != self._term:  # a restart may repeat batches
            self._term, self.batches = term, []
        earlier = {batch.number: batch for batch in self.batches if batch.number < newest.batch}
        batches = [PastBatch.of(newest)] * (newest.batch > FIRST)
        for number in range(newest.batch - 1, max(FIRST, newest.batch - LAST), -1):
            batch = earlier.get(number)
            if batch is None:
                manifest = log.read(number)
                if manifest is None:
                    break
                batch = PastBatch.of(manifest)
            batches.append(batch)
        self.batches = batches[::-1]
        self._remember(newest.written - HOUR)
        return self

    def _remember(self, since: float) -> None:
        """Add what was completed since the last look, evenly thinned, and forget what is older."""
        last = self.hour[-1][0] if self.hour else -math.inf
        new = [(one.ended, one.seconds) for one in self.epochs() if one.ended > last]
        step = -(-len(new) // _BETWEEN) if self.hour else 1
        self.hour = self.hour[bisect(self.hour, (since, math.inf)) :] + new[:: -max(step, 1)][::-1]

    def epochs(self) -> list[Epoch]:
        """The epochs that the batches have completed, each at the output that had it last."""
        first = {batch.number: batch for batch in self.batches}
        rounds = {batch.number: batch.rounds for batch in self.batches} | {FIRST: 0}
        for batch in self.batches:
            for epoch in batch.open_epochs:
                first.setdefault(epoch, batch)
        epochs: dict[int, Epoch] = {}
        for batch in self.batches:
            for _, epoch in batch.released:
                start = first.get(epoch, batch) if self.clocked else batch
                before = rounds.get((epoch if self.clocked else batch.number) - 1)
                epochs[epoch] = Epoch(
                    epoch=epoch,
                    arrived=start.arrived,
                    began=start.began,
                    ended=batch.ended,
                    batch=batch.number,
                    rounds=None if before is None else batch.rounds - before,
                )
        return sorted(epochs.values(), key=lambda one: one.epoch)

    def open_since(self, epoch: int) -> float | None:
        """When an epoch in flight began; None if the batch was removed."""
        if self.clocked and (own := [batch for batch in self.batches if batch.number == epoch]):
            return own[0].began
        return next((batch.began for batch in self.batches if epoch in batch.open_epochs), None)

    def all_open_since(self, epochs: Iterable[int]) -> list[float]:
        """When epochs in flight began, without those whose batch was removed."""
        return [at for epoch in epochs if (at := self.open_since(epoch)) is not None]

    def convergence(self) -> dict[str, dict[int, list[tuple[int, float]]]]:
        """The changed records of each iteration, by loop and epoch."""
        return convergence(each for batch in self.batches for each in batch.iterations)

    def moved(self) -> Counter[int]:
        """The records of each channel."""
        return _sums(batch.moved for batch in self.batches)

    def spent(self) -> Mapping[str, float]:
        """The seconds of each step."""
        return _sums(batch.spent for batch in self.batches)

    def took(self) -> Mapping[int, float]:
        """The milliseconds of each worker."""
        return _sums(batch.took for batch in self.batches)


def convergence(every: Iterable[Iterations]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """The changed records of each iteration, by loop and epoch.

    An epoch may take several batches. The records of `width` iterations count as their mean.
    """
    total: dict[tuple[str, int], list[Iterations]] = defaultdict(list)
    for each in every:
        total[each.loop, each.epoch].append(each)
    loops: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(dict)
    for (loop, epoch), parts in sorted(total.items()):
        points = [(first, records / width) for _, _, first, width, records in Convergence.of(parts)]
        loops[loop][epoch] = points
    return loops


def quantile(values: Iterable[float], part: float) -> float | None:
    """The least value that a part of the values does not exceed, as in `Latencies`; None if there are none.

    >>> quantile([3, 1, 2], 0.5), quantile([2.6, 0.6], 0.5), quantile(range(100), 0.99), quantile([], 0.5)
    (2, 0.6, 98, None)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None


def _sums(parts: Iterable[Mapping[Any, Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for part in parts:
        total.update(part)
    return total


def by_box(values: Mapping[str, float], boxes: Mapping[str, str]) -> dict[str, float]:
    """Sums over the steps of each box, of values by step."""
    total: dict[str, float] = defaultdict(float)
    for name, value in values.items():
        total[boxes.get(name, name)] += value
    return total


def largest_over_time(
    sizes: Iterable[tuple[Moment, Mapping[str, float]]], most: int
) -> dict[str, list[tuple[Moment, float]]]:
    """The points of the names with the largest maxima.

    >>> largest_over_time([(1, {"a": 1, "b": 5}), (2, {"a": 2, "c": 3})], 2)
    {'b': [(1, 5)], 'c': [(2, 3)]}
    """
    lines: dict[str, list[tuple[Moment, float]]] = defaultdict(list)
    for at, own in sizes:
        for name, size in own.items():
            lines[name].append((at, size))
    names = sorted(lines, key=lambda name: -max(size for _, size in lines[name]))[:most]
    return {name: lines[name] for name in names}
