"""`Sent`: the epochs in which records that were sent until now, or until some time ago, are complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timely_spark.compiler.plan import Plan
from timely_spark.runtime.handle.watch import Watch
from timely_spark.runtime.storage.entries import Journal, Position


@dataclass(frozen=True, slots=True)
class Sent:
    """The entries that the input handles of a running flow have sent."""

    plan: Plan
    watch: Watch
    inputs: Sequence[Journal]

    def epoch(self) -> Callable[[], int | None]:
        """A function that returns the epoch of the last entry sent so far, or None: not known yet."""
        return self._epoch_of({journal.name: journal.position for journal in self.inputs})

    def covers(self, seconds: float) -> Callable[[int], bool]:
        """A function of an epoch: whether it and earlier ones have all that was sent until so long ago."""
        positions = {journal.name: journal.as_of(seconds) for journal in self.inputs}
        if any(source.epochs != "clock" for source in self.plan.inputs):
            until = self._epoch_of(positions)()
            return lambda epoch: until is not None and epoch >= until

        def covers(epoch: int) -> bool:
            offset = self.watch.log.spark_offset(epoch)
            return _behind(positions, {} if offset is None else offset[1])

        return covers

    def _epoch_of(self, positions: Mapping[str, Position]) -> Callable[[], int | None]:
        manual = [positions[journal.name] for journal in self.inputs if journal.epochs == "manual"]
        if manual:
            first_open = min((position.epoch for position in manual if not position.closed), default=None)
            last = max(position.epoch for position in manual) if first_open is None else first_open - 1
            return lambda: last
        if any(source.epochs != "clock" for source in self.plan.inputs):
            now = self.watch.newest().coordinator
            open_ = [at for at in now["inputs"].values() if at is not None]
            closed: int = min(open_) - 1 if open_ else now["begun"]
            return lambda: closed

        def epoch() -> int | None:
            offset = self.watch.taken()
            if offset is None:
                return None if any(p.sent for p in positions.values()) else self.watch.newest().batch
            batch, taken = offset
            return batch if _behind(positions, taken) else None

        return epoch


def _behind(positions: Mapping[str, Position], taken: Mapping[str, int]) -> bool:
    """Whether all entries before positions are taken, given the last one that is."""
    return all(taken.get(name, -1) + 1 >= position.sent for name, position in positions.items())
